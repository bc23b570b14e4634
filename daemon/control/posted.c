/* SPDX-License-Identifier: Apache-2.0 */
/* The mailbox between two threads: the ledger posts, the control thread tells clients. */
#include "daemon/control/posted.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/control/control.h"
#include "daemon/control/guest.h"
#include "daemon/control/state.h"
#include "daemon/log.h"

int kvpd_control_post(void *ctx, const struct kvpd_event *event)
{
	struct kvpd_control *c = ctx;
	struct kvpd_posted *p = malloc(sizeof(*p));
	const uint64_t one = 1;

	if (!p)
		return -ENOMEM;
	p->event = *event;
	pthread_mutex_lock(&c->lock);
	STAILQ_INSERT_TAIL(&c->posted, p, link);
	pthread_mutex_unlock(&c->lock);
	/* Fails only when the counter is at its end: then it is readable anyway. */
	(void)!write(c->evfd, &one, sizeof(one));
	return 0;
}

static struct kvpd_posted *take_posted(struct kvpd_control *c)
{
	struct kvpd_posted *p;

	pthread_mutex_lock(&c->lock);
	p = STAILQ_FIRST(&c->posted);
	if (p)
		STAILQ_REMOVE_HEAD(&c->posted, link);
	pthread_mutex_unlock(&c->lock);
	return p;
}

void kvpd_forget_events(struct kvpd_control *c, uint32_t tenant)
{
	struct kvpd_posted *p, *next;

	pthread_mutex_lock(&c->lock);
	for (p = STAILQ_FIRST(&c->posted); p; p = next) {
		next = STAILQ_NEXT(p, link);
		if (p->event.tenant != tenant)
			continue;
		STAILQ_REMOVE(&c->posted, p, kvpd_posted, link);
		if (p->event.fd >= 0)
			close(p->event.fd);
		free(p);
	}
	pthread_mutex_unlock(&c->lock);
}

static void events_ready(struct kvpd_source *source, uint32_t events)
{
	struct kvpd_control *c =
		(struct kvpd_control *)((char *)source - offsetof(struct kvpd_control, ev_source));
	struct kvpd_posted *p;
	uint64_t n;

	(void)events;
	if (read(c->evfd, &n, sizeof(n)) < 0 && errno != EAGAIN)
		return;
	while ((p = take_posted(c))) {
		kvpd_guest_event(c, &p->event);
		free(p);
	}
}

int kvpd_posted_open(struct kvpd_control *c)
{
	c->evfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->evfd < 0)
		return -errno;
	c->ev_source.ready = events_ready;
	return kvpd_watch(c, c->evfd, EPOLLIN, &c->ev_source);
}

void kvpd_posted_drop(struct kvpd_control *c)
{
	struct kvpd_posted *p;

	while ((p = take_posted(c))) {
		if (p->event.fd >= 0)
			close(p->event.fd);
		free(p);
	}
}
