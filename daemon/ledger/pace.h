/* SPDX-License-Identifier: Apache-2.0 */
/* How much a session takes at once: an engine stores a request's blocks in one go, and then nothing for a while. */
#ifndef KVPD_PACE_H
#define KVPD_PACE_H

#include <stdint.h>

#include "daemon/clock.h"

/* What is taken within so long is taken at once. */
#define KVPD_BURST_NS (100 * KVPD_MS)

struct kvpd_pace {
	uint64_t since_ns; /* of the burst that is under way */
	uint64_t taken;    /* in it, bytes */
	uint64_t burst;    /* the largest, less an eighth for each smaller one that came after it */
};

static inline void kvpd_pace_note(struct kvpd_pace *p, uint64_t bytes, uint64_t now)
{
	if (now >= p->since_ns + KVPD_BURST_NS) {
		if (p->taken < p->burst)
			p->burst -= p->burst / 8;
		p->since_ns = now;
		p->taken = 0;
	}
	p->taken += bytes;
	if (p->burst < p->taken)
		p->burst = p->taken;
}

#endif
