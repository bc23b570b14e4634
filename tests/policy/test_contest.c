/* SPDX-License-Identifier: Apache-2.0 */
/* The policy contest: shadows, following one of them, and taking charge. */
#include "policy/evict_contest.h"
#include "tests/policy/evict_test.h"

/* ---- one algorithm after another in charge ---- */

#define WIDE    12000u
#define WIDE_ID (WIDE + 400u)
#define CHAINS  4000u

struct wide {
	struct kvp_evict *e;
	kvp_block_id free[WIDE_ID], tip[CHAINS];
	uint32_t n_free;
	kvp_block_id held;
};

static int is_held(void *ctx, kvp_block_id id)
{
	return id == ((const struct wide *)ctx)->held;
}

static void wide_evict(struct wide *w, uint64_t n, uint64_t now)
{
	kvp_block_id out[512];

	n = kvp_evict_victims(w->e, n, 0, is_held, w, now, out, 512);
	for (size_t i = 0; i < n; i++) {
		assert_int_not_equal(out[i], w->held);
		assert_int_equal(kvp_evict_remove(w->e, out[i], 1, now), 0);
		w->free[w->n_free++] = out[i];
	}
}

/* One prompt of a conversation below a system prompt that all share. */
static void wide_prompt(struct wide *w, kvp_block_id root, uint64_t now)
{
	uint32_t chain = below(CHAINS), fresh = 1 + below(40);
	kvp_block_id parent = w->tip[chain];

	/* what was evicted may have another's id by now, which is as good a tip */
	if (!kvp_evict_contains(w->e, parent) || below(8) == 0)
		parent = root;
	struct kvp_evict_info info;
	assert_int_equal(kvp_evict_peek(w->e, parent, &info), 0);
	struct kvp_evict_request req = {
		.tip = parent, .matched = info.depth + 1, .blocks = info.depth + 1 + fresh
	};
	assert_int_equal(kvp_evict_request(w->e, &req, now), 0);
	assert_int_equal(kvp_evict_access_chain(w->e, parent, now), 0);
	w->held = parent;
	for (uint32_t i = 0; i < fresh; i++) {
		struct kvp_evict_item item = {
			.parent = parent,
			.bytes = 1,
			.depth = info.depth + 1 + i,
			.flags = i + 1 == fresh ? KVP_EVICT_PARTIAL : 0,
			.key = { .lo = chain * 4096ull + info.depth + i, .hi = 3 },
		};
		kvp_block_id id = w->free[--w->n_free];
		assert_int_equal(kvp_evict_insert(w->e, id, &item, now), 0);
		w->held = parent = id;
	}
	w->tip[chain] = parent;
}

static void test_changes_hands(void **state)
{
	(void)state;
	static struct wide w;
	uint64_t items, bytes;

	random_seed(random_print_seed());
	w.e = make("contest", WIDE, 0, WIDE_ID);
	for (uint32_t id = 1; id < WIDE_ID; id++)
		w.free[w.n_free++] = id;
	put(w.e, 0, KVP_BLOCK_NONE, 0);
	for (unsigned i = 1; i <= 20000; i++) {
		wide_prompt(&w, 0, i * 1000000ull);
		kvp_evict_excess(w.e, &items, &bytes);
		wide_evict(&w, items, i * 1000000ull);
		if (below(300) == 0)
			contest_favour(w.e, below(64));
		if (below(2000) == 0) /* down, and up again, which begins another sample */
			assert_int_equal(kvp_evict_resize(w.e, 500 + below(WIDE - 500), 0), 0);
		while (kvp_evict_excess(w.e, &items, &bytes), items)
			wide_evict(&w, items < 512 ? items : 512, i * 1000000ull);
		if (i % 500 == 0)
			assert_int_equal(kvp_evict_assert_consistency(w.e), 0);
	}
	kvp_evict_free(w.e);
}

#define POPULAR 400u /* documents */
#define SCANNED 20000u

/* Popular documents (Zipf, exponent .8), and after 600 requests each time a scan of 400. Returns
 * hits. */
static unsigned between_scans(struct kvp_evict *e, uint64_t seed)
{
	unsigned hits = 0, scanned = 0;

	random_seed(seed);
	for (uint64_t i = 0; i < 100000; i++) {
		double u = below(1000000) / 1e6;
		kvp_block_id id = (kvp_block_id)(POPULAR * u * u * u * u * u), out;
		if (i % 1000 >= 600)
			id = POPULAR + scanned++ % SCANNED;
		bool hit = kvp_evict_contains(e, id);
		struct kvp_evict_request req = {
			.tip = hit ? id : KVP_BLOCK_NONE, .matched = hit, .blocks = 1
		};

		assert_int_equal(kvp_evict_request(e, &req, i * 1000), 0);
		if (hit)
			assert_int_equal(kvp_evict_access_chain(e, id, i * 1000), 0);
		else
			put(e, id, KVP_BLOCK_NONE, i * 1000);
		hits += hit;
		if (kvp_evict_len(e) > 100) {
			assert_int_equal(
				kvp_evict_victims(e, 1, 0, NULL, NULL, i * 1000, &out, 1), 1);
			assert_int_equal(kvp_evict_remove(e, out, 1, i * 1000), 0);
		}
	}
	return hits;
}

/* E-056: where another algorithm hits more, the shadows tell, it takes charge, and that helps. */
static void test_best_takes_charge(void **state)
{
	(void)state;
	unsigned with = 0, without = 0;

	for (uint64_t seed = 1; seed <= 4; seed++) {
		struct kvp_evict_params p = {
			.size = sizeof(p), .items = 100, .max_ids = POPULAR + SCANNED, .seed = 1
		};
		struct kvp_evict *e = make("contest", 100, 0, POPULAR + SCANNED);

		with += between_scans(e, seed);
		kvp_evict_free(e);
		assert_int_equal(kvp_evict_new("hazard", &p, &e), 0);
		without += between_scans(e, seed);
		kvp_evict_free(e);
	}
	print_message("hits with the shadows %u, without %u\n", with, without);
	assert_true(with > without);
}

/* Bytes that the shadows take, beside what the algorithm takes by itself. */
static uint64_t shadow_bytes(uint32_t ids, uint32_t items)
{
	struct kvp_evict_params p = {
		.size = sizeof(p), .items = items, .max_ids = ids, .seed = 1
	};
	struct kvp_evict_memory all, own;
	struct kvp_evict *e;

	assert_int_equal(kvp_evict_new("contest", &p, &e), 0);
	kvp_evict_memory(e, &all);
	kvp_evict_free(e);
	assert_int_equal(kvp_evict_new("hazard", &p, &e), 0);
	kvp_evict_memory(e, &own);
	kvp_evict_free(e);
	print_message("%u ids: %.2f MB\n", ids, (double)(all.total - own.total) / 1e6);
	return all.total - own.total;
}

/* What kvp_evict.h says of it: most where a cache of 4,096 blocks is sampled whole. */
static void test_shadow_memory(void **state)
{
	(void)state;
	static const uint32_t few[] = { 1, 1023, 1024, 196609, 300000 };
	static const uint32_t many[] = { 4096, 4097, 196608 };

	for (size_t i = 0; i < sizeof(few) / sizeof(few[0]); i++)
		assert_in_range(shadow_bytes(few[i], few[i]), 2400000, 3200000);
	for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++)
		assert_in_range(shadow_bytes(many[i], many[i]), 4400000, 5000000);
	/* a small cache is sampled whole, however many ids there are */
	assert_in_range(shadow_bytes(300000, 4096), 4400000, 5200000);
}

/* Which algorithms may take charge; of a sampled cache they do so by name. */
static void test_who_may_take_charge(void **state)
{
	(void)state;
	static const char *const names[CONTEST_EXPERTS] = { "hazard", "s3-fifo", "s3-fifo-30",
		"sieve", "arc", "lru", "gdsf", "lfu-da" };
	const uint32_t n = CONTEST_EXPERTS;
	struct kvp_evict *e = make("contest", WIDE, 0, WIDE + 8);
	kvp_block_id out;

	for (uint32_t id = 0; id < WIDE; id++)
		put(e, id, KVP_BLOCK_NONE, id);
	for (uint32_t i = n; i-- > 0;) {
		contest_favour(e, i);
		assert_int_equal(kvp_evict_victims(e, 1, 0, NULL, NULL, WIDE, &out, 1), 1);
		assert_string_equal(e->ops->name, names[i]);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
	}
	kvp_evict_free(e);
}

#define OBJECTS    2000u
#define S3_FIFO    1u /* among those that may take over */
#define N_REQUESTS 40000u

/* Popular objects, each of its own size if `sized`. Tells before room is made. Returns hits. */
static unsigned objects(struct kvp_evict *e, bool sized, bool followed)
{
	unsigned hits = 0;

	random_seed(11);
	for (uint64_t i = 0; i < N_REQUESTS; i++) {
		kvp_block_id id = below(1 + below(1 + below(OBJECTS))), out[64];
		struct kvp_evict_item item = {
			.parent = KVP_BLOCK_NONE,
			.bytes = sized ? 1u << id % 8 : 1,
			.key = { .lo = id + 1 },
		};
		uint64_t room = e->params.bytes - item.bytes;

		if (followed)
			contest_favour(e, S3_FIFO);
		if (kvp_evict_contains(e, id)) {
			hits += i >= N_REQUESTS / 2;
			kvp_evict_access(e, id, i);
			continue;
		}
		if (!kvp_evict_admit(e, &item, i))
			continue;
		while (kvp_evict_bytes(e) > room) {
			size_t n = kvp_evict_victims(
				e, 0, kvp_evict_bytes(e) - room, NULL, NULL, i, out, 64);
			for (size_t k = 0; k < n; k++)
				kvp_evict_remove(e, out[k], 1, i);
		}
		kvp_evict_insert(e, id, &item, i);
	}
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
	return hits;
}

/* Who is in charge of a small cache gets what it would have had all along, once it has turned over.
 */
static void test_follows_to_the_block(void **state)
{
	(void)state;
	for (unsigned sized = 0; sized < 2; sized++) {
		uint64_t bytes = sized ? 2000 : 60;
		unsigned followed = objects(make("contest", 0, bytes, OBJECTS), sized, true);
		unsigned itself = objects(make("s3-fifo", 0, bytes, OBJECTS), sized, false);

		print_message("hits %u, by itself %u\n", followed, itself);
		assert_in_range(followed, itself - itself / 200, itself + itself / 200);
	}
}

/* Several are admitted before the first of them is there: each is one use, whatever lies between. */
static void test_several_are_expected(void **state)
{
	(void)state;
	struct kvp_evict *e = make("contest", 1000, 0, OBJECTS);
	struct evict_contest *c = e->contest;

	c->begun = true; /* as if it were full */
	for (uint32_t round = 1; round <= 2; round++) {
		uint32_t n = round == 1 ? 2 : CONTEST_EXPECTED;

		for (uint32_t i = 0; i < 2 * n; i++) {
			struct kvp_evict_item item = { .parent = KVP_BLOCK_NONE,
				.bytes = 1,
				.key = { .lo = round * 1000 + i % n } };

			if (i < n)
				assert_true(kvp_evict_admit(e, &item, round));
			else
				assert_int_equal(kvp_evict_insert(e, (round - 1) * 1000 + i % n,
							 &item, round),
					0);
		}
		contest_flush(c);
		assert_int_equal(c->n_expected, 0);
		for (uint32_t i = 0; i < CONTEST_EXPERTS; i++)
			for (uint32_t s = 0; s < CONTEST_STRATA; s++)
				assert_true(c->shadow[i].score[s] == 0);
	}
	/* What was admitted and never came makes room, and is used once when it does come. */
	for (uint32_t i = 0; i < 3 * CONTEST_EXPECTED; i++) {
		struct kvp_evict_item item = {
			.parent = KVP_BLOCK_NONE, .bytes = 1, .key = { .lo = 90000 + i }
		};

		assert_true(kvp_evict_admit(e, &item, 9));
		assert_true(c->n_expected <= CONTEST_EXPECTED);
	}
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
}

#define LRU 5u /* among those that may take over */

/* Popular blocks below one that stays; told of as requests. Returns hits of the second half. */
static unsigned below_a_root(struct kvp_evict *e, uint64_t items, bool followed)
{
	unsigned hits = 0;

	random_seed(13);
	for (uint64_t i = 0; i < N_REQUESTS; i++) {
		kvp_block_id id = 1 + below(1 + below(1 + below(OBJECTS))), out[64];
		uint64_t excess, bytes;
		bool hit = kvp_evict_contains(e, id);
		struct kvp_evict_request req = {
			.tip = hit ? id : 0, .matched = 1 + hit, .blocks = 2
		};

		if (i == 100)
			assert_int_equal(kvp_evict_resize(e, items, 0), 0);
		if (followed)
			contest_favour(e, LRU);
		assert_int_equal(kvp_evict_request(e, &req, i), 0);
		assert_int_equal(kvp_evict_access_chain(e, req.tip, i), 0);
		if (hit)
			hits += i >= N_REQUESTS / 2;
		else
			put(e, id, 0, i);
		while (kvp_evict_excess(e, &excess, &bytes), excess) {
			size_t n = kvp_evict_victims(e, excess, 0, NULL, NULL, i, out, 64);
			for (size_t k = 0; k < n; k++)
				assert_int_equal(kvp_evict_remove(e, out[k], 1, i), 0);
		}
	}
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
	return hits;
}

/* What was outside the sample is seen once the cache is small enough to be sampled whole. */
static void test_follows_after_resize(void **state)
{
	(void)state;
	for (uint64_t key = 1; key <= 4; key++) {
		struct kvp_evict_item root = { .parent = KVP_BLOCK_NONE, .key = { .hi = key } };
		struct kvp_evict *e[2] = { make("contest", 100000, 0, 6000),
			make("lru", 100000, 0, 6000) };

		for (int k = 0; k < 2; k++)
			assert_int_equal(kvp_evict_insert(e[k], 0, &root, 0), 0);
		unsigned followed = below_a_root(e[0], 60, true);
		unsigned itself = below_a_root(e[1], 60, false);
		print_message("hits %u, by itself %u\n", followed, itself);
		assert_in_range(followed, itself - itself / 200, itself + itself / 200);
	}
}

/* Long documents, read from the front. Returns blocks hit in the second half. */
static uint64_t documents(struct kvp_evict *e, uint32_t n, uint32_t length)
{
	uint64_t hits = 0, excess, bytes;
	kvp_block_id out[64];

	random_seed(17);
	for (uint64_t i = 0; i < 400; i++) {
		kvp_block_id first = below(1 + below(n)) * length, end = first + length, id = first;
		struct kvp_evict_request req = { .tip = KVP_BLOCK_NONE, .blocks = length };

		while (id < end && kvp_evict_contains(e, id))
			req.tip = id++;
		req.matched = id - first;
		hits += i < 200 ? 0 : req.matched;
		assert_int_equal(kvp_evict_request(e, &req, i), 0);
		if (req.matched)
			assert_int_equal(kvp_evict_access_chain(e, req.tip, i), 0);
		for (; id < end; id++)
			put(e, id, id > first ? id - 1 : KVP_BLOCK_NONE, i);
		while (kvp_evict_excess(e, &excess, &bytes), excess) {
			size_t k = kvp_evict_victims(e, excess, 0, NULL, NULL, i, out, 64);
			for (size_t v = 0; v < k; v++)
				assert_int_equal(kvp_evict_remove(e, out[v], 1, i), 0);
		}
		if (i % 20 == 0)
			assert_int_equal(kvp_evict_assert_consistency(e), 0);
	}
	kvp_evict_free(e);
	return hits;
}

/* Documents as long as a shadow, and such as it has no room for beside what it holds. */
static void test_long_prompts(void **state)
{
	(void)state;
	static const struct {
		uint32_t ids, items, n, length;
	} c[] = {
		{ 20000, 4096, 10, 1500 },
		{ 20000, 4096, 4, 4096 },
		{ 200000, 1024, 10, 300 },
		{ 200000, 1024, 10, 900 },
		{ 200000, 1024, 4, 3000 },
	};

	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		uint64_t ours =
			documents(make("contest", c[i].items, 0, c[i].ids), c[i].n, c[i].length);
		uint64_t lru = documents(make("lru", c[i].items, 0, c[i].ids), c[i].n, c[i].length);

		print_message(
			"hits %llu, lru %llu\n", (unsigned long long)ours, (unsigned long long)lru);
		assert_true(ours >= lru);
	}
}

/* A chain as long as a shadow leaves all shadows, or stays in them, when the sample gets smaller.
 */
static void test_sample_leaves_whole(void **state)
{
	(void)state;
	const uint32_t n = 4096;

	for (uint64_t key = 1; key <= 4; key++) {
		struct kvp_evict *e = make("contest", n, 0, 2 * n);
		struct kvp_evict_item item = { .parent = KVP_BLOCK_NONE, .key = { .hi = key } };

		for (; item.depth < n; item.parent = item.depth++) {
			item.key.lo = item.depth;
			assert_int_equal(kvp_evict_insert(e, item.depth, &item, 0), 0);
		}
		assert_int_equal(kvp_evict_resize(e, 100000, 0), 0);
		assert_int_equal(kvp_evict_assert_consistency(e), 0);
		kvp_evict_free(e);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_changes_hands),
		cmocka_unit_test(test_best_takes_charge),
		cmocka_unit_test(test_shadow_memory),
		cmocka_unit_test(test_who_may_take_charge),
		cmocka_unit_test(test_follows_to_the_block),
		cmocka_unit_test(test_several_are_expected),
		cmocka_unit_test(test_follows_after_resize),
		cmocka_unit_test(test_long_prompts),
		cmocka_unit_test(test_sample_leaves_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
