/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DRAM vaults registered with the driver, for reading, so that the device copies out of them by itself.
 *
 * Vaults alone: they are the daemon's, sealed, and given back by it when it wants to. A client's arena is
 * not, nor another's: pinned pages defeat the seal by which the daemon proves that nobody writes there.
 */
#include "libclient/cuda.h"
#include "libclient/match.h"

#include <stdlib.h>

/* ---- lanes ----------------------------------------------------------------------------------- */

/* cuda_lock. The page's timelines, which streams write. */
static void register_page(struct kvp_cuda *cuda, struct attachment *att)
{
	if (cuda->words_work && cuda_error(cuda, cuda->cu.cuMemHostRegister_v2(att->page->done,
							 sizeof(att->page->done),
							 CU_REG_PORTABLE | CU_REG_DEVICEMAP)) == 0)
		att->host->page = 1;
}

int host_begin(struct kvp_cuda *cuda, struct lane *l)
{
	struct kvp_client *c = cuda->client;
	struct attachment *att = l->att;
	int page = 0;

	pthread_mutex_lock(&c->cuda_lock);
	if (!att->host) {
		att->host = calloc(1, sizeof(*att->host));
		if (att->host)
			register_page(cuda, att);
	}
	l->host = att->host;
	if (l->host) {
		l->host->lanes++;
		page = (int)l->host->page;
	}
	pthread_mutex_unlock(&c->cuda_lock);
	if (page && cuda_error(cuda, cuda->cu.cuMemHostGetDevicePointer_v2(
					     &l->done_page, att->page->done, 0)))
		l->done_page = 0;
	return l->host ? 0 : -ENOMEM;
}

/* Lets go of the pieces that are registered. */
static void unregister(struct kvp_cuda *cuda, struct cuda_reg *reg, uint32_t state)
{
	struct kvp_client *c = cuda->client;

	kvp_store_seq(&reg->base, 0);
	for (uint64_t at = 0; at < reg->done; at += CUDA_PIECE)
		(void)cuda_error(cuda, cuda->cu.cuMemHostUnregister((uint8_t *)reg->at + at));
	reg->done = 0;
	pthread_mutex_lock(&c->cuda_lock);
	c->registered_bytes -= reg->bytes;
	c->refused_bytes += state == REG_REFUSED ? reg->bytes : 0;
	reg->state = state;
	reg->drop = 0;
	pthread_mutex_unlock(&c->cuda_lock);
}

/* cuda_lock. What the driver refused counts no longer. */
static void forget(struct kvp_client *c, struct cuda_reg *reg)
{
	if (reg->state == REG_REFUSED) {
		c->refused_bytes -= reg->bytes;
		reg->state = REG_NONE;
	}
}

void host_drop(struct kvp_cuda *cuda, struct lane *l)
{
	struct kvp_client *c = cuda->client;
	struct host_regs *host = l->host;
	int last;

	pthread_mutex_lock(&c->cuda_lock);
	if (host->owner == cuda)
		host->owner = NULL;
	last = --host->lanes == 0;
	if (last)
		l->att->host = NULL;
	for (uint32_t i = 0; last && i < KVP_MAX_EXTENTS; i++)
		forget(c, &host->reg[i]);
	pthread_mutex_unlock(&c->cuda_lock);
	if (!last) {
		cuda_notice(c); /* somebody else is the owner now */
		return;
	}
	for (uint32_t i = 0; i < KVP_MAX_EXTENTS; i++)
		if (host->reg[i].state != REG_NONE)
			unregister(cuda, &host->reg[i], REG_NONE);
	if (host->page)
		(void)cuda_error(cuda, cuda->cu.cuMemHostUnregister(l->att->page->done));
	free(host);
}

/* ---- the owner's ----------------------------------------------------------------------------- */

/* cuda_lock. A vault that is to be registered, or that is being; what is there counts against the limit. */
static struct cuda_reg *find_next(struct kvp_client *c, struct lane *l, uint32_t *ret_extent)
{
	if (!c->register_max || kvp_load_seq(&l->att->dead))
		return NULL;
	for (uint32_t i = 0; i < KVP_MAX_EXTENTS; i++) {
		const struct extent_map *em = &l->att->extents[i];
		struct cuda_reg *reg = &l->host->reg[i];
		uint64_t left = c->register_max > c->registered_bytes
					? c->register_max - c->registered_bytes
					: 0;

		if (reg->state == REG_COMING ||
			(reg->state == REG_NONE && kvp_load_seq(&em->base) && em->vault &&
				kvp_load_relaxed(&em->bytes) <= left)) {
			*ret_extent = i;
			return reg;
		}
	}
	return NULL;
}

/* cuda_lock. From here on the library's thread leaves it mapped until this one has let go. */
static void reg_begin(struct kvp_client *c, const struct extent_map *em, struct cuda_reg *reg)
{
	reg->state = REG_COMING;
	reg->at = kvp_load_seq(&em->base);
	reg->bytes = kvp_load_relaxed(&em->bytes);
	reg->done = 0;
	c->registered_bytes += reg->bytes;
}

static void register_piece(struct kvp_cuda *cuda, struct cuda_reg *reg)
{
	uint64_t n = reg->bytes - reg->done < CUDA_PIECE ? reg->bytes - reg->done : CUDA_PIECE;

	if (cuda_error(cuda, cuda->cu.cuMemHostRegister_v2((uint8_t *)reg->at + reg->done, n,
				     CU_REG_PORTABLE | CU_REG_READ_ONLY))) {
		unregister(cuda, reg, REG_REFUSED);
		return;
	}
	reg->done += n;
	if (reg->done < reg->bytes)
		return;
	pthread_mutex_lock(&cuda->client->cuda_lock);
	reg->state = REG_THERE;
	/* Release: pairs with the load in host_registered(). */
	kvp_store_seq(&reg->base, reg->at);
	pthread_mutex_unlock(&cuda->client->cuda_lock);
}

/* 1: something was done, and there may be more. */
static int lane_serve(struct kvp_cuda *cuda, struct lane *l)
{
	struct kvp_client *c = cuda->client;
	struct cuda_reg *reg = NULL, *go = NULL;
	uint32_t extent;

	pthread_mutex_lock(&c->cuda_lock);
	if (!l->host->owner)
		l->host->owner = cuda;
	for (uint32_t i = 0; l->host->owner == cuda && !go && i < KVP_MAX_EXTENTS; i++)
		if (l->host->reg[i].drop && l->host->reg[i].state != REG_NONE)
			go = &l->host->reg[i];
	if (l->host->owner == cuda && !go && cuda->registers)
		reg = find_next(c, l, &extent);
	if (reg && reg->state == REG_NONE)
		reg_begin(c, &l->att->extents[extent], reg);
	pthread_mutex_unlock(&c->cuda_lock);
	if (go)
		unregister(cuda, go, REG_NONE);
	else if (reg)
		register_piece(cuda, reg);
	return go || reg;
}

int host_serve(struct kvp_cuda *cuda)
{
	for (uint32_t i = 0; i < CUDA_LANES; i++) {
		struct lane *l = kvp_load_relaxed(&cuda->lanes[i]);

		if (l && lane_serve(cuda, l))
			return 1;
	}
	return 0;
}

int host_settled(struct kvp_cuda *cuda)
{
	struct kvp_client *c = cuda->client;
	int left = 0;
	uint32_t extent;

	pthread_mutex_lock(&c->cuda_lock);
	for (uint32_t i = 0; i < CUDA_LANES && cuda->registers; i++) {
		struct lane *l = kvp_load_relaxed(&cuda->lanes[i]);

		left |= l && find_next(c, l, &extent);
	}
	pthread_mutex_unlock(&c->cuda_lock);
	return !left;
}

int host_held(struct attachment *att, uint32_t extent)
{
	struct cuda_reg *reg = att->host ? &att->host->reg[extent] : NULL;
	int held = reg && (reg->state == REG_COMING || reg->state == REG_THERE);

	if (reg)
		forget(att->client, reg);
	if (held && !reg->drop) {
		reg->drop = 1;
		for (struct kvp_cuda *u = att->client->cudas; u; u = u->next)
			cuda_rouse(u);
	}
	return held;
}

/* ---- for callers ----------------------------------------------------------------------------- */

int host_registered(const struct lane *l, uint32_t extent, const uint8_t *addr, uint64_t bytes,
	uintptr_t *ret_base)
{
	const struct cuda_reg *reg = &l->host->reg[extent % KVP_MAX_EXTENTS];
	uintptr_t base = kvp_load_seq(&reg->base), at = (uintptr_t)addr;

	if (!base || at < base || bytes > reg->bytes || at - base > reg->bytes - bytes)
		return 0;
	*ret_base = base;
	return 1;
}

int kvp_host_payloads(const struct kvp_prefix *m, struct kvp_cuda *cuda, uint32_t first, uint32_t n,
	const void **ret_addrs)
{
	int r = cuda_usable(cuda), have;
	const struct lane *l;

	if (r < 0)
		return r;
	if (!m || m->client != cuda->client)
		return -EINVAL;
	have = kvp_payloads(m, first, n, ret_addrs);
	if (have <= 0)
		return have;
	l = lane_of(cuda, m->att);
	for (int i = 0; i < have; i++) {
		const struct kvp_hit *h = &m->hits[first + (uint32_t)i];
		uint64_t bytes = kvp_where_bytes(h->where);
		uintptr_t base;

		/* One copy must not go from one registration to the next. */
		if (!l ||
			!host_registered(
				l, kvp_where_extent(h->where), ret_addrs[i], bytes, &base) ||
			((uintptr_t)ret_addrs[i] - base) / CUDA_PIECE !=
				((uintptr_t)ret_addrs[i] - base + bytes - 1) / CUDA_PIECE)
			return i;
	}
	return have;
}
