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
struct kvpd_tenant;

/* Completions that must fit before an entry is dealt with. */
#define KVPD_ROOM_FOR_ONE 2u

#define KVPD_RETRY_MS 10u /* when a client that got -EAGAIN or -ENOSPC should come again */

/* Does the ring hold an entry, or claim so? */
bool kvpd_ring_has_entries(const struct kvpd_session *s);
/*
 * Serves entries until then, or until somebody wants the ledger, but one in any case; returns how
 * many.
 */
uint32_t kvpd_ring_serve(struct kvpd_session *s, uint64_t now, uint64_t until_ns);
/* Pushes a completion; there is room for it. */
void kvpd_ring_complete(struct kvpd_session *s, const struct kvp_cqe *cqe);
/* A completion that carries a status and no block. */
void kvpd_ring_answer(
	struct kvpd_session *s, const struct kvp_sqe *sqe, int status, uint32_t flags);
/* Notes whether the completion ring is full. */
void kvpd_ring_stall(struct kvpd_session *s, bool stalled);
/* A chore, once a second: sessions whose completion ring was full and is not any more go on. */
bool kvpd_stalled_step(struct kvpd_tenant *t, uint64_t now);

#endif
