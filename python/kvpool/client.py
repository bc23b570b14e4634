# SPDX-License-Identifier: Apache-2.0
"""A client, this process's attachment to kvpoold, and a space, its model."""
import errno
import hashlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._memory import Held, find
from ._native import ffi, lib
from .devices import Device, device, warm_opts
from .errors import NoDaemon, check, error
from .events import Events
from .handles import Grant, Match, Ref, milliseconds, no_room, text
from .keys import KeySpace
from .view import Ids, View

_DTYPES = {"float32": (1, 4, "float32"), "float16": (2, 2, "float16"),
           "bfloat16": (3, 2, "bfloat16"), "float8": (4, 1, "uint8")}
_LAYOUTS = {"NCLD": 0, "LCND": 1}
_ROPE = {None: 0, "half-split": 1, "interleaved": 2}
_SCALING = {None: 0, "linear": 1, "ntk": 2, "yarn": 3, "llama3": 4}


_PREFIX = ffi.typeof("struct kvp_prefix **")


def _match_opts(flags: int) -> Any:
    opts = ffi.new("struct kvp_match_opts *")
    opts.size = ffi.sizeof("struct kvp_match_opts")
    opts.flags = flags
    return opts


class Layer(NamedTuple):
    """A layer of a model, as this process has it: a shard has some of the heads, or of the layers."""
    kv_heads: int
    k_dim: int
    v_dim: int
    number: Optional[int] = None  # of the model; None: the place in the list
    first_head: int = 0


class Outcome(NamedTuple):
    """What has become of a put: tokens that are cached, and the errno of the first that is not (0)."""
    tokens: int
    why: int


class Client(Held):
    """This process's attachment to kvpoold. Any thread may use it; close() or leaving a `with` ends it
    and all that was made with it. A forked child opens a client of its own (Forked).

    socket: None: $KVPOOL_SOCKET, else the system's. name: shown to operators. timeout: seconds, for
    opening and of all calls that give none; None: 5. lazy: succeed without a daemon, and attach when
    there is one. NoDaemon: nothing listens; KvpoolError with errno EACCES: this user is in no
    tenant, EUSERS: too many clients.
    """

    def __init__(self, socket: Optional[str] = None, name: Optional[str] = None,
                 timeout: Optional[float] = None, lazy: bool = False) -> None:
        super().__init__()
        self._client: Any = None
        self._events: Optional[Events] = None
        self.timeout = 5.0 if timeout is None else timeout
        opts = ffi.new("struct kvp_open_opts *")
        why = ffi.new("char[]", lib.KVP_ERROR_TEXT)
        strings = [ffi.new("char[]", text(s)) if s is not None else ffi.NULL
                   for s in (socket, name)]
        opts.size = ffi.sizeof("struct kvp_open_opts")
        opts.socket, opts.name = strings
        opts.default_timeout_ms = 0 if timeout is None else max(milliseconds(timeout), 1)
        opts.flags = lib.KVP_OPEN_LAZY if lazy else 0
        opts.error, opts.error_bytes = why, len(why)
        out = ffi.new("struct kvp_client **")
        r = lib.kvp_open(opts, out)
        if r < 0:
            reason = ffi.string(why).decode(errors="replace")
            if r == -errno.ENOENT:
                raise NoDaemon(errno.ENOENT, "Client: " + (reason or "nothing listens there"))
            raise error(r, "Client", reason)
        self._client = out[0]

    @property
    def client(self) -> Any:
        """The library's handle. ValueError: closed."""
        if self.closed:
            raise ValueError("the client was closed")
        return self._client

    def space(self, model: str, layers: Union[int, Sequence[Layer]], kv_heads: int = 0,
              head_dim: int = 0, *, dtype: str = "float16", layout: str = "LCND",
              block_tokens: int = 64, weights_digest: Union[bytes, str] = b"", adapter: str = "",
              tokenizer: str = "", rope: Optional[str] = "half-split", rope_dim: Optional[int] = None,
              rope_theta: float = 10000.0, rope_scaling: Optional[str] = None,
              rope_params: Sequence[float] = (), min_cache_tokens: int = 0,
              timeout: Optional[float] = None) -> "Space":
        """The model whose blocks are exchanged: all that is given here must be equal for two blocks to
        be one. layers: how many, all of kv_heads and head_dim, or a Layer for each. weights_digest: 32
        bytes, or text that names the weights, of which a digest is taken. Invalid: out of range."""
        if isinstance(layers, int):
            layers = [Layer(kv_heads, head_dim, head_dim)] * layers
        return Space(self, layers, dtype, layout, block_tokens, {
            "model": model, "adapter": adapter, "tokenizer": tokenizer}, weights_digest, {
                "rope_pairing": _ROPE[rope],
                "rope_dim": layers[0].k_dim if rope_dim is None and rope and layers else rope_dim or 0,
                "rope_theta": rope_theta if rope else 0.0,
                "rope_scaling": _SCALING[rope_scaling],
                "min_cache_tokens": min_cache_tokens}, rope_params, timeout)

    def key_space(self, model: str, layout: str, block_bytes: int, key_bytes: int,
                  timeout: Optional[float] = None) -> KeySpace:
        """Blocks of block_bytes that are named by keys of key_bytes (16 to 64, a multiple of 4) instead of
        token ids. model and layout say what else must be equal for two blocks to be one: weights,
        dtype, how the engine lays a block out. Invalid: out of range."""
        return KeySpace(self, model, layout, block_bytes, key_bytes, timeout)

    def match_group(self, spaces: Sequence["Space"], tokens: Any, *, tail: bool = True,
                    exact: bool = False, touch: bool = True) -> List[Match]:
        """A match in each of the spaces, one for each rank of a tensor- or pipeline-parallel group, of what
        all of them have: equal n_blocks, n_tokens and tail_tokens. tokens, tail, exact, touch: as
        Space.match(). Each match is released, or exported to its rank, by itself."""
        opts = _match_opts((0 if tail else lib.KVP_MATCH_NO_TAIL) |
                           (lib.KVP_MATCH_EXACT if exact else 0) |
                           (0 if touch else lib.KVP_MATCH_NO_TOUCH))
        if self.closed or any(s.client is not self for s in spaces):
            raise error(-errno.EINVAL, "match_group")
        handles = ffi.new("struct kvp_space *[]", [s.space for s in spaces])
        ids, out = Ids(tokens), ffi.new("struct kvp_prefix *[]", max(len(spaces), 1))
        check(self.during(lib.kvp_match_group, handles, len(spaces), ids.struct, opts, out), "match_group")
        return [Match(s, out[i]) for i, s in enumerate(spaces)]

    def flush(self, timeout: Optional[float] = None) -> None:
        """Returns when all that this client stored before is visible or refused."""
        check(self.during(lib.kvp_flush, self.client, milliseconds(timeout)), "kvp_flush")

    async def flush_async(self, timeout: Optional[float] = None) -> None:
        """flush() in an event loop: of what was stored before the call."""
        mark = ffi.new("uint64_t *")
        check(self.during(lib.kvp_flush_mark, self.client, mark), "kvp_flush_mark")
        await self.events(lib.KVP_EVENT_COMMITS).until(
            lambda: check(self.during(lib.kvp_flush_done, self.client, mark[0]), "kvp_flush_done") or None,
            self.timeout if timeout is None else timeout, "flush_async")

    def event_fd(self, commits: bool = True, claims: bool = True) -> int:
        """For event loops other than asyncio's: a descriptor that becomes readable when the outcome of a
        commit is known, when Match.wait(0) may say something else than Timeout, and when the daemon
        went or came. Read its 8 bytes, then ask what is waited for with a timeout of 0. The client's: it
        is closed with it, and is the same one at every call. Awaiting reads it too."""
        what = ((lib.KVP_EVENT_COMMITS if commits else 0) | (lib.KVP_EVENT_CLAIMS if claims else 0))
        return check(self.during(lib.kvp_event_fd, self.client, what), "event_fd")

    def events(self, what: int) -> Events:
        """What awaits in this client go through; what: KVP_EVENT_*, which it is to tell of."""
        events: Events = self.during(self._events_of, what)  # the descriptor is copied before it goes
        return events

    def _events_of(self, what: int) -> Events:
        fd = check(lib.kvp_event_fd(self._client, what), "event_fd")
        if self._events is None:
            self._events = Events(fd)
        return self._events

    def device(self, number: int = 0) -> Optional[Device]:
        """A device of the daemon; None: it has none of this number."""
        return device(self, number)

    def stats(self) -> Dict[str, int]:
        """Counters of this client and its tenant, by the names of struct kvp_counters."""
        counters = ffi.new("struct kvp_counters *")
        counters.size = ffi.sizeof("struct kvp_counters")
        check(self.during(lib.kvp_stats, self.client, counters), "kvp_stats")
        return {name: int(getattr(counters, name))
                for name, _ in ffi.typeof("struct kvp_counters").fields if name != "size"}

    def close(self) -> None:
        """Detaches; matches, grants and spaces of this client are closed with it. Calls that other threads
        have under way go on, and the last of them detaches. BufferError while arrays or buffers look at
        its memory; harmless if done before."""
        if self._finish(lib.kvp_close, self._client) and self._events is not None:
            self._events.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # Of a cycle that goes as a whole this may come first: what else is in it finds the client closed.
        if getattr(self, "_client", None) is not None:
            self._finish(lib.kvp_close, self._client)


class Space:
    """A model in a client. block_tokens, block_bytes, token_bytes, chunk_tokens, fingerprint are what
    the library says; layers: (kv_heads, k_dim, v_dim) of each; dtype: of payloads, itemsize: bytes."""

    def __init__(self, client: Client, layers: Sequence[Layer], dtype: str, layout: str,
                 block_tokens: int, names: Dict[str, str], digest: Union[bytes, str],
                 numbers: Dict[str, Any], rope_params: Sequence[float],
                 timeout: Optional[float]) -> None:
        self.client = client
        number, self.itemsize, self.dtype = _DTYPES[dtype]
        self.layers: List[Tuple[int, int, int]] = [(l.kv_heads, l.k_dim, l.v_dim) for l in layers]
        if isinstance(digest, str):
            digest = hashlib.sha256(digest.encode()).digest() if digest else b""
        if len(digest) not in (0, 32):
            raise ValueError("weights_digest has 32 bytes")
        desc = ffi.new("struct kvp_space_desc *")
        desc.size = ffi.sizeof("struct kvp_space_desc")
        strings = {key: ffi.new("char[]", text(value)) for key, value in names.items()}
        for key, value in strings.items():
            setattr(desc, key, value)
        ffi.memmove(desc.weights_digest, digest, len(digest))
        desc.dtype, desc.layout = number, _LAYOUTS[layout]
        desc.block_tokens, desc.n_layers = block_tokens, len(layers)
        shapes = ffi.new("struct kvp_layer[]", [
            {"index": i if l.number is None else l.number, "kv_heads": l.kv_heads,
             "first_head": l.first_head, "k_dim": l.k_dim, "v_dim": l.v_dim}
            for i, l in enumerate(layers)])
        desc.layers = shapes
        for key, value in numbers.items():
            setattr(desc, key, value)
        for i, value in enumerate(rope_params):
            desc.rope_params[i] = value
        out = ffi.new("struct kvp_space **")
        check(client.during(lib.kvp_space_open, client.client, desc, milliseconds(timeout), out), "Client.space")
        self._space = out[0]
        self._handle = int(ffi.cast("uintptr_t", out[0]))
        props = ffi.new("struct kvp_space_props *")
        props.size = ffi.sizeof("struct kvp_space_props")
        check(self.client.during(lib.kvp_space_info, self._space, props), "kvp_space_info")
        self.block_tokens: int = props.block_tokens
        self.chunk_tokens: int = props.chunk_tokens
        self.block_bytes: int = props.block_bytes
        self.token_bytes: int = props.token_bytes
        self.fingerprint = bytes(ffi.buffer(props.fingerprint))
        self.places = self._places(_LAYOUTS[layout])

    def salted(self, salt: Union[bytes, str, None]) -> "Space":
        """The same space under a salt: 32 bytes, or text or other bytes, of which a digest is taken; what
        decides about a request's KV besides its tokens, or who may share it (a LoRA adapter, a user's
        cache salt, digests of images). Sequences have blocks in common only with those under an equal
        salt. None, "" or 32 zeros: no salt. Matches of the new space go on, and are taken over, in spaces
        of an equal salt. Made in a few microseconds, gone when nothing refers to it. Invalid: the space
        has a salt already."""
        raw = salt.encode() if isinstance(salt, str) else bytes(salt or b"")
        if len(raw) != 32 or isinstance(salt, str):
            raw = hashlib.sha256(raw).digest() if raw else bytes(32)
        out = ffi.new("struct kvp_space **")
        check(self.client.during(lib.kvp_space_salted, self.space, ffi.from_buffer("uint8_t[]", raw), out), "salted")
        space = _Salted.__new__(_Salted)
        space.__dict__.update(self.__dict__)
        space._space, space._base = out[0], self  # pylint: disable=protected-access
        space._handle = int(ffi.cast("uintptr_t", out[0]))  # pylint: disable=protected-access
        return space

    def _places(self, layout: int) -> List[Tuple[int, int, int, int]]:
        """Where keys and values of each layer begin in a block, and how far tokens are apart: a dense
        buffer of one block, in the same layout, is laid out alike."""
        base = 1 << 30
        planes = ffi.new("struct kvp_view_plane[]", len(self.layers))
        size = ffi.new("uint64_t *")
        check(self.client.during(lib.kvp_view_dense, self.space, layout, ffi.cast("void *", base), self.block_tokens,
                                 planes, size), "kvp_view_dense")
        return [(int(ffi.cast("uintptr_t", p.k)) - base,
                 int(ffi.cast("uintptr_t", p.v)) - base if p.v != ffi.NULL else 0,
                 p.k_token_stride, p.v_token_stride) for p in planes]

    @property
    def space(self) -> Any:
        """The library's handle. ValueError: the client was closed."""
        if self.client.closed:
            raise ValueError("the client was closed")
        return self._space

    def match(self, tokens: Any, *, after: Optional[Match] = None, tail: bool = True,
              exact: bool = False, claim: bool = False, touch: bool = True,
              timeout: Optional[float] = 0, claim_ttl: float = 0) -> Match:
        """The longest cached prefix of the tokens, leased; without a daemon an empty one.

        tokens: an array of 32-bit or 64-bit integers, taken where it lies. after: an earlier match;
        the tokens are then those that follow its whole blocks. tail: also part of one more block.
        exact: all or nothing. claim: claim what is missing (timeout: for that; claim_ttl: seconds it
        lasts at most, 0: as the daemon says). touch: counts as a use. Invalid: an id is none."""
        flags = 0  # looking at `lib` takes a part of a match's time
        if not tail:
            flags = lib.KVP_MATCH_NO_TAIL
        if not touch:
            flags |= lib.KVP_MATCH_NO_TOUCH
        if exact:
            flags |= lib.KVP_MATCH_EXACT
        if after is None and not claim:
            found = find(Match, self, self.client, self._handle, tokens, flags)
            if found.__class__ is Match:
                return found
            if found is not NotImplemented:
                check(found, "match")
        opts = _match_opts(flags | (lib.KVP_MATCH_CLAIM if claim else 0))
        opts.timeout_ms = milliseconds(timeout)
        opts.claim_ttl_ms = int(claim_ttl * 1000)
        if after is not None:
            opts.after = after.prefix
        ids, out = Ids(tokens), ffi.new(_PREFIX)
        check(self.client.during(lib.kvp_match_ids, self.space, ids.struct, opts, out), "match")
        return Match(self, out[0])

    def prefetch(self, tokens: Any, device: int = 0, n: Optional[int] = None) -> int:  # pylint: disable=redefined-outer-name
        """Has what is cached of the tokens, n blocks of it or all, copied to a device, for a request that is
        likely to come; the library holds it until that is over. Returns how many blocks were asked for."""
        ids = Ids(tokens)
        return check(self.client.during(lib.kvp_prefetch, self.space, ids.struct, warm_opts(device, 0, n, True)),
                     "prefetch")

    def take_over(self, exported: bytes) -> Match:
        """The match that another process of the tenant has exported and still holds, with a lease of
        this client's. Stale: it is not there any more, or another space's; match for yourself. NoRoom:
        some of it has still to be mapped; again in a moment."""
        handover, out = ffi.new("struct kvp_handover *"), ffi.new(_PREFIX)
        if len(exported) != ffi.sizeof("struct kvp_handover"):
            raise error(-errno.EINVAL, "take_over")
        ffi.memmove(handover, exported, len(exported))
        check(self.client.during(lib.kvp_match_import, self.space, handover, out), "take_over")
        return Match(self, out[0])

    def put(self, tokens: Any, view: View, first: int = 0, *, after: Optional[Match] = None,
            partial: bool = False, timeout: Optional[float] = None) -> int:
        """Stores blocks of the sequence from token `first`, a multiple of block_tokens, on. The view
        holds tokens from `first` on, of all layers and heads; it may be used again when this returns.
        after: the tokens follow an earlier match's whole blocks. partial: also what is left after the
        last whole block. Returns the tokens, from `first`, that were handed over or were there; what
        became of them says outcome(). NoRoom: none of it; `retry` says when. KvpoolError with errno
        ENOENT: the block before `first` is not cached."""
        ids = Ids(tokens)
        end = len(ids) if partial else len(ids) // self.block_tokens * self.block_tokens
        if view.tokens is not None and view.tokens < end - first:
            raise ValueError("the view has place for %d tokens, of %d" % (view.tokens, end - first))
        opts = ffi.new("struct kvp_put_opts *")
        opts.size = ffi.sizeof("struct kvp_put_opts")
        opts.flags = lib.KVP_PUT_PARTIAL if partial else 0
        opts.timeout_ms = milliseconds(timeout)
        if after is not None:
            opts.after = after.prefix
        retry = ffi.new("uint32_t *")
        return no_room(self.client.during(lib.kvp_put_ids, self.space, ids.struct, first, view.struct, opts, retry),
                       "put", retry)

    def outcome(self, tokens: Any, first: int = 0, timeout: Optional[float] = None) -> Outcome:
        """Waits until all that this client stored was answered, and says how many of the tokens from
        `first` on are cached, and why not more."""
        ids, why = self._u32(tokens), ffi.new("int *")
        n = check(self.client.during(lib.kvp_put_outcome, self.space, ids, len(ids), first, milliseconds(timeout), why),
                  "outcome")
        return Outcome(n, -why[0])

    def reserve(self, n: int = 1, timeout: Optional[float] = None) -> List[Grant]:
        """Slots for n blocks; fewer if no more could be had in time. NoRoom: none."""
        out, retry = ffi.new("struct kvp_grant *[]", n), ffi.new("uint32_t *")
        got = no_room(self.client.during(lib.kvp_reserve_run, self.space, n, milliseconds(timeout), retry, out),
                      "reserve", retry)
        return [Grant(self, out[i]) for i in range(got)]

    def commit(self, grants: Sequence[Grant], tokens: Any, parent: Optional[Ref] = None, *,
               claim: Optional[Match] = None, release: bool = True) -> Tuple[int, Ref]:
        """Publishes written grants as consecutive blocks of `tokens`, the last of which may be partial,
        after `parent` (None: the beginning). Returns how many were handed over, in order, and the last
        whole one to go on after. release: those are given back too; BufferError, and nothing is
        committed, while arrays or buffers look at one. claim: the match whose claim moves on."""
        if release and any(g.exports for g in grants):
            raise BufferError("buffers or arrays still look at a grant: drop them first")
        parent = parent or Ref()
        ids, last = self._u32(tokens), ffi.new("struct kvp_ref *", parent.struct)
        handles = ffi.new("struct kvp_grant *[]", [g.grant for g in grants])
        n = check(self.client.during(lib.kvp_commit_run, handles, len(grants), parent.struct, ids, len(ids),
                                     claim.prefix if claim is not None else ffi.NULL,
                                     lib.KVP_COMMIT_RELEASE if release else 0, last), "commit")
        for g in grants[:n] if release else ():
            g._close()  # pylint: disable=protected-access
        return n, Ref(last[0])

    def delete(self, tokens: Any, timeout: Optional[float] = None) -> int:
        """Forgets blocks of the tokens that no other sequence needs; how many it asked for."""
        ids = self._u32(tokens)
        return check(self.client.during(lib.kvp_delete, self.space, ids, len(ids), milliseconds(timeout)), "delete")

    @staticmethod
    def _u32(tokens: Any) -> Any:
        """For calls that take 32 bits: a copy. Invalid: an id is none."""
        ids = Ids(tokens)
        out = ffi.new("uint32_t[]", len(ids))
        check(lib.kvpool_narrow(ids.address, ids.n, ids.kind, out), "token ids")
        return out


class _Salted(Space):
    """A space under a salt, whose handle is its own. Its matches and grants refer to it."""

    _base: Space  # which has to outlive it

    def __del__(self) -> None:
        try:
            self.client.during(lib.kvp_space_close, self._space)
        except ValueError:
            pass  # it went with the client
