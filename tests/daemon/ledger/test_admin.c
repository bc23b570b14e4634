/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of administrators: how they are cut up, and what they answer over blocks that change. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "shm/kvp_ring.h"
#include "tests/daemon/ledger/dp_world.h"

#define T     16u
#define MANY  (1u << 18) /* no processor looks at so many blocks in a slice */
#define CHAIN 20u

static void make_tokens(kvp_token *tokens, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = seed * 1000 + i;
}

/* A chain, the tip last. */
static void put_chain(struct dp_client *c, uint32_t space, uint32_t seed, struct dp_block *out)
{
	struct dp_ref parent = dp_root();
	kvp_token tokens[T];

	for (uint32_t i = 0; i < CHAIN; i++) {
		make_tokens(tokens, T, seed * CHAIN + i);
		assert_int_equal(dp_put(c, space, parent, tokens, T, &out[i]), 0);
		parent = dp_ref(&out[i]);
	}
	dp_flush(c);
}

static uint64_t number(const json_t *o, const char *name)
{
	const json_t *v = json_object_get(o, name);

	assert_true(json_is_integer(v));
	return (uint64_t)json_integer_value(v);
}

static void key_of(struct dp_world *w, uint32_t depth, char key[33])
{
	const json_t *block;
	json_t *answer;
	size_t i;

	*key = 0;
	assert_int_equal(dp_admin(w, "{\"verb\":\"blocks\",\"limit\":1000}", &answer), 0);
	json_array_foreach(json_object_get(answer, "blocks"), i, block) {
		if (number(block, "depth") == depth)
			snprintf(key, 33, "%s", json_string_value(json_object_get(block, "key")));
	}
	assert_true(*key);
	json_decref(answer);
}

/* ---- portions ------------------------------------------------------------------------------- */

struct calls {
	uint64_t n;
};

static int calls_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct calls *c = arg;

	c->n = l->portions.kind[KVPD_PORTION_CALL].count;
	return 0;
}

static uint64_t calls_so_far(struct dp_world *w)
{
	struct calls c;

	assert_int_equal(kvpd_ledger_ask(w->ledger, calls_on_ledger, &c), 0);
	return c.n;
}

/* In how many calls the ledger did it. */
static uint64_t calls_of(struct dp_world *w, int want, const char *format, const char *key)
{
	uint64_t before = calls_so_far(w);
	char request[128];
	int r;

	snprintf(request, sizeof(request), format, key);
	r = dp_admin(w, request, NULL);
	assert_int_equal(r, want);
	return calls_so_far(w) - before - 1;
}

/*
 * The longer the walk, the more portions it is cut into; between two of them everybody else is
 * served. A request that ran in one call held the ledger for all of its walk.
 */
static void no_request_holds_the_ledger(void **state)
{
	struct kvp_lease lease = { NULL };
	struct kvpd_limits limits;
	struct dp_block block[CHAIN];
	struct dp_client *c;
	struct dp_world w;
	char key[33], prefix[17];
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	w.config.memory = UINT64_C(1) << 30;
	limits.share = UINT64_C(1) << 30;
	limits.max_blocks = MANY;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	put_chain(c, space, 1, block);
	key_of(&w, CHAIN - 1, key);
	snprintf(prefix, sizeof(prefix), "%.16s", key);

	assert_true(calls_of(&w, 0, "{\"verb\":\"blocks\"}", "") > 4);
	assert_true(calls_of(&w, 0, "{\"verb\":\"inspect\",\"key\":\"%s\"}", prefix) > 4);
	assert_true(calls_of(&w, 0, "{\"verb\":\"pin\",\"key\":\"%s\"}", prefix) > 4);
	assert_true(calls_of(&w, 0, "{\"verb\":\"unpin\",\"key\":\"%s\"}", prefix) > 4);
	assert_true(calls_of(&w, 0, "{\"verb\":\"check\"}", "") > 16);
	/* The whole key is in the index. */
	assert_true(calls_of(&w, 0, "{\"verb\":\"pin\",\"key\":\"%s\"}", key) == 1);
	assert_true(calls_of(&w, 0, "{\"verb\":\"unpin\",\"key\":\"%s\"}", key) == 1);

	assert_int_equal(
		kvp_lease_take(c->page, 0, &c->view.blocks[block[CHAIN - 1].id],
			block[CHAIN - 1].id,
			kvp_load_relaxed(&c->view.blocks[block[CHAIN - 1].id].word), &lease),
		0);
	assert_true(calls_of(&w, -EBUSY, "{\"verb\":\"evict\",\"key\":\"%s\"}", prefix) > 4);
	assert_true(calls_of(&w, 0, "{\"verb\":\"evict\",\"all\":true}", "") > 4);
	assert_true(calls_of(&w, 0, "{\"verb\":\"drain\"}", "") > 4);
	kvp_lease_drop(&lease);
	dp_stop(&w);
}

/* Limits of many tenants are set a few at a time; all of them are. */
static void no_reload_holds_the_ledger(void **state)
{
	enum { TENANTS = 20 };
	struct kvpd_limits limits;
	struct dp_world w;
	uint64_t before;
	char name[16];
	uint32_t id;

	(void)state;
	dp_defaults(&w, &limits);
	w.config.memory = UINT64_C(1) << 30;
	limits.share = 8 << 20;
	dp_start(&w, &limits);
	for (uint32_t i = 0; i < TENANTS; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		assert_int_equal(kvpd_tenant_open(w.ledger, name, &limits, &id), 0);
	}
	w.config.defaults = limits;
	w.config.defaults.max_blocks = 7;
	before = calls_so_far(&w);
	assert_int_equal(kvpd_reconfigure(w.ledger, &w.config), 0);
	assert_true(calls_so_far(&w) - before - 1 > TENANTS / 4);
	for (uint32_t i = 1; i <= TENANTS + 1; i++)
		assert_int_equal(w.ledger->tenant[i]->limits.max_blocks, 7);
	dp_stop(&w);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* The first so many of the order that is asked for, and how many there are in all. */
static void the_largest_are_listed(void **state)
{
	static const char *const orders[] = { "serial", "hits", "touched", "depth", "tokens" };
	struct dp_block block[CHAIN];
	struct kvpd_limits limits;
	struct dp_client *c;
	struct dp_world w;
	json_t *answer;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t seed = 1; seed <= 5; seed++)
		put_chain(c, space, seed, block);
	for (uint32_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		char request[96], name[16];
		const json_t *list, *o;
		uint64_t last = UINT64_MAX;
		size_t k;

		snprintf(request, sizeof(request),
			"{\"verb\":\"blocks\",\"sort\":\"%s\",\"limit\":7}", orders[i]);
		assert_int_equal(dp_admin(&w, request, &answer), 0);
		assert_int_equal(number(answer, "total"), 5 * CHAIN);
		list = json_object_get(answer, "blocks");
		assert_int_equal(json_array_size(list), 7);
		snprintf(name, sizeof(name), "%s%s", orders[i],
			!strcmp(orders[i], "touched") ? "_s" : "");
		json_array_foreach(list, k, o) {
			assert_true(number(o, name) <= last);
			last = number(o, name);
		}
		if (!strcmp(orders[i], "depth"))
			assert_int_equal(last, CHAIN - 2); /* five tips, then two above them */
		if (!strcmp(orders[i], "serial"))
			assert_int_equal(last, 5 * CHAIN - 7);
		json_decref(answer);
	}
	assert_int_equal(dp_admin(&w, "{\"verb\":\"blocks\",\"limit\":0}", &answer), 0);
	assert_int_equal(number(answer, "total"), 5 * CHAIN);
	assert_int_equal(json_array_size(json_object_get(answer, "blocks")), 0);
	json_decref(answer);
	assert_int_equal(dp_admin(&w, "{\"verb\":\"blocks\",\"sort\":\"colour\"}", NULL), -EINVAL);
	dp_stop(&w);
}

/* Nor does a long list hold the control thread: most of its steps ask the ledger for nothing. */
static void a_long_list_is_made_in_steps(void **state)
{
	enum { CHAINS = 40, N = CHAINS * CHAIN };
	struct dp_block block[CHAIN];
	struct kvpd_limits limits;
	struct kvpd_request *q;
	struct dp_client *c;
	struct dp_world w;
	uint64_t calls, last = UINT64_MAX;
	uint32_t space, rows, steps[2];
	json_t *request;
	int r;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t seed = 1; seed <= CHAINS; seed++)
		put_chain(c, space, seed, block);
	for (uint32_t k = 0; k < 2; k++) {
		request = json_pack("{s:s, s:s, s:i}", "verb", "blocks", "sort", "serial", "limit",
			k ? 100000 : N);
		calls = calls_so_far(&w);
		steps[k] = 0;
		assert_int_equal(kvpd_admin_begin(request, &q), 0);
		while ((r = kvpd_admin_step(w.ledger, q)) == -EINPROGRESS)
			steps[k]++;
		assert_int_equal(r, 0);
		steps[k] -= (uint32_t)(calls_so_far(&w) - calls - 1);
		/* Each puts a few rows in order, ... */
		assert_true(steps[k] >= N / 100);
		assert_string_equal(kvpd_admin_list(q, &rows), "blocks");
		assert_int_equal(rows, N);
		for (uint32_t i = 0; k && i < rows; i++) {
			json_t *row = kvpd_admin_row(q, i);

			assert_true(number(row, "serial") < last);
			last = number(row, "serial");
			json_decref(row);
		}
		json_decref(kvpd_admin_end(q));
		json_decref(request);
	}
	/* ... or takes a little of the memory of so many more as were asked for. */
	assert_true(steps[1] >= steps[0] + 20);
	dp_stop(&w);
}

static void a_key_is_found_by_its_digits(void **state)
{
	static const char *const bad[] = { "1234567", "0123456789abcdef0123456789abcdef0",
		"0123456g", "" };
	struct dp_block block[CHAIN];
	struct kvpd_limits limits;
	struct dp_client *c;
	struct dp_world w;
	char key[33], request[96];
	json_t *answer;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	put_chain(c, dp_space(c, "m", 4), 1, block);
	key_of(&w, 3, key);
	for (size_t n = 8; n <= 32; n++) {
		snprintf(request, sizeof(request), "{\"verb\":\"inspect\",\"key\":\"%.*s\"}",
			(int)n, key);
		assert_int_equal(dp_admin(&w, request, &answer), 0);
		assert_string_equal(
			json_string_value(json_object_get(json_object_get(answer, "block"), "key")),
			key);
		assert_int_equal(json_array_size(json_object_get(
					 json_object_get(answer, "block"), "ancestors")),
			3);
		json_decref(answer);
	}
	key[31] = key[31] == '0' ? '1' : '0';
	snprintf(request, sizeof(request), "{\"verb\":\"inspect\",\"key\":\"%s\"}", key);
	assert_int_equal(dp_admin(&w, request, NULL), -ENOENT);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(request, sizeof(request), "{\"verb\":\"inspect\",\"key\":\"%s\"}", bad[i]);
		assert_int_equal(dp_admin(&w, request, NULL), -EINVAL);
	}
	dp_stop(&w);
}

static uint64_t kept(const json_t *answer, const char *why)
{
	return number(json_object_get(answer, "kept"), why);
}

/* What stays is counted by what keeps it. */
static void what_stays_is_explained(void **state)
{
	struct kvp_lease lease = { NULL };
	struct dp_block block[CHAIN], other[CHAIN], third;
	struct kvpd_limits limits;
	struct dp_client *c;
	struct dp_world w;
	struct dp_grant g;
	kvp_token tokens[T];
	char key[33], request[96];
	json_t *answer;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	put_chain(c, space, 1, block);
	key_of(&w, CHAIN / 2, key);
	snprintf(request, sizeof(request), "{\"verb\":\"pin\",\"key\":\"%s\"}", key);
	assert_int_equal(dp_admin(&w, request, NULL), 0);
	put_chain(c, space, 2, other);
	assert_int_equal(
		kvp_lease_take(c->page, 0, &c->view.blocks[other[CHAIN - 1].id],
			other[CHAIN - 1].id,
			kvp_load_relaxed(&c->view.blocks[other[CHAIN - 1].id].word), &lease),
		0);
	make_tokens(tokens, T, 3000);
	assert_int_equal(dp_reserve(c, space, 1, DP_WAIT_MS, &g), 1);
	assert_int_equal(dp_commit(c, space, &g, dp_root(), tokens, T, 0, &third), 0);

	/* Enough went: nobody asks what keeps the others. */
	assert_int_equal(dp_admin(&w, "{\"verb\":\"evict\",\"count\":2}", &answer), 0);
	assert_int_equal(number(answer, "evicted"), 2);
	assert_null(json_object_get(answer, "kept"));
	json_decref(answer);

	assert_int_equal(dp_admin(&w, "{\"verb\":\"evict\",\"all\":true}", &answer), 0);
	assert_int_equal(number(answer, "evicted"), CHAIN / 2 - 1 - 2);
	assert_int_equal(kept(answer, "leased"), 1);
	assert_int_equal(kept(answer, "pinned"), 1);
	assert_int_equal(kept(answer, "granted"), 1);
	assert_int_equal(kept(answer, "being moved"), 0);
	assert_int_equal(kept(answer, "parents"), CHAIN - 1 + CHAIN / 2);
	json_decref(answer);

	kvp_lease_drop(&lease);
	assert_int_equal(dp_admin(&w, "{\"verb\":\"drain\"}", &answer), 0);
	assert_int_equal(number(answer, "evicted"), CHAIN);
	assert_int_equal(number(answer, "in_use"), CHAIN / 2 + 1 + 1);
	assert_int_equal(kept(answer, "leased"), 0);
	assert_int_equal(kept(answer, "pinned"), 1);
	assert_int_equal(kept(answer, "parents"), CHAIN / 2);
	json_decref(answer);

	dp_release(c, &g);
	dp_flush(c);
	snprintf(request, sizeof(request), "{\"verb\":\"unpin\",\"key\":\"%s\"}", key);
	assert_int_equal(dp_admin(&w, request, NULL), 0);
	assert_int_equal(dp_admin(&w, "{\"verb\":\"drain\"}", &answer), 0);
	assert_int_equal(number(answer, "in_use"), 0);
	assert_null(json_object_get(answer, "kept"));
	json_decref(answer);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- while things change -------------------------------------------------------------------- */

#define GRANTS 64u

/* A client that goes on committing and deleting, by the ring alone. */
struct busy {
	struct dp_client *c;
	uint32_t space;
	struct dp_grant grant[GRANTS];
	_Atomic bool stop;
	_Atomic uint64_t served;
};

/* False: it was told to stop. */
static bool ask(struct busy *b, struct kvp_sqe *sqe, struct kvp_cqe *ret)
{
	uint64_t one = 1;

	sqe->serial = ++b->c->serial;
	while (kvp_sq_push(b->c->page, &b->c->sq_tail, sqe) < 0)
		if (b->stop)
			return false;
	if (kvp_sq_must_wake(b->c->page) &&
		write(b->c->at.wake_fd, &one, sizeof(one)) != sizeof(one))
		return false;
	do
		while (kvp_cq_pop(b->c->page, &b->c->cq_head, ret) < 0)
			if (b->stop)
				return false;
	while (ret->serial != sqe->serial);
	b->served++;
	return true;
}

/* Commits, claims and gives up in turn; a grant is never released, so that the slots last. */
static void *be_busy(void *arg)
{
	struct busy *b = arg;
	struct kvp_cqe cqe;

	for (uint32_t i = 0; !b->stop; i++) {
		struct kvp_sqe sqe = { .op = KVP_OP_CLAIM, .next_lo = 1 + i % 7 };

		if (!ask(b, &sqe, &cqe))
			break;
		if (i % 16 == 0 && i / 16 < GRANTS) {
			const struct dp_grant *g = &b->grant[i / 16];

			sqe = (struct kvp_sqe){
				.op = KVP_OP_COMMIT,
				.grant = g->index,
				.grant_generation = g->generation,
				.space = (uint16_t)b->space,
				.tokens = T,
				.parent_kind = KVP_PARENT_ROOT,
				.flags = KVP_SQE_RELEASE,
			};
			make_tokens(b->c->page->staging[g->index], T, 7000 + i);
			if (!ask(b, &sqe, &cqe))
				break;
			sqe = (struct kvp_sqe){
				.op = KVP_OP_DELETE,
				.parent_kind = KVP_PARENT_BLOCK,
				.parent_id = cqe.block,
				.parent_birth = cqe.birth,
			};
			if (i % 32 == 0 && cqe.status == 0 && !ask(b, &sqe, &cqe))
				break;
		}
		sqe = (struct kvp_sqe){ .op = KVP_OP_UNCLAIM, .next_lo = 1 + i % 7 };
		sqe.serial = ++b->c->serial;
		while (kvp_sq_push(b->c->page, &b->c->sq_tail, &sqe) < 0 && !b->stop)
			;
	}
	return NULL;
}

/*
 * What a request says of one block, bucket or slot is true of a moment; sums are compared if the
 * tenant held still for them. A client that goes on is not taken for a contradiction.
 */
static void a_tenant_that_changes_is_not_wrong(void **state)
{
	struct dp_block block[CHAIN];
	struct kvpd_limits limits;
	struct busy b = { 0 };
	struct dp_world w;
	pthread_t thread;
	json_t *answer;
	char key[33], request[96];

	(void)state;
	dp_defaults(&w, &limits);
	limits.recipe_blocks = 500;
	limits.max_blocks = 4000;
	dp_start(&w, &limits);
	b.c = dp_attach(&w, w.tenant);
	b.space = dp_space(b.c, "m", 4);
	for (uint32_t seed = 1; seed <= 40; seed++)
		put_chain(b.c, b.space, seed, block);
	key_of(&w, 5, key);
	for (uint32_t got = 0; got < GRANTS;) {
		int n = dp_reserve(b.c, b.space, GRANTS - got, DP_WAIT_MS, b.grant + got);

		assert_true(n > 0);
		got += (uint32_t)n;
	}
	assert_int_equal(pthread_create(&thread, NULL, be_busy, &b), 0);
	for (uint32_t i = 0; i < 20; i++) {
		int r = dp_admin(&w, "{\"verb\":\"check\"}", &answer);

		if (r < 0)
			print_message("%s\n", json_dumps(answer, JSON_COMPACT));
		assert_int_equal(r, 0);
		assert_true(number(answer, "unsettled") <= 1);
		assert_true(number(answer, "blocks") >= 40 * CHAIN);
		json_decref(answer);
		assert_int_equal(dp_admin(&w, "{\"verb\":\"blocks\",\"limit\":1000}", &answer), 0);
		assert_true(number(answer, "total") >= 40 * CHAIN);
		json_decref(answer);
		snprintf(request, sizeof(request), "{\"verb\":\"inspect\",\"key\":\"%.12s\"}", key);
		assert_int_equal(dp_admin(&w, request, NULL), 0);
		assert_int_equal(dp_admin(&w, "{\"verb\":\"check\",\"from\":0}", NULL), 0);
	}
	b.stop = true;
	pthread_join(thread, NULL);
	assert_true(b.served > 0);
	for (uint32_t i = 0, unsettled = 1; unsettled; i++) {
		assert_in_range(i, 0, 6000);
		usleep(10000);
		assert_int_equal(dp_admin(&w, "{\"verb\":\"check\"}", &answer), 0);
		unsettled = (uint32_t)number(answer, "unsettled");
		json_decref(answer);
	}
	dp_stop(&w);
}

/* A request that is under way; ends with its first result that is none of a portion. */
struct errand {
	struct kvpd_request *request;
	int result;
};

static void errand_begin(struct errand *e, const char *text)
{
	json_t *q = json_loads(text, 0, NULL);

	assert_non_null(q);
	assert_int_equal(kvpd_admin_begin(q, &e->request), 0);
	json_decref(q);
}

/* One portion; true when it has ended. Its answer is dropped. */
static bool errand_on(struct dp_world *w, struct errand *e)
{
	char *text;
	json_t *answer;

	e->result = kvpd_admin_step(w->ledger, e->request);
	if (e->result == -EINPROGRESS)
		return false;
	answer = kvpd_admin_end(e->request);
	text = json_dumps(answer, JSON_COMPACT);
	if (e->result < 0)
		print_message("%s\n", text);
	free(text);
	json_decref(answer);
	return true;
}

/* Portion by portion beside a check, which must not take what it does for a contradiction. */
static void beside_a_check(struct dp_world *w, const char *text)
{
	struct errand check, other;
	bool begun = false, over = false;
	uint32_t n = 0;

	errand_begin(&check, "{\"verb\":\"check\"}");
	while (!errand_on(w, &check)) {
		/* Not at once: some was counted before anything goes. */
		if (++n < 5 || over)
			continue;
		if (!begun)
			errand_begin(&other, text);
		begun = true;
		over = errand_on(w, &other);
	}
	assert_int_equal(check.result, 0);
	assert_true(begun);
	while (!over)
		over = errand_on(w, &other);
	assert_int_equal(other.result, 0);
}

/* Likewise a client that closes a space, as often as it has it open. */
static void closing_beside_a_check(struct dp_world *w, struct dp_client *c)
{
	struct kvp_msg_id id = { dp_space(c, "m", 4), 0 };
	struct errand check;

	id.generation = c->view.spaces[id.id].generation;
	for (uint32_t i = 0; i < 4000; i++)
		(void)dp_space(c, "m", 4);
	errand_begin(&check, "{\"verb\":\"check\"}");
	while (!errand_on(w, &check))
		(void)kvpd_space_close(w->ledger, c->at.session, &id);
	assert_int_equal(check.result, 0);
}

/* Nor what other administrators do. */
static void two_requests_do_not_contradict_each_other(void **state)
{
	struct dp_block block[CHAIN];
	struct kvpd_limits limits;
	char key[33], request[96];
	struct dp_client *c;
	struct dp_world w;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	w.config.memory = UINT64_C(1) << 30;
	limits.share = UINT64_C(1) << 30;
	limits.max_blocks = MANY;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t seed = 1; seed <= 40; seed++)
		put_chain(c, space, seed, block);
	key_of(&w, CHAIN - 1, key);
	snprintf(request, sizeof(request), "{\"verb\":\"evict\",\"key\":\"%s\"}", key);
	beside_a_check(&w, request);
	beside_a_check(&w, "{\"verb\":\"evict\",\"count\":100}");
	beside_a_check(&w, "{\"verb\":\"evict\",\"all\":true}");
	beside_a_check(&w, "{\"verb\":\"drain\"}");
	closing_beside_a_check(&w, c);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_request_holds_the_ledger),
		cmocka_unit_test(no_reload_holds_the_ledger),
		cmocka_unit_test(the_largest_are_listed),
		cmocka_unit_test(a_long_list_is_made_in_steps),
		cmocka_unit_test(a_key_is_found_by_its_digits),
		cmocka_unit_test(what_stays_is_explained),
		cmocka_unit_test(a_tenant_that_changes_is_not_wrong),
		cmocka_unit_test(two_requests_do_not_contradict_each_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
