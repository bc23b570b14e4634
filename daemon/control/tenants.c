/* SPDX-License-Identifier: Apache-2.0 */
/* Admission of a uid to a tenant, and the tenants' entries: opened, found, abandoned. */
#include "daemon/control/tenants.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/control/guest.h"
#include "daemon/control/posted.h"
#include "daemon/control/state.h"
#include "daemon/log.h"

const struct kvpd_tenant_config *kvpd_admit(const struct kvpd_control *c,
	const struct kvpd_config *config, const char *listener, uid_t uid, bool *ret_unlisted,
	const char **ret_why)
{
	const struct kvpd_tenant_config *t;

	*ret_unlisted = false;
	if (uid == c->account.uid && !config->trust_daemon_uid) {
		*ret_why =
			"clients of kvpoold's own uid could write all of its memory; run them as "
			"another user, or set trust_daemon_uid";
		return NULL;
	}
	if (uid == c->overflow_uid && !config->trust_overflow_uid) {
		*ret_why = "this uid stands for all that a user namespace does not map; map it, or "
			   "set trust_overflow_uid";
		return NULL;
	}
	if (*listener) {
		t = kvpd_config_by_name(config, listener);
		if (t && t->socket && (!t->n_uids || kvpd_tenant_lists(t, uid)))
			return t;
		*ret_why = "this uid is not among those that may use the tenant's socket; the "
			   "administrator lists them in `uids`";
		return NULL;
	}
	t = kvpd_config_by_uid(config, uid);
	if (t)
		return t;
	if (config->unlisted_uids)
		*ret_unlisted = true;
	else
		*ret_why = "this uid is in no tenant; the administrator lists it in a tenant's "
			   "`uids`, or sets unlisted_uids";
	return NULL;
}

struct kvpd_tenant_entry *kvpd_entry_find(struct kvpd_control *c, const char *name)
{
	struct kvpd_tenant_entry *e;

	TAILQ_FOREACH(e, &c->tenants, link)
		if (!strcmp(e->name, name))
			return e;
	return NULL;
}

bool kvpd_entry_reclaim_idle(struct kvpd_control *c)
{
	struct kvpd_tenant_entry *e, *oldest = NULL;

	TAILQ_FOREACH(e, &c->tenants, link)
		if (!e->listed && !e->n_guests &&
			(!oldest || e->idle_since_ns < oldest->idle_since_ns))
			oldest = e;
	if (!oldest)
		return false;
	kvpd_entry_abandon(c, oldest, "nobody uses it and room is needed for another uid");
	return true;
}

int kvpd_entry_open(struct kvpd_control *c, const char *name, const struct kvpd_limits *limits,
	bool listed, struct kvpd_tenant_entry **ret_entry)
{
	struct kvpd_tenant_entry *e = kvpd_entry_find(c, name);
	int r;

	if (e) {
		*ret_entry = e;
		return 0;
	}
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	snprintf(e->name, sizeof(e->name), "%s", name);
	e->listed = listed;
	TAILQ_INIT(&e->guests);
	kvpd_posted_begin(c, e);
	e->idle_since_ns = kvpd_now_ns();
	do {
		r = kvpd_tenant_open(c->ledger, name, limits, &e->id);
	} while ((r == -ENOSPC || r == -EUSERS || r == -ENOMEM) && kvpd_entry_reclaim_idle(c));
	if (r < 0) {
		free(e);
		return r;
	}
	/* Extents still on their way to an abandoned tenant of this id are not for the new one. */
	kvpd_forget_events(c, e->id);
	TAILQ_INSERT_TAIL(&c->tenants, e, link);
	*ret_entry = e;
	return 0;
}

void kvpd_entry_abandon(struct kvpd_control *c, struct kvpd_tenant_entry *entry, const char *why)
{
	struct kvpd_guest *g;
	int r;

	kvpd_notice("tenant '%s' ends: %s", entry->name, why);
	r = kvpd_tenant_abandon(c->ledger, entry->id);
	if (r < 0)
		kvpd_err("tenant '%s' could not be ended: %s", entry->name, strerror(-r));
	while ((g = TAILQ_FIRST(&entry->guests)))
		kvpd_guest_end(g, "its tenant ended");
	kvpd_posted_end(entry);
	TAILQ_REMOVE(&c->tenants, entry, link);
	free(entry);
}
