/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work that budget.py counts instructions of: short planes of one codec, decoded by one call
 * (argument "batch") or one by one. Prints how many planes there were.
 *
 *   budget CODEC [batch]
 */
#include "kernels/kvp_codec.h"
#include "tests/kernels/inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLANES 64u
#define TOKENS 16u
#define DIM    128u
#define ROW    ((ptrdiff_t)(DIM * 2))
#define ROOM   8192u /* of a payload */

static uint8_t raw[PLANES][TOKENS * DIM * 2], back[PLANES][TOKENS * DIM * 2];
static uint8_t payload[PLANES][ROOM] __attribute__((aligned(64)));

int main(int argc, char **argv)
{
	struct kvp_plane p = { TOKENS, 1, DIM, KVP_DTYPE_F16, KVP_PLANE_V };
	struct kvp_decode_job jobs[PLANES];
	struct kvp_kernels *k;
	size_t bytes, done = 0;
	uint32_t codec;

	if (argc < 2 || kvp_codec_parse(argv[1], &codec) < 0 ||
		kvp_plane_bytes(codec, &p, &bytes) < 0 || bytes > ROOM ||
		kvp_kernels_new(KVP_CPU_ALL, &k) < 0)
		return 1;
	inputs_reseed(1);
	for (uint32_t i = 0; i < PLANES; i++) {
		inputs_fill(raw[i], TOKENS * DIM, p.dtype, INPUT_NORMAL);
		if (kvp_plane_encode(k, codec, &p, NULL,
			    (struct kvp_raw_const){ raw[i], ROW * TOKENS, ROW }, payload[i],
			    ROOM) < 0)
			return 1;
		jobs[i] = (struct kvp_decode_job){ codec, p, NULL, payload[i], bytes,
			{ back[i], ROW * TOKENS, ROW } };
	}
	if (argc > 2) {
		kvp_planes_decode(k, jobs, PLANES, &done);
	} else {
		while (done < PLANES && kvp_plane_decode(k, codec, &p, NULL, payload[done], bytes,
						jobs[done].dst) == 0)
			done++;
	}
	kvp_kernels_free(k);
	printf("%zu\n", done);
	return done == PLANES ? 0 : 1;
}
