/* SPDX-License-Identifier: Apache-2.0 */
/* Random takes and gives against a plain array; seed printed, KVP_TEST_SEED overrides. */
#include "daemon/ledger/runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static uint64_t seed;

static uint32_t rnd(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(seed >> 33) % n;
}

static void read_seed(void)
{
	const char *text = getenv("KVP_TEST_SEED");

	seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
	print_message("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
}

struct run {
	uint32_t first, n;
};

static void take_checked(struct kvpd_runs *r, uint8_t *taken, uint32_t total, struct run *run)
{
	uint32_t prefer = rnd(3) ? KVPD_RUN_NONE : rnd(total + 10);
	uint32_t first = kvpd_runs_take(r, run->n, prefer);

	run->first = first;
	if (first == KVPD_RUN_NONE) {
		/* then there really is no run of this length inside of 64 */
		for (uint32_t i = 0, len = 0; i < total; i++) {
			len = i % 64 == 0 ? 0 : len;
			len = taken[i] ? 0 : len + 1;
			assert_true(len < run->n);
		}
		return;
	}
	assert_true(first + run->n <= total && first / 64 == (first + run->n - 1) / 64);
	for (uint32_t i = 0; i < run->n; i++) {
		assert_false(taken[first + i]);
		taken[first + i] = 1;
	}
	if (prefer < total && prefer / 64 == (prefer + run->n - 1) / 64 && first != prefer) {
		bool was_free = prefer + run->n <= total;

		for (uint32_t i = 0; was_free && i < run->n; i++)
			was_free = !taken[prefer + i] ||
				   (prefer + i >= first && prefer + i < first + run->n);
		assert_false(was_free);
	}
}

static void random_runs(void **state)
{
	(void)state;
	read_seed();
	for (int round = 0; round < 30; round++) {
		uint32_t total = 1 + rnd(9000), n_runs = 0, n_taken = 0;
		struct run *run = calloc(total + 1, sizeof(*run));
		uint8_t *taken = calloc(total, 1);
		struct kvpd_runs r;

		assert_non_null(run);
		assert_non_null(taken);
		assert_int_equal(kvpd_runs_init(&r, total), 0);
		for (int i = 0; i < 4000; i++) {
			if (rnd(5) < 3) {
				run[n_runs].n = 1 + rnd(round % 2 ? 4 : KVPD_RUN_MAX);
				take_checked(&r, taken, total, &run[n_runs]);
				if (run[n_runs].first != KVPD_RUN_NONE)
					n_taken += run[n_runs++].n;
			} else if (n_runs) {
				uint32_t k = rnd(n_runs);

				kvpd_runs_give(&r, run[k].first, run[k].n);
				memset(taken + run[k].first, 0, run[k].n);
				n_taken -= run[k].n;
				run[k] = run[--n_runs];
			}
			assert_int_equal(r.n_free, total - n_taken);
		}
		for (uint32_t i = 0; i < total; i++)
			assert_int_equal(kvpd_runs_is_free(&r, i), !taken[i]);
		kvpd_runs_fini(&r);
		free(run);
		free(taken);
	}
}

/* A chain that asks for the place behind its parent gets it while it is free. */
static void chains_lie_in_order(void **state)
{
	struct kvpd_runs r;
	uint32_t a, b;

	(void)state;
	assert_int_equal(kvpd_runs_init(&r, 4096), 0);
	a = kvpd_runs_take(&r, 4, KVPD_RUN_NONE);
	b = kvpd_runs_take(&r, 4, KVPD_RUN_NONE);
	for (uint32_t i = 1; i < 16; i++) {
		assert_int_equal(kvpd_runs_take(&r, 4, a + 4), a + 4);
		assert_int_equal(kvpd_runs_take(&r, 4, b + 4), b + 4);
		a += 4;
		b += 4;
	}
	kvpd_runs_fini(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_runs),
		cmocka_unit_test(chains_lie_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
