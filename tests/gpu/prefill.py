#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a prompt costs that is not cached: the prefill of an 8B-shaped model with random weights, in bf16, by PyTorch
(32 layers, 32 heads, 8 KV heads of 128, hidden 4,096, MLP 14,336), in chunks as engines do it. For figures.c's prompt.

    prefill.py [TOKENS [CHUNK]]

Exit status 77: there is no PyTorch, or no GPU.
"""
import sys
import time

LAYERS, HEADS, KV_HEADS, DIM, HIDDEN, MLP = 32, 32, 8, 128, 4096, 14336


def main():
    try:
        import torch
        import torch.nn.functional as F
    except ImportError:
        print("skipped: no PyTorch")
        return 77
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 32768
    chunk = min(int(sys.argv[2]) if len(sys.argv) > 2 else 8192, tokens)
    where = {"device": "cuda", "dtype": torch.bfloat16}
    qkv = [torch.randn(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, **where) * .02 for _ in range(LAYERS)]
    out = [torch.randn(HEADS * DIM, HIDDEN, **where) * .02 for _ in range(LAYERS)]
    up = [torch.randn(HIDDEN, 2 * MLP, **where) * .02 for _ in range(LAYERS)]
    down = [torch.randn(MLP, HIDDEN, **where) * .02 for _ in range(LAYERS)]
    keys = torch.empty(LAYERS, 1, KV_HEADS, tokens, DIM, **where)
    values = torch.empty_like(keys)

    def attend(q, i, at, n):
        k, v = keys[i][:, :, :at + n], values[i][:, :, :at + n]
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        if at == 0:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        from torch.nn.attention.bias import causal_lower_right
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(n, at + n))

    def prefill():
        for at in range(0, tokens, chunk):
            n = min(chunk, tokens - at)
            x = torch.randn(n, HIDDEN, **where)
            for i in range(LAYERS):
                h = F.rms_norm(x, (HIDDEN,)) @ qkv[i]
                q, k, v = h.split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=1)
                keys[i, 0, :, at:at + n] = k.view(n, KV_HEADS, DIM).transpose(0, 1)
                values[i, 0, :, at:at + n] = v.view(n, KV_HEADS, DIM).transpose(0, 1)
                a = attend(q.view(1, n, HEADS, DIM).transpose(1, 2), i, at, n)
                x = x + a.transpose(1, 2).reshape(n, HEADS * DIM) @ out[i]
                gate, wide = (F.rms_norm(x, (HIDDEN,)) @ up[i]).chunk(2, dim=1)
                x = x + (F.silu(gate) * wide) @ down[i]

    with torch.inference_mode():
        prefill()
        times = []
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.monotonic()
            prefill()
            torch.cuda.synchronize()
            times.append(time.monotonic() - began)
    print("prefill of %d tokens, chunks of %d, PyTorch %s: %.1f ms (%.1f to %.1f)"
          % (tokens, chunk, torch.__version__, sorted(times)[1] * 1e3, min(times) * 1e3, max(times) * 1e3))
    return 0


if __name__ == "__main__":
    sys.exit(main())
