# SPDX-License-Identifier: Apache-2.0
"""LMCache: kvpoold as its second level, shared by all LMCache servers and engines of the tenant.

    --l2-adapter '{"type": "plugin", "module_path": "kvpool.connectors.lmcache",
                   "class_name": "KvpoolL2", "adapter_params": {}}'

An object of LMCache is a block that its key names. "Look up and lock" leases the block, "unlock" ends
the lease: what is locked stays where it is, and nothing of a process that dies stays locked. Without a
daemon, or when it stops, hangs or comes back, lookups are misses and stores fail.
"""
import ctypes
import functools
import hashlib
import logging
import queue
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from .. import Client, KeyMatch, KeySpace, KvpoolError

_log = logging.getLogger("kvpool.lmcache")

_KEY_BYTES = 64
_PART_LEAST = 4  # objects of a task that are worth a thread
_SIZES_MAX = 16  # of objects of one model; more are no lookups' business


def block_key(key: Any) -> bytes:
    """What names the object's block: everything of its key but the model, which the space has."""
    text = "%s@%d@%d@%s" % (key.chunk_hash.hex(), key.kv_rank, key.object_group_id, key.cache_salt)
    return hashlib.blake2b(text.encode(), digest_size=_KEY_BYTES).digest()


class _Locks:
    """Leases of one lookup, which end when each of its objects that was found has been unlocked, and
    none is being copied."""

    def __init__(self, match: KeyMatch, left: int) -> None:
        self.match, self.left = match, left


class _Parts:
    """A task that several threads work for: who ends its part last ends the task."""

    def __init__(self, n: int) -> None:
        self._lock, self._left = threading.Lock(), n
        self.ok = True

    def end(self, ok: bool) -> bool:
        """True for the last one."""
        with self._lock:
            self.ok = self.ok and ok
            self._left -= 1
            return not self._left


class KvpoolL2(L2AdapterInterface):
    """The adapter. adapter_params, all optional: socket: the daemon's; timeout: seconds that a store
    waits for room at most (1); threads: that copy, each a part of a task (2). Any thread may call it."""

    def __init__(self, adapter_params: Optional[Dict[str, Any]] = None, l1_memory_desc: Any = None,
                 **_: Any) -> None:
        super().__init__()
        del l1_memory_desc  # objects are copied into and out of the daemon's memory
        params = dict(adapter_params or {})
        socket, threads = params.pop("socket", None), int(params.pop("threads", 2))
        self._timeout = float(params.pop("timeout", 1.0))
        if params or not 1 <= threads <= 64:
            raise ValueError("adapter_params are socket, timeout and threads (1 to 64), not %r" %
                             (sorted(params) or threads))
        self._client = Client(socket, "lmcache", self._timeout, lazy=True)
        self._spaces: Dict[Tuple[str, int], KeySpace] = {}
        self._lock = threading.Lock()
        self._locked: Dict[Any, List[Tuple[_Locks, int]]] = {}
        self._last_id = 0
        self._stored: Dict[int, L2StoreResult] = {}
        self._found: Dict[int, Bitmap] = {}
        self._loaded: Dict[int, Bitmap] = {}
        self._events = [create_event_notifier() for _ in range(3)]
        self._tasks: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name="kvpool-l2", daemon=True)
                         for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    # ---- what LMCache polls

    def get_store_event_fd(self) -> int:
        return int(self._events[0].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._events[1].fileno())

    def get_load_event_fd(self) -> int:
        return int(self._events[2].fileno())

    def pop_completed_store_tasks(self) -> Dict[int, L2StoreResult]:
        with self._lock:
            done, self._stored = self._stored, {}
        return done

    def query_lookup_and_lock_result(self, task_id: int) -> Optional[Bitmap]:
        with self._lock:
            return self._found.pop(task_id, None)

    def query_load_result(self, task_id: int) -> Optional[Bitmap]:
        with self._lock:
            return self._loaded.pop(task_id, None)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            task()

    def _next_id(self) -> int:
        with self._lock:
            self._last_id += 1
            return self._last_id

    # ---- spaces

    def _space(self, model: str, size: int) -> KeySpace:
        """Objects of the model that are of this size. KvpoolError: the tenant has no room for one
        more kind."""
        with self._lock:
            space = self._spaces.get((model, size))
            if space is None:
                space = self._client.key_space(model, "lmcache object", size, _KEY_BYTES,
                                               self._timeout)
                self._spaces[(model, size)] = space
            return space

    def _sizes(self, model: str, layouts: Dict[int, Any]) -> List[int]:
        """Of the model's objects, as far as this process knows: those of the layouts that LMCache names,
        and those of objects that it has stored or loaded."""
        named = [sum(shape.numel() * dtype.itemsize
                     for shape, dtype in zip(layout.shapes, layout.dtypes))
                 for layout in layouts.values()] if isinstance(layouts, dict) else []
        with self._lock:
            known = [size for name, size in self._spaces if name == model]
        return [size for size in dict.fromkeys(named + known) if size > 0][:_SIZES_MAX]

    # ---- looking up and locking: microseconds, in the caller's thread

    def submit_lookup_and_lock_task(self, keys: List[Any],
                                    group_layout_descs: Dict[int, Any]) -> int:
        task_id, bitmap = self._next_id(), Bitmap(len(keys))
        by_model: Dict[str, List[int]] = {}
        for i, key in enumerate(keys):
            by_model.setdefault(key.model_name, []).append(i)
        for model, places in by_model.items():
            left = places
            for size in self._sizes(model, group_layout_descs):
                left = self._lock_some(keys, left, model, size, bitmap)
                if not left:
                    break
        with self._lock:
            self._found[task_id] = bitmap
        self._events[1].notify()
        return task_id

    def _lock_some(self, keys: List[Any], places: List[int], model: str, size: int,
                   bitmap: Bitmap) -> List[int]:
        """Leases those of the keys that have an object of this size; the places of the others."""
        try:
            match = self._space(model, size).match([block_key(keys[i]) for i in places])
        except KvpoolError as e:
            _log.warning("lookup: %s", e)
            return places
        if not match.found:
            match.release()
            return places
        found = [n for n in range(len(places)) if match.found >> n & 1]
        locks = _Locks(match, len(found))
        with self._lock:
            for n in found:
                self._locked.setdefault(keys[places[n]], []).append((locks, n))
        bitmap.batched_set([places[n] for n in found])
        return [i for n, i in enumerate(places) if not match.found >> n & 1]

    def submit_unlock(self, keys: List[Any]) -> None:
        locks = []
        with self._lock:
            for key in keys:
                held = self._locked.get(key)
                if not held:
                    continue
                locks.append(held.pop(0)[0])
                if not held:
                    del self._locked[key]
        self._end(locks)

    def _end(self, locks: List[_Locks]) -> None:
        with self._lock:
            for lock in locks:
                lock.left -= 1
            over = {id(lock): lock for lock in locks if not lock.left}
        for lock in over.values():
            lock.match.release()

    # ---- storing and loading: copies, in threads

    def _share(self, n: int, work: Callable[[int, int, _Parts], None]) -> None:
        """Has threads do work(from, to, parts) for n objects, a part each."""
        n_parts = max(1, min(len(self._threads), n // _PART_LEAST))
        parts = _Parts(n_parts)
        for i in range(n_parts):
            begin, end = n * i // n_parts, n * (i + 1) // n_parts
            self._tasks.put(functools.partial(work, begin, end, parts))

    def submit_store_task(self, keys: List[Any], objects: List[Any]) -> int:
        task_id, keys, objects = self._next_id(), list(keys), list(objects)
        self._share(len(keys), functools.partial(self._store, task_id, keys, objects))
        return task_id

    def _store(self, task_id: int, keys: List[Any], objects: List[Any], begin: int, end: int,
               parts: _Parts) -> None:
        try:
            sizes = [int(o.get_size()) for o in objects[begin:end]]
            ok = len(keys) == len(objects) and self._put(keys[begin:end], objects[begin:end], sizes)
        except Exception as e:  # pylint: disable=broad-except
            _log.warning("store: %s", e)
            ok = False
        if not parts.end(ok):
            return
        sizes = [int(o.get_size()) for o in objects] if parts.ok else []
        if parts.ok:
            self._tell(self._notify_keys_stored, keys, sizes)
        with self._lock:
            self._stored[task_id] = L2StoreResult(parts.ok, sum(sizes))
        self._events[0].notify()

    @staticmethod
    def _tell(listeners: Any, *what: Any) -> None:
        """A listener that fails ends neither the task nor the thread that later tasks wait for."""
        try:
            listeners(*what)
        except Exception as e:  # pylint: disable=broad-except
            _log.warning("listener: %s", e)

    def _put(self, keys: List[Any], objects: List[Any], sizes: List[int]) -> bool:
        """Whole runs of objects of one model and size at a time."""
        at = 0
        while at < len(keys):
            end = at + 1
            kind = keys[at].model_name, sizes[at]
            while end < len(keys) and (keys[end].model_name, sizes[end]) == kind:
                end += 1
            blocks = [(ctypes.c_char * kind[1]).from_address(o.data_ptr) for o in objects[at:end]]
            if self._space(*kind).put([block_key(k) for k in keys[at:end]], blocks,
                                      self._timeout) < end - at:
                return False
            at = end
        return True

    def submit_load_task(self, keys: List[Any], objects: List[Any]) -> int:
        task_id, keys, objects = self._next_id(), list(keys), list(objects)
        self._share(len(keys), functools.partial(self._load, task_id, keys, objects, []))
        return task_id

    def _load(self, task_id: int, keys: List[Any], objects: List[Any], done: List[int], begin: int,
              end: int, parts: _Parts) -> None:
        for i, (key, obj) in enumerate(zip(keys[begin:end], objects[begin:end]), begin):
            try:
                if self._get(key, obj):
                    done.append(i)
            except Exception as e:  # pylint: disable=broad-except
                _log.warning("load: %s", e)
        if not parts.end(True):
            return
        bitmap = Bitmap(len(keys))
        bitmap.batched_set(done)
        if done:
            self._tell(self._notify_keys_accessed, [keys[i] for i in done])
        with self._lock:
            self._loaded[task_id] = bitmap
        self._events[2].notify()

    def _get(self, key: Any, obj: Any) -> bool:
        """Copies what is locked, or is there at the moment."""
        size = int(obj.get_size())
        space = self._space(key.model_name, size)
        with self._lock:
            held = next(((locks, n) for locks, n in self._locked.get(key, ())
                         if locks.match.space is space), None)
            if held:
                held[0].left += 1  # it is not unlocked while it is copied
        if held:
            try:
                self._copy(held[0].match.block(held[1]), obj, size)
            finally:
                self._end([held[0]])
            return True
        with space.match([block_key(key)]) as match:
            if not match.found:
                return False
            self._copy(match.block(0), obj, size)
        return True

    @staticmethod
    def _copy(block: Any, obj: Any, size: int) -> None:
        address, _ = block.__array_interface__["data"]
        ctypes.memmove(obj.data_ptr, address, size)  # without the GIL

    # ---- the rest

    def delete(self, keys: List[Any]) -> None:
        gone, sizes = [], []
        for key in keys:
            for size in self._sizes(key.model_name, {}):
                try:
                    if self._space(key.model_name, size).delete(block_key(key), self._timeout):
                        gone.append(key)
                        sizes.append(size)
                except KvpoolError as e:
                    _log.warning("delete: %s", e)
        if gone:
            self._notify_keys_deleted(gone, sizes)

    def report_status(self) -> Dict[str, Any]:
        counters = self._client.stats()
        return {"is_healthy": bool(counters["attached"]) and not counters["stuck"],
                "type": "kvpool", "blocks": counters["blocks"],
                "payload_bytes": counters["payload_bytes"],
                "locked": len(self._locked), "timeouts": counters["timeouts"]}

    def close(self) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        with self._lock:
            self._locked.clear()
        self._client.close()
        for event in self._events:
            event.close()
