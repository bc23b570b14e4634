/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/calib_make.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *room(size_t n)
{
	void *p = calloc(n, sizeof(float));

	if (!p)
		abort();
	return p;
}

/* Rows that are orthogonal to one another and as long as 1. */
static void axes(uint32_t n, uint32_t width, float *row)
{
	for (uint32_t i = 0; i < n; i++) {
		float *a = row + (size_t)i * width;
		double length = 0.0;

		for (uint32_t c = 0; c < width; c++)
			a[c] = (float)inputs_normal();
		for (uint32_t j = 0; j < i; j++) {
			const float *b = row + (size_t)j * width;
			double dot = 0.0;

			for (uint32_t c = 0; c < width; c++)
				dot += (double)a[c] * (double)b[c];
			for (uint32_t c = 0; c < width; c++)
				a[c] -= (float)dot * b[c];
		}
		for (uint32_t c = 0; c < width; c++)
			length += (double)a[c] * (double)a[c];
		for (uint32_t c = 0; c < width; c++)
			a[c] = (float)((double)a[c] / sqrt(length));
	}
}

static struct kvp_calib_table table(const struct calib_make *m, uint32_t i)
{
	struct kvp_calib_table t = { .shift = i & 1 ? m->shift : 0, .offset = { 0.05f, -0.02f } };
	uint32_t count[KVP_CALIB_SYMBOLS] = { 0 };

	for (uint32_t q = 0; q <= m->reach; q++) {
		const uint32_t n = 1 + 4096 / (1 + q * q);

		count[KVP_CALIB_ZERO + q] = n;
		count[KVP_CALIB_ZERO - q] = n;
	}
	if (kvp_calib_frequencies(count, t.freq) < 0)
		abort();
	return t;
}

static struct kvp_calib_unit unit(const struct calib_make *m)
{
	const uint32_t width = m->joint * m->dim;
	float *mean = room(width), *forward = room((size_t)width * m->rank);
	float *inverse = room((size_t)width * m->rank);
	struct kvp_calib_table *t = calloc(m->tables, sizeof *t);

	if (!t)
		abort();
	for (uint32_t c = 0; c < width; c++)
		mean[c] = 0.1f * (float)inputs_normal();
	axes(m->rank, width, inverse);
	for (uint32_t j = 0; j < m->rank; j++) {
		for (uint32_t c = 0; c < width; c++) {
			float *a = &inverse[(size_t)j * width + c];

			forward[(size_t)c * m->rank + j] = *a / m->step;
			*a *= m->step;
		}
	}
	for (uint32_t i = 0; i < m->tables; i++) {
		t[i] = table(m, i);
		t[i].count = m->rank / m->tables + (i < m->rank % m->tables);
	}
	return (struct kvp_calib_unit){ m->rank, m->tables, mean, forward, inverse, t };
}

void *calib_make(const struct calib_make *m, size_t *ret_bytes)
{
	const uint32_t units = m->heads / m->joint, n = 2 * m->layers;
	struct kvp_calib_info info = { .model = "random axes",
		.layers = m->layers,
		.heads = m->heads,
		.dim = m->dim,
		.joint = m->joint,
		.round = 0.4f,
		.rope = { .pairing = m->pairing, .dim = m->dim, .theta = 10000.0 } };
	struct kvp_calib_entry *entry = calloc(n, sizeof *entry);
	struct kvp_calib_unit *all = calloc((size_t)n * units, sizeof *all);
	void *out;

	if (!entry || !all)
		abort();
	for (uint32_t i = 0; i < n; i++) {
		entry[i] = (struct kvp_calib_entry){ i / 2, i % 2, all + (size_t)i * units };
		for (uint32_t u = 0; u < units; u++)
			all[i * units + u] = unit(m);
	}
	if (kvp_calib_bytes(&info, entry, n, ret_bytes) < 0)
		abort();
	out = malloc(*ret_bytes);
	if (!out || kvp_calib_write(&info, entry, n, out, *ret_bytes) < 0)
		abort();
	for (uint32_t i = 0; i < n * units; i++) {
		free((void *)(uintptr_t)all[i].mean);
		free((void *)(uintptr_t)all[i].forward);
		free((void *)(uintptr_t)all[i].inverse);
		free((void *)(uintptr_t)all[i].table);
	}
	free(all);
	free(entry);
	return out;
}
