/* SPDX-License-Identifier: Apache-2.0 */
/* Copies on devices, asked for and read, against a small daemon in a thread of this process. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "libclient/match.h"
#include "tests/libclient/fake.h"

#define T           16u
#define BLOCKS      8u
#define TOKENS      (BLOCKS * T + 5)
#define TOKEN_BYTES (2u * 2 * 16)
#define BLOCK_BYTES (T * TOKEN_BYTES)
#define WAIT_MS     5000u

static const struct kvp_layer one_layer = { .kv_heads = 1, .k_dim = 16, .v_dim = 16 };

static const struct kvp_space_desc model = {
	.size = sizeof(model),
	.model = "device",
	.dtype = KVP_DTYPE_F16,
	.layout = KVP_LAYOUT_LCND,
	.block_tokens = T,
	.n_layers = 1,
	.layers = &one_layer,
};

struct fixture {
	struct fake *fake;
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t tokens[TOKENS];
	uint8_t kv[TOKENS * TOKEN_BYTES];
};

static int prepare(void **state, int device, int hold_extents)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct kvp_open_opts o = { .size = sizeof(o), .default_timeout_ms = WAIT_MS };
	struct kvp_put_opts po = {
		.size = sizeof(po), .flags = KVP_PUT_PARTIAL, .timeout_ms = WAIT_MS
	};
	struct kvp_view_plane plane;
	struct kvp_view v = { .size = sizeof(v), .planes = &plane };
	uint64_t bytes;

	f->fake = fake_start(NULL);
	if (device)
		fake_device(f->fake, BLOCK_BYTES);
	SET(f->fake, hold_extents, hold_extents);
	o.socket = f->fake->path;
	assert_int_equal(kvp_open(&o, &f->client), 0);
	assert_int_equal(kvp_space_open(f->client, &model, KVP_DEFAULT_TIMEOUT, &f->space), 0);
	for (uint32_t i = 0; i < TOKENS; i++)
		f->tokens[i] = 7 + i * 5;
	for (size_t i = 0; i < sizeof(f->kv); i++)
		f->kv[i] = (uint8_t)(i * 37 % 251);
	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_NCLD, f->kv, TOKENS, &plane, &bytes), 0);
	assert_int_equal(kvp_put(f->space, f->tokens, TOKENS, 0, &v, &po, NULL), TOKENS);
	assert_int_equal(kvp_flush(f->client, WAIT_MS), 0);
	*state = f;
	return 0;
}

static int setup(void **state)
{
	return prepare(state, 1, 0);
}

static int setup_unmapped(void **state)
{
	return prepare(state, 1, 1);
}

static int setup_without(void **state)
{
	return prepare(state, 0, 0);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	kvp_space_close(f->space);
	kvp_close(f->client);
	fake_stop(f->fake);
	free(f);
	return 0;
}

static struct kvp_prefix *match(struct fixture *f, uint32_t n)
{
	struct kvp_prefix *m;

	assert_int_equal(kvp_match(f->space, f->tokens, n, NULL, &m), 0);
	return m;
}

/* Blocks [from, to) on the device are those in DRAM, byte for byte, and lie elsewhere. */
static void same_there(struct kvp_prefix *m, uint32_t from, uint32_t to)
{
	const void *there[BLOCKS + 1], *here[BLOCKS + 1];

	assert_int_equal(kvp_device_payloads(m, 0, from, to - from, 0, there), to - from);
	assert_int_equal(kvp_payloads(m, from, to - from, here), to - from);
	for (uint32_t i = 0; i < to - from; i++) {
		struct kvp_payload_info p = { .size = sizeof(p) };

		assert_ptr_not_equal(there[i], here[i]);
		assert_memory_equal(there[i], here[i], BLOCK_BYTES);
		assert_int_equal(kvp_device_payload(m, from + i, 0, &p), 0);
		assert_ptr_equal(p.addr, there[i]);
		assert_int_equal(p.tier, KVP_TIER_VRAM);
		assert_int_equal(p.codec, 0);
		assert_int_equal(p.bytes, BLOCK_BYTES);
	}
}

static void warm_and_read(void **state)
{
	struct fixture *f = *state;
	struct kvp_warm_opts o = { .size = sizeof(o), .first = 2, .n = 3 };
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix *m = match(f, TOKENS);
	struct kvp_ticket ticket, all;
	const void *addrs[BLOCKS + 1];
	int why = -1;

	assert_int_equal(kvp_device_payload(m, 0, 0, &p), -ENOENT);
	assert_int_equal(kvp_device_payloads(m, 0, 0, BLOCKS, 0, addrs), 0);
	assert_int_equal(kvp_warm(m, &o, &ticket), 0);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, &why), 3);
	assert_int_equal(why, 0);
	same_there(m, 2, 5);
	assert_int_equal(kvp_device_payload(m, 1, 0, &p), -ENOENT);
	assert_int_equal(kvp_device_payload(m, 5, 0, &p), -ENOENT);
	assert_int_equal(kvp_device_payloads(m, 0, 3, BLOCKS, 0, addrs), 2);
	assert_int_equal(kvp_device_payloads(m, 1, 3, BLOCKS, 0, addrs), 0);
	/* All of it, the partial block included; what was there counts. A ticket can be asked again. */
	assert_int_equal(kvp_warm(m, NULL, &all), 0);
	assert_int_equal(kvp_ticket_wait(f->client, all, WAIT_MS, NULL), BLOCKS + 1);
	same_there(m, 0, BLOCKS + 1);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, 0, &why), 3);
	assert_int_equal(kvp_release(m), 0);
	assert_int_equal(fake_leases(f->fake), 0);
}

/* Some of them, with the reason. */
static void some(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f, BLOCKS * T);
	struct kvp_ticket ticket;
	int why = 0;

	SET(f->fake, warm_status, -ENOSPC);
	SET(f->fake, warm_at_most, 5);
	assert_int_equal(kvp_warm(m, NULL, &ticket), 0);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, &why), 5);
	assert_int_equal(why, -ENOSPC);
	same_there(m, 0, 5);
	kvp_release(m);
}

static void refused(void **state)
{
	struct fixture *f = *state;
	struct kvp_device_props d = { .size = sizeof(d) };
	struct kvp_prefix *m = match(f, BLOCKS * T);
	struct kvp_ticket ticket, none = { { 0 } };
	int why = 0;

	assert_int_equal(kvp_device_info(f->client, 0, &d), -ENOENT);
	assert_int_equal(kvp_warm(m, NULL, &ticket), 0);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, &why), 0);
	assert_int_equal(why, -ENODEV);
	assert_int_equal(kvp_ticket_wait(f->client, none, WAIT_MS, &why), -EINVAL);
	ticket.opaque[1]++;
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, &why), -EINVAL);
	kvp_release(m);
}

static void wrong_use(void **state)
{
	struct fixture *f = *state;
	struct kvp_device_props d = { .size = sizeof(d) };
	struct kvp_warm_opts o = { .size = sizeof(o) };
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix *m = match(f, BLOCKS * T), *empty;
	uint32_t other[T] = { 1 };
	struct kvp_ticket ticket;
	int ws;
	pid_t pid;

	assert_int_equal(kvp_device_info(f->client, 0, &d), 0);
	assert_int_equal(d.state, KVP_DEVICE_IS_UP);
	assert_int_equal(d.uuid[15], 7);
	assert_int_equal(d.bytes, f->fake->device_bytes);
	assert_int_equal(kvp_device_info(f->client, 1, &d), -ENOENT);
	assert_int_equal(kvp_device_info(f->client, UINT32_MAX, &d), -ENOENT);
	assert_int_equal(kvp_warm(NULL, &o, &ticket), -EINVAL);
	assert_int_equal(kvp_warm(m, &o, NULL), -EINVAL);
	o.flags = 4;
	assert_int_equal(kvp_warm(m, &o, &ticket), -EINVAL);
	o = (struct kvp_warm_opts){ .size = sizeof(o), .device = KVP_CLIENT_DEVICES };
	assert_int_equal(kvp_warm(m, &o, &ticket), -EINVAL);
	o = (struct kvp_warm_opts){ .size = sizeof(o), .first = BLOCKS };
	assert_int_equal(kvp_warm(m, &o, &ticket), -ENOENT);
	o = (struct kvp_warm_opts){ .size = 2 };
	assert_int_equal(kvp_warm(m, &o, &ticket), -EINVAL);
	assert_int_equal(kvp_match(f->space, other, T, NULL, &empty), 0);
	assert_int_equal(kvp_warm(empty, NULL, &ticket), -ENOENT);
	assert_int_equal(kvp_device_payload(empty, 0, 0, &p), -ENOENT);
	kvp_release(empty);
	assert_int_equal(kvp_device_payload(m, 0, 0, NULL), -EINVAL);
	assert_int_equal(kvp_device_payloads(m, 0, 0, 1, 0, NULL), -EINVAL);
	assert_int_equal(kvp_device_payloads(m, 0, 0, 1, KVP_DEVICE_PENDING, NULL), -EINVAL);
	assert_int_equal(kvp_device_payloads(m, 0, 0, 1, 2, (const void **)&other), -EINVAL);
	assert_int_equal(kvp_ticket_placed(NULL, ticket, 0), -EINVAL);
	assert_int_equal(kvp_ticket_placed(f->client, (struct kvp_ticket){ { 0 } }, 0), -EINVAL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(kvp_warm(m, NULL, &ticket) != -ECHILD ||
			kvp_device_payload(m, 0, 0, &p) != -ECHILD ||
			kvp_ticket_wait(f->client, ticket, 0, NULL) != -ECHILD);
	assert_int_equal(waitpid(pid, &ws, 0), pid);
	assert_int_equal(ws, 0);
	kvp_release(m);
	assert_int_equal(kvp_warm(m, NULL, &ticket), -EINVAL);
}

/* Under way: a call that looks, one that waits, and more than there may be. */
static void under_way(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f, BLOCKS * T);
	struct kvp_counters s = { .size = sizeof(s) };
	struct kvp_ticket ticket[N_WARMS], more;
	struct pollfd ready;
	int why = 5, fd;

	SET(f->fake, warm_held, true);
	for (uint32_t i = 0; i < N_WARMS; i++)
		assert_int_equal(kvp_warm(m, NULL, &ticket[i]), 0);
	assert_int_equal(kvp_warm(m, NULL, &more), -EAGAIN);
	assert_int_equal(kvp_ticket_wait(f->client, ticket[3], 0, &why), -ETIMEDOUT);
	assert_int_equal(kvp_ticket_wait(f->client, ticket[3], 150, &why), -ETIMEDOUT);
	assert_int_equal(why, 5);
	/* What is under way has been answered: the daemon is not taken for stuck. */
	assert_int_equal(kvp_flush(f->client, WAIT_MS), 0);
	assert_int_equal(kvp_stats(f->client, &s), 0);
	assert_int_equal(s.stuck, 0);
	assert_int_equal(s.timeouts, 0);
	fd = kvp_event_fd(f->client, KVP_EVENT_WARMS);
	assert_true(fd >= 0);
	ready = (struct pollfd){ .fd = fd, .events = POLLIN };
	assert_int_equal(poll(&ready, 1, 50), 0);
	fake_warm_go(f->fake);
	assert_int_equal(poll(&ready, 1, (int)WAIT_MS), 1);
	for (uint32_t i = 0; i < N_WARMS; i++)
		assert_int_equal(kvp_ticket_wait(f->client, ticket[i], WAIT_MS, NULL), BLOCKS);
	/* The places are free again, and the oldest ticket is forgotten. */
	assert_int_equal(kvp_warm(m, NULL, &more), 0);
	assert_int_equal(kvp_ticket_wait(f->client, more, WAIT_MS, NULL), BLOCKS);
	assert_int_equal(kvp_ticket_wait(f->client, ticket[0], WAIT_MS, NULL), -EINVAL);
	kvp_release(m);
}

/* In an extent that is not mapped yet: again in a moment. */
static void unmapped(void **state)
{
	struct fixture *f = *state;
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix *m = match(f, T);
	struct kvp_ticket ticket;
	int r;

	assert_int_equal(kvp_warm(m, NULL, &ticket), 0);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, NULL), 1);
	r = kvp_device_payload(m, 0, 0, &p);
	assert_int_equal(r, -EAGAIN);
	for (uint32_t i = 0; i < 12000 && r == -EAGAIN; i++) {
		usleep(5000);
		r = kvp_device_payload(m, 0, 0, &p);
	}
	assert_int_equal(r, 0);
	same_there(m, 0, 1);
	kvp_release(m);
}

static void no_leases_soon(struct fixture *f)
{
	for (uint32_t i = 0; i < 12000 && fake_leases(f->fake); i++)
		usleep(5000);
	assert_int_equal(fake_leases(f->fake), 0);
}

/* The library holds what is prefetched, and lets go of it without a call of anybody. */
static void prefetch(void **state)
{
	struct fixture *f = *state;
	struct kvp_ids ids = { .ids = f->tokens, .n = TOKENS };
	struct kvp_warm_opts o = { .size = sizeof(o), .first = 1, .n = 2 };
	struct kvp_counters before = { .size = sizeof(before) }, after = { .size = sizeof(after) };
	struct kvp_prefix *m;
	uint32_t other[T] = { 1 };

	assert_int_equal(kvp_stats(f->client, &before), 0);
	SET(f->fake, warm_held, true);
	assert_int_equal(kvp_prefetch(f->space, &ids, NULL), BLOCKS + 1);
	assert_int_equal(fake_leases(f->fake), 1);
	fake_warm_go(f->fake);
	no_leases_soon(f);
	assert_int_equal(f->fake->warm_flags, KVP_SQE_PREFETCH);
	m = match(f, TOKENS);
	same_there(m, 0, BLOCKS + 1);
	kvp_release(m);
	assert_int_equal(kvp_prefetch(f->space, &ids, &o), 2);
	o.first = BLOCKS + 1;
	assert_int_equal(kvp_prefetch(f->space, &ids, &o), 0);
	ids = (struct kvp_ids){ .ids = other, .n = T };
	assert_int_equal(kvp_prefetch(f->space, &ids, NULL), 0);
	assert_int_equal(kvp_prefetch(f->space, NULL, NULL), -EINVAL);
	o.flags = KVP_WARM_EARLY;
	assert_int_equal(kvp_prefetch(f->space, &ids, &o), -EINVAL);
	no_leases_soon(f);
	assert_int_equal(kvp_stats(f->client, &after), 0);
	assert_int_equal(after.lookups, before.lookups + 1); /* match() */
}

/* ---- places that are known before the blocks are there --------------------------------------- */

#define ALL (BLOCKS + 1)

static uint32_t asked_flags(struct fixture *f)
{
	uint32_t flags;

	pthread_mutex_lock(&f->fake->lock);
	flags = f->fake->warm_flags;
	pthread_mutex_unlock(&f->fake->lock);
	return flags;
}

static struct kvp_ticket early_of(struct kvp_prefix *m, uint32_t first, uint32_t n)
{
	struct kvp_warm_opts o = {
		.size = sizeof(o), .flags = KVP_WARM_EARLY, .first = first, .n = n
	};
	struct kvp_ticket ticket;

	assert_int_equal(kvp_warm(m, &o, &ticket), 0);
	return ticket;
}

/* Their memory may be being mapped. */
static uint32_t pending_soon(struct kvp_prefix *m, uint32_t first, uint32_t n, const void **addrs)
{
	int got = 0;

	for (uint32_t i = 0; i < 12000 && got < (int)n; i++) {
		got = kvp_device_payloads(m, 0, first, n, KVP_DEVICE_PENDING, addrs);
		assert_true(got >= 0);
		if (got < (int)n)
			usleep(5000);
	}
	return (uint32_t)got;
}

static const uint32_t other_tokens[T] = { 1 };

static void put_other(struct fixture *f)
{
	struct kvp_view_plane plane;
	struct kvp_view v = { .size = sizeof(v), .planes = &plane };
	struct kvp_put_opts po = { .size = sizeof(po), .timeout_ms = WAIT_MS };
	uint64_t bytes;

	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_NCLD, f->kv, T, &plane, &bytes), 0);
	assert_int_equal(kvp_put(f->space, other_tokens, T, 0, &v, &po, NULL), T);
	assert_int_equal(kvp_flush(f->client, WAIT_MS), 0);
}

/* An address that is given early is that at which the block lies when it has come. */
static void early(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f, TOKENS), *shorter;
	const void *addrs[ALL], *then[ALL];
	struct kvp_prefix *other;
	struct kvp_ticket ticket;
	int why = 1;

	put_other(f);
	SET(f->fake, warm_held, true);
	ticket = early_of(m, 0, 0);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, WAIT_MS), ALL);
	assert_int_equal(asked_flags(f), KVP_SQE_EARLY);
	assert_int_equal(pending_soon(m, 0, ALL, addrs), ALL);
	/* Not without the flag, not on another device, not beyond the prefix; but of any prefix that has the block. */
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, 0, then), 0);
	assert_int_equal(kvp_device_payloads(m, 1, 0, ALL, KVP_DEVICE_PENDING, then), 0);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, 0, NULL), -ETIMEDOUT);
	shorter = match(f, 3 * T);
	assert_int_equal(kvp_device_payloads(shorter, 0, 1, ALL, KVP_DEVICE_PENDING, then), 2);
	assert_ptr_equal(then[0], addrs[1]);
	kvp_release(shorter);
	/* Nor of another chain, whose block is the first one, too. */
	assert_int_equal(kvp_match(f->space, other_tokens, T, NULL, &other), 0);
	assert_int_equal(kvp_payloads(other, 0, 1, then), 1);
	assert_int_equal(kvp_device_payloads(other, 0, 0, 1, KVP_DEVICE_PENDING, then), 0);
	kvp_release(other);
	fake_warm_go(f->fake);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, &why), ALL);
	assert_int_equal(why, 0);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, 0), ALL);
	same_there(m, 0, ALL);
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, 0, then), ALL);
	assert_memory_equal(then, addrs, sizeof(addrs));
	kvp_release(m);
}

/* Of a run that begins within the prefix, and of which some lie there already; by several tickets. */
static void early_parts(void **state)
{
	struct fixture *f = *state;
	struct kvp_warm_opts o = { .size = sizeof(o), .first = 3, .n = 2 };
	struct kvp_prefix *m = match(f, TOKENS);
	struct kvp_ticket there, upper, lower;
	const void *addrs[ALL], *then[ALL];

	assert_int_equal(kvp_warm(m, &o, &there), 0);
	assert_int_equal(kvp_ticket_wait(f->client, there, WAIT_MS, NULL), 2);
	SET(f->fake, warm_held, true);
	lower = early_of(m, 2, 4);
	assert_int_equal(kvp_ticket_placed(f->client, lower, WAIT_MS), 4);
	assert_int_equal(pending_soon(m, 2, 4, addrs + 2), 4);
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, KVP_DEVICE_PENDING, addrs), 0);
	upper = early_of(m, 0, 2);
	assert_int_equal(kvp_ticket_placed(f->client, upper, WAIT_MS), 2);
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, KVP_DEVICE_PENDING, addrs), 6);
	fake_warm_go(f->fake);
	assert_int_equal(kvp_ticket_wait(f->client, upper, WAIT_MS, NULL), 2);
	assert_int_equal(kvp_ticket_wait(f->client, lower, WAIT_MS, NULL), 4);
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, KVP_DEVICE_PENDING, then), 6);
	assert_memory_equal(then, addrs, 6 * sizeof(addrs[0]));
	same_there(m, 0, 6);
	kvp_release(m);
}

/* A ticket that fails takes the places with it that it did not fill. */
static void early_fails(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f, TOKENS);
	const void *addrs[ALL];
	struct kvp_ticket ticket;
	int why = 0;

	SET(f->fake, warm_held, true);
	SET(f->fake, warm_status, -EIO);
	SET(f->fake, warm_at_most, 5);
	ticket = early_of(m, 0, 0);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, WAIT_MS), ALL);
	fake_warm_go(f->fake);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, &why), 5);
	assert_int_equal(why, -EIO);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, 0), 5);
	assert_int_equal(pending_soon(m, 0, 5, addrs), 5);
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, KVP_DEVICE_PENDING, addrs), 5);
	kvp_release(m);
}

/* A daemon that knows no places copies, and they are known when it has. */
static void early_unknown(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f, TOKENS);
	struct kvp_ticket ticket;

	((struct kvp_catalog *)f->fake->v.cat)->h.compat = 0;
	SET(f->fake, warm_held, true);
	ticket = early_of(m, 0, 0);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, 20), -ETIMEDOUT);
	fake_warm_go(f->fake);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, WAIT_MS), ALL);
	assert_int_equal(asked_flags(f), 0);
	same_there(m, 0, ALL);
	kvp_release(m);
}

/* Not known yet; and what says so when they are. */
static void early_awaited(void **state)
{
	struct fixture *f = *state;
	int fd = kvp_event_fd(f->client, KVP_EVENT_WARMS);
	struct kvp_prefix *m = match(f, TOKENS);
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	struct kvp_ticket ticket;

	assert_true(fd >= 0);
	SET(f->fake, warm_held, true);
	SET(f->fake, mute, true);
	ticket = early_of(m, 0, 0);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, 0), -ETIMEDOUT);
	SET(f->fake, mute, false);
	assert_int_equal(poll(&ready, 1, (int)WAIT_MS), 1);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, 0), ALL);
	kvp_release(m);
	/* It is under way when the client is closed. */
}

static uint32_t retire_acks(struct fixture *f)
{
	uint32_t acks;

	pthread_mutex_lock(&f->fake->lock);
	acks = f->fake->s[0].retire_acks;
	pthread_mutex_unlock(&f->fake->lock);
	return acks;
}

/*
 * Of a ticket that fails nothing keeps the memory at the daemon; but work that was enqueued with its places may still
 * read there, until the moment after which the prefix was released.
 */
static void early_stays_mapped(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f, TOKENS);
	struct kvp_timeline *line;
	struct kvp_ticket ticket;
	const void *addrs[ALL];
	uint32_t acks = 0;

	assert_int_equal(kvp_timeline_new(f->client, &line), 0);
	SET(f->fake, warm_held, true);
	SET(f->fake, warm_status, -EIO);
	SET(f->fake, warm_at_most, 0);
	ticket = early_of(m, 0, 0);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, WAIT_MS), ALL);
	assert_int_equal(pending_soon(m, 0, ALL, addrs), ALL);
	fake_warm_go(f->fake);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, NULL), 0);
	fake_retire_device(f->fake);
	usleep(100000);
	assert_int_equal(retire_acks(f), 0);
	assert_int_equal(((const volatile uint8_t *)addrs[ALL - 1])[0], 0);
	assert_int_equal(kvp_release_after(m, line, 1), 0);
	usleep(100000);
	assert_int_equal(retire_acks(f), 0);
	assert_int_equal(((const volatile uint8_t *)addrs[ALL - 1])[0], 0);
	assert_int_equal(kvp_timeline_advance(line, 1), 0);
	for (uint32_t i = 0; i < 12000 && !acks; i++) {
		usleep(5000);
		acks = retire_acks(f);
	}
	assert_int_equal(acks, 1);
}

/* What it was given by tickets that ended well is leased: it keeps no other memory mapped that the daemon wants back. */
static void early_lets_go(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f, TOKENS), *other = match(f, TOKENS);
	struct kvp_ticket upper, lower;
	const void *addrs[ALL];
	uint32_t acks = 0;

	SET(f->fake, warm_held, true);
	upper = early_of(m, 0, 3);
	lower = early_of(m, 3, 0);
	assert_int_equal(kvp_ticket_placed(f->client, upper, WAIT_MS), 3);
	assert_int_equal(kvp_ticket_placed(f->client, lower, WAIT_MS), ALL - 3);
	assert_int_equal(pending_soon(m, 0, ALL, addrs), ALL);
	assert_int_equal(pending_soon(other, 0, ALL, addrs), ALL);
	fake_retire_device(f->fake); /* as if it were another extent */
	kvp_release(other);
	usleep(100000);
	assert_int_equal(retire_acks(f), 0);
	fake_warm_go(f->fake);
	assert_int_equal(kvp_ticket_wait(f->client, upper, WAIT_MS, NULL), 3);
	assert_int_equal(kvp_ticket_wait(f->client, lower, WAIT_MS, NULL), ALL - 3);
	for (uint32_t i = 0; i < 12000 && !acks; i++) {
		usleep(5000);
		acks = retire_acks(f);
	}
	assert_int_equal(acks, 1);
	kvp_release(m);
}

/* Nor does the end of one ticket let go of what another gives, which is read when places are asked for. */
static void early_keeps(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f, TOKENS);
	struct kvp_ticket upper, lower;
	struct fake_session *s;
	const void *addrs[ALL];

	SET(f->fake, warm_held, true);
	upper = early_of(m, 0, 3);
	lower = early_of(m, 3, 0);
	assert_int_equal(kvp_ticket_placed(f->client, upper, WAIT_MS), 3);
	assert_int_equal(kvp_ticket_placed(f->client, lower, WAIT_MS), ALL - 3);
	assert_int_equal(pending_soon(m, 0, 3, addrs), 3);
	pthread_mutex_lock(&f->fake->lock);
	s = f->fake->warm[1].s;
	pthread_mutex_unlock(&f->fake->lock);
	SET(f->fake, warm[1].s, NULL);
	fake_warm_go(f->fake); /* the upper one */
	SET(f->fake, warm[1].s, s);
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, KVP_DEVICE_PENDING, addrs), ALL);
	fake_retire_device(f->fake);
	usleep(100000);
	assert_int_equal(retire_acks(f), 0);
	assert_int_equal(((const volatile uint8_t *)addrs[ALL - 1])[0], 0);
	kvp_release(m);
	fake_warm_go(f->fake);
}

/*
 * Of two tickets for the same blocks one was told of places, and has failed without its client knowing it yet; the blocks
 * come to lie where the other one is told after that.
 */
static void told_last(struct fixture *f, bool earlier)
{
	struct kvp_prefix *m = match(f, TOKENS);
	const void *was[ALL], *addrs[ALL], *then[ALL];
	struct kvp_ticket ticket[2], first, last;

	SET(f->fake, warm_held, true);
	for (uint32_t i = 0; i < 2; i++) {
		bool late = i == !earlier;

		SET(f->fake, warm_untold, late);
		ticket[i] = early_of(m, 0, 0);
		assert_int_equal(kvp_ticket_placed(f->client, ticket[i], late ? 20 : WAIT_MS),
			late ? -ETIMEDOUT : (int)ALL);
	}
	first = ticket[earlier];
	last = ticket[!earlier];
	assert_int_equal(kvp_ticket_placed(f->client, first, WAIT_MS), ALL);
	assert_int_equal(pending_soon(m, 0, ALL, was), ALL);
	fake_warm_tell(f->fake, !earlier);
	assert_int_equal(kvp_ticket_placed(f->client, last, WAIT_MS), ALL);
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, KVP_DEVICE_PENDING, addrs), ALL);
	fake_warm_go(f->fake);
	assert_int_equal(kvp_ticket_wait(f->client, last, WAIT_MS, NULL), ALL);
	same_there(m, 0, ALL);
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, 0, then), ALL);
	assert_memory_equal(addrs, then, sizeof(then));
	assert_ptr_not_equal(was[0], then[0]);
	kvp_release(m);
}

static void early_told_last(void **state)
{
	told_last(*state, true);
}

/* The library has them in the other order. */
static void early_told_in_turn(void **state)
{
	told_last(*state, false);
}

/* Mappings of memory that a daemon made. */
static uint32_t mapped(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[400];
	uint32_t n = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "/memfd:") != NULL;
	fclose(f);
	return n;
}

/* A daemon that goes ends tickets, and what is held for them. */
static void daemon_goes(void **state)
{
	struct fixture *f = *state;
	struct kvp_ids ids = { .ids = f->tokens, .n = TOKENS };
	struct kvp_prefix *m = match(f, TOKENS);
	struct kvp_ticket ticket, placed;
	const void *addrs[ALL];
	int why = 0;

	SET(f->fake, warm_held, true);
	placed = early_of(m, 0, 0);
	assert_int_equal(kvp_warm(m, NULL, &ticket), 0);
	assert_int_equal(kvp_prefetch(f->space, &ids, NULL), BLOCKS + 1);
	assert_int_equal(kvp_ticket_placed(f->client, placed, WAIT_MS), ALL);
	assert_int_equal(pending_soon(m, 0, ALL, addrs), ALL);
	fake_stop(f->fake);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, &why), -ESHUTDOWN);
	assert_int_equal(kvp_ticket_placed(f->client, placed, WAIT_MS), -ESHUTDOWN);
	assert_int_equal(kvp_device_payloads(m, 0, 0, ALL, KVP_DEVICE_PENDING, addrs), 0);
	assert_int_equal(kvp_warm(m, NULL, &ticket), -ESHUTDOWN);
	assert_int_equal(kvp_release(m), 0);
	/* Nobody has anything of that daemon any more. */
	for (uint32_t tries = 0; mapped() && tries < 60000; tries++)
		usleep(1000);
	assert_int_equal(mapped(), 0);
	f->fake = fake_start(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(warm_and_read, setup, teardown),
		cmocka_unit_test_setup_teardown(some, setup, teardown),
		cmocka_unit_test_setup_teardown(refused, setup_without, teardown),
		cmocka_unit_test_setup_teardown(wrong_use, setup, teardown),
		cmocka_unit_test_setup_teardown(under_way, setup, teardown),
		cmocka_unit_test_setup_teardown(unmapped, setup_unmapped, teardown),
		cmocka_unit_test_setup_teardown(prefetch, setup, teardown),
		cmocka_unit_test_setup_teardown(early, setup, teardown),
		cmocka_unit_test_setup_teardown(early, setup_unmapped, teardown),
		cmocka_unit_test_setup_teardown(early_parts, setup, teardown),
		cmocka_unit_test_setup_teardown(early_fails, setup, teardown),
		cmocka_unit_test_setup_teardown(early_unknown, setup, teardown),
		cmocka_unit_test_setup_teardown(early_awaited, setup, teardown),
		cmocka_unit_test_setup_teardown(early_stays_mapped, setup, teardown),
		cmocka_unit_test_setup_teardown(early_lets_go, setup, teardown),
		cmocka_unit_test_setup_teardown(early_keeps, setup, teardown),
		cmocka_unit_test_setup_teardown(early_told_last, setup, teardown),
		cmocka_unit_test_setup_teardown(early_told_in_turn, setup, teardown),
		cmocka_unit_test_setup_teardown(daemon_goes, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
