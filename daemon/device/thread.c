/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of a device. It never waits for the worker but in poll(): every question, batch and sum
 * has a moment by which it has to be answered, and a worker that is late, says something that makes no
 * sense, or is gone, is ended and reaped before anybody hears that his work failed. One that does not end even so
 * is left: there is no other before it has gone, and the places that it may still write are lost.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/device/state.h"
#include "daemon/log.h"
#include "daemon/slice.h"
#include "shm/kvp_seg.h"

#define GRACE_MS       1000u
#define OWED_MS        500u
#define MAX_RESTART_MS 60000u
#define ATTEMPTS       2u /* workers that a question may cost, or what is doubted */
/* Bringing in memory takes its time: nanoseconds a byte, 100 MB/s. */
#define NS_PER_BYTE 10u
#define WINDOW_NS   UINT64_C(1000000000)
#define USAGE_NS    UINT64_C(5000000000) /* between two questions how much is free there */
#define JUDGE_MS    30000u

/* ---- work goes back ------------------------------------------------------------------------- */

/* Handed over by show(), together with the figures that count it. */
static void post(struct kvpd_device *d, struct kvpd_device_work *work, int status)
{
	work->status = status;
	TAILQ_INSERT_TAIL(&d->over, work, link);
}

static void copy_over(struct kvpd_device *d, struct kvpd_device_copy *c, int status)
{
	if (status < 0 && !(c->flags & KVPD_COPY_ONLY))
		d->figures.kind[c->kind].failed++;
	else if (!(c->flags & KVPD_COPY_ONLY))
		d->figures.kind[c->kind].done++;
	post(d, &c->work, status);
}

static void copy_summed(struct kvpd_device *d, struct kvpd_device_copy *c, uint64_t sum)
{
	const bool bad = c->flags & KVPD_COPY_CHECK && c->checksum != sum;

	d->figures.damaged += bad;
	if (!bad)
		c->checksum = sum;
	copy_over(d, c, bad ? -EBADMSG : 0);
}

/* The last of its pieces has come back, or it will not be sent. `sum`: of what arrived; 0: nobody knows. */
static void copy_settled(
	struct kvpd_device *d, struct kvpd_device_copy *c, uint64_t sum, uint64_t now)
{
	if (c->q.status < 0) {
		kvpd_queue_remove(&d->queue, c);
		copy_over(d, c, c->q.status);
		return;
	}
	c->copied_ns = now;
	if (sum)
		copy_summed(d, c, sum);
	else if (c->flags & (KVPD_COPY_SUM | KVPD_COPY_CHECK))
		TAILQ_INSERT_TAIL(&d->to_sum, c, q.age);
	else
		copy_over(d, c, 0);
}

/* The segment is in doubt no more. */
static void believe(struct kvpd_device *d, uint32_t id)
{
	if (!d->seg[id].doubted)
		return;
	d->seg[id].doubted = false;
	d->n_doubted--;
	atomic_store_explicit(&d->doubted[id], false, memory_order_relaxed);
}

static void op_over(struct kvpd_device *d, struct kvpd_device_op *op, int status)
{
	struct kvpd_held *h = op->kind <= KVPD_SEG_DROP ? &d->seg[op->id] : &d->host[op->id];
	const bool drop = op->kind == KVPD_SEG_DROP || op->kind == KVPD_HOST_DROP;

	if (drop || status < 0) {
		if (h->there && op->kind == KVPD_SEG_DROP) {
			believe(d, op->id);
			d->figures.segments--;
			d->figures.segment_bytes -= h->bytes;
		}
		if (h->there && h->fd >= 0)
			close(h->fd);
		if (!h->there && op->kind == KVPD_HOST_ADD)
			close(op->fd);
		*h = (struct kvpd_held){ .fd = -1 };
	}
	post(d, &op->work, status);
}

static struct kvpd_device_op *op_of(struct kvpd_device_work *work)
{
	return (struct kvpd_device_op *)(void *)work;
}

/* ---- losses --------------------------------------------------------------------------------- */

static void lose(struct kvpd_device *d, uint32_t id)
{
	believe(d, id);
	d->seg[id].lost = true;
	atomic_store_explicit(&d->lost[id], true, memory_order_relaxed);
	d->lose = true;
}

static void lose_all(struct kvpd_device *d)
{
	for (uint32_t i = 0; i < KVPD_DEVICE_SEGS; i++)
		if (d->seg[i].there && !d->seg[i].lost)
			lose(d, i);
}

static void doubt_all(struct kvpd_device *d)
{
	for (uint32_t i = 0; i < KVPD_DEVICE_SEGS; i++)
		if (d->seg[i].there && !d->seg[i].lost && !d->seg[i].doubted) {
			d->seg[i].doubted = true;
			d->n_doubted++;
			atomic_store_explicit(&d->doubted[i], true, memory_order_relaxed);
		}
}

static void lose_doubted(struct kvpd_device *d)
{
	for (uint32_t i = 0; i < KVPD_DEVICE_SEGS; i++)
		if (d->seg[i].doubted)
			lose(d, i);
}

/* Copies of what is lost are not for the new worker, which does not know it. */
static void tell_losses(struct kvpd_device *d)
{
	if (!d->lose)
		return;
	d->lose = false;
	for (uint32_t w = 0; w < KVPD_WAYS; w++)
		for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++) {
			struct kvpd_device_copy *c, *tmp;

			for (c = TAILQ_FIRST(&d->queue.way[w].kind[k].age); c; c = tmp) {
				tmp = TAILQ_NEXT(c, q.age);
				if (!d->seg[c->seg].lost)
					continue;
				kvpd_queue_remove(&d->queue, c);
				copy_over(d, c, -ENODEV);
			}
		}
	d->figures.losses++;
	kvpd_warning("device %s: what lay in its memory is lost", d->config.name);
	/* Release: with kvpd_device_losses(). */
	atomic_fetch_add_explicit(&d->losses, 1, memory_order_release);
	d->config.wake(d->config.ctx);
}

/* ---- the worker comes and goes -------------------------------------------------------------- */

static uint64_t until(const struct kvpd_device *d, uint64_t bytes)
{
	return kvpd_now_ns() + d->config.timeout_ms * KVPD_MS + bytes * NS_PER_BYTE;
}

static void set_state(struct kvpd_device *d, uint32_t state)
{
	if (atomic_exchange_explicit(&d->state, state, memory_order_relaxed) != state)
		d->config.wake(d->config.ctx);
}

/*
 * It sees its own device alone, loads no code before it is needed, and stays out of the server of MPS,
 * which would be one more process whose end costs everybody's memory.
 */
static int start_child(struct kvpd_device *d, char *const argv[])
{
	char visible[96];
	const char *set[] = { "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_MODULE_LOADING=LAZY", visible,
		d->config.mps ? NULL : "CUDA_MPS_PIPE_DIRECTORY=/nonexistent/kvpool", NULL };
	const char *nothing[] = { NULL };

	snprintf(visible, sizeof(visible), "CUDA_VISIBLE_DEVICES=%s",
		d->config.unit ? d->config.unit : "0");
	return kvpd_child_start(d->config.worker, argv,
		strcmp(d->config.driver, "cuda") ? nothing : set, &d->child);
}

static void start_worker(struct kvpd_device *d)
{
	char bytes[24], threads[16], life[16], transport[16];
	const struct kvpd_device_config *c = &d->config;
	char *argv[] = { (char *)"kvpool-device", (char *)c->driver, bytes, threads, life,
		transport, (char *)(c->no_copies ? "0" : "1"), (char *)(c->unit ? c->unit : ""),
		(char *)(c->faults ? c->faults : ""), NULL };
	int r;

	snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)d->config.bytes);
	snprintf(threads, sizeof(threads), "%u", d->config.threads);
	snprintf(life, sizeof(life), "%u", d->life);
	snprintf(transport, sizeof(transport), "%u", c->transport);
	r = start_child(d, argv);
	if (d->life++)
		d->figures.restarts++;
	d->greeted = false;
	d->taking = 0;
	d->usage_ns = 0;
	d->greet_until_ns = until(d, 0);
	if (r == 0 || r == -EBUSY)
		return;
	/* Each failure is said once, not at each attempt. */
	if (kvpd_device_state(d) != KVPD_DEVICE_DOWN)
		kvpd_err("device %s: cannot start %s: %s", d->config.name, d->config.worker,
			strerror(-r));
}

static void fail_flight(struct kvpd_device *d, struct kvpd_flight *f, uint64_t now)
{
	for (uint32_t i = 0; i < f->n; i++) {
		struct kvpd_device_copy *c = f->piece[i].copy;

		c->q.status = -EAGAIN;
		c->late |= !(d->driver_flags & KVPD_DRIVER_READABLE) || d->child.left;
		if (!--c->q.pieces)
			copy_settled(d, c, 0, now);
	}
	f->used = false;
}

static void fail_question(struct kvpd_device *d)
{
	struct kvpd_device_op *op = d->ask.op;

	d->ask.open = false;
	if (!op)
		return;
	/* What it would have dropped went with the worker. */
	if (op->kind == KVPD_SEG_DROP || op->kind == KVPD_HOST_DROP)
		op_over(d, op, 0);
	else if (++op->attempts < ATTEMPTS)
		TAILQ_INSERT_HEAD(&d->ops, &op->work, link);
	else
		op_over(d, op, -EIO);
}

/* Everything that waits for a device which does not come back. */
static void fail_waiting(struct kvpd_device *d, int status)
{
	struct kvpd_device_work *work, *tmp;
	struct kvpd_device_copy *c;

	for (uint32_t w = 0; w < KVPD_WAYS; w++)
		for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++)
			while ((c = TAILQ_FIRST(&d->queue.way[w].kind[k].age))) {
				kvpd_queue_remove(&d->queue, c);
				copy_over(d, c, status);
			}
	while ((c = TAILQ_FIRST(&d->to_sum))) {
		TAILQ_REMOVE(&d->to_sum, c, q.age);
		copy_over(d, c, status);
	}
	for (work = TAILQ_FIRST(&d->ops); work; work = tmp) {
		struct kvpd_device_op *op = op_of(work);

		tmp = TAILQ_NEXT(work, link);
		if (status == -ENODEV && (op->kind == KVPD_SEG_DROP || op->kind == KVPD_HOST_DROP))
			continue;
		TAILQ_REMOVE(&d->ops, work, link);
		op_over(d, op, status);
	}
}

/* `why`: NULL: it is being stopped. */
static void end_worker(struct kvpd_device *d, const char *why)
{
	const uint32_t before = kvpd_device_state(d);
	const uint64_t now = kvpd_now_ns();
	const bool had = d->child.pid;
	uint64_t wait = d->config.restart_ms;

	if (why) {
		snprintf(d->figures.why, sizeof(d->figures.why), "%.*s",
			(int)sizeof(d->figures.why) - 1, why);
		d->figures.why_ns = now;
	}

	d->judging = false;
	d->figures.free = d->figures.total = 0;
	d->figures.context = KVPD_NO_FIGURE;
	kvpd_child_end(&d->child, why ? 0 : GRACE_MS);
	if (d->child.left && had)
		kvpd_err("device %s: worker %d was killed and does not end; there is no other one "
			 "before it has",
			d->config.name, (int)d->child.left);
	for (uint32_t i = 0; i < KVPD_FLIGHTS; i++)
		if (d->flight[i].used)
			fail_flight(d, &d->flight[i], now);
	for (uint32_t i = 0; i < KVPD_SUMS; i++)
		if (d->sum[i].copy) {
			copy_over(d, d->sum[i].copy, -EAGAIN);
			d->sum[i].copy = NULL;
		}
	if (d->ask.open)
		fail_question(d);
	for (uint32_t i = 0; i < KVPD_DEVICE_SEGS; i++)
		d->seg[i].known = false;
	if (!why)
		return;
	/* The first is the one that cast the doubt; it may be what lies there that ends all others. */
	if (d->greeted && d->n_doubted && d->ended++ >= ATTEMPTS)
		lose_doubted(d);
	for (uint32_t i = 0; i < d->fails && wait < MAX_RESTART_MS; i++)
		wait *= 2;
	d->fails++;
	d->start_ns = now + (wait < MAX_RESTART_MS ? wait : MAX_RESTART_MS) * KVPD_MS;
	if (before == KVPD_DEVICE_UP) {
		set_state(d, KVPD_DEVICE_RESTART);
		kvpd_warning("device %s: the worker ended: %s; it is started again", d->config.name,
			why);
		return;
	}
	if (before != KVPD_DEVICE_DOWN)
		kvpd_err("device %s: down: %s", d->config.name, why);
	set_state(d, KVPD_DEVICE_DOWN);
	fail_waiting(d, -ENODEV);
}

/* False: it cannot be sent, and there is no worker any more. The socket has room for all that may be
 * under way: one that is full is not read. */
static bool say(
	struct kvpd_device *d, uint32_t type, uint32_t tag, const void *body, size_t len, int fd)
{
	int r = kvpd_p_send(d->child.sock, type, tag, body, len, fd);

	if (r == 0)
		return true;
	end_worker(d, r == -EAGAIN ? "it reads nothing" : strerror(-r));
	return false;
}

/* ---- questions ------------------------------------------------------------------------------ */

static bool ask(struct kvpd_device *d, uint32_t type, uint32_t id, const struct kvpd_held *h,
	struct kvpd_device_op *op)
{
	const struct kvpd_p_memory m = {
		.id = id,
		.flags = (h->writable ? KVPD_MEMORY_WRITABLE : 0) | (h->pin ? KVPD_MEMORY_PIN : 0),
		.bytes = h->bytes,
	};

	d->ask.open = true;
	d->ask.usage = false;
	d->ask.op = op;
	d->ask.tag++;
	d->ask.until_ns = until(d, h->bytes);
	return say(d, type, d->ask.tag, &m, sizeof(m), h->fd);
}

static void be_up(struct kvpd_device *d)
{
	d->judging = false;
	d->ended = 0;
	if (kvpd_device_state(d) == KVPD_DEVICE_UP)
		return;
	if (d->life > 1)
		kvpd_notice("device %s: up again", d->config.name);
	set_state(d, KVPD_DEVICE_UP);
}

static void want_verdicts(struct kvpd_device *d)
{
	if (d->judging)
		return;
	d->judging = true;
	d->judge_until_ns = kvpd_now_ns() + JUDGE_MS * KVPD_MS;
	kvpd_notice("device %s: a sample of what lies there is compared with its checksums",
		d->config.name);
	set_state(d, KVPD_DEVICE_RESTART);
	/* Release: with kvpd_device_doubts(). */
	atomic_fetch_add_explicit(&d->doubts, 1, memory_order_release);
	d->config.wake(d->config.ctx);
}

/* A new worker is told one piece of memory after another. False: there is more to tell. */
static bool take_over(struct kvpd_device *d)
{
	for (; d->taking < 2 * KVPD_DEVICE_SEGS; d->taking++) {
		const bool host = d->taking >= KVPD_DEVICE_SEGS;
		const uint32_t id = d->taking % KVPD_DEVICE_SEGS;
		const struct kvpd_held *h = host ? &d->host[id] : &d->seg[id];

		if (!h->there || h->lost)
			continue;
		if (!host && d->driver_flags & KVPD_DRIVER_HANDLES) {
			lose(d, id);
			continue;
		}
		d->taking++;
		(void)ask(d, host ? KVPD_P_HOST_ADD : KVPD_P_SEG_TAKE, id, h, NULL);
		return false;
	}
	tell_losses(d);
	if (d->n_doubted)
		want_verdicts(d);
	else
		be_up(d);
	return true;
}

static bool wants_usage(const struct kvpd_device *d)
{
	return kvpd_device_state(d) == KVPD_DEVICE_UP && !d->ask.open && TAILQ_EMPTY(&d->ops);
}

/* ---- memory that the driver does not have though the books say so ---- */

static uint64_t books_free(const struct kvpd_device *d)
{
	const uint64_t taken = d->figures.segment_bytes;

	return taken < d->config.bytes ? d->config.bytes - taken : 0;
}

/* A segment was made, or refused although there should be room. */
static void owed(struct kvpd_device *d, const struct kvpd_device_op *op, int status)
{
	if (status == 0)
		d->figures.owed_bytes = 0;
	else if (status == -ENOMEM && op->bytes <= books_free(d)) {
		if (!d->figures.owed_bytes)
			d->figures.owed_bytes = op->bytes;
		d->usage_ns = kvpd_now_ns();
	}
}

static void got_usage(struct kvpd_device *d, const struct kvpd_p_answer *a)
{
	const uint64_t books = books_free(d);

	d->figures.free = a->status < 0 ? 0 : a->free;
	d->figures.total = a->status < 0 ? 0 : a->total;
	d->figures.context = a->status < 0 ? KVPD_NO_FIGURE : a->context;
	if (a->status == 0 && a->total && d->figures.owed_bytes)
		d->figures.owed_bytes = books > a->free ? books - a->free : 0;
}

/* For figures alone: when nothing else is asked. */
static void ask_usage(struct kvpd_device *d)
{
	const uint64_t now = kvpd_now_ns();

	if (now < d->usage_ns)
		return;
	d->usage_ns = now + (d->figures.owed_bytes ? OWED_MS * KVPD_MS : USAGE_NS);
	d->ask.open = d->ask.usage = true;
	d->ask.op = NULL;
	d->ask.tag++;
	d->ask.until_ns = until(d, 0);
	(void)say(d, KVPD_P_USAGE, d->ask.tag, NULL, 0, -1);
}

/* What was lost with a worker no other one has, and nobody is asked to drop it. But one that a verdict took has it. */
static void drop_lost(struct kvpd_device *d)
{
	struct kvpd_device_op *op;

	while (!TAILQ_EMPTY(&d->ops)) {
		op = op_of(TAILQ_FIRST(&d->ops));
		if (op->kind != KVPD_SEG_DROP || !d->seg[op->id].lost || d->seg[op->id].known)
			return;
		TAILQ_REMOVE(&d->ops, &op->work, link);
		op_over(d, op, 0);
	}
}

static void ask_next(struct kvpd_device *d)
{
	static const uint32_t type[] = {
		[KVPD_SEG_MAKE] = KVPD_P_SEG_MAKE,
		[KVPD_SEG_DROP] = KVPD_P_SEG_DROP,
		[KVPD_HOST_ADD] = KVPD_P_HOST_ADD,
		[KVPD_HOST_DROP] = KVPD_P_HOST_DROP,
	};
	struct kvpd_device_op *op;

	if (d->ask.open || !d->child.pid || !d->greeted || !take_over(d))
		return;
	drop_lost(d);
	if (TAILQ_EMPTY(&d->ops)) {
		ask_usage(d);
		return;
	}
	op = op_of(TAILQ_FIRST(&d->ops));
	TAILQ_REMOVE(&d->ops, &op->work, link);
	(void)ask(d, type[op->kind], op->id,
		&(struct kvpd_held){
			.fd = op->kind == KVPD_HOST_ADD ? op->fd : -1,
			.writable = op->kind == KVPD_HOST_ADD && op->writable,
			.pin = op->kind == KVPD_HOST_ADD && op->pin,
			.bytes = op->kind == KVPD_SEG_MAKE || op->kind == KVPD_HOST_ADD ? op->bytes
											: 0,
		},
		op);
}

/* Without a worker there is nobody to tell: the memory is let go. */
static void drop_waiting(struct kvpd_device *d)
{
	struct kvpd_device_work *work, *tmp;

	for (work = TAILQ_FIRST(&d->ops); work; work = tmp) {
		struct kvpd_device_op *op = op_of(work);

		tmp = TAILQ_NEXT(work, link);
		if (op->kind == KVPD_SEG_DROP || op->kind == KVPD_HOST_DROP) {
			TAILQ_REMOVE(&d->ops, work, link);
			op_over(d, op, 0);
		}
	}
}

static void keep(struct kvpd_device *d, struct kvpd_device_op *op, struct kvpd_p *p)
{
	const struct kvpd_held h = {
		.fd = op->kind == KVPD_SEG_MAKE ? kvp_take_fd(&p->fd) : op->fd,
		.there = true,
		.known = op->kind == KVPD_SEG_MAKE,
		.writable = op->kind == KVPD_HOST_ADD && op->writable,
		.pin = op->kind == KVPD_HOST_ADD && op->pin,
		.bytes = op->bytes,
	};

	if (op->kind == KVPD_SEG_MAKE) {
		op->fd = h.fd;
		d->seg[op->id] = h;
		atomic_store_explicit(&d->lost[op->id], false, memory_order_relaxed);
		d->figures.segments++;
		d->figures.segment_bytes += h.bytes;
	} else {
		d->host[op->id] = h;
	}
}

static int seal(int fd, const struct kvpd_device_op *op)
{
	const unsigned seals = op->client ? KVP_SEALS_FIXED : KVP_SEALS_VAULT;
	int r = kvp_seg_check(fd, op->bytes, KVP_SEALS_FIXED);

	if (r == 0 && !op->client)
		r = kvp_seg_seal(fd, seals);
	return r == 0 ? kvp_seg_check(fd, op->bytes, seals) : r;
}

/* What comes with a segment has to be what was asked for, whatever the worker says. */
static bool answer_ok(const struct kvpd_device *d, const struct kvpd_p *p)
{
	const struct kvpd_device_op *op = d->ask.op;
	const bool make = op && op->kind == KVPD_SEG_MAKE && !p->u.answer.status;

	if (!d->ask.open || p->h.tag != d->ask.tag)
		return false;
	if (!make)
		return p->fd < 0;
	if (d->driver_flags & KVPD_DRIVER_READABLE)
		return p->fd >= 0 && seal(p->fd, op) == 0;
	if (d->driver_flags & KVPD_DRIVER_HANDLES)
		return p->fd >= 0 && kvp_seg_check(p->fd, KVPD_HANDLE_MEMORY, KVP_SEALS_VAULT) == 0;
	return p->fd >= 0;
}

/* The last thing that was asked was to take over what stands before `taking`. */
static const char *got_taken(struct kvpd_device *d, int status)
{
	if (status == 0) {
		if (d->taking <= KVPD_DEVICE_SEGS)
			d->seg[d->taking - 1].known = true;
		return NULL;
	}
	/* A descriptor that the driver does not know any more names nothing. */
	if (d->taking <= KVPD_DEVICE_SEGS && !(d->driver_flags & KVPD_DRIVER_READABLE)) {
		lose(d, d->taking - 1);
		return NULL;
	}
	return "it cannot take over what another one made";
}

static const char *got_answer(struct kvpd_device *d, struct kvpd_p *p)
{
	struct kvpd_device_op *op = d->ask.op;
	const int status = p->u.answer.status;

	if (!answer_ok(d, p))
		return "an answer to nothing";
	d->ask.open = false;
	if (d->ask.usage) {
		got_usage(d, &p->u.answer);
		return NULL;
	}
	if (!op)
		return got_taken(d, status);
	d->fails = 0;
	/* It may have a context now, which alone can say. */
	if (!d->figures.total)
		d->usage_ns = 0;
	if (op->kind == KVPD_SEG_MAKE)
		owed(d, op, status);
	if (status == 0 && (op->kind == KVPD_SEG_MAKE || op->kind == KVPD_HOST_ADD)) {
		keep(d, op, p);
		post(d, &op->work, 0);
	} else {
		op_over(d, op,
			op->kind == KVPD_SEG_DROP || op->kind == KVPD_HOST_DROP ? 0 : status);
	}
	return NULL;
}

/* ---- copies --------------------------------------------------------------------------------- */

static bool send_batch(struct kvpd_device *d, struct kvpd_flight *f)
{
	struct kvpd_p_copy *out = &d->out;

	out->batch = f->batch;
	out->way = f->way;
	out->n = kvpd_queue_join(f->piece, f->n, out->copy);
	out->copy[0].sum = f->sums;
	d->figures.pieces += out->n;
	return say(d, KVPD_P_COPY, 0, out, kvpd_p_copy_len(out->n), -1);
}

static struct kvpd_flight *free_flight(struct kvpd_device *d, uint32_t way)
{
	struct kvpd_flight *f = NULL;
	uint32_t there = 0;

	for (uint32_t i = 0; i < KVPD_FLIGHTS; i++)
		if (!d->flight[i].used)
			f = &d->flight[i];
		else
			there += d->flight[i].way == way;
	return there < KVPD_DRIVER_FLIGHT ? f : NULL;
}

/*
 * A whole copy behind which nothing waits: then its sum is worked out piece by piece while it is copied, which is sooner
 * than to read it all again, and its end is the end. Otherwise the next copy is made meanwhile.
 */
static bool sums_at_once(const struct kvpd_device *d, const struct kvpd_flight *f)
{
	const struct kvpd_device_copy *c = f->piece[0].copy;
	uint32_t there = 0;

	for (uint32_t i = 0; i < KVPD_FLIGHTS; i++)
		there += d->flight[i].used && d->flight[i].way == f->way;
	return f->n == 1 && f->piece[0].bytes == c->bytes && there == 1 &&
	       c->flags & (KVPD_COPY_SUM | KVPD_COPY_CHECK) &&
	       kvpd_queue_ready(&d->queue, f->way) == UINT64_MAX;
}

static void send_copies(struct kvpd_device *d)
{
	for (uint32_t way = 0; way < KVPD_WAYS; way++) {
		struct kvpd_flight *f;

		while (kvpd_device_state(d) == KVPD_DEVICE_UP && (f = free_flight(d, way))) {
			uint32_t kind;

			f->n = kvpd_queue_next(&d->queue, way, kvpd_now_ns(), f->piece, &kind);
			if (!f->n)
				break;
			f->used = true;
			f->batch = ++d->batch;
			f->way = way;
			f->bytes = 0;
			for (uint32_t i = 0; i < f->n; i++)
				f->bytes += f->piece[i].bytes;
			f->sums = sums_at_once(d, f);
			f->until_ns = until(d, f->bytes);
			if (!send_batch(d, f))
				return;
		}
	}
}

static void count_bytes(struct kvpd_device *d, const struct kvpd_flight *f, uint64_t now)
{
	d->figures.bytes[f->way] += f->bytes;
	if (now - d->window_ns >= WINDOW_NS) {
		for (uint32_t w = 0; w < KVPD_WAYS; w++) {
			d->figures.bytes_per_s[w] = (uint64_t)((double)d->window[w] * 1e9 /
							       (double)(now - d->window_ns));
			d->window[w] = 0;
		}
		d->window_ns = now;
	}
	d->window[f->way] += f->bytes;
}

static const char *got_done(struct kvpd_device *d, const struct kvpd_p_done *done)
{
	const uint64_t now = kvpd_now_ns();
	struct kvpd_flight *f = NULL;

	for (uint32_t i = 0; i < KVPD_FLIGHTS; i++)
		if (d->flight[i].used && d->flight[i].batch == done->batch)
			f = &d->flight[i];
	if (!f)
		return "the end of a batch that it does not have";
	f->used = false;
	if (done->status == 0) {
		d->fails = 0;
		count_bytes(d, f, now);
	}
	for (uint32_t i = 0; i < f->n; i++) {
		struct kvpd_device_copy *c = f->piece[i].copy;

		if (done->status < 0 && !c->q.status)
			c->q.status = done->status == -EAGAIN ? -EAGAIN : -EIO;
		/* Of what has failed no more is sent. */
		if (c->q.status < 0)
			kvpd_queue_remove(&d->queue, c);
		if (!--c->q.pieces && (c->q.status < 0 || c->q.cut == c->bytes))
			copy_settled(d, c, f->sums ? done->sum : 0, now);
	}
	return NULL;
}

/* ---- sums ----------------------------------------------------------------------------------- */

static bool may_sum(const struct kvpd_device *d)
{
	return kvpd_device_state(d) == KVPD_DEVICE_UP || d->judging;
}

static void send_sums(struct kvpd_device *d)
{
	for (uint32_t i = 0; i < KVPD_SUMS && may_sum(d); i++) {
		struct kvpd_device_copy *c = TAILQ_FIRST(&d->to_sum);
		struct kvpd_p_sum s;

		if (!c)
			return;
		if (d->sum[i].copy)
			continue;
		TAILQ_REMOVE(&d->to_sum, c, q.age);
		/* What arrived, if the processor can read it; else what was sent. */
		s.host = !(c->flags & KVPD_COPY_ONLY) &&
			 (c->way == KVPD_TO_HOST || !(d->driver_flags & KVPD_DRIVER_READABLE));
		s.seq = ++d->batch;
		s.id = s.host ? c->host : c->seg;
		s.off = s.host ? c->host_off : c->seg_off;
		s.bytes = c->bytes;
		d->sum[i].copy = c;
		d->sum[i].seq = s.seq;
		d->sum[i].until_ns = until(d, c->bytes);
		if (!say(d, KVPD_P_SUM, 0, &s, sizeof(s), -1))
			return;
	}
}

static const char *got_sum(struct kvpd_device *d, const struct kvpd_p_summed *s)
{
	for (uint32_t i = 0; i < KVPD_SUMS; i++) {
		struct kvpd_device_copy *c = d->sum[i].copy;

		if (!c || d->sum[i].seq != s->seq)
			continue;
		d->sum[i].copy = NULL;
		if (s->status < 0)
			copy_over(d, c, -EIO);
		else
			copy_summed(d, c, s->sum);
		return NULL;
	}
	return "a sum that nobody asked for";
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* It ends, and says for what. */
static const char *got_why(struct kvpd_device *d, const struct kvpd_p_why *why)
{
	d->why = *why;
	if (why->damage == KVPD_DAMAGE_ALL)
		lose_all(d);
	else if (why->damage == KVPD_DAMAGE_MAYBE)
		doubt_all(d);
	return *d->why.text ? d->why.text : "it gives up";
}

static const char *got(struct kvpd_device *d, struct kvpd_p *p)
{
	if (p->h.type == KVPD_P_WHY)
		return got_why(d, &p->u.why);
	if (!d->greeted) {
		if (p->h.type != KVPD_P_HELLO)
			return "it does not greet";
		d->greeted = true;
		d->driver_flags = p->u.hello.flags;
		atomic_store_explicit(&d->shown_flags, p->u.hello.flags, memory_order_relaxed);
		memcpy(d->figures.uuid, p->u.hello.uuid, sizeof(d->figures.uuid));
		d->figures.granularity = p->u.hello.granularity;
		d->figures.numa_node = p->u.hello.numa_node;
		d->queue.batch = p->u.hello.batch;
		/* Whoever finds the device up finds these. */
		pthread_mutex_lock(&d->lock);
		memcpy(d->shown.uuid, d->figures.uuid, sizeof(d->shown.uuid));
		d->shown.granularity = d->figures.granularity;
		d->shown.numa_node = d->figures.numa_node;
		pthread_mutex_unlock(&d->lock);
		return NULL;
	}
	switch (p->h.type) {
	case KVPD_P_ANSWER:
		return got_answer(d, p);
	case KVPD_P_DONE:
		return got_done(d, &p->u.done);
	case KVPD_P_SUMMED:
		return got_sum(d, &p->u.summed);
	default:
		return "it greets twice";
	}
}

static void receive(struct kvpd_device *d)
{
	while (d->child.pid) {
		const char *wrong;
		int r = kvpd_p_recv(d->child.sock, KVPD_TO_DAEMON, &d->packet);

		if (r == -EAGAIN)
			return;
		if (r < 0) {
			end_worker(d, r == -EPROTO ? "it says what makes no sense" : "it is gone");
			return;
		}
		wrong = got(d, &d->packet);
		kvpd_p_done_with(&d->packet);
		if (wrong)
			end_worker(d, wrong);
	}
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* By when the worker has to have said something. */
static uint64_t due(const struct kvpd_device *d)
{
	uint64_t t = UINT64_MAX;

	if (!d->child.pid)
		return t;
	if (!d->greeted)
		t = d->greet_until_ns;
	if (d->ask.open)
		t = sooner(t, d->ask.until_ns);
	for (uint32_t i = 0; i < KVPD_FLIGHTS; i++)
		if (d->flight[i].used)
			t = sooner(t, d->flight[i].until_ns);
	for (uint32_t i = 0; i < KVPD_SUMS; i++)
		if (d->sum[i].copy)
			t = sooner(t, d->sum[i].until_ns);
	return t;
}

/* The owner lets go of the device, of which nothing is known any more, or wants it back. */
static void go_away(struct kvpd_device *d)
{
	end_worker(d, NULL);
	fail_waiting(d, -ENODEV);
	set_state(d, KVPD_DEVICE_DETACHED);
	kvpd_notice("device %s: detached", d->config.name);
}

static void come_back(struct kvpd_device *d)
{
	d->fails = 0;
	d->start_ns = 0;
	set_state(d, KVPD_DEVICE_STARTING);
}

/* What the owner found. Whatever it has said nothing of in time is lost. */
static void take_verdicts(struct kvpd_device *d)
{
	bool late = d->judging && kvpd_now_ns() >= d->judge_until_ns;
	uint32_t n;

	pthread_mutex_lock(&d->lock);
	n = d->verdict_of == atomic_load_explicit(&d->doubts, memory_order_relaxed) ? d->n_verdicts
										    : 0;
	d->n_verdicts = 0;
	for (uint32_t i = 0; d->judging && n && i < KVPD_DEVICE_SEGS; i++) {
		const uint8_t verdict = d->verdict[i];

		d->verdict[i] = 0;
		if (verdict && d->seg[i].doubted) {
			if (verdict == KVPD_DISBELIEVED)
				lose(d, i);
			believe(d, i);
		}
	}
	pthread_mutex_unlock(&d->lock);
	if (late)
		lose_doubted(d);
	if (!d->judging)
		return;
	tell_losses(d);
	if (!d->n_doubted)
		be_up(d);
}

/* True: it is to stop. */
static bool take_work(struct kvpd_device *d)
{
	struct kvpd_copies copies = TAILQ_HEAD_INITIALIZER(copies);
	const uint64_t now = kvpd_now_ns();
	struct kvpd_device_copy *c;
	bool stop, away;

	pthread_mutex_lock(&d->lock);
	stop = d->stop;
	away = d->away;
	TAILQ_CONCAT(&copies, &d->in_copies, q.age);
	TAILQ_CONCAT(&d->ops, &d->in_ops, link);
	pthread_mutex_unlock(&d->lock);
	while ((c = TAILQ_FIRST(&copies))) {
		TAILQ_REMOVE(&copies, c, q.age);
		if (d->seg[c->seg].lost)
			copy_over(d, c, -ENODEV);
		else if (c->flags & KVPD_COPY_ONLY)
			TAILQ_INSERT_TAIL(&d->to_sum, c, q.age);
		else
			kvpd_queue_add(&d->queue, c, now);
	}
	if (!stop && away != (kvpd_device_state(d) == KVPD_DEVICE_DETACHED)) {
		if (away)
			go_away(d);
		else
			come_back(d);
	}
	return stop;
}

static void show(struct kvpd_device *d)
{
	uint64_t oldest[KVPD_COPY_KINDS] = { 0 };
	bool tell;

	for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++) {
		d->figures.kind[k].queued = 0;
		for (uint32_t w = 0; w < KVPD_WAYS; w++) {
			const struct kvpd_queue_class *c = &d->queue.way[w].kind[k];
			const struct kvpd_device_copy *first = TAILQ_FIRST(&c->age);

			d->figures.kind[k].queued += c->n;
			if (first && (!oldest[k] || first->queued_ns < oldest[k]))
				oldest[k] = first->queued_ns;
		}
	}
	d->figures.pid = d->child.pid;
	pthread_mutex_lock(&d->lock);
	d->shown = d->figures;
	memcpy(d->shown_oldest, oldest, sizeof(oldest));
	tell = TAILQ_EMPTY(&d->posted) && !TAILQ_EMPTY(&d->over);
	TAILQ_CONCAT(&d->posted, &d->over, link);
	pthread_mutex_unlock(&d->lock);
	if (tell)
		d->config.wake(d->config.ctx);
}

/* Until something comes, or until something is late, may begin, or is to be started. */
static void sleep_on(struct kvpd_device *d)
{
	struct pollfd f[2] = {
		{ .fd = d->event, .events = POLLIN },
		{ .fd = d->child.pid ? d->child.sock : -1, .events = POLLIN },
	};
	uint64_t t = d->child.pid ? due(d) : d->start_ns, now = kvpd_now_ns();
	struct timespec ts;
	eventfd_t value;

	if (kvpd_device_state(d) == KVPD_DEVICE_DETACHED)
		t = UINT64_MAX;
	for (uint32_t w = 0; kvpd_device_state(d) == KVPD_DEVICE_UP && w < KVPD_WAYS; w++)
		if (free_flight(d, w))
			t = sooner(t, kvpd_queue_ready(&d->queue, w));
	if (wants_usage(d))
		t = sooner(t, d->usage_ns);
	if (d->judging)
		t = sooner(t, d->judge_until_ns);
	t = t > now ? t - now : 0;
	ts.tv_sec = (time_t)(t / UINT64_C(1000000000) % INT32_MAX);
	ts.tv_nsec = (long)(t % UINT64_C(1000000000));
	(void)ppoll(f, 2, &ts, NULL);
	(void)eventfd_read(d->event, &value);
}

static void work(struct kvpd_device *d)
{
	if (kvpd_device_state(d) == KVPD_DEVICE_DETACHED) {
		fail_waiting(d, -ENODEV);
		drop_waiting(d);
		return;
	}
	if (!d->child.pid && kvpd_now_ns() >= d->start_ns) {
		start_worker(d);
		if (!d->child.pid)
			end_worker(d, d->child.left ? "the one before does not end"
						    : "it cannot be started");
	}
	receive(d);
	take_verdicts(d);
	if (d->child.pid && kvpd_now_ns() >= due(d))
		end_worker(d, "it hangs");
	if (!d->child.pid)
		drop_waiting(d);
	if (kvpd_device_state(d) == KVPD_DEVICE_DOWN)
		fail_waiting(d, -ENODEV);
	ask_next(d);
	send_copies(d);
	send_sums(d);
}

static void close_all(struct kvpd_held *held)
{
	for (uint32_t i = 0; i < KVPD_DEVICE_SEGS; i++)
		if (held[i].there && held[i].fd >= 0)
			close(held[i].fd);
}

void *kvpd_device_run(void *device)
{
	struct kvpd_device *d = device;

	/* And the worker with it, which copies for milliseconds. */
	kvpd_step_back();
	while (!take_work(d)) {
		work(d);
		show(d);
		sleep_on(d);
	}
	end_worker(d, NULL);
	fail_waiting(d, -ESHUTDOWN);
	show(d);
	close_all(d->seg);
	close_all(d->host);
	return NULL;
}
