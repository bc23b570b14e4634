/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The project's own kernels (kernels/cuda) on the simulated driver: the model of tests/cudasim runs
 * them over all that is mapped, at the addresses at which the device sees it. Which bytes a kernel
 * touches is known only once it has run, so it takes no part in the hazards between operations.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/cudadrv/sim.h"
#include "tests/cudasim/sim_device.h"

/* The kernel that runs now, and where it touched memory last; the runner's. */
static const struct sim_op *now;
static struct sim_map *last;

static struct sim_map *map_of(uint64_t at)
{
	if (last && at >= last->at && at - last->at < last->bytes)
		return last;
	for (uint32_t i = 0; i < now->helds; i++) {
		struct sim_map *m = now->held[i].map;

		if (m && at >= m->at && at - m->at < m->bytes)
			return last = m;
	}
	return NULL;
}

/* Fresh memory is poison here as well. */
static void touched(const void *p, uint32_t size)
{
	uint64_t at = (uintptr_t)p;
	struct sim_map *m = map_of(at);
	const struct sim_run run = { .bytes = size, .map = m, .offset = m ? at - m->at : 0 };

	sim_touch(&run, false);
}

/* What lies in the process's address space of the device, for as long as the kernel runs. */
int sim_project_begin(struct sim_op *op)
{
	uint32_t n = 0;

	for (const struct sim_map *m = sim.maps; m; m = m->next)
		n++;
	for (const struct sim_host *h = sim.hosts; h; h = h->next)
		n++;
	op->held = calloc(n + 1, sizeof(*op->held));
	if (!op->held)
		return CU_ERR_NO_MEMORY;
	for (struct sim_map *m = sim.maps; m; m = m->next) {
		if (m->prot[op->stream->ctx->device] == 0)
			continue;
		m->reachable++;
		op->held[op->helds++].map = m;
	}
	for (struct sim_host *h = sim.hosts; h; h = h->next) {
		h->reachable++;
		op->held[op->helds++].host = h;
	}
	return CU_OK;
}

void sim_project_end(struct sim_op *op)
{
	for (uint32_t i = 0; i < op->helds; i++) {
		if (op->held[i].map)
			op->held[i].map->reachable--;
		else
			op->held[i].host->reachable--;
	}
	op->helds = 0;
}

static void map_all(const struct sim_op *op)
{
	int device = op->stream->ctx->device;

	cudasim_unmap_all();
	for (uint32_t i = 0; i < op->helds; i++) {
		const struct sim_map *m = op->held[i].map;
		const struct sim_host *h = op->held[i].host;

		if (m)
			cudasim_map_at((const void *)(uintptr_t)m->at, m->alias, m->requested,
				m->prot[device] == CU_PROT_RW);
		else
			cudasim_map_at((const void *)(uintptr_t)h->device_at, h->p, h->bytes,
				!(h->flags & CU_REG_READ_ONLY));
	}
	now = op;
	last = NULL;
	cudasim_on_touch(touched);
}

/* All of it in one slice. The error becomes the process's sticky one. */
int sim_project_run(struct sim_op *op)
{
	struct cudasim_report report;
	int r;

	map_all(op);
	r = cudasim_launch(
		sim_find(op->project->name), op->params, &op->shape, sim.seed + op->seq, &report);
	cudasim_unmap_all();
	if (r < 0)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_KERNEL, "%s: no such shape",
			op->project->name);
	if (report.total == 0)
		return CU_OK;
	return sim_refuse(report.count[CUDASIM_BOUNDS] ? SIM_ERR_ADDRESS : SIM_ERR_LAUNCH,
		CUDADRV_KERNEL, "%s: %u faults, the first: %s", op->project->name, report.total,
		report.first);
}

const struct kvp_cuda_kernel *sim_project_find(const char *name)
{
	const struct kvp_cuda_kernel *k;

	return kvp_cuda_kernel_find(name, &k) == 0 && sim_find(name) ? k : NULL;
}
