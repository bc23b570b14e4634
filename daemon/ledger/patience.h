/* SPDX-License-Identifier: Apache-2.0 */
/* How long somebody who wants a slot waits for precision before blocks are evicted for it. */
#ifndef KVPD_PATIENCE_H
#define KVPD_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/clock.h"

/* So long without progress. */
#define KVPD_PATIENCE_NS (20 * KVPD_MS)
/* While an extent is made, or nothing was looked for yet: a busy machine is slow at either. */
#define KVPD_COMING_NS (500 * KVPD_MS)

struct kvpd_patience {
	uint64_t
		since_ns; /* somebody waits, and nothing was coded, nor did an extent come; 0: nobody */
	bool coming;      /* an extent was being made when this was asked last */
	bool looked;      /* since then it was looked for what may be coded */
};

/* It has an end: something was coded, or nothing can be. */
static inline void kvpd_patience_end(struct kvpd_patience *p)
{
	p->since_ns = 0;
}

/* Somebody asks. coming: an extent is being made. True: he waits on; false: his patience is at an end. */
static inline bool kvpd_patience_lasts(struct kvpd_patience *p, bool coming, uint64_t now)
{
	/* What has come is there to be coded into, however long it took to make it. */
	if (!p->since_ns || (p->coming && !coming)) {
		p->since_ns = now;
		p->looked = false;
	}
	p->coming = coming;
	if (now < p->since_ns + (coming || !p->looked ? KVPD_COMING_NS : KVPD_PATIENCE_NS))
		return true;
	kvpd_patience_end(p);
	return false;
}

#endif
