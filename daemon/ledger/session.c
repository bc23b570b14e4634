/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: attaching, being active, being expelled, and the end. */
#include "daemon/ledger/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/lookups.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/marks.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/space.h"
#include "daemon/ledger/switch.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tip.h"
#include "daemon/ledger/touch.h"
#include "daemon/ledger/warm.h"
#include "daemon/turns.h"
#include "shm/kvp_proto.h"
#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"

#define TELL_MS 1000 /* how often a message is tried again */

/* ---- finding, and whose ring is looked at --------------------------------------------------- */

struct kvpd_session *kvpd_session_find(struct kvpd_ledger *l, uint32_t id)
{
	struct kvpd_session *s = l->session[id % KVPD_MAX_SESSIONS];

	return s && s->id == id ? s : NULL;
}

void kvpd_session_activate(struct kvpd_session *s)
{
	if (s->expelled || s->turn.at)
		return;
	if (kvpd_list_empty(&s->in_spinning))
		kvp_sq_set_need_wake(s->page, 0);
	kvpd_list_remove(&s->in_spinning);
	kvpd_ledger_join(s->tenant, &s->turn);
}

bool kvpd_session_wants(const struct kvpd_session *s)
{
	return !s->stalled && (kvpd_ring_has_entries(s) || kvpd_parked_ready(s));
}

void kvpd_session_spin(struct kvpd_session *s)
{
	struct kvpd_ledger *l = s->tenant->ledger;

	s->last_ns = l->now_ns;
	kvpd_list_append(&l->spinning, &s->in_spinning);
}

/* See kvp_sq_must_wake(). */
void kvpd_session_sleep(struct kvpd_session *s)
{
	kvpd_list_remove(&s->in_spinning);
	kvp_sq_set_need_wake(s->page, 1);
	if (kvpd_session_wants(s))
		kvpd_session_activate(s);
}

/* The control thread has to end it; without memory for the message it is told with the next tick. */
static void tell(struct kvpd_session *s)
{
	struct kvpd_ledger *l = s->tenant->ledger;
	struct kvpd_event ev = {
		.type = KVPD_EV_EXPEL,
		.tenant = s->tenant->id,
		.session = s->id,
		.fd = -1,
		.error = s->expel_error,
	};
	bool told;

	snprintf(ev.reason, sizeof(ev.reason), "%s", s->expel_reason);
	told = l->post(l->ctx, &ev) == 0;
	if (s->untold && told)
		l->n_untold--;
	else if (!s->untold && !told)
		l->n_untold++;
	s->untold = !told;
}

void kvpd_session_expel(struct kvpd_session *s, int error, const char *reason)
{
	if (s->expelled)
		return;
	s->expelled = true;
	s->expel_error = error;
	s->expel_reason = reason;
	kvpd_ledger_leave(s->tenant, &s->turn);
	kvpd_list_remove(&s->in_spinning);
	kvpd_marks_forget(s);
	tell(s);
}

int kvpd_sessions_tell(struct kvpd_ledger *l, uint64_t now)
{
	if (l->n_untold && now - l->told_ns >= TELL_MS * KVPD_MS) {
		l->told_ns = now;
		for (uint32_t k = 0; l->n_untold && k < KVPD_MAX_SESSIONS; k++)
			if (l->session[k] && l->session[k]->untold)
				tell(l->session[k]);
	}
	return l->n_untold ? TELL_MS : -1;
}

/* ---- making, on the control thread ---------------------------------------------------------- */

static uint64_t page_bytes(void)
{
	return (sizeof(struct kvp_session_page) + 4095) / 4096 * 4096;
}

/*
 * The ledger reads what clients count in all of their shards, also in those that they never use:
 * these pages are made here, because making them takes the kernel longer than the ledger may.
 */
static void fault_in(const void *from, size_t bytes)
{
	const volatile uint8_t *p = from;

	for (size_t i = 0; i < bytes; i += 4096)
		(void)p[i];
	(void)p[bytes - 1];
}

/* The page is small and touched by few: plain pages, neither bound nor populated. */
static int make_page(const struct kvpd_ledger *l, struct kvpd_session *s, int *ret_fd)
{
	kvp_autoclose int fd = -1;
	void *addr;
	int r = kvp_seg_create("kvpool-session", page_bytes(), 0, &fd);

	if (r == 0 && l->owner != geteuid() && fchown(fd, l->owner, (gid_t)-1) < 0)
		r = -errno;
	if (r == 0)
		r = kvp_seg_seal(fd, KVP_SEALS_PAGE);
	if (r == 0)
		r = kvp_seg_map(fd, page_bytes(),
			KVP_MAP_WRITE | KVP_MAP_DONTFORK | KVP_MAP_DONTDUMP, &addr);
	if (r < 0)
		return r;
	s->page = addr;
	fault_in(&s->page->shard, sizeof(s->page->shard));
	s->page->h.magic = KVP_MAGIC_SESSION;
	s->page->h.abi_version = KVP_ABI_VERSION;
	s->page->h.header_bytes = sizeof(*s->page);
	s->page->h.size = page_bytes();
	s->page->h.epoch = l->epoch;
	kvp_sq_set_need_wake(s->page, 1);
	s->page_fd = kvp_take_fd(&fd);
	return kvp_seg_reopen_rw(s->page_fd, ret_fd);
}

static struct kvpd_session *session_new(const struct kvpd_peer *peer)
{
	struct kvpd_session *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->peer = *peer;
	s->peer.name[KVP_CLIENT_NAME - 1] = 0;
	s->wake_fd = s->page_fd = -1;
	s->touch.next = KVP_BLOCK_NONE;
	s->attached_ns = s->last_ns = kvpd_now_ns();
	kvpd_list_init(&s->in_tenant);
	kvpd_list_init(&s->in_spinning);
	kvpd_list_init(&s->in_wanting);
	kvpd_list_init(&s->in_ready);
	kvpd_list_init(&s->in_stalled);
	kvpd_list_init(&s->in_tips);
	kvpd_list_init(&s->in_low);
	kvpd_list_init(&s->in_wakes);
	kvpd_list_init(&s->in_marks);
	kvpd_list_init(&s->arenas);
	kvpd_list_init(&s->tickets);
	kvpd_list_init(&s->asks);
	kvpd_list_init(&s->offers);
	for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++)
		s->grant[i].next = i + 1;
	return s;
}

struct kvpd_session *kvpd_session_free(struct kvpd_session *s)
{
	if (!s)
		return NULL;
	if (s->wake_fd >= 0)
		close(s->wake_fd);
	if (s->page_fd >= 0)
		close(s->page_fd);
	kvp_seg_unmap(s->page, page_bytes());
	free(s->parked);
	free(s);
	return NULL;
}

/* ---- the end -------------------------------------------------------------------------------- */

void kvpd_session_end(struct kvpd_session *s)
{
	struct kvpd_tenant *t = s->tenant;
	struct kvpd_ledger *l = t->ledger;

	(void)kvpd_touch_apply(s, kvpd_now_ns());
	kvpd_warm_end(s);
	kvpd_remat_end(s);
	kvpd_ring_stall(s, false);
	kvpd_tip_clear(s);
	kvpd_claim_end_session(s);
	for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++)
		if (s->grant[i].state != KVPD_GRANT_FREE)
			kvpd_grant_release(s, &s->grant[i]);
	while (!kvpd_list_empty(&s->arenas))
		kvpd_extent_orphan(kvpd_container(s->arenas.next, struct kvpd_extent, link));
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		kvpd_space_leave(s, i, s->opens[i]);
	kvpd_session_lookups(s);
	kvpd_ledger_leave(t, &s->turn);
	kvpd_list_remove(&s->in_spinning);
	kvpd_reserve_end(s);
	kvpd_list_remove(&s->in_low);
	kvpd_list_remove(&s->in_wakes);
	kvpd_marks_forget(s);
	kvpd_lease_forget(s);
	kvpd_touch_forget(s);
	kvpd_switch_forget(s);
	kvpd_list_remove(&s->in_tenant);
	/* The client's duplicate keeps the eventfd alive: closing it alone does not take it out. */
	epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, s->wake_fd, NULL);
	l->session[s->place] = NULL;
	l->n_sessions--;
	l->n_untold -= s->untold;
	t->n_sessions--;
	t->places[s->place / 64] &= ~(UINT64_C(1) << s->place % 64);
	kvpd_extent_forgotten(s);
	kvpd_due(t, KVPD_DUE_EXTENTS);
}

/* ---- calls of the control thread ------------------------------------------------------------ */

struct attach_call {
	uint32_t tenant;
	struct kvpd_session *session;
	int catalog_fd;
	uint64_t catalog_bytes;
};

/* Ids count up, and never to a place that is taken. */
static uint32_t next_id(struct kvpd_ledger *l)
{
	do
		l->last_session++;
	while (!l->last_session || l->session[l->last_session % KVPD_MAX_SESSIONS]);
	return l->last_session;
}

static int attach_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct attach_call *c = arg;
	struct kvpd_tenant *t = c->tenant <= KVPD_MAX_TENANTS ? l->tenant[c->tenant] : NULL;
	struct kvpd_session *s = c->session;
	/*
	 * Edge-triggered and never read: the client shares the open file, so it could make a read
	 * here block for ever. Each of its writes is an edge.
	 */
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	int r;

	if (!t || t->abandoned)
		return -ENOENT;
	kvpd_ledger_charge(l, t);
	if (l->n_sessions >= l->max_sessions || t->n_sessions >= t->limits.max_sessions)
		return -EUSERS;
	/* Its sessions, and the chores. */
	r = kvpd_turns_reserve(&t->row, t->n_sessions + 2);
	if (r < 0)
		return r;
	c->catalog_fd = fcntl(t->catalog_fd, F_DUPFD_CLOEXEC, 0);
	if (c->catalog_fd < 0)
		return -errno;
	s->tenant = t;
	s->id = next_id(l);
	s->place = s->id % KVPD_MAX_SESSIONS;
	s->page->session = s->id;
	s->page->tenant = t->id;
	ev.data.u32 = s->place;
	if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &ev) < 0)
		return -errno;
	l->session[s->place] = s;
	l->n_sessions++;
	t->n_sessions++;
	t->places[s->place / 64] |= UINT64_C(1) << s->place % 64;
	kvpd_list_append(&t->sessions, &s->in_tenant);
	c->catalog_bytes = t->layout.bytes;
	return 0;
}

int kvpd_session_attach(struct kvpd_ledger *ledger, uint32_t tenant, const struct kvpd_peer *peer,
	struct kvpd_attach *ret_attach)
{
	struct attach_call c = { .tenant = tenant, .catalog_fd = -1 };
	kvp_autoclose int page_fd = -1, wake_fd = -1;
	int r = -ENOMEM;

	c.session = session_new(peer);
	if (!c.session)
		return r;
	r = make_page(ledger, c.session, &page_fd);
	if (r < 0)
		goto error;
	c.session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c.session->wake_fd >= 0)
		wake_fd = fcntl(c.session->wake_fd, F_DUPFD_CLOEXEC, 0);
	r = wake_fd < 0 ? -errno : kvpd_ledger_ask(ledger, attach_on_ledger, &c);
	if (r < 0)
		goto error;
	*ret_attach = (struct kvpd_attach){
		.session = c.session->id,
		.catalog_fd = c.catalog_fd,
		.page_fd = kvp_take_fd(&page_fd),
		.wake_fd = kvp_take_fd(&wake_fd),
		.catalog_bytes = c.catalog_bytes,
		.page_bytes = page_bytes(),
	};
	return 0;
error:
	if (c.catalog_fd >= 0)
		close(c.catalog_fd);
	kvpd_session_free(c.session);
	return r;
}

struct unused_call {
	const uint32_t *session;
	uint32_t n;
	int fd[KVPD_LOOKS];
};

static int pages_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct unused_call *c = arg;

	for (uint32_t i = 0; i < c->n; i++) {
		const struct kvpd_session *s = kvpd_session_find(l, c->session[i]);

		c->fd[i] = s ? s->page_fd : -1;
	}
	return 0;
}

/* The kernel takes some ten microseconds each. The control thread alone ends sessions, and is here. */
int kvpd_sessions_unused(
	struct kvpd_ledger *ledger, const uint32_t *sessions, uint32_t n, bool ret_unused[])
{
	struct unused_call c = { .session = sessions, .n = n < KVPD_LOOKS ? n : KVPD_LOOKS };

	(void)kvpd_ledger_ask(ledger, pages_on_ledger, &c);
	for (uint32_t i = 0; i < c.n; i++)
		ret_unused[i] = c.fd[i] >= 0 && kvp_seg_unused(c.fd[i]) == 0;
	return 0;
}

struct detach_call {
	uint32_t id;
	struct kvpd_session *session;
};

static int detach_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct detach_call *c = arg;

	c->session = kvpd_session_find(l, c->id);
	if (!c->session)
		return -ENOENT;
	kvpd_ledger_charge(l, c->session->tenant);
	kvpd_session_end(c->session);
	return 0;
}

int kvpd_session_detach(struct kvpd_ledger *ledger, uint32_t session)
{
	struct detach_call c = { .id = session };
	int r = kvpd_ledger_ask(ledger, detach_on_ledger, &c);

	/* Unmapping its page and closing takes the kernel a while: not on the ledger. */
	kvpd_session_free(c.session);
	return r;
}
