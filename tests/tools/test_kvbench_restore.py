#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvbench restore: a prefix comes back in each way, byte for byte, and what makes no sense is refused."""
import json
import os
import subprocess

KVBENCH, MODEL = os.environ["KVBENCH"], os.environ["MODEL"]


def run(*args):
    return subprocess.run([KVBENCH, "restore", *args], capture_output=True, text=True, timeout=250)


def main():
    r = run("--model", MODEL, "--tokens", "192", "--json")
    assert r.returncode == 0, r.stderr
    (row,) = json.loads(r.stdout)
    assert list(row) == ["tokens", "load_ms", "decode_ms", "recompute_ms", "chosen", "chosen_ms"], row
    assert row["tokens"] == 192 and row["chosen"] in ("load", "recompute", "both"), row
    assert all(row[k] > 0 for k in row if k.endswith("_ms")), row
    for bad in ([], ["--model", MODEL, "--tokens", "100"], ["--model", MODEL, "--tokens", "16384"],
                ["--model", MODEL, "--copy-mib", "0"]):
        r = run(*bad)
        assert r.returncode == 2 and r.stderr, (bad, r)
    r = run("--model", "/nowhere")
    assert r.returncode == 1 and "/nowhere" in r.stderr, r


main()
