/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real daemon with a device: what a client that the library matched for asks to be warmed is there
 * byte for byte, what it leases stays there, and a worker that is killed again and again loses nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"
#include "tests/e2e/e2e.h"
#include "tests/e2e/raw.h"

#define BLOCKS 100u
#define TOKENS (BLOCKS * E2E_BT)

/* A prompt of its own, stored, and leased by a match of the library's. */
struct prompt {
	uint32_t tokens[TOKENS];
	struct kvp_prefix *match;
	kvp_block_id chain[BLOCKS];
};

struct world {
	struct kvt_daemon daemon;
	struct e2e e;
	struct raw raw;
	const uint8_t *extent[KVP_MAX_EXTENTS];
	uint32_t serial;
};

/* What the library opened, by its description in the catalog. */
static void open_its_space(struct world *w)
{
	struct raw *s = &w->raw;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		const struct kvp_shm_space *space = &s->view.spaces[i];

		if (kvp_load_acquire(&space->state) != KVP_SPACE_LIVE ||
			strcmp(space->canon.model, "e2e"))
			continue;
		assert_int_equal(kvp_msg_send(s->sock, KVP_MSG_SPACE_OPEN, 9, &space->canon,
					 sizeof(space->canon), NULL, 0),
			0);
		assert_int_equal(raw_await(s, KVP_MSG_SPACE), 0);
		assert_int_equal(((struct kvp_msg_space *)(void *)s->packet->body)->space, i);
		kvp_msg_done(s->packet);
		s->space = i;
		return;
	}
	fail_msg("the space is not in the catalog");
}

static void join(struct world *w, const char *socket)
{
	assert_int_equal(e2e_attach(&w->e, socket), 0);
	raw_attach(&w->raw, socket);
	open_its_space(w);
}

static void leave(struct world *w)
{
	raw_detach(&w->raw);
	e2e_detach(&w->e);
}

/* `tenants`: further lines of its configuration. */
static void start(struct kvt_daemon *d, const char *driver, const char *tenants)
{
	char more[800];
	struct kvt_daemon_opts opts = {
		.share = 64 << 20, .memory = 256 << 20, .max_blocks = 4000, .more = more
	};

	snprintf(more, sizeof(more),
		"devices:\n  - {name: one, bytes: 1MiB, segment: 64KiB, worker: %s, %s}\n%s",
		getenv("KVPOOL_DEVICE"), driver, tenants);
	e2e_start(d, &opts);
}

static struct world *begin(const char *driver)
{
	struct world *w = calloc(1, sizeof(*w));

	start(&w->daemon, driver, "");
	join(w, w->daemon.socket);
	return w;
}

static void end(struct world *w)
{
	raw_detach(&w->raw);
	assert_int_equal(e2e_clean(w->daemon.socket, 1), 0);
	e2e_detach(&w->e);
	kvt_daemon_stop(&w->daemon);
	free(w);
}

static void lease(struct world *w, struct prompt *p)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };

	/* Blocks that have just moved lie where the library's thread has yet to look. */
	for (uint32_t tries = 0; tries < 60000; tries++) {
		assert_int_equal(kvp_match(w->e.space, p->tokens, TOKENS, NULL, &p->match), 0);
		kvp_match_info(p->match, &info);
		if (info.n_blocks == BLOCKS)
			return;
		kvp_release(p->match);
		e2e_sleep_us(1000);
	}
	fail_msg("only %u blocks are found", info.n_blocks);
}

static void put(struct world *w, struct prompt *p, uint32_t number)
{
	struct kvp_hit hit[BLOCKS];
	struct kvp_found found;

	for (uint32_t i = 0; i < TOKENS; i++)
		p->tokens[i] = number * 100000 + i;
	assert_int_equal(e2e_store(&w->e, p->tokens, TOKENS, E2E_WAIT_MS, false), BLOCKS);
	lease(w, p);
	kvp_find(&w->raw.view, w->raw.space, p->tokens, TOKENS, KVP_FIND_NO_TAIL, KVP_TIERS_DRAM,
		hit, BLOCKS, &found);
	assert_int_equal(found.n_hits, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		p->chain[i] = hit[i].id;
}

/* The answer to a WARM of the whole prompt; *ret_there: how many blocks lie on the device. */
static int warm(struct world *w, const struct prompt *p, uint32_t *ret_there)
{
	struct raw *s = &w->raw;
	const struct kvp_block *tip = &s->view.blocks[p->chain[BLOCKS - 1]];
	struct kvp_sqe sqe = {
		.op = KVP_OP_WARM,
		.serial = ++w->serial,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = p->chain[BLOCKS - 1],
		.parent_birth = kvp_word_birth(kvp_load_acquire(&tip->word)),
	};
	struct kvp_cqe cqe;

	assert_int_equal(kvp_sq_push(s->page, &s->sq_tail, &sqe), 0);
	raw_bell(s);
	for (uint32_t i = 0; i < 600000; i++) {
		if (kvp_cq_pop(s->page, &s->cq_head, &cqe) == 0 && cqe.serial == sqe.serial &&
			cqe.flags != KVP_CQE_PARKED) {
			*ret_there = cqe.more;
			return cqe.status;
		}
		e2e_sleep_us(100);
	}
	return -ETIMEDOUT;
}

static const uint8_t *map(struct world *w, uint32_t id)
{
	const struct kvp_msg_id ask = { .id = id };
	struct raw *s = &w->raw;
	struct kvp_msg_extent e;
	void *addr;

	if (w->extent[id])
		return w->extent[id];
	assert_int_equal(
		kvp_msg_send(s->sock, KVP_MSG_EXTENT_GET, 77, &ask, sizeof(ask), NULL, 0), 0);
	for (;;) {
		assert_int_equal(raw_await(s, KVP_MSG_EXTENT), 0);
		memcpy(&e, s->packet->body, sizeof(e));
		if (e.extent == id)
			break;
		kvp_msg_done(s->packet);
	}
	assert_int_equal(e.tier, KVP_TIER_VRAM);
	assert_int_equal(e.device, 0);
	assert_int_equal(e.kind, KVP_EXTENT_VAULT);
	assert_int_equal(kvp_seg_check(s->packet->fds[0], e.bytes, KVP_SEALS_VAULT), 0);
	assert_int_equal(kvp_seg_map(s->packet->fds[0], e.bytes, 0, &addr), 0);
	kvp_msg_done(s->packet);
	w->extent[id] = addr;
	return addr;
}

/* How many of the prompt's blocks lie on the device, each of them byte for byte what was put. */
static uint32_t lie(struct world *w, const struct prompt *p)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		const struct kvp_payload_desc *d =
			&w->raw.view.blocks[p->chain[i]].payload[KVP_TIER_VRAM];
		uint64_t where = kvp_load_acquire(&d->where);

		if (!where)
			continue;
		assert_int_equal(kvp_where_bytes(where), E2E_BLOCK_BYTES);
		assert_true(e2e_derived(p->tokens, (i + 1) * E2E_BT,
			map(w, kvp_where_extent(where)) + kvp_load_acquire(&d->offset)));
		n++;
	}
	return n;
}

static void what_is_warmed_is_there(void **state)
{
	struct world *w = begin("driver: host");
	struct prompt *p = calloc(3, sizeof(*p));
	uint32_t there;

	(void)state;
	/* 256 slots there. */
	for (uint32_t i = 0; i < 3; i++)
		put(w, &p[i], i + 1);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(warm(w, &p[i], &there), 0);
		assert_int_equal(there, BLOCKS);
		assert_int_equal(lie(w, &p[i]), BLOCKS);
	}
	/* What is leased stays, ... */
	assert_int_equal(warm(w, &p[2], &there), -ENOSPC);
	assert_int_equal(there, 56);
	assert_int_equal(lie(w, &p[0]) + lie(w, &p[1]) + lie(w, &p[2]), 256);
	/* ... and what is not makes room. */
	kvp_release(p[1].match);
	assert_int_equal(warm(w, &p[2], &there), 0);
	assert_int_equal(there, BLOCKS);
	assert_int_equal(lie(w, &p[0]), BLOCKS);
	assert_int_equal(lie(w, &p[2]), BLOCKS);
	assert_int_equal(e2e_fetch_all(&w->e, p[1].tokens, TOKENS), TOKENS);
	kvp_release(p[0].match);
	kvp_release(p[2].match);
	free(p);
	end(w);
}

/* A share is a share: another tenant's warms take nothing of it, and its own go no further. */
static void tenants_have_their_shares(void **state)
{
	struct world *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
	struct prompt *p = calloc(4, sizeof(*p));
	struct kvt_daemon d;
	char path[200];
	uint32_t there;

	(void)state;
	start(&d, "driver: host",
		"tenants:\n"
		"  - {name: a, socket: a.sock, devices: [{name: one, share: 640KiB}]}\n"
		"  - {name: b, socket: b.sock, devices: [{name: one, share: 384KiB}]}\n");
	snprintf(path, sizeof(path), "%s/a.sock", d.dir);
	join(a, path);
	snprintf(path, sizeof(path), "%s/b.sock", d.dir);
	join(b, path);
	/* 160 slots, and 96. */
	put(a, &p[0], 1);
	put(a, &p[1], 2);
	put(b, &p[2], 1);
	assert_int_equal(warm(a, &p[0], &there), 0);
	assert_int_equal(warm(a, &p[1], &there), -ENOSPC);
	assert_int_equal(there, 60);
	assert_int_equal(warm(b, &p[2], &there), -ENOSPC);
	assert_int_equal(there, 96);
	assert_int_equal(lie(b, &p[2]), 96);
	kvp_release(p[0].match);
	assert_int_equal(warm(a, &p[1], &there), 0);
	assert_int_equal(lie(a, &p[1]), BLOCKS);
	assert_int_equal(lie(b, &p[2]), 96);
	kvp_release(p[1].match);
	kvp_release(p[2].match);
	leave(a);
	leave(b);
	assert_int_equal(e2e_clean(d.socket, 0), 0);
	kvt_daemon_stop(&d);
	free(p);
	free(a);
	free(b);
}

static void a_killed_worker_loses_nothing(void **state)
{
	struct world *w = begin("driver: host, copy_rate: 256KiB");
	struct prompt *p = calloc(2, sizeof(*p));
	uint32_t there, kills = 0;
	int r;

	(void)state;
	for (uint32_t i = 0; i < 2; i++)
		put(w, &p[i], i + 1);
	for (uint32_t i = 0; i < 4; i++) {
		pid_t killer = e2e_fork();

		if (!killer) {
			pid_t worker = 0;

			while (!(worker = e2e_worker(w->daemon.pid)))
				e2e_sleep_us(1000);
			e2e_sleep_us(20000 * (long)i);
			kill(worker, SIGKILL);
			_exit(0);
		}
		r = warm(w, &p[i % 2], &there);
		assert_int_equal(e2e_reap(killer), 0);
		kills++;
		assert_true(r == 0 || r == -EAGAIN || r == -ENODEV);
		assert_true(lie(w, &p[i % 2]) >= there);
		assert_int_equal(e2e_fetch_all(&w->e, p[0].tokens, TOKENS), TOKENS);
		assert_int_equal(e2e_fetch_all(&w->e, p[1].tokens, TOKENS), TOKENS);
	}
	for (uint32_t i = 0; i < 2; i++) {
		for (uint32_t tries = 0; (r = warm(w, &p[i], &there)) != 0 && tries < 3000; tries++)
			e2e_sleep_us(20000);
		assert_int_equal(r, 0);
		assert_int_equal(lie(w, &p[i]), BLOCKS);
		kvp_release(p[i].match);
	}
	print_message("%u workers were killed\n", kills);
	free(p);
	end(w);
}

static void a_failing_driver_is_an_answer(void **state)
{
	struct world *w = begin("driver: fault, faults: 'copy=fail:5@3,submit=die@6#0'");
	struct prompt *p = calloc(1, sizeof(*p));
	uint32_t there = 0, tries = 0;
	int r;

	(void)state;
	put(w, p, 1);
	while ((r = warm(w, p, &there)) != 0 && tries++ < 3000) {
		assert_true(r == -EIO || r == -EAGAIN || r == -ENODEV);
		assert_int_equal(e2e_fetch_all(&w->e, p->tokens, TOKENS), TOKENS);
		e2e_sleep_us(20000);
	}
	assert_int_equal(r, 0);
	assert_int_equal(lie(w, p), BLOCKS);
	kvp_release(p->match);
	free(p);
	end(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_warmed_is_there),
		cmocka_unit_test(tenants_have_their_shares),
		cmocka_unit_test(a_killed_worker_loses_nothing),
		cmocka_unit_test(a_failing_driver_is_an_answer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
