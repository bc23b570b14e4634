/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's own thread: joins a daemon, maps what it sends, notices its death, joins the next.
 */
#include "libclient/client.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm/kvp_seg.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; earlier it fails and nothing is lost */
#endif

#define BACKOFF_MIN_MS   10u
#define BACKOFF_MAX_MS   1000u
#define CONNECT_POLL_MS  2u  /* the listen queue is full */
#define SWEEP_FAST_MS    20  /* an extent waits for its last reader */
#define SWEEP_SLOW_MS    250 /* old attachments, slots ahead of need */
#define STOCK_IDLE_NS    UINT64_C(1000000000)
#define CROWD_NAP_MS     8u
#define CROWD_NAP_MAX_MS 256u
#define CROWD_LATEST_MS  50u /* before the caller's time is up, to tell why */
#define GOODBYE_MS       200u
#define TAG_EXTENT       0x80000000u /* tags of EXTENT_GET: this | extent */
#define MAP_PRIVATE_TO   (KVP_MAP_DONTFORK | KVP_MAP_DONTDUMP | KVP_MAP_HUGEPAGE)

/* An extent that is no longer handed out, until the handles made before are gone. */
struct retiring {
	struct retiring *next;
	struct attachment *att;
	struct kvp_msg_id id;
	void *base;
	uint64_t bytes;
	uint32_t n;
	struct {
		struct kvp_prefix *match;
		uint64_t state;
	} seen[];
};

/* ---- attempts -------------------------------------------------------------------------------- */

static int fail(struct kvp_client *c, int error, const char *what)
{
	pthread_mutex_lock(&c->lock);
	snprintf(c->error_text, sizeof(c->error_text), "%s: %s", what, strerror(-error));
	pthread_mutex_unlock(&c->lock);
	return error;
}

static int fail_as_told(struct kvp_client *c, const struct kvp_packet *p)
{
	const struct kvp_msg_error *e = (const void *)p->body;

	pthread_mutex_lock(&c->lock);
	memcpy(c->error_text, e->text, sizeof(c->error_text));
	c->told = 1;
	pthread_mutex_unlock(&c->lock);
	return e->error < 0 && e->error > -4096 ? e->error : -EPROTO;
}

/* Waits for the socket or a kick. 0: the socket; -EAGAIN: neither in time; -ESHUTDOWN: closing. */
static int await(struct kvp_client *c, int sock, short events, int timeout_ms)
{
	struct pollfd p[2] = {
		{ .fd = c->kick, .events = POLLIN },
		{ .fd = sock, .events = events },
	};
	uint64_t count;

	if (poll(p, 2, timeout_ms) < 0 && errno != EINTR)
		return -errno;
	if (p[0].revents)
		(void)!read(c->kick, &count, sizeof(count));
	if (kvp_load_seq(&c->closing))
		return -ESHUTDOWN;
	return p[1].revents ? 0 : -EAGAIN;
}

static int await_until(struct kvp_client *c, int sock, short events, uint64_t deadline)
{
	for (;;) {
		uint64_t now = now_ns();
		int r;

		if (now >= deadline)
			return -ETIMEDOUT;
		r = await(c, sock, events, (int)((deadline - now) / NS_PER_MS) + 1);
		if (r != -EAGAIN)
			return r;
	}
}

static int connect_to(struct kvp_client *c, uint64_t deadline, int *ret_sock)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	kvp_autoclose int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (sock < 0)
		return -errno;
	strcpy(addr.sun_path, c->socket); /* fits, see client_init() */
	while (connect(sock, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		int r;

		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -errno;
		if (now_ns() >= deadline)
			return -ETIMEDOUT;
		r = await(c, -1, 0, (int)CONNECT_POLL_MS);
		if (r < 0 && r != -EAGAIN)
			return r;
	}
	*ret_sock = kvp_take_fd(&sock);
	return 0;
}

/* The next packet of the handshake. */
static int next_packet(struct kvp_client *c, int sock, uint64_t deadline, struct kvp_packet *p)
{
	for (;;) {
		int r = kvp_msg_recv(sock, KVP_MSG_TO_CLIENT, p);

		if (r != -EAGAIN)
			return r;
		r = await_until(c, sock, POLLIN, deadline);
		if (r < 0)
			return r;
	}
}

static int send_packet(
	struct attachment *att, uint32_t type, uint32_t tag, const void *body, uint32_t len)
{
	for (;;) {
		int r = kvp_msg_send(att->sock, (uint16_t)type, tag, body, len, NULL, 0);

		if (r != -EAGAIN)
			return r;
		r = kvp_msg_poll(att->sock, POLLOUT, now_ns() + 1000 * NS_PER_MS);
		if (r < 0)
			return r;
	}
}

/* ---- mapping --------------------------------------------------------------------------------- */

static int map_checked(int fd, uint64_t bytes, unsigned seals, uint32_t flags, void **ret_addr)
{
	int r = kvp_seg_check(fd, bytes, seals);

	return r < 0 ? r : kvp_seg_map(fd, bytes, flags, ret_addr);
}

static int map_page(struct attachment *att, int fd, const struct kvp_msg_welcome *w)
{
	void *base;
	int r;

	if (w->page_bytes < sizeof(struct kvp_session_page))
		return -EPROTO;
	r = map_checked(fd, w->page_bytes, KVP_SEALS_PAGE,
		KVP_MAP_WRITE | KVP_MAP_DONTFORK | KVP_MAP_DONTDUMP, &base);
	if (r < 0)
		return r;
	att->page = base;
	att->page_bytes = w->page_bytes;
	if (att->page->h.magic != KVP_MAGIC_SESSION || att->page->h.epoch != w->epoch)
		return -EPROTO;
	return att->page->h.incompat & ~KVP_INCOMPAT_KNOWN ? -EPROTONOSUPPORT : 0;
}

static int map_catalog(struct attachment *att, int fd, const struct kvp_msg_welcome *w)
{
	int r = map_checked(fd, w->catalog_bytes, KVP_SEALS_CATALOG, MAP_PRIVATE_TO, &att->catalog);

	if (r < 0)
		return r;
	att->catalog_bytes = w->catalog_bytes;
	r = kvp_catalog_attach(att->catalog, w->catalog_bytes, &att->view);
	if (r < 0)
		return r;
	return att->view.epoch == w->epoch ? 0 : -EPROTO;
}

static int map_extent(struct attachment *att, const struct kvp_msg_extent *x, int fd)
{
	struct extent_map *em;
	unsigned seals = KVP_SEALS_VAULT;
	uint32_t flags = MAP_PRIVATE_TO;
	void *base;
	int r;

	if (x->extent >= KVP_MAX_EXTENTS)
		return -EPROTO;
	em = &att->extents[x->extent];
	if (kvp_load_relaxed(&em->base))
		return kvp_load_relaxed(&em->generation) == x->generation ? 0 : -EPROTO;
	if (x->flags & KVP_EXTENT_WRITABLE) {
		flags |= KVP_MAP_WRITE;
		seals = KVP_SEALS_FIXED;
	} else if (x->kind == KVP_EXTENT_ARENA) {
		seals = KVP_SEALS_ARENA;
	}
	r = map_checked(fd, x->bytes, seals, flags, &base);
	if (r < 0)
		return r;
	em->writable = !!(x->flags & KVP_EXTENT_WRITABLE);
	em->grants = 0;
	kvp_store_relaxed(&em->bytes, x->bytes);
	kvp_store_relaxed(&em->generation, x->generation);
	/* Release: pairs with the load in hit_addr(). */
	kvp_store_seq(&em->base, (uintptr_t)base);
	return 0;
}

/*
 * Takes the page faults of an arena before its writers would. Not of the extents of others: page
 * tables for all of the pool in each of a thousand clients would be a pool of their own.
 */
static void populate(const struct extent_map *em)
{
	(void)madvise((void *)kvp_load_relaxed(&em->base), kvp_load_relaxed(&em->bytes),
		MADV_POPULATE_WRITE);
}

static int take_extent(struct attachment *att, struct kvp_packet *p)
{
	const struct kvp_msg_extent *x = (const void *)p->body;
	struct kvp_msg_id id = { .id = x->extent, .generation = x->generation };
	int fd = kvp_msg_take_fd(p, 0), r;

	r = map_extent(att, x, fd);
	close(fd);
	if (r == -ENOMEM || r == -EMFILE)
		return 0; /* its blocks are misses here; others need not suffer */
	if (r < 0)
		return r;
	atomic_fetch_and(&att->wanted[id.id / 64], ~(UINT64_C(1) << id.id % 64));
	if (!(x->flags & KVP_EXTENT_WRITABLE))
		return 0;
	KVP_FAULT("arena-ack");
	r = send_packet(att, KVP_MSG_ARENA_ACK, 0, &id, sizeof(id));
	populate(&att->extents[id.id]);
	return r;
}

/* ---- emptying -------------------------------------------------------------------------------- */

static void add_counters(struct kvp_counters *sum, const struct attachment *att)
{
	for (uint32_t i = 0; i < KVP_SHARDS; i++) {
		const struct kvp_shard *s = &att->page->shard[i];

		sum->hits += kvp_load_relaxed(&s->hits);
		sum->partial_hits += kvp_load_relaxed(&s->partial);
		sum->misses += kvp_load_relaxed(&s->misses);
		sum->tokens_asked += kvp_load_relaxed(&s->tokens_asked);
		sum->tokens_matched += kvp_load_relaxed(&s->tokens_matched);
		sum->unleased += kvp_load_relaxed(&s->unleased);
	}
}

void attachment_count(const struct attachment *att, struct kvp_counters *sum)
{
	if (!att->published)
		return;
	add_counters(sum, att);
	sum->timeouts += att->timeouts;
}

static void unmap_all(struct attachment *att)
{
	for (uint32_t i = 0; i < KVP_MAX_EXTENTS; i++) {
		struct extent_map *em = &att->extents[i];

		kvp_seg_unmap((void *)kvp_load_relaxed(&em->base), kvp_load_relaxed(&em->bytes));
	}
	/*
	 * The daemon may live, and then it waits for this session when it retires an extent.
	 * Release: pairs with the ledger's acquire; all reads are over.
	 */
	if (kvp_load_relaxed(&att->dead)) {
		kvp_store_release(&att->page->left, 1);
		(void)!write(att->wake, &(uint64_t){ 1 }, 8);
	}
	kvp_seg_unmap(att->page, att->page_bytes);
	kvp_seg_unmap(att->catalog, att->catalog_bytes);
}

/* Nothing points into it any more. It can be used again. ring_lock. */
static void attachment_empty(struct attachment *att)
{
	struct kvp_client *c = att->client;
	uint32_t slot = att->slot;

	attachment_count(att, &c->past);
	unmap_all(att);
	if (att->wake >= 0)
		close(att->wake);
	if (att->sock >= 0)
		close(att->sock);
	memset(att, 0, sizeof(*att));
	att->client = c;
	att->slot = slot;
	att->sock = att->wake = -1;
}

/*
 * With nothing left to read the leases may end. Waits a moment for the daemon to hang up: what it
 * has sent meanwhile must not make it meet a closed socket before it has read this.
 */
static void say_goodbye(struct attachment *att)
{
	struct kvp_packet *p = att->client->packet;
	uint64_t deadline = now_ns() + GOODBYE_MS * NS_PER_MS;

	if (att->sock < 0 || send_packet(att, KVP_MSG_BYE, 0, NULL, 0) < 0)
		return;
	while (kvp_msg_poll(att->sock, POLLIN, deadline) == 0) {
		int r = kvp_msg_recv(att->sock, KVP_MSG_TO_CLIENT, p);

		if (r == 0)
			kvp_msg_done(p);
		else if (r != -EAGAIN)
			return;
	}
}

void attachment_free(struct attachment *att, int mapped)
{
	if (mapped) {
		unmap_all(att);
		say_goodbye(att);
	}
	if (att->wake >= 0)
		close(att->wake);
	if (att->sock >= 0)
		close(att->sock);
	free(att);
}

static struct attachment *attachment_take(struct kvp_client *c)
{
	struct attachment *att;
	uint32_t i = 0;

	while (i < N_ATTACHMENTS && c->attachments[i] && c->attachments[i]->in_use)
		i++;
	if (i == N_ATTACHMENTS)
		return NULL;
	if (!c->attachments[i]) {
		att = aligned_alloc(64, (sizeof(*att) + 63) / 64 * 64);
		if (!att)
			return NULL;
		memset(att, 0, sizeof(*att));
		att->client = c;
		att->slot = i;
		att->sock = att->wake = -1;
		c->attachments[i] = att;
	}
	c->attachments[i]->in_use = 1;
	return c->attachments[i];
}

/* ---- attaching ------------------------------------------------------------------------------- */

static int hello(struct attachment *att, uint64_t deadline, struct kvp_packet *p)
{
	struct kvp_client *c = att->client;
	struct kvp_msg_hello h = {
		.abi_min = KVP_ABI_VERSION,
		.abi_max = KVP_ABI_VERSION,
		.role = KVP_HELLO_CLIENT,
	};
	int r;

	memcpy(h.name, c->name, sizeof(h.name));
	KVP_FAULT("hello");
	r = send_packet(att, KVP_MSG_HELLO, 0, &h, sizeof(h));
	if (r == -EPIPE || r == -ECONNRESET)
		r = 0; /* whoever hung up may have said why */
	while (r == 0) {
		r = next_packet(c, att->sock, deadline, p);
		if (r < 0 || p->h.type == KVP_MSG_WELCOME)
			break;
		if (p->h.type == KVP_MSG_PROVE)
			r = kvp_msg_send_proof(att->sock, p->h.tag, (const void *)p->body);
		else
			r = p->h.type == KVP_MSG_ERROR ? fail_as_told(c, p) : -EPROTO;
		kvp_msg_done(p);
	}
	return r;
}

static int welcome(struct attachment *att, struct kvp_packet *p)
{
	const struct kvp_msg_welcome *w = (const void *)p->body;
	kvp_autoclose int catalog = -1, page = -1;
	int r;

	if (p->h.n_fds != 3 || w->abi != KVP_ABI_VERSION)
		return p->h.n_fds == 3 ? -EPROTONOSUPPORT : -EPROTO;
	catalog = kvp_msg_take_fd(p, 0);
	page = kvp_msg_take_fd(p, 1);
	att->wake = kvp_msg_take_fd(p, 2);
	att->epoch = w->epoch;
	att->session = w->session;
	KVP_FAULT("welcome");
	r = map_page(att, page, w);
	return r < 0 ? r : map_catalog(att, catalog, w);
}

/* Extents until ATTACHED. */
static int first_extents(struct attachment *att, uint64_t deadline, struct kvp_packet *p)
{
	for (;;) {
		int r = next_packet(att->client, att->sock, deadline, p), attached;

		if (r < 0)
			return r;
		attached = p->h.type == KVP_MSG_ATTACHED;
		if (p->h.type == KVP_MSG_EXTENT)
			r = take_extent(att, p);
		else if (p->h.type == KVP_MSG_ERROR)
			r = fail_as_told(att->client, p);
		else if (!attached)
			r = -EPROTO;
		kvp_msg_done(p);
		if (r < 0 || attached)
			return r;
	}
}

static int dispatch(struct attachment *att, struct kvp_packet *p);

static int ask_space(struct attachment *att, const struct kvp_msg_space_open *open,
	uint64_t deadline, struct kvp_packet *p, struct kvp_msg_space *ret_space)
{
	int r = send_packet(att, KVP_MSG_SPACE_OPEN, 1, open, sizeof(*open));

	while (r == 0) {
		r = next_packet(att->client, att->sock, deadline, p);
		if (r < 0)
			break;
		if (p->h.type == KVP_MSG_SPACE) {
			memcpy(ret_space, p->body, sizeof(*ret_space));
			kvp_msg_done(p);
			return 1;
		}
		if (p->h.type == KVP_MSG_ERROR && p->h.tag == 1) {
			kvp_msg_done(p);
			return 0; /* this space stays closed: misses */
		}
		r = dispatch(att, p);
		kvp_msg_done(p);
	}
	return r;
}

static struct kvp_space *next_unbound(struct attachment *att)
{
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		struct kvp_space *s = att->client->spaces[i];

		if (s && att->binds[i].tried != s->stamp)
			return s;
	}
	return NULL;
}

/* Opens the client's spaces again and, when none is left, makes the attachment current. */
static int publish(struct attachment *att, uint64_t deadline, struct kvp_packet *p)
{
	struct kvp_client *c = att->client;
	struct kvp_space *space;

	pthread_mutex_lock(&c->lock);
	while ((space = next_unbound(att))) {
		struct kvp_msg_space_open open = { .canon = space->canon };
		struct kvp_msg_space answer;
		uint64_t stamp = space->stamp;
		uint32_t number = space->number;
		int r;

		att->binds[number].tried = stamp;
		pthread_mutex_unlock(&c->lock);
		r = ask_space(att, &open, deadline, p, &answer);
		if (r < 0)
			return r;
		pthread_mutex_lock(&c->lock);
		if (!r)
			continue;
		if (c->spaces[number] != space || space->stamp != stamp ||
			space_bind(att, space, &answer) < 0)
			tell_daemon(att, KVP_MSG_SPACE_CLOSE,
				&(struct kvp_msg_id){ answer.space, answer.generation },
				sizeof(struct kvp_msg_id));
	}
	pthread_mutex_lock(&c->ring_lock);
	att->published = 1;
	kvp_store_seq(&c->att, att);
	pthread_mutex_unlock(&c->ring_lock);
	c->joined++;
	c->error_text[0] = 0;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

/*
 * Until WELCOME, which is then in p. A daemon that a crowd connects to at once turns some away
 * before they have been heard; they come back in a moment, not all in the same one.
 */
static int join_daemon(struct attachment *att, uint64_t deadline, struct kvp_packet *p)
{
	struct kvp_client *c = att->client;
	uint32_t nap_ms = CROWD_NAP_MS;
	int r;

	for (;;) {
		uint64_t now;
		int waited;

		KVP_FAULT("connect");
		r = connect_to(c, deadline, &att->sock);
		if (r < 0)
			return r;
		r = hello(att, deadline, p);
		now = now_ns();
		if (r != -EPIPE && r != -EBUSY)
			return r;
		if (now + (nap_ms + CROWD_LATEST_MS) * NS_PER_MS >= deadline)
			return r == -EPIPE ? -ECONNREFUSED : r;
		close(kvp_take_fd(&att->sock));
		waited = await_until(c, -1, 0, now + (1 + now / 64 % nap_ms) * NS_PER_MS);
		if (waited != -ETIMEDOUT)
			return waited;
		nap_ms = nap_ms * 2 > CROWD_NAP_MAX_MS ? CROWD_NAP_MAX_MS : nap_ms * 2;
	}
}

static int attach_with(struct attachment *att, uint64_t deadline)
{
	struct kvp_packet *p = att->client->packet;
	int r = join_daemon(att, deadline, p);

	if (r == 0) {
		r = welcome(att, p);
		kvp_msg_done(p);
	}
	KVP_FAULT("mapped");
	if (r == 0)
		r = first_extents(att, deadline, p);
	KVP_FAULT("attached");
	return r == 0 ? publish(att, deadline, p) : r;
}

static int attach(struct kvp_client *c)
{
	uint64_t deadline = deadline_of(c, KVP_DEFAULT_TIMEOUT);
	struct attachment *att;
	int r;

	pthread_mutex_lock(&c->ring_lock);
	att = attachment_take(c);
	pthread_mutex_unlock(&c->ring_lock);
	if (!att)
		return fail(c, -ENOBUFS, "handles of too many former daemons are held");
	c->told = 0;
	r = attach_with(att, deadline);
	if (r == 0)
		return 0;
	if (!c->told)
		fail(c, r, c->socket);
	if (att->page)
		tell_daemon(att, KVP_MSG_BYE, NULL, 0);
	pthread_mutex_lock(&c->ring_lock);
	attachment_empty(att);
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

/* The daemon is gone: from here on every call is a miss or -ESHUTDOWN. */
static void detach(struct attachment *att)
{
	struct kvp_client *c = att->client;

	pthread_mutex_lock(&c->lock);
	pthread_mutex_lock(&c->ring_lock);
	kvp_store_seq(&c->att, NULL);
	kvp_store_seq(&att->dead, 1);
	close(kvp_take_fd(&att->sock));
	pthread_mutex_unlock(&c->ring_lock);
	for (struct call *call = c->calls; call; call = call->next) {
		call->done = 1;
		call->status = -ESHUTDOWN;
	}
	c->calls = NULL;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	word_wake(&att->page->cq_tail);
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct call *call_of(struct kvp_client *c, uint32_t tag)
{
	struct call **p = &c->calls, *call;

	while (*p && (*p)->tag != tag)
		p = &(*p)->next;
	call = *p;
	if (call)
		*p = call->next;
	return call;
}

static void answer_call(struct attachment *att, const struct kvp_packet *p)
{
	struct kvp_client *c = att->client;
	struct call *call;

	pthread_mutex_lock(&c->lock);
	call = call_of(c, p->h.tag);
	if (call) {
		call->done = 1;
		if (p->h.type == KVP_MSG_SPACE)
			memcpy(&call->space, p->body, sizeof(call->space));
		else
			call->status = ((const struct kvp_msg_error *)(const void *)p->body)->error;
		pthread_cond_broadcast(&c->changed);
	} else if (p->h.type == KVP_MSG_SPACE) {
		/* Whoever asked has given up. */
		struct kvp_msg_space space;

		memcpy(&space, p->body, sizeof(space));
		tell_daemon(att, KVP_MSG_SPACE_CLOSE,
			&(struct kvp_msg_id){ space.space, space.generation },
			sizeof(struct kvp_msg_id));
	}
	pthread_mutex_unlock(&c->lock);
}

void tell_daemon(struct attachment *att, uint32_t type, const void *body, uint32_t len)
{
	if (att->sock >= 0)
		(void)send_packet(att, type, 0, body, len);
}

int call_daemon(struct kvp_client *c, uint32_t type, const void *body, uint32_t len,
	uint64_t deadline, struct kvp_msg_space *ret_space)
{
	struct timespec ts = {
		.tv_sec = (time_t)(deadline / UINT64_C(1000000000)),
		.tv_nsec = (long)(deadline % UINT64_C(1000000000)),
	};
	struct attachment *att = kvp_load_seq(&c->att);
	struct call call = { 0 };
	int r;

	if (!att)
		return -ESHUTDOWN;
	c->tag = c->tag % (TAG_EXTENT - 1) + 1;
	call.tag = c->tag;
	call.next = c->calls;
	c->calls = &call;
	r = send_packet(att, type, call.tag, body, len);
	while (r == 0 && !call.done)
		r = -pthread_cond_timedwait(&c->changed, &c->lock, &ts);
	if (!call.done) {
		call_of(c, call.tag);
		return r == -EPIPE || r == -ECONNRESET ? -ESHUTDOWN : r;
	}
	if (call.status < 0)
		return call.status;
	*ret_space = call.space;
	return 0;
}

/* ---- extents come and go --------------------------------------------------------------------- */

static void ask_for_wanted(struct attachment *att)
{
	for (uint32_t i = 0; i < ARRAY_SIZE(att->wanted); i++) {
		uint64_t bits = kvp_load_relaxed(&att->wanted[i]);

		for (; bits; bits &= bits - 1) {
			uint32_t id = i * 64 + (uint32_t)__builtin_ctzll(bits);
			struct kvp_msg_id body = { .id = id };

			if (!att->asked_for[id]) {
				att->asked_for[id] = 1;
				(void)send_packet(att, KVP_MSG_EXTENT_GET, TAG_EXTENT | id, &body,
					sizeof(body));
			}
		}
	}
}

/* The daemon has answered, one way or the other: a later match may ask again. */
static void wanted_done(struct attachment *att, uint32_t tag)
{
	uint32_t id = tag & ~TAG_EXTENT;

	if (!(tag & TAG_EXTENT) || id >= KVP_MAX_EXTENTS)
		return;
	att->asked_for[id] = 0;
	atomic_fetch_and(&att->wanted[id / 64], ~(UINT64_C(1) << id % 64));
}

/* Handles that may be used to look into any extent just now. */
static uint32_t pinned_handles(struct attachment *att, struct retiring *rt)
{
	uint32_t n = 0;

	for (struct match_chunk *k = att->client->matches; k; k = kvp_load_acquire(&k->next)) {
		for (uint32_t i = 0; i < MATCHES_PER_CHUNK; i++) {
			uint64_t state = kvp_load_seq(&k->match[i].state);

			if ((uint32_t)state != (PINNED | (att->slot + 1)))
				continue;
			if (rt) {
				if (n == rt->n)
					return n;
				rt->seen[n].match = &k->match[i];
				rt->seen[n].state = state;
			}
			n++;
		}
	}
	return n;
}

static int retire(struct attachment *att, const struct kvp_msg_id *id)
{
	struct extent_map *em = &att->extents[id->id % KVP_MAX_EXTENTS];
	struct kvp_client *c = att->client;
	struct retiring *rt;
	uintptr_t base = kvp_load_relaxed(&em->base);
	uint32_t room;

	if (id->id >= KVP_MAX_EXTENTS)
		return -EPROTO;
	if (!base || kvp_load_relaxed(&em->generation) != id->generation)
		return send_packet(att, KVP_MSG_RETIRE_ACK, 0, id, sizeof(*id));
	/*
	 * Sequentially consistent: pairs with match_take(). A handle that is not seen below was
	 * made after this store and cannot find the extent. Handles are never freed, so room for
	 * all there are now, and as many again, suffices while this thread looks.
	 */
	kvp_store_seq(&em->base, 0);
	room = 2 * pinned_handles(att, NULL) + MATCHES_PER_CHUNK;
	rt = calloc(1, sizeof(*rt) + room * sizeof(rt->seen[0]));
	if (!rt) {
		kvp_store_seq(&em->base, base);
		return -ENOMEM;
	}
	rt->att = att;
	rt->id = *id;
	rt->base = (void *)base;
	rt->bytes = kvp_load_relaxed(&em->bytes);
	rt->n = room;
	rt->n = pinned_handles(att, rt);
	rt->next = c->retiring;
	c->retiring = rt;
	return 0;
}

/* Is the extent still in somebody's hands? Forgets handles that have been released. */
static int retiring_held(struct retiring *rt)
{
	struct attachment *att = rt->att;
	uint32_t n = 0, grants;

	for (uint32_t i = 0; i < rt->n; i++)
		if (kvp_load_seq(&rt->seen[i].match->state) == rt->seen[i].state)
			rt->seen[n++] = rt->seen[i];
	rt->n = n;
	pthread_mutex_lock(&att->client->ring_lock);
	grants = att->extents[rt->id.id].grants;
	pthread_mutex_unlock(&att->client->ring_lock);
	return n || grants;
}

static int is_retiring(const struct kvp_client *c, const struct attachment *att)
{
	for (const struct retiring *rt = c->retiring; rt; rt = rt->next)
		if (rt->att == att)
			return 1;
	return 0;
}

static void sweep_retiring(struct kvp_client *c)
{
	struct retiring **p = &c->retiring, *rt;

	while ((rt = *p)) {
		if (retiring_held(rt)) {
			p = &rt->next;
			continue;
		}
		kvp_seg_unmap(rt->base, rt->bytes);
		if (rt->att->sock >= 0)
			(void)send_packet(rt->att, KVP_MSG_RETIRE_ACK, 0, &rt->id, sizeof(rt->id));
		*p = rt->next;
		free(rt);
	}
}

void retiring_free(struct kvp_client *c, int mapped)
{
	struct retiring *rt;

	while ((rt = c->retiring)) {
		c->retiring = rt->next;
		if (mapped)
			kvp_seg_unmap(rt->base, rt->bytes);
		free(rt);
	}
}

/* ---- the thread ------------------------------------------------------------------------------ */

static int dispatch(struct attachment *att, struct kvp_packet *p)
{
	switch (p->h.type) {
	case KVP_MSG_EXTENT:
		wanted_done(att, p->h.tag);
		return take_extent(att, p);
	case KVP_MSG_RETIRE:
		return retire(att, (const void *)p->body);
	case KVP_MSG_SPACE:
		answer_call(att, p);
		return 0;
	case KVP_MSG_ERROR:
		wanted_done(att, p->h.tag);
		if (p->h.tag)
			answer_call(att, p);
		else
			(void)fail_as_told(att->client, p);
		return 0;
	default:
		return -EPROTO;
	}
}

static int receive(struct attachment *att)
{
	struct kvp_packet *p = att->client->packet;

	for (;;) {
		int r = kvp_msg_recv(att->sock, KVP_MSG_TO_CLIENT, p);

		if (r < 0)
			return r == -EAGAIN ? 0 : r;
		r = dispatch(att, p);
		kvp_msg_done(p);
		if (r < 0)
			return r;
	}
}

/* Slots that nobody asked for in a while go back; what the ring had no room for goes on. */
static void sweep_stock(struct attachment *att)
{
	uint64_t now = now_ns();
	uint32_t left = 0;

	pthread_mutex_lock(&att->client->ring_lock);
	ring_drain(att);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		struct space_bind *b = &att->binds[i];

		if (b->n_ahead && now - b->used_ns > STOCK_IDLE_NS)
			stock_return(att, b);
		left += b->n_ahead + b->asking;
	}
	att->stocked = left || att->n_returned;
	pthread_mutex_unlock(&att->client->ring_lock);
}

/* Empties attachments that nothing points into. Returns how many are left besides the current. */
static uint32_t sweep_dead(struct kvp_client *c)
{
	uint32_t left = 0;

	pthread_mutex_lock(&c->ring_lock);
	for (uint32_t i = 0; i < N_ATTACHMENTS; i++) {
		struct attachment *att = c->attachments[i];

		if (!att || !att->in_use || !kvp_load_relaxed(&att->dead))
			continue;
		if (att->refs || match_any(c, att) || is_retiring(c, att))
			left++;
		else
			attachment_empty(att);
	}
	pthread_mutex_unlock(&c->ring_lock);
	return left;
}

static void serve(struct kvp_client *c, struct attachment *att)
{
	int timeout = -1, r;

	/* Extents first: they may belong to a dead attachment, which waits for them. */
	sweep_retiring(c);
	if (sweep_dead(c) || kvp_load_relaxed(&att->stocked))
		timeout = SWEEP_SLOW_MS;
	if (c->retiring)
		timeout = SWEEP_FAST_MS;
	r = await(c, att->sock, POLLIN, timeout);
	if (r == -ESHUTDOWN)
		return;
	if (r == 0)
		r = receive(att);
	if (r < 0 && r != -EAGAIN) {
		detach(att);
		return;
	}
	ask_for_wanted(att);
	if (kvp_load_relaxed(&att->stocked))
		sweep_stock(att);
}

static void note_attempt(struct kvp_client *c, int r)
{
	pthread_mutex_lock(&c->lock);
	c->attempts++;
	c->error = r;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

void *client_thread(void *client)
{
	struct kvp_client *c = client;
	uint32_t backoff = BACKOFF_MIN_MS;

	pthread_setname_np(pthread_self(), "kvpool");
	while (!kvp_load_seq(&c->closing)) {
		struct attachment *att = kvp_load_seq(&c->att);
		int r;

		if (att) {
			serve(c, att);
			continue;
		}
		sweep_retiring(c);
		sweep_dead(c);
		r = attach(c);
		note_attempt(c, r);
		if (r == 0) {
			backoff = BACKOFF_MIN_MS;
		} else {
			(void)await(c, -1, 0, (int)backoff);
			backoff = backoff * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : backoff * 2;
		}
	}
	return NULL;
}
