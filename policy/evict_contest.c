/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A contest: small caches, one for each algorithm that may be in charge, live through a sample of
 * what happens, and the algorithm whose cache hits most takes charge of the real one. It is a
 * wrapper around the algorithms: every operation goes to the one in charge, and is told to the
 * shadows besides.
 *
 * A cache of up to CONTEST_BLOCKS blocks is sampled whole, and one of up to SAMPLE if it was made
 * larger, for more than MANY ids. From a larger one we take whole chains, by a hash of their
 * topmost block, and shadows of SAMPLE blocks: each sees the same share of the traffic as it has of
 * the capacity. Blocks that many chains share (a system prompt) are left out, since no algorithm
 * would evict them, and they would drag all their chains into the sample or out of it. If only
 * bytes bound the cache, the share is halved until the sample fits.
 *
 * Hits are counted in strata, by chain, and fade slowly. An algorithm takes over when it leads the
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
 * in which they would have gone, and enter the new ones. Either happens only when victims are asked
 * for, when no block is in between.
 */
#include "policy/evict_contest.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/evict_hazard.h"

const struct evict_ops *const contest_expert[CONTEST_EXPERTS] = {
	&evict_hazard,
	&evict_s3fifo,
	&evict_s3fifo_30,
	&evict_sieve,
	&evict_arc,
	&evict_lru,
	&evict_gdsf,
	&evict_lfuda,
};

bool contest_follows(const struct kvp_evict *e)
{
	return e->contest->leader && e->ops == contest_expert[0];
}

void contest_put_aside(struct kvp_evict *e, uint32_t id, uint64_t key)
{
	struct evict_node *n = &e->node[id];

	if (id == NONE || n->key != key || !evict_in_queue(n) || n->where == EVICT_ASIDE)
		return;
	e->ops->detach(e, id);
	evict_push_young(e, EVICT_ASIDE, id);
}

static bool held(const struct kvp_evict *e, uint32_t id)
{
	const struct evict_contest *c = e->contest;

	return contest_shadow_find(&c->shadow[c->leader], e->node[id].key) != NONE;
}

/* ---- what is told to the shadows ---- */

static bool trunk(const struct evict_contest *c, const struct evict_node *n)
{
	return c->limit != CONTEST_ALL &&
	       (n->flags & CONTEST_BRANCHES) >> CONTEST_BRANCHES_SHIFT == CONTEST_TRUNK;
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
	struct evict_contest *c = e->contest;
	uint32_t n = 0, top = NONE;

	for (uint32_t id = tip; id != NONE && !trunk(c, &e->node[id]); id = e->node[id].parent) {
		top = id;
		n++;
	}
	if (top == NONE)
		return false;
	if (!contest_sampled(c, e->node[top].key)) {
		e->node[tip].flags &= (uint8_t)~CONTEST_SAMPLED;
		return false;
	}
	c->len = n < CONTEST_PROMPT ? n : CONTEST_PROMPT;
	c->last = tip;
	for (uint32_t id = tip; n-- > 0; id = e->node[id].parent)
		if (n < CONTEST_PROMPT)
			c->prompt[n] = describe(e, id);
	return true;
}

/* The chain up to here is used; just this block, if alone. */
static void tell_use(struct kvp_evict *e, uint32_t tip, bool alone)
{
	struct evict_contest *c = e->contest;

	contest_flush(c);
	if (!(e->node[tip].flags & CONTEST_SAMPLED) || !load_chain(e, tip))
		return;
	if (alone && c->len > 1)
		c->old = c->len - 1;
}

static void branch(struct evict_contest *c, struct evict_node *parent)
{
	uint32_t b = (parent->flags & CONTEST_BRANCHES) >> CONTEST_BRANCHES_SHIFT;

	/* a count that rises with probability 1, 1, 1/2, 1/4, ... (Morris 1978) */
	if (b < CONTEST_TRUNK && (b < 2 || !(contest_mix(++c->draws) >> (65 - b))))
		parent->flags += 1u << CONTEST_BRANCHES_SHIFT;
}

/* admit() has told of it already. */
static void arrived(struct kvp_evict *e, uint32_t id)
{
	struct evict_contest *c = e->contest;
	uint64_t key = e->node[id].key;

	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++) {
		uint32_t twin = contest_shadow_find(&c->shadow[i], key);
		if (twin != NONE)
			c->shadow[i].real[twin] = id;
		else if (i == c->leader && contest_follows(e))
			contest_put_aside(e, id, key);
	}
	e->node[id].flags |= CONTEST_SAMPLED;
}

/* Where it stands among those; n_expected: it does not. */
static uint32_t expected_at(const struct evict_contest *c, uint64_t key)
{
	uint32_t i = 0;

	while (i < c->n_expected && c->expected[i] != key)
		i++;
	return i;
}

/* True: it was one of those, and is not any more. */
static bool expected(struct evict_contest *c, uint64_t key)
{
	uint32_t i = expected_at(c, key);

	if (i == c->n_expected)
		return false;
	memmove(&c->expected[i], &c->expected[i + 1],
		(--c->n_expected - i) * sizeof(c->expected[0]));
	return true;
}

/* Who admits several before the first of them is inserted has them told once each. */
static void expect(struct evict_contest *c, uint64_t key)
{
	(void)expected(c, key);
	if (c->n_expected == CONTEST_EXPECTED)
		(void)expected(c, c->expected[0]);
	c->expected[c->n_expected++] = key;
}

static void tell_insert(struct kvp_evict *e, uint32_t id)
{
	struct evict_contest *c = e->contest;
	struct evict_node *n = &e->node[id];
	struct evict_node *parent = n->parent != NONE ? &e->node[n->parent] : NULL;

	if (!parent && expected(c, n->key)) {
		arrived(e, id);
		return;
	}
	if (parent)
		branch(c, parent);
	if (!parent || trunk(c, parent) ? contest_sampled(c, n->key)
					: parent->flags & CONTEST_SAMPLED)
		n->flags |= CONTEST_SAMPLED;
	else
		return;
	if (!parent || trunk(c, parent)) {
		contest_flush(c);
	} else if (n->parent != c->last || !c->len) {
		contest_flush(c);
		if (!load_chain(e, n->parent)) {
			n->flags &= (uint8_t)~CONTEST_SAMPLED;
			return;
		}
		c->old = c->len;
	}
	c->last = id;
	if (c->len < CONTEST_PROMPT)
		c->prompt[c->len++] = describe(e, id);
}

static void tell_object(struct kvp_evict *e, const struct kvp_evict_item *item, uint64_t key)
{
	struct evict_contest *c = e->contest;

	contest_flush(c);
	c->prompt[c->len++] = (struct known){
		.real = NONE,
		.key = key,
		.bytes = item->bytes ? item->bytes : 1,
		.cost = isfinite(item->cost) && item->cost > 0 ? item->cost : 1,
	};
	contest_flush(c);
}

/* ---- taking charge ---- */

/*
 * All cached blocks, in the order in which they would have gone, linked by link.old. They are in no
 * queue then.
 */
static uint32_t drain(struct kvp_evict *e)
{
	uint32_t first = NONE, last = NONE, id;

	while ((id = e->ops->take(e)) != NONE) {
		struct evict_node *n = &e->node[id];

		if (n->children) {
			n->where = EVICT_PARKED;
			continue;
		}
		if (last == NONE)
			first = id;
		else
			e->node[last].link.old = id;
		last = id;
		n->link.old = NONE;
		if (n->parent != NONE)
			evict_release_parent(e, n->parent);
	}
	for (id = first; id != NONE; id = e->node[id].link.old)
		if (e->node[id].parent != NONE)
			e->node[e->node[id].parent].children++;
	return first;
}

static void take_over(struct kvp_evict *e, uint32_t leader)
{
	struct evict_contest *c = e->contest;
	uint32_t id = drain(e), next;
	uint64_t n = 0;

	c->leader = leader;
	e->ops = contest_expert[leader];
	e->self = c->self[leader];
	evict_clear_lists(e);
	evict_ghosts_clear(e->ghosts);
	e->hand = NONE;
	if (e->ops->reset)
		e->ops->reset(e);
	if (e->ops->learn)
		e->ops->learn(e, c->shadow[leader].e);
	for (; id != NONE; id = next) {
		next = e->node[id].link.old;
		e->node[id].where = EVICT_OUT;
		if (e->ops->adopt)
			e->ops->adopt(e, id, (double)n++ / (double)e->items);
		else
			e->ops->insert(e, id, NULL);
	}
	if (e->ops->capacity)
		e->ops->capacity(e);
}

static void contest_settle(struct kvp_evict *e)
{
	struct evict_contest *c = e->contest;

	contest_flush(c);
	c->begun = true;
	if (c->limit != CONTEST_ALL && contest_follows(e)) {
		/* no longer sure what the leader holds */
		c->leader = 0;
		hazard_part(e, NULL);
	} else if (c->limit == CONTEST_ALL && e->ops != contest_expert[0]) {
		c->want = 0;
		take_over(e, 0);
	}
	if (c->want != c->leader) {
		if (c->limit == CONTEST_ALL) {
			c->leader = c->want;
			hazard_part(e, held);
		} else {
			take_over(e, c->want);
		}
	}
	if (e->ops->settle)
		e->ops->settle(e);
}

void contest_favour(struct kvp_evict *e, uint32_t expert)
{
	e->contest->want = expert % CONTEST_EXPERTS;
}

/* ---- operations: to the one in charge, and to the shadows ---- */

static bool contest_admit(struct kvp_evict *e, const struct kvp_evict_item *item, uint64_t key)
{
	struct evict_contest *c = e->contest;

	if (e->ops->admit && !e->ops->admit(e, item, key)) {
		if (item->parent == NONE && contest_sampled(c, key))
			tell_object(e, item, key);
		return false;
	}
	if (c->limit != CONTEST_ALL || item->parent != NONE || e->ops->admit)
		return true;
	/* before room is made: what goes for this one is then known */
	tell_object(e, item, key);
	expect(c, key);
	return !contest_follows(e) || contest_shadow_find(&c->shadow[c->leader], key) != NONE;
}

static void contest_request(struct kvp_evict *e, const struct kvp_evict_request *req)
{
	contest_flush(e->contest);
	if (e->ops->request)
		e->ops->request(e, req);
}

static void contest_chain(struct kvp_evict *e, uint32_t tip, bool alone)
{
	tell_use(e, tip, alone);
	if (e->ops->chain)
		e->ops->chain(e, tip, alone);
}

/* Another algorithm may be in charge by the time that a chain is gone on with. */
static uint32_t contest_current(const struct kvp_evict *e)
{
	return e->ops->current ? e->ops->current(e) : 0;
}

static void contest_resume(struct kvp_evict *e, uint32_t request)
{
	if (e->ops->resume)
		e->ops->resume(e, request);
}

static void contest_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	e->ops->insert(e, id, item);
	tell_insert(e, id);
}

static void contest_detach(struct kvp_evict *e, uint32_t id)
{
	if (e->node[id].where == EVICT_ASIDE)
		evict_unlink(e, id);
	else
		e->ops->detach(e, id);
}

static void contest_access(struct kvp_evict *e, uint32_t id)
{
	if (e->node[id].where == EVICT_ASIDE)
		evict_unlink(e, id);
	e->ops->access(e, id);
}

static uint32_t contest_take(struct kvp_evict *e)
{
	if (e->list[EVICT_ASIDE].items)
		return evict_pop_old(e, EVICT_ASIDE);
	return e->ops->take(e);
}

static void contest_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	if (how == EVICT_BACK_DUE && contest_follows(e) && !held(e, id))
		evict_push_old(e, EVICT_ASIDE, id);
	else
		e->ops->back(e, id, how);
}

static void contest_gone(struct kvp_evict *e, uint32_t id, bool evicted)
{
	if (e->ops->gone)
		e->ops->gone(e, id, evicted);
}

static bool contest_hot(const struct kvp_evict *e, uint32_t id)
{
	return e->ops->hot(e, id);
}

static void contest_resized(struct kvp_evict *e, uint32_t id, uint32_t was)
{
	if (e->ops->resized)
		e->ops->resized(e, id, was);
}

static void contest_capacity(struct kvp_evict *e)
{
	if (e->ops->capacity)
		e->ops->capacity(e);
	contest_flush(e->contest);
	contest_sample(e->contest, false);
}

static int contest_check(const struct kvp_evict *e, uint64_t in_queues)
{
	int r = contest_shadows_check(e->contest);

	if (r == 0 && e->ops->check)
		return e->ops->check(e, in_queues);
	return r == 0 && in_queues ? -EIO : r;
}

/* ---- life ---- */

static uint64_t arena_bytes(const struct kvp_evict *e)
{
	/* some groups are there whatever the capacity */
	return ((uint64_t)e->params.max_ids + 2048) * EVICT_ARENA_BYTES;
}

/*
 * The state of all algorithms that may take over, in one arena where they need memory for each
 * block, since only one of them uses it at a time.
 */
static int contest_init(struct kvp_evict *e)
{
	struct evict_contest *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	e->contest = c;
	c->real = e;
	e->arena = calloc(1, arena_bytes(e));
	if (!e->arena)
		return -ENOMEM;
	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++) {
		e->ops = contest_expert[i];
		e->self = NULL;
		int r = e->ops->init ? e->ops->init(e) : 0;
		c->self[i] = e->self;
		if (r < 0)
			return r;
	}
	e->ops = contest_expert[0];
	e->self = c->self[0];
	e->ops->reset(e);
	c->last = NONE;
	return contest_shadows_init(c);
}

static void contest_fini(struct kvp_evict *e)
{
	struct evict_contest *c = e->contest;

	if (!c)
		return;
	for (uint32_t i = 0; i < CONTEST_EXPERTS; i++) {
		e->self = c->self[i];
		if (contest_expert[i]->fini)
			contest_expert[i]->fini(e);
	}
	contest_shadows_done(c);
	free(e->arena);
	free(c);
}

static void contest_memory(const struct kvp_evict *e, struct kvp_evict_memory *m)
{
	const struct evict_contest *c = e->contest;

	m->total += sizeof(*c) + arena_bytes(e) + contest_shadows_memory(c);
	m->per_block += EVICT_ARENA_BYTES;
	evict_hazard.memory(e, m);
	evict_gdsf.memory(e, m); /* the heap serves LFU-DA, too */
}

const struct evict_ops evict_contest = {
	.name = "contest",
	.about = "hazard, or whichever of seven others hits more in a small cache beside it",
	.init = contest_init,
	.fini = contest_fini,
	.capacity = contest_capacity,
	.admit = contest_admit,
	.request = contest_request,
	.chain = contest_chain,
	.current = contest_current,
	.resume = contest_resume,
	.insert = contest_insert,
	.access = contest_access,
	.settle = contest_settle,
	.take = contest_take,
	.back = contest_back,
	.detach = contest_detach,
	.gone = contest_gone,
	.hot = contest_hot,
	.resized = contest_resized,
	.check = contest_check,
	.memory = contest_memory,
};
