/* SPDX-License-Identifier: Apache-2.0 */
/* What tests set and ask; cudadrv.h says what. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/cudadrv/state.h"

#define STEP_WAIT_NS UINT64_C(2000000000)

struct cudadrv {
	struct sim_shared shared;
};

int cudadrv_new(const char *folder, const struct cudadrv_config *config, struct cudadrv **ret_sim)
{
	static const struct cudadrv_config defaults;
	int r = sim_shared_make(folder, config ? config : &defaults);

	return r < 0 ? r : cudadrv_open(folder, ret_sim);
}

int cudadrv_open(const char *folder, struct cudadrv **ret_sim)
{
	struct cudadrv *sim = calloc(1, sizeof(*sim));
	int r;

	if (!sim)
		return -ENOMEM;
	r = sim_shared_open(folder, &sim->shared);
	if (r < 0) {
		free(sim);
		return r;
	}
	*ret_sim = sim;
	return 0;
}

struct cudadrv *cudadrv_close(struct cudadrv *sim)
{
	if (sim)
		sim_shared_close(&sim->shared);
	free(sim);
	return NULL;
}

uint64_t cudadrv_reports(struct cudadrv *sim, enum cudadrv_report kind)
{
	uint64_t n = 0;

	if (kind < CUDADRV_REPORTS_N)
		return atomic_load(&sim->shared.s->reports[kind]);
	for (uint32_t i = 0; i < CUDADRV_REPORTS_N; i++)
		n += atomic_load(&sim->shared.s->reports[i]);
	return n;
}

int cudadrv_forget(struct cudadrv *sim)
{
	int fd = openat(sim->shared.folder, "reports", O_WRONLY | O_TRUNC | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	close(fd);
	for (uint32_t i = 0; i < CUDADRV_REPORTS_N; i++)
		atomic_store(&sim->shared.s->reports[i], 0);
	return 0;
}

int cudadrv_uuid(struct cudadrv *sim, uint32_t device, uint8_t ret_uuid[16])
{
	if (device >= sim->shared.s->config.devices)
		return -ENODEV;
	sim_uuid(sim->shared.s, device, ret_uuid);
	return 0;
}

int cudadrv_free_bytes(struct cudadrv *sim, uint32_t device, uint64_t *ret_bytes)
{
	uint64_t used, total = sim->shared.s->config.vram_bytes;

	if (device >= sim->shared.s->config.devices)
		return -ENODEV;
	sim_lock(&sim->shared);
	used = sim_sweep(&sim->shared, device);
	sim_unlock(&sim->shared);
	*ret_bytes = used < total ? total - used : 0;
	return 0;
}

int cudadrv_segments(struct cudadrv *sim, uint32_t *ret_n)
{
	sim_lock(&sim->shared);
	*ret_n = sim_count(&sim->shared);
	sim_unlock(&sim->shared);
	return 0;
}

const char *cudadrv_function(uint32_t i)
{
	return i < SIM_CALLS ? sim_function_names[i] : NULL;
}

static int function_of(const char *name)
{
	for (int i = 0; i < SIM_FUNCTIONS; i++)
		if (strcmp(sim_function_names[i], name) == 0)
			return i;
	return -ENOENT;
}

int64_t cudadrv_calls(struct cudadrv *sim, const char *function)
{
	int f = function_of(function);

	return f < 0 ? f : (int64_t)atomic_load(&sim->shared.s->calls[f]);
}

int cudadrv_set(struct cudadrv *sim, const struct cudadrv_fault *fault, uint32_t *ret_number)
{
	struct sim_state *s = sim->shared.s;
	int f = function_of(fault->function), r = -ENOSPC;

	if (f < 0)
		return f;
	sim_lock(&sim->shared);
	for (uint32_t i = 0; r < 0 && i < SIM_FAULTS; i++) {
		struct sim_fault *x = &s->fault[i];

		if (atomic_load(&x->used))
			continue;
		x->function = (uint32_t)f;
		x->action = fault->action;
		snprintf(x->program, sizeof(x->program), "%.15s",
			fault->program ? fault->program : "");
		x->skip = fault->skip;
		x->times = fault->times;
		atomic_store(&x->hits, 0);
		x->value = fault->value;
		atomic_store(&x->used, 1);
		atomic_fetch_add(&s->n_faults, 1);
		if (ret_number)
			*ret_number = i;
		r = 0;
	}
	sim_unlock(&sim->shared);
	return r;
}

uint32_t cudadrv_hit(struct cudadrv *sim, uint32_t number)
{
	return number < SIM_FAULTS ? atomic_load(&sim->shared.s->fault[number].hits) : 0;
}

int cudadrv_clear(struct cudadrv *sim)
{
	struct sim_state *s = sim->shared.s;

	sim_lock(&sim->shared);
	for (uint32_t i = 0; i < SIM_FAULTS; i++)
		atomic_store(&s->fault[i].used, 0);
	atomic_store(&s->n_faults, 0);
	atomic_store(&s->oom_below, 0);
	for (uint32_t i = 0; i < SIM_DEVICES; i++) {
		atomic_store(&s->device[i].gone, 0);
		atomic_store(&s->device[i].stalled[0], 0);
		atomic_store(&s->device[i].stalled[1], 0);
	}
	sim_unlock(&sim->shared);
	return 0;
}

void cudadrv_oom_below(struct cudadrv *sim, uint64_t bytes)
{
	atomic_store(&sim->shared.s->oom_below, bytes);
}

void cudadrv_stall(struct cudadrv *sim, uint32_t device, uint32_t direction, uint32_t on)
{
	if (device < SIM_DEVICES && direction < 2)
		atomic_store(&sim->shared.s->device[device].stalled[direction], on);
}

void cudadrv_ecc(struct cudadrv *sim, uint32_t device)
{
	if (device < SIM_DEVICES)
		atomic_fetch_add(&sim->shared.s->device[device].ecc, 1);
}

void cudadrv_gone(struct cudadrv *sim, uint32_t device, uint32_t on)
{
	if (device < SIM_DEVICES)
		atomic_store(&sim->shared.s->device[device].gone, on);
}

int cudadrv_step(struct cudadrv *sim, uint32_t n)
{
	const struct timespec nap = { 0, 200000 };
	struct sim_state *s = sim->shared.s;
	uint32_t before = atomic_load(&s->stepped), ran = 0;
	uint64_t last = sim_now();

	atomic_store(&s->steps, n);
	while (ran < n && sim_now() - last < STEP_WAIT_NS) {
		uint32_t now = atomic_load(&s->stepped) - before;

		if (now != ran)
			last = sim_now();
		ran = now;
		nanosleep(&nap, NULL);
	}
	atomic_store(&s->steps, 0);
	return (int)ran;
}
