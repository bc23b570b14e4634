/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture and graphs. A graph is the list of what was captured, in the order of the calls,
 * which is one of those that its edges allow; a launch enqueues it as a whole.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/cudadrv/sim.h"

#define JOINED 32

struct sim_capture {
	struct sim_capture *next;
	struct CUstream_st *first;
	struct CUstream_st *stream[JOINED]; /* all that are captured, the first one too */
	uint32_t streams;
	int mode;
	pthread_t thread;
	bool spoiled;
	struct sim_op *op, **end;
};

struct CUgraph_st {
	struct CUgraph_st *next;
	struct sim_op *op;
};

struct CUgraphExec_st {
	struct CUgraphExec_st *next;
	struct sim_op *op;
};

static struct CUgraph_st *graphs;
static struct CUgraphExec_st *execs;
static _Thread_local unsigned int thread_mode = CU_CAPTURE_GLOBAL;

static void free_ops(struct sim_op *op)
{
	while (op) {
		struct sim_op *next = op->next;

		sim_op_free(op);
		op = next;
	}
}

/* ---- what others ask ---- */

/*
 * A thread in relaxed mode may call anything; in thread-local mode its own captures forbid; in
 * global mode those of other threads in global mode as well.
 */
static bool forbids(const struct sim_capture *c)
{
	if (c->mode == CU_CAPTURE_RELAXED || thread_mode == CU_CAPTURE_RELAXED)
		return false;
	if (pthread_equal(c->thread, pthread_self()))
		return true;
	return c->mode == CU_CAPTURE_GLOBAL && thread_mode == CU_CAPTURE_GLOBAL;
}

bool sim_capture_forbids(void)
{
	for (struct sim_capture *c = sim.captures; c; c = c->next)
		if (forbids(c))
			return true;
	return false;
}

void sim_capture_spoil(void)
{
	for (struct sim_capture *c = sim.captures; c; c = c->next)
		c->spoiled = c->spoiled || forbids(c);
}

bool sim_capture_of_blocking(void)
{
	for (struct sim_capture *c = sim.captures; c; c = c->next)
		for (uint32_t i = 0; i < c->streams; i++)
			if (!(c->stream[i]->flags & CU_STREAM_ASYNC))
				return true;
	return false;
}

void sim_capture_spoiled_by(struct CUstream_st *stream)
{
	stream->capture->spoiled = true;
}

int sim_capture_take(struct CUstream_st *stream, struct sim_op *op)
{
	struct sim_capture *c = stream->capture;

	if (c->spoiled) {
		sim_op_free(op);
		return SIM_ERR_INVALIDATED;
	}
	*c->end = op;
	c->end = &op->next;
	stream->captured++;
	return CU_OK;
}

int sim_capture_record(struct CUstream_st *stream, struct CUevent_st *event)
{
	event->capture = stream->capture;
	event->stream = stream;
	event->captured = stream->captured;
	return stream->capture->spoiled ? SIM_ERR_INVALIDATED : CU_OK;
}

/* A stream that waits for what a capture recorded becomes part of it. */
int sim_capture_wait(struct CUstream_st *stream, struct CUevent_st *event)
{
	struct sim_capture *c = event->capture;

	if (!c || (stream->capture && stream->capture != c)) {
		if (stream->capture)
			sim_capture_spoiled_by(stream);
		return sim_refuse(CU_ERR_CAPTURING, CUDADRV_CAPTURE,
			"a captured stream waits for an event from outside its capture");
	}
	if (!stream->capture) {
		if (c->streams == JOINED)
			return CU_ERR_UNSUPPORTED;
		c->stream[c->streams++] = stream;
		stream->capture = c;
		stream->captured = stream->joined = 0;
	}
	if (stream == c->first && event->stream != stream)
		event->stream->joined = event->captured;
	return CU_OK;
}

/* ---- capturing ---- */

static int begin(struct CUstream_st *stream, int mode)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);
	struct sim_capture *c;

	if (!s)
		return r;
	if (s == s->ctx->null_stream || s->capture || mode < CU_CAPTURE_GLOBAL ||
		mode > CU_CAPTURE_RELAXED)
		return sim_refuse(CU_ERR_CAPTURING, CUDADRV_CAPTURE,
			"cuStreamBeginCapture of the default stream or of a captured one");
	c = calloc(1, sizeof(*c));
	if (!c)
		return CU_ERR_NO_MEMORY;
	*c = (struct sim_capture){ .next = sim.captures,
		.first = s,
		.stream = { s },
		.streams = 1,
		.mode = mode,
		.thread = pthread_self() };
	c->end = &c->op;
	s->capture = c;
	s->captured = s->joined = 0;
	sim.captures = c;
	return CU_OK;
}

SIM_EXPORT int cuStreamBeginCapture_v2(struct CUstream_st *stream, int mode)
{
	SIM_CALL(cuStreamBeginCapture_v2, SIM_INIT | SIM_CTX, begin(stream, mode));
}

static bool all_joined(const struct sim_capture *c)
{
	for (uint32_t i = 1; i < c->streams; i++)
		if (c->stream[i]->joined < c->stream[i]->captured)
			return false;
	return true;
}

static void end_capture(struct sim_capture *c)
{
	struct sim_capture **p;

	for (p = &sim.captures; *p != c;)
		p = &(*p)->next;
	*p = c->next;
	for (uint32_t i = 0; i < c->streams; i++)
		c->stream[i]->capture = NULL;
	for (struct CUevent_st *e = sim.events; e; e = e->next)
		if (e->capture == c) {
			e->capture = NULL;
			e->stream = NULL;
		}
	free_ops(c->op);
	free(c);
}

static int check_end(const struct CUstream_st *s, const struct sim_capture *c)
{
	if (c->first != s)
		return sim_refuse(SIM_ERR_UNMATCHED, CUDADRV_CAPTURE,
			"cuStreamEndCapture of a stream that joined a capture");
	if (c->mode != CU_CAPTURE_RELAXED && !pthread_equal(c->thread, pthread_self()))
		return sim_refuse(SIM_ERR_WRONG_THREAD, CUDADRV_CAPTURE,
			"cuStreamEndCapture by another thread");
	return CU_OK;
}

static int end(struct CUstream_st *stream, struct CUgraph_st **ret_graph)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);
	struct sim_capture *c = s ? s->capture : NULL;
	struct CUgraph_st *g;

	if (!s)
		return r;
	*ret_graph = NULL;
	if (!c)
		return sim_refuse(CU_ERR_CAPTURING, CUDADRV_CAPTURE,
			"cuStreamEndCapture of a stream that is not captured");
	r = check_end(s, c);
	if (r != CU_OK)
		return r;
	if (c->spoiled)
		r = SIM_ERR_INVALIDATED;
	else if (!all_joined(c))
		r = sim_refuse(SIM_ERR_UNJOINED, CUDADRV_CAPTURE,
			"the capture has streams that its first one did not wait for");
	g = r == CU_OK ? calloc(1, sizeof(*g)) : NULL;
	if (g) {
		*g = (struct CUgraph_st){ graphs, c->op };
		c->op = NULL;
		graphs = g;
		*ret_graph = g;
	} else if (r == CU_OK) {
		r = CU_ERR_NO_MEMORY;
	}
	end_capture(c);
	return r;
}

SIM_EXPORT int cuStreamEndCapture(struct CUstream_st *stream, struct CUgraph_st **graph)
{
	SIM_CALL(cuStreamEndCapture, SIM_INIT | SIM_CTX, end(stream, graph));
}

static int is_capturing(struct CUstream_st *stream, unsigned int *status)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);

	if (!s)
		return r;
	if (s == s->ctx->null_stream && sim_capture_of_blocking())
		return SIM_ERR_IMPLICIT;
	*status = !s->capture ? CU_CAPTURE_NONE : s->capture->spoiled ? 2 : CU_CAPTURE_ACTIVE;
	return CU_OK;
}

SIM_EXPORT int cuStreamIsCapturing(struct CUstream_st *stream, unsigned int *status)
{
	SIM_CALL(cuStreamIsCapturing, SIM_INIT | SIM_CTX, is_capturing(stream, status));
}

static int exchange_mode(unsigned int *mode)
{
	unsigned int before = thread_mode;

	if (*mode > CU_CAPTURE_RELAXED)
		return sim_refuse(
			CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "capture mode %u", *mode);
	thread_mode = *mode;
	*mode = before;
	return CU_OK;
}

SIM_EXPORT int cuThreadExchangeStreamCaptureMode(unsigned int *mode)
{
	SIM_CALL(cuThreadExchangeStreamCaptureMode, SIM_ANY, exchange_mode(mode));
}

/* ---- graphs ---- */

static int copy_ops(const struct sim_op *from, struct sim_op **ret_ops)
{
	struct sim_op *list = NULL, **end_of = &list;

	for (; from; from = from->next) {
		*end_of = sim_op_clone(from);
		if (!*end_of) {
			free_ops(list);
			return CU_ERR_NO_MEMORY;
		}
		end_of = &(*end_of)->next;
	}
	*ret_ops = list;
	return CU_OK;
}

static int instantiate(
	struct CUgraphExec_st **ret_exec, const struct CUgraph_st *graph, unsigned long long flags)
{
	struct CUgraphExec_st *x;
	int r;

	for (const struct CUgraph_st *g = graphs; g != graph; g = g->next)
		if (!g)
			return sim_refuse(
				CU_ERR_INVALID_VALUE, CUDADRV_BAD_HANDLE, "no such graph");
	if (flags)
		return CU_ERR_UNSUPPORTED;
	x = calloc(1, sizeof(*x));
	if (!x)
		return CU_ERR_NO_MEMORY;
	r = copy_ops(graph->op, &x->op);
	if (r != CU_OK) {
		free(x);
		return r;
	}
	x->next = execs;
	execs = x;
	*ret_exec = x;
	return CU_OK;
}

SIM_EXPORT int cuGraphInstantiateWithFlags(
	struct CUgraphExec_st **exec, struct CUgraph_st *graph, unsigned long long flags)
{
	SIM_CALL(cuGraphInstantiateWithFlags, SIM_INIT | SIM_CTX, instantiate(exec, graph, flags));
}

static bool is_exec(const struct CUgraphExec_st *exec)
{
	for (const struct CUgraphExec_st *x = execs; x; x = x->next)
		if (x == exec)
			return true;
	return false;
}

static int launch(const struct CUgraphExec_st *exec, struct CUstream_st *stream)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);
	struct sim_op *list, *next;

	if (!s)
		return r;
	if (!is_exec(exec))
		return sim_refuse(
			CU_ERR_INVALID_VALUE, CUDADRV_BAD_HANDLE, "no such executable graph");
	r = copy_ops(exec->op, &list);
	for (; r == CU_OK && list; list = next) {
		next = list->next;
		list->next = NULL;
		r = sim_enqueue(s, list);
		if (r != CU_OK)
			free_ops(next);
	}
	return r;
}

SIM_EXPORT int cuGraphLaunch(struct CUgraphExec_st *exec, struct CUstream_st *stream)
{
	SIM_CALL(cuGraphLaunch, SIM_INIT | SIM_CTX, launch(exec, stream));
}

static int exec_destroy(struct CUgraphExec_st *exec)
{
	struct CUgraphExec_st **p;

	if (!is_exec(exec))
		return sim_refuse(
			CU_ERR_INVALID_VALUE, CUDADRV_BAD_HANDLE, "no such executable graph");
	for (p = &execs; *p != exec;)
		p = &(*p)->next;
	*p = exec->next;
	free_ops(exec->op);
	free(exec);
	return CU_OK;
}

SIM_EXPORT int cuGraphExecDestroy(struct CUgraphExec_st *exec)
{
	SIM_CALL(cuGraphExecDestroy, SIM_INIT, exec_destroy(exec));
}

static int graph_destroy(struct CUgraph_st *graph)
{
	struct CUgraph_st **p;

	for (p = &graphs; *p != graph; p = &(*p)->next)
		if (!*p)
			return sim_refuse(
				CU_ERR_INVALID_VALUE, CUDADRV_BAD_HANDLE, "no such graph");
	*p = graph->next;
	free_ops(graph->op);
	free(graph);
	return CU_OK;
}

SIM_EXPORT int cuGraphDestroy(struct CUgraph_st *graph)
{
	SIM_CALL(cuGraphDestroy, SIM_INIT, graph_destroy(graph));
}
