/* SPDX-License-Identifier: Apache-2.0 */
/* Attention that clients report, kept as an average for each block; see importance.h. */
#include "daemon/ledger/importance.h"

#include <math.h>
#include <stdlib.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_allot.h"
#include "policy/kvp_importance.h"

/* Logarithms of 16 bits, from 2^-8 to 2^8 as in policy/kvp_allot.h: finer than a step of the average. */
#define LEAST      (-8.0f)
#define PER_OCTAVE 4095.0f

uint16_t kvpd_importance_pack(float importance)
{
	float at = (log2f(importance) - LEAST) * PER_OCTAVE + 1.5f;

	if (!(at > 1))
		return 1;
	return at < UINT16_MAX ? (uint16_t)at : UINT16_MAX;
}

float kvpd_importance_unpack(uint16_t at)
{
	return at ? exp2f((float)(at - 1) / PER_OCTAVE + LEAST) : 1;
}

float kvpd_importance_of(const struct kvpd_tenant *t, uint32_t block)
{
	return kvpd_importance_unpack(t->importance.of ? t->importance.of[block] : 0);
}

float kvpd_importance_said(uint8_t code)
{
	return exp2f(((float)code - KVP_ATTENTION_MEAN) / KVP_ATTENTION_OCTAVE);
}

float kvpd_importance_worth(const struct kvpd_tenant *t, uint32_t block)
{
	return kvpd_importance_of(t, block) *
	       kvp_importance_recency((float)kvpd_precision_age(t, block), 1);
}

/* Is there memory for it? */
static bool ready(struct kvpd_tenant *t)
{
	struct kvpd_importance *p = &t->importance;

	if (!p->of)
		p->of = kvpd_meta_of_blocks(t, sizeof(*p->of), &p->charged);
	return p->of != NULL;
}

bool kvpd_importance_names(const struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	const struct kvpd_tenant *t = s->tenant;
	uint32_t id = sqe->parent_id;
	uint64_t word;

	if (sqe->space >= KVP_MAX_SPACES || !s->opens[sqe->space] || !t->space[sqe->space].codes ||
		sqe->parent_kind != KVP_PARENT_BLOCK || id >= t->layout.max_blocks)
		return false;
	word = kvpd_block_word(t, id);
	return kvp_word_birth(word) == sqe->parent_birth && kvpd_block_lives(t, id) &&
	       kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape)) == sqe->space;
}

void kvpd_importance_report(struct kvpd_session *s, struct kvp_sqe *sqe)
{
	struct kvpd_tenant *t = s->tenant;
	struct kvpd_importance *p = &t->importance;
	const uint8_t *code = kvp_sqe_attention(sqe);
	uint32_t id = sqe->parent_id;

	if (sqe->count > KVP_ATTENTION_BLOCKS || !kvpd_importance_names(s, sqe) || !ready(t))
		return;
	/* Those above a block with a payload have one, and are of its space. */
	for (uint32_t i = 0; i < sqe->count && id != KVP_BLOCK_NONE; i++) {
		if (code[i] != KVP_ATTENTION_NONE) {
			p->of[id] = kvpd_importance_pack(kvp_allot_learn(
				kvpd_importance_of(t, id), kvpd_importance_said(code[i])));
			p->reported[sqe->space]++;
		}
		id = kvp_load_relaxed(&t->view.blocks[id].parent);
	}
}

bool kvpd_importance_known(const struct kvpd_tenant *t, uint32_t space)
{
	return t->importance.of && t->importance.reported[space];
}

void kvpd_importance_forget(struct kvpd_tenant *t, uint32_t block)
{
	if (t->importance.of)
		t->importance.of[block] = 0;
}

/* ---- ending ---------------------------------------------------------------------------------- */

void kvpd_importance_free(struct kvpd_tenant *t)
{
	struct kvpd_importance *p = &t->importance;

	free(p->of);
	kvpd_meta_discharge(t, p->charged);
	*p = (struct kvpd_importance){ 0 };
}

void kvpd_importance_leave(struct kvpd_tenant *t, uint32_t space)
{
	t->importance.reported[space] = 0;
	if (!t->precision.floors)
		kvpd_importance_free(t);
}
