/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of libclient share.
 *
 * A client has at most one current attachment: everything that belongs to one connection to one
 * daemon (mappings, rings, grants). The client's own thread makes it, publishes it in client->att
 * and takes it away when the daemon is gone; the object is never freed before kvp_close(), only
 * emptied and used again once nothing points into its mappings.
 *
 * Which calls may use an attachment's mappings
 * - Hot calls (match, payload, release) hold it through their handle: kvp_match.state names it.
 * They store that name with a sequentially consistent exchange and then look at client->att again;
 * the library's thread clears client->att and then looks at the handles. One of the two sees the
 * other.
 * - All other calls hold it by `refs`, or hold ring_lock.
 *
 * Locks, in this order: lock (spaces, requests over the socket, the list of attachments), ring_lock
 * (rings, grants, claims, change of client->att). Neither is taken on the hot path. No lock is held
 * while waiting.
 */
#ifndef KVP_CLIENT_H
#define KVP_CLIENT_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "libclient/geometry.h"
#include "libclient/kvpool.h"
#include "shm/kvp_abi.h"
#include "shm/kvp_atomic.h"
#include "shm/kvp_catalog.h"
#include "shm/kvp_lease.h"
#include "shm/kvp_msg.h"
#include "shm/kvp_proto.h"
#include "shm/kvp_ring.h"

#define N_ATTACHMENTS     64u /* daemons' lives of which handles may be left at one time */
#define N_COMMITS         KVP_SERIALS
#define N_WARMS           64u /* several times as many as the daemon has under way */
#define AHEAD_MAX         16u /* slots granted ahead of need, per space */
#define AHEAD_THERE       4u  /* on a device, where they are dearer */
#define MATCHES_PER_SHARD 8u
#define MATCHES_PER_CHUNK (KVP_SHARDS * MATCHES_PER_SHARD)
#define MAX_TOKENS        (UINT32_C(1) << 30) /* of one sequence */
#define NO_ATTACHMENT     UINT32_C(0x7fffffff)
#define PINNED            UINT32_C(0x80000000)
#define PREFIX_KEYS       UINT32_C(0x80000000) /* blocks of keys, no prefix of a sequence */
#define PREFIX_WATCHED    UINT32_C(0x40000000) /* event_watch() has seen it */

#define NO_KEY ((struct kvp_key){ 0, 0 })

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define NS_PER_MS     UINT64_C(1000000)

/* ---- attachment ------------------------------------------------------------------------------ */

/* A mapped extent. Written by the library's thread; base is stored last and cleared first. */
struct extent_map {
	KVP_ATOMIC(uintptr_t) base; /* 0: not mapped */
	/* Memory that is none of the host's: its address on the device; a kvp_cuda's thread writes it. */
	KVP_ATOMIC(uint64_t) there;
	KVP_ATOMIC(uint64_t) bytes;
	KVP_ATOMIC(uint32_t) generation;
	uint32_t writable; /* this client's arena */
	uint32_t vault;    /* of the daemon's, sealed */
	uint32_t grants;   /* in it; ring_lock */
};

#define GRANT_NONE      0u
#define GRANT_AHEAD     1u /* in its space's stock */
#define GRANT_HELD      2u /* the caller's */
#define GRANT_COMMITTED 3u /* the caller's still */
#define GRANT_RETURNED  4u /* to be given back as soon as the ring has room */
#define GRANT_LATER     5u /* to be given back when its moment has come */

#define OUTCOME_UNKNOWN (-EINPROGRESS)

/* Fields change under ring_lock; a held grant's address is constant. */
struct kvp_grant {
	struct attachment *att;
	struct kvp_space *space;
	void *addr;      /* NULL: it lies on a device, */
	uint64_t there;  /* at this address of it */
	uint64_t offset; /* in its extent */
	uint32_t id;
	uint32_t generation;
	uint32_t extent;
	uint32_t state;
	uint32_t serial; /* of the commit */
	uint32_t tokens;
	uint64_t until; /* LATER: kvp_until() */
	int outcome;    /* 0, KVP_COMMITTED_DUPLICATE, negative errno */
	kvp_block_id block;
	uint32_t birth;
};

/* One of the last N_COMMITS commits; at serial mod N_COMMITS. ring_lock. */
struct commit {
	struct kvp_key key;
	uint32_t serial;
	uint32_t used;
	int outcome;
	kvp_block_id block;
	uint32_t birth;
	uint32_t space; /* number of the client's space */
	uint32_t grant; /* id + 1, while the grant is held; else 0 */
	uint32_t tokens;
	uint32_t parked; /* the ledger has said that it waits for a moment */
	uint64_t put;    /* number of the kvp_put() that made it, else 0 */
};

/* Where a block comes to lie on a device. */
struct place {
	uint64_t where; /* kvp_where() */
	uint64_t offset;
	uint64_t
		told; /* number among those of the attachment: of one block the last is where it comes to lie */
	kvp_block_id block;
	uint32_t birth;
};

/* One of the last N_WARMS requests for copies to a device; at serial mod N_WARMS. ring_lock. */
struct warm {
	struct attachment *att;
	struct kvp_prefix *held; /* of kvp_prefetch(): the library's own, until the answer */
	/* KVP_WARM_EARLY, until the answer: of the first `placed` blocks, in attachment.early; else NULL. */
	struct place *places;
	struct warm *next_early;
	uint32_t placed;
	uint32_t first; /* block of the prefix */
	uint32_t device;
	uint32_t serial;
	uint32_t used;
	uint32_t asked; /* blocks */
	uint32_t blocks;
	int outcome;
};

/*
 * What was committed at the daemon before, the last one at which anything was. Keys are of that
 * daemon: `roots` are those of the client's spaces there.
 */
struct former {
	struct kvp_key roots[KVP_MAX_SPACES];
	struct commit commits[N_COMMITS];
};

/* Slots of a space in one medium; ring_lock. */
struct stock {
	uint32_t medium; /* 0: DRAM; n + 1: device n */
	uint32_t n_ahead;
	uint8_t ahead[KVP_MAX_GRANTS];
	uint32_t batch;  /* of the next RESERVE */
	uint32_t asking; /* 1: a RESERVE is out, with this serial */
	uint32_t serial;
	uint32_t answers; /* refusals so far */
	int refusal;      /* the last one */
	uint32_t retry_ms;
	uint64_t refused_ns; /* when it came */
	uint64_t used_ns;    /* last kvp_reserve() */
};

#define STOCKS 2u /* DRAM, and the device that was last reserved on */

#define SERVE_NONE     0u
#define SERVE_ASKED    1u /* the next demand was asked for */
#define SERVE_ANSWERED 2u

/* kvp_serve_remat() of a space; ring_lock. */
struct serve {
	uint32_t state; /* SERVE_* */
	uint32_t serial;
	struct kvp_cqe cqe;
};

/* A space in one attachment. `open` is stored last. */
struct space_bind {
	KVP_ATOMIC(uint32_t) open;
	uint64_t tried; /* stamp of the space for which SPACE_OPEN was sent; lock */
	uint32_t index; /* in the catalog's table */
	uint32_t generation;
	struct kvp_key root;
	struct stock stock[STOCKS];
	struct serve serve;
};

/* An answer to CLAIM, FLUSH or DELETE that somebody waits for, on the waiter's stack. */
struct ring_waiter {
	struct ring_waiter *next;
	uint32_t op;
	uint32_t serial;
	uint32_t done;
	struct kvp_cqe cqe;
};

struct host_regs; /* cuda.h */

struct attachment {
	struct kvp_client *client;
	struct host_regs *host; /* what the driver was told of its memory; cuda_lock */
	struct arrival *owns;   /* memory of devices that this client writes; cuda_lock */
	uint32_t slot;          /* in client->attachments */
	uint32_t in_use;
	uint32_t published; /* has been current: its counters count; ring_lock */
	uint32_t refs;      /* ring_lock: held grants and calls that wait */
	uint64_t epoch;
	uint32_t session;
	KVP_ATOMIC(uint32_t) dead; /* the daemon is gone */
	int sock;
	int wake;
	/* Does the daemon read and answer? See calls.c. lock */
	uint32_t open_calls; /* requests that it has not answered */
	uint32_t heard;      /* packets from it */
	uint32_t deaf;       /* it left a request without an answer, and has said nothing since */
	struct unsaid *unsaid;
	void *catalog;
	uint64_t catalog_bytes;
	struct kvp_session_page *page;
	uint64_t page_bytes;
	struct kvp_catalog_view view;
	struct space_bind binds[KVP_MAX_SPACES];
	/* ring_lock */
	uint32_t sq_tail;
	uint32_t cq_head;
	uint32_t commit_serial;
	uint32_t other_serial;
	uint32_t warm_serial;
	uint32_t n_prefetches;    /* warms that hold a prefix */
	struct warm *early;       /* that have places */
	uint64_t places_told;     /* so far */
	struct kvp_prefix *given; /* that have places of tickets that have not ended */
	/*
	 * For each timeline the last moment, kvp_until(), at which a handle ended that was given places which
	 * were not a block's yet. No lock: written before the handle goes, read after.
	 */
	KVP_ATOMIC(uint64_t) early_until[KVP_TIMELINES];
	uint64_t puts;                /* so far */
	uint32_t n_returned;          /* grants in GRANT_RETURNED */
	uint32_t n_later;             /* in GRANT_LATER */
	KVP_ATOMIC(uint32_t) stocked; /* the library's thread has to come by: slots are ahead */
	struct ring_waiter *waiters;
	struct kvp_prefix *claims; /* that hold one */
	/* Is the ledger there? See ring.c. */
	uint32_t open_questions; /* that it will answer and has not yet */
	uint64_t quiet_since;    /* its last answer, or the first question after that */
	uint32_t stuck;          /* it left a call without an answer, and has said nothing since */
	uint64_t timeouts;       /* calls so left */
	struct kvp_grant grants[KVP_MAX_GRANTS];
	struct commit commits[N_COMMITS];
	struct warm warms[N_WARMS];
	/* Extents that a match met and that are not mapped; bits. */
	KVP_ATOMIC(uint64_t) wanted[KVP_MAX_EXTENTS / 64];
	uint8_t asked_for[KVP_MAX_EXTENTS]; /* EXTENT_GET is on its way; the library's thread */
	/* Extents that are not host memory: mapped by a kvp_cuda, if any. */
	KVP_ATOMIC(uint8_t) foreign[KVP_MAX_EXTENTS];
	struct extent_map extents[KVP_MAX_EXTENTS];
};

/* ---- handles --------------------------------------------------------------------------------- */

struct kvp_prefix {
	/*
	 * uses 32 | PINNED 1 | attachment slot + 1 (NO_ATTACHMENT: none; 0: free) 31. A pinned
	 * handle may be used to look into any extent; otherwise only into those of leased blocks,
	 * which the daemon does not retire.
	 */
	KVP_ALIGNED(64) KVP_ATOMIC(uint64_t) state;
	struct kvp_client *client;
	struct kvp_space *space;
	struct attachment *att; /* NULL: made without a daemon */
	struct kvp_lease lease;
	uint32_t shard;
	uint32_t flags; /* KVP_MATCHED_*, PREFIX_* */
	uint32_t n_blocks;
	uint32_t n_tokens;
	uint32_t tail_tokens; /* hits[n_blocks] then is the tail */
	uint32_t asked;       /* blocks of the prompt */
	uint32_t base;        /* blocks taken over from an earlier prefix */
	uint32_t tiers;       /* it may lie in: KVP_TIERS() */
	uint32_t device;      /* the one that VRAM means, where they name it */
	uint32_t cap;         /* room in hits */
	struct kvp_hit *hits;
	/* PREFIX_KEYS: of each of n_blocks, `lease` being none. Its hit names no extent where none is. */
	struct kvp_lease *leases;
	uint32_t leases_cap;
	/* Claims: keys of the prompt's whole blocks; `front` is the one claimed or waited for. */
	struct kvp_key *chain;
	kvp_token *tokens; /* whole blocks of the prompt up to the one waited for */
	uint32_t chain_cap;
	uint32_t tokens_cap;
	uint32_t n_chain;
	uint32_t front;
	struct kvp_prefix *next_claim; /* of those that hold a claim, or that are watched */
	/*
	 * Places that no lease protects, see pending_begin(). ring_lock, but that who releases it looks whether it is
	 * in the list.
	 */
	uint64_t given; /* by these of attachment.warms, which have not ended; bits */
	uint32_t lost;  /* by one that failed */
	KVP_ATOMIC(uint32_t) in_given;
	struct kvp_prefix *next_given;
};

struct prefix_chunk {
	struct kvp_prefix match[MATCHES_PER_CHUNK];
	KVP_ATOMIC(struct prefix_chunk *) next;
};

struct kvp_space {
	struct kvp_client *client;
	uint32_t number; /* in attachment.binds */
	uint64_t stamp;  /* tells it from an earlier space at the same address */
	uint32_t min_cache_tokens;
	uint32_t salted;
	kvp_token salt[KVP_SALT_TOKENS];
	struct kvp_space *base;    /* kvp_space_salted(): the one that it is of; else NULL */
	struct kvp_space *next;    /* salted ones of one base; lock */
	struct kvp_space *salteds; /* of a base; lock */
	uint8_t fingerprint[32];   /* of a base; lock */
	struct kvp_space_canon canon;
	struct geometry geo;
	struct space_codecs *codecs; /* of a base, whose salted ones borrow it; NULL: exact */
};

/*
 * A place for a timeline. Values in shared memory go on where those of the timeline that had the
 * place before ended, so that nothing of an earlier one is taken for reached or is waited for.
 */
struct kvp_timeline {
	struct kvp_client *client;
	uint32_t index;               /* in kvp_session_page.done */
	uint32_t open;                /* ring_lock */
	uint64_t base;                /* where its values begin */
	KVP_ATOMIC(uint64_t) reached; /* in shared memory's values; changes under ring_lock */
	KVP_ATOMIC(uint64_t) awaited; /* the last one that anything waits for */
	uint64_t hastened;            /* and that more than leases wait for; ring_lock */
	/* Who advances it: ring_lock, like `cuda`. */
	KVP_ATOMIC(uint32_t) kind;   /* LINE_* */
	KVP_ATOMIC(uint64_t) marked; /* of a device: the last value given out */
	struct kvp_cuda *cuda;       /* the same, until it is closed */
	uint32_t ends;               /* its caller has left it; ring_lock */
};

#define LINE_HOST   0u /* the caller */
#define LINE_STREAM 1u /* a device, at kvp_cuda_mark() */
#define LINE_SLOTS  2u /* the library, when bytes have come into slots */
#define LINE_EVENTS 3u /* a device that writes no words, with an event at kvp_cuda_mark() */
#define LINE_BROKEN 4u /* nobody any more: its device was lost */

/* A request over the socket that somebody waits for; lock. */
struct call {
	struct call *next;
	uint32_t tag;
	uint32_t done;
	int status;
	struct kvp_msg_space space;
	int fd; /* that came with it, the caller's; or -1 */
};

struct retiring; /* extents.c */
struct kvp_cuda;

struct kvp_client {
	KVP_ATOMIC(struct attachment *) att; /* NULL: no daemon; changes under ring_lock */
	/* A page that a forked child finds zeroed; 1 in the process that opened the client. */
	volatile uint32_t *mine;
	struct prefix_chunk *matches;
	uint32_t timeout_ms;
	uint32_t lazy; /* KVP_OPEN_LAZY */
	char *socket;
	char name[KVP_CLIENT_NAME];

	pthread_mutex_t lock;
	pthread_cond_t changed; /* with lock: a call is done */
	pthread_t thread;
	int kick; /* eventfd: the library's thread shall look around */
	KVP_ATOMIC(uint32_t) closing;
	char error_text[KVP_MSG_TEXT];
	uint32_t joined; /* successful attempts */
	uint32_t tag;
	struct call *calls;
	struct kvp_space *spaces[KVP_MAX_SPACES];
	uint64_t stamp; /* of the last space */

	pthread_mutex_t ring_lock;
	struct attachment *attachments[N_ATTACHMENTS];
	struct kvp_counters past; /* of attachments that were emptied */
	struct former former;
	struct kvp_timeline timelines[KVP_TIMELINES];
	/* Events, events.c; ring_lock. */
	int event_fd;               /* -1: nobody has asked for it, and there is no thread */
	uint32_t events;            /* KVP_EVENT_* asked for */
	struct kvp_prefix *watched; /* that wait for claims, and are not announced */
	KVP_ATOMIC(uint32_t)
	event_kick;           /* counted up: the thread shall look around; a futex word */
	uint32_t event_polls; /* no futex_waitv() here; the thread alone */
	pthread_t event_thread;
	/* Lookups made without a daemon, or before it has opened their space. */
	/* Blocks that kvp_get() and kvp_fork() decoded, and those that they could not. */
	KVP_ATOMIC(uint64_t) decoded, undecoded;
	KVP_ATOMIC(uint64_t) blind_lookups;
	KVP_ATOMIC(uint64_t) blind_tokens;
	/* The library's thread alone. */
	struct retiring *retiring;
	struct kvp_packet *packet;
	uint32_t told; /* the daemon has said why it refused */

	/* Those that are open, and what they share; see cuda.h. All under cuda_lock. */
	pthread_mutex_t cuda_lock;
	struct kvp_cuda *cudas;
	uint64_t register_max; /* bytes of vaults; 0: none is registered */
	uint64_t registered_bytes, refused_bytes;
};

/* Is this the process that opened the client? A forked child's copy of the page is zero. */
static inline int client_mine(const struct kvp_client *client)
{
	return *client->mine == 1;
}

/* ---- client.c -------------------------------------------------------------------------------- */

uint64_t now_ns(void);
/* End of a wait: of timeout_ms from now, or of the client's default. */
uint64_t deadline_of(const struct kvp_client *client, uint32_t timeout_ms);
/* The same for a question that is answered at once: KVP_ANSWER_MS from now at least. */
uint64_t answer_by(uint64_t deadline);
/* Any thread; one system call. */
void client_kick(struct kvp_client *client);
/* A thread that runs run(arg), on which no signal is ever delivered: they are the application's. */
int thread_start(void *(*run)(void *arg), void *arg, pthread_t *ret_thread);
/* This thread's shard: 0 .. KVP_SHARDS - 1. */
uint32_t thread_shard(void);

/* Copies an option struct of the caller's size over zeros; -EINVAL if the size is no size. */
int opts_take(void *dst, size_t bytes, const void *src);
/* Copies a result as far as the caller's struct goes; its size field stays. -EINVAL as above. */
int result_give(void *dst, const void *src, size_t bytes);
/* Where the options, the environment or the default say that the daemon listens. */
const char *socket_path(const struct kvp_open_opts *o);
/*
 * One attempt to connect, which does not wait. -EAGAIN: the listen queue is full, which cannot be
 * polled for; -ENAMETOOLONG; the errno of socket(2) or connect(2).
 */
int socket_connect(const char *path, int *ret_sock);
/* Fills kvp_open_opts.error: the text, or the error's own if that is empty. */
void tell_why(const struct kvp_open_opts *o, const char *text, int error);

/* ---- thread.c and the files it drives (thread.h) --------------------------------------------- */

void *client_thread(void *client);
/*
 * Any thread, lock held: sends a request and waits for its answer, without the lock. *ret_fd: what came with it, the caller's,
 * or -1. -ESHUTDOWN, -ETIMEDOUT, the daemon's errno.
 */
int call_daemon(struct kvp_client *client, uint32_t type, const void *body, uint32_t len,
	uint64_t deadline, struct kvp_msg_space *ret_space, int *ret_fd);
/* Any thread, lock held: SPACE_CLOSE, as soon as the socket has room. Does not wait. */
void close_at_daemon(struct attachment *att, uint32_t space, uint32_t generation);
/* Forgets those that had no room: there is no daemon any more that they could be for. */
void closes_forget(struct attachment *att);
/* ring_lock: adds the lookups counted in its page. */
void attachment_count(const struct attachment *att, struct kvp_counters *sum);
/* kvp_close(), the thread has ended. `mapped` is 0 in a forked child, which has no mappings. */
void attachment_free(struct attachment *att, int mapped);
void retiring_free(struct kvp_client *client, int mapped);

/* ---- space.c --------------------------------------------------------------------------------- */

/* Frees it and those that were made of it; closed already, or never open. lock, or alone. */
void space_free(struct kvp_space *space);
/* Do both name the same chains? */
int space_same(const struct kvp_space *a, const struct kvp_space *b);
/* The key above the first block of its chains; root: that of the space at some daemon. */
static inline struct kvp_key space_above(const struct kvp_space *space, struct kvp_key root)
{
	return space->salted ? kvp_salted_root(root, space->salt) : root;
}

/* Any thread, no lock held. The key above the first block; -ESHUTDOWN: not open at a daemon. */
int space_root(struct kvp_space *space, struct kvp_key *ret_root);
/*
 * lock held. Takes over the daemon's answer to SPACE_OPEN. fd: of the calibration that came with it, which stays the caller's; or -1.
 * -EPROTO: the catalog says otherwise; errors of coded_calibrate().
 */
int space_bind(struct attachment *att, struct kvp_space *space, const struct kvp_msg_space *answer,
	int fd);

/* ---- timeline.c ------------------------------------------------------------------------------ */

void timelines_init(struct kvp_client *client);
/* ring_lock held. A new daemon's page gets to know how far they are, before it is used. */
void timelines_carry_on(struct attachment *att);
/* ring_lock. Whoever advances it says how far it is, in shared memory's values. Never back. */
void timeline_reach(struct kvp_timeline *timeline, uint64_t value);
/* ring_lock. If its caller has left it, and all of its bytes are in their slots: ends it. */
void timeline_settle(struct kvp_timeline *timeline);
/*
 * Any thread. Who advances the timeline from now on, where nobody but the caller's host might have:
 * a LINE_* of a device. -EINVAL: not a timeline of this client, or it is advanced otherwise.
 */
int timeline_claim(struct kvp_timeline *timeline, struct kvp_cuda *cuda, uint32_t kind);
/* Any thread. Names the moment, and notes that it is waited for. -EINVAL: see kvp_release_after(). */
int timeline_moment(struct kvp_timeline *timeline, struct kvp_client *client, uint64_t value,
	uint64_t *ret_until);
/* ring_lock. A commit or a grant waits for the moment: whoever follows the timeline is to see it soon. */
void timeline_hasten(struct kvp_client *client, uint64_t until);

/* ---- device.c -------------------------------------------------------------------------------- */

/*
 * ring_lock held, both. What the ledger says of a WARM, 1: it has ended, or the places of all blocks are known; none
 * will be answered any more.
 */
int warm_answer(struct attachment *att, const struct kvp_cqe *cqe);
void warms_end(struct attachment *att);
/* What a WARM or WANT has besides the entry. */
struct warm_how {
	uint32_t n; /* blocks */
	struct kvp_prefix
		*keep;        /* the ticket holds it until it ends, if it is put; NULL: nothing */
	struct place *places; /* room for as many; likewise the ticket's, which frees it */
	uint32_t first;       /* with places: of the prefix */
};
/* ring_lock. Puts a WARM or WANT. -EAGAIN, -ESHUTDOWN. Fills in the serial. */
int warm_submit(struct attachment *att, struct kvp_sqe *sqe, const struct warm_how *how,
	uint64_t deadline, struct kvp_ticket *ret_ticket);

/* ---- remat.c --------------------------------------------------------------------------------- */

/* ring_lock. What the ledger says to a SERVE; 1: a call may go on. */
int serve_answer(struct attachment *att, const struct kvp_cqe *cqe);

/* ---- references to blocks -------------------------------------------------------------------- */

/* kvp_ref.opaque: kind 32 | id 32; epoch's low half 32 | birth 32 */
static inline struct kvp_ref ref_make(uint32_t kind, uint32_t id, uint32_t birth, uint64_t epoch)
{
	struct kvp_ref ref;

	ref.opaque[0] = (uint64_t)kind << 32 | id;
	ref.opaque[1] = epoch << 32 | birth;
	return ref;
}

/* ---- fault points ---------------------------------------------------------------------------- */

/*
 * In the test variant of the library, KVP_FAULT=name[:count][:kill|stop] in the environment makes
 * the count-th pass of the point raise SIGKILL (default) or SIGSTOP. Nothing in the installed one.
 */
#ifdef KVP_FAULT_POINTS
void fault_point(const char *name);
#define KVP_FAULT(name) fault_point(name)
#else
#define KVP_FAULT(name) ((void)0)
#endif

#endif
