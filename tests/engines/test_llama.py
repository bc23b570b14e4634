#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/llama: kvllama processes beside a real kvpoold, with caches of f16, q8_0 and q4_0. Logits after
a hit are compared with those after another hit, and texts with those of llama.cpp without kvpool.
`test_llama.py table` prints times to the first token instead."""
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

from engine import MODEL, hit, needs, prompt
from harness import SKIP

needs("gguf", "safetensors", "cffi")
if not os.environ.get("KVLLAMA"):
    print("skipped: meson has found no llama.cpp; tools/check --engines builds one")
    sys.exit(SKIP)

# pylint: disable=wrong-import-position
import gguf_model
from harness import Daemon, wait_for

import kvpool

STEPS = 16
B = 32  # tokens in a block, unless said otherwise

folder = None


def setUpModule():
    global folder  # pylint: disable=global-statement
    folder = tempfile.mkdtemp(prefix="kvllama-")
    gguf_model.write(MODEL, os.path.join(folder, "bytes-4m.gguf"))


def tearDownModule():
    shutil.rmtree(folder)


class Server:
    """A kvllama on its standard input."""

    def __init__(self, at, kind="f16", *more):
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(
            [os.environ["KVLLAMA"], "--model", os.path.join(folder, "bytes-4m.gguf"), "--kvpool", at,
             "--type-k", kind, "--type-v", kind, *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, ids, steps=STEPS):
        self.process.stdin.write("%d %s\n" % (steps, " ".join(map(str, ids))))
        self.process.stdin.flush()

    def answer(self):
        words = self.process.stdout.readline().split()
        assert words and words[0] == "ok", words
        return {"hit": int(words[1]), "stored": int(words[2]), "ms": int(words[3]) / 1e3,
                "logits": words[4], "text": [int(w) for w in words[5:]]}

    def ask(self, ids, steps=STEPS):
        self.send(ids, steps)
        return self.answer()

    def end(self):
        """Ends, with all that it stored visible or refused."""
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()
        for f in (self.process.stdin, self.process.stdout):
            f.close()


class Engines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prompts = [prompt(i) for i in range(3)] + [prompt(0)[:1300] + prompt(4, 400)]
        with Server("off") as off:
            cls.texts = [off.ask(p)["text"] for p in cls.prompts]
            off.end()

    def check(self, daemon):
        def clean():
            r = subprocess.run([os.environ["KVCTL"], "--socket", daemon.socket, "check"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                               check=False)
            return r.returncode == 0 or print(r.stdout)
        wait_for(clean)

    def one_ends_another_begins(self, kind):
        with Daemon({"memory": "512MiB"}) as daemon:
            with Server("off", kind) as off:
                texts = [off.ask(p)["text"] for p in self.prompts]
                off.end()
            with Server(daemon.socket, kind) as a:
                for p, text in zip(self.prompts[:3], texts):
                    cold = a.ask(p)
                    self.assertEqual((cold["hit"], cold["stored"], cold["text"]),
                                     (0, (len(p) + STEPS - 1) // B * B, text))
                warm = [a.ask(p) for p in self.prompts[:3]]
                a.end()
            with Server(daemon.socket, kind) as b:
                for p, before in zip(self.prompts, warm):
                    again = b.ask(p)
                    self.assertEqual(again["hit"], hit(len(p), B))
                    self.assertEqual((again["text"], again["logits"]),
                                     (before["text"], before["logits"]))
                branch = b.ask(self.prompts[3])
                self.assertEqual(branch["hit"], 1300 // B * B)
                b.end()
            self.check(daemon)
            return texts, [w["text"] for w in warm] + [branch["text"]]

    def test_f16(self):
        cold, warm = self.one_ends_another_begins("f16")
        self.assertEqual(cold, self.texts)
        self.assertEqual(warm, cold)

    def test_opaque_rows(self):
        """What quantised keys are after a hit is what they were before: blocks are copied, not made
        again. Texts after one may differ from cold ones where the last bits decide."""
        for kind in ("q8_0", "q4_0"):
            with self.subTest(kind):
                self.one_ends_another_begins(kind)

    def test_kinds_do_not_mix(self):
        with Daemon({"memory": "512MiB"}) as daemon:
            for kind in ("f16", "bf16", "q8_0", "q4_0"):
                with Server(daemon.socket, kind) as a:
                    self.assertEqual(a.ask(self.prompts[0])["hit"], 0, kind)
                    a.end()
            with Server(daemon.socket, "f16", "--name", "another") as a:
                self.assertEqual(a.ask(self.prompts[0])["hit"], 0)

    def test_killed_while_it_stores(self):
        for kind, delay in (("f16", .004), ("q8_0", .009)):
            with Daemon({"memory": "512MiB"}) as daemon:
                with Server(daemon.socket, kind) as a, kvpool.Client(daemon.socket) as client:
                    a.ask(prompt(20, 400))
                    before = client.stats()["blocks"]
                    for i in range(12):
                        a.send([257, i] + prompt(21, 700), 1)
                    wait_for(lambda c=client, n=before: c.stats()["blocks"] > n + 30)
                    time.sleep(delay)
                    a.kill()
                self.check(daemon)
                with Server(daemon.socket, kind) as b:
                    self.assertEqual(b.ask(prompt(20, 400))["hit"], hit(400, B))
                    b.end()

    def test_daemon_killed_and_restarted(self):
        for kind in ("f16", "q8_0"):
            with Daemon({"memory": "512MiB"}) as daemon:
                with Server("off", kind) as off:
                    texts = [off.ask(p)["text"] for p in self.prompts]
                with Server(daemon.socket, kind) as a:
                    self.assertEqual(a.ask(self.prompts[0])["text"], texts[0])
                    for i in (1, 2, 1):
                        a.send(self.prompts[i])
                        time.sleep(.05 * i)
                        daemon.kill()
                        self.assertEqual(a.answer()["text"], texts[i])
                        a.send(self.prompts[i])
                        time.sleep(.03 * i)
                        daemon.start()
                        self.assertEqual(a.answer()["text"], texts[i])
                    wait_for(lambda: a.ask(self.prompts[0])["hit"] == hit(1900, B))
                    a.end()
                self.check(daemon)

    def test_daemon_absent(self):
        with Server("/nonexistent/kvpool.sock") as a:
            alone = a.ask(self.prompts[0])
            self.assertEqual((alone["hit"], alone["stored"], alone["text"]), (0, 0, self.texts[0]))
            a.end()

    def test_daemon_stopped(self):
        with Daemon({"memory": "512MiB"}) as daemon:
            with Server(daemon.socket) as a:
                a.ask(self.prompts[0])
                os.kill(daemon.pid, signal.SIGSTOP)
                try:
                    for i in (0, 1):
                        self.assertEqual(a.ask(self.prompts[i])["text"], self.texts[i])
                finally:
                    os.kill(daemon.pid, signal.SIGCONT)
                wait_for(lambda: a.ask(self.prompts[1])["hit"] == hit(1900, B))
                a.end()
            self.check(daemon)

    def test_connections(self):
        """Two at once on a Unix socket, one of which sends its request in pieces; wrong requests."""
        path = os.path.join(folder, "kvllama.sock")
        with Server("off", "f16", "--listen", path) as a:
            wait_for(lambda: os.path.exists(path))
            with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
                wait_for(lambda: one.connect_ex(path) in (0, 106))
                other.connect(path)
                short = prompt(0, 50)
                line = ("3 " + " ".join(map(str, short)) + "\n").encode()
                one.sendall(line[:20])
                other.sendall(line)
                answers = [other.makefile().readline()]
                one.sendall(line[20:])
                answers.append(one.makefile().readline())
                for a_line in answers:
                    self.assertEqual(a_line.split()[0], "ok")
                self.assertEqual(*[a_line.split()[5:] for a_line in answers])
                with one.makefile() as f:
                    for wrong in ("\n", "3\n", "0 1\n", "3 1 x\n", "3 -1\n", "3 258\n", "3000 1\n",
                                  "1 " + "7 " * 2100 + "\n"):
                        one.sendall(wrong.encode())
                        self.assertEqual(f.readline().split()[0], "error", wrong)
                    one.sendall(line)
                    self.assertEqual(f.readline().split()[0], "ok")
            a.kill()


def table():
    """Medians of five prompts of 1,900 tokens on one thread, five times; both engines take turns."""
    setUpModule()
    prompts = [prompt(40 + i) for i in range(5)]
    print("cache  tokens a block  without kvpool  blocks of a dead process  reused of 1900  ratio")
    for kind, block in (("f16", 16), ("f16", 32), ("f16", 64), ("q8_0", 32), ("q4_0", 32)):
        more = ("--block-tokens", str(block))
        with Daemon({"memory": "512MiB"}) as daemon:
            with Server(daemon.socket, kind, *more) as first:
                for p in prompts:
                    first.ask(p, 1)
                first.end()
            with Server("off", kind) as off, Server(daemon.socket, kind, *more) as on:
                off.ask(prompts[0], 1)
                on.ask(prompts[0], 1)
                done = [(off.ask(p, 1), on.ask(p, 1)) for p in prompts * 5]
                off.end()
                on.end()
        cold, warm = (statistics.median(d[i]["ms"] for d in done) for i in (0, 1))
        print("%-5s %15d %12.1f ms %22.1f ms %15d %6.1f" %
              (kind, block, cold, warm, min(d[1]["hit"] for d in done),
               statistics.median(d[0]["ms"] / d[1]["ms"] for d in done)), flush=True)
    tearDownModule()


if __name__ == "__main__":
    if sys.argv[1:2] == ["table"]:
        table()
    else:
        unittest.main()
