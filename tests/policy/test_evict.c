/* SPDX-License-Identifier: Apache-2.0 */
/* The eviction core: chains, offers, protection, and random operations on every policy. */
#include "policy/evict_contest.h"
#include "tests/policy/evict_test.h"

static int refuse_one(void *ctx, kvp_block_id id)
{
	return id == *(kvp_block_id *)ctx;
}

static void test_bad_parameters(void **state)
{
	(void)state;
	struct kvp_evict_params p = { .size = sizeof(p), .items = 4, .max_ids = 8 };
	struct kvp_evict_params q;
	struct kvp_evict *e = NULL;

	assert_int_equal(kvp_evict_new("no such policy", &p, &e), -ENOENT);
	q = p, q.size = 8;
	assert_int_equal(kvp_evict_new("lru", &q, &e), -EINVAL);
	q = p, q.items = 0;
	assert_int_equal(kvp_evict_new("lru", &q, &e), -EINVAL);
	q = p, q.items = KVP_EVICT_MAX_CAPACITY + 1;
	assert_int_equal(kvp_evict_new("lru", &q, &e), -EINVAL);
	q = p, q.bytes = UINT64_MAX;
	assert_int_equal(kvp_evict_new("lru", &q, &e), -EINVAL);
	q = p, q.max_ids = 0;
	assert_int_equal(kvp_evict_new("lru", &q, &e), -EINVAL);
	q = p, q.max_ids = KVP_EVICT_MAX_IDS + 1;
	assert_int_equal(kvp_evict_new("lru", &q, &e), -EINVAL);
	assert_null(e);

	e = make("lru", 4, 0, 8);
	struct kvp_evict_item item = { .parent = KVP_BLOCK_NONE, .bytes = 1 };
	assert_int_equal(kvp_evict_insert(e, 8, &item, 0), -EINVAL);
	item.parent = 3;
	assert_int_equal(kvp_evict_insert(e, 3, &item, 0), -EINVAL);
	assert_int_equal(kvp_evict_insert(e, 2, &item, 0), -EINVAL);
	put(e, 3, KVP_BLOCK_NONE, 0);
	assert_int_equal(kvp_evict_insert(e, 3, &item, 0), -EEXIST);
	assert_int_equal(kvp_evict_access(e, 5, 0), -ENOENT);
	assert_int_equal(kvp_evict_access(e, 500, 0), -ENOENT);
	assert_int_equal(kvp_evict_access_chain(e, KVP_BLOCK_NONE, 0), -ENOENT);
	assert_int_equal(kvp_evict_remove(e, 5, 1, 0), -ENOENT);
	assert_int_equal(kvp_evict_set_bytes(e, 5, 1), -ENOENT);
	assert_int_equal(kvp_evict_resize(e, 0, 0), -EINVAL);
	assert_int_equal(kvp_evict_resize(e, 0, UINT64_MAX), -EINVAL);
	struct kvp_evict_request req = { .tip = 5, .blocks = 1 };
	assert_int_equal(kvp_evict_request(e, &req, 0), -EINVAL);
	req = (struct kvp_evict_request){ .tip = 3, .blocks = 1, .matched = 2 };
	assert_int_equal(kvp_evict_request(e, &req, 0), -EINVAL);
	struct kvp_evict_info info;
	assert_int_equal(kvp_evict_peek(e, 5, &info), -ENOENT);
	assert_null(kvp_evict_free(e));
	assert_null(kvp_evict_free(NULL));
}

/* C-041: looking at a block does not use it. */
static void test_lru_order_and_peek(void **state)
{
	(void)state;
	struct kvp_evict *e = make("lru", 4, 0, 8);
	struct kvp_evict_info info;
	kvp_block_id out[8];

	for (kvp_block_id id = 0; id < 5; id++)
		put(e, id, KVP_BLOCK_NONE, id);
	assert_int_equal(kvp_evict_access(e, 1, 9), 0);
	assert_int_equal(kvp_evict_peek(e, 0, &info), 0);
	assert_int_equal(info.hot, 0);
	assert_int_equal(kvp_evict_hot(e, 1), 1);
	assert_int_equal(kvp_evict_contains(e, 0), 1);

	uint64_t items, bytes;
	kvp_evict_excess(e, &items, &bytes);
	assert_int_equal(items, 1);
	assert_int_equal(bytes, 0);
	assert_int_equal(kvp_evict_victims(e, 9, 0, NULL, NULL, 10, out, 8), 5);
	const kvp_block_id want[] = { 0, 2, 3, 4, 1 };
	assert_memory_equal(out, want, sizeof(want));
	/* asked, not removed: all are still there, and count as used in that order */
	assert_int_equal(kvp_evict_len(e), 5);
	assert_int_equal(kvp_evict_victims(e, 0, 0, NULL, NULL, 10, out, 8), 1);
	assert_int_equal(out[0], 0);
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
}

static void test_bytes_wanted(void **state)
{
	(void)state;
	struct kvp_evict *e = make("lru", 0, 100, 8);
	struct kvp_evict_item item = { .parent = KVP_BLOCK_NONE, .bytes = 40 };
	uint64_t items, bytes;
	kvp_block_id out[8];

	for (kvp_block_id id = 0; id < 4; id++)
		assert_int_equal(kvp_evict_insert(e, id, &item, 0), 0);
	kvp_evict_excess(e, &items, &bytes);
	assert_int_equal(items, 0);
	assert_int_equal(bytes, 60);
	assert_int_equal(kvp_evict_victims(e, items, bytes, NULL, NULL, 0, out, 8), 2);
	assert_int_equal(kvp_evict_set_bytes(e, out[0], 10), 0);
	assert_int_equal(kvp_evict_bytes(e), 130);
	assert_int_equal(kvp_evict_remove(e, out[0], 1, 0), 0);
	assert_int_equal(kvp_evict_bytes(e), 120);
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
}

static void test_leaf_first(void **state)
{
	(void)state;
	size_t i = 0;
	const char *name;

	while ((name = kvp_evict_names(i++, NULL))) {
		/* 0 <- 1 <- 2 and 1 <- 3: only 2 and 3 are leaves */
		struct kvp_evict *e = make(name, 4, 0, 8);
		kvp_block_id out[8];
		put(e, 0, KVP_BLOCK_NONE, 0);
		put(e, 1, 0, 1);
		put(e, 2, 1, 2);
		put(e, 3, 1, 3);
		assert_int_equal(kvp_evict_remove(e, 1, 1, 4), -EBUSY);
		assert_int_equal(kvp_evict_victims(e, 4, 0, NULL, NULL, 5, out, 8), 4);
		assert_int_equal(out[0] + out[1], 5);
		assert_int_equal(out[2], 1);
		assert_int_equal(out[3], 0);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);

		/* one child survives, so its ancestors may not go */
		assert_int_equal(kvp_evict_remove(e, out[0], 1, 6), 0);
		assert_int_equal(kvp_evict_remove(e, 1, 1, 6), -EBUSY);
		kvp_block_id held = out[1];
		assert_int_equal(kvp_evict_victims(e, 4, 0, refuse_one, &held, 7, out, 8), 0);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		assert_int_equal(kvp_evict_victims(e, 4, 0, NULL, NULL, 8, out, 8), 3);
		for (int k = 0; k < 3; k++)
			assert_int_equal(kvp_evict_remove(e, out[k], 1, 9), 0);
		assert_int_equal(kvp_evict_len(e), 0);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		kvp_evict_free(e);
	}
}

/* The leaf of a naive tree whose last use is the longest ago. */
static kvp_block_id oldest_leaf(const kvp_block_id *parent, const uint64_t *used, uint32_t n)
{
	kvp_block_id oldest = KVP_BLOCK_NONE;

	for (kvp_block_id id = 0; id < n; id++) {
		bool leaf = used[id] != 0;
		for (kvp_block_id child = 0; child < n && leaf; child++)
			leaf = !used[child] || parent[child] != id;
		if (leaf && (oldest == KVP_BLOCK_NONE || used[id] < used[oldest]))
			oldest = id;
	}
	return oldest;
}

/*
 * E-015: LRU takes, of a tree of prompts, the leaf unused longest, and its parent only once that
 * has become a leaf; each victim is the one that a search of the whole tree finds.
 */
static void test_e015_lru_of_leaves(void **state)
{
	(void)state;
	enum { N = 90 };
	struct kvp_evict *e = make("lru", 40, 0, N);
	kvp_block_id parent[N], victim;
	uint64_t used[N] = { 0 }, clock = 0;
	unsigned evicted = 0;

	random_seed(random_print_seed());
	for (uint64_t now = 0; now < 20000; now++) {
		kvp_block_id id = below(N), up = below(4) ? below(N) : KVP_BLOCK_NONE;
		if (used[id]) {
			assert_int_equal(kvp_evict_access_chain(e, id, now), 0);
			for (; id != KVP_BLOCK_NONE; id = parent[id])
				used[id] = ++clock;
		} else if (up == KVP_BLOCK_NONE || used[up]) {
			put(e, id, up, now);
			parent[id] = up;
			used[id] = ++clock;
		}
		if (kvp_evict_len(e) <= 40)
			continue;
		assert_int_equal(kvp_evict_victims(e, 1, 0, NULL, NULL, now, &victim, 1), 1);
		assert_int_equal(victim, oldest_leaf(parent, used, N));
		assert_int_equal(kvp_evict_remove(e, victim, 1, now), 0);
		used[victim] = 0;
		evicted++;
	}
	assert_true(evicted > 1000);
	kvp_evict_free(e);
}

/* E-015: what was used often outlives what was used last, if the policy counts. */
static void test_e015_frequency_by_policy(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		kvp_block_id first;
	} rows[] = { { "lru", 0 }, { "fifo", 0 }, { "lfu-da", 1 }, { "gdsf", 1 } };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct kvp_evict *e = make(rows[i].name, 4, 0, 8);
		kvp_block_id victim;
		put(e, 0, KVP_BLOCK_NONE, 0);
		put(e, 1, KVP_BLOCK_NONE, 1);
		for (int k = 0; k < 5; k++)
			assert_int_equal(kvp_evict_access(e, 0, 2), 0);
		assert_int_equal(kvp_evict_access(e, 1, 3), 0);
		assert_int_equal(kvp_evict_victims(e, 1, 0, NULL, NULL, 4, &victim, 1), 1);
		assert_int_equal(victim, rows[i].first);
		kvp_evict_free(e);
	}
}

/* A child put below an offered block, or a use of it, takes it out of the offer. */
static void test_offer_withdrawn(void **state)
{
	(void)state;
	size_t i = 0;
	const char *name;

	while ((name = kvp_evict_names(i++, NULL))) {
		struct kvp_evict *e = make(name, 4, 0, 8);
		kvp_block_id out[8];
		put(e, 0, KVP_BLOCK_NONE, 0);
		put(e, 1, 0, 0);
		assert_int_equal(kvp_evict_victims(e, 2, 0, NULL, NULL, 1, out, 8), 2);
		put(e, 2, 1, 2);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		assert_int_equal(kvp_evict_remove(e, 0, 1, 3), -EBUSY);
		assert_int_equal(kvp_evict_remove(e, 1, 1, 3), -EBUSY);
		assert_int_equal(kvp_evict_victims(e, 3, 0, NULL, NULL, 4, out, 8), 3);
		assert_int_equal(kvp_evict_access_chain(e, 2, 5), 0);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		assert_int_equal(kvp_evict_remove(e, 1, 1, 6), -EBUSY);
		assert_int_equal(kvp_evict_remove(e, 2, 1, 6), 0);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		kvp_evict_free(e);
	}
}

static unsigned put_calls, evict_calls, hot_calls;

static void on_put(void *ctx, kvp_block_id id)
{
	(void)ctx, (void)id;
	put_calls++;
}

static void on_evict(void *ctx, kvp_block_id id)
{
	(void)ctx, (void)id;
	evict_calls++;
}

static void on_hot(void *ctx, kvp_block_id id)
{
	(void)id;
	assert_ptr_equal(ctx, &hot_calls);
	hot_calls++;
}

/* Where all blocks were used, one call spares so many and then takes what comes. */
static void test_patience(void **state)
{
	(void)state;
	static const char *const names[] = { "sieve", "s3-fifo-30" };
	enum { N = 20000, SPARED = 8192 };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct kvp_evict *e = make(names[i], N, 0, N);
		kvp_block_id out[2];

		for (kvp_block_id id = 0; id < N; id++) {
			put(e, id, KVP_BLOCK_NONE, id);
			assert_int_equal(kvp_evict_access(e, id, id), 0);
		}
		assert_int_equal(kvp_evict_victims(e, 2, 0, NULL, NULL, N, out, 2), 2);
		assert_int_equal(out[0], SPARED);
		assert_int_equal(out[1], SPARED + 1);
		assert_int_equal(kvp_evict_remove(e, out[0], 1, N), 0);
		assert_int_equal(kvp_evict_remove(e, out[1], 1, N), 0);
		/* the next call goes on from there */
		assert_int_equal(kvp_evict_victims(e, 1, 0, NULL, NULL, N, out, 1), 1);
		assert_int_equal(out[0], 2 * SPARED + 2);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		kvp_evict_free(e);
	}
}

/* C-039: each once per event. */
static void test_hooks(void **state)
{
	(void)state;
	struct kvp_evict_params p = {
		.size = sizeof(p),
		.items = 4,
		.max_ids = 8,
		.hooks = { on_put, on_evict, on_hot, &hot_calls },
	};
	struct kvp_evict *e = NULL;

	put_calls = evict_calls = hot_calls = 0;
	assert_int_equal(kvp_evict_new("lru", &p, &e), 0);
	put(e, 0, KVP_BLOCK_NONE, 0);
	put(e, 1, KVP_BLOCK_NONE, 0);
	assert_int_equal(kvp_evict_access(e, 0, 1), 0);
	assert_int_equal(kvp_evict_remove(e, 0, 1, 2), 0);
	assert_int_equal(kvp_evict_remove(e, 1, 0, 2), 0);
	assert_int_equal(put_calls, 2);
	assert_int_equal(evict_calls, 1);
	assert_int_equal(hot_calls, 1);
	kvp_evict_free(e);
}

static void test_ingestion(void **state)
{
	(void)state;
	static const int want[3][3] = { { 1, 0, 0 }, { 0, 1, 0 }, { 0, 0, 1 } };

	for (uint32_t mode = 0; mode < 3; mode++)
		for (uint32_t event = 0; event < 3; event++)
			assert_int_equal(kvp_ingest_wants(mode, event, 1), want[mode][event]);
	assert_int_equal(kvp_ingest_wants(KVP_INGEST_HOT, KVP_INGEST_EVENT_ACCESS, 0), 0);
	assert_int_equal(kvp_ingest_wants(3, 0, 0), -EINVAL);
	assert_int_equal(kvp_ingest_wants(0, 3, 0), -EINVAL);
}

/* GDSF weighs by the bytes held now: requantised to a quarter, a block is worth four of its kind.
 */
static void test_gdsf_requantised(void **state)
{
	(void)state;
	struct kvp_evict *e = make("gdsf", 0, 1000000, 8);
	kvp_block_id out[3];

	for (kvp_block_id id = 0; id < 3; id++) {
		struct kvp_evict_item item = {
			.parent = KVP_BLOCK_NONE, .bytes = 4096, .cost = 1, .key = { .lo = id + 1 }
		};
		assert_int_equal(kvp_evict_insert(e, id, &item, id), 0);
	}
	assert_int_equal(kvp_evict_access(e, 1, 3), 0);
	assert_int_equal(kvp_evict_set_bytes(e, 0, 1024), 0); /* 4 > 2 uses > 1 */
	assert_int_equal(kvp_evict_victims(e, 3, 0, NULL, NULL, 4, out, 3), 3);
	assert_true(out[0] == 2 && out[1] == 1 && out[2] == 0);
	assert_int_equal(
		kvp_evict_set_bytes(e, 0, 1 << 20), 0); /* offered: counts when it is back */
	assert_int_equal(kvp_evict_victims(e, 3, 0, NULL, NULL, 5, out, 3), 3);
	assert_int_equal(out[0], 0);
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
}

/* What admit() learnt of one block is not held of another that comes instead. */
static void test_admitted_is_another(void **state)
{
	(void)state;
	static const char *const names[] = { "arc", "s3-fifo", "s3-fifo-30" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct kvp_evict *e = make(names[i], 40, 0, 64);
		struct kvp_evict_item known = { .parent = KVP_BLOCK_NONE, .bytes = 1 };

		for (kvp_block_id id = 0; id < 3; id++) {
			put(e, id, KVP_BLOCK_NONE, id);
			assert_int_equal(kvp_evict_remove(e, id, 1, id), 0);
		}
		known.key.lo = 1; /* block 0's */
		assert_int_equal(kvp_evict_admit(e, &known, 3), 1);
		put(e, 9, KVP_BLOCK_NONE, 3);
		assert_false(kvp_evict_hot(e, 9));
		/* asked first or not: what a ghost remembers is hot */
		known.key.lo = 2;
		assert_int_equal(kvp_evict_admit(e, &known, 4), 1);
		put(e, 1, KVP_BLOCK_NONE, 4);
		assert_true(kvp_evict_hot(e, 1));
		put(e, 2, KVP_BLOCK_NONE, 5);
		assert_true(kvp_evict_hot(e, 2));
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		kvp_evict_free(e);
	}
}

/* Nor is it forgotten while others are on their way, too: they are asked about before any has come. */
static void test_several_are_on_their_way(void **state)
{
	(void)state;
	static const char *const names[] = { "arc", "s3-fifo", "s3-fifo-30" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct kvp_evict *e = make(names[i], 40, 0, 64);
		struct kvp_evict_item item = { .parent = KVP_BLOCK_NONE, .bytes = 1 };

		for (kvp_block_id id = 0; id < 3; id++) {
			put(e, id, KVP_BLOCK_NONE, id);
			assert_int_equal(kvp_evict_remove(e, id, 1, id), 0);
		}
		for (uint32_t round = 0; round < 2; round++) /* twice: one did not come at once */
			for (item.key.lo = 1; item.key.lo <= 10; item.key.lo++)
				assert_int_equal(kvp_evict_admit(e, &item, 3), 1);
		put(e, 9, KVP_BLOCK_NONE, 4);
		assert_false(kvp_evict_hot(e, 9));
		for (kvp_block_id id = 0; id < 3; id++) {
			put(e, id, KVP_BLOCK_NONE, 4);
			assert_true(kvp_evict_hot(e, id));
		}
		/* What has come is not expected any more. */
		assert_int_equal(kvp_evict_remove(e, 0, 0, 5), 0);
		put(e, 0, KVP_BLOCK_NONE, 6);
		assert_false(kvp_evict_hot(e, 0));
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		kvp_evict_free(e);
	}
}

/* C-038, C-043, C-045: victims by the batch where none are asked for, and a line that tells it all.
 */
static void test_batch_and_name(void **state)
{
	(void)state;
	struct kvp_evict_params p = {
		.size = sizeof(p), .items = 20, .bytes = 99, .max_ids = 20, .evict_by = 16
	};
	kvp_block_id out[32];
	const char *name;

	for (size_t i = 0; (name = kvp_evict_names(i, NULL)); i++) {
		struct kvp_evict *e = NULL;
		assert_int_equal(kvp_evict_new(name, &p, &e), 0);
		for (kvp_block_id id = 0; id < 18; id++)
			put(e, id, KVP_BLOCK_NONE, id);
		assert_string_equal(kvp_evict_name(e), name);
		assert_int_equal(kvp_evict_victims(e, 0, 0, NULL, NULL, 20, out, 32), 16);
		for (int k = 0; k < 16; k++)
			assert_int_equal(kvp_evict_remove(e, out[k], 1, 20), 0);
		assert_int_equal(kvp_evict_victims(e, 0, 0, NULL, NULL, 20, out, 32), 2);
		kvp_evict_free(e);
	}
}

/* ---- a second tier, fed by the hooks as kvp_ingest_wants() has it ---- */

struct tiers {
	struct kvp_evict *e;
	uint32_t mode;
	unsigned puts, victims, stored, cold; /* cold: stored though not hot */
	bool in_store[64];
};

static void ingest(struct tiers *t, uint32_t event, kvp_block_id id, int hot)
{
	int r = kvp_ingest_wants(t->mode, event, hot);

	assert_in_range(r, 0, 1);
	if (!r)
		return;
	t->stored++;
	t->cold += !hot;
	t->in_store[id] = true;
}

static void tiers_put(void *ctx, kvp_block_id id)
{
	struct tiers *t = ctx;

	t->puts++;
	ingest(t, KVP_INGEST_EVENT_PUT, id, kvp_evict_hot(t->e, id));
}

static void tiers_evict(void *ctx, kvp_block_id id)
{
	struct tiers *t = ctx;

	t->victims++;
	ingest(t, KVP_INGEST_EVENT_EVICT, id, 0);
}

static void tiers_hot(void *ctx, kvp_block_id id)
{
	ingest(ctx, KVP_INGEST_EVENT_ACCESS, id, 1);
}

/* C-005, C-006, C-007: all puts; only what is hot, and all of that; exactly the victims. */
static void test_second_tier(void **state)
{
	(void)state;
	const char *name;

	for (size_t i = 0; (name = kvp_evict_names(i, NULL)); i++)
		for (uint32_t mode = KVP_INGEST_ALL; mode <= KVP_INGEST_EVICTED; mode++) {
			struct tiers t = { .mode = mode };
			struct kvp_evict_params p = {
				.size = sizeof(p),
				.items = 24,
				.max_ids = 64,
				.seed = 1,
				.hooks = { tiers_put, tiers_evict, tiers_hot, &t },
			};
			bool used[64] = { false };
			assert_int_equal(kvp_evict_new(name, &p, &t.e), 0);
			random_seed(i);
			for (uint32_t k = 0; k < 4000; k++) {
				kvp_block_id id = below(1 + below(64)), out;
				used[id] |= kvp_evict_access(t.e, id, k) == 0;
				if (!kvp_evict_contains(t.e, id))
					put(t.e, id, KVP_BLOCK_NONE, k);
				if (kvp_evict_len(t.e) <= 24)
					continue;
				kvp_evict_victims(t.e, 1, 0, NULL, NULL, k, &out, 1);
				assert_int_equal(kvp_evict_remove(t.e, out, 1, k), 0);
			}
			if (mode == KVP_INGEST_ALL)
				assert_int_equal(t.stored, t.puts);
			if (mode == KVP_INGEST_EVICTED)
				assert_int_equal(t.stored, t.victims);
			for (kvp_block_id id = 0; mode == KVP_INGEST_HOT && id < 64; id++)
				assert_true(used[id] || !t.in_store[id]);
			if (mode == KVP_INGEST_HOT)
				assert_true(t.stored > 0 && !t.cold);
			kvp_evict_free(t.e);
		}
}

/* ---- random operations against a plain model of what is cached ---- */

#define N_IDS 160u
#define ITEMS 96u

struct model {
	bool cached[N_IDS];
	kvp_block_id parent[N_IDS];
	uint32_t bytes[N_IDS];
	uint32_t children[N_IDS];
	bool held[N_IDS];
	uint64_t len, total;
};

static int model_held(void *ctx, kvp_block_id id)
{
	return ((struct model *)ctx)->held[id];
}

static void model_remove(struct model *m, kvp_block_id id)
{
	m->cached[id] = false;
	m->len--;
	m->total -= m->bytes[id];
	if (m->parent[id] != KVP_BLOCK_NONE)
		m->children[m->parent[id]]--;
}

static void op_insert(struct kvp_evict *e, struct model *m, uint64_t now)
{
	kvp_block_id id = below(N_IDS), parent = below(N_IDS);
	struct kvp_evict_item item = {
		.parent = m->cached[parent] && below(8) ? parent : KVP_BLOCK_NONE,
		.bytes = 1 + below(9),
		.tokens = 64,
		.cost = (float)below(1000) / 100,
		.flags = below(4) ? 0 : KVP_EVICT_PARTIAL,
		.key = { .lo = below(3 * N_IDS), .hi = 7 },
	};

	if (m->cached[id]) {
		assert_int_equal(kvp_evict_insert(e, id, &item, now), -EEXIST);
		return;
	}
	if (item.parent != KVP_BLOCK_NONE) {
		struct kvp_evict_info info;
		assert_int_equal(kvp_evict_peek(e, item.parent, &info), 0);
		item.depth = info.depth + 1;
	}
	if (below(2))
		assert_in_range(kvp_evict_admit(e, &item, now), 0, 1);
	assert_int_equal(kvp_evict_insert(e, id, &item, now), 0);
	m->cached[id] = true;
	m->parent[id] = item.parent;
	m->bytes[id] = item.bytes;
	m->children[id] = 0;
	m->len++;
	m->total += item.bytes;
	if (item.parent != KVP_BLOCK_NONE)
		m->children[item.parent]++;
}

static void op_evict(struct kvp_evict *e, struct model *m, uint64_t now)
{
	kvp_block_id out[32];
	bool seen[N_IDS] = { false };
	uint32_t want = 1 + below(32);
	uint64_t left[N_IDS];
	size_t n =
		kvp_evict_victims(e, want, below(3) ? 0 : below(64), model_held, m, now, out, 32);

	for (kvp_block_id id = 0; id < N_IDS; id++)
		left[id] = m->children[id];
	for (size_t i = 0; i < n; i++) {
		assert_true(out[i] < N_IDS && m->cached[out[i]]);
		assert_false(seen[out[i]]);
		assert_false(m->held[out[i]]);
		assert_int_equal(left[out[i]], 0);
		seen[out[i]] = true;
		if (m->parent[out[i]] != KVP_BLOCK_NONE)
			left[m->parent[out[i]]]--;
	}
	/* nothing else was left that could have gone */
	for (kvp_block_id id = 0; n < want && id < N_IDS; id++)
		assert_true(!m->cached[id] || seen[id] || m->held[id] || left[id]);
	for (size_t i = 0; i < n; i++) {
		if (m->children[out[i]] || !below(4))
			continue;
		assert_int_equal(kvp_evict_remove(e, out[i], 1, now), 0);
		model_remove(m, out[i]);
	}
}

static void op_remove(struct kvp_evict *e, struct model *m, uint64_t now)
{
	kvp_block_id id = below(N_IDS);
	int r = kvp_evict_remove(e, id, (int)below(2), now);

	if (!m->cached[id]) {
		assert_int_equal(r, -ENOENT);
	} else if (m->children[id]) {
		assert_int_equal(r, -EBUSY);
	} else {
		assert_int_equal(r, 0);
		model_remove(m, id);
	}
}

static void op_use(struct kvp_evict *e, struct model *m, uint64_t now)
{
	kvp_block_id id = below(N_IDS);
	struct kvp_evict_request req = {
		.tip = id, .blocks = 4 + below(30), .matched = below(4), .tokens = below(9999)
	};

	if (!below(3))
		assert_int_equal(kvp_evict_request(e, &req, now), m->cached[id] ? 0 : -EINVAL);
	int r = below(2) ? kvp_evict_access(e, id, now) : kvp_evict_access_chain(e, id, now);
	assert_int_equal(r, m->cached[id] ? 0 : -ENOENT);
}

static void op_misc(struct kvp_evict *e, struct model *m)
{
	kvp_block_id id = below(N_IDS);

	switch (below(4)) {
	case 0:
		m->held[id] = !below(3);
		break;
	case 1:
		if (!m->cached[id])
			break;
		m->total -= m->bytes[id];
		m->bytes[id] = 1 + below(9);
		m->total += m->bytes[id];
		assert_int_equal(kvp_evict_set_bytes(e, id, m->bytes[id]), 0);
		break;
	case 2:
		if (e->contest)
			contest_favour(e, below(64));
		assert_int_equal(kvp_evict_resize(e, ITEMS / 2 + below(ITEMS), 0), 0);
		break;
	default:
		assert_int_equal(kvp_evict_contains(e, id), m->cached[id]);
		break;
	}
}

static void random_operations(const char *name, uint64_t bytes, uint64_t seed, unsigned ops)
{
	struct kvp_evict *e = make(name, bytes ? 0 : ITEMS, bytes, N_IDS);
	static struct model m;
	uint64_t now = 0;

	memset(&m, 0, sizeof(m));
	random_seed(seed);
	for (unsigned i = 0; i < ops; i++) {
		now += below(1u << below(30));
		switch (below(8)) {
		case 0:
		case 1:
		case 2:
			op_insert(e, &m, now);
			break;
		case 3:
		case 4:
			op_use(e, &m, now);
			break;
		case 5:
			op_misc(e, &m);
			break;
		case 6:
			op_remove(e, &m, now);
			break;
		default:
			if (m.len > ITEMS || !below(8))
				op_evict(e, &m, now);
			break;
		}
		assert_int_equal(kvp_evict_len(e), m.len);
		assert_int_equal(kvp_evict_bytes(e), m.total);
		if (i % 64 == 0)
			assert_int_equal(kvp_evict_assert_consistency(e), 0);
	}
	uint64_t n = 0;
	for (kvp_block_id id = kvp_evict_next(e, KVP_BLOCK_NONE); id != KVP_BLOCK_NONE;
		id = kvp_evict_next(e, id), n++)
		assert_true(m.cached[id]);
	assert_int_equal(n, m.len);
	kvp_evict_free(e);
}

/* C-040, C-042, C-044: a million operations of every kind on every policy, beside a plain model. */
static void test_random_operations(void **state)
{
	(void)state;
	uint64_t seed = random_print_seed();
	const char *name;

	for (size_t i = 0; (name = kvp_evict_names(i, NULL)); i++) {
		print_message("%s: seed 0x%llx\n", name, (unsigned long long)(seed + i));
		random_operations(name, 0, seed + i, 1000000);
	}
}

/* The same where bytes bound the cache, so that the shadows look for the sample that they can hold.
 */
static void test_random_operations_in_bytes(void **state)
{
	(void)state;
	uint64_t seed = random_print_seed();

	random_operations("hazard", 4 * ITEMS, seed, 300000);
	random_operations("contest", 4 * ITEMS, seed, 300000);
}

static int refuse_all(void *ctx, kvp_block_id id)
{
	(void)id;
	++*(uint32_t *)ctx;
	return 1;
}

/*
 * Chains that grew side by side: all of their roots come before the first leaf. One call looks at
 * so many blocks and no more, and the next one goes on; nothing of it is lost.
 */
static void test_steps(void **state)
{
	(void)state;
	enum { CHAINS = 1000, STEPS = 100, N = 2 * CHAINS };
	size_t i = 0;
	const char *name;

	while ((name = kvp_evict_names(i++, NULL))) {
		struct kvp_evict_params p = {
			.size = sizeof(p), .items = N, .max_ids = N, .steps = STEPS, .seed = 1
		};
		struct kvp_evict *e;
		uint32_t calls = 0, refused = 0;
		kvp_block_id out[8];
		size_t n;

		assert_int_equal(kvp_evict_new(name, &p, &e), 0);
		for (kvp_block_id id = 0; id < N; id++)
			put(e, id, id < CHAINS ? KVP_BLOCK_NONE : id - CHAINS, id);
		do {
			n = kvp_evict_victims(e, 8, 0, NULL, NULL, N, out, 8);
			calls++;
			assert_true(n == 8 || kvp_evict_cut_short(e));
			assert_int_equal(kvp_evict_assert_consistency(e), 0);
		} while (!n && calls < 100);
		assert_true(n > 0);
		if (!strcmp(name, "lru")) {
			assert_int_equal(calls, CHAINS / STEPS + 1);
			assert_int_equal(out[0], CHAINS);
		}
		/* What is refused counts, too. */
		n = kvp_evict_victims(e, 8, 0, refuse_all, &refused, N, out, 8);
		assert_int_equal(n, 0);
		assert_true(kvp_evict_cut_short(e));
		assert_in_range(refused, 1, STEPS);
		for (size_t k = 0; k < N; k++) {
			n = kvp_evict_victims(e, 8, 0, NULL, NULL, N, out, 8);
			for (size_t v = 0; v < n; v++)
				assert_int_equal(kvp_evict_remove(e, out[v], 1, N), 0);
		}
		assert_int_equal(kvp_evict_len(e), 0);
		assert_false(kvp_evict_cut_short(e));
		kvp_evict_free(e);
	}
}

/* In pieces, with other calls between them, and at once: the same state, so the same victims. */
static void test_chain_in_pieces(void **state)
{
	(void)state;
	enum { LONG = 300, OTHERS = 60, N = LONG + OTHERS };
	size_t i = 0;
	const char *name;

	while ((name = kvp_evict_names(i++, NULL))) {
		struct kvp_evict *e[2] = { make(name, N, 0, N), make(name, N, 0, N) };
		kvp_block_id out[2][N];
		size_t n[2];

		for (int k = 0; k < 2; k++) {
			struct kvp_evict_walk w;
			uint32_t pieces = 1;

			for (kvp_block_id id = 0; id < N; id++)
				put(e[k], id, id && id < LONG ? id - 1 : KVP_BLOCK_NONE, 10 * id);
			assert_int_equal(kvp_evict_access_begin(e[k], N, 5000, &w), -ENOENT);
			if (k) {
				assert_int_equal(
					kvp_evict_access_begin(e[k], LONG - 1, 5000, &w), 0);
				while (kvp_evict_access_on(e[k], &w, 7, 5000) == 1)
					pieces++;
				assert_int_equal(pieces, (LONG + 6) / 7);
				assert_int_equal(w.next, KVP_BLOCK_NONE);
				assert_int_equal(kvp_evict_access_on(e[k], &w, 7, 5000), 0);
			} else {
				assert_int_equal(kvp_evict_access_chain(e[k], LONG - 1, 5000), 0);
			}
			assert_int_equal(kvp_evict_assert_consistency(e[k]), 0);
			n[k] = kvp_evict_victims(e[k], N, 0, NULL, NULL, 6000, out[k], N);
		}
		assert_int_equal(n[0], n[1]);
		assert_memory_equal(out[0], out[1], n[0] * sizeof(out[0][0]));
		kvp_evict_free(e[0]);
		kvp_evict_free(e[1]);
	}
}

/* A chain whose next block went is gone on with by nobody. */
static void test_chain_that_went(void **state)
{
	(void)state;
	struct kvp_evict *e = make("hazard", 8, 0, 8);
	struct kvp_evict_walk w;

	for (kvp_block_id id = 0; id < 4; id++)
		put(e, id, id ? id - 1 : KVP_BLOCK_NONE, id);
	assert_int_equal(kvp_evict_access_begin(e, 3, 10, &w), 0);
	assert_int_equal(kvp_evict_access_on(e, &w, 1, 10), 1);
	for (kvp_block_id id = 4; id-- > 0;)
		assert_int_equal(kvp_evict_remove(e, id, 1, 11), 0);
	assert_int_equal(kvp_evict_access_on(e, &w, 1, 12), -ENOENT);
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
}

/* What was refused counts as used: the next call does not meet it again at once. */
static void test_refused(void **state)
{
	(void)state;
	size_t i = 0;
	const char *name;

	while ((name = kvp_evict_names(i++, NULL))) {
		struct kvp_evict *asked = make(name, 4, 0, 8), *e = make(name, 4, 0, 8);
		kvp_block_id first, out[8];

		for (kvp_block_id id = 0; id < 4; id++) {
			put(asked, id, KVP_BLOCK_NONE, id);
			put(e, id, KVP_BLOCK_NONE, id);
		}
		assert_int_equal(kvp_evict_victims(asked, 1, 0, NULL, NULL, 5, &first, 1), 1);
		assert_int_equal(kvp_evict_victims(e, 1, 0, refuse_one, &first, 5, out, 8), 1);
		assert_true(out[0] != first);
		assert_int_equal(kvp_evict_remove(e, out[0], 1, 6), 0);
		assert_int_equal(kvp_evict_victims(e, 3, 0, NULL, NULL, 7, out, 8), 3);
		assert_true(out[0] != first);
		if (!strcmp(name, "lru"))
			assert_int_equal(out[2], first);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		kvp_evict_free(asked);
		kvp_evict_free(e);
	}
}

/* A time before the latest one is taken as the latest one, in every call that takes a time. */
static void test_time_runs_backwards(void **state)
{
	(void)state;
	enum { IDS = 64, STEPS = 4000 };
	size_t i = 0;
	const char *name;

	while ((name = kvp_evict_names(i++, NULL))) {
		struct kvp_evict *e[2] = { make(name, IDS / 2, 0, IDS),
			make(name, IDS / 2, 0, IDS) };
		uint64_t now = 1000000;

		random_seed(random_print_seed() + i);
		for (unsigned step = 0; step < STEPS; step++) {
			kvp_block_id id = below(IDS), parent = below(IDS), out[2][8];
			uint64_t at[2];
			size_t n[2];

			now += below(1000);
			at[0] = now;
			at[1] = below(2) ? now : now - below(100000);
			if (!kvp_evict_contains(e[0], parent) || parent == id)
				parent = KVP_BLOCK_NONE;
			for (int k = 0; k < 2; k++) {
				struct kvp_evict_request req = { .tip = KVP_BLOCK_NONE };

				/* Both see the latest time, so that none of what follows does. */
				assert_int_equal(kvp_evict_request(e[k], &req, now), 0);
				kvp_evict_access(e[k], id, at[k]);
				req = (struct kvp_evict_request){ .tip = parent, .blocks = 3 };
				assert_int_equal(kvp_evict_request(e[k], &req, at[k]), 0);
				if (parent != KVP_BLOCK_NONE)
					kvp_evict_access_chain(e[k], parent, at[k]);
				if (!kvp_evict_contains(e[k], id))
					put(e[k], id, parent, at[k]);
				n[k] = 0;
				if (kvp_evict_len(e[k]) > IDS / 2)
					n[k] = kvp_evict_victims(
						e[k], 4, 0, NULL, NULL, at[k], out[k], 8);
				for (size_t v = 0; v < n[k]; v++)
					kvp_evict_remove(e[k], out[k][v], 1, at[k]);
			}
			assert_int_equal(n[0], n[1]);
			assert_memory_equal(out[0], out[1], n[0] * sizeof(out[0][0]));
		}
		kvp_evict_free(e[0]);
		kvp_evict_free(e[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bad_parameters),
		cmocka_unit_test(test_lru_order_and_peek),
		cmocka_unit_test(test_bytes_wanted),
		cmocka_unit_test(test_leaf_first),
		cmocka_unit_test(test_offer_withdrawn),
		cmocka_unit_test(test_patience),
		cmocka_unit_test(test_hooks),
		cmocka_unit_test(test_e015_lru_of_leaves),
		cmocka_unit_test(test_e015_frequency_by_policy),
		cmocka_unit_test(test_ingestion),
		cmocka_unit_test(test_gdsf_requantised),
		cmocka_unit_test(test_admitted_is_another),
		cmocka_unit_test(test_several_are_on_their_way),
		cmocka_unit_test(test_batch_and_name),
		cmocka_unit_test(test_second_tier),
		cmocka_unit_test(test_chain_in_pieces),
		cmocka_unit_test(test_chain_that_went),
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_time_runs_backwards),
		cmocka_unit_test(test_random_operations_in_bytes),
		cmocka_unit_test(test_random_operations),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
