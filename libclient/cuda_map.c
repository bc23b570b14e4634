/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's memory on a device: imported and mapped as it comes, at the places that the daemon gave its
 * slots, and read there.
 */
#include "libclient/cuda.h"
#include "libclient/match.h"
#include "libclient/ring.h"
#include "libclient/thread.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ACCESS_TRIES 50u /* the driver is not ready while much is under way */
#define ACCESS_NS    2000000L

/* ---- what comes and goes, on the library's own thread ---------------------------------------- */

/* NULL: no memory, or no descriptor. */
static struct arrival *arrival_new(struct attachment *att, const struct kvp_msg_extent *x, int fd)
{
	struct arrival *a = malloc(sizeof(*a));

	if (!a)
		return NULL;
	*a = (struct arrival){ .att = att, .x = *x, .fd = fcntl(fd, F_DUPFD_CLOEXEC, 0) };
	if (a->fd < 0) {
		free(a); /* its blocks are not there for this client until it asks again */
		return NULL;
	}
	return a;
}

static void arrival_push(struct arrival **list, struct arrival *a)
{
	a->next = *list;
	*list = a;
}

/* Those of this extent, or all for KVP_MAX_EXTENTS. */
static void arrivals_remove(struct arrival **p, const struct attachment *att, uint32_t extent)
{
	struct arrival *a;

	while ((a = *p)) {
		if (a->att == att && (extent == KVP_MAX_EXTENTS || a->x.extent == extent)) {
			*p = a->next;
			close(a->fd);
			free(a);
		} else {
			p = &a->next;
		}
	}
}

/* cuda_lock. The daemon sends a client its own extent once: it is kept for those that open later. */
static void own_keep(struct attachment *att, const struct kvp_msg_extent *x, int fd)
{
	struct arrival *a;

	if (!(x->flags & KVP_EXTENT_WRITABLE))
		return;
	a = arrival_new(att, x, fd);
	arrivals_remove(&att->owns, att, x->extent);
	if (a)
		arrival_push(&att->owns, a);
}

int cuda_reaches(struct kvp_client *c, const struct kvp_shm_device *device)
{
	int reaches = 0;

	pthread_mutex_lock(&c->cuda_lock);
	for (struct kvp_cuda *u = c->cudas; u && !reaches; u = u->next)
		reaches = memcmp(device->uuid, u->uuid, sizeof(u->uuid)) == 0;
	pthread_mutex_unlock(&c->cuda_lock);
	return reaches;
}

void cuda_owns_free(struct attachment *att)
{
	arrivals_remove(&att->owns, att, KVP_MAX_EXTENTS);
}

void cuda_extent_came(struct attachment *att, const struct kvp_msg_extent *x, int fd)
{
	struct kvp_client *c = att->client;

	pthread_mutex_lock(&c->cuda_lock);
	own_keep(att, x, fd);
	for (struct kvp_cuda *u = c->cudas; u; u = u->next) {
		struct lane *l = lane_of(u, att);
		struct arrival *a;

		if (!l || lane_device(u, l) != x->device)
			continue;
		a = arrival_new(att, x, fd);
		if (!a)
			continue;
		pthread_mutex_lock(&u->lock);
		arrival_push(&u->arrivals, a);
		pthread_mutex_unlock(&u->lock);
		cuda_rouse(u);
	}
	pthread_mutex_unlock(&c->cuda_lock);
}

int cuda_extent_hide(struct attachment *att, const struct kvp_msg_id *id)
{
	struct kvp_client *c = att->client;
	int there = 0;

	pthread_mutex_lock(&c->cuda_lock);
	arrivals_remove(&att->owns, att, id->id);
	for (struct kvp_cuda *u = c->cudas; u; u = u->next) {
		struct lane *l = lane_of(u, att);
		struct cuda_map *map = l ? &l->map[id->id] : NULL;

		if (!l)
			continue;
		pthread_mutex_lock(&u->lock);
		arrivals_remove(&u->arrivals, att, id->id);
		/* Sequentially consistent: as extent_retire() does with the base of host memory. */
		kvp_store_seq(&map->base, 0);
		kvp_store_seq(&att->extents[id->id].there, 0);
		map->hidden = 1;
		there |= map->state != MAP_NONE;
		pthread_mutex_unlock(&u->lock);
	}
	pthread_mutex_unlock(&c->cuda_lock);
	return there;
}

int cuda_extent_held(struct attachment *att, uint32_t id)
{
	struct kvp_client *c = att->client;
	int held = 0;

	pthread_mutex_lock(&c->cuda_lock);
	for (struct kvp_cuda *u = c->cudas; u; u = u->next) {
		struct lane *l = lane_of(u, att);
		int mine;

		if (!l)
			continue;
		pthread_mutex_lock(&u->lock);
		mine = l->map[id].state != MAP_NONE;
		l->map[id].drop = l->map[id].state != MAP_NONE;
		pthread_mutex_unlock(&u->lock);
		if (mine)
			cuda_rouse(u);
		held |= mine;
	}
	held |= host_held(att, id);
	pthread_mutex_unlock(&c->cuda_lock);
	return held;
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* The window of a size of slot, set aside when the first of them comes; NULL: no addresses. */
static struct cuda_window *window_of(struct kvp_cuda *cuda, uint64_t slot_bytes)
{
	struct cuda_window *w = NULL;
	uint64_t base = 0;
	uint64_t bytes = cuda->window_bytes / cuda->granularity * cuda->granularity;

	for (uint32_t i = 0; i < CUDA_WINDOWS; i++) {
		w = &cuda->windows[i];
		if (w->slot_bytes == slot_bytes)
			return w;
		if (!w->slot_bytes)
			break;
		w = NULL;
	}
	if (!w || !bytes || !slot_bytes ||
		cuda_error(cuda, cuda->cu.cuMemAddressReserve(&base, bytes, 0, 0, 0)))
		return NULL;
	pthread_mutex_lock(&cuda->lock);
	*w = (struct cuda_window){ .slot_bytes = slot_bytes, .base = base, .bytes = bytes };
	pthread_mutex_unlock(&cuda->lock);
	return w;
}

void windows_free(struct kvp_cuda *cuda)
{
	for (uint32_t i = 0; i < CUDA_WINDOWS && cuda->windows[i].slot_bytes; i++)
		(void)cuda->cu.cuMemAddressFree(cuda->windows[i].base, cuda->windows[i].bytes);
}

/* Is something mapped there? What a former daemon left may be, while it is leased. */
static int taken(const struct kvp_cuda *cuda, uint64_t at, uint64_t bytes)
{
	for (uint32_t i = 0; i < CUDA_LANES; i++) {
		const struct lane *l = kvp_load_relaxed(&cuda->lanes[i]);

		for (uint32_t k = 0; l && k < KVP_MAX_EXTENTS; k++)
			if (l->map[k].state == MAP_THERE && at < l->map[k].at + l->map[k].bytes &&
				l->map[k].at < at + bytes)
				return 1;
	}
	return 0;
}

/*
 * Where the extent goes: to its slots' numbers in the window, or, where that cannot be, to addresses of its
 * own (first_slot -1).
 */
static int place(struct kvp_cuda *cuda, const struct kvp_msg_extent *x, struct cuda_map *map)
{
	const struct cuda_window *w = window_of(cuda, x->slot_bytes);
	uint64_t at = (uint64_t)x->first_slot * x->slot_bytes;

	map->first_slot = -1;
	if (w && x->first_slot <= INT32_MAX - x->bytes / x->slot_bytes &&
		at % cuda->granularity == 0 && x->bytes <= w->bytes && at <= w->bytes - x->bytes &&
		!taken(cuda, w->base + at, x->bytes)) {
		map->at = w->base + at;
		map->first_slot = x->first_slot;
		return 0;
	}
	return cuda_error(cuda, cuda->cu.cuMemAddressReserve(&map->at, x->bytes, 0, 0, 0));
}

static void unplace(struct kvp_cuda *cuda, struct cuda_map *map)
{
	if (map->first_slot < 0)
		(void)cuda_error(cuda, cuda->cu.cuMemAddressFree(map->at, map->bytes));
}

/* ---- mapping --------------------------------------------------------------------------------- */

static int set_access(struct kvp_cuda *cuda, const struct cuda_map *map, int prot)
{
	struct cu_access access = { { CU_LOC_DEVICE, cuda->ordinal }, prot };
	int error = CU_NOT_READY;

	for (uint32_t i = 0; i < ACCESS_TRIES && error == CU_NOT_READY; i++) {
		if (i)
			nanosleep(&(struct timespec){ .tv_nsec = ACCESS_NS }, NULL);
		error = cuda->cu.cuMemSetAccess(map->at, map->bytes, &access, 1);
	}
	return error;
}

/*
 * For reading alone, but for what this client is to write: nobody else's blocks can be damaged by mistake.
 * Drivers that know no such thing map all.
 */
static int give_access(struct kvp_cuda *cuda, const struct cuda_map *map, int writable)
{
	int error = set_access(cuda, map, writable ? CU_PROT_RW : CU_PROT_READ);

	if (writable)
		return cuda_error(cuda, error);

	if (error == CU_ERR_INVALID_VALUE || error == CU_ERR_UNSUPPORTED) {
		error = set_access(cuda, map, CU_PROT_RW);
		pthread_mutex_lock(&cuda->lock);
		cuda->unguarded |= error == CU_OK;
		pthread_mutex_unlock(&cuda->lock);
	}
	return cuda_error(cuda, error);
}

/* The driver says where, and everybody may write: it knows no other way. */
static int open_legacy(struct kvp_cuda *cuda, const struct arrival *a, struct cuda_map *map)
{
	struct cu_ipc_handle handle;
	int r;

	if (pread(a->fd, &handle, sizeof(handle), 0) != (ssize_t)sizeof(handle))
		return -EPROTO;
	r = cuda_error(cuda, cuda->cu.cuIpcOpenMemHandle_v2(&map->at, handle, CU_IPC_LAZY_PEER));
	if (r < 0)
		return r;
	map->first_slot = -1;
	map->legacy = 1;
	pthread_mutex_lock(&cuda->lock);
	cuda->unguarded = 1;
	pthread_mutex_unlock(&cuda->lock);
	return 0;
}

static int map_memory(struct kvp_cuda *cuda, const struct arrival *a, struct cuda_map *map)
{
	uint64_t memory;
	int r;

	map->bytes = a->x.bytes;
	map->slot_bytes = a->x.slot_bytes;
	map->legacy = 0;
	if (a->x.import & KVP_IMPORT_CUDA_IPC)
		return open_legacy(cuda, a, map);
	if (!cuda->granularity)
		return -EOPNOTSUPP;
	r = cuda_error(cuda, cuda->cu.cuMemImportFromShareableHandle(
				     &memory, (void *)(intptr_t)a->fd, CU_HANDLE_FD));

	if (r < 0)
		return r;
	r = place(cuda, &a->x, map);
	if (r == 0) {
		r = cuda_error(cuda, cuda->cu.cuMemMap(map->at, map->bytes, 0, memory, 0));
		if (r == 0) {
			r = give_access(cuda, map, a->x.flags & KVP_EXTENT_WRITABLE);
			if (r < 0)
				(void)cuda->cu.cuMemUnmap(map->at, map->bytes);
		}
		if (r < 0)
			unplace(cuda, map);
	}
	/* The mapping keeps the memory. */
	(void)cuda_error(cuda, cuda->cu.cuMemRelease(memory));
	return r;
}

/* lock. The rest of the library finds it from here on. Of several of a client the first that mapped it. */
static void publish(
	struct attachment *att, const struct kvp_msg_extent *x, const struct cuda_map *map)
{
	struct extent_map *em = &att->extents[x->extent];

	if (kvp_load_seq(&em->there))
		return;
	em->writable = !!(x->flags & KVP_EXTENT_WRITABLE);
	em->vault = 0;
	kvp_store_relaxed(&em->bytes, map->bytes);
	kvp_store_relaxed(&em->generation, map->generation);
	/* Release: pairs with the load in hit_there(). */
	kvp_store_seq(&em->there, map->at);
}

/* What this client writes there, as it was sent; NULL: there was no memory to keep it. cuda_lock */
static struct arrival *own_of(const struct attachment *att, const struct kvp_msg_extent *x)
{
	struct arrival *own = att->owns;

	while (own && (own->x.extent != x->extent || own->x.generation != x->generation))
		own = own->next;
	return own;
}

/* This client can write there: the daemon waits for that before it grants slots. */
static void acknowledge(
	struct kvp_cuda *cuda, struct attachment *att, const struct kvp_msg_extent *x)
{
	struct arrival *own;

	pthread_mutex_lock(&cuda->client->cuda_lock);
	own = own_of(att, x);
	if (own)
		own->to_ack = 1;
	pthread_mutex_unlock(&cuda->client->cuda_lock);
	cuda->acks = 1;
	(void)acks_serve(cuda);
}

/* Once each, though several of the client's may have mapped it. With ring_lock the socket stays open. */
int acks_serve(struct kvp_cuda *cuda)
{
	struct kvp_client *c = cuda->client;
	uint32_t left = 0;

	if (!cuda->acks)
		return 0;
	pthread_mutex_lock(&c->ring_lock);
	pthread_mutex_lock(&c->cuda_lock);
	for (uint32_t i = 0; i < CUDA_LANES; i++) {
		struct lane *l = kvp_load_relaxed(&cuda->lanes[i]);
		struct attachment *att = l ? l->att : NULL;

		if (!att || kvp_load_seq(&att->dead))
			continue;
		for (struct arrival *own = att->owns; own; own = own->next) {
			struct kvp_msg_id id = { .id = own->x.extent,
				.generation = own->x.generation };

			if (own->to_ack && !own->acked)
				own->acked = packet_try(att, KVP_MSG_ARENA_ACK, 0, &id,
						     sizeof(id)) != -EAGAIN;
			left |= own->to_ack && !own->acked;
		}
	}
	pthread_mutex_unlock(&c->cuda_lock);
	pthread_mutex_unlock(&c->ring_lock);
	cuda->acks = left;
	return left != 0;
}

static void map_take(struct kvp_cuda *cuda, struct lane *l, const struct arrival *a)
{
	struct cuda_map *map = &l->map[a->x.extent];
	int r, mine = 0;

	if (map->state != MAP_COMING)
		return; /* asked for twice; a retired one is let go of first */
	map->generation = a->x.generation;
	r = a->x.slot_bytes && a->x.bytes ? map_memory(cuda, a, map) : -EPROTO;
	pthread_mutex_lock(&cuda->lock);
	map->state = r == 0 ? MAP_THERE : MAP_FAILED;
	if (r == 0) {
		cuda->mapped_bytes += map->bytes;
		/* Release: pairs with the load in map_of(). It may have been hidden meanwhile. */
		if (!map->hidden) {
			kvp_store_seq(&map->base, map->at);
			publish(l->att, &a->x, map);
			mine = a->x.flags & KVP_EXTENT_WRITABLE;
		}
	}
	pthread_mutex_unlock(&cuda->lock);
	if (mine)
		acknowledge(cuda, l->att, &a->x);
}

/* Where the rest of the library found it another of the client's has it, or nobody. */
static void unpublish(struct attachment *att, uint32_t extent, uint64_t mine)
{
	struct kvp_client *c = att->client;
	uint64_t other = 0;

	pthread_mutex_lock(&c->cuda_lock);
	for (struct kvp_cuda *u = c->cudas; u && !other; u = u->next) {
		const struct lane *l = lane_of(u, att);

		other = l ? kvp_load_seq(&l->map[extent].base) : 0;
	}
	(void)kvp_cas_seq(&att->extents[extent].there, &mine, other);
	pthread_mutex_unlock(&c->cuda_lock);
}

static void map_drop(struct kvp_cuda *cuda, struct lane *l, uint32_t extent)
{
	struct cuda_map *map = &l->map[extent];
	int there = map->state == MAP_THERE;

	kvp_store_seq(&map->base, 0);
	if (there)
		unpublish(l->att, extent, map->at);
	if (there && map->legacy) {
		(void)cuda_error(cuda, cuda->cu.cuIpcCloseMemHandle(map->at));
	} else if (there) {
		(void)cuda_error(cuda, cuda->cu.cuMemUnmap(map->at, map->bytes));
		unplace(cuda, map);
	}
	pthread_mutex_lock(&cuda->lock);
	cuda->mapped_bytes -= there ? map->bytes : 0;
	map->state = MAP_NONE;
	map->hidden = map->drop = 0;
	pthread_mutex_unlock(&cuda->lock);
}

/* The next that has come. From here on whoever hides its extent knows that it is being mapped. */
static struct arrival *arrival_next(struct kvp_cuda *cuda)
{
	struct arrival *a, **p;
	struct lane *l;

	pthread_mutex_lock(&cuda->lock);
	for (p = &cuda->arrivals; *p && (*p)->next; p = &(*p)->next)
		;
	a = *p; /* the first that came stands last */
	*p = NULL;
	l = a ? lane_of(cuda, a->att) : NULL;
	if (l && l->map[a->x.extent].state != MAP_THERE) {
		l->map[a->x.extent].state = MAP_COMING;
		l->map[a->x.extent].hidden = l->map[a->x.extent].drop = 0;
	}
	pthread_mutex_unlock(&cuda->lock);
	return a;
}

/* Handles that were made before an extent was hidden are gone when the library's thread asks to let go. */
static void lane_let_go(struct kvp_cuda *cuda, struct lane *l)
{
	uint32_t i = 0;

	do {
		pthread_mutex_lock(&cuda->lock);
		while (i < KVP_MAX_EXTENTS && !(l->map[i].state != MAP_NONE && l->map[i].drop))
			i++;
		pthread_mutex_unlock(&cuda->lock);
		if (i < KVP_MAX_EXTENTS)
			map_drop(cuda, l, i);
	} while (i < KVP_MAX_EXTENTS);
}

void maps_serve(struct kvp_cuda *cuda)
{
	struct arrival *a;

	for (uint32_t i = 0; i < CUDA_LANES; i++) {
		struct lane *l = kvp_load_relaxed(&cuda->lanes[i]);

		if (l && kvp_load_relaxed(&l->device) != KVP_CUDA_NO_DEVICE)
			lane_let_go(cuda, l);
	}
	while ((a = arrival_next(cuda))) {
		struct lane *l = lane_of(cuda, a->att);

		if (l)
			map_take(cuda, l, a);
		close(a->fd);
		free(a);
	}
}

/* The daemon sends a client its own extent once, and never again: maps_own() has it. */
static int is_own(const struct attachment *att, uint32_t extent)
{
	return kvp_load_relaxed(&att->view.extents[extent].owner) == att->session;
}

/* Is it one that can be asked for? */
static int on_device(const struct lane *l, uint32_t extent)
{
	const struct kvp_shm_extent *x = &l->att->view.extents[extent];

	return kvp_load_acquire(&x->state) == KVP_EXTENT_LIVE && !is_own(l->att, extent) &&
	       kvp_load_relaxed(&x->tier) == KVP_TIER_VRAM &&
	       kvp_load_relaxed(&x->device) == kvp_load_relaxed(&l->device);
}

/* What this client writes, and was sent before. */
static void maps_own(struct kvp_cuda *cuda, const struct lane *l)
{
	struct kvp_client *c = cuda->client;
	const struct kvp_cuda *u;

	pthread_mutex_lock(&c->cuda_lock);
	/* Before it stands in the list nobody would tell it that one goes. */
	for (u = c->cudas; u && u != cuda; u = u->next)
		;
	for (const struct arrival *own = u ? l->att->owns : NULL; own; own = own->next) {
		struct arrival *a = NULL;

		if (own->x.device == kvp_load_relaxed(&l->device))
			a = arrival_new(l->att, &own->x, own->fd);
		if (!a)
			continue;
		pthread_mutex_lock(&cuda->lock);
		arrival_push(&cuda->arrivals, a);
		pthread_mutex_unlock(&cuda->lock);
	}
	pthread_mutex_unlock(&c->cuda_lock);
}

void maps_want(struct kvp_cuda *cuda, struct lane *l)
{
	if (kvp_load_relaxed(&l->device) == KVP_CUDA_NO_DEVICE)
		return;
	maps_own(cuda, l);
	for (uint32_t i = 0; i < KVP_MAX_EXTENTS; i++)
		if (on_device(l, i) && !kvp_load_relaxed(&l->map[i].base))
			extent_want(l->att, i);
}

int maps_settled(struct kvp_cuda *cuda)
{
	const struct attachment *att = kvp_load_seq(&cuda->client->att);
	const struct lane *l = att ? lane_of(cuda, att) : NULL;

	if (cuda->arrivals)
		return 0;
	for (uint32_t i = 0;
		l && kvp_load_relaxed(&l->device) != KVP_CUDA_NO_DEVICE && i < KVP_MAX_EXTENTS; i++)
		if (on_device(l, i) &&
			(l->map[i].state == MAP_NONE || l->map[i].state == MAP_COMING))
			return 0;
	return 1;
}

void maps_drop(struct kvp_cuda *cuda, struct lane *l)
{
	for (uint32_t i = 0; i < KVP_MAX_EXTENTS; i++)
		if (l->map[i].state != MAP_NONE)
			map_drop(cuda, l, i);
}

/* ---- where blocks are, for callers ----------------------------------------------------------- */

/* The mapping in which the hit lies; NULL: it is not on this device, or not mapped here yet. */
static const struct cuda_map *map_at(
	const struct kvp_prefix *m, struct lane *l, const struct kvp_hit *hit, uint64_t *ret_addr)
{
	const uint32_t extent = kvp_where_extent(hit->where), bytes = kvp_where_bytes(hit->where);
	const struct cuda_map *map;
	uint64_t base;

	if (!hit->where || extent >= KVP_MAX_EXTENTS ||
		kvp_load_relaxed(&m->att->view.extents[extent].device) !=
			kvp_load_relaxed(&l->device))
		return NULL;
	map = &l->map[extent];
	base = kvp_load_seq(&map->base);
	if (!base) {
		/* What the driver refused once is not asked for again. */
		if (map->state != MAP_FAILED && !is_own(m->att, extent))
			extent_want(m->att, extent);
		return NULL;
	}
	if (bytes > map->bytes || hit->offset > map->bytes - bytes ||
		map->generation != kvp_load_acquire(&m->att->view.extents[extent].generation))
		return NULL;
	*ret_addr = base + hit->offset;
	return map;
}

static void hit_of(const struct kvp_prefix *m, uint32_t i, struct kvp_hit *ret_hit)
{
	/* A lease keeps all payloads of the block, so one that has appeared stays. */
	kvp_payload_read(&m->att->view.blocks[m->hits[i].id], m->hits[i].word, KVP_TIER_VRAM,
		&ret_hit->where, &ret_hit->offset);
}

const struct cuda_map *map_of(const struct kvp_prefix *m, struct lane *l, uint32_t i,
	struct kvp_hit *ret_hit, uint64_t *ret_addr)
{
	hit_of(m, i, ret_hit);
	return map_at(m, l, ret_hit, ret_addr);
}

/* Blocks that are asked for and that the prefix has; negative: why not. */
static int64_t may_look(const struct kvp_prefix *m, struct kvp_cuda *cuda, uint32_t first,
	uint32_t n, struct lane **ret_lane)
{
	uint32_t have;
	int r = cuda_usable(cuda);

	if (r < 0)
		return r;
	if (!m || !prefix_live(m) || m->client != cuda->client)
		return -EINVAL;
	if (m->flags & PREFIX_KEYS)
		return -EOPNOTSUPP;
	have = m->n_blocks + (m->tail_tokens ? 1 : 0);
	if (first >= have || !n)
		return 0;
	if (!(m->flags & KVP_MATCHED_LEASED))
		return -ENOLCK;
	*ret_lane = lane_of(cuda, m->att);
	if (!*ret_lane || lane_device(cuda, *ret_lane) == KVP_CUDA_NO_DEVICE)
		return -ENODEV;
	return n < have - first ? n : have - first;
}

/* What finds blocks for kernels. */
struct lookup {
	struct kvp_prefix *m;
	struct lane *l;
	uint32_t flags; /* KVP_DEVICE_PENDING: between pending_begin() and pending_end() */
	uint64_t given; /* tickets of which a place is handed out */
};

/* 0 blocks or more that can be looked for until lookup_end(); negative: why not, and it has ended. */
static int64_t lookup_begin(struct lookup *k, const struct kvp_prefix *m, struct kvp_cuda *cuda,
	uint32_t first, uint32_t n, uint32_t flags)
{
	int64_t have = flags & ~KVP_DEVICE_PENDING ? -EINVAL : may_look(m, cuda, first, n, &k->l);

	if (have < 0)
		return have;
	/* Handles are const to callers; the pin is the library's own affair. */
	k->m = (struct kvp_prefix *)m;
	k->flags = have ? flags : 0;
	if (k->flags & KVP_DEVICE_PENDING)
		pending_begin(k->m);
	return have;
}

static void lookup_end(struct lookup *k)
{
	if (k->flags & KVP_DEVICE_PENDING)
		pending_end(k->m, k->given);
}

/* What kernels may read there as it is: what the precision of a block in DRAM came to be was copied with it. */
static const struct cuda_map *native_map_of(
	struct lookup *k, uint32_t i, struct kvp_hit *ret_hit, uint64_t *ret_addr)
{
	const struct cuda_map *map;
	uint64_t pending = 0;

	hit_of(k->m, i, ret_hit);
	if (!ret_hit->where && k->flags & KVP_DEVICE_PENDING)
		pending = pending_find(k->m, i, kvp_load_relaxed(&k->l->device), ret_hit);
	map = map_at(k->m, k->l, ret_hit, ret_addr);
	if (!map || kvp_where_codec(ret_hit->where) != KVP_CODEC_NATIVE ||
		kvp_where_bytes(ret_hit->where) < k->m->space->geo.block_bytes)
		return NULL;
	k->given |= pending;
	return map;
}

int kvp_cuda_slots(const struct kvp_prefix *m, struct kvp_cuda *cuda, uint32_t first, uint32_t n,
	uint32_t flags, int32_t *ret_slots)
{
	struct lookup look = { 0 };
	int64_t have = n && !ret_slots ? -EINVAL : lookup_begin(&look, m, cuda, first, n, flags);
	uint32_t leading = 0;

	if (have < 0)
		return (int)have;
	for (uint32_t i = 0; i < n; i++) {
		const struct cuda_map *map = NULL;
		struct kvp_hit hit;
		uint64_t addr;

		if (i < have)
			map = native_map_of(&look, first + i, &hit, &addr);
		ret_slots[i] = map && map->first_slot >= 0
				       ? (int32_t)(map->first_slot +
						   (int64_t)(hit.offset / map->slot_bytes))
				       : -1;
		leading += leading == i && ret_slots[i] >= 0;
	}
	lookup_end(&look);
	return (int)leading;
}

int kvp_cuda_addrs(const struct kvp_prefix *m, struct kvp_cuda *cuda, uint32_t first, uint32_t n,
	uint32_t flags, uint64_t *ret_addrs)
{
	struct lookup look = { 0 };
	int64_t have = n && !ret_addrs ? -EINVAL : lookup_begin(&look, m, cuda, first, n, flags);
	uint32_t leading = 0;

	if (have < 0)
		return (int)have;
	for (uint32_t i = 0; i < n; i++) {
		struct kvp_hit hit;
		uint64_t addr = 0;

		ret_addrs[i] = i < have && native_map_of(&look, first + i, &hit, &addr) ? addr : 0;
		leading += leading == i && ret_addrs[i];
	}
	lookup_end(&look);
	return (int)leading;
}

/* Does a slot of this size hold this space's blocks, as the daemon cuts them? */
static int holds(const struct cuda_window *w, uint64_t block_bytes)
{
	uint64_t unit = block_bytes < UINT64_C(1) << 20 ? 4096 : 65536;

	return w->slot_bytes == (block_bytes + unit - 1) / unit * unit;
}

int kvp_cuda_window(
	struct kvp_cuda *cuda, struct kvp_space *space, struct kvp_cuda_range *ret_range)
{
	struct kvp_cuda_range range = { 0 };
	int r = cuda_usable(cuda);
	struct kvp_client *c;
	struct attachment *att;
	struct lane *l;

	if (r < 0)
		return r;
	if (!space || !ret_range || space->client != cuda->client)
		return -EINVAL;
	c = cuda->client;
	pthread_mutex_lock(&c->ring_lock);
	att = kvp_load_seq(&c->att);
	l = att ? lane_of(cuda, att) : NULL;
	if (!att)
		r = -ESHUTDOWN;
	else if (!l || lane_device(cuda, l) == KVP_CUDA_NO_DEVICE)
		r = -ENODEV;
	pthread_mutex_unlock(&c->ring_lock);
	if (r < 0)
		return r;
	pthread_mutex_lock(&cuda->lock);
	for (uint32_t i = 0; i < CUDA_WINDOWS && cuda->windows[i].slot_bytes; i++) {
		const struct cuda_window *w = &cuda->windows[i];

		if (!holds(w, space->geo.block_bytes))
			continue;
		range.base = w->base;
		range.slot_bytes = w->slot_bytes;
		range.slots = w->bytes / w->slot_bytes;
	}
	pthread_mutex_unlock(&cuda->lock);
	return range.slot_bytes ? result_give(ret_range, &range, sizeof(range)) : -ENOENT;
}

uint32_t cuda_medium(struct kvp_cuda *cuda, const struct attachment *att)
{
	struct lane *l = att ? lane_of(cuda, att) : NULL;
	uint32_t device = l ? lane_device(cuda, l) : KVP_CUDA_NO_DEVICE;

	return device == KVP_CUDA_NO_DEVICE ? 0 : device + 1;
}

uint64_t cuda_slot_at(const struct kvp_cuda *cuda, const struct kvp_grant *g)
{
	const struct lane *l = g->addr ? NULL : lane_of(cuda, g->att);
	uint64_t base = l ? kvp_load_seq(&l->map[g->extent].base) : 0;

	return base ? base + g->offset : 0;
}

/* -EAGAIN: it is not mapped yet. */
static int grant_here(struct kvp_cuda *cuda, struct kvp_grant *g)
{
	uint64_t at;

	pthread_mutex_lock(&cuda->client->ring_lock);
	at = cuda_slot_at(cuda, g);
	if (at)
		g->there = at;
	else
		grant_drop(g);
	pthread_mutex_unlock(&cuda->client->ring_lock);
	return at ? 0 : -EAGAIN;
}

int kvp_cuda_reserve(struct kvp_space *space, struct kvp_cuda *cuda, uint32_t timeout_ms,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grant)
{
	const struct attachment *att;
	struct kvp_grant *g = NULL;
	int r = cuda_usable(cuda);
	uint32_t medium;

	if (r < 0)
		return r;
	if (!space || !ret_grant || space->client != cuda->client)
		return -EINVAL;
	pthread_mutex_lock(&cuda->client->ring_lock);
	att = kvp_load_seq(&cuda->client->att);
	medium = cuda_medium(cuda, att);
	if (!att || !medium)
		r = att ? -ENODEV : -ESHUTDOWN;
	pthread_mutex_unlock(&cuda->client->ring_lock);
	if (r == 0)
		r = kvp_reserve_on(space, medium - 1, timeout_ms, ret_retry_ms, &g);
	if (r < 0)
		return r;
	r = grant_here(cuda, g);
	if (r == 0)
		*ret_grant = g;
	else if (ret_retry_ms)
		*ret_retry_ms = 1;
	return r;
}

uint64_t kvp_grant_device_addr(const struct kvp_grant *grant)
{
	return grant ? grant->there : 0;
}

int kvp_cuda_warm(struct kvp_prefix *m, struct kvp_cuda *cuda, const struct kvp_warm_opts *opts,
	struct kvp_ticket *ret_ticket)
{
	struct kvp_warm_opts o = { .size = sizeof(o) };
	struct lane *l = NULL;
	int64_t have = may_look(m, cuda, 0, 1, &l);
	int r = have < 0 ? (int)have : 0;

	if (r == 0 && opts)
		r = opts_take(&o, sizeof(o), opts);
	if (r < 0)
		return r;
	if (!l)
		return -ENOENT; /* an empty prefix */
	o.size = sizeof(o);
	o.device = kvp_load_relaxed(&l->device);
	return kvp_warm(m, &o, ret_ticket);
}
