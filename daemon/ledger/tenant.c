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
#include "daemon/ledger/block.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/limbo.h"
#include "daemon/ledger/tenant_limits.h"
#include "daemon/ledger/tip.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/pool.h"
#include "daemon/ledger/recipe.h"
#include "daemon/ledger/relief.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/space.h"
#include "daemon/log.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"

#define STEP_NS KVPD_MS /* while somebody waits and nothing happens */

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
	int r = kvpd_pool_segment(l, "kvpool-catalog", t->layout.bytes, false, &fd, &t->catalog);

	if (r == 0)
		r = kvp_seg_seal(fd, KVP_SEALS_CATALOG);
	if (r == 0)
		r = kvp_seg_reopen_ro(fd, &t->catalog_fd);
	if (r == 0)
		kvp_catalog_init(t->catalog, &t->layout, l->epoch, t->id, &t->view);
	return r;
}

static int make_state(struct kvpd_tenant *t)
{
	struct kvp_evict_params params = {
		.size = sizeof(params),
		.items = t->limits.max_blocks,
		.max_ids = t->layout.max_blocks,
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
	t->meta_bytes = kvpd_meta_bytes(&t->layout, memory.total);
	t->charged = t->meta_bytes;
	return 0;
}

static int tenant_new(struct kvpd_ledger *l, uint32_t id, const char *name,
	const struct kvpd_limits *limits, struct kvpd_tenant **ret_tenant)
{
	struct kvpd_tenant *t = calloc(1, sizeof(*t));
	int r = -ENOMEM;

	if (!t)
		return r;
	t->ledger = l;
	t->id = id;
	t->catalog_fd = -1;
	t->limits = kvpd_limits_settle(limits);
	t->capacity = t->limits.max_blocks;
	t->recipe_old = t->recipe_young = KVP_BLOCK_NONE;
	kvpd_list_init(&t->orphans);
	kvpd_list_init(&t->limbo);
	kvpd_list_init(&t->sessions);
	kvpd_list_init(&t->wanting);
	t->name = strdup(name);
	if (!t->name)
		goto error;
	r = -EIO;
	if (getrandom(&t->salt, sizeof(t->salt), 0) != sizeof(t->salt))
		goto error;
	r = kvpd_limits_plan(&t->limits, &t->layout);
	if (r == 0)
		r = make_state(t);
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
	kvpd_tenant_free(t);
	return r;
}

/* ---- limits --------------------------------------------------------------------------------- */

/* After a limit was lowered: what is in use goes later. */
static void shrink(struct kvpd_tenant *t, uint64_t now)
{
	while (t->n_blocks > t->limits.max_blocks)
		if (!kvpd_evict_some(t, KVPD_EVICT_MAX, now))
			break;
	t->over = t->n_blocks > t->limits.max_blocks || t->charged > kvpd_share_now(t);
}

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
static void set_limits(struct kvpd_tenant *t, const struct kvpd_limits *given, uint64_t now)
{
	struct kvpd_ledger *l = t->ledger;
	struct kvpd_limits n = kvpd_limits_settle(given);
	uint64_t others = l->shares - t->limits.share;

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
	if (n.max_blocks > t->layout.max_blocks) {
		kvpd_notice("tenant %s: its catalog has room for %u blocks; more after a restart",
			t->name, t->layout.max_blocks);
		n.max_blocks = t->layout.max_blocks;
	}
	if (n.recipe_blocks > t->layout.max_blocks - n.max_blocks)
		n.recipe_blocks = t->layout.max_blocks - n.max_blocks;
	t->limits = n;
	kvpd_space_capacity(t);
	kvpd_recipe_trim(t);
	shrink(t, now);
	t->dirty = true;
}

/* Shares that a reload has raised, as far as what a tenant gave up is enough. */
static void pass_on(struct kvpd_ledger *l)
{
	for (uint32_t i = 1; i <= l->last_tenant; i++) {
		struct kvpd_tenant *t = l->tenant[i];

		if (t && t->waits && t->asked.share - t->limits.share <= l->memory - l->shares) {
			struct kvpd_limits asked = t->asked;

			set_limits(t, &asked, kvpd_now_ns());
		}
	}
}

/* ---- ending --------------------------------------------------------------------------------- */

struct kvpd_tenant *kvpd_tenant_free(struct kvpd_tenant *t)
{
	struct kvpd_ledger *l = t->ledger;

	if (t->catalog && t->view.cat)
		kvpd_claim_wake_all(t);
	while (!kvpd_list_empty(&t->sessions))
		kvpd_session_finish(
			kvpd_container(t->sessions.next, struct kvpd_session, in_tenant));
	kvpd_limbo_free_all(t);
	kvpd_extent_free_all(t);
	if (l->tenant[t->id] == t) {
		l->tenant[t->id] = NULL;
		l->shares -= t->limits.share;
		pass_on(l);
	}
	kvp_seg_unmap(t->catalog, t->layout.bytes);
	if (t->catalog_fd >= 0)
		close(t->catalog_fd);
	kvp_evict_free(t->evict);
	kvpd_runs_fini(&t->ids);
	kvpd_runs_fini(&t->cells);
	free(t->block);
	free(t->doomed);
	free(t->name);
	free(t);
	return NULL;
}

/* ---- now and then --------------------------------------------------------------------------- */

bool kvpd_tenant_due(const struct kvpd_tenant *t, uint64_t now)
{
	return t->dirty || (!kvpd_list_empty(&t->wanting) && now - t->stepped_ns >= STEP_NS);
}

void kvpd_tenant_step(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_list *it, *tmp;

	t->dirty = false;
	t->stepped_ns = now;
	kvpd_limbo_step(t);
	kvpd_each(it, tmp, &t->wanting) {
		kvpd_reserve_step(kvpd_container(it, struct kvpd_session, in_wanting), now);
	}
	kvpd_extent_step(t, now);
}

bool kvpd_tenant_busy(const struct kvpd_tenant *t)
{
	return t->over || t->ceiling || t->n_tips || t->n_claims || t->n_doomed || t->n_draining ||
	       t->n_stalled || t->warm || !kvpd_list_empty(&t->limbo);
}

void kvpd_tenant_tick(struct kvpd_tenant *t, uint64_t now)
{
	kvpd_relief_tick(t, now);
	kvpd_tip_expire(t, now);
	if (t->over)
		shrink(t, now);
	kvpd_claim_expire(t, now);
	kvpd_doomed_step(t, now);
	kvpd_limbo_step(t);
	kvpd_extent_tick(t, now);
	for (struct kvpd_list *it = t->sessions.next; t->n_stalled && it != &t->sessions;
		it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);

		if (s->stalled && kvp_cq_room(s->page, s->cq_tail) >= KVP_CQ_ENTRIES / 2)
			kvpd_session_activate(s);
	}
}

/* ---- calls of the control thread ------------------------------------------------------------ */

struct tenant_call {
	const char *name;
	const struct kvpd_limits *limits;
	uint32_t id;
};

static int open_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct tenant_call *c = arg;
	struct kvpd_tenant *t = kvpd_tenant_find(l, c->name);
	uint32_t id = 1;
	int r;

	if (t) {
		c->id = t->id;
		return 0;
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
	r = tenant_new(l, id, c->name, c->limits, &t);
	if (r < 0)
		return r;
	l->tenant[id] = t;
	if (id > l->last_tenant)
		l->last_tenant = id;
	l->shares += t->limits.share;
	c->id = id;
	return 0;
}

int kvpd_tenant_open(struct kvpd_ledger *ledger, const char *name, const struct kvpd_limits *limits,
	uint32_t *ret_tenant)
{
	struct tenant_call c = { .name = name, .limits = limits };
	int r = kvpd_ledger_ask(ledger, open_on_ledger, &c);

	if (r == 0)
		*ret_tenant = c.id;
	return r;
}

static int abandon_on_ledger(struct kvpd_ledger *l, void *arg)
{
	uint32_t id = *(uint32_t *)arg;
	struct kvpd_tenant *t = id <= KVPD_MAX_TENANTS ? l->tenant[id] : NULL;

	if (!t)
		return -ENOENT;
	t->abandoned = true;
	if (!t->n_sessions && !t->n_jobs)
		kvpd_tenant_free(t);
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

static int reconfigure_on_ledger(struct kvpd_ledger *l, void *arg)
{
	const struct kvpd_config *c = arg;
	uint64_t now = kvpd_now_ns();

	l->claim_ttl_ms = c->claim_ttl_ms;
	if (c->max_sessions && c->max_sessions <= KVPD_MAX_SESSIONS)
		l->max_sessions = c->max_sessions;
	if (c->memory >= l->shares)
		l->memory = c->memory;
	/* First those that give something up, for those that get more. */
	for (uint32_t i = 0; i < 2 * KVPD_MAX_TENANTS; i++) {
		struct kvpd_tenant *t = l->tenant[1 + i % KVPD_MAX_TENANTS];
		const struct kvpd_limits *n;

		if (!t || t->abandoned)
			continue;
		n = limits_of(c, t->name);
		if ((n->share < t->limits.share) == (i < KVPD_MAX_TENANTS))
			set_limits(t, n, now);
	}
	return 0;
}

int kvpd_reconfigure(struct kvpd_ledger *ledger, const struct kvpd_config *config)
{
	return kvpd_ledger_ask(ledger, reconfigure_on_ledger, (void *)(uintptr_t)config);
}
