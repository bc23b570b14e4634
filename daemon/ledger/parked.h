/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries that wait: a COMMIT until a moment on a timeline of its client, or until the commit that it
 * names as its parent has been published, which waits itself; a FLUSH until all that waited before it
 * is done. Each is answered twice, at once with KVP_CQE_PARKED and later with what became of it.
 *
 * What waits for different moments does not wait for each other: the entries are looked at in their
 * order, and every one that can be done is. So a chain whose moments come in order is published in
 * order, and all of it at once if they have come already.
 *
 * Nobody looks in vain. For each timeline the page says (kvp_session_page.awaits) which value is the
 * next that something waits for; a client that brings it to that value wakes the ledger. The ledger
 * stores what it awaits and then loads the timeline, the client stores the timeline and then loads
 * what is awaited, all of it sequentially consistent: one of the two sees the other.
 *
 * A commit holds its grant, so there are at most KVP_MAX_GRANTS of them, and as many flushes. A
 * session that ends takes them with it, as it does its slots.
 */
#ifndef KVPD_PARKED_H
#define KVPD_PARKED_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_abi.h"
#include "shm/kvp_types.h"

struct kvpd_grant;
struct kvpd_parked; /* NULL: nothing of the session has waited yet */
struct kvpd_session;

/* 1: the COMMIT waits from now on, and its client was told; 0: it need not; -ENOMEM. */
int kvpd_park_commit(struct kvpd_session *s, const struct kvp_sqe *sqe);
/* Likewise a FLUSH; -EAGAIN: too many of them wait. */
int kvpd_park_flush(struct kvpd_session *s, const struct kvp_sqe *sqe);
/* Gives the grant back; one whose commit waits, when that has been published. */
void kvpd_parked_release(struct kvpd_session *s, struct kvpd_grant *g);
/* The claim with this key is given up: commits that wait do not bring it back. */
void kvpd_parked_unclaim(struct kvpd_session *s, struct kvp_key key);
/* How many of its commits wait. */
uint32_t kvpd_parked_commits(const struct kvpd_session *s);
/* Does anything of the session wait for a moment? */
bool kvpd_parked_awaits(const struct kvpd_session *s);
/* Has a moment come that something waits for? */
bool kvpd_parked_ready(const struct kvpd_session *s);
/* Does what can be done until then, one entry in any case; returns how many. */
uint32_t kvpd_parked_serve(struct kvpd_session *s, uint64_t now, uint64_t until_ns);

#endif
