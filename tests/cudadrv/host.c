/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that the device may reach: registered, or the driver's own; what a pointer is. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/cudadrv/sim.h"

#define SPACE_FILE (UINT64_C(3) << 62)

/* What the kernel says about a range. */
struct mapping {
	bool whole, writable;
	uint64_t space, offset; /* of the one shared file behind all of it; 0: none */
};

static uint64_t file_space(const char *device, unsigned long long inode)
{
	uint64_t x = inode;

	for (; *device; device++)
		x = x * 131 + (unsigned char)*device;
	return SPACE_FILE | (sim_random(&x) >> 2);
}

static void look_up(const uint8_t *p, uint64_t bytes, struct mapping *ret_m)
{
	uint64_t at = (uintptr_t)p, end = at + bytes, first = at;
	struct mapping m = { .writable = true };
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];

	while (f && fgets(line, sizeof(line), f) && at < end) {
		unsigned long long from, to, offset, inode;
		char perms[8], device[16];

		if (sscanf(line, "%llx-%llx %7s %llx %15s %llu", &from, &to, perms, &offset, device,
			    &inode) != 6 ||
			at < from || at >= to)
			continue;
		m.writable = m.writable && perms[1] == 'w';
		if (at == first && perms[3] == 's' && inode && to >= end) {
			m.space = file_space(device, inode);
			m.offset = offset + (at - from);
		}
		at = to;
	}
	if (f)
		fclose(f);
	m.whole = at >= end;
	*ret_m = m;
}

static bool overlaps(uint64_t at, uint64_t bytes)
{
	for (struct sim_host *h = sim.hosts; h; h = h->next)
		if (at < (uintptr_t)h->p + h->bytes && (uintptr_t)h->p < at + bytes)
			return true;
	return false;
}

/*
 * Pages that are pinned have a reference more, which is what F_SEAL_WRITE waits for: one page in a
 * pipe is enough. -1: this kernel lends no page, and nobody will see the pin.
 */
static void pin(struct sim_host *h)
{
	struct iovec page = { h->p, 1 };

	h->pin[0] = h->pin[1] = -1;
	if (pipe2(h->pin, O_CLOEXEC | O_NONBLOCK) == 0 && vmsplice(h->pin[1], &page, 1, 0) < 0)
		fprintf(stderr, "cudadrv: vmsplice: %s: F_SEAL_WRITE sees no pin\n",
			strerror(errno));
}

static void unpin(const struct sim_host *h)
{
	for (int i = 0; i < 2; i++)
		if (h->pin[i] >= 0)
			close(h->pin[i]);
}

static int host_new(uint8_t *p, size_t bytes, unsigned int flags, bool own)
{
	struct sim_host *h = calloc(1, sizeof(*h));
	struct mapping m;

	if (!h)
		return CU_ERR_NO_MEMORY;
	look_up(p, bytes, &m);
	*h = (struct sim_host){ .next = sim.hosts,
		.p = p,
		.bytes = bytes,
		.flags = flags,
		.own = own,
		.space = m.space,
		.offset = m.offset };
	h->device_at = (uintptr_t)p;
	if (!sim.shared.s->config.same_address && !own) {
		void *at = mmap(
			NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (at == MAP_FAILED) {
			free(h);
			return CU_ERR_NO_MEMORY;
		}
		h->device_at = (uintptr_t)at;
	}
	pin(h);
	sim.hosts = h;
	return CU_OK;
}

static void host_free(struct sim_host *h)
{
	struct sim_host **p;

	for (p = &sim.hosts; *p != h;)
		p = &(*p)->next;
	*p = h->next;
	unpin(h);
	if (h->device_at != (uintptr_t)h->p)
		munmap((void *)(uintptr_t)h->device_at, h->bytes);
	if (h->own)
		munmap(h->p, h->bytes);
	free(h);
}

static int host_register(void *p, size_t bytes, unsigned int flags)
{
	struct mapping m;

	if (!p || bytes == 0 || flags & ~15u)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
			"cuMemHostRegister of %zu bytes, flags %u", bytes, flags);
	if (overlaps((uintptr_t)p, bytes))
		return sim_refuse(CU_ERR_REGISTERED, CUDADRV_REGISTER_TWICE,
			"cuMemHostRegister of memory that is registered");
	look_up(p, bytes, &m);
	if (!m.whole)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
			"cuMemHostRegister of addresses that map nothing");
	if (flags & CU_REG_READ_ONLY && sim.shared.s->config.no_read_only)
		return CU_ERR_UNSUPPORTED;
	if (!m.writable && !(flags & CU_REG_READ_ONLY))
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_REGISTER_READ_ONLY,
			"cuMemHostRegister of a read-only mapping without READ_ONLY");
	return host_new(p, bytes, flags, false);
}

SIM_EXPORT int cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
	SIM_CALL(cuMemHostRegister_v2, SIM_INIT | SIM_CTX | SIM_UNSAFE,
		host_register(ptr, bytes, flags));
}

static int host_unregister(void *p, bool own, const char *call)
{
	struct sim_host *h = sim_host_at((uintptr_t)p, 1);

	if (!h || h->p != p || h->own != own)
		return sim_refuse(own ? CU_ERR_INVALID_VALUE : CU_ERR_UNREGISTERED,
			CUDADRV_NOT_REGISTERED, "%s of memory that is not", call);
	sim_quiesce_host(h, call);
	host_free(h);
	return CU_OK;
}

SIM_EXPORT int cuMemHostUnregister(void *ptr)
{
	SIM_CALL(cuMemHostUnregister, SIM_INIT | SIM_CTX | SIM_UNSAFE,
		host_unregister(ptr, false, "cuMemHostUnregister"));
}

static int host_alloc(void **ret_p, size_t bytes, unsigned int flags)
{
	void *p;
	int r;

	if (bytes == 0)
		return sim_refuse(
			CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "cuMemHostAlloc of none");
	bytes = (bytes + 4095) & ~(size_t)4095;
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return CU_ERR_NO_MEMORY;
	memset(p, SIM_POISON, bytes);
	r = host_new(p, bytes, flags | CU_REG_DEVICEMAP, true);
	if (r == CU_OK)
		*ret_p = p;
	else
		munmap(p, bytes);
	return r;
}

SIM_EXPORT int cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags)
{
	SIM_CALL(cuMemHostAlloc, SIM_INIT | SIM_CTX | SIM_UNSAFE, host_alloc(ptr, bytes, flags));
}

SIM_EXPORT int cuMemFreeHost(void *ptr)
{
	SIM_CALL(cuMemFreeHost, SIM_INIT | SIM_CTX | SIM_UNSAFE,
		host_unregister(ptr, true, "cuMemFreeHost"));
}

static int device_pointer(uint64_t *ret_at, void *p, unsigned int flags)
{
	struct sim_host *h = sim_host_at((uintptr_t)p, 1);

	if (!h || flags)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_NOT_REGISTERED,
			"cuMemHostGetDevicePointer of memory that is not registered");
	if (!(h->flags & CU_REG_DEVICEMAP))
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
			"cuMemHostGetDevicePointer of memory registered without DEVICEMAP");
	*ret_at = h->device_at + ((uintptr_t)p - (uintptr_t)h->p);
	return CU_OK;
}

SIM_EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *device, void *ptr, unsigned int flags)
{
	SIM_CALL(cuMemHostGetDevicePointer_v2, SIM_INIT | SIM_CTX,
		device_pointer(device, ptr, flags));
}

/* ---- what a pointer is ---- */

static int device_attribute(void *data, int attribute, uint64_t at, struct sim_map *m)
{
	switch (attribute) {
	case CU_PTR_CONTEXT: /* memory of VMM belongs to no context */
		*(struct CUctx_st **)data =
			m->ref.meta->kind == SIM_ALLOC ? &sim.ctx[m->ref.meta->device] : NULL;
		return CU_OK;
	case CU_PTR_MEMORY_TYPE:
		*(unsigned int *)data = m->cpu ? CU_MEMORY_HOST : CU_MEMORY_DEVICE;
		return CU_OK;
	case CU_PTR_DEVICE:
		*(uint64_t *)data = at;
		return CU_OK;
	case CU_PTR_ORDINAL:
		*(int *)data = (int)m->ref.meta->device;
		return CU_OK;
	case CU_PTR_LEGACY_IPC:
		*(int *)data =
			m->ref.meta->kind == SIM_ALLOC && !m->ipc && !sim.shared.s->config.no_ipc;
		return CU_OK;
	case CU_PTR_START:
		*(uint64_t *)data = m->at;
		return CU_OK;
	case CU_PTR_BYTES:
		*(size_t *)data = m->requested;
		return CU_OK;
	case CU_PTR_ACCESS:
		*(unsigned int *)data = m->prot[sim_current()->device];
		return CU_OK;
	default:
		return CU_ERR_INVALID_VALUE;
	}
}

static int host_attribute(void *data, int attribute, uint64_t at, struct sim_host *h)
{
	uint64_t off = at >= h->device_at && at - h->device_at < h->bytes ? at - h->device_at
									  : at - (uintptr_t)h->p;

	switch (attribute) {
	case CU_PTR_CONTEXT:
		*(struct CUctx_st **)data = sim_current();
		return CU_OK;
	case CU_PTR_MEMORY_TYPE:
		*(unsigned int *)data = CU_MEMORY_HOST;
		return CU_OK;
	case CU_PTR_DEVICE:
		*(uint64_t *)data = h->device_at + off;
		return CU_OK;
	case CU_PTR_ORDINAL:
		*(int *)data = sim_current()->device;
		return CU_OK;
	case CU_PTR_LEGACY_IPC:
		*(int *)data = 0;
		return CU_OK;
	case CU_PTR_START:
		*(uint64_t *)data = h->device_at;
		return CU_OK;
	case CU_PTR_BYTES:
		*(size_t *)data = h->bytes;
		return CU_OK;
	case CU_PTR_ACCESS:
		*(unsigned int *)data = h->flags & CU_REG_READ_ONLY ? CU_PROT_READ : CU_PROT_RW;
		return CU_OK;
	default:
		return CU_ERR_INVALID_VALUE;
	}
}

/* An address of neither is no misuse: that is how one asks. */
static int pointer_attribute(void *data, int attribute, uint64_t at)
{
	struct sim_map *m = sim_map_at(at);
	struct sim_host *h = sim_host_at(at, 1);

	if (!h)
		h = sim_host_device_at(at, 1);
	if (attribute == CU_PTR_MAPPED) {
		*(int *)data = m || h;
		return CU_OK;
	}
	if (attribute == CU_PTR_MANAGED) {
		*(unsigned int *)data = 0;
		return m || h ? CU_OK : CU_ERR_INVALID_VALUE;
	}
	if (m)
		return device_attribute(data, attribute, at, m);
	return h ? host_attribute(data, attribute, at, h) : CU_ERR_INVALID_VALUE;
}

SIM_EXPORT int cuPointerGetAttribute(void *data, int attribute, uint64_t ptr)
{
	SIM_CALL(
		cuPointerGetAttribute, SIM_INIT | SIM_CTX, pointer_attribute(data, attribute, ptr));
}
