/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guests: a session as the control thread sees it, which is a process (its pidfd) and perhaps a
 * connection. The session itself is the ledger's.
 */
#ifndef KVPD_GUEST_H
#define KVPD_GUEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "daemon/control/peer.h"
#include "daemon/control/source.h"

struct kvp_packet;
struct kvpd_conn;
struct kvpd_payer;
struct kvpd_posted;
struct kvpd_tenant_entry;

struct kvpd_guest {
	struct kvpd_source source; /* its pidfd; the payer is its connection's */
	struct kvpd_control *control;
	struct kvpd_conn *conn; /* NULL: lost, but the process lives */
	struct kvpd_tenant_entry *tenant;
	uint32_t id; /* of the session */
	int pidfd;
	struct kvpd_identity who;
	uint64_t told; /* the number of the last event that it was told, or need not be */
	TAILQ_ENTRY(kvpd_guest) link;
	TAILQ_ENTRY(kvpd_guest) in_tenant;
	TAILQ_ENTRY(kvpd_guest) in_lost;  /* without a connection: of all, */
	TAILQ_ENTRY(kvpd_guest) in_payer; /* and of the payer */
};

/* Of a session that the ledger has; takes the connection's pidfd. NULL: no memory. */
struct kvpd_guest *kvpd_guest_new(
	struct kvpd_conn *conn, struct kvpd_tenant_entry *entry, uint32_t session);
/* The ledger forgets the session; the connection is closed too. Freed by kvpd_control_bury(). */
void kvpd_guest_end(struct kvpd_guest *guest, const char *why);
/* The same, but the ledger is not told. */
void kvpd_guest_end_here(struct kvpd_guest *guest);
void kvpd_guest_free(struct kvpd_guest *guest);
/* It has no connection any more; the session stays while its process lives. */
void kvpd_guest_lost(struct kvpd_guest *guest);
/*
 * Ends guests that have lost their connection and whose session nobody can use any more: a process
 * that replaced its program without closing would otherwise keep a session each time until it
 * ends. Looks at KVPD_LOOKS of them, others the next time; or at those of one process, by one
 * payer. Returns how many have ended.
 */
uint32_t kvpd_guest_sweep(struct kvpd_control *c);
uint32_t kvpd_guest_sweep_process(struct kvpd_payer *payer, pid_t pid);
/* Does so once a second while it may find something; returns when to call again. */
uint64_t kvpd_guest_turn(struct kvpd_control *c, uint64_t now);
/* A packet of an attached client. It may close the connection. */
void kvpd_guest_packet(struct kvpd_conn *conn, const struct kvp_packet *packet);
/* The next step of conn->opening; likewise. */
void kvpd_guest_open_on(struct kvpd_conn *conn);
/*
 * A step of telling guests what the ledger says: false if there are more to be told. Those that
 * attached after it was taken are not. The event's descriptor stays open.
 */
bool kvpd_guest_event(struct kvpd_tenant_entry *entry, struct kvpd_posted *posted);

#endif
