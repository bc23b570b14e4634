#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two vLLM processes at once on conversations of agents: prefix caches of their own against kvpool, at
equal bytes of all together.

    conversations.py --trace FOLDER[=BYTES]... [--blocks N]... [--routing free|session]

A FOLDER has a *.jsonl file for each conversation, a line for each request: {"timestamp": microseconds,
"input": the whole prompt, ...}. BYTES of text are a token (1), so that conversations that are longer than the
model's context keep some of their growth; what is beyond the context is cut off. All conversations
begin at once; a request is sent when the one before it in its conversation has been answered, and the
next ones are those that were first in the trace. They go to whichever process is free ("free"), or to
one process for each conversation ("session").

"private": each process has N blocks of 64 tokens and vLLM's prefix cache. "pool": each has OWN blocks, with the
same prefix cache, and kvpoold has the memory of the 2 * (N - OWN) others.
"""
import argparse
import collections
import glob
import hashlib
import json
import os
import sys
import threading
import time

from engine import MODEL, T, Worker, needs, prompt, serve

needs("torch", "vllm", "cffi")

# pylint: disable=wrong-import-position
from harness import Daemon

import kvpool

CONTEXT, OWN = 2048, 33  # blocks that hold one request of that length, and one
BLOCK_BYTES = 4 * 2 * 2 * 128 * 2 * T  # layers, keys and values, heads, elements, bytes: of the model


def worker(socket, blocks, core):
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                      VLLM_CPU_OMP_THREADS_BIND=core, VLLM_LOGGING_LEVEL="ERROR")
    from vllm import LLM, SamplingParams  # pylint: disable=import-outside-toplevel
    from vllm.config import KVTransferConfig  # pylint: disable=import-outside-toplevel
    more = {}
    if socket != "off":
        more["kv_transfer_config"] = KVTransferConfig(
            kv_connector="KvpoolConnector", kv_connector_module_path="kvpool.connectors.vllm",
            kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config={"socket": socket})
    out = os.dup(1)
    os.dup2(2, 1)
    llm = LLM(model=MODEL, skip_tokenizer_init=True, dtype="float16", block_size=T, max_model_len=CONTEXT,
              enforce_eager=True, enable_prefix_caching=True, num_gpu_blocks_override=int(blocks) + 1, **more)
    os.dup2(out, 1)
    first = SamplingParams(temperature=0, max_tokens=1, detokenize=False, ignore_eos=True)

    def handle(ids):
        start = time.perf_counter()
        done = llm.generate([{"prompt_token_ids": ids}], first, use_tqdm=False)[0]
        return {"ms": (time.perf_counter() - start) * 1e3, "hit": done.num_cached_tokens}

    handle(prompt(99, 200))  # what is done once
    llm.reset_prefix_cache()
    serve(handle)
    llm.llm_engine.engine_core.shutdown()


def token_ids(text, piece):
    data = text.encode()
    if piece == 1:
        ids = list(data)
    else:
        ids = [hashlib.blake2b(data[i:i + piece], digest_size=1).digest()[0]
               for i in range(0, len(data) - piece + 1, piece)]
    return [256] + ids[:CONTEXT - T - 1]


def conversations(traces):
    """Of each: [(microseconds after its beginning, token ids)]."""
    found = []
    for trace in traces:
        folder, _, piece = trace.partition("=")
        for name in sorted(glob.glob(os.path.join(folder, "*.jsonl"))):
            with open(name, encoding="utf-8") as f:
                rows = sorted((json.loads(line) for line in f), key=lambda r: r["timestamp"])
            found.append([(r["timestamp"] - rows[0]["timestamp"], token_ids(r["input"], int(piece or 1)))
                          for r in rows])
    if not found:
        sys.exit("no conversations in %s" % ", ".join(traces))
    return found


class Turns:
    """Who is next: the first in the trace of those whose conversation waits for no answer."""

    def __init__(self, all_of_them, routing):
        self.left = [collections.deque(c) for c in all_of_them]
        self.busy, self.routing = set(), routing
        self.changed = threading.Condition()

    def take(self, process):
        """(conversation, token ids); None: there is no more for this process."""
        with self.changed:
            while True:
                mine = [i for i, c in enumerate(self.left)
                        if c and (self.routing == "free" or i % 2 == process)]
                ready = [i for i in mine if i not in self.busy]
                if not mine:
                    return None
                if ready:
                    i = min(ready, key=lambda i: self.left[i][0][0])
                    self.busy.add(i)
                    return i, self.left[i].popleft()[1]
                self.changed.wait()

    def over(self, i):
        with self.changed:
            self.busy.discard(i)
            self.changed.notify_all()


def run(all_of_them, routing, socket, blocks):
    """(tokens, answers) of all requests."""
    turns, done = Turns(all_of_them, routing), []

    def drive(process, engine):
        while True:
            turn = turns.take(process)
            if turn is None:
                return
            answer = engine.ask(ids=turn[1])
            done.append((len(turn[1]), answer))
            turns.over(turn[0])

    with Worker(socket, str(blocks), "0") as a, Worker(socket, str(blocks), "1") as b:
        for engine in (a, b):  # both are ready
            engine.ask(ids=prompt(98, 100))
        threads = [threading.Thread(target=drive, args=x) for x in enumerate((a, b))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        a.end()
        b.end()
    return done


def line(routing, blocks, mode, done, more=""):
    tokens, hit = sum(n for n, _ in done), sum(a["hit"] for _, a in done)
    ms = sorted(a["ms"] for _, a in done)
    print("%s, %d blocks each, %s: %d requests, %d of %d tokens reused (%.3f), first token p50 %.1f ms, "
          "p99 %.1f ms%s" % (routing, blocks, mode, len(done), hit, tokens, hit / tokens,
                             ms[len(ms) // 2], ms[len(ms) * 99 // 100], more), flush=True)
    return hit / tokens


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    args.add_argument("--trace", action="append", required=True)
    args.add_argument("--blocks", type=int, action="append")
    args.add_argument("--routing", choices=["free", "session"], action="append")
    args = args.parse_args()
    all_of_them = conversations(args.trace)
    for blocks in args.blocks or [256]:
        for routing in args.routing or ["free", "session"]:
            private = line(routing, blocks, "private", run(all_of_them, routing, "off", blocks))
            memory = str(2 * (blocks - OWN) * BLOCK_BYTES)
            with Daemon({"memory": memory, "defaults": {"share": memory}}) as daemon:
                done = run(all_of_them, routing, daemon.socket, OWN)
                with kvpool.Client(daemon.socket) as client:
                    stats = client.stats()
            pool = line(routing, blocks, "pool", done, ", %d blocks in the pool of %s bytes, indexes included" % (
                stats["blocks"], memory))
            print("%s, %d blocks each: %.2f times the hit ratio" % (routing, blocks, pool / private),
                  flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        main()
