# SPDX-License-Identifier: Apache-2.0
"""kvbench suite: one command prints what the others measure, each a part; row A-080. $KVBENCH, $MODEL, $KVPOOLD."""
import json
import os
import subprocess

KVBENCH, MODEL = os.environ["KVBENCH"], os.environ["MODEL"]
PARTS = ["perplexity", "accuracy", "memory", "latency", "match", "throughput", "put"]


def suite(*args, want=0):
    r = subprocess.run([KVBENCH, "suite", *args], capture_output=True, text=True, timeout=120)
    assert r.returncode == want, (args, r.returncode, r.stderr)
    return r.stdout if want == 0 else r.stderr if want == 2 else r.stdout


# What the parts say is what the commands do.
own = json.loads(subprocess.run([KVBENCH, "estimate", "--codec", "4bit", "--codec", "2bit", "--json"], check=True,
                                capture_output=True, timeout=60).stdout)
d = json.loads(suite("--json", "--codec", "4bit,2bit", "--only", "memory,latency"))
assert list(d) == ["memory", "latency"], d
assert d["memory"] == own, d["memory"]
assert d["latency"], d
text = suite("--codec", "4bit", "--only", "memory")
assert text.startswith("== memory: ") and "4bit" in text, text

# However many codecs there are, none is left out.
many = [f"{c}{w}" for c in ("tq4", "tq3", "tq2") for w in ("", "-nc", "-plain", "-wide")]
d = json.loads(suite("--json", "--codec", ",".join(many), "--only", "memory"))
assert [c["codec"] for c in d["memory"]] == many, d

# What cannot be measured is said, and costs no other part.
d = json.loads(suite("--json", "--codec", "4bit", "--model", MODEL, "--text", "/nowhere", "--only", "accuracy,memory", want=1))
assert d["accuracy"] is None and d["memory"], d

# Without a model the two that need one are left out, and all the others are there.
shown = [line.split(":")[0][3:] for line in suite("--codec", "4bit", "--only", ",".join(PARTS[:3])).splitlines()
         if line.startswith("== ")]
assert shown == ["memory"], shown
for wrong, why in ((["--only", "speed"], "no part 'speed'"), (["--model", MODEL], "goes with"), (["--codec", "x" * 300], "too long")):
    said = suite(*wrong, want=2)
    assert why in said, said
said = suite("--only", "speed", want=2)
assert all(p in said for p in PARTS), said
