/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices: which there are, having blocks copied to one, and reading them there.
 *
 * A copy to a device changes nothing of what a prefix has: a payload appears beside the one in DRAM, and
 * the lease that holds the prefix holds it too (kvp_abi.h, the payload rule). So the hot path knows
 * nothing of devices, and whoever wants to read there looks at the descriptor when it does.
 */
#include "libclient/match.h"
#include "libclient/ring.h"

#include <assert.h>
#include <string.h>

static_assert(KVP_CLIENT_DEVICES == KVP_MAX_DEVICES, "kvpool.h tells the limit");
static_assert(KVP_CLIENT_WARM_BLOCKS == KVP_WARM_BLOCKS, "kvpool.h tells the limit");
static_assert(KVP_DEVICE_IS_UP == KVP_DEVICE_UP, "kvpool.h gives the state");
static_assert(KVP_CLIENT_WARMS == KVP_WARM_TICKETS, "kvpool.h tells the limit");

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

static void warm_end(struct warm *w, int outcome, uint32_t blocks)
{
	w->outcome = outcome;
	w->blocks = blocks;
	if (w->held) {
		prefix_drop(w->held);
		w->held = NULL;
		w->att->n_prefetches--;
	}
}

int warm_answer(struct attachment *att, const struct kvp_cqe *cqe)
{
	struct warm *w = &att->warms[cqe->serial % N_WARMS];

	if (!w->used || w->serial != cqe->serial || w->outcome != OUTCOME_UNKNOWN ||
		cqe->flags & KVP_CQE_PARKED)
		return 0;
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
static struct warm *warm_begin(struct attachment *att, uint32_t n)
{
	struct warm *w = &att->warms[(att->warm_serial + 1) % N_WARMS];

	if (w->used && w->outcome == OUTCOME_UNKNOWN)
		return NULL;
	*w = (struct warm){
		.att = att,
		.serial = ++att->warm_serial,
		.used = 1,
		.outcome = OUTCOME_UNKNOWN,
		.asked = n,
	};
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
	*w = (struct warm){ 0 };
	return error;
}

int warm_submit(struct attachment *att, struct kvp_sqe *sqe, uint32_t n, struct kvp_prefix *keep,
	uint64_t deadline, struct kvp_ticket *ret_ticket)
{
	struct kvp_ticket ticket;
	struct warm *w;
	int r;

	ring_drain(att);
	w = att->stuck || kvp_load_seq(&att->dead) ? NULL : warm_begin(att, n);
	if (!w)
		return -EAGAIN;
	ticket = ticket_make(att, w);
	sqe->serial = w->serial;
	w->held = keep;
	att->n_prefetches += keep != NULL;
	r = ring_submit(att, sqe, deadline);
	if (r < 0)
		r = warm_undo(w, r);
	if (r == 0 && keep)
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

	pthread_mutex_lock(&c->ring_lock);
	r = warm_submit(m->att, &sqe, n, keep ? m : NULL, deadline, ret_ticket);
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
	uint32_t have = all_blocks(m), n;

	if (o->first >= have)
		return 0;
	n = o->n && o->n < have - o->first ? o->n : have - o->first;
	return n < KVP_CLIENT_WARM_BLOCKS ? n : KVP_CLIENT_WARM_BLOCKS;
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
	if (!ret_ticket || o.flags & ~KVP_WARM_PREFETCH || o.device >= KVP_CLIENT_DEVICES)
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

int kvp_ticket_wait(
	struct kvp_client *c, struct kvp_ticket ticket, uint32_t timeout_ms, int *ret_why)
{
	struct attachment *att;
	struct warm *w = NULL;
	uint64_t deadline;
	int r = 0, why = 0;

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
		w = warm_of(att, ticket.opaque[1]);
		if (!w)
			r = -EINVAL;
		else if (w->outcome != OUTCOME_UNKNOWN)
			break;
		else
			r = timeout_ms ? ring_wait(att, deadline) : -ETIMEDOUT;
	}
	if (r == 0) {
		r = (int)w->blocks;
		why = w->outcome;
	}
	if (att)
		att->refs--;
	pthread_mutex_unlock(&c->ring_lock);
	if (r == 0 && why == -ESHUTDOWN)
		return why;
	if (r >= 0 && ret_why)
		*ret_why = why;
	return r;
}

/* ---- reading there --------------------------------------------------------------------------- */

/*
 * Where block i lies on the device, and where that is in this process. -ENOENT: it is not there; -EAGAIN:
 * it is, in an extent that is not mapped here yet; -EOPNOTSUPP: it is, in no host memory.
 */
static inline int find_there(const struct kvp_prefix *m, uint32_t i, uint32_t device,
	struct kvp_hit *ret_hit, const uint8_t **ret_addr)
{
	uint32_t extent;

	/* A lease keeps all payloads of the block, so one that has appeared stays. */
	kvp_payload_read(&m->att->view.blocks[m->hits[i].id], m->hits[i].word, KVP_TIER_VRAM,
		&ret_hit->where, &ret_hit->offset);
	extent = kvp_where_extent(ret_hit->where);
	if (!ret_hit->where || extent >= KVP_MAX_EXTENTS ||
		kvp_load_relaxed(&m->att->view.extents[extent].device) != device)
		return -ENOENT;
	*ret_addr = hit_addr(m->att, ret_hit);
	if (*ret_addr)
		return 0;
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
	struct kvp_payload_info p = { 0 };
	const uint8_t *addr;
	struct kvp_hit hit;
	int r = may_read(m, i);

	if (r == 0 && !ret_payload)
		r = -EINVAL;
	if (r == 0)
		r = find_there(m, i, device, &hit, &addr);
	if (r < 0)
		return r;
	p.addr = addr;
	p.bytes = kvp_where_bytes(hit.where);
	p.codec = kvp_where_codec(hit.where);
	p.tier = KVP_TIER_VRAM;
	p.tokens = m->hits[i].tokens;
	return result_give(ret_payload, &p, sizeof(p));
}

int kvp_device_payloads(const struct kvp_prefix *m, uint32_t device, uint32_t first, uint32_t n,
	const void **ret_addrs)
{
	uint32_t i;
	int r = may_read(m, first);

	if (r == -ENOENT)
		return 0;
	if (r < 0 || (n && !ret_addrs))
		return r < 0 ? r : -EINVAL;
	if (n > all_blocks(m) - first)
		n = all_blocks(m) - first;
	for (i = 0; i < n; i++) {
		const uint8_t *addr;
		struct kvp_hit hit;

		if (find_there(m, first + i, device, &hit, &addr) < 0 ||
			kvp_where_codec(hit.where) != KVP_CODEC_NATIVE ||
			kvp_where_bytes(hit.where) < m->space->geo.block_bytes)
			break;
		ret_addrs[i] = addr;
	}
	return (int)i;
}
