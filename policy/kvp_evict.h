/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction and admission as pure code: which block goes next. One instance serves one tenant.
 *
 * A policy sees blocks come (insert), be used (access), and go (remove). Asked for victims it
 * names candidates in the order in which it would give them up; the caller decides, and removes
 * those that really went. Nothing here reads a clock, allocates after kvp_evict_new(), logs,
 * locks or starts a thread. All calls on one instance must come from one thread at a time.
 *
 * Time: `now` is in nanoseconds from any fixed origin, and must not run backwards (a smaller value
 * is taken as the largest seen so far). Classical policies ignore it. The unit does not matter to
 * the outcome: only ratios of intervals are used.
 *
 * Blocks: an id is dense, below params.max_ids, and is the caller's (the index of a descriptor).
 * An id may be used again as soon as it was removed. Parent links make chains: a block with
 * cached children is never named as a victim, unless all of them were named earlier in the same
 * batch. A cache of independent objects passes KVP_BLOCK_NONE for every parent.
 *
 * Protection: a block the caller's callback refuses (leased, pinned, being moved) is left where it
 * is and counts as used now, so that the next call does not meet it again at once. The ancestors
 * of a leased block need no callback: they have a child.
 *
 * Memory: 64 bytes for each block that there may be (params.max_ids; with params.max_blocks these,
 * and 12 bytes more to find them) and at most 32 a ghost, allocated once; `hazard` has .4 MB of
 * counts and lists besides. `contest` needs 2.5 to 5 MB more (most with 4,096 to 196,608 blocks) for
 * shadows of the algorithms that it may give way to.
 *
 * How long one call takes at worst, N blocks being cached (`kvbench policy --worst` measures it):
 *
 *	access_chain()  an access for each block of the chain, whose length the caller bounds, or of
 *			a piece of it (access_on)
 *	victims()       constant time for each block that is wanted, and each that is_protected
 *			refuses, whose number the caller bounds; and what is said below
 *	next()          passes the ids that are not cached; assert_consistency(): O(max_ids)
 *	all others      constant time, but for what is said below
 *
 *	hazard		nothing more. Constant means at most 1,024 groups that get older, 32 ghosts
 *			and 72 bins of age; now and then victims() learns from 9,000 counters, .15 ms
 *	lru, fifo, slru, sieve, s3-fifo, arc   victims() puts aside blocks that have children, each
 *			once: up to N in one call where chains grew side by side, if params.steps does
 *			not bound it; sieve and s3-fifo
 *			pass by 8,192 used blocks. resize() of slru, s3-fifo and arc: what is above
 *	lfu-da, gdsf	an insert, access or remove looks at O(sqrt N) blocks; victims() as above
 *	contest		the same for eight algorithms, where it samples the cache whole; otherwise
 *			victims() moves all N blocks when another algorithm takes charge
 *
 * Errors are negative errno; outputs come last and stay untouched on failure.
 */
#ifndef KVP_EVICT_H
#define KVP_EVICT_H

#include <stddef.h>
#include <stdint.h>

#include "shm/kvp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvp_evict;

/* The policy a tenant gets when its configuration names none. */
#define KVP_EVICT_DEFAULT "hazard"

#define KVP_EVICT_MAX_IDS      UINT32_C(0x40000000)
#define KVP_EVICT_MAX_CAPACITY (UINT64_C(1) << 60) /* in blocks and in bytes */

/* kvp_evict_item.flags */
#define KVP_EVICT_PARTIAL (UINT32_C(1) << 0) /* last block of a prompt, not full */

/* What a policy may know of a block when it arrives. Copied; the caller keeps it. */
struct kvp_evict_item {
	kvp_block_id parent; /* KVP_BLOCK_NONE: none. Must be cached at that time */
	uint32_t bytes;      /* held by the payload now; 0 counts as 1 */
	uint32_t depth;      /* place in its chain; the root has 0 */
	uint32_t tokens;     /* valid tokens in it */
	uint32_t flags;      /* KVP_EVICT_* */
	float cost; /* what recomputing it takes, in any unit; <= 0 or not finite counts as 1 */
	struct kvp_key key; /* remembers it after eviction */
};

/*
 * Shape of one request, known when it has been matched and before its missing blocks arrive.
 * `tip` is the deepest cached block (KVP_BLOCK_NONE: nothing matched).
 */
struct kvp_evict_request {
	kvp_block_id tip;
	uint32_t blocks;  /* of the whole prompt */
	uint32_t matched; /* of these, cached */
	uint32_t tokens;  /* of the whole prompt */
};

/*
 * Called once per event, from inside the call that caused it. They may call the read-only
 * functions of this header, and nothing else on the same instance. Any may be NULL.
 */
struct kvp_evict_hooks {
	void (*on_put)(void *ctx, kvp_block_id id);
	void (*on_evict)(void *ctx, kvp_block_id id);
	void (*on_hot_access)(void *ctx, kvp_block_id id); /* "hot" as the policy defines it */
	void *ctx;
};

struct kvp_evict_params {
	size_t size;         /* sizeof(struct kvp_evict_params) */
	uint64_t items;      /* capacity in blocks; 0: bounded by bytes alone */
	uint64_t bytes;      /* capacity in bytes; 0: bounded by items alone */
	uint32_t max_ids;    /* ids are below this; 1 .. KVP_EVICT_MAX_IDS */
	uint32_t max_blocks; /* no more are cached at a time; 0: as many as there are ids */
	uint32_t ghosts;     /* evicted blocks remembered; 0: the policy's own choice */
	uint32_t evict_by;   /* victims wanted when a caller asks for 0; 0 counts as 1 */
	uint32_t steps; /* blocks that one victims() looks at, at most; 0: as many as it takes */
	uint64_t seed;  /* of whatever is sampled; same seed, same decisions */
	struct kvp_evict_hooks hooks;
};

/*
 * A new, empty instance of the policy called `name` (see kvp_evict_names()). At least one of
 * params.items and params.bytes must be set. -ENOENT: no such policy. -EINVAL: a parameter is out
 * of range. -ENOMEM. Free with kvp_evict_free(), which takes NULL and returns NULL.
 */
int kvp_evict_new(
	const char *name, const struct kvp_evict_params *params, struct kvp_evict **ret_evict);
struct kvp_evict *kvp_evict_free(struct kvp_evict *e);

/* The i-th policy's name and one line about it; NULL past the last. */
const char *kvp_evict_names(size_t i, const char **ret_about);

/* A new capacity, as in params (-EINVAL); what is held stays until victims are asked for. */
int kvp_evict_resize(struct kvp_evict *e, uint64_t items, uint64_t bytes);

/*
 * A missing block is about to come; ask before making room for it. 1 if the policy wants it, 0 if
 * keeping it would be a loss (S3-FIFO refuses what would fill its small queue); a caller may insert
 * regardless. Optional, but ARC and S3-FIFO choose the victim better if they know what it is for.
 */
int kvp_evict_admit(struct kvp_evict *e, const struct kvp_evict_item *item, uint64_t now);

/*
 * -EEXIST: id is cached. -EINVAL: id out of range, or the parent is not cached. -ENOSPC: as many as
 * params.max_blocks are cached already.
 */
int kvp_evict_insert(
	struct kvp_evict *e, kvp_block_id id, const struct kvp_evict_item *item, uint64_t now);

/* The block was used. -ENOENT: not cached. */
int kvp_evict_access(struct kvp_evict *e, kvp_block_id id, uint64_t now);

/*
 * The chain from tip up to its root was used, tip first, so that the root counts as the most
 * recent. -ENOENT: tip is not cached.
 */
int kvp_evict_access_chain(struct kvp_evict *e, kvp_block_id tip, uint64_t now);

/*
 * The same in pieces, for chains longer than a caller has time for: begin(), then on() as long as it
 * returns 1, each time for at most n blocks. Other calls may come between; the caller sees to it that
 * walk.next, a block of this chain, is the same block still. -ENOENT: tip or walk.next is not cached.
 */
struct kvp_evict_walk {
	kvp_block_id next; /* KVP_BLOCK_NONE: it is over */
	uint32_t request;  /* the policy's own */
};
int kvp_evict_access_begin(
	struct kvp_evict *e, kvp_block_id tip, uint64_t now, struct kvp_evict_walk *ret_walk);
int kvp_evict_access_on(struct kvp_evict *e, struct kvp_evict_walk *walk, uint32_t n, uint64_t now);

/*
 * A request has arrived; call it before the access_chain() of its tip and the insert()s of its
 * missing blocks. Optional: policies that learn from it do better with it. -EINVAL: tip is neither
 * cached nor KVP_BLOCK_NONE, or matched > blocks.
 */
int kvp_evict_request(struct kvp_evict *e, const struct kvp_evict_request *req, uint64_t now);

/* The payload was requantised: it now holds so many bytes. -ENOENT: not cached. */
int kvp_evict_set_bytes(struct kvp_evict *e, kvp_block_id id, uint32_t bytes);

/*
 * The block is gone: evicted != 0 if for room (it may be remembered as a ghost, and on_evict
 * fires), 0 if deleted. -ENOENT: not cached. -EBUSY: it has cached children; nothing changed.
 */
int kvp_evict_remove(struct kvp_evict *e, kvp_block_id id, int evicted, uint64_t now);

/* Non-zero: leave this block alone now. Must not call back into the instance. */
typedef int (*kvp_evict_protected_fn)(void *ctx, kvp_block_id id);

/*
 * Candidates in eviction order, until they amount to want_items blocks and want_bytes bytes (both
 * 0: params.evict_by blocks) or max ids are written. Returns how many were written, possibly
 * fewer than wanted. Still cached afterwards: the caller removes, in this order, those that may
 * go, and skips a block when one of its children survived. What it did not remove by the time of
 * the next call of this function counts as used at that time. is_protected may be NULL. With
 * params.steps it may end before it has found any: kvp_evict_cut_short() tells.
 */
size_t kvp_evict_victims(struct kvp_evict *e, uint64_t want_items, uint64_t want_bytes,
	kvp_evict_protected_fn is_protected, void *ctx, uint64_t now, kvp_block_id *out,
	size_t max);

/*
 * 1: the last victims() had looked at params.steps blocks and found too few; the next call goes on
 * from there. 0: it found what was wanted, or all that there is.
 */
int kvp_evict_cut_short(const struct kvp_evict *e);

/* How much is held above capacity. Feed it to kvp_evict_victims(). */
void kvp_evict_excess(const struct kvp_evict *e, uint64_t *ret_items, uint64_t *ret_bytes);

/* Read-only: none of these counts as a use. */
struct kvp_evict_info {
	kvp_block_id parent;
	uint32_t bytes;
	uint32_t depth;
	uint32_t flags;
	uint32_t children; /* cached ones */
	int hot;
	double cost; /* as it was said */
};
int kvp_evict_contains(const struct kvp_evict *e, kvp_block_id id);
int kvp_evict_peek(const struct kvp_evict *e, kvp_block_id id, struct kvp_evict_info *ret_info);
int kvp_evict_hot(const struct kvp_evict *e, kvp_block_id id); /* 0 also if not cached */
uint64_t kvp_evict_len(const struct kvp_evict *e);
uint64_t kvp_evict_bytes(const struct kvp_evict *e);

/* Every cached block once, in ascending order: start with KVP_BLOCK_NONE, end on it. */
kvp_block_id kvp_evict_next(const struct kvp_evict *e, kvp_block_id id);

const char *kvp_evict_name(const struct kvp_evict *e);

/* Bytes allocated by the instance, and of these per block id and per ghost. */
struct kvp_evict_memory {
	uint64_t total;
	uint32_t per_block;
	uint32_t per_ghost;
	uint32_t ghosts;
};
void kvp_evict_memory(const struct kvp_evict *e, struct kvp_evict_memory *ret_memory);

/* For tests: 0, or -EIO if the state contradicts itself. O(max_ids). */
int kvp_evict_assert_consistency(const struct kvp_evict *e);

/*
 * Learning apart. `hazard` learns from what it counts now and then, in victims(), which takes .15 ms.
 * With a lesson somebody else does so, from a copy of what was counted, and until then the instance
 * goes by what it had learnt before:
 *
 *	the instance's thread            any thread
 *	kvp_evict_lesson_ask() == 1  ->  kvp_evict_lesson_learn()
 *	kvp_evict_lesson_use()       <-
 *
 * A lesson has one owner at a time; whoever hands it over sees to the order of memory. ask() may
 * follow use() at once, or another ask() which returned 0: it is not time to learn. Both take some
 * microseconds.
 *
 * kvp_evict_lesson_new(): from now on the instance learns by this lesson alone, whether or not that
 * happens. -EOPNOTSUPP: its policy has nothing to learn, or not apart; -EBUSY: it has one; -ENOMEM.
 * The caller frees it, before or after the instance, with kvp_evict_lesson_free(), which takes NULL
 * and returns NULL.
 */
struct kvp_evict_lesson;
int kvp_evict_lesson_new(struct kvp_evict *e, struct kvp_evict_lesson **ret_lesson);
struct kvp_evict_lesson *kvp_evict_lesson_free(struct kvp_evict_lesson *lesson);
uint64_t kvp_evict_lesson_memory(const struct kvp_evict_lesson *lesson);
int kvp_evict_lesson_ask(struct kvp_evict *e, struct kvp_evict_lesson *lesson);
void kvp_evict_lesson_learn(struct kvp_evict_lesson *lesson);
void kvp_evict_lesson_use(struct kvp_evict *e, struct kvp_evict_lesson *lesson);

/*
 * Ingestion: what goes to the STORE tier. ALL: every block when it is put. HOT: a block when it is
 * used and the policy in use calls it hot. EVICTED: a block when it leaves memory.
 */
#define KVP_INGEST_ALL     0u
#define KVP_INGEST_HOT     1u
#define KVP_INGEST_EVICTED 2u

#define KVP_INGEST_EVENT_PUT    0u
#define KVP_INGEST_EVENT_ACCESS 1u
#define KVP_INGEST_EVENT_EVICT  2u

/* 1: store it now; 0: do not; -EINVAL: unknown mode or event. */
int kvp_ingest_wants(uint32_t mode, uint32_t event, int hot);

#ifdef __cplusplus
}
#endif
#endif
