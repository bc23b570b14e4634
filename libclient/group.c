/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One match over the spaces of a group of ranks. Each holds a part of every token's KV, so a prefix is
 * of use as far as all of them have it, and no further. The ranks are looked at one after the other,
 * each only as far as those before it go; what was found is leased at once and only then made shorter,
 * so that at no moment anything is counted that is not held.
 */
#include "libclient/match.h"

/* Ends at the first `keep` tokens. The lease on the new tip is there before the old one ends. */
static void shorten(struct kvp_prefix *m, uint32_t keep)
{
	uint32_t t = m->space->geo.block_tokens, tip;
	struct kvp_lease shorter;

	m->n_blocks = keep / t;
	m->n_tokens = m->n_blocks * t;
	m->tail_tokens = keep % t;
	if (!(m->flags & KVP_MATCHED_LEASED))
		return;
	if (!keep) {
		kvp_lease_drop(&m->lease);
		m->flags &= ~KVP_MATCHED_LEASED;
		return;
	}
	KVP_FAULT("group-shorten");
	tip = m->n_blocks - (m->tail_tokens ? 0 : 1);
	/*
	 * Where there is no slot left, the lease on the deeper block goes on protecting this one. It alone protects
	 * the old place of a block that has moved since it was found.
	 */
	if (kvp_lease_take(m->att->page, m->shard, &m->att->view.blocks[m->hits[tip].id],
		    m->hits[tip].id, m->hits[tip].word, &shorter) < 0)
		return;
	if (kvp_revalidate(&m->att->view, m->hits, tip + 1) < tip + 1) {
		kvp_lease_drop(&shorter);
		return;
	}
	kvp_lease_drop(&m->lease);
	m->lease = shorter;
}

static uint32_t reach(const struct kvp_prefix *m)
{
	return m->n_tokens + m->tail_tokens;
}

/* All to the same length: the last one's, which is the least. */
static void level(struct kvp_prefix **m, uint32_t n, uint32_t keep)
{
	int alike = 1;

	/* A partial block of one rank may be the beginning of another's whole one. */
	for (uint32_t i = 0; i < n; i++)
		alike &= reach(m[i]) == keep && m[i]->n_tokens == m[0]->n_tokens;
	for (uint32_t i = 0; i < n && !alike; i++)
		shorten(m[i], keep);
}

static int group_check(struct kvp_space *const *spaces, uint32_t n)
{
	if (!spaces || !n || n > KVP_GROUP_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < n; i++) {
		if (!spaces[i] || spaces[i]->canon.key_bytes ||
			spaces[i]->client != spaces[0]->client ||
			spaces[i]->geo.block_tokens != spaces[0]->geo.block_tokens)
			return -EINVAL;
		for (uint32_t k = 0; k < i; k++)
			if (space_same(spaces[k], spaces[i]))
				return -EINVAL;
	}
	return client_mine(spaces[0]->client) ? 0 : -ECHILD;
}

#define GROUP_FLAGS (KVP_MATCH_NO_TOUCH | KVP_MATCH_EXACT | KVP_MATCH_NO_TAIL)

int kvp_match_group(struct kvp_space *const *spaces, uint32_t n_spaces,
	const struct kvp_ids *tokens, const struct kvp_match_opts *opts,
	struct kvp_prefix **ret_prefixes)
{
	struct kvp_prefix *m[KVP_GROUP_MAX];
	struct kvp_match_opts o;
	struct tokens all, some;
	uint32_t i;
	int r;

	if (!tokens || !ret_prefixes || opts_take(&o, sizeof(o), opts) < 0 || o.after ||
		o.flags & ~GROUP_FLAGS || tokens_take(tokens, &all) < 0)
		return -EINVAL;
	r = group_check(spaces, n_spaces);
	if (r < 0)
		return r;
	some = all;
	for (i = 0; i < n_spaces; i++) {
		r = match_make(spaces[i], &some, NULL, o.flags & KVP_MATCH_NO_TAIL, 0, &m[i]);
		if (r < 0)
			break;
		some.n = reach(m[i]);
	}
	if (r < 0) {
		while (i)
			prefix_drop(m[--i]);
		return r;
	}
	level(m, n_spaces, o.flags & KVP_MATCH_EXACT && some.n < all.n ? 0 : some.n);
	for (i = 0; i < n_spaces; i++) {
		if (!(o.flags & KVP_MATCH_NO_TOUCH))
			match_count(m[i], all.n);
		ret_prefixes[i] = m[i];
	}
	return 0;
}
