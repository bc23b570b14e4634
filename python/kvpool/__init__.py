# SPDX-License-Identifier: Apache-2.0
"""kvpool: an inference engine's view of the machine's shared KV cache.

    with kvpool.Client() as client:
        space = client.space("llama", layers=32, kv_heads=8, head_dim=128)
        with space.match(tokens) as match:                      # what is cached, leased
            match.get(kvpool.View(space, kv, "pthd", pages=table))  # into the request's pages
        space.put(tokens, kvpool.View(space, kv, "pthd", pages=table))  # what was computed since

The contracts are in kvpool.h and kvpool(3); docstrings here say what Python adds. Times are seconds.
Calls release the GIL. Errors are subclasses of OSError.
"""
from ._memory import Payload
from ._native import ffi as _ffi, lib as _lib
from .client import Client, Layer, Outcome, Space
from .devices import Device, Ticket, Warmed
from .errors import (Forked, Invalid, KvpoolError, NoDaemon, NoRoom, NotLeased, Stale, Timeout)
from .handles import Grant, Match, Ref
from .keys import KeyMatch, KeySpace
from .view import View

__version__: str = _ffi.string(_lib.kvp_version()).decode()

__all__ = ["Client", "Device", "Forked", "Grant", "Invalid", "KeyMatch", "KeySpace", "KvpoolError", "Layer",
           "Match", "NoDaemon", "NoRoom", "NotLeased", "Outcome", "Payload", "Ref", "Space", "Stale",
           "Ticket", "Timeout", "View", "Warmed", "__version__"]
