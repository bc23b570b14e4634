#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lease protocol of shm/kvp_lease.h in every execution that C11 allows: one reader that matches a
chain A <- C, leases its tip C and reads both payloads, against one ledger that moves A, evicts C, then
A, in several orders. Exit 0: the protocol as it is holds, and each of its parts is needed.

The machine. Memory holds all writes to a word in their order. A thread has a view: for each word the
oldest write that it may still read. A load may return any write from there on; an acquire load of a
release store takes over the view that the storing thread had. Sequentially consistent accesses of a
word read and raise a view of that word which all threads share; such a fence joins the whole view of
its thread with the shared one. That is as weak as the language lets a compiler or a processor be (an
acquire load may be satisfied before an earlier sequentially consistent access of another word), and
weaker than x86."""
import sys

RELAXED, ACQUIRE, SEQ = range(3)
# Words: the slot; states and move counts of A and C; where A lies; the bytes at its old and new
# place and at C's place; the bit that says whether the slot's line was ever used.
SLOT, AW, CW, AP, B0, B1, BC, BIT = range(8)
INIT = (0, ("L", 0), ("L", 0), 0, "A", "-", "C", 0)
BOTTOM = (0,) * len(INIT)


def join(a, b):
    return tuple(map(max, a, b))


def raised(view, word, at):
    return view[:word] + (max(view[word], at),) + view[word + 1:]


class Machine:
    """State: (memory, shared view, thread views). Every method yields the states that may follow."""

    @staticmethod
    def load(state, who, word, order):
        memory, shared, views = state
        view = views[who]
        low = max(view[word], shared[word]) if order == SEQ else view[word]
        for at in range(low, len(memory[word])):
            value, message = memory[word][at]
            mine = raised(view, word, at)
            if order != RELAXED:
                mine = join(mine, message)
            then = raised(shared, word, at) if order == SEQ else shared
            yield value, (memory, then, views[:who] + (mine,) + views[who + 1:])

    @staticmethod
    def store(state, who, word, value, order):
        memory, shared, views = state
        at = len(memory[word])
        mine = raised(views[who], word, at)
        message = BOTTOM if order == RELAXED else mine
        if order == SEQ:
            shared = raised(shared, word, at)
        line = memory[word] + ((value, message),)
        return (memory[:word] + (line,) + memory[word + 1:], shared,
                views[:who] + (mine,) + views[who + 1:])

    @staticmethod
    def exchange(state, who, word, value):
        """Sequentially consistent; reads the last write."""
        memory, shared, views = state
        mine = join(raised(views[who], word, len(memory[word]) - 1), memory[word][-1][1])
        mine = raised(mine, word, shared[word])
        return Machine.store((memory, shared, views[:who] + (mine,) + views[who + 1:]), who, word,
                             value, SEQ)

    @staticmethod
    def fence(state, who):
        memory, shared, views = state
        both = join(shared, views[who])
        return memory, both, views[:who] + (both,) + views[who + 1:]


def reader(state, pc, reg, rules):
    """One step of kvp_find(), kvp_lease_take(), kvp_revalidate(), reading, kvp_lease_drop()."""
    cw, aw, ap, seen = reg
    load, gone = Machine.load, -1
    if pc in (0, 1):  # the words of both, LIVE
        for value, then in load(state, 0, (CW, AW)[pc], ACQUIRE):
            new = (value, aw, ap, seen) if pc == 0 else (cw, value, ap, seen)
            yield then, pc + 1 if value[0] == "L" else gone, new
    elif pc == 2:
        for value, then in load(state, 0, AP, ACQUIRE):
            yield then, 3, (cw, aw, value, seen)
    elif pc == 3:  # unchanged: word and place belong together
        for value, then in load(state, 0, AW, RELAXED):
            yield then, 4 if value == aw else gone, reg
    elif pc == 4 and rules["bit"] == "late":
        yield state, 11, reg
    elif pc == 4:
        for value, then in load(state, 0, BIT, SEQ):
            yield then, 11 if value else 10, reg
    elif pc == 10:
        yield Machine.store(state, 0, BIT, 1, rules["bit"]), 11, reg
    elif pc == 11:
        yield Machine.exchange(state, 0, SLOT, 1), 5, reg
    elif pc == 5:
        for value, then in load(state, 0, CW, rules["tip"]):
            yield then, 6 if value == cw else 9, reg
    elif pc == 6:
        for value, then in load(state, 0, AW, rules["ancestors"]):
            yield then, 9 if value != aw else 12 if rules["bit"] == "late" else 7, reg
    elif pc == 12:
        yield Machine.store(state, 0, BIT, 1, SEQ), 7, reg
    elif pc in (7, 8):
        for value, then in load(state, 0, (B0, B1)[ap] if pc == 7 else BC, RELAXED):
            yield then, pc + 1, (cw, aw, ap, seen + (value,))
    elif pc == 9:
        yield Machine.store(state, 0, SLOT, 0, ACQUIRE), gone, reg


def ledger(state, pc, reg, rules, plan):
    """One step: mark, fence, scan, then take or put back; what is free is overwritten at once."""
    step, part = divmod(pc, 10)
    if step >= len(plan):
        return
    act, over = plan[step], (step + 1) * 10
    word = CW if act == "evict C" else AW
    mine, held = reg
    load, store = Machine.load, Machine.store
    if part == 0:
        now = state[0][word][-1][0]  # its own words
        if now[0] != "L" or (act == "evict A" and state[0][CW][-1][0][0] == "L"):
            yield state, over, reg  # gone before, or it has a child
        else:
            yield store(state, 1, word, ("E", now[1]), SEQ), pc + 1, (now, 0)
    elif part == 1:
        yield Machine.fence(state, 1) if rules["fence"] else state, pc + 1, reg
    elif part == 2:
        for value, then in load(state, 1, BIT, SEQ if rules["fence"] else ACQUIRE):
            yield then, pc + 4 if value else pc + 1, (mine, 0)
    elif part == 6:
        for value, then in load(state, 1, SLOT, SEQ if rules["fence"] else ACQUIRE):
            # Evicting goes by the tip that a slot names, moving by its chain too.
            yield then, pc - 3, (mine, value if act != "evict A" else 0)
    elif part == 3 and held:
        yield store(state, 1, word, mine, ACQUIRE), over, reg
    elif part == 3 and act == "move A":
        old = state[0][AP][-1][0]
        then = store(state, 1, (B1, B0)[old], "A", RELAXED)
        yield store(then, 1, AP, 1 - old, ACQUIRE), pc + 1, reg
    elif part in (3, 4):
        yield (store(state, 1, word, ("L" if act == "move A" else "R", mine[1] + 1), ACQUIRE), 10 * step + 5,
               reg)
    elif part == 5:
        place = {"evict C": BC, "evict A": (B0, B1)[state[0][AP][-1][0]],
                 "move A": (B1, B0)[state[0][AP][-1][0]]}[act]
        yield store(state, 1, place, "X", RELAXED), over, reg


PLANS = (("move A",), ("evict C",), ("move A", "evict C"), ("evict C", "move A"),
         ("evict C", "evict A"), ("move A", "evict C", "evict A"))


def explore(**rules):
    """States seen and, if a leased reader met bytes that are not the block's, the first such plan."""
    states = 0
    for plan in PLANS:
        memory = tuple(((value, BOTTOM),) for value in INIT)
        todo = [((memory, BOTTOM, (BOTTOM, BOTTOM)), 0, (None, None, 0, ()), 0, (None, 0))]
        seen = set()
        while todo:
            here = todo.pop()
            if here in seen:
                continue
            seen.add(here)
            state, rp, rr, lp, lr = here
            if rp == 9 and rr[3] and rr[3] != ("A", "C"):
                return states + len(seen), plan
            if rp >= 0:
                todo += [(s, p, r, lp, lr) for s, p, r in reader(state, rp, rr, rules)]
            todo += [(s, rp, rr, p, r) for s, p, r in ledger(state, lp, lr, rules, plan)]
        states += len(seen)
    return states, None


def main():
    bad = 0
    for name, holds, rules in (
            ("as it is", True, {}),
            ("ancestors looked at with acquire loads", False, {"ancestors": ACQUIRE}),
            ("the tip looked at with an acquire load", False, {"tip": ACQUIRE}),
            ("the line's bit set by a relaxed store", False, {"bit": RELAXED}),
            ("the line's bit set after the slot", False, {"bit": "late"}),
            ("neither a fence nor a sequentially consistent scan", False, {"fence": False})):
        states, plan = explore(**{"tip": SEQ, "ancestors": SEQ, "bit": SEQ, "fence": True, **rules})
        print("%s: %d states, %s" % (name, states, "wrong bytes in " + ", ".join(plan) if plan
                                     else "no wrong bytes"))
        bad |= holds != (plan is None)
    sys.exit(bad)


if __name__ == "__main__":
    main()
