/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants: each with its catalog, its share, its sessions; and what is due in one now and then. */
#include "daemon/ledger/tenant.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/ledger/advice.h"
#include "daemon/ledger/curve.h"
#include "daemon/ledger/lesson.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/limbo.h"
#include "daemon/ledger/tenant_limits.h"
#include "daemon/ledger/tip.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/pool.h"
#include "daemon/ledger/recipe.h"
#include "daemon/ledger/relief.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/space.h"
#include "daemon/ledger/stock.h"
#include "daemon/ledger/switch.h"
#include "daemon/ledger/wake.h"
#include "daemon/ledger/worker.h"
#include "daemon/log.h"
#include "daemon/turns.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_seg.h"

/* Tenants whose limits are set in one go: each may have recipes to forget, and a policy to resize. */
#define SETTINGS 2u

/* ---- making --------------------------------------------------------------------------------- */

struct kvpd_tenant *kvpd_tenant_find(struct kvpd_ledger *l, const char *name)
{
	for (uint32_t i = 1; i <= KVPD_MAX_TENANTS; i++)
		if (l->tenant[i] && !l->tenant[i]->abandoned && !strcmp(l->tenant[i]->name, name))
			return l->tenant[i];
	return NULL;
}

static int make_catalog(struct kvpd_tenant *t)
{
	const struct kvpd_ledger *l = t->ledger;
	kvp_autoclose int fd = -1;
	int r = kvpd_pool_segment(
		l, l->numa_node, "kvpool-catalog", t->layout.bytes, false, &fd, &t->catalog);

	if (r == 0)
		r = kvp_seg_seal(fd, KVP_SEALS_CATALOG);
	if (r == 0)
		r = kvp_seg_reopen_ro(fd, &t->catalog_fd);
	if (r == 0)
		kvp_catalog_init(t->catalog, &t->layout, l->epoch, t->id, &t->view);
	return r;
}

static int make_advice(struct kvpd_tenant *t, uint64_t *bytes)
{
	struct kvpd_advisor *v = &t->ledger->advisor;
	struct kvpd_advice_size size = kvpd_limits_advice(&t->limits, &t->layout, &v->config);
	int r;

	if (!v->config.on)
		return 0;
	r = kvpd_advice_new(&size, &t->advice);
	if (r < 0)
		return r;
	kvpd_advice_join(v, t->advice);
	*bytes += kvpd_advice_bytes(&size);
	return 0;
}

static int make_curve(struct kvpd_tenant *t, uint64_t *bytes)
{
	*bytes += kvpd_curve_bytes(t->limits.max_blocks);
	return kvpd_curve_new(&t->ledger->advisor, t->limits.max_blocks, t->salt.hi, &t->curve);
}

static int make_state(struct kvpd_tenant *t, const uint64_t device_share[KVP_MAX_DEVICES])
{
	struct kvp_evict_params params = {
		.size = sizeof(params),
		.items = t->limits.max_blocks,
		.max_ids = t->layout.max_blocks,
		.steps = KVPD_EVICT_STEPS,
		.seed = t->salt.lo,
	};
	struct kvp_evict_memory memory;
	int r = kvp_evict_new(t->ledger->policy, &params, &t->evict);

	if (r < 0)
		return r;
	t->block = calloc(t->layout.max_blocks, sizeof(*t->block));
	t->doomed = calloc(KVPD_DOOMED, sizeof(*t->doomed));
	if (!t->block || !t->doomed)
		return -ENOMEM;
	r = kvpd_runs_init(&t->ids, t->layout.max_blocks);
	if (r == 0)
		r = kvpd_runs_init(&t->cells, t->layout.recipe_cells);
	if (r < 0)
		return r;
	kvp_evict_memory(t->evict, &memory);
	r = kvpd_lesson_new(&t->ledger->advisor, t->evict, &memory.total, &t->lesson);
	if (r == 0)
		r = make_advice(t, &memory.total);
	if (r == 0)
		r = make_curve(t, &memory.total);
	if (r == 0)
		r = kvpd_parts_new(t, device_share, &memory.total);
	if (r < 0)
		return r;
	t->meta_bytes = kvpd_meta_bytes(&t->layout, memory.total);
	t->charged = t->meta_bytes;
	return 0;
}

bool kvpd_meta_charge(struct kvpd_tenant *t, uint64_t bytes)
{
	if (t->limits.share < t->meta_bytes + bytes + KVPD_LEAST_DATA)
		return false;
	t->meta_bytes += bytes;
	t->charged += bytes;
	t->over |= t->charged > kvpd_share_now(t);
	kvpd_due(t, KVPD_DUE_ROOM | KVPD_DUE_EXTENTS);
	return true;
}

void kvpd_meta_discharge(struct kvpd_tenant *t, uint64_t bytes)
{
	t->meta_bytes -= bytes;
	t->charged -= bytes;
}

bool kvpd_meta_fits(const struct kvpd_tenant *t)
{
	return t->charged <= kvpd_share_now(t);
}

void *kvpd_meta_of_blocks(struct kvpd_tenant *t, size_t each, uint64_t *charged)
{
	const uint64_t bytes = t->layout.max_blocks * (uint64_t)each;

	if (!*charged) {
		if (!kvpd_meta_charge(t, bytes))
			return NULL;
		*charged = bytes;
	}
	return kvpd_meta_fits(t) ? calloc(t->layout.max_blocks, each) : NULL;
}

/* What needs the ledger no more: unmapping and freeing take the kernel long. */
static void destroy(struct kvpd_tenant *t)
{
	kvpd_extent_free_all(t);
	kvp_seg_unmap(t->catalog, t->layout.bytes);
	if (t->catalog_fd >= 0)
		close(t->catalog_fd);
	kvp_evict_free(t->evict);
	kvpd_lesson_leave(t->lesson);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		kvpd_precision_leave(t, i);
	kvpd_importance_free(t);
	kvpd_tokens_free(t);
	kvpd_advice_leave(t->advice);
	kvpd_curve_leave(t->curve);
	kvpd_parts_free(t);
	kvpd_runs_fini(&t->ids);
	kvpd_runs_fini(&t->cells);
	kvpd_turns_fini(&t->row);
	free(t->block);
	free(t->doomed);
	free(t->name);
	free(t);
}

static int tenant_new(struct kvpd_ledger *l, uint32_t id, const char *name,
	const struct kvpd_limits *limits, const uint64_t device_share[KVP_MAX_DEVICES],
	struct kvpd_tenant **ret_tenant)
{
	struct kvpd_tenant *t = calloc(1, sizeof(*t));
	int r = -ENOMEM;

	if (!t)
		return r;
	t->ledger = l;
	t->born_ns = kvpd_now_ns();
	t->id = id;
	t->catalog_fd = -1;
	t->limits = kvpd_limits_settle(limits);
	t->capacity = t->limits.max_blocks;
	t->recipe_old = t->recipe_young = KVP_BLOCK_NONE;
	kvpd_list_init(&t->orphans);
	kvpd_list_init(&t->limbo);
	kvpd_list_init(&t->sessions);
	kvpd_list_init(&t->wanting);
	kvpd_list_init(&t->ready);
	kvpd_list_init(&t->tips);
	kvpd_list_init(&t->stalled);
	kvpd_list_init(&t->low);
	kvpd_list_init(&t->waking);
	kvpd_switch_init(t);
	kvpd_warm_init(t);
	kvpd_remat_init(t);
	t->touch_at = &t->sessions;
	/* What was never looked at carries a 0. */
	for (uint32_t i = 0; i < KVPD_LOOK_KINDS; i++)
		t->look[i].number = 1;
	t->name = strdup(name);
	if (!t->name)
		goto error;
	r = kvpd_turns_reserve(&t->row, 1); /* for the chores */
	if (r < 0)
		goto error;
	r = -EIO;
	if (getrandom(&t->salt, sizeof(t->salt), 0) != sizeof(t->salt))
		goto error;
	r = kvpd_limits_plan(&t->limits, &t->layout);
	if (r == 0)
		r = make_state(t, device_share);
	if (r == 0 && t->limits.share < t->meta_bytes + KVPD_LEAST_DATA) {
		kvpd_err("tenant %s: the catalog for %u blocks and %u recipes takes %" PRIu64
			 " KiB of the share's %" PRIu64 " KiB and leaves less than %" PRIu64
			 " KiB; raise `share` or lower `max_blocks`",
			name, t->limits.max_blocks, t->limits.recipe_blocks, t->meta_bytes >> 10,
			t->limits.share >> 10, KVPD_LEAST_DATA >> 10);
		r = -ENOSPC;
		goto error;
	}
	if (r == 0)
		r = make_catalog(t);
	if (r < 0) {
		kvpd_err("tenant %s: its catalog of %" PRIu64 " MiB could not be made: %s", name,
			t->layout.bytes >> 20, strerror(-r));
		goto error;
	}
	*ret_tenant = t;
	return 0;
error:
	destroy(t);
	return r;
}

/* ---- limits --------------------------------------------------------------------------------- */

static uint64_t least_share(const struct kvpd_tenant *t)
{
	uint64_t least = KVPD_LEAST_DATA;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		uint64_t slot = t->space[i].opens
					? kvpd_pool_round(t->ledger, t->space[i].cls->slot_bytes)
					: 0;

		least = slot > least ? slot : least;
	}
	return t->meta_bytes + least;
}

/* Limits that a catalog fixes stay as they are: it has so many descriptors and no more. */
static void set_limits(struct kvpd_tenant *t, const struct kvpd_limits *given)
{
	struct kvpd_ledger *l = t->ledger;
	struct kvpd_limits n = kvpd_limits_settle(given);
	uint64_t others = l->shares - t->limits.share;

	t->changes++;
	t->waits = n.share > l->memory - others;
	t->asked = *given;
	if (t->waits || n.share < least_share(t)) {
		kvpd_warning("tenant %s: keeps its share of %" PRIu64 " MiB, %s %" PRIu64 " MiB",
			t->name, t->limits.share >> 20,
			t->waits ? "until tenants that end have given up theirs, instead of"
				 : "its catalog or a block does not fit",
			n.share >> 20);
		n.share = t->limits.share;
	}
	l->shares = others + n.share;
	kvpd_stock_look(l);
	if (n.max_blocks > t->layout.max_blocks) {
		kvpd_notice("tenant %s: its catalog has room for %u blocks; more after a restart",
			t->name, t->layout.max_blocks);
		n.max_blocks = t->layout.max_blocks;
	}
	if (n.recipe_blocks > t->layout.max_blocks - n.max_blocks)
		n.recipe_blocks = t->layout.max_blocks - n.max_blocks;
	t->limits = n;
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (t->space[i].codes && !t->space[i].ruled)
			kvpd_budget_rule(t, i, &n.rule);
	kvpd_space_capacity(t);
	kvpd_recipe_trim(t);
	t->over = t->n_blocks > t->limits.max_blocks || t->charged > kvpd_share_now(t);
	kvpd_due(t, KVPD_DUE_ROOM | KVPD_DUE_EXTENTS);
}

/* Shares that a reload has raised, as far as what a tenant gave up is enough. */
static void pass_on(struct kvpd_ledger *l)
{
	for (uint32_t i = 1; i <= l->last_tenant; i++) {
		struct kvpd_tenant *t = l->tenant[i];

		if (t && t->waits && t->asked.share - t->limits.share <= l->memory - l->shares) {
			struct kvpd_limits asked = t->asked;

			set_limits(t, &asked);
		}
	}
}

/* ---- ending --------------------------------------------------------------------------------- */

struct destroy_job {
	struct kvpd_job job;
	struct kvpd_tenant *tenant;
};

static void run_destroy(struct kvpd_job *job)
{
	struct destroy_job *j = kvpd_container(job, struct destroy_job, job);

	destroy(j->tenant);
	j->tenant = NULL;
}

static void done_destroy(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct destroy_job *j = kvpd_container(job, struct destroy_job, job);

	(void)l;
	if (j->tenant) /* the thread was stopped before */
		destroy(j->tenant);
	free(j);
}

void kvpd_tenant_end_sessions(struct kvpd_tenant *t)
{
	while (!kvpd_list_empty(&t->sessions)) {
		struct kvpd_session *s =
			kvpd_container(t->sessions.next, struct kvpd_session, in_tenant);

		kvpd_session_end(s);
		kvpd_session_free(s);
	}
}

/* Takes it out of the ledger; it is of no more use to anybody. */
static void unlink_tenant(struct kvpd_tenant *t)
{
	struct kvpd_ledger *l = t->ledger;

	if (t->catalog && t->view.cat)
		kvpd_wake_all(t);
	kvpd_warm_free_all(t);
	kvpd_remat_free_all(t);
	kvpd_parts_leave(t);
	kvpd_switch_free_all(t);
	kvpd_limbo_free_all(t);
	kvpd_turns_leave(&l->row, &t->turn);
	if (l->tenant[t->id] == t) {
		l->tenant[t->id] = NULL;
		l->shares -= t->limits.share;
		kvpd_stock_look(l);
		for (uint32_t i = 0; i < l->n_media; i++)
			l->medium[i].promised -= t->part[i].share;
		pass_on(l);
	}
	if (l->payer == t)
		l->payer = NULL;
}

void kvpd_tenant_free(struct kvpd_tenant *t)
{
	struct destroy_job *j = calloc(1, sizeof(*j));
	struct kvpd_ledger *l = t->ledger;

	unlink_tenant(t);
	if (!j) {
		destroy(t);
		return;
	}
	j->tenant = t;
	j->job.tenant = t->id;
	j->job.run = run_destroy;
	j->job.done = done_destroy;
	kvpd_worker_submit(&l->dropper, &j->job);
}

bool kvpd_tenant_end(struct kvpd_tenant *t)
{
	if (!t->abandoned || t->n_sessions || t->n_jobs)
		return false;
	kvpd_learnt_flush(t);
	kvpd_tenant_free(t);
	return true;
}

/* ---- calls of the control thread ------------------------------------------------------------ */

struct tenant_call {
	const char *name;
	const struct kvpd_limits *limits;
	uint64_t device_share[KVP_MAX_DEVICES]; /* of each device, as far as it was not promised */
	uint32_t id;
};

static int find_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct tenant_call *c = arg;
	struct kvpd_tenant *t = kvpd_tenant_find(l, c->name);
	uint32_t id = 1;

	if (t) {
		c->id = t->id;
		return 1;
	}
	while (id <= KVPD_MAX_TENANTS && l->tenant[id])
		id++;
	if (id > KVPD_MAX_TENANTS)
		return -EUSERS;
	if (c->limits->share > l->memory - l->shares) {
		kvpd_err("tenant %s: its share of %" PRIu64 " MiB is more than the %" PRIu64
			 " MiB of `memory` that no other tenant has been promised",
			c->name, c->limits->share >> 20, (l->memory - l->shares) >> 20);
		return -ENOSPC;
	}
	for (uint32_t i = 0; i < l->n_media; i++) {
		const struct kvpd_medium *m = &l->medium[i];
		uint64_t asked = c->limits->device_share[i], left = m->bytes - m->promised;

		if (asked == KVPD_SHARE_DEFAULT)
			asked = m->share;
		c->device_share[i] = asked < left ? asked : left;
		if (asked > left)
			kvpd_notice("tenant %s: of device %s only %" PRIu64 " of %" PRIu64
				    " MiB were not promised to others",
				c->name, m->name, left >> 20, asked >> 20);
	}
	c->id = id;
	return 0;
}

static int enter_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct kvpd_tenant *t = arg;

	l->tenant[t->id] = t;
	t->number = ++l->tenants;
	if (t->id > l->last_tenant)
		l->last_tenant = t->id;
	l->shares += t->limits.share;
	kvpd_stock_look(l);
	for (uint32_t i = 0; i < l->n_media; i++)
		l->medium[i].promised += t->part[i].share;
	kvpd_parts_show(t);
	return 0;
}

/* Only the control thread makes tenants, so what the ledger found first is still so at the end. */
int kvpd_tenant_open(struct kvpd_ledger *ledger, const char *name, const struct kvpd_limits *limits,
	uint32_t *ret_tenant)
{
	struct tenant_call c = { .name = name, .limits = limits };
	struct kvpd_tenant *t;
	int r = kvpd_ledger_ask(ledger, find_on_ledger, &c);

	if (r < 0)
		return r;
	if (r == 0) {
		/* Its catalog takes a while to make: not on the ledger. */
		r = tenant_new(ledger, c.id, name, limits, c.device_share, &t);
		if (r < 0)
			return r;
		(void)kvpd_ledger_ask(ledger, enter_on_ledger, t);
	}
	*ret_tenant = c.id;
	return 0;
}

static int abandon_on_ledger(struct kvpd_ledger *l, void *arg)
{
	uint32_t id = *(uint32_t *)arg;
	struct kvpd_tenant *t = id <= KVPD_MAX_TENANTS ? l->tenant[id] : NULL;

	if (!t)
		return -ENOENT;
	t->abandoned = true;
	(void)kvpd_tenant_end(t);
	return 0;
}

int kvpd_tenant_abandon(struct kvpd_ledger *ledger, uint32_t tenant)
{
	return kvpd_ledger_ask(ledger, abandon_on_ledger, &tenant);
}

static const struct kvpd_limits *limits_of(const struct kvpd_config *c, const char *name)
{
	for (unsigned i = 0; i < c->n_tenants; i++)
		if (!strcmp(c->tenants[i].name, name))
			return &c->tenants[i].limits;
	return &c->defaults;
}

struct least_call {
	uint32_t tenant;
	uint64_t least;
};

static int least_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct least_call *c = arg;
	const struct kvpd_tenant *t = c->tenant <= KVPD_MAX_TENANTS ? l->tenant[c->tenant] : NULL;

	if (!t)
		return -ENOENT;
	c->least = least_share(t);
	return 0;
}

int kvpd_tenant_least(struct kvpd_ledger *ledger, uint32_t tenant, uint64_t *ret_least)
{
	struct least_call c = { .tenant = tenant };
	int r = kvpd_ledger_ask(ledger, least_on_ledger, &c);

	if (r == 0)
		*ret_least = c.least;
	return r;
}

struct reconfigure_call {
	const struct kvpd_config *config;
	uint32_t at; /* of two walks over all tenants */
	bool begun;
};

static int reconfigure_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct reconfigure_call *call = arg;
	const struct kvpd_config *c = call->config;
	uint32_t set = 0;

	if (!call->begun) {
		l->claim_ttl_ms = c->claim_ttl_ms;
		if (c->max_sessions && c->max_sessions <= KVPD_MAX_SESSIONS)
			l->max_sessions = c->max_sessions;
		if (c->memory >= l->shares)
			l->memory = c->memory;
		kvpd_stock_look(l);
		call->begun = true;
	}
	/* First those that give something up, for those that get more. */
	for (; call->at < 2 * KVPD_MAX_TENANTS; call->at++) {
		struct kvpd_tenant *t = l->tenant[1 + call->at % KVPD_MAX_TENANTS];
		const struct kvpd_limits *n;

		if (!t || t->abandoned)
			continue;
		n = limits_of(c, t->name);
		if ((n->share < t->limits.share) != (call->at < KVPD_MAX_TENANTS))
			continue;
		if (set++ == SETTINGS)
			return -EINPROGRESS;
		set_limits(t, n);
	}
	return 0;
}

int kvpd_reconfigure(struct kvpd_ledger *ledger, const struct kvpd_config *config)
{
	struct reconfigure_call call = { .config = config };
	int r;

	do
		r = kvpd_ledger_ask(ledger, reconfigure_on_ledger, &call);
	while (r == -EINPROGRESS);
	return r;
}
