/* SPDX-License-Identifier: Apache-2.0 */
/* Scanning the leases of a tenant. */
#include "daemon/ledger/lease.h"

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "shm/kvp_lease.h"

uint32_t kvpd_scan_begin(struct kvpd_tenant *t)
{
	/* Before it wraps, so that two that begin together are still two. */
	if (t->scan >= UINT32_MAX - 1) {
		for (uint32_t i = 0; i < t->layout.max_blocks; i++)
			t->block[i].mark = 0;
		t->scan = 0;
	}
	return ++t->scan;
}

void kvpd_lease_marks(struct kvpd_tenant *t, bool chains)
{
	const uint64_t began = kvpd_now_ns();
	kvp_block_id id[KVPD_LEASES];

	kvpd_scan_begin(t);
	for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);
		uint32_t n = kvp_lease_scan(s->page, id, NULL, KVPD_LEASES);

		for (uint32_t i = 0; i < n; i++) {
			uint32_t b = id[i];

			while (b < t->layout.max_blocks && t->block[b].mark != t->scan &&
				kvpd_block_state(t, b) != KVP_BLOCK_FREE) {
				t->block[b].mark = t->scan;
				if (chains)
					b = kvp_load_relaxed(&t->view.blocks[b].parent);
			}
		}
	}
	t->scan_ns = kvpd_now_ns() - began;
}

bool kvpd_leased(const struct kvpd_tenant *t, uint32_t block)
{
	return t->block[block].mark == t->scan;
}
