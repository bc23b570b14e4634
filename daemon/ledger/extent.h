/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents, their slots, and places: a slot of an extent.
 *
 * Who holds a slot
 * ----------------
 *	free		in the extent's free list
 *	GRANTED		a session may write it or, after its commit, still reads it
 *	block		the payload of a published block lies in it (together with GRANTED until
 *			the grant is released)
 *	TARGET		a mover is copying into it
 *	LIMBO		its block has moved away; a lease that was there at that time may still
 *			read it
 *
 * An extent's bytes are charged to its tenant from kvpd_extent_new() to kvpd_extent_free().
 */
#ifndef KVPD_EXTENT_H
#define KVPD_EXTENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/ledger/list.h"
#include "shm/kvp_abi.h"

struct kvpd_class;
struct kvpd_hosting;
struct kvpd_segment;
struct kvpd_session;
struct kvpd_tenant;

#define KVPD_EXTENT_SLOTS (1u << 17) /* at most, of one extent */

#define KVPD_SLOT_GRANTED 1u
#define KVPD_SLOT_TARGET  2u
#define KVPD_SLOT_LIMBO   4u
/* A dead worker's hardware may write here still: free again when the extent is gone, and never before. */
#define KVPD_SLOT_LOST 8u

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
	bool closed;   /* gives no more slots; its blocks stay, see kvpd_extent_orphan() */
	bool unproven; /* all have unmapped it, they say, but somebody has it still */
	bool written;  /* and may write there */
	uid_t uid;     /* of an arena's client */
	int fd;        /* of a segment that no client writes: the device's */
	int watch;     /* of memory that was let go, among ledger->watches_fd; or -1 */
	void *addr;    /* vault: writable; arena: read-only */
	uint64_t bytes;
	uint32_t slots;
	uint32_t used;
	uint32_t lost;   /* of these: KVPD_SLOT_LOST, which keep no extent */
	uint32_t moving; /* of these: blocks on their way out, which may come to stay */
	uint32_t free_head;
	uint32_t hand;    /* where the search for blocks to move goes on */
	uint64_t rest_ns; /* it found nothing: not again before */
	/* `draining`: how many were here when that last changed, and when; see kvpd_extent_stuck(). */
	uint32_t left;
	uint64_t left_ns;
	uint64_t kept_ns; /* it was given up to empty it: not again before; 0: it never was */
	uint32_t keeps;   /* times that it was */
	struct kvpd_slot *slot;
	/* RETIRING: a bit for each session (by place) that has not unmapped it. */
	uint64_t *unacked;
	uint32_t n_unacked;
	/* See medium.h. */
	uint32_t first_slot;                           /* of a device's extent, see kvp_abi.h */
	struct kvpd_segment *segment;                  /* likewise; NULL in DRAM */
	struct kvpd_hosting *hosting[KVP_MAX_DEVICES]; /* in DRAM, as devices know it; or NULL */
	bool leaving; /* to be let go when no device knows it any more */
};

struct kvpd_place {
	struct kvpd_extent *extent;
	uint32_t slot;
	uint32_t tier; /* KVP_TIER_*, of the extent's class */
};

/*
 * MAKING, without memory. A device's has no more slots than its part may have still, and is smaller
 * then. NULL: it may have none, there is no memory for them, or the tenant has KVP_MAX_EXTENTS.
 */
struct kvpd_extent *kvpd_extent_new(
	struct kvpd_tenant *t, struct kvpd_class *c, uint32_t kind, uint64_t bytes);
/* Its memory is gone already. */
void kvpd_extent_free(struct kvpd_extent *x);
/*
 * An extent that comes to nothing, whose owner may ask for another: it has no memory, and is freed;
 * or it has, which nobody else has mapped, and is dropped.
 */
void kvpd_extent_give_up(struct kvpd_extent *x);
void kvpd_extent_unwanted(struct kvpd_extent *x);
/* At the tenant's end, on any thread: all extents, with their memory. */
void kvpd_extent_free_all(struct kvpd_tenant *t);

/* Are slots given out? */
bool kvpd_extent_gives(const struct kvpd_extent *x);
/* Has the extent a place in what the sessions' arenas in DRAM may take? */
bool kvpd_extent_is_dram_arena(const struct kvpd_extent *x);
/* Do its slots count in the class: is it a vault extent that gives slots? */
bool kvpd_extent_counts(const struct kvpd_extent *x);

/* Does nothing lie there, or come to lie there? */
bool kvpd_extent_empty(const struct kvpd_extent *x);
/* Is a quarter of its slots lost? It is emptied, and again when what kept it has been left in peace for a while. */
bool kvpd_extent_worn(const struct kvpd_extent *x);

/* A free slot, in use for these reasons from now on. False: there is none, or it gives none. */
bool kvpd_slot_take(struct kvpd_extent *x, uint32_t flags, uint32_t *ret_slot);
/* Clears reasons why a slot is in use; without any it is free. */
void kvpd_slot_clear(struct kvpd_place p, uint32_t flags);
/* The slot was to be copied into, and is not any more. If the copy came too `late` it is lost. */
void kvpd_slot_missed(struct kvpd_place p, bool late);
void kvpd_slot_unblock(struct kvpd_place p);

struct kvpd_place kvpd_place_at(struct kvpd_extent *x, uint32_t slot);
/* In the extent, and (DRAM) in this process. */
uint64_t kvpd_place_offset(struct kvpd_place p);
void *kvpd_place_addr(struct kvpd_place p);

#endif
