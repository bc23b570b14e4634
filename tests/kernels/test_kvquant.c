/* SPDX-License-Identifier: Apache-2.0 */
/* Calibrations of kvquant, and the codec with them: exact where it must be, small, and safe from both. */
#include "kernels/dsp.h"
#include "kernels/kvp_nuq.h"
#include "kernels/numeric.h"
#include "tests/kernels/guard.h"
#include "tests/kernels/inputs.h"
#include "tests/kernels/ladder.h"
#include "tests/kernels/nuq_make.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <cmocka.h>

static struct kvp_kernels *isa[LADDER];
static size_t sets;

#define CHECKSUM_AT 16u
#define CHECKED     24u
#define ENTRY       192u

static const struct nuq_make small = { 2, 2, 16, KVP_ROPE_HALF_SPLIT, 0 };

/* ---- files ---- */

static void seal(uint8_t *file, size_t bytes)
{
	const uint64_t sum = XXH3_64bits(file + CHECKED, bytes - CHECKED);

	memcpy(file + CHECKSUM_AT, &sum, sizeof sum);
}

/* From memory that ends with the file. */
static int open_exact(const uint8_t *file, size_t bytes, struct kvp_nuq_set **ret)
{
	struct guard g = guard_new(bytes ? bytes : 1, 1);
	int r;

	memcpy(g.data, file, bytes);
	r = kvp_nuq_set_new(g.data, bytes, ret);
	guard_free(&g);
	return r;
}

static void files_open(void **state)
{
	struct kvp_nuq_set *set = NULL;
	uint64_t digest[6];
	size_t bytes;
	uint8_t *file = nuq_make(&small, &bytes);

	(void)state;
	assert_int_equal(open_exact(file, bytes, &set), 0);
	assert_string_equal(kvp_nuq_set_info(set)->model, "random ranges");
	assert_int_equal(kvp_nuq_set_info(set)->heads, 2);
	for (uint32_t i = 0; i < 6; i++) {
		digest[i] = kvp_nuq_set_find(set, i / 3, i % 3)->digest;
		assert_true(digest[i]);
		for (uint32_t j = 0; j < i; j++)
			assert_true(digest[i] != digest[j]);
	}
	assert_null(kvp_nuq_set_find(set, 2, KVP_NUQ_K));
	assert_null(kvp_nuq_set_find(set, 0, KVP_NUQ_FORMS));
	kvp_nuq_set_free(set);
	assert_null(kvp_nuq_set_free(NULL));
	free(file);
}

/* A byte that changed, that is missing or that is too much. */
static void damage_is_found(void **state)
{
	struct kvp_nuq_set *set = NULL;
	size_t bytes;
	uint8_t *file = nuq_make(&small, &bytes), *more = malloc(bytes + 1);

	(void)state;
	for (size_t i = 0; i < bytes; i++) {
		file[i] ^= (uint8_t)(1u << i % 8);
		assert_int_equal(kvp_nuq_set_new(file, bytes, &set),
			i == 4 || i == 5 ? -EPROTONOSUPPORT : -EBADMSG);
		assert_null(set);
		file[i] ^= (uint8_t)(1u << i % 8);
	}
	for (size_t n = 0; n < bytes; n++)
		assert_int_equal(open_exact(file, n, &set), -EBADMSG);
	memcpy(more, file, bytes);
	more[bytes] = 0;
	assert_int_equal(kvp_nuq_set_new(more, bytes + 1, &set), -EBADMSG);
	free(file);
	free(more);
}

/* What no writer says, behind a checksum that is right. */
static void every_field_is_bounded(void **state)
{
	enum { POSTS = ENTRY + 8, LOW = POSTS + 4 * 28, HIGH = LOW + 4 * 32 };
	static const struct {
		size_t at, bytes;
		uint64_t value;
	} wrong[] = {
		{ 6, 2, 1 },
		{ 8, 8, 1 },
		{ 24, 4, 0 },
		{ 24, 4, 257 },
		{ 24, 4, 1 },
		{ 28, 4, 0 },
		{ 28, 4, 7 },
		{ 28, 4, 5 },
		{ 28, 4, UINT32_MAX },
		{ 32, 4, 0 },
		{ 32, 4, 257 },
		{ 32, 4, 3 },
		{ 36, 4, 0 },
		{ 36, 4, 12 },
		{ 36, 4, 1032 },
		{ 40, 8, 1 },
		{ 48, 4, 3 },
		{ 52, 4, 18 },
		{ 56, 4, 9 },
		{ 60, 4, 1 },
		{ 104, 8, 1 },
		{ 112, 1, 0 },
		{ 112, 1, 7 },
		{ 140, 1, 1 },
		{ 176, 1, 1 },
		{ ENTRY, 4, 1 },
		{ ENTRY, 4, UINT32_MAX },
		{ ENTRY + 4, 4, 3 },
		{ ENTRY + 4, 4, 1 },
		{ POSTS, 4, 0x7fc00000 },
		{ POSTS, 4, 0xbf800001 }, /* below -1 */
		{ POSTS, 4, 0x3f800000 }, /* above the next */
		{ POSTS + 4 * 27, 4, 0x3f800001 },
		{ LOW, 4, 0x7fc00000 },
		{ LOW, 4, 0xc7800000 }, /* -65536 */
		{ LOW, 4, 0x47000000 }, /* above high */
		{ HIGH, 4, 0x7f800000 },
		{ HIGH, 4, 0x47800000 },
	};
	struct kvp_nuq_set *set = NULL;
	size_t bytes;
	uint8_t *file = nuq_make(&small, &bytes), was[8];

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		memcpy(was, file + wrong[i].at, wrong[i].bytes);
		memcpy(file + wrong[i].at, &wrong[i].value, wrong[i].bytes);
		seal(file, bytes);
		assert_int_equal(open_exact(file, bytes, &set), -EBADMSG);
		assert_null(set);
		memcpy(file + wrong[i].at, was, wrong[i].bytes);
	}
	seal(file, bytes);
	assert_int_equal(open_exact(file, bytes, &set), 0);
	kvp_nuq_set_free(set);
	free(file);
}

static void writing_refuses(void **state)
{
	float low[8] = { 0 }, high[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
	struct kvp_nuq_info info = { .model = "m", .layers = 1, .heads = 1, .dim = 8 };
	struct kvp_nuq_entry e[2] = { { .form = KVP_NUQ_K, .low = low, .high = high },
		{ .form = KVP_NUQ_V } };
	uint8_t out[1024];
	size_t bytes;

	(void)state;
	assert_int_equal(kvp_nuq_bytes(&info, e, 2, &bytes), 0);
	assert_int_equal(kvp_nuq_write(&info, e, 2, out, bytes), 0);
	assert_int_equal(kvp_nuq_write(&info, e, 2, out, bytes - 1), -ENOSPC);
	assert_int_equal(kvp_nuq_bytes(&info, e, 0, &bytes), -EINVAL);
	e[1].form = KVP_NUQ_K;
	e[1].low = low;
	e[1].high = high;
	assert_int_equal(kvp_nuq_write(&info, e, 2, out, sizeof out), -EINVAL);
	e[1] = (struct kvp_nuq_entry){ .form = KVP_NUQ_V, .signpost = { 2.0f } };
	assert_int_equal(kvp_nuq_write(&info, e, 2, out, sizeof out), -EINVAL);
	/* Keys without bounds, and what no entry is for: nothing is read of them. */
	e[1] = (struct kvp_nuq_entry){ .form = KVP_NUQ_K_POST };
	assert_int_equal(kvp_nuq_bytes(&info, e, 2, &bytes), -EINVAL);
	assert_int_equal(kvp_nuq_write(&info, e, 2, out, sizeof out), -EINVAL);
	e[1].form = KVP_NUQ_FORMS;
	assert_int_equal(kvp_nuq_bytes(&info, e, 2, &bytes), -EINVAL);
	assert_int_equal(kvp_nuq_write(&info, e, 2, out, sizeof out), -EINVAL);
	info.heads = 0;
	assert_int_equal(kvp_nuq_bytes(&info, e, 1, &bytes), -EINVAL);
}

/* ---- planes ---- */

struct trip {
	struct kvp_nuq_set *set;
	const struct kvp_calib *calib;
	uint32_t codec;
	struct kvp_plane p;
	struct kvp_encode_opts o;
	ptrdiff_t head_stride, token_stride;
	struct guard src, dst, out;
	size_t bytes, element;
};

static uint32_t codec_of(const char *name)
{
	uint32_t codec;

	assert_int_equal(kvp_codec_parse(name, &codec), 0);
	return codec;
}

static struct trip trip_new(
	const char *name, const struct nuq_make *m, uint32_t tokens, uint32_t dtype, uint32_t kind)
{
	struct trip t = { .codec = codec_of(name),
		.p = { tokens, m->heads, m->dim, dtype, kind },
		.element = dtype == KVP_DTYPE_F32 ? 4 : 2 };
	size_t raw = t.element * tokens * m->heads * m->dim, bytes;
	void *file = nuq_make(m, &bytes);

	assert_int_equal(kvp_nuq_set_new(file, bytes, &t.set), 0);
	free(file);
	t.calib = kvp_nuq_set_find(t.set, m->layers - 1, nuq_form_of(t.codec, kind));
	t.o = (struct kvp_encode_opts){ .size = sizeof t.o, .calib = t.calib, .position = 777 };
	t.token_stride = (ptrdiff_t)(t.element * m->dim);
	t.head_stride = t.token_stride * (ptrdiff_t)tokens;
	t.src = guard_new(raw, t.element);
	t.dst = guard_new(raw, t.element);
	assert_int_equal(kvp_plane_bytes(t.codec, &t.p, &t.bytes), 0);
	t.out = guard_new(t.bytes, 16);
	return t;
}

static void trip_free(struct trip *t)
{
	guard_free(&t->src);
	guard_free(&t->dst);
	guard_free(&t->out);
	kvp_nuq_set_free(t->set);
}

static int trip_encode(struct trip *t, size_t set)
{
	int r = kvp_plane_encode(isa[set], t->codec, &t->p, &t->o,
		(struct kvp_raw_const){ t->src.data, t->head_stride, t->token_stride }, t->out.data,
		t->bytes);

	assert_true(guard_intact(&t->out) && guard_intact(&t->src));
	return r;
}

static int trip_decode(struct trip *t, size_t set)
{
	int r = kvp_plane_decode(isa[set], t->codec, &t->p, t->calib, t->out.data, t->bytes,
		(struct kvp_raw){ t->dst.data, t->head_stride, t->token_stride });

	assert_true(guard_intact(&t->dst));
	return r;
}

static float element(const struct guard *g, const struct trip *t, size_t i)
{
	return load_element(g->data, t->p.dtype, (uint32_t)i);
}

static double error_of(const struct trip *t)
{
	double ee = 0.0, xx = 0.0;

	for (size_t i = 0; i < t->src.size / t->element; i++) {
		const double a = (double)element(&t->src, t, i);

		ee += pow(a - (double)element(&t->dst, t, i), 2);
		xx += a * a;
	}
	return ee / xx;
}

static const char *const names[] = { "kvquant2", "kvquant3", "kvquant4", "kvquant3-uniform",
	"kvquant4-post", "kvquant2-uniform-post-dense" };

/* Whatever the elements: all sets write one payload, read it alike, and what they read is finite. */
static void any_input(void **state)
{
	static const struct nuq_make makes[] = { { 1, 2, 64, KVP_ROPE_HALF_SPLIT, 7 },
		{ 2, 3, 24, KVP_ROPE_INTERLEAVED, 0 }, { 1, 1, 8, KVP_ROPE_NONE, 0 },
		{ 1, 4, 128, KVP_ROPE_HALF_SPLIT, 0 } };
	static const uint32_t tokens[] = { 1, 7, 33 };

	(void)state;
	for (uint32_t i = 0; i < 12 * INPUT_MAX_; i++) {
		struct trip t = trip_new(names[i % 6], &makes[i / 3 % 4], tokens[i % 3],
			KVP_DTYPE_F32 + i / 2 % 3, i & 1);
		struct guard first = guard_new(t.bytes, 16), back = guard_new(t.dst.size, 4);

		inputs_fill(
			t.src.data, t.src.size / t.element, t.p.dtype, (enum input_kind)(i / 12));
		for (size_t s = 0; s < sets; s++) {
			assert_int_equal(trip_encode(&t, s), 0);
			if (!s)
				memcpy(first.data, t.out.data, t.bytes);
			assert_memory_equal(t.out.data, first.data, t.bytes);
			memset(t.dst.data, 0x5a, t.dst.size);
			assert_int_equal(trip_decode(&t, s), 0);
			if (!s)
				memcpy(back.data, t.dst.data, t.dst.size);
			assert_memory_equal(t.dst.data, back.data, t.dst.size);
		}
		for (size_t j = 0; j < t.src.size / t.element; j++)
			assert_true(isfinite(element(&t.dst, &t, j)));
		guard_free(&first);
		guard_free(&back);
		trip_free(&t);
	}
}

/*
 * Row A-027: what lies outside is in the payload bit for bit as an fp16 has it, one in a hundred of a
 * token's channels; and more bits are nearer, with outliers and without.
 */
static void outliers_are_exact(void **state)
{
	static const struct nuq_make wide = { 1, 8, 128, KVP_ROPE_NONE, 0 };

	(void)state;
	for (uint32_t kind = 0; kind < 2; kind++) {
		struct trip t = trip_new("kvquant3", &wide, 32, KVP_DTYPE_F16, kind);
		struct trip dense = trip_new("kvquant3-dense", &wide, 32, KVP_DTYPE_F16, kind);
		uint16_t *x = (uint16_t *)(void *)t.src.data;

		inputs_fill(x, t.src.size / 2, KVP_DTYPE_F16, INPUT_NORMAL);
		/* Ten of 1,024, of every head some, half of them on each side. */
		for (uint32_t token = 0; token < 32; token++)
			for (uint32_t i = 0; i < 10; i++) {
				const uint32_t c = (i * 103 + token * 31) % 1024;
				const float loud = (20.0f + (float)i) * (i & 1 ? -1.0f : 1.0f);

				x[((c / 128) * 32 + token) * 128 + c % 128] = f32_to_f16(loud);
			}
		memcpy(dense.src.data, x, t.src.size);
		assert_int_equal(trip_encode(&t, 0), 0);
		assert_int_equal(trip_decode(&t, 0), 0);
		assert_int_equal(trip_encode(&dense, 0), 0);
		assert_int_equal(trip_decode(&dense, 0), 0);
		for (uint32_t token = 0; token < 32; token++)
			for (uint32_t i = 0; i < 10; i++) {
				const uint32_t c = (i * 103 + token * 31) % 1024;
				const size_t at = ((c / 128) * 32 + token) * 128 + c % 128;

				assert_memory_equal(t.src.data + 2 * at, t.dst.data + 2 * at, 2);
			}
		assert_true(error_of(&dense) > 4.0 * error_of(&t));
		trip_free(&t);
		trip_free(&dense);
	}
}

static void more_bits_are_nearer(void **state)
{
	static const struct nuq_make wide = { 1, 4, 64, KVP_ROPE_HALF_SPLIT, 0 };

	(void)state;
	for (uint32_t kind = 0; kind < 2; kind++) {
		double last = 1.0;

		for (uint32_t bits = 2; bits <= 4; bits++) {
			char name[] = "kvquant0";
			struct trip t;

			name[7] = (char)('0' + bits);
			inputs_reseed(4);
			t = trip_new(name, &wide, 64, KVP_DTYPE_F32, kind);
			inputs_fill(t.src.data, t.src.size / 4, KVP_DTYPE_F32, INPUT_NORMAL);
			assert_int_equal(trip_encode(&t, 0), 0);
			assert_int_equal(trip_decode(&t, 0), 0);
			assert_true(error_of(&t) < 0.7 * last);
			last = error_of(&t);
			trip_free(&t);
		}
		inputs_init();
	}
}

/*
 * Rows: keys before RoPE keep their position and say that they need it, and where they stood
 * changes no code; coded before and after, the same keys come back with RoPE on, within each codec's error.
 */
static void keys_before_and_after_rope(void **state)
{
	static const struct nuq_make m = { 1, 2, 64, KVP_ROPE_HALF_SPLIT, 0 };
	struct trip pre, post;
	struct kvp_layout lay;
	struct kvp_rope rope;
	uint8_t *first;
	float *before;
	size_t n;

	(void)state;
	inputs_reseed(25); /* the bound below is of these signposts */
	pre = trip_new("kvquant4", &m, 48, KVP_DTYPE_F32, KVP_PLANE_K);
	post = trip_new("kvquant4-post", &m, 48, KVP_DTYPE_F32, KVP_PLANE_K);
	n = pre.src.size / 4;
	before = malloc(4 * n);
	inputs_fill(before, n, KVP_DTYPE_F32, INPUT_NORMAL);
	assert_int_equal(kvp_rope_init(&kvp_nuq_set_info(pre.set)->rope, &rope), 0);
	assert_int_equal(kvp_plane_layout(pre.codec, &pre.p, &lay), 0);
	first = malloc(lay.bytes);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t own[2], apart = 0;

		pre.o.position = i ? 131024 : 0;
		assert_int_equal(
			kvp_rope_apply(isa[0], &rope, &pre.p, pre.o.position,
				(struct kvp_raw_const){ before, pre.head_stride, pre.token_stride },
				KVP_DTYPE_F32,
				(struct kvp_raw){
					pre.src.data, pre.head_stride, pre.token_stride }),
			0);
		assert_int_equal(trip_encode(&pre, 0), 0);
		memcpy(own, pre.out.data + KVP_PLANE_HDR_BYTES, sizeof own);
		assert_int_equal(own[0], pre.o.position);
		assert_int_equal(own[1], 1);
		for (uint32_t b = lay.codes; i && b < lay.extra; b++)
			apart += first[b] != pre.out.data[b];
		/* A key on a boundary may fall to the other side of it. */
		assert_true(apart <= 4);
		memcpy(first, pre.out.data, lay.bytes);
		assert_int_equal(trip_decode(&pre, 0), 0);
		memcpy(post.src.data, pre.src.data, post.src.size);
		assert_int_equal(trip_encode(&post, 0), 0);
		memcpy(own, post.out.data + KVP_PLANE_HDR_BYTES, sizeof own);
		assert_int_equal(own[1], 0);
		assert_int_equal(trip_decode(&post, 0), 0);
		assert_true(error_of(&pre) < 0.03 && error_of(&post) < 0.03);
	}
	free(before);
	free(first);
	trip_free(&pre);
	trip_free(&post);
	inputs_init();
}

/* Row A-030: K and V of 3 bits with their outliers and scalars, 4.8 times smaller than fp16. */
static void sizes(void **state)
{
	const uint32_t heads[] = { 32, 8 }, codec = codec_of("kvquant3");

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct kvp_plane p = { 512, heads[i], 128, KVP_DTYPE_F16, KVP_PLANE_K };
		size_t k, v, native;

		assert_int_equal(kvp_plane_bytes(codec, &p, &k), 0);
		p.kind = KVP_PLANE_V;
		assert_int_equal(kvp_plane_bytes(codec, &p, &v), 0);
		assert_int_equal(kvp_plane_bytes(KVP_CODEC_NATIVE, &p, &native), 0);
		assert_true(2.0 * (double)native / (double)(k + v) >= 4.8);
		assert_true(2.0 * (double)native / (double)(k + v) <= 4.9);
	}
}

/* Row A-029: without its calibration a payload is an error, and no byte is written. */
static void another_calibration(void **state)
{
	struct trip t = trip_new("kvquant3", &small, 16, KVP_DTYPE_F16, KVP_PLANE_K);
	struct trip other = trip_new("kvquant3", &small, 16, KVP_DTYPE_F16, KVP_PLANE_K);
	const struct kvp_raw dst = { t.dst.data, t.head_stride, t.token_stride };
	const struct kvp_calib haar = { .dim = 16, .haar = (const float[256]){ 1 }, .digest = 9 };
	const struct kvp_calib *wrong[] = { NULL, &haar, kvp_nuq_set_find(t.set, 1, KVP_NUQ_V),
		kvp_nuq_set_find(t.set, 1, KVP_NUQ_K_POST), other.calib,
		kvp_nuq_set_find(t.set, 0, KVP_NUQ_K) };
	struct kvp_plane p = t.p;
	size_t bytes;

	(void)state;
	inputs_fill(t.src.data, t.src.size / 2, t.p.dtype, INPUT_NORMAL);
	assert_int_equal(trip_encode(&t, 0), 0);
	memset(t.dst.data, 0x77, t.dst.size);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct trip again = t;

		assert_int_equal(
			kvp_plane_decode(isa[0], t.codec, &t.p, wrong[i], t.out.data, t.bytes, dst),
			-ENOENT);
		assert_int_equal(
			kvp_plane_check(t.codec, &t.p, wrong[i], t.out.data, t.bytes), -ENOENT);
		again.o.calib = wrong[i];
		/* The last two fit these keys. */
		if (i < 4)
			assert_int_equal(trip_encode(&again, 0), -ENOENT);
	}
	for (size_t i = 0; i < t.dst.size; i++)
		assert_int_equal(t.dst.data[i], 0x77);
	p.heads = 1024 * 16;
	assert_int_equal(kvp_plane_bytes(t.codec, &p, &bytes), -EINVAL);
	p.heads = 32;
	p.dim = 520;
	assert_int_equal(kvp_plane_bytes(t.codec, &p, &bytes), -EINVAL);
	assert_int_equal(kvp_plane_bytes(t.codec | 64u, &t.p, &bytes), -EINVAL);
	assert_int_equal(kvp_plane_bytes((t.codec & ~7u) | 5u, &t.p, &bytes), -EINVAL);
	t.o.position = KVP_ROPE_POSITIONS_MAX - 15;
	assert_int_equal(trip_encode(&t, 0), -EINVAL);
	trip_free(&t);
	trip_free(&other);
}

/* Payloads that others wrote: a header that is none is refused, all else is the same from every set. */
static void hostile(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 12; i++) {
		struct trip t = trip_new(names[i % 6], &small, 9, KVP_DTYPE_F32 + i % 3, i / 6 & 1);
		struct guard back = guard_new(t.dst.size, 4);
		uint32_t own[2], was[2];

		inputs_fill(t.src.data, t.src.size / t.element, t.p.dtype, INPUT_NORMAL);
		assert_int_equal(trip_encode(&t, 0), 0);
		memcpy(was, t.out.data + KVP_PLANE_HDR_BYTES, sizeof was);
		for (uint32_t j = 0; j < 3; j++) {
			memcpy(own, was, sizeof own);
			own[0] = j == 0 ? KVP_ROPE_POSITIONS_MAX - 8 : own[0];
			own[1] ^= j;
			memcpy(t.out.data + KVP_PLANE_HDR_BYTES, own, sizeof own);
			assert_int_equal(trip_decode(&t, 0), -EBADMSG);
		}
		memcpy(t.out.data + KVP_PLANE_HDR_BYTES, was, sizeof was);
		for (uint32_t j = 0; j < 20; j++) {
			inputs_noise(t.out.data + 128, t.bytes - 128);
			for (size_t s = 0; s < sets; s++) {
				assert_int_equal(trip_decode(&t, s), 0);
				if (!s)
					memcpy(back.data, t.dst.data, t.dst.size);
				assert_memory_equal(t.dst.data, back.data, t.dst.size);
			}
			for (size_t e = 0; e < t.dst.size / t.element; e++)
				assert_true(isfinite(element(&t.dst, &t, e)));
		}
		guard_free(&back);
		trip_free(&t);
	}
}

/* What attention decodes of one head is what decoding a plane gives. */
static void rows(void **state)
{
	static const struct nuq_make m = { 1, 3, 40, KVP_ROPE_INTERLEAVED, 0 };

	(void)state;
	for (uint32_t i = 0; i < 24; i++) {
		struct trip t = trip_new(names[i % 6], &m, 70, KVP_DTYPE_F32, i / 6 & 1);
		const uint32_t dim = t.p.dim, head = (uint32_t)(inputs_random() % t.p.heads);
		const uint32_t first = (uint32_t)(inputs_random() % 70);
		const uint32_t n = 1 + (uint32_t)(inputs_random() % (70 - first));
		float *got = malloc(4 * (size_t)n * dim);
		const struct rows_out out = { (uint8_t *)got, 4 * (ptrdiff_t)dim, n, dim,
			KVP_DTYPE_F32, 1.0f };
		struct kvp_layout lay;

		inputs_fill(t.src.data, t.src.size / 4, t.p.dtype, INPUT_NORMAL);
		assert_int_equal(trip_encode(&t, 0), 0);
		assert_int_equal(trip_decode(&t, 0), 0);
		assert_int_equal(kvp_plane_layout(t.codec, &t.p, &lay), 0);
		for (size_t s = 0; s < sets; s++) {
			memset(got, 0x5a, 4 * (size_t)n * dim);
			assert_int_equal(kvp_codec_kvquant.rows(isa[s], t.codec, &t.p, &lay,
						 t.calib, t.out.data, head, first, &out),
				0);
			assert_memory_equal(got, t.dst.data + 4 * ((size_t)head * 70 + first) * dim,
				4 * (size_t)n * dim);
		}
		free(got);
		trip_free(&t);
	}
}

static int setup(void **state)
{
	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	for (; sets < LADDER && ladder_reaches(sets); sets++)
		if (kvp_kernels_new(ladder[sets].mask, &isa[sets]) < 0)
			return -1;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (size_t s = 0; s < sets; s++)
		isa[s] = kvp_kernels_free(isa[s]);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_open),
		cmocka_unit_test(damage_is_found),
		cmocka_unit_test(every_field_is_bounded),
		cmocka_unit_test(writing_refuses),
		cmocka_unit_test(any_input),
		cmocka_unit_test(outliers_are_exact),
		cmocka_unit_test(more_bits_are_nearer),
		cmocka_unit_test(keys_before_and_after_rope),
		cmocka_unit_test(sizes),
		cmocka_unit_test(another_calibration),
		cmocka_unit_test(hostile),
		cmocka_unit_test(rows),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
