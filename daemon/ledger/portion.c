/* SPDX-License-Identifier: Apache-2.0 */
/* The longest portions of the ledger's work, since the start and of late. */
#include "daemon/ledger/portion.h"

#include "daemon/clock.h"

#define MINUTE_NS (60000 * KVPD_MS)

void kvpd_portion_note(struct kvpd_portions *p, enum kvpd_portion kind, uint64_t ns)
{
	struct kvpd_portion_figures *k = &p->kind[kind];

	k->count++;
	if (ns > k->recent_ns)
		k->recent_ns = ns;
	if (ns > k->longest_ns)
		k->longest_ns = ns;
	p->round_ns += ns;
}

void kvpd_portion_round(struct kvpd_portions *p)
{
	uint64_t ns = p->round_ns;

	/* One with nothing to do is no round that anybody waits for. */
	if (ns)
		kvpd_portion_note(p, KVPD_PORTION_ROUND, ns);
	p->round_ns = 0;
}

void kvpd_portion_tick(struct kvpd_portions *p, uint64_t now)
{
	uint64_t past = now - p->since_ns;

	if (past < MINUTE_NS)
		return;
	for (uint32_t i = 0; i < KVPD_PORTION_KINDS; i++) {
		p->before_ns[i] = past < 2 * MINUTE_NS ? p->kind[i].recent_ns : 0;
		p->kind[i].recent_ns = 0;
	}
	p->since_ns = now;
}

void kvpd_portion_read(struct kvpd_portions *p, uint64_t now, struct kvpd_portion_figures *ret)
{
	kvpd_portion_tick(p, now);
	for (uint32_t i = 0; i < KVPD_PORTION_KINDS; i++) {
		ret[i] = p->kind[i];
		if (ret[i].recent_ns < p->before_ns[i])
			ret[i].recent_ns = p->before_ns[i];
	}
}
