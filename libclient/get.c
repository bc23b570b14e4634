/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies out of the cache: into a caller's view, and of a tail into a slot of the caller's. What no
 * lease holds in place is copied and looked at once more afterwards.
 */
#include "libclient/coded.h"
#include "libclient/geometry.h"
#include "libclient/match.h"

#include <stdlib.h>

#define MOVE_TRIES 4u /* before a block that keeps moving is not there */

/* The daemon may compute the checksum later; while it has not there is nothing to compare with. */
static int verify(const struct kvp_prefix *m, const struct kvp_hit *h, const uint8_t *payload)
{
	const struct kvp_block *block = &m->att->view.blocks[h->id];
	uint64_t sum = kvp_load_acquire(&kvp_payload_at(block, h->word, h->tier)->checksum);

	if (!sum || kvp_load_acquire(&block->word) != h->word)
		return 0;
	return kvp_payload_checksum(payload, kvp_where_bytes(h->where)) == sum ? 0 : -EBADMSG;
}

/* Counted, so that somebody can see that a cache is decoded rather than read in place. */
static int decode(const struct kvp_prefix *m, const struct kvp_hit *h, const uint8_t *payload,
	uint32_t at, uint32_t n, const struct kvp_view *v, uint64_t user, void **scratch)
{
	int r = coded_to_view(m->space->codecs, &m->space->geo, kvp_where_codec(h->where), payload,
		kvp_where_bytes(h->where), at, n, v, user, scratch);

	kvp_add_relaxed(r < 0 ? &m->client->undecoded : &m->client->decoded, 1);
	return r;
}

/*
 * Where the hit's block lies in DRAM: it may have moved there since it was found, and may move meanwhile. While the
 * ledger looks for leases it is EVICTING; what is leased lies where it did then, and comes to stay. Without a lease
 * the hit's own word says afterwards whether anything has changed.
 */
static int in_dram(const struct kvp_prefix *m, struct kvp_hit *hit)
{
	const struct kvp_block *b = &m->att->view.blocks[hit->id];
	uint32_t birth = kvp_word_birth(hit->word);

	hit->tier = KVP_TIER_DRAM;
	for (uint32_t try = 0; try < MOVE_TRIES; try++) {
		hit->word = kvp_load_acquire(&b->word);
		if (kvp_word_birth(hit->word) != birth || !kvp_word_holds(hit->word))
			return 0;
		kvp_payload_read(b, hit->word, KVP_TIER_DRAM, &hit->where, &hit->offset);
		if (kvp_load_relaxed(&b->word) == hit->word)
			return hit->where != 0;
	}
	return 0;
}

/* Tokens [at, at + n) of hit i. */
static int get_block(const struct kvp_prefix *m, uint32_t i, uint32_t at, uint32_t n,
	const struct kvp_view *v, uint64_t user, uint64_t total, uint32_t flags, void **scratch)
{
	const struct kvp_hit *h = &m->hits[i];
	const uint8_t *payload = hit_addr(m->att, h);
	struct kvp_hit dram = *h;
	int r = 0;

	/* On a device that the host cannot read; in DRAM as well, unless it was written there just now. */
	if (!payload && h->tier == KVP_TIER_VRAM) {
		payload = in_dram(m, &dram) ? hit_addr(m->att, &dram) : NULL;
		if (!payload)
			return -EOPNOTSUPP;
		h = &dram;
	}
	if (!payload)
		return -ESTALE;
	if (flags & KVP_GET_VERIFY)
		r = verify(m, h, payload);
	if (r == 0 && kvp_where_codec(h->where) != KVP_CODEC_NATIVE)
		r = decode(m, h, payload, at, n, v, user, scratch);
	else if (r == 0)
		view_from_payload(&m->space->geo, payload, at, n, v, user, total);
	return r;
}

/* Copies tokens [from, from + n), all of which are matched. */
static int get_range(const struct kvp_prefix *m, uint32_t from, uint32_t n,
	const struct kvp_view *v, uint32_t flags)
{
	uint32_t t = m->space->geo.block_tokens, done = 0;
	void *scratch = NULL;
	int r = 0;

	while (r == 0 && done < n) {
		uint32_t at = (from + done) % t, step = t - at;

		if (step > n - done)
			step = n - done;
		r = get_block(m, (from + done) / t, at, step, v, done, n, flags, &scratch);
		done += step;
	}
	free(scratch);
	return r;
}

/*
 * Around a copy without a lease. Handles are const to callers, which only read; the pin is the
 * library's own affair.
 */
static int unleased_begin(const struct kvp_prefix *m)
{
	if (m->flags & KVP_MATCHED_LEASED)
		return 0;
	prefix_pin((struct kvp_prefix *)m);
	return 1;
}

/* -ESTALE: one of the hits did not stay as it was until the copy was done. */
static int unleased_end(const struct kvp_prefix *m, const struct kvp_hit *hits, uint32_t n)
{
	int r = 0;

	/* All that was read comes before the words are looked at again. */
	kvp_fence_acquire();
	if (kvp_revalidate(&m->att->view, hits, n) != n)
		r = -ESTALE;
	prefix_unpin((struct kvp_prefix *)m);
	return r;
}

int64_t kvp_get(const struct kvp_prefix *m, uint32_t from, uint32_t n, const struct kvp_view *dst,
	uint32_t flags)
{
	struct kvp_view v;
	uint32_t have, last;
	int r, unleased;

	if (!m || !(uint32_t)kvp_load_relaxed(&m->state) || flags & ~KVP_GET_VERIFY)
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	r = view_check(&m->space->geo, dst, VIEW_READ, &v);
	if (r < 0)
		return r;
	have = m->n_tokens + m->tail_tokens;
	if (from >= have)
		return 0;
	if (n > have - from)
		n = have - from;
	if (!n)
		return 0;
	r = view_reaches(&v, n);
	if (r < 0)
		return r;
	last = (from + n - 1) / m->space->geo.block_tokens;
	unleased = unleased_begin(m);
	r = get_range(m, from, n, &v, flags);
	if (unleased) {
		int stale = unleased_end(m, m->hits, last + 1);

		r = r < 0 ? r : stale;
	}
	return r < 0 ? r : (int64_t)n;
}

/* The tail's tokens into native memory of the space. */
static int fork_tail(
	const struct kvp_prefix *m, const struct kvp_hit *h, const uint8_t *src, uint8_t *dst)
{
	const struct geometry *geo = &m->space->geo;
	struct kvp_view_plane planes[KVP_MAX_LAYERS];
	struct kvp_view v = { .size = sizeof(v), .n_layers = geo->n_layers, .planes = planes };
	void *scratch = NULL;
	int r;

	if (kvp_where_codec(h->where) == KVP_CODEC_NATIVE) {
		payload_prefix(geo, dst, src, m->tail_tokens);
		return 0;
	}
	for (uint32_t i = 0; i < geo->n_layers; i++) {
		const struct geo_layer *l = &geo->layers[i];

		planes[i] = (struct kvp_view_plane){
			.k = dst + l->k_off,
			.v = l->v_row ? dst + l->v_off : NULL,
			.k_token_stride = l->k_stride,
			.v_token_stride = l->v_stride,
			.k_head_stride = l->k_row,
			.v_head_stride = l->v_row,
		};
	}
	r = decode(m, h, src, 0, m->tail_tokens, &v, 0, &scratch);
	free(scratch);
	return r;
}

int kvp_fork(const struct kvp_prefix *m, struct kvp_grant *grant)
{
	const struct kvp_hit *h;
	const uint8_t *src;
	int r = 0, unleased;

	if (!m || !(uint32_t)kvp_load_relaxed(&m->state) || !grant || !grant->att)
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	if (grant->state != GRANT_HELD || !space_same(grant->space, m->space))
		return -EINVAL;
	if (m->space->geo.layout == KVP_LAYOUT_OPAQUE || !grant->addr)
		return -EOPNOTSUPP;
	if (!m->tail_tokens)
		return 0;
	h = &m->hits[m->n_blocks];
	unleased = unleased_begin(m);
	src = hit_addr(m->att, h);
	if (!src)
		r = h->tier == KVP_TIER_VRAM ? -EOPNOTSUPP : -ESTALE;
	else
		r = fork_tail(m, h, src, grant->addr);
	KVP_FAULT("forked");
	if (unleased) {
		int stale = unleased_end(m, h, 1);

		r = r < 0 ? r : stale;
	}
	return r < 0 ? r : (int)m->tail_tokens;
}
