/* SPDX-License-Identifier: Apache-2.0 */
/* Bits and bytes by width, against the payloads that kernels/ really writes. */
#include "tests/policy/plan_test.h"

#include "kernels/kvp_codec.h"
#include "policy/kvp_precision.h"
#include "policy/kvp_width.h"
#include "policy/kvp_zones.h"

#define HEADS  8u
#define DIM    128u
#define TOKENS 512u /* of a plane, at most */

static float x[TOKENS * HEADS * DIM], y[TOKENS * HEADS * DIM];
static _Alignas(64) uint8_t payload[TOKENS * HEADS * (DIM + 64) + 65536];

static void test_names(void **state)
{
	static const uint32_t bits[KVP_WIDTHS] = { 16, 8, 4, 3, 2 };

	(void)state;
	for (uint32_t w = 0; w < KVP_WIDTHS; w++) {
		assert_int_equal(kvp_width_bits(w), bits[w]);
		assert_int_equal(kvp_width_of_bits(bits[w]), w);
		assert_true(!w || kvp_width_distortion[w] > kvp_width_distortion[w - 1]);
	}
	assert_true(kvp_width_distortion[KVP_WIDTH_NATIVE] == 0);
	assert_int_equal(kvp_width_bits(KVP_WIDTHS), 0);
	assert_int_equal(kvp_width_of_bits(5), KVP_WIDTHS);
	assert_int_equal(kvp_width_of_bits(0), KVP_WIDTHS);
	assert_int_equal(KVP_WIDTH_HEADER_BYTES, KVP_PLANE_HDR_BYTES);
	assert_int_equal(KVP_WIDTH_ALIGN, KVP_SECTION_ALIGN);
}

static void test_archives(void **state)
{
	(void)state;
	assert_int_equal(
		kvp_archive_width((struct kvp_archive){ KVP_ARCHIVE_KIVI2, 0 }), KVP_WIDTH_2);
	assert_int_equal(
		kvp_archive_width((struct kvp_archive){ KVP_ARCHIVE_SQUAT, 20 }), KVP_WIDTH_2);
	for (uint32_t bits = 2; bits <= 4; bits++)
		assert_int_equal(
			kvp_archive_width((struct kvp_archive){ KVP_ARCHIVE_KVQUANT, bits }),
			kvp_width_of_bits(bits));
	assert_int_equal(kvp_archive_width((struct kvp_archive){ KVP_ARCHIVE_ADAPTIVE, 0 }),
		KVP_WIDTH_NATIVE);
}

/* B-002, B-006: bytes of a plane are those of the payload, for any shape, scales and widths. */
static void test_bytes_are_the_payloads(void **state)
{
	static const uint32_t group[] = { 0, 8, 16 };
	uint32_t tight = 0;

	(void)state;
	seed_from_env(31);
	for (uint32_t round = 0; round < 20000; round++) {
		uint32_t n = 1 + below(TOKENS), g = below(3), wide = below(2), only = below(3);
		uint32_t tokens[KVP_WIDTHS] = { 0 };
		struct kvp_plane p = { n, 1 + below(HEADS), 32u << below(3), KVP_DTYPE_F32,
			below(2) ? KVP_PLANE_K : KVP_PLANE_V };
		struct kvp_width_plane q = { p.heads, p.dim, wide ? 32 : 16, group[g] };
		uint32_t codec = KVP_CODEC(KVP_FAMILY_SMART,
			KVP_SMART_SYM | g * KVP_SMART_G8 | (wide ? KVP_SMART_WIDE : 0));
		uint8_t bits[TOKENS];
		uint64_t codes = 0, bytes;
		size_t is;

		if (!g && !wide && below(2))
			codec = KVP_CODEC_SMART;
		for (uint32_t t = 0; t < n; t++) {
			uint32_t w = only ? 1 + below(KVP_WIDTHS - 1) : KVP_WIDTH_2;

			bits[t] = (uint8_t)kvp_width_bits(w);
			tokens[w]++;
			codes += kvp_width_token_bits(&q, w);
		}
		assert_int_equal(kvp_smart_bytes(codec, &p, bits, &is), 0);
		bytes = kvp_width_plane_bytes(&q, tokens);
		assert_int_equal(bytes, is);
		assert_true(bytes <= codes / 8 + kvp_width_plane_overhead(&q, n));
		tight += bytes == codes / 8 + kvp_width_plane_overhead(&q, n);
	}
	print_message("in %u of 20,000 planes the overhead was the most it can be\n", tight);
	assert_true(tight > 0);
}

/* Encodes one plane and returns what it takes: what a decoder must be given, and no less. */
static size_t encoded(const struct kvp_kernels *k, uint32_t kind, uint32_t n, const uint8_t *bits)
{
	struct kvp_plane p = { n, HEADS, DIM, KVP_DTYPE_F32, kind };
	struct kvp_encode_opts o = { .size = sizeof(o), .widths = bits };
	struct kvp_plane_hdr hdr;
	ptrdiff_t row = (ptrdiff_t)(DIM * sizeof(*x));
	struct kvp_raw to = { y, row * n, row };

	assert_int_equal(
		kvp_plane_encode(k, KVP_CODEC_SMART, &p, &o,
			(struct kvp_raw_const){ x, row * n, row }, payload, sizeof(payload)),
		0);
	memcpy(&hdr, payload, sizeof(hdr));
	assert_int_equal(kvp_plane_decode(k, KVP_CODEC_SMART, &p, NULL, payload, hdr.bytes, to), 0);
	assert_int_equal(kvp_plane_decode(k, KVP_CODEC_SMART, &p, NULL, payload, hdr.bytes - 1, to),
		-EBADMSG);
	return hdr.bytes;
}

/* What a sequence takes as payloads of so many tokens, as a share of its fp16 bytes. */
static double share_of_payloads(const struct kvp_kernels *k, const float *importance, uint32_t n,
	uint32_t block, double beta, uint32_t counted)
{
	struct kvp_precision_opts o;
	struct kvp_precision *p;
	struct kvp_precision_result r;
	uint8_t *bits = malloc(2 * (size_t)n), *v = bits + n;
	uint64_t bytes = 0;

	kvp_precision_opts_init(&o, HEADS, DIM, n);
	o.block_tokens = counted;
	assert_int_equal(kvp_precision_new(&o, &p), 0);
	assert_int_equal(kvp_precision_allocate(p, importance, n, kvp_precision_budget(p, n, beta),
				 NULL, NULL, bits, v, &r),
		0);
	for (uint32_t t = 0; t < n; t += block) {
		uint32_t m = n - t < block ? n - t : block;

		bytes += encoded(k, KVP_PLANE_K, m, bits + t);
		bytes += encoded(k, KVP_PLANE_V, m, v + t);
	}
	assert_true(counted != block || 8 * bytes <= r.bits);
	kvp_precision_free(p);
	free(bits);
	return (double)bytes / ((double)n * 2 * HEADS * DIM * 2);
}

/*
 * B-002, B-042: a budget of beta is kept by the payloads as they are written, with their headers,
 * the widths and the gaps, and nearly used up; without counting these it would not be kept.
 */
static void test_beta_of_payloads(void **state)
{
	static const uint32_t blocks[] = { 16, 64, 512 };
	static const double betas[] = { .2, .4, .5 };
	enum { N = 2000 };
	struct kvp_kernels *k;
	static float importance[N];

	(void)state;
	seed_from_env(32);
	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	for (uint32_t i = 0; i < N; i++)
		importance[i] = (float)pow(uniform(), 4);
	for (uint32_t i = 0; i < TOKENS * HEADS * DIM; i++)
		x[i] = (float)(uniform() - .5);
	for (uint32_t b = 0; b < 3; b++)
		for (uint32_t i = 0; i < 3; i++) {
			double share =
				share_of_payloads(k, importance, N, blocks[b], betas[i], blocks[b]);
			double blind = share_of_payloads(k, importance, N, blocks[b], betas[i], 0);

			print_message("blocks of %3u, beta %.1f: %.4f of fp16; %.4f uncounted\n",
				blocks[b], betas[i], share, blind);
			assert_true(share <= betas[i]);
			assert_true(share >= betas[i] - .007);
			assert_true(blind > betas[i]);
		}
	kvp_kernels_free(k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_archives),
		cmocka_unit_test(test_bytes_are_the_payloads),
		cmocka_unit_test(test_beta_of_payloads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
