/* SPDX-License-Identifier: Apache-2.0 */
/* Queue, requests and curve of a tenant; curve.h says who touches what. */
#include "daemon/ledger/curve.h"

#include <errno.h>
#include <math.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/ledger/advisor.h"
#include "daemon/ledger/list.h"
#include "policy/kvp_mrc.h"
#include "shm/kvp_atomic.h"

#define QUEUE_MIN   4096u
#define QUEUE_MAX   16384u
#define SAMPLES_MAX 8192u /* .006 on conversations: docs/policies.md */
#define BUCKETS_MAX 4096u
#define REACH       4u                  /* times as many blocks as the tenant may have */
#define DECAY_LEAST (UINT64_C(1) << 20) /* references, and */
#define DECAY_TIMES 16u       /* times as many as it may have blocks, count half from then on */
#define OPEN        8u        /* sessions whose requests are put together at a time */
#define OPEN_KEYS   1024u     /* blocks of a request; of a longer one so many at a time */
#define WORK        QUEUE_MAX /* events that one turn enters at most: some milliseconds */
#define FRESH       ((uintptr_t)1) /* in the word: the ledger has not had it */
#define POINTS(w)   ((struct kvpd_curve_points *)((w) & ~FRESH))

enum { EVENT_BEGIN, EVENT_USED, EVENT_PUT };

/* The digest's first half stands for the block: another one with the same is as unlikely as 2^-64. */
struct event {
	uint64_t key;
	uint32_t session;
	uint32_t kind;
};

/* A request that may go on. */
struct open {
	uint32_t session;
	uint32_t used; /* of the keys, the first ones: found, tip first; the others were brought */
	uint32_t n;
	struct kvp_key key[OPEN_KEYS];
};

struct kvpd_curve {
	struct kvpd_advised advised;
	struct kvpd_advisor *advisor;
	/* the ledger's line */
	alignas(64) _Atomic(uint32_t) tail;
	uint32_t head_seen; /* there was room up to here behind it */
	struct kvpd_curve_points *held;
	_Atomic(uint64_t) lost;
	/* between them */
	alignas(64) _Atomic(uintptr_t) offer;
	_Atomic(uint64_t) wanted;
	/* the advisor's */
	alignas(64) _Atomic(uint32_t) head;
	struct kvp_mrc *mrc;
	struct open *open; /* [OPEN], by session */
	uint64_t made;     /* number of the last points */
	uint64_t requests, references;
	uint64_t undecayed; /* references since counts were last halved */
	/* of both, as they were made */
	alignas(64) struct event *event;
	uint32_t mask;
	uint64_t decay;
	uint64_t reach;
};

/* ---- making ---------------------------------------------------------------------------------- */

static uint32_t power_from(uint32_t least, uint32_t most, uint32_t n)
{
	uint32_t p = least;

	while (p < most && p < n)
		p *= 2;
	return p;
}

static uint32_t queue_room(uint32_t max_blocks)
{
	return power_from(QUEUE_MIN, QUEUE_MAX, max_blocks);
}

static struct kvp_mrc_params mrc_params(uint32_t max_blocks, uint64_t seed)
{
	uint64_t reach = (uint64_t)max_blocks * REACH;
	uint32_t buckets = power_from(KVP_MRC_FRONT, BUCKETS_MAX, max_blocks);

	return (struct kvp_mrc_params){
		.size = sizeof(struct kvp_mrc_params),
		.samples = power_from(KVP_MRC_FRONT, SAMPLES_MAX,
			reach < SAMPLES_MAX ? (uint32_t)reach : SAMPLES_MAX),
		.buckets = buckets,
		.bucket_size = (reach + buckets - 1) / buckets,
		.seed = seed,
	};
}

uint64_t kvpd_curve_bytes(uint32_t max_blocks)
{
	struct kvp_mrc_params p = mrc_params(max_blocks, 0);

	return sizeof(struct kvpd_curve) + queue_room(max_blocks) * sizeof(struct event) +
	       OPEN * sizeof(struct open) + 2 * sizeof(struct kvpd_curve_points) +
	       kvp_mrc_bytes(&p);
}

static void curve_free(struct kvpd_curve *c)
{
	kvp_mrc_free(c->mrc);
	free(c->held);
	free(POINTS(kvp_load_relaxed(&c->offer)));
	free(c->open);
	free(c->event);
	free(c);
}

static void free_advised(struct kvpd_advised *advised)
{
	curve_free(kvpd_container(advised, struct kvpd_curve, advised));
}

static void take_turn(struct kvpd_advised *advised, struct kvpd_advisor *v);

int kvpd_curve_new(
	struct kvpd_advisor *v, uint32_t max_blocks, uint64_t seed, struct kvpd_curve **ret_curve)
{
	struct kvpd_curve *c = aligned_alloc(alignof(struct kvpd_curve), sizeof(*c));
	struct kvp_mrc_params p = mrc_params(max_blocks, seed);
	int r;

	if (!c)
		return -ENOMEM;
	memset(c, 0, sizeof(*c));
	c->mask = queue_room(max_blocks) - 1;
	c->reach = p.buckets * p.bucket_size;
	c->decay = (uint64_t)max_blocks * DECAY_TIMES;
	c->decay = c->decay > DECAY_LEAST ? c->decay : DECAY_LEAST;
	c->event = calloc(c->mask + 1, sizeof(*c->event));
	c->open = calloc(OPEN, sizeof(*c->open));
	c->held = calloc(1, sizeof(*c->held));
	atomic_init(&c->offer, (uintptr_t)calloc(1, sizeof(*c->held)));
	r = kvp_mrc_new(&p, &c->mrc);
	if (r == 0 && (!c->event || !c->open || !c->held || !kvp_load_relaxed(&c->offer)))
		r = -ENOMEM;
	if (r < 0) {
		curve_free(c);
		return r;
	}
	c->advised = (struct kvpd_advised){ .turn = take_turn, .free = free_advised };
	c->advisor = v;
	kvpd_advisor_join(v, &c->advised);
	*ret_curve = c;
	return 0;
}

void kvpd_curve_leave(struct kvpd_curve *c)
{
	if (c)
		kvpd_advisor_leave(c->advisor, &c->advised);
}

/* ---- the ledger's side ----------------------------------------------------------------------- */

static void tell(struct kvpd_curve *c, uint32_t kind, uint64_t key, uint32_t session)
{
	uint32_t tail = kvp_load_relaxed(&c->tail);

	if (tail - c->head_seen > c->mask) {
		/* acquire: what was in the slots has been read; pairs with release in listen() */
		c->head_seen = kvp_load_acquire(&c->head);
		if (tail - c->head_seen > c->mask) {
			kvp_bump(&c->lost, 1);
			return;
		}
	}
	c->event[tail & c->mask] = (struct event){ key, session, kind };
	/* release: pairs with acquire in listen() */
	kvp_store_release(&c->tail, tail + 1);
	if (!((tail + 1) & (c->mask / 4)))
		kvpd_advisor_wake(c->advisor);
}

void kvpd_curve_begin(struct kvpd_curve *c, uint32_t session)
{
	tell(c, EVENT_BEGIN, 0, session);
}

void kvpd_curve_used(struct kvpd_curve *c, struct kvp_key key, uint32_t session)
{
	tell(c, EVENT_USED, key.lo, session);
}

void kvpd_curve_put(struct kvpd_curve *c, struct kvp_key key, uint32_t session)
{
	tell(c, EVENT_PUT, key.lo, session);
}

void kvpd_curve_want(struct kvpd_curve *c, uint64_t number)
{
	if (number <= kvp_load_relaxed(&c->wanted))
		return;
	/* release: pairs with acquire in take_turn(), so that what was told before is in the answer */
	kvp_store_release(&c->wanted, number);
	kvpd_advisor_wake(c->advisor);
}

const struct kvpd_curve_points *kvpd_curve_read(struct kvpd_curve *c)
{
	uintptr_t seen = kvp_load_relaxed(&c->offer);

	/* acquire: pairs with the store in answer(); release: with its exchange */
	if (seen & FRESH && kvp_cas_seq(&c->offer, &seen, (uintptr_t)c->held))
		c->held = POINTS(seen);
	return c->held;
}

uint64_t kvpd_curve_lost(const struct kvpd_curve *c)
{
	return kvp_load_relaxed(&c->lost);
}

static uint64_t size_of_point(uint32_t i)
{
	return (uint64_t)exp2((double)i / KVPD_CURVE_OCTAVE);
}

double kvpd_curve_ratio(const struct kvpd_curve_points *p, uint64_t blocks)
{
	uint32_t i = 0;
	uint64_t from, to;

	if (!blocks)
		return 0;
	while (i + 2 < KVPD_CURVE_POINTS && size_of_point(i + 1) <= blocks)
		i++;
	from = size_of_point(i);
	to = size_of_point(i + 1);
	if (blocks >= to || to == from)
		return (double)p->ratio[i + 1];
	return (double)p->ratio[i] + (double)(p->ratio[i + 1] - p->ratio[i]) *
					     (double)(blocks - from) / (double)(to - from);
}

/* ---- the advisor's side ---------------------------------------------------------------------- */

/* Root first: what was found came the other way round. */
static void enter_request(struct kvpd_curve *c, struct open *o)
{
	for (uint32_t i = 0, j = o->used; i + 1 < j; i++) {
		struct kvp_key k = o->key[i];

		o->key[i] = o->key[--j];
		o->key[j] = k;
	}
	kvp_mrc_request(c->mrc, o->key, o->n);
	c->references += o->n;
	c->undecayed += o->n;
	o->used = o->n = 0;
	if (c->undecayed < c->decay)
		return;
	kvp_mrc_decay(c->mrc);
	c->undecayed = 0;
}

static void enter(struct kvpd_curve *c, const struct event *e)
{
	struct open *o = &c->open[e->session % OPEN];

	if (e->kind == EVENT_BEGIN || o->session != e->session || o->n == OPEN_KEYS)
		enter_request(c, o);
	o->session = e->session;
	if (e->kind == EVENT_BEGIN) {
		c->requests++;
		return;
	}
	/* What is found after something was brought belongs to a request whose beginning was lost. */
	if (e->kind == EVENT_USED && o->used < o->n)
		enter_request(c, o);
	o->key[o->n++] = (struct kvp_key){ .lo = e->key };
	o->used += e->kind == EVENT_USED;
}

/* Returns whether nothing is left of what had been told when it began. */
static bool listen(struct kvpd_curve *c)
{
	uint32_t head = kvp_load_relaxed(&c->head);
	/* acquire: the events are there; pairs with release in tell() */
	uint32_t tail = kvp_load_acquire(&c->tail);

	for (uint32_t n = 0; head != tail && n < WORK; n++) {
		struct event e = c->event[head & c->mask];

		/* release: it was read; pairs with acquire in tell() */
		kvp_store_release(&c->head, ++head);
		enter(c, &e);
	}
	return head == tail;
}

static void answer(struct kvpd_curve *c, uint64_t number)
{
	struct kvpd_curve_points *p;

	for (uint32_t i = 0; i < OPEN; i++)
		enter_request(c, &c->open[i]);
	/* acquire: the ledger has read them; pairs with its exchange */
	p = POINTS(kvp_xchg_seq(&c->offer, 0));
	p->number = number;
	p->requests = c->requests;
	p->references = c->references;
	p->reach = c->reach;
	p->followed = kvp_mrc_rate(c->mrc);
	for (uint32_t i = 0; i < KVPD_CURVE_POINTS; i++)
		p->ratio[i] = (float)kvp_mrc_hit_ratio(c->mrc, size_of_point(i));
	/* release: they are whole; pairs with acquire in the ledger's exchange */
	kvp_store_release(&c->offer, (uintptr_t)p | FRESH);
	c->made = number;
}

static void take_turn(struct kvpd_advised *advised, struct kvpd_advisor *v)
{
	struct kvpd_curve *c = kvpd_container(advised, struct kvpd_curve, advised);
	/* acquire: pairs with release in kvpd_curve_want() */
	uint64_t wanted = kvp_load_acquire(&c->wanted);
	bool through = listen(c);

	if (wanted > c->made && through)
		answer(c, wanted);
	else if (!through)
		kvpd_advisor_wake(v); /* others first */
}
