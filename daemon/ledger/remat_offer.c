/* SPDX-License-Identifier: Apache-2.0 */
/* Offers to compute: their terms, what they are measured by, and how they are lost. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/remat_parts.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/wake.h"
#include "shm/kvp_ring.h"

#define PENALTY_NS     (10000 * KVPD_MS) /* lost for so long at first, and twice as long each time */
#define PENALTY_MAX_NS (64 * PENALTY_NS)
#define GIVEN_BACK     3u             /* so many demands in a row cost an offer */
#define LEARN          .25            /* weight of the last demand in what is measured */
#define LEAST_PART     1e-4           /* of what was said that an offer is believed to take */
#define CLAIMED_NS     (20 * KVPD_MS) /* until somebody else's claim is looked at again */
/* Whatever an offer says: its process may have to wait for a processor, and not be to blame for it. */
#define DUE_LEAST_NS (100 * KVPD_MS)

/* ---- what it takes -------------------------------------------------------------------------- */

double kvpd_offer_seconds(const struct kvpd_offer *o, uint64_t begin, uint64_t end)
{
	double n = (double)(end - begin), mid = ((double)begin + (double)end) / 2;

	return o->terms.launch + n * (o->terms.token + mid * o->terms.position);
}

static bool lost(const struct kvpd_offer *o, uint64_t now)
{
	return now < o->lost_ns;
}

/* May a want count on it? */
static bool stands(const struct kvpd_offer *o, uint64_t now)
{
	return !lost(o, now) && o->session->opens[o->space] &&
	       (o->parked || o->want || !o->terms.idle);
}

static uint64_t ns_of(double seconds)
{
	/* Thirty years stand for all that is more, so that a sum with a moment is a moment. */
	return seconds < 1e9 ? (uint64_t)(seconds * 1e9) : (uint64_t)1e18;
}

/* When it can begin with something else, as far as can be told. */
static uint64_t free_at(const struct kvpd_offer *o, uint64_t now)
{
	uint64_t at = now > o->ready_ns ? now : o->ready_ns, begin, end, through;

	if (o->want) {
		kvpd_want_tokens(o->want, o->want->front, o->want->end, &begin, &end);
		through = now + ns_of(o->part * kvpd_offer_seconds(o, begin, end));
		at = through > at ? through : at;
	}
	return at;
}

/* What is nearer in the queue of a space, in the terms that offers have. */
struct backlog {
	double demands, tokens, products; /* these of tokens and the positions before them */
};

static struct backlog backlog_of(const struct kvpd_want *w)
{
	const struct kvpd_remat *m = &w->tenant->remat;
	struct backlog sum = { 0 };

	for (const struct kvpd_list *it = m->queued.next; it != &m->queued; it = it->next) {
		const struct kvpd_want *q = kvpd_container(it, struct kvpd_want, link);
		uint64_t begin, end;

		if (q == w || q->ahead > w->ahead ||
			(q->ahead == w->ahead && q->need_ns > w->need_ns))
			break;
		if (q->space != w->space)
			continue;
		kvpd_want_tokens(q, q->front, q->end, &begin, &end);
		sum.demands++;
		sum.tokens += (double)(end - begin);
		sum.products += (double)(end - begin) * ((double)begin + (double)end) / 2;
	}
	return sum;
}

static double backlog_seconds(const struct kvpd_offer *o, const struct backlog *b)
{
	return b->demands * o->terms.launch + b->tokens * o->terms.token +
	       b->products * o->terms.position;
}

struct kvpd_offer *kvpd_offer_best(const struct kvpd_want *w, uint64_t begin, uint64_t end,
	uint64_t now, double *ret_seconds, double *ret_most)
{
	struct kvpd_remat *m = &w->tenant->remat;
	struct backlog nearer = backlog_of(w);
	struct kvpd_offer *best = NULL;
	double least = 0;

	for (struct kvpd_list *it = m->offers.next; it != &m->offers; it = it->next) {
		struct kvpd_offer *o = kvpd_container(it, struct kvpd_offer, in_tenant);
		double before, said, likely;

		if (o->space != w->space || end > o->terms.longest || !stands(o, now))
			continue;
		before = (double)(free_at(o, now) - now) * 1e-9;
		said = backlog_seconds(o, &nearer) + kvpd_offer_seconds(o, begin, end);
		likely = before + o->part * said;
		if (best && likely >= least)
			continue;
		best = o;
		least = likely;
		*ret_seconds = likely;
		*ret_most = before / o->part + said;
	}
	return best;
}

/* ---- handing out ---------------------------------------------------------------------------- */

/* Is block `id` of those that somebody is asked for already? */
static bool under_way(const struct kvpd_want *w, uint32_t id, uint32_t depth)
{
	const struct kvpd_remat *m = &w->tenant->remat;

	for (const struct kvpd_list *it = m->asked.next; it != &m->asked; it = it->next) {
		const struct kvpd_want *a = kvpd_container(it, struct kvpd_want, link);

		if (a->offer && depth >= a->depth && depth - a->depth < a->end &&
			a->block[depth - a->depth] == id)
			return true;
	}
	return false;
}

bool kvpd_want_is_computed(const struct kvpd_want *w, uint64_t now, uint64_t *ret_again_ns)
{
	const struct kvpd_tenant *t = w->tenant;
	uint32_t id = w->block[w->front], claimant;

	*ret_again_ns = UINT64_MAX;
	if (under_way(w, id, w->depth + w->front))
		return true;
	/* An engine computes it for itself, and does not need to be asked. */
	claimant = kvp_claim_find(&t->view, kvpd_block_key(t, id), now);
	*ret_again_ns = now + CLAIMED_NS;
	return claimant && (!w->session || claimant != w->session->id);
}

bool kvpd_offer_takes(
	struct kvpd_offer *o, const struct kvpd_want *w, uint64_t now, uint64_t *ret_again_ns)
{
	uint64_t begin, end;

	*ret_again_ns = UINT64_MAX;
	if (o->want || !o->parked || o->space != w->space || !stands(o, now))
		return false;
	kvpd_want_tokens(w, w->front, w->end, &begin, &end);
	if (end > o->terms.longest ||
		now + ns_of(o->part * kvpd_offer_seconds(o, begin, end)) > w->need_ns)
		return false;
	if (now < o->ready_ns) {
		*ret_again_ns = o->ready_ns;
		return false;
	}
	if (kvp_cq_room(o->session->page, o->session->cq_tail) < KVPD_ROOM_FOR_ONE) {
		kvpd_ring_stall(o->session, true);
		return false;
	}
	return true;
}

static void tell(struct kvpd_offer *o, struct kvp_cqe cqe)
{
	cqe.op = KVP_OP_SERVE;
	cqe.serial = o->serial;
	cqe.flags = KVP_CQE_LATE;
	o->parked = false;
	kvpd_ring_complete(o->session, &cqe);
	kvpd_wake_client(o->session);
}

void kvpd_offer_hand(struct kvpd_offer *o, struct kvpd_want *w, uint64_t now)
{
	uint32_t tip = w->block[w->end - 1];
	uint64_t begin, end, most;

	kvpd_want_tokens(w, w->front, w->end, &begin, &end);
	o->said_ns = ns_of(kvpd_offer_seconds(o, begin, end));
	most = o->said_ns > DUE_LEAST_NS ? o->said_ns : DUE_LEAST_NS;
	o->want = w;
	w->offer = o;
	w->asked_ns = now;
	w->tokens = end - begin;
	o->due_ns = now + most;
	w->until_ns = o->due_ns < w->need_ns ? o->due_ns : w->need_ns;
	if (o->terms.rate)
		o->ready_ns = now + (end - begin) * (1000 * KVPD_MS) / o->terms.rate;
	w->tenant->remat.demands++;
	tell(o, (struct kvp_cqe){
			.block = tip,
			.birth = kvp_word_birth(kvpd_block_word(w->tenant, tip)),
			.more = w->end - w->front,
			.offset = most,
			.until_ns = w->until_ns,
		});
}

/* ---- how it ends ---------------------------------------------------------------------------- */

/* What was measured is a part of what was said, so another word begins anew. */
static void take_terms(struct kvpd_offer *o)
{
	const struct kvpd_terms *a = &o->terms, *b = &o->next;

	if (a->launch != b->launch || a->token != b->token || a->position != b->position)
		o->part = 1;
	o->terms = o->next;
}

void kvpd_offer_drop(struct kvpd_offer *o)
{
	o->want = NULL;
	take_terms(o);
}

void kvpd_offer_met(struct kvpd_offer *o, const struct kvpd_want *w, uint64_t now)
{
	struct kvpd_remat *m = &o->session->tenant->remat;
	double said = (double)o->said_ns, took = (double)(now - w->asked_ns);
	double part = said > 0 ? took / said : 1;

	part = part > 1 ? 1 : part < LEAST_PART ? LEAST_PART : part;
	/* The first one says all that is known; what it said itself was a bound. */
	o->part = o->part == 1 ? part : o->part + LEARN * (part - o->part);
	kvpd_offer_drop(o);
	o->given_back = 0;
	o->penalty_ns = PENALTY_NS;
	m->met++;
	m->met_ns += now - w->asked_ns;
}

static void tell_lost(struct kvpd_offer *o, uint64_t now)
{
	if (kvp_cq_room(o->session->page, o->session->cq_tail) < KVPD_ROOM_FOR_ONE)
		kvpd_ring_stall(o->session, true);
	else
		tell(o, (struct kvp_cqe){
				.status = -ETIME,
				.block = KVP_BLOCK_NONE,
				.retry_ms = (uint32_t)((o->lost_ns - now) / KVPD_MS) + 1,
			});
}

void kvpd_offer_lose(struct kvpd_offer *o, uint64_t now)
{
	kvpd_offer_drop(o);
	o->given_back = 0;
	o->missed_ns = 0;
	o->lost_ns = now + o->penalty_ns;
	o->penalty_ns = 2 * o->penalty_ns < PENALTY_MAX_NS ? 2 * o->penalty_ns : PENALTY_MAX_NS;
	if (o->parked)
		tell_lost(o, now);
	kvpd_due(o->session->tenant, KVPD_DUE_REMAT); /* for what hoped for it */
}

void kvpd_offer_returned(struct kvpd_offer *o, uint64_t now)
{
	kvpd_offer_drop(o);
	o->session->tenant->remat.returned++;
	if (++o->given_back >= GIVEN_BACK)
		kvpd_offer_lose(o, now);
}

/* Is the want one of those that it offers to compute? */
static bool could(const struct kvpd_offer *o, const struct kvpd_want *w)
{
	uint64_t begin, end;

	kvpd_want_tokens(w, w->front, w->end, &begin, &end);
	return end <= o->terms.longest;
}

bool kvpd_offer_hoped(const struct kvpd_want *w, uint64_t now)
{
	const struct kvpd_list *head = &w->tenant->remat.offers;

	for (const struct kvpd_list *it = head->next; it != head; it = it->next) {
		const struct kvpd_offer *o = kvpd_container(it, struct kvpd_offer, in_tenant);

		if (o->space == w->space && !lost(o, now) && could(o, w))
			return true;
	}
	return false;
}

void kvpd_offer_missed(const struct kvpd_want *w, uint64_t now)
{
	struct kvpd_list *it, *tmp;

	kvpd_each(it, tmp, &w->tenant->remat.offers) {
		struct kvpd_offer *o = kvpd_container(it, struct kvpd_offer, in_tenant);

		if (o->space != w->space || !stands(o, now) || o->parked || o->want ||
			o->ready_ns > now || !could(o, w))
			continue;
		if (!o->missed_ns)
			o->missed_ns = now;
		else if (w->asked_ns > o->missed_ns) /* not what waited at the same time */
			kvpd_offer_lose(o, now);
	}
}

void kvpd_offers_tell(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_list *it, *tmp;

	kvpd_each(it, tmp, &t->remat.offers) {
		struct kvpd_offer *o = kvpd_container(it, struct kvpd_offer, in_tenant);

		if (o->parked && lost(o, now))
			tell_lost(o, now);
	}
}

static void offer_free(struct kvpd_offer *o)
{
	struct kvpd_want *w = o->want;

	o->want = NULL;
	kvpd_due(o->session->tenant, KVPD_DUE_REMAT);
	kvpd_list_remove(&o->in_tenant);
	kvpd_list_remove(&o->in_session);
	o->session->tenant->remat.n_offers--;
	o->session->n_offers--;
	free(o);
	if (w)
		kvpd_want_return(w);
}

void kvpd_offers_end(struct kvpd_session *s)
{
	while (!kvpd_list_empty(&s->offers))
		offer_free(kvpd_container(s->offers.next, struct kvpd_offer, in_session));
}

static struct kvpd_offer *offer_of(struct kvpd_session *s, uint32_t space)
{
	for (struct kvpd_list *it = s->offers.next; it != &s->offers; it = it->next) {
		struct kvpd_offer *o = kvpd_container(it, struct kvpd_offer, in_session);

		if (o->space == space)
			return o;
	}
	return NULL;
}

void kvpd_offers_closed(struct kvpd_session *s, uint32_t space)
{
	struct kvpd_offer *o = offer_of(s, space);

	if (o)
		offer_free(o);
}

uint32_t kvpd_remat_offers(const struct kvpd_tenant *t, uint64_t now)
{
	const struct kvpd_list *it;
	uint32_t n = 0;

	for (it = t->remat.offers.next; it != &t->remat.offers; it = it->next)
		n += stands(kvpd_container(it, struct kvpd_offer, in_tenant), now);
	return n;
}

/* ---- the entry ------------------------------------------------------------------------------ */

static int judge(const struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	const struct kvpd_tenant *t = s->tenant;

	if (sqe->space >= KVP_MAX_SPACES || !s->opens[sqe->space])
		return -EACCES;
	if (sqe->flags & ~(KVP_SQE_IDLE | KVP_SQE_WITHDRAW))
		return -EINVAL;
	if (sqe->flags & KVP_SQE_WITHDRAW)
		return 0;
	if (t->view.spaces[sqe->space].canon.key_bytes)
		return -EOPNOTSUPP;
	if (!sqe->next_lo || sqe->next_lo > KVP_TOKEN_PS_MAX ||
		sqe->next_hi > KVP_POSITION_FS_MAX || sqe->until > KVP_LAUNCH_NS_MAX ||
		!sqe->parent_id)
		return -EINVAL;
	return 0;
}

static int offer_new(struct kvpd_session *s, uint32_t space, struct kvpd_offer **ret_offer)
{
	struct kvpd_remat *m = &s->tenant->remat;
	struct kvpd_offer *o;

	if (s->n_offers >= KVP_OFFERS || m->n_offers >= KVPD_REMAT_OFFERS)
		return -EAGAIN;
	o = calloc(1, sizeof(*o));
	if (!o)
		return -ENOMEM;
	o->session = s;
	o->space = space;
	o->part = 1;
	o->penalty_ns = PENALTY_NS;
	kvpd_list_append(&m->offers, &o->in_tenant);
	kvpd_list_append(&s->offers, &o->in_session);
	m->n_offers++;
	s->n_offers++;
	*ret_offer = o;
	return 0;
}

static struct kvpd_terms terms_of(const struct kvp_sqe *sqe)
{
	return (struct kvpd_terms){
		.launch = (double)sqe->until * 1e-9,
		.token = (double)sqe->next_lo * 1e-12,
		.position = (double)sqe->next_hi * 1e-15,
		.longest = sqe->parent_id,
		.rate = sqe->count,
		.idle = sqe->flags & KVP_SQE_IDLE,
	};
}

/* One that is lost is remembered: who offers anew has not become any better by that. */
static void withdraw(struct kvpd_offer *o, uint64_t now)
{
	if (o && lost(o, now))
		o->parked = false;
	else if (o)
		offer_free(o);
}

void kvpd_offer_serve(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	struct kvpd_offer *o;
	int r = judge(s, sqe);

	o = r == 0 ? offer_of(s, sqe->space) : NULL;
	if (r == 0 && sqe->flags & KVP_SQE_WITHDRAW) {
		withdraw(o, now);
		kvpd_ring_answer(s, sqe, 0, 0);
		return;
	}
	if (r == 0 && !o)
		r = offer_new(s, sqe->space, &o);
	if (r < 0) {
		kvpd_ring_answer(s, sqe, r, 0);
		return;
	}
	if (lost(o, now)) {
		struct kvp_cqe cqe = {
			.op = sqe->op,
			.serial = sqe->serial,
			.status = -ETIME,
			.block = KVP_BLOCK_NONE,
			.retry_ms = (uint32_t)((o->lost_ns - now) / KVPD_MS) + 1,
		};

		kvpd_ring_complete(s, &cqe);
		return;
	}
	o->next = terms_of(sqe);
	if (!o->want)
		take_terms(o);
	o->missed_ns = 0;
	o->parked = true;
	o->serial = sqe->serial;
	kvpd_ring_answer(s, sqe, 0, KVP_CQE_PARKED);
	kvpd_due(s->tenant, KVPD_DUE_REMAT);
}
