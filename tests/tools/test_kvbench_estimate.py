# SPDX-License-Identifier: Apache-2.0
"""kvbench estimate against figures worked out by hand; rows A-055, A-056, A-079, D-019, D-027, D-029,
D-040, D-041, D-050, D-073, D-098, D-099, E-038."""
import json
import os
import subprocess
import tempfile

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

# all heads of a 7B, a 70B and a 540B model; an 8B model at 128K tokens.
def sequence(layers, heads, tokens, *more, dim="128"):
    return estimate("--layers", layers, "--heads", heads, "--dim", dim, "--tokens", tokens, *more)


assert sequence("32", "32", "2048")["native"]["sequence_bytes"] == 1 << 30
many = sequence("80", "64", str(8 * 32768), "--codec", "native", "--codec", "kivi2")
assert many["native"]["sequence_bytes"] == 687194767360
assert 128e9 < many["kivi2"]["sequence_bytes"] < 131e9
for name, e in sequence("32", "8", "131072", "--codec", "kivi2", "--codec", "2bit").items():
    assert e["sequence_bytes"] < 3.3e9, (name, e)
# E-038: 1,000 tokens of a 7B model with all heads.
mha = sequence("32", "32", "1000", "--codec", "native", "--codec", "kivi2")
assert mha["native"]["bytes_per_token"] == 524288 and mha["kivi2"]["bytes_per_token"] == 98304
# D-050, D-073: what 128 GB hold, and what the memory of 309,000 tokens holds in fewer bits.
assert estimate(*shape("128g", "1"), "--codec", "tq4-wide")["tq4-wide"]["tokens_in_budget"] == 3508960
held = estimate(*shape(str(309000 * 36 * 8 * 68 * 2), "1"), "--codec", "hybrid-prod")["hybrid-prod"]
assert held["tokens_in_budget"] == 309000 * 68 // 64
# D-098: one sequence of 256 to 16,384 tokens, in MiB, against fp8.
for tokens, mib in ((256, 9.6), (1024, 38.3), (2048, 76.5), (4096, 153), (8192, 306), (16384, 612)):
    e = estimate(*shape("1g", str(tokens)), "--codec", "tq4-wide")["tq4-wide"]
    assert abs(e["bytes_per_token"] * tokens / mib / (1 << 20) - 1) < .02, (tokens, e)
    e = estimate(*shape("1g", str(tokens)), "--dtype", "f8", "--codec", "native")["native"]
    assert e["sequence_bytes"] == tokens * 72 << 10
# D-099: a 14B model; as many tokens more as the pages are smaller.
large = ("--layers", "48", "--block", "16", "--tokens", "32768", "--budget", str(126240 * 52224))
pages = estimate(*large, "--codec", "native", "--codec", "tq4-wide")
assert pages["native"]["bytes_per_token"] == 196608
assert pages["tq4-wide"]["tokens_in_budget"] == 126240
assert round(pages["tq4-wide"]["sequences_in_budget"], 2) == 3.85
assert round(pages["native"]["page_bytes"] / pages["tq4-wide"]["page_bytes"], 2) == 3.76

# Preset names, and every default.
three = estimate("--layers", "1", "--codec", "3bit")["3bit"]
assert three["bytes_per_token"] == 8 * (66 + 34)
assert set(estimate()) == {"native", "fp8", "4bit", "3bit", "2bit"}

for status, word, args in ((1, "no such codec", ("--codec", "tq9")),
                           (1, "cannot hold", ("--dim", "104", "--codec", "tq4")),
                           (2, "1 to 4096", ("--layers", "0")), (2, "1 to 4096", ("--layers", "-1")),
                           (2, "k, m, g or t", ("--budget", "1x")), (2, "1024", ("--dim", "2048")),
                           (2, "k, m, g or t", ("--budget", "0")), (2, "k, m, g or t", ("--budget", "1KB")),
                           (2, "needs a value", ("--codec",)), (2, "--codec", ("--what", "1")),
                           (2, "twice", ("--dim", "64", "--dim", "64")), (2, "bf16", ("--dtype", "int")),
                           (2, "k, m, g or t", ("--budget", "99999999999999999999"))):
    code, _, err = run(*args)
    assert code == status and word in err, (args, code, err)

# A model's shape: by name, from a config.json or its folder, and what a config may leave out.

def native(*args):
    return estimate(*args, "--codec", "native")["native"]


# The shape that documents speak of: 1 GiB holds 8,192 tokens, a quarter of it 2,048.
assert native("--model", "llama-3.1-8b")["tokens_in_budget"] == 8192
assert native("--model", "llama-3.1-8b", "--budget", "256MiB")["tokens_in_budget"] == 2048
assert native() == native("--model", "llama-3.1-8b")
assert native("--model", "llama-2-7b")["bytes_per_token"] == 32 * 32 * 128 * 2 * 2
assert native("--model", "llama-3.2-1b")["bytes_per_token"] == 16 * 8 * 64 * 2 * 2
assert native("--model", "llama-3.1-8b", "--layers", "16")["bytes_per_token"] == 65536
assert native("--model", "llama-3.1-8b", "--dtype", "f8")["bytes_per_token"] == 65536
# One latent of 512 + 64 channels for keys and values, in one head.
assert native("--model", "deepseek-v3")["bytes_per_token"] == 61 * 576 * 2
assert estimate("--model", "deepseek-v3", "--codec", "fp8")["fp8"]["page_bytes"] < 64 * 576 * 1.1

with tempfile.TemporaryDirectory() as tmp:
    path = os.path.join(tmp, "config.json")

    def config(**members):
        with open(path, "w", encoding="utf-8") as f:
            json.dump(members, f)
        return ("--model", tmp)

    whole = dict(num_hidden_layers=4, num_attention_heads=8, hidden_size=512)
    assert native(*config(**whole))["bytes_per_token"] == 4 * 8 * 64 * 2 * 2
    assert native("--model", path) == native("--model", tmp)
    assert native(*config(num_key_value_heads=2, **whole))["bytes_per_token"] == 4 * 2 * 64 * 2 * 2
    assert native(*config(head_dim=128, torch_dtype="float32", **whole))["bytes_per_token"] \
        == 4 * 8 * 128 * 2 * 4
    assert native(*config(vision_config={"hidden_size": 1}, text_config=whole))["bytes_per_token"] \
        == 4 * 8 * 64 * 2 * 2
    latent = native(*config(kv_lora_rank=512, qk_rope_head_dim=64, **whole))
    assert latent["bytes_per_token"] == 4 * 576 * 2
    mixed = config(layer_types=["linear_attention"] * 3 + ["full_attention"], **whole)
    assert native(*mixed)["bytes_per_token"] == 8 * 64 * 2 * 2
    for bad in (dict(whole, num_hidden_layers=0), dict(whole, hidden_size=1 << 40),
                dict(whole, num_attention_heads="8"), {}):
        code, _, err = run(*config(**bad))
        assert code == 2 and "num_hidden_layers" in err, (bad, code, err)
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"num_hidden_layers":\n oops}')
    code, _, err = run("--model", tmp)
    assert code == 2 and "line 2" in err, err
    code, _, err = run("--model", os.path.join(tmp, "none"))
    assert code == 2 and "llama-3.1-8b" in err, err
    assert "config.json" in run("--model", tempfile.gettempdir())[2]

# What the demo's own model takes, as kvrun has it: 4 layers or so, in fp32.
own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "share", "models", "bytes-4m")
with open(os.path.join(own, "config.json"), encoding="utf-8") as f:
    c = json.load(f)
dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
assert native("--model", own)["bytes_per_token"] == c["num_hidden_layers"] * c["num_key_value_heads"] * dim \
    * 2 * {"float32": 4}.get(c.get("torch_dtype"), 2)

# Of a sequence only if it is said how long it is; a file that is not there has no line.
for args, there in (((), False), (("--tokens", "4k"), True)):
    code, out, _ = run(*args)
    assert code == 0 and (b"sequences" in out.splitlines()[1]) == there, out
    assert len(out.splitlines()[1].split()) == len(out.splitlines()[2].split()), out
code, _, err = run("--model", os.path.dirname(os.path.abspath(__file__)))
assert code == 2 and "config.json" in err and "line" not in err and err.count("\n") == 1, err

with open("/dev/full", "wb") as full:
    for args in (("estimate",), ("estimate", "--json"), ("--version",), ("--help",)):
        done = subprocess.run([KVBENCH, *args], stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 1 and b"cannot write" in done.stderr, args
for args, word in ((("policy", "--policy", "mru"), b"usage"), (("policy", "mru"), b"usage"),
                   (("codecs", "--codec", ""), b"--codec takes"), (("attention", "--ctx", ","), b"--ctx takes"),
                   (("attention", "--queries", "0"), b"--queries takes up to 8 numbers from 1 to 64"),
                   (("attention", "--queries", "1,2,3,4,5,6,7,8,9"), b"--queries takes"),
                   (("codecs", "--ctx", "64"), b"--codec"), (("quality",), b"--model DIR"),
                   (("codecs", "--validate", "--codec", "tq4"), b"--validate"),
                   (("attention", "--isa", "sse"), b"c, avx2, avx512, vbmi, bytes, amx, amx-bf16 or neon"),
                   (("attention", "--threads", "65"), b"1 to 64")):
    done = subprocess.run([KVBENCH, *args], capture_output=True, timeout=60)
    assert done.returncode == 2 and word in done.stderr and not done.stdout, (args, done.stderr)
