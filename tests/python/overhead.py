#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what calls of the Python package cost, in microseconds: the shortest of many rounds, beside a real
kvpoold, for a prompt of 4,096 tokens in 64 blocks."""
import array
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import Daemon, wait_for  # pylint: disable=wrong-import-position

import kvpool  # pylint: disable=wrong-import-position

TOKENS, T = 4096, 64


def microseconds(call, rounds=60, calls=100):
    shortest = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest / calls * 1e6


def main():
    with Daemon({"memory": "256MiB"}) as daemon, kvpool.Client(daemon.socket, timeout=20) as client:
        space = client.space("overhead", 2, 2, 8, block_tokens=T)
        tokens = array.array("I", range(TOKENS))
        wide, listed = array.array("q", tokens), list(tokens)
        space.commit(space.reserve(TOKENS // T), tokens)
        client.flush()
        wait_for(lambda: space.match(tokens).n_tokens == TOKENS)
        match = space.match(tokens)

        def look(ids):
            with space.match(ids) as m:
                return m.n_tokens
        rows = [("match + info + release, array of uint32", lambda: look(tokens)),
                ("match + info + release, array of int64", lambda: look(wide)),
                ("match + info + release, list", lambda: look(listed)),
                ("match from an earlier one + release", lambda: space.match(tokens[:T], after=match).release()),
                ("one block as a buffer", lambda: match.block(7)),
                ("keys and values of a layer", lambda: match.layer(7, 1)),
                ("memoryview of a block", lambda: memoryview(match.block(7))),
                ("addresses of all blocks", match.addresses),
                ("export", match.export)]
        for name, call in rows:
            print("%-42s %8.2f" % (name, microseconds(call)))
        match.release()


main()
