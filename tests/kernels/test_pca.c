/* SPDX-License-Identifier: Apache-2.0 */
/* Calibration files, and the codec pca with them: exact where it must be, small, and safe from both. */
#include "kernels/dsp.h"
#include "kernels/kvp_attend.h"
#include "kernels/kvp_calib.h"
#include "kernels/numeric.h"
#include "tests/kernels/calib_make.h"
#include "tests/kernels/guard.h"
#include "tests/kernels/inputs.h"
#include "tests/kernels/ladder.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <cmocka.h>

#ifdef __x86_64__
void kvp_pca_slots_avx512(struct dsp *dsp);
void kvp_pca_slots_avx512vl(struct dsp *dsp);
#endif

static struct kvp_kernels *isa[LADDER + 2];
static size_t sets;

#define CHECKSUM_AT 16u
#define CHECKED     24u

static const struct calib_make small = { 2, 2, 8, 2, 16, 3, 2, 20, 0.1f, KVP_ROPE_HALF_SPLIT };

/* ---- files ---- */

static void seal(uint8_t *file, size_t bytes)
{
	const uint64_t sum = XXH3_64bits(file + CHECKED, bytes - CHECKED);

	memcpy(file + CHECKSUM_AT, &sum, sizeof sum);
}

/* From memory that ends with the file. */
static int open_exact(const uint8_t *file, size_t bytes, struct kvp_calib_set **ret)
{
	struct guard g = guard_new(bytes ? bytes : 1, 1);
	int r;

	memcpy(g.data, file, bytes);
	r = kvp_calib_set_new(g.data, bytes, ret);
	guard_free(&g);
	return r;
}

static void files_open(void **state)
{
	struct kvp_calib_set *set = NULL;
	const struct kvp_calib *k0, *v1;
	size_t bytes;
	uint8_t *file = calib_make(&small, &bytes);

	(void)state;
	assert_int_equal(open_exact(file, bytes, &set), 0);
	assert_string_equal(kvp_calib_set_info(set)->model, "random axes");
	assert_int_equal(kvp_calib_set_info(set)->layers, 2);
	assert_int_equal(kvp_calib_set_info(set)->joint, 2);
	k0 = kvp_calib_set_find(set, 0, KVP_PLANE_K);
	v1 = kvp_calib_set_find(set, 1, KVP_PLANE_V);
	assert_true(k0 && v1 && k0 != v1 && k0->digest && k0->digest != v1->digest);
	assert_null(kvp_calib_set_find(set, 2, KVP_PLANE_K));
	assert_null(kvp_calib_set_find(set, 0, 2));
	set = kvp_calib_set_free(set);
	assert_null(kvp_calib_set_free(NULL));
	free(file);
}

/* A byte that changed, that is missing or that is too much. */
static void damage_is_found(void **state)
{
	struct kvp_calib_set *set = NULL;
	size_t bytes;
	uint8_t *file = calib_make(&small, &bytes), *more = malloc(bytes + 1);

	(void)state;
	for (size_t i = 0; i < bytes; i += i < 512 ? 1 : 1 + inputs_random() % 64) {
		int r;

		file[i] ^= (uint8_t)(1u << i % 8);
		r = kvp_calib_set_new(file, bytes, &set);
		assert_int_equal(r, i == 4 || i == 5 ? -EPROTONOSUPPORT : -EBADMSG);
		assert_null(set);
		file[i] ^= (uint8_t)(1u << i % 8);
	}
	for (size_t n = 0; n < bytes; n += n < 512 ? 1 : 1 + inputs_random() % 256)
		assert_int_equal(open_exact(file, n, &set), -EBADMSG);
	memcpy(more, file, bytes);
	more[bytes] = 0;
	assert_int_equal(kvp_calib_set_new(more, bytes + 1, &set), -EBADMSG);
	free(file);
	free(more);
}

/* What no writer says, behind a checksum that is right. */
static void every_field_is_bounded(void **state)
{
	enum { DIRECTORY = 192, ENTRY = DIRECTORY + 4 * 32, UNIT = ENTRY + 8, MEAN = UNIT + 8 };
	enum { FORWARD = MEAN + 64, INVERSE = FORWARD + 1024, TABLE = INVERSE + 1024 };
	static const struct {
		size_t at, bytes;
		uint64_t value;
	} wrong[] = {
		{ 6, 2, 1 },                               /* reserved */
		{ 8, 8, 1 },                               /* bytes */
		{ 24, 4, 0 },                              /* layers */
		{ 24, 4, 257 },                            /* likewise */
		{ 24, 4, 1 },                              /* fewer than entries name */
		{ 28, 4, 0 },                              /* entries */
		{ 28, 4, 5 },                              /* more than layers have */
		{ 28, 4, 3 },                              /* fewer than there are */
		{ 28, 4, UINT32_MAX },                     /* more than memory has */
		{ 32, 4, 0 },                              /* heads */
		{ 32, 4, 257 },                            /* likewise */
		{ 32, 4, 3 },                              /* no multiple of joint */
		{ 36, 4, 0 },                              /* dim */
		{ 36, 4, 12 },                             /* no multiple of 8 */
		{ 36, 4, 520 },                            /* too wide */
		{ 40, 4, 0 },                              /* joint */
		{ 40, 4, 1 },                              /* other units than there are */
		{ 44, 4, 0 },                              /* round: 0 */
		{ 44, 4, 0x3f000001 },                     /* more than .5 */
		{ 44, 4, 0x7fc00000 },                     /* NaN */
		{ 48, 4, 3 },                              /* pairing */
		{ 52, 4, 16 },                             /* more channels than there are turn */
		{ 56, 4, 5 },                              /* scaling */
		{ 60, 4, 1 },                              /* reserved */
		{ 64, 8, 0x7ff8000000000000 },             /* theta: NaN */
		{ 104, 8, 1 },                             /* reserved */
		{ 112, 1, 0 },                             /* no name */
		{ 112, 1, 0x1b },                          /* not printable */
		{ 112, 1, 0xc3 },                          /* not ASCII */
		{ 175, 1, 'x' },                           /* not terminated */
		{ 176, 8, 1 },                             /* reserved */
		{ DIRECTORY, 4, 7 },                       /* layer */
		{ DIRECTORY + 4, 4, 2 },                   /* kind */
		{ DIRECTORY + 4, 4, 1 },                   /* not ascending */
		{ DIRECTORY + 8, 8, 0 },                   /* offset */
		{ DIRECTORY + 8, 8, UINT64_MAX },          /* likewise */
		{ DIRECTORY + 16, 8, UINT64_MAX },         /* bytes */
		{ DIRECTORY + 16, 8, 4 },                  /* likewise */
		{ DIRECTORY + 24, 8, 7 },                  /* digest */
		{ ENTRY, 4, 1 },                           /* another layer than the directory's */
		{ ENTRY + 4, 4, 1 },                       /* another kind */
		{ UNIT, 4, 0 },                            /* rank */
		{ UNIT, 4, 17 },                           /* more than channels */
		{ UNIT, 4, UINT32_MAX },                   /* likewise */
		{ UNIT + 4, 4, 0 },                        /* tables */
		{ UNIT + 4, 4, 65 },                       /* likewise */
		{ UNIT + 4, 4, 2 },                        /* fewer than there are */
		{ MEAN, 4, 0x7fc00000 },                   /* NaN */
		{ MEAN + 60, 4, 0x47800001 },              /* beyond 2^16 */
		{ FORWARD, 4, 0x7f800000 },                /* infinity */
		{ FORWARD + 1020, 4, 0xc9800001 },         /* beyond 2^20 */
		{ INVERSE + 4, 4, 0xffc00000 },            /* NaN */
		{ TABLE, 4, 0 },                           /* components */
		{ TABLE, 4, 7 },                           /* more than rank in all */
		{ TABLE, 4, UINT32_MAX },                  /* likewise */
		{ TABLE + 4, 4, 8 },                       /* shift */
		{ TABLE + 8, 4, 0x3f000001 },              /* offset beyond .5 */
		{ TABLE + 12, 4, 0x7fc00000 },             /* NaN */
		{ TABLE + 16, 2, 0 },                      /* no frequency for escapes */
		{ TABLE + 16 + 2 * KVP_CALIB_ZERO, 2, 0 }, /* nor for 0 */
		{ TABLE + 16 + 2 * 255, 2, UINT16_MAX },   /* not 4096 in all */
	};
	struct kvp_calib_set *set = NULL;
	size_t bytes;
	uint8_t *file = calib_make(&small, &bytes), *copy = malloc(bytes);

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		memcpy(copy, file, bytes);
		memcpy(copy + wrong[i].at, &wrong[i].value, wrong[i].bytes);
		assert_memory_not_equal(copy, file, bytes);
		if (wrong[i].at >= CHECKED)
			seal(copy, bytes);
		/* The digests are right, too, but where they are what is wrong. */
		for (uint32_t e = 0; e < 4; e++) {
			uint8_t *dir = copy + DIRECTORY + 32 * e;
			uint64_t offset, size, digest;

			memcpy(&offset, dir + 8, 8);
			memcpy(&size, dir + 16, 8);
			if (offset > bytes || size > bytes - offset || wrong[i].at < ENTRY)
				continue;
			digest = XXH3_64bits_withSeed(
				copy + offset, size, XXH3_64bits(copy + 32, 112 - 32));
			memcpy(dir + 24, &digest, 8);
			seal(copy, bytes);
		}
		if (open_exact(copy, bytes, &set) != -EBADMSG)
			fail_msg("field at %zu, value %#llx", wrong[i].at,
				(unsigned long long)wrong[i].value);
	}
	free(copy);
	free(file);
}

static void writing_refuses(void **state)
{
	static float zero[64], nan[64];
	struct kvp_calib_table t = { .count = 8 };
	uint32_t count[KVP_CALIB_SYMBOLS] = { 0 };
	struct kvp_calib_unit u = { 8, 1, zero, zero, zero, &t };
	struct kvp_calib_entry e[2] = { { 0, KVP_PLANE_K, &u }, { 0, KVP_PLANE_V, &u } };
	struct kvp_calib_info info = { "m", 1, 1, 8, 1, 0.5f, { .pairing = KVP_ROPE_NONE } };
	uint8_t out[8192];
	size_t bytes;

	(void)state;
	nan[0] = NAN;
	assert_int_equal(kvp_calib_frequencies(count, t.freq), 0);
	assert_int_equal(t.freq[KVP_CALIB_ESCAPE] + t.freq[KVP_CALIB_ZERO], KVP_CALIB_TOTAL);
	count[3] = UINT32_MAX;
	assert_int_equal(kvp_calib_frequencies(count, t.freq), -EINVAL);
	assert_int_equal(kvp_calib_bytes(&info, e, 2, &bytes), 0);
	assert_int_equal(bytes, 192 + 2 * (32 + 8 + 8 + 4 * (8 + 64 + 64) + 528));
	assert_int_equal(kvp_calib_write(&info, e, 2, out, bytes), 0);
	assert_int_equal(kvp_calib_write(&info, e, 2, out, bytes - 1), -ENOSPC);
	assert_int_equal(kvp_calib_bytes(&info, e, 0, &bytes), -EINVAL);
	assert_int_equal(kvp_calib_bytes(&info, e, 3, &bytes), -EINVAL);
	u.mean = nan;
	assert_int_equal(kvp_calib_write(&info, e, 2, out, sizeof out), -EINVAL);
	u.mean = zero;
	e[0].kind = KVP_PLANE_V;
	assert_int_equal(kvp_calib_write(&info, e, 2, out, sizeof out), -EINVAL);
	e[0].kind = KVP_PLANE_K;
	u.rank = 9;
	assert_int_equal(kvp_calib_bytes(&info, e, 2, &bytes), -EINVAL);
	u.rank = 8;
	info.model[0] = 0;
	assert_int_equal(kvp_calib_bytes(&info, e, 2, &bytes), -EINVAL);
}

/* ---- planes ---- */

struct trip {
	struct kvp_calib_set *set;
	const struct kvp_calib *calib;
	struct kvp_plane p;
	struct kvp_encode_opts o;
	ptrdiff_t head_stride, token_stride;
	struct guard src, dst, out;
	size_t bound, bytes, element;
};

static struct trip trip_new(
	const struct calib_make *m, uint32_t tokens, uint32_t dtype, uint32_t kind)
{
	struct trip t = { .p = { tokens, m->heads, m->dim, dtype, kind },
		.element = dtype == KVP_DTYPE_F32 ? 4 : 2 };
	size_t raw = t.element * tokens * m->heads * m->dim, bytes;
	void *file = calib_make(m, &bytes);

	assert_int_equal(kvp_calib_set_new(file, bytes, &t.set), 0);
	free(file);
	t.calib = kvp_calib_set_find(t.set, m->layers - 1, kind);
	t.o = (struct kvp_encode_opts){ .size = sizeof t.o, .calib = t.calib, .position = 777 };
	t.token_stride = (ptrdiff_t)(t.element * m->dim);
	t.head_stride = t.token_stride * (ptrdiff_t)tokens;
	t.src = guard_new(raw, t.element);
	t.dst = guard_new(raw, t.element);
	assert_int_equal(kvp_plane_bytes(KVP_CODEC_PCA, &t.p, &t.bound), 0);
	assert_int_equal(t.bound, raw + KVP_PLANE_HDR_BYTES + 8);
	t.out = guard_new(t.bound, 16);
	return t;
}

static void trip_free(struct trip *t)
{
	guard_free(&t->src);
	guard_free(&t->dst);
	guard_free(&t->out);
	kvp_calib_set_free(t->set);
}

static void trip_encode(struct trip *t, size_t set)
{
	struct kvp_plane_hdr hdr;

	assert_int_equal(
		kvp_plane_encode(isa[set], KVP_CODEC_PCA, &t->p, &t->o,
			(struct kvp_raw_const){ t->src.data, t->head_stride, t->token_stride },
			t->out.data, t->bound),
		0);
	assert_true(guard_intact(&t->out) && guard_intact(&t->src));
	memcpy(&hdr, t->out.data, sizeof hdr);
	t->bytes = hdr.bytes;
	assert_true(t->bytes <= t->bound);
	assert_int_equal(hdr.calib, t->calib->digest);
}

static int trip_decode(struct trip *t, size_t set, const void *in, size_t size)
{
	int r = kvp_plane_decode(isa[set], KVP_CODEC_PCA, &t->p, t->calib, in, size,
		(struct kvp_raw){ t->dst.data, t->head_stride, t->token_stride });

	assert_true(guard_intact(&t->dst));
	return r;
}

/* The payload alone, with nothing mapped behind it. */
static struct guard exact(const struct trip *t)
{
	struct guard g = guard_new(t->bytes, 16);

	memcpy(g.data, t->out.data, t->bytes);
	return g;
}

static double element(const struct guard *g, const struct trip *t, size_t i)
{
	return (double)load_element(g->data, t->p.dtype, (uint32_t)i);
}

/* What is lost is at most a step a component, turned or not; less where there is nothing else to lose. */
static void check_error(const struct calib_make *m, const struct trip *t)
{
	const uint32_t width = m->joint * m->dim;
	const size_t n = (size_t)t->p.tokens * t->p.heads * t->p.dim;
	double sum = 0.0, most;

	for (size_t i = 0; i < n; i++)
		sum += pow(element(&t->src, t, i) - element(&t->dst, t, i), 2);
	/* Deadzone and offset: .6 of a step beside rounding of the output. */
	most = pow(0.66 * (double)m->step, 2) * (double)n;
	if (m->rank == width && t->bytes < t->bound)
		assert_true(sum < most + (double)n * 1e-3);
}

static const struct calib_make makes[] = {
	{ 1, 2, 64, 2, 128, 8, 0, 20, 0.5f, KVP_ROPE_HALF_SPLIT },
	{ 2, 4, 16, 2, 32, 5, 3, 20, 0.05f, KVP_ROPE_INTERLEAVED },
	{ 1, 3, 24, 1, 24, 2, 0, 3, 0.2f, KVP_ROPE_NONE }, /* escapes */
	{ 1, 2, 40, 1, 33, 3, 1, 9, 0.3f, KVP_ROPE_HALF_SPLIT },
	{ 1, 1, 8, 1, 1, 1, 0, 5, 0.5f, KVP_ROPE_NONE },
	{ 1, 4, 128, 4, 512, 64, 7, 100, 0.004f, KVP_ROPE_HALF_SPLIT }, /* values of 17 bits */
	{ 1, 2, 64, 2, 128, 8, 3, 20, 0.02f, KVP_ROPE_INTERLEAVED },    /* sums of 33 bits */
};

static void there_and_back(void **state)
{
	static const uint32_t tokens[] = { 64, 1, 7, 8, 31, 32, 33, 100 };
	uint32_t coded = 0, n = 0;

	(void)state;
	for (size_t i = 0; i < 8 * sizeof makes / sizeof *makes; i++, n++) {
		const struct calib_make *m = &makes[i / 8];
		struct trip t =
			trip_new(m, tokens[i % 8], KVP_DTYPE_F32 + (uint32_t)(i % 3), i & 1);
		struct guard first, back = guard_new(t.dst.size, t.element);

		inputs_fill(t.src.data, t.src.size / t.element, t.p.dtype, INPUT_NORMAL);
		trip_encode(&t, 0);
		first = exact(&t);
		coded += t.bytes < t.bound;
		for (size_t s = 0; s < sets; s++) {
			trip_encode(&t, s);
			assert_int_equal(t.bytes, first.size);
			assert_memory_equal(t.out.data, first.data, t.bytes);
			memset(t.dst.data, 0x5a, t.dst.size);
			assert_int_equal(trip_decode(&t, s, first.data, first.size), 0);
			if (!s)
				memcpy(back.data, t.dst.data, t.dst.size);
			assert_memory_equal(back.data, t.dst.data, t.dst.size);
		}
		check_error(m, &t);
		guard_free(&first);
		guard_free(&back);
		trip_free(&t);
	}
	/* Of few tokens the states of the coder alone are too much. */
	assert_true(coded > n / 2 && coded < n);
}

/* Escapes that no encoder writes: the largest there are, whose magnitudes add up to more than 32 bits. */
static void escapes_of_any_size(void **state)
{
	static const struct calib_make m = { 1, 3, 96, 3, 288, 64, 7, 1, 0.004f, KVP_ROPE_NONE };
	static const int16_t most[] = { INT16_MAX, INT16_MIN, 260, -9000 };
	struct trip t = trip_new(&m, 21, KVP_DTYPE_F32, KVP_PLANE_V);
	struct guard payload, back = guard_new(t.dst.size, t.element);
	uint32_t escapes;

	(void)state;
	inputs_fill(t.src.data, t.src.size / t.element, t.p.dtype, INPUT_NORMAL);
	trip_encode(&t, 0);
	assert_true(t.bytes < t.bound);
	payload = exact(&t);
	memcpy(&escapes, payload.data + 72, sizeof escapes);
	assert_true(escapes > 1000);
	for (uint32_t i = 0; i < 6; i++) {
		for (uint32_t j = 0; j < escapes; j++)
			memcpy(payload.data + 80 + 2 * j,
				&most[i < 4 ? i : inputs_random() % (i == 4 ? 2 : 4)],
				sizeof *most);
		for (size_t s = 0; s < sets; s++) {
			memset(t.dst.data, 0x5a, t.dst.size);
			assert_int_equal(trip_decode(&t, s, payload.data, payload.size), 0);
			if (!s)
				memcpy(back.data, t.dst.data, t.dst.size);
			assert_memory_equal(back.data, t.dst.data, t.dst.size);
		}
	}
	guard_free(&payload);
	guard_free(&back);
	trip_free(&t);
}

/* Rows in any order, with any distance between them. */
static void strides(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++) {
		struct trip t = trip_new(&makes[1], 48, KVP_DTYPE_F16, KVP_PLANE_K);
		const size_t row = 2 * t.p.dim, wide = row + 6;
		struct guard src = guard_new(wide * t.p.tokens * t.p.heads, 2);
		struct kvp_raw_const in = { src.data, (ptrdiff_t)wide,
			(ptrdiff_t)(wide * t.p.heads) };
		struct guard want;

		inputs_fill(t.src.data, t.src.size / 2, t.p.dtype, INPUT_NORMAL);
		trip_encode(&t, 0);
		want = exact(&t);
		for (uint32_t h = 0; h < t.p.heads; h++)
			for (uint32_t c = 0; c < t.p.tokens; c++)
				memcpy(src.data + h * wide + c * wide * t.p.heads,
					t.src.data + h * (size_t)t.head_stride + c * row, row);
		for (size_t s = 0; s < sets; s++) {
			assert_int_equal(kvp_plane_encode(isa[s], KVP_CODEC_PCA, &t.p, &t.o, in,
						 t.out.data, t.bound),
				0);
			assert_memory_equal(t.out.data, want.data, want.size);
		}
		guard_free(&src);
		guard_free(&want);
		trip_free(&t);
	}
}

/* Rows: keys are coded before RoPE, so where they stood changes neither size nor error. */
static void keys_are_coded_before_rope(void **state)
{
	struct trip t = trip_new(&makes[0], 64, KVP_DTYPE_F32, KVP_PLANE_K);
	const size_t n = t.src.size / 4;
	float *before = malloc(4 * n), *want = malloc(4 * n);
	struct kvp_rope rope;
	struct guard body[2];
	const struct kvp_raw_const src = { before, t.head_stride, t.token_stride };
	const struct kvp_raw dst = { t.src.data, t.head_stride, t.token_stride };
	const struct kvp_raw_const decoded = { t.dst.data, t.head_stride, t.token_stride };

	(void)state;
	inputs_fill(before, n, KVP_DTYPE_F32, INPUT_NORMAL);
	assert_int_equal(kvp_rope_init(&kvp_calib_set_info(t.set)->rope, &rope), 0);
	for (int i = 0; i < 2; i++) {
		struct kvp_raw unturned = { i ? t.dst.data : (void *)want, t.head_stride,
			t.token_stride };
		double sum = 0.0;

		t.o.position = i ? 100000 : 0;
		assert_int_equal(
			kvp_rope_apply(isa[0], &rope, &t.p, t.o.position, src, KVP_DTYPE_F32, dst),
			0);
		trip_encode(&t, 0);
		assert_true(t.bytes < t.bound);
		body[i] = exact(&t);
		assert_int_equal(trip_decode(&t, 0, body[i].data, body[i].size), 0);
		assert_int_equal(kvp_rope_undo(isa[0], &rope, &t.p, t.o.position, decoded,
					 KVP_DTYPE_F32, unturned),
			0);
		for (size_t j = 0; i && j < n; j++)
			sum += pow((double)want[j] - (double)((float *)(void *)t.dst.data)[j], 2);
		/* A component or two may fall to the other side of a boundary. */
		assert_true(sum < 3.0 * (double)makes[0].step * (double)makes[0].step + 1e-4);
	}
	assert_true(labs((long)body[0].size - (long)body[1].size) <= 8);
	guard_free(&body[0]);
	guard_free(&body[1]);
	free(before);
	free(want);
	trip_free(&t);
}

/* Whatever the elements: inside the bound, decodable, alike; and what does not shrink is as it was. */
static void any_input(void **state)
{
	uint32_t stored = 0;

	(void)state;
	for (uint32_t kind = 0; kind < INPUT_MAX_; kind++) {
		for (uint32_t i = 0; i < 6; i++) {
			struct trip t = trip_new(&makes[i % 4], 40, KVP_DTYPE_F32 + i % 3, i & 1);
			struct guard first;
			int finite = 1;

			inputs_fill(t.src.data, t.src.size / t.element, t.p.dtype,
				(enum input_kind)kind);
			trip_encode(&t, 0);
			first = exact(&t);
			for (size_t s = 0; s < sets; s++) {
				trip_encode(&t, s);
				assert_int_equal(t.bytes, first.size);
				assert_memory_equal(t.out.data, first.data, t.bytes);
				assert_int_equal(trip_decode(&t, s, first.data, first.size), 0);
			}
			for (size_t j = 0; j < t.src.size / t.element; j++)
				finite &= isfinite(element(&t.dst, &t, j)) != 0;
			if (t.bytes == t.bound) {
				stored++;
				assert_memory_equal(t.dst.data, t.src.data, t.src.size);
			} else {
				assert_true(finite);
			}
			guard_free(&first);
			trip_free(&t);
		}
	}
	assert_true(stored > 6);
}

/* Row A-029: without its calibration a payload is an error, and no byte is written. */
static void another_calibration(void **state)
{
	struct trip t = trip_new(&small, 64, KVP_DTYPE_F16, KVP_PLANE_K);
	struct trip other = trip_new(&small, 64, KVP_DTYPE_F16, KVP_PLANE_K);
	const struct kvp_raw dst = { t.dst.data, t.head_stride, t.token_stride };
	const struct kvp_calib haar = { .dim = 8, .haar = (const float[64]){ 1 }, .digest = 9 };
	const struct kvp_calib *wrong[] = { NULL, &haar, other.calib,
		kvp_calib_set_find(t.set, 0, KVP_PLANE_K),
		kvp_calib_set_find(t.set, 1, KVP_PLANE_V) };
	struct kvp_plane p = t.p;
	struct guard in;
	size_t bytes;

	(void)state;
	inputs_fill(t.src.data, t.src.size / 2, t.p.dtype, INPUT_NORMAL);
	trip_encode(&t, 0);
	in = exact(&t);
	memset(t.dst.data, 0x77, t.dst.size);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		const struct kvp_encode_opts o = { .size = sizeof o, .calib = wrong[i] };

		assert_int_equal(kvp_plane_decode(isa[0], KVP_CODEC_PCA, &t.p, wrong[i], in.data,
					 in.size, dst),
			-ENOENT);
		assert_int_equal(
			kvp_plane_check(KVP_CODEC_PCA, &t.p, wrong[i], in.data, in.size), -ENOENT);
		if (i == 2 || i == 3)
			continue; /* they fit these keys */
		assert_int_equal(
			kvp_plane_encode(isa[0], KVP_CODEC_PCA, &t.p, &o,
				(struct kvp_raw_const){ t.src.data, t.head_stride, t.token_stride },
				t.out.data, t.bound),
			-ENOENT);
	}
	for (size_t i = 0; i < t.dst.size; i++)
		assert_int_equal(t.dst.data[i], 0x77);
	assert_int_equal(kvp_plane_check(KVP_CODEC_PCA, &t.p, t.calib, in.data, in.size), 0);
	p.heads = 4;
	assert_int_equal(kvp_plane_check(KVP_CODEC_PCA, &p, t.calib, in.data, in.size), -ENOENT);
	p = t.p;
	p.dim = 520;
	assert_int_equal(kvp_plane_bytes(KVP_CODEC_PCA, &p, &bytes), -EINVAL);
	assert_int_equal(kvp_plane_bytes(KVP_CODEC_PCA + 1, &t.p, &bytes), -EINVAL);
	t.o.position = KVP_ROPE_POSITIONS_MAX - 63;
	assert_int_equal(
		kvp_plane_encode(isa[0], KVP_CODEC_PCA, &t.p, &t.o,
			(struct kvp_raw_const){ t.src.data, t.head_stride, t.token_stride },
			t.out.data, t.bound),
		-EINVAL);
	guard_free(&in);
	trip_free(&t);
	trip_free(&other);
}

/* Payloads that others wrote: refused, or the same from every instruction set, and finite. */
static void hostile(void **state)
{
	uint32_t refused = 0, n = 0;

	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		/* Nobody can tell that a position has changed, or an escape's value. */
		const int tells = i % 4 == 0; /* no escapes */
		struct trip t = trip_new(&makes[i % 4], 50, KVP_DTYPE_F32, i & 1);
		struct guard in, back = guard_new(t.dst.size, 4);

		inputs_fill(t.src.data, t.src.size / 4, t.p.dtype, INPUT_NORMAL);
		trip_encode(&t, 0);
		in = exact(&t);
		assert_true(t.bytes < t.bound);
		for (uint32_t j = 0; j < 400; j++) {
			const size_t at = j < 140 ? j : inputs_random() % t.bytes;
			const uint8_t was = in.data[at];
			int first = 0;

			in.data[at] ^= (uint8_t)(1 + inputs_random() % 255);
			for (size_t s = 0; s < sets; s++) {
				int r;

				memset(t.dst.data, 0, t.dst.size);
				r = trip_decode(&t, s, in.data, in.size);
				first = s ? first : r;
				assert_int_equal(r, first);
				if (!s)
					memcpy(back.data, t.dst.data, t.dst.size);
				assert_memory_equal(back.data, t.dst.data, t.dst.size);
			}
			if (tells && (at < 64 || at >= 68)) {
				refused += first < 0;
				n++;
			}
			for (size_t e = 0; e < t.dst.size / 4; e++)
				assert_true(isfinite(element(&t.dst, &t, e)));
			in.data[at] = was;
		}
		for (size_t size = 0; size < t.bytes; size += size < 200 ? 1 : 17)
			assert_int_equal(trip_decode(&t, 0, in.data, size), -EBADMSG);
		guard_free(&in);
		guard_free(&back);
		trip_free(&t);
	}
	assert_true(n > 500);
	/* A lane's last word may become one that an encoder wrote for other elements: one in some 10,000. */
	assert_true(refused + n / 100 >= n);
}

/* ---- attention ---- */

static void rows(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 24; i++) {
		struct trip t = trip_new(&makes[i % 4], 70, KVP_DTYPE_F32, i & 1);
		const uint32_t dim = t.p.dim, head = (uint32_t)(inputs_random() % t.p.heads);
		const uint32_t first = (uint32_t)(inputs_random() % 70);
		const uint32_t n = 1 + (uint32_t)(inputs_random() % (70 - first));
		float *got = malloc(4 * (size_t)n * dim);
		const struct rows_out out = { (uint8_t *)got, 4 * (ptrdiff_t)dim, n, dim,
			KVP_DTYPE_F32, 1.0f };
		struct kvp_layout lay;
		struct guard in;

		inputs_fill(t.src.data, t.src.size / 4, t.p.dtype,
			i % 8 == 7 ? INPUT_HUGE : INPUT_NORMAL);
		trip_encode(&t, 0);
		in = exact(&t);
		assert_int_equal(trip_decode(&t, 0, in.data, in.size), 0);
		assert_int_equal(kvp_plane_layout(KVP_CODEC_PCA, &t.p, &lay), 0);
		lay.bytes = (uint32_t)t.bytes;
		for (size_t s = 0; s < sets; s++) {
			memset(got, 0x5a, 4 * (size_t)n * dim);
			assert_int_equal(kvp_codec_pca.rows(isa[s], KVP_CODEC_PCA, &t.p, &lay,
						 t.calib, in.data, head, first, &out),
				0);
			assert_memory_equal(got, t.dst.data + 4 * ((size_t)head * 70 + first) * dim,
				4 * (size_t)n * dim);
		}
		lay.bytes--;
		assert_int_equal(kvp_codec_pca.rows(isa[0], KVP_CODEC_PCA, &t.p, &lay, t.calib,
					 in.data, head, first, &out),
			-EBADMSG);
		free(got);
		guard_free(&in);
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
#ifdef __x86_64__
	/* Of the transforms there are two for registers of 16 floats, of which a processor takes one. */
	for (int i = 0; i < 2 && isa[sets - 1]->cpu & KVP_CPU_AVX512; i++) {
		if (kvp_kernels_new(KVP_CPU_ALL, &isa[sets]) < 0)
			return -1;
		kvp_pca_slots_avx512(&isa[sets]->dsp);
		if (i)
			kvp_pca_slots_avx512vl(&isa[sets]->dsp);
		sets++;
	}
#endif
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
		cmocka_unit_test(there_and_back),
		cmocka_unit_test(escapes_of_any_size),
		cmocka_unit_test(strides),
		cmocka_unit_test(keys_are_coded_before_rope),
		cmocka_unit_test(any_input),
		cmocka_unit_test(another_calibration),
		cmocka_unit_test(hostile),
		cmocka_unit_test(rows),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
