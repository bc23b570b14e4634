/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verb `blocks`: all blocks are walked once, and those that come first in the order that is asked
 * for are kept. Each is as it was when the walk came by. There may be many: memory for them is
 * touched, they are put in order, and they are written out, a portion at a time.
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
#define TOUCH_BYTES   (256u << 10) /* of one portion of the control thread */
#define SORT_ROWS     64u

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
	uint32_t heap; /* so many rows of the n are a heap, the one that goes next first */
	size_t touched;
	char name[KVPD_MAX_TENANTS + 1][KVPD_TENANT_NAME];
	struct row row[]; /* limit */
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

	while ((child = 2 * at + 1) < l->heap) {
		if (child + 1 < l->heap && order(&l->row[child + 1], &l->row[child]) > 0)
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
		rise(l, l->heap++);
	} else if (l->n && order(row, &l->row[0]) < 0) {
		l->row[0] = *row;
		sink(l);
	}
}

/* The one that goes next is the last of those that are not yet in their places. */
static int arrange(struct kvpd_request *q)
{
	struct listing *l = q->own;

	for (uint32_t k = 0; k < SORT_ROWS && l->heap; k++) {
		exchange(&l->row[0], &l->row[--l->heap]);
		sink(l);
	}
	return l->heap ? -EINPROGRESS : 0;
}

/* ---- the verb ------------------------------------------------------------------------------- */

static int begin(struct kvpd_request *q)
{
	const char *by = kvpd_request_text(q, "sort");
	uint64_t limit = kvpd_request_int(q, "limit", LIMIT_DEFAULT);
	struct listing *l;

	limit = limit < LIMIT_MAX ? limit : LIMIT_MAX;
	l = malloc(sizeof(*l) + limit * sizeof(l->row[0]));
	if (!l)
		return kvpd_request_fail(
			q, -ENOMEM, "no memory for a list of %u blocks", (unsigned)limit);
	*l = (struct listing){ .limit = (uint32_t)limit };
	q->own = l;
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

/* Here, so that no portion of the ledger's spends its time on new pages. */
static int prepare(struct kvpd_request *q)
{
	struct listing *l = q->own;
	int r = l ? 0 : begin(q);
	size_t left;

	if (r < 0)
		return r;
	l = q->own;
	left = l->limit * sizeof(l->row[0]) - l->touched;
	left = left < TOUCH_BYTES ? left : TOUCH_BYTES;
	memset((char *)l->row + l->touched, 0, left);
	l->touched += left;
	return l->touched < l->limit * sizeof(l->row[0]) ? -EINPROGRESS : 0;
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

static json_t *row_json(const void *found, uint32_t row)
{
	const struct listing *l = found;
	const struct kvpd_facts *f = &l->row[row].facts;

	return kvpd_facts_json(f, l->name[f->tenant]);
}

static int finish(struct kvpd_request *q, int result)
{
	struct listing *l = q->own;

	if (result < 0) {
		free(l);
		return result;
	}
	kvpd_put_int(q->answer, "total", l->total);
	q->rows = (struct kvpd_rows){ "blocks", l->n, row_json, l };
	return 0;
}

const struct kvpd_verb kvpd_verb_blocks = {
	.name = "blocks",
	.prepare = prepare,
	.step = step,
	.arrange = arrange,
	.finish = finish,
};
