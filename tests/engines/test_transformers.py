#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvpool.connectors.transformers in real engine processes beside a real kvpoold: what is shared, that
texts and logits are those of an engine without kvpool bit for bit, and that deaths on either side cost
time only. `test_transformers.py table` prints times to the first token instead."""
import hashlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import unittest

from engine import MODEL, ROOT, T, Worker, hit, needs, prompt, serve

needs("torch", "transformers", "cffi")

# pylint: disable=wrong-import-position
import torch
from harness import Daemon, wait_for
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

import kvpool
from kvpool.connectors.transformers import SharedPrefixes, _Layer, model_digest

STEPS = 16
torch.set_num_threads(1)


def load(path=MODEL):
    return LlamaForCausalLM.from_pretrained(path, dtype=torch.float32,
                                            attn_implementation="sdpa").eval()


def small(seed=0, **more):
    """A model of random weights, of a moment."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=258, hidden_size=32, intermediate_size=48,
                                        num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, **more)).eval()


@torch.inference_mode()
def run(model, ids, cache, steps=STEPS):
    """One request as an engine does it: what was reused, the text, a digest of all logits, and
    milliseconds to the first token."""
    start = time.perf_counter()
    if callable(cache):
        cache = cache()
    reused = getattr(cache, "hit", 0)
    logits = model(torch.tensor([ids[reused:]]), past_key_values=cache, logits_to_keep=1).logits[0, -1]
    out, digest = [], hashlib.sha256()
    for step in range(steps):
        digest.update(logits.numpy().tobytes())
        out.append(int(logits.argmax()))
        if not step:
            ttft = (time.perf_counter() - start) * 1e3
        logits = model(torch.tensor([out[-1:]]), past_key_values=cache).logits[0, -1]
    return cache, {"hit": reused, "tokens": out, "logits": digest.hexdigest(), "ttft": ttft}


def worker(socket, name="bytes-4m", digest="", block=str(T)):
    model = load()
    shared = None
    if socket != "off":
        model.set_attn_implementation("kvpool")
        shared = SharedPrefixes(model, name, socket=socket, timeout=5, block_tokens=int(block),
                                weights_digest=bytes.fromhex(digest) if digest else None)
    run(model, prompt(0, 200), DynamicCache(config=model.config))  # what is done once

    def handle(ids, store=True, for_ever=False):
        cache, result = run(model, ids, (lambda: shared.cache(ids)) if shared else
                            DynamicCache(config=model.config))
        if shared:
            result["stored"] = cache.store(ids + result["tokens"]) if store else 0
            cache.close()
            shared.flush()
        for i in itertools.count() if for_ever else ():  # under new names all the time
            cache = shared.cache([257, i % 256, i // 256] + ids)
            run(model, ids, cache, 1)
            for j in range(50):
                cache.store([257, j, i % 256, i // 256] + ids[4:])
                cache._stored = 0  # pylint: disable=protected-access
        return result
    serve(handle)
    if shared:
        shared.flush()
        shared.close()


class Engines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon({"memory": "512MiB"}).start()
        cls.prompts = [prompt(i) for i in range(3)] + [prompt(0)[:1300] + prompt(4, 400)]
        with Worker("off") as off:
            cls.off = [off.ask(ids=p) for p in cls.prompts]
            off.end()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def same(self, one, other):
        self.assertEqual(one["tokens"], other["tokens"])
        self.assertEqual(one["logits"], other["logits"])

    def check(self, daemon=None):
        """kvctl check finds nothing, as soon as what dead processes left is cleaned up."""
        def clean():
            r = subprocess.run([os.environ["KVCTL"], "--socket", (daemon or self.daemon).socket, "check"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                               check=False)
            return r.returncode == 0 or print(r.stdout)
        wait_for(clean)

    def test_one_ends_another_begins(self):
        with Worker(self.daemon.socket) as a:
            for p, off in zip(self.prompts[:3], self.off):
                cold = a.ask(ids=p)
                self.assertEqual((cold["hit"], cold["stored"]), (0, (len(p) + STEPS) // T * T))
                self.same(cold, off)
            a.end()
        with Worker(self.daemon.socket) as b:
            for p, off in zip(self.prompts[:3], self.off):
                warm = b.ask(ids=p)
                self.assertEqual(warm["hit"], hit(len(p)))
                self.same(warm, off)
            branch = b.ask(ids=self.prompts[3])
            self.assertEqual(branch["hit"], 1300 // T * T)
            self.same(branch, self.off[3])
            b.end()
        self.check()

    def test_killed_while_it_stores(self):
        for delay in (0, .011, .023):
            with Worker(self.daemon.socket) as a, kvpool.Client(self.daemon.socket) as client:
                a.ask(ids=prompt(20, 400))
                before = client.stats()["blocks"]
                a.send(ids=prompt(21, 700), for_ever=True)
                wait_for(lambda c=client, n=before: c.stats()["blocks"] > n + 30)
                time.sleep(delay)
                a.kill()
            self.check()
        with Worker(self.daemon.socket) as b:
            self.assertEqual(b.ask(ids=prompt(20, 400))["hit"], hit(400))
            b.end()

    def test_daemon_killed_and_restarted(self):
        with Daemon({"memory": "512MiB"}) as daemon:
            with Worker(daemon.socket) as a:
                self.same(a.ask(ids=self.prompts[0]), self.off[0])
                for i in (1, 2, 0, 3):
                    a.send(ids=self.prompts[i])
                    time.sleep(.05 * i)
                    daemon.kill()
                    self.same(a.answer(), self.off[i])
                    a.send(ids=self.prompts[i])
                    time.sleep(.03 * i)
                    daemon.start()
                    self.same(a.answer(), self.off[i])
                # It attaches again by itself, stores, and finds what it stored.
                wait_for(lambda: a.ask(ids=self.prompts[0])["hit"] == hit(1900))
                a.end()
            self.check(daemon)

    def test_daemon_absent(self):
        with Worker("/nonexistent/kvpool.sock") as a:
            alone = a.ask(ids=self.prompts[0])
            self.assertEqual((alone["hit"], alone["stored"]), (0, 0))
            self.same(alone, self.off[0])
            a.end()

    def test_daemon_stopped(self):
        with Daemon({"memory": "512MiB"}) as daemon:
            with Worker(daemon.socket) as a:
                a.ask(ids=self.prompts[0])
                os.kill(daemon.pid, signal.SIGSTOP)
                try:
                    for i in (0, 1):
                        self.same(a.ask(ids=self.prompts[i]), self.off[i])
                finally:
                    os.kill(daemon.pid, signal.SIGCONT)
                wait_for(lambda: a.ask(ids=self.prompts[1])["hit"] == hit(1900))
                a.end()
            self.check(daemon)

    def test_kvrun_reads_and_writes_the_same_blocks(self):
        text = bytes(prompt(30)[1:]).decode()

        def kvrun(text, *more):
            r = subprocess.run([os.environ["KVRUN"], "--model", MODEL, "--prompt", text, "--steps",
                                str(STEPS), "--kv-dtype", "f32", "--json", *more],
                               stdout=subprocess.PIPE, timeout=600, check=True)
            return json.loads(r.stdout)
        pool = ("--kvpool", self.daemon.socket)
        first = kvrun(text, *pool)
        self.assertEqual(first["reused_tokens"], 0)
        other = prompt(31)
        with Worker(self.daemon.socket, "bytes-4m", first["weights_digest"]) as a:
            found = a.ask(ids=prompt(30), store=False)
            self.assertEqual(found["hit"], hit(1900))
            self.assertEqual(found["tokens"], first["tokens"])
            put = a.ask(ids=other)
            self.assertEqual(put["hit"], 0)
            a.end()
        second = kvrun(bytes(other[1:]).decode(), *pool)
        self.assertEqual(second["reused_tokens"], hit(1900))
        self.assertEqual(second["tokens"], put["tokens"])


class Parts(unittest.TestCase):
    """What needs no engine process of its own."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon({"memory": "256MiB"}).start()
        cls.ids = [(i * 7) % 250 for i in range(300)]

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def shared(self, model, *args, **more):
        shared = SharedPrefixes(model, *args, socket=self.daemon.socket, timeout=20, **more)
        self.addCleanup(shared.close)
        return shared

    def test_layers_grow_as_those_of_transformers(self):
        torch.manual_seed(1)
        ours, theirs = _Layer(), DynamicLayer()

        def both(call):
            results = [call(layer) for layer in (ours, theirs)]
            self.assertEqual(ours.get_seq_length(), theirs.get_seq_length())
            for half in ("keys", "values"):
                a, b = getattr(ours, half), getattr(theirs, half)
                self.assertTrue(a is b is None or torch.equal(a, b))
            return results

        def more(n, batch=1):
            k, v = torch.rand(batch, 2, n, 4), torch.rand(batch, 2, n, 4, requires_grad=True)
            for result in both(lambda layer: [x.detach() for x in layer.update(k, v)]):
                self.assertEqual(len(result), 2)
        with torch.inference_mode():
            more(5)
        more(3)
        for n in (300, 1, 1, 700, 1):
            more(n)
        both(lambda layer: layer.crop(-40))
        more(2)
        kept = ours.keys
        more(1)
        self.assertEqual(ours.keys.data_ptr(), kept.data_ptr())  # not copied for a token
        both(lambda layer: layer.batch_repeat_interleave(3))
        more(2, 3)
        both(lambda layer: layer.reorder_cache(torch.tensor([2, 0, 0])))
        more(1, 3)
        both(lambda layer: layer.batch_select_indices(torch.tensor([1])))
        more(4)
        both(lambda layer: layer.reset())
        more(6)

    def test_generate(self):
        model = small()
        shared = self.shared(model, "generate")
        ids = torch.tensor([self.ids])
        plain = model.generate(ids, max_new_tokens=40, do_sample=False)
        with shared.cache(ids) as cache:
            self.assertEqual(cache.hit, 0)
            out = model.generate(ids, past_key_values=cache, max_new_tokens=40, do_sample=False)
            self.assertTrue(torch.equal(out, plain))
            # The last token that was generated has no keys yet.
            self.assertEqual(cache.store(out), 339 // T * T)
            self.assertEqual(cache.store(out), 339 // T * T)
        shared.flush()
        with shared.cache(out) as cache:  # the next turn of a conversation
            self.assertEqual(cache.hit, hit(340))
            again = model.generate(out, past_key_values=cache, max_new_tokens=90, do_sample=False)
            self.assertEqual(cache.store(again), 429 // T * T)
        self.assertTrue(torch.equal(again, model.generate(out, max_new_tokens=90, do_sample=False)))
        # Beams are several sequences, whose cache cannot be stored, but is right.
        with shared.cache(ids) as cache:
            cache.batch_repeat_interleave(3)
            beams = model.generate(ids, past_key_values=cache, num_beams=3, max_new_tokens=8)
            self.assertRaises(ValueError, cache.store, beams)
        self.assertTrue(torch.equal(beams, model.generate(ids, num_beams=3, max_new_tokens=8)))

    def test_what_makes_two_models_one(self):
        model, twin, other = small(1), small(1), small(2)
        self.assertEqual(model_digest(model), model_digest(twin))
        digests = [model_digest(m) for m in (model, other, small(1, rms_norm_eps=1e-3))]
        self.assertEqual(len(set(digests)), 3)
        with self.shared(model, "m").cache(self.ids) as cache:
            run(model, self.ids, cache, 1)
            self.assertEqual(cache.store(self.ids), 256)
        self.shared(model, "m").flush()
        for m, more, want in ((twin, {}, 256), (other, {}, 0), (twin, {"adapter": "x"}, 0),
                              (small(1).half(), {}, 0)):
            found = wait_for(lambda s=self.shared(m, "m", **more), w=want:
                             [s.cache(self.ids).hit] if s.cache(self.ids).hit == w else None)
            self.assertEqual(found, [want])

    def test_refused(self):
        sliding = LlamaConfig(num_hidden_layers=2)
        sliding.layer_types = ["sliding_attention", "full_attention"]
        sliding.sliding_window = 32
        model = small()
        model.config.layer_types, model.config.sliding_window = sliding.layer_types, 32
        self.assertRaises(ValueError, SharedPrefixes, model)
        self.assertRaises(ValueError, SharedPrefixes, small().double())
        shared = self.shared(small(), "refused")
        self.assertRaises(ValueError, shared.cache, [[1, 2], [3, 4]])
        self.assertRaises(kvpool.Invalid, shared.cache, [-1] * 100)
        self.assertEqual(shared.cache([1]).store([1]), 0)

    def test_evicted_meanwhile(self):
        """What a cache goes on from may be forgotten before it stores: then it stores all."""
        model = small(3)
        shared = self.shared(model, "evicted")
        with shared.cache(self.ids) as cache:
            run(model, self.ids, cache, 1)
            cache.store(self.ids[:128])
        shared.flush()
        cache = shared.cache(self.ids)
        self.assertEqual(cache.hit, 128)
        run(model, self.ids, cache, 1)
        cache.close()
        space = shared.space()
        wait_for(lambda: space.delete(self.ids[:128]) >= 0 and shared.cache(self.ids).hit == 0)
        self.assertEqual(cache.store(self.ids), 256)
        shared.flush()
        self.assertEqual(shared.cache(self.ids).hit, 256)

    def test_attention(self):
        """It has the bits of sdpa, and is none of what a model is."""
        model, texts, digests = small(6), [], []
        for how in ("sdpa", "kvpool"):
            model.set_attn_implementation(how)
            cache = DynamicCache(config=model.config)
            with torch.inference_mode():
                model(torch.tensor([self.ids[:100]]), past_key_values=cache)
            cache.hit = 100
            result = run(model, self.ids, cache)[1]
            texts.append((result["tokens"], result["logits"]))
            digests.append(model_digest(model))
        self.assertEqual(*texts)
        self.assertEqual(*digests)

    def test_memory_serves_again(self):
        """Of a cache that nothing looks at; and not while a tensor does, whatever was closed."""
        model = small(5)
        shared = self.shared(model, "memory")
        with shared.cache(self.ids) as cache:
            run(model, self.ids, cache, 1)
            cache.store(self.ids)
        shared.flush()
        cache = wait_for(lambda: shared.cache(self.ids) if shared.cache(self.ids).hit else None)
        keys, cached = cache.layers[0].keys, cache.layers[1].values.clone()
        cache.close()
        values = cache.layers[1].values
        del cache
        other = shared.cache(self.ids)
        self.assertNotEqual(other.layers[0].keys.data_ptr(), keys.data_ptr())
        other.layers[1].values.fill_(7)
        self.assertTrue(torch.equal(values, cached))
        first = keys.data_ptr()
        del keys, values
        with shared.cache(self.ids) as again:
            self.assertEqual(again.layers[0].keys.data_ptr(), first)
            self.assertTrue(torch.equal(again.layers[1].values, cached))
            text = run(model, self.ids, again)[1]
        self.assertEqual(text["logits"], run(model, self.ids, shared.cache(self.ids))[1]["logits"])

    def test_memory_fits(self):
        """What a long cache has left waits for the next long one: a short one does not hold it."""
        memory = self.shared(small(5), "fits").memory
        first = memory.take(64 << 20).data_ptr()
        short = memory.take(1 << 20)
        self.assertLess(short.untyped_storage().nbytes(), 8 << 20)
        self.assertEqual(memory.take(60 << 20).data_ptr(), first)

    def test_fork(self):
        model = small(4)
        shared = self.shared(model, "fork")
        with shared.cache(self.ids) as cache:
            run(model, self.ids, cache, 1)
            cache.store(self.ids)
        shared.flush()
        child = os.fork()
        if not child:
            status = 1
            try:
                with shared.cache(self.ids) as cache:
                    status = 0 if cache.hit == 256 else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_page(self):
        """The example of docs/engines/transformers.md runs as it stands there."""
        with open(os.path.join(ROOT, "docs/engines/transformers.md"), encoding="utf-8") as f:
            example = f.read().split("```python\n")[1].split("```")[0]
        def example_run():
            return subprocess.run([sys.executable, "-c", example, MODEL], check=True, text=True,
                                  stdout=subprocess.PIPE, timeout=120,
                                  env=dict(os.environ, KVPOOL_SOCKET=self.daemon.socket)).stdout
        self.assertIn("0 tokens were cached", example_run())
        self.assertIn("960 tokens were cached", example_run())


def table():
    """Medians of five prompts of 1,900 tokens on one thread, five times; both engines take turns prompt by
    prompt, since other work on the machine costs both the same then."""
    prompts = [prompt(40 + i) for i in range(5)]
    print("tokens a block  without kvpool  blocks of a dead process  reused of 1900  ratio")
    for block in ("64", "32", "16"):
        with Daemon({"memory": "512MiB"}) as daemon:
            with Worker(daemon.socket, "bytes-4m", "", block) as first:
                for p in prompts:
                    first.ask(ids=p)
                first.end()
            with Worker("off") as off, Worker(daemon.socket, "bytes-4m", "", block) as on:
                done = [(off.ask(ids=p), on.ask(ids=p, store=False)) for p in prompts * 5]
                off.end()
                on.end()
        cold, warm = (statistics.median(d[i]["ttft"] for d in done) for i in (0, 1))
        print("%14s %12.1f ms %22.1f ms %15d %6.1f" %
              (block, cold, warm, min(d[1]["hit"] for d in done),
               statistics.median(d[0]["ttft"] / d[1]["ttft"] for d in done)), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    elif sys.argv[1:2] == ["table"]:
        table()
    else:
        unittest.main()
