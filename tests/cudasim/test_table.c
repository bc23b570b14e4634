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
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_tq_encode_64", &other), 0);
	assert_int_equal(other->shape(&p, &s), -ENOTSUP);
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_byte_encode", &other), 0);
	assert_int_equal(other->shape(&p, &s), -ENOTSUP);
	assert_int_equal(kvp_cuda_kernel_find("kvp_cu_plane_begin", &other), 0);
	p.force_exponent = 1;
	p.exponent = 126;
	assert_int_equal(other->shape(&p, &s), -EINVAL);
}

static void test_attend_shapes(void **state)
{
	struct kvp_cuda_attend p = {
		.seqs = 2,
		.queries = 3,
		.group = 8,
		.splits = 4,
		.split_total = 4,
	};
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
	assert_int_equal(s.grid[1], 8 * 2);
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
		KVP_CODEC_KIVI(4u, 5u), KVP_CODEC_KIVI(2u, 5u), KVP_CODEC_TQ4, KVP_CODEC_TQ3,
		KVP_CODEC_TQ2 };
	const size_t n = sizeof(codecs) / sizeof(codecs[0]);
	uint32_t found = 0;

	(void)state;
	for (size_t i = 0; i < n * n * 2; i++) {
		struct kvp_cuda_attend p = {
			.seqs = 1,
			.queries = 1,
			.group = 1,
			.splits = 1,
			.split_total = 1,
		};
		struct kvp_plane kp = plane, vp = plane;
		const struct kvp_cuda_kernel *k;
		struct kvp_cuda_shape s;

		vp.kind = KVP_PLANE_V;
		kp.dtype = vp.dtype = i % 2 ? KVP_DTYPE_F16 : KVP_DTYPE_BF16;
		assert_int_equal(kvp_cuda_codec_init(codecs[i / 2 % n], &kp, 0, NULL, &p.k), 0);
		assert_int_equal(kvp_cuda_codec_init(codecs[i / 2 / n], &vp, 0, NULL, &p.v), 0);
		if (kvp_cuda_attend_kernel(&p.k, &p.v, &k) < 0)
			continue;
		found++;
		assert_int_equal(k->shape(&p, &s), 0);
		assert_true(s.smem_bytes <= k->smem_max);
		assert_true(k->smem_max <= 99u << 10);
	}
	assert_true(found >= 12);
}

static void test_copy_shapes(void **state)
{
	struct kvp_cuda_copy p = {
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
		cmocka_unit_test(test_attend_memory),
		cmocka_unit_test(test_copy_shapes),
		cmocka_unit_test(test_images),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
