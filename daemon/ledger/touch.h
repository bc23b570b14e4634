/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recency: what clients have matched, as their touch logs tell, goes to the policy. Nobody is woken for that: a client that
 * only matches is heard when something of the tenant is to be evicted, or with the next that it asks for, and until then
 * neither the policy's nor the advisor's figures know of it.
 */
#ifndef KVPD_TOUCH_H
#define KVPD_TOUCH_H

#include <stdint.h>

struct kvpd_session;
struct kvpd_tenant;

#define KVPD_TOUCH_NS    UINT64_C(25000) /* spent on touches at one go */
#define KVPD_TOUCH_DEPTH 65536u          /* recency of a longer chain is not kept */

/* Before an entry of the session: its own logs, for KVPD_TOUCH_NS. Returns the time. */
uint64_t kvpd_touch_apply(struct kvpd_session *s, uint64_t now);
/*
 * Before an eviction: the logs of all sessions in turn, for KVPD_TOUCH_NS, if it is time to. They
 * are looked at only as often as takes an eighth of the time.
 */
void kvpd_touch_all(struct kvpd_tenant *t, uint64_t now);
/* The session is about to leave the tenant's list. */
void kvpd_touch_forget(struct kvpd_session *s);

#endif
