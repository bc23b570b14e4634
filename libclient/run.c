/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: slots for many blocks, and many blocks of one chain published, in one call and under one
 * hold of the lock.
 */
#include "libclient/match.h"
#include "libclient/ring.h"

int kvp_reserve_run(struct kvp_space *space, uint32_t n, uint32_t timeout_ms,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grants)
{
	uint32_t got = 0, retry_ms = 0;
	struct attachment *att;
	struct kvp_client *c;
	uint64_t deadline;
	int r = -ESHUTDOWN;

	if (!space || !n || n > KVP_CLIENT_GRANTS || !ret_grants)
		return -EINVAL;
	c = space->client;
	if (!client_mine(c))
		return -ECHILD;
	deadline = deadline_of(c, timeout_ms);
	pthread_mutex_lock(&c->ring_lock);
	att = attachment_get(c);
	if (att) {
		do {
			r = grant_reserve(
				att, space, n - got, deadline, &retry_ms, &ret_grants[got]);
		} while (r == 0 && ++got < n);
		attachment_put(att);
	}
	pthread_mutex_unlock(&c->ring_lock);
	KVP_FAULT("run-reserved");
	if (r == -EAGAIN && ret_retry_ms)
		*ret_retry_ms = retry_ms;
	return got ? (int)got : r;
}

int run_client(struct kvp_grant *const *grants, uint32_t n, struct kvp_client **ret_client)
{
	const struct attachment *att;

	if (!grants || !n || n > KVP_CLIENT_GRANTS || !grants[0])
		return -EINVAL;
	att = grants[0]->att;
	for (uint32_t i = 0; i < n; i++)
		if (!grants[i] || !att || grants[i]->att != att)
			return -EINVAL;
	if (!client_mine(att->client))
		return -ECHILD;
	*ret_client = att->client;
	return 0;
}

int run_check(struct kvp_grant *const *grants, uint32_t n)
{
	uint64_t seen[KVP_MAX_GRANTS / 64] = { 0 };

	for (uint32_t i = 0; i < n; i++) {
		const struct kvp_grant *g = grants[i];
		uint64_t bit;

		if (g->state == GRANT_COMMITTED)
			return -EALREADY;
		bit = UINT64_C(1) << g->id % 64;
		if (g->state != GRANT_HELD || !space_same(g->space, grants[0]->space) ||
			seen[g->id / 64] & bit)
			return -EINVAL;
		seen[g->id / 64] |= bit;
	}
	return 0;
}

/* ring_lock. How many blocks were committed, or why the first was not. */
static int run_commit(struct kvp_grant *const *grants, struct kvp_ref parent,
	const kvp_token *tokens, size_t n, uint32_t flags, uint64_t deadline,
	struct kvp_ref *ret_last)
{
	uint32_t t = grants[0]->space->geo.block_tokens;
	int done = 0;

	for (size_t at = 0; at < n; at += t) {
		uint32_t step = n - at < t ? (uint32_t)(n - at) : t;
		int r;

		KVP_FAULT("run-commit");
		r = grant_commit(grants[done], parent, tokens + at, step, flags, 0, deadline, 0,
			NO_KEY, &parent);
		if (r < 0)
			return done ? done : r;
		done++;
		if (step == t && ret_last)
			*ret_last = parent;
	}
	return done;
}

int kvp_commit_run(struct kvp_grant *const *grants, uint32_t n_grants, struct kvp_ref parent,
	const uint32_t *tokens, size_t n, struct kvp_prefix *claim, uint32_t flags,
	struct kvp_ref *ret_last)
{
	struct kvp_client *c;
	uint32_t t;
	int r;

	if (!tokens || !n || !flags_known(flags, KVP_COMMIT_RELEASE))
		return -EINVAL;
	r = run_client(grants, n_grants, &c);
	if (r < 0)
		return r;
	if (claim && claim->client != c)
		return -EINVAL;
	pthread_mutex_lock(&c->ring_lock);
	r = run_check(grants, n_grants);
	if (r == 0) {
		t = grants[0]->space->geo.block_tokens;
		if ((n - 1) / t + 1 != n_grants)
			r = -EINVAL;
	}
	if (r == 0)
		r = run_commit(grants, parent, tokens, n, flags,
			deadline_of(c, KVP_DEFAULT_TIMEOUT), ret_last);
	pthread_mutex_unlock(&c->ring_lock);
	KVP_FAULT("run-committed");
	return r;
}
