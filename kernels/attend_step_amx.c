/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of attention by matrix tiles (AMX): see attend_step.h. */
#include "kernels/attend_amx.h"

struct area {
	int8_t keys[KEYS_BYTES] __attribute__((aligned(64)));
	int8_t values[8 * TILE_BYTES] __attribute__((aligned(64)));
	int32_t sum[ROWS * KVP_TILE_QUERIES] __attribute__((aligned(64))); /* [row][query] */
};

#include "kernels/attend_step.h"

INLINE int takes(const struct kvp_rows *r)
{
	return fits(r);
}

INLINE struct bytes bytes_of(const struct kvp_rows *r)
{
	return bytes_init(r);
}

INLINE void multiply_keys_of(struct pass *p, uint32_t m, uint32_t first, uint32_t n, struct area *a)
{
	const struct kvp_rows *k = &p->keys;

	if (n < ROWS) {
		memset(a->values, 0, sizeof a->values);
		memset(a->sum, 0, sizeof a->sum);
	}
	load_queries(p->q, m, 0);
	UNROLL for (uint32_t g = 0; g < ROWS; g += GROUP)
	{
		const uint32_t end = least(n, g + GROUP);

		look_up_keys(k, first, g, end, 0, p->k.book, p->key_lines, a->keys);
		if (g)
			multiply_keys(a->keys, m, g - GROUP, least(n, g), 0, a->sum);
	}
	multiply_keys(a->keys, m, ROWS - GROUP, n, 0, a->sum);
	for (uint32_t piece = 1; 2 * piece * CODES < k->dim; piece++) {
		look_up_keys(k, first, 0, n, piece, p->k.book, NO_LINES, a->keys);
		load_queries(p->q, m, piece);
		multiply_keys(a->keys, m, 0, n, piece, a->sum);
	}
}

/* A share of the values is looked up. */
INLINE void beside_softmax(
	struct pass *p, uint32_t m, uint32_t slot, uint32_t first, uint32_t n, struct area *a)
{
	const uint32_t every = 2 * (ROWS * m / LANES) / (ROWS / TILE), t = slot / every * TILE;

	if (slot % every == 0 && t < n)
		look_up_values(&p->values, first, t, least(n, t + TILE), 0, p->v.book,
			p->value_lines, a->values);
	fetch_ahead(&p->ahead);
}

INLINE void add_values_of(struct pass *p, struct byte_weights *w, uint32_t m, uint32_t first,
	uint32_t n, const float *fade, float *acc, struct area *a)
{
	const struct kvp_rows *v = &p->values;

	if (w->high_only)
		memset(w->byte + m * ROWS, 0, m * ROWS);
	for (uint32_t piece = 0; 2 * piece * CODES < v->dim; piece++) {
		if (piece)
			look_up_values(v, first, 0, n, piece, p->v.book, NO_LINES, a->values);
		add_piece(w, a->values, v->dim, piece, m, p->nq, fade, acc);
	}
}

int kvp_step_tiles(const struct kvp_step *job)
{
	kvp_tiles_for(job->q->n, BYTES_OF_QUERY);
	return step(job);
}
