/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGHUP. A new configuration is taken whole or not at all, and never lets anybody see what he
 * could not see before:
 *
 * - a share that is too little for what its tenant needs, or more than there is, refuses the reload;
 * - a change that needs a restart (memory, sockets, user ...), or that would let in users whom the
 *   running daemon turns away by principle (trust_*, another admin_group), refuses the reload;
 * - a tenant whose members or socket change ends and starts anew: a member that left keeps the old
 *   memfds, which nobody writes any more, and one that joined never gets them. The clients of
 *   members that stay attach again by themselves and find the new tenant, empty;
 * - a uid that has no tenant any more is disconnected.
 */
#include "daemon/control/reload.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/config_value.h"
#include "daemon/control/fit.h"
#include "daemon/control/guest.h"
#include "daemon/control/listener.h"
#include "daemon/control/payer.h"
#include "daemon/control/state.h"
#include "daemon/control/tenants.h"
#include "daemon/log.h"

static bool same_text(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

/* Devices, and what each tenant has of them. */
static bool same_devices(const struct kvpd_config *a, const struct kvpd_config *b)
{
	if (a->n_devices != b->n_devices)
		return false;
	for (unsigned i = 0; i < a->n_devices; i++) {
		const struct kvpd_device_entry *x = &a->devices[i], *y = &b->devices[i];

		if (strcmp(x->name, y->name) || strcmp(x->driver, y->driver) ||
			!same_text(x->faults, y->faults) || !same_text(x->worker, y->worker) ||
			x->bytes != y->bytes || x->segment != y->segment ||
			x->copy_rate != y->copy_rate || x->timeout_ms != y->timeout_ms)
			return false;
		for (unsigned t = 0; t < a->n_tenants; t++) {
			const struct kvpd_tenant_config *o =
				kvpd_config_by_name(b, a->tenants[t].name);

			if (o && kvpd_config_device_share(a, &a->tenants[t].limits, i) !=
					 kvpd_config_device_share(b, &o->limits, i))
				return false;
		}
	}
	return true;
}

/* What cannot change while running: the first one that did, or NULL. */
static const char *needs_restart(const struct kvpd_config *a, const struct kvpd_config *b)
{
	const struct {
		const char *key;
		bool changed;
	} keys[] = {
		{ "runtime_dir", strcmp(a->runtime_dir, b->runtime_dir) != 0 },
		{ "state_dir", !same_text(a->state_dir, b->state_dir) },
		{ "calibrations", !same_text(a->calibrations, b->calibrations) },
		{ "socket", strcmp(a->socket, b->socket) != 0 },
		{ "user", strcmp(a->user, b->user) != 0 },
		{ "memory", a->memory != b->memory },
		{ "extent", a->extent != b->extent },
		{ "populate_threads", a->populate_threads != b->populate_threads },
		{ "hugepages", a->hugepages != b->hugepages },
		{ "mlock", a->mlock != b->mlock },
		{ "numa_node", a->numa_node != b->numa_node },
		{ "policy", strcmp(a->policy, b->policy) != 0 },
		{ "advisor", a->advisor.on != b->advisor.on },
		{ "advisor_period_ms", a->advisor.period_ms != b->advisor.period_ms },
		{ "advisor_batch", a->advisor.batch != b->advisor.batch },
		{ "realtime", a->realtime != b->realtime },
		{ "realtime_percent", a->realtime_percent != b->realtime_percent },
		{ "peer_pidfd", a->peer_pidfd != b->peer_pidfd },
		{ "devices", !same_devices(a, b) },
		/* Wider than what runs: */
		{ "trust_daemon_uid", !a->trust_daemon_uid && b->trust_daemon_uid },
		{ "trust_overflow_uid", !a->trust_overflow_uid && b->trust_overflow_uid },
		{ "admin_group", *b->admin_group && strcmp(a->admin_group, b->admin_group) != 0 },
	};

	for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (keys[i].changed)
			return keys[i].key;
	return NULL;
}

/* The same people by the same door? */
static bool same_members(const struct kvpd_tenant_config *a, const struct kvpd_tenant_config *b)
{
	if (!same_text(a->socket, b->socket) || !a->n_uids != !b->n_uids)
		return false;
	for (unsigned i = 0; i < a->n_uids; i++)
		if (!kvpd_tenant_lists(b, a->uids[i]))
			return false;
	for (unsigned i = 0; i < b->n_uids; i++)
		if (!kvpd_tenant_lists(a, b->uids[i]))
			return false;
	return true;
}

/* Why an entry has no place in the new configuration; NULL: it has. */
static const char *must_end(const struct kvpd_control *c, const struct kvpd_tenant_entry *e,
	const struct kvpd_config *new)
{
	const struct kvpd_tenant_config *was = kvpd_config_by_name(c->config, e->name);
	const struct kvpd_tenant_config *is = kvpd_config_by_name(new, e->name);
	unsigned uid;

	if (e->listed && !is)
		return "the configuration names it no more";
	if (e->listed && (!was || !same_members(was, is)))
		return "its members changed; it starts anew";
	/* An unlisted uid's own tenant, when that uid is listed, or none may be. */
	if (!e->listed && sscanf(e->name, "uid-%u", &uid) == 1 &&
		(!new->unlisted_uids || kvpd_config_by_uid(new, (uid_t)uid)))
		return "its uid has no tenant of its own any more";
	return NULL;
}

static void end_tenants(struct kvpd_control *c, const struct kvpd_config *new, bool listed)
{
	struct kvpd_tenant_entry *e, *next;

	for (e = TAILQ_FIRST(&c->tenants); e; e = next) {
		const char *why = must_end(c, e, new);

		next = TAILQ_NEXT(e, link);
		if (why && e->listed == listed)
			kvpd_entry_abandon(c, e, why);
	}
}

/* ---- shares of tenants that exist ---------------------------------------------------------- */

/* Where the limits of an entry that stays come from; `path` gets the name of that. */
static const struct kvpd_limits *limits_of(
	const struct kvpd_config *new, const struct kvpd_tenant_entry *e, char *path, size_t bytes)
{
	for (unsigned i = 0; i < new->n_tenants; i++)
		if (!strcmp(new->tenants[i].name, e->name)) {
			snprintf(path, bytes, "tenants.%u.share", i);
			return &new->tenants[i].limits;
		}
	snprintf(path, bytes, "defaults.share");
	return &new->defaults;
}

/* What the entries that stay would be promised; tenants that nobody uses may have to go for that. */
static uint64_t promised(
	const struct kvpd_control *c, const struct kvpd_config *new, bool idle_ones_too)
{
	const struct kvpd_tenant_entry *e;
	uint64_t sum = 0;
	char path[32];

	TAILQ_FOREACH(e, &c->tenants, link)
		if (!must_end(c, e, new) && (e->listed || e->n_guests || idle_ones_too))
			sum += limits_of(new, e, path, sizeof(path))->share;
	return sum;
}

/* A share cannot become less than what its tenant needs as it is, nor all more than there is. */
static int fit_entries(
	struct kvpd_control *c, const struct kvpd_config *new, char *error, size_t error_bytes)
{
	struct kvpd_complaint to = kvpd_config_complaint(new, error, error_bytes);
	char path[32], has[KVPD_HUMAN_BYTES], needs[KVPD_HUMAN_BYTES];
	const struct kvpd_tenant_entry *e;
	uint64_t sum = promised(c, new, false);

	TAILQ_FOREACH(e, &c->tenants, link) {
		const struct kvpd_limits *l = limits_of(new, e, path, sizeof(path));
		uint64_t least = 0;

		if (must_end(c, e, new) || kvpd_tenant_least(c->ledger, e->id, &least) < 0 ||
			l->share >= least)
			continue;
		least = (least + 65535) / 65536 * 65536;
		return kvpd_wrong(&to, path,
			"%s is too little for tenant '%s' while it runs: its catalog keeps its "
			"size "
			"until a restart, and a block of each of its models has to fit; at least "
			"%s is needed",
			kvpd_human(l->share, has), e->name, kvpd_human(least, needs));
	}
	if (sum <= new->memory)
		return 0;
	return kvpd_wrong(&to, "defaults.share",
		"with the tenants of uids that are attached, %s would be promised, more than "
		"memory (%s)",
		kvpd_human(sum, has), kvpd_human(new->memory, needs));
}

/* Sessions that could not attach now, or would attach elsewhere. */
static void end_misplaced_guests(struct kvpd_control *c, const struct kvpd_config *new)
{
	struct kvpd_guest *g, *next;

	for (g = TAILQ_FIRST(&c->guests); g; g = next) {
		const struct kvpd_tenant_config *t;
		const char *why = "its uid moved to another tenant";
		bool unlisted;

		next = TAILQ_NEXT(g, link);
		t = kvpd_admit(c, new, g->source.payer->door, g->who.uid, &unlisted, &why);
		if (t ? strcmp(t->name, g->tenant->name) != 0 : !unlisted || g->tenant->listed)
			kvpd_guest_end(g, why);
	}
}

static struct kvpd_listener *listener_of(struct kvpd_control *c, const char *tenant)
{
	struct kvpd_listener *l;

	TAILQ_FOREACH(l, &c->listeners, link)
		if (l->tenant && !strcmp(l->tenant, tenant))
			return l;
	return NULL;
}

static void close_doors(struct kvpd_control *c, const struct kvpd_config *new)
{
	struct kvpd_listener *l, *next;

	for (l = TAILQ_FIRST(&c->listeners); l; l = next) {
		const struct kvpd_tenant_config *was, *is;

		next = TAILQ_NEXT(l, link);
		if (!l->tenant)
			continue;
		was = kvpd_config_by_name(c->config, l->tenant);
		is = kvpd_config_by_name(new, l->tenant);
		/* Without uids the file's mode is the lock: it changes with them. */
		if (!is || !same_text(was->socket, is->socket) || !was->n_uids != !is->n_uids)
			kvpd_listener_remove(l);
	}
}

static void open_doors(struct kvpd_control *c)
{
	for (unsigned i = 0; i < c->config->n_tenants; i++) {
		const struct kvpd_tenant_config *t = &c->config->tenants[i];

		if (t->socket && !listener_of(c, t->name) &&
			kvpd_listener_add(c, t->name, t->socket, t->n_uids ? 0666 : 0600) < 0)
			kvpd_err("tenant '%s' has no socket: nobody can reach it", t->name);
	}
}

static void apply(struct kvpd_control *c, struct kvpd_config *new)
{
	struct kvpd_config *old = c->config;
	int r;

	end_tenants(c, new, true);
	end_misplaced_guests(c, new);
	end_tenants(c, new, false);
	while (promised(c, new, true) > new->memory && kvpd_entry_reclaim_idle(c))
		;
	close_doors(c, new);
	r = kvpd_reconfigure(c->ledger, new);
	if (r < 0)
		kvpd_err("some limits keep their old values: %s", strerror(-r));
	c->config = new;
	if (old != c->first_config)
		kvpd_config_free(old);
	kvpd_find_admin_group(c);
	open_doors(c);
	for (unsigned i = 0; i < new->n_tenants; i++) {
		const struct kvpd_tenant_config *t = &new->tenants[i];
		struct kvpd_tenant_entry *e;

		r = kvpd_entry_open(c, t->name, &t->limits, true, &e);
		if (r < 0)
			kvpd_err("tenant '%s' could not be made now (%s); it is tried again when "
				 "a client comes",
				t->name, strerror(-r));
	}
	kvpd_log_level((enum kvpd_level) new->log_level);
}

static int load_again(const struct kvpd_config *old, char *error, size_t error_bytes,
	struct kvpd_config **ret_new)
{
	struct kvpd_config *new = NULL;
	struct kvpd_memory memory;
	uint64_t otherwise = old->memory;
	int r;

	/* What was left to the machine stays as it was at the start. */
	if (old->memory_given) {
		kvpd_memory_read("", &memory);
		otherwise = kvpd_memory_default(&memory);
	}
	r = kvpd_config_load(old->path, otherwise, error, error_bytes, &new);
	if (r == 0 && old->runtime_dir_given)
		r = kvpd_config_set_runtime_dir(new, old->runtime_dir, error, error_bytes);
	if (r == 0)
		r = kvpd_fit_shares(new, error, error_bytes);
	if (r < 0)
		kvpd_config_free(new);
	else
		*ret_new = new;
	return r;
}

void kvpd_reload(struct kvpd_control *c)
{
	struct kvpd_config *new = NULL;
	const char *key;
	uint64_t now = kvpd_now_ns();
	char error[512], text[64];

	snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, now / 1000);
	kvpd_notify(&c->manager, now, text);
	if (!c->config->path) {
		kvpd_warning("there is no configuration file to load again");
	} else if (load_again(c->config, error, sizeof(error), &new) < 0) {
		kvpd_err("reload refused, the old configuration stays: %s", error);
	} else if ((key = needs_restart(c->config, new))) {
		kvpd_err("reload refused, the old configuration stays: `%s` changed, which needs a "
			 "restart",
			key);
		kvpd_config_free(new);
	} else if (fit_entries(c, new, error, sizeof(error)) < 0) {
		kvpd_err("reload refused, the old configuration stays: %s", error);
		kvpd_config_free(new);
	} else {
		apply(c, new);
		kvpd_notice("configuration loaded again from %s", c->config->path);
	}
	kvpd_notify(&c->manager, kvpd_now_ns(), "READY=1");
}
