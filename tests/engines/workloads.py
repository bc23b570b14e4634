#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What sharing brings an engine: time to the first token and sequences in the same memory.

    tests/engines/workloads.py BUILD [--quick] [--json]

Three kinds of requests, each computed by kvrun with kvpool and without, alternating, in processes of their own:
documents that several questions are asked of, a batch with one beginning, and one of which every fifth request
shares nothing. Times are medians and sums of one run of `ttft_ms`; tokens and logits have to be the same. Then how
many sequences a cache of one size holds until the first block is evicted, if they share their beginning and if not.

--quick: few requests, and no more than five times as many sequences. Exit status 1 if something was not identical.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from harness import Daemon  # noqa: E402

MIB = 1 << 20
BLOCK = 64


def text():
    with open(os.path.join(ROOT, "share", "demo", "handbook.txt"), encoding="utf-8") as f:
        return " ".join(f.read().split())


def own(i, n):
    """n characters that no other number has from the first on."""
    return ("%d: what does rule %d say of it, and whom does it bind? " % (i, i * 7 + 3) * n)[:n]


def documents(n):
    """Three documents, and questions of each in turn: what a retriever puts before a question."""
    whole = text()
    return [("%d. " % (i % 3) + whole[i % 3 * 300:] + whole)[:1500] + own(i, 100) for i in range(n)]


def batch(n):
    return [text()[:1500] + own(i, 100) for i in range(n)]


def mixed(n):
    return [(own(i, 1500) if i % 5 == 4 else text()[:1500]) + own(i, 100) for i in range(n)]


class Engine:
    def __init__(self, build):
        self.kvrun = os.path.join(build, "tools", "kvrun", "kvrun")
        self.kvctl = os.path.join(build, "tools", "kvctl", "kvctl")

    def run(self, prompts, socket):
        done = subprocess.run(
            [self.kvrun, "--model", os.path.join(ROOT, "share", "models", "bytes-4m"), "--lines", "--steps", "1",
             "--kvpool", socket, "--json"], input="\n".join(prompts) + "\n", capture_output=True, text=True,
            check=False)
        if done.returncode:
            raise SystemExit("workloads: kvrun: " + done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def tenant(self, socket):
        done = subprocess.run([self.kvctl, "--socket", socket, "--json", "tenants"], capture_output=True, text=True,
                              check=True)
        return json.loads(done.stdout)["tenants"][0]


def memory(mib):
    return {"memory": "%dMiB" % (2 * mib), "extent": "1MiB",
            "defaults": {"share": "%dMiB" % mib, "max_blocks": 8192}}


def compare(engine, name, prompts):
    with Daemon(memory(384)) as d:
        plain = engine.run(prompts, "off")
        pooled = engine.run(prompts, d.socket)
    same = all(a["tokens"] == b["tokens"] and a["logits_xxh3"] == b["logits_xxh3"] for a, b in zip(plain, pooled))
    off, on = ([r["ttft_ms"] for r in rows] for rows in (plain, pooled))
    return {
        "workload": name, "requests": len(prompts), "prompt_tokens": sum(r["prompt_tokens"] for r in pooled),
        "reused_tokens": sum(r["reused_tokens"] for r in pooled), "identical": same,
        "off_median_ms": statistics.median(off), "median_ms": statistics.median(on),
        "median_times": statistics.median(off) / statistics.median(on),
        "off_sum_ms": sum(off), "sum_ms": sum(on), "sum_times": sum(off) / sum(on),
    }


def sequences(engine, prompts, mib):
    """How many of these are stored until the first block is evicted, each by a process that ends."""
    with Daemon(memory(mib)) as d:
        for n, prompt in enumerate(prompts):
            engine.run([prompt], d.socket)
            t = engine.tenant(d.socket)
            if t["evictions_total"]:
                return n
    return len(prompts)


def concurrent(engine, mib, quick):
    apart = sequences(engine, [own(i, 1800) for i in range(200)], mib)
    shared = sequences(engine, [text()[:1664] + own(i, 136) for i in range(5 * apart if quick else 400)], mib)
    return {"share_bytes": mib * MIB, "tokens": 1800, "shared_tokens": 1664, "apart": apart, "shared": shared,
            "times": shared / apart}


def report(out):
    print("%-10s %8s %8s %8s  %-21s %-23s %s" % ("requests", "", "tokens", "reused", "median ms off, on",
                                               "sum ms off, on", "identical"))
    for r in out["rows"]:
        print("%-10s %8d %8d %8d  %7.1f %6.1f %5.1fx  %8.0f %7.0f %5.1fx  %s" % (
            r["workload"], r["requests"], r["prompt_tokens"], r["reused_tokens"], r["off_median_ms"], r["median_ms"],
            r["median_times"], r["off_sum_ms"], r["sum_ms"], r["sum_times"], "yes" if r["identical"] else "NO"))
    c = out["concurrent"]
    print("%d MiB hold %d sequences of %d tokens that share nothing, %d that share %d: %.1f times" % (
        c["share_bytes"] // MIB, c["apart"], c["tokens"], c["shared"], c["shared_tokens"], c["times"]))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build", metavar="BUILD", help="a build folder of this tree")
    p.add_argument("--quick", action="store_true", help="few requests")
    p.add_argument("--json", action="store_true", help="one JSON object")
    a = p.parse_args()
    if not os.path.exists(os.path.join(a.build, "daemon", "kvpoold")):
        p.error("%s has no daemon/kvpoold: it is no build folder of this tree" % a.build)
    os.environ.setdefault("KVPOOLD", os.path.abspath(os.path.join(a.build, "daemon", "kvpoold")))
    engine = Engine(a.build)
    n = 6 if a.quick else 100
    out = {"rows": [compare(engine, name, make(n))
                    for name, make in (("documents", documents), ("batch", batch), ("mixed", mixed))],
           "concurrent": concurrent(engine, 32, a.quick)}
    if a.json:
        print(json.dumps(out))
    else:
        report(out)
    return 0 if all(r["identical"] for r in out["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
