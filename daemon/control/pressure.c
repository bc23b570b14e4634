/* SPDX-License-Identifier: Apache-2.0 */
/* Shortage of memory: noticing it, and having the ledger give memory back; see pressure.h. */
#include "daemon/control/pressure.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/control/state.h"
#include "daemon/log.h"
#include "daemon/memory.h"

#define MIB       (UINT64_C(1) << 20)
#define SECOND_NS UINT64_C(1000000000)

/*
 * How often the figures are looked at. Far from a shortage seldom: a wake-up costs energy. The
 * shortest is also the limit of how often tenants are asked for memory.
 */
#define LOOK_NS SECOND_NS
#define FAR_NS  (8 * SECOND_NS)

static void stalled_ready(struct kvpd_source *source, uint32_t events)
{
	struct kvpd_stalls *s =
		(struct kvpd_stalls *)((char *)source - offsetof(struct kvpd_stalls, source));
	struct kvpd_pressure *p = &s->control->pressure;

	if (!(events & EPOLLPRI)) {
		/* The kernel took the trigger back: its control group is gone. */
		(void)epoll_ctl(s->control->epfd, EPOLL_CTL_DEL, s->fd, NULL);
		return;
	}
	p->stalled = true;
	if (p->next_ns > p->looked_ns + LOOK_NS)
		p->next_ns = p->looked_ns + LOOK_NS;
}

/* Tasks waited for memory during a tenth of two seconds. */
static void watch(struct kvpd_control *c, struct kvpd_stalls *s, const char *path)
{
	static const char trigger[] = "some 200000 2000000";

	s->source.ready = stalled_ready;
	s->control = c;
	s->fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (s->fd < 0)
		return;
	if (write(s->fd, trigger, sizeof(trigger)) < 0 ||
		kvpd_watch(c, s->fd, EPOLLPRI, &s->source) < 0) {
		close(s->fd);
		s->fd = -1;
	}
}

void kvpd_pressure_open(struct kvpd_control *c)
{
	struct kvpd_memory m;
	char path[sizeof(m.own) + 32];

	kvpd_memory_read("", &m);
	watch(c, &c->pressure.machine, "/proc/pressure/memory");
	snprintf(path, sizeof(path), "%s/memory.pressure", m.own);
	if (*m.own)
		watch(c, &c->pressure.group, path);
}

void kvpd_pressure_close(struct kvpd_control *c)
{
	if (c->pressure.machine.fd >= 0)
		close(c->pressure.machine.fd);
	if (c->pressure.group.fd >= 0)
		close(c->pressure.group.fd);
}

static void relieve(struct kvpd_control *c, uint64_t missing)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(60, 1);
	uint64_t coming = 0;

	if (kvpd_relieve(c->ledger, missing, &coming) < 0 || !coming)
		return;
	kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
		"%" PRIu64 " MiB of memory are missing: tenants give back %" PRIu64
		" MiB, and none grows for a while; lower `memory`, or see who takes it",
		(missing + MIB - 1) / MIB, (coming + MIB - 1) / MIB);
}

uint64_t kvpd_pressure_turn(struct kvpd_control *c, uint64_t now)
{
	struct kvpd_pressure *p = &c->pressure;
	struct kvpd_memory m;
	uint64_t missing;

	if (now < p->next_ns)
		return p->next_ns;
	kvpd_memory_read("", &m);
	missing = kvpd_memory_missing(&m, p->stalled);
	p->stalled = false;
	p->looked_ns = now;
	p->next_ns = now + (kvpd_memory_near(&m) ? LOOK_NS : FAR_NS);
	if (missing && c->ledger)
		relieve(c, missing);
	return p->next_ns;
}
