/* SPDX-License-Identifier: Apache-2.0 */
/* check_kernels: RoPE, losses, words as bytes, rotations of one row, boundaries of codes, and `pca`. */
#include "kernels/dsp.h"
#include "kernels/kvp_calib.h"
#include "kernels/kvp_lost.h"
#include "kernels/kvp_rope.h"
#include "kernels/numeric.h"
#include "tests/kernels/calib_make.h"
#include "tests/kernels/check.h"
#include "tests/kernels/guard.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t dims[] = { 8, 16, 24, 40, 64, 72, 96, 128, 160, 1024 };
#define DIMS (sizeof dims / sizeof *dims)

static uint32_t below(uint32_t n)
{
	return (uint32_t)(inputs_random() % n);
}

static enum input_kind any_input(void)
{
	return (enum input_kind)below(INPUT_MAX_);
}

static struct kvp_plane any_plane(uint32_t dim, uint32_t dtype)
{
	return (struct kvp_plane){ 1 + below(9), 1 + below(2), dim, dtype, KVP_PLANE_K };
}

static size_t plane_bytes(const struct kvp_plane *p)
{
	return (size_t)p->tokens * p->heads * p->dim * dtype_bytes(p->dtype);
}

/* ---- RoPE ---- */

static void check_rope(uint32_t dim, uint32_t dtype, uint32_t to)
{
	const struct kvp_rope_desc d = { .pairing = 1 + below(2),
		.dim = below(2) ? dim : 2 + 2 * below(dim / 2),
		.theta = 10000.0 };
	const struct kvp_plane p = any_plane(dim, dtype);
	const enum input_kind kind = any_input();
	const uint32_t first = below(200000), undo = below(2);
	const ptrdiff_t in = (ptrdiff_t)(dim * dtype_bytes(dtype));
	const ptrdiff_t out = (ptrdiff_t)(dim * dtype_bytes(to));
	struct guard src = guard_new(plane_bytes(&p), dtype_bytes(dtype)), dst[LADDER];
	const struct kvp_raw_const x = { src.data, in * (ptrdiff_t)p.tokens, in };
	struct kvp_rope rope;

	if (kvp_rope_init(&d, &rope) < 0)
		abort();
	inputs_fill(src.data, src.size / dtype_bytes(dtype), dtype, kind);
	for (size_t i = 0; i < LADDER; i++) {
		struct kvp_raw y;

		if (!check_isa[i])
			continue;
		dst[i] = guard_new((size_t)out * p.tokens * p.heads, dtype_bytes(to));
		y = (struct kvp_raw){ dst[i].data, out * (ptrdiff_t)p.tokens, out };
		check_verdict((undo ? kvp_rope_undo : kvp_rope_apply)(
				      check_isa[i], &rope, &p, first, x, to, y) == 0 &&
				      guard_intact(&dst[i]) &&
				      memcmp(dst[i].data, dst[0].data, dst[0].size) == 0,
			undo ? "undo" : "apply", "rope", &p, ladder[i].name, inputs_name(kind));
	}
	check_digest(dst[0].data, dst[0].size);
	for (size_t i = 0; i < LADDER; i++)
		if (check_isa[i])
			guard_free(&dst[i]);
	guard_free(&src);
}

/* ---- what is lost ---- */

static void check_lost(uint32_t dim, uint32_t dtype)
{
	const struct kvp_plane p = any_plane(dim, dtype);
	const enum input_kind kind = any_input();
	const ptrdiff_t row = (ptrdiff_t)(dim * dtype_bytes(dtype));
	struct guard a = guard_new(plane_bytes(&p), dtype_bytes(dtype)),
		     b = guard_new(plane_bytes(&p), dtype_bytes(dtype));
	const size_t n = a.size / dtype_bytes(dtype);
	double want[2], got[2];

	inputs_fill(a.data, n, dtype, kind);
	inputs_fill(b.data, n, dtype, below(2) ? kind : INPUT_SPECIAL);
	for (size_t i = 0; i < LADDER; i++) {
		if (!check_isa[i])
			continue;
		kvp_head_lost(check_isa[i], &p, p.heads - 1,
			(struct kvp_raw_const){ a.data, row, row * (ptrdiff_t)p.heads },
			(struct kvp_raw_const){ b.data, row * (ptrdiff_t)p.tokens, row }, &got[0],
			&got[1]);
		if (!i)
			memcpy(want, got, sizeof want);
		check_verdict(memcmp(got, want, sizeof want) == 0, "sums", "lost", &p,
			ladder[i].name, inputs_name(kind));
	}
	check_digest(want, sizeof want);
	guard_free(&a);
	guard_free(&b);
}

/* ---- words as bytes ---- */

static void check_split(void)
{
	const uint32_t n = 1 + below(700), rotate = below(16);
	const struct kvp_plane p = { n, 1, rotate, KVP_DTYPE_F16, 0 }; /* for the message */
	struct guard words = guard_new(2 * (size_t)n, 2), back = guard_new(2 * (size_t)n, 2);
	struct guard high[LADDER], low[LADDER];

	inputs_noise(words.data, words.size);
	for (size_t i = 0; i < LADDER; i++) {
		const struct dsp *dsp;

		if (!check_isa[i])
			continue;
		dsp = &check_isa[i]->dsp;
		high[i] = guard_new(n, 1);
		low[i] = guard_new(n, 1);
		dsp->split(rotate, words.data, n, high[i].data, low[i].data);
		dsp->join(rotate, high[0].data, low[0].data, n, back.data);
		check_verdict(guard_intact(&high[i]) && guard_intact(&low[i]) &&
				      guard_intact(&back) &&
				      memcmp(high[i].data, high[0].data, n) == 0 &&
				      memcmp(low[i].data, low[0].data, n) == 0 &&
				      memcmp(back.data, words.data, words.size) == 0,
			"split and join", "words", &p, ladder[i].name, "");
	}
	check_digest(high[0].data, n);
	check_digest(low[0].data, n);
	for (size_t i = 0; i < LADDER; i++) {
		if (!check_isa[i])
			continue;
		guard_free(&high[i]);
		guard_free(&low[i]);
	}
	guard_free(&words);
	guard_free(&back);
}

/* ---- rotations of one row ---- */

static void check_rotation(uint32_t dim, uint32_t kind)
{
	const struct kvp_plane p = { 1, 1, dim, KVP_DTYPE_F32, kind };
	const int inverse = (int)below(2);
	struct rotation rot;
	float *x;
	struct guard row[LADDER], in;

	if (kvp_rotation_init(&rot, kind, dim, inputs_random(), NULL) < 0)
		return; /* no dim of a Hadamard matrix */
	in = guard_new(4 * (size_t)dim, 4);
	inputs_fill(in.data, dim, KVP_DTYPE_F32, INPUT_NORMAL);
	for (size_t i = 0; i < LADDER; i++) {
		if (!check_isa[i])
			continue;
		row[i] = guard_new(4 * (size_t)dim, 4);
		x = (float *)(void *)row[i].data;
		memcpy(x, in.data, in.size);
		check_isa[i]->dsp.rotate(&rot, inverse, x);
		check_verdict(
			guard_intact(&row[i]) && memcmp(row[i].data, row[0].data, row[0].size) == 0,
			"rotate", inverse ? "back" : "there", &p, ladder[i].name, "");
	}
	check_digest(row[0].data, row[0].size);
	for (size_t i = 0; i < LADDER; i++)
		if (check_isa[i])
			guard_free(&row[i]);
	guard_free(&in);
}

/* ---- boundaries ---- */

#define TIES 64u /* rows */

/* Codes whose boundaries are multiples of `step`, 0 among them; 1 is one, too. */
static void ties_book(uint32_t bits, struct tq *ret)
{
	const int32_t half = 1 << (bits - 1);
	const float step = bits == 2 ? 1.0f : bits == 3 ? 0.5f : 0.25f;

	for (int32_t i = 0; i < 16; i++) {
		ret->cent[i] = ((float)(i % (2 * half) - half) + 0.5f) * step;
		ret->bound[i] = i + 1 < 2 * half ? (float)(i + 1 - half) * step : INFINITY;
	}
	kvp_codebook_steps(ret->bound, bits, ret->step, ret->step_abs);
}

/* Rows of one element, rotated and divided by their length, are 1 or -1, or next to it. */
static void check_ties(uint32_t bits, uint32_t dim, uint32_t dtype)
{
	const struct kvp_plane p = { TIES, 1, dim, dtype, KVP_PLANE_K };
	const size_t row = (size_t)dim * dtype_bytes(dtype), coded = (size_t)TIES * dim * bits / 8;
	struct tq tq = { .bits = bits, .scalar = KVP_TQ_PLAIN, .wide = 1 };
	struct guard in = guard_new(TIES * row, dtype_bytes(dtype)), codes[LADDER], scal[LADDER];
	const struct rows_in rows = { in.data, (ptrdiff_t)row, TIES, dim, dtype, 1.0f };

	if (kvp_rotation_init(&tq.rot, KVP_ROT_H1, dim, inputs_random(), NULL) < 0)
		abort();
	ties_book(bits, &tq);
	memset(in.data, 0, in.size);
	for (uint32_t t = 0; t < TIES; t++) {
		const uint32_t at = below(dim); /* first: arguments have no order */

		store_element(in.data + t * row, dtype, at, 1.0f + (float)inputs_uniform());
	}
	for (size_t i = 0; i < LADDER; i++) {
		if (!check_isa[i])
			continue;
		codes[i] = guard_new(coded, 1);
		scal[i] = guard_new(4 * TIES, 1);
		check_isa[i]->dsp.tq_encode(&tq, &rows, codes[i].data, scal[i].data);
		check_verdict(guard_intact(&codes[i]) && guard_intact(&scal[i]) &&
				      memcmp(codes[i].data, codes[0].data, coded) == 0 &&
				      memcmp(scal[i].data, scal[0].data, 4 * TIES) == 0,
			"encode", "ties", &p, ladder[i].name, "");
	}
	check_digest(codes[0].data, coded);
	check_digest(scal[0].data, 4 * TIES);
	for (size_t i = 0; i < LADDER; i++) {
		if (!check_isa[i])
			continue;
		guard_free(&codes[i]);
		guard_free(&scal[i]);
	}
	guard_free(&in);
}

/* ---- pca ---- */

struct pca_case {
	struct kvp_plane p;
	const struct kvp_calib *calib;
	struct guard src, out[LADDER], dst[LADDER];
	size_t bound;
};

static void pca_plane(struct pca_case *c, enum input_kind kind)
{
	const size_t raw = plane_bytes(&c->p), element = dtype_bytes(c->p.dtype);
	const ptrdiff_t row = (ptrdiff_t)(c->p.dim * element);
	const struct kvp_encode_opts o = {
		.size = sizeof o, .calib = c->calib, .position = below(100000)
	};
	struct kvp_plane_hdr hdr = { 0 };

	c->src = guard_new(raw, element);
	inputs_fill(c->src.data, raw / element, c->p.dtype, kind);
	for (size_t i = 0; i < LADDER; i++) {
		if (!check_isa[i])
			continue;
		c->out[i] = guard_new(c->bound, 16);
		c->dst[i] = guard_new(raw, element);
		check_verdict(kvp_plane_encode(check_isa[i], KVP_CODEC_PCA, &c->p, &o,
				      (struct kvp_raw_const){
					      c->src.data, row * (ptrdiff_t)c->p.tokens, row },
				      c->out[i].data, c->bound) == 0 &&
				      guard_intact(&c->out[i]),
			"encode", "pca", &c->p, ladder[i].name, inputs_name(kind));
		if (!i)
			memcpy(&hdr, c->out[0].data, sizeof hdr);
		check_verdict(memcmp(c->out[i].data, c->out[0].data, hdr.bytes) == 0 &&
				      kvp_plane_decode(check_isa[i], KVP_CODEC_PCA, &c->p, c->calib,
					      c->out[0].data, hdr.bytes,
					      (struct kvp_raw){ c->dst[i].data,
						      row * (ptrdiff_t)c->p.tokens, row }) == 0 &&
				      guard_intact(&c->dst[i]) &&
				      memcmp(c->dst[i].data, c->dst[0].data, raw) == 0,
			"bytes and decode", "pca", &c->p, ladder[i].name, inputs_name(kind));
	}
	check_digest(c->out[0].data, hdr.bytes);
	check_digest(c->dst[0].data, raw);
	for (size_t i = 0; i < LADDER; i++) {
		if (!check_isa[i])
			continue;
		guard_free(&c->out[i]);
		guard_free(&c->dst[i]);
	}
	guard_free(&c->src);
}

static void check_pca(void)
{
	static const struct calib_make makes[] = {
		{ 1, 2, 8, 2, 16, 3, 2, 20, 0.1f, KVP_ROPE_HALF_SPLIT },
		{ 1, 2, 24, 1, 17, 2, 0, 9, 0.3f, KVP_ROPE_INTERLEAVED },
		{ 1, 2, 64, 2, 70, 5, 1, 30, 0.2f, KVP_ROPE_NONE },
		{ 1, 4, 64, 4, 150, 5, 1, 30, 0.2f, KVP_ROPE_HALF_SPLIT }, /* more than PCA_CHUNK */
	};

	for (size_t i = 0; i < sizeof makes / sizeof *makes; i++) {
		struct kvp_calib_set *set;
		size_t bytes;
		void *file = calib_make(&makes[i], &bytes);

		if (kvp_calib_set_new(file, bytes, &set) < 0)
			abort();
		free(file);
		for (uint32_t r = 0; r < 6; r++) {
			struct pca_case c = { .p = { 1 + below(70), makes[i].heads, makes[i].dim,
						      KVP_DTYPE_F32 + r % 3, r / 3 } };

			c.calib = kvp_calib_set_find(set, 0, c.p.kind);
			if (kvp_plane_bytes(KVP_CODEC_PCA, &c.p, &c.bound) < 0)
				abort();
			pca_plane(&c, r % 3 ? any_input() : INPUT_NORMAL);
		}
		kvp_calib_set_free(set);
	}
}

void check_slots(void)
{
	for (size_t d = 0; d < DIMS; d++) {
		for (uint32_t i = 0; i < 9; i++)
			check_rope(dims[d], KVP_DTYPE_F32 + i % 3, KVP_DTYPE_F32 + i / 3);
		for (uint32_t i = 0; i < 9; i++)
			check_lost(dims[d], KVP_DTYPE_F32 + i % 3);
		for (uint32_t i = 0; i < 4; i++) {
			check_rotation(dims[d], KVP_ROT_H1);
			check_rotation(dims[d], KVP_ROT_H3);
		}
	}
	for (uint32_t bits = 2; bits <= 4; bits++)
		for (uint32_t dtype = KVP_DTYPE_F32; dtype <= KVP_DTYPE_BF16; dtype++)
			for (uint32_t dim = 8; dim <= 128; dim *= 2)
				check_ties(bits, dim, dtype);
	for (uint32_t i = 0; i < 50; i++)
		check_split();
	check_pca();
}
