# SPDX-License-Identifier: Apache-2.0
"""What quality windows learn outlives a daemon that is killed, tenant by tenant; kvctl thresholds. $KVPOOLD, $KVCTL,
$SCORER. Rows A-044, A-063, A-075."""
import json
import os
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import DAEMON_UID, Daemon, wait_for  # noqa: E402

KVCTL, SCORER = os.environ["KVCTL"], os.environ["SCORER"]


class Thresholds(unittest.TestCase):
    def setUp(self):
        self.engines = []
        self.d = Daemon({"log_level": "notice"})
        self.state = os.path.join(self.d.dir, "state")
        # Sockets of their own, so that one user may be in both.
        self.d.write_config({
            "state_dir": self.state, "defaults": {"share": "32MiB", "max_blocks": 256, "quality_target": 90},
            "tenants": [{"name": name, "socket": name + ".sock"} for name in ("one", "two")]})
        if os.geteuid() == 0:
            os.mkdir(self.state, 0o755)  # root's, as systemd makes it
        self.d.start()
        self.addCleanup(lambda: self.d.__exit__(None, None, None))
        self.addCleanup(self.end_engines)

    def end_engines(self):
        for p in self.engines:
            p.communicate("", timeout=60)
        self.engines.clear()

    def engine(self, tenant, model, score=0, times=0):
        """An engine that has the model open and has reported so often."""
        p = subprocess.Popen([SCORER, os.path.join(self.d.runtime_dir, tenant + ".sock"), model, str(score), str(times)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.engines.append(p)
        self.assertEqual(p.stdout.readline(), "ready\n")

    def run_kvctl(self, *args):
        return subprocess.run([KVCTL, "--socket", self.d.socket, "--timeout", "60", *args], capture_output=True,
                              text=True, timeout=120)

    def kvctl(self, *args):
        r = self.run_kvctl("--json", *args)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        return json.loads(r.stdout)

    def space(self, tenant, model):
        return next(s for s in self.kvctl("spaces")["spaces"] if (s["tenant"], s["model"]) == (tenant, model))

    def bits(self, tenant, model):
        return self.space(tenant, model)["coding_bits"]

    def rows(self, *args):
        return self.kvctl("thresholds", "list", *args)["thresholds"]

    def wait_row(self, tenant, model, bits):
        wait_for(lambda: [r for r in self.rows() if (r["tenant"], r["model"], r["bits"]) == (tenant, model, bits)])

    def wait_start(self, tenant, model, how):
        wait_for(lambda: self.space(tenant, model)["quality_start"] == how)

    def killed(self):
        """SIGKILL; the next daemon has the same folder."""
        self.d.kill()
        self.end_engines()
        self.d.start()

    def test_a_killed_daemon_goes_on(self):
        self.engine("one", "m", 0, 40)
        self.engine("two", "m", 1, 20)
        self.assertEqual((self.bits("one", "m"), self.bits("two", "m")), (4, 2))
        self.wait_row("one", "m", 4)
        self.wait_row("two", "m", 2)
        path = os.path.join(self.state, "one.db")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        if os.geteuid() == 0:
            self.assertEqual(os.stat(self.state).st_uid, DAEMON_UID)
            self.assertEqual(os.stat(path).st_uid, DAEMON_UID)
        self.killed()
        # Before any engine is there, too.
        self.assertEqual({(r["tenant"], r["bits"], r["origin"]) for r in self.rows()},
                         {("one", 4, "measured"), ("two", 2, "measured")})
        self.engine("one", "m")
        self.engine("two", "m")
        self.engine("one", "like m")
        for tenant, model, how, bits in (("one", "m", "measured", 4), ("two", "m", "measured", 2),
                                         ("one", "like m", "inherited", 4)):
            self.wait_start(tenant, model, how)
            self.assertEqual(self.bits(tenant, model), bits, (tenant, model))
        # What one has learnt is nothing to the other.
        self.engine("two", "like m")
        self.wait_start("two", "like m", "inherited")
        self.assertEqual(self.bits("two", "like m"), 2)
        # It is a window as ever.
        self.engine("one", "m", 1, 20)
        self.assertEqual(self.bits("one", "m"), 3)
        self.assertEqual([r["origin"] for r in self.rows("--tenant", "one") if r["model"] == "like m"], ["inherited"])

    def test_files_that_are_not_good(self):
        self.engine("one", "m", 0, 40)
        self.wait_row("one", "m", 4)
        self.d.kill()
        self.end_engines()
        path = os.path.join(self.state, "one.db")
        with open(path, "r+b") as f:
            f.seek(100)
            f.write(b"\xff" * 4000)
        self.d.start()
        self.engine("one", "m")
        wait_for(lambda: os.path.exists(path + ".refused"))
        self.assertEqual((self.bits("one", "m"), self.space("one", "m")["quality_start"]), (2, "default"))
        self.assertIn("what was learnt of precision for tenant one is forgotten", self.d.log())
        self.engine("one", "m", 0, 20)
        self.wait_row("one", "m", 3)

    def test_export_and_import(self):
        there = os.path.join(self.d.dir, "learnt.json")
        self.engine("one", "m", 0, 40)
        self.wait_row("one", "m", 4)
        self.assertEqual(self.kvctl("thresholds", "export", there, "--tenant", "one"), {"exported": 1})
        self.assertEqual(self.kvctl("thresholds", "import", there, "--tenant", "two"), {"imported": 1})
        self.engine("two", "m")
        self.wait_start("two", "m", "measured")
        self.assertEqual(self.bits("two", "m"), 4)
        r = self.run_kvctl("thresholds", "list")
        self.assertIn("QUALITY%", r.stdout)
        self.assertEqual(r.stdout.count("measured"), 2)
        # Many rows come in parts; one that is not good spoils all.
        with open(there, encoding="utf-8") as f:
            document = json.load(f)
        row = document["thresholds"][0]
        document["thresholds"] = [dict(row, id="%032x" % i, model="\u00e4" * 64) for i in range(100)]
        self.write(there, document)
        self.assertEqual(self.kvctl("thresholds", "import", there, "--tenant", "two"), {"imported": 100})
        self.assertEqual(len(self.rows("--tenant", "two")), 101)
        for change, word in (({"bits": 5}, "row 3"), ({"id": "%032x" % 7}, "same model")):
            bad = [dict(row, id="%032x" % (1000 + i)) for i in range(100)]
            bad[99].update(change)
            bad[98].update(id="%032x" % 7)
            self.write(there, dict(document, thresholds=bad))
            r = self.run_kvctl("thresholds", "import", there, "--tenant", "two")
            self.assertEqual(r.returncode, 1)
            self.assertIn(word, r.stderr)
            self.assertEqual(len(self.rows("--tenant", "two")), 101)
        # Layers, under their keys, after a crash as before it.
        layers = [dict(row, id="%032x" % 5000, layers=4, layer=i) for i in range(4)]
        self.write(there, dict(document, thresholds=layers))
        self.assertEqual(self.kvctl("thresholds", "import", there, "--tenant", "one"), {"imported": 4})
        self.killed()
        self.assertEqual([r["key"] for r in self.rows("--tenant", "one") if r["layer"] is not None],
                         ["kv_threshold:%032x:%d" % (5000, i) for i in (3, 2, 1, 0)])
        for text, word in (("{", "is no file"), ('{"kvpool_thresholds": 2, "thresholds": []}', "is no file")):
            with open(there, "w", encoding="utf-8") as f:
                f.write(text)
            r = self.run_kvctl("thresholds", "import", there, "--tenant", "two")
            self.assertEqual(r.returncode, 1)
            self.assertIn(word, r.stderr)

    @staticmethod
    def write(path, document):
        with open(path, "w", encoding="utf-8") as f:
            json.dump(document, f)


if __name__ == "__main__":
    unittest.main(verbosity=2)
