/* SPDX-License-Identifier: Apache-2.0 */
/* Entries that wait for their moments. */
#include "daemon/ledger/parked.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/ledger/commit.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/marks.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "shm/kvp_lease.h"
#include "shm/kvp_ring.h"

struct entry {
	struct kvp_sqe sqe;
	uint32_t generation; /* COMMIT: of the space */
};

struct kvpd_parked {
	struct entry entry[2 * KVP_MAX_GRANTS];
	uint32_t n;
	uint32_t n_flushes;
	uint32_t timelines;             /* a bit for each that is awaited, */
	uint64_t awaits[KVP_TIMELINES]; /* and up to where, as the page has it */
	bool more;                      /* the last look did not come to its end */
};

/* ---- what is awaited ------------------------------------------------------------------------ */

static bool parent_waits(const struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	const struct kvpd_outcome *o = &s->outcome[sqe->parent_id % KVP_SERIALS];

	return sqe->parent_kind == KVP_PARENT_SERIAL && o->serial == sqe->parent_id && o->parked;
}

static void await(struct kvpd_session *s, uint32_t timeline, uint64_t value)
{
	s->parked->timelines |= UINT32_C(1) << timeline;
	s->parked->awaits[timeline] = value;
	kvp_store_seq(&s->page->awaits[timeline], value);
}

/* What waits for its parent is looked at when that has been published, and not for its own moment. */
static void await_for(struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	const struct kvpd_parked *p = s->parked;
	uint32_t t = kvp_until_timeline(sqe->until);

	if (sqe->op != KVP_OP_COMMIT || !sqe->until || parent_waits(s, sqe))
		return;
	if (!(p->timelines >> t & 1) || p->awaits[t] > kvp_until_value(sqe->until))
		await(s, t, kvp_until_value(sqe->until));
}

static void await_anew(struct kvpd_session *s)
{
	struct kvpd_parked *p = s->parked;

	for (uint32_t left = p->timelines; left; left &= left - 1)
		await(s, (uint32_t)__builtin_ctz(left), 0);
	p->timelines = 0;
	for (uint32_t i = 0; i < p->n; i++)
		await_for(s, &p->entry[i].sqe);
}

uint32_t kvpd_parked_commits(const struct kvpd_session *s)
{
	return s->parked ? s->parked->n - s->parked->n_flushes : 0;
}

bool kvpd_parked_awaits(const struct kvpd_session *s)
{
	return s->parked && s->parked->timelines;
}

bool kvpd_parked_ready(const struct kvpd_session *s)
{
	const struct kvpd_parked *p = s->parked;

	if (!p || !p->n)
		return false;
	for (uint32_t left = p->timelines; left; left &= left - 1) {
		uint32_t t = (uint32_t)__builtin_ctz(left);

		/* Sequentially consistent, after await(): see parked.h. */
		if (kvp_load_seq(&s->page->done[t].value) >= p->awaits[t])
			return true;
	}
	return p->more;
}

/* ---- parking -------------------------------------------------------------------------------- */

static int park(struct kvpd_session *s, const struct kvp_sqe *sqe, uint32_t generation)
{
	struct kvpd_parked *p = s->parked;

	if (!p)
		p = s->parked = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->entry[p->n++] = (struct entry){ .sqe = *sqe, .generation = generation };
	kvpd_ring_answer(s, sqe, 0, KVP_CQE_PARKED);
	return 1;
}

int kvpd_park_commit(struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	const struct kvpd_tenant *t = s->tenant;
	struct kvpd_grant *g;
	int r;

	if (!parent_waits(s, sqe) && (!sqe->until || kvp_until_come(s->page, sqe->until)))
		return 0;
	/* What is to be refused is refused at once. */
	g = kvpd_grant_of(s, sqe->grant, sqe->grant_generation);
	if (!g || g->state != KVPD_GRANT_WRITING || sqe->space >= KVP_MAX_SPACES ||
		(sqe->until && kvp_until_timeline(sqe->until) >= KVP_TIMELINES))
		return 0;
	r = park(s, sqe, t->view.spaces[sqe->space].generation);
	if (r < 0)
		return r;
	g->state = KVPD_GRANT_PARKED;
	s->outcome[sqe->serial % KVP_SERIALS] = (struct kvpd_outcome){
		.serial = sqe->serial, .parked = 1, .block = KVP_BLOCK_NONE
	};
	await_for(s, sqe);
	if (g->place.extent->cls->medium != KVPD_DRAM)
		kvpd_marks_await(s);
	return r;
}

int kvpd_park_flush(struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	int r;

	if (!s->parked || !s->parked->n)
		return 0;
	if (s->parked->n_flushes == KVP_MAX_GRANTS)
		return -EAGAIN;
	r = park(s, sqe, 0);
	s->parked->n_flushes += r > 0;
	return r;
}

void kvpd_parked_release(struct kvpd_session *s, struct kvpd_grant *g)
{
	struct kvpd_parked *p = s->parked;

	if (g->state != KVPD_GRANT_PARKED) {
		kvpd_grant_release(s, g);
		return;
	}
	for (uint32_t i = 0; i < p->n; i++)
		if (p->entry[i].sqe.op == KVP_OP_COMMIT && &s->grant[p->entry[i].sqe.grant] == g)
			p->entry[i].sqe.flags |= KVP_SQE_RELEASE;
}

void kvpd_parked_unclaim(struct kvpd_session *s, struct kvp_key key)
{
	struct kvpd_parked *p = s->parked;

	for (uint32_t i = 0; p && i < p->n; i++)
		if (p->entry[i].sqe.next_lo == key.lo && p->entry[i].sqe.next_hi == key.hi)
			p->entry[i].sqe.next_lo = p->entry[i].sqe.next_hi = 0;
}

/* ---- serving -------------------------------------------------------------------------------- */

static bool can_go(const struct kvpd_session *s, const struct entry *e, bool first)
{
	if (e->sqe.op == KVP_OP_FLUSH)
		return first;
	return !parent_waits(s, &e->sqe) &&
	       (!e->sqe.until || kvp_until_come(s->page, e->sqe.until));
}

static void go(struct kvpd_session *s, const struct entry *e, uint64_t now)
{
	const struct kvp_shm_space *space = &s->tenant->view.spaces[e->sqe.space];

	if (e->sqe.op == KVP_OP_FLUSH) {
		s->parked->n_flushes--;
		kvpd_ring_answer(s, &e->sqe, 0, KVP_CQE_LATE);
		return;
	}
	s->grant[e->sqe.grant].state = KVPD_GRANT_WRITING;
	/* The number of a space that was closed meanwhile may be another one's by now. */
	if (space->generation == e->generation)
		kvpd_commit_now(s, &e->sqe, KVP_CQE_LATE, now);
	else
		kvpd_commit_refuse(s, &e->sqe, KVP_CQE_LATE, -EINVAL);
}

uint32_t kvpd_parked_serve(struct kvpd_session *s, uint64_t now, uint64_t until_ns)
{
	struct kvpd_parked *p = s->parked;
	uint32_t at = 0, kept = 0, n = 0;

	if (!kvpd_parked_ready(s))
		return 0;
	p->more = false;
	for (; at < p->n && !p->more; at++) {
		struct entry e = p->entry[at];

		if (!can_go(s, &e, !kept)) {
			p->entry[kept++] = e;
			continue;
		}
		kvpd_ring_stall(s, kvp_cq_room(s->page, s->cq_tail) < KVPD_ROOM_FOR_ONE);
		p->more = s->stalled ||
			  (n && (now >= until_ns || kvpd_ledger_is_wanted(s->tenant->ledger)));
		if (p->more)
			break;
		go(s, &e, now);
		now = kvpd_now_ns();
		n++;
	}
	memmove(&p->entry[kept], &p->entry[at], (p->n - at) * sizeof(p->entry[0]));
	p->n -= at - kept;
	await_anew(s);
	return n;
}
