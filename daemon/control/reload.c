/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGHUP. A new configuration is taken whole or not at all, and never lets anybody see what he
 * could not see before:
 *
 * - a change that needs a restart (memory, sockets, user ...), or that would let in users whom the
 *   running daemon turns away by principle (trust_*, another admin_group), refuses the reload;
 * - a tenant whose members or socket change ends and starts anew: a member that left keeps the old
 *   memfds, which nobody writes any more, and one that joined never gets them. The clients of
 *   members that stay attach again by themselves and find the new tenant, empty;
 * - a uid that has no tenant any more is disconnected.
 */
#include "daemon/control/reload.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "daemon/clock.h"
#include "daemon/control/guest.h"
#include "daemon/control/listener.h"
#include "daemon/control/state.h"
#include "daemon/control/tenants.h"
#include "daemon/log.h"

/* What cannot change while running: the first one that did, or NULL. */
static const char *needs_restart(const struct kvpd_config *a, const struct kvpd_config *b)
{
	const struct {
		const char *key;
		bool changed;
	} keys[] = {
		{ "runtime_dir", strcmp(a->runtime_dir, b->runtime_dir) != 0 },
		{ "socket", strcmp(a->socket, b->socket) != 0 },
		{ "user", strcmp(a->user, b->user) != 0 },
		{ "memory", a->memory != b->memory },
		{ "extent", a->extent != b->extent },
		{ "populate_threads", a->populate_threads != b->populate_threads },
		{ "hugepages", a->hugepages != b->hugepages },
		{ "mlock", a->mlock != b->mlock },
		{ "numa_node", a->numa_node != b->numa_node },
		{ "policy", strcmp(a->policy, b->policy) != 0 },
		{ "peer_pidfd", a->peer_pidfd != b->peer_pidfd },
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

static bool same_text(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
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

static void end_changed_tenants(struct kvpd_control *c, const struct kvpd_config *new)
{
	struct kvpd_tenant_entry *e, *next;

	for (e = TAILQ_FIRST(&c->tenants); e; e = next) {
		const struct kvpd_tenant_config *was = kvpd_config_by_name(c->config, e->name);
		const struct kvpd_tenant_config *is = kvpd_config_by_name(new, e->name);

		next = TAILQ_NEXT(e, link);
		if (!e->listed)
			continue;
		if (!is)
			kvpd_entry_abandon(c, e, "the configuration names it no more");
		else if (!was || !same_members(was, is))
			kvpd_entry_abandon(c, e, "its members changed; it starts anew");
	}
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
		t = kvpd_admit(c, new, g->listener, g->who.uid, &unlisted, &why);
		if (t ? strcmp(t->name, g->tenant->name) != 0 : !unlisted || g->tenant->listed)
			kvpd_guest_end(g, why);
	}
}

/* An unlisted uid's own tenant has no place any more when that uid is listed, or none may be. */
static void end_unlisted_tenants(struct kvpd_control *c, const struct kvpd_config *new)
{
	struct kvpd_tenant_entry *e, *next;

	for (e = TAILQ_FIRST(&c->tenants); e; e = next) {
		unsigned uid;

		next = TAILQ_NEXT(e, link);
		if (!e->listed && sscanf(e->name, "uid-%u", &uid) == 1 &&
			(!new->unlisted_uids || kvpd_config_by_uid(new, (uid_t)uid)))
			kvpd_entry_abandon(c, e, "its uid has no tenant of its own any more");
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

	end_changed_tenants(c, new);
	end_misplaced_guests(c, new);
	end_unlisted_tenants(c, new);
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
	int r = kvpd_config_load(old->path, error, error_bytes, &new);

	if (r == 0 && old->runtime_dir_given) {
		r = kvpd_config_set_runtime_dir(new, old->runtime_dir, error, error_bytes);
		if (r < 0)
			kvpd_config_free(new);
	}
	if (r == 0)
		*ret_new = new;
	return r;
}

void kvpd_reload(struct kvpd_control *c)
{
	struct kvpd_config *new = NULL;
	const char *key;
	char error[512];

	sd_notifyf(
		0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(kvpd_now_ns() / 1000));
	if (!c->config->path) {
		kvpd_warning("there is no configuration file to load again");
	} else if (load_again(c->config, error, sizeof(error), &new) < 0) {
		kvpd_err("reload refused, the old configuration stays: %s", error);
	} else if ((key = needs_restart(c->config, new))) {
		kvpd_err("reload refused, the old configuration stays: `%s` changed, which needs a "
			 "restart",
			key);
		kvpd_config_free(new);
	} else {
		apply(c, new);
		kvpd_notice("configuration loaded again from %s", c->config->path);
	}
	sd_notify(0, "READY=1");
}
