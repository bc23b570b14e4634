/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to the ledger and its answers (ring.c), and the slots that it grants (grant.c).
 * ring_lock is held in all of these, unless a line says otherwise; those that wait drop it and take
 * it again.
 */
#ifndef KVP_CLIENT_RING_H
#define KVP_CLIENT_RING_H

#include "libclient/client.h"

/* The current attachment with one more reference, or NULL. */
struct attachment *attachment_get(struct kvp_client *client);
void attachment_put(struct attachment *att);
/* Takes what the ledger has answered. */
void ring_drain(struct attachment *att);
/* -EAGAIN: no room until the deadline, or stuck; -ESHUTDOWN. Wakes the ledger if it sleeps. */
int ring_submit(struct attachment *att, const struct kvp_sqe *sqe, uint64_t deadline);
/* Waits for a further completion; -ETIMEDOUT, at once if stuck, -ESHUTDOWN. Drains at its end. */
int ring_wait(struct attachment *att, uint64_t deadline);
/* Does the ledger still owe an answer to a call that has given up? Drains. */
int ring_stuck(struct attachment *att);
/* Submits and waits for the one answer. Fills in the serial. -EAGAIN: it was not asked. */
int ring_ask(
	struct attachment *att, struct kvp_sqe *sqe, uint64_t deadline, struct kvp_cqe *ret_cqe);
void grant_return(struct kvp_grant *grant);
/* Has the ledger look at this session. */
void ledger_wake(struct attachment *att);
/* Has the library's thread come by for what is left over. */
void ask_sweep(struct attachment *att);

/* futex(2) on a shared word, without EINTR; returns when it may have changed or at the deadline. */
void word_wait(KVP_ATOMIC(uint32_t) *word, uint32_t seen, uint64_t deadline);
void word_wake(KVP_ATOMIC(uint32_t) *word);

/* ---- grant.c --------------------------------------------------------------------------------- */

/* Flags of a put or a commit: `known`, and what the tokens are. */
static inline bool flags_known(uint32_t flags, uint32_t known)
{
	return !(flags & ~(known | KVP_IS_MASK)) && (flags & KVP_IS_MASK) <= KVP_IS_GENERATED;
}

/* All of the space's stock goes back; or what was not asked for since `before`. */
void stock_return(struct attachment *att, struct space_bind *bind);
void stock_idle(struct attachment *att, struct space_bind *bind, uint64_t before);
/* As kvp_reserve(); `want` slots, this one included, are likely to be asked for soon. */
int grant_reserve(struct attachment *att, struct kvp_space *space, uint32_t want, uint64_t deadline,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grant);
/* The same in a medium: 0: DRAM; n + 1: device n. Whatever kvp_reserve_on() returns. */
int grant_reserve_at(struct attachment *att, struct kvp_space *space, uint32_t medium,
	uint32_t want, uint64_t deadline, uint32_t *ret_retry_ms, struct kvp_grant **ret_grant);
/*
 * On a device, for who takes DRAM where there is no room: nobody waits for any. -EAGAIN: there was none, or none a moment
 * ago; -EDQUOT: the client has all the slots that it may have; else as above.
 */
int grant_reserve_there(struct attachment *att, struct kvp_space *space, uint32_t medium,
	uint32_t want, struct kvp_grant **ret_grant);
/* The same, any thread, for a client of this process: takes ring_lock itself. *ret_retry_ms is set with -EAGAIN. */
int reserve_until(struct kvp_space *space, uint32_t medium, uint32_t want, uint64_t deadline,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grant);
/* The client of n grants of one attachment; -EINVAL: they are not, or none; -ECHILD. */
int run_client(struct kvp_grant *const *grants, uint32_t n, struct kvp_client **ret_client);
/*
 * Are they all to be committed, to one space, and none of them twice? What they say of themselves is
 * only believed of grants of one attachment. 0, -EALREADY, -EINVAL.
 */
int run_check(struct kvp_grant *const *grants, uint32_t n);
/*
 * As kvp_commit(), with the number of the kvp_put() or 0, and the moment (kvp_until()) at which to
 * publish or 0; `before`: the key of a block that is to be evicted after it, or NO_KEY. *ret_ref names
 * the block to be.
 */
int grant_commit(struct kvp_grant *g, struct kvp_ref parent, const kvp_token *tokens, uint32_t n,
	uint32_t flags, uint64_t until, uint64_t deadline, uint64_t put, struct kvp_key before,
	struct kvp_ref *ret_ref);
/* The caller's handle is gone; the slot is given back at the moment, or now if that has come or is none (0). */
void grant_drop_at(struct kvp_grant *g, uint64_t until);
/* The caller's hold ends, and the slot is given back. */
void grant_drop(struct kvp_grant *g);

#endif
