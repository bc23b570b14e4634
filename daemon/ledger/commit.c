/* SPDX-License-Identifier: Apache-2.0 */
/* Commits: the parent is resolved, the tokens copied and digested, the block added or found. */
#include "daemon/ledger/commit.h"

#include <errno.h>

#include "daemon/ledger/advice.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/curve.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/parked.h"
#include "daemon/ledger/remat.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tip.h"
#include "policy/kvp_evict.h"

/* The parent that a submission names: a block id, or KVP_BLOCK_NONE for the root. */
static int resolve(const struct kvpd_session *s, const struct kvp_sqe *sqe, uint32_t *ret_parent)
{
	const struct kvpd_tenant *t = s->tenant;
	uint32_t id = sqe->parent_id, birth = sqe->parent_birth, shape;
	uint64_t word;

	if (sqe->parent_kind == KVP_PARENT_ROOT) {
		*ret_parent = KVP_BLOCK_NONE;
		return 0;
	}
	if (sqe->parent_kind == KVP_PARENT_SERIAL) {
		const struct kvpd_outcome *o = &s->outcome[id % KVP_SERIALS];

		if (!o->known || o->serial != id || o->block == KVP_BLOCK_NONE)
			return -ECANCELED;
		id = o->block;
		birth = o->birth;
	} else if (sqe->parent_kind != KVP_PARENT_BLOCK) {
		return -EINVAL;
	}
	if (id >= t->layout.max_blocks)
		return -EINVAL;
	word = kvpd_block_word(t, id);
	if (kvp_word_birth(word) != birth || !kvpd_block_lives(t, id))
		return -ECANCELED;
	shape = kvp_load_relaxed(&t->view.blocks[id].shape);
	if (kvp_shape_space(shape) != sqe->space ||
		kvp_shape_tokens(shape) != t->view.spaces[sqe->space].canon.block_tokens)
		return -EINVAL;
	*ret_parent = id;
	return 0;
}

/* The client may write there meanwhile: each token is read once, whatever it then is. */
static void copy_row(kvp_token *dst, const volatile kvp_token *row, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		dst[i] = row[i];
}

/* The salt that a submission names, if it names one. -EINVAL: it may not, or is none. */
static int take_salt(struct kvpd_session *s, const struct kvp_sqe *sqe, const kvp_token **ret_salt)
{
	kvp_token any = 0;

	if (!(sqe->flags & KVP_SQE_SALTED))
		return 0;
	copy_row(s->salt, s->page->salt[sqe->grant], KVP_SALT_TOKENS);
	for (uint32_t i = 0; i < KVP_SALT_TOKENS; i++)
		any |= s->salt[i];
	if (!any || sqe->parent_kind != KVP_PARENT_ROOT ||
		s->tenant->view.spaces[sqe->space].canon.key_bytes)
		return -EINVAL;
	*ret_salt = s->salt;
	return 0;
}

/* The advisor hears of a block that has a payload now. */
static void advise(const struct kvpd_session *s, const struct kvp_sqe *sqe,
	const struct kvpd_new_block *b, uint32_t block)
{
	const uint32_t said = (sqe->flags & KVP_SQE_LABEL) >> KVP_SQE_LABEL_SHIFT;
	const struct kvpd_tenant *t = s->tenant;
	uint32_t depth = kvp_load_relaxed(&t->view.blocks[block].depth);

	kvpd_advice_put(t->advice, block, b->parent == KVP_BLOCK_NONE ? b->after : b->parent,
		depth * t->view.spaces[b->space].canon.block_tokens, b->n_tokens, s->id,
		said ? said - 1 : KVP_LABEL_USER);
	if (t->ledger->n_media &&
		!kvp_load_relaxed(&kvpd_block_payload(t, block, KVP_TIER_VRAM)->where))
		kvpd_advice_place(t->advice, block, true);
}

/* 0 or KVP_CQE_DUPLICATE, or why not. */
static int commit(struct kvpd_session *s, const struct kvp_sqe *sqe, struct kvpd_grant *g,
	uint64_t now, uint32_t *ret_block)
{
	struct kvpd_tenant *t = s->tenant;
	const struct kvp_shm_space *space;
	struct kvpd_new_block b = {
		.space = sqe->space, .n_tokens = sqe->tokens, .after = KVP_BLOCK_NONE
	};
	struct kvp_key next = { sqe->next_lo, sqe->next_hi };
	uint32_t found = KVP_BLOCK_NONE;
	int r;

	if (g->state != KVPD_GRANT_WRITING)
		return -EALREADY;
	if ((sqe->until && kvp_until_timeline(sqe->until) >= KVP_TIMELINES) ||
		(sqe->flags & KVP_SQE_LABEL) >> KVP_SQE_LABEL_SHIFT > KVP_LABELS)
		return -EINVAL;
	if (sqe->space >= KVP_MAX_SPACES || !s->opens[sqe->space] ||
		g->place.extent->cls != kvpd_class_of(t, sqe->space, g->place.extent->cls->medium))
		return -EINVAL;
	space = &t->view.spaces[sqe->space];
	if (!b.n_tokens || b.n_tokens > space->canon.block_tokens)
		return -EINVAL;
	/* A key is whole, and nothing follows the block that it names. */
	if (space->canon.key_bytes &&
		(b.n_tokens != space->canon.block_tokens || sqe->parent_kind != KVP_PARENT_ROOT))
		return -EINVAL;
	r = resolve(s, sqe, &b.parent);
	if (r == 0)
		r = take_salt(s, sqe, &b.salt);
	if (r < 0)
		return r;
	copy_row(s->tokens, s->page->staging[sqe->grant], b.n_tokens);
	b.tokens = s->tokens;
	b.key = kvp_chain_key(b.parent == KVP_BLOCK_NONE ? kvpd_root_key(t, b.space, b.salt)
							 : kvpd_block_key(t, b.parent),
		b.tokens, b.n_tokens);
	b.place = g->place;
	if (sqe->flags & KVP_SQE_BEFORE) {
		if (space->canon.key_bytes)
			b.after = kvpd_block_keyed(t, b.space, next);
		next = (struct kvp_key){ 0 };
	}
	r = kvpd_block_lookup(t, &b, &found);
	if (r < 0)
		return r;
	if (r && kvpd_block_state(t, found) != KVP_BLOCK_RECIPE) {
		kvp_evict_access(t->evict, found, now);
		kvp_bump(&t->view.cat->stats.duplicates, 1);
		kvpd_block_add_payload(t, &b, found, now);
		*ret_block = found;
		r = KVP_CQE_DUPLICATE;
	} else {
		/* What it wrote before is spared for what goes on with it, not for another prompt. */
		t->writer = s->has_tip && s->tip == b.parent ? s : NULL;
		r = kvpd_block_add(t, &b, found, now, ret_block);
		t->writer = NULL;
		if (r == 0) {
			t->tokens_put += b.n_tokens;
			t->space[b.space].tokens_put += b.n_tokens;
			advise(s, sqe, &b, *ret_block);
		}
	}
	if (r >= 0) {
		kvpd_curve_put(t->curve, b.key, s->id);
		kvpd_tip_set(s, *ret_block, now);
		g->state = KVPD_GRANT_COMMITTED;
		kvpd_claim_committed(s, &b, next, now);
		if (t->remat.wants)
			kvpd_remat_again(t);
	}
	return r;
}

/* What became of it is remembered and told, and the grant given back if that was asked. */
static void settle(
	struct kvpd_session *s, const struct kvp_sqe *sqe, int r, uint32_t block, uint32_t flags)
{
	struct kvpd_grant *g = kvpd_grant_of(s, sqe->grant, sqe->grant_generation);
	struct kvpd_outcome *o = &s->outcome[sqe->serial % KVP_SERIALS];
	struct kvp_cqe cqe = { .op = KVP_OP_COMMIT, .serial = sqe->serial };

	*o = (struct kvpd_outcome){ .serial = sqe->serial, .known = 1, .block = block };
	if (block != KVP_BLOCK_NONE)
		o->birth = kvp_word_birth(kvpd_block_word(s->tenant, block));
	if (r < 0)
		kvp_bump(&s->tenant->view.cat->stats.refused, 1);
	cqe.status = r < 0 ? r : 0;
	cqe.flags = flags | (r > 0 ? (uint32_t)r : 0);
	cqe.block = block;
	cqe.birth = o->birth;
	cqe.retry_ms = r == -ENOSPC ? KVPD_RETRY_MS : 0;
	kvpd_ring_complete(s, &cqe);
	if (g && (sqe->flags & KVP_SQE_RELEASE))
		kvpd_parked_release(s, g);
}

void kvpd_commit_now(
	struct kvpd_session *s, const struct kvp_sqe *sqe, uint32_t flags, uint64_t now)
{
	struct kvpd_grant *g = kvpd_grant_of(s, sqe->grant, sqe->grant_generation);
	uint32_t block = KVP_BLOCK_NONE;
	int r = g ? commit(s, sqe, g, now, &block) : -EINVAL;

	settle(s, sqe, r, block, flags);
}

void kvpd_commit_refuse(
	struct kvpd_session *s, const struct kvp_sqe *sqe, uint32_t flags, int status)
{
	settle(s, sqe, status, KVP_BLOCK_NONE, flags);
}

void kvpd_commit_serve(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	int r = kvpd_park_commit(s, sqe);

	if (r == 0)
		kvpd_commit_now(s, sqe, 0, now);
	else if (r < 0)
		kvpd_commit_refuse(s, sqe, 0, r);
}
