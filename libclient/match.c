/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/client.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIND_TRIES 4u /* before a moving catalog is answered with what is proven of it */
#define NAP_NS     UINT64_C(500000) /* an extent is being mapped: looks this often */
#define WAIT_SLICE (20 * NS_PER_MS) /* a waiter looks for expired claims this often */

#define USES(state)    ((state) >> 32)
#define STATE(uses, w) ((uint64_t)(uses) << 32 | (w))

/* ---- handles --------------------------------------------------------------------------------- */

struct match_chunk *match_chunk_new(struct kvp_client *client)
{
	struct match_chunk *chunk = aligned_alloc(64, (sizeof(*chunk) + 63) / 64 * 64);

	if (!chunk)
		return NULL;
	memset(chunk, 0, sizeof(*chunk));
	for (uint32_t i = 0; i < MATCHES_PER_CHUNK; i++)
		chunk->match[i].client = client;
	return chunk;
}

/* One more chunk after `last`, unless another thread has added it. */
static struct match_chunk *chunk_after(struct match_chunk *last, struct kvp_client *client)
{
	struct match_chunk *next = kvp_load_acquire(&last->next), *fresh;

	if (next)
		return next;
	fresh = match_chunk_new(client);
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
	struct match_chunk *chunk = c->matches;

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
 * attachment and the load after it are sequentially consistent: partner of detach() and retire(),
 * which store first and look at the handles then.
 */
static struct kvp_prefix *match_take(struct kvp_space *space)
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
	m->flags = m->n_blocks = m->n_tokens = m->tail_tokens = m->asked = 0;
	m->n_chain = m->front = 0;
	return m;
}

void match_drop(struct kvp_prefix *m)
{
	kvp_lease_drop(&m->lease);
	/* Release: all reads through the handle come before it is free. */
	kvp_store_release(&m->state, STATE(USES(kvp_load_relaxed(&m->state)), 0));
}

void match_pin(struct kvp_prefix *m)
{
	/* Sequentially consistent, before extents are looked at: partner of retire(). */
	kvp_xchg_seq(&m->state, kvp_load_relaxed(&m->state) | PINNED);
}

void match_unpin(struct kvp_prefix *m)
{
	/* Release: all reads come before the extent may go. */
	kvp_store_release(&m->state, kvp_load_relaxed(&m->state) & ~(uint64_t)PINNED);
}

int match_any(struct kvp_client *client, const struct attachment *att)
{
	for (struct match_chunk *k = client->matches; k; k = kvp_load_acquire(&k->next))
		for (uint32_t i = 0; i < MATCHES_PER_CHUNK; i++)
			if (((uint32_t)kvp_load_seq(&k->match[i].state) & ~PINNED) == att->slot + 1)
				return 1;
	return 0;
}

static int match_live(const struct kvp_prefix *m)
{
	return (uint32_t)kvp_load_relaxed(&m->state) != 0;
}

static int grow(void **array, uint32_t *cap, uint64_t need, size_t bytes)
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

/* ---- finding --------------------------------------------------------------------------------- */

const uint8_t *hit_addr(struct attachment *att, const struct kvp_hit *hit)
{
	uint32_t id = kvp_where_extent(hit->where), bytes = kvp_where_bytes(hit->where);
	const struct extent_map *em = &att->extents[id % KVP_MAX_EXTENTS];
	uintptr_t base = kvp_load_seq(&em->base);
	uint64_t mapped = kvp_load_relaxed(&em->bytes);

	if (id >= KVP_MAX_EXTENTS || !base || bytes > mapped || hit->offset > mapped - bytes ||
		kvp_load_relaxed(&em->generation) !=
			kvp_load_acquire(&att->view.extents[id].generation))
		return NULL;
	return (const uint8_t *)base + hit->offset;
}

/* Asks the library's thread for an extent, once. */
static void want_extent(struct attachment *att, uint32_t id)
{
	uint64_t bit = UINT64_C(1) << id % 64;

	if (id >= KVP_MAX_EXTENTS || kvp_load_relaxed(&att->wanted[id / 64]) & bit)
		return;
	if (!(atomic_fetch_or(&att->wanted[id / 64], bit) & bit))
		client_kick(att->client);
}

/* How many of the first n hits have bytes that this process can read. */
static uint32_t readable(struct kvp_prefix *m, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct kvp_hit *h = &m->hits[i];

		if (!hit_addr(m->att, h)) {
			want_extent(m->att, kvp_where_extent(h->where));
			return i;
		}
		if (kvp_where_codec(h->where) == KVP_CODEC_NATIVE &&
			kvp_where_bytes(h->where) < m->space->geo.block_bytes)
			return i;
	}
	return n;
}

/* A lease on hits[n - 1], and proof of all n. Returns how many are proven: n, or less and no lease.
 */
static uint32_t lease_and_prove(struct kvp_prefix *m, uint32_t n)
{
	const struct kvp_hit *tip = &m->hits[n - 1];
	uint32_t proven;
	int r;

	r = kvp_lease_take(m->att->page, m->shard, &m->att->view.blocks[tip->id], tip->id,
		tip->word, &m->lease);
	if (r == -ESTALE)
		return kvp_revalidate(&m->att->view, m->hits, n - 1);
	KVP_FAULT("leased");
	proven = kvp_revalidate(&m->att->view, m->hits, n);
	if (proven < n)
		kvp_lease_drop(&m->lease);
	return proven;
}

static void adopt(struct kvp_prefix *m, const struct kvp_found *found, uint32_t n)
{
	m->n_blocks = n < found->n_hits ? n : found->n_hits;
	m->n_tokens = found->n_tokens;
	if (n < found->n_hits) /* and only the last found may have been partial */
		m->n_tokens = n * m->space->geo.block_tokens;
	m->tail_tokens = n > found->n_hits ? found->tail_tokens : 0;
	if (!n)
		kvp_lease_drop(&m->lease);
	m->flags = m->lease.slot ? KVP_MATCHED_LEASED : 0;
}

/* Longest prefix that could be proven. Only in the last round is less than was found accepted. */
static void find(struct kvp_prefix *m, const struct space_bind *b, const kvp_token *tokens,
	uint32_t n, uint32_t flags)
{
	const struct kvp_catalog_view *v = &m->att->view;
	uint32_t find_flags = flags & KVP_MATCH_NO_TAIL ? KVP_FIND_NO_TAIL : 0;

	for (uint32_t try = 1;; try++) {
		struct kvp_found found;
		uint32_t total, proven = 0;

		kvp_find(v, b->index, tokens, n, find_flags, m->hits, m->cap - 1, &found);
		total = found.n_hits;
		if (found.tail_tokens)
			m->hits[total++] = found.tail;
		KVP_FAULT("found");
		while (total && (proven = lease_and_prove(m, total)) < total && try >= FIND_TRIES)
			total = proven;
		if (proven < total && try < FIND_TRIES)
			continue;
		adopt(m, &found, readable(m, total));
		return;
	}
}

/* What the catalog has, whoever can read it. */
static void find_anywhere(
	struct kvp_prefix *m, const struct space_bind *b, const kvp_token *tokens, uint32_t n)
{
	struct kvp_found found;

	kvp_find(&m->att->view, b->index, tokens, n, KVP_FIND_NO_TAIL, m->hits, m->cap - 1, &found);
	m->n_blocks = found.n_hits;
	m->n_tokens = found.n_tokens;
}

/* All of the prompt or nothing. */
static void only_exact(struct kvp_prefix *m, uint32_t n)
{
	if (m->n_tokens + m->tail_tokens == n)
		return;
	kvp_lease_drop(&m->lease);
	m->flags &= ~KVP_MATCHED_LEASED;
	m->n_blocks = m->n_tokens = m->tail_tokens = 0;
}

static void count(struct kvp_prefix *m, uint32_t n)
{
	uint32_t have = m->n_tokens + m->tail_tokens;
	struct kvp_shard *s;

	if (!m->att) {
		kvp_add_relaxed(&m->client->blind_lookups, 1);
		kvp_add_relaxed(&m->client->blind_tokens, n);
		return;
	}
	s = &m->att->page->shard[m->shard];
	if (!have) {
		kvp_add_relaxed(&s->misses, 1);
	} else {
		kvp_add_relaxed(have == n ? &s->hits : &s->partial, 1);
		kvp_add_relaxed(&s->tokens_matched, have);
		if (!(m->flags & KVP_MATCHED_LEASED))
			kvp_add_relaxed(&s->unleased, 1);
	}
	kvp_add_relaxed(&s->tokens_asked, n);
}

int kvp_touch(struct kvp_prefix *m)
{
	uint32_t tip;

	if (!m || !match_live(m))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	tip = m->n_blocks + (m->tail_tokens ? 1 : 0);
	if (m->att && tip)
		kvp_touch_push(m->att->page, m->shard, m->hits[tip - 1].id, m->asked);
	return 0;
}

/* Searches with a handle that holds nothing. */
static int search(
	struct kvp_prefix *m, const kvp_token *tokens, uint32_t n, uint32_t flags, uint32_t how)
{
	const struct space_bind *b = m->att ? bind_of(m->att, m->space) : NULL;
	uint32_t t = m->space->geo.block_tokens;
	uint64_t need = (uint64_t)n / t + 3;

	m->asked = (n + t - 1) / t;
	if (b) {
		if (need > m->att->view.max_blocks + UINT64_C(3))
			need = m->att->view.max_blocks + UINT64_C(3);
		if (grow((void **)&m->hits, &m->cap, need, sizeof(m->hits[0])) < 0)
			return -ENOMEM;
		if (how & FIND_ANYWHERE)
			find_anywhere(m, b, tokens, n);
		else
			find(m, b, tokens, n, flags);
		match_unpin(m);
		/* With a claim too, what was found says where it begins: kvp_match() forgets. */
		if (flags & KVP_MATCH_EXACT && !(flags & KVP_MATCH_CLAIM))
			only_exact(m, n);
	}
	if (how & FIND_COUNT) {
		count(m, n);
		if (m->flags & KVP_MATCHED_LEASED)
			kvp_touch(m);
	}
	return 0;
}

int match_make(struct kvp_space *space, const kvp_token *tokens, uint32_t n, uint32_t flags,
	uint32_t how, struct kvp_prefix **ret_match)
{
	struct kvp_prefix *m;
	int r;

	if (!client_mine(space->client))
		return -ECHILD;
	m = match_take(space);
	if (!m)
		return -ENOMEM;
	KVP_FAULT("match");
	r = search(m, tokens, n, flags, how);
	if (r < 0) {
		match_drop(m);
		return r;
	}
	*ret_match = m;
	return 0;
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* Keys of the prompt's whole blocks, and the tokens up to the first missing one. */
static int chain_fill(
	struct kvp_prefix *m, const struct space_bind *b, const kvp_token *tokens, uint32_t n)
{
	uint32_t t = m->space->geo.block_tokens, whole = n / t;
	struct kvp_key key = b->root;

	if (grow((void **)&m->chain, &m->chain_cap, whole, sizeof(m->chain[0])) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < whole; i++)
		m->chain[i] = key = kvp_chain_key(key, tokens + (size_t)i * t, t);
	m->n_chain = whole;
	m->front = m->n_blocks;
	return 0;
}

static int keep_tokens(struct kvp_prefix *m, const kvp_token *tokens)
{
	uint32_t n = (m->front + 1) * m->space->geo.block_tokens;

	if (grow((void **)&m->tokens, &m->tokens_cap, n, sizeof(m->tokens[0])) < 0)
		return -ENOMEM;
	memcpy(m->tokens, tokens, n * sizeof(tokens[0]));
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
		.ttl_ms = ttl_ms,
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

/*
 * Claims what is missing, if whole blocks are: the rest is less work than asking. A block that has
 * appeared meanwhile, but in an extent that is not mapped here yet, is worth waiting for.
 */
static int claim_missing(
	struct kvp_prefix *m, const kvp_token *tokens, uint32_t n, const struct kvp_match_opts *o)
{
	struct kvp_client *c = m->client;
	uint64_t deadline = deadline_of(c, o->timeout_ms);
	uint32_t t = m->space->geo.block_tokens;

	for (;;) {
		const struct space_bind *b = m->att ? bind_of(m->att, m->space) : NULL;
		uint32_t had = m->n_blocks;
		int r;

		if (!b || m->n_tokens / t >= n / t)
			return 0;
		r = chain_fill(m, b, tokens, n);
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
		match_pin(m);
		r = search(m, tokens, n, o->flags, 0);
		if (r < 0)
			return r;
		if (m->n_blocks > had)
			continue;
		if (now_ns() >= deadline)
			return 0;
		nap();
	}
}

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

#define MISSING  1
#define UNMAPPED 2 /* it is there, in an extent that is being mapped */

/* Is the block after the match there? 0: yes, and readable. */
static int look_for_next(struct kvp_prefix *m, struct kvp_hit *scratch, uint32_t room)
{
	const struct space_bind *b = bind_of(m->att, m->space);
	const struct kvp_hit *h = &scratch[room - 1];
	struct kvp_found found;

	if (!b)
		return MISSING;
	kvp_find(&m->att->view, b->index, m->tokens, room * m->space->geo.block_tokens,
		KVP_FIND_NO_TAIL, scratch, room, &found);
	if (found.n_hits < room)
		return MISSING;
	if (hit_addr(m->att, h))
		return 0;
	want_extent(m->att, kvp_where_extent(h->where));
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

	if (!m || !match_live(m) || !(m->flags & KVP_MATCHED_PENDING))
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
	return r;
}

/* ---- the calls ------------------------------------------------------------------------------- */

#define MATCH_FLAGS (KVP_MATCH_CLAIM | KVP_MATCH_NO_TOUCH | KVP_MATCH_EXACT | KVP_MATCH_NO_TAIL)

int kvp_match(struct kvp_space *space, const uint32_t *tokens, size_t n,
	const struct kvp_match_opts *opts, struct kvp_prefix **ret_match)
{
	struct kvp_match_opts o;
	struct kvp_prefix *m;
	int r;

	if (!space || (n && !tokens) || n > MAX_TOKENS || !ret_match ||
		opts_take(&o, sizeof(o), opts) < 0 || o.flags & ~MATCH_FLAGS)
		return -EINVAL;
	r = match_make(space, tokens, (uint32_t)n, o.flags,
		o.flags & KVP_MATCH_NO_TOUCH ? 0 : FIND_COUNT, &m);
	if (r < 0)
		return r;
	if (o.flags & KVP_MATCH_CLAIM) {
		r = claim_missing(m, tokens, (uint32_t)n, &o);
		if (r < 0) {
			match_drop(m);
			return r;
		}
		if (o.flags & KVP_MATCH_EXACT)
			only_exact(m, (uint32_t)n);
	}
	*ret_match = m;
	return 0;
}

int kvp_match_info(const struct kvp_prefix *m, struct kvp_prefix_info *ret_info)
{
	struct kvp_prefix_info info = { 0 };

	if (!m || !ret_info || !match_live(m))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	info.flags = m->flags;
	info.n_blocks = m->n_blocks;
	info.n_tokens = m->n_tokens;
	info.tail_tokens = m->tail_tokens;
	return result_give(ret_info, &info, sizeof(info));
}

int kvp_payload(const struct kvp_prefix *m, uint32_t i, struct kvp_payload_info *ret)
{
	struct kvp_payload_info p = { 0 };
	const struct kvp_hit *h;

	if (!m || !ret || !match_live(m))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	if (i > m->n_blocks || (i == m->n_blocks && !m->tail_tokens))
		return -ENOENT;
	if (!(m->flags & KVP_MATCHED_LEASED))
		return -ENOLCK;
	h = &m->hits[i];
	p.addr = hit_addr(m->att, h);
	if (!p.addr)
		return -ENOENT;
	p.bytes = kvp_where_bytes(h->where);
	p.codec = kvp_where_codec(h->where);
	p.tier = KVP_TIER_DRAM;
	p.tokens = h->tokens;
	return result_give(ret, &p, sizeof(p));
}

int kvp_match_ref(const struct kvp_prefix *m, uint32_t n_blocks, struct kvp_ref *ret)
{
	const struct kvp_hit *h;

	if (!m || !ret || !match_live(m) || n_blocks > m->n_blocks)
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	if (!n_blocks) {
		*ret = kvp_ref_root();
		return 0;
	}
	h = &m->hits[n_blocks - 1];
	if (h->tokens != m->space->geo.block_tokens)
		return -EINVAL;
	*ret = ref_make(KVP_PARENT_BLOCK, h->id, kvp_word_birth(h->word), m->att->epoch);
	return 0;
}

int kvp_release(struct kvp_prefix *m)
{
	if (!m)
		return 0;
	if (!client_mine(m->client))
		return -ECHILD;
	if (!match_live(m))
		return -EALREADY;
	KVP_FAULT("release");
	if (m->flags & KVP_MATCHED_CLAIMED) {
		struct kvp_client *c = m->client;

		pthread_mutex_lock(&c->ring_lock);
		if (claim_unlink(m->att, m))
			unclaim(m->att, m->chain[m->front], deadline_of(c, KVP_DEFAULT_TIMEOUT));
		pthread_mutex_unlock(&c->ring_lock);
	}
	match_drop(m);
	return 0;
}
