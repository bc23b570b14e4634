/* SPDX-License-Identifier: Apache-2.0 */
/* Zones by age, archive codec by length. */
#include "tests/policy/plan_test.h"

#include "policy/kvp_zones.h"

static const struct kvp_zone_rule plain = { 64, 512, 1, { KVP_ARCHIVE_ADAPTIVE, 0 } };
static const struct kvp_zone_rule grouped = { 64, 512, 64, { KVP_ARCHIVE_ADAPTIVE, 0 } };

/* Plays the plan on an array of zones, as the daemon would on payloads. */
static void advance(
	const struct kvp_zone_rule *rule, struct kvp_zones *z, uint8_t *zone, uint32_t n)
{
	struct kvp_graduation g[KVP_GRADUATIONS_MAX];
	uint32_t count = 99, i, k, last = 0;

	memset(zone + z->tokens, KVP_ZONE_HOT, n - z->tokens);
	assert_int_equal(kvp_zones_advance(rule, z, n, g, &count), 0);
	assert_true(count <= KVP_GRADUATIONS_MAX);
	for (i = 0; i < count; i++) {
		assert_true(g[i].begin < g[i].end && g[i].end <= n && g[i].begin >= last);
		assert_true(g[i].to > g[i].from);
		last = g[i].end;
		for (k = g[i].begin; k < g[i].end; k++) {
			assert_int_equal(zone[k], g[i].from);
			zone[k] = (uint8_t)g[i].to;
		}
	}
	for (k = 0; k < n; k++)
		assert_int_equal(zone[k], kvp_zone_of(z, k));
}

/* token by token, every zone is exactly where its age says. */
static void test_ages(void **state)
{
	struct kvp_zones z = { 0 };
	uint8_t zone[2000];
	uint32_t n, k;

	(void)state;
	for (n = 1; n <= 2000; n++) {
		advance(&plain, &z, zone, n);
		for (k = 0; k < n; k++) {
			uint32_t age = n - 1 - k;

			assert_int_equal(zone[k], age < 64    ? KVP_ZONE_HOT
						  : age < 512 ? KVP_ZONE_WARM
							      : KVP_ZONE_ARCHIVE);
		}
	}
	/* all three at once */
	assert_int_equal(z.archive_end, 2000 - 512);
	assert_int_equal(z.warm_end, 2000 - 64);
}

/* groups of g graduate together; the newest 64 stay native, at most g - 1 more do. */
static void test_groups_random_appends(void **state)
{
	uint8_t *zone = malloc(40000);
	uint32_t round;

	(void)state;
	seed_from_env(1);
	for (round = 0; round < 300; round++) {
		struct kvp_zone_rule rule = { below(200), 0, 1 + below(128), { 0, 0 } };
		struct kvp_zones z = { 0 };
		uint32_t n = 0;

		rule.stale_tokens = rule.hot_tokens + below(1000);
		while (n < 3000) {
			n += 1 + below(below(8) ? 8 : 1500);
			advance(&rule, &z, zone, n);
			assert_true(z.warm_end % rule.group_tokens == 0);
			assert_true(z.archive_end % rule.group_tokens == 0);
			if (n >= rule.hot_tokens) {
				assert_true(n - z.warm_end >= rule.hot_tokens);
				assert_true(n - z.warm_end < rule.hot_tokens + rule.group_tokens);
			}
			if (n > rule.stale_tokens)
				assert_true(
					n - z.archive_end < rule.stale_tokens + rule.group_tokens);
		}
	}
	free(zone);
}

/* a long append goes to the archive from the original, not by way of 4 bits. */
static void test_direct_graduation(void **state)
{
	struct kvp_graduation g[KVP_GRADUATIONS_MAX];
	struct kvp_zones z = { 0 };
	uint32_t n;

	(void)state;
	assert_int_equal(kvp_zones_advance(&grouped, &z, 4096, g, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(g[0].from, KVP_ZONE_HOT);
	assert_int_equal(g[0].to, KVP_ZONE_ARCHIVE);
	assert_int_equal(g[0].end, 4096 - 512);
	assert_int_equal(g[1].to, KVP_ZONE_WARM);
	assert_int_equal(g[1].end, 4096 - 64);
}

/* Zones never grow back when the rule gets more generous; shrinking n is refused. */
static void test_rule_change(void **state)
{
	struct kvp_zone_rule wide = { 256, 1024, 64, { 0, 0 } };
	struct kvp_graduation g[KVP_GRADUATIONS_MAX];
	struct kvp_zones z = { 0 }, before;
	uint32_t n = 7;

	(void)state;
	assert_int_equal(kvp_zones_advance(&grouped, &z, 1024, g, &n), 0);
	before = z;
	assert_int_equal(kvp_zones_advance(&wide, &z, 1030, g, &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(z.warm_end, before.warm_end);
	assert_int_equal(z.archive_end, before.archive_end);
	n = 7;
	assert_int_equal(kvp_zones_advance(&wide, &z, 1029, g, &n), -EINVAL);
	assert_int_equal(kvp_zones_advance(&wide, &z, KVP_ZONE_TOKENS_MAX + 1, g, &n), -EINVAL);
	assert_int_equal(n, 7);
	assert_int_equal(z.tokens, 1030);
	wide.group_tokens = 0; /* nor a rule that no configuration may have */
	assert_int_equal(kvp_zones_advance(&wide, &z, 1031, g, &n), -EINVAL);
	assert_int_equal(n, 7);
	assert_int_equal(z.tokens, 1030);
}

/* by length; without calibration or queries it falls back and says so. */
static void test_archive_by_length(void **state)
{
	static const struct {
		uint32_t tokens, have, codec, param;
		int fallback;
	} rows[] = {
		{ 0, 3, KVP_ARCHIVE_KIVI2, 0, 0 },
		{ 2047, 3, KVP_ARCHIVE_KIVI2, 0, 0 },
		{ 2048, 3, KVP_ARCHIVE_SQUAT, 20, 0 },
		{ 8191, 3, KVP_ARCHIVE_SQUAT, 20, 0 },
		{ 8192, 3, KVP_ARCHIVE_KVQUANT, 3, 0 },
		{ 8192, KVP_HAVE_QUERIES, KVP_ARCHIVE_SQUAT, 20, 1 },
		{ 8192, 0, KVP_ARCHIVE_KIVI2, 0, 1 },
		{ 2048, KVP_HAVE_CALIBRATION, KVP_ARCHIVE_KIVI2, 0, 1 },
		{ 2047, 0, KVP_ARCHIVE_KIVI2, 0, 0 },
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct kvp_archive a;
		int fallback = -1;

		kvp_archive_select((struct kvp_archive){ KVP_ARCHIVE_ADAPTIVE, 0 }, rows[i].tokens,
			rows[i].have, &a, &fallback);
		assert_int_equal(a.codec, rows[i].codec);
		assert_int_equal(a.param, rows[i].param);
		assert_int_equal(fallback, rows[i].fallback);
	}
}

/* four values of the configuration, whatever the length; unknown ones refused. */
static void test_archive_fixed(void **state)
{
	static const struct {
		const char *text;
		struct kvp_archive archive;
	} good[] = {
		{ "adaptive", { KVP_ARCHIVE_ADAPTIVE, 0 } },
		{ "kivi2", { KVP_ARCHIVE_KIVI2, 0 } },
		{ "squat", { KVP_ARCHIVE_SQUAT, 20 } },
		{ "squat:5", { KVP_ARCHIVE_SQUAT, 5 } },
		{ "squat:1", { KVP_ARCHIVE_SQUAT, 1 } },
		{ "squat:9", { KVP_ARCHIVE_SQUAT, 9 } },
		{ "squat:128", { KVP_ARCHIVE_SQUAT, 128 } },
		{ "kvquant", { KVP_ARCHIVE_KVQUANT, 3 } },
		{ "kvquant:2", { KVP_ARCHIVE_KVQUANT, 2 } },
		{ "kvquant:4", { KVP_ARCHIVE_KVQUANT, 4 } },
	};
	static const char *const bad[] = { "", "kivi", "kivi2:2", "squat:", "squat:0", "squat:129",
		"squat: 5", "squat:5x", "squat:99999999999999999999", "kvquant:5", "kvquant:1",
		"adaptive:1", "KIVI2", "kivi22" };
	struct kvp_archive a, untouched = { 77, 77 };
	int fallback;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(kvp_archive_parse(good[i].text, &a), 0);
		assert_int_equal(a.codec, good[i].archive.codec);
		assert_int_equal(a.param, good[i].archive.param);
		if (a.codec == KVP_ARCHIVE_ADAPTIVE)
			continue;
		kvp_archive_select(a, 100, 3, &untouched, &fallback);
		assert_int_equal(untouched.codec, a.codec);
		kvp_archive_select(a, 100000, 3, &untouched, &fallback);
		assert_int_equal(untouched.codec, a.codec);
		assert_int_equal(untouched.param, a.param);
		assert_int_equal(fallback, 0);
	}
	a = (struct kvp_archive){ 77, 77 };
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(kvp_archive_parse(bad[i], &a), -EINVAL);
	assert_int_equal(a.codec, 77);
}

/* a layer may have boundaries of its own. */
static void test_layer_overrides(void **state)
{
	struct kvp_zone_override o[2] = { { 0, { 128, 1024, 64, { KVP_ARCHIVE_KIVI2, 0 } } },
		{ 31, { 32, 64, 32, { KVP_ARCHIVE_KVQUANT, 3 } } } };
	struct kvp_zone_config c;
	uint32_t l;

	(void)state;
	kvp_zone_config_init(&c, 32);
	assert_int_equal(kvp_zone_config_check(&c), 0);
	c.overrides = o;
	c.n_overrides = 2;
	assert_int_equal(kvp_zone_config_check(&c), 0);
	for (l = 0; l < 32; l++)
		assert_int_equal(kvp_zone_rule_of(&c, l)->hot_tokens, l == 0    ? 128
								      : l == 31 ? 32
										: 64);

	o[1].layer = 32; /* no such layer */
	assert_int_equal(kvp_zone_config_check(&c), -EINVAL);
	o[1].layer = 0; /* twice */
	assert_int_equal(kvp_zone_config_check(&c), -EINVAL);
	o[1].layer = 31;
	o[1].rule.hot_tokens = 65; /* hot beyond stale */
	assert_int_equal(kvp_zone_config_check(&c), -EINVAL);
	o[1].rule.hot_tokens = 32;
	o[1].rule.group_tokens = 0;
	assert_int_equal(kvp_zone_config_check(&c), -EINVAL);
	o[1].rule.group_tokens = 32;
	o[1].rule.archive.param = 9;
	assert_int_equal(kvp_zone_config_check(&c), -EINVAL);
	o[1].rule.archive.param = 3;
	assert_int_equal(kvp_zone_config_check(&c), 0);
	o[0].rule.hot_tokens = 1025; /* the first one counts too */
	assert_int_equal(kvp_zone_config_check(&c), -EINVAL);
	o[0].rule.hot_tokens = 128;
	c.n_overrides = 1;
	o[0].layer = 32;
	assert_int_equal(kvp_zone_config_check(&c), -EINVAL);
	kvp_zone_config_init(&c, 0);
	assert_int_equal(kvp_zone_config_check(&c), -EINVAL);
	kvp_zone_config_init(&c, KVP_MAX_LAYERS);
	assert_int_equal(kvp_zone_config_check(&c), 0);
	kvp_zone_config_init(&c, KVP_MAX_LAYERS + 1);
	assert_int_equal(kvp_zone_config_check(&c), -EINVAL);
}

/* sequences join and leave; what the others are told does not depend on it. */
static void test_sequences_are_independent(void **state)
{
	struct kvp_zones many[64] = { 0 }, alone[64] = { 0 };
	uint32_t appended[64] = { 0 }, round, i;

	(void)state;
	seed_from_env(2);
	for (round = 0; round < 20000; round++) {
		struct kvp_graduation a[KVP_GRADUATIONS_MAX], b[KVP_GRADUATIONS_MAX];
		uint32_t na, nb;

		i = below(64);
		if (!below(50)) { /* leaves, another joins */
			many[i] = alone[i] = (struct kvp_zones){ 0 };
			appended[i] = 0;
			continue;
		}
		appended[i] += below(100);
		assert_int_equal(kvp_zones_advance(&grouped, &many[i], appended[i], a, &na), 0);
		assert_int_equal(kvp_zones_advance(&grouped, &alone[i], appended[i], b, &nb), 0);
		assert_int_equal(na, nb);
		assert_memory_equal(a, b, na * sizeof(a[0]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ages),
		cmocka_unit_test(test_groups_random_appends),
		cmocka_unit_test(test_direct_graduation),
		cmocka_unit_test(test_rule_change),
		cmocka_unit_test(test_archive_by_length),
		cmocka_unit_test(test_archive_fixed),
		cmocka_unit_test(test_layer_overrides),
		cmocka_unit_test(test_sequences_are_independent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
