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
#include "daemon/control/payer.h"
#include "daemon/control/state.h"
#include "daemon/control/tenants.h"

int kvpd_control_post(void *ctx, const struct kvpd_event *event)
{
	struct kvpd_control *c = ctx;
	struct kvpd_posted *p = malloc(sizeof(*p));
	const uint64_t one = 1;

	if (!p)
		return -ENOMEM;
	*p = (struct kvpd_posted){ .event = *event };
	pthread_mutex_lock(&c->lock);
	STAILQ_INSERT_TAIL(&c->posted, p, link);
	pthread_mutex_unlock(&c->lock);
	/* Fails only when the counter is at its end: then it is readable anyway. */
	(void)!write(c->evfd, &one, sizeof(one));
	return 0;
}

static void posted_free(struct kvpd_posted *p)
{
	if (p->event.fd >= 0)
		close(p->event.fd);
	free(p);
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
		posted_free(p);
	}
	pthread_mutex_unlock(&c->lock);
}

/* ---- to the tenants ------------------------------------------------------------------------ */

static void entry_ready(struct kvpd_source *source, uint32_t events)
{
	struct kvpd_tenant_entry *entry =
		(struct kvpd_tenant_entry *)((char *)source -
					     offsetof(struct kvpd_tenant_entry, source));
	struct kvpd_posted *p = STAILQ_FIRST(&entry->posted);

	if (kvpd_guest_event(entry, p)) {
		STAILQ_REMOVE_HEAD(&entry->posted, link);
		posted_free(p);
	}
	if (!STAILQ_EMPTY(&entry->posted))
		kvpd_source_raise(source, events);
}

void kvpd_posted_begin(struct kvpd_control *c, struct kvpd_tenant_entry *entry)
{
	STAILQ_INIT(&entry->posted);
	kvpd_payer_init(&entry->payer, &c->payers.row);
	entry->source = (struct kvpd_source){ .ready = entry_ready, .payer = &entry->payer };
}

void kvpd_posted_end(struct kvpd_tenant_entry *entry)
{
	struct kvpd_posted *p;

	kvpd_source_end(&entry->source);
	while ((p = STAILQ_FIRST(&entry->posted))) {
		STAILQ_REMOVE_HEAD(&entry->posted, link);
		posted_free(p);
	}
}

static struct kvpd_tenant_entry *entry_of(struct kvpd_control *c, uint32_t tenant)
{
	struct kvpd_tenant_entry *e;

	TAILQ_FOREACH(e, &c->tenants, link)
		if (e->id == tenant)
			return e;
	return NULL;
}

/* All that is there at once: what the ledger posts meanwhile is announced anew. */
static void take_posted(struct kvpd_control *c, struct kvpd_posted_list *list)
{
	STAILQ_INIT(list);
	pthread_mutex_lock(&c->lock);
	STAILQ_CONCAT(list, &c->posted);
	pthread_mutex_unlock(&c->lock);
}

static void events_ready(struct kvpd_source *source, uint32_t events)
{
	struct kvpd_control *c =
		(struct kvpd_control *)((char *)source - offsetof(struct kvpd_control, ev_source));
	struct kvpd_tenant_entry *entry;
	struct kvpd_posted_list list;
	struct kvpd_posted *p;
	uint64_t n;

	(void)events;
	if (read(c->evfd, &n, sizeof(n)) < 0 && errno != EAGAIN)
		return;
	take_posted(c, &list);
	while ((p = STAILQ_FIRST(&list))) {
		STAILQ_REMOVE_HEAD(&list, link);
		p->number = ++c->n_events;
		entry = entry_of(c, p->event.tenant);
		if (!entry) {
			posted_free(p);
			continue;
		}
		STAILQ_INSERT_TAIL(&entry->posted, p, link);
		kvpd_source_raise(&entry->source, EPOLLIN);
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
	struct kvpd_posted_list list;
	struct kvpd_posted *p;

	take_posted(c, &list);
	while ((p = STAILQ_FIRST(&list))) {
		STAILQ_REMOVE_HEAD(&list, link);
		posted_free(p);
	}
}
