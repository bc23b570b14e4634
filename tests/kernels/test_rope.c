/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE: the frequencies that are published, turned as they say, and back within its bounds. */
#include "kernels/dsp.h"
#include "kernels/kvp_rope.h"
#include "kernels/numeric.h"
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
#include <cmocka.h>

static struct kvp_kernels *isa[LADDER];
static size_t sets;

static struct kvp_rope rope_of(
	uint32_t pairing, uint32_t dim, uint32_t scaling, double theta, const double *params)
{
	struct kvp_rope_desc d = {
		.pairing = pairing, .dim = dim, .scaling = scaling, .theta = theta
	};
	struct kvp_rope rope;

	for (int i = 0; i < 4 && params; i++)
		d.params[i] = params[i];
	assert_int_equal(kvp_rope_init(&d, &rope), 0);
	return rope;
}

/* ---- frequencies, by the formulas as they are published, with libm ---- */

static double published(uint32_t scaling, double theta, const double *p, uint32_t dim, uint32_t i)
{
	double f = pow(theta, -2.0 * i / dim);

	if (scaling == KVP_ROPE_SCALING_LINEAR)
		return f / p[0];
	if (scaling == KVP_ROPE_SCALING_NTK)
		return pow(theta * pow(p[0], dim / (dim - 2.0)), -2.0 * i / dim);
	if (scaling == KVP_ROPE_SCALING_LLAMA3) {
		double length = 2.0 * M_PI / f, smooth = (p[3] / length - p[1]) / (p[2] - p[1]);

		if (length > p[3] / p[1])
			return f / p[0];
		if (length < p[3] / p[2])
			return f;
		return (1.0 - smooth) * f / p[0] + smooth * f;
	}
	if (scaling == KVP_ROPE_SCALING_YARN) {
		double fast = p[2] != 0.0 ? p[2] : 32.0, slow = p[1] != 0.0 ? p[1] : 1.0;
		double low = floor(dim * log(p[3] / (fast * 2.0 * M_PI)) / (2.0 * log(theta)));
		double high = ceil(dim * log(p[3] / (slow * 2.0 * M_PI)) / (2.0 * log(theta)));
		double keep;

		low = fmax(low, 0.0);
		high = fmin(high, dim - 1.0);
		keep = 1.0 - fmin(fmax((i - low) / (high - low), 0.0), 1.0);
		return f / p[0] * (1.0 - keep) + f * keep;
	}
	return f;
}

static void frequencies(void **state)
{
	static const struct {
		uint32_t scaling, dim;
		double theta, params[4], gain;
	} cases[] = {
		{ KVP_ROPE_SCALING_NONE, 128, 10000.0, { 0 }, 1.0 },
		{ KVP_ROPE_SCALING_NONE, 2, 10000.0, { 0 }, 1.0 },
		{ KVP_ROPE_SCALING_NONE, 1024, 1e7, { 0 }, 1.0 },
		{ KVP_ROPE_SCALING_LINEAR, 64, 10000.0, { 8.0 }, 1.0 },
		{ KVP_ROPE_SCALING_NTK, 128, 10000.0, { 4.0 }, 1.0 },
		{ KVP_ROPE_SCALING_LLAMA3, 128, 500000.0, { 8.0, 1.0, 4.0, 8192.0 }, 1.0 },
		{ KVP_ROPE_SCALING_LLAMA3, 64, 500000.0, { 32.0, 1.0, 4.0, 8192.0 }, 1.0 },
		{ KVP_ROPE_SCALING_YARN, 128, 1e6, { 4.0, 0.0, 0.0, 32768.0 }, 1.138629436111989 },
		{ KVP_ROPE_SCALING_YARN, 64, 10000.0, { 40.0, 1.0, 32.0, 4096.0 },
			1.3688879454113936 },
	};

	(void)state;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct kvp_rope rope = rope_of(KVP_ROPE_HALF_SPLIT, cases[c].dim, cases[c].scaling,
			cases[c].theta, cases[c].params);

		assert_true(fabs(rope.gain - cases[c].gain) < 1e-14);
		for (uint32_t i = 0; i < cases[c].dim / 2; i++) {
			double want = published(
				cases[c].scaling, cases[c].theta, cases[c].params, cases[c].dim, i);

			if (fabs(rope.freq[i] / want - 1.0) > 1e-14)
				fail_msg("case %zu pair %u: %.17g, not %.17g", c, i, rope.freq[i],
					want);
		}
	}
}

static void declarations_that_are_none(void **state)
{
	static const struct kvp_rope_desc bad[] = {
		{ .pairing = 3, .dim = 64, .theta = 10000.0 },
		{ .pairing = 1, .dim = 0, .theta = 10000.0 },
		{ .pairing = 1, .dim = 63, .theta = 10000.0 },
		{ .pairing = 1, .dim = 1026, .theta = 10000.0 },
		{ .pairing = 1, .dim = 64, .theta = 1.0 },
		{ .pairing = 1, .dim = 64, .theta = NAN },
		{ .pairing = 1, .dim = 64, .theta = INFINITY },
		{ .pairing = 1, .dim = 64, .theta = -10000.0 },
		{ .pairing = 1, .dim = 64, .theta = 10000.0, .scaling = 5 },
		{ .pairing = 1, .dim = 64, .theta = 10000.0, .scaling = 1 },
		{ .pairing = 1, .dim = 64, .theta = 10000.0, .scaling = 1, .params = { NAN } },
		{ .pairing = 1, .dim = 2, .theta = 10000.0, .scaling = 2, .params = { 4.0 } },
		{ .pairing = 1,
			.dim = 64,
			.theta = 1e4,
			.scaling = 3,
			.params = { 4.0, 0, 0, 0.5 } },
		{ .pairing = 1,
			.dim = 64,
			.theta = 1e4,
			.scaling = 3,
			.params = { 4.0, 33.0, 0, 4e3 } },
		{ .pairing = 1,
			.dim = 64,
			.theta = 1e4,
			.scaling = 3,
			.params = { 4.0, -1.0, 0, 4e3 } },
		{ .pairing = 1,
			.dim = 64,
			.theta = 1e4,
			.scaling = 4,
			.params = { 8.0, 0, 4.0, 8e3 } },
		{ .pairing = 1,
			.dim = 64,
			.theta = 1e4,
			.scaling = 4,
			.params = { 8.0, 4.0, 4.0, 8e3 } },
		{ .pairing = 1,
			.dim = 64,
			.theta = 1e4,
			.scaling = 4,
			.params = { 8.0, 1.0, 4.0, NAN } },
	};
	struct kvp_rope rope, before;

	(void)state;
	memset(&rope, 0x5a, sizeof rope);
	before = rope;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(kvp_rope_init(&bad[i], &rope), -EINVAL);
	assert_memory_equal(&rope, &before, sizeof rope);
}

/* ---- planes ---- */

struct plane {
	struct kvp_plane p;
	ptrdiff_t head_stride, token_stride;
	struct guard raw;
};

static struct plane plane_new(uint32_t tokens, uint32_t heads, uint32_t dim, uint32_t dtype)
{
	struct plane x = { .p = { tokens, heads, dim, dtype, KVP_PLANE_K } };

	x.token_stride = (ptrdiff_t)(dim * dtype_bytes(dtype));
	x.head_stride = x.token_stride * tokens;
	x.raw = guard_new((size_t)x.head_stride * heads, dtype_bytes(dtype));
	return x;
}

static int turn(size_t set, const struct kvp_rope *rope, int undo, uint32_t first,
	const struct plane *from, const struct plane *to)
{
	return (undo ? kvp_rope_undo : kvp_rope_apply)(isa[set], rope, &from->p, first,
		(struct kvp_raw_const){ from->raw.data, from->head_stride, from->token_stride },
		to->p.dtype, (struct kvp_raw){ to->raw.data, to->head_stride, to->token_stride });
}

static double at(const struct plane *x, uint32_t h, uint32_t t, uint32_t c)
{
	return (double)load_element(
		x->raw.data + (ptrdiff_t)h * x->head_stride + (ptrdiff_t)t * x->token_stride,
		x->p.dtype, c);
}

/* The other channel of a pair, and whether c is the first of both. */
static uint32_t partner(const struct kvp_rope *rope, uint32_t c, int *ret_first)
{
	uint32_t half = rope->dim / 2;

	*ret_first = rope->pairing == KVP_ROPE_HALF_SPLIT ? c < half : !(c & 1);
	if (rope->pairing == KVP_ROPE_INTERLEAVED)
		return c ^ 1;
	return c < half ? c + half : c - half;
}

/* What channel c becomes, in long double; the length of its pair goes to *ret_length. */
static double turned(const struct kvp_rope *rope, const struct plane *x, uint32_t first, uint32_t h,
	uint32_t t, uint32_t c, double *ret_length)
{
	int is_first;
	uint32_t other = partner(rope, c, &is_first);
	uint32_t i = rope->pairing == KVP_ROPE_HALF_SPLIT ? c % (rope->dim / 2) : c / 2;
	long double angle = (long double)(first + t) * (long double)rope->freq[i];
	double a = at(x, h, t, c), b = at(x, h, t, other);
	double s = (double)sinl(angle), y = a * (double)cosl(angle) + b * (is_first ? -s : s);

	*ret_length = hypot(a, b) * rope->gain;
	return y * rope->gain;
}

static const uint32_t shapes[][2] = { /* channels that turn, of a row's */
	{ 128, 128 }, { 64, 64 }, { 64, 576 }, { 2, 8 }, { 8, 8 }, { 18, 24 }, { 32, 40 },
	{ 96, 96 }, { 80, 128 }, { 1024, 1024 }, { 36, 72 }
};
#define SHAPES (sizeof shapes / sizeof *shapes)

static struct kvp_rope rope_random(uint32_t dim)
{
	static const double yarn[] = { 4.0, 0.0, 0.0, 4096.0 }, llama[] = { 8.0, 1.0, 4.0, 8192.0 };
	uint32_t pairing = 1 + (uint32_t)(inputs_random() & 1);

	switch (inputs_random() % 3) {
	case 0:
		return rope_of(pairing, dim, KVP_ROPE_SCALING_YARN, 10000.0, yarn);
	case 1:
		return rope_of(pairing, dim, KVP_ROPE_SCALING_LLAMA3, 500000.0, llama);
	default:
		return rope_of(pairing, dim, KVP_ROPE_SCALING_NONE, 10000.0, NULL);
	}
}

/* At any position an element is what the formula says, within 3 units of 2^-24 of its pair's length. */
static void turns_as_declared(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 8 * SHAPES; i++) {
		const uint32_t dim = shapes[i % SHAPES][0], row = shapes[i % SHAPES][1];
		const uint32_t first = (uint32_t)(inputs_random() % (1u << (1 + i % 26)));
		struct kvp_rope rope = rope_random(dim);
		struct plane x = plane_new(3, 2, row, KVP_DTYPE_F32);
		struct plane y = plane_new(3, 2, row, KVP_DTYPE_F32);
		/* An angle has 53 bits, of which a large one has fewer behind the point. */
		const double slack = 3.0 * 0x1p-24 + (double)first * 0x1p-52;

		inputs_fill(x.raw.data, x.raw.size / 4, KVP_DTYPE_F32,
			i & 1 ? INPUT_NORMAL : INPUT_MIXED);
		assert_int_equal(turn(sets - 1, &rope, 0, first, &x, &y), 0);
		for (uint32_t e = 0; e < 6 * row; e++) {
			const uint32_t h = e / row / 3, t = e / row % 3, c = e % row;
			double length, want;

			if (c >= dim) {
				assert_true(at(&y, h, t, c) == at(&x, h, t, c));
				continue;
			}
			want = turned(&rope, &x, first, h, t, c, &length);
			if (fabs(at(&y, h, t, c) - want) > slack * length)
				fail_msg("%u of %u at %u, channel %u: off by %g of its pair", dim,
					row, first + t, c, fabs(at(&y, h, t, c) - want) / length);
		}
		guard_free(&x.raw);
		guard_free(&y.raw);
	}
}

/* <R_a q, R_b k> is <R_(a-b) q, k>: what RoPE is for. */
static void only_distance_counts(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 200; i++) {
		const uint32_t b = (uint32_t)(inputs_random() % 30000);
		const uint32_t a = b + (uint32_t)(inputs_random() % 3000);
		struct kvp_rope rope =
			rope_of(1 + (i & 1), 128, KVP_ROPE_SCALING_NONE, 10000.0, NULL);
		struct plane x[5];
		double near = 0.0, far = 0.0, length = 0.0;

		for (int j = 0; j < 5; j++) {
			x[j] = plane_new(1, 1, 128, KVP_DTYPE_F32);
			inputs_fill(x[j].raw.data, 128, KVP_DTYPE_F32, INPUT_NORMAL);
		}
		assert_int_equal(turn(0, &rope, 0, a, &x[0], &x[2]), 0);
		assert_int_equal(turn(0, &rope, 0, b, &x[1], &x[3]), 0);
		assert_int_equal(turn(0, &rope, 0, a - b, &x[0], &x[4]), 0);
		for (uint32_t c = 0; c < 128; c++) {
			near += at(&x[4], 0, 0, c) * at(&x[1], 0, 0, c);
			far += at(&x[2], 0, 0, c) * at(&x[3], 0, 0, c);
			length += pow(at(&x[0], 0, 0, c), 2) + pow(at(&x[1], 0, 0, c), 2);
		}
		assert_true(fabs(near - far) < 1e-6 * length);
		for (int j = 0; j < 5; j++)
			guard_free(&x[j].raw);
	}
}

/* Undone to fp32 and applied again: within 2^-21 of the pair, and 16-bit elements bit for bit. */
static void back_and_forth(void **state)
{
	static const uint32_t dtypes[] = { KVP_DTYPE_F32, KVP_DTYPE_F16, KVP_DTYPE_BF16 };
	static const double exact[] = { HUGE_VAL, 0x1p-8, 0x1p-11 };
	unsigned int equal = 0, all = 0;

	(void)state;
	for (uint32_t i = 0; i < 9 * SHAPES; i++) {
		const uint32_t dim = shapes[i % SHAPES][0], row = shapes[i % SHAPES][1], d = i % 3;
		const uint32_t first = (uint32_t)(inputs_random() % (1u << (1 + i % 26)));
		struct kvp_rope rope = rope_random(dim);
		struct plane x = plane_new(4, 2, row, dtypes[d]),
			     z = plane_new(4, 2, row, dtypes[d]);
		struct plane y = plane_new(4, 2, row, KVP_DTYPE_F32);

		inputs_fill(
			x.raw.data, x.raw.size / dtype_bytes(dtypes[d]), dtypes[d], INPUT_NORMAL);
		assert_int_equal(turn(sets - 1, &rope, 1, first, &x, &y), 0);
		assert_int_equal(turn(sets - 1, &rope, 0, first, &y, &z), 0);
		for (uint32_t e = 0; e < 8 * row; e++) {
			const uint32_t h = e / row / 4, t = e / row % 4, c = e % row;
			const double was = at(&x, h, t, c), is = at(&z, h, t, c);
			double length;
			int is_first;

			if (c >= dim) {
				assert_true(is == was);
				continue;
			}
			length = hypot(was, at(&x, h, t, partner(&rope, c, &is_first)));
			if (fabs(was) > exact[d] * length)
				assert_true(is == was);
			/* Rounding to 16 bits adds half a unit at most. */
			if (fabs(is - was) >
				0x1p-21 * length + (d ? 0x1p-8 * fabs(was) + 0x1p-25 : 0))
				fail_msg("off by %g of its pair", fabs(is - was) / length);
			all += d != 0;
			equal += d && is == was;
		}
		guard_free(&x.raw);
		guard_free(&y.raw);
		guard_free(&z.raw);
	}
	printf("%u of %u elements of 16 bits came back bit for bit\n", equal, all);
	assert_true(equal > 0.995 * all);
}

/* All instruction sets leave the same bytes and touch no others: odd sizes, any elements and dtypes. */
static void alike(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 30 * SHAPES; i++) {
		const uint32_t dim = shapes[i % SHAPES][0], row = shapes[i % SHAPES][1];
		const uint32_t first = (uint32_t)(inputs_random() % 100000);
		struct kvp_rope rope = rope_random(dim);
		struct plane x = plane_new(1 + (uint32_t)(inputs_random() % 5),
			1 + (uint32_t)(inputs_random() % 3), row,
			1 + (uint32_t)(inputs_random() % 3));
		struct plane first_y = { 0 };

		inputs_fill(x.raw.data, x.raw.size / dtype_bytes(x.p.dtype), x.p.dtype,
			(enum input_kind)(i % INPUT_MAX_));
		for (size_t s = 0; s < sets; s++) {
			struct plane y = plane_new(
				x.p.tokens, x.p.heads, row, s ? first_y.p.dtype : 1 + i % 3);

			assert_int_equal(turn(s, &rope, i & 1, first, &x, &y), 0);
			assert_true(guard_intact(&y.raw) && guard_intact(&x.raw));
			for (uint32_t e = 0; e < x.p.tokens * x.p.heads * row; e++)
				assert_true(isfinite(load_element(y.raw.data, y.p.dtype, e)));
			if (!s) {
				first_y = y;
				continue;
			}
			assert_memory_equal(y.raw.data, first_y.raw.data, y.raw.size);
			guard_free(&y.raw);
		}
		guard_free(&first_y.raw);
		guard_free(&x.raw);
	}
}

/* In place, backwards and [token][head]: as apart; what lies between rows stays. */
static void strides(void **state)
{
	enum { T = 7, H = 3, D = 40, GAP = 6, ROW = 2 * D + GAP };
	const struct kvp_rope rope = rope_of(KVP_ROPE_HALF_SPLIT, 32, 0, 10000.0, NULL);
	const struct kvp_plane p = { T, H, D, KVP_DTYPE_BF16, KVP_PLANE_K };
	static uint8_t x[T * H * ROW], y[T * H * ROW], z[T * H * ROW];
	const size_t last = (size_t)(T * H - 1) * ROW;
	const struct kvp_raw in_place = { y + last, -ROW, -ROW * H };

	(void)state;
	inputs_fill(x, sizeof x / 2, KVP_DTYPE_BF16, INPUT_NORMAL);
	for (size_t s = 0; s < sets; s++) {
		memcpy(y, x, sizeof y);
		memset(z, 0x5a, sizeof z);
		assert_int_equal(kvp_rope_apply(isa[s], &rope, &p, 9,
					 (struct kvp_raw_const){ y + last, -ROW, -ROW * H },
					 KVP_DTYPE_BF16, in_place),
			0);
		assert_int_equal(
			kvp_rope_apply(isa[s], &rope, &p, 9,
				(struct kvp_raw_const){ x + last, -ROW, -ROW * H }, KVP_DTYPE_BF16,
				(struct kvp_raw){ z + last, -ROW, -ROW * H }),
			0);
		for (size_t i = 0; i < sizeof y; i++) {
			assert_int_equal(z[i], i % ROW < 2 * D ? y[i] : 0x5a);
			if (i % ROW >= 2 * 32)
				assert_int_equal(y[i], x[i]);
		}
	}
}

static void refusals(void **state)
{
	const struct kvp_rope rope = rope_of(KVP_ROPE_INTERLEAVED, 64, 0, 10000.0, NULL);
	struct plane x = plane_new(4, 2, 64, KVP_DTYPE_F16), y = plane_new(4, 2, 64, KVP_DTYPE_F16);
	const struct plane good = x;

	(void)state;
	assert_int_equal(turn(0, &rope, 0, KVP_ROPE_POSITIONS_MAX - 4, &x, &y), 0);
	memset(y.raw.data, 0x5a, y.raw.size);
	assert_int_equal(turn(0, &rope, 0, KVP_ROPE_POSITIONS_MAX - 3, &x, &y), -EINVAL);
	assert_int_equal(turn(0, &rope, 0, UINT32_MAX, &x, &y), -EINVAL);
	x.p.kind = KVP_PLANE_V;
	assert_int_equal(turn(0, &rope, 0, 0, &x, &y), -EINVAL);
	x = good;
	x.p.dim = 56; /* fewer than turn */
	assert_int_equal(turn(0, &rope, 0, 0, &x, &y), -EINVAL);
	x = good;
	x.p.dtype = KVP_DTYPE_F8;
	assert_int_equal(turn(0, &rope, 0, 0, &x, &y), -EINVAL);
	x = good;
	x.token_stride -= 1;
	assert_int_equal(turn(0, &rope, 0, 0, &x, &y), -EINVAL);
	x = good;
	y.token_stride -= 2; /* rows that overlap */
	assert_int_equal(turn(0, &rope, 0, 0, &x, &y), -EINVAL);
	y.token_stride += 2;
	for (size_t i = 0; i < y.raw.size; i++)
		assert_int_equal(y.raw.data[i], 0x5a);
	/* The same memory in another order, or in another dtype. */
	y.raw.data = x.raw.data;
	y.token_stride = 2 * x.token_stride;
	y.head_stride = x.token_stride;
	x.p.tokens = y.p.tokens = 2;
	assert_int_equal(turn(0, &rope, 0, 0, &x, &y), -EINVAL);
	y = x;
	y.p.dtype = KVP_DTYPE_BF16;
	assert_int_equal(turn(0, &rope, 0, 0, &x, &y), -EINVAL);
	y.p.dtype = KVP_DTYPE_F16;
	assert_int_equal(turn(0, &rope, 0, 0, &x, &y), 0);
}

/* A space without RoPE: rows are converted and nothing turns. */
static void none(void **state)
{
	const struct kvp_rope rope = rope_of(KVP_ROPE_NONE, 0, 0, 0.0, NULL);
	struct plane x = plane_new(4, 2, 72, KVP_DTYPE_F16), y = plane_new(4, 2, 72, KVP_DTYPE_F32);

	(void)state;
	inputs_fill(x.raw.data, x.raw.size / 2, KVP_DTYPE_F16, INPUT_NORMAL);
	for (size_t s = 0; s < sets; s++) {
		assert_int_equal(turn(s, &rope, 1, 77, &x, &y), 0);
		for (uint32_t e = 0; e < 4 * 2 * 72; e++)
			assert_true(load_element(y.raw.data, KVP_DTYPE_F32, e) ==
				    load_element(x.raw.data, KVP_DTYPE_F16, e));
	}
	guard_free(&x.raw);
	guard_free(&y.raw);
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
		cmocka_unit_test(frequencies),
		cmocka_unit_test(declarations_that_are_none),
		cmocka_unit_test(turns_as_declared),
		cmocka_unit_test(only_distance_counts),
		cmocka_unit_test(back_and_forth),
		cmocka_unit_test(alike),
		cmocka_unit_test(strides),
		cmocka_unit_test(refusals),
		cmocka_unit_test(none),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
