/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the default policy share: requests and operations (evict_hazard.c, which tells
 * what all this is), groups and their order (evict_hazard_group.c), and what is learnt
 * (evict_hazard_learn.c). `self` of every kvp_evict here is a struct hazard.
 */
#ifndef KVP_POLICY_EVICT_HAZARD_H
#define KVP_POLICY_EVICT_HAZARD_H

#include <string.h>

#include "policy/evict_hazard_class.h"
#include "policy/evict_impl.h"

#define NONE         KVP_BLOCK_NONE
#define QUEUED       (EVICT_HEAP + 1u) /* `where` of a block in its group's list */
#define SUB_BITS     1u
#define PER_OCTAVE   (1u << SUB_BITS)
#define FIRST_OCTAVE 10u /* ages below 2^10 share bin 0 */
#define LAST_OCTAVE  46u /* 2^26 mean steps: more requests than anyone remembers */
#define BINS         (PER_OCTAVE * (LAST_OCTAVE - FIRST_OCTAVE))
#define CELLS        (CLASSES * BINS)
#define PILES        (CELLS + 1024u)
#define LEVELS       1024u
#define PER_DOUBLE   16 /* levels */
#define SIZE_SHIFT   22 /* bits of a float: two sizes an octave */
#define SIZE_LEVELS  (PER_DOUBLE / 2)
#define SIZE_MIDDLE  128
#define NEWEST_SIZES 8u
#define REQUESTS     16u       /* served at the same time; more only blur classes */
#define STEP_LOG2    20u       /* of the policy's own clock: a request, on average */
#define STEP         1048576.0 /* 2^STEP_LOG2 */
#define FLOOR_BIN    ((STEP_LOG2 - FIRST_OCTAVE) * PER_OCTAVE) /* ages up to this bin are one */

struct group {
	uint64_t born;
	struct index_link in_bin;  /* in the timeline of its bin; `old` links free groups */
	struct index_link in_pile; /* while it has queued blocks */
	struct index_link blocks;  /* those of its blocks that are queued */
	uint32_t queued;
	uint32_t total; /* cached blocks that belong to it, queued or not */
	uint16_t pile;  /* while it has queued blocks */
	uint8_t code;   /* of its class */
	uint8_t size;
	uint8_t bin;
	uint8_t request; /* REQUESTS: of none */
	uint16_t gap;    /* mean time between its uses so far, in steps; see gap_of() */
};
static_assert(sizeof(struct group) == 48, "12 bytes a block at one group for four blocks");

struct cell {
	float entries;
	float events;
};

/*
 * Groups of one cell and size, since the index is that of the cell by bytes. The first CELLS of
 * them belong to the cells; where there are several sizes, others join in.
 */
struct pile {
	struct index_link groups;   /* with queued blocks */
	struct index_link in_level; /* while it has groups */
	uint16_t cell, sibling;     /* sibling: of the same cell; links free ones */
	uint16_t level;
	uint8_t size;
};

/* A request whose blocks may still be coming. */
struct request {
	uint32_t seen, fresh; /* its groups, or NONE */
	uint32_t count;       /* blocks that nobody knew */
	uint32_t uses;        /* turns before this one; TURNS: as many and more */
	float gap;            /* mean time between them, in steps */
	uint32_t cold;   /* 1..COLDS: it began with nothing known, and so did others before it */
	bool known;      /* one of its blocks was */
	uint32_t branch; /* log2 of the most chains that a block met so far belongs to */
};

struct hazard {
	struct group *group;
	uint32_t n_groups;
	uint32_t n_used;
	uint32_t free_group;  /* linked by in_bin.old; NONE: take fresh_group */
	uint32_t fresh_group; /* groups from here on were never used */
	uint32_t newest[CLASSES * NEWEST_SIZES];
	struct index_link timeline[BINS];
	struct cell cell[CELLS];
	uint16_t *level; /* of each cell, for blocks of SIZE_MIDDLE: what was learnt */
	uint16_t *spare; /* for the next ones; NULL: a lesson has it */
	struct pile pile[PILES];
	uint16_t free_pile;
	uint32_t size_base;                 /* of blocks of SIZE_MIDDLE; 0: none has come */
	struct index_link in_order[LEVELS]; /* piles */
	uint64_t bitmap[LEVELS / 64];
	struct request request[REQUESTS];
	uint32_t current;
	uint32_t tip;       /* of the current request */
	uint32_t announced; /* tip that request() told of and chain() has yet to touch */
	bool expects_root;  /* request() told of a prompt of which nothing is cached */
	uint64_t now;       /* own clock, see advance() */
	double gap;         /* mean time between requests, in the caller's clock */
	double unknown;     /* share of the last requests of which no block was known */
	uint64_t requests;
	uint64_t uses;  /* of blocks, the first included */
	uint32_t ghost; /* the last one that was counted on */
	uint64_t begun; /* time of the last request */
	uint64_t swept;
	uint64_t changes; /* since it was last learnt from */
	uint64_t seen;    /* before that */
};

/* What was counted at a time, and what is learnt from it. */
struct kvp_evict_lesson {
	struct cell cell[CELLS];
	uint64_t seen;
	double limit; /* of what is counted, see hazard_fade() */
	bool faded;
	uint16_t *level;
};

#define NO_PILE UINT16_MAX
static_assert(PILES < NO_PILE, "piles have 16-bit numbers");
static_assert(CLASSES <= UINT8_MAX, "so have classes, and 8 bits");

static inline uint32_t log2_floor(uint64_t x)
{
	return 63u - (uint32_t)__builtin_clzll(x);
}

static inline uint32_t bin_of(uint64_t age)
{
	if (age < UINT64_C(1) << FIRST_OCTAVE)
		return 0;
	uint32_t octave = log2_floor(age);
	uint32_t bin = (octave - FIRST_OCTAVE) * PER_OCTAVE +
		       (uint32_t)(age >> (octave - SUB_BITS) & (PER_OCTAVE - 1));
	return bin < BINS ? bin : BINS - 1;
}

static inline uint64_t bin_begin(uint32_t bin)
{
	uint32_t octave = bin / PER_OCTAVE + FIRST_OCTAVE;

	if (!bin)
		return 0;
	return UINT64_C(1) << octave | (uint64_t)(bin % PER_OCTAVE) << (octave - SUB_BITS);
}

static inline uint64_t bin_end(uint32_t bin)
{
	return bin + 1 < BINS ? bin_begin(bin + 1) : UINT64_MAX;
}

static inline struct cell *cell_of(struct hazard *h, const struct group *g)
{
	return &h->cell[g->code * BINS + g->bin];
}

/* The upper half of a float. */
static inline float gap_of(const struct group *g)
{
	uint32_t bits = (uint32_t)g->gap << 16;
	float gap;

	memcpy(&gap, &bits, sizeof(gap));
	return gap;
}

static inline void set_gap(struct group *g, float gap)
{
	uint32_t bits;

	memcpy(&bits, &gap, sizeof(bits));
	g->gap = (uint16_t)((bits + 0x8000) >> 16);
}

/* Where the newest group of a class and size is found; of several sizes, if there are many. */
static inline uint32_t *newest(struct hazard *h, uint8_t code, uint8_t size)
{
	return &h->newest[code * NEWEST_SIZES + size % NEWEST_SIZES];
}

/* ---- requests ---- */

/* Forgets all blocks, but nothing learnt. */
void hazard_reset(struct kvp_evict *e);
/* The class of the blocks of a request that it met again (SEEN) or brought (FRESH). */
struct hazard_class hazard_class_of(const struct request *r, enum hazard_kind kind);

/* ---- groups and their order ---- */

void hazard_groups_reset(struct hazard *h);
/* Half octaves from that of the first block. All are equal if their number bounds the cache. */
uint8_t hazard_size_of(const struct kvp_evict *e, uint32_t id);
/*
 * Time has moved on, and groups get older: old bins first, so that no group is moved twice, and so
 * many at most that the call is short. The next ones go on where it ended.
 */
void hazard_sweep(struct kvp_evict *e);
/* A group of this class born about now. Never fails: some group is always there to join. */
uint32_t hazard_group_for(struct kvp_evict *e, struct hazard_class c, uint8_t size, bool may_share);
/* This new group, of which no block is there yet, was born then. */
void hazard_backdate(struct hazard *h, uint32_t i, uint64_t born);
void hazard_group_unref(struct hazard *h, uint32_t i);
void hazard_forget_request(struct hazard *h, uint32_t i);
void hazard_relabel(struct hazard *h, uint32_t i, struct hazard_class c);
/*
 * Queues a detached block of this group at its young or old end; parks it if it has children,
 * which the core brings back when the last of them has gone.
 */
void hazard_queue(struct kvp_evict *e, uint32_t i, uint32_t id, bool young);
void hazard_unqueue(struct kvp_evict *e, uint32_t id);
void hazard_join(struct kvp_evict *e, uint32_t i, uint32_t id, bool young);
/* The oldest block of the smallest index, out of its group; NONE: no block is queued. */
uint32_t hazard_pop_least(struct kvp_evict *e);
/* The level of an index. */
uint16_t hazard_level_of(double index);
/* From now on these are the levels of all cells, and the former ones are where they were. */
void hazard_use_levels(struct hazard *h, uint16_t **level);
int hazard_check(const struct kvp_evict *e, uint64_t in_queues);

/* ---- learning ---- */

/* A block of this group is used again. */
void hazard_count_hit(struct kvp_evict *e, uint32_t i);
/* Enough has changed since then to learn from it. */
bool hazard_is_due(const struct kvp_evict *e);
void hazard_relearn(struct kvp_evict *e);
/* The levels of CELLS cells, of which so many blocks were seen. */
void hazard_learn(const struct cell *cell, uint64_t seen, uint16_t *ret_level);
/*
 * Half of what was counted fades whenever as much again could be: with a memory of a hundred times
 * the cache at least, and of a million blocks (limit). Returns whether it did.
 */
bool hazard_fade(struct cell *cell, double limit);
double hazard_fade_limit(const struct kvp_evict *e);
void hazard_halve(struct cell *cell);

/* ---- in a contest (evict_hazard_adopt.c) ---- */

/*
 * A block that another algorithm ranked, 0 (was to go next) to 1, and that is in no queue. Its age
 * is what LRU would need to bring it there; its class follows from its uses and depth.
 */
void hazard_adopt(struct kvp_evict *e, uint32_t id, double rank);
/*
 * Puts what is not wanted aside (EVICT_ASIDE), in the order in which it would have gone, and takes
 * back what is. NULL: all is wanted.
 */
void hazard_part(struct kvp_evict *e, bool (*wanted)(const struct kvp_evict *e, uint32_t id));

#endif
