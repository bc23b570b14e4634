/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recomputation: wanting what is missing of a sequence, and computing it for others. The daemon names a demand
 * by its last block; the token ids are read where they lie, in the catalog.
 */
#include "libclient/match.h"
#include "libclient/ring.h"

#include <assert.h>
#include <string.h>

static_assert(KVP_CLIENT_WANTS == KVP_WANTS, "kvpool.h tells the limit");
static_assert(KVP_CLIENT_OFFERS == KVP_OFFERS, "kvpool.h tells the limit");
static_assert(KVP_WANT_BLOCKS_MAX == KVP_WANT_BLOCKS, "kvpool.h tells the limit");

#define READ_TRIES 1000u /* for a block that changes while it is read */

/* ---- wanting --------------------------------------------------------------------------------- */

/* Is it one whose blocks can be computed by others? */
static int usable(const struct kvp_space *space)
{
	if (!client_mine(space->client))
		return -ECHILD;
	return space->salted || space->canon.key_bytes ? -EOPNOTSUPP : 0;
}

static int ask(
	const struct kvp_prefix *m, const struct kvp_want_opts *o, struct kvp_ticket *ret_ticket)
{
	const struct kvp_hit *tip = &m->hits[m->n_blocks - 1];
	struct kvp_client *c = m->client;
	struct kvp_sqe sqe = {
		.op = KVP_OP_WANT,
		.count = o->within_ms,
		.flags = o->flags & KVP_WANT_AHEAD ? KVP_SQE_PREFETCH : 0,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = tip->id,
		.parent_birth = kvp_word_birth(tip->word),
	};
	uint64_t deadline = deadline_of(c, o->timeout_ms);
	int r;

	pthread_mutex_lock(&c->ring_lock);
	r = warm_submit(m->att, &sqe, &(struct warm_how){ .n = m->n_blocks }, deadline, ret_ticket);
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

int kvp_want(struct kvp_space *space, const struct kvp_ids *ids, const struct kvp_want_opts *opts,
	struct kvp_ticket *ret_ticket)
{
	struct kvp_want_opts o = { .timeout_ms = KVP_DEFAULT_TIMEOUT };
	struct kvp_prefix *m;
	struct tokens t;
	int r, n;

	if (!space || !ids || !ret_ticket)
		return -EINVAL;
	if (opts && (r = opts_take(&o, sizeof(o), opts)) < 0)
		return r;
	if (o.flags & ~KVP_WANT_AHEAD || o.within_ms > KVP_WANT_MS_MAX)
		return -EINVAL;
	r = usable(space);
	if (r == 0)
		r = tokens_take(ids, &t);
	if (r < 0)
		return r;
	m = prefix_take(space);
	if (!m)
		return -ENOMEM;
	/* What is published, in whatever state. */
	m->tiers = KVP_TIERS_NONE;
	r = m->att ? match_search(m, &t, KVP_MATCH_NO_TAIL, FIND_ANYWHERE) : -ESHUTDOWN;
	n = (int)m->n_blocks;
	if (r == 0 && n)
		r = ask(m, &o, ret_ticket);
	prefix_drop(m);
	return r < 0 ? r : n;
}

/* ---- computing for others -------------------------------------------------------------------- */

int serve_answer(struct attachment *att, const struct kvp_cqe *cqe)
{
	if (cqe->flags & KVP_CQE_PARKED)
		return 0;
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		struct serve *s = &att->binds[i].serve;

		if (s->state == SERVE_ASKED && s->serial == cqe->serial) {
			s->cqe = *cqe;
			s->state = SERVE_ANSWERED;
			return 1;
		}
	}
	return 0;
}

static int entry(const struct kvp_serve_opts *o, struct kvp_sqe *ret_sqe)
{
	double ns = o->launch_seconds * 1e9, ps = o->token_seconds * 1e12,
	       fs = o->position_seconds * 1e15;

	if (o->flags & ~KVP_SERVE_IDLE || !o->max_tokens || !(ns >= 0) ||
		ns > (double)KVP_LAUNCH_NS_MAX || !(ps >= 1) || ps > (double)KVP_TOKEN_PS_MAX ||
		!(fs >= 0) || fs > (double)KVP_POSITION_FS_MAX)
		return -EINVAL;
	*ret_sqe = (struct kvp_sqe){
		.op = KVP_OP_SERVE,
		.count = o->tokens_per_second,
		.flags = o->flags & KVP_SERVE_IDLE ? KVP_SQE_IDLE : 0,
		.parent_id = o->max_tokens,
		.until = (uint64_t)ns,
		.next_lo = (uint64_t)ps,
		.next_hi = (uint64_t)fs,
	};
	return 0;
}

/* One block of a chain, which other clients may have committed anew meanwhile. Returns its tokens. */
static int read_block(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t *out,
	uint32_t room, kvp_block_id *ret_parent)
{
	for (uint32_t i = 0; i < READ_TRIES && id < v->max_blocks; i++) {
		uint64_t word = kvp_load_acquire(&v->blocks[id].word);
		int n;

		if (kvp_word_state(word) == KVP_BLOCK_FREE)
			break;
		*ret_parent = kvp_load_acquire(&v->blocks[id].parent);
		n = kvp_recipe_read(v, id, word, out, room);
		if (n >= 0)
			return n;
	}
	return -ESTALE;
}

/* Has it a payload in DRAM? A demand is over when all of its blocks have, whoever committed them. */
static int is_there(const struct kvp_block *b)
{
	return kvp_word_holds(kvp_load_acquire(&b->word)) &&
	       kvp_load_relaxed(&b->payload[KVP_TIER_DRAM].where) != 0;
}

/* Is it over by the daemon's word? It came while nobody waited, and was met by others or is of no use any more. */
static int is_over(const struct kvp_cqe *cqe)
{
	return cqe->until_ns && now_ns() >= cqe->until_ns;
}

/*
 * The token ids of the chain down to the demand's block. No descriptor is used again while a block names it as
 * its parent: if the last one is still the block of that birth when all has been read, so was all above it.
 */
static int read_chain(const struct kvp_catalog_view *v, const struct kvp_cqe *cqe,
	uint32_t block_tokens, uint32_t *tokens, uint32_t max, struct kvp_demand *ret_demand)
{
	kvp_block_id id = cqe->block, parent = KVP_BLOCK_NONE;
	uint32_t depth, missing, n = 0;

	if (id >= v->max_blocks)
		return -ESTALE;
	depth = kvp_load_acquire(&v->blocks[id].depth);
	missing = 0;
	if (depth >= max / block_tokens + 1 || cqe->more > depth + 1)
		return -ESTALE;
	for (uint32_t i = depth + 1; i--; id = parent) {
		uint32_t at = i * block_tokens;
		kvp_block_id at_id = id;
		int r = read_block(v, id, tokens + at, max - at, &parent);

		if (r < 0 || (i < depth && (uint32_t)r != block_tokens) ||
			(i == 0) != (parent == KVP_BLOCK_NONE))
			return -ESTALE;
		n = i == depth ? at + (uint32_t)r : n;
		missing += i + cqe->more > depth && !is_there(&v->blocks[at_id]);
	}
	if (!missing)
		return -ESTALE;
	/* All loads above are acquire loads, so none of them happens after this one. */
	if (kvp_word_birth(kvp_load_relaxed(&v->blocks[cqe->block].word)) != cqe->birth)
		return -ESTALE;
	ret_demand->n_tokens = n;
	ret_demand->first = (depth + 1 - cqe->more) * block_tokens;
	ret_demand->within_ms = (uint32_t)(cqe->offset / NS_PER_MS);
	return 0;
}

/* ring_lock. Ends the offer, and forgets a demand that came meanwhile: the daemon has taken it back. */
static void withdraw(struct attachment *att, struct space_bind *b)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_SERVE, .space = (uint16_t)b->index, .flags = KVP_SQE_WITHDRAW
	};
	struct kvp_cqe cqe;

	(void)ring_ask(att, &sqe, answer_by(0), &cqe);
	b->serve.state = SERVE_NONE;
}

/* ring_lock. The next answer to a SERVE, which is put if none is out. */
static int await(struct attachment *att, struct space_bind *b, struct kvp_sqe *sqe,
	uint64_t deadline, struct kvp_cqe *ret_cqe)
{
	struct serve *s = &b->serve;
	int r = 0;

	ring_drain(att);
	if (s->state == SERVE_NONE) {
		sqe->space = (uint16_t)b->index;
		sqe->serial = s->serial = ++att->other_serial;
		s->state = SERVE_ASKED;
		r = ring_submit(att, sqe, answer_by(deadline));
		if (r < 0) {
			s->state = SERVE_NONE;
			return r == -EAGAIN ? -ETIMEDOUT : r;
		}
	}
	while (r == 0 && s->state == SERVE_ASKED)
		r = ring_wait(att, deadline);
	if (s->state != SERVE_ANSWERED) {
		if (sqe->flags & KVP_SQE_IDLE || r == -ESHUTDOWN)
			withdraw(att, b);
		return r;
	}
	s->state = SERVE_NONE;
	*ret_cqe = s->cqe;
	return 0;
}

int kvp_serve_remat(struct kvp_space *space, const struct kvp_serve_opts *opts, uint32_t timeout_ms,
	uint32_t *tokens, uint32_t *ret_retry_ms, struct kvp_demand *ret_demand)
{
	struct kvp_serve_opts o = { 0 };
	struct kvp_demand demand = { 0 };
	struct attachment *att;
	struct space_bind *b;
	struct kvp_client *c;
	struct kvp_sqe sqe;
	struct kvp_cqe cqe = { 0 };
	uint64_t deadline;
	int r;

	if (!space || !opts || !tokens || !ret_demand)
		return -EINVAL;
	r = opts_take(&o, sizeof(o), opts);
	if (r == 0)
		r = entry(&o, &sqe);
	if (r == 0)
		r = usable(space);
	if (r < 0)
		return r;
	c = space->client;
	deadline = deadline_of(c, timeout_ms);
	pthread_mutex_lock(&c->ring_lock);
	att = attachment_get(c);
	b = att ? &att->binds[space->number] : NULL;
	if (!att || !bind_of(att, space)) {
		if (att)
			attachment_put(att);
		pthread_mutex_unlock(&c->ring_lock);
		return -ESHUTDOWN;
	}
	do {
		r = await(att, b, &sqe, deadline, &cqe);
		if (r == 0 && cqe.status < 0) {
			r = cqe.status;
			if (ret_retry_ms)
				*ret_retry_ms = cqe.retry_ms;
		} else if (r == 0 && is_over(&cqe)) {
			r = -ESTALE;
		} else if (r == 0) {
			pthread_mutex_unlock(&c->ring_lock);
			r = read_chain(&att->view, &cqe, space->geo.block_tokens, tokens,
				o.max_tokens, &demand);
			pthread_mutex_lock(&c->ring_lock);
		}
	} while (r == -ESTALE); /* over or forgotten meanwhile: the next one */
	attachment_put(att);
	pthread_mutex_unlock(&c->ring_lock);
	return r < 0 ? r : result_give(ret_demand, &demand, sizeof(demand));
}

int kvp_serve_end(struct kvp_space *space)
{
	struct attachment *att;
	struct kvp_client *c;
	int r;

	if (!space)
		return -EINVAL;
	r = usable(space);
	if (r < 0)
		return r;
	c = space->client;
	pthread_mutex_lock(&c->ring_lock);
	att = attachment_get(c);
	if (att && bind_of(att, space))
		withdraw(att, &att->binds[space->number]);
	if (att)
		attachment_put(att);
	pthread_mutex_unlock(&c->ring_lock);
	return 0;
}
