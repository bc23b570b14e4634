# SPDX-License-Identifier: Apache-2.0
"""The Python package beside a real kvpoold: contents, lifetimes, errors, forks and threads. What needs
numpy is left out, and said to be, where there is none."""
import array
import asyncio
import ctypes
import errno
import gc
import hashlib
import itertools
import os
import select
import subprocess
import sys
import threading
import unittest
import weakref

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import Daemon, wait_for  # pylint: disable=wrong-import-position

import kvpool  # pylint: disable=wrong-import-position
from kvpool._native import lib  # pylint: disable=wrong-import-position

try:
    import numpy
except ImportError:
    numpy = None

T, LAYERS, HEADS, DIM = 16, 2, 2, 8
TOKEN = HEADS * DIM * 4  # bytes of one half of a layer

daemon = None


def setUpModule():
    global daemon  # pylint: disable=global-statement
    daemon = Daemon({"memory": "512MiB"}).start()


def tearDownModule():
    daemon.stop()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


class Engine:
    """A client with a space of its own, and tensors of float32 for a number of tokens."""

    def __init__(self, model, dtype="float32", **more):
        self.client = kvpool.Client(daemon.socket, name="test", timeout=20)
        self.space = self.client.space(model, LAYERS, HEADS, DIM, dtype=dtype, block_tokens=T, **more)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()

    @staticmethod
    def halves(tokens, fill=True):
        """bytearrays of keys and values of each layer, and views [tokens, heads, dim] of them."""
        raw = [bytearray(tokens * TOKEN) for _ in range(2 * LAYERS)]
        for i, b in enumerate(raw):
            if fill:
                b[:] = array.array("f", [i * 100000 + x for x in range(tokens * HEADS * DIM)]).tobytes()
        cast = [memoryview(b).cast("f", (tokens, HEADS, DIM)) for b in raw]
        return raw, [(cast[2 * layer], cast[2 * layer + 1]) for layer in range(LAYERS)]

    def store(self, tokens, **more):
        raw, planes = self.halves(len(tokens))
        stored = self.space.put(tokens, kvpool.View(self.space, planes), **more)
        self.client.flush()
        return raw, stored

    def found(self, tokens, want, **more):
        """Blocks that were moved are a miss until their memory is mapped: at most a moment."""
        def look():
            m = self.space.match(tokens, **more)
            if m.n_tokens + m.tail_tokens == want:
                return m
            m.release()
            return None
        return wait_for(look)


class Tensor:
    """What the package asks of a tensor of torch, and no more: it has no buffer protocol."""

    class Kind:
        def __init__(self, name, floating):
            self.name, self.is_floating_point, self.type = name, floating, name

        def __str__(self):
            return "torch." + self.name

    def __init__(self, data, shape, strides, size, dtype, floating=False, device="cpu"):
        self.data, self.shape, self.strides, self.size = data, shape, strides, size
        self.dtype, self.device = self.Kind(dtype, floating), self.Kind(device, False)

    def data_ptr(self):
        return ctypes.addressof(self.data)

    def element_size(self):
        return self.size

    def stride(self):
        return self.strides


def numbers(first, n, kind="q"):
    return array.array(kind, range(first, first + n))


class Contents(unittest.TestCase):
    def test_there_and_back(self):
        with Engine("there and back") as e:
            tokens = numbers(1, 5 * T)
            raw, stored = e.store(tokens)
            self.assertEqual(stored, 5 * T)
            with e.found(tokens, 5 * T) as m:
                self.assertEqual((m.n_blocks, m.tail_tokens, m.leased), (5, 0, True))
                back, planes = e.halves(5 * T, fill=False)
                self.assertEqual(m.get(kvpool.View(e.space, planes), verify=True), 5 * T)
                self.assertEqual(back, raw)
                for b in range(5):
                    for layer in range(LAYERS):
                        for half, payload in enumerate(m.layer(b, layer)):
                            self.assertEqual(payload.shape, (T, HEADS, DIM))
                            self.assertEqual(memoryview(payload).tobytes(),
                                             raw[2 * layer + half][b * T * TOKEN:(b + 1) * T * TOKEN])
                addresses = m.addresses()
                self.assertEqual([m.block(b).address for b in range(5)], list(addresses))
                self.assertEqual(list(m.addresses(2, 2)), list(addresses[2:4]))
                self.assertEqual(len(m.addresses(9)), 0)
                self.assertEqual(m.block(0).nbytes, e.space.block_bytes)

    def test_part(self):
        with Engine("part") as e:
            tokens = numbers(1, 3 * T)
            raw, _ = e.store(tokens)
            with e.found(tokens[:2 * T + 10], 2 * T + 10) as m:
                self.assertEqual((m.n_blocks, m.tail_tokens), (2, 10))
                self.assertEqual(m.layer(2, 1)[0].shape, (10, HEADS, DIM))
                back, planes = e.halves(12, fill=False)
                self.assertEqual(m.get(kvpool.View(e.space, planes), first=T + 3), 12)
                self.assertEqual(back[3], raw[3][(T + 3) * TOKEN:(T + 15) * TOKEN])
                for bad in (lambda: m.block(3), lambda: m.block(-1), lambda: m.layer(0, LAYERS)):
                    self.assertRaises(IndexError, bad)
            with e.space.match(tokens[:2 * T + 10], tail=False) as m:
                self.assertEqual(m.n_tokens + m.tail_tokens, 2 * T)
            with e.space.match(tokens[:2 * T + 3], exact=True) as m:
                self.assertEqual(m.n_tokens + m.tail_tokens, 0)

    def test_ids(self):
        with Engine("ids") as e:
            e.store(numbers(1, 2 * T, "I"))
            for kind in "iIqlQ":
                e.found(numbers(1, 2 * T, kind), 2 * T).release()
            e.found(list(range(1, 2 * T + 1)), 2 * T).release()
            e.found(range(1, 2 * T + 1), 2 * T).release()
            for bad in (array.array("q", [1, -1]), array.array("i", [-1]), [1 << 32], [1, -7],
                        array.array("Q", [1 << 63])):
                with self.assertRaises(kvpool.Invalid) as caught:
                    e.space.match(bad)
                self.assertEqual(caught.exception.errno, errno.EINVAL)
                self.assertIsInstance(caught.exception, ValueError)
                self.assertRaises(kvpool.Invalid, e.space.delete, bad)
                self.assertRaises(kvpool.Invalid, e.space.outcome, bad)
            for of in (ctypes.c_uint32, ctypes.c_int64):
                e.found((of * (2 * T))(*range(1, 2 * T + 1)), 2 * T).release()
            for bad in (ctypes.c_uint32(5), (ctypes.c_uint32.__ctype_be__ * 4)(), array.array("f", [1]), array.array("h", [1]), b"abc",
                        memoryview(bytes(16)).cast("I", (2, 2)), memoryview(numbers(1, 8))[::2]):
                self.assertRaises(ValueError, e.space.match, bad)
            self.assertRaises(TypeError, e.space.match, 5)

    def test_tensors(self):
        with Engine("tensors") as e:
            raw, _ = e.store(numbers(1, 2 * T))
            ids = (ctypes.c_int64 * (4 * T))(*(x for i in range(1, 2 * T + 1) for x in (i, -1)))
            self.assertRaises(ValueError, e.space.match, Tensor(ids, (2 * T,), (2,), 8, "int64"))
            self.assertRaises(ValueError, e.space.match,
                              Tensor(ids, (2 * T,), (1,), 8, "int64", device="cuda"))
            ids = (ctypes.c_int32 * (2 * T))(*range(1, 2 * T + 1))
            with e.found(Tensor(ids, (2 * T,), (1,), 4, "int32"), 2 * T) as m:
                # [heads, tokens, dim], read back in the engine's own order
                memory = [(ctypes.c_float * (HEADS * 2 * T * DIM))() for _ in range(2 * LAYERS)]
                planes = [Tensor(x, (HEADS, 2 * T, DIM), (2 * T * DIM, DIM, 1), 4, "float32", True)
                          for x in memory]
                view = kvpool.View(e.space, list(zip(planes[::2], planes[1::2])), "htd")
                self.assertEqual(m.get(view), 2 * T)
                for half, x in enumerate(memory):
                    want = memoryview(raw[half]).cast("f", (2 * T, HEADS, DIM))
                    self.assertEqual(list(x), [want[t, h, c] for h in range(HEADS)
                                               for t in range(2 * T) for c in range(DIM)])

    def test_pages(self):
        with Engine("pages") as e:
            tokens = numbers(1, 4 * T)
            raw, _ = e.store(tokens)
            table = array.array("i", [7, 2, 3, 11, 0, 5, 9, 1])  # pages of 8 tokens
            pool = [bytearray(12 * 8 * TOKEN) for _ in range(2 * LAYERS)]
            cast = [memoryview(b).cast("f", (12, 8, HEADS, DIM)) for b in pool]
            planes = list(zip(cast[::2], cast[1::2]))
            with e.found(tokens, 4 * T) as m:
                self.assertEqual(m.get(kvpool.View(e.space, planes, "pthd", pages=table)), 4 * T)
                for half, b in enumerate(pool):
                    for i, page in enumerate(table):
                        self.assertEqual(b[page * 8 * TOKEN:(page + 1) * 8 * TOKEN],
                                         raw[half][i * 8 * TOKEN:(i + 1) * 8 * TOKEN])
                before = [bytes(b) for b in pool]
                for bad in ([12] * 8, [-1] * 8, [0] * 7):
                    view = kvpool.View(e.space, planes, "pthd", pages=bad)
                    self.assertRaises(kvpool.Invalid, m.get, view)
                self.assertEqual(before, pool)
            # Out of the pages, as a pool of tokens with indices, under other tokens.
            cast = [memoryview(b).cast("f", (96, HEADS, DIM)) for b in pool]
            indices = array.array("q", [page * 8 + t for page in table for t in range(8)])
            view = kvpool.View(e.space, list(zip(cast[::2], cast[1::2])), "phd", pages=indices,
                               first_slot=2 * T)
            other = numbers(1001, 2 * T)
            self.assertEqual(e.space.put(other, view), 2 * T)
            self.assertEqual(e.space.outcome(other), (2 * T, 0))
            with e.found(other, 2 * T) as m:
                back, planes = e.halves(2 * T, fill=False)
                m.get(kvpool.View(e.space, planes))
                self.assertEqual([bytes(b) for b in back], [bytes(b[2 * T * TOKEN:]) for b in raw])

    def test_views_refused(self):
        with Engine("views refused") as e:
            _, planes = e.halves(T)
            view = kvpool.View
            wide = memoryview(bytearray(T * HEADS * 2 * DIM * 4)).cast("f", (T, HEADS, 2 * DIM))
            thick = memoryview(bytearray(T * HEADS * DIM * 8)).cast("d", (T, HEADS, DIM))
            short = memoryview(bytearray(TOKEN)).cast("f", (1, HEADS, DIM))
            for bad in (lambda: view(e.space, planes, "thx"), lambda: view(e.space, planes, "pthd"),
                        lambda: view(e.space, planes, pages=[0]),
                        lambda: view(e.space, planes, first_slot=1),
                        lambda: view(e.space, [(wide, None)]), lambda: view(e.space, [(thick, None)]),
                        lambda: view(e.space, [(planes[0][0], short)]),
                        lambda: view(e.space, planes + planes),
                        lambda: view(e.space, planes, layers=[0, 2]),
                        lambda: view(e.space, [(bytes(9), None)])):
                self.assertRaises(ValueError, bad)
            self.assertRaises(ValueError, e.space.put, numbers(1, 2 * T), view(e.space, planes))
            self.assertRaises(kvpool.Invalid, e.space.put, numbers(1, T), view(e.space, planes[:1]))
            frozen = memoryview(bytes(T * TOKEN)).cast("B").cast("f", (T, HEADS, DIM))
            with e.space.match(numbers(1, T)) as m:
                self.assertRaises(ValueError, m.get, view(e.space, [(frozen, None)]))

    def test_grants(self):
        with Engine("grants") as e:
            tokens = numbers(1, 4 * T + 5)
            first = e.space.reserve(3, timeout=20)
            self.assertEqual(len(first), 3)
            for i, g in enumerate(first):
                buffer = memoryview(g.block())
                buffer[:] = bytes([i + 1]) * e.space.block_bytes
                buffer.release()
            memoryview(first[0].layer(1)[1])[0, 0, 0] = 2.5
            n, last = e.space.commit(first, tokens[:3 * T])
            self.assertEqual(n, 3)
            self.assertTrue(all(g.closed for g in first))
            self.assertRaises(ValueError, first[0].block)
            second = e.space.reserve(2, timeout=20)
            n, _ = e.space.commit(second, tokens[3 * T:], last, release=False)
            self.assertEqual(n, 2)
            self.assertFalse(second[1].wait(20))
            with self.assertRaises(kvpool.KvpoolError) as caught:
                e.space.commit(second, tokens[3 * T:], last)
            self.assertEqual(caught.exception.errno, errno.EALREADY)
            for g in second:
                g.release()
                g.release()
            with e.found(tokens, 4 * T + 5) as m:
                self.assertEqual(m.n_blocks, 5)
                self.assertEqual(memoryview(m.block(1)).tobytes(), bytes([2]) * e.space.block_bytes)
                self.assertEqual(memoryview(m.layer(0, 1)[1])[0, 0, 0], 2.5)
                self.assertEqual(m.layer(4, 0)[0].shape, (5, HEADS, DIM))
            self.assertRaises(kvpool.Invalid, e.space.reserve, 0)
            self.assertRaises(kvpool.Invalid, e.space.commit, [], tokens[:T])

    def test_after(self):
        with Engine("after") as e:
            tokens = numbers(1, 6 * T)
            e.store(tokens[:2 * T])
            with e.found(tokens[:2 * T], 2 * T) as first:
                _, planes = e.halves(4 * T)
                self.assertEqual(e.space.put(tokens[2 * T:], kvpool.View(e.space, planes),
                                             after=first), 4 * T)
                e.client.flush()
                with e.found(tokens[2 * T:], 6 * T, after=first) as second:
                    self.assertEqual(second.n_blocks, 6)
                    self.assertEqual(list(second.addresses(0, 2)), list(first.addresses()))
            self.assertRaises(ValueError, e.space.match, tokens, after=first)
            self.assertEqual(e.space.delete(tokens), 6)

    @unittest.skipUnless(numpy, "numpy is not installed")
    def test_numpy(self):
        with Engine("numpy", layout="NCLD") as e:
            rng = numpy.random.default_rng(1)
            tokens = numpy.arange(1, 3 * T + 1)
            # heads before tokens, and every second element of something larger
            planes = [tuple(rng.random((HEADS, 3 * T, 2 * DIM), dtype="f4")[:, :, ::2]
                            for _ in range(2)) for _ in range(LAYERS)]
            self.assertEqual(e.space.put(tokens, kvpool.View(e.space, planes, "htd")), 3 * T)
            e.client.flush()
            with e.found(tokens, 3 * T) as m:
                keys, values = m.layer(1, 1)
                a = numpy.asarray(keys)
                if tuple(int(n) for n in numpy.__version__.split(".")[:2]) >= (2, 1):
                    b = numpy.from_dlpack(values)
                else:  # knows no read-only arrays there
                    self.assertRaises(BufferError, numpy.from_dlpack, values)
                    b = numpy.asarray(values)
                self.assertEqual(a.__array_interface__["data"], (keys.address, True))
                for half, have in ((0, a), (1, b)):
                    want = planes[1][half][:, T:2 * T].transpose(1, 0, 2)
                    self.assertTrue((have == want).all())
                    self.assertFalse(have.flags.writeable)
                self.assertEqual(m.exports, 2)
                del a, have
                self.assertEqual(m.exports, 1)
                del b
                self.assertEqual(m.exports, 0)
                c = numpy.array(values.__array_interface__["shape"])
                self.assertEqual(list(c), [T, HEADS, DIM])
                self.assertRaises(BufferError, m.release)  # somebody has the address
                del values
                m.release()

    def test_salts(self):
        tokens = numbers(100, 3 * T + 5, "i")
        with Engine("salted") as e:
            plain = e.space
            e.space = plain.salted("lora-1")
            e.store(tokens)
            e.found(tokens, 3 * T).release()
            self.assertEqual(e.space.outcome(tokens).tokens, 3 * T)
            self.assertEqual(e.space.fingerprint, plain.fingerprint)
            for other in (None, "", bytes(32), "lora-2", b"lora-2", bytes(31) + b"1"):
                with plain.salted(other).match(tokens) as m:
                    self.assertEqual(m.n_tokens + m.tail_tokens, 0)
            with plain.match(tokens) as m:
                self.assertEqual(m.n_tokens, 0)
            again = plain.salted(hashlib.sha256(b"lora-1").digest())
            with again.match(tokens) as m, plain.salted("lora-1").take_over(m.export()) as taken:
                self.assertEqual(taken.n_tokens, 3 * T)
                with self.assertRaises(kvpool.Stale):
                    plain.take_over(m.export())
                with again.match(tokens[3 * T:], after=m) as longer:
                    self.assertEqual(longer.n_tokens, 3 * T)
            with self.assertRaises(kvpool.Invalid):
                again.salted("twice")
            grants = again.reserve(1)
            again.commit(grants, tokens[T:2 * T])
            e.client.flush()
            with plain.match(tokens[T:2 * T]) as m, again.match(tokens[T:2 * T]) as n:
                self.assertEqual((m.n_tokens, n.n_tokens), (0, T))
            self.assertEqual(again.delete(tokens), 3)
        del again, e, plain  # which closed spaces with their client

    def test_group(self):
        tokens = numbers(300, 4 * T, "i")
        with Engine("group") as a:
            spaces = [a.space] + [a.client.space("group", LAYERS, HEADS, DIM, dtype="float32",
                                                 block_tokens=T, adapter=str(i)) for i in "12"]
            for space, blocks in zip(spaces, (4, 2, 3)):
                a.space = space
                a.store(tokens[:blocks * T])
                a.found(tokens, blocks * T).release()
            matches = a.client.match_group(spaces, tokens)
            for m in matches:
                self.assertEqual((m.n_tokens, m.n_blocks, m.tail_tokens, m.leased),
                                 (2 * T, 2, 0, True))
                m.release()
            self.assertEqual([m.n_tokens for m in a.client.match_group(spaces[:1], tokens)], [4 * T])
            self.assertEqual(a.client.match_group(spaces, tokens, exact=True)[0].n_tokens, 0)
            for bad in ([], spaces[:1] * 2):
                with self.assertRaises(kvpool.Invalid):
                    a.client.match_group(bad, tokens)
            with Engine("group") as b, self.assertRaises(kvpool.Invalid):
                a.client.match_group([a.space, b.space], tokens)

    def test_other_types(self):
        for dtype, name, size in (("float16", "float16", 2), ("bfloat16", "bfloat16", 2),
                                  ("float8", "uint8", 1)):
            with Engine("types", dtype=dtype) as e:
                with e.space.reserve(1, timeout=20)[0] as g:
                    keys, _ = g.layer(0)
                    self.assertEqual((keys.dtype, keys.strides[2]), (name, size))
        with Engine("latent") as e:
            space = e.client.space("mla", [kvpool.Layer(1, 24, 0, number=3)], block_tokens=T)
            with space.reserve(1, timeout=20)[0] as g:
                keys, values = g.layer(0)
                self.assertEqual((keys.shape, values), ((T, 1, 24), None))
        with Engine("refused") as e:
            self.assertRaises(kvpool.Invalid, e.client.space, "x", 0, 1, 1)
            self.assertRaises(kvpool.Invalid, e.client.space, "x", 1, 1, 8, block_tokens=15)
            self.assertRaises(ValueError, e.client.space, "x", 1, 1, 8, weights_digest=b"short")


class Lifetimes(unittest.TestCase):
    def test_exports(self):
        with Engine("exports") as e:
            tokens = numbers(1, 2 * T)
            e.store(tokens)
            m = e.found(tokens, 2 * T)
            payload = m.block(0)
            buffer = memoryview(payload)
            self.assertTrue(buffer.readonly)
            with self.assertRaises(TypeError):
                buffer[0] = 1
            part = buffer[5:9]
            buffer.release()
            self.assertEqual((m.exports, e.client.exports), (1, 1))
            self.assertRaises(BufferError, m.release)
            self.assertRaises(BufferError, e.client.close)
            self.assertFalse(m.closed)
            part.release()
            m.release()
            m.release()
            self.assertTrue(m.closed)
            # what has no export is empty now, and does not crash
            self.assertRaises(ValueError, memoryview, payload)
            self.assertRaises(ValueError, lambda: payload.address)
            self.assertRaises(ValueError, lambda: payload.__array_interface__)
            self.assertRaises(ValueError, payload.__dlpack__)
            for use in (m.addresses, m.touch, m.ref, lambda: m.block(0), m.wait):
                self.assertRaises(ValueError, use)

    def test_kept_alive(self):
        with Engine("kept alive") as e:
            tokens = numbers(1, T)
            raw, _ = e.store(tokens)
            m = e.found(tokens, T)
            gone = weakref.ref(m)
            buffer = memoryview(m.layer(0, 0)[0])
            del m
            gc.collect()
            self.assertIsNotNone(gone())
            self.assertEqual(buffer.tobytes(), bytes(raw[0]))
            del buffer
            self.assertIsNone(gone())

    def test_cycle_with_the_client(self):
        """Whose finalizer may be the first: nothing is given back to a client that is gone."""
        code = """if True:
            import gc, sys, kvpool
            class Owner: pass
            for _ in range(8):
                owner = Owner()
                owner.itself = owner
                owner.client = kvpool.Client(sys.argv[1], timeout=20)
                owner.space = owner.client.space("cycle", 1, 1, 8, block_tokens=16)
                owner.salted = owner.space.salted("x")
                del owner
                gc.collect()
        """
        done = subprocess.run([sys.executable, "-c", code, daemon.socket], check=False,
                              env=dict(os.environ, MALLOC_PERTURB_="85"))
        self.assertEqual(done.returncode, 0)

    def test_cycle(self):
        """A match that its own space has goes with it, and its lease."""
        with Engine("cycle") as e:
            tokens = numbers(1, T)
            e.store(tokens)
            m = e.found(tokens, T)
            gone = weakref.ref(m)
            e.space.last = m
            e.space = None
            del m
            gc.collect()
            self.assertIsNone(gone())

    def test_found(self):
        """Matches made in C and those made from a handle are alike, and what neither takes is refused alike."""
        with Engine("found") as e:
            tokens = numbers(1, 2 * T + 5)
            e.store(tokens)
            plain = e.found(tokens, 2 * T)
            claimed = e.space.match(tokens, claim=True, timeout=20, claim_ttl=1)
            for m in (plain, claimed):
                self.assertIs(type(m), kvpool.Match)
                self.assertIs(m.space, e.space)
                self.assertEqual((m.n_blocks, m.n_tokens, m.tail_tokens, m.leased), (2, 2 * T, 0, True))
                self.assertRaises((AttributeError, TypeError), setattr, m, "n_tokens", 1)
                self.assertRaises(RuntimeError, m.__init__, e.space, m.prefix)
                self.assertIsNotNone(weakref.ref(m)())
                m.release()
                self.assertRaises(ValueError, lambda m=m: m.prefix)
                m.release()
            for kind in ("Q", "L", "q", "i", "I", "l"):
                for ids in (array.array(kind, tokens), memoryview(array.array(kind, tokens))):
                    with e.space.match(ids) as m:
                        self.assertEqual(m.n_tokens, 2 * T)
            for none in (array.array("d", [1, 2]), array.array("H", [1, 2]), b"ab",
                         memoryview(tokens)[::2], memoryview(bytes(16)).cast("I", (2, 2))):
                self.assertRaises(ValueError, e.space.match, none)
            self.assertRaises(kvpool.Invalid, e.space.match, array.array("Q", [1 << 63] * T))
            self.assertRaises(kvpool.Invalid, e.space.match, array.array("q", [-1] * T))
            for exact, tail, touch in itertools.product((0, 1, 2), repeat=3):
                with e.space.match(array.array("I"), exact=exact, tail=tail, touch=touch) as m:
                    self.assertEqual((m.n_blocks, m.n_tokens), (0, 0))
            self.assertRaises(TypeError, kvpool._memory.find)
            self.assertRaises(TypeError, kvpool._memory.find, int, None, e.client, 0, tokens, 0)
            self.assertRaises(TypeError, kvpool._memory.find, kvpool.Match, None, None, 0, tokens, 0)
            self.assertRaises(TypeError, kvpool._memory.find, kvpool.Match, None, e.client, "", tokens, 0)
            before = sys.getrefcount(e.space), sys.getrefcount(e.client), sys.getrefcount(tokens)
            for _ in range(100):
                e.space.match(tokens)  # dropped, which releases it
                with e.space.match(tokens):
                    pass
            after = sys.getrefcount(e.space), sys.getrefcount(e.client), sys.getrefcount(tokens)
            self.assertEqual(before, after)

    def test_leases_come_back(self):
        with Engine("leases") as e:
            tokens = numbers(1, T)
            e.store(tokens)
            e.found(tokens, T).release()
            for _ in range(lib.KVP_CLIENT_LEASES + 100):
                self.assertTrue(e.space.match(tokens).leased)
            held = [e.space.match(tokens) for _ in range(lib.KVP_CLIENT_LEASES + 1)]
            self.assertFalse(held[-1].leased)
            self.assertRaises(kvpool.NotLeased, held[-1].block, 0)
            for _ in range(300):
                g = e.space.reserve(1, timeout=20)
                del g
            e.client.flush()

    def test_dlpack(self):
        with Engine("dlpack") as e:
            tokens = numbers(1, T)
            e.store(tokens)
            with e.found(tokens, T) as m:
                payload = m.block(0)
                self.assertEqual(payload.__dlpack_device__(), (1, 0))
                self.assertRaises(BufferError, payload.__dlpack__)  # no flag for read-only there
                self.assertRaises(BufferError, lambda: payload.__dlpack__(max_version=(1, 0), copy=True))
                capsule = payload.__dlpack__(max_version=(1, 1), stream=None)
                self.assertIn("dltensor_versioned", repr(capsule))
                del payload
                self.assertEqual(m.exports, 1)
                self.assertRaises(BufferError, m.release)
                del capsule
                self.assertEqual(m.exports, 0)
            g = e.space.reserve(1, timeout=20)[0]
            capsule = g.block().__dlpack__()
            self.assertRaises(BufferError, e.space.commit, [g], tokens)
            self.take_over(capsule)
            del capsule  # nobody's any more
            self.assertEqual(g.exports, 1)
            self.deleter()
            self.assertEqual(g.exports, 0)
            g.release()

    def take_over(self, capsule):
        """As a consumer does; self.deleter() is its end."""
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
        tensor = api.PyCapsule_GetPointer(capsule, b"dltensor")
        self.name = ctypes.c_char_p(b"used_dltensor")
        api.PyCapsule_SetName(capsule, self.name)
        # struct dl_managed: its tensor has 48 bytes, then context and deleter
        end = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.c_void_p.from_address(tensor + 56).value)
        self.deleter = lambda: end(tensor)

    def test_closed_client(self):
        e = Engine("closed")
        tokens = numbers(1, T)
        e.store(tokens)
        m, g = e.found(tokens, T), e.space.reserve(1, timeout=20)[0]
        payload = m.block(0)
        e.client.close()
        e.client.close()
        for use in (lambda: e.space.match(tokens), e.client.flush, e.client.stats, m.addresses, g.block,
                    lambda: memoryview(payload), lambda: e.client.space("x", 1, 1, 8)):
            self.assertRaises(ValueError, use)
        m.release()
        g.release()
        del m, g, payload
        gc.collect()


class Errors(unittest.TestCase):
    def test_no_daemon(self):
        with self.assertRaises(kvpool.NoDaemon) as caught:
            kvpool.Client("/nonexistent/kvpool.sock")
        self.assertIsInstance(caught.exception, ConnectionError)
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertRaises(kvpool.Invalid, kvpool.Client, "/" + "x" * 200)
        with kvpool.Client("/nonexistent/kvpool.sock", lazy=True, timeout=.2) as client:
            space = client.space("lazy", LAYERS, HEADS, DIM, block_tokens=T, dtype="float32")
            with space.match(numbers(1, T)) as m:
                self.assertEqual((m.n_blocks, m.leased), (0, False))
            _, planes = Engine.halves(T)
            self.assertRaises(kvpool.NoDaemon, space.put, numbers(1, T), kvpool.View(space, planes))
            self.assertRaises(kvpool.NoDaemon, space.reserve)
            self.assertRaises(kvpool.NoDaemon, client.flush)
            self.assertEqual(client.stats()["attached"], 0)

    def test_no_room(self):
        with Engine("no room") as e:
            held = e.space.reserve(128, timeout=20)
            self.assertEqual(len(held), 128)
            with self.assertRaises(kvpool.NoRoom) as caught:
                e.space.reserve(1, timeout=0)
            self.assertGreater(caught.exception.retry, 0)
            self.assertIsInstance(caught.exception, BlockingIOError)
            for g in held:
                g.release()

    def test_missing_parent(self):
        with Engine("parent") as e:
            _, planes = e.halves(2 * T)
            with self.assertRaises(kvpool.KvpoolError) as caught:
                e.space.put(numbers(1, 2 * T), kvpool.View(e.space, planes), first=T)
            self.assertEqual(caught.exception.errno, errno.ENOENT)

    def test_daemon_dies(self):
        with Daemon({"memory": "256MiB"}) as other:
            with kvpool.Client(other.socket, timeout=20) as client:
                space = client.space("dies", LAYERS, HEADS, DIM, dtype="float32", block_tokens=T)
                raw, planes = Engine.halves(T)
                space.put(numbers(1, T), kvpool.View(space, planes))
                client.flush()
                m = space.match(numbers(1, T))
                other.kill()
                wait_for(lambda: not client.stats()["attached"])
                self.assertEqual(memoryview(m.layer(0, 0)[1]).tobytes(), bytes(raw[1]))
                self.assertEqual(space.match(numbers(1, T)).n_blocks, 0)
                self.assertRaises(kvpool.NoDaemon, space.put, numbers(1, T),
                                  kvpool.View(space, planes))
                m.release()
                other.start()
                wait_for(lambda: client.stats()["attached"])
                self.assertEqual(space.put(numbers(1, T), kvpool.View(space, planes)), T)


class Processes(unittest.TestCase):
    def test_fork(self):
        with Engine("fork") as e:
            tokens = numbers(1, T)
            e.store(tokens)
            m = e.found(tokens, T)
            child = os.fork()
            if not child:
                status = 1
                try:
                    for use in (lambda: e.space.match(tokens), e.client.flush, m.addresses, e.space.reserve):
                        try:
                            use()
                            os._exit(2)
                        except kvpool.Forked as error:
                            assert isinstance(error, ChildProcessError)
                    with Engine("fork") as mine:
                        mine.found(tokens, T).release()
                    del m
                    e.client.close()
                    status = 0
                finally:
                    os._exit(status)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(len(m.addresses()), 1)
            m.release()

    def test_threads(self):
        """A call that waits lets other threads go on: it waits for what one of them does."""
        with Engine("threads") as e, Engine("threads") as other:
            tokens = numbers(1, 2 * T)
            claimed = e.space.match(tokens, claim=True, timeout=20)
            self.assertTrue(claimed.claimed)
            pending = other.space.match(tokens, claim=True, timeout=20)
            self.assertTrue(pending.pending)
            self.assertRaises(kvpool.Timeout, pending.wait, 0)
            waiter = threading.Thread(target=pending.wait, args=(20,))
            waiter.start()
            e.store(tokens)
            waiter.join()
            other.found(tokens, 2 * T).release()
            claimed.release()
            pending.release()

    def test_close_beside_calls(self):
        """Calls that other threads have under way end as they would have, later ones are refused, and the last of
        them detaches."""
        def use(how):
            try:
                while True:
                    how()
                    turns.append(1)
            except ValueError:
                ended.append(1)

        def keep():
            grants.extend(e.space.reserve(1, timeout=20))
            grants.pop().release()
        tokens, turns, ended, grants = numbers(1, 256 * T), [], [], []
        before = descriptors()
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        for _ in range(12):
            e = Engine("close")
            e.store(tokens)
            names = e.client.key_space("close", "bytes", 64, 32)
            threads = [threading.Thread(target=use, args=(how,)) for how in (
                lambda: e.space.match(tokens).release(), lambda: e.space.match(tokens),
                lambda: names.match(bytes(32 * 64)).release(), lambda: e.space.salted("x"), keep)]
            del turns[:], ended[:]
            for t in threads:
                t.start()
            wait_for(lambda: len(turns) > 20)
            e.client.close()
            for t in threads:
                t.join()
            self.assertEqual(len(ended), len(threads))
            del e, names
            gc.collect()
        self.assertLessEqual(descriptors(), before)

    def test_close_beside_the_first_wait(self):
        """Its descriptor is the client's for as long as it is being copied."""
        class Late(kvpool.client.Events):
            def __init__(self, fd):
                e.client.close()
                super().__init__(fd)
        e, kept = Engine("first"), kvpool.client.Events
        before = descriptors()
        kvpool.client.Events = Late
        try:
            self.assertRaises(ValueError, asyncio.run, e.client.flush_async())
        finally:
            kvpool.client.Events = kept
        del e
        gc.collect()
        self.assertLess(descriptors(), before)

    def test_close_beside_a_wait(self):
        with Engine("wait") as other:
            before = descriptors()
            e, tokens = Engine("wait"), numbers(1, T)
            claimed = other.space.match(tokens, claim=True, timeout=20)
            pending = e.space.match(tokens, claim=True, timeout=20)
            begun, why = threading.Event(), []

            def wait():
                begun.set()
                try:
                    pending.wait(1)
                except kvpool.Timeout as timeout:
                    why.append(timeout)
            waiter = threading.Thread(target=wait)
            waiter.start()
            begun.wait()
            select.select([], [], [], .1)
            e.client.close()
            self.assertRaises(ValueError, e.space.match, tokens)
            waiter.join()
            self.assertEqual(len(why), 1)
            self.assertRaises(ValueError, pending.wait, 0)
            claimed.release()
            self.assertLessEqual(descriptors(), before)

    def test_async(self):
        async def both():
            claimed = e.space.match(numbers(1, T), claim=True, timeout=20)
            pending = other.space.match(numbers(1, T), claim=True, timeout=20)
            wait = asyncio.create_task(pending.wait_async(20))
            await asyncio.sleep(0)
            _, planes = e.halves(T)
            e.space.put(numbers(1, T), kvpool.View(e.space, planes))
            await e.client.flush_async()
            await wait
            claimed.release()
            pending.release()
        with Engine("async") as e, Engine("async") as other:
            asyncio.run(both())

    def test_async_takes_no_threads(self):
        """Dozens of waits in two event loops, of one thread each, on one client."""
        async def reader(n):
            tokens = numbers(100 * n, T)
            pending = e.space.match(tokens, claim=True, timeout=20)
            self.assertTrue(pending.pending)
            waiting.append(n)
            await pending.wait_async(20)
            pending.release()
            grant = e.space.reserve()[0]
            e.space.commit([grant], numbers(100 * n + 50, T), release=False)
            self.assertIs(await grant.wait_async(20), False)
            grant.release()

        async def readers(first):
            await asyncio.gather(*(reader(n) for n in range(first, first + 20)))
            self.assertIsNone(getattr(asyncio.get_running_loop(), "_default_executor", None))
            await e.client.flush_async(20)

        def in_a_thread(first):
            asyncio.run(readers(first))
            done.append(first)

        waiting, done = [], []
        with Engine("loops") as e, Engine("loops") as other:
            claims = {n: other.space.match(numbers(100 * n, T), claim=True, timeout=20)
                      for n in range(1, 41)}
            threads = [threading.Thread(target=in_a_thread, args=(first,)) for first in (1, 21)]
            for t in threads:
                t.start()
            wait_for(lambda: len(waiting) == 40)
            _, planes = e.halves(T)
            for n in claims:
                other.space.put(numbers(100 * n, T), kvpool.View(other.space, planes))
            for t in threads:
                t.join()
            self.assertEqual(sorted(done), [1, 21])
            for m in claims.values():
                m.release()

    def test_async_ends(self):
        """By time, by its claimant's going, by closing the client, and when the daemon dies."""
        async def ends(engine, match, how, then):
            task = asyncio.create_task(match.wait_async(20))
            await asyncio.sleep(0)
            then()
            with self.assertRaises(how):
                await task

        async def by_time():
            with self.assertRaises(kvpool.Timeout):
                await pending.wait_async(.01)

        own = Daemon({"memory": "256MiB"}).start()
        try:
            with kvpool.Client(own.socket, timeout=20) as a:
                b = kvpool.Client(own.socket, timeout=20)
                spaces = [c.space("ends", LAYERS, HEADS, DIM, block_tokens=T) for c in (a, b)]
                claimed = spaces[0].match(numbers(1, T), claim=True)
                pending = spaces[1].match(numbers(1, T), claim=True)
                asyncio.run(by_time())
                asyncio.run(ends(b, pending, kvpool.NoRoom, claimed.release))
                claimed = spaces[0].match(numbers(1, T), claim=True)
                pending = spaces[1].match(numbers(1, T), claim=True)
                asyncio.run(ends(b, pending, ValueError, b.close))
                with kvpool.Client(own.socket, timeout=20) as b:
                    space = b.space("ends", LAYERS, HEADS, DIM, block_tokens=T)
                    pending = space.match(numbers(1, T), claim=True)
                    asyncio.run(ends(b, pending, kvpool.NoDaemon, own.kill))
                    self.assertRaises(kvpool.NoDaemon, asyncio.run, b.flush_async())
                    pending.release()
                claimed.release()
        finally:
            own.stop()

    def test_event_fd(self):
        with Engine("descriptor") as e:
            fd = e.client.event_fd(claims=False)
            self.assertEqual(e.client.event_fd(), fd)
            self.assertRaises(kvpool.Invalid, e.client.event_fd, False, False)
            for i in range(5):
                grant = e.space.reserve()[0]
                e.space.commit([grant], numbers(100 * i, T), release=False)
                while True:
                    try:
                        grant.wait(0)
                        break
                    except kvpool.Timeout:
                        self.assertEqual(select.select([fd], [], [], 20)[0], [fd])
                        os.read(fd, 8)
                grant.release()


class HandOver(unittest.TestCase):
    """A scheduler's match becomes a worker's, in another process."""
    WORKER = """
import sys, kvpool
with kvpool.Client(sys.argv[1], timeout=20) as client:
    space = client.space("handed", %d, %d, %d, dtype="float32", block_tokens=%d)
    exported = bytes.fromhex(sys.argv[2])
    while True:
        try:
            match = space.take_over(exported)
            break
        except kvpool.NoRoom:
            pass
    print(match.n_tokens, match.leased, sum(bytes(match.block(2))), flush=True)
    sys.stdin.readline()
    print(sum(bytes(match.block(2))))
    match.release()
""" % (LAYERS, HEADS, DIM, T)

    def test_worker(self):
        with Engine("handed") as e:
            tokens = numbers(1, 4 * T)
            e.store(tokens)
            match = e.found(tokens, 4 * T)
            want = sum(bytes(match.block(2)))
            worker = subprocess.Popen(
                [sys.executable, "-c", self.WORKER, daemon.socket, match.export().hex()], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.assertEqual(worker.stdout.readline(), "%d True %d\n" % (4 * T, want))
            exported = match.export()
            match.release()
            self.assertEqual(e.space.delete(tokens), 4)
            out, _ = worker.communicate("go on\n", timeout=60)
            self.assertEqual((out, worker.returncode), ("%d\n" % want, 0))

            def gone():
                try:
                    e.space.take_over(exported).release()
                    return False
                except kvpool.Stale:
                    return True
            wait_for(gone)
            self.assertRaises(kvpool.Invalid, e.space.take_over, exported[:-1])
            with e.space.match(tokens) as none:
                with self.assertRaises(kvpool.KvpoolError) as caught:
                    none.export()
            self.assertEqual(caught.exception.errno, errno.ENOENT)


class Keys(unittest.TestCase):
    """Blocks that are named by keys."""
    BYTES = 4096

    def setUp(self):
        self.client = kvpool.Client(daemon.socket, name="test", timeout=20)
        self.space = self.client.key_space(self.id(), "pages", self.BYTES, 32)

    def tearDown(self):
        self.client.close()

    @staticmethod
    def key(i):
        return bytes([i]) * 32

    def block(self, i):
        return bytes([i]) * self.BYTES

    def found(self, keys, want):
        def look():
            m = self.space.match(keys)
            if m.found == want:
                return m
            m.release()
            return None
        return wait_for(look)

    def test_put_and_match(self):
        keys = [self.key(i) for i in range(70)]
        self.assertEqual(self.space.present(keys), 0)
        self.assertEqual(self.space.put(keys[:3], [self.block(i) for i in range(3)]), 3)
        self.assertEqual(self.space.put([keys[69]], [memoryview(bytearray(self.block(69)))]), 1)
        self.client.flush()
        self.assertEqual(self.space.present(keys), 7 | 1 << 69)
        self.assertEqual(self.space.present(b"".join(keys), leading=True), 7)
        with self.found(keys, 7 | 1 << 69) as m:
            self.assertEqual(m.n_keys, 70)
            for i in (0, 1, 2, 69):
                self.assertEqual(bytes(m.block(i)), self.block(i))
            self.assertRaises(KeyError, m.block, 3)
            self.assertRaises(IndexError, m.block, 70)
            self.assertRaises(IndexError, m.block, -1)
            look = memoryview(m.block(1))
            self.assertTrue(look.readonly)
            self.assertRaises(BufferError, m.release)
            self.assertEqual(look[5], 1)
            look.release()
        self.assertRaises(ValueError, m.block, 0)
        with self.space.match([]) as none:
            self.assertEqual((none.n_keys, none.found), (0, 0))

    def test_written_in_place(self):
        grants = self.space.reserve(2)
        for i, g in enumerate(grants):
            view = memoryview(g.block())
            view[:] = self.block(i + 10)
            if i:
                self.assertRaises(BufferError, self.space.commit, grants, [self.key(0), self.key(1)])
            view.release()
        self.assertRaises(ValueError, self.space.commit, grants, [self.key(0)])
        self.assertRaises(IndexError, grants[0].layer, 0)
        self.assertEqual(self.space.commit(grants, [self.key(0), self.key(1)]), 2)
        self.client.flush()
        with self.found([self.key(1), self.key(0)], 3) as m:
            self.assertEqual(bytes(m.block(0)), self.block(11))
            self.assertEqual(bytes(m.block(1)), self.block(10))
            self.assertEqual(self.space.delete(self.key(0)), 1)
            self.assertEqual(bytes(m.block(1)), self.block(10))
        wait_for(lambda: self.space.present([self.key(0), self.key(1)]) == 2)
        self.assertEqual(self.space.delete(self.key(9)), 0)

    def test_parents(self):
        grants = self.space.reserve(3)
        keys = [self.key(20 + i) for i in range(3)]
        for bad in (keys[:2], [b"short", None, None]):
            self.assertRaises(ValueError, self.space.commit, grants, keys, parents=bad)
        self.assertEqual(self.space.commit(grants, keys, parents=[None] + keys[:2]), 3)
        self.client.flush()
        self.assertEqual(self.space.present(keys), 7)
        for i in (2, 1, 0):
            self.assertEqual(self.space.delete(keys[i]), 1)
        wait_for(lambda: self.space.present(keys) == 0)

    def test_refused(self):
        for bad in ((0, 32), (1 << 32, 32), (4096, 0), (4096, 30), (4096, 12), (4096, 68)):
            self.assertRaises(kvpool.Invalid, self.client.key_space, "refused", "pages", *bad)
        self.assertRaises(kvpool.Invalid, self.client.key_space, "refused", "", 4096, 32)
        # It would end at the zero, and be one with another's.
        for names in (("a\0b", "pages"), ("a", "pages\0b")):
            self.assertRaises(kvpool.Invalid, self.client.key_space, *names, 4096, 32)
        for names in ({"adapter": "a\0b"}, {"tokenizer": "a\0b"}):
            self.assertRaises(kvpool.Invalid, self.client.space, "a", 1, 1, 8, **names)
        self.assertRaises(kvpool.Invalid, kvpool.Client, daemon.socket + "\0b")
        self.assertRaises(ValueError, self.space.match, b"x" * 33)
        self.assertRaises(ValueError, self.space.match, [b"x" * 32, b"x" * 31])
        self.assertRaises(ValueError, self.space.put, [self.key(1)], [])
        self.assertRaises(ValueError, self.space.put, [self.key(1)], [b"short"])
        self.assertRaises(ValueError, self.space.delete, b"short")

    def test_leases_go_with_the_match(self):
        self.space.put([self.key(1)], [self.block(1)])
        self.client.flush()
        m = self.found([self.key(1)], 1)
        piece = m.block(0)
        del m
        gc.collect()
        self.space.delete(self.key(1))
        self.assertEqual(self.space.present([self.key(1)]), 1)
        self.assertEqual(bytes(piece), self.block(1))
        del piece
        gc.collect()
        wait_for(lambda: self.space.present([self.key(1)]) == 0)


class Devices(unittest.TestCase):
    """Beside a daemon with a device of host memory that holds ROOM blocks."""

    ROOM = (1 << 20) // (2 * LAYERS * TOKEN * T)

    def setUp(self):
        self.daemon = Daemon({"memory": "64MiB", "defaults": {"max_blocks": 1024}, "devices": [{
            "name": "d0", "driver": "host", "bytes": 1 << 20, "segment": 1 << 20,
            "worker": os.environ["KVPOOL_DEVICE"]}]}).start()
        self.client = kvpool.Client(self.daemon.socket, timeout=20)
        self.space = self.client.space("device", LAYERS, HEADS, DIM, dtype="float32", block_tokens=T)

    def tearDown(self):
        self.client.close()
        self.daemon.stop()

    def store(self, tokens):
        _, planes = Engine.halves(len(tokens))
        self.assertEqual(self.space.put(tokens, kvpool.View(self.space, planes)), len(tokens))
        self.client.flush()

    def found(self, tokens):
        """Blocks that were moved are a miss until their memory is mapped: at most a moment."""
        def look():
            m = self.space.match(tokens)
            if m.n_tokens == len(tokens):
                return m
            m.release()
            return None
        return wait_for(look)

    def device_is_up(self):
        """A device that was never up is shown to nobody: its worker has just been started."""
        device = self.client.device(0)
        return device is not None and device.up

    def readable(self, match, i):
        """The library maps a device's memory when it is first asked for."""
        return wait_for(lambda: match.device_block(i))

    def test_warm_and_read(self):
        tokens = array.array("I", range(8 * T))
        self.store(tokens)
        self.assertIsNone(self.client.device(1))
        wait_for(self.device_is_up)
        with self.found(tokens) as m:
            self.assertIsNone(m.device_block(3))
            self.assertEqual(m.warm(first=2, n=3).wait(), kvpool.Warmed(3, 0))
            self.assertIsNone(m.device_block(1))
            self.assertEqual(bytes(self.readable(m, 3)), bytes(m.block(3)))
            self.assertEqual(len(m.device_addresses(0, 2)), 3)
            early = m.warm(first=5, early=True)
            self.assertEqual(early.placed(), 3)
            places = wait_for(lambda: m.device_addresses(0, 5, pending=True))
            self.assertEqual(early.wait(), kvpool.Warmed(3, 0))
            self.assertEqual(m.device_addresses(0, 5), places)
            ticket = m.warm()
            self.assertEqual(asyncio.run(ticket.wait_async()), kvpool.Warmed(8, 0))
            self.assertEqual(ticket.done(), kvpool.Warmed(8, 0))
            for i in range(8):
                self.assertEqual(bytes(m.device_block(i)), bytes(m.block(i)))
            there = m.device_block(0)
            with self.assertRaises(BufferError):
                with memoryview(there):
                    m.release()
            del there
            with self.assertRaises(ValueError):
                m.warm(n=0)
            with self.assertRaises(kvpool.KvpoolError) as e:
                m.warm(first=8)
            self.assertEqual(e.exception.errno, errno.ENOENT)
            self.assertEqual(m.warm(device=3).wait(), kvpool.Warmed(0, errno.ENODEV))
        self.assertEqual(self.client.device(0).to_device_bytes, 8 * self.space.block_bytes)

    def test_no_room(self):
        tokens = array.array("I", range((self.ROOM + 8) * T))
        self.store(tokens)
        with self.found(tokens) as m:
            got = m.warm().wait()
            self.assertEqual((got.blocks, got.why), (self.ROOM, errno.ENOSPC))

    def test_prefetch(self):
        tokens = array.array("I", range(500, 500 + 4 * T))
        self.store(tokens)
        self.assertEqual(self.space.prefetch(tokens), 4)
        self.assertEqual(self.space.prefetch(array.array("I", [1] * T)), 0)
        with self.found(tokens) as m:
            self.assertEqual(bytes(self.readable(m, 3)), bytes(m.block(3)))


class Readme(unittest.TestCase):
    def test_example(self):
        """The example of python/README.md runs as it stands there; the next time it finds what the
        first has left, at the latest when that has been moved out of the dead process's memory."""
        here = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(here, "..", "..", "python", "README.md"), encoding="utf-8") as f:
            example = f.read().split("```python\n")[1].split("```")[0]

        def run():
            return subprocess.run([sys.executable, "-c", example], check=True, text=True,
                                  stdout=subprocess.PIPE, timeout=60,
                                  env=dict(os.environ, KVPOOL_SOCKET=daemon.socket)).stdout.strip()
        self.assertEqual(run(), "0 tokens were cached, 960 are handed over")
        wait_for(lambda: run() == "960 tokens were cached, 960 are handed over")


if __name__ == "__main__":
    print("numpy", numpy.__version__ if numpy else "is not installed: its tests are left out")
    unittest.main()
