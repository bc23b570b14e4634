/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration files of kvquant of hostile bytes: refused, or a set of which every entry codes and decodes
 * planes without touching what is not theirs, to finite numbers, whatever its own are. Size and checksum
 * are made right in half of the inputs, or nothing would come past them.
 */
#include "kernels/kvp_nuq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEADER       192u
#define CHECKED      24u
#define ELEMENTS_MAX 8192u

static void *room(size_t n)
{
	void *p;

	/* Exactly as large as it may be, so that the sanitizer sees a byte too far. */
	if (posix_memalign(&p, 16, n ? n : 1))
		abort();
	memset(p, 0, n);
	return p;
}

static void seal(uint8_t *file, uint64_t size)
{
	uint64_t sum;

	memcpy(file + 8, &size, sizeof size);
	sum = XXH3_64bits(file + CHECKED, size - CHECKED);
	memcpy(file + 16, &sum, sizeof sum);
}

static void use(const struct kvp_kernels *k, const struct kvp_nuq_set *set, uint32_t layer,
	uint32_t form, uint32_t bits, const uint8_t *data, size_t size)
{
	const struct kvp_nuq_info *info = kvp_nuq_set_info(set);
	const uint32_t codec =
		KVP_CODEC_KVQUANT(bits) | (form == KVP_NUQ_K_POST ? KVP_KVQUANT_POST : 0);
	const struct kvp_plane p = { 2, info->heads, info->dim, KVP_DTYPE_F32,
		form == KVP_NUQ_V ? KVP_PLANE_V : KVP_PLANE_K };
	const size_t n = 2 * (size_t)p.heads * p.dim;
	const ptrdiff_t row = 4 * (ptrdiff_t)p.dim;
	const struct kvp_encode_opts o = {
		.size = sizeof o, .calib = kvp_nuq_set_find(set, layer, form), .position = 1000
	};
	float *x = room(4 * n);
	size_t bytes;
	void *out;

	for (size_t i = 0; i < 4 * n; i++)
		((uint8_t *)x)[i] = data[i % size];
	if (kvp_plane_bytes(codec, &p, &bytes) < 0)
		abort();
	out = room(bytes);
	if (kvp_plane_encode(
		    k, codec, &p, &o, (struct kvp_raw_const){ x, 2 * row, row }, out, bytes) ||
		kvp_plane_decode(
			k, codec, &p, o.calib, out, bytes, (struct kvp_raw){ x, 2 * row, row }))
		abort();
	for (size_t i = 0; i < n; i++)
		if (!isfinite(x[i]))
			abort();
	free(x);
	free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct kvp_kernels *tables[2];
	struct kvp_kernels **k;
	struct kvp_nuq_set *set;
	uint8_t *file;

	if (size < 1 + HEADER)
		return 0;
	k = &tables[data[0] >> 1 & 1];
	if (!*k && kvp_kernels_new(data[0] & 2 ? KVP_CPU_ALL : 0, k) < 0)
		abort();
	file = room(size - 1);
	memcpy(file, data + 1, size - 1);
	if (data[0] & 1)
		seal(file, size - 1);
	if (kvp_nuq_set_new(file, size - 1, &set) == 0) {
		const struct kvp_nuq_info *info = kvp_nuq_set_info(set);

		for (uint32_t i = 0;
			i < KVP_NUQ_FORMS * info->layers && info->heads * info->dim <= ELEMENTS_MAX;
			i++)
			if (kvp_nuq_set_find(set, i / KVP_NUQ_FORMS, i % KVP_NUQ_FORMS))
				use(*k, set, i / KVP_NUQ_FORMS, i % KVP_NUQ_FORMS, 2 + i % 3, data,
					size);
		kvp_nuq_set_free(set);
	}
	free(file);
	return 0;
}
