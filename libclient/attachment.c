/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An attachment's memory: its catalog and session page are mapped here, its counters read, and all
 * of it emptied when the daemon is gone and nothing points into it any more.
 */
#include "libclient/cuda.h"
#include "libclient/thread.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/kvp_seg.h"

#define GOODBYE_MS 200u

/* ---- making ---------------------------------------------------------------------------------- */

struct attachment *attachment_take(struct kvp_client *c)
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

int map_checked(int fd, uint64_t bytes, unsigned seals, uint32_t flags, void **ret_addr)
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

int attachment_map(struct attachment *att, struct kvp_packet *p)
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

/* ---- counting -------------------------------------------------------------------------------- */

static void add_counters(struct kvp_counters *sum, const struct attachment *att)
{
	for (uint32_t i = 0; i < KVP_SHARDS; i++) {
		const struct kvp_shard *s = &att->page->shard[i];

		if (!kvp_shard_lookups(s))
			continue;
		sum->hits += kvp_load_relaxed(&s->hits);
		sum->partial_hits += kvp_load_relaxed(&s->partial);
		sum->misses += kvp_load_relaxed(&s->misses);
		sum->unleased += kvp_load_relaxed(&s->unleased);
		for (uint32_t k = 0; k < KVP_MAX_SPACES; k++) {
			sum->tokens_asked += kvp_load_relaxed(&s->use[k].asked);
			sum->tokens_matched += kvp_load_relaxed(&s->use[k].matched);
		}
	}
}

void attachment_count(const struct attachment *att, struct kvp_counters *sum)
{
	if (!att->published)
		return;
	add_counters(sum, att);
	sum->timeouts += att->timeouts;
}

/* ---- emptying -------------------------------------------------------------------------------- */

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

void attachment_empty(struct attachment *att)
{
	struct kvp_client *c = att->client;
	uint32_t slot = att->slot;

	attachment_count(att, &c->past);
	closes_forget(att);
	unmap_all(att);
	pthread_mutex_lock(&c->cuda_lock);
	cuda_owns_free(att);
	pthread_mutex_unlock(&c->cuda_lock);
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

	if (att->sock < 0 || packet_try(att, KVP_MSG_BYE, 0, NULL, 0) < 0)
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
	closes_forget(att);
	for (struct warm *w = att->early; w; w = w->next_early)
		free(w->places);
	cuda_owns_free(att);
	if (att->wake >= 0)
		close(att->wake);
	if (att->sock >= 0)
		close(att->sock);
	free(att);
}
