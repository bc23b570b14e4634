/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single flight: which session is computing which missing block. A claim ends by commit, when its
 * session says so, by time, or with its session; each wakes the clients that wait for its key.
 */
#include "daemon/ledger/claim.h"

#include <errno.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/wake.h"

#define TTL_LIMIT 10u /* times the configured time-to-live is the most a client gets */
#define REMEMBER  (UINT64_C(1) << 16) /* tokens, after which older ones count half */
#define SLOWEST \
	UINT64_C(1000000000) /* ns a token: what takes longer did not compute all the time */

static struct kvp_shm_claim *slot(const struct kvpd_tenant *t, struct kvp_key key, uint32_t probe)
{
	return &t->view.claims[((uint32_t)key.lo + probe) & (KVP_MAX_CLAIMS - 1)];
}

static struct kvp_shm_claim *find(const struct kvpd_tenant *t, struct kvp_key key)
{
	for (uint32_t i = 0; i < KVP_CLAIM_PROBES; i++) {
		struct kvp_shm_claim *c = slot(t, key, i);

		if (kvp_load_relaxed(&c->session) && kvp_load_relaxed(&c->key_lo) == key.lo &&
			kvp_load_relaxed(&c->key_hi) == key.hi)
			return c;
	}
	return NULL;
}

/* Returns the word of those who wait for it: they are to be woken. */
static uint32_t take_away(struct kvpd_tenant *t, struct kvp_shm_claim *c)
{
	struct kvpd_session *s = kvpd_session_find(t->ledger, kvp_load_relaxed(&c->session));
	uint64_t key_lo = kvp_load_relaxed(&c->key_lo);

	if (s)
		s->n_claims--;
	t->n_claims--;
	/* Release: pairs with the acquire in kvp_claim_find(). */
	kvp_store_release(&c->session, 0);
	return (uint32_t)key_lo & (KVP_FUTEX_WORDS - 1);
}

static void end(struct kvpd_tenant *t, struct kvp_shm_claim *c)
{
	kvpd_wake_claimants(t, take_away(t, c));
}

/* One of several, perhaps. */
static void end_soon(struct kvpd_tenant *t, struct kvp_shm_claim *c)
{
	kvpd_wake_claimants_soon(t, take_away(t, c));
}

static uint64_t deadline(uint64_t now, uint64_t ttl_ms)
{
	return now + ttl_ms * KVPD_MS;
}

int kvpd_claim_set(struct kvpd_session *s, struct kvp_key key, uint64_t ttl_ms, uint64_t now)
{
	struct kvpd_tenant *t = s->tenant;
	struct kvp_shm_claim *c = find(t, key);
	uint64_t most = (uint64_t)t->ledger->claim_ttl_ms * TTL_LIMIT;

	if (!ttl_ms)
		ttl_ms = t->ledger->claim_ttl_ms;
	if (ttl_ms > most)
		ttl_ms = most;
	if (c && kvp_load_relaxed(&c->session) != s->id) {
		if (kvp_load_relaxed(&c->deadline_ns) > now)
			return -EBUSY;
		end(t, c);
		c = NULL;
	}
	if (!c) {
		if (s->n_claims >= KVPD_SESSION_CLAIMS)
			return -ENOBUFS;
		for (uint32_t i = 0; i < KVP_CLAIM_PROBES && !c; i++) {
			struct kvp_shm_claim *e = slot(t, key, i);

			if (kvp_load_relaxed(&e->session) &&
				kvp_load_relaxed(&e->deadline_ns) <= now)
				end_soon(t, e);
			if (!kvp_load_relaxed(&e->session))
				c = e;
		}
		if (!c)
			return -ENOBUFS;
		kvp_store_release(&c->key_lo, key.lo);
		kvp_store_release(&c->key_hi, key.hi);
		s->n_claims++;
		t->n_claims++;
		t->claim_since_ns[c - t->view.claims] = now;
		kvp_bump(&t->view.cat->stats.claims, 1);
	}
	t->claim_ttl_ms[c - t->view.claims] = ttl_ms;
	kvp_store_release(&c->deadline_ns, deadline(now, ttl_ms));
	kvp_store_release(&c->session, s->id);
	return 0;
}

void kvpd_claim_end(struct kvpd_tenant *t, struct kvp_key key, uint32_t session)
{
	struct kvp_shm_claim *c = find(t, key);

	if (c && kvp_load_relaxed(&c->session) == session)
		end(t, c);
}

static void learn(struct kvpd_computing *p, uint64_t ns, uint32_t tokens)
{
	p->ns += ns < tokens * SLOWEST ? ns : tokens * SLOWEST;
	p->tokens += tokens;
	if (p->tokens > REMEMBER) {
		p->ns /= 2;
		p->tokens /= 2;
	}
}

static double seconds(const struct kvpd_computing *p, double otherwise)
{
	return p->tokens && p->ns ? (double)p->ns / 1e9 / (double)p->tokens : otherwise;
}

double kvpd_claim_token_seconds(const struct kvpd_tenant *t, uint32_t space)
{
	return seconds(&t->space[space].computing, seconds(&t->computing, KVPD_TOKEN_SECONDS));
}

double kvpd_claim_token_cost(const struct kvpd_tenant *t, uint32_t space)
{
	double mean = seconds(&t->computing, 1);

	return seconds(&t->space[space].computing, mean) / mean;
}

void kvpd_claim_committed(
	struct kvpd_session *s, const struct kvpd_new_block *b, struct kvp_key next, uint64_t now)
{
	struct kvpd_tenant *t = s->tenant;
	struct kvp_shm_claim *c = t->n_claims ? find(t, b->key) : NULL;
	KVP_ATOMIC(uint32_t) *word = &t->view.cat->futex[b->key.lo & (KVP_FUTEX_WORDS - 1)].word;
	uint64_t ttl_ms, took;
	bool own;

	if (!c) {
		kvp_store_release(word, kvp_load_relaxed(word) + 1);
		return;
	}
	/* Whichever session committed it, the clients that wait for the block have it now. */
	ttl_ms = t->claim_ttl_ms[c - t->view.claims];
	own = kvp_load_relaxed(&c->session) == s->id;
	took = now - t->claim_since_ns[c - t->view.claims];
	if (own) {
		learn(&t->space[b->space].computing, took, b->n_tokens);
		learn(&t->computing, took, b->n_tokens);
	}
	/* First, so that its place and its part of the limit are free for the next one. */
	end(t, c);
	if (own && (next.lo || next.hi))
		(void)kvpd_claim_set(s, next, ttl_ms, now);
}

static void end_where(struct kvpd_tenant *t, uint32_t session, uint64_t before)
{
	for (uint32_t i = 0; t->n_claims && i < KVP_MAX_CLAIMS; i++) {
		struct kvp_shm_claim *c = &t->view.claims[i];
		uint32_t holder = kvp_load_relaxed(&c->session);

		if (holder && (holder == session || kvp_load_relaxed(&c->deadline_ns) <= before))
			end_soon(t, c);
	}
}

void kvpd_claim_end_session(struct kvpd_session *s)
{
	if (s->n_claims)
		end_where(s->tenant, s->id, 0);
}

bool kvpd_claim_step(struct kvpd_tenant *t, uint64_t now)
{
	end_where(t, 0, now);
	return false;
}
