/* SPDX-License-Identifier: Apache-2.0 */
/* Commits: an entry of the ring becomes a block, or joins one that is there already. */
#ifndef KVPD_COMMIT_H
#define KVPD_COMMIT_H

#include <stdint.h>

#include "shm/kvp_abi.h"

struct kvpd_session;

/* What became of a commit, for those that name it as parent. */
struct kvpd_outcome {
	uint32_t serial;
	uint16_t known;
	uint16_t parked; /* not known yet */
	uint32_t block;  /* KVP_BLOCK_NONE: refused */
	uint32_t birth;
};

/* Serves a COMMIT, with its completion; or it waits from now on. */
void kvpd_commit_serve(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now);
/* One that waits for nothing, or no more: publishes; or refuses. `flags` for the completion. */
void kvpd_commit_now(
	struct kvpd_session *s, const struct kvp_sqe *sqe, uint32_t flags, uint64_t now);
void kvpd_commit_refuse(
	struct kvpd_session *s, const struct kvp_sqe *sqe, uint32_t flags, int status);

#endif
