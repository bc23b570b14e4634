/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: FIFO queues of operations, which one thread of the process, the runner, works on in
 * slices. Which stream goes on next is drawn with the machine's seed: what CUDA leaves open comes in
 * another order with another seed, and in the same with the same one as far as the process's own
 * threads let it.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cudadrv/sim.h"

#define LEGACY_STREAM ((struct CUstream_st *)(uintptr_t)1)
#define CANDIDATES    256
#define NAP_NS        100000

/* ---- operations ---- */

struct sim_op *sim_op_new(enum sim_op_kind kind, size_t copies)
{
	struct sim_op *op = calloc(1, sizeof(*op));

	if (!op)
		return NULL;
	op->kind = kind;
	op->n = copies;
	if (copies > 0 && !(op->copy = calloc(copies, sizeof(*op->copy)))) {
		free(op);
		return NULL;
	}
	return op;
}

struct sim_op *sim_op_clone(const struct sim_op *op)
{
	struct sim_op *copy = sim_op_new(op->kind, op->n);

	if (!copy)
		return NULL;
	if (op->n)
		memcpy(copy->copy, op->copy, op->n * sizeof(*op->copy));
	if (op->project) {
		copy->project = op->project;
		copy->shape = op->shape;
		copy->params = aligned_alloc(16, (op->project->param_bytes + 15) / 16 * 16);
		if (!copy->params) {
			sim_op_free(copy);
			return NULL;
		}
		memcpy(copy->params, op->params, op->project->param_bytes);
	}
	copy->value = op->value;
	copy->at = op->at;
	copy->flags = op->flags;
	copy->kernel = op->kernel;
	memcpy(copy->param, op->param, sizeof(op->param));
	return copy;
}

void sim_op_free(struct sim_op *op)
{
	if (!op)
		return;
	free(op->dep);
	free(op->copy);
	free(op->to);
	free(op->from);
	free(op->interval);
	free(op->params);
	free(op->held);
	free(op);
}

/* ---- streams ---- */

struct CUstream_st *sim_stream_new(struct CUctx_st *ctx, unsigned int flags)
{
	struct CUstream_st *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	*s = (struct CUstream_st){ .next = sim.streams, .ctx = ctx, .flags = flags, .live = true };
	s->end = &s->first;
	sim.streams = s;
	return s;
}

void sim_stream_end(struct CUctx_st *ctx)
{
	for (struct CUstream_st *s = sim.streams; s; s = s->next)
		s->live = s->live && (s->ctx != ctx || s == ctx->null_stream);
	for (struct CUevent_st *e = sim.events; e; e = e->next)
		e->live = e->live && e->ctx != ctx;
}

struct CUstream_st *sim_stream(struct CUstream_st *stream, int *ret_error)
{
	struct CUctx_st *ctx = sim_current();

	if (!stream || stream == LEGACY_STREAM)
		return ctx->null_stream;
	for (struct CUstream_st *s = sim.streams; s; s = s->next) {
		if (s != stream || !s->live)
			continue;
		if (s->ctx == ctx)
			return s;
		*ret_error = sim_refuse(CU_ERR_BAD_HANDLE, CUDADRV_WRONG_CONTEXT,
			"a stream of the context of device %d, current is that of %d",
			s->ctx->device, ctx->device);
		return NULL;
	}
	*ret_error = sim_refuse(
		CU_ERR_BAD_HANDLE, CUDADRV_BAD_HANDLE, "no such stream, or not any more");
	return NULL;
}

/* ---- the queue ---- */

static int depend(struct sim_op *op, struct CUstream_st *on, uint64_t seq)
{
	struct sim_dep *more;

	if (on->done >= seq)
		return CU_OK;
	more = realloc(op->dep, (op->deps + 1) * sizeof(*more));
	if (!more)
		return CU_ERR_NO_MEMORY;
	op->dep = more;
	op->dep[op->deps++] = (struct sim_dep){ on, seq };
	return CU_OK;
}

/* The default stream and the blocking ones wait for each other. */
static int depend_on_default(struct CUstream_st *stream, struct sim_op *op)
{
	struct CUstream_st *null = stream->ctx->null_stream;
	int r = CU_OK;

	if (stream->flags & CU_STREAM_ASYNC)
		return CU_OK;
	if (stream != null)
		return depend(op, null, null->last);
	for (struct CUstream_st *s = sim.streams; r == CU_OK && s; s = s->next)
		if (s != null && s->ctx == null->ctx && !(s->flags & CU_STREAM_ASYNC))
			r = depend(op, s, s->last);
	return r;
}

static bool ready(const struct sim_op *op)
{
	for (uint32_t i = 0; i < op->deps; i++)
		if (op->dep[i].stream->done < op->dep[i].seq)
			return false;
	return true;
}

bool sim_work_at(uint64_t at, uint64_t bytes)
{
	for (struct CUstream_st *s = sim.streams; s; s = s->next)
		for (struct sim_op *op = s->first; op; op = op->next) {
			if ((op->kind == SIM_WRITE || op->kind == SIM_WAIT) && op->at - at < bytes)
				return true;
			if (op->kind == SIM_KERNEL && op->kernel && op->param[0] - at < bytes)
				return true;
			for (size_t i = 0; i < op->n; i++) {
				const struct sim_copy *c = &op->copy[i];

				if (c->to < at + bytes && at < c->to + c->bytes)
					return true;
				if (c->from < at + bytes && at < c->from + c->bytes)
					return true;
			}
		}
	return false;
}

static void finish(struct CUstream_st *s)
{
	struct sim_op *op = s->first;

	if (op->begun)
		sim_op_end(op);
	if (op->kind == SIM_RECORD && op->event->stream == s && op->event->seq == op->seq)
		op->event->ns = sim_now();
	s->done = op->seq;
	s->first = op->next;
	if (!s->first)
		s->end = &s->first;
	sim_op_free(op);
	pthread_cond_broadcast(&sim.done);
}

/* ---- the runner ---- */

static bool counts_as_step(const struct sim_op *op)
{
	return op->kind != SIM_WAIT && op->kind != SIM_RECORD && op->kind != SIM_NOTHING;
}

static bool may_step(const struct sim_op *op)
{
	_Atomic uint32_t *steps = &sim.shared.s->steps;
	uint32_t n = atomic_load(steps);

	if (!sim.shared.s->config.stepping || !counts_as_step(op))
		return true;
	while (n > 0)
		if (atomic_compare_exchange_weak(steps, &n, n - 1))
			return true;
	return false;
}

static bool pending(void)
{
	for (struct CUstream_st *s = sim.streams; s; s = s->next)
		if (s->first)
			return true;
	return false;
}

static void drop_everything(void)
{
	for (struct CUstream_st *s = sim.streams; s; s = s->next)
		while (s->first)
			finish(s);
}

static uint32_t candidates(struct CUstream_st *list[CANDIDATES])
{
	uint32_t n = 0;

	for (struct CUstream_st *s = sim.streams; s && n < CANDIDATES; s = s->next)
		if (s->first && (s->first->begun || ready(s->first)))
			list[n++] = s;
	return n;
}

/* One slice of the stream's first operation. */
static enum sim_slice advance(struct CUstream_st *s)
{
	struct sim_op *op = s->first;
	enum sim_slice slice;
	int r;

	if (!op->begun) {
		if (!may_step(op))
			return SIM_IDLE;
		r = sim_op_begin(op);
		op->begun = true;
		if (r != CU_OK) {
			sim_break(r);
			return SIM_MORE;
		}
	}
	pthread_mutex_unlock(&sim.lock);
	slice = sim_op_slice(op);
	pthread_mutex_lock(&sim.lock);
	if (slice == SIM_FAILED) {
		sim_break(op->error);
		return SIM_MORE;
	}
	if (slice == SIM_DONE) {
		bool step = counts_as_step(op);

		finish(s);
		if (step)
			atomic_fetch_add(&sim.shared.s->stepped, 1);
	}
	return slice;
}

static void rest(bool busy)
{
	struct timespec t;

	if (!busy) {
		pthread_cond_wait(&sim.work, &sim.lock);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += NAP_NS;
	if (t.tv_nsec >= 1000000000) {
		t.tv_nsec -= 1000000000;
		t.tv_sec++;
	}
	pthread_cond_timedwait(&sim.work, &sim.lock, &t);
}

/*
 * One slice of some candidate: the one that the seed and the slices so far draw, or the next that
 * can go on. How often the runner looked in vain plays no part, so that a run can be repeated.
 */
static bool advance_one(struct CUstream_st *const *list, uint32_t n)
{
	uint64_t draw = sim.seed + sim.slices;
	uint32_t first = (uint32_t)(sim_random(&draw) % n);

	for (uint32_t i = 0; i < n; i++) {
		if (advance(list[(first + i) % n]) == SIM_IDLE)
			continue;
		sim.slices++;
		return true;
	}
	return false;
}

static void *run(void *arg)
{
	struct CUstream_st *list[CANDIDATES];

	(void)arg;
	pthread_mutex_lock(&sim.lock);
	while (!sim.stopping) {
		uint32_t n;

		sim_watch_devices();
		if (sim.sticky != CU_OK)
			drop_everything();
		n = candidates(list);
		if (n == 0 || !advance_one(list, n))
			rest(pending());
	}
	pthread_mutex_unlock(&sim.lock);
	return NULL;
}

static int start_runner(void)
{
	sigset_t all, before;
	int r;

	if (sim.running)
		return CU_OK;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&sim.runner, NULL, run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	sim.running = r == 0;
	return r == 0 ? CU_OK : SIM_OUT_OF_SLOTS;
}

int sim_enqueue(struct CUstream_st *stream, struct sim_op *op)
{
	int r;

	op->stream = stream;
	if (stream->capture)
		return sim_capture_take(stream, op);
	if (stream == stream->ctx->null_stream && sim_capture_of_blocking()) {
		sim_op_free(op);
		sim_capture_spoil();
		return sim_refuse(SIM_ERR_IMPLICIT, CUDADRV_CAPTURE,
			"work on the default stream while a blocking one is captured");
	}
	r = sim.sticky != CU_OK ? sim.sticky : depend_on_default(stream, op);
	if (r == CU_OK)
		r = start_runner();
	if (r != CU_OK) {
		sim_op_free(op);
		return r;
	}
	op->seq = ++stream->last;
	*stream->end = op;
	stream->end = &op->next;
	pthread_cond_signal(&sim.work);
	return CU_OK;
}

int sim_wait(struct CUstream_st *stream, uint64_t seq)
{
	while (stream->done < seq && sim.sticky == CU_OK)
		pthread_cond_wait(&sim.done, &sim.lock);
	return sim.sticky;
}

/* ---- entry points: streams ---- */

static int stream_create(struct CUstream_st **ret_stream, unsigned int flags)
{
	struct CUstream_st *s;

	if (flags & ~(unsigned int)CU_STREAM_ASYNC)
		return sim_refuse(
			CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "cuStreamCreate: flags %u", flags);
	s = sim_stream_new(sim_current(), flags);
	if (!s)
		return CU_ERR_NO_MEMORY;
	*ret_stream = s;
	return CU_OK;
}

SIM_EXPORT int cuStreamCreate(struct CUstream_st **stream, unsigned int flags)
{
	SIM_CALL(cuStreamCreate, SIM_INIT | SIM_CTX, stream_create(stream, flags));
}

SIM_EXPORT int cuStreamCreateWithPriority(
	struct CUstream_st **stream, unsigned int flags, int priority)
{
	(void)priority;
	SIM_CALL(cuStreamCreateWithPriority, SIM_INIT | SIM_CTX, stream_create(stream, flags));
}

static int stream_destroy(struct CUstream_st *stream)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);

	if (!s)
		return r;
	if (s == s->ctx->null_stream)
		return sim_refuse(CU_ERR_BAD_HANDLE, CUDADRV_BAD_HANDLE,
			"cuStreamDestroy of the default stream");
	s->live = false; /* what is queued goes on */
	return CU_OK;
}

SIM_EXPORT int cuStreamDestroy_v2(struct CUstream_st *stream)
{
	SIM_CALL(cuStreamDestroy_v2, SIM_INIT | SIM_CTX, stream_destroy(stream));
}

/* Neither may a captured stream be waited for or asked. */
static int refuse_captured(struct CUstream_st *s, const char *call)
{
	if (!s->capture)
		return CU_OK;
	sim_capture_spoiled_by(s);
	return sim_refuse(CU_ERR_CAPTURING, CUDADRV_CAPTURE, "%s of a captured stream", call);
}

static int stream_synchronize(struct CUstream_st *stream)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);

	if (s)
		r = refuse_captured(s, "cuStreamSynchronize");
	return r == CU_OK ? sim_wait(s, s->last) : r;
}

SIM_EXPORT int cuStreamSynchronize(struct CUstream_st *stream)
{
	SIM_CALL(cuStreamSynchronize, SIM_INIT | SIM_CTX, stream_synchronize(stream));
}

static int stream_query(struct CUstream_st *stream)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);

	if (s)
		r = refuse_captured(s, "cuStreamQuery");
	if (r != CU_OK)
		return r;
	return s->done < s->last ? CU_NOT_READY : CU_OK;
}

SIM_EXPORT int cuStreamQuery(struct CUstream_st *stream)
{
	SIM_CALL(cuStreamQuery, SIM_INIT | SIM_CTX, stream_query(stream));
}

/* The one question that may be asked with any context, or none, current. */
static int stream_ctx(struct CUstream_st *stream, struct CUctx_st **ret_ctx)
{
	for (struct CUstream_st *s = sim.streams; s; s = s->next)
		if (s == stream && s->live) {
			*ret_ctx = s->ctx;
			return CU_OK;
		}
	if ((!stream || stream == LEGACY_STREAM) && sim_current()) {
		*ret_ctx = sim_current();
		return CU_OK;
	}
	return sim_refuse(CU_ERR_BAD_HANDLE, CUDADRV_BAD_HANDLE, "cuStreamGetCtx: no such stream");
}

SIM_EXPORT int cuStreamGetCtx(struct CUstream_st *stream, struct CUctx_st **ctx)
{
	SIM_CALL(cuStreamGetCtx, SIM_INIT, stream_ctx(stream, ctx));
}

static int ctx_synchronize(void)
{
	struct CUctx_st *ctx = sim_current();
	int r = CU_OK;

	for (struct CUstream_st *s = sim.streams; r == CU_OK && s; s = s->next)
		if (s->ctx == ctx)
			r = sim_wait(s, s->last);
	return r;
}

SIM_EXPORT int cuCtxSynchronize(void)
{
	SIM_CALL(cuCtxSynchronize, SIM_INIT | SIM_CTX | SIM_UNSAFE, ctx_synchronize());
}

/* ---- events ---- */

static struct CUevent_st *event_of(struct CUevent_st *event, int *ret_error)
{
	for (struct CUevent_st *e = sim.events; e; e = e->next)
		if (e == event && e->live)
			return e;
	*ret_error =
		sim_refuse(CU_ERR_BAD_HANDLE, CUDADRV_BAD_HANDLE, "no such event, or not any more");
	return NULL;
}

static int event_create(struct CUevent_st **ret_event, unsigned int flags)
{
	struct CUevent_st *e;

	if (flags & ~3u)
		return sim_refuse(
			CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "cuEventCreate: flags %u", flags);
	e = calloc(1, sizeof(*e));
	if (!e)
		return CU_ERR_NO_MEMORY;
	*e = (struct CUevent_st){
		.next = sim.events, .ctx = sim_current(), .flags = flags, .live = true
	};
	sim.events = e;
	*ret_event = e;
	return CU_OK;
}

SIM_EXPORT int cuEventCreate(struct CUevent_st **event, unsigned int flags)
{
	SIM_CALL(cuEventCreate, SIM_INIT | SIM_CTX, event_create(event, flags));
}

static int event_destroy(struct CUevent_st *event)
{
	int r = CU_OK;
	struct CUevent_st *e = event_of(event, &r);

	if (e)
		e->live = false; /* queued records still point there */
	return r;
}

SIM_EXPORT int cuEventDestroy_v2(struct CUevent_st *event)
{
	SIM_CALL(cuEventDestroy_v2, SIM_INIT, event_destroy(event));
}

static int event_record(struct CUevent_st *event, struct CUstream_st *stream)
{
	int r = CU_OK;
	struct CUevent_st *e = event_of(event, &r);
	struct CUstream_st *s = e ? sim_stream(stream, &r) : NULL;
	struct sim_op *op;

	if (!s)
		return r;
	if (e->ctx != s->ctx)
		return sim_refuse(CU_ERR_BAD_HANDLE, CUDADRV_WRONG_CONTEXT,
			"an event of another context than the stream's");
	if (s->capture)
		return sim_capture_record(s, e);
	op = sim_op_new(SIM_RECORD, 0);
	if (!op)
		return CU_ERR_NO_MEMORY;
	op->event = e;
	r = sim_enqueue(s, op);
	if (r == CU_OK) {
		e->capture = NULL;
		e->stream = s;
		e->seq = s->last;
		e->ns = 0;
	}
	return r;
}

SIM_EXPORT int cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
	SIM_CALL(cuEventRecord, SIM_INIT | SIM_CTX, event_record(event, stream));
}

static int stream_wait_event(struct CUstream_st *stream, struct CUevent_st *event)
{
	int r = CU_OK;
	struct CUevent_st *e = event_of(event, &r);
	struct CUstream_st *s = e ? sim_stream(stream, &r) : NULL;
	struct sim_op *op;

	if (!s)
		return r;
	if (s->capture || e->capture)
		return sim_capture_wait(s, e);
	if (!e->stream || e->stream->done >= e->seq)
		return CU_OK;
	op = sim_op_new(SIM_NOTHING, 0);
	if (!op)
		return CU_ERR_NO_MEMORY;
	r = depend(op, e->stream, e->seq);
	if (r == CU_OK)
		return sim_enqueue(s, op);
	sim_op_free(op);
	return r;
}

SIM_EXPORT int cuStreamWaitEvent(
	struct CUstream_st *stream, struct CUevent_st *event, unsigned int flags)
{
	(void)flags;
	SIM_CALL(cuStreamWaitEvent, SIM_INIT | SIM_CTX, stream_wait_event(stream, event));
}

static int event_query(struct CUevent_st *event, bool wait)
{
	int r = CU_OK;
	struct CUevent_st *e = event_of(event, &r);

	if (!e)
		return r;
	if (e->capture)
		return sim_refuse(CU_ERR_CAPTURING, CUDADRV_CAPTURE,
			"an event that was recorded in a capture is asked");
	if (!e->stream)
		return CU_OK;
	if (wait)
		return sim_wait(e->stream, e->seq);
	return e->stream->done >= e->seq ? CU_OK : CU_NOT_READY;
}

SIM_EXPORT int cuEventQuery(struct CUevent_st *event)
{
	SIM_CALL(cuEventQuery, SIM_INIT | SIM_UNSAFE, event_query(event, false));
}

SIM_EXPORT int cuEventSynchronize(struct CUevent_st *event)
{
	SIM_CALL(cuEventSynchronize, SIM_INIT | SIM_UNSAFE, event_query(event, true));
}

static int event_elapsed(float *ms, struct CUevent_st *start, struct CUevent_st *end)
{
	int r = CU_OK;
	struct CUevent_st *a = event_of(start, &r), *b = a ? event_of(end, &r) : NULL;

	if (!b)
		return r;
	if ((a->flags | b->flags) & CU_EVENT_NO_TIMING || !a->stream || !b->stream)
		return sim_refuse(CU_ERR_BAD_HANDLE, CUDADRV_BAD_VALUE,
			"cuEventElapsedTime of events without times");
	if (!a->ns || !b->ns)
		return CU_NOT_READY;
	*ms = (float)((double)b->ns - (double)a->ns) * 1e-6f;
	return CU_OK;
}

SIM_EXPORT int cuEventElapsedTime(float *ms, struct CUevent_st *start, struct CUevent_st *end)
{
	SIM_CALL(cuEventElapsedTime, SIM_INIT, event_elapsed(ms, start, end));
}
