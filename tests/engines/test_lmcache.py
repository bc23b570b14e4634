#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvpool.connectors.lmcache as LMCache calls it, beside a real kvpoold: what is shared, what stays
locked, deaths of the daemon, and LMCache's own benchmark, which verifies what it loads."""
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
import unittest

from engine import needs

needs("lmcache", "torch", "cffi")

# pylint: disable=wrong-import-position
import torch
from harness import Daemon, wait_for
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey

import kvpool
from kvpool.connectors.lmcache import KvpoolL2, block_key

SIZE = 64 << 10

daemon = None


def setUpModule():
    global daemon  # pylint: disable=global-statement
    daemon = Daemon({"memory": "512MiB", "defaults": {"max_blocks": 4096}}).start()


def tearDownModule():
    daemon.stop()


class Object:
    """What the adapter uses of LMCache's memory objects."""

    def __init__(self, size=SIZE, fill=0):
        self.bytes = (ctypes.c_char * size).from_buffer(bytearray([fill]) * size)
        self.data_ptr = ctypes.addressof(self.bytes)

    def get_size(self):
        return len(self.bytes)


def key(i, model="model", salt="", rank=0, group=0):
    return ObjectKey(bytes([i]) * 32, model, rank, group, salt)


class Level:
    """An adapter, and its answers awaited as LMCache awaits them."""

    def __init__(self, **params):
        self.l2 = KvpoolL2(dict({"socket": daemon.socket, "timeout": 20}, **params),
                           l1_memory_desc=None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.l2.close()

    @staticmethod
    def wait(fd, result):
        deadline = time.monotonic() + 60
        while True:
            r = result()
            if r is not None and r != {}:
                return r
            assert time.monotonic() < deadline
            select.select([fd], [], [], 1)

    def store(self, keys, objects):
        task = self.l2.submit_store_task(keys, objects)
        done = self.wait(self.l2.get_store_event_fd(), self.l2.pop_completed_store_tasks)
        assert list(done) == [task]
        return done[task]

    def lookup(self, keys, layouts=None):
        task = self.l2.submit_lookup_and_lock_task(keys, layouts or {})
        bits = self.wait(self.l2.get_lookup_and_lock_event_fd(),
                         lambda: self.l2.query_lookup_and_lock_result(task))
        assert self.l2.query_lookup_and_lock_result(task) is None
        return [bits.test(i) for i in range(len(keys))]

    def load(self, keys, objects):
        task = self.l2.submit_load_task(keys, objects)
        bits = self.wait(self.l2.get_load_event_fd(), lambda: self.l2.query_load_result(task))
        return [bits.test(i) for i in range(len(keys))]

    def found(self, keys, want):
        """What another has stored: a miss until its memory is mapped, at most a moment."""
        layouts = {0: MemoryLayoutDesc([torch.Size([SIZE])], [torch.uint8])}

        def look():
            got = self.lookup(keys, layouts)
            if got == want:
                return True
            self.l2.submit_unlock([k for k, there in zip(keys, got) if there])
            return None
        wait_for(look)


class Shared(unittest.TestCase):
    def test_what_one_stores_another_loads(self):
        keys = [key(i) for i in range(1, 6)]
        with Level() as one, Level() as other:
            result = one.store(keys[:4], [Object(fill=i) for i in range(1, 5)])
            self.assertEqual((result.is_successful(), result.bytes_transferred()), (True, 4 * SIZE))
            one.l2._client.flush()  # pylint: disable=protected-access
            other.found(keys, [True] * 4 + [False])
            objects = [Object() for _ in keys]
            self.assertEqual(other.load(keys, objects), [True] * 4 + [False])
            for i, o in enumerate(objects):
                self.assertEqual(o.bytes.raw, bytes([i + 1 if i < 4 else 0]) * SIZE)
            other.l2.submit_unlock(keys)
            self.assertEqual(other.l2.report_status()["locked"], 0)
            self.assertTrue(other.l2.report_status()["is_healthy"])

    def test_threads_do_a_part_of_a_task_each(self):
        class Broken(Object):
            def get_size(self):
                raise RuntimeError("an object that fails on purpose")

        for threads in (1, 2, 4):
            keys = [key(i, model="parts%d" % threads) for i in range(1, 20)]
            said = []
            with Level(threads=threads) as one:
                objects = [Object(fill=i) for i in range(1, 20)]
                one.l2._notify_keys_stored = lambda *what: said.append(what)  # pylint: disable=protected-access,cell-var-from-loop
                # One part of it fails: so does the task, whose event comes once and when all parts are over.
                self.assertFalse(one.store(keys, [Broken()] + objects[1:]).is_successful())
                self.assertEqual(said, [])
                result = one.store(keys, objects)
                self.assertEqual((result.is_successful(), result.bytes_transferred()),
                                 (True, 19 * SIZE))
                self.assertEqual(said, [(keys, [SIZE] * 19)])
                into = [Object() for _ in keys]
                into[17] = Broken()
                self.assertEqual(one.load(keys, into), [i != 17 for i in range(19)])
                for i, o in enumerate(into):
                    self.assertEqual(o.bytes.raw, bytes([i + 1 if i != 17 else 0]) * SIZE)

    def test_nothing_that_fails_ends_the_threads(self):
        """An object that cannot say its size, and a listener that raises."""
        class Broken(Object):
            def get_size(self):
                raise RuntimeError("an object that fails on purpose")

        def refuse(*_):
            raise RuntimeError("a listener that fails on purpose")

        keys = [key(i, model="breaks") for i in range(1, 3)]
        with Level() as one:
            self.assertFalse(one.store(keys, [Object(), Broken()]).is_successful())
            one.l2._notify_keys_stored = refuse  # pylint: disable=protected-access
            one.l2._notify_keys_accessed = refuse  # pylint: disable=protected-access
            self.assertTrue(one.store(keys, [Object(fill=1), Object(fill=2)]).is_successful())
            self.assertEqual(one.load(keys, [Object(), Broken()]), [True, False])
            self.assertEqual(one.load(keys, [Object(), Object()]), [True, True])

    def test_everything_of_a_key_counts(self):
        same = [key(9), key(9, salt="a"), key(9, salt="b"), key(9, rank=1), key(9, group=1),
                key(9, model="another"), key(10)]
        self.assertEqual(len({(block_key(k), k.model_name) for k in same}), len(same))
        with Level() as level:
            level.store([same[1], same[5]], [Object(fill=1), Object(fill=2)])
            level.l2._client.flush()  # pylint: disable=protected-access
            level.found(same, [False, True, False, False, False, True, False])

    def test_sizes_of_one_model(self):
        """A lookup does not say how large an object is."""
        with Level() as level:
            keys = [key(i, model="sizes") for i in range(1, 4)]
            level.store(keys[:2], [Object(SIZE, 1), Object(2 * SIZE, 2)])
            level.l2._client.flush()  # pylint: disable=protected-access
            level.found(keys, [True, True, False])
            objects = [Object(SIZE), Object(2 * SIZE)]
            self.assertEqual(level.load(keys[:2], objects), [True, True])
            self.assertEqual(objects[1].bytes.raw, b"\2" * 2 * SIZE)
            self.assertEqual(level.load([keys[0]], [Object(2 * SIZE)]), [False])

    def test_locked_until_unlocked(self):
        k = key(20, model="locked")
        with Level() as one, Level() as other:
            one.store([k], [Object(fill=7)])
            one.l2._client.flush()  # pylint: disable=protected-access
            other.found([k], [True])
            other.found([k], [True])
            one.l2.delete([k])
            for _ in range(2):
                o = Object()
                self.assertEqual(other.load([k], [o]), [True])
                self.assertEqual(o.bytes.raw, b"\7" * SIZE)
                other.l2.submit_unlock([k])
            wait_for(lambda: other.lookup([k]) == [False])
            other.l2.submit_unlock([k])  # once too often

    def test_wrong_parameters(self):
        self.assertRaises(ValueError, KvpoolL2, {"sokcet": "x"})
        self.assertRaises(ValueError, KvpoolL2, {"threads": 0})


class Deaths(unittest.TestCase):
    def test_no_daemon_then_one_then_another(self):
        k, own = key(1, model="deaths"), Daemon({"memory": "256MiB"})
        with Level(socket=own.socket, timeout=1) as level:
            self.assertFalse(level.store([k], [Object(fill=1)]).is_successful())
            self.assertEqual(level.lookup([k]), [False])
            self.assertEqual(level.load([k], [Object()]), [False])
            self.assertFalse(level.l2.report_status()["is_healthy"])
            for fill in (2, 3):
                own.start()
                try:
                    wait_for(lambda: level.store([k], [Object(fill=fill)]).is_successful())  # pylint: disable=cell-var-from-loop
                    wait_for(lambda: level.lookup([k]) == [True])
                    own.kill()
                    # What is locked can be read still; nothing else is there.
                    o = Object()
                    self.assertEqual(level.load([k], [o]), [True])
                    self.assertEqual(o.bytes.raw, bytes([fill]) * SIZE)
                    level.l2.submit_unlock([k])
                    wait_for(lambda: level.lookup([k]) == [False])
                    self.assertFalse(level.store([k], [Object()]).is_successful())
                finally:
                    own.stop()


    def test_daemon_stopped(self):
        """Every task is answered: lookups and loads as if nothing were, stores say that they failed once
        no slot is left, and no task waits for the daemon after the first one has."""
        own = Daemon({"memory": "256MiB"})
        with own, Level(socket=own.socket, timeout=1) as level:
            keys = [key(i, model="stopped") for i in range(1, 60)]
            wait_for(lambda: level.store(keys[:1], [Object(fill=1)]).is_successful())
            wait_for(lambda: level.lookup(keys[:1]) == [True])
            os.kill(own.pid, signal.SIGSTOP)
            try:
                self.assertEqual(level.lookup(keys[:2]), [True, False])
                o = Object()
                self.assertEqual(level.load(keys[:1], [o]), [True])
                self.assertEqual(o.bytes.raw, b"\1" * SIZE)
                stored = [level.store([k], [Object(fill=2)]).is_successful() for k in keys[1:]]
                self.assertFalse(stored[-1])
                self.assertFalse(level.l2.report_status()["is_healthy"])
                level.l2.submit_unlock(keys[:1])
            finally:
                os.kill(own.pid, signal.SIGCONT)
            wait_for(lambda: level.store(keys[-1:], [Object(fill=3)]).is_successful())
            wait_for(lambda: level.lookup(keys[-1:]) == [True])
            self.assertTrue(level.l2.report_status()["is_healthy"])


class Benchmark(unittest.TestCase):
    def test_verified(self):
        """LMCache's own benchmark stores, looks up and loads through the plug-in, by file alone."""
        spec = ('{"type": "plugin", "module_path": "kvpool.connectors.lmcache", '
                '"class_name": "KvpoolL2", "adapter_params": {"socket": "%s"}}' % daemon.socket)
        bench = os.path.join(os.path.dirname(sys.executable), "lmcache")
        out = subprocess.run(
            [bench, "bench", "l2", "--l2-adapter", spec, "--num-keys", "8", "--data-size-kb", "256",
             "--rounds", "2", "--no-skip-verify", "--lookup-max-hit-rate", "1"],
            env=dict(os.environ, LMCACHE_DISABLE_BANNER="1"), text=True, timeout=300,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(out.returncode, 0, out.stdout)
        self.assertIn("All 8 keys data verified OK", out.stdout)


if __name__ == "__main__":
    print("kvpool", kvpool.__version__)
    unittest.main()
