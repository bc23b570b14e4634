/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plane_squat CODEC DTYPE TOKENS HEADS DIM RANK BLOCK ISA: axes in fp32 and then dense keys from standard input,
 * and to standard output their payload, then what that decodes to; for implementations in other languages.
 */
#include "kernels/kvp_squat.h"
#include "tests/kernels/ladder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int convert(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_squat *squat)
{
	const struct kvp_encode_opts o = { .size = sizeof o, .queries = squat };
	const ptrdiff_t row = (ptrdiff_t)p->dim * (p->dtype == KVP_DTYPE_F32 ? 4 : 2);
	const size_t raw = (size_t)row * p->tokens * p->heads;
	uint8_t *in = malloc(raw), *out;
	size_t bytes;

	if (kvp_plane_bytes(codec, p, &bytes) < 0)
		return 1;
	out = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (!in || !out || fread(in, 1, raw, stdin) != raw ||
		kvp_plane_encode(k, codec, p, &o,
			(struct kvp_raw_const){ in, row * (ptrdiff_t)p->tokens, row }, out,
			bytes) < 0)
		return 1;
	if (kvp_plane_decode(k, codec, p, NULL, out, bytes,
		    (struct kvp_raw){ in, row * (ptrdiff_t)p->tokens, row }) < 0)
		return 1;
	fwrite(out, 1, bytes, stdout);
	fwrite(in, 1, raw, stdout);
	free(in);
	free(out);
	return 0;
}

int main(int argc, char **argv)
{
	struct kvp_squat_opts o = { .size = sizeof o };
	struct kvp_plane p = { 0 };
	struct kvp_squat *squat;
	struct kvp_kernels *k;
	uint32_t codec;
	size_t step, n;
	float *axes;
	int r;

	if (argc != 9 || kvp_codec_parse(argv[1], &codec) < 0)
		return 2;
	p.dtype = strcmp(argv[2], "bf16") == 0   ? KVP_DTYPE_BF16
		  : strcmp(argv[2], "fp16") == 0 ? KVP_DTYPE_F16
						 : KVP_DTYPE_F32;
	p.tokens = (uint32_t)atoi(argv[3]);
	o.heads = p.heads = (uint32_t)atoi(argv[4]);
	o.dim = p.dim = (uint32_t)atoi(argv[5]);
	o.rank = (uint32_t)atoi(argv[6]);
	o.block = (uint32_t)atoi(argv[7]);
	for (step = 0; step < LADDER - 1 && strcmp(argv[8], ladder[step].name) != 0; step++)
		;
	n = (size_t)o.heads * o.rank * o.dim;
	axes = malloc(n * sizeof *axes);
	if (!axes || fread(axes, sizeof *axes, n, stdin) != n ||
		kvp_squat_of_axes(&o, axes, &squat) < 0 ||
		kvp_kernels_new(ladder[step].mask, &k) < 0)
		return 2;
	r = convert(k, codec, &p, squat);
	kvp_kernels_free(k);
	kvp_squat_free(squat);
	free(axes);
	return r;
}
