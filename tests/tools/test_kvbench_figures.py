# SPDX-License-Identifier: Apache-2.0
"""What kvbench prints: medians with least and most beside them, and which copy is the divisor. Nothing
here looks at how long anything took."""
import json
import os
import subprocess

KVBENCH = os.environ["KVBENCH"]


def run(*args):
    done = subprocess.run([KVBENCH, *args], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, (args, done.stderr)
    return done.stdout


def spread(o, *names):
    for name in names:
        assert 0 < o[name + "_min"] <= o[name] <= o[name + "_max"], (name, o)


put = json.loads(run("put", "--block-kib", "64", "--blocks", "16", "--json"))
spread(put, "put_gbps", "in_place_gbps", "memcpy_gbps", "stream_gbps", "put_memcpy_ratio",
       "put_stream_ratio", "in_place_memcpy_ratio", "in_place_stream_ratio")
assert put["block_bytes"] == 65536 and put["blocks"] == 16
# A ratio is taken within a round: it lies between the extremes of both.
for of in ("memcpy", "stream"):
    assert put["put_gbps_min"] / put[of + "_gbps_max"] <= put["put_%s_ratio" % of] \
        <= put["put_gbps_max"] / put[of + "_gbps_min"], put
text = run("put", "--block-kib", "64", "--blocks", "16")
for word in ("of memcpy()", "of a streaming copy", "through the caches", " to ", "medians of 5 rounds"):
    assert word in text, (word, text)

hot = json.loads(run("hotpath", "--blocks", "4096", "--json"))
spread(hot, "match_ns_per_block", "match_ns_per_block_1500", "match_ns_per_block_cold", "one_block_ns",
       "lease_release_ns", "match_128k_us")
assert hot["syscalls_in_loop"] == 0
text = run("hotpath", "--blocks", "4096")
assert "medians of 7 rounds" in text and text.count(" to ") == 7, text

# D-051: blocks of 16 tokens on their way to a device; how long that takes is for people to judge.
warm, = json.loads(run("warm", "--block-kib", "64", "--warms", "100", "--json"))
assert (warm["block_bytes"], warm["block_tokens"], warm["warms"]) == (65536, 16, 100), warm
assert 0 < warm["median_us"] <= warm["p99_us"] <= warm["max_us"], warm
text = run("warm", "--block-kib", "64", "--warms", "20")
assert "64 KiB       20" in text and "compared with the block" in text, text

# Presets are names of codecs too: keys and values in codecs of their own.
rows = {(c["codec"], c["head_dim"]): c
        for c in json.loads(run("codecs", "--codec", "4bit,3bit,tq4-nc,tq4-nc/tq2-nc", "--json"))}
for dim in (64, 128):
    assert rows["4bit", dim]["relmse"] == rows["tq4-nc", dim]["relmse"]
    three, pair = rows["3bit", dim], rows["tq4-nc/tq2-nc", dim]
    assert three["bytes_per_token_head"] == pair["bytes_per_token_head"]
    assert rows["4bit", dim]["bytes_per_token_head"] > three["bytes_per_token_head"]
    assert rows["4bit", dim]["relmse"] < three["relmse"] == pair["relmse"]

# A codec whose size follows from what it holds: every bit comes back from less.
lossless, = [c for c in json.loads(run("codecs", "--codec", "lossless", "--json")) if c["head_dim"] == 128]
assert lossless["relmse"] == 0 and 400 < lossless["bytes_per_token_head"] < 450, lossless
methods = {(r["dtype"], r["method"]): r["ratio"] for r in json.loads(run("lossless", "--json"))}
assert methods["bf16", "lossless"] > 1.45 and methods["fp16", "lossless"] > 1.15, methods
assert methods["bf16", "lossless"] > methods.get(("bf16", "zstd-1"), 0), methods
