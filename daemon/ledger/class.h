/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Size classes: all slots of one size in one medium of a tenant. Spaces whose blocks are of one size
 * share one.
 */
#ifndef KVPD_CLASS_H
#define KVPD_CLASS_H

#include <stdint.h>

#include "daemon/ledger/list.h"
#include "shm/kvp_abi.h"

struct kvpd_tenant;

#define KVPD_CLASSES (2 * KVP_MAX_SPACES)

struct kvpd_class {
	uint32_t medium;  /* where its extents lie, see medium.h */
	uint32_t tier;    /* KVP_TIER_*, which follows from that */
	uint32_t extents; /* of all kinds and states */
	uint64_t slot_bytes;
	struct kvpd_list vaults; /* extents */
	uint64_t vault_slots;    /* of LIVE vault extents that do not drain */
	uint64_t vault_free;
	uint32_t making;       /* vault extents under way */
	uint64_t last_take_ns; /* when a vault slot was last taken */
	uint64_t came_ns;      /* when it last got a vault extent */
	uint64_t refused_ns;   /* growth failed for lack of memory: not again before */
};

/* What a slot for blocks of this size measures: a multiple of 64. */
uint64_t kvpd_slot_bytes(uint64_t block_bytes);
/* The tenant's class of this size, made if need be. NULL: it has KVPD_CLASSES others in use. */
struct kvpd_class *kvpd_class_get(struct kvpd_tenant *t, uint32_t medium, uint64_t slot_bytes);
/* That of a space's blocks in a medium; NULL: as above. */
struct kvpd_class *kvpd_class_of(struct kvpd_tenant *t, uint32_t space, uint32_t medium);

#endif
