/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention around and beside the tuned kernels of attend.cu: the rotation of queries, attention
 * over any pair of codecs and any dims, attention mass, and the merge of splits.
 *
 * The general kernel decodes a tile of keys into shared memory as fp32, in the domain of the codes,
 * scores it (one warp per query row), then does the same with the values (one thread per channel).
 */
#include "kernels/cuda/attend.h"
#include "kernels/cuda/job.h"
#include "kernels/cuda/plane.h"

/* ---- queries into the domain of the keys: one warp per vector ---- */

KVP_KERNEL(kvp_cu_rotate, kvp_cuda_rotate, 32 * ROTATE_WARPS, 1)
{
	uint32_t warp = kvp_tid() / 32, lane = kvp_tid() % 32;
	uint32_t i = kvp_block_x() * ROTATE_WARPS + warp, head = i % p.heads;
	uint32_t query = i / p.heads % p.queries, seq = i / p.heads / p.queries;
	struct mem_row m = mem_row(p.dim, warp * 2 * p.dim * 4);
	const uint8_t *from;

	if (seq >= p.seqs)
		return;
	from = at_const(p.q, (int64_t)seq * p.q_seq_stride + (int64_t)query * p.q_query_stride +
				     (int64_t)head * p.q_head_stride);
	for (uint32_t c = lane; c < p.dim; c += 32)
		kvp_sts_f32(mem_x(m, c), load_raw(from, p.q_dtype, c));
	mem_rotate(&p.rot, m, lane);
	for (uint32_t c = lane; c < p.dim; c += 32)
		kvp_stg_f32(at(p.out, ((int64_t)i * p.dim + c) * 4), kvp_lds_f32(mem_x(m, c)));
}

/* ---- a tile of decoded rows ---- */

/* A row as floats, in the domain of its codes, to byte offset `to`; one warp. */
KVP_DEV void load_row(
	const struct kvp_cuda_codec *c, const struct row_at *row, uint32_t to, uint32_t lane)
{
	uint32_t family = KVP_CODEC_FAMILY(c->id);
	const uint8_t *codes = row_codes(c, row);

	if (c->id == KVP_CODEC_NATIVE || row->token >= c->coded) {
		for (uint32_t i = lane; i < c->dim; i += 32)
			kvp_sts_f32(to + 4 * i, load_raw(native_row(c, row), c->dtype, i));
	} else if (family == KVP_FAMILY_TQ) {
		float s = row_scalar(c, row);

		for (uint32_t i = lane; i < c->dim; i += 32)
			kvp_sts_f32(to + 4 * i, s * c->cent[load_code(codes, c->dim, c->bits, i)]);
	} else if (family == KVP_FAMILY_FP8 || family == KVP_FAMILY_INT8) {
		float s = row_scalar(c, row);

		for (uint32_t i = lane; i < c->dim; i += 32)
			kvp_sts_f32(to + 4 * i, s * byte_value(c->id, kvp_ldg_u8(codes + i)));
	} else {
		for (uint32_t i = lane; i < c->dim; i += 32)
			kvp_sts_f32(
				to + 4 * i, affine_value(c, row, codes, i) * pow2i(row->exponent));
	}
}

/* Tokens [first, first + n) of one head, n <= ANY_TILE, each by one warp. */
KVP_DEV void load_tile(const struct kvp_cuda_attend *p, const struct kvp_cuda_codec *c,
	uint64_t offset, uint32_t head, uint32_t first, uint32_t n, uint32_t to)
{
	for (uint32_t t = kvp_tid() / 32; t < n; t += ANY_ROWS) {
		struct row_at row;

		row.raw = NULL;
		row.plane = at(page_of(p, first + t), (int64_t)offset);
		row.head = head;
		row.token = (first + t) % c->tokens;
		row.exponent = plane_exponent(c, row.plane);
		load_row(c, &row, to + t * c->dim * 4, kvp_tid() % 32);
	}
}

KVP_DEV void load_query(const struct kvp_cuda_attend *p, const uint8_t *from, uint32_t to)
{
	for (uint32_t i = kvp_tid() % 32; i < p->k.dim; i += 32)
		kvp_sts_f32(to + 4 * i, load_raw(from, p->q_dtype, i));
}

/* Score of this warp's query against token `lane` of the tile, in units of log2, before any mask;
 * anything in lanes from n on. */
KVP_DEV float tile_score(const struct kvp_cuda_attend *p, uint32_t query, uint32_t tile, uint32_t n)
{
	uint32_t lane = kvp_tid() % 32;
	float sum[ANY_TILE], mine = 0.0f;

	KVP_UNROLL
	for (uint32_t t = 0; t < ANY_TILE; t++)
		sum[t] = 0.0f;
	for (uint32_t i = lane; i < p->k.dim; i += 32) {
		float q = kvp_lds_f32(query + 4 * i);

		KVP_UNROLL
		for (uint32_t t = 0; t < ANY_TILE; t++)
			if (t < n)
				sum[t] = kvp_fma(
					q, kvp_lds_f32(tile + 4 * (t * p->k.dim + i)), sum[t]);
	}
	KVP_UNROLL
	for (uint32_t t = 0; t < ANY_TILE; t++) {
		float all = warp_sum(sum[t]);

		mine = lane == t ? all : mine;
	}
	return mine * p->scale * LOG2E;
}

/* ---- attention: one warp per query row, one thread per channel of V ---- */

#define ANY_CHANNELS (KVP_PLANE_DIM_MAX / ANY_THREADS) /* of V per thread */

/* A query row as its warp keeps it; the same in all lanes. */
struct any_row {
	uint32_t first;
	uint32_t end;
	const uint8_t *mask;
	float max;
	float weight;
};

KVP_DEV struct any_row any_row_of(const struct kvp_cuda_attend *p, const struct job *j, uint32_t r)
{
	struct any_row row = { 0, 0, mask_row(p, r / p->group), NEG_INF, 0.0f };

	if (r < j->rows)
		visible(p, j->tokens, r / p->group, &row.first, &row.end);
	return row;
}

KVP_DEV float warp_max(float v)
{
	KVP_UNROLL
	for (uint32_t m = 16; m > 0; m /= 2)
		v = max_or_nan(v, kvp_shfl_xor_f32(v, m));
	return v;
}

/* Scores of the tile become weights, which go to shared memory for all channels, with the factor
 * by which the row's earlier sums shrink. */
KVP_DEV void any_weigh(const struct kvp_cuda_attend *p, const struct attend_any_smem *s,
	uint32_t token, uint32_t n, struct any_row *row)
{
	uint32_t warp = kvp_tid() / 32, lane = kvp_tid() % 32, t = token + lane;
	float score = tile_score(p, s->queries + warp * p->k.dim * 4, s->tile, n), max, base, fade;

	score = lane < n && t >= row->first && t < row->end ? masked(row->mask, t, score) : NEG_INF;
	max = max_or_nan(row->max, warp_max(score));
	base = max == NEG_INF ? 0.0f : max;
	fade = kvp_exp2(row->max - base);
	score = kvp_exp2(score - base);
	row->max = max;
	row->weight = row->weight * fade + warp_sum(score);
	if (lane < n)
		kvp_sts_f32(s->weights + 4 * (warp * ANY_TILE + lane), score);
	if (lane == 0)
		kvp_sts_f32(s->fades + 4 * warp, fade);
}

/* A weight of 0 leaves its token out: what lies there may be anything, NaN included. */
KVP_DEV void any_accumulate(const struct kvp_cuda_attend *p, const struct attend_any_smem *s,
	uint32_t n, float sum[ANY_CHANNELS][ANY_ROWS])
{
	KVP_UNROLL
	for (uint32_t k = 0; k < ANY_CHANNELS; k++) {
		uint32_t c = kvp_tid() + k * ANY_THREADS;

		if (c >= p->v.dim)
			break;
		KVP_UNROLL
		for (uint32_t r = 0; r < ANY_ROWS; r++)
			sum[k][r] *= kvp_lds_f32(s->fades + 4 * r);
		for (uint32_t t = 0; t < n; t++) {
			float v = kvp_lds_f32(s->tile + 4 * (t * p->v.dim + c));

			KVP_UNROLL
			for (uint32_t r = 0; r < ANY_ROWS; r++) {
				float w = kvp_lds_f32(s->weights + 4 * (r * ANY_TILE + t));

				sum[k][r] = w != 0.0f ? kvp_fma(w, v, sum[k][r]) : sum[k][r];
			}
		}
	}
}

KVP_DEV void any_store(const struct kvp_cuda_attend *p, const struct job *j,
	const struct any_row *row, float sum[ANY_CHANNELS][ANY_ROWS])
{
	uint32_t warp = kvp_tid() / 32;

	KVP_UNROLL
	for (uint32_t r = 0; r < ANY_ROWS; r++) {
		uint8_t *out = partial_row(p, j, j->row0 + r);

		KVP_UNROLL
		for (uint32_t k = 0; k < ANY_CHANNELS; k++) {
			uint32_t c = kvp_tid() + k * ANY_THREADS;

			if (j->row0 + r < j->rows && c < p->v.dim)
				kvp_stg_f32(out + 4 * c, sum[k][r]);
		}
	}
	if (kvp_tid() % 32 == 0 && j->row0 + warp < j->rows) {
		uint8_t *out = partial_row(p, j, j->row0 + warp);

		kvp_stg_f32(out + 4 * p->v.dim, row->max);
		kvp_stg_f32(out + 4 * (p->v.dim + 1), row->weight);
	}
}

KVP_KERNEL(kvp_cu_attend_any, kvp_cuda_attend, ANY_THREADS, 1)
{
	const struct attend_any_smem s = attend_any_smem_of(p.k.dim, p.v.dim);
	struct job j = find_job(&p, ANY_ROWS, ANY_TILE);
	uint32_t warp = kvp_tid() / 32;
	struct any_row row = any_row_of(&p, &j, j.row0 + warp);
	float sum[ANY_CHANNELS][ANY_ROWS];

	KVP_UNROLL
	for (uint32_t k = 0; k < ANY_CHANNELS; k++) {
		KVP_UNROLL
		for (uint32_t r = 0; r < ANY_ROWS; r++)
			sum[k][r] = 0.0f;
	}
	/* rows that there are not repeat the last one and see nothing */
	load_query(&p, query_row(&p, j.head, j.row0 + warp < j.rows ? j.row0 + warp : j.rows - 1),
		s.queries + warp * p.k.dim * 4);
	for (uint32_t tile = j.tile; tile < j.tile_end; tile++) {
		uint32_t token = tile * ANY_TILE, n = j.tokens - token;

		n = n < ANY_TILE ? n : ANY_TILE;
		load_tile(&p, &p.k, p.k_offset, j.head, token, n, s.tile);
		kvp_sync();
		any_weigh(&p, &s, token, n, &row);
		kvp_sync();
		load_tile(&p, &p.v, p.v_offset, j.head, token, n, s.tile);
		kvp_sync();
		any_accumulate(&p, &s, n, sum);
		kvp_sync();
	}
	any_store(&p, &j, &row, sum);
}

/* ---- attention mass: one block per split and KV head, each warp some of the rows ---- */

/* The weight that the warp's rows give to token `lane` of the tile. */
KVP_DEV float tile_mass(const struct kvp_cuda_mass *m, const struct attend_any_smem *s,
	const struct job *j, uint32_t token, uint32_t n)
{
	const struct kvp_cuda_attend *p = &m->attend;
	uint32_t warp = kvp_tid() / 32, lane = kvp_tid() % 32, t = token + lane;
	uint32_t query = s->queries + warp * p->k.dim * 4;
	float mass = 0.0f;

	for (uint32_t r = warp; r < j->rows; r += ANY_ROWS) {
		struct any_row row = any_row_of(p, j, r);
		float lse = kvp_ldg_f32(at_const(m->lse,
			(((int64_t)kvp_block_z() * p->k.heads + j->head) * j->rows + r) * 4));
		float score;

		load_query(p, query_row(p, j->head, r), query);
		score = tile_score(p, query, s->tile, n);
		score = lane < n && t >= row.first && t < row.end ? masked(row.mask, t, score)
								  : NEG_INF;
		if (lse != NEG_INF)
			mass += kvp_exp2(score - lse * LOG2E);
	}
	return mass;
}

KVP_KERNEL(kvp_cu_mass, kvp_cuda_mass, ANY_THREADS, 1)
{
	const struct kvp_cuda_attend *a = &p.attend;
	const struct attend_any_smem s = attend_any_smem_of(a->k.dim, a->v.dim);
	uint32_t warp = kvp_tid() / 32, lane = kvp_tid() % 32, tiles, per, end;
	struct job j = { 0, 0, 0, 0, 0, 0 };

	j.rows = a->queries * a->group;
	j.head = kvp_block_y();
	j.tokens = kvp_ldg_u32(at_const(a->lengths, (int64_t)kvp_block_z() * 4));
	/* all tiles, seen or not: what no row sees gets 0 */
	tiles = (j.tokens + ANY_TILE - 1) / ANY_TILE;
	per = (tiles + a->splits - 1) / a->splits;
	end = (kvp_block_x() + 1) * per < tiles ? (kvp_block_x() + 1) * per : tiles;
	for (uint32_t tile = kvp_block_x() * per; tile < end; tile++) {
		uint32_t token = tile * ANY_TILE, n = j.tokens - token;
		float mass;

		n = n < ANY_TILE ? n : ANY_TILE;
		load_tile(a, &a->k, a->k_offset, j.head, token, n, s.tile);
		kvp_sync();
		mass = tile_mass(&p, &s, &j, token, n);
		if (lane < n)
			kvp_sts_f32(s.weights + 4 * (warp * ANY_TILE + lane), mass);
		/* and the next tile's keys may come; its weights do after another barrier */
		kvp_sync();
		if (kvp_tid() < n) {
			mass = 0.0f;
			for (uint32_t w = 0; w < ANY_ROWS; w++)
				mass += kvp_lds_f32(s.weights + 4 * (w * ANY_TILE + kvp_tid()));
			kvp_stg_f32(
				at(p.mass, (int64_t)kvp_block_z() * p.mass_seq_stride +
						   (int64_t)j.head * p.mass_head_stride +
						   ((int64_t)origin_of(a) + token + kvp_tid()) * 4),
				mass);
		}
	}
}

/* ---- merging splits: one warp per row ---- */

/* The parts of one row, and what they are to be weighted with. */
struct parts {
	const uint8_t *at;
	uint32_t dim;
	float max;
};

KVP_DEV float part_value(const struct parts *r, uint32_t split, uint32_t i)
{
	return kvp_ldg_f32(r->at + ((uint64_t)split * (r->dim + 2) + i) * 4);
}

KVP_DEV float part_fade(const struct parts *r, uint32_t split)
{
	return kvp_exp2(part_value(r, split, r->dim) - r->max);
}

/* The row's maximum, or NaN: each lane looks at some of the splits. */
KVP_DEV float parts_max(const struct parts *r, uint32_t splits, uint32_t lane)
{
	float max = NEG_INF;

	for (uint32_t s = lane; s < splits; s += 32)
		max = max_or_nan(max, part_value(r, s, r->dim));
	KVP_UNROLL
	for (uint32_t m = 16; m > 0; m /= 2)
		max = max_or_nan(max, kvp_shfl_xor_f32(max, m));
	return max;
}

KVP_DEV float parts_weight(const struct parts *r, uint32_t splits, uint32_t lane)
{
	float weight = 0.0f;

	for (uint32_t s = lane; s < splits; s += 32)
		weight += part_value(r, s, r->dim + 1) * part_fade(r, s);
	return warp_sum(weight);
}

/* The sums of splits [first, end) to shared memory, rotated back. All lanes want the same fades:
 * each makes one of 32 at a time. No load waits for another. */
KVP_DEV void merge_domain(const struct parts *r, const struct kvp_cuda_domain *d, uint32_t first,
	struct mem_row m, uint32_t lane)
{
	for (uint32_t i = lane; i < r->dim; i += 32)
		kvp_sts_f32(mem_x(m, i), 0.0f);
	for (; first < d->split_end; first += 32) {
		uint32_t n = d->split_end - first < 32 ? d->split_end - first : 32;
		uint32_t fade = kvp_f32_bits(lane < n ? part_fade(r, first + lane) : 0.0f);

		for (uint32_t i = 0; i < r->dim; i += 32) {
			uint32_t c = i + lane < r->dim ? i + lane : i;
			float sum = 0.0f;

			KVP_UNROLL_BY(8)
			for (uint32_t s = 0; s < n; s++) {
				float f = kvp_bits_f32(kvp_shfl_u32(fade, s));
				float v = part_value(r, first + s, c);

				/* a part that counts for nothing may hold anything */
				sum += f != 0.0f ? v * f : 0.0f;
			}
			if (i + lane < r->dim)
				kvp_sts_f32(mem_x(m, c), kvp_lds_f32(mem_x(m, c)) + sum);
		}
	}
	mem_unrotate(&d->rot, m, lane);
}

KVP_KERNEL(kvp_cu_merge, kvp_cuda_merge, 32 * MERGE_WARPS, 1)
{
	uint32_t warp = kvp_tid() / 32, lane = kvp_tid() % 32, rows = p.queries * p.group;
	uint32_t r = kvp_block_x() * MERGE_WARPS + warp, first = 0;
	uint32_t total = warp * 3 * p.dim * 4; /* the row in the making */
	struct mem_row m = mem_row(p.dim, total + p.dim * 4);
	uint64_t row = ((uint64_t)kvp_block_z() * p.heads + kvp_block_y()) * rows + r;
	struct parts parts;
	float weight = 0.0f;
	uint8_t *out;

	if (r >= rows)
		return;
	parts.at = at_const(p.partial, (int64_t)(row * p.split_total * (p.dim + 2) * 4));
	parts.dim = p.dim;
	parts.max = parts_max(&parts, p.split_total, lane);
	for (uint32_t i = lane; i < p.dim; i += 32)
		kvp_sts_f32(total + 4 * i, 0.0f);
	if (parts.max != NEG_INF)
		weight = parts_weight(&parts, p.split_total, lane);
	for (uint32_t d = 0; d < p.domains && parts.max != NEG_INF; d++) {
		merge_domain(&parts, &p.domain[d], first, m, lane);
		for (uint32_t i = lane; i < p.dim; i += 32)
			kvp_sts_f32(total + 4 * i,
				kvp_lds_f32(total + 4 * i) + kvp_lds_f32(mem_x(m, i)));
		first = p.domain[d].split_end;
	}
	out = at(p.out,
		(int64_t)kvp_block_z() * p.out_seq_stride +
			(int64_t)(r / p.group) * p.out_query_stride +
			(int64_t)(kvp_block_y() * p.group + r % p.group) * p.out_head_stride);
	for (uint32_t i = lane; i < p.dim; i += 32)
		store_raw(out, p.out_dtype, i,
			parts.max == NEG_INF ? 0.0f
					     : kvp_div_rn(kvp_lds_f32(total + 4 * i), weight));
	if (lane == 0 && p.lse)
		kvp_stg_f32(at(p.lse, (int64_t)row * 4),
			parts.max == NEG_INF ? NEG_INF : (parts.max + kvp_log2(weight)) * LN2);
}
