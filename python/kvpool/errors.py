# SPDX-License-Identifier: Apache-2.0
"""Errors of the library as exceptions: each is an OSError with its errno, and what Python calls it."""
import errno
import os
from typing import Dict, Type


class KvpoolError(OSError):
    """An error of libkvpool; `errno` says which. Those below have a class of their own."""


class NoDaemon(KvpoolError, ConnectionError):
    """There is no daemon at the moment (ESHUTDOWN), or none that listens (ENOENT,
    ECONNREFUSED of Client())."""


class NoRoom(KvpoolError, BlockingIOError):
    """No room now (EAGAIN): compute in memory of your own, or try again after `retry` seconds."""

    retry: float = 0.0


class Timeout(KvpoolError, TimeoutError):
    """The time was up (ETIMEDOUT)."""


class Forked(KvpoolError, ChildProcessError):
    """The client belongs to the parent process (ECHILD): open one in the child."""


class Stale(KvpoolError):
    """The match has no lease, and something moved meanwhile (ESTALE): match again."""


class NotLeased(KvpoolError):
    """The match has no lease (ENOLCK): copy with Match.get(), or release other matches."""


class Invalid(KvpoolError, ValueError):
    """An argument is out of its range, or does not fit the space (EINVAL, E2BIG, ENAMETOOLONG)."""


_CLASSES: Dict[int, Type[KvpoolError]] = {
    errno.ESHUTDOWN: NoDaemon, errno.ECONNREFUSED: NoDaemon, errno.EAGAIN: NoRoom,
    errno.ETIMEDOUT: Timeout, errno.ECHILD: Forked, errno.ESTALE: Stale,
    errno.ENOLCK: NotLeased, errno.EINVAL: Invalid, errno.E2BIG: Invalid,
    errno.ENAMETOOLONG: Invalid,
}


def error(result: int, what: str, why: str = "") -> KvpoolError:
    """The exception for a negative errno; `why`: more than the number says."""
    number = -result
    cls = _CLASSES.get(number, KvpoolError)
    return cls(number, "%s: %s" % (what, why or os.strerror(number)))


def check(result: int, what: str) -> int:
    if result < 0:
        if result == -errno.ENOMEM:
            raise MemoryError(what)
        raise error(result, what)
    return result
