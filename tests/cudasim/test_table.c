/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels: complete, and unwilling to launch nonsense. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/cudasim/sim_device.h"

static const struct kvp_plane plane = {
	.tokens = 64,
	.heads = 8,
	.dim = 128,
	.dtype = KVP_DTYPE_F16,
	.kind = KVP_PLANE_K,
};

static void test_every_kernel_is_in_the_model(void **state)
{
	(void)state;
	assert_true(kvp_cuda_kernel_count > 0);
	for (uint32_t i = 0; i < kvp_cuda_kernel_count; i++) {
		const struct kvp_cuda_kernel *k;

		assert_non_null(sim_find(kvp_cuda_kernels[i].name));
		assert_int_equal(kvp_cuda_kernel_find(kvp_cuda_kernels[i].name, &k), 0);
		assert_ptr_equal(k, &kvp_cuda_kernels[i]);
	}
}

static void test_unknown_names(void **state)
{
	const struct kvp_cuda_kernel *k = NULL;

	(void)state;
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_nothing", &k), -ENOENT);
	assert_null(k);
}

static void test_codec_init(void **state)
{
	const uint32_t haar = KVP_CODEC_TQ(4u, 0u, KVP_ROT_HAAR, 0u, 0u);
	struct kvp_cuda_calib calib = { .dim = 64, .haar = 256, .digest = 1 };
	struct kvp_cuda_codec c, untouched;
	const struct kvp_cuda_kernel *k;
	struct kvp_plane bad = plane;

	(void)state;
	memset(&c, 0x5a, sizeof(c));
	untouched = c;
	assert_int_equal(kvp_cuda_codec_init(haar, &plane, 0, NULL, &c), -ENOENT);
	assert_int_equal(kvp_cuda_codec_init(haar, &plane, 0, &calib, &c), -ENOENT);
	calib.dim = plane.dim;
	calib.digest = 0;
	assert_int_equal(kvp_cuda_codec_init(haar, &plane, 0, &calib, &c), -ENOENT);
	assert_int_equal(
		kvp_cuda_codec_init(KVP_CODEC_HADAMARD(4u), &plane, 0, NULL, &c), -ENOTSUP);
	assert_int_equal(
		kvp_cuda_codec_init(KVP_CODEC_ASYM(4u, 3u), &plane, 0, NULL, &c), -ENOTSUP);
	assert_int_equal(
		kvp_cuda_codec_init(KVP_CODEC_ASYM(4u, 4u) | KVP_CODEC_WIDE, &plane, 0, NULL, &c),
		-ENOTSUP);
	assert_int_equal(kvp_cuda_codec_init(KVP_CODEC_SYM(8u, 0u), &plane, 0, NULL, &c), -ENOTSUP);
	assert_int_equal(kvp_cuda_codec_init(0xffffffu, &plane, 0, NULL, &c), -EINVAL);
	bad.heads = 0;
	assert_int_equal(kvp_cuda_codec_init(KVP_CODEC_TQ4, &bad, 0, NULL, &c), -EINVAL);
	assert_memory_equal(&c, &untouched, sizeof(c));
	assert_int_equal(kvp_cuda_codec_init(KVP_CODEC_TQ4, &plane, 0, NULL, &c), 0);
	assert_int_equal(c.seed, KVP_SEED_DEFAULT);
	assert_int_equal(c.row_bytes, 64);
	calib.digest = 1;
	assert_int_equal(kvp_cuda_codec_init(haar, &plane, 0, &calib, &c), 0);
	assert_int_equal(c.seed, 0);
	assert_int_equal(kvp_cuda_encode_kernel(&c, &k), 0);
	assert_string_equal(k->name, "kvp_cu_tq_encode_any");
}

static void test_rows_shapes(void **state)
{
	struct kvp_cuda_rows p = { .count = 3, .pages = 256 };
	const struct kvp_cuda_kernel *k, *other;
	struct kvp_cuda_shape s;

	(void)state;
	assert_int_equal(kvp_cuda_codec_init(KVP_CODEC_TQ4, &plane, 0, NULL, &p.codec), 0);
	assert_int_equal(kvp_cuda_encode_kernel(&p.codec, &k), 0);
	assert_string_equal(k->name, "kvp_cu_tq_encode_128");
	assert_int_equal(k->shape(&p, &s), 0);
	assert_int_equal(s.grid[0], 64);
	assert_int_equal(s.grid[1], 3);
	assert_int_equal(s.threads, 256);
	p.slots = 256;
	assert_int_equal(k->shape(&p, &s), 0);
	assert_int_equal(s.grid[0], 3);
	assert_int_equal(s.grid[1], 1);
	p.count = UINT32_MAX;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.slots = 0;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.count = 0;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.count = 1;
	p.pages = 0;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.pages = 256;
	p.raw_token_stride = 255;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.raw_token_stride = 256;
	p.page_offset = 16;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.page_offset = 64;
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_tq_encode_64", &other), 0);
	assert_int_equal(other->shape(&p, &s), -ENOTSUP);
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_byte_encode", &other), 0);
	assert_int_equal(other->shape(&p, &s), -ENOTSUP);
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_plane_begin", &other), 0);
	p.force_exponent = 1;
	p.exponent = 126;
	assert_int_equal(other->shape(&p, &s), -EINVAL);
}

/* Good in all but its codecs. Nothing reads the addresses. */
static struct kvp_cuda_attend attend_params(void)
{
	return (struct kvp_cuda_attend){
		.q = 256,
		.q_seq_stride = 4096,
		.q_query_stride = 2048,
		.q_head_stride = 256,
		.tables = 256,
		.lengths = 256,
		.partial = 256,
		.seqs = 2,
		.q_dtype = KVP_DTYPE_F16,
		.queries = 3,
		.group = 8,
		.splits = 4,
		.split_total = 4,
	};
}

static void init_codecs(struct kvp_cuda_attend *p, uint32_t codec, uint32_t k_dim, uint32_t v_dim)
{
	struct kvp_plane v = plane;

	v.dim = k_dim;
	assert_int_equal(kvp_cuda_codec_init(codec, &v, 0, NULL, &p->k), 0);
	v.dim = v_dim;
	v.kind = KVP_PLANE_V;
	assert_int_equal(kvp_cuda_codec_init(codec, &v, 0, NULL, &p->v), 0);
}

/* Every field that a launch could die of is refused by the table. */
static void test_attend_refusals(void **state)
{
	static const size_t must_not_be_odd[] = {
		offsetof(struct kvp_cuda_attend, q),
		offsetof(struct kvp_cuda_attend, q_head_stride),
		offsetof(struct kvp_cuda_attend, tables),
		offsetof(struct kvp_cuda_attend, lengths),
		offsetof(struct kvp_cuda_attend, partial),
		offsetof(struct kvp_cuda_attend, mask),
		offsetof(struct kvp_cuda_attend, mask_query_stride),
		offsetof(struct kvp_cuda_attend, k_offset),
		offsetof(struct kvp_cuda_attend, v_offset),
	};
	static const size_t must_not_be_0[] = {
		offsetof(struct kvp_cuda_attend, q),
		offsetof(struct kvp_cuda_attend, tables),
		offsetof(struct kvp_cuda_attend, lengths),
		offsetof(struct kvp_cuda_attend, partial),
	};
	const struct kvp_cuda_kernel *k[2];
	struct kvp_cuda_attend p;
	struct kvp_cuda_shape s;

	(void)state;
	p = attend_params();
	init_codecs(&p, KVP_CODEC_TQ4, 128, 128);
	assert_int_equal(kvp_cuda_attend_kernel(&p.k, &p.v, &k[0]), 0);
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_attend_any", &k[1]), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(k[i]->shape(&p, &s), 0);
		for (size_t f = 0; f < sizeof(must_not_be_odd) / sizeof(size_t); f++) {
			struct kvp_cuda_attend bad = p;

			((uint8_t *)&bad)[must_not_be_odd[f]] |= 1;
			assert_int_equal(k[i]->shape(&bad, &s), -EINVAL);
		}
		for (size_t f = 0; f < sizeof(must_not_be_0) / sizeof(size_t); f++) {
			struct kvp_cuda_attend bad = p;

			memset((uint8_t *)&bad + must_not_be_0[f], 0, 8);
			assert_int_equal(k[i]->shape(&bad, &s), -EINVAL);
		}
		p.seqs = 65536;
		assert_int_equal(k[i]->shape(&p, &s), -EINVAL);
		p.seqs = 1;
		p.queries = 65536;
		assert_int_equal(k[i]->shape(&p, &s), -EINVAL);
		p.queries = UINT32_MAX;
		p.group = UINT32_MAX;
		assert_int_equal(k[i]->shape(&p, &s), -EINVAL);
		p.queries = 3;
		p.group = 8;
		p.q_dtype = KVP_DTYPE_F8;
		assert_int_equal(k[i]->shape(&p, &s), -EINVAL);
		p.q_dtype = KVP_DTYPE_F16;
	}
}

/* What no tuned kernel takes goes to the general one. */
static void test_attend_any_shapes(void **state)
{
	static const uint32_t dims[][2] = { { 80, 80 }, { 96, 96 }, { 256, 256 }, { 576, 512 },
		{ 64, 128 }, { 1024, 1024 } };
	struct kvp_cuda_attend p = attend_params();
	struct kvp_cuda_mass m = { .lse = 256, .mass = 256 };
	const struct kvp_cuda_kernel *k, *mass;
	struct kvp_plane f8 = plane;
	struct kvp_cuda_shape s;

	(void)state;
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_mass", &mass), 0);
	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
		init_codecs(&p, KVP_CODEC_TQ4, dims[i][0], dims[i][1]);
		assert_int_equal(kvp_cuda_attend_kernel(&p.k, &p.v, &k), 0);
		assert_string_equal(k->name, "kvp_cu_attend_any");
		assert_int_equal(k->shape(&p, &s), 0);
		assert_int_equal(s.grid[1], 8 * 3);
		assert_true(s.smem_bytes <= k->smem_max);
		m.attend = p;
		assert_int_equal(mass->shape(&m, &s), 0);
		assert_int_equal(s.grid[1], 8);
		assert_true(s.smem_bytes <= mass->smem_max);
	}
	m.mass = 0;
	assert_int_equal(mass->shape(&m, &s), -EINVAL);
	f8.dtype = KVP_DTYPE_F8;
	assert_int_equal(kvp_cuda_codec_init(KVP_CODEC_NATIVE, &f8, 0, NULL, &p.k), 0);
	assert_int_equal(kvp_cuda_attend_kernel(&p.k, &p.v, &k), -ENOTSUP);
	assert_int_equal(k->shape(&p, &s), -ENOTSUP);
}

static void test_rotate_and_merge_shapes(void **state)
{
	struct kvp_cuda_rotate q = {
		.q = 256,
		.out = 256,
		.q_dtype = KVP_DTYPE_F16,
		.seqs = 2,
		.queries = 3,
		.heads = 32,
		.dim = 1024,
	};
	struct kvp_cuda_merge m = {
		.partial = 256,
		.out = 256,
		.seqs = 2,
		.heads = 8,
		.group = 4,
		.queries = 3,
		.dim = 1024,
		.split_total = 5,
		.out_dtype = KVP_DTYPE_F16,
		.domains = 2,
		.domain = { { .split_end = 2 }, { .split_end = 5 } },
	};
	const struct kvp_cuda_kernel *k;
	struct kvp_cuda_shape s;

	(void)state;
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_rotate", &k), 0);
	assert_int_equal(k->shape(&q, &s), 0);
	assert_int_equal(s.grid[0], 2 * 3 * 32 / 4);
	assert_true(s.smem_bytes <= k->smem_max);
	q.seqs = q.queries = q.heads = UINT32_MAX;
	assert_int_equal(k->shape(&q, &s), -EINVAL);
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_merge", &k), 0);
	assert_int_equal(k->shape(&m, &s), 0);
	assert_true(s.smem_bytes <= k->smem_max);
	m.domain[1].split_end = 4;
	assert_int_equal(k->shape(&m, &s), -EINVAL);
	m.domain[1].split_end = 1;
	m.split_total = 1;
	assert_int_equal(k->shape(&m, &s), -EINVAL);
	m.domains = 0;
	assert_int_equal(k->shape(&m, &s), -EINVAL);
	m.domains = KVP_CUDA_DOMAINS_MAX + 1;
	assert_int_equal(k->shape(&m, &s), -EINVAL);
}

static void test_attend_shapes(void **state)
{
	struct kvp_cuda_attend p = attend_params();
	struct kvp_plane v = plane;
	const struct kvp_cuda_kernel *k;
	struct kvp_cuda_shape s;

	(void)state;
	v.kind = KVP_PLANE_V;
	assert_int_equal(kvp_cuda_codec_init(KVP_CODEC_TQ4, &plane, 0, NULL, &p.k), 0);
	assert_int_equal(kvp_cuda_codec_init(KVP_CODEC_TQ4, &v, 0, NULL, &p.v), 0);
	assert_int_equal(kvp_cuda_attend_kernel(&p.k, &p.v, &k), 0);
	assert_string_equal(k->name, "kvp_cu_attend_tq4_tq4_128");
	assert_int_equal(k->shape(&p, &s), 0);
	assert_int_equal(s.grid[0], 4);
	assert_int_equal(s.grid[1], 8 * 3);
	assert_int_equal(s.grid[2], 2);
	p.split_first = 1;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.split_first = UINT32_MAX;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.split_first = 0;
	p.v.tokens = 32;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.v.tokens = 64;
	p.k.dim = 96;
	assert_int_equal(k->shape(&p, &s), -ENOTSUP);
}

/* No pair of kinds asks for more shared memory than the smallest device grants. */
static void test_attend_memory(void **state)
{
	static const uint32_t codecs[] = { KVP_CODEC_NATIVE, KVP_CODEC_FP8_E4M3, KVP_CODEC_FP8_E5M2,
		KVP_CODEC_INT8, KVP_CODEC_KIVI(4u, 5u), KVP_CODEC_KIVI(3u, 5u),
		KVP_CODEC_KIVI(2u, 5u), KVP_CODEC_TQ4, KVP_CODEC_TQ3, KVP_CODEC_TQ2 };
	const size_t n = sizeof(codecs) / sizeof(codecs[0]);
	uint32_t found = 0;

	(void)state;
	for (size_t i = 0; i < n * n * 2; i++) {
		struct kvp_cuda_attend p = attend_params();
		struct kvp_plane kp = plane, vp = plane;
		const struct kvp_cuda_kernel *k;
		struct kvp_cuda_shape s;

		vp.kind = KVP_PLANE_V;
		kp.dtype = vp.dtype = i % 2 ? KVP_DTYPE_F16 : KVP_DTYPE_BF16;
		assert_int_equal(kvp_cuda_codec_init(codecs[i / 2 % n], &kp, 0, NULL, &p.k), 0);
		assert_int_equal(kvp_cuda_codec_init(codecs[i / 2 / n], &vp, 0, NULL, &p.v), 0);
		assert_int_equal(kvp_cuda_attend_kernel(&p.k, &p.v, &k), 0);
		found += strcmp(k->name, "kvp_cu_attend_any") != 0;
		assert_int_equal(k->shape(&p, &s), 0);
		assert_true(s.smem_bytes <= k->smem_max);
		assert_true(k->smem_max <= 99u << 10);
	}
	assert_true(found >= 15);
}

static void test_copy_shapes(void **state)
{
	struct kvp_cuda_copy p = {
		.src = 256,
		.dst = 256,
		.count = 1,
		.n = { 2, 3, 4 },
		.run_bytes = 32,
		.src_stride = { 512, 128, 32 },
		.dst_stride = { 512, 128, 32 },
	};
	const struct kvp_cuda_kernel *k;
	struct kvp_cuda_shape s;

	(void)state;
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_copy", &k), 0);
	assert_int_equal(k->shape(&p, &s), 0);
	assert_int_equal(s.grid[0], 1);
	p.dst_stride[1] = 120;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.dst_stride[1] = 128;
	p.n[0] = p.n[1] = p.n[2] = UINT32_MAX;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
}

static void test_splits(void **state)
{
	(void)state;
	assert_int_equal(kvp_cuda_splits(132, 8, 131072), 16);
	assert_int_equal(kvp_cuda_splits(132, 8, 16384), 16);
	assert_int_equal(kvp_cuda_splits(132, 8, 100), 1);
	assert_int_equal(kvp_cuda_splits(132, 131, 1 << 20), 1);
	assert_int_equal(kvp_cuda_splits(132, 256, 8192), 1);
	assert_int_equal(kvp_cuda_splits(132, 300, 65536), 4);
	assert_int_equal(kvp_cuda_splits(132, 300, 4096), 4);
	assert_int_equal(kvp_cuda_splits(132, 300, 100), 1);
	assert_int_equal(kvp_cuda_splits(132, 100000, 8192), 1);
	assert_int_equal(kvp_cuda_splits(132, 0, 0), 1);
	assert_int_equal(kvp_cuda_splits(0, 8, 8192), 1);
	assert_int_equal(kvp_cuda_splits(UINT32_MAX, 1, UINT32_MAX), UINT32_MAX / 1024);
}

static void test_runs_shapes(void **state)
{
	struct kvp_cuda_runs p = { .count = 2,
		.to = { 256, 4096 },
		.from = { 512, 8192 },
		.bytes = { 16, 1 << 20 },
		.most = 1 << 20 };
	const struct kvp_cuda_kernel *k;
	struct kvp_cuda_shape s;

	(void)state;
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_runs", &k), 0);
	assert_int_equal(k->shape(&p, &s), 0);
	assert_int_equal(s.grid[0], 64);
	assert_int_equal(s.grid[1], 2);
	p.most = 16;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.most = 1 << 20;
	p.from[0] = 520;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.from[0] = 512;
	p.bytes[0] = 0;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.bytes[0] = 16;
	p.count = KVP_CUDA_RUNS + 1;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
	p.count = 0;
	assert_int_equal(k->shape(&p, &s), -EINVAL);
}

/* With nvcc there are images and they begin as fatbins do; without it the library says so. */
static void test_images(void **state)
{
	const void *image = NULL;
	size_t bytes = 0;
	uint32_t magic;
	int r = kvp_cuda_image(0, &image, &bytes);

	(void)state;
	if (r == -ENOTSUP) {
		assert_null(image);
		print_message("built without nvcc: no images to look at\n");
		skip();
	}
	for (uint32_t i = 0; r == 0; r = kvp_cuda_image(++i, &image, &bytes)) {
		assert_true(bytes > 1000);
		memcpy(&magic, image, sizeof(magic));
		assert_int_equal(magic, 0xba55ed50u);
	}
	assert_int_equal(r, -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_kernel_is_in_the_model),
		cmocka_unit_test(test_unknown_names),
		cmocka_unit_test(test_codec_init),
		cmocka_unit_test(test_rows_shapes),
		cmocka_unit_test(test_attend_shapes),
		cmocka_unit_test(test_attend_refusals),
		cmocka_unit_test(test_attend_any_shapes),
		cmocka_unit_test(test_rotate_and_merge_shapes),
		cmocka_unit_test(test_attend_memory),
		cmocka_unit_test(test_copy_shapes),
		cmocka_unit_test(test_runs_shapes),
		cmocka_unit_test(test_splits),
		cmocka_unit_test(test_images),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
