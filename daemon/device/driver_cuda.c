/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU: its segments, its context, and the operations; see cuda.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/device/cuda.h"
#include "gpu/kvp_nvml.h"
#include "shm/kvp_seg.h"

#define EVENT_FLAGS  (CU_EVENT_BLOCKING | CU_EVENT_NO_TIMING)
#define SETTLE_TRIES 3u
#define HOLDERS      64u /* processes on the device that are looked at */
#define ASK_TRIES    3u
#define LEGACY_PAGE  (UINT64_C(2) << 20) /* what cuMemAlloc() gives a handle of its own for */

int kvpd_cuda_check(struct kvpd_driver *d, int error)
{
	int ok = CU_OK;

	if (error == CU_OK)
		return 0;
	/* The first one is the cause; whoever polls is to see it. */
	if (kvp_cu_lost(error) && atomic_compare_exchange_strong(&d->lost, &ok, error))
		(void)eventfd_write(d->event, 1);
	return kvp_cu_errno(error);
}

static uint32_t damage_of(int error)
{
	if (error == CU_ERR_ECC || error == CU_ERR_CONTAINED)
		return KVPD_DAMAGE_ALL;
	if (error == CU_ERR_SHUTDOWN || error == CU_ERR_NO_CONTEXT ||
		(error >= CU_ERR_MPS_FIRST && error <= CU_ERR_MPS_LAST))
		return KVPD_DAMAGE_NONE;
	/* Nobody can tell what the others did to memory. */
	return KVPD_DAMAGE_MAYBE;
}

/* -ENODEV with the reason told, once the device is lost. */
static int lost(struct kvpd_driver *d)
{
	int error = atomic_load(&d->lost);

	if (error == CU_OK)
		return 0;
	snprintf(d->loss->why, sizeof(d->loss->why), "%s", kvp_cu_name(&d->cu, error));
	d->loss->damage = damage_of(error);
	return -ENODEV;
}

/* What the device said to something that may as well have lost it. */
static int said(struct kvpd_driver *d, int error)
{
	int r = kvpd_cuda_check(d, error);

	return lost(d) ? -ENODEV : r;
}

void kvpd_cuda_settle(struct kvpd_driver *d, struct CUstream_st *stream)
{
	int error, ok = CU_OK;
	uint32_t tries = 0;

	do {
		error = d->cu.cuStreamSynchronize(stream);
		(void)kvpd_cuda_check(d, error);
	} while (error != CU_OK && !atomic_load(&d->lost) && ++tries < SETTLE_TRIES);
	/* With the process the device lets go of all that it had under way. */
	if (error != CU_OK && atomic_compare_exchange_strong(&d->lost, &ok, error))
		(void)eventfd_write(d->event, 1);
}

/* ---- the context ---------------------------------------------------------------------------- */

/*
 * Bytes of the device that this process has, which has no segment yet; where the library does not know its
 * processes (it knows none of another PID namespace) what was taken since `before`, by whomever.
 */
static uint64_t context_bytes(
	const struct kvp_nvml *n, struct nvmlDevice_st *device, const struct nvml_memory *before)
{
	struct nvml_process p[HOLDERS];
	struct nvml_memory after;
	unsigned int count = HOLDERS;

	if (!n->nvmlDeviceGetComputeRunningProcesses_v3 ||
		n->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, p) != NVML_OK)
		count = 0;
	for (unsigned int i = 0; i < count && i < HOLDERS; i++)
		if (p[i].pid == (unsigned int)getpid() && p[i].used != NVML_NO_FIGURE)
			return p[i].used;
	if (!before->total || n->nvmlDeviceGetMemoryInfo(device, &after) != NVML_OK ||
		after.used < before->used)
		return KVPD_NO_FIGURE;
	return after.used - before->used;
}

static int make_context(struct kvpd_driver *d);

/* Its threads sleep while they wait; nobody else of the process has one. */
static int context(struct kvpd_driver *d)
{
	struct nvml_memory before = { 0 };
	struct nvmlDevice_st *device = NULL;
	struct kvp_nvml n = { 0 };
	int r;

	if (d->ctx)
		return 0;
	if (kvp_nvml_open(&n) == 0 && kvp_nvml_find(&n, d->uuid, &device) == 0 &&
		(!n.nvmlDeviceGetMemoryInfo ||
			n.nvmlDeviceGetMemoryInfo(device, &before) != NVML_OK))
		before.total = 0;
	r = make_context(d);
	if (r == 0)
		d->context = device ? context_bytes(&n, device, &before) : KVPD_NO_FIGURE;
	kvp_nvml_close(&n);
	return r;
}

static int make_context(struct kvpd_driver *d)
{
	struct CUctx_st *ctx = NULL;
	int r;

	r = said(d, d->cu.cuDevicePrimaryCtxSetFlags_v2(d->device, CU_SCHED_BLOCKING));
	if (r == 0)
		r = said(d, d->cu.cuDevicePrimaryCtxRetain(&ctx, d->device));
	if (r == 0)
		r = said(d, d->cu.cuCtxSetCurrent(ctx));
	if (r == 0)
		r = said(d, d->cu.cuStreamCreate(&d->making.stream, CU_STREAM_ASYNC));
	if (r == 0)
		r = said(d, d->cu.cuEventCreate(&d->making.event, EVENT_FLAGS));
	if (r < 0) {
		/* The stream goes with the context; the next one has another. */
		if (ctx)
			(void)d->cu.cuDevicePrimaryCtxRelease_v2(d->device);
		d->making.stream = NULL;
		d->making.event = NULL;
		return r;
	}
	pthread_mutex_lock(&d->pinner.lock);
	d->ctx = ctx;
	d->pinner.changed = true;
	pthread_cond_signal(&d->pinner.cond);
	pthread_mutex_unlock(&d->pinner.lock);
	return 0;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int refuse(const struct kvpd_driver_opts *opts, int r, const char *what, const char *name)
{
	snprintf(opts->loss->why, sizeof(opts->loss->why), "%s%s%s", what, name ? ": " : "",
		name ? name : "");
	return r;
}

static int hex(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
				      : -1;
}

/* GPU-8a2f..., MIG-8a2f...: its 32 digits. */
static bool uuid_of(const char *text, uint8_t uuid[16])
{
	uint32_t n = 0;

	if (strncmp(text, "GPU-", 4) && strncmp(text, "MIG-", 4))
		return false;
	for (text += 4; *text; text++) {
		int digit = hex(*text);

		if (*text == '-')
			continue;
		if (digit < 0 || n == 32)
			return false;
		uuid[n / 2] = (uint8_t)(n % 2 ? uuid[n / 2] | digit : digit << 4);
		n++;
	}
	return n == 32;
}

/*
 * A UUID names the device wherever it is. A number was given to CUDA_VISIBLE_DEVICES, so that the
 * device that it names is the only one.
 */
static int find(struct kvpd_driver *d, const struct kvpd_driver_opts *opts)
{
	uint8_t uuid[16];
	int error = d->cu.cuInit(0), count = 0;

	if (error == CU_OK)
		error = d->cu.cuDeviceGetCount(&count);
	if (error != CU_OK && error != CU_ERR_NO_DEVICE)
		return refuse(opts, -ENODEV, "cuInit", kvp_cu_name(&d->cu, error));
	if (!count || (opts->unit && uuid_of(opts->unit, uuid) &&
			      kvp_cu_find(&d->cu, uuid, &d->device) < 0))
		return refuse(opts, -ENODEV, "nvidia-smi -L shows no such device", opts->unit);
	if (d->device >= 0)
		return 0;
	error = d->cu.cuDeviceGet(&d->device, 0);
	return error == CU_OK ? 0
			      : refuse(opts, -ENODEV, "cuDeviceGet", kvp_cu_name(&d->cu, error));
}

/* Is it so? A driver that does not know the attribute says that it is invalid; negative: it says nothing. */
static int has(const struct kvpd_driver *d, int attribute)
{
	int value = 0, error = CU_ERR_INVALID_VALUE;

	for (uint32_t i = 0; i < ASK_TRIES; i++) {
		error = d->cu.cuDeviceGetAttribute(&value, attribute, d->device);
		if (error == CU_OK)
			return value != 0;
		if (error == CU_ERR_INVALID_VALUE)
			return 0;
	}
	return -error;
}

static struct cu_alloc_prop properties(const struct kvpd_driver *d)
{
	return (struct cu_alloc_prop){
		.type = CU_MEM_PINNED,
		.handle_types = CU_HANDLE_FD,
		.location = { CU_LOC_DEVICE, d->device },
	};
}

static int transport(struct kvpd_driver *d, const struct kvpd_driver_opts *opts)
{
	struct cu_alloc_prop prop = properties(d);
	size_t granularity = LEGACY_PAGE;
	int vmm = has(d, CU_ATTR_VMM);

	if (vmm > 0)
		vmm = has(d, CU_ATTR_POSIX_FD);
	/* What is chosen holds for as long as the worker lives: one that is not told makes way for another. */
	if (vmm < 0)
		return refuse(opts, -EIO, "the device does not say what it can do",
			kvp_cu_name(&d->cu, -vmm));
	if (opts->transport == KVPD_TRANSPORT_VMM && !vmm)
		return refuse(opts, -EOPNOTSUPP,
			"the device exports no descriptors; say `transport: ipc`", NULL);
	d->ipc = opts->transport == KVPD_TRANSPORT_IPC || !vmm;
	if (d->ipc && opts->no_copies)
		return refuse(opts, -EOPNOTSUPP,
			"handles need a context, which `copy: none` forbids; say `copy: engine`",
			NULL);
	if (!d->ipc &&
		d->cu.cuMemGetAllocationGranularity(&granularity, &prop, CU_GRAN_MINIMUM) != CU_OK)
		return refuse(opts, -EIO, "the device does not say its granularity", NULL);
	d->granularity = granularity;
	return 0;
}

/* As the kernel has it: drivers before 12.2 do not say. */
static int32_t node_of_bus(const struct kvpd_driver *d)
{
	char bus[16] = "", path[80];
	int node = -1;
	FILE *f;

	if (d->cu.cuDeviceGetPCIBusId(bus, sizeof(bus), d->device) != CU_OK)
		return -1;
	for (char *c = bus; *c; c++)
		if (*c >= 'A' && *c <= 'F')
			*c = (char)(*c - 'A' + 'a');
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
	f = fopen(path, "re");
	if (f) {
		if (fscanf(f, "%d", &node) != 1)
			node = -1;
		fclose(f);
	}
	return node;
}

/* Engines know the device by its UUID alone: without one it would be up, and nobody would find it. */
static int describe(struct kvpd_driver *d, const struct kvpd_driver_opts *opts)
{
	struct cu_uuid uuid;
	size_t total;
	int node, error;

	d->bytes = opts->bytes;
	if (d->cu.cuDeviceTotalMem_v2(&total, d->device) == CU_OK && total < d->bytes)
		d->bytes = total;
	if (d->cu.cuDeviceGetAttribute(&node, CU_ATTR_HOST_NUMA_ID, d->device) != CU_OK)
		node = node_of_bus(d);
	d->numa_node = node >= 0 && node < KVPD_NODES ? node : -1;
	error = d->cu.cuDeviceGetUuid_v2(&uuid, d->device);
	if (error != CU_OK)
		return refuse(
			opts, -EIO, "the device does not say its UUID", kvp_cu_name(&d->cu, error));
	memcpy(d->uuid, uuid.bytes, sizeof(d->uuid));
	return 0;
}

static void making_end(struct kvpd_driver *d);
static void cuda_seg_drop(struct kvpd_driver *d, uint32_t id);

static struct kvpd_driver *cuda_close(struct kvpd_driver *d)
{
	if (!d)
		return NULL;
	for (uint32_t i = 0; i < KVPD_WAYS; i++)
		if (d->way[i].d)
			kvpd_cuda_copy_stop(&d->way[i]);
	kvpd_cuda_pin_stop(d);
	kvpd_cuda_sum_stop(d);
	if (d->cu.library) {
		making_end(d);
		for (uint32_t i = 0; i < KVPD_DEVICE_SEGS; i++)
			cuda_seg_drop(d, i);
		if (d->making.event)
			(void)d->cu.cuEventDestroy_v2(d->making.event);
		if (d->making.stream)
			(void)d->cu.cuStreamDestroy_v2(d->making.stream);
		if (d->ctx)
			(void)d->cu.cuDevicePrimaryCtxRelease_v2(d->device);
		kvp_cu_unload(&d->cu);
	}
	if (d->event >= 0)
		close(d->event);
	free(d);
	return NULL;
}

static int cuda_open(const struct kvpd_driver_opts *opts, struct kvpd_driver **ret_driver)
{
	struct kvpd_driver *d;
	int r;

	_Static_assert(KVPD_DRIVER_WHY >= KVP_CU_WHY, "a reason fits");
	if (!opts->bytes)
		return -EINVAL;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->device = -1;
	d->loss = opts->loss;
	d->copies = !opts->no_copies;
	d->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = d->event < 0 ? -errno : kvp_cu_load(&d->cu, opts->loss->why);
	if (r == 0)
		r = find(d, opts);
	if (r == 0)
		r = transport(d, opts);
	if (r == 0)
		r = describe(d, opts);
	if (r == 0)
		r = kvpd_cuda_sum_start(d);
	if (r == 0)
		r = kvpd_cuda_pin_start(d);
	for (uint32_t i = 0; r == 0 && i < KVPD_WAYS; i++)
		r = kvpd_cuda_copy_start(&d->way[i], d, i);
	if (r < 0) {
		cuda_close(d);
		return r;
	}
	*ret_driver = d;
	return 0;
}

static int cuda_caps(struct kvpd_driver *d, struct kvpd_driver_caps *ret_caps)
{
	*ret_caps = (struct kvpd_driver_caps){
		.bytes = d->bytes,
		.granularity = d->granularity,
		.flags = (d->ipc ? KVPD_DRIVER_HANDLES : 0) |
			 (d->copies ? 0 : KVPD_DRIVER_NO_COPIES),
		.numa_node = d->numa_node,
		.batch = CUDA_BATCH_BYTES,
	};
	memcpy(ret_caps->uuid, d->uuid, sizeof(d->uuid));
	return 0;
}

/* ---- segments ------------------------------------------------------------------------------- */

static void unmap(struct kvpd_driver *d, uint64_t addr, uint64_t bytes, bool mapped)
{
	if (d->ipc) {
		(void)said(d, d->cu.cuMemFree_v2(addr));
		return;
	}
	if (mapped)
		(void)said(d, d->cu.cuMemUnmap(addr, bytes));
	(void)said(d, d->cu.cuMemAddressFree(addr, bytes));
}

/* Maps it, for this device to read and write. On failure *mapped says what is to be undone. */
static int map(struct kvpd_driver *d, uint64_t handle, uint64_t bytes, uint64_t *addr, bool *mapped)
{
	const struct cu_access access = { { CU_LOC_DEVICE, d->device }, CU_PROT_RW };
	int r = 0;

	if (!*addr)
		r = said(d, d->cu.cuMemAddressReserve(addr, bytes, d->granularity, 0, 0));
	if (r == 0 && !*mapped) {
		r = said(d, d->cu.cuMemMap(*addr, bytes, 0, handle, 0));
		*mapped = r == 0;
	}
	/* It waits for work that is under way, and may give up on that: -EAGAIN. */
	return r == 0 ? said(d, d->cu.cuMemSetAccess(*addr, bytes, &access, 1)) : r;
}

static void making_end(struct kvpd_driver *d)
{
	if (!d->making.open)
		return;
	if (d->making.zeroing)
		kvpd_cuda_settle(d, d->making.stream);
	/* What may be written still is left to the end of this process. */
	if (atomic_load(&d->lost))
		d->making.addr = d->making.handle = 0;
	if (d->making.addr)
		unmap(d, d->making.addr, d->making.bytes, d->making.mapped);
	if (d->making.handle)
		(void)said(d, d->cu.cuMemRelease(d->making.handle));
	d->making.open = d->making.mapped = d->making.zeroing = false;
	d->making.addr = d->making.handle = 0;
}

static int making_begin(struct kvpd_driver *d, uint32_t id, uint64_t bytes)
{
	const struct cu_alloc_prop prop = properties(d);
	int r = 0;

	if (!bytes || bytes % d->granularity)
		return -EINVAL;
	if (bytes > d->bytes - d->used)
		return -ENOMEM;
	if (d->copies)
		r = context(d);
	if (r == 0 && d->ipc)
		r = said(d, d->cu.cuMemAlloc_v2(&d->making.addr, bytes));
	else if (r == 0)
		r = said(d, d->cu.cuMemCreate(&d->making.handle, bytes, &prop, 0));
	if (r < 0)
		return r;
	d->making.id = id;
	d->making.bytes = bytes;
	d->making.open = true;
	return 0;
}

/* Nobody gets to see what lay there before. -EAGAIN until all of it is zero. */
static int making_zero(struct kvpd_driver *d)
{
	int r = 0;

	if (!d->ipc && !d->making.zeroing)
		r = map(d, d->making.handle, d->making.bytes, &d->making.addr, &d->making.mapped);
	if (r == 0 && !d->making.zeroing) {
		r = said(d, d->cu.cuMemsetD8Async(
				    d->making.addr, 0, d->making.bytes, d->making.stream));
		if (r == 0)
			r = said(d, d->cu.cuEventRecord(d->making.event, d->making.stream));
		d->making.zeroing = true;
	}
	return r == 0 ? said(d, d->cu.cuEventQuery(d->making.event)) : r;
}

/* A memfd with the handle, which goes the way that descriptors go. */
static int export_handle(struct kvpd_driver *d, int *ret_fd)
{
	struct cu_ipc_handle handle;
	kvp_autoclose int fd = -1;
	int r = said(d, d->cu.cuIpcGetMemHandle(&handle, d->making.addr));

	_Static_assert(sizeof(handle) == KVPD_HANDLE_BYTES, "a handle is what it is");
	if (r == 0)
		r = kvp_seg_create("kvpool-handle", KVPD_HANDLE_MEMORY, 0, &fd);
	if (r == 0 && pwrite(fd, &handle, sizeof(handle), 0) != (ssize_t)sizeof(handle))
		r = -EIO;
	if (r == 0)
		r = kvp_seg_seal(fd, KVP_SEALS_FIXED | F_SEAL_WRITE | F_SEAL_SEAL);
	if (r == 0)
		*ret_fd = kvp_take_fd(&fd);
	return r;
}

static int export_fd(struct kvpd_driver *d, int *ret_fd)
{
	int fd = -1;
	int r = said(d, d->cu.cuMemExportToShareableHandle(&fd, d->making.handle, CU_HANDLE_FD, 0));

	if (r < 0)
		return r;
	(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	/* The mapping, if there is one, and the descriptor keep the memory. */
	(void)said(d, d->cu.cuMemRelease(d->making.handle));
	d->making.handle = 0;
	*ret_fd = fd;
	return 0;
}

static int cuda_seg_make(struct kvpd_driver *d, uint32_t id, uint64_t bytes, int *ret_fd)
{
	int r = lost(d);

	if (d->making.open && (d->making.id != id || d->making.bytes != bytes))
		making_end(d);
	if (r == 0 && !d->making.open)
		r = making_begin(d, id, bytes);
	if (r < 0)
		return r;
	if (d->copies)
		r = making_zero(d);
	if (r == 0)
		r = d->ipc ? export_handle(d, ret_fd) : export_fd(d, ret_fd);
	if (r == -EAGAIN)
		return r;
	if (r < 0) {
		making_end(d);
		return r;
	}
	d->seg[id] = (struct cuda_segment){ d->making.addr, bytes };
	d->used += bytes;
	d->making.open = d->making.mapped = d->making.zeroing = false;
	d->making.addr = 0;
	return 0;
}

/* Without copies the descriptor alone keeps the memory, and the daemon has that. */
static int cuda_seg_take(struct kvpd_driver *d, uint32_t id, uint64_t bytes, int fd)
{
	uint64_t handle = 0, addr = 0;
	bool mapped = false;
	int r = lost(d);

	if (r == 0 && (d->ipc || bytes > d->bytes - d->used))
		return d->ipc ? -EOPNOTSUPP : -ENOMEM;
	if (r == 0 && d->copies) {
		r = context(d);
		if (r == 0)
			r = said(d, d->cu.cuMemImportFromShareableHandle(
					    &handle, (void *)(intptr_t)fd, CU_HANDLE_FD));
		if (r == 0) {
			do {
				r = map(d, handle, bytes, &addr, &mapped);
			} while (r == -EAGAIN && usleep(1000) == 0);
			(void)said(d, d->cu.cuMemRelease(handle));
		}
		if (r < 0 && addr)
			unmap(d, addr, bytes, mapped);
	}
	if (r < 0)
		return r;
	d->seg[id] = (struct cuda_segment){ addr, bytes };
	d->used += bytes;
	return 0;
}

static void cuda_seg_drop(struct kvpd_driver *d, uint32_t id)
{
	if (d->seg[id].addr)
		unmap(d, d->seg[id].addr, d->seg[id].bytes, true);
	d->used -= d->seg[id].bytes;
	d->seg[id] = (struct cuda_segment){ 0 };
}

/* ---- DRAM ----------------------------------------------------------------------------------- */

static int cuda_host_add(
	struct kvpd_driver *d, uint32_t id, void *addr, uint64_t bytes, uint32_t flags)
{
	const bool writable = flags & KVPD_MEMORY_WRITABLE;
	bool pin = flags & KVPD_MEMORY_PIN && d->copies && has(d, CU_ATTR_HOST_REGISTER) > 0 &&
		   (writable || has(d, CU_ATTR_READ_ONLY_REG) > 0);
	int r = lost(d);

	if (r == 0 && pin)
		r = context(d);
	if (r < 0)
		return r;
	pthread_mutex_lock(&d->pinner.lock);
	d->host[id].addr = addr;
	d->host[id].bytes = bytes;
	d->host[id].writable = writable;
	d->host[id].pin = d->host[id].leave = false;
	pthread_mutex_unlock(&d->pinner.lock);
	if (pin)
		kvpd_cuda_pin(d, id);
	return 0;
}

static int cuda_host_drop(struct kvpd_driver *d, uint32_t id)
{
	return kvpd_cuda_unpin(d, id);
}

/* ---- copies --------------------------------------------------------------------------------- */

static int cuda_submit(struct kvpd_driver *d, uint32_t way, uint64_t batch,
	const struct kvpd_copy *copies, uint32_t n)
{
	int r = d->copies ? lost(d) : -EOPNOTSUPP;

	if (r == 0)
		r = context(d);
	return r == 0 ? kvpd_cuda_copy_submit(&d->way[way], batch, copies, n) : r;
}

static int cuda_poll(struct kvpd_driver *d, struct kvpd_done *out, uint32_t max)
{
	uint32_t n = 0;
	eventfd_t value;
	int r;

	(void)eventfd_read(d->event, &value);
	for (uint32_t i = 0; i < KVPD_WAYS; i++)
		n += kvpd_cuda_copy_poll(&d->way[i], out + n, max - n);
	/* After them: what failed because the device was lost is not told as a failure of its own. */
	r = lost(d);
	return r < 0 ? r : (int)n;
}

static int cuda_event(struct kvpd_driver *d)
{
	return d->event;
}

static int cuda_usage(struct kvpd_driver *d, struct kvpd_driver_usage *ret_usage)
{
	size_t left = 0, total = 0;
	int r = lost(d);

	/* Only a context can say what is free. */
	if (r == 0 && d->ctx)
		r = said(d, d->cu.cuMemGetInfo_v2(&left, &total));
	if (r == 0)
		*ret_usage = (struct kvpd_driver_usage){ left, total, d->ctx ? d->context : 0 };
	return r;
}

const struct kvpd_driver_ops kvpd_driver_cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.caps = cuda_caps,
	.seg_make = cuda_seg_make,
	.seg_take = cuda_seg_take,
	.seg_drop = cuda_seg_drop,
	.seg_sum = kvpd_cuda_seg_sum,
	.host_add = cuda_host_add,
	.host_drop = cuda_host_drop,
	.submit = cuda_submit,
	.poll = cuda_poll,
	.event = cuda_event,
	.usage = cuda_usage,
};
