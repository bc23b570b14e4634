/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ledger thread owns, private to the data plane. No lock: every function here is called on
 * the ledger thread (or, before it runs and after it was joined, by whoever owns the ledger),
 * unless its comment says otherwise.
 *
 * Who holds a slot of an extent
 * -----------------------------
 *	free		in the extent's free list
 *	GRANTED		a session may write it or, after its commit, still reads it
 *	block		the payload of a published block lies in it (together with GRANTED until
 *			the grant is released)
 *	TARGET		a mover is copying into it
 *	LIMBO		its block has moved away; a lease that was there at that time may still read
 *it
 *
 * State of blocks
 * ---------------
 * A LIVE block's parent is LIVE, because eviction goes leaf-first and a block is only published or
 * revived below a LIVE parent. Hence a RECIPE block's children are RECIPE, and some RECIPE block is
 * always childless and can be forgotten.
 */
#ifndef KVPD_LEDGER_H
#define KVPD_LEDGER_H

#include <pthread.h>

#include "daemon/clock.h"
#include "daemon/dataplane.h"
#include "daemon/ledger/list.h"
#include "daemon/log.h"
#include "daemon/ledger/runs.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_catalog.h"
#include "shm/kvp_lease.h"
#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"

#define KVPD_ROUND_ENTRIES  32u                 /* of one session, in one round */
#define KVPD_MOVE_BLOCKS    16u                 /* in one job */
#define KVPD_MOVE_BYTES     (UINT64_C(4) << 20) /* about, likewise */
#define KVPD_MOVE_JOBS      4u                  /* of one tenant under way */
#define KVPD_EVICT_MAX      64u                 /* victims in one batch */
#define KVPD_SESSION_CLAIMS 64u
#define KVPD_DOOMED         4096u /* deletions that wait, of one tenant */
#define KVPD_WORKER_THREADS 4u
#define KVPD_TOUCH_BLOCKS   8192u  /* of chains in the logs of one session, in one round */
#define KVPD_TOUCH_DEPTH    65536u /* recency of a longer chain is not kept */
#define KVPD_EXTENT_SLOTS   (1u << 17)
#define KVPD_LEASES         (KVP_SHARDS * KVP_SHARD_LEASES)

#define KVPD_MS UINT64_C(1000000)

/* ---- work for other threads ---------------------------------------------------------------- */

struct kvpd_ledger;

/* run() on the worker's thread, then done() on the ledger's. done() frees the job. */
struct kvpd_job {
	struct kvpd_job *next;
	void (*run)(struct kvpd_job *job);
	void (*done)(struct kvpd_ledger *ledger, struct kvpd_job *job);
};

/* Threads that do jobs, begun in order. */
struct kvpd_worker {
	struct kvpd_ledger *ledger;
	pthread_t thread[KVPD_WORKER_THREADS];
	uint32_t n_threads;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct kvpd_job *head;
	struct kvpd_job **tail;
	bool stop;
};

void kvpd_worker_submit(struct kvpd_worker *w, struct kvpd_job *job);

/* ---- extents -------------------------------------------------------------------------------- */

#define KVPD_SLOT_GRANTED 1u
#define KVPD_SLOT_TARGET  2u
#define KVPD_SLOT_LIMBO   4u

struct kvpd_slot {
	uint32_t block; /* KVP_BLOCK_NONE: none lies here */
	uint32_t next;  /* free list; else the slot itself */
	uint32_t flags;
};

enum kvpd_extent_state {
	KVPD_EXTENT_MAKING,   /* the pool thread populates it */
	KVPD_EXTENT_OFFERED,  /* arena: its client has to map it first */
	KVPD_EXTENT_LIVE,     /* slots are given out, unless `draining` */
	KVPD_EXTENT_RETIRING, /* empty; waits until all have unmapped it */
	KVPD_EXTENT_DROPPING, /* the pool thread unmaps and closes it */
};

struct kvpd_tenant;
struct kvpd_session;

/* All slots of one size in a tenant. */
struct kvpd_class {
	uint64_t slot_bytes;
	struct kvpd_list vaults; /* extents */
	uint64_t vault_slots;    /* of LIVE vault extents that do not drain */
	uint64_t vault_free;
	uint32_t making;       /* vault extents under way */
	uint64_t last_take_ns; /* when a vault slot was last taken */
	uint64_t refused_ns;   /* growth failed for lack of memory: not again before */
};

struct kvpd_extent {
	struct kvpd_tenant *tenant;
	struct kvpd_class *cls;
	struct kvpd_session *owner; /* of an arena; NULL when it is gone */
	struct kvpd_list link;      /* in the class (vault), the session (arena) or orphans */
	enum kvpd_extent_state state;
	uint32_t id;
	uint32_t generation;
	uint32_t kind;
	bool draining; /* gives no more slots; its blocks leave */
	bool unproven; /* all have unmapped it, they say, but a writer is left */
	int fd;
	void *addr; /* vault: writable; arena: read-only */
	uint64_t bytes;
	uint32_t slots;
	uint32_t used;
	uint32_t free_head;
	uint32_t hand; /* where the search for blocks to move goes on */
	struct kvpd_slot *slot;
	uint64_t
		*unacked; /* RETIRING: a bit for each session (by place) that has not unmapped it */
	uint32_t n_unacked;
};

struct kvpd_place {
	struct kvpd_extent *extent;
	uint32_t slot;
};

/* ---- tenants -------------------------------------------------------------------------------- */

#define KVPD_BLOCK_MOVING 1u  /* a mover reads its payload: neither evicted nor deleted */
#define KVPD_BLOCK_HELD   2u  /* its payload's slot is still granted */
#define KVPD_BLOCK_DOOMED 4u  /* in the list of deletions that wait */
#define KVPD_BLOCK_KEEP   8u  /* the ledger needs it in this step */
#define KVPD_BLOCK_LIMBO  16u /* moved under a lease, in this step */

/* What the ledger keeps of a descriptor besides the catalog and the policy. */
struct kvpd_block {
	uint32_t children; /* descriptors that name it as parent */
	uint32_t mark;     /* number of the lease scan that met it */
	uint32_t prev;     /* RECIPE without children: neighbours in order of age */
	uint32_t next;
	uint32_t flags;
};

/* A session's use of a space. */
struct kvpd_space {
	struct kvpd_class *cls;
	uint32_t opens; /* by all sessions */
	uint64_t opened;
};

/* Slots whose blocks moved away under a lease, and the lease slots that have to change first. */
struct kvpd_limbo_holder {
	uint32_t session;
	uint32_t place; /* of the session */
	uint32_t slot;
	uint64_t value;
};
struct kvpd_limbo {
	struct kvpd_list link;
	uint32_t n_places;
	uint32_t n_holders;
	struct kvpd_place place[KVPD_MOVE_BLOCKS];
	struct kvpd_limbo_holder holder[]; /* those not yet done */
};

/* As clients count them in their pages: figures of theirs, believed for display only. */
struct kvpd_lookups {
	uint64_t hits, partial, misses;
	uint64_t tokens_asked, tokens_matched;
};

struct kvpd_doomed {
	uint32_t block;
	uint32_t birth;
	uint64_t until_ns;
};

struct kvpd_tenant {
	struct kvpd_ledger *ledger;
	uint32_t id;
	char *name;
	bool abandoned;
	struct kvpd_limits limits; /* with defaults worked out */
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
	uint32_t n_stalled;        /* sessions whose completion ring is full */
	struct kvpd_lookups ended; /* of sessions that are gone */
	bool over;                 /* beyond a limit that was lowered */
	bool dirty;                /* kvpd_tenant_step() has something to do */
	bool warm;                 /* a vault extent may be wholly free */
	uint64_t stepped_ns;
};

/* ---- sessions ------------------------------------------------------------------------------- */

#define KVPD_GRANT_FREE      0u
#define KVPD_GRANT_WRITING   1u
#define KVPD_GRANT_COMMITTED 2u

struct kvpd_grant {
	uint32_t generation;
	uint32_t state;
	struct kvpd_place place;
	uint32_t next; /* free list */
};

/* What became of a commit, for those that name it as parent. */
struct kvpd_outcome {
	uint32_t serial;
	uint32_t known;
	uint32_t block; /* KVP_BLOCK_NONE: refused */
	uint32_t birth;
};

/* A RESERVE that waits for slots. */
struct kvpd_reserve {
	bool waiting;
	uint32_t serial;
	uint32_t space;
	uint32_t count;
	uint64_t until_ns;
};

struct kvpd_session {
	struct kvpd_tenant *tenant;
	uint32_t id;
	uint32_t place; /* in ledger->session, and bit in kvpd_extent.unacked */
	struct kvpd_list in_tenant;
	struct kvpd_list in_active;  /* or an empty list of its own */
	struct kvpd_list in_wanting; /* likewise */
	struct kvpd_peer peer;
	struct kvp_session_page *page;
	int wake_fd;
	bool expelled;
	bool stalled;     /* its completion ring is full */
	uint64_t last_ns; /* when an entry was last served */
	uint64_t attached_ns;
	uint32_t sq_head;
	uint32_t cq_tail;
	uint32_t touch_head[KVP_SHARDS];
	uint32_t touch_shard; /* whose log comes first next time */
	uint32_t touch_debt;  /* blocks touched beyond KVPD_TOUCH_BLOCKS */
	uint32_t opens[KVP_MAX_SPACES];
	uint32_t n_claims;
	struct kvpd_list arenas;
	uint64_t arena_bytes;
	bool making; /* an arena of it is MAKING or OFFERED */
	uint64_t refused_ns;
	struct kvpd_reserve reserve;
	uint32_t grant_free;
	uint32_t n_grants;
	struct kvpd_grant grant[KVP_MAX_GRANTS];
	struct kvpd_outcome outcome[KVP_SERIALS];
	kvp_token tokens[KVP_BLOCK_TOKENS_MAX]; /* private copy of a staging row */
};

/* ---- the ledger ----------------------------------------------------------------------------- */

struct kvpd_call {
	int (*fn)(struct kvpd_ledger *ledger, void *arg);
	void *arg;
	int result;
	bool done;
};

struct kvpd_ledger {
	/* of the configuration, copied */
	uint64_t memory;
	uint64_t extent_bytes;
	_Atomic uint64_t
		pressed_until_ns; /* the machine is short of memory: nothing grows until then */
	uint32_t populate_threads;
	enum kvpd_tristate hugepages;
	bool hugetlb; /* segments are made of 2 MiB pages */
	enum kvpd_tristate mlock;
	int numa_node;
	char *policy;
	uint32_t claim_ttl_ms;
	uint32_t max_sessions;

	uint64_t epoch;
	uid_t owner;
	void (*post)(void *ctx, const struct kvpd_event *event);
	void *ctx;

	struct kvpd_tenant *tenant[KVPD_MAX_TENANTS + 1]; /* by id; [0] stays empty */
	uint32_t last_tenant;                             /* highest id in use so far */
	uint64_t shares;                                  /* of all tenants */
	struct kvpd_session *session[KVPD_MAX_SESSIONS];
	uint32_t n_sessions;
	uint32_t last_session;
	struct kvpd_list active;
	uint64_t started_ns;
	uint64_t rounds;
	uint64_t tick_ns; /* of the last tick */

	int epoll_fd;
	int kick_fd; /* calls and finished jobs */
	pthread_t thread;
	bool running;
	_Atomic(bool) attention; /* one of the four below has changed */
	pthread_mutex_t lock;    /* of these four */
	pthread_cond_t cond;
	struct kvpd_call *call;
	struct kvpd_job *finished; /* newest first */
	bool stop;

	struct kvpd_worker pool;
	struct kvpd_worker mover;
};

/* ledger.c */
/* Control thread: runs fn on the ledger thread and waits; before that runs and after, in place. */
int kvpd_ledger_ask(struct kvpd_ledger *l, int (*fn)(struct kvpd_ledger *l, void *arg), void *arg);
/*
 * One round: active sessions, calls, finished jobs, what is due in tenants. False: time to stop.
 * *ret_timeout_ms: how long may pass before the next one if nothing comes; -1: for ever. Tests that
 * start no thread call it themselves.
 */
bool kvpd_ledger_round(struct kvpd_ledger *l, uint32_t *ret_work, int *ret_timeout_ms);
struct kvpd_session *kvpd_session_find(struct kvpd_ledger *l, uint32_t id);
void kvpd_session_activate(struct kvpd_session *s);
void kvpd_session_expel(struct kvpd_session *s, int error, const char *reason);

/* tenant.c */
struct kvpd_tenant *kvpd_tenant_find(struct kvpd_ledger *l, const char *name);
struct kvpd_tenant *kvpd_tenant_free(struct kvpd_tenant *t);
/* What is due in a tenant: slots for those who wait, drains, limbo. */
void kvpd_tenant_step(struct kvpd_tenant *t, uint64_t now);
/* Once a second while kvpd_tenant_busy(). */
void kvpd_tenant_tick(struct kvpd_tenant *t, uint64_t now);
bool kvpd_tenant_busy(const struct kvpd_tenant *t);
bool kvpd_tenant_due(const struct kvpd_tenant *t, uint64_t now);

/* space.c */
/* Works out how many blocks the policy may count on: what fits, if all were of the smallest size.
 */
void kvpd_space_capacity(struct kvpd_tenant *t);
void kvpd_space_leave(struct kvpd_session *s, uint32_t space, uint32_t times);

/* session.c */
/* Serves at most KVPD_ROUND_ENTRIES entries; returns how many. */
uint32_t kvpd_session_serve(struct kvpd_session *s, uint64_t now);
void kvpd_session_drain_touches(struct kvpd_session *s, uint64_t now);
/* Answers a waiting RESERVE if there are slots or its time is over. */
void kvpd_session_reserve_step(struct kvpd_session *s, uint64_t now);
/* Frees it and all that is its own. */
void kvpd_session_finish(struct kvpd_session *s);
/* Adds the page's counters. */
void kvpd_session_lookups(const struct kvpd_session *s, struct kvpd_lookups *sum);

/* extent.c */
uint64_t kvpd_slot_bytes(uint64_t block_bytes);
/* The tenant's class of this size, made if need be. NULL: it has KVP_MAX_SPACES others in use. */
struct kvpd_class *kvpd_class_get(struct kvpd_tenant *t, uint64_t slot_bytes);
/* Could a block of this size be stored if the tenant held nothing else? */
bool kvpd_slot_fits(const struct kvpd_tenant *t, uint64_t slot_bytes);
bool kvpd_slot_take(struct kvpd_extent *x, uint32_t flags, uint32_t *ret_slot);
/* Clears reasons why a slot is in use; without any it is free. */
void kvpd_slot_clear(struct kvpd_place p, uint32_t flags);
void kvpd_slot_unblock(struct kvpd_place p);
/* A vault slot outside of `except`, flagged TARGET; has the vault grown when few are left. */
bool kvpd_vault_take(struct kvpd_tenant *t, struct kvpd_class *c, const struct kvpd_extent *except,
	uint64_t now, struct kvpd_place *ret_place);
/* Begins to make more arena for a session, or to make room for that; repeat until there is. */
void kvpd_arena_grow(struct kvpd_session *s, struct kvpd_class *c, uint64_t now);
uint64_t kvpd_arena_cap(const struct kvpd_session *s, uint64_t slot_bytes);
uint64_t kvpd_arena_total(const struct kvpd_tenant *t, uint64_t slot_bytes);
/* Where the DRAM payload of a block lies. */
struct kvpd_place kvpd_block_place(const struct kvpd_tenant *t, uint32_t block);
void *kvpd_place_addr(struct kvpd_place p);
uint64_t kvpd_place_offset(struct kvpd_place p);
void kvpd_extent_drain(struct kvpd_extent *x);
void kvpd_extent_orphan(struct kvpd_extent *x); /* its session is gone */
/* Retires what drains and is empty; begins moves out of what drains and is not. */
void kvpd_extent_step(struct kvpd_tenant *t, uint64_t now);
/* A session unmapped an extent that retires; place: its bit. */
void kvpd_extent_unmapped(struct kvpd_extent *x, uint32_t place);
void kvpd_extent_made(struct kvpd_extent *x, int result); /* pool thread is done with it */
/* Likewise; negative: somebody may still write there, so the memory stays charged to the tenant. */
void kvpd_extent_dropped(struct kvpd_extent *x, int result);
/* Once a second: free vault extents of classes not in use, and memory that waits for a proof. */
void kvpd_extent_tick(struct kvpd_tenant *t, uint64_t now);
void kvpd_extent_free_all(struct kvpd_tenant *t);

/* pool.c */
/* At the start: memory, huge pages, memlock, NUMA node. Logs what is wrong. */
int kvpd_pool_check(struct kvpd_ledger *l);
/*
 * Any thread. A segment that belongs to the owner, mapped writable, bound to the configured node;
 * `populated`: all of it touched.
 */
int kvpd_pool_segment(const struct kvpd_ledger *l, const char *name, uint64_t bytes, bool populated,
	int *ret_fd, void **ret_addr);
/* Any thread. Bytes that a segment of this size really takes. */
uint64_t kvpd_pool_round(const struct kvpd_ledger *l, uint64_t bytes);
/* Have the pool thread make or drop the memory; kvpd_extent_made() or _dropped() follows. */
int kvpd_pool_make(struct kvpd_extent *x);
int kvpd_pool_drop(struct kvpd_extent *x);
void kvpd_pool_drop_now(struct kvpd_extent *x);

/* mover.c */
/*
 * Begins to copy at most n blocks of x into the vault; returns how many. `urgent`: evicts for room
 * there. Leased blocks are taken only if there are no others and x has to become empty or it is
 * urgent.
 */
uint32_t kvpd_move_out(struct kvpd_extent *x, uint32_t n, bool urgent, uint64_t now);
/* Frees old places whose leases have been seen to end. */
void kvpd_limbo_step(struct kvpd_tenant *t);

/* evict.c */
/* Evicts at most `want` blocks that nothing protects; returns how many. */
uint64_t kvpd_evict_up_to(struct kvpd_tenant *t, uint64_t want);
uint32_t kvpd_evict_batch(const struct kvpd_tenant *t);
/* Evicts at most n (<= KVPD_EVICT_MAX) blocks in the policy's order; returns how many went. */
uint32_t kvpd_evict_some(struct kvpd_tenant *t, uint32_t n, uint64_t now);
/* Marks what is leased (chains: with all its ancestors); kvpd_leased() asks for the last marks. */
void kvpd_lease_marks(struct kvpd_tenant *t, bool chains);
bool kvpd_leased(const struct kvpd_tenant *t, uint32_t block);
/* A number that no block is marked with; what was marked before no longer counts. */
uint32_t kvpd_scan_begin(struct kvpd_tenant *t);
/*
 * Takes the payload of a LIVE block and, with `forget` and if it has no children, the rest too; or
 * forgets a RECIPE. -EBUSY: something protects it. -ENOTEMPTY: it has children that stay.
 */
int kvpd_block_drop(struct kvpd_tenant *t, uint32_t block, bool forget, uint64_t now);
/*
 * Forgets a block without children and then what is above it, as far as nothing protects it and
 * nothing else hangs on it. Does nothing to a block that has children or is free.
 */
void kvpd_chain_drop(struct kvpd_tenant *t, uint32_t block, uint64_t now);
/* Forgets the oldest recipe that may go; false: there is none. */
bool kvpd_forget_oldest(struct kvpd_tenant *t);
/* Has a block forgotten once nothing protects it. -EAGAIN: too many wait already. */
int kvpd_doom(struct kvpd_tenant *t, uint32_t block, uint64_t now);
void kvpd_doomed_step(struct kvpd_tenant *t, uint64_t now);

/* block.c */
struct kvp_key kvpd_block_key(const struct kvpd_tenant *t, uint32_t block);
struct kvp_key kvpd_parent_key(const struct kvpd_tenant *t, uint32_t block);
uint64_t kvpd_block_word(const struct kvpd_tenant *t, uint32_t block);
static inline uint32_t kvpd_block_state(const struct kvpd_tenant *t, uint32_t block)
{
	return kvp_word_state(kvpd_block_word(t, block));
}
struct kvpd_new_block {
	uint32_t space;
	uint32_t parent; /* KVP_BLOCK_NONE: first of a chain */
	struct kvp_key key;
	uint32_t n_tokens;
	const kvp_token *tokens; /* private */
	struct kvpd_place place;
};
/*
 * The published block, in any state, that is proven to be the same: 1 and *ret_block; 0: none;
 * -EEXIST: another block has the key.
 */
int kvpd_block_lookup(
	const struct kvpd_tenant *t, const struct kvpd_new_block *b, uint32_t *ret_block);
/*
 * Publishes a new block below a LIVE parent, or gives `revive` (a RECIPE; KVP_BLOCK_NONE: none) its
 * payload back. -ENOSPC: nothing can be evicted for it.
 */
int kvpd_block_add(struct kvpd_tenant *t, const struct kvpd_new_block *b, uint32_t revive,
	uint64_t now, uint32_t *ret_block);
/* Makes the descriptor free: of an EVICTING or RECIPE block without payload or children. */
void kvpd_block_release(struct kvpd_tenant *t, uint32_t block);
/* Childless RECIPE blocks in order of age. */
void kvpd_recipe_list(struct kvpd_tenant *t, uint32_t block, bool old);
void kvpd_recipe_unlist(struct kvpd_tenant *t, uint32_t block);

/* claim.c */
/* -EBUSY: another session has it. -ENOBUFS: too many claims. ttl_ms 0: the configured one. */
int kvpd_claim_set(struct kvpd_session *s, struct kvp_key key, uint64_t ttl_ms, uint64_t now);
/* If that session has it. */
void kvpd_claim_end(struct kvpd_tenant *t, struct kvp_key key, uint32_t session);
/* After a commit of `key`: the claim on it ends; if it is the session's own it moves to `next`. */
void kvpd_claim_committed(
	struct kvpd_session *s, struct kvp_key key, struct kvp_key next, uint64_t now);
void kvpd_claim_end_session(struct kvpd_session *s);
void kvpd_claim_expire(struct kvpd_tenant *t, uint64_t now);
void kvpd_claim_wake_all(struct kvpd_tenant *t);

/* check.c */
/* Appends a text for everything that is wrong, at most `max`; returns how many things are. */
uint64_t kvpd_check_tenant(struct kvpd_tenant *t, json_t *problems, size_t max);
/*
 * Likewise for contents against checksums, from *block on until about `bytes` were read or all
 * blocks were seen; *block is where to go on (layout.max_blocks: nowhere).
 */
uint64_t kvpd_check_payloads(struct kvpd_tenant *t, uint32_t *block, uint64_t bytes,
	json_t *problems, size_t max, uint64_t *ret_bytes);

#endif
