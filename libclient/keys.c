/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that are named by the caller's keys. In the catalog such a block is the first of a chain of
 * its own, and its key's words stand where token ids do; so a hit is proven by the whole key, and
 * everything else is as for other blocks. What is found is leased block by block, because no block
 * protects another one.
 */
#include "libclient/match.h"
#include "libclient/ring.h"

#include <string.h>

#define KEY_WORDS (KVP_KEY_BYTES_MAX / sizeof(kvp_token))
#define KEY_TRIES 4u /* before a block that keeps moving is a miss */
#define NOWHERE   kvp_where(KVP_MAX_EXTENTS, 0, 0)

/* The caller's keys need not be aligned. */
static void key_take(const struct kvp_space *space, const void *keys, size_t i, kvp_token *words)
{
	uint32_t bytes = space->canon.key_bytes;

	memcpy(words, (const uint8_t *)keys + i * bytes, bytes);
}

static int find_key(const struct kvp_prefix *m, const struct space_bind *b, const kvp_token *words,
	struct kvp_hit *hit)
{
	struct kvp_found found;

	kvp_find(&m->att->view, b->index, words, m->space->geo.block_tokens, KVP_FIND_NO_TAIL,
		m->tiers, hit, 1, &found);
	return found.n_hits == 1;
}

/* 1: found and leased. A block without a parent is proven by its own word, which the lease compares. */
static int lease_key(struct kvp_prefix *m, const struct space_bind *b, const kvp_token *words,
	struct kvp_hit *hit, struct kvp_lease *lease, uint32_t *unleased)
{
	for (uint32_t try = 0; try < KEY_TRIES && find_key(m, b, words, hit); try++) {
		int r = kvp_lease_take(m->att->page, m->shard, &m->att->view.blocks[hit->id],
			hit->id, hit->word, lease);

		if (r == -ESTALE)
			continue;
		KVP_FAULT("key-leased");
		if (r == 0 && hit_readable(m, hit))
			return 1;
		if (r == 0)
			kvp_lease_drop(lease);
		*unleased += r < 0;
		break;
	}
	hit->where = NOWHERE;
	return 0;
}

/* Uses that the thread's log has room for; others of its shard may take some. */
static uint32_t touch_room(const struct kvp_prefix *m)
{
	const struct kvp_shard *s = &m->att->page->shard[m->shard];
	uint32_t used = kvp_load_relaxed(&s->touch_tail) - kvp_load_acquire(&s->touch_head);

	return used < KVP_TOUCHES ? KVP_TOUCHES - used : 0;
}

/*
 * Deepest first: of keys that name a prefix block by block, the first ones then go last. Where there is
 * no room for all, it is the deepest that are left out.
 */
void keys_touch(struct kvp_prefix *m)
{
	uint32_t room = touch_room(m), end = 0;

	for (; end < m->n_blocks && room; end++)
		room -= m->leases[end].slot != NULL;
	for (uint32_t i = end; i; i--)
		if (m->leases[i - 1].slot)
			kvp_touch_push(m->att->page, m->shard, m->hits[i - 1].id, 1);
}

void keys_drop(struct kvp_prefix *m, uint64_t until)
{
	for (uint32_t i = 0; i < m->n_blocks; i++) {
		if (until)
			kvp_lease_drop_at(m->att->page, &m->leases[i], until);
		kvp_lease_drop(&m->leases[i]);
	}
}

static void count(struct kvp_prefix *m, const struct space_bind *b, size_t n, uint32_t found,
	uint32_t unleased)
{
	uint64_t words = m->space->geo.block_tokens;
	struct kvp_shm_use *use;
	struct kvp_shard *s;

	if (!b) {
		kvp_add_relaxed(&m->client->blind_lookups, 1);
		kvp_add_relaxed(&m->client->blind_tokens, n * words);
		return;
	}
	s = &m->att->page->shard[m->shard];
	use = &s->use[b->index];
	kvp_add_relaxed(found == n ? &s->hits : found ? &s->partial : &s->misses, 1);
	kvp_add_relaxed(&s->unleased, unleased > 0);
	kvp_add_relaxed(&use->asked, n * words);
	kvp_add_relaxed(&use->matched, found * words);
}

static void bitmap_set(uint64_t *bits, size_t i)
{
	if (bits)
		bits[i / 64] |= UINT64_C(1) << i % 64;
}

/* Looks without keeping anything in place. */
static uint32_t look(struct kvp_prefix *m, const struct space_bind *b, const void *keys, size_t n,
	uint32_t flags, uint64_t *bits)
{
	kvp_token words[KEY_WORDS];
	struct kvp_hit hit;
	uint32_t found = 0;

	for (size_t i = 0; b && i < n; i++) {
		key_take(m->space, keys, i, words);
		if (find_key(m, b, words, &hit)) {
			bitmap_set(bits, i);
			found++;
		} else if (flags & KVP_MATCH_LEADING) {
			break;
		}
	}
	return found;
}

static int take(struct kvp_prefix *m, const struct space_bind *b, const void *keys, size_t n,
	uint32_t flags, uint64_t *bits, uint32_t *ret_unleased)
{
	kvp_token words[KEY_WORDS];
	uint32_t found = 0, i = 0;

	m->flags = KVP_MATCHED_LEASED;
	if (!b)
		return 0;
	if (array_grow((void **)&m->hits, &m->cap, n, sizeof(m->hits[0])) < 0 ||
		array_grow((void **)&m->leases, &m->leases_cap, n, sizeof(m->leases[0])) < 0)
		return -ENOMEM;
	m->flags |= PREFIX_KEYS;
	for (; i < n; i++) {
		m->leases[i].slot = NULL;
		key_take(m->space, keys, i, words);
		if (lease_key(m, b, words, &m->hits[i], &m->leases[i], ret_unleased)) {
			bitmap_set(bits, i);
			found++;
		} else if (flags & KVP_MATCH_LEADING) {
			break;
		}
	}
	m->n_blocks = i;
	return (int)found;
}

#define KEYS_FLAGS (KVP_MATCH_NO_TOUCH | KVP_MATCH_LEADING)

int kvp_match_keys(struct kvp_space *space, const void *keys, size_t n, uint32_t flags,
	uint64_t *ret_found, struct kvp_prefix **ret_prefix)
{
	const struct space_bind *b;
	uint32_t unleased = 0;
	struct kvp_prefix *m;
	int found;

	if (!space || !space->canon.key_bytes || (n && !keys) || n > KVP_KEYS_MAX ||
		flags & ~KEYS_FLAGS)
		return -EINVAL;
	if (!client_mine(space->client))
		return -ECHILD;
	m = prefix_take(space);
	if (!m)
		return -ENOMEM;
	if (ret_found)
		memset(ret_found, 0, (n + 63) / 64 * sizeof(*ret_found));
	b = m->att ? bind_of(m->att, space) : NULL;
	found = ret_prefix ? take(m, b, keys, n, flags, ret_found, &unleased)
			   : (int)look(m, b, keys, n, flags, ret_found);
	if (found >= 0 && !(flags & KVP_MATCH_NO_TOUCH)) {
		count(m, b, n, (uint32_t)found, unleased);
		if (m->flags & PREFIX_KEYS)
			keys_touch(m);
	}
	if (m->att)
		prefix_unpin(m);
	if (found < 0 || !ret_prefix)
		prefix_drop(m);
	else
		*ret_prefix = m;
	return found;
}

/* ---- storing --------------------------------------------------------------------------------- */

int kvp_commit_keys(struct kvp_grant *const *grants, uint32_t n, const void *keys, uint32_t flags)
{
	return kvp_commit_keys_under(grants, n, keys, NULL, flags);
}

/* The digest of a parent's key, by which the ledger finds it; none: NO_KEY. */
static struct kvp_key digest_of(const struct kvp_grant *g, const void *key)
{
	kvp_token words[KEY_WORDS];

	if (!key)
		return NO_KEY;
	key_take(g->space, key, 0, words);
	return kvp_chain_key(
		g->att->binds[g->space->number].root, words, g->space->geo.block_tokens);
}

int kvp_commit_keys_under(struct kvp_grant *const *grants, uint32_t n, const void *keys,
	const void *const *parents, uint32_t flags)
{
	kvp_token words[KEY_WORDS];
	struct kvp_space *space;
	struct kvp_client *c;
	struct kvp_ref none;
	int r, done = 0;

	if (!keys || !flags_known(flags, KVP_COMMIT_RELEASE))
		return -EINVAL;
	r = run_client(grants, n, &c);
	if (r < 0)
		return r;
	pthread_mutex_lock(&c->ring_lock);
	r = run_check(grants, n);
	space = grants[0]->space;
	if (r == 0 && !space->canon.key_bytes)
		r = -EINVAL;
	while (r == 0 && (uint32_t)done < n) {
		key_take(space, keys, (size_t)done, words);
		r = grant_commit(grants[done], kvp_ref_root(), words, space->geo.block_tokens,
			flags, 0, deadline_of(c, KVP_DEFAULT_TIMEOUT), 0,
			digest_of(grants[done], parents ? parents[done] : NULL), &none);
		done += r == 0;
	}
	pthread_mutex_unlock(&c->ring_lock);
	return done ? done : r;
}

/*
 * Puts blocks [i, n), of which `missing` were not there: that many slots are asked for at once, so that the daemon makes
 * memory for what comes while the first are copied, and that many bytes decide how they are copied.
 */
struct batch {
	struct kvp_space *space;
	const uint8_t *keys;
	const void *const *src;
	uint64_t until, missing, bytes;
	uint32_t retry_ms;
};

/* One block; 1: it is on its way. */
static int put_key(struct batch *b, size_t i)
{
	uint32_t want = b->missing < AHEAD_MAX ? (uint32_t)b->missing : AHEAD_MAX;
	struct kvp_grant *g;
	int r = reserve_until(b->space, 0, want ? want : 1, b->until, &b->retry_ms, &g);

	if (r < 0)
		return r;
	b->missing -= b->missing > 0;
	payload_copy(kvp_grant_addr(g), b->src[i], b->space->geo.block_bytes, b->bytes);
	r = kvp_commit_keys(&g, 1, b->keys + i * b->space->canon.key_bytes, KVP_COMMIT_RELEASE);
	if (r < 0)
		kvp_grant_release(g);
	return r;
}

int64_t kvp_put_keys(struct kvp_space *space, const void *keys, size_t n, const void *const *src,
	uint32_t timeout_ms, uint32_t *ret_retry_ms)
{
	struct batch b = { .space = space, .keys = keys, .src = src };
	size_t i = 0;
	int r;

	if (!space || !space->canon.key_bytes || (n && (!keys || !src)) || n > KVP_KEYS_MAX)
		return -EINVAL;
	for (size_t k = 0; k < n; k++)
		if (!src[k])
			return -EINVAL;
	if (!client_mine(space->client))
		return -ECHILD;
	b.until = deadline_of(space->client, timeout_ms);
	r = kvp_match_keys(space, keys, n, KVP_MATCH_NO_TOUCH, NULL, NULL);
	if (r < 0)
		return r;
	b.missing = n - (size_t)r;
	b.bytes = b.missing * space->geo.block_bytes;
	for (; i < n; i++) {
		r = kvp_match_keys(space, b.keys + i * space->canon.key_bytes, 1,
			KVP_MATCH_NO_TOUCH, NULL, NULL);
		if (r == 0)
			r = put_key(&b, i);
		if (r < 0)
			break;
	}
	if (r == -EAGAIN && ret_retry_ms)
		*ret_retry_ms = b.retry_ms;
	return i ? (int64_t)i : r < 0 ? r : 0;
}
