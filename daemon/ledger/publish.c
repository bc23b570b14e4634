/* SPDX-License-Identifier: Apache-2.0 */
/* Telling the sessions of extents, with descriptors: read-only but for an arena's own client. */
#include "daemon/ledger/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/ledger/budget.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/tenant.h"
#include "daemon/log.h"
#include "shm/kvp_proto.h"
#include "shm/kvp_seg.h"

/* Descriptors that a session which attaches gets at once: about what fits its socket. */
#define FIRST_FDS 16u

/* How long not to try again after the system had no memory. */
#define NO_MEMORY_NS (1000 * KVPD_MS)
/* Or a device: what others hold there goes when their processes do. */
#define NO_MEMORY_THERE_NS (500 * KVPD_MS)

/* As clients are told of it. */
static struct kvp_msg_extent describe(const struct kvpd_extent *x)
{
	return (struct kvp_msg_extent){
		.extent = x->id,
		.generation = x->generation,
		.kind = x->kind,
		.bytes = x->bytes,
		.tier = x->cls->tier,
		.device = x->cls->medium == KVPD_DRAM ? 0 : x->cls->medium - 1,
		.first_slot = x->first_slot,
		.import = x->cls->medium == KVPD_DRAM ? 0 : kvpd_segment_import(x),
		.slot_bytes = x->cls->slot_bytes,
	};
}

/* Is its memory a memfd? */
static bool is_memfd(const struct kvpd_extent *x)
{
	return x->cls->medium == KVPD_DRAM || kvpd_segment_import(x) == KVP_IMPORT_MEMFD;
}

/* For a client to read: an open file of its own of a memfd. CUDA's descriptors are what they are. */
static int reopen(const struct kvpd_extent *x, int *ret_fd)
{
	int fd;

	if (x->cls->medium == KVPD_DRAM || kvpd_segment_import(x) != KVP_IMPORT_CUDA_FD)
		return kvp_seg_reopen_ro(x->fd, ret_fd);
	fd = fcntl(x->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int kvpd_extent_post(struct kvpd_extent *x, uint32_t type, int fd)
{
	struct kvpd_ledger *l = x->tenant->ledger;
	struct kvpd_event ev = {
		.type = type,
		.tenant = x->tenant->id,
		.session = x->owner ? x->owner->id : 0,
		.extent = describe(x),
		.fd = fd,
	};
	int r;

	if (type == KVPD_EV_ARENA)
		ev.extent.flags = KVP_EXTENT_WRITABLE;
	r = l->post(l->ctx, &ev);
	if (r < 0 && fd >= 0)
		close(fd);
	return r;
}

static void go_live(struct kvpd_extent *x)
{
	struct kvp_shm_extent *shm = &x->tenant->view.extents[x->id];
	int fd;

	x->state = KVPD_EXTENT_LIVE;
	if (kvpd_extent_counts(x)) {
		x->cls->vault_slots += x->slots;
		x->cls->vault_free += x->slots;
		/* Who it was made for may come a little later. */
		x->cls->last_take_ns = x->cls->came_ns = kvpd_now_ns();
		x->tenant->warm = true;
	}
	kvp_store_relaxed(&shm->generation, x->generation);
	kvp_store_relaxed(&shm->kind, x->kind);
	kvp_store_relaxed(&shm->owner, x->owner ? x->owner->id : 0);
	kvp_store_relaxed(&shm->bytes, x->bytes);
	kvp_store_relaxed(&shm->slot_bytes, x->cls->slot_bytes);
	kvp_store_relaxed(&shm->slots, x->slots);
	kvp_store_relaxed(&shm->used, 0);
	kvp_store_relaxed(&shm->tier, x->cls->tier);
	kvp_store_relaxed(&shm->device, x->cls->medium == KVPD_DRAM ? 0 : x->cls->medium - 1);
	kvp_store_relaxed(&shm->first_slot, x->first_slot);
	kvp_store_release(&shm->state, KVP_EXTENT_LIVE);
	/* Clients that do not hear of it ask for it when they meet it. */
	if (reopen(x, &fd) == 0)
		kvpd_extent_post(x, KVPD_EV_EXTENT, fd);
	if (x->kind == KVP_EXTENT_VAULT) {
		kvpd_budget_room(x->tenant);
		/* What drains had nowhere to go, and nothing else may tell it. */
		kvpd_due(x->tenant, x->tenant->n_draining ? KVPD_DUE_EXTENTS : 0);
	}
	kvpd_supply_came(x);
	kvpd_hosts_want(x);
}

void kvpd_extent_made(struct kvpd_extent *x, int result)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(60, 3);
	uint64_t again =
		kvpd_now_ns() + (x->cls->medium == KVPD_DRAM ? NO_MEMORY_NS : NO_MEMORY_THERE_NS);
	int fd, r;

	if (x->kind == KVP_EXTENT_VAULT)
		x->cls->making = 0;
	if (result < 0) {
		if (result != -ECANCELED && result != -ESHUTDOWN)
			kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
				"tenant %s: an extent of %llu MiB could not be made: %s; free "
				"some, or lower %s",
				x->tenant->name, (unsigned long long)x->bytes >> 20,
				strerror(-result),
				x->cls->medium == KVPD_DRAM
					? "`memory`"
					: "the device's `bytes`; kvctl doctor shows who holds "
					  "memory there");
		if (x->owner)
			kvpd_supplied(x->owner, x->cls)->refused_ns = again;
		x->cls->refused_ns = again;
		kvpd_extent_give_up(x);
		return;
	}
	if (x->kind == KVP_EXTENT_VAULT) {
		go_live(x);
		return;
	}
	if (!x->owner) {
		kvpd_extent_unwanted(x);
		return;
	}
	/* Of a memfd an open file of the client's own, which kvp_seg_unused() counts. */
	r = is_memfd(x) ? kvp_seg_reopen_rw(x->fd, &fd) : reopen(x, &fd);
	if (r == 0)
		r = kvpd_extent_post(x, KVPD_EV_ARENA, fd);
	if (r < 0) {
		kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
			"tenant %s: an arena cannot be offered: %s%s", x->tenant->name,
			strerror(-r), r == -EMFILE ? "; raise LimitNOFILE=" : "");
		kvpd_supplied(x->owner, x->cls)->refused_ns = again;
		kvpd_extent_unwanted(x);
		return;
	}
	x->state = KVPD_EXTENT_OFFERED;
}

/* ---- calls of the control thread ------------------------------------------------------------ */

/* ret_fd: NULL if no descriptor is wanted. Without one *msg is filled all the same. */
static int answer(const struct kvpd_session *s, const struct kvpd_extent *x,
	struct kvp_msg_extent *msg, int *ret_fd)
{
	if (x->state != KVPD_EXTENT_LIVE || x->owner == s)
		return -ENOENT;
	*msg = describe(x);
	return ret_fd ? reopen(x, ret_fd) : 0;
}

#define EXTENTS_A_CALL 64u

struct extent_call {
	uint32_t session;
	struct kvp_msg_id id;
	struct kvp_msg_extent msg;
	int fd;
	/* for all of them */
	struct kvp_msg_extent all[EXTENTS_A_CALL];
	int fds[EXTENTS_A_CALL];
	uint32_t n;
	uint32_t fds_left; /* which take the kernel a few microseconds each */
	uint32_t next;     /* id at which to go on; 0: that was all */
};

static int extents_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct extent_call *c = arg;
	struct kvpd_session *s = kvpd_session_find(l, c->session);
	uint32_t i = c->next;
	struct kvpd_tenant *t;
	int r;

	if (!s)
		return -ENOENT;
	t = s->tenant;
	kvpd_ledger_charge(l, t);
	for (c->n = 0; i < t->n_extents && c->n < EXTENTS_A_CALL; i++) {
		if (!t->extent[i])
			continue;
		c->fds[c->n] = -1;
		r = answer(s, t->extent[i], &c->all[c->n], c->fds_left ? &c->fds[c->n] : NULL);
		if (r == -ENOENT)
			continue;
		c->fds_left -= c->fds_left > 0;
		c->n++;
	}
	c->next = i < t->n_extents ? i : 0;
	return 0;
}

int kvpd_session_extents(struct kvpd_ledger *ledger, uint32_t session, uint32_t *from,
	void (*each)(void *ctx, const struct kvp_msg_extent *extent, int fd), void *ctx)
{
	struct extent_call c = {
		.session = session,
		.fds_left = *from ? 0 : FIRST_FDS,
		.next = *from,
	};
	int r = kvpd_ledger_ask(ledger, extents_on_ledger, &c);

	for (uint32_t i = 0; i < c.n; i++) {
		if (r == 0)
			each(ctx, &c.all[i], c.fds[i]);
		else if (c.fds[i] >= 0)
			close(c.fds[i]);
	}
	if (r == 0)
		*from = c.next;
	return r;
}

static struct kvpd_extent *extent_of(const struct kvpd_session *s, uint32_t id)
{
	return id < s->tenant->n_extents ? s->tenant->extent[id] : NULL;
}

static int extent_get_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct extent_call *c = arg;
	struct kvpd_session *s = kvpd_session_find(l, c->session);
	struct kvpd_extent *x = s ? extent_of(s, c->id.id) : NULL;

	kvpd_ledger_charge(l, s ? s->tenant : NULL);
	return x ? answer(s, x, &c->msg, &c->fd) : -ENOENT;
}

int kvpd_extent_get(struct kvpd_ledger *ledger, uint32_t session, uint32_t extent,
	struct kvp_msg_extent *ret_extent, int *ret_fd)
{
	struct extent_call c = { .session = session, .id.id = extent };
	int r = kvpd_ledger_ask(ledger, extent_get_on_ledger, &c);

	if (r == 0) {
		*ret_extent = c.msg;
		*ret_fd = c.fd;
	}
	return r;
}

/*
 * Until it was sealed its client could take pages out again. Reading such a hole would take memory
 * that nobody has counted, or end the daemon where there are no huge pages left.
 */
static bool has_holes(const struct kvpd_extent *x)
{
	struct stat st;

	return fstat(x->fd, &st) < 0 || (uint64_t)st.st_blocks * 512 < x->bytes;
}

/* What is no memfd cannot be sealed: others are told to read it, and it is their word that counts. */
static int seal_arena(const struct kvpd_extent *x)
{
	int r;

	if (!is_memfd(x))
		return 0;
	r = kvp_seg_seal(x->fd, KVP_SEALS_ARENA);
	if (kvp_seg_check(x->fd, x->bytes, KVP_SEALS_ARENA) < 0 || has_holes(x))
		return r < 0 ? r : -EPROTO;
	return 0;
}

static int arena_ack_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct extent_call *c = arg;
	struct kvpd_session *s = kvpd_session_find(l, c->session);
	struct kvpd_extent *x = s ? extent_of(s, c->id.id) : NULL;
	int r;

	kvpd_ledger_charge(l, s ? s->tenant : NULL);
	if (!x || x->owner != s || x->state != KVPD_EXTENT_OFFERED ||
		x->generation != c->id.generation)
		return -EINVAL;
	r = seal_arena(x);
	if (r < 0)
		return r;
	kvpd_supplied(s, x->cls)->making = false;
	go_live(x);
	kvpd_supply_note(s);
	return 0;
}

int kvpd_arena_ack(struct kvpd_ledger *ledger, uint32_t session, const struct kvp_msg_id *id)
{
	struct extent_call c = { .session = session, .id = *id };

	return kvpd_ledger_ask(ledger, arena_ack_on_ledger, &c);
}

static int retire_ack_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct extent_call *c = arg;
	struct kvpd_session *s = kvpd_session_find(l, c->session);
	struct kvpd_extent *x = s ? extent_of(s, c->id.id) : NULL;

	kvpd_ledger_charge(l, s ? s->tenant : NULL);
	/* Late or twice is harmless: the extent may be gone already. */
	if (x && x->generation == c->id.generation)
		kvpd_extent_unmapped(x, s->place);
	return s ? 0 : -ENOENT;
}

int kvpd_retire_ack(struct kvpd_ledger *ledger, uint32_t session, const struct kvp_msg_id *id)
{
	struct extent_call c = { .session = session, .id = *id };

	return kvpd_ledger_ask(ledger, retire_ack_on_ledger, &c);
}
