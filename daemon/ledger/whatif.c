/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "what-if": what tenants would hit with another share, or with blocks of another floor, by their curves
 * (curve.h). Curves are worked out by the advisor's thread, for which nobody waits here: the first
 * request asks for them and is told a number, and a later one with that number gets what there is by then.
 *
 * All that a share is for is taken to grow with it: the part of it that is metadata, and `max_blocks`. So
 * the row of the share as it is says what the daemon itself counts on (kvpd_space_capacity()).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/ledger/admin.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/curve.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/touch.h"
#include "kernels/kvp_codec.h"
#include "payload/kvp_payload.h"

#define MEMORY_MAX (UINT64_C(1) << 50)
#define POINTS     5u /* rows of a tenant at most */
#define OWN_FLOORS UINT32_MAX

/* Without a size: these quarters of the share. */
static const uint32_t quarters[POINTS] = { 1, 2, 4, 8, 16 };

struct row {
	char tenant[KVPD_TENANT_NAME];
	uint64_t memory, share;
	bool is_share;
	uint64_t blocks, tokens;
	double bytes_per_block;
	uint32_t spaces, exact; /* exact: whose blocks stay as they are */
	double hit_ratio;
	bool beyond;
	uint64_t requests, references, lost;
	double followed;
};

/* Means over the blocks that there are now; over the spaces if there are no blocks. */
struct mean {
	uint64_t n, bytes, tokens;
};

struct asked {
	/* of the request */
	uint64_t memory; /* 0: none given */
	uint32_t floor[2];
	uint64_t number; /* that it goes by; 0: it is the first, */
	uint64_t given;  /* and gets this one */
	/* of the tenant that the walk is at */
	struct mean of_blocks, of_spaces;
	uint32_t spaces, exact;
	/* of all */
	uint32_t waiting;
	uint32_t n;
	struct kvp_block_layout layout; /* large */
	struct row row[];
};

static int begin(struct kvpd_request *q)
{
	const json_t *memory = json_object_get(q->json, "memory");
	const char *floor = kvpd_request_text(q, "floor");
	struct asked *a = malloc(sizeof(*a) + KVPD_MAX_TENANTS * POINTS * sizeof(a->row[0]));

	if (!a)
		return kvpd_request_fail(q, -ENOMEM, "no memory for the answer");
	*a = (struct asked){ .floor = { OWN_FLOORS } };
	q->own = a;
	a->memory = kvpd_request_int(q, "memory", 0);
	a->number = kvpd_request_int(q, "asked", 0);
	if (memory && (!a->memory || a->memory > MEMORY_MAX))
		return kvpd_request_fail(
			q, -EINVAL, "memory is a number of bytes from 1 to 2^50: a tenant's share");
	if (!floor && json_object_get(q->json, "floor"))
		return kvpd_request_fail(q, -EINVAL, "floor is the name of a codec, such as tq4");
	if (floor && kvp_codec_parse_pair(floor, &a->floor[0], &a->floor[1]) < 0)
		return kvpd_request_fail(q, -EINVAL,
			"there is no codec '%.40s'; native, int8, tq4, 4bit or tq4/tq2 are some, "
			"docs/formats.md has all",
			floor);
	return 0;
}

static int prepare(struct kvpd_request *q)
{
	return q->own ? 0 : begin(q);
}

/* ---- one tenant ----------------------------------------------------------------------------- */

/* Bytes of a block of the space under the floor; *ret_exact: it stays as the engine writes it. */
static uint64_t block_bytes(
	const struct kvpd_tenant *t, uint32_t space, struct asked *a, bool *ret_exact)
{
	const struct kvp_shm_space *s = &t->view.spaces[space];
	uint32_t own = kvpd_width_lowest(t, space);

	*ret_exact = false;
	if (a->floor[0] == OWN_FLOORS) {
		*ret_exact = !own;
		return kvpd_slot_bytes(kvpd_width_bytes(t, space, own));
	}
	if (kvp_block_layout(&s->canon, kvp_payload_floor(a->floor[0]),
		    kvp_payload_floor(a->floor[1]), &a->layout) == 0 &&
		a->layout.bytes < s->block_bytes)
		return kvpd_slot_bytes(a->layout.bytes);
	*ret_exact = true;
	return kvpd_slot_bytes(s->block_bytes);
}

static void add_space(const struct kvpd_tenant *t, uint32_t space, struct asked *a)
{
	const struct kvp_shm_space *s = &t->view.spaces[space];
	uint64_t n = t->space[space].payloads, bytes;
	bool exact;

	if (kvp_load_relaxed(&s->state) != KVP_SPACE_LIVE)
		return;
	bytes = block_bytes(t, space, a, &exact);
	a->spaces++;
	a->exact += exact;
	a->of_spaces.n++;
	a->of_spaces.bytes += bytes;
	a->of_spaces.tokens += s->canon.block_tokens;
	a->of_blocks.n += n;
	a->of_blocks.bytes += n * bytes;
	a->of_blocks.tokens += n * s->canon.block_tokens;
}

static void add_row(const struct kvpd_tenant *t, const struct kvpd_curve_points *p, uint64_t memory,
	struct asked *a)
{
	const struct mean *m = a->of_blocks.n ? &a->of_blocks : &a->of_spaces;
	double times = (double)memory / (double)t->limits.share; /* all grows by that */
	double most = times * t->limits.max_blocks, n = 0;
	struct row *row = &a->row[a->n++];

	*row = (struct row){
		.memory = memory,
		.share = t->limits.share,
		.is_share = memory == t->limits.share,
		.spaces = a->spaces,
		.exact = a->exact,
		.requests = p->requests,
		.references = p->references,
		.lost = kvpd_curve_lost(t->curve),
		.followed = p->followed,
	};
	snprintf(row->tenant, sizeof(row->tenant), "%s", t->name);
	if (m->n) {
		row->bytes_per_block = (double)m->bytes / (double)m->n;
		n = times * (double)(t->limits.share - t->meta_bytes) / row->bytes_per_block;
	}
	row->blocks = (uint64_t)(n < most ? n : most);
	if (m->n)
		row->tokens = (uint64_t)((double)row->blocks * (double)m->tokens / (double)m->n);
	row->hit_ratio = kvpd_curve_ratio(p, row->blocks);
	row->beyond = row->blocks > p->reach;
}

static void end_tenant(struct kvpd_tenant *t, struct asked *a)
{
	const struct kvpd_curve_points *p = kvpd_curve_read(t->curve);

	if (p->number < a->number) {
		kvpd_curve_want(t->curve, a->number); /* it came since they were asked */
		a->waiting++;
		return;
	}
	if (a->memory) {
		add_row(t, p, a->memory, a);
		return;
	}
	for (uint32_t i = 0; i < POINTS; i++)
		add_row(t, p, t->limits.share / 4 * quarters[i], a);
}

/* ---- the verb ------------------------------------------------------------------------------- */

/* The first request. What clients have looked up and the ledger has not seen yet belongs to it, too. */
static int ask_all(struct kvpd_request *q, struct asked *a)
{
	struct kvpd_tenant *t;

	if (!a->given)
		a->given = ++q->l->curves;
	for (; (t = kvpd_request_tenant(q)); q->tenant++) {
		if (kvpd_request_over(q))
			return -EINPROGRESS;
		kvpd_touch_all(t, q->l->now_ns);
		kvpd_curve_want(t->curve, a->given);
	}
	return 0;
}

static int step(struct kvpd_request *q)
{
	struct asked *a = q->own;
	struct kvpd_tenant *t;

	if (!a->number)
		return ask_all(q, a);
	for (; (t = kvpd_request_tenant(q)); q->tenant++, q->at = 0) {
		if (!q->at) {
			a->of_blocks = a->of_spaces = (struct mean){ 0 };
			a->spaces = a->exact = 0;
		}
		for (; q->at < KVP_MAX_SPACES; q->at++) {
			if (kvpd_request_over(q))
				return -EINPROGRESS;
			add_space(t, q->at, a);
		}
		end_tenant(t, a);
	}
	return 0;
}

static json_t *row_json(const void *found, uint32_t i)
{
	const struct asked *a = found;
	const struct row *r = &a->row[i];
	json_t *o = json_object();

	kvpd_put_text(o, "tenant", r->tenant);
	kvpd_put_int(o, "memory_bytes", r->memory);
	kvpd_put_int(o, "share_bytes", r->share);
	kvpd_put_bool(o, "is_share", r->is_share);
	kvpd_put_int(o, "blocks", r->blocks);
	kvpd_put_int(o, "tokens", r->tokens);
	json_object_set_new(o, "bytes_per_block", json_real(r->bytes_per_block));
	kvpd_put_int(o, "spaces", r->spaces);
	kvpd_put_int(o, "exact_spaces", r->exact);
	json_object_set_new(o, "hit_ratio", r->references ? json_real(r->hit_ratio) : json_null());
	kvpd_put_bool(o, "beyond", r->beyond);
	kvpd_put_int(o, "requests_total", r->requests);
	kvpd_put_int(o, "references_total", r->references);
	kvpd_put_int(o, "lost_total", r->lost);
	json_object_set_new(o, "followed", json_real(r->followed));
	return o;
}

static int finish(struct kvpd_request *q, int result)
{
	struct asked *a = q->own;

	if (result == 0 && !a->number)
		kvpd_put_int(q->answer, "asked", a->given);
	else if (result == 0)
		kvpd_put_int(q->answer, "waiting", a->waiting);
	if (result < 0 || !a->number || a->waiting)
		free(a);
	else
		q->rows = (struct kvpd_rows){ "what-if", a->n, row_json, a };
	return result;
}

const struct kvpd_verb kvpd_verb_what_if = {
	.name = "what-if",
	.prepare = prepare,
	.step = step,
	.finish = finish,
};
