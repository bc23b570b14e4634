/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinning DRAM for a GPU, on a thread of its own: it runs at some GB/s and holds locks of the driver
 * meanwhile, so it goes in pieces. Copies use what is pinned by the time.
 */
#include <errno.h>

#include "daemon/device/cuda.h"

static uint64_t piece_bytes(const struct cuda_host *h, uint64_t at)
{
	return h->bytes - at < CUDA_PIN_PIECE ? h->bytes - at : CUDA_PIN_PIECE;
}

static int register_piece(struct kvpd_driver *d, struct cuda_host *h, uint64_t at)
{
	const unsigned int flags = h->writable ? 0 : CU_REG_READ_ONLY;

	return d->cu.cuMemHostRegister_v2(h->addr + at, piece_bytes(h, at), flags);
}

/* The next piece. An extent that cannot be pinned stays as far as it is. */
static void pin_one(struct kvpd_driver *d, struct cuda_host *h)
{
	uint64_t at = atomic_load_explicit(&h->pinned, memory_order_relaxed);
	int error = register_piece(d, h, at);

	if (error != CU_OK) {
		(void)kvpd_cuda_check(d, error);
		pthread_mutex_lock(&d->pinner.lock);
		h->pin = false;
		pthread_mutex_unlock(&d->pinner.lock);
		return;
	}
	/* Release: a copy that finds it pinned may hand it to the device. */
	atomic_store_explicit(&h->pinned, at + piece_bytes(h, at), memory_order_release);
}

static void unpin_all(struct kvpd_driver *d, struct cuda_host *h)
{
	uint64_t end = atomic_load_explicit(&h->pinned, memory_order_relaxed);

	for (uint64_t at = 0; at < end; at += CUDA_PIN_PIECE)
		(void)kvpd_cuda_check(d, d->cu.cuMemHostUnregister(h->addr + at));
	atomic_store_explicit(&h->pinned, 0, memory_order_relaxed);
}

/* The next extent with something to do, or KVPD_DEVICE_SEGS. Under the lock. */
static uint32_t choose(const struct kvpd_driver *d, bool *ret_pin)
{
	uint32_t found = KVPD_DEVICE_SEGS;

	for (uint32_t i = 0; i < KVPD_DEVICE_SEGS; i++) {
		const struct cuda_host *h = &d->host[i];
		uint64_t pinned = atomic_load_explicit(&h->pinned, memory_order_relaxed);

		if (!h->addr)
			continue;
		/* Somebody waits for those that go. */
		if (h->leave && pinned) {
			*ret_pin = false;
			return i;
		}
		if (found == KVPD_DEVICE_SEGS && h->pin && pinned < h->bytes)
			found = i;
	}
	*ret_pin = true;
	return found;
}

static void *pinner(void *arg)
{
	struct kvpd_driver *d = arg;
	struct cuda_pinner *p = &d->pinner;
	bool current = false;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		bool pin;
		uint32_t id = KVPD_DEVICE_SEGS;

		if (p->changed && d->ctx)
			id = choose(d, &pin);
		if (id == KVPD_DEVICE_SEGS) {
			p->changed = false;
			pthread_cond_wait(&p->cond, &p->lock);
			continue;
		}
		p->busy = id;
		pthread_mutex_unlock(&p->lock);
		if (!current)
			current = kvpd_cuda_check(d, d->cu.cuCtxSetCurrent(d->ctx)) == 0;
		if (pin)
			pin_one(d, &d->host[id]);
		else
			unpin_all(d, &d->host[id]);
		pthread_mutex_lock(&p->lock);
		p->busy = KVPD_DEVICE_SEGS;
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int kvpd_cuda_pin_start(struct kvpd_driver *d)
{
	int r;

	pthread_mutex_init(&d->pinner.lock, NULL);
	pthread_cond_init(&d->pinner.cond, NULL);
	d->pinner.busy = KVPD_DEVICE_SEGS;
	r = -pthread_create(&d->pinner.thread, NULL, pinner, d);
	d->pinner.started = r == 0;
	if (r == 0)
		(void)pthread_setname_np(d->pinner.thread, "kvpool-pin");
	return r;
}

void kvpd_cuda_pin_stop(struct kvpd_driver *d)
{
	if (!d->pinner.started)
		return;
	pthread_mutex_lock(&d->pinner.lock);
	d->pinner.stop = true;
	pthread_cond_signal(&d->pinner.cond);
	pthread_mutex_unlock(&d->pinner.lock);
	pthread_join(d->pinner.thread, NULL);
	pthread_cond_destroy(&d->pinner.cond);
	pthread_mutex_destroy(&d->pinner.lock);
	for (uint32_t i = 0; i < KVPD_DEVICE_SEGS; i++)
		if (d->host[i].addr)
			unpin_all(d, &d->host[i]);
}

void kvpd_cuda_pin(struct kvpd_driver *d, uint32_t id)
{
	pthread_mutex_lock(&d->pinner.lock);
	d->host[id].pin = true;
	d->pinner.changed = true;
	pthread_cond_signal(&d->pinner.cond);
	pthread_mutex_unlock(&d->pinner.lock);
}

int kvpd_cuda_unpin(struct kvpd_driver *d, uint32_t id)
{
	struct cuda_host *h = &d->host[id];
	int r = 0;

	pthread_mutex_lock(&d->pinner.lock);
	h->pin = false;
	h->leave = true;
	if (d->pinner.busy == id || atomic_load_explicit(&h->pinned, memory_order_relaxed)) {
		d->pinner.changed = true;
		pthread_cond_signal(&d->pinner.cond);
		r = -EAGAIN;
	} else {
		h->addr = NULL;
	}
	pthread_mutex_unlock(&d->pinner.lock);
	return r;
}
