/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the ledger is at something before it looks at what else there is. All its work is cut
 * into portions that should end within KVPD_SLICE_NS; here is counted how long they took, so that
 * one that did not is seen (kvctl status).
 */
#ifndef KVPD_PORTION_H
#define KVPD_PORTION_H

#include <stdint.h>

#include "daemon/figures.h"

struct kvpd_portions {
	struct kvpd_portion_figures kind[KVPD_PORTION_KINDS];
	uint64_t before_ns[KVPD_PORTION_KINDS]; /* the longest of the minute before this one */
	uint64_t since_ns;                      /* when this minute began */
	uint64_t round_ns;                      /* of the round that is under way, so far */
};

/* One has ended. A round is counted by itself, of those that were noted in it. */
void kvpd_portion_note(struct kvpd_portions *p, enum kvpd_portion kind, uint64_t ns);
void kvpd_portion_round(struct kvpd_portions *p);
/* Begins another minute when it is time to; as often as anybody likes. */
void kvpd_portion_tick(struct kvpd_portions *p, uint64_t now);
/* As of now. */
void kvpd_portion_read(struct kvpd_portions *p, uint64_t now, struct kvpd_portion_figures *ret);

#endif
