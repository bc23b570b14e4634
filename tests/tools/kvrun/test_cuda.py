#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_cuda.py KVRUN MODEL [KVCTL CUDADRV]: engines on a GPU, beside a daemon that has memory on it. Without
KVCTL the daemon has none. Without CUDADRV the GPU is a real one, and faults are not set."""
import json
import os
import subprocess
import sys
import time

KVRUN, MODEL = sys.argv[1:3]
KVCTL = sys.argv[3] if len(sys.argv) > 3 else None
CUDADRV = sys.argv[4] if len(sys.argv) > 4 else None
TEXT = "It was a long evening, and nobody had said a word of it. " * 2
SIZE = 16
WHOLE = len(TEXT) // SIZE  # a BOS and the text's bytes; the last block is always computed


def run(*args, prompt=TEXT, status=0, size=SIZE):
    done = subprocess.run([KVRUN, "--model", MODEL, "--prompt", prompt, "--steps", "6", "--block-tokens", str(size),
                           "--json", *args], capture_output=True, text=True, timeout=240)
    assert done.returncode == status, (args, done.returncode, done.stderr)
    return (json.loads(done.stdout) if done.stdout else None), done.stderr


def on_gpu(*args, **more):
    return run("--device", "cuda:0", *args, **more)[0]


def same_text(a, b):
    assert a["tokens"] == b["tokens"], (a["text"], b["text"])


def same_bits(a, b):
    same_text(a, b)
    assert a["logits_xxh3"] == b["logits_xxh3"], (a, b)


def blocks(result, **want):
    got = {k: result["blocks"][k] for k in want}
    assert result["kvpool"] == "attached" and got == want, (want, result)


def test_without_daemon():
    """Alone on the GPU: types, sizes that divide nothing, a score; the text is the CPU's."""
    cpu = run("--kvpool", "off")[0]
    alone = on_gpu("--kvpool", "off")
    assert alone["kvpool"] == "off"
    same_text(alone, cpu)
    for dtype, size in (("f32", 17), ("bf16", 32)):
        more = ("--kvpool", "off", "--kv-dtype", dtype)
        same_text(on_gpu(*more, size=size), run(*more, size=size)[0])
    return alone


def test_shared(alone):
    """A second process attends over what the first one left, where it lies."""
    cold = on_gpu()
    assert cold["reused_tokens"] == 0
    blocks(cold, read=0, slots=WHOLE + 1, private=0, published=WHOLE + 1)
    warm = on_gpu()
    assert warm["reused_tokens"] == WHOLE * SIZE
    blocks(warm, read=WHOLE, device=WHOLE, private=0)
    same_bits(cold, alone)
    same_bits(warm, alone)
    branch = on_gpu(prompt=TEXT[:60] + "Then it rained, and the river rose.")
    blocks(branch, read=3, device=3)
    # What it generated is cached, too. Parts of blocks are found in DRAM.
    wait_behind()
    longer = on_gpu("--reuse-tail", prompt=TEXT + cold["text"])
    assert longer["reused_tokens"] > WHOLE * SIZE, longer
    same_text(longer, run("--kvpool", "off", prompt=TEXT + cold["text"])[0])


def test_from_dram(alone):
    """Blocks that lie in DRAM alone come to the device before they are read, or to memory of the engine's own."""
    wait_behind()
    subprocess.run([KVCTL, "device", "drain", "gpu"], check=True, stdout=subprocess.DEVNULL)
    copied = on_gpu()
    assert copied["reused_tokens"] == WHOLE * SIZE, copied
    blocks(copied, read=0, slots=0, private=WHOLE + 1, published=0)
    same_bits(copied, alone)
    subprocess.run([KVCTL, "device", "attach", "gpu"], check=True, stdout=subprocess.DEVNULL)
    again = on_gpu()
    assert again["reused_tokens"] == WHOLE * SIZE, again
    blocks(again, read=WHOLE, device=WHOLE)
    same_bits(again, alone)


def wait_behind():
    """Until all blocks that were computed on the device have been copied to DRAM."""
    for _ in range(2000):
        out = subprocess.run([KVCTL, "device", "list", "--json"], check=True, capture_output=True, text=True).stdout
        device = json.loads(out)["devices"][0]
        if device["behind_total"] == device["put_total"]:
            return
        time.sleep(0.01)
    raise AssertionError(out)


def test_single_flight():
    """Engines with the same new prompt at the same time: one computes it, the others take it where it lies."""
    folder, prompt = os.environ["KVP_SIM_GPU"], "All at once. " + TEXT
    # None is through before the last one begins.
    subprocess.run([CUDADRV, "set", folder, "op:kernel", "sleep", "value=200000", "program=kvrun_sim"], check=True,
                   stdout=subprocess.DEVNULL)
    engines = [subprocess.Popen([KVRUN, "--model", MODEL, "--prompt", prompt, "--steps", "6", "--block-tokens", str(SIZE),
                                 "--json", "--device", "cuda:0"], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    results = [json.loads(e.communicate(timeout=240)[0]) for e in engines]
    subprocess.run([CUDADRV, "clear", folder], check=True)
    reused = sorted(r["reused_tokens"] for r in results)
    assert reused == [0] + 2 * [len(prompt) // SIZE * SIZE], results  # a BOS and the bytes
    for r in results[1:]:
        same_bits(r, results[0])
    same_text(results[0], run("--kvpool", "off", prompt=prompt)[0])


def test_lost():
    """A device that faults ends the engine with its error; the next one finds all of it."""
    fault = ["op:kernel", "sticky", "value=700", "skip=20", "times=1", "program=kvrun_sim"]
    folder = os.environ["KVP_SIM_GPU"]
    subprocess.run([CUDADRV, "set", folder, *fault], check=True, stdout=subprocess.DEVNULL)
    nothing, error = run("--device", "cuda:0", "--no-store", prompt="Lost. " + TEXT, status=1)
    assert nothing is None and "CUDA_ERROR_ILLEGAL_ADDRESS" in error, error
    subprocess.run([CUDADRV, "clear", folder], check=True)
    blocks(on_gpu(), read=WHOLE, device=WHOLE)


def test_refused():
    """What there is not is said."""
    _, error = run("--device", "cuda:63", status=1)
    assert "cuda:63" in error, error
    _, error = run("--device", "cuda:x", status=2)
    assert "cuda:0..cuda:63" in error, error
    _, error = run("--device", "cuda:0", "--codec", "tq4", status=2)
    assert "--codec" in error, error


def test_auto(alone):
    """A GPU that is there is taken, with the same bits; where there is none, the CPU, with its bits (D-017)."""
    taken, error = run("--kvpool", "off", "--device", "auto")
    assert "CPU" not in error, error
    same_bits(taken, alone)
    os.environ["KVPOOL_LIBCUDA"], kept = "/nonexistent", os.environ.get("KVPOOL_LIBCUDA")
    try:
        left, error = run("--kvpool", "off", "--device", "auto")
        assert "computed on the CPU: no device cuda:0: " in error, error
        same_bits(left, run("--kvpool", "off")[0])
        assert "cuda:0" in run("--device", "cuda:0", status=1)[1]
    finally:
        if kept is None:
            del os.environ["KVPOOL_LIBCUDA"]
        else:
            os.environ["KVPOOL_LIBCUDA"] = kept


def main():
    alone = test_without_daemon()
    test_refused()
    test_auto(alone)
    if not KVCTL:
        bare, error = run("--device", "cuda:0")
        assert bare["kvpool"] == "detached" and "no memory on cuda:0" in error, error
        same_bits(bare, alone)
        return
    test_shared(alone)
    test_from_dram(alone)
    if CUDADRV:
        test_single_flight()
        test_lost()
    subprocess.run([KVCTL, "check"], check=True)


main()
