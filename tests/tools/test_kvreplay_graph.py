# SPDX-License-Identifier: Apache-2.0
"""
kvreplay graph on a generated trace: what LRU and the default policy reach is what simulate says,
advice that leaves no choice changes nothing, the rest is sane.
"""
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
        graph, bound, spared = (
            json.loads(
                run("graph", "--trace", trace, "--capacity", "50,200", "--period", "2000",
                    *how, "--json")
            )["results"]
            for how in (["--among", "4"], ["--among", "1"], ["--spare", ".3"])
        )
        simulated = json.loads(
            run("simulate", "--trace", trace, "--format", "mooncake", "--policy", "lru,hazard",
                "--order", "leaf", "--capacity", "50,200", "--json")
        )["results"]
    expected = {(row["policy"], row["capacity"]): row["hit_ratio"] for row in simulated}
    assert [row["capacity"] for row in graph] == [50, 200]
    for row in graph + bound + spared:
        for column, policy in (("lru", "lru"), ("default", "hazard")):
            is_, should = row[column], expected[policy, row["capacity"]]
            assert abs(is_ - should) < 1e-3, (row, expected)
        for name in ("graph", "advised", "prefetch", "useful", "inside_covered", "inside_right"):
            assert 0 <= row[name] <= 1, row
        assert row["graph"] > 0 and row["advised"] > 0, row
    assert all(row["advised"] == row["default"] for row in bound), bound
    for rows in graph, spared:
        assert any(row["advised"] != row["default"] for row in rows), rows
    for bad in (["--capacity", "0"], ["--half-life", "x"], ["--ahead", "257"], ["--among", "0"],
                ["--spare", "3"],                 ["--format", "oracle"], []):
        args = [KVREPLAY, "graph", *(["--trace", "/dev/null"] if bad else []), *bad]
        done = subprocess.run(args, stderr=subprocess.PIPE)
        assert done.returncode == 2 and b"usage" in done.stderr, args
    done = subprocess.run([KVREPLAY, "graph", "--trace", "/nonexistent"], stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"/nonexistent" in done.stderr


sys.exit(main())
