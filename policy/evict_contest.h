/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two files of the policy `contest` share: the small caches that it runs beside the real
 * one, its shadows (evict_contest_shadow.c), and what it makes of them (evict_contest.c, which
 * tells what a contest is).
 */
#ifndef KVP_POLICY_EVICT_CONTEST_H
#define KVP_POLICY_EVICT_CONTEST_H

#include "policy/evict_impl.h"

#define NONE             KVP_BLOCK_NONE
#define CONTEST_BLOCKS   4096u /* most that a shadow holds: larger caches are sampled */
#define CONTEST_SLACK    512u  /* more, for the request that is being served */
#define CONTEST_IDS      (CONTEST_BLOCKS + CONTEST_SLACK)
#define CONTEST_BUCKETS  8192u
#define CONTEST_PROMPT   CONTEST_BLOCKS /* blocks of a request that the shadows are told of */
#define CONTEST_STRATA   64u
#define CONTEST_EXPERTS  8u /* evict_hazard, where every contest begins, is number 0 */
#define CONTEST_TRUNK    7u /* CONTEST_BRANCHES: so often continued that it is no chain's own */
#define CONTEST_ALL      UINT64_MAX
#define CONTEST_EXPECTED 64u /* between admit() and insert() at a time; more are told twice */

/* In node.flags, beside what the core keeps there. */
#define CONTEST_BRANCHES_SHIFT 4u
#define CONTEST_BRANCHES       (7u << CONTEST_BRANCHES_SHIFT) /* about log2 of the children ever */
#define CONTEST_SAMPLED        (1u << 7)                      /* the shadows are told of it */

extern const struct evict_ops *const contest_expert[CONTEST_EXPERTS];

/* A small cache that lives through a sample of what happens, under one of the algorithms. */
struct shadow {
	struct kvp_evict *e;
	uint32_t hits;               /* of the current request */
	float score[CONTEST_STRATA]; /* hits, of which the old ones fade */
	uint16_t free;
	uint16_t bucket[CONTEST_BUCKETS]; /* ids by key, linked by next; CONTEST_IDS: none */
	uint16_t next[CONTEST_IDS];
	uint32_t real[CONTEST_IDS]; /* the same block in the real cache, when last told of */
};

/* A block of the request that the shadows will be told of. */
struct known {
	uint64_t key;
	uint32_t bytes;
	uint32_t depth;
	float cost;
	uint32_t flags;
	uint32_t real; /* id; NONE: refused */
};

struct evict_contest {
	struct kvp_evict *real;
	void *self[CONTEST_EXPERTS]; /* of the real cache */
	uint32_t leader;
	uint32_t want;
	uint64_t limit; /* hashes up to it are in the sample; CONTEST_ALL: everything is */
	uint32_t whole; /* a cache of so many blocks is sampled whole */
	bool begun;     /* the real cache is full: algorithms make a difference */
	bool overflow;  /* the sample does not fit into the shadows */
	/* insert() of these keys, the oldest first: the shadows know them */
	uint64_t expected[CONTEST_EXPECTED];
	uint32_t n_expected;
	uint32_t told; /* blocks since the last comparison */
	double all;    /* blocks before it */
	uint64_t draws;
	/* the request being told of, and the real block that its last entry stands for */
	uint32_t len;
	uint32_t old; /* of len: told before */
	uint32_t last;
	struct known prompt[CONTEST_PROMPT];
	uint64_t heap_key[2][CONTEST_IDS]; /* of the shadows that have heaps */
	struct shadow shadow[CONTEST_EXPERTS];
};

uint64_t contest_mix(uint64_t x);

/* ---- the real cache (evict_contest.c) ---- */

/*
 * If the shadows see all there is, the leader's says what the real cache should hold. That is
 * then always in the structures of the first algorithm; what the leader does not hold is put
 * aside, and goes first.
 */
bool contest_follows(const struct kvp_evict *e);
void contest_put_aside(struct kvp_evict *e, uint32_t id, uint64_t key);
/* For tests: this one shall take over next. */
void contest_favour(struct kvp_evict *e, uint32_t expert);

/* ---- shadows (evict_contest_shadow.c) ---- */

/* -ENOMEM; done() frees what there is of them. */
int contest_shadows_init(struct evict_contest *c);
void contest_shadows_done(struct evict_contest *c);
/* The id of this key; NONE: the shadow does not hold it. */
uint32_t contest_shadow_find(const struct shadow *s, uint64_t key);
/* All shadows live through the request told of, and are compared. */
void contest_flush(struct evict_contest *c);
bool contest_sampled(const struct evict_contest *c, uint64_t key);
/*
 * Which part of the traffic the shadows see, by the capacity of the real cache: at the beginning,
 * or when it has changed.
 */
void contest_sample(struct evict_contest *c, bool begin);
uint64_t contest_shadows_memory(const struct evict_contest *c);
int contest_shadows_check(const struct evict_contest *c);

#endif
