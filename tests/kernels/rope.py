#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rope.py PROGRAM: RoPE against a second implementation, which knows docs/formats.md only.

PROGRAM is plane_rope. Planes must be equal byte for byte with every instruction set. Python's floats are doubles
with exactly rounded operations, as the document has them.
"""
import math
import random
import struct
import subprocess
import sys

TWO_PI = float.fromhex("0x1.921fb54442d18p+2")
NONE, LINEAR, NTK, YARN, LLAMA3 = range(5)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def log01(x):
    e = 0.0
    while x < 0.70710678118654752:
        x, e = x * 2.0, e - 1.0
    t = (x - 1.0) / (x + 1.0)
    total = 0.0
    for i in range(31, 0, -2):
        total = total * (t * t) + 1.0 / i
    return 2.0 * t * total + e * 0.69314718055994531


def log(x):
    return log01(x) if x < 1.0 else -log01(1.0 / x)


def exp_minus(x):
    k = float(round(x * float.fromhex("0x1.71547652b82fep+0")))
    r = (k * float.fromhex("0x1.62e42fefp-1") - x) + k * float.fromhex("0x1.473de6af278edp-34")
    total = 1.0
    for i in range(17, 0, -1):
        total = 1.0 + r * total / i
    return math.ldexp(total, -int(k))


def frequencies(dim, scaling, theta, p):
    if scaling == NTK:
        theta /= exp_minus(dim / (dim - 2.0) * log(p[0]))
    freq = [exp_minus(2.0 * i / dim * log(theta)) for i in range(dim // 2)]
    if scaling == LINEAR:
        return [f / p[0] for f in freq]
    if scaling == LLAMA3:
        for i, f in enumerate(freq):
            turns = p[3] * f / TWO_PI
            smooth = (turns - p[1]) / (p[2] - p[1])
            if turns < p[1]:
                freq[i] = f / p[0]
            elif turns <= p[2]:
                freq[i] = (1.0 - smooth) * (f / p[0]) + smooth * f
    if scaling == YARN:
        def pair(turns):
            return dim * log(p[3] / (turns * TWO_PI)) / (2.0 * log(theta))
        start = max(float(math.floor(pair(p[2] or 32.0))), 0.0)
        end = min(float(math.ceil(pair(p[1] or 1.0))), dim - 1.0)
        if start >= end:
            end = start + 0.001
        for i, f in enumerate(freq):
            ramp = min(max((i - start) / (end - start), 0.0), 1.0)
            freq[i] = f / p[0] * ramp + f * (1.0 - ramp)
    return freq


def sin_cos(angle):
    k = float(round(angle * float.fromhex("0x1.45f306dc9c883p-1")))
    r = ((angle - k * float.fromhex("0x1.921fb5p+0")) - k * float.fromhex("0x1.110b46p-26")) \
        - k * float.fromhex("0x1.1a62633145c07p-54")
    z, s, c = r * r, 1.0 / math.factorial(17), 1.0 / math.factorial(16)
    for n in (15, 13, 11, 9, 7, 5, 3):
        s = s * z + (1.0 if n % 4 == 1 else -1.0) / math.factorial(n)
    for n in (14, 12, 10, 8, 6, 4):
        c = c * z + (1.0 if n % 4 == 0 else -1.0) / math.factorial(n)
    s, c = r + r * z * s, 1.0 - z * (0.5 - z * c)
    return [(s, c), (c, -s), (-s, -c), (-c, s)][int(k) % 4]


def turn(x, pairing, dim, freq, gain, position, undo):
    y = list(x)
    gain = 1.0 / gain if undo else gain
    for i in range(dim // 2):
        a, b = (i, i + dim // 2) if pairing == 1 else (2 * i, 2 * i + 1)
        s, c = sin_cos(position * freq[i])
        s, c = f32(s * gain), f32(c * gain)
        s = -s if undo else s
        y[a] = f32(f32(x[a] * c) + f32(x[b] * -s))
        y[b] = f32(f32(x[b] * c) + f32(x[a] * s))
    return y


CASES = [  # scaling, theta, params
    (NONE, 10000.0, (0, 0, 0, 0)), (NONE, 1e6, (0, 0, 0, 0)), (LINEAR, 10000.0, (4, 0, 0, 0)),
    (NTK, 10000.0, (2.5, 0, 0, 0)), (LLAMA3, 500000.0, (8, 1, 4, 8192)), (LLAMA3, 500000.0, (32, 1, 4, 8192)),
    (YARN, 10000.0, (4, 0, 0, 32768)), (YARN, 150000.0, (32, 1, 32, 4096)), (YARN, 10000.0, (1, 0, 0, 2048))]


def main():
    rng, bad = random.Random(18), 0
    for scaling, theta, params in CASES:
        for pairing, dim, row in ((1, 128, 128), (2, 64, 72), (1, 24, 40), (2, 6, 8)):
            tokens, heads, first = 5, 2, rng.choice([0, 7, 1000, 131067, (1 << 27) - 5])
            freq = frequencies(dim, scaling, theta, params)
            gain = 0.1 * log(params[0]) + 1.0 if scaling == YARN else 1.0
            x = [f32(rng.gauss(0, 2)) for _ in range(tokens * heads * row)]
            for undo in (False, True):
                want = []
                for at in range(0, len(x), row):
                    want += turn(x[at:at + row], pairing, dim, freq, gain, first + at // row % tokens, undo)
                for isa in ("c", "avx2", "vbmi"):
                    got = subprocess.run(
                        [sys.argv[1], "undo" if undo else "apply", isa] +
                        [str(v) for v in (pairing, dim, scaling, theta, *params, tokens, heads, row, first)],
                        input=struct.pack(f"<{len(x)}f", *x), capture_output=True, check=True).stdout
                    if got != struct.pack(f"<{len(x)}f", *want):
                        print(f"scaling {scaling} theta {theta} {params}: pairing {pairing}, {dim} of {row}, position "
                              f"{first}, {isa}, {'undo' if undo else 'apply'}: other bytes")
                        bad = 1
    sys.exit(bad)


if __name__ == "__main__":
    main()
