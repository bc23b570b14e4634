/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plane_nuq SEED LAYERS HEADS DIM PAIRING: a calibration of kvquant at random to standard output.
 * plane_nuq CALIBRATION LAYER KIND CODEC DTYPE TOKENS POSITION ISA: a dense plane from standard input, and
 * to standard output its payload, then what that decodes to; for implementations in other languages.
 */
#include "tests/kernels/inputs.h"
#include "tests/kernels/ladder.h"
#include "tests/kernels/nuq_make.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int make(char **argv)
{
	const struct nuq_make m = { (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]),
		(uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5]), 61 };
	size_t bytes;
	void *file;

	inputs_reseed((uint64_t)atoi(argv[1]));
	file = nuq_make(&m, &bytes);
	fwrite(file, 1, bytes, stdout);
	free(file);
	return 0;
}

static struct kvp_nuq_set *load(const char *path)
{
	static uint8_t file[1 << 22];
	struct kvp_nuq_set *set;
	FILE *f = fopen(path, "rb");
	size_t n = f ? fread(file, 1, sizeof file, f) : 0;

	if (f)
		fclose(f);
	return kvp_nuq_set_new(file, n, &set) < 0 ? NULL : set;
}

static int convert(const struct kvp_kernels *k, const struct kvp_nuq_set *set, uint32_t codec,
	uint32_t layer, uint32_t position, const struct kvp_plane *p)
{
	const struct kvp_calib *calib = kvp_nuq_set_find(set, layer, nuq_form_of(codec, p->kind));
	const struct kvp_encode_opts o = { .size = sizeof o, .calib = calib, .position = position };
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
	if (kvp_plane_decode(k, codec, p, calib, out, bytes,
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
	struct kvp_plane p = { 0 };
	struct kvp_nuq_set *set;
	struct kvp_kernels *k;
	uint32_t codec;
	size_t step;
	int r;

	if (argc == 6)
		return make(argv);
	if (argc != 9 || kvp_codec_parse(argv[4], &codec) < 0)
		return 2;
	set = load(argv[1]);
	for (step = 0; step < LADDER - 1 && strcmp(argv[8], ladder[step].name) != 0; step++)
		;
	if (!set || kvp_kernels_new(ladder[step].mask, &k) < 0)
		return 2;
	p.kind = (uint32_t)atoi(argv[3]);
	p.dtype = strcmp(argv[5], "bf16") == 0   ? KVP_DTYPE_BF16
		  : strcmp(argv[5], "fp16") == 0 ? KVP_DTYPE_F16
						 : KVP_DTYPE_F32;
	p.tokens = (uint32_t)atoi(argv[6]);
	p.heads = kvp_nuq_set_info(set)->heads;
	p.dim = kvp_nuq_set_info(set)->dim;
	r = convert(k, set, codec, (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[7]), &p);
	kvp_kernels_free(k);
	kvp_nuq_set_free(set);
	return r;
}
