/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants: each with its catalog, its share, its sessions; and what is due in one now and then. */
#ifndef KVPD_TENANT_H
#define KVPD_TENANT_H

#include "daemon/config.h"
#include "daemon/figures.h"
#include "daemon/ledger/ahead.h"
#include "daemon/ledger/behind.h"
#include "daemon/ledger/budget.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/importance.h"
#include "daemon/ledger/learnt.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/remat.h"
#include "daemon/ledger/runs.h"
#include "daemon/ledger/space.h"
#include "daemon/ledger/switch.h"
#include "daemon/ledger/tokens.h"
#include "daemon/ledger/warm.h"
#include "daemon/turns.h"
#include "shm/kvp_catalog.h"

struct kvp_evict;
struct kvpd_advice;
struct kvpd_curve;
struct kvpd_lesson;
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
	struct kvpd_lesson *lesson; /* of `evict`; NULL: it learns nothing, or by itself */
	struct kvpd_advice *advice; /* NULL: nobody is advised */
	struct kvpd_curve *curve;   /* what other sizes would have hit */
	/* leases, see lease.h */
	struct kvpd_look look[KVPD_LOOK_KINDS];
	uint64_t proof_ns;          /* how long the last proof took */
	uint64_t proofs;            /* so far */
	uint32_t walk;              /* number of the last walk up the chains, see switch.c */
	struct kvpd_list *touch_at; /* the session whose touch logs are looked at next */
	uint64_t touch_ns;          /* not again before */
	uint64_t claim_ttl_ms[KVP_MAX_CLAIMS], claim_since_ns[KVP_MAX_CLAIMS];
	struct kvpd_computing computing; /* of all spaces, those that went too */
	uint32_t n_claims;
	/* spaces and size classes */
	struct kvpd_space space[KVP_MAX_SPACES];
	struct kvpd_emptying emptying;
	struct kvpd_class cls[KVPD_CLASSES];
	uint32_t n_classes;
	/* extents */
	struct kvpd_extent *extent[KVP_MAX_EXTENTS];
	uint32_t n_extents;       /* ids ever used */
	struct kvpd_list orphans; /* arenas without a session, extents that retire */
	uint64_t meta_bytes;      /* catalog and private state */
	uint64_t charged;         /* in DRAM: meta_bytes and all extents; <= limits.share */
	struct kvpd_part part[KVP_MAX_DEVICES]; /* what it has of each device */
	struct kvpd_warming warming;
	struct kvpd_ahead ahead;
	struct kvpd_remat remat;
	uint32_t n_only; /* blocks with a payload on a device and none in DRAM */
	struct kvpd_behind behind;
	uint64_t ceiling;  /* below the share, while the machine is short of memory; 0: none */
	uint64_t asked_ns; /* when it was last lowered */
	uint64_t arena_bytes;
	uint32_t n_draining;
	uint32_t n_unproven;
	uint64_t reclaim_ns; /* nothing more is emptied for others before */
	/* A vault extent that its class does not need is on its way to another one, see grow.c. */
	const struct kvpd_extent *handed; /* NULL: none */
	const struct kvpd_class *heir;
	uint64_t handed_ns; /* when that began, or when there was last none to be had */
	uint32_t extent_at; /* which is looked at next, in a chore */
	uint32_t prove;     /* extent that is looked at first when one waits for its proof */
	struct kvpd_list limbo;
	uint32_t n_limbo;
	uint32_t limbo_left;     /* of them, in the look that is under way */
	struct kvpd_list copied; /* move jobs that wait to be switched over */
	struct kvpd_switch switching;
	struct kvpd_precision precision;
	struct kvpd_budget budget;
	struct kvpd_importance importance;
	struct kvpd_tokens tokens;
	struct kvpd_learner learner;
	uint32_t n_move_jobs;       /* with those that wait and those that are switched */
	uint32_t n_jobs;            /* of all workers */
	struct kvpd_doomed *doomed; /* [KVPD_DOOMED] */
	uint32_t n_doomed;
	uint32_t doomed_at; /* which is looked at next */
	/* sessions */
	struct kvpd_list sessions;
	struct kvpd_list wanting; /* sessions that wait for slots, see supply.h */
	uint32_t n_wanting;
	uint32_t wanting_left;  /* of them, in the look that is under way */
	bool room_came;         /* perhaps; those that wait were not looked at since */
	struct kvpd_list ready; /* those of them in whose arenas there is a slot now */
	struct kvpd_list low;   /* sessions that have few slots left, or none */
	uint32_t n_sessions;
	uint64_t places[KVPD_MAX_SESSIONS / 64]; /* a bit for each of them, by its place */
	struct kvpd_list
		tips; /* sessions that write a chain, who has been silent for longest first */
	uint32_t n_tips;
	/* On whose behalf room is made in this step: its own chain is never taken for that. */
	const struct kvpd_session *writer;
	struct kvpd_list stalled; /* sessions whose completion ring is full */
	uint32_t n_stalled;
	uint32_t stalled_left; /* of them, in the look that is under way */
	uint32_t n_growing;    /* sessions with an arena or in want of one */
	uint64_t born_ns;
	struct kvpd_lookups lookups; /* of all its sessions, as of when each was last asked */
	uint64_t tokens_put;         /* of blocks published */
	uint64_t reloads;            /* blocks that came back soon, see evict.h, */
	uint64_t yielded;            /* and that went although a running sequence keeps them; */
	uint64_t evicted_bytes;      /* in DRAM, that evictions freed */
	uint32_t floored;            /* searches met so many of these in a row, and nothing else */
	bool over;                   /* beyond a limit that was lowered */
	uint32_t room_vain;          /* evictions for that without a victim in a row */
	uint32_t spared;             /* blocks in arenas, in a row: kvpd_evict_for_vault() */
	uint64_t reach_done;         /* what has been done for the share that was lowered, and */
	uint64_t reach_ns, reach_at; /* how long it is left alone, since when: see chores.c */
	bool warm;                   /* a vault extent may be wholly free */
	/* turns */
	struct kvpd_turn turn;   /* in the ledger's row */
	struct kvpd_turns row;   /* sessions with entries, and the chores */
	struct kvpd_turn chores; /* in the tenant's row while something is due */
	uint32_t due;            /* KVPD_DUE_* */
	uint32_t due_hand;       /* the kind that is looked at next */
	uint64_t busy_ns;        /* of the ledger's time, so far */
	uint64_t changes;        /* what may have changed it, so far: another number if it has */
	uint64_t number;         /* of all tenants, from 1; ids are used again */
	uint64_t tick_ns;        /* of the last tick */
	uint64_t hurried_ns;     /* when those that wait were last looked at for their own sake, */
	uint64_t woken_ns;       /* and sleepers were last woken */
	bool tick;               /* the next round over the extents is that of a tick, */
	bool ticking;            /* and this one is */
	/* words whose sleepers were not all woken, see wake.h */
	uint64_t wakes;          /* futex words, a bit each */
	uint64_t wakes_now;      /* of these, before the next millisecond */
	struct kvpd_list waking; /* sessions */
};

/*
 * Private state that the tenant needs now, besides what it began with, is charged to it like its catalog: what it has
 * in extents shrinks for that, as if its share had been lowered. False: then its share would be too small.
 */
bool kvpd_meta_charge(struct kvpd_tenant *t, uint64_t bytes);
void kvpd_meta_discharge(struct kvpd_tenant *t, uint64_t bytes);
/* Is there room for what was charged? Before that nothing is allocated that others are promised. */
bool kvpd_meta_fits(const struct kvpd_tenant *t);
/*
 * So many bytes for each descriptor, zeroed, to be freed with free(). *charged: the caller's, 0 at first; what it has
 * been charged by then, and is once. NULL: there is no memory, or no room for it yet.
 */
void *kvpd_meta_of_blocks(struct kvpd_tenant *t, size_t each, uint64_t *charged);

struct kvpd_tenant *kvpd_tenant_find(struct kvpd_ledger *l, const char *name);
/* At the daemon's end. An extent that only these sessions kept is dropped: that is a job. */
void kvpd_tenant_end_sessions(struct kvpd_tenant *t);
/*
 * Takes it out of the ledger; a worker returns its memory. It has no sessions, and none of its jobs
 * may be under way or finished and not dealt with.
 */
void kvpd_tenant_free(struct kvpd_tenant *t);
/* Frees a tenant that was abandoned and has no sessions and no jobs any more; false: it stays. */
bool kvpd_tenant_end(struct kvpd_tenant *t);

#endif
