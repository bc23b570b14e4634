/* SPDX-License-Identifier: Apache-2.0 */
/* Asking devices about memory. */
#include "daemon/ledger/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/pool.h"
#include "daemon/ledger/publish.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/warm.h"
#include "daemon/ledger/worker.h"
#include "shm/kvp_proto.h"
#include "shm/kvp_seg.h"

struct kvpd_segment {
	struct kvpd_device_op op;
	struct kvpd_job job; /* punches it before it is dropped */
	struct kvpd_extent *extent;
	uint32_t id;
	/*
	 * It has to be proven, when it goes, that nobody else has it: of an arena, which its client could
	 * write. But of memory of a GPU there is no proof; the driver gives it to nobody before it is free.
	 */
	bool proven;
	bool there; /* it is the device's, and was not asked to be dropped */
};

struct kvpd_hosting {
	struct kvpd_device_op op;
	struct kvpd_extent *extent;
	enum { AWAY, COMING, HERE, GOING } state;
	uint32_t id;
	bool writable;
	bool ahead; /* nobody waits for it: it may fail without a word */
	int error;  /* of the last ADD, to be told once */
};

static struct kvpd_device *device_of(const struct kvpd_tenant *t, uint32_t medium)
{
	return t->ledger->medium[medium - 1].device;
}

/* A question under way is a job of the tenant's. */
static int ask(struct kvpd_tenant *t, uint32_t medium, struct kvpd_device_op *op)
{
	struct kvpd_device *d = device_of(t, medium);
	int r = d ? kvpd_device_ask(d, op) : -ESHUTDOWN;

	if (r == 0)
		t->n_jobs++;
	return r;
}

static void answered(struct kvpd_tenant *t)
{
	kvpd_ledger_charge(t->ledger, t);
	t->changes++;
	t->n_jobs--;
}

/* ---- segments ------------------------------------------------------------------------------- */

static struct kvpd_segment *segment_of(struct kvpd_device_work *w)
{
	return kvpd_container(
		kvpd_container(w, struct kvpd_device_op, work), struct kvpd_segment, op);
}

bool kvpd_segment_lost(const struct kvpd_extent *x)
{
	const struct kvpd_device *d = device_of(x->tenant, x->cls->medium);

	return d && kvpd_segment_there(x) && kvpd_device_seg_lost(d, x->segment->id);
}

bool kvpd_segment_there(const struct kvpd_extent *x)
{
	return x->segment && x->segment->there;
}

uint32_t kvpd_segment_import(const struct kvpd_extent *x)
{
	const struct kvpd_device *d = device_of(x->tenant, x->cls->medium);

	return d ? kvpd_device_import(d) : 0;
}

uint32_t kvpd_segment_id(const struct kvpd_extent *x)
{
	return x->segment->id;
}

static void made(struct kvpd_device_work *w)
{
	struct kvpd_segment *s = segment_of(w);
	struct kvpd_extent *x = s->extent;

	answered(x->tenant);
	if (w->status == 0) {
		s->id = s->op.id;
		s->there = true;
		s->proven =
			x->kind == KVP_EXTENT_ARENA && kvpd_segment_import(x) == KVP_IMPORT_MEMFD;
		x->fd = s->proven ? fcntl(s->op.fd, F_DUPFD_CLOEXEC, 0) : s->op.fd;
	}
	if (w->status == 0 && x->fd < 0)
		kvpd_extent_unwanted(x);
	else
		kvpd_extent_made(x, w->status);
}

int kvpd_segment_make(struct kvpd_extent *x)
{
	int r = kvpd_medium_open(x->tenant->ledger, x->cls->medium);
	struct kvpd_segment *s = r == 0 ? calloc(1, sizeof(*s)) : NULL;

	if (!s)
		return r < 0 ? r : -ENOMEM;
	x->segment = s;
	s->extent = x;
	s->op.kind = KVPD_SEG_MAKE;
	s->op.bytes = x->bytes;
	s->op.client = x->kind == KVP_EXTENT_ARENA;
	s->op.work.done = made;
	r = ask(x->tenant, x->cls->medium, &s->op);
	if (r < 0) {
		free(s);
		x->segment = NULL;
	}
	return r;
}

/*
 * The device has let go of it: of an arena it remains to be proven that nobody else has it, as of one in
 * DRAM. The descriptor is a copy of the worker's, who has unmapped it or is dead by now.
 */
static void gone(struct kvpd_extent *x)
{
	if (x->fd < 0)
		kvpd_extent_dropped(x, 0);
	else if (kvpd_pool_drop(x) < 0)
		kvpd_extent_dropped(x, -EAGAIN);
}

static void dropped(struct kvpd_device_work *w)
{
	struct kvpd_extent *x = segment_of(w)->extent;

	answered(x->tenant);
	gone(x);
}

static void ask_to_drop(struct kvpd_extent *x)
{
	struct kvpd_segment *s = x->segment;

	s->there = false;
	s->op.kind = KVPD_SEG_DROP;
	s->op.id = s->id;
	s->op.work.done = dropped;
	if (ask(x->tenant, x->cls->medium, &s->op) < 0)
		gone(x); /* the device is gone, and its worker with it */
}

/* Whoever says falsely that he has unmapped it keeps no memory that nobody is charged for. */
static void run_punch(struct kvpd_job *job)
{
	const struct kvpd_extent *x = kvpd_container(job, struct kvpd_segment, job)->extent;

	/* With the device its descriptor went. */
	if (x->fd >= 0 && device_of(x->tenant, x->cls->medium))
		(void)fallocate(
			x->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)x->bytes);
}

static void done_punch(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct kvpd_segment *s = kvpd_container(job, struct kvpd_segment, job);
	struct kvpd_extent *x = s->extent;

	kvpd_ledger_charge(l, x->tenant);
	x->tenant->n_jobs--;
	x->fd = -1;
	ask_to_drop(x);
}

int kvpd_segment_drop(struct kvpd_extent *x)
{
	struct kvpd_tenant *t = x->tenant;

	if (x->segment->proven) {
		if (!x->segment->there)
			return kvpd_pool_drop(x); /* asked for before, and not proven then */
		ask_to_drop(x);
		return 0;
	}
	x->segment->job.tenant = t->id;
	x->segment->job.run = run_punch;
	x->segment->job.done = done_punch;
	t->n_jobs++;
	kvpd_worker_submit(&t->ledger->dropper, &x->segment->job);
	return 0;
}

void kvpd_segment_drop_now(struct kvpd_extent *x)
{
	if (x->segment && x->segment->proven && x->fd >= 0)
		close(x->fd);
	x->fd = -1; /* else the device's, and it was told */
}

/* ---- DRAM that takes part in copies --------------------------------------------------------- */

static struct kvpd_hosting *hosting_of(struct kvpd_device_work *w)
{
	return kvpd_container(
		kvpd_container(w, struct kvpd_device_op, work), struct kvpd_hosting, op);
}

uint32_t kvpd_host_id(const struct kvpd_extent *x, uint32_t medium)
{
	return x->hosting[medium - 1]->id;
}

/* The extent is to be let go: when no device knows it any more. */
static void leave_on(struct kvpd_extent *x)
{
	if (x->leaving && !kvpd_hosts_drop(x))
		kvpd_extent_let_go(x);
}

static void host_dropped(struct kvpd_device_work *w)
{
	struct kvpd_hosting *h = hosting_of(w);

	struct kvpd_tenant *t = h->extent->tenant;

	answered(t);
	h->state = AWAY;
	leave_on(h->extent);
	kvpd_warm_again(t);
}

static void host_added(struct kvpd_device_work *w)
{
	struct kvpd_hosting *h = hosting_of(w);
	struct kvpd_tenant *t = h->extent->tenant;

	answered(t);
	h->id = h->op.id;
	h->state = w->status < 0 ? AWAY : HERE;
	h->error = h->ahead ? 0 : w->status;
	leave_on(h->extent);
	kvpd_warm_again(t);
}

int kvpd_host_want(struct kvpd_extent *x, uint32_t medium, bool writable)
{
	struct kvpd_hosting *h = x->hosting[medium - 1];
	int fd, r;

	if (!h) {
		x->hosting[medium - 1] = h = calloc(1, sizeof(*h));
		if (!h)
			return -ENOMEM;
		h->extent = x;
	}
	h->ahead = false;
	/* It is told anew, when no copy names it. */
	if (h->state == HERE && writable && !h->writable)
		(void)kvpd_host_leave(x, medium);
	if (h->state != AWAY)
		return h->state == HERE && (h->writable || !writable);
	r = h->error;
	h->error = 0;
	if (r < 0)
		return r;
	/* An open file of its own, as kvp_seg_unused() wants it. */
	r = writable ? kvp_seg_reopen_rw(x->fd, &fd) : kvp_seg_reopen_ro(x->fd, &fd);
	if (r < 0)
		return r;
	h->writable = writable;
	h->op = (struct kvpd_device_op){
		.work.done = host_added,
		.kind = KVPD_HOST_ADD,
		.bytes = x->bytes,
		.fd = fd,
		.writable = writable,
		.pin = x->kind == KVP_EXTENT_VAULT,
	};
	r = ask(x->tenant, medium, &h->op);
	if (r < 0) {
		close(fd);
		return r;
	}
	h->state = COMING;
	return 0;
}

void kvpd_hosts_want(struct kvpd_extent *x)
{
	const struct kvpd_ledger *l = x->tenant->ledger;

	if (x->cls->medium != KVPD_DRAM || x->kind != KVP_EXTENT_VAULT)
		return;
	for (uint32_t m = 1; m <= l->n_media; m++)
		if (x->tenant->part[m - 1].share && kvpd_medium_pins(&l->medium[m - 1]) &&
			kvpd_medium_open(l, m) == 0 && kvpd_host_want(x, m, true) == 0)
			x->hosting[m - 1]->ahead = true;
}

bool kvpd_host_leave(struct kvpd_extent *x, uint32_t medium)
{
	struct kvpd_hosting *h = x->hosting[medium - 1];

	if (h && h->state == HERE) {
		h->op = (struct kvpd_device_op){
			.work.done = host_dropped,
			.kind = KVPD_HOST_DROP,
			.id = h->id,
		};
		h->state = ask(x->tenant, medium, &h->op) < 0 ? HERE : GOING;
	}
	return h && h->state != AWAY;
}

bool kvpd_hosts_drop(struct kvpd_extent *x)
{
	bool waits = false;

	for (uint32_t i = 0; i < x->tenant->ledger->n_media; i++) {
		struct kvpd_hosting *h = x->hosting[i];

		if (h && h->state == HERE) {
			h->op = (struct kvpd_device_op){
				.work.done = host_dropped,
				.kind = KVPD_HOST_DROP,
				.id = h->id,
			};
			h->state = ask(x->tenant, i + 1, &h->op) < 0 ? AWAY : GOING;
		}
		waits = waits || (h && h->state != AWAY);
	}
	x->leaving = waits;
	return waits;
}

/* ---- the tenant's end ----------------------------------------------------------------------- */

static void forget(struct kvpd_device_work *w)
{
	free(kvpd_container(w, struct kvpd_device_op, work));
}

/* Without memory for the question the device keeps it until the daemon's end. */
static void ask_in_passing(struct kvpd_device *d, uint32_t kind, uint32_t id)
{
	struct kvpd_device_op *op = d ? calloc(1, sizeof(*op)) : NULL;

	if (!op)
		return;
	op->kind = kind;
	op->id = id;
	op->work.done = forget;
	if (kvpd_device_ask(d, op) < 0)
		free(op);
}

void kvpd_segment_leave(struct kvpd_extent *x)
{
	if (x->segment && x->segment->there)
		ask_in_passing(device_of(x->tenant, x->cls->medium), KVPD_SEG_DROP, x->segment->id);
	for (uint32_t i = 0; i < x->tenant->ledger->n_media; i++) {
		struct kvpd_hosting *h = x->hosting[i];

		if (h && h->state == HERE)
			ask_in_passing(device_of(x->tenant, i + 1), KVPD_HOST_DROP, h->id);
		if (h)
			h->state = AWAY;
	}
}
