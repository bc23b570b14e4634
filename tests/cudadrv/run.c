/* SPDX-License-Identifier: Apache-2.0 */
/* An operation's life once it runs: addresses, intervals, the engine's time, slices of work, its end. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cudadrv/sim.h"

#define SLICE (UINT64_C(256) << 10)

/* ---- beginning ---- */

static int room_for(struct sim_op *op, size_t n)
{
	size_t room = op->room ? op->room * 2 : op->n + 2;
	struct sim_run *to, *from;

	if (n <= op->room)
		return CU_OK;
	to = realloc(op->to, room * sizeof(*to));
	op->to = to ? to : op->to;
	from = realloc(op->from, room * sizeof(*from));
	op->from = from ? from : op->from;
	if (!to || !from)
		return CU_ERR_NO_MEMORY;
	op->room = room;
	return CU_OK;
}

static void hold(const struct sim_run *run)
{
	if (run->map)
		run->map->running++;
	if (run->host)
		run->host->running++;
}

static void let_go(const struct sim_run *run)
{
	if (run->map)
		run->map->running--;
	if (run->host)
		run->host->running--;
}

/* The next pair of runs; a side that the operation does not have stays empty. */
static int add_pair(struct sim_op *op, const struct sim_run *to, const struct sim_run *from)
{
	int r = room_for(op, op->runs + 1);

	if (r != CU_OK)
		return r;
	op->to[op->runs] = *to;
	op->from[op->runs] = *from;
	hold(to);
	hold(from);
	op->runs++;
	return CU_OK;
}

static int resolve_side(
	uint64_t at, size_t bytes, bool host, int access, int device, struct sim_run *ret_run)
{
	if (!host)
		return sim_resolve(at, bytes, access, device, ret_run);
	sim_resolve_host(at, bytes, ret_run);
	return CU_OK;
}

static int begin_copy(struct sim_op *op, const struct sim_copy *c)
{
	int device = op->stream->ctx->device;

	for (size_t done = 0; done < c->bytes;) {
		struct sim_run to = { .bytes = c->bytes - done }, from = to;
		int r = resolve_side(
			c->to + done, to.bytes, c->to_host, SIM_WRITE_ACCESS, device, &to);

		if (r == CU_OK && op->kind == SIM_COPY)
			r = resolve_side(
				c->from + done, to.bytes, c->from_host, SIM_READ, device, &from);
		if (r != CU_OK)
			return r;
		if (op->kind == SIM_COPY && from.bytes < to.bytes)
			to.bytes = from.bytes;
		from.bytes = op->kind == SIM_COPY ? to.bytes : 0;
		sim_touch(&to, true);
		sim_touch(&from, false);
		r = add_pair(op, &to, &from);
		if (r != CU_OK)
			return r;
		done += to.bytes;
	}
	return CU_OK;
}

/* Runs of one side only, over [at, at + bytes). */
static int begin_side(struct sim_op *op, uint64_t at, uint64_t bytes, bool writes)
{
	const struct sim_run none = { .p = NULL };

	while (bytes > 0) {
		struct sim_run run;
		int r = sim_resolve(at, bytes, writes ? SIM_WRITE_ACCESS : SIM_READ,
			op->stream->ctx->device, &run);

		if (r != CU_OK)
			return r;
		sim_touch(&run, writes);
		r = writes ? add_pair(op, &run, &none) : add_pair(op, &none, &run);
		if (r != CU_OK)
			return r;
		at += run.bytes;
		bytes -= run.bytes;
	}
	return CU_OK;
}

static int begin_kernel(struct sim_op *op)
{
	const struct sim_kernel *k = op->kernel;
	int r;

	if (op->param[0] % 8 || (!k->word && op->param[1] % 8))
		return sim_refuse(SIM_ERR_MISALIGNED, CUDADRV_MISALIGNED, "kernel %s at 0x%llx",
			k->name, (unsigned long long)op->param[0]);
	r = begin_side(op, op->param[0], k->word ? 8 : op->param[1], k->writes);
	if (r == CU_OK && k->counts)
		r = begin_side(op, op->param[3], 8, true);
	return r;
}

/* Batches have no order: the runs of one are worked on in that of the seed. */
static void shuffle(struct sim_op *op)
{
	for (size_t i = op->runs; i > 1; i--) {
		size_t j = sim_random(&sim.seed) % i;
		struct sim_run to = op->to[i - 1], from = op->from[i - 1];

		op->to[i - 1] = op->to[j];
		op->from[i - 1] = op->from[j];
		op->to[j] = to;
		op->from[j] = from;
	}
}

/* 0: to the device, 1: from it, -1: within. */
static int direction_of(const struct sim_op *op, size_t i)
{
	if (op->kind != SIM_COPY || !op->to[i].map == !op->from[i].map)
		return -1;
	return op->to[i].map ? 0 : 1;
}

/* All processes' copies of a direction take the engine's time one after the other. */
static void take_engine(struct sim_op *op)
{
	const struct cudadrv_config *c = &sim.shared.s->config;
	struct sim_device *d = &sim.shared.s->device[op->stream->ctx->device];
	uint64_t bytes[2] = { 0, 0 };

	for (size_t i = 0; i < op->runs; i++)
		if (direction_of(op, i) >= 0)
			bytes[direction_of(op, i)] += op->to[i].bytes;
	if (op->kind == SIM_COPY)
		op->until_ns = op->begun_ns + c->latency_ns;
	if (c->copy_rate == 0)
		return;
	sim_lock(&sim.shared);
	for (int way = 0; way < 2; way++) {
		uint64_t start = d->free_at[way] > op->begun_ns ? d->free_at[way] : op->begun_ns;

		if (bytes[way] == 0)
			continue;
		d->free_at[way] =
			start + (uint64_t)((double)bytes[way] * 1e9 / (double)c->copy_rate);
		if (d->free_at[way] + c->latency_ns > op->until_ns)
			op->until_ns = d->free_at[way] + c->latency_ns;
	}
	sim_unlock(&sim.shared);
}

static uint32_t function_of(const struct sim_op *op)
{
	static const uint32_t of[] = { SIM_OP_COPY, SIM_OP_SET, SIM_OP_KERNEL, SIM_OP_WRITE,
		SIM_OP_WAIT };

	return op->kind <= SIM_WAIT ? of[op->kind] : SIM_FUNCTIONS;
}

static int strike(struct sim_op *op)
{
	const struct sim_fault *f;
	int n;

	if (function_of(op) == SIM_FUNCTIONS)
		return CU_OK;
	atomic_fetch_add(&sim.shared.s->calls[function_of(op)], 1);
	n = sim_fault_strikes(&sim.shared, function_of(op), program_invocation_short_name);
	if (n < 0)
		return CU_OK;
	f = &sim.shared.s->fault[n];
	switch (f->action) {
	case CUDADRV_KILL:
		raise(SIGKILL);
		return CU_OK;
	case CUDADRV_SLEEP:
		op->until_ns = op->begun_ns + f->value;
		return CU_OK;
	case CUDADRV_HANG:
		op->hangs_by = f;
		return CU_OK;
	default:
		return (int)f->value;
	}
}

static int resolve_all(struct sim_op *op)
{
	int r = CU_OK;

	switch (op->kind) {
	case SIM_COPY:
	case SIM_SET:
		for (size_t i = 0; r == CU_OK && i < op->n; i++)
			r = begin_copy(op, &op->copy[i]);
		break;
	case SIM_KERNEL:
		r = op->project ? sim_project_begin(op) : begin_kernel(op);
		break;
	case SIM_WRITE:
	case SIM_WAIT:
		r = begin_side(op, op->at, 8, op->kind == SIM_WRITE);
		break;
	default:
		break;
	}
	return r;
}

int sim_op_begin(struct sim_op *op)
{
	int r;

	op->begun_ns = sim_now();
	r = resolve_all(op);
	if (r != CU_OK)
		return r;
	if (op->kind == SIM_COPY)
		shuffle(op);
	take_engine(op);
	r = strike(op);
	if (r == CU_OK && op->kind <= SIM_KERNEL)
		sim_hazard_begin(op);
	return r;
}

void sim_op_end(struct sim_op *op)
{
	sim_hazard_end(op);
	sim_project_end(op);
	for (size_t i = 0; i < op->runs; i++) {
		let_go(&op->to[i]);
		let_go(&op->from[i]);
	}
}

/* ---- slices, without sim.lock: nothing here is anybody else's ---- */

static bool stalled(const struct sim_op *op, size_t run)
{
	const struct sim_device *d = &sim.shared.s->device[op->stream->ctx->device];
	int way = direction_of(op, run);

	return way >= 0 && atomic_load(&d->stalled[way]);
}

static enum sim_slice move_bytes(struct sim_op *op)
{
	const struct sim_run *to = &op->to[op->next_run], *from = &op->from[op->next_run];
	size_t n = to->bytes - op->next_byte;

	n = n < SLICE ? n : SLICE;
	if (op->kind == SIM_COPY)
		memmove(to->p + op->next_byte, from->p + op->next_byte, n);
	else
		memset(to->p + op->next_byte, (int)op->value, n);
	op->next_byte += n;
	if (op->next_byte == to->bytes) {
		op->next_byte = 0;
		op->next_run++;
	}
	return SIM_MORE;
}

static _Atomic uint64_t *word_of(const struct sim_run *run)
{
	return (_Atomic uint64_t *)(void *)run->p;
}

static bool reached(const struct sim_op *op)
{
	uint64_t now = atomic_load_explicit(word_of(&op->from[0]), memory_order_acquire);

	switch (op->flags & 3) {
	case 0:
		return (int64_t)(now - op->value) >= 0;
	case 1:
		return now == op->value;
	case 2:
		return (now & op->value) != 0;
	default:
		return ~(now | op->value) != 0;
	}
}

static enum sim_slice when_due(const struct sim_op *op)
{
	return sim_now() < op->until_ns ? SIM_IDLE : SIM_DONE;
}

enum sim_slice sim_op_slice(struct sim_op *op)
{
	if (op->hangs_by && atomic_load(&op->hangs_by->used))
		return SIM_IDLE;
	switch (op->kind) {
	case SIM_COPY:
	case SIM_SET:
		if (op->next_run == op->runs)
			return when_due(op);
		return stalled(op, op->next_run) ? SIM_IDLE : move_bytes(op);
	case SIM_KERNEL:
		if (sim_now() < op->until_ns)
			return SIM_IDLE;
		if (!op->project)
			return sim_kernel_slice(op);
		op->error = sim_project_run(op);
		return op->error == CU_OK ? SIM_DONE : SIM_FAILED;
	case SIM_WRITE:
		if (sim_now() < op->until_ns)
			return SIM_IDLE;
		atomic_store_explicit(word_of(&op->to[0]), op->value, memory_order_release);
		return SIM_DONE;
	case SIM_WAIT:
		return reached(op) ? SIM_DONE : SIM_IDLE;
	default:
		return SIM_DONE;
	}
}
