/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants as the control thread sees them: which uid belongs to which, by which socket. */
#ifndef KVPD_TENANTS_H
#define KVPD_TENANTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "daemon/config.h"
#include "daemon/control/payer.h"
#include "daemon/control/source.h"

struct kvpd_control;
struct kvpd_guest;
struct kvpd_posted;

struct kvpd_tenant_entry {
	char name[64];
	uint32_t id; /* in the ledger */
	bool listed; /* the configuration names it */
	uint32_t n_guests;
	TAILQ_HEAD(, kvpd_guest) guests; /* in the order of posted.h */
	/* What the ledger has to say to them, which the tenant pays for; see posted.h. */
	struct kvpd_source source;
	struct kvpd_payer payer;
	STAILQ_HEAD(, kvpd_posted) posted;
	uint64_t idle_since_ns; /* when the last guest went */
	TAILQ_ENTRY(kvpd_tenant_entry) link;
};

/*
 * Which tenant does this identity belong to, by this socket? NULL: none, and *ret_why says so.
 * *ret_unlisted: it gets one of its own.
 */
const struct kvpd_tenant_config *kvpd_admit(const struct kvpd_control *c,
	const struct kvpd_config *config, const char *listener, uid_t uid, bool *ret_unlisted,
	const char **ret_why);
struct kvpd_tenant_entry *kvpd_entry_find(struct kvpd_control *c, const char *name);
/* The entry of this name, its tenant made in the ledger if need be; see kvpd_tenant_open(). */
int kvpd_entry_open(struct kvpd_control *c, const char *name, const struct kvpd_limits *limits,
	bool listed, struct kvpd_tenant_entry **ret_entry);
/* A uid that nobody listed and that is not here now makes room for one that is. False: none is. */
bool kvpd_entry_reclaim_idle(struct kvpd_control *c);
/* Nobody joins it any more, its sessions end, its segments go. The entry is freed. */
void kvpd_entry_abandon(struct kvpd_control *c, struct kvpd_tenant_entry *entry, const char *why);

#endif
