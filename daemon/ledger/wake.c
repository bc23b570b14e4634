/* SPDX-License-Identifier: Apache-2.0 */
/* FUTEX_WAKE, in portions. */
#include "daemon/ledger/wake.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/ledger/chores.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "shm/kvp_ring.h"

/* Are there more than these? */
static bool wake(KVP_ATOMIC(uint32_t) *word, int most)
{
	return syscall(SYS_futex, word, FUTEX_WAKE, most, NULL, NULL, 0) >= most;
}

/* Counted after what it announces was stored; waiters read it before they look. */
static KVP_ATOMIC(uint32_t) *count_up(struct kvpd_tenant *t, uint32_t i)
{
	KVP_ATOMIC(uint32_t) *word = &t->view.cat->futex[i].word;

	kvp_store_release(word, kvp_load_relaxed(word) + 1);
	return word;
}

void kvpd_wake_claimants(struct kvpd_tenant *t, uint32_t i)
{
	KVP_ATOMIC(uint32_t) *word = count_up(t, i);

	if (!(t->wakes >> i & 1) && wake(word, KVPD_WAKE_PORTION))
		t->wakes |= UINT64_C(1) << i;
}

void kvpd_wake_claimants_soon(struct kvpd_tenant *t, uint32_t i)
{
	(void)count_up(t, i);
	t->wakes |= UINT64_C(1) << i;
	kvpd_due(t, KVPD_DUE_WAKES);
}

void kvpd_wake_client(struct kvpd_session *s)
{
	if (!kvp_cq_must_wake(s->page) || !kvpd_list_empty(&s->in_wakes))
		return;
	if (wake(&s->page->cq_tail, KVPD_WAKE_PORTION))
		kvpd_list_append(&s->tenant->waking, &s->in_wakes);
}

bool kvpd_wake_step(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_list *it = t->waking.next;

	(void)now;
	/* Each word once before any of them again, which is not before the next millisecond. */
	if (!t->wakes_now)
		t->wakes_now = t->wakes;
	if (t->wakes_now) {
		uint32_t i = (uint32_t)__builtin_ctzll(t->wakes_now);

		t->wakes_now &= t->wakes_now - 1;
		if (!wake(&t->view.cat->futex[i].word, KVPD_WAKE_PORTION))
			t->wakes &= ~(UINT64_C(1) << i);
	}
	if (it != &t->waking) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_wakes);

		kvpd_list_remove(&s->in_wakes);
		if (wake(&s->page->cq_tail, KVPD_WAKE_PORTION))
			kvpd_list_append(&t->waking, &s->in_wakes);
	}
	return t->wakes_now != 0;
}

void kvpd_wake_all(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < KVP_FUTEX_WORDS; i++)
		(void)wake(count_up(t, i), INT_MAX);
}
