/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store's connection to the daemon: a client, and the one space that it needs. There need be no daemon;
 * one that comes later is joined by the next sequence. For stores that call libkvpool.
 */
#ifndef KVR_LINK_H
#define KVR_LINK_H

#include "libclient/kvpool.h"

#include <stdint.h>

struct kvr_link {
	struct kvp_client *client; /* NULL: could not even be made */
	struct kvp_space *space;   /* NULL: no daemon so far */
	char *socket;              /* NULL: the library's default */
	char why[KVP_ERROR_TEXT];  /* the last attempt to join failed; "": it did not */
};

/* `socket` is copied. -ENOMEM. */
int kvr_link_init(struct kvr_link *link, const char *socket);
/* Accepts one that was never joined, or is all zero. */
void kvr_link_done(struct kvr_link *link);

/*
 * Makes the client if there is none, waiting for the daemon's answer if there is a daemon. What it finds
 * later is found without being asked for. A negative errno, and `why`.
 */
int kvr_link_client(struct kvr_link *link);
/*
 * Joins the daemon if there is one by now: 1, or 0 with the reason in `why`. The space is the one that
 * `desc` describes at the first call that succeeds; its blocks must have `block_bytes`.
 */
int kvr_link_join(struct kvr_link *link, const struct kvp_space_desc *desc, uint64_t block_bytes);

#endif
