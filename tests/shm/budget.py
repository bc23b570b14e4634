#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instruction budget of the hot path (row E-061): budget.py PROGRAM

Counts instructions with callgrind, which gives the same number whatever else the machine does, and
fails if matching one 64-token block costs more than the budget. Raise a budget only with a reason.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Instructions per block inside kvp_find(): chains in order (no hash), and scattered (hash, index).
BUDGET = {"in order": 430, "scattered": 1230}


def count(program, *args):
    with tempfile.TemporaryDirectory() as folder:
        r = subprocess.run(["valgrind", "--tool=callgrind", "--collect-atstart=no",
                            "--toggle-collect=kvp_find", "--callgrind-out-file=" +
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
    for name, args in (("in order", ()), ("scattered", ("scattered",))):
        per_block = count(sys.argv[1], *args)
        print(f"{name}: {per_block:.0f} instructions per block, budget {BUDGET[name]}")
        bad |= per_block > BUDGET[name]
    sys.exit(bad)


if __name__ == "__main__":
    main()
