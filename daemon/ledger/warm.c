/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets: runs of blocks on their way to a device. */
#include "daemon/ledger/warm.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/clock.h"
#include "daemon/ledger/advice.h"
#include "daemon/ledger/behind.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/room.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/wake.h"
#include "shm/kvp_ring.h"

#define PORTION 256u /* blocks climbed, looked at or counted in one portion: a cache miss each */
#define COPIES  16u  /* begun in one portion, and slots taken for as many */
#define LOOKS   32u  /* tickets looked at in one */

enum phase { CLIMB, COPY, COUNT, ANSWER };

struct kvpd_ticket {
	struct kvpd_list link;        /* in one of the tenant's lists */
	struct kvpd_list in_session;  /* or an empty list of its own */
	struct kvpd_session *session; /* NULL: it is gone */
	struct kvpd_tenant *tenant;
	struct kvp_sqe sqe;
	uint32_t medium;
	uint32_t ahead; /* KVPD_WARM_*: for what */
	enum phase phase;
	uint32_t n;         /* blocks of the run */
	uint32_t at;        /* how far the phase has come: from the top, but for CLIMB */
	uint32_t under_way; /* copies */
	uint32_t expected;  /* likewise of COPY: the policy was told of what is before */
	uint32_t there;     /* counted */
	int status;
	struct kvpd_room room; /* what was tried for room */
	/* Slots are taken for these, in the order of the run; their copies have not begun. */
	struct copy *held, **held_end;
	uint32_t block[];
};

struct copy {
	struct kvpd_device_copy c;
	struct kvpd_ticket *ticket;
	struct copy *next; /* held */
	uint32_t block;
	struct kvpd_place to;
};

/* ---- lists ---------------------------------------------------------------------------------- */

void kvpd_warm_init(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < KVPD_WARM_KINDS; i++) {
		kvpd_list_init(&t->warming.ready[i]);
		kvpd_list_init(&t->warming.waiting[i]);
	}
}

static void go_on(struct kvpd_ticket *k)
{
	kvpd_list_remove(&k->link);
	kvpd_list_append(&k->tenant->warming.ready[k->ahead], &k->link);
	kvpd_due(k->tenant, KVPD_DUE_WARM);
}

static void wait(struct kvpd_ticket *k)
{
	kvpd_list_remove(&k->link);
	kvpd_list_append(&k->tenant->warming.waiting[k->ahead], &k->link);
}

void kvpd_warm_again(struct kvpd_tenant *t)
{
	struct kvpd_warming *w = &t->warming;

	for (uint32_t i = 0; i < KVPD_WARM_KINDS; i++)
		kvpd_list_take_all(&w->ready[i], &w->waiting[i]);
	if (w->tickets)
		kvpd_due(t, KVPD_DUE_WARM);
	kvpd_behind_again(t);
}

/* The first of the lists that has something; NULL. */
static struct kvpd_list *first_list(struct kvpd_list *lists)
{
	for (uint32_t i = 0; i < KVPD_WARM_KINDS; i++)
		if (!kvpd_list_empty(&lists[i]))
			return &lists[i];
	return NULL;
}

bool kvpd_warm_is_wanted(const struct kvpd_tenant *t)
{
	const struct kvpd_warming *w = &t->warming;

	return !kvpd_list_empty(&w->ready[KVPD_WARM_NEED]) ||
	       !kvpd_list_empty(&w->waiting[KVPD_WARM_NEED]);
}

/* What may be under way has room: one ticket more may use it. */
static void room_under_way(struct kvpd_tenant *t)
{
	struct kvpd_list *from = first_list(t->warming.waiting);

	if (from)
		go_on(kvpd_container(from->next, struct kvpd_ticket, link));
}

/* Is its client told where blocks come to lie before they do? */
static bool is_early(const struct kvpd_ticket *k)
{
	return k->sqe.flags & KVP_SQE_EARLY;
}

/* Nothing is copied to the slots that are held: they and their blocks are anybody's again. False: there were none. */
static bool drop_held(struct kvpd_ticket *k)
{
	struct copy *next;
	bool any = k->held;

	for (struct copy *c = k->held; c; c = next) {
		next = c->next;
		k->tenant->block[c->block].flags &= ~KVPD_BLOCK_MOVING;
		kvpd_slot_clear(c->to, KVPD_SLOT_TARGET);
		k->tenant->warming.held--;
		free(c);
	}
	k->held = NULL;
	k->held_end = &k->held;
	return any;
}

static void free_ticket(struct kvpd_ticket *k)
{
	(void)drop_held(k);
	if (k->session)
		k->session->n_tickets--;
	kvpd_list_remove(&k->in_session);
	kvpd_list_remove(&k->link);
	k->tenant->warming.tickets--;
	k->tenant->warming.advised -= k->ahead == KVPD_WARM_ADVISED;
	free(k);
}

/* ---- the entry ------------------------------------------------------------------------------ */

static int judge(const struct kvpd_session *s, const struct kvp_sqe *sqe, uint32_t *ret_n)
{
	const struct kvpd_tenant *t = s->tenant;
	const uint32_t most = sqe->flags & KVP_SQE_EARLY ? KVP_WARM_EARLY_BLOCKS : KVP_WARM_BLOCKS;
	const struct kvp_block *b;
	uint64_t word;
	int r;

	if (!t->ledger->n_media)
		return -EOPNOTSUPP;
	if (sqe->parent_kind != KVP_PARENT_BLOCK || sqe->parent_id >= t->layout.max_blocks ||
		sqe->count > most || (sqe->flags & ~(KVP_SQE_PREFETCH | KVP_SQE_EARLY)))
		return -EINVAL;
	r = sqe->grant < KVP_MAX_DEVICES ? kvpd_medium_serves(t, sqe->grant + 1) : -ENODEV;
	if (r < 0)
		return r;
	b = &t->view.blocks[sqe->parent_id];
	word = kvpd_block_word(t, sqe->parent_id);
	if (kvp_word_birth(word) != sqe->parent_birth || !kvpd_block_lives(t, sqe->parent_id))
		return -ENOENT;
	if (!s->opens[kvp_shape_space(kvp_load_relaxed(&b->shape))])
		return -EACCES;
	if (s->n_tickets >= KVP_WARM_TICKETS)
		return -EAGAIN;
	*ret_n = kvp_load_relaxed(&b->depth) + 1;
	if (sqe->count && *ret_n > sqe->count)
		*ret_n = sqe->count;
	if (*ret_n > most)
		*ret_n = most;
	return 0;
}

static struct kvpd_ticket *new_ticket(struct kvpd_tenant *t, const struct kvp_sqe *sqe, uint32_t n)
{
	struct kvpd_ticket *k = calloc(1, sizeof(*k) + n * sizeof(k->block[0]));

	if (!k)
		return NULL;
	k->tenant = t;
	k->sqe = *sqe;
	k->medium = sqe->grant + 1;
	k->n = n;
	k->held_end = &k->held;
	kvpd_list_init(&k->link);
	kvpd_list_init(&k->in_session);
	t->warming.tickets++;
	return k;
}

void kvpd_warm_serve(struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	struct kvpd_ticket *k = NULL;
	uint32_t n = 0;
	int r = judge(s, sqe, &n);

	if (r == 0) {
		k = new_ticket(s->tenant, sqe, n);
		r = k ? 0 : -ENOMEM;
	}
	if (r < 0) {
		kvpd_ring_answer(s, sqe, r, 0);
		return;
	}
	k->session = s;
	k->ahead = sqe->flags & KVP_SQE_PREFETCH ? KVPD_WARM_AHEAD : KVPD_WARM_NEED;
	kvpd_list_append(&s->tickets, &k->in_session);
	s->n_tickets++;
	kvpd_ring_answer(s, sqe, 0, KVP_CQE_PARKED);
	go_on(k);
}

bool kvpd_warm_advised(struct kvpd_tenant *t, uint32_t medium, uint32_t block)
{
	struct kvp_sqe sqe = { .grant = medium - 1, .parent_id = block };
	struct kvpd_ticket *k;
	struct kvpd_place p;
	uint32_t n;

	if (t->warming.advised >= KVPD_WARM_MOST_ADVISED || kvpd_medium_serves(t, medium) < 0)
		return false;
	/* The ranking is of a while ago. */
	if (block >= t->layout.max_blocks || !kvpd_block_lives(t, block) ||
		!kvpd_block_in_dram(t, block) || kvpd_block_place(t, block, KVP_TIER_VRAM, &p) ||
		t->block[block].flags & KVPD_BLOCK_MOVING)
		return true;
	sqe.parent_birth = kvp_word_birth(kvpd_block_word(t, block));
	n = kvp_load_relaxed(&t->view.blocks[block].depth) + 1;
	k = new_ticket(t, &sqe, n < KVPD_WARM_RUN_ADVISED ? n : KVPD_WARM_RUN_ADVISED);
	if (!k)
		return false;
	k->ahead = KVPD_WARM_ADVISED;
	t->warming.advised++;
	go_on(k);
	return true;
}

void kvpd_warm_end(struct kvpd_session *s)
{
	while (!kvpd_list_empty(&s->tickets)) {
		struct kvpd_ticket *k =
			kvpd_container(s->tickets.next, struct kvpd_ticket, in_session);

		kvpd_list_remove(&k->in_session);
		k->session = NULL;
		go_on(k);
	}
	s->n_tickets = 0;
}

/* ---- copies --------------------------------------------------------------------------------- */

static void stop(struct kvpd_ticket *k, int status)
{
	if (!k->status)
		k->status = status;
	k->at = k->n;
}

static struct copy *copy_of(struct kvpd_device_work *w)
{
	return kvpd_container(kvpd_container(w, struct kvpd_device_copy, work), struct copy, c);
}

/* The payload is there: it appears, the word staying what it is. */
static void appear(struct kvpd_tenant *t, const struct copy *c, uint64_t now)
{
	const uint64_t where =
		kvp_load_relaxed(&kvpd_block_payload(t, c->block, KVP_TIER_DRAM)->where);
	const uint32_t medium = c->to.extent->cls->medium;

	c->to.extent->slot[c->to.slot].block = c->block;
	kvpd_block_lay(
		t, c->block, c->to, kvp_where_codec(where), kvp_where_bytes(where), c->c.checksum);
	kvp_bump(&t->view.devices[medium - 1].to_device_bytes, c->c.bytes);
	kvpd_part_enter(t, medium, c->block, now);
	t->part[medium - 1].warmed++;
	t->part[medium - 1].ahead += c->ticket->ahead != KVPD_WARM_NEED;
	kvpd_advice_came(t->advice, c->block, c->ticket->ahead == KVPD_WARM_ADVISED);
	t->block[c->block].flags &= ~KVPD_BLOCK_AHEAD;
	t->block[c->block].flags |= c->ticket->ahead ? KVPD_BLOCK_AHEAD : 0;
}

/* What comes after a block that failed would not be counted: it is not copied. */
static void fail(struct kvpd_ticket *k, int status)
{
	stop(k, status);
	if (drop_held(k))
		kvpd_warm_again(k->tenant);
}

/*
 * A slot whose copy failed goes back although its client may have been told of it, and a kernel there may be
 * reading it: what it reads are bytes of its own tenant, mapped for reading alone, and it asks what has become of the
 * ticket before it believes in them. That the memory stays mapped under the reader is up to its library, which
 * lets go of no extent that it gave addresses in before these are given up.
 */
static void copied(struct kvpd_device_work *w)
{
	struct copy *c = copy_of(w);
	struct kvpd_ticket *k = c->ticket;
	struct kvpd_tenant *t = k->tenant;

	kvpd_ledger_charge(t->ledger, t);
	t->changes++;
	t->n_jobs--;
	t->warming.copies--;
	t->warming.bytes -= c->c.bytes;
	t->block[c->block].flags &= ~KVPD_BLOCK_MOVING;
	if (w->status == 0)
		appear(t, c, kvpd_now_ns());
	else
		fail(k, w->status);
	t->part[k->medium - 1].damaged += w->status == -EBADMSG;
	kvpd_slot_missed(c->to, c->c.late);
	/* Another one may wait for the very block, or for what may be under way. */
	if (--k->under_way == 0)
		kvpd_warm_again(t);
	else
		room_under_way(t);
	free(c);
}

/*
 * The slot is the block's: nobody else begins to copy the block, and its source stays. 0, or -ENOMEM: the slot is
 * free again.
 */
static int hold(struct kvpd_ticket *k, uint32_t block, struct kvpd_place to)
{
	struct copy *c = calloc(1, sizeof(*c));

	if (!c) {
		kvpd_slot_clear(to, KVPD_SLOT_TARGET);
		return -ENOMEM;
	}
	c->ticket = k;
	c->block = block;
	c->to = to;
	*k->held_end = c;
	k->held_end = &c->next;
	k->tenant->warming.held++;
	k->tenant->block[block].flags |= KVPD_BLOCK_MOVING;
	return 0;
}

static int begin_copy(struct kvpd_ticket *k, struct copy *c, struct kvpd_place from)
{
	struct kvpd_tenant *t = k->tenant;
	const struct kvp_payload_desc *d = kvpd_block_payload(t, c->block, KVP_TIER_DRAM);
	uint64_t sum = kvp_load_relaxed(&d->checksum);
	int r;

	c->c = (struct kvpd_device_copy){
		.work.done = copied,
		.way = KVPD_TO_DEVICE,
		.kind = k->ahead ? KVPD_COPY_AHEAD : KVPD_COPY_URGENT,
		.flags = sum ? KVPD_COPY_CHECK : KVPD_COPY_SUM,
		.tenant = t->id,
		.seg = kvpd_segment_id(c->to.extent),
		.host = kvpd_host_id(from.extent, k->medium),
		.seg_off = kvpd_place_offset(c->to),
		.host_off = kvpd_place_offset(from),
		.bytes = kvp_where_bytes(kvp_load_relaxed(&d->where)),
		.checksum = sum,
	};
	r = kvpd_device_copy(t->ledger->medium[k->medium - 1].device, &c->c);
	if (r < 0)
		return r;
	k->held = c->next;
	if (!k->held)
		k->held_end = &k->held;
	t->warming.held--;
	t->n_jobs++;
	t->warming.copies++;
	t->warming.bytes += c->c.bytes;
	k->under_way++;
	return 0;
}

static bool under_way_full(const struct kvpd_ticket *k)
{
	const struct kvpd_warming *w = &k->tenant->warming;
	uint32_t part = 1u << k->ahead; /* of what there may be: others wait for theirs */

	return w->copies >= KVPD_WARM_COPIES / part || w->bytes >= KVPD_WARM_BYTES / part;
}

/* Begins copies to slots that are held, as many as may be under way, `most` at most. Returns how many. */
static uint32_t begin_held(struct kvpd_ticket *k, uint32_t most)
{
	uint32_t n = 0;

	while (k->held && n < most && !under_way_full(k)) {
		struct kvpd_place from;
		/* The block is kept, but the device may have to be told of its extent anew. */
		int r = kvpd_block_place(k->tenant, k->held->block, KVP_TIER_DRAM, &from)
				? kvpd_host_want(from.extent, k->medium, false)
				: -ENOENT;

		if (r > 0)
			r = begin_copy(k, k->held, from);
		else if (r == 0)
			break;
		if (r < 0)
			fail(k, r);
		else
			n++;
	}
	return n;
}

/* ---- phases: each returns false when the ticket waits --------------------------------------- */

/* Is the chain as it was? See warm.h. */
static bool stands(const struct kvpd_ticket *k)
{
	return kvp_word_birth(kvpd_block_word(k->tenant, k->sqe.parent_id)) ==
		       k->sqe.parent_birth &&
	       kvpd_block_lives(k->tenant, k->sqe.parent_id);
}

static void next_phase(struct kvpd_ticket *k, enum phase phase)
{
	k->phase = phase;
	k->at = 0;
}

/* From the tip, which goes to the end. */
static void climb(struct kvpd_ticket *k, uint32_t *work)
{
	struct kvpd_tenant *t = k->tenant;

	if (!k->at) {
		k->block[k->n - 1] = k->sqe.parent_id;
		k->at = 1;
	}
	for (; *work && k->at < k->n; k->at++, (*work)--)
		k->block[k->n - 1 - k->at] =
			kvp_load_relaxed(&t->view.blocks[k->block[k->n - k->at]].parent);
	if (k->at == k->n)
		next_phase(k, COPY);
}

/* 1: it is there, or this is its slot; 0: wait; negative errno. */
static int bring(struct kvpd_ticket *k, uint32_t block, uint64_t now, struct kvpd_place *to)
{
	struct kvpd_tenant *t = k->tenant;
	struct kvpd_place from;
	uint64_t bytes;
	int r;

	k->room.again = false;
	if (kvpd_block_place(t, block, KVP_TIER_VRAM, to) &&
		!(t->block[block].flags & KVPD_BLOCK_MOVING))
		return to->extent->cls->medium == k->medium ? 1 : -EBUSY;
	if (t->block[block].flags & KVPD_BLOCK_MOVING)
		return 0;
	if (!kvpd_block_place(t, block, KVP_TIER_DRAM, &from))
		return -ENOENT;
	r = kvpd_medium_open(t->ledger, k->medium);
	if (r == 0)
		r = kvpd_host_want(from.extent, k->medium, false);
	if (r <= 0)
		return r;
	/*
	 * Whoever is told has a slot for all of it at once; what is copied at a time is the same for all. But ahead of
	 * need a block would be kept from those that need it while these fill what may be under way.
	 */
	if ((!is_early(k) || k->ahead) && under_way_full(k))
		return 0;
	bytes = kvp_where_bytes(
		kvp_load_relaxed(&kvpd_block_payload(t, block, KVP_TIER_DRAM)->where));
	/* What comes by advice is nothing that the policy makes room for. */
	if (k->expected == k->at && k->ahead != KVPD_WARM_ADVISED) {
		kvpd_part_expect(t, k->medium, block, now);
		k->expected++;
	}
	r = k->ahead == KVPD_WARM_ADVISED
		    ? kvpd_room_below(t, k->medium, bytes, k->sqe.parent_id, now, &k->room, to)
		    : kvpd_room_take(t, k->medium, bytes, now, &k->room, to);
	if (r > 0 && hold(k, block, *to) < 0)
		r = -ENOMEM;
	return r;
}

/* Can its client be told of one more? */
static bool may_tell(struct kvpd_ticket *k)
{
	struct kvpd_session *s = k->session;

	if (!is_early(k) || kvp_cq_room(s->page, s->cq_tail) >= KVPD_ROOM_FOR_ONE)
		return true;
	kvpd_ring_stall(s, true);
	return false;
}

/* Of the block at k->at: it lies there, or is what was held last. */
static void tell(struct kvpd_ticket *k, struct kvpd_place p)
{
	const uint32_t block = k->block[k->at];
	const uint32_t tier = p.extent->slot[p.slot].block == block ? KVP_TIER_VRAM : KVP_TIER_DRAM;
	/* The copy is of the same width and as long as what it is made of. */
	const uint64_t where = kvp_load_relaxed(&kvpd_block_payload(k->tenant, block, tier)->where);
	const struct kvp_cqe cqe = {
		.op = KVP_OP_WARM,
		.serial = k->sqe.serial,
		.flags = KVP_CQE_PLACE,
		.grant = k->sqe.grant,
		.grant_generation = kvp_where_codec(where),
		.extent = p.extent->id,
		.bytes = kvp_where_bytes(where),
		.offset = kvpd_place_offset(p),
		.block = block,
		.birth = kvp_word_birth(kvpd_block_word(k->tenant, block)),
		.more = k->at,
	};

	kvpd_ring_complete(k->session, &cqe);
}

/* Slots for what comes next of the run, and copies there. False: it waits. */
static bool take(struct kvpd_ticket *k, uint32_t *work, uint64_t now)
{
	uint32_t slots = COPIES, begun = begin_held(k, COPIES);

	while (k->at < k->n) {
		struct kvpd_place to;
		int r;

		if (!*work || !slots)
			return true;
		if (!may_tell(k))
			return false;
		(*work)--;
		r = bring(k, k->block[k->at], now, &to);
		if (r == 0)
			/* What it waits for goes on in portions of its own. */
			return k->room.again || (k->held && begun == COPIES);
		if (r < 0) {
			stop(k, r);
			break;
		}
		if (is_early(k))
			tell(k, to);
		k->expected = ++k->at;
		slots--;
		begun += begin_held(k, COPIES - begun);
	}
	/* What is held still goes on when there is room in what may be under way. */
	return k->held ? begun == COPIES : !k->under_way;
}

static bool copy(struct kvpd_ticket *k, uint32_t *work, uint64_t now)
{
	struct kvpd_session *s = k->session;
	uint32_t told = s ? s->cq_tail : 0;
	bool on;

	if ((k->at < k->n || k->held) && !s && k->ahead != KVPD_WARM_ADVISED)
		fail(k, -ECANCELED);
	on = take(k, work, now);
	if (s && s->cq_tail != told)
		kvpd_wake_client(s);
	if (k->at == k->n && !k->held && !k->under_way)
		next_phase(k, COUNT);
	return on;
}

static void count(struct kvpd_ticket *k, uint32_t *work)
{
	struct kvpd_place p;

	for (; *work && k->at < k->n; k->at++, (*work)--) {
		if (!kvpd_block_place(k->tenant, k->block[k->at], KVP_TIER_VRAM, &p) ||
			p.extent->cls->medium != k->medium)
			break;
		k->there++;
	}
	if (*work || k->at == k->n)
		k->phase = ANSWER;
}

/* False: its client takes no more answers now. */
static bool answer(struct kvpd_ticket *k)
{
	struct kvpd_session *s = k->session;
	struct kvp_cqe cqe = {
		.op = KVP_OP_WARM,
		.serial = k->sqe.serial,
		.status = k->status,
		.flags = KVP_CQE_LATE,
		.grant = k->sqe.grant,
		.block = KVP_BLOCK_NONE,
		.retry_ms = k->status == -EAGAIN || k->status == -ENOSPC ? KVPD_RETRY_MS : 0,
		.more = k->there,
	};

	if (s) {
		if (kvp_cq_room(s->page, s->cq_tail) < KVPD_ROOM_FOR_ONE) {
			kvpd_ring_stall(s, true);
			return false;
		}
		/* It was whole when it was counted, if nothing went meanwhile. */
		if (!cqe.status && k->there < k->n)
			cqe.status = -ENOENT;
		kvpd_ring_complete(s, &cqe);
		kvpd_wake_client(s);
	}
	free_ticket(k);
	return true;
}

/* ---- the chore ------------------------------------------------------------------------------ */

static void ticket_on(struct kvpd_ticket *k, uint32_t *work, uint64_t now)
{
	bool on = true;

	if (k->phase < ANSWER && !stands(k)) {
		/* What is under way is waited for; nothing of the chain is looked at any more. */
		fail(k, -ENOENT);
		k->phase = k->under_way ? COPY : ANSWER;
		k->there = 0;
	}
	if (k->phase == CLIMB)
		climb(k, work);
	if (k->phase == COPY)
		on = copy(k, work, now);
	if (k->phase == COUNT)
		count(k, work);
	if (k->phase == ANSWER) {
		if (!answer(k))
			wait(k);
		return;
	}
	if (on)
		go_on(k);
	else
		wait(k);
}

bool kvpd_warm_step(struct kvpd_tenant *t, uint64_t now)
{
	uint32_t work = PORTION;

	for (uint32_t i = 0; i < LOOKS && work; i++) {
		struct kvpd_list *from = first_list(t->warming.ready);

		if (!from)
			return false;
		work--;
		ticket_on(kvpd_container(from->next, struct kvpd_ticket, link), &work, now);
		if (kvpd_now_ns() - now >= KVPD_SLICE_NS)
			break;
	}
	return first_list(t->warming.ready) != NULL;
}

void kvpd_warm_free_all(struct kvpd_tenant *t)
{
	kvpd_warm_again(t);
	for (struct kvpd_list *from; (from = first_list(t->warming.ready));)
		free_ticket(kvpd_container(from->next, struct kvpd_ticket, link));
}
