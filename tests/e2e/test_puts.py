# SPDX-License-Identifier: Apache-2.0
"""A prompt that fits its tenant's share is there when it was put, and one that does not says how much
of it is: $KVPOOLD, $KVCTL, $FILL (fill.c)."""
import unittest

from fill import MIB, Filler, ask
from harness import Daemon

def daemon(share, extent):
    return Daemon({"memory": "1GiB", "extent": extent, "defaults": {"share": share}})


class Puts(unittest.TestCase):
    def put_all(self, share, mib, prompts, extent="64MiB"):
        """Prompts of so many MiB in blocks of 512 KiB, each whole when it was put."""
        with daemon(share, extent) as d, Filler(d, 32) as client:
            for p in range(prompts):
                blocks = mib[p % len(mib)] * 2
                there, stored = client.put(p, blocks)
                print("%s, extents of %s, a prompt of %d MiB: %d of %d there, %d said"
                      % (share, extent, blocks // 2, there, blocks, stored))
                self.assertEqual((there, stored), (blocks, blocks))
            self.assertTrue(ask(d, "check")["clean"])

    def test_six_prompts_of_three_quarters(self):
        self.put_all("400MiB", [300], 6)

    def test_prompts_of_100_and_150_in_256(self):
        self.put_all("256MiB", [100, 150], 6)

    def test_a_second_model(self):
        """The size of extents does not matter: none is more than a sixteenth of the share."""
        for extent in ("64MiB", "8MiB"):
            with daemon("96MiB", extent) as d, Filler(d, 64, "second") as other, \
                    Filler(d, 32) as client:
                self.assertEqual(other.put(0, 8)[0], 8)
                there, stored = client.put(0, 60)
                print("96MiB beside another model, extents of %s: %d of 60 there, %d said"
                      % (extent, there, stored))
                self.assertEqual((there, stored), (60, 60))

    def test_what_does_not_fit_is_there_in_part(self):
        """Twice the share: the beginning stays, the rest is refused, and the count is what is there."""
        with daemon("128MiB", "64MiB") as d, Filler(d, 32) as client:
            there, stored = client.put(0, 512)
            print("a prompt of twice the share: %d of 512 there, %d said" % (there, stored))
            self.assertEqual(there, stored)
            # All that the share holds but for the catalog, and what was granted ahead.
            self.assertGreater(there * MIB // 2, 128 * MIB * 3 // 4)
            self.assertTrue(ask(d, "check")["clean"])
            # It does not keep others out.
            self.assertEqual(client.put(1, 100), [100, 100])

    def test_a_full_share_holds_blocks(self):
        """Of a share that two clients keep full, what they may write next is a small part."""
        with Daemon({"memory": "1GiB", "defaults": {"share": "80MiB"}}) as d, \
                Filler(d, 16) as one, Filler(d, 16) as other:
            held = []
            for p in range(40):
                (one, other)[p % 2].put(p, 45)
                t = ask(d, "tenants")["tenants"][0]
                if t["evictions_total"] > 45:
                    held.append(t["blocks"] * MIB // 4 / (t["share_bytes"] - t["metadata_bytes"]))
            mean = sum(held) / len(held)
            print("blocks in a full share of 80MiB: %.3f of it, %.3f at least" % (mean, min(held)))
            self.assertGreater(mean, .84)


if __name__ == "__main__":
    unittest.main()
