/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serving a session's submission ring: entries that are short are dealt with here, RESERVE and
 * COMMIT elsewhere (grant.c, commit.c).
 */
#include "daemon/ledger/ring.h"

#include <errno.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/commit.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/importance.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/parked.h"
#include "daemon/ledger/quality.h"
#include "daemon/ledger/remat.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tokens.h"
#include "daemon/ledger/touch.h"
#include "daemon/ledger/wake.h"
#include "daemon/ledger/warm.h"
#include "shm/kvp_ring.h"

#define STALLED_PORTION 64u /* sessions, each in a page of its own */

/* ---- completions ---------------------------------------------------------------------------- */

void kvpd_ring_complete(struct kvpd_session *s, const struct kvp_cqe *cqe)
{
	kvp_cq_push(s->page, &s->cq_tail, cqe);
}

void kvpd_ring_answer(struct kvpd_session *s, const struct kvp_sqe *sqe, int status, uint32_t flags)
{
	struct kvp_cqe cqe = {
		.op = sqe->op,
		.serial = sqe->serial,
		.status = status,
		.flags = flags,
		.block = KVP_BLOCK_NONE,
		.retry_ms = status == -EAGAIN || status == -ENOSPC ? KVPD_RETRY_MS : 0,
	};

	kvpd_ring_complete(s, &cqe);
}

void kvpd_ring_stall(struct kvpd_session *s, bool stalled)
{
	if (s->stalled == stalled)
		return;
	s->stalled = stalled;
	if (stalled) {
		kvpd_list_append(&s->tenant->stalled, &s->in_stalled);
		s->tenant->n_stalled++;
	} else {
		kvpd_list_remove(&s->in_stalled);
		s->tenant->n_stalled--;
		if (s->n_tickets)
			kvpd_warm_again(s->tenant);
		if (s->n_asks || s->n_offers)
			kvpd_remat_again(s->tenant);
	}
}

/* ---- operations ----------------------------------------------------------------------------- */

static void op_release(struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	struct kvpd_grant *g = kvpd_grant_of(s, sqe->grant, sqe->grant_generation);

	if (g)
		kvpd_parked_release(s, g);
}

static void op_unclaim(struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	struct kvp_key key = { sqe->next_lo, sqe->next_hi };

	kvpd_claim_end(s->tenant, key, s->id);
	kvpd_parked_unclaim(s, key);
}

/* Entries are served in order, so all before it is done but what waits. */
static void op_flush(struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	int r = kvpd_park_flush(s, sqe);

	if (r <= 0)
		kvpd_ring_answer(s, sqe, r, 0);
}

static bool key_is_live(const struct kvpd_tenant *t, struct kvp_key key)
{
	kvp_block_id id[KVP_TAIL_CANDIDATES];
	uint32_t n = kvp_index_candidates(
		t->view.index, t->view.index_buckets, key.lo, id, KVP_TAIL_CANDIDATES);

	for (uint32_t i = 0; i < n; i++)
		if (kvp_key_equal(kvpd_block_key(t, id[i]), key) && kvpd_block_lives(t, id[i]))
			return true;
	return false;
}

static void op_claim(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	struct kvp_key key = { sqe->next_lo, sqe->next_hi };
	uint32_t flags = 0;
	int r = 0;

	if (!key.lo && !key.hi)
		r = -EINVAL;
	else if (key_is_live(s->tenant, key))
		flags = KVP_CQE_PRESENT;
	else
		r = kvpd_claim_set(s, key, sqe->count, now);
	if (r == -EBUSY) {
		r = 0;
		flags = KVP_CQE_PENDING;
		kvp_bump(&s->tenant->view.cat->stats.waits, 1);
	}
	kvpd_ring_answer(s, sqe, r, flags);
}

static int delete_block(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	struct kvpd_tenant *t = s->tenant;
	uint32_t id = sqe->parent_id, space;
	uint64_t word;
	int r;

	if (sqe->parent_kind != KVP_PARENT_BLOCK || id >= t->layout.max_blocks)
		return -EINVAL;
	word = kvpd_block_word(t, id);
	if (kvp_word_birth(word) != sqe->parent_birth || kvp_word_state(word) == KVP_BLOCK_FREE)
		return -ENOENT;
	space = kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape));
	if (!s->opens[space])
		return -EACCES;
	if (t->block[id].flags & KVPD_BLOCK_DOOMED)
		return 0;
	r = kvpd_block_drop(t, id, true, now);
	if (r == 0)
		kvp_bump(&t->view.cat->stats.deleted, 1);
	/* Below it something may wait to be deleted too. */
	if (r == -EBUSY || (r == -ENOTEMPTY && t->n_doomed))
		r = kvpd_doom(t, id, now);
	return r;
}

static void op_quality(struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	if (sqe->space < KVP_MAX_SPACES && s->opens[sqe->space] && sqe->count <= KVP_QUALITY_WHOLE)
		(void)kvpd_quality_reported(
			s->tenant, sqe->space, (float)sqe->count / (float)KVP_QUALITY_WHOLE);
}

static void serve_one(struct kvpd_session *s, struct kvp_sqe *sqe, uint64_t now)
{
	switch (sqe->op) {
	case KVP_OP_RESERVE:
		kvpd_reserve_begin(s, sqe, now);
		break;
	case KVP_OP_COMMIT:
		kvpd_commit_serve(s, sqe, now);
		break;
	case KVP_OP_RELEASE:
		op_release(s, sqe);
		break;
	case KVP_OP_CLAIM:
		op_claim(s, sqe, now);
		break;
	case KVP_OP_UNCLAIM:
		op_unclaim(s, sqe);
		break;
	case KVP_OP_DELETE:
		kvpd_ring_answer(s, sqe, delete_block(s, sqe, now), 0);
		break;
	case KVP_OP_FLUSH:
		op_flush(s, sqe);
		break;
	case KVP_OP_WARM:
		kvpd_warm_serve(s, sqe);
		break;
	case KVP_OP_WANT:
		kvpd_want_serve(s, sqe, now);
		break;
	case KVP_OP_SERVE:
		kvpd_offer_serve(s, sqe, now);
		break;
	case KVP_OP_QUALITY:
		op_quality(s, sqe);
		break;
	case KVP_OP_ATTENTION:
		kvpd_importance_report(s, sqe);
		break;
	case KVP_OP_TOKENS:
		kvpd_tokens_report(s, sqe);
		break;
	case KVP_OP_NOP:
		kvpd_ring_answer(s, sqe, 0, 0);
		break;
	default:
		kvpd_ring_answer(s, sqe, -EOPNOTSUPP, 0);
		break;
	}
}

/* ---- serving -------------------------------------------------------------------------------- */

bool kvpd_ring_has_entries(const struct kvpd_session *s)
{
	return kvp_load_seq(&s->page->sq_tail) != s->sq_head;
}

uint32_t kvpd_ring_serve(struct kvpd_session *s, uint64_t now, uint64_t until_ns)
{
	uint32_t completed = s->cq_tail, n = 0, late;
	struct kvp_sqe sqe;
	int r = 0;

	kvpd_ring_stall(s, false);
	/* Acquire: pairs with the release in unmap_all(); all its reads are over. */
	if (kvp_load_acquire(&s->page->left)) {
		kvpd_session_expel(s, -EPIPE, "its client let go of it after its connection broke");
		return 0;
	}
	kvpd_reserve_settle(s);
	late = kvpd_parked_serve(s, now, until_ns);
	if (late)
		now = kvpd_now_ns(); /* claims have been set since */
	do {
		if (kvp_cq_room(s->page, s->cq_tail) < KVPD_ROOM_FOR_ONE) {
			kvpd_ring_stall(s, true);
			break;
		}
		r = kvp_sq_pop(s->page, &s->sq_head, &sqe);
		if (r < 0)
			break;
		if (!n++)
			now = kvpd_touch_apply(s, now);
		serve_one(s, &sqe, now);
		now = kvpd_now_ns();
	} while (now < until_ns && !kvpd_ledger_is_wanted(s->tenant->ledger));
	if (s->cq_tail != completed)
		kvpd_wake_client(s);
	if (r == -EPROTO)
		kvpd_session_expel(
			s, -EPROTO, "its submission ring claims more entries than it holds");
	return n + late;
}

bool kvpd_stalled_step(struct kvpd_tenant *t, uint64_t now)
{
	(void)now;
	if (!t->stalled_left)
		t->stalled_left = t->n_stalled;
	for (uint32_t i = 0; t->stalled_left && !kvpd_list_empty(&t->stalled); i++) {
		struct kvpd_session *s =
			kvpd_container(t->stalled.next, struct kvpd_session, in_stalled);

		if (i == STALLED_PORTION)
			return true;
		t->stalled_left--;
		kvpd_list_remove(&s->in_stalled);
		kvpd_list_append(&t->stalled, &s->in_stalled);
		if (kvp_cq_room(s->page, s->cq_tail) >= KVP_CQ_ENTRIES / 2)
			kvpd_session_activate(s);
	}
	t->stalled_left = 0;
	return false;
}
