/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room on devices: slots for blocks that come, made by taking payloads, there alone, of blocks that the
 * device's policy names and no lease protects; what came back soon twice goes after all others (again.h). The switch proves the latter (switch.h): it marks them,
 * scans all leases and their chains in portions, and gives the words back. A block that lies nowhere else
 * is copied to DRAM first (behind.h); if that cannot be it becomes a RECIPE.
 */
#ifndef KVPD_ROOM_H
#define KVPD_ROOM_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_class;
struct kvpd_extent;
struct kvpd_move_job;
struct kvpd_place;
struct kvpd_session;
struct kvpd_tenant;

/* What one who wants a slot has tried so far; all zero at first. */
struct kvpd_room {
	bool again;     /* it goes on at once, in another portion; else when something happens */
	bool looked;    /* leases were looked at for it, */
	uint32_t look;  /* by this look; 0: none was asked for */
	uint32_t vain;  /* searches that found nothing */
	uint32_t tries; /* jobs that were begun */
};

/*
 * A slot on the device for a block of so many bytes, flagged TARGET. 1: here it is; 0: not yet, and
 * kvpd_warm_again() follows when there may be one; -ENOSPC: all that there is stays.
 */
int kvpd_room_take(struct kvpd_tenant *t, uint32_t medium, uint64_t block_bytes, uint64_t now,
	struct kvpd_room *room, struct kvpd_place *ret_place);
/*
 * The same for this block of which the advisor alone thinks that it is wanted there: only what its ranking knows and
 * scores lower than the block goes, one block, and nothing else has to make way.
 */
int kvpd_room_below(struct kvpd_tenant *t, uint32_t medium, uint64_t block_bytes, uint32_t block,
	uint64_t now, struct kvpd_room *room, struct kvpd_place *ret_place);
/* Has some payloads taken in the arenas that the session has of the class. As kvpd_room_take(); never 1. */
int kvpd_room_own(
	struct kvpd_session *s, struct kvpd_class *c, uint64_t now, struct kvpd_room *room);
/* A device's extent that drains: has some of its payloads taken. Returns of how many blocks. */
uint32_t kvpd_room_empty(struct kvpd_extent *x, uint64_t now);
/* The block's payload there is damaged: it goes, if no lease protects it and nothing is below it there. */
void kvpd_room_damaged(struct kvpd_tenant *t, uint32_t block);
/* The switch is through with a job of these. */
void kvpd_room_dropped(struct kvpd_tenant *t, const struct kvpd_move_job *job);

#endif
