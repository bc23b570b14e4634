/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single flight: one of several engines that miss the same chain claims it and computes it, the
 * others wait for its blocks. A claim moves on with each block that its holder commits.
 */
#include "libclient/match.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/events.h"
#include "libclient/geometry.h"
#include "libclient/ring.h"

#define NAP_NS     UINT64_C(500000) /* an extent is being mapped: looks this often */
#define WAIT_SLICE (20 * NS_PER_MS) /* a waiter looks for expired claims this often */

/* ---- claiming -------------------------------------------------------------------------------- */

/* Keys of the prompt's whole blocks, and the tokens up to the first missing one. */
static int chain_fill(struct kvp_prefix *m, const struct space_bind *b, const struct tokens *tokens)
{
	uint32_t t = m->space->geo.block_tokens, whole = tokens->n / t;
	kvp_token room[KVP_BLOCK_TOKENS_MAX];
	struct kvp_key key = space_above(m->space, b->root);

	if (array_grow((void **)&m->chain, &m->chain_cap, whole, sizeof(m->chain[0])) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < whole; i++)
		m->chain[i] = key = kvp_chain_key(key, tokens_at(tokens, i * t, t, room), t);
	m->n_chain = whole;
	m->front = m->n_blocks;
	return 0;
}

static int keep_tokens(struct kvp_prefix *m, const struct tokens *tokens)
{
	uint32_t n = (m->front + 1) * m->space->geo.block_tokens;
	const kvp_token *from;

	if (array_grow((void **)&m->tokens, &m->tokens_cap, n, sizeof(m->tokens[0])) < 0)
		return -ENOMEM;
	from = tokens_at(tokens, 0, n, m->tokens);
	if (from != m->tokens)
		memcpy(m->tokens, from, n * sizeof(from[0]));
	return 0;
}

static void claim_link(struct attachment *att, struct kvp_prefix *m)
{
	m->next_claim = att->claims;
	att->claims = m;
	m->flags |= KVP_MATCHED_CLAIMED;
}

/* 1 if it was among those that hold a claim. A commit by another thread may have used it up. */
static int claim_unlink(struct attachment *att, struct kvp_prefix *m)
{
	struct kvp_prefix **p = &att->claims;

	while (*p && *p != m)
		p = &(*p)->next_claim;
	if (!*p)
		return 0;
	*p = m->next_claim;
	return 1;
}

static void unclaim(struct attachment *att, struct kvp_key key, uint64_t deadline)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_UNCLAIM,
		.serial = ++att->other_serial,
		.next_lo = key.lo,
		.next_hi = key.hi,
	};

	(void)ring_submit(att, &sqe, deadline);
}

/* ring_lock. 1: it is there by now, match again; 0: flags say what came of it. */
static int claim_ask(struct kvp_prefix *m, uint32_t ttl_ms, uint64_t deadline)
{
	struct kvp_key key = m->chain[m->front];
	struct kvp_sqe sqe = {
		.op = KVP_OP_CLAIM,
		.space = (uint16_t)m->att->binds[m->space->number].index,
		.next_lo = key.lo,
		.next_hi = key.hi,
		.count = ttl_ms,
	};
	struct kvp_cqe cqe;
	int r = ring_ask(m->att, &sqe, deadline, &cqe);

	KVP_FAULT("claimed");
	if (r == -ETIMEDOUT)
		unclaim(m->att, key, deadline); /* in order: it undoes the claim if that comes */
	if (r < 0 || cqe.status < 0)
		return 0;
	if (cqe.flags & KVP_CQE_PRESENT)
		return 1;
	if (cqe.flags & KVP_CQE_PENDING)
		m->flags |= KVP_MATCHED_PENDING;
	else
		claim_link(m->att, m);
	return 0;
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

int claim_missing(struct kvp_prefix *m, const struct tokens *tokens, const struct kvp_match_opts *o)
{
	struct kvp_client *c = m->client;
	uint64_t deadline = deadline_of(c, o->timeout_ms);
	uint32_t t = m->space->geo.block_tokens;

	for (;;) {
		const struct space_bind *b = m->att ? bind_of(m->att, m->space) : NULL;
		uint32_t had = m->n_blocks;
		int r;

		if (!b || m->n_tokens / t >= tokens->n / t)
			return 0;
		r = chain_fill(m, b, tokens);
		if (r == 0)
			r = keep_tokens(m, tokens);
		if (r < 0)
			return r;
		pthread_mutex_lock(&c->ring_lock);
		r = claim_ask(m, o->claim_ttl_ms, answer_by(deadline));
		pthread_mutex_unlock(&c->ring_lock);
		if (!r)
			return 0;
		kvp_lease_drop(&m->lease);
		prefix_pin(m);
		r = match_search(m, tokens, o->flags, 0);
		if (r < 0)
			return r;
		if (m->n_blocks > had)
			continue;
		if (now_ns() >= deadline)
			return 0;
		nap();
	}
}

void claim_give_up(struct kvp_prefix *m)
{
	struct kvp_client *c = m->client;

	pthread_mutex_lock(&c->ring_lock);
	if (claim_unlink(m->att, m))
		unclaim(m->att, m->chain[m->front], deadline_of(c, KVP_DEFAULT_TIMEOUT));
	pthread_mutex_unlock(&c->ring_lock);
}

/* ---- committing ------------------------------------------------------------------------------ */

static struct kvp_prefix *claim_of(struct attachment *att, struct kvp_key key)
{
	struct kvp_prefix *m = att->claims;

	while (m && !kvp_key_equal(m->chain[m->front], key))
		m = m->next_claim;
	return m;
}

void claim_name_next(struct attachment *att, struct kvp_key key, struct kvp_sqe *sqe)
{
	const struct kvp_prefix *m = claim_of(att, key);

	if (!m || m->front + 1 >= m->n_chain)
		return;
	sqe->next_lo = m->chain[m->front + 1].lo;
	sqe->next_hi = m->chain[m->front + 1].hi;
}

void claim_advance(struct attachment *att, struct kvp_key key)
{
	struct kvp_prefix *m = claim_of(att, key);

	if (m && ++m->front >= m->n_chain)
		claim_unlink(att, m);
}

/* ---- waiting --------------------------------------------------------------------------------- */

#define MISSING 1
#define UNMAPPED \
	2 /* it is there, in an extent that is being mapped, or not yet where the prefix looks */

/* Is the block after the match there? 0: yes, and readable. */
static int look_for_next(struct kvp_prefix *m, struct kvp_hit *scratch, uint32_t room)
{
	const struct space_bind *b = bind_of(m->att, m->space);
	struct kvp_hit *h = &scratch[room - 1];
	struct kvp_found found;

	if (!b)
		return MISSING;
	space_find(m->att, m->space, b, m->tokens, room * m->space->geo.block_tokens,
		KVP_FIND_NO_TAIL, m->tiers, scratch, room, &found);
	if (found.n_hits < room)
		return MISSING;
	if (!hit_settle(m, h))
		return UNMAPPED;
	if (hit_addr(m->att, h) || (h->tier == KVP_TIER_VRAM && hit_there(m->att, h)))
		return 0;
	extent_want(m->att, kvp_where_extent(h->where));
	return UNMAPPED;
}

/* A ledger that does not answer publishes nothing either. */
static int is_stuck(struct attachment *att)
{
	struct kvp_client *c = att->client;
	int stuck;

	pthread_mutex_lock(&c->ring_lock);
	stuck = ring_stuck(att);
	pthread_mutex_unlock(&c->ring_lock);
	return stuck;
}

int kvp_wait(struct kvp_prefix *m, uint32_t timeout_ms)
{
	const struct kvp_catalog_view *v;
	KVP_ATOMIC(uint32_t) *word;
	struct kvp_hit *scratch;
	struct kvp_key key;
	uint64_t deadline;
	uint32_t room;
	int r = 1;

	if (!m || !prefix_live(m) || !(m->flags & KVP_MATCHED_PENDING))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	deadline = deadline_of(m->client, timeout_ms);
	room = m->front + 1;
	scratch = malloc(room * sizeof(*scratch));
	if (!scratch)
		return -ENOMEM;
	v = &m->att->view;
	key = m->chain[m->front];
	word = &v->cat->futex[key.lo % KVP_FUTEX_WORDS].word;
	while (r == 1) {
		/* Read before the state: whatever changes afterwards changes the word too. */
		uint32_t seen = kvp_load_seq(word);
		uint64_t now = now_ns();
		int gone = !kvp_claim_find(v, key, now);
		int next = look_for_next(m, scratch, room);

		if (!next) {
			r = 0;
		} else if (kvp_load_seq(&m->att->dead)) {
			r = -ESHUTDOWN;
		} else if ((gone && next == MISSING) || is_stuck(m->att)) {
			r = -EAGAIN;
		} else if (now >= deadline) {
			r = -ETIMEDOUT;
		} else if (next == UNMAPPED) {
			nap();
		} else {
			KVP_FAULT("wait");
			word_wait(word, seen,
				deadline - now > WAIT_SLICE ? now + WAIT_SLICE : deadline);
		}
	}
	free(scratch);
	if (r == -ETIMEDOUT)
		event_watch(m);
	return r;
}
