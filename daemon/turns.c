/* SPDX-License-Identifier: Apache-2.0 */
/* Fair turns by time: a binary heap by time used. */
#include "daemon/turns.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int kvpd_turns_reserve(struct kvpd_turns *t, uint32_t n)
{
	struct kvpd_turn **row;
	uint32_t room = t->room ? t->room : 8;

	if (n <= t->room)
		return 0;
	while (room < n)
		room *= 2;
	row = realloc(t->row, (room + 1) * sizeof(*row));
	if (!row)
		return -ENOMEM;
	t->row = row;
	t->room = room;
	return 0;
}

void kvpd_turns_fini(struct kvpd_turns *t)
{
	free(t->row);
	*t = (struct kvpd_turns){ 0 };
}

static bool before(const struct kvpd_turn *a, const struct kvpd_turn *b)
{
	return a->used_ns != b->used_ns ? a->used_ns < b->used_ns : a->joined > b->joined;
}

static void put(struct kvpd_turns *t, uint32_t at, struct kvpd_turn *turn)
{
	t->row[at] = turn;
	turn->at = at;
}

static void rise(struct kvpd_turns *t, uint32_t at)
{
	struct kvpd_turn *turn = t->row[at];

	for (; at > 1 && before(turn, t->row[at / 2]); at /= 2)
		put(t, at, t->row[at / 2]);
	put(t, at, turn);
}

static void sink(struct kvpd_turns *t, uint32_t at)
{
	struct kvpd_turn *turn = t->row[at];

	for (uint32_t child = at * 2; child <= t->n; child = at * 2) {
		if (child < t->n && before(t->row[child + 1], t->row[child]))
			child++;
		if (!before(t->row[child], turn))
			break;
		put(t, at, t->row[child]);
		at = child;
	}
	put(t, at, turn);
}

/* It never runs backwards: who joins while nobody is there starts where the last one ended. */
static void set_floor(struct kvpd_turns *t)
{
	if (t->n && t->row[1]->used_ns > t->floor_ns)
		t->floor_ns = t->row[1]->used_ns;
}

void kvpd_turns_join(struct kvpd_turns *t, struct kvpd_turn *turn)
{
	if (turn->at)
		return;
	assert(t->n < t->room);
	if (turn->used_ns < t->floor_ns)
		turn->used_ns = t->floor_ns;
	turn->joined = t->joins++;
	put(t, ++t->n, turn);
	rise(t, t->n);
	set_floor(t);
}

void kvpd_turns_leave(struct kvpd_turns *t, struct kvpd_turn *turn)
{
	uint32_t at = turn->at;
	struct kvpd_turn *last;

	if (!at)
		return;
	turn->at = 0;
	last = t->row[t->n--];
	if (last != turn) {
		put(t, at, last);
		rise(t, at);
		sink(t, last->at);
	}
	set_floor(t);
}

struct kvpd_turn *kvpd_turns_next(const struct kvpd_turns *t)
{
	return t->n ? t->row[1] : NULL;
}

void kvpd_turns_charge(struct kvpd_turns *t, struct kvpd_turn *turn, uint64_t ns)
{
	/* What it had while nobody else was there counts for nothing. */
	if (turn->used_ns < t->floor_ns)
		turn->used_ns = t->floor_ns;
	turn->used_ns += ns;
	if (turn->used_ns > t->floor_ns + KVPD_DEBT_MAX_NS)
		turn->used_ns = t->floor_ns + KVPD_DEBT_MAX_NS;
	if (!turn->at)
		return;
	sink(t, turn->at);
	set_floor(t);
}
