# SPDX-License-Identifier: Apache-2.0
"""SIGHUP and restart while real clients of several users are attached: $KVPOOLD, $KVCTL,
$KVCTL_CLIENT (stores blocks, leases them, and waits)."""
import json
import os
import shutil
import subprocess
import sys
import unittest

from harness import Daemon, needs_root, popen_as, wait_for

KVCTL = os.environ["KVCTL"]
BLOCKS = 5


class Reload(unittest.TestCase):
    def setUp(self):
        self.d = Daemon({"unlisted_uids": "false", "defaults": {"share": "32MiB"}, "tenants": [
            {"name": "team", "uids": [1001, 1002]}, {"name": "other", "uids": [1003]}]}).start()
        self.addCleanup(lambda: self.d.__exit__(None, None, None))
        self.program = os.path.join(self.d.dir, "client")
        shutil.copy(os.environ["KVCTL_CLIENT"], self.program)
        os.chmod(self.program, 0o755)

    def client(self, uid, blocks=BLOCKS):
        p = popen_as(uid, [self.program, str(blocks)], stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                     env={"KVPOOL_SOCKET": self.d.socket})
        self.addCleanup(p.communicate)
        if p.stdout.readline() != "ready\n":
            return p.stderr.read()
        return p

    def ask(self, *args):
        r = subprocess.run([KVCTL, "--socket", self.d.socket, "--json", *args],
                           capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        return json.loads(r.stdout)

    def tenants(self):
        return {t["name"]: t for t in self.ask("tenants")["tenants"] if not t["abandoned"]}

    def pids(self):
        return {c["pid"] for c in self.ask("clients")["clients"]}

    def test_a_member_leaves(self):
        stays, goes, other = self.client(1001), self.client(1002), self.client(1003)
        team = self.tenants()["team"]
        # The second found what the first had stored; the third is alone.
        self.assertEqual((team["sessions"], team["blocks"]), (2, BLOCKS))
        self.assertEqual(self.tenants()["other"]["blocks"], BLOCKS)
        self.d.write_config({"tenants": [{"name": "team", "uids": [1001]},
                                         {"name": "other", "uids": [1003]}]})
        self.d.reload()
        # Who stays attaches again by himself, to an empty tenant; who left does not.
        wait_for(lambda: self.pids() == {stays.pid, other.pid})
        self.assertEqual((self.tenants()["team"]["blocks"], self.tenants()["team"]["commits_total"]),
                         (0, 0))
        self.assertEqual(self.tenants()["other"]["blocks"], BLOCKS)
        self.assertIn("Permission denied", self.client(1002))
        self.client(1001)
        self.assertEqual(self.tenants()["team"]["blocks"], BLOCKS)
        self.assertTrue(self.ask("check", "--payloads")["clean"])
        self.assertIsNone(goes.poll())

    def test_limits_count_at_once(self):
        a = self.client(1001)
        tenants = json.loads(json.dumps(self.d.config["tenants"]))
        tenants[0]["max_sessions"] = 1
        self.d.write_config({"tenants": tenants})
        self.d.reload()
        self.assertIn("Too many users", self.client(1002))
        self.assertEqual(self.pids(), {a.pid})
        self.assertTrue(self.ask("check")["clean"])

    def test_a_daemon_that_crashes(self):
        a, b = self.client(1001), self.client(1003)
        self.d.kill()
        self.d.start()
        wait_for(lambda: self.pids() == {a.pid, b.pid})
        self.assertEqual(self.tenants()["team"]["blocks"], 0)
        self.assertTrue(self.ask("check", "--payloads")["clean"])

    def test_the_long_way_to_a_pidfd(self):
        self.d.stop()
        self.d.write_config({"peer_pidfd": "never"})
        self.d.start()
        a = self.client(1001)
        self.assertEqual(self.pids(), {a.pid})
        a.kill()
        wait_for(lambda: self.pids() == set())
        self.assertTrue(self.ask("check")["clean"])


if __name__ == "__main__":
    needs_root()
    unittest.main()
