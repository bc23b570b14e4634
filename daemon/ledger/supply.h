/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that wait for slots, or are about to run out of them.
 *
 * A session is granted slots of its own arenas alone. So one that waits is answered when a slot of
 * these comes free, and nobody else is looked at for that. Room of other kinds (a slot of the vault, an
 * extent that went, a copy that was made) may help any of those that wait: few are looked at then and
 * there, many not more often than once a millisecond, however much room comes and goes. What nobody
 * tells the ledger of, a lease that ended, is found by a look now and then (chores.c).
 */
#ifndef KVPD_SUPPLY_H
#define KVPD_SUPPLY_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_extent;
struct kvpd_session;
struct kvpd_tenant;

/* The session is about to run out of slots, or has none: more are made, as a chore. */
void kvpd_supply_want(struct kvpd_session *s);
/* Likewise, if it is: slots were granted to it, or came. */
void kvpd_supply_note(struct kvpd_session *s);
/* The extent has a free slot that it did not have. */
void kvpd_supply_came(struct kvpd_extent *x);
/* There may be room now for those that wait. */
void kvpd_supply_again(struct kvpd_tenant *t);
/* Likewise, but not at once. */
void kvpd_supply_soon(struct kvpd_tenant *t);
/* All that wait are to be looked at, as a chore. */
void kvpd_supply_look(struct kvpd_tenant *t);
/* A chore: answers sessions that wait, and makes slots for those that have few. */
bool kvpd_supply_step(struct kvpd_tenant *t, uint64_t now);

#endif
