/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reader can meet while the ledger writes a block: a process changes it and is stopped after every
 * instruction. A reader loads the word, where, the offset and the word again, each at any of these moments: if
 * the words are equal the place is that of this word.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/shm/toy_ledger.h"

#define TOKENS    64u
#define MOMENTS   64u      /* at which the descriptor differs from the moment before */
#define STEPS_MAX 1000000u /* with a sanitizer there are some thousand */

struct place {
	uint64_t where, offset;
};

/* In different extents, so that half of one and half of another is neither. */
static struct place place_of(uint32_t i)
{
	return (struct place){ kvp_where(i, KVP_CODEC_NATIVE, 64 + i), 4096 * i };
}

struct rig {
	struct toy toy;
	kvp_block_id id;
	kvp_token tokens[TOKENS];
	struct kvp_block at[MOMENTS]; /* as it was, one after the other */
	uint32_t n;
	uint32_t steps;
};

static void rig_make(struct rig *g)
{
	memset(g, 0, sizeof(*g));
	toy_init(&g->toy, 8, TOKENS, false);
	for (uint32_t i = 0; i < TOKENS; i++)
		g->tokens[i] = 7 * i;
}

static void put_place(struct rig *g, uint32_t tier, uint32_t i)
{
	struct place p = place_of(i);

	kvp_block_set_payload(&g->toy.v, g->id, tier, p.where, p.offset, 0);
}

static void insert(struct rig *g)
{
	assert_int_equal(toy_insert(&g->toy, KVP_BLOCK_NONE, g->tokens, TOKENS,
				 (struct kvp_key){ 0 }, place_of(0).offset, &g->id),
		0);
	put_place(g, KVP_TIER_DRAM, 0);
}

static void look(struct rig *g)
{
	struct kvp_block now;

	memcpy(&now, &g->toy.v.blocks[g->id], sizeof(now));
	if (g->n && memcmp(&now, &g->at[g->n - 1], sizeof(now)) == 0)
		return;
	assert_true(g->n < MOMENTS);
	g->at[g->n++] = now;
}

static void stopped(pid_t child, int *ret_status)
{
	pid_t r;

	do
		r = waitpid(child, ret_status, 0);
	while (r < 0 && errno == EINTR);
	assert_int_equal(r, child);
}

/* Has a process do it, step by step. False: this machine does not let itself be traced. */
static bool watch(struct rig *g, void (*act)(struct rig *g))
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
			_exit(77);
		raise(SIGSTOP);
		act(g);
		kill(getpid(), SIGUSR1); /* the tracer sees it, and it is over */
		_exit(1);
	}
	stopped(child, &status);
	if (WIFEXITED(status)) {
		assert_int_equal(WEXITSTATUS(status), 77);
		return false;
	}
	look(g);
	for (g->steps = 0; g->steps < STEPS_MAX; g->steps++) {
		assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
		stopped(child, &status);
		assert_true(WIFSTOPPED(status));
		if (WSTOPSIG(status) == SIGUSR1)
			break;
		look(g);
	}
	assert_true(g->steps < STEPS_MAX);
	kill(child, SIGKILL);
	stopped(child, &status);
	printf("%u instructions, %u states of the descriptor\n", g->steps, g->n);
	return true;
}

/* Every reader's four loads, at any moments in this order, against what the word stands for. */
static uint32_t check_readers(const struct rig *g, uint32_t tier,
	bool (*right)(const struct rig *g, uint64_t word, struct place seen))
{
	uint32_t read = 0;

	for (uint32_t i = 0; i < g->n; i++) {
		uint64_t word = kvp_load_relaxed(&g->at[i].word);

		for (uint32_t last = i; kvp_word_lives(word) && last < g->n; last++) {
			if (kvp_load_relaxed(&g->at[last].word) != word)
				continue;
			for (uint32_t j = i; j <= last; j++)
				for (uint32_t k = j; k <= last; k++) {
					struct place seen;
					uint64_t other;

					kvp_payload_read(
						&g->at[j], word, tier, &seen.where, &other);
					kvp_payload_read(
						&g->at[k], word, tier, &other, &seen.offset);
					if (!right(g, word, seen))
						fail_msg("word %#llx at moments %u %u %u %u: "
							 "%#llx %llu",
							(unsigned long long)word, i, j, k, last,
							(unsigned long long)seen.where,
							(unsigned long long)seen.offset);
					read++;
				}
		}
	}
	return read;
}

static bool is_place(struct place seen, uint32_t i)
{
	struct place p = place_of(i);

	return seen.where == p.where && seen.offset == p.offset;
}

/* ---- a block moves, twice ---- */

static void move_twice(struct rig *g)
{
	for (uint32_t i = 1; i <= 2; i++) {
		struct place p = place_of(i);

		kvp_block_move(&g->toy.v, g->id, p.where, p.offset, 0);
	}
}

static bool right_moved(const struct rig *g, uint64_t word, struct place seen)
{
	return is_place(
		seen, kvp_word_move(word) - kvp_word_move(kvp_load_relaxed(&g->at[0].word)));
}

static void a_move_is_whole(void **state)
{
	struct rig g;
	uint32_t lives = 0;

	(void)state;
	rig_make(&g);
	insert(&g);
	if (!watch(&g, move_twice))
		skip();
	assert_true(check_readers(&g, KVP_TIER_DRAM, right_moved) > g.n);
	/* A hit all the while. */
	for (uint32_t i = 0; i < g.n; i++)
		lives += kvp_word_lives(kvp_load_relaxed(&g.at[i].word));
	assert_int_equal(lives, g.n);
	assert_true(is_place(
		(struct place){ kvp_load_relaxed(&g.at[g.n - 1].payload[KVP_TIER_DRAM].where),
			kvp_load_relaxed(&g.at[g.n - 1].payload[KVP_TIER_DRAM].offset) },
		2));
	toy_fini(&g.toy);
}

/* ---- a payload appears in another tier, and goes ---- */

static void appear_and_fade(struct rig *g)
{
	put_place(g, KVP_TIER_VRAM, 1);
	if (!kvp_block_mark(&g->toy.v, g->id))
		_exit(1);
	kvp_block_set_payload(&g->toy.v, g->id, KVP_TIER_VRAM, 0, 0, 0);
	kvp_block_moved(&g->toy.v, g->id, KVP_BLOCK_LIVE);
	put_place(g, KVP_TIER_VRAM, 2);
}

static bool right_there(const struct rig *g, uint64_t word, struct place seen)
{
	uint32_t moves = kvp_word_move(word) - kvp_word_move(kvp_load_relaxed(&g->at[0].word));

	return !seen.where || is_place(seen, 1 + moves);
}

static bool right_stays(const struct rig *g, uint64_t word, struct place seen)
{
	(void)g;
	(void)word;
	return is_place(seen, 0);
}

static void a_payload_appears_and_goes_whole(void **state)
{
	struct rig g;

	(void)state;
	rig_make(&g);
	insert(&g);
	if (!watch(&g, appear_and_fade))
		skip();
	assert_true(check_readers(&g, KVP_TIER_VRAM, right_there) > g.n);
	assert_true(check_readers(&g, KVP_TIER_DRAM, right_stays) > g.n);
	toy_fini(&g.toy);
}

/* ---- a block is published ---- */

static void publish(struct rig *g)
{
	struct kvp_key root = { g->toy.v.spaces[0].root_lo, g->toy.v.spaces[0].root_hi };
	struct kvp_block_init init = { .parent = KVP_BLOCK_NONE,
		.n_tokens = TOKENS,
		.tokens = g->tokens,
		.parent_key = root,
		.key = kvp_chain_key(root, g->tokens, TOKENS),
		.serial = 1 };

	kvp_block_fill(&g->toy.v, g->id, &init);
	put_place(g, KVP_TIER_DRAM, 0);
	kvp_block_publish(&g->toy.v, g->id, root);
}

static void what_is_published_is_whole(void **state)
{
	struct rig g;
	struct kvp_hit hit;

	(void)state;
	rig_make(&g);
	g.id = 3;
	if (!watch(&g, publish))
		skip();
	assert_true(check_readers(&g, KVP_TIER_DRAM, right_stays) > 0);
	for (uint32_t i = 0; i < g.n; i++)
		if (kvp_word_lives(kvp_load_relaxed(&g.at[i].word)))
			assert_int_equal(kvp_load_relaxed(&g.at[i].shape), kvp_shape(0, TOKENS));
	assert_true(kvp_block_is(
		&g.toy.v, g.id, 0, KVP_BLOCK_NONE, g.tokens, TOKENS, KVP_TIERS_DRAM, &hit));
	toy_fini(&g.toy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_move_is_whole),
		cmocka_unit_test(a_payload_appears_and_goes_whole),
		cmocka_unit_test(what_is_published_is_whole),
	};

#if !defined(__x86_64__) && !defined(__aarch64__)
	printf("no single steps here\n");
	return 77;
#endif
	return cmocka_run_group_tests(tests, NULL, NULL);
}
