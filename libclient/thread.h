/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library's own thread does, file by file. Only that thread calls these, unless a line
 * says otherwise; before it starts kvp_open() does its work.
 */
#ifndef KVP_THREAD_H
#define KVP_THREAD_H

#include "libclient/client.h"

/* ---- connect.c ------------------------------------------------------------------------------- */

/* Remembers why the attempt failed, in the library's words or in the daemon's. Returns the error. */
int attempt_failed(struct kvp_client *c, int error, const char *what);
int attempt_refused(struct kvp_client *c, const struct kvp_packet *p);

/*
 * Waits for the socket or a kick; a negative timeout is none. 0: the socket; -EAGAIN: neither in
 * time; -ESHUTDOWN: the client is closing.
 */
int await(struct kvp_client *c, int sock, short events, int timeout_ms);

/* The next packet of the handshake, into p; kvp_msg_done() is the caller's. */
int packet_next(struct kvp_client *c, int sock, uint64_t deadline, struct kvp_packet *p);
/* Any thread. -EAGAIN: the socket has no room, as when the daemon is stopped; else as kvp_msg_send(). */
int packet_try(struct attachment *att, uint32_t type, uint32_t tag, const void *body, uint32_t len);
/* No lock held. Waits up to a second for room in the socket. */
int packet_send(
	struct attachment *att, uint32_t type, uint32_t tag, const void *body, uint32_t len);

/* Connects and shakes hands until WELCOME, which is then in p. */
int daemon_reach(struct attachment *att, uint64_t deadline, struct kvp_packet *p);

/* ---- attachment.c ---------------------------------------------------------------------------- */

/* ring_lock. An empty one; NULL: handles of too many former daemons are held. */
struct attachment *attachment_take(struct kvp_client *c);
#define MAP_PRIVATE_TO (KVP_MAP_DONTFORK | KVP_MAP_DONTDUMP | KVP_MAP_HUGEPAGE)

/* Maps a segment that has the size and the seals it should have. */
int map_checked(int fd, uint64_t bytes, unsigned seals, uint32_t flags, void **ret_addr);
/* Maps what the WELCOME in p carries. */
int attachment_map(struct attachment *att, struct kvp_packet *p);
/* ring_lock. Nothing points into it any more: it can be used again. */
void attachment_empty(struct attachment *att);

/* ---- extents.c ------------------------------------------------------------------------------- */

/* Maps the extent that the packet carries. 0 too where there is no memory for it: then its blocks
 * are misses here. */
int extent_take(struct attachment *att, struct kvp_packet *p);
/* Asks for what matches have met and could not read. 1: the socket has no room for all of it yet. */
int extents_ask(struct attachment *att);
/* The daemon has answered with this tag, one way or the other: a later match may ask again. */
void extent_answered(struct attachment *att, uint32_t tag);
/* Hands the extent out no more; it goes when the handles made before are gone. */
int extent_retire(struct attachment *att, const struct kvp_msg_id *id);
/* Unmaps what nobody can be looking into any more, and tells the daemon. */
void retiring_sweep(struct kvp_client *c);
int retiring_any(const struct kvp_client *c, const struct attachment *att);

/* Tags of EXTENT_GET: this | extent. Those of requests are less. */
#define TAG_EXTENT 0x80000000u

/* ---- calls.c --------------------------------------------------------------------------------- */

/* Sends what close_at_daemon() had no room for. 1: it still has none. */
int closes_say(struct attachment *att);
/* Deals with one packet that is not part of the handshake. */
int packet_dispatch(struct attachment *att, struct kvp_packet *p);
/* All that have come. 0, or why the connection is over. */
int packets_receive(struct attachment *att);

/* ---- attach.c -------------------------------------------------------------------------------- */

/* One attempt, within the client's timeout. kvp_open() makes the first one, before the thread starts. */
int client_attach(struct kvp_client *c);
/* The daemon is gone: from here on every call is a miss or -ESHUTDOWN. */
void client_detach(struct attachment *att);

#endif
