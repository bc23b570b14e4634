/* SPDX-License-Identifier: Apache-2.0 */
/* A table in lines of eight, which are all that is looked at for a key. */
#include "daemon/ledger/again.h"

#include <stdlib.h>

#define LINE  8u
#define PART  8u /* of the room is kept, at most: an eighth */
#define TWICE 2u /* so often soon, and it is kept */

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
	uint32_t n_kept;
	bool keeps;
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

struct kvpd_again *kvpd_again_new(uint32_t blocks, bool keeps)
{
	struct kvpd_again *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->lines = lines_for(blocks);
	a->gone = 1;
	a->keeps = keeps;
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

static void let_go(struct kvpd_again *a, struct entry *e)
{
	a->n_kept -= (e->what & KEPT) != 0;
	e->what &= ~KEPT;
}

/* A free entry, or that of what went longest ago of those that are not kept; NULL: all are. */
static struct entry *take(const struct kvpd_again *a, struct kvp_key key)
{
	struct entry *line = line_of(a, key), *oldest = NULL;

	for (uint32_t i = 0; i < LINE; i++) {
		if (!line[i].at)
			return &line[i];
		if (!(line[i].what & KEPT) &&
			(!oldest || a->gone - line[i].at > a->gone - oldest->at))
			oldest = &line[i];
	}
	return oldest;
}

void kvpd_again_left(struct kvpd_again *a, struct kvp_key key)
{
	struct entry *e = find(a, key);

	if (e)
		let_go(a, e);
	else if ((e = take(a, key)))
		e->what = tag_of(key);
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

static void keep(struct kvpd_again *a, struct entry *e, uint32_t room)
{
	if (!a->keeps || (e->what & TIMES) < TWICE || e->what & KEPT || a->n_kept >= room / PART)
		return;
	e->what |= KEPT;
	a->n_kept++;
}

bool kvpd_again_came(struct kvpd_again *a, struct kvp_key key, uint32_t room)
{
	struct entry *e = find(a, key);
	bool soon = e && a->gone - e->at < room;

	if (!e)
		return false;
	e->at = a->gone;
	e->what = soon ? e->what + ((e->what & TIMES) < TWICE) : e->what & ~TIMES;
	keep(a, e, room);
	return soon;
}

void kvpd_again_used(struct kvpd_again *a, struct kvp_key key, uint32_t room)
{
	struct entry *e = find(a, key);

	if (!e || (e->what & TIMES) < TWICE)
		return;
	e->at = a->gone;
	keep(a, e, room);
}

bool kvpd_again_kept(const struct kvpd_again *a, struct kvp_key key)
{
	const struct entry *e = find(a, key);

	return e && e->what & KEPT;
}

bool kvpd_again_spare(struct kvpd_again *a, struct kvp_key key)
{
	struct entry *e = find(a, key);

	if (!e || !(e->what & KEPT))
		return false;
	let_go(a, e);
	return true;
}
