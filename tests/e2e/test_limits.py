# SPDX-License-Identifier: Apache-2.0
"""Limits that cannot be are refused, with the least that can, by --check-config, by the start and by a
reload alike; the least that can be works: $KVPOOLD, $KVCTL, $FILL (fill.c)."""
import os
import re
import resource
import shutil
import subprocess
import unittest

from fill import MIB, Filler, ask
from harness import Daemon, wait_for

SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    return int(text[:-3]) * SIZES[text[-3:]]


def least_of(text):
    return re.search(r"at least (\d+[KMG]iB) is needed", text).group(1)


def check(d):
    """What --check-config says of the daemon's configuration: (status, text)."""
    r = subprocess.run([d.program, "--check-config", "--config", d.config_file],
                       capture_output=True, text=True, timeout=60, check=False)
    return r.returncode, r.stdout + r.stderr


def complaint(text):
    """A message without its time."""
    return [line.split(" error: ", 1)[1] for line in text.splitlines() if " error: " in line][-1]


class Limits(unittest.TestCase):
    # Each is refused with this in the message.
    IMPOSSIBLE = [
        ({"defaults": {"share": "4MiB"}}, "defaults.share: 4MiB is too little"),
        ({"memory": "16MiB", "defaults": {"max_blocks": 100000}}, "a quarter of `memory`"),
        ({"memory": "64TiB"}, "is more than there is"),
        ({"user": "no-such-user-here"}, "user: there is no user 'no-such-user-here'"),
        ({"admin_group": "no-such-group"}, "admin_group: there is no group 'no-such-group'"),
        ({"numa_node": "1000"}, "numa_node: "),
        ({"tenants": [{"name": "a", "uids": [1], "share": "64MiB", "max_blocks": 1000000}]},
         "tenants.0.share: 64MiB is too little"),
        ({"tenants": [{"name": "a", "uids": [1], "share": "200MiB"},
                      {"name": "b", "uids": [2], "share": "200MiB"}]}, "more than memory"),
        ({"tenants": [{"name": "a", "uids": ["no-such-user-here"]}]}, "there is no user"),
        ({"memory": ["256MiB"]}, "memory: is a list; a size, e.g. 512MiB is wanted"),
    ]

    def test_the_table_of_descriptors_has_room_from_the_start(self):
        """Who enlarges it in a process with threads waits for RCU; on a busy machine for seconds."""
        with Daemon({"memory": "64MiB"}) as d:
            with open("/proc/%d/status" % d.pid, encoding="ascii") as f:
                room = int(re.search(r"^FDSize:\s+(\d+)$", f.read(), re.M).group(1))
            with open("/proc/%d/limits" % d.pid, encoding="ascii") as f:
                limit = int(re.search(r"^Max open files\s+(\d+)", f.read(), re.M).group(1))
        self.assertGreaterEqual(room, min(limit, 262144))

    @staticmethod
    def classes(pid):
        """The scheduling class of each thread of a process, by the thread's name."""
        found = {}
        for tid in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/comm" % (pid, tid), encoding="ascii") as f:
                found[f.read().strip()] = os.sched_getscheduler(int(tid))
        return found

    def ledger(self, pid):
        return self.classes(pid)["kvpool-ledger"] & ~os.SCHED_RESET_ON_FORK

    def test_the_ledger_alone_is_of_the_real_time_class(self):
        """Where it is asked for; where it is not allowed the daemon says so and serves."""
        limit = resource.getrlimit(resource.RLIMIT_RTPRIO)
        for realtime in "auto", False, True:
            with Daemon({"memory": "64MiB", "realtime": realtime}) as d, Filler(d, 1) as f:
                self.assertEqual(f.put(0, 8), [8, 8])
                refused = "stays in the ordinary class" in d.log()
                # A slow start may have used up for a moment what it may have in that class.
                if realtime is True and not refused:
                    wait_for(lambda: ask(d, "status") and self.ledger(d.pid) == os.SCHED_RR)
                elif realtime == "auto":  # as it has to wait for processors here
                    self.assertIn(self.ledger(d.pid), [os.SCHED_RR, os.SCHED_OTHER])
                else:
                    self.assertEqual(self.ledger(d.pid), os.SCHED_OTHER)
                others = {name: c for name, c in self.classes(d.pid).items() if name != "kvpool-ledger"}
                self.assertFalse({os.SCHED_RR, os.SCHED_FIFO} & set(others.values()), others)
                self.assertFalse(refused and (realtime is False or limit[0] > 0))

    def test_check_and_start_refuse_the_same(self):
        for config, text in self.IMPOSSIBLE:
            d = Daemon(config)
            status, said = check(d)
            self.assertEqual(status, 3, (config, said))
            self.assertIn(text, said)
            r = subprocess.run([d.program, "--foreground", "--config", d.config_file],
                               capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(r.returncode, 3, (config, r.stderr))
            self.assertEqual(complaint(said), complaint(r.stderr))
            shutil.rmtree(d.dir)

    def test_the_least_share_works_and_less_is_refused(self):
        for limits in ({}, {"max_blocks": 1000, "recipe_blocks": 500}, {"tail_index": "false"}):
            d = Daemon({"defaults": dict(limits, share="1MiB")})
            least = least_of(check(d)[1])
            d.write_config({"defaults": dict(limits, share="%d" % (size(least) - 65536))})
            self.assertEqual(check(d)[0], 3)
            d.write_config({"defaults": dict(limits, share=least)})
            self.assertEqual(check(d)[0], 0)
            with d, Filler(d, 1) as client:
                self.assertEqual(ask(d, "status")["promised_bytes"], size(least))
                for p in range(200):
                    self.assertEqual(client.put(p, 1), [1, 1])
                self.assertLessEqual(ask(d, "status")["charged_bytes"], size(least))
                self.assertTrue(ask(d, "check")["clean"])

    def test_a_reload_refuses_it_too(self):
        tenants = [{"name": "a", "uids": [0], "share": "32MiB"}]
        with Daemon({"tenants": tenants, "unlisted_uids": "false"}) as d, Filler(d, 64) as client:
            client.put(0, 10)
            for config, text in self.IMPOSSIBLE:
                if set(config) & {"user", "admin_group", "numa_node", "memory"}:
                    continue
                d.write_config(dict(config, unlisted_uids="true"))
                said = complaint(check(d)[1])
                self.assertIn(text, said)
                d.reload()
                self.assertIn("reload refused, the old configuration stays: " + said, d.log())
                d.write_config({"tenants": tenants, "defaults": None, "unlisted_uids": "false"})
            # Enough for a new tenant, but not for the one that there is, with blocks of 1 MiB.
            needed = ask(d, "tenants")["tenants"][0]["metadata_bytes"] + MIB
            d.write_config({"tenants": [dict(tenants[0], share=str(needed - 4096))]})
            d.reload()
            self.assertIn("is too little for tenant 'a' while it runs", d.log())
            self.assertEqual(ask(d, "tenants")["tenants"][0]["share_bytes"], 32 * MIB)
            least = least_of(d.log().splitlines()[-1])
            self.assertLess(size(least) - needed, 65536)
            d.write_config({"tenants": [dict(tenants[0], share=least)]})
            d.reload()
            self.assertEqual(ask(d, "tenants")["tenants"][0]["share_bytes"], size(least))
            self.assertEqual(client.put(1, 1), [1, 1])

    def test_shares_are_exchanged(self):
        """What one tenant gives up another gets in the same reload, in whatever order they stand."""
        def tenants(a, b):
            return [{"name": "a", "uids": [0], "share": a}, {"name": "b", "uids": [1], "share": b}]
        with Daemon({"tenants": tenants("64MiB", "192MiB"), "unlisted_uids": "false"}) as d:
            for a, b in (("192MiB", "64MiB"), ("64MiB", "192MiB")):
                d.write_config({"tenants": tenants(a, b)})
                d.reload()
                shares = {t["name"]: t["share_bytes"] for t in ask(d, "tenants")["tenants"]}
                self.assertEqual(shares, {"a": size(a), "b": size(b)})

    def test_what_is_promised_to_others_counts(self):
        """A share cannot grow into what uids without a tenant hold, unless they are gone."""
        with Daemon({"tenants": [{"name": "b", "uids": [1], "share": "64MiB"}],
                     "defaults": {"share": "64MiB"}}) as d:
            with Filler(d, 1) as client:
                client.put(0, 1)
                d.write_config({"tenants": [{"name": "b", "uids": [1], "share": "200MiB"}]})
                d.reload()
                self.assertIn("with the tenants of uids that are attached, 264MiB would be promised",
                              d.log())
            d.reload()
            self.assertIn("nobody uses it and room is needed", d.log())
            # As soon as the other one's memory is back.
            wait_for(lambda: {t["name"]: t["share_bytes"] for t in ask(d, "tenants")["tenants"]} ==
                     {"b": 200 * MIB})


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: needs root, to be another user than the daemon")
        raise SystemExit(77)
    unittest.main()
