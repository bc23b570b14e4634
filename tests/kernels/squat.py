#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""squat.py PROGRAM: payloads of `squat` against a second implementation, which knows docs/formats.md only.

PROGRAM is plane_squat. Payloads must be equal byte for byte with every instruction set, the reader here must find
the same elements in them, and the digest of one payload is the one that was once written down.
"""
import os
import random
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kvquant import f16, pack  # noqa: E402
from lossless import fnv  # noqa: E402
from pca import FORMAT, elements, to_bytes  # noqa: E402
from rope import f32  # noqa: E402

LAMBDA, GOLDEN = 1e-3, 0xdc64d15be4daea3f


def inverse(m):
    """Gauss and Jordan, with the largest pivot."""
    n = len(m)
    m = [row + [float(i == j) for j in range(n)] for i, row in enumerate(m)]
    for c in range(n):
        p = max(range(c, n), key=lambda r: abs(m[r][c]))
        m[c], m[p] = m[p], m[c]
        m[c] = [v / m[c][c] for v in m[c]]
        for r in range(n):
            if r != c:
                m[r] = [a - m[r][c] * b for a, b in zip(m[r], m[c])]
    return [row[n:] for row in m]


def bends(axes, dim, block):
    """What each channel owes to the axes' sums, in fp32."""
    rank, out = len(axes), [[0.0] * dim for _ in axes]
    for at in range(block, dim, block):
        rest = range(at, dim)
        m = [[float(i == j) + LAMBDA * sum(axes[i][c] * axes[j][c] for c in rest) for j in range(rank)]
             for i in range(rank)]
        m = inverse(m)
        for c in range(at, min(at + block, dim)):
            for j in range(rank):
                out[j][c] = f32(LAMBDA * sum(m[j][i] * axes[i][c] for i in range(rank)))
    return out


def code_channel(bits, x):
    """Codes of one channel of a group, its scale and minimum, and what they say."""
    low, high = min(x), max(x)
    s, m = f16(f32(f32(high - low) / (2 ** bits - 1))), f16(low)
    r = f32(1.0 / s) if s > 0 else 0.0
    codes = [min(max(round(f32(f32(v - m) * r)), 0), 2 ** bits - 1) for v in x]
    return codes, s, m, [f32(f32(c * s) + m) for c in codes]


def encode(name, dtype, tokens, heads, dim, axes, block, values):
    """The payload, and what a reader must make of it, both from keys and axes alone."""
    bits, size = int(name[5]), int(name.split("-g")[1]) if "-g" in name else 32
    groups = tokens // size
    codes, scale, minimum, native, out = b"", b"", b"", b"", []
    for h in range(heads):
        x = [values[(h * tokens + t) * dim:(h * tokens + t + 1) * dim] for t in range(tokens)]
        owe, y = bends(axes[h], dim, block), [row[:] for row in x]
        for first in range(0, groups * size, size):
            group = range(first, first + size)
            total = {t: [0.0] * len(axes[h]) for t in group}
            code = {t: [] for t in group}
            for at in range(0, dim, block):
                channels = range(at, min(at + block, dim))
                for c in channels:
                    target = [x[t][c] for t in group]
                    for j in range(len(axes[h]) if at else 0):
                        target = [f32(v - f32(owe[j][c] * total[t][j])) for v, t in zip(target, group)]
                    got, s, m, back = code_channel(bits, target)
                    scale += struct.pack("<e", s)
                    minimum += struct.pack("<e", m)
                    for t, k, v in zip(group, got, back):
                        code[t].append(k)
                        y[t][c] = v
                for t in group:
                    for c in channels:
                        e = f32(y[t][c] - x[t][c])
                        total[t] = [f32(s + f32(a[c] * e)) for s, a in zip(total[t], axes[h])]
            codes += b"".join(pack(bits, code[t]) for t in group)
        native += to_bytes(dtype, [v for row in x[groups * size:] for v in row])
        out += [v for row in y for v in row]
    body = b""
    for section in (codes, scale, minimum, native):
        if section:
            body += bytes(-len(body) % 64) + section
    hdr = struct.pack("<IHHIIHHHBBiIQQ16x", 0x5050564b, 1, 0, 18 << 8 | bits | (size.bit_length() - 1) << 4,
                      64 + len(body), tokens, heads, dim, FORMAT[dtype][1], 0, 0, 0, 0, 0)
    return hdr + body, to_bytes(dtype, out)


# codec, tokens, heads, dim, rank, block
CASES = (("squat2", 33, 2, 128, 5, 64), ("squat4-g16", 40, 1, 80, 3, 64), ("squat3-g16", 16, 2, 40, 20, 24),
         ("squat2-g16", 17, 1, 16, 2, 8), ("squat4-g64", 64, 1, 136, 1, 64), ("squat2-g16", 16, 1, 64, 17, 32))


def main():
    rng, bad = random.Random(20), 0
    for case in CASES:
        name, tokens, heads, dim, rank, block = case
        for dtype in ("fp32", "fp16", "bf16"):
            raw, values = elements(dtype, tokens * heads * dim, rng)
            axes = [[[f32(rng.gauss(0, 20) / (1 + j)) for _ in range(dim)] for j in range(rank)] for _ in range(heads)]
            data = b"".join(struct.pack(f"<{dim}f", *row) for head in axes for row in head)
            want, back = encode(name, dtype, tokens, heads, dim, axes, block, values)
            for isa in ("c", "avx2", "vbmi"):
                got = subprocess.run([sys.argv[1], name, dtype, *map(str, case[1:]), isa], input=data + raw,
                                     capture_output=True, check=True).stdout
                if got != want + back:
                    at = next((i for i, (a, b) in enumerate(zip(got, want + back)) if a != b), None)
                    print(f"{case} {dtype} {isa}: {len(got)} bytes, not {len(want + back)}, first at {at} of {len(want)}")
                    bad = 1
            if case == CASES[0] and dtype == "fp16" and fnv(want) != GOLDEN:
                print(f"{name}: digest {fnv(want):#x}, once {GOLDEN:#x}")
                bad = 1
    sys.exit(bad)


if __name__ == "__main__":
    main()
