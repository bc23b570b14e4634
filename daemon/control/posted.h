/* SPDX-License-Identifier: Apache-2.0 */
/* What the ledger posted and nobody has dealt with yet. kvpd_control_post() is in control.h. */
#ifndef KVPD_POSTED_H
#define KVPD_POSTED_H

#include <stdint.h>
#include <sys/queue.h>

#include "daemon/dataplane.h"

struct kvpd_control;

struct kvpd_posted {
	STAILQ_ENTRY(kvpd_posted) link;
	struct kvpd_event event;
};

/* Makes the eventfd that announces events, and watches it. Negative errno. */
int kvpd_posted_open(struct kvpd_control *c);
/* Drops what was posted for a tenant. */
void kvpd_forget_events(struct kvpd_control *c, uint32_t tenant);
/* Drops everything, at the end. */
void kvpd_posted_drop(struct kvpd_control *c);

#endif
