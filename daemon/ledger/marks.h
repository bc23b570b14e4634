/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks of a device: the moment at which a block that a GPU computes is there is a word that the GPU writes, in the
 * page of its client. Nothing wakes the ledger then but that client's library, which looks at the word now and then;
 * and a thread that sleeps until it is woken comes 20 to 60 us later on a virtual machine, where one that sleeps for as long
 * does not. So while a commit into device memory waits, a ledger that has nothing to do looks at the word itself.
 *
 * For a while only (KVPD_MARKS_NS since the client committed): what takes longer the library tells. And a bounded number of
 * clients at a time, in turn: whoever has others look in vain costs them their looks, not the ledger more.
 */
#ifndef KVPD_MARKS_H
#define KVPD_MARKS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/clock.h"

struct kvpd_ledger;
struct kvpd_session;

#define KVPD_MARKS_NS (100 * KVPD_MS)

/* A commit of the session into a device's memory waits for its moment from now on. */
void kvpd_marks_await(struct kvpd_session *s);
/* The session waits for none any more; harmless if it did not. */
void kvpd_marks_forget(struct kvpd_session *s);
/* In how many nanoseconds to look, 0: there is nothing to look for. */
uint64_t kvpd_marks_due(const struct kvpd_ledger *l, uint64_t now);
/* Gives those whose moments have come a turn; false: there are none among those that were looked at. */
bool kvpd_marks_look(struct kvpd_ledger *l, uint64_t now);

#endif
