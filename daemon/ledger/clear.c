/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs evict and drain. What stays is counted afterwards, by what keeps it: a walk over all
 * blocks, each as it is when the walk comes by.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/clock.h"
#include "daemon/ledger/admin.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/find.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/recipe.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"

#define VAIN 64u /* where more than so many portions are protected, that is all */

/* In how many ways a block is kept; the first four can be reasons of one block together. */
enum { LEASED, GRANTED, PINNED, MOVING, PARENT, REASONS };

static const char *const reason_names[REASONS] = { "leased", "granted", "pinned", "being moved",
	"parents" };

struct clearing {
	enum { EVICTING, FORGETTING, LOOKING, COUNTING } phase; /* of this tenant */
	bool drain;
	uint64_t want;
	uint64_t gone, forgotten, left;
	uint64_t most_gone, most_forgotten; /* with all that this tenant had at first */
	bool begun;                         /* this tenant */
	uint32_t vain;                      /* portions without a victim in a row */
	uint32_t look;
	bool counted; /* what keeps the rest: of all tenants so far */
	uint64_t kept[REASONS];
};

static int prepare(struct kvpd_request *q)
{
	struct clearing *c = q->own;

	if (c)
		return 0;
	q->own = c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->want = kvpd_request_flag(q, "all") ? UINT64_MAX : kvpd_request_int(q, "count", 0);
	return 0;
}

/* ---- what keeps a block --------------------------------------------------------------------- */

/* As of the last look at the leases. */
static void reasons_of(const struct kvpd_tenant *t, uint32_t id, bool ret[REASONS])
{
	const unsigned why = kvpd_block_kept(t, id);
	struct kvp_evict_info info;

	ret[LEASED] = kvpd_leased(t, KVPD_LOOK_TIPS, id);
	ret[GRANTED] = why & KVPD_KEPT_GRANTED;
	ret[PINNED] = why & KVPD_KEPT_PINNED;
	ret[MOVING] = why & KVPD_KEPT_MOVING;
	ret[PARENT] = kvp_evict_peek(t->evict, id, &info) == 0 && info.children;
}

/* "leased and pinned", in words and as a list: what an administrator can do something about. */
static int fail_kept(struct kvpd_request *q, const struct kvpd_tenant *t, uint32_t id)
{
	bool is[REASONS];
	char text[64] = "";
	json_t *list = json_array();

	reasons_of(t, id, is);
	for (size_t i = 0; i < PARENT; i++) {
		size_t used = strlen(text);

		if (!is[i])
			continue;
		snprintf(text + used, sizeof(text) - used, "%s%s", used ? " and " : "",
			reason_names[i]);
		json_array_append_new(list, json_string(reason_names[i]));
	}
	json_object_set_new(q->answer, "kept_by", list);
	return kvpd_request_fail(
		q, -EBUSY, "the block is %s", *text ? text : "in use for a moment; try again");
}

static int evict_key(struct kvpd_request *q)
{
	struct clearing *c = q->own;
	struct kvpd_tenant *t;
	uint32_t id;
	int r = kvpd_find_block(q, &t, &id);

	if (r < 0)
		return r;
	if (c->phase == LOOKING) {
		/* The last look may be old. */
		if (!kvpd_lease_look_reached(t, KVPD_LOOK_TIPS, c->look))
			return -EINPROGRESS;
		return fail_kept(q, t, id);
	}
	t->changes++;
	r = kvpd_block_drop(t, id, false, kvpd_now_ns());
	if (r == -EBUSY) {
		c->phase = LOOKING;
		c->look = kvpd_lease_look_from_now(t, KVPD_LOOK_TIPS);
		return -EINPROGRESS;
	}
	if (r == -ENOTEMPTY)
		return kvpd_request_fail(q, r, "the block has children; evict those first");
	kvpd_put_int(q->answer, "evicted", r == 0);
	return r;
}

/* ---- making room ---------------------------------------------------------------------------- */

/*
 * What is put meanwhile is not counted: clients that go on putting would keep the request going
 * here for as long as they please.
 */
static void begin_tenant(struct clearing *c, const struct kvpd_tenant *t)
{
	if (c->begun)
		return;
	c->begun = true;
	c->phase = EVICTING;
	c->vain = 0;
	c->most_gone = c->gone + t->n_blocks;
	c->most_forgotten = c->forgotten + t->n_blocks + t->n_recipes;
}

/* A portion. False: there is more to evict in this tenant. */
static bool evict_on(struct clearing *c, struct kvpd_tenant *t)
{
	uint64_t left = (c->want < c->most_gone ? c->want : c->most_gone) - c->gone;
	int n = 0;

	t->changes++;
	if (left)
		n = kvpd_evict_some(
			t, left < KVPD_EVICT_MAX ? (uint32_t)left : KVPD_EVICT_MAX, kvpd_now_ns());
	c->gone += n > 0 ? (uint64_t)n : 0;
	c->vain = n == -EAGAIN ? c->vain + 1 : 0;
	if (n && c->vain < VAIN)
		return false;
	kvpd_due(t, KVPD_DUE_EXTENTS);
	return true;
}

/* Likewise for recipes. */
static bool forget_on(struct kvpd_request *q, struct clearing *c, struct kvpd_tenant *t)
{
	t->changes++;
	for (uint32_t i = 1; c->forgotten < c->most_forgotten; i++, c->forgotten++) {
		if (i % KVPD_ADMIN_STRIDE == 0 && kvpd_request_over(q))
			return false;
		if (!kvpd_recipe_forget_oldest(t))
			break;
	}
	return true;
}

static bool count_on(struct kvpd_request *q, struct clearing *c, struct kvpd_tenant *t)
{
	for (; q->at < t->layout.max_blocks; q->at++) {
		bool is[REASONS];

		if (q->at % KVPD_ADMIN_STRIDE == 0 && kvpd_request_over(q))
			return false;
		if (!kvpd_block_lives(t, q->at))
			continue;
		reasons_of(t, q->at, is);
		for (uint32_t i = 0; i < REASONS; i++)
			c->kept[i] += is[i];
	}
	return true;
}

/* False: there is more to do in this tenant. */
static bool clear_tenant(struct kvpd_request *q, struct clearing *c, struct kvpd_tenant *t)
{
	begin_tenant(c, t);
	if (c->phase == EVICTING) {
		if (!evict_on(c, t))
			return false;
		c->phase = FORGETTING;
	}
	if (c->phase == FORGETTING) {
		if (c->drain && !forget_on(q, c, t))
			return false;
		c->left += t->n_blocks;
		if (!t->n_blocks || c->gone >= c->want)
			return true;
		c->phase = LOOKING;
		c->look = kvpd_lease_look_from_now(t, KVPD_LOOK_TIPS);
		return false;
	}
	if (c->phase == LOOKING) {
		if (!kvpd_lease_look_reached(t, KVPD_LOOK_TIPS, c->look))
			return false;
		c->phase = COUNTING;
		q->at = 0;
	}
	c->counted = true;
	return count_on(q, c, t);
}

static int clear_step(struct kvpd_request *q)
{
	struct clearing *c = q->own;
	uint32_t was = q->tenant;
	struct kvpd_tenant *t = kvpd_request_tenant(q);

	if (q->tenant != was)
		c->begun = false; /* that one has ended */
	if (!t)
		return 0;
	if (clear_tenant(q, c, t)) {
		q->tenant++;
		q->at = 0;
		c->begun = false;
	}
	return -EINPROGRESS;
}

static int evict_step(struct kvpd_request *q)
{
	struct clearing *c = q->own;

	if (kvpd_request_text(q, "key"))
		return evict_key(q);
	if (!c->want)
		return kvpd_request_fail(q, -EINVAL, "evict: give a key, a count, or all");
	return clear_step(q);
}

static int drain_step(struct kvpd_request *q)
{
	struct clearing *c = q->own;

	c->drain = true;
	c->want = UINT64_MAX;
	return clear_step(q);
}

static int finish(struct kvpd_request *q, int result)
{
	struct clearing *c = q->own;

	if (result == 0 && (c->drain || !kvpd_request_text(q, "key"))) {
		kvpd_put_int(q->answer, "evicted", c->gone);
		if (c->drain) {
			kvpd_put_int(q->answer, "forgotten", c->forgotten);
			kvpd_put_int(q->answer, "in_use", c->left);
		}
	}
	if (result == 0 && c->counted) {
		json_t *kept = json_object();

		for (uint32_t i = 0; i < REASONS; i++)
			kvpd_put_int(kept, reason_names[i], c->kept[i]);
		json_object_set_new(q->answer, "kept", kept);
	}
	free(c);
	return result;
}

const struct kvpd_verb kvpd_verb_evict = {
	.name = "evict",
	.prepare = prepare,
	.step = evict_step,
	.finish = finish,
};

const struct kvpd_verb kvpd_verb_drain = {
	.name = "drain",
	.prepare = prepare,
	.step = drain_step,
	.finish = finish,
};
