# SPDX-License-Identifier: Apache-2.0
"""kvctl what-if against a real daemon: what it says of shares is what caches of these sizes hit, as their simulation
has it ($KVPOOLD, $KVCTL, $KVREPLAY), also of the conversation trace where that is; and what it says when nothing is known."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import Daemon, popen_as  # noqa: E402

KVCTL, KVREPLAY, CLIENT = os.environ["KVCTL"], os.environ["KVREPLAY"], os.environ["KVCTL_CLIENT"]
DATA = os.environ.get("KVPOOL_DATA", os.path.join(os.environ["SOURCE"], "..", "shared", "data"))
TRACE = os.path.join(DATA, "traces", "mooncake", "conversation_trace.jsonl")
BLOCKS = 2000  # that the daemon has room for, while sizes of 500 to 8,000 are asked about
BLOCK_BYTES = 512 * 4


def behind_all_else():
    """As the daemon's advisor, which must not be starved by the replay alone, and loses events where it is."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def what_if(socket, *args, fails=False):
    r = subprocess.run([KVCTL, "--socket", socket, "what-if", "--json", *args], stdout=subprocess.PIPE, timeout=60)
    answer = json.loads(r.stdout)
    assert (r.returncode != 0) == fails, (r, answer)
    return answer if fails else answer["what-if"]


def shown(socket, *args):
    r = subprocess.run([KVCTL, "--socket", socket, "what-if", *args], stdout=subprocess.PIPE, timeout=60, check=True)
    return r.stdout.decode()


def simulated(trace, capacities):
    out = subprocess.run([KVREPLAY, "simulate", "--trace", trace, "--format", "mooncake", "--order", "leaf", "--policy", "lru",
                          "--capacity", ",".join(map(str, capacities)), "--json"], stdout=subprocess.PIPE, check=True)
    return [r["hit_ratio"] for r in json.loads(out.stdout)["results"]]


class WhatIf(unittest.TestCase):
    def test_before_anything_is_known(self):
        with Daemon() as d:
            self.assertEqual(what_if(d.socket), [])
            self.assertIn("no tenants yet", shown(d.socket))
            with popen_as(None, [CLIENT, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env=dict(os.environ, KVPOOL_SOCKET=d.socket)) as client:
                self.assertEqual(client.stdout.readline(), b"ready\n")
                rows = what_if(d.socket)
                self.assertEqual([r["hit_ratio"] for r in rows], [None] * 5)
                self.assertIn("no requests yet", shown(d.socket))
                for args, word in ((("--floor", "tq9"), "there is no codec 'tq9'"),
                                   (("--tenant", "nobody"), "there is no tenant 'nobody'")):
                    self.assertIn(word, what_if(d.socket, *args, fails=True)["error"])
                client.stdin.close()

    def replayed(self, trace, *args):
        """Rows for half the blocks to four times as many, and what caches of these sizes hit."""
        share = (BLOCKS * (BLOCK_BYTES + 8192) + (64 << 20)) >> 20
        config = {"policy": "lru", "memory": "%dMiB" % (share + 64), "extent": "2MiB",
                  "defaults": {"share": "%dMiB" % share, "max_blocks": BLOCKS, "recipe_tokens": BLOCKS * 512}}
        with Daemon(config) as d:
            done = subprocess.run([KVREPLAY, "run", "--trace", trace, "--format", "mooncake", "--socket", d.socket, "--dim", "1",
                                   "--json", *args], stdout=subprocess.PIPE, check=True, preexec_fn=behind_all_else)
            done = json.loads(done.stdout)
            rows = what_if(d.socket)
            one = what_if(d.socket, "--memory", "%dM" % (2 * share))
            floor = what_if(d.socket, "--floor", "native")
            table = shown(d.socket)
        self.assertEqual(done["corrupt"] + done["failed"], 0)
        self.assertEqual([r["blocks"] for r in rows], [BLOCKS // 4, BLOCKS // 2, BLOCKS, 2 * BLOCKS, 4 * BLOCKS])
        self.assertEqual([r["tokens"] for r in rows], [512 * r["blocks"] for r in rows])
        self.assertEqual([r["is_share"] for r in rows], [False, False, True, False, False])
        self.assertEqual((one[0]["blocks"], one[0]["hit_ratio"]), (rows[3]["blocks"], rows[3]["hit_ratio"]))
        self.assertEqual([r["hit_ratio"] for r in floor], [r["hit_ratio"] for r in rows])
        self.assertIn("HIT%", table.splitlines()[0])
        return done, rows, simulated(trace, [r["blocks"] for r in rows])

    def judge(self, trace, most, *args):
        # Where others want every processor as well, events are lost all the same, and the daemon says so.
        for _ in range(2):
            done, rows, is_so = self.replayed(trace, *args)
            r = rows[0]
            lost = r["lost_total"] / (r["lost_total"] + r["references_total"])
            if lost < .002:
                break
        print("%d blocks told, %d lost; daemon %.4f" % (r["references_total"], r["lost_total"], done["hit_ratio"]))
        for row, should in zip(rows, is_so):
            print("%6d blocks: said %.4f, simulated %.4f" % (row["blocks"], row["hit_ratio"], should))
        for row, should in zip(rows, is_so):
            self.assertLess(abs(row["hit_ratio"] - should), most + lost, row)
        self.assertLess(abs(rows[2]["hit_ratio"] - done["hit_ratio"]), most + lost)

    def test_generated(self):
        with tempfile.TemporaryDirectory() as folder:
            for kind in "chat", "mixed":
                trace = os.path.join(folder, kind)
                subprocess.run([KVREPLAY, "generate", "--kind", kind, "--requests", "1500", "--seed", "5", "--out", trace],
                               check=True)
                self.judge(trace, .02)

    @unittest.skipUnless(os.path.exists(TRACE), "no " + TRACE)
    def test_conversations(self):
        self.judge(TRACE, .015, "--requests", "4000")


if __name__ == "__main__":
    unittest.main(verbosity=2)
