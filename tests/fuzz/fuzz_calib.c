/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration files of hostile bytes: refused, or a set of which every entry codes and decodes planes
 * without touching what is not theirs, whatever its numbers are. Checksum and digests are made right in
 * half of the inputs, or nothing would come past them.
 */
#include "kernels/kvp_calib.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEADER       192u
#define ENTRY        32u
#define CHECKED      24u
#define ELEMENTS_MAX 8192u

static struct kvp_kernels *isa[3];
static const unsigned int masks[3] = { 0, KVP_CPU_AVX2, KVP_CPU_ALL };

static uint64_t get(const uint8_t *p, size_t n)
{
	uint64_t v = 0;

	memcpy(&v, p, n);
	return v;
}

/* Size, digests and checksum as they should be for what is there. */
static void seal(uint8_t *file, uint64_t size)
{
	const uint64_t entries = get(file + 28, 4), seed = XXH3_64bits(file + 32, 112 - 32);
	uint64_t sum;

	memcpy(file + 8, &size, sizeof size);
	for (uint64_t i = 0; i < entries && HEADER + (i + 1) * ENTRY <= size; i++) {
		uint8_t *e = file + HEADER + i * ENTRY;
		const uint64_t at = get(e + 8, 8), bytes = get(e + 16, 8);
		uint64_t digest;

		if (at > size || bytes > size - at)
			break;
		digest = XXH3_64bits_withSeed(file + at, bytes, seed);
		memcpy(e + 24, &digest, sizeof digest);
	}
	sum = XXH3_64bits(file + CHECKED, size - CHECKED);
	memcpy(file + 16, &sum, sizeof sum);
}

static void *room(size_t n)
{
	void *p;

	/* Exactly as large as it may be, so that the sanitizer sees a byte too far. */
	if (posix_memalign(&p, 16, n ? n : 1))
		abort();
	return p;
}

/* A plane of floats that the file's own bytes make, coded by each instruction set and decoded again. */
static void use(
	const struct kvp_calib *calib, const struct kvp_plane *p, const uint8_t *data, size_t size)
{
	const size_t n = (size_t)p->tokens * p->heads * p->dim;
	const ptrdiff_t row = 4 * (ptrdiff_t)p->dim;
	const struct kvp_encode_opts o = { .size = sizeof o, .calib = calib, .position = 5 };
	float *x = room(4 * n), *y[2] = { room(4 * n), room(4 * n) };
	uint8_t *out[2];
	size_t bytes, first = 0;

	if (kvp_plane_bytes(KVP_CODEC_PCA, p, &bytes) < 0)
		abort();
	out[0] = room(bytes);
	out[1] = room(bytes);
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(data[i % size] - 128) / (float)(1 + data[(i / 7) % size]);
	for (int s = 0; s < 3; s++) {
		uint8_t *to = out[s > 0];
		struct kvp_plane_hdr hdr;

		if (kvp_plane_encode(isa[s], KVP_CODEC_PCA, p, &o,
			    (struct kvp_raw_const){ x, row * p->tokens, row }, to, bytes))
			abort();
		memcpy(&hdr, to, sizeof hdr);
		first = s ? first : hdr.bytes;
		if (hdr.bytes != first || memcmp(to, out[0], first) != 0)
			abort();
		if (kvp_plane_decode(isa[s], KVP_CODEC_PCA, p, calib, to, first,
			    (struct kvp_raw){ y[s > 0], row * p->tokens, row }) ||
			memcmp(y[s > 0], y[0], 4 * n) != 0)
			abort();
	}
	for (size_t i = 0; i < n; i++)
		if (!isfinite(y[0][i]))
			abort();
	free(x);
	for (int i = 0; i < 2; i++) {
		free(y[i]);
		free(out[i]);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvp_calib_set *set;
	uint8_t *file;

	if (!size)
		return 0;
	for (int i = 0; i < 3; i++)
		if (!isa[i] && kvp_kernels_new(masks[i], &isa[i]) < 0)
			abort();
	file = room(size);
	memcpy(file, data, size);
	if (size >= HEADER && !(data[5] & 1)) {
		file[5] = 0;
		seal(file, size);
	}
	if (kvp_calib_set_new(file, size, &set) == 0) {
		const struct kvp_calib_info *info = kvp_calib_set_info(set);
		struct kvp_plane p = { 37, info->heads, info->dim, KVP_DTYPE_F32, 0 };

		while (p.tokens > 1 && p.tokens * p.heads * p.dim > ELEMENTS_MAX)
			p.tokens /= 2;
		for (uint32_t i = 0; i < 2 * info->layers; i++) {
			const struct kvp_calib *calib = kvp_calib_set_find(set, i / 2, i % 2);

			p.kind = i % 2;
			if (calib)
				use(calib, &p, data, size);
		}
		kvp_calib_set_free(set);
	}
	free(file);
	return 0;
}
