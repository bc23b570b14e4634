/* SPDX-License-Identifier: Apache-2.0 */
/* Where planes lie, against a count of elements one by one; what coded blocks hold, against the codecs. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "payload/kvp_payload.h"

static uint64_t state;

static uint32_t below(uint32_t n)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((state >> 33) % n);
}

static struct kvp_space_canon any_space(uint32_t dim_step)
{
	struct kvp_space_canon c = {
		.version = 1,
		.dtype = 1 + below(3),
		.layout = below(2),
		.block_tokens = 16 * (1 + below(4)),
		.n_layers = 1 + below(5),
	};

	for (uint32_t i = 0; i < c.n_layers; i++)
		c.layers[i] = (struct kvp_shm_layer){
			.index = (uint16_t)i,
			.kv_heads = (uint16_t)(1 + below(4)),
			.k_dim = (uint16_t)(dim_step * (1 + below(4))),
			.v_dim = (uint16_t)(dim_step * below(4)),
		};
	return c;
}

/* ---- native --------------------------------------------------------------------------------- */

static uint64_t place_in(const struct kvp_block_layout *l, uint32_t layer, uint32_t kind,
	uint32_t token, uint32_t head)
{
	const struct kvp_block_plane *p = &l->plane[layer][kind];

	return p->offset + token * p->token_stride + head * p->head_stride;
}

static uint32_t dim_of(const struct kvp_space_canon *c, uint32_t layer, uint32_t kind)
{
	return kind ? c->layers[layer].v_dim : c->layers[layer].k_dim;
}

/* The rows of one token's keys or values in one layer, as they follow each other. */
static uint64_t count_heads(const struct kvp_space_canon *c, const struct kvp_block_layout *l,
	uint32_t layer, uint32_t kind, uint32_t token, uint64_t at)
{
	for (uint32_t h = 0; h < c->layers[layer].kv_heads && dim_of(c, layer, kind); h++) {
		assert_int_equal(place_in(l, layer, kind, token, h), at);
		at += (uint64_t)dim_of(c, layer, kind) * kvp_dtype_bytes(c->dtype);
	}
	return at;
}

static void native_is_counted(void **s)
{
	(void)s;
	for (int round = 0; round < 400; round++) {
		struct kvp_space_canon c = any_space(1 + below(9));
		static struct kvp_block_layout l;
		uint64_t at = 0;

		assert_int_equal(kvp_block_layout(&c, 0, 0, &l), 0);
		assert_int_equal(l.native, 1);
		if (c.layout == KVP_LAYOUT_NCLD) {
			for (uint32_t t = 0; t < c.block_tokens; t++)
				for (uint32_t kind = 0; kind < 2; kind++)
					for (uint32_t i = 0; i < c.n_layers; i++)
						at = count_heads(&c, &l, i, kind, t, at);
		} else {
			for (uint32_t i = 0; i < c.n_layers; i++)
				for (uint32_t kind = 0; kind < 2; kind++)
					for (uint32_t t = 0; t < c.block_tokens; t++)
						at = count_heads(&c, &l, i, kind, t, at);
		}
		assert_int_equal(l.bytes, at);
	}
}

/* ---- coded ---------------------------------------------------------------------------------- */

static const char *const floors[] = { "tq4", "tq2", "2bit", "3bit", "4bit", "int8", "k8v4",
	"kivi2-g32", "native/tq3", "tq4/native", "spectral-any/tq4-nc", "spectral-f8-any/tq2",
	"smart", "smart-4", "smart-3/smart-25", "smart/tq2-nc", "tq4-nc/smart" };

static int floored(struct kvp_space_canon *c, const char *floor)
{
	assert_int_equal(kvp_codec_parse_pair(floor, &c->floor_k, &c->floor_v), 0);
	return kvp_payload_judge(c);
}

static struct kvp_space_canon any_coded_space(void)
{
	for (;;) {
		struct kvp_space_canon c = any_space(64);

		for (uint32_t i = 0; i < c.n_layers; i++)
			c.layers[i].k_dim = c.layers[i].v_dim = (uint16_t)(64 << below(2));
		if (c.n_layers > 1 && below(2))
			c.layers[below(c.n_layers)].exact = 1;
		if (floored(&c, floors[below(sizeof(floors) / sizeof(*floors))]) == 0)
			return c;
	}
}

static void planes_follow_each_other(void **s)
{
	(void)s;
	for (int round = 0; round < 200; round++) {
		struct kvp_space_canon c = any_coded_space();
		uint32_t lowest = kvp_payload_lowest(&c);
		uint64_t before = 0;

		for (uint32_t w = 0; w <= lowest; w++) {
			static struct kvp_block_layout l;
			uint64_t end = 0;

			assert_int_equal(kvp_payload_layout(&c, w, &l), 0);
			for (uint32_t i = 0; w && i < c.n_layers; i++)
				for (uint32_t kind = 0; kind < 2; kind++) {
					const struct kvp_block_plane *p = &l.plane[i][kind];

					assert_int_equal(p->offset % 64, 0);
					assert_true(p->offset >= end && p->offset < end + 64);
					end = p->offset + p->bytes;
				}
			if (w)
				assert_int_equal(l.bytes, end);
			assert_true(!w || l.bytes <= before);
			before = l.bytes;
		}
	}
}

static void the_lowest_width_is_the_floor(void **s)
{
	struct kvp_space_canon c;
	uint32_t k, v;

	(void)s;
	for (int round = 0; round < 200; round++) {
		c = any_coded_space();
		assert_int_equal(kvp_payload_codecs(&c, kvp_payload_lowest(&c), &k, &v), 0);
		assert_true(k == kvp_payload_floor(c.floor_k) && v == kvp_payload_floor(c.floor_v));
	}
	c.floor_k = c.floor_v = 0;
	assert_int_equal(kvp_payload_lowest(&c), 0);
	assert_int_equal(kvp_payload_codecs(&c, 5, &k, &v), -EINVAL);
}

/* Bytes of keys and of values alone in these codecs; false: one does not take the planes. */
static bool halves(const struct kvp_space_canon *c, uint32_t k, uint32_t v, uint64_t ret[2])
{
	static struct kvp_block_layout l;

	if (kvp_block_layout(c, k, v, &l) < 0)
		return false;
	ret[0] = ret[1] = 0;
	for (uint32_t i = 0; i < c->n_layers; i++)
		for (uint32_t kind = 0; kind < 2; kind++)
			ret[kind] += l.plane[i][kind].bytes;
	return true;
}

/* A higher floor than a space's own: no width below it takes as much of both, and the owner's word is not undercut. */
static void a_width_of_codecs(void **s)
{
	uint32_t below_owner = 0, found[KVP_PAYLOAD_WIDTHS] = { 0 };

	(void)s;
	for (int round = 0; round < 2000; round++) {
		struct kvp_space_canon c = any_coded_space();
		uint32_t wanted[2], k, v, width = 99, lowest = kvp_payload_lowest(&c);
		uint64_t most[2], least[2], now[2];

		assert_int_equal(
			kvp_codec_parse_pair(floors[below(sizeof(floors) / sizeof(*floors))],
				&wanted[0], &wanted[1]),
			0);
		assert_int_equal(kvp_payload_codecs(&c, lowest, &k, &v), 0);
		assert_true(halves(&c, k, v, least));
		if (!halves(&c, kvp_payload_floor(wanted[0]), kvp_payload_floor(wanted[1]), most)) {
			assert_true(kvp_payload_width_of(&c, wanted[0], wanted[1], &width) < 0);
			continue;
		}
		if (most[0] < least[0] || most[1] < least[1]) {
			assert_int_equal(
				kvp_payload_width_of(&c, wanted[0], wanted[1], &width), -ERANGE);
			assert_int_equal(width, 99);
			below_owner++;
			continue;
		}
		assert_int_equal(kvp_payload_width_of(&c, wanted[0], wanted[1], &width), 0);
		found[width]++;
		for (uint32_t w = 0; w <= lowest; w++) {
			assert_int_equal(kvp_payload_codecs(&c, w, &k, &v), 0);
			assert_true(halves(&c, k, v, now));
			assert_true((w <= width) == (now[0] >= most[0] && now[1] >= most[1]));
		}
	}
	for (uint32_t w = 1; w < KVP_PAYLOAD_WIDTHS; w++)
		assert_true(found[w] > 0);
	assert_true(below_owner > 0);
}

static void no_width_of_these(void **s)
{
	struct kvp_space_canon c = { .version = 1,
		.dtype = KVP_DTYPE_F16,
		.block_tokens = 64,
		.n_layers = 1,
		.layers = { { .kv_heads = 2, .k_dim = 64, .v_dim = 64 } } };
	uint32_t width = 99;

	(void)s;
	assert_int_equal(kvp_payload_width_of(&c, KVP_CODEC_TQ4, KVP_CODEC_TQ4, &width), -ERANGE);
	assert_int_equal(width, 99);
	assert_int_equal(kvp_payload_width_of(&c, 0, 0, &width), 0);
	assert_int_equal(width, 0);
	assert_int_equal(floored(&c, "2bit"), 0);
	assert_int_equal(kvp_payload_width_of(&c, KVP_CODEC_PCA, KVP_CODEC_PCA, &width), -EINVAL);
	assert_int_equal(
		kvp_payload_width_of(&c, KVP_CODEC_LOSSLESS, KVP_CODEC_TQ4, &width), -EINVAL);
	assert_int_equal(kvp_payload_width_of(&c, KVP_CODEC_TQ4, 0, &width), 0);
	assert_int_equal(width, 0);
}

/* Whatever the geometry: no width takes more than the one before it, or as much as the native block. */
static void small_planes_shrink_too(void **s)
{
	uint32_t refused = 0, repeated = 0;

	(void)s;
	for (uint32_t round = 0; round < 4000; round++) {
		static struct kvp_block_layout l;
		struct kvp_space_canon c = { .version = 1,
			.dtype = KVP_DTYPE_F16,
			.block_tokens = KVP_BLOCK_TOKENS_MIN + below(130),
			.n_layers = 2 };
		uint64_t native, before;

		for (uint32_t i = 0; i < 2; i++) {
			c.layers[i].kv_heads = (uint16_t)(1 + below(3));
			c.layers[i].k_dim = c.layers[i].v_dim = (uint16_t)(8 << below(3));
		}
		if (floored(&c, floors[below(sizeof(floors) / sizeof(*floors))]) < 0) {
			refused++;
			continue;
		}
		assert_int_equal(kvp_payload_layout(&c, 0, &l), 0);
		native = before = l.bytes;
		for (uint32_t w = 1; w <= kvp_payload_lowest(&c); w++) {
			assert_int_equal(kvp_payload_layout(&c, w, &l), 0);
			assert_true(l.bytes < native);
			assert_true(l.bytes <= before);
			repeated += l.bytes == before;
			before = l.bytes;
		}
	}
	assert_true(refused > 0 && repeated > 0 && refused < 3000);
}

static void what_no_floor_may_be(void **s)
{
	struct kvp_space_canon c = { .version = 1,
		.dtype = KVP_DTYPE_F16,
		.block_tokens = 64,
		.n_layers = 1,
		.layers = { { .kv_heads = 2, .k_dim = 64, .v_dim = 64 } } };

	(void)s;
	assert_int_equal(floored(&c, "tq4"), 0);
	assert_int_equal(floored(&c, "lossless"), -EINVAL);  /* its size is not known beforehand */
	assert_int_equal(floored(&c, "tq4-haar"), -EINVAL);  /* needs a matrix */
	assert_int_equal(floored(&c, "smart-sym"), -EINVAL); /* has no mean */
	assert_int_equal(floored(&c, "smart"), 0);
	assert_int_equal(
		floored(&c, "spectral/tq4"), -EINVAL); /* refuses keys whose energy is spread */
	assert_int_equal(floored(&c, "spectral-any/tq4"), 0);
	c.dtype = KVP_DTYPE_F8;
	assert_int_equal(floored(&c, "tq4"), -EINVAL); /* no codec knows what the bytes mean */
	c.dtype = KVP_DTYPE_F16;
	c.layers[0].k_dim = 63;
	assert_int_equal(floored(&c, "tq4"), -EINVAL);
	c.layers[0].k_dim = 64;
	c.layers[0].v_dim = 0;
	assert_int_equal(floored(&c, "tq4"), -EINVAL); /* there are no values */
	assert_int_equal(floored(&c, "tq4/native"), 0);
	c.layout = KVP_LAYOUT_OPAQUE;
	assert_int_equal(floored(&c, "tq4/native"), -EINVAL);
}

static void *room(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);

	assert_non_null(p);
	memset(p, 0xa5, (bytes + 127) / 64 * 64);
	return p;
}

/* Floats of magnitude 1 or so, of any dtype: halves have their exponents in the upper byte. */
static void fill(uint8_t *to, const struct kvp_space_canon *c, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += 2) {
		uint16_t bf16 = (uint16_t)(0x3f00 + below(0x100) + (below(2) << 15));
		uint16_t f16 = (uint16_t)(0x3800 + below(0x800) + (below(2) << 15));
		uint16_t x = c->dtype == KVP_DTYPE_F16    ? f16
			     : c->dtype == KVP_DTYPE_BF16 ? bf16
			     : i % 4                      ? bf16
							  : (uint16_t)below(65536);

		memcpy(to + i, &x, 2);
	}
}

/* What the codec itself makes of one plane of a native block: the payload in `coded`, decoded in `raw`. */
static void by_itself(const struct kvp_kernels *k, const struct kvp_block_layout *native,
	const uint8_t *block, const struct kvp_block_plane *n, uint32_t kind, uint32_t codec,
	uint8_t *coded, size_t bytes, uint8_t *raw)
{
	struct kvp_plane plane = { native->tokens, n->heads, n->dim, native->dtype, kind };
	ptrdiff_t row = (ptrdiff_t)(n->dim * kvp_dtype_bytes(native->dtype));

	assert_int_equal(kvp_plane_encode(k, codec, &plane, NULL,
				 (struct kvp_raw_const){ block + n->offset,
					 (ptrdiff_t)n->head_stride, (ptrdiff_t)n->token_stride },
				 coded, bytes),
		0);
	assert_int_equal(kvp_plane_decode(k, codec, &plane, NULL, coded, bytes,
				 (struct kvp_raw){ raw, row * native->tokens, row }),
		0);
}

/* Native planes of a coded block are the rows that were there. */
static void same_rows(const struct kvp_block_layout *native, const uint8_t *block,
	const struct kvp_block_plane *n, const uint8_t *got)
{
	size_t row = n->dim * kvp_dtype_bytes(native->dtype);

	for (uint32_t h = 0; h < n->heads; h++)
		for (uint32_t t = 0; t < native->tokens; t++, got += row)
			assert_memory_equal(got,
				block + n->offset + h * n->head_stride + t * n->token_stride, row);
}

static void recoded_is_the_codecs_own(void **s)
{
	struct kvp_kernels *k;

	(void)s;
	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	for (int round = 0; round < 40; round++) {
		struct kvp_space_canon c = any_coded_space();
		static struct kvp_block_layout native, coded;
		uint32_t w = 1 + below(kvp_payload_lowest(&c));
		uint8_t *block, *out, *scratch, *alone, *raw;

		assert_int_equal(kvp_payload_layout(&c, 0, &native), 0);
		assert_int_equal(kvp_payload_layout(&c, w, &coded), 0);
		block = room(native.bytes);
		out = room(coded.bytes);
		scratch = room(kvp_payload_scratch(&native));
		alone = room(coded.bytes);
		raw = room(kvp_payload_scratch(&native));
		fill(block, &c, native.bytes);
		assert_int_equal(kvp_payload_recode(k, &native, block, &coded, out, scratch), 0);
		for (uint32_t i = 0; i < c.n_layers; i++) {
			struct kvp_payload_layer got;

			assert_int_equal(kvp_payload_decode(
						 k, &coded, i, out, coded.bytes - 1, scratch, &got),
				-EBADMSG);
			assert_int_equal(
				kvp_payload_decode(k, &coded, i, out, coded.bytes, scratch, &got),
				0);
			for (uint32_t kind = 0; kind < 2; kind++) {
				const struct kvp_block_plane *n = &native.plane[i][kind];
				const struct kvp_block_plane *p = &coded.plane[i][kind];
				const void *elements = kind ? got.v : got.k;

				if (p->codec == KVP_CODEC_NATIVE) {
					same_rows(&native, block, n, elements);
					continue;
				}
				memset(alone, 0,
					coded.bytes); /* a payload may be shorter than its plane */
				by_itself(k, &native, block, n, kind, p->codec, alone,
					(size_t)p->bytes, raw);
				assert_memory_equal(out + p->offset, alone, p->bytes);
				assert_memory_equal(elements, raw, n->bytes);
			}
		}
		free(block);
		free(out);
		free(scratch);
		free(alone);
		free(raw);
	}
	kvp_kernels_free(k);
}

/* One step after the other: each is coded from what the one before decodes to. */
static void steps_compose(void **s)
{
	struct kvp_space_canon c = { .version = 1,
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_NCLD,
		.block_tokens = 64,
		.n_layers = 2,
		.layers = { { .index = 0, .kv_heads = 2, .k_dim = 64, .v_dim = 64 },
			{ .index = 1, .kv_heads = 1, .k_dim = 128, .v_dim = 64 } } };
	static struct kvp_block_layout l[KVP_PAYLOAD_WIDTHS];
	uint8_t *block[KVP_PAYLOAD_WIDTHS], *scratch, *again;
	struct kvp_kernels *k;
	uint32_t lowest;

	(void)s;
	assert_int_equal(floored(&c, "2bit"), 0);
	lowest = kvp_payload_lowest(&c);
	assert_int_equal(lowest, 4);
	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	for (uint32_t w = 0; w <= lowest; w++) {
		assert_int_equal(kvp_payload_layout(&c, w, &l[w]), 0);
		block[w] = room(l[w].bytes);
	}
	scratch = room(kvp_payload_scratch(&l[0]));
	again = room(l[0].bytes);
	fill(block[0], &c, l[0].bytes);
	for (uint32_t w = 1; w <= lowest; w++) {
		assert_int_equal(
			kvp_payload_recode(k, &l[w - 1], block[w - 1], &l[w], block[w], scratch),
			0);
		/* Deterministic, the gaps included. */
		assert_int_equal(
			kvp_payload_recode(k, &l[w - 1], block[w - 1], &l[w], again, scratch), 0);
		assert_memory_equal(again, block[w], l[w].bytes);
	}
	/* From 4/4 to 4/2 bits the keys are those that were there. */
	assert_memory_equal(block[3] + l[3].plane[1][0].offset, block[2] + l[2].plane[1][0].offset,
		l[3].plane[1][0].bytes);
	assert_int_equal(kvp_payload_recode(k, &l[1], block[1], &l[0], again, scratch), -EINVAL);
	for (uint32_t w = 0; w <= lowest; w++)
		free(block[w]);
	free(scratch);
	free(again);
	kvp_kernels_free(k);
}

static double number(uint32_t dtype, const uint8_t *at)
{
	uint32_t word = 0;
	float f;

	if (dtype != KVP_DTYPE_F16) {
		uint8_t *to = (uint8_t *)&word + (dtype == KVP_DTYPE_BF16 ? 2 : 0);

		memcpy(to, at, kvp_dtype_bytes(dtype));
		memcpy(&f, &word, sizeof(f));
		return (double)f;
	}
	memcpy(&word, at, 2);
	if ((word & 0x7c00) == 0x7c00)
		return NAN;
	return (word & 0x8000 ? -1 : 1) *
	       (word & 0x7c00 ? ldexp(1024 + (word & 1023), (int)(word >> 10 & 31) - 25)
			      : ldexp(word & 1023, -24));
}

/* The definition, number by number. */
static double error_of(uint32_t dtype, const uint8_t *x, const uint8_t *y, uint32_t n)
{
	double lost = 0, all = 0;

	for (uint32_t i = 0; i < n; i++) {
		double a = number(dtype, x + (size_t)i * kvp_dtype_bytes(dtype));
		double b = number(dtype, y + (size_t)i * kvp_dtype_bytes(dtype));

		if (!isfinite(a))
			continue;
		lost += (a - b) * (a - b);
		all += a * a;
	}
	return lost / all;
}

/* All dtypes; numbers of which some are not finite, and magnitudes whose squares no float holds. */
static void errors_are_as_defined(void **s)
{
	static const int power[] = { 0, 80, -80 };
	struct kvp_space_canon c = { .version = 1,
		.layout = KVP_LAYOUT_NCLD,
		.block_tokens = 16,
		.n_layers = 1,
		.layers = { { .kv_heads = 1, .k_dim = 72, .v_dim = 72 } } };
	static struct kvp_block_layout native, coded;
	struct kvp_kernels *k;

	(void)s;
	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	for (uint32_t i = 0; i < 9; i++) {
		const uint32_t dtype = KVP_DTYPE_F32 + i % 3, bytes = kvp_dtype_bytes(dtype);
		const double limit[2] = { 1, 1e9 };
		uint8_t *block, *payload, *scratch, *rows;
		struct kvp_payload_layer got;
		struct kvp_payload_error e;

		if (dtype == KVP_DTYPE_F16 && power[i / 3])
			continue;
		c.dtype = dtype;
		assert_int_equal(floored(&c, "asym2"), 0);
		assert_int_equal(kvp_payload_layout(&c, 0, &native), 0);
		assert_int_equal(kvp_payload_layout(&c, kvp_payload_lowest(&c), &coded), 0);
		block = room(native.bytes);
		payload = room(coded.bytes);
		scratch = room(kvp_payload_scratch(&native));
		rows = room(native.bytes);
		for (uint32_t n = 0; n < native.bytes / bytes; n++) {
			float f = ldexpf((float)below(2000) - 1000, power[i / 3] - 9);
			uint32_t word = 0x3800 | (below(2) << 15) | below(1024);

			if (dtype != KVP_DTYPE_F16)
				memcpy(&word, &f, sizeof(f));
			if (dtype == KVP_DTYPE_BF16)
				word >>= 16;
			memcpy(block + (size_t)n * bytes, &word, bytes);
		}
		assert_int_equal(
			kvp_payload_recode(k, &native, block, &coded, payload, scratch), 0);
		/* After the codec saw numbers: the codes say nothing of these two. */
		memset(block + native.plane[0][0].offset + 3 * bytes, 0xff, 2 * bytes);
		assert_int_equal(kvp_payload_compare(
					 k, &native, block, &coded, payload, 0, scratch, limit, &e),
			0);
		assert_int_equal(
			kvp_payload_decode(k, &coded, 0, payload, coded.bytes, scratch, &got), 0);
		for (uint32_t t = 0; t < 16; t++)
			memcpy(rows + (size_t)t * 72 * bytes,
				block + native.plane[0][0].offset +
					t * native.plane[0][0].token_stride,
				(size_t)72 * bytes);
		assert_int_equal(e.heads, 2);
		assert_true(e.worst > 0);
		assert_true(fabs(e.worst / error_of(dtype, rows, got.k, 16 * 72) - 1) < 1e-5);
		free(block);
		free(payload);
		free(scratch);
		free(rows);
	}
	kvp_kernels_free(k);
}

/* Every second token is louder by 2^100: what is lost of the others is so, too, and its square is no float. */
static void loud_errors_are_finite(void **s)
{
	struct kvp_space_canon c = { .version = 1,
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_NCLD,
		.block_tokens = 32,
		.n_layers = 1,
		.layers = { { .kv_heads = 1, .k_dim = 64, .v_dim = 64 } } };
	static struct kvp_block_layout native, coded;
	static float x[32 * 64];
	const double limit[2] = { 1, 1e9 };
	uint8_t *block, *payload, *scratch;
	struct kvp_payload_layer got;
	struct kvp_payload_error e;
	struct kvp_kernels *k;

	(void)s;
	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	assert_int_equal(floored(&c, "kivi2"), 0);
	assert_int_equal(kvp_payload_layout(&c, 0, &native), 0);
	assert_int_equal(kvp_payload_layout(&c, kvp_payload_lowest(&c), &coded), 0);
	block = room(native.bytes);
	payload = room(coded.bytes);
	scratch = room(kvp_payload_scratch(&native));
	for (uint32_t i = 0; i < 32 * 64; i++)
		x[i] = ldexpf((float)below(2000) - 1000, i / 64 % 2 ? 90 : -10);
	for (uint32_t t = 0; t < 32; t++)
		memcpy(block + native.plane[0][0].offset + t * native.plane[0][0].token_stride,
			x + t * 64, 64 * sizeof(float));
	assert_int_equal(kvp_payload_recode(k, &native, block, &coded, payload, scratch), 0);
	assert_int_equal(
		kvp_payload_compare(k, &native, block, &coded, payload, 0, scratch, limit, &e), 0);
	assert_int_equal(kvp_payload_decode(k, &coded, 0, payload, coded.bytes, scratch, &got), 0);
	assert_true(
		fabs(e.worst / error_of(c.dtype, (const uint8_t *)x, got.k, 32 * 64) - 1) < 1e-5);
	free(block);
	free(payload);
	free(scratch);
	kvp_kernels_free(k);
}

/* Errors as the codec's golden value has them, a head that is lost found among others, hostile payloads refused. */
static void errors_are_those_of_heads(void **s)
{
	struct kvp_space_canon c = { .version = 1,
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_NCLD,
		.block_tokens = 64,
		.n_layers = 2,
		.layers = { { .index = 0, .kv_heads = 3, .k_dim = 128, .v_dim = 128 },
			{ .index = 1, .kv_heads = 3, .k_dim = 128, .exact = 1 } } };
	static struct kvp_block_layout native, coded;
	double golden[2], limit[2] = { 1, 1 };
	uint8_t *block, *payload, *scratch;
	struct kvp_payload_error e;
	struct kvp_kernels *k;

	(void)s;
	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	for (uint32_t dtype = KVP_DTYPE_F32; dtype <= KVP_DTYPE_BF16; dtype++) {
		c.dtype = dtype;
		assert_int_equal(floored(&c, "kivi2"), 0);
		assert_int_equal(kvp_payload_layout(&c, 0, &native), 0);
		assert_int_equal(kvp_payload_layout(&c, kvp_payload_lowest(&c), &coded), 0);
		scratch = room(kvp_payload_golden_scratch(&coded));
		for (uint32_t kind = 0; kind < 2; kind++) {
			assert_int_equal(
				kvp_payload_golden(k, &coded, kind, scratch, &golden[kind]), 0);
			/* That of tests/kernels/test_codec.c; 192 vectors are not 20,480. */
			assert_true(fabs(golden[kind] / .1539 - 1) < .05);
		}
		assert_int_equal(kvp_payload_golden(k, &native, 0, scratch, &golden[0]), -ENOENT);
		free(scratch);
	}
	/* Numbers of magnitude 1 or so, in bf16. */
	block = room(native.bytes);
	payload = room(coded.bytes);
	scratch = room(kvp_payload_scratch(&native));
	fill(block, &c, native.bytes);
	assert_int_equal(kvp_payload_recode(k, &native, block, &coded, payload, scratch), 0);
	assert_int_equal(
		kvp_payload_compare(k, &native, block, &coded, payload, 0, scratch, limit, &e), 0);
	assert_int_equal(e.heads, 6);
	assert_int_equal(e.within, 6);
	assert_true(e.worst > 0 && e.worst < 1);
	limit[0] = e.worst / 1000;
	limit[1] = e.worst * 1.001;
	assert_int_equal(
		kvp_payload_compare(k, &native, block, &coded, payload, 0, scratch, limit, &e), 0);
	assert_int_equal(e.within, 3);
	/* Another block's codes. */
	limit[0] = limit[1] = .5;
	for (uint32_t t = 0; t < 64; t++)
		for (uint32_t i = 0; i < 128; i++) {
			uint16_t *x = (uint16_t *)(void *)(block + native.plane[0][1].offset +
							   native.plane[0][1].head_stride +
							   t * native.plane[0][1].token_stride) +
				      i;

			*x ^= 0x8000;
		}
	assert_int_equal(
		kvp_payload_compare(k, &native, block, &coded, payload, 0, scratch, limit, &e), 0);
	assert_int_equal(e.within, 5);
	assert_true(e.worst > 4);
	/* The exact layer has nothing to compare. */
	assert_int_equal(
		kvp_payload_compare(k, &native, block, &coded, payload, 1, scratch, limit, &e), 0);
	assert_int_equal(e.heads, 0);
	memset(payload, 0, 64);
	assert_true(
		kvp_payload_compare(k, &native, block, &coded, payload, 0, scratch, limit, &e) < 0);
	assert_int_equal(
		kvp_payload_compare(k, &coded, block, &coded, payload, 0, scratch, limit, &e),
		-EINVAL);
	free(block);
	free(payload);
	free(scratch);
	kvp_kernels_free(k);
}

/* Bits of the tokens that add up to no more than the mean; those of `loud` have 8. */
static void share_out(uint32_t budget, uint32_t n, uint32_t loud, uint8_t *bits)
{
	uint32_t spare = budget - 2 * n;

	for (uint32_t t = 0; t < n; t++) {
		bits[t] = t % n == loud && spare >= 6 ? 8 : spare && below(2) ? 3 : 2;
		spare -= bits[t] - 2u;
	}
}

static void same_tokens(const struct kvp_block_layout *l, const struct kvp_payload_layer *a,
	const struct kvp_payload_layer *b, const uint8_t *was, const uint8_t *is)
{
	size_t row = l->plane[0][0].dim * kvp_dtype_bytes(l->dtype);

	for (uint32_t h = 0; h < l->plane[0][0].heads; h++)
		for (uint32_t t = 0; t < l->tokens; t++)
			for (uint32_t kind = 0; kind < 2; kind++) {
				const uint8_t *x = kind ? a->v : a->k, *y = kind ? b->v : b->k;
				size_t at = (h * l->tokens + t) * row;

				assert_int_equal(memcmp(x + at, y + at, row) == 0, was[t] == is[t]);
			}
}

/*
 * B-001, B-035: tokens of several bits in one block, down the widths of a floor of smart: what is asked for is there,
 * no token is raised, and those that keep their bits keep what they decode to. What is lost is within what they may.
 */
static void tokens_have_bits_of_their_own(void **s)
{
	struct kvp_space_canon c = { .version = 1,
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_NCLD,
		.block_tokens = 64,
		.n_layers = 2,
		.layers = { { .index = 0, .kv_heads = 2, .k_dim = 64, .v_dim = 64 },
			{ .index = 1, .kv_heads = 1, .k_dim = 64, .v_dim = 64 } } };
	static struct kvp_block_layout l[KVP_PAYLOAD_WIDTHS];
	uint8_t *block[KVP_PAYLOAD_WIDTHS], *scratch[2], bits[3][64];
	const struct kvp_payload_tokens tokens = { .bits = { bits[2], bits[2] } };
	struct kvp_kernels *k;

	(void)s;
	assert_int_equal(floored(&c, "smart"), 0);
	assert_int_equal(kvp_payload_lowest(&c), 4);
	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	for (uint32_t w = 0; w < KVP_PAYLOAD_WIDTHS; w++) {
		assert_int_equal(kvp_payload_layout(&c, w, &l[w]), 0);
		block[w] = room(l[w].bytes);
	}
	scratch[0] = room(kvp_payload_golden_scratch(&l[4]));
	scratch[1] = room(kvp_payload_scratch(&l[0]));
	fill(block[0], &c, l[0].bytes);
	assert_int_equal(kvp_payload_token_budget(&l[1], 0), 0);
	assert_int_equal(kvp_payload_token_bits(&l[1], block[1], 0, bits[0]), -ENOENT);
	memset(bits[0], 8, 64);
	for (uint32_t w = 2; w < KVP_PAYLOAD_WIDTHS; w++) {
		uint32_t before = w == 2 ? 0 : w - 1, budget = kvp_payload_token_budget(&l[w], 0);
		struct kvp_payload_layer a, b;
		struct kvp_payload_error e;
		double golden, limit[2];

		assert_int_equal(budget, w == 2 ? 256 : w == 3 ? 192 : 160);
		share_out(budget, 64, 5, bits[2]);
		assert_int_equal(kvp_payload_recode_tokens(k, &l[before], block[before], &l[w],
					 block[w], &tokens, scratch[0]),
			0);
		for (uint32_t kind = 0; kind < 2; kind++)
			assert_int_equal(kvp_payload_token_bits(&l[w], block[w], kind, bits[1]), 0);
		for (uint32_t t = 0; t < 64; t++)
			assert_int_equal(
				bits[1][t], bits[2][t] < bits[0][t] ? bits[2][t] : bits[0][t]);
		assert_int_equal(bits[1][5], 8);
		assert_int_equal(kvp_payload_golden(k, &l[w], 0, scratch[0], &golden), 0);
		assert_true(fabs(golden / .128 - 1) < .05);
		limit[0] = limit[1] = 2 * golden;
		assert_int_equal(kvp_payload_compare(k, &l[0], block[0], &l[w], block[w], 0,
					 scratch[0], limit, &e),
			0);
		assert_int_equal(e.heads, 4);
		assert_int_equal(e.within, 4);
		assert_true(e.worst > .25);
		if (w > 2) {
			assert_int_equal(kvp_payload_decode(k, &l[before], 0, block[before],
						 l[before].bytes, scratch[0], &a),
				0);
			assert_int_equal(kvp_payload_decode(
						 k, &l[w], 0, block[w], l[w].bytes, scratch[1], &b),
				0);
			same_tokens(&l[w], &a, &b, bits[0], bits[1]);
		}
		memcpy(bits[0], bits[1], 64);
	}
	/* More than the mean allows; and a payload whose widths are none. */
	memset(bits[2], 4, 64);
	assert_int_equal(
		kvp_payload_recode_tokens(k, &l[0], block[0], &l[3], block[3], &tokens, scratch[0]),
		-EINVAL);
	memset(block[4] + 64, 7, 64);
	assert_int_equal(kvp_payload_token_bits(&l[4], block[4], 0, bits[1]), -EBADMSG);
	for (uint32_t w = 0; w < KVP_PAYLOAD_WIDTHS; w++)
		free(block[w]);
	free(scratch[0]);
	free(scratch[1]);
	kvp_kernels_free(k);
}

int main(void)
{
	const char *seed = getenv("KVP_TEST_SEED");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(native_is_counted),
		cmocka_unit_test(planes_follow_each_other),
		cmocka_unit_test(the_lowest_width_is_the_floor),
		cmocka_unit_test(a_width_of_codecs),
		cmocka_unit_test(no_width_of_these),
		cmocka_unit_test(small_planes_shrink_too),
		cmocka_unit_test(what_no_floor_may_be),
		cmocka_unit_test(recoded_is_the_codecs_own),
		cmocka_unit_test(steps_compose),
		cmocka_unit_test(tokens_have_bits_of_their_own),
		cmocka_unit_test(errors_are_as_defined),
		cmocka_unit_test(loud_errors_are_finite),
		cmocka_unit_test(errors_are_those_of_heads),
	};

	state = seed ? strtoull(seed, NULL, 0) : 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
