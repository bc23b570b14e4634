/* SPDX-License-Identifier: Apache-2.0 */
/* Single flight: claims, by which a session says that it is computing a missing block. */
#ifndef KVPD_CLAIM_H
#define KVPD_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_types.h"

struct kvpd_new_block;
struct kvpd_session;
struct kvpd_tenant;

#define KVPD_SESSION_CLAIMS 64u

/* -EBUSY: another session has it. -ENOBUFS: too many claims. ttl_ms 0: the configured one. */
int kvpd_claim_set(struct kvpd_session *s, struct kvp_key key, uint64_t ttl_ms, uint64_t now);
/* If that session has it. */
void kvpd_claim_end(struct kvpd_tenant *t, struct kvp_key key, uint32_t session);
/* After a commit: the claim on the block ends; if it is the session's own it moves to `next`, and says what computing took. */
void kvpd_claim_committed(
	struct kvpd_session *s, const struct kvpd_new_block *b, struct kvp_key next, uint64_t now);
/*
 * What computing a token of the space takes its engines, in seconds: the time from a claim to its commit, on average of the last
 * tens of thousands of tokens. A prompt is claimed block by block and computed as one; so what is measured are sums. Of a space
 * whose engines claim nothing it is that of the tenant's others, or KVPD_TOKEN_SECONDS.
 */
#define KVPD_TOKEN_SECONDS 1e-4
double kvpd_claim_token_seconds(const struct kvpd_tenant *t, uint32_t space);
/*
 * As a multiple of what it takes on average in all of the tenant's spaces: a machine that is busy for a while is no reason to
 * keep what was stored then.
 */
double kvpd_claim_token_cost(const struct kvpd_tenant *t, uint32_t space);
void kvpd_claim_end_session(struct kvpd_session *s);
/* A chore, once a second: ends the claims whose time is over. */
bool kvpd_claim_step(struct kvpd_tenant *t, uint64_t now);

#endif
