# SPDX-License-Identifier: Apache-2.0
"""Blocks that are named by keys of the caller's, hashes of what they hold, instead of token ids."""
import array
import errno
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

from ._memory import Held, Payload
from ._native import ffi, lib
from .errors import check, error
from .handles import Grant, milliseconds, no_room, text

if TYPE_CHECKING:
    from .client import Client

# Keys one after another, key_bytes each, or a sequence of them.
Keys = Union[bytes, bytearray, memoryview, Sequence[bytes]]

_PREFIX = ffi.typeof("struct kvp_prefix **")
_BLOCK = ffi.typeof("struct kvp_payload_info *")


class KeySpace:
    """Blocks of block_bytes, named by keys of key_bytes, in a layout that only the engine knows. A key
    is compared whole, and is all that is compared; each block stands, and is evicted, by itself.
    Client.key_space() makes it."""

    def __init__(self, client: "Client", model: str, layout: str, block_bytes: int, key_bytes: int,
                 timeout: Optional[float]) -> None:
        self.client = client
        self.block_bytes, self.key_bytes = block_bytes, key_bytes
        self.layers: List[Any] = []  # none that the library knows
        desc = ffi.new("struct kvp_space_desc *")
        names = ffi.new("char[]", text(model)), ffi.new("char[]", text(layout))
        desc.size = ffi.sizeof("struct kvp_space_desc")
        desc.model, desc.layout_name = names
        desc.layout = lib.KVP_LAYOUT_OPAQUE
        desc.block_bytes, desc.key_bytes = block_bytes, key_bytes
        if not key_bytes:
            raise error(-errno.EINVAL, "Client.key_space")
        out = ffi.new("struct kvp_space **")
        check(client.during(lib.kvp_space_open, client.client, desc, milliseconds(timeout), out), "Client.key_space")
        self._space = out[0]

    @property
    def space(self) -> Any:
        """The library's handle. ValueError: the client was closed."""
        if self.client.closed:
            raise ValueError("the client was closed")
        return self._space

    def _keys(self, keys: Keys) -> Any:
        """As the library takes them; ffi.from_buffer() keeps the caller's there. ValueError: one is too
        long or too short."""
        if isinstance(keys, (list, tuple)):
            if any(len(key) != self.key_bytes for key in keys):
                raise ValueError("a key has %d bytes" % self.key_bytes)
            keys = b"".join(keys)
        buffer = ffi.from_buffer(keys)
        if len(buffer) % self.key_bytes:
            raise ValueError("keys have %d bytes each" % self.key_bytes)
        return buffer

    def match(self, keys: Keys, *, leading: bool = False, touch: bool = True) -> "KeyMatch":
        """Looks the keys up and leases the blocks that are there. leading: stops at the first key that
        is missing. touch: counts as a use; the first keys are then evicted last."""
        buffer = self._keys(keys)
        n = len(buffer) // self.key_bytes
        bits, out = ffi.new("uint64_t[]", (n + 63) // 64 or 1), ffi.new(_PREFIX)
        check(self.client.during(lib.kvp_match_keys, self.space, buffer, n, self._flags(leading, touch),
                                 bits, out), "match")
        return KeyMatch(self, out[0], n, int.from_bytes(bytes(ffi.buffer(bits)), "little"))

    def present(self, keys: Keys, *, leading: bool = False, touch: bool = False) -> int:
        """Which of the keys have a block at the moment, as bits of a number, the first key's lowest;
        nothing is kept in place."""
        buffer = self._keys(keys)
        n = len(buffer) // self.key_bytes
        bits = ffi.new("uint64_t[]", (n + 63) // 64 or 1)
        check(self.client.during(lib.kvp_match_keys, self.space, buffer, n, self._flags(leading, touch),
                                 bits, ffi.NULL), "present")
        return int.from_bytes(bytes(ffi.buffer(bits)), "little")

    @staticmethod
    def _flags(leading: bool, touch: bool) -> int:
        return ((lib.KVP_MATCH_LEADING if leading else 0) |
                (0 if touch else lib.KVP_MATCH_NO_TOUCH))

    def put(self, keys: Keys, blocks: Sequence[Any], timeout: Optional[float] = None) -> int:
        """Copies blocks[i], a buffer of block_bytes, into the block of key i, for each that is not there.
        Returns how many leading keys were handed over or were there; the buffers may be used again.
        NoRoom: none; `retry` says when."""
        buffer = self._keys(keys)
        if len(buffer) // self.key_bytes != len(blocks):
            raise ValueError("as many blocks as keys")
        owned = [ffi.from_buffer(block) for block in blocks]
        if any(len(o) != self.block_bytes for o in owned):
            raise ValueError("a block has %d bytes" % self.block_bytes)
        src, retry = ffi.new("void const *[]", owned), ffi.new("uint32_t *")
        return no_room(self.client.during(lib.kvp_put_keys, self.space, buffer, len(owned), src,
                                          milliseconds(timeout), retry), "put", retry)

    def reserve(self, n: int = 1, timeout: Optional[float] = None) -> List[Grant]:
        """Slots for n blocks; fewer if no more could be had in time. NoRoom: none."""
        out, retry = ffi.new("struct kvp_grant *[]", n), ffi.new("uint32_t *")
        got = no_room(self.client.during(lib.kvp_reserve_run, self.space, n, milliseconds(timeout), retry, out),
                      "reserve", retry)
        return [Grant(self, out[i]) for i in range(got)]

    def commit(self, grants: Sequence[Grant], keys: Keys, *, release: bool = True,
               parents: Optional[Sequence[Optional[bytes]]] = None) -> int:
        """Publishes written grants as the blocks of the keys. Returns how many were handed over, in
        order. release: those are given back too; BufferError, and nothing is committed, while arrays
        or buffers look at one. parents: for each block a key, or None: while the block is cached its
        parent is, so that the last of what is used together is evicted first."""
        if release and any(g.exports for g in grants):
            raise BufferError("buffers or arrays still look at a grant: drop them first")
        buffer = self._keys(keys)
        if len(buffer) // self.key_bytes != len(grants):
            raise ValueError("as many grants as keys")
        handles = ffi.new("struct kvp_grant *[]", [g.grant for g in grants])
        if parents is not None and (len(parents) != len(grants) or any(
                p is not None and len(p) != self.key_bytes for p in parents)):
            raise ValueError("as many parents as grants, of %d bytes or None" % self.key_bytes)
        above = [ffi.NULL if p is None else ffi.from_buffer(p) for p in parents or ()]
        n = check(self.client.during(
            lib.kvp_commit_keys_under, handles, len(grants), buffer,
            ffi.new("void const *[]", above) if above else ffi.NULL,
            lib.KVP_COMMIT_RELEASE if release else 0), "commit")
        for g in grants[:n] if release else ():
            g._close()  # pylint: disable=protected-access
        return n

    def delete(self, key: bytes, timeout: Optional[float] = None) -> int:
        """Forgets the block of a key, when nothing protects it any more; 1 if there was one."""
        words = ffi.new("uint32_t[]", self.key_bytes // 4)
        ffi.memmove(words, self._keys([key]), self.key_bytes)
        return check(self.client.during(lib.kvp_delete, self.space, words, len(words), milliseconds(timeout)), "delete")


class KeyMatch(Held):
    """The blocks of some keys that were there, leased: they stay where they are until release(), which
    leaving a `with` does. n_keys: as many as were asked for. found: bits, the first key's lowest. Used
    by one thread at a time."""

    def __init__(self, space: KeySpace, prefix: Any, n_keys: int, found: int) -> None:
        super().__init__(space.client)
        self.space = space
        self.n_keys, self.found = n_keys, found
        self._prefix = prefix

    def block(self, i: int) -> Payload:
        """The block of key i as bytes, read-only. KeyError: it is missing; IndexError: no such key."""
        if not 0 <= i < self.n_keys:
            raise IndexError("no such key")
        if not self.found >> i & 1:
            raise KeyError(i)
        if self.closed:
            raise ValueError("the match was released")
        info = ffi.new(_BLOCK)
        info.size = ffi.sizeof("struct kvp_payload_info")
        check(self.during(lib.kvp_payload, self._prefix, i, info), "kvp_payload")
        return Payload(self, int(ffi.cast("uintptr_t", info.addr)), "uint8",
                       (self.space.block_bytes,), (1,), True)

    def addresses(self) -> "array.array[int]":
        """Addresses of the blocks before the first key that is missing, as an array of "Q". Each is
        `space.block_bytes` long and valid until release()."""
        if self.closed:
            raise ValueError("the match was released")
        leading = (~self.found & (self.found + 1)).bit_length() - 1  # the lowest bit that is not set
        out = array.array("Q", bytes(8 * min(leading, self.n_keys)))
        got = check(self.during(lib.kvp_payloads, self._prefix, 0, len(out),
                                ffi.cast("void const **", out.buffer_info()[0])),
                    "kvp_payloads") if out else 0
        return out[:got]

    def release(self) -> None:
        """Ends the leases. BufferError while arrays or buffers look at a block; harmless if done
        before."""
        self._release(lib.kvp_release, self._prefix)

    def __enter__(self) -> "KeyMatch":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __del__(self) -> None:
        # No export is left: each has a reference. Of a closed client the handle is gone already.
        if getattr(self, "_prefix", None) is not None:
            self._release(lib.kvp_release, self._prefix)
