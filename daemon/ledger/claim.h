/* SPDX-License-Identifier: Apache-2.0 */
/* Single flight: claims, by which a session says that it is computing a missing block. */
#ifndef KVPD_CLAIM_H
#define KVPD_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_types.h"

struct kvpd_session;
struct kvpd_tenant;

#define KVPD_SESSION_CLAIMS 64u

/* -EBUSY: another session has it. -ENOBUFS: too many claims. ttl_ms 0: the configured one. */
int kvpd_claim_set(struct kvpd_session *s, struct kvp_key key, uint64_t ttl_ms, uint64_t now);
/* If that session has it. */
void kvpd_claim_end(struct kvpd_tenant *t, struct kvp_key key, uint32_t session);
/* After a commit of `key`: the claim on it ends; if it is the session's own it moves to `next`. */
void kvpd_claim_committed(
	struct kvpd_session *s, struct kvp_key key, struct kvp_key next, uint64_t now);
void kvpd_claim_end_session(struct kvpd_session *s);
/* A chore, once a second: ends the claims whose time is over. */
bool kvpd_claim_step(struct kvpd_tenant *t, uint64_t now);

#endif
