# SPDX-License-Identifier: Apache-2.0
"""demo_tiers.py [BUILD [--json] [--prompts N]]: what `tools/demo --tiers` runs, from the root of the tree once all is
built. A working set of prompts is stored in a pool that is too small for it, and read again by another process: what
was kept as it is, coded down to the space's floor, computed anew by a third process, or lost, and what that cost."""
import argparse
import array
import atexit
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

MODEL = "share/models/bytes-4m"
BLOCK = 64
BLOCK_BYTES = 256 << 10
PROMPTS = 16  # with a few of them there may be room for all
PROMPT_BLOCKS = 6
WANT_MS = 60000
KL_MOST = .1  # far above what these codecs do to this model, far below what a wrong block does
# Name, floor, what reader, provider and pool have besides.
ROWS = (
    ("exact", None, {}),
    ("vram", None, {"device": True}),
    ("tq4", "tq4", {}),
    ("tq2", "tq2", {}),
    ("recomputed", None, {"provider": True}),
)


def step(text):
    print(text, file=sys.stderr, flush=True)


def fail(text):
    step("tools/demo: " + text)
    sys.exit(1)


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            fail("waited %d s in vain for %s" % (seconds, what))
        time.sleep(0.02)


def prompts(n):
    """Letters with nothing in common at the beginning: the handbook from another place each time."""
    with open("share/demo/handbook.txt", encoding="utf-8") as f:
        words = f.read().split()
    size = PROMPT_BLOCKS * BLOCK + BLOCK // 2
    return [("%d: %s" % (i, " ".join(words[at:] + words)))[:size]
            for i, at in enumerate(len(words) * i // n for i in range(n))]


class Daemon:
    """A pool with room for about half of the prompts."""

    def __init__(self, build, folder, n, device):
        self.build, self.folder, self.socket = build, folder, os.path.join(folder, "kvpool.sock")
        blocks = n * PROMPT_BLOCKS
        share = blocks * BLOCK_BYTES // 2 + (6 << 20)
        self.config = {"memory": share + (16 << 20), "user": "", "trust_daemon_uid": True, "mlock": "never", "extent": "1MiB",
                       "defaults": {"share": share, "max_blocks": 2 * blocks, "recipe_blocks": 4 * blocks}}
        if device:
            self.config["devices"] = [{"name": "device", "driver": "host", "segment": "1MiB",
                                       "bytes": max(blocks * BLOCK_BYTES // 4 >> 20, 4) << 20,
                                       "worker": os.path.abspath(build + "/daemon/device/kvpool-device")}]

    def __enter__(self):
        config = os.path.join(self.folder, "kvpoold.json")
        with open(config, "w", encoding="utf-8") as f:
            json.dump(self.config, f)
        with open(os.path.join(self.folder, "log"), "wb") as log:
            self.process = subprocess.Popen([self.build + "/daemon/kvpoold", "--foreground", "--config", config,
                                             "--runtime-dir", self.folder], stdout=log, stderr=log)
        atexit.register(self.process.kill)
        wait_for("kvpoold", lambda: os.path.exists(self.socket) or self.process.poll() is not None)
        if self.process.poll() is not None:
            with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as log:
                fail("kvpoold ended; its log:\n" + log.read())
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def status(self):
        return json.loads(subprocess.run([self.build + "/tools/kvctl/kvctl", "--socket", self.socket, "--json", "status"],
                                         check=True, stdout=subprocess.PIPE, timeout=60).stdout)


def run(build, where, texts, *more):
    """An engine in a process of its own: an answer for each prompt, and the logits of each first new token."""
    with tempfile.NamedTemporaryFile() as logits:
        r = subprocess.run([build + "/tools/kvrun/kvrun", "--model", MODEL, "--lines", "--steps", "1", "--json",
                            "--kvpool", where, "--logits", logits.name, *more],
                           input="\n".join(texts) + "\n", stdout=subprocess.PIPE, text=True, timeout=600, check=True)
        rows = array.array("f")
        rows.frombytes(logits.read())
    answers = [json.loads(line) for line in r.stdout.splitlines()]
    if len(answers) != len(texts) or len(rows) % len(answers):
        fail("an engine answered %d of %d prompts" % (len(answers), len(texts)))
    vocab = len(rows) // len(answers)
    for i, a in enumerate(answers):
        a["log_probs"] = log_probs(rows[i * vocab:(i + 1) * vocab])
    return answers


def log_probs(logits):
    most = max(logits)
    total = most + math.log(sum(math.exp(x - most) for x in logits))
    return [x - total for x in logits]


def divergence(p, q):
    return sum(math.exp(x) * (x - y) for x, y in zip(p, q))


class Provider:
    """A kvrun that computes for others what was evicted."""

    def __init__(self, daemon, wanted):
        self.process = None
        if wanted:
            self.process = subprocess.Popen([daemon.build + "/tools/kvrun/kvrun", "--model", MODEL, "--serve-remat",
                                             "always", "--json", "--kvpool", daemon.socket],
                                            stdout=subprocess.PIPE, text=True)
            atexit.register(self.process.kill)
            wait_for("an offer to compute", lambda: daemon.status()["remat"]["offers"])

    def end(self):
        """Tokens that it computed."""
        if not self.process:
            return 0
        self.process.send_signal(signal.SIGTERM)
        return sum(json.loads(line)["computed"] for line in self.process.communicate()[0].splitlines())


def engine(build, name, floor, texts, off, device=False, provider=False):
    floors = ("--floor", floor) if floor else ()
    with tempfile.TemporaryDirectory() as folder, Daemon(build, folder, len(texts), device) as daemon:
        run(build, daemon.socket, texts, *floors)
        others = Provider(daemon, provider)
        # Nothing is stored then, so that what is there at the beginning stays until its turn has come.
        again = run(build, daemon.socket, texts, "--no-store", *floors, *(("--device", "host") if device else ()),
                    *(("--want-ms", str(WANT_MS)) if provider else ()))
        recomputed = others.end()
    return row(name, floor, again, off, recomputed)


def row(name, floor, answers, off, recomputed=0):
    blocks = {k: sum(a.get("blocks", {}).get(k, 0) for a in answers) * BLOCK for k in ("read", "device", "coded")}
    return {
        "name": name, "floor": floor or "exact",
        "ttft_ms": round(statistics.median(a["ttft_ms"] for a in answers), 2),
        "vram_tokens": blocks["device"],
        "native_tokens": blocks["read"] - blocks["device"] - recomputed,
        "coded_tokens": blocks["coded"],
        "recomputed_tokens": recomputed,
        "computed_tokens": sum(a["computed_tokens"] for a in answers),
        "identical": all(a["logits_xxh3"] == o["logits_xxh3"] for a, o in zip(answers, off)),
        "mean_kl": max(0., round(statistics.fmean(divergence(o["log_probs"], a["log_probs"])
                                                  for a, o in zip(answers, off)), 6)),
    }


def good(rows, total, whole):
    """Each row adds up, and what was not coded is the bits of an engine without kvpool; `whole`: and each is something else."""
    kinds = ("vram_tokens", "native_tokens", "coded_tokens", "recomputed_tokens", "computed_tokens")
    by = {r["name"]: r for r in rows}
    right = (all(sum(r[k] for k in kinds) == total and min(r[k] for k in kinds) >= 0 for r in rows)
             and all(r["identical"] or r["coded_tokens"] and r["mean_kl"] < KL_MOST for r in rows))
    return right and (not whole or by["vram"]["vram_tokens"] and by["recomputed"]["recomputed_tokens"]
                      and by["tq4"]["coded_tokens"] and by["tq2"]["coded_tokens"])


def report(rows, n, total):
    print("\n%d prompts, %d tokens, in a pool with room for about half of them; a second process reads them again.\n"
          % (n, total))
    print("%-11s %-6s %8s  %-39s %9s  %-9s %8s" % ("engine", "floor", "TTFT ms", "of 100 tokens: VRAM native coded remat",
                                                    "computed", "identical", "mean KL"))
    for r in rows:
        share = [100 * r[k + "_tokens"] / total for k in ("vram", "native", "coded", "recomputed", "computed")]
        print("%-11s %-6s %8.1f  %19.0f %6.0f %5.0f %5.0f %10.0f  %-9s %8.5f" %
              (r["name"], r["floor"], r["ttft_ms"], *share, "yes" if r["identical"] else "no", r["mean_kl"]))
    print("\nTTFT: median of all prompts. KL: nats, of the first new token, from an engine without kvpool.")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build", nargs="?", default="build")
    p.add_argument("--json", action="store_true")
    p.add_argument("--prompts", type=int, default=PROMPTS)
    a = p.parse_args()
    texts = prompts(a.prompts)
    step("off: %d prompts without kvpool, to compare with" % len(texts))
    off = run(a.build, "off", texts)
    rows = [row("off", None, off, off)]
    for name, floor, more in ROWS:
        step("%s: stored, and read by another process" % name)
        rows.append(engine(a.build, name, floor, texts, off, **more))
    total = sum(o["prompt_tokens"] for o in off)
    if a.json:
        print(json.dumps({"engines": rows}))
    else:
        report(rows, len(texts), total)
    return 0 if good(rows, total, len(texts) >= PROMPTS) else 1


sys.exit(main())
