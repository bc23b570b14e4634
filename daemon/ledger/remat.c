/* SPDX-License-Identifier: Apache-2.0 */
/* Wants: chains of which something is missing, from the question to the answer. */
#include "daemon/ledger/remat_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/parked.h"
#include "daemon/ledger/recipe.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/wake.h"
#include "daemon/log.h"
#include "shm/kvp_ring.h"

#define PORTION    256u            /* blocks looked at in one portion: a cache miss each */
#define TRIES      3u              /* offers that a want is given to, one after the other */
#define LOADED_NS  (5 * KVPD_MS)   /* what is loaded is looked at so often */
#define QUEUED_NS  (100 * KVPD_MS) /* an offer that stands is waited for so long, at least */
#define LOAD_MORE  2.0 /* times what loading should take, and at least this, is waited for */
#define LOAD_LEAST 1.0 /* seconds */
#define LOAD_GOES  5.0 /* seconds more whenever something has come: copies come in batches */

/* ---- lists ---------------------------------------------------------------------------------- */

void kvpd_remat_init(struct kvpd_tenant *t)
{
	kvpd_list_init(&t->remat.offers);
	kvpd_list_init(&t->remat.going);
	kvpd_list_init(&t->remat.unsaid);
	kvpd_list_init(&t->remat.queued);
	kvpd_list_init(&t->remat.asked);
	t->remat.look_ns = UINT64_MAX;
}

static void go_on(struct kvpd_want *w, enum kvpd_want_phase phase)
{
	w->phase = phase;
	w->at = 0;
	kvpd_list_remove(&w->link);
	kvpd_list_append(&w->tenant->remat.going, &w->link);
	kvpd_due(w->tenant, KVPD_DUE_REMAT);
}

static void answer_with(struct kvpd_want *w, int status)
{
	w->status = status;
	go_on(w, KVPD_WANT_ANSWER);
}

static void enqueue(struct kvpd_want *w)
{
	struct kvpd_list *head = &w->tenant->remat.queued, *it = head->prev;

	/* From the end: most are needed later than those that came before. */
	for (; it != head; it = it->prev) {
		const struct kvpd_want *q = kvpd_container(it, struct kvpd_want, link);

		if (q->ahead < w->ahead || (q->ahead == w->ahead && q->need_ns <= w->need_ns))
			break;
	}
	w->phase = KVPD_WANT_QUEUED;
	kvpd_list_remove(&w->link);
	kvpd_list_append(it->next, &w->link);
	kvpd_due(w->tenant, KVPD_DUE_REMAT);
}

static void look_by(struct kvpd_tenant *t, uint64_t at)
{
	if (at < t->remat.look_ns)
		t->remat.look_ns = at;
}

/* ---- what it takes --------------------------------------------------------------------------- */

#define PAGE UINT64_C(4096)

static uint64_t bytes_of(uint32_t cap)
{
	const struct kvpd_want *w = NULL;

	return sizeof(*w) + cap * (uint64_t)sizeof(w->block[0]) + kvpd_plan_bytes(cap);
}

/* What all wants of the tenant may take at a time. */
static uint64_t bytes_most(const struct kvpd_tenant *t)
{
	uint64_t part = t->limits.share / KVPD_REMAT_PART;

	return part > KVPD_REMAT_LEAST ? part : KVPD_REMAT_LEAST;
}

/* Charges the tenant for a want of so many bytes, `had` of which it has already. */
static int charge(struct kvpd_tenant *t, uint64_t had, uint64_t bytes)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(60, 3);
	struct kvpd_remat *m = &t->remat;
	uint64_t more;

	if (bytes > bytes_most(t)) {
		kvpd_log_limited(&limit, KVPD_LOG_NOTICE, NULL,
			"tenant %s: a want needs %" PRIu64 " KiB, and its share has %" PRIu64
			" for wants; want a shorter beginning first, or give it a larger share",
			t->name, (bytes >> 10) + 1, bytes_most(t) >> 10);
		return -EDQUOT;
	}
	bytes -= had;
	if (m->bytes + bytes > bytes_most(t))
		return -EAGAIN;
	if (m->bytes + bytes > m->charged) {
		more = (m->bytes + bytes - m->charged + PAGE - 1) / PAGE * PAGE;
		if (!kvpd_meta_charge(t, more))
			return -EDQUOT;
		m->charged += more;
	}
	if (!kvpd_meta_fits(t))
		return -EAGAIN;
	m->bytes += bytes;
	return 0;
}

static void want_free(struct kvpd_want *w)
{
	kvpd_list_remove(&w->link);
	kvpd_list_remove(&w->in_session);
	if (w->session)
		w->session->n_asks--;
	w->tenant->remat.wants--;
	w->tenant->remat.bytes -= w->bytes;
	kvpd_plan_free(w->plan);
	free(w->block);
	free(w);
}

/* ---- its blocks ----------------------------------------------------------------------------- */

static uint32_t block_tokens(const struct kvpd_want *w)
{
	return w->tenant->view.spaces[w->space].canon.block_tokens;
}

static uint32_t tokens_of(const struct kvpd_want *w, uint32_t i)
{
	return kvp_shape_tokens(kvp_load_relaxed(&w->tenant->view.blocks[w->block[i]].shape));
}

/* All blocks but the last one of a chain are whole. */
void kvpd_want_tokens(const struct kvpd_want *w, uint32_t from, uint32_t to, uint64_t *ret_begin,
	uint64_t *ret_end)
{
	*ret_begin = (uint64_t)(w->depth + from) * block_tokens(w);
	*ret_end = from == to
			   ? *ret_begin
			   : (uint64_t)(w->depth + to - 1) * block_tokens(w) + tokens_of(w, to - 1);
}

/* Is the chain as it was? See remat.h. */
static bool remains(const struct kvpd_want *w)
{
	uint64_t word = kvpd_block_word(w->tenant, w->sqe.parent_id);

	return kvp_word_birth(word) == w->sqe.parent_birth &&
	       kvp_word_state(word) != KVP_BLOCK_FREE;
}

static bool is_there(const struct kvpd_tenant *t, uint32_t id)
{
	return kvpd_block_lives(t, id) && kvpd_block_in_dram(t, id);
}

/* How far the blocks up to `end` are there by now; false: not all of them were looked at. */
static bool advance(struct kvpd_want *w, uint32_t end, uint32_t *work)
{
	for (; w->front < end && is_there(w->tenant, w->block[w->front]); w->front++) {
		if (!*work)
			return false;
		(*work)--;
	}
	return true;
}

/* To the tip, for a walk up the chain. */
static void from_tip(struct kvpd_want *w, enum kvpd_want_phase phase)
{
	w->n = 0;
	w->top = false;
	w->up = w->sqe.parent_id;
	w->depth = kvp_load_relaxed(&w->tenant->view.blocks[w->up].depth) + 1;
	go_on(w, phase);
}

/* ---- the entry ------------------------------------------------------------------------------ */

static int judge(const struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	const struct kvpd_tenant *t = s->tenant;
	uint32_t space;
	uint64_t word;

	if (sqe->parent_kind != KVP_PARENT_BLOCK || sqe->parent_id >= t->layout.max_blocks ||
		sqe->count > KVP_WANT_MS_MAX || (sqe->flags & ~KVP_SQE_PREFETCH))
		return -EINVAL;
	word = kvpd_block_word(t, sqe->parent_id);
	if (kvp_word_birth(word) != sqe->parent_birth || kvp_word_state(word) == KVP_BLOCK_FREE)
		return -ENOENT;
	space = kvp_shape_space(kvp_load_relaxed(&t->view.blocks[sqe->parent_id].shape));
	if (!s->opens[space])
		return -EACCES;
	if (t->view.spaces[space].canon.key_bytes)
		return -EOPNOTSUPP;
	if (s->n_asks >= KVP_WANTS || t->remat.wants >= KVPD_REMAT_WANTS)
		return -EAGAIN;
	return 0;
}

void kvpd_want_serve(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	struct kvpd_tenant *t = s->tenant;
	uint32_t id = sqe->parent_id;
	struct kvpd_want *w = NULL;
	int r = judge(s, sqe);

	if (r == 0)
		r = charge(t, 0, sizeof(*w));
	if (r == 0) {
		w = calloc(1, sizeof(*w));
		r = w ? 0 : -ENOMEM;
		t->remat.bytes -= w ? 0 : sizeof(*w);
	}
	if (r < 0) {
		kvpd_ring_answer(s, sqe, r, 0);
		return;
	}
	w->session = s;
	w->tenant = t;
	w->sqe = *sqe;
	w->space = kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape));
	w->ahead = !!(sqe->flags & KVP_SQE_PREFETCH);
	w->need_ns = now + (sqe->count ? sqe->count : KVP_WANT_MS) * KVPD_MS;
	w->until_ns = w->need_ns;
	w->bytes = sizeof(*w);
	kvpd_list_init(&w->link);
	kvpd_list_init(&w->in_session);
	kvpd_list_append(&s->asks, &w->in_session);
	s->n_asks++;
	t->remat.wants++;
	t->remat.wanted++;
	if (kvpd_block_state(t, id) == KVP_BLOCK_RECIPE && !t->block[id].children) {
		kvpd_recipe_unlist(t, id);
		kvpd_recipe_list(t, id, false);
	}
	kvpd_ring_answer(s, sqe, 0, KVP_CQE_PARKED);
	from_tip(w, KVPD_WANT_COUNT);
}

/* ---- phases --------------------------------------------------------------------------------- */

/* Room for the blocks that were counted, which is what the want is charged for. */
static int make_room(struct kvpd_want *w)
{
	int r = charge(w->tenant, w->bytes, bytes_of(w->n));

	if (r < 0)
		return r;
	w->bytes = bytes_of(w->n);
	w->block = calloc(w->n, sizeof(w->block[0]));
	w->cap = w->n;
	return w->block ? 0 : -ENOMEM;
}

/* More are missing than there is room for. */
static void count_again(struct kvpd_want *w)
{
	w->tenant->remat.bytes -= w->bytes - sizeof(*w);
	w->bytes = sizeof(*w);
	free(w->block);
	w->block = NULL;
	w->cap = 0;
	if (++w->counts < TRIES)
		from_tip(w, KVPD_WANT_COUNT);
	else
		answer_with(w, -EAGAIN);
}

/*
 * From the tip up to the first block that is there, and on to the beginning of the chain, where its salt stands if
 * it has one.
 */
static void count(struct kvpd_want *w, uint32_t *work)
{
	struct kvpd_tenant *t = w->tenant;
	int r;

	for (; *work && w->up != KVP_BLOCK_NONE; (*work)--) {
		const struct kvp_block *b = &t->view.blocks[w->up];

		w->top = w->top || is_there(t, w->up);
		if (kvp_load_relaxed(&b->shape) & KVP_SHAPE_SALTED ||
			(!w->top && w->n == KVP_WANT_BLOCKS)) {
			answer_with(w, kvp_load_relaxed(&b->shape) & KVP_SHAPE_SALTED ? -EOPNOTSUPP
										      : -E2BIG);
			return;
		}
		if (!w->top) {
			w->n++;
			w->depth = kvp_load_relaxed(&b->depth);
		}
		w->up = kvp_load_relaxed(&b->parent);
	}
	if (w->up != KVP_BLOCK_NONE)
		return;
	r = w->n ? make_room(w) : 0;
	if (r < 0)
		answer_with(w, r);
	else if (w->n)
		from_tip(w, KVPD_WANT_CLIMB);
	else
		answer_with(w, 0);
}

/* Those that were counted into the array, from its end. More of them may have gone meanwhile. */
static void climb(struct kvpd_want *w, uint32_t *work)
{
	struct kvpd_tenant *t = w->tenant;

	for (; w->up != KVP_BLOCK_NONE && !is_there(t, w->up); (*work)--) {
		if (!*work)
			return;
		if (w->n == w->cap) {
			count_again(w);
			return;
		}
		w->block[w->cap - ++w->n] = w->up;
		w->depth = kvp_load_relaxed(&t->view.blocks[w->up].depth);
		w->up = kvp_load_relaxed(&t->view.blocks[w->up].parent);
	}
	memmove(w->block, w->block + w->cap - w->n, w->n * sizeof(w->block[0]));
	go_on(w, KVPD_WANT_LOOK);
}

static void load(struct kvpd_want *w, double seconds, uint64_t now)
{
	double most = LOAD_MORE * seconds > LOAD_LEAST ? LOAD_MORE * seconds : LOAD_LEAST;
	uint64_t until = now + (uint64_t)(most * 1e9);

	w->phase = KVPD_WANT_LOADED;
	w->until_ns = until < w->need_ns ? until : w->need_ns;
	kvpd_list_remove(&w->link);
	kvpd_list_append(&w->tenant->remat.asked, &w->link);
	look_by(w->tenant, now + LOADED_NS);
}

/* All missing blocks have been looked at. */
static void plan(struct kvpd_want *w, uint64_t now)
{
	struct kvpd_plan *p = w->plan;
	double seconds, most;
	uint64_t begin, end;
	struct kvpd_offer *o;

	kvpd_want_tokens(w, w->front, w->n, &begin, &end);
	o = kvpd_offer_best(w, begin, end, now, &seconds, &most);
	if (o) {
		w->phase = KVPD_WANT_PLAN;
		kvpd_list_remove(&w->link);
		kvpd_plan_make(p, o);
		return;
	}
	w->plan = NULL;
	kvpd_plan_free(p);
	if (kvpd_block_holds(w->tenant, w->block[w->n - 1]))
		load(w, 0, now);
	else
		answer_with(w, w->tries ? -EAGAIN : -ENODEV);
}

static void look(struct kvpd_want *w, uint32_t *work, uint64_t now)
{
	struct kvpd_tenant *t = w->tenant;

	if (!w->plan) {
		if (!advance(w, w->n, work))
			return;
		if (w->front == w->n) {
			answer_with(w, 0);
			return;
		}
		if (kvpd_plan_new(w, w->front) < 0) {
			answer_with(w, -ENOMEM);
			return;
		}
		w->at = w->front;
	}
	for (; *work && w->at < w->n; w->at++, (*work)--) {
		uint32_t id = w->block[w->at], tier = kvpd_block_tier(t, id);
		uint64_t where = tier < KVP_TIER_PAYLOADS
					 ? kvp_load_relaxed(&kvpd_block_payload(t, id, tier)->where)
					 : 0;

		kvpd_plan_add(w->plan, tokens_of(w, w->at), tier, kvp_where_bytes(where));
	}
	if (w->at == w->n)
		plan(w, now);
}

void kvpd_want_planned(
	struct kvpd_want *w, int status, uint32_t begin, uint32_t end, double seconds)
{
	uint64_t now = kvpd_now_ns(), first, last;
	double likely, most;

	if (!w->session) {
		want_free(w);
		return;
	}
	if (status < 0 || !remains(w)) {
		answer_with(w, status < 0 ? status : -ENOENT);
		return;
	}
	if (begin == end) {
		load(w, seconds, now);
		return;
	}
	w->there = w->front;
	w->begin = w->front = begin;
	w->end = end;
	kvpd_want_tokens(w, begin, end, &first, &last);
	if (!kvpd_offer_best(w, first, last, now, &likely, &most)) {
		answer_with(w, w->tries ? -EAGAIN : -ENODEV);
	} else if (likely * 1e9 > (double)(w->need_ns > now ? w->need_ns - now : 0)) {
		answer_with(w, -ETIME);
	} else {
		/* However little it takes: its provider may just be on its way to the next SERVE. */
		uint64_t until = now + (uint64_t)(fmin(most, 1e9) * 1e9) + QUEUED_NS;

		w->asked_ns = now;
		w->until_ns = until < w->need_ns && !w->ahead ? until : w->need_ns;
		enqueue(w);
	}
}

/* What was on its way when it was planned may be there, or not. */
static void look_again(struct kvpd_want *w)
{
	w->front = w->begin = w->there = 0;
	go_on(w, KVPD_WANT_LOOK);
}

void kvpd_want_return(struct kvpd_want *w)
{
	w->offer = NULL;
	if (!w->session)
		want_free(w);
	else if (++w->tries >= TRIES)
		answer_with(w, -EAGAIN);
	else
		look_again(w);
}

/* ---- wants that are computed, loaded, or wait for that ---------------------------------------- */

/* The range that its offer was asked for: is it there, or is it over otherwise? */
static void judge_asked(struct kvpd_want *w, uint32_t *work, uint64_t now)
{
	struct kvpd_remat *m = &w->tenant->remat;
	struct kvpd_offer *o = w->offer;

	if (!remains(w)) {
		/* Not the provider's fault; if it goes on, the next SERVE ends that. */
		kvpd_offer_drop(o);
		w->offer = NULL;
		answer_with(w, -ENOENT);
	} else if (!advance(w, w->end, work)) {
		kvpd_due(w->tenant, KVPD_DUE_REMAT);
	} else if (w->front == w->end) {
		kvpd_offer_met(o, w, now);
		m->tokens += w->tokens;
		w->offer = NULL;
		w->tries = 0;
		look_again(w);
	} else if (now >= w->until_ns) {
		m->late++;
		/* One whose own time is not over keeps its offer, and goes on for nobody. */
		if (now >= o->due_ns)
			kvpd_offer_lose(o, now);
		else
			kvpd_offer_drop(o);
		w->offer = NULL;
		answer_with(w, -ETIME);
	} else if (o->parked && !kvpd_parked_commits(o->session)) {
		/* It is through, and not because its commits wait for a device that still writes. */
		kvpd_offer_returned(o, now);
		kvpd_want_return(w);
	} else {
		look_by(w->tenant, w->until_ns);
	}
}

/* How long it takes may not be known: what gets on is waited for, as long as it is of use. */
static void extend(struct kvpd_want *w, uint64_t now)
{
	uint64_t until = now + (uint64_t)(LOAD_GOES * 1e9);

	until = until < w->need_ns ? until : w->need_ns;
	w->until_ns = until > w->until_ns ? until : w->until_ns;
}

static void judge_loaded(struct kvpd_want *w, uint32_t *work, uint64_t now)
{
	uint32_t before = w->front;
	bool all;

	if (!remains(w)) {
		answer_with(w, -ENOENT);
		return;
	}
	all = advance(w, w->n, work);
	if (w->front > before)
		extend(w, now);
	if (!all)
		kvpd_due(w->tenant, KVPD_DUE_REMAT);
	else if (w->front == w->n)
		answer_with(w, 0);
	else if (now >= w->until_ns)
		answer_with(w, -ETIME);
	else
		look_by(w->tenant, now + LOADED_NS);
}

static void judge_all(struct kvpd_tenant *t, uint32_t *work, uint64_t now)
{
	struct kvpd_list *it, *tmp;

	kvpd_each(it, tmp, &t->remat.asked) {
		struct kvpd_want *w = kvpd_container(it, struct kvpd_want, link);

		if (w->offer)
			judge_asked(w, work, now);
		else
			judge_loaded(w, work, now);
	}
}

/* To the first offer that takes it. */
static void hand(struct kvpd_want *w, uint64_t now)
{
	struct kvpd_tenant *t = w->tenant;
	uint64_t again;

	look_by(t, w->until_ns);
	if (kvpd_want_is_computed(w, now, &again)) {
		look_by(t, again);
		return;
	}
	if (!kvpd_offer_hoped(w, now)) {
		answer_with(w, w->tries ? -EAGAIN : -ENODEV);
		return;
	}
	for (struct kvpd_list *it = t->remat.offers.next; it != &t->remat.offers; it = it->next) {
		struct kvpd_offer *o = kvpd_container(it, struct kvpd_offer, in_tenant);

		if (kvpd_offer_takes(o, w, now, &again)) {
			kvpd_list_remove(&w->link);
			kvpd_list_append(&t->remat.asked, &w->link);
			w->phase = KVPD_WANT_ASKED;
			kvpd_offer_hand(o, w, now);
			look_by(t, w->until_ns);
			return;
		}
		look_by(t, again);
	}
}

static void hand_out(struct kvpd_tenant *t, uint32_t *work, uint64_t now)
{
	struct kvpd_list *it, *tmp;

	kvpd_each(it, tmp, &t->remat.queued) {
		struct kvpd_want *w = kvpd_container(it, struct kvpd_want, link);

		if (!remains(w)) {
			answer_with(w, -ENOENT);
		} else if (!advance(w, w->end, work)) {
			kvpd_due(t, KVPD_DUE_REMAT);
		} else if (w->front == w->end) {
			look_again(w);
		} else if (now >= w->until_ns) {
			kvpd_offer_missed(w, now);
			answer_with(w, -ETIME);
		} else {
			hand(w, now);
		}
	}
}

/* ---- the answer ----------------------------------------------------------------------------- */

static void answer(struct kvpd_want *w)
{
	struct kvpd_session *s = w->session;
	struct kvp_cqe cqe = {
		.op = KVP_OP_WANT,
		.serial = w->sqe.serial,
		.status = w->status,
		.flags = KVP_CQE_LATE,
		.block = KVP_BLOCK_NONE,
		.retry_ms = w->status == -EAGAIN ? KVPD_RETRY_MS : 0,
		.more = w->status == -ENOENT  ? 0
			: w->begin > w->there ? w->depth + w->there
					      : w->depth + w->front,
	};

	if (kvp_cq_room(s->page, s->cq_tail) < KVPD_ROOM_FOR_ONE) {
		kvpd_ring_stall(s, true);
		kvpd_list_remove(&w->link);
		kvpd_list_append(&w->tenant->remat.unsaid, &w->link);
		return;
	}
	kvpd_ring_complete(s, &cqe);
	kvpd_wake_client(s);
	w->tenant->remat.unmet += w->status < 0;
	want_free(w);
}

/* ---- the chore ------------------------------------------------------------------------------ */

static void want_on(struct kvpd_want *w, uint32_t *work, uint64_t now)
{
	if (!w->session) {
		want_free(w);
		return;
	}
	if (w->phase < KVPD_WANT_PLAN && !remains(w))
		answer_with(w, -ENOENT);
	switch (w->phase) {
	case KVPD_WANT_COUNT:
		count(w, work);
		break;
	case KVPD_WANT_CLIMB:
		climb(w, work);
		break;
	case KVPD_WANT_LOOK:
		look(w, work, now);
		break;
	default:
		answer(w);
		break;
	}
}

bool kvpd_remat_step(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_remat *m = &t->remat;
	uint32_t work = PORTION;

	m->look_ns = UINT64_MAX;
	kvpd_offers_tell(t, now);
	judge_all(t, &work, now);
	hand_out(t, &work, now);
	while (work && !kvpd_list_empty(&m->going)) {
		struct kvpd_want *w = kvpd_container(m->going.next, struct kvpd_want, link);

		work--;
		want_on(w, &work, now);
	}
	return !kvpd_list_empty(&m->going);
}

int kvpd_remat_look(struct kvpd_tenant *t, uint64_t now)
{
	uint64_t at = t->remat.look_ns;

	if (at == UINT64_MAX)
		return -1;
	if (now >= at) {
		kvpd_due(t, KVPD_DUE_REMAT);
		return 0;
	}
	return (int)((at - now) / KVPD_MS) + 1;
}

void kvpd_remat_again(struct kvpd_tenant *t)
{
	struct kvpd_remat *m = &t->remat;

	kvpd_list_take_all(&m->going, &m->unsaid);
	if (m->wants || m->n_offers)
		kvpd_due(t, KVPD_DUE_REMAT);
}

void kvpd_remat_end(struct kvpd_session *s)
{
	kvpd_offers_end(s);
	while (!kvpd_list_empty(&s->asks)) {
		struct kvpd_want *w = kvpd_container(s->asks.next, struct kvpd_want, in_session);

		kvpd_list_remove(&w->in_session);
		s->n_asks--;
		w->session = NULL;
		/* What is planned or computed ends by itself. */
		if (w->phase != KVPD_WANT_PLAN && !w->offer)
			want_free(w);
	}
}

void kvpd_remat_free_all(struct kvpd_tenant *t)
{
	struct kvpd_list *list[] = { &t->remat.going, &t->remat.unsaid, &t->remat.queued,
		&t->remat.asked };

	for (uint32_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		while (!kvpd_list_empty(list[i]))
			want_free(kvpd_container(list[i]->next, struct kvpd_want, link));
}
