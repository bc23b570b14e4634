# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers: caches that begin with what any process on this machine has computed.

    shared = SharedPrefixes(model)
    with shared.cache(ids) as cache:                       # ids: [1, n] or [n]
        out = model.generate(ids, past_key_values=cache)   # computes what is not cached
        cache.store(out)                                   # whole blocks of it, for everybody

Without a daemon, or when it stops, hangs or comes back, the same code computes more and is right.
"""
import hashlib
import json
import logging
import mmap
import os
import weakref
from typing import Any, List, Optional, Tuple, Union

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .. import Client, Invalid, KvpoolError, Match, Space, View

_log = logging.getLogger("kvpool.transformers")

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}

# What a configuration says of where a model came from, and of how it is run.
_NOT_THE_MODEL = ("_name_or_path", "transformers_version", "use_cache", "output_attentions",
                  "output_hidden_states", "return_dict", "dtype", "torch_dtype")

_GROW = 256  # tokens that a layer has room for beyond those that it is given

_PAGE = 2 << 20  # bytes of a large page
_KEEP = 256 << 20  # bytes of memory for caches that are kept for the next one, at most


def attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: Optional[torch.Tensor], dropout: float = 0.0,
              scaling: Optional[float] = None, **more: Any) -> Tuple[torch.Tensor, None]:
    """sdpa that reads keys and values where they lie, for model.set_attn_implementation("kvpool"); the bits are the
    same. Where several heads of queries have one of keys, and tokens follow what is cached, and so have a mask,
    transformers' own copies all keys and values of the layer first, once for each head of queries."""
    grouped = getattr(module, "num_key_value_groups", 1) > 1
    if not grouped or attention_mask is None or query.device.type != "cpu" or \
            more.get("position_bias") is not None or more.get("cache") is not None:
        out: Tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **more)
        return out
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, enable_gqa=True)
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register("kvpool", attention)
AttentionMaskInterface.register("kvpool", sdpa_mask)


def model_digest(model: Any) -> bytes:
    """32 bytes that differ if anything does that keys and values follow from: the configuration, or a
    byte of any parameter or buffer, adapters that were merged or attached included. Reads all of them:
    of a large model, compute it once and keep it."""
    config = {k: v for k, v in model.config.to_dict().items() if k not in _NOT_THE_MODEL}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(("%s %s %s" % (name, tensor.dtype, tuple(tensor.shape))).encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(raw.numpy()))
    return digest.digest()


class _Memory:
    """Memory for what is restored, in large pages where the kernel makes some. That of a cache that nothing looks at
    any more serves the next one: memory that is new costs a page fault for each page, which takes longer than
    the copy into it, and an allocator gives back to the system what one cache has freed before the next one comes."""

    def __init__(self) -> None:
        self._free: List[mmap.mmap] = []

    def take(self, n: int) -> torch.Tensor:
        """n bytes, of any contents."""
        pages: Optional[mmap.mmap] = None
        large: List[mmap.mmap] = []
        wanted = (n + 2 * _PAGE - 1) // _PAGE * _PAGE
        while self._free and pages is None:  # calls that cannot be interrupted: a finalizer may run in any thread
            pages = self._free.pop()
            if len(pages) > 2 * wanted:  # else a short cache, which may live for long, would hold all of it
                large.append(pages)
            if not wanted <= len(pages) <= 2 * wanted:
                pages = None
        self._free.extend(large)
        if pages is None:
            pages = mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a forked child has its own
            if hasattr(mmap, "MADV_HUGEPAGE"):
                try:
                    pages.madvise(mmap.MADV_HUGEPAGE)
                except OSError:
                    pass  # a kernel without
        view = memoryview(pages)  # tensors refer to it
        weakref.finalize(view, self._back, pages).atexit = False
        whole = torch.frombuffer(view, dtype=torch.uint8)
        first = -whole.data_ptr() % _PAGE
        return whole[first:first + n]

    def _back(self, pages: mmap.mmap) -> None:
        if sum(map(len, [*self._free, pages])) <= _KEEP:
            self._free.append(pages)


class _Layer(DynamicLayer):
    """A layer with room to grow, so that a token more is not a copy of all. keys and values are what
    the base class says, [batch, heads, tokens, dim], and lie at the beginning of `_room`."""

    def __init__(self) -> None:
        super().__init__()
        self._room: List[torch.Tensor] = []

    def begin(self, like: torch.Tensor, rooms: List[torch.Tensor], tokens: int) -> None:
        """Keys and values, of which there are none yet, are the first `tokens` of two rooms."""
        self.lazy_initialization(like, like)
        self._room = rooms
        self.keys, self.values = (room[:, :, :tokens] for room in rooms)

    def room(self, like: Tuple[torch.Tensor, torch.Tensor], tokens: int) -> None:
        """Makes keys and values `tokens` longer; what they held before stays."""
        if not self.is_initialized:
            self.lazy_initialization(*like)
        have = self.get_seq_length()
        if have == 0:
            self._room = []
        old, kept = (self.keys, self.values), self._room
        self._room = []
        for i, (half, shape) in enumerate(zip(old, like)):
            room = kept[i] if kept else None
            if room is None or not self._fits(room, half, have + tokens):
                room = shape.new_empty((*shape.shape[:2], have + tokens + _GROW, shape.shape[3]))
                if have:
                    room[:, :, :have].copy_(half)
            self._room.append(room)
        self.keys, self.values = (room[:, :, :have + tokens] for room in self._room)

    @staticmethod
    def _fits(room: torch.Tensor, half: torch.Tensor, tokens: int) -> bool:
        """May it be written further? Not if somebody assigned other keys, as beam search does, or if it
        was made in inference mode, which has ended."""
        return half.data_ptr() == room.data_ptr() and half.shape[:2] == room.shape[:2] and \
            tokens <= room.shape[2] and \
            (torch.is_inference_mode_enabled() or not room.is_inference())

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any,
               **__: Any) -> Tuple[torch.Tensor, torch.Tensor]:
        """Appends [batch, heads, n, dim]. No gradient flows through what is cached."""
        have = self.get_seq_length()
        self.room((key_states, value_states), key_states.shape[2])
        self.keys[:, :, have:].copy_(key_states.detach())
        self.values[:, :, have:].copy_(value_states.detach())
        return self.keys, self.values


class SharedPrefixes:
    """A model's prefixes that processes of this user's tenant share through kvpoold. Any thread may use
    it; a forked child attaches by itself.

    model: a causal language model on the CPU, of float32, float16 or bfloat16, whose layers all keep
    every token (ValueError else). name, weights_digest, adapter: what makes two models one, together
    with shapes and types; weights_digest: 32 bytes, or None: model_digest(). socket, block_tokens: as
    of Client and Client.space(); all who share agree on block_tokens. timeout: seconds that cache()
    and store() wait at most where they do, for a daemon that hangs or has no room.
    """

    def __init__(self, model: Any, name: Optional[str] = None, *,
                 weights_digest: Optional[bytes] = None, adapter: str = "",
                 block_tokens: int = 64, socket: Optional[str] = None,
                 timeout: float = 1.0) -> None:
        config = model.config.get_text_config(decoder=True)
        layers = DynamicCache(config=config).layers
        if not layers or any(type(layer) is not DynamicLayer for layer in layers):
            raise ValueError("layers that forget, or keep a state, have no prefix to share")
        if model.dtype not in _DTYPES or model.device.type != "cpu":
            raise ValueError("float32, float16 or bfloat16 on the CPU, not %s on %s" %
                             (model.dtype, model.device))
        self.dtype = model.dtype
        self.n_layers = len(layers)
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.head_dim: int = getattr(config, "head_dim", None) or \
            config.hidden_size // config.num_attention_heads
        self.timeout = timeout
        self._socket = socket
        rope = getattr(config, "rope_parameters", None) or {}
        theta = rope.get("rope_theta")
        self._identity = {
            "model": name or str(getattr(config, "_name_or_path", "") or config.model_type),
            "layers": self.n_layers, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
            "dtype": _DTYPES[self.dtype], "block_tokens": block_tokens, "adapter": adapter,
            "weights_digest": model_digest(model) if weights_digest is None else weights_digest,
            "rope": "half-split" if theta else None, "rope_theta": theta or 10000.0,
        }
        self.memory = _Memory()
        self._client: Optional[Client] = None
        self._space: Optional[Space] = None
        self._pid = 0
        self.space()

    def space(self) -> Space:
        """The model in this process's client, as all processes have it that share with this one."""
        if self._space is None or self._pid != os.getpid():
            self._client = Client(self._socket, "transformers", self.timeout, lazy=True)
            self._space = self._client.space(**self._identity, timeout=self.timeout)
            self._pid = os.getpid()
        return self._space

    def cache(self, ids: Any) -> "PrefixCache":
        """A cache for model() and generate() that holds the longest shared beginning of ids, whole
        blocks of it and at least one token less than all, since the last one's logits are wanted.
        ids: [n] or [1, n], of torch, numpy or a sequence. Invalid: an id is negative."""
        return PrefixCache(self, _row(ids))

    def flush(self) -> None:
        """Returns when what was stored is visible to others, or no daemon is there."""
        _try(lambda: self.space().client.flush(self.timeout))

    def close(self) -> None:
        """Detaches from the daemon; caches that were made go on by themselves. Afterwards cache() would
        attach again."""
        if self._client is not None and self._pid == os.getpid():
            self._client.close()
        self._client = self._space = None
        self.memory = _Memory()


def _try(call: Any) -> Any:
    """What the call returns, or None where kvpool cannot serve at the moment, which no engine needs to
    know. Invalid is a mistake of the caller's, and raised."""
    try:
        return call()
    except Invalid:
        raise
    except KvpoolError as why:
        _log.info("goes on without kvpool: %s", why)
        return None


def _row(ids: Any) -> Union[torch.Tensor, Any]:
    if not isinstance(ids, torch.Tensor):
        ids = torch.as_tensor(ids)
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise ValueError("one sequence, [n] or [1, n], not %s" % (tuple(ids.shape),))
    return ids.to("cpu", torch.int64).contiguous()


class PrefixCache(DynamicCache):
    """A DynamicCache of one sequence whose beginning came from the pool: made by SharedPrefixes.cache().

    hit: tokens that need not be computed; feed the model ids[hit:], which generate() does by itself.
    Leaving a `with`, or close(), ends the lease of what was found; keys and values stay usable.
    """

    def __init__(self, shared: SharedPrefixes, ids: torch.Tensor) -> None:
        super().__init__()
        self._shared = shared
        self.layers = [_Layer() for _ in range(shared.n_layers)]
        self.layer_class_to_replicate = None
        self._match: Optional[Match] = None
        self._stored = 0  # tokens that need not be put
        self.hit = _try(lambda: self._restore(ids)) or 0
        if not self.hit:
            self.close()
            self.layers = [_Layer() for _ in range(shared.n_layers)]

    def _restore(self, ids: torch.Tensor) -> int:
        shared = self._shared
        space = shared.space()
        if len(ids) <= space.block_tokens:
            return 0
        match = self._match = space.match(ids[:-1], tail=False)
        if not match.n_tokens:
            return 0
        shape = (2 * shared.n_layers, 1, shared.kv_heads, match.n_tokens + _GROW, shared.head_dim)
        n_bytes = torch.Size(shape).numel() * shared.dtype.itemsize
        rooms = list(shared.memory.take(n_bytes).view(shared.dtype).view(shape))
        for i, layer in enumerate(self.layers):
            layer.begin(rooms[0][:, :, :0], rooms[2 * i:2 * i + 2], match.n_tokens)
        # Fewer than matched: a lease was lost with the daemon, and the rest is left out of it.
        if match.get(self._view(space, 0)) != match.n_tokens:
            return 0
        self._stored = match.n_tokens
        return match.n_tokens

    def _view(self, space: Space, first: int) -> View:
        return View(space, [(layer.keys[0, :, first:], layer.values[0, :, first:])
                            for layer in self.layers], "htd")

    def store(self, ids: Any) -> int:
        """Gives whole blocks of what was computed to everybody. ids: of all tokens so far, the prompt
        first, [n] or [1, n]; those that the cache has no keys of yet, as the last of generate()'s, are
        left out. May be called again as the sequence grows. Returns the tokens that are cached or on
        their way, counted from the beginning; 0: none, kvpool cannot take them now. ValueError: the
        cache holds more than one sequence, or other shapes than the model's."""
        row = _row(ids)
        n = min(len(row), self.get_seq_length())
        if not n:
            return 0
        done = _try(lambda: self._put(row[:n]))
        return int(done or 0)

    def _put(self, ids: torch.Tensor) -> int:
        space = self._shared.space()
        shape = (1, self._shared.kv_heads, self._shared.head_dim)
        for layer in self.layers:
            for half in (layer.keys, layer.values):
                if (*half.shape[:2], half.shape[3]) != shape or half.dtype != self._shared.dtype:
                    raise ValueError("keys of %s %s are not this model's, of one sequence" %
                                     (tuple(half.shape), half.dtype))
        whole = len(ids) // space.block_tokens * space.block_tokens
        first = min(self._stored, whole)
        if whole == first and first:
            return first
        try:
            done = first + space.put(ids[:whole], self._view(space, first), first,
                                     timeout=self._shared.timeout)
        except Invalid:
            raise
        except KvpoolError:
            if not first:
                raise
            # What these blocks follow was evicted, or went with the daemon: all of it then.
            done = space.put(ids[:whole], self._view(space, 0), timeout=self._shared.timeout)
        self._stored = done // space.block_tokens * space.block_tokens
        return done

    def close(self) -> None:
        """Ends the lease; harmless if done before."""
        if self._match is not None:
            self._match.release()
            self._match = None

    def __enter__(self) -> "PrefixCache":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
