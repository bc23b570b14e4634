/* SPDX-License-Identifier: Apache-2.0 */
/* How much a session takes at once. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/ledger/pace.h"

#define NOW (UINT64_C(1000) * KVPD_BURST_NS)

static void what_comes_together_is_one_burst(void **state)
{
	struct kvpd_pace p = { 0 };

	(void)state;
	for (uint64_t i = 0; i < 10; i++)
		kvpd_pace_note(&p, 100, NOW + i * KVPD_BURST_NS / 10);
	assert_int_equal(p.burst, 1000);
	kvpd_pace_note(&p, 100, NOW + KVPD_BURST_NS);
	assert_int_equal(p.burst, 1000);
	assert_int_equal(p.taken, 100);
}

static void it_is_forgotten_burst_by_burst(void **state)
{
	struct kvpd_pace p = { 0 };

	(void)state;
	kvpd_pace_note(&p, 800, NOW);
	for (uint64_t i = 1; i < 4; i++)
		kvpd_pace_note(&p, 10, NOW + i * KVPD_BURST_NS);
	/* The first was the largest, and the last is not over. */
	assert_int_equal(p.burst, 800 - 100 - 87);
	for (uint64_t i = 4; i < 200; i++)
		kvpd_pace_note(&p, 10, NOW + i * KVPD_BURST_NS);
	assert_in_range(p.burst, 10, 17);
	kvpd_pace_note(&p, 5000, NOW + 200 * KVPD_BURST_NS);
	assert_int_equal(p.burst, 5000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_comes_together_is_one_burst),
		cmocka_unit_test(it_is_forgotten_burst_by_burst),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
