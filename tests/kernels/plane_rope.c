/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plane_rope apply|undo ISA PAIRING DIM SCALING THETA P0 P1 P2 P3 TOKENS HEADS ROW FIRST: a dense plane of
 * floats from standard input, turned, to standard output; for implementations in other languages.
 */
#include "kernels/kvp_rope.h"
#include "tests/kernels/ladder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct kvp_rope_desc desc = { 0 };
	struct kvp_plane p = { .dtype = KVP_DTYPE_F32, .kind = KVP_PLANE_K };
	struct kvp_rope rope;
	struct kvp_kernels *k;
	struct kvp_raw raw;
	size_t set, n;
	int r;

	if (argc != 15)
		return 2;
	for (set = 0; set < LADDER - 1 && strcmp(argv[2], ladder[set].name) != 0; set++)
		;
	desc.pairing = (uint32_t)atoi(argv[3]);
	desc.dim = (uint32_t)atoi(argv[4]);
	desc.scaling = (uint32_t)atoi(argv[5]);
	desc.theta = strtod(argv[6], NULL);
	for (int i = 0; i < 4; i++)
		desc.params[i] = strtod(argv[7 + i], NULL);
	p.tokens = (uint32_t)atoi(argv[11]);
	p.heads = (uint32_t)atoi(argv[12]);
	p.dim = (uint32_t)atoi(argv[13]);
	n = (size_t)p.tokens * p.heads * p.dim;
	raw.token_stride = 4 * (ptrdiff_t)p.dim;
	raw.head_stride = raw.token_stride * (ptrdiff_t)p.tokens;
	raw.data = malloc(4 * n);
	if (!raw.data || fread(raw.data, 4, n, stdin) != n || kvp_rope_init(&desc, &rope) < 0 ||
		kvp_kernels_new(ladder[set].mask, &k) < 0)
		return 2;
	r = (strcmp(argv[1], "undo") == 0 ? kvp_rope_undo : kvp_rope_apply)(k, &rope, &p,
		(uint32_t)atoi(argv[14]),
		(struct kvp_raw_const){ raw.data, raw.head_stride, raw.token_stride },
		KVP_DTYPE_F32, raw);
	if (!r)
		fwrite(raw.data, 4, n, stdout);
	free(raw.data);
	kvp_kernels_free(k);
	return r < 0;
}
