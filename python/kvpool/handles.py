# SPDX-License-Identifier: Apache-2.0
"""What a client holds: matches, whose blocks stay in place, and grants, slots to write blocks into."""
import array
import errno
from typing import TYPE_CHECKING, Any, Optional, Tuple, Union

from ._memory import Found, Held, Payload
from ._native import ffi, lib
from .devices import Ticket, warm_opts
from .errors import NoRoom, check, error
from .view import View

if TYPE_CHECKING:
    from .client import Client, Space
    from .keys import KeySpace

DEFAULT_TIMEOUT = 0xffffffff


def milliseconds(timeout: Optional[float]) -> int:
    """Seconds as the library takes them; None: the client's default."""
    if timeout is None:
        return DEFAULT_TIMEOUT
    if timeout < 0:
        raise ValueError("timeout is below 0")
    return min(int(timeout * 1000 + .999), DEFAULT_TIMEOUT - 1)


def text(value: str) -> bytes:
    """As the library takes it. Invalid: it has a zero in it, at which it would end there."""
    if "\0" in value:
        raise error(-errno.EINVAL, "a zero in %r" % value)
    return value.encode()


def no_room(r: int, what: str, retry: Any) -> int:
    """The result, or an error that says when there may be room."""
    if r == -errno.EAGAIN:
        e = error(r, what)
        assert isinstance(e, NoRoom)
        e.retry = retry[0] / 1000
        raise e
    return check(r, what)


_PREFIX = ffi.typeof("struct kvp_prefix *")


class Ref:
    """Names the block that another one follows; a value, from Match.ref() or Space.commit()."""

    __slots__ = ("struct",)

    def __init__(self, struct: Any = None) -> None:
        self.struct = lib.kvp_ref_root() if struct is None else struct


def _shaped(held: Held, space: Any, address: int, layer: int, tokens: int,
            readonly: bool) -> Tuple[Payload, Optional[Payload]]:
    """Keys and values of one layer of a block, [tokens, heads, dim]."""
    heads, k_dim, v_dim = space.layers[layer]
    k_at, v_at, k_stride, v_stride = space.places[layer]
    e = space.itemsize
    keys = Payload(held, address + k_at, space.dtype, (tokens, heads, k_dim),
                   (k_stride, k_dim * e, e), readonly)
    if not v_dim:
        return keys, None
    return keys, Payload(held, address + v_at, space.dtype, (tokens, heads, v_dim),
                         (v_stride, v_dim * e, e), readonly)


class Match(Found):
    """The longest cached prefix of a sequence of tokens, leased: its blocks stay where they are until
    release(), which leaving a `with` does. Used by one thread at a time.

    n_blocks, n_tokens: whole blocks, and a partial one that equals all that was left.
    tail_tokens: leading tokens of one more block, number n_blocks, that agree.
    leased: False if the client holds too many leases; then get() copies, and nothing else reads.
    claimed: compute what is missing, nobody else does. pending: somebody does, wait().
    """

    __slots__ = ("__weakref__",)

    def __init__(self, space: "Space", prefix: Any) -> None:
        super().__init__(space.client, space, int(ffi.cast("uintptr_t", prefix)))

    @property
    def leased(self) -> bool:
        """Do its blocks stay where they are?"""
        return bool(self._flags & lib.KVP_MATCHED_LEASED)

    @property
    def claimed(self) -> bool:
        """Is it ours to compute what is missing?"""
        return bool(self._flags & lib.KVP_MATCHED_CLAIMED)

    @property
    def pending(self) -> bool:
        """Does somebody else compute the next block?"""
        return bool(self._flags & lib.KVP_MATCHED_PENDING)

    @property
    def prefix(self) -> Any:
        """The library's handle. ValueError: released."""
        return ffi.cast(_PREFIX, self._handle)

    def addresses(self, first: int = 0, n: Optional[int] = None) -> "array.array[int]":
        """Addresses of blocks [first, first + n), the tail being block n_blocks, as an array of "Q";
        None: all. Each is `space.block_bytes` long and valid until release()."""
        prefix = self.prefix
        have = max(self.n_blocks + bool(self.tail_tokens) - first, 0)
        out = array.array("Q", bytes(8 * (have if n is None else min(n, have))))
        got = check(self.during(lib.kvp_payloads, prefix, first, len(out),
                                ffi.cast("void const **", out.buffer_info()[0])),
                    "kvp_payloads")
        return out[:got]

    def block(self, i: int) -> Payload:
        """Block i, or the tail, as bytes in the space's layout. IndexError: there is no such block."""
        return Payload(self, self._address(i), "uint8", (self.space.block_bytes,), (1,), True)

    def layer(self, i: int, layer: int) -> Tuple[Payload, Optional[Payload]]:
        """(keys, values) of one layer of block i, each [tokens, heads, dim], read-only; values are None
        where the space has none. Of the tail only the tokens that agree."""
        if not 0 <= layer < len(self.space.layers):
            raise IndexError("no such layer")
        tokens = self.space.block_tokens
        address = self._address(i)
        if i == self.n_blocks:
            tokens = self.tail_tokens
        elif (i + 1) * tokens > self.n_tokens:
            tokens = self.n_tokens - i * tokens
        return _shaped(self, self.space, address, layer, tokens, True)

    def _address(self, i: int) -> int:
        if self._blocks is None:
            self._blocks = self.addresses()
        if not 0 <= i < len(self._blocks):
            raise IndexError("no such block in this memory")
        if self.closed:
            raise ValueError("the match was released")
        return self._blocks[i]

    def get(self, view: View, first: int = 0, n: Optional[int] = None, verify: bool = False) -> int:
        """Copies matched tokens [first, first + n), the tail's included, into the view; None: all.
        Returns how many. verify: compares the checksums that there are; OSError EBADMSG."""
        if not view.writable:
            raise ValueError("an array of the view is read-only")
        n = 0xffffffff if n is None else n
        if view.tokens is not None:
            n = min(n, view.tokens)
        flags = lib.KVP_GET_VERIFY if verify else 0
        return check(self.during(lib.kvp_get, self.prefix, first, n, view.struct, flags), "kvp_get")

    def ref(self, n_blocks: Optional[int] = None) -> Ref:
        """The block at which the first n_blocks end, for Space.commit(); None: all whole ones."""
        if n_blocks is None:
            n_blocks = self.n_tokens // self.space.block_tokens
        out = ffi.new("struct kvp_ref *")
        check(self.during(lib.kvp_match_ref, self.prefix, n_blocks, out), "kvp_match_ref")
        return Ref(out[0])

    def export(self) -> bytes:
        """The match in a few bytes, for Space.take_over() in other processes of the tenant. Hold it until
        they have said that they have it. KvpoolError with errno ENOENT: it is empty."""
        out = ffi.new("struct kvp_handover *")
        check(self.during(lib.kvp_match_export, self.prefix, out), "export")
        return bytes(ffi.buffer(out))

    def warm(self, device: int = 0, first: int = 0, n: Optional[int] = None,
             prefetch: bool = False, early: bool = False) -> Ticket:
        """Has blocks [first, first + n), None: all, copied to a device. Returns at once; hold the match until
        the ticket has ended. prefetch: nobody waits for it. early: at most 64 blocks, whose places are known
        before they are copied, see Ticket.placed(). NotLeased; NoRoom: too many are under way;
        KvpoolError with errno ENOENT: there are no such blocks."""
        out = ffi.new("struct kvp_ticket *")
        check(self.during(lib.kvp_warm, self.prefix, warm_opts(device, first, n, prefetch, early), out), "warm")
        return Ticket(self.space.client, out[0])

    def device_addresses(self, device: int = 0, first: int = 0, n: Optional[int] = None,
                         pending: bool = False) -> "array.array[int]":
        """addresses() on a device: up to the first block that cannot be read there now. pending: also where blocks
        come to lie that a ticket of warm(early=True) is copying."""
        prefix = self.prefix
        have = max(self.n_blocks + bool(self.tail_tokens) - first, 0)
        out = array.array("Q", bytes(8 * (have if n is None else min(n, have))))
        got = check(self.during(lib.kvp_device_payloads, prefix, device, first, len(out),
                                lib.KVP_DEVICE_PENDING if pending else 0,
                                ffi.cast("void const **", out.buffer_info()[0])),
                    "device_addresses")
        return out[:got]

    def device_block(self, i: int, device: int = 0) -> Optional[Payload]:
        """block() on a device; None: it does not lie there, or its memory has still to be mapped."""
        addresses = self.device_addresses(device, i, 1)
        if not addresses:
            return None
        return Payload(self, addresses[0], "uint8", (self.space.block_bytes,), (1,), True)

    def wait(self, timeout: Optional[float] = None) -> None:
        """After `pending`: until the next block is there; then match again. NoRoom: its claimant is
        gone, match again with claim=True."""
        check(self.during(lib.kvp_wait, self.prefix, milliseconds(timeout)), "kvp_wait")

    async def wait_async(self, timeout: Optional[float] = None) -> None:
        """wait() in an event loop."""
        def look() -> Optional[bool]:
            r = self.during(lib.kvp_wait, self.prefix, 0)
            return None if r == -errno.ETIMEDOUT else check(r, "kvp_wait") == 0
        client = self.space.client
        await client.events(lib.KVP_EVENT_CLAIMS).until(
            look, client.timeout if timeout is None else timeout, "wait_async")

    def touch(self) -> None:
        """Counts as one more use."""
        check(self.during(lib.kvp_touch, self.prefix), "kvp_touch")

    def __enter__(self) -> "Match":
        return self


class Grant(Held):
    """A slot to write one block into, until it is committed and given back. Space.reserve() makes them,
    Space.commit() publishes them. Used by one thread at a time."""

    def __init__(self, space: Union["Space", "KeySpace"], grant: Any) -> None:
        super().__init__(space.client)
        self.space: Any = space
        self._grant = grant
        self._address = int(ffi.cast("uintptr_t", space.client.during(lib.kvp_grant_addr, grant)))

    @property
    def grant(self) -> Any:
        """The library's handle. ValueError: given back."""
        if self.closed:
            raise ValueError("the grant was given back")
        return self._grant

    def block(self) -> Payload:
        """The slot as bytes in the space's layout, writable; undefined until written. After the commit
        nobody may write there any more: others read it."""
        if self.closed:
            raise ValueError("the grant was given back")
        return Payload(self, self._address, "uint8", (self.space.block_bytes,), (1,), False)

    def layer(self, layer: int) -> Tuple[Payload, Optional[Payload]]:
        """(keys, values) of one layer, each [tokens, heads, dim], writable."""
        if self.closed:
            raise ValueError("the grant was given back")
        if not 0 <= layer < len(self.space.layers):
            raise IndexError("no such layer")
        return _shaped(self, self.space, self._address, layer, self.space.block_tokens, False)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Until its commit is visible. True: somebody had published the same block, and theirs is used.
        KvpoolError says why it was refused."""
        return check(self.during(lib.kvp_grant_wait, self.grant, milliseconds(timeout)), "kvp_grant_wait") == 1

    async def wait_async(self, timeout: Optional[float] = None) -> bool:
        """wait() in an event loop."""
        def look() -> Optional[bool]:
            r = self.during(lib.kvp_grant_wait, self.grant, 0)
            return None if r == -errno.ETIMEDOUT else check(r, "kvp_grant_wait") == 1
        client: "Client" = self.space.client
        return await client.events(lib.KVP_EVENT_COMMITS).until(
            look, client.timeout if timeout is None else timeout, "wait_async")

    def release(self) -> None:
        """Gives the slot back; what was committed stays cached. BufferError while arrays or buffers look
        at it; harmless if done before."""
        self._release(lib.kvp_grant_release, self._grant)

    def __enter__(self) -> "Grant":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_grant", None) is not None:
            self._release(lib.kvp_grant_release, self._grant)

