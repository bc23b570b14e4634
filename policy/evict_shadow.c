/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Never a bet: small caches, one for each algorithm that may be in charge, live through a sample
 * of what happens. The one that hits most takes charge of the real cache.
 *
 * A cache of up to BLOCKS blocks is sampled whole, and one of up to SAMPLE if it was made larger,
 * for more than MANY ids. From a larger one we take whole chains, by a hash of their topmost block,
 * and shadows of SAMPLE blocks: each sees the same share of the traffic as it has of the capacity.
 * Blocks that many chains share (a system prompt) are left out, since no algorithm would evict
 * them, and they would drag all their chains into the sample or out of it. If only bytes bound the
 * cache, the share is halved until the sample fits.
 *
 * Hits are counted in STRATA, by chain, and fade slowly. An algorithm takes over when it leads the
 * one in charge by more than chance would bring about. Chance is told by how much its lead differs
 * from stratum to stratum: what belongs together (the turns of a conversation, the uses of a
 * document) lies in one, so that one lucky chain counts once.
 *
 * Where the shadows see everything, the one in charge tells exactly what the real cache should
 * hold. Blocks are then always in the structures of the first algorithm, and those that the
 * leader's shadow does not hold are put aside, to go first: within one turnover the real cache is
 * what the leader's would have been, and a block that both hold is never moved.
 *
 * Where they see a sample, taking over means that all blocks leave the old structures in the order
 * in which they would have gone, and enter the new ones, O(n log n). Either happens only when
 * victims are asked for, when no block is in between.
 */
#include "policy/evict_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE    KVP_BLOCK_NONE
#define BLOCKS  4096u         /* most that a shadow holds: larger caches are sampled */
#define SAMPLE  1024u         /* that it holds of a sample */
#define MANY    (48 * BLOCKS) /* ids; with more, a cache of BLOCKS is not to be expected */
#define SLACK   512u          /* for the request that is being served */
#define IDS     (BLOCKS + SLACK)
#define BUCKETS 8192u
#define PROMPT  BLOCKS /* blocks of a request that the shadows are told of */
#define GHOSTS  20480u /* of a shadow of hazard, beside its blocks; others remember less */
#define TRUNK   7u     /* EVICT_BRANCHES: so often continued that it is no chain's own */
#define ALL     UINT64_MAX

#define STRATA 64u
#define PERIOD 64u      /* blocks from one comparison to the next, and 1/8 of the capacity */
#define MEMORY 100000.0 /* blocks, and CACHES times the capacity, until a hit has faded to 1/e */
#define CACHES 50.0

/*
 * A lead must be so many standard deviations, and LEAST hits, and pay for a part of what would have
 * to be brought in. A sample must be surer: few chains are in it. So must be whatever is known from
 * little more than EARLY blocks.
 */
#define LEAD        1.0
#define LEAD_SAMPLE 4.0
#define LEAST       8.0
#define EARLY       5000.0
#define COST        0.25 /* hits, for a block that is not there */
#define COST_SAMPLE 1.0  /* the new structures know little of the others, either */

static const struct evict_ops *const experts[] = {
	&evict_hazard,
	&evict_s3fifo,
	&evict_s3fifo_30,
	&evict_sieve,
	&evict_arc,
	&evict_lru,
	&evict_gdsf,
	&evict_lfuda,
};
#define EXPERTS (sizeof(experts) / sizeof(experts[0]))

struct shadow {
	struct kvp_evict *e;
	uint32_t hits;       /* of the current request */
	float score[STRATA]; /* hits, of which the old ones fade */
	uint16_t free;
	uint16_t bucket[BUCKETS]; /* ids by key, linked by next; IDS: none */
	uint16_t next[IDS];
	uint32_t real[IDS]; /* the same block in the real cache, when last told of */
};

struct known {
	uint64_t key;
	uint32_t bytes;
	uint32_t depth;
	float cost;
	uint32_t flags;
	uint32_t real; /* id; NONE: refused */
};

struct evict_shadows {
	struct kvp_evict *real;
	void *self[EXPERTS]; /* of the real cache */
	uint32_t leader;
	uint32_t want;
	uint64_t limit; /* hashes up to it are in the sample */
	uint32_t whole; /* a cache of so many blocks is sampled whole */
	bool begun;     /* the real cache is full: algorithms make a difference */
	bool overflow;
	bool expects; /* insert() of this key: the shadows know it */
	uint64_t expected;
	uint32_t told; /* blocks since the last comparison */
	double all;    /* blocks before it */
	uint64_t draws;
	/* the request being told of, and the real block that its last entry stands for */
	uint32_t len;
	uint32_t old; /* of len: told before */
	uint32_t last;
	struct known prompt[PROMPT];
	uint64_t heap_key[2][IDS]; /* of the shadows that have heaps */
	struct shadow shadow[EXPERTS];
};

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
	x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
	return x ^ x >> 32;
}

/*
 * If the shadows see all there is, the leader's says what the real cache should hold. That is
 * then always in the structures of the first algorithm; what the leader does not hold is put
 * aside, and goes first.
 */
static bool follows(const struct kvp_evict *e)
{
	return e->shadows->leader && e->ops == experts[0];
}

static void put_aside(struct kvp_evict *e, uint32_t id, uint64_t key)
{
	struct evict_node *n = &e->node[id];

	if (id == NONE || n->key != key || !evict_in_queue(n) || n->where == EVICT_ASIDE)
		return;
	e->ops->detach(e, id);
	evict_push_young(e, EVICT_ASIDE, id);
}

/* ---- a shadow ---- */

static uint16_t *bucket_of(struct shadow *s, uint64_t key)
{
	return &s->bucket[mix(key) % BUCKETS];
}

static uint32_t find(const struct shadow *s, uint64_t key)
{
	uint16_t i = s->bucket[mix(key) % BUCKETS];

	while (i != IDS && s->e->node[i].key != key)
		i = s->next[i];
	return i == IDS ? NONE : i;
}

static void shadow_remove(struct evict_shadows *sh, struct shadow *s, uint32_t id, bool evicted)
{
	uint64_t key = s->e->node[id].key;
	uint16_t *link = bucket_of(s, s->e->node[id].key);

	while (*link != id)
		link = &s->next[*link];
	*link = s->next[id];
	s->next[id] = s->free;
	s->free = (uint16_t)id;
	kvp_evict_remove(s->e, id, evicted, 0);
	if (s == &sh->shadow[sh->leader] && follows(sh->real))
		put_aside(sh->real, s->real[id], key);
}

static int is_tip(void *ctx, kvp_block_id id)
{
	return id == *(const uint32_t *)ctx;
}

static bool make_room(
	struct evict_shadows *sh, struct shadow *s, uint64_t items, uint64_t bytes, uint32_t tip)
{
	kvp_block_id out[64];
	bool any = false;

	while (items || bytes) {
		uint64_t was = s->e->bytes;
		size_t n = kvp_evict_victims(s->e, items, bytes, is_tip, &tip, 0, out, 64);
		if (!n)
			break;
		for (size_t i = 0; i < n; i++)
			shadow_remove(sh, s, out[i], true);
		uint64_t freed = was - s->e->bytes;
		items -= n < items ? n : items;
		bytes -= freed < bytes ? freed : bytes;
		any = true;
	}
	return any;
}

/* Returns the new block's id, or NONE if there is no room. */
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
			make_room(sh, s, 0, s->e->bytes - room, tip);
		if (s->free == IDS && !p->items)
			sh->overflow = true;
	}
	if (s->free == IDS && !make_room(sh, s, 1, 0, tip))
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
static void live(struct evict_shadows *sh, struct shadow *s, uint64_t now)
{
	struct kvp_evict *e = s->e;
	uint32_t tip = NONE, id, k = 0;
	uint64_t items, bytes;

	if (now > e->now)
		e->now = now;
	for (; k < sh->len && (id = find(s, sh->prompt[k].key)) != NONE; k++) {
		tip = id;
		s->real[id] = sh->prompt[k].real;
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
	make_room(sh, s, items, bytes, NONE);
}

/* ---- the contest ---- */

static bool is_here(const struct evict_shadows *sh, const struct shadow *s, uint32_t id)
{
	uint64_t key = s->e->node[id].key;
	uint32_t real = s->real[id];

	if (sh->limit != ALL)
		return find(&sh->shadow[sh->leader], key) != NONE;
	return real != NONE && sh->real->node[real].where != EVICT_OUT &&
	       sh->real->node[real].key == key;
}

/* Blocks that would have to come before the real cache is like this shadow. */
static double missing(const struct evict_shadows *sh, const struct shadow *s)
{
	uint32_t n = 0;

	for (uint32_t id = 0; id < IDS; id++)
		n += kvp_evict_contains(s->e, id) && !is_here(sh, s, id);
	return n;
}

/* By how many hits a shadow leads that of the one in charge, beyond what chance may do. */
static double lead_of(const struct evict_shadows *sh, uint32_t i)
{
	double lead = 0, square = 0, early = sqrt(1 + EARLY / (sh->all + 1));
	double z = sh->limit == ALL ? LEAD : LEAD_SAMPLE;

	for (uint32_t k = 0; k < STRATA; k++) {
		double d = (double)sh->shadow[i].score[k] - (double)sh->shadow[sh->leader].score[k];
		lead += d;
		square += d * d;
	}
	return lead - z * early * sqrt(fmax(0, square - lead * lead / STRATA));
}

/* Who should be in charge. */
static void judge(struct evict_shadows *sh)
{
	double best = LEAST, cost = sh->limit == ALL ? COST : COST_SAMPLE;

	sh->want = sh->leader;
	for (uint32_t i = 0; i < EXPERTS; i++) {
		double lead = lead_of(sh, i);
		if (i == sh->leader || lead <= best)
			continue;
		lead -= cost * missing(sh, &sh->shadow[i]);
		if (lead > best) {
			best = lead;
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

/* What is no longer in the sample leaves, tips first: each chain at once, up to where it branches.
 */
static void thin_out(struct evict_shadows *sh, struct shadow *s)
{
	const struct evict_node *node = s->e->node;

	for (uint32_t tip = 0; tip < IDS; tip++) {
		uint32_t id = tip, top = tip;

		if (!kvp_evict_contains(s->e, tip) || node[tip].children)
			continue;
		while (node[top].parent != NONE)
			top = node[top].parent;
		if (sampled(sh, node[top].key))
			continue;
		while (id != NONE && !node[id].children) {
			uint32_t parent = node[id].parent;

			shadow_remove(sh, s, id, false);
			id = parent;
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

/* What the leader did not take in. */
static void set_aside(struct kvp_evict *e)
{
	struct evict_shadows *sh = e->shadows;

	for (uint32_t k = sh->len; follows(e) && k-- > 0;)
		if (find(&sh->shadow[sh->leader], sh->prompt[k].key) == NONE)
			put_aside(e, sh->prompt[k].real, sh->prompt[k].key);
}

static void flush(struct kvp_evict *e)
{
	struct evict_shadows *sh = e->shadows;

	if (sh->len > sh->old) {
		for (uint32_t i = 0; i < EXPERTS; i++)
			live(sh, &sh->shadow[i], e->now);
		set_aside(e);
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

static struct known describe(const struct kvp_evict *e, uint32_t id)
{
	const struct evict_node *n = &e->node[id];

	return (struct known){
		.real = id,
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
			sh->prompt[n] = describe(e, id);
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

/* admit() has told of it already. */
static void arrived(struct kvp_evict *e, uint32_t id)
{
	struct evict_shadows *sh = e->shadows;
	uint64_t key = e->node[id].key;

	for (uint32_t i = 0; i < EXPERTS; i++) {
		uint32_t twin = find(&sh->shadow[i], key);
		if (twin != NONE)
			sh->shadow[i].real[twin] = id;
		else if (i == sh->leader && follows(e))
			put_aside(e, id, key);
	}
	e->node[id].flags |= EVICT_SAMPLED;
	sh->expects = false;
}

void evict_shadows_inserted(struct kvp_evict *e, uint32_t id)
{
	struct evict_shadows *sh = e->shadows;
	struct evict_node *n = &e->node[id];
	struct evict_node *parent = n->parent != NONE ? &e->node[n->parent] : NULL;

	if (sh->expects && sh->expected == n->key && !parent) {
		arrived(e, id);
		return;
	}
	sh->expects = false;
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
		if (!load_chain(e, n->parent)) {
			n->flags &= (uint8_t)~EVICT_SAMPLED;
			return;
		}
		sh->old = sh->len;
	}
	sh->last = id;
	if (sh->len < PROMPT)
		sh->prompt[sh->len++] = describe(e, id);
}

static void tell_of(struct kvp_evict *e, const struct kvp_evict_item *item, uint64_t key)
{
	struct evict_shadows *sh = e->shadows;

	flush(e);
	sh->prompt[sh->len++] = (struct known){
		.real = NONE,
		.key = key,
		.bytes = item->bytes ? item->bytes : 1,
		.cost = isfinite(item->cost) && item->cost > 0 ? item->cost : 1,
	};
	flush(e);
}

bool evict_shadows_admit(struct kvp_evict *e, const struct kvp_evict_item *item, uint64_t key)
{
	struct evict_shadows *sh = e->shadows;

	if (e->ops->admit && !e->ops->admit(e, item, key)) {
		if (item->parent == NONE && sampled(sh, key))
			tell_of(e, item, key);
		return false;
	}
	if (sh->limit != ALL || item->parent != NONE || e->ops->admit)
		return true;
	/* before room is made: what goes for this one is then known */
	tell_of(e, item, key);
	sh->expected = key;
	sh->expects = true;
	return !follows(e) || find(&sh->shadow[sh->leader], key) != NONE;
}

/* ---- taking over ---- */

static uint32_t push(struct kvp_evict *e, uint32_t *last, uint32_t id)
{
	if (*last != NONE)
		e->node[*last].link.old = id;
	*last = id;
	e->node[id].link.old = NONE;
	return id;
}

/* All cached blocks, in the order in which they would have gone, linked by link.old. */
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

static void adopt(struct kvp_evict *e, uint32_t id, double rank)
{
	e->node[id].where = EVICT_OUT;
	if (e->ops->adopt)
		e->ops->adopt(e, id, rank);
	else
		e->ops->insert(e, id, NULL);
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
	if (e->ops->learn)
		e->ops->learn(e, sh->shadow[leader].e);
	for (; id != NONE; id = next) {
		next = e->node[id].link.old;
		adopt(e, id, (double)n++ / (double)e->items);
	}
	if (e->ops->capacity)
		e->ops->capacity(e);
}

static bool held(const struct kvp_evict *e, uint32_t id)
{
	return find(&e->shadows->shadow[e->shadows->leader], e->node[id].key) != NONE;
}

bool evict_shadows_unwanted(const struct kvp_evict *e, uint32_t id)
{
	return e->shadows && follows(e) && !held(e, id);
}

static void follow(struct kvp_evict *e, uint32_t leader)
{
	e->shadows->leader = leader;
	e->ops->part(e, held);
}

void evict_shadows_settle(struct kvp_evict *e)
{
	struct evict_shadows *sh = e->shadows;

	flush(e);
	sh->begun = true;
	if (sh->limit != ALL && follows(e)) {
		/* no longer sure what the leader holds */
		sh->leader = 0;
		experts[0]->part(e, NULL);
	} else if (sh->limit == ALL && e->ops != experts[0]) {
		sh->want = 0;
		take_over(e, 0);
	}
	if (sh->want == sh->leader)
		return;
	if (sh->limit == ALL)
		follow(e, sh->want);
	else
		take_over(e, sh->want);
}

/* ---- life ---- */

static int shadow_init(struct kvp_evict *real, struct shadow *s, uint32_t i)
{
	uint32_t whole = real->shadows->whole;
	struct kvp_evict_params p = {
		.size = sizeof(p),
		.items = real->params.items,
		.bytes = real->params.bytes,
		.max_ids = whole + SLACK,
		.ghosts = experts[i]->contest ? whole + GHOSTS : 2 * whole,
		.seed = real->params.seed,
	};

	for (uint32_t k = 0; k < BUCKETS; k++)
		s->bucket[k] = IDS;
	for (uint32_t k = 0; k < p.max_ids; k++)
		s->next[k] = (uint16_t)(k + 1 < p.max_ids ? k + 1 : IDS);
	s->free = 0;
	int r = evict_new_plain(experts[i], &p, &s->e);
	if (r < 0)
		return r;
	if (s->e->heap)
		/* the blocks' own keys are needed */
		s->e->arena = real->shadows->heap_key[experts[i]->variant];
	return 0;
}

static uint64_t limit_of(const struct kvp_evict *e)
{
	uint64_t items = e->params.items;

	return items <= e->shadows->whole ? ALL
					  : (uint64_t)ldexp((double)SAMPLE / (double)items, 64);
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
	sh->real = e;
	sh->whole = e->params.max_ids < BLOCKS ? e->params.max_ids : BLOCKS;
	if (sh->whole < SAMPLE ||
		(e->params.max_ids > MANY && (!e->params.items || e->params.items > BLOCKS)))
		sh->whole = SAMPLE;
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
		/* any may be in the sample now: load_chain() looks when it is used */
		for (uint32_t id = 0; id < e->params.max_ids; id++)
			if (e->node[id].where != EVICT_OUT)
				e->node[id].flags |= EVICT_SAMPLED;
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

static int shadow_check(const struct evict_shadows *sh, const struct shadow *s)
{
	const struct evict_node *node = s->e->node;
	uint64_t found = 0;

	for (uint32_t id = 0; id < IDS; id++) {
		uint32_t top = id;
		if (!kvp_evict_contains(s->e, id) || node[id].children)
			continue;
		while (node[top].parent != NONE)
			top = node[top].parent;
		if (!sampled(sh, node[top].key))
			return -EIO;
	}

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
		r = shadow_check(e->shadows, &e->shadows->shadow[i]);
	return r;
}

uint32_t evict_shadows_favour(struct kvp_evict *e, uint32_t expert)
{
	e->shadows->want = expert % EXPERTS;
	return EXPERTS;
}
