# SPDX-License-Identifier: Apache-2.0
"""kvctl against a real daemon with a real client: $KVPOOLD, $KVPOOL_DEVICE, $KVCTL, $KVCTL_CLIENT."""
import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from fake_admin import FakeAdmin  # noqa: E402
from harness import Daemon, others_may_run, wait_for  # noqa: E402

KVCTL, CLIENT = os.environ["KVCTL"], os.environ["KVCTL_CLIENT"]
BLOCKS = 6


class WithoutDaemon(unittest.TestCase):
    def run_kvctl(self, *args):
        return subprocess.run([KVCTL, *args], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, KVPOOL_SOCKET="/nonexistent/kvpool.sock"))

    def test_nobody_to_ask(self):
        for verb in ("status", "clients", "spaces", "tenants", "blocks", "drain", "check", "metrics"):
            r = self.run_kvctl(verb)
            self.assertEqual(r.returncode, 3, verb)
            self.assertIn("/nonexistent/kvpool.sock: no kvpoold listens there", r.stderr)

    # Arguments, and what the message must name of what would be right.
    WRONG = (
        ([], "kvctl --help"), (["what"], "kvctl --help"), (["--colour"], "--colour"),
        (["--timeout", "x", "status"], "0.001 to 86400"), (["--timeout", "0", "status"], "0.001"),
        (["status", "--timeout=1e9"], "0.001 to 86400"), (["--socket"], "needs a value"),
        (["blocks", "--limit", "-1"], "0 to 100000"), (["blocks", "--limit", "1e3"], "whole number"),
        (["blocks", "--limit", "100001"], "0 to 100000"),
        (["blocks", "--sort", "colour"], "serial, hits, touched, depth, tokens"),
        (["blocks", "--sort", "hit"], "serial, hits, touched, depth, tokens"),
        (["blocks", "--sort", ""], "serial, hits, touched, depth, tokens"),
        (["blocks", "--sort"], "serial, hits, touched, depth, tokens"),
        (["blocks", "--limit"], "0 to 100000"),
        (["blocks", "--state", "dead"], "live, recipe, evicting"),
        (["blocks", "--count", "3"], "--limit"), (["blocks", "-x"], "--limit"),
        (["blocks", "--pinned=no"], "no value"), (["blocks", "--tenant"], "--tenant NAME"),
        (["blocks", "--tenant", "--pinned"], "--tenant NAME"),
        (["blocks", "--limit", "1", "--limit", "2"], "twice"),
        (["clients", "extra"], "extra"), (["clients", "--all"], "--tenant"),
        (["device"], "list, drain, detach, attach"), (["device", "stop"], "list, drain, detach, attach"),
        (["device", "drain"], "kvctl device list"), (["device", "drain", "a", "b"], "one device"),
        (["device", "list", "a"], "no name"),
        (["space"], "space set NAME"), (["space", "set", "m"], "KEY=VALUE"),
        (["space", "get", "m", "budget=1"], "space set NAME"),
        (["space", "set", "m", "colour=1"], "precision="), (["space", "set", "m", "budget"], "budget="),
        (["space", "set", "m", "budget=1", "budget=1"], "twice"),
        (["inspect"], "key"), (["inspect", "abcdef01", "abcdef01"], "one key"),
        (["inspect", "abcdefgh"], "hexadecimal"), (["inspect", "abcdef0"], "first 8 or more"),
        (["pin", "0x12345678"], "hexadecimal"), (["unpin", "0" * 33], "32 hexadecimal digits"),
        (["evict"], "--count N or --all"), (["evict", "abcdef01", "--all"], "only one"),
        (["help", "what"], "kvctl --help"), (["status", "--watch", "0"], "0.1 to 3600"),
        (["status", "--watch", "x"], "'x'"),
        (["evict", "--count", "0"], "1 to"), (["drain", "now"], "now"),
        (["status", "extra"], "extra"), (["status", "--watch=0"], "0.1 to 3600"),
        (["status", "--count", "3"], "--watch"), (["status", "--watch", "--count=x"], "whole number"),
        (["what-if", "--memory", "much"], "512MiB or 8G"), (["what-if", "--memory", "0"], "up to 1024 TiB"),
        (["what-if", "--memory", "2000T"], "up to 1024 TiB"), (["what-if", "--memory", "1GB"], "512MiB or 8G"),
        (["what-if", "--floor"], "--floor CODEC"), (["what-if", "8G"], "takes options only"),
        (["thresholds"], "list, export, import"), (["thresholds", "forget"], "list, export, import"),
        (["thresholds", "list", "f"], "no file"), (["thresholds", "export"], "export FILE"),
        (["thresholds", "import", "f"], "--tenant NAME"), (["thresholds", "import", "f", "g"], "one file"),
        (["doctor", "me"], "me"), (["version", "--tenant", "x"], "--tenant"))

    def test_wrong_use(self):
        for args, word in self.WRONG:
            r = self.run_kvctl(*args)
            self.assertEqual((r.returncode, r.stdout), (2, ""), args)
            self.assertIn(word, r.stderr, args)
            self.assertEqual(r.stderr.count("\n"), 1, (args, r.stderr))
            self.assertNotIn("not ''", r.stderr)

    def test_errors_are_json_too(self):
        for args, word in self.WRONG:
            r = self.run_kvctl(*args, "--json")
            if args[-1:] in (["--tenant"], ["--socket"], ["--sort"], ["--limit"], ["--floor"]):
                continue  # the value of the option is what is missing
            self.assertEqual((r.returncode, r.stderr), (2, ""), args)
            error = json.loads(r.stdout)
            self.assertEqual(error["exit"], 2)
            self.assertIn(word, error["error"], args)
        for args in (["--json", "status"], ["drain", "--json"], ["check", "--payloads", "--json"]):
            r = self.run_kvctl(*args)
            self.assertEqual((r.returncode, r.stderr), (3, ""), args)
            self.assertEqual(json.loads(r.stdout)["exit"], 3)

    def test_help_of_each_command(self):
        commands = [line.split()[0] for line in self.run_kvctl("--help").stdout.split("\n\n")[1]
                    .splitlines()]
        self.assertEqual(len(commands), 18)
        for command in commands:
            r = self.run_kvctl(command, "--help")
            self.assertEqual((r.returncode, r.stderr), (0, ""), command)
            self.assertTrue(r.stdout.startswith("usage: kvctl %s" % command), command)
            for option in ("--socket PATH", "--timeout SECONDS", "--json", "--help"):
                self.assertIn(option, r.stdout, command)
            self.assertLessEqual(max(map(len, r.stdout.splitlines())), 100, command)
            for other in ([command, "-h"], ["help", command]):
                self.assertEqual(self.run_kvctl(*other).stdout, r.stdout, command)
        self.assertIn("--sort serial|hits|touched|depth|tokens",
                      self.run_kvctl("blocks", "--help").stdout)
        for other in (["-h"], ["help"], ["--json", "--help"]):
            self.assertEqual(self.run_kvctl(*other).stdout, self.run_kvctl("--help").stdout, other)
        # Wherever it stands, and without asking anybody.
        self.assertEqual(self.run_kvctl("evict", "--all", "--help").returncode, 0)

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

    def test_doctor_says_how_gpus_stand(self):
        r = subprocess.run([KVCTL, "doctor", "--json"], capture_output=True, text=True, timeout=60,
                           env=dict(os.environ, KVPOOL_SOCKET="/nonexistent/kvpool.sock",
                                    KVPOOL_LIBNVML=os.environ["STUB_NVML"],
                                    CUDA_MPS_PIPE_DIRECTORY="/nonexistent"))
        found = {f["text"]: f["finding"] for f in json.loads(r.stdout)["findings"] if f["topic"] == "GPU"}
        gpu = "0 (unknown, GPU-01234567-89ab-cdef-0123-456789abcdef): "
        self.assertEqual(found["driver 580.65.06, CUDA 13.0"], "good")
        self.assertEqual(found["MPS does not run at /nonexistent/control"], "good")
        self.assertEqual(found["confidential computing unknown"], "good")
        self.assertEqual(found[gpu + "compute mode exclusive process: a worker and engines cannot both use it; "
                               "run nvidia-smi -c DEFAULT"], "problem")
        self.assertEqual(found[gpu + "persistence unknown"], "note")
        self.assertEqual(found[gpu + "MIG unknown, as on devices without it"], "good")
        held = [t for t in found if "is held by" in t][0]
        self.assertRegex(held, r"16384 of 81920 MiB free; memory is held by kvctl \d+ \(3072 MiB\), "
                               r"unknown 0 \(unknown\)$")
        # Without the library what it would have said is unknown, and nothing else.
        r = subprocess.run([KVCTL, "doctor", "--json"], capture_output=True, text=True, timeout=60,
                           env=dict(os.environ, KVPOOL_SOCKET="/nonexistent/kvpool.sock",
                                    KVPOOL_LIBNVML="/nonexistent/libnvidia-ml.so.1"))
        self.assertTrue(any(f["topic"] == "GPU" for f in json.loads(r.stdout)["findings"]))

    def test_doctor_says_what_stands_in_the_way(self):
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "control"), "w").close()
            r = subprocess.run([KVCTL, "doctor", "--json"], capture_output=True, text=True, timeout=60,
                               env=dict(os.environ, KVPOOL_SOCKET="/nonexistent/kvpool.sock",
                                        KVPOOL_LIBNVML=os.environ["STUB_NVML_ALL"], CUDA_MPS_PIPE_DIRECTORY=folder))
        found = {f["text"]: f["finding"] for f in json.loads(r.stdout)["findings"] if f["topic"] == "GPU"}
        gpu = "0 (unknown, GPU-01234567-89ab-cdef-0123-456789abcdef): "
        self.assertEqual(found["MPS runs (%s/control): workers stay out of it, but with `mps: join`" % folder], "note")
        self.assertEqual(found["confidential computing is on: neither pinned DRAM nor shared device memory works "
                               "under it"], "problem")
        self.assertEqual(found[gpu + "compute mode exclusive process: a worker and engines can both use it as clients of "
                               "MPS alone (`mps: join`); else run nvidia-smi -c DEFAULT"], "note")
        self.assertEqual(found[gpu + "persistence off: the device is set up anew whenever its last user goes; start "
                               "nvidia-persistenced"], "note")
        self.assertEqual(found[gpu + "MIG on: each instance is a device of its own, by its MIG- UUID"], "note")
        self.assertEqual(found[gpu + "16384 of 81920 MiB free; memory is held by more than 64 processes"], "good")

    # A forked child, say, of which the driver says nothing: it holds what its files name.
    def test_doctor_names_who_has_device_files(self):
        script = ("import os, subprocess, sys\n"
                  "files = [os.open('/dev/' + f, os.O_CREAT | os.O_RDONLY) for f in ('nvidia7', 'nvidiactl')]\n"
                  "them = [subprocess.Popen(['sleep', '60'], pass_fds=[f]) for f in files]\n"
                  "[os.close(f) for f in files]\n"
                  "subprocess.run([os.environ['KVCTL'], 'doctor', '--json'])\n"
                  "[(p.kill(), p.wait()) for p in them]\n")
        r = subprocess.run(["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /dev || exit 99; exec "$@"', "sh",
                            sys.executable, "-c", script], capture_output=True, text=True, timeout=60,
                           env=dict(os.environ, KVPOOL_SOCKET="/nonexistent/kvpool.sock",
                                    KVPOOL_LIBNVML=os.environ["STUB_NVML"]))
        if r.returncode == 99 or r.stderr.startswith("unshare:"):
            self.skipTest("no mounts of its own")
        held = [f["text"] for f in json.loads(r.stdout)["findings"] if "device files" in f["text"]]
        self.assertRegex(held[0], r"^device files are open in sleep \d+( \(\d+ processes cannot be looked into\))?$")

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


def tenant(i, **more):
    return dict({"id": i, "name": "tenant-%d" % i, "sessions": 1, "blocks": 10, "max_blocks": 4096,
                 "recipes": 0, "payload_bytes": 1 << 30, "charged_bytes": 2 << 30,
                 "share_bytes": 4 << 30, "lookups_total": 1000 + i, "commits_total": 7, "evictions_total": 0,
                 "asked_tokens_total": 1000, "matched_tokens_total": 250}, **more)


STATUS = {"daemon": {"version": "0.1.0", "heap": {}}, "pages": "4 KiB", "policy": "lru"}


def metrics(test, text):
    """Reads the text format of Prometheus strictly: {name and labels: value}."""
    samples, families, now = {}, set(), None
    for line in text.splitlines():
        kind = re.fullmatch(r"# TYPE ([a-z_][a-z0-9_]*) (counter|gauge)", line)
        if kind:
            now = kind[1]
            test.assertNotIn(now, families)
            test.assertEqual(now.endswith("_total"), kind[2] == "counter")
            families.add(now)
            continue
        s = re.fullmatch(r'(([a-z_][a-z0-9_]*)(?:\{[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-z_]+="(?:[^"\\\n]|\\[\\"n])*")*\})?) '
                         r"(-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)", line)
        test.assertTrue(s, line)
        test.assertEqual(s[2], now)
        test.assertNotIn(s[1], samples)
        samples[s[1]] = float(s[3])
    test.assertTrue(text.endswith("\n") and samples)
    return samples


class Shown(unittest.TestCase):
    """What kvctl makes of answers."""

    def run_kvctl(self, answers, *args, columns=None, locale="C.UTF-8"):
        env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LC_CTYPE", "LANG")}
        env["LC_ALL"] = locale
        if columns:
            env["COLUMNS"] = str(columns)
        with FakeAdmin(answers) as fake:
            r = subprocess.run([KVCTL, "--socket", fake.socket, *args], capture_output=True,
                               timeout=60, env=env)
        return r.stdout.decode("utf-8"), r

    def test_what_made_room(self):
        ladder = {"quality_spaces": 1, "blocks_native": 12, "bytes_native": 3 << 20, "blocks_4_bits": 5, "bytes_4_bits": 1 << 19,
                  "coded_4_bits_total": 40, "freed_4_bits_bytes_total": 7 << 20, "coded_2_bits_total": 9,
                  "freed_2_bits_bytes_total": 1 << 20, "coded_total": 49, "coding_cpu_seconds": .25, "uncoded_total": 3,
                  "evictions_total": 8, "evicted_bytes_total": 2 << 20, "forgotten_total": 1}
        answers = {"status": dict(STATUS, **ladder), "tenants": {"tenants": []}}
        text = self.run_kvctl(answers, "status")[0]
        for line in ("precision native 12 blocks in 3.0 MiB; 4 bits 5 blocks in 512 KiB\n",
                     "coded to 4 bits 40, freed 7.0 MiB; to 2 bits 9, freed 1.0 MiB\n",
                     "coding took 0.25 s of processors, in vain 3 blocks\n", "evicted 8, freed 2.0 MiB; forgotten 1\n"):
            self.assertIn(line, text)
        # Of exact spaces there is nothing to tell.
        answers["status"].update(quality_spaces=0, coded_total=0)
        self.assertNotIn("precision", self.run_kvctl(answers, "status")[0])

    def test_tables_fit(self):
        answers = {"tenants": {"tenants": [tenant(1), tenant(2, name="x" * 60)]}}
        wide = self.run_kvctl(answers, "tenants")[0]
        self.assertIn("x" * 60, wide)
        self.assertNotIn("no room", wide)
        title = wide.splitlines()[0].split()
        for columns in range(200, 39, -7):
            text = self.run_kvctl(answers, "tenants", columns=columns)[0]
            lines = text.splitlines()
            self.assertLessEqual(max(len(x) for x in lines[:3]), columns, columns)
            shown, left_out = lines[0].split(), []
            if lines[3:]:
                left_out = lines[3].split("(no room for ")[1].split(";")[0].split(", ")
            self.assertEqual(sorted(shown + left_out), sorted(title), columns)
            for always in ("TENANT", "BLOCKS", "CHARGED", "SHARE", "HIT%"):
                self.assertIn(always, shown, columns)
            # A name that is cut says so.
            name = lines[2].split()[0]
            self.assertTrue(name == "x" * 60 or name.endswith("x~"), (columns, name))

    def test_metrics_of_any_names(self):
        device = {"name": "gpu", "device": 0, "queues": {"urgent": {"done_total": 7}}, "blocks": 3,
                  "tenants": [{"tenant": "a", "tenant_id": 1, "blocks": 1}, {"tenant": "a", "tenant_id": 2, "blocks": 2}]}
        answers = {"status": dict(STATUS, blocks=10), "devices": {"devices": [device]},
                   "spaces": {"spaces": [{"space": 0, "tenant": "a", "tenant_id": 1, "blocks": 5,
                                          "model": 'x"y\\z\nkvpool_lie 1'}]},
                   "tenants": {"tenants": [tenant(1, name="a"), tenant(2, name="a")]}}
        samples = metrics(self, self.run_kvctl(answers, "metrics")[0])
        self.assertEqual(samples['kvpool_tenant_blocks{tenant="a",id="1"}'], 10)
        self.assertEqual(samples['kvpool_tenant_blocks{tenant="a",id="2"}'], 10)
        self.assertEqual(samples['kvpool_space_blocks{space="0",tenant="a",tenant_id="1",model="x\\"y\\\\z\\nkvpool_lie 1"}'], 5)
        self.assertEqual(samples['kvpool_device_queues_urgent_done_total{device="gpu"}'], 7)
        self.assertEqual(samples['kvpool_device_tenant_blocks{device="gpu",tenant="a",tenant_id="2"}'], 2)
        self.assertNotIn("kvpool_lie", samples)

    def test_a_terminal_says_how_wide_it_is(self):
        answers = {"tenants": {"tenants": [tenant(1, name="x" * 60)]}}
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 72, 0, 0))
        env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
        with FakeAdmin(answers) as fake, os.fdopen(master, "rb", buffering=0) as out:
            subprocess.run([KVCTL, "--socket", fake.socket, "tenants"], stdout=slave, timeout=60,
                           env=env, check=True)
            lines = out.read(1 << 16).decode().split("\r\n")
            os.close(slave)
        self.assertLessEqual(max(len(x) for x in lines[:2]), 72)
        self.assertIn("no room for", lines[2])

    def test_names_cannot_write_to_the_terminal(self):
        rows = [{"session": 1, "tenant": "t", "name": "a\x1b[2J\nb\x9b\u202e\u00e9\u6f22\x7f"}]
        text = self.run_kvctl({"clients": {"clients": rows}}, "clients")[0]
        self.assertIn("a?[2J?b??\u00e9\u6f22?", text)
        # As wide as what is shown is.
        head, row = text.splitlines()
        self.assertEqual(head.index("PID") - head.index("NAME"), 13 + 2)
        self.assertNotIn("\u00e9", self.run_kvctl({"clients": {"clients": rows}}, "clients",
                                                  locale="C")[0])
        for answer in ({"error": "bad \x1b[31m"}, {"block": {"model": "\x1b[31m"}}):
            text, r = self.run_kvctl({"inspect": answer}, "inspect", "12345678")
            self.assertNotIn(b"\x1b", r.stdout + r.stderr)

    def test_how_many_there_are(self):
        blocks = [{"key": "%032x" % i, "tenant": "t", "state": "live"} for i in range(100)]
        text = self.run_kvctl({"blocks": {"blocks": blocks, "total": 12345}}, "blocks")[0]
        self.assertEqual(text.splitlines()[-1], "100 of 12345; --limit N lists more")
        text = self.run_kvctl({"blocks": {"blocks": blocks, "total": 100}}, "blocks")[0]
        self.assertNotIn(" of ", text)

    def test_rates_are_the_daemons(self):
        rates = {"interval_seconds": 5.0, "lookups_per_second": 12.0, "commits_per_second": 3.0,
                 "asked_tokens_per_second": 400.0, "matched_tokens_per_second": 180.0,
                 "put_tokens_per_second": 64.0, "evictions_per_second": 0.2, "hit_ratio": 0.45,
                 "charged_bytes_per_second": -3.0 * (1 << 20)}
        tenants = [tenant(1, rates=dict(rates, hit_ratio=0.75)), tenant(2, rates=None)]
        answers = {"status": dict(STATUS, rates=rates), "clients": {"clients": []},
                   "tenants": {"tenants": tenants}}
        for args in (("status",), ("status", "--watch=0.1", "--count=1")):
            text = self.run_kvctl(answers, *args)[0]
            line = [x for x in text.replace("\n    ", "").splitlines() if x.startswith("rates ")][0]
            self.assertIn("12 lookups of 400 tokens, 3.0 commits of 64 tokens, 0.2 evictions a "
                          "second", line)
            self.assertLessEqual(max(map(len, text.split("\n\n")[0].splitlines())), 100)
            self.assertIn("45.0 % of the tokens asked for were cached", line)
            self.assertIn("memory -3.0 MiB a second", line)
            titles = [x for x in text.splitlines() if x.startswith("TENANT")][0].split()
            row = [x for x in text.splitlines() if x.startswith("tenant-1")][0]
            row = dict(zip(titles, row.replace(" GiB", "G").replace(" MiB", "M").split()))
            self.assertEqual([row[x] for x in ("HIT%", "NOW%", "ASKED/S", "PUT/S", "EVICTED/S",
                                               "CHARGED/S")],
                             ["25.0", "75.0", "400", "64", "0.2", "-3.0M"])
        # Before the daemon has any, and where nothing was asked for.
        answers["status"]["rates"] = None
        answers["tenants"] = {"tenants": [tenant(1, rates=None)]}
        text = self.run_kvctl(answers, "status")[0]
        self.assertIn("rates     not known in the daemon's first seconds", text)
        self.assertNotIn("NOW%", text)
        answers["status"]["rates"] = dict(rates, hit_ratio=None)
        self.assertNotIn("were cached", self.run_kvctl(answers, "status")[0])

    def test_the_advisor_if_there_is_one(self):
        advisor = {"age_seconds": 1.25, "cycle_seconds": .0371, "nodes": 100000, "edges": 1000000,
                   "memory_bytes": 43 << 20, "dropped_total": 17, "spared_total": 5,
                   "stale_total": 3, "consulted_total": 40}
        answers = {"status": dict(STATUS, advisor=advisor), "tenants": {"tenants": []}}
        text = self.run_kvctl(answers, "status")[0]
        self.assertIn("advisor   ranking 1.2 s old, made in 37.1 ms; 100000 blocks and 1000000 edges in "
                      "43 MiB; dropped events 17\n          spared 5 blocks; without a young ranking "
                      "3 of 40 choices\n", text)
        self.assertNotIn("for devices", text)
        advisor.update(suggested_total=90, prefetched_total=12, prefetched_used_total=3)
        self.assertIn("          named 90 blocks for devices; fetched 12, and of these used 3\n",
                      self.run_kvctl(answers, "status")[0])
        advisor["age_seconds"] = None
        self.assertIn("advisor   no ranking yet;", self.run_kvctl(answers, "status")[0])
        answers["status"]["advisor"] = None
        self.assertNotIn("advisor", self.run_kvctl(answers, "status")[0])

    def test_the_view_fits_the_terminal(self):
        answers = {"status": STATUS, "tenants": {"tenants": [tenant(i) for i in range(200)]},
                   "clients": {"clients": [{"session": i, "tenant": "t", "lookups_total": i}
                                           for i in range(300)]}}
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        with FakeAdmin(answers) as fake, os.fdopen(master, "rb", buffering=0) as out:
            subprocess.run([KVCTL, "--socket", fake.socket, "status", "--watch=0.1", "--count=1"],
                           stdout=slave, timeout=60, check=True)
            # A read of a terminal returns a part of what is there; the last one fails.
            os.close(slave)
            text = b""
            with contextlib.suppress(OSError):
                while part := out.read(1 << 16):
                    text += part
            text = text.decode()
        self.assertLess(text.count("\n"), 30)
        self.assertIn(" of 200, the busiest", text)
        self.assertIn(" of 300, the busiest", text)
        self.assertIn("tenant-199", text)

    def test_use_of_each_model(self):
        rows = [{"tenant": "t", "space": 0, "model": "m", "adapter": "a", "blocks": 12, "payload_bytes": 3 << 20,
                 "asked_tokens_total": 400, "matched_tokens_total": 100, "opens": 2}]
        text = self.run_kvctl({"spaces": {"spaces": rows}}, "spaces", columns=80)[0]
        row = dict(zip(text.splitlines()[0].split(), text.splitlines()[1].replace(" MiB", "M").split()))
        self.assertEqual((row["BLOCKS"], row["PAYLOAD"], row["HIT%"]), ("12", "3.0M", "25.0"))

    def test_devices(self):
        rows = [{"device": 0, "name": "spare", "driver": "host", "state": "up", "blocks": 12, "charged_bytes": 3 << 20,
                 "memory_bytes": 4 << 30, "warmed_total": 20, "behind_total": 5, "dropped_total": 8}]
        answers = {"status": STATUS, "tenants": {"tenants": []}, "clients": {"clients": []}, "devices": {"devices": rows}}
        for words in (("device", "list"), ("status",), ("status", "--watch=0.1", "--count=1")):
            lines = self.run_kvctl(answers, *words, columns=100)[0].splitlines()
            at = [i for i, line in enumerate(lines) if line.startswith(("DEVICE", "NAME"))][0]
            row = dict(zip(lines[at].split(), re.sub(" (?=[MG]iB)", "", lines[at + 1]).split()))
            self.assertEqual((row["NAME"], row["STATE"], row["BLOCKS"], row["MEMORY"], row["SPILLED"], row["DROPPED"]),
                             ("spare", "up", "12", "4.0GiB", "5", "8"))
        # Every payload of a block.
        block = {"key": "ab" * 16, "extent": 1, "offset": 4096,
                 "on_device": {"device": 0, "extent": 7, "offset": 0, "codec": 0, "checksum": "12345"}}
        text = self.run_kvctl({"inspect": {"block": block}}, "inspect", "ab" * 16)[0]
        self.assertRegex(text, "on_device +device 0, extent 7, offset 0, codec 0, checksum 12345\n")
        # Details of the list: tenants' parts, classes that copied something, why a worker ended.
        rows[0].update(error="it hangs\x1b[2J", error_seconds=61.0, tenants=[
            {"tenant": "a", "blocks": 12, "charged_bytes": 3 << 20, "share_bytes": 1 << 30},
            {"tenant": "b", "blocks": 0, "charged_bytes": 0, "share_bytes": 0}], queues={
            "urgent": {"queued": 3, "oldest_seconds": 2.0, "done_total": 20, "failed_total": 1},
            "behind": {"queued": 0, "oldest_seconds": 0.0, "done_total": 0, "failed_total": 0}})
        text = self.run_kvctl(answers, "device", "list")[0]
        lines = {tuple(line.split()[:2]): line for line in text.splitlines() if line}
        self.assertIn("3.0 MiB  1.0 GiB", lines["spare", "a"])
        self.assertNotIn(("spare", "b"), lines)
        self.assertEqual(lines["spare", "urgent"].split()[2:], ["3", "2", "s", "20", "1"])
        self.assertNotIn(("spare", "behind"), lines)
        self.assertIn("spare: a worker ended 1 min 1 s ago: it hangs?[2J", text)
        # What waits of each class, in the view of status, too.
        rows[0]["queues"]["spill"] = {"queued": 1, "oldest_seconds": 61.0}
        for words in (("status",), ("status", "--watch=0.1", "--count=1")):
            self.assertIn("\nspare: 3 urgent, the oldest 2 s; 1 spill, the oldest 1 min 1 s\n",
                          self.run_kvctl(answers, *words)[0])
        # To drain one that is down is no success.
        left = {"device": "spare", "state": "down", "blocks": 0, "charged_bytes": 0, "empty": True}
        answers["device-drain"] = left
        text, r = self.run_kvctl(answers, "device", "drain", "spare")
        self.assertEqual((text, r.returncode), ("spare is down\n", 1))
        left["state"] = "draining"
        text, r = self.run_kvctl(answers, "device", "drain", "spare")
        self.assertEqual((text, r.returncode), ("spare is empty\n", 0))
        # One that is older has none.
        del answers["devices"]
        self.assertNotIn("DEVICE", self.run_kvctl(answers, "status", columns=100)[0])


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
        self.assertEqual(s[0]["put_tokens_total"], 16 * BLOCKS)
        self.assertEqual((s[0]["blocks"], s[0]["payload_bytes"]), (BLOCKS, BLOCKS * s[0]["block_bytes"]))
        t = self.json("tenants")["tenants"]
        self.assertEqual((t[0]["blocks"], t[0]["commits_total"]), (BLOCKS, BLOCKS))
        self.assertEqual(self.json("status")["blocks"], BLOCKS)
        for verb in ("clients", "spaces", "tenants", "blocks", "status"):
            self.assertIn("TENANT", self.kvctl(verb))

    def test_rules_of_spaces(self):
        model = self.json("spaces")["spaces"][0]["model"]

        def why(*args):
            return self.json("space", "set", *args, status=1)["error"]

        self.assertIn("says no floor", why(model, "precision=budget", "budget=40%"))
        self.assertIn("0.4 or 40%", why(model, "budget=none"))
        self.assertIn("no space is called nobodys", why("nobodys", "budget=1"))
        self.assertIn("accepts, which is native/native", why(model, "floor=tq4"))
        self.assertIn("no codec 'tq9'", why(model, "floor=tq9"))
        self.assertEqual(self.json("space", "set", model, "floor=exact")["space"]["floor"], "native/native")
        rule = self.json("space", "set", model, "hot_tokens=32", "stale_tokens=100")["space"]
        self.assertEqual((rule["precision"], rule["hot_tokens"], rule["stale_tokens"]), ("pressure", 32, 100))
        shown = self.json("spaces")["spaces"][0]
        self.assertEqual((shown["hot_tokens"], shown["stale_tokens"]), (32, 100))
        self.assertEqual(shown["dram_bytes"], shown["native_bytes"])

    def test_blocks(self):
        all_blocks = self.json("blocks", "--sort", "depth")
        self.assertEqual([b["depth"] for b in all_blocks["blocks"]],
                         list(range(BLOCKS - 1, -1, -1)))
        self.assertEqual(len(self.json("blocks", "--limit", "2")["blocks"]), 2)
        self.assertEqual(self.json("blocks", "--state", "recipe")["blocks"], [])
        self.assertEqual(len(self.json("blocks", "--space", "0")["blocks"]), BLOCKS)
        self.assertEqual(self.json("blocks", "--space", "9")["blocks"], [])
        self.assertIn("no tenant", self.json("blocks", "--tenant", "x", status=1)["error"])
        self.assertIn("2 of %d; --limit N" % BLOCKS, self.kvctl("blocks", "--limit", "2"))

    def test_tokens(self):
        c, t = self.json("clients")["clients"][0], self.json("tenants")["tenants"][0]
        self.assertEqual((c["asked_tokens_total"], c["matched_tokens_total"]), (16 * BLOCKS, 16 * BLOCKS))
        self.assertEqual((t["asked_tokens_total"], t["matched_tokens_total"]), (16 * BLOCKS, 16 * BLOCKS))
        self.assertIn("100.0", self.kvctl("tenants"))

    def test_one_block(self):
        first, tip = (self.json("blocks", "--sort", "depth")["blocks"][i] for i in (-1, 0))
        seen = self.json("inspect", tip["key"])["block"]
        self.assertTrue(seen["leased"])
        # When it was used is a time since boot; how long ago that was says more.
        since_boot = int(time.clock_gettime(time.CLOCK_MONOTONIC))
        self.assertEqual(seen["idle_seconds"] is None, seen["touched_s"] == 0)
        if seen["touched_s"]:
            self.assertLessEqual(seen["touched_s"] + seen["idle_seconds"], since_boot)
        self.assertEqual(seen["token_ids"], list(range(81, 97)))
        self.assertEqual(seen["ancestors"][-1], first["key"])
        self.assertIn("token_ids", self.kvctl("inspect", tip["key"][:16]))
        self.assertTrue(self.json("pin", first["key"])["block"]["pinned"])
        self.assertEqual([b["key"] for b in self.json("blocks", "--pinned")["blocks"]],
                         [first["key"]])
        self.assertFalse(self.json("unpin", first["key"])["block"]["pinned"])
        self.assertIn("leased", self.json("evict", tip["key"], status=1)["error"])
        self.json("inspect", "0" * 32, status=1)

    def test_numbers_that_readers_would_round(self):
        # Nor has a fraction digits that nobody measured.
        for number in re.findall(r"[0-9]+\.[0-9]+", self.kvctl("--json", "status")):
            self.assertLessEqual(len(number.replace(".", "").lstrip("0")), 12, number)
        for x in (self.json("version")["kvpoold"], self.json("status"),
                  self.json("status")["daemon"]):
            self.assertRegex(x["epoch"], "^[0-9]+$")
        self.assertEqual(self.json("status")["epoch"], self.json("version")["kvpoold"]["epoch"])
        key = self.json("blocks")["blocks"][0]["key"]
        self.assertRegex(self.json("inspect", key)["block"]["checksum"], "^[0-9]+$")

    def test_metrics(self):
        samples = metrics(self, self.kvctl("metrics"))
        tenant = self.json("tenants")["tenants"][0]
        labels = '{tenant="%s",id="%d"}' % (tenant["name"], tenant["id"])
        self.assertEqual(samples["kvpool_blocks"], BLOCKS)
        self.assertEqual(samples["kvpool_tenant_blocks" + labels], BLOCKS)
        self.assertEqual(samples["kvpool_tenant_commits_total" + labels], BLOCKS)
        self.assertEqual([v for k, v in samples.items() if k.startswith("kvpool_space_put_tokens_total{")],
                         [16 * BLOCKS])
        self.assertGreater(samples["kvpool_ledger_slice_seconds"], 0)
        families = self.json("metrics")
        self.assertEqual(sum(len(f["samples"]) for f in families.values()), len(samples))
        self.assertEqual(families["kvpool_tenant_commits_total"]["type"], "counter")
        self.assertFalse([k for k in samples if re.match(r"[a-z_]*_(pid|uid)(\{|$)", k)])

    def test_all_is_leased(self):
        self.assertEqual(self.json("drain")["in_use"], BLOCKS)
        self.assertEqual(self.json("evict", "--all")["evicted"], 0)

    def test_check(self):
        self.assertTrue(self.json("check", "--payloads")["clean"])
        self.assertIn("clean: %d blocks" % BLOCKS, self.kvctl("check"))

    def test_watch(self):
        text = self.kvctl("status", "--watch", "0.1", "--count", "2")
        self.assertEqual(text.count("kvpoold "), 2)
        self.assertEqual(text.count("rates "), 2)
        self.assertIn("watched", text)
        lines = self.kvctl("status", "--watch=0.1", "--count=2", "--json").splitlines()
        self.assertEqual([json.loads(x)["blocks"] for x in lines], [BLOCKS] * 2)

    def test_doctor_knows_the_daemon(self):
        found = json.loads(subprocess.run(
            [KVCTL, "--socket", self.d.socket, "doctor", "--json"], capture_output=True,
            text=True, timeout=60).stdout)
        text = {f["topic"]: f["text"] for f in found["findings"]}
        self.assertIn("process %d" % self.d.pid, text["daemon"])
        self.assertRegex(text["ledger"], r"waited for .* ms")

    def test_portions_of_the_ledger(self):
        ledger = self.json("status")["ledger"]
        self.assertEqual(ledger["slice_seconds"], 50e-6)
        kinds = ledger["portions"]
        self.assertEqual(sorted(kinds), ["call", "chore", "job", "round", "turn"])
        for name, kind in kinds.items():
            self.assertGreaterEqual(kind["longest_seconds"], kind["recent_seconds"], name)
            self.assertLessEqual(kind["recent_seconds"], kinds["round"]["recent_seconds"], name)
        # The client's puts, attaching, and the arena that was made for it.
        for name in ("turn", "call", "job", "round"):
            self.assertGreater(kinds[name]["portions_total"], 0, name)
        calls = kinds["call"]["portions_total"]
        self.json("clients")
        self.assertGreater(self.json("status")["ledger"]["portions"]["call"]["portions_total"], calls)

    def test_not_an_administrator(self):
        if os.geteuid() != 0 or not others_may_run(KVCTL):
            self.skipTest("needs root, and a build folder that others may enter")
        r = subprocess.run([KVCTL, "--socket", self.d.socket, "status"], user=1001, group=1001,
                           extra_groups=[], capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 3, r.stderr)
        self.assertIn("admin_group", r.stderr)


class DaemonsUser(unittest.TestCase):
    """Who else runs as the daemon's user. A uid of its own, which no daemon beside this one has."""

    UID = 60777

    def same_uid(self):
        r = subprocess.run([KVCTL, "--socket", self.d.socket, "doctor", "--json"], capture_output=True,
                           text=True, timeout=60)
        return [(f["finding"], f["text"]) for f in json.loads(r.stdout)["findings"] if f["topic"] == "same uid"]

    def start_as_the_daemons_user(self, path):
        stranger = subprocess.Popen([path, "600"], preexec_fn=lambda: os.setresuid(*[self.UID] * 3))
        self.addCleanup(lambda: (stranger.kill(), stranger.wait()))

    @unittest.skipIf(os.geteuid() != 0, "daemons of this user share its uid")
    def test_its_own_workers_are_no_strangers(self):
        self.d = Daemon({"user": str(self.UID), "devices": [{
            "name": "d0", "driver": "host", "bytes": 1 << 20, "segment": 1 << 20,
            "worker": os.environ["KVPOOL_DEVICE"]}]})
        os.chown(self.d.runtime_dir, self.UID, self.UID)
        with self.d:
            wait_for(lambda: json.loads(subprocess.run(
                [KVCTL, "--socket", self.d.socket, "device", "list", "--json"], capture_output=True,
                text=True, timeout=60).stdout)["devices"][0]["state"] == "up")
            self.assertEqual(self.same_uid(),
                             [("good", "no other process runs as uid %d, the daemon's" % self.UID)])
            # One that only has the worker's name is one, though.
            path = os.path.join(self.d.dir, "kvpool-device")
            shutil.copy(shutil.which("sleep"), path)
            self.start_as_the_daemons_user(path)
            wait_for(lambda: self.same_uid()[0][0] == "problem")
            self.assertRegex(self.same_uid()[0][1], r"^1 process\(es\) run as uid %d.*: kvpool-device \(" % self.UID)


class Kept(unittest.TestCase):
    """evict KEY says what keeps a block."""

    def test_what_keeps_a_block(self):
        with Daemon() as d:
            env = dict(os.environ, KVPOOL_SOCKET=d.socket)
            client = subprocess.Popen([CLIENT, "2", "keep"], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True, env=env)
            self.assertEqual(client.stdout.readline(), "ready\n")

            def ask(*args):
                r = subprocess.run([KVCTL, "--json", *args], env=env, capture_output=True,
                                   text=True, timeout=60)
                return json.loads(r.stdout)

            blocks = {b["depth"]: b for b in ask("blocks")["blocks"] if b["children"]}
            first = blocks[0]["key"]
            tip = [b["key"] for b in ask("blocks")["blocks"] if b["depth"] == 1][0]
            granted = [b["key"] for b in ask("blocks")["blocks"]
                       if b["depth"] == 0 and b["key"] != first][0]
            self.assertEqual(ask("evict", tip),
                             {"error": "the block is leased", "kept_by": ["leased"]})
            self.assertEqual(ask("evict", granted)["kept_by"], ["granted"])
            ask("pin", tip)
            self.assertEqual(ask("evict", tip), {"error": "the block is leased and pinned",
                                                 "kept_by": ["leased", "pinned"]})
            ask("pin", granted)
            self.assertEqual(ask("evict", granted)["kept_by"], ["granted", "pinned"])
            self.assertIn("children", ask("evict", first)["error"])
            client.communicate()
            # The dead client's arena drains: a block is moved once, and is kept by that meanwhile.
            wait_for(lambda: ask("evict", tip)["kept_by"] == ["pinned"])
            for key in (tip, granted):
                ask("unpin", key)
                wait_for(lambda k=key: ask("evict", k).get("evicted") == 1)


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
            self.assertEqual(ask("spaces")["spaces"][0]["blocks"], 7)
            wait_for(lambda: ask("drain")["in_use"] == 0)
            self.assertEqual([s["blocks"] for s in ask("spaces")["spaces"]], [0])
            self.assertEqual(ask("status")["blocks"], 0)
            self.assertTrue(ask("check")["clean"])


if __name__ == "__main__":
    unittest.main()
