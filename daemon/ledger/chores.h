/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chores: what is due in a tenant and is nobody's entry in a ring. They take their turns among the
 * tenant's sessions and are done in portions, so that no turn takes long however much is due.
 */
#ifndef KVPD_CHORES_H
#define KVPD_CHORES_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_tenant;

/* In the order in which they are begun. */
#define KVPD_DUE_SWITCH    (1u << 0)  /* blocks that were copied wait to be switched over */
#define KVPD_DUE_LIMBO     (1u << 1)  /* leases on moved blocks may have ended */
#define KVPD_DUE_SUPPLY    (1u << 2)  /* sessions wait for slots, or are about to run out of them */
#define KVPD_DUE_EXTENTS   (1u << 3)  /* extents drain, or are to */
#define KVPD_DUE_ROOM      (1u << 4)  /* blocks are to be evicted, recipes forgotten */
#define KVPD_DUE_DOOMED    (1u << 5)  /* deletions that wait are tried */
#define KVPD_DUE_CLAIMS    (1u << 6)  /* claims may be over */
#define KVPD_DUE_WAKES     (1u << 7)  /* more clients wait for a claim than were woken so far */
#define KVPD_DUE_STALLED   (1u << 8)  /* sessions whose completion ring was full may have room */
#define KVPD_DUE_TIPS      (1u << 9)  /* sessions may have ceased to write */
#define KVPD_DUE_WARM      (1u << 10) /* blocks are on their way to a device */
#define KVPD_DUE_PRECISION (1u << 11) /* blocks are to be coded with fewer bits */
#define KVPD_DUE_BEHIND    (1u << 12) /* blocks that lie on a device alone are to be copied */
#define KVPD_DUE_BUDGET    (1u << 13) /* rules of spaces are to be carried out */
#define KVPD_DUE_REMAT     (1u << 14) /* chains are wanted of which something is missing */
#define KVPD_DUE_AHEAD     (1u << 15) /* blocks near those that were used may be fetched to a device */
#define KVPD_DUE_LEARNT    (1u << 16) /* quality windows have something to be kept */
#define KVPD_DUE_DOUBT     (1u << 17) /* what lies on a device is to be compared with its checksums */
#define KVPD_DUE_KINDS     18u

/* Something of these kinds is due. */
void kvpd_due(struct kvpd_tenant *t, uint32_t kinds);
/* Portions of what is due until then. False: nothing is due any more. */
bool kvpd_chores_do(struct kvpd_tenant *t, uint64_t now, uint64_t until_ns);
/*
 * What time alone makes due; as often as KVPD_CHORES_NS. Returns in how many milliseconds to look
 * again, -1: not before something happens.
 */
int kvpd_chores_look(struct kvpd_tenant *t, uint64_t now);

#define KVPD_CHORES_NS UINT64_C(1000000)

#endif
