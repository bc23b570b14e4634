/* SPDX-License-Identifier: Apache-2.0 */
/* Attention that an engine's queries paid to the blocks of a prefix, on its way to the daemon. */
#include <math.h>

#include "libclient/coded.h"
#include "libclient/match.h"
#include "libclient/ring.h"

/* Entries of the ring that other calls find free, whatever is reported. */
#define KEPT_FREE (KVP_SQ_ENTRIES / 2)

/* 0 and the mean of all; -EINVAL: one is not a share, or there is none. */
static int mean_of(const float *attention, uint32_t n, double *ret_mean)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!(attention[i] >= 0) || !isfinite(attention[i]))
			return -EINVAL;
		sum += attention[i];
	}
	if (!(sum > 0))
		return -EINVAL;
	*ret_mean = sum / n;
	return 0;
}

static uint8_t code_of(float attention, double mean)
{
	double code =
		KVP_ATTENTION_MEAN + KVP_ATTENTION_OCTAVE * log2((double)attention / mean) + .5;

	/* Nothing at all is less than the least that can be said, and the logarithm is none. */
	if (!(code > 1))
		return 1;
	return code < UINT8_MAX ? (uint8_t)code : UINT8_MAX;
}

/* A report: of blocks, or of all their tokens. */
struct report {
	const struct kvp_prefix *m;
	const float *attention; /* [n] or [n * tokens] */
	uint32_t space, n;      /* blocks */
	uint32_t tokens;        /* 0: of blocks */
	bool within;            /* and the daemon hears of tokens */
	double mean;            /* of a block */
};

/* ring_lock. Entries that may be used. */
static uint32_t room_of(struct attachment *att)
{
	uint32_t used = att->sq_tail - kvp_load_acquire(&att->page->sq_head);

	return used < KVP_SQ_ENTRIES - KEPT_FREE ? KVP_SQ_ENTRIES - KEPT_FREE - used : 0;
}

static float sum_of(const struct report *r, uint32_t block)
{
	const float *at = r->attention + (size_t)block * r->tokens;
	double sum = 0;

	if (!r->tokens)
		return r->attention[block];
	for (uint32_t i = 0; i < r->tokens; i++)
		sum += at[i];
	return (float)sum;
}

/* ring_lock, and there is room for it. An entry that names a block. */
static int push(const struct report *r, uint32_t block, struct kvp_sqe *sqe)
{
	const struct kvp_hit *hit = &r->m->hits[block];
	struct attachment *att = r->m->att;

	sqe->space = (uint16_t)r->space;
	sqe->parent_kind = KVP_PARENT_BLOCK;
	sqe->parent_id = hit->id;
	sqe->parent_birth = kvp_word_birth(hit->word);
	sqe->serial = ++att->other_serial;
	return kvp_sq_push(att->page, &att->sq_tail, sqe);
}

/* Blocks [first, first + n). */
static int push_blocks(const struct report *r, uint32_t first, uint32_t n)
{
	struct kvp_sqe sqe = { .op = KVP_OP_ATTENTION, .count = n };

	for (uint32_t i = 0; i < n; i++)
		kvp_sqe_attention(&sqe)[i] = code_of(sum_of(r, first + n - 1 - i), r->mean);
	return push(r, first + n - 1, &sqe);
}

/* What the tokens of a block got, beside each other; nothing of one that got nothing. */
static int push_tokens(const struct report *r, uint32_t block)
{
	const float *at = r->attention + (size_t)block * r->tokens;
	double mean = (double)sum_of(r, block) / r->tokens;
	int e = 0;

	for (uint32_t t = 0; e == 0 && mean > 0 && t < r->tokens; t += KVP_ATTENTION_TOKENS) {
		uint32_t left = r->tokens - t;
		struct kvp_sqe sqe = {
			.op = KVP_OP_TOKENS,
			.tokens = (uint16_t)t,
			.count = left < KVP_ATTENTION_TOKENS ? left : KVP_ATTENTION_TOKENS,
		};

		for (uint32_t i = 0; i < sqe.count; i++)
			kvp_sqe_attention(&sqe)[i] = code_of(at[t + i], mean);
		e = push(r, block, &sqe);
	}
	return e;
}

/* ring_lock. Of blocks from `at` on, as many as one entry holds and there is room for; *at: the next one. -EAGAIN. */
static int push_run(const struct report *r, uint32_t *at)
{
	uint32_t each =
		r->within ? (r->tokens + KVP_ATTENTION_TOKENS - 1) / KVP_ATTENTION_TOKENS : 0;
	uint32_t room = room_of(r->m->att), n = r->n - *at;
	int e;

	if (room < 1 + each)
		return -EAGAIN;
	n = n < KVP_ATTENTION_BLOCKS ? n : KVP_ATTENTION_BLOCKS;
	if (each && n > (room - 1) / each)
		n = (room - 1) / each;
	e = push_blocks(r, *at, n);
	for (uint32_t i = 0; e == 0 && r->within && i < n; i++)
		e = push_tokens(r, *at + i);
	*at += e == 0 ? n : 0;
	return e;
}

/* Is it one whose blocks can be named, and may be coded? */
static int usable(const struct kvp_prefix *m)
{
	if (!m || !prefix_live(m))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	return m->flags & PREFIX_KEYS || !m->space->codecs ? -EOPNOTSUPP : 0;
}

/* From block *at on; 0: all of it, or the error. */
static int say(struct report *r, uint32_t *at)
{
	const struct kvp_prefix *m = r->m;
	struct kvp_client *c = m->client;
	const struct space_bind *b;
	uint32_t from = *at;
	int e;

	if (!m->att)
		return -ESHUTDOWN;
	pthread_mutex_lock(&c->ring_lock);
	b = kvp_load_seq(&m->att->dead) ? NULL : bind_of(m->att, m->space);
	e = !b ? -ESHUTDOWN : m->att->stuck ? -EAGAIN : 0;
	r->space = b ? b->index : 0;
	while (e == 0 && *at < r->n)
		e = push_run(r, at);
	if (*at > from && kvp_sq_must_wake(m->att->page))
		ledger_wake(m->att);
	pthread_mutex_unlock(&c->ring_lock);
	return e;
}

int kvp_report_attention(
	const struct kvp_prefix *m, const float *attention, uint32_t n, uint32_t from)
{
	struct report report = { .m = m, .attention = attention, .n = n };
	uint32_t at = from;
	int r = usable(m);

	if (r < 0)
		return r;
	if (!attention || n > m->n_blocks || from >= n || mean_of(attention, n, &report.mean) < 0)
		return -EINVAL;
	r = say(&report, &at);
	return at > from ? (int)at : r;
}

/* Have tokens of one block bits of their own by the space's floor? */
static bool tokens_share(const struct space_codecs *c)
{
	const struct kvp_block_layout *l = &c->width[c->lowest];

	return kvp_payload_token_budget(l, KVP_PLANE_K) || kvp_payload_token_budget(l, KVP_PLANE_V);
}

int kvp_report_token_attention(
	const struct kvp_prefix *m, const float *attention, uint32_t n, uint32_t from)
{
	struct report report = { .m = m, .attention = attention };
	uint32_t at;
	int r = usable(m);

	if (r < 0)
		return r;
	report.tokens = m->space->canon.block_tokens;
	report.n = n / report.tokens;
	if (!attention || n % report.tokens || from % report.tokens || report.n > m->n_blocks ||
		from >= n || mean_of(attention, n, &report.mean) < 0)
		return -EINVAL;
	report.mean *= report.tokens;
	report.within = tokens_share(m->space->codecs);
	at = from / report.tokens;
	r = say(&report, &at);
	at *= report.tokens;
	return at > from ? (int)at : r;
}
