/* SPDX-License-Identifier: Apache-2.0 */
/* Lease slots and touch logs of a session page, both sides of them; kvp_lease.h has the argument. */
#include "shm/kvp_lease.h"

#include <errno.h>

#define SHARD_LINES (KVP_SHARD_LEASES / KVP_LEASE_LINE)

/* Slots of the line count from now on. Sequentially consistent, both of it: see kvp_lease.h. */
static void use_line(KVP_ATOMIC(uint64_t) *lines, uint32_t line)
{
	KVP_ATOMIC(uint64_t) *bits = &lines[line / 64];
	uint64_t bit = UINT64_C(1) << line % 64;

	if (!(kvp_load_seq(bits) & bit))
		(void)kvp_or_seq(bits, bit);
}

/* ---- moments -------------------------------------------------------------------------------- */

bool kvp_until_come(const struct kvp_session_page *page, uint64_t until)
{
	uint32_t timeline = kvp_until_timeline(until);

	/* Acquire: what was enqueued before the timeline came so far is over. */
	return timeline < KVP_TIMELINES &&
	       kvp_load_acquire(&page->done[timeline].value) >= kvp_until_value(until);
}

/* Does any slot of the line have a moment? For an order see kvp_lease.h. */
static inline bool line_ends(const struct kvp_session_page *page, uint32_t line)
{
	return kvp_load_relaxed(&page->until_lines[line / 64]) >> line % 64 & 1;
}

/* Of a filled slot in such a line. */
static bool is_over(const struct kvp_session_page *page, uint32_t i)
{
	return kvp_until_come(page, kvp_load_acquire(&(&page->until[0][0])[i]));
}

/* Takes a filled slot whose lease is over; false: it is not, or another thread was first. */
static bool take_over(struct kvp_session_page *page, uint32_t i, uint64_t value)
{
	KVP_ATOMIC(uint64_t) *until = &(&page->until[0][0])[i];
	uint64_t seen;

	if (!line_ends(page, i / KVP_LEASE_LINE))
		return false;
	seen = kvp_load_acquire(until);
	if (!kvp_until_come(page, seen) || !kvp_cas_seq(until, &seen, 0))
		return false;
	(void)kvp_xchg_seq(&(&page->lease[0][0])[i], value);
	return true;
}

/* ---- the client's side ---------------------------------------------------------------------- */

/* A slot that is empty or over, own shard first; NULL if the page has none. It then holds `value`. */
static KVP_ATOMIC(uint64_t) *fill_slot(
	struct kvp_session_page *page, uint32_t shard, uint64_t value)
{
	for (uint32_t s = 0; s < KVP_SHARDS; s++) {
		uint32_t at = (shard + s) % KVP_SHARDS;
		KVP_ATOMIC(uint64_t) *lease = page->lease[at];

		for (uint32_t i = 0; i < KVP_SHARD_LEASES; i++) {
			uint64_t empty = 0;

			if (kvp_load_relaxed(&lease[i])) {
				if (take_over(page, at * KVP_SHARD_LEASES + i, value))
					return &lease[i];
				continue;
			}
			use_line(page->lease_lines, at * SHARD_LINES + i / KVP_LEASE_LINE);
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

void kvp_lease_drop_at(struct kvp_session_page *page, struct kvp_lease *lease, uint64_t until)
{
	uint32_t i;

	if (!lease->slot)
		return;
	if (kvp_until_come(page, until)) {
		kvp_lease_drop(lease);
		return;
	}
	i = (uint32_t)(lease->slot - &page->lease[0][0]);
	use_line(page->until_lines, i / KVP_LEASE_LINE);
	/* Release: what this process itself has read comes before the ledger sees it over. */
	kvp_store_release(&(&page->until[0][0])[i], until);
	lease->slot = NULL;
}

bool kvp_lease_any(const struct kvp_session_page *page)
{
	uint32_t slot = 0, lines = 0;

	return kvp_lease_next(page, &slot, &lines) != 0;
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

/* ---- the ledger's side ---------------------------------------------------------------------- */

void kvp_lease_fence(void)
{
	kvp_fence_seq();
}

uint64_t kvp_lease_slot(const struct kvp_session_page *page, uint32_t i)
{
	uint64_t value = kvp_load_seq(&(&page->lease[0][0])[i]);

	return value && line_ends(page, i / KVP_LEASE_LINE) && is_over(page, i) ? 0 : value;
}

uint64_t kvp_lease_next(const struct kvp_session_page *page, uint32_t *slot, uint32_t *lines)
{
	while (*slot < KVP_LEASES) {
		uint32_t line = *slot / KVP_LEASE_LINE, end = (line + 1) * KVP_LEASE_LINE;
		uint64_t used = kvp_load_seq(&page->lease_lines[line / 64]) >> line % 64;
		bool ends;

		if (!used) {
			*slot = (line / 64 + 1) * 64 * KVP_LEASE_LINE;
			++*lines;
			continue;
		}
		if (!(used & 1)) {
			*slot = (line + (uint32_t)__builtin_ctzll(used)) * KVP_LEASE_LINE;
			continue;
		}
		ends = line_ends(page, line);
		for (*lines += 1 + ends; *slot < end; ++*slot) {
			uint64_t value = kvp_load_seq(&(&page->lease[0][0])[*slot]);

			if (value && !(ends && is_over(page, *slot)))
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
