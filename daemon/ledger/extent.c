/* SPDX-License-Identifier: Apache-2.0 */
/* Extents and their slots: size classes, growth inside a tenant's share, retirement. */
#include "daemon/ledger/ledger.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* How long not to try again after the system had no memory, or work for room was begun. */
#define NO_MEMORY_NS (1000 * KVPD_MS)
#define RECLAIM_NS   (5 * KVPD_MS)
/* A fully free vault extent stays for so long after its class was last used. */
#define WARM_NS (1000 * KVPD_MS)

/* A session's first arena is small, so that its first slots are there soon. */
#define FIRST_ARENA (UINT64_C(8) << 20)
#define FIRST_SLOTS 16u

uint64_t kvpd_slot_bytes(uint64_t block_bytes)
{
	return (block_bytes + 63) / 64 * 64;
}

/* ---- size classes --------------------------------------------------------------------------- */

static bool class_used(const struct kvpd_tenant *t, const struct kvpd_class *c)
{
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (t->space[i].cls == c)
			return true;
	for (uint32_t i = 0; i < t->n_extents; i++)
		if (t->extent[i] && t->extent[i]->cls == c)
			return true;
	return false;
}

struct kvpd_class *kvpd_class_get(struct kvpd_tenant *t, uint64_t slot_bytes)
{
	struct kvpd_class *c = NULL;

	for (uint32_t i = 0; i < t->n_classes; i++)
		if (t->cls[i].slot_bytes == slot_bytes)
			return &t->cls[i];
	if (t->n_classes < KVP_MAX_SPACES)
		c = &t->cls[t->n_classes++];
	for (uint32_t i = 0; !c && i < KVP_MAX_SPACES; i++)
		if (!class_used(t, &t->cls[i]))
			c = &t->cls[i];
	if (c) {
		memset(c, 0, sizeof(*c));
		c->slot_bytes = slot_bytes;
		kvpd_list_init(&c->vaults);
	}
	return c;
}

static uint64_t data_bytes(const struct kvpd_tenant *t)
{
	return t->limits.share > t->meta_bytes ? t->limits.share - t->meta_bytes : 0;
}

bool kvpd_slot_fits(const struct kvpd_tenant *t, uint64_t slot_bytes)
{
	return slot_bytes <= UINT32_MAX && kvpd_pool_round(t->ledger, slot_bytes) <= data_bytes(t);
}

/* ---- slots ---------------------------------------------------------------------------------- */

static bool gives(const struct kvpd_extent *x)
{
	return x->state == KVPD_EXTENT_LIVE && !x->draining;
}

static bool counted(const struct kvpd_extent *x)
{
	return x->kind == KVP_EXTENT_VAULT && gives(x);
}

static void show_used(struct kvpd_extent *x)
{
	kvp_store_relaxed(&x->tenant->view.extents[x->id].used, x->used);
}

bool kvpd_slot_take(struct kvpd_extent *x, uint32_t flags, uint32_t *ret_slot)
{
	uint32_t i = x->free_head;

	if (!gives(x) || i == KVP_BLOCK_NONE)
		return false;
	x->free_head = x->slot[i].next;
	x->slot[i].next = i;
	x->slot[i].flags = flags;
	x->used++;
	show_used(x);
	if (x->kind == KVP_EXTENT_VAULT)
		x->cls->vault_free--;
	*ret_slot = i;
	return true;
}

static void slot_settle(struct kvpd_place p)
{
	struct kvpd_extent *x = p.extent;
	struct kvpd_slot *s = &x->slot[p.slot];

	if (s->flags || s->block != KVP_BLOCK_NONE)
		return;
	s->next = x->free_head;
	x->free_head = p.slot;
	x->used--;
	show_used(x);
	if (counted(x)) {
		x->cls->vault_free++;
		x->tenant->warm |= !x->used;
	}
	if (x->draining || !kvpd_list_empty(&x->tenant->wanting))
		x->tenant->dirty = true;
}

void kvpd_slot_clear(struct kvpd_place p, uint32_t flags)
{
	p.extent->slot[p.slot].flags &= ~flags;
	slot_settle(p);
}

void kvpd_slot_unblock(struct kvpd_place p)
{
	p.extent->slot[p.slot].block = KVP_BLOCK_NONE;
	slot_settle(p);
}

struct kvpd_place kvpd_block_place(const struct kvpd_tenant *t, uint32_t block)
{
	const struct kvp_payload_desc *d = &t->view.blocks[block].payload[KVP_TIER_DRAM];
	struct kvpd_extent *x = t->extent[kvp_where_extent(kvp_load_relaxed(&d->where))];
	uint64_t slot = kvp_load_relaxed(&d->offset) / x->cls->slot_bytes;

	return (struct kvpd_place){ .extent = x, .slot = (uint32_t)slot };
}

uint64_t kvpd_place_offset(struct kvpd_place p)
{
	return p.slot * p.extent->cls->slot_bytes;
}

void *kvpd_place_addr(struct kvpd_place p)
{
	return (uint8_t *)p.extent->addr + kvpd_place_offset(p);
}

/* ---- making --------------------------------------------------------------------------------- */

static struct kvpd_extent *extent_new(
	struct kvpd_tenant *t, struct kvpd_class *c, uint32_t kind, uint64_t bytes)
{
	struct kvpd_extent *x = calloc(1, sizeof(*x));
	uint32_t id = 0;

	while (id < t->n_extents && t->extent[id])
		id++;
	if (!x || id == KVP_MAX_EXTENTS)
		goto error;
	x->tenant = t;
	x->cls = c;
	x->kind = kind;
	x->id = id;
	x->bytes = bytes;
	x->slots = (uint32_t)(bytes / c->slot_bytes);
	x->fd = -1;
	kvpd_list_init(&x->link);
	x->slot = calloc(x->slots, sizeof(*x->slot));
	if (!x->slot)
		goto error;
	for (uint32_t i = 0; i < x->slots; i++) {
		x->slot[i].block = KVP_BLOCK_NONE;
		x->slot[i].next = i + 1 < x->slots ? i + 1 : KVP_BLOCK_NONE;
	}
	x->generation = kvp_load_relaxed(&t->view.extents[id].generation) + 1;
	if (id == t->n_extents)
		t->n_extents++;
	t->extent[id] = x;
	t->charged += bytes;
	if (kind == KVP_EXTENT_ARENA)
		t->arena_bytes += bytes;
	return x;
error:
	free(x);
	return NULL;
}

static void extent_free(struct kvpd_extent *x)
{
	struct kvpd_tenant *t = x->tenant;

	kvpd_list_remove(&x->link);
	t->extent[x->id] = NULL;
	t->charged -= x->bytes;
	if (x->kind == KVP_EXTENT_ARENA)
		t->arena_bytes -= x->bytes;
	if (x->draining)
		t->n_draining--;
	t->dirty = true;
	free(x->unacked);
	free(x->slot);
	free(x);
}

/* An extent that comes to nothing. */
static void give_up(struct kvpd_extent *x)
{
	if (x->kind == KVP_EXTENT_ARENA && x->owner) {
		x->owner->making = false;
		x->owner->arena_bytes -= x->bytes;
	}
	extent_free(x);
}

static uint64_t round_down(const struct kvpd_ledger *l, uint64_t bytes)
{
	uint64_t up = kvpd_pool_round(l, bytes);

	return up == bytes ? bytes : up - (kvpd_pool_round(l, 1));
}

/* Exact size of a new extent: as wanted, at least a slot, at most room. 0: there is no room. */
static uint64_t extent_size(
	const struct kvpd_ledger *l, const struct kvpd_class *c, uint64_t want, uint64_t room)
{
	uint64_t bytes, slots = want / c->slot_bytes;

	/* The ledger looks at all slots of an extent when it searches for blocks to move. */
	if (slots > KVPD_EXTENT_SLOTS)
		slots = KVPD_EXTENT_SLOTS;
	bytes = kvpd_pool_round(l, (slots ? slots : 1) * c->slot_bytes);
	if (bytes > room)
		bytes = round_down(l, room);
	return bytes < c->slot_bytes ? 0 : bytes;
}

static uint64_t room(const struct kvpd_tenant *t)
{
	return t->limits.share > t->charged ? t->limits.share - t->charged : 0;
}

uint64_t kvpd_arena_total(const struct kvpd_tenant *t, uint64_t slot_bytes)
{
	uint64_t half = data_bytes(t) / 2, one = kvpd_pool_round(t->ledger, slot_bytes);

	return half < one ? one : half;
}

/* Sessions with an arena or in want of one share what arenas may take in all. */
uint64_t kvpd_arena_cap(const struct kvpd_session *s, uint64_t slot_bytes)
{
	const struct kvpd_tenant *t = s->tenant;
	uint64_t one = kvpd_pool_round(t->ledger, slot_bytes), users = 1, cap;

	for (const struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
		const struct kvpd_session *other =
			kvpd_container(it, struct kvpd_session, in_tenant);

		users += other != s && (other->arena_bytes || other->reserve.waiting);
	}
	cap = kvpd_arena_total(t, slot_bytes) / users;
	if (cap > t->limits.arena)
		cap = t->limits.arena;
	return cap < one ? one : cap;
}

/* The vault leaves room for the first arena. */
static uint64_t vault_room(const struct kvpd_tenant *t, const struct kvpd_class *c)
{
	uint64_t keep = kvpd_arena_total(t, c->slot_bytes), left = room(t);

	if (keep > t->limits.arena)
		keep = t->limits.arena;
	keep = keep > t->arena_bytes ? keep - t->arena_bytes : 0;
	return left > keep ? left - keep : 0;
}

static void vault_grow(struct kvpd_tenant *t, struct kvpd_class *c, uint64_t now)
{
	uint64_t bytes = extent_size(t->ledger, c, t->ledger->extent_bytes, vault_room(t, c));
	struct kvpd_extent *x;

	if (!bytes || c->making || now < c->refused_ns || t->abandoned)
		return;
	x = extent_new(t, c, KVP_EXTENT_VAULT, bytes);
	if (!x)
		return;
	c->making = 1;
	kvpd_list_append(&c->vaults, &x->link);
	if (kvpd_pool_make(x) < 0) {
		c->making = 0;
		extent_free(x);
	}
}

bool kvpd_vault_take(struct kvpd_tenant *t, struct kvpd_class *c, const struct kvpd_extent *except,
	uint64_t now, struct kvpd_place *ret_place)
{
	if (c->vault_free <= c->vault_slots / 4)
		vault_grow(t, c, now);
	for (struct kvpd_list *it = c->vaults.next; it != &c->vaults; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);
		uint32_t slot;

		if (x == except || !kvpd_slot_take(x, KVPD_SLOT_TARGET, &slot))
			continue;
		c->last_take_ns = now;
		*ret_place = (struct kvpd_place){ .extent = x, .slot = slot };
		return true;
	}
	return false;
}

/* ---- room for somebody else ----------------------------------------------------------------- */

void kvpd_extent_drain(struct kvpd_extent *x)
{
	if (x->draining)
		return;
	if (counted(x)) {
		x->cls->vault_slots -= x->slots;
		x->cls->vault_free -= x->slots - x->used;
	}
	x->draining = true;
	x->tenant->n_draining++;
	x->tenant->dirty = true;
}

/* An arena of the session that has most beyond its part; the one in which least lies. */
static struct kvpd_extent *arena_victim(struct kvpd_tenant *t, const struct kvpd_session *except)
{
	struct kvpd_session *most = NULL;
	struct kvpd_extent *least = NULL;

	for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);

		if (s != except && s->arena_bytes && (!most || s->arena_bytes > most->arena_bytes))
			most = s;
	}
	if (!most)
		return NULL;
	for (struct kvpd_list *it = most->arenas.next; it != &most->arenas; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);

		if (gives(x) && (!least || x->used < least->used))
			least = x;
	}
	return least && most->arena_bytes > kvpd_arena_cap(most, least->cls->slot_bytes) ? least
											 : NULL;
}

/* The emptiest vault extent; of another class than `except`. */
static struct kvpd_extent *vault_victim(struct kvpd_tenant *t, const struct kvpd_class *except)
{
	struct kvpd_extent *least = NULL;

	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];

		if (x && x->cls != except && counted(x) && (!least || x->used < least->used))
			least = x;
	}
	return least;
}

static bool reclaiming(const struct kvpd_tenant *t)
{
	for (uint32_t i = 0; t->n_draining && i < t->n_extents; i++) {
		const struct kvpd_extent *x = t->extent[i];

		if (x && x->draining && !x->unproven)
			return true;
	}
	return false;
}

/*
 * Has something emptied and given back, one extent at a time: of the session that has more than its
 * part, else of the vault. Arenas of `spared` stay, and unless there is nothing else the vault of
 * class `c`. Either may be NULL.
 */
static void reclaim(
	struct kvpd_tenant *t, const struct kvpd_session *spared, const struct kvpd_class *c)
{
	struct kvpd_extent *x;

	if (reclaiming(t))
		return;
	x = arena_victim(t, spared);
	if (!x)
		x = vault_victim(t, c);
	if (!x)
		x = vault_victim(t, NULL);
	if (x)
		kvpd_extent_drain(x);
}

/* A session that turned to blocks of another size gives up an arena of the former. */
static void trade_class(struct kvpd_session *s, const struct kvpd_class *c)
{
	struct kvpd_extent *least = NULL;

	for (struct kvpd_list *it = s->arenas.next; it != &s->arenas; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);

		if (x->cls == c || x->draining)
			return; /* has room of this class, or is at it */
		if (gives(x) && (!least || x->used < least->used))
			least = x;
	}
	if (least)
		kvpd_extent_drain(least);
}

/* What the next arena of the session should measure, if there were room for anything. */
static uint64_t arena_wish(const struct kvpd_session *s, const struct kvpd_class *c, uint64_t cap)
{
	const struct kvpd_ledger *l = s->tenant->ledger;
	uint64_t want = s->arena_bytes ? l->extent_bytes : FIRST_ARENA;

	if (want < FIRST_SLOTS * c->slot_bytes)
		want = FIRST_SLOTS * c->slot_bytes;
	if (want > l->extent_bytes)
		want = l->extent_bytes;
	return want > cap / 2 ? cap / 2 : want;
}

static void arena_begin(struct kvpd_session *s, struct kvpd_class *c, uint64_t bytes)
{
	struct kvpd_extent *x = extent_new(s->tenant, c, KVP_EXTENT_ARENA, bytes);

	if (!x)
		return;
	x->owner = s;
	s->making = true;
	s->arena_bytes += bytes;
	kvpd_list_append(&s->arenas, &x->link);
	if (kvpd_pool_make(x) < 0)
		give_up(x);
}

void kvpd_arena_grow(struct kvpd_session *s, struct kvpd_class *c, uint64_t now)
{
	struct kvpd_tenant *t = s->tenant;
	uint64_t cap, want, total, own, all, bytes;

	if (s->making || s->expelled || now < s->refused_ns || t->abandoned)
		return;
	cap = kvpd_arena_cap(s, c->slot_bytes);
	want = arena_wish(s, c, cap);
	total = kvpd_arena_total(t, c->slot_bytes);
	own = cap > s->arena_bytes ? cap - s->arena_bytes : 0;
	all = total > t->arena_bytes ? total - t->arena_bytes : 0;
	if (!s->arena_bytes && all < kvpd_pool_round(t->ledger, c->slot_bytes))
		all = kvpd_pool_round(t->ledger, c->slot_bytes); /* a slot for everybody */
	if (!extent_size(t->ledger, c, want, own)) {
		s->refused_ns = now + RECLAIM_NS;
		trade_class(s, c);
		return;
	}
	bytes = extent_size(t->ledger, c, want, own < all ? own : all);
	if (bytes > room(t)) {
		uint64_t less = extent_size(t->ledger, c, want, room(t));

		/* Who has an arena already can wait for a whole one. */
		bytes = less >= bytes / 2 || !s->arena_bytes ? less : 0;
	}
	if (bytes) {
		arena_begin(s, c, bytes);
		return;
	}
	s->refused_ns = now + RECLAIM_NS;
	reclaim(t, s, c);
}

/* ---- telling the sessions ------------------------------------------------------------------- */

static void post(struct kvpd_extent *x, uint32_t type, int fd)
{
	struct kvpd_ledger *l = x->tenant->ledger;
	struct kvpd_event ev = {
		.type = type,
		.tenant = x->tenant->id,
		.session = x->owner ? x->owner->id : 0,
		.extent = {
			.extent = x->id,
			.generation = x->generation,
			.kind = x->kind,
			.flags = type == KVPD_EV_ARENA ? KVP_EXTENT_WRITABLE : 0,
			.bytes = x->bytes,
		},
		.fd = fd,
	};

	l->post(l->ctx, &ev);
}

static void go_live(struct kvpd_extent *x)
{
	struct kvp_shm_extent *shm = &x->tenant->view.extents[x->id];
	int fd;

	x->state = KVPD_EXTENT_LIVE;
	if (counted(x)) {
		x->cls->vault_slots += x->slots;
		x->cls->vault_free += x->slots;
		x->cls->last_take_ns = kvpd_now_ns();
		x->tenant->warm = true;
	}
	kvp_store_relaxed(&shm->generation, x->generation);
	kvp_store_relaxed(&shm->kind, x->kind);
	kvp_store_relaxed(&shm->owner, x->owner ? x->owner->id : 0);
	kvp_store_relaxed(&shm->bytes, x->bytes);
	kvp_store_relaxed(&shm->slot_bytes, x->cls->slot_bytes);
	kvp_store_relaxed(&shm->slots, x->slots);
	kvp_store_relaxed(&shm->used, 0);
	kvp_store_release(&shm->state, KVP_EXTENT_LIVE);
	/* Without a descriptor for them the clients ask for it when they meet the extent. */
	if (kvp_seg_reopen_ro(x->fd, &fd) == 0)
		post(x, KVPD_EV_EXTENT, fd);
	x->tenant->dirty = true;
}

void kvpd_extent_made(struct kvpd_extent *x, int result)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(60, 3);
	uint64_t again = kvpd_now_ns() + NO_MEMORY_NS;
	int fd;

	if (x->kind == KVP_EXTENT_VAULT)
		x->cls->making = 0;
	if (result < 0) {
		if (result != -ECANCELED)
			kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
				"tenant %s: an extent of %llu MiB could not be made: %s; lower "
				"`memory` or "
				"free some",
				x->tenant->name, (unsigned long long)x->bytes >> 20,
				strerror(-result));
		if (x->owner)
			x->owner->refused_ns = again;
		x->cls->refused_ns = again;
		give_up(x);
		return;
	}
	if (x->kind == KVP_EXTENT_VAULT) {
		go_live(x);
		return;
	}
	if (!x->owner) {
		x->state = KVPD_EXTENT_DROPPING;
		kvpd_pool_drop_now(x);
		extent_free(x);
		return;
	}
	fd = fcntl(x->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0) {
		kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
			"no descriptor for an arena: %s; raise LimitNOFILE=", strerror(errno));
		x->owner->refused_ns = again;
		kvpd_pool_drop_now(x);
		give_up(x);
		return;
	}
	x->state = KVPD_EXTENT_OFFERED;
	post(x, KVPD_EV_ARENA, fd);
}

/* ---- retiring ------------------------------------------------------------------------------- */

/* Nobody should have it mapped any more. */
static void let_go(struct kvpd_extent *x)
{
	x->state = KVPD_EXTENT_DROPPING;
	if (kvpd_pool_drop(x) < 0)
		x->state = KVPD_EXTENT_RETIRING; /* tried again with the next tick */
}

void kvpd_extent_dropped(struct kvpd_extent *x, int result)
{
	if (result < 0) {
		x->state = KVPD_EXTENT_RETIRING;
		x->unproven = true;
		return;
	}
	kvp_store_release(&x->tenant->view.extents[x->id].state, KVP_EXTENT_FREE);
	extent_free(x);
}

static void retire(struct kvpd_extent *x)
{
	struct kvpd_tenant *t = x->tenant;
	bool known = x->state == KVPD_EXTENT_LIVE;

	x->unacked = calloc(KVPD_MAX_SESSIONS / 64, sizeof(*x->unacked));
	if (!x->unacked)
		return; /* tried again in the next step */
	x->state = KVPD_EXTENT_RETIRING;
	if (x->owner)
		x->owner->arena_bytes -= x->bytes;
	x->owner = NULL;
	kvpd_list_remove(&x->link);
	kvpd_list_append(&t->orphans, &x->link);
	if (known) {
		kvp_store_release(&t->view.extents[x->id].state, KVP_EXTENT_RETIRED);
		for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
			struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);

			x->unacked[s->place / 64] |= UINT64_C(1) << (s->place & 63);
			x->n_unacked++;
		}
		post(x, KVPD_EV_RETIRE, -1);
	}
	if (!x->n_unacked)
		let_go(x);
}

void kvpd_extent_unmapped(struct kvpd_extent *x, uint32_t place)
{
	uint64_t bit = UINT64_C(1) << (place & 63);

	if (x->state != KVPD_EXTENT_RETIRING || !(x->unacked[place / 64] & bit))
		return;
	x->unacked[place / 64] &= ~bit;
	if (--x->n_unacked == 0)
		let_go(x);
}

void kvpd_extent_orphan(struct kvpd_extent *x)
{
	struct kvpd_tenant *t = x->tenant;

	x->owner = NULL;
	kvpd_list_remove(&x->link);
	kvpd_list_append(&t->orphans, &x->link);
	kvpd_extent_drain(x);
	if (x->state == KVPD_EXTENT_LIVE)
		kvp_store_relaxed(&t->view.extents[x->id].owner, 0);
}

void kvpd_extent_step(struct kvpd_tenant *t, uint64_t now)
{
	bool pressed = !kvpd_list_empty(&t->wanting) || t->over;

	if (t->charged > t->limits.share)
		reclaim(t, NULL, NULL);
	for (uint32_t i = 0; t->n_draining && i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];

		if (!x || !x->draining)
			continue;
		if (x->state == KVPD_EXTENT_OFFERED && !x->owner)
			retire(x);
		else if (x->state == KVPD_EXTENT_LIVE && !x->used)
			retire(x);
		else if (x->state == KVPD_EXTENT_LIVE)
			kvpd_move_out(x, KVPD_MOVE_BLOCKS, pressed, now);
	}
}

/* One at a time: where pages are pinned the kernel takes long to refuse. */
static void prove_next(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[(t->prove + i) % t->n_extents];

		if (x && x->state == KVPD_EXTENT_RETIRING && !x->n_unacked) {
			t->prove = x->id + 1;
			let_go(x);
			return;
		}
	}
}

void kvpd_extent_tick(struct kvpd_tenant *t, uint64_t now)
{
	t->warm = false;
	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];

		if (!x)
			continue;
		if (counted(x) && !x->used) {
			if (now - x->cls->last_take_ns > WARM_NS)
				kvpd_extent_drain(x);
			else
				t->warm = true;
		}
	}
	prove_next(t);
	if (t->n_draining || t->over)
		t->dirty = true;
}

void kvpd_extent_free_all(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];

		if (!x)
			continue;
		kvpd_pool_drop_now(x);
		extent_free(x);
	}
}

/* ---- calls of the control thread ------------------------------------------------------------ */

static int answer(const struct kvpd_session *s, const struct kvpd_extent *x,
	struct kvp_msg_extent *msg, int *ret_fd)
{
	int r;

	if (x->state != KVPD_EXTENT_LIVE || x->owner == s)
		return -ENOENT;
	r = kvp_seg_reopen_ro(x->fd, ret_fd);
	if (r < 0)
		return r;
	*msg = (struct kvp_msg_extent){
		.extent = x->id,
		.generation = x->generation,
		.kind = x->kind,
		.bytes = x->bytes,
	};
	return 0;
}

struct extent_call {
	uint32_t session;
	struct kvp_msg_id id;
	struct kvp_msg_extent msg;
	int fd;
	/* for all of them */
	struct kvp_msg_extent *all;
	int *fds;
	uint32_t n;
};

static int extents_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct extent_call *c = arg;
	struct kvpd_session *s = kvpd_session_find(l, c->session);
	struct kvpd_tenant *t;
	int r;

	if (!s)
		return -ENOENT;
	t = s->tenant;
	c->all = calloc(t->n_extents + 1, sizeof(*c->all));
	c->fds = calloc(t->n_extents + 1, sizeof(*c->fds));
	if (!c->all || !c->fds)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->n_extents; i++) {
		if (!t->extent[i])
			continue;
		r = answer(s, t->extent[i], &c->all[c->n], &c->fds[c->n]);
		if (r == 0)
			c->n++;
		else if (r != -ENOENT)
			return r;
	}
	return 0;
}

int kvpd_session_extents(struct kvpd_ledger *ledger, uint32_t session,
	void (*each)(void *ctx, const struct kvp_msg_extent *extent, int fd), void *ctx)
{
	struct extent_call c = { .session = session };
	int r = kvpd_ledger_ask(ledger, extents_on_ledger, &c);

	for (uint32_t i = 0; i < c.n; i++) {
		if (r == 0)
			each(ctx, &c.all[i], c.fds[i]);
		else
			close(c.fds[i]);
	}
	free(c.all);
	free(c.fds);
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

static int arena_ack_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct extent_call *c = arg;
	struct kvpd_session *s = kvpd_session_find(l, c->session);
	struct kvpd_extent *x = s ? extent_of(s, c->id.id) : NULL;
	int r;

	if (!x || x->owner != s || x->state != KVPD_EXTENT_OFFERED ||
		x->generation != c->id.generation)
		return -EINVAL;
	r = kvp_seg_seal(x->fd, KVP_SEALS_ARENA);
	if (kvp_seg_check(x->fd, x->bytes, KVP_SEALS_ARENA) < 0 || has_holes(x))
		return r < 0 ? r : -EPROTO;
	s->making = false;
	go_live(x);
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
