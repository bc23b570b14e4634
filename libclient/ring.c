/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's side of the two rings: questions out, answers in, waiting for them.
 *
 * A ledger that runs answers everything within moments (a RESERVE that finds no room within 50 ms).
 * One that is stopped, or hangs, would cost each call its timeout. So the first call that has waited
 * in vain marks the attachment as stuck, and while it is no call waits: what needs an answer is
 * -EAGAIN or -ETIMEDOUT at once. The question left open is the probe: its answer lies in the ring as
 * soon as the ledger goes on, and the next call that looks there takes the mark away.
 */
#include "libclient/ring.h"
#include "libclient/events.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS    200u              /* looks before a wait sleeps: the ledger is that quick */
#define SLICE_NS (100 * NS_PER_MS) /* a sleeper looks whether the daemon still lives */
#define FULL_NS  UINT64_C(50000)   /* nap while the submission ring is full */

/* ---- sleeping -------------------------------------------------------------------------------- */

void word_wait(KVP_ATOMIC(uint32_t) *word, uint32_t seen, uint64_t deadline)
{
	uint64_t now = now_ns(), ns;
	struct timespec ts;

	if (now >= deadline)
		return;
	ns = deadline - now < SLICE_NS ? deadline - now : SLICE_NS;
	ts = (struct timespec){ .tv_nsec = (long)ns };
	(void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &ts, NULL, 0);
}

void word_wake(KVP_ATOMIC(uint32_t) *word)
{
	(void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- attachments ----------------------------------------------------------------------------- */

struct attachment *attachment_get(struct kvp_client *client)
{
	struct attachment *att = kvp_load_seq(&client->att);

	if (att)
		att->refs++;
	return att;
}

void attachment_put(struct attachment *att)
{
	att->refs--;
}

/* Fails only when the counter is full, and then the ledger is awake anyway. */
void ledger_wake(struct attachment *att)
{
	(void)!write(att->wake, &(uint64_t){ 1 }, 8);
}

/* ---- grants ---------------------------------------------------------------------------------- */

void grant_return(struct kvp_grant *g)
{
	struct attachment *att = g->att;

	att->extents[g->extent].grants--;
	g->state = GRANT_RETURNED;
	att->n_returned++;
}

void ask_sweep(struct attachment *att)
{
	if (kvp_load_relaxed(&att->stocked))
		return;
	kvp_store_relaxed(&att->stocked, 1);
	client_kick(att->client);
}

/* Pushes what is to be given back, as far as the ring has room. */
static void push_returned(struct attachment *att)
{
	for (uint32_t i = 0; att->n_returned && i < KVP_MAX_GRANTS; i++) {
		struct kvp_grant *g = &att->grants[i];
		struct kvp_sqe sqe = {
			.op = KVP_OP_RELEASE,
			.grant = g->id,
			.grant_generation = g->generation,
		};

		if (g->state != GRANT_RETURNED)
			continue;
		sqe.serial = ++att->other_serial;
		if (kvp_sq_push(att->page, &att->sq_tail, &sqe) < 0)
			return;
		g->state = GRANT_NONE;
		att->n_returned--;
	}
}

static struct stock *stock_asking(
	struct attachment *att, uint32_t serial, struct space_bind **ret_bind)
{
	for (uint32_t i = 0; i < KVP_MAX_SPACES * STOCKS; i++) {
		struct stock *k = &att->binds[i / STOCKS].stock[i % STOCKS];

		*ret_bind = &att->binds[i / STOCKS];
		if (k->asking && k->serial == serial)
			return k;
	}
	return NULL;
}

/* Does the extent lie in this medium? A daemon that is older than devices to write on answers otherwise. */
static int lies_in(const struct attachment *att, uint32_t extent, uint32_t medium)
{
	const struct kvp_shm_extent *x = &att->view.extents[extent % KVP_MAX_EXTENTS];

	if (!medium || kvp_load_relaxed(&x->tier) != KVP_TIER_VRAM)
		return !medium;
	return kvp_load_relaxed(&x->device) == medium - 1;
}

/* Is the slot one of ours to write: a mapped arena of this client, and within it? */
static uint8_t *slot_addr(struct attachment *att, const struct kvp_cqe *cqe)
{
	const struct extent_map *em;
	uint64_t bytes;

	if (cqe->extent >= KVP_MAX_EXTENTS)
		return NULL;
	em = &att->extents[cqe->extent];
	bytes = kvp_load_relaxed(&em->bytes);
	if (!kvp_load_seq(&em->base) || !em->writable || cqe->bytes > bytes ||
		cqe->offset > bytes - cqe->bytes)
		return NULL;
	return (uint8_t *)kvp_load_seq(&em->base) + cqe->offset;
}

/* The same of memory that a device alone addresses. */
static uint64_t slot_there(struct attachment *att, const struct kvp_cqe *cqe)
{
	const struct extent_map *em = &att->extents[cqe->extent % KVP_MAX_EXTENTS];
	uint64_t there = kvp_load_seq(&em->there), bytes = kvp_load_relaxed(&em->bytes);

	if (cqe->extent >= KVP_MAX_EXTENTS || !there || !em->writable || cqe->bytes > bytes ||
		cqe->offset > bytes - cqe->bytes)
		return 0;
	return there + cqe->offset;
}

static void take_slot(struct attachment *att, struct stock *b, const struct kvp_cqe *cqe)
{
	struct kvp_grant *g;

	if (cqe->grant >= KVP_MAX_GRANTS)
		return;
	g = &att->grants[cqe->grant];
	if (g->state != GRANT_NONE)
		return;
	*g = (struct kvp_grant){
		.att = att,
		.id = cqe->grant,
		.generation = cqe->grant_generation,
		.extent = cqe->extent % KVP_MAX_EXTENTS,
		.addr = slot_addr(att, cqe),
		.there = slot_there(att, cqe),
		.offset = cqe->offset,
	};
	att->extents[g->extent].grants++;
	/* Asked for by a space that is closed by now, or not usable: back it goes. */
	if (!b || (!g->addr && !g->there)) {
		grant_return(g);
		return;
	}
	g->state = GRANT_AHEAD;
	b->ahead[b->n_ahead++] = (uint8_t)g->id;
}

static void take_reserve(struct attachment *att, const struct kvp_cqe *cqe)
{
	struct space_bind *bind;
	struct stock *b = stock_asking(att, cqe->serial, &bind);
	int other = b && !cqe->status && !lies_in(att, cqe->extent, b->medium);

	if (cqe->status == 0)
		take_slot(att, b && !other && kvp_load_relaxed(&bind->open) ? b : NULL, cqe);
	if (b && (cqe->status || other)) {
		b->answers++;
		b->refusal = other ? -EOPNOTSUPP : cqe->status;
		b->retry_ms = cqe->retry_ms;
		b->refused_ns = now_ns();
		b->batch = 1;
	}
	if (b && !cqe->more)
		b->asking = 0;
}

/* 1: the outcome of a commit is known now. */
static int take_commit(struct attachment *att, const struct kvp_cqe *cqe)
{
	struct commit *k = &att->commits[cqe->serial % N_COMMITS];

	if (!k->used || k->serial != cqe->serial || k->outcome != OUTCOME_UNKNOWN)
		return 0;
	k->parked = cqe->flags & KVP_CQE_PARKED;
	if (k->parked) {
		KVP_FAULT("parked");
		return 0;
	}
	k->outcome = cqe->status;
	if (!cqe->status && cqe->flags & KVP_CQE_DUPLICATE)
		k->outcome = KVP_COMMITTED_DUPLICATE;
	k->block = cqe->block;
	k->birth = cqe->birth;
	if (k->grant) {
		struct kvp_grant *g = &att->grants[k->grant - 1];

		g->outcome = k->outcome;
		g->block = k->block;
		g->birth = k->birth;
	}
	return 1;
}

/* ---- the rings ------------------------------------------------------------------------------- */

static void take_answer(struct attachment *att, const struct kvp_cqe *cqe)
{
	for (struct ring_waiter *w = att->waiters; w; w = w->next) {
		if (w->op == cqe->op && w->serial == cqe->serial &&
			!(cqe->flags & KVP_CQE_PARKED)) {
			w->cqe = *cqe;
			w->done = 1;
			return;
		}
	}
}

/* Has the ledger said nothing for so long that a question is open in vain? */
static int is_silent(const struct attachment *att)
{
	return att->open_questions && now_ns() - att->quiet_since >= KVP_ANSWER_MS * NS_PER_MS;
}

/* A call gives up waiting. One that would not wait learns nothing by that. */
static int give_up(struct attachment *att, int error)
{
	if (is_silent(att)) {
		att->stuck = 1;
		att->timeouts++;
	}
	return error;
}

int ring_stuck(struct attachment *att)
{
	ring_drain(att);
	return (int)att->stuck;
}

/* That an entry waits for a moment is an answer; what becomes of it then is told unasked. */
static void note_answer(struct attachment *att, const struct kvp_cqe *cqe)
{
	if (att->open_questions && !(cqe->op == KVP_OP_RESERVE && cqe->more) &&
		!(cqe->flags & (KVP_CQE_LATE | KVP_CQE_PLACE)))
		att->open_questions--;
}

void ring_drain(struct attachment *att)
{
	uint32_t before = att->cq_head;
	struct kvp_cqe cqe;
	uint32_t happened = 0;

	if (kvp_load_relaxed(&att->dead))
		return;
	while (kvp_cq_pop(att->page, &att->cq_head, &cqe) == 0) {
		note_answer(att, &cqe);
		if (cqe.op == KVP_OP_RESERVE)
			take_reserve(att, &cqe);
		else if (cqe.op == KVP_OP_COMMIT)
			happened |= take_commit(att, &cqe) ? KVP_EVENT_COMMITS : 0;
		else if (cqe.op == KVP_OP_WARM || cqe.op == KVP_OP_WANT)
			happened |= warm_answer(att, &cqe) ? KVP_EVENT_WARMS : 0;
		else if (cqe.op == KVP_OP_SERVE && serve_answer(att, &cqe))
			happened |= KVP_EVENT_DEMANDS;
		else
			take_answer(att, &cqe);
	}
	if (att->cq_head != before) {
		att->quiet_since = now_ns();
		att->stuck = 0;
	}
	if (happened)
		event_announce(att->client, happened);
	if (att->n_returned) {
		push_returned(att);
		if (att->n_returned)
			ask_sweep(att);
		if (kvp_sq_must_wake(att->page))
			ledger_wake(att);
	}
}

int ring_submit(struct attachment *att, const struct kvp_sqe *sqe, uint64_t deadline)
{
	struct kvp_client *c = att->client;

	ring_drain(att);
	for (;;) {
		if (kvp_load_seq(&att->dead))
			return -ESHUTDOWN;
		if (kvp_sq_push(att->page, &att->sq_tail, sqe) == 0)
			break;
		if (att->stuck)
			return -EAGAIN;
		if (now_ns() >= deadline)
			return give_up(att, -EAGAIN);
		pthread_mutex_unlock(&c->ring_lock);
		nanosleep(&(struct timespec){ .tv_nsec = FULL_NS }, NULL);
		pthread_mutex_lock(&c->ring_lock);
		ring_drain(att);
	}
	if (sqe->op != KVP_OP_UNCLAIM && !att->open_questions++)
		att->quiet_since = now_ns();
	if (kvp_sq_must_wake(att->page))
		ledger_wake(att);
	return 0;
}

int ring_wait(struct attachment *att, uint64_t deadline)
{
	struct kvp_session_page *page = att->page;
	struct kvp_client *c = att->client;
	uint32_t seen = att->cq_head, spins = 0;

	if (kvp_load_seq(&att->dead))
		return -ESHUTDOWN;
	if (att->stuck)
		return -ETIMEDOUT;
	if (now_ns() >= deadline)
		return give_up(att, -ETIMEDOUT);
	att->refs++;
	pthread_mutex_unlock(&c->ring_lock);
	while (kvp_load_seq(&page->cq_tail) == seen && spins++ < SPINS)
		kvp_cpu_relax();
	if (kvp_load_seq(&page->cq_tail) == seen) {
		/* Sequentially consistent: pairs with kvp_cq_push() and kvp_cq_must_wake(). */
		atomic_fetch_add(&page->cq_waiters, 1);
		KVP_FAULT("ring-wait");
		if (kvp_load_seq(&page->cq_tail) == seen && !kvp_load_seq(&att->dead))
			word_wait(&page->cq_tail, seen, deadline);
		atomic_fetch_sub(&page->cq_waiters, 1);
	}
	pthread_mutex_lock(&c->ring_lock);
	att->refs--;
	ring_drain(att);
	return 0;
}

int ring_ask(
	struct attachment *att, struct kvp_sqe *sqe, uint64_t deadline, struct kvp_cqe *ret_cqe)
{
	struct ring_waiter w = { .op = sqe->op, .serial = ++att->other_serial }, **p;
	int r;

	if (ring_stuck(att))
		return -EAGAIN; /* one more question would be one more to answer */
	sqe->serial = w.serial;
	w.next = att->waiters;
	att->waiters = &w;
	r = ring_submit(att, sqe, deadline);
	while (r == 0 && !w.done)
		r = ring_wait(att, deadline);
	for (p = &att->waiters; *p != &w; p = &(*p)->next)
		;
	*p = w.next;
	if (!w.done)
		return r;
	*ret_cqe = w.cqe;
	return 0;
}
