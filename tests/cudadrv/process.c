/* SPDX-License-Identifier: Apache-2.0 */
/* The process: initialisation, forks, contexts, devices, errors, and what every call begins with. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "tests/cudadrv/sim.h"

#define STACK 16

struct sim sim = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Thread_local struct CUctx_st *stack[STACK];
static _Thread_local int depth;

/* ---- reports ---- */

void sim_says(enum cudadrv_report kind, const char *format, ...)
{
	char text[300];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	if (sim.opened)
		sim_report(&sim.shared, kind, program_invocation_short_name, text);
}

void sim_break(int error)
{
	if (sim.sticky == CU_OK)
		sim.sticky = error;
	pthread_cond_broadcast(&sim.done);
	pthread_cond_broadcast(&sim.work);
}

/* ---- the shared state, forks, the end ---- */

static void fork_prepare(void)
{
	pthread_mutex_lock(&sim.lock);
	pthread_mutex_lock(&sim.shared.mutex);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&sim.shared.mutex);
	pthread_mutex_unlock(&sim.lock);
}

/*
 * The child keeps what maps memory, as it would keep the driver's files; it is no member of the
 * machine, so that its parent's death is seen.
 */
static void fork_child(void)
{
	pthread_mutex_init(&sim.shared.mutex, NULL);
	pthread_mutex_init(&sim.lock, NULL);
	if (sim.inited) {
		sim.forked = true;
		close(sim.life_fd);
		sim_shared_renew(&sim.shared);
	}
}

static int open_shared(void)
{
	const char *folder = getenv("KVP_SIM_GPU");
	int r;

	if (sim.opened)
		return 0;
	if (!folder)
		return -ENOENT;
	r = sim_shared_open(folder, &sim.shared);
	if (r < 0) {
		fprintf(stderr, "cudadrv: %s: %s\n", folder, strerror(-r));
		return r;
	}
	sim.opened = true;
	return 0;
}

static uint32_t count_leaks(char *text, size_t room)
{
	uint32_t handles = 0, maps = 0, hosts = 0, streams = 0, contexts = 0;

	for (struct sim_handle *h = sim.handles; h; h = h->next)
		handles++;
	for (struct sim_map *m = sim.maps; m; m = m->next)
		maps++;
	for (struct sim_host *h = sim.hosts; h; h = h->next)
		hosts++;
	for (struct CUstream_st *s = sim.streams; s; s = s->next)
		streams += s->live && s != s->ctx->null_stream;
	for (uint32_t i = 0; i < SIM_DEVICES; i++)
		contexts += sim.ctx[i].retained;
	snprintf(text, room,
		"%u handles, %u mappings or allocations, %u host registrations, %u streams, "
		"%u references to contexts are left at exit",
		handles, maps, hosts, streams, contexts);
	return handles + maps + hosts + streams + contexts;
}

static void at_exit(void)
{
	char text[200];
	bool join;

	if (sim.forked)
		return;
	pthread_mutex_lock(&sim.lock);
	if (sim.sticky == CU_OK && count_leaks(text, sizeof(text)) > 0)
		sim_says(CUDADRV_LEAK, "%s", text);
	sim.stopping = true;
	join = sim.running;
	pthread_cond_broadcast(&sim.work);
	pthread_mutex_unlock(&sim.lock);
	if (join && !pthread_equal(sim.runner, pthread_self()))
		pthread_join(sim.runner, NULL);
}

/* Is device i one that CUDA_VISIBLE_DEVICES names, by number or by the beginning of its UUID? */
static bool is_named(uint32_t i, const char *list)
{
	char text[48] = "GPU-", number[12];
	uint8_t uuid[16];
	size_t n = 4, len;

	sim_uuid(sim.shared.s, i, uuid);
	for (uint32_t k = 0; k < 16; k++) {
		if (k == 4 || k == 6 || k == 8 || k == 10)
			text[n++] = '-';
		snprintf(text + n, 3, "%02x", uuid[k]);
		n += 2;
	}
	snprintf(number, sizeof(number), "%u", i);
	for (; *list; list += len + (list[len] == ',')) {
		len = strcspn(list, ",");
		if ((len == strlen(number) && strncmp(list, number, len) == 0) ||
			(len > 4 && len <= n && strncasecmp(list, text, len) == 0))
			return true;
	}
	return false;
}

static uint32_t visible(int map[SIM_DEVICES])
{
	const struct sim_state *s = sim.shared.s;
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->config.devices; i++)
		if (!atomic_load(&s->device[i].gone) && (!list || is_named(i, list)))
			map[n++] = (int)i;
	return n;
}

static int join_machine(void)
{
	pthread_condattr_t monotonic;
	int map[SIM_DEVICES], r;

	if (visible(map) == 0)
		return CU_ERR_NO_DEVICE;
	sim_lock(&sim.shared);
	r = sim_process_join(&sim.shared, &sim.slot, &sim.life_fd);
	if (r == 0)
		sim.life = sim.shared.s->process[sim.slot].life;
	sim_hazard_sweep();
	sim_unlock(&sim.shared);
	if (r < 0)
		return SIM_OUT_OF_SLOTS;
	sim.seed = sim.shared.s->config.seed ^ sim.life << 32;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&sim.done, &monotonic);
	pthread_cond_init(&sim.work, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_atfork(fork_prepare, fork_parent, fork_child);
	atexit(at_exit);
	sim.inited = true;
	return CU_OK;
}

/* ---- what every call begins with ---- */

static void nap(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	nanosleep(&t, NULL);
}

/* Without sim.lock: a call that is slow or hangs does not hold up the process's others. */
static int strike(enum sim_function function)
{
	int n = sim_fault_strikes(&sim.shared, function, program_invocation_short_name);
	const struct sim_fault *f;

	if (n < 0)
		return CU_OK;
	f = &sim.shared.s->fault[n];
	switch (f->action) {
	case CUDADRV_KILL:
		raise(SIGKILL);
		break;
	case CUDADRV_SLEEP:
		nap(f->value);
		break;
	case CUDADRV_HANG:
		while (atomic_load(&f->used))
			nap(1000000);
		break;
	case CUDADRV_STICKY:
		pthread_mutex_lock(&sim.lock);
		sim_break((int)f->value);
		pthread_mutex_unlock(&sim.lock);
		break;
	default:
		return (int)f->value;
	}
	return CU_OK;
}

void sim_watch_devices(void)
{
	for (uint32_t i = 0; i < sim.shared.s->config.devices; i++) {
		if (sim.ctx[i].retained == 0)
			continue;
		if (atomic_load(&sim.shared.s->device[i].gone))
			sim_break(SIM_ERR_UNKNOWN);
		else if (atomic_load(&sim.shared.s->device[i].ecc) != sim.ctx[i].ecc)
			sim_break(CU_ERR_ECC);
	}
}

static int state_of_process(enum sim_function function, unsigned int need)
{
	struct CUctx_st *ctx = sim_current();

	if (need & SIM_UNSAFE && sim_capture_forbids()) {
		sim_says(CUDADRV_CAPTURE, "%s while a capture is under way",
			sim_function_names[function]);
		sim_capture_spoil();
		return CU_ERR_CAPTURING;
	}
	sim_watch_devices();
	if (sim.sticky != CU_OK && need & (SIM_CTX | SIM_UNSAFE))
		return sim.sticky;
	if (need & SIM_CTX && (!ctx || ctx->retained == 0)) {
		sim_says(CUDADRV_NO_CONTEXT, "%s without a current context",
			sim_function_names[function]);
		return CU_ERR_BAD_CONTEXT;
	}
	return CU_OK;
}

int sim_enter(enum sim_function function, unsigned int need)
{
	int r;

	pthread_mutex_lock(&sim.lock);
	r = open_shared();
	pthread_mutex_unlock(&sim.lock);
	if (r < 0)
		return need & SIM_INIT ? CU_ERR_NOT_INIT : CU_ERR_NO_DEVICE;
	atomic_fetch_add(&sim.shared.s->calls[function], 1);
	if (sim.forked) {
		sim_says(CUDADRV_AFTER_FORK, "%s in a child of fork()",
			sim_function_names[function]);
		return CU_ERR_NOT_INIT;
	}
	if (need & SIM_INIT && !sim.inited) {
		sim_says(CUDADRV_BEFORE_INIT, "%s before cuInit()", sim_function_names[function]);
		return CU_ERR_NOT_INIT;
	}
	r = strike(function);
	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&sim.lock);
	r = need & SIM_INIT ? state_of_process(function, need) : CU_OK;
	if (r != CU_OK)
		pthread_mutex_unlock(&sim.lock);
	return r;
}

int sim_leave(int r)
{
	pthread_mutex_unlock(&sim.lock);
	return r;
}

/* ---- the library, errors ---- */

static int init(unsigned int flags)
{
	if (flags != 0)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "cuInit: flags");
	return sim.inited ? CU_OK : join_machine();
}

SIM_EXPORT int cuInit(unsigned int flags)
{
	SIM_CALL(cuInit, SIM_ANY, init(flags));
}

static int version(int *v)
{
	*v = (int)sim.shared.s->config.driver_version;
	return CU_OK;
}

SIM_EXPORT int cuDriverGetVersion(int *v)
{
	SIM_CALL(cuDriverGetVersion, SIM_ANY, version(v));
}

SIM_EXPORT int cuGetErrorName(int error, const char **name)
{
	static const struct {
		int error;
		const char *name;
	} names[] = { { 0, "CUDA_SUCCESS" }, { 1, "CUDA_ERROR_INVALID_VALUE" },
		{ 2, "CUDA_ERROR_OUT_OF_MEMORY" }, { 3, "CUDA_ERROR_NOT_INITIALIZED" },
		{ 46, "CUDA_ERROR_DEVICE_UNAVAILABLE" }, { 100, "CUDA_ERROR_NO_DEVICE" },
		{ 101, "CUDA_ERROR_INVALID_DEVICE" }, { 200, "CUDA_ERROR_INVALID_IMAGE" },
		{ 201, "CUDA_ERROR_INVALID_CONTEXT" }, { 208, "CUDA_ERROR_ALREADY_MAPPED" },
		{ 214, "CUDA_ERROR_ECC_UNCORRECTABLE" }, { 226, "CUDA_ERROR_CONTAINED" },
		{ 304, "CUDA_ERROR_OPERATING_SYSTEM" }, { 400, "CUDA_ERROR_INVALID_HANDLE" },
		{ 500, "CUDA_ERROR_NOT_FOUND" }, { 600, "CUDA_ERROR_NOT_READY" },
		{ 700, "CUDA_ERROR_ILLEGAL_ADDRESS" },
		{ 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" },
		{ 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" },
		{ 716, "CUDA_ERROR_MISALIGNED_ADDRESS" }, { 719, "CUDA_ERROR_LAUNCH_FAILED" },
		{ 800, "CUDA_ERROR_NOT_PERMITTED" }, { 801, "CUDA_ERROR_NOT_SUPPORTED" },
		{ 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" },
		{ 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" },
		{ 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" },
		{ 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED" },
		{ 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" },
		{ 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" }, { 999, "CUDA_ERROR_UNKNOWN" } };

	bool opened;
	int r;

	/* the one function that works without a machine, and in a child of fork() */
	pthread_mutex_lock(&sim.lock);
	opened = sim.opened;
	if (opened)
		atomic_fetch_add(&sim.shared.s->calls[SIM_cuGetErrorName], 1);
	pthread_mutex_unlock(&sim.lock);
	r = opened ? strike(SIM_cuGetErrorName) : CU_OK;
	if (r != CU_OK)
		return r;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].error == error) {
			*name = names[i].name;
			return CU_OK;
		}
	*name = NULL;
	return CU_ERR_INVALID_VALUE;
}

/* ---- devices ---- */

int sim_device_ok(int device)
{
	return device >= 0 && (uint32_t)device < sim.shared.s->config.devices
		       ? CU_OK
		       : sim_refuse(SIM_ERR_BAD_DEVICE, CUDADRV_BAD_VALUE, "there is no device %d",
				 device);
}

static int device_count(int *count)
{
	int map[SIM_DEVICES];

	*count = (int)visible(map);
	return CU_OK;
}

SIM_EXPORT int cuDeviceGetCount(int *count)
{
	SIM_CALL(cuDeviceGetCount, SIM_INIT, device_count(count));
}

static int device_get(int *device, int ordinal)
{
	int map[SIM_DEVICES];
	uint32_t n = visible(map);

	if (ordinal < 0 || (uint32_t)ordinal >= n)
		return SIM_ERR_BAD_DEVICE;
	*device = map[ordinal];
	return CU_OK;
}

SIM_EXPORT int cuDeviceGet(int *device, int ordinal)
{
	SIM_CALL(cuDeviceGet, SIM_INIT, device_get(device, ordinal));
}

static int device_name(char *name, int len, int device)
{
	int r = sim_device_ok(device);

	if (r == CU_OK && len > 0)
		snprintf(name, (size_t)len, "simulated device %d", device);
	return r;
}

SIM_EXPORT int cuDeviceGetName(char *name, int len, int device)
{
	SIM_CALL(cuDeviceGetName, SIM_INIT, device_name(name, len, device));
}

static int device_uuid(struct cu_uuid *uuid, int device)
{
	int r = sim_device_ok(device);

	if (r == CU_OK)
		sim_uuid(sim.shared.s, (uint32_t)device, uuid->bytes);
	return r;
}

SIM_EXPORT int cuDeviceGetUuid_v2(struct cu_uuid *uuid, int device)
{
	SIM_CALL(cuDeviceGetUuid_v2, SIM_INIT, device_uuid(uuid, device));
}

static int device_bus(char *id, int len, int device)
{
	int r = sim_device_ok(device);

	if (r == CU_OK && len > 0)
		snprintf(id, (size_t)len, "0000:%02x:00.0", 0x10 + device);
	return r;
}

SIM_EXPORT int cuDeviceGetPCIBusId(char *id, int len, int device)
{
	SIM_CALL(cuDeviceGetPCIBusId, SIM_INIT, device_bus(id, len, device));
}

static int attribute_of(int attribute, int device)
{
	const struct cudadrv_config *c = &sim.shared.s->config;

	switch (attribute) {
	case CU_ATTR_SM_COUNT:
		return 2;
	case CU_ATTR_CC_MAJOR:
		return 9;
	case CU_ATTR_PCI_BUS:
		return 0x10 + device;
	case CU_ATTR_VMM:
	case CU_ATTR_POSIX_FD:
		return !c->no_vmm;
	case CU_ATTR_READ_ONLY_REG:
		return !c->no_read_only;
	case CU_ATTR_MEM_OPS_64:
		return !c->no_mem_ops;
	case CU_ATTR_HOST_SAME_VA:
		return c->same_address != 0;
	case CU_ATTR_HOST_REGISTER:
	case CU_ATTR_HOST_NUMA_VMM:
		return 1;
	default: /* device 0 of the bus, node 0, default compute mode, no MPS */
		return 0;
	}
}

static int device_attribute(int *value, int attribute, int device)
{
	int r = sim_device_ok(device);

	if (r == CU_OK)
		*value = attribute_of(attribute, device);
	return r;
}

SIM_EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	SIM_CALL(cuDeviceGetAttribute, SIM_INIT, device_attribute(value, attribute, device));
}

static int device_total(size_t *bytes, int device)
{
	int r = sim_device_ok(device);

	if (r == CU_OK)
		*bytes = sim.shared.s->config.vram_bytes;
	return r;
}

SIM_EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	SIM_CALL(cuDeviceTotalMem_v2, SIM_INIT, device_total(bytes, device));
}

/* ---- contexts ---- */

struct CUctx_st *sim_current(void)
{
	return depth > 0 ? stack[depth - 1] : NULL;
}

static bool is_context(const struct CUctx_st *ctx)
{
	return ctx >= sim.ctx && ctx < sim.ctx + SIM_DEVICES && ctx == &sim.ctx[ctx - sim.ctx] &&
	       ctx->retained > 0;
}

/* A context takes video memory as a segment does. */
static int pay_context(struct CUctx_st *ctx, int device)
{
	const struct cudadrv_config *c = &sim.shared.s->config;
	struct sim_meta like = { .bytes = c->context_bytes,
		.requested = c->context_bytes,
		.kind = SIM_CONTEXT,
		.device = (uint32_t)device };
	int r = -ENOMEM;

	sim_lock(&sim.shared);
	if (sim_sweep(&sim.shared, (uint32_t)device) + like.bytes <= c->vram_bytes)
		r = sim_segment_make(&sim.shared, &like, &ctx->cost);
	sim_unlock(&sim.shared);
	return r == 0 ? CU_OK : CU_ERR_NO_MEMORY;
}

static int primary_retain(struct CUctx_st **ret_ctx, int device)
{
	int r = sim_device_ok(device);
	struct CUctx_st *ctx;

	if (r != CU_OK)
		return r;
	if (sim.sticky != CU_OK)
		return sim.sticky;
	if (atomic_load(&sim.shared.s->device[device].gone))
		return CU_ERR_NO_DEVICE;
	ctx = &sim.ctx[device];
	if (ctx->retained == 0) {
		r = pay_context(ctx, device);
		if (r != CU_OK)
			return r;
		ctx->device = device;
		ctx->ecc = atomic_load(&sim.shared.s->device[device].ecc);
		if (!ctx->null_stream)
			ctx->null_stream = sim_stream_new(ctx, 0);
	}
	ctx->retained++;
	*ret_ctx = ctx;
	return CU_OK;
}

SIM_EXPORT int cuDevicePrimaryCtxRetain(struct CUctx_st **ctx, int device)
{
	SIM_CALL(cuDevicePrimaryCtxRetain, SIM_INIT, primary_retain(ctx, device));
}

static int primary_release(int device)
{
	int r = sim_device_ok(device);

	if (r != CU_OK)
		return r;
	if (sim.ctx[device].retained == 0)
		return sim_refuse(CU_ERR_BAD_CONTEXT, CUDADRV_BAD_HANDLE,
			"the primary context of device %d is not retained", device);
	if (--sim.ctx[device].retained == 0) {
		sim_stream_end(&sim.ctx[device]);
		sim_ref_drop(&sim.ctx[device].cost);
	}
	return CU_OK;
}

SIM_EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	SIM_CALL(cuDevicePrimaryCtxRelease_v2, SIM_INIT, primary_release(device));
}

static int primary_flags(int device, unsigned int flags)
{
	int r = sim_device_ok(device);

	if (r == CU_OK)
		sim.ctx[device].flags = flags;
	return r;
}

SIM_EXPORT int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned int flags)
{
	SIM_CALL(cuDevicePrimaryCtxSetFlags_v2, SIM_INIT, primary_flags(device, flags));
}

static int primary_state(int device, unsigned int *flags, int *active)
{
	int r = sim_device_ok(device);

	if (r == CU_OK) {
		*flags = sim.ctx[device].flags;
		*active = sim.ctx[device].retained > 0;
	}
	return r;
}

SIM_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	SIM_CALL(cuDevicePrimaryCtxGetState, SIM_INIT, primary_state(device, flags, active));
}

static int set_current(struct CUctx_st *ctx)
{
	if (ctx && !is_context(ctx))
		return sim_refuse(CU_ERR_BAD_CONTEXT, CUDADRV_BAD_HANDLE, "no such context");
	if (depth == 0)
		depth = 1;
	stack[depth - 1] = ctx;
	return CU_OK;
}

SIM_EXPORT int cuCtxSetCurrent(struct CUctx_st *ctx)
{
	SIM_CALL(cuCtxSetCurrent, SIM_INIT, set_current(ctx));
}

static int get_current(struct CUctx_st **ctx)
{
	*ctx = sim_current();
	return CU_OK;
}

SIM_EXPORT int cuCtxGetCurrent(struct CUctx_st **ctx)
{
	SIM_CALL(cuCtxGetCurrent, SIM_INIT, get_current(ctx));
}

static int push_current(struct CUctx_st *ctx)
{
	if (!is_context(ctx) || depth == STACK)
		return sim_refuse(CU_ERR_BAD_CONTEXT, CUDADRV_BAD_HANDLE, "no such context");
	stack[depth++] = ctx;
	return CU_OK;
}

SIM_EXPORT int cuCtxPushCurrent_v2(struct CUctx_st *ctx)
{
	SIM_CALL(cuCtxPushCurrent_v2, SIM_INIT, push_current(ctx));
}

static int pop_current(struct CUctx_st **ctx)
{
	if (depth == 0)
		return sim_refuse(CU_ERR_BAD_CONTEXT, CUDADRV_NO_CONTEXT, "nothing to pop");
	depth--;
	if (ctx)
		*ctx = stack[depth];
	return CU_OK;
}

SIM_EXPORT int cuCtxPopCurrent_v2(struct CUctx_st **ctx)
{
	SIM_CALL(cuCtxPopCurrent_v2, SIM_INIT, pop_current(ctx));
}

static int current_device(int *device)
{
	*device = sim_current()->device;
	return CU_OK;
}

SIM_EXPORT int cuCtxGetDevice(int *device)
{
	SIM_CALL(cuCtxGetDevice, SIM_INIT | SIM_CTX, current_device(device));
}
