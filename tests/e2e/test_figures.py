# SPDX-License-Identifier: Apache-2.0
"""Figures are exact, and have the names of docs/figures.md: $KVPOOLD, $KVCTL, $PROMPTER, $FIGURES."""
import json
import os
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Daemon, needs_root, others_may_run, popen_as, wait_for  # noqa: E402

KVCTL, PROMPTER = os.environ["KVCTL"], os.environ["PROMPTER"]
T = 16  # tokens of a block


class Client:
    """A client of a uid, and so of a tenant."""

    def __init__(self, d, uid):
        self.tenant = "uid-%d" % uid
        self.process = popen_as(uid, [PROMPTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                text=True, env=dict(os.environ, KVPOOL_SOCKET=d.socket))

    def __call__(self, what, model, first, n):
        self.process.stdin.write("%s %s %d %d\n" % (what, model, first, n))
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def soon(self, model, first, n, want):
        """Until what was stored is readable here too: an extent may have to be mapped first."""
        wait_for(lambda: self("peek", model, first, n) == want)

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)


class World(unittest.TestCase):
    CONFIG = {}

    def setUp(self):
        self.d = Daemon(self.CONFIG)
        self.d.start()
        self.addCleanup(lambda: self.d.__exit__(None, None, None))

    def ask(self, *args):
        r = subprocess.run([KVCTL, "--socket", self.d.socket, "--json", *args],
                           capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout)

    def tenant(self, client):
        return self.ask("tenants", "--tenant", client.tenant)["tenants"][0]

    def spaces(self, client):
        return {s["model"]: s for s in self.ask("spaces", "--tenant", client.tenant)["spaces"]}

    def tokens(self, row, asked, matched, put=None):
        self.assertEqual((row["asked_tokens_total"], row["matched_tokens_total"]), (asked, matched))
        if put is not None:
            self.assertEqual(row["put_tokens_total"], put)


class Exact(World):
    def test_tokens_of_two_tenants(self):
        a, b = Client(self.d, 1001), Client(self.d, 1002)
        self.assertEqual(a("put", "one", 0, 4 * T), 4 * T)
        self.assertEqual(a("match", "one", 0, 4 * T), 4 * T)
        self.assertEqual(a("match", "one", 0, 5 * T), 4 * T)
        self.assertEqual(a("match", "one", 0, T + 9), T + 9)  # ends inside the second block
        self.assertEqual(a("match", "one", 5000, 2 * T), 0)
        self.assertEqual(a("match", "two", 0, 4 * T), 0)
        self.assertEqual(a("put", "two", 0, T + 3), T + 3)
        self.assertEqual(a("match", "two", 0, T + 3), T + 3)
        self.assertEqual(a("put", "one", 0, 4 * T), 4 * T)  # is there already
        # The same tokens and model, another tenant: nothing of it is there.
        self.assertEqual(b("match", "one", 0, 4 * T), 0)
        self.assertEqual(b("put", "one", 0, 2 * T), 2 * T)
        self.assertEqual(b("match", "one", 0, 4 * T), 2 * T)

        one = (4 * T + 5 * T + T + 9 + 2 * T, 4 * T + 4 * T + T + 9, 4 * T)
        two = (4 * T + T + 3, T + 3, T + 3)
        of_b = (8 * T, 2 * T, 2 * T)

        def check():
            self.tokens(self.spaces(a)["one"], *one)
            self.tokens(self.spaces(a)["two"], *two)
            self.tokens(self.tenant(a), *(x + y for x, y in zip(one, two)))
            self.tokens(self.spaces(b)["one"], *of_b)
            self.tokens(self.tenant(b), *of_b)
            self.assertEqual([self.tenant(a)[x + "_total"]
                              for x in ("lookups", "hits", "partial", "misses")], [6, 3, 1, 2])
            self.assertEqual([self.tenant(b)[x + "_total"]
                              for x in ("lookups", "hits", "partial", "misses")], [2, 0, 1, 1])

        check()
        clients = {c["tenant"]: c for c in self.ask("clients")["clients"]}
        self.tokens(clients[a.tenant], one[0] + two[0], one[1] + two[1])
        self.tokens(clients[b.tenant], *of_b[:2])
        # A client that ends, and one that is killed, leave what they counted.
        a.kill()
        b.end()
        wait_for(lambda: not self.ask("clients")["clients"])
        check()
        self.assertEqual([s["opens"] for s in self.ask("spaces")["spaces"]], [0, 0, 0])
        # So does what is evicted. A dead client's blocks are moved first, and stay meanwhile.
        wait_for(lambda: self.ask("evict", "--all", "--tenant", a.tenant) and
                 self.tenant(a)["blocks"] == 0)
        check()
        self.assertEqual(self.tenant(a)["evictions_total"], 6)
        self.assertEqual({m: s["evictions_total"] for m, s in self.spaces(a).items()},
                         {"one": 4, "two": 2})
        self.assertEqual(self.tenant(b)["evictions_total"], 0)
        # The next client of the tenant goes on counting where the last one stopped.
        c = Client(self.d, 1001)
        self.assertEqual(c("match", "one", 0, 4 * T), 0)
        self.assertEqual(c("put", "one", 0, T), T)
        c.soon("one", 0, T, T)
        self.tokens(self.spaces(a)["one"], one[0] + 4 * T, one[1], one[2] + T)
        self.tokens(self.tenant(a), one[0] + two[0] + 4 * T, one[1] + two[1], one[2] + two[2] + T)
        c.end()

    def test_rates(self):
        a, b = Client(self.d, 1001), Client(self.d, 1002)

        def counted(row, name):
            return row["rates"] and round(row["rates"][name + "_per_second"] *
                                          row["rates"]["interval_seconds"])

        # Of the first seconds there are none.
        a("put", "one", 0, 4 * T)
        wait_for(lambda: self.tenant(a)["rates"])
        # One call each: a look of the daemon's that comes in between cannot part it.
        a("match", "one", 0, 12 * T)
        b("match", "one", 0, 5 * T)
        for row in (lambda: self.tenant(a), lambda: self.spaces(a)["one"]):
            r = wait_for(lambda f=row: (lambda r: counted(r, "asked_tokens") == 12 * T and r)(f()))
            self.assertEqual(counted(r, "matched_tokens"), 4 * T)
            self.assertAlmostEqual(r["rates"]["hit_ratio"], 4 / 12)
            a("match", "one", 0, 12 * T)  # for the other row, which may be of the next interval
        # When nothing is asked for there is no ratio; an eviction gives memory back.
        wait_for(lambda: self.ask("status")["rates"]["asked_tokens_per_second"] == 0)
        self.assertIsNone(self.tenant(b)["rates"]["hit_ratio"])
        self.assertEqual(self.ask("evict", "--all", "--tenant", a.tenant)["evicted"], 4)
        r = wait_for(lambda: (lambda r: counted(r, "evictions") == 4 and r)(self.spaces(a)["one"]))
        self.assertEqual(counted(r, "payload_bytes"), -4 * r["block_bytes"])
        a.end()
        b.end()


def listed():
    """docs/figures.md: {where: {name: kind}}"""
    tables, where = {}, None
    with open(os.environ["FIGURES"], encoding="utf-8") as f:
        for line in f:
            if line.startswith("## "):
                where = line[3:].strip()
            row = re.match(r"\| `(\w+)` \| (\S+) \|", line)
            if row:
                assert row[1] not in tables.setdefault(where, {}), (where, row[1])
                tables[where][row[1]] = row[2]
    return tables


class Names(World):
    # Without these they have no figures.
    CONFIG = {"advisor": "true", "devices": [{"name": "one", "driver": "host", "bytes": "64MiB",
                                              "worker": os.environ["KVPOOL_DEVICE"]}]}
    NESTED = {"devices": {"queues", "tenants"}, "status": {"ledger", "daemon"}, "status.ledger": {"portions"},
              "status.daemon": {"memory", "heap"}, "status.daemon.memory": {"group"}}

    def compare(self, where, row):
        """One object of an answer with its table."""
        table = self.tables[where]
        self.seen.add(where)
        nested = self.NESTED.get(where, set())
        must = {n for n, kind in table.items() if not kind.endswith("?")}
        self.assertEqual(must - set(row), set(), where)
        self.assertEqual(set(row) - set(table) - nested, set(), where)
        for name, kind in table.items():
            v = row.get(name)
            if v is None:
                self.assertTrue(kind.endswith("?"), (where, name))
                continue
            kind = kind.rstrip("?")
            if kind in ("rates", "advisor", "remat"):
                self.compare(kind, v)
            elif kind == "text":
                self.assertIsInstance(v, str, name)
            elif kind == "flag":
                self.assertIsInstance(v, bool, name)
            else:
                fraction = re.search("_(seconds|second|ratio)$", name)
                self.assertIsInstance(v, float if fraction else int, name)
                self.assertTrue(v >= 0 or name.endswith("bytes_per_second"), name)

    def test_list_and_answers_agree(self):
        self.tables, self.seen = listed(), set()
        for table in self.tables.values():
            for name, kind in table.items():
                self.assertIn(kind.rstrip("?"),
                              ("counter", "gauge", "id", "text", "flag", "rates", "advisor", "remat"), name)
                self.assertEqual(kind == "counter", name.endswith("_total"), name)
                if kind == "counter":
                    self.assertNotRegex(name, "seconds|ratio|tokens_put|bytes$")
                self.assertNotRegex(name, "_(ms|us|ns|s|kib|mib)$")
        a = Client(self.d, 1001)
        a("put", "one", 0, T)
        a("match", "one", 0, T)
        status = wait_for(lambda: (lambda s: s["rates"] and s)(self.ask("status")))
        self.compare("status", status)
        self.compare("status.ledger", status["ledger"])
        for kind in status["ledger"]["portions"].values():
            self.compare("status.ledger.portions", kind)
        self.compare("status.daemon", status["daemon"])
        self.compare("status.daemon.memory", status["daemon"]["memory"])
        self.compare("status.daemon.memory.group", status["daemon"]["memory"].get("group", {}))
        self.compare("status.daemon.heap", status["daemon"]["heap"])
        for verb in ("tenants", "clients", "spaces", "devices"):
            rows = self.ask(*("device list" if verb == "devices" else verb).split())[verb]
            self.assertEqual(len(rows), 1)
            self.compare(verb, rows[0])
        self.assertEqual(self.ask("tenants")["tenants"][0]["policy"], "hazard")
        device = wait_for(lambda: (lambda d: d["state"] == "up" and d)(self.ask("device", "list")["devices"][0]))
        self.assertEqual((device["memory_bytes"], device["promised_bytes"]), (64 << 20, 64 << 20))
        for queue in device["queues"].values():
            self.compare("devices.queues", queue)
        self.compare("devices.tenants", device["tenants"][0])
        self.assertEqual(self.seen, set(self.tables))
        a.end()


if __name__ == "__main__":
    needs_root()
    if not others_may_run(PROMPTER):
        print("skipped: other users may not enter the build folder")
        sys.exit(77)
    unittest.main()
