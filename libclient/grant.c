/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots: granted ahead of need, handed out, committed, given back. What is committed is known by a
 * reference, so that the next block can follow it before the ledger has answered.
 */
#include "libclient/cuda.h"
#include "libclient/match.h"
#include "libclient/ring.h"

#include <string.h>
#include <time.h>

/* ---- slots ahead of need --------------------------------------------------------------------- */

static void give_back(struct attachment *att, struct stock *k)
{
	if (!k->n_ahead)
		return;
	while (k->n_ahead)
		grant_return(&att->grants[k->ahead[--k->n_ahead]]);
	k->batch = 1;
}

void stock_return(struct attachment *att, struct space_bind *b)
{
	for (uint32_t i = 0; i < STOCKS; i++)
		give_back(att, &b->stock[i]);
	ring_drain(att);
}

void stock_idle(struct attachment *att, struct space_bind *b, uint64_t before)
{
	uint32_t n = att->n_returned;

	for (uint32_t i = 0; i < STOCKS; i++)
		if (b->stock[i].used_ns < before)
			give_back(att, &b->stock[i]);
	if (att->n_returned != n)
		ring_drain(att);
}

/* The oldest first: slots were handed out in order, and chains are best written in order. */
static struct kvp_grant *stock_take(struct attachment *att, struct stock *b)
{
	while (b->n_ahead) {
		struct kvp_grant *g = &att->grants[b->ahead[0]];
		uint64_t there = kvp_load_seq(&att->extents[g->extent].there);

		memmove(b->ahead, b->ahead + 1, --b->n_ahead);
		/* What lies on a device may be mapped elsewhere since, or not any more. */
		g->there = g->addr || !there ? 0 : there + g->offset;
		if (g->addr || g->there)
			return g;
		grant_return(g);
	}
	return NULL;
}

static int ask_for_slots(
	struct attachment *att, uint32_t space, struct stock *b, uint32_t want, uint64_t deadline)
{
	const uint32_t most = b->medium ? AHEAD_THERE : AHEAD_MAX;
	struct kvp_sqe sqe = {
		.op = KVP_OP_RESERVE,
		.serial = ++att->other_serial,
		.grant = b->medium,
		.space = (uint16_t)space,
		.count = want > b->batch ? want : b->batch,
	};
	int r;

	if (sqe.count > AHEAD_MAX)
		sqe.count = AHEAD_MAX;
	b->batch = b->batch * 2 > most ? most : b->batch * 2;
	b->asking = 1;
	b->serial = sqe.serial;
	r = ring_submit(att, &sqe, deadline);
	if (r < 0)
		b->asking = 0;
	else
		ask_sweep(att); /* slots may come when nobody waits for them any more */
	return r;
}

/* The last refusal still holds, or (0) it is time to ask again. */
static int after_refusal(struct attachment *att, const struct stock *b, uint64_t deadline)
{
	struct kvp_client *c = att->client;
	uint64_t now = now_ns(), ns = (b->retry_ms ? b->retry_ms : 1) * NS_PER_MS;

	if (b->refusal == -EDQUOT) { /* all the session's slots are out: some are our own stock */
		for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
			stock_return(att, &att->binds[i]);
		ns = NS_PER_MS;
	} else if (b->refusal != -EAGAIN) {
		return b->refusal;
	}
	if (now + ns > deadline)
		return -EAGAIN;
	if (ns > 100 * NS_PER_MS)
		ns = 100 * NS_PER_MS;
	pthread_mutex_unlock(&c->ring_lock);
	nanosleep(&(struct timespec){ .tv_nsec = (long)ns }, NULL);
	pthread_mutex_lock(&c->ring_lock);
	return 0;
}

/* The stock of a medium; of one device at a time, since hardly any client writes on two. */
static struct stock *stock_of(struct attachment *att, struct space_bind *bind, uint32_t medium)
{
	struct stock *b = &bind->stock[medium != 0];

	if (b->medium != medium) {
		give_back(att, b);
		/* What an earlier question still brings has no stock any more, and goes back. */
		*b = (struct stock){ .medium = medium, .batch = 1 };
	}
	return b;
}

int grant_reserve(struct attachment *att, struct kvp_space *space, uint32_t want, uint64_t deadline,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grant)
{
	return grant_reserve_at(att, space, 0, want, deadline, ret_retry_ms, ret_grant);
}

int grant_reserve_at(struct attachment *att, struct kvp_space *space, uint32_t medium,
	uint32_t want, uint64_t deadline, uint32_t *ret_retry_ms, struct kvp_grant **ret_grant)
{
	struct space_bind *bind = &att->binds[space->number];
	struct stock *b = stock_of(att, bind, medium);
	uint64_t answer = answer_by(deadline);
	uint32_t answers = b->answers;
	struct kvp_grant *g;

	ring_drain(att);
	while (!(g = stock_take(att, b))) {
		int r;

		if (kvp_load_seq(&att->dead) || !kvp_load_relaxed(&bind->open))
			return -ESHUTDOWN;
		if (b->answers != answers) {
			r = after_refusal(att, b, deadline);
			if (r < 0) {
				*ret_retry_ms = b->retry_ms ? b->retry_ms : 1;
				return r;
			}
			answers = b->answers;
			ring_drain(att);
			continue;
		}
		*ret_retry_ms = KVP_ANSWER_MS;
		if (att->stuck)
			return -EAGAIN;
		r = b->asking ? 0 : ask_for_slots(att, bind->index, b, want, answer);
		if (r == 0)
			r = ring_wait(att, answer);
		if (r < 0)
			return r;
		if (b->medium != medium) /* another thread reserves on another device */
			return -EAGAIN;
	}
	b->used_ns = now_ns();
	g->state = GRANT_HELD;
	g->space = space;
	g->outcome = OUTCOME_UNKNOWN;
	att->refs++;
	*ret_grant = g;
	return 0;
}

int grant_reserve_there(struct attachment *att, struct kvp_space *space, uint32_t medium,
	uint32_t want, struct kvp_grant **ret_grant)
{
	struct stock *b = stock_of(att, &att->binds[space->number], medium);
	const uint64_t now = now_ns();
	const uint32_t answers = b->answers;
	uint32_t retry_ms;
	int r;

	/* A refusal takes the ledger its time: while the last one holds nobody waits for the next. */
	if (!b->n_ahead && b->refusal == -EAGAIN && now < b->refused_ns + b->retry_ms * NS_PER_MS)
		return -EAGAIN;
	r = grant_reserve_at(att, space, medium, want, now, &retry_ms, ret_grant);
	return r == -EAGAIN && b->answers != answers && b->refusal == -EDQUOT ? -EDQUOT : r;
}

/* ring_lock. Memory that is the host's, or that a kvp_cuda of the client maps: else it would be made, and never written. */
static int writable_here(const struct attachment *att, uint32_t medium)
{
	const struct kvp_shm_device *d = medium ? &att->view.devices[medium - 1] : NULL;

	if (!d || !d->import || d->import & KVP_IMPORT_MEMFD || cuda_reaches(att->client, d))
		return 0;
	return -EOPNOTSUPP;
}

int reserve_until(struct kvp_space *space, uint32_t medium, uint32_t want, uint64_t deadline,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grant)
{
	struct kvp_client *c = space->client;
	struct kvp_grant *grant;
	struct attachment *att;
	uint32_t retry_ms = 0;
	int r = -ESHUTDOWN;

	KVP_FAULT("reserve");
	pthread_mutex_lock(&c->ring_lock);
	att = attachment_get(c);
	if (att) {
		r = writable_here(att, medium);
		if (r == 0)
			r = grant_reserve_at(att, space, medium, want, deadline, &retry_ms, &grant);
		attachment_put(att);
	}
	pthread_mutex_unlock(&c->ring_lock);
	KVP_FAULT("reserved");
	if (r == 0)
		*ret_grant = grant;
	else if (r == -EAGAIN && ret_retry_ms)
		*ret_retry_ms = retry_ms;
	return r;
}

static int reserve(struct kvp_space *space, uint32_t medium, uint32_t timeout_ms,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grant)
{
	if (!space || !ret_grant)
		return -EINVAL;
	if (!client_mine(space->client))
		return -ECHILD;
	return reserve_until(
		space, medium, 1, deadline_of(space->client, timeout_ms), ret_retry_ms, ret_grant);
}

int kvp_reserve(struct kvp_space *space, uint32_t timeout_ms, uint32_t *ret_retry_ms,
	struct kvp_grant **ret_grant)
{
	return reserve(space, 0, timeout_ms, ret_retry_ms, ret_grant);
}

int kvp_reserve_on(struct kvp_space *space, uint32_t device, uint32_t timeout_ms,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grant)
{
	if (device >= KVP_CLIENT_DEVICES)
		return -EINVAL;
	return reserve(space, device + 1, timeout_ms, ret_retry_ms, ret_grant);
}

void *kvp_grant_addr(const struct kvp_grant *grant)
{
	return grant ? grant->addr : NULL;
}

/* ring_lock. The caller's handle is gone. */
static void forget(struct kvp_grant *g)
{
	struct attachment *att = g->att;

	if (g->state == GRANT_COMMITTED && att->commits[g->serial % N_COMMITS].grant == g->id + 1)
		att->commits[g->serial % N_COMMITS].grant = 0;
	g->space = NULL;
}

/* ring_lock. The caller's hold ends. */
static void let_go(struct kvp_grant *g)
{
	forget(g);
	g->att->n_later -= g->state == GRANT_LATER;
	g->att->refs--;
}

void grant_drop(struct kvp_grant *g)
{
	let_go(g);
	grant_return(g);
}

void grant_drop_at(struct kvp_grant *g, uint64_t until)
{
	if (!until || kvp_until_come(g->att->page, until)) {
		grant_drop(g);
		return;
	}
	KVP_FAULT("grant-later");
	forget(g);
	g->state = GRANT_LATER;
	g->until = until;
	g->att->n_later++;
	timeline_hasten(g->att->client, until);
}

int kvp_grant_release(struct kvp_grant *grant)
{
	struct attachment *att;
	struct kvp_client *c;
	int r = -EALREADY;

	if (!grant)
		return 0;
	att = grant->att;
	if (!att)
		return -EALREADY;
	c = att->client;
	if (!client_mine(c))
		return -ECHILD;
	KVP_FAULT("grant-release");
	pthread_mutex_lock(&c->ring_lock);
	if (grant->state == GRANT_HELD || grant->state == GRANT_COMMITTED) {
		grant_drop(grant);
		ring_drain(att);
		r = 0;
	}
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

/* ---- references ------------------------------------------------------------------------------ */

struct kvp_ref kvp_ref_root(void)
{
	return ref_make(KVP_PARENT_ROOT, 0, 0, 0);
}

int kvp_grant_ref(const struct kvp_grant *grant, struct kvp_ref *ret)
{
	struct kvp_client *c;
	int r = -EINVAL;

	if (!grant || !grant->att || !ret)
		return -EINVAL;
	c = grant->att->client;
	if (!client_mine(c))
		return -ECHILD;
	pthread_mutex_lock(&c->ring_lock);
	if (grant->state == GRANT_COMMITTED && grant->tokens == grant->space->geo.block_tokens) {
		uint64_t epoch = grant->att->epoch;

		*ret = grant->outcome >= 0
			       ? ref_make(KVP_PARENT_BLOCK, grant->block, grant->birth, epoch)
			       : ref_make(KVP_PARENT_SERIAL, grant->serial, 0, epoch);
		r = 0;
	}
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

/* Names the parent in a submission; says its key. */
static int parent_of(struct attachment *att, const struct kvp_space *space, struct kvp_ref ref,
	struct kvp_sqe *sqe, struct kvp_key *ret_key)
{
	const struct space_bind *b = &att->binds[space->number];
	uint32_t kind = (uint32_t)(ref.opaque[0] >> 32), id = (uint32_t)ref.opaque[0];
	uint32_t birth = (uint32_t)ref.opaque[1];
	const struct commit *k = &att->commits[id % N_COMMITS];
	const struct kvp_block *block;

	if (kind != KVP_PARENT_ROOT && ref.opaque[1] >> 32 != (uint32_t)att->epoch)
		return -ESHUTDOWN;
	switch (kind) {
	case KVP_PARENT_ROOT:
		*ret_key = space_above(space, b->root);
		sqe->flags |= space->salted ? KVP_SQE_SALTED : 0;
		break;
	case KVP_PARENT_BLOCK:
		if (id >= att->view.max_blocks)
			return -EINVAL;
		block = &att->view.blocks[id];
		ret_key->lo = kvp_load_acquire(&block->key_lo);
		ret_key->hi = kvp_load_acquire(&block->key_hi);
		break;
	case KVP_PARENT_SERIAL:
		if (!k->used || k->serial != id)
			return -EINVAL; /* too long ago: the caller has released its grant */
		*ret_key = k->key;
		if (k->outcome >= 0) {
			kind = KVP_PARENT_BLOCK;
			id = k->block;
			birth = k->birth;
		}
		break;
	default:
		return -EINVAL;
	}
	sqe->parent_kind = kind;
	sqe->parent_id = id;
	sqe->parent_birth = birth;
	return 0;
}

/* ---- commit ---------------------------------------------------------------------------------- */

/*
 * A free record for the next commit. Outcomes come in order, so the oldest is not long in coming; but
 * for those that wait for a moment, whose records are passed over: they are as many as grants at most.
 */
static int next_commit(struct attachment *att, uint64_t deadline, struct commit **ret_commit)
{
	struct commit *k;

	while (k = &att->commits[(att->commit_serial + 1) % N_COMMITS],
		k->used && k->outcome == OUTCOME_UNKNOWN) {
		int r = 0;

		if (k->parked)
			att->commit_serial++;
		else
			r = ring_wait(att, deadline);
		if (r < 0)
			return r == -ETIMEDOUT ? -EAGAIN : r;
	}
	memset(k, 0, sizeof(*k));
	k->serial = ++att->commit_serial;
	k->used = 1;
	k->outcome = OUTCOME_UNKNOWN;
	*ret_commit = k;
	return 0;
}

static int submit_commit(struct kvp_grant *g, struct kvp_sqe *sqe, struct commit *k,
	const kvp_token *tokens, uint64_t deadline)
{
	struct attachment *att = g->att;
	uint32_t serial = k->serial;
	int r;

	memcpy(att->page->staging[g->id], tokens, sqe->tokens * sizeof(tokens[0]));
	if (sqe->flags & KVP_SQE_SALTED)
		memcpy(att->page->salt[g->id], g->space->salt, sizeof(g->space->salt));
	claim_name_next(att, k->key, sqe);
	g->state = GRANT_COMMITTED;
	g->serial = serial;
	g->tokens = sqe->tokens;
	r = ring_submit(att, sqe, deadline);
	if (r < 0) {
		k->used = 0;
		g->state = GRANT_HELD;
		return r;
	}
	claim_advance(att, k->key);
	if (!(sqe->flags & KVP_SQE_RELEASE)) {
		k->grant = g->id + 1;
		return 0;
	}
	/* From here the ledger may hand the slot out again. */
	let_go(g);
	att->extents[g->extent].grants--;
	g->state = GRANT_NONE;
	return 0;
}

_Static_assert(KVP_IS_MASK == KVP_SQE_LABEL, "what is said of tokens is handed on as it is");

int grant_commit(struct kvp_grant *g, struct kvp_ref parent, const kvp_token *tokens, uint32_t n,
	uint32_t flags, uint64_t until, uint64_t deadline, uint64_t put, struct kvp_key before,
	struct kvp_ref *ret_ref)
{
	struct attachment *att = g->att;
	struct space_bind *b = &att->binds[g->space->number];
	struct kvp_key parent_key;
	struct kvp_sqe sqe = { .op = KVP_OP_COMMIT };
	struct commit *k;
	int r;

	if (kvp_load_seq(&att->dead))
		return -ESHUTDOWN;
	r = parent_of(att, g->space, parent, &sqe, &parent_key);
	if (r < 0)
		return r;
	r = next_commit(att, deadline, &k);
	if (r < 0)
		return r;
	k->key = kvp_chain_key(parent_key, tokens, n);
	k->space = g->space->number;
	k->tokens = n;
	k->put = put;
	sqe.serial = k->serial;
	sqe.grant = g->id;
	sqe.grant_generation = g->generation;
	sqe.space = (uint16_t)b->index;
	sqe.tokens = (uint16_t)n;
	sqe.until = until;
	sqe.flags |= flags & KVP_IS_MASK; /* the same bits */
	/* Before the moment the slot is not the ledger's to hand out. */
	if (flags & KVP_COMMIT_RELEASE && !until)
		sqe.flags |= KVP_SQE_RELEASE;
	if (before.lo || before.hi) {
		sqe.flags |= KVP_SQE_BEFORE;
		sqe.next_lo = before.lo;
		sqe.next_hi = before.hi;
	}
	*ret_ref = ref_make(KVP_PARENT_SERIAL, k->serial, 0, att->epoch);
	r = submit_commit(g, &sqe, k, tokens, deadline);
	if (r == 0 && until)
		timeline_hasten(att->client, until);
	if (r == 0 && flags & KVP_COMMIT_RELEASE && until) {
		grant_drop_at(g, until);
		ring_drain(att);
	}
	return r;
}

/* timeline: NULL: at once */
static int commit(struct kvp_grant *grant, struct kvp_ref parent, const kvp_token *tokens,
	uint32_t n, struct kvp_prefix *claim, uint32_t flags, struct kvp_timeline *timeline,
	uint64_t value)
{
	uint64_t until = 0;
	struct kvp_ref ref;
	struct kvp_client *c;
	int r = -EINVAL;

	if (!grant || !grant->att || !tokens || !n || !flags_known(flags, KVP_COMMIT_RELEASE))
		return -EINVAL;
	c = grant->att->client;
	if (!client_mine(c))
		return -ECHILD;
	if ((claim && claim->client != c) ||
		(timeline && timeline_moment(timeline, c, value, &until) < 0))
		return -EINVAL;
	KVP_FAULT("commit");
	pthread_mutex_lock(&c->ring_lock);
	if (grant->state == GRANT_COMMITTED)
		r = -EALREADY;
	else if (grant->state == GRANT_HELD && n <= grant->space->geo.block_tokens)
		r = grant_commit(grant, parent, tokens, n, flags, until,
			deadline_of(c, KVP_DEFAULT_TIMEOUT), 0, NO_KEY, &ref);
	pthread_mutex_unlock(&c->ring_lock);
	KVP_FAULT("committed");
	return r;
}

int kvp_commit(struct kvp_grant *grant, struct kvp_ref parent, const uint32_t *tokens, uint32_t n,
	struct kvp_prefix *claim, uint32_t flags)
{
	return commit(grant, parent, tokens, n, claim, flags, NULL, 0);
}

int kvp_commit_after(struct kvp_grant *grant, struct kvp_ref parent, const uint32_t *tokens,
	uint32_t n, struct kvp_prefix *claim, uint32_t flags, struct kvp_timeline *timeline,
	uint64_t value)
{
	if (!timeline)
		return -EINVAL;
	return commit(grant, parent, tokens, n, claim, flags, timeline, value);
}

int kvp_grant_wait(struct kvp_grant *grant, uint32_t timeout_ms)
{
	struct kvp_client *c;
	uint64_t deadline;
	int r = 0;

	if (!grant || !grant->att)
		return -EINVAL;
	c = grant->att->client;
	if (!client_mine(c))
		return -ECHILD;
	deadline = deadline_of(c, timeout_ms);
	pthread_mutex_lock(&c->ring_lock);
	ring_drain(grant->att);
	if (grant->state != GRANT_COMMITTED)
		r = -EINVAL;
	else if (grant->outcome == OUTCOME_UNKNOWN && kvp_load_seq(&grant->att->dead))
		r = -ESHUTDOWN; /* also for a caller that only looks: nothing will ever come */
	else if (grant->outcome == OUTCOME_UNKNOWN && !timeout_ms)
		r = -ETIMEDOUT; /* not for want of an answer: it was not waited for */
	while (r == 0 && grant->outcome == OUTCOME_UNKNOWN)
		r = ring_wait(grant->att, deadline);
	if (r == 0)
		r = grant->outcome;
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

int kvp_flush(struct kvp_client *client, uint32_t timeout_ms)
{
	struct kvp_sqe sqe = { .op = KVP_OP_FLUSH };
	struct attachment *att;
	struct kvp_cqe cqe;
	uint64_t deadline;
	int r = -ESHUTDOWN;

	if (!client)
		return -EINVAL;
	if (!client_mine(client))
		return -ECHILD;
	deadline = answer_by(deadline_of(client, timeout_ms));
	pthread_mutex_lock(&client->ring_lock);
	att = attachment_get(client);
	if (att) {
		r = ring_ask(att, &sqe, deadline, &cqe);
		attachment_put(att);
	}
	pthread_mutex_unlock(&client->ring_lock);
	if (r == 0)
		r = cqe.status; /* -EAGAIN: many flushes wait for moments already */
	return r == -EAGAIN ? -ETIMEDOUT : r;
}
