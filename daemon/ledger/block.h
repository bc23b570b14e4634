/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of a tenant: publishing, reviving, taking their payloads, with the ledger's own state
 * beside the catalog's.
 *
 * A LIVE block's parent is LIVE, because eviction goes leaf-first and a block is only published or
 * revived below a LIVE parent. Hence a RECIPE block's children are RECIPE, and some RECIPE block is
 * always childless and can be forgotten.
 */
#ifndef KVPD_BLOCK_H
#define KVPD_BLOCK_H

#include "daemon/ledger/extent.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/tenant.h"

#define KVPD_BLOCK_MOVING \
	1u /* its payload is copied, or one is about to go: neither evicted nor deleted */
#define KVPD_BLOCK_HELD   2u   /* its payload's slot is still granted */
#define KVPD_BLOCK_DOOMED 4u   /* in the list of deletions that wait */
#define KVPD_BLOCK_KEEP   8u   /* the ledger needs it in this step */
#define KVPD_BLOCK_LEASED 16u  /* it is about to be switched over, and a lease protects it */
#define KVPD_BLOCK_ASKED  32u  /* kvpd_lease_prove() is asked about it */
#define KVPD_BLOCK_AHEAD  64u  /* it came to its device ahead of need, and nobody used it since */
#define KVPD_BLOCK_BEHIND 128u /* its payload on a device is copied to DRAM (behind.h) */
/* In spaces with a floor, see precision.h: when it was last used, and blocks that follow it. */
#define KVPD_BLOCK_USED       (1u << 8) /* times a number of 6 bits */
#define KVPD_BLOCK_USED_MASK  (63u * KVPD_BLOCK_USED)
#define KVPD_BLOCK_BELOW      (1u << 14) /* times one of 5 bits */
#define KVPD_BLOCK_BELOW_MASK (31u * KVPD_BLOCK_BELOW)
#define KVPD_BLOCK_TIP        (1u << 19) /* times the sessions whose tip it is; the last of the flags */

/*
 * What the ledger keeps of a descriptor besides the catalog and the policy. A lease may name any block:
 * what is kept of those with a payload alone is written only where kvpd_block_holds().
 */
struct kvpd_block {
	uint32_t children; /* descriptors that name it as parent */
	uint32_t flags;
	union {
		/* With a payload. */
		struct {
			uint32_t look
				[KVPD_LOOK_KINDS]; /* the last looks that found it leased (lease.h) */
			uint32_t walked;           /* the last walk that came by (switch.h) */
		};
		/* RECIPE. */
		struct {
			uint32_t prev, next; /* without children: neighbours in order of age */
			/* how many payloads had gone for room when its own did; 0: it went otherwise */
			uint32_t evicted;
		};
	};
};

struct kvp_key kvpd_block_key(const struct kvpd_tenant *t, uint32_t block);
/* The parent's key, or the root of the block's space, under its salt if it has one. */
struct kvp_key kvpd_parent_key(const struct kvpd_tenant *t, uint32_t block);

static inline uint64_t kvpd_block_word(const struct kvpd_tenant *t, uint32_t block)
{
	return kvp_load_relaxed(&t->view.blocks[block].word);
}

static inline uint32_t kvpd_block_state(const struct kvpd_tenant *t, uint32_t block)
{
	return kvp_word_state(kvpd_block_word(t, block));
}

/* Does it have a payload? Else it is FREE or RECIPE. */
static inline bool kvpd_block_holds(const struct kvpd_tenant *t, uint32_t block)
{
	uint32_t state = kvpd_block_state(t, block);

	return state == KVP_BLOCK_LIVE || state == KVP_BLOCK_EVICTING;
}

/*
 * Does it have a payload that stays? So has a block that is coded anew or loses a copy on a device: it is EVICTING
 * while leases are looked for.
 */
static inline bool kvpd_block_lives(const struct kvpd_tenant *t, uint32_t block)
{
	uint32_t state = kvpd_block_state(t, block);

	return state == KVP_BLOCK_LIVE ||
	       (state == KVP_BLOCK_EVICTING && (t->block[block].flags & KVPD_BLOCK_MOVING));
}

/* What, other than a lease, keeps a payload. */
#define KVPD_KEPT_GRANTED 1u
#define KVPD_KEPT_PINNED  2u /* by the administrator */
#define KVPD_KEPT_MOVING  4u
#define KVPD_KEPT_STEP    8u /* the ledger needs it in this step */
unsigned kvpd_block_kept(const struct kvpd_tenant *t, uint32_t block);

/* The payload of a block in a tier, as the catalog has it. */
static inline const struct kvp_payload_desc *kvpd_block_payload(
	const struct kvpd_tenant *t, uint32_t block, uint32_t tier)
{
	return &t->view.blocks[block].payload[tier];
}

/* The first tier in which a block has a payload; KVP_TIER_RECIPE: it has none. */
uint32_t kvpd_block_tier(const struct kvpd_tenant *t, uint32_t block);
/* Has it a payload in DRAM? */
static inline bool kvpd_block_in_dram(const struct kvpd_tenant *t, uint32_t block)
{
	return kvp_load_relaxed(&kvpd_block_payload(t, block, KVP_TIER_DRAM)->where) != 0;
}
/* Has it a payload on a device and none in DRAM? */
static inline bool kvpd_block_only_there(const struct kvpd_tenant *t, uint32_t block)
{
	return !kvpd_block_in_dram(t, block) &&
	       kvp_load_relaxed(&kvpd_block_payload(t, block, KVP_TIER_VRAM)->where);
}
/* Is the slot of one of its payloads granted? */
bool kvpd_block_granted(const struct kvpd_tenant *t, uint32_t block);
/* Where the payload of a block in this tier lies; false: it has none there. */
bool kvpd_block_place(
	const struct kvpd_tenant *t, uint32_t block, uint32_t tier, struct kvpd_place *ret_place);
/*
 * Enters where the payload lies in the place's tier; checksum 0: not computed. Readers see it when
 * the block is published or its word changes. Slots are the caller's business.
 */
void kvpd_block_lay(struct kvpd_tenant *t, uint32_t block, struct kvpd_place place, uint32_t codec,
	uint32_t bytes, uint64_t checksum);
/* The same of a LIVE block that lies elsewhere in DRAM: it is LIVE there, see kvp_block_move(). */
void kvpd_block_move(struct kvpd_tenant *t, uint32_t block, struct kvpd_place place, uint32_t codec,
	uint32_t bytes, uint64_t checksum);

/* The key above the first block of a chain; salt: NULL: none. */
struct kvp_key kvpd_root_key(const struct kvpd_tenant *t, uint32_t space, const kvp_token *salt);

struct kvpd_new_block {
	uint32_t space;
	uint32_t parent; /* KVP_BLOCK_NONE: first of a chain */
	uint32_t after;  /* without a parent: a LIVE block that is evicted after it, or NONE */
	struct kvp_key key;
	uint32_t n_tokens;
	const kvp_token *tokens; /* private */
	const kvp_token *salt;   /* private; only without a parent; NULL: none */
	struct kvpd_place place;
};

/* A LIVE block of the space with this key, unproven; KVP_BLOCK_NONE: there is none. */
uint32_t kvpd_block_keyed(const struct kvpd_tenant *t, uint32_t space, struct kvp_key key);
/* The block that is evicted after this one, as the policy has it; KVP_BLOCK_NONE: none. */
uint32_t kvpd_block_after(const struct kvpd_tenant *t, uint32_t block);
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
/*
 * What was committed is there already, as this block. If it has no payload in the new one's tier, and is not
 * just being copied there, that becomes its.
 */
void kvpd_block_add_payload(
	struct kvpd_tenant *t, const struct kvpd_new_block *b, uint32_t block, uint64_t now);
/*
 * Takes the payloads, in all tiers, of a block that is EVICTING, unleased, and out of the policy:
 * it becomes a RECIPE or, with `forget` and if it has no children, free.
 */
void kvpd_block_take(struct kvpd_tenant *t, uint32_t block, bool forget);
/*
 * Takes the payload on a device of a block that is EVICTING and unleased, `for_room`: for others' sake. It is LIVE again, or a RECIPE if
 * that was the last. -EBUSY: blocks below it lie there, or would have to go as well; -ENOENT: it has none.
 * Then nothing has changed.
 */
int kvpd_block_drop_copy(struct kvpd_tenant *t, uint32_t block, bool for_room, uint64_t now);
/* Makes the descriptor free: of an EVICTING or RECIPE block without payload or children. */
void kvpd_block_release(struct kvpd_tenant *t, uint32_t block);

#endif
