/* SPDX-License-Identifier: Apache-2.0 */
/* A tenant's curve: told by one thread, worked out by another, lost where nobody listens, left behind. */
#include "daemon/ledger/curve.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/ledger/advisor.h"

#define BLOCKS   1000u
#define PROMPT   50u
#define PROMPTS  40u /* 2,000 blocks that come round */
#define SESSIONS 4u

struct subject {
	struct kvpd_advisor v;
	struct kvpd_curve *c;
	uint32_t next; /* prompt */
	uint64_t asked;
};

static void begin(struct subject *s)
{
	const struct kvpd_advisor_config config = { .on = false };

	*s = (struct subject){ 0 };
	assert_int_equal(kvpd_advisor_init(&s->v, &config), 0);
	assert_int_equal(kvpd_curve_new(&s->v, BLOCKS, 7, &s->c), 0);
	assert_true(kvpd_curve_bytes(BLOCKS) < 500000);
}

static void end(struct subject *s)
{
	kvpd_curve_leave(s->c);
	kvpd_advisor_stop(&s->v);
	kvpd_advisor_fini(&s->v);
}

static struct kvp_key key(uint32_t prompt, uint32_t block)
{
	return (struct kvp_key){ .lo = (uint64_t)prompt * 1000 + block + 1 };
}

/* A request of which the first blocks are found, tip first, and the others brought. */
static void request(struct subject *s, uint32_t found)
{
	uint32_t prompt = s->next++ % PROMPTS, session = 1 + s->next % SESSIONS;

	kvpd_curve_begin(s->c, session);
	for (uint32_t i = found; i > 0; i--)
		kvpd_curve_used(s->c, key(prompt, i - 1), session);
	for (uint32_t i = found; i < PROMPT; i++)
		kvpd_curve_put(s->c, key(prompt, i), session);
}

static const struct kvpd_curve_points *ask(struct subject *s)
{
	const struct kvpd_curve_points *p;

	kvpd_curve_want(s->c, ++s->asked);
	while ((p = kvpd_curve_read(s->c))->number < s->asked)
		if (s->v.running)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		else
			kvpd_advisor_turn(&s->v);
	return p;
}

static void ratio_is(const struct kvpd_curve_points *p, uint64_t blocks, double least, double most)
{
	double r = kvpd_curve_ratio(p, blocks);

	if (r < least || r > most)
		fail_msg("%lu blocks: %.4f, not %.4f to %.4f", (unsigned long)blocks, r, least,
			most);
}

/* Prompts that come round: what fits of a prompt's beginning hits if all others between fit, too. */
static void test_curve(void **state)
{
	const struct kvpd_curve_points *p;
	struct subject s;

	(void)state;
	begin(&s);
	p = ask(&s);
	assert_int_equal(p->references, 0);
	ratio_is(p, 100, 0, 0);
	for (uint32_t i = 0; i < 100 * PROMPTS; i++) {
		request(&s, i % 3 ? PROMPT : i % PROMPT);
		kvpd_advisor_turn(&s.v);
	}
	p = ask(&s);
	assert_int_equal(p->requests, 100 * PROMPTS);
	assert_int_equal(p->references, 100 * PROMPTS * PROMPT);
	assert_int_equal(kvpd_curve_lost(s.c), 0);
	ratio_is(p, 0, 0, 0);
	ratio_is(p, 1, 0, 0);
	ratio_is(p, (PROMPTS - 1) * PROMPT - 200, 0, .01);
	ratio_is(p, PROMPTS * PROMPT + 200, .98, .995);
	ratio_is(p, UINT32_MAX, .98, .995);
	for (uint64_t n = 1; n < 20000; n += 7)
		assert_true(kvpd_curve_ratio(p, n) <= kvpd_curve_ratio(p, n + 7));
	end(&s);
}

/* A thread that does not listen keeps nobody waiting; what it missed is counted, and the rest is right. */
static void test_nobody_listens(void **state)
{
	const uint64_t told = 1000u * (PROMPT + 1);
	const struct kvpd_curve_points *p;
	struct subject s;
	uint64_t lost;

	(void)state;
	begin(&s);
	for (uint32_t i = 0; i < 1000; i++)
		request(&s, PROMPT);
	lost = kvpd_curve_lost(s.c);
	assert_true(lost > told / 2 && lost < told);
	p = ask(&s);
	assert_true(p->references + p->requests == told - lost);
	for (uint32_t i = 0; i < 100 * PROMPTS; i++) {
		request(&s, PROMPT);
		kvpd_advisor_turn(&s.v);
	}
	assert_int_equal(kvpd_curve_lost(s.c), lost);
	ratio_is(ask(&s), PROMPTS * PROMPT + 200, .97, 1);
	end(&s);
}

/* Longer than what is put together, by a session that shares its place with others. */
static void test_long_requests(void **state)
{
	const struct kvpd_curve_points *p;
	struct subject s;

	(void)state;
	begin(&s);
	for (uint32_t turn = 0; turn < 20; turn++) {
		uint32_t session = turn * 8 + 1;

		kvpd_curve_begin(s.c, session);
		for (uint32_t i = 3000; i > 0; i--)
			kvpd_curve_used(s.c, key(1, i), session);
		kvpd_advisor_turn(&s.v);
	}
	p = ask(&s);
	assert_int_equal(kvpd_curve_lost(s.c), 0);
	assert_int_equal(p->references, 60000);
	ratio_is(p, 4000, .94, .96);
	end(&s);
}

/* The thread works while it is told and asked, and is left with what it has. */
static void test_two_threads(void **state)
{
	struct subject s;

	(void)state;
	begin(&s);
	assert_int_equal(kvpd_advisor_start(&s.v), 0);
	for (uint32_t i = 0; i < 10; i++) {
		const struct kvpd_curve_points *p;

		for (uint32_t k = 0; k < PROMPTS; k++)
			request(&s, k);
		p = ask(&s);
		assert_int_equal(p->references + p->requests + kvpd_curve_lost(s.c),
			(i + 1) * PROMPTS * (PROMPT + 1));
	}
	end(&s);
	for (uint32_t i = 0; i < 50; i++) {
		begin(&s);
		assert_int_equal(kvpd_advisor_start(&s.v), 0);
		request(&s, 3);
		kvpd_curve_want(s.c, 1);
		end(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_curve),
		cmocka_unit_test(test_nobody_listens),
		cmocka_unit_test(test_long_requests),
		cmocka_unit_test(test_two_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
