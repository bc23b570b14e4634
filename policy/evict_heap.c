/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A priority queue of block ids in which no single call takes long. It is a row of buckets, by key,
 * of disjoint ranges; a bucket is a list in the order of arrival, and only the first one is sorted,
 * once it is the first. A bucket that grows to `room` is split in two, unless all its keys are
 * equal: then it may grow without end, and what has another key goes beside it. Neighbours that
 * have shrunk are joined, so that there are never more than 4 / room of the blocks.
 *
 * So a call looks at no more than `room` blocks, and moves the entries of no more than half of the
 * buckets: both grow as the root of the number of blocks.
 *
 * Neighbours in a list lie anywhere in memory, and only a block tells where the next one is: a
 * cache miss each, one after the other. So every block names besides the one that came AHEAD places
 * after it. That may have left since; it is good enough to ask for memory in time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/evict_impl.h"

#define ROOM_MIN 16u
#define ROOM_MAX 8192u /* at KVP_EVICT_MAX_IDS */
#define AHEAD    8u
#define SAMPLE   33u /* keys of a bucket whose median splits it */

struct bucket {
	uint64_t most; /* no key in it is greater */
	struct index_link ends;
	uint32_t len;
	uint32_t sorted;        /* smallest key at the old end, of equal ones the first that came */
	uint32_t recent[AHEAD]; /* the latest that came, from `turn` on */
	uint32_t turn;
};

struct entry {
	uint64_t key;
	uint32_t id;
};

struct evict_heap {
	uint32_t len;
	uint32_t room;
	uint32_t most_buckets;
	uint32_t first,
		buckets; /* places first .. first + buckets - 1 of low[] and at[] are used */
	uint32_t fresh;  /* buckets from here on were never used */
	uint32_t free;   /* others, linked by ends.young */
	uint64_t *low;   /* by place: no key of the bucket is less */
	uint32_t *at;    /* by place */
	struct bucket *bucket;
	struct entry *scratch; /* [2 * room] */
};

/* ---- places ---- */

static uint64_t round64(uint64_t n)
{
	return (n + 63) & ~UINT64_C(63);
}

int evict_heap_init(struct kvp_evict *e)
{
	uint32_t room = ROOM_MIN;
	struct evict_heap *h;

	if (e->heap)
		return 0;
	while (room < ROOM_MAX && (uint64_t)room * room * 16 < e->params.max_ids)
		room *= 2;
	/* neighbours hold more than room / 2 together, but for the first two (see join()) */
	uint64_t n = 4 * (uint64_t)e->params.max_ids / room + 8;
	uint64_t bucket = round64(sizeof(*h)), low = bucket + n * sizeof(*h->bucket);
	uint64_t at = round64(low + n * sizeof(*h->low));
	uint64_t scratch = round64(at + n * sizeof(*h->at));

	/* calloc: pages of buckets never used stay untouched */
	h = calloc(1, scratch + 2 * (uint64_t)room * sizeof(*h->scratch));
	if (!h)
		return -ENOMEM;
	h->room = room;
	h->most_buckets = (uint32_t)n;
	h->bucket = (void *)((uint8_t *)h + bucket);
	h->low = (void *)((uint8_t *)h + low);
	h->at = (void *)((uint8_t *)h + at);
	h->scratch = (void *)((uint8_t *)h + scratch);
	e->heap = h;
	evict_heap_clear(e);
	return 0;
}

void evict_heap_clear(struct kvp_evict *e)
{
	struct evict_heap *h = e->heap;

	h->len = h->first = h->buckets = h->fresh = 0;
	h->free = KVP_BLOCK_NONE;
}

void evict_heap_memory(const struct kvp_evict *e, struct kvp_evict_memory *m)
{
	const struct evict_heap *h = e->heap;
	uint64_t bucket = sizeof(*h->bucket) + sizeof(*h->low) + sizeof(*h->at);
	uint64_t all =
		sizeof(*h) + h->most_buckets * bucket + 2 * (uint64_t)h->room * sizeof(*h->scratch);

	m->total += all;
	m->per_block += (uint32_t)(all / e->params.max_ids);
}

static struct bucket *bucket_at(const struct evict_heap *h, uint32_t place)
{
	return &h->bucket[h->at[place]];
}

static uint32_t end_of(const struct evict_heap *h)
{
	return h->first + h->buckets;
}

/* The last place whose keys may be as small as this; first - 1 (maybe wrapped) if none is. */
static uint32_t find(const struct evict_heap *h, uint64_t key)
{
	const uint64_t *base = h->low + h->first;
	uint32_t n = h->buckets;

	if (!n)
		return h->first - 1;
	while (n > 1) {
		uint32_t half = n / 2;

		base += key >= base[half] ? half : 0;
		n -= half;
	}
	return (uint32_t)(base - h->low) - (key < *base);
}

/* Moves n entries from one place to another, one off. */
static void shift(struct evict_heap *h, uint32_t to, uint32_t from, uint32_t n)
{
	memmove(h->low + to, h->low + from, n * sizeof(*h->low));
	memmove(h->at + to, h->at + from, n * sizeof(*h->at));
}

/* A new bucket before `place`, for keys from `low` on. Returns where it lies. */
static uint32_t open_bucket(struct evict_heap *h, uint32_t place, uint64_t low)
{
	uint32_t left = place - h->first, right = h->buckets - left, i = h->free;

	if (i != KVP_BLOCK_NONE)
		h->free = h->bucket[i].ends.young;
	else
		i = h->fresh++;
	assert(i < h->most_buckets);
	if (h->first && (left < right || end_of(h) == h->most_buckets)) {
		shift(h, h->first - 1, h->first, left);
		h->first--;
		place--;
	} else {
		shift(h, place + 1, place, right);
	}
	h->buckets++;
	h->low[place] = low;
	h->at[place] = i;
	h->bucket[i] = (struct bucket){ .most = low, .ends = INDEX_LIST_EMPTY, .sorted = 1 };
	return place;
}

static void close_bucket(struct evict_heap *h, uint32_t place)
{
	uint32_t left = place - h->first, right = h->buckets - left - 1;

	h->bucket[h->at[place]].ends.young = h->free;
	h->free = h->at[place];
	if (left < right) {
		shift(h, h->first + 1, h->first, left);
		h->first++;
	} else {
		shift(h, place, place + 1, right);
	}
	if (--h->buckets == 0)
		h->first = 0;
}

/* ---- lists ---- */

static void append(struct kvp_evict *e, struct bucket *b, uint32_t id, uint64_t key)
{
	if (!b->len)
		for (unsigned i = 0; i < AHEAD; i++)
			b->recent[i] = id;
	b->sorted &= key >= b->most;
	if (key > b->most)
		b->most = key;
	index_push_young(evict_links(e), &b->ends, id);
	b->len++;
	e->node[id].ahead = id;
	e->node[b->recent[b->turn]].ahead = id;
	b->recent[b->turn] = id;
	b->turn = (b->turn + 1) % AHEAD;
}

/* Keeps a sorted list sorted. */
static void insert_sorted(struct kvp_evict *e, struct bucket *b, uint32_t id, uint64_t key)
{
	uint32_t young = b->ends.old;

	while (young != KVP_BLOCK_NONE && *evict_heap_key(e, young) <= key)
		young = e->node[young].link.young;
	index_insert_older(evict_links(e), &b->ends, id, young);
	b->len++;
	e->node[id].ahead = young == KVP_BLOCK_NONE ? id : e->node[young].ahead;
}

static void fetch(const struct kvp_evict *e, uint32_t id)
{
	__builtin_prefetch(&e->node[id], 1);
	__builtin_prefetch(&e->node[id].freq, 1); /* it may lie on two lines */
}

/* The bucket's blocks in their order into scratch; the bucket is empty then. */
static uint32_t unload(struct kvp_evict *e, struct bucket *b)
{
	struct entry *s = e->heap->scratch;
	uint32_t n = 0;

	for (uint32_t id = b->ends.old; id != KVP_BLOCK_NONE; id = e->node[id].link.young) {
		fetch(e, e->node[id].ahead);
		s[n++] = (struct entry){ *evict_heap_key(e, id), id };
	}
	index_list_init(&b->ends);
	b->len = 0;
	b->sorted = 1;
	b->most = 0;
	return n;
}

/* Merge sort, since equal keys stay in order. Returns where the result is. */
static struct entry *sort_entries(struct entry *in, struct entry *out, uint32_t n)
{
	for (uint32_t run = 1; run < n; run *= 2) {
		for (uint32_t from = 0; from < n; from += 2 * run) {
			uint32_t i = from, mid = from + run < n ? from + run : n;
			uint32_t j = mid, end = mid + run < n ? mid + run : n;

			for (uint32_t k = from; k < end; k++)
				out[k] = i < mid && (j == end || in[i].key <= in[j].key) ? in[i++]
											 : in[j++];
		}
		struct entry *t = in;

		in = out;
		out = t;
	}
	return in;
}

static void sort_bucket(struct kvp_evict *e, struct bucket *b)
{
	uint32_t n = unload(e, b);
	struct entry *s = sort_entries(e->heap->scratch, e->heap->scratch + e->heap->room, n);

	for (uint32_t i = 0; i < n; i++)
		append(e, b, s[i].id, s[i].key);
}

/* ---- splitting and joining ---- */

/* Joins the buckets at a place and the next one if little is in them. */
static void join(struct kvp_evict *e, uint32_t place)
{
	struct evict_heap *h = e->heap;

	if (place - h->first >= h->buckets - 1) /* also one before the first */
		return;
	struct bucket *a = bucket_at(h, place), *b = bucket_at(h, place + 1);
	if (a->len + b->len > h->room / 2)
		return;
	/* b stays, since its latest are the latest of both */
	e->node[a->ends.young].link.young = b->ends.old;
	e->node[b->ends.old].link.old = a->ends.young;
	b->ends.old = a->ends.old;
	b->len += a->len;
	b->sorted &= a->sorted;
	h->low[place + 1] = h->low[place];
	close_bucket(h, place);
}

static void join_around(struct kvp_evict *e, uint32_t place)
{
	uint64_t low = e->heap->low[place];

	join(e, place);
	join(e, find(e->heap, low) - 1);
}

/* A key that divides the n entries: some are less, and some are not. False: all keys are equal. */
static bool divide(const struct entry *s, uint32_t n, uint64_t *ret_at)
{
	uint64_t sample[SAMPLE], least = s[0].key, most = s[0].key, key;

	for (uint32_t i = 0; i < n; i++) {
		least = s[i].key < least ? s[i].key : least;
		most = s[i].key > most ? s[i].key : most;
	}
	for (uint32_t i = 0; i < SAMPLE; i++) {
		uint32_t j = i;

		key = s[(uint64_t)i * (n - 1) / (SAMPLE - 1)].key;
		for (; j && sample[j - 1] > key; j--)
			sample[j] = sample[j - 1];
		sample[j] = key;
	}
	*ret_at = sample[SAMPLE / 2];
	if (*ret_at > least)
		return true;
	*ret_at = most;
	for (uint32_t i = 0; i < n; i++)
		if (s[i].key > least && s[i].key < *ret_at)
			*ret_at = s[i].key;
	return most > least;
}

/* The bucket has grown to `room`. */
static void split(struct kvp_evict *e, uint32_t place)
{
	struct evict_heap *h = e->heap;
	struct bucket *b = bucket_at(h, place), *upper = NULL;
	uint32_t n = unload(e, b);
	uint64_t at, low = h->low[place];

	if (divide(h->scratch, n, &at))
		upper = bucket_at(h, open_bucket(h, place + 1, at));
	else
		h->low[place] = at;
	for (uint32_t i = 0; i < n; i++) {
		const struct entry *s = &h->scratch[i];

		append(e, upper && s->key >= at ? upper : b, s->id, s->key);
	}
	if (upper) {
		join_around(e, find(h, at));
		join_around(e, find(h, low));
	}
}

/* ---- operations ---- */

/* The place to which the key goes; a new one if the bucket there takes only keys equal to its. */
static uint32_t place_for(struct evict_heap *h, uint64_t key)
{
	uint32_t place = find(h, key);

	if (!h->buckets)
		return open_bucket(h, h->first, key);
	if (place == h->first - 1)
		place++; /* less than all there are */
	else if (bucket_at(h, place)->len < h->room || key == h->low[place])
		return place;
	else if (++place == end_of(h))
		return open_bucket(h, place, key);
	/* now it is less than all in the bucket, and greater than all before */
	if (bucket_at(h, place)->len >= h->room)
		return open_bucket(h, place, key);
	h->low[place] = key;
	return place;
}

void evict_heap_push(struct kvp_evict *e, uint32_t id, uint64_t key)
{
	struct evict_heap *h = e->heap;
	uint32_t place = place_for(h, key);
	struct bucket *b = bucket_at(h, place);

	*evict_heap_key(e, id) = key;
	e->node[id].where = EVICT_HEAP;
	h->len++;
	if (b->len && b->sorted && key < b->most && place == h->first)
		insert_sorted(e, b, id, key);
	else
		append(e, b, id, key);
	if (b->len >= h->room && b->most != h->low[place])
		split(e, place);
}

static void unlink_from(struct kvp_evict *e, struct bucket *b, uint32_t id)
{
	index_remove(evict_links(e), &b->ends, id);
	b->len--;
	e->heap->len--;
	e->node[id].where = EVICT_OUT;
}

void evict_heap_remove(struct kvp_evict *e, uint32_t id)
{
	struct evict_heap *h = e->heap;
	uint32_t place = find(h, *evict_heap_key(e, id));
	struct bucket *b = bucket_at(h, place);

	unlink_from(e, b, id);
	if (b->len) {
		if (b->len <= h->room / 2)
			join_around(e, place);
		return;
	}
	close_bucket(h, place);
	if (h->buckets && place > h->first)
		join(e, place - 1);
}

uint32_t evict_heap_pop(struct kvp_evict *e, uint64_t *ret_key)
{
	struct evict_heap *h = e->heap;

	if (!h->len)
		return KVP_BLOCK_NONE;
	struct bucket *b = bucket_at(h, h->first);
	if (!b->sorted)
		sort_bucket(e, b);
	uint32_t id = b->ends.old;

	/* this one has been fetched when it was twice as far away */
	const struct evict_node *soon = &e->node[e->node[id].ahead];

	fetch(e, soon->ahead);
	if (soon->parent != KVP_BLOCK_NONE)
		fetch(e, soon->parent);
	*ret_key = *evict_heap_key(e, id);
	unlink_from(e, b, id);
	/* not joined here, or it would have to be sorted again for the next one */
	if (!b->len)
		close_bucket(h, h->first);
	return id;
}

/* ---- consistency ---- */

static int check_bucket(const struct kvp_evict *e, uint32_t place)
{
	const struct evict_heap *h = e->heap;
	const struct bucket *b = bucket_at(h, place);
	uint64_t last = 0, next = place + 1 < end_of(h) ? h->low[place + 1] : UINT64_MAX;
	uint32_t old = KVP_BLOCK_NONE, n = 0;

	if (b->len >= h->room && h->low[place] != b->most)
		return -EIO;
	if (place + 1 < end_of(h) && (b->most >= next || h->low[place] > b->most))
		return -EIO;
	for (uint32_t id = b->ends.old; id != KVP_BLOCK_NONE; id = e->node[id].link.young) {
		if (id >= e->params.max_ids || e->node[id].where != EVICT_HEAP || ++n > b->len)
			return -EIO;
		uint64_t key = *evict_heap_key(e, id);
		if (e->node[id].link.old != old || key < h->low[place] || key > b->most ||
			(b->sorted && key < last))
			return -EIO;
		last = key;
		old = id;
	}
	return n && n == b->len && b->ends.young == old ? 0 : -EIO;
}

int evict_heap_check(const struct kvp_evict *e, uint64_t in_queues)
{
	const struct evict_heap *h = e->heap;
	uint64_t n = 0;

	if (end_of(h) > h->most_buckets)
		return -EIO;
	for (uint32_t place = h->first; place < end_of(h); place++) {
		if (check_bucket(e, place) < 0)
			return -EIO;
		n += bucket_at(h, place)->len;
		if (place > h->first + 1 &&
			bucket_at(h, place - 1)->len + bucket_at(h, place)->len <= h->room / 2)
			return -EIO;
	}
	return n == in_queues && n == h->len ? 0 : -EIO;
}
