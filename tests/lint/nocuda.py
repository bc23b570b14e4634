#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nocuda.py BINARY...: nothing that is installed is linked with CUDA: no library of it is needed, by
whatever way, and no name of it is asked for."""
import re
import subprocess
import sys

LIBRARY = re.compile(r"libcuda|libcudart|libnvidia|libnvrtc|libcublas", re.I)
NAME = re.compile(r"^(cu[A-Z]|cuda[A-Z]|nvml[A-Z]|nvrtc[A-Z])")


def out(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    bad = []
    for binary in sys.argv[1:]:
        needed = out("ldd", binary)
        bad += ["%s needs %s" % (binary, line.strip()) for line in needed.splitlines() if LIBRARY.search(line)]
        names = [line.split()[-1].split("@")[0] for line in out("nm", "-D", binary).splitlines()]
        bad += ["%s names %s" % (binary, n) for n in names if NAME.match(n)]
        if not needed or not names:
            bad.append("%s: nothing to look at" % binary)
    print("\n".join(bad) or "%d binaries" % len(sys.argv[1:]))
    return 1 if bad or len(sys.argv) < 2 else 0


sys.exit(main())
