/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ledger posted and nobody has dealt with yet. kvpd_control_post() is in control.h.
 *
 * An event is taken over by the entry of its tenant, which tells its guests in its turns, some in
 * each: event after event, so that each guest hears them in their order, and once.
 */
#ifndef KVPD_POSTED_H
#define KVPD_POSTED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "daemon/dataplane.h"

struct kvpd_control;
struct kvpd_tenant_entry;

struct kvpd_posted {
	STAILQ_ENTRY(kvpd_posted) link;
	uint64_t number; /* of all that the control thread has taken, from 1 */
	struct kvpd_event event;
	bool begun;    /* it is being told */
	uint32_t left; /* guests to be looked at for that, at most */
};

/* Makes the eventfd that announces events, and watches it. Negative errno. */
int kvpd_posted_open(struct kvpd_control *c);
/* An entry that is new, and one that goes: what its guests have not been told is dropped. */
void kvpd_posted_begin(struct kvpd_control *c, struct kvpd_tenant_entry *entry);
void kvpd_posted_end(struct kvpd_tenant_entry *entry);
/* Drops what was posted for a tenant and not taken yet. */
void kvpd_forget_events(struct kvpd_control *c, uint32_t tenant);
/* Drops all of that, at the end. */
void kvpd_posted_drop(struct kvpd_control *c);

#endif
