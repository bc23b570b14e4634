#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""exports.py ROOT LIBRARY: libkvpool.so exports what its headers declare, under the version that its
map gives, and nothing else."""
import os
import re
import subprocess
import sys


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def main():
    root, library = sys.argv[1:3]
    declared = set()
    for header in ("kvpool.h", "kvpool_admin.h", "kvpool_cuda.h"):
        text = re.sub(r"/\*.*?\*/", "", read(root, "libclient", header), flags=re.S)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
        declared |= set(re.findall(r"KVP_EXPORT[^;(]*?(\w+)\s*\(", text))
    version_map = read(root, "libclient", "libkvpool.map")
    node = re.match(r"(\w+\.\d+)", version_map).group(1)
    mapped = set(re.findall(r"^\s+(kvp_\w+);$", version_map, flags=re.M))
    out = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True,
                         text=True).stdout
    exported = {}
    for line in out.splitlines():
        name, _, version = line.split()[-1].partition("@@")
        if name != node:
            exported[name] = version
    bad = ["declared, not in the map: " + n for n in sorted(declared - mapped)]
    bad += ["in the map, not declared: " + n for n in sorted(mapped - declared)]
    bad += ["not exported: " + n for n in sorted(mapped - set(exported))]
    bad += ["exported, not declared: " + n for n in sorted(set(exported) - declared)]
    # Sanitizers instrument with symbols of their own.
    bad = [b for b in bad if not re.search(r": _*(asan|ubsan|tsan|sanitizer)", b)]
    bad += ["%s has version '%s'" % i for i in sorted(exported.items())
            if i[0] in declared and i[1] != node]
    print("\n".join(bad) or "%d names, all of %s" % (len(exported), node))
    return 1 if bad or not exported else 0


sys.exit(main())
