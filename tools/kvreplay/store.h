/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second tier below the simulated cache: kvp_ingest_wants() says which blocks go there, and the
 * least recently used ones leave it. NULL is a store that holds nothing; all functions take it.
 */
#ifndef KVREPLAY_STORE_H
#define KVREPLAY_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/kvreplay/trace.h"

struct store;

struct store_counts {
	uint64_t writes; /* blocks; one that is there already is not written again */
	uint64_t evictions;
};

/*
 * capacity: blocks (oracleGeneral: bytes); 0 makes NULL. mode: KVP_INGEST_*. Without memory above
 * it every block that is put goes to the store, because none is ever used or evicted there.
 * -EINVAL, -ENOMEM.
 */
int store_new(const struct trace *t, uint64_t capacity, uint32_t mode, bool memory,
	struct store **ret_store);
struct store *store_free(struct store *s); /* NULL */

bool store_has(const struct store *s, uint32_t block);
/* A block was read from the store. */
void store_use(struct store *s, uint32_t block, uint64_t now);
/* KVP_INGEST_EVENT_* of a block in memory, or put past it. */
void store_event(struct store *s, uint32_t event, uint32_t block, bool hot, uint64_t now);
struct store_counts store_counts(const struct store *s);

#endif
