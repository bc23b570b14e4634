#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What share of a GPU's memory bandwidth the kernels can reach, estimated from their machine code.

    instructions.py --nvdisasm NVDISASM [--markdown] CUBIN...

Cubins for sm_90 come out of what was built: `cuobjdump -xelf sm_90 build/kernels/cuda/attend.fatbin`, and codec.fatbin.
Both programs come with CUDA's toolkit, and by themselves (PyPI: nvidia-cuda-nvdisasm, nvidia-cuda-cuobjdump).

Of attention it follows the step of a warp (16 or 32 tokens of one KV head) through the machine code: among all ways round the
loop that have all its tensor products and all its copies to shared memory, the shortest. That is what runs unless a
maximum moves, a mask is there, or the sequence ends. Of codecs it follows one row (a token of a head, 128 channels,
fp16) from the kernel's beginning to its end, the shortest way with all its stores; loops count as often as TRIPS says.

A multiprocessor issues four instructions a clock at best, one each of its four parts. Shared memory moves 128 bytes a
clock, MUFU does 4 lanes a clock and part, a product m16n8k16 takes 8 clocks of a part. Whatever takes longest bounds the
kernel, or memory does. Latency, caches and the clock's throttling are left out: measured figures are lower.
"""
import argparse
import re
import subprocess
import sys

SMS, PARTS = 132, 4  # H100 SXM and H200
HBM = {"H100": 3.35e12, "H200": 4.8e12}
CLOCK = 1.98e9  # of both, at most
DIM = 128
# Bytes of a token and head: codes, and scalars in fp16, of K and of V.
SIDE = {"f16": 256, "bf16": 256, "e4m3": 130, "e5m2": 130, "i8": 130, "tq4": 66, "tq3": 50, "tq2": 34,
        "aff4": 64 + 16, "aff2": 32 + 16, "aff3": 48 + 16}
NAMES = {"f16": "native fp16", "bf16": "native bf16", "e4m3": "fp8-e4m3", "e5m2": "fp8-e5m2", "i8": "int8",
         "aff4": "kivi4-g32", "aff2": "kivi2-g32", "aff3": "kivi3-g32"}
# Of loops in a codec's kernel, in the order of their beginnings: how often each runs for a row of 128 channels.
TRIPS = {"native_encode": [4], "native_decode": [4], "byte_encode": [4, 4], "byte_decode": [4], "tq_decode_128": [1],
         "tq_encode_128": [1, 4, 4, 4, 4]}  # one round of rotation; 15 bounds, four at a time
BYTES = {"native": 2 * DIM, "byte": DIM + 2, "tq": DIM // 2 + 2}


def functions(path, nvdisasm):
    """{name: ([instruction], {label: index})}"""
    try:
        out = subprocess.run([nvdisasm, "-c", path], check=True, stdout=subprocess.PIPE, text=True).stdout
    except FileNotFoundError:
        sys.exit("instructions.py: there is no %s: name CUDA's with --nvdisasm" % nvdisasm)
    except (OSError, subprocess.CalledProcessError) as e:
        sys.exit("instructions.py: %s cannot read %s: %s" % (nvdisasm, path, e))
    seen, code = {}, None
    for line in out.splitlines():
        if m := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            code, labels = [], {}
            seen[m[1]] = code, labels
        elif code is None:
            continue
        elif m := re.match(r"\s*(\.L_x_\d+):", line):
            labels[m[1]] = len(code)
        elif m := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            code.append(m[1])
    return seen


def target(instruction, labels):
    m = re.search(r"\bBRA\b.*?(\.L_x_\d+)", instruction)
    return labels.get(m[1]) if m else None


def successors(code, labels, i):
    """What may come after instruction i; len(code): the end."""
    text, to = code[i], target(code[i], labels)
    free = not text.startswith("@") and not re.search(r"\bBRA\s+!?U?P\d", text)
    if re.search(r"\b(EXIT|RET)\b", text):
        return [len(code)] if free else [i + 1, len(code)]
    if to is not None:
        return [to] if free else [i + 1, to]
    return [i + 1]


def loops(code, labels):
    """(first, last) of each, by beginning; several ways back to one beginning are one loop."""
    ends = {}
    for i in range(len(code)):
        to = target(code[i], labels)
        if to is not None and to < i:
            ends[to] = max(i, ends.get(to, 0))
    return sorted(ends.items())


def has(text, what):
    return bool(re.search(r"\b(?:%s)\b" % what, text))


def forwards(code, labels, first, last):
    """{instruction: those after it}, and an order of them, without the ways back to where one has been."""
    after, order, state = {}, [], {}
    stack = [(first, None)]
    while stack:
        i, todo = stack.pop()
        if todo is None:
            if state.get(i):
                continue
            state[i] = "open"
            after[i] = []
            todo = [] if i == last or i >= len(code) else successors(code, labels, i)
        if todo:
            to, rest = todo[0], todo[1:]
            stack.append((i, rest))
            if state.get(to) != "open":
                after[i].append(to)
                stack.append((to, None))
        else:
            state[i] = "done"
            order.append(i)
    return after, order[::-1]


def shortest(code, labels, first, last, must, through=()):
    """
    The shortest way from first to last by as many of `through` as can be, with as much as there is of each of `must`;
    no loop twice.
    """
    after, order = forwards(code, labels, first, last)
    best = {first: {(0,) * (1 + len(must)): (1, None)}}
    for i in order:
        if i >= len(code):
            continue
        for marks, (length, _) in best.get(i, {}).items():
            now = marks[0] + (i in through), *(m + has(code[i], w) for m, w in zip(marks[1:], must))
            for to in after[i]:
                old = best.setdefault(to, {}).get(now)
                if not old or length + 1 < old[0]:
                    best[to][now] = length + 1, (i, marks)
    way, at = [last] if last < len(code) else [], (last, max(best[last]))
    while at[0] != first:
        at = best[at[0]][at[1]][1]
        way.append(at[0])
    return way[::-1]


def wavefronts(text):
    """Of a warp's access of shared memory: 128 bytes each."""
    width = re.search(r"\.(128|64)\b", text)
    if has(text, "LDSM"):
        return 4 if ".M88.4" in text or ".x4" in text or ".4" in text else 1
    if has(text, "LDS|STS|LDGSTS"):
        return {"128": 4, "64": 2}[width[1]] if width else 1
    return 0


def clocks(code):
    """Of a part of a multiprocessor, by what is busy."""
    return {
        "issue": len(code),
        "shared": PARTS * sum(wavefronts(t) for t in code),
        "MUFU": 8 * sum(has(t, r"MUFU(\.\w+)*") for t in code),
        "tensor": 8 * sum(has(t, r"HMMA(\.\w+)*") for t in code),
    }


def attention(name, code, labels):
    """(tokens of a step, its instructions)"""
    k, v = name.split("_")[3:5]
    inside = [(a, b) for a, b in loops(code, labels) if sum("HMMA" in t for t in code[a:b + 1])]
    first, last = max(inside, key=lambda ab: sum("LDGSTS" in t for t in code[ab[0]:ab[1] + 1]))
    way = [code[i] for i in shortest(code, labels, first, last, (r"HMMA(?:\.\w+)*", r"LDGSTS(?:\.\w+)*"))]
    products = sum("HMMA" in t for t in way)
    tile = DIM // 16 * (2 if k == "bf16" else 1) + DIM // 16 * (2 if v == "bf16" else 1)
    return 16 * products // tile, way


def codec(name, code, labels):
    """Instructions of a row."""
    inner = loops(code, labels)
    way = shortest(code, labels, 0, len(code), (r"STG?\.[\w.]+",), {first for first, _ in inner})
    row = [code[i] for i in way]
    for (first, last), trips in zip(inner, TRIPS[name]):
        row += [code[i] for i in way if first <= i <= last] * (trips - 1)
    return row


def bound(code, size):
    """(what bounds it, bytes a second)"""
    what, busy = max(clocks(code).items(), key=lambda kv: kv[1])
    return what, SMS * PARTS * CLOCK / busy * size


def show(title, rows, markdown):
    head = (title, "instructions", "bound by", "GB/s") + tuple("of %s's memory" % g for g in HBM)
    print(("| " + " | ".join(head) + " |\n|" + " --- |" * len(head)) if markdown else "\n" + "  ".join(head))
    for name, n, what, rate in rows:
        cells = [name, "%.0f" % n, what, "%.0f" % (rate / 1e9)]
        cells += ["%d %%" % min(100, round(100 * rate / hbm)) for hbm in HBM.values()]
        print("| " + " | ".join(cells) + " |" if markdown else "%-24s %12s  %-8s %6s %8s %8s" % tuple(cells))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nvdisasm", default="nvdisasm")
    p.add_argument("--markdown", action="store_true")
    p.add_argument("cubin", nargs="+")
    a = p.parse_args()
    steps, rows = [], []
    for path in a.cubin:
        for name, (code, labels) in sorted(functions(path, a.nvdisasm).items()):
            short = name.removeprefix("kvp_cu_")
            if re.fullmatch(r"attend_\w+_\w+_%d" % DIM, short):
                k, v = short.split("_")[1:3]
                tokens, way = attention(name, code, labels)
                what, rate = bound(way, tokens * (SIDE[k] + SIDE[v]))
                label = NAMES.get(k, k) if k == v else "%s, %s" % (NAMES.get(k, k), NAMES.get(v, v))
                steps.append((label, 16 * len(way) / tokens, what, rate))
            elif short in TRIPS:
                row = codec(short, code, labels)
                what, rate = bound(row, 2 * DIM + BYTES[short.split("_")[0]])
                rows.append((short, len(row), what, rate))
    if steps:
        show("attention, per 16 tokens", steps, a.markdown)
    if rows:
        show("codec, per row of 128", rows, a.markdown)
    if not steps and not rows:
        sys.exit("instructions.py: none of the kernels that are estimated is in %s" % ", ".join(a.cubin))
    return 0


sys.exit(main())
