/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents come and go: mapped as the daemon sends them or a match asks for them, let go when the
 * daemon retires them and the last handle that may look into them is released.
 */
#include "libclient/thread.h"
#include "libclient/cuda.h"
#include "libclient/events.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/kvp_seg.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; earlier it fails and nothing is lost */
#endif

/* An extent that is no longer handed out, until the handles made before are gone. */
struct retiring {
	struct retiring *next;
	struct attachment *att;
	struct kvp_msg_id id;
	void *base;
	uint64_t bytes;
	/* Moments at which handles ended that may have been given places in it; see pending_begin(). */
	uint64_t until[KVP_TIMELINES];
	uint32_t n;
	struct {
		struct kvp_prefix *match;
		uint64_t state;
	} seen[];
};

/* ---- coming ---------------------------------------------------------------------------------- */

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
	em->vault = x->kind == KVP_EXTENT_VAULT && x->tier == KVP_TIER_DRAM;
	em->grants = 0;
	kvp_store_relaxed(&em->bytes, x->bytes);
	kvp_store_relaxed(&em->generation, x->generation);
	/* Release: pairs with the load in hit_addr(). */
	kvp_store_seq(&em->base, (uintptr_t)base);
	return 0;
}

/* Memory of a device: its descriptor is good for whoever has a context there, and for no mmap(). */
static int extent_of_device(struct attachment *att, const struct kvp_msg_extent *x, int fd)
{
	if (x->extent >= KVP_MAX_EXTENTS || x->tier != KVP_TIER_VRAM)
		return -EPROTO;
	kvp_store_relaxed(&att->foreign[x->extent], 1);
	cuda_extent_came(att, x, fd);
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

int extent_take(struct attachment *att, struct kvp_packet *p)
{
	const struct kvp_msg_extent *x = (const void *)p->body;
	struct kvp_msg_id id = { .id = x->extent, .generation = x->generation };
	const bool there = x->import & (KVP_IMPORT_CUDA_FD | KVP_IMPORT_CUDA_IPC);
	int fd = kvp_msg_take_fd(p, 0), r;

	r = there ? extent_of_device(att, x, fd) : map_extent(att, x, fd);
	close(fd);
	if (r == -ENOMEM || r == -EMFILE)
		return 0; /* its blocks are misses here; others need not suffer */
	if (r < 0)
		return r;
	atomic_fetch_and(&att->wanted[id.id / 64], ~(UINT64_C(1) << id.id % 64));
	/* A block that was waited for may have lain in it. */
	pthread_mutex_lock(&att->client->ring_lock);
	event_announce(att->client, KVP_EVENT_CLAIMS);
	pthread_mutex_unlock(&att->client->ring_lock);
	/* What a device has is written by the thread that maps it. */
	if (!there && att->extents[id.id].vault)
		cuda_notice(att->client);
	/* Nor can anybody write there before that one has mapped it: it says so itself. */
	if (there || !(x->flags & KVP_EXTENT_WRITABLE))
		return 0;
	KVP_FAULT("arena-ack");
	r = packet_send(att, KVP_MSG_ARENA_ACK, 0, &id, sizeof(id));
	populate(&att->extents[id.id]);
	return r;
}

int extents_ask(struct attachment *att)
{
	for (uint32_t i = 0; i < ARRAY_SIZE(att->wanted); i++) {
		uint64_t bits = kvp_load_relaxed(&att->wanted[i]);

		for (; bits; bits &= bits - 1) {
			uint32_t id = i * 64 + (uint32_t)__builtin_ctzll(bits);
			struct kvp_msg_id body = { .id = id };

			if (att->asked_for[id])
				continue;
			if (packet_try(att, KVP_MSG_EXTENT_GET, TAG_EXTENT | id, &body,
				    sizeof(body)) == -EAGAIN)
				return 1;
			att->asked_for[id] = 1;
		}
	}
	return 0;
}

/* The daemon has answered, one way or the other: a later match may ask again. */
void extent_answered(struct attachment *att, uint32_t tag)
{
	uint32_t id = tag & ~TAG_EXTENT;

	if (!(tag & TAG_EXTENT) || id >= KVP_MAX_EXTENTS)
		return;
	att->asked_for[id] = 0;
	atomic_fetch_and(&att->wanted[id / 64], ~(UINT64_C(1) << id % 64));
}

/* ---- going ----------------------------------------------------------------------------------- */

/* Handles that may be used to look into any extent just now. */
static uint32_t pinned_handles(struct attachment *att, struct retiring *rt)
{
	uint32_t n = 0;

	for (struct prefix_chunk *k = att->client->matches; k; k = kvp_load_acquire(&k->next)) {
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

static void note_moments(struct retiring *rt)
{
	for (uint32_t i = 0; i < KVP_TIMELINES; i++)
		rt->until[i] = kvp_load_seq(&rt->att->early_until[i]);
}

static int moments_left(const struct retiring *rt)
{
	for (uint32_t i = 0; i < KVP_TIMELINES; i++)
		if (rt->until[i] && !kvp_until_come(rt->att->page, rt->until[i]))
			return 1;
	return 0;
}

int extent_retire(struct attachment *att, const struct kvp_msg_id *id)
{
	struct extent_map *em = &att->extents[id->id % KVP_MAX_EXTENTS];
	struct kvp_client *c = att->client;
	struct retiring *rt;
	uintptr_t base = kvp_load_relaxed(&em->base);
	uint32_t room;
	int there;

	if (id->id >= KVP_MAX_EXTENTS)
		return -EPROTO;
	there = base && kvp_load_relaxed(&em->generation) == id->generation;
	if (!there && !base)
		there = cuda_extent_hide(att, id);
	kvp_store_relaxed(&att->foreign[id->id], 0);
	if (!there)
		return packet_send(att, KVP_MSG_RETIRE_ACK, 0, id, sizeof(*id));
	/*
	 * Sequentially consistent: pairs with prefix_take(). A handle that is not seen below was
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
	rt->base = (void *)base; /* NULL: memory of a device */
	rt->bytes = kvp_load_relaxed(&em->bytes);
	rt->n = room;
	rt->n = pinned_handles(att, rt);
	note_moments(rt); /* of those that were released before */
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
	if (n < rt->n)
		note_moments(rt); /* they may have been released after a moment */
	rt->n = n;
	pthread_mutex_lock(&att->client->ring_lock);
	grants = att->extents[rt->id.id].grants;
	pthread_mutex_unlock(&att->client->ring_lock);
	return n || grants || moments_left(rt) || cuda_extent_held(att, rt->id.id);
}

int retiring_any(const struct kvp_client *c, const struct attachment *att)
{
	for (const struct retiring *rt = c->retiring; rt; rt = rt->next)
		if (rt->att == att)
			return 1;
	return 0;
}

void retiring_sweep(struct kvp_client *c)
{
	struct retiring **p = &c->retiring, *rt;

	while ((rt = *p)) {
		if (retiring_held(rt)) {
			p = &rt->next;
			continue;
		}
		kvp_seg_unmap(rt->base, rt->bytes);
		rt->base = NULL;
		if (rt->att->sock >= 0 && packet_try(rt->att, KVP_MSG_RETIRE_ACK, 0, &rt->id,
						  sizeof(rt->id)) == -EAGAIN) {
			p = &rt->next; /* the daemon waits for it: again in a moment */
			continue;
		}
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
