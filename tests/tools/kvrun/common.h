/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine's tests have in common: seeds, data, tiny models, a store that remembers. */
#ifndef TEST_KVRUN_COMMON_H
#define TEST_KVRUN_COMMON_H

#include "tools/kvrun/kvr_kv.h"
#include "tools/kvrun/kvr_model.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

/* xorshift64*; every test prints the seed it starts from. KVP_TEST_SEED overrides it. */
uint64_t test_seed(void);
uint64_t test_random(uint64_t *state);
float test_normal(uint64_t *state); /* mean 0, variance 1, roughly normal */

/* share/models/bytes-4m in the source tree. */
const char *test_bytes4m(void);

/* `name` under $KVPOOL_DATA or ../shared/data; NULL: not there, the test skips. Static buffer. */
const char *test_data(const char *name);

/* A model with random weights: config's sizes, `seed`'s weights. */
struct kvr_model *test_model_new(const struct kvr_config *config, uint64_t *state);

/*
 * A store that remembers sealed blocks by their chain of tokens and hands them out in memory that
 * cannot be written, as kvpool does. `memory` outlives the stores that share it.
 */
struct test_memory;
struct test_memory *test_memory_new(void);
void test_memory_free(struct test_memory *memory);
size_t test_memory_blocks(const struct test_memory *memory);
struct kvr_kv *test_store_new(const struct kvr_geom *geom, struct test_memory *memory);

#endif
