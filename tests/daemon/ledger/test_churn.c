/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A day of churn, scaled: what is asked for is blocks of one size for some time, and then of another, so that memory that
 * was cut for one is wanted for the next again and again, while blocks go and are deleted. What is held and holds nothing
 * must come down to the same each time. And the same with all sizes at a time, of which one prevails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "tests/daemon/ledger/dp_world.h"

#define T      16u
#define MIB    (UINT64_C(1) << 20)
#define SIZES  3u
#define HOURS  6u
#define RECENT 16u        /* blocks of which some are deleted: the last ones */
#define SHARE  (16 * MIB) /* with 1.7 MiB of metadata, and arenas of all sizes */
#define PUTS   20000u     /* in an hour at most */
/* Arenas of the sizes before hold nothing, and are a quarter of the share at most; slots that are free come to that. */
#define MOST        .4
#define MIXED_SHARE (20 * MIB)
#define MIXED_PUTS  1000u

static const uint32_t block_bytes[SIZES] = { 32u << 10, 136u << 10, 72u << 10 };

struct day {
	struct dp_world w;
	struct dp_client *c;
	uint32_t space[SIZES];
	struct dp_block recent[RECENT];
	uint32_t n; /* blocks so far */
	unsigned seed;
};

static struct day *begin(uint64_t share)
{
	struct day *d = calloc(1, sizeof(*d));
	struct kvpd_limits limits;

	dp_defaults(&d->w, &limits);
	limits.share = share;
	limits.max_blocks = 1024;
	d->seed = 5;
	dp_start(&d->w, &limits);
	d->c = dp_attach(&d->w, d->w.tenant);
	for (uint32_t i = 0; i < SIZES; i++) {
		char model[16];

		snprintf(model, sizeof(model), "m%u", i);
		d->space[i] = dp_large_space(d->c, model, block_bytes[i]);
	}
	return d;
}

static void put(struct day *d, uint32_t size)
{
	struct dp_block *b = &d->recent[d->n % RECENT];
	kvp_token tokens[T];

	for (uint32_t i = 0; i < T; i++)
		tokens[i] = d->n * T + i;
	assert_int_equal(dp_put(d->c, d->space[size], dp_root(), tokens, T, b), 0);
	d->n++;
}

/* One of the last ones; it may have gone. */
static void delete_one(struct day *d)
{
	const struct dp_block *b = &d->recent[(uint32_t)rand_r(&d->seed) % RECENT];
	struct kvp_sqe sqe = {
		.op = KVP_OP_DELETE,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = b->id,
		.parent_birth = b->birth,
	};

	dp_push(d->c, &sqe);
}

static double look(struct day *d)
{
	struct kvpd_figures f;
	double part;

	assert_int_equal(dp_figures(&d->w, NULL, 0, &f), 0);
	assert_true(f.tenant[0].charged_bytes <= f.tenant[0].share_bytes);
	part = kvpd_fragmentation(&f.tenant[0]);
	kvpd_figures_fini(&f);
	return part;
}

/* As many blocks as the share holds, so that whatever lay there has gone; and more until it is used for these. */
static void hour(struct day *d, uint32_t size)
{
	const struct timespec pause = { 0, 1000000 };
	uint32_t n = 0;
	double part;

	for (; n < SHARE / block_bytes[size]; n++) {
		put(d, size);
		if (d->n > RECENT && rand_r(&d->seed) % 32 == 0)
			delete_one(d);
	}
	for (; (part = look(d)) > MOST; n++) {
		assert_true(n < PUTS);
		put(d, size);
		nanosleep(&pause, NULL); /* what is emptied for others is so by and by */
	}
	print_message("%3u KiB: of the memory %.2f holds nothing, after %u blocks\n",
		block_bytes[size] >> 10, part, n);
}

/* */
static void test_a_day(void **state)
{
	struct day *d = begin(SHARE);

	(void)state;
	for (uint32_t i = 0; i < HOURS; i++)
		hour(d, i % SIZES);
	dp_flush(d->c);
	dp_check(&d->w);
	dp_stop(&d->w);
	free(d);
}

/* Of ten blocks eight are of this size, or nine. Returns which part of the memory holds nothing, on average, in the second half. */
static double mixed_hour(struct day *d, uint32_t size)
{
	double sum = 0;

	for (uint32_t n = 0; n < MIXED_PUTS; n++) {
		uint32_t any = (uint32_t)rand_r(&d->seed) / 7;

		put(d, any % 10 < 8 ? size : any / 10 % SIZES);
		if (n >= MIXED_PUTS / 2)
			sum += look(d);
	}
	return sum / (MIXED_PUTS - MIXED_PUTS / 2);
}

/* blocks go by use, whatever their size, and what they leave is of use to those that come in their place. */
static void test_a_mixed_day(void **state)
{
	struct day *d = begin(MIXED_SHARE);

	(void)state;
	for (uint32_t i = 0; i < HOURS; i++) {
		double part = mixed_hour(d, i % SIZES);

		print_message("mostly %3u KiB: of the memory %.2f holds nothing\n",
			block_bytes[i % SIZES] >> 10, part);
		assert_true(part < MOST);
	}
	dp_flush(d->c);
	dp_check(&d->w);
	dp_stop(&d->w);
	free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_day),
		cmocka_unit_test(test_a_mixed_day),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
