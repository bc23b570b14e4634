/* SPDX-License-Identifier: Apache-2.0 */
/* Attention that clients report of tokens, and the bits that these get for it; see tokens.h. */
#include "daemon/ledger/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/ledger/importance.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_allot.h"
#include "policy/kvp_precision.h"

/* Tokens that share a level. */
static uint32_t group_of(uint32_t tokens)
{
	return (tokens + KVPD_TOKEN_LEVELS - 1) / KVPD_TOKEN_LEVELS;
}

/* ---- what is reported ------------------------------------------------------------------------ */

/* Is there memory for it? */
static bool ready(struct kvpd_tenant *t)
{
	struct kvpd_tokens *p = &t->tokens;

	if (!p->of)
		p->of = kvpd_meta_of_blocks(t, sizeof(*p->of), &p->charged);
	return p->of != NULL;
}

/* Have blocks of the space tokens of several bits, in any width? */
static bool shares(const struct kvpd_codes *c)
{
	const struct kvp_block_layout *l = &c->width[c->lowest];

	return kvp_payload_token_budget(l, KVP_PLANE_K) || kvp_payload_token_budget(l, KVP_PLANE_V);
}

void kvpd_tokens_report(struct kvpd_session *s, struct kvp_sqe *sqe)
{
	struct kvpd_tenant *t = s->tenant;
	const uint8_t *code = kvp_sqe_attention(sqe);
	struct kvpd_token_levels *levels;
	uint32_t whole, group;

	if (!kvpd_importance_names(s, sqe) || sqe->count > KVP_ATTENTION_TOKENS ||
		!shares(t->space[sqe->space].codes))
		return;
	whole = t->view.spaces[sqe->space].canon.block_tokens;
	group = group_of(whole);
	if (sqe->tokens >= whole || sqe->count > whole - sqe->tokens || !ready(t))
		return;
	levels = &t->tokens.of[sqe->parent_id];
	for (uint32_t i = 0; i < sqe->count; i++) {
		uint16_t *at = &levels->at[(sqe->tokens + i) / group];

		if (code[i] == KVP_ATTENTION_NONE)
			continue;
		*at = kvpd_importance_pack(kvp_allot_learn(
			kvpd_importance_unpack(*at), kvpd_importance_said(code[i])));
		t->tokens.reported++;
	}
}

bool kvpd_tokens_read(
	const struct kvpd_tenant *t, uint32_t block, struct kvpd_token_levels *ret_levels)
{
	static const struct kvpd_token_levels none;

	if (!t->tokens.of || !memcmp(&t->tokens.of[block], &none, sizeof(none)))
		return false;
	*ret_levels = t->tokens.of[block];
	return true;
}

void kvpd_tokens_forget(struct kvpd_tenant *t, uint32_t block)
{
	if (t->tokens.of)
		memset(&t->tokens.of[block], 0, sizeof(t->tokens.of[block]));
}

void kvpd_tokens_free(struct kvpd_tenant *t)
{
	struct kvpd_tokens *p = &t->tokens;

	free(p->of);
	kvpd_meta_discharge(t, p->charged);
	p->of = NULL;
	p->charged = 0;
}

/* Many pages, which the kernel takes long to take back: the ledger does not wait for it. */
struct drop {
	struct kvpd_job job;
	struct kvpd_tenant *tenant;
	struct kvpd_tokens tokens;
};

static void run_drop(struct kvpd_job *job)
{
	struct drop *d = kvpd_container(job, struct drop, job);

	free(d->tokens.of);
	d->tokens.of = NULL;
}

static void done_drop(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct drop *d = kvpd_container(job, struct drop, job);

	kvpd_ledger_charge(l, d->tenant);
	d->tenant->n_jobs--;
	free(d->tokens.of); /* the thread was stopped before */
	kvpd_meta_discharge(d->tenant, d->tokens.charged);
	free(d);
}

void kvpd_tokens_leave(struct kvpd_tenant *t)
{
	struct kvpd_tokens *p = &t->tokens;
	struct drop *d;

	if (t->precision.floors)
		return;
	d = p->of ? malloc(sizeof(*d)) : NULL;
	if (!d) {
		kvpd_tokens_free(t);
		return;
	}
	*d = (struct drop){ .job = { .tenant = t->id, .run = run_drop, .done = done_drop },
		.tenant = t,
		.tokens = *p };
	p->of = NULL;
	p->charged = 0;
	t->n_jobs++;
	kvpd_worker_submit(&t->ledger->dropper, &d->job);
}

/* ---- bits ------------------------------------------------------------------------------------ */

struct kvpd_sharing {
	struct kvp_precision *solver;
	float importance[KVP_PLANE_TOKENS_MAX];
	uint8_t cap[KVP_PLANE_TOKENS_MAX], other[KVP_PLANE_TOKENS_MAX];
	uint8_t bits[2][KVP_PLANE_TOKENS_MAX];
};

struct kvpd_sharing *kvpd_sharing_new(const struct kvpd_codes *codes)
{
	struct kvp_precision_opts opts;
	struct kvpd_sharing *s;

	if (!shares(codes))
		return NULL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	/* What counts is bits a token: they mean as many bytes in all heads and layers. */
	kvp_precision_opts_init(&opts, 1, 8, codes->width[0].tokens);
	opts.block_tokens = 0;
	opts.critical = 0;
	opts.middle = 1;
	if (kvp_precision_new(&opts, &s->solver) < 0) {
		free(s);
		return NULL;
	}
	return s;
}

struct kvpd_sharing *kvpd_sharing_free(struct kvpd_sharing *s)
{
	if (s)
		kvp_precision_free(s->solver);
	free(s);
	return NULL;
}

/* Shares `budget` bits out; false: as they come. */
static bool solve(struct kvpd_sharing *s, uint32_t tokens, uint32_t budget, uint8_t *ret_bits)
{
	const struct kvp_precision *p = s->solver;
	uint64_t none = kvp_precision_token_bits(p, 0, 0);
	uint64_t both = kvp_precision_token_bits(p, 1, 1) - none;

	/* Keys and values alike: what one of them gets the other gets. */
	return kvp_precision_allocate(s->solver, s->importance, tokens,
		       tokens * none + budget * both, s->cap, s->cap, ret_bits, s->other,
		       NULL) == 0;
}

struct kvp_payload_tokens kvpd_sharing_bits(struct kvpd_sharing *s, const struct kvpd_codes *codes,
	const struct kvpd_move *m, const struct kvpd_token_levels *levels)
{
	const struct kvp_block_layout *from = &codes->width[m->from_width];
	const struct kvp_block_layout *to = &codes->width[m->width];
	uint32_t tokens = to->tokens, group = group_of(tokens);
	struct kvp_payload_tokens ret = { .position = m->position };

	if (!s || !levels)
		return ret;
	for (uint32_t i = 0; i < tokens; i++)
		s->importance[i] = kvpd_importance_unpack(levels->at[i / group]);
	for (uint32_t kind = 0; kind < 2; kind++) {
		uint32_t budget = kvp_payload_token_budget(to, kind);

		if (!budget)
			continue;
		if (kvp_payload_token_bits(from, m->src, kind, s->cap) < 0)
			memset(s->cap, 8, sizeof(s->cap));
		if (solve(s, tokens, budget, s->bits[kind]))
			ret.bits[kind] = s->bits[kind];
	}
	return ret;
}

void kvpd_sharing_count(
	const struct kvpd_codes *codes, const struct kvpd_move *m, uint64_t coded[KVPD_TOKEN_BITS])
{
	const struct kvp_block_layout *to = &codes->width[m->width];
	uint8_t bits[KVP_PLANE_TOKENS_MAX];

	if (kvp_payload_token_bits(to, m->dst, KVP_PLANE_K, bits) < 0 &&
		kvp_payload_token_bits(to, m->dst, KVP_PLANE_V, bits) < 0)
		return;
	for (uint32_t i = 0; i < to->tokens; i++)
		coded[bits[i] < 8 ? bits[i] - 2u : 3u]++;
}
