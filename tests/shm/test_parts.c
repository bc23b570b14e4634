/* SPDX-License-Identifier: Apache-2.0 */
/* Index tables against a naive list, lease slots, touch logs, rings, segments. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"
#include "tests/shm/toy_ledger.h"

#define ENTRIES 300u

static void index_against_list(void **state)
{
	uint64_t rng = toy_seed(), hash[ENTRIES];
	uint32_t buckets = ENTRIES / 4 + 8, present[ENTRIES] = { 0 };
	struct kvp_bucket *table = calloc(buckets, sizeof(*table));
	(void)state;

	/* Few distinct hashes, so that homes overflow and tags repeat. */
	for (uint32_t i = 0; i < ENTRIES; i++)
		hash[i] = (toy_random(&rng) % 40) * UINT64_C(0x9e3779b97f4a7c15);
	for (uint32_t op = 0; op < 300000; op++) {
		uint32_t i = (uint32_t)(toy_random(&rng) % ENTRIES), n, found = 0;
		kvp_block_id cand[ENTRIES];

		if (present[i]) {
			assert_int_equal(kvp_index_remove(table, buckets, hash[i], i), 0);
			assert_int_equal(kvp_index_remove(table, buckets, hash[i], i), -ENOENT);
			present[i] = 0;
		} else {
			assert_int_equal(kvp_index_insert(table, buckets, hash[i], i), 0);
			present[i] = 1;
		}
		n = kvp_index_candidates(table, buckets, hash[i], cand, ENTRIES);
		for (uint32_t k = 0; k < ENTRIES; k++)
			found += present[k] && hash[k] == hash[i];
		assert_int_equal(n, found);
		for (uint32_t k = 0; k < n; k++)
			assert_true(present[cand[k]] && hash[cand[k]] == hash[i]);
	}
	free(table);
}

static void index_full(void **state)
{
	struct kvp_bucket table[2];
	(void)state;

	memset(table, 0, sizeof(table));
	for (uint32_t i = 0; i < 2 * KVP_BUCKET_ENTRIES; i++)
		assert_int_equal(kvp_index_insert(table, 2, 5, i), 0);
	assert_int_equal(kvp_index_insert(table, 2, 5, 99), -ENOSPC);
}

static struct kvp_session_page *new_page(void)
{
	void *p = mmap(NULL, sizeof(struct kvp_session_page), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

static void leases(void **state)
{
	struct kvp_session_page *page = new_page();
	struct kvp_lease lease[KVP_LEASES], extra;
	struct kvp_block block;
	kvp_block_id ids[KVP_LEASES];
	uint16_t slots[KVP_LEASES];
	uint64_t word = kvp_word(3, 4, KVP_BLOCK_LIVE);
	(void)state;

	memset(&block, 0, sizeof(block));
	kvp_store_relaxed(&block.word, word);
	assert_int_equal(kvp_lease_take(page, 0, &block, 9, word + 1, &extra), -ESTALE);
	assert_int_equal(kvp_lease_scan(page, ids, slots, KVP_LEASES), 0);
	for (uint32_t i = 0; i < KVP_LEASES; i++)
		assert_int_equal(kvp_lease_take(page, 5, &block, i, word, &lease[i]), 0);
	assert_int_equal(kvp_lease_take(page, 5, &block, 1, word, &extra), -ENOBUFS);
	assert_int_equal(kvp_lease_scan(page, ids, slots, KVP_LEASES), KVP_LEASES);
	assert_int_equal(kvp_lease_scan(page, ids, NULL, 3), 3);
	for (uint32_t i = 1; i < KVP_LEASES; i++)
		kvp_lease_drop(&lease[i]);
	kvp_lease_drop(&lease[1]);
	assert_int_equal(kvp_lease_scan(page, ids, slots, KVP_LEASES), 1);
	assert_int_equal(ids[0], 0);
	assert_int_equal(kvp_slot_block(kvp_lease_slot(page, slots[0])), 0);
	munmap(page, sizeof(*page));
}

/* Against a naive walk over all slots; and lines that were never used cost nothing. */
static void next_leases(void **state)
{
	struct kvp_session_page *page = new_page();
	uint64_t rng = 7, word = kvp_word(3, 4, KVP_BLOCK_LIVE);
	struct kvp_lease lease[KVP_LEASES], two[2];
	struct kvp_block block;
	uint32_t slot = 0, lines = 0;
	(void)state;

	memset(&block, 0, sizeof(block));
	kvp_store_relaxed(&block.word, word);
	assert_int_equal(kvp_lease_next(page, &slot, &lines), 0);
	assert_int_equal(slot, KVP_LEASES);
	assert_true(lines <= KVP_LEASES / KVP_LEASE_LINE / 64);
	/* Two shards: two lines, whichever half of the words they are in. */
	assert_int_equal(kvp_lease_take(page, 0, &block, 9, word, &two[0]), 0);
	assert_int_equal(kvp_lease_take(page, KVP_SHARDS - 1, &block, 10, word, &two[1]), 0);
	slot = lines = 0;
	assert_int_equal(kvp_slot_block(kvp_lease_next(page, &slot, &lines)), 9);
	assert_int_equal(slot++, 0);
	assert_int_equal(kvp_slot_block(kvp_lease_next(page, &slot, &lines)), 10);
	assert_int_equal(slot++, KVP_LEASES - KVP_SHARD_LEASES);
	assert_int_equal(kvp_lease_next(page, &slot, &lines), 0);
	/* Each line for the call that finds its slot and for the next, and the end of each word. */
	assert_true(lines <= 2 * 2 + 2);
	kvp_lease_drop(&two[0]);
	kvp_lease_drop(&two[1]);
	for (uint32_t i = 0; i < KVP_LEASES; i++)
		assert_int_equal(kvp_lease_take(page, i, &block, i, word, &lease[i]), 0);
	for (uint32_t round = 0; round < 200; round++) {
		KVP_ATOMIC(uint64_t) *all = &page->lease[0][0];
		uint32_t naive = 0, dense = round % 4 * 5;

		for (uint32_t i = 0; i < KVP_LEASES; i++) {
			rng = rng * 6364136223846793005u + 1442695040888963407u;
			kvp_store_relaxed(&all[i], rng >> 60 < dense ? i + 1 : 0);
		}
		for (slot = lines = 0; kvp_lease_next(page, &slot, &lines); slot++, naive++) {
			while (!kvp_load_relaxed(&all[naive]))
				naive++;
			assert_int_equal(slot, naive);
		}
		while (naive < KVP_LEASES)
			assert_int_equal(kvp_load_relaxed(&all[naive++]), 0);
		assert_in_range(lines, KVP_LEASES / KVP_LEASE_LINE,
			KVP_LEASES / KVP_LEASE_LINE + KVP_LEASES);
	}
	munmap(page, sizeof(*page));
}

static uint32_t held(const struct kvp_session_page *page)
{
	kvp_block_id ids[KVP_LEASES];

	return kvp_lease_scan(page, ids, NULL, KVP_LEASES);
}

/* A lease until a moment is one until then; its slot is then anybody's, and not before. */
static void moments(void **state)
{
	struct kvp_session_page *page = new_page();
	struct kvp_lease lease[KVP_LEASES], extra;
	uint64_t word = kvp_word(3, 4, KVP_BLOCK_LIVE);
	KVP_ATOMIC(uint64_t) *slot;
	struct kvp_block block;
	(void)state;

	memset(&block, 0, sizeof(block));
	kvp_store_relaxed(&block.word, word);
	assert_int_equal(kvp_lease_take(page, 7, &block, 9, word, &lease[0]), 0);
	slot = lease[0].slot;
	kvp_lease_drop_at(page, &lease[0], kvp_until(3, 5));
	assert_null(lease[0].slot);
	kvp_store_relaxed(&page->done[2].value, 9);
	kvp_store_relaxed(&page->done[3].value, 4);
	assert_int_equal(held(page), 1);
	assert_true(kvp_lease_any(page));
	assert_int_equal(kvp_lease_take(page, 7, &block, 10, word, &lease[1]), 0);
	assert_ptr_not_equal(lease[1].slot, slot);
	kvp_store_relaxed(&page->done[3].value, 5);
	assert_int_equal(held(page), 1);
	assert_int_equal(kvp_lease_slot(page, (uint32_t)(slot - &page->lease[0][0])), 0);
	/* Whoever takes it holds it, whatever the moment was; also if the block is the same. */
	assert_int_equal(kvp_lease_take(page, 7, &block, 9, word, &lease[0]), 0);
	assert_ptr_equal(lease[0].slot, slot);
	assert_int_equal(held(page), 2);
	/* One that has come is now; one on no timeline never comes. */
	kvp_lease_drop_at(page, &lease[0], kvp_until(3, 5));
	assert_int_equal(kvp_load_relaxed(slot), 0);
	kvp_lease_drop_at(page, &lease[1], kvp_until(KVP_TIMELINES, 0));
	assert_int_equal(held(page), 1);
	assert_false(kvp_until_come(page, 0));
	munmap(page, sizeof(*page));

	page = new_page();
	for (uint32_t i = 0; i < KVP_LEASES; i++) {
		assert_int_equal(kvp_lease_take(page, 5, &block, i, word, &lease[i]), 0);
		kvp_lease_drop_at(page, &lease[i], kvp_until(i % KVP_TIMELINES, 1 + i));
	}
	assert_int_equal(kvp_lease_take(page, 5, &block, 1, word, &extra), -ENOBUFS);
	for (uint32_t i = 0; i < KVP_TIMELINES; i++)
		kvp_store_relaxed(&page->done[i].value, KVP_LEASES / 2);
	assert_int_equal(held(page), KVP_LEASES / 2);
	for (uint32_t i = 0; i < KVP_LEASES / 2; i++)
		assert_int_equal(kvp_lease_take(page, 5, &block, i, word, &lease[i]), 0);
	assert_int_equal(kvp_lease_take(page, 5, &block, 1, word, &extra), -ENOBUFS);
	assert_int_equal(held(page), KVP_LEASES);
	munmap(page, sizeof(*page));
}

static void touches(void **state)
{
	struct kvp_session_page *page = new_page();
	uint64_t out[2 * KVP_TOUCHES];
	uint32_t head = 0;
	(void)state;

	for (uint32_t i = 0; i < KVP_TOUCHES + 10; i++)
		kvp_touch_push(page, 2, i, i == 1 ? 1000000 : i);
	assert_int_equal(kvp_touch_shards(page), 1u << 2);
	assert_int_equal(kvp_touch_drain(page, 2, &head, out, 2 * KVP_TOUCHES), KVP_TOUCHES);
	assert_int_equal((uint32_t)out[7], 8);
	assert_int_equal(out[1] >> 32, 0xffff);
	assert_int_equal(kvp_load_relaxed(&page->shard[2].touch_lost), 10);
	assert_int_equal(kvp_touch_drain(page, 2, &head, out, 2 * KVP_TOUCHES), 0);
	kvp_touch_push(page, 2, 42, 1);
	assert_int_equal(kvp_touch_drain(page, 2, &head, out, 2 * KVP_TOUCHES), 1);
	/* A client that claims to have written four thousand million entries gets a bounded answer.
	 */
	kvp_store_relaxed(&page->shard[2].touch_tail, head - 5);
	assert_true(kvp_touch_drain(page, 2, &head, out, 2 * KVP_TOUCHES) <= KVP_TOUCHES);
	munmap(page, sizeof(*page));
}

static void rings(void **state)
{
	struct kvp_session_page *page = new_page();
	uint32_t client_tail = 0, ledger_head = 0, cq_tail = 0, cq_head = 0;
	struct kvp_sqe sqe, got;
	struct kvp_cqe cqe, out;
	(void)state;

	memset(&sqe, 0, sizeof(sqe));
	memset(&cqe, 0, sizeof(cqe));
	for (uint32_t round = 0; round < 5; round++) {
		for (uint32_t i = 0; i < KVP_SQ_ENTRIES; i++) {
			sqe.serial = round * 1000 + i;
			assert_int_equal(kvp_sq_push(page, &client_tail, &sqe), 0);
		}
		assert_int_equal(kvp_sq_push(page, &client_tail, &sqe), -EAGAIN);
		for (uint32_t i = 0; i < KVP_SQ_ENTRIES; i++) {
			assert_int_equal(kvp_sq_pop(page, &ledger_head, &got), 0);
			assert_int_equal(got.serial, round * 1000 + i);
		}
		assert_int_equal(kvp_sq_pop(page, &ledger_head, &got), -EAGAIN);
	}
	kvp_store_relaxed(&page->sq_tail, ledger_head + KVP_SQ_ENTRIES + 1);
	assert_int_equal(kvp_sq_pop(page, &ledger_head, &got), -EPROTO);

	assert_int_equal(kvp_cq_room(page, cq_tail), KVP_CQ_ENTRIES);
	for (uint32_t i = 0; i < KVP_CQ_ENTRIES; i++) {
		cqe.serial = i;
		kvp_cq_push(page, &cq_tail, &cqe);
	}
	assert_int_equal(kvp_cq_room(page, cq_tail), 0);
	for (uint32_t i = 0; i < KVP_CQ_ENTRIES; i++) {
		assert_int_equal(kvp_cq_pop(page, &cq_head, &out), 0);
		assert_int_equal(out.serial, i);
	}
	assert_int_equal(kvp_cq_pop(page, &cq_head, &out), -EAGAIN);
	/* A client that says it has read what was never written gets nothing more. */
	kvp_store_relaxed(&page->cq_head, cq_tail + 1);
	assert_int_equal(kvp_cq_room(page, cq_tail), 0);
	assert_int_equal(kvp_sq_must_wake(page), 0);
	kvp_sq_set_need_wake(page, 1);
	assert_int_equal(kvp_sq_must_wake(page), 1);
	munmap(page, sizeof(*page));
}

static void segments(void **state)
{
	const uint64_t bytes = 1 << 20;
	struct kvp_seg_hugeinfo info;
	void *rw, *ro, *again;
	int fd, ro_fd;
	(void)state;

	assert_int_equal(kvp_seg_create("t", 0, 0, &fd), -EINVAL);
	assert_int_equal(kvp_seg_create("t", 4097, 0, &fd), -EINVAL);
	assert_int_equal(kvp_seg_create("t", bytes, 0, &fd), 0);
	assert_int_equal(kvp_seg_map(fd, bytes, KVP_MAP_WRITE | KVP_MAP_DONTFORK, &rw), 0);
	memset(rw, 1, bytes);
	assert_int_equal(kvp_seg_check(fd, bytes, KVP_SEALS_CATALOG), -EPROTO);
	assert_int_equal(kvp_seg_seal(fd, KVP_SEALS_CATALOG), 0);
	assert_int_equal(kvp_seg_check(fd, bytes, KVP_SEALS_CATALOG), 0);
	assert_int_equal(kvp_seg_check(fd, bytes + 1, KVP_SEALS_CATALOG), -EPROTO);
	assert_int_equal(kvp_seg_check(0, bytes, 0), -EPROTO);
	assert_int_equal(kvp_seg_seal(fd, F_SEAL_WRITE), -EPERM);

	/* Nobody can make a second writable mapping, whatever descriptor they hold. */
	assert_int_equal(kvp_seg_map(fd, bytes, KVP_MAP_WRITE, &again), -EPERM);
	assert_int_equal(kvp_seg_reopen_ro(fd, &ro_fd), 0);
	assert_int_equal(kvp_seg_map(ro_fd, bytes, KVP_MAP_WRITE, &again), -EACCES);
	assert_int_equal(kvp_seg_map(ro_fd, bytes, KVP_MAP_DONTDUMP | KVP_MAP_HUGEPAGE, &ro), 0);
	assert_int_equal(mprotect(ro, bytes, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	((char *)rw)[5] = 9;
	assert_int_equal(((char *)ro)[5], 9);
	kvp_seg_unmap(ro, bytes);
	kvp_seg_unmap(rw, bytes);
	kvp_seg_unmap(NULL, bytes);
	close(fd);
	close(ro_fd);
	assert_int_equal(kvp_seg_hugeinfo(&info), 0);
	assert_true(strlen(info.shmem_thp) > 0);
}

/* Where the kernel makes one page of 2 MiB, all see what lies there; where it does not, small ones serve. */
static void huge_pages(void **state)
{
	const uint64_t bytes = 3 * KVP_SEG_HUGE - 4096;
	uint8_t *a, *b, *small;
	kvp_autoclose int fd = -1;
	(void)state;

	assert_int_equal(kvp_seg_create("t", bytes, 0, &fd), 0);
	assert_int_equal(kvp_seg_map(fd, bytes, KVP_MAP_WRITE | KVP_MAP_HUGEPAGE, (void **)&a), 0);
	assert_int_equal(kvp_seg_map(fd, bytes, KVP_MAP_HUGEPAGE, (void **)&b), 0);
	assert_int_equal((uintptr_t)a % KVP_SEG_HUGE, 0);
	assert_int_equal((uintptr_t)b % KVP_SEG_HUGE, 0);
	assert_int_equal(kvp_seg_map(fd, bytes, 0, (void **)&small), 0);
	assert_int_equal(kvp_seg_huge(a + 4096), -EINVAL);
	for (uint64_t i = 0; i + KVP_SEG_HUGE <= bytes; i += KVP_SEG_HUGE)
		(void)kvp_seg_huge(a + i);
	for (uint64_t i = 0; i < bytes; i += 4096) {
		assert_int_equal(a[i], 0);
		a[i] = (uint8_t)(i >> 12);
	}
	/* Once there is something it is kept. */
	(void)kvp_seg_huge(a + KVP_SEG_HUGE);
	for (uint64_t i = 0; i < bytes; i += 4096) {
		assert_int_equal(b[i], (uint8_t)(i >> 12));
		assert_int_equal(small[i], (uint8_t)(i >> 12));
	}
	kvp_seg_unmap(small, bytes);
	kvp_seg_unmap(b, bytes);
	kvp_seg_unmap(a, bytes);
}

static void keys(void **state)
{
	kvp_token tokens[KVP_BLOCK_TOKENS_MAX] = { 1, 2, 3 };
	struct kvp_key root = { 1, 2 }, a, b;
	(void)state;

	a = kvp_chain_key(root, tokens, 64);
	b = kvp_chain_key(root, tokens, 63);
	assert_false(kvp_key_equal(a, b));
	b = kvp_chain_key((struct kvp_key){ 2, 1 }, tokens, 64);
	assert_false(kvp_key_equal(a, b));
	assert_true(kvp_key_equal(a, kvp_chain_key(root, tokens, 64)));
	assert_true(kvp_payload_checksum("", 0) != 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(index_against_list),
		cmocka_unit_test(index_full),
		cmocka_unit_test(leases),
		cmocka_unit_test(next_leases),
		cmocka_unit_test(moments),
		cmocka_unit_test(touches),
		cmocka_unit_test(rings),
		cmocka_unit_test(segments),
		cmocka_unit_test(huge_pages),
		cmocka_unit_test(keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
