/* SPDX-License-Identifier: Apache-2.0 */
/* What claims say of what computing takes. */
#include "daemon/ledger/claim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/clock.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "tests/daemon/ledger/dp_world.h"

#define T      16u /* tokens in a block */
#define ROUNDS 16u

struct cost {
	uint32_t tenant, space;
	double seconds, cost;
};

static int ask_cost(struct kvpd_ledger *l, void *arg)
{
	struct cost *c = arg;

	c->seconds = kvpd_claim_token_seconds(l->tenant[c->tenant], c->space);
	c->cost = kvpd_claim_token_cost(l->tenant[c->tenant], c->space);
	return 0;
}

static struct cost cost_of(struct dp_world *w, uint32_t space)
{
	struct cost c = { .tenant = w->tenant, .space = space };

	assert_int_equal(kvpd_ledger_ask(w->ledger, ask_cost, &c), 0);
	return c;
}

/* Claims a block, takes so long to compute it, and commits it with a claim on the next one, which it commits at once. */
static void compute_two(struct dp_client *a, uint32_t space, uint32_t seed, unsigned us)
{
	struct kvp_sqe claim = { .op = KVP_OP_CLAIM };
	struct dp_ref parent = dp_root();
	struct kvp_key key[3];
	kvp_token tokens[2 * T];
	struct kvp_cqe cqe;

	for (uint32_t i = 0; i < 2 * T; i++)
		tokens[i] = seed * 1000003u + i;
	key[0] = kvp_chain_key(
		(struct kvp_key){ a->view.spaces[space].root_lo, a->view.spaces[space].root_hi },
		tokens, T);
	key[1] = kvp_chain_key(key[0], tokens + T, T);
	key[2] = (struct kvp_key){ 0 };
	claim.next_lo = key[0].lo;
	claim.next_hi = key[0].hi;
	dp_push(a, &claim);
	assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
	usleep(us);
	for (uint32_t i = 0; i < 2; i++) {
		struct kvp_sqe commit;
		struct dp_grant g;

		assert_int_equal(dp_reserve(a, space, 1, DP_WAIT_MS, &g), 1);
		memcpy(a->page->staging[g.index], tokens + i * T, T * sizeof(*tokens));
		commit = (struct kvp_sqe){
			.op = KVP_OP_COMMIT,
			.grant = g.index,
			.grant_generation = g.generation,
			.space = (uint16_t)space,
			.parent_kind = parent.kind,
			.parent_id = parent.id,
			.parent_birth = parent.birth,
			.tokens = T,
			.next_lo = key[i + 1].lo,
			.next_hi = key[i + 1].hi,
		};
		dp_push(a, &commit);
		assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
		assert_int_equal(cqe.status, 0);
		parent = (struct dp_ref){ KVP_PARENT_BLOCK, cqe.block, cqe.birth };
	}
}

/* From the claim to the commit: of both blocks together, since a prompt is computed in one go. */
static void claims_say_what_computing_takes(void **state)
{
	const double slow_us = 64000, quick_us = 4000;
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a;
	struct cost slow, quick, other;
	uint32_t s, q, o;
	uint64_t began;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	s = dp_space(a, "slow", 4);
	q = dp_space(a, "quick", 4);
	o = dp_space(a, "other", 4);
	other = cost_of(&w, o);
	assert_true(other.seconds == KVPD_TOKEN_SECONDS && other.cost == 1);
	began = kvpd_now_ns();
	compute_two(a, s, 40, (unsigned)slow_us);
	slow = cost_of(&w, s);
	assert_true(slow.seconds >= slow_us / 1e6 / (2 * T));
	assert_true(slow.seconds <= (double)(kvpd_now_ns() - began) / 1e9 / (2 * T));
	assert_true(slow.cost == 1); /* beside itself */
	began = kvpd_now_ns();
	compute_two(a, q, 41, (unsigned)quick_us);
	quick = cost_of(&w, q);
	assert_true(quick.seconds >= quick_us / 1e6 / (2 * T));
	assert_true(quick.seconds <= (double)(kvpd_now_ns() - began) / 1e9 / (2 * T));
	slow = cost_of(&w, s);
	other = cost_of(&w, o);
	/* As many tokens of each: the mean of all is between them, and what is not known is that. */
	assert_true(other.cost == 1 && other.seconds > 0);
	assert_true(fabs(slow.seconds + quick.seconds - 2 * other.seconds) < 1e-9);
	assert_true(fabs(slow.cost - slow.seconds / other.seconds) < 1e-6);
	assert_true(fabs(quick.cost - quick.seconds / other.seconds) < 1e-6);
	dp_check(&w);
	dp_stop(&w);
}

/* What a client does all at once: the ledger, on whose thread this runs, finds it in one turn. */
struct at_once {
	struct dp_client *client;
	uint64_t value;
	struct kvp_sqe commit;
};

static int reach_and_commit(struct kvpd_ledger *l, void *arg)
{
	struct at_once *o = arg;

	(void)l;
	kvp_store_seq(&o->client->page->done[0].value, o->value);
	dp_push(o->client, &o->commit);
	return 0;
}

/* Two blocks that wait for a moment, and one that is committed on top of them in the turn in which that has come. */
static void commit_at_once(struct dp_world *w, struct dp_client *a, uint32_t space, uint32_t round)
{
	struct kvp_sqe claim = { .op = KVP_OP_CLAIM };
	struct kvp_key key[4] = { 0 };
	kvp_token tokens[3 * T];
	struct kvp_cqe cqe;
	uint32_t published = 0, serial = 0;

	for (uint32_t i = 0; i < 3 * T; i++)
		tokens[i] = round * 1000003u + i;
	key[0] = kvp_chain_key(
		(struct kvp_key){ a->view.spaces[space].root_lo, a->view.spaces[space].root_hi },
		tokens, T);
	for (uint32_t i = 1; i < 3; i++)
		key[i] = kvp_chain_key(key[i - 1], tokens + (size_t)i * T, T);
	claim.next_lo = key[0].lo;
	claim.next_hi = key[0].hi;
	dp_push(a, &claim);
	assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
	for (uint32_t i = 0; i < 3; i++) {
		struct at_once once = { .client = a, .value = round };
		struct dp_grant g;

		assert_int_equal(dp_reserve(a, space, 1, DP_WAIT_MS, &g), 1);
		memcpy(a->page->staging[g.index], tokens + (size_t)i * T, T * sizeof(*tokens));
		once.commit = (struct kvp_sqe){
			.op = KVP_OP_COMMIT,
			.flags = KVP_SQE_RELEASE,
			.grant = g.index,
			.grant_generation = g.generation,
			.space = (uint16_t)space,
			.parent_kind = i ? KVP_PARENT_SERIAL : KVP_PARENT_ROOT,
			.parent_id = serial,
			.tokens = T,
			.next_lo = key[i + 1].lo,
			.next_hi = key[i + 1].hi,
			.until = i < 2 ? kvp_until(0, round) : 0,
		};
		if (i == 2) {
			assert_int_equal(kvpd_ledger_ask(w->ledger, reach_and_commit, &once), 0);
			break;
		}
		serial = dp_push(a, &once.commit);
		assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
		assert_int_equal(cqe.flags, KVP_CQE_PARKED);
	}
	while (published < 3) {
		assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
		assert_int_equal(cqe.status, 0);
		published += !(cqe.flags & KVP_CQE_PARKED);
	}
}

/* What is served in one turn comes one after the other: a commit is not before its claim. */
static void no_commit_is_before_its_claim(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a;
	uint64_t began;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 4);
	began = kvpd_now_ns();
	/* Now and then the turn ends between them. */
	for (uint32_t round = 1; round <= ROUNDS; round++)
		commit_at_once(&w, a, space, round);
	assert_true(cost_of(&w, space).seconds <=
		    (double)(kvpd_now_ns() - began) / 1e9 / (ROUNDS * 3 * T));
	dp_check(&w);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(claims_say_what_computing_takes),
		cmocka_unit_test(no_commit_is_before_its_claim),
	};

	return cmocka_run_group_tests_name("claim", tests, NULL, NULL);
}
