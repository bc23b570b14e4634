/* SPDX-License-Identifier: Apache-2.0 */
/* Who comes in by a listening socket, and who is turned away. */
#ifndef KVPD_ACCEPT_H
#define KVPD_ACCEPT_H

struct kvpd_listener;

/*
 * Bounds on what connections can make the daemon hold. A uid that connects without end fills its
 * own part of the socket that it comes by, and no more (struct kvpd_payer).
 */
#define KVPD_PENDING_MAX     2048u /* connections that have not attached */
#define KVPD_PENDING_PER_UID 512u  /* many engines of one user may start at once */
#define KVPD_SILENT_MS       100u  /* after that, without a word, it makes way for others */

/* One step: some of those that wait at the door. */
void kvpd_accept(struct kvpd_listener *listener);

#endif
