/* SPDX-License-Identifier: Apache-2.0 */
/* The heap against an array that is searched from end to end. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "policy/evict_impl.h"
#include "tests/policy/random.h"

#define IDS 300u

struct model {
	uint64_t key[IDS], came[IDS]; /* came: 0 if not in the heap */
	uint64_t count, last;         /* key popped last */
	uint32_t len;
};

/* The least key, of equal ones that which came first. */
static uint32_t model_pop(struct model *m)
{
	uint32_t best = KVP_BLOCK_NONE;

	for (uint32_t id = 0; id < IDS; id++)
		if (m->came[id] &&
			(best == KVP_BLOCK_NONE || m->key[id] < m->key[best] ||
				(m->key[id] == m->key[best] && m->came[id] < m->came[best])))
			best = id;
	return best;
}

/*
 * In turns: above the last one popped by nothing, by little, or by any power of two that fits; one
 * of few; anything; falling.
 */
static uint64_t next_key(const struct model *m)
{
	uint64_t step = below(4) ? below(3) : rnd() >> below(64);

	switch (m->count >> 12 & 3) {
	case 0:
		return m->last > UINT64_MAX - step ? UINT64_MAX : m->last + step;
	case 1:
		return below(4) ? 7 : UINT64_MAX - below(3);
	case 2:
		return rnd();
	default:
		return UINT64_MAX - m->count;
	}
}

static void op_push(struct kvp_evict *e, struct model *m, uint32_t id)
{
	m->key[id] = next_key(m);
	if (!m->came[id])
		m->len++;
	else
		evict_heap_remove(e, id);
	m->came[id] = ++m->count;
	evict_heap_push(e, id, m->key[id]);
	assert_int_equal(e->node[id].where, EVICT_HEAP);
}

static void op_remove(struct kvp_evict *e, struct model *m, uint32_t id)
{
	if (!m->came[id])
		return;
	evict_heap_remove(e, id);
	assert_int_equal(e->node[id].where, EVICT_OUT);
	m->came[id] = 0;
	m->len--;
}

static void op_pop(struct kvp_evict *e, struct model *m)
{
	uint32_t want = model_pop(m);
	uint64_t key = 0;

	assert_int_equal(evict_heap_pop(e, &key), want);
	if (want == KVP_BLOCK_NONE)
		return;
	assert_true(key == m->key[want]);
	m->last = key;
	m->came[want] = 0;
	m->len--;
}

static void test_random_operations(void **state)
{
	(void)state;
	static struct evict_node node[IDS];
	static struct model m;
	struct kvp_evict e = { .params = { .max_ids = IDS }, .node = node };
	uint64_t restarts = 0;

	random_seed(random_print_seed());
	for (uint32_t id = 0; id < IDS; id++)
		node[id].parent = below(2) ? below(IDS) : KVP_BLOCK_NONE;
	assert_int_equal(evict_heap_init(&e), 0);
	for (unsigned i = 0; i < 1000000; i++) {
		uint32_t op = below(8);

		if (below(20000) == 0) {
			evict_heap_clear(&e);
			m = (struct model){ .count = m.count };
			restarts++;
		}
		if (op < 4)
			op_push(&e, &m, below(IDS));
		else if (op < 5)
			op_remove(&e, &m, below(IDS));
		else
			/* now and then down to nothing */
			for (uint32_t n = below(200) ? 1 : m.len + 1; n; n--)
				op_pop(&e, &m);
		if (i % 16 == 0)
			assert_int_equal(evict_heap_check(&e, m.len), 0);
	}
	assert_true(restarts > 10);
	free(e.heap);
}

/* Its memory is for max_ids blocks, however unlucky their order: every bucket would hold two. */
static void test_few_buckets(void **state)
{
	(void)state;
	enum { N = 20000 };
	static struct evict_node node[N];
	struct kvp_evict e = { .params = { .max_ids = N }, .node = node };
	uint64_t key, last = 0;
	uint32_t left = 0;

	assert_int_equal(evict_heap_init(&e), 0);
	for (uint32_t id = 0; id < N; id++)
		evict_heap_push(&e, id, (uint64_t)id * 40503 % N);
	for (uint32_t id = 0; id < N; id++)
		if (*evict_heap_key(&e, id) % 64)
			evict_heap_remove(&e, id);
		else
			left++;
	assert_int_equal(evict_heap_check(&e, left), 0);
	for (uint32_t id = 0; id < N; id++)
		if (node[id].where == EVICT_OUT)
			evict_heap_push(&e, id, N - id);
	assert_int_equal(evict_heap_check(&e, N), 0);
	for (uint32_t i = 0; i < N; i++) {
		assert_true(evict_heap_pop(&e, &key) != KVP_BLOCK_NONE);
		assert_true(key >= last);
		last = key;
	}
	assert_int_equal(evict_heap_pop(&e, &key), KVP_BLOCK_NONE);
	free(e.heap);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_few_buckets),
		cmocka_unit_test(test_random_operations),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
