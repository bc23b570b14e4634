# SPDX-License-Identifier: Apache-2.0
"""kvpool.connectors.sglang beside a real kvpoold, with names in the place of what it imports of SGLang,
and host pools that lie as SGLang's do. tests/engines/test_sglang.py has SGLang's own."""
import array
import ctypes
import enum
import hashlib
import importlib
import os
import signal
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import Daemon, wait_for  # pylint: disable=wrong-import-position

from kvpool import KvpoolError  # pylint: disable=wrong-import-position
from kvpool._memory import move  # pylint: disable=wrong-import-position

TOKENS, LAYERS, ROW = 16, 3, 64  # tokens in a page; bytes of one half of a layer of a token
PAGE = 2 * LAYERS * TOKENS * ROW


class Policy(enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


class Result:
    def __init__(self, kv, ends, restorable=None):
        self.kv, self.ends, self.restorable = kv, ends, restorable


class Indices(list):
    """What the connector uses of a torch tensor of numbers."""

    def tolist(self):
        return list(self)

    def numel(self):
        return len(self)

    def __getitem__(self, i):
        r = list.__getitem__(self, i)
        return Indices(r) if isinstance(i, slice) else r


class Tensor:
    """What it uses of one with a page."""
    device = types.SimpleNamespace(type="cpu")

    def __init__(self, data=bytes(PAGE)):
        self.bytes = (ctypes.c_char * len(data)).from_buffer(bytearray(data))

    def data_ptr(self):
        return ctypes.addressof(self.bytes)

    def numel(self):
        return len(self.bytes) // 2

    def element_size(self):
        return 2

    def is_contiguous(self):
        return True

    def contiguous(self):
        return self


class HostPool:
    """SGLang's host pool of keys and values: [2, tokens, layers, row] if page_first, else [2, layers,
    tokens, row]."""
    layer_num, start_layer, end_layer, head_num, head_dim = LAYERS, 0, LAYERS, 1, ROW // 2
    dtype, page_size = "torch.float16", TOKENS

    def __init__(self, layout="page_first", pages=40, seed=0):
        self.layout, self.size = layout, pages * TOKENS
        rows = hashlib.shake_128(b"%d" % seed).digest(2 * LAYERS * self.size * ROW) if seed else \
            bytes(2 * LAYERS * self.size * ROW)
        self.memory = (ctypes.c_char * len(rows)).from_buffer(bytearray(rows))

    def row(self, half, layer, token):
        if self.layout == "page_first":
            at = (half * self.size + token) * LAYERS + layer
        else:
            at = (half * LAYERS + layer) * self.size + token
        return self.memory[at * ROW:(at + 1) * ROW]

    def page(self, page):
        """Its contents, whatever the layout."""
        return [self.row(h, l, page * TOKENS + t)
                for h in range(2) for l in range(LAYERS) for t in range(TOKENS)]

    def spans(self, start):
        """Offset and bytes of each part of a page."""
        if self.layout == "page_first":
            return [((h * self.size + start) * LAYERS * ROW, LAYERS * TOKENS * ROW) for h in range(2)]
        return [(((h * LAYERS + l) * self.size + start) * ROW, TOKENS * ROW)
                for l in range(LAYERS) for h in range(2)]

    def get_page_buffer_meta(self, indices):
        at = ctypes.addressof(self.memory)
        spans = [s for start in indices.tolist()[::TOKENS] for s in self.spans(start)]
        return [at + offset for offset, _ in spans], [n for _, n in spans]

    def get_dummy_flat_data_page(self):
        return Tensor()

    def get_data_page(self, index, flat=True):
        assert flat
        return Tensor(b"".join(self.memory[at:at + n] for at, n in sorted(self.spans(index))))

    def set_from_flat_data_page(self, index, data_page):
        data = data_page.bytes.raw
        for at, n in sorted(self.spans(index)):
            self.memory[at:at + n], data = data[:n], data[n:]


class Silent(HostPool):
    """One whose layout does not say where pages lie."""

    def get_page_buffer_meta(self, indices):
        raise ValueError("Unsupported layout: %s" % self.layout)


def connector():
    """The module, with names in the place of SGLang's."""
    hicache = {"HiCacheStorage": type("HiCacheStorage", (), {}), "PoolHitPolicy": Policy,
               "PoolName": types.SimpleNamespace(KV="kv"), "PoolTransferResult": Result}
    modules = {name: types.ModuleType(name) for name in (
        "torch", "sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.hicache_storage")}
    modules["torch"].int64 = None
    modules["torch"].zeros = lambda n, dtype: Indices([0] * n)
    for name, value in hicache.items():
        setattr(modules["sglang.srt.mem_cache.hicache_storage"], name, value)
    with unittest.mock.patch.dict(sys.modules, modules):
        return importlib.import_module("kvpool.connectors.sglang")


sglang = connector()
daemon = None


def setUpModule():
    global daemon  # pylint: disable=global-statement
    daemon = Daemon({"memory": "512MiB"}).start()


def tearDownModule():
    daemon.stop()


def config(model="model", rank=0, size=1, mla=False, **extra):
    return types.SimpleNamespace(
        tp_rank=rank, tp_size=size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=mla, model_name=model,
        extra_config=dict({"backend_name": "kvpool", "weights_digest": "w", "timeout": 20,
                           "socket": daemon.socket, "interface_v1": 1}, **extra))


def keys(n, what="page"):
    return [hashlib.sha256(b"%s %d" % (what.encode(), i)).hexdigest() for i in range(n)]


def tokens(*pages):
    return Indices(t for p in pages for t in range(p * TOKENS, (p + 1) * TOKENS))


class Engine:
    def __init__(self, *args, pool=None, seed=0, **more):
        self.pool = pool or HostPool(seed=seed)
        self.storage = sglang.KvpoolHiCache(config(*args, **more), {})
        self.storage.register_mem_pool_host(self.pool)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.storage.close()

    def flush(self):
        self.storage._client.flush()  # pylint: disable=protected-access

    def space(self, name="kv"):
        return self.storage._pools[name].space  # pylint: disable=protected-access

    def found(self, of, n):
        """What another has stored: a miss until its memory is mapped, at most a moment."""
        wait_for(lambda: self.storage.batch_exists(of) == n)


class Shared(unittest.TestCase):
    def moved(self, layout, make=HostPool):
        k = keys(6, layout + make.__name__)
        with Engine(pool=make(layout, seed=7)) as a, Engine(pool=make(layout)) as b:
            self.assertEqual(a.storage.batch_set_v1(k[:5], tokens(3, 9, 1, 30, 4)), [True] * 5)
            a.flush()
            b.found(k, 5)
            self.assertEqual(b.storage.batch_get_v1(k, tokens(0, 1, 2, 3, 4, 5)), [True] * 5 + [False])
            for i, page in enumerate((3, 9, 1, 30, 4)):
                self.assertEqual(b.pool.page(i), a.pool.page(page))
            self.assertEqual(b.pool.page(5), HostPool().page(5))
            # What is there already is not stored again, and a hole ends a prefix.
            self.assertEqual(b.storage.batch_set_v1([k[5], k[0]], tokens(0, 1)), [True, True])
            self.assertEqual(b.storage.batch_get_v1([k[0], "none", k[1]], tokens(6, 7, 8)),
                             [True, False, False])
            self.assertEqual(b.pool.page(6), a.pool.page(3))
            self.assertTrue(b.storage.exists(k[4]))
            self.assertFalse(b.storage.exists(keys(1, "other")[0]))

    def test_pages_in_two_parts(self):
        self.moved("page_first")

    def test_pages_in_a_part_for_each_layer(self):
        self.moved("layer_first")

    def test_a_pool_that_does_not_say_where_pages_lie(self):
        self.moved("layer_first", Silent)

    def test_tensors(self):
        """The engine's other interface, without interface_v1."""
        k = keys(70, "tensors")
        pages = [Tensor(hashlib.shake_128(key.encode()).digest(PAGE)) for key in k]
        with Engine(interface_v1=0) as a, Engine(interface_v1=0) as b:
            self.assertTrue(a.storage.batch_set(k[1:], pages[1:]))
            self.assertTrue(a.storage.set(k[0], pages[0]))
            a.flush()
            b.found(k, 70)
            to = [Tensor() for _ in k]
            self.assertEqual(b.storage.batch_get(k, to), to)
            self.assertEqual([t.bytes.raw for t in to], [p.bytes.raw for p in pages])
            one = Tensor()
            self.assertIs(b.storage.get(k[3], one), one)
            self.assertEqual(one.bytes.raw, pages[3].bytes.raw)
            self.assertIsNone(b.storage.get("none", Tensor()))
            self.assertFalse(b.storage.clear())
            self.assertEqual(b.storage.batch_exists(k), 70)

    def test_who_shares(self):
        k = keys(2, "who")
        with Engine(rank=0, size=2, seed=1) as a, Engine(rank=1, size=2) as b, \
                Engine(rank=0, size=2) as c, Engine(model="other", rank=0, size=2) as d, \
                Engine(rank=0, size=2, weights_digest="v") as e, \
                Engine(rank=0, size=2, pool=HostPool("layer_first")) as f:
            a.storage.batch_set_v1(k, tokens(0, 1))
            a.flush()
            c.found(k, 2)
            for other in (b, d, e, f):
                self.assertEqual(other.storage.batch_get_v1(k, tokens(0, 1)), [False, False])
        with Engine("mla", rank=0, size=2, mla=True) as a, Engine("mla", rank=3, size=4, mla=True) as b:
            a.storage.batch_set_v1(k, tokens(0, 1))
            a.flush()
            b.found(k, 2)

    def test_the_end_of_a_prefix_goes_first(self):
        k = keys(4, "chain")
        with Engine() as a:
            a.storage.batch_set_v1(k[:2], tokens(0, 1))
            a.storage.batch_set_v1(k[2:], tokens(2, 3),
                                   types.SimpleNamespace(prefix_keys=["other", k[1]]))
            a.flush()
            for i in (0, 1, 2):
                a.space().delete(bytes.fromhex(k[i]))
                self.assertEqual(a.storage.batch_exists(k), 4)
            for i in (3, 2, 1, 0):
                wait_for(lambda: a.space().delete(bytes.fromhex(k[i])) == 1  # pylint: disable=cell-var-from-loop
                         or not a.storage.exists(k[i]))  # pylint: disable=cell-var-from-loop
                wait_for(lambda: a.storage.batch_exists(k) == i)  # pylint: disable=cell-var-from-loop


class Pools(unittest.TestCase):
    """Hybrid models: pools beside that of the keys and values."""

    def transfer(self, name, k=(), indices=None, policy=Policy.ALL_PAGES):
        return types.SimpleNamespace(name=name, keys=list(k), host_indices=indices, hit_policy=policy)

    def test_the_least_that_all_pools_have(self):
        k = keys(6, "hybrid")
        with Engine("hybrid") as a:
            beside = {"indexer": HostPool(seed=3), "mamba": HostPool(seed=4)}
            for name, pool in beside.items():
                a.storage.register_mem_host_pool_v2(pool, name)
            self.assertEqual(a.storage.batch_set_v1(k, tokens(*range(6))), [True] * 6)
            done = a.storage.batch_set_v2([
                self.transfer("indexer", k[:5], tokens(*range(5))),
                self.transfer("mamba", [k[1], k[3]], tokens(8, 9)),
                self.transfer("nobody", k[:1], tokens(0))])
            self.assertEqual(done, {"indexer": [True] * 5, "mamba": [True] * 2, "nobody": [False]})
            a.flush()
            r = a.storage.batch_exists_v2(k, [
                self.transfer("indexer"), self.transfer("mamba", ["x"], policy=Policy.TRAILING_PAGES)])
            self.assertEqual((r.kv, r.ends, r.restorable), (4, {"kv": 6, "indexer": 5, "mamba": 4}, [2, 4]))
            r = a.storage.batch_exists_v2(k, [
                self.transfer("mamba", ["x", "y"], policy=Policy.TRAILING_PAGES)])
            self.assertEqual((r.kv, r.restorable), (0, []))
            r = a.storage.batch_exists_v2(k, [self.transfer("indexer", policy=Policy.BLOCK_GROUPS)])
            self.assertEqual((r.kv, r.ends), (0, {}))
            got = a.storage.batch_get_v2([self.transfer("mamba", [k[3]], tokens(20))])
            self.assertEqual(got, {"mamba": [True]})
            self.assertEqual(beside["mamba"].page(20), beside["mamba"].page(9))


class Errors(unittest.TestCase):
    def test_nothing_that_fails_reaches_the_engine(self):
        class Broken(HostPool):
            def get_page_buffer_meta(self, indices):
                if len(indices) > TOKENS:
                    raise RuntimeError("a pool that fails on purpose")
                return super().get_page_buffer_meta(indices)

        k = keys(2, "broken")
        with Engine(pool=Broken()) as a:
            self.assertEqual(a.storage.batch_set_v1(k, tokens(0, 1)), [False, False])
            self.assertEqual(a.storage.batch_get_v1(k, tokens(0, 1)), [False, False])
            self.assertEqual(a.storage.batch_set_v1(k, tokens(0)), [False, False])
            self.assertEqual(a.storage.batch_set_v1([], Indices()), [])
            self.assertEqual(a.storage.batch_exists([]), 0)
            # Tensors of another size than pages.
            self.assertFalse(a.storage.batch_set(k[:1], [Tensor(bytes(PAGE - 2))]))
            self.assertEqual(a.storage.batch_get(k, [Tensor()]), [None, None])
            self.assertFalse(a.storage.batch_set(k, None))
            self.assertEqual(a.storage.batch_set_v1(k[:1], tokens(0)), [True])

    def test_weights_that_nobody_names(self):
        self.assertRaises(ValueError, sglang.KvpoolHiCache, config(weights_digest=""))

    def test_no_room(self):
        """More pages than the pool holds: no exception, some stored, and no waiting for each batch."""
        with Daemon({"memory": "32MiB"}) as small:
            k = keys(600, "room")
            with Engine(socket=small.socket, timeout=.05, interface_v1=0) as a:
                held = []
                wait_for(lambda: a.storage.batch_set(k[:1], [Tensor()]))
                a.flush()
                wait_for(lambda: a.storage.exists(k[0]))
                space = a.space()
                try:  # slots that nobody gives back
                    while True:
                        held += space.reserve(64, .05)
                except KvpoolError:
                    pass
                self.assertTrue(held)
                self.assertFalse(a.storage.batch_set(k[1:65], [Tensor()] * 64))
                self.assertTrue(a.storage.exists(k[0]))
                for g in held:
                    g.release()
                wait_for(lambda: a.storage.batch_set(k[1:3], [Tensor()] * 2))


class Deaths(unittest.TestCase):
    def test_no_daemon_then_one_then_another(self):
        k, own = keys(3, "deaths"), Daemon({"memory": "256MiB"})
        with Engine(socket=own.socket, timeout=1, seed=5) as a:
            self.assertEqual(a.storage.batch_exists(k), 0)
            self.assertEqual(a.storage.batch_set_v1(k, tokens(0, 1, 2)), [False] * 3)
            self.assertEqual(a.storage.batch_get_v1(k, tokens(0, 1, 2)), [False] * 3)
            for _ in range(2):
                own.start()
                try:
                    # A daemon that did not answer is left alone for a moment.
                    wait_for(lambda: a.storage.batch_set_v1(k, tokens(0, 1, 2)) == [True] * 3)
                    a.found(k, 3)
                    self.assertEqual(a.storage.batch_get_v1(k, tokens(7, 8, 9)), [True] * 3)
                    self.assertEqual(a.pool.page(8), a.pool.page(1))
                    own.kill()
                    wait_for(lambda: a.storage.batch_exists(k) == 0)
                    self.assertEqual(a.storage.batch_get_v1(k, tokens(7, 8, 9)), [False] * 3)
                    self.assertEqual(a.storage.batch_set_v1(k, tokens(0, 1, 2)), [False] * 3)
                finally:
                    own.stop()

    def test_a_daemon_that_hangs(self):
        k, own = keys(200, "hangs"), Daemon({"memory": "256MiB"})
        with own, Engine(socket=own.socket, timeout=.2, interface_v1=0) as a:
            wait_for(lambda: a.storage.batch_set(k[:1], [Tensor()]))
            a.flush()
            a.found(k[:1], 1)
            os.kill(own.pid, signal.SIGSTOP)
            try:
                # Slots that were granted ahead last for a while; then it is left alone.
                wait_for(lambda: not a.storage.batch_set(k[1:], [Tensor()] * 199))
                self.assertFalse(a.storage.batch_set(keys(1, "later"), [Tensor()]))
                self.assertEqual(a.storage.batch_exists(k[:1]), 1)
                self.assertIsNotNone(a.storage.get(k[0], Tensor()))
            finally:
                os.kill(own.pid, signal.SIGCONT)


class Weights(unittest.TestCase):
    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(sglang.weight_files(folder), [])
            with open(os.path.join(folder, "model.safetensors"), "wb") as f:
                f.write(b"1234")
            with open(os.path.join(folder, "README.md"), "wb") as f:
                f.write(b"1234")
            self.assertEqual([f[:2] for f in sglang.weight_files(folder)], [("model.safetensors", 4)])
        self.assertEqual(sglang.weight_files("someone/on-a-hub"), [])


    def identity(self, **args):
        """What names the weights, where the server's arguments are known."""
        context = types.ModuleType("sglang.srt.runtime_context")
        context.get_server_args = lambda: types.SimpleNamespace(**args)
        modules = {"sglang": types.ModuleType("sglang"), "sglang.srt": types.ModuleType("sglang.srt"),
                   "sglang.srt.runtime_context": context}
        with unittest.mock.patch.dict(sys.modules, modules):
            return sglang._weights(config(weights_digest=""))  # pylint: disable=protected-access

    def test_of_the_servers_arguments(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            with open(path, "wb") as f:
                f.write(b"1234")
            one = self.identity(model_path=folder, revision=None, kv_cache_dtype="auto")
            self.assertEqual(self.identity(model_path=folder, revision=None, kv_cache_dtype="auto"), one)
            others = [self.identity(model_path=folder, revision="r", kv_cache_dtype="auto"),
                      self.identity(model_path=folder, revision=None, kv_cache_dtype="fp8_e5m2"),
                      self.identity(model_path="someone/on-a-hub", revision=None, kv_cache_dtype="auto")]
            with open(path, "ab") as f:
                f.write(b"5")
            others.append(self.identity(model_path=folder, revision=None, kv_cache_dtype="auto"))
            self.assertEqual(len(set(others + [one])), 5)
        self.assertRaises(ValueError, self.identity)


class Move(unittest.TestCase):
    def test_parts_and_blocks(self):
        memory = (ctypes.c_char * 48).from_buffer(bytearray(range(48)))
        at = ctypes.addressof(memory)
        blocks, parts = array.array("Q", [at, at + 8]), array.array("Q", [at + 40, at + 30, at + 20, at + 24])
        sizes = array.array("Q", [5, 3, 4, 4])
        move(blocks, 8, parts, sizes, True)
        self.assertEqual(list(memory.raw[:16]), [40, 41, 42, 43, 44, 30, 31, 32] + list(range(20, 28)))
        memory[20:48] = bytes(28)
        move(blocks, 8, parts, sizes, False)
        self.assertEqual(list(memory.raw[40:45]), [40, 41, 42, 43, 44])
        self.assertEqual(list(memory.raw[24:28]), [24, 25, 26, 27])
        before = memory.raw
        for wrong in ((blocks, 9, parts, sizes), (blocks, 7, parts, sizes), (blocks, 8, parts[:3], sizes),
                      (blocks, 8, parts[:3], sizes[:3]), (blocks, -8, parts, sizes),
                      (array.array("Q"), 8, parts, sizes),
                      (blocks, 8, parts, array.array("Q", [2 ** 64 - 1, 9, 4, 4]))):
            self.assertRaises(ValueError, move, *wrong, True)
        self.assertRaises(TypeError, move, array.array("q", blocks), 8, parts, sizes, True)
        self.assertRaises(TypeError, move, blocks, 8, parts, bytes(32), True)
        self.assertEqual(memory.raw, before)
        move(array.array("Q"), 8, array.array("Q"), array.array("Q"), True)


if __name__ == "__main__":
    unittest.main()
