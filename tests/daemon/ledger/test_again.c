/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes and comes back is no better placed than a scan, or it is: the policy learns of it by name, and on devices
 * the ledger does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/ledger/again.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/lesson.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"
#include "tests/daemon/ledger/dp_world.h"

#define T      16u
#define ROOM   32u
#define SCAN   40u /* blocks that nobody comes back to: more than there is room for */
#define ROUNDS 12u

struct seen {
	bool row[ROUNDS]; /* was the block found? */
	uint32_t found;   /* in so many */
	uint64_t reloads;
	uint64_t evictions;
};

/* A request for one block: matched, or computed and put. */
static bool request(struct dp_client *c, uint32_t space, uint32_t number)
{
	kvp_token tokens[T];
	struct dp_block block;
	struct kvp_hit hit;
	bool hits;

	for (uint32_t i = 0; i < T; i++)
		tokens[i] = number * 1000 + i;
	hits = dp_find(c, space, tokens, T, &hit, 1) == 1;
	kvp_touch_push(c->page, 0, hits ? hit.id : KVP_BLOCK_NONE, 1);
	dp_flush(c);
	if (!hits)
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
	return hits;
}

static int asked_on_ledger(struct kvpd_ledger *l, void *arg)
{
	const struct dp_world *w = arg;

	return kvpd_lesson_asked(l->tenant[w->tenant]->lesson);
}

/* What a policy learns counts from the next request on, however seldom its thread gets a processor. */
static void until_learnt(struct dp_world *w)
{
	const struct timespec pause = { 0, 100000 };

	while (kvpd_ledger_ask(w->ledger, asked_on_ledger, w))
		nanosleep(&pause, NULL);
}

/* The same block again and again, and between any two of these more others than the cache holds. */
static struct seen rounds(const char *policy)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct seen seen = { 0 };
	uint32_t space, next = 100;

	dp_defaults(&w, &limits);
	limits.max_blocks = ROOM;
	limits.recipe_blocks = 512;
	w.config.policy = (char *)(uintptr_t)policy;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		seen.found += seen.row[i] = request(c, space, 1);
		until_learnt(&w);
		for (uint32_t n = 0; n < SCAN; n++) {
			assert_false(request(c, space, next++));
			until_learnt(&w);
		}
	}
	seen.reloads = dp_figure(&w, "reloads_total");
	seen.evictions = dp_figure(&w, "evictions_total");
	dp_check(&w);
	dp_stop(&w);
	return seen;
}

/*
 * E-047. By order of use alone the block goes in and out for ever, and each time is counted: it came back before as many
 * others had gone as the cache holds. Policies that remember by name what has gone keep it when it has come back once or
 * twice, and the scan goes instead; the default one is among them.
 */
static void no_going_in_and_out(void **state)
{
	static const char *const keep[] = { KVP_EVICT_DEFAULT, "s3-fifo" };
	struct seen s = rounds("lru");

	(void)state;
	assert_int_equal(s.found, 0);
	assert_int_equal(s.reloads, ROUNDS - 1);
	assert_int_equal(s.evictions, ROUNDS * (SCAN + 1) - ROOM);
	for (uint32_t i = 0; i < 2; i++) {
		s = rounds(keep[i]);
		for (uint32_t round = ROUNDS / 2; round < ROUNDS; round++)
			assert_true(s.row[round]);
		assert_true(s.reloads >= 1 && s.reloads < ROUNDS / 2);
	}
}

/* ---- on a device ---------------------------------------------------------------------------- */

#define MIB    (UINT64_C(1) << 20)
#define BYTES  (64u << 10)
#define SLOTS  16u /* of the device */
#define OTHERS 79u

struct there {
	struct dp_world w;
	struct kvpd_device_entry device;
	struct dp_client *c;
	uint32_t space;
	struct dp_block block[OTHERS + 1]; /* each the first of its chain */
};

static struct there *there_begin(const char *policy)
{
	struct there *x = calloc(1, sizeof(*x));
	struct kvpd_limits limits;

	dp_defaults(&x->w, &limits);
	x->device = (struct kvpd_device_entry){
		.name = (char *)(uintptr_t) "first",
		.driver = (char *)(uintptr_t) "host",
		.worker = getenv("KVPOOL_DEVICE"),
		.bytes = MIB,
		.segment = MIB,
	};
	limits.device_share[0] = MIB;
	x->w.config.devices = &x->device;
	x->w.config.n_devices = 1;
	x->w.config.policy = (char *)(uintptr_t)policy;
	dp_start(&x->w, &limits);
	x->c = dp_attach(&x->w, x->w.tenant);
	x->space = dp_large_space(x->c, "m", BYTES);
	for (uint32_t i = 0; i < sizeof(x->block) / sizeof(x->block[0]); i++) {
		kvp_token tokens[T];

		for (uint32_t k = 0; k < T; k++)
			tokens[k] = i * 1000 + k;
		assert_int_equal(dp_put(x->c, x->space, dp_root(), tokens, T, &x->block[i]), 0);
	}
	return x;
}

static void there_end(struct there *x)
{
	assert_int_equal(dp_figure(&x->w, "reloads_total"), 0);
	assert_int_equal(dp_figure(&x->w, "evictions_total"), 0);
	dp_check(&x->w);
	dp_stop(&x->w);
	free(x);
}

static uint64_t there_figure(struct there *x, const char *name)
{
	json_t *answer, *device;
	uint64_t n;

	assert_int_equal(dp_admin(&x->w, "{\"verb\": \"devices\"}", &answer), 0);
	device = json_array_get(json_object_get(answer, "devices"), 0);
	assert_true(json_is_integer(json_object_get(device, name)));
	n = (uint64_t)json_integer_value(json_object_get(device, name));
	json_decref(answer);
	return n;
}

static bool lies_there(const struct there *x, uint32_t i)
{
	return kvp_load_acquire(&x->c->view.blocks[x->block[i].id].payload[KVP_TIER_VRAM].where) !=
	       0;
}

/* A request that reads the block there: found, or warmed. */
static bool read_there(struct there *x, uint32_t i)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_WARM,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = x->block[i].id,
		.parent_birth = x->block[i].birth,
	};
	bool found = lies_there(x, i);
	struct kvp_cqe cqe;
	uint32_t serial;

	kvp_touch_push(x->c->page, 0, x->block[i].id, 1);
	dp_flush(x->c);
	if (found)
		return true;
	serial = dp_push(x->c, &sqe);
	do
		assert_int_equal(dp_next(x->c, DP_WAIT_MS, &cqe), 0);
	while (cqe.serial != serial || cqe.flags != KVP_CQE_LATE);
	assert_int_equal(cqe.status, 0);
	assert_true(lies_there(x, i));
	return false;
}

/*
 * E-047. What was dropped from a device and came back soon twice stays there, though the policy has nothing but the order
 * of use, by which it would never be found.
 */
static void a_device_keeps_what_came_back_twice(void **state)
{
	struct there *x = there_begin("lru");
	uint32_t next = 1;

	(void)state;
	for (uint32_t round = 0; round < ROUNDS; round++) {
		assert_true(read_there(x, 0) == (round >= 3));
		/* Of the others in turn none comes back soon. */
		for (uint32_t n = 0; n < SLOTS + 4; n++, next = next % OTHERS + 1)
			assert_false(read_there(x, next));
	}
	assert_int_equal(there_figure(x, "reloads_total"), 2);
	there_end(x);
}

/* A little more than the device holds, in turn: by the order of use alone nothing would ever be found. */
static void some_of_what_does_not_fit_stays(void **state)
{
	struct there *x = there_begin("lru");
	uint32_t found = 0;

	(void)state;
	for (uint32_t round = 0; round < ROUNDS; round++) {
		found = 0;
		for (uint32_t i = 0; i < SLOTS + 4; i++)
			found += read_there(x, i);
		assert_true(round < 4 || found >= SLOTS / 8);
	}
	assert_true(there_figure(x, "reloads_total") > 2 * SLOTS);
	there_end(x);
}

/* It ends: what nobody uses any more goes when it would have gone from a device of twice the size. */
static void and_not_for_ever(void **state)
{
	struct there *x = there_begin("lru");
	uint32_t next = 1;

	(void)state;
	for (uint32_t round = 0; round < 5; round++) {
		assert_true(read_there(x, 0) == (round >= 3));
		for (uint32_t n = 0; n < SLOTS + 4; n++, next = next % OTHERS + 1)
			assert_false(read_there(x, next));
	}
	for (uint32_t n = 0; n < SLOTS; n++, next = next % OTHERS + 1)
		assert_false(read_there(x, next));
	assert_false(lies_there(x, 0));
	there_end(x);
}

/* Leases all that lies there but these two. */
static uint32_t lease_others(struct there *x, uint32_t a, uint32_t b, struct kvp_lease *lease)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i <= OTHERS; i++) {
		uint32_t id = x->block[i].id;
		const struct kvp_block *c = &x->c->view.blocks[id];

		if (i != a && i != b && lies_there(x, i))
			assert_int_equal(kvp_lease_take(x->c->page, 0, c, id,
						 kvp_load_acquire(&c->word), &lease[n++]),
				0);
	}
	return n;
}

static void release(struct kvp_lease *lease, uint32_t n)
{
	while (n)
		kvp_lease_drop(&lease[--n]);
}

/* The device is full, and block 0 lies there, where it has come back soon so often. Returns the next that never lay there. */
static uint32_t brought_back(struct there *x, uint32_t times)
{
	struct kvp_lease lease[SLOTS];
	uint32_t next = 1, n;

	for (; next < SLOTS; next++)
		assert_false(read_there(x, next));
	assert_false(read_there(x, 0));
	for (uint32_t i = 0; i < times; i++) {
		n = lease_others(x, 0, 0, lease);
		assert_int_equal(n, SLOTS - 1);
		assert_false(read_there(x, next++));
		assert_false(lies_there(x, 0));
		release(lease, n);
		assert_false(read_there(x, 0));
	}
	assert_int_equal(there_figure(x, "reloads_total"), times);
	return next;
}

/* One that is used again and again, which policies would rather keep than the first. */
static uint32_t a_hot_one(struct there *x)
{
	uint32_t hot = 1;

	while (!lies_there(x, hot))
		hot++;
	for (uint32_t i = 0; i < 50; i++)
		assert_true(read_there(x, hot));
	return hot;
}

/*
 * E-047. So it is with the default policy, which remembers what has gone, and would give up what came back twice sooner
 * than what is used all the time: while a quarter of the room goes for others, it stays. Then it is the policy's again;
 * and before that it goes where nothing else can.
 */
static void so_does_the_default_for_a_while(void **state)
{
	struct there *x = there_begin(KVP_EVICT_DEFAULT);
	uint32_t next = brought_back(x, 2), hot = a_hot_one(x), n;
	struct kvp_lease lease[SLOTS];

	(void)state;
	n = lease_others(x, 0, hot, lease);
	assert_int_equal(n, SLOTS - 2);
	for (uint32_t i = 0; i < SLOTS / 4; i++) {
		assert_false(read_there(x, next++));
		assert_true(lies_there(x, 0));
		assert_false(lies_there(x, hot));
	}
	release(lease, n);
	n = lease_others(x, 0, 0, lease);
	assert_false(read_there(x, next++));
	assert_false(lies_there(x, 0));
	release(lease, n);
	there_end(x);
}

/* Once is not enough. */
static void once_is_the_policys(void **state)
{
	struct there *x = there_begin(KVP_EVICT_DEFAULT);
	uint32_t next = brought_back(x, 1), hot = a_hot_one(x), n;
	struct kvp_lease lease[SLOTS];

	(void)state;
	n = lease_others(x, 0, hot, lease);
	assert_false(read_there(x, next++));
	assert_false(lies_there(x, 0));
	assert_true(lies_there(x, hot));
	release(lease, n);
	there_end(x);
}

/* It goes before anybody is refused for it. */
static void who_finds_nothing_else_takes_it(void **state)
{
	struct there *x = there_begin("lru");
	struct kvp_lease lease[SLOTS];
	uint32_t n, next = 1;

	(void)state;
	for (uint32_t round = 0; round < 4; round++) {
		assert_true(read_there(x, 0) == (round >= 3));
		for (uint32_t k = 0; k < SLOTS + 4; k++, next = next % OTHERS + 1)
			assert_false(read_there(x, next));
	}
	n = lease_others(x, 0, 0, lease);
	assert_int_equal(n, SLOTS - 1);
	while (lies_there(x, next))
		next = next % OTHERS + 1;
	assert_false(read_there(x, next));
	assert_false(lies_there(x, 0));
	release(lease, n);
	there_end(x);
}

/* ---- the table ------------------------------------------------------------------------------ */

static struct kvp_key key_of(uint64_t i)
{
	return (struct kvp_key){ i * UINT64_C(0x9e3779b97f4a7c15),
		i * UINT64_C(0xd1342543de82ef95) };
}

static void the_table_counts(void **state)
{
	struct kvpd_again *a = kvpd_again_new(64, false);
	const struct kvp_key key = key_of(1);

	(void)state;
	assert_false(kvpd_again_came(a, key, 64)); /* it was never there */
	kvpd_again_left(a, key);
	assert_true(kvpd_again_came(a, key, 64));
	assert_false(kvpd_again_spare(a, key));
	kvpd_again_left(a, key);
	for (uint32_t i = 0; i < 63; i++)
		kvpd_again_left(a, key_of(100 + i));
	assert_true(kvpd_again_came(a, key, 64)); /* 63 others: just so */
	for (uint32_t i = 0; i < 2; i++)
		assert_true(kvpd_again_kept(a, key)); /* to ask is nothing */
	assert_true(kvpd_again_spare(a, key));
	assert_false(kvpd_again_kept(a, key));
	assert_false(kvpd_again_spare(a, key)); /* once, */
	kvpd_again_used(a, key, 64);
	assert_true(kvpd_again_spare(a, key)); /* and again when it was used */
	/* When it goes now and comes back late, it begins anew. */
	kvpd_again_left(a, key);
	for (uint32_t i = 0; i < 64; i++)
		kvpd_again_left(a, key_of(700 + i));
	assert_false(kvpd_again_came(a, key, 64));
	kvpd_again_used(a, key, 64);
	assert_false(kvpd_again_spare(a, key));
	kvpd_again_left(a, key);
	assert_true(kvpd_again_came(a, key, 64));
	assert_false(kvpd_again_spare(a, key));
	kvpd_again_forget(a, key);
	assert_false(kvpd_again_came(a, key, 64));
	kvpd_again_free(a);
	kvpd_again_free(NULL);
}

/* Whatever comes back, an eighth of the room at most is spared; and what went of late is known. */
static void the_table_is_bounded(void **state)
{
	enum { N = 4096 };
	struct kvpd_again *a = kvpd_again_new(N, false);
	uint32_t spared = 0, known = 0;

	(void)state;
	for (uint32_t round = 0; round < 3; round++) {
		known = 0;
		for (uint32_t i = 0; i < N; i++)
			kvpd_again_left(a, key_of(1 + i));
		for (uint32_t i = N; i-- > 0;)
			known += kvpd_again_came(a, key_of(1 + i), N);
	}
	print_message("%u of %u known\n", known, N);
	assert_true(known > N - N / 16);
	for (uint32_t i = 0; i < N; i++)
		spared += kvpd_again_spare(a, key_of(1 + i));
	assert_int_equal(spared, N / 8);
	/* What was spared, or went, makes place for others. */
	for (uint32_t i = 0; i < N; i++)
		kvpd_again_forget(a, key_of(1 + i));
	for (uint32_t round = 0; round < 2; round++)
		for (uint32_t i = 0; i < 8; i++) {
			kvpd_again_left(a, key_of(1 + i));
			assert_true(kvpd_again_came(a, key_of(1 + i), N));
			assert_int_equal(kvpd_again_spare(a, key_of(1 + i)), round);
		}
	kvpd_again_free(a);
}

/*
 * Beside a policy that remembers by itself it is a few, each while a quarter of the room goes, as often as it is named in
 * that time.
 */
static void the_table_is_brief(void **state)
{
	enum { ROOM_ = 128, TIME = ROOM_ / 4 + 1, MOST = ROOM_ / 32 };
	struct kvpd_again *a = kvpd_again_new(ROOM_, true);
	uint64_t next = 1000;
	uint32_t all = 0;

	(void)state;
	for (uint32_t round = 0; round < 50; round++) {
		uint32_t kept = 0;

		for (uint32_t times = 0; times < 2; times++)
			for (uint64_t i = 1; i <= 10; i++) {
				kvpd_again_left(a, key_of(i));
				assert_true(kvpd_again_came(a, key_of(i), ROOM_));
				assert_true(round || times || !kvpd_again_kept(a, key_of(i)));
			}
		for (uint64_t i = 1; i <= 10; i++)
			kept += kvpd_again_spare(a, key_of(i)) && kvpd_again_spare(a, key_of(i));
		assert_true(kept <= MOST && (round || kept == MOST));
		all += kept;
		for (uint32_t i = 0; i < TIME + round % 7; i++)
			kvpd_again_left(a, key_of(next++));
		for (uint64_t i = 1; i <= 10; i++) {
			kvpd_again_used(a, key_of(i), ROOM_);
			assert_false(kvpd_again_kept(a, key_of(i)));
			assert_false(kvpd_again_spare(a, key_of(i)));
		}
	}
	print_message("%u kept in 50 rounds\n", all);
	assert_true(all > 10 * MOST);
	kvpd_again_free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_going_in_and_out),
		cmocka_unit_test(a_device_keeps_what_came_back_twice),
		cmocka_unit_test(some_of_what_does_not_fit_stays),
		cmocka_unit_test(and_not_for_ever),
		cmocka_unit_test(so_does_the_default_for_a_while),
		cmocka_unit_test(once_is_the_policys),
		cmocka_unit_test(who_finds_nothing_else_takes_it),
		cmocka_unit_test(the_table_counts),
		cmocka_unit_test(the_table_is_bounded),
		cmocka_unit_test(the_table_is_brief),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
