/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor for callers that wait in a loop of their own. Whoever takes an answer out of the ring
 * announces it; what is missing is somebody who looks there while no call does, and at the claims of
 * others. That is one more thread, started with the descriptor. It sleeps in futex_waitv() on the words
 * that calls would sleep on one by one: the ring's, those of claims that are waited for, and one that
 * the library counts up when these are other words.
 */
#include "libclient/events.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "libclient/ring.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* the same number on all architectures */
#endif

#define LATE_NS (100 * NS_PER_MS) /* looks this often for claims that nobody has ended */
#define NAP_NS  NS_PER_MS         /* and for everything, on kernels without futex_waitv() */

/* As the kernel takes them; headers before Linux 5.16 lack the struct. */
struct sleep_word {
	uint64_t seen;
	uint64_t addr;
	uint32_t flags;
	uint32_t reserved;
};

#define WORD_32 2u /* FUTEX_32, also of other processes */

/* What one sleep waits for: the kick, the ring, claims. */
struct sleep {
	struct sleep_word words[2 + KVP_FUTEX_WORDS];
	uint32_t n;
	uint64_t until; /* 0: for ever */
};

static void add_word(struct sleep *s, KVP_ATOMIC(uint32_t) *word, uint32_t seen)
{
	s->words[s->n++] =
		(struct sleep_word){ .seen = seen, .addr = (uintptr_t)word, .flags = WORD_32 };
}

/* ---- announcing ------------------------------------------------------------------------------ */

void event_announce(struct kvp_client *c, uint32_t what)
{
	/* Fails only when the counter is full, and then it is readable anyway. */
	if (c->events & what)
		(void)!write(c->event_fd, &(uint64_t){ 1 }, 8);
}

static void kick(struct kvp_client *c)
{
	kvp_add_relaxed(&c->event_kick, 1);
	word_wake(&c->event_kick);
}

void event_attachment(struct kvp_client *c)
{
	if (!c->events)
		return;
	event_announce(c, EVENTS_ALL);
	kick(c);
}

/* ---- claims of others ------------------------------------------------------------------------ */

/* Its place in the list, or the end of that: it is not watched, or was announced. */
static struct kvp_prefix **place_of(const struct kvp_prefix *m)
{
	struct kvp_prefix **p = &m->client->watched;

	while (*p && *p != m)
		p = &(*p)->next_claim;
	return p;
}

void event_watch(struct kvp_prefix *m)
{
	struct kvp_client *c = m->client;
	struct kvp_prefix **p;

	pthread_mutex_lock(&c->ring_lock);
	p = place_of(m);
	if (c->events & KVP_EVENT_CLAIMS && !*p) {
		m->flags |= PREFIX_WATCHED;
		m->next_claim = NULL;
		*p = m;
		kick(c);
	}
	pthread_mutex_unlock(&c->ring_lock);
}

void event_unwatch(struct kvp_prefix *m)
{
	struct kvp_client *c = m->client;
	struct kvp_prefix **p;

	pthread_mutex_lock(&c->ring_lock);
	p = place_of(m);
	if (*p)
		*p = m->next_claim;
	pthread_mutex_unlock(&c->ring_lock);
}

/*
 * Announces the claims that have ended, and adds the words of the others. What a prefix waits for is
 * constant while it is watched. One of a daemon that has gone was announced with that.
 */
static void look_at_claims(struct kvp_client *c, struct attachment *att, struct sleep *s)
{
	const struct kvp_catalog_view *v = &att->view;
	struct kvp_prefix **p = &c->watched, *m;
	uint64_t words = 0;

	while ((m = *p)) {
		struct kvp_key key = m->chain[m->front];
		uint32_t i = key.lo % KVP_FUTEX_WORDS;
		KVP_ATOMIC(uint32_t) *word = &v->cat->futex[i].word;
		/* Read before the claim: whatever ends it afterwards changes the word too. */
		uint32_t seen = kvp_load_seq(word);

		if (m->att == att && kvp_claim_find(v, key, now_ns())) {
			if (!(words >> i & 1))
				add_word(s, word, seen);
			words |= UINT64_C(1) << i;
			p = &m->next_claim;
		} else {
			*p = m->next_claim;
			event_announce(c, KVP_EVENT_CLAIMS);
		}
	}
	if (words)
		s->until = now_ns() + LATE_NS;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* ring_lock. Takes and announces what has come; collects what to sleep on. */
static void look_around(struct kvp_client *c, struct attachment *att, struct sleep *s)
{
	s->n = 0;
	s->until = 0;
	add_word(s, &c->event_kick, kvp_load_relaxed(&c->event_kick));
	if (!att)
		return;
	if (c->events & EVENTS_RING) {
		/* Read before the ring is emptied: what comes afterwards changes it. */
		uint32_t seen = kvp_load_seq(&att->page->cq_tail);

		ring_drain(att);
		add_word(s, &att->page->cq_tail, seen);
	}
	look_at_claims(c, att, s);
}

/* No lock held. Returns when a word may have changed, or at the end of the time. */
static void sleep_on(struct kvp_client *c, struct sleep *s)
{
	struct timespec until = {
		.tv_sec = (time_t)(s->until / UINT64_C(1000000000)),
		.tv_nsec = (long)(s->until % UINT64_C(1000000000)),
	};

	if (!c->event_polls && syscall(SYS_futex_waitv, s->words, s->n, 0, s->until ? &until : NULL,
				       CLOCK_MONOTONIC) < 0)
		c->event_polls = errno == ENOSYS || errno == EPERM;
	if (c->event_polls)
		word_wait(&c->event_kick, (uint32_t)s->words[0].seen,
			now_ns() + (s->n > 1 ? NAP_NS : LATE_NS));
}

static void *event_thread(void *client)
{
	struct kvp_client *c = client;
	struct sleep s;

	pthread_setname_np(pthread_self(), "kvpool-events");
	pthread_mutex_lock(&c->ring_lock);
	while (!kvp_load_seq(&c->closing)) {
		struct attachment *att = attachment_get(c);
		KVP_ATOMIC(uint32_t) *waiters = NULL;

		if (att && c->events & EVENTS_RING && !c->event_polls)
			waiters = &att->page->cq_waiters;
		/* Sequentially consistent: pairs with kvp_cq_push() and kvp_cq_must_wake(). */
		if (waiters)
			atomic_fetch_add(waiters, 1);
		look_around(c, att, &s);
		pthread_mutex_unlock(&c->ring_lock);
		sleep_on(c, &s);
		if (waiters)
			atomic_fetch_sub(waiters, 1);
		pthread_mutex_lock(&c->ring_lock);
		if (att)
			attachment_put(att);
	}
	pthread_mutex_unlock(&c->ring_lock);
	return NULL;
}

static int events_start(struct kvp_client *c)
{
	int r;

	c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->event_fd < 0)
		return -errno;
	r = thread_start(event_thread, c, &c->event_thread);
	if (r < 0) {
		close(c->event_fd);
		c->event_fd = -1;
	}
	return r;
}

void events_stop(struct kvp_client *c)
{
	if (c->event_fd < 0)
		return;
	pthread_mutex_lock(&c->ring_lock);
	kick(c);
	pthread_mutex_unlock(&c->ring_lock);
	pthread_join(c->event_thread, NULL);
}

/* ---- the calls ------------------------------------------------------------------------------- */

int kvp_event_fd(struct kvp_client *c, uint32_t events)
{
	int r;

	if (!c || !events || events & ~EVENTS_ALL)
		return -EINVAL;
	if (!client_mine(c))
		return -ECHILD;
	pthread_mutex_lock(&c->ring_lock);
	r = c->event_fd < 0 ? events_start(c) : 0;
	if (r == 0) {
		c->events |= events;
		kick(c);
		r = c->event_fd;
	}
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

/* A mark: the daemon's epoch, its low half 32 | serial of the last commit 32. */

int kvp_flush_mark(struct kvp_client *c, uint64_t *ret_mark)
{
	const struct attachment *att;
	int r = -ESHUTDOWN;

	if (!c || !ret_mark)
		return -EINVAL;
	if (!client_mine(c))
		return -ECHILD;
	pthread_mutex_lock(&c->ring_lock);
	att = kvp_load_seq(&c->att);
	if (att) {
		*ret_mark = att->epoch << 32 | att->commit_serial;
		r = 0;
	}
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

static int answered_until(const struct attachment *att, uint32_t serial)
{
	for (uint32_t i = 0; i < N_COMMITS; i++) {
		const struct commit *k = &att->commits[i];

		if (k->used && k->outcome == OUTCOME_UNKNOWN && (int32_t)(serial - k->serial) >= 0)
			return 0;
	}
	return 1;
}

int kvp_flush_done(struct kvp_client *c, uint64_t mark)
{
	struct attachment *att;
	int r = -ESHUTDOWN;

	if (!c)
		return -EINVAL;
	if (!client_mine(c))
		return -ECHILD;
	pthread_mutex_lock(&c->ring_lock);
	att = kvp_load_seq(&c->att);
	if (att && (uint32_t)att->epoch == mark >> 32) {
		ring_drain(att);
		r = answered_until(att, (uint32_t)mark);
	}
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}
