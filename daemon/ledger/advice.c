/* SPDX-License-Identifier: Apache-2.0 */
/* Queue, graph and rankings of a tenant; advice.h says who touches what, and in which order. */
#include "daemon/ledger/advice.h"

#include <errno.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/figures.h"
#include "daemon/ledger/advisor.h"
#include "daemon/ledger/list.h"
#include "shm/kvp_atomic.h"

#define GRAPH_IDS   (UINT32_C(1) << 26) /* more than that it does not know */
#define QUEUE_MIN   1024u
#define QUEUE_MAX   65536u
#define EDGES       8u             /* for each block with a payload */
#define TOGETHER    16u            /* blocks of one session that are joined by one look */
#define HALF_LIFE   1200e9         /* ns; of those that were tried the best, docs/policies.md */
#define SPARED_FROM .6f            /* a score; docs/policies.md has what others cost */
#define FRESH       ((uintptr_t)1) /* in the word: the ledger has not had it */
#define RANKING(w)  ((struct kvp_ranking *)((w) & ~FRESH))

enum { EVENT_PUT, EVENT_GONE, EVENT_USED, EVENT_LEASED, EVENT_PLACE };

struct event {
	uint32_t kind;
	uint32_t block;
	uint32_t other; /* PUT: the parent; LEASED: the look; PLACE: is it cold? */
	uint32_t session;
	uint32_t first_token; /* PUT, and these */
	uint16_t tokens, label;
};

struct kvpd_advice {
	struct kvpd_advised advised;
	struct kvpd_advisor *advisor;
	/* the ledger's line */
	alignas(64) _Atomic(uint32_t) tail;
	uint32_t head_seen; /* there was room up to here behind it */
	struct kvp_ranking *held;
	uint32_t spares; /* of that one, so far */
	_Atomic(uint64_t) dropped;
	_Atomic(uint64_t) consulted, stale, spared;
	uint64_t *brought; /* a bit for each id: advice brought it to its device; NULL: none does */
	_Atomic(uint64_t) suggested, fetched, fetched_used;
	/* between them */
	alignas(64) _Atomic(uintptr_t) offer;
	/* the advisor's */
	alignas(64) _Atomic(uint32_t) head;
	uint32_t n_together;
	uint32_t session, look; /* of `together` */
	kvp_block_id together[TOGETHER];
	bool news; /* since the last ranking */
	uint64_t ranked_ns;
	struct kvp_graph *graph;
	_Atomic(uint64_t) made_ns, cycle_ns, cpu_ns, longest_ns, rankings;
	_Atomic(uint32_t) nodes, edges;
	_Atomic(uint32_t) labelled[KVP_LABELS]; /* nodes; as they are, not as they were ranked */
	/* of both, as they were made */
	alignas(64) struct event *event;
	uint32_t mask;
	uint32_t ids, batch, ahead;
	uint64_t bytes;
};

/* ---- making ---------------------------------------------------------------------------------- */

static uint32_t queue_room(const struct kvpd_advice_size *size)
{
	uint32_t n = QUEUE_MIN;

	while (n < QUEUE_MAX && n < size->blocks)
		n *= 2;
	return n;
}

static uint32_t ids_of(const struct kvpd_advice_size *size)
{
	return size->ids < GRAPH_IDS ? size->ids : GRAPH_IDS;
}

static uint32_t batch_of(const struct kvpd_advice_size *size)
{
	return size->batch < ids_of(size) ? size->batch : ids_of(size);
}

/* Words of the bits that say what advice brought. */
static uint64_t brought_words(const struct kvpd_advice_size *size)
{
	return size->ahead ? (ids_of(size) + UINT64_C(63)) / 64 : 0;
}

static struct kvp_graph_opts graph_opts(const struct kvpd_advice_size *size)
{
	uint64_t edges = size->blocks * (uint64_t)EDGES;
	struct kvp_graph_opts o;

	if (edges < EDGES)
		edges = EDGES;
	if (edges > UINT32_C(1) << 27)
		edges = UINT32_C(1) << 27;
	kvp_graph_opts_init(&o, ids_of(size), (uint32_t)edges, HALF_LIFE);
	return o;
}

uint64_t kvpd_advice_bytes(const struct kvpd_advice_size *size)
{
	struct kvp_graph_opts o = graph_opts(size);

	return sizeof(struct kvpd_advice) + queue_room(size) * (uint64_t)sizeof(struct event) +
	       kvp_graph_bytes(&o) + 2 * kvp_ranking_bytes(ids_of(size), batch_of(size)) +
	       brought_words(size) * sizeof(uint64_t);
}

int kvpd_advice_new(const struct kvpd_advice_size *size, struct kvpd_advice **ret_advice)
{
	struct kvpd_advice *a = aligned_alloc(alignof(struct kvpd_advice), sizeof(*a));
	struct kvp_graph_opts o = graph_opts(size);
	struct kvp_ranking *first;
	int r;

	if (!a)
		return -ENOMEM;
	memset(a, 0, sizeof(*a));
	a->mask = queue_room(size) - 1;
	a->ids = ids_of(size);
	a->batch = batch_of(size);
	a->ahead = size->ahead < KVPD_ADVICE_AHEAD ? size->ahead : KVPD_ADVICE_AHEAD;
	if (a->ahead)
		a->brought = calloc(brought_words(size), sizeof(*a->brought));
	a->bytes = kvpd_advice_bytes(size);
	a->event = calloc(a->mask + 1, sizeof(*a->event));
	a->held = kvp_ranking_new(ids_of(size), batch_of(size));
	first = kvp_ranking_new(ids_of(size), batch_of(size));
	atomic_init(&a->offer, (uintptr_t)first);
	r = kvp_graph_new(&o, &a->graph);
	if (r == 0 && (!a->event || !a->held || !first || (a->ahead && !a->brought)))
		r = -ENOMEM;
	if (r < 0) {
		kvpd_advice_free(a);
		return r;
	}
	*ret_advice = a;
	return 0;
}

struct kvpd_advice *kvpd_advice_free(struct kvpd_advice *a)
{
	if (a) {
		kvp_graph_free(a->graph);
		kvp_ranking_free(a->held);
		kvp_ranking_free(RANKING(kvp_load_relaxed(&a->offer)));
		free(a->brought);
		free(a->event);
		free(a);
	}
	return NULL;
}

static void take_turn(struct kvpd_advised *advised, struct kvpd_advisor *v)
{
	struct kvpd_advice *a = kvpd_container(advised, struct kvpd_advice, advised);

	kvpd_advice_listen(a, v->chain, kvpd_now_ns());
	kvpd_advice_rank(a, kvpd_now_ns(), v->config.period_ms * KVPD_MS);
}

static void free_advised(struct kvpd_advised *advised)
{
	kvpd_advice_free(kvpd_container(advised, struct kvpd_advice, advised));
}

void kvpd_advice_join(struct kvpd_advisor *v, struct kvpd_advice *a)
{
	a->advised = (struct kvpd_advised){ .turn = take_turn, .free = free_advised };
	a->advisor = v;
	kvpd_advisor_join(v, &a->advised);
}

void kvpd_advice_leave(struct kvpd_advice *a)
{
	if (a)
		kvpd_advisor_leave(a->advisor, &a->advised);
}

/* ---- the ledger's side ----------------------------------------------------------------------- */

static void tell(struct kvpd_advice *a, const struct event *e)
{
	uint32_t tail;

	if (!a)
		return;
	tail = kvp_load_relaxed(&a->tail);
	if (tail - a->head_seen > a->mask) {
		/* acquire: what was in the slots has been read; pairs with release in listen() */
		a->head_seen = kvp_load_acquire(&a->head);
		if (tail - a->head_seen > a->mask) {
			kvp_bump(&a->dropped, 1);
			return;
		}
	}
	a->event[tail & a->mask] = *e;
	/* release: pairs with acquire in listen() */
	kvp_store_release(&a->tail, tail + 1);
}

void kvpd_advice_put(struct kvpd_advice *a, kvp_block_id block, kvp_block_id parent,
	uint32_t first_token, uint32_t tokens, uint32_t session, uint32_t label)
{
	tell(a, &(struct event){ EVENT_PUT, block, parent, session, first_token, (uint16_t)tokens,
			(uint16_t)label });
}

void kvpd_advice_place(struct kvpd_advice *a, kvp_block_id block, bool cold)
{
	if (kvpd_advice_fetches(a))
		tell(a, &(struct event){ .kind = EVENT_PLACE, .block = block, .other = cold });
}

void kvpd_advice_gone(struct kvpd_advice *a, kvp_block_id block)
{
	tell(a, &(struct event){ .kind = EVENT_GONE, .block = block });
}

void kvpd_advice_used(struct kvpd_advice *a, kvp_block_id tip, uint32_t session)
{
	tell(a, &(struct event){ .kind = EVENT_USED, .block = tip, .session = session });
}

void kvpd_advice_leased(struct kvpd_advice *a, kvp_block_id block, uint32_t session, uint32_t look)
{
	tell(a, &(struct event){ EVENT_LEASED, block, look, session, 0, 0, 0 });
}

/* Takes the newest ranking; is it young enough? */
static bool take_newest(struct kvpd_advice *a, uint64_t now)
{
	uintptr_t seen = kvp_load_relaxed(&a->offer);

	/* acquire: pairs with the store in rank(); release: with its exchange */
	if (seen & FRESH && kvp_cas_seq(&a->offer, &seen, (uintptr_t)a->held)) {
		a->held = RANKING(seen);
		a->spares = 0;
	}
	return !kvp_ranking_stale(a->held, now, KVPD_ADVICE_MAX_AGE_NS);
}

const struct kvp_ranking *kvpd_advice_consult(struct kvpd_advice *a, uint64_t now)
{
	if (!a)
		return NULL;
	kvp_bump(&a->consulted, 1);
	if (take_newest(a, now))
		return a->held;
	kvp_bump(&a->stale, 1);
	return NULL;
}

bool kvpd_advice_spares(struct kvpd_advice *a, kvp_block_id block)
{
	if (!a || a->spares == a->batch || kvp_ranking_score(a->held, block) < SPARED_FROM)
		return false;
	a->spares++;
	kvp_bump(&a->spared, 1);
	return true;
}

bool kvpd_advice_fetches(const struct kvpd_advice *a)
{
	return a && a->ahead;
}

uint32_t kvpd_advice_suggest(struct kvpd_advice *a, const kvp_block_id *active, uint32_t n,
	uint64_t now, kvp_block_id *ret_blocks)
{
	int found = 0;

	if (kvpd_advice_fetches(a) && take_newest(a, now))
		found = kvp_ranking_prefetch(
			a->held, now, KVPD_ADVICE_MAX_AGE_NS, active, n, a->ahead, ret_blocks);
	if (found <= 0)
		return 0;
	kvp_bump(&a->suggested, (uint64_t)found);
	return (uint32_t)found;
}

uint32_t kvpd_advice_lowest(
	struct kvpd_advice *a, uint64_t now, uint32_t n, kvp_block_id *ret_blocks)
{
	int found = 0;

	if (kvpd_advice_fetches(a) && take_newest(a, now))
		found = kvp_ranking_evict(a->held, now, KVPD_ADVICE_MAX_AGE_NS, n, ret_blocks);
	return found > 0 ? (uint32_t)found : 0;
}

bool kvpd_advice_below(const struct kvpd_advice *a, kvp_block_id low, kvp_block_id block)
{
	float score = kvp_ranking_score(a->held, low);

	return score >= 0 && score < kvp_ranking_score(a->held, block);
}

void kvpd_advice_came(struct kvpd_advice *a, kvp_block_id block, bool advised)
{
	const uint64_t bit = UINT64_C(1) << block % 64;

	if (!kvpd_advice_fetches(a) || block >= a->ids)
		return;
	a->brought[block / 64] &= ~bit;
	if (!advised)
		return;
	a->brought[block / 64] |= bit;
	kvp_bump(&a->fetched, 1);
}

void kvpd_advice_paid(struct kvpd_advice *a, kvp_block_id block)
{
	if (kvpd_advice_fetches(a) && block < a->ids && a->brought[block / 64] >> block % 64 & 1)
		kvp_bump(&a->fetched_used, 1);
}

void kvpd_advice_read(
	const struct kvpd_advice *a, uint64_t now, struct kvpd_advisor_figures *ret_figures)
{
	uint64_t made;

	if (!a)
		return;
	made = kvp_load_relaxed(&a->made_ns);
	*ret_figures = (struct kvpd_advisor_figures){
		.on = true,
		.bytes = a->bytes,
		.made = made != 0,
		.age_ns = made && now > made ? now - made : 0,
		.cycle_ns = kvp_load_relaxed(&a->cycle_ns),
		.cpu_ns = kvp_load_relaxed(&a->cpu_ns),
		.longest_ns = kvp_load_relaxed(&a->longest_ns),
		.rankings = kvp_load_relaxed(&a->rankings),
		.nodes = kvp_load_relaxed(&a->nodes),
		.edges = kvp_load_relaxed(&a->edges),
		.dropped = kvp_load_relaxed(&a->dropped),
		.consulted = kvp_load_relaxed(&a->consulted),
		.stale = kvp_load_relaxed(&a->stale),
		.spared = kvp_load_relaxed(&a->spared),
		.suggested = kvp_load_relaxed(&a->suggested),
		.fetched = kvp_load_relaxed(&a->fetched),
		.fetched_used = kvp_load_relaxed(&a->fetched_used),
	};
	for (uint32_t i = 0; i < KVP_LABELS; i++)
		ret_figures->labelled[i] = kvp_load_relaxed(&a->labelled[i]);
}

/* ---- the advisor's side ---------------------------------------------------------------------- */

static void enter_gone(struct kvpd_advice *a, kvp_block_id block, uint64_t now)
{
	struct kvp_graph_node n;

	if (kvp_graph_get(a->graph, block, now, &n) < 0)
		return;
	(void)kvp_graph_remove(a->graph, block);
	kvp_bump(&a->labelled[n.block.label], -1);
}

static void enter_put(struct kvpd_advice *a, const struct event *e, uint64_t now)
{
	struct kvp_graph_block b = {
		.block = e->block,
		.parent = e->other,
		.label = e->label,
		.first_token = e->first_token,
		.tokens = e->tokens,
		.session = e->session,
	};
	int r = kvp_graph_insert(a->graph, &b, now);

	/* Somebody's end was dropped, or the parent's beginning. */
	if (r == -EEXIST) {
		enter_gone(a, e->block, now);
		r = kvp_graph_insert(a->graph, &b, now);
	}
	if (r == -EINVAL) {
		b.parent = KVP_BLOCK_NONE;
		r = kvp_graph_insert(a->graph, &b, now);
	}
	if (r == 0)
		kvp_bump(&a->labelled[b.label], 1);
}

/*
 * The chain as the graph has it, from the tip up. Where events were dropped that may be another
 * chain, and even end in itself, so it is no longer than there is room.
 */
static uint32_t enter_used(
	struct kvpd_advice *a, const struct event *e, kvp_block_id *chain, uint64_t now)
{
	uint32_t first = KVPD_ADVICE_CHAIN;
	struct kvp_graph_node n;
	kvp_block_id b = e->block;

	while (first && b != KVP_BLOCK_NONE && kvp_graph_get(a->graph, b, now, &n) == 0) {
		chain[--first] = b;
		b = n.block.parent;
	}
	kvp_graph_request(a->graph, chain + first, KVPD_ADVICE_CHAIN - first, e->session, now);
	kvp_graph_co_attend(a->graph, chain + first, KVPD_ADVICE_CHAIN - first, now);
	return KVPD_ADVICE_CHAIN - first;
}

static void end_together(struct kvpd_advice *a, uint64_t now)
{
	if (a->n_together > 1)
		kvp_graph_co_attend(a->graph, a->together, a->n_together, now);
	a->n_together = 0;
}

static void enter_leased(struct kvpd_advice *a, const struct event *e, uint64_t now)
{
	if (a->session != e->session || a->look != e->other) {
		end_together(a, now);
		a->session = e->session;
		a->look = e->other;
	}
	if (a->n_together < TOGETHER)
		a->together[a->n_together++] = e->block;
}

/* Returns how much work that was. */
static uint32_t enter(
	struct kvpd_advice *a, const struct event *e, kvp_block_id *chain, uint64_t now)
{
	uint32_t work = 1;

	if (e->kind != EVENT_LEASED)
		end_together(a, now);
	switch (e->kind) {
	case EVENT_PUT:
		enter_put(a, e, now);
		break;
	case EVENT_GONE:
		enter_gone(a, e->block, now);
		break;
	case EVENT_PLACE:
		(void)kvp_graph_spill(a->graph, e->block, (int)e->other, now);
		break;
	case EVENT_USED:
		work += enter_used(a, e, chain, now);
		break;
	case EVENT_LEASED:
		enter_leased(a, e, now);
		break;
	}
	return work;
}

uint32_t kvpd_advice_listen(struct kvpd_advice *a, kvp_block_id *chain, uint64_t now)
{
	uint32_t head = kvp_load_relaxed(&a->head), work = 0, n;
	/* acquire: the events are there; pairs with release in tell() */
	uint32_t tail = kvp_load_acquire(&a->tail);

	for (n = 0; head != tail && work < KVPD_ADVICE_WORK; n++) {
		struct event e = a->event[head & a->mask];

		/* release: it was read; pairs with acquire in tell() */
		kvp_store_release(&a->head, ++head);
		work += enter(a, &e, chain, now);
	}
	a->news = a->news || n;
	return n;
}

int kvpd_advice_rank(struct kvpd_advice *a, uint64_t now, uint64_t period_ns)
{
	struct kvp_ranking *r;
	uint64_t began = kvpd_now_ns(), cpu = kvpd_thread_ns(), took;
	uint32_t nodes, edges;

	if (!a->news || now - a->ranked_ns < period_ns)
		return 0;
	end_together(a, now);
	/* acquire: the ledger has read it; pairs with its exchange */
	r = RANKING(kvp_xchg_seq(&a->offer, 0));
	(void)kvp_graph_rank(a->graph, NULL, now, r);
	kvp_ranking_size(r, &nodes, &edges);
	/* release: it is whole; pairs with acquire in the ledger's exchange */
	kvp_store_release(&a->offer, (uintptr_t)r | FRESH);
	took = kvpd_now_ns() - began;
	a->news = false;
	a->ranked_ns = now;
	kvp_store_relaxed(&a->made_ns, now);
	kvp_store_relaxed(&a->cycle_ns, took);
	kvp_store_relaxed(&a->cpu_ns, kvpd_thread_ns() - cpu);
	if (took > kvp_load_relaxed(&a->longest_ns))
		kvp_store_relaxed(&a->longest_ns, took);
	kvp_store_relaxed(&a->nodes, nodes);
	kvp_store_relaxed(&a->edges, edges);
	kvp_bump(&a->rankings, 1);
	return 1;
}
