/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordering hazards: what runs holds the bytes that it reads and writes in the shared state, and what
 * begins looks whether somebody else's overlap. A killed process's writes stay for a while: nothing
 * proves that they have ended.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cudadrv/sim.h"

const char *sim_op_name(const struct sim_op *op)
{
	static const char *const names[] = { "copy", "set", "kernel", "write", "wait", "record",
		"nothing" };

	if (op->kind != SIM_KERNEL)
		return names[op->kind];
	return op->project ? op->project->name : op->kernel->name;
}

/* Does the other side's operation still run? A dead one's is forgotten here once it cannot. */
static bool still_runs(struct sim_interval *other)
{
	struct sim_shared *sh = &sim.shared;
	uint32_t slot = atomic_load(&other->used) - 1;
	const struct sim_process *p = &sh->s->process[slot];

	if (sim_process_lives(sh, slot, other->life))
		return true;
	if (p->life == other->life && other->write && sim_now() - p->died < sh->s->config.linger_ns)
		return true;
	atomic_store(&other->used, 0);
	return false;
}

static void tell(const struct sim_op *op, const struct sim_run *run, bool write,
	const struct sim_interval *other)
{
	const struct sim_process *p = &sim.shared.s->process[atomic_load(&other->used) - 1];

	sim_says(CUDADRV_HAZARD,
		"%s %s bytes %llu to %llu while %s of process %d (%s%s) %s bytes %llu to %llu",
		sim_op_name(op), write ? "writes" : "reads", (unsigned long long)run->offset,
		(unsigned long long)(run->offset + run->bytes), other->what, (int)p->pid, p->name,
		p->died ? ", killed" : "", other->write ? "writes" : "reads",
		(unsigned long long)other->begin, (unsigned long long)other->end);
}

/* True after a report. */
static bool look(const struct sim_op *op, const struct sim_run *run, bool write, uint64_t number)
{
	struct sim_state *s = sim.shared.s;

	for (uint32_t i = 0; i < s->running; i++) {
		struct sim_interval *other = &s->interval[i];

		if (atomic_load(&other->used) == 0 || other->space != run->space ||
			other->begin >= run->offset + run->bytes || other->end <= run->offset ||
			!(write || other->write))
			continue;
		if (other->life == sim.life && other->op == number)
			continue;
		if (still_runs(other)) {
			tell(op, run, write, other);
			return true;
		}
	}
	return false;
}

void sim_hazard_sweep(void)
{
	struct sim_state *s = sim.shared.s;

	for (uint32_t i = 0; i < s->running; i++)
		if (atomic_load(&s->interval[i].used) != 0)
			still_runs(&s->interval[i]);
	while (s->running > 0 && atomic_load(&s->interval[s->running - 1].used) == 0)
		s->running--;
}

static struct sim_interval *place(struct sim_state *s)
{
	for (uint32_t i = 0; i < SIM_RUNNING; i++)
		if (atomic_load(&s->interval[i].used) == 0) {
			s->running = i < s->running ? s->running : i + 1;
			return &s->interval[i];
		}
	return NULL;
}

static void enter(struct sim_op *op, const struct sim_run *run, bool write, uint64_t number)
{
	struct sim_state *s = sim.shared.s;
	struct sim_interval *x = place(s);

	if (!x)
		return;
	x->write = write;
	x->space = run->space;
	x->begin = run->offset;
	x->end = run->offset + run->bytes;
	x->life = sim.life;
	x->op = number;
	snprintf(x->what, sizeof(x->what), "%s", sim_op_name(op));
	atomic_store(&x->used, sim.slot + 1);
	op->interval[op->intervals++] = (uint32_t)(x - s->interval);
}

void sim_hazard_begin(struct sim_op *op)
{
	uint64_t number = ++sim.next_op;
	bool told = false;

	op->interval = calloc(op->runs * 2 + 1, sizeof(*op->interval));
	if (!op->interval)
		return;
	sim_lock(&sim.shared);
	for (size_t i = 0; i < op->runs; i++) {
		const struct sim_run *side[2] = { &op->from[i], &op->to[i] };

		for (int write = 0; write < 2; write++) {
			if (side[write]->bytes == 0)
				continue;
			told = told || look(op, side[write], write, number);
			enter(op, side[write], write, number);
		}
	}
	sim_unlock(&sim.shared);
}

void sim_hazard_end(struct sim_op *op)
{
	struct sim_state *s = sim.shared.s;

	if (op->intervals == 0)
		return;
	sim_lock(&sim.shared);
	for (uint32_t i = 0; i < op->intervals; i++)
		atomic_store(&s->interval[op->interval[i]].used, 0);
	while (s->running > 0 && atomic_load(&s->interval[s->running - 1].used) == 0)
		s->running--;
	sim_unlock(&sim.shared);
	op->intervals = 0;
}
