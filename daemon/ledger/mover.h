/* SPDX-License-Identifier: Apache-2.0 */
/* The mover threads: copy blocks into the vault, while they stay readable where they are. */
#ifndef KVPD_MOVER_H
#define KVPD_MOVER_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_extent;

#define KVPD_MOVE_BLOCKS 16u                 /* in one job */
#define KVPD_MOVE_BYTES  (UINT64_C(4) << 20) /* about, likewise */
#define KVPD_MOVE_JOBS   4u                  /* of one tenant under way */

/*
 * Begins to copy at most n blocks of x into the vault; returns how many. `urgent`: evicts for room
 * there. Leased blocks are taken only if there are no others and x has to become empty or it is
 * urgent.
 */
uint32_t kvpd_move_out(struct kvpd_extent *x, uint32_t n, bool urgent, uint64_t now);

#endif
