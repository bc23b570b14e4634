/* SPDX-License-Identifier: Apache-2.0 */
/* Rates from two looks at the figures: whatever begins, ends or is made anew between them. */
#include "daemon/control/rates.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define S UINT64_C(1000000000)

static struct kvpd_tenant_figures tenant(uint32_t id, uint64_t born, uint64_t asked,
	uint64_t matched, uint64_t evictions, uint64_t charged)
{
	return (struct kvpd_tenant_figures){
		.id = id,
		.born_ns = born,
		.lookups = { .hits = asked / 10, .tokens_asked = asked, .tokens_matched = matched },
		.tokens_put = asked - matched,
		.evictions = evictions,
		.charged_bytes = charged,
	};
}

static struct kvpd_space_figures space(
	uint32_t of, uint32_t number, uint32_t generation, uint64_t asked, uint64_t blocks)
{
	return (struct kvpd_space_figures){
		.tenant = of,
		.space = number,
		.generation = generation,
		.tokens_asked = asked,
		.tokens_matched = asked / 4,
		.tokens_put = asked / 2,
		.evictions = asked / 100,
		.blocks = blocks,
		.payload_bytes = blocks * 1000,
	};
}

/* Takes a look with these. */
static void look(struct kvpd_rates *r, uint64_t when, const struct kvpd_tenant_figures *t,
	uint32_t n_t, const struct kvpd_space_figures *s, uint32_t n_s)
{
	struct kvpd_figures f = { .taken_ns = when, .n_tenants = n_t, .n_spaces = n_s };

	f.tenant = calloc(n_t + 1, sizeof(*t));
	f.space = calloc(n_s + 1, sizeof(*s));
	assert_true(f.tenant && f.space);
	memcpy(f.tenant, t, n_t * sizeof(*t));
	if (n_s)
		memcpy(f.space, s, n_s * sizeof(*s));
	kvpd_rates_take(r, &f);
}

/* The answer's member, and the answer goes. */
static void is(json_t *rates, const char *name, double want)
{
	json_t *v = json_object_get(rates, name);

	assert_true(json_is_real(v));
	if (json_real_value(v) < want - 1e-9 || json_real_value(v) > want + 1e-9)
		fail_msg("%s is %f, not %f", name, json_real_value(v), want);
	json_decref(rates);
}

static void none(json_t *rates)
{
	assert_true(json_is_null(rates));
	json_decref(rates);
}

static void what_was_counted_between(void **state)
{
	struct kvpd_rates r = { 0 };
	struct kvpd_tenant_figures t[2] = { tenant(1, 7, 1000, 500, 10, 5000),
		tenant(2, 8, 0, 0, 0, 100) };
	struct kvpd_space_figures s[2] = { space(0, 0, 1, 1000, 7), space(1, 0, 1, 0, 0) };
	json_t *o;

	(void)state;
	none(kvpd_rates_of_all(&r, &r.newer));
	look(&r, 100 * S, t, 2, s, 2);
	none(kvpd_rates_of_all(&r, &r.newer));
	none(kvpd_rates_of_tenant(&r, &t[0]));
	none(kvpd_rates_of_space(&r, &t[0], &s[0]));
	t[0] = tenant(1, 7, 2000, 750, 15, 4000);
	s[0] = space(0, 0, 1, 2000, 4);
	look(&r, 105 * S, t, 2, s, 2);
	is(kvpd_rates_of_tenant(&r, &t[0]), "interval_seconds", 5);
	is(kvpd_rates_of_tenant(&r, &t[0]), "asked_tokens_per_second", 200);
	is(kvpd_rates_of_tenant(&r, &t[0]), "matched_tokens_per_second", 50);
	is(kvpd_rates_of_tenant(&r, &t[0]), "put_tokens_per_second", 150);
	is(kvpd_rates_of_tenant(&r, &t[0]), "lookups_per_second", 20);
	is(kvpd_rates_of_tenant(&r, &t[0]), "evictions_per_second", 1);
	is(kvpd_rates_of_tenant(&r, &t[0]), "charged_bytes_per_second", -200);
	is(kvpd_rates_of_tenant(&r, &t[0]), "hit_ratio", .25);
	is(kvpd_rates_of_space(&r, &t[0], &s[0]), "asked_tokens_per_second", 200);
	is(kvpd_rates_of_space(&r, &t[0], &s[0]), "evictions_per_second", 2);
	is(kvpd_rates_of_space(&r, &t[0], &s[0]), "payload_bytes_per_second", -600);
	is(kvpd_rates_of_all(&r, &r.newer), "asked_tokens_per_second", 200);
	/* Nothing was asked for: no ratio, which is not a ratio of 0. */
	o = kvpd_rates_of_tenant(&r, &t[1]);
	assert_true(json_is_null(json_object_get(o, "hit_ratio")));
	is(o, "asked_tokens_per_second", 0);
	/* The look before the last counts no more. */
	look(&r, 115 * S, t, 2, s, 2);
	is(kvpd_rates_of_tenant(&r, &t[0]), "interval_seconds", 10);
	is(kvpd_rates_of_tenant(&r, &t[0]), "asked_tokens_per_second", 0);
	kvpd_rates_fini(&r);
}

static void begun_ended_and_made_anew(void **state)
{
	struct kvpd_rates r = { 0 };
	struct kvpd_tenant_figures before[3] = { tenant(1, 7, 5000, 500, 10, 900),
		tenant(2, 8, 100, 50, 3, 400), tenant(3, 9, 100, 50, 0, 0) };
	/* The first one's id has another, which counted more already; the second has ended. */
	struct kvpd_tenant_figures after[3] = { tenant(1, 77, 6000, 3000, 20, 1000),
		tenant(3, 9, 100, 50, 0, 0), tenant(4, 80, 50, 50, 0, 0) };
	struct kvpd_space_figures s[2] = { space(0, 0, 1, 900, 5), space(2, 1, 5, 800, 9) };
	struct kvpd_space_figures now[2] = { space(0, 0, 1, 1000, 5), space(1, 1, 6, 1000, 2) };
	struct kvpd_figures one = { .tenant = &after[2], .n_tenants = 1 };
	json_t *o;

	(void)state;
	look(&r, 10 * S, before, 3, s, 2);
	look(&r, 20 * S, after, 3, now, 2);
	is(kvpd_rates_of_tenant(&r, &after[0]), "asked_tokens_per_second", 600);
	is(kvpd_rates_of_tenant(&r, &after[0]), "charged_bytes_per_second", 100);
	is(kvpd_rates_of_tenant(&r, &after[2]), "asked_tokens_per_second", 5);
	none(kvpd_rates_of_tenant(&r, &before[0]));
	none(kvpd_rates_of_tenant(&r, &before[1]));
	/* A space of a tenant that was made anew, and one whose number was another's. */
	is(kvpd_rates_of_space(&r, &after[0], &now[0]), "asked_tokens_per_second", 100);
	is(kvpd_rates_of_space(&r, &after[1], &now[1]), "asked_tokens_per_second", 100);
	is(kvpd_rates_of_space(&r, &after[1], &now[1]), "payload_bytes_per_second", 200);
	none(kvpd_rates_of_space(&r, &before[0], &s[0]));
	o = kvpd_rates_of_all(&r, &r.newer);
	json_incref(o);
	is(o, "asked_tokens_per_second", 605);
	is(o, "charged_bytes_per_second", 100);
	/* Of some only, as an answer that is narrowed to a tenant has it. */
	is(kvpd_rates_of_all(&r, &one), "asked_tokens_per_second", 5);
	kvpd_rates_fini(&r);
}

/* Counts that went back, and looks of one instant, which the clock does not promise to tell apart. */
static void nothing_negative_and_nothing_infinite(void **state)
{
	struct kvpd_rates r = { 0 };
	struct kvpd_tenant_figures t = tenant(1, 7, 5000, 500, 10, 900);

	(void)state;
	look(&r, 10 * S, &t, 1, NULL, 0);
	t = tenant(1, 7, 30, 20, 1, 900);
	look(&r, 20 * S, &t, 1, NULL, 0);
	is(kvpd_rates_of_tenant(&r, &t), "asked_tokens_per_second", 3);
	is(kvpd_rates_of_tenant(&r, &t), "evictions_per_second", .1);
	look(&r, 20 * S, &t, 1, NULL, 0);
	none(kvpd_rates_of_tenant(&r, &t));
	none(kvpd_rates_of_all(&r, &r.newer));
	kvpd_rates_fini(&r);
}

/* Each of many is found, and none between them. */
static void many_tenants_and_spaces(void **state)
{
	struct kvpd_rates r = { 0 };
	struct kvpd_tenant_figures t[50];
	struct kvpd_space_figures s[3 * 50];

	(void)state;
	for (uint64_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 50; i++) {
			t[i] = tenant(2 + 2 * i, i, round * 10 * (i + 1), 0, 0, 0);
			for (uint32_t k = 0; k < 3; k++)
				s[3 * i + k] =
					space(i, 4 * k + 1, 1, round * 10 * (3 * i + k + 1), 0);
		}
		look(&r, (round + 1) * 10 * S, t, 50, s, 150);
	}
	for (uint32_t i = 0; i < 50; i++) {
		struct kvpd_tenant_figures odd = tenant(3 + 2 * i, i, 0, 0, 0, 0);

		is(kvpd_rates_of_tenant(&r, &t[i]), "asked_tokens_per_second", i + 1);
		none(kvpd_rates_of_tenant(&r, &odd));
		for (uint32_t k = 0; k < 3; k++) {
			struct kvpd_space_figures other = space(i, 4 * k, 1, 0, 0);

			is(kvpd_rates_of_space(&r, &t[i], &s[3 * i + k]), "asked_tokens_per_second",
				3 * i + k + 1);
			none(kvpd_rates_of_space(&r, &t[i], &other));
			none(kvpd_rates_of_space(&r, &odd, &s[3 * i + k]));
		}
	}
	kvpd_rates_fini(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_counted_between),
		cmocka_unit_test(begun_ended_and_made_anew),
		cmocka_unit_test(nothing_negative_and_nothing_infinite),
		cmocka_unit_test(many_tenants_and_spaces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
