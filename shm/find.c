/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Longest cached prefix. Two ways lead to the next block of a chain: the descriptor after the
 * parent's, where the ledger puts it whenever it can (sequential memory, no hash), and the index.
 * Both end in the same proof.
 */
#include "shm/kvp_catalog.h"

#include <errno.h>
#include <string.h>

#define CANDIDATES 8u
/* Blocks ahead for which the index way computes keys and asks for cache lines. */
#define LOOKAHEAD        16u
#define AHEAD_DESCRIPTOR 6u
#define AHEAD_RECIPE     3u
/* Blocks ahead for which the sequential way asks for cache lines. */
#define AHEAD_SEQUENTIAL 4u

/* Token pairs are compared as 64-bit words, the earlier token low. */
static uint64_t pair_at(const kvp_token *tokens)
{
	return tokens[0] | (uint64_t)tokens[1] << 32;
}

static int same_tokens(
	const struct kvp_catalog_view *v, uint32_t cell, const kvp_token *tokens, uint32_t n)
{
	KVP_ATOMIC(uint64_t) *have = &v->recipes[(uint64_t)cell * (KVP_RECIPE_CELL / 2)];
	uint64_t diff = 0;

	for (; n >= 8; n -= 8, have += 4, tokens += 8) {
		diff |= kvp_load_acquire(&have[0]) ^ pair_at(tokens);
		diff |= kvp_load_acquire(&have[1]) ^ pair_at(tokens + 2);
		diff |= kvp_load_acquire(&have[2]) ^ pair_at(tokens + 4);
		diff |= kvp_load_acquire(&have[3]) ^ pair_at(tokens + 6);
	}
	for (; n >= 2; n -= 2, have++, tokens += 2)
		diff |= kvp_load_acquire(have) ^ pair_at(tokens);
	if (n)
		diff |= (uint32_t)kvp_load_acquire(have) ^ tokens[0];
	return !diff;
}

static int recipe_fits(const struct kvp_catalog_view *v, uint32_t cell, uint32_t n)
{
	return cell < v->recipe_cells && kvp_recipe_cells(n) <= v->recipe_cells - cell;
}

static inline void read_payload(const struct kvp_block *b, uint32_t tier, struct kvp_hit *hit)
{
	kvp_payload_read(b, hit->word, tier, &hit->where, &hit->offset);
	hit->tier = (uint16_t)tier;
}

/* Where the block lies, under the hit's word, in the first of the tiers that has it; all 0 if none has. */
static inline void read_place(const struct kvp_block *b, uint32_t tiers, struct kvp_hit *hit)
{
	if (tiers == KVP_TIERS_DRAM) { /* nearly always: no index, no loop */
		read_payload(b, KVP_TIER_DRAM, hit);
		return;
	}
	hit->where = hit->offset = 0;
	hit->tier = 0;
	for (; !hit->where && (tiers & 3) != KVP_TIER_RECIPE; tiers >>= 2)
		read_payload(b, tiers & 3, hit);
}

/* Where the salt of a block with n tokens stands in the recipe store. */
static KVP_ATOMIC(uint64_t) *salt_at(const struct kvp_catalog_view *v, uint32_t cell, uint32_t n)
{
	return &v->recipes[(uint64_t)cell * (KVP_RECIPE_CELL / 2) + (n + 1) / 2];
}

/* Its recipe has room for one, and it is this one. */
static int same_salt(
	const struct kvp_catalog_view *v, uint32_t cell, uint32_t shape, const kvp_token *salt)
{
	KVP_ATOMIC(uint64_t) *have = salt_at(v, cell, kvp_shape_tokens(shape));
	uint64_t diff = 0;

	if (!recipe_fits(v, cell, kvp_shape_words(shape)))
		return 0;
	for (uint32_t i = 0; i < KVP_SALT_TOKENS / 2; i++)
		diff |= kvp_load_acquire(&have[i]) ^ pair_at(&salt[2 * i]);
	return !diff;
}

/* What a reader found of a descriptor whose word was another one afterwards. */
#define CHANGED (-1)
/*
 * A block that moves has two changes of its word behind it at once, and the next ones come after milliseconds.
 * So whoever met one looks again.
 */
#define LOOKS 8u

/* The shape says whether the block has a salt; which one is not looked at. 1, 0, or CHANGED. */
static inline int block_now(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t shape,
	kvp_block_id parent, const kvp_token *tokens, uint32_t n, uint32_t tiers,
	struct kvp_hit *ret_hit)
{
	const struct kvp_block *b;
	int any_state = tiers == KVP_TIERS_NONE;
	struct kvp_hit hit;
	uint32_t cell;

	if (id >= v->max_blocks)
		return 0;
	b = &v->blocks[id];
	/* Acquire: pairs with the release in kvp_block_publish(). */
	hit.word = kvp_load_acquire(&b->word);
	if (!kvp_word_lives(hit.word) && (!any_state || kvp_word_state(hit.word) == KVP_BLOCK_FREE))
		return 0;
	if (kvp_load_acquire(&b->shape) != shape || kvp_load_acquire(&b->parent) != parent)
		return 0;
	cell = kvp_load_acquire(&b->recipe);
	if (!recipe_fits(v, cell, n) || !same_tokens(v, cell, tokens, n))
		return 0;
	read_place(b, tiers, &hit);
	hit.id = id;
	hit.tokens = (uint16_t)n;
	/* All loads above are acquire loads, so none of them happens after this one. */
	if (kvp_load_relaxed(&b->word) != hit.word)
		return CHANGED;
	if (!any_state && !hit.where)
		return 0;
	*ret_hit = hit;
	return 1;
}

static int block_is(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t shape,
	kvp_block_id parent, const kvp_token *tokens, uint32_t n, uint32_t tiers,
	struct kvp_hit *ret_hit)
{
	int r = block_now(v, id, shape, parent, tokens, n, tiers, ret_hit);

	for (uint32_t looks = 1; r == CHANGED && looks < LOOKS; looks++)
		r = block_now(v, id, shape, parent, tokens, n, tiers, ret_hit);
	return r > 0;
}

int kvp_block_is(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t space,
	kvp_block_id parent, const kvp_token *tokens, uint32_t n, uint32_t tiers,
	struct kvp_hit *ret_hit)
{
	return block_is(v, id, kvp_shape(space, n), parent, tokens, n, tiers, ret_hit);
}

int kvp_block_salted_is(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t space,
	const kvp_token salt[KVP_SALT_TOKENS], const kvp_token *tokens, uint32_t n, uint32_t tiers,
	struct kvp_hit *ret_hit)
{
	uint32_t shape = kvp_shape(space, n) | KVP_SHAPE_SALTED;
	uint64_t word;

	if (!block_is(v, id, shape, KVP_BLOCK_NONE, tokens, n, tiers, ret_hit) ||
		!same_salt(v, kvp_load_acquire(&v->blocks[id].recipe), shape, salt))
		return 0;
	/* All loads above are acquire loads: under one birth all but the place belongs together. */
	word = kvp_load_relaxed(&v->blocks[id].word);
	return kvp_word_birth(word) == kvp_word_birth(ret_hit->word);
}

/* Keys of the blocks to come, so that their cache lines travel while earlier ones are compared. */
struct ahead {
	struct kvp_key key[LOOKAHEAD];
	uint32_t first; /* block number of key[0] */
	uint32_t n;
	uint32_t want; /* next time: a chain in order needs one key, a scattered one needs all */
};

static void fill_ahead(const struct kvp_catalog_view *v, struct ahead *a, uint32_t number,
	struct kvp_key parent, const kvp_token *tokens, size_t left, uint32_t block_tokens)
{
	a->first = number;
	a->n = 0;
	while (a->n < a->want && left) {
		uint32_t n = left < block_tokens ? (uint32_t)left : block_tokens;

		parent = kvp_chain_key(parent, tokens, n);
		a->key[a->n++] = parent;
		kvp_index_prefetch(v->index, v->index_buckets, parent.lo);
		tokens += n;
		left -= n;
	}
	a->want = a->want * 4 < LOOKAHEAD ? a->want * 4 : LOOKAHEAD;
}

static void prefetch_descriptor(const struct kvp_catalog_view *v, const struct ahead *a, uint32_t i)
{
	kvp_block_id id;

	if (i < a->n && kvp_index_candidates(v->index, v->index_buckets, a->key[i].lo, &id, 1) &&
		id < v->max_blocks)
		__builtin_prefetch(&v->blocks[id]);
}

static void prefetch_recipe_lines(const struct kvp_catalog_view *v, uint64_t cell, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += KVP_RECIPE_CELL, cell++)
		if (cell < v->recipe_cells)
			__builtin_prefetch(&v->recipes[cell * (KVP_RECIPE_CELL / 2)]);
}

static void prefetch_recipe(
	const struct kvp_catalog_view *v, const struct ahead *a, uint32_t i, uint32_t n)
{
	kvp_block_id id;

	if (i < a->n && kvp_index_candidates(v->index, v->index_buckets, a->key[i].lo, &id, 1) &&
		id < v->max_blocks)
		prefetch_recipe_lines(v, kvp_load_relaxed(&v->blocks[id].recipe), n);
}

/* What kvp_find() knows while it walks. */
struct walk {
	const struct kvp_catalog_view *v;
	const kvp_token *tokens; /* not yet matched */
	size_t left;
	uint32_t space;
	uint32_t tiers;
	uint32_t block_tokens;
	uint32_t number; /* of the block looked for, from 0 */
	kvp_block_id parent;
	struct kvp_key parent_key;
	struct ahead ahead;
};

static int by_sequence(struct walk *w, uint32_t n, struct kvp_hit *ret_hit)
{
	const struct kvp_catalog_view *v = w->v;
	kvp_block_id id = w->parent + 1;

	if (w->parent == KVP_BLOCK_NONE || id >= v->max_blocks)
		return 0;
	if (id + AHEAD_SEQUENTIAL < v->max_blocks) {
		uint64_t cell = kvp_load_relaxed(&v->blocks[id].recipe);

		__builtin_prefetch(&v->blocks[id + AHEAD_SEQUENTIAL]);
		prefetch_recipe_lines(v, cell + AHEAD_SEQUENTIAL * kvp_recipe_cells(n), n);
	}
	return block_is(v, id, kvp_shape(w->space, n), w->parent, w->tokens, n, w->tiers, ret_hit);
}

static int by_index(struct walk *w, uint32_t n, struct kvp_hit *ret_hit)
{
	const struct kvp_catalog_view *v = w->v;
	kvp_block_id cand[CANDIDATES];
	uint32_t i, count;

	if (!w->ahead.n || w->number - w->ahead.first >= w->ahead.n)
		fill_ahead(v, &w->ahead, w->number, w->parent_key, w->tokens, w->left,
			w->block_tokens);
	i = w->number - w->ahead.first;
	prefetch_descriptor(v, &w->ahead, i + AHEAD_DESCRIPTOR);
	prefetch_recipe(v, &w->ahead, i + AHEAD_RECIPE, w->block_tokens);
	count = kvp_index_candidates(
		v->index, v->index_buckets, w->ahead.key[i].lo, cand, CANDIDATES);
	for (uint32_t c = 0; c < count; c++)
		if (block_is(v, cand[c], kvp_shape(w->space, n), w->parent, w->tokens, n, w->tiers,
			    ret_hit))
			return 1;
	return 0;
}

/* Stands at a block, if it is still the one that was found: its key is the same wherever it moved. */
static int stand_at(struct walk *w, const struct kvp_hit *hit)
{
	const struct kvp_block *b = &w->v->blocks[hit->id];
	struct kvp_key key;

	key.lo = kvp_load_acquire(&b->key_lo);
	key.hi = kvp_load_acquire(&b->key_hi);
	if (kvp_word_birth(kvp_load_relaxed(&b->word)) != kvp_word_birth(hit->word))
		return 0;
	w->parent = hit->id;
	w->parent_key = key;
	return 1;
}

/* One block further, if the next n tokens are one. */
static int advance(struct walk *w, uint32_t n, struct kvp_hit *ret_hit)
{
	if (!by_sequence(w, n, ret_hit) && !by_index(w, n, ret_hit))
		return 0;
	if (!stand_at(w, ret_hit))
		return 0;
	w->tokens += n;
	w->left -= n;
	w->number++;
	return 1;
}

/*
 * How many leading tokens of a child of the walk's parent agree with what is left. salt: that of the
 * chain, where the walk stands at its beginning, or NULL. Or CHANGED.
 */
static int agreeing(
	const struct walk *w, kvp_block_id id, const kvp_token *salt, struct kvp_hit *ret_hit)
{
	const struct kvp_catalog_view *v = w->v;
	const struct kvp_block *b;
	uint32_t shape, cell, n, same;

	if (id >= v->max_blocks)
		return 0;
	b = &v->blocks[id];
	ret_hit->word = kvp_load_acquire(&b->word);
	if (!kvp_word_lives(ret_hit->word))
		return 0;
	shape = kvp_load_acquire(&b->shape);
	cell = kvp_load_acquire(&b->recipe);
	n = kvp_shape_tokens(shape);
	if (kvp_shape_space(shape) != w->space || kvp_load_acquire(&b->parent) != w->parent ||
		n > KVP_BLOCK_TOKENS_MAX || !recipe_fits(v, cell, kvp_shape_words(shape)) ||
		!(shape & KVP_SHAPE_SALTED) != !salt || (salt && !same_salt(v, cell, shape, salt)))
		return 0;
	ret_hit->tokens = (uint16_t)n;
	if (n > w->left)
		n = (uint32_t)w->left;
	for (same = 0; same < n; same++) {
		uint64_t pair = kvp_load_acquire(
			&v->recipes[(uint64_t)cell * (KVP_RECIPE_CELL / 2) + same / 2]);

		if ((kvp_token)(pair >> (same % 2 * 32)) != w->tokens[same])
			break;
	}
	read_place(b, w->tiers, ret_hit);
	ret_hit->id = id;
	if (kvp_load_relaxed(&b->word) != ret_hit->word)
		return CHANGED;
	return ret_hit->where ? (int)same : 0;
}

static void find_tail(const struct walk *w, const kvp_token *salt, struct kvp_found *found)
{
	/* Tag collisions may crowd a family; twice its size leaves room for them. */
	kvp_block_id cand[2 * KVP_TAIL_CANDIDATES];
	uint64_t hash = kvp_tail_hash(w->parent_key, w->tokens);
	uint32_t n = kvp_index_candidates(
		w->v->tail, w->v->tail_buckets, hash, cand, 2 * KVP_TAIL_CANDIDATES);

	for (uint32_t i = 0; i < n; i++) {
		struct kvp_hit hit;
		int same = agreeing(w, cand[i], salt, &hit);

		for (uint32_t looks = 1; same == CHANGED && looks < LOOKS; looks++)
			same = agreeing(w, cand[i], salt, &hit);
		if (same >= (int)KVP_TAIL_PREFIX && same > (int)found->tail_tokens) {
			found->tail_tokens = (uint32_t)same;
			found->tail = hit;
		}
	}
}

/*
 * Not by an initialiser: that would write zeros over all keys ahead, each of which is written before
 * it is read, and that is a tenth of the time in which one block is found.
 */
static void begin(struct walk *w, const struct kvp_catalog_view *v, uint32_t space,
	const kvp_token *tokens, size_t n, uint32_t tiers)
{
	w->v = v;
	w->tokens = tokens;
	w->left = n;
	w->space = space;
	w->tiers = tiers;
	w->block_tokens = w->number = 0;
	w->parent = KVP_BLOCK_NONE;
	w->parent_key = (struct kvp_key){ 0 };
	w->ahead.first = w->ahead.n = 0;
	w->ahead.want = 1;
}

void kvp_find_after(const struct kvp_catalog_view *v, uint32_t space, const struct kvp_hit *after,
	const kvp_token *tokens, uint32_t n, uint32_t flags, uint32_t tiers, struct kvp_hit *hits,
	uint32_t max_hits, struct kvp_found *ret_found)
{
	uint32_t n_hits = 0;
	struct walk w;

	begin(&w, v, space, tokens, n, tiers);
	ret_found->tail_tokens = 0;
	if (space < KVP_MAX_SPACES && kvp_load_acquire(&v->spaces[space].state) == KVP_SPACE_LIVE) {
		const struct kvp_shm_space *s = &v->spaces[space];

		w.parent_key = (struct kvp_key){ .lo = s->root_lo, .hi = s->root_hi };
		w.block_tokens = s->canon.block_tokens;
	}
	if (w.block_tokens && (!after || stand_at(&w, after))) {
		while (w.left >= w.block_tokens && n_hits < max_hits &&
			advance(&w, w.block_tokens, &hits[n_hits]))
			n_hits++;
		if (w.left && w.left < w.block_tokens && n_hits < max_hits &&
			advance(&w, (uint32_t)w.left, &hits[n_hits]))
			n_hits++;
		if (w.left >= KVP_TAIL_PREFIX && v->tail_buckets && !(flags & KVP_FIND_NO_TAIL))
			find_tail(&w, NULL, ret_found);
	}
	ret_found->n_hits = n_hits;
	ret_found->n_tokens = n - (uint32_t)w.left;
	ret_found->key = w.parent_key;
	ret_found->missing = w.left > 0;
}

/* The first block of a chain under a salt, if the first n tokens are one. */
static int find_first(const struct kvp_catalog_view *v, uint32_t space, const kvp_token *salt,
	struct kvp_key root, const kvp_token *tokens, uint32_t n, uint32_t tiers,
	struct kvp_hit *ret_hit)
{
	struct kvp_key key = kvp_chain_key(root, tokens, n);
	kvp_block_id cand[CANDIDATES];
	uint32_t count = kvp_index_candidates(v->index, v->index_buckets, key.lo, cand, CANDIDATES);

	for (uint32_t c = 0; c < count; c++)
		if (kvp_block_salted_is(v, cand[c], space, salt, tokens, n, tiers, ret_hit))
			return 1;
	return 0;
}

void kvp_find_salted(const struct kvp_catalog_view *v, uint32_t space,
	const kvp_token salt[KVP_SALT_TOKENS], const kvp_token *tokens, uint32_t n, uint32_t flags,
	uint32_t tiers, struct kvp_hit *hits, uint32_t max_hits, struct kvp_found *ret_found)
{
	uint32_t first = n;
	struct walk w;

	begin(&w, v, space, tokens, n, tiers);
	*ret_found = (struct kvp_found){ .missing = n > 0 };
	if (space >= KVP_MAX_SPACES || kvp_load_acquire(&v->spaces[space].state) != KVP_SPACE_LIVE)
		return;
	w.parent_key = kvp_salted_root(
		(struct kvp_key){ v->spaces[space].root_lo, v->spaces[space].root_hi }, salt);
	w.block_tokens = v->spaces[space].canon.block_tokens;
	if (n > w.block_tokens)
		first = w.block_tokens;
	if (first && max_hits &&
		find_first(v, space, salt, w.parent_key, tokens, first, tiers, hits)) {
		kvp_find_after(v, space, hits, tokens + first, n - first, flags, tiers, hits + 1,
			max_hits - 1, ret_found);
		ret_found->n_hits++;
		ret_found->n_tokens += first;
		return;
	}
	ret_found->key = w.parent_key;
	if (n >= KVP_TAIL_PREFIX && v->tail_buckets && !(flags & KVP_FIND_NO_TAIL))
		find_tail(&w, salt, ret_found);
}

void kvp_find(const struct kvp_catalog_view *v, uint32_t space, const kvp_token *tokens, uint32_t n,
	uint32_t flags, uint32_t tiers, struct kvp_hit *hits, uint32_t max_hits,
	struct kvp_found *ret_found)
{
	kvp_find_after(v, space, NULL, tokens, n, flags, tiers, hits, max_hits, ret_found);
}

int kvp_find_chain(const struct kvp_catalog_view *v, uint32_t space, kvp_block_id tip,
	uint32_t tiers, struct kvp_hit *hits, uint32_t n)
{
	kvp_block_id id = tip;

	for (uint32_t i = n; i; i--) {
		struct kvp_hit *hit = &hits[i - 1];
		const struct kvp_block *b;
		uint32_t shape;

		if (id >= v->max_blocks)
			return -ESTALE;
		b = &v->blocks[id];
		hit->word = kvp_load_acquire(&b->word);
		shape = kvp_load_acquire(&b->shape);
		if (!kvp_word_lives(hit->word) || kvp_shape_space(shape) != space)
			return -ESTALE;
		hit->id = id;
		hit->tokens = (uint16_t)kvp_shape_tokens(shape);
		read_place(b, tiers, hit);
		id = kvp_load_acquire(&b->parent);
		/* All loads above are acquire loads, so none of them happens after this one. */
		if (!hit->where || kvp_load_relaxed(&b->word) != hit->word)
			return -ESTALE;
	}
	return id == KVP_BLOCK_NONE ? 0 : -ESTALE;
}

uint32_t kvp_revalidate(const struct kvp_catalog_view *v, const struct kvp_hit *hits, uint32_t n)
{
	/*
	 * Sequentially consistent, after the exchange that filled the lease's slot: pairs with
	 * kvp_block_mark() and kvp_lease_fence(), see kvp_lease.h.
	 */
	for (uint32_t i = 0; i < n; i++)
		if (kvp_load_seq(&v->blocks[hits[i].id].word) != hits[i].word)
			return i;
	return n;
}

int kvp_hit_renew(const struct kvp_catalog_view *v, uint32_t tiers, struct kvp_hit *hit)
{
	const struct kvp_block *b = &v->blocks[hit->id];
	struct kvp_hit now = *hit;

	for (uint32_t looks = 0; looks < LOOKS; looks++) {
		now.word = kvp_load_acquire(&b->word);
		if (kvp_word_birth(now.word) != kvp_word_birth(hit->word) ||
			!kvp_word_lives(now.word))
			return -ESTALE;
		read_place(b, tiers, &now);
		/* All loads above are acquire loads, so none of them happens after this one. */
		if (kvp_load_relaxed(&b->word) != now.word)
			continue;
		if (!now.where)
			return -ESTALE;
		*hit = now;
		return 0;
	}
	return -ESTALE;
}

/* After acquire loads: was all that they loaded, but where the payload lies, that of one block? */
static int same_birth(const struct kvp_block *b, uint64_t word)
{
	return kvp_word_birth(kvp_load_relaxed(&b->word)) == kvp_word_birth(word);
}

int kvp_recipe_read(const struct kvp_catalog_view *v, kvp_block_id id, uint64_t word,
	kvp_token *out, uint32_t max)
{
	const struct kvp_block *b;
	uint32_t n, cell;

	if (id >= v->max_blocks)
		return -ESTALE;
	b = &v->blocks[id];
	n = kvp_shape_tokens(kvp_load_acquire(&b->shape));
	cell = kvp_load_acquire(&b->recipe);
	if (n > KVP_BLOCK_TOKENS_MAX || !recipe_fits(v, cell, n))
		return -ESTALE;
	if (n > max)
		n = max;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t pair = kvp_load_acquire(
			&v->recipes[(uint64_t)cell * (KVP_RECIPE_CELL / 2) + i / 2]);

		out[i] = (kvp_token)(pair >> (i % 2 * 32));
	}
	return same_birth(b, word) ? (int)n : -ESTALE;
}

int kvp_recipe_salt(const struct kvp_catalog_view *v, kvp_block_id id, uint64_t word,
	kvp_token out[KVP_SALT_TOKENS])
{
	KVP_ATOMIC(uint64_t) *have;
	kvp_token salt[KVP_SALT_TOKENS];
	const struct kvp_block *b;
	uint32_t shape, n, cell;

	if (id >= v->max_blocks)
		return -ESTALE;
	b = &v->blocks[id];
	shape = kvp_load_acquire(&b->shape);
	cell = kvp_load_acquire(&b->recipe);
	n = kvp_shape_tokens(shape);
	if (n > KVP_BLOCK_TOKENS_MAX || !recipe_fits(v, cell, kvp_shape_words(shape)))
		return -ESTALE;
	have = salt_at(v, cell, n);
	for (uint32_t i = 0; shape & KVP_SHAPE_SALTED && i < KVP_SALT_TOKENS; i++)
		salt[i] = (kvp_token)(kvp_load_acquire(&have[i / 2]) >> (i % 2 * 32));
	if (!same_birth(b, word))
		return -ESTALE;
	if (!(shape & KVP_SHAPE_SALTED))
		return 0;
	memcpy(out, salt, sizeof(salt));
	return 1;
}
