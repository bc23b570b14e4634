/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paged views: every layout of pages, heads and channels that the formula of kvpool.h can express,
 * against that formula written down a second time, byte by byte, guard bytes included.
 */
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

#define T      16u
#define BLOCKS 4u
#define GUARD  64u
#define ROUNDS 1500u

static uint64_t rnd;

static uint32_t roll(uint32_t n)
{
	return (uint32_t)(toy_random(&rnd) % n);
}

/* One half of a plane with memory of its own, and what must be in it afterwards. */
struct memory {
	uint8_t *base, *want;
	size_t bytes;
	size_t page, token, head, channel;
};

/* A view over it, and all that it was made from. */
struct paged {
	struct kvp_space_canon canon;
	struct geometry geo;
	struct memory m[3][2]; /* of each layer of the space: keys, values */
	uint32_t layers[3];
	struct kvp_view_plane planes[3];
	uint32_t numbers[BLOCKS * T + 64]; /* of pages */
	int32_t numbers_i32[BLOCKS * T + 64];
	int64_t numbers_i64[BLOCKS * T + 64];
	struct kvp_view view;
};

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
			{ .index = 3, .kv_heads = 3, .k_dim = 5, .v_dim = 6 },
			{ .index = 7, .kv_heads = 2, .k_dim = 10 },
		},
	};

	return c;
}

static uint32_t dim_of(const struct paged *p, uint32_t layer, uint32_t half)
{
	const struct kvp_shm_layer *l = &p->canon.layers[layer];

	return half ? l->v_dim : l->k_dim;
}

/* Where the payload has it: the formulas of kvpool.h once more. */
static uint64_t in_payload(
	const struct paged *p, uint32_t layer, uint32_t half, uint32_t t, uint32_t h, uint32_t c)
{
	const struct kvp_space_canon *s = &p->canon;
	uint64_t before[2] = { 0 }, all[2] = { 0 }, d[2];

	for (uint32_t i = 0; i < s->n_layers; i++) {
		for (uint32_t v = 0; v < 2; v++) {
			uint64_t wide = (uint64_t)s->layers[i].kv_heads * dim_of(p, i, v);

			all[v] += wide;
			before[v] += i < layer ? wide : 0;
			if (i == layer)
				d[v] = wide;
		}
	}
	c += h * dim_of(p, layer, half);
	if (s->layout == KVP_LAYOUT_NCLD)
		return p->geo.element *
		       (t * (all[0] + all[1]) + (half ? all[0] : 0) + before[half] + c);
	return p->geo.element * (T * (before[0] + before[1] + (half ? d[0] : 0)) + t * d[half] + c);
}

/* Strides of one of the layouts that engines have, some with gaps. */
static void lay_out(const struct paged *p, struct memory *m, uint32_t heads, uint32_t dim)
{
	size_t e = p->geo.element, row = dim * e, gap = roll(2) ? 0 : roll(40) * e;
	uint32_t pt = p->view.page_tokens, pages = p->view.pool_pages;

	switch (roll(5)) {
	case 0: /* [pages][page_tokens][heads][dim] */
	case 1:
		m->head = row;
		m->token = heads * row + gap;
		m->page = pt * m->token + (roll(2) ? 0 : gap);
		break;
	case 2: /* [pages][heads][page_tokens][dim] */
		m->token = row + gap;
		m->head = pt * m->token;
		m->page = heads * m->head;
		break;
	case 3: /* [pages][heads][dim][page_tokens] */
		m->token = e;
		m->channel = pt * e + gap;
		m->head = dim * m->channel;
		m->page = heads * m->head;
		break;
	default: /* [heads][dim][tokens] */
		m->token = e;
		m->page = pt * e;
		m->channel = (size_t)pages * pt * e + gap;
		m->head = dim * m->channel;
	}
	m->bytes = (pages - 1) * m->page + (pt - 1) * m->token + (heads - 1) * m->head +
		   (dim - 1) * (m->channel ? m->channel : e) + e;
	if (pt == 1 && roll(2))
		m->token = 0; /* means nothing then */
	m->base = malloc(m->bytes + 2 * GUARD);
	m->want = malloc(m->bytes + 2 * GUARD);
	assert_non_null(m->base);
	assert_non_null(m->want);
	memset(m->base, 0xee, m->bytes + 2 * GUARD);
	memset(m->want, 0xee, m->bytes + 2 * GUARD);
}

/* No page twice; often the next one is the next in the pool. */
static void make_table(struct paged *p, uint32_t n)
{
	uint8_t *taken = calloc(p->view.pool_pages, 1);
	uint32_t page = roll(p->view.pool_pages);

	for (uint32_t i = 0; i < n; i++) {
		page = roll(3) ? page + 1 : roll(p->view.pool_pages);
		while (taken[page % p->view.pool_pages])
			page++;
		page %= p->view.pool_pages;
		taken[page] = 1;
		p->numbers[i] = page;
		p->numbers_i32[i] = (int32_t)page;
		p->numbers_i64[i] = page;
	}
	free(taken);
	p->view.pages.n = n;
	p->view.pages.type = roll(3);
	p->view.pages.ids = p->view.pages.type == KVP_IDS_U32   ? (const void *)p->numbers
			    : p->view.pages.type == KVP_IDS_I32 ? (const void *)p->numbers_i32
								: (const void *)p->numbers_i64;
}

/* A view of `tokens` tokens; all of the space, or some layers and heads. */
static struct paged *paged_new(uint32_t tokens, int all)
{
	static const uint32_t sizes[] = { 1, 1, 2, 5, 8, 16, 24, 40 };
	static const uint32_t dtypes[] = { KVP_DTYPE_F32, KVP_DTYPE_BF16, KVP_DTYPE_F8 };
	struct paged *p = calloc(1, sizeof(*p));
	struct kvp_view *v = &p->view;
	uint32_t need;

	p->canon = unlike(roll(2), dtypes[roll(3)]);
	assert_int_equal(geometry_init(&p->canon, &p->geo), 0);
	v->size = sizeof(*v);
	v->planes = p->planes;
	v->page_tokens = sizes[roll(8)];
	v->first_slot = roll(50);
	need = (v->first_slot + tokens + v->page_tokens - 1) / v->page_tokens;
	v->pool_pages = need + 1 + roll(2 * need);
	make_table(p, need + roll(2));
	if (!all) {
		for (uint32_t l = 0; l < 3; l++)
			if (roll(2))
				p->layers[v->n_layers++] = l;
		v->layers = v->n_layers ? p->layers : NULL;
		v->first_head = roll(2);
		v->n_heads = v->first_head ? roll(2) : roll(3);
	}
	for (uint32_t i = 0; i < (v->n_layers ? v->n_layers : 3); i++) {
		uint32_t layer = v->layers ? p->layers[i] : i;
		uint32_t heads =
			v->n_heads ? v->n_heads : p->canon.layers[layer].kv_heads - v->first_head;
		struct memory *m = p->m[layer];
		struct kvp_view_plane *to = &p->planes[i];

		if (all || roll(5)) {
			lay_out(p, &m[0], heads, dim_of(p, layer, 0));
			*to = (struct kvp_view_plane){ .k = m[0].base + GUARD,
				.k_token_stride = m[0].token,
				.k_head_stride = m[0].head,
				.k_page_stride = m[0].page,
				.k_channel_stride = m[0].channel };
		}
		if (dim_of(p, layer, 1) && (all || roll(5))) {
			lay_out(p, &m[1], heads, dim_of(p, layer, 1));
			to->v = m[1].base + GUARD;
			to->v_token_stride = m[1].token;
			to->v_head_stride = m[1].head;
			to->v_page_stride = m[1].page;
			to->v_channel_stride = m[1].channel;
		}
	}
	return p;
}

static void paged_free(struct paged *p)
{
	for (uint32_t l = 0; l < 3; l++) {
		for (uint32_t h = 0; h < 2; h++) {
			free(p->m[l][h].base);
			free(p->m[l][h].want);
		}
	}
	free(p);
}

/* Calls back with the place in `want` and in the payloads of every element of tokens [at, at + n). */
static void each(struct paged *p, uint32_t at, uint32_t n,
	void (*f)(struct paged *p, uint8_t *user, uint8_t *payload), uint8_t *payloads)
{
	const struct kvp_view *v = &p->view;

	for (uint32_t l = 0; l < 3; l++) {
		for (uint32_t half = 0; half < 2; half++) {
			const struct memory *m = &p->m[l][half];
			uint32_t heads = v->n_heads ? v->n_heads
						    : p->canon.layers[l].kv_heads - v->first_head;

			if (!m->base)
				continue;
			for (uint64_t x = 0; x < (uint64_t)n * heads * dim_of(p, l, half); x++) {
				uint32_t c = (uint32_t)(x % dim_of(p, l, half));
				uint32_t h = (uint32_t)(x / dim_of(p, l, half)) % heads;
				uint32_t t = (uint32_t)(x / dim_of(p, l, half)) / heads;
				uint32_t s = v->first_slot + t;
				size_t to = p->numbers[s / v->page_tokens] * m->page +
					    s % v->page_tokens * m->token + h * m->head +
					    c * (m->channel ? m->channel : p->geo.element);

				f(p, m->want + GUARD + to,
					payloads + (at + t) / T * p->geo.block_bytes +
						in_payload(p, l, half, (at + t) % T,
							v->first_head + h, c));
			}
		}
	}
}

static void user_from_payload(struct paged *p, uint8_t *user, uint8_t *payload)
{
	memcpy(user, payload, p->geo.element);
}

static void payload_from_user(struct paged *p, uint8_t *user, uint8_t *payload)
{
	memcpy(payload, user, p->geo.element);
}

static void noise(uint8_t *to, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		to[i] = (uint8_t)roll(256);
}

/* What the library says that somebody else is to copy. */
static void copy_run(void *ctx, void *dst, const void *src, uint64_t n)
{
	assert_true(n);
	memcpy(dst, src, n);
	++*(uint64_t *)ctx;
}

static uint64_t runs_copied;
static const struct view_sink copier = { copy_run, &runs_copied };

/* Any tokens of four blocks into any view, and not a byte beside them. */
static void test_get(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t at = roll(BLOCKS * T), n = 1 + roll(BLOCKS * T - at);
		struct paged *p = paged_new(n, !roll(4));
		uint8_t *payloads = malloc(BLOCKS * p->geo.block_bytes);
		uint64_t total = roll(2) ? UINT32_MAX : n;
		struct kvp_view v;

		noise(payloads, BLOCKS * p->geo.block_bytes);
		assert_int_equal(view_check(&p->geo, &p->view, VIEW_READ, &v), 0);
		assert_int_equal(view_reaches(&v, n), 0);
		each(p, at, n, user_from_payload, payloads);
		for (uint32_t done = 0, step; done < n; done += step) {
			uint32_t t = (at + done) % T;

			step = T - t < n - done ? T - t : n - done;
			if (view_has_rows(&p->geo, &v) && roll(2))
				view_runs(&p->geo,
					(uintptr_t)payloads + (at + done) / T * p->geo.block_bytes,
					t, step, &v, done, VIEW_READ, &copier);
			else
				view_from_payload(&p->geo,
					payloads + (at + done) / T * p->geo.block_bytes, t, step,
					&v, done, total);
		}
		for (uint32_t l = 0; l < 3; l++)
			for (uint32_t h = 0; h < 2; h++)
				if (p->m[l][h].base)
					assert_memory_equal(p->m[l][h].base, p->m[l][h].want,
						p->m[l][h].bytes + 2 * GUARD);
		free(payloads);
		paged_free(p);
	}
}

/* The other way: blocks, the last one partial, from any view that covers the space. */
static void test_put(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t n = 1 + roll(BLOCKS * T);
		struct paged *p = paged_new(n, 1);
		uint64_t bytes = BLOCKS * p->geo.block_bytes;
		uint8_t *have = malloc(bytes), *want = malloc(bytes);
		struct kvp_view v;

		memset(have, 0xdd, bytes);
		memset(want, 0xdd, bytes);
		for (uint32_t l = 0; l < 3; l++) {
			for (uint32_t h = 0; h < 2; h++) {
				struct memory *m = &p->m[l][h];

				noise(m->base, m->base ? m->bytes + 2 * GUARD : 0);
				if (m->base)
					memcpy(m->want, m->base, m->bytes + 2 * GUARD);
			}
		}
		assert_int_equal(view_check(&p->geo, &p->view, VIEW_WRITE, &v), 0);
		assert_int_equal(view_reaches(&v, n), 0);
		each(p, 0, n, payload_from_user, want);
		for (uint32_t at = 0; at < n; at += T) {
			uint8_t *to = have + at / T * p->geo.block_bytes;
			uint32_t len = n - at < T ? n - at : T;

			if (view_has_rows(&p->geo, &v) && roll(2))
				view_runs(&p->geo, (uintptr_t)to, 0, len, &v, at, VIEW_WRITE,
					&copier);
			else
				view_to_payload(&p->geo, to, len, &v, at, roll(2) ? UINT32_MAX : n);
		}
		assert_memory_equal(have, want, bytes);
		free(have);
		free(want);
		paged_free(p);
	}
}

/* Channels that lie apart are for nobody else to copy. */
static void test_runs(void **state)
{
	(void)state;
	assert_true(runs_copied > ROUNDS);
	for (uint32_t round = 0, apart = 0; !apart; round++) {
		struct paged *p = paged_new(T, 1);
		struct kvp_view v;

		assert_true(round < ROUNDS);
		assert_int_equal(view_check(&p->geo, &p->view, VIEW_READ, &v), 0);
		apart = p->m[0][0].channel > p->geo.element || p->m[1][1].channel > p->geo.element;
		assert_false(apart && view_has_rows(&p->geo, &v));
		paged_free(p);
	}
}

/* Runs long enough to be written around the cache: pages in a row, at odd addresses. */
static void test_large(void **state)
{
	struct kvp_space_canon c = {
		.version = 1,
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = 64,
		.n_layers = 1,
		.layers = { { .index = 0, .kv_heads = 8, .k_dim = 32, .v_dim = 32 } },
	};
	static const uint32_t table[] = { 2, 3, 4, 0, 6 };
	uint64_t plane = UINT64_C(7) * 16 * 8 * 32 * 4, page = UINT64_C(16) * 8 * 32 * 4;
	struct geometry g;

	(void)state;
	assert_int_equal(geometry_init(&c, &g), 0);
	for (uint32_t odd = 0; odd < 64; odd += 13) {
		uint8_t *kv = malloc(2 * plane + 64), *payload = malloc(g.block_bytes + 64);
		struct kvp_view_plane one = {
			.k = kv + odd,
			.v = kv + odd + plane,
			.k_token_stride = 8 * 32 * 4,
			.v_token_stride = 8 * 32 * 4,
			.k_head_stride = 32 * 4,
			.v_head_stride = 32 * 4,
			.k_page_stride = page,
			.v_page_stride = page,
		};
		struct kvp_view v = {
			.size = sizeof(v),
			.planes = &one,
			.page_tokens = 16,
			.pool_pages = 7,
			.pages = { table, 5, KVP_IDS_U32 },
			.first_slot = 8,
		};
		struct kvp_view w;

		noise(payload, g.block_bytes + 64);
		memset(kv, 0xee, 2 * plane + 64);
		assert_int_equal(view_check(&g, &v, VIEW_READ, &w), 0);
		assert_int_equal(view_reaches(&w, 64), 0);
		view_from_payload(&g, payload + odd / 2, 0, 64, &w, 0, UINT32_MAX);
		for (uint32_t t = 0; t < 64; t++) {
			uint64_t at = table[(t + 8) / 16] * page + (t + 8) % 16 * 1024;

			assert_memory_equal(kv + odd + at, payload + odd / 2 + t * 1024, 1024);
			assert_memory_equal(
				kv + odd + plane + at, payload + odd / 2 + (64 + t) * 1024, 1024);
		}
		/* page 1, before 8 of page 2, after 8 of page 6: not touched */
		for (uint64_t i = 0; i < page; i++)
			assert_int_equal(kv[odd + page + i], 0xee);
		for (uint64_t i = 0; i < page / 2; i++) {
			assert_int_equal(kv[odd + 2 * page + i], 0xee);
			assert_int_equal(kv[odd + 6 * page + page / 2 + i], 0xee);
		}
		free(kv);
		free(payload);
	}
}

/* Whatever the caller's table and strides say wrongly is refused. */
static void test_refused(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 200; round++) {
		uint32_t n = 1 + roll(BLOCKS * T);
		struct paged *p = paged_new(n, 1);
		uint32_t first = p->view.first_slot / p->view.page_tokens;
		uint32_t last = (p->view.first_slot + n - 1) / p->view.page_tokens;
		uint32_t i = first + roll(last - first + 1), kept = p->numbers[i];
		struct kvp_view v = p->view, w;

		assert_int_equal(view_check(&p->geo, &v, VIEW_WRITE, &w), 0);
		assert_int_equal(view_reaches(&w, n), 0);
		w.pages.n = last;
		assert_int_equal(view_reaches(&w, n), -EINVAL);
		assert_int_equal(view_reaches(&w, UINT32_MAX), -EINVAL);
		assert_int_equal(view_reaches(&w, 0), 0);
		w.pages = (struct kvp_ids){ p->numbers, v.pages.n, KVP_IDS_U32 };
		p->numbers[i] = v.pool_pages;
		assert_int_equal(view_reaches(&w, n), -EINVAL);
		p->numbers[i] = UINT32_MAX;
		assert_int_equal(view_reaches(&w, n), -EINVAL);
		p->numbers[i] = v.pool_pages - 1;
		assert_int_equal(view_reaches(&w, n), 0);
		/* beyond what the call needs a table may hold anything */
		p->numbers[i] = kept;
		p->numbers[last + 1] = UINT32_MAX;
		w.pages.n = last + 2;
		assert_int_equal(view_reaches(&w, n), 0);
		w.pages = (struct kvp_ids){ p->numbers_i32, v.pages.n, KVP_IDS_I32 };
		w.pool_pages = UINT32_MAX;
		p->numbers_i32[i] = -1;
		assert_int_equal(view_reaches(&w, n), -EINVAL);
		w.pages = (struct kvp_ids){ p->numbers_i64, v.pages.n, KVP_IDS_I64 };
		p->numbers_i64[i] = INT64_MIN;
		assert_int_equal(view_reaches(&w, n), -EINVAL);
		p->numbers_i64[i] = INT64_C(1) << 32 | kept;
		assert_int_equal(view_reaches(&w, n), -EINVAL);

#define REFUSED(change)                                                            \
	do {                                                                       \
		v = p->view;                                                       \
		change;                                                            \
		assert_int_equal(view_check(&p->geo, &v, VIEW_READ, &w), -EINVAL); \
	} while (0)
		REFUSED(v.pool_pages = 0);
		REFUSED(v.pages.ids = NULL);
		REFUSED(v.pages.type = KVP_IDS_I64 + 1);
		REFUSED(v.page_tokens = 0);
		REFUSED((v.page_tokens = 0, v.pool_pages = 0, v.pages = (struct kvp_ids){ 0 },
			v.first_slot = 1));
		REFUSED(p->planes[1].k_page_stride = 0);
		p->planes[1].k_page_stride = p->m[1][0].page;
		REFUSED(p->planes[1].v_head_stride = p->geo.element - 1);
		p->planes[1].v_head_stride = p->m[1][1].head;
		if (p->geo.element > 1)
			REFUSED(p->planes[0].k_channel_stride = 1);
#undef REFUSED
		paged_free(p);
	}
}

/* A caller built against the view of before, whose fields end with `planes`. */
static void test_older_view(void **state)
{
	struct kvp_space_canon c = unlike(KVP_LAYOUT_LCND, KVP_DTYPE_F32);
	struct kvp_view_plane planes[3] = { { .k = planes } };
	struct kvp_view v = { .size = offsetof(struct kvp_view, page_tokens), .planes = planes };
	struct geometry g;
	struct kvp_view w;

	(void)state;
	memset((uint8_t *)&v + v.size, 0xff, sizeof(v) - v.size);
	assert_int_equal(geometry_init(&c, &g), 0);
	planes[0].k_token_stride = planes[0].k_head_stride = 32;
	assert_int_equal(view_check(&g, &v, VIEW_READ, &w), 0);
	assert_int_equal(w.page_tokens, 0);
	assert_int_equal(view_reaches(&w, UINT32_MAX), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_get),
		cmocka_unit_test(test_put),
		cmocka_unit_test(test_runs),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_older_view),
	};

	rnd = toy_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
