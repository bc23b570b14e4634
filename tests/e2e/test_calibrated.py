# SPDX-License-Identifier: Apache-2.0
"""Floors that need a calibration: the daemon finds it in a folder, hands it to clients, and both do with blocks what the codec
does; without one, or with another model's, a space is refused. $KVPOOLD, $KVCTL, $CALIBRATED. Rows A-009, A-025, A-026,
A-027, A-029."""
import json
import os
import struct
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "daemon", "control")]
from harness import Daemon, wait_for  # noqa: E402
from rawclient import CANON, SPACE, SPACE_OPEN, Raw  # noqa: E402

KVCTL, ENGINE = os.environ["KVCTL"], os.environ["CALIBRATED"]
KVQUANT3 = 16 << 8 | 3


def canon(model):
    """As the engine describes its model."""
    c = bytearray(CANON)
    struct.pack_into("=8Id", c, 0, 1, 2, 1, 64, 2, 1, 64, 0, 1e4)
    c[104:104 + len(model)] = model
    struct.pack_into("=12H", c, 104 + 3 * 128, 0, 2, 0, 64, 64, 0, 1, 2, 0, 64, 64, 0)
    struct.pack_into("=II", c, CANON - 16, KVQUANT3, KVQUANT3)
    return bytes(c)


class Calibrated(unittest.TestCase):
    def setUp(self):
        self.d = Daemon({"memory": "16MiB", "extent": "1MiB", "log_level": "info"})
        self.folder = os.path.join(self.d.dir, "calibrations")
        os.mkdir(self.folder, 0o755)
        self.d.write_config({"calibrations": self.folder, "defaults": {"share": "16MiB", "max_blocks": 512}})
        self.addCleanup(lambda: self.d.__exit__(None, None, None))
        self.own = self.make("own.kvpn", "model", 1)
        self.make("narrow.kvpn", "narrow", 2, heads=1)
        self.make("b", "other", 3)
        damaged = self.make("damaged", "damaged", 4)
        with open(damaged, "r+b") as f:
            f.seek(-1, 2)
            byte = f.read(1)
            f.seek(-1, 2)
            f.write(bytes([byte[0] ^ 1]))
        for name, data in ("notes.txt", b"not one"), ("two words", b"x"), (".hidden", b"x"), ("empty", b""):
            with open(os.path.join(self.folder, name), "wb") as f:
                f.write(data)
        with open(os.path.join(self.folder, "large"), "wb") as f:
            f.truncate((16 << 20) + 1)
        os.mkfifo(os.path.join(self.folder, "pipe"))
        os.mkdir(os.path.join(self.folder, "folder"))

    def make(self, name, model, seed, heads=2):
        path = os.path.join(self.folder, name)
        subprocess.run([ENGINE, "make", path, model, str(seed), str(heads)], check=True, timeout=60)
        os.chmod(path, 0o644)
        return path

    def engine(self, *args):
        r = subprocess.run([ENGINE, *args], env=dict(os.environ, KVPOOL_SOCKET=self.d.socket), timeout=120,
                           capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr + self.d.log()[-2000:])
        return r.stdout

    def kvctl(self, *args):
        r = subprocess.run([KVCTL, "--socket", self.d.socket, "--json", *args], capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        return json.loads(r.stdout)

    def test_one_end_to_end(self):
        self.d.start()
        print(self.engine("read", self.own, "model"), end="")
        s, = self.kvctl("spaces")["spaces"]
        self.assertEqual((s["floor"], s["calibration"]), ("kvquant3/kvquant3", "own.kvpn"))
        # What coding loses is what its codec loses of anything: nothing has been raised.
        self.assertGreater(s["quality_checked_total"], 0)
        log = self.d.log()
        self.assertIn("%s/empty is left out: it is empty" % self.folder, log)
        for name in ("damaged", "notes.txt", "empty", "large", "pipe", "folder"):
            self.assertIn("%s/%s is left out: " % (self.folder, name), log)
        self.assertIn("a file in %s is left out: " % self.folder, log)
        self.assertEqual(log.count(" is left out: "), 8)

    def test_keys_with_their_rope(self):
        """A-026: coded as they stand they come back as those do that are coded before their RoPE: within what 3 bits lose."""
        self.d.start()
        print(self.engine("read", self.own, "model", "kvquant3-post/kvquant2"), end="")

    def test_what_does_not_fit(self):
        self.d.start()
        for model, theta in (("nobody", "1e4"), ("narrow", "1e4"), ("model", "1e5"), ("damaged", "1e4")):
            self.engine("refused", model, theta)
        self.assertEqual(self.kvctl("spaces")["spaces"], [])
        self.d.stop()
        self.d.write_config({"calibrations": None})
        self.d.start()
        self.engine("refused", "model", "1e4")

    def test_many_files(self):
        """Which ones are taken does not hang on the order in which the folder has them, nor on how many others are there."""
        for i in range(300):
            with open(os.path.join(self.folder, "junk%03d" % i), "wb") as f:
                f.write(b"x")
        for i in range(70):
            os.link(self.own, os.path.join(self.folder, "own%02d" % i))
        self.d.start()
        log = self.d.log()
        own = ["own%02d" % i for i in range(70)]
        # b, narrow.kvpn and own.kvpn are before them.
        self.assertEqual([n for n in own if "calibration %s/%s: of model" % (self.folder, n) in log], own[:61])
        self.assertIn("%s/own61 and what follows it are left out: there are 64 others" % self.folder, log)
        print(self.engine("read", self.own, "model"), end="")

    def test_nobody_receives(self):
        """Who asks without end and receives nothing has what is in his socket, and no descriptors of the daemon's own."""
        self.d.start()
        open_ones = "/proc/%d/fd" % self.d.pid
        c = Raw(self.d.socket)
        self.addCleanup(c.close)
        c.attach()
        before = len(os.listdir(open_ones))
        c.sock.setblocking(False)
        asked = 0
        try:
            while asked < 2000:
                c.send(SPACE_OPEN, canon(b"model"), tag=asked + 1)
                asked += 1
                if asked % 20 == 0:
                    time.sleep(0.01)
        except BlockingIOError:
            pass
        self.kvctl("spaces")
        time.sleep(0.2)
        self.assertLess(len(os.listdir(open_ones)), before + 8)
        self.assertGreater(asked, 20)
        # All is answered, as it was asked for.
        c.sock.settimeout(60)
        for i in range(asked):
            p = c.receive()
            self.assertEqual((p.type, p.tag, len(p.fds)), (SPACE, i + 1, 1))
            p.close()
        wait_for(lambda: len(os.listdir(open_ones)) <= before)

    def test_another_daemon(self):
        """With another calibration of the model: what is open misses, what is opened anew has that one."""
        self.d.start()
        p = subprocess.Popen([ENGINE, "stays", self.make("zz", "model", 9), "model"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, env=dict(os.environ, KVPOOL_SOCKET=self.d.socket))
        self.addCleanup(p.stdout.close)
        self.assertEqual(p.stdout.readline(), "ready\n")
        self.d.kill()
        os.unlink(self.own)
        self.d.start()
        out, _ = p.communicate("on\n", timeout=120)
        self.assertEqual(p.returncode, 0, out + self.d.log()[-2000:])

    def test_another_calibration_begins_anew(self):
        """What was learnt with one of them says nothing of blocks that are coded with another, and is there when it comes back."""
        self.d.write_config({"state_dir": os.path.join(self.d.dir, "state")})
        if os.geteuid() == 0:
            os.mkdir(self.d.config["state_dir"], 0o755)

        def started(calibration):
            self.d.start()
            self.engine("read", calibration, "model")
            s, = self.kvctl("spaces")["spaces"]
            self.assertGreater(s["quality_checked_total"], 0)
            self.d.stop()
            return s["calibration"], s["quality_start"]

        aside = os.path.join(self.d.dir, "aside")
        self.assertEqual(started(self.own), ("own.kvpn", "default"))
        self.assertEqual(started(self.own), ("own.kvpn", "measured"))
        os.rename(self.own, aside)
        other = self.make("z", "model", 9)
        self.assertEqual(started(other), ("z", "default"))
        self.assertEqual(started(other), ("z", "measured"))
        os.rename(aside, self.own)
        self.assertEqual(started(self.own), ("own.kvpn", "measured"))


if __name__ == "__main__":
    unittest.main()
