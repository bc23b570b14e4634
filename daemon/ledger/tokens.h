/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much the tokens of a block matter beside each other, by the attention that clients report of them
 * (KVP_OP_TOKENS, kvp_report_token_attention()), and the bits that each gets for it where the block is coded under a
 * floor of the family smart (payload/kvp_payload.h). Which width the block as a whole goes to is importance.h's
 * and budget.h's business; this shares the block's bits out among its tokens, by policy/kvp_precision.h: the
 * optimum up to 64 of them.
 *
 * Kept are 64 levels of two bytes for each of a tenant's descriptors, from the first such report on and as long as
 * any of its spaces has a floor; they are charged like those of importance.h. A block of more tokens has one
 * level for every two, three, ... of them. A level is the average of what was reported (kvp_allot_learn()), as a
 * multiple of the mean of the block, and stays until the next report. Of blocks of which nothing was reported all
 * tokens get the same.
 *
 * Nothing gets bits back: a token that has fewer than its attention would buy now keeps those.
 */
#ifndef KVPD_TOKENS_H
#define KVPD_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "payload/kvp_payload.h"
#include "shm/kvp_abi.h"

struct kvpd_codes;
struct kvpd_move;
struct kvpd_session;
struct kvpd_tenant;

#define KVPD_TOKEN_LEVELS 64u
#define KVPD_TOKEN_BITS   4u /* 2, 3, 4 and 8 */

/* Of a block; 0: nothing is known. */
struct kvpd_token_levels {
	uint16_t at[KVPD_TOKEN_LEVELS];
};

/* In a tenant. */
struct kvpd_tokens {
	struct kvpd_token_levels *of;    /* [layout.max_blocks]; NULL: nobody has reported */
	uint64_t charged;                /* bytes; before `of` is there if there is no room yet */
	uint64_t reported;               /* tokens that reports were about */
	uint64_t coded[KVPD_TOKEN_BITS]; /* tokens that were given so many bits */
};

/* An entry of the ring. */
void kvpd_tokens_report(struct kvpd_session *s, struct kvp_sqe *sqe);
/* What is known of a block; false: nothing. */
bool kvpd_tokens_read(
	const struct kvpd_tenant *t, uint32_t block, struct kvpd_token_levels *ret_levels);
/* The descriptor is another block's now. */
void kvpd_tokens_forget(struct kvpd_tenant *t, uint32_t block);
/* A space goes: nothing is kept if none is left that has a floor; charged until the memory has gone. */
void kvpd_tokens_leave(struct kvpd_tenant *t);
void kvpd_tokens_free(struct kvpd_tenant *t);

/* ---- on a mover's thread */

/* What shares bits out, for one job; NULL: no memory, and then all tokens get the same. */
struct kvpd_sharing;
struct kvpd_sharing *kvpd_sharing_new(const struct kvpd_codes *codes);
struct kvpd_sharing *kvpd_sharing_free(struct kvpd_sharing *sharing);
/* The bits of a move's tokens; levels: what is known, or NULL. Valid until the next call. */
struct kvp_payload_tokens kvpd_sharing_bits(struct kvpd_sharing *sharing,
	const struct kvpd_codes *codes, const struct kvpd_move *move,
	const struct kvpd_token_levels *levels);
/* Counts what the tokens of a payload have come to, in keys where these have bits of their own, else in values. */
void kvpd_sharing_count(const struct kvpd_codes *codes, const struct kvpd_move *move,
	uint64_t coded[KVPD_TOKEN_BITS]);

#endif
