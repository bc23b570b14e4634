/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timelines: how far work has come that the caller enqueued somewhere, and what happens then. A lease
 * and a commit wait for a moment in shared memory, where the ledger looks (kvp_lease.h); a grant waits
 * here, and is given back by the call that brings the moment.
 *
 * A timeline is the client's, not an attachment's: every page that the client still has, those of
 * former daemons included, is told how far it is.
 */
#include "libclient/cuda.h"
#include "libclient/match.h"
#include "libclient/ring.h"

#include <assert.h>

static_assert(KVP_CLIENT_TIMELINES == KVP_TIMELINES, "kvpool.h tells the limit");

void timelines_init(struct kvp_client *c)
{
	for (uint32_t i = 0; i < KVP_TIMELINES; i++) {
		c->timelines[i].client = c;
		c->timelines[i].index = i;
	}
}

void timelines_carry_on(struct attachment *att)
{
	const struct kvp_timeline *t = att->client->timelines;

	for (uint32_t i = 0; i < KVP_TIMELINES; i++)
		kvp_store_relaxed(&att->page->done[i].value, kvp_load_relaxed(&t[i].reached));
}

int timeline_moment(
	struct kvp_timeline *t, struct kvp_client *client, uint64_t value, uint64_t *ret_until)
{
	uint64_t awaited;

	if (!t || !t->open || t->client != client || value > KVP_TIMELINE_MAX)
		return -EINVAL;
	value += t->base;
	awaited = kvp_load_relaxed(&t->awaited);
	while (awaited < value && !kvp_cas_seq(&t->awaited, &awaited, value))
		;
	*ret_until = kvp_until(t->index, value);
	return 0;
}

void timeline_hasten(struct kvp_client *c, uint64_t until)
{
	struct kvp_timeline *t = &c->timelines[kvp_until_timeline(until)];

	if (kvp_until_value(until) > t->hastened)
		t->hastened = kvp_until_value(until);
	cuda_hasten(t);
}

/* ---- advancing ------------------------------------------------------------------------------- */

static void grants_end(struct attachment *att)
{
	for (uint32_t i = 0; att->n_later && i < KVP_MAX_GRANTS; i++)
		if (att->grants[i].state == GRANT_LATER &&
			kvp_until_come(att->page, att->grants[i].until))
			grant_drop(&att->grants[i]);
	ring_drain(att);
}

/* The word may be ahead: a device writes it too. */
static void word_reach(KVP_ATOMIC(uint64_t) *word, uint64_t value)
{
	uint64_t was = kvp_load_seq(word);

	while (was < value && !kvp_cas_seq(word, &was, value))
		;
}

void timeline_reach(struct kvp_timeline *t, uint64_t value)
{
	struct kvp_client *c = t->client;

	kvp_store_release(&t->reached, value);
	for (uint32_t i = 0; i < N_ATTACHMENTS; i++) {
		struct attachment *att = c->attachments[i];
		uint64_t awaited;

		if (!att || !att->published)
			continue;
		/*
		 * Sequentially consistent, both: either the ledger sees the value or this sees what
		 * the ledger waits for (daemon/ledger/parked.h). Releases all that came before the
		 * moment as well.
		 */
		word_reach(&att->page->done[t->index].value, value);
		awaited = kvp_load_seq(&att->page->awaits[t->index]);
		KVP_FAULT("advanced");
		if (awaited && awaited <= value && !kvp_load_relaxed(&att->dead))
			ledger_wake(att);
		if (att->n_later)
			grants_end(att);
	}
}

/* ---- the calls ------------------------------------------------------------------------------- */

int kvp_timeline_new(struct kvp_client *client, struct kvp_timeline **ret_timeline)
{
	struct kvp_timeline *best = NULL;

	if (!client || !ret_timeline)
		return -EINVAL;
	if (!client_mine(client))
		return -ECHILD;
	pthread_mutex_lock(&client->ring_lock);
	for (uint32_t i = 0; i < KVP_TIMELINES; i++) {
		struct kvp_timeline *t = &client->timelines[i];

		if (!t->open && (!best || t->base < best->base))
			best = t;
	}
	/* A place whose values are used up is none; it takes hundreds of timelines to come there. */
	if (best && best->base > KVP_UNTIL_VALUE_MAX - KVP_TIMELINE_MAX)
		best = NULL;
	if (best) {
		best->open = 1;
		kvp_store_relaxed(&best->kind, LINE_HOST);
	}
	pthread_mutex_unlock(&client->ring_lock);
	if (!best)
		return -ENOSPC;
	*ret_timeline = best;
	return 0;
}

/* ring_lock. What was to happen at any of its values happens now, and its place is another's. */
static void timeline_end(struct kvp_timeline *t)
{
	uint64_t last = t->base + kvp_load_relaxed(&t->marked);

	t->base = kvp_load_relaxed(&t->awaited);
	if (t->base < kvp_load_relaxed(&t->reached))
		t->base = kvp_load_relaxed(&t->reached);
	if (t->base < last)
		t->base = last; /* a stream may still write it */
	timeline_reach(t, t->base);
	kvp_store_relaxed(&t->marked, 0);
	t->cuda = NULL;
	t->open = t->ends = 0;
}

void timeline_settle(struct kvp_timeline *t)
{
	if (t->ends && kvp_load_relaxed(&t->reached) >= t->base + kvp_load_relaxed(&t->marked))
		timeline_end(t);
}

struct kvp_timeline *kvp_timeline_free(struct kvp_timeline *t)
{
	if (!t || !client_mine(t->client))
		return NULL;
	pthread_mutex_lock(&t->client->ring_lock);
	/*
	 * What waits for a device that was lost waits for ever, and so does its place. That the caller's streams have
	 * come to their end does not mean that bytes have come into slots, which the library's thread copies there.
	 */
	if (t->open && kvp_load_relaxed(&t->kind) != LINE_BROKEN) {
		t->ends = 1;
		if (kvp_load_relaxed(&t->kind) == LINE_SLOTS)
			timeline_settle(t);
		else
			timeline_end(t);
	}
	pthread_mutex_unlock(&t->client->ring_lock);
	return NULL;
}

int kvp_timeline_advance(struct kvp_timeline *t, uint64_t value)
{
	int r = -EINVAL;

	if (!t)
		return -EINVAL;
	if (!client_mine(t->client))
		return -ECHILD;
	pthread_mutex_lock(&t->client->ring_lock);
	if (t->open && kvp_load_relaxed(&t->kind) == LINE_HOST && value <= KVP_TIMELINE_MAX &&
		t->base + value >= kvp_load_relaxed(&t->reached)) {
		timeline_reach(t, t->base + value);
		r = 0;
	}
	pthread_mutex_unlock(&t->client->ring_lock);
	return r;
}

int timeline_claim(struct kvp_timeline *t, struct kvp_cuda *cuda, uint32_t kind)
{
	int r = 0;

	if (!t || t->client != cuda->client)
		return -EINVAL;
	pthread_mutex_lock(&t->client->ring_lock);
	if (!t->open) {
		r = -EINVAL;
	} else if (kvp_load_relaxed(&t->kind) == LINE_HOST) {
		uint64_t reached = kvp_load_relaxed(&t->reached);

		kvp_store_relaxed(&t->marked, reached > t->base ? reached - t->base : 0);
		t->cuda = cuda;
		kvp_store_release(&t->kind, kind);
	} else if (kvp_load_relaxed(&t->kind) != kind || t->cuda != cuda) {
		r = -EINVAL;
	}
	pthread_mutex_unlock(&t->client->ring_lock);
	return r;
}

int kvp_timeline_reached(struct kvp_timeline *t, uint64_t value)
{
	if (!t)
		return -EINVAL;
	if (!client_mine(t->client))
		return -ECHILD;
	if (kvp_load_acquire(&t->kind) == LINE_STREAM) {
		pthread_mutex_lock(&t->client->ring_lock);
		cuda_look(t);
		pthread_mutex_unlock(&t->client->ring_lock);
	}
	/* Acquire: what came before the moment is seen by the caller. */
	return value <= KVP_TIMELINE_MAX && kvp_load_acquire(&t->reached) >= t->base + value;
}

int kvp_release_after(struct kvp_prefix *m, struct kvp_timeline *timeline, uint64_t value)
{
	uint64_t until;
	int r;

	if (!m)
		return 0;
	if (!client_mine(m->client))
		return -ECHILD;
	if (!prefix_live(m))
		return -EALREADY;
	r = timeline_moment(timeline, m->client, value, &until);
	if (r < 0)
		return r;
	/*
	 * The mappings need no handle: the ledger retires no extent in which a leased block is, or
	 * its old bytes in limbo, and sweep_dead() looks for leases of a daemon that has gone. But
	 * for places that were no block's when they were given: these are the library's to keep.
	 */
	if (m->flags & PREFIX_KEYS)
		keys_drop(m, until);
	else if (m->att)
		kvp_lease_drop_at(m->att->page, &m->lease, until);
	if (m->att && prefix_pinned(m)) {
		KVP_ATOMIC(uint64_t) *last = &m->att->early_until[kvp_until_timeline(until)];
		uint64_t was = kvp_load_relaxed(last);

		/* Before the handle goes: retiring_held() looks at the handle first. */
		while (was < until && !kvp_cas_seq(last, &was, until))
			;
	}
	KVP_FAULT("release-after");
	return kvp_release(m);
}

int kvp_grant_release_after(struct kvp_grant *g, struct kvp_timeline *timeline, uint64_t value)
{
	struct attachment *att;
	struct kvp_client *c;
	uint64_t until;
	int r;

	if (!g)
		return 0;
	att = g->att;
	if (!att)
		return -EALREADY;
	c = att->client;
	if (!client_mine(c))
		return -ECHILD;
	r = timeline_moment(timeline, c, value, &until);
	if (r < 0)
		return r;
	pthread_mutex_lock(&c->ring_lock);
	if (g->state != GRANT_HELD && g->state != GRANT_COMMITTED) {
		r = -EALREADY;
	} else {
		grant_drop_at(g, until);
		ring_drain(att);
	}
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}
