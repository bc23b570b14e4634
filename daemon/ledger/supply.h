/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Having slots ready before they are asked for, and answering those that wait for some. It is a
 * chore, so that an entry of a ring costs the same whether there are slots or not.
 */
#ifndef KVPD_SUPPLY_H
#define KVPD_SUPPLY_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_session;
struct kvpd_tenant;

/* The session waits for slots, or has few left, of the class that it wants. */
void kvpd_supply_want(struct kvpd_session *s);
/* The chore, every millisecond while a session waits. */
bool kvpd_supply_step(struct kvpd_tenant *t, uint64_t now);

#endif
