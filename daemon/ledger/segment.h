/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory as devices know it: the segments that are a device's extents, and DRAM extents that take part
 * in its copies. What is asked of a device counts among its tenant's jobs, so that a tenant with such a
 * question under way is not freed.
 */
#ifndef KVPD_SEGMENT_H
#define KVPD_SEGMENT_H

struct kvpd_extent;

/* The operations of a device's extents; see kvpd_medium_ops. */
int kvpd_segment_make(struct kvpd_extent *x);
int kvpd_segment_drop(struct kvpd_extent *x);
void kvpd_segment_drop_now(struct kvpd_extent *x);
/* At the tenant's end, of any extent: devices let go of it, and nobody hears when. */
void kvpd_segment_leave(struct kvpd_extent *x);

#endif
