#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real engine processes on one daemon: test_engines.py KVPOOLD KVRUN SOURCE_ROOT

The main job end to end: reuse, identical text and logits, single flight, and the daemon killed while
engines run (rows E-003, E-020, E-025, E-045, E-050, E-053, E-054).
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

KVPOOLD, KVRUN, ROOT = sys.argv[1:4]
MODEL = os.path.join(ROOT, "share/models/bytes-4m")
STEPS = "24"
CONFIG = """
memory: 512MiB
user: ""
trust_daemon_uid: true
mlock: never
defaults:
  share: 256MiB
  max_blocks: 4096
"""


def text(*names):
    out = ""
    for name in names:
        with open(os.path.join(ROOT, "share/demo", name), encoding="utf-8") as f:
            out += f.read()
    return out


class Daemon:
    def __init__(self, folder):
        self.folder = folder
        self.config = os.path.join(folder, "kvpoold.yaml")
        self.socket = os.path.join(folder, "kvpool.sock")
        with open(self.config, "w", encoding="utf-8") as f:
            f.write(CONFIG)
        self.process = None

    def start(self):
        self.log = open(os.path.join(self.folder, "log"), "ab")
        self.process = subprocess.Popen(
            [KVPOOLD, "--foreground", "--config", self.config, "--runtime-dir", self.folder],
            stdout=self.log, stderr=self.log)
        import socket
        for _ in range(600):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                s.connect(self.socket)
                return
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError(open(os.path.join(self.folder, "log"), encoding="utf-8").read())
                time.sleep(0.05)
            finally:
                s.close()
        raise RuntimeError("kvpoold does not accept clients")

    def end(self, how=signal.SIGTERM):
        if self.process:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None
            self.log.close()


def engine(prompt, where, *more):
    """Starts one engine process; result() waits for it."""
    return subprocess.Popen([KVRUN, "--model", MODEL, "--prompt", prompt, "--steps", STEPS, "--kvpool",
                             where, "--json", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def result(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def run(prompt, where, *more):
    return result(engine(prompt, where, *more))


class Engines(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.chmod(self.folder.name, 0o755)
        self.daemon = Daemon(self.folder.name)
        self.daemon.start()
        self.a = text("handbook.txt", "letter-a.txt")
        self.b = text("handbook.txt", "letter-b.txt")

    def tearDown(self):
        self.daemon.end()
        self.folder.cleanup()

    def same(self, one, other):
        self.assertEqual(one["tokens"], other["tokens"])
        self.assertEqual(one["logits_xxh3"], other["logits_xxh3"])

    def test_share(self):
        off_a, off_b = run(self.a, "off"), run(self.b, "off")
        cold, warm = run(self.a, self.daemon.socket), run(self.a, self.daemon.socket)
        branch = run(self.b, self.daemon.socket)
        n = cold["prompt_tokens"]
        self.assertGreaterEqual(n, 1500)
        self.assertEqual(cold["reused_tokens"], 0)
        self.assertGreaterEqual(warm["reused_tokens"], n - 2 * warm["block_tokens"])
        self.assertGreaterEqual(branch["reused_tokens"], 1700)
        self.assertLess(branch["reused_tokens"], branch["prompt_tokens"])
        for e, reference in ((cold, off_a), (warm, off_a), (branch, off_b)):
            self.same(e, reference)

    def test_sampling_is_the_same_with_and_without(self):
        options = ("--temperature", "0.9", "--top-p", "0.95", "--seed", "7")
        off = run(self.a, "off", *options)
        run(self.a, self.daemon.socket, *options)
        self.same(run(self.a, self.daemon.socket, *options), off)

    def test_no_store(self):
        run(self.a, self.daemon.socket, "--no-store")
        self.assertEqual(run(self.a, self.daemon.socket)["reused_tokens"], 0)

    def test_single_flight(self):
        """Four engines at once with one prompt compute it about once."""
        off = run(self.a, "off")
        started = [engine(self.a, self.daemon.socket) for _ in range(4)]
        done = [result(p) for p in started]
        for e in done:
            self.same(e, off)
        computed = sum(e["computed_tokens"] for e in done)
        self.assertLess(computed, 2 * off["prompt_tokens"], [e["computed_tokens"] for e in done])

    def test_daemon_killed_while_engines_run(self):
        prompts = [self.a.replace("\n", " ")[:1600], self.b.replace("\n", " ")[200:1800]]
        off = [run(p, "off") for p in prompts]
        e = subprocess.Popen([KVRUN, "--model", MODEL, "--lines", "--steps", STEPS, "--kvpool",
                              self.daemon.socket, "--json"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        def ask(i):
            e.stdin.write(prompts[i].encode() + b"\n")
            e.stdin.flush()
            line = e.stdout.readline()
            self.assertTrue(line, "the engine ended")
            return json.loads(line)

        self.same(ask(0), off[0])
        self.daemon.end(signal.SIGKILL)
        self.same(ask(0), off[0])
        self.same(ask(1), off[1])
        # Killed in the middle of a request, too.
        self.daemon.start()
        for _ in range(100):
            last = ask(1)
            self.same(last, off[1])
            if last["reused_tokens"] > 1000:
                break
            time.sleep(0.1)
        self.assertGreater(last["reused_tokens"], 1000, "the engine did not join the new daemon")
        e.stdin.write(prompts[0].encode() + b"\n")
        e.stdin.flush()
        time.sleep(0.01)
        self.daemon.end(signal.SIGKILL)
        self.same(json.loads(e.stdout.readline()), off[0])
        e.stdin.close()
        self.assertEqual(e.wait(60), 0)
        e.stdout.close()
        e.stderr.close()
        self.daemon.start()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
