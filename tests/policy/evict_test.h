/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of eviction share: cmocka with its prerequisites, and small workloads. */
#ifndef KVP_TESTS_POLICY_EVICT_TEST_H
#define KVP_TESTS_POLICY_EVICT_TEST_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/evict_impl.h"
#include "policy/kvp_evict.h"
#include "tests/policy/random.h"

static inline struct kvp_evict *make(
	const char *name, uint64_t items, uint64_t bytes, uint32_t max_ids)
{
	struct kvp_evict_params p = {
		.size = sizeof(p),
		.items = items,
		.bytes = bytes,
		.max_ids = max_ids,
		.seed = 1,
	};
	struct kvp_evict *e = NULL;

	assert_int_equal(kvp_evict_new(name, &p, &e), 0);
	return e;
}

static inline void put(struct kvp_evict *e, kvp_block_id id, kvp_block_id parent, uint64_t now)
{
	struct kvp_evict_item item = {
		.parent = parent,
		.bytes = 1,
		.tokens = 64,
		.cost = 1,
		.key = { .lo = id + 1 },
	};
	assert_int_equal(kvp_evict_insert(e, id, &item, now), 0);
}

#endif
