#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoding many planes in one call against one by one (row A-078): budget.py PROGRAM

Counts instructions with callgrind, which gives the same number whatever else the machine does. Short
planes of a rotated codec must take at most the given share of what they take one by one; codecs that
have nothing to share, hardly more.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

SHARE = {"tq4": 0.85, "tq2-nc": 0.85, "int8": 1.2}


def count(function, program, *args):
    with tempfile.TemporaryDirectory() as folder:
        r = subprocess.run(["valgrind", "--tool=callgrind", "--collect-atstart=no",
                            "--toggle-collect=" + function, "--callgrind-out-file=" +
                            os.path.join(folder, "out"), program, *args],
                           capture_output=True, text=True)
    if r.returncode:
        sys.exit(r.stderr)
    return int(re.search(r"Collected : (\d+)", r.stderr).group(1)) / int(r.stdout)


def main():
    if not shutil.which("valgrind"):
        print("skipped: no valgrind")
        sys.exit(77)
    bad = 0
    for codec, most in SHARE.items():
        single = count("kvp_plane_decode", sys.argv[1], codec)
        batch = count("kvp_planes_decode", sys.argv[1], codec, "batch")
        print(f"{codec}: {batch:.0f} instructions a plane in one call, {single:.0f} one by one: "
              f"{batch / single:.3f}, {most} at most")
        bad |= batch > most * single
    sys.exit(bad)


if __name__ == "__main__":
    main()
