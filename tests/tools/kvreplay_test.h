/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of kvreplay's simulation share: cmocka with its prerequisites, and comparisons. */
#ifndef KVP_TESTS_TOOLS_KVREPLAY_TEST_H
#define KVP_TESTS_TOOLS_KVREPLAY_TEST_H

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
#include <unistd.h>

#include <cmocka.h>

#include "policy/kvp_evict.h"
#include "policy/kvp_mrc.h"
#include "tools/kvreplay/sim.h"
#include "tools/kvreplay/trace.h"

/* Misses of a policy, blocks or objects evicted one by one. */
static inline uint64_t fast_misses(const struct trace *t, const char *policy, uint64_t capacity)
{
	struct sim_job job = { .trace = t, .policy = policy, .capacity = capacity, .seed = 1 };
	struct sim_result r;

	assert_int_equal(sim_run(&job, &r), 0);
	return r.refs - r.hits;
}

static inline double ratio(
	const struct trace *t, const char *policy, uint64_t capacity, enum sim_order o)
{
	struct sim_job job = {
		.trace = t, .policy = policy, .capacity = capacity, .order = o, .seed = 1
	};
	struct sim_result r;

	assert_int_equal(sim_run(&job, &r), 0);
	return (double)r.hits / (double)r.refs;
}

/* A policy of ours beside every classical one: behind by no more than the trace's size allows for. */
static inline void keeps_the_bound(
	const struct trace *t, const char *policy, const uint64_t *capacity, size_t n)
{
	for (size_t c = 0; c < n; c++) {
		double best = 0, own = ratio(t, policy, capacity[c], SIM_LEAF);
		const char *name;
		for (size_t i = 0; (name = kvp_evict_names(i, NULL)); i++) {
			if (!strcmp(name, "hazard") || !strcmp(name, "contest"))
				continue;
			for (int o = SIM_FREE; o <= SIM_LEAF; o++) {
				double r = ratio(t, name, capacity[c], (enum sim_order)o);
				best = r > best ? r : best;
			}
		}
		double less = t->n_requests >= 20000 ? .002
			      : .015 * best > .005   ? .015 * best
						     : .005;
		if (own < best - less)
			fail_msg("%s %.4f, best classical %.4f at %llu", policy, own, best,
				(unsigned long long)capacity[c]);
	}
}

/* The estimate of one tenant whose requests are the trace's, against the simulation of LRU. */
static inline void mrc_is_near(const char *what, const struct trace *t)
{
	static const uint64_t capacity[] = { 100, 300, 1000, 3000, 10000, 30000, 50000 };
	struct kvp_mrc_params p = {
		.size = sizeof(p), .samples = 8192, .buckets = 4096, .bucket_size = 64, .seed = 5
	};
	struct kvp_mrc *m = NULL;
	double worst = 0;

	assert_int_equal(kvp_mrc_new(&p, &m), 0);
	struct kvp_key *key = calloc(t->longest, sizeof(*key));
	assert_non_null(key);
	for (uint32_t i = 0; i < t->n_requests; i++) {
		for (uint32_t b = 0; b < t->request[i].blocks; b++)
			key[b].lo = t->ref[t->request[i].first + b] + 1;
		kvp_mrc_request(m, key, t->request[i].blocks);
	}
	free(key);
	for (size_t c = 0; c < sizeof(capacity) / sizeof(capacity[0]); c++) {
		double is = ratio(t, "lru", capacity[c], SIM_FREE);
		double estimate = kvp_mrc_hit_ratio(m, capacity[c]);
		worst = fabs(estimate - is) > worst ? fabs(estimate - is) : worst;
		if (worst > .01)
			fail_msg("%s at %llu: %.4f for %.4f", what, (unsigned long long)capacity[c],
				estimate, is);
	}
	print_message("%s: off by %.4f at most\n", what, worst);
	kvp_mrc_free(m);
}

#endif
