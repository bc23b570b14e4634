/* SPDX-License-Identifier: Apache-2.0 */
/* The two rings of a session page, both sides of them; kvp_ring.h has the argument. */
#include "shm/kvp_ring.h"

#include <errno.h>

int kvp_sq_push(struct kvp_session_page *page, uint32_t *tail, const struct kvp_sqe *sqe)
{
	/* Acquire: the ledger has copied the entry before it moved its head past it. */
	if (*tail - kvp_load_acquire(&page->sq_head) >= KVP_SQ_ENTRIES)
		return -EAGAIN;
	page->sq[*tail % KVP_SQ_ENTRIES] = *sqe;
	(*tail)++;
	/*
	 * Sequentially consistent for the sake of kvp_sq_must_wake(); releases the entry as well.
	 */
	kvp_store_seq(&page->sq_tail, *tail);
	return 0;
}

int kvp_sq_must_wake(struct kvp_session_page *page)
{
	return kvp_load_seq(&page->need_wake) != 0;
}

int kvp_sq_pop(struct kvp_session_page *page, uint32_t *head, struct kvp_sqe *ret_sqe)
{
	uint32_t waiting = kvp_load_seq(&page->sq_tail) - *head;

	if (!waiting)
		return -EAGAIN;
	if (waiting > KVP_SQ_ENTRIES)
		return -EPROTO;
	*ret_sqe = *(volatile struct kvp_sqe *)&page->sq[*head % KVP_SQ_ENTRIES];
	(*head)++;
	kvp_store_release(&page->sq_head, *head);
	return 0;
}

void kvp_sq_set_need_wake(struct kvp_session_page *page, uint32_t need)
{
	kvp_store_seq(&page->need_wake, need);
}

uint32_t kvp_cq_room(const struct kvp_session_page *page, uint32_t tail)
{
	uint32_t used = tail - kvp_load_acquire(&page->cq_head);

	return used > KVP_CQ_ENTRIES ? 0 : KVP_CQ_ENTRIES - used;
}

void kvp_cq_push(struct kvp_session_page *page, uint32_t *tail, const struct kvp_cqe *cqe)
{
	page->cq[*tail % KVP_CQ_ENTRIES] = *cqe;
	(*tail)++;
	/* Sequentially consistent: pairs with a waiter that stores cq_waiters and looks again. */
	kvp_store_seq(&page->cq_tail, *tail);
}

int kvp_cq_must_wake(const struct kvp_session_page *page)
{
	return kvp_load_seq(&page->cq_waiters) != 0;
}

int kvp_cq_pop(struct kvp_session_page *page, uint32_t *head, struct kvp_cqe *ret_cqe)
{
	uint32_t ready = kvp_load_seq(&page->cq_tail) - *head;

	if (!ready)
		return -EAGAIN;
	if (ready > KVP_CQ_ENTRIES)
		return -EPROTO;
	*ret_cqe = page->cq[*head % KVP_CQ_ENTRIES];
	(*head)++;
	kvp_store_release(&page->cq_head, *head);
	return 0;
}
