/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and words of host memory: a stream writes how far it has come, and waits until a ticket has ended.
 *
 * A mark is written into the page of the current attachment, where the ledger looks, or into a word of the
 * library's own while there is none. The watcher carries on from there what only this process knows: to the
 * pages of other daemons, to grants that go back then, to a ledger that waits for a commit's moment. Leases the ledger
 * looks after by itself, so a mark for which they alone wait wakes nobody; but for those of a daemon that has gone.
 */
#include "libclient/cuda.h"
#include "libclient/ring.h"

#include <stddef.h>
#include <unistd.h>

/*
 * Somebody waits for the moment: looks are as far apart as a part of the time that it is waited for, so that what is
 * short is seen soon, and what is long costs few looks. The ledger looks at commits' moments by itself for as long as it
 * is worth while (daemon/ledger/marks.h).
 */
#define AWAITED_PART   64u
#define AWAITED_MIN_US 10u
#define AWAITED_MAX_US 100u
#define MARKED_US      2000u /* nobody but whoever looks at the timeline, and that looks itself */
#define WAIT_US        50u   /* between looks at tickets */

/* ---- marks ----------------------------------------------------------------------------------- */

void cuda_look(struct kvp_timeline *t)
{
	struct kvp_cuda *cuda = t->cuda;
	uint64_t value;

	if (!cuda || kvp_load_relaxed(&t->kind) != LINE_STREAM)
		return;
	/* Acquire: what the stream did before is seen by whoever is told. */
	value = kvp_load_acquire(&cuda->words->mark[t->index].value);
	for (uint32_t i = 0; i < CUDA_LANES; i++) {
		const struct lane *l = kvp_load_acquire(&cuda->lanes[i]);
		uint64_t there = l ? kvp_load_acquire(&l->att->page->done[t->index].value) : 0;

		value = there > value ? there : value;
	}
	/* The page is the client's own, but a value that nobody marked would let go too early. */
	if (value > kvp_load_relaxed(&t->reached) &&
		value <= t->base + kvp_load_relaxed(&t->marked))
		timeline_reach(t, value);
}

/* `sum` changes when a moment comes, or another is waited for. */
static uint32_t awaited_us(struct kvp_cuda *cuda, uint64_t sum)
{
	const uint64_t now = now_ns();
	uint64_t us;

	if (sum != cuda->awaited_sum)
		cuda->awaited_ns = now;
	cuda->awaited_sum = sum;
	us = (now - cuda->awaited_ns) / 1000 / AWAITED_PART;
	if (us > AWAITED_MAX_US)
		us = AWAITED_MAX_US;
	return us < AWAITED_MIN_US ? AWAITED_MIN_US : (uint32_t)us;
}

/* How long the watcher may sleep for the sake of marks, in microseconds; 0: none is outstanding. */
static uint32_t marks_serve(struct kvp_cuda *cuda)
{
	struct kvp_client *c = cuda->client;
	uint64_t sum = 0;
	uint32_t us = 0;
	int somebody = 0;

	if (kvp_load_relaxed(&cuda->lost))
		return 0;
	pthread_mutex_lock(&c->ring_lock);
	for (uint32_t i = 0; i < KVP_TIMELINES; i++) {
		struct kvp_timeline *t = &c->timelines[i];

		if (t->cuda != cuda || kvp_load_relaxed(&t->kind) != LINE_STREAM)
			continue;
		cuda_look(t);
		sum += kvp_load_relaxed(&t->reached) + kvp_load_seq(&t->marked);
		if (kvp_load_relaxed(&t->reached) >= t->base + kvp_load_seq(&t->marked))
			continue;
		somebody |= kvp_load_relaxed(&t->reached) < t->hastened;
		us = MARKED_US;
	}
	pthread_mutex_unlock(&c->ring_lock);
	return somebody ? awaited_us(cuda, sum) : us;
}

/* ring_lock. Where the device writes the timeline's values. */
static uint64_t word_of(struct kvp_cuda *cuda, const struct kvp_timeline *t)
{
	const struct attachment *att = kvp_load_seq(&cuda->client->att);
	const struct lane *l = att ? lane_of(cuda, att) : NULL;

	if (l && l->done_page)
		return l->done_page + t->index * sizeof(struct kvp_timeline_word);
	return cuda->words_dev + offsetof(struct cuda_words, mark) +
	       t->index * sizeof(struct kvp_timeline_word);
}

void cuda_hasten(struct kvp_timeline *t)
{
	if (t->cuda && kvp_load_relaxed(&t->kind) == LINE_STREAM &&
		kvp_load_relaxed(&t->reached) < t->base + kvp_load_seq(&t->marked))
		sleeper_stir(&t->cuda->watch);
}

/*
 * ring_lock. Has the watcher to see a mark that is written there? Else the ledger that waits for it sees it by itself: but to a
 * daemon that has gone, of which something is still held, nobody else would bring it.
 */
static int watches(const struct kvp_cuda *cuda, uint64_t at)
{
	const struct kvp_client *c = cuda->client;
	uint32_t published = 0;

	for (uint32_t i = 0; i < N_ATTACHMENTS; i++)
		published += c->attachments[i] && c->attachments[i]->published;
	return published > 1 || at - cuda->words_dev < sizeof(*cuda->words);
}

/* stage_lock, the context is current. */
static int mark(struct kvp_cuda *cuda, struct kvp_timeline *t, struct CUstream_st *stream,
	uint64_t *ret_value)
{
	struct kvp_client *c = cuda->client;
	uint64_t value = kvp_load_relaxed(&t->marked) + 1, at;
	int r, watched;

	if (value > KVP_TIMELINE_MAX)
		return -EINVAL;
	/*
	 * Noted before: from then on the lane of the word stays until the value is there. What fails
	 * is noted all the same, and taken for reached with the next one.
	 */
	pthread_mutex_lock(&c->ring_lock);
	at = word_of(cuda, t);
	kvp_store_seq(&t->marked, value);
	watched = t->base + value <= t->hastened || watches(cuda, at);
	pthread_mutex_unlock(&c->ring_lock);
	r = cuda_error(cuda,
		cuda->cu.cuStreamWriteValue64_v2(stream, at, t->base + value, CU_WRITE_PLAIN));
	if (r == 0)
		*ret_value = value;
	if (watched)
		sleeper_stir(&cuda->watch);
	return r;
}

int kvp_cuda_mark(struct kvp_cuda *cuda, struct kvp_timeline *timeline, struct CUstream_st *stream,
	uint64_t *ret_value)
{
	int r = cuda_usable(cuda), pushed;
	uint64_t value;

	if (r < 0)
		return r;
	if (!ret_value)
		return -EINVAL;
	r = timeline_claim(timeline, cuda, cuda->words_work ? LINE_STREAM : LINE_EVENTS);
	if (r < 0)
		return r;
	r = cuda_enter(cuda, &pushed);
	if (r < 0)
		return r;
	r = cuda_capturing(cuda, stream);
	if (r == 0) {
		pthread_mutex_lock(&cuda->stage_lock);
		if (cuda->words_work)
			r = mark(cuda, timeline, stream, &value);
		else if (!stage_batch_free(cuda, 0))
			r = -EAGAIN;
		else /* an event, and the thread looks when it is done */
			r = stage_end(cuda, stream, NULL, timeline, &value);
		pthread_mutex_unlock(&cuda->stage_lock);
	}
	cuda_leave(cuda, pushed);
	if (r < 0)
		return r;
	*ret_value = value;
	if (!cuda->words_work)
		sleeper_stir(&cuda->work);
	return 0;
}

/* ---- streams that wait ----------------------------------------------------------------------- */

static void let_go(struct kvp_cuda *cuda, uint32_t i)
{
	/* Release: what was copied is there before the stream goes on. */
	kvp_store_release(&cuda->words->ready[i].value, cuda->waits[i].value);
	cuda->waits[i].used = 0;
}

/* Returns how many go on waiting. */
static uint32_t waits_serve(struct kvp_cuda *cuda)
{
	struct cuda_wait waits[CUDA_WAITS];
	uint32_t left = 0;

	pthread_mutex_lock(&cuda->lock);
	for (uint32_t i = 0; i < CUDA_WAITS; i++)
		waits[i] = cuda->waits[i];
	pthread_mutex_unlock(&cuda->lock);
	for (uint32_t i = 0; i < CUDA_WAITS; i++) {
		if (!waits[i].used)
			continue;
		if (kvp_ticket_wait(cuda->client, waits[i].ticket, 0, NULL) == -ETIMEDOUT &&
			now_ns() < waits[i].deadline) {
			left++;
			continue;
		}
		pthread_mutex_lock(&cuda->lock);
		let_go(cuda, i);
		pthread_mutex_unlock(&cuda->lock);
	}
	return left;
}

void *watch_thread(void *arg)
{
	struct kvp_cuda *cuda = arg;

	sleeper_begin("kvpool-watch");
	while (!kvp_load_seq(&cuda->closing)) {
		uint32_t us;

		sleeper_lies_down(&cuda->watch);
		us = marks_serve(cuda);
		if (waits_serve(cuda) && (!us || us > WAIT_US))
			us = WAIT_US;
		sleeper_sleep(&cuda->watch, us);
	}
	return NULL;
}

void watch_stop(struct kvp_cuda *cuda)
{
	kvp_store_seq(&cuda->closing, 1);
	(void)!write(cuda->watch.kick, &(uint64_t){ 1 }, 8);
	pthread_join(cuda->watcher, NULL);
}

void waits_end(struct kvp_cuda *cuda)
{
	pthread_mutex_lock(&cuda->lock);
	for (uint32_t i = 0; i < CUDA_WAITS; i++)
		if (cuda->waits[i].used)
			let_go(cuda, i);
	pthread_mutex_unlock(&cuda->lock);
}

/* A word for the stream to wait for, which the thread sees to from now on. */
static int wait_begin(
	struct kvp_cuda *cuda, struct kvp_ticket ticket, uint32_t *ret_word, uint64_t *ret_value)
{
	uint64_t deadline = deadline_of(cuda->client, cuda->timeout_ms);
	uint32_t i = 0;

	pthread_mutex_lock(&cuda->lock);
	while (i < CUDA_WAITS && cuda->waits[i].used)
		i++;
	if (i < CUDA_WAITS) {
		struct cuda_wait *w = &cuda->waits[i];

		w->ticket = ticket;
		w->deadline = deadline;
		w->value++;
		w->used = 1;
		*ret_word = i;
		*ret_value = w->value;
	}
	pthread_mutex_unlock(&cuda->lock);
	if (i == CUDA_WAITS)
		return -EAGAIN;
	sleeper_stir(&cuda->watch); /* the word is let go of in any case */
	return 0;
}

int kvp_cuda_stream_wait(
	struct kvp_cuda *cuda, struct CUstream_st *stream, struct kvp_ticket ticket)
{
	int r = cuda_usable(cuda), pushed;
	uint64_t value, at;
	uint32_t word;

	if (r < 0)
		return r;
	r = kvp_ticket_wait(cuda->client, ticket, 0, NULL);
	if (r != -ETIMEDOUT)
		return r < 0 ? r : 0; /* there is nothing to wait for */
	if (!cuda->words_work)
		return -EOPNOTSUPP;
	r = cuda_enter(cuda, &pushed);
	if (r < 0)
		return r;
	r = cuda_capturing(cuda, stream);
	if (r == 0)
		r = wait_begin(cuda, ticket, &word, &value);
	if (r == 0) {
		at = cuda->words_dev + offsetof(struct cuda_words, ready) +
		     word * sizeof(struct kvp_timeline_word);
		r = cuda_error(
			cuda, cuda->cu.cuStreamWaitValue64_v2(stream, at, value, CU_WAIT_GEQ));
	}
	cuda_leave(cuda, pushed);
	return r;
}
