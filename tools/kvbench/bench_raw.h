/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that speaks the protocol by hand and keeps none of the library's rules: rings as full as
 * they go, touch logs and lease slots written at will, sockets that are never read. One process may
 * have many such sessions. The daemon must bound each of them; kvbench fairness measures that it
 * does. Payloads are never written, and arenas are acknowledged without being mapped.
 */
#ifndef KVBENCH_BENCH_RAW_H
#define KVBENCH_BENCH_RAW_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_catalog.h"
#include "shm/kvp_msg.h"
#include "shm/kvp_ring.h"

struct raw_grant {
	uint32_t id;
	uint32_t generation;
};

struct raw_block {
	kvp_block_id id;
	uint32_t birth;
};

struct raw_session {
	int sock;
	int wake_fd;
	struct kvp_session_page *page;
	uint64_t page_bytes;
	struct kvp_catalog_view view;
	uint64_t catalog_bytes;
	uint32_t sq_tail, cq_head;
	uint32_t serial; /* of the last submission */
	uint32_t space;
	uint32_t block_tokens;
	struct kvp_msg_id extent;               /* an arena of this session */
	struct raw_grant grant[KVP_MAX_GRANTS]; /* held, n_grants of them */
	uint32_t n_grants;
	bool reserving;  /* a RESERVE is under way */
	uint64_t number; /* of the last content that was committed */
	struct raw_block last;
};

/*
 * Attaches and opens the space `model` with blocks of `tokens` tokens of 4 * dim bytes. `packet` is
 * the caller's buffer, here and below. All of them: 0 or negative errno; a session that could not
 * be attached holds nothing.
 */
int raw_attach(const char *socket, struct kvp_packet *packet, struct raw_session *ret_session);
int raw_space(struct raw_session *s, struct kvp_packet *packet, const char *model, uint32_t tokens,
	uint32_t dim);
/* Says BYE if `bye`, closes and unmaps. */
void raw_detach(struct raw_session *s, bool bye);

/* Reads what the daemon has sent, without waiting; acknowledges arenas and retirements. */
int raw_listen(struct raw_session *s, struct kvp_packet *packet);

/* Pushes an entry under the next serial and wakes the ledger if it sleeps. -EAGAIN: ring full. */
int raw_submit(struct raw_session *s, struct kvp_sqe *sqe);
/* Submits, and waits up to 10 s for the completion of just this entry. */
int raw_ask(struct raw_session *s, struct kvp_packet *packet, struct kvp_sqe *sqe,
	struct kvp_cqe *ret_cqe);

/* Takes all completions: grants are kept, s->last becomes the newest block. Returns how many. */
uint32_t raw_drain(struct raw_session *s);
/* Commits content that nobody has into a grant it holds, and gives the grant back. */
int raw_commit(struct raw_session *s, uint32_t parent_kind, struct raw_block parent);
/* Reserves, commits and waits: *ret_block follows `parent` (NULL: the root). */
int raw_put(struct raw_session *s, struct kvp_packet *packet, const struct raw_block *parent,
	struct raw_block *ret_block);
int raw_delete(struct raw_session *s, struct raw_block block);
/* Names a block in every lease slot. */
void raw_lease_all(struct raw_session *s, struct raw_block block);

#endif
