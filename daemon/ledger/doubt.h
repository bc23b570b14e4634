/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies on a device after an error of its worker of which nobody can tell what it did to memory. Of each of the
 * tenant's segments there some payloads are compared with their checksums, spread over it; where one is not what it was,
 * or none has a checksum, the whole segment is not believed and is lost (medium.h). Otherwise it stays. Meanwhile the
 * device copies nothing, and who has a lease reads on.
 */
#ifndef KVPD_DOUBT_H
#define KVPD_DOUBT_H

#include <stdbool.h>
#include <stdint.h>

#define KVPD_DOUBT_SAMPLE 4u /* payloads of a segment */

struct kvpd_tenant;

/* The tenant's, of one device. */
struct kvpd_doubt {
	uint32_t number; /* of the device's doubts; 0: none is being looked into */
	uint32_t extent, generation, slot; /* where the search for samples is */
	uint32_t next;                     /* slots before it are not looked at */
	uint32_t asked;                    /* of this extent's, for this number */
	uint32_t blocks;                   /* that lie in it, as far as that */
	uint32_t pending;                  /* sums that are being worked out */
	bool bad;
};

/* The device wants verdicts, and this is the number of its doubts. */
void kvpd_doubt_begin(struct kvpd_tenant *t, uint32_t medium, uint32_t number);
bool kvpd_doubt_step(struct kvpd_tenant *t, uint64_t now);

#endif
