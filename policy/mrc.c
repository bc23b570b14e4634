/* SPDX-License-Identifier: Apache-2.0 */
/* Miss ratios of other sizes: exact near the front, sampled by hash behind it. */
#include "policy/kvp_mrc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#define NONE        UINT32_MAX
#define BUCKETS_MAX (UINT32_C(1) << 20)

/*
 * A followed key sits in a hash table and in a treap ordered by its last use; the treap's subtree
 * sizes give the number of keys used since. Heap priority of the treap is the hash, largest on
 * top: so the key to drop when the threshold falls is the root.
 */
struct sample {
	uint64_t hash;
	uint64_t used; /* reference number of the last use */
	uint32_t left, right;
	uint32_t size;
	uint32_t chain; /* of its hash bucket */
};

struct keys {
	struct sample *sample;
	uint32_t *table;
	uint32_t mask;
	uint32_t root;
	uint32_t free; /* linked by chain */
	uint64_t clock;
};

struct kvp_mrc {
	struct kvp_mrc_params params;
	struct keys front;    /* the last KVP_MRC_FRONT */
	struct keys followed; /* the sample, whether in front or not */
	uint64_t threshold;
	double near[KVP_MRC_FRONT]; /* hits in front, by the keys used since */
	double *far; /* [buckets] of the sample beyond the front, by 1 / rate when counted */
	double seen;
	double far_seen;    /* references that the front did not hold */
	double far_sampled; /* of these followed, by 1 / rate */
};

static uint32_t table_size(uint32_t n)
{
	uint32_t size = 64;

	while (size < n)
		size *= 2;
	return size;
}

static int keys_init(struct keys *k, uint32_t n)
{
	uint32_t size = table_size(n);

	k->mask = size - 1;
	k->root = NONE;
	k->sample = calloc(n, sizeof(*k->sample));
	k->table = malloc(size * sizeof(*k->table));
	if (!k->sample || !k->table)
		return -ENOMEM;
	for (uint32_t i = 0; i < size; i++)
		k->table[i] = NONE;
	for (uint32_t i = 0; i < n; i++)
		k->sample[i].chain = i + 1 < n ? i + 1 : NONE;
	return 0;
}

int kvp_mrc_new(const struct kvp_mrc_params *params, struct kvp_mrc **ret_mrc)
{
	if (!params || !ret_mrc || params->size != sizeof(*params) || params->samples < 64 ||
		params->samples > KVP_MRC_MAX_SAMPLES || !params->buckets ||
		params->buckets > BUCKETS_MAX || !params->bucket_size)
		return -EINVAL;
	struct kvp_mrc *m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->params = *params;
	m->threshold = UINT64_MAX;
	m->far = calloc(params->buckets, sizeof(*m->far));
	if (keys_init(&m->front, KVP_MRC_FRONT) < 0 ||
		keys_init(&m->followed, params->samples) < 0 || !m->far) {
		kvp_mrc_free(m);
		return -ENOMEM;
	}
	*ret_mrc = m;
	return 0;
}

struct kvp_mrc *kvp_mrc_free(struct kvp_mrc *m)
{
	if (!m)
		return NULL;
	free(m->front.sample);
	free(m->front.table);
	free(m->followed.sample);
	free(m->followed.table);
	free(m->far);
	free(m);
	return NULL;
}

static uint64_t hash_key(const struct kvp_mrc *m, struct kvp_key key)
{
	uint64_t z = key.lo ^ (key.hi << 29 | key.hi >> 35) ^ m->params.seed;

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* ---- treap by last use; NONE has size 0 ---- */

static uint32_t size_of(const struct keys *k, uint32_t i)
{
	return i == NONE ? 0 : k->sample[i].size;
}

static void resize(struct keys *k, uint32_t i)
{
	struct sample *s = &k->sample[i];
	s->size = 1 + size_of(k, s->left) + size_of(k, s->right);
}

/* All of `a` were used before all of `b`. */
static uint32_t merge(struct keys *k, uint32_t a, uint32_t b)
{
	if (a == NONE || b == NONE)
		return a == NONE ? b : a;
	if (k->sample[a].hash >= k->sample[b].hash) {
		k->sample[a].right = merge(k, k->sample[a].right, b);
		resize(k, a);
		return a;
	}
	k->sample[b].left = merge(k, a, k->sample[b].left);
	resize(k, b);
	return b;
}

/* How many were used after it. */
static uint32_t used_after(const struct keys *k, uint32_t i)
{
	uint32_t at = k->root, later = 0;

	while (at != i) {
		const struct sample *s = &k->sample[at];
		if (k->sample[i].used < s->used) {
			later += 1 + size_of(k, s->right);
			at = s->left;
		} else {
			at = s->right;
		}
	}
	return later + size_of(k, k->sample[i].right);
}

static void take_out(struct keys *k, uint32_t i)
{
	uint64_t used = k->sample[i].used;
	uint32_t *link = &k->root;

	while (*link != i) {
		struct sample *s = &k->sample[*link];
		s->size--;
		link = used < s->used ? &s->left : &s->right;
	}
	*link = merge(k, k->sample[i].left, k->sample[i].right);
}

/* The most recent of all. */
static void put_last(struct keys *k, uint32_t i)
{
	struct sample *s = &k->sample[i];

	s->used = ++k->clock;
	s->left = s->right = NONE;
	s->size = 1;
	k->root = merge(k, k->root, i);
}

static uint32_t *bucket_of(struct keys *k, uint64_t hash)
{
	return &k->table[hash & k->mask];
}

static uint32_t find(struct keys *k, uint64_t hash)
{
	uint32_t i = *bucket_of(k, hash);

	while (i != NONE && k->sample[i].hash != hash)
		i = k->sample[i].chain;
	return i;
}

/* Frees a key that is out of the treap already. */
static void drop(struct keys *k, uint32_t i)
{
	uint32_t *link = bucket_of(k, k->sample[i].hash);

	while (*link != i)
		link = &k->sample[*link].chain;
	*link = k->sample[i].chain;
	k->sample[i].chain = k->free;
	k->free = i;
}

static void drop_largest(struct keys *k)
{
	uint32_t i = k->root;

	k->root = merge(k, k->sample[i].left, k->sample[i].right);
	drop(k, i);
}

static void drop_oldest(struct keys *k)
{
	uint32_t i = k->root;

	while (k->sample[i].left != NONE)
		i = k->sample[i].left;
	take_out(k, i);
	drop(k, i);
}

/* There must be a free one. */
static void add(struct keys *k, uint64_t hash)
{
	uint32_t i = k->free, *bucket = bucket_of(k, hash);

	k->free = k->sample[i].chain;
	k->sample[i].hash = hash;
	k->sample[i].chain = *bucket;
	*bucket = i;
	put_last(k, i);
}

/* ---- references ---- */

double kvp_mrc_rate(const struct kvp_mrc *m)
{
	return ((double)m->threshold + 1) * 0x1p-64;
}

/* Counts how many keys were used since this one was. */
static void look_up(struct kvp_mrc *m, uint64_t hash)
{
	uint32_t i = find(&m->front, hash);

	m->seen += 1;
	if (i != NONE) {
		m->near[used_after(&m->front, i)] += 1;
		return;
	}
	m->far_seen += 1;
	if (hash >= m->threshold)
		return;
	double weight = 1 / kvp_mrc_rate(m);
	m->far_sampled += weight;
	i = find(&m->followed, hash);
	if (i == NONE)
		return;
	double since = used_after(&m->followed, i) * weight;
	if (since < KVP_MRC_FRONT)
		since = KVP_MRC_FRONT; /* or it would be in front */
	double bucket = since / (double)m->params.bucket_size;
	if (bucket < m->params.buckets)
		m->far[(uint32_t)bucket] += weight;
}

static void use_in_front(struct keys *k, uint64_t hash)
{
	uint32_t i = find(k, hash);

	if (i != NONE) {
		take_out(k, i);
		put_last(k, i);
		return;
	}
	if (k->free == NONE)
		drop_oldest(k);
	add(k, hash);
}

static void use_followed(struct kvp_mrc *m, uint64_t hash)
{
	struct keys *k = &m->followed;
	uint32_t i = hash < m->threshold ? find(k, hash) : NONE;

	if (i != NONE) {
		take_out(k, i);
		put_last(k, i);
		return;
	}
	if (hash < m->threshold && k->free == NONE) {
		m->threshold = k->sample[k->root].hash;
		drop_largest(k);
	}
	if (hash < m->threshold)
		add(k, hash);
}

void kvp_mrc_request(struct kvp_mrc *m, const struct kvp_key *keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		look_up(m, hash_key(m, keys[i]));
	while (n-- > 0) {
		uint64_t hash = hash_key(m, keys[n]);
		use_in_front(&m->front, hash);
		use_followed(m, hash);
	}
}

/* Which share of a bucket's hits a cache of that many blocks has; none lie within the front. */
static double bucket_share(const struct kvp_mrc *m, uint32_t i, double blocks)
{
	double size = (double)m->params.bucket_size, from = i * size, to = from + size;

	from = from > KVP_MRC_FRONT ? from : KVP_MRC_FRONT;
	if (blocks >= to)
		return 1;
	return blocks > from ? (blocks - from) / (to - from) : 0;
}

double kvp_mrc_hit_ratio(const struct kvp_mrc *m, uint64_t blocks)
{
	double b = (double)blocks / (double)m->params.bucket_size, near = 0, far = 0;

	if (m->seen <= 0)
		return 0;
	for (uint32_t i = 0; i < KVP_MRC_FRONT && i < blocks; i++)
		near += m->near[i];
	for (uint32_t i = 0; i < m->params.buckets && i < b; i++)
		far += m->far[i] * bucket_share(m, i, (double)blocks);
	if (m->far_sampled > 0)
		near += far * m->far_seen / m->far_sampled;
	return near < m->seen ? near / m->seen : 1;
}

void kvp_mrc_decay(struct kvp_mrc *m)
{
	for (uint32_t i = 0; i < KVP_MRC_FRONT; i++)
		m->near[i] /= 2;
	for (uint32_t i = 0; i < m->params.buckets; i++)
		m->far[i] /= 2;
	m->seen /= 2;
	m->far_seen /= 2;
	m->far_sampled /= 2;
}

static uint64_t keys_bytes(uint32_t n)
{
	return n * sizeof(struct sample) + table_size(n) * sizeof(uint32_t);
}

uint64_t kvp_mrc_bytes(const struct kvp_mrc_params *params)
{
	return sizeof(struct kvp_mrc) + keys_bytes(KVP_MRC_FRONT) + keys_bytes(params->samples) +
	       params->buckets * sizeof(double);
}
