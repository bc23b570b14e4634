/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents and their descriptors on the way to the sessions: offered to the owner, shown to the
 * tenant's other clients, asked for by id.
 */
#ifndef KVPD_PUBLISH_H
#define KVPD_PUBLISH_H

#include <stdint.h>

struct kvpd_extent;

/* The pool thread has made it, or could not. */
void kvpd_extent_made(struct kvpd_extent *x, int result);
/* Posts a KVPD_EV_* about an extent; the descriptor (-1: none) goes with it, or is closed. */
int kvpd_extent_post(struct kvpd_extent *x, uint32_t type, int fd);

#endif
