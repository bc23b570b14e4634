/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the eviction algorithms share: the per-block node, the intrusive list, the heap,
 * the ghost table, and the operations each algorithm fills in. Private to policy/.
 *
 * The core (evict.c) owns chains: it counts children, keeps a block with children out of the
 * victims, and remembers what was offered. An algorithm only orders blocks. A block is in exactly
 * one place (`where`):
 *
 *          insert                take              (childless, not protected)
 *   OUT ------------> QUEUE 1..n ------> OFFERED   --remove--> OUT
 *                      ^   ^       \---> PARKED    (has children: due, waits for the last to go)
 *                      |   |                |
 *                      |   +---back(DUE)----+  last child gone or offered
 *                      +------back(USED)----   refused, survived, used again
 */
#ifndef KVP_POLICY_EVICT_IMPL_H
#define KVP_POLICY_EVICT_IMPL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/evict_places.h"
#include "policy/index_list.h"
#include "policy/kvp_evict.h"

#define EVICT_OUT     0u /* not cached; 1 .. EVICT_PARKED-1 are the algorithm's own queues */
#define EVICT_PARKED  14u
#define EVICT_OFFERED 15u

/* In node.flags, beside KVP_EVICT_*: uses since insert. Bits above them are evict_contest.h's. */
#define EVICT_USES_SHIFT 1u
#define EVICT_USES       (7u << EVICT_USES_SHIFT) /* 7: as many and more */

/*
 * What is kept of a block lies in arrays, and everything private to policy/ knows the block by its
 * place there, even where that is called an id. It is the caller's id, or, where ids are many more
 * than blocks, a place from evict_places.h.
 */
struct evict_node {
	uint64_t key; /* digest folded to 64 bits, for the ghosts; see evict_heap_key() */
	uint32_t parent;
	uint32_t children; /* cached, and not in the current offer */
	uint32_t offered;  /* children in the current offer */
	uint32_t bytes;
	float cost;
	struct index_link link; /* in the queue, heap or offer that `where` names */
	uint16_t depth;
	uint8_t where;
	uint8_t flags;
	uint32_t freq; /* uses, as the algorithm counts them */
	union {
		uint32_t home;  /* algorithm's own; the queue it returns to from PARKED */
		uint32_t ahead; /* in the heap */
	};
};
static_assert(sizeof(struct evict_node) == 48, "64 bytes a block, with what a policy adds");

/* A queue of blocks. */
struct evict_list {
	struct index_link ends;
	uint64_t items;
	uint64_t bytes;
};

struct evict_ghosts;
struct evict_heap;

enum evict_back { EVICT_BACK_DUE, EVICT_BACK_USED };

struct kvp_evict;

/*
 * One algorithm. node[id].where tells where a block is; every call leaves it right. Optional
 * members may be NULL.
 */
struct evict_ops {
	const char *name;
	const char *about;
	int variant;                           /* selects among the policies of one file */
	int (*init)(struct kvp_evict *e);      /* optional; sets e->self */
	void (*fini)(struct kvp_evict *e);     /* optional; e->self may be half built */
	void (*capacity)(struct kvp_evict *e); /* optional; it has changed */
	bool (*admit)(struct kvp_evict *e, const struct kvp_evict_item *item,
		uint64_t key);                                                     /* optional */
	void (*request)(struct kvp_evict *e, const struct kvp_evict_request *req); /* optional */
	/* optional; before the accesses of a chain, or of this block `alone` */
	void (*chain)(struct kvp_evict *e, uint32_t tip, bool alone);
	/* optional, both; the request whose accesses these are, for pieces of a chain */
	uint32_t (*current)(const struct kvp_evict *e);
	void (*resume)(struct kvp_evict *e, uint32_t request);
	void (*insert)(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item);
	void (*access)(struct kvp_evict *e, uint32_t id); /* wherever it is, PARKED included */
	void (*settle)(struct kvp_evict *e); /* optional; before the take()s of a call, no offer */
	uint32_t (*take)(struct kvp_evict *e); /* next in order, detached; or NONE */
	void (*back)(struct kvp_evict *e, uint32_t id, enum evict_back how);
	void (*detach)(struct kvp_evict *e, uint32_t id);             /* from a queue of its own */
	void (*gone)(struct kvp_evict *e, uint32_t id, bool evicted); /* optional; after detach */
	bool (*hot)(const struct kvp_evict *e, uint32_t id);
	void (*resized)(struct kvp_evict *e, uint32_t id, uint32_t was); /* optional: bytes */
	int (*check)(const struct kvp_evict *e, uint64_t in_queues);     /* optional */
	/* optional; adds what it has besides the nodes and the ghosts */
	void (*memory)(const struct kvp_evict *e, struct kvp_evict_memory *m);
	/*
	 * For taking charge in a contest (evict_contest.c), all optional. reset() forgets all
	 * blocks, but nothing learnt. learn() takes over what a shadow of this algorithm has
	 * learnt. adopt() is the insert() of a block that was cached before, rank 0 (was to go
	 * next) to 1. Without it, insert() with an item of NULL.
	 */
	void (*reset)(struct kvp_evict *e);
	void (*learn)(struct kvp_evict *e, const struct kvp_evict *shadow);
	void (*adopt)(struct kvp_evict *e, uint32_t id, double rank);
};

#define EVICT_LISTS 5u
#define EVICT_ASIDE 4u          /* list of what goes first, where a contest follows a shadow */
#define EVICT_HEAP  EVICT_LISTS /* `where` of a block in the heap */

struct evict_contest;

struct kvp_evict {
	const struct evict_ops *policy; /* what the core calls */
	const struct evict_ops *ops;    /* in charge; differs from it only in a contest */
	struct kvp_evict_params params; /* max_ids: places */
	uint32_t ids;                   /* the caller's are below that */
	struct evict_places *places;    /* NULL: they are places */
	struct evict_node *node;        /* [max_ids] */
	uint64_t items;
	uint64_t bytes;
	uint64_t now;
	struct evict_list list[EVICT_LISTS]; /* [0] is the offer, the others are queues */
	struct evict_heap *heap;             /* NULL if the policy needs none */
	double age;                          /* L of LFU-DA and GDSF */
	uint32_t hand;                       /* SIEVE */
	bool cut;                            /* see kvp_evict_cut_short() */
	uint32_t patience; /* blocks that take() may still spare, see evict_spare() */
	struct evict_ghosts *ghosts;
	void *self;                    /* further state of the algorithm in charge */
	struct evict_contest *contest; /* NULL: there is none */
	void *arena; /* memory for each block, of the algorithm in charge; NULL: each has its own */
};

extern const struct evict_ops evict_lru, evict_fifo, evict_slru, evict_sieve, evict_lfuda,
	evict_gdsf, evict_s3fifo, evict_s3fifo_30, evict_arc, evict_hazard, evict_contest;

#define EVICT_ARENA_BYTES 12u /* a block: its share of a group (hazard), or a key of the heap */

/* An instance for blocks as in params, which are in range. */
int evict_new(const struct evict_ops *ops, const struct kvp_evict_params *params,
	struct kvp_evict **ret_evict);
void evict_clear_lists(struct kvp_evict *e);
/* The parent has one child less: if that was the last, it is due now if it was before. */
void evict_release_parent(struct kvp_evict *e, uint32_t parent);

static inline uint32_t evict_uses(const struct evict_node *n)
{
	return (n->flags & EVICT_USES) >> EVICT_USES_SHIFT;
}

/* ---- lists ---- */

static inline struct index_links evict_links(const struct kvp_evict *e)
{
	return INDEX_LINKS(e->node, link);
}

/* Puts a detached block at the young or old end of list[q]; sets where. */
void evict_push_young(struct kvp_evict *e, uint32_t q, uint32_t id);
void evict_push_old(struct kvp_evict *e, uint32_t q, uint32_t id);
/* Puts a detached block on the old side of `young`, which is in list[q]. */
void evict_insert_older(struct kvp_evict *e, uint32_t q, uint32_t id, uint32_t young);
/* Takes a block out of the list that `where` names. where becomes OUT. */
void evict_unlink(struct kvp_evict *e, uint32_t id);
/* Takes the oldest of list[q]; KVP_BLOCK_NONE if empty. */
uint32_t evict_pop_old(struct kvp_evict *e, uint32_t q);

/* Capacity and fill in the unit that bounds this instance: bytes if those are set, else items. */
static inline uint64_t evict_capacity(const struct kvp_evict *e)
{
	return e->params.bytes ? e->params.bytes : e->params.items;
}

static inline uint64_t evict_list_fill(const struct kvp_evict *e, uint32_t q)
{
	return e->params.bytes ? e->list[q].bytes : e->list[q].items;
}

/* ---- heap (evict_heap.c): smallest key first, of equal ones the first that came ---- */

int evict_heap_init(struct kvp_evict *e); /* allocates e->heap, for the core to free() */
void evict_heap_push(struct kvp_evict *e, uint32_t id, uint64_t key);
void evict_heap_remove(struct kvp_evict *e, uint32_t id);
/* KVP_BLOCK_NONE if empty. */
uint32_t evict_heap_pop(struct kvp_evict *e, uint64_t *ret_key);
int evict_heap_check(const struct kvp_evict *e, uint64_t in_queues);
void evict_heap_memory(const struct kvp_evict *e, struct kvp_evict_memory *m);
void evict_heap_clear(struct kvp_evict *e);

/* Without an arena the heap's keys take the place of those of the blocks, which nobody needs. */
static inline uint64_t *evict_heap_key(const struct kvp_evict *e, uint32_t id)
{
	return e->arena ? (uint64_t *)e->arena + id : &e->node[id].key;
}

/* ---- ghosts (evict_ghost.c): keys of evicted blocks, in up to two queues ---- */

#define EVICT_GHOST_NONE UINT32_MAX
#define EVICT_GHOST_FREE 2u

struct evict_ghost {
	uint32_t key[2];
	uint32_t bucket_next;
	struct index_link link; /* in its queue */
	uint32_t weight;        /* as the policy counts capacity */
	uint8_t queue;          /* 0 or 1; EVICT_GHOST_FREE */
	uint8_t note[3];        /* the policy's own */
};
static_assert(sizeof(struct evict_ghost) == 28, "32 bytes a ghost, with its share of the buckets");

/* Room for n keys. NULL: no memory. */
struct evict_ghosts *evict_ghosts_new(uint32_t n, uint64_t seed);
void evict_ghosts_free(struct evict_ghosts *g);
void evict_ghosts_clear(struct evict_ghosts *g);
/* Its bucket will soon be needed. */
void evict_ghost_prefetch(const struct evict_ghosts *g, uint64_t key);
uint32_t evict_ghost_find(const struct evict_ghosts *g, uint64_t key);
/* The ghost at a place below evict_ghosts_places(), whose note a policy may write; NULL: none. */
struct evict_ghost *evict_ghost_at(struct evict_ghosts *g, uint32_t i);
/* The key may be there already: find() then meets the younger. When full, the oldest of the same
 * queue, else of the other, makes room. */
uint32_t evict_ghost_add(struct evict_ghosts *g, uint32_t queue, uint64_t key, uint32_t weight);
void evict_ghost_drop(struct evict_ghosts *g, uint32_t i);
void evict_ghost_drop_oldest(struct evict_ghosts *g, uint32_t queue); /* nothing if empty */
/* What the next add() would drop for room; EVICT_GHOST_NONE: nothing. */
uint32_t evict_ghost_victim(const struct evict_ghosts *g);
uint64_t evict_ghost_weight(const struct evict_ghosts *g, uint32_t queue);
uint32_t evict_ghosts_places(const struct evict_ghosts *g);
uint32_t evict_ghosts_max(const struct evict_ghosts *g);
uint64_t evict_ghosts_memory(const struct evict_ghosts *g);
int evict_ghosts_check(const struct evict_ghosts *g);

/* Ghosts asked for, else `fallback`, bounded by max_ids * 2 + 20,000. Allocates e->ghosts, unless
 * it is there. */
int evict_ghosts_init(struct kvp_evict *e, uint64_t fallback);

/*
 * What ghosts knew of blocks that admit() was asked about and that have not come yet: several are on their way at a
 * time. Of more than these one is forgotten, and comes as a new one.
 */
#define EVICT_PROMISES 256u

struct evict_promises {
	uint32_t n, next; /* next: what goes when they are all taken */
	uint64_t key[EVICT_PROMISES];
	uint8_t queue[EVICT_PROMISES]; /* of the ghost */
};

/* The ghost is dropped for it. */
void evict_promise(struct kvp_evict *e, struct evict_promises *p, uint32_t ghost);
/* Its place; EVICT_GHOST_NONE: nothing is known of it. */
uint32_t evict_promise_find(const struct evict_promises *p, uint64_t key);
/* It has come. False: nothing was known of it. */
bool evict_promise_keep(struct evict_promises *p, uint64_t key);

static inline uint32_t evict_weight(const struct kvp_evict *e, uint32_t bytes)
{
	return e->params.bytes ? bytes : 1;
}

/*
 * Asked before a used block gets another chance for being used: where all are, the search for one
 * that is not would take as long as there are blocks. False: this call has searched enough.
 */
static inline bool evict_spare(struct kvp_evict *e)
{
	return e->patience && e->patience--;
}

static inline bool evict_in_queue(const struct evict_node *n)
{
	return n->where != EVICT_OUT && n->where < EVICT_PARKED;
}
#endif
