/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payloads on devices against their checksums, for `kvctl check --payloads`. The worker sums what lies in
 * its segment: nothing is copied, and this process reads no device's memory. The block is MOVING meanwhile:
 * its payload stays. One that is damaged is logged, counted, and taken from the device, as soon as no lease
 * protects it and nothing below it lies there; if either keeps it, the next check finds it again.
 */
#ifndef KVPD_VERIFY_H
#define KVPD_VERIFY_H

#include <stdint.h>

struct kvpd_tenant;

#define KVPD_VERIFYING 4u /* of a tenant, on one device, at a time */

/*
 * Begins with a block's payload on a device. How many bytes that are; 0: it has none there, none with a
 * checksum, or it is on its way elsewhere. -EAGAIN: so many are under way. -ENODEV, -ENOMEM, ...: it was not
 * verified, which is counted.
 */
int64_t kvpd_verify(struct kvpd_tenant *t, uint32_t block);
/* Has the log say that a payload is not what its checksum says; seldom. */
void kvpd_verify_tell(const struct kvpd_tenant *t, uint32_t block, uint32_t medium);

#endif
