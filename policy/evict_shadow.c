/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Never a bet: small caches, one for each algorithm that may be in charge, live through a sample
 * of what happens. The one that hits most takes charge of the real cache.
 *
 * A cache of up to BLOCKS blocks is sampled whole. From a larger one we take whole chains, by a
 * hash of their topmost block, and shadows of BLOCKS blocks: each sees the same share of the
 * traffic as it has of the capacity. Blocks that many chains share (a system prompt) are left out,
 * since no algorithm would evict them, and they would drag all their chains into the sample or out
 * of it. If only bytes bound the cache, the share is halved until the sample fits.
 *
 * Hits are counted in STRATA, by chain, and fade slowly. An algorithm takes over when it leads the
 * one in charge by more than chance would bring about. Chance is told by how much its lead differs
 * from stratum to stratum: what belongs together (the turns of a conversation, the uses of a
 * document) lies in one, so that one lucky chain counts once.
 *
 * Taking over: all blocks leave the old structures in the order in which they would have gone, and
 * enter the new ones, O(n log n). This happens only when victims are asked for, when no block is
 * in between.
 */
#include "policy/evict_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE    KVP_BLOCK_NONE
#define BLOCKS  1024u /* capacity of a shadow */
#define SLACK   512u  /* for the request that is being served */
#define IDS     (BLOCKS + SLACK)
#define BUCKETS 2048u
#define PROMPT  1024u /* blocks of a request that the shadows are told of */
#define GHOSTS  8192u /* of a shadow of hazard, which remembers more than others */
#define TRUNK   7u    /* EVICT_BRANCHES: so often continued that it is no chain's own */
#define ALL     UINT64_MAX

#define STRATA 64u
#define PERIOD 64u      /* blocks from one comparison to the next, and 1/8 of the capacity */
#define MEMORY 100000.0 /* blocks, and CACHES times the capacity, until a hit has faded to 1/e */
#define CACHES 50.0

/*
 * A lead must be so many standard deviations, and LEAST hits. The first algorithm, where all
 * begins, comes back on less. A sample must be surer: few chains are in it. So must be whatever is
 * known from little more than EARLY blocks.
 */
#define LEAD        1.5
#define LEAD_HOME   1.0
#define LEAD_SAMPLE 3.0
#define LEAST       4.0
#define EARLY       500.0

static const struct evict_ops *const experts[] = {
	&evict_hazard,
	&evict_s3fifo,
	&evict_s3fifo_30,
	&evict_sieve,
	&evict_arc,
	&evict_lru,
	&evict_gdsf,
};
#define EXPERTS (sizeof(experts) / sizeof(experts[0]))

struct shadow {
	struct kvp_evict *e;
	uint32_t hits;       /* of the current request */
	float score[STRATA]; /* hits, of which the old ones fade */
	uint16_t free;
	uint16_t bucket[BUCKETS]; /* ids by key, linked by next; IDS: none */
	uint16_t next[IDS];
};

struct known {
	uint64_t key;
	uint32_t bytes;
	uint32_t depth;
	float cost;
	uint32_t flags;
};

struct evict_shadows {
	void *self[EXPERTS]; /* of the real cache */
	uint32_t leader;
	uint32_t want;
	uint64_t limit; /* hashes up to it are in the sample */
	bool begun;     /* the real cache is full: algorithms make a difference */
	bool overflow;
	uint32_t told; /* blocks since the last comparison */
	double all;    /* blocks before it */
	uint64_t draws;
	/* the request being told of, and the real block that its last entry stands for */
	uint32_t len;
	uint32_t old; /* of len: told before */
	uint32_t last;
	struct known prompt[PROMPT];
	uint64_t heap_key[IDS]; /* of the shadow that has a heap */
	struct shadow shadow[EXPERTS];
};

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
	x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
	return x ^ x >> 32;
}

/* ---- a shadow ---- */

static uint16_t *bucket_of(struct shadow *s, uint64_t key)
{
	return &s->bucket[mix(key) % BUCKETS];
}

static uint32_t find(struct shadow *s, uint64_t key)
{
	uint16_t i = *bucket_of(s, key);

	while (i != IDS && s->e->node[i].key != key)
		i = s->next[i];
	return i == IDS ? NONE : i;
}

static void shadow_remove(struct shadow *s, uint32_t id, bool evicted)
{
	uint16_t *link = bucket_of(s, s->e->node[id].key);

	while (*link != id)
		link = &s->next[*link];
	*link = s->next[id];
	s->next[id] = s->free;
	s->free = (uint16_t)id;
	kvp_evict_remove(s->e, id, evicted, 0);
}

static int is_tip(void *ctx, kvp_block_id id)
{
	return id == *(const uint32_t *)ctx;
}

static bool make_room(struct shadow *s, uint64_t items, uint64_t bytes, uint32_t tip)
{
	kvp_block_id out[64];
	bool any = false;

	while (items || bytes) {
		uint64_t was = s->e->bytes;
		size_t n = kvp_evict_victims(s->e, items, bytes, is_tip, &tip, 0, out, 64);
		if (!n)
			break;
		for (size_t i = 0; i < n; i++)
			shadow_remove(s, out[i], true);
		uint64_t freed = was - s->e->bytes;
		items -= n < items ? n : items;
		bytes -= freed < bytes ? freed : bytes;
		any = true;
	}
	return any;
}

/* Returns the new block's id, or the tip if there is no room. */
static uint32_t shadow_insert(
	struct evict_shadows *sh, struct shadow *s, const struct known *k, uint32_t tip)
{
	const struct kvp_evict_params *p = &s->e->params;
	struct kvp_evict_item item = {
		.parent = tip,
		.bytes = k->bytes,
		.depth = k->depth,
		.flags = k->flags & KVP_EVICT_PARTIAL,
		.cost = k->cost,
		.key = { .lo = k->key },
	};

	if (p->bytes) {
		uint64_t room = p->bytes - (k->bytes < p->bytes ? k->bytes : p->bytes);
		if (k->bytes > p->bytes || !kvp_evict_admit(s->e, &item, 0))
			return NONE;
		if (s->e->bytes > room)
			make_room(s, 0, s->e->bytes - room, tip);
		if (s->free == IDS)
			sh->overflow = true;
	}
	if (s->free == IDS && !make_room(s, 1, 0, tip))
		return NONE;
	uint16_t id = s->free, *bucket = bucket_of(s, k->key);
	s->free = s->next[id];
	kvp_evict_insert(s->e, id, &item, 0);
	s->next[id] = *bucket;
	*bucket = id;
	return id;
}

/* The request as this shadow sees it. */
static void live(struct evict_shadows *sh, struct shadow *s, uint64_t now)
{
	struct kvp_evict *e = s->e;
	uint32_t tip = NONE, id, k = 0;
	uint64_t items, bytes;

	if (now > e->now)
		e->now = now;
	for (; k < sh->len && (id = find(s, sh->prompt[k].key)) != NONE; k++) {
		tip = id;
		if (sh->old && k >= sh->old)
			kvp_evict_access(e, id, 0);
	}
	s->hits = k > sh->old ? k - sh->old : 0;
	if (!sh->old) {
		struct kvp_evict_request req = { .tip = tip, .blocks = sh->len, .matched = k };
		kvp_evict_request(e, &req, 0);
		if (k)
			kvp_evict_access_chain(e, tip, 0);
	}
	for (; k < sh->len; k++) {
		id = shadow_insert(sh, s, &sh->prompt[k], tip);
		if (id == NONE)
			break;
		tip = id;
	}
	kvp_evict_excess(e, &items, &bytes);
	make_room(s, items, bytes, NONE);
}

/* ---- the contest ---- */

/* Who should be in charge. */
static void judge(struct evict_shadows *sh)
{
	double best = 0, early = sqrt(1 + EARLY / (sh->all + 1));

	sh->want = sh->leader;
	for (uint32_t i = 0; i < EXPERTS; i++) {
		double lead = 0, square = 0;
		for (uint32_t k = 0; k < STRATA; k++) {
			double d = (double)sh->shadow[i].score[k] -
				   (double)sh->shadow[sh->leader].score[k];
			lead += d;
			square += d * d;
		}
		double z = !i ? LEAD_HOME : sh->limit == ALL ? LEAD : LEAD_SAMPLE;
		double chance = sqrt(fmax(0, square - lead * lead / STRATA));
		double over = lead - LEAST - z * early * chance;
		if (over > best) {
			best = over;
			sh->want = i;
		}
	}
}

/* Which part of the comparison a request belongs to: that of the first block not many share. */
static uint32_t stratum_of(const struct evict_shadows *sh)
{
	uint32_t own = 0;

	while (own + 1 < sh->len && (sh->prompt[own].flags & EVICT_BRANCHES) == EVICT_BRANCHES)
		own++;
	return (uint32_t)(mix(sh->prompt[own].key) >> 32) % STRATA;
}

static void compare(struct evict_shadows *sh)
{
	uint64_t items = sh->shadow[0].e->items;
	uint32_t stratum = stratum_of(sh);

	for (uint32_t i = 0; i < EXPERTS; i++)
		sh->shadow[i].score[stratum] += (float)sh->shadow[i].hits;
	sh->told += sh->len - sh->old;
	if (sh->told < PERIOD + items / 8)
		return;
	float fade = (float)exp(-(double)sh->told / (MEMORY + CACHES * (double)items));
	for (uint32_t i = 0; i < EXPERTS; i++)
		for (uint32_t k = 0; k < STRATA; k++)
			sh->shadow[i].score[k] *= fade;
	sh->all += sh->told;
	sh->told = 0;
	judge(sh);
}

static bool sampled(const struct evict_shadows *sh, uint64_t key)
{
	return mix(key ^ UINT64_C(0x5bd1e995)) <= sh->limit;
}

/* What is no longer in the sample leaves, tips first. */
static void thin_out(const struct evict_shadows *sh, struct shadow *s)
{
	const struct evict_node *node = s->e->node;
	bool again = true;

	while (again) {
		again = false;
		for (uint32_t id = 0; id < IDS; id++) {
			uint32_t top = id;
			if (!kvp_evict_contains(s->e, id) || node[id].children || node[id].offered)
				continue;
			while (node[top].parent != NONE)
				top = node[top].parent;
			if (!sampled(sh, node[top].key)) {
				shadow_remove(s, id, false);
				again = true;
			}
		}
	}
}

static void set_rate(struct kvp_evict *e, uint64_t limit)
{
	struct evict_shadows *sh = e->shadows;
	double rate = limit == ALL ? 1 : ldexp((double)limit + 1, -64);

	sh->limit = limit;
	for (uint32_t i = 0; i < EXPERTS; i++) {
		uint64_t items = (uint64_t)ceil((double)e->params.items * rate);
		uint64_t bytes = (uint64_t)ceil((double)e->params.bytes * rate);
		kvp_evict_resize(sh->shadow[i].e, items, bytes);
	}
}

/* The sample does not fit: half of it. */
static void halve(struct kvp_evict *e)
{
	struct evict_shadows *sh = e->shadows;

	sh->overflow = false;
	set_rate(e, sh->limit / 2);
	for (uint32_t i = 0; i < EXPERTS; i++)
		thin_out(sh, &sh->shadow[i]);
}

static void flush(struct kvp_evict *e)
{
	struct evict_shadows *sh = e->shadows;

	if (sh->len > sh->old) {
		for (uint32_t i = 0; i < EXPERTS; i++)
			live(sh, &sh->shadow[i], e->now);
		if (sh->overflow)
			halve(e);
		else if (sh->begun)
			compare(sh);
	}
	sh->len = sh->old = 0;
	sh->last = NONE;
}

/* ---- what is told to the shadows ---- */

static bool trunk(const struct evict_shadows *sh, const struct evict_node *n)
{
	return sh->limit != ALL && (n->flags & EVICT_BRANCHES) >> EVICT_BRANCHES_SHIFT == TRUNK;
}

static struct known describe(const struct evict_node *n)
{
	return (struct known){
		.key = n->key,
		.bytes = n->bytes,
		.depth = n->depth,
		.cost = n->cost,
		.flags = n->flags,
	};
}

/* Begins a request with the chain of this block. False: it is not in the sample. */
static bool load_chain(struct kvp_evict *e, uint32_t tip)
{
	struct evict_shadows *sh = e->shadows;
	uint32_t n = 0, top = NONE;

	for (uint32_t id = tip; id != NONE && !trunk(sh, &e->node[id]); id = e->node[id].parent) {
		top = id;
		n++;
	}
	if (top == NONE)
		return false;
	if (!sampled(sh, e->node[top].key)) {
		e->node[tip].flags &= (uint8_t)~EVICT_SAMPLED;
		return false;
	}
	sh->len = n < PROMPT ? n : PROMPT;
	sh->last = tip;
	for (uint32_t id = tip; n-- > 0; id = e->node[id].parent)
		if (n < PROMPT)
			sh->prompt[n] = describe(&e->node[id]);
	return true;
}

void evict_shadows_request(struct kvp_evict *e)
{
	flush(e);
}

void evict_shadows_used(struct kvp_evict *e, uint32_t tip, bool alone)
{
	struct evict_shadows *sh = e->shadows;

	flush(e);
	if (!(e->node[tip].flags & EVICT_SAMPLED) || !load_chain(e, tip))
		return;
	if (alone && sh->len > 1)
		sh->old = sh->len - 1;
}

static void branch(struct evict_shadows *sh, struct evict_node *parent)
{
	uint32_t b = (parent->flags & EVICT_BRANCHES) >> EVICT_BRANCHES_SHIFT;

	/* a count that rises with probability 1, 1, 1/2, 1/4, ... (Morris 1978) */
	if (b < TRUNK && (b < 2 || !(mix(++sh->draws) >> (65 - b))))
		parent->flags += 1u << EVICT_BRANCHES_SHIFT;
}

void evict_shadows_inserted(struct kvp_evict *e, uint32_t id)
{
	struct evict_shadows *sh = e->shadows;
	struct evict_node *n = &e->node[id];
	struct evict_node *parent = n->parent != NONE ? &e->node[n->parent] : NULL;

	if (parent)
		branch(sh, parent);
	if (!parent || trunk(sh, parent) ? sampled(sh, n->key) : parent->flags & EVICT_SAMPLED)
		n->flags |= EVICT_SAMPLED;
	else
		return;
	if (!parent || trunk(sh, parent)) {
		flush(e);
	} else if (n->parent != sh->last || !sh->len) {
		flush(e);
		if (!load_chain(e, n->parent))
			return;
		sh->old = sh->len;
	}
	sh->last = id;
	if (sh->len < PROMPT)
		sh->prompt[sh->len++] = describe(n);
}

void evict_shadows_refused(struct kvp_evict *e, const struct kvp_evict_item *item, uint64_t key)
{
	struct evict_shadows *sh = e->shadows;

	if (item->parent != NONE || !sampled(sh, key))
		return;
	flush(e);
	sh->prompt[sh->len++] = (struct known){
		.key = key,
		.bytes = item->bytes ? item->bytes : 1,
		.cost = isfinite(item->cost) && item->cost > 0 ? item->cost : 1,
	};
	flush(e);
}

/* ---- taking over ---- */

static uint32_t push(struct kvp_evict *e, uint32_t *last, uint32_t id)
{
	if (*last != NONE)
		e->node[*last].next = id;
	*last = id;
	e->node[id].next = NONE;
	return id;
}

/* All cached blocks, in the order in which they would have gone, linked by next. */
static uint32_t drain(struct kvp_evict *e)
{
	uint32_t first = NONE, last = NONE, id;

	for (id = 0; id < e->params.max_ids; id++)
		if (e->node[id].where == EVICT_PARKED) {
			push(e, &last, id);
			first = first == NONE ? id : first;
		}
	while ((id = e->ops->take(e)) != NONE) {
		push(e, &last, id);
		first = first == NONE ? id : first;
	}
	return first;
}

static void adopt(struct kvp_evict *e, uint32_t id, double rank, uint32_t twin)
{
	const struct kvp_evict *shadow = e->shadows->shadow[e->shadows->leader].e;

	e->node[id].where = EVICT_OUT;
	if (e->ops->adopt)
		e->ops->adopt(e, id, rank, shadow, twin != NONE ? &shadow->node[twin] : NULL);
	else
		e->ops->insert(e, id, NULL);
}

/* Gives each block in a list of the shadow its place, from 1 on, the first to go first. */
static uint32_t places(const struct kvp_evict *shadow, uint16_t place[IDS])
{
	uint32_t n = 0;

	memset(place, 0, IDS * sizeof(*place));
	for (uint32_t q = 1; q < EVICT_LISTS; q++)
		for (uint32_t id = shadow->list[q].old; id != NONE; id = shadow->node[id].prev)
			place[id] = (uint16_t)++n;
	return n;
}

/*
 * A shadow of the whole traffic knows what its algorithm would have made of the blocks: their
 * order, their state, and the ghosts. Blocks that it no longer has go first.
 */
static void adopt_like(struct kvp_evict *e, uint32_t id)
{
	struct evict_shadows *sh = e->shadows;
	struct shadow *s = &sh->shadow[sh->leader];
	uint16_t place[IDS];
	uint32_t real[IDS + 1], next, last = places(s->e, place);
	uint64_t n = 0;

	memset(real, 0xff, sizeof(real));
	if (s->e->ghosts)
		evict_ghosts_copy(e->ghosts, s->e->ghosts);
	if (e->ops->learn)
		e->ops->learn(e, s->e);
	for (; id != NONE; id = next) {
		uint32_t twin = find(s, e->node[id].key);
		next = e->node[id].next;
		if (twin != NONE && place[twin] && real[place[twin]] == NONE)
			real[place[twin]] = id;
		else
			adopt(e, id, (double)n++ / (double)e->items, twin);
	}
	for (uint32_t p = 1; p <= last; p++)
		if (real[p] != NONE)
			adopt(e, real[p], (double)n++ / (double)e->items,
				find(s, e->node[real[p]].key));
}

static void take_over(struct kvp_evict *e, uint32_t leader)
{
	struct evict_shadows *sh = e->shadows;
	uint32_t id = drain(e), next;
	uint64_t n = 0;

	sh->leader = leader;
	e->ops = experts[leader];
	e->self = sh->self[leader];
	evict_clear_lists(e);
	evict_ghosts_clear(e->ghosts);
	e->hand = NONE;
	if (e->ops->reset)
		e->ops->reset(e);
	if (sh->limit == ALL) {
		adopt_like(e, id);
	} else {
		if (leader && e->ops->learn)
			e->ops->learn(e, sh->shadow[leader].e);
		for (; id != NONE; id = next) {
			next = e->node[id].next;
			adopt(e, id, (double)n++ / (double)e->items, NONE);
		}
	}
	if (e->ops->capacity)
		e->ops->capacity(e);
}

void evict_shadows_settle(struct kvp_evict *e)
{
	struct evict_shadows *sh = e->shadows;

	flush(e);
	sh->begun = true;
	if (sh->want != sh->leader)
		take_over(e, sh->want);
}

/* ---- life ---- */

static int shadow_init(struct kvp_evict *real, struct shadow *s, uint32_t i)
{
	struct kvp_evict_params p = {
		.size = sizeof(p),
		.items = real->params.items,
		.bytes = real->params.bytes,
		.max_ids = IDS,
		.ghosts = experts[i]->contest ? GHOSTS : 2 * BLOCKS,
		.seed = real->params.seed,
	};

	for (uint32_t k = 0; k < BUCKETS; k++)
		s->bucket[k] = IDS;
	for (uint32_t k = 0; k < IDS; k++)
		s->next[k] = (uint16_t)(k + 1); /* the last one: IDS, none */
	s->free = 0;
	int r = evict_new_plain(experts[i], &p, &s->e);
	if (r < 0)
		return r;
	if (s->e->heap)
		s->e->arena = real->shadows->heap_key; /* the blocks' own keys are needed */
	return 0;
}

static uint64_t limit_of(const struct kvp_evict *e)
{
	uint64_t items = e->params.items;

	return items <= BLOCKS ? ALL : (uint64_t)ldexp((double)BLOCKS / (double)items, 64);
}

static uint64_t arena_bytes(const struct kvp_evict *e)
{
	/* some groups are there whatever the capacity */
	return ((uint64_t)e->params.max_ids + 2048) * EVICT_ARENA_BYTES;
}

int evict_shadows_init(struct kvp_evict *e)
{
	struct evict_shadows *sh = calloc(1, sizeof(*sh));
	int r;

	if (!sh)
		return -ENOMEM;
	e->shadows = sh;
	e->arena = calloc(1, arena_bytes(e));
	if (!e->arena)
		return -ENOMEM;
	for (uint32_t i = 0; i < EXPERTS; i++) {
		e->ops = experts[i];
		e->self = NULL;
		r = e->ops->init ? e->ops->init(e) : 0;
		sh->self[i] = e->self;
		if (r == 0)
			r = shadow_init(e, &sh->shadow[i], i);
		if (r < 0)
			return r;
	}
	e->ops = experts[0];
	e->self = sh->self[0];
	e->ops->reset(e);
	sh->last = NONE;
	set_rate(e, limit_of(e));
	return 0;
}

void evict_shadows_done(struct kvp_evict *e)
{
	struct evict_shadows *sh = e->shadows;

	for (uint32_t i = 0; i < EXPERTS; i++) {
		e->self = sh->self[i];
		if (experts[i]->fini)
			experts[i]->fini(e);
		kvp_evict_free(sh->shadow[i].e);
	}
	free(e->arena);
	free(sh);
}

void evict_shadows_resize(struct kvp_evict *e)
{
	struct evict_shadows *sh = e->shadows;
	uint64_t limit = e->params.items ? limit_of(e) : sh->limit;
	bool larger = sh->limit < limit / 2 || (limit == ALL && sh->limit != ALL);

	flush(e);
	if (larger) {
		/* shadows that never saw the others begin anew */
		set_rate(e, 0);
		for (uint32_t i = 0; i < EXPERTS; i++) {
			thin_out(sh, &sh->shadow[i]);
			memset(sh->shadow[i].score, 0, sizeof(sh->shadow[i].score));
		}
		sh->want = sh->leader;
	}
	set_rate(e, larger || limit < sh->limit ? limit : sh->limit);
	for (uint32_t i = 0; i < EXPERTS; i++)
		thin_out(sh, &sh->shadow[i]);
}

uint64_t evict_shadows_memory(const struct kvp_evict *e)
{
	const struct evict_shadows *sh = e->shadows;
	uint64_t n = sizeof(*sh) + arena_bytes(e) + evict_heap_memory(e) + evict_hazard.memory(e);

	for (uint32_t i = 0; i < EXPERTS; i++) {
		struct kvp_evict_memory m;
		kvp_evict_memory(sh->shadow[i].e, &m);
		n += m.total;
	}
	return n;
}

static int shadow_check(const struct shadow *s)
{
	uint64_t found = 0;

	for (uint32_t b = 0; b < BUCKETS; b++)
		for (uint32_t id = s->bucket[b]; id != IDS; id = s->next[id])
			if (!kvp_evict_contains(s->e, id) || ++found > IDS)
				return -EIO;
	return found == s->e->items ? kvp_evict_assert_consistency(s->e) : -EIO;
}

int evict_shadows_check(const struct kvp_evict *e)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < EXPERTS; i++)
		r = shadow_check(&e->shadows->shadow[i]);
	return r;
}

uint32_t evict_shadows_favour(struct kvp_evict *e, uint32_t expert)
{
	e->shadows->want = expert % EXPERTS;
	return EXPERTS;
}
