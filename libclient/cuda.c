/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client on a CUDA device: opened and closed, its thread and its lanes.
 */
#include "libclient/cuda.h"
#include "kernels/cuda/kvp_cuda_kernels.h"
#include "libclient/match.h"
#include "libclient/thread.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define STAGE_BYTES (UINT64_C(64) << 20)
#define ASK_TRIES   3u
#define BUSY_US     50u    /* between looks at bytes on their way */
#define SWEEP_US    50000u /* at lanes of former daemons */
#define ACK_US      10000u /* at a daemon that does not read just now */
#define SLACK_NS    1000ul /* of threads' sleeps */
#define LOOK_NS     (2 * NS_PER_MS)
#define NS_PER_S    UINT64_C(1000000000)

/* ---- the driver ------------------------------------------------------------------------------ */

int cuda_error(struct kvp_cuda *cuda, int error)
{
	int r;

	if (error == CU_OK)
		return 0;
	kvp_store_relaxed(&cuda->driver_error, error);
	r = kvp_cu_errno(error);
	if (kvp_cu_lost(error))
		kvp_store_relaxed(&cuda->lost, 1);
	/* What the caller has to do about these is not what errno would say. */
	return r == -EAGAIN || r == -EPERM ? -EIO : r;
}

int cuda_enter(struct kvp_cuda *cuda, int *ret_pushed)
{
	struct CUctx_st *now = NULL;
	int r;

	*ret_pushed = 0;
	if (kvp_load_relaxed(&cuda->lost))
		return -ENODEV;
	if (cuda->cu.cuCtxGetCurrent(&now) == CU_OK && now == cuda->ctx)
		return 0;
	r = cuda_error(cuda, cuda->cu.cuCtxPushCurrent_v2(cuda->ctx));
	*ret_pushed = r == 0;
	return r;
}

void cuda_leave(struct kvp_cuda *cuda, int pushed)
{
	struct CUctx_st *mine;

	if (pushed)
		(void)cuda->cu.cuCtxPopCurrent_v2(&mine);
}

int cuda_usable(const struct kvp_cuda *cuda)
{
	if (!cuda)
		return -EINVAL;
	return client_mine(cuda->client) ? 0 : -ECHILD;
}

int cuda_capturing(struct kvp_cuda *cuda, struct CUstream_st *stream)
{
	unsigned int status = CU_CAPTURE_NONE;
	int r = cuda_error(cuda, cuda->cu.cuStreamIsCapturing(stream, &status));

	if (r < 0)
		return r;
	return status == CU_CAPTURE_NONE ? 0 : -EBUSY;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* The number that the attachment's daemon has for this device. */
static uint32_t device_number(const struct kvp_cuda *cuda, const struct attachment *att)
{
	for (uint32_t i = 0; i < KVP_MAX_DEVICES; i++) {
		const struct kvp_shm_device *d = &att->view.devices[i];

		if (kvp_load_acquire(&d->state) != KVP_DEVICE_FREE &&
			memcmp(d->uuid, cuda->uuid, sizeof(d->uuid)) == 0)
			return i;
	}
	return KVP_CUDA_NO_DEVICE;
}

uint32_t lane_device(const struct kvp_cuda *cuda, struct lane *l)
{
	uint32_t device = kvp_load_relaxed(&l->device);

	if (device == KVP_CUDA_NO_DEVICE) {
		device = device_number(cuda, l->att);
		kvp_store_relaxed(&l->device, device);
	}
	return device;
}

/* A lane for the current attachment, if it has none. The thread's, and kvp_cuda_open()'s before that. */
static void lane_make(struct kvp_cuda *cuda)
{
	struct kvp_client *c = cuda->client;
	struct attachment *att;
	struct lane *l;
	uint32_t i = 0;

	while (i < CUDA_LANES && kvp_load_relaxed(&cuda->lanes[i]))
		i++;
	pthread_mutex_lock(&c->ring_lock);
	att = kvp_load_seq(&c->att);
	if (att && (i == CUDA_LANES || lane_of(cuda, att)))
		att = NULL;
	if (att)
		att->refs++;
	pthread_mutex_unlock(&c->ring_lock);
	if (!att)
		return;
	l = calloc(1, sizeof(*l));
	if (l) {
		l->att = att;
		kvp_store_relaxed(&l->device, device_number(cuda, att));
	}
	if (l && host_begin(cuda, l) == 0) {
		kvp_store_release(&cuda->lanes[i], l);
		sleeper_stir(&cuda->watch); /* marks that the former one has are to come there */
		maps_want(cuda, l);
		return;
	}
	free(l);
	pthread_mutex_lock(&c->ring_lock);
	att->refs--;
	pthread_mutex_unlock(&c->ring_lock);
}

/* Has a stream still to write into the lane's page? ring_lock. What it will not write is what was lost. */
static int lane_awaited(struct kvp_cuda *cuda, const struct lane *l)
{
	struct kvp_client *c = cuda->client;

	for (uint32_t i = 0; l->done_page && i < KVP_TIMELINES; i++) {
		struct kvp_timeline *t = &c->timelines[i];

		if (t->cuda != cuda || kvp_load_relaxed(&t->kind) != LINE_STREAM)
			continue;
		cuda_look(t);
		if (kvp_load_relaxed(&t->reached) < t->base + kvp_load_relaxed(&t->marked))
			return 1;
	}
	return 0;
}

static void lane_drop(struct kvp_cuda *cuda, uint32_t i)
{
	struct kvp_client *c = cuda->client;
	struct lane *l = kvp_load_relaxed(&cuda->lanes[i]);

	/* Those who look at lanes of attachments that they do not hold do so under one of these. */
	pthread_mutex_lock(&c->ring_lock);
	pthread_mutex_lock(&c->cuda_lock);
	kvp_store_release(&cuda->lanes[i], NULL);
	pthread_mutex_unlock(&c->cuda_lock);
	pthread_mutex_unlock(&c->ring_lock);
	maps_drop(cuda, l);
	host_drop(cuda, l);
	pthread_mutex_lock(&c->ring_lock);
	l->att->refs--;
	pthread_mutex_unlock(&c->ring_lock);
	client_kick(c);
	free(l);
}

/* ring_lock. Has the caller a slot on a device, or a stream one that it writes still? */
static int slots_out(const struct attachment *att)
{
	for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++) {
		const struct kvp_grant *g = &att->grants[i];

		if (!g->addr && g->there &&
			(g->state == GRANT_HELD || g->state == GRANT_COMMITTED ||
				g->state == GRANT_LATER))
			return 1;
	}
	return 0;
}

/* Returns how many there are of attachments whose daemon has gone. */
static uint32_t lanes_serve(struct kvp_cuda *cuda)
{
	struct kvp_client *c = cuda->client;
	uint32_t left = 0;

	lane_make(cuda);
	for (uint32_t i = 0; i < CUDA_LANES; i++) {
		struct lane *l = kvp_load_relaxed(&cuda->lanes[i]);
		int used;

		if (!l || !kvp_load_seq(&l->att->dead))
			continue;
		pthread_mutex_lock(&c->ring_lock);
		used = prefix_any(c, l->att) || kvp_lease_any(l->att->page) ||
		       lane_awaited(cuda, l) || slots_out(l->att);
		pthread_mutex_unlock(&c->ring_lock);
		if (used && !kvp_load_relaxed(&cuda->lost))
			left++;
		else if (!used)
			lane_drop(cuda, i);
	}
	return left;
}

/* ---- the thread ------------------------------------------------------------------------------ */

void sleeper_begin(const char *name)
{
	pthread_setname_np(pthread_self(), name);
	/* Else each look would come 50 us later than it was meant to. */
	(void)prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
}

void sleeper_stir(struct sleeper *s)
{
	/* Sequentially consistent: pairs with sleeper_lies_down(), after which it looks once more. */
	if (kvp_load_seq(&s->asleep))
		(void)!write(s->kick, &(uint64_t){ 1 }, 8);
}

void sleeper_lies_down(struct sleeper *s)
{
	kvp_store_seq(&s->asleep, 1);
}

void sleeper_sleep(struct sleeper *s, uint64_t us)
{
	struct pollfd p = { .fd = s->kick, .events = POLLIN };
	struct timespec ts = { .tv_sec = (time_t)(us / 1000000),
		.tv_nsec = (long)(us % 1000000 * 1000) };
	uint64_t count;

	if (ppoll(&p, 1, us ? &ts : NULL, NULL) > 0)
		(void)!read(s->kick, &count, sizeof(count));
	kvp_store_seq(&s->asleep, 0);
}

void cuda_rouse(struct kvp_cuda *cuda)
{
	kvp_store_seq(&cuda->dirty, 1);
	(void)!write(cuda->work.kick, &(uint64_t){ 1 }, 8);
}

/* All that is followed. Returns when to look again, 0: when kicked. */
static uint64_t look_around(struct kvp_cuda *cuda)
{
	uint64_t us = 0;

	if (lanes_serve(cuda))
		us = SWEEP_US;
	if (acks_serve(cuda))
		us = ACK_US;
	return stage_serve(cuda) ? BUSY_US : us;
}

/* Whoever waits for what is mapped and registered hears of it. */
static void tell(struct kvp_cuda *cuda)
{
	int done = host_settled(cuda);

	pthread_mutex_lock(&cuda->lock);
	cuda->settled = done && maps_settled(cuda);
	cuda->looks++;
	pthread_cond_broadcast(&cuda->changed);
	pthread_mutex_unlock(&cuda->lock);
}

/* A portion of what is slow, if there is any. 1: there may be more. */
static int memory_serve(struct kvp_cuda *cuda)
{
	int more;

	if (!kvp_xchg_seq(&cuda->dirty, 0))
		return 0;
	maps_serve(cuda);
	more = host_serve(cuda);
	if (more)
		kvp_store_seq(&cuda->dirty, 1);
	tell(cuda);
	return more;
}

static void *cuda_thread(void *arg)
{
	struct kvp_cuda *cuda = arg;
	unsigned int mode = CU_CAPTURE_RELAXED;

	sleeper_begin("kvpool-cuda");
	(void)cuda_error(cuda, cuda->cu.cuCtxSetCurrent(cuda->ctx));
	/* Else what is mapped here would spoil a capture that another thread began in global mode. */
	(void)cuda_error(cuda, cuda->cu.cuThreadExchangeStreamCaptureMode(&mode));
	while (!kvp_load_seq(&cuda->closing)) {
		uint64_t us;

		(void)look_around(cuda);
		if (memory_serve(cuda))
			continue;
		/* What is set after the look below comes with a kick. */
		sleeper_lies_down(&cuda->work);
		us = look_around(cuda);
		sleeper_sleep(&cuda->work, us);
	}
	/* The caller's streams have come to their end: what they brought since the last look is there too. */
	(void)stage_serve(cuda);
	return NULL;
}

void cuda_notice(struct kvp_client *c)
{
	pthread_mutex_lock(&c->cuda_lock);
	for (struct kvp_cuda *u = c->cudas; u; u = u->next)
		cuda_rouse(u);
	pthread_mutex_unlock(&c->cuda_lock);
}

/* Until all that there is now is mapped and registered, as far as it can be. -ETIMEDOUT. */
static int wait_settled(struct kvp_cuda *cuda, uint64_t deadline)
{
	uint64_t from;
	int r = 0;

	pthread_mutex_lock(&cuda->lock);
	from = cuda->looks;
	cuda_rouse(cuda);
	/* Two looks: the one that is under way may have begun before. */
	while (r == 0 && (cuda->looks < from + 2 || !cuda->settled)) {
		uint64_t now = now_ns(), at = now + LOOK_NS;
		struct timespec ts;

		at = at < deadline ? at : deadline;
		ts = (struct timespec){ .tv_sec = (time_t)(at / NS_PER_S),
			.tv_nsec = (long)(at % NS_PER_S) };
		if (now >= deadline)
			r = -ETIMEDOUT;
		else if (pthread_cond_timedwait(&cuda->changed, &cuda->lock, &ts))
			cuda_rouse(cuda);
	}
	pthread_mutex_unlock(&cuda->lock);
	return r;
}

/* ---- open ------------------------------------------------------------------------------------ */

/*
 * 0: no, or no driver of this age knows it. What one call fails to say is asked for again; what cannot be found out fails the
 * opening, since it would be taken for missing as long as this is open.
 */
static int attribute(struct kvp_cuda *cuda, int which, int *error)
{
	int value = 0, r = CU_ERR_NO_MEMORY;

	for (uint32_t i = 0; i < ASK_TRIES && r != CU_OK && r != CU_ERR_INVALID_VALUE; i++)
		r = cuda->cu.cuDeviceGetAttribute(&value, which, cuda->ordinal);
	if (r != CU_OK && r != CU_ERR_INVALID_VALUE)
		*error = r;
	return r == CU_OK ? value : 0;
}

/* What the device can do. Its context is current. */
static int find_out(struct kvp_cuda *cuda, const struct kvp_cuda_opts *o)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED, .handle_types = CU_HANDLE_FD };
	struct cu_uuid uuid;
	size_t bytes = 0;
	int r = cuda_error(cuda, cuda->cu.cuCtxGetDevice(&cuda->ordinal)), error = CU_OK;

	if (r == 0)
		r = cuda_error(cuda, cuda->cu.cuDeviceGetUuid_v2(&uuid, cuda->ordinal));
	if (r == 0)
		r = cuda_error(cuda, cuda->cu.cuDeviceTotalMem_v2(&bytes, cuda->ordinal));
	if (r < 0)
		return r;
	memcpy(cuda->uuid, uuid.bytes, sizeof(cuda->uuid));
	cuda->words_work = cuda->cu.cuStreamWriteValue64_v2 && cuda->cu.cuStreamWaitValue64_v2 &&
			   attribute(cuda, CU_ATTR_MEM_OPS_64, &error);
	cuda->registers = attribute(cuda, CU_ATTR_HOST_REGISTER, &error) &&
			  attribute(cuda, CU_ATTR_READ_ONLY_REG, &error);
	cuda->window_bytes = o->window_bytes ? o->window_bytes : 3 * (uint64_t)bytes;
	prop.location = (struct cu_location){ CU_LOC_DEVICE, cuda->ordinal };
	/* 0: this device maps no memory of others. */
	if (attribute(cuda, CU_ATTR_VMM, &error) && attribute(cuda, CU_ATTR_POSIX_FD, &error) &&
		cuda->cu.cuMemGetAllocationGranularity(&bytes, &prop, CU_GRAN_MINIMUM) == CU_OK)
		cuda->granularity = bytes;
	return cuda_error(cuda, error);
}

static int words_open(struct kvp_cuda *cuda)
{
	void *at = NULL;
	int r;

	r = cuda_error(cuda, cuda->cu.cuMemHostAlloc(&at, sizeof(*cuda->words),
				     CU_REG_PORTABLE | CU_REG_DEVICEMAP));
	if (r < 0)
		return r;
	memset(at, 0, sizeof(*cuda->words));
	cuda->words = at;
	return cuda_error(cuda, cuda->cu.cuMemHostGetDevicePointer_v2(&cuda->words_dev, at, 0));
}

/*
 * Blocks on the device are many short pieces, of which the driver copies one after the other: a kernel copies them
 * all at once. Where this library was built without it, or the device takes no such image, the driver copies.
 */
static void kernel_open(struct kvp_cuda *cuda)
{
	const void *image = kvp_cuda_layout_image();

	if (!image || cuda->cu.cuModuleLoadData(&cuda->module, image) != CU_OK) {
		cuda->module = NULL;
		return;
	}
	if (cuda->cu.cuModuleGetFunction(&cuda->runs, cuda->module, "kvp_cu_runs") != CU_OK)
		cuda->runs = NULL;
}

/* Has the driver, or says why not. The context of the options, or the current one. */
static int driver_open(struct kvp_cuda *cuda, const struct kvp_cuda_opts *o)
{
	char why[KVP_CU_WHY];
	int r = kvp_cu_load(&cuda->cu, why), error;
	struct CUctx_st *ctx = o->context;
	struct kvp_open_opts tell = { .error = o->error, .error_bytes = o->error_bytes };

	if (r < 0) {
		tell_why(&tell, why, r);
		return r;
	}
	error = cuda->cu.cuInit(0);
	if (error == CU_OK && !ctx)
		error = cuda->cu.cuCtxGetCurrent(&ctx);
	if (error != CU_OK) {
		tell_why(&tell, kvp_cu_name(&cuda->cu, error), -ENODEV);
		return -ENODEV;
	}
	if (!ctx) {
		tell_why(&tell, "no CUDA context is current, and none was given", -EINVAL);
		return -EINVAL;
	}
	cuda->ctx = ctx;
	return 0;
}

static int device_open(struct kvp_cuda *cuda, const struct kvp_cuda_opts *o)
{
	struct kvp_open_opts tell = { .error = o->error, .error_bytes = o->error_bytes };
	int pushed, r = cuda_enter(cuda, &pushed);

	if (r == 0)
		r = find_out(cuda, o);
	if (r == 0)
		r = words_open(cuda);
	if (r == 0)
		r = stage_open(cuda, o->stage_bytes ? o->stage_bytes : STAGE_BYTES);
	if (r == 0) {
		kernel_open(cuda);
		lane_make(cuda);
	}
	cuda_leave(cuda, pushed);
	if (r < 0)
		tell_why(&tell, kvp_cu_name(&cuda->cu, kvp_load_relaxed(&cuda->driver_error)), r);
	return r;
}

static int list_add(struct kvp_cuda *cuda)
{
	struct kvp_client *c = cuda->client;
	uint32_t n = 0;

	pthread_mutex_lock(&c->cuda_lock);
	for (const struct kvp_cuda *u = c->cudas; u; u = u->next)
		n++;
	if (n < KVP_CLIENT_CUDAS) {
		cuda->next = c->cudas;
		c->cudas = cuda;
	}
	pthread_mutex_unlock(&c->cuda_lock);
	return n < KVP_CLIENT_CUDAS ? 0 : -EMFILE;
}

static void list_remove(struct kvp_cuda *cuda)
{
	struct kvp_client *c = cuda->client;
	struct kvp_cuda **p;

	pthread_mutex_lock(&c->cuda_lock);
	for (p = &c->cudas; *p && *p != cuda; p = &(*p)->next)
		;
	if (*p)
		*p = cuda->next;
	pthread_mutex_unlock(&c->cuda_lock);
}

/* No thread is running, and nobody finds it. */
static void cuda_free(struct kvp_cuda *cuda)
{
	struct CUctx_st *mine;
	struct arrival *a;

	/* Also where the device is lost: then the driver refuses all, and what is ours is freed. */
	if (cuda->ctx) {
		int pushed = cuda->cu.cuCtxPushCurrent_v2(cuda->ctx) == CU_OK;

		for (uint32_t i = 0; i < CUDA_LANES; i++)
			if (kvp_load_relaxed(&cuda->lanes[i]))
				lane_drop(cuda, i);
		windows_free(cuda);
		stage_close(cuda);
		if (cuda->module)
			(void)cuda->cu.cuModuleUnload(cuda->module);
		if (cuda->words)
			(void)cuda->cu.cuMemFreeHost(cuda->words);
		if (pushed)
			(void)cuda->cu.cuCtxPopCurrent_v2(&mine);
	}
	while ((a = cuda->arrivals)) {
		cuda->arrivals = a->next;
		close(a->fd);
		free(a);
	}
	if (cuda->work.kick >= 0)
		close(cuda->work.kick);
	if (cuda->watch.kick >= 0)
		close(cuda->watch.kick);
	pthread_mutex_destroy(&cuda->lock);
	pthread_mutex_destroy(&cuda->stage_lock);
	pthread_cond_destroy(&cuda->changed);
	/* The driver's library stays: the caller, and its context, use it too. */
	free(cuda);
}

static int cuda_init(struct kvp_cuda *cuda)
{
	pthread_condattr_t attr;

	cuda->work.kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	cuda->watch.kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (cuda->work.kick < 0 || cuda->watch.kick < 0)
		return -errno;
	if (pthread_mutex_init(&cuda->lock, NULL) || pthread_mutex_init(&cuda->stage_lock, NULL) ||
		pthread_condattr_init(&attr))
		return -ENOMEM;
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (pthread_cond_init(&cuda->changed, &attr))
		return -ENOMEM;
	pthread_condattr_destroy(&attr);
	return 0;
}

static int cuda_start(struct kvp_cuda *cuda, const struct kvp_cuda_opts *o)
{
	int r = cuda_init(cuda);

	if (r == 0)
		r = driver_open(cuda, o);
	if (r == 0)
		r = device_open(cuda, o);
	if (r == 0)
		r = list_add(cuda);
	if (r < 0)
		return r;
	/* Descriptors that came before it stood in the list went to nobody: asked for once more. */
	for (uint32_t i = 0; i < CUDA_LANES; i++)
		if (kvp_load_relaxed(&cuda->lanes[i]))
			maps_want(cuda, kvp_load_relaxed(&cuda->lanes[i]));
	r = thread_start(watch_thread, cuda, &cuda->watcher);
	if (r == 0) {
		r = thread_start(cuda_thread, cuda, &cuda->thread);
		if (r < 0)
			watch_stop(cuda);
	}
	if (r < 0)
		list_remove(cuda);
	return r;
}

int kvp_cuda_open(
	struct kvp_client *client, const struct kvp_cuda_opts *opts, struct kvp_cuda **ret_cuda)
{
	struct kvp_cuda_opts o;
	struct kvp_open_opts tell;
	struct kvp_cuda *cuda;
	int r;

	if (!client || !ret_cuda || opts_take(&o, sizeof(o), opts) < 0 || o.flags ||
		o.stage_bytes % 4096)
		return -EINVAL;
	if (!client_mine(client))
		return -ECHILD;
	tell = (struct kvp_open_opts){ .error = o.error, .error_bytes = o.error_bytes };
	tell_why(&tell, "", 0);
	cuda = aligned_alloc(64, (sizeof(*cuda) + 63) / 64 * 64);
	if (!cuda)
		return -ENOMEM;
	memset(cuda, 0, sizeof(*cuda));
	cuda->client = client;
	cuda->timeout_ms = o.timeout_ms ? o.timeout_ms : KVP_DEFAULT_TIMEOUT;
	cuda->work.kick = cuda->watch.kick = -1;
	r = cuda_start(cuda, &o);
	if (r < 0) {
		if (o.error && o.error_bytes && !o.error[0])
			tell_why(&tell, "", r);
		cuda_free(cuda);
		return r;
	}
	(void)wait_settled(cuda, deadline_of(client, cuda->timeout_ms));
	*ret_cuda = cuda;
	return 0;
}

/* The caller's streams have come to their end: what they have not written they never will. */
static void timelines_leave(struct kvp_cuda *cuda)
{
	struct kvp_client *c = cuda->client;

	pthread_mutex_lock(&c->ring_lock);
	for (uint32_t i = 0; i < KVP_TIMELINES; i++) {
		struct kvp_timeline *t = &c->timelines[i];

		if (t->cuda != cuda)
			continue;
		if (kvp_load_relaxed(&t->kind) == LINE_STREAM)
			cuda_look(t);
		kvp_store_release(&t->kind,
			kvp_load_relaxed(&t->reached) < t->base + kvp_load_relaxed(&t->marked)
				? LINE_BROKEN
				: LINE_HOST);
		t->cuda = NULL;
	}
	pthread_mutex_unlock(&c->ring_lock);
}

struct kvp_cuda *kvp_cuda_close(struct kvp_cuda *cuda)
{
	if (cuda_usable(cuda) < 0)
		return NULL;
	list_remove(cuda);
	waits_end(cuda);
	watch_stop(cuda);
	(void)!write(cuda->work.kick, &(uint64_t){ 1 }, 8);
	pthread_join(cuda->thread, NULL);
	timelines_leave(cuda);
	cuda_free(cuda);
	return NULL;
}

void cudas_close(struct kvp_client *c)
{
	while (c->cudas)
		kvp_cuda_close(c->cudas);
}

int kvp_cuda_info(struct kvp_cuda *cuda, struct kvp_cuda_props *ret_props)
{
	struct kvp_cuda_props p = { .device = KVP_CUDA_NO_DEVICE };
	int r = cuda_usable(cuda);
	struct attachment *att;
	struct lane *l;

	if (r < 0 || !ret_props)
		return r < 0 ? r : -EINVAL;
	pthread_mutex_lock(&cuda->client->ring_lock);
	att = kvp_load_seq(&cuda->client->att);
	l = att ? lane_of(cuda, att) : NULL;
	if (l)
		p.device = lane_device(cuda, l);
	pthread_mutex_unlock(&cuda->client->ring_lock);
	pthread_mutex_lock(&cuda->client->cuda_lock);
	p.registered_bytes = cuda->client->registered_bytes;
	p.refused_bytes = cuda->client->refused_bytes;
	pthread_mutex_unlock(&cuda->client->cuda_lock);
	pthread_mutex_lock(&cuda->lock);
	p.mapped_bytes = cuda->mapped_bytes;
	p.reads_guarded = !cuda->unguarded;
	pthread_mutex_unlock(&cuda->lock);
	memcpy(p.uuid, cuda->uuid, sizeof(p.uuid));
	p.stream_words = cuda->words_work;
	p.stage_bytes = cuda->stage_bytes;
	p.direct_bytes = kvp_load_relaxed(&cuda->direct_bytes);
	p.staged_bytes = kvp_load_relaxed(&cuda->staged_bytes);
	p.placed_bytes = kvp_load_relaxed(&cuda->placed_bytes);
	p.displaced_blocks = kvp_load_relaxed(&cuda->displaced);
	p.driver_error = kvp_load_relaxed(&cuda->driver_error);
	return result_give(ret_props, &p, sizeof(p));
}

int kvp_host_register(struct kvp_cuda *cuda, uint64_t max_bytes, uint32_t timeout_ms)
{
	int r = cuda_usable(cuda);
	uint64_t deadline;

	if (r < 0)
		return r;
	if (!cuda->registers)
		return -EOPNOTSUPP;
	deadline = deadline_of(cuda->client, timeout_ms);
	pthread_mutex_lock(&cuda->client->cuda_lock);
	cuda->client->register_max = max_bytes ? max_bytes : UINT64_MAX;
	pthread_mutex_unlock(&cuda->client->cuda_lock);
	cuda_notice(cuda->client); /* another device's thread may be the one that does it */
	return wait_settled(cuda, deadline);
}
