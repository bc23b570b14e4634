/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waking clients that sleep on words of shared memory. A client may have any number of threads on a
 * word, and waking one costs the ledger a microsecond and the machine a processor for a while. So a
 * word's sleepers are woken in portions: the first at once, which is all of them unless there are
 * many, and the others a portion every millisecond.
 */
#ifndef KVPD_WAKE_H
#define KVPD_WAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_abi.h"

struct kvpd_session;
struct kvpd_tenant;

#define KVPD_WAKE_PORTION 32u

/*
 * What the tenant's futex word i announces has happened: counts it up and wakes its sleepers; or has
 * them woken as a chore, where many words may be due at once.
 */
void kvpd_wake_claimants(struct kvpd_tenant *t, uint32_t i);
void kvpd_wake_claimants_soon(struct kvpd_tenant *t, uint32_t i);
/* Wakes a client that sleeps on its completions. */
void kvpd_wake_client(struct kvpd_session *s);
/* A chore, every millisecond: a portion of each word whose sleepers were not all woken. */
bool kvpd_wake_step(struct kvpd_tenant *t, uint64_t now);
/* At the tenant's end: all. */
void kvpd_wake_all(struct kvpd_tenant *t);

#endif
