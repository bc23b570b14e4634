# SPDX-License-Identifier: Apache-2.0
"""Devices of the daemon: copies of blocks that are read there, and waiting for them."""
import errno
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ._native import ffi, lib
from .errors import check

if TYPE_CHECKING:
    from .client import Client

DEFAULT_TIMEOUT = 0xffffffff


class Device(NamedTuple):
    """A device: does it work, who it is, its bytes, and how many went there and back for this tenant."""
    up: bool
    uuid: bytes
    bytes: int
    to_device_bytes: int
    from_device_bytes: int


class Warmed(NamedTuple):
    """Leading blocks of what was asked for that lie on the device, and the errno of why not all (0)."""
    blocks: int
    why: int


def device(client: "Client", number: int) -> Optional[Device]:
    """None: there is none of this number. NoDaemon: no daemon."""
    props = ffi.new("struct kvp_device_props *")
    props.size = ffi.sizeof("struct kvp_device_props")
    r = client.during(lib.kvp_device_info, client.client, number, props)
    if r == -errno.ENOENT:
        return None
    check(r, "device")
    return Device(props.state == lib.KVP_DEVICE_IS_UP, bytes(ffi.buffer(props.uuid)), props.bytes,
                  props.to_device_bytes, props.from_device_bytes)


def warm_opts(number: int, first: int, n: Optional[int], prefetch: bool, early: bool = False) -> Any:
    """What kvp_warm() and kvp_prefetch() take."""
    if n is not None and n < 1 or first < 0 or number < 0:
        raise ValueError("no such blocks, or no such device")
    opts = ffi.new("struct kvp_warm_opts *")
    opts.size = ffi.sizeof("struct kvp_warm_opts")
    opts.device, opts.first, opts.n = number, first, n or 0
    opts.flags = (lib.KVP_WARM_PREFETCH if prefetch else 0) | (lib.KVP_WARM_EARLY if early else 0)
    opts.timeout_ms = DEFAULT_TIMEOUT
    return opts


class Ticket:
    """Copies under way, from Match.warm(). Hold the match until they have ended."""

    __slots__ = ("client", "_struct")

    def __init__(self, client: "Client", struct: Any) -> None:
        self.client = client
        self._struct = struct

    def _ask(self, milliseconds: int) -> Optional[Warmed]:
        why = ffi.new("int *")
        r = self.client.during(lib.kvp_ticket_wait, self.client.client, self._struct, milliseconds, why)
        if r == -errno.ETIMEDOUT and not milliseconds:
            return None
        return Warmed(check(r, "kvp_ticket_wait"), -why[0])

    def done(self) -> Optional[Warmed]:
        """What has become of them, or None: they go on."""
        return self._ask(0)

    def wait(self, timeout: Optional[float] = None) -> Warmed:
        """Until they have ended. Timeout: they go on."""
        ms = DEFAULT_TIMEOUT if timeout is None else min(int(timeout * 1000 + .999), DEFAULT_TIMEOUT - 1)
        done = self._ask(max(ms, 1))
        assert done is not None
        return done

    def placed(self, timeout: Optional[float] = None) -> int:
        """Of a ticket with early=True: until it is known where its blocks come to lie, or it has ended. How many of the
        first ones have a place, which Match.device_addresses(pending=True) gives; what is read there before the ticket
        has ended is not the block. Timeout: some are not known yet."""
        ms = DEFAULT_TIMEOUT if timeout is None else min(int(timeout * 1000 + .999), DEFAULT_TIMEOUT - 1)
        return check(self.client.during(lib.kvp_ticket_placed, self.client.client, self._struct, max(ms, 1)),
                     "kvp_ticket_placed")

    async def wait_async(self, timeout: Optional[float] = None) -> Warmed:
        """wait() in an event loop."""
        return await self.client.events(lib.KVP_EVENT_WARMS).until(
            self.done, self.client.timeout if timeout is None else timeout, "wait_async")
