/* SPDX-License-Identifier: Apache-2.0 */
/* Spaces of a tenant: what a client says of its model, judged, digested, entered in the catalog. */
#include "daemon/ledger/space.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/calibs.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/learnt.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/lookups.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/remat.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "payload/kvp_payload.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_proto.h"

#define MAX_OPENS 65535u /* of one space by one session */

_Static_assert(sizeof(struct kvp_space_canon) % sizeof(kvp_token) == 0, "digested as token ids");

/* ---- judging -------------------------------------------------------------------------------- */

static bool padded(const char *text)
{
	size_t n = strnlen(text, KVP_SPACE_NAME);

	for (size_t i = n; i < KVP_SPACE_NAME; i++)
		if (text[i])
			return false;
	return n < KVP_SPACE_NAME;
}

static const char *judge_layers(const struct kvp_space_canon *c, uint64_t *ret_elements)
{
	static const struct kvp_shm_layer nothing;
	uint64_t n = 0;

	for (uint32_t i = 0; i < KVP_MAX_LAYERS; i++) {
		const struct kvp_shm_layer *l = &c->layers[i];

		if (i >= c->n_layers) {
			if (memcmp(l, &nothing, sizeof(nothing)))
				return "a layer beyond n_layers is not zero";
			continue;
		}
		if (!l->kv_heads || !l->k_dim || l->exact > 1)
			return "a layer needs kv_heads and k_dim";
		if (i && l->index <= c->layers[i - 1].index)
			return "layers must be in ascending order";
		n += (uint64_t)l->kv_heads * ((uint64_t)l->k_dim + l->v_dim);
	}
	*ret_elements = n;
	return NULL;
}

/* A block of which only the engine knows what lies where in it. */
static const char *judge_opaque(const struct kvp_space_canon *c, uint64_t *ret_block_bytes)
{
	static const uint64_t no_params[4];
	uint64_t layers;

	if (!c->opaque_bytes || c->opaque_bytes > UINT32_MAX)
		return "an opaque layout needs the bytes of a block, less than 4 GiB";
	if (!c->opaque_layout[0])
		return "an opaque layout needs a name";
	if (c->dtype || c->n_layers || judge_layers(c, &layers) || c->rope_pairing || c->rope_dim ||
		c->rope_scaling || c->rope_theta_bits ||
		memcmp(c->rope_param_bits, no_params, sizeof(no_params)))
		return "an opaque layout has neither dtype nor layers nor RoPE: name them in "
		       "model and layout";
	*ret_block_bytes = c->opaque_bytes;
	return NULL;
}

static const char *judge_plain(const struct kvp_space_canon *c, uint64_t *ret_block_bytes)
{
	uint64_t element = kvp_dtype_bytes(c->dtype), per_token;
	const char *wrong;

	if (!element)
		return "unknown dtype";
	if (!c->n_layers || c->n_layers > KVP_MAX_LAYERS)
		return "n_layers must be 1..256";
	if (c->opaque_bytes || c->opaque_layout[0])
		return "only an opaque layout has a name and a size of its own";
	wrong = judge_layers(c, &per_token);
	if (wrong)
		return wrong;
	*ret_block_bytes = per_token * c->block_tokens * element;
	return NULL;
}

/* What the owner accepts to lose. */
static const char *judge_floor(const struct kvp_space_canon *c)
{
	bool excepted = c->native_first || c->native_last;

	for (uint32_t i = 0; i < KVP_MAX_LAYERS; i++)
		excepted = excepted || c->layers[i].exact;
	if (!c->floor_k && !c->floor_v)
		return excepted ? "what stays native is said in a space with a floor only" : NULL;
	return kvp_payload_judge(c) < 0 ? "the floor is no codec that blocks of this space can "
					  "be in with fewer bytes"
					: NULL;
}

/* What names a block. */
static const char *judge_names(const struct kvp_space_canon *c)
{
	if (!c->key_bytes) {
		if (c->block_tokens < KVP_BLOCK_TOKENS_MIN ||
			c->block_tokens > KVP_BLOCK_TOKENS_MAX)
			return "block_tokens must be 16..512";
		return NULL;
	}
	if (c->layout != KVP_LAYOUT_OPAQUE)
		return "blocks that keys name have an opaque layout";
	if (c->key_bytes < KVP_KEY_BYTES_MIN || c->key_bytes > KVP_KEY_BYTES_MAX ||
		c->key_bytes % sizeof(kvp_token) ||
		c->block_tokens != c->key_bytes / sizeof(kvp_token))
		return "key_bytes must be 16..64, a multiple of 4, and block_tokens a quarter of "
		       "it";
	return NULL;
}

/* NULL, or what is wrong. */
static const char *judge(const struct kvp_space_canon *c, uint64_t *ret_block_bytes)
{
	const char *wrong;

	if (c->version != 1 || c->reserved)
		return "unknown version of the space description";
	if (c->layout > KVP_LAYOUT_OPAQUE)
		return "unknown layout";
	if (!padded(c->model) || !padded(c->adapter) || !padded(c->tokenizer) ||
		!padded(c->opaque_layout))
		return "a name is too long or not padded with zeros";
	wrong = judge_names(c);
	if (!wrong)
		wrong = c->layout == KVP_LAYOUT_OPAQUE ? judge_opaque(c, ret_block_bytes)
						       : judge_plain(c, ret_block_bytes);
	return wrong ? wrong : judge_floor(c);
}

/* 32 bytes: the canonical description digested from two different beginnings. */
static void fingerprint(const struct kvp_space_canon *canon, uint8_t out[32])
{
	const uint32_t total = sizeof(*canon) / sizeof(kvp_token);
	kvp_token words[sizeof(*canon) / sizeof(kvp_token)];

	memcpy(words, canon, sizeof(*canon));
	for (uint64_t half = 0; half < 2; half++) {
		struct kvp_key key = { half, 0 };

		for (uint32_t at = 0; at < total; at += KVP_BLOCK_TOKENS_MAX)
			key = kvp_chain_key(key, words + at,
				total - at < KVP_BLOCK_TOKENS_MAX ? total - at
								  : KVP_BLOCK_TOKENS_MAX);
		memcpy(out + 16 * half, &key, sizeof(key));
	}
}

/* ---- the table ------------------------------------------------------------------------------ */

static struct kvp_shm_space *shm_space(const struct kvpd_tenant *t, uint32_t i)
{
	return &t->view.spaces[i];
}

static bool is_live(const struct kvpd_tenant *t, uint32_t i)
{
	return kvp_load_relaxed(&shm_space(t, i)->state) == KVP_SPACE_LIVE;
}

static bool is_of(const struct kvpd_tenant *t, uint32_t id, uint32_t space)
{
	return kvpd_block_state(t, id) != KVP_BLOCK_FREE &&
	       kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape)) == space;
}

/* ---- room in the table ---------------------------------------------------------------------- */

#define EMPTY_TRIES 4u    /* spaces; one that is protected stays */
#define EMPTY_LOOK  1024u /* descriptors looked at in one call */
#define EMPTY_RUNS  2u    /* and runs of blocks that go, of KVPD_PROOF at most */

/* Does nothing hang on it, neither in the catalog nor, as in a space of keys, in the policy alone? */
static bool is_last(const struct kvpd_tenant *t, uint32_t id)
{
	struct kvp_evict_info info;

	return !t->block[id].children &&
	       !(kvp_evict_peek(t->evict, id, &info) == 0 && info.children);
}

/*
 * Forgets blocks of the space that is emptied, children first: a portion. A block that goes takes
 * its parent along if it was the last child, so one pass will do. False: there is more to do.
 */
static bool empty_on(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_emptying *e = &t->emptying;
	uint32_t end = e->at + EMPTY_LOOK, runs = 0;

	for (; t->space[e->space].blocks && e->at < t->layout.max_blocks; e->at++) {
		if (e->at == end || runs == EMPTY_RUNS)
			return false;
		if (e->chain == KVP_BLOCK_NONE && is_of(t, e->at, e->space) && is_last(t, e->at))
			e->chain = e->at;
		for (; e->chain != KVP_BLOCK_NONE; runs++) {
			if (runs == EMPTY_RUNS)
				return false;
			/* It may have gone since the last portion, and its id be another space's block. */
			if (!is_of(t, e->chain, e->space)) {
				e->chain = KVP_BLOCK_NONE;
				break;
			}
			/* What keys name is held together by the policy alone. */
			uint32_t after = t->view.spaces[e->space].canon.key_bytes
						 ? kvpd_block_after(t, e->chain)
						 : KVP_BLOCK_NONE;

			e->chain = kvpd_chain_drop(t, e->chain, now);
			/* Where it stayed, or has siblings, another one comes by here later. */
			if (e->chain == KVP_BLOCK_NONE && after != KVP_BLOCK_NONE &&
				is_last(t, after))
				e->chain = after;
		}
	}
	return true;
}

/* The one that nobody has open and that was opened longest ago. */
static uint32_t oldest_closed(const struct kvpd_tenant *t)
{
	uint32_t old = KVP_MAX_SPACES;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (!t->space[i].opens &&
			(old == KVP_MAX_SPACES || t->space[i].opened < t->space[old].opened))
			old = i;
	return old;
}

/*
 * An entry that is free, or is made so by emptying one. -EINPROGRESS: that takes longer; ask again.
 * -ENOSPC: all are open, or something protects their blocks.
 */
static int free_entry(struct kvpd_tenant *t, uint64_t now, uint32_t *ret_space)
{
	struct kvpd_emptying *e = &t->emptying;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		if (!is_live(t, i)) {
			*ret_space = i;
			return 0;
		}
	}
	if (!e->under_way || t->space[e->space].opens) {
		*e = (struct kvpd_emptying){
			.under_way = true,
			.tries = e->tries,
			.space = oldest_closed(t),
			.chain = KVP_BLOCK_NONE,
		};
		if (e->space == KVP_MAX_SPACES || e->tries++ == EMPTY_TRIES) {
			*e = (struct kvpd_emptying){ 0 };
			return -ENOSPC;
		}
		t->space[e->space].opened = now;
	}
	if (!empty_on(t, now))
		return -EINPROGRESS;
	e->under_way = false;
	if (t->space[e->space].blocks)
		return -EINPROGRESS; /* with the next one */
	e->tries = 0;
	kvp_store_release(&shm_space(t, e->space)->state, KVP_SPACE_FREE);
	t->space[e->space].cls = NULL;
	kvpd_learnt_leave(t, e->space);
	kvpd_precision_leave(t, e->space);
	kvpd_importance_leave(t, e->space);
	kvpd_tokens_leave(t);
	*ret_space = e->space;
	return 0;
}

/* ---- opening -------------------------------------------------------------------------------- */

void kvpd_space_capacity(struct kvpd_tenant *t)
{
	uint64_t least = UINT64_MAX, data = t->limits.share - t->meta_bytes;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (t->space[i].cls && t->space[i].cls->slot_bytes < least)
			least = t->space[i].cls->slot_bytes;
	kvpd_parts_capacity(t, least);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		uint64_t slot = kvpd_slot_bytes(kvpd_width_bytes(t, i, kvpd_width_floor(t, i)));

		if (t->space[i].cls && slot < least)
			least = slot;
	}
	t->capacity = data / least < t->limits.max_blocks ? (uint32_t)(data / least)
							  : t->limits.max_blocks;
	if (!t->capacity)
		t->capacity = 1;
	kvp_evict_resize(t->evict, t->capacity, 0);
}

static void enter(struct kvpd_tenant *t, uint32_t i, const struct kvp_space_canon *canon,
	uint64_t block_bytes)
{
	struct kvp_shm_space *s = shm_space(t, i);
	kvp_token words[sizeof(s->fingerprint) / sizeof(kvp_token)];
	struct kvp_key root;

	fingerprint(canon, s->fingerprint);
	memcpy(words, s->fingerprint, sizeof(words));
	root = kvp_chain_key(t->salt, words, sizeof(words) / sizeof(words[0]));
	s->generation++;
	s->root_lo = root.lo;
	s->root_hi = root.hi;
	s->block_bytes = block_bytes;
	s->canon = *canon;
	t->space[i].tokens_put = t->space[i].tokens_asked = t->space[i].tokens_matched = 0;
	t->space[i].evictions = 0;
	t->space[i].computing = (struct kvpd_computing){ 0 };
	t->space[i].rule = t->limits.rule;
	t->space[i].ruled = false;
	/* Release: a client that is told of the space reads it whole. */
	kvp_store_release(&s->state, KVP_SPACE_LIVE);
	kvpd_space_capacity(t);
}

struct space_call {
	uint32_t session;
	const struct kvp_space_canon *canon;
	struct kvp_msg_id id;
	struct kvp_msg_space out;
	char *reason;
	size_t reason_bytes;
};

static int refuse(struct space_call *c, int error, const char *why)
{
	snprintf(c->reason, c->reason_bytes, "%s", why);
	return error;
}

static int refuse_floor(struct space_call *c, const char *why)
{
	snprintf(c->reason, c->reason_bytes,
		"the floor's codec needs a calibration of this model: %s", why);
	return -ENOENT;
}

static int open_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct space_call *c = arg;
	struct kvpd_session *s = kvpd_session_find(l, c->session);
	uint64_t bytes = 0, now = kvpd_now_ns();
	const struct kvpd_calib *calib = NULL;
	struct kvpd_class *cls;
	struct kvpd_tenant *t;
	const char *wrong;
	uint32_t i;
	int r;

	if (!s)
		return refuse(c, -ENOENT, "no such session");
	t = s->tenant;
	kvpd_ledger_charge(l, t);
	wrong = judge(c->canon, &bytes);
	if (wrong)
		return refuse(c, -EINVAL, wrong);
	if (!kvpd_slot_fits(t, kvpd_slot_bytes(bytes)))
		return refuse(c, -E2BIG,
			"one block of this model does not fit the tenant's share; "
			"raise `share` or lower block_tokens");
	for (i = 0; i < KVP_MAX_SPACES; i++)
		if (is_live(t, i) && !memcmp(&shm_space(t, i)->canon, c->canon, sizeof(*c->canon)))
			break;
	if (i == KVP_MAX_SPACES) {
		/* Before another one is emptied for it. */
		if (kvp_payload_calibrated(c->canon) &&
			!(calib = kvpd_calibs_find(l->calibs, c->canon, &wrong)))
			return refuse_floor(c, wrong);
		r = free_entry(t, now, &i);
		if (r == -EINPROGRESS)
			return r;
		if (r < 0)
			return refuse(c, r, "the tenant has 64 spaces and all are in use");
		cls = kvpd_class_get(t, KVPD_DRAM, kvpd_slot_bytes(bytes));
		if (!cls)
			return refuse(c, -ENOSPC, "too many different block sizes at once");
		r = kvpd_precision_enter(t, i, c->canon, calib);
		if (r < 0)
			return refuse(c, r, "no memory");
		t->space[i].cls = cls;
		enter(t, i, c->canon, bytes);
		kvpd_learnt_enter(t, i);
	}
	if (s->opens[i] == MAX_OPENS)
		return refuse(c, -EMFILE, "this client has the space open too often");
	if (!s->opens[i]++)
		kvpd_use_begin(s, i);
	t->space[i].opens++;
	t->space[i].opened = now;
	c->out = (struct kvp_msg_space){ i, shm_space(t, i)->generation };
	return 0;
}

int kvpd_space_open(struct kvpd_ledger *ledger, uint32_t session,
	const struct kvp_space_canon *canon, char *ret_reason, size_t reason_bytes,
	struct kvp_msg_space *ret_space)
{
	char reason[KVP_MSG_TEXT] = "";
	struct space_call c = {
		.session = session,
		.canon = canon,
		.reason = reason,
		.reason_bytes = sizeof(reason),
	};
	int r = kvpd_ledger_ask(ledger, open_on_ledger, &c);

	if (r == 0)
		*ret_space = c.out;
	else if (r != -EINPROGRESS && reason_bytes)
		snprintf(ret_reason, reason_bytes, "%s", reason);
	return r;
}

void kvpd_space_leave(struct kvpd_session *s, uint32_t space, uint32_t times)
{
	kvpd_use_take(s, space);
	s->opens[space] -= times;
	s->tenant->space[space].opens -= times;
	/* Whoever opens another model by this number is not offered what was meant for this one. */
	if (times && !s->opens[space])
		kvpd_offers_closed(s, space);
}

static int close_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct space_call *c = arg;
	struct kvpd_session *s = kvpd_session_find(l, c->session);

	kvpd_ledger_charge(l, s ? s->tenant : NULL);
	if (!s || c->id.id >= KVP_MAX_SPACES || !s->opens[c->id.id] ||
		shm_space(s->tenant, c->id.id)->generation != c->id.generation)
		return -ENOENT;
	kvpd_space_leave(s, c->id.id, 1);
	return 0;
}

int kvpd_space_close(struct kvpd_ledger *ledger, uint32_t session, const struct kvp_msg_id *id)
{
	struct space_call c = { .session = session, .id = *id };

	return kvpd_ledger_ask(ledger, close_on_ledger, &c);
}
