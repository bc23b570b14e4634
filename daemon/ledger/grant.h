/* SPDX-License-Identifier: Apache-2.0 */
/* Grants: slots that a session may write. How it gets them, and how it gives them back. */
#ifndef KVPD_GRANT_H
#define KVPD_GRANT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ledger/extent.h"
#include "daemon/ledger/room.h"
#include "shm/kvp_abi.h"

struct kvpd_class;
struct kvpd_session;

#define KVPD_GRANT_FREE      0u
#define KVPD_GRANT_WRITING   1u
#define KVPD_GRANT_COMMITTED 2u
#define KVPD_GRANT_PARKED    3u /* its commit waits */

struct kvpd_grant {
	uint32_t generation;
	uint32_t state;
	struct kvpd_place place;
	uint32_t next; /* free list */
};

/* A RESERVE that waits for slots. */
struct kvpd_reserve {
	bool waiting;
	bool owed; /* its time was over when there was no room for the answer */
	uint32_t serial;
	uint32_t space;
	uint32_t medium;
	uint32_t count;
	uint64_t until_ns;
	struct kvpd_room room; /* on a device: what was tried for it */
};

/* The grant of this number as the client names it; NULL: it has none such. */
struct kvpd_grant *kvpd_grant_of(struct kvpd_session *s, uint32_t i, uint32_t generation);
void kvpd_grant_release(struct kvpd_session *s, struct kvpd_grant *g);
/* Serves a RESERVE: slots at once, or the session waits for them. */
void kvpd_reserve_begin(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now);
/* Answers a waiting RESERVE if there are slots or its time is over; false: it goes on waiting. */
bool kvpd_reserve_step(struct kvpd_session *s, uint64_t now);
/* Before entries are served: gives the answer that is owed, if there is room by now. */
void kvpd_reserve_settle(struct kvpd_session *s);
/* The session waits no longer; harmless if it did not. */
void kvpd_reserve_end(struct kvpd_session *s);
/* Slots of the session's arenas that give some, in a class. */
struct kvpd_arena_slots {
	uint64_t all, free;
	uint64_t coming; /* their blocks are on their way out, which may come to stay */
};
struct kvpd_arena_slots kvpd_arena_slots(const struct kvpd_session *s, const struct kvpd_class *c);

#endif
