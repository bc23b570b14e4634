/* SPDX-License-Identifier: Apache-2.0 */
/* The policy hazard: what it learns, and what it must not be misled by. */
#include "policy/evict_hazard.h"
#include "tests/policy/evict_test.h"

#define DOCS 400u
#define ROOM 40u

/*
 * Requests for single blocks, the popular ones most often, `gap` apart. Returns hits; adds what was
 * evicted to ret_order, so that two runs can be compared.
 */
static unsigned popular(const char *name, uint64_t gap, uint64_t *ret_order)
{
	struct kvp_evict *e = make(name, ROOM, 0, DOCS);
	unsigned hits = 0;

	random_seed(7);
	for (uint64_t i = 0; i < 20000; i++) {
		kvp_block_id id = below(1 + below(1 + below(DOCS))), out;
		if (kvp_evict_contains(e, id)) {
			hits++;
			assert_int_equal(kvp_evict_access_chain(e, id, i * gap), 0);
		} else {
			put(e, id, KVP_BLOCK_NONE, i * gap);
		}
		if (kvp_evict_len(e) <= ROOM)
			continue;
		assert_int_equal(kvp_evict_victims(e, 1, 0, NULL, NULL, i * gap, &out, 1), 1);
		assert_int_equal(kvp_evict_remove(e, out, 1, i * gap), 0);
		*ret_order = *ret_order * 31 + out;
	}
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
	return hits;
}

/* A request that was announced and met nothing begins once, not again with its first block. */
static void test_announced_once(void **state)
{
	(void)state;
	struct kvp_evict *e[2];
	struct kvp_evict_params p = {
		.size = sizeof(p), .items = ROOM, .max_ids = DOCS, .seed = 1
	};

	random_seed(random_print_seed());
	for (int k = 0; k < 2; k++)
		assert_int_equal(kvp_evict_new("hazard", &p, &e[k]), 0);
	for (uint64_t i = 1, now = 0; i < 20000; i++) {
		kvp_block_id id = below(1 + below(1 + below(DOCS))), out[2];
		bool hit = kvp_evict_contains(e[0], id), full = kvp_evict_len(e[0]) == ROOM;

		now += below(2000);
		for (int k = 0; k < 2; k++) {
			struct kvp_evict_request req = {
				.tip = hit ? id : KVP_BLOCK_NONE, .matched = hit, .blocks = 1
			};
			if (k == 0)
				assert_int_equal(kvp_evict_request(e[k], &req, now), 0);
			if (hit) {
				kvp_evict_access(e[k], id, now);
				continue;
			}
			put(e[k], id, KVP_BLOCK_NONE, now);
			if (!full)
				continue;
			assert_int_equal(
				kvp_evict_victims(e[k], 1, 0, NULL, NULL, now, &out[k], 1), 1);
			assert_int_equal(kvp_evict_remove(e[k], out[k], 1, now), 0);
		}
		if (!hit && full)
			assert_int_equal(out[0], out[1]);
	}
	kvp_evict_free(e[0]);
	kvp_evict_free(e[1]);
}

/* Which inserts and uses begin a request, when some were announced and others come between. */
static void test_begins_once(void **state)
{
	(void)state;
	struct kvp_evict_params p = { .size = sizeof(p), .items = 64, .max_ids = 64, .seed = 1 };
	struct kvp_evict_request missed = { .tip = KVP_BLOCK_NONE, .blocks = 2 };
	struct kvp_evict_request met = { .tip = 0, .blocks = 2, .matched = 1 };
	const struct hazard *h;
	struct kvp_evict *e;

	assert_int_equal(kvp_evict_new("hazard", &p, &e), 0);
	h = e->self;
	assert_int_equal(kvp_evict_request(e, &missed, 1), 0);
	put(e, 0, KVP_BLOCK_NONE, 1);
	put(e, 1, 0, 1);
	assert_int_equal(h->requests, 1);
	put(e, 2, KVP_BLOCK_NONE, 2); /* of one that was not announced */
	assert_int_equal(h->requests, 2);
	assert_int_equal(kvp_evict_request(e, &missed, 3), 0);
	assert_int_equal(kvp_evict_access_chain(e, 1, 3), 0); /* of another */
	put(e, 3, KVP_BLOCK_NONE, 3);
	assert_int_equal(h->requests, 5);
	assert_int_equal(kvp_evict_request(e, &met, 4), 0);
	assert_int_equal(kvp_evict_access_chain(e, 0, 4), 0);
	assert_int_equal(h->requests, 6);
	put(e, 4, KVP_BLOCK_NONE, 4);
	assert_int_equal(h->requests, 7);
	assert_int_equal(kvp_evict_request(e, &missed, 5), 0); /* and nothing of it comes */
	assert_int_equal(kvp_evict_request(e, &missed, 6), 0);
	put(e, 5, KVP_BLOCK_NONE, 6);
	assert_int_equal(h->requests, 9);
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
}

#define OBJECTS    2000u
#define N_REQUESTS 40000u

/* Popular objects of unequal size. Room is made before they come. Returns hits. */
static unsigned objects(struct kvp_evict *e)
{
	unsigned hits = 0;

	random_seed(11);
	for (uint64_t i = 0; i < N_REQUESTS; i++) {
		kvp_block_id id = below(1 + below(1 + below(OBJECTS))), out[64];
		struct kvp_evict_item item = {
			.parent = KVP_BLOCK_NONE,
			.bytes = 1u << id % 8,
			.key = { .lo = id + 1 },
		};
		uint64_t room = e->params.bytes - item.bytes;

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

/* Documents of which few fit into the cache, or that fill it. */
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
			documents(make("hazard", c[i].items, 0, c[i].ids), c[i].n, c[i].length);
		uint64_t lru = documents(make("lru", c[i].items, 0, c[i].ids), c[i].n, c[i].length);

		print_message(
			"hits %llu, lru %llu\n", (unsigned long long)ours, (unsigned long long)lru);
		assert_true(ours >= lru);
	}
}

/* Where bytes bound the cache, small objects are worth more than large ones. */
static void test_counts_bytes(void **state)
{
	(void)state;
	static const char *const others[] = { "lru", "gdsf", "s3-fifo" };
	unsigned ours = objects(make("hazard", 0, 4000, OBJECTS));

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		unsigned hits = objects(make(others[i], 0, 4000, OBJECTS));
		print_message("hits %u, %s %u\n", ours, others[i], hits);
		assert_true(ours > hits);
	}
}

/* A clock that stands still, and one of any unit that ticks evenly, lead to the same decisions. */
static void test_clock_cannot_mislead(void **state)
{
	(void)state;
	static const uint64_t gaps[] = { 1, 1000, UINT64_C(60000000000) };
	uint64_t still = 0;

	popular("hazard", 0, &still);
	for (size_t i = 0; i < sizeof(gaps) / sizeof(gaps[0]); i++) {
		uint64_t order = 0;
		popular("hazard", gaps[i], &order);
		assert_int_equal(order, still);
	}
}

/* Where blocks differ in nothing but how often they are used, it finds that out. */
static void test_counts_uses(void **state)
{
	(void)state;
	uint64_t order = 0;
	unsigned ours = popular("hazard", 5, &order);
	unsigned lru = popular("lru", 5, &order);

	print_message("%u hits, lru %u\n", ours, lru);
	assert_true(ours > lru + lru / 20);
}

/* Every code is of one class, the codes of the kinds adjoin, and no coordinate leaves its kind. */
static void test_classes(void **state)
{
	(void)state;
	uint32_t next = 0;

	for (enum hazard_kind kind = 0; kind < KINDS; kind++) {
		const struct hazard_kind_codes *k = &hazard_codes[kind];

		assert_int_equal(k->first, next);
		assert_in_range(k->family, 0, FAMILIES - 1);
		for (uint32_t major = 0; major < k->majors; major++)
			for (uint32_t minor = 0; minor < k->minors; minor++, next++) {
				struct hazard_class c = { kind, major, minor }, back;

				assert_int_equal(hazard_encode(c), next);
				back = hazard_decode((uint8_t)next);
				assert_int_equal(back.kind, kind);
				assert_int_equal(back.major, major);
				assert_int_equal(back.minor, minor);
				assert_int_equal(hazard_family(back), k->family);
			}
		struct hazard_class beyond = { kind, 1000, UINT32_MAX };
		assert_int_equal(hazard_encode(beyond), next - 1);
	}
	assert_int_equal(next, CLASSES);
}

/* ---- the longest that one call may take ---- */

/*
 * Chains that grow side by side, so that every block is of another request than its parent and the
 * parents are all older: a search for a tip would meet them first.
 */
static void test_finds_a_tip_at_once(void **state)
{
	(void)state;
	enum { ABREAST = 300, DEPTH = 40, N = ABREAST * DEPTH };
	static uint8_t where[N];
	struct kvp_evict *e = make("hazard", N, 0, N);
	kvp_block_id victim;
	unsigned moved = 0;

	for (kvp_block_id id = 0; id < N; id++)
		put(e, id, id < ABREAST ? KVP_BLOCK_NONE : id - ABREAST, id * 1000ull);
	for (kvp_block_id id = 0; id < N; id++)
		where[id] = e->node[id].where;
	assert_int_equal(kvp_evict_victims(e, 1, 0, NULL, NULL, N * 1000ull, &victim, 1), 1);
	assert_true(victim >= N - ABREAST);
	for (kvp_block_id id = 0; id < N; id++)
		moved += where[id] != e->node[id].where;
	print_message("%u of %u blocks moved for one victim\n", moved, (unsigned)N);
	assert_in_range(moved, 1, 2); /* it, and its parent */
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
}

static unsigned groups_moved(const struct hazard *h, uint8_t *bin)
{
	unsigned moved = 0;

	for (uint32_t i = 0; i < h->n_groups; i++) {
		moved += h->group[i].total && h->group[i].bin != bin[i];
		bin[i] = h->group[i].bin;
	}
	return moved;
}

/* Thousands of groups of one age get older at once; a call moves so many of them at most. */
static void test_ages_by_and_by(void **state)
{
	(void)state;
	enum { N = 4000, IDS = 40000, AT_ONCE = 1024 };
	static uint8_t bin[IDS];
	struct kvp_evict *e = make("hazard", 0, 1 << 30, IDS);
	const struct hazard *h = e->self;
	struct kvp_evict_request req = { .tip = KVP_BLOCK_NONE, .blocks = N };
	unsigned most = 0;

	assert_int_equal(kvp_evict_request(e, &req, 1), 0);
	put(e, 0, KVP_BLOCK_NONE, 1);
	for (kvp_block_id id = 1; id < N; id++) {
		/* two sizes that are told apart, but not by the place of their newest group */
		struct kvp_evict_item item = { .parent = 0,
			.bytes = id % 2 ? 16 : 256,
			.flags = KVP_EVICT_PARTIAL,
			.key = { .lo = id + 1 } };
		assert_int_equal(kvp_evict_insert(e, id, &item, 1), 0);
	}
	assert_true(h->n_used >= N - 1);
	groups_moved(h, bin);
	for (uint64_t now = 2; now < 4000; now++) {
		unsigned moved;
		assert_int_equal(kvp_evict_request(e, &req, now), 0);
		moved = groups_moved(h, bin);
		most = moved > most ? moved : most;
	}
	print_message("%u of %u groups moved in one call\n", most, h->n_used);
	assert_in_range(most, 1, AT_ONCE);
	assert_int_equal(h->group[e->node[1].home].bin, h->group[e->node[N - 1].home].bin);
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
}

/* Evicting from a cache that has become small does not count on all that the large one left. */
static void test_counts_few_ghosts_on(void **state)
{
	(void)state;
	enum { N = 60000, AT_ONCE = 32 };
	struct kvp_evict *e = make("hazard", N, 0, N);
	const struct hazard *h = e->self;
	kvp_block_id out[64];
	uint32_t most = 0;

	for (kvp_block_id id = 0; id < N; id++)
		put(e, id, KVP_BLOCK_NONE, id);
	while (kvp_evict_len(e)) {
		size_t n = kvp_evict_victims(e, 64, 0, NULL, NULL, N, out, 64);

		for (size_t i = 0; i < n; i++) {
			uint32_t places = evict_ghosts_places(e->ghosts), from = h->ghost;

			assert_int_equal(kvp_evict_remove(e, out[i], 1, N), 0);
			uint32_t steps = (h->ghost + places - from) % (places ? places : 1);
			most = steps > most ? steps : most;
		}
	}
	print_message("%u of %u ghosts counted on by one removal\n", most,
		evict_ghosts_places(e->ghosts));
	assert_in_range(most, 1, AT_ONCE);
	kvp_evict_free(e);
}

/* ---- lessons ---- */

enum { ALONE, IN_TIME, LATE, PUPILS };

/* Instances that are told the same, two of which learn by lessons. */
struct school {
	struct kvp_evict *e[PUPILS];
	struct kvp_evict_lesson *lesson[PUPILS];
	unsigned lessons;       /* IN_TIME's */
	bool asked;             /* LATE's is to be worked out */
	uint64_t order[PUPILS]; /* of all that went so far */
	unsigned hits[PUPILS];
};

static void learn_in_time(struct school *s)
{
	if (!kvp_evict_lesson_ask(s->e[IN_TIME], s->lesson[IN_TIME]))
		return;
	kvp_evict_lesson_learn(s->lesson[IN_TIME]);
	kvp_evict_lesson_use(s->e[IN_TIME], s->lesson[IN_TIME]);
	s->lessons++;
}

static void learn_late(struct school *s, bool now)
{
	if (!s->asked)
		s->asked = kvp_evict_lesson_ask(s->e[LATE], s->lesson[LATE]);
	if (!s->asked || !now)
		return;
	kvp_evict_lesson_learn(s->lesson[LATE]);
	kvp_evict_lesson_use(s->e[LATE], s->lesson[LATE]);
	s->asked = false;
}

static void school_request(struct school *s, int k, kvp_block_id id, uint64_t now)
{
	kvp_block_id out;

	if (kvp_evict_contains(s->e[k], id)) {
		s->hits[k]++;
		assert_int_equal(kvp_evict_access_chain(s->e[k], id, now), 0);
	} else {
		put(s->e[k], id, KVP_BLOCK_NONE, now);
	}
	if (kvp_evict_len(s->e[k]) <= ROOM)
		return;
	if (k == IN_TIME)
		learn_in_time(s);
	assert_int_equal(kvp_evict_victims(s->e[k], 1, 0, NULL, NULL, now, &out, 1), 1);
	assert_int_equal(kvp_evict_remove(s->e[k], out, 1, now), 0);
	s->order[k] = s->order[k] * 31 + out;
}

/*
 * Who learns from a lesson in time decides as one that learns by itself. While nobody works the
 * lesson out, what was known before stands; what is learnt late counts from then on.
 */
static void test_lesson(void **state)
{
	(void)state;
	enum { REQUESTS_TOLD = 60000, LATE_FROM = REQUESTS_TOLD / 3 };
	struct school s = { .lessons = 0 };
	struct kvp_evict_lesson *another = NULL;
	unsigned before[PUPILS] = { 0 };

	for (int k = 0; k < PUPILS; k++)
		s.e[k] = make("hazard", ROOM, 0, DOCS);
	for (int k = IN_TIME; k < PUPILS; k++) {
		assert_int_equal(kvp_evict_lesson_new(s.e[k], &s.lesson[k]), 0);
		assert_int_equal(kvp_evict_lesson_new(s.e[k], &another), -EBUSY);
		assert_int_equal(kvp_evict_lesson_ask(s.e[k], s.lesson[k]), 0);
	}
	random_seed(random_print_seed());
	for (uint64_t i = 0; i < REQUESTS_TOLD; i++) {
		/* half of them is a scan, which whoever learns leaves to itself */
		kvp_block_id id = below(2) ? below(ROOM) : ROOM + (kvp_block_id)(i % (DOCS - ROOM));

		for (int k = 0; k < PUPILS; k++)
			school_request(&s, k, id, i * 1000);
		assert_true(s.order[IN_TIME] == s.order[ALONE]);
		learn_late(&s, i > LATE_FROM && i % 100 == 0);
		if (i == LATE_FROM)
			memcpy(before, s.hits, sizeof(before));
		for (int k = 0; i % 1000 == 0 && k < PUPILS; k++)
			assert_int_equal(kvp_evict_assert_consistency(s.e[k]), 0);
	}
	print_message("%u lessons; hits %u, in time %u, late %u; first third %u, %u, %u\n",
		s.lessons, s.hits[ALONE], s.hits[IN_TIME], s.hits[LATE], before[ALONE],
		before[IN_TIME], before[LATE]);
	assert_true(s.lessons > 10);
	assert_true(before[LATE] < before[IN_TIME]);
	/* two thirds of the requests, and nearly as many hits as those who always knew */
	assert_true(s.hits[LATE] - before[LATE] > (s.hits[ALONE] - before[ALONE]) / 20 * 19);
	for (int k = 0; k < PUPILS; k++) {
		assert_null(kvp_evict_free(s.e[k]));
		assert_null(kvp_evict_lesson_free(s.lesson[k]));
	}
}

static void test_lesson_of_others(void **state)
{
	(void)state;
	struct kvp_evict_lesson *l = NULL;
	const char *name;

	for (size_t i = 0; (name = kvp_evict_names(i, NULL)); i++) {
		struct kvp_evict *e = make(name, ROOM, 0, DOCS);
		int r = kvp_evict_lesson_new(e, &l);

		assert_int_equal(r, strcmp(name, "hazard") ? -EOPNOTSUPP : 0);
		kvp_evict_free(e);
	}
	assert_in_range(kvp_evict_lesson_memory(l), 1, 100000);
	kvp_evict_lesson_free(l);
	kvp_evict_lesson_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_classes),
		cmocka_unit_test(test_finds_a_tip_at_once),
		cmocka_unit_test(test_ages_by_and_by),
		cmocka_unit_test(test_counts_few_ghosts_on),
		cmocka_unit_test(test_announced_once),
		cmocka_unit_test(test_begins_once),
		cmocka_unit_test(test_counts_uses),
		cmocka_unit_test(test_counts_bytes),
		cmocka_unit_test(test_long_prompts),
		cmocka_unit_test(test_clock_cannot_mislead),
		cmocka_unit_test(test_lesson),
		cmocka_unit_test(test_lesson_of_others),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
