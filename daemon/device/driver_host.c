/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver without a device: segments are sealed memfds of this machine's memory, and threads for
 * each way copy. For engines on the CPU, and for tests.
 */
#include "daemon/device/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/device/device.h"
#include "daemon/device/populate.h"
#include "shm/kvp_catalog.h"
#include "shm/kvp_seg.h"

#define MAX_THREADS 16u
/* That one thread copies before it looks again; caches hold it. */
#define CHUNK (UINT64_C(256) << 10)
/* A processor copies them in less than a millisecond. */
#define BATCH_BYTES (UINT64_C(2) << 20)
#define PAGE        UINT64_C(4096)

struct piece {
	char *dst;
	const char *src;
	uint64_t bytes;
};

struct batch {
	uint64_t id;
	uint64_t began_ns;
	uint32_t n;
	uint32_t at;      /* the piece that is being handed out */
	uint64_t off;     /* in it */
	uint32_t running; /* chunks */
	bool used;
	bool sums; /* its one piece, a chunk at a time and in order */
	struct kvp_summing *summing;
	struct piece piece[KVPD_DRIVER_BATCH];
};

struct way {
	struct kvpd_driver *d;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	pthread_t thread[MAX_THREADS];
	uint32_t n_threads;
	bool stop;
	struct batch batch[KVPD_DRIVER_FLIGHT];
	struct kvpd_done done[KVPD_DRIVER_FLIGHT]; /* polled by nobody yet */
	uint32_t n_done;
};

struct area {
	char *addr;
	uint64_t bytes;
};

struct kvpd_driver {
	uint64_t bytes, used;
	int event;
	/* A segment in the making. */
	struct {
		uint32_t id;
		int fd; /* -1: none */
		void *addr;
		uint64_t bytes, at;
	} making;
	struct way way[KVPD_WAYS];
	struct area seg[KVPD_DEVICE_SEGS];
	struct area host[KVPD_DEVICE_SEGS];
};

/* ---- threads that copy ---------------------------------------------------------------------- */

static struct batch *to_begin(struct way *w)
{
	struct batch *first = NULL;

	for (uint32_t i = 0; i < KVPD_DRIVER_FLIGHT; i++) {
		struct batch *b = &w->batch[i];

		if (b->used && b->at < b->n && !(b->sums && b->running) &&
			(!first || b->began_ns < first->began_ns))
			first = b;
	}
	return first;
}

static void batch_done(struct way *w, struct batch *b)
{
	b->used = false;
	w->done[w->n_done++] = (struct kvpd_done){
		.batch = b->id,
		.ns = kvpd_now_ns() - b->began_ns,
		.sum = b->sums ? kvp_summing_end(b->summing) : 0,
	};
	(void)eventfd_write(w->d->event, 1);
}

/* Under the lock, which it gives away while it copies. */
static void copy_chunk(struct way *w, struct batch *b)
{
	struct piece p = b->piece[b->at];
	uint64_t off = b->off;
	uint64_t n = p.bytes - off < CHUNK ? p.bytes - off : CHUNK;

	b->off += n;
	if (b->off == p.bytes) {
		b->off = 0;
		b->at++;
	}
	b->running++;
	pthread_mutex_unlock(&w->lock);
	/*
	 * The C library chooses the stores by the machine: streaming ones of 16 bytes, written out here,
	 * took 1.4 times as long (kvbench device copy).
	 */
	memcpy(p.dst + off, p.src + off, n);
	if (b->sums)
		kvp_summing_add(b->summing, p.dst + off, n);
	pthread_mutex_lock(&w->lock);
	if (--b->running == 0 && b->at == b->n)
		batch_done(w, b);
}

static void *copier(void *arg)
{
	struct way *w = arg;
	struct batch *b;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		b = to_begin(w);
		if (b)
			copy_chunk(w, b);
		else if (w->stop)
			break;
		else
			pthread_cond_wait(&w->cond, &w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int way_start(struct way *w, struct kvpd_driver *d, uint32_t threads)
{
	w->d = d;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->cond, NULL);
	for (uint32_t i = 0; i < KVPD_DRIVER_FLIGHT; i++) {
		w->batch[i].summing = kvp_summing_new();
		if (!w->batch[i].summing)
			return -ENOMEM;
	}
	for (; w->n_threads < threads; w->n_threads++) {
		int r = -pthread_create(&w->thread[w->n_threads], NULL, copier, w);

		if (r)
			return r;
		(void)pthread_setname_np(w->thread[w->n_threads],
			w == &d->way[KVPD_TO_DEVICE] ? "kvpool-to-dev" : "kvpool-to-host");
	}
	return 0;
}

static void way_stop(struct way *w)
{
	if (!w->d)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->cond);
	pthread_mutex_unlock(&w->lock);
	for (uint32_t i = 0; i < w->n_threads; i++)
		pthread_join(w->thread[i], NULL);
	for (uint32_t i = 0; i < KVPD_DRIVER_FLIGHT; i++)
		w->batch[i].summing = kvp_summing_free(w->batch[i].summing);
	pthread_cond_destroy(&w->cond);
	pthread_mutex_destroy(&w->lock);
}

/* ---- opening -------------------------------------------------------------------------------- */

static void making_end(struct kvpd_driver *d)
{
	kvp_seg_unmap(d->making.addr, d->making.bytes);
	if (d->making.fd >= 0)
		close(d->making.fd);
	d->making.addr = NULL;
	d->making.fd = -1;
}

static struct kvpd_driver *host_close(struct kvpd_driver *d)
{
	if (!d)
		return NULL;
	for (uint32_t i = 0; i < KVPD_WAYS; i++)
		way_stop(&d->way[i]);
	making_end(d);
	for (uint32_t i = 0; i < KVPD_DEVICE_SEGS; i++)
		kvp_seg_unmap(d->seg[i].addr, d->seg[i].bytes);
	if (d->event >= 0)
		close(d->event);
	free(d);
	return NULL;
}

static int host_open(const struct kvpd_driver_opts *opts, struct kvpd_driver **ret_driver)
{
	struct kvpd_driver *d;
	int r = 0;

	if (!opts->bytes || !opts->threads || opts->threads > MAX_THREADS)
		return -EINVAL;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->making.fd = -1;
	d->bytes = opts->bytes;
	d->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->event < 0)
		r = -errno;
	for (uint32_t i = 0; r == 0 && i < KVPD_WAYS; i++)
		r = way_start(&d->way[i], d, opts->threads);
	if (r < 0) {
		host_close(d);
		return r;
	}
	*ret_driver = d;
	return 0;
}

static int host_caps(struct kvpd_driver *d, struct kvpd_driver_caps *ret_caps)
{
	*ret_caps = (struct kvpd_driver_caps){
		.bytes = d->bytes,
		.batch = BATCH_BYTES,
		.granularity = PAGE,
		.flags = KVPD_DRIVER_READABLE,
		.numa_node = -1,
	};
	return 0;
}

/* ---- segments ------------------------------------------------------------------------------- */

#define MAP_FLAGS (KVP_MAP_WRITE | KVP_MAP_DONTFORK | KVP_MAP_DONTDUMP | KVP_MAP_HUGEPAGE)

static int making_begin(struct kvpd_driver *d, uint32_t id, uint64_t bytes)
{
	int r;

	if (!bytes || bytes % PAGE)
		return -EINVAL;
	if (bytes > d->bytes - d->used)
		return -ENOMEM;
	r = kvp_seg_create("kvpool-device", bytes, 0, &d->making.fd);
	if (r < 0)
		return r;
	d->making.id = id;
	d->making.bytes = bytes;
	d->making.at = 0;
	return kvp_seg_map(d->making.fd, bytes, MAP_FLAGS, &d->making.addr);
}

/* Fresh pages of a memfd are zero: the kernel clears them while they are brought in. */
static int host_seg_make(struct kvpd_driver *d, uint32_t id, uint64_t bytes, int *ret_fd)
{
	int r = 0;

	if (d->making.fd >= 0 && (d->making.id != id || d->making.bytes != bytes))
		making_end(d);
	if (d->making.fd < 0)
		r = making_begin(d, id, bytes);
	if (r == 0)
		r = kvpd_populate(d->making.addr, bytes, true, &d->making.at);
	if (r == 0)
		r = kvp_seg_seal(d->making.fd, KVP_SEALS_FIXED);
	if (r == -EAGAIN)
		return r;
	if (r < 0) {
		making_end(d);
		return r;
	}
	d->seg[id] = (struct area){ d->making.addr, bytes };
	d->used += bytes;
	d->making.addr = NULL;
	*ret_fd = kvp_take_fd(&d->making.fd);
	return 0;
}

/* What a client writes is sealed against new writers, also this one. */
static uint32_t take_flags(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)
		       ? MAP_FLAGS & ~KVP_MAP_WRITE
		       : MAP_FLAGS;
}

static int host_seg_take(struct kvpd_driver *d, uint32_t id, uint64_t bytes, int fd)
{
	void *addr;
	int r = kvp_seg_check(fd, bytes, KVP_SEALS_FIXED);

	if (r < 0)
		return r;
	if (bytes > d->bytes - d->used)
		return -ENOMEM;
	r = kvp_seg_map(fd, bytes, take_flags(fd), &addr);
	if (r < 0)
		return r;
	d->seg[id] = (struct area){ addr, bytes };
	d->used += bytes;
	return 0;
}

static void host_seg_drop(struct kvpd_driver *d, uint32_t id)
{
	kvp_seg_unmap(d->seg[id].addr, d->seg[id].bytes);
	d->used -= d->seg[id].bytes;
	d->seg[id] = (struct area){ 0 };
}

char *kvpd_host_seg_addr(struct kvpd_driver *d, uint32_t id)
{
	return d->seg[id].addr;
}

static int host_seg_sum(
	struct kvpd_driver *d, uint32_t id, uint64_t off, uint64_t bytes, uint64_t *ret_sum)
{
	*ret_sum = kvp_payload_checksum(kvpd_host_seg_addr(d, id) + off, bytes);
	return 0;
}

static int host_host_add(
	struct kvpd_driver *d, uint32_t id, void *addr, uint64_t bytes, uint32_t flags)
{
	(void)flags;
	d->host[id] = (struct area){ addr, bytes };
	return 0;
}

static int host_host_drop(struct kvpd_driver *d, uint32_t id)
{
	d->host[id] = (struct area){ 0 };
	return 0;
}

/* ---- copies --------------------------------------------------------------------------------- */

static void fill(struct kvpd_driver *d, uint32_t way, struct piece *p, const struct kvpd_copy *c)
{
	char *seg = d->seg[c->seg].addr + c->seg_off;
	char *host = d->host[c->host].addr + c->host_off;

	p->dst = way == KVPD_TO_DEVICE ? seg : host;
	p->src = way == KVPD_TO_DEVICE ? host : seg;
	p->bytes = c->bytes;
}

static int host_submit(struct kvpd_driver *d, uint32_t way, uint64_t batch,
	const struct kvpd_copy *copies, uint32_t n)
{
	struct way *w = &d->way[way];
	struct batch *b = NULL;
	uint32_t busy = 0;

	pthread_mutex_lock(&w->lock);
	for (uint32_t i = 0; i < KVPD_DRIVER_FLIGHT; i++) {
		busy += w->batch[i].used;
		if (!w->batch[i].used)
			b = &w->batch[i];
	}
	/* What is done and was not polled has its place in `done` still. */
	if (busy + w->n_done >= KVPD_DRIVER_FLIGHT)
		b = NULL;
	if (b) {
		for (uint32_t i = 0; i < n; i++)
			fill(d, way, &b->piece[i], &copies[i]);
		b->id = batch;
		b->n = n;
		b->at = 0;
		b->off = 0;
		b->running = 0;
		b->sums = copies[0].sum;
		if (b->sums)
			kvp_summing_begin(b->summing);
		b->began_ns = kvpd_now_ns();
		b->used = true;
		pthread_cond_broadcast(&w->cond);
	}
	pthread_mutex_unlock(&w->lock);
	return b ? 0 : -EAGAIN;
}

static int host_poll(struct kvpd_driver *d, struct kvpd_done *out, uint32_t max)
{
	uint32_t n = 0;
	eventfd_t value;

	(void)eventfd_read(d->event, &value);
	for (uint32_t i = 0; i < KVPD_WAYS; i++) {
		struct way *w = &d->way[i];

		pthread_mutex_lock(&w->lock);
		while (w->n_done && n < max) {
			out[n++] = w->done[0];
			w->n_done--;
			memmove(w->done, w->done + 1, w->n_done * sizeof(w->done[0]));
		}
		if (w->n_done)
			(void)eventfd_write(d->event, 1);
		pthread_mutex_unlock(&w->lock);
	}
	return (int)n;
}

static int host_event(struct kvpd_driver *d)
{
	return d->event;
}

static int host_usage(struct kvpd_driver *d, struct kvpd_driver_usage *ret_usage)
{
	*ret_usage = (struct kvpd_driver_usage){ d->bytes - d->used, d->bytes, KVPD_NO_FIGURE };
	return 0;
}

const struct kvpd_driver_ops kvpd_driver_host = {
	.name = "host",
	.open = host_open,
	.close = host_close,
	.caps = host_caps,
	.seg_make = host_seg_make,
	.seg_take = host_seg_take,
	.seg_drop = host_seg_drop,
	.seg_sum = host_seg_sum,
	.host_add = host_host_add,
	.host_drop = host_host_drop,
	.submit = host_submit,
	.poll = host_poll,
	.event = host_event,
	.usage = host_usage,
};
