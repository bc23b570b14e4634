# SPDX-License-Identifier: Apache-2.0
"""kvreplay as it is used: exit statuses, messages that name what is wrong, results that are whole."""
import json
import os
import struct
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

KVREPLAY = os.environ["KVREPLAY"]


def run(*args, stdout=subprocess.PIPE):
    done = subprocess.run([KVREPLAY, *args], stdout=stdout, stderr=subprocess.PIPE, timeout=120)
    return done.returncode, done.stdout, done.stderr.decode()


def refuses(status, word, *args):
    code, out, err = run(*args)
    assert code == status and word in err and not out, (args, code, out, err)


def oracle(path, records, tail=b""):
    with open(path, "wb") as f:
        f.write(b"".join(struct.pack("<IQIq", *r) for r in records) + tail)


def usage_errors(trace):
    simulate = ("simulate", "--trace", trace)
    for text in ("-5", "0", "abc", "9" * 30, "2G2", "1152921504606846977", "1073741825G"):
        refuses(2, f"'{text}'", *simulate, "--capacity", text)
    refuses(2, "--capacity", *simulate, "--capacity", "")
    refuses(2, "K, M or G", *simulate, "--capacity", "1T")
    refuses(2, "'1k' is no", *simulate, "--capacity", "1k", "--threads", "1k")
    refuses(2, "mooncake, agent and oracle", *simulate, "--capacity", "9", "--format", "csv")
    refuses(2, "mooncake and agent", "run", "--trace", trace, "--format", "csv")
    refuses(2, "usage", *simulate)
    for option, text in (("policy", "mru"), ("order", "deep"), ("format", "csv"), ("threads", "0"),
                         ("from", "-1"), ("time-scale", "nan"), ("block-tokens", "0")):
        refuses(2, f"'{text}'", *simulate, "--capacity", "9", "--" + option, text)
    refuses(2, "--policy", *simulate, "--capacity", "9", "--policy", "")
    refuses(2, "kvreplay simulate: unrecognized", *simulate, "--capacity", "9", "--bogus")
    for option, text in (("kind", "x"), ("requests", "0"), ("requests", "-1"), ("rate", "0"),
                         ("rate", "nan"), ("rate", "1e-300"), ("seed", "-1"), ("seed", "")):
        refuses(2, f"'{text}' is no value for --{option}", "generate", "--" + option, text)
    for option, text in (("capacity", "0"), ("capacity", "9,x"), ("period", "nan"), ("half-life", "-1"),
                         ("ahead", "257"), ("among", "1025"), ("format", "oracle")):
        refuses(2, f"' is no value for --{option}", "graph", "--trace", trace, "--" + option, text)
    refuses(2, "'replay'", "replay")
    assert run("--version")[:2] == (0, b"kvreplay 0.1.0\n")


def bad_files(folder):
    path = os.path.join(folder, "bad")
    row = b'{"timestamp":%s,"input_length":%s,"output_length":%s,"hash_ids":[%s]}\n'
    good = (b"0", b"1024", b"3", b"1,2")
    wrong = [b"", b"\n\n", b"\x00\x01\x02\n", b"{}\n", row % good + (row % good)[:30]]
    for at, texts in enumerate(((b"-5", b"1e300", b"9" * 19), (b"-1024", b"9" * 30, b"10"), (b"-3",),
                                (b"1.5,2", b"9" * 30 + b",2", b"", b'"1",2'))):
        wrong += [row % (good[:at] + (text,) + good[at + 1:]) for text in texts]
    for text in wrong:
        with open(path, "wb") as f:
            f.write(text)
        refuses(1, path, "simulate", "--trace", path, "--capacity", "9")
    # a line without end: neither read to the end of memory nor taken for the end of the file
    endless = subprocess.run([KVREPLAY, "simulate", "--trace", "/dev/zero", "--capacity", "9"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert endless.returncode == 1 and b"/dev/zero:1: line of more than" in endless.stderr, endless
    refuses(1, "/nonexistent", "simulate", "--trace", "/nonexistent", "--capacity", "9")
    refuses(1, "/nonexistent/x", "generate", "--out", "/nonexistent/x")
    for format in ("mooncake", "agent", "oracle"):
        refuses(1, folder, "simulate", "--trace", folder, "--format", format, "--capacity", "9")


def full_disk(trace):
    with open("/dev/full", "wb") as full:
        for args in (("--help",), ("--version",), ("simulate", "--help")):
            code, _, err = run(*args, stdout=full)
            assert code == 1 and "cannot write" in err, (args, code, err)
        for args in (("simulate", "--capacity", "9"), ("simulate", "--capacity", "9", "--json"),
                     ("graph", "--capacity", "9")):
            code, _, err = run(*args, "--trace", trace, stdout=full)
            assert code == 1 and "cannot write" in err, (args, code, err)
    refuses(1, "/nonexistent/x", "simulate", "--trace", trace, "--capacity", "9", "--plot",
            "/nonexistent/x")


def objects(folder):
    """Sizes of 0 are no requests; sizes beyond the cache always miss; nothing is read past the end."""
    path = os.path.join(folder, "objects")
    small = [(t, t % 3, 10, -1) for t in range(30)]
    hostile = [(2**32 - 1, 2**64 - 1, 2**32 - 1, -(2**63)), (0, 7, 0, 2**63 - 1)]

    def misses(capacity):
        code, out, err = run("simulate", "--trace", path, "--format", "oracle", "--json",
                             "--capacity", capacity)
        assert code == 0, err
        doc = json.loads(out)
        return doc["refs"], {r["policy"]: r["misses"] for r in doc["results"]}

    oracle(path, small + 5 * hostile)
    refs, got = misses("200")
    assert refs == 35 and set(got.values()) == {8}, got
    refs, got = misses("1152921504606846976")
    assert refs == 35 and set(got.values()) == {4}, got
    oracle(path, small, b"x" * 23)
    refuses(1, "inside a record", "simulate", "--trace", path, "--format", "oracle",
            "--capacity", "9")
    oracle(path, [(0, 1, 0, -1)])
    refuses(1, "no request", "simulate", "--trace", path, "--format", "oracle", "--capacity", "9")


def names_and_times(folder, text):
    """A name of any bytes, a policy named twice, times that do not fit."""
    simulate = ("simulate", "--capacity", "9", "--policy", "lru,min,lru")
    for name in (b"\xff\xfe.jsonl", b"a\x01\n<&\">.jsonl", "\u00e9.jsonl".encode()):
        path = os.path.join(folder.encode(), name)
        plot = os.path.join(folder, "name.svg")
        with open(path, "wb") as f:
            f.write(text)
        code, out, err = run(*simulate, "--trace", path, "--plot", plot, "--json")
        assert code == 0 and not err, (name, err)
        doc = json.loads(out)
        assert [r["policy"] for r in doc["results"]] == ["lru", "min"], doc["results"]
        assert doc["trace"].endswith(".jsonl")
        ElementTree.parse(plot)
        os.remove(path)
    assert [r["policy"] for r in json.loads(
        run("simulate", "--capacity", "9", "--trace", os.path.join(folder, "trace.jsonl"), "--json",
            "--policy", "all,all,all")[1])["results"]].count("hazard") == 1
    path = os.path.join(folder, "long")
    with open(path, "wb") as f:
        for ms in (0, 9 * 10**12):
            f.write(b'{"timestamp":%d,"input_length":1,"output_length":1,"hash_ids":[1]}\n' % ms)
    refuses(1, "too long", *simulate, "--trace", path, "--time-scale", "1e6")
    assert run(*simulate, "--trace", path, "--time-scale", "2")[0] == 0


def tiers(trace):
    """C-004: memory and store, each on or off; without --store nothing is said of tiers."""
    def simulate(*args):
        code, out, err = run("simulate", "--trace", trace, "--policy", "lru,min", "--json", *args)
        assert code == 0 and not err, (args, err)
        return json.loads(out)

    memory = simulate("--capacity", "9")
    assert {r["policy"] for r in memory["results"]} == {"lru", "min"} and "store" not in memory
    assert not any(key.startswith(("store", "memory")) for r in memory["results"] for key in r)
    hit = [r["hit_ratio"] for r in memory["results"] if r["policy"] == "lru"][0]
    ratios = {}
    for capacity, store in ((0, 0), (9, 0), (0, 99), (9, 99)):
        for mode in ("all", "hot", "evicted"):
            both = simulate("--capacity", str(capacity), "--store", str(store), "--ingest", mode)
            assert both["store"] == store and both["ingest"] == mode
            [r] = both["results"]
            assert abs(r["memory_hit_ratio"] + r["store_hit_ratio"] - r["hit_ratio"]) < 2e-6, r
            assert r["misses"] == round((1 - r["hit_ratio"]) * both["refs"])
            ratios[capacity, store, mode] = r["memory_hit_ratio"], r["store_hit_ratio"]
    for mode in ("all", "hot", "evicted"):
        assert ratios[0, 0, mode] == (0, 0) and ratios[9, 0, mode] == (hit, 0)
        assert ratios[0, 99, mode][0] == 0 < ratios[0, 99, mode][1]
    assert sum(ratios[9, 99, "all"]) > hit < sum(ratios[9, 99, "evicted"])
    code, out, err = run("simulate", "--trace", trace, "--policy", "lru", "--capacity", "0,9",
                         "--store", "1K", "--ingest", "hot")
    lines = [line.split()[0] for line in out.decode().splitlines()[3:]]
    assert code == 0 and lines == ["lru", "memory", "store"], (out, err)
    refuses(2, "'0'", "simulate", "--trace", trace, "--capacity", "0,9")
    refuses(2, "'0'", "simulate", "--trace", trace, "--capacity", "0,9", "--store", "9", "--plot", "x")
    refuses(2, "--store", "simulate", "--trace", trace, "--capacity", "9", "--store", "5Q")
    refuses(2, "--ingest without --store", "simulate", "--trace", trace, "--capacity", "9", "--ingest", "hot")
    refuses(2, "'cold'", "simulate", "--trace", trace, "--capacity", "9", "--ingest", "cold")
    refuses(2, "'x'", "simulate", "--trace", trace, "--capacity", "9", "--store", "x")
    refuses(2, "min", "simulate", "--trace", trace, "--capacity", "9", "--store", "9", "--policy", "min")


def main():
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.jsonl")
        code, out, err = run("generate", "--requests", "50")
        assert code == 0 and not err, err
        usage_errors(trace)
        bad_files(folder)
        objects(folder)
        with open(trace, "wb") as f:
            f.write(out)
        full_disk(trace)
        tiers(trace)
        names_and_times(folder, out)
        plot = os.path.join(folder, "plot.svg")
        code, out, err = run("simulate", "--trace", trace, "--capacity", "99,9,9", "--plot", plot)
        assert code == 0 and b"hazard" in out and not err, err
        assert out.splitlines()[2].split() == b"hit ratio 9 99 ns/access".split(), out
        with open(plot, encoding="utf-8") as f:
            svg = f.read()
        assert "nan" not in svg
        texts = [t.text for t in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
        assert {"trace.jsonl", "hit ratio", "9", "99", "hazard"} <= set(texts), texts


sys.exit(main())
