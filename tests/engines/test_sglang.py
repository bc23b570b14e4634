#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvpool.connectors.sglang behind SGLang's own cache controller, host pools, page hashes and storage
factory, on the CPU beside a real kvpoold. No model runs: pages have random contents.
`test_sglang.py table` measures it and SGLang's `file` backend in turn instead."""
import itertools
import queue
import statistics
import sys
import tempfile
import time
import unittest

from engine import needs

needs("sglang", "torch", "cffi")

# pylint: disable=wrong-import-position
import torch
from harness import Daemon, wait_for
from sglang.srt.managers.cache_controller import (
    HiCacheController, PrefetchOperation, StorageOperation)
from sglang.srt.mem_cache.device_pool_info import (
    KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo)
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory

from kvpool.connectors.sglang import KvpoolHiCache

LAYERS, HEADS, DIM, PAGE = 4, 2, 128, 64

daemon = None


def setUpModule():
    global daemon  # pylint: disable=global-statement
    daemon = Daemon({"memory": "1GiB"}).start()


def tearDownModule():
    daemon.stop()


def addresses(tensors):
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)


def mha_pool(layout, tokens=2048):
    """SGLang's host pool of keys and values for so many tokens."""
    k, v = (tuple(torch.zeros(64, HEADS, DIM, dtype=torch.float16) for _ in range(LAYERS))
            for _ in range(2))
    info = MHABufferInfo(
        buffers=KVBuffers(k=k, v=v, k_data_ptrs=addresses(k), v_data_ptrs=addresses(v),
                          layout=KVBufferLayout.NHD),
        page_size=PAGE, head_num=HEADS, head_dim=DIM, v_head_dim=DIM, dtype=torch.float16,
        device=torch.device("cpu"))
    return MHATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False, device="cpu",
                                device_capacity_tokens=tokens // 2, start_layer=0, end_layer=LAYERS)


def mla_pool(layout, tokens=2048):
    """The same for latents, which all tensor-parallel ranks have."""
    latents = tuple(torch.zeros(64, 1, 576, dtype=torch.float16) for _ in range(LAYERS))
    info = MLABufferInfo(
        buffers=latents, data_ptrs=addresses(latents), layer_indices=tuple(range(LAYERS)),
        device_layer_num=LAYERS, page_size=PAGE, kv_lora_rank=512, qk_rope_head_dim=64,
        kv_cache_dim=576, dtype=torch.float16, device=torch.device("cpu"))
    return MLATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False, device="cpu",
                                device_capacity_tokens=tokens // 2, start_layer=0, end_layer=LAYERS,
                                target_layer_num=LAYERS)


def config(model, rank=0, size=1, mla=False, **extra):
    return HiCacheStorageConfig(
        tp_rank=rank, tp_size=size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=mla, enable_storage_metrics=False, is_page_first_layout=True, model_name=model,
        extra_config=extra)


class Engine:
    """SGLang's controller with the parts that move pages, and a backend by its factory."""

    def __init__(self, model, pool, v1=1, socket=None, backend=None, **more):
        self.pool = pool
        spec = {"backend_name": "kvpool", "module_path": "kvpool.connectors.sglang",
                "class_name": "KvpoolHiCache", "interface_v1": v1, "weights_digest": "w", "timeout": 5,
                "socket": socket or daemon.socket} if backend is None else {}
        self.config = config(model, **more, **spec)
        c = self.controller = object.__new__(HiCacheController)
        c.storage_backend = backend(self.config) if backend else \
            StorageBackendFactory.create_backend("dynamic", self.config, pool)
        c.storage_backend.register_mem_pool_host(pool)
        c.mem_pool_host = c.storage_host_pool = pool
        c.page_size = PAGE
        c.prefetch_sync_queue = queue.Queue()
        direct = v1 and backend is None
        c.page_get_func = c._page_get_zero_copy if direct else c._generic_page_get
        c.page_set_func = c._page_set_zero_copy if direct else c._generic_page_set
        self.storage = c.storage_backend

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if hasattr(self.storage, "close"):
            self.storage.close()

    def hashes(self, ids):
        return self.find(ids)[0].all_hash_values

    def find(self, ids):
        """The operation, and how many tokens the storage has."""
        op = PrefetchOperation("r", ids)
        op.hash_value, n = self.controller._storage_hit_query(op)
        return op, n

    def save(self, ids, pages):
        """Tokens that were stored."""
        op = StorageOperation(self.indices(pages), ids, hash_value=self.hashes(ids))
        self.controller._page_backup(op)
        return op.completed_tokens

    def load(self, ids, pages):
        """Tokens that were loaded into these pages."""
        op, n = self.find(ids)
        op.host_indices = self.indices(pages[:n // PAGE])
        return self.controller._page_transfer(op) * PAGE

    @staticmethod
    def indices(pages):
        return torch.cat([torch.arange(0)] + [torch.arange(p * PAGE, (p + 1) * PAGE) for p in pages])

    def fill(self):
        self.pool.kv_buffer.copy_(torch.randn(self.pool.kv_buffer.shape))

    def page(self, page):
        return self.pool.get_data_page(page * PAGE)


def tokens(n, start=0):
    return list(range(start, start + n * PAGE))


class Pages(unittest.TestCase):
    def moved(self, model, make, **more):
        ids = tokens(9, 1000)
        with Engine(model, make(), **more) as a, Engine(model, make(), **more) as b:
            a.fill()
            self.assertIsInstance(a.storage, KvpoolHiCache)
            self.assertEqual(a.find(ids)[1], 0)
            stored = [7, 3, 9, 1, 20, 11, 2]
            self.assertEqual(a.save(ids[:7 * PAGE], stored), 7 * PAGE)
            a.storage._client.flush()
            wait_for(lambda: b.find(ids)[1] == 7 * PAGE)
            into = [0, 4, 6, 2, 8, 31, 5]
            self.assertEqual(b.load(ids, into), 7 * PAGE)
            for i, j in zip(stored, into):
                self.assertTrue(torch.equal(a.page(i), b.page(j)))
            # Another continuation shares what is equal.
            other = ids[:3 * PAGE] + tokens(2, 5000)
            self.assertEqual(b.find(other)[1], 3 * PAGE)

    def test_layouts(self):
        for layout in ("layer_first", "page_first", "page_first_direct", "page_head"):
            for v1 in (0, 1):
                with self.subTest(layout=layout, v1=v1):
                    self.moved("mha", lambda: mha_pool(layout), v1=v1)  # pylint: disable=cell-var-from-loop

    def test_latents(self):
        for layout in ("layer_first", "page_first", "page_first_direct"):
            for v1 in (0, 1):
                with self.subTest(layout=layout, v1=v1):
                    self.moved("mla", lambda: mla_pool(layout), v1=v1, mla=True)  # pylint: disable=cell-var-from-loop

    def test_ranks(self):
        """Shards share nothing between ranks; latents are every rank's, whatever the group's size."""
        ids = tokens(2)
        with Engine("ranks", mha_pool("page_first"), rank=0, size=2) as a, \
                Engine("ranks", mha_pool("page_first"), rank=1, size=2) as b:
            a.save(ids, [0, 1])
            a.storage._client.flush()
            wait_for(lambda: a.find(ids)[1] == 2 * PAGE)
            self.assertEqual(b.find(ids)[1], 0)
        with Engine("latents", mla_pool("page_first"), rank=0, size=2, mla=True) as a, \
                Engine("latents", mla_pool("page_first"), rank=3, size=4, mla=True) as b:
            a.save(ids, [0, 1])
            a.storage._client.flush()
            wait_for(lambda: b.find(ids)[1] == 2 * PAGE)

    def test_a_second_pool(self):
        ids = tokens(4)
        with Engine("hybrid", mha_pool("page_first")) as a:
            a.fill()
            a.save(ids, [0, 1, 2, 3])
            side = mla_pool("page_first")
            side.kv_buffer.copy_(torch.randn(side.kv_buffer.shape))
            a.storage.register_mem_host_pool_v2(side, PoolName.INDEXER)
            keys = a.hashes(ids)
            self.assertEqual(a.storage.batch_set_v2([
                PoolTransfer(PoolName.INDEXER, host_indices=a.indices([5, 6]), keys=keys[:2])]),
                {PoolName.INDEXER: [True, True]})
            a.storage._client.flush()
            wait_for(lambda: a.storage.batch_exists_v2(
                keys, [PoolTransfer(PoolName.INDEXER)]).kv_hit_pages == 2)
            r = a.storage.batch_exists_v2(keys, [PoolTransfer(PoolName.INDEXER)])
            self.assertEqual(r.extra_pool_hit_pages, {PoolName.KV: 4, PoolName.INDEXER: 2})
            self.assertEqual(a.storage.batch_get_v2([
                PoolTransfer(PoolName.INDEXER, host_indices=a.indices([9]), keys=keys[1:2])]),
                {PoolName.INDEXER: [True]})
            self.assertTrue(torch.equal(side.get_data_page(9 * PAGE), side.get_data_page(6 * PAGE)))

    def test_weights_are_named(self):
        """Without server arguments, which only a running engine has, and without a name: refused."""
        with self.assertRaises(ValueError):
            StorageBackendFactory.create_backend("dynamic", config(
                "m", backend_name="kvpool", module_path="kvpool.connectors.sglang",
                class_name="KvpoolHiCache"), None)


class Deaths(unittest.TestCase):
    def test_absent_then_one_then_another(self):
        ids, own = tokens(3), Daemon({"memory": "256MiB"})
        with Engine("deaths", mha_pool("page_first"), socket=own.socket) as a:
            a.fill()
            a.storage._timeout = 1
            self.assertEqual((a.save(ids, [0, 1, 2]), a.load(ids, [4, 5, 6])), (0, 0))
            for _ in range(2):
                own.start()
                try:
                    wait_for(lambda: a.save(ids, [0, 1, 2]) == 3 * PAGE)
                    wait_for(lambda: a.load(ids, [4, 5, 6]) == 3 * PAGE)
                    self.assertTrue(torch.equal(a.page(5), a.page(1)))
                    op, _ = a.find(ids)
                    own.kill()
                    # Found, and gone before it is loaded: misses.
                    wait_for(lambda: a.find(ids)[1] == 0)
                    op.host_indices = a.indices([4, 5, 6])
                    self.assertEqual(a.controller._page_transfer(op), 0)
                finally:
                    own.stop()


def table():
    """Milliseconds for 64 pages of 256 KiB, medians of 7, the backends in turn: stored new, found, loaded,
    by SGLang's controller."""
    setUpModule()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        engines = {
            "kvpool": Engine("t", mha_pool("page_first", 8192)),
            "kvpool, without interface_v1": Engine("t", mha_pool("page_first", 8192), v1=0),
            "file, on a tmpfs": Engine("t", mha_pool("page_first", 8192),
                                       backend=lambda c: HiCacheFile(c, folder))}
        times = {name: ([], [], []) for name in engines}
        for turn, (name, e) in itertools.product(range(8), engines.items()):
            ids, pages = tokens(64, turn * 100000), list(range(64))
            e.fill()
            hashes = e.hashes(ids)
            op = StorageOperation(e.indices(pages), ids, hash_value=hashes)
            start = time.perf_counter()
            e.controller._page_backup(op)
            stored = time.perf_counter()
            assert op.completed_tokens == len(ids), name
            wait_for(lambda: e.find(ids)[1] == len(ids))  # pylint: disable=cell-var-from-loop
            found = []
            for _ in range(5):
                begin = time.perf_counter()
                assert e.storage.batch_exists(hashes) == 64
                found.append(time.perf_counter() - begin)
            op, _ = e.find(ids)
            op.host_indices = e.indices(list(range(64, 128)))
            begin = time.perf_counter()
            assert e.controller._page_transfer(op) == 64
            loaded = time.perf_counter()
            assert torch.equal(e.page(100), e.page(36))
            if turn:  # the first one touches memory for the first time
                for i, t in enumerate((stored - start, statistics.median(found), loaded - begin)):
                    times[name][i].append(t * 1e3)
        for name, (store, exists, load) in times.items():
            print("%s: store %.1f ms, exists %.3f ms, load %.1f ms" % (
                name, statistics.median(store), statistics.median(exists), statistics.median(load)))
        for e in engines.values():
            e.__exit__()
    tearDownModule()


if __name__ == "__main__":
    if sys.argv[1:2] == ["table"]:
        table()
    else:
        unittest.main()
