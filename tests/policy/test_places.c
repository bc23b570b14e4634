/* SPDX-License-Identifier: Apache-2.0 */
/* Instances with fewer places than ids, beside instances whose ids are the places. */
#include "policy/evict_places.h"
#include "tests/policy/evict_test.h"

#define PLACES 64u
#define NAMES  160u /* blocks that the workload knows */
#define IDS    KVP_EVICT_MAX_IDS

/* What a map has to do, without one: a place for each id that is there, the last one given first. */
struct model {
	uint32_t n, fresh, n_free;
	kvp_block_id id[PLACES];
	bool taken[PLACES];
	uint32_t free[PLACES];
};

static uint32_t model_find(const struct model *m, kvp_block_id id)
{
	for (uint32_t i = 0; i < m->fresh; i++)
		if (m->taken[i] && m->id[i] == id)
			return i;
	return EVICT_PLACE_NONE;
}

static uint32_t model_take(struct model *m, kvp_block_id id)
{
	uint32_t i = m->n_free         ? m->free[--m->n_free]
		     : m->fresh < m->n ? m->fresh++
				       : EVICT_PLACE_NONE;

	if (i == EVICT_PLACE_NONE)
		return i;
	m->id[i] = id;
	m->taken[i] = true;
	return i;
}

static void model_give(struct model *m, uint32_t place)
{
	m->taken[place] = false;
	m->free[m->n_free++] = place;
}

/* Ids near to each other, far from each other, and those that a power of two divides. */
static kvp_block_id some_id(uint32_t name)
{
	switch (name % 3) {
	case 0:
		return name;
	case 1:
		return IDS - 1 - name;
	default:
		return name << 22;
	}
}

static void test_places(void **state)
{
	(void)state;
	uint64_t seed = random_print_seed();

	for (uint32_t n = 1; n <= PLACES; n++) {
		struct evict_places *p = evict_places_new(n, seed);
		struct model m = { .n = n };
		uint32_t taken = 0;

		assert_non_null(p);
		random_seed(seed + n);
		for (uint32_t step = 0; step < 5000; step++) {
			kvp_block_id id = some_id(below(NAMES));
			uint32_t place = evict_places_find(p, id);

			assert_int_equal(place, model_find(&m, id));
			if (place == EVICT_PLACE_NONE) {
				place = evict_places_take(p, id);
				assert_int_equal(place, model_take(&m, id));
				taken += place != EVICT_PLACE_NONE;
			} else {
				assert_int_equal(evict_places_id(p, place), id);
				evict_places_give(p, place);
				model_give(&m, place);
				taken--;
			}
			assert_int_equal(evict_places_check(p, taken), 0);
		}
		assert_int_equal(evict_places_check(p, taken + 1), -EIO);
		evict_places_free(p);
	}
	evict_places_free(NULL);
}

/* ---- two instances that are told the same ---- */

struct twins {
	struct kvp_evict *mapped, *plain;
	struct model m;
	bool held[NAMES];
};

static struct kvp_evict *instance(const char *name, uint32_t ids, uint32_t blocks)
{
	struct kvp_evict_params p = {
		.size = sizeof(p),
		.items = PLACES * 3 / 4,
		.max_ids = ids,
		.max_blocks = blocks,
		.steps = 40,
		.seed = 5,
	};
	struct kvp_evict *e = NULL;

	assert_int_equal(kvp_evict_new(name, &p, &e), 0);
	return e;
}

/* As the twin knows it: a place, or an id that it has not. */
static uint32_t plain_id(const struct twins *t, kvp_block_id id)
{
	uint32_t i = id == KVP_BLOCK_NONE ? KVP_BLOCK_NONE : model_find(&t->m, id);

	return i == EVICT_PLACE_NONE && id != KVP_BLOCK_NONE ? PLACES : i;
}

static kvp_block_id mapped_id(const struct twins *t, uint32_t place)
{
	return place == KVP_BLOCK_NONE ? place : t->m.id[place];
}

static uint32_t held_name(kvp_block_id id)
{
	for (uint32_t name = 0; name < NAMES; name++)
		if (some_id(name) == id)
			return name;
	fail_msg("no block has the id %u", id);
	return 0;
}

static int mapped_is_held(void *ctx, kvp_block_id id)
{
	const struct twins *t = ctx;

	return t->held[held_name(id)];
}

static int plain_is_held(void *ctx, kvp_block_id place)
{
	const struct twins *t = ctx;

	return t->held[held_name(t->m.id[place])];
}

static void twins_insert(struct twins *t, uint64_t now)
{
	kvp_block_id id = some_id(below(NAMES)), parent = some_id(below(NAMES));
	struct kvp_evict_item item = {
		.parent = below(4) ? parent : KVP_BLOCK_NONE,
		.bytes = 1 + below(9),
		.tokens = 64,
		.depth = below(9),
		.flags = below(4) ? 0 : KVP_EVICT_PARTIAL,
		.cost = 1,
		.key = { .lo = below(3 * NAMES) },
	};
	uint32_t place = model_find(&t->m, id);
	int r = kvp_evict_insert(t->mapped, id, &item, now);

	item.parent = plain_id(t, item.parent);
	if (place != EVICT_PLACE_NONE) {
		assert_int_equal(r, -EEXIST);
	} else if (item.parent == PLACES) {
		assert_int_equal(r, -EINVAL);
	} else {
		place = model_take(&t->m, id);
		assert_int_equal(r, place == EVICT_PLACE_NONE ? -ENOSPC : 0);
		if (r == 0)
			assert_int_equal(kvp_evict_insert(t->plain, place, &item, now), 0);
	}
}

static void twins_use(struct twins *t, uint64_t now)
{
	kvp_block_id id = some_id(below(NAMES));
	uint32_t there = plain_id(t, id), n = 1 + below(3);
	struct kvp_evict_request a = { .tip = id, .blocks = 9, .matched = below(4) }, b = a;
	struct kvp_evict_walk u, v;

	b.tip = there;
	switch (below(4)) {
	case 0:
		assert_int_equal(kvp_evict_request(t->mapped, &a, now),
			kvp_evict_request(t->plain, &b, now));
		break;
	case 1:
		assert_int_equal(kvp_evict_access(t->mapped, id, now),
			kvp_evict_access(t->plain, there, now));
		break;
	case 2:
		assert_int_equal(kvp_evict_set_bytes(t->mapped, id, n),
			kvp_evict_set_bytes(t->plain, there, n));
		break;
	default:
		if (kvp_evict_access_begin(t->mapped, id, now, &u) < 0) {
			assert_int_equal(kvp_evict_access_begin(t->plain, there, now, &v), -ENOENT);
			break;
		}
		assert_int_equal(kvp_evict_access_begin(t->plain, there, now, &v), 0);
		for (int r = 1; r;) {
			assert_int_equal(u.next, mapped_id(t, v.next));
			r = kvp_evict_access_on(t->mapped, &u, n, now);
			assert_int_equal(kvp_evict_access_on(t->plain, &v, n, now), r);
		}
	}
}

static void twins_remove(struct twins *t, kvp_block_id id, int evicted, uint64_t now)
{
	uint32_t place = plain_id(t, id);
	int r = kvp_evict_remove(t->mapped, id, evicted, now);

	assert_int_equal(kvp_evict_remove(t->plain, place, evicted, now), r);
	if (r == 0)
		model_give(&t->m, place);
}

static void twins_evict(struct twins *t, uint64_t now)
{
	kvp_block_id out[2][16];
	uint32_t want = 1 + below(16);
	size_t n = kvp_evict_victims(t->mapped, want, 0, mapped_is_held, t, now, out[0], 16);

	assert_int_equal(
		kvp_evict_victims(t->plain, want, 0, plain_is_held, t, now, out[1], 16), n);
	assert_int_equal(kvp_evict_cut_short(t->mapped), kvp_evict_cut_short(t->plain));
	for (size_t i = 0; i < n; i++)
		assert_int_equal(out[0][i], mapped_id(t, out[1][i]));
	for (size_t i = 0; i < n; i++)
		if (below(4))
			twins_remove(t, out[0][i], 1, now);
}

static void twins_compare(const struct twins *t)
{
	kvp_block_id id = some_id(below(NAMES));
	struct kvp_evict_info a = { 0 }, b = { 0 };
	uint32_t there = plain_id(t, id);
	int r = kvp_evict_peek(t->mapped, id, &a);

	assert_int_equal(kvp_evict_peek(t->plain, there, &b), r);
	if (r == 0) {
		assert_int_equal(a.parent, mapped_id(t, b.parent));
		b.parent = a.parent;
		assert_memory_equal(&a, &b, sizeof(a));
	}
	assert_int_equal(kvp_evict_contains(t->mapped, id), there != PLACES);
	assert_int_equal(kvp_evict_hot(t->mapped, id), kvp_evict_hot(t->plain, there));
	assert_int_equal(kvp_evict_len(t->mapped), kvp_evict_len(t->plain));
	assert_int_equal(kvp_evict_bytes(t->mapped), kvp_evict_bytes(t->plain));
}

/* Whatever policy it is: it decides as if it knew of places alone, and says ids. */
static void test_policies(void **state)
{
	(void)state;
	uint64_t seed = random_print_seed();
	const char *name;

	for (size_t i = 0; (name = kvp_evict_names(i, NULL)); i++) {
		struct twins t = {
			.mapped = instance(name, IDS, PLACES),
			.plain = instance(name, PLACES, 0),
			.m.n = PLACES,
		};
		uint64_t now = 0;

		random_seed(seed + i);
		for (unsigned step = 0; step < 60000; step++) {
			now += below(1u << below(30));
			switch (below(8)) {
			case 0:
			case 1:
			case 2:
			case 3:
				twins_insert(&t, now);
				break;
			case 4:
			case 5:
				twins_use(&t, now);
				break;
			case 6:
				twins_remove(&t, some_id(below(NAMES)), 0, now);
				t.held[below(NAMES)] = !below(4);
				break;
			default:
				if (kvp_evict_len(t.mapped) > PLACES / 2)
					twins_evict(&t, now);
			}
			twins_compare(&t);
			if (step % 64 == 0) {
				assert_int_equal(kvp_evict_assert_consistency(t.mapped), 0);
				assert_int_equal(kvp_evict_assert_consistency(t.plain), 0);
			}
		}
		kvp_evict_free(t.mapped);
		kvp_evict_free(t.plain);
	}
}

/* Every cached id in ascending order, however few there are. */
static void test_next(void **state)
{
	(void)state;
	struct kvp_evict_params p = {
		.size = sizeof(p), .items = 4, .max_ids = 100000, .max_blocks = 4
	};
	const kvp_block_id id[] = { 99999, 3, 70000, 17 };
	struct kvp_evict *e = NULL;
	kvp_block_id at = KVP_BLOCK_NONE;

	assert_int_equal(kvp_evict_new("hazard", &p, &e), 0);
	for (uint32_t i = 0; i < 4; i++)
		put(e, id[i], KVP_BLOCK_NONE, i);
	struct kvp_evict_item one_more = { .parent = KVP_BLOCK_NONE };
	assert_int_equal(kvp_evict_insert(e, 5, &one_more, 9), -ENOSPC);
	assert_int_equal(at = kvp_evict_next(e, at), 3);
	assert_int_equal(at = kvp_evict_next(e, at), 17);
	assert_int_equal(at = kvp_evict_next(e, at), 70000);
	assert_int_equal(at = kvp_evict_next(e, at), 99999);
	assert_int_equal(kvp_evict_next(e, at), KVP_BLOCK_NONE);
	assert_int_equal(kvp_evict_remove(e, 70000, 1, 10), 0);
	assert_int_equal(kvp_evict_insert(e, 5, &one_more, 11), 0);
	assert_int_equal(kvp_evict_assert_consistency(e), 0);
	kvp_evict_free(e);
}

/* What an instance takes follows from its places, not from the ids. */
static void test_memory(void **state)
{
	(void)state;
	size_t i = 0;
	const char *name;

	while ((name = kvp_evict_names(i++, NULL))) {
		struct kvp_evict_params p = {
			.size = sizeof(p), .items = 1000, .max_ids = 1000, .seed = 1
		};
		struct kvp_evict_memory few, many;
		struct kvp_evict *e = NULL;

		assert_int_equal(kvp_evict_new(name, &p, &e), 0);
		kvp_evict_memory(e, &few);
		kvp_evict_free(e);
		p.max_ids = IDS;
		p.max_blocks = 1000;
		assert_int_equal(kvp_evict_new(name, &p, &e), 0);
		kvp_evict_memory(e, &many);
		kvp_evict_free(e);
		/* A part of a cache may remember fewer that have gone. */
		assert_true(many.ghosts <= few.ghosts);
		few.total -= (uint64_t)few.per_ghost * few.ghosts;
		many.total -= (uint64_t)many.per_ghost * many.ghosts;
		/* What one ghost takes is rounded down. */
		assert_true(many.total + few.ghosts > few.total);
		assert_true(many.total < few.total + 13 * 1000 + many.ghosts);
		assert_int_equal(many.per_block, few.per_block + 12);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_policies),
		cmocka_unit_test(test_next),
		cmocka_unit_test(test_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
