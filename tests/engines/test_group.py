#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvpool.connectors.vllm in tensor-parallel vLLMs of two workers, each of which has half of the heads, beside
a real kvpoold. Texts are compared with those of the first such engine, which found nothing."""
import sys
import time
import unittest

from engine import Worker, hit, needs, prompt

needs("torch", "vllm", "cffi")

# pylint: disable=wrong-import-position
from harness import Daemon, wait_for
from test_vllm import check, worker


class Groups(unittest.TestCase):
    def test_two_workers(self):
        """What the workers of one have computed, those of another load; then a daemon that goes."""
        prompts = [prompt(i) for i in range(3)]
        with Daemon({"memory": "512MiB"}) as daemon:
            with Worker(daemon.socket, "2") as a:
                cold = a.ask(prompts=prompts)
                self.assertEqual(cold["hits"], [0, 0, 0])
                a.end()
            with Worker(daemon.socket, "2") as b:
                warm = b.ask(prompts=prompts)
                self.assertEqual((warm["hits"], warm["texts"]), ([hit(1900)] * 3, cold["texts"]))
                for delay in (.01, .05):
                    b.send(prompts=prompts)
                    time.sleep(delay)
                    daemon.kill()
                    self.assertEqual(b.answer()["texts"], cold["texts"])
                    daemon.start()
                wait_for(lambda: b.ask(prompts=prompts)["hits"] == [hit(1900)] * 3, 60)
                self.assertEqual(b.ask(prompts=prompts)["texts"], cold["texts"])
                b.end()
            # One worker has all heads: other blocks.
            with Worker(daemon.socket) as c:
                self.assertEqual(c.ask(prompts=prompts)["hits"], [0, 0, 0])
                c.end()
            check(daemon)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        unittest.main()
