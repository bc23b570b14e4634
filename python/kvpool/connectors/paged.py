# SPDX-License-Identifier: Apache-2.0
"""What a connector of an engine of pages does, without any engine's types: a scheduler decides which
blocks of a request are loaded and stored, and its workers move them between pages and the pool.

A page of the engine holds one block of the pool, for every layer. The two sides may live in different
processes: jobs cross as plain values, token ids as bytes. Nothing here is told that the pool is gone:
then nothing is found and nothing stored, and what was promised and did not come is an invalid page.
"""
import array
import collections
import logging
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from .. import Client, Invalid, KvpoolError, Match, NoRoom, Space, Timeout, View

_log = logging.getLogger("kvpool.paged")

_SALTS = 64  # whose spaces are kept; one is made in a few microseconds
_HANGS = 5.0  # seconds in which a daemon that did not answer is not waited for again


class Job(NamedTuple):
    """A request's part of one step. ids: 32-bit token ids from the beginning to the end of the last block
    concerned; pages: the engine's page of each of these blocks; load, store: [first, end) in blocks.
    salt: b"", or what else decides about its keys or who may share them (Space.salted())."""
    salt: bytes
    ids: bytes
    pages: Tuple[int, ...]
    load: Tuple[int, int]
    store: Tuple[int, int]


class Spaces:
    """The model in this process's client, under the salts of its requests. identity: arguments of
    Client.space(). ranks: for each worker of a tensor-parallel group, those in which its part differs; a
    worker has its own alone, a scheduler all."""

    def __init__(self, name: str, identity: Dict[str, Any], socket: Optional[str] = None,
                 timeout: float = 0.2, ranks: Sequence[Dict[str, Any]] = ({},)) -> None:
        self.client = Client(socket, name, timeout, lazy=True)
        self.timeout = timeout
        self._identities = [dict(identity, **rank) for rank in ranks]
        self._spaces: List[Space] = []
        # Those that were asked for last; a match keeps its own for as long as it is held.
        self._salted: "collections.OrderedDict[bytes, List[Space]]" = collections.OrderedDict()

    def group(self, salt: bytes) -> List[Space]:
        """A space for each rank. None at all: the library cannot take it; such requests are not shared."""
        try:
            if not self._spaces:
                self._spaces = [self.client.space(**i, timeout=self.timeout) for i in self._identities]
            if not salt:
                return self._spaces
            spaces = self._salted.get(salt)
            if spaces is None:
                spaces = self._salted[salt] = [space.salted(salt) for space in self._spaces]
                if len(self._salted) > _SALTS:
                    self._salted.popitem(last=False)
            self._salted.move_to_end(salt)
            return spaces
        except KvpoolError as why:
            _log.warning("not shared: %s", why)
            return []

    def get(self, salt: bytes) -> Optional[Space]:
        """The first rank's, or None."""
        spaces = self.group(salt)
        return spaces[0] if spaces else None

    def close(self) -> None:
        self.client.close()


class _Request:
    """What the scheduler's side remembers of a request that runs."""

    def __init__(self, salt: bytes) -> None:
        self.salt = salt
        self.ids = array.array("I")
        self.source: Callable[[int], Iterable[int]] = lambda first: ()
        self.pages: List[int] = []
        self.matches: List[Match] = []  # of each rank, leases until the workers have read
        self.promised = 0  # tokens that are to be loaded in the next step
        self.stored = -1  # blocks that were stored or loaded; -1: nothing is known yet

    def release(self) -> None:
        for match in self.matches:
            match.release()
        self.matches = []


class Scheduler:
    """One engine's scheduler: found(), allocated(), then step() for all requests of a step, finished().
    Requests go by the engine's names. One thread."""

    def __init__(self, spaces: Spaces, block_tokens: int) -> None:
        self._spaces = spaces
        self._tokens = block_tokens
        self._requests: Dict[str, _Request] = {}

    def found(self, name: str, salt: bytes, source: Callable[[int], Sequence[int]],
              computed: int) -> int:
        """How many tokens after the first `computed` can be loaded: whole blocks, and never the last
        token, whose logits are wanted. source(first): the request's token ids from `first` on, as they
        are now; kept, and asked again as the request grows. May be called again."""
        request = self._requests.get(name)
        if request is None:
            request = self._requests[name] = _Request(salt)
        request.source = source
        request.release()
        request.promised = 0
        spaces = self._spaces.group(salt)
        self._extend(request)
        whole = max(len(request.ids) - 1, 0) // self._tokens * self._tokens
        if not spaces or whole <= computed:
            return 0
        try:
            request.matches = self._spaces.client.match_group(spaces, request.ids[:whole], tail=False)
        except Invalid:
            return 0  # such ids are none of a model's text
        except KvpoolError as why:
            _log.info("goes on without kvpool: %s", why)
            return 0
        found = request.matches[0].n_tokens
        if found <= computed:
            request.release()
            return 0
        return found - computed

    def allocated(self, name: str, tokens: int) -> None:
        """Pages for so many of the tokens that were found have been reserved."""
        request = self._requests.get(name)
        if request is not None:
            request.promised = tokens

    def step(self, name: str, pages: Sequence[int], whole: bool, computed: int,
             scheduled: int) -> Optional[Job]:
        """The request is part of the next step. pages: those that it was given since the last one, or
        all of them (whole). computed: tokens that have keys before the step, with those that were
        promised; scheduled: tokens that the step computes. None: nothing to load or store."""
        request = self._requests.get(name)
        if request is None:
            return None
        request.pages = list(pages) if whole else request.pages + list(pages)
        self._extend(request)
        size = self._tokens
        # Tokens that are only guessed have keys too, and no ids yet.
        end = min(computed + scheduled, len(request.ids)) // size
        before = computed // size
        load = (0, 0)
        if request.promised:
            load = ((computed - request.promised) // size, before)
            request.promised = 0
        else:
            request.release()  # its workers have read, in an earlier step
        # Less is computed than before if a load failed or the request was preempted.
        first = before if request.stored < 0 else min(request.stored, before)
        request.stored = max(end, first)
        last = max(end, load[1])
        if end <= first and load[0] == load[1]:
            return None
        return Job(request.salt, request.ids[:last * size].tobytes(),
                   tuple(request.pages[:last]), load, (first, max(end, first)))

    def finished(self, name: str) -> None:
        """The request is gone."""
        request = self._requests.pop(name, None)
        if request is not None:
            request.release()

    def close(self) -> None:
        for name in list(self._requests):
            self.finished(name)
        self._spaces.close()

    @staticmethod
    def _extend(request: _Request) -> None:
        try:
            request.ids.extend(request.source(len(request.ids)))
        except (OverflowError, TypeError):
            request.source = lambda first: ()  # what follows has no ids, and is not shared


class Memory:
    """Memory of the engine as an array, for View."""

    def __init__(self, interface: Dict[str, Any]) -> None:
        self.__array_interface__ = interface


def halves(address: int, pages: int, page_stride: int, tokens: int, heads: int, dim: int,
           itemsize: int) -> Tuple[Memory, Memory]:
    """One layer's pages, each a dense run of 2 x tokens x heads x dim elements in whatever order, as two
    arrays [pages, tokens, heads, dim]: the first halves of the pages, and the second ones."""
    half = tokens * heads * dim * itemsize
    first, second = (
        Memory({"version": 3, "typestr": "|u1" if itemsize == 1 else "<f%d" % itemsize,
                "data": (address + at, False), "shape": (pages, tokens, heads, dim),
                "strides": (page_stride, heads * dim * itemsize, dim * itemsize, itemsize)})
        for at in (0, half))
    return first, second


def _alone(counts: List[int]) -> List[int]:
    return counts


class Worker:
    """The side that has the pages. planes: for each layer halves(), of memory that stays there. agree:
    in a tensor-parallel group, the least of what the workers say, for each number; every worker calls
    it in the same steps. What one of them could not load is wrong in what all compute after it."""

    def __init__(self, spaces: Spaces, block_tokens: int, planes: Sequence[Tuple[Any, Any]],
                 agree: Callable[[List[int]], List[int]] = _alone) -> None:
        self._agree = agree
        self._spaces = spaces
        self._tokens = block_tokens
        self._planes = list(planes)
        self._invalid: Set[int] = set()  # pages that were not loaded, until they are computed
        self._failed: Set[int] = set()  # the same, until told
        self._not_before = 0.0

    def load(self, jobs: Iterable[Job]) -> None:
        """Fills the pages that jobs load. Those that could not be filled: take_failed()."""
        until = time.monotonic() + self._spaces.timeout
        loads = [job for job in jobs if job.load[0] < job.load[1]]
        if not loads:
            return
        counts = self._agree([max(self._load(job, *job.load, until), job.load[0]) for job in loads])
        for job, got in zip(loads, counts):
            first, end = job.load
            self._invalid.difference_update(job.pages[first:got])
            self._invalid.update(job.pages[got:end])
            self._failed.update(job.pages[got:end])

    def _load(self, job: Job, first: int, end: int, until: float) -> int:
        """Returns the block up to which it went."""
        space = self._spaces.get(job.salt)
        if space is None:
            return first
        size = self._tokens
        ids = array.array("I", job.ids)[:end * size]
        try:
            while True:
                with space.match(ids, tail=False, touch=False) as match:
                    # What was moved is a miss until its memory is mapped, which takes a moment.
                    if match.n_blocks >= end or time.monotonic() >= until:
                        last = min(match.n_blocks, end)
                        if last <= first:
                            return first
                        view = View(space, self._planes, "pthd", pages=array.array("I", job.pages),
                                    first_slot=first * size)
                        return first + match.get(view, first * size, (last - first) * size) // size
                time.sleep(.001)
        except KvpoolError as why:
            _log.info("what was found is computed instead: %s", why)
            return first

    def store(self, jobs: Iterable[Job]) -> None:
        """Stores what jobs have computed; of each page only what is right, after a load that failed."""
        for job in jobs:
            first, end = job.store
            if first >= end or not self._invalid.isdisjoint(job.pages[:first]):
                continue
            self._invalid.difference_update(job.pages[first:end])
            if time.monotonic() >= self._not_before:
                self._store(job, first, end)

    def _store(self, job: Job, first: int, end: int) -> None:
        space = self._spaces.get(job.salt)
        if space is None:
            return
        ids = array.array("I", job.ids)[:end * self._tokens]
        # What these blocks follow may have been evicted, or gone with the daemon: all of it then.
        for start in (first, 0):
            view = View(space, self._planes, "pthd", pages=array.array("I", job.pages),
                        first_slot=start * self._tokens)
            try:
                space.put(ids, view, start * self._tokens, timeout=self._spaces.timeout)
                return
            except (NoRoom, Timeout) as why:
                self._not_before = time.monotonic() + getattr(why, "retry", _HANGS)
                return
            except KvpoolError as why:
                _log.info("not stored from block %d: %s", start, why)
                if not start:
                    return

    def take_failed(self) -> Set[int]:
        """Pages that could not be loaded since the last call: the engine computes them."""
        failed, self._failed = self._failed, set()
        return failed

    def flush(self) -> None:
        """Returns when what was stored is visible, or there is no daemon."""
        try:
            self._spaces.client.flush(self._spaces.timeout)
        except KvpoolError as why:
            _log.info("not flushed: %s", why)

    def close(self) -> None:
        self.flush()
        self._spaces.close()
