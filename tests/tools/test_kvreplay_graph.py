# SPDX-License-Identifier: Apache-2.0
"""kvreplay graph on a generated trace: its LRU column is what simulate says, the rest is sane."""
import json
import os
import subprocess
import sys
import tempfile

KVREPLAY = os.environ["KVREPLAY"]


def run(*args):
    done = subprocess.run([KVREPLAY, *args], stdout=subprocess.PIPE, check=True)
    return done.stdout


def main():
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "chat.jsonl")
        run("generate", "--kind", "chat", "--requests", "400", "--out", trace)
        graph = json.loads(
            run("graph", "--trace", trace, "--capacity", "50,200", "--period", "2000", "--json")
        )["results"]
        lru = json.loads(
            run("simulate", "--trace", trace, "--format", "mooncake", "--policy", "lru",
                "--order", "leaf", "--capacity", "50,200", "--json")
        )["results"]
    expected = {row["capacity"]: row["hit_ratio"] for row in lru}
    assert [row["capacity"] for row in graph] == [50, 200]
    for row in graph:
        assert abs(row["lru"] - expected[row["capacity"]]) < 1e-3, (row, expected)
        for name in ("graph", "prefetch", "useful", "inside_covered", "inside_right"):
            assert 0 <= row[name] <= 1, row
        assert row["graph"] > 0, row
    for bad in (["--capacity", "0"], ["--half-life", "x"], ["--ahead", "257"], ["--format", "oracle"],
                []):
        args = [KVREPLAY, "graph", *(["--trace", "/dev/null"] if bad else []), *bad]
        done = subprocess.run(args, stderr=subprocess.PIPE)
        assert done.returncode == 2 and b"usage" in done.stderr, args
    done = subprocess.run([KVREPLAY, "graph", "--trace", "/nonexistent"], stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"/nonexistent" in done.stderr


sys.exit(main())
