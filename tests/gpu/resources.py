#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the machine code of the CUDA kernels needs, as ptxas said it, against what devices grant.

resources.py GPU_CHECK USAGE...

A kernel that spills is slow, and one that wants more registers, shared memory or parameters than
there are is refused at launch: neither needs a GPU to be seen.
"""
import re
import subprocess
import sys

ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")
REGISTERS = 65536  # of a block, on all of them
SHARED = 99 << 10  # sm_120 grants the least: 99 KiB, where sm_80 has 163 and sm_90, sm_100 227
PARAMETERS = 4096

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
STATIC = re.compile(r"(\d+) bytes smem")


def usage(paths):
    """{(kernel, arch): {"stack": (frame, stores, loads), "registers": n, "static": bytes}}"""
    seen, entry = {}, None
    for path in paths:
        for line in open(path, encoding="utf-8"):
            if m := ENTRY.search(line):
                entry = seen.setdefault((m[1], m[2]), {"static": 0})
            elif entry is None:
                continue
            if m := STACK.search(line):
                entry["stack"] = tuple(map(int, m.groups()))
            if m := USED.search(line):
                entry["registers"] = int(m[1])
            if m := STATIC.search(line):
                entry["static"] = int(m[1])
    return seen


def complaints(kernel, threads, shared, params, found):
    if found is None or "stack" not in found or "registers" not in found:
        yield "ptxas did not compile it"
        return
    if any(found["stack"]):
        yield "stack, spill stores and loads of %d, %d, %d bytes" % found["stack"]
    # registers are dealt out to warps in units of 256
    if (found["registers"] + 7) // 8 * 8 * threads > REGISTERS:
        yield "%d registers in %d threads" % (found["registers"], threads)
    if found["static"] + shared > SHARED:
        yield "%d bytes of shared memory" % (found["static"] + shared)
    if params > PARAMETERS:
        yield "%d bytes of parameters" % params


def main():
    seen, bad = usage(sys.argv[2:]), 0
    table = subprocess.run([sys.argv[1], "--list"], check=True, stdout=subprocess.PIPE, text=True)
    rows = [line.split() for line in table.stdout.splitlines()]
    for name, threads, shared, params in rows:
        for arch in ARCHS:
            found = seen.pop((name, arch), None)
            for what in complaints(name, int(threads), int(shared), int(params), found):
                print("%s, %s: %s" % (name, arch, what))
                bad += 1
    for name, arch in seen:
        print("%s, %s: not in the table" % (name, arch))
        bad += 1
    if not rows:
        print("the table is empty")
        bad += 1
    print("%d kernels, %d architectures, %d complaints" % (len(rows), len(ARCHS), bad))
    return 1 if bad else 0


sys.exit(main())
