/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line between the control thread and the ledger.
 *
 * The ledger thread owns the catalogs, extents, grants, claims and eviction state of all tenants;
 * nobody else writes them and there is no lock. The control thread (sockets, processes, signals,
 * administration) asks it through the functions below: each hands a message to the ledger thread
 * and waits for the answer, which takes as long as the ledger's current round (well under a
 * millisecond); what takes longer is begun, done in steps, and ended. They may be called by the control
 * thread only.
 *
 * The other way round the ledger posts events, which the control thread turns into packets; posting
 * never waits. What cannot be posted for want of memory stays with the ledger, which does without
 * or tries again.
 *
 * Errors are negative errno. Descriptors that are returned belong to the caller.
 */
#ifndef KVPD_DATAPLANE_H
#define KVPD_DATAPLANE_H

#include <jansson.h>

#include "daemon/config.h"
#include "shm/kvp_proto.h"

struct kvpd_ledger;

#define KVPD_EV_ARENA  1u /* session: a new arena of its own, writable; answered by ARENA_ACK */
#define KVPD_EV_EXTENT 2u /* tenant, except session `session`: map this read-only */
#define KVPD_EV_RETIRE 3u /* tenant: unmap it and send RETIRE_ACK */
#define KVPD_EV_EXPEL  4u /* session broke the protocol: disconnect it, log `reason` */

struct kvpd_event {
	uint32_t type;
	uint32_t tenant;
	uint32_t session; /* ARENA, EXPEL: the one concerned; EXTENT: the one left out (0: none) */
	struct kvp_msg_extent extent;
	int fd; /* ARENA, EXTENT: the receiver of the event closes it; else -1 */
	int error;
	char reason[128];
};

struct kvpd_ledger_params {
	const struct kvpd_config *config; /* outlives the ledger */
	uint64_t epoch;                   /* not 0 */
	uid_t owner; /* the user that the daemon will run as: inodes of segments are given to it */
	/*
	 * Called on the ledger thread; must not block or call back. 0: the event and its descriptor
	 * are taken. -ENOMEM: neither is.
	 */
	int (*post)(void *ctx, const struct kvpd_event *event);
	void *ctx;
};

/*
 * Still privileged: checks memory, huge pages, memlock and NUMA against the configuration, makes
 * what has to be made before privileges go. Errors have been logged with what to do about them.
 */
int kvpd_ledger_new(const struct kvpd_ledger_params *params, struct kvpd_ledger **ret_ledger);
/* After privileges are gone: starts the ledger, pool and mover threads. */
int kvpd_ledger_start(struct kvpd_ledger *ledger);
/* Stops and joins the threads, wakes every waiter, frees all. NULL is harmless. Returns NULL. */
struct kvpd_ledger *kvpd_ledger_free(struct kvpd_ledger *ledger);

/*
 * Is the share of these limits enough for what they mean? 0, or -ENOSPC and *ret_least: the least
 * share that is; -EINVAL: no catalog can be made for so many blocks, recipes and tokens. Of the
 * configuration only `policy` and `advisor` count. Needs no ledger; any thread. Makes an instance of
 * the policy (-ENOENT, -ENOMEM) and frees it.
 */
int kvpd_limits_check(
	const struct kvpd_config *config, const struct kvpd_limits *limits, uint64_t *ret_least);

/* Are these well-formed `faults` of a device with the driver "fault"? Any thread. */
bool kvpd_faults_check(const char *faults);

/*
 * The tenant of this name, made with these limits if it does not exist. -ENOSPC: the shares of all
 * tenants would exceed `memory`; -EUSERS: KVPD_MAX_TENANTS. ids begin at 1.
 */
int kvpd_tenant_open(struct kvpd_ledger *ledger, const char *name, const struct kvpd_limits *limits,
	uint32_t *ret_tenant);
/*
 * No new session joins the tenant from now on: its name is given up and, when its last session is
 * gone, its segments go with it. A reload uses it when a uid left the tenant; the name's next
 * kvpd_tenant_open() starts with fresh memfds.
 */
int kvpd_tenant_abandon(struct kvpd_ledger *ledger, uint32_t tenant);

struct kvpd_peer {
	pid_t pid;
	uid_t uid;
	gid_t gid;
	char name[KVP_CLIENT_NAME];
};

struct kvpd_attach {
	uint32_t session; /* from 1; not used again before 2^32 others */
	int catalog_fd;   /* read-only re-open or write-sealed */
	int page_fd;
	int wake_fd; /* eventfd that the ledger listens to */
	uint64_t catalog_bytes;
	uint64_t page_bytes;
};

/*
 * When it returns the ledger's lease scan knows the session's page: only then may the descriptors
 * be sent. -EUSERS: max_sessions. -ENOMEM, -EMFILE.
 */
int kvpd_session_attach(struct kvpd_ledger *ledger, uint32_t tenant, const struct kvpd_peer *peer,
	struct kvpd_attach *ret_attach);
/*
 * Which of these sessions has nobody any more who could use it: their pages are neither mapped nor
 * open anywhere but here, as after a process without a connection has replaced its program. At
 * most KVPD_LOOKS of them; those that are not known, or where the kernel does not tell, are not.
 */
#define KVPD_LOOKS 32u
int kvpd_sessions_unused(
	struct kvpd_ledger *ledger, const uint32_t *sessions, uint32_t n, bool ret_unused[]);
/* The process is dead (pidfd) or gave up its session: leases, grants and claims go. */
int kvpd_session_detach(struct kvpd_ledger *ledger, uint32_t session);

/*
 * Live extents that a session has to map read-only, some in each call, from *from on (at first 0),
 * which becomes where to go on; 0: those were all. Calls back for each, on the calling thread. The
 * first ones come with a descriptor, which the callee owns, the others with -1: kvpd_extent_get()
 * has theirs when it is their turn.
 */
int kvpd_session_extents(struct kvpd_ledger *ledger, uint32_t session, uint32_t *from,
	void (*each)(void *ctx, const struct kvp_msg_extent *extent, int fd), void *ctx);
/* One of them by id; -ENOENT. Never one of another tenant. */
int kvpd_extent_get(struct kvpd_ledger *ledger, uint32_t session, uint32_t extent,
	struct kvp_msg_extent *ret_extent, int *ret_fd);

/*
 * -EINPROGRESS: another space is being emptied for it, a portion at each call; ask again. Else the
 * reason is said of what is refused.
 */
int kvpd_space_open(struct kvpd_ledger *ledger, uint32_t session,
	const struct kvp_space_canon *canon, char *ret_reason, size_t reason_bytes,
	struct kvp_msg_space *ret_space);
/*
 * Would a space of this description be one whose clients decode with a calibration? It may say anything: only its floor is
 * looked at. And the calibration of one that kvpd_space_open() has opened: a descriptor that stays the ledger's, for as long as that
 * lives; -1: it needs none. Any thread.
 */
bool kvpd_space_calibrated(const struct kvp_space_canon *canon);
int kvpd_space_calibration(const struct kvpd_ledger *ledger, const struct kvp_space_canon *canon);
int kvpd_space_close(struct kvpd_ledger *ledger, uint32_t session, const struct kvp_msg_id *id);
int kvpd_arena_ack(struct kvpd_ledger *ledger, uint32_t session, const struct kvp_msg_id *id);
int kvpd_retire_ack(struct kvpd_ledger *ledger, uint32_t session, const struct kvp_msg_id *id);

/*
 * Data-plane verbs of administration: blocks, inspect, pin, unpin, evict, drain, check and others. What is
 * counted is in daemon/figures.h. Each is done in steps, of a slice on the ledger, and both threads
 * serve others between them, so what is asked about may change meanwhile; docs/admin.md says what an
 * answer means then.
 */
struct kvpd_request;
/* -ENOMEM. */
int kvpd_admin_begin(json_t *request, struct kvpd_request **ret_request);
/* A step; -EINPROGRESS: there is more to do. Anything else is the result, and the last step's. */
int kvpd_admin_step(struct kvpd_ledger *ledger, struct kvpd_request *request);
/*
 * After a last step that succeeded: what the answer has as a list besides, of so many rows; NULL:
 * nothing. kvpd_admin_row() has one of them: a new reference, NULL: no memory.
 */
const char *kvpd_admin_list(const struct kvpd_request *request, uint32_t *ret_rows);
json_t *kvpd_admin_row(const struct kvpd_request *request, uint32_t row);
/* After the last step, or before, when nobody wants it any more. Frees it; returns the answer, also
 * with an error: a new reference. */
json_t *kvpd_admin_end(struct kvpd_request *request);

/*
 * The machine is short of memory by so many bytes: tenants give back about as much, each in
 * proportion to what it holds beyond a quarter of its share, which stays. What its policy keeps
 * least goes, and whole extents return their memory, which takes a while. For ten seconds no tenant
 * grows: puts make room by eviction or are told to come again. *ret_coming: bytes that are on their
 * way, from this call and those before. Nothing goes where pools are of 2 MiB pages that were set
 * aside: these are of no use to others.
 */
int kvpd_relieve(struct kvpd_ledger *ledger, uint64_t bytes, uint64_t *ret_coming);

/*
 * The least share with which a tenant that exists can go on: its catalog keeps its size, and a
 * block of each model that it serves has to fit. -ENOENT.
 */
int kvpd_tenant_least(struct kvpd_ledger *ledger, uint32_t tenant, uint64_t *ret_least);

/* Limits of tenants that exist and values that may change while running (claim_ttl_ms). */
int kvpd_reconfigure(struct kvpd_ledger *ledger, const struct kvpd_config *config);

#endif
