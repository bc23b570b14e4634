/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a client, against a small daemon in a thread of this process that refuses, lies or says nothing. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libclient/kvpool.h"
#include "tests/libclient/fake.h"

/* What kvp_open() says of daemons that are not there, refuse or lie. */
static void test_open_errors(void **state)
{
	struct fake *fake = fake_start(NULL);
	char text[64], path[200], why[KVP_ERROR_TEXT];
	struct kvp_open_opts o = { .size = sizeof(o),
		.default_timeout_ms = 500,
		.error = why,
		.error_bytes = sizeof(why) };
	struct kvp_client *c = NULL;

	(void)state;
	memset(path, 'a', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	o.socket = path;
	assert_int_equal(kvp_open(&o, &c), -ENAMETOOLONG);
	assert_non_null(strstr(why, "199 bytes"));
	o.socket = "/nonexistent/kvpool.sock";
	assert_int_equal(kvp_open(&o, &c), -ENOENT);
	assert_string_equal(why, "/nonexistent/kvpool.sock: No such file or directory");
	o.flags = 2;
	assert_int_equal(kvp_open(&o, &c), -EINVAL);
	assert_non_null(strstr(why, "flags"));
	o.flags = 0;
	o.socket = fake->path;
	SET(fake, refuse, -EUSERS);
	assert_int_equal(kvp_open(&o, &c), -EUSERS);
	assert_string_equal(why, "not today"); /* in the daemon's words */
	SET(fake, refuse, -EBUSY);
	assert_int_equal(kvp_open(&o, &c), -EBUSY);
	SET(fake, refuse, 0);
	for (uint32_t lie = FAKE_LIE_SEALS; lie <= FAKE_LIE_EPOCH; lie++) {
		SET(fake, lie, lie);
		why[0] = 0;
		assert_int_equal(kvp_open(&o, &c), -EPROTO);
		assert_null(c);
		assert_non_null(strstr(why, fake->path));
	}
	SET(fake, lie, 0);
	SET(fake, deaf, true);
	assert_int_equal(kvp_open(&o, &c), -ETIMEDOUT);
	assert_true(why[0]);
	SET(fake, deaf, false);
	/* A buffer that is too small is ended where it ends; none at all is none. */
	SET(fake, refuse, -EACCES);
	o.error_bytes = 4;
	assert_int_equal(kvp_open(&o, &c), -EACCES);
	assert_string_equal(why, "not");
	o.error = NULL;
	assert_int_equal(kvp_open(&o, &c), -EACCES);
	assert_null(c);
	/* LAZY succeeds, and says why it is not attached all the same. */
	o.error = why;
	o.error_bytes = sizeof(why);
	o.flags = KVP_OPEN_LAZY;
	assert_int_equal(kvp_open(&o, &c), 0);
	assert_string_equal(why, "not today");
	for (uint32_t n = 0; n < 12000; n++) {
		assert_int_equal(kvp_last_error(c, text, sizeof(text)), 0);
		if (text[0])
			break;
		usleep(5000);
	}
	assert_string_equal(text, "not today");
	SET(fake, refuse, 0);
	assert_true(fake_await_attached(c, 1));
	assert_int_equal(kvp_last_error(c, text, sizeof(text)), 0);
	assert_string_equal(text, "");
	kvp_close(c);
	fake_stop(fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
