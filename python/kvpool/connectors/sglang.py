# SPDX-License-Identifier: Apache-2.0
"""SGLang: storage behind HiCache, shared by all SGLang processes of the tenant (docs/engines/sglang.md).

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-mem-layout page_first
    --hicache-storage-backend-extra-config '{"backend_name": "kvpool", "interface_v1": 1,
        "module_path": "kvpool.connectors.sglang", "class_name": "KvpoolHiCache"}'

A page of HiCache's host memory is a block that the page's hash names. Pages are copied once, between
the host memory and the pool, without the GIL. Without a daemon, or when it stops, hangs or comes back,
lookups are misses and nothing is stored: no call raises.
"""
import array
import functools
import hashlib
import logging
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, TypeVar, cast

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult)

from .. import Client, KeySpace, KvpoolError, NoRoom, Timeout
from .._memory import move
from .weights import weight_files

_log = logging.getLogger("kvpool.sglang")

_KEY_BYTES = 32
_RUN = 64  # pages that are moved at a time
_HANGS = 5.0  # seconds in which a daemon that did not answer is not waited for again
_KV = "kv"

_F = TypeVar("_F", bound=Callable[..., Any])

# Of a host pool, what decides about the bytes of a page.
_GEOMETRY = ("layout", "dtype", "page_size", "layer_num", "start_layer", "end_layer", "head_num",
             "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim",
             "storage_format_tag")
# Of the server's arguments, what decides about the contents besides the tokens.
_CONTENTS = ("model_path", "revision", "quantization", "dtype", "kv_cache_dtype",
             "quantization_param_path", "json_model_override_args")


def page_key(key: str) -> bytes:
    """What names the page's block: the hash of SGLang itself, or a digest of a name that is none."""
    if len(key) == 2 * _KEY_BYTES:
        try:
            return bytes.fromhex(key)
        except ValueError:
            pass
    return hashlib.blake2b(key.encode(), digest_size=_KEY_BYTES).digest()


def _weights(config: Any) -> str:
    """What names weights and everything else that pages depend on. ValueError: nobody says it."""
    given = (config.extra_config or {}).get("weights_digest")
    if given:
        return str(given)
    try:
        from sglang.srt.runtime_context import get_server_args  # pylint: disable=import-outside-toplevel
        args = get_server_args()
    except (ImportError, ValueError, RuntimeError):
        args = None
    if getattr(args, "model_path", None) is None:
        raise ValueError('kvpool: the server\'s arguments are not known here: give "weights_digest", a '
                         "text that names the weights, in the storage's extra configuration")
    facts = [(name, str(getattr(args, name, None))) for name in _CONTENTS]
    return repr((facts, weight_files(args.model_path)))


def _shard(config: Any, replicated: bool) -> str:
    """Which part of each layer and of the layers this rank has. replicated: all tensor-parallel ranks
    have the same bytes, as with MLA, and one of them stores for all."""
    parts = ["pp%d/%d" % (config.pp_rank, config.pp_size),
             "cp%d/%d" % (getattr(config, "attn_cp_rank", 0), getattr(config, "attn_cp_size", 1)),
             "dcp%d/%d" % (getattr(config, "dcp_rank", 0), getattr(config, "dcp_size", 1))]
    if not replicated:
        parts.append("tp%d/%d" % (config.tp_rank, config.tp_size))
    return " ".join(parts)


def _never_raises(answer: Callable[..., Any]) -> Callable[[_F], _F]:
    """Of a method: what goes wrong is said in the log, and answer(its arguments) returned."""
    def wrap(method: _F) -> _F:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **more: Any) -> Any:
            try:
                return method(self, *args, **more)
            except KvpoolError as e:
                _log.info("%s: %s", method.__name__, e)  # of a daemon that is not there, each call
                return answer(*args, **more)
            except Exception as e:  # pylint: disable=broad-except
                _log.warning("%s: %s", method.__name__, e)
                return answer(*args, **more)
        return cast(_F, call)
    return wrap


class _Memory(NamedTuple):
    """Where pages lie: addresses and bytes of their parts, page by page, equally many of each."""
    parts: "array.array[int]"
    sizes: "array.array[int]"
    owners: Any  # keeps it there

    each: int  # parts of a page

    def part(self, first: int, end: int) -> "_Memory":
        """Pages [first, end)."""
        of = slice(first * self.each, end * self.each)
        return self._replace(parts=self.parts[of], sizes=self.sizes[of])

    def some(self, pages: Sequence[int]) -> "_Memory":
        """These pages."""
        parts, sizes = array.array("Q"), array.array("Q")
        for i in pages:
            parts.extend(self.parts[i * self.each:(i + 1) * self.each])
            sizes.extend(self.sizes[i * self.each:(i + 1) * self.each])
        return self._replace(parts=parts, sizes=sizes)


class _Pages:
    """Pages of one of the engine's host pools, and the space that they are shared in. direct: copied
    from and to where they lie in the host pool; otherwise as the flat tensors that it makes of them."""

    def __init__(self, host: Any, direct: bool) -> None:
        self.host = host
        self.tokens = int(getattr(host, "page_size", 1) or 1)
        self.direct = False
        self.block_bytes = 0
        meta = self._meta(torch.zeros(self.tokens, dtype=torch.int64), 1) if direct else None
        if meta is not None:
            self.direct = True
            self.block_bytes = sum(meta.sizes)
        else:
            page = host.get_dummy_flat_data_page()
            self.block_bytes = page.numel() * page.element_size()
        self.space: Optional[KeySpace] = None

    def layout(self) -> str:
        """What lies where in a page."""
        facts = [type(self.host).__name__, "parts" if self.direct else "flat"]
        facts += ["%s=%s" % (name, getattr(self.host, name, None)) for name in _GEOMETRY]
        return " ".join(facts)

    def _meta(self, indices: Any, n: int) -> Optional[_Memory]:
        """None: this pool, or its layout, does not say where pages lie."""
        try:
            parts, sizes = self.host.get_page_buffer_meta(indices)
        except (AttributeError, ValueError, NotImplementedError):
            return None
        return _Memory(array.array("Q", parts), array.array("Q", sizes), self.host, len(parts) // n)

    def lie(self, indices: Any, n: int) -> _Memory:
        """Where n pages lie of which these are the tokens. ValueError: other than when it began."""
        memory = self._meta(indices, n) if indices.numel() == n * self.tokens else None
        if memory is None:
            raise ValueError("%d pages, and %d tokens" % (n, indices.numel()))
        return memory


def flat(tensors: Sequence[Any]) -> _Memory:
    """Dense tensors of the CPU, a page each. ValueError: one is not."""
    if any(not t.is_contiguous() or t.device.type != "cpu" for t in tensors):
        raise ValueError("a page that is not dense memory of the CPU")
    return _Memory(array.array("Q", (t.data_ptr() for t in tensors)),
                   array.array("Q", (t.numel() * t.element_size() for t in tensors)), list(tensors), 1)


def _restorable(have: int, pages: int, transfer: Any) -> Set[int]:
    """How long prefixes may be for the pool to restore them. have: its pages as bits; pages: of the keys
    and values. ValueError: a policy of a later SGLang."""
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return set(range(1, min((~have & (have + 1)).bit_length() - 1, pages) + 1))
    if transfer.hit_policy != PoolHitPolicy.TRAILING_PAGES:
        raise ValueError("no pages by %s" % transfer.hit_policy)
    window = max(1, len(transfer.keys or ()))
    return {n for n in range(1, pages + 1)
            if all(have >> i & 1 for i in range(max(0, n - window), n))}


class KvpoolHiCache(HiCacheStorage):  # type: ignore[misc]
    """The backend. storage_config: SGLang's HiCacheStorageConfig, of whose extra_config it takes, all
    optional, "socket": else $KVPOOL_SOCKET, else the system's; "timeout": seconds that a call waits for
    room or memory at most, .2; "name": of the model; "weights_digest": a text that names the weights, else
    the server's arguments and the weight files' names, sizes and times. SGLang's threads call it, each
    its own methods. ValueError: it cannot tell which weights these are."""

    def __init__(self, storage_config: Any, kwargs: Optional[Dict[str, Any]] = None) -> None:
        super().__init__()
        del kwargs  # of the factory's, which has none
        extra = storage_config.extra_config or {}
        self._config = storage_config
        self._timeout = float(extra.get("timeout", .2))
        self._direct = bool(extra.get("interface_v1", 0))
        self._weights = _weights(storage_config)
        self._model = str(extra.get("name") or storage_config.model_name or "sglang")
        self._client = Client(extra.get("socket"), "sglang", self._timeout, lazy=True)
        self._lock = threading.Lock()
        self._pools: Dict[str, _Pages] = {}
        self._flat: Optional[_Pages] = None  # of the pages that calls without host indices move
        self._not_before = 0.0
        self.registered_pools: Dict[Any, Any] = {}

    # ---- pools and their spaces

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool of the keys and values themselves."""
        self.mem_pool_host = mem_pool_host
        self._pools[_KV] = _Pages(mem_pool_host, self._direct)
        self._flat = _Pages(mem_pool_host, False) if self._direct else self._pools[_KV]

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A pool beside it: states of hybrid models, indices of sparse attention."""
        self.registered_pools[host_pool_name] = host_pool
        name = str(host_pool_name)
        if name not in self._pools:
            try:
                self._pools[name] = _Pages(host_pool, self._direct)
            except Exception as e:  # pylint: disable=broad-except
                _log.warning("pages of %s are not shared: %s", name, e)

    def _space(self, name: str, pages: _Pages) -> KeySpace:
        """KvpoolError: the tenant has no room for one more kind."""
        with self._lock:
            if pages.space is None:
                replicated = self._config.is_mla_model and name != "mamba"
                what = repr((name, self._model, pages.layout(), _shard(self._config, replicated),
                             self._weights))
                digest = hashlib.blake2b(what.encode(), digest_size=32).hexdigest()
                pages.space = self._client.key_space(
                    self._model.encode()[-100:].decode(errors="ignore") or "sglang",
                    "sglang %s %s" % (name[:24], digest), pages.block_bytes, _KEY_BYTES, self._timeout)
            return pages.space

    # ---- what moves

    def _store(self, name: str, pages: _Pages, keys: Sequence[str], memory: _Memory,
               before: Optional[str] = None) -> List[bool]:
        """Which of the keys have a block now or soon. before: the key that the first one follows: as long
        as a page is cached, the one before it is."""
        n = len(keys)
        if not n or time.monotonic() < self._not_before:
            return [False] * n
        space = self._space(name, pages)
        names = [page_key(k) for k in keys]
        above = [page_key(before) if before else None] + cast(List[Optional[bytes]], names[:-1])
        there = space.present(names, touch=True)
        done = [bool(there >> i & 1) for i in range(n)]
        missing = [i for i in range(n) if not done[i]]
        try:
            for at in range(0, len(missing), _RUN):
                run = missing[at:at + _RUN]
                stored = self._write(space, [names[i] for i in run], [above[i] for i in run],
                                     memory.some(run))
                for i in run[:stored]:
                    done[i] = True
                if stored < len(run):
                    break
        except (NoRoom, Timeout) as e:
            self._not_before = time.monotonic() + getattr(e, "retry", _HANGS)
            _log.info("not stored: %s", e)
        return done

    def _write(self, space: KeySpace, names: List[bytes], above: List[Optional[bytes]],
               memory: _Memory) -> int:
        """Copies pages into slots and publishes them; returns how many."""
        grants = space.reserve(len(names), self._timeout)
        try:
            n = len(grants)
            some = memory.part(0, n)
            slots = array.array("Q", (g.block().address for g in grants))
            move(slots, space.block_bytes, some.parts, some.sizes, True)
            return space.commit(grants, names[:n], parents=above[:n])
        finally:
            for g in grants:
                g.release()

    def _load(self, name: str, pages: _Pages, keys: Sequence[str], memory: _Memory) -> int:
        """Copies pages up to the first that is missing; returns how many."""
        space = self._space(name, pages)
        until = time.monotonic() + self._timeout
        done = 0
        while done < len(keys):
            names = [page_key(k) for k in keys[done:done + _RUN]]
            got = self._copy(space, names, memory.part(done, done + len(names)), until)
            done += got
            if got < len(names):
                break
        return done

    @staticmethod
    def _copy(space: KeySpace, names: List[bytes], memory: _Memory, until: float) -> int:
        """Waits until then for the memory of what is there, which is mapped in a moment."""
        while True:
            with space.match(names, leading=True) as match:
                blocks = match.addresses()
                n = len(blocks)
                if n == len(names) or time.monotonic() >= until \
                        or space.present(names, leading=True).bit_length() <= n:
                    some = memory.part(0, n)
                    move(blocks, space.block_bytes, some.parts, some.sizes, False)
                    return n
            time.sleep(.001)

    # ---- the engine's calls for pages of keys and values

    @_never_raises(lambda keys, *_, **__: 0)
    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """How many of the keys, from the first on, have a page."""
        return self._present(_KV, keys, leading=True).bit_length()

    def exists(self, key: str) -> bool:
        return bool(self.batch_exists([key]) == 1)

    def _present(self, name: str, keys: Sequence[str], leading: bool = False) -> int:
        """Bits of a number, the first key's lowest."""
        pages = self._pools.get(name)
        if pages is None or not keys:
            return 0
        return self._space(name, pages).present([page_key(k) for k in keys], leading=leading)

    @_never_raises(lambda keys, *_, **__: [False] * len(keys))
    def batch_get_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        """Fills the host pool's pages of these tokens; which of them, up to the first that is missing."""
        return self._read(_KV, keys, host_indices)

    @_never_raises(lambda keys, *_, **__: [False] * len(keys))
    def batch_set_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        """Stores the host pool's pages of these tokens; which of them."""
        before = (getattr(extra_info, "prefix_keys", None) or [None])[-1]
        return self._save(_KV, keys, host_indices, before)

    def _read(self, name: str, keys: Sequence[str], indices: Any) -> List[bool]:
        pages, n = self._pools[name], len(keys)
        if not n:
            return []
        if pages.direct:
            got = self._load(name, pages, keys, pages.lie(indices, n))
        else:
            starts = indices[::pages.tokens].tolist()
            if indices.numel() != n * pages.tokens:
                raise ValueError("%d tokens, and %d pages of %d" % (indices.numel(), n, pages.tokens))
            tensors = [pages.host.get_dummy_flat_data_page() for _ in keys]
            got = self._load(name, pages, keys, flat(tensors))
            for start, tensor in zip(starts[:got], tensors):
                pages.host.set_from_flat_data_page(start, tensor)
        return [i < got for i in range(n)]

    def _save(self, name: str, keys: Sequence[str], indices: Any,
              before: Optional[str] = None) -> List[bool]:
        pages, n = self._pools[name], len(keys)
        if not n:
            return []
        if pages.direct:
            return self._store(name, pages, keys, pages.lie(indices, n), before)
        if indices.numel() != n * pages.tokens:
            raise ValueError("%d tokens, and %d pages of %d" % (indices.numel(), n, pages.tokens))
        tensors = [pages.host.get_data_page(start, flat=True).contiguous()
                   for start in indices[::pages.tokens].tolist()]
        return self._store(name, pages, keys, flat(tensors), before)

    # ---- the same with tensors, one a page

    @_never_raises(lambda keys, *_, **__: [None] * len(keys))
    def batch_get(self, keys: List[str], target_locations: Optional[List[Any]] = None,
                  target_sizes: Any = None) -> List[Any]:
        """The tensors, filled, up to the first whose page is missing, and None for the others."""
        if self._flat is None or not target_locations or len(target_locations) != len(keys):
            return [None] * len(keys)
        got = self._load(_KV, self._flat, keys, flat(target_locations))
        return [t if i < got else None for i, t in enumerate(target_locations)]

    @_never_raises(lambda *_, **__: False)
    def batch_set(self, keys: List[str], values: Optional[List[Any]] = None,
                  target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Were all stored, or there?"""
        if self._flat is None or values is None or len(values) != len(keys):
            return False
        return all(self._store(_KV, self._flat, keys, flat([v.contiguous() for v in values])))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location] if target_location is not None else None)[0]

    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        return bool(self.batch_set([key], [value] if value is not None else None))

    # ---- several pools

    @_never_raises(lambda *_, **__: PoolTransferResult(0, {}))
    def batch_exists_v2(self, keys: List[str], pool_transfers: Optional[List[Any]] = None,
                        extra_info: Any = None) -> Any:
        """How many pages, from the first on, all pools can restore, and where each pool ends."""
        kv = self.batch_exists(keys)
        ends = {PoolName.KV: kv} if kv else {}
        restorable = set(range(1, kv + 1))
        for transfer in pool_transfers or ():
            have = self._present(str(transfer.name), keys[:kv])
            can = _restorable(have, kv, transfer)
            if can:
                ends[transfer.name] = max(can)
            restorable &= can
        return PoolTransferResult(max(restorable, default=0), ends, sorted(restorable))

    def batch_get_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[Any, List[bool]]:
        """For each pool, which pages were filled."""
        return {t.name: self._one(self._read, t) for t in transfers}

    def batch_set_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[Any, List[bool]]:
        """For each pool, which pages were stored."""
        return {t.name: self._one(self._save, t) for t in transfers}

    @staticmethod
    def _one(what: Callable[..., List[bool]], transfer: Any) -> List[bool]:
        keys = transfer.keys or []
        try:
            return what(str(transfer.name), keys, transfer.host_indices)
        except Exception as e:  # pylint: disable=broad-except
            _log.warning("%s: %s", transfer.name, e)
            return [False] * len(keys)

    # ---- the rest

    def clear(self) -> bool:
        """What others share stays; `kvctl evict` is for that."""
        _log.warning("pages of the machine's pool are not cleared by one engine")
        return False

    def close(self) -> None:
        """What was stored is visible when this returns, if there is a daemon."""
        try:
            self._client.flush(self._timeout)
        except Exception as e:  # pylint: disable=broad-except
            _log.info("not flushed: %s", e)
        self._client.close()
