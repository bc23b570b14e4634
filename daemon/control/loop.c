/* SPDX-License-Identifier: Apache-2.0 */
/* The loop: what wakes the control thread, its deadlines, and the burials between two turns. */
#include "daemon/control/loop.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/control/conn.h"
#include "daemon/control/control.h"
#include "daemon/control/guest.h"
#include "daemon/control/listener.h"
#include "daemon/control/pressure.h"
#include "daemon/control/state.h"
#include "daemon/log.h"
#include "daemon/privilege.h"
#include "daemon/slice.h"

/* Read from the kernel in one turn: a crowd that is ready hides nobody behind it for long. */
#define EVENTS 256
#define POLLS  4
/* Then those have their turn who wait: first at the doors, then all others. */
#define DOORS_NS (250 * UINT64_C(1000))
#define SLICE_NS (500 * UINT64_C(1000))
/* Asked of the kernel. This thread works for less at a time, and an attach is several of its turns. */
#define TURN_NS (100 * UINT64_C(1000))

int kvpd_watch(struct kvpd_control *c, int fd, uint32_t events, struct kvpd_source *source)
{
	struct epoll_event e = { .events = events, .data.ptr = source };

	return epoll_ctl(c->epfd, EPOLL_CTL_ADD, fd, &e) < 0 ? -errno : 0;
}

void kvpd_unwatch(struct kvpd_control *c, int fd)
{
	(void)epoll_ctl(c->epfd, EPOLL_CTL_DEL, fd, NULL);
}

void kvpd_control_bury(struct kvpd_control *c)
{
	struct kvpd_conn *conn;
	struct kvpd_guest *g;
	struct kvpd_listener *l;

	while ((conn = TAILQ_FIRST(&c->dead_conns))) {
		TAILQ_REMOVE(&c->dead_conns, conn, link);
		kvpd_conn_free(conn);
	}
	while ((g = TAILQ_FIRST(&c->dead_guests))) {
		TAILQ_REMOVE(&c->dead_guests, g, link);
		kvpd_guest_free(g);
	}
	while ((l = TAILQ_FIRST(&c->dead_listeners))) {
		TAILQ_REMOVE(&c->dead_listeners, l, link);
		kvpd_listener_free(l);
	}
}

/* ---- deadlines ----------------------------------------------------------------------------- */

/* At most once a second: it is for people. */
static uint64_t tell_status(struct kvpd_control *c, uint64_t now)
{
	char text[80];

	if (!c->status_changed)
		return UINT64_MAX;
	if (now < c->next_status_ns)
		return c->next_status_ns;
	c->status_changed = false;
	c->next_status_ns = now + 1000 * KVPD_MS;
	snprintf(text, sizeof(text), "STATUS=%u sessions, %u connections", c->n_guests, c->n_conns);
	kvpd_notify(&c->manager, now, text);
	return UINT64_MAX;
}

/* A round trip through the ledger: a ping says that both threads are alive. */
static uint64_t watchdog(struct kvpd_control *c, uint64_t now)
{
	struct kvp_msg_extent extent;
	int fd;

	if (!c->watchdog_ns)
		return UINT64_MAX;
	if (now >= c->next_watchdog_ns) {
		if (kvpd_extent_get(c->ledger, 0, 0, &extent, &fd) == 0)
			close(fd);
		kvpd_notify(&c->manager, now, "WATCHDOG=1");
		c->next_watchdog_ns = now + c->watchdog_ns;
	}
	return c->next_watchdog_ns;
}

static int until(uint64_t due, uint64_t now)
{
	uint64_t ms;

	if (due == UINT64_MAX)
		return -1;
	ms = due > now ? (due - now + 999999u) / 1000000u : 0;
	return ms < 3600000 ? (int)ms : 3600000;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- turns --------------------------------------------------------------------------------- */

/* Who is ready waits with his payer from now on; signals and the like are served at once. */
static int poll_sources(struct kvpd_control *c, int timeout_ms)
{
	struct epoll_event events[EVENTS];
	int n = EVENTS;

	for (int k = 0; k < POLLS && n == EVENTS; k++) {
		n = epoll_wait(c->epfd, events, EVENTS, k ? 0 : timeout_ms);
		if (n < 0 && errno != EINTR)
			return -errno;
		for (int i = 0; i < n && !c->stop; i++) {
			struct kvpd_source *s = events[i].data.ptr;

			if (s->dead)
				continue;
			if (s->payer)
				kvpd_source_raise(s, events[i].events);
			else
				s->ready(s, events[i].events);
		}
	}
	return 0;
}

static void serve(struct kvpd_control *c, struct kvpd_turns *row, uint64_t slice_ns)
{
	uint64_t now = kvpd_now_ns(), until = now + slice_ns;

	while (!c->stop && now < until && kvpd_payers_step(row, kvpd_now_ns, &now))
		;
}

int kvpd_control_turn(struct kvpd_control *c, int wait_ms)
{
	uint64_t now = kvpd_now_ns();
	uint64_t due = kvpd_conn_expire(c, now);
	int r, most;

	c->turns++;
	due = sooner(due, watchdog(c, now));
	due = sooner(due, kvpd_guest_turn(c, now));
	due = sooner(due, tell_status(c, now));
	due = sooner(due, kvpd_notify_again(&c->manager, now));
	due = sooner(due, kvpd_pressure_turn(c, now));
	due = sooner(due, kvpd_rates_turn(&c->rates, c->ledger, now));
	kvpd_control_bury(c);
	most = kvpd_turns_next(&c->payers.row) || kvpd_turns_next(&c->doors) ? 0 : until(due, now);
	if (wait_ms >= 0 && (most < 0 || most > wait_ms))
		most = wait_ms;
	r = poll_sources(c, most);
	if (r < 0) {
		kvpd_err("the control thread cannot wait: %s", strerror(-r));
		return r;
	}
	serve(c, &c->doors, DOORS_NS);
	serve(c, &c->payers.row, SLICE_NS);
	kvpd_control_bury(c);
	return 0;
}

int kvpd_control_run(struct kvpd_control *c)
{
	int r = 0;

	kvpd_slice_ask(TURN_NS, KVPD_NICER);
	kvpd_notify(&c->manager, kvpd_now_ns(), "READY=1\nSTATUS=no sessions");
	while (r == 0 && !c->stop)
		r = kvpd_control_turn(c, -1);
	kvpd_notify(&c->manager, kvpd_now_ns(), "STOPPING=1");
	return r;
}
