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

/* ring_lock. Blocks [first, first + n) of a prefix; -EAGAIN: the ring has no room for it. */
static int push(const struct kvp_prefix *m, uint32_t space, const float *attention, uint32_t first,
	uint32_t n, double mean)
{
	struct attachment *att = m->att;
	const struct kvp_hit *last = &m->hits[first + n - 1];
	struct kvp_sqe sqe = {
		.op = KVP_OP_ATTENTION,
		.space = (uint16_t)space,
		.count = n,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = last->id,
		.parent_birth = kvp_word_birth(last->word),
	};

	if (att->sq_tail - kvp_load_acquire(&att->page->sq_head) >= KVP_SQ_ENTRIES - KEPT_FREE)
		return -EAGAIN;
	for (uint32_t i = 0; i < n; i++)
		kvp_sqe_attention(&sqe)[i] = code_of(attention[first + n - 1 - i], mean);
	sqe.serial = ++att->other_serial;
	return kvp_sq_push(att->page, &att->sq_tail, &sqe);
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

int kvp_report_attention(
	const struct kvp_prefix *m, const float *attention, uint32_t n, uint32_t from)
{
	const struct space_bind *b;
	struct kvp_client *c;
	uint32_t at = from;
	double mean = 0;
	int r = usable(m);

	if (r < 0)
		return r;
	if (!attention || n > m->n_blocks || from >= n || mean_of(attention, n, &mean) < 0)
		return -EINVAL;
	if (!m->att)
		return -ESHUTDOWN;
	c = m->client;
	pthread_mutex_lock(&c->ring_lock);
	b = kvp_load_seq(&m->att->dead) ? NULL : bind_of(m->att, m->space);
	r = !b ? -ESHUTDOWN : m->att->stuck ? -EAGAIN : 0;
	while (r == 0 && at < n) {
		uint32_t run = n - at < KVP_ATTENTION_BLOCKS ? n - at : KVP_ATTENTION_BLOCKS;

		r = push(m, b->index, attention, at, run, mean);
		at += r == 0 ? run : 0;
	}
	if (at > from && kvp_sq_must_wake(m->att->page))
		ledger_wake(m->att);
	pthread_mutex_unlock(&c->ring_lock);
	return at > from ? (int)at : r;
}
