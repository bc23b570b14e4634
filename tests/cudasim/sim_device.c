/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cudasim/sim_device.h"

static struct {
	void *block[64];
	uint32_t n;
	uint64_t seed;
} memory;

static struct {
	uint32_t launches[SIM_KERNELS_MAX]; /* in the order of kvp_cuda_kernels[] */
	int (*broken)(const char *kernel);
	uint32_t barrier;
} model;

uint32_t sim_device_launches(const struct kvp_cuda_kernel *k)
{
	return model.launches[k - kvp_cuda_kernels];
}

void sim_device_break(int (*broken)(const char *kernel), uint32_t barrier)
{
	model.broken = broken;
	model.barrier = barrier;
}

static uint64_t sim_alloc(struct device *d, const void *init, size_t bytes, int writable)
{
	void *p;

	(void)d;
	if (memory.n == sizeof(memory.block) / sizeof(memory.block[0]))
		return 0;
	/* one more byte, so that regions never touch and a step too far is always seen */
	p = aligned_alloc(256, (bytes + 1 + 255) / 256 * 256);
	if (!p)
		return 0;
	memcpy(p, init, bytes);
	memory.block[memory.n++] = p;
	cudasim_map(p, bytes, writable);
	return (uintptr_t)p;
}

static int sim_read(struct device *d, uint64_t from, void *to, size_t bytes)
{
	(void)d;
	memcpy(to, (const void *)(uintptr_t)from, bytes);
	return 0;
}

static int sim_launch(struct device *d, const struct kvp_cuda_kernel *k, const void *params)
{
	void (*fn)(const void *) = sim_find(k->name);
	struct cudasim_report report;
	struct kvp_cuda_shape shape;
	int r;

	if (!fn) {
		snprintf(d->error, sizeof(d->error), "%s is not in the model", k->name);
		return -1;
	}
	model.launches[k - kvp_cuda_kernels]++;
	r = k->shape(params, &shape);
	if (r == 0)
		r = shape.smem_bytes > k->smem_max || shape.threads > k->threads_max ? -1 : 0;
	if (r == 0 && model.broken && model.broken(k->name)) {
		if (model.barrier == SIM_SKIP_LAUNCH)
			return 0;
		cudasim_skip_barrier(model.barrier);
	}
	if (r == 0)
		r = cudasim_launch(fn, params, &shape, memory.seed++, &report);
	cudasim_skip_barrier(CUDASIM_WHOLE);
	if (r < 0) {
		snprintf(d->error, sizeof(d->error), "%s: shape refused (%d)", k->name, r);
		return -1;
	}
	if (report.total == 0)
		return 0;
	snprintf(d->error, sizeof(d->error), "%s: %u hazards, the first: %s", k->name, report.total,
		report.first);
	return -1;
}

static void sim_reset(struct device *d)
{
	(void)d;
	cudasim_unmap_all();
	while (memory.n > 0)
		free(memory.block[--memory.n]);
}

int sim_device_init(struct device *d, uint64_t seed)
{
	struct kvp_kernels *ref;
	int r = kvp_cuda_kernel_count > SIM_KERNELS_MAX ? -E2BIG : kvp_kernels_new(0, &ref);

	if (r < 0)
		return r;
	memory.seed = seed;
	*d = (struct device){
		.alloc = sim_alloc,
		.read = sim_read,
		.launch = sim_launch,
		.reset = sim_reset,
		.ref = ref,
	};
	return 0;
}
