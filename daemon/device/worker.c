/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvpool-device: the process that talks to one device's driver for kvpoold. It does what comes over
 * one socket and ends with it. It has no name, no configuration and no clients; what it maps it was
 * sent. Memory is allocated at the start alone.
 *
 * Exit status: 0 the daemon is gone; 2 usage; 3 the device is lost; 4 the daemon said something that
 * makes no sense; 5 the driver could not be opened. Before 3 and 5 it says why.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "daemon/device/driver.h"
#include "daemon/device/populate.h"
#include "daemon/device/protocol.h"
#include "shm/kvp_catalog.h"
#include "shm/kvp_seg.h"

#define FLIGHTS   (KVPD_WAYS * KVPD_DRIVER_FLIGHT)
#define RETRY_MS  1
#define SUM_TRIES 100u

enum { EXIT_GONE = 0, EXIT_USAGE = 2, EXIT_LOST = 3, EXIT_PROTOCOL = 4, EXIT_OPEN = 5 };

struct memory {
	char *addr; /* hosts */
	uint64_t bytes;
	uint32_t uses; /* batches and sums under way that name it */
	bool known;
	bool writable;
};

/* A batch between its COPY and its DONE. */
struct flight {
	bool used;
	bool submitted;
	struct kvpd_p_copy c;
};

struct sum {
	struct kvpd_p_sum what;
	const char *addr; /* of an extent */
	uint64_t sum;
	int status;
};

static struct {
	int sock;
	const struct kvpd_driver_ops *ops;
	struct kvpd_driver *driver;
	struct kvpd_driver_caps caps;
	struct kvpd_driver_loss loss;
	struct memory seg[KVPD_DEVICE_SEGS], host[KVPD_DEVICE_SEGS];
	/* The control question that is open. */
	struct {
		bool open;
		uint32_t type, tag;
		struct kvpd_p_memory m;
		int fd;
		void *addr; /* of an extent while it is brought in */
		uint64_t at;
	} ask;
	struct flight flight[FLIGHTS];
	/* Sums: [begun, ended) wait, [said, begun) are done; all counted on and on. */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	int sum_event;
	struct sum sum[KVPD_SUMS];
	uint32_t sum_said, sum_begun, sum_ended;
	struct kvpd_p packet;
} w = { .sock = KVPD_WORKER_SOCKET };

__attribute__((noreturn)) static void end(int status)
{
	/* Threads may be in the middle of a copy: nothing is torn down under them. */
	_exit(status);
}

/* The daemon may be gone, or not listen: it ends all the same. */
__attribute__((noreturn)) static void end_saying(int status)
{
	struct kvpd_p_why b = { .damage = w.loss.damage };

	memcpy(b.text, w.loss.why, sizeof(b.text));
	(void)kvpd_p_send(w.sock, KVPD_P_WHY, 0, &b, sizeof(b), -1);
	end(status);
}

static void say(uint32_t type, uint32_t tag, const void *body, size_t len, int fd)
{
	if (kvpd_p_send_wait(w.sock, type, tag, body, len, fd) < 0)
		end(EXIT_GONE);
}

static void poll_copies(void);

/* ---- sums ----------------------------------------------------------------------------------- */

/*
 * -EAGAIN of a sum is what the daemon says of a worker that ended before it: a driver that is busy is asked again, and what it
 * will not read has failed.
 */
static int sum_there(struct sum *s)
{
	int r = -EAGAIN;

	for (uint32_t i = 0; r == -EAGAIN && i < SUM_TRIES; i++) {
		if (i)
			usleep(RETRY_MS * 1000);
		r = w.ops->seg_sum(w.driver, s->what.id, s->what.off, s->what.bytes, &s->sum);
	}
	return r == -EAGAIN ? -EIO : r;
}

static void *summer(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&w.lock);
	for (;;) {
		struct sum *s;

		while (w.sum_begun == w.sum_ended)
			pthread_cond_wait(&w.cond, &w.lock);
		s = &w.sum[w.sum_begun % KVPD_SUMS];
		pthread_mutex_unlock(&w.lock);
		if (s->what.host)
			s->sum = kvp_payload_checksum(s->addr + s->what.off, s->what.bytes);
		else
			s->status = sum_there(s);
		pthread_mutex_lock(&w.lock);
		w.sum_begun++;
		(void)eventfd_write(w.sum_event, 1);
	}
	return NULL;
}

static struct memory *known(struct memory *table, uint32_t id, uint64_t off, uint64_t bytes)
{
	struct memory *m = &table[id];

	if (!m->known || bytes > m->bytes || off > m->bytes - bytes)
		end(EXIT_PROTOCOL);
	return m;
}

static void take_sum(const struct kvpd_p_sum *s)
{
	struct memory *m = known(s->host ? w.host : w.seg, s->id, s->off, s->bytes);

	pthread_mutex_lock(&w.lock);
	if (w.sum_ended - w.sum_said == KVPD_SUMS)
		end(EXIT_PROTOCOL);
	w.sum[w.sum_ended++ % KVPD_SUMS] = (struct sum){ .what = *s, .addr = m->addr };
	m->uses++;
	pthread_cond_signal(&w.cond);
	pthread_mutex_unlock(&w.lock);
}

static void tell_sums(void)
{
	eventfd_t value;

	(void)eventfd_read(w.sum_event, &value);
	pthread_mutex_lock(&w.lock);
	while (w.sum_said != w.sum_begun) {
		const struct sum *s = &w.sum[w.sum_said % KVPD_SUMS];
		const struct kvpd_p_summed b = {
			.seq = s->what.seq, .sum = s->sum, .status = s->status
		};

		(s->what.host ? w.host : w.seg)[s->what.id].uses--;
		w.sum_said++;
		pthread_mutex_unlock(&w.lock);
		/* The driver knows why, and says so there. */
		if (b.status == -ENODEV)
			poll_copies();
		say(KVPD_P_SUMMED, 0, &b, sizeof(b), -1);
		pthread_mutex_lock(&w.lock);
	}
	pthread_mutex_unlock(&w.lock);
}

/* ---- copies --------------------------------------------------------------------------------- */

static void count_uses(const struct kvpd_p_copy *c, bool more)
{
	for (uint32_t i = 0; i < c->n; i++) {
		struct memory *seg = &w.seg[c->copy[i].seg], *host = &w.host[c->copy[i].host];

		seg->uses += more ? 1u : -1u;
		host->uses += more ? 1u : -1u;
	}
}

static void take_copy(const struct kvpd_p_copy *c)
{
	struct flight *f = NULL;
	uint32_t there = 0;

	for (uint32_t i = 0; i < FLIGHTS; i++) {
		there += w.flight[i].used && w.flight[i].c.way == c->way;
		if (w.flight[i].used && w.flight[i].c.batch == c->batch)
			end(EXIT_PROTOCOL);
		if (!w.flight[i].used)
			f = &w.flight[i];
	}
	if (there == KVPD_DRIVER_FLIGHT)
		end(EXIT_PROTOCOL);
	for (uint32_t i = 0; i < c->n; i++) {
		const struct kvpd_copy *k = &c->copy[i];
		struct memory *host;

		known(w.seg, k->seg, k->seg_off, k->bytes);
		host = known(w.host, k->host, k->host_off, k->bytes);
		if (c->way == KVPD_TO_HOST && !host->writable)
			end(EXIT_PROTOCOL);
	}
	f->used = true;
	f->submitted = false;
	memcpy(&f->c, c, kvpd_p_copy_len(c->n));
	count_uses(&f->c, true);
}

static void flight_done(struct flight *f, int status, uint64_t ns, uint64_t sum)
{
	const struct kvpd_p_done b = {
		.batch = f->c.batch, .status = status, .ns = ns, .sum = sum
	};

	if (status == -ENODEV)
		end_saying(EXIT_LOST);
	count_uses(&f->c, false);
	f->used = false;
	say(KVPD_P_DONE, 0, &b, sizeof(b), -1);
}

/* False: the driver is busy, some wait. Of one way the older goes first. */
static bool submit_all(void)
{
	bool all = true;

	for (uint32_t way = 0; way < KVPD_WAYS; way++)
		for (;;) {
			struct flight *f = NULL;
			int r;

			for (uint32_t i = 0; i < FLIGHTS; i++) {
				struct flight *g = &w.flight[i];

				if (g->used && !g->submitted && g->c.way == way &&
					(!f || g->c.batch < f->c.batch))
					f = g;
			}
			if (!f)
				break;
			r = w.ops->submit(w.driver, way, f->c.batch, f->c.copy, f->c.n);
			if (r == -EAGAIN) {
				all = false;
				break;
			}
			f->submitted = true;
			if (r < 0)
				flight_done(f, r, 0, 0);
		}
	return all;
}

static void poll_copies(void)
{
	struct kvpd_done done[FLIGHTS];
	int n = w.ops->poll(w.driver, done, FLIGHTS);

	if (n == -ENODEV)
		end_saying(EXIT_LOST);
	for (int i = 0; i < n; i++)
		for (uint32_t k = 0; k < FLIGHTS; k++)
			if (w.flight[k].used && w.flight[k].submitted &&
				w.flight[k].c.batch == done[i].batch) {
				flight_done(&w.flight[k], done[i].status, done[i].ns, done[i].sum);
				break;
			}
}

/* ---- control questions ---------------------------------------------------------------------- */

static void answer(int status, const struct kvpd_driver_usage *u, int fd)
{
	const struct kvpd_p_answer b = {
		.status = status, .free = u->free, .total = u->total, .context = u->context
	};

	if (status == -ENODEV)
		end_saying(EXIT_LOST);
	/* Who hears of a failure may go on to prove that nobody has the memory open. */
	kvp_close_fdp(&w.ask.fd);
	w.ask.fd = -1;
	w.ask.open = false;
	say(KVPD_P_ANSWER, w.ask.tag, &b, sizeof(b), fd);
}

static int seg_make(int *ret_fd)
{
	const struct kvpd_p_memory *m = &w.ask.m;
	int r;

	if (m->bytes % w.caps.granularity)
		return -EINVAL;
	r = w.ops->seg_make(w.driver, m->id, m->bytes, ret_fd);
	if (r == 0)
		w.seg[m->id] = (struct memory){ .bytes = m->bytes, .known = true };
	return r;
}

static int seg_take(void)
{
	const struct kvpd_p_memory *m = &w.ask.m;
	int r = w.ops->seg_take(w.driver, m->id, m->bytes, w.ask.fd);

	if (r == 0)
		w.seg[m->id] = (struct memory){ .bytes = m->bytes, .known = true };
	return r;
}

static int host_add(void)
{
	const struct kvpd_p_memory *m = &w.ask.m;
	const bool writable = m->flags & KVPD_MEMORY_WRITABLE;
	int r = 0;

	if (!w.ask.addr) {
		r = kvp_seg_check(w.ask.fd, m->bytes, KVP_SEALS_FIXED);
		if (r == 0)
			r = kvp_seg_map(w.ask.fd, m->bytes,
				(writable ? KVP_MAP_WRITE : 0) | KVP_MAP_DONTFORK |
					KVP_MAP_DONTDUMP | KVP_MAP_HUGEPAGE,
				&w.ask.addr);
	}
	if (r == 0)
		r = kvpd_populate(w.ask.addr, m->bytes, writable, &w.ask.at);
	if (r == 0)
		r = w.ops->host_add(w.driver, m->id, w.ask.addr, m->bytes, m->flags);
	if (r == 0)
		w.host[m->id] = (struct memory){
			.addr = w.ask.addr,
			.bytes = m->bytes,
			.known = true,
			.writable = writable,
		};
	else if (r != -EAGAIN)
		kvp_seg_unmap(w.ask.addr, m->bytes);
	if (r != -EAGAIN)
		w.ask.addr = NULL;
	return r;
}

static int seg_drop(void)
{
	w.ops->seg_drop(w.driver, w.ask.m.id);
	w.seg[w.ask.m.id] = (struct memory){ 0 };
	return 0;
}

static int host_drop(void)
{
	struct memory *m = &w.host[w.ask.m.id];
	int r = w.ops->host_drop(w.driver, w.ask.m.id);

	if (r < 0)
		return r;
	kvp_seg_unmap(m->addr, m->bytes);
	*m = (struct memory){ 0 };
	return 0;
}

static void ask_go_on(void)
{
	struct kvpd_driver_usage usage = { 0 };
	int fd = -1, r;

	switch (w.ask.type) {
	case KVPD_P_SEG_MAKE:
		r = seg_make(&fd);
		break;
	case KVPD_P_SEG_TAKE:
		r = seg_take();
		break;
	case KVPD_P_SEG_DROP:
		r = seg_drop();
		break;
	case KVPD_P_HOST_ADD:
		r = host_add();
		break;
	case KVPD_P_HOST_DROP:
		r = host_drop();
		break;
	default:
		r = w.ops->usage(w.driver, &usage);
		break;
	}
	if (r != -EAGAIN)
		answer(r, &usage, fd);
	kvp_close_fdp(&fd);
}

static void take_ask(struct kvpd_p *p)
{
	const struct kvpd_p_memory *m = &p->u.memory;
	const uint32_t type = p->h.type;
	const bool drop = type == KVPD_P_SEG_DROP || type == KVPD_P_HOST_DROP;

	if (w.ask.open)
		end(EXIT_PROTOCOL);
	if (type != KVPD_P_USAGE) {
		const bool host = type == KVPD_P_HOST_ADD || type == KVPD_P_HOST_DROP;
		const struct memory *there = host ? &w.host[m->id] : &w.seg[m->id];

		if (there->known != drop || there->uses)
			end(EXIT_PROTOCOL);
		w.ask.m = *m;
	}
	w.ask.open = true;
	w.ask.type = type;
	w.ask.tag = p->h.tag;
	w.ask.fd = kvp_take_fd(&p->fd);
	w.ask.addr = NULL;
	w.ask.at = 0;
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void receive(void)
{
	struct kvpd_p *p = &w.packet;

	for (;;) {
		int r = kvpd_p_recv(w.sock, KVPD_TO_WORKER, p);

		if (r == -EAGAIN)
			return;
		if (r < 0)
			end(r == -EPROTO ? EXIT_PROTOCOL : EXIT_GONE);
		if (p->h.type == KVPD_P_COPY)
			take_copy(&p->u.copy);
		else if (p->h.type == KVPD_P_SUM)
			take_sum(&p->u.sum);
		else
			take_ask(p);
		kvpd_p_done_with(p);
	}
}

static void loop(void)
{
	struct pollfd f[3] = {
		{ .fd = w.sock, .events = POLLIN },
		{ .fd = w.ops->event(w.driver), .events = POLLIN },
		{ .fd = w.sum_event, .events = POLLIN },
	};

	for (;;) {
		bool all;

		receive();
		all = submit_all();
		poll_copies();
		if (w.ask.open)
			ask_go_on();
		tell_sums();
		if (poll(f, 3, w.ask.open || !all ? RETRY_MS : -1) < 0 && errno != EINTR)
			end(EXIT_GONE);
	}
}

static bool number(const char *s, uint64_t max, uint64_t *ret)
{
	char *rest;

	errno = 0;
	*ret = strtoull(s, &rest, 10);
	return *s >= '0' && *s <= '9' && !*rest && !errno && *ret <= max;
}

/* DRIVER BYTES THREADS LIFE TRANSPORT COPIES UNIT FAULTS; of the last two an empty one is none. */
static bool arguments(int argc, char **argv, struct kvpd_driver_opts *ret)
{
	uint64_t bytes, threads, life, transport, copies;

	if (argc != 9 || !number(argv[2], INT64_MAX, &bytes) ||
		!number(argv[3], UINT32_MAX, &threads) || !number(argv[4], UINT32_MAX, &life) ||
		!number(argv[5], KVPD_TRANSPORT_IPC, &transport) || !number(argv[6], 1, &copies))
		return false;
	w.ops = kvpd_driver_find(argv[1]);
	*ret = (struct kvpd_driver_opts){
		.bytes = bytes,
		.threads = (uint32_t)threads,
		.life = (uint32_t)life,
		.transport = (uint32_t)transport,
		.no_copies = !copies,
		.unit = *argv[7] ? argv[7] : NULL,
		.faults = *argv[8] ? argv[8] : NULL,
		.loss = &w.loss,
	};
	return w.ops;
}

/* It ends when its socket does, or its parent, and for nothing else that the parent's group is sent. */
static void signals(void)
{
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGIO, SIG_IGN);
}

int main(int argc, char **argv)
{
	struct kvpd_driver_opts opts;
	struct kvpd_p_hello hello;
	pthread_t thread;

	if (!arguments(argc, argv, &opts)) {
		fputs("kvpool-device is started by kvpoold, not by hand\n", stderr);
		return EXIT_USAGE;
	}
	signals();
	(void)fcntl(w.sock, F_SETFD, FD_CLOEXEC);
	w.ask.fd = -1;
	pthread_mutex_init(&w.lock, NULL);
	pthread_cond_init(&w.cond, NULL);
	w.sum_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (w.sum_event < 0 || pthread_create(&thread, NULL, summer, NULL) ||
		w.ops->open(&opts, &w.driver) < 0 || w.ops->caps(w.driver, &w.caps) < 0)
		end_saying(EXIT_OPEN);
	(void)pthread_setname_np(thread, "kvpool-sums");
	hello = (struct kvpd_p_hello){
		.bytes = w.caps.bytes,
		.granularity = w.caps.granularity,
		.flags = w.caps.flags,
		.numa_node = w.caps.numa_node,
		.batch = w.caps.batch,
	};
	memcpy(hello.uuid, w.caps.uuid, sizeof(hello.uuid));
	say(KVPD_P_HELLO, 0, &hello, sizeof(hello), -1);
	loop();
}
