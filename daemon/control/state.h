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
#include "daemon/control/payer.h"
#include "daemon/control/pressure.h"
#include "daemon/control/rates.h"
#include "daemon/control/source.h"
#include "daemon/dataplane.h"
#include "daemon/notify.h"
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
	struct kvpd_rates rates;
	struct kvpd_config *config;
	struct kvpd_config *first_config; /* the ledger was made with it */
	struct kvpd_account account;
	uid_t overflow_uid;
	gid_t admin_gid;
	bool has_admin_gid;
	struct kvpd_ledger *ledger;
	uint64_t epoch;
	bool stop;
	struct kvpd_payers payers;
	struct kvpd_turns doors; /* listeners have a row of their own: anybody may come by them */
	uint32_t n_listeners;
	TAILQ_HEAD(, kvpd_listener) listeners;
	TAILQ_HEAD(, kvpd_listener) dead_listeners;
	TAILQ_HEAD(, kvpd_conn) conns;
	TAILQ_HEAD(, kvpd_conn) dead_conns;
	TAILQ_HEAD(, kvpd_conn) pending; /* not attached; by age */
	TAILQ_HEAD(, kvpd_conn) stuck;   /* that read nothing of what waits; by age */
	TAILQ_HEAD(, kvpd_conn) held;    /* to be tried again at a time of their own */
	uint64_t held_due_ns;            /* the soonest of these times, or sooner */
	TAILQ_HEAD(, kvpd_guest) guests;
	TAILQ_HEAD(lost_list, kvpd_guest) lost; /* without a connection */
	uint64_t next_sweep_ns;                 /* see kvpd_guest_turn() */
	TAILQ_HEAD(, kvpd_guest) dead_guests;
	TAILQ_HEAD(, kvpd_tenant_entry) tenants;
	uint32_t n_conns, n_pending, n_admins, n_guests;
	TAILQ_HEAD(, kvpd_conn) lingering;  /* see flight.h; by when they were looked at */
	uint32_t flight_uid_max;            /* descriptors in flight: of a payer at most */
	uint64_t accepted, refused, broken; /* connections, since the start */
	uint64_t turns;                     /* of the loop, likewise */
	struct kvp_packet *packet;          /* for receiving: one for the thread */
	/* What the ledger posted; the control thread has taken n_events of them so far. */
	uint64_t n_events;
	pthread_mutex_t lock;
	STAILQ_HEAD(kvpd_posted_list, kvpd_posted) posted;
	/* the service manager */
	struct kvpd_notify manager;
	uint64_t watchdog_ns, next_watchdog_ns;
	bool status_changed;
	uint64_t next_status_ns;
};

/* Looks up the configuration's admin_group. */
void kvpd_find_admin_group(struct kvpd_control *c);

#endif
