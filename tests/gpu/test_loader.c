/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: which library, which functions, which errors. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu/kvp_cu.h"

static char why[KVP_CU_WHY];

static int load(const char *path, struct kvp_cu *cu)
{
	memset(why, 'x', sizeof(why));
	assert_int_equal(setenv("KVPOOL_LIBCUDA", path, 1), 0);
	return kvp_cu_load(cu, why);
}

static void everything_is_found(void **state)
{
	struct kvp_cu cu;

	(void)state;
	assert_int_equal(load(getenv("STUB_FULL"), &cu), 0);
#define THERE(name, args) assert_non_null(cu.name);
	CU_FUNCTIONS(THERE)
	CU_OPTIONAL(THERE)
#undef THERE
	assert_int_equal(cu.cuInit(0), CU_ERR_NOT_INIT);
	kvp_cu_unload(&cu);
	assert_null(cu.library);
	/* Nothing is usable, and the caller's table is as it was. */
	assert_int_equal(kvp_cu_open(0, &cu, why), -ENODEV);
	assert_non_null(strstr(why, "cuInit"));
	assert_null(cu.library);
}

static void an_old_driver_lacks_what_is_optional(void **state)
{
	struct kvp_cu cu;

	(void)state;
	assert_int_equal(load(getenv("STUB_OLD"), &cu), 0);
#define AWAY(name, args) assert_null(cu.name);
	CU_OPTIONAL(AWAY)
#undef AWAY
	assert_non_null(cu.cuMemCreate);
	kvp_cu_unload(&cu);
}

static void what_is_missing_is_named(void **state)
{
	struct kvp_cu cu;

	(void)state;
	assert_int_equal(load(getenv("STUB_LACKS"), &cu), -ENODEV);
	assert_non_null(strstr(why, "has no cuMemCreate"));
	assert_int_equal(load("/nonexistent/libcuda.so.1", &cu), -ENODEV);
	assert_non_null(strstr(why, "/nonexistent/libcuda.so.1"));
	assert_true(strlen(why) < sizeof(why));
}

static void errors_are_told_apart(void **state)
{
	static const int lost[] = { 4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718,
		719, 721, 805, 810, 999 };
	static const int kept[] = { 0, 1, 2, 3, 46, 100, 201, 400, 500, 600, 701, 712, 713, 720,
		800, 801, 804, 811, 900, 908 };

	(void)state;
	for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
		assert_true(kvp_cu_lost(lost[i]));
		assert_int_equal(kvp_cu_errno(lost[i]), -ENODEV);
	}
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		assert_false(kvp_cu_lost(kept[i]));
	assert_int_equal(kvp_cu_errno(CU_OK), 0);
	assert_int_equal(kvp_cu_errno(CU_ERR_INVALID_VALUE), -EINVAL);
	assert_int_equal(kvp_cu_errno(CU_ERR_NO_MEMORY), -ENOMEM);
	assert_int_equal(kvp_cu_errno(CU_NOT_READY), -EAGAIN);
	assert_int_equal(kvp_cu_errno(CU_ERR_UNSUPPORTED), -EOPNOTSUPP);
	assert_int_equal(kvp_cu_errno(CU_ERR_NOT_PERMITTED), -EPERM);
	assert_int_equal(kvp_cu_errno(CU_ERR_CAPTURING), -EBUSY);
	assert_int_equal(kvp_cu_errno(CU_ERR_BAD_CONTEXT), -EIO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_is_found),
		cmocka_unit_test(an_old_driver_lacks_what_is_optional),
		cmocka_unit_test(what_is_missing_is_named),
		cmocka_unit_test(errors_are_told_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
