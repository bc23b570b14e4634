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

void kvp_pca_build_c(const struct kvp_pca *pca, const struct pca_unit *u, uint32_t first,
	const struct pca_list *list, uint32_t n, float *y)
{
	build(pca, u, first, list, n, y);
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

static void add(struct pca_list *list, uint32_t at, float value)
{
	list->at[list->n] = (uint16_t)at;
	list->value[list->n++] = value;
}

/* A component that is not simply what its symbol says; takes its escape. */
static float value_of(const struct pca_tile *tile, const struct pca_table *table, uint32_t at,
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
		return 0.0f;
	m = q < 0 ? -q : q;
	return q < 0 ? table->offset[m > 1] - (float)m : (float)m - table->offset[m > 1];
}

/* One component of PCA_ROWS tokens, whose symbols are values and no escapes: no branch to mispredict. */
static void add_values(struct pca_list *list, const float *value, const uint8_t *sym, uint32_t at)
{
	for (uint32_t t = 0; t < PCA_ROWS; t++, list++) {
		const float v = value[sym[t]];

		list->at[list->n] = (uint16_t)at;
		list->value[list->n] = v;
		list->n += v != 0.0f;
	}
}

static void add_coded(struct pca_list *list, const struct pca_tile *tile,
	const struct pca_table *table, uint32_t component, uint32_t at, const uint8_t **escape)
{
	for (uint32_t t = 0; t < PCA_ROWS; t++) {
		const float v = value_of(tile, table, component * PCA_TILE + at + t, escape);

		if (v != 0.0f)
			add(&list[t], component % PCA_CHUNK, v);
	}
}

void kvp_pca_lists_c(const struct pca_unit *u, const struct pca_tile *tile, uint32_t at,
	uint32_t first, const uint8_t **escape, struct pca_list *list)
{
	const uint64_t ones = UINT64_C(0x0101010101010101);
	const uint32_t end = u->rank - first < PCA_CHUNK ? u->rank : first + PCA_CHUNK;
	const struct pca_table *table = u->table;

	for (uint32_t t = 0; t < PCA_ROWS; t++)
		list[t].n = 0;
	for (uint32_t c = first; c < end; c++) {
		const uint8_t *sym = tile->sym + c * PCA_TILE + at;
		uint64_t word;

		while (c - table->first >= table->count)
			table++;
		memcpy(&word, sym, sizeof word);
		if (table->shift || ((word - ones) & ~word & ones << 7)) /* a byte of 0 */
			add_coded(list, tile, table, c, at, escape);
		else if (word != ones * KVP_CALIB_ZERO)
			add_values(list, table->value, sym, c % PCA_CHUNK);
	}
}
