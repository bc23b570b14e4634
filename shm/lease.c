/* SPDX-License-Identifier: Apache-2.0 */
/* Lease slots and touch logs of a session page, both sides of them; kvp_lease.h has the argument. */
#include "shm/kvp_lease.h"

#include <errno.h>

#define SHARD_LINES (KVP_SHARD_LEASES / KVP_LEASE_LINE)

/* Slots of the line count from now on. Sequentially consistent, both of it: see kvp_lease.h. */
static void use_line(struct kvp_session_page *page, uint32_t line)
{
	KVP_ATOMIC(uint64_t) *bits = &page->lease_lines[line / 64];
	uint64_t bit = UINT64_C(1) << line % 64;

	if (!(kvp_load_seq(bits) & bit))
		(void)kvp_or_seq(bits, bit);
}

/* An empty slot, own shard first; NULL if the page has none. The slot then holds `value`. */
static KVP_ATOMIC(uint64_t) *fill_slot(
	struct kvp_session_page *page, uint32_t shard, uint64_t value)
{
	for (uint32_t s = 0; s < KVP_SHARDS; s++) {
		uint32_t at = (shard + s) % KVP_SHARDS;
		KVP_ATOMIC(uint64_t) *lease = page->lease[at];

		for (uint32_t i = 0; i < KVP_SHARD_LEASES; i++) {
			uint64_t empty = 0;

			if (kvp_load_relaxed(&lease[i]))
				continue;
			use_line(page, at * SHARD_LINES + i / KVP_LEASE_LINE);
			if (kvp_cas_seq(&lease[i], &empty, value))
				return &lease[i];
		}
	}
	return NULL;
}

int kvp_lease_take(struct kvp_session_page *page, uint32_t shard, const struct kvp_block *block,
	kvp_block_id id, uint64_t word, struct kvp_lease *ret_lease)
{
	KVP_ATOMIC(uint64_t) *slot = fill_slot(page, shard, kvp_slot_value(id, word));

	if (!slot)
		return -ENOBUFS;
	/*
	 * Sequentially consistent, after the sequentially consistent exchange above: pairs with
	 * kvp_block_mark() and kvp_lease_fence(), see kvp_lease.h.
	 */
	if (kvp_load_seq(&block->word) != word) {
		kvp_store_release(slot, 0);
		return -ESTALE;
	}
	ret_lease->slot = slot;
	return 0;
}

void kvp_lease_drop(struct kvp_lease *lease)
{
	if (!lease->slot)
		return;
	/* Release: all reads of the payload come before the ledger sees the slot empty. */
	kvp_store_release(lease->slot, 0);
	lease->slot = NULL;
}

void kvp_touch_push(struct kvp_session_page *page, uint32_t shard, kvp_block_id tip, uint32_t asked)
{
	struct kvp_shard *sh = &page->shard[shard % KVP_SHARDS];
	uint32_t free_lock = 0, tail, bit = UINT32_C(1) << shard % KVP_SHARDS;

	/* Recency is worth a try, not a wait. */
	if (!kvp_cas_seq(&sh->touch_lock, &free_lock, 1))
		return;
	tail = kvp_load_relaxed(&sh->touch_tail);
	if (tail - kvp_load_acquire(&sh->touch_head) >= KVP_TOUCHES) {
		kvp_bump(&sh->touch_lost, 1);
	} else {
		if (asked > 0xffff)
			asked = 0xffff;
		kvp_store_relaxed(&sh->touch[tail % KVP_TOUCHES],
			(uint64_t)asked << 32 | (uint64_t)(tip + 1u));
		/* Release: pairs with the acquire in kvp_touch_drain(). */
		kvp_store_release(&sh->touch_tail, tail + 1);
		/* Missed by the ledger today it is seen tomorrow. */
		if (!(kvp_load_relaxed(&page->touched) & bit))
			kvp_or_relaxed(&page->touched, bit);
	}
	kvp_store_release(&sh->touch_lock, 0);
}

void kvp_lease_fence(void)
{
	kvp_fence_seq();
}

uint64_t kvp_lease_slot(const struct kvp_session_page *page, uint32_t i)
{
	return kvp_load_seq(&page->lease[i / KVP_SHARD_LEASES][i % KVP_SHARD_LEASES]);
}

uint64_t kvp_lease_next(const struct kvp_session_page *page, uint32_t *slot, uint32_t *lines)
{
	while (*slot < KVP_LEASES) {
		uint32_t line = *slot / KVP_LEASE_LINE, end = (line + 1) * KVP_LEASE_LINE;
		uint64_t used = kvp_load_seq(&page->lease_lines[line / 64]) >> line % 64;

		if (!used) {
			*slot = (line / 64 + 1) * 64 * KVP_LEASE_LINE;
			++*lines;
			continue;
		}
		if (!(used & 1)) {
			*slot = (line + (uint32_t)__builtin_ctzll(used)) * KVP_LEASE_LINE;
			continue;
		}
		for (++*lines; *slot < end; ++*slot) {
			uint64_t value = kvp_lease_slot(page, *slot);

			if (value)
				return value;
		}
	}
	return 0;
}

uint32_t kvp_lease_scan(
	const struct kvp_session_page *page, kvp_block_id *out, uint16_t *slots, uint32_t max)
{
	uint32_t n = 0, slot = 0, lines = 0;

	for (; n < max; slot++) {
		uint64_t value = kvp_lease_next(page, &slot, &lines);

		if (!value)
			break;
		out[n] = kvp_slot_block(value);
		if (slots)
			slots[n] = (uint16_t)slot;
		n++;
	}
	return n;
}

uint32_t kvp_touch_drain(
	struct kvp_session_page *page, uint32_t shard, uint32_t *head, uint64_t *out, uint32_t max)
{
	struct kvp_shard *sh = &page->shard[shard];
	uint32_t tail = kvp_load_acquire(&sh->touch_tail), n = 0;

	if (tail - *head > KVP_TOUCHES)
		*head = tail - KVP_TOUCHES;
	for (; *head != tail && n < max; (*head)++)
		out[n++] = kvp_load_relaxed(&sh->touch[*head % KVP_TOUCHES]);
	if (n)
		kvp_store_release(&sh->touch_head, *head);
	return n;
}
