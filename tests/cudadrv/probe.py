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
    r"Q9  copies both ways at once: .* each way alone, .* beside another process's kernel .* counts \d\.\d\d",
    r"Q10 a stream writes a registered page, another process sees it: p50 .*has gone on: p50",
    r"Q11 SIGKILL of the last holder of 512 MiB: free again after",
    r"Q11 .*forked child lives on: free again not in 2 s, once the child is killed too after",
    r"Q12 fresh memory of cuMemCreate, bytes that are not 0 of 64 MiB: 67108864 at first, ",
    r"Q13 a context of another process without a module: 128\.0 MiB",
    r"Q14 idle: 1 TiB reserved in .*1, 64, 256 segments of 16 MiB",
    r"Q14 beside a running kernel: .*; the kernel still ran",
    r"Q14 beside a capture .* global mode: cuMemMap CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.* CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    r"Q14 beside a capture .* relaxed mode: cuMemMap works, cuMemSetAccess works, the capture ends well",
    r"Q15 256 MiB to the device.*; 8192 KiB \d",
    r"Q16 pinning memory of 4 KiB pages in pieces of 512 MiB: \d.* worst .* meanwhile",
    r"Q17 .* the same uid: content intact; 1 s after its maker was killed: content intact",
    r"Q17 .* another uid: (content intact;|not answered, needs root)",
]
# What the questions provoke on purpose; anything else is a fault of the probe or of the model.
REPORTS = {"read-only-access", "unregistered-async", "register-read-only", "hazard", "leak", "capture"}


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
