# SPDX-License-Identifier: Apache-2.0
"""Memory that runs short, or seems to, in real control groups: $KVPOOLD, $KVCTL, $FILL (fill.c).
Row E-049."""
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
import unittest

from cgroup import Group
from harness import Daemon, wait_for

MIB = 1 << 20


class Filler:
    """fill.c: a client that stores prompts and says how much of them is there."""

    def __init__(self, d, layers, model="fill"):
        self.process = subprocess.Popen(
            [os.environ["FILL"], model, str(layers)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=dict(os.environ, KVPOOL_SOCKET=d.socket))
        if self.process.stdout.readline() != "ready\n":
            raise AssertionError("no client: status %s" % self.process.wait())

    def _ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return [int(n) for n in self.process.stdout.readline().split()]

    def put(self, prompt, blocks):
        """Blocks that are there afterwards, and as many as kvp_put() said."""
        return self._ask("put", prompt, blocks)

    def find(self, prompt, blocks):
        return self._ask("find", prompt, blocks)[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()


def ask(d, verb):
    r = subprocess.run([os.environ["KVCTL"], "--socket", d.socket, "--json", verb],
                       capture_output=True, text=True, timeout=60, check=False)
    return json.loads(r.stdout)


def stalled_us():
    """How long tasks of this machine have waited for memory; None: the kernel does not say."""
    try:
        with open("/proc/pressure/memory", encoding="ascii") as f:
            return int(f.readline().rsplit("=", 1)[1])
    except OSError:
        return None


def thrash(group, path, seconds):
    """A process that reads a file again and again that does not fit its group."""
    code = ("import mmap, sys, time\n"
            "with open(sys.argv[1], 'rb') as f:\n"
            "    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
            "end = time.monotonic() + float(sys.argv[2])\n"
            "while time.monotonic() < end:\n"
            "    sum(m[at] for at in range(0, len(m), 4096))\n")
    return subprocess.Popen([sys.executable, "-c", code, path, str(seconds)],
                            preexec_fn=group.enter)


class Memory(unittest.TestCase):
    def test_pressure_elsewhere_evicts_nothing(self):
        """A process that thrashes in a small group, while the machine has memory."""
        if stalled_us() is None:
            self.skipTest("this kernel has no pressure information")
        with Group(40 * MIB) as group, Daemon({"memory": "256MiB", "defaults": {"share": "200MiB"}}) as d, \
                Filler(d, 8) as client, tempfile.NamedTemporaryFile(dir=d.dir) as f:
            os.posix_fallocate(f.fileno(), 0, 200 * MIB)
            self.assertEqual(client.put(0, 1000)[0], 1000)
            before = stalled_us()
            p = thrash(group, f.name, 20)
            wait_for(lambda: p.poll() is not None, 60)
            stalled = (stalled_us() - before) / 1e6
            print("waited for memory: %.1f of 20 s; left: %d of 1000" % (stalled, client.find(0, 1000)))
            self.assertGreater(stalled, 2)
            self.assertEqual(client.find(0, 1000), 1000)
            self.assertEqual(ask(d, "status")["evictions"], 0)


if __name__ == "__main__":
    unittest.main()
