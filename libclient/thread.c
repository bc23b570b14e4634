/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's own thread: joins a daemon, takes what it sends, notices its death, joins the next;
 * and comes by for what calls leave behind (slots ahead of need, attachments of former daemons).
 */
#include "libclient/thread.h"
#include "libclient/match.h"
#include "libclient/ring.h"

#include <poll.h>

#define BACKOFF_MIN_MS 10u
#define BACKOFF_MAX_MS 1000u
#define SWEEP_FAST_MS  20  /* an extent waits for its last reader */
#define SWEEP_SLOW_MS  250 /* old attachments, slots ahead of need */
#define STOCK_IDLE_NS  UINT64_C(1000000000)

/* Slots that nobody asked for in a while go back; what the ring had no room for goes on. */
static void sweep_stock(struct attachment *att)
{
	uint32_t left = 0;
	uint64_t now;

	pthread_mutex_lock(&att->client->ring_lock);
	now = now_ns(); /* with the lock: a call that had it meanwhile has not used them later */
	ring_drain(att);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		struct space_bind *b = &att->binds[i];

		stock_idle(att, b, now - STOCK_IDLE_NS);
		for (uint32_t k = 0; k < STOCKS; k++)
			left += b->stock[k].n_ahead + b->stock[k].asking;
	}
	att->stocked = left || att->n_returned || att->n_prefetches;
	pthread_mutex_unlock(&att->client->ring_lock);
}

/* Empties attachments that nothing points into. Returns how many are left besides the current. */
static uint32_t sweep_dead(struct kvp_client *c)
{
	uint32_t left = 0;

	pthread_mutex_lock(&c->ring_lock);
	for (uint32_t i = 0; i < N_ATTACHMENTS; i++) {
		struct attachment *att = c->attachments[i];

		if (!att || !att->in_use || !kvp_load_relaxed(&att->dead))
			continue;
		/* Leases last: a handle that is released may leave one until a later moment. */
		if (att->refs || prefix_any(c, att) || retiring_any(c, att) ||
			kvp_lease_any(att->page))
			left++;
		else
			attachment_empty(att);
	}
	pthread_mutex_unlock(&c->ring_lock);
	return left;
}

static void serve(struct kvp_client *c, struct attachment *att)
{
	int timeout = -1, crowded, r;

	/* Extents first: they may belong to a dead attachment, which waits for them. */
	retiring_sweep(c);
	if (sweep_dead(c) || kvp_load_relaxed(&att->stocked))
		timeout = SWEEP_SLOW_MS;
	if (c->retiring)
		timeout = SWEEP_FAST_MS;
	crowded = closes_say(att) + extents_ask(att);
	r = await(c, att->sock, crowded ? POLLIN | POLLOUT : POLLIN, timeout);
	if (r == -ESHUTDOWN)
		return;
	if (r == 0)
		r = packets_receive(att);
	if (r < 0 && r != -EAGAIN) {
		client_detach(att);
		return;
	}
	if (kvp_load_relaxed(&att->stocked))
		sweep_stock(att);
}

void *client_thread(void *client)
{
	struct kvp_client *c = client;
	uint32_t backoff = BACKOFF_MIN_MS;

	pthread_setname_np(pthread_self(), "kvpool");
	while (!kvp_load_seq(&c->closing)) {
		struct attachment *att = kvp_load_seq(&c->att);
		int r;

		if (att) {
			serve(c, att);
			continue;
		}
		retiring_sweep(c);
		sweep_dead(c);
		r = client_attach(c);
		if (r == 0) {
			backoff = BACKOFF_MIN_MS;
		} else {
			(void)await(c, -1, 0, (int)backoff);
			backoff = backoff * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : backoff * 2;
		}
	}
	return NULL;
}
