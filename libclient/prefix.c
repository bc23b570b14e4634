/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of prefixes. They are made in chunks and never freed before the client is, so that the
 * library's thread can look at all of them while calls take and give them back without a lock. What
 * a handle's state word says decides which mappings may go; client.h has the argument.
 */
#include "libclient/match.h"

#include <stdlib.h>
#include <string.h>

#define USES(state)    ((state) >> 32)
#define STATE(uses, w) ((uint64_t)(uses) << 32 | (w))

struct prefix_chunk *prefix_chunk_new(struct kvp_client *client)
{
	struct prefix_chunk *chunk = aligned_alloc(64, (sizeof(*chunk) + 63) / 64 * 64);

	if (!chunk)
		return NULL;
	memset(chunk, 0, sizeof(*chunk));
	for (uint32_t i = 0; i < MATCHES_PER_CHUNK; i++)
		chunk->match[i].client = client;
	return chunk;
}

/* One more chunk after `last`, unless another thread has added it. */
static struct prefix_chunk *chunk_after(struct prefix_chunk *last, struct kvp_client *client)
{
	struct prefix_chunk *next = kvp_load_acquire(&last->next), *fresh;

	if (next)
		return next;
	fresh = prefix_chunk_new(client);
	if (!fresh)
		return NULL;
	if (!kvp_cas_seq(&last->next, &next, fresh)) {
		free(fresh);
		return next;
	}
	return fresh;
}

static int claim_handle(struct kvp_prefix *m, uint32_t who)
{
	uint64_t state = kvp_load_relaxed(&m->state);

	return !(uint32_t)state && kvp_cas_seq(&m->state, &state, STATE(USES(state) + 1, who));
}

/* A free handle, this thread's own shard first. */
static struct kvp_prefix *handle_take(struct kvp_client *c, uint32_t shard, uint32_t who)
{
	struct prefix_chunk *chunk = c->matches;

	while (chunk) {
		for (uint32_t s = 0; s < KVP_SHARDS; s++) {
			struct kvp_prefix *m =
				&chunk->match[(shard + s) % KVP_SHARDS * MATCHES_PER_SHARD];

			for (uint32_t i = 0; i < MATCHES_PER_SHARD; i++)
				if (claim_handle(&m[i], who))
					return &m[i];
		}
		chunk = chunk_after(chunk, c);
	}
	return NULL;
}

/*
 * Takes a handle that holds the current attachment, if there is one. The exchange that names the
 * attachment and the load after it are sequentially consistent: partner of client_detach() and extent_retire(),
 * which store first and look at the handles then.
 */
struct kvp_prefix *prefix_take(struct kvp_space *space)
{
	struct kvp_client *c = space->client;
	struct attachment *att = kvp_load_seq(&c->att);
	uint32_t shard = thread_shard();
	struct kvp_prefix *m =
		handle_take(c, shard, att ? (att->slot + 1) | PINNED : NO_ATTACHMENT);

	if (!m)
		return NULL;
	while (att && kvp_load_seq(&c->att) != att) {
		att = kvp_load_seq(&c->att);
		kvp_xchg_seq(&m->state, STATE(USES(kvp_load_relaxed(&m->state)),
						att ? (att->slot + 1) | PINNED : NO_ATTACHMENT));
	}
	m->space = space;
	m->att = att;
	m->lease.slot = NULL;
	m->shard = shard;
	m->flags = m->n_blocks = m->n_tokens = m->tail_tokens = m->asked = m->base = 0;
	m->n_chain = m->front = 0;
	m->given = m->lost = 0;
	m->tiers = KVP_TIERS_DRAM; /* what a CPU reads */
	return m;
}

void prefix_drop(struct kvp_prefix *m)
{
	kvp_lease_drop(&m->lease);
	if (kvp_load_acquire(&m->in_given))
		pending_forget(m);
	/* Release: all reads through the handle come before it is free. */
	kvp_store_release(&m->state, STATE(USES(kvp_load_relaxed(&m->state)), 0));
}

void prefix_pin(struct kvp_prefix *m)
{
	/* Sequentially consistent, before extents are looked at: partner of extent_retire(). */
	kvp_xchg_seq(&m->state, kvp_load_relaxed(&m->state) | PINNED);
}

void prefix_unpin(struct kvp_prefix *m)
{
	/* Release: all reads come before the extent may go. */
	kvp_store_release(&m->state, kvp_load_relaxed(&m->state) & ~(uint64_t)PINNED);
}

void prefix_unpin_other(struct kvp_prefix *m)
{
	uint64_t was = kvp_load_relaxed(&m->state);

	while ((uint32_t)was & PINNED && !kvp_cas_seq(&m->state, &was, was & ~(uint64_t)PINNED))
		;
}

int prefix_pinned(const struct kvp_prefix *m)
{
	return (kvp_load_relaxed(&m->state) & PINNED) != 0;
}

int prefix_any(struct kvp_client *client, const struct attachment *att)
{
	for (struct prefix_chunk *k = client->matches; k; k = kvp_load_acquire(&k->next))
		for (uint32_t i = 0; i < MATCHES_PER_CHUNK; i++)
			if (((uint32_t)kvp_load_seq(&k->match[i].state) & ~PINNED) == att->slot + 1)
				return 1;
	return 0;
}

int array_grow(void **array, uint32_t *cap, uint64_t need, size_t bytes)
{
	void *p;

	if (need <= *cap)
		return 0;
	need = (need + 63) / 64 * 64;
	p = realloc(*array, need * bytes);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = (uint32_t)need;
	return 0;
}
