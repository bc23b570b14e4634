# SPDX-License-Identifier: Apache-2.0
"""Waiting for kvpool in event loops, by the library's descriptor and without threads."""
import asyncio
import errno
import os
import threading
from typing import Callable, Dict, Optional, Set, TypeVar

from .errors import error

_Answer = TypeVar("_Answer")

# Seconds after which a wait looks without being told: a daemon that hangs tells nothing.
_SLICE = .1


class Events:
    """The descriptor of one client, in any number of event loops: whoever reads it tells all."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)  # one that stays as long as a loop has it
        self._lock = threading.Lock()
        self._waits: Dict[asyncio.AbstractEventLoop, Set[asyncio.Event]] = {}
        self._closed = False

    async def until(self, look: Callable[[], Optional[_Answer]], timeout: float, what: str) -> _Answer:
        """What look() returns as soon as that is not None; asked in this loop's thread, now and whenever
        something has changed. Timeout: after so many seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        changed = asyncio.Event()
        self._enter(loop, changed)
        try:
            while True:
                changed.clear()
                answer = look()
                if answer is not None:
                    return answer
                left = end - loop.time()
                if left <= 0:
                    raise error(-errno.ETIMEDOUT, what)
                try:
                    await asyncio.wait_for(changed.wait(), min(left, _SLICE))
                except asyncio.TimeoutError:
                    pass
        finally:
            self._leave(loop, changed)

    def close(self) -> None:
        """Those that wait look once more, and find the client closed."""
        with self._lock:
            self._closed = True
            self._tell()
            self._let_go()

    def _enter(self, loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
        with self._lock:
            if self._closed:
                raise ValueError("the client was closed")
            if loop not in self._waits:
                self._waits[loop] = set()
                loop.add_reader(self._fd, self._readable)
            self._waits[loop].add(changed)

    def _leave(self, loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
        with self._lock:
            waits = self._waits.get(loop, set())
            waits.discard(changed)
            if not waits and self._waits.pop(loop, None) is not None:
                loop.remove_reader(self._fd)
            self._let_go()

    def _readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            pass  # another loop was quicker, and tells this one
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        for loop, waits in list(self._waits.items()):
            try:
                for changed in waits:
                    loop.call_soon_threadsafe(changed.set)
            except RuntimeError:
                del self._waits[loop]  # it was closed while something waited in it

    def _let_go(self) -> None:
        if self._closed and not self._waits and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
