/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that speaks the protocol by hand and wants harm: rubbish in rings, indices out of range,
 * entries changed after submission, rings never drained, lease slots rewritten for ever, everything
 * leased, endless reservations, thousands of connections. It may be refused, bounded or expelled;
 * an honest client beside it must not notice, and the daemon's memory must not grow without bound.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shm/kvp_catalog.h"
#include "shm/kvp_lease.h"
#include "shm/kvp_msg.h"
#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"
#include "tests/e2e/e2e.h"
#include "tests/e2e/raw.h"

#define TOKENS (E2E_BT * 6)

static struct kvt_daemon daemon_;

/* Does the honest client still get what it should, promptly enough for its timeouts? */
static void honest_work(uint32_t number)
{
	uint32_t tokens[TOKENS];
	struct e2e e;

	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	e2e_prompt(number, tokens, TOKENS);
	assert_true(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, true) >= 0);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(e2e_fetch_all(&e, tokens, TOKENS), TOKENS);
	e2e_detach(&e);
}

/* Runs fn in a process of its own, with an honest client beside it, and expects all clean after. */
static void beside_honest(void (*fn)(uint64_t), uint64_t seed, uint32_t number)
{
	pid_t pid = e2e_fork();
	int status;

	if (!pid) {
		fn(seed);
		_exit(0);
	}
	for (uint32_t i = 0; i < 5; i++)
		honest_work(number + i * 2);
	status = e2e_reap(pid);
	assert_int_equal(status, 0);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

static void random_entries(uint64_t rng)
{
	struct raw s;

	raw_attach(&s, daemon_.socket);
	for (uint32_t i = 0; i < 50000; i++) {
		struct kvp_sqe sqe;
		uint64_t *words = (uint64_t *)&sqe;
		struct kvp_cqe cqe;

		for (uint32_t k = 0; k < sizeof(sqe) / 8; k++)
			words[k] = e2e_random(&rng);
		/* Half of them plausible in all but one field. */
		if (i & 1) {
			sqe.op = (uint32_t)(e2e_random(&rng) % (KVP_OP_MAX_ + 1));
			sqe.grant %= KVP_MAX_GRANTS + 2;
			sqe.grant_generation %= 4;
			sqe.space = (uint16_t)(s.space + e2e_random(&rng) % 2);
			sqe.tokens %= E2E_BT + 2;
			sqe.parent_kind %= 4;
			sqe.parent_id %= 700;
			sqe.parent_birth %= 3;
			sqe.count %= 8;
		}
		for (uint32_t t = 0; t < 4; t++)
			s.page->staging[i % KVP_MAX_GRANTS][t] = (kvp_token)e2e_random(&rng);
		if (kvp_sq_push(s.page, &s.sq_tail, &sqe) < 0)
			raw_bell(&s);
		else if (i % 16 == 0)
			/* Changed after submission. */
			s.page->sq[(s.sq_tail - 1) % KVP_SQ_ENTRIES].grant =
				(uint32_t)e2e_random(&rng);
		if (i % 32 == 0)
			raw_bell(&s);
		while (kvp_cq_pop(s.page, &s.cq_head, &cqe) == 0)
			;
	}
	raw_detach(&s);
}

static void never_drains(uint64_t rng)
{
	struct raw s;
	struct kvp_sqe sqe = { .op = KVP_OP_FLUSH };
	(void)rng;

	raw_attach(&s, daemon_.socket);
	for (uint32_t i = 0; i < 200000; i++) {
		sqe.serial = i;
		if (kvp_sq_push(s.page, &s.sq_tail, &sqe) < 0 && i % 64 == 0)
			raw_bell(&s);
	}
	raw_detach(&s);
}

static void nonsense_indices(uint64_t rng)
{
	for (uint32_t round = 0; round < 20; round++) {
		struct raw s;

		raw_attach(&s, daemon_.socket);
		kvp_store_relaxed(&s.page->sq_tail, (uint32_t)e2e_random(&rng));
		kvp_store_relaxed(&s.page->cq_head, (uint32_t)e2e_random(&rng));
		raw_bell(&s);
		e2e_sleep_us(2000);
		raw_detach(&s);
	}
}

/* Names every block in every slot, over and over, and scribbles over touch logs and counters. */
static void rewrites_leases(uint64_t rng)
{
	struct raw s;
	uint64_t until = raw_in(2000);

	raw_attach(&s, daemon_.socket);
	while (raw_in(0) < until) {
		for (uint32_t i = 0; i < KVP_LEASES / KVP_LEASE_LINE / 64; i++) {
			kvp_store_relaxed(
				&s.page->lease_lines[i], e2e_random(&rng) | e2e_random(&rng));
			kvp_store_relaxed(&s.page->until_lines[i], e2e_random(&rng));
		}
		for (uint32_t i = 0; i < KVP_LEASES; i++) {
			struct kvp_shard *sh = &s.page->shard[i / KVP_SHARD_LEASES];

			kvp_store_relaxed(
				&s.page->lease[i / KVP_SHARD_LEASES][i % KVP_SHARD_LEASES],
				e2e_random(&rng) % 4
					? kvp_slot_value((kvp_block_id)(e2e_random(&rng) % 700), 0)
					: e2e_random(&rng));
			kvp_store_relaxed(
				&s.page->until[i / KVP_SHARD_LEASES][i % KVP_SHARD_LEASES],
				e2e_random(&rng) >> e2e_random(&rng) % 64);
			kvp_store_relaxed(&sh->touch_tail, (uint32_t)e2e_random(&rng));
			kvp_store_relaxed(
				&sh->touch[e2e_random(&rng) % KVP_TOUCHES], e2e_random(&rng));
			kvp_store_relaxed(&sh->hits, e2e_random(&rng));
			kvp_store_relaxed(&s.page->touched, (uint32_t)e2e_random(&rng));
		}
	}
	raw_detach(&s);
}

static void endless_grants(uint64_t rng)
{
	struct raw s;
	struct kvp_sqe sqe = { .op = KVP_OP_RESERVE, .count = UINT32_MAX };
	struct kvp_cqe cqe;
	uint32_t granted = 0;
	(void)rng;

	raw_attach(&s, daemon_.socket);
	sqe.space = (uint16_t)s.space;
	for (uint32_t i = 0; i < 2000; i++) {
		sqe.serial = i;
		if (kvp_sq_push(s.page, &s.sq_tail, &sqe) == 0)
			raw_bell(&s);
		/* An arena may be on its way: it has to be acknowledged before slots come. */
		if (kvp_msg_recv(s.sock, KVP_MSG_TO_CLIENT, s.packet) == 0) {
			const struct kvp_msg_extent *e = (void *)s.packet->body;
			struct kvp_msg_id id = { e->extent, e->generation };

			if (s.packet->h.type == KVP_MSG_EXTENT && e->flags & KVP_EXTENT_WRITABLE)
				kvp_msg_send(
					s.sock, KVP_MSG_ARENA_ACK, 0, &id, sizeof(id), NULL, 0);
			kvp_msg_done(s.packet);
		}
		while (kvp_cq_pop(s.page, &s.cq_head, &cqe) == 0)
			granted += cqe.op == KVP_OP_RESERVE && cqe.status == 0;
		e2e_sleep_us(100);
	}
	if (granted > KVP_MAX_GRANTS)
		_exit(3);
	raw_detach(&s);
}

/* Slots for the raw client, as many as it gets; how many. */
static uint32_t take_slots(struct raw *s, struct kvp_cqe got[KVP_MAX_GRANTS])
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_RESERVE, .count = KVP_MAX_GRANTS, .space = (uint16_t)s->space
	};
	uint32_t n = 0;
	void *arena;
	int fd;

	if (raw_arena(s, 0, false, 3000, &fd, &arena) < 0)
		return 0;
	/* Nothing is written there; who kept it would get no more of them. */
	munmap(arena, s->arena_bytes);
	close(fd);
	kvp_sq_push(s->page, &s->sq_tail, &sqe);
	raw_bell(s);
	for (uint32_t i = 0; i < 200 && n < 16; i++) {
		struct kvp_cqe cqe;

		while (kvp_cq_pop(s->page, &s->cq_head, &cqe) == 0)
			if (cqe.op == KVP_OP_RESERVE && cqe.status == 0 && n < KVP_MAX_GRANTS)
				got[n++] = cqe;
		if (i % 50 == 49) {
			kvp_sq_push(s->page, &s->sq_tail, &sqe);
			raw_bell(s);
		}
		e2e_sleep_us(1000);
	}
	return n;
}

/*
 * Commits that wait for each other in circles, for timelines that go back and forth, under serials that
 * are there several times, beside floods of FLUSH, RELEASE and UNCLAIM for what waits.
 */
static void waits_in_circles(uint64_t rng)
{
	for (uint32_t round = 0; round < 20; round++) {
		struct kvp_cqe slot[KVP_MAX_GRANTS], cqe;
		struct raw s;
		uint32_t n;

		raw_attach(&s, daemon_.socket);
		n = take_slots(&s, slot);
		for (uint32_t i = 0; n && i < 4000; i++) {
			static const uint32_t ops[] = { KVP_OP_COMMIT, KVP_OP_COMMIT, KVP_OP_COMMIT,
				KVP_OP_FLUSH, KVP_OP_RELEASE, KVP_OP_UNCLAIM };
			const struct kvp_cqe *g = &slot[e2e_random(&rng) % n];
			struct kvp_sqe sqe = {
				.op = ops[e2e_random(&rng) % 6],
				.serial = (uint32_t)(e2e_random(&rng) % 5 * (1 + KVP_SERIALS / 2)),
				.grant = g->grant,
				.grant_generation = g->grant_generation,
				.space = (uint16_t)s.space,
				.tokens = (uint16_t)(e2e_random(&rng) % (E2E_BT + 1)),
				.flags = (uint32_t)e2e_random(&rng) % 4,
				.parent_kind =
					e2e_random(&rng) % 3 ? KVP_PARENT_SERIAL : KVP_PARENT_ROOT,
				.parent_id =
					(uint32_t)(e2e_random(&rng) % 5 * (1 + KVP_SERIALS / 2)),
				.next_lo = e2e_random(&rng) % 3,
				.until = e2e_random(&rng) % 3
						 ? kvp_until((uint32_t)(e2e_random(&rng) % 3),
							   e2e_random(&rng) % 8)
						 : e2e_random(&rng) % 2 * e2e_random(&rng),
			};

			if (sqe.op == KVP_OP_RELEASE && i % 8)
				sqe.op = KVP_OP_FLUSH;
			s.page->staging[g->grant][0] = (kvp_token)(e2e_random(&rng) % 4);
			kvp_store_relaxed(
				&s.page->done[e2e_random(&rng) % 3].value, e2e_random(&rng) % 8);
			if (kvp_sq_push(s.page, &s.sq_tail, &sqe) < 0 || i % 16 == 0) {
				raw_bell(&s);
				e2e_sleep_us(100);
			}
			while (round % 4 && kvp_cq_pop(s.page, &s.cq_head, &cqe) == 0)
				;
		}
		raw_detach(&s);
	}
}

static void hostile_rings(void **state)
{
	uint64_t seed = e2e_seed();
	(void)state;

	beside_honest(random_entries, seed, 100);
	beside_honest(never_drains, seed, 200);
	beside_honest(nonsense_indices, seed, 300);
	beside_honest(rewrites_leases, seed, 400);
	beside_honest(endless_grants, seed, 500);
	beside_honest(waits_in_circles, seed, 550);
}

static long daemon_rss_kib(void)
{
	char path[64], line[256];
	long kib = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)daemon_.pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "RssAnon: %ld", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

static int daemon_fds(void)
{
	char path[64];
	int n = 0;

	for (int fd = 0; fd < 20000; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)daemon_.pid, fd);
		n += access(path, F_OK) == 0 || errno == ELOOP;
	}
	return n;
}

/* 10,000 connections that say nothing, in waves as large as this process may have open. */
static void ten_thousand_connects(void **state)
{
	long before = daemon_rss_kib();
	int fds_before = daemon_fds(), open_now = 0, done = 0, refused = 0, held[800];
	(void)state;

	while (done < 10000) {
		int fd = raw_dial(daemon_.socket);

		done++;
		if (fd < 0) {
			refused++;
			continue;
		}
		held[open_now++] = fd;
		if (open_now == 800) {
			honest_work(600 + (uint32_t)done % 64);
			while (open_now)
				close(held[--open_now]);
		}
	}
	while (open_now)
		close(held[--open_now]);
	printf("%d connections, %d refused; heap %ld -> %ld KiB\n", done, refused, before,
		daemon_rss_kib());
	honest_work(700);
	for (int i = 0; i < 3000 && daemon_fds() > fds_before; i++)
		e2e_sleep_us(20000);
	assert_true(daemon_fds() <= fds_before + 2);
	assert_true(daemon_rss_kib() < before + 32 * 1024);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

static int setup(void **state)
{
	struct kvt_daemon_opts opts = { .share = UINT64_C(48) << 20,
		.max_blocks = 600,
		.max_sessions = 64,
		.arena = UINT64_C(1) << 20,
		.more = "extent: 1MiB\n" };
	struct rlimit limit;
	(void)state;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	e2e_start(&daemon_, &opts);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kvt_daemon_stop(&daemon_);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hostile_rings),
		cmocka_unit_test(ten_thousand_connects),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
