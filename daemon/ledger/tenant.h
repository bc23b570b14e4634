/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants: each with its catalog, its share, its sessions; and what is due in one now and then. */
#ifndef KVPD_TENANT_H
#define KVPD_TENANT_H

#include "daemon/config.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/lookups.h"
#include "daemon/ledger/runs.h"
#include "daemon/ledger/space.h"
#include "shm/kvp_catalog.h"

struct kvp_evict;
struct kvpd_block;
struct kvpd_doomed;
struct kvpd_extent;
struct kvpd_ledger;

struct kvpd_tenant {
	struct kvpd_ledger *ledger;
	uint32_t id;
	char *name;
	bool abandoned;
	struct kvpd_limits limits; /* with defaults worked out */
	struct kvpd_limits asked;  /* by the last reload, if `waits` */
	bool waits;                /* for a tenant that ends: then its share grows to that */
	struct kvp_key salt;
	/* catalog */
	int catalog_fd; /* read-only re-open */
	void *catalog;
	struct kvp_catalog_layout layout;
	struct kvp_catalog_view view;
	struct kvpd_runs ids;
	struct kvpd_runs cells;
	struct kvpd_block *block; /* [layout.max_blocks] */
	uint32_t capacity;        /* blocks that fit, for the policy */
	uint32_t n_blocks;        /* with a payload */
	uint32_t n_recipes;
	uint32_t recipe_old; /* oldest and youngest childless RECIPE block */
	uint32_t recipe_young;
	uint32_t serial; /* of the next block */
	struct kvp_evict *evict;
	uint32_t scan;    /* number of the last lease scan */
	uint64_t scan_ns; /* how long it took */
	uint64_t claim_ttl_ms[KVP_MAX_CLAIMS];
	uint32_t n_claims;
	/* spaces and size classes */
	struct kvpd_space space[KVP_MAX_SPACES];
	struct kvpd_class cls[KVP_MAX_SPACES];
	uint32_t n_classes;
	/* extents */
	struct kvpd_extent *extent[KVP_MAX_EXTENTS];
	uint32_t n_extents;       /* ids ever used */
	struct kvpd_list orphans; /* arenas without a session, extents that retire */
	uint64_t meta_bytes;      /* catalog and private state */
	uint64_t charged;         /* meta_bytes and all extents; <= limits.share */
	uint64_t ceiling;  /* below the share, while the machine is short of memory; 0: none */
	uint64_t asked_ns; /* when it was last lowered */
	uint64_t arena_bytes;
	uint32_t n_draining;
	uint32_t prove; /* extent that is looked at first when one waits for its proof */
	struct kvpd_list limbo;
	uint32_t n_move_jobs;
	uint32_t n_jobs;            /* of all workers */
	struct kvpd_doomed *doomed; /* [KVPD_DOOMED] */
	uint32_t n_doomed;
	/* sessions */
	struct kvpd_list sessions;
	struct kvpd_list wanting; /* sessions that need slots */
	uint32_t n_sessions;
	uint32_t n_tips; /* sessions that write a chain */
	/* On whose behalf room is made in this step: its own chain is never taken for that. */
	const struct kvpd_session *writer;
	uint32_t n_stalled;        /* sessions whose completion ring is full */
	struct kvpd_lookups ended; /* of sessions that are gone */
	uint64_t tokens_put;       /* of blocks published */
	bool over;                 /* beyond a limit that was lowered */
	bool dirty;                /* kvpd_tenant_step() has something to do */
	bool warm;                 /* a vault extent may be wholly free */
	uint64_t stepped_ns;
};

struct kvpd_tenant *kvpd_tenant_find(struct kvpd_ledger *l, const char *name);
/* Ends its sessions and returns its memory. None of its jobs may be under way. */
struct kvpd_tenant *kvpd_tenant_free(struct kvpd_tenant *t);
/* What is due in a tenant: slots for sessions that wait, drains, limbo. */
void kvpd_tenant_step(struct kvpd_tenant *t, uint64_t now);
/* Once a second while kvpd_tenant_busy(). */
void kvpd_tenant_tick(struct kvpd_tenant *t, uint64_t now);
bool kvpd_tenant_busy(const struct kvpd_tenant *t);
/* Is it time for kvpd_tenant_step()? */
bool kvpd_tenant_due(const struct kvpd_tenant *t, uint64_t now);

#endif
