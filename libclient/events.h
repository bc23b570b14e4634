/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Announcing what callers wait for elsewhere, through kvp_event_fd(). A client that has not asked for
 * a descriptor has no thread for it, and pays a look at a word. ring_lock is held in the first two, no
 * lock in the others.
 */
#ifndef KVP_CLIENT_EVENTS_H
#define KVP_CLIENT_EVENTS_H

#include "libclient/client.h"

#define EVENTS_ALL (EVENTS_RING | KVP_EVENT_CLAIMS)

/* These come through the ring. */
#define EVENTS_RING (KVP_EVENT_COMMITS | KVP_EVENT_WARMS | KVP_EVENT_DEMANDS)

/* The descriptor becomes readable, if one of these KVP_EVENT_* was asked for. */
void event_announce(struct kvp_client *client, uint32_t what);
/* The current attachment is another one. */
void event_attachment(struct kvp_client *client);
/*
 * The prefix, which is PENDING, was looked at in vain: the end of the claim that it waits for is
 * announced, once, also if that is over by now.
 */
void event_watch(struct kvp_prefix *prefix);
/* Of a PREFIX_WATCHED, before its handle is free. */
void event_unwatch(struct kvp_prefix *prefix);
/* kvp_close(): ends the thread. */
void events_stop(struct kvp_client *client);

#endif
