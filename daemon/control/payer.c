/* SPDX-License-Identifier: Apache-2.0 */
/* Payers: found by uid and door, sources that wait with them, whose turn it is. */
#include "daemon/control/payer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvpd_payers_init(struct kvpd_payers *p, uint32_t others)
{
	*p = (struct kvpd_payers){ .n_others = others };
	for (uint32_t i = 0; i < KVPD_PAYER_HEADS; i++)
		LIST_INIT(&p->by[i]);
	return kvpd_turns_reserve(&p->row, others);
}

void kvpd_payers_fini(struct kvpd_payers *p)
{
	kvpd_turns_fini(&p->row);
}

void kvpd_payer_init(struct kvpd_payer *payer, struct kvpd_turns *row)
{
	*payer = (struct kvpd_payer){ .row = row };
	TAILQ_INIT(&payer->ready);
	TAILQ_INIT(&payer->pending);
	TAILQ_INIT(&payer->flying);
	TAILQ_INIT(&payer->lost);
}

/* Uids of one user namespace follow each other. */
static uint32_t head_of(uid_t uid, const char *door)
{
	uint32_t h = (uint32_t)uid;

	for (; *door; door++)
		h = h * 31 + (unsigned char)*door;
	return h % KVPD_PAYER_HEADS;
}

struct kvpd_payer *kvpd_payer_get(struct kvpd_payers *p, uid_t uid, const char *door)
{
	uint32_t head = head_of(uid, door);
	struct kvpd_payer *payer;

	LIST_FOREACH(payer, &p->by[head], link)
	if (payer->uid == uid && !strcmp(payer->door, door))
		return kvpd_payer_ref(payer);
	if (kvpd_turns_reserve(&p->row, p->n + 1 + p->n_others) < 0)
		return NULL;
	payer = malloc(sizeof(*payer));
	if (!payer)
		return NULL;
	kvpd_payer_init(payer, &p->row);
	payer->uid = uid;
	snprintf(payer->door, sizeof(payer->door), "%s", door);
	payer->users = 1;
	p->n++;
	LIST_INSERT_HEAD(&p->by[head], payer, link);
	return payer;
}

struct kvpd_payer *kvpd_payer_ref(struct kvpd_payer *payer)
{
	payer->users++;
	return payer;
}

void kvpd_payer_put(struct kvpd_payers *p, struct kvpd_payer *payer)
{
	if (--payer->users)
		return;
	p->n--;
	LIST_REMOVE(payer, link);
	free(payer);
}

void kvpd_source_raise(struct kvpd_source *s, uint32_t events)
{
	struct kvpd_payer *payer = s->payer;

	s->events |= events;
	if (s->queued || s->dead)
		return;
	s->queued = true;
	TAILQ_INSERT_TAIL(&payer->ready, s, in_payer);
	kvpd_turns_join(payer->row, &payer->turn);
}

static void dequeue(struct kvpd_source *s)
{
	TAILQ_REMOVE(&s->payer->ready, s, in_payer);
	s->queued = false;
	s->events = 0;
}

void kvpd_source_end(struct kvpd_source *s)
{
	s->dead = true;
	if (!s->queued)
		return;
	dequeue(s);
	if (TAILQ_EMPTY(&s->payer->ready))
		kvpd_turns_leave(s->payer->row, &s->payer->turn);
}

bool kvpd_payers_step(struct kvpd_turns *row, uint64_t (*clock_ns)(void), uint64_t *now)
{
	struct kvpd_payer *payer = (struct kvpd_payer *)kvpd_turns_next(row);
	struct kvpd_source *s;
	uint64_t began = *now;
	uint32_t events;

	if (!payer)
		return false;
	/* It stays in the row: what the step itself makes ready comes after those who wait. */
	s = TAILQ_FIRST(&payer->ready);
	events = s->events;
	dequeue(s);
	s->ready(s, events);
	*now = clock_ns();
	kvpd_turns_charge(row, &payer->turn, *now - began);
	if (TAILQ_EMPTY(&payer->ready))
		kvpd_turns_leave(row, &payer->turn);
	return true;
}
