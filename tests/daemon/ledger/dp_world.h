/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data plane in this process, driven through dataplane.h, and clients of it that are made of
 * shm/ functions alone. One thread plays the control thread and all clients; where a function waits
 * it delivers the ledger's events meanwhile.
 */
#ifndef KVPD_TEST_WORLD_H
#define KVPD_TEST_WORLD_H

#include <pthread.h>

#include "daemon/dataplane.h"
#include "daemon/figures.h"
#include "shm/kvp_catalog.h"
#include "shm/kvp_lease.h"
#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"

#define DP_CLIENTS 128
#define DP_EVENTS  4096
/* What happens at once on an idle machine is waited for so long: tests run where others compute as well. */
#define DP_WAIT_MS 60000u

struct dp_mapped {
	uint8_t *addr;
	uint64_t bytes;
	uint32_t generation;
};

struct dp_client {
	struct dp_world *world;
	uint32_t tenant;
	struct kvpd_attach at;
	struct kvp_catalog_view view;
	void *catalog;
	struct kvp_session_page *page;
	uint32_t sq_tail;
	uint32_t cq_head;
	uint32_t serial;
	bool ack_arenas; /* default: yes */
	bool ack_retires;
	struct dp_mapped extent[KVP_MAX_EXTENTS];
	uint32_t n_arenas; /* mapped so far */
	uint32_t expelled; /* events */
};

struct dp_world {
	struct kvpd_config config;
	struct kvpd_ledger *ledger;
	pthread_mutex_t lock;
	struct kvpd_event event[DP_EVENTS];
	uint32_t posted;
	uint32_t taken;
	uint32_t lose[KVPD_EV_EXPEL + 1]; /* so many events of a type find no memory; lock */
	struct dp_client *client[DP_CLIENTS];
	uint32_t tenant;
	/* NULL, or what happens whenever dp_read() has found something and has not leased it yet. */
	void (*between)(void *ctx);
	void *between_ctx;
	uint32_t round; /* of a random test: printed with wrong bytes */
};

struct dp_grant {
	uint32_t index;
	uint32_t generation;
	uint32_t extent;
	uint32_t bytes;
	uint64_t offset;
	uint8_t *addr;
};

struct dp_block {
	kvp_block_id id;
	uint32_t birth;
	uint32_t flags;
	uint32_t serial;
};

/* Limits that tests change before dp_start(): 64 MiB share, extents of 1 MiB, 1024 blocks. */
void dp_defaults(struct dp_world *w, struct kvpd_limits *limits);
/* Starts a ledger with one tenant. */
void dp_start(struct dp_world *w, const struct kvpd_limits *limits);
void dp_stop(struct dp_world *w);
/* Delivers what the ledger posted. */
void dp_pump(struct dp_world *w);

struct dp_client *dp_attach(struct dp_world *w, uint32_t tenant);
/* Detaches, frees, returns NULL. */
struct dp_client *dp_detach(struct dp_client *c);

/* A description of a model whose block of 16 tokens has 256 * layers bytes. */
void dp_canon(struct kvp_space_canon *canon, const char *model, uint32_t layers);
/* Asks for a space until there is an answer. */
int dp_open(struct dp_client *c, const struct kvp_space_canon *canon, char *reason, size_t bytes,
	struct kvp_msg_space *ret_space);
/* Opens it; fails the test if that fails. */
uint32_t dp_space(struct dp_client *c, const char *model, uint32_t layers);

/* Likewise of a model with blocks of so many bytes, a multiple of 256. */
uint32_t dp_large_space(struct dp_client *c, const char *model, uint32_t block_bytes);

/* Pushes an entry with the next serial, wakes the ledger; returns the serial. */
uint32_t dp_push(struct dp_client *c, struct kvp_sqe *sqe);
/* Next completion; 0 or -ETIMEDOUT. */
int dp_next(struct dp_client *c, uint32_t timeout_ms, struct kvp_cqe *ret);

/* Up to n grants; retries -EAGAIN until timeout_ms. Returns how many, or the last error. */
int dp_reserve(
	struct dp_client *c, uint32_t space, uint32_t n, uint32_t timeout_ms, struct dp_grant *out);
/* The same in a medium: 0: DRAM; n + 1: device n. */
int dp_reserve_at(struct dp_client *c, uint32_t space, uint32_t medium, uint32_t n,
	uint32_t timeout_ms, struct dp_grant *out);
struct dp_ref {
	uint32_t kind;
	uint32_t id;
	uint32_t birth;
};
static inline struct dp_ref dp_root(void)
{
	return (struct dp_ref){ KVP_PARENT_ROOT, 0, 0 };
}
static inline struct dp_ref dp_ref(const struct dp_block *b)
{
	return (struct dp_ref){ KVP_PARENT_BLOCK, b->id, b->birth };
}
/* The status of the completion; 0 fills *ret. */
int dp_commit(struct dp_client *c, uint32_t space, const struct dp_grant *g, struct dp_ref parent,
	const kvp_token *tokens, uint32_t n, uint32_t flags, struct dp_block *ret);
void dp_release(struct dp_client *c, const struct dp_grant *g);
/* Waits until all entries so far were served. */
void dp_flush(struct dp_client *c);

/*
 * Reserves, fills with bytes that follow from the tokens, commits and releases. Status as
 * dp_commit().
 */
int dp_put(struct dp_client *c, uint32_t space, struct dp_ref parent, const kvp_token *tokens,
	uint32_t n, struct dp_block *ret);
int dp_put_at(struct dp_client *c, uint32_t space, uint32_t medium, struct dp_ref parent,
	const kvp_token *tokens, uint32_t n, struct dp_block *ret);
/* What dp_put() writes. */
void dp_fill(const struct dp_grant *g, const kvp_token *tokens, uint32_t n);
/*
 * Checks the payload of a hit byte by byte against what dp_put() wrote, and prints what is there if it is
 * something else. Of a hit that is not leased it may be right at one moment and not at the next: its block moves
 * or goes, its slot is written again, its extent is unmapped.
 */
bool dp_payload_right(
	struct dp_client *c, const struct kvp_hit *hit, const kvp_token *tokens, uint32_t n);
/* A lease on the last of n hits, and proof of all; false: something of them has changed, nothing is held. */
bool dp_lease(
	struct dp_client *c, const struct kvp_hit *hits, uint32_t n, struct kvp_lease *ret_lease);
/*
 * The chain as a reader has it, from the root with 16 tokens a block: found, leased, and each payload as
 * dp_put() wrote it, or the test fails. Returns how many blocks that was, in hits as they were under the lease.
 */
uint32_t dp_read(struct dp_client *c, uint32_t space, const kvp_token *tokens, uint32_t n,
	uint32_t tiers, struct kvp_hit *hits, uint32_t max);
/* kvp_find() from the root with 16 tokens a block. */
uint32_t dp_find(struct dp_client *c, uint32_t space, const kvp_token *tokens, uint32_t n,
	struct kvp_hit *hits, uint32_t max);

/* Runs "check" with payloads and fails the test with its text if it is not clean. */
void dp_check(struct dp_world *w);
/* An integer of the tenant's "tenants" answer. */
uint64_t dp_figure(struct dp_world *w, const char *name);
/* Waits until it is at most this; fails the test after DP_WAIT_MS. */
void dp_await_most(struct dp_world *w, const char *name, uint64_t most);
/* All of them at once; *ret_figures is all zero with an error. */
int dp_figures(
	struct dp_world *w, const char *only, uint32_t what, struct kvpd_figures *ret_figures);
int dp_admin(struct dp_world *w, const char *request, json_t **ret);

#endif
