/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefixes: their handles (prefix.c), finding them (match.c), claiming what is missing (claim.c).
 * Any thread, one at a time for each handle, no lock held unless a line says so.
 */
#ifndef KVP_MATCH_H
#define KVP_MATCH_H

#include "libclient/client.h"

/* The space's place in an attachment, NULL if it is not open there. */
static inline const struct space_bind *bind_of(
	const struct attachment *att, const struct kvp_space *space)
{
	const struct space_bind *b = &att->binds[space->number];

	/* Acquire: pairs with the release in space_bind(). */
	return kvp_load_acquire(&b->open) ? b : NULL;
}

/* The space's longest cached prefix in an attachment, under its salt if it has one; kvp_find(). */
static inline void space_find(const struct attachment *att, const struct kvp_space *space,
	const struct space_bind *b, const kvp_token *tokens, uint32_t n, uint32_t flags,
	uint32_t tiers, struct kvp_hit *hits, uint32_t max_hits, struct kvp_found *ret_found)
{
	if (space->salted)
		kvp_find_salted(&att->view, b->index, space->salt, tokens, n, flags, tiers, hits,
			max_hits, ret_found);
	else
		kvp_find_after(&att->view, b->index, NULL, tokens, n, flags, tiers, hits, max_hits,
			ret_found);
}

/* ---- prefix.c -------------------------------------------------------------------------------- */

struct prefix_chunk *prefix_chunk_new(struct kvp_client *client);
/* Is any handle of this attachment in use? */
int prefix_any(struct kvp_client *client, const struct attachment *att);
/* A handle that names the current attachment, pinned, and nothing else; NULL: no memory. */
struct kvp_prefix *prefix_take(struct kvp_space *space);
/* Ends its lease; the handle is free. */
void prefix_drop(struct kvp_prefix *m);
/* Around every look into extents on behalf of a prefix that has no lease. */
void prefix_pin(struct kvp_prefix *m);
void prefix_unpin(struct kvp_prefix *m);
/* Of a leased one that is in attachment.given: another thread that releases it waits for ring_lock. */
void prefix_unpin_other(struct kvp_prefix *m);
/* Is it? One that is leased and the caller's: it was given places that no lease protects, see pending_begin(). */
int prefix_pinned(const struct kvp_prefix *m);
static inline int prefix_live(const struct kvp_prefix *m)
{
	return (uint32_t)kvp_load_relaxed(&m->state) != 0;
}
/* Room for `need` elements; -ENOMEM. */
int array_grow(void **array, uint32_t *cap, uint64_t need, size_t bytes);

/* ---- tokens.c -------------------------------------------------------------------------------- */

/* Token ids of a call, checked; one of the two pointers is set. */
struct tokens {
	const kvp_token *plain;
	const int64_t *wide;
	uint32_t n;
};

/* -EINVAL: too many, or one that no token has. */
int tokens_take(const struct kvp_ids *ids, struct tokens *ret_tokens);
/* Of wide ones: see tokens_at(). */
const kvp_token *tokens_narrow(
	const struct tokens *tokens, uint32_t at, uint32_t n, kvp_token *room);

static inline struct tokens tokens_of(const kvp_token *tokens, size_t n)
{
	return (struct tokens){ .plain = tokens, .n = (uint32_t)n };
}

/* Ids [at, at + n): where they lie, or narrowed into `room`, which is n long. */
static inline const kvp_token *tokens_at(
	const struct tokens *tokens, uint32_t at, uint32_t n, kvp_token *room)
{
	if (!tokens->wide)
		return tokens->n ? tokens->plain + at : NULL;
	return tokens_narrow(tokens, at, n, room);
}

/* ---- match.c --------------------------------------------------------------------------------- */

#define FIND_COUNT      1u /* in the statistics, and as a use */
#define FIND_ANYWHERE   2u /* only what is there: in extents that are not mapped too, and no lease */
#define FIND_ON(device) (((device) + 1u) << 8) /* also what lies on that device, and there first */

/*
 * A prefix without claims, of tokens that follow the whole blocks of `after`, which may be NULL.
 * -EINVAL: `after` is not live, or another space's; -ENOMEM; -ECHILD.
 */
int match_make(struct kvp_space *space, const struct tokens *tokens, const struct kvp_prefix *after,
	uint32_t flags, uint32_t how, struct kvp_prefix **ret_prefix);
/* Searches with a pinned handle that holds no lease; unpins it. */
int match_search(struct kvp_prefix *m, const struct tokens *tokens, uint32_t flags, uint32_t how);
/* Counts a prefix that n tokens were asked for, and as a use, where FIND_COUNT has not. */
void match_count(struct kvp_prefix *m, uint32_t n);
/* Tokens of the sequence that its search did not look at: those of an earlier prefix. */
static inline uint32_t match_base(const struct kvp_prefix *m)
{
	return m->base * m->space->geo.block_tokens;
}
/* Where the bytes of a hit are in this process; NULL if its extent is not mapped. */
const uint8_t *hit_addr(struct attachment *att, const struct kvp_hit *hit);
/* Where they are on a device whose memory only the device addresses; 0: they are not, or not mapped. */
uint64_t hit_there(struct attachment *att, const struct kvp_hit *hit);
/* Turns a hit into the payload that the prefix reads, of those that the block has. 0: it has no such. */
int hit_settle(const struct kvp_prefix *m, struct kvp_hit *hit);
/*
 * How many of the first n hits are proven, after a lease was taken on the last of them. What moved before that is
 * followed, and proven where it is now.
 */
uint32_t hits_prove(struct kvp_prefix *m, uint32_t n);
/* Can this process read it? Asks for its extent where that is what lacks. */
int hit_readable(const struct kvp_prefix *m, const struct kvp_hit *hit);
/* Asks the library's thread for an extent, once. */
void extent_want(struct attachment *att, uint32_t id);

/* ---- device.c -------------------------------------------------------------------------------- */

/*
 * Around pending_find() of a leased prefix's blocks; takes ring_lock and lets go of it. `given`: the caller hands out an
 * address that was found so. Such a place is not the block's yet, and if its copy fails nothing keeps the extent, while
 * kernels that were enqueued with the address may run still. So the handle stays pinned, as those are that look into
 * any extent, and kvp_release_after() leaves its moment for those that are retired (attachment.early_until). When all
 * tickets that gave it places have ended well, its lease protects what lies there, and it is pinned no more.
 */
void pending_begin(struct kvp_prefix *m);
void pending_end(struct kvp_prefix *m, uint64_t given);
/*
 * Where a ticket of this client is about to have block i on the device. Returns its bit, which pending_end() is given if
 * the caller hands out the address. 0: none is.
 */
uint64_t pending_find(
	const struct kvp_prefix *m, uint32_t i, uint32_t device, struct kvp_hit *ret_hit);
/* It is released. */
void pending_forget(struct kvp_prefix *m);

/* ---- keys.c ---------------------------------------------------------------------------------- */

/* Of a PREFIX_KEYS: all blocks as used; all leases end, 0: now, or at the moment. */
void keys_touch(struct kvp_prefix *m);
void keys_drop(struct kvp_prefix *m, uint64_t until);

/* ---- claim.c --------------------------------------------------------------------------------- */

/*
 * Claims what is missing, if whole blocks are: the rest is less work than asking. A block that has
 * appeared meanwhile, but in an extent that is not mapped here yet, is worth waiting for.
 */
int claim_missing(
	struct kvp_prefix *m, const struct tokens *tokens, const struct kvp_match_opts *o);
/* Of a prefix that was CLAIMED, if no commit has used the claim up. */
void claim_give_up(struct kvp_prefix *m);
/*
 * ring_lock held. If this client claims the block that is being committed, the commit names the
 * claimed chain's next block, and the claim moves on once the commit stands in the ring.
 */
void claim_name_next(struct attachment *att, struct kvp_key key, struct kvp_sqe *sqe);
void claim_advance(struct attachment *att, struct kvp_key key);

#endif
