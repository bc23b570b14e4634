# SPDX-License-Identifier: Apache-2.0
"""kvpool.connectors.paged beside a real kvpoold, without an engine: what vLLM's scheduler asked is
replayed (vllm/*.json, recorded from vLLM 0.32.0 with 24 pages of 32 tokens, so that prompts are computed
in chunks and requests are preempted), and pages that have right contents or do not say so."""
import array
import ctypes
import hashlib
import importlib
import json
import os
import pickle
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from harness import Daemon, wait_for  # pylint: disable=wrong-import-position

from kvpool import Layer  # pylint: disable=wrong-import-position
from kvpool.connectors.paged import (  # pylint: disable=wrong-import-position
    Scheduler, Spaces, Worker, halves)

T, HEADS, DIM, LAYERS = 32, 1, 8, 2
HALF = T * HEADS * DIM * 2


class Engine:
    """Pages, a scheduler's side and a worker's side, and a model: what it computes for a token is a
    digest of all tokens up to there."""

    def __init__(self, socket, model, pages=64, timeout=20, ranks=({},), rank=0, **more):
        identity = {"model": model, "layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM,
                    "dtype": "float16", "block_tokens": T, "adapter": "test"}
        self.rank = rank
        self.memory = [bytearray(pages * 2 * HALF) for _ in range(LAYERS)]
        views = [memoryview(m) for m in self.memory]
        planes = [halves(self.address(v), pages, 2 * HALF, T, HEADS, DIM, 2) for v in views]
        self.sides = [Spaces("scheduler", identity, socket, timeout, ranks),
                      Spaces("worker", identity, socket, timeout, [ranks[rank]])]
        self.scheduler = Scheduler(self.sides[0], T)
        self.worker = Worker(self.sides[1], T, planes, **more)

    @staticmethod
    def address(view):
        return ctypes.addressof(ctypes.c_char.from_buffer(view))

    def close(self):
        self.scheduler.close()
        self.worker.close()

    def slots(self, pages, t):
        """Where the halves of token t lie, in each layer."""
        at = pages[t // T] * 2 * HALF + t % T * 16
        return [(m, start) for m in self.memory for start in (at, at + HALF)]

    def token(self, ids, t):
        """16 bytes for each half of each layer."""
        key = ids[:t + 1].tobytes()
        return [hashlib.blake2b(key, digest_size=16, salt=bytes([i, self.rank])).digest()
                for i in range(2 * LAYERS)]

    def compute(self, ids, pages, first, end):
        for t in range(first, end):
            for (memory, at), value in zip(self.slots(pages, t), self.token(ids, t)):
                memory[at:at + 16] = value

    def right(self, ids, pages, end):
        return all(memory[at:at + 16] == value for t in range(end)
                   for (memory, at), value in zip(self.slots(pages, t), self.token(ids, t)))


class Replays(unittest.TestCase):
    def replay(self, name, salts=(b"",)):
        """Under each of the salts after the other, in one daemon: what is found is what was recorded with
        an empty cache, so nothing of the former salts is."""
        with Daemon({"memory": "256MiB"}) as daemon:
            for salt in salts:
                seen = self.replay_in(daemon, name, salt)
        return seen

    def replay_in(self, daemon, name, salt):
        with open(os.path.join(HERE, "vllm", name), encoding="utf-8") as f:
            events = json.load(f)
        seen = {"preempted": 0, "chunks": 0, "loaded": 0, "grown": 0}
        e = Engine(daemon.socket, name)
        for side in e.sides:
            side.get(salt)
            wait_for(lambda s=side: s.client.stats()["attached"])
        ids, pages, step = {}, {}, []
        for what, *args in events:
            if what == "ids":
                ids.setdefault(args[0], array.array("I")).extend(args[1])
            elif what == "found":
                request, computed, want = args
                wait_for(lambda r=request, c=computed, n=want: e.scheduler.found(
                    r, salt, lambda first, r=r: ids[r][first:], c) == n)
            elif what == "allocated":
                e.scheduler.allocated(*args)
                seen["loaded"] += args[1]
            elif what == "step":
                request, new, whole, computed, scheduled = args
                seen["preempted"] += whole and request in pages
                seen["chunks"] += scheduled > 1
                seen["grown"] += not whole and bool(new)
                pages[request] = new if whole else pages[request] + new
                step.append((request, computed, scheduled,
                             e.scheduler.step(request, new, whole, computed, scheduled)))
            elif what == "moved":
                jobs = pickle.loads(pickle.dumps([s[3] for s in step if s[3]]))
                e.worker.load(jobs)
                self.assertEqual(e.worker.take_failed(), set())
                for request, computed, scheduled, _ in step:
                    if computed and scheduled > 1 or computed % T == 0:
                        self.assertTrue(e.right(ids[request], pages[request], computed))
                    e.compute(ids[request], pages[request], computed,
                              min(computed + scheduled, len(ids[request])))
                e.worker.store(jobs)
                e.worker.flush()
                step = []
            else:
                self.assertEqual(what, "finished")
                e.scheduler.finished(*args)
        # All whole blocks of all that had keys are there now, and right.
        for request, tokens in ids.items():
            whole = (len(tokens) - 1) // T * T
            wait_for(lambda r=request, t=tokens, n=whole: e.scheduler.found(
                r, salt, lambda first: t[first:], 0) == n)
            e.scheduler.allocated(request, whole)
            mine = list(range(whole // T))
            e.worker.load([e.scheduler.step(request, mine, True, whole, 1)])
            self.assertTrue(e.right(tokens, mine, whole))
            e.scheduler.finished(request)
        e.close()
        return seen

    def test_without_a_prefix_cache_of_its_own(self):
        seen = self.replay("own-cache-off.json", (b"", b"alice" * 7, b"bob" * 11))
        self.assertTrue(all(seen.values()), seen)

    def test_with_a_prefix_cache_of_its_own(self):
        seen = self.replay("own-cache-on.json")
        self.assertTrue(seen["chunks"] and seen["grown"] and seen["preempted"], seen)


class Parts(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon({"memory": "256MiB"}).start()
        self.ids = array.array("I", range(1000, 1000 + 5 * T + 3))

    def tearDown(self):
        self.daemon.stop()

    def engine(self, **more):
        e = Engine(self.daemon.socket, "parts", **more)
        self.addCleanup(e.close)
        for side in e.sides:
            side.get(b"")
            wait_for(lambda s=side: s.client.stats()["attached"])
        return e

    def found(self, e, name, computed, want):
        """What was moved is a miss until its memory is mapped: at most a moment."""
        wait_for(lambda: e.scheduler.found(name, b"", self.source, computed) == want)

    def source(self, first):
        return self.ids[first:]

    def fill(self, e, name="first"):
        e.scheduler.found(name, b"", self.source, 0)
        pages = list(range(6))
        job = e.scheduler.step(name, pages, True, 0, len(self.ids))
        e.compute(self.ids, pages, 0, len(self.ids))
        e.worker.store([job])
        e.worker.flush()
        e.scheduler.finished(name)

    def test_load_that_fails_is_told_and_nothing_wrong_is_stored(self):
        a, b = self.engine(), self.engine()
        self.fill(a)
        self.found(b, "r", 0, 5 * T)
        b.scheduler.allocated("r", 5 * T)
        pages = [9, 8, 7, 6, 5, 4]
        job = b.scheduler.step("r", pages, True, 5 * T, 3)
        self.assertEqual((job.load, job.store), ((0, 5), (5, 5)))
        # As if its first three blocks were all that the worker can still find.
        self.daemon.kill()
        self.daemon.start()
        wait_for(lambda: all(s.client.stats()["attached"] for s in a.sides + b.sides))
        b.worker.load([job])
        self.assertEqual(b.worker.take_failed(), set(pages[:5]))
        self.assertEqual(b.worker.take_failed(), set())
        # A request that shares the pages, and one step more that was on its way: nothing is stored.
        wrong = job._replace(store=(5, 6), pages=tuple(pages),
                             ids=self.ids[:6 * T].tobytes() + bytes(4 * (T - 3)))
        b.worker.store([wrong])
        b.worker.flush()
        self.assertEqual(b.sides[1].client.stats()["blocks"], 0)
        # The engine computes again from what is right, in two chunks.
        for first, end in ((0, T + 5), (T + 5, 5 * T + 3)):
            again = b.scheduler.step("r", [], False, first, end - first)
            b.compute(self.ids, pages, first, end)
            b.worker.store([again])
        b.worker.flush()
        b.scheduler.finished("r")
        self.found(a, "x", 0, 5 * T)
        a.scheduler.allocated("x", 5 * T)
        other = [20, 21, 22, 23, 24, 25]
        a.worker.load([a.scheduler.step("x", other, True, 5 * T, 3)])
        self.assertEqual(a.worker.take_failed(), set())
        self.assertTrue(a.right(self.ids, other, 5 * T))

    def test_part_is_computed_already(self):
        """The engine's own cache has the beginning; the rest is loaded behind it."""
        a, b = self.engine(), self.engine()
        self.fill(a)
        pages = [3, 1, 4, 0, 5, 9]
        b.compute(self.ids, pages, 0, 2 * T)
        self.found(b, "r", 2 * T, 3 * T)
        b.scheduler.allocated("r", 3 * T)
        job = b.scheduler.step("r", pages, True, 5 * T, 3)
        self.assertEqual(job.load, (2, 5))
        b.worker.load([job])
        self.assertEqual(b.worker.take_failed(), set())
        self.assertTrue(b.right(self.ids, pages, 5 * T))

    def test_pages_were_not_to_be_had(self):
        a = self.engine()
        self.fill(a)
        self.found(a, "r", 0, 5 * T)
        self.found(a, "r", T, 4 * T)  # asked again later
        a.scheduler.allocated("r", 0)
        job = a.scheduler.step("r", [7], True, 0, T)
        self.assertEqual((job.load, job.store), ((0, 0), (0, 1)))
        self.assertIsNone(a.scheduler.step("r", [], False, T, 1))
        self.assertIsNone(a.scheduler.step("unknown", [], False, T, 1))

    def test_salts(self):
        """Equal ones share, unlike ones and none do not; more of them than an engine keeps spaces of."""
        a, b = self.engine(), self.engine()
        self.fill(a)
        for i in range(200):
            self.assertEqual(a.scheduler.found("r%d" % i, b"%d" % i, self.source, 0), 0)
        for i in (7, 150):
            name, pages = "r%d" % i, list(range(10 * i % 58, 10 * i % 58 + 6))
            job = a.scheduler.step(name, pages, True, 0, len(self.ids))
            a.compute(self.ids, pages, 0, len(self.ids))
            a.worker.store([job])
            a.worker.flush()
        for name, want in ((b"7", 5 * T), (b"8", 0), (b"150", 5 * T), (b"", 5 * T), (b"77", 0)):
            wait_for(lambda n=name, w=want: b.scheduler.found("r", n, self.source, 0) == w)
            b.scheduler.finished("r")
        b.scheduler.found("r", b"150", self.source, 0)
        b.scheduler.allocated("r", 5 * T)
        job = b.scheduler.step("r", [9, 8, 7, 6, 5, 4], True, 5 * T, 3)
        b.worker.load([pickle.loads(pickle.dumps(job))])
        self.assertEqual(b.worker.take_failed(), set())
        self.assertTrue(b.right(self.ids, [9, 8, 7, 6, 5, 4], 5 * T))

    def test_ids_that_are_none(self):
        a = self.engine()
        self.assertEqual(a.scheduler.found("r", b"", lambda first: [-1] * 500, 0), 0)
        self.assertIsNone(a.scheduler.step("r", [0, 1], True, 0, 2 * T))

    def test_parent_evicted(self):
        a = self.engine()
        self.fill(a)
        a.scheduler.found("r", b"", self.source, 0)
        a.scheduler.step("r", list(range(6)), True, 5 * T, 3)
        self.ids.extend(range(T))
        job = a.scheduler.step("r", [], False, 5 * T + 3, T)
        self.assertEqual(job.store, (5, 6))
        a.compute(self.ids, job.pages, 5 * T, 6 * T)
        space = a.sides[1].get(b"")
        wait_for(lambda: space.delete(self.ids) >= 0 and space.match(self.ids).n_tokens == 0)
        a.worker.store([job])
        a.worker.flush()
        wait_for(lambda: space.match(self.ids[:6 * T]).n_tokens == 6 * T)

    def test_no_daemon(self):
        e = Engine("/nonexistent/kvpool.sock", "nobody", timeout=.05)
        self.assertEqual(e.scheduler.found("r", b"", self.source, 0), 0)
        job = e.scheduler.step("r", list(range(6)), True, 0, 5 * T)
        e.worker.store([job])
        e.worker.load([job._replace(load=(0, 2))])
        self.assertEqual(e.worker.take_failed(), {0, 1})
        e.close()


class Agreement:
    """Of two workers in threads of their own: the least of what both say."""

    def __init__(self):
        self.barrier, self.said = threading.Barrier(2), []

    def __call__(self, counts):
        self.said.append(counts)
        self.barrier.wait(60)
        return [min(c) for c in zip(*self.said[-2:])]


class Groups(unittest.TestCase):
    """A tensor-parallel group of two workers, each with a head of two."""
    RANKS = [{"layers": [Layer(HEADS, DIM, DIM, i, r * HEADS) for i in range(LAYERS)]} for r in range(2)]

    def setUp(self):
        self.daemon = Daemon({"memory": "256MiB"}).start()
        self.addCleanup(self.daemon.stop)
        self.ids = array.array("I", range(5000, 5000 + 4 * T + 3))
        self.pages = [3, 1, 4, 0, 5]

    def group(self, second=None):
        """Two engines, the first of which schedules; the second's worker may have another daemon."""
        agree = Agreement()
        both = [Engine(s or self.daemon.socket, "group", timeout=5, ranks=self.RANKS, rank=r, agree=agree)
                for r, s in enumerate((None, second))]
        for e in both:
            self.addCleanup(e.close)
        for side in both[0].sides + ([] if second else both[1].sides):
            side.group(b"")
            wait_for(lambda s=side: s.client.stats()["attached"])
        return both

    def source(self, first):
        return self.ids[first:]

    def load(self, both, job):
        threads = [threading.Thread(target=e.worker.load, args=([job],)) for e in both]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def store(self, e, name="first"):
        """Computes everything and stores it as this rank's."""
        e.scheduler.found(name, b"", self.source, 0)
        job = e.scheduler.step(name, list(range(5)), True, 0, len(self.ids))
        e.compute(self.ids, list(range(5)), 0, len(self.ids))
        e.worker.store([job])
        e.worker.flush()
        e.scheduler.finished(name)

    def test_found_is_what_all_ranks_have(self):
        a, b = self.group()
        self.store(a)
        own = a.sides[1].get(b"")
        wait_for(lambda: own.match(self.ids).n_tokens == 4 * T)
        self.assertEqual(a.scheduler.found("r", b"", self.source, 0), 0)
        self.store(b)
        wait_for(lambda: a.scheduler.found("r", b"", self.source, 0) == 4 * T)
        a.scheduler.allocated("r", 4 * T)
        job = a.scheduler.step("r", self.pages, True, 4 * T, 3)
        self.load([a, b], job)
        for e in (a, b):
            self.assertEqual(e.worker.take_failed(), set())
            self.assertTrue(e.right(self.ids, self.pages, 4 * T))

    def test_what_one_rank_cannot_load_all_compute(self):
        for e in self.group():
            self.store(e)
        a, b = self.group("/nonexistent/kvpool.sock")
        wait_for(lambda: a.scheduler.found("r", b"", self.source, 0) == 4 * T)
        a.scheduler.allocated("r", 4 * T)
        self.ids.extend(range(T))
        job = a.scheduler.step("r", self.pages, True, 4 * T, T)
        self.assertEqual((job.load, job.store), ((0, 4), (4, 5)))
        self.load([a, b], job)
        for e in (a, b):
            self.assertEqual(e.worker.take_failed(), set(self.pages[:4]))
            e.compute(self.ids[:1] * len(self.ids), self.pages, 4 * T, 5 * T)  # from what is wrong
        # The first rank has all that it needs, and still stores nothing that follows.
        a.worker.store([job])
        a.worker.flush()
        self.assertEqual(a.sides[1].get(b"").match(self.ids).n_tokens, 4 * T)
        # Computed from the beginning, it does.
        again = a.scheduler.step("r", [], False, 0, 5 * T)
        a.compute(self.ids, self.pages, 0, 5 * T)
        a.worker.store([again])
        a.worker.flush()
        wait_for(lambda: a.sides[1].get(b"").match(self.ids).n_tokens == 5 * T)


def connector_without_an_engine():
    """kvpool.connectors.vllm with names in the place of what it imports."""
    names = {"torch": ("float32", "float16", "bfloat16"), "vllm": (), "vllm.distributed": (),
             "vllm.distributed.kv_transfer": (), "vllm.distributed.kv_transfer.kv_connector": (),
             "vllm.distributed.kv_transfer.kv_connector.v1": (),
             "vllm.distributed.kv_transfer.kv_connector.v1.base":
                 ("KVConnectorBase_V1", "KVConnectorMetadata", "KVConnectorRole"),
             "vllm.distributed.parallel_state": ("get_tp_group",),
             "vllm.platforms": ("current_platform",), "vllm.v1": (), "vllm.v1.attention": (),
             "vllm.v1.attention.backends": (),
             "vllm.v1.attention.backends.cpu_attn": ("_get_attn_isa",)}
    modules = {}
    for name, members in names.items():
        modules[name] = types.ModuleType(name)
        for member in members:
            setattr(modules[name], member, type(member, (), {}))
    modules["torch"].Tensor = object
    with unittest.mock.patch.dict(sys.modules, modules):
        return importlib.import_module("kvpool.connectors.vllm")


class Ranks(unittest.TestCase):
    """Which heads each of vLLM's workers has."""

    def test_heads(self):
        ranks = connector_without_an_engine()._ranks  # pylint: disable=protected-access
        self.assertEqual(ranks(1, 8, 2, 8, 64), [{}])
        two = ranks(2, 8, 3, 4, 64)
        self.assertEqual([[tuple(l) for l in r["layers"]] for r in two],
                         [[(4, 64, 64, i, 0) for i in range(3)], [(4, 64, 64, i, 4) for i in range(3)]])
        # Fewer heads than workers: neighbours have the same.
        four = ranks(4, 2, 1, 1, 64)
        self.assertEqual([r["layers"][0].first_head for r in four], [0, 0, 1, 1])


class Salts(unittest.TestCase):
    """Which requests of vLLM share, by their adapters and salts."""

    def setUp(self):
        self.vllm = connector_without_an_engine()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "lora")
        os.mkdir(self.path)
        self.train(b"weights")

    def train(self, weights):
        with open(os.path.join(self.path, "adapter_model.safetensors"), "wb") as f:
            f.write(weights)

    def salt(self, name="a", path=None, number=1, engine=None, cache_salt=None, **more):
        lora = types.SimpleNamespace(lora_name=name, lora_path=path or self.path,
                                     lora_int_id=number, **more)
        engine = engine or self.vllm._Salts()  # pylint: disable=protected-access
        return engine.of(types.SimpleNamespace(lora_request=lora, cache_salt=cache_salt))

    def test_none(self):
        engine = self.vllm._Salts()  # pylint: disable=protected-access
        self.assertEqual(engine.of(types.SimpleNamespace(lora_request=None)), b"")
        self.assertIsNone(engine.of(types.SimpleNamespace(lora_request=None, mm_features=["an image"])))
        self.assertIsNone(self.salt(cache_salt="s", load_inplace=True))

    def test_cache_salts(self):
        """A user's salt, beside an adapter or alone; no text of one is taken for the other."""
        def alone(salt):
            return self.vllm._Salts().of(  # pylint: disable=protected-access
                types.SimpleNamespace(lora_request=None, cache_salt=salt))
        salts = [alone("s"), alone("t"), alone("\ud800"), self.salt(), self.salt(cache_salt="s"),
                 self.salt(cache_salt="t"), alone(repr(("a", self.path)))]
        self.assertEqual(len(set(salts)), len(salts))
        self.assertEqual({len(s) for s in salts}, {32})
        self.assertEqual((alone("s"), alone("")), (salts[0], b""))
        self.assertEqual(self.salt(cache_salt="t"), salts[5])

    def test_trained_again(self):
        """What is loaded from the same folder later, in another process, is another adapter."""
        engine = self.vllm._Salts()  # pylint: disable=protected-access
        first = self.salt(engine=engine)
        self.assertEqual(len(first), 32)
        self.assertEqual(self.salt(), first)
        self.train(b"other weights")
        self.assertNotEqual(self.salt(), first)
        self.assertEqual(self.salt(engine=engine), first)
        self.assertNotEqual(self.salt("b"), self.salt("a"))

    def test_unknown_weights(self):
        self.assertIsNone(self.salt(path="someone/on-a-hub"))
        self.assertIsNone(self.salt(load_inplace=True))


if __name__ == "__main__":
    unittest.main()
