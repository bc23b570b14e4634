#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leases that are over at a moment on a timeline (shm/kvp_lease.h) in every execution that C11 allows:
three threads of a client that want one slot for the same block, or two for different ones, a device that
reads the block for those that release it "after", each time at any later moment, and a ledger that evicts
the block. Exit 0: the protocol as it is holds, and each of its parts is needed. The machine is that of
lease_model.py."""
import sys

from lease_model import ACQUIRE, RELAXED, SEQ, Machine, join

# Words: the slot; its moment; how far the timeline has come; the block's word; the block's bytes.
SLOT, UNTIL, DONE, WORD, BYTES = range(5)
INIT = (0, 0, 0, "L", "A")
BOTTOM = (0,) * len(INIT)
LEDGER, DEVICE, FIRST = range(3)  # and clients from there on
GONE, WRONG = -1, -2
# The clients: which block each leases (the ledger evicts 1), and whether it has the device read it and
# releases it "after".
SAME = ((1, True), (1, True), (1, False))
OTHER = ((2, True), (1, True))
# Steps of a client.
FIND, LOOK, TAKE, SEEN, COME, WIN, FILL, CLEAR, PROVE, READ, LAUNCH, LATE, STORE, DROP = range(14)


def last(state, word):
    return state[0][word][-1][0]


def cas(state, who, word, old, new):
    """What follows if the word holds `old`; None if not."""
    return Machine.exchange(state, who, word, new) if last(state, word) == old else None


def launch(state, who):
    """The device knows what the thread that launches knows."""
    memory, shared, views = state
    both = join(views[DEVICE], views[who])
    return memory, shared, views[:DEVICE] + (both,) + views[DEVICE + 1:]


def take(state, who, block, pc, reg, rules):
    """Finding the block, and getting the slot: fill_slot()."""
    load = Machine.load
    if pc == FIND:
        for value, then in load(state, who, WORD, ACQUIRE):
            yield then, LOOK if value == "L" or block != 1 else GONE, reg
    elif pc == LOOK:
        for value, then in load(state, who, SLOT, RELAXED):
            yield then, SEEN if value else TAKE, value
    elif pc == TAKE:
        then = cas(state, who, SLOT, 0, block)
        yield (then, PROVE, 0) if then else (state, GONE, reg)
    elif pc == SEEN:
        for value, then in load(state, who, UNTIL, ACQUIRE):
            yield then, COME if value else GONE, (reg, value)
    elif pc == COME:
        for value, then in load(state, who, DONE, ACQUIRE):
            yield then, WIN if value >= reg[1] else GONE, reg
    elif pc == WIN and rules["compete for"] == "slot":
        then = cas(state, who, SLOT, reg[0], block)
        yield (then, CLEAR, 0) if then else (state, GONE, reg)
    elif pc == WIN:
        then = (cas(state, who, UNTIL, reg[1], 0) if rules["compete for"] == "until" else
                Machine.store(state, who, UNTIL, 0, SEQ))
        yield (then, FILL, 0) if then else (state, GONE, reg)
    elif pc == FILL:
        then = (Machine.exchange(state, who, SLOT, block) if rules["fill"] == SEQ else
                Machine.store(state, who, SLOT, block, rules["fill"]))
        yield then, PROVE, 0
    elif pc == CLEAR:
        yield Machine.store(state, who, UNTIL, 0, ACQUIRE), PROVE, 0


def client(state, who, what, pc, reg, launched, rules):
    """One step. What is launched last is the moment that the device comes to after reading."""
    block, after = what
    if pc < PROVE:
        for then, step, value in take(state, who, block, pc, reg, rules):
            yield then, step, value, launched
    elif pc in (PROVE, READ) and block != 1:
        yield state, pc + 1, reg, launched
    elif pc == PROVE:
        for value, then in Machine.load(state, who, WORD, SEQ):
            yield then, READ if value == "L" else DROP, reg, launched
    elif pc == READ:
        for value, then in Machine.load(state, who, BYTES, RELAXED):
            yield then, WRONG if value != "A" else LAUNCH if after else DROP, reg, launched
    elif pc == LAUNCH:
        yield launch(state, who), LATE, launched + (block,), launched + (block,)
    elif pc == LATE:
        for value, then in Machine.load(state, who, DONE, ACQUIRE):
            yield then, DROP if value >= len(reg) else STORE, len(reg), launched
    elif pc == STORE:
        yield Machine.store(state, who, UNTIL, reg, ACQUIRE), GONE, reg, launched
    elif pc == DROP:
        yield Machine.store(state, who, SLOT, 0, ACQUIRE), GONE, reg, launched


def device(state, pc, launched):
    """Launch by launch: reads the block, then says so. pc is twice the launches that are over."""
    if pc % 2:
        yield Machine.store(state, DEVICE, DONE, pc // 2 + 1, ACQUIRE), pc + 1
    elif pc // 2 < len(launched) and launched[pc // 2] != 1:
        yield state, pc + 1
    elif pc // 2 < len(launched):
        for value, then in Machine.load(state, DEVICE, BYTES, RELAXED):
            yield then, pc + 1 if value == "A" else WRONG


def ledger(state, pc, reg):
    """One step: mark, fence, the slot, its moment, the timeline; then take or put back. Two tries."""
    attempt, part = divmod(pc, 10)
    load, over = Machine.load, (attempt + 1) * 10
    if attempt > 1:
        return
    if part == 0:
        yield Machine.store(state, LEDGER, WORD, "E", SEQ), pc + 1, 0
    elif part == 1:
        yield Machine.fence(state, LEDGER), pc + 1, 0
    elif part == 2:
        for value, then in load(state, LEDGER, SLOT, SEQ):
            yield then, pc + 1 if value == 1 else pc + 4, 0
    elif part == 3:
        for value, then in load(state, LEDGER, UNTIL, ACQUIRE):
            yield then, pc + 1 if value else pc + 2, value
    elif part == 4:
        for value, then in load(state, LEDGER, DONE, ACQUIRE):
            yield then, pc + 2 if value >= reg else pc + 1, 0
    elif part == 5:
        yield Machine.store(state, LEDGER, WORD, "L", ACQUIRE), over, 0
    elif part == 6:
        yield Machine.store(state, LEDGER, WORD, "R", ACQUIRE), pc + 1, 0
    elif part == 7:
        yield Machine.store(state, LEDGER, BYTES, "X", RELAXED), 20, 0


def explore(what, **rules):
    """States seen, and whether a reader under a lease met bytes that are not the block's."""
    memory = tuple(((value, BOTTOM),) for value in INIT)
    start = (memory, BOTTOM, (BOTTOM,) * (FIRST + len(what)))
    todo = [(start, ((FIND, 0),) * len(what), (), 0, (0, 0))]
    seen = set()
    while todo:
        here = todo.pop()
        if here in seen:
            continue
        seen.add(here)
        state, clients, launched, read, (lp, lr) = here
        for i, (pc, reg) in enumerate(clients):
            if pc == GONE:
                continue
            for s, p, r, n in client(state, FIRST + i, what[i], pc, reg, launched, rules):
                if p == WRONG:
                    return len(seen), True
                mine = (p, 0 if p == GONE else r)
                todo.append((s, clients[:i] + (mine,) + clients[i + 1:], n, read, (lp, lr)))
        for s, p in device(state, read, launched):
            if p == WRONG:
                return len(seen), True
            todo.append((s, clients, launched, p, (lp, lr)))
        todo += [(s, clients, launched, read, (p, r)) for s, p, r in ledger(state, lp, lr)]
    return len(seen), False


def main():
    base = {"compete for": "until", "fill": SEQ}
    bad = 0
    for name, holds, rules in (
            ("as it is", True, {}),
            ("threads compete for the slot", False, {"compete for": "slot"}),
            ("threads do not compete", False, {"compete for": "nothing"}),
            ("the slot filled by a release store", False, {"fill": ACQUIRE})):
        states = wrong = 0
        for what in (OTHER, SAME):
            if not wrong:
                n, wrong = explore(what, **{**base, **rules})
                states += n
        print(f"{name}: {states} states, violations {'found' if wrong else 0}")
        bad |= holds == wrong
    sys.exit(bad)


if __name__ == "__main__":
    main()
