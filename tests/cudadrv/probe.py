#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/probe over the simulated driver: probe.py CUDADRV PROBE. Every question has the answer
that the model gives; on a device the answers are the device's."""
import re
import subprocess
import sys

# A line for each question that was put, and what it must say.
ANSWERS = [
    r"Q1  VRAM by an fd alone, exporter killed .*: content intact",
    r"Q1  VRAM by an importer's mapping, exporter killed, fd closed: content intact",
    r"Q2  mapped PROT_READ, a kernel stores: .*CUDA_ERROR_ILLEGAL_ADDRESS; afterwards content intact",
    r"Q2  mapped PROT_READ, cuMemcpyDtoD .*CUDA_ERROR_ILLEGAL_ADDRESS; afterwards content intact",
    r"Q2  importer maps READWRITE by itself and stores: no error; afterwards content CHANGED",
    r"Q3  [1-9]\d* segments of 1 GiB",
    r"Q4  import by another uid: (content intact|not answered, needs root)",
    r"Q4  import by another PID namespace: (content intact|not answered, needs root|.*process died)",
    r"Q5  SIGKILL under a running kernel: .*had stopped before",
    r"Q6  read-only memfd, 4 KiB pages, not registered: .*to the GPU$",
    r"Q6  .*4 KiB pages, registered with flags 0: .*CUDA_ERROR_INVALID_VALUE",
    r"Q6  .*4 KiB pages, registered READ_ONLY: .*to the GPU$",
    r"Q7  HOST_NUMA on node 0: .*CPU read right",
    r"Q8  WaitValue64 on a slot whose signaller was killed: still waits after 3 s, no error",
    r"Q8  a third process stores the value for the dead: stored; the waiter woke",
]
# What the questions provoke on purpose; anything else is a fault of the probe or of the model.
REPORTS = {"read-only-access", "unregistered-async", "register-read-only", "hazard", "leak"}


def main():
    cudadrv, probe = sys.argv[1:3]
    r = subprocess.run([cudadrv, "run", "vram_bytes=0x400000000", "--", probe],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=280)
    print(r.stdout)
    bad = [f"exit status {r.returncode}"] if r.returncode else []
    bad += [f"no answer like: {a}" for a in ANSWERS if not re.search(a, r.stdout, re.M)]
    seen = set(re.findall(r"^([a-z-]+) \d+$", r.stderr, re.M))
    bad += [f"reported: {name}" for name in seen - REPORTS]
    bad += [f"not reported: {name}" for name in REPORTS - seen - {"leak"}]
    for line in bad:
        print(line)
    if bad:
        print(r.stderr[-4000:])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
