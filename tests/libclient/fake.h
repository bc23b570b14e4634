/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon in a thread of the test, as small as the protocol allows: one tenant, one catalog, one
 * arena of FAKE_SLOTS slots per session, no eviction but on demand. It does what the real one does
 * only under circumstances that a test cannot bring about at will: retiring extents, refusing,
 * staying silent, dying, lying.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdbool.h>

#include "shm/kvp_catalog.h"
#include "shm/kvp_msg.h"

#define FAKE_SESSIONS 16u
#define FAKE_SLOTS    48u
#define FAKE_BLOCKS   4096u

#define FAKE_LIE_SEALS   1u /* the catalog is not sealed */
#define FAKE_LIE_SIZE    2u /* the catalog is said to be larger */
#define FAKE_LIE_FDS     3u /* WELCOME comes without descriptors */
#define FAKE_LIE_GARBAGE 4u /* WELCOME is no packet */
#define FAKE_LIE_EPOCH   5u /* the page is another epoch's */

struct kvp_client;

struct fake_session {
	int sock; /* -1: free */
	int wake;
	int arena_fd;
	uint32_t id;
	uint32_t extent;
	uint64_t arena_bytes;
	uint8_t *arena;
	struct kvp_session_page *page;
	uint32_t sq_head, cq_tail;
	bool acked;
	uint32_t retire_acks;
	uint32_t offer_acks; /* of fake_offer_device() */
	struct {
		bool granted;
		bool holds_block;
		uint32_t generation;
	} slot[FAKE_SLOTS];
	struct {
		uint32_t serial;
		kvp_block_id block;
	} outcome[KVP_SERIALS];
};

struct fake {
	pthread_t thread;
	pthread_mutex_t lock; /* tests hold it while they look inside */
	bool stop;
	char path[64];
	int listener;
	uint64_t epoch;
	int catalog_fd;
	uint64_t catalog_bytes;
	struct kvp_catalog_view v;
	struct kvp_key parent_key[FAKE_BLOCKS];
	uint32_t n_blocks, n_cells, serial;
	uint32_t opens[KVP_MAX_SPACES];
	struct kvp_packet packet;
	struct fake_session s[FAKE_SESSIONS];
	uint32_t last_session, last_extent;
	/* What a test may set. */
	bool mute;         /* rings are not served */
	bool full;         /* commits are refused with -ENOSPC */
	bool hold_extents; /* EXTENT of others' arenas is not sent, only on EXTENT_GET */
	uint32_t lie;
	int refuse; /* HELLO is answered with this error */
	bool deaf;  /* HELLO is not answered */
	uint32_t extent_gets;
	uint32_t busy_opens;   /* so many SPACE_OPEN are answered with -EBUSY */
	uint32_t silent_opens; /* and so many are not answered */
	uint32_t room;         /* slots that a session may have, at most FAKE_SLOTS */
	uint32_t pause_us;     /* between the slots of one answer */
	/* fake_device(): device 0, an extent of FAKE_SLOTS slots. */
	int device_fd;   /* -1: there is none */
	uint8_t *device; /* NULL: not host memory */
	uint64_t device_bytes;
	uint64_t device_slot;
	uint32_t device_first, device_import; /* as in kvp_msg_extent */
	void (*device_copy)(void *ctx, uint64_t offset, const void *from, uint64_t bytes);
	void *device_ctx;
	uint32_t device_extent, device_used;
	uint32_t offered;      /* extent + 1 */
	bool warm_held;        /* tickets are under way, and stay so until fake_warm_go() */
	int warm_status;       /* of the next answers, */
	uint32_t warm_at_most; /* which copy so many blocks */
	bool warm_untold;      /* places are told by fake_warm_tell() alone */
	struct {
		struct fake_session *s; /* NULL: free */
		struct kvp_sqe e;
	} warm[64];
	uint32_t warm_flags; /* of the last one asked for */
	uint32_t placed
		[FAKE_BLOCKS]; /* slot + 1 that an early ticket was told for the block; 0: none */
};

/* Listens at path (a fresh one if NULL). Aborts on error, as everything here. */
struct fake *fake_start(const char *path);
struct fake *fake_start_busy(const char *path, uint32_t busy_opens);
/* Hangs up on everybody, as a dead daemon does. The memory of clients stays. Returns NULL. */
struct fake *fake_stop(struct fake *f);

/* These take the lock themselves. Sends RETIRE for a session's arena to all; its blocks must be
 * gone. */
void fake_retire(struct fake *f, struct fake_session *owner);
/* Takes a block out, if no page has a lease on it. Returns whether it went. */
bool fake_evict(struct fake *f, kvp_block_id id);
/* Gives it a device whose slots measure so much. Before clients attach. */
void fake_device(struct fake *f, uint64_t slot_bytes);
/*
 * Gives it one whose only extent is somebody else's memory: a descriptor, which is taken over, that clients
 * import, and what copies there, on the daemon's thread. Slots are numbered from `first` on.
 */
void fake_device_of(struct fake *f, const uint8_t uuid[16], int fd, uint64_t bytes,
	uint64_t slot_bytes, uint32_t first,
	void (*copy)(void *ctx, uint64_t offset, const void *from, uint64_t bytes), void *ctx);
/* Sends its memory to the first session once more, under another number, as what that one is to write. */
void fake_offer_device(struct fake *f);
/* Sends RETIRE for it to all; nothing lies there any more. */
void fake_retire_device(struct fake *f);
/* Tells the places of the i-th ticket that is under way; what others were told of is not theirs any more. */
void fake_warm_tell(struct fake *f, uint32_t i);
/* Ends the tickets that are under way. */
void fake_warm_go(struct fake *f);
/* Waits until the client says that it is attached (1), or is not (0). False: it did not within a minute. */
bool fake_await_attached(struct kvp_client *c, uint32_t want);
uint32_t fake_blocks(struct fake *f);
uint32_t fake_leases(struct fake *f);
uint32_t fake_granted(struct fake *f);

/* Sets a field of the fake daemon, which runs meanwhile. */
#define SET(fake, field, value)                      \
	do {                                         \
		pthread_mutex_lock(&(fake)->lock);   \
		(fake)->field = (value);             \
		pthread_mutex_unlock(&(fake)->lock); \
	} while (0)

#endif
