/* SPDX-License-Identifier: Apache-2.0 */
/* When a thread goes ahead of all others: a bucket that fills while time passes, and waits that are remembered. */
#include "daemon/urgency.h"

/* More time than fills any bucket is as good as that, and cannot overflow. */
#define FULL_NS (KVPD_URGENT_NS * 100)

void kvpd_urgency_begin(struct kvpd_urgency *u, bool always, uint32_t percent,
	const struct kvpd_urgency_facts *facts)
{
	*u = (struct kvpd_urgency){
		.percent = percent,
		.always = always,
		.urgent = always,
		.seen = *facts,
		.saved_ns = KVPD_URGENT_NS,
	};
}

static void save(struct kvpd_urgency *u, uint64_t passed, uint64_t used)
{
	uint64_t saved = u->saved_ns + (passed < FULL_NS ? passed : FULL_NS) * u->percent / 100;

	saved = saved > used ? saved - used : 0;
	u->saved_ns = saved < KVPD_URGENT_NS ? saved : KVPD_URGENT_NS;
}

static void listen(struct kvpd_urgency *u, uint64_t now, uint64_t waited)
{
	if (waited < KVPD_LATE_NS)
		return;
	if (!u->n_late || now - u->late_ns >= KVPD_APART_NS) {
		u->n_late = 0;
		u->late_ns = now;
	}
	if (++u->n_late < KVPD_LATES)
		return;
	u->n_late = 0;
	u->until_ns = now + KVPD_HOLD_NS;
}

bool kvpd_urgency_look(struct kvpd_urgency *u, const struct kvpd_urgency_facts *facts)
{
	save(u, facts->now_ns - u->seen.now_ns, facts->used_ns - u->seen.used_ns);
	listen(u, facts->now_ns, facts->waited_ns - u->seen.waited_ns);
	u->seen = *facts;
	u->urgent = (u->always || facts->now_ns < u->until_ns) &&
		    u->saved_ns >= (u->urgent ? 1 : KVPD_AGAIN_NS);
	return u->urgent;
}
