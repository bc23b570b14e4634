/* SPDX-License-Identifier: Apache-2.0 */
/* How long somebody waits for precision before blocks are evicted for him. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/ledger/patience.h"

#define NOW (UINT64_C(1000) * KVPD_COMING_NS)

static void it_ends_without_progress(void **state)
{
	struct kvpd_patience p = { 0 };

	(void)state;
	assert_true(kvpd_patience_lasts(&p, false, NOW));
	p.looked = true;
	assert_true(kvpd_patience_lasts(&p, false, NOW + KVPD_PATIENCE_NS - 1));
	assert_false(kvpd_patience_lasts(&p, false, NOW + KVPD_PATIENCE_NS));
	/* The next one waits as long. */
	assert_true(kvpd_patience_lasts(&p, false, NOW + KVPD_PATIENCE_NS));
	p.looked = true;
	assert_false(kvpd_patience_lasts(&p, false, NOW + 2 * KVPD_PATIENCE_NS));
}

static void progress_begins_it_anew(void **state)
{
	struct kvpd_patience p = { 0 };

	(void)state;
	for (uint64_t i = 0; i < 100; i++) {
		assert_true(kvpd_patience_lasts(&p, false, NOW + i * KVPD_PATIENCE_NS));
		p.looked = true;
		kvpd_patience_end(&p);
	}
}

/*
 * An extent that took longer to make than anybody waits without one: when it is there nothing has been coded into it
 * yet, and blocks were evicted in that moment.
 */
static void what_has_come_is_used_first(void **state)
{
	struct kvpd_patience p = { 0 };
	const uint64_t there = NOW + 10 * KVPD_PATIENCE_NS;

	(void)state;
	assert_true(kvpd_patience_lasts(&p, true, NOW));
	p.looked = true; /* and there was no slot */
	assert_true(kvpd_patience_lasts(&p, true, there - 1));
	assert_true(kvpd_patience_lasts(&p, false, there));
	/* Nor is anybody's patience at an end before it was looked for what may be coded now. */
	assert_true(kvpd_patience_lasts(&p, false, there + KVPD_PATIENCE_NS));
	p.looked = true;
	assert_false(kvpd_patience_lasts(&p, false, there + KVPD_PATIENCE_NS));
}

/* Neither an extent that does not come nor a look that is not taken is waited for without end. */
static void all_of_it_has_an_end(void **state)
{
	struct kvpd_patience p = { 0 };

	(void)state;
	assert_true(kvpd_patience_lasts(&p, true, NOW));
	p.looked = true;
	assert_true(kvpd_patience_lasts(&p, true, NOW + KVPD_COMING_NS - 1));
	assert_false(kvpd_patience_lasts(&p, true, NOW + KVPD_COMING_NS));
	kvpd_patience_end(&p);
	assert_true(kvpd_patience_lasts(&p, false, NOW));
	assert_false(kvpd_patience_lasts(&p, false, NOW + KVPD_COMING_NS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_ends_without_progress),
		cmocka_unit_test(progress_begins_it_anew),
		cmocka_unit_test(what_has_come_is_used_first),
		cmocka_unit_test(all_of_it_has_an_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
