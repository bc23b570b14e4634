# SPDX-License-Identifier: Apache-2.0
"""kvctl against a real daemon with a real client: $KVPOOLD, $KVCTL, $KVCTL_CLIENT."""
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import Daemon, others_may_run, wait_for  # noqa: E402

KVCTL, CLIENT = os.environ["KVCTL"], os.environ["KVCTL_CLIENT"]
BLOCKS = 6


class WithoutDaemon(unittest.TestCase):
    def run_kvctl(self, *args):
        return subprocess.run([KVCTL, *args], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, KVPOOL_SOCKET="/nonexistent/kvpool.sock"))

    def test_nobody_to_ask(self):
        for verb in ("status", "clients", "spaces", "tenants", "blocks", "drain", "check"):
            r = self.run_kvctl(verb)
            self.assertEqual(r.returncode, 3, verb)
            self.assertIn("/nonexistent/kvpool.sock: no kvpoold listens there", r.stderr)

    def test_wrong_use(self):
        for args in ([], ["what"], ["--timeout", "x", "status"], ["--timeout", "0", "status"],
                     ["blocks", "--limit", "-1"], ["blocks", "--sort", "colour"],
                     ["blocks", "--state", "dead"], ["blocks", "--count", "3"], ["inspect"],
                     ["evict"], ["evict", "abc", "--all"], ["status", "--watch=0"],
                     ["clients", "extra"], ["doctor", "me"]):
            r = self.run_kvctl(*args)
            self.assertEqual(r.returncode, 2, args)
            self.assertTrue(r.stderr, args)

    def test_version_and_doctor_work_alone(self):
        r = self.run_kvctl("version", "--json")
        self.assertEqual(r.returncode, 0)
        self.assertIsNone(json.loads(r.stdout)["kvpoold"])
        r = self.run_kvctl("doctor", "--json")
        found = json.loads(r.stdout)
        self.assertEqual(r.returncode, 0 if found["healthy"] else 1)
        topics = {f["topic"] for f in found["findings"]}
        for topic in ("kernel", "seals", "huge pages", "memlock", "NUMA", "same uid", "GPU"):
            self.assertIn(topic, topics)
        for f in found["findings"]:
            self.assertIn(f["finding"], ("good", "note", "problem"))

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            for args in (["--help"], ["--version"], ["version"]):
                r = subprocess.run([KVCTL, *args], stdout=full, stderr=subprocess.PIPE, timeout=60)
                self.assertEqual(r.returncode, 1, args)
                self.assertIn(b"cannot write", r.stderr)

    def test_help(self):
        r = self.run_kvctl("--help")
        self.assertEqual(r.returncode, 0)
        self.assertIn("Exit status", r.stdout)


class WithDaemon(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon().start()
        cls.addClassCleanup(lambda: cls.d.__exit__(None, None, None))
        cls.client = subprocess.Popen([CLIENT, str(BLOCKS)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True,
                                      env=dict(os.environ, KVPOOL_SOCKET=cls.d.socket))
        cls.addClassCleanup(cls.client.communicate)
        assert cls.client.stdout.readline() == "ready\n"

    def kvctl(self, *args, status=0):
        r = subprocess.run([KVCTL, "--socket", self.d.socket, *args], capture_output=True,
                           text=True, timeout=60)
        self.assertEqual(r.returncode, status, (args, r.stdout, r.stderr))
        return r.stdout

    def json(self, *args, status=0):
        return json.loads(self.kvctl("--json", *args, status=status))

    def test_lists(self):
        c = self.json("clients")["clients"]
        self.assertEqual([(x["name"], x["pid"], x["leases"]) for x in c],
                         [("watched", self.client.pid, 1)])
        s = self.json("spaces")["spaces"]
        self.assertEqual((s[0]["model"], s[0]["block_tokens"], s[0]["opens"]),
                         ("kvctl-test", 16, 1))
        t = self.json("tenants")["tenants"]
        self.assertEqual((t[0]["blocks"], t[0]["commits"]), (BLOCKS, BLOCKS))
        self.assertEqual(self.json("status")["blocks"], BLOCKS)
        for verb in ("clients", "spaces", "tenants", "blocks", "status"):
            self.assertIn("TENANT", self.kvctl(verb))

    def test_blocks(self):
        all_blocks = self.json("blocks", "--sort", "depth")
        self.assertEqual([b["depth"] for b in all_blocks["blocks"]],
                         list(range(BLOCKS - 1, -1, -1)))
        self.assertEqual(len(self.json("blocks", "--limit", "2")["blocks"]), 2)
        self.assertEqual(self.json("blocks", "--state", "recipe")["blocks"], [])
        self.assertEqual(len(self.json("blocks", "--space", "0")["blocks"]), BLOCKS)
        self.assertEqual(self.json("blocks", "--space", "9")["blocks"], [])
        self.assertIn("no tenant", self.json("blocks", "--tenant", "x", status=1)["error"])

    def test_one_block(self):
        first, tip = (self.json("blocks", "--sort", "depth")["blocks"][i] for i in (-1, 0))
        seen = self.json("inspect", tip["key"])["block"]
        self.assertTrue(seen["leased"])
        self.assertEqual(seen["token_ids"], list(range(81, 97)))
        self.assertEqual(seen["ancestors"][-1], first["key"])
        self.assertIn("token_ids", self.kvctl("inspect", tip["key"][:16]))
        self.assertTrue(self.json("pin", first["key"])["block"]["pinned"])
        self.assertEqual([b["key"] for b in self.json("blocks", "--pinned")["blocks"]],
                         [first["key"]])
        self.assertFalse(self.json("unpin", first["key"])["block"]["pinned"])
        self.assertIn("leased", self.json("evict", tip["key"], status=1)["error"])
        self.json("inspect", "0" * 32, status=1)

    def test_all_is_leased(self):
        self.assertEqual(self.json("drain")["in_use"], BLOCKS)
        self.assertEqual(self.json("evict", "--all")["evicted"], 0)

    def test_check(self):
        self.assertTrue(self.json("check", "--payloads")["clean"])
        self.assertIn("clean: %d blocks" % BLOCKS, self.kvctl("check"))

    def test_watch(self):
        text = self.kvctl("status", "--watch=0.1", "--count", "2")
        self.assertEqual(text.count("kvpoold "), 2)
        self.assertEqual(text.count("rates "), 1)
        self.assertIn("watched", text)
        lines = self.kvctl("status", "--watch=0.1", "--count=2", "--json").splitlines()
        self.assertEqual([json.loads(x)["blocks"] for x in lines], [BLOCKS] * 2)

    def test_doctor_knows_the_daemon(self):
        found = json.loads(subprocess.run(
            [KVCTL, "--socket", self.d.socket, "doctor", "--json"], capture_output=True,
            text=True, timeout=60).stdout)
        text = {f["topic"]: f["text"] for f in found["findings"]}
        self.assertIn("process %d" % self.d.pid, text["daemon"])

    def test_not_an_administrator(self):
        if os.geteuid() != 0 or not others_may_run(KVCTL):
            self.skipTest("needs root, and a build folder that others may enter")
        r = subprocess.run([KVCTL, "--socket", self.d.socket, "status"], user=1001, group=1001,
                           extra_groups=[], capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 3, r.stderr)
        self.assertIn("admin_group", r.stderr)


class Draining(unittest.TestCase):
    def test_room_is_given_back(self):
        with Daemon() as d:
            env = dict(os.environ, KVPOOL_SOCKET=d.socket)
            c = subprocess.run([CLIENT, "9"], stdin=subprocess.DEVNULL, env=env, timeout=60,
                               capture_output=True, text=True)
            self.assertEqual(c.returncode, 0, c.stderr)

            def ask(*args):
                r = subprocess.run([KVCTL, "--json", *args], env=env, capture_output=True,
                                   text=True, timeout=60)
                self.assertEqual(r.returncode, 0, r.stderr)
                return json.loads(r.stdout)
            wait_for(lambda: ask("clients")["clients"] == [])
            # The dead client's arena drains: a block that is being moved stays for a moment.
            gone = []
            wait_for(lambda: gone.append(ask("evict", "--count", str(2 - sum(gone)))["evicted"])
                     or sum(gone) == 2)
            wait_for(lambda: ask("drain")["in_use"] == 0)
            self.assertEqual(ask("status")["blocks"], 0)
            self.assertTrue(ask("check")["clean"])


if __name__ == "__main__":
    unittest.main()
