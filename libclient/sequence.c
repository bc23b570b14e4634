/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on whole sequences: store one, say what has become of it, forget it.
 *
 * A put is honest about room. It hands block after block to the ledger without waiting for answers,
 * and looks at those that have come meanwhile: as soon as one of its blocks was refused, or has been
 * evicted to make room for its own next one, going on would only write what nobody can find. It then
 * stops, waits for the answers, and counts what is there.
 */
#include "libclient/cuda.h"
#include "libclient/match.h"
#include "libclient/ring.h"

#include <string.h>
#include <time.h>

#define LOST               (-ECANCELED) /* a block of this put is not, or no longer, there */
#define LOST_RETRY_MS      100u         /* when to try again after all of it was lost */
#define LOOKED_AT_RETRY_MS 2u       /* when the ledger has decided about a block before, mostly */
#define BUSY_RETRY_MS      1u       /* when what the ledger knows nothing of may have come back */
#define PUT_RUN            16u      /* blocks for a device that are enqueued together */
#define SLOTS_OUT_NS       100000L  /* between looks for slots that streams give back: at first, */
#define SLOTS_OUT_MOST_NS  1000000L /* and when they take long: each asks the ledger */

/* What a kvp_cuda_put() has besides: bytes are there when the timeline has reached a value. */
struct put_device {
	struct kvp_cuda *cuda;
	struct CUstream_st *stream;
	struct kvp_timeline *line;
	uint64_t value; /* of the last block that was enqueued, 0: none */
	uint32_t there; /* KVP_PUT_ON_DEVICE */
	/* With it: what cuda_medium() says; 0: or no room there, for the rest of the call. */
	uint32_t medium;
	/* Blocks whose slots are there, which are enqueued together and then committed. */
	uint32_t n;
	struct cuda_slot slots[PUT_RUN];
	struct kvp_grant *grants[PUT_RUN];
};

/* Where a kvp_put() stands. */
struct put {
	struct kvp_space *space;
	struct attachment *att;
	struct kvp_prefix *match; /* what was there at first; keeps it there */
	struct tokens tokens;
	const struct kvp_prefix *after; /* whose whole blocks the tokens follow, or NULL */
	size_t end;                     /* of the sequence, as far as it is stored */
	size_t from;
	struct kvp_view view;
	uint64_t deadline;
	size_t at;             /* token at which the next block begins */
	struct kvp_key key;    /* of the block before */
	struct kvp_ref parent; /* the same */
	uint32_t retry_ms;
	uint64_t number;  /* marks its commits */
	uint32_t label;   /* KVP_IS_* */
	uint32_t settled; /* answers have been looked at up to this serial */
	kvp_block_id tip; /* the deepest block that it knows to have been stored, or NONE */
	uint32_t tip_birth;
	uint32_t how;              /* FIND_*: where what is there is looked for */
	struct put_device *device; /* NULL: the view is host memory */
};

/* Is the block there, as far as its word says? One that the ledger is looking at still is. */
static int is_there(const struct attachment *att, kvp_block_id id, uint32_t birth)
{
	uint64_t word;

	if (id >= att->view.max_blocks)
		return 0;
	word = kvp_load_acquire(&att->view.blocks[id].word);
	return kvp_word_birth(word) == birth && kvp_word_holds(word);
}

/* The newest of these commits, of which `last` is the last, that is of this block of the space. */
static const struct commit *commit_among(const struct commit commits[N_COMMITS], uint32_t last,
	const struct kvp_space *space, struct kvp_key key)
{
	for (uint32_t i = 0; i < N_COMMITS; i++) {
		const struct commit *k = &commits[(last - i) % N_COMMITS];

		if (k->used && kvp_key_equal(k->key, key) && k->space == space->number)
			return k;
	}
	return NULL;
}

/* ring_lock. The newest commit of a block of the space, if it is among the last N_COMMITS. */
static const struct commit *commit_of(
	const struct attachment *att, const struct kvp_space *space, struct kvp_key key)
{
	return commit_among(att->commits, att->commit_serial, space, key);
}

/* ring_lock. A block of this client that is on its way, or has just arrived and not left again. */
static int committed_lately(const struct put *p, struct kvp_key key, struct kvp_ref *ret_ref)
{
	const struct attachment *att = p->att;
	const struct commit *k = commit_of(att, p->space, key);

	if (!k)
		return 0;
	if (k->outcome == OUTCOME_UNKNOWN) {
		*ret_ref = ref_make(KVP_PARENT_SERIAL, k->serial, 0, att->epoch);
		return 1;
	}
	if (k->outcome < 0 || !is_there(att, k->block, k->birth))
		return 0;
	*ret_ref = ref_make(KVP_PARENT_BLOCK, k->block, k->birth, att->epoch);
	return 1;
}

/*
 * ring_lock. Was none of its blocks refused, and has none gone, as far as the ledger has answered? A
 * block goes only after its children: the deepest one answers for all.
 */
static int put_holds(struct put *p)
{
	const struct attachment *att = p->att;

	if (att->commit_serial - p->settled > N_COMMITS)
		p->settled = att->commit_serial - N_COMMITS;
	while (p->settled != att->commit_serial) {
		const struct commit *k = &att->commits[(p->settled + 1) % N_COMMITS];

		/* Others' that wait for a moment are passed over, as next_commit() does. */
		if (k->used && k->outcome == OUTCOME_UNKNOWN && (!k->parked || k->put == p->number))
			break;
		p->settled++;
		if (!k->used || k->put != p->number)
			continue;
		if (k->outcome < 0)
			return 0;
		p->tip = k->block;
		p->tip_birth = k->birth;
	}
	return p->tip == KVP_BLOCK_NONE || is_there(att, p->tip, p->tip_birth);
}

/* Writes the block's bytes, or has them written until the moment. */
static int write_block(struct put *p, struct kvp_grant *g, uint32_t n, uint64_t *ret_until)
{
	struct put_device *d = p->device;
	int r;

	*ret_until = 0;
	if (!d) {
		view_to_payload(
			&p->space->geo, g->addr, n, &p->view, p->at - p->from, p->end - p->from);
		return 0;
	}
	r = cuda_block_to_slot(
		d->cuda, g, n, &p->view, p->at - p->from, d->stream, d->line, &d->value);
	return r < 0 ? r : timeline_moment(d->line, p->space->client, d->value, ret_until);
}

/* Blocks that are still to be stored, this one included; at most so many. */
static uint32_t blocks_left(const struct put *p, uint32_t most)
{
	const uint32_t t = p->space->geo.block_tokens;
	size_t left = (p->end - p->at + t - 1) / t;

	return left < most ? (uint32_t)left : most;
}

/* ---- on a device ----------------------------------------------------------------------------- */

/* ring_lock. Commits the run's blocks in order, and gives back the slots of those that cannot be. */
static int run_commit(struct put *p, int r, uint64_t until, uint32_t n)
{
	struct put_device *d = p->device;
	kvp_token room[KVP_BLOCK_TOKENS_MAX];

	for (uint32_t i = 0; i < n; i++) {
		const struct cuda_slot *s = &d->slots[i];
		const size_t at = p->from + s->user;

		if (r == 0) {
			r = grant_commit(d->grants[i], p->parent,
				tokens_at(&p->tokens, (uint32_t)at, s->n, room), s->n,
				KVP_COMMIT_RELEASE | p->label, until, answer_by(p->deadline),
				p->number, NO_KEY, &p->parent);
			if (r < 0)
				p->at = at; /* as far as it is stored */
		}
		if (r < 0)
			grant_drop_at(d->grants[i], until);
	}
	return r;
}

/* What has been gathered is enqueued, and committed at the moment when it is there. */
static int run_end(struct put *p)
{
	struct put_device *d = p->device;
	struct kvp_client *c = p->space->client;
	uint32_t n = d ? d->n : 0;
	uint64_t value, until = 0;
	int r, named = 0;

	if (!n)
		return 0;
	d->n = 0;
	KVP_FAULT("put-write");
	r = cuda_blocks_to_slots(
		d->cuda, &p->space->geo, d->slots, n, &p->view, d->stream, d->line, &value);
	if (value)
		named = timeline_moment(d->line, c, value, &until);
	if (r < 0 || named < 0)
		p->at = p->from + d->slots[0].user;
	if (named < 0)
		return named; /* no value is left: nobody can say when the slots are free */
	if (r == 0)
		d->value = value;
	KVP_FAULT("put-commit");
	pthread_mutex_lock(&c->ring_lock);
	r = run_commit(p, r, until, n);
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

/* ring_lock. A slot on the device, and where it is there. */
static int slot_there(struct put *p, struct kvp_grant **ret_grant, uint64_t *ret_at)
{
	struct put_device *d = p->device;
	int r = grant_reserve_there(
		p->att, p->space, d->medium, blocks_left(p, PUT_RUN), ret_grant);

	if (r < 0)
		return r;
	*ret_at = cuda_slot_at(d->cuda, *ret_grant);
	if (*ret_at && put_holds(p))
		return 0;
	grant_drop(*ret_grant);
	return *ret_at ? LOST : -EAGAIN;
}

/* Gathers the block, if a slot on the device is to be had. 1: it goes to DRAM, and all after it. */
static int gather_block(struct put *p, uint32_t n)
{
	struct put_device *d = p->device;
	struct kvp_client *c = p->space->client;
	struct kvp_grant *g = NULL;
	uint64_t at = 0;
	long pause = SLOTS_OUT_NS;
	int r, ended = d->n == PUT_RUN ? run_end(p) : 0;

	for (;;) {
		/* The call is where the run began: whatever the error is, this block is not what comes next. */
		if (ended < 0)
			return ended;
		pthread_mutex_lock(&c->ring_lock);
		r = slot_there(p, &g, &at);
		pthread_mutex_unlock(&c->ring_lock);
		if (r != -EDQUOT)
			break;
		/* All its slots are out, these among them: they come back when streams have come there. */
		ended = run_end(p);
		if (ended == 0 && now_ns() >= p->deadline)
			return -EAGAIN;
		nanosleep(&(struct timespec){ .tv_nsec = pause }, NULL);
		pause = 2 * pause < SLOTS_OUT_MOST_NS ? 2 * pause : SLOTS_OUT_MOST_NS;
	}
	if (r == -EAGAIN || r == -ENODEV || r == -EOPNOTSUPP) {
		d->medium = 0;
		r = run_end(p);
		return r < 0 ? r : 1;
	}
	if (r < 0)
		return r;
	d->grants[d->n] = g;
	d->slots[d->n++] = (struct cuda_slot){ at, p->at - p->from, n };
	return 0;
}

/* ---- block by block -------------------------------------------------------------------------- */

static int store_block(struct put *p, const kvp_token *tokens, uint32_t n)
{
	struct kvp_client *c = p->space->client;
	struct kvp_grant *g;
	uint64_t until;
	int r = 1;

	KVP_FAULT("put-reserve");
	if (p->device && p->device->medium)
		r = gather_block(p, n);
	if (r <= 0)
		return r;
	pthread_mutex_lock(&c->ring_lock);
	r = grant_reserve(
		p->att, p->space, blocks_left(p, AHEAD_MAX), p->deadline, &p->retry_ms, &g);
	if (r == 0 && !put_holds(p)) {
		grant_drop(g);
		r = LOST;
	}
	pthread_mutex_unlock(&c->ring_lock);
	if (r < 0)
		return r;
	KVP_FAULT("put-write");
	r = write_block(p, g, n, &until);
	KVP_FAULT("put-commit");
	pthread_mutex_lock(&c->ring_lock);
	if (r == 0)
		r = grant_commit(g, p->parent, tokens, n, KVP_COMMIT_RELEASE | p->label, until,
			answer_by(p->deadline), p->number, NO_KEY, &p->parent);
	if (r < 0)
		grant_drop_at(g, until);
	pthread_mutex_unlock(&c->ring_lock);
	if (r == 0 && p->device && p->device->there)
		kvp_add_relaxed(&p->device->cuda->displaced, 1);
	return r;
}

/*
 * No match found the block of this key. Has the ledger marked it, and says in a moment whether it stays, with
 * fewer bits say, or did it stay since? A hint for when to ask again, so the key alone is looked at.
 */
static int undecided(const struct attachment *att, struct kvp_key key)
{
	static const uint32_t tiers[] = { KVP_TIER_DRAM, KVP_TIER_VRAM };
	const struct kvp_catalog_view *v = &att->view;
	kvp_block_id ids[8];
	uint32_t n = kvp_index_candidates(v->index, v->index_buckets, key.lo, ids, 8);

	for (uint32_t i = 0; i < n; i++) {
		const struct kvp_block *b = ids[i] < v->max_blocks ? &v->blocks[ids[i]] : NULL;
		uint64_t word = b ? kvp_load_acquire(&b->word) : 0, where, offset;

		if (!b || !kvp_word_holds(word) || kvp_load_acquire(&b->key_lo) != key.lo ||
			kvp_load_acquire(&b->key_hi) != key.hi)
			continue;
		for (uint32_t t = 0; t < ARRAY_SIZE(tiers); t++) {
			kvp_payload_read(b, word, tiers[t], &where, &offset);
			if (where || kvp_word_state(word) == KVP_BLOCK_EVICTING)
				return 1;
		}
	}
	return 0;
}

/* One block on: found, on its way, or stored now. */
static int put_block(struct put *p)
{
	uint32_t t = p->space->geo.block_tokens, i = p->match->base + (uint32_t)(p->at / t);
	uint32_t n = (uint32_t)(p->end - p->at < t ? p->end - p->at : t);
	kvp_token room[KVP_BLOCK_TOKENS_MAX];
	const kvp_token *tokens = tokens_at(&p->tokens, (uint32_t)p->at, n, room);
	struct kvp_key key = kvp_chain_key(p->key, tokens, n);
	int there = i < p->match->n_blocks, r;
	struct kvp_ref found;

	if (there) {
		const struct kvp_hit *h = &p->match->hits[i];

		found = ref_make(KVP_PARENT_BLOCK, h->id, kvp_word_birth(h->word), p->att->epoch);
	} else {
		pthread_mutex_lock(&p->space->client->ring_lock);
		there = committed_lately(p, key, &found);
		pthread_mutex_unlock(&p->space->client->ring_lock);
	}
	if (!there && p->at < p->from) {
		if (!undecided(p->att, key))
			return -ENOENT;
		p->retry_ms = LOOKED_AT_RETRY_MS;
		return -EAGAIN;
	}
	r = there ? run_end(p) : store_block(p, tokens, n);
	if (r < 0)
		return r;
	if (there)
		p->parent = found;
	p->key = key;
	p->at += n;
	return 0;
}

/*
 * ring_lock. Until the ledger has come to this question it has dealt with all that was submitted before;
 * what waits for a moment then goes on waiting, where a FLUSH would wait with it.
 */
static int served_so_far(struct attachment *att, uint64_t deadline)
{
	struct kvp_sqe sqe = { .op = KVP_OP_NOP };
	struct kvp_cqe cqe;

	return ring_ask(att, &sqe, deadline, &cqe);
}

/* Waits for the answers and counts the tokens from `from` on that are cached. */
static int64_t put_left(struct put *p)
{
	struct kvp_client *c = p->space->client;
	struct kvp_prefix *now;
	int64_t tokens;
	int r;

	pthread_mutex_lock(&c->ring_lock);
	r = served_so_far(p->att, answer_by(p->deadline));
	pthread_mutex_unlock(&c->ring_lock);
	if (r == -ESHUTDOWN)
		return r;
	r = match_make(
		p->space, &p->tokens, p->after, KVP_MATCH_NO_TAIL, p->how | FIND_ANYWHERE, &now);
	if (r < 0)
		return r;
	tokens = (int64_t)now->n_tokens - match_base(now);
	prefix_drop(now);
	p->retry_ms = LOST_RETRY_MS;
	return tokens > (int64_t)p->from ? tokens - (int64_t)p->from : -EAGAIN;
}

/* Where the first block goes: after the root, or after the last block taken over. */
static int put_begin(struct put *p, const struct space_bind *b)
{
	uint32_t base = p->match->base;
	const struct kvp_hit *tip;

	p->tip = KVP_BLOCK_NONE;
	p->key = space_above(p->space, b->root);
	p->parent = kvp_ref_root();
	if (!p->after || p->after->n_tokens < p->space->geo.block_tokens)
		return 0;
	if (!base)
		return -ESHUTDOWN; /* a former daemon's */
	if (p->match->n_blocks < base)
		return -ENOENT;
	tip = &p->match->hits[base - 1];
	p->key.lo = kvp_load_acquire(&p->att->view.blocks[tip->id].key_lo);
	p->key.hi = kvp_load_acquire(&p->att->view.blocks[tip->id].key_hi);
	p->parent = ref_make(KVP_PARENT_BLOCK, tip->id, kvp_word_birth(tip->word), p->att->epoch);
	return 0;
}

/*
 * A lease on what was found keeps all of it as it is. In a space whose blocks may be coded with fewer bits that
 * may be all that could make room, and a put reads none of it: it goes on without, and put_holds() looks whether
 * the deepest block stays.
 */
static void let_go(struct put *p)
{
	const struct kvp_prefix *m = p->match;
	const struct kvp_hit *tip;

	if (!m->lease.slot || !p->space->codecs)
		return;
	tip = &m->hits[m->n_blocks - 1];
	p->tip = tip->id;
	p->tip_birth = kvp_word_birth(tip->word);
	kvp_lease_drop(&p->match->lease);
}

static int64_t put_all(struct put *p)
{
	const struct space_bind *b = p->att ? bind_of(p->att, p->space) : NULL;
	struct kvp_client *c = p->space->client;
	int r = 0, ended, holds;

	if (!b)
		return -ESHUTDOWN;
	r = put_begin(p, b);
	if (r < 0)
		return r;
	let_go(p);
	pthread_mutex_lock(&c->ring_lock);
	p->number = ++p->att->puts;
	p->settled = p->att->commit_serial;
	pthread_mutex_unlock(&c->ring_lock);
	while (r == 0 && p->at < p->end)
		r = put_block(p);
	ended = run_end(p);
	r = r < 0 ? r : ended;
	pthread_mutex_lock(&c->ring_lock);
	ring_drain(p->att);
	holds = put_holds(p);
	pthread_mutex_unlock(&c->ring_lock);
	if (r == -ESHUTDOWN || kvp_load_seq(&p->att->dead))
		return -ESHUTDOWN; /* and what was handed over has gone with the daemon */
	if (r == LOST || !holds)
		return put_left(p);
	/* All slots are out, or the library's memory, or records of commits. */
	if (r == -EAGAIN && !p->retry_ms)
		p->retry_ms = BUSY_RETRY_MS;
	if (p->at > p->from)
		return (int64_t)(p->at - p->from);
	return r;
}

/* Where it is to go, and where what is there lies. */
static void put_there(struct put *p)
{
	struct put_device *d = p->device;
	struct kvp_client *c = p->space->client;

	d->there = 1;
	pthread_mutex_lock(&c->ring_lock);
	d->medium = cuda_medium(d->cuda, kvp_load_seq(&c->att));
	pthread_mutex_unlock(&c->ring_lock);
	if (d->medium)
		p->how = FIND_ON(d->medium - 1);
}

static int64_t put_ids(struct kvp_space *space, const struct kvp_ids *ids, size_t from,
	const struct kvp_view *src, const struct kvp_put_opts *opts, struct put_device *device,
	uint32_t *ret_retry_ms)
{
	const uint32_t flags = KVP_PUT_PARTIAL | (device ? KVP_PUT_ON_DEVICE : 0);
	struct put p = { .space = space, .from = from, .device = device };
	struct kvp_put_opts o;
	uint32_t t, before;
	int64_t r;

	if (!space || !ids || from > ids->n || opts_take(&o, sizeof(o), opts) < 0 ||
		!flags_known(o.flags, flags))
		return -EINVAL;
	t = space->geo.block_tokens;
	if (from % t)
		return -EINVAL;
	r = tokens_take(ids, &p.tokens);
	if (r == 0)
		r = view_check(&space->geo, src, VIEW_WRITE, &p.view);
	if (r == 0 && device && !view_has_rows(&space->geo, &p.view))
		r = -EOPNOTSUPP;
	if (r < 0)
		return r;
	if (!client_mine(space->client))
		return -ECHILD;
	p.after = o.after;
	p.label = o.flags & KVP_IS_MASK;
	before = o.after ? o.after->n_tokens / t * t : 0;
	p.end = o.flags & KVP_PUT_PARTIAL ? ids->n : ids->n / t * t;
	p.tokens.n = (uint32_t)p.end;
	if (before + ids->n < space->min_cache_tokens || p.end <= from)
		return 0;
	r = view_reaches(&p.view, p.end - from);
	if (r < 0)
		return r;
	p.deadline = deadline_of(space->client, o.timeout_ms);
	if (o.flags & KVP_PUT_ON_DEVICE)
		put_there(&p);
	r = match_make(space, &p.tokens, p.after, KVP_MATCH_NO_TAIL, p.how, &p.match);
	if (r < 0)
		return r;
	p.att = p.match->att;
	r = put_all(&p);
	prefix_drop(p.match);
	if (r < (int64_t)(p.end - from) && p.retry_ms && ret_retry_ms)
		*ret_retry_ms = p.retry_ms;
	return r;
}

int64_t kvp_put_ids(struct kvp_space *space, const struct kvp_ids *ids, size_t from,
	const struct kvp_view *src, const struct kvp_put_opts *opts, uint32_t *ret_retry_ms)
{
	return put_ids(space, ids, from, src, opts, NULL, ret_retry_ms);
}

int64_t kvp_cuda_put(struct kvp_space *space, struct kvp_cuda *cuda, const uint32_t *tokens,
	size_t n, size_t from, const struct kvp_view *src, const struct kvp_put_opts *opts,
	struct CUstream_st *stream, struct kvp_timeline *timeline, uint64_t *ret_value,
	uint32_t *ret_retry_ms)
{
	struct put_device d = { .cuda = cuda, .stream = stream, .line = timeline };
	int r = cuda_usable(cuda);
	int64_t stored;

	if (r < 0)
		return r;
	if (!space || space->client != cuda->client || !ret_value)
		return -EINVAL;
	r = timeline_claim(timeline, cuda, LINE_SLOTS);
	if (r < 0)
		return r;
	stored = put_ids(space, &(struct kvp_ids){ tokens, n, KVP_IDS_U32 }, from, src, opts, &d,
		ret_retry_ms);
	if (d.value)
		*ret_value = d.value;
	return stored;
}

int64_t kvp_put(struct kvp_space *space, const uint32_t *tokens, size_t n, size_t from,
	const struct kvp_view *src, const struct kvp_put_opts *opts, uint32_t *ret_retry_ms)
{
	return kvp_put_ids(
		space, &(struct kvp_ids){ tokens, n, KVP_IDS_U32 }, from, src, opts, ret_retry_ms);
}

/* Key of the block that follows the first n tokens, in a chain with this root. */
static struct kvp_key key_after(const struct kvp_space *space, struct kvp_key root,
	const kvp_token *tokens, size_t end, size_t n)
{
	uint32_t t = space->geo.block_tokens;

	for (size_t at = 0; at < n; at += t)
		root = kvp_chain_key(root, tokens + at, t);
	return kvp_chain_key(root, tokens + n, (uint32_t)(end - n < t ? end - n : t));
}

/* ring_lock. Why the block that would follow the first n tokens is not there; 0: not known. */
static int why_missing(struct kvp_space *space, const struct attachment *att,
	const kvp_token *tokens, size_t end, size_t n)
{
	const struct space_bind *b = bind_of(att, space);
	const struct former *f = &att->client->former;
	const struct commit *k;

	if (!b)
		return -ESHUTDOWN;
	k = commit_of(att, space, key_after(space, space_above(space, b->root), tokens, end, n));
	if (k)
		return k->outcome < 0 ? k->outcome : -ESTALE;
	k = commit_among(f->commits, 0, space,
		key_after(space, space_above(space, f->roots[space->number]), tokens, end, n));
	return k ? -ESHUTDOWN : 0;
}

int64_t kvp_put_outcome(struct kvp_space *space, const uint32_t *tokens, size_t n, size_t from,
	uint32_t timeout_ms, int *ret_why)
{
	struct kvp_prefix *m;
	struct tokens all;
	struct kvp_client *c;
	int64_t there;
	int r, why = 0;

	if (!space || (n && !tokens) || n > MAX_TOKENS || from > n ||
		from % space->geo.block_tokens)
		return -EINVAL;
	c = space->client;
	r = kvp_flush(c, timeout_ms);
	if (r < 0)
		return r;
	all = tokens_of(tokens, n);
	/* On any device too: what lies nowhere else is not lost. */
	r = match_make(space, &all, NULL, KVP_MATCH_NO_TAIL, FIND_ON(0) | FIND_ANYWHERE, &m);
	if (r < 0)
		return r;
	there = m->n_tokens;
	if (!m->att) {
		why = -ESHUTDOWN;
	} else if (m->n_tokens < n) {
		pthread_mutex_lock(&c->ring_lock);
		why = why_missing(space, m->att, tokens, n, m->n_tokens);
		pthread_mutex_unlock(&c->ring_lock);
	}
	prefix_drop(m);
	if (ret_why)
		*ret_why = why;
	return there > (int64_t)from ? there - (int64_t)from : 0;
}

int kvp_delete(struct kvp_space *space, const uint32_t *tokens, size_t n, uint32_t timeout_ms)
{
	struct tokens all;
	struct kvp_client *c;
	struct kvp_prefix *m;
	uint64_t deadline;
	uint32_t i;
	int r;

	if (!space || (n && !tokens) || n > MAX_TOKENS)
		return -EINVAL;
	all = tokens_of(tokens, n);
	/* Wherever it lies: nothing of it is read. */
	r = match_make(space, &all, NULL, KVP_MATCH_NO_TAIL, FIND_ON(0) | FIND_ANYWHERE, &m);
	if (r < 0)
		return r;
	c = space->client;
	deadline = answer_by(deadline_of(c, timeout_ms));
	kvp_lease_drop(&m->lease); /* or it would protect what is to go */
	if (!m->att)
		r = -ESHUTDOWN;
	pthread_mutex_lock(&c->ring_lock);
	for (i = m->n_blocks; r == 0 && i; i--) {
		const struct kvp_hit *h = &m->hits[i - 1];
		struct kvp_sqe sqe = {
			.op = KVP_OP_DELETE,
			.serial = ++m->att->other_serial,
			.space = (uint16_t)m->att->binds[space->number].index,
			.parent_kind = KVP_PARENT_BLOCK,
			.parent_id = h->id,
			.parent_birth = kvp_word_birth(h->word),
		};

		r = ring_submit(m->att, &sqe, deadline);
	}
	if (r == 0)
		r = served_so_far(m->att, deadline);
	pthread_mutex_unlock(&c->ring_lock);
	if (r == 0)
		r = (int)m->n_blocks;
	prefix_drop(m);
	return r == -EAGAIN ? -ETIMEDOUT : r;
}
