#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lossless.py PROGRAM: payloads of `lossless` against a second implementation, which knows docs/formats.md only.

PROGRAM is plane_encode. Payloads must be equal byte for byte with every instruction set, the reader here must
give the elements back, and the digests of two of them are those that were once written down.
"""
import random
import struct
import subprocess
import sys

LANES, TOTAL, LOW = 32, 4096, 1 << 16
GOLDEN = {("bf16", 64, 2, 64): 0x48bcd8a8c39eddd1, ("fp16", 5, 3, 72): 0xd795f5d91caec8cd}


def normalise(count):
    total = sum(count)
    freq = [max(1, (2 * TOTAL * c + total) // (2 * total)) if c else 0 for c in count]
    while sum(freq) != TOTAL:
        freq[freq.index(max(freq))] += 1 if sum(freq) < TOTAL else -1
    return freq


def starts(freq):
    return [sum(freq[:s]) for s in range(256)]


def code(symbols, freq):
    """One stream: 32 states, then words in the order in which a decoder takes them."""
    start, x, words = starts(freq), [LOW] * LANES, []
    for i in reversed(range(len(symbols))):
        s, lane = symbols[i], i % LANES
        if x[lane] >= freq[s] << 20:
            words.append(x[lane] & 0xffff)
            x[lane] >>= 16
        x[lane] = x[lane] // freq[s] * TOTAL + x[lane] % freq[s] + start[s]
    return struct.pack(f"<{LANES}I{len(words)}H", *x, *reversed(words))


def uncode(stream, freq, n):
    start, symbol = starts(freq), [s for s in range(256) for _ in range(freq[s])]
    x = list(struct.unpack_from(f"<{LANES}I", stream))
    words = list(struct.unpack(f"<{len(stream) // 2 - 2 * LANES}H", stream[4 * LANES:]))[::-1]
    out = []
    for i in range(n):
        slot = x[i % LANES] % TOTAL
        s = symbol[slot]
        out.append(s)
        x[i % LANES] = freq[s] * (x[i % LANES] // TOTAL) + slot - start[s]
        if x[i % LANES] < LOW:
            x[i % LANES] = x[i % LANES] << 16 | words.pop()
    assert not words and x == [LOW] * LANES
    return out


def header(dtype, tokens, heads, dim, size):
    return struct.pack("<IHHIIHHHBBiIQQ16x", 0x5050564b, 1, 0, 14 << 8, size, tokens, heads, dim,
                       2 if dtype == "fp16" else 3, 0, 0, 0, 0, 0)


def split(dtype, words):
    if dtype == "bf16":
        words = [(w << 1 | w >> 15) & 0xffff for w in words]
    return [w >> 8 for w in words], bytes(w & 0xff for w in words)


def encode(dtype, tokens, heads, dim, words):
    high, low = split(dtype, words)
    stored = header(dtype, tokens, heads, dim, 64 + 2 * len(words)) + struct.pack(f"<{len(words)}H", *words)
    if len(words) < 4 * heads + 544:
        return stored
    freq = normalise([high.count(s) for s in range(256)])
    per = tokens * dim
    streams = [code(high[h * per:(h + 1) * per], freq) for h in range(heads)]
    bitmap = bytearray(32)
    for s in range(256):
        bitmap[s // 8] |= (freq[s] > 0) << s % 8
    body = low + struct.pack(f"<{heads}I", *map(len, streams)) + bytes(bitmap)
    body += b"".join(struct.pack("<H", f) for f in freq if f) + b"".join(streams)
    if 64 + len(body) >= len(stored):
        return stored
    return header(dtype, tokens, heads, dim, 64 + len(body)) + body


def decode(payload):
    tokens, heads, dim, dtype = struct.unpack_from("<HHHB", payload, 16)
    n, per = tokens * heads * dim, tokens * dim
    if len(payload) == 64 + 2 * n:
        return list(struct.unpack_from(f"<{n}H", payload, 64))
    low, at = payload[64:64 + n], 64 + n
    sizes = struct.unpack_from(f"<{heads}I", payload, at)
    at += 4 * heads
    used = [s for s in range(256) if payload[at + s // 8] >> s % 8 & 1]
    at += 32
    freq = [0] * 256
    for s in used:
        freq[s], = struct.unpack_from("<H", payload, at)
        at += 2
    high = []
    for size in sizes:
        high += uncode(payload[at:at + size], freq, per)
        at += size
    assert at == len(payload)
    words = [h << 8 | b for h, b in zip(high, low)]
    return [(w >> 1 | w << 15) & 0xffff for w in words] if dtype == 3 else words


def fnv(data):
    digest = 0xcbf29ce484222325
    for b in data:
        digest = (digest ^ b) * 0x100000001b3 % (1 << 64)
    return digest


def elements(dtype, n, kind, rng):
    """Without floating point that another Python might round otherwise."""
    if kind == "bits":
        return [rng.getrandbits(16) for _ in range(n)]
    if kind == "constant":
        return [0x3c00] * n
    out = []
    for _ in range(n):
        exponent = 0
        while exponent < 12 and rng.getrandbits(1):
            exponent += 1
        sign = rng.getrandbits(1) << 15
        if dtype == "fp16":
            out.append(sign | (16 - exponent) << 10 | rng.getrandbits(10))
        else:
            out.append(sign | (128 - exponent) << 7 | rng.getrandbits(7))
    return out


def main():
    rng, bad = random.Random(14), 0
    for dtype in ("bf16", "fp16"):
        for tokens, heads, dim in ((64, 2, 64), (1, 1, 8), (5, 3, 72), (33, 2, 128), (2, 1, 1024), (17, 4, 40)):
            for kind in ("normal", "bits", "constant"):
                words = elements(dtype, tokens * heads * dim, kind, rng)
                want = encode(dtype, tokens, heads, dim, words)
                assert decode(want) == words
                for isa in ("c", "avx2", "vbmi"):
                    got = subprocess.run([sys.argv[1], "lossless", dtype, str(tokens), str(heads), str(dim), isa],
                                         input=struct.pack(f"<{len(words)}H", *words), capture_output=True,
                                         check=True).stdout
                    if got != want:
                        print(f"{dtype} {tokens} {heads} {dim} {kind} {isa}: {len(got)} bytes, not {len(want)}")
                        bad = 1
                golden = GOLDEN.get((dtype, tokens, heads, dim))
                if kind == "normal" and golden is not None and fnv(want) != golden:
                    print(f"{dtype} {tokens} {heads} {dim}: digest {fnv(want):#x}, once {golden:#x}")
                    bad = 1
    sys.exit(bad)


if __name__ == "__main__":
    main()
