# SPDX-License-Identifier: Apache-2.0
"""Memory that runs short, or seems to, in real control groups: $KVPOOLD, $KVCTL, $FILL (fill.c).
Row E-049."""
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from cgroup import Group
from fill import MIB, Filler, ask
from harness import Daemon, wait_for

TENANT = {"memory": "256MiB", "defaults": {"share": "200MiB"}}


def stalled_us():
    """How long tasks of this machine have waited for memory; None: the kernel does not say."""
    try:
        with open("/proc/pressure/memory", encoding="ascii") as f:
            return int(f.readline().rsplit("=", 1)[1])
    except OSError:
        return None


def thrash(group, path):
    """A process that reads a file again and again that does not fit its group."""
    code = ("import mmap, sys\n"
            "with open(sys.argv[1], 'rb') as f:\n"
            "    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
            "while True:\n"
            "    sum(m[at] for at in range(0, len(m), 4096))\n")
    return subprocess.Popen([sys.executable, "-c", code, path], preexec_fn=group.enter)


class Hog:
    """A process that takes as many MiB as it is told, and keeps them until it ends."""
    CODE = ("import sys\n"
            "kept = []\n"
            "for line in sys.stdin:\n"
            "    kept.append(b'x' * (int(line) << 20))\n"
            "    print('taken', flush=True)\n")

    def __init__(self, group):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, preexec_fn=group.enter)

    def take(self, mib):
        self.process.stdin.write("%d\n" % mib)
        self.process.stdin.flush()
        if self.process.stdout.readline() != "taken\n":
            raise AssertionError("the hog ended: %s" % self.process.wait())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()


def refused(config, group):
    """The log of a daemon that does not start, which this one must not."""
    d = Daemon(config, group=group)
    try:
        d.start()
    except AssertionError:
        return d.log()
    finally:
        d.__exit__(ValueError, None, None) if d.process else shutil.rmtree(d.dir)
    raise AssertionError("it started")


class Memory(unittest.TestCase):
    def test_pressure_elsewhere_evicts_nothing(self):
        """A process that thrashes in a small group, while the machine has memory."""
        if stalled_us() is None:
            self.skipTest("this kernel has no pressure information")
        with Group(40 * MIB) as group, Daemon(TENANT) as d, Filler(d, 8) as client, \
                tempfile.NamedTemporaryFile(dir=d.dir) as f:
            os.posix_fallocate(f.fileno(), 0, 200 * MIB)
            self.assertEqual(client.put(0, 1000)[0], 1000)
            # Three times as long as the kernel's trigger needs: it fires.
            before, p = stalled_us(), thrash(group, f.name)
            try:
                for _ in range(600):
                    if stalled_us() - before > 2000000:
                        break
                    time.sleep(0.1)
                else:
                    self.skipTest("this machine reads too fast for a shortage")
            finally:
                p.kill()
                p.wait()
            self.assertEqual(client.find(0, 1000), 1000)
            self.assertEqual(ask(d, "status")["evictions_total"], 0)

    def test_more_than_the_group_has_is_refused(self):
        """`memory: 6GiB` in a group of 300 MiB: the answer names what would do, and that does."""
        with Group(300 * MIB) as group:
            log = refused({"memory": "6GiB"}, group)
            self.assertIn(group.path, log)
            most = re.search(r"at most (\d+)MiB", log).group(1)
            self.assertIn("lower `memory`", log)
            refused({"memory": "%dMiB" % (int(most) + 1)}, group)
            config = {"memory": most + "MiB", "defaults": {"share": most + "MiB"}}
            with Daemon(config, group=group) as d, Filler(d, 16) as client:
                # Several times what it holds, 256 KiB a block.
                for p in range(8):
                    client.put(p, 400)
                charged = ask(d, "status")["charged_bytes"]
                self.assertGreater(charged, (int(most) - 32) * MIB)
                self.assertLess(group.usage(), 300 * MIB)
                self.assertEqual(group.kills(), 0)
            # Without the key: a quarter of what the group has.
            with Daemon({"memory": None}, group=group) as d:
                self.assertEqual(ask(d, "status")["memory_bytes"], 75 * MIB)
                said = {f["text"]: f["finding"] for f in ask(d, "doctor")["findings"]
                        if f["topic"] == "cgroup"}
                self.assertEqual(list(said.values()), ["good"], said)
                self.assertIn(group.path, "".join(said))
                # The limit is lowered under it: that is a finding.
                group.limit(100 * MIB)
                said = {f["text"]: f["finding"] for f in ask(d, "doctor")["findings"]
                        if f["topic"] == "cgroup"}
                self.assertEqual(list(said.values()), ["problem"], said)
                self.assertIn("too little for `memory`, which may be 52", "".join(said))

    def test_shortage_in_its_own_group(self):
        """Row E-049: somebody else in the daemon's group takes more and more. The daemon gives way,
        is not killed, keeps a part, and takes its share again when there is room."""
        with Group(300 * MIB) as group, \
                Daemon({"memory": "240MiB", "defaults": {"share": "230MiB"}}, group=group) as d, \
                Filler(d, 8) as client, Hog(group) as hog:
            client.put(0, 1500)
            for p in range(1, 30):
                client.put(p, 50)
            full = ask(d, "status")["charged_bytes"]
            self.assertGreater(full, 200 * MIB)
            for _ in range(15):
                # Waits for room, so that the daemon is what makes it.
                wait_for(lambda: group.usage() < 300 * MIB - 12 * MIB, 120)
                hog.take(8)
            wait_for(lambda: ask(d, "status")["charged_bytes"] < full - 60 * MIB, 120)
            self.assertEqual(group.kills(), 0)
            self.assertIn("are missing: tenants give back", d.log())
            # A quarter stays, and puts go on.
            self.assertGreater(ask(d, "status")["blocks"], 50 * MIB // (128 << 10))
            self.assertEqual(client.put(100, 100), [100, 100])
            hog.process.communicate()
            prompts = itertools.count(200)
            wait_for(lambda: client.put(next(prompts), 100) and
                     ask(d, "status")["charged_bytes"] > full - 40 * MIB, 120)
            self.assertEqual(group.kills(), 0)
            self.assertTrue(ask(d, "check")["clean"])


if __name__ == "__main__":
    unittest.main()
