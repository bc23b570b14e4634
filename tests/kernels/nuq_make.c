/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/nuq_make.h"
#include "tests/kernels/inputs.h"

#include <stdlib.h>
#include <string.h>

static void signposts(float *post, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		post[i] = -1.0f + (2.0f * (float)i + (float)inputs_uniform()) / (float)n;
}

void *nuq_make(const struct nuq_make *m, size_t *ret_bytes)
{
	return nuq_make_of(m, "random ranges", ret_bytes);
}

void *nuq_make_of(const struct nuq_make *m, const char *model, size_t *ret_bytes)
{
	const uint32_t width = m->heads * m->dim, n = KVP_NUQ_FORMS * m->layers;
	struct kvp_nuq_info info = { .layers = m->layers,
		.heads = m->heads,
		.dim = m->dim,
		.rope = { .pairing = m->pairing, .dim = m->dim, .theta = 10000.0 } };
	struct kvp_nuq_entry *entry = calloc(n, sizeof *entry);
	float *low = calloc((size_t)n * width, sizeof *low);
	float *high = calloc((size_t)n * width, sizeof *high);
	void *out;

	if (!entry || !low || !high)
		abort();
	strncpy(info.model, model, sizeof info.model - 1);
	for (uint32_t i = 0; i < n; i++) {
		entry[i] = (struct kvp_nuq_entry){ .layer = i / KVP_NUQ_FORMS,
			.form = i % KVP_NUQ_FORMS,
			.low = low + (size_t)i * width,
			.high = high + (size_t)i * width };
		for (uint32_t at = 0, bits = 2; bits <= 4; at += 1u << bits, bits++)
			signposts(entry[i].signpost + at, 1u << bits);
		for (uint32_t c = 0; c < width; c++) {
			const float middle = 0.3f * (float)inputs_normal();
			const float half = 1.2f + 1.5f * (float)inputs_uniform();

			low[(size_t)i * width + c] = middle - half;
			high[(size_t)i * width + c] = middle + half;
			if (m->still && c % m->still == m->still - 1)
				high[(size_t)i * width + c] = middle - half;
		}
	}
	if (kvp_nuq_bytes(&info, entry, n, ret_bytes) < 0)
		abort();
	out = malloc(*ret_bytes);
	if (!out || kvp_nuq_write(&info, entry, n, out, *ret_bytes) < 0)
		abort();
	free(entry);
	free(low);
	free(high);
	return out;
}

uint32_t nuq_form_of(uint32_t codec, uint32_t kind)
{
	if (kind == KVP_PLANE_V)
		return KVP_NUQ_V;
	return KVP_CODEC_VARIANT(codec) & KVP_KVQUANT_POST ? KVP_NUQ_K_POST : KVP_NUQ_K;
}

const struct kvp_calib *nuq_calib_for(uint32_t codec, const struct kvp_plane *p)
{
	static struct kvp_nuq_set *cache[8][KVP_PLANE_DIM_MAX / 8 + 1];
	struct kvp_nuq_set **set = &cache[p->heads % 8][p->dim / 8];
	size_t bytes;
	void *file;

	if (!*set) {
		file = nuq_make(
			&(struct nuq_make){ 1, p->heads, p->dim, KVP_ROPE_HALF_SPLIT, 61 }, &bytes);
		if (kvp_nuq_set_new(file, bytes, set) < 0)
			abort();
		free(file);
	}
	return kvp_nuq_set_find(*set, 0, nuq_form_of(codec, p->kind));
}
