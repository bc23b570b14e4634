/* SPDX-License-Identifier: Apache-2.0 */
/* The transforms of `pca` in reference C, by vectors that every machine has, or that compilers split. */
#define LANES  4u
#define TOKENS 2u
#define VECS   4u
#include "kernels/pca.h"
#include "kernels/pca_rows.h"

void kvp_pca_project_c(const struct kvp_pca *pca, const struct pca_unit *u, float *x, int32_t *q)
{
	project(pca, u, x, q);
}

/* ---- back ---- */

/* Adds two components of a pair of tokens to their sums. */
static void add_two(const int16_t *a, const int16_t *b, const int16_t *v, int32_t *sum)
{
	for (uint32_t i = 0; i < PCA_ALIGN; i++)
		sum[i] += a[i] * v[0] + b[i] * v[1];
}

void kvp_pca_build_c(const struct kvp_pca *pca, const struct pca_unit *u,
	const struct pca_pair *pair, uint32_t n, float *y)
{
	int32_t sum[PCA_ALIGN];

	for (uint32_t i = 0; i < pca->width_stride; i += PCA_ALIGN) {
		const int16_t *axes = u->inverse + (size_t)i * u->rank;

		for (uint32_t t = 0; t < n; t++) {
			const struct pca_pair *p = &pair[t / 2];
			float *to = y + (size_t)t * pca->width_stride + i;

			if (p->wide & ~PCA_SUMS)
				continue;
			memset(sum, 0, sizeof sum);
			for (uint32_t k = 0; k < p->n; k += 2)
				add_two(axes + p->at[k] * PCA_ALIGN,
					axes + p->at[k + 1] * PCA_ALIGN, p->value[t % 2] + k, sum);
			if (p->wide)
				memcpy(to, sum, sizeof sum);
			else
				for (uint32_t j = 0; j < PCA_ALIGN; j++)
					to[j] = u->mean[i + j] + u->scale[i + j] * (float)sum[j];
		}
	}
}

/* ---- symbols ---- */

/* All of them are for who writes escapes. */
void kvp_pca_symbols_c(const struct pca_unit *u, const int32_t *q, uint32_t n, uint32_t at,
	struct pca_tile *tile, uint8_t *ret_odd)
{
	(void)q;
	(void)n;
	(void)at;
	(void)tile;
	memset(ret_odd, 1, u->rank_stride / PCA_BLOCK);
}

/* A component that is not simply what its symbol says; takes its escape. */
static int32_t value_of(const struct pca_tile *tile, const struct pca_table *table, uint32_t at,
	const uint8_t **escape)
{
	int32_t high = (int32_t)tile->sym[at] - (int32_t)KVP_CALIB_ZERO, q, m;
	int16_t v;

	if (tile->sym[at] == KVP_CALIB_ESCAPE) {
		memcpy(&v, *escape, sizeof v);
		*escape += sizeof v;
		high = v;
	}
	q = high * (1 << table->shift) + (table->shift ? tile->low[at] : 0);
	if (!q)
		return 0;
	m = (q < 0 ? -q : q) * (1 << PCA_VALUE_BITS) - table->offset[q < -1 || q > 1];
	return q < 0 ? -m : m;
}

static inline void add(struct pca_pair *pair, uint32_t at, int32_t even, int32_t odd)
{
	pair->at[pair->n] = (uint16_t)at;
	pair->value[0][pair->n] = (int16_t)even;
	pair->value[1][pair->n] = (int16_t)odd;
	pair->n += (even | odd) != 0;
}

/* What 16 bits have of it. */
static int32_t part_of(int32_t v)
{
	return v > INT16_MAX ? INT16_MAX : v < -INT16_MAX ? -INT16_MAX : v;
}

static void add_parts(struct pca_pair *pair, uint32_t c, int32_t even, int32_t odd)
{
	add(pair, c, part_of(even), part_of(odd));
	for (;;) {
		even -= part_of(even);
		odd -= part_of(odd);
		if (!(even | odd))
			return;
		if (pair->n >= c + 1 + PCA_MORE)
			break;
		add(pair, c, part_of(even), part_of(odd));
	}
	pair->wide |= PCA_WIDE_VALUE;
}

/* Components of PCA_ROWS tokens that are not simply what their symbols say. */
static void add_coded(struct pca_pair *pair, const struct pca_tile *tile,
	const struct pca_table *table, uint32_t c, uint32_t at, const uint8_t **escape)
{
	for (uint32_t t = 0; t < PCA_ROWS; t += 2, pair++) {
		const int32_t even = value_of(tile, table, c * PCA_TILE + at + t, escape);
		const int32_t odd = value_of(tile, table, c * PCA_TILE + at + t + 1, escape);

		add_parts(pair, c, even, odd);
	}
}

typedef int16_t eight __attribute__((vector_size(16)));
typedef uint32_t sums __attribute__((vector_size(16)));

/* What magnitudes of n values add up to. */
static uint32_t size_of(const int16_t *value, uint32_t n)
{
	sums sum = { 0 };
	uint32_t i = 0, rest = 0;
	eight x;

	for (; i + 8 <= n; i += 8) {
		memcpy(&x, value + i, sizeof x);
		x = (x ^ (x >> 15)) - (x >> 15);
		sum += ((sums)x & 0xffffu) + ((sums)x >> 16);
	}
	for (; i < n; i++)
		rest += (uint32_t)(value[i] < 0 ? -value[i] : value[i]);
	return rest + sum[0] + sum[1] + sum[2] + sum[3];
}

static void finish(struct pca_pair *pair)
{
	for (uint32_t t = 0; t < 2; t++)
		if (size_of(pair->value[t], pair->n) > PCA_SUM_MAX)
			pair->wide |= PCA_WIDE_SUM;
	pair->at[pair->n] = 0;
	pair->value[0][pair->n] = pair->value[1][pair->n] = 0;
	pair->n += pair->n % 2;
}

/* Table by table the components of PCA_ROWS tokens; those that are 0 in all are passed over. */
void kvp_pca_lists_c(const struct pca_unit *u, const struct pca_tile *tile, uint32_t at,
	const uint8_t *escape, struct pca_pair *pair)
{
	const uint64_t ones = UINT64_C(0x0101010101010101);
	const struct pca_table *table = u->table;

	for (uint32_t t = 0; t < PCA_ROWS / 2; t++)
		pair[t].n = pair[t].wide = 0;
	for (uint32_t c = 0; c < u->rank; c++) {
		const uint8_t *sym = tile->sym + c * PCA_TILE + at;
		const int16_t *value;
		uint64_t word;

		while (c - table->first >= table->count)
			table++;
		value = table->value;
		memcpy(&word, sym, sizeof word);
		if (table->shift || ((word - ones) & ~word & ones << 7)) /* a byte of 0 */
			add_coded(pair, tile, table, c, at, &escape);
		else if (word != ones * KVP_CALIB_ZERO)
			for (uint32_t t = 0; t < PCA_ROWS; t += 2)
				add(&pair[t / 2], c, value[sym[t]], value[sym[t + 1]]);
	}
	for (uint32_t t = 0; t < PCA_ROWS / 2; t++)
		finish(&pair[t]);
}

/* ---- what does not fit ---- */

/* One component of a token: below 2^53 in all, so every sum is exact. */
static void add_wide(
	const struct kvp_pca *pca, const struct pca_unit *u, uint32_t c, double v, double *sum)
{
	for (uint32_t i = 0; i < pca->width_stride; i += PCA_ALIGN) {
		const int16_t *axis = u->inverse + ((size_t)i * u->rank + c * PCA_ALIGN);

		for (uint32_t j = 0; j < PCA_ALIGN; j++)
			sum[i + j] += v * axis[j];
	}
}

void kvp_pca_build_wide(const struct kvp_pca *pca, const struct pca_unit *u,
	const struct pca_tile *tile, uint32_t at, uint32_t token, const uint8_t *escape, float *y)
{
	double sum[KVP_CALIB_WIDTH_MAX] = { 0 };
	const struct pca_table *table = u->table;

	for (uint32_t c = 0; c < u->rank; c++) {
		while (c - table->first >= table->count)
			table++;
		for (uint32_t t = 0; t < PCA_ROWS; t++) {
			const int32_t v = value_of(tile, table, c * PCA_TILE + at + t, &escape);

			if (v && t == token)
				add_wide(pca, u, c, v, sum);
		}
	}
	for (uint32_t i = 0; i < pca->width_stride; i++)
		y[i] = u->mean[i] + u->scale[i] * (float)sum[i];
}
