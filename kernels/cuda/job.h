/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the attention kernels agree on: which tokens a block works on, which of them a query sees,
 * and scores in units of log2. Private to kernels/cuda.
 */
#ifndef KVP_CUDA_JOB_H
#define KVP_CUDA_JOB_H

#include "kernels/cuda/row.h"

#define NEG_INF kvp_bits_f32(0xff800000u)
#define LOG2E   1.44269504088896340736f
#define LN2     0.69314718055994530942f

/* The part of a block: some rows of one KV head (block y) of one sequence (block z), one split
 * (block x) of the tokens that these rows see, in tiles. */
struct job {
	uint32_t rows; /* of the whole sequence and KV head */
	uint32_t row0; /* first of this block */
	uint32_t head;
	uint32_t tokens; /* in the pages */
	uint32_t tile;   /* this split's: [tile, tile_end) */
	uint32_t tile_end;
};

/* Position of the first token of these pages. */
KVP_DEV uint32_t origin_of(const struct kvp_cuda_attend *p)
{
	return p->firsts ? kvp_ldg_u32(at_const(p->firsts, (int64_t)kvp_block_z() * 4)) : 0;
}

/* Tokens that a query may see, mask aside, of those in these pages: [*first, *end). */
KVP_DEV void visible(const struct kvp_cuda_attend *p, uint32_t tokens, uint32_t query,
	uint32_t *first, uint32_t *end)
{
	int64_t origin = origin_of(p), total = origin + tokens, position, lo = 0, hi = tokens;

	if (p->totals)
		total = kvp_ldg_u32(at_const(p->totals, (int64_t)kvp_block_z() * 4));
	position = total - p->queries + query;
	if (p->causal && position + 1 - origin < hi)
		hi = position + 1 - origin;
	if (p->window && position + 1 - origin - p->window > 0)
		lo = position + 1 - origin - p->window;
	hi = hi < 0 ? 0 : hi;
	lo = lo > hi ? hi : lo;
	*first = (uint32_t)lo;
	*end = (uint32_t)hi;
}

/* Blocks of `block_rows` rows; later rows see later tokens. */
KVP_DEV struct job find_job(
	const struct kvp_cuda_attend *p, uint32_t block_rows, uint32_t tile_tokens)
{
	uint32_t blocks, first, end, last, last_end, per;
	struct job j;

	j.rows = p->queries * p->group;
	blocks = (j.rows + block_rows - 1) / block_rows;
	j.head = kvp_block_y() / blocks;
	j.row0 = kvp_block_y() % blocks * block_rows;
	j.tokens = kvp_ldg_u32(at_const(p->lengths, (int64_t)kvp_block_z() * 4));
	last = (j.row0 + block_rows < j.rows ? j.row0 + block_rows : j.rows) - 1;
	visible(p, j.tokens, last / p->group, &first, &last_end);
	visible(p, j.tokens, j.row0 / p->group, &first, &end);
	first /= tile_tokens;
	end = (last_end + tile_tokens - 1) / tile_tokens;
	end = end < first ? first : end;
	per = (end - first + p->splits - 1) / p->splits;
	j.tile = first + kvp_block_x() * per;
	j.tile_end = j.tile + per < end ? j.tile + per : end;
	return j;
}

/* The page that holds a token. */
KVP_DEV uint64_t page_of(const struct kvp_cuda_attend *p, uint32_t token)
{
	return kvp_ldg_u64(at_const(
		p->tables, ((int64_t)kvp_block_z() * p->table_stride + token / p->k.tokens) * 8));
}

/* Query row r of a KV head. */
KVP_DEV const uint8_t *query_row(const struct kvp_cuda_attend *p, uint32_t head, uint32_t r)
{
	return at_const(p->q, (int64_t)kvp_block_z() * p->q_seq_stride +
				      (int64_t)(r / p->group) * p->q_query_stride +
				      (int64_t)(head * p->group + r % p->group) * p->q_head_stride);
}

/* The mask of a query at the first token of these pages; NULL if there is none. */
KVP_DEV const uint8_t *mask_row(const struct kvp_cuda_attend *p, uint32_t query)
{
	if (!p->mask)
		return NULL;
	return at_const(p->mask, (int64_t)kvp_block_z() * p->mask_seq_stride +
					 (int64_t)query * p->mask_query_stride +
					 (int64_t)origin_of(p) * 4);
}

/* A score under its mask; what is masked is so whatever the key holds. */
KVP_DEV float masked(const uint8_t *mask, uint32_t token, float score)
{
	float m = mask ? kvp_ldg_f32(mask + 4 * (uint64_t)token) : 0.0f;

	return m == NEG_INF ? NEG_INF : score + m * LOG2E;
}

/* The larger one, or NaN: a query that sees one shall have it. */
KVP_DEV float max_or_nan(float a, float b)
{
	return b > a || b != b ? b : a;
}

/* Where the partial result of row r goes. */
KVP_DEV uint8_t *partial_row(const struct kvp_cuda_attend *p, const struct job *j, uint32_t r)
{
	uint64_t row = ((uint64_t)kvp_block_z() * p->k.heads + j->head) * j->rows + r;
	uint64_t part = row * p->split_total + p->split_first + kvp_block_x();

	return at(p->partial, (int64_t)(part * (p->v.dim + 2) * 4));
}

#endif
