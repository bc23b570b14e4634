/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both index tables: cache-line buckets, overflow counters instead of tombstones. The ledger is the
 * only writer. A reader that races an insertion or removal may miss that one entry, which is a
 * legal miss; entries never move, so it cannot miss any other.
 */
#include "shm/kvp_catalog.h"

#include <errno.h>

static uint32_t home_of(uint64_t hash, uint32_t buckets)
{
	return (uint32_t)((uint64_t)(uint32_t)hash * buckets >> 32);
}

static uint64_t entry_of(uint64_t hash, kvp_block_id id)
{
	return (hash >> 32) << 32 | (uint64_t)(id + 1u);
}

static uint32_t next_bucket(uint32_t b, uint32_t buckets)
{
	return b + 1 == buckets ? 0 : b + 1;
}

static uint32_t probes_of(uint32_t buckets)
{
	return buckets < KVP_MAX_PROBES ? buckets : KVP_MAX_PROBES;
}

/* Finds a bucket on the hash's path that has `entry` (0: a free place); says which place. */
static int locate(struct kvp_bucket *table, uint32_t buckets, uint64_t hash, uint64_t entry,
	uint32_t *ret_probe, KVP_ATOMIC(uint64_t) **ret_place)
{
	uint32_t b = home_of(hash, buckets), probes = probes_of(buckets);

	for (uint32_t p = 0; p < probes; p++, b = next_bucket(b, buckets)) {
		for (uint32_t i = 0; i < KVP_BUCKET_ENTRIES; i++) {
			if (kvp_load_relaxed(&table[b].entry[i]) == entry) {
				*ret_probe = p;
				*ret_place = &table[b].entry[i];
				return 0;
			}
		}
		if (entry && !kvp_load_relaxed(&table[b].overflow))
			break;
	}
	return -ENOENT;
}

static void count_overflow(
	struct kvp_bucket *table, uint32_t buckets, uint64_t hash, uint32_t probe, uint32_t by)
{
	uint32_t b = home_of(hash, buckets);

	for (uint32_t p = 0; p < probe; p++, b = next_bucket(b, buckets))
		kvp_store_release(&table[b].overflow, kvp_load_relaxed(&table[b].overflow) + by);
}

int kvp_index_insert(struct kvp_bucket *table, uint32_t buckets, uint64_t hash, kvp_block_id id)
{
	KVP_ATOMIC(uint64_t) *place;
	uint32_t probe;

	if (locate(table, buckets, hash, 0, &probe, &place) < 0)
		return -ENOSPC;
	count_overflow(table, buckets, hash, probe, 1);
	/* Release: pairs with the acquire load in kvp_index_candidates(). */
	kvp_store_release(place, entry_of(hash, id));
	return 0;
}

int kvp_index_remove(struct kvp_bucket *table, uint32_t buckets, uint64_t hash, kvp_block_id id)
{
	KVP_ATOMIC(uint64_t) *place;
	uint32_t probe;

	if (locate(table, buckets, hash, entry_of(hash, id), &probe, &place) < 0)
		return -ENOENT;
	kvp_store_release(place, 0);
	count_overflow(table, buckets, hash, probe, UINT32_MAX);
	return 0;
}

uint32_t kvp_index_candidates(const struct kvp_bucket *table, uint32_t buckets, uint64_t hash,
	kvp_block_id *out, uint32_t max)
{
	uint32_t b = home_of(hash, buckets), probes = probes_of(buckets), n = 0;

	for (uint32_t p = 0; p < probes; p++, b = next_bucket(b, buckets)) {
		const struct kvp_bucket *bucket = &table[b];

		for (uint32_t i = 0; i < KVP_BUCKET_ENTRIES; i++) {
			uint64_t e = kvp_load_acquire(&bucket->entry[i]);

			if ((uint32_t)e && (e >> 32) == (hash >> 32)) {
				if (n == max)
					return n;
				out[n++] = (kvp_block_id)((uint32_t)e - 1u);
			}
		}
		if (!kvp_load_acquire(&bucket->overflow))
			break;
	}
	return n;
}

void kvp_index_prefetch(const struct kvp_bucket *table, uint32_t buckets, uint64_t hash)
{
	__builtin_prefetch(&table[home_of(hash, buckets)]);
}
