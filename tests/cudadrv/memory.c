/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory: segments by handle (VMM), allocations, legacy IPC. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cudadrv/sim.h"

#define IPC_MAGIC UINT64_C(0x6970632d6d697331)

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- addresses ---- */

static void *reserve(uint64_t bytes, uint64_t align)
{
	uint8_t *p = mmap(
		NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint8_t *at;

	if (p == MAP_FAILED)
		return NULL;
	at = (uint8_t *)(uintptr_t)round_up((uintptr_t)p, align);
	if (at > p)
		munmap(p, (size_t)(at - p));
	if (align > (size_t)(at - p))
		munmap(at + bytes, align - (size_t)(at - p));
	return at;
}

static struct sim_reservation *reservation_of(uint64_t at, uint64_t bytes)
{
	for (struct sim_reservation *r = sim.reservations; r; r = r->next)
		if (at >= r->at && at - r->at < r->bytes && bytes <= r->bytes - (at - r->at))
			return r;
	return NULL;
}

static bool overlaps_map(uint64_t at, uint64_t bytes)
{
	for (struct sim_map *m = sim.maps; m; m = m->next)
		if (at < m->at + m->bytes && m->at < at + bytes)
			return true;
	return false;
}

static int address_reserve(uint64_t *ret_at, size_t bytes, size_t align, unsigned long long flags)
{
	struct sim_reservation *r;
	void *p;

	if (bytes == 0 || bytes % SIM_VMM_BYTES || flags || (align & (align - 1)))
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_MISALIGNED,
			"cuMemAddressReserve of %zu bytes aligned to %zu", bytes, align);
	if (align < SIM_VMM_BYTES)
		align = SIM_VMM_BYTES;
	r = malloc(sizeof(*r));
	p = r ? reserve(bytes, align) : NULL;
	if (!p) {
		free(r);
		return CU_ERR_NO_MEMORY;
	}
	*r = (struct sim_reservation){ sim.reservations, (uintptr_t)p, bytes };
	sim.reservations = r;
	*ret_at = r->at;
	return CU_OK;
}

SIM_EXPORT int cuMemAddressReserve(
	uint64_t *ptr, size_t bytes, size_t align, uint64_t hint, unsigned long long flags)
{
	(void)hint;
	SIM_CALL(cuMemAddressReserve, SIM_INIT | SIM_UNSAFE,
		address_reserve(ptr, bytes, align, flags));
}

static int address_free(uint64_t at, size_t bytes)
{
	for (struct sim_reservation **p = &sim.reservations; *p; p = &(*p)->next) {
		struct sim_reservation *r = *p;

		if (r->at != at)
			continue;
		if (r->bytes != bytes)
			return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_UNMAP_PART,
				"cuMemAddressFree of %zu bytes of a reservation of %llu", bytes,
				(unsigned long long)r->bytes);
		if (overlaps_map(at, bytes))
			return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_FREE_MAPPED,
				"cuMemAddressFree of addresses that map something");
		munmap((void *)(uintptr_t)at, bytes);
		*p = r->next;
		free(r);
		return CU_OK;
	}
	return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_NOT_RESERVED,
		"cuMemAddressFree(0x%llx): nobody reserved it", (unsigned long long)at);
}

SIM_EXPORT int cuMemAddressFree(uint64_t ptr, size_t bytes)
{
	SIM_CALL(cuMemAddressFree, SIM_INIT | SIM_UNSAFE, address_free(ptr, bytes));
}

/* ---- handles ---- */

static struct sim_handle *handle_new(struct sim_ref ref)
{
	struct sim_handle *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	*h = (struct sim_handle){ .next = sim.handles,
		.number = UINT64_C(0x5e6000000000) + ++sim.next_handle,
		.references = 1,
		.ref = ref };
	sim.handles = h;
	return h;
}

static struct sim_handle *handle_of(uint64_t number, const char *call)
{
	for (struct sim_handle *h = sim.handles; h; h = h->next)
		if (h->number == number)
			return h;
	if (sim_map_at(number) && sim_map_at(number)->ref.meta->kind == SIM_ALLOC)
		sim_says(CUDADRV_VMM_ON_ALLOC, "%s of memory of cuMemAlloc()", call);
	else
		sim_says(CUDADRV_BAD_HANDLE, "%s: no such handle", call);
	return NULL;
}

/* Memory of a device, or of the host, as `like` says. */
static int take_memory(const struct sim_meta *like, struct sim_ref *ret_ref)
{
	const struct sim_state *s = sim.shared.s;
	uint64_t used;
	int r = -ENOMEM;

	sim_lock(&sim.shared);
	used = sim_sweep(&sim.shared, like->device);
	if (like->kind == SIM_HOST_VMM ||
		(used <= s->config.vram_bytes && like->bytes <= s->config.vram_bytes - used &&
			s->config.vram_bytes - used - like->bytes >= atomic_load(&s->oom_below)))
		r = sim_segment_make(&sim.shared, like, ret_ref);
	sim_unlock(&sim.shared);
	return r == 0 ? CU_OK : CU_ERR_NO_MEMORY;
}

static int check_prop(const struct cu_alloc_prop *prop)
{
	if (sim.shared.s->config.no_vmm)
		return CU_ERR_UNSUPPORTED;
	if (prop->type != CU_MEM_PINNED || (prop->handle_types & ~CU_HANDLE_FD) || prop->win32)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
			"properties of memory: type %d, handle types %d", prop->type,
			prop->handle_types);
	if (prop->location.type == CU_LOC_HOST_NUMA)
		return CU_OK;
	if (prop->location.type != CU_LOC_DEVICE)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
			"properties of memory: location type %d", prop->location.type);
	return sim_device_ok(prop->location.id);
}

static int create(uint64_t *ret_handle, size_t bytes, const struct cu_alloc_prop *prop,
	unsigned long long flags)
{
	struct sim_meta like = {
		.bytes = bytes, .requested = bytes, .maker = sim.slot, .maker_life = sim.life
	};
	struct sim_handle *h;
	struct sim_ref ref;
	int r = check_prop(prop);

	if (r != CU_OK)
		return r;
	if (flags || bytes == 0 || bytes % SIM_VMM_BYTES)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_MISALIGNED,
			"cuMemCreate of %zu bytes, not a multiple of the granularity", bytes);
	like.kind = prop->location.type == CU_LOC_DEVICE ? SIM_VMM : SIM_HOST_VMM;
	like.device = like.kind == SIM_VMM ? (uint32_t)prop->location.id : 0;
	like.handle_types = prop->handle_types;
	like.location_type = prop->location.type;
	like.location_id = prop->location.id;
	r = take_memory(&like, &ref);
	if (r != CU_OK)
		return r;
	h = handle_new(ref);
	if (!h) {
		sim_ref_drop(&ref);
		return CU_ERR_NO_MEMORY;
	}
	*ret_handle = h->number;
	return CU_OK;
}

SIM_EXPORT int cuMemCreate(
	uint64_t *handle, size_t bytes, const struct cu_alloc_prop *prop, unsigned long long flags)
{
	SIM_CALL(cuMemCreate, SIM_INIT | SIM_UNSAFE, create(handle, bytes, prop, flags));
}

static int release(uint64_t number)
{
	struct sim_handle *h = handle_of(number, "cuMemRelease"), **p;

	if (!h)
		return CU_ERR_INVALID_VALUE;
	for (p = &sim.handles; *p != h;)
		p = &(*p)->next;
	*p = h->next;
	sim_ref_drop(&h->ref);
	free(h);
	return CU_OK;
}

SIM_EXPORT int cuMemRelease(uint64_t handle)
{
	SIM_CALL(cuMemRelease, SIM_INIT | SIM_UNSAFE, release(handle));
}

static int export_handle(int *ret_fd, uint64_t number, int type, unsigned long long flags)
{
	struct sim_handle *h = handle_of(number, "cuMemExportToShareableHandle");
	int fd;

	if (!h)
		return CU_ERR_INVALID_VALUE;
	if (type != CU_HANDLE_FD || flags)
		return sim_refuse(
			CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "export as type %d", type);
	if (!(h->ref.meta->handle_types & CU_HANDLE_FD))
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_EXPORT_UNASKED,
			"export of memory that was made without the handle type");
	fd = sim_segment_open(&sim.shared, h->ref.meta->id);
	if (fd < 0)
		return SIM_OUT_OF_SLOTS;
	*ret_fd = fd;
	return CU_OK;
}

SIM_EXPORT int cuMemExportToShareableHandle(
	void *handle, uint64_t mem, int type, unsigned long long flags)
{
	SIM_CALL(cuMemExportToShareableHandle, SIM_INIT | SIM_UNSAFE,
		export_handle(handle, mem, type, flags));
}

static int import_handle(uint64_t *ret_handle, int fd, int type)
{
	struct sim_handle *h;
	struct sim_ref ref;
	uint64_t id;
	int r;

	if (type != CU_HANDLE_FD)
		return sim_refuse(
			CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "import as type %d", type);
	if (sim_segment_of(&sim.shared, fd, &id) < 0)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_IMPORT_FOREIGN,
			"descriptor %d is none of a segment", fd);
	r = sim_ref_take(&sim.shared, id, &ref);
	if (r < 0)
		return SIM_OUT_OF_SLOTS;
	if (ref.meta->kind != SIM_VMM && ref.meta->kind != SIM_HOST_VMM) {
		sim_ref_drop(&ref);
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_IMPORT_FOREIGN,
			"descriptor %d is of no VMM memory", fd);
	}
	h = handle_new(ref);
	if (!h) {
		sim_ref_drop(&ref);
		return CU_ERR_NO_MEMORY;
	}
	*ret_handle = h->number;
	return CU_OK;
}

SIM_EXPORT int cuMemImportFromShareableHandle(uint64_t *mem, void *handle, int type)
{
	SIM_CALL(cuMemImportFromShareableHandle, SIM_INIT | SIM_UNSAFE,
		import_handle(mem, (int)(intptr_t)handle, type));
}

static int properties(struct cu_alloc_prop *prop, uint64_t number)
{
	struct sim_handle *h = handle_of(number, "cuMemGetAllocationPropertiesFromHandle");

	if (!h)
		return CU_ERR_INVALID_VALUE;
	*prop = (struct cu_alloc_prop){ .type = CU_MEM_PINNED,
		.handle_types = h->ref.meta->handle_types,
		.location = { h->ref.meta->location_type, h->ref.meta->location_id } };
	return CU_OK;
}

SIM_EXPORT int cuMemGetAllocationPropertiesFromHandle(struct cu_alloc_prop *prop, uint64_t handle)
{
	SIM_CALL(cuMemGetAllocationPropertiesFromHandle, SIM_INIT, properties(prop, handle));
}

static int granularity(size_t *bytes, const struct cu_alloc_prop *prop)
{
	int r = check_prop(prop);

	if (r == CU_OK)
		*bytes = SIM_VMM_BYTES;
	return r;
}

SIM_EXPORT int cuMemGetAllocationGranularity(
	size_t *bytes, const struct cu_alloc_prop *prop, int option)
{
	(void)option;
	SIM_CALL(cuMemGetAllocationGranularity, SIM_INIT, granularity(bytes, prop));
}

/* ---- mappings ---- */

/* Takes the reference. */
static int map_new(uint64_t at, struct sim_ref ref, struct sim_map **ret_map)
{
	struct sim_map *m = calloc(1, sizeof(*m));
	void *alias = m ? sim_segment_map(&sim.shared, ref.meta) : MAP_FAILED;

	if (alias == MAP_FAILED) {
		free(m);
		sim_ref_drop(&ref);
		return CU_ERR_NO_MEMORY;
	}
	*m = (struct sim_map){ .next = sim.maps,
		.at = at,
		.bytes = ref.meta->bytes,
		.requested = ref.meta->requested,
		.ref = ref,
		.alias = alias,
		.ipc_fd = -1 };
	sim.maps = m;
	*ret_map = m;
	return CU_OK;
}

static void map_free(struct sim_map *m)
{
	struct sim_map **p;

	for (p = &sim.maps; *p != m;)
		p = &(*p)->next;
	*p = m->next;
	munmap(m->alias, m->bytes);
	sim_ref_drop(&m->ref);
	if (m->ipc_fd >= 0)
		close(m->ipc_fd);
	free(m);
}

static int check_map(const struct sim_handle *h, uint64_t at, size_t bytes, size_t offset)
{
	if (offset != 0)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_MAP_OFFSET,
			"cuMemMap with offset %zu", offset);
	if (at % SIM_VMM_BYTES || bytes % SIM_VMM_BYTES)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_MISALIGNED,
			"cuMemMap of %zu bytes at 0x%llx", bytes, (unsigned long long)at);
	if (bytes > h->ref.meta->bytes)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_PROP_MISMATCH,
			"cuMemMap of %zu bytes of a segment of %llu", bytes,
			(unsigned long long)h->ref.meta->bytes);
	if (bytes < h->ref.meta->bytes)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_MAP_PART,
			"cuMemMap of %zu bytes of a segment of %llu", bytes,
			(unsigned long long)h->ref.meta->bytes);
	if (!reservation_of(at, bytes))
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_NOT_RESERVED,
			"cuMemMap at 0x%llx: nobody reserved it", (unsigned long long)at);
	if (overlaps_map(at, bytes))
		return sim_refuse(SIM_ERR_MAPPED, CUDADRV_MAP_TWICE,
			"cuMemMap at 0x%llx: something is mapped there", (unsigned long long)at);
	return CU_OK;
}

static int map_handle(
	uint64_t at, size_t bytes, size_t offset, uint64_t number, unsigned long long flags)
{
	struct sim_handle *h = handle_of(number, "cuMemMap");
	struct sim_ref ref;
	struct sim_map *m;
	int r;

	if (!h || flags)
		return CU_ERR_INVALID_VALUE;
	r = check_map(h, at, bytes, offset);
	if (r != CU_OK)
		return r;
	if (sim_ref_take(&sim.shared, h->ref.meta->id, &ref) < 0)
		return SIM_OUT_OF_SLOTS;
	return map_new(at, ref, &m);
}

SIM_EXPORT int cuMemMap(
	uint64_t ptr, size_t bytes, size_t offset, uint64_t mem, unsigned long long flags)
{
	SIM_CALL(cuMemMap, SIM_INIT | SIM_UNSAFE, map_handle(ptr, bytes, offset, mem, flags));
}

/* Are [at, at + bytes) whole mappings of VMM memory without holes? */
static int whole_maps(uint64_t at, size_t bytes, const char *call)
{
	uint64_t end = at + bytes;

	while (at < end) {
		struct sim_map *m = sim_map_at(at);

		if (!m)
			return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_UNMAPPED,
				"%s: nothing is mapped at 0x%llx", call, (unsigned long long)at);
		if (m->ref.meta->kind != SIM_VMM && m->ref.meta->kind != SIM_HOST_VMM)
			return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_VMM_ON_ALLOC,
				"%s of memory of cuMemAlloc()", call);
		if (m->at != at || m->bytes > end - at)
			return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_UNMAP_PART,
				"%s of a part of a mapping", call);
		at += m->bytes;
	}
	return CU_OK;
}

static int unmap(uint64_t at, size_t bytes)
{
	int r = whole_maps(at, bytes, "cuMemUnmap");
	uint64_t end = at + bytes;

	while (r == CU_OK && at < end) {
		struct sim_map *m = sim_map_at(at);

		sim_quiesce_map(m, "cuMemUnmap");
		at += m->bytes;
		if (m->cpu && mmap((void *)(uintptr_t)m->at, m->bytes, PROT_NONE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
				      0) == MAP_FAILED)
			return CU_ERR_NO_MEMORY;
		map_free(m);
	}
	return r;
}

SIM_EXPORT int cuMemUnmap(uint64_t ptr, size_t bytes)
{
	SIM_CALL(cuMemUnmap, SIM_INIT | SIM_UNSAFE, unmap(ptr, bytes));
}

/* Host memory that the processor may touch where the device sees it. */
static int allow_cpu(struct sim_map *m)
{
	struct sim_run all = { .bytes = m->bytes, .map = m };
	int fd;
	void *p;

	if (m->ref.meta->kind != SIM_HOST_VMM)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
			"cuMemSetAccess of a device's memory for the processor");
	sim_touch(&all, false);
	fd = sim_segment_open(&sim.shared, m->ref.meta->id);
	if (fd < 0)
		return SIM_OUT_OF_SLOTS;
	p = mmap((void *)(uintptr_t)m->at, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		fd, 0);
	close(fd);
	m->cpu = p != MAP_FAILED;
	return m->cpu ? CU_OK : CU_ERR_NO_MEMORY;
}

static int set_access(uint64_t at, size_t bytes, const struct cu_access *access, size_t n)
{
	int r = whole_maps(at, bytes, "cuMemSetAccess");

	for (size_t i = 0; r == CU_OK && i < n; i++) {
		const struct cu_location *where = &access[i].location;
		int flags = access[i].flags;

		if (flags != 0 && flags != CU_PROT_READ && flags != CU_PROT_RW)
			r = sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
				"cuMemSetAccess with %d", flags);
		else if (where->type == CU_LOC_DEVICE)
			r = sim_device_ok(where->id);
		for (uint64_t a = at; r == CU_OK && a < at + bytes; a += sim_map_at(a)->bytes) {
			if (where->type == CU_LOC_DEVICE)
				sim_map_at(a)->prot[where->id] = (uint8_t)flags;
			else
				r = allow_cpu(sim_map_at(a));
		}
	}
	return r;
}

SIM_EXPORT int cuMemSetAccess(uint64_t ptr, size_t bytes, const struct cu_access *access, size_t n)
{
	SIM_CALL(cuMemSetAccess, SIM_INIT | SIM_UNSAFE, set_access(ptr, bytes, access, n));
}

static int get_access(unsigned long long *flags, const struct cu_location *where, uint64_t at)
{
	struct sim_map *m = sim_map_at(at);
	int r;

	if (!m)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_UNMAPPED,
			"cuMemGetAccess: nothing is mapped at 0x%llx", (unsigned long long)at);
	r = sim_device_ok(where->id);
	if (r == CU_OK)
		*flags = m->prot[where->id];
	return r;
}

SIM_EXPORT int cuMemGetAccess(
	unsigned long long *flags, const struct cu_location *location, uint64_t ptr)
{
	SIM_CALL(cuMemGetAccess, SIM_INIT, get_access(flags, location, ptr));
}

/* ---- allocations ---- */

static int info(size_t *free_bytes, size_t *total)
{
	uint64_t used;

	sim_lock(&sim.shared);
	used = sim_sweep(&sim.shared, (uint32_t)sim_current()->device);
	sim_unlock(&sim.shared);
	*total = sim.shared.s->config.vram_bytes;
	*free_bytes = used < *total ? *total - used : 0;
	return CU_OK;
}

SIM_EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	SIM_CALL(cuMemGetInfo_v2, SIM_INIT | SIM_CTX, info(free_bytes, total));
}

static int alloc(uint64_t *ret_at, size_t bytes)
{
	struct CUctx_st *ctx = sim_current();
	struct sim_meta like = { .bytes = round_up(bytes, SIM_GRANULE),
		.requested = bytes,
		.kind = SIM_ALLOC,
		.device = (uint32_t)ctx->device,
		.location_type = CU_LOC_DEVICE,
		.location_id = ctx->device,
		.maker = sim.slot,
		.maker_life = sim.life };
	struct sim_ref ref;
	struct sim_map *m;
	void *p;
	int r;

	if (bytes == 0)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "cuMemAlloc of nothing");
	r = take_memory(&like, &ref);
	if (r != CU_OK)
		return r;
	p = reserve(like.bytes, SIM_GRANULE);
	if (!p) {
		sim_ref_drop(&ref);
		return CU_ERR_NO_MEMORY;
	}
	r = map_new((uintptr_t)p, ref, &m);
	if (r != CU_OK) {
		munmap(p, like.bytes);
		return r;
	}
	memset(m->prot, CU_PROT_RW, sizeof(m->prot));
	*ret_at = m->at;
	return CU_OK;
}

SIM_EXPORT int cuMemAlloc_v2(uint64_t *ptr, size_t bytes)
{
	SIM_CALL(cuMemAlloc_v2, SIM_INIT | SIM_CTX | SIM_UNSAFE, alloc(ptr, bytes));
}

static int free_alloc(uint64_t at)
{
	struct sim_map *m = sim_map_at(at);

	if (at == 0)
		return CU_OK;
	if (!m || m->at != at)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_HANDLE,
			"cuMemFree(0x%llx): no allocation begins there", (unsigned long long)at);
	if (m->ref.meta->kind != SIM_ALLOC || m->ipc)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_VMM_ON_ALLOC,
			"cuMemFree of memory that cuMemAlloc() did not make");
	sim_quiesce_map(m, "cuMemFree");
	if (sim_segment_shared(&sim.shared, m->ref.meta->id)) {
		sim_says(
			CUDADRV_IPC_FREE_OPEN, "cuMemFree of memory that another process has open");
		memset(m->alias, SIM_POISON, m->bytes); /* what they see from now on is anybody's */
	}
	munmap((void *)(uintptr_t)m->at, m->bytes);
	map_free(m);
	return CU_OK;
}

SIM_EXPORT int cuMemFree_v2(uint64_t ptr)
{
	SIM_CALL(cuMemFree_v2, SIM_INIT | SIM_CTX | SIM_UNSAFE, free_alloc(ptr));
}

/* ---- legacy IPC ---- */

struct ticket {
	uint64_t magic, nonce, id, life;
	uint32_t slot, device;
	uint8_t reserved[24];
};
_Static_assert(sizeof(struct ticket) == sizeof(struct cu_ipc_handle), "a handle is 64 bytes");

static int ipc_get(struct cu_ipc_handle *handle, uint64_t at)
{
	struct sim_map *m = sim_map_at(at);
	struct ticket t = {
		.magic = IPC_MAGIC, .nonce = sim.shared.s->nonce, .life = sim.life, .slot = sim.slot
	};

	if (sim.shared.s->config.no_ipc)
		return CU_ERR_UNSUPPORTED;
	if (!m)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_UNMAPPED,
			"cuIpcGetMemHandle: nothing is mapped at 0x%llx", (unsigned long long)at);
	if (m->ref.meta->kind != SIM_ALLOC || m->ipc)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_IPC_ON_VMM,
			"cuIpcGetMemHandle of memory that cuMemAlloc() did not make");
	t.id = m->ref.meta->id;
	t.device = m->ref.meta->device;
	memcpy(handle, &t, sizeof(t));
	return CU_OK;
}

SIM_EXPORT int cuIpcGetMemHandle(struct cu_ipc_handle *handle, uint64_t ptr)
{
	SIM_CALL(cuIpcGetMemHandle, SIM_INIT | SIM_CTX, ipc_get(handle, ptr));
}

static struct sim_map *ipc_opened(uint64_t id)
{
	for (struct sim_map *m = sim.maps; m; m = m->next)
		if (m->ipc && m->ref.meta->id == id)
			return m;
	return NULL;
}

static bool maker_lives(const struct ticket *t)
{
	bool lives;

	if (t->slot >= SIM_PROCESSES)
		return false;
	sim_lock(&sim.shared);
	lives = sim_process_lives(&sim.shared, t->slot, t->life);
	sim_unlock(&sim.shared);
	return lives;
}

static int ipc_map(const struct ticket *t, uint64_t *ret_at)
{
	struct sim_ref ref;
	struct sim_map *m;
	void *p;
	int fd, r;

	if (!maker_lives(t) || sim_ref_take(&sim.shared, t->id, &ref) < 0)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_IPC_STALE,
			"cuIpcOpenMemHandle: its memory is gone");
	fd = sim_segment_open(&sim.shared, t->id);
	p = fd < 0 ? NULL : reserve(ref.meta->bytes, SIM_GRANULE);
	if (!p) {
		if (fd >= 0)
			close(fd);
		sim_ref_drop(&ref);
		return CU_ERR_NO_MEMORY;
	}
	sim_segment_share(fd);
	r = map_new((uintptr_t)p, ref, &m);
	if (r != CU_OK) {
		close(fd);
		return r;
	}
	memset(m->prot, CU_PROT_RW, sizeof(m->prot));
	m->ipc = true;
	m->ipc_fd = fd;
	m->opened = 1;
	*ret_at = m->at;
	return CU_OK;
}

static int ipc_open(uint64_t *ret_at, const struct cu_ipc_handle *handle, unsigned int flags)
{
	struct sim_map *m;
	struct ticket t;

	memcpy(&t, handle, sizeof(t));
	if (flags != CU_IPC_LAZY_PEER || t.magic != IPC_MAGIC || t.nonce != sim.shared.s->nonce)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
			"cuIpcOpenMemHandle: no handle of this machine, or flags %u", flags);
	if (t.life == sim.life)
		return sim_refuse(CU_ERR_BAD_CONTEXT, CUDADRV_IPC_IN_EXPORTER,
			"cuIpcOpenMemHandle in the process that made the handle");
	m = ipc_opened(t.id);
	if (!m)
		return ipc_map(&t, ret_at);
	m->opened++;
	*ret_at = m->at;
	return CU_OK;
}

SIM_EXPORT int cuIpcOpenMemHandle_v2(uint64_t *ptr, struct cu_ipc_handle handle, unsigned int flags)
{
	SIM_CALL(cuIpcOpenMemHandle_v2, SIM_INIT | SIM_CTX | SIM_UNSAFE,
		ipc_open(ptr, &handle, flags));
}

static int ipc_close(uint64_t at)
{
	struct sim_map *m = sim_map_at(at);

	if (!m || !m->ipc || m->at != at)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_HANDLE,
			"cuIpcCloseMemHandle(0x%llx): nothing was opened there",
			(unsigned long long)at);
	if (--m->opened > 0)
		return CU_OK;
	sim_quiesce_map(m, "cuIpcCloseMemHandle");
	munmap((void *)(uintptr_t)m->at, m->bytes);
	map_free(m);
	return CU_OK;
}

SIM_EXPORT int cuIpcCloseMemHandle(uint64_t ptr)
{
	SIM_CALL(cuIpcCloseMemHandle, SIM_INIT | SIM_CTX | SIM_UNSAFE, ipc_close(ptr));
}
