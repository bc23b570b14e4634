/* SPDX-License-Identifier: Apache-2.0 */
/* The order of copies, against a model that keeps one list and looks at all of it each time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/device/queue.h"

#define KIB     UINT64_C(1024)
#define MIB     (KIB << 10)
#define COPIES  400u
#define TENANTS 5u

static uint64_t state_of_random;

static uint64_t any(uint64_t below)
{
	state_of_random = state_of_random * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (state_of_random >> 33) % below;
}

static uint64_t seed(void)
{
	const char *s = getenv("KVP_TEST_SEED");
	uint64_t v = s ? strtoull(s, NULL, 0) : 11;

	print_message("seed %llu\n", (unsigned long long)v);
	return v;
}

/* ---- the model ------------------------------------------------------------------------------ */

struct job {
	struct kvpd_device_copy *copy;
	uint64_t left; /* 0: not there */
	uint64_t seq;
};

static struct {
	struct job job[COPIES];
	uint64_t seq;
	uint64_t served[KVPD_WAYS][KVPD_COPY_KINDS][TENANTS + 1];
	uint64_t floor[KVPD_WAYS][KVPD_COPY_KINDS];
	uint64_t passed[KVPD_WAYS][KVPD_COPY_KINDS];
} m;

static bool has(uint32_t way, uint32_t kind, uint32_t tenant)
{
	for (uint32_t i = 0; i < COPIES; i++)
		if (m.job[i].left && m.job[i].copy->way == way && m.job[i].copy->kind == kind &&
			(!tenant || m.job[i].copy->tenant == tenant))
			return true;
	return false;
}

static uint64_t least(uint32_t way, uint32_t kind)
{
	uint64_t v = UINT64_MAX;

	for (uint32_t t = 1; t <= TENANTS; t++)
		if (has(way, kind, t) && m.served[way][kind][t] < v)
			v = m.served[way][kind][t];
	return v == UINT64_MAX ? m.floor[way][kind] : v;
}

static void model_add(uint32_t i, struct kvpd_device_copy *c)
{
	if (!has(c->way, c->kind, c->tenant) &&
		m.served[c->way][c->kind][c->tenant] < least(c->way, c->kind))
		m.served[c->way][c->kind][c->tenant] = least(c->way, c->kind);
	m.job[i] = (struct job){ c, c->bytes, m.seq++ };
}

static uint64_t deadline(const struct job *j)
{
	return j->copy->flags & KVPD_COPY_EARLY ? j->copy->deadline_ns : UINT64_MAX;
}

/* Within a tenant by deadline; between tenants by deadline while they are not far ahead, by bytes else. */
static struct job *head_of(uint32_t way, uint32_t kind, uint32_t tenant)
{
	struct job *best = NULL;

	for (uint32_t i = 0; i < COPIES; i++) {
		struct job *j = &m.job[i];

		if (!j->left || j->copy->way != way || j->copy->kind != kind ||
			j->copy->tenant != tenant)
			continue;
		if (!best || deadline(j) < deadline(best) ||
			(deadline(j) == deadline(best) && j->seq < best->seq))
			best = j;
	}
	return best;
}

static struct job *model_pick(uint32_t way, uint32_t kind)
{
	const uint64_t floor = least(way, kind);
	struct job *urgent = NULL, *fair = NULL;

	m.floor[way][kind] = floor;
	for (uint32_t t = 1; t <= TENANTS; t++) {
		struct job *j = head_of(way, kind, t);
		const uint64_t served = m.served[way][kind][t];

		if (!j)
			continue;
		if (deadline(j) != UINT64_MAX && served <= floor + 64 * MIB) {
			const uint64_t other =
				urgent ? m.served[way][kind][urgent->copy->tenant] : 0;

			if (!urgent || deadline(j) < deadline(urgent) ||
				(deadline(j) == deadline(urgent) &&
					(served < other ||
						(served == other && j->seq < urgent->seq))))
				urgent = j;
		}
		if (!fair || served < m.served[way][kind][fair->copy->tenant] ||
			(served == m.served[way][kind][fair->copy->tenant] && j->seq < fair->seq))
			fair = j;
	}
	return urgent ? urgent : fair;
}

static uint32_t model_class(uint32_t way)
{
	uint32_t first = UINT32_MAX;

	for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++) {
		if (!has(way, k, 0))
			continue;
		if (m.passed[way][k] >= UINT64_C(1) << 30)
			return k;
		if (first == UINT32_MAX)
			first = k;
	}
	return first;
}

/* Checks a batch piece by piece against what the model would have taken. Returns its bytes. */
static uint64_t check_batch(
	uint32_t way, uint32_t kind, const struct kvpd_queue_piece *piece, uint32_t n)
{
	uint64_t bytes = 0;

	assert_int_equal(kind, model_class(way));
	for (uint32_t i = 0; i < n; i++) {
		struct job *j = model_pick(way, kind);
		const struct kvpd_device_copy *c = j->copy;

		assert_ptr_equal(piece[i].copy, c);
		assert_true(piece[i].off == c->bytes - j->left);
		assert_true(piece[i].bytes && piece[i].bytes <= j->left);
		/* No small pieces of large copies, at either side of a cut; cuts keep lines whole. */
		assert_true(piece[i].bytes >= 64 * KIB || piece[i].bytes == c->bytes);
		if (piece[i].bytes != j->left)
			assert_true(
				j->left - piece[i].bytes >= 64 * KIB && piece[i].bytes % 64 == 0);
		j->left -= piece[i].bytes;
		m.served[way][kind][c->tenant] += piece[i].bytes;
		bytes += piece[i].bytes;
	}
	assert_true(bytes <= KVPD_QUEUE_BATCH);
	/* It ended because it was full, or there was no more. */
	if (n < KVPD_DRIVER_BATCH && has(way, kind, 0))
		assert_true(bytes > KVPD_QUEUE_BATCH - 128 * KIB);
	m.passed[way][kind] = 0;
	for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++) {
		if (k > kind && has(way, k, 0))
			m.passed[way][k] += bytes;
		if (!has(way, k, 0))
			m.passed[way][k] = 0;
	}
	return bytes;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static struct kvpd_copy_queue queue;
static struct kvpd_device_copy copies[COPIES];
static struct kvpd_queue_piece piece[KVPD_DRIVER_BATCH];

static void add_some(uint64_t now)
{
	for (uint32_t i = 0; i < COPIES; i++) {
		if (m.job[i].left || any(8))
			continue;
		copies[i] = (struct kvpd_device_copy){
			.way = (uint32_t)any(KVPD_WAYS),
			.kind = (uint32_t)any(KVPD_COPY_KINDS),
			.tenant = 1 + (uint32_t)any(TENANTS),
			.flags = any(3) ? 0 : KVPD_COPY_EARLY,
			.deadline_ns = any(20),
			.bytes = any(4) ? 1 + any(300 * KIB) : 1 + any(20 * MIB),
		};
		kvpd_queue_add(&queue, &copies[i], now);
		model_add(i, &copies[i]);
	}
}

static void take_one_out(void)
{
	uint32_t i = (uint32_t)any(COPIES);

	if (!m.job[i].left)
		return;
	kvpd_queue_remove(&queue, &copies[i]);
	m.job[i].left = 0;
	if (!has(copies[i].way, copies[i].kind, 0))
		m.passed[copies[i].way][copies[i].kind] = 0;
}

static void order_is_the_models(void **state)
{
	uint64_t bytes = 0;

	(void)state;
	state_of_random = seed();
	memset(&m, 0, sizeof(m));
	kvpd_queue_init(&queue, 0);
	for (uint32_t round = 0; round < 4000; round++) {
		uint32_t way = (uint32_t)any(KVPD_WAYS), kind, n;

		if (any(3) == 0)
			add_some(round);
		if (any(5) == 0)
			take_one_out();
		n = kvpd_queue_next(&queue, way, round, piece, &kind);
		if (!n)
			assert_int_equal(model_class(way), UINT32_MAX);
		else
			bytes += check_batch(way, kind, piece, n);
	}
	assert_true(bytes > UINT64_C(1) << 32);
}

static void rate_is_kept(void **state)
{
	const uint64_t rate = 100 * MIB;
	uint64_t now = 1000, sent = 0;
	uint32_t kind;

	(void)state;
	kvpd_queue_init(&queue, rate);
	assert_true(kvpd_queue_ready(&queue, KVPD_TO_HOST) == UINT64_MAX);
	for (uint32_t i = 0; i < 30; i++) {
		copies[i] = (struct kvpd_device_copy){ .tenant = 1, .bytes = 5 * MIB };
		kvpd_queue_add(&queue, &copies[i], now);
	}
	assert_true(kvpd_queue_ready(&queue, KVPD_TO_DEVICE) <= now);
	for (;;) {
		uint32_t n = kvpd_queue_next(&queue, KVPD_TO_DEVICE, now, piece, &kind);

		if (!n)
			break;
		for (uint32_t i = 0; i < n; i++)
			sent += piece[i].bytes;
		if (kvpd_queue_ready(&queue, KVPD_TO_DEVICE) == UINT64_MAX)
			break;
		/* Not one nanosecond earlier. */
		now = kvpd_queue_ready(&queue, KVPD_TO_DEVICE);
		assert_int_equal(kvpd_queue_next(&queue, KVPD_TO_DEVICE, now - 1, piece, &kind), 0);
	}
	assert_true(sent == 150 * MIB);
	assert_true(now - 1000 >= (sent - KVPD_QUEUE_BATCH) * 1000000000 / rate - 1000);
	assert_true(now - 1000 <= sent * 1000000000 / rate);
	/* The other way is free all the while. */
	copies[0] = (struct kvpd_device_copy){ .tenant = 1, .bytes = MIB, .way = KVPD_TO_HOST };
	kvpd_queue_add(&queue, &copies[0], now);
	assert_int_equal(kvpd_queue_next(&queue, KVPD_TO_HOST, 0, piece, &kind), 1);
}

static void who_is_passed_over_gets_a_batch(void **state)
{
	uint64_t before = 0;
	uint32_t kind;

	(void)state;
	kvpd_queue_init(&queue, 0);
	copies[COPIES - 1] = (struct kvpd_device_copy){
		.tenant = 2, .kind = KVPD_COPY_AHEAD, .bytes = 12 * MIB
	};
	kvpd_queue_add(&queue, &copies[COPIES - 1], 1);
	for (uint32_t i = 0; i < COPIES - 1; i++) {
		copies[i] = (struct kvpd_device_copy){ .tenant = 1, .bytes = 4 * MIB };
		kvpd_queue_add(&queue, &copies[i], 1);
	}
	for (uint32_t turn = 0; turn < 2; turn++) {
		for (before = 0;;) {
			assert_true(kvpd_queue_next(&queue, KVPD_TO_DEVICE, 0, piece, &kind) > 0);
			if (kind == KVPD_COPY_AHEAD)
				break;
			before += piece[0].bytes;
		}
		assert_true(before == UINT64_C(1) << 30 || turn);
	}
}

static void a_deadline_buys_no_more_than_64_mib(void **state)
{
	uint64_t mine = 0, other = 0;
	uint32_t kind;

	(void)state;
	kvpd_queue_init(&queue, 0);
	for (uint32_t i = 0; i < 200; i++) {
		copies[i] = (struct kvpd_device_copy){
			.tenant = 1 + i % 2,
			.flags = i % 2 ? 0 : KVPD_COPY_EARLY,
			.deadline_ns = i,
			.bytes = 4 * MIB,
		};
		kvpd_queue_add(&queue, &copies[i], 1);
	}
	for (uint32_t i = 0; i < 400 * MIB / KVPD_QUEUE_BATCH; i++) {
		assert_int_equal(kvpd_queue_next(&queue, KVPD_TO_DEVICE, 0, piece, &kind), 1);
		*(piece[0].copy->tenant == 1 ? &mine : &other) += piece[0].bytes;
		assert_true(mine <= other + 68 * MIB);
		if (i <= 64 * MIB / KVPD_QUEUE_BATCH)
			assert_true(other == 0);
	}
	assert_true(other >= 160 * MIB);
}

/* A driver that wants the smallest batches gets something of every copy, whatever its length. */
static void the_least_batch_takes_every_copy(void **state)
{
	uint32_t kind;

	(void)state;
	kvpd_queue_init(&queue, 0);
	queue.batch = KVPD_DRIVER_LEAST;
	for (uint64_t bytes = 64; bytes < 3 * KVPD_DRIVER_LEAST; bytes += 64) {
		uint64_t left = bytes;

		copies[0] = (struct kvpd_device_copy){ .tenant = 1, .bytes = bytes };
		kvpd_queue_add(&queue, &copies[0], 1);
		while (left) {
			assert_int_equal(
				kvpd_queue_next(&queue, KVPD_TO_DEVICE, 0, piece, &kind), 1);
			left -= piece[0].bytes;
		}
	}
}

/* D-047. Blocks side by side at both ends are one copy; a gap at either end, or other memory, ends it. */
static void neighbours_are_one(void **state)
{
	static const struct {
		uint32_t seg, host;
		uint64_t seg_off, host_off;
	} at[] = { { 1, 2, 0, 4 * MIB }, { 1, 2, MIB, 5 * MIB }, { 1, 2, 2 * MIB, 6 * MIB },
		{ 1, 2, 4 * MIB, 7 * MIB }, { 1, 2, 5 * MIB, 9 * MIB }, { 1, 3, 6 * MIB, 10 * MIB },
		{ 2, 3, 7 * MIB, 11 * MIB }, { 2, 3, 6 * MIB, 10 * MIB } };
	static const uint64_t bytes[] = { 3 * MIB, MIB, MIB, MIB, MIB, MIB };
	struct kvpd_queue_piece pieces[8];
	struct kvpd_copy out[8];

	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		copies[i] = (struct kvpd_device_copy){ .seg = at[i].seg,
			.host = at[i].host,
			.seg_off = at[i].seg_off,
			.host_off = at[i].host_off,
			.bytes = MIB };
		pieces[i] = (struct kvpd_queue_piece){ &copies[i], 0, MIB };
	}
	assert_int_equal(kvpd_queue_join(pieces, 8, out), 6);
	for (uint32_t i = 0; i < 6; i++) {
		const uint32_t k = i ? i + 2 : 0;

		assert_int_equal(out[i].seg, at[k].seg);
		assert_int_equal(out[i].host, at[k].host);
		assert_int_equal(out[i].seg_off, at[k].seg_off);
		assert_int_equal(out[i].host_off, at[k].host_off);
		assert_int_equal(out[i].bytes, bytes[i]);
		assert_int_equal(out[i].sum, 0);
	}
	/* Parts of one copy are neighbours, too. */
	pieces[0].bytes = pieces[1].off = KIB;
	pieces[1].copy = &copies[0];
	pieces[1].bytes = MIB - KIB;
	assert_int_equal(kvpd_queue_join(pieces, 2, out), 1);
	assert_int_equal(out[0].bytes, MIB);
	assert_int_equal(kvpd_queue_join(pieces, 1, out), 1);
	assert_int_equal(out[0].bytes, KIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(neighbours_are_one),
		cmocka_unit_test(order_is_the_models),
		cmocka_unit_test(the_least_batch_takes_every_copy),
		cmocka_unit_test(rate_is_kept),
		cmocka_unit_test(who_is_passed_over_gets_a_batch),
		cmocka_unit_test(a_deadline_buys_no_more_than_64_mib),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
