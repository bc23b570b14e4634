#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""spectral.py PROGRAM: payloads of `spectral` against a second implementation, which knows docs/formats.md only.

PROGRAM is plane_encode. Payloads must be equal byte for byte with every instruction set, the reader here must find
the same elements in them, and the digest of one payload is the one that was once written down.
"""
import os
import random
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lossless import fnv  # noqa: E402
from pca import FORMAT, elements, to_bytes  # noqa: E402
from rope import f32  # noqa: E402

KEPT = {"f8": 0, "f10": 1, "f12": 2, "f14": 3, "f16": 4, "f24": 5, "f32": 6}
GOLDEN = 0x1559664a11c96af6


def f16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def encode(name, dtype, tokens, heads, dim, values):
    """The payload, and what a reader must make of it, both from the elements alone."""
    words = name.split("-")[1:]
    pairs = next((w for w in words if w in KEPT), "f12")
    bits = 16 if "i16" in words else 8 if "i8" in words else 4
    apart = "interleaved" in words
    variant = KEPT[pairs] | {4: 0, 8: 8, 16: 16}[bits] | 32 * apart | 64 * ("any" in words)
    n, half = int(pairs[1:]), (2 ** bits - 1) / 2
    codes, scale, extra, out = b"", b"", b"", []
    for row in range(heads * tokens):
        x = values[row * dim:(row + 1) * dim]
        place = [(2 * i, 2 * i + 1) if apart else (i, i + dim // 2) for i in range(dim // 2)]
        energy = [f32(f32(x[a] * x[a]) + f32(x[b] * x[b])) for a, b in place]
        strong = sorted(sorted(range(dim // 2), key=lambda i: (-energy[i], i))[:n])
        kept = [x[j] for i in strong for j in place[i]]
        s = f16(max(abs(v) for v in kept))
        inverse = f32(1.0 / s) if s > 0 else 0.0
        unit = [f32(min(max(f32(v * inverse), -1.0), 1.0) + 1.0) for v in kept]
        code = [round(f32(u * half)) for u in unit]
        step, y = f32(s / half), [0.0] * dim
        for i, j in enumerate(j for i in strong for j in place[i]):
            y[j] = f32((code[i] - half) * step)
        if bits == 4:
            codes += bytes(a | b << 4 for a, b in zip(code[::2], code[1::2]))
        else:
            codes += struct.pack(f"<{2 * n}{'B' if bits == 8 else 'H'}", *code)
        scale += struct.pack("<e", s)
        extra += bytes(strong)
        out += y
    body = b""
    for section in (codes, scale, extra):
        body += bytes(-len(body) % 64) + section
    hdr = struct.pack("<IHHIIHHHBBiIQQ16x", 0x5050564b, 1, 0, 17 << 8 | variant, 64 + len(body), tokens, heads, dim,
                      FORMAT[dtype][1], 0, 0, 0, 0, 0)
    return hdr + body, to_bytes(dtype, out)


CASES = (("spectral-any", 5, 2, 128), ("spectral-f8-interleaved-any", 3, 3, 40), ("spectral-f32-i8-any", 4, 1, 72),
         ("spectral-f16-i16-interleaved-any", 7, 2, 64), ("spectral-f10-i8-any", 1, 1, 512))


def main():
    rng, bad = random.Random(86), 0
    for name, tokens, heads, dim in CASES:
        for dtype in ("fp16", "bf16"):
            raw, values = elements(dtype, tokens * heads * dim, rng)
            want, back = encode(name, dtype, tokens, heads, dim, values)
            for isa in ("c", "avx2", "vbmi"):
                got = subprocess.run([sys.argv[1], name, dtype, str(tokens), str(heads), str(dim), isa, "back"], input=raw,
                                     capture_output=True, check=True).stdout
                if got != want + back:
                    at = next((i for i, (a, b) in enumerate(zip(got, want + back)) if a != b), None)
                    print(f"{name} {dtype} {isa}: {len(got)} bytes, not {len(want + back)}, first at {at} of {len(want)}")
                    bad = 1
            if name == CASES[0][0] and dtype == "fp16" and fnv(want) != GOLDEN:
                print(f"{name}: digest {fnv(want):#x}, once {GOLDEN:#x}")
                bad = 1
    sys.exit(bad)


if __name__ == "__main__":
    main()
