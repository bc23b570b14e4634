/* SPDX-License-Identifier: Apache-2.0 */
/* Where elements lie: payload layouts, views of callers, copies between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libclient/client.h"
#include "libclient/geometry.h"
#include "tests/shm/toy_ledger.h"

#define T 16u

static uint64_t seed;

/* Three unlike layers, the last with one latent (no values). */
static struct kvp_space_canon unlike(uint32_t layout, uint32_t dtype)
{
	struct kvp_space_canon c = {
		.version = 1,
		.dtype = dtype,
		.layout = layout,
		.block_tokens = T,
		.n_layers = 3,
		.layers = {
			{ .index = 2, .kv_heads = 2, .k_dim = 8, .v_dim = 4 },
			{ .index = 3, .kv_heads = 3, .k_dim = 4, .v_dim = 6 },
			{ .index = 7, .kv_heads = 1, .k_dim = 10 },
		},
	};

	return c;
}

static struct kvp_space *space_of(const struct kvp_space_canon *canon)
{
	static uint32_t one = 1;
	struct kvp_client *client = aligned_alloc(64, (sizeof(*client) + 63) / 64 * 64);
	struct kvp_space *space = calloc(1, sizeof(*space));

	assert_non_null(client);
	assert_non_null(space);
	memset(client, 0, sizeof(*client));
	client->mine = &one;
	space->client = client;
	space->canon = *canon;
	assert_int_equal(geometry_init(canon, &space->geo), 0);
	return space;
}

static void space_done(struct kvp_space *space)
{
	free(space->client);
	free(space);
}

/* C-012, C-020: sizes count elements once, e * T * sum(Dk + Dv). */
static void test_sizes(void **state)
{
	struct kvp_space_canon c = unlike(KVP_LAYOUT_NCLD, KVP_DTYPE_F32);
	struct geometry g;

	(void)state;
	assert_int_equal(geometry_init(&c, &g), 0);
	assert_int_equal(g.token_bytes, 4 * (2 * (8 + 4) + 3 * (4 + 6) + 10));
	assert_int_equal(g.block_bytes, T * g.token_bytes);
	c.dtype = KVP_DTYPE_BF16;
	assert_int_equal(geometry_init(&c, &g), 0);
	assert_int_equal(g.token_bytes, 2 * 64);
	c.dtype = KVP_DTYPE_F8;
	assert_int_equal(geometry_init(&c, &g), 0);
	assert_int_equal(g.token_bytes, 64);
}

/* C-018: equal heads and dims, or not. */
static void test_homogeneous(void **state)
{
	struct kvp_space_canon c = unlike(KVP_LAYOUT_NCLD, KVP_DTYPE_F16);
	struct geometry g;

	(void)state;
	assert_int_equal(geometry_init(&c, &g), 0);
	assert_int_equal(g.homogeneous, 0);
	c.layers[1] = c.layers[2] = c.layers[0];
	assert_int_equal(geometry_init(&c, &g), 0);
	assert_int_equal(g.homogeneous, 1);
	c.layers[2].v_dim++;
	assert_int_equal(geometry_init(&c, &g), 0);
	assert_int_equal(g.homogeneous, 0);
}

/* C-013, C-019: lengths are validated. */
static void test_refused(void **state)
{
	struct kvp_space_canon good = unlike(KVP_LAYOUT_LCND, KVP_DTYPE_F32), c;
	struct geometry g;

	(void)state;
	c = good, c.block_tokens = 0;
	assert_int_equal(geometry_init(&c, &g), -EINVAL);
	c = good, c.block_tokens = KVP_BLOCK_TOKENS_MIN - 1;
	assert_int_equal(geometry_init(&c, &g), -EINVAL);
	c = good, c.block_tokens = KVP_BLOCK_TOKENS_MAX + 1;
	assert_int_equal(geometry_init(&c, &g), -EINVAL);
	c = good, c.n_layers = 0;
	assert_int_equal(geometry_init(&c, &g), -EINVAL);
	c = good, c.n_layers = KVP_MAX_LAYERS + 1;
	assert_int_equal(geometry_init(&c, &g), -EINVAL);
	c = good, c.layers[1].kv_heads = 0;
	assert_int_equal(geometry_init(&c, &g), -EINVAL);
	c = good, c.layers[0].k_dim = 0;
	assert_int_equal(geometry_init(&c, &g), -EINVAL);
	c = good, c.dtype = 0;
	assert_int_equal(geometry_init(&c, &g), -EINVAL);
	c = good, c.layout = 2;
	assert_int_equal(geometry_init(&c, &g), -EINVAL);
	c = good, c.layers[0].kv_heads = UINT16_MAX, c.layers[0].k_dim = UINT16_MAX;
	assert_int_equal(geometry_init(&c, &g), -E2BIG);
}

/* The formulas of kvpool.h, written down a second time and slowly. */
static uint64_t address(const struct kvp_space_canon *c, uint32_t e, uint32_t layer, int v,
	uint32_t t, uint32_t h, uint32_t ch)
{
	uint64_t all_k = 0, all_v = 0, before_k = 0, before_v = 0, dk, dv, in;

	for (uint32_t i = 0; i < c->n_layers; i++) {
		const struct kvp_shm_layer *l = &c->layers[i];

		all_k += (uint64_t)l->kv_heads * l->k_dim;
		all_v += (uint64_t)l->kv_heads * l->v_dim;
		if (i < layer) {
			before_k += (uint64_t)l->kv_heads * l->k_dim;
			before_v += (uint64_t)l->kv_heads * l->v_dim;
		}
	}
	dk = (uint64_t)c->layers[layer].kv_heads * c->layers[layer].k_dim;
	dv = (uint64_t)c->layers[layer].kv_heads * c->layers[layer].v_dim;
	in = h * (uint64_t)(v ? c->layers[layer].v_dim : c->layers[layer].k_dim) + ch;
	if (c->layout == KVP_LAYOUT_NCLD)
		return e * (t * (all_k + all_v) + (v ? all_k + before_v : before_k) + in);
	return e * ((uint64_t)c->block_tokens * (before_k + before_v + (v ? dk : 0)) +
			   t * (v ? dv : dk) + in);
}

/* C-015, C-016, C-017, C-021: element addresses in both layouts, unlike layers. */
static void test_addresses(void **state)
{
	(void)state;
	for (uint32_t layout = 0; layout <= 1; layout++) {
		struct kvp_space_canon c = unlike(layout, KVP_DTYPE_F32);
		struct geometry g;

		assert_int_equal(geometry_init(&c, &g), 0);
		for (uint32_t i = 0; i < c.n_layers; i++) {
			for (uint32_t t = 0; t < T; t++) {
				for (uint32_t h = 0; h < c.layers[i].kv_heads; h++) {
					const struct geo_layer *l = &g.layers[i];

					assert_int_equal(l->k_off + t * l->k_stride + h * l->k_row,
						address(&c, 4, i, 0, t, h, 0));
					if (c.layers[i].v_dim)
						assert_int_equal(
							l->v_off + t * l->v_stride + h * l->v_row,
							address(&c, 4, i, 1, t, h, 0));
				}
			}
		}
	}
}

/* An element's value from where it belongs, so that any misplacement shows. */
static float value(uint32_t layer, int v, uint32_t t, uint32_t h, uint32_t ch)
{
	return (float)((((layer * 2 + (uint32_t)v) * 64 + t) * 4 + h) * 32 + ch + 1);
}

static void each_of_view(const struct kvp_space_canon *c, const struct kvp_view_plane *planes,
	uint32_t n, uint32_t first, int check)
{
	for (uint32_t i = 0; i < c->n_layers; i++)
		for (int v = 0; v < 2; v++)
			for (uint32_t t = 0; t < n; t++)
				for (uint32_t h = 0; h < c->layers[i].kv_heads; h++)
					for (uint32_t ch = 0;
						ch < (v ? c->layers[i].v_dim : c->layers[i].k_dim);
						ch++) {
						const struct kvp_view_plane *p = &planes[i];
						uint8_t *at =
							v ? (uint8_t *)p->v +
									t * p->v_token_stride +
									h * p->v_head_stride
							  : (uint8_t *)p->k +
									t * p->k_token_stride +
									h * p->k_head_stride;
						float want = value(i, v, first + t, h, ch), have;

						if (!check) {
							memcpy(at + 4 * ch, &want, 4);
							continue;
						}
						memcpy(&have, at + 4 * ch, 4);
						assert_true(have == want);
					}
}

/*
 * C-015, C-016, E-059: any dense view into either payload layout and out into any other, over
 * several blocks, from any token on.
 */
static void test_conversions(void **state)
{
	uint64_t rnd = seed;

	(void)state;
	for (uint32_t layout = 0; layout <= 1; layout++) {
		struct kvp_space_canon c = unlike(layout, KVP_DTYPE_F32);
		struct kvp_space *space = space_of(&c);
		const struct geometry *g = &space->geo;
		uint8_t *in = malloc(2 * g->block_bytes), *out = malloc(2 * g->block_bytes + 64);
		uint8_t *payload = malloc(2 * g->block_bytes);

		for (uint32_t from = 0; from < 9; from++) {
			struct kvp_view_plane src[3], dst[3];
			struct kvp_view v = { .size = sizeof(v), .planes = src }, w;
			uint32_t at = (uint32_t)(toy_random(&rnd) % (2 * T - 1));
			uint32_t n = 1 + (uint32_t)(toy_random(&rnd) % (2 * T - at));
			uint64_t bytes, total = from % 2 ? UINT32_MAX : 2 * T;

			assert_int_equal(
				kvp_view_dense(space, from / 3, in, 2 * T, src, &bytes), 0);
			assert_int_equal(bytes, 2 * g->block_bytes);
			each_of_view(&c, src, 2 * T, 0, 0);
			assert_int_equal(view_check(g, &v, VIEW_WRITE, &w), 0);
			for (uint32_t b = 0; b < 2; b++)
				view_to_payload(
					g, payload + b * g->block_bytes, T, &w, b * T, total);
			if (from / 3 == KVP_VIEW_NCLD && layout == KVP_LAYOUT_NCLD)
				assert_memory_equal(payload, in, bytes);

			assert_int_equal(kvp_view_dense(space, from % 3, out, n, dst, &bytes), 0);
			memset(out, 0xee, bytes + 64);
			v.planes = dst;
			assert_int_equal(view_check(g, &v, VIEW_READ, &w), 0);
			for (uint32_t done = 0; done < n;) {
				uint32_t b = (at + done) / T, t = (at + done) % T;
				uint32_t step = T - t < n - done ? T - t : n - done;

				view_from_payload(
					g, payload + b * g->block_bytes, t, step, &w, done, total);
				done += step;
			}
			each_of_view(&c, dst, n, at, 1);
			for (uint32_t i = 0; i < 64; i++)
				assert_int_equal(out[bytes + i], 0xee);
		}
		free(in);
		free(out);
		free(payload);
		space_done(space);
	}
}

/* Runs long enough to be written around the cache, from and to odd addresses. */
static void test_large(void **state)
{
	(void)state;
	for (uint32_t layout = 0; layout <= 1; layout++) {
		struct kvp_space_canon c = {
			.version = 1,
			.dtype = KVP_DTYPE_F32,
			.layout = layout,
			.block_tokens = 64,
			.n_layers = 2,
			.layers = {
				{ .index = 0, .kv_heads = 4, .k_dim = 32, .v_dim = 16 },
				{ .index = 1, .kv_heads = 4, .k_dim = 24, .v_dim = 32 },
			},
		};
		struct kvp_space *space = space_of(&c);
		const struct geometry *g = &space->geo;
		uint8_t *in = malloc(g->block_bytes + 64), *out = malloc(g->block_bytes + 64);
		uint8_t *payload = malloc(g->block_bytes + 64);

		for (uint32_t view = 0; view < 3; view++) {
			for (uint32_t odd = 0; odd < 64; odd += 21) {
				struct kvp_view_plane src[2], dst[2];
				struct kvp_view v = { .size = sizeof(v), .planes = src }, w, x;
				uint64_t bytes;

				kvp_view_dense(space, view, in + odd, 64, src, &bytes);
				kvp_view_dense(space, view, out + 63 - odd, 64, dst, &bytes);
				each_of_view(&c, src, 64, 0, 0);
				memset(out, 0, g->block_bytes + 64);
				assert_int_equal(view_check(g, &v, VIEW_WRITE, &w), 0);
				v.planes = dst;
				assert_int_equal(view_check(g, &v, VIEW_READ, &x), 0);
				view_to_payload(g, payload + odd / 2, 64, &w, 0, UINT32_MAX);
				view_from_payload(g, payload + odd / 2, 0, 64, &x, 0, UINT32_MAX);
				each_of_view(&c, dst, 64, 0, 1);
			}
		}
		free(in);
		free(out);
		free(payload);
		space_done(space);
	}
}

/* C-014: a view of some layers and heads takes those and touches nothing else. */
static void test_subset(void **state)
{
	struct kvp_space_canon c = unlike(KVP_LAYOUT_LCND, KVP_DTYPE_F32);
	struct kvp_space *space = space_of(&c);
	const struct geometry *g = &space->geo;
	uint8_t *payload = malloc(g->block_bytes);
	float k[2][T][4];
	struct kvp_view_plane all[3], some = { .k = k };
	uint32_t layer = 1;
	struct kvp_view v = { .size = sizeof(v), .n_layers = 1, .layers = &layer, .planes = &some };
	struct kvp_view w, full = { .size = sizeof(full), .planes = all };
	uint8_t *dense = malloc(g->block_bytes);
	uint64_t bytes;

	(void)state;
	assert_int_equal(kvp_view_dense(space, KVP_VIEW_NCLD, dense, T, all, &bytes), 0);
	each_of_view(&c, all, T, 0, 0);
	assert_int_equal(view_check(g, &full, VIEW_WRITE, &w), 0);
	view_to_payload(g, payload, T, &w, 0, 0);

	/* Heads 1 and 2 of layer 1, keys only, heads outermost. */
	some.k_token_stride = sizeof(k[0][0]);
	some.k_head_stride = sizeof(k[0]);
	v.first_head = 1;
	v.n_heads = 2;
	assert_int_equal(view_check(g, &v, VIEW_READ, &w), 0);
	view_from_payload(g, payload, 0, T, &w, 0, 0);
	for (uint32_t h = 0; h < 2; h++)
		for (uint32_t t = 0; t < T; t++)
			for (uint32_t ch = 0; ch < 4; ch++)
				assert_true(k[h][t][ch] == value(1, 0, t, h + 1, ch));
	free(dense);
	free(payload);
	space_done(space);
}

/* C-031: what does not fit the space is refused, and so is a source with holes. */
static void test_view_refused(void **state)
{
	struct kvp_space_canon c = unlike(KVP_LAYOUT_NCLD, KVP_DTYPE_F32);
	struct kvp_space *space = space_of(&c);
	const struct geometry *g = &space->geo;
	uint8_t *dense = malloc(g->block_bytes);
	struct kvp_view_plane planes[4] = { 0 };
	uint32_t down[2] = { 1, 0 }, far[1] = { 3 };
	struct kvp_view good = { .size = sizeof(good), .planes = planes }, v, w;
	uint64_t bytes;

	(void)state;
	assert_int_equal(kvp_view_dense(space, KVP_VIEW_NCLD, dense, T, planes, &bytes), 0);
	assert_int_equal(view_check(g, &good, VIEW_WRITE, &w), 0);
	v = good, v.size = 1;
	assert_int_equal(view_check(g, &v, VIEW_READ, &w), -EINVAL);
	v = good, v.planes = NULL;
	assert_int_equal(view_check(g, &v, VIEW_READ, &w), -EINVAL);
	v = good, v.n_layers = 4;
	assert_int_equal(view_check(g, &v, VIEW_READ, &w), -EINVAL);
	v = good, v.n_layers = 2, v.layers = down;
	assert_int_equal(view_check(g, &v, VIEW_READ, &w), -EINVAL);
	v = good, v.n_layers = 1, v.layers = far;
	assert_int_equal(view_check(g, &v, VIEW_READ, &w), -EINVAL);
	v = good, v.first_head = 1; /* layer 2 has one head */
	assert_int_equal(view_check(g, &v, VIEW_READ, &w), -EINVAL);
	v = good, v.n_heads = UINT32_MAX;
	assert_int_equal(view_check(g, &v, VIEW_READ, &w), -EINVAL);
	v = good, v.n_layers = 2;
	assert_int_equal(view_check(g, &v, VIEW_READ, &w), 0);
	assert_int_equal(view_check(g, &v, VIEW_WRITE, &w), -EINVAL);
	planes[1].v = NULL;
	assert_int_equal(view_check(g, &good, VIEW_READ, &w), 0);
	assert_int_equal(view_check(g, &good, VIEW_WRITE, &w), -EINVAL);
	planes[0].k_token_stride = 1;
	assert_int_equal(view_check(g, &good, VIEW_READ, &w), -EINVAL);
	assert_int_equal(kvp_view_dense(space, 3, dense, T, planes, &bytes), -EINVAL);
	assert_int_equal(kvp_view_dense(space, 0, NULL, 5, NULL, &bytes), 0);
	assert_int_equal(bytes, 5 * g->token_bytes);
	free(dense);
	space_done(space);
}

/* E-017's copy: the first n tokens of a payload, in both layouts. */
static void test_prefix(void **state)
{
	(void)state;
	for (uint32_t layout = 0; layout <= 1; layout++) {
		struct kvp_space_canon c = unlike(layout, KVP_DTYPE_F16);
		struct kvp_space *space = space_of(&c);
		const struct geometry *g = &space->geo;
		uint8_t *src = malloc(g->block_bytes), *dst = malloc(g->block_bytes);

		for (uint32_t n = 1; n <= T; n += 5) {
			uint64_t copied = 0;

			for (uint64_t i = 0; i < g->block_bytes; i++)
				src[i] = (uint8_t)(i * 7 % 251);
			memset(dst, 0xff, g->block_bytes);
			payload_prefix(g, dst, src, n);
			for (uint64_t i = 0; i < g->block_bytes; i++)
				copied += dst[i] == src[i];
			assert_int_equal(copied, n * g->token_bytes);
			assert_memory_equal(dst + g->layers[2].k_off, src + g->layers[2].k_off,
				g->layers[2].k_row);
		}
		free(src);
		free(dst);
		space_done(space);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_homogeneous),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_addresses),
		cmocka_unit_test(test_conversions),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_subset),
		cmocka_unit_test(test_view_refused),
		cmocka_unit_test(test_prefix),
	};

	seed = toy_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
