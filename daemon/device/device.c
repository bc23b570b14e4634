/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side of a device: what is asked for is checked, handed to the thread, and handed back. */
#include "daemon/device/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/device/driver.h"
#include "daemon/device/state.h"
#include "daemon/slice.h"
#include "shm/kvp_proto.h"

#define TIMEOUT_MS 10000u
#define RESTART_MS 1000u

static void own_init(struct kvpd_owned *o)
{
	/* The lowest number is on top. */
	for (o->n_free = 0; o->n_free < KVPD_DEVICE_SEGS; o->n_free++)
		o->free[o->n_free] = (uint16_t)(KVPD_DEVICE_SEGS - 1 - o->n_free);
}

static void config_free(struct kvpd_device_config *c)
{
	free((char *)c->driver);
	free((char *)c->faults);
	free((char *)c->unit);
	free((char *)c->worker);
}

bool kvpd_device_driver_known(const char *driver)
{
	return kvpd_driver_find(driver);
}

bool kvpd_device_faults_valid(const char *faults)
{
	return kvpd_fault_rules_valid(faults);
}

/* Strings of one's own, defaults for zeros. */
static int config_copy(const struct kvpd_device_config *c, struct kvpd_device_config *ret)
{
	*ret = *c;
	ret->threads = c->threads ? c->threads : 1;
	ret->timeout_ms = c->timeout_ms ? c->timeout_ms : TIMEOUT_MS;
	ret->restart_ms = c->restart_ms ? c->restart_ms : RESTART_MS;
	ret->driver = strdup(c->driver);
	ret->worker = strdup(c->worker ? c->worker : KVPD_DEVICE_WORKER);
	ret->faults = c->faults ? strdup(c->faults) : NULL;
	ret->unit = c->unit ? strdup(c->unit) : NULL;
	if (ret->driver && ret->worker && (ret->faults || !c->faults) && (ret->unit || !c->unit))
		return 0;
	config_free(ret);
	return -ENOMEM;
}

static struct kvpd_device *free_all(struct kvpd_device *d)
{
	if (d->event >= 0)
		close(d->event);
	pthread_mutex_destroy(&d->lock);
	config_free(&d->config);
	free(d);
	return NULL;
}

int kvpd_device_new(const struct kvpd_device_config *config, struct kvpd_device **ret_device)
{
	char name[16] = "kvpool-dev-";
	struct kvpd_device *d;
	int r;

	if (!config->driver || !config->bytes || config->transport > KVPD_TRANSPORT_IPC ||
		!config->wake || !*config->name || !memchr(config->name, 0, sizeof(config->name)))
		return -EINVAL;
	if (!kvpd_driver_find(config->driver))
		return -ENOENT;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	r = config_copy(config, &d->config);
	if (r < 0) {
		free(d);
		return r;
	}
	kvpd_lock_init(&d->lock);
	TAILQ_INIT(&d->in_copies);
	TAILQ_INIT(&d->in_ops);
	TAILQ_INIT(&d->posted);
	TAILQ_INIT(&d->over);
	TAILQ_INIT(&d->ops);
	TAILQ_INIT(&d->to_sum);
	own_init(&d->own.seg);
	own_init(&d->own.host);
	kvpd_queue_init(&d->queue, config->copy_rate);
	d->figures.context = d->shown.context = KVPD_NO_FIGURE;
	d->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = d->event < 0 ? -errno : -pthread_create(&d->thread, NULL, kvpd_device_run, d);
	if (r < 0) {
		free_all(d);
		return r;
	}
	strncat(name, d->config.name, sizeof(name) - strlen(name) - 1);
	(void)pthread_setname_np(d->thread, name);
	*ret_device = d;
	return 0;
}

struct kvpd_device *kvpd_device_free(struct kvpd_device *device)
{
	if (!device)
		return NULL;
	pthread_mutex_lock(&device->lock);
	device->stop = true;
	pthread_mutex_unlock(&device->lock);
	(void)eventfd_write(device->event, 1);
	pthread_join(device->thread, NULL);
	while (kvpd_device_drain(device, UINT32_MAX))
		;
	return free_all(device);
}

uint32_t kvpd_device_state(const struct kvpd_device *device)
{
	return atomic_load_explicit(&device->state, memory_order_relaxed);
}

/* ---- away ----------------------------------------------------------------------------------- */

static void set_away(struct kvpd_device *d, bool away)
{
	pthread_mutex_lock(&d->lock);
	d->away = away;
	pthread_mutex_unlock(&d->lock);
	(void)eventfd_write(d->event, 1);
}

int kvpd_device_detach(struct kvpd_device *device)
{
	/* A number is taken from the question that makes it until the answer to its DROP. */
	if (device->own.seg.n_free < KVPD_DEVICE_SEGS || device->own.host.n_free < KVPD_DEVICE_SEGS)
		return -EBUSY;
	if (!device->away)
		set_away(device, true);
	return 0;
}

void kvpd_device_attach(struct kvpd_device *device)
{
	if (device->away)
		set_away(device, false);
}

uint32_t kvpd_device_import(const struct kvpd_device *device)
{
	uint32_t flags = atomic_load_explicit(&device->shown_flags, memory_order_relaxed);

	return flags & KVPD_DRIVER_READABLE  ? KVP_IMPORT_MEMFD
	       : flags & KVPD_DRIVER_HANDLES ? KVP_IMPORT_CUDA_IPC
					     : KVP_IMPORT_CUDA_FD;
}

uint32_t kvpd_device_losses(const struct kvpd_device *device)
{
	/* Acquire: who finds a new number finds the segments that it counts. */
	return atomic_load_explicit(&device->losses, memory_order_acquire);
}

bool kvpd_device_seg_lost(const struct kvpd_device *device, uint32_t seg)
{
	return atomic_load_explicit(&device->lost[seg], memory_order_relaxed);
}

uint32_t kvpd_device_doubts(const struct kvpd_device *device)
{
	/* Acquire: likewise. */
	return atomic_load_explicit(&device->doubts, memory_order_acquire);
}

bool kvpd_device_seg_doubted(const struct kvpd_device *device, uint32_t seg)
{
	return atomic_load_explicit(&device->doubted[seg], memory_order_relaxed);
}

void kvpd_device_judge(struct kvpd_device *device, uint32_t seg, uint32_t doubts, bool is_believed)
{
	pthread_mutex_lock(&device->lock);
	/* Those of an earlier time that nobody has seen count for nothing. */
	if (device->verdict_of != doubts)
		memset(device->verdict, 0, sizeof(device->verdict));
	device->verdict_of = doubts;
	device->verdict[seg] = is_believed ? KVPD_BELIEVED : KVPD_DISBELIEVED;
	device->n_verdicts++;
	pthread_mutex_unlock(&device->lock);
	(void)eventfd_write(device->event, 1);
}

/* ---- memory --------------------------------------------------------------------------------- */

static struct kvpd_owned *owned(struct kvpd_device *d, uint32_t kind)
{
	return kind == KVPD_SEG_MAKE || kind == KVPD_SEG_DROP ? &d->own.seg : &d->own.host;
}

static int check_op(struct kvpd_device *d, const struct kvpd_device_op *op)
{
	struct kvpd_owned *o;

	if (op->kind > KVPD_HOST_DROP || d->stop)
		return -EINVAL;
	o = owned(d, op->kind);
	if (op->kind == KVPD_SEG_DROP || op->kind == KVPD_HOST_DROP) {
		if (op->id >= KVPD_DEVICE_SEGS || !o->at[op->id].bytes)
			return -EINVAL;
		return o->at[op->id].uses ? -EBUSY : 0;
	}
	if (!op->bytes || op->bytes > INT64_MAX || (op->kind == KVPD_HOST_ADD && op->fd < 0))
		return -EINVAL;
	if (d->stop || d->away || kvpd_device_state(d) == KVPD_DEVICE_DOWN)
		return -ENODEV;
	return o->n_free ? 0 : -ENOSPC;
}

/* To the thread, which sleeps if it had nothing. */
static void hand_op(struct kvpd_device *d, struct kvpd_device_op *op)
{
	bool empty;

	pthread_mutex_lock(&d->lock);
	empty = TAILQ_EMPTY(&d->in_ops);
	TAILQ_INSERT_TAIL(&d->in_ops, &op->work, link);
	pthread_mutex_unlock(&d->lock);
	if (empty)
		(void)eventfd_write(d->event, 1);
}

int kvpd_device_ask(struct kvpd_device *device, struct kvpd_device_op *op)
{
	struct kvpd_owned *o;
	int r = check_op(device, op);

	if (r < 0)
		return r;
	o = owned(device, op->kind);
	if (op->kind == KVPD_SEG_MAKE || op->kind == KVPD_HOST_ADD)
		op->id = o->free[--o->n_free];
	else
		o->at[op->id].bytes = 0;
	if (op->kind == KVPD_SEG_MAKE)
		op->fd = -1;
	op->attempts = 0;
	op->work.status = 0;
	op->work.is_copy = false;
	hand_op(device, op);
	return 0;
}

/* ---- copies --------------------------------------------------------------------------------- */

static bool has_ends(const struct kvpd_device *d, const struct kvpd_device_copy *c)
{
	return c->bytes <= d->own.host.at[c->host].bytes &&
	       c->host_off <= d->own.host.at[c->host].bytes - c->bytes &&
	       (c->way == KVPD_TO_HOST ? d->own.host.at[c->host] : d->own.seg.at[c->seg]).writable;
}

static bool sums_only(const struct kvpd_device_copy *c)
{
	return c->way == KVPD_TO_HOST && c->flags & (KVPD_COPY_SUM | KVPD_COPY_CHECK);
}

static int check_copy(const struct kvpd_device *d, const struct kvpd_device_copy *c)
{
	if (c->way >= KVPD_WAYS || c->kind >= KVPD_COPY_KINDS || !c->tenant ||
		c->tenant > KVPD_MAX_TENANTS || c->seg >= KVPD_DEVICE_SEGS ||
		c->host >= KVPD_DEVICE_SEGS || !c->bytes || c->seg_off % 64 || c->host_off % 64)
		return -EINVAL;
	if (c->bytes > d->own.seg.at[c->seg].bytes ||
		c->seg_off > d->own.seg.at[c->seg].bytes - c->bytes)
		return -EINVAL;
	if (c->flags & KVPD_COPY_ONLY ? !sums_only(c) : !has_ends(d, c))
		return -EINVAL;
	if (d->config.no_copies)
		return -EOPNOTSUPP;
	if (kvpd_device_seg_lost(d, c->seg))
		return -ENODEV;
	return d->stop || d->away || kvpd_device_state(d) == KVPD_DEVICE_DOWN ? -ENODEV : 0;
}

int kvpd_device_copy(struct kvpd_device *device, struct kvpd_device_copy *copy)
{
	bool empty;
	int r = check_copy(device, copy);

	if (r < 0)
		return r;
	device->own.seg.at[copy->seg].uses++;
	if (!(copy->flags & KVPD_COPY_ONLY))
		device->own.host.at[copy->host].uses++;
	copy->work.status = 0;
	copy->work.is_copy = true;
	copy->late = false;
	copy->queued_ns = kvpd_now_ns();
	pthread_mutex_lock(&device->lock);
	empty = TAILQ_EMPTY(&device->in_copies);
	TAILQ_INSERT_TAIL(&device->in_copies, copy, q.age);
	pthread_mutex_unlock(&device->lock);
	if (empty)
		(void)eventfd_write(device->event, 1);
	return 0;
}

/* ---- what comes back ------------------------------------------------------------------------ */

static void back_op(struct kvpd_device *d, struct kvpd_device_op *op)
{
	struct kvpd_owned *o = owned(d, op->kind);
	const bool drop = op->kind == KVPD_SEG_DROP || op->kind == KVPD_HOST_DROP;

	if (drop || op->work.status < 0) {
		o->free[o->n_free++] = (uint16_t)op->id;
		return;
	}
	o->at[op->id].bytes = op->bytes;
	o->at[op->id].writable = op->kind == KVPD_SEG_MAKE ? !op->client : op->writable;
	o->at[op->id].uses = 0;
}

static void back_copy(struct kvpd_device *d, const struct kvpd_device_copy *c)
{
	d->own.seg.at[c->seg].uses--;
	if (!(c->flags & KVPD_COPY_ONLY))
		d->own.host.at[c->host].uses--;
}

uint32_t kvpd_device_drain(struct kvpd_device *device, uint32_t max)
{
	uint32_t n = 0;

	while (n < max) {
		struct kvpd_device_work *w;

		pthread_mutex_lock(&device->lock);
		w = TAILQ_FIRST(&device->posted);
		if (w)
			TAILQ_REMOVE(&device->posted, w, link);
		pthread_mutex_unlock(&device->lock);
		if (!w)
			break;
		if (w->is_copy)
			back_copy(device, (struct kvpd_device_copy *)(void *)w);
		else
			back_op(device, (struct kvpd_device_op *)(void *)w);
		n++;
		w->done(w);
	}
	return n;
}

void kvpd_device_figures(struct kvpd_device *device, struct kvpd_device_figures *ret_figures)
{
	const uint64_t now = kvpd_now_ns();

	pthread_mutex_lock(&device->lock);
	*ret_figures = device->shown;
	for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++) {
		uint64_t since = device->shown_oldest[k];

		ret_figures->kind[k].oldest_ns = since && now > since ? now - since : 0;
	}
	pthread_mutex_unlock(&device->lock);
	ret_figures->state = kvpd_device_state(device);
}
