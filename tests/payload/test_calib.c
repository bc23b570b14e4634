/* SPDX-License-Identifier: Apache-2.0 */
/* Floors of kvquant: which calibration is right for a space, and payloads that are coded with it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "payload/kvp_payload.h"
#include "tests/kernels/inputs.h"
#include "tests/kernels/nuq_make.h"

#define LAYERS 3u
#define HEADS  2u
#define DIM    32u
#define TOKENS 32u

static struct kvp_space_canon space(uint32_t floor_k, uint32_t floor_v)
{
	struct kvp_space_canon c = { .version = 1,
		.dtype = KVP_DTYPE_BF16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = TOKENS,
		.n_layers = LAYERS,
		.rope_pairing = KVP_ROPE_HALF_SPLIT,
		.rope_dim = DIM,
		.model = "a model",
		.floor_k = floor_k,
		.floor_v = floor_v };
	const double theta = 10000;

	memcpy(&c.rope_theta_bits, &theta, sizeof(theta));
	for (uint32_t i = 0; i < LAYERS; i++)
		c.layers[i] = (struct kvp_shm_layer){
			.index = (uint16_t)i, .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM
		};
	return c;
}

static struct kvp_nuq_set *calibration(
	const char *model, uint32_t layers, uint32_t heads, uint32_t dim)
{
	size_t bytes;
	void *file = nuq_make_of(
		&(struct nuq_make){ layers, heads, dim, KVP_ROPE_HALF_SPLIT, 0 }, model, &bytes);
	struct kvp_nuq_set *set;

	assert_int_equal(kvp_nuq_set_new(file, bytes, &set), 0);
	free(file);
	return set;
}

static void test_which_is_right(void **arg)
{
	static const uint32_t all = KVP_CODEC_KVQUANT(3u), post = all | KVP_KVQUANT_POST;
	struct kvp_nuq_set *set = calibration("a model", LAYERS, HEADS, DIM), *other;
	struct kvp_space_canon c = space(all, all);
	(void)arg;

	assert_int_equal(kvp_payload_judge(&c), 0);
	assert_true(kvp_payload_calibrated(&c));
	assert_null(kvp_payload_calib_wrong(&c, set));
	c = space(KVP_CODEC_TQ4, KVP_CODEC_TQ4);
	assert_false(kvp_payload_calibrated(&c));
	c = space(0, all);
	assert_true(kvp_payload_calibrated(&c));
	/* Values know no RoPE, and keys after theirs need not. */
	c.rope_theta_bits++;
	assert_null(kvp_payload_calib_wrong(&c, set));
	c.floor_k = post;
	assert_null(kvp_payload_calib_wrong(&c, set));
	c.floor_k = all;
	assert_string_equal(kvp_payload_calib_wrong(&c, set), "it is for another RoPE");
	for (uint32_t i = 0; i < 3; i++) {
		c = space(all, all);
		c.rope_pairing = i == 0   ? KVP_ROPE_INTERLEAVED
				 : i == 1 ? KVP_ROPE_NONE
					  : c.rope_pairing;
		c.rope_scaling = i == 2;
		assert_string_equal(kvp_payload_calib_wrong(&c, set), "it is for another RoPE");
	}
	c = space(all, all);
	strcpy(c.model, "a model of another name");
	assert_string_equal(kvp_payload_calib_wrong(&c, set), "it is of another model");
	c = space(all, all);
	c.layers[1].first_head = 2;
	assert_string_equal(kvp_payload_calib_wrong(&c, set), "it is for other heads or dims");
	c.layers[1].exact = 1; /* it stays native */
	assert_null(kvp_payload_calib_wrong(&c, set));
	c = space(all, all);
	c.layers[2].index = LAYERS;
	assert_string_equal(kvp_payload_calib_wrong(&c, set), "it has no entry for a layer");
	c = space(all, all);
	other = calibration("a model", LAYERS, 2 * HEADS, DIM);
	assert_string_equal(kvp_payload_calib_wrong(&c, other), "it is for other heads or dims");
	kvp_nuq_set_free(other);
	kvp_nuq_set_free(set);
}

/* A description that nobody has judged is not read beyond its end. */
static void test_more_layers_than_there_are(void **arg)
{
	struct kvp_nuq_set *set = calibration("a model", LAYERS, HEADS, DIM);
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const struct kvp_space_canon c = {
		.model = "a model", .n_layers = UINT32_MAX, .floor_v = KVP_CODEC_KVQUANT(3u)
	};
	uint8_t *at =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	(void)arg;

	assert_true(at != MAP_FAILED && sizeof(c) < page);
	assert_int_equal(mprotect(at + page, page, PROT_NONE), 0);
	memcpy(at + page - sizeof(c), &c, sizeof(c));
	assert_non_null(kvp_payload_calib_wrong((const void *)(at + page - sizeof(c)), set));
	assert_int_equal(munmap(at, 2 * page), 0);
	kvp_nuq_set_free(set);
}

static struct kvp_raw rows_of(const struct kvp_block_plane *p, uint8_t *block)
{
	return (struct kvp_raw){ block + p->offset, (ptrdiff_t)p->head_stride,
		(ptrdiff_t)p->token_stride };
}

/* From 8 bits, which a block may have had on its way: what the codec makes of what these say, at the position. */
static void check_from_8_bits(const struct kvp_kernels *k, const struct kvp_space_canon *c,
	const struct kvp_nuq_set *set, const struct kvp_block_layout *native, const uint8_t *block,
	const struct kvp_block_layout *coded)
{
	static _Alignas(64) uint8_t eight[1 << 16], out[1 << 16], scratch[1 << 16], want[1 << 14];
	const struct kvp_payload_tokens at = { .position = 7 * TOKENS };
	static struct kvp_block_layout l;
	struct kvp_payload_layer got;

	assert_int_equal(kvp_payload_layout(c, 1, &l), 0);
	assert_int_equal(l.plane[0][0].codec, KVP_CODEC_INT8);
	assert_int_equal(l.plane[0][1].codec, KVP_CODEC_INT8);
	assert_int_equal(kvp_payload_recode(k, native, block, &l, eight, scratch), 0);
	assert_int_equal(kvp_payload_recode_tokens(k, &l, eight, coded, out, &at, scratch), 0);
	for (uint32_t i = 0; i < 2 * LAYERS; i++) {
		const uint32_t layer = i / 2, kind = i % 2;
		const struct kvp_block_plane *p = &coded->plane[layer][kind];
		const struct kvp_plane plane = { TOKENS, HEADS, DIM, KVP_DTYPE_BF16, kind };
		const struct kvp_encode_opts o = { .size = sizeof(o),
			.calib = kvp_nuq_set_find(set, layer, kind ? KVP_NUQ_V : KVP_NUQ_K),
			.position = at.position };

		assert_int_equal(
			kvp_payload_decode(k, &l, layer, eight, l.bytes, scratch, &got), 0);
		assert_int_equal(kvp_plane_encode(k, p->codec, &plane, &o,
					 (struct kvp_raw_const){
						 kind ? got.v : got.k, TOKENS * DIM * 2, DIM * 2 },
					 want, p->bytes),
			0);
		assert_memory_equal(out + p->offset, want, p->bytes);
	}
}

/* Coded at a position, from native elements and from 8 bits: what the codec makes of it; no calibration, no bytes. */
static void test_coding(void **arg)
{
	struct kvp_space_canon c = space(KVP_CODEC_KVQUANT(3u), KVP_CODEC_KVQUANT(2u));
	struct kvp_nuq_set *set = calibration("a model", LAYERS, HEADS, DIM);
	struct kvp_nuq_set *other = calibration("a model", LAYERS, HEADS, DIM);
	static struct kvp_block_layout native, coded, bare, wrong;
	static _Alignas(64) uint8_t block[1 << 16], out[1 << 16], scratch[1 << 16], want[1 << 14];
	const struct kvp_payload_tokens at = { .position = 5 * TOKENS };
	struct kvp_payload_layer got;
	struct kvp_kernels *k;
	double golden;
	(void)arg;

	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	assert_int_equal(kvp_payload_layout(&c, 0, &native), 0);
	assert_int_equal(kvp_payload_layout(&c, kvp_payload_lowest(&c), &coded), 0);
	bare = wrong = coded;
	kvp_payload_calib_give(&c, set, &coded);
	kvp_payload_calib_give(&c, other, &wrong);
	inputs_fill(block, native.bytes / 2, KVP_DTYPE_BF16, INPUT_NORMAL);
	assert_int_equal(
		kvp_payload_recode_tokens(k, &native, block, &bare, out, &at, scratch), -ENOENT);
	assert_int_equal(
		kvp_payload_recode_tokens(k, &native, block, &coded, out, &at, scratch), 0);
	for (uint32_t i = 0; i < LAYERS; i++) {
		assert_int_equal(
			kvp_payload_decode(k, &bare, i, out, bare.bytes, scratch, &got), -ENOENT);
		assert_int_equal(
			kvp_payload_decode(k, &wrong, i, out, wrong.bytes, scratch, &got), -ENOENT);
		assert_int_equal(
			kvp_payload_decode(k, &coded, i, out, coded.bytes, scratch, &got), 0);
		for (uint32_t kind = 0; kind < 2; kind++) {
			const struct kvp_block_plane *n = &native.plane[i][kind],
						     *p = &coded.plane[i][kind];
			const struct kvp_plane plane = { TOKENS, HEADS, DIM, KVP_DTYPE_BF16, kind };
			const struct kvp_encode_opts o = { .size = sizeof(o),
				.calib = kvp_nuq_set_find(set, i, kind ? KVP_NUQ_V : KVP_NUQ_K),
				.position = at.position };
			const struct kvp_raw raw = rows_of(n, block);
			const struct kvp_raw_const src = { raw.data, raw.head_stride,
				raw.token_stride };

			assert_int_equal(
				kvp_plane_encode(k, p->codec, &plane, &o, src, want, p->bytes), 0);
			assert_memory_equal(out + p->offset, want, p->bytes);
			assert_int_equal(
				kvp_plane_decode(k, p->codec, &plane, o.calib, want, p->bytes,
					(struct kvp_raw){
						want + (1 << 13), TOKENS * DIM * 2, DIM * 2 }),
				0);
			assert_memory_equal(kind ? got.v : got.k, want + (1 << 13), n->bytes);
		}
	}
	check_from_8_bits(k, &c, set, &native, block, &coded);
	for (uint32_t kind = 0; kind < 2; kind++) {
		assert_int_equal(kvp_payload_golden(k, &coded, kind, scratch, &golden), 0);
		assert_true(golden > .01 && golden < .2);
	}
	kvp_kernels_free(k);
	kvp_nuq_set_free(other);
	kvp_nuq_set_free(set);
}

/* A sequence so long that its positions have no RoPE: who codes blocks knows it before. */
static void test_far_positions(void **arg)
{
	static const struct {
		uint32_t k, v;
		bool far; /* can be coded anywhere */
	} floors[] = { { KVP_CODEC_KVQUANT(3u), KVP_CODEC_KVQUANT(2u), false },
		{ KVP_CODEC_KVQUANT(3u) | KVP_KVQUANT_POST, KVP_CODEC_KVQUANT(2u), false },
		{ KVP_CODEC_TQ4, KVP_CODEC_KVQUANT(2u), false },
		{ KVP_CODEC_TQ4, KVP_CODEC_TQ4, true } };
	struct kvp_nuq_set *set = calibration("a model", LAYERS, HEADS, DIM);
	static _Alignas(64) uint8_t block[1 << 16], out[1 << 16], scratch[1 << 16];
	static struct kvp_block_layout native, coded;
	struct kvp_kernels *k;
	(void)arg;

	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	for (size_t i = 0; i < sizeof(floors) / sizeof(floors[0]); i++) {
		struct kvp_space_canon c = space(floors[i].k, floors[i].v);
		struct kvp_payload_tokens at = { .position = KVP_ROPE_POSITIONS_MAX - TOKENS };

		assert_int_equal(kvp_payload_positions(&c),
			floors[i].far ? UINT64_MAX : KVP_ROPE_POSITIONS_MAX);
		assert_int_equal(kvp_payload_layout(&c, 0, &native), 0);
		assert_int_equal(kvp_payload_layout(&c, kvp_payload_lowest(&c), &coded), 0);
		kvp_payload_calib_give(&c, set, &coded);
		inputs_fill(block, native.bytes / 2, KVP_DTYPE_BF16, INPUT_NORMAL);
		assert_int_equal(
			kvp_payload_recode_tokens(k, &native, block, &coded, out, &at, scratch), 0);
		at.position++;
		assert_int_equal(
			kvp_payload_recode_tokens(k, &native, block, &coded, out, &at, scratch),
			floors[i].far ? 0 : -EINVAL);
	}
	kvp_kernels_free(k);
	kvp_nuq_set_free(set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_which_is_right),
		cmocka_unit_test(test_more_layers_than_there_are),
		cmocka_unit_test(test_coding),
		cmocka_unit_test(test_far_positions),
	};

	inputs_reseed(7);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
