/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matches handed to other processes of the tenant. What is handed over names the deepest block by
 * everything that makes it that block: its birth, and its key, which is digested from the tenant's
 * salt, the space and all tokens before. The process that takes it over leases the block of that birth, while
 * the other one's lease keeps it, and walks up the chain.
 */
#include "libclient/match.h"

#include <string.h>

#define TRIES 4u /* before a block that keeps moving is not there */

/* kvp_handover.opaque */
enum { AT_EPOCH, AT_TIP, AT_BIRTH, AT_KEY_LO, AT_KEY_HI };

int kvp_match_export(const struct kvp_prefix *m, struct kvp_handover *ret)
{
	struct kvp_handover h = { { 0 } };
	const struct kvp_block *block;
	const struct kvp_hit *tip;

	if (!m || !ret || !prefix_live(m) || m->flags & PREFIX_KEYS)
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	if (!m->n_blocks && !m->tail_tokens)
		return -ENOENT;
	if (!(m->flags & KVP_MATCHED_LEASED))
		return -ENOLCK;
	tip = &m->hits[m->tail_tokens ? m->n_blocks : m->n_blocks - 1];
	block = &m->att->view.blocks[tip->id];
	h.opaque[AT_EPOCH] = m->att->epoch;
	h.opaque[AT_TIP] = (uint64_t)m->tail_tokens << 32 | tip->id;
	h.opaque[AT_BIRTH] = kvp_word_birth(tip->word);
	h.opaque[AT_KEY_LO] = kvp_load_acquire(&block->key_lo);
	h.opaque[AT_KEY_HI] = kvp_load_acquire(&block->key_hi);
	*ret = h;
	return 0;
}

/* Is the first block of the chain, which the lease keeps, one of the space's own salt? */
static int salt_fits(const struct kvp_catalog_view *v, const struct kvp_hit *first,
	const struct kvp_space *space)
{
	kvp_token salt[KVP_SALT_TOKENS];
	int salted = kvp_recipe_salt(v, first->id, first->word, salt);

	return salted == (int)space->salted &&
	       (!salted || !memcmp(salt, space->salt, sizeof(salt)));
}

/* The block is leased: are all of its chain what was handed over, and here? */
static int walk_up(struct kvp_prefix *m, const struct space_bind *b, const uint64_t *h)
{
	const struct kvp_catalog_view *v = &m->att->view;
	kvp_block_id id = (kvp_block_id)h[AT_TIP];
	const struct kvp_block *block = &v->blocks[id];
	uint32_t depth = kvp_load_acquire(&block->depth), n = depth + 1;
	uint32_t t = m->space->geo.block_tokens, tail = (uint32_t)(h[AT_TIP] >> 32);
	const struct kvp_hit *tip;

	if (kvp_load_acquire(&block->key_lo) != h[AT_KEY_LO] ||
		kvp_load_acquire(&block->key_hi) != h[AT_KEY_HI] || depth >= v->max_blocks)
		return -ESTALE;
	if (array_grow((void **)&m->hits, &m->cap, n, sizeof(m->hits[0])) < 0)
		return -ENOMEM;
	for (uint32_t try = 1; kvp_find_chain(v, b->index, id, m->tiers, m->hits, n) < 0; try++)
		if (try == TRIES)
			return -ESTALE;
	/* What is leased may move, block after block of a long chain, and is found where it is now. */
	if (hits_prove(m, n) < n)
		return -ESTALE;
	tip = &m->hits[n - 1];
	if (!salt_fits(v, &m->hits[0], m->space))
		return -ESTALE;
	if (kvp_word_birth(tip->word) != h[AT_BIRTH] || tail > tip->tokens)
		return -ESTALE;
	for (uint32_t i = 0; i < n; i++)
		if (!hit_readable(m, &m->hits[i]))
			return -EAGAIN;
	m->tail_tokens = tail;
	m->n_blocks = tail ? n - 1 : n;
	m->n_tokens = (n - 1) * t + (tail ? 0 : tip->tokens);
	m->asked = n;
	m->flags = KVP_MATCHED_LEASED;
	return 0;
}

static int take(struct kvp_prefix *m, const uint64_t *h)
{
	const struct space_bind *b = m->att ? bind_of(m->att, m->space) : NULL;
	kvp_block_id id = (kvp_block_id)h[AT_TIP];
	const struct kvp_block *block;
	int r = -ESTALE;

	if (!b)
		return -ESHUTDOWN;
	if (h[AT_EPOCH] != m->att->epoch || id >= m->att->view.max_blocks)
		return -ESTALE;
	block = &m->att->view.blocks[id];
	/* It may have moved since, and may move meanwhile. */
	for (uint32_t try = 0; try < TRIES && r == -ESTALE; try++) {
		uint64_t word = kvp_load_acquire(&block->word);

		if (kvp_word_birth(word) != h[AT_BIRTH] || !kvp_word_lives(word))
			return -ESTALE;
		r = kvp_lease_take(m->att->page, m->shard, block, id, word, &m->lease);
	}
	if (r < 0)
		return r == -ENOBUFS ? -ENOLCK : r;
	KVP_FAULT("taken-over");
	return walk_up(m, b, h);
}

int kvp_match_import(struct kvp_space *space, const struct kvp_handover *handover,
	struct kvp_prefix **ret_prefix)
{
	struct kvp_handover h;
	struct kvp_prefix *m;
	int r;

	if (!space || !handover || !ret_prefix)
		return -EINVAL;
	if (!client_mine(space->client))
		return -ECHILD;
	h = *handover;
	m = prefix_take(space);
	if (!m)
		return -ENOMEM;
	r = take(m, h.opaque);
	if (r < 0) {
		prefix_drop(m);
		return r;
	}
	prefix_unpin(m);
	*ret_prefix = m;
	return 0;
}
