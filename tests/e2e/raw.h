/* SPDX-License-Identifier: Apache-2.0 */
/* A client that speaks the protocol by hand: what it gets, it may misuse. */
#ifndef E2E_RAW_H
#define E2E_RAW_H

#include <stdbool.h>

#include "shm/kvp_catalog.h"
#include "shm/kvp_msg.h"
#include "tests/e2e/e2e.h"

/* A session without the library. */
struct raw {
	int sock;
	int wake_fd;
	struct kvp_packet *packet;
	struct kvp_session_page *page;
	struct kvp_catalog_view view;
	uint32_t sq_tail, cq_head;
	uint32_t space;
	uint64_t arena_bytes; /* of the last one */
};

/* -1: nobody listens. */
int raw_dial(const char *socket_path);
/* So many milliseconds from now, on the clock of kvp_msg_poll(). */
uint64_t raw_in(uint32_t ms);
/*
 * Has the daemon make it an arena; maps it, keeps the descriptor, and acknowledges it when the
 * seals have been added: before that or (`late`) after. 0, or -ETIMEDOUT if there is none in that time:
 * RAW_IS_DUE, if it has to come.
 */
int raw_arena(struct raw *s, unsigned seals, bool late, uint32_t timeout_ms, int *ret_fd,
	void **ret_addr);
#define RAW_IS_DUE E2E_LONG_MS
/* The next packet of a type, which is s->packet then; acknowledges arenas on the way. */
int raw_await(struct raw *s, uint16_t type);
/* Attaches and opens a small space; the test fails if that fails. */
void raw_attach(struct raw *s, const char *socket_path);
void raw_detach(struct raw *s);
/* Has the daemon look at the ring. */
void raw_bell(struct raw *s);

#endif
