/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the control thread share: control.c, conn.c, attach.c, admin.c, reload.c. */
#ifndef KVPD_CONTROL_IMPL_H
#define KVPD_CONTROL_IMPL_H

#include <pthread.h>
#include <sys/queue.h>

#include "daemon/clock.h"
#include "daemon/control/control.h"
#include "daemon/log.h"
#include "daemon/control/peer.h"
#include "shm/kvp_msg.h"

/*
 * Bounds on what connections can make the daemon hold. A uid that connects without end fills its
 * own part only.
 */
#define KVPD_PENDING_MAX     2048u /* connections that have not attached */
#define KVPD_PENDING_PER_UID 512u  /* many engines of one user may start at once */
#define KVPD_SILENT_MS       100u  /* after that, without a word, it makes way for others */
#define KVPD_ADMIN_MAX       64u   /* administrators' connections */
#define KVPD_OUT_MAX         (KVP_MAX_EXTENTS + 512u) /* packets waiting for one client to read */
#define KVPD_PACKETS_A_TURN  16u         /* read from one connection before others get their turn */
#define KVPD_STALL_MS        30000u      /* a client that reads nothing of what waits for it */
#define KVPD_ANSWER_MAX      (64u << 20) /* bytes of JSON in one answer */
#define KVPD_ANSWER_PART     32768u

/* Anything epoll watches. `dead`: freed at the end of this turn; events still at hand are void. */
struct kvpd_source {
	void (*ready)(struct kvpd_source *source, uint32_t events);
	bool dead;
};

struct kvpd_listener {
	struct kvpd_source source;
	struct kvpd_control *control;
	int fd;
	char *name;   /* of the file; NULL: passed by systemd */
	char *tenant; /* whose socket it is; NULL: the main one */
	TAILQ_ENTRY(kvpd_listener) link;
};

/* A tenant as the control thread sees it. */
struct kvpd_domain {
	char name[64];
	uint32_t tenant;
	bool listed; /* the configuration names it */
	uint32_t sessions;
	uint64_t idle_since_ns; /* when the last session went */
	TAILQ_ENTRY(kvpd_domain) link;
};

enum kvpd_conn_state {
	KVPD_CONN_HELLO, /* nothing heard yet */
	KVPD_CONN_PROVE, /* asked for credentials */
	KVPD_CONN_CLIENT,
	KVPD_CONN_ADMIN,
};

/* A packet that waits for room in the socket; its descriptors are its own. */
struct kvpd_out {
	TAILQ_ENTRY(kvpd_out) link;
	uint16_t type;
	uint16_t n_fds;
	uint32_t tag;
	uint32_t len;
	int fds[KVP_MSG_MAX_FDS];
	uint8_t body[];
};

struct kvpd_session;

struct kvpd_conn {
	struct kvpd_source source;
	struct kvpd_control *control;
	int fd;
	enum kvpd_conn_state state;
	struct kvpd_identity who;
	char tenant[64]; /* whose socket it came in by; "" = the main one */
	uint64_t since_ns;
	uint32_t interest; /* what epoll watches */
	/* While attaching. */
	int pidfd;
	uint64_t nonce;
	uint32_t hello_tag;
	char name[KVP_CLIENT_NAME];
	struct kvpd_session *session;
	/* To be sent. */
	TAILQ_HEAD(, kvpd_out) out;
	uint32_t n_out;
	uint64_t stuck_since_ns; /* the socket took nothing since; 0: nothing waits */
	/* An administrator's answer, while it is being sent. */
	char *answer;
	size_t answer_bytes, answer_sent;
	uint32_t answer_tag;
	int32_t answer_status;
	TAILQ_ENTRY(kvpd_conn) link;
};

struct kvpd_session {
	struct kvpd_source source; /* its pidfd */
	struct kvpd_control *control;
	struct kvpd_conn *conn; /* NULL: lost, but the process lives */
	struct kvpd_domain *domain;
	uint32_t id;
	int pidfd;
	struct kvpd_identity who;
	char listener[64]; /* as kvpd_conn.tenant */
	TAILQ_ENTRY(kvpd_session) link;
};

struct kvpd_posted {
	STAILQ_ENTRY(kvpd_posted) link;
	struct kvpd_event event;
};

struct kvpd_control {
	int epfd, sigfd, evfd;
	int psi_fd;   /* the kernel's word that memory is short; -1: it gives none */
	int spare_fd; /* given up for a moment when descriptors run out, to refuse a connection */
	struct kvpd_source sig_source, ev_source, psi_source;
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
	TAILQ_HEAD(, kvpd_conn) conns;
	TAILQ_HEAD(, kvpd_conn) dead_conns;
	TAILQ_HEAD(, kvpd_session) sessions;
	TAILQ_HEAD(, kvpd_session) dead_sessions;
	TAILQ_HEAD(, kvpd_listener) dead_listeners;
	TAILQ_HEAD(, kvpd_domain) domains;
	uint32_t n_conns, n_pending, n_admins, n_sessions;
	uint32_t queued_fds, queued_fds_max; /* in all connections' packets */
	uint64_t accepted, refused, broken;  /* connections, since the start */
	struct kvp_packet *packet;           /* for receiving: one for the thread */
	/* What the ledger posted. */
	pthread_mutex_t lock;
	STAILQ_HEAD(, kvpd_posted) posted;
	/* systemd */
	uint64_t watchdog_ns, next_watchdog_ns;
	bool status_changed;
	uint64_t next_status_ns;
};

/* ---- control.c */
int kvpd_watch(struct kvpd_control *c, int fd, uint32_t events, struct kvpd_source *source);
struct kvpd_domain *kvpd_domain_by_name(struct kvpd_control *c, const char *name);
struct kvpd_session *kvpd_session_by_id(struct kvpd_control *c, uint32_t id);
/* Socket of a tenant (NULL: the main one). -EEXIST etc. as kvpd_listen(). */
int kvpd_listener_add(struct kvpd_control *c, const char *tenant, const char *name, mode_t mode);
void kvpd_listener_remove(struct kvpd_listener *listener);
void kvpd_find_admin_group(struct kvpd_control *c);
/* Drops what the ledger posted for a tenant and nobody has dealt with yet. */
void kvpd_forget_events(struct kvpd_control *c, uint32_t tenant);
/* One turn of the loop; waits at most wait_ms if nothing happens (-1: until something is due). */
int kvpd_control_turn(struct kvpd_control *c, int wait_ms);

/* ---- conn.c */
void kvpd_conn_accept(struct kvpd_listener *listener);
/* Closes it. Its session, if any, stays. */
void kvpd_conn_close(struct kvpd_conn *conn);
/* Says why, and closes. */
void kvpd_conn_refuse(struct kvpd_conn *conn, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/*
 * Sends, or queues if the client is slow. The descriptors stay the caller's. -ENOBUFS: too much is
 * waiting for it already.
 */
int kvpd_conn_send(struct kvpd_conn *conn, uint16_t type, uint32_t tag, const void *body,
	size_t len, const int *fds, unsigned n_fds);
void kvpd_conn_error(struct kvpd_conn *conn, uint32_t tag, int error,
	const char *text); /* the connection stays */
void kvpd_conn_watch(struct kvpd_conn *conn);
/* From pending to attached, or to an administrator's. */
void kvpd_conn_settle(struct kvpd_conn *conn, enum kvpd_conn_state state);
/* Deadlines: returns when to call again, UINT64_MAX = never. */
uint64_t kvpd_conn_expire(struct kvpd_control *c, uint64_t now);
void kvpd_conn_free(struct kvpd_conn *conn);

/* ---- attach.c: packets of clients. They may close the connection. */
void kvpd_session_hello(struct kvpd_conn *conn, const struct kvp_packet *packet);
void kvpd_session_proof(struct kvpd_conn *conn, const struct kvp_packet *packet);
void kvpd_session_packet(struct kvpd_conn *conn, const struct kvp_packet *packet);
void kvpd_session_event(struct kvpd_control *c, struct kvpd_event *event);
/* The ledger forgets it; the connection is closed too. */
void kvpd_session_end(struct kvpd_session *session, const char *why);
/* Nobody joins it any more, its sessions end, its segments go. The domain is freed. */
void kvpd_domain_abandon(struct kvpd_control *c, struct kvpd_domain *domain, const char *why);
int kvpd_domain_open(struct kvpd_control *c, const char *name, const struct kvpd_limits *limits,
	bool listed, struct kvpd_domain **ret_domain);
/*
 * Which tenant does this identity belong to, by this socket? NULL: none, and *ret_why says so.
 * *ret_unlisted: it gets one of its own.
 */
const struct kvpd_tenant_config *kvpd_admit(const struct kvpd_control *c,
	const struct kvpd_config *config, const char *listener, uid_t uid, bool *ret_unlisted,
	const char **ret_why);

/* ---- admin.c */
bool kvpd_admin_allowed(struct kvpd_conn *conn);
void kvpd_admin_packet(struct kvpd_conn *conn, const struct kvp_packet *packet);
/* Sends more of the answer as long as there is room. */
void kvpd_admin_continue(struct kvpd_conn *conn);

/* ---- reload.c */
void kvpd_reload(struct kvpd_control *c);

#endif
