/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verb `blocks`: all blocks are walked once, and those that come first in the order that is asked
 * for are kept. Each is as it was when the walk came by.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/ledger/admin.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/facts.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/tenant.h"

#define LIMIT_DEFAULT 100u
#define LIMIT_MAX     100000u

struct row {
	uint64_t by;
	struct kvpd_facts facts;
};

struct listing {
	uint64_t (*by)(const struct kvpd_facts *f);
	const char *state; /* NULL: any */
	bool pinned;       /* these alone */
	uint64_t space;    /* UINT64_MAX: any */
	uint64_t total;    /* that are wanted */
	uint32_t limit, n;
	struct row *row; /* a heap, the one that goes next first; see order() */
	char name[KVPD_MAX_TENANTS + 1][KVPD_TENANT_NAME];
};

/* ---- orders --------------------------------------------------------------------------------- */

static uint64_t by_serial(const struct kvpd_facts *f)
{
	return f->serial;
}

static uint64_t by_hits(const struct kvpd_facts *f)
{
	return f->hits;
}

static uint64_t by_touched(const struct kvpd_facts *f)
{
	return f->touched_s;
}

static uint64_t by_depth(const struct kvpd_facts *f)
{
	return f->depth;
}

static uint64_t by_tokens(const struct kvpd_facts *f)
{
	return kvp_shape_tokens(f->shape);
}

static const struct {
	const char *name;
	uint64_t (*by)(const struct kvpd_facts *f);
} orders[] = {
	{ "serial", by_serial },
	{ "hits", by_hits },
	{ "touched", by_touched },
	{ "depth", by_depth },
	{ "tokens", by_tokens },
};

/* The largest first; of equals the one that the walk met first. */
static int order(const struct row *x, const struct row *y)
{
	if (x->by != y->by)
		return x->by < y->by ? 1 : -1;
	if (x->facts.tenant != y->facts.tenant)
		return x->facts.tenant < y->facts.tenant ? -1 : 1;
	return x->facts.block < y->facts.block ? -1 : x->facts.block > y->facts.block;
}

static int largest_first(const void *a, const void *b)
{
	return order(a, b);
}

/* ---- the rows that are kept ----------------------------------------------------------------- */

static void exchange(struct row *a, struct row *b)
{
	struct row t = *a;

	*a = *b;
	*b = t;
}

static void rise(struct listing *l, uint32_t at)
{
	for (; at && order(&l->row[at], &l->row[(at - 1) / 2]) > 0; at = (at - 1) / 2)
		exchange(&l->row[at], &l->row[(at - 1) / 2]);
}

static void sink(struct listing *l)
{
	uint32_t at = 0, child;

	while ((child = 2 * at + 1) < l->n) {
		if (child + 1 < l->n && order(&l->row[child + 1], &l->row[child]) > 0)
			child++;
		if (order(&l->row[child], &l->row[at]) <= 0)
			break;
		exchange(&l->row[child], &l->row[at]);
		at = child;
	}
}

static void keep(struct listing *l, const struct row *row)
{
	if (l->n < l->limit) {
		l->row[l->n++] = *row;
		rise(l, l->n - 1);
	} else if (l->n && order(row, &l->row[0]) < 0) {
		l->row[0] = *row;
		sink(l);
	}
}

/* ---- the verb ------------------------------------------------------------------------------- */

static int prepare(struct kvpd_request *q)
{
	const char *by = kvpd_request_text(q, "sort");
	uint64_t limit = kvpd_request_int(q, "limit", LIMIT_DEFAULT);
	struct listing *l = q->own;

	if (l)
		return 0;
	q->own = l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->limit = (uint32_t)(limit < LIMIT_MAX ? limit : LIMIT_MAX);
	/* Touched here, so that no portion spends its time on new pages. */
	l->row = malloc((l->limit + 1) * sizeof(*l->row));
	if (!l->row)
		return kvpd_request_fail(q, -ENOMEM, "no memory for a list of %u blocks", l->limit);
	memset(l->row, 0, (l->limit + 1) * sizeof(*l->row));
	l->state = kvpd_request_text(q, "state");
	l->pinned = kvpd_request_flag(q, "pinned");
	l->space = kvpd_request_int(q, "space", UINT64_MAX);
	for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++)
		if (!strcmp(by ? by : orders[0].name, orders[i].name))
			l->by = orders[i].by;
	if (!l->by)
		return kvpd_request_fail(q, -EINVAL,
			"cannot sort by '%s'; one of serial, hits, touched, depth, tokens", by);
	return 0;
}

static bool wanted(const struct listing *l, const struct kvpd_tenant *t, uint32_t id)
{
	const struct kvp_block *b = &t->view.blocks[id];
	uint32_t state = kvpd_block_state(t, id);

	return state != KVP_BLOCK_FREE &&
	       (!l->state || !strcmp(l->state, kvpd_state_name(state & 3))) &&
	       (!l->pinned || (kvp_load_relaxed(&b->flags) & KVP_BLOCK_F_PINNED)) &&
	       (l->space == UINT64_MAX || l->space == kvp_shape_space(kvp_load_relaxed(&b->shape)));
}

static int step(struct kvpd_request *q)
{
	struct listing *l = q->own;
	struct kvpd_tenant *t;

	for (; (t = kvpd_request_tenant(q)); q->tenant++, q->at = 0) {
		snprintf(l->name[t->id], sizeof(l->name[0]), "%s", t->name);
		for (; q->at < t->layout.max_blocks; q->at++) {
			struct row row;

			if (q->at % KVPD_ADMIN_STRIDE == 0 && kvpd_request_over(q))
				return -EINPROGRESS;
			if (!wanted(l, t, q->at))
				continue;
			l->total++;
			kvpd_facts_read(t, q->at, &row.facts);
			row.by = l->by(&row.facts);
			keep(l, &row);
		}
	}
	return 0;
}

static int finish(struct kvpd_request *q, int result)
{
	struct listing *l = q->own;
	json_t *list = json_array();

	if (result == 0) {
		qsort(l->row, l->n, sizeof(*l->row), largest_first);
		for (uint32_t i = 0; i < l->n; i++)
			json_array_append_new(list,
				kvpd_facts_json(&l->row[i].facts, l->name[l->row[i].facts.tenant]));
		kvpd_put_int(q->answer, "total", l->total);
		json_object_set(q->answer, "blocks", list);
	}
	json_decref(list);
	if (l)
		free(l->row);
	free(l);
	return result;
}

const struct kvpd_verb kvpd_verb_blocks = {
	.name = "blocks",
	.prepare = prepare,
	.step = step,
	.finish = finish,
};
