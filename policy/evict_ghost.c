/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of evicted blocks: two queues by age over one chained hash table, all in fixed arrays. In
 * the table a ghost is known as its place + 1, so that calloc() makes an empty one, and the pages
 * of a cache that never fills stay untouched.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/evict_impl.h"

#define QUEUES 2u

struct queue {
	struct index_link ends;
	uint32_t len;
	uint64_t weight;
};

struct evict_ghosts {
	uint64_t seed;
	uint32_t max;
	uint32_t free;  /* linked by bucket_next; 0: none */
	uint32_t fresh; /* from here on never used */
	struct queue queue[QUEUES];
	struct evict_ghost *ghost;
	uint32_t *bucket; /* place + 1; 0: empty */
};

static struct index_links links(const struct evict_ghosts *g)
{
	return INDEX_LINKS(g->ghost, link);
}

struct evict_ghosts *evict_ghosts_new(uint32_t n, uint64_t seed)
{
	struct evict_ghosts *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->seed = seed;
	g->max = n;
	g->ghost = calloc(n, sizeof(*g->ghost));
	g->bucket = calloc(n, sizeof(*g->bucket));
	if (!g->ghost || !g->bucket) {
		evict_ghosts_free(g);
		return NULL;
	}
	for (unsigned q = 0; q < QUEUES; q++)
		index_list_init(&g->queue[q].ends);
	return g;
}

void evict_ghosts_clear(struct evict_ghosts *g)
{
	g->free = 0;
	g->fresh = 0;
	for (unsigned q = 0; q < QUEUES; q++)
		g->queue[q] = (struct queue){ .ends = INDEX_LIST_EMPTY };
	memset(g->bucket, 0, g->max * sizeof(*g->bucket));
}

void evict_ghosts_free(struct evict_ghosts *g)
{
	if (!g)
		return;
	free(g->ghost);
	free(g->bucket);
	free(g);
}

int evict_ghosts_init(struct kvp_evict *e, uint64_t fallback)
{
	uint64_t most = (uint64_t)e->params.max_ids * 2 + 20000;
	uint64_t n = e->params.ghosts ? e->params.ghosts : fallback;

	if (e->ghosts)
		return 0;
	if (n > most)
		n = most;
	if (n > KVP_EVICT_MAX_IDS)
		n = KVP_EVICT_MAX_IDS;
	e->ghosts = evict_ghosts_new(n ? (uint32_t)n : 1, e->params.seed);
	return e->ghosts ? 0 : -ENOMEM;
}

static uint32_t *bucket_of(const struct evict_ghosts *g, uint64_t key)
{
	/* keys are digests in the daemon, but small numbers in a simulation */
	uint64_t h = (key ^ g->seed) * UINT64_C(0x9e3779b97f4a7c15);
	/* as many buckets as keys, so that a search meets one key on average */
	return &g->bucket[((h ^ h >> 32) & UINT32_MAX) * g->max >> 32];
}

static uint64_t key_of(const struct evict_ghost *x)
{
	return (uint64_t)x->key[1] << 32 | x->key[0];
}

void evict_ghost_prefetch(const struct evict_ghosts *g, uint64_t key)
{
	__builtin_prefetch(bucket_of(g, key), 1);
}

uint32_t evict_ghost_find(const struct evict_ghosts *g, uint64_t key)
{
	uint32_t next = *bucket_of(g, key);

	while (next && key_of(&g->ghost[next - 1]) != key)
		next = g->ghost[next - 1].bucket_next;
	return next - 1; /* EVICT_GHOST_NONE at the end */
}

/*
 * The younger neighbours are most likely dropped next, in their order. To find one takes its bucket
 * and the ghosts chained there; so ask for the bucket six drops ahead, and for the first ghost in
 * it three drops ahead.
 */
static void fetch_ahead(const struct evict_ghosts *g, uint32_t i)
{
	for (unsigned ahead = 1; i != EVICT_GHOST_NONE; ahead++, i = g->ghost[i].link.young) {
		if (ahead == 3) {
			uint32_t first = *bucket_of(g, key_of(&g->ghost[i]));

			if (first)
				__builtin_prefetch(&g->ghost[first - 1]);
		} else if (ahead == 6) {
			evict_ghost_prefetch(g, key_of(&g->ghost[i]));
			break;
		}
	}
}

struct evict_ghost *evict_ghost_at(struct evict_ghosts *g, uint32_t i)
{
	return i < g->fresh && g->ghost[i].queue != EVICT_GHOST_FREE ? &g->ghost[i] : NULL;
}

void evict_ghost_drop(struct evict_ghosts *g, uint32_t i)
{
	struct evict_ghost *x = &g->ghost[i];
	struct queue *q = &g->queue[x->queue];
	uint32_t *link = bucket_of(g, key_of(x));

	fetch_ahead(g, x->link.young);
	while (*link != i + 1)
		link = &g->ghost[*link - 1].bucket_next;
	*link = x->bucket_next;
	index_remove(links(g), &q->ends, i);
	q->len--;
	q->weight -= x->weight;
	x->queue = EVICT_GHOST_FREE;
	x->bucket_next = g->free;
	g->free = i + 1;
}

void evict_ghost_drop_oldest(struct evict_ghosts *g, uint32_t queue)
{
	if (!index_list_empty(&g->queue[queue].ends))
		evict_ghost_drop(g, g->queue[queue].ends.old);
}

static uint32_t take_free(struct evict_ghosts *g, uint32_t queue)
{
	if (!g->free && g->fresh < g->max)
		return g->fresh++;
	if (!g->free)
		evict_ghost_drop_oldest(g, g->queue[queue].len ? queue : queue ^ 1);
	uint32_t i = g->free - 1;
	g->free = g->ghost[i].bucket_next;
	return i;
}

uint32_t evict_ghost_add(struct evict_ghosts *g, uint32_t queue, uint64_t key, uint32_t weight)
{
	struct queue *q = &g->queue[queue];
	uint32_t i = take_free(g, queue);
	uint32_t *bucket = bucket_of(g, key);
	g->ghost[i] = (struct evict_ghost){
		.key = { (uint32_t)key, (uint32_t)(key >> 32) },
		.bucket_next = *bucket,
		.weight = weight,
		.queue = (uint8_t)queue,
	};
	*bucket = i + 1;
	index_push_young(links(g), &q->ends, i);
	q->len++;
	q->weight += weight;
	return i;
}

uint32_t evict_ghost_victim(const struct evict_ghosts *g)
{
	if (g->free || g->fresh < g->max)
		return EVICT_GHOST_NONE;
	return g->queue[0].len ? g->queue[0].ends.old : g->queue[1].ends.old;
}

uint64_t evict_ghost_weight(const struct evict_ghosts *g, uint32_t queue)
{
	return g->queue[queue].weight;
}

uint32_t evict_ghosts_places(const struct evict_ghosts *g)
{
	return g->fresh;
}

uint32_t evict_ghosts_max(const struct evict_ghosts *g)
{
	return g->max;
}

uint64_t evict_ghosts_memory(const struct evict_ghosts *g)
{
	return (uint64_t)g->max * sizeof(*g->ghost) + (uint64_t)g->max * sizeof(*g->bucket);
}

static bool in_bucket(const struct evict_ghosts *g, uint32_t i)
{
	uint32_t next = *bucket_of(g, key_of(&g->ghost[i]));

	while (next && next - 1 != i)
		next = g->ghost[next - 1].bucket_next;
	return next != 0;
}

int evict_ghosts_check(const struct evict_ghosts *g)
{
	for (unsigned q = 0; q < QUEUES; q++) {
		uint32_t n = 0, young = EVICT_GHOST_NONE;
		uint64_t weight = 0;

		for (uint32_t i = g->queue[q].ends.young; i != EVICT_GHOST_NONE;
			i = g->ghost[i].link.old) {
			const struct evict_ghost *x = &g->ghost[i];
			if (++n > g->max || x->link.young != young || x->queue != q ||
				!in_bucket(g, i))
				return -EIO;
			weight += x->weight;
			young = i;
		}
		if (n != g->queue[q].len || weight != g->queue[q].weight ||
			young != g->queue[q].ends.old)
			return -EIO;
	}
	return 0;
}

/* ---- promises ------------------------------------------------------------------------------- */

void evict_promise(struct kvp_evict *e, struct evict_promises *p, uint32_t ghost)
{
	const struct evict_ghost *g = evict_ghost_at(e->ghosts, ghost);
	uint32_t i = p->n < EVICT_PROMISES ? p->n++ : p->next++ % EVICT_PROMISES;

	p->key[i] = key_of(g);
	p->queue[i] = g->queue;
	evict_ghost_drop(e->ghosts, ghost);
}

uint32_t evict_promise_find(const struct evict_promises *p, uint64_t key)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->key[i] == key)
			return i;
	return EVICT_GHOST_NONE;
}

bool evict_promise_keep(struct evict_promises *p, uint64_t key)
{
	uint32_t i = evict_promise_find(p, key);

	if (i == EVICT_GHOST_NONE)
		return false;
	p->n--;
	p->key[i] = p->key[p->n];
	p->queue[i] = p->queue[p->n];
	return true;
}
