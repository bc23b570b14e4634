/* SPDX-License-Identifier: Apache-2.0 */
/* A table in lines of eight, which are all that is looked at for a key. */
#include "daemon/ledger/again.h"

#include <stdlib.h>

#define LINE  8u
#define TWICE 2u /* so often soon, and it is kept: */
#define PART  8u /* of the room, at most: an eighth; */

/* with a policy that remembers by itself, while a quarter of the room goes for others, and in that time so many */
#define BRIEF_TIME 4u
#define BRIEF_PART 32u

/* kvpd_again_entry.what: how often it came back soon, whether it is kept, and the rest bits of the key. */
#define TIMES 3u
#define KEPT  4u
#define TAG   UINT32_C(0xfffffff8)

struct entry {
	uint32_t what;
	uint32_t
		at; /* `gone` when it went, or came back, or was used, if it is kept; 0: the entry is free */
};

struct kvpd_again {
	uint32_t lines;
	uint32_t gone; /* so many went, and one; never 0 */
	bool brief;
	uint32_t room;        /* when something last came */
	uint32_t n_kept;      /* unless `brief` */
	uint32_t began;       /* `gone` when the present quarter of the room began to go: */
	uint32_t now, before; /* so many are kept since then, and of the quarter before it */
	struct entry *entry;
};

/* For as many as have gone while they would be back soon, and half as many, since the lines do not fill evenly. */
static uint32_t lines_for(uint32_t blocks)
{
	return (uint32_t)(((uint64_t)blocks + blocks / 2) / LINE) + 1;
}

uint64_t kvpd_again_bytes(uint32_t blocks)
{
	return sizeof(struct kvpd_again) +
	       (uint64_t)lines_for(blocks) * LINE * sizeof(struct entry);
}

struct kvpd_again *kvpd_again_new(uint32_t blocks, bool brief)
{
	struct kvpd_again *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->lines = lines_for(blocks);
	a->gone = 1;
	a->brief = brief;
	a->began = a->gone;
	a->entry = calloc((size_t)a->lines * LINE, sizeof(*a->entry));
	if (!a->entry) {
		free(a);
		return NULL;
	}
	return a;
}

void kvpd_again_free(struct kvpd_again *a)
{
	if (!a)
		return;
	free(a->entry);
	free(a);
}

static struct entry *line_of(const struct kvpd_again *a, struct kvp_key key)
{
	return a->entry + (size_t)((key.lo & UINT32_MAX) * a->lines >> 32) * LINE;
}

static uint32_t tag_of(struct kvp_key key)
{
	return (uint32_t)(key.hi >> 32) & TAG;
}

static struct entry *find(const struct kvpd_again *a, struct kvp_key key)
{
	struct entry *line = line_of(a, key);

	for (uint32_t i = 0; i < LINE; i++)
		if (line[i].at && (line[i].what & TAG) == tag_of(key))
			return &line[i];
	return NULL;
}

static uint32_t brief_time(const struct kvpd_again *a)
{
	return a->room / BRIEF_TIME + 1;
}

static bool is_kept(const struct kvpd_again *a, const struct entry *e)
{
	return e->what & KEPT && (!a->brief || a->gone - e->at < brief_time(a));
}

static void let_go(struct kvpd_again *a, struct entry *e)
{
	if (is_kept(a, e)) {
		uint32_t *n = a->gone - e->at <= a->gone - a->began ? &a->now : &a->before;

		n = a->brief ? n : &a->n_kept;
		*n -= *n > 0;
	}
	e->what &= ~KEPT;
}

/* A free entry, or that of what went longest ago of those that are not kept; NULL: all are. */
static struct entry *take(const struct kvpd_again *a, struct kvp_key key)
{
	struct entry *line = line_of(a, key), *oldest = NULL;

	for (uint32_t i = 0; i < LINE; i++) {
		if (!line[i].at)
			return &line[i];
		if (!is_kept(a, &line[i]) &&
			(!oldest || a->gone - line[i].at > a->gone - oldest->at))
			oldest = &line[i];
	}
	return oldest;
}

void kvpd_again_left(struct kvpd_again *a, struct kvp_key key)
{
	struct entry *e = find(a, key);

	if (e) {
		let_go(a, e);
	} else if ((e = take(a, key))) {
		let_go(a, e);
		e->what = tag_of(key);
	}
	a->gone += a->gone == UINT32_MAX ? 2 : 1;
	if (e)
		e->at = a->gone;
}

void kvpd_again_forget(struct kvpd_again *a, struct kvp_key key)
{
	struct entry *e = find(a, key);

	if (!e)
		return;
	let_go(a, e);
	e->at = 0;
}

/* What was kept for longer than that is kept no more, so nobody has to count it down. */
static bool brief_full(struct kvpd_again *a)
{
	const uint32_t time = brief_time(a), since = a->gone - a->began;
	const uint32_t most = a->room > BRIEF_PART ? a->room / BRIEF_PART : 1;

	if (since >= time) {
		a->before = since < 2 * time ? a->now : 0;
		a->now = 0;
		a->began = a->gone;
	}
	return a->before + a->now >= most;
}

static bool is_full(struct kvpd_again *a)
{
	return a->brief ? brief_full(a) : a->n_kept >= a->room / PART;
}

static void keep(struct kvpd_again *a, struct entry *e)
{
	if ((e->what & TIMES) < TWICE || e->what & KEPT || is_full(a))
		return;
	e->what |= KEPT;
	++*(a->brief ? &a->now : &a->n_kept);
}

bool kvpd_again_came(struct kvpd_again *a, struct kvp_key key, uint32_t room)
{
	struct entry *e = find(a, key);
	bool soon = e && a->gone - e->at < room;

	a->room = room;
	if (!e)
		return false;
	e->at = a->gone;
	e->what = soon ? e->what + ((e->what & TIMES) < TWICE) : e->what & ~TIMES;
	keep(a, e);
	return soon;
}

void kvpd_again_used(struct kvpd_again *a, struct kvp_key key, uint32_t room)
{
	struct entry *e = a->brief ? NULL : find(a, key);

	a->room = room;
	if (!e || (e->what & TIMES) < TWICE)
		return;
	e->at = a->gone;
	keep(a, e);
}

bool kvpd_again_kept(const struct kvpd_again *a, struct kvp_key key)
{
	const struct entry *e = find(a, key);

	return e && is_kept(a, e);
}

bool kvpd_again_spare(struct kvpd_again *a, struct kvp_key key)
{
	struct entry *e = find(a, key);
	bool kept = e && is_kept(a, e);

	if (e && !(kept && a->brief))
		let_go(a, e);
	return kept;
}
