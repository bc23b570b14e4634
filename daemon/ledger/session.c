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
#include "daemon/ledger/claim.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/space.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tip.h"
#include "daemon/ledger/touch.h"
#include "shm/kvp_proto.h"
#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"

/* ---- finding, and whose ring is looked at --------------------------------------------------- */

struct kvpd_session *kvpd_session_find(struct kvpd_ledger *l, uint32_t id)
{
	for (uint32_t i = 0; i < KVPD_MAX_SESSIONS; i++)
		if (l->session[i] && l->session[i]->id == id)
			return l->session[i];
	return NULL;
}

void kvpd_session_activate(struct kvpd_session *s)
{
	if (s->expelled || !kvpd_list_empty(&s->in_active))
		return;
	kvp_sq_set_need_wake(s->page, 0);
	s->last_ns = kvpd_now_ns();
	kvpd_list_append(&s->tenant->ledger->active, &s->in_active);
}

/* The session goes to sleep unless an entry came meanwhile; see kvp_sq_must_wake(). */
void kvpd_session_deactivate(struct kvpd_session *s)
{
	kvp_sq_set_need_wake(s->page, 1);
	if (!s->stalled && kvp_load_seq(&s->page->sq_tail) != s->sq_head) {
		kvp_sq_set_need_wake(s->page, 0);
		return;
	}
	kvpd_list_remove(&s->in_active);
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
	kvpd_list_remove(&s->in_active);
	tell(s);
}

bool kvpd_sessions_busy(const struct kvpd_ledger *l)
{
	return l->n_untold;
}

void kvpd_sessions_tick(struct kvpd_ledger *l)
{
	for (uint32_t i = 0; l->n_untold && i < KVPD_MAX_SESSIONS; i++)
		if (l->session[i] && l->session[i]->untold)
			tell(l->session[i]);
}

/* ---- making --------------------------------------------------------------------------------- */

static uint32_t free_place(const struct kvpd_ledger *l)
{
	for (uint32_t i = 0; i < KVPD_MAX_SESSIONS; i++)
		if (!l->session[i])
			return i;
	return KVPD_MAX_SESSIONS;
}

static uint64_t page_bytes(void)
{
	return (sizeof(struct kvp_session_page) + 4095) / 4096 * 4096;
}

/* The page is small and touched by few: plain pages, neither bound nor populated. */
static int make_page(struct kvpd_session *s, int *ret_fd)
{
	const struct kvpd_ledger *l = s->tenant->ledger;
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
	s->page->h.magic = KVP_MAGIC_SESSION;
	s->page->h.abi_version = KVP_ABI_VERSION;
	s->page->h.header_bytes = sizeof(*s->page);
	s->page->h.size = page_bytes();
	s->page->h.epoch = l->epoch;
	s->page->session = s->id;
	s->page->tenant = s->tenant->id;
	kvp_sq_set_need_wake(s->page, 1);
	s->page_fd = kvp_take_fd(&fd);
	return kvp_seg_reopen_rw(s->page_fd, ret_fd);
}

static struct kvpd_session *session_new(struct kvpd_tenant *t, const struct kvpd_peer *peer)
{
	struct kvpd_session *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->tenant = t;
	s->peer = *peer;
	s->peer.name[KVP_CLIENT_NAME - 1] = 0;
	s->wake_fd = s->page_fd = -1;
	s->attached_ns = s->last_ns = kvpd_now_ns();
	kvpd_list_init(&s->in_tenant);
	kvpd_list_init(&s->in_active);
	kvpd_list_init(&s->in_wanting);
	kvpd_list_init(&s->arenas);
	for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++)
		s->grant[i].next = i + 1;
	return s;
}

static struct kvpd_session *session_free(struct kvpd_session *s)
{
	if (s->wake_fd >= 0)
		close(s->wake_fd);
	if (s->page_fd >= 0)
		close(s->page_fd);
	kvp_seg_unmap(s->page, page_bytes());
	free(s);
	return NULL;
}

static uint32_t next_id(struct kvpd_ledger *l)
{
	do
		l->last_session++;
	while (!l->last_session || kvpd_session_find(l, l->last_session));
	return l->last_session;
}

/* ---- figures -------------------------------------------------------------------------------- */

/* Faster than any client is: a lookup each nanosecond, in which sixteen tokens are asked for. */
#define TOKENS_PER_LOOKUP 16u

/* What a client says in its page, if it is more than before and no more than can be. */
static void believe(uint64_t *counted, uint64_t said, uint64_t most)
{
	if (said > most)
		said = most;
	if (said > *counted)
		*counted = said;
}

static void add(uint64_t *sum, uint64_t n)
{
	*sum = n > INT64_MAX - *sum ? INT64_MAX : *sum + n;
}

void kvpd_lookups_add(struct kvpd_lookups *sum, const struct kvpd_lookups *n)
{
	add(&sum->hits, n->hits);
	add(&sum->partial, n->partial);
	add(&sum->misses, n->misses);
	add(&sum->tokens_asked, n->tokens_asked);
	add(&sum->tokens_matched, n->tokens_matched);
}

void kvpd_session_lookups(struct kvpd_session *s, struct kvpd_lookups *sum)
{
	struct kvpd_lookups said = { 0 }, *counted = &s->lookups;
	uint64_t most = kvpd_now_ns() - s->attached_ns;

	for (uint32_t i = 0; i < KVP_SHARDS; i++) {
		const struct kvp_shard *sh = &s->page->shard[i];

		/* Sums may wrap: a client that writes nonsense has a nonsense of its own counted. */
		said.hits += kvp_load_relaxed(&sh->hits);
		said.partial += kvp_load_relaxed(&sh->partial);
		said.misses += kvp_load_relaxed(&sh->misses);
		said.tokens_asked += kvp_load_relaxed(&sh->tokens_asked);
		said.tokens_matched += kvp_load_relaxed(&sh->tokens_matched);
	}
	believe(&counted->hits, said.hits, most);
	believe(&counted->partial, said.partial, most);
	believe(&counted->misses, said.misses, most);
	believe(&counted->tokens_asked, said.tokens_asked, most * TOKENS_PER_LOOKUP);
	believe(&counted->tokens_matched, said.tokens_matched, counted->tokens_asked);
	kvpd_lookups_add(sum, counted);
}

/* ---- the end -------------------------------------------------------------------------------- */

void kvpd_session_finish(struct kvpd_session *s)
{
	struct kvpd_tenant *t = s->tenant;
	struct kvpd_ledger *l = t->ledger;

	kvpd_touch_apply(s, kvpd_now_ns());
	kvpd_session_lookups(s, &t->ended);
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
	kvpd_list_remove(&s->in_active);
	kvpd_list_remove(&s->in_wanting);
	kvpd_list_remove(&s->in_tenant);
	/* The client's duplicate keeps the eventfd alive: closing it alone does not take it out. */
	epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, s->wake_fd, NULL);
	l->session[s->place] = NULL;
	l->n_sessions--;
	l->n_untold -= s->untold;
	t->n_sessions--;
	t->dirty = true;
	for (uint32_t i = 0; i < t->n_extents; i++)
		if (t->extent[i] && t->extent[i]->unacked)
			kvpd_extent_unmapped(t->extent[i], s->place);
	session_free(s);
}

/* ---- calls of the control thread ------------------------------------------------------------ */

struct attach_call {
	uint32_t tenant;
	const struct kvpd_peer *peer;
	struct kvpd_attach out;
};

/* The page, and an eventfd that the ledger's epoll knows as `place`. */
static int open_session(struct kvpd_session *s, struct kvpd_attach *out)
{
	const struct kvpd_tenant *t = s->tenant;
	kvp_autoclose int page_fd = -1, catalog_fd = -1, wake_fd = -1;
	/*
	 * Edge-triggered and never read: the client shares the open file, so it could make a read
	 * here block for ever. Each of its writes is an edge.
	 */
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.u32 = s->place + 1 };
	int r = make_page(s, &page_fd);

	if (r < 0)
		return r;
	s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	catalog_fd = fcntl(t->catalog_fd, F_DUPFD_CLOEXEC, 0);
	wake_fd = s->wake_fd < 0 ? -1 : fcntl(s->wake_fd, F_DUPFD_CLOEXEC, 0);
	if (s->wake_fd < 0 || catalog_fd < 0 || wake_fd < 0 ||
		epoll_ctl(t->ledger->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &ev) < 0)
		return -errno;
	*out = (struct kvpd_attach){
		.session = s->id,
		.catalog_fd = kvp_take_fd(&catalog_fd),
		.page_fd = kvp_take_fd(&page_fd),
		.wake_fd = kvp_take_fd(&wake_fd),
		.catalog_bytes = t->layout.bytes,
		.page_bytes = page_bytes(),
	};
	return 0;
}

static int attach_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct attach_call *c = arg;
	struct kvpd_tenant *t = c->tenant <= KVPD_MAX_TENANTS ? l->tenant[c->tenant] : NULL;
	uint32_t place = free_place(l);
	struct kvpd_session *s;
	int r;

	if (!t || t->abandoned)
		return -ENOENT;
	if (place == KVPD_MAX_SESSIONS || l->n_sessions >= l->max_sessions ||
		t->n_sessions >= t->limits.max_sessions)
		return -EUSERS;
	s = session_new(t, c->peer);
	if (!s)
		return -ENOMEM;
	s->id = next_id(l);
	s->place = place;
	r = open_session(s, &c->out);
	if (r < 0) {
		session_free(s);
		return r;
	}
	l->session[place] = s;
	l->n_sessions++;
	t->n_sessions++;
	kvpd_list_append(&t->sessions, &s->in_tenant);
	return 0;
}

int kvpd_session_attach(struct kvpd_ledger *ledger, uint32_t tenant, const struct kvpd_peer *peer,
	struct kvpd_attach *ret_attach)
{
	struct attach_call c = { .tenant = tenant, .peer = peer };
	int r = kvpd_ledger_ask(ledger, attach_on_ledger, &c);

	if (r == 0)
		*ret_attach = c.out;
	return r;
}

struct unused_call {
	const uint32_t *session;
	uint32_t n;
	bool *unused;
};

/* Some ten microseconds each. */
static int unused_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct unused_call *c = arg;

	for (uint32_t i = 0; i < c->n; i++) {
		const struct kvpd_session *s = kvpd_session_find(l, c->session[i]);

		c->unused[i] = s && kvp_seg_unused(s->page_fd) == 0;
	}
	return 0;
}

int kvpd_sessions_unused(
	struct kvpd_ledger *ledger, const uint32_t *sessions, uint32_t n, bool ret_unused[])
{
	struct unused_call c = { sessions, n < KVPD_LOOKS ? n : KVPD_LOOKS, ret_unused };

	return kvpd_ledger_ask(ledger, unused_on_ledger, &c);
}

static int detach_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct kvpd_session *s = kvpd_session_find(l, *(uint32_t *)arg);

	if (!s)
		return -ENOENT;
	kvpd_session_finish(s);
	return 0;
}

int kvpd_session_detach(struct kvpd_ledger *ledger, uint32_t session)
{
	return kvpd_ledger_ask(ledger, detach_on_ledger, &session);
}
