/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shadows of a contest: what of the traffic they see, how they live through it, and which of
 * them hits so much more than the leader's that its algorithm should be in charge.
 */
#include "policy/evict_contest.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define SAMPLE 1024u                 /* blocks that a shadow holds of a sample */
#define MANY   (48 * CONTEST_BLOCKS) /* ids; with more, a cache of CONTEST_BLOCKS is not expected */
#define GHOSTS 20480u /* of a shadow of hazard, beside its blocks; others remember less */

#define PERIOD 64u      /* blocks from one comparison to the next, and 1/8 of the capacity */
#define MEMORY 100000.0 /* blocks, and CACHES times the capacity, until a hit has faded to 1/e */
#define CACHES 50.0

/*
 * A lead must be so many standard deviations, and LEAST hits, and pay for a part of what would have
 * to be brought in. A sample must be surer, since few chains are in it. So must be whatever is
 * known from little more than EARLY blocks.
 */
#define LEAD        1.0
#define LEAD_SAMPLE 4.0
#define LEAST       8.0
#define EARLY       5000.0
#define COST        0.25 /* hits, for a block that is not there */
#define COST_SAMPLE 1.0  /* the new structures know little of the others, either */

uint64_t contest_mix(uint64_t x)
{
	x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
	x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
	return x ^ x >> 32;
}

/* ---- one shadow ---- */

static uint16_t *bucket_of(struct shadow *s, uint64_t key)
{
	return &s->bucket[contest_mix(key) % CONTEST_BUCKETS];
}

uint32_t contest_shadow_find(const struct shadow *s, uint64_t key)
{
	uint16_t i = s->bucket[contest_mix(key) % CONTEST_BUCKETS];

	while (i != CONTEST_IDS && s->e->node[i].key != key)
		i = s->next[i];
	return i == CONTEST_IDS ? NONE : i;
}

static void shadow_remove(struct evict_contest *c, struct shadow *s, uint32_t id, bool evicted)
{
	uint64_t key = s->e->node[id].key;
	uint16_t *link = bucket_of(s, s->e->node[id].key);

	while (*link != id)
		link = &s->next[*link];
	*link = s->next[id];
	s->next[id] = s->free;
	s->free = (uint16_t)id;
	kvp_evict_remove(s->e, id, evicted, 0);
	if (s == &c->shadow[c->leader] && contest_follows(c->real))
		contest_put_aside(c->real, s->real[id], key);
}

static int is_tip(void *ctx, kvp_block_id id)
{
	return id == *(const uint32_t *)ctx;
}

static bool make_room(
	struct evict_contest *c, struct shadow *s, uint64_t items, uint64_t bytes, uint32_t tip)
{
	kvp_block_id out[64];
	bool any = false;

	while (items || bytes) {
		uint64_t was = s->e->bytes;
		size_t n = kvp_evict_victims(s->e, items, bytes, is_tip, &tip, 0, out, 64);
		if (!n)
			break;
		for (size_t i = 0; i < n; i++)
			shadow_remove(c, s, out[i], true);
		uint64_t freed = was - s->e->bytes;
		items -= n < items ? n : items;
		bytes -= freed < bytes ? freed : bytes;
		any = true;
	}
	return any;
}

/* Returns the new block's id, or NONE if there is no room. */
static uint32_t shadow_insert(
	struct evict_contest *c, struct shadow *s, const struct known *k, uint32_t tip)
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
			make_room(c, s, 0, s->e->bytes - room, tip);
		if (s->free == CONTEST_IDS && !p->items)
			c->overflow = true;
	}
	if (s->free == CONTEST_IDS && !make_room(c, s, 1, 0, tip))
		return NONE;
	uint16_t id = s->free, *bucket = bucket_of(s, k->key);
	s->free = s->next[id];
	kvp_evict_insert(s->e, id, &item, 0);
	s->next[id] = *bucket;
	*bucket = id;
	s->real[id] = k->real;
	return id;
}

/* The request as this shadow sees it. */
static void live(struct evict_contest *c, struct shadow *s, uint64_t now)
{
	struct kvp_evict *e = s->e;
	uint32_t tip = NONE, id, k = 0;
	uint64_t items, bytes;

	if (now > e->now)
		e->now = now;
	for (; k < c->len && (id = contest_shadow_find(s, c->prompt[k].key)) != NONE; k++) {
		tip = id;
		s->real[id] = c->prompt[k].real;
		if (c->old && k >= c->old)
			kvp_evict_access(e, id, 0);
	}
	s->hits = k > c->old ? k - c->old : 0;
	if (!c->old) {
		struct kvp_evict_request req = { .tip = tip, .blocks = c->len, .matched = k };
		kvp_evict_request(e, &req, 0);
		if (k)
			kvp_evict_access_chain(e, tip, 0);
	}
	for (; k < c->len; k++) {
		id = shadow_insert(c, s, &c->prompt[k], tip);
		if (id == NONE)
			break;
		tip = id;
	}
	kvp_evict_excess(e, &items, &bytes);
	make_room(c, s, items, bytes, NONE);
}

/* ---- which of them is best ---- */

static bool is_here(const struct evict_contest *c, const struct shadow *s, uint32_t id)
{
	uint64_t key = s->e->node[id].key;
	uint32_t real = s->real[id];

	if (c->limit != CONTEST_ALL)
		return contest_shadow_find(&c->shadow[c->leader], key) != NONE;
	return real != NONE && c->real->node[real].where != EVICT_OUT &&
	       c->real->node[real].key == key;
}

/* Blocks that would have to come before the real cache is like this shadow. */
static double missing(const struct evict_contest *c, const struct shadow *s)
{
	uint32_t n = 0;

	for (uint32_t id = 0; id < CONTEST_IDS; id++)
		n += kvp_evict_contains(s->e, id) && !is_here(c, s, id);
	return n;
}

/* By how many hits a shadow leads that of the one in charge, beyond what chance may do. */
static double lead_of(const struct evict_contest *c, uint32_t i)
{
	double lead = 0, square = 0, early = sqrt(1 + EARLY / (c->all + 1));
	double z = c->limit == CONTEST_ALL ? LEAD : LEAD_SAMPLE;

	for (uint32_t k = 0; k < CONTEST_STRATA; k++) {
		double d = (double)c->shadow[i].score[k] - (double)c->shadow[c->leader].score[k];
		lead += d;
		square += d * d;
	}
	return lead - z * early * sqrt(fmax(0, square - lead * lead / CONTEST_STRATA));
}

/* Who should be in charge. */
static void judge(struct evict_contest *c)
{
	double best = LEAST, cost = c->limit == CONTEST_ALL ? COST : COST_SAMPLE;

	c->want = c->leader;
	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++) {
		double lead = lead_of(c, i);
		if (i == c->leader || lead <= best)
			continue;
		lead -= cost * missing(c, &c->shadow[i]);
		if (lead > best) {
			best = lead;
			c->want = i;
		}
	}
}

/* Which part of the comparison a request belongs to: that of the first block not many share. */
static uint32_t stratum_of(const struct evict_contest *c)
{
	uint32_t own = 0;

	while (own + 1 < c->len && (c->prompt[own].flags & CONTEST_BRANCHES) == CONTEST_BRANCHES)
		own++;
	return (uint32_t)(contest_mix(c->prompt[own].key) >> 32) % CONTEST_STRATA;
}

static void compare(struct evict_contest *c)
{
	uint64_t items = c->shadow[0].e->items;
	uint32_t stratum = stratum_of(c);

	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++)
		c->shadow[i].score[stratum] += (float)c->shadow[i].hits;
	c->told += c->len - c->old;
	if (c->told < PERIOD + items / 8)
		return;
	float fade = (float)exp(-(double)c->told / (MEMORY + CACHES * (double)items));
	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++)
		for (uint32_t k = 0; k < CONTEST_STRATA; k++)
			c->shadow[i].score[k] *= fade;
	c->all += c->told;
	c->told = 0;
	judge(c);
}

/* ---- the sample ---- */

bool contest_sampled(const struct evict_contest *c, uint64_t key)
{
	return contest_mix(key ^ UINT64_C(0x5bd1e995)) <= c->limit;
}

/*
 * What is no longer in the sample leaves, tips first: each chain at once, up to where it branches.
 */
static void thin_out(struct evict_contest *c, struct shadow *s)
{
	const struct evict_node *node = s->e->node;

	for (uint32_t tip = 0; tip < CONTEST_IDS; tip++) {
		uint32_t id = tip, top = tip;

		if (!kvp_evict_contains(s->e, tip) || node[tip].children)
			continue;
		while (node[top].parent != NONE)
			top = node[top].parent;
		if (contest_sampled(c, node[top].key))
			continue;
		while (id != NONE && !node[id].children) {
			uint32_t parent = node[id].parent;

			shadow_remove(c, s, id, false);
			id = parent;
		}
	}
}

static void set_rate(struct evict_contest *c, uint64_t limit)
{
	const struct kvp_evict_params *p = &c->real->params;
	double rate = limit == CONTEST_ALL ? 1 : ldexp((double)limit + 1, -64);

	c->limit = limit;
	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++) {
		uint64_t items = (uint64_t)ceil((double)p->items * rate);
		uint64_t bytes = (uint64_t)ceil((double)p->bytes * rate);
		kvp_evict_resize(c->shadow[i].e, items, bytes);
	}
}

/* The sample does not fit: half of it. */
static void halve(struct evict_contest *c)
{
	c->overflow = false;
	set_rate(c, c->limit / 2);
	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++)
		thin_out(c, &c->shadow[i]);
}

static uint64_t limit_of(const struct evict_contest *c)
{
	uint64_t items = c->real->params.items;

	return items <= c->whole ? CONTEST_ALL
				 : (uint64_t)ldexp((double)SAMPLE / (double)items, 64);
}

void contest_sample(struct evict_contest *c, bool begin)
{
	const struct kvp_evict *e = c->real;
	uint64_t limit = begin || e->params.items ? limit_of(c) : c->limit;
	bool larger = !begin &&
		      (c->limit < limit / 2 || (limit == CONTEST_ALL && c->limit != CONTEST_ALL));

	if (larger) {
		/* shadows that never saw the others begin anew */
		set_rate(c, 0);
		for (uint32_t i = 0; i < CONTEST_EXPERTS; i++) {
			thin_out(c, &c->shadow[i]);
			memset(c->shadow[i].score, 0, sizeof(c->shadow[i].score));
		}
		c->want = c->leader;
		/* any may be in the sample now: a use of its chain tells */
		for (uint32_t id = 0; id < e->params.max_ids; id++)
			if (e->node[id].where != EVICT_OUT)
				e->node[id].flags |= CONTEST_SAMPLED;
	}
	set_rate(c, begin || larger || limit < c->limit ? limit : c->limit);
	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++)
		thin_out(c, &c->shadow[i]);
}

/* ---- a request ---- */

/* What the leader did not take in. */
static void set_aside(struct evict_contest *c)
{
	for (uint32_t k = c->len; contest_follows(c->real) && k-- > 0;)
		if (contest_shadow_find(&c->shadow[c->leader], c->prompt[k].key) == NONE)
			contest_put_aside(c->real, c->prompt[k].real, c->prompt[k].key);
}

void contest_flush(struct evict_contest *c)
{
	if (c->len > c->old) {
		for (uint32_t i = 0; i < CONTEST_EXPERTS; i++)
			live(c, &c->shadow[i], c->real->now);
		set_aside(c);
		if (c->overflow)
			halve(c);
		else if (c->begun)
			compare(c);
	}
	c->len = c->old = 0;
	c->last = NONE;
}

/* ---- life ---- */

static int shadow_init(struct evict_contest *c, uint32_t i)
{
	const struct kvp_evict_params *real = &c->real->params;
	struct shadow *s = &c->shadow[i];
	struct kvp_evict_params p = {
		.size = sizeof(p),
		.items = real->items,
		.bytes = real->bytes,
		.max_ids = c->whole + CONTEST_SLACK,
		.ghosts = i ? 2 * c->whole : c->whole + GHOSTS,
		.seed = real->seed,
	};

	for (uint32_t k = 0; k < CONTEST_BUCKETS; k++)
		s->bucket[k] = CONTEST_IDS;
	for (uint32_t k = 0; k < p.max_ids; k++)
		s->next[k] = (uint16_t)(k + 1 < p.max_ids ? k + 1 : CONTEST_IDS);
	s->free = 0;
	int r = evict_new(contest_expert[i], &p, &s->e);
	if (r == 0 && s->e->heap)
		/* the blocks' own keys are needed */
		s->e->arena = c->heap_key[contest_expert[i]->variant];
	return r;
}

int contest_shadows_init(struct evict_contest *c)
{
	const struct kvp_evict_params *real = &c->real->params;
	int r = 0;

	c->whole = real->max_ids < CONTEST_BLOCKS ? real->max_ids : CONTEST_BLOCKS;
	if (c->whole < SAMPLE ||
		(real->max_ids > MANY && (!real->items || real->items > CONTEST_BLOCKS)))
		c->whole = SAMPLE;
	for (uint32_t i = 0; r == 0 && i < CONTEST_EXPERTS; i++)
		r = shadow_init(c, i);
	if (r == 0)
		contest_sample(c, true);
	return r;
}

void contest_shadows_done(struct evict_contest *c)
{
	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++)
		kvp_evict_free(c->shadow[i].e);
}

uint64_t contest_shadows_memory(const struct evict_contest *c)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++) {
		struct kvp_evict_memory m;
		kvp_evict_memory(c->shadow[i].e, &m);
		n += m.total;
	}
	return n;
}

static int shadow_check(const struct evict_contest *c, const struct shadow *s)
{
	const struct evict_node *node = s->e->node;
	uint64_t found = 0;

	for (uint32_t id = 0; id < CONTEST_IDS; id++) {
		uint32_t top = id;
		if (!kvp_evict_contains(s->e, id) || node[id].children)
			continue;
		while (node[top].parent != NONE)
			top = node[top].parent;
		if (!contest_sampled(c, node[top].key))
			return -EIO;
	}

	for (uint32_t b = 0; b < CONTEST_BUCKETS; b++)
		for (uint32_t id = s->bucket[b]; id != CONTEST_IDS; id = s->next[id])
			if (!kvp_evict_contains(s->e, id) || ++found > CONTEST_IDS)
				return -EIO;
	return found == s->e->items ? kvp_evict_assert_consistency(s->e) : -EIO;
}

int contest_shadows_check(const struct evict_contest *c)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < CONTEST_EXPERTS; i++)
		r = shadow_check(c, &c->shadow[i]);
	return r;
}
