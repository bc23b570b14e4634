/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an extent ends: it drains (its blocks leave), retires (all sessions are told to unmap it),
 * and is dropped by the pool thread when nobody can have it mapped any more.
 */
#ifndef KVPD_RETIRE_H
#define KVPD_RETIRE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kvpd_extent;
struct kvpd_session;
struct kvpd_tenant;

/* No more slots of it are given out; blocks are moved out in the next steps. */
void kvpd_extent_drain(struct kvpd_extent *x);
/*
 * It drains, and nothing has left it for long: what lies there is leased, or has nowhere to go. One of the vault
 * then gives slots again, so that another can be emptied, and is not chosen once more for some seconds (kept).
 */
bool kvpd_extent_stuck(const struct kvpd_extent *x, uint64_t now);
bool kvpd_extent_kept(const struct kvpd_extent *x, uint64_t now);
/*
 * Its session is gone: it drains, for the tenant. On a device its slots are nobody else's ever, since
 * nothing proves there that the writes of a dead process have ended; what was committed stays where it is
 * until room is wanted on the device, and the extent goes with the last of it.
 */
void kvpd_extent_orphan(struct kvpd_extent *x);
/* A session unmapped an extent that retires; place: its bit. */
void kvpd_extent_unmapped(struct kvpd_extent *x, uint32_t place);
/*
 * The pool thread has dropped it. Negative: somebody may still write there, so the memory stays
 * charged to the tenant.
 */
void kvpd_extent_dropped(struct kvpd_extent *x, int result);
/*
 * Has this uid so many arenas which it should have let go that it gets no more? They are those that a
 * process may still write to, as the last proof found, and those about which a pool thread is asking:
 * a proof may take long, and all that wait for theirs may be kept as well. Each is charged to the
 * tenant, and takes a descriptor of the daemon. *ret_kept: those that are kept are so many already.
 */
bool kvpd_arenas_too_many(const struct kvpd_tenant *t, uid_t uid, bool *ret_kept);
#define KVPD_OWED_MAX 16u
/* The session is gone: it has unmapped all. */
void kvpd_extent_forgotten(struct kvpd_session *s);
/* Nobody should have it mapped any more: a pool thread drops it. */
void kvpd_extent_let_go(struct kvpd_extent *x);
/*
 * A chore: retires what drains and is empty, begins moves out of what drains and is not. After a
 * tick also free vault extents of classes not in use, and memory that waits for a proof.
 */
bool kvpd_extent_step(struct kvpd_tenant *t, uint64_t now);

#endif
