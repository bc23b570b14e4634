/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a codec lost of a head: every instruction set gives the sums of reference C, bit for bit, for any dims, dtype,
 * stride and number, and these are the sums of the definition.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kvp_lost.h"
#include "kernels/numeric.h"

#define TOKENS 9u
#define HEADS  2u
#define ROOM   (HEADS * TOKENS * 1100u * 4u)

static const unsigned int masks[] = { 0, KVP_CPU_AVX2, KVP_CPU_AVX2 | KVP_CPU_AVX512, KVP_CPU_ALL };
static const uint32_t dims[] = { 8, 16, 24, 40, 64, 72, 128, 136, 1024 };
static uint8_t x[ROOM], y[ROOM];
static uint64_t state = 1;

static uint32_t next(void)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 32);
}

/* Any bits at all, or ordinary numbers, or very large and very small ones. */
static void fill(uint8_t *to, uint32_t dtype, uint32_t how)
{
	for (size_t i = 0; i < ROOM; i += dtype_bytes(dtype)) {
		float f =
			ldexpf((float)(int32_t)next(), how == 1 ? -31 : (int)(next() % 200) - 130);
		uint32_t word = how ? f32_bits(f) : next();
		uint16_t half = how ? f32_to_f16(f) : (uint16_t)next();

		if (dtype == KVP_DTYPE_F32)
			memcpy(to + i, &word, 4);
		else if (dtype == KVP_DTYPE_F16)
			memcpy(to + i, &half, 2);
		else
			memcpy(to + i, (uint8_t *)&word + 2, 2);
	}
}

/* The definition, in double. */
static void defined(const struct kvp_plane *p, uint32_t head, struct kvp_raw_const a,
	struct kvp_raw_const b, double *lost, double *all)
{
	*lost = *all = 0;
	for (uint32_t t = 0; t < p->tokens; t++)
		for (uint32_t c = 0; c < p->dim; c++) {
			double u = (double)load_element(
				(const uint8_t *)a.data + head * a.head_stride + t * a.token_stride,
				p->dtype, c);
			double v = (double)load_element(
				(const uint8_t *)b.data + head * b.head_stride + t * b.token_stride,
				p->dtype, c);

			if (!isfinite(u))
				continue;
			v = isfinite(v) ? v : 0;
			*lost += (u - v) * (u - v);
			*all += u * u;
		}
}

/* least: what does not matter beside the sum of squares. */
static void near(double a, double b, double least)
{
	if (!(fabs(a - b) <= 1e-5 * fabs(b) + least))
		fail_msg("%g, and by the definition %g", a, b);
}

static void one(struct kvp_kernels *const *k, uint32_t dtype, uint32_t dim)
{
	const struct kvp_plane p = { TOKENS, HEADS, dim, dtype, KVP_PLANE_K };
	const ptrdiff_t e = (ptrdiff_t)dtype_bytes(dtype), row = (ptrdiff_t)dim * e;
	/* Neighbouring tokens and neighbouring heads, and rows that are not aligned. */
	const struct kvp_raw_const a = { x + e, row, row * (ptrdiff_t)HEADS };
	const struct kvp_raw_const b = { y, row * (ptrdiff_t)TOKENS, row };

	for (uint32_t h = 0; h < HEADS; h++) {
		double want[2], exact[2], got[2];

		kvp_head_lost(k[0], &p, h, a, b, &want[0], &want[1]);
		defined(&p, h, a, b, &exact[0], &exact[1]);
		near(want[0], exact[0], 1e-12 * exact[1]);
		near(want[1], exact[1], 0);
		for (uint32_t i = 1; i < sizeof(masks) / sizeof(masks[0]); i++) {
			kvp_head_lost(k[i], &p, h, a, b, &got[0], &got[1]);
			assert_memory_equal(got, want, sizeof(got));
		}
	}
}

static void all_give_the_same(void **s)
{
	static const uint32_t dtypes[] = { KVP_DTYPE_F16, KVP_DTYPE_BF16, KVP_DTYPE_F32 };
	struct kvp_kernels *k[sizeof(masks) / sizeof(masks[0])];

	(void)s;
	for (uint32_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++)
		assert_int_equal(kvp_kernels_new(masks[i], &k[i]), 0);
	for (uint32_t round = 0; round < 12; round++)
		for (uint32_t d = 0; d < 3; d++) {
			fill(x, dtypes[d], round % 3);
			fill(y, dtypes[d], round / 3 % 3);
			for (uint32_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
				one(k, dtypes[d], dims[i]);
		}
	for (uint32_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++)
		kvp_kernels_free(k[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(all_give_the_same) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
