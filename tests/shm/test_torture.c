/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One writer that inserts and evicts as fast as it can, and readers that match, lease, read the
 * payload and release, or release at a moment and read, as a device would, before it has come: in
 * threads (for ThreadSanitizer) and in processes, two of them in one page. A payload is four words
 * derived from the block's tokens; an evicted one is overwritten at once, and so is the place that a block
 * moved from when the leases of then have ended, so that a lease that does not protect shows as wrong bytes.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shm/toy_ledger.h"

#define BT         16u
#define MAX_BLOCKS 48u
#define CHAIN      6u
#define READERS    3u
#define PAGES      2u
#define WORDS      4u
#define TAKES      1500000u /* of each thread */
#define LOOKS      20u      /* at a lease while it stands */
#define AWAY       12u      /* slots of the second tier; the first one is never used */
#define SLOTS      (MAX_BLOCKS + 8u)
#define LIMBOS     4u
#define HOLDERS    64u

struct arena {
	KVP_ATOMIC(uint64_t) payload[SLOTS][WORDS];
	KVP_ATOMIC(uint64_t) away[AWAY][WORDS];
	KVP_ATOMIC(uint32_t) stop;
	KVP_ATOMIC(uint32_t) wrong;
	KVP_ATOMIC(uint64_t) leased_reads;
	KVP_ATOMIC(uint64_t) away_reads; /* of these, in the second tier */
	KVP_ATOMIC(uint64_t) late;       /* leases that were over at a moment */
	KVP_ATOMIC(uint64_t) stale;
	KVP_ATOMIC(uint64_t) followed; /* blocks that moved between being found and being leased */
};

/* The old place of a block that was moved under leases. */
struct limbo {
	uint32_t slot;
	uint32_t n; /* 0: none */
	struct toy_holder holder[HOLDERS];
};

struct torture {
	struct toy toy;
	struct arena *arena;
	struct kvp_session_page *page[PAGES];
	kvp_block_id away[AWAY]; /* whose payload lies there; KVP_BLOCK_NONE: nobody's */
	uint32_t free_slot[SLOTS], n_free;
	struct limbo limbo[LIMBOS];
	uint64_t appeared, faded, moved, kept;
	uint64_t seed;
	uint32_t rounds;
};

struct reader {
	struct torture *t;
	uint32_t number;
};

static uint64_t payload_word(const kvp_token *tokens, uint32_t n, uint32_t i)
{
	return kvp_chain_key((struct kvp_key){ i, 77 }, tokens, n).lo;
}

/* Ten prompts; every block of prompt p begins with p, so that some share nothing, some a prefix. */
static void prompt(uint32_t p, kvp_token *out)
{
	for (uint32_t i = 0; i < CHAIN * BT; i++)
		out[i] = i < 2 * BT ? (p % 2) * 1000 + i : p * 1000 + i;
}

static void read_leased(
	struct torture *t, const kvp_token *tokens, const struct kvp_hit *hits, uint32_t n)
{
	for (uint32_t b = 0; b < n; b++) {
		KVP_ATOMIC(uint64_t) *at = hits[b].tier == KVP_TIER_VRAM
						   ? t->arena->away[hits[b].offset]
						   : t->arena->payload[hits[b].offset];

		for (uint32_t i = 0; i < WORDS; i++)
			if (kvp_load_relaxed(&at[i]) != payload_word(tokens + b * BT, BT, i))
				kvp_add_relaxed(&t->arena->wrong, 1);
		if (hits[b].tier == KVP_TIER_VRAM)
			kvp_add_relaxed(&t->arena->away_reads, 1);
	}
	kvp_add_relaxed(&t->arena->leased_reads, n);
}

/* A lease on the last of n hits, and proof of all; what moved meanwhile is followed. */
static bool lease_all(struct torture *t, struct kvp_session_page *page, uint32_t tiers,
	struct kvp_hit *hits, uint32_t n, struct kvp_lease *lease)
{
	const struct kvp_catalog_view *v = &t->toy.v;
	uint32_t i;

	if (kvp_lease_take(page, 0, &v->blocks[hits[n - 1].id], hits[n - 1].id, hits[n - 1].word,
		    lease) < 0)
		return false;
	while ((i = kvp_revalidate(v, hits, n)) < n && kvp_hit_renew(v, tiers, &hits[i]) == 0)
		kvp_add_relaxed(&t->arena->followed, 1);
	return i == n;
}

static void *reader_main(void *arg)
{
	struct reader *r = arg;
	struct torture *t = r->t;
	struct kvp_session_page *page = t->page[r->number % PAGES];
	uint64_t moment = 0;
	uint64_t rng = t->seed + r->number + 1;
	uint32_t tiers = r->number ? KVP_TIERS(KVP_TIER_VRAM, KVP_TIER_DRAM, KVP_TIER_RECIPE)
				   : KVP_TIERS_DRAM;
	kvp_token tokens[CHAIN * BT];
	struct kvp_hit hits[CHAIN];
	struct kvp_found f;

	while (!kvp_load_relaxed(&t->arena->stop)) {
		struct kvp_lease lease = { NULL };

		prompt((uint32_t)(toy_random(&rng) % 10), tokens);
		kvp_find(
			&t->toy.v, 0, tokens, CHAIN * BT, KVP_FIND_NO_TAIL, tiers, hits, CHAIN, &f);
		if (!f.n_hits)
			continue;
		if (!lease_all(t, page, tiers, hits, f.n_hits, &lease)) {
			kvp_lease_drop(&lease);
			kvp_add_relaxed(&t->arena->stale, 1);
			continue;
		}
		if (toy_random(&rng) & 1) {
			read_leased(t, tokens, hits, f.n_hits);
			kvp_lease_drop(&lease);
			continue;
		}
		kvp_lease_drop_at(page, &lease, kvp_until(r->number, ++moment));
		read_leased(t, tokens, hits, f.n_hits);
		kvp_add_relaxed(&t->arena->late, 1);
		/* Release: what a device does after it has read. */
		kvp_store_release(&page->done[r->number].value, moment);
	}
	return NULL;
}

static void poison(KVP_ATOMIC(uint64_t) *at)
{
	for (uint32_t i = 0; i < WORDS; i++)
		kvp_store_relaxed(&at[i], UINT64_C(0xdeaddeaddeaddead));
}

static void scribble(void *ctx, kvp_block_id id, uint64_t offset)
{
	struct torture *t = ctx;

	poison(t->arena->payload[offset]);
	t->free_slot[t->n_free++] = (uint32_t)offset;
	for (uint32_t i = 1; i < AWAY; i++) {
		if (t->away[i] != id)
			continue;
		poison(t->arena->away[i]);
		t->away[i] = KVP_BLOCK_NONE;
	}
}

static uint64_t place_of(const struct torture *t, kvp_block_id id)
{
	return kvp_load_relaxed(&t->toy.v.blocks[id].payload[KVP_TIER_DRAM].offset);
}

static void copy(KVP_ATOMIC(uint64_t) *to, KVP_ATOMIC(uint64_t) *from)
{
	for (uint32_t k = 0; k < WORDS; k++)
		kvp_store_relaxed(&to[k], kvp_load_relaxed(&from[k]));
}

/* Old places whose leases have all ended are overwritten, and free. */
static void limbo_turn(struct torture *t)
{
	for (uint32_t i = 0; i < LIMBOS; i++) {
		struct limbo *l = &t->limbo[i];
		uint32_t had = l->n, n = 0;

		for (uint32_t k = 0; k < had; k++)
			if (toy_holds(&t->toy, &l->holder[k]))
				l->holder[n++] = l->holder[k];
		l->n = n;
		if (!had || n)
			continue;
		poison(t->arena->payload[l->slot]);
		t->free_slot[t->n_free++] = l->slot;
	}
}

/* Moves a block, whoever reads it. */
static void move_turn(struct torture *t, uint64_t *rng)
{
	kvp_block_id id = (kvp_block_id)(toy_random(rng) % MAX_BLOCKS);
	uint64_t from = place_of(t, id);
	struct limbo *l = t->limbo;
	uint32_t n, to;

	limbo_turn(t);
	while (l < t->limbo + LIMBOS && l->n)
		l++;
	if (l == t->limbo + LIMBOS || !t->n_free || from >= SLOTS)
		return;
	to = t->free_slot[t->n_free - 1];
	copy(t->arena->payload[to], t->arena->payload[from]);
	n = toy_move(&t->toy, id, to, l->holder, HOLDERS);
	if (n == UINT32_MAX) {
		poison(t->arena->payload[to]);
		return;
	}
	t->n_free--;
	t->moved++;
	if (n) {
		l->slot = (uint32_t)from;
		l->n = n;
		t->kept++;
		return;
	}
	poison(t->arena->payload[from]);
	t->free_slot[t->n_free++] = (uint32_t)from;
}

/* Empties one slot of the second tier if it can, and fills one if it is empty. */
static void tier_turn(struct torture *t, uint64_t *rng)
{
	uint32_t i = 1 + (uint32_t)(toy_random(rng) % (AWAY - 1));
	kvp_block_id id = (kvp_block_id)(toy_random(rng) % MAX_BLOCKS);

	if (t->away[i] != KVP_BLOCK_NONE) {
		if (!toy_fade(&t->toy, t->away[i], KVP_TIER_VRAM))
			return;
		poison(t->arena->away[i]);
		t->away[i] = KVP_BLOCK_NONE;
		t->faded++;
	}
	/* A block that is not LIVE has no bytes that anybody wants: they are overwritten. */
	copy(t->arena->away[i], t->arena->payload[place_of(t, id)]);
	if (toy_appear(&t->toy, id, KVP_TIER_VRAM, kvp_where(1, KVP_CODEC_NATIVE, 64), i)) {
		t->away[i] = id;
		t->appeared++;
	} else {
		poison(t->arena->away[i]);
	}
}

static void write_chain(struct torture *t, uint32_t p, uint32_t depth)
{
	const struct kvp_key none = { 0, 0 };
	kvp_token tokens[CHAIN * BT];
	struct kvp_hit hits[CHAIN];
	struct kvp_found f;
	kvp_block_id parent;

	prompt(p, tokens);
	kvp_find(&t->toy.v, 0, tokens, depth * BT, KVP_FIND_NO_TAIL, KVP_TIERS_DRAM, hits, CHAIN,
		&f);
	parent = f.n_hits ? hits[f.n_hits - 1].id : KVP_BLOCK_NONE;
	for (uint32_t b = f.n_hits; b < depth && t->toy.n_free && t->n_free; b++) {
		uint32_t slot = t->free_slot[--t->n_free];

		for (uint32_t i = 0; i < WORDS; i++)
			kvp_store_relaxed(
				&t->arena->payload[slot][i], payload_word(tokens + b * BT, BT, i));
		if (toy_insert(&t->toy, parent, tokens + b * BT, BT, none, slot, &parent) < 0)
			abort();
	}
}

static void writer_main(struct torture *t)
{
	uint64_t rng = t->seed;

	for (uint32_t round = 0; round < t->rounds; round++) {
		kvp_block_id batch[8];

		write_chain(t, (uint32_t)(toy_random(&rng) % 10),
			1 + (uint32_t)(toy_random(&rng) % CHAIN));
		for (uint32_t i = 0; i < 8; i++)
			batch[i] = (kvp_block_id)(toy_random(&rng) % MAX_BLOCKS);
		toy_evict(&t->toy, batch, 8, scribble, t);
		tier_turn(t, &rng);
		tier_turn(t, &rng);
		move_turn(t, &rng);
		move_turn(t, &rng);
	}
	kvp_store_release(&t->arena->stop, 1);
}

static void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

static void torture_init(struct torture *t, uint32_t rounds)
{
	memset(t, 0, sizeof(*t));
	t->seed = toy_seed();
	t->rounds = rounds;
	toy_init(&t->toy, MAX_BLOCKS, BT, true);
	t->arena = shared(sizeof(*t->arena));
	for (uint32_t i = 0; i < AWAY; i++) {
		t->away[i] = KVP_BLOCK_NONE;
		poison(t->arena->away[i]);
	}
	for (uint32_t i = 0; i < SLOTS; i++)
		t->free_slot[t->n_free++] = i;
	for (uint32_t i = 0; i < PAGES; i++)
		t->page[i] = shared(sizeof(*t->page[i]));
	t->toy.pages = t->page;
	t->toy.n_pages = PAGES;
}

static void torture_fini(struct torture *t)
{
	printf("leased block reads %llu (%llu of a second payload), stale matches %llu, appeared "
	       "%llu, faded %llu, moved %llu (%llu leased), followed %llu\n",
		(unsigned long long)kvp_load_relaxed(&t->arena->leased_reads),
		(unsigned long long)kvp_load_relaxed(&t->arena->away_reads),
		(unsigned long long)kvp_load_relaxed(&t->arena->stale),
		(unsigned long long)t->appeared, (unsigned long long)t->faded,
		(unsigned long long)t->moved, (unsigned long long)t->kept,
		(unsigned long long)kvp_load_relaxed(&t->arena->followed));
	assert_int_equal(kvp_load_relaxed(&t->arena->wrong), 0);
	assert_true(kvp_load_relaxed(&t->arena->leased_reads) > 0);
	assert_true(kvp_load_relaxed(&t->arena->away_reads) > 0);
	assert_true(kvp_load_relaxed(&t->arena->late) > 0);
	assert_true(t->appeared > 0 && t->faded > 0 && t->moved > 0);
	for (uint32_t i = 0; i < PAGES; i++)
		munmap(t->page[i], sizeof(*t->page[i]));
	munmap(t->arena, sizeof(*t->arena));
	toy_fini(&t->toy);
}

static void in_threads(void **state)
{
	pthread_t thread[READERS];
	struct reader reader[READERS];
	struct torture t;
	(void)state;

	torture_init(&t, 60000);
	for (uint32_t i = 0; i < READERS; i++) {
		reader[i] = (struct reader){ .t = &t, .number = i };
		assert_int_equal(pthread_create(&thread[i], NULL, reader_main, &reader[i]), 0);
	}
	writer_main(&t);
	for (uint32_t i = 0; i < READERS; i++)
		pthread_join(thread[i], NULL);
	torture_fini(&t);
}

static void in_processes(void **state)
{
	pid_t pid[READERS];
	struct torture t;
	(void)state;

	torture_init(&t, 60000);
	for (uint32_t i = 0; i < READERS; i++) {
		pid[i] = fork();
		assert_true(pid[i] >= 0);
		if (!pid[i]) {
			struct reader reader = { .t = &t, .number = i };

			reader_main(&reader);
			_exit(0);
		}
	}
	writer_main(&t);
	for (uint32_t i = 0; i < READERS; i++) {
		int status;

		assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
		assert_int_equal(status, 0);
	}
	torture_fini(&t);
}

struct taker {
	struct kvp_session_page *page;
	const struct kvp_block *block;
	pthread_barrier_t *all;
	uint32_t number;
	uint32_t taken, lost;
};

static void *taker_main(void *arg)
{
	struct taker *t = arg;
	uint64_t word = kvp_load_relaxed(&t->block->word);

	pthread_barrier_wait(t->all);
	for (uint32_t i = 0; i < TAKES; i++) {
		kvp_block_id id = t->number * TAKES + i; /* nobody else's */
		struct kvp_lease lease;

		if (kvp_lease_take(t->page, 0, t->block, id, word, &lease) < 0)
			continue;
		t->taken++;
		for (uint32_t k = 0; k < LOOKS; k++)
			if (kvp_load_relaxed(lease.slot) != kvp_slot_value(id, word)) {
				t->lost++;
				break;
			}
		kvp_lease_drop_at(t->page, &lease, kvp_until(t->number, i + 1));
		kvp_store_release(&t->page->done[t->number].value, i + 1);
	}
	return NULL;
}

/* A slot whose moment has come is taken over by one of those that want it, whose lease stays there until it ends. */
static void a_slot_is_taken_over_once(void **state)
{
	struct kvp_session_page *page = shared(sizeof(*page));
	struct taker taker[READERS];
	pthread_t thread[READERS];
	pthread_barrier_t all;
	struct kvp_block block;
	(void)state;

	memset(&block, 0, sizeof(block));
	kvp_store_relaxed(&block.word, kvp_word(3, 4, KVP_BLOCK_LIVE));
	pthread_barrier_init(&all, NULL, READERS);
	for (uint32_t i = 0; i < READERS; i++) {
		taker[i] =
			(struct taker){ .page = page, .block = &block, .all = &all, .number = i };
		assert_int_equal(pthread_create(&thread[i], NULL, taker_main, &taker[i]), 0);
	}
	for (uint32_t i = 0; i < READERS; i++) {
		pthread_join(thread[i], NULL);
		assert_true(taker[i].taken > 0);
		assert_int_equal(taker[i].lost, 0);
	}
	pthread_barrier_destroy(&all);
	munmap(page, sizeof(*page));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_threads),
		cmocka_unit_test(in_processes),
		cmocka_unit_test(a_slot_is_taken_over_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
