/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RoPE of any declaration: refused, or turned alike by every instruction set, inside the planes, to
 * numbers that are finite.
 */
#include "kernels/kvp_rope.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct choice {
	uint8_t pairing, scaling, dim2, row8, tokens, heads, dtype, to, undo, known;
	uint32_t first;
	double theta, params[4];
};

/* Half of the inputs get numbers that are not refused, or few would come past them. */
static void make_likely(struct choice *c)
{
	const double params[4] = { 1.0 + c->tokens % 16, 1.0, 2.0 + c->heads % 31,
		1024.0 * (1 + c->to) };

	c->theta = 2.0 + 1000.0 * c->row8;
	memcpy(c->params, params, sizeof params);
	c->pairing = 1 + c->pairing % 2;
	c->scaling %= 5;
	c->first %= KVP_ROPE_POSITIONS_MAX;
}

static size_t size_of(uint32_t dtype)
{
	return dtype == KVP_DTYPE_F32 ? 4 : 2;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const unsigned int masks[3] = { 0, KVP_CPU_AVX2, KVP_CPU_ALL };
	static struct kvp_kernels *isa[3];
	struct kvp_rope_desc d = { 0 };
	struct kvp_rope rope;
	struct kvp_plane p = { .kind = KVP_PLANE_K };
	struct choice c;
	uint8_t *in, *out[3];
	size_t n, from, to;
	int r[3];

	if (size < sizeof c)
		return 0;
	memcpy(&c, data, sizeof c);
	data += sizeof c;
	size -= sizeof c;
	if (c.known & 1)
		make_likely(&c);
	d.pairing = c.pairing;
	d.dim = 2u * c.dim2;
	d.scaling = c.scaling;
	d.theta = c.theta;
	memcpy(d.params, c.params, sizeof d.params);
	if (kvp_rope_init(&d, &rope) < 0)
		return 0;
	p.dim = 8u * (c.row8 % 80u);
	p.tokens = c.tokens % 8;
	p.heads = c.heads % 4;
	p.dtype = 1 + c.dtype % 3;
	from = size_of(p.dtype);
	to = size_of(1 + c.to % 3);
	n = (size_t)p.tokens * p.heads * p.dim;
	in = malloc(n * from + 1);
	if (!in)
		abort();
	for (size_t i = 0; i < n * from; i++)
		in[i] = size ? data[i % size] : 0;
	for (int s = 0; s < 3; s++) {
		ptrdiff_t row = (ptrdiff_t)(p.dim * from), to_row = (ptrdiff_t)(p.dim * to);

		if (!isa[s] && kvp_kernels_new(masks[s], &isa[s]) < 0)
			abort();
		out[s] = calloc(1, n * to + 1);
		if (!out[s])
			abort();
		r[s] = (c.undo & 1 ? kvp_rope_undo : kvp_rope_apply)(isa[s], &rope, &p, c.first,
			(struct kvp_raw_const){ in, row * (ptrdiff_t)p.tokens, row }, 1 + c.to % 3,
			(struct kvp_raw){ out[s], to_row * (ptrdiff_t)p.tokens, to_row });
		if (r[s] != r[0] || memcmp(out[s], out[0], n * to) != 0)
			abort();
	}
	for (size_t i = 0; i < n && to == 4; i++) {
		float f;

		memcpy(&f, out[0] + 4 * i, sizeof f);
		if (!isfinite(f))
			abort();
	}
	for (int s = 0; s < 3; s++)
		free(out[s]);
	free(in);
	return 0;
}
