# SPDX-License-Identifier: Apache-2.0
"""kvrun computes for others what was evicted: $KVPOOLD, $KVRUN, $KVCTL, $ROOT. Rows A-043, D-045."""
import json
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Daemon, wait_for  # noqa: E402

KVRUN, KVCTL, ROOT = os.environ["KVRUN"], os.environ["KVCTL"], os.environ["ROOT"]
MODEL = os.path.join(ROOT, "share/models/bytes-4m")
T = 64
NOBODY = os.strerror(19)  # ENODEV


def text(name):
    with open(os.path.join(ROOT, "share/demo", name), encoding="utf-8") as f:
        return f.read()


A, B = (text("handbook.txt")[:200] + text(name)[:200] for name in ("letter-a.txt", "letter-b.txt"))


class Remat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Uninterrupted, and with nothing cached.
        cls.plain = {p: cls.run_kvrun(p, "off") for p in (A, B)}

    def setUp(self):
        self.d = Daemon({"defaults": {"max_blocks": 1024, "recipe_blocks": 1024}})
        self.d.start()
        self.addCleanup(lambda: self.d.__exit__(None, None, None))
        self.providers = []
        self.addCleanup(self.end_providers)

    def end_providers(self):
        for p in self.providers:
            p.kill()
            p.wait(60)

    @staticmethod
    def run_kvrun(prompt, where, *more):
        r = subprocess.run([KVRUN, "--model", MODEL, "--prompt", prompt, "--steps", "16", "--kvpool",
                            where, "--json", *more], capture_output=True, timeout=120)
        assert r.returncode == 0, r.stderr.decode()
        return json.loads(r.stdout)

    def run_here(self, prompt, *more):
        """Whatever it found, its logits are those of an engine that was alone."""
        r = self.run_kvrun(prompt, self.d.socket, *more)
        self.assertEqual((r["tokens"], r["logits_xxh3"]),
                         (self.plain[prompt]["tokens"], self.plain[prompt]["logits_xxh3"]))
        return r

    def stored(self, prompt):
        def whole():
            r = self.run_here(prompt)
            return r["reused_tokens"] // T == (r["prompt_tokens"] - 1) // T
        wait_for(whole)

    def provider(self, how="always"):
        p = subprocess.Popen([KVRUN, "--model", MODEL, "--serve-remat", how, "--kvpool", self.d.socket,
                              "--json"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(p.stdout.close)
        self.providers.append(p)
        return p

    def kvctl(self, *args):
        r = subprocess.run([KVCTL, "--socket", self.d.socket, "--json", *args], capture_output=True,
                           timeout=60)
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout)

    def remat(self):
        return self.kvctl("status")["remat"]

    def forget_all(self):
        """All that is cached becomes token ids."""
        wait_for(lambda: self.kvctl("evict", "--all") and self.kvctl("status")["blocks"] == 0)
        self.assertGreater(self.kvctl("status")["recipes"], 0)

    def test_the_same_bits(self):
        self.stored(A)
        self.forget_all()
        r = self.run_here(A, "--want-ms", "60000")
        self.assertEqual((r["reused_tokens"], r["wanted"]["outcome"]), (0, NOBODY))
        self.forget_all()
        p = self.provider()
        wait_for(lambda: self.remat()["offers"] == 1)
        r = self.run_here(A, "--want-ms", "60000")
        self.assertEqual(r["wanted"]["outcome"], "cached")
        self.assertEqual(r["reused_tokens"] // T, (r["prompt_tokens"] - 1) // T)
        done = json.loads(p.stdout.readline())
        self.assertEqual((done["first"], done["tokens"] // T), (0, r["wanted"]["blocks"]))
        self.assertEqual(done["computed"], done["tokens"])
        # Only the letter is missing: the handbook has come back with the other prompt.
        self.forget_all()
        self.run_here(B)
        common = len(os.path.commonprefix([A.encode(), B.encode()])) + 1  # after the BOS
        r = self.run_here(A, "--want-ms", "60000")
        self.assertEqual(r["wanted"]["outcome"], "cached")
        done = json.loads(p.stdout.readline())
        self.assertEqual((done["first"], done["tokens"] // T), (common // T * T, r["wanted"]["blocks"]))
        f = self.remat()
        self.assertEqual((f["asked_total"], f["met_total"], f["late_total"]), (2, 2, 0))
        self.assertGreater(f["token_seconds"], 0)
        p.terminate()
        self.assertEqual(p.wait(60), 0)
        wait_for(lambda: self.remat()["offers"] == 0)

    def test_a_provider_that_is_killed(self):
        self.stored(A)
        self.forget_all()
        p = self.provider("idle")
        wait_for(lambda: self.remat()["offers"] == 1)
        p.send_signal(signal.SIGSTOP)
        # It is asked, and does nothing: the reader waits as long as the provider had said, and no longer.
        late = self.run_here(A, "--want-ms", "60000")
        self.assertNotEqual(late["wanted"]["outcome"], "cached")
        p.kill()
        p.wait(60)
        wait_for(lambda: self.remat()["offers"] == 0)
        self.assertEqual(self.remat()["met_total"], 0)
        self.forget_all()
        self.provider()
        wait_for(lambda: self.remat()["offers"] == 1)
        self.assertEqual(self.run_here(A, "--want-ms", "60000")["wanted"]["outcome"], "cached")

    def test_command_line(self):
        for wrong, says in (((), b"nothing to run"),
                            (("--serve-remat", "never"), b"always or idle"),
                            (("--serve-remat", "idle", "--kvpool", "off"), b"publishes"),
                            (("--serve-remat", "idle", "--no-store"), b"publishes"),
                            (("--prompt", "x", "--want-ms", "0"), b"1..3600000"),
                            (("--prompt", "x", "--want-ms", "9", "--kvpool", "off"), b"leave out")):
            r = subprocess.run([KVRUN, "--model", MODEL, *wrong], capture_output=True, timeout=60)
            self.assertEqual(r.returncode, 2, wrong)
            self.assertIn(says, r.stderr.replace(b"leave \nout", b"leave out"))


if __name__ == "__main__":
    unittest.main()
