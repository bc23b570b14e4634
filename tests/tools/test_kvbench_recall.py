# SPDX-License-Identifier: Apache-2.0
"""kvbench quality --recall: what it reports, and that it is the same again. With the argument "model": that it tells a
coarse codec from a fine one, by a model that recalls."""
import json
import os
import subprocess
import sys

KVBENCH, MODEL, TEXT = (os.environ[k] for k in ("KVBENCH", "MODEL", "TEXT"))


def run(*args, status=0):
    done = subprocess.run([KVBENCH, "quality", *args], capture_output=True, text=True, timeout=280)
    assert done.returncode == status, (args, done.returncode, done.stderr)
    return done.stdout if not status else done.stderr


def rows(model, cases, distance, codecs, *more):
    out = run("--model", model, "--text", TEXT, "--recall", str(cases), "--ctx", distance, "--codec", codecs, "--json", *more)
    return {(r["codec"], r["distance"]): r for r in json.loads(out)}


def report():
    got = rows(MODEL, 2, "64,200", "native,int8,2bit")
    assert len(got) == 6
    for (codec, distance), r in got.items():
        assert r["cases"] == 2 and distance in (64, 200)
        for what in ("forced", "free"):
            assert 0 <= r[what] <= 1 and 0 <= r[what + "_error"] <= .5
            assert abs(r[what] * 112 - round(r[what] * 112)) < .01, r  # 2 cases of 56 letters
    assert got["native", 64]["bits_per_value"] == 16 and got["2bit", 64]["bits_per_value"] == 2.125
    assert got == rows(MODEL, 2, "64,200", "native,int8,2bit")
    for args, word in ((("--ctx", "100"), "--recall"), (("--recall", "1", "--repeat"), "--repeat"),
                       (("--recall", "0"), "--recall")):
        assert word in run("--model", MODEL, "--text", TEXT, *args, status=2), args
    assert "distances" in run("--model", MODEL, "--text", TEXT, "--recall", "1", "--ctx", "1921", status=1)


def model_that_recalls():
    got = rows(MODEL + "-recall", 18, "200", "native,4bit,asym2")
    # A model that was not trained for it finds hardly more than one letter in 26.
    assert got["native", 200]["forced"] > .9, got
    assert abs(got["native", 200]["forced"] - got["4bit", 200]["forced"]) < .05, got
    assert got["asym2", 200]["forced"] < got["native", 200]["forced"] - .05, got


if sys.argv[1:] == ["model"]:
    model_that_recalls()
else:
    report()
