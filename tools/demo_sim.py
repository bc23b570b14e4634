# SPDX-License-Identifier: Apache-2.0
"""demo_sim.py [BUILD [--json]]: what `tools/demo --device sim` runs, from the root of the tree once all is built.
Engines in processes of their own attend over one copy of a prompt's blocks in the memory of a simulated GPU, and one
of them is killed in the middle of a kernel."""
import atexit
import json
import os
import subprocess
import sys
import tempfile
import time

BUILD = sys.argv[1] if len(sys.argv) > 1 else "build"
AS_JSON = "--json" in sys.argv[2:]
KVCTL = BUILD + "/tools/kvctl/kvctl"
KVRUN = BUILD + "/tests/tools/kvrun/kvrun_sim"
CUDADRV = BUILD + "/tests/cudadrv/cudadrv"
VRAM, CONTEXT = 1 << 30, 128 << 20
BLOCK = 64
PROMPT_BYTES = 400  # the kernels' model is a thousand times as slow as a GPU
CONFIG = {
    "memory": "512MiB", "user": "", "trust_daemon_uid": True, "mlock": "never",
    "defaults": {"share": "256MiB", "max_blocks": 4096},
    "devices": [{"name": "gpu", "driver": "cuda", "index": 0, "bytes": "128MiB", "segment": "16MiB",
                 "worker": os.path.abspath(BUILD + "/daemon/device/kvpool-device")}],
}


def step(text):
    print(text, file=sys.stderr, flush=True)


def fail(text):
    step("tools/demo: " + text)
    sys.exit(1)


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            fail("waited %d s in vain for %s" % (seconds, what))
        time.sleep(0.02)


def prompt():
    with open("share/demo/handbook.txt", encoding="utf-8") as f:
        return " ".join(f.read()[:PROMPT_BYTES].split())


class Daemon:
    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        config = os.path.join(self.folder, "kvpoold.json")
        with open(config, "w", encoding="utf-8") as f:
            json.dump(CONFIG, f)
        with open(os.path.join(self.folder, "log"), "wb") as log:
            self.process = subprocess.Popen([BUILD + "/daemon/kvpoold", "--foreground", "--config", config,
                                             "--runtime-dir", self.folder], stdout=log, stderr=log)
        os.environ["KVPOOL_SOCKET"] = os.path.join(self.folder, "kvpool.sock")
        wait_for("kvpoold", lambda: os.path.exists(os.environ["KVPOOL_SOCKET"]) or self.process.poll() is not None)
        if self.process.poll() is not None:
            with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as log:
                fail("kvpoold ended; its log:\n" + log.read())
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Engine:
    """A kvrun that answers the prompts it is told, until it is killed or told no more."""

    def __init__(self, *more):
        self.process = subprocess.Popen([KVRUN, "--model", "share/models/bytes-4m", "--lines", "--steps", "16",
                                         "--block-tokens", str(BLOCK), "--json", *more],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # if the demo fails while a kernel hangs

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            fail("an engine ended with status %d" % self.process.wait())
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def once(text, *more):
    e = Engine(*more)
    e.ask(text)
    result = e.answer()
    e.close()
    return result


def describe(name, result, off, first):
    """Identical: the CPU's text, and the bits of the engine that computed it all on the GPU."""
    same = result["tokens"] == off["tokens"] and result["logits_xxh3"] == first["logits_xxh3"]
    return {"name": name, "vram_tokens": result["blocks"]["device"] * BLOCK, "identical": same}


def kill_under_a_kernel(machine, engine, text):
    """The engine gets on with a prompt until one of its kernels does not end; there it is killed."""
    fault = output(CUDADRV, "set", machine, "op:kernel", "hang", "skip=6", "times=1", "program=kvrun_sim").strip()
    engine.ask(text)
    wait_for("a kernel that hangs", lambda: int(output(CUDADRV, "hit", machine, fault)) > 0)
    engine.process.kill()
    engine.process.wait()
    output(CUDADRV, "clear", machine)
    wait_for("the daemon to notice", lambda: not json.loads(output(KVCTL, "clients", "--json"))["clients"])


def pinned_mib(machine):
    """What is still taken of the GPU when the daemon has emptied its memory there: its worker's context aside."""
    drained = lambda: json.loads(output(KVCTL, "device", "drain", "gpu", "--json"))["empty"]
    wait_for("the device to be empty", drained)
    taken = VRAM - int(output(CUDADRV, "free", machine, "0")) - CONTEXT
    return -(-taken // (1 << 20))


def demo(machine, folder):
    """All of it; 0 if it went as it should."""
    text = prompt()
    output(CUDADRV, "new", machine, "vram_bytes=%d" % VRAM, "context_bytes=%d" % CONTEXT)
    with Daemon(folder):
        step("off: the prompt on the CPU and without kvpool, to compare with")
        off = once(text, "--kvpool", "off")
        step("first: computes the whole prompt into the daemon's memory on the GPU")
        engine = Engine("--device", "cuda:0")
        engine.ask(text)
        first = engine.answer()
        step("second: the same prompt in another process, beside the first")
        second = once(text, "--device", "cuda:0")
        step("kill -9 of the first under a kernel that attends over those blocks")
        kill_under_a_kernel(machine, engine, text + " And then?")
        check = json.loads(output(KVCTL, "check", "--json"))
        step("third: the same prompt after that")
        third = once(text, "--device", "cuda:0")
        after = {"lost_blocks": second["blocks"]["read"] - third["blocks"]["read"], "pinned_mib": pinned_mib(machine),
                 "check": "clean" if check["clean"] else "%d problems" % check["problems_found"]}
    engines = [describe(n, r, off, first) for n, r in (("first", first), ("second", second), ("third", third))]
    reports = output(CUDADRV, "reports", machine)
    report({"prompt_tokens": off["prompt_tokens"], "engines": engines, "after_kill": after}, off, reports)
    whole = (off["prompt_tokens"] - 1) // BLOCK * BLOCK
    good = all(e["identical"] for e in engines) and [e["vram_tokens"] for e in engines] == [0, whole, whole] and \
        after == {"lost_blocks": 0, "pinned_mib": 0, "check": "clean"} and not reports
    return 0 if good else 1


def report(result, off, reports):
    if reports:
        step("the simulated driver reports:\n" + reports)
    if AS_JSON:
        print(json.dumps(result))
        return
    print("\nA prompt of %d tokens on a simulated GPU; every row is a process of its own.\n" % result["prompt_tokens"])
    print("%-8s %20s  identical" % ("engine", "tokens read in VRAM"))
    for e in result["engines"]:
        print("%-8s %20d  %s" % (e["name"], e["vram_tokens"], "yes" if e["identical"] else "NO"))
    print("\nAfter the first was killed under a kernel: blocks lost %(lost_blocks)d, MiB of the GPU not to be had back "
          "%(pinned_mib)g,\nkvctl check %(check)s.\n" % result["after_kill"])
    print("Their text: " + off["text"].strip().replace("\n", " "))


def main():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as machine, tempfile.TemporaryDirectory() as folder:
        os.environ["KVP_SIM_GPU"] = machine
        os.environ["KVPOOL_LIBCUDA"] = os.path.abspath(BUILD + "/tests/cudadrv/libcuda.so.1")
        return demo(machine, folder)


sys.exit(main())
