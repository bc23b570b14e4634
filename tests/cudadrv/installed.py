#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing of the simulated driver is installed, and nothing that is needs a CUDA library to start:
installed.py BUILD READELF."""
import json
import os
import subprocess
import sys


def main():
    build, readelf = sys.argv[1:3]
    with open(os.path.join(build, "meson-info", "intro-installed.json"), encoding="utf-8") as f:
        installed = json.load(f)
    bad = []
    programs = 0
    for source, target in installed.items():
        if os.path.relpath(source, build).startswith("tests/") or os.path.basename(target).startswith("libcuda"):
            bad.append(f"{target} would be installed from {source}")
        if not os.path.isfile(source) or open(source, "rb").read(4) != b"\x7fELF":
            continue
        programs += 1
        needs = subprocess.run([readelf, "-d", source], capture_output=True, text=True, check=True).stdout
        bad += [f"{target} needs it: {line.strip()}" for line in needs.splitlines()
                if "NEEDED" in line and any(n in line for n in ("libcuda", "libnvidia", "libcudart"))]
    print(f"{len(installed)} files, {programs} programs and libraries")
    for line in bad:
        print(line)
    return 1 if bad or not programs else 0


if __name__ == "__main__":
    sys.exit(main())
