# SPDX-License-Identifier: Apache-2.0
"""Calibrations: of a model that runs here and of another engine's dump, what is refused, and what `pca` makes of
them; with the argument "model" what it and the codecs make of one that runs, too, which takes a minute and more. Nothing
here looks at how long anything took."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kernels"))
import kvquant  # noqa: E402
from pca import Calibration  # noqa: E402

KVBENCH, MODEL, TEXT = os.environ["KVBENCH"], os.environ["MODEL"], os.environ["TEXT"]
work = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(work.name, name)


def run(*args, status=0):
    done = subprocess.run([KVBENCH, *args], capture_output=True, text=True, timeout=280)
    assert done.returncode == status, (args, done.returncode, done.stderr)
    return done.stdout if not status else done.stderr


def load(name):
    with open(path(name), "rb") as f:
        return Calibration(f.read())


def tensors(name, **arrays):
    """A .safetensors file of fp32 arrays: (shape, values)."""
    head, body = {}, b""
    for key, (shape, values) in arrays.items():
        data = struct.pack(f"<{len(values)}f", *values)
        head[key.replace("_", ".")] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    with open(path(name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)
    return path(name)


def inverts(cal, tolerance):
    """Each component's axis there and back is that component and no other."""
    for _, units in cal.entry.values():
        for rank, _, forward, (axes, scale), _ in units:
            width = len(axes) // rank
            inverse = [axis * 64 * scale[i % width] for i, axis in enumerate(axes)]  # a step is 64 of its values
            for a in range(rank):
                for b in range(rank):
                    dot = sum(inverse[a * width + i] * forward[i * rank + b] for i in range(width))
                    assert abs(dot - (a == b)) < tolerance, (a, b, dot)


# ---- a dump: three directions carry nearly everything, in both heads together ----

rng = random.Random(5)
TOKENS, HEADS, DIM = 192, 2, 8


def samples():
    axis = [[rng.gauss(0, 1) for _ in range(HEADS * DIM)] for _ in range(3)]
    out = []
    for _ in range(TOKENS):
        weight = [rng.gauss(0, s) for s in (4, 2, 1)]
        out += [sum(w * a[i] for w, a in zip(weight, axis)) + rng.gauss(0, .01) + 1 for i in range(HEADS * DIM)]
    return [TOKENS, HEADS, DIM], out


keys, values = samples(), samples()
dump = tensors("plain.safetensors", layers_0_k=keys, layers_0_v=values)
told = json.loads(run("calibrate", "--dump", dump, "--rope", "none", "--bits", "1", "--out", path("a"), "--json"))
assert told["layers"] == 1 and told["heads"] == 2 and told["dim"] == 8 and told["joint"] == 2, told
assert told["model"] == "plain.safetensors" and told["tokens"] == TOKENS, told
assert told["rank_min"] == 16, told  # another text may have what these have not
assert .9 < (told["bits_k"] + told["bits_v"]) / 2 <= 1.0, told
inverts(load("a"), 1e-3)
assert run("calibrate", "--dump", dump, "--rope", "none", "--bits", "6", "--out", path("b"), "--name", "mine")
cal = load("b")
assert all(rank == 16 for _, units in cal.entry.values() for rank, *_ in units)
inverts(cal, 1e-3)
with open(path("b"), "rb") as f:
    assert f.read()[112:117] == b"mine\0"

# Queries that look along one channel only: there keys are kept, elsewhere an error costs little.
quiet = [.05] * DIM
query = [TOKENS, 4, DIM], [q for _ in range(TOKENS * 4) for q in [8.0] + quiet[1:]]
project = [16, 4 * DIM], [rng.gauss(0, 1) for _ in range(16 * 4 * DIM)]
noise = [TOKENS, HEADS, DIM], [rng.gauss(0, 1) for _ in range(TOKENS * HEADS * DIM)]
both = tensors("cost.safetensors", layers_0_k=noise, layers_0_v=noise, layers_0_q=query, layers_0_o=project)
run("calibrate", "--dump", both, "--rope", "none", "--joint", "1", "--bits", "1", "--out", path("c"))
rank, _, forward, _, _ = load("c").entry[0, 0][1][0]
gain = [max(abs(v) for v in forward[i * rank:(i + 1) * rank]) for i in range(DIM)]
assert gain[0] > 20 * max(gain[1:]), gain

# Keys with RoPE: it is undone, and the file says which.
run("calibrate", "--dump", dump, "--rope", "interleaved", "--theta", "500", "--bits", "2", "--out", path("d"))
assert (load("d").pairing, load("d").turns) == (2, 8)

# ---- what is refused, in words ----

for args, word in (
        (("--dump", dump, "--rope", "none"), "--out"),
        (("--dump", dump, "--out", path("x")), "--rope"),
        (("--dump", dump, "--rope", "none", "--out", path("x"), "--bits", "0"), "--bits"),
        (("--model", MODEL, "--out", path("x")), "--text")):
    assert word in run("calibrate", *args, status=2), args
for bad, word in (
        (tensors("1", layers_0_k=keys), "lack"),
        (tensors("2", layers_1_k=keys, layers_1_v=values), "no layers.0.k"),
        (tensors("3", layers_0_k=keys, layers_0_v=([HEADS, TOKENS, DIM], values[1])), "differ in shape"),
        (tensors("4", layers_0_k=([TOKENS * HEADS, DIM], keys[1]), layers_0_v=values), "3-dimensional"),
        (tensors("5", layers_0_k=([TOKENS, HEADS, DIM], [float("nan")] + keys[1][1:]), layers_0_v=values), "not finite"),
        (tensors("6", layers_0_k=keys, layers_0_v=values, layers_0_q=query), "do not fit"),
        (tensors("7", layers_0_k=keys, layers_0_v=values, layers_0_q=query, layers_0_o=([32, 16], project[1])),
         "do not fit")):
    assert word in run("calibrate", "--dump", bad, "--rope", "none", "--out", path("x"), status=1), (bad, word)
with open(path("8"), "wb") as f:
    f.write(struct.pack("<Q", 1 << 40) + b"{}")
run("calibrate", "--dump", path("8"), "--rope", "none", "--out", path("x"), status=1)
assert not os.path.exists(path("x"))

# ---- kvquant: ranges without one sample in 200 on either side, signposts where there is most ----

wide = [1000, HEADS, DIM], [rng.gauss(0, 1) for _ in range(1000 * HEADS * DIM)]
loud = tensors("loud.safetensors", layers_0_k=wide, layers_0_v=wide)
told = json.loads(run("calibrate", "--dump", loud, "--rope", "none", "--codec", "kvquant", "--out", path("n"), "--json"))
assert told["layers"] == 1 and told["tokens"] == 1000 and told["outside"] == .01, told
with open(path("n"), "rb") as f:
    nuq = kvquant.Calibration(f.read())
for form in (0, 2):  # without RoPE they are the same
    posts, channels = nuq.entry[0, form]
    for c, (middle, half, _) in enumerate(channels):
        inside = [abs(wide[1][t * HEADS * DIM + c] - middle) <= half * 1.00001 for t in range(1000)]
        assert sum(inside) == 990, (c, sum(inside))
    for bits, post in posts.items():
        assert list(post) == sorted(post) and len(post) == 2 ** bits, post
        # Gaussians: the middle is dense, and the outer ones are not at the ends.
        gap = [b - a for a, b in zip(post, post[1:])]
        assert gap[0] > 1.05 * gap[len(gap) // 2] and gap[-1] > 1.05 * gap[len(gap) // 2] and post[0] > -1, post
assert "tokens" in run("calibrate", "--dump", dump, "--rope", "none", "--codec", "kvquant", "--out", path("x"), status=1)
assert "--codec" in run("calibrate", "--dump", dump, "--rope", "none", "--codec", "tq4", "--out", path("x"), status=2)

if sys.argv[1:] != ["model"]:
    work.cleanup()
    sys.exit()

# ---- a model ----

model = ("--model", MODEL, "--text", TEXT)
with open(TEXT, "rb") as f, open(path("few"), "wb") as few:
    few.write(f.read(12000))
short = ("--model", MODEL, "--text", path("few"))
told = json.loads(run("calibrate", *model, "--tokens", "2048", "--bits", "1.5", "--out", path("m"), "--json"))
assert (told["layers"], told["heads"], told["dim"], told["joint"]) == (4, 2, 128, 2), told
assert "calibration" in run("quality", *model, "--codec", "pca", status=1)
assert "--model" in run("codecs", "--calib", path("m"), status=2)
with open(path("m"), "rb") as f:
    whole = f.read()
with open(path("cut"), "wb") as f:
    f.write(whole[:-1])
assert "damaged" in run("quality", *model, "--codec", "pca", "--calib", path("cut"), status=1)
assert "no calibration of this model" in run("quality", *model, "--codec", "pca", "--calib", path("a"), status=1)
row, = json.loads(run("codecs", *model, "--calib", path("m"), "--json"))
assert 1.3 < row["bits_per_value"] < 1.9 and row["relmse"] < .02, row
rows = {r["codec"]: r for r in json.loads(run("quality", *short, "--codec", "2bit,pca", "--calib", path("m"), "--json"))}
# Fewer bits, and a fraction of the error. (On its own text: docs/quality.md has it on others.)
assert rows["pca"]["bits_per_value"] < 1.9 < rows["2bit"]["bits_per_value"], rows
assert rows["pca"]["kl_nats"] < rows["2bit"]["kl_nats"] / 3, rows
run("calibrate", *model, "--tokens", "2048", "--codec", "kvquant", "--out", path("q"))
rows = {r["codec"]: r for r in json.loads(run("codecs", *model, "--calib", path("q"), "--json"))}
assert 3.3 < rows["kvquant3"]["bits_per_value"] < 3.6, rows
assert rows["kvquant4"]["relmse"] < rows["kvquant3"]["relmse"] / 2 < rows["kvquant2"]["relmse"] / 4, rows
assert "no calibration of this model" in run("quality", *model, "--codec", "kvquant3", "--calib", path("m"), status=1)

# ---- squat: as large as kivi, with the queries that a text begins with, and not kivi ----

told = json.loads(run("quality", *short, "--codec", "kivi2,squat2,squat2/tq4,spectral-f8-any/tq4,spectral-f32-any/tq4", "--json"))
rows = {r["codec"]: r for r in told}
assert rows["squat2"]["bits_per_value"] == rows["kivi2"]["bits_per_value"] == 3, rows
assert 0 < rows["squat2"]["kl_nats"] != rows["kivi2"]["kl_nats"] > rows["squat2/tq4"]["kl_nats"], rows

# ---- spectral: what its gate measures is told, and a plane that it refuses ----

few, many = told[3:]
assert 0 < few["energy_min"] <= few["energy"] < many["energy"] <= 1, told
assert "energy" not in told[0], told
assert few["energy_min"] < .85 and "85 %" in run("quality", *model, "--codec", "spectral-f8/tq4", status=1)
work.cleanup()
