/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of arenas, made ahead. */
#include "daemon/ledger/stock.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/pool.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/worker.h"
#include "shm/kvp_seg.h"

#define MOST         (16 * KVPD_STOCK_SEGMENT) /* what one session takes out of it at most, see grow.c */
#define PART         8u                        /* of `memory` it is at most */
#define NO_MEMORY_NS (1000 * KVPD_MS)

struct segment {
	struct kvpd_job job;
	struct kvpd_list link;
	struct kvpd_ledger *ledger;
	struct kvpd_pool_ahead memory;
	int result;
};

void kvpd_stock_init(struct kvpd_ledger *l)
{
	kvpd_list_init(&l->stock.there);
}

void kvpd_stock_run(struct kvpd_ledger *l, bool on)
{
	l->stock.on = on;
	kvpd_stock_look(l);
}

bool kvpd_stock_has(const struct kvpd_ledger *l)
{
	return !kvpd_list_empty(&l->stock.there);
}

static struct segment *take_first(struct kvpd_ledger *l)
{
	struct segment *s = kvpd_container(l->stock.there.next, struct segment, link);

	kvpd_list_remove(&s->link);
	return s;
}

bool kvpd_stock_take(struct kvpd_extent *x)
{
	struct kvpd_ledger *l = x->tenant->ledger;
	struct segment *s;

	/* That there is memory again nothing else says. It comes too late for this one. */
	if (!kvpd_stock_has(l))
		kvpd_stock_look(l);
	if (!kvpd_stock_has(l) || x->bytes != KVPD_STOCK_SEGMENT)
		return false;
	s = take_first(l);
	x->fd = s->memory.fd;
	x->addr = s->memory.addr;
	free(s);
	l->stock.bytes -= KVPD_STOCK_SEGMENT;
	kvpd_stock_look(l);
	return true;
}

/* ---- how much ------------------------------------------------------------------------------- */

/* What tenants may take, and what one whose share was lowered has beyond it until that is given back. */
static uint64_t spoken_for(const struct kvpd_ledger *l)
{
	uint64_t bytes = l->shares;

	for (uint32_t i = 0; i < KVPD_NOBODY; i++) {
		const struct kvpd_tenant *t = l->tenant[i];

		if (t && t->charged > t->limits.share)
			bytes += t->charged - t->limits.share;
	}
	return bytes;
}

/* What there may be now. */
static uint64_t target(const struct kvpd_ledger *l, uint64_t now)
{
	uint64_t most = l->memory / PART < MOST ? l->memory / PART : MOST;
	uint64_t taken = spoken_for(l), left = l->memory > taken ? l->memory - taken : 0;

	return now < l->pressed_until_ns ? 0 : most < left ? most : left;
}

static void make(struct kvpd_ledger *l);
static void drop(struct kvpd_ledger *l);

void kvpd_stock_look(struct kvpd_ledger *l)
{
	struct kvpd_stock *k = &l->stock;
	uint64_t now = kvpd_now_ns(), most = target(l, now);

	if (!k->on)
		return;
	while (kvpd_stock_has(l) && k->bytes > most)
		drop(l);
	if (!k->making && now >= k->refused_ns && k->bytes + KVPD_STOCK_SEGMENT <= most)
		make(l);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static void run_make(struct kvpd_job *job)
{
	struct segment *s = kvpd_container(job, struct segment, job);

	s->result = kvpd_pool_ahead(s->ledger, s->ledger->numa_node, &s->memory);
}

static void go_on(struct segment *s)
{
	s->result = -ECANCELED; /* stays so if the thread is stopped before */
	kvpd_worker_submit(&s->ledger->pool, &s->job);
}

static void done_make(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct segment *s = kvpd_container(job, struct segment, job);

	kvpd_ledger_charge(l, NULL);
	if (s->result == -EAGAIN && l->stock.on) {
		go_on(s);
		return;
	}
	l->stock.making = false;
	if (s->result < 0) {
		kvpd_pool_ahead_drop(&s->memory);
		l->stock.refused_ns = kvpd_now_ns() + NO_MEMORY_NS;
		l->stock.bytes -= KVPD_STOCK_SEGMENT;
		free(s);
		return;
	}
	kvpd_list_append(&l->stock.there, &s->link);
	kvpd_stock_look(l);
}

static void make(struct kvpd_ledger *l)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return;
	s->ledger = l;
	s->memory = (struct kvpd_pool_ahead){ .fd = -1, .bytes = KVPD_STOCK_SEGMENT };
	s->job.tenant = KVPD_NOBODY;
	s->job.run = run_make;
	s->job.done = done_make;
	l->stock.making = true;
	l->stock.bytes += KVPD_STOCK_SEGMENT;
	go_on(s);
}

static void run_drop(struct kvpd_job *job)
{
	struct segment *s = kvpd_container(job, struct segment, job);

	kvpd_pool_ahead_drop(&s->memory);
}

static void done_drop(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct segment *s = kvpd_container(job, struct segment, job);

	kvpd_ledger_charge(l, NULL);
	kvpd_pool_ahead_drop(&s->memory); /* the thread was stopped before */
	free(s);
}

/* It counts no more: its memory comes back within moments. */
static void drop(struct kvpd_ledger *l)
{
	struct segment *s = take_first(l);

	s->job.run = run_drop;
	s->job.done = done_drop;
	l->stock.bytes -= KVPD_STOCK_SEGMENT;
	kvpd_worker_submit(&l->dropper, &s->job);
}

void kvpd_stock_free_all(struct kvpd_ledger *l)
{
	while (kvpd_stock_has(l)) {
		struct segment *s = take_first(l);

		kvpd_pool_ahead_drop(&s->memory);
		free(s);
	}
}
