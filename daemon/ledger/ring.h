/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client's rings as the ledger serves them. Every word that is read from the page is hostile:
 * loaded once, bounded, and only the private copy is used.
 */
#ifndef KVPD_RING_H
#define KVPD_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_abi.h"

struct kvpd_session;

#define KVPD_ROUND_ENTRIES 32u /* of one session, in one round */
#define KVPD_RETRY_MS      10u /* when a client that got -EAGAIN or -ENOSPC should come again */

/* Serves at most KVPD_ROUND_ENTRIES entries; returns how many. */
uint32_t kvpd_ring_serve(struct kvpd_session *s, uint64_t now);
/* Pushes a completion; there is room for it. */
void kvpd_ring_complete(struct kvpd_session *s, const struct kvp_cqe *cqe);
/* A completion that carries a status and no block. */
void kvpd_ring_answer(
	struct kvpd_session *s, const struct kvp_sqe *sqe, int status, uint32_t flags);
/* Wakes a client that sleeps on its completions. */
void kvpd_ring_wake(struct kvpd_session *s);
/* Notes whether the completion ring is full. */
void kvpd_ring_stall(struct kvpd_session *s, bool stalled);

#endif
