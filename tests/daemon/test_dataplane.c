/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/dp_world.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define T 16u /* tokens in a block */

/* Token ids that begin differently for each n. */
static void make_tokens(kvp_token *out, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = seed * 1000003u + i;
}

/* Puts a chain of whole blocks; the last status. */
static int put_chain(struct dp_client *c, uint32_t space, const kvp_token *tokens, uint32_t blocks,
	struct dp_block *out)
{
	struct dp_ref parent = dp_root();
	int r = 0;

	for (uint32_t i = 0; i < blocks; i++) {
		r = dp_put(c, space, parent, tokens + i * T, T, &out[i]);
		if (r < 0)
			return r;
		parent = dp_ref(&out[i]);
	}
	return r;
}

/* ---- the way of a block --------------------------------------------------------------------- */

static void reserve_commit_find(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[4 * T];
	struct dp_block block[4];
	struct kvp_hit hit[4];
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 4);
	assert_int_equal(dp_space(b, "m", 4), space);
	make_tokens(tokens, 4 * T, 1);
	assert_int_equal(put_chain(a, space, tokens, 4, block), 0);
	assert_int_equal(dp_find(b, space, tokens, 4 * T, hit, 4), 4);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(hit[i].id, block[0].id + i); /* in order */
		assert_true(dp_payload_right(b, &hit[i], tokens + i * T, T));
	}
	/* somebody else's identical block is a duplicate and names the first */
	assert_int_equal(dp_put(b, space, dp_root(), tokens, T, &block[3]), 0);
	assert_int_equal(block[3].flags, KVP_CQE_DUPLICATE);
	assert_int_equal(block[3].id, block[0].id);
	assert_int_equal(dp_figure(&w, "blocks"), 4);
	dp_check(&w);
	dp_detach(a);
	assert_int_equal(dp_find(b, space, tokens, 4 * T, hit, 4), 4);
	dp_check(&w);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reserve_commit_find),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
