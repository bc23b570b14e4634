/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between a GPU and DRAM: a thread and a stream for each way, so that no way waits for the other
 * and no question to the worker for either. A thread hands its batches over one after the other and
 * then waits for the oldest. While one alone is under way it looks out for both its end and the next batch:
 * a thread that slept until the end would leave the link idle for as long as it takes to wake up.
 *
 * What is pinned goes directly, in batches where the driver takes them. What is not goes through two
 * staging buffers, one of which is filled, or emptied, while the other is under way. Nothing on a
 * stream of a way depends on what else is there but by place: whoever reads a payload was told first.
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>

#include "daemon/clock.h"
#include "daemon/device/cuda.h"

#define EVENT_FLAGS (CU_EVENT_BLOCKING | CU_EVENT_NO_TIMING)
#define LOOK_NS     20000u
#define LOOKS       100u

/* ---- what is pinned ------------------------------------------------------------------------- */

static int copy_one(struct cuda_way *w, uint64_t to, uint64_t from, uint64_t bytes)
{
	const struct kvp_cu *cu = &w->d->cu;

	if (w->way == KVPD_TO_DEVICE)
		return cu->cuMemcpyHtoDAsync_v2(
			to, (const void *)(uintptr_t)from, bytes, w->stream);
	return cu->cuMemcpyDtoHAsync_v2((void *)(uintptr_t)to, from, bytes, w->stream);
}

/* What was written before it is read by the copies in the order of the stream. */
static int copy_batch(struct cuda_way *w)
{
	struct cu_copy_attr attr = { .order = CU_ORDER_STREAM, .flags = CU_COPY_OVERLAP };
	const struct kvp_cu *cu = &w->d->cu;
	size_t at = 0, fail;

	if (cu->cuMemcpyBatchAsync_v2)
		return cu->cuMemcpyBatchAsync_v2(
			w->to, w->from, w->bytes, w->n_run, &attr, &at, 1, w->stream);
	if (cu->cuMemcpyBatchAsync)
		return cu->cuMemcpyBatchAsync(
			w->to, w->from, w->bytes, w->n_run, &attr, &at, 1, &fail, w->stream);
	return CU_ERR_UNSUPPORTED;
}

static int flush_run(struct cuda_way *w)
{
	int error = CU_OK;

	/* Of one piece a batch has no use. */
	if (w->n_run > 1 && !w->loop) {
		error = copy_batch(w);
		w->loop = error == CU_ERR_UNSUPPORTED;
	}
	if (w->n_run == 1 || w->loop) {
		error = CU_OK;
		for (uint32_t i = 0; error == CU_OK && i < w->n_run; i++)
			error = copy_one(w, w->to[i], w->from[i], w->bytes[i]);
	}
	w->n_run = 0;
	return kvpd_cuda_check(w->d, error);
}

static int add_run(struct cuda_way *w, uint64_t dev, char *host, uint64_t bytes)
{
	const uint32_t i = w->n_run++;

	w->to[i] = w->way == KVPD_TO_DEVICE ? dev : (uintptr_t)host;
	w->from[i] = w->way == KVPD_TO_DEVICE ? (uintptr_t)host : dev;
	w->bytes[i] = bytes;
	return w->n_run == CUDA_RUN ? flush_run(w) : 0;
}

/* No copy crosses from one registered piece into the next. */
static int copy_pinned(
	struct cuda_way *w, uint64_t dev, const struct cuda_host *h, uint64_t off, uint64_t bytes)
{
	int r = 0;

	while (r == 0 && bytes) {
		uint64_t n = CUDA_PIN_PIECE - off % CUDA_PIN_PIECE;

		n = n < bytes ? n : bytes;
		r = add_run(w, dev, h->addr + off, n);
		dev += n;
		off += n;
		bytes -= n;
	}
	return r;
}

/* ---- what is not ---------------------------------------------------------------------------- */

static int stage_new(struct cuda_way *w, struct cuda_stage *s)
{
	const struct kvp_cu *cu = &w->d->cu;
	void *buf = NULL;
	int r = 0;

	if (!s->event)
		r = kvpd_cuda_check(w->d, cu->cuEventCreate(&s->event, EVENT_FLAGS));
	if (r == 0)
		r = kvpd_cuda_check(w->d, cu->cuMemHostAlloc(&buf, CUDA_STAGE_BYTES, 0));
	if (r == 0)
		s->buf = buf;
	return r;
}

static void stage_reset(struct cuda_stage *s)
{
	s->under_way = false;
	s->batch = NULL;
	s->n_out = 0;
	s->fill = 0;
}

/* What is under way in it has arrived, and where it belongs. */
static int stage_empty(struct cuda_way *w, struct cuda_stage *s)
{
	int r = 0;

	if (s->under_way)
		r = kvpd_cuda_check(w->d, w->d->cu.cuEventSynchronize(s->event));
	for (uint32_t i = 0; r == 0 && i < s->n_out; i++)
		memcpy(s->out[i].to, s->buf + s->out[i].off, s->out[i].bytes);
	stage_reset(s);
	return r;
}

/* No more goes into the one that is being filled; the other one is next. */
static int stage_send(struct cuda_way *w)
{
	struct cuda_stage *s = &w->stage[w->at];

	if (!s->fill)
		return 0;
	w->at = (w->at + 1) % CUDA_STAGES;
	s->under_way = true;
	return kvpd_cuda_check(w->d, w->d->cu.cuEventRecord(s->event, w->stream));
}

static int stage_piece(
	struct cuda_way *w, struct cuda_stage *s, uint64_t dev, char *host, uint64_t n)
{
	char *place = s->buf + s->fill;
	int r;

	if (w->way == KVPD_TO_DEVICE) {
		memcpy(place, host, n);
		r = copy_one(w, dev, (uintptr_t)place, n);
	} else {
		r = copy_one(w, (uintptr_t)place, dev, n);
		s->out[s->n_out].to = host;
		s->out[s->n_out].off = s->fill;
		s->out[s->n_out].bytes = n;
		s->n_out += r == CU_OK;
	}
	s->fill += (n + 255) / 256 * 256;
	return kvpd_cuda_check(w->d, r);
}

static int copy_staged(
	struct cuda_way *w, struct cuda_batch *b, uint64_t dev, char *host, uint64_t bytes)
{
	int r = 0;

	while (r == 0 && bytes) {
		struct cuda_stage *s = &w->stage[w->at];
		uint64_t n;

		if (!s->buf)
			r = stage_new(w, s);
		if (r == 0 && s->under_way) {
			struct cuda_batch *owner = s->batch;

			r = stage_empty(w, s);
			/* Its bytes did not come, whatever its own event says. */
			if (r < 0 && owner != b)
				owner->status = r;
		}
		if (r < 0)
			break;
		s->batch = b;
		n = CUDA_STAGE_BYTES - s->fill < bytes ? CUDA_STAGE_BYTES - s->fill : bytes;
		r = stage_piece(w, s, dev, host, n);
		dev += n;
		host += n;
		bytes -= n;
		if (r == 0 && (s->fill == CUDA_STAGE_BYTES || s->n_out == CUDA_RUN))
			r = stage_send(w);
	}
	return r;
}

/* ---- batches -------------------------------------------------------------------------------- */

static int way_ready(struct cuda_way *w)
{
	const struct kvp_cu *cu = &w->d->cu;
	int r = 0;

	if (w->ready)
		return 0;
	r = kvpd_cuda_check(w->d, cu->cuCtxSetCurrent(w->d->ctx));
	if (r == 0 && !w->stream)
		r = kvpd_cuda_check(w->d, cu->cuStreamCreate(&w->stream, CU_STREAM_ASYNC));
	for (uint32_t i = 0; r == 0 && i < KVPD_DRIVER_FLIGHT; i++)
		if (!w->batch[i].event)
			r = kvpd_cuda_check(
				w->d, cu->cuEventCreate(&w->batch[i].event, EVENT_FLAGS));
	w->ready = r == 0;
	return r;
}

/*
 * Nothing of a batch that failed is under way any more, nor in a stage: who asked for it is told, and gives its
 * places to others, before the next batch has come to an end.
 */
static void give_up(struct cuda_way *w, const struct cuda_batch *b)
{
	if (w->stream)
		kvpd_cuda_settle(w->d, w->stream);
	for (uint32_t i = 0; i < CUDA_STAGES; i++)
		if (w->stage[i].batch == b)
			stage_reset(&w->stage[i]);
}

static int issue(struct cuda_way *w, struct cuda_batch *b)
{
	int r = way_ready(w);

	for (uint32_t i = 0; r == 0 && i < b->n; i++) {
		const struct kvpd_copy *c = &b->copy[i];
		const struct cuda_host *h = &w->d->host[c->host];
		uint64_t dev = w->d->seg[c->seg].addr + c->seg_off;
		/* Acquire: what the pinning thread registered is known to the driver. */
		uint64_t pinned = atomic_load_explicit(&h->pinned, memory_order_acquire);

		if (c->host_off + c->bytes <= pinned)
			r = copy_pinned(w, dev, h, c->host_off, c->bytes);
		else
			r = copy_staged(w, b, dev, h->addr + c->host_off, c->bytes);
	}
	if (r == 0 && w->n_run)
		r = flush_run(w);
	if (r == 0)
		r = stage_send(w);
	w->n_run = 0;
	if (r == 0)
		r = kvpd_cuda_check(w->d, w->d->cu.cuEventRecord(b->event, w->stream));
	if (r < 0)
		give_up(w, b);
	return r;
}

/* All of it has arrived; of one that failed nothing is under way any more. */
static int finish(struct cuda_way *w, const struct cuda_batch *b)
{
	int r = b->status;

	if (r == 0)
		r = kvpd_cuda_check(w->d, w->d->cu.cuEventSynchronize(b->event));
	for (uint32_t i = 0; r == 0 && i < CUDA_STAGES; i++)
		if (w->stage[i].batch == b)
			r = stage_empty(w, &w->stage[i]);
	if (r < 0)
		give_up(w, b);
	return r;
}

static struct cuda_batch *oldest(struct cuda_way *w, uint32_t state)
{
	struct cuda_batch *found = NULL;

	for (uint32_t i = 0; i < KVPD_DRIVER_FLIGHT; i++) {
		struct cuda_batch *b = &w->batch[i];

		if (b->state == state && (!found || b->seq < found->seq))
			found = b;
	}
	return found;
}

static void batch_done(struct cuda_way *w, struct cuda_batch *b, int status)
{
	b->state = CUDA_FREE;
	w->done[w->n_done++] = (struct kvpd_done){
		.batch = b->id,
		.status = status,
		.ns = kvpd_now_ns() - b->began_ns,
	};
	(void)eventfd_write(w->d->event, 1);
}

static bool alone(const struct cuda_way *w)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < KVPD_DRIVER_FLIGHT; i++)
		n += w->batch[i].state == CUDA_ISSUED;
	return n == 1;
}

/*
 * lock. Has it arrived, or failed? Else waits a moment for another one. After a while the thread sleeps until its
 * end all the same: a device that is held up is not asked all the time.
 */
static bool over(struct cuda_way *w, struct cuda_batch *b)
{
	struct timespec at;
	bool is_over;

	pthread_mutex_unlock(&w->lock);
	is_over = b->status < 0 || ++b->looks > LOOKS ||
		  w->d->cu.cuEventQuery(b->event) != CU_NOT_READY;
	pthread_mutex_lock(&w->lock);
	if (!is_over && !oldest(w, CUDA_QUEUED)) {
		const uint64_t ns = kvpd_now_ns() + LOOK_NS;

		at = (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
			.tv_nsec = (long)(ns % 1000000000u) };
		(void)pthread_cond_timedwait(&w->cond, &w->lock, &at);
	}
	return is_over;
}

static void *copier(void *arg)
{
	struct cuda_way *w = arg;

	(void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
	pthread_mutex_lock(&w->lock);
	for (;;) {
		struct cuda_batch *b;
		int r;

		if ((b = oldest(w, CUDA_QUEUED))) {
			pthread_mutex_unlock(&w->lock);
			r = issue(w, b);
			pthread_mutex_lock(&w->lock);
			b->status = r;
			b->state = CUDA_ISSUED;
		} else if ((b = oldest(w, CUDA_ISSUED))) {
			if (alone(w) && !over(w, b))
				continue;
			pthread_mutex_unlock(&w->lock);
			r = finish(w, b);
			pthread_mutex_lock(&w->lock);
			batch_done(w, b, r);
		} else if (w->stop) {
			break;
		} else {
			pthread_cond_wait(&w->cond, &w->lock);
		}
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* ---- from the worker's thread --------------------------------------------------------------- */

int kvpd_cuda_copy_start(struct cuda_way *w, struct kvpd_driver *d, uint32_t way)
{
	pthread_condattr_t attr;
	int r;

	w->d = d;
	w->way = way;
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->cond, &attr);
	pthread_condattr_destroy(&attr);
	r = -pthread_create(&w->thread, NULL, copier, w);
	w->started = r == 0;
	if (r == 0)
		(void)pthread_setname_np(
			w->thread, way == KVPD_TO_DEVICE ? "kvpool-to-dev" : "kvpool-to-host");
	return r;
}

void kvpd_cuda_copy_stop(struct cuda_way *w)
{
	const struct kvp_cu *cu = &w->d->cu;

	if (!w->started)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->cond);
	pthread_mutex_destroy(&w->lock);
	for (uint32_t i = 0; i < KVPD_DRIVER_FLIGHT; i++)
		if (w->batch[i].event)
			(void)cu->cuEventDestroy_v2(w->batch[i].event);
	for (uint32_t i = 0; i < CUDA_STAGES; i++) {
		if (w->stage[i].event)
			(void)cu->cuEventDestroy_v2(w->stage[i].event);
		if (w->stage[i].buf)
			(void)cu->cuMemFreeHost(w->stage[i].buf);
	}
	if (w->stream)
		(void)cu->cuStreamDestroy_v2(w->stream);
}

int kvpd_cuda_copy_submit(
	struct cuda_way *w, uint64_t batch, const struct kvpd_copy *copies, uint32_t n)
{
	struct cuda_batch *b = NULL;
	uint32_t busy = 0;

	pthread_mutex_lock(&w->lock);
	for (uint32_t i = 0; i < KVPD_DRIVER_FLIGHT; i++) {
		busy += w->batch[i].state != CUDA_FREE;
		if (w->batch[i].state == CUDA_FREE)
			b = &w->batch[i];
	}
	/* What is done and was not polled has its place in `done` still. */
	if (busy + w->n_done >= KVPD_DRIVER_FLIGHT)
		b = NULL;
	if (b) {
		memcpy(b->copy, copies, n * sizeof(*copies));
		b->id = batch;
		b->n = n;
		b->seq = w->seq++;
		b->status = 0;
		b->looks = 0;
		b->began_ns = kvpd_now_ns();
		b->state = CUDA_QUEUED;
		pthread_cond_signal(&w->cond);
	}
	pthread_mutex_unlock(&w->lock);
	return b ? 0 : -EAGAIN;
}

uint32_t kvpd_cuda_copy_poll(struct cuda_way *w, struct kvpd_done *out, uint32_t max)
{
	uint32_t n = 0;

	pthread_mutex_lock(&w->lock);
	while (w->n_done && n < max) {
		out[n++] = w->done[0];
		w->n_done--;
		memmove(w->done, w->done + 1, w->n_done * sizeof(w->done[0]));
	}
	if (w->n_done)
		(void)eventfd_write(w->d->event, 1);
	pthread_mutex_unlock(&w->lock);
	return n;
}
