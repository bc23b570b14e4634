/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants that give memory back, and do not grow, while the machine is short of it. */
#ifndef KVPD_RELIEF_H
#define KVPD_RELIEF_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_tenant;

/* What the tenant may hold at this moment: its share, or less. */
uint64_t kvpd_share_now(const struct kvpd_tenant *t);
/* The machine is short of memory: nothing is made now. */
bool kvpd_pressed(const struct kvpd_tenant *t, uint64_t now);
/* Once a second while there is a ceiling: lifts it when the shortage is over. */
void kvpd_relief_tick(struct kvpd_tenant *t, uint64_t now);

#endif
