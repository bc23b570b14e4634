# SPDX-License-Identifier: Apache-2.0
"""Drives fill.c ($FILL) and asks kvctl ($KVCTL), for tests of limits and of memory."""
import json
import os
import subprocess

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
