/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two single-producer single-consumer rings of a session page. Indices count up and wrap; an
 * entry lies at index modulo the ring's size. Each side keeps its own index privately and never
 * believes the copy of it in the page: the page is the other side's to scribble on.
 *
 * Client side: one thread at a time per ring (the library holds a lock). Daemon side: the ledger.
 */
#ifndef KVP_RING_H
#define KVP_RING_H

#include "shm/kvp_abi.h"
#include "shm/kvp_atomic.h"

/* Client: -EAGAIN if full. `tail` is the client's private count. */
int kvp_sq_push(struct kvp_session_page *page, uint32_t *tail, const struct kvp_sqe *sqe);
/*
 * Client, after pushing: 1 if the ledger sleeps and has to be woken through the eventfd.
 * Ordering: the push stores sq_tail and then this loads need_wake, both sequentially consistent;
 * the ledger stores need_wake and then looks at sq_tail once more. One of the two sees the other.
 */
int kvp_sq_must_wake(struct kvp_session_page *page);
/*
 * Ledger: copies the next entry out. 0, -EAGAIN (empty), or -EPROTO: the client's tail is further
 * away than the ring is long. The copy is private; the client may change the original meanwhile.
 */
int kvp_sq_pop(struct kvp_session_page *page, uint32_t *head, struct kvp_sqe *ret_sqe);
/* Ledger: says that it stops looking (1) or looks again (0); see kvp_sq_must_wake(). */
void kvp_sq_set_need_wake(struct kvp_session_page *page, uint32_t need);

/*
 * Ledger: room left for completions as far as the client's head tells; 0 if the head is nonsense.
 */
uint32_t kvp_cq_room(const struct kvp_session_page *page, uint32_t tail);
/* Ledger: the caller has checked the room. */
void kvp_cq_push(struct kvp_session_page *page, uint32_t *tail, const struct kvp_cqe *cqe);
/* Ledger, after pushing: 1 if a client thread sleeps on cq_tail (futex). */
int kvp_cq_must_wake(const struct kvp_session_page *page);
/* Client: 0 or -EAGAIN (empty). -EPROTO if the daemon's tail is nonsense. */
int kvp_cq_pop(struct kvp_session_page *page, uint32_t *head, struct kvp_cqe *ret_cqe);

#endif
