#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A payload that changes its place while the block stays a hit (shm/kvp_catalog.h, daemon/ledger/switch.h), in
every execution that C11 allows: one reader that looks the block up, leases it, follows it if it moved meanwhile and
reads the bytes, against one ledger that moves it there and back. Exit 0: no reader meets a block that is none, or
bytes that are not the block's, and each part of the protocol is needed. The machine is that of lease_model.py."""
import sys

from lease_model import ACQUIRE, RELAXED, SEQ, Machine

# Words: the slot; state and move count; `where` and offset of DRAM, and of the descriptor that is lent while the
# block moves; the bytes at its two places. A place is right if both say the same.
SLOT, W, WHERE, OFFSET, WHERE2, OFFSET2, B0, B1 = range(8)
INIT = (0, ("L", 0), 0, 0, None, None, "A", "-")
BOTTOM = (0,) * len(INIT)
GONE, MISS, READ = -1, -2, 9
RENEWS = 1  # times that the reader follows the block; the rest are as the first


def reader(state, pc, reg, rules):
    """One step of kvp_block_is(), kvp_lease_take(), kvp_hit_renew(), reading, kvp_lease_drop()."""
    word, where, offset, byte, leased = reg
    load = Machine.load
    lent = word is not None and word[0] == "M" and rules["lent"]
    if pc == 0:
        for value, then in load(state, 0, W, ACQUIRE):
            yield then, 1 if value[0] in "LM" else MISS, (value, None, None, None, leased)
    elif pc == 1:
        for value, then in load(state, 0, WHERE2 if lent else WHERE, ACQUIRE):
            yield then, 2, (word, value, offset, byte, leased)
    elif pc == 2:
        for value, then in load(state, 0, OFFSET2 if lent else OFFSET, ACQUIRE):
            yield then, 3, (word, where, value, byte, leased)
    elif pc == 3:  # changed meanwhile: it looks again
        for value, then in load(state, 0, W, RELAXED):
            again = value != word and rules["again"]
            yield then, 0 if again else 5 if leased else 4, reg
    elif pc == 4:
        yield Machine.exchange(state, 0, SLOT, 1), 5, (word, where, offset, byte, 1)
    elif pc == 5:  # it has moved: followed, with the lease that is there
        for value, then in load(state, 0, W, rules["proof"]):
            if value == word or not rules["again"]:
                yield then, 6, reg
            elif leased <= RENEWS:
                yield then, 0, (word, where, offset, byte, leased + 1)
            else:
                yield then, 7, reg
    elif pc == 6:
        if where is None or where != offset:
            yield state, READ, (word, where, offset, "torn", leased)
        else:
            for value, then in load(state, 0, (B0, B1)[offset], RELAXED):
                yield then, READ, (word, where, offset, value, leased)
    elif pc in (7, READ):
        yield Machine.store(state, 0, SLOT, 0, ACQUIRE), GONE, reg


def steps_of(old, count, rules):
    """What the ledger stores for one move, in order: (word, value, order)."""
    new, after = 1 - old, count + 1
    place = [(OFFSET2, new, ACQUIRE), (WHERE2, new, ACQUIRE)]
    stay = [(OFFSET, new, ACQUIRE), (WHERE, new, ACQUIRE)]
    back = [(OFFSET2, None, ACQUIRE), (WHERE2, None, ACQUIRE)]
    if rules["copy last"]:
        return [(W, ("M", after), SEQ), *place, *stay, (W, ("L", after), SEQ), *back, ((B0, B1)[new], "A", RELAXED)]
    bytes_first = [((B0, B1)[new], "A", RELAXED)]
    if rules["marked"]:
        return bytes_first + [(W, ("E", count), SEQ), *stay, (W, ("L", after), SEQ)]
    if rules["one word"]:
        return bytes_first + [*stay, (W, ("L", after), SEQ)]
    return bytes_first + [*place, (W, ("M", after), SEQ), *stay, (W, ("L", after), SEQ), *back]


def ledger(state, pc, reg, rules, moves):
    """One step: the stores of a move, fence, scan; a place that nobody holds is overwritten at once."""
    move, part = divmod(pc, 20)
    if move >= moves:
        return
    old, seen = reg
    stores = steps_of(old, move, rules)
    tail = part - len(stores)
    if rules["scan first"] and part < 2:
        then = [(Machine.fence(state, 1), 0)] if part == 0 else [
            (s, v) for v, s in Machine.load(state, 1, SLOT, SEQ)]
        for s, v in then:
            yield s, pc + 1, (old, v)
        return
    if rules["scan first"]:
        part, tail = part - 2, tail - 2
    if part < len(stores):
        word, value, order = stores[part]
        yield Machine.store(state, 1, word, value, order), pc + 1, reg
    elif tail == 0:
        yield Machine.fence(state, 1) if rules["fence"] else state, pc + 1, reg
    elif tail == 1 and rules["scan first"]:
        yield state, pc + 1, reg
    elif tail == 1:
        for value, then in Machine.load(state, 1, SLOT, SEQ if rules["fence"] else ACQUIRE):
            yield then, pc + 1, (old, value)
    elif tail == 2 and seen and rules["limbo"]:
        return  # the old place is kept, and no more is moved
    elif tail == 2:
        yield Machine.store(state, 1, (B0, B1)[old], "X", RELAXED), (move + 1) * 20, (1 - old, 0)


def explore(moves, **rules):
    """States seen, and what went wrong, or None."""
    memory = tuple(((value, BOTTOM),) for value in INIT)
    todo = [((memory, BOTTOM, (BOTTOM, BOTTOM)), 0, (None, None, None, None, 0), 0, (0, 0))]
    seen = set()
    while todo:
        here = todo.pop()
        if here in seen:
            continue
        seen.add(here)
        state, rp, rr, lp, lr = here
        if rp == MISS:
            return len(seen), "a miss"
        if rp == READ and rr[3] != "A":
            return len(seen), "torn places" if rr[3] == "torn" else "wrong bytes"
        if rp >= 0:
            todo += [(s, p, r, lp, lr) for s, p, r in reader(state, rp, rr, rules)]
        todo += [(s, rp, rr, p, r) for s, p, r in ledger(state, lp, lr, rules, moves)]
    return len(seen), None


def main():
    base = {"lent": True, "again": True, "proof": SEQ, "fence": True, "scan first": False, "limbo": True,
            "copy last": False, "marked": False, "one word": False}
    bad = 0
    for name, wrong, rules in (
            ("as it is", None, {}),
            ("marked while the place is written", "a miss", {"marked": True}),
            ("written under the word that it has", "torn places", {"one word": True}),
            ("the lent descriptor not looked at", "torn places", {"lent": False}),
            ("the bytes copied afterwards", "wrong bytes", {"copy last": True}),
            ("the word not looked at again", "wrong bytes", {"again": False}),
            ("the word looked at with an acquire load", "wrong bytes", {"proof": ACQUIRE}),
            ("leases looked for before the switch", "wrong bytes", {"scan first": True}),
            ("neither a fence nor a sequentially consistent scan", "wrong bytes", {"fence": False}),
            ("the old place used again at once", "wrong bytes", {"limbo": False})):
        states, found = explore(2, **{**base, **rules})
        print("%s: %d states, %s" % (name, states, found or "nothing wrong"))
        bad |= (found is None) != (wrong is None) or (wrong == "a miss") != (found == "a miss")
    sys.exit(bad)


if __name__ == "__main__":
    main()
