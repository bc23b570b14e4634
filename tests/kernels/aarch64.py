#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels on 64-bit ARM, by a cross compiler and an emulator: NEON agrees with reference C, which makes the
same payloads and numbers there as here. aarch64.py SOURCE FOLDER CHECK_KERNELS; exit 0, 1, or 77 (skipped)."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PACKAGES = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"


def can_link():
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([COMPILER, "-static", "-x", "c", "-", "-o", os.path.join(folder, "a")], text=True,
                              input="int main(void) { return 0; }", stderr=subprocess.DEVNULL).returncode == 0


def build(source, folder):
    # What is set for this machine's compiler is not for the other.
    env = {k: v for k, v in os.environ.items() if k not in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS")}
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["meson", "setup", "--cross-file", os.path.join(source, "tests/kernels/aarch64.ini"),
                        "-Dkernels_only=true", "-Dwerror=true", folder, source], env=env, check=True)
    subprocess.run(["ninja", "-C", folder, "tests/kernels/check_kernels"], env=env, check=True)
    return os.path.join(folder, "tests/kernels/check_kernels")


def digests(words, seed):
    """By codec; None: something failed, and has been said."""
    run = subprocess.run(words + ["--small", "--digests", "--seed", seed], stdout=subprocess.PIPE, text=True)
    lines = run.stdout.splitlines()
    print(words[-1], *[n for n in lines if not n.startswith("digest ")], sep="\n", flush=True)
    if run.returncode:
        return None
    return {n.split()[1]: n.split()[2] for n in lines if n.startswith("digest ")}


def main():
    source, folder, here = sys.argv[1:]
    for program in (COMPILER, EMULATOR, "meson", "ninja"):
        if not shutil.which(program):
            print(f"skipped: no {program}; Debian packages: {PACKAGES}")
            return 77
    if not can_link():
        print(f"skipped: {COMPILER} links nothing; Debian packages: {PACKAGES}")
        return 77
    there = build(source, folder)
    seed = os.environ.get("KVP_TEST_SEED", str(int(time.time())))
    a, b = digests([here], seed), digests([EMULATOR, there], seed)
    if a is None or b is None:
        return 1
    differ = [name for name in a if a[name] != b.get(name)]
    if differ or len(a) != len(b) or len(a) < 2:
        print("not the same bytes on both machines:", *differ)
        return 1
    print(f"{len(a)} digests are the same on both machines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
