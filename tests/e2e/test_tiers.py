# SPDX-License-Identifier: Apache-2.0
"""What kvrun says of blocks that were coded, and tools/demo --tiers: $KVPOOLD, $KVRUN, $KVCTL, $ROOT, $BUILD."""
import array
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Daemon, wait_for  # noqa: E402

KVRUN, KVCTL, ROOT = os.environ["KVRUN"], os.environ["KVCTL"], os.environ["ROOT"]
MODEL = os.path.join(ROOT, "share/models/bytes-4m")
T = 64
with open(os.path.join(ROOT, "share/demo/handbook.txt"), encoding="utf-8") as f:
    PROMPT = f.read()[:5 * T - 20]
STEPS = 2


def probabilities(logits):
    most = max(logits)
    e = [math.exp(x - most) for x in logits]
    return [x / sum(e) for x in e]


def kvrun(where, *more):
    """Its report, and the distributions that the new tokens were chosen from."""
    with tempfile.NamedTemporaryFile() as logits:
        r = subprocess.run([KVRUN, "--model", MODEL, "--prompt", PROMPT, "--steps", str(STEPS), "--json", "--kvpool",
                            where, "--logits", logits.name, *more], capture_output=True, timeout=120)
        assert r.returncode == 0, r.stderr.decode()
        rows = array.array("f")
        rows.frombytes(logits.read())
    n = len(rows) // STEPS
    return json.loads(r.stdout), [probabilities(rows[i * n:(i + 1) * n]) for i in range(STEPS)]


class Floor(unittest.TestCase):
    def test_coded_blocks_are_attended_in_place(self):
        off, native = kvrun("off")
        self.assertEqual([p.index(max(p)) for p in native], off["tokens"])
        with Daemon({"defaults": {"precision": "budget", "budget": 0.15}}) as d:
            def spaces():
                r = subprocess.run([KVCTL, "--socket", d.socket, "--json", "spaces"], stdout=subprocess.PIPE,
                                   check=True, timeout=60)
                return {s["floor"]: s for s in json.loads(r.stdout)["spaces"]}

            cold, same = kvrun(d.socket, "--floor", "tq2")
            self.assertEqual((cold["reused_tokens"], cold["blocks"]["coded"]), (0, 0))
            self.assertEqual((cold["logits_xxh3"], same), (off["logits_xxh3"], native))
            wait_for(lambda: spaces()["tq2/tq2"]["coded_blocks"] == 4)
            def ask(*what):
                r = subprocess.run([KVCTL, "--socket", d.socket, *what], stdout=subprocess.PIPE, check=True, timeout=60)
                return r.stdout.decode()

            # what lies there by precision adds up to what the tenant holds, and is to be seen.
            status, tenant = json.loads(ask("--json", "status")), json.loads(ask("--json", "tenants"))["tenants"][0]
            for x in (status, tenant):
                self.assertEqual(x["blocks_native"] + x["coded_blocks"], x["blocks"])
                self.assertEqual(x["bytes_native"] + x["coded_bytes"], tenant["payload_bytes"])
            self.assertIn("2 bits 4 blocks in ", ask("status"))
            self.assertIn("coded to 2 bits 4, freed ", ask("status"))
            warm, coded = kvrun(d.socket, "--floor", "tq2/tq2", "--no-store")
            self.assertEqual((warm["reused_tokens"], warm["blocks"]["coded"], warm["blocks"]["read"]), (4 * T, 4, 0))
            # Native memory of its own has the block that it computes alone.
            self.assertEqual([warm["blocks"][k] for k in ("decoded", "private", "coding_errors")], [0, 1, 0])
            self.assertNotEqual(warm["logits_xxh3"], off["logits_xxh3"])
            kl = sum(p * math.log(p / q) for p, q in zip(native[0], coded[0]))
            self.assertTrue(0 < kl < .1, kl)
            # Whoever is exact, or accepts less, meets none of them.
            for floor in ((), ("--floor", "tq4")):
                other, _ = kvrun(d.socket, *floor)
                self.assertEqual((other["reused_tokens"], other["logits_xxh3"]), (0, off["logits_xxh3"]))

    def test_every_parameter_can_be_read(self):
        """A-064: what the configuration and the space's owner said, all of it."""
        config = json.load(open(os.path.join(MODEL, "config.json"), encoding="utf-8"))
        with Daemon({"defaults": {"precision": "zones", "hot_tokens": 128, "stale_tokens": 1024, "quality_target": 75,
                                  "recipe_blocks": 96, "max_blocks": 512}}) as d:
            def ask(what):
                r = subprocess.run([KVCTL, "--socket", d.socket, "--json", what], stdout=subprocess.PIPE, check=True,
                                   timeout=60)
                return json.loads(r.stdout)[what][0]

            kvrun(d.socket, "--floor", "tq4/tq2")
            space, tenant = ask("spaces"), ask("tenants")
            self.assertEqual([space[k] for k in ("layers", "kv_heads", "head_dim", "precision", "hot_tokens",
                                                 "stale_tokens", "floor")],
                             [config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"], "zones", 128,
                              1024, "tq4/tq2"])
            self.assertEqual([tenant[k] for k in ("quality_target_ratio", "max_recipes", "max_blocks")], [.75, 96, 512])

    def test_attention_is_reported(self):
        """B-054: what tokens attend to reaches the daemon, and changes no bit of the result."""
        with Daemon({"defaults": {"precision": "budget", "budget": 1.0}}) as d:
            def space():
                r = subprocess.run([KVCTL, "--socket", d.socket, "--json", "spaces"], stdout=subprocess.PIPE,
                                   check=True, timeout=60)
                return json.loads(r.stdout)["spaces"][0]

            cold, _ = kvrun(d.socket, "--floor", "tq2", "--report-attention", "1", "--steps", "8")
            self.assertNotIn("attention_reports", cold)  # nothing was cached when it began
            self.assertEqual((space()["budget_by"], space()["attention_reported_total"]), ("recency", 0))
            plain, same = kvrun(d.socket, "--floor", "tq2", "--steps", "8")
            warm, told = kvrun(d.socket, "--floor", "tq2", "--report-attention", "1", "--steps", "8")
            self.assertEqual((warm["logits_xxh3"], told), (plain["logits_xxh3"], same))
            # The last of eight tokens is not run.
            self.assertEqual((plain.get("attention_reports"), warm["attention_reports"]), (None, 7))
            wait_for(lambda: space()["attention_reported_total"] == 7 * 4)
            self.assertEqual(space()["budget_by"], "attention")
            seldom, _ = kvrun(d.socket, "--floor", "tq2", "--report-attention", "4", "--steps", "9")
            self.assertEqual(seldom["attention_reports"], 2)
            status = subprocess.run([KVCTL, "--socket", d.socket, "status"], stdout=subprocess.PIPE, check=True, timeout=60)
            self.assertIn(b"attention reported of 36 blocks", status.stdout)

    def test_tokens_share_the_bits_of_their_block(self):
        """B-001: what tokens attend to decides which of a block's tokens get more of its bits."""
        _, native = kvrun("off")
        with Daemon({"defaults": {"precision": "budget", "budget": 1.0}}) as d:
            def ask(what):
                r = subprocess.run([KVCTL, "--socket", d.socket, "--json", what], stdout=subprocess.PIPE, check=True,
                                   timeout=60)
                return json.loads(r.stdout)[what][0]

            kvrun(d.socket, "--floor", "smart")
            told, _ = kvrun(d.socket, "--floor", "smart", "--report-attention", "1", "--steps", "40", "--no-store")
            self.assertEqual(told["attention_reports"], 39)
            # A report for which the ring has no room is cut short after some of its blocks, of which it names one at least.
            def reported():
                return ask("tenants")["token_attention_reported_total"]

            wait_for(lambda: reported() >= 39 * T)
            self.assertLessEqual(reported(), 39 * 4 * T)
            subprocess.run([KVCTL, "--socket", d.socket, "space", "set", "bytes-4m", "budget=0.2"], check=True, timeout=60,
                           stdout=subprocess.DEVNULL)
            wait_for(lambda: ask("spaces")["coded_blocks"] == 4)
            self.assertEqual(ask("spaces")["floor"], "smart/smart")
            coded = [ask("tenants")["tokens_coded_%d_bits_total" % bits] for bits in (2, 3, 4, 8)]
            self.assertEqual(sum(coded), 4 * T, coded)
            # Evenly they would have 3 and 2 bits.
            self.assertGreater(coded[2] + coded[3], 0, coded)
            self.assertLessEqual(2 * coded[0] + 3 * coded[1] + 4 * coded[2] + 8 * coded[3], 2.5 * 4 * T)
            warm, lossy = kvrun(d.socket, "--floor", "smart", "--no-store")
            self.assertEqual([warm["blocks"][k] for k in ("coded", "read", "decoded", "coding_errors")], [4, 0, 0, 0])
            kl = sum(p * math.log(p / q) for p, q in zip(native[0], lossy[0]))
            self.assertTrue(0 < kl < .1, kl)

    def test_floors_that_are_none(self):
        """Codecs whose payloads have no size that is known beforehand, or need what nobody has: it runs without, and says why."""
        with Daemon({}) as d:
            for floor, says in (("pca", b"see --floor"), ("lossless", b"see --floor"), ("spectral/tq4", b"see --floor"),
                                ("squat2", b"see --floor"), ("tq4/kvquant3", b"calibration of this model")):
                r = subprocess.run([KVRUN, "--model", MODEL, "--prompt", "x", "--steps", "1", "--kvpool", d.socket, "--floor",
                                    floor], capture_output=True, timeout=60)
                self.assertEqual(r.returncode, 0, r.stderr)
                self.assertIn(b"running without kvpool: ", r.stderr)
                self.assertIn(says, r.stderr)
            for floor in ("kivi2", "kivi4-g64/tq2", "spectral-any/tq4", "smart", "k8v4", "int8/native", "sym4"):
                r = subprocess.run([KVRUN, "--model", MODEL, "--prompt", "x", "--steps", "1", "--kvpool", d.socket, "--floor",
                                    floor], capture_output=True, timeout=60)
                self.assertNotIn(b"running without", r.stderr, floor)

    def test_command_line(self):
        for wrong, says in ((("--floor", "x"), b"a codec"), (("--floor", "0"), b"a codec"),
                            (("--floor", "tq4", "--kvpool", "off"), b"leave out"),
                            (("--floor", "tq4", "--codec", "tq4"), b"leave out"),
                            (("--report-attention", "1"), b"add --floor"),
                            (("--floor", "tq4", "--report-attention", "0"), b"1..65536")):
            r = subprocess.run([KVRUN, "--model", MODEL, "--prompt", "x", *wrong], capture_output=True, timeout=60)
            self.assertEqual(r.returncode, 2, wrong)
            self.assertIn(says, r.stderr)
        for wrong, says in (("/nowhere/x", b"No such file"), ("/dev/full", b"--logits cannot be written")):
            r = subprocess.run([KVRUN, "--model", MODEL, "--prompt", "x", "--steps", "1", "--kvpool", "off", "--logits",
                                wrong], capture_output=True, timeout=60)
            self.assertEqual(r.returncode, 1, wrong)
            self.assertIn(says, r.stderr)


class Demo(unittest.TestCase):
    """The smallest one; it says itself whether all tokens are accounted for, and whether all is as it should be."""

    def test_rows(self):
        r = subprocess.run([sys.executable, os.path.join(ROOT, "tools/demo_tiers.py"), os.environ["BUILD"], "--json",
                            "--prompts", "3"], cwd=ROOT, stdout=subprocess.PIPE, timeout=240)
        self.assertEqual(r.returncode, 0)
        rows = json.loads(r.stdout)["engines"]
        self.assertEqual([e["name"] for e in rows], ["off", "exact", "vram", "tq4", "tq2", "recomputed"])
        self.assertEqual([e["floor"] for e in rows], ["exact"] * 3 + ["tq4", "tq2", "exact"])
        tokens = [k + "_tokens" for k in ("vram", "native", "coded", "recomputed", "computed")]
        for e in rows:
            self.assertEqual(set(e), {"name", "floor", "ttft_ms", "identical", "mean_kl", *tokens})
            self.assertEqual(sum(e[k] for k in tokens), sum(rows[0][k] for k in tokens))
            self.assertGreater(e["ttft_ms"], 0)
            if e["floor"] == "exact":
                self.assertEqual((e["identical"], e["mean_kl"], e["coded_tokens"]), (True, 0, 0), e)
            self.assertTrue(e["identical"] or e["coded_tokens"], e)


if __name__ == "__main__":
    unittest.main()
