#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The payload rule of shm/kvp_catalog.h in every execution that C11 allows: one reader that looks a
block up in a second tier, leases it and reads the bytes, against one ledger that has a payload
appear there, takes it away again, has it appear at another place. Exit 0: the rule as it is holds,
and each of its parts is needed. The machine is that of lease_model.py."""
import sys

from lease_model import ACQUIRE, RELAXED, SEQ, Machine

# Words: the slot; state and move count; where and offset of the second tier; the bytes at its two
# places. Place 0 is nobody's: an offset that was never stored leads there.
SLOT, W, WHERE, OFFSET, B0, B1, B2 = range(7)
INIT = (0, ("L", 0), 0, 0, "X", "-", "-")
BOTTOM = (0,) * len(INIT)
GONE = -1


def reader(state, pc, reg, rules):
    """One step of kvp_block_is(), kvp_lease_take(), reading, kvp_lease_drop()."""
    word, where, offset, byte = reg
    load = Machine.load
    if pc == 0:
        for value, then in load(state, 0, W, ACQUIRE):
            yield then, 1 if value[0] == "L" else GONE, (value, where, offset, byte)
    elif pc == (1 if rules["where first"] else 2):
        for value, then in load(state, 0, WHERE, rules["where"]):
            yield then, pc + 1 if value else GONE, (word, value, offset, byte)
    elif pc in (1, 2):
        for value, then in load(state, 0, OFFSET, rules["offset"]):
            yield then, pc + 1, (word, where, value, byte)
    elif pc == 3:
        for value, then in load(state, 0, W, RELAXED):
            yield then, 4 if value == word or not rules["again"] else GONE, reg
    elif pc == 4:
        yield Machine.exchange(state, 0, SLOT, 1), 5, reg
    elif pc == 5:
        for value, then in load(state, 0, W, SEQ):
            yield then, 6 if value == word or not rules["again"] else 7, reg
    elif pc == 6:
        for value, then in load(state, 0, (B0, B1, B2)[offset], RELAXED):
            yield then, 7, (word, where, offset, value)
    elif pc == 7:
        yield Machine.store(state, 0, SLOT, 0, ACQUIRE), GONE, reg


def ledger(state, pc, reg, rules, plan):
    """One step: a copy and its appearing; or mark, fence, scan, remove, overwrite."""
    step, part = divmod(pc, 10)
    if step >= len(plan):
        return
    act, over = plan[step], (step + 1) * 10
    load, store, release = Machine.load, Machine.store, rules["release"]
    now = state[0][W][-1][0]
    if act in (1, 2):
        if part == 0:  # only where there is none; a removal that met a lease left one
            free = not state[0][WHERE][-1][0]
            yield store(state, 1, (B0, B1, B2)[act], "A", RELAXED) if free else state, (
                1 if free else over - pc) + pc, reg
        elif part == (1 if rules["offset first"] else 2):
            yield store(state, 1, OFFSET, act, release), pc + 1 if part == 1 else over, reg
        else:
            yield store(state, 1, WHERE, 1, release), pc + 1 if part == 1 else over, reg
    elif part == 0:
        yield store(state, 1, W, ("E", now[1]), SEQ) if rules["mark"] else state, pc + 1, now
    elif part == 1:
        yield Machine.fence(state, 1), pc + 1, reg
    elif part == 2:
        for value, then in load(state, 1, SLOT, SEQ):
            yield then, pc + 1 if not value else pc + 6, reg
    elif part in (3, 4):
        yield store(state, 1, (OFFSET, WHERE)[part - 3], 0, ACQUIRE), pc + 1, reg
    elif part == 5:
        then = store(state, 1, W, ("L", reg[1] + 1), ACQUIRE) if rules["mark"] else state
        yield then, pc + 1, reg
    elif part == 6:  # both places may be written again: by the next payload or another block's
        yield store(store(state, 1, B1, "X", RELAXED), 1, B2, "X", RELAXED), over, reg
    elif part == 8:
        yield store(state, 1, W, reg, ACQUIRE) if rules["mark"] else state, over, reg


PLANS = ((1,), (1, "fade"), (1, "fade", 2), (1, "fade", 2, "fade"))


def explore(**rules):
    """States seen and, if a leased reader met bytes that are not the block's, the first such plan."""
    states = 0
    for plan in PLANS:
        memory = tuple(((value, BOTTOM),) for value in INIT)
        todo = [((memory, BOTTOM, (BOTTOM, BOTTOM)), 0, (None, 0, 0, None), 0, None)]
        seen = set()
        while todo:
            here = todo.pop()
            if here in seen:
                continue
            seen.add(here)
            state, rp, rr, lp, lr = here
            if rp == 7 and rr[3] not in (None, "A"):
                return states + len(seen), plan
            if rp >= 0:
                todo += [(s, p, r, lp, lr) for s, p, r in reader(state, rp, rr, rules)]
            todo += [(s, rp, rr, p, r) for s, p, r in ledger(state, lp, lr, rules, plan)]
        states += len(seen)
    return states, None


def main():
    base = {"where": ACQUIRE, "offset": ACQUIRE, "release": ACQUIRE, "where first": True,
            "offset first": True, "again": True, "mark": True}
    bad = 0
    for name, holds, rules in (
            ("as it is", True, {}),
            ("`where` stored before the offset", False, {"offset first": False}),
            ("the offset loaded before `where`", False, {"where first": False}),
            ("stored by relaxed stores", False, {"release": RELAXED}),
            ("`where` loaded by a relaxed load", False, {"where": RELAXED}),
            ("the word not looked at again", False, {"again": False}),
            ("removed without a mark", False, {"mark": False})):
        states, plan = explore(**{**base, **rules})
        print("%s: %d states, %s" % (name, states, "wrong bytes in " + ", ".join(map(str, plan))
                                     if plan else "no wrong bytes"))
        bad |= holds != (plan is None)
    sys.exit(bad)


if __name__ == "__main__":
    main()
