/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvreplay's second tier against a slow and obvious one, on random trees of prompts. Names begin
 * with rows of the acceptance list.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/kvp_evict.h"
#include "tests/policy/random.h"
#include "tools/kvreplay/sim.h"

#define BLOCKS   300u
#define REQUESTS 2000u
#define DEPTH    8u

static struct trace_block block[BLOCKS];
static struct trace_request request[REQUESTS];
static uint32_t ref[REQUESTS * DEPTH];
static struct trace trace;

/* Every block hangs below an earlier one, or begins a prompt; some are asked for more than others.
 */
static void make_trace(void)
{
	memset(block, 0, sizeof(block));
	for (uint32_t b = 0; b < BLOCKS; b++) {
		uint32_t parent = b < 8 ? TRACE_BLOCK_NONE : below(b);
		if (parent != TRACE_BLOCK_NONE && block[parent].depth + 1 == DEPTH)
			parent = TRACE_BLOCK_NONE;
		block[b] = (struct trace_block){ .content = b, .parent = parent, .tokens = 512 };
		block[b].depth = parent == TRACE_BLOCK_NONE ? 0 : block[parent].depth + 1;
		block[b].bytes = 1;
	}
	trace = (struct trace){ .format = TRACE_MOONCAKE,
		.block_tokens = 512,
		.n_requests = REQUESTS,
		.n_blocks = BLOCKS,
		.request = request,
		.ref = ref,
		.block = block };
	for (uint32_t i = 0; i < REQUESTS; i++) {
		uint32_t tip = below(2) ? below(BLOCKS) : (i / 20 + below(30)) % BLOCKS;
		uint32_t n = block[tip].depth + 1;
		request[i] = (struct trace_request){
			.time_ns = i, .first = trace.n_refs, .blocks = n, .tokens = n * 512
		};
		trace.n_refs += n;
		for (uint32_t k = n; k-- > 0; tip = block[tip].parent)
			ref[request[i].first + k] = tip;
	}
}

/* ---- the obvious way: lists, the oldest first ---- */

struct list {
	uint32_t id[BLOCKS + DEPTH];
	uint64_t n, capacity;
};

static uint64_t place(const struct list *l, uint32_t b)
{
	uint64_t i = 0;

	while (i < l->n && l->id[i] != b)
		i++;
	return i;
}

static bool has(const struct list *l, uint32_t b)
{
	return place(l, b) < l->n;
}

static uint32_t take(struct list *l, uint64_t at)
{
	uint32_t b = l->id[at];

	l->n--;
	memmove(l->id + at, l->id + at + 1, (l->n - at) * sizeof(*l->id));
	return b;
}

struct naive {
	struct list memory, store;
	struct sim_result r;
};

static void naive_put(struct naive *s, uint32_t b)
{
	if (!s->store.capacity)
		return;
	if (has(&s->store, b))
		take(&s->store, place(&s->store, b));
	else
		s->r.store_writes++;
	s->store.id[s->store.n++] = b;
	if (s->store.n > s->store.capacity) {
		take(&s->store, 0);
		s->r.store_evictions++;
	}
}

static void naive_request(struct naive *s, const struct trace_request *q, uint32_t mode)
{
	const uint32_t *x = ref + q->first;
	bool no_memory = !s->memory.capacity;
	uint32_t found = 0;

	for (; found < q->blocks && (has(&s->memory, x[found]) || has(&s->store, x[found]));
		found++)
		*(has(&s->memory, x[found]) ? &s->r.hits : &s->r.store_hits) += 1;
	for (uint32_t i = q->blocks; i-- > 0;) {
		bool here = has(&s->memory, x[i]);
		if (here)
			take(&s->memory, place(&s->memory, x[i]));
		if (!no_memory)
			s->memory.id[s->memory.n++] = x[i];
		/*
		 * A second use is what LRU calls hot. What was read from the store may have left it
		 * for a deeper block of this request.
		 */
		if (here            ? mode == KVP_INGEST_HOT
			: i < found ? has(&s->store, x[i])
				    : mode == KVP_INGEST_ALL || no_memory)
			naive_put(s, x[i]);
	}
	while (s->memory.n > s->memory.capacity) {
		uint32_t victim = take(&s->memory, 0);
		s->r.evictions++;
		if (mode == KVP_INGEST_EVICTED)
			naive_put(s, victim);
	}
}

static struct sim_result run_naive(uint64_t memory, uint64_t store, uint32_t mode)
{
	struct naive s = { .memory = { .capacity = memory }, .store = { .capacity = store } };

	for (uint32_t i = 0; i < REQUESTS; i++)
		naive_request(&s, &request[i], mode);
	return s.r;
}

static struct sim_result run(
	const char *policy, enum sim_order order, uint64_t memory, uint64_t store, uint32_t mode)
{
	struct sim_job job = { .trace = &trace,
		.policy = policy,
		.capacity = memory,
		.order = order,
		.seed = 1,
		.store = store,
		.ingest = mode };
	struct sim_result r;

	assert_int_equal(sim_run(&job, &r), 0);
	return r;
}

/* Every count is the obvious one's, whatever the sizes of the tiers, with none of either, too. */
static void c004_to_c007_second_implementation(void **state)
{
	(void)state;
	static const uint64_t capacities[] = { 0, 1, 20, 70, 150, BLOCKS };
	uint64_t first = random_print_seed();

	for (uint64_t seed = first; seed < first + 4; seed++) {
		random_seed(seed);
		make_trace();
		for (uint32_t i = 0; i < 6 * 6 * 3; i++) {
			uint64_t memory = capacities[i % 6], store = capacities[i / 6 % 6];
			uint32_t mode = i / 36;
			struct sim_result is = run("lru", SIM_FREE, memory, store, mode);
			struct sim_result want = run_naive(memory, store, mode);
			assert_int_equal(is.hits, want.hits);
			assert_int_equal(is.store_hits, want.store_hits);
			assert_int_equal(is.store_writes, want.store_writes);
			assert_int_equal(is.store_evictions, want.store_evictions);
			assert_int_equal(is.evictions, want.evictions);
		}
	}
}

/*
 * Each tier on or off: neither misses everything, either alone hits, and both hit at least as much
 * as memory alone.
 */
static void c004_four_combinations(void **state)
{
	(void)state;
	random_seed(random_print_seed());
	make_trace();
	for (size_t p = 0; kvp_evict_names(p, NULL); p++) {
		const char *name = kvp_evict_names(p, NULL);
		for (uint32_t i = 0; i < 6; i++) {
			enum sim_order order = i / 3 ? SIM_LEAF : SIM_FREE;
			struct sim_result none = run(name, order, 0, 0, i % 3);
			struct sim_result memory = run(name, order, 60, 0, i % 3);
			struct sim_result store = run(name, order, 0, 120, i % 3);
			struct sim_result both = run(name, order, 60, 120, i % 3);
			assert_int_equal(none.hits + none.store_hits + none.store_writes, 0);
			assert_true(memory.hits > 0 && !memory.store_hits && !memory.store_writes);
			assert_true(store.store_hits > 0 && !store.hits && !store.evictions);
			assert_true(both.hits > 0 && both.store_hits > 0);
			assert_true(both.hits + both.store_hits >= memory.hits);
			assert_int_equal(none.refs, both.refs);
		}
	}
}

/*
 * A store that forgets nothing. All: it gets every block once. Evicted: it gets exactly what
 * memory gives up, and nothing is ever lost. Hot: it gets less, and no block that came only once.
 */
static void c005_c006_c007_what_the_store_gets(void **state)
{
	(void)state;
	uint32_t uses[BLOCKS] = { 0 }, distinct = 0, again = 0;

	random_seed(random_print_seed());
	make_trace();
	for (uint64_t i = 0; i < trace.n_refs; i++)
		uses[ref[i]]++;
	for (uint32_t b = 0; b < BLOCKS; b++) {
		distinct += uses[b] > 0;
		again += uses[b] > 1;
	}
	for (size_t p = 0; kvp_evict_names(p, NULL); p++) {
		const char *name = kvp_evict_names(p, NULL);
		struct sim_result all = run(name, SIM_LEAF, 60, BLOCKS, KVP_INGEST_ALL);
		struct sim_result hot = run(name, SIM_LEAF, 60, BLOCKS, KVP_INGEST_HOT);
		struct sim_result evicted = run(name, SIM_LEAF, 60, BLOCKS, KVP_INGEST_EVICTED);
		assert_int_equal(all.store_writes, distinct);
		assert_int_equal(all.hits + all.store_hits, trace.n_refs - distinct);
		assert_int_equal(evicted.hits + evicted.store_hits, trace.n_refs - distinct);
		assert_true(evicted.store_writes <= evicted.evictions);
		assert_in_range(evicted.store_writes, distinct - 60 - DEPTH, distinct);
		assert_in_range(hot.store_writes, 1, again);
		assert_true(hot.store_writes < all.store_writes); /* C-061: fewer bytes */
	}
}

/* An object that is larger than the store goes by, and costs the others nothing. */
static void larger_than_the_store(void **state)
{
	(void)state;
	static const uint32_t order[] = { 0, 1, 2, 0, 1, 2 }; /* 2 is the large one */
	struct trace_block object[3] = { { .bytes = 10, .parent = TRACE_BLOCK_NONE },
		{ .bytes = 10, .parent = TRACE_BLOCK_NONE },
		{ .bytes = 31, .parent = TRACE_BLOCK_NONE } };
	struct trace_request one[6];
	struct trace objects = { .format = TRACE_ORACLE,
		.n_requests = 6,
		.n_refs = 6,
		.n_blocks = 3,
		.request = one,
		.ref = (uint32_t *)(uintptr_t)order,
		.block = object };
	struct sim_job job = { .trace = &objects, .policy = "lru", .seed = 1, .store = 30 };
	struct sim_result r;

	for (uint32_t i = 0; i < 6; i++)
		one[i] = (struct trace_request){ .time_ns = i, .first = i, .blocks = 1 };
	assert_int_equal(sim_run(&job, &r), 0);
	assert_int_equal(r.store_hits, 2);
	assert_int_equal(r.store_writes, 2);
	assert_int_equal(r.store_evictions, 0);
}

static void refusals(void **state)
{
	(void)state;
	struct sim_job job = { .trace = &trace, .policy = "min", .capacity = 9, .store = 1 };
	struct sim_result r = { .refs = 77 };

	random_seed(random_print_seed());
	make_trace();
	assert_int_equal(sim_run(&job, &r), -EINVAL);
	job.store = job.capacity = 0;
	assert_int_equal(sim_run(&job, &r), -EINVAL);
	job.policy = "lru";
	job.ingest = 3;
	assert_int_equal(sim_run(&job, &r), -EINVAL);
	job.ingest = 0;
	job.policy = "mru";
	job.capacity = 1;
	assert_int_equal(sim_run(&job, &r), -ENOENT);
	assert_int_equal(r.refs, 77);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(c004_to_c007_second_implementation),
		cmocka_unit_test(c004_four_combinations),
		cmocka_unit_test(c005_c006_c007_what_the_store_gets),
		cmocka_unit_test(larger_than_the_store),
		cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
