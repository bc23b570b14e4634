/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries, or axes, and keys that are any bits: refused, or an object with which planes are encoded without
 * touching what is not theirs, to what decodes to finite numbers.
 */
#include "kernels/kvp_squat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct choice {
	uint8_t heads, group, dim8, rank, block8, n, tokens, codec, isa, axes;
	uint16_t lambda;
};

static const char *const names[] = { "squat2", "squat3-g16", "squat4-g64", "squat2-g128" };

/* As many bytes of the input as it takes, in memory that ends with them. */
static void *fill(size_t n, const uint8_t *data, size_t size)
{
	uint8_t *p;

	if (posix_memalign((void **)&p, 16, n ? n : 1))
		abort();
	for (size_t i = 0; i < n; i++)
		p[i] = size ? data[i % size] : 0;
	return p;
}

static void encode(const struct kvp_kernels *k, const char *name, uint32_t tokens,
	const struct kvp_squat *squat, const uint8_t *data, size_t size)
{
	const struct kvp_squat_opts *s = kvp_squat_options(squat);
	const struct kvp_encode_opts o = { .size = sizeof o, .queries = squat };
	const struct kvp_plane p = { tokens, s->heads, s->dim, KVP_DTYPE_F32, KVP_PLANE_K };
	const ptrdiff_t row = 4 * (ptrdiff_t)p.dim, head = row * (ptrdiff_t)tokens;
	const size_t n = (size_t)p.heads * p.tokens * p.dim;
	struct kvp_layout lay;
	uint32_t codec;
	uint8_t *out;
	float *x;

	if (kvp_codec_parse(name, &codec) < 0)
		abort();
	if (kvp_plane_layout(codec, &p, &lay) < 0)
		return;
	x = fill(n * sizeof *x, data, size);
	out = fill(lay.bytes, data, 0);
	if (kvp_plane_encode(
		    k, codec, &p, &o, (struct kvp_raw_const){ x, head, row }, out, lay.bytes) ||
		kvp_plane_decode(
			k, codec, &p, NULL, out, lay.bytes, (struct kvp_raw){ x, head, row }))
		abort();
	for (size_t i = 0; i < n; i++)
		if (i / p.dim % p.tokens < lay.coded && !isfinite(x[i]))
			abort();
	free(x);
	free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct kvp_kernels *tables[2];
	struct kvp_kernels **k;
	struct kvp_squat *squat;
	struct choice c;
	float *x;
	int r;

	if (size < sizeof c)
		return 0;
	memcpy(&c, data, sizeof c);
	data += sizeof c;
	size -= sizeof c;
	const struct kvp_squat_opts o = { .size = sizeof o,
		.heads = c.heads % 4,
		.group = c.group % 3,
		.dim = 8u * (c.dim8 % 20),
		.rank = c.rank % 24,
		.block = 8u * (c.block8 % 10),
		.lambda = c.lambda == 1 ? NAN : (double)c.lambda / 60000.0 };

	k = &tables[c.isa & 1];
	if (!*k && kvp_kernels_new(c.isa & 1 ? KVP_CPU_ALL : 0, k) < 0)
		abort();
	if (c.axes & 1) {
		x = fill(sizeof *x * o.heads * (o.rank ? o.rank : KVP_SQUAT_RANK) * o.dim, data,
			size);
		r = kvp_squat_of_axes(&o, x, &squat);
	} else {
		x = fill(sizeof *x * o.heads * (o.group ? o.group : 1) * o.dim * (c.n % 8), data,
			size);
		r = kvp_squat_of_queries(&o, x, c.n % 8, &squat);
	}
	free(x);
	if (r)
		return 0;
	encode(*k, names[c.codec % 4], 1 + c.tokens % 140u, squat, data, size);
	kvp_squat_free(squat);
	return 0;
}
