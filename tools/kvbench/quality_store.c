/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values as codecs leave them, in the place of a model's own. */
#include "tools/kvbench/quality_store.h"
#include "kernels/kvp_spectral.h"
#include "tools/kvbench/kbench.h"
#include "tools/kvrun/kvr_half.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_MAX 128u /* tokens, for groups that do not fit into QUALITY_NEAR */
#define WARM_AGE  512u /* tokens from which on the mix takes the archive's codec */

static size_t tiles_of(const struct store *s)
{
	return (size_t)2 * s->layers * 2 * s->heads * s->blocks;
}

void store_clear(struct store *s)
{
	for (size_t i = 0; i < tiles_of(s); i++) {
		free(s->tile[i]);
		s->tile[i] = NULL;
	}
}

/* What more bits take off a token's error, for each of them, as a share of its energy; of tq and int8. */
static double gain_of(uint8_t bits)
{
	return bits == 2 ? .086 : bits == 3 ? .023 : bits == 4 ? .0021 : 0;
}

/* smart with a mean: bits go where they take most off the error, as long as there are some left. */
static void share_mean(const double *energy, uint32_t n, uint32_t budget, uint8_t *widths)
{
	memset(widths, 2, n);
	budget -= 2 * n;
	for (;;) {
		uint32_t best = n;

		for (uint32_t t = 0; t < n; t++) {
			const uint32_t step = widths[t] == 4 ? 4 : 1;

			if (widths[t] < 8 && step <= budget &&
				(best == n || energy[t] * gain_of(widths[t]) >
						      energy[best] * gain_of(widths[best])))
				best = t;
		}
		if (best == n)
			return;
		budget -= widths[best] == 4 ? 4 : 1;
		widths[best] = widths[best] == 4 ? 8 : widths[best] + 1;
	}
}

/*
 * smart: a quarter of the block's tokens, the loudest, get 4 bits and the quietest quarter 2 (keys
 * 3), or all of them share a mean. Their importance is not known yet, so the cost of an error decides.
 */
static void choose_widths(uint32_t codec, const struct kvr_plane *from, uint8_t *widths)
{
	const uint32_t budget = kvp_smart_budget(codec, from->tokens);
	double energy[BLOCK_MAX];

	for (uint32_t t = 0; t < from->tokens; t++) {
		const float *row = (const float *)(const void *)((const uint8_t *)from->native +
								 t * from->stride);

		energy[t] = 0.0;
		for (uint32_t c = 0; c < from->head_dim; c++)
			energy[t] += (double)row[c] * (double)row[c];
	}
	if (budget) {
		share_mean(energy, from->tokens, budget, widths);
		return;
	}
	for (uint32_t t = 0; t < from->tokens; t++) {
		uint32_t louder = 0, quarter = from->tokens / 4;

		for (uint32_t u = 0; u < from->tokens; u++)
			louder += energy[u] > energy[t] || (energy[u] == energy[t] && u < t);
		widths[t] = louder < quarter ? 4 : louder < 3 * quarter || !from->value ? 3 : 2;
	}
}

/* Of keys that spectral codes: what its gate looks at. */
static void add_energy(
	struct store *s, uint32_t codec, const struct kvp_plane *p, struct kvp_raw_const src)
{
	double share;

	if (KVP_CODEC_FAMILY(codec) != KVP_FAMILY_SPECTRAL ||
		kvp_spectral_energy(codec, p, src, &share) < 0)
		return;
	s->energy_min = s->energies > 0.0 && s->energy_min < share ? s->energy_min : share;
	s->energy += share;
	s->energies += 1.0;
}

static int code_plane(struct store *s, uint32_t codec, const struct kvr_plane *from, float *to)
{
	struct kvp_plane p = { from->tokens, 1, from->head_dim, KVP_DTYPE_F32,
		from->value ? KVP_PLANE_V : KVP_PLANE_K };
	ptrdiff_t row = (ptrdiff_t)(from->head_dim * sizeof(float));
	struct kvp_raw_const src = { from->native, row * from->tokens, (ptrdiff_t)from->stride };
	uint8_t widths[BLOCK_MAX];
	struct kvp_encode_opts o = { .size = sizeof o,
		.seed = s->seed,
		.widths = widths,
		.queries = s->squat ? s->squat[from->layer * s->heads + from->kv_head] : NULL };
	int smart = KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART;
	struct kvp_plane half = p;
	size_t bytes, wire;
	void *payload;
	int r = kvp_plane_bytes(codec, &p, &bytes);

	if (smart)
		choose_widths(codec, from, widths);

	if (r < 0)
		return r;
	add_energy(s, codec, &p, src);
	payload = kbench_alloc(bytes);
	r = kvp_plane_encode(s->k, codec, &p, &o, src, payload, bytes);
	if (!r)
		r = kvp_plane_decode(s->k, codec, &p, NULL, payload, bytes,
			(struct kvp_raw){ to, row * from->tokens, row });
	free(payload);
	/* Bits as they would be for fp16 keys and values. */
	half.dtype = KVP_DTYPE_F16;
	/* With a mean a payload has the bytes of that, whatever the widths, which all heads have in common. */
	if (kvp_smart_budget(codec, p.tokens)) {
		smart = 0;
		half.heads = s->heads;
	}
	if (!r && (smart ? kvp_smart_bytes(codec, &half, widths, &wire)
			 : kvp_plane_bytes(codec, &half, &wire)) == 0) {
		s->bits += 8.0 * (double)(wire - (codec ? KVP_PLANE_HDR_BYTES : 0)) / half.heads;
		s->values += (double)from->tokens * from->head_dim;
	}
	return r;
}

/* Where in store.tile K or V of a block is, in one class of age. */
static float **tile_at(struct store *s, uint32_t old, const struct kvr_plane *plane, uint32_t head)
{
	size_t at = (((size_t)old * s->layers + plane->layer) * 2 + plane->value) * s->heads + head;

	return &s->tile[at * s->blocks + plane->block];
}

/* What is calibrated takes all heads of a layer together, and leaves a tile for each. */
static int code_heads(struct store *s, uint32_t codec, uint32_t old, const struct kvr_plane *from)
{
	const struct kvp_plane p = { from->tokens, s->heads, from->head_dim, KVP_DTYPE_F16,
		from->value ? KVP_PLANE_V : KVP_PLANE_K };
	const size_t n = (size_t)p.tokens * p.heads * p.dim, rows = (size_t)p.tokens * p.heads;
	const uint8_t *first =
		(const uint8_t *)from->native - (size_t)from->kv_head * p.dim * sizeof(float);
	const struct kvp_encode_opts o = { .size = sizeof o,
		.calib = kbench_calib_find(&s->scheme->calib, codec, from->layer, p.kind),
		.position = from->block * s->block };
	/* Elements are those of an fp16 cache: what is stored then takes what it would take. */
	const ptrdiff_t row = 2 * (ptrdiff_t)p.dim;
	uint8_t *raw = kbench_alloc(2 * n), *payload;
	struct kvp_plane_hdr hdr;
	size_t bytes;
	int r = kvp_plane_bytes(codec, &p, &bytes);

	payload = kbench_alloc(bytes);
	for (size_t i = 0; i < rows; i++)
		kvr_narrow(KVR_F16,
			(const float *)(const void *)(first + i % p.tokens * from->stride) +
				i / p.tokens * p.dim,
			p.dim, raw + i * (size_t)row);
	if (!r)
		r = kvp_plane_encode(s->k, codec, &p, &o,
			(struct kvp_raw_const){ raw, row * p.tokens, row }, payload, bytes);
	if (!r)
		r = kvp_plane_decode(s->k, codec, &p, o.calib, payload, bytes,
			(struct kvp_raw){ raw, row * p.tokens, row });
	for (uint32_t h = 0; h < p.heads && !r; h++) {
		float **tile = tile_at(s, old, from, h);

		free(*tile);
		*tile = kbench_alloc((size_t)p.tokens * p.dim * sizeof **tile);
		kvr_widen(
			KVR_F16, raw + h * (size_t)row * p.tokens, (size_t)p.tokens * p.dim, *tile);
	}
	if (!r) {
		memcpy(&hdr, payload, sizeof hdr);
		s->bits += 8.0 * (double)(hdr.bytes - KVP_PLANE_HDR_BYTES);
		s->values += (double)n;
	}
	free(raw);
	free(payload);
	return r;
}

int store_read(void *arg, const struct kvr_plane *plane, float *dst)
{
	struct store *s = arg;
	uint32_t age = plane->query - plane->block * s->block;
	uint32_t old = s->scheme->mixed && age >= WARM_AGE;
	uint32_t codec = s->scheme->codec[old][plane->value];
	size_t n = (size_t)plane->tokens * plane->head_dim;
	float **tile = tile_at(s, old, plane, plane->kv_head);

	if (plane->tokens != s->block || plane->dtype != KVR_F32)
		return -EINVAL;
	if (!*tile && kbench_is_calibrated(codec)) {
		int r = code_heads(s, codec, old, plane);

		if (r < 0)
			return r;
	}
	if (!*tile) {
		int r;

		*tile = kbench_alloc(n * sizeof **tile);
		r = code_plane(s, codec, plane, *tile);
		if (r < 0)
			return r;
	}
	memcpy(dst, *tile, n * sizeof *dst);
	return 0;
}

static int scheme_parse(const char *name, struct scheme *ret)
{
	struct scheme s = { 0 };
	int r;

	if (strcmp(name, "mix") == 0) {
		s.mixed = 1;
		r = kvp_codec_parse_pair("4bit", &s.codec[0][0], &s.codec[0][1]);
		if (!r)
			r = kvp_codec_parse_pair("2bit", &s.codec[1][0], &s.codec[1][1]);
		if (!r)
			*ret = s;
		return r;
	}
	r = kvp_codec_parse_pair(name, &s.codec[0][0], &s.codec[0][1]);
	if (!r)
		*ret = s;
	return r;
}

/* The smallest block from QUALITY_NEAR on that the scheme's codecs take; QUALITY_NEAR if there is none. */
static uint32_t block_of(const struct scheme *s, uint32_t dim)
{
	for (uint32_t block = QUALITY_NEAR; block <= BLOCK_MAX; block *= 2) {
		int takes = 1;

		for (uint32_t i = 0; i < 4; i++) {
			const struct kvp_plane p = { block, 1, dim, KVP_DTYPE_F32,
				i & 1 ? KVP_PLANE_V : KVP_PLANE_K };
			size_t bytes;

			takes &= kvp_plane_bytes(s->codec[i >> 1][i & 1], &p, &bytes) == 0;
		}
		if (takes)
			return block;
	}
	return QUALITY_NEAR;
}

int scheme_open(const char *name, const char *calib, struct scheme *ret)
{
	int r = scheme_parse(name, ret);

	if (r < 0) {
		fprintf(stderr, "kvbench quality: no codec is called %s\n", name);
		return r;
	}
	return calib ? kbench_calib_open(calib, &ret->calib) : 0;
}

void scheme_done(struct scheme *s)
{
	kbench_calib_done(&s->calib);
}

void scheme_complain(const char *name, int error)
{
	fprintf(stderr, "kvbench quality: %s: %s\n", name,
		error == -ENOENT   ? "no calibration of this model: --calib"
		: error == -ERANGE ? "its pairs do not hold 85 % of these keys: -any codes them"
				   : strerror(-error));
}

int store_init(struct store *s, const struct kvr_model *model)
{
	s->layers = model->config.layers;
	s->heads = model->config.kv_heads;
	s->block = block_of(s->scheme, model->config.head_dim);
	s->blocks = QUALITY_WINDOW / s->block + 1;
	s->tile = calloc(tiles_of(s), sizeof *s->tile);
	return s->tile ? 0 : -ENOMEM;
}

void store_done(struct store *s)
{
	if (s->tile)
		store_clear(s);
	store_queries_done(s);
	free(s->tile);
}
