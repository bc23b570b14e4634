#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvbench device: what it prints is whole, and what makes no sense is refused."""
import json
import os
import subprocess

KVBENCH = os.environ["KVBENCH"]


def run(*args):
    return subprocess.run([KVBENCH, "device", *args], capture_output=True, text=True, timeout=100)


def main():
    r = run("copy", "--driver", "host", "--block", "2M,256K,65536", "--mib", "8", "--threads", "2", "--json")
    assert r.returncode == 0, r.stderr
    rows = json.loads(r.stdout)
    assert [row["block_bytes"] for row in rows] == [2 << 20, 256 << 10, 64 << 10], rows
    for row in rows:
        for name in ("warm_ratio", "spill_ratio", "both_ratio"):
            assert 0 < row[name + "_min"] <= row[name] <= row[name + "_max"], row
    r = run("demand", "--driver", "host", "--block", "1M,256K", "--mib", "16", "--json")
    assert r.returncode == 0, r.stderr
    rows = json.loads(r.stdout)
    assert [row["block_bytes"] for row in rows] == [1 << 20, 256 << 10], rows
    for row in rows:
        assert 0 < row["idle_p50_ms"] <= row["idle_p99_ms"] and 0 < row["busy_p50_ms"] <= row["busy_p99_ms"], row
    r = run("load", "--driver", "host", "--mib", "16", "--seconds", "1", "--json")
    assert r.returncode == 0, r.stderr
    assert all(json.loads(r.stdout)[way] > 0 for way in ("warm_gbps", "spill_gbps")), r.stdout
    for bad in (["load", "--seconds", "0"], ["copy", "--block", "16M", "--mib", "8"], ["copy", "--block", "-1"], ["copy", "--block", "100"],
                ["copy", "--block", "64K;"], ["copy", "--block", ""], ["move"]):
        r = run(*bad)
        assert r.returncode == 2 and r.stderr, (bad, r)
    r = run("copy", "--driver", "none")
    assert r.returncode == 2 and r.stderr == "kvbench device: --driver: 'none' is not one of cuda, host, fault\n", r


main()
