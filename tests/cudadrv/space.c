/* SPDX-License-Identifier: Apache-2.0 */
/* What lies where: addresses of the device and of the host, turned into bytes to work on. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cudadrv/sim.h"

/* Number spaces of hazards: the top bits say what the rest is. */
#define SPACE_SEGMENT (UINT64_C(1) << 62)
#define SPACE_PROCESS (UINT64_C(2) << 62)

struct sim_map *sim_map_at(uint64_t at)
{
	for (struct sim_map *m = sim.maps; m; m = m->next)
		if (at >= m->at && at - m->at < m->bytes)
			return m;
	return NULL;
}

struct sim_host *sim_host_at(uint64_t at, size_t bytes)
{
	for (struct sim_host *h = sim.hosts; h; h = h->next) {
		uint64_t begin = (uintptr_t)h->p;

		if (at >= begin && at - begin < h->bytes && bytes <= h->bytes - (at - begin))
			return h;
	}
	return NULL;
}

struct sim_host *sim_host_device_at(uint64_t at, size_t bytes)
{
	for (struct sim_host *h = sim.hosts; h; h = h->next)
		if (h->device_at && at >= h->device_at && at - h->device_at < h->bytes &&
			bytes <= h->bytes - (at - h->device_at))
			return h;
	return NULL;
}

bool sim_is_mapped(uint64_t at, size_t bytes)
{
	while (bytes > 0) {
		const struct sim_map *m = sim_map_at(at);
		uint64_t here;

		if (!m)
			return sim_host_device_at(at, bytes) != NULL;
		here = m->bytes - (at - m->at);
		if (here >= bytes)
			return true;
		at += here;
		bytes -= here;
	}
	return true;
}

static void host_run(struct sim_host *h, uint64_t off, size_t bytes, struct sim_run *ret_run)
{
	*ret_run = (struct sim_run){ .p = h->p + off,
		.bytes = bytes,
		.host = h,
		.space = h->space ? h->space : SPACE_PROCESS | sim.life,
		.offset = h->space ? h->offset + off : (uintptr_t)h->p + off };
}

void sim_resolve_host(uint64_t at, size_t bytes, struct sim_run *ret_run)
{
	struct sim_host *h = sim_host_at(at, bytes);

	if (h) {
		host_run(h, at - (uintptr_t)h->p, bytes, ret_run);
		return;
	}
	*ret_run = (struct sim_run){ .p = (uint8_t *)(uintptr_t)at,
		.bytes = bytes,
		.space = SPACE_PROCESS | sim.life,
		.offset = at };
}

static int resolve_host_device(uint64_t at, size_t bytes, int access, struct sim_run *ret_run)
{
	struct sim_host *h = sim_host_device_at(at, bytes);

	if (!h)
		return sim_refuse(SIM_ERR_ADDRESS, CUDADRV_UNMAPPED,
			"%zu bytes at 0x%llx: nothing is mapped there", bytes,
			(unsigned long long)at);
	if (access == SIM_WRITE_ACCESS && h->flags & CU_REG_READ_ONLY)
		return sim_refuse(SIM_ERR_ADDRESS, CUDADRV_READ_ONLY,
			"a write at 0x%llx, registered READ_ONLY", (unsigned long long)at);
	host_run(h, at - h->device_at, bytes, ret_run);
	return CU_OK;
}

int sim_resolve(uint64_t at, size_t bytes, int access, int device, struct sim_run *ret_run)
{
	struct sim_map *m = sim_map_at(at);
	uint64_t off;

	if (!m)
		return resolve_host_device(at, bytes, access, ret_run);
	off = at - m->at;
	if (bytes > m->bytes - off)
		bytes = m->bytes - off;
	if (off + bytes > m->requested)
		return sim_refuse(SIM_ERR_ADDRESS, CUDADRV_OUT_OF_RANGE,
			"bytes %llu to %llu of an allocation of %llu", (unsigned long long)off,
			(unsigned long long)(off + bytes), (unsigned long long)m->requested);
	if (m->prot[device] == 0)
		return sim_refuse(SIM_ERR_ADDRESS, CUDADRV_NO_ACCESS,
			"0x%llx is mapped, device %d was never given access",
			(unsigned long long)at, device);
	if (access == SIM_WRITE_ACCESS && m->prot[device] != CU_PROT_RW)
		return sim_refuse(SIM_ERR_ADDRESS, CUDADRV_READ_ONLY,
			"a write at 0x%llx, mapped PROT_READ", (unsigned long long)at);
	*ret_run = (struct sim_run){ .p = m->alias + off,
		.bytes = bytes,
		.map = m,
		.space = SPACE_SEGMENT | m->ref.meta->id,
		.offset = off };
	return CU_OK;
}

/* ---- fresh memory ---- */

static void poison(const struct sim_map *m, uint64_t granule)
{
	uint64_t at = granule * SIM_GRANULE;
	uint64_t n = m->ref.meta->bytes - at < SIM_GRANULE ? m->ref.meta->bytes - at : SIM_GRANULE;

	sim_lock(&sim.shared);
	if (!atomic_load(&m->ref.meta->touched[granule])) {
		memset(m->alias + at, SIM_POISON, n);
		atomic_store(&m->ref.meta->touched[granule], 1);
	}
	sim_unlock(&sim.shared);
}

void sim_touch(const struct sim_run *run, bool covers)
{
	uint64_t end = run->offset + run->bytes;

	if (!run->map)
		return;
	for (uint64_t g = run->offset / SIM_GRANULE; g * SIM_GRANULE < end; g++) {
		bool whole = run->offset <= g * SIM_GRANULE && end >= (g + 1) * SIM_GRANULE;

		if (atomic_load(&run->map->ref.meta->touched[g]))
			continue;
		if (covers && whole)
			atomic_store(&run->map->ref.meta->touched[g], 1);
		else
			poison(run->map, g);
	}
}

/* ---- work that still needs it ---- */

static void wait_done(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += 10000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_nsec -= 1000000000;
		t.tv_sec++;
	}
	pthread_cond_timedwait(&sim.done, &sim.lock, &t);
}

void sim_quiesce_map(struct sim_map *map, const char *what)
{
	if (map->running > 0 || sim_work_at(map->at, map->bytes))
		sim_says(CUDADRV_RUNNING, "%s of 0x%llx while work there is not done", what,
			(unsigned long long)map->at);
	while (map->running > 0 || map->reachable > 0)
		wait_done();
}

void sim_quiesce_host(struct sim_host *host, const char *what)
{
	if (host->running > 0 || sim_work_at((uintptr_t)host->p, host->bytes) ||
		(host->device_at && sim_work_at(host->device_at, host->bytes)))
		sim_says(CUDADRV_RUNNING, "%s of %p while work there is not done", what,
			(void *)host->p);
	while (host->running > 0 || host->reachable > 0)
		wait_done();
}
