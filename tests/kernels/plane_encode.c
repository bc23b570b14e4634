/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plane_encode CODEC DTYPE TOKENS HEADS DIM ISA [back]: a dense plane of 16-bit elements from standard
 * input, its payload to standard output, and then, if asked, what that decodes to; for implementations in other languages to compare with.
 */
#include "kernels/kvp_codec.h"
#include "tests/kernels/ladder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct kvp_plane p = { .kind = KVP_PLANE_K };
	struct kvp_plane_hdr hdr;
	struct kvp_kernels *k;
	uint32_t codec;
	size_t bytes, raw, set;
	uint8_t *in, *out;
	ptrdiff_t row;

	if (argc < 7 || kvp_codec_parse(argv[1], &codec) < 0)
		return 2;
	p.dtype = strcmp(argv[2], "bf16") == 0 ? KVP_DTYPE_BF16 : KVP_DTYPE_F16;
	p.tokens = (uint32_t)atoi(argv[3]);
	p.heads = (uint32_t)atoi(argv[4]);
	p.dim = (uint32_t)atoi(argv[5]);
	for (set = 0; set < LADDER - 1 && strcmp(argv[6], ladder[set].name) != 0; set++)
		;
	if (kvp_plane_bytes(codec, &p, &bytes) < 0 || kvp_kernels_new(ladder[set].mask, &k) < 0)
		return 2;
	row = 2 * (ptrdiff_t)p.dim;
	raw = (size_t)row * p.tokens * p.heads;
	in = malloc(raw);
	out = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (!in || !out || fread(in, 1, raw, stdin) != raw ||
		kvp_plane_encode(k, codec, &p, NULL,
			(struct kvp_raw_const){ in, row * (ptrdiff_t)p.tokens, row }, out,
			bytes) < 0)
		return 1;
	memcpy(&hdr, out, sizeof hdr);
	fwrite(out, 1, hdr.bytes, stdout);
	if (argc > 7) {
		if (kvp_plane_decode(k, codec, &p, NULL, out, hdr.bytes,
			    (struct kvp_raw){ in, row * (ptrdiff_t)p.tokens, row }) < 0)
			return 1;
		fwrite(in, 1, raw, stdout);
	}
	free(in);
	free(out);
	kvp_kernels_free(k);
	return 0;
}
