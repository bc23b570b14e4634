/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: a client's page and eventfd, what it has open, granted and claimed; its life. */
#ifndef KVPD_SESSION_H
#define KVPD_SESSION_H

#include "daemon/dataplane.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/commit.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/lookups.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/pace.h"
#include "daemon/ledger/parked.h"
#include "daemon/ledger/remat.h"
#include "daemon/turns.h"
#include "policy/kvp_evict.h"

struct kvpd_ledger;
struct kvpd_tenant;

struct kvpd_session {
	struct kvpd_tenant *tenant;
	uint32_t id;
	uint32_t place; /* id % KVPD_MAX_SESSIONS: in ledger->session and kvpd_extent.unacked */
	struct kvpd_list in_tenant;
	struct kvpd_turn turn;        /* in the tenant's row while it has entries to be served */
	struct kvpd_list in_spinning; /* or an empty list of its own */
	struct kvpd_list in_wanting;  /* likewise */
	struct kvpd_list in_ready;    /* likewise */
	struct kvpd_list in_stalled;  /* likewise */
	struct kvpd_list in_tips;     /* likewise */
	struct kvpd_list in_low;      /* likewise */
	struct kvpd_list in_wakes;    /* likewise */
	struct kvpd_list in_marks;    /* likewise */
	struct kvpd_peer peer;
	struct kvp_session_page *page;
	int wake_fd;
	int page_fd; /* nobody else has a copy; see kvp_seg_unused() */
	bool expelled;
	bool untold; /* the control thread does not know yet that it is expelled */
	int expel_error;
	const char *expel_reason; /* lives for ever */
	bool stalled;             /* its completion ring is full */
	uint64_t last_ns;         /* when an entry was last served */
	uint64_t attached_ns;
	struct kvpd_lookups lookups; /* as last believed */
	struct kvpd_use use[KVP_MAX_SPACES];
	uint32_t sq_head;
	uint32_t cq_tail;
	uint32_t touch_head[KVP_SHARDS];
	uint32_t touch_shard;        /* whose log comes first next time */
	struct kvp_evict_walk touch; /* up the chain of the entry that is dealt with, */
	uint32_t touch_birth;        /* and that of the block that comes next */
	uint32_t opens[KVP_MAX_SPACES];
	uint32_t n_claims;
	struct kvpd_list arenas;
	uint64_t arena_bytes;            /* in DRAM, */
	uint64_t there[KVP_MAX_DEVICES]; /* and on devices */
	bool growing;                    /* counted in the tenant's n_growing */
	/* Arenas in DRAM, and on devices: a device that hangs keeps nobody from DRAM. */
	struct kvpd_supplied {
		bool making; /* one is MAKING or OFFERED */
		uint64_t refused_ns;
		uint64_t ahead_ns; /* likewise, to what nobody waits for */
	} supplied[2];
	struct kvpd_pace pace;    /* of what it takes in DRAM */
	struct kvpd_class *wants; /* of which it last asked for slots */
	struct kvpd_reserve reserve;
	bool has_tip;
	uint32_t tip; /* of the chain that it writes: see tip.h */
	uint32_t tip_birth;
	uint64_t tip_ns;
	uint32_t grant_free;
	uint32_t n_grants;
	struct kvpd_grant grant[KVP_MAX_GRANTS];
	struct kvpd_outcome outcome[KVP_SERIALS];
	struct kvpd_parked *parked;
	uint64_t marks_ns;        /* when a commit into a device's memory last began to wait */
	struct kvpd_list tickets; /* see warm.h */
	uint32_t n_tickets;
	struct kvpd_list asks, offers; /* see remat.h */
	uint32_t n_asks, n_offers;
	kvp_token tokens[KVP_BLOCK_TOKENS_MAX]; /* private copy of a staging row */
	kvp_token salt[KVP_SALT_TOKENS];        /* and of its salt */
};

static inline struct kvpd_supplied *kvpd_supplied(
	struct kvpd_session *s, const struct kvpd_class *c)
{
	return &s->supplied[c->medium != KVPD_DRAM];
}

struct kvpd_session *kvpd_session_find(struct kvpd_ledger *l, uint32_t id);
/* It has, or may have, entries to be served: it wants a turn. */
void kvpd_session_activate(struct kvpd_session *s);
/* Is there something to serve, as far as its completion ring has room? */
bool kvpd_session_wants(const struct kvpd_session *s);
/* It has been served, and is looked at for a while without a wake-up. */
void kvpd_session_spin(struct kvpd_session *s);
/* From now on its client has to wake the ledger, unless an entry came meanwhile. */
void kvpd_session_sleep(struct kvpd_session *s);
/*
 * It broke the protocol, or is over: served no more; the control thread is told to end it. The
 * reason is a string that lives for ever.
 */
void kvpd_session_expel(struct kvpd_session *s, int error, const char *reason);
/*
 * Tells the control thread of sessions that it does not know yet to be expelled, for want of memory;
 * once a second. Returns in how many milliseconds to try again, -1: there are none.
 */
int kvpd_sessions_tell(struct kvpd_ledger *l, uint64_t now);
/* It leaves the ledger with all that is its own there; to be freed on any thread. */
void kvpd_session_end(struct kvpd_session *s);
/* Any thread, not the ledger's while it runs: takes the kernel a while. NULL is harmless. */
struct kvpd_session *kvpd_session_free(struct kvpd_session *s);

#endif
