/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices: which there are, having blocks copied to one, and reading them there.
 *
 * A copy to a device changes nothing of what a prefix has: a payload appears beside the one in DRAM, and
 * the lease that holds the prefix holds it too (kvp_abi.h, the payload rule). So the hot path knows
 * nothing of devices, and whoever wants to read there looks at the descriptor when it does.
 */
#include "libclient/coded.h"
#include "libclient/match.h"
#include "libclient/ring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(KVP_CLIENT_DEVICES == KVP_MAX_DEVICES, "kvpool.h tells the limit");
static_assert(KVP_CLIENT_WARM_BLOCKS == KVP_WARM_BLOCKS, "kvpool.h tells the limit");
static_assert(KVP_DEVICE_IS_UP == KVP_DEVICE_UP, "kvpool.h gives the state");
static_assert(KVP_CLIENT_WARMS == KVP_WARM_TICKETS, "kvpool.h tells the limit");
static_assert(KVP_CLIENT_EARLY_BLOCKS == KVP_WARM_EARLY_BLOCKS, "kvpool.h tells the limit");
static_assert(N_WARMS <= 64, "kvp_prefix.given has a bit for each");

/* ---- which there are ------------------------------------------------------------------------- */

int kvp_device_info(struct kvp_client *client, uint32_t device, struct kvp_device_props *ret_props)
{
	struct kvp_device_props p = { 0 };
	const struct kvp_shm_device *d;
	struct attachment *att;
	int r = -ENOENT;

	if (!client || !ret_props)
		return -EINVAL;
	if (!client_mine(client))
		return -ECHILD;
	pthread_mutex_lock(&client->ring_lock);
	att = kvp_load_seq(&client->att);
	if (!att) {
		r = -ESHUTDOWN;
	} else if (device < KVP_MAX_DEVICES) {
		d = &att->view.devices[device];
		/* Acquire: all else was written before. */
		p.state = kvp_load_acquire(&d->state);
		if (p.state != KVP_DEVICE_FREE) {
			memcpy(p.uuid, d->uuid, sizeof(p.uuid));
			p.bytes = d->pool_bytes;
			p.to_device_bytes = kvp_load_relaxed(&d->to_device_bytes);
			p.from_device_bytes = kvp_load_relaxed(&d->from_device_bytes);
			r = 0;
		}
	}
	pthread_mutex_unlock(&client->ring_lock);
	return r < 0 ? r : result_give(ret_props, &p, sizeof(p));
}

/* ---- tickets --------------------------------------------------------------------------------- */

/* kvp_ticket.opaque: epoch; serial */
static struct kvp_ticket ticket_make(const struct attachment *att, const struct warm *w)
{
	return (struct kvp_ticket){ { att->epoch, w->serial } };
}

/* It says no more where blocks come to lie: those that lie there have a payload that does. */
static void forget_places(struct warm *w)
{
	struct warm **p = &w->att->early;

	if (!w->places)
		return;
	while (*p != w)
		p = &(*p)->next_early;
	*p = w->next_early;
	free(w->places);
	w->places = NULL;
}

static uint64_t bit_of(const struct warm *w)
{
	return UINT64_C(1) << w->serial % N_WARMS;
}

static void given_unlink(struct kvp_prefix *m)
{
	struct kvp_prefix **p = &m->att->given;

	while (*p != m)
		p = &(*p)->next_given;
	*p = m->next_given;
	/* Release: who finds it 0 and releases the handle finds it unpinned too. */
	kvp_store_release(&m->in_given, 0);
}

/* Those that were given places of it: what it filled is protected by their leases, the rest is not. */
static void given_end(const struct warm *w, int failed)
{
	struct kvp_prefix *m = w->att->given, *next;

	for (; m; m = next) {
		next = m->next_given;
		if (!(m->given & bit_of(w)))
			continue;
		m->given &= ~bit_of(w);
		m->lost |= failed;
		if (m->given)
			continue;
		if (!m->lost)
			prefix_unpin_other(m);
		given_unlink(m);
	}
}

static void warm_end(struct warm *w, int outcome, uint32_t blocks)
{
	w->outcome = outcome;
	w->blocks = blocks;
	if (w->places)
		given_end(w, outcome != 0 || blocks < w->asked);
	forget_places(w);
	if (w->held) {
		prefix_drop(w->held);
		w->held = NULL;
		w->att->n_prefetches--;
	}
}

/* 1: the place of each of its blocks is known now. */
static int take_place(struct warm *w, const struct kvp_cqe *cqe)
{
	struct attachment *att = w->att;

	if (!w->places || w->placed == w->asked || cqe->more != w->placed ||
		cqe->extent >= KVP_MAX_EXTENTS)
		return 0;
	w->places[w->placed++] = (struct place){
		.where = kvp_where(cqe->extent, cqe->grant_generation, cqe->bytes),
		.offset = cqe->offset,
		.told = ++att->places_told,
		.block = cqe->block,
		.birth = cqe->birth,
	};
	/* So that it is mapped when somebody asks; what this client writes it was sent before. */
	if (!kvp_load_seq(&att->extents[cqe->extent].base) &&
		!kvp_load_seq(&att->extents[cqe->extent].there) &&
		kvp_load_relaxed(&att->view.extents[cqe->extent].owner) != att->session)
		extent_want(att, cqe->extent);
	return w->placed == w->asked;
}

int warm_answer(struct attachment *att, const struct kvp_cqe *cqe)
{
	struct warm *w = &att->warms[cqe->serial % N_WARMS];

	if (!w->used || w->serial != cqe->serial || w->outcome != OUTCOME_UNKNOWN ||
		cqe->flags & KVP_CQE_PARKED)
		return 0;
	if (cqe->flags & KVP_CQE_PLACE)
		return take_place(w, cqe);
	warm_end(w, cqe->status, cqe->more < w->asked ? cqe->more : w->asked);
	return 1;
}

void warms_end(struct attachment *att)
{
	for (uint32_t i = 0; i < N_WARMS; i++)
		if (att->warms[i].used && att->warms[i].outcome == OUTCOME_UNKNOWN)
			warm_end(&att->warms[i], -ESHUTDOWN, 0);
}

/* ring_lock. A place for one more; NULL: the one that had it is not over. */
static struct warm *warm_begin(struct attachment *att, const struct warm_how *how, uint32_t device)
{
	struct warm *w = &att->warms[(att->warm_serial + 1) % N_WARMS];

	if (w->used && w->outcome == OUTCOME_UNKNOWN)
		return NULL;
	*w = (struct warm){
		.att = att,
		.serial = ++att->warm_serial,
		.used = 1,
		.outcome = OUTCOME_UNKNOWN,
		.asked = how->n,
		.held = how->keep,
		.places = how->places,
		.first = how->first,
		.device = device,
	};
	att->n_prefetches += how->keep != NULL;
	if (how->places) {
		w->next_early = att->early;
		att->early = w;
	}
	return w;
}

/*
 * ring_lock. It could not be asked. 0: the daemon went meanwhile, which has ended the ticket like any
 * other, with what it held.
 */
static int warm_undo(struct warm *w, int error)
{
	if (w->outcome != OUTCOME_UNKNOWN)
		return 0;
	w->att->n_prefetches -= w->held != NULL;
	forget_places(w);
	*w = (struct warm){ 0 };
	return error;
}

int warm_submit(struct attachment *att, struct kvp_sqe *sqe, const struct warm_how *how,
	uint64_t deadline, struct kvp_ticket *ret_ticket)
{
	struct kvp_ticket ticket;
	struct warm *w;
	int r;

	ring_drain(att);
	w = att->stuck || kvp_load_seq(&att->dead) ? NULL : warm_begin(att, how, sqe->grant);
	if (!w) {
		free(how->places);
		return -EAGAIN;
	}
	ticket = ticket_make(att, w);
	sqe->serial = w->serial;
	r = ring_submit(att, sqe, deadline);
	if (r < 0)
		r = warm_undo(w, r);
	if (r == 0 && how->keep)
		ask_sweep(att); /* for the answer, if no call comes by */
	if (r == 0 && ret_ticket)
		*ret_ticket = ticket;
	return r;
}

/*
 * Asks for blocks [first, first + n) of a leased prefix. `keep`: it is the library's, and ends with the
 * ticket if this returns 0.
 */
static int ask(struct kvp_prefix *m, const struct kvp_warm_opts *o, uint32_t n, int keep,
	struct kvp_ticket *ret_ticket)
{
	const struct kvp_hit *last = &m->hits[o->first + n - 1];
	struct warm_how how = { .n = n, .keep = keep ? m : NULL, .first = o->first };
	struct kvp_client *c = m->client;
	struct kvp_sqe sqe = {
		.op = KVP_OP_WARM,
		.grant = o->device,
		.count = n,
		.flags = o->flags & KVP_WARM_PREFETCH ? KVP_SQE_PREFETCH : 0,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = last->id,
		.parent_birth = kvp_word_birth(last->word),
	};
	uint64_t deadline = deadline_of(c, o->timeout_ms);
	int r;

	/* A daemon that knows no places is asked for the copies alone. */
	if (o->flags & KVP_WARM_EARLY && m->att->view.cat->h.compat & KVP_COMPAT_EARLY) {
		sqe.flags |= KVP_SQE_EARLY;
		how.places = calloc(n, sizeof(*how.places));
		if (!how.places)
			return -ENOMEM;
	}
	pthread_mutex_lock(&c->ring_lock);
	r = warm_submit(m->att, &sqe, &how, deadline, ret_ticket);
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

/* Blocks of the prefix, its tail included. */
static uint32_t all_blocks(const struct kvp_prefix *m)
{
	return m->n_blocks + (m->tail_tokens ? 1 : 0);
}

/* How many blocks the options mean; 0: none, they begin beyond the prefix. */
static uint32_t asked_blocks(const struct kvp_prefix *m, const struct kvp_warm_opts *o)
{
	uint32_t most =
		o->flags & KVP_WARM_EARLY ? KVP_CLIENT_EARLY_BLOCKS : KVP_CLIENT_WARM_BLOCKS;
	uint32_t have = all_blocks(m), n;

	if (o->first >= have)
		return 0;
	n = o->n && o->n < have - o->first ? o->n : have - o->first;
	return n < most ? n : most;
}

/* Is it one whose blocks can be named, and held? */
static int usable(const struct kvp_prefix *m)
{
	if (!m || !prefix_live(m))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	if (m->flags & PREFIX_KEYS)
		return -EOPNOTSUPP;
	return 0;
}

int kvp_warm(struct kvp_prefix *m, const struct kvp_warm_opts *opts, struct kvp_ticket *ret_ticket)
{
	struct kvp_warm_opts o = { 0 };
	uint32_t n;
	int r = usable(m);

	if (r == 0 && opts)
		r = opts_take(&o, sizeof(o), opts);
	if (r < 0)
		return r;
	if (!ret_ticket || o.flags & ~(KVP_WARM_PREFETCH | KVP_WARM_EARLY) ||
		o.device >= KVP_CLIENT_DEVICES)
		return -EINVAL;
	n = asked_blocks(m, &o);
	if (!n)
		return -ENOENT;
	if (!(m->flags & KVP_MATCHED_LEASED))
		return -ENOLCK;
	if (!m->att || kvp_load_seq(&m->att->dead))
		return -ESHUTDOWN;
	return ask(m, &o, n, 0, ret_ticket);
}

int kvp_prefetch(
	struct kvp_space *space, const struct kvp_ids *tokens, const struct kvp_warm_opts *opts)
{
	struct kvp_warm_opts o = { 0 };
	struct kvp_prefix *m;
	struct tokens t;
	uint32_t n;
	int r;

	if (!space || !tokens)
		return -EINVAL;
	if (opts && (r = opts_take(&o, sizeof(o), opts)) < 0)
		return r;
	if (o.flags & ~KVP_WARM_PREFETCH || o.device >= KVP_CLIENT_DEVICES)
		return -EINVAL;
	if (space->canon.key_bytes)
		return -EOPNOTSUPP;
	r = tokens_take(tokens, &t);
	if (r < 0)
		return r;
	r = match_make(space, &t, NULL, KVP_MATCH_NO_TOUCH, 0, &m);
	if (r < 0)
		return r;
	o.flags |= KVP_WARM_PREFETCH;
	n = asked_blocks(m, &o);
	if (n && !(m->flags & KVP_MATCHED_LEASED))
		r = -ENOLCK;
	else if (n)
		r = ask(m, &o, n, 1, NULL);
	if (!n || r < 0)
		prefix_drop(m);
	return r < 0 ? r : (int)n;
}

/* ring_lock. The attachment with this epoch, whatever has become of its daemon. */
static struct attachment *attachment_of(struct kvp_client *c, uint64_t epoch)
{
	for (uint32_t i = 0; i < N_ATTACHMENTS; i++) {
		struct attachment *att = c->attachments[i];

		if (att && att->in_use && att->published && att->epoch == epoch)
			return att;
	}
	return NULL;
}

/* ring_lock. NULL: none with this number, or no longer. */
static struct warm *warm_of(struct attachment *att, uint64_t serial)
{
	struct warm *w = &att->warms[serial % N_WARMS];

	return w->used && w->serial == serial ? w : NULL;
}

static int has_ended(const struct warm *w)
{
	return w->outcome != OUTCOME_UNKNOWN;
}

static int is_placed(const struct warm *w)
{
	return has_ended(w) || (w->places && w->placed == w->asked);
}

/* Waits until it is ready, and copies what is known of it then. */
static int ticket_await(struct kvp_client *c, struct kvp_ticket ticket, uint32_t timeout_ms,
	int (*ready)(const struct warm *w), struct warm *ret)
{
	struct attachment *att;
	uint64_t deadline;
	int r = 0;

	if (!c)
		return -EINVAL;
	if (!client_mine(c))
		return -ECHILD;
	deadline = deadline_of(c, timeout_ms);
	pthread_mutex_lock(&c->ring_lock);
	att = attachment_of(c, ticket.opaque[0]);
	if (!att) {
		r = ticket.opaque[0] ? -ESHUTDOWN : -EINVAL;
	} else {
		att->refs++;
		ring_drain(att);
	}
	while (r == 0) {
		const struct warm *w = warm_of(att, ticket.opaque[1]);

		if (w && ready(w)) {
			*ret = *w;
			break;
		}
		if (!w)
			r = -EINVAL;
		else
			r = timeout_ms ? ring_wait(att, deadline) : -ETIMEDOUT;
	}
	if (att)
		att->refs--;
	pthread_mutex_unlock(&c->ring_lock);
	return r == 0 && ret->outcome == -ESHUTDOWN ? -ESHUTDOWN : r;
}

int kvp_ticket_wait(
	struct kvp_client *c, struct kvp_ticket ticket, uint32_t timeout_ms, int *ret_why)
{
	struct warm w = { 0 };
	int r = ticket_await(c, ticket, timeout_ms, has_ended, &w);

	if (r < 0)
		return r;
	if (ret_why)
		*ret_why = w.outcome;
	return (int)w.blocks;
}

int kvp_ticket_placed(struct kvp_client *c, struct kvp_ticket ticket, uint32_t timeout_ms)
{
	struct warm w = { 0 };
	int r = ticket_await(c, ticket, timeout_ms, is_placed, &w);

	if (r < 0)
		return r;
	return (int)(has_ended(&w) ? w.blocks : w.placed);
}

/* ---- places that are no block's yet ---------------------------------------------------------- */

void pending_begin(struct kvp_prefix *m)
{
	pthread_mutex_lock(&m->client->ring_lock);
	/* First, since the end of a ticket that gave it places unpins it. */
	ring_drain(m->att);
	/* Before extents are looked at. One that was given such a place before is pinned. */
	if (!prefix_pinned(m))
		prefix_pin(m);
}

void pending_end(struct kvp_prefix *m, uint64_t given)
{
	m->given |= given;
	if (m->given && !kvp_load_relaxed(&m->in_given)) {
		m->next_given = m->att->given;
		m->att->given = m;
		kvp_store_relaxed(&m->in_given, 1);
	}
	if (!m->given && !m->lost)
		prefix_unpin(m);
	pthread_mutex_unlock(&m->client->ring_lock);
}

void pending_forget(struct kvp_prefix *m)
{
	pthread_mutex_lock(&m->client->ring_lock);
	if (kvp_load_relaxed(&m->in_given))
		given_unlink(m);
	pthread_mutex_unlock(&m->client->ring_lock);
}

uint64_t pending_find(
	const struct kvp_prefix *m, uint32_t i, uint32_t device, struct kvp_hit *ret_hit)
{
	uint64_t told = 0, bit = 0;

	/*
	 * A chain has one block of each depth, so a ticket of any prefix counts as this one does. Of several the one
	 * that was told last: what another was told before holds no more, and its end is yet to be read.
	 */
	for (const struct warm *w = m->att->early; w; w = w->next_early) {
		const struct place *p;

		if (w->device != device || i < w->first || i - w->first >= w->placed)
			continue;
		p = &w->places[i - w->first];
		if (p->block != m->hits[i].id || p->birth != kvp_word_birth(m->hits[i].word) ||
			p->told < told)
			continue;
		ret_hit->where = p->where;
		ret_hit->offset = p->offset;
		told = p->told;
		bit = bit_of(w);
	}
	return bit;
}

/* ---- reading there --------------------------------------------------------------------------- */

/* What finds an address on a device. */
struct lookup {
	const struct kvp_prefix *m;
	uint32_t device;
	uint32_t flags; /* KVP_DEVICE_PENDING: between pending_begin() and pending_end() */
	uint64_t given; /* tickets of which a place is handed out that is no block's yet */
};

/*
 * Where block i lies on the device, and where that is in this process. -ENOENT: it is not there; -EAGAIN:
 * it is, in an extent that is not mapped here yet; -EOPNOTSUPP: it is, in no host memory.
 */
static inline int find_there(
	struct lookup *k, uint32_t i, struct kvp_hit *ret_hit, const uint8_t **ret_addr)
{
	const struct kvp_prefix *m = k->m;
	uint64_t pending = 0;
	uint32_t extent;

	/* A lease keeps all payloads of the block, so one that has appeared stays. */
	kvp_payload_read(&m->att->view.blocks[m->hits[i].id], m->hits[i].word, KVP_TIER_VRAM,
		&ret_hit->where, &ret_hit->offset);
	if (!ret_hit->where && k->flags & KVP_DEVICE_PENDING)
		pending = pending_find(m, i, k->device, ret_hit);
	extent = kvp_where_extent(ret_hit->where);
	if (!ret_hit->where || extent >= KVP_MAX_EXTENTS ||
		kvp_load_relaxed(&m->att->view.extents[extent].device) != k->device)
		return -ENOENT;
	*ret_addr = hit_addr(m->att, ret_hit);
	if (*ret_addr) {
		k->given |= pending;
		return 0;
	}
	if (kvp_load_relaxed(&m->att->foreign[extent]))
		return -EOPNOTSUPP;
	extent_want(m->att, extent);
	return -EAGAIN;
}

static int may_read(const struct kvp_prefix *m, uint32_t first)
{
	int r = usable(m);

	if (r < 0)
		return r;
	if (first >= all_blocks(m))
		return -ENOENT;
	return m->flags & KVP_MATCHED_LEASED ? 0 : -ENOLCK;
}

int kvp_device_payload(const struct kvp_prefix *m, uint32_t i, uint32_t device,
	struct kvp_payload_info *ret_payload)
{
	struct lookup look = { .m = m, .device = device };
	struct kvp_payload_info p = { 0 };
	const uint8_t *addr;
	struct kvp_hit hit;
	int r = may_read(m, i);

	if (r == 0 && !ret_payload)
		r = -EINVAL;
	if (r == 0)
		r = find_there(&look, i, &hit, &addr);
	if (r < 0)
		return r;
	p.addr = addr;
	p.bytes = kvp_where_bytes(hit.where);
	p.codec = kvp_where_codec(hit.where);
	p.tier = KVP_TIER_VRAM;
	p.tokens = m->hits[i].tokens;
	coded_codecs(m->space->codecs, p.codec, &p.codec_k, &p.codec_v);
	return result_give(ret_payload, &p, sizeof(p));
}

static uint32_t find_run(struct lookup *k, uint32_t first, uint32_t n, const void **ret_addrs)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		const uint8_t *addr;
		struct kvp_hit hit;

		if (find_there(k, first + i, &hit, &addr) < 0 ||
			kvp_where_codec(hit.where) != KVP_CODEC_NATIVE ||
			kvp_where_bytes(hit.where) < k->m->space->geo.block_bytes)
			break;
		ret_addrs[i] = addr;
	}
	return i;
}

int kvp_device_payloads(const struct kvp_prefix *m, uint32_t device, uint32_t first, uint32_t n,
	uint32_t flags, const void **ret_addrs)
{
	struct lookup look = { .m = m, .device = device, .flags = flags };
	/* Handles are const to callers; the pin is the library's own affair. */
	struct kvp_prefix *mine = (struct kvp_prefix *)m;
	int r = may_read(m, first);

	if (r == -ENOENT)
		return 0;
	if (r < 0 || (n && !ret_addrs) || flags & ~KVP_DEVICE_PENDING)
		return r < 0 ? r : -EINVAL;
	if (n > all_blocks(m) - first)
		n = all_blocks(m) - first;
	if (!flags)
		return (int)find_run(&look, first, n, ret_addrs);
	pending_begin(mine);
	n = find_run(&look, first, n, ret_addrs);
	pending_end(mine, look.given);
	return (int)n;
}
