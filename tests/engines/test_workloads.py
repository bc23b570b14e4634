# SPDX-License-Identifier: Apache-2.0
"""workloads.py, a few requests: the same tokens with kvpool as without, what is shared is computed once, and five
times as many sequences lie in one cache (row E-041). Nothing here looks at how long anything took."""
import json
import subprocess
import sys

tool, build = sys.argv[1:3]


def run(*args):
    return subprocess.run([sys.executable, tool, *args], capture_output=True, text=True, timeout=500, check=False)


done = run(build, "--quick", "--json")
assert done.returncode == 0, (done.returncode, done.stderr)
out = json.loads(done.stdout)
# Whole blocks of what began before, 1,500 tokens and the sentinel: 23 of 64.
shared = 1500 // 64 * 64
again = {"documents": 3, "batch": 5, "mixed": 4}
for row in out["rows"]:
    assert row["identical"], row
    assert row["requests"] == 6 and row["reused_tokens"] >= again.pop(row["workload"]) * shared, row
    assert row["prompt_tokens"] >= 6 * 1600 > row["reused_tokens"], row
assert not again, again
c = out["concurrent"]
assert c["apart"] >= 3 and c["shared"] >= 5 * c["apart"] and c["times"] == c["shared"] / c["apart"], c
# Four kilobytes a token: so many of them cannot lie there apart.
assert c["shared"] * c["tokens"] * 4096 > 2 * c["share_bytes"] > c["apart"] * c["tokens"] * 4096, c
for args in [], ["/nowhere"], [build, "--nonsense"]:
    done = run(*args)
    assert done.returncode == 2 and done.stderr and not done.stdout, done
