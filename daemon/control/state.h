/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that the control thread owns. Everything in this folder belongs to that one thread; only
 * kvpd_control_post() may be called by others.
 */
#ifndef KVPD_STATE_H
#define KVPD_STATE_H

#include <pthread.h>
#include <sys/queue.h>

#include "daemon/config.h"
#include "daemon/control/pressure.h"
#include "daemon/control/source.h"
#include "daemon/dataplane.h"
#include "daemon/privilege.h"

struct kvp_packet;
struct kvpd_conn;
struct kvpd_guest;
struct kvpd_listener;
struct kvpd_posted;
struct kvpd_tenant_entry;

struct kvpd_control {
	int epfd, sigfd, evfd;
	int spare_fd; /* given up for a moment when descriptors run out, to refuse a connection */
	struct kvpd_source sig_source, ev_source;
	struct kvpd_pressure pressure;
	struct kvpd_config *config;
	struct kvpd_config *first_config; /* the ledger was made with it */
	struct kvpd_account account;
	uid_t overflow_uid;
	gid_t admin_gid;
	bool has_admin_gid;
	struct kvpd_ledger *ledger;
	uint64_t epoch;
	uint64_t start_ns;
	bool stop;
	TAILQ_HEAD(, kvpd_listener) listeners;
	TAILQ_HEAD(, kvpd_listener) dead_listeners;
	TAILQ_HEAD(, kvpd_conn) conns;
	TAILQ_HEAD(, kvpd_conn) dead_conns;
	TAILQ_HEAD(guest_list, kvpd_guest) guests;
	uint64_t next_sweep_ns; /* see kvpd_guest_turn() */
	TAILQ_HEAD(, kvpd_guest) dead_guests;
	TAILQ_HEAD(, kvpd_tenant_entry) tenants;
	uint32_t n_conns, n_pending, n_admins, n_guests;
	TAILQ_HEAD(, kvpd_conn) lingering;  /* see flight.h */
	uint32_t in_flight, flight_uid_max; /* descriptors: all, and of a uid at most */
	uint64_t flight_looked_ns, linger_due_ns;
	uint64_t accepted, refused, broken; /* connections, since the start */
	struct kvp_packet *packet;          /* for receiving: one for the thread */
	/* What the ledger posted. */
	pthread_mutex_t lock;
	STAILQ_HEAD(, kvpd_posted) posted;
	/* systemd */
	uint64_t watchdog_ns, next_watchdog_ns;
	bool status_changed;
	uint64_t next_status_ns;
};

/* Looks up the configuration's admin_group. */
void kvpd_find_admin_group(struct kvpd_control *c);

#endif
