# SPDX-License-Identifier: Apache-2.0
"""A-044, A-063: learnt thresholds outlast the process that learnt them, in a real file that is there
whole or not at all; another process reads it back; whatever byte of it is damaged, it is refused."""
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading

KVREPLAY = os.environ["KVREPLAY"]


def line(model, layer, score, context=4096, layers=32):
    return json.dumps({"model": model, "layer": layer, "layers": layers, "kv_heads": 8,
                       "head_dim": 128, "context": context, "score": score}) + "\n"


def call(path, *args, stdin=None, **kw):
    return subprocess.run([KVREPLAY, "thresholds", "--file", path, *args], input=stdin, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **kw)


def learn(path, log, **kw):
    return call(path, "--scores", "-", "--json", stdin=log, **kw)


def records(done):
    assert done.returncode == 0, done.stderr
    return {(r["model"], r["layer"], r["context"]): r
            for r in json.loads(done.stdout)["thresholds"]}


def content(path):
    with open(path, "rb") as f:
        return f.read()


def survives_restart(path):
    """What one process learns, the next ones know and go on from."""
    assert records(call(path, "--json")) == {}
    assert not os.path.exists(path)
    # degraded: the native zone grows by a fifth and the archive gets a bit, twice
    first = records(learn(path, line("llama", 3, .5) * 8 + line("qwen", 1, .99) * 4))
    bad = first["llama", 3, 4096]
    assert (bad["hot_tokens"], bad["archive_bits"], bad["origin"]) == (91, 4, "measured"), bad
    assert abs(bad["quality"] - .5) < 1e-6
    assert first["qwen", 1, 4096]["hot_tokens"] == 64
    assert records(call(path, "--json")) == first
    assert "llama" in call(path).stdout
    second = records(learn(path, line("llama", 3, .5) * 4))
    assert second["llama", 3, 4096]["hot_tokens"] == 109
    assert second["qwen", 1, 4096] == first["qwen", 1, 4096]
    # a model that nobody has seen begins where the most similar one is
    third = records(learn(path, line("llama-2", 3, .96)))
    assert third["llama-2", 3, 4096]["hot_tokens"] == 109
    assert records(call(path, "--json")) == third


def refuses_damage(path):
    """Every byte flipped, every length cut off: refused, said so, and left alone."""
    good = content(path)
    assert len(good) == 24 + 3 * 112
    for at in range(2 * len(good) + 1):
        bad = bytearray(good[:at - len(good)] if at > len(good) else good)
        if at < len(good):
            bad[at] ^= 1 << at % 8
        elif at == len(good):
            bad += b"x"
        if bytes(bad) == good:
            continue
        with open(path, "wb") as f:
            f.write(bad)
        done = call(path) if at % 2 else learn(path, line("llama", 3, .5))
        assert done.returncode == 1 and "damaged" in done.stderr, (at, done)
        assert content(path) == bytes(bad), at
    with open(path, "wb") as f:
        f.write(good)


def is_whole_whatever_happens(path, seed):
    """A writer that is killed or that the disk fails leaves the old content, or the new one."""
    rng = random.Random(seed)
    before = content(path)

    def small_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    done = learn(path, line("llama", 3, .5) * 4, preexec_fn=small_disk)
    assert done.returncode == 1 and path in done.stderr, done
    assert content(path) == before
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]

    stop, reads = threading.Event(), [0]

    def read():
        while not stop.is_set():
            records(call(path, "--json"))
            reads[0] += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for i in range(100):
            log = "".join(line("m", k, rng.random()) for k in range(32)) * 4
            writer = subprocess.Popen(
                [KVREPLAY, "thresholds", "--file", path, "--scores", "-"], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            writer.stdin.write(log)
            writer.stdin.close()
            if i % 2:
                try:
                    writer.wait(timeout=rng.random() * .01)
                except subprocess.TimeoutExpired:
                    writer.kill()
            writer.wait()
            assert ("llama", 3, 4096) in records(call(path, "--json"))
    finally:
        stop.set()
        reader.join()
    assert reads[0] > 0
    assert len(records(call(path, "--json"))) == 3 + 32


def says_what_is_wrong(folder, path):
    for bad in (["--target", "0"], ["--target", "x"], ["--nonsense"], ["more"]):
        done = call(path, *bad)
        assert done.returncode == 2 and "usage" in done.stderr, bad
    done = subprocess.run([KVREPLAY, "thresholds"], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    before = content(path)
    for text in ("{}\n", "nonsense\n", line("", 3, 1), line("m", 32, 1), line("m", 3, "1"),
                 line("m", 3, 1).replace("4096", "-1"), "x" * 5000 + "\n"):
        done = learn(path, line("m", 3, .5) + text)
        assert done.returncode == 1 and "line 2" in done.stderr, (text[:40], done)
        assert content(path) == before
    done = call(path, "--scores", os.path.join(folder, "none"))
    assert done.returncode == 1 and "none" in done.stderr
    done = learn(os.path.join(folder, "no", "folder"), line("m", 3, .5))
    assert done.returncode == 1 and "No such file" in done.stderr


def main():
    seed = int(os.environ.get("KVP_TEST_SEED", "1"), 0)
    print(f"KVP_TEST_SEED={seed}")
    with tempfile.TemporaryDirectory() as folder:
        own = os.path.join(folder, "own")
        os.mkdir(own)
        path = os.path.join(own, "thresholds")
        survives_restart(path)
        refuses_damage(path)
        is_whole_whatever_happens(path, seed)
        says_what_is_wrong(folder, path)


sys.exit(main())
