/* SPDX-License-Identifier: Apache-2.0 */
/* The host driver with things that go wrong, by rules: see driver.h. For tests. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/device/device.h"
#include "daemon/device/driver.h"

#define MAX_RULES 16u

enum op {
	OPEN,
	CLOSE,
	CAPS,
	MAKE,
	TAKE,
	DROP,
	SUM,
	ADD,
	HOSTDROP,
	SUBMIT,
	POLL,
	EVENT,
	USAGE,
	COPY,
	N_OPS
};
static const char *const op_name[] = { "open", "close", "caps", "make", "take", "drop", "sum",
	"add", "hostdrop", "submit", "poll", "event", "usage", "copy" };
_Static_assert(sizeof(op_name) / sizeof(op_name[0]) == N_OPS, "name every operation");

enum what { FAIL, SLOW, HANG, DIE, DAMAGE, NODE, N_WHATS };
static const char *const what_name[] = { "fail", "slow", "hang", "die", "damage", "node" };
_Static_assert(sizeof(what_name) / sizeof(what_name[0]) == N_WHATS, "name whatever goes wrong");

struct rule {
	uint32_t op, what;
	uint32_t number;
	uint32_t nth; /* 0: each */
	bool and_on;  /* and all after it */
	bool one_life;
	uint32_t life;
};

struct flight {
	uint64_t batch;
	uint32_t way;
	struct kvpd_copy first;
	bool used;
};

struct faults {
	struct rule rule[MAX_RULES];
	uint32_t n_rules;
	uint32_t life;
	uint32_t calls[N_OPS];
};

/* A driver of another kind behind the same name: callers only hand it back. */
struct fault_driver {
	struct kvpd_driver *host;
	struct faults f;
	char *host_addr[KVPD_DEVICE_SEGS];
	struct flight flight[KVPD_WAYS * KVPD_DRIVER_FLIGHT];
};

static struct fault_driver *of(struct kvpd_driver *d)
{
	return (struct fault_driver *)(void *)d;
}

/* ---- rules ---------------------------------------------------------------------------------- */

static bool take_word(const char **s, const char *const *words, uint32_t n, uint32_t *ret)
{
	size_t len = strcspn(*s, "=:@#,");

	for (uint32_t i = 0; i < n; i++)
		if (strlen(words[i]) == len && !memcmp(words[i], *s, len)) {
			*s += len;
			*ret = i;
			return true;
		}
	return false;
}

static bool take_number(const char **s, uint32_t *ret)
{
	uint64_t v = 0;
	const char *from = *s;

	while (**s >= '0' && **s <= '9' && v <= UINT32_MAX / 10)
		v = v * 10 + (uint64_t)(*(*s)++ - '0');
	*ret = (uint32_t)v;
	return *s != from;
}

static bool take_rule(const char **s, struct rule *r)
{
	*r = (struct rule){ 0 };
	if (!take_word(s, op_name, N_OPS, &r->op) || *(*s)++ != '=' ||
		!take_word(s, what_name, N_WHATS, &r->what))
		return false;
	if (**s == ':' && (++*s, !take_number(s, &r->number)))
		return false;
	if (**s == '@' && (++*s, !take_number(s, &r->nth)))
		return false;
	if (r->nth && **s == '+') {
		r->and_on = true;
		++*s;
	}
	if (**s == '#') {
		++*s;
		r->one_life = true;
		if (!take_number(s, &r->life))
			return false;
	}
	return (r->what == DAMAGE) <= (r->op == COPY) && (r->what == NODE) <= (r->op == CAPS);
}

static int parse(struct faults *f, const char *s)
{
	while (s && *s) {
		if (f->n_rules == MAX_RULES || !take_rule(&s, &f->rule[f->n_rules]))
			return -EINVAL;
		f->n_rules++;
		if (*s && *s++ != ',')
			return -EINVAL;
	}
	return 0;
}

bool kvpd_fault_rules_valid(const char *faults)
{
	struct faults f = { 0 };

	return parse(&f, faults) == 0;
}

static void sleep_ms(uint32_t ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

/* 0: the operation goes on. Negative: it fails so. 1: its bytes are damaged; of caps: 1 + the node. */
static int faulty(struct faults *f, uint32_t op)
{
	uint32_t nth = ++f->calls[op];

	for (uint32_t i = 0; i < f->n_rules; i++) {
		const struct rule *r = &f->rule[i];

		if (r->op != op || (r->one_life && r->life != f->life) ||
			(r->nth && (r->and_on ? nth < r->nth : nth != r->nth)))
			continue;
		switch (r->what) {
		case FAIL:
			return r->number ? -(int)r->number : -EIO;
		case SLOW:
			sleep_ms(r->number);
			return 0;
		case HANG:
			for (;;)
				pause();
		case DIE:
			_exit(9);
		case NODE:
			return 1 + (int)r->number;
		default:
			return 1;
		}
	}
	return 0;
}

/* ---- operations ----------------------------------------------------------------------------- */

static struct kvpd_driver *fault_close(struct kvpd_driver *d)
{
	if (d) {
		(void)faulty(&of(d)->f, CLOSE);
		kvpd_driver_host.close(of(d)->host);
		free(of(d));
	}
	return NULL;
}

static int fault_open(const struct kvpd_driver_opts *opts, struct kvpd_driver **ret_driver)
{
	struct fault_driver *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return -ENOMEM;
	d->f.life = opts->life;
	r = parse(&d->f, opts->faults);
	if (r == 0)
		r = faulty(&d->f, OPEN);
	if (r == 0)
		r = kvpd_driver_host.open(opts, &d->host);
	if (r < 0) {
		free(d);
		return r;
	}
	*ret_driver = (struct kvpd_driver *)(void *)d;
	return 0;
}

static int fault_caps(struct kvpd_driver *d, struct kvpd_driver_caps *ret_caps)
{
	int r = faulty(&of(d)->f, CAPS), node = r - 1;

	if (r >= 0)
		r = kvpd_driver_host.caps(of(d)->host, ret_caps);
	if (r == 0 && node >= 0)
		ret_caps->numa_node = node;
	return r;
}

static int fault_seg_make(struct kvpd_driver *d, uint32_t id, uint64_t bytes, int *ret_fd)
{
	int r = faulty(&of(d)->f, MAKE);

	return r ? r : kvpd_driver_host.seg_make(of(d)->host, id, bytes, ret_fd);
}

static int fault_seg_take(struct kvpd_driver *d, uint32_t id, uint64_t bytes, int fd)
{
	int r = faulty(&of(d)->f, TAKE);

	return r ? r : kvpd_driver_host.seg_take(of(d)->host, id, bytes, fd);
}

static void fault_seg_drop(struct kvpd_driver *d, uint32_t id)
{
	(void)faulty(&of(d)->f, DROP);
	kvpd_driver_host.seg_drop(of(d)->host, id);
}

static int fault_seg_sum(
	struct kvpd_driver *d, uint32_t id, uint64_t off, uint64_t bytes, uint64_t *ret_sum)
{
	int r = faulty(&of(d)->f, SUM);

	return r ? r : kvpd_driver_host.seg_sum(of(d)->host, id, off, bytes, ret_sum);
}

static int fault_host_add(
	struct kvpd_driver *d, uint32_t id, void *addr, uint64_t bytes, uint32_t flags)
{
	int r = faulty(&of(d)->f, ADD);

	if (r)
		return r;
	of(d)->host_addr[id] = addr;
	return kvpd_driver_host.host_add(of(d)->host, id, addr, bytes, flags);
}

static int fault_host_drop(struct kvpd_driver *d, uint32_t id)
{
	(void)faulty(&of(d)->f, HOSTDROP);
	return kvpd_driver_host.host_drop(of(d)->host, id);
}

static struct flight *flight_of(struct fault_driver *d, uint64_t batch)
{
	for (uint32_t i = 0; i < KVPD_WAYS * KVPD_DRIVER_FLIGHT; i++)
		if (d->flight[i].used && d->flight[i].batch == batch)
			return &d->flight[i];
	return NULL;
}

static int fault_submit(struct kvpd_driver *d, uint32_t way, uint64_t batch,
	const struct kvpd_copy *copies, uint32_t n)
{
	int r = faulty(&of(d)->f, SUBMIT);

	if (r == 0)
		r = kvpd_driver_host.submit(of(d)->host, way, batch, copies, n);
	for (uint32_t i = 0; r == 0 && i < KVPD_WAYS * KVPD_DRIVER_FLIGHT; i++)
		if (!of(d)->flight[i].used) {
			of(d)->flight[i] = (struct flight){ batch, way, copies[0], true };
			break;
		}
	return r;
}

static void damage(struct fault_driver *d, const struct flight *f)
{
	char *seg = kvpd_host_seg_addr(d->host, f->first.seg) + f->first.seg_off;
	char *host = d->host_addr[f->first.host] + f->first.host_off;

	*(f->way == KVPD_TO_DEVICE ? seg : host) ^= 0x10;
}

static int fault_poll(struct kvpd_driver *d, struct kvpd_done *out, uint32_t max)
{
	int r = faulty(&of(d)->f, POLL);

	if (r == 0)
		r = kvpd_driver_host.poll(of(d)->host, out, max);
	for (int i = 0; i < r; i++) {
		struct flight *f = flight_of(of(d), out[i].batch);
		int outcome = faulty(&of(d)->f, COPY);

		if (outcome < 0)
			out[i].status = outcome;
		else if (outcome && f) {
			damage(of(d), f);
			out[i].sum = 0; /* that was of what was there before */
		}
		if (f)
			f->used = false;
	}
	return r;
}

static int fault_event(struct kvpd_driver *d)
{
	int r = faulty(&of(d)->f, EVENT);

	return r ? r : kvpd_driver_host.event(of(d)->host);
}

static int fault_usage(struct kvpd_driver *d, struct kvpd_driver_usage *ret_usage)
{
	int r = faulty(&of(d)->f, USAGE);

	return r ? r : kvpd_driver_host.usage(of(d)->host, ret_usage);
}

const struct kvpd_driver_ops kvpd_driver_fault = {
	.name = "fault",
	.open = fault_open,
	.close = fault_close,
	.caps = fault_caps,
	.seg_make = fault_seg_make,
	.seg_take = fault_seg_take,
	.seg_drop = fault_seg_drop,
	.seg_sum = fault_seg_sum,
	.host_add = fault_host_add,
	.host_drop = fault_host_drop,
	.submit = fault_submit,
	.poll = fault_poll,
	.event = fault_event,
	.usage = fault_usage,
};
