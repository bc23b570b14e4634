# SPDX-License-Identifier: Apache-2.0
"""kvbench estimate against figures worked out by hand; rows D-019, D-027, D-029, D-040, D-041."""
import json
import os
import subprocess

KVBENCH = os.environ["KVBENCH"]


def run(*args):
    done = subprocess.run([KVBENCH, "estimate", *args], capture_output=True, timeout=60)
    return done.returncode, done.stdout, done.stderr.decode()


def estimate(*args):
    code, out, err = run(*args, "--json")
    assert code == 0, err
    return {e["codec"]: e for e in json.loads(out)}


def shape(budget, tokens):
    return ("--layers", "36", "--heads", "8", "--dim", "128", "--block", "16", "--budget", budget,
            "--tokens", tokens)


fp8 = estimate(*shape("20g", "40960"), "--dtype", "f8", "--codec", "native")["native"]
tq4 = estimate(*shape("20g", "40960"), "--codec", "tq4-wide", "--codec", "pub-aither4")
assert fp8["page_bytes"] == 32768 and fp8["bytes_per_token"] == 36 * 8 * 128 * 2
assert fp8["tokens_in_budget"] == 291271 and round(fp8["sequences_in_budget"], 1) == 7.1
for e in tq4.values():
    assert e["page_bytes"] == 17408 and e["bytes_per_token"] == 36 * 8 * 68 * 2
    assert e["tokens_in_budget"] == 548275 and round(e["sequences_in_budget"], 1) == 13.4
    assert e["sequence_bytes"] == 40960 // 16 * 36 * e["stored_page_bytes"]

# The memory that holds 118,112 tokens of fp8.
held = estimate(*shape(str(118112 * 73728), "1"), "--codec", "tq4-wide")["tq4-wide"]
assert 222300 <= held["tokens_in_budget"] < 222400

# Preset names, and every default.
three = estimate("--layers", "1", "--codec", "3bit")["3bit"]
assert three["bytes_per_token"] == 8 * (66 + 34)
assert set(estimate()) == {"native", "fp8", "4bit", "3bit", "2bit"}

for status, word, args in ((1, "no such codec", ("--codec", "tq9")),
                           (1, "cannot hold", ("--dim", "104", "--codec", "tq4")),
                           (2, "usage", ("--layers", "0")), (2, "usage", ("--layers", "-1")),
                           (2, "usage", ("--budget", "1x")), (2, "usage", ("--dim", "2048")),
                           (2, "usage", ("--codec",)), (2, "usage", ("--what", "1")),
                           (2, "usage", ("--budget", "99999999999999999999"))):
    code, _, err = run(*args)
    assert code == status and word in err, (args, code, err)

with open("/dev/full", "wb") as full:
    for args in (("estimate",), ("estimate", "--json"), ("--version",), ("--help",)):
        done = subprocess.run([KVBENCH, *args], stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 1 and b"cannot write" in done.stderr, args
for args in (("policy", "--policy", "mru"), ("policy", "mru"), ("codecs", "--codec", ""),
             ("attention", "--ctx", ",")):
    done = subprocess.run([KVBENCH, *args], capture_output=True, timeout=60)
    assert done.returncode == 2 and b"usage" in done.stderr and not done.stdout, args
