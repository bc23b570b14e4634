#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvquant.py PROGRAM: payloads of `kvquant` against a second implementation, which knows docs/formats.md only.

PROGRAM is plane_nuq. Payloads must be equal byte for byte with every instruction set, the reader here must find the
same elements in them, and the digests of two payloads are those that were once written down.
"""
import os
import random
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lossless import fnv  # noqa: E402
from pca import FORMAT, elements, to_bytes  # noqa: E402
from rope import f32, frequencies, turn  # noqa: E402

UNIFORM, POST, DENSE = 8, 16, 32
OPTIONS = {"-uniform": UNIFORM, "-post": POST, "-dense": DENSE}
GOLDEN = {"kvquant3": 0x440ba432c00825dc, "kvquant2-post": 0xa0f6f561ae87f1ae}


def f16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


class Calibration:
    def __init__(self, data):
        assert struct.unpack_from("<IHHQ", data) == (0x4e50564b, 1, 0, len(data))
        _, entries, self.heads, self.dim, zero = struct.unpack_from("<4IQ", data, 24)
        self.pairing, self.turns, scaling, _, theta, *params = struct.unpack_from("<4I5d", data, 48)
        assert zero == scaling == 0
        self.freq = frequencies(self.turns, scaling, theta, params) if self.pairing else []
        self.width, self.entry, at = self.heads * self.dim, {}, 192
        for _ in range(entries):
            layer, form = struct.unpack_from("<II", data, at)
            posts = struct.unpack_from("<28f", data, at + 8)
            at += 120
            channels = []
            if form != 1:
                low = struct.unpack_from(f"<{self.width}f", data, at)
                high = struct.unpack_from(f"<{self.width}f", data, at + 4 * self.width)
                at += 8 * self.width
                for a, b in zip(low, high):
                    half = max(f32(f32(b - a) * .5), 2.0 ** -20)
                    channels.append((f32(f32(b + a) * .5), half, f32(1.0 / half)))
            self.entry[layer, form] = ({2: posts[:4], 3: posts[4:12], 4: posts[12:]}, channels)
        assert at == len(data)


def pack(bits, codes):
    """One vector's codes as a row."""
    d = len(codes)
    if bits == 4:
        return bytes(codes[i] | codes[i + d // 2] << 4 for i in range(d // 2))
    q = d // 4
    row = bytes(sum((codes[i + j * q] & 3) << 2 * j for j in range(4)) for i in range(q))
    if bits == 3:
        row += bytes(sum((codes[8 * i + j] >> 2) << j for j in range(8)) for i in range(d // 8))
    return row


def plan(cal, layer, kind, name):
    bits = int(name[7])
    flags = sum(v for k, v in OPTIONS.items() if k in name)
    posts, channels = cal.entry[layer, 1 if kind else 2 if flags & POST else 0]
    last = 2 ** bits - 1
    book = [f32((2 * i - last) / last) for i in range(last + 1)] if flags & UNIFORM else list(posts[bits])
    half = 0 if flags & DENSE else max((cal.width + 100) // 200, 1)
    return bits, flags, channels, book, half, not kind and not flags & POST


def code_of(book, u):
    return sum(u > f32(f32(a + b) * .5) for a, b in zip(book, book[1:]))


def encode(cal, layer, kind, name, dtype, tokens, position, values, digest):
    """The payload, and what a reader must make of it, both from the elements alone."""
    bits, flags, channels, book, half, pre = plan(cal, layer, kind, name)
    codes, scale, middle, extra, out = {}, b"", b"", b"", {}
    for t in range(tokens):
        x = []
        for h in range(cal.heads):
            at = (h * tokens + t) * cal.dim
            row = values[at:at + cal.dim]
            if pre and cal.pairing:
                row = turn(row, cal.pairing, cal.turns, cal.freq, 1.0, position + t, True)
            x += row
        x = [min(max(v, -65504.0), 65504.0) for v in x]
        if kind:
            order = sorted(range(cal.width), key=lambda i: (x[i], i))
            outside = set(order[:half] + order[len(order) - half:])
            rest = [x[i] for i in range(cal.width) if i not in outside]
            r = f16(f32(f32(max(rest) - min(rest)) * .5))
            m = f16(f32(f32(max(rest) + min(rest)) * .5))
            scale += struct.pack("<e", r)
            middle += struct.pack("<e", m)
            measure = [(m, r, f32(1.0 / r) if r > 0 else 0.0)] * cal.width
            u = [f32(f32(v - m) * inv) for v, (m, _, inv) in zip(x, measure)]
        else:
            measure = channels
            u = [f32(f32(v - m) * inv) for v, (m, _, inv) in zip(x, measure)]
            outside = set(sorted(range(cal.width), key=lambda i: (-abs(u[i]), i))[:2 * half])
        c = [code_of(book, v) for v in u]
        y = [f32(m + f32(r * book[k])) for k, (m, r, _) in zip(c, measure)]
        for i in sorted(outside):
            extra += struct.pack("<He", i, x[i])
            y[i] = f16(x[i])
        for h in range(cal.heads):
            codes[h, t] = pack(bits, c[h * cal.dim:(h + 1) * cal.dim])
            row = y[h * cal.dim:(h + 1) * cal.dim]
            if pre and cal.pairing:
                row = turn(row, cal.pairing, cal.turns, cal.freq, 1.0, position + t, False)
            out[h, t] = row
    body = struct.pack("<II", 0 if kind else position, pre)
    order = [(h, t) for h in range(cal.heads) for t in range(tokens)]
    for section in (b"".join(codes[o] for o in order), scale, middle, extra):
        if section:
            body += bytes(-len(body) % 64) + section
    number = FORMAT[dtype][1]
    hdr = struct.pack("<IHHIIHHHBBiIQQ16x", 0x5050564b, 1, 0, 16 << 8 | bits | flags, 64 + len(body), tokens, cal.heads,
                      cal.dim, number, kind, 0, 0, 0, digest)
    return hdr + body, [v for o in order for v in out[o]]


def run(path, layer, kind, name, dtype, tokens, position, raw, isa):
    got = subprocess.run([sys.argv[1], path, *map(str, (layer, kind)), name, dtype, str(tokens), str(position), isa],
                         input=raw, capture_output=True, check=True).stdout
    return got[:len(got) - len(raw)], got[len(got) - len(raw):]


def compare(path, cal, layer, kind, name, dtype, tokens, position, x):
    """The payload, or None if anything is not as it must be."""
    raw, values = x
    first, bad = None, False
    for isa in ("c", "avx2", "vbmi"):
        payload, decoded = run(path, layer, kind, name, dtype, tokens, position, raw, isa)
        # The digest is a hash that this file does not know; test_kvquant holds that it tells entries apart.
        digest, = struct.unpack_from("<Q", payload, 40)
        want, back = encode(cal, layer, kind, name, dtype, tokens, position, values, digest)
        first = want
        if payload != want or decoded != to_bytes(dtype, back):
            at = next((i for i, (a, b) in enumerate(zip(payload, want)) if a != b), None)
            print(f"{name} layer {layer} kind {kind} {dtype} {tokens} tokens from {position}, {isa}: {len(payload)} bytes, "
                  f"not {len(want)}, first at {at}; {'other' if decoded != to_bytes(dtype, back) else 'the same'} elements")
            bad = True
    return None if bad else first


# seed, layers, heads, dim, pairing
FILES = ((1, 1, 2, 16, 1), (2, 2, 3, 72, 2), (3, 1, 1, 8, 0), (4, 1, 5, 128, 1))
CASES = (("kvquant2", "fp32", 3), ("kvquant3", "fp16", 5), ("kvquant4", "bf16", 2), ("kvquant3-uniform", "fp16", 2),
         ("kvquant2-post", "fp32", 4), ("kvquant4-uniform-post-dense", "bf16", 3))


def main():
    rng, bad = random.Random(25), 0
    with tempfile.TemporaryDirectory() as folder:
        for number, make in enumerate(FILES):
            path = os.path.join(folder, str(number))
            with open(path, "wb") as f:
                f.write(subprocess.run([sys.argv[1], *map(str, make)], capture_output=True, check=True).stdout)
            with open(path, "rb") as f:
                cal = Calibration(f.read())
            for name, dtype, tokens in CASES:
                for kind in (0, 1):
                    position = rng.choice((0, 1, 1000, 131066))
                    x = elements(dtype, cal.width * tokens, rng)
                    payload = compare(path, cal, make[1] - 1, kind, name, dtype, tokens, position, x)
                    bad += payload is None
                    if number == 1 and not kind and name in GOLDEN:
                        # Without the digest, which depends on nothing but the calibration.
                        got = fnv(payload[:40] + payload[48:] if payload else b"")
                        if got != GOLDEN[name]:
                            print(f"{name}: digest {got:#x}, once {GOLDEN[name]:#x}")
                            bad += 1
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
