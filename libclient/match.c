/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot path: find the longest cached prefix, lease it, prove it, say where its payloads are. No
 * lock, no system call.
 */
#include "libclient/match.h"

#include <string.h>

#include "libclient/coded.h"
#include "libclient/events.h"
#include "libclient/geometry.h"

#define WINDOW     2048u /* ids of 64 bits that are narrowed at a time: 4 blocks at least */
#define FIND_TRIES 4u    /* before a changing catalog is answered with what is proven of it */
#define MOVE_TRIES 4u    /* before a block that keeps moving is not followed any further */

/* ---- finding --------------------------------------------------------------------------------- */

const uint8_t *hit_addr(struct attachment *att, const struct kvp_hit *hit)
{
	uint32_t id = kvp_where_extent(hit->where), bytes = kvp_where_bytes(hit->where);
	const struct extent_map *em = &att->extents[id % KVP_MAX_EXTENTS];
	uintptr_t base = kvp_load_seq(&em->base);
	uint64_t mapped = kvp_load_relaxed(&em->bytes);

	if (id >= KVP_MAX_EXTENTS || !base || bytes > mapped || hit->offset > mapped - bytes ||
		kvp_load_relaxed(&em->generation) !=
			kvp_load_acquire(&att->view.extents[id].generation))
		return NULL;
	return (const uint8_t *)base + hit->offset;
}

uint64_t hit_there(struct attachment *att, const struct kvp_hit *hit)
{
	uint32_t id = kvp_where_extent(hit->where), bytes = kvp_where_bytes(hit->where);
	const struct extent_map *em = &att->extents[id % KVP_MAX_EXTENTS];
	uint64_t there = kvp_load_seq(&em->there), mapped = kvp_load_relaxed(&em->bytes);

	if (id >= KVP_MAX_EXTENTS || !there || bytes > mapped || hit->offset > mapped - bytes ||
		kvp_load_relaxed(&em->generation) !=
			kvp_load_acquire(&att->view.extents[id].generation))
		return 0;
	return there + hit->offset;
}

void extent_want(struct attachment *att, uint32_t id)
{
	uint64_t bit = UINT64_C(1) << id % 64;

	if (id >= KVP_MAX_EXTENTS || kvp_load_relaxed(&att->wanted[id / 64]) & bit)
		return;
	if (!(atomic_fetch_or(&att->wanted[id / 64], bit) & bit))
		client_kick(att->client);
}

int hit_readable(const struct kvp_prefix *m, const struct kvp_hit *h)
{
	if (!hit_addr(m->att, h) && !(h->tier == KVP_TIER_VRAM && hit_there(m->att, h))) {
		extent_want(m->att, kvp_where_extent(h->where));
		return 0;
	}
	if (kvp_where_codec(h->where) != KVP_CODEC_NATIVE) {
		const struct kvp_block_layout *l =
			coded_layout(m->space->codecs, kvp_where_codec(h->where));

		return l && kvp_where_bytes(h->where) >= l->bytes;
	}
	return kvp_where_bytes(h->where) >= m->space->geo.block_bytes;
}

/* How many of the first n hits have bytes that this process can read. */
static uint32_t readable(struct kvp_prefix *m, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!hit_readable(m, &m->hits[i]))
			return i;
	return n;
}

/*
 * The find names the first payload on any device. One that is not on the prefix's device, or not mapped here,
 * is not it: then the block is read in DRAM, if it lies there. The words are compared after this, so a payload
 * that is read here belongs to the same word as all else.
 */
int hit_settle(const struct kvp_prefix *m, struct kvp_hit *h)
{
	uint32_t extent = kvp_where_extent(h->where);
	struct kvp_hit here = *h;
	int on = h->tier == KVP_TIER_VRAM && extent < KVP_MAX_EXTENTS &&
		 kvp_load_relaxed(&m->att->view.extents[extent].device) == m->device;

	if (h->tier != KVP_TIER_VRAM || (on && (hit_addr(m->att, h) || hit_there(m->att, h))))
		return 1;
	/* What is no host memory comes by itself where somebody can map it. */
	if (on && !kvp_load_relaxed(&m->att->foreign[extent]))
		extent_want(m->att, extent);
	kvp_payload_read(
		&m->att->view.blocks[h->id], h->word, KVP_TIER_DRAM, &here.where, &here.offset);
	here.tier = KVP_TIER_DRAM;
	if (!here.where)
		return 0;
	*h = here;
	return 1;
}

/* A block that moved since it was found is the same block elsewhere. */
static int follow(struct kvp_prefix *m, struct kvp_hit *hit)
{
	return kvp_hit_renew(&m->att->view, m->tiers, hit) == 0 &&
	       (m->tiers == KVP_TIERS_DRAM || hit_settle(m, hit));
}

uint32_t hits_prove(struct kvp_prefix *m, uint32_t n)
{
	uint32_t i = kvp_revalidate(&m->att->view, m->hits, n);

	for (uint32_t moves = 0; i < n && moves < n + MOVE_TRIES && follow(m, &m->hits[i]); moves++)
		i += kvp_revalidate(&m->att->view, m->hits + i, n - i);
	return i;
}

/*
 * A lease on hits[n - 1], and proof of all n. Returns how many are proven: n, or less and no lease.
 */
static uint32_t lease_and_prove(struct kvp_prefix *m, uint32_t n)
{
	struct kvp_hit *tip = &m->hits[n - 1];
	const struct kvp_block *block = &m->att->view.blocks[tip->id];
	uint32_t proven, moves = 0;
	int r;

	do
		r = kvp_lease_take(m->att->page, m->shard, block, tip->id, tip->word, &m->lease);
	while (r == -ESTALE && ++moves < MOVE_TRIES && follow(m, tip));
	if (r == -ESTALE)
		return kvp_revalidate(&m->att->view, m->hits, n - 1);
	KVP_FAULT("leased");
	proven = hits_prove(m, n);
	if (proven < n)
		kvp_lease_drop(&m->lease);
	return proven;
}

static void adopt(struct kvp_prefix *m, const struct kvp_found *found, uint32_t n)
{
	m->n_blocks = n < found->n_hits ? n : found->n_hits;
	m->n_tokens = match_base(m) + found->n_tokens;
	if (n < found->n_hits) /* and only the last found may have been partial */
		m->n_tokens = n * m->space->geo.block_tokens;
	m->tail_tokens = n > found->n_hits ? found->tail_tokens : 0;
	if (!n)
		kvp_lease_drop(&m->lease);
	m->flags = m->lease.slot ? KVP_MATCHED_LEASED : 0;
}

/* What the catalog has of n tokens that follow so many hits. */
static void look_after(struct kvp_prefix *m, const struct space_bind *b, uint32_t hits,
	const kvp_token *tokens, uint32_t n, uint32_t flags, struct kvp_found *ret_found)
{
	if (!hits)
		space_find(m->att, m->space, b, tokens, n, flags, m->tiers, m->hits, m->cap - 1,
			ret_found);
	else
		kvp_find_after(&m->att->view, b->index, &m->hits[hits - 1], tokens, n, flags,
			m->tiers, m->hits + hits, m->cap - 1 - hits, ret_found);
}

/* Wide ids are narrowed a window of whole blocks at a time. */
static void look_up_wide(struct kvp_prefix *m, const struct space_bind *b,
	const struct tokens *tokens, uint32_t flags, struct kvp_found *ret_found)
{
	uint32_t t = m->space->geo.block_tokens, hits = m->base, done = 0, step;
	kvp_token window[WINDOW];

	do {
		step = tokens->n - done;
		if (step > WINDOW / t * t)
			step = WINDOW / t * t;
		look_after(
			m, b, hits, tokens_at(tokens, done, step, window), step, flags, ret_found);
		hits += ret_found->n_hits;
		done += ret_found->n_tokens;
	} while (ret_found->n_tokens == step && done < tokens->n);
	ret_found->n_hits = hits - m->base;
	ret_found->n_tokens = done;
}

/*
 * What the catalog has of the tokens after the blocks taken over, which count among the hits; their
 * tokens do not. All in place, and one number is changed alone: what was just written in pieces and
 * is read in a larger one, as a copy or two sums at once would be, waits for them.
 */
static void look_up(struct kvp_prefix *m, const struct space_bind *b, const struct tokens *tokens,
	uint32_t flags, struct kvp_found *ret_found)
{
	if (tokens->wide)
		look_up_wide(m, b, tokens, flags, ret_found);
	else
		look_after(m, b, m->base, tokens->plain, tokens->n, flags, ret_found);
	ret_found->n_hits += m->base;
}

/* The prefix ends before a block that lies where it does not look. */
static uint32_t settle_tiers(struct kvp_prefix *m, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!hit_settle(m, &m->hits[i]))
			return i;
	return n;
}

/* Longest prefix that could be proven. Only in the last round is less than was found accepted. */
static void find(struct kvp_prefix *m, const struct space_bind *b, const struct tokens *tokens,
	uint32_t flags)
{
	uint32_t find_flags = flags & KVP_MATCH_NO_TAIL ? KVP_FIND_NO_TAIL : 0;

	for (uint32_t try = 1;; try++) {
		struct kvp_found found;
		uint32_t total, proven = 0;

		look_up(m, b, tokens, find_flags, &found);
		total = found.n_hits;
		if (found.tail_tokens)
			m->hits[total++] = found.tail;
		if (m->tiers != KVP_TIERS_DRAM)
			total = settle_tiers(m, total);
		KVP_FAULT("found");
		while (total && (proven = lease_and_prove(m, total)) < total && try >= FIND_TRIES)
			total = proven;
		if (proven < total && try < FIND_TRIES)
			continue;
		adopt(m, &found, readable(m, total));
		return;
	}
}

/* All that the catalog has, also in extents that this process has not mapped. */
static void find_anywhere(
	struct kvp_prefix *m, const struct space_bind *b, const struct tokens *tokens)
{
	struct kvp_found found;

	look_up(m, b, tokens, KVP_FIND_NO_TAIL, &found);
	m->n_blocks = found.n_hits;
	m->n_tokens = match_base(m) + found.n_tokens;
}

/* Tokens of an earlier prefix were counted with that. */
static void count(struct kvp_prefix *m, const struct space_bind *b, uint32_t n)
{
	uint32_t have = m->n_tokens + m->tail_tokens;
	struct kvp_shm_use *use;
	struct kvp_shard *s;

	have -= have < match_base(m) ? have : match_base(m);
	if (!b) {
		kvp_add_relaxed(&m->client->blind_lookups, 1);
		kvp_add_relaxed(&m->client->blind_tokens, n);
		return;
	}
	s = &m->att->page->shard[m->shard];
	use = &s->use[b->index];
	if (!have) {
		kvp_add_relaxed(&s->misses, 1);
	} else {
		kvp_add_relaxed(have == n ? &s->hits : &s->partial, 1);
		kvp_add_relaxed(&use->matched, have);
		if (!(m->flags & KVP_MATCHED_LEASED))
			kvp_add_relaxed(&s->unleased, 1);
	}
	kvp_add_relaxed(&use->asked, n);
}

/* All of the prompt or nothing. */
static void only_exact(struct kvp_prefix *m, uint32_t n)
{
	if (m->n_tokens + m->tail_tokens == match_base(m) + n)
		return;
	kvp_lease_drop(&m->lease);
	m->flags &= ~KVP_MATCHED_LEASED;
	m->n_blocks = m->n_tokens = m->tail_tokens = 0;
}

/* ---- the calls ------------------------------------------------------------------------------- */

static void touch(struct kvp_prefix *m)
{
	uint32_t tip = m->n_blocks + (m->tail_tokens ? 1 : 0);

	if (m->att && tip)
		kvp_touch_push(m->att->page, m->shard, m->hits[tip - 1].id, m->asked);
}

int kvp_touch(struct kvp_prefix *m)
{
	if (!m || !prefix_live(m))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	if (m->flags & PREFIX_KEYS)
		keys_touch(m);
	else
		touch(m);
	return 0;
}

void match_count(struct kvp_prefix *m, uint32_t n)
{
	uint32_t t = m->space->geo.block_tokens;

	m->asked = m->base + n / t + (n % t > 0);
	count(m, m->att ? bind_of(m->att, m->space) : NULL, n);
	if (m->flags & KVP_MATCHED_LEASED)
		touch(m);
}

int match_search(struct kvp_prefix *m, const struct tokens *tokens, uint32_t flags, uint32_t how)
{
	const struct space_bind *b = m->att ? bind_of(m->att, m->space) : NULL;
	uint32_t t = m->space->geo.block_tokens, n = tokens->n;
	uint64_t blocks = (n + t - 1) / t, need = blocks + 3;

	m->asked = m->base + (uint32_t)blocks;
	if (b) {
		if (need > m->att->view.max_blocks + UINT64_C(3))
			need = m->att->view.max_blocks + UINT64_C(3);
		if (array_grow((void **)&m->hits, &m->cap, m->base + need, sizeof(m->hits[0])) < 0)
			return -ENOMEM;
		if (how & FIND_ANYWHERE)
			find_anywhere(m, b, tokens);
		else
			find(m, b, tokens, flags);
		prefix_unpin(m);
		/* With a claim too, what was found says where it begins: kvp_match() forgets. */
		if (flags & KVP_MATCH_EXACT && !(flags & KVP_MATCH_CLAIM))
			only_exact(m, n);
	}
	if (how & FIND_COUNT) {
		count(m, b, n);
		if (m->flags & KVP_MATCHED_LEASED)
			touch(m);
	}
	return 0;
}

/*
 * Takes over the whole blocks of an earlier prefix. They are proven anew with what is found after
 * them; that prefix's lease, which its owner still holds, makes that succeed. 0: they are another
 * daemon's, and nothing can be found after them.
 */
static int take_over(struct kvp_prefix *m, const struct kvp_prefix *after)
{
	uint32_t n = after->n_tokens / after->space->geo.block_tokens;

	if (!n)
		return 1;
	if (!m->att || after->att != m->att)
		return 0;
	if (array_grow((void **)&m->hits, &m->cap, n, sizeof(m->hits[0])) < 0)
		return -ENOMEM;
	memcpy(m->hits, after->hits, n * sizeof(m->hits[0]));
	m->base = n;
	return 1;
}

int match_make(struct kvp_space *space, const struct tokens *tokens, const struct kvp_prefix *after,
	uint32_t flags, uint32_t how, struct kvp_prefix **ret_match)
{
	struct kvp_prefix *m;
	int r = 1;

	if (!client_mine(space->client))
		return -ECHILD;
	if (after && (!prefix_live(after) || !space_same(after->space, space)))
		return -EINVAL;
	m = prefix_take(space);
	if (!m)
		return -ENOMEM;
	KVP_FAULT("match");
	if (how >> 8) {
		m->tiers = KVP_TIERS(KVP_TIER_VRAM, KVP_TIER_DRAM, KVP_TIER_RECIPE);
		m->device = (how >> 8) - 1;
	}
	if (after)
		r = take_over(m, after);
	if (r > 0) {
		r = match_search(m, tokens, flags, how);
	} else if (r == 0) {
		if (m->att)
			prefix_unpin(m);
		if (how & FIND_COUNT)
			count(m, m->att ? bind_of(m->att, space) : NULL, tokens->n);
	}
	if (r < 0) {
		prefix_drop(m);
		return r;
	}
	*ret_match = m;
	return 0;
}

#define MATCH_FLAGS                                                                   \
	(KVP_MATCH_CLAIM | KVP_MATCH_NO_TOUCH | KVP_MATCH_EXACT | KVP_MATCH_NO_TAIL | \
		KVP_MATCH_DEVICE)

static int match_with(struct kvp_space *space, const struct tokens *tokens,
	const struct kvp_match_opts *opts, struct kvp_prefix **ret_match)
{
	struct kvp_match_opts o;
	struct kvp_prefix *m;
	uint32_t how;
	int r;

	if (opts_take(&o, sizeof(o), opts) < 0 || o.flags & ~MATCH_FLAGS ||
		(o.after && o.flags & KVP_MATCH_CLAIM) || o.device >= KVP_CLIENT_DEVICES)
		return -EINVAL;
	how = (o.flags & KVP_MATCH_NO_TOUCH ? 0 : FIND_COUNT) |
	      (o.flags & KVP_MATCH_DEVICE ? FIND_ON(o.device) : 0);
	r = match_make(space, tokens, o.after, o.flags, how, &m);
	if (r < 0)
		return r;
	if (o.flags & KVP_MATCH_CLAIM) {
		r = claim_missing(m, tokens, &o);
		if (r < 0) {
			prefix_drop(m);
			return r;
		}
		if (o.flags & KVP_MATCH_EXACT)
			only_exact(m, tokens->n);
	}
	*ret_match = m;
	return 0;
}

int kvp_match_ids(struct kvp_space *space, const struct kvp_ids *ids,
	const struct kvp_match_opts *opts, struct kvp_prefix **ret_match)
{
	struct tokens tokens;

	if (!space || !ids || !ret_match || tokens_take(ids, &tokens) < 0)
		return -EINVAL;
	return match_with(space, &tokens, opts, ret_match);
}

int kvp_match(struct kvp_space *space, const uint32_t *ids, size_t n,
	const struct kvp_match_opts *opts, struct kvp_prefix **ret_match)
{
	const struct tokens tokens = tokens_of(ids, n);

	if (!space || (n && !ids) || n > MAX_TOKENS || !ret_match)
		return -EINVAL;
	return opts ? match_with(space, &tokens, opts, ret_match)
		    : match_make(space, &tokens, NULL, 0, FIND_COUNT, ret_match);
}

int kvp_match_info(const struct kvp_prefix *m, struct kvp_prefix_info *ret_info)
{
	struct kvp_prefix_info info = { 0 };

	if (!m || !ret_info || !prefix_live(m))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	info.flags = m->flags & ~(PREFIX_KEYS | PREFIX_WATCHED);
	info.n_blocks = m->n_blocks;
	info.n_tokens = m->n_tokens;
	info.tail_tokens = m->tail_tokens;
	return result_give(ret_info, &info, sizeof(info));
}

int kvp_payload(const struct kvp_prefix *m, uint32_t i, struct kvp_payload_info *ret)
{
	struct kvp_payload_info p = { 0 };
	const struct kvp_hit *h;

	if (!m || !ret || !prefix_live(m))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	if (i > m->n_blocks || (i == m->n_blocks && !m->tail_tokens))
		return -ENOENT;
	if (!(m->flags & KVP_MATCHED_LEASED))
		return -ENOLCK;
	h = &m->hits[i];
	p.addr = hit_addr(m->att, h);
	if (!p.addr && h->tier == KVP_TIER_VRAM)
		p.device_addr = hit_there(m->att, h);
	if (!p.addr && !p.device_addr)
		return -ENOENT;
	p.bytes = kvp_where_bytes(h->where);
	p.codec = kvp_where_codec(h->where);
	p.tier = h->tier;
	p.tokens = h->tokens;
	coded_codecs(m->space->codecs, p.codec, &p.codec_k, &p.codec_v);
	return result_give(ret, &p, sizeof(p));
}

/* One half of a layer in a payload. */
static struct kvp_payload_half half_of(
	const struct kvp_block_layout *l, const uint8_t *payload, uint32_t layer, uint32_t kind)
{
	const struct kvp_block_plane *p = &l->plane[layer][kind];

	if (!p->heads)
		return (struct kvp_payload_half){ 0 };
	return (struct kvp_payload_half){
		.addr = payload + p->offset,
		.bytes = p->bytes,
		.codec = p->codec,
		.token_stride = (size_t)p->token_stride,
		.head_stride = (size_t)p->head_stride,
	};
}

static struct kvp_payload_half native_half(const uint8_t *at, uint64_t stride, uint32_t row,
	const struct geometry *geo, uint32_t heads)
{
	if (!row)
		return (struct kvp_payload_half){ 0 };
	return (struct kvp_payload_half){
		.addr = at,
		.bytes = (uint64_t)geo->block_tokens * heads * row,
		.token_stride = (size_t)stride,
		.head_stride = row,
	};
}

int kvp_payload_planes(
	const struct kvp_prefix *m, uint32_t i, uint32_t layer, struct kvp_payload_layer_info *ret)
{
	struct kvp_payload_layer_info p = { 0 };
	struct kvp_payload_info payload = { .size = sizeof(payload) };
	int r = ret ? kvp_payload(m, i, &payload) : -EINVAL;
	const struct kvp_block_layout *coded;
	const struct geometry *geo;

	if (r < 0)
		return r;
	geo = &m->space->geo;
	if (geo->layout == KVP_LAYOUT_OPAQUE)
		return -EOPNOTSUPP;
	if (layer >= geo->n_layers)
		return -EINVAL;
	if (!payload.addr)
		return -EOPNOTSUPP;
	p.tokens = payload.tokens;
	coded = payload.codec ? coded_layout(m->space->codecs, payload.codec) : NULL;
	/* Whoever attends has no calibration. */
	if (coded && (coded->plane[layer][0].calib || coded->plane[layer][1].calib))
		return -EOPNOTSUPP;
	if (coded) {
		p.k = half_of(coded, payload.addr, layer, KVP_PLANE_K);
		p.v = half_of(coded, payload.addr, layer, KVP_PLANE_V);
	} else {
		const struct geo_layer *l = &geo->layers[layer];
		const uint8_t *at = payload.addr;

		p.k = native_half(at + l->k_off, l->k_stride, l->k_row, geo, l->heads);
		p.v = native_half(at + l->v_off, l->v_stride, l->v_row, geo, l->heads);
	}
	return result_give(ret, &p, sizeof(p));
}

int kvp_payloads(const struct kvp_prefix *m, uint32_t first, uint32_t n, const void **ret_addrs)
{
	uint32_t have, i;

	if (!m || (n && !ret_addrs) || !prefix_live(m))
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	have = m->n_blocks + (m->tail_tokens ? 1 : 0);
	if (first >= have)
		return 0;
	if (!(m->flags & KVP_MATCHED_LEASED))
		return -ENOLCK;
	if (n > have - first)
		n = have - first;
	for (i = 0; i < n; i++) {
		const struct kvp_hit *h = &m->hits[first + i];
		const void *addr = hit_addr(m->att, h);

		if (!addr || kvp_where_codec(h->where) != KVP_CODEC_NATIVE)
			break;
		ret_addrs[i] = addr;
	}
	return (int)i;
}

int kvp_match_ref(const struct kvp_prefix *m, uint32_t n_blocks, struct kvp_ref *ret)
{
	const struct kvp_hit *h;

	if (!m || !ret || !prefix_live(m) || n_blocks > m->n_blocks || m->flags & PREFIX_KEYS)
		return -EINVAL;
	if (!client_mine(m->client))
		return -ECHILD;
	if (!n_blocks) {
		*ret = kvp_ref_root();
		return 0;
	}
	h = &m->hits[n_blocks - 1];
	if (h->tokens != m->space->geo.block_tokens)
		return -EINVAL;
	*ret = ref_make(KVP_PARENT_BLOCK, h->id, kvp_word_birth(h->word), m->att->epoch);
	return 0;
}

int kvp_release(struct kvp_prefix *m)
{
	if (!m)
		return 0;
	if (!client_mine(m->client))
		return -ECHILD;
	if (!prefix_live(m))
		return -EALREADY;
	KVP_FAULT("release");
	if (m->flags & PREFIX_KEYS)
		keys_drop(m, 0);
	else if (m->flags & KVP_MATCHED_CLAIMED)
		claim_give_up(m);
	else if (m->flags & PREFIX_WATCHED)
		event_unwatch(m);
	prefix_drop(m);
	return 0;
}
