/* SPDX-License-Identifier: Apache-2.0 */
/* The second tier of a simulation: the blocks it takes, drops and has been written. */
#include "tools/kvreplay/store.h"

#include <errno.h>
#include <stdlib.h>

#include "policy/kvp_evict.h"

#define BATCH 256

struct store {
	const struct trace *t;
	struct kvp_evict *e;
	uint64_t capacity;
	uint32_t mode;
	bool memory;
	struct store_counts counts;
};

int store_new(const struct trace *t, uint64_t capacity, uint32_t mode, bool memory,
	struct store **ret_store)
{
	bool objects = t->format == TRACE_ORACLE;
	struct kvp_evict_params p = {
		.size = sizeof(p),
		.items = objects ? 0 : capacity,
		.bytes = objects ? capacity : 0,
		.max_ids = t->n_blocks,
	};
	struct store *s;
	int r;

	if (mode > KVP_INGEST_EVICTED)
		return -EINVAL;
	if (!capacity) {
		*ret_store = NULL;
		return 0;
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	*s = (struct store){ .t = t, .capacity = capacity, .mode = mode, .memory = memory };
	r = kvp_evict_new("lru", &p, &s->e);
	if (r < 0) {
		store_free(s);
		return r;
	}
	*ret_store = s;
	return 0;
}

struct store *store_free(struct store *s)
{
	if (s)
		kvp_evict_free(s->e);
	free(s);
	return NULL;
}

bool store_has(const struct store *s, uint32_t block)
{
	return s && kvp_evict_contains(s->e, block);
}

void store_use(struct store *s, uint32_t block, uint64_t now)
{
	if (s)
		kvp_evict_access(s->e, block, now);
}

/* Blocks above capacity go at once. */
static void shrink(struct store *s, uint64_t now)
{
	kvp_block_id out[BATCH];
	uint64_t items, bytes;
	size_t n;

	kvp_evict_excess(s->e, &items, &bytes);
	while (items || bytes) {
		n = kvp_evict_victims(s->e, items, bytes, NULL, NULL, now, out, BATCH);
		for (size_t i = 0; i < n; i++)
			kvp_evict_remove(s->e, out[i], 1, now);
		s->counts.evictions += n;
		kvp_evict_excess(s->e, &items, &bytes);
	}
}

void store_event(struct store *s, uint32_t event, uint32_t block, bool hot, uint64_t now)
{
	if (!s || !(s->memory ? kvp_ingest_wants(s->mode, event, hot) == 1
			      : event == KVP_INGEST_EVENT_PUT))
		return;
	if (store_has(s, block)) {
		kvp_evict_access(s->e, block, now);
		return;
	}
	struct kvp_evict_item item = {
		.parent = KVP_BLOCK_NONE, /* read block by block: no chains down here */
		.bytes = s->t->block[block].bytes,
		.key = { .lo = (uint64_t)block + 1 },
	};
	if (s->t->format == TRACE_ORACLE && item.bytes > s->capacity)
		return;
	kvp_evict_insert(s->e, block, &item, now);
	s->counts.writes++;
	shrink(s, now);
}

struct store_counts store_counts(const struct store *s)
{
	return s ? s->counts : (struct store_counts){ 0 };
}
