/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/ledger/dp_world.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/control/figures.h"

#define MIB (UINT64_C(1) << 20)

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* ---- world ---------------------------------------------------------------------------------- */

static int on_event(void *ctx, const struct kvpd_event *event)
{
	struct dp_world *w = ctx;

	pthread_mutex_lock(&w->lock);
	if (w->lose[event->type]) {
		w->lose[event->type]--;
		pthread_mutex_unlock(&w->lock);
		return -ENOMEM;
	}
	assert_true(w->posted - w->taken < DP_EVENTS);
	w->event[w->posted++ % DP_EVENTS] = *event;
	pthread_mutex_unlock(&w->lock);
	return 0;
}

void dp_defaults(struct dp_world *w, struct kvpd_limits *limits)
{
	memset(w, 0, sizeof(*w));
	w->config = (struct kvpd_config){
		.memory = 256 * MIB,
		.extent = MIB,
		.populate_threads = 2,
		.hugepages = KVPD_NEVER,
		.mlock = KVPD_NEVER,
		.numa_node = -1,
		.realtime = KVPD_NEVER,
		.policy = (char *)(uintptr_t) "lru",
		.claim_ttl_ms = 60000, /* none ends because the machine is slow */
		.max_sessions = 64,
	};
	*limits = (struct kvpd_limits){
		.share = 64 * MIB,
		.max_blocks = 1024,
		.recipe_blocks = 0,
		.recipe_tokens = 64 * 1024,
		.max_sessions = 32,
		.tail_index = true,
	};
}

void dp_start(struct dp_world *w, const struct kvpd_limits *limits)
{
	struct kvpd_ledger_params p = {
		.config = &w->config,
		.epoch = 7,
		.owner = geteuid(),
		.post = on_event,
		.ctx = w,
	};

	pthread_mutex_init(&w->lock, NULL);
	assert_int_equal(kvpd_ledger_new(&p, &w->ledger), 0);
	assert_int_equal(kvpd_ledger_start(w->ledger), 0);
	assert_int_equal(kvpd_tenant_open(w->ledger, "one", limits, &w->tenant), 0);
}

void dp_stop(struct dp_world *w)
{
	for (uint32_t i = 0; i < DP_CLIENTS; i++)
		if (w->client[i])
			dp_detach(w->client[i]);
	w->ledger = kvpd_ledger_free(w->ledger);
	for (; w->taken != w->posted; w->taken++)
		if (w->event[w->taken % DP_EVENTS].fd >= 0)
			close(w->event[w->taken % DP_EVENTS].fd);
	pthread_mutex_destroy(&w->lock);
}

static void map_extent(struct dp_client *c, const struct kvp_msg_extent *e, int fd, uint32_t flags)
{
	struct dp_mapped *m = &c->extent[e->extent];
	void *addr;

	if (m->addr && m->generation == e->generation)
		return;
	assert_null(m->addr);
	assert_int_equal(kvp_seg_map(fd, e->bytes, flags, &addr), 0);
	*m = (struct dp_mapped){ addr, e->bytes, e->generation };
}

static void unmap_extent(struct dp_client *c, uint32_t id)
{
	kvp_seg_unmap(c->extent[id].addr, c->extent[id].bytes);
	c->extent[id] = (struct dp_mapped){ 0 };
}

static void deliver(struct dp_client *c, const struct kvpd_event *ev)
{
	struct kvp_msg_id id = { ev->extent.extent, ev->extent.generation };

	switch (ev->type) {
	case KVPD_EV_ARENA:
		if (c->at.session != ev->session)
			break;
		map_extent(c, &ev->extent, ev->fd, KVP_MAP_WRITE);
		c->n_arenas++;
		if (c->ack_arenas)
			assert_int_equal(kvpd_arena_ack(c->world->ledger, c->at.session, &id), 0);
		break;
	case KVPD_EV_EXTENT:
		if (c->at.session != ev->session) {
			assert_int_equal(fcntl(ev->fd, F_GETFL) & O_ACCMODE, O_RDONLY);
			map_extent(c, &ev->extent, ev->fd, 0);
		}
		break;
	case KVPD_EV_RETIRE:
		if (c->extent[id.id].generation == id.generation)
			unmap_extent(c, id.id);
		if (c->ack_retires)
			assert_int_equal(kvpd_retire_ack(c->world->ledger, c->at.session, &id), 0);
		break;
	case KVPD_EV_EXPEL:
		c->expelled += c->at.session == ev->session;
		break;
	}
}

void dp_pump(struct dp_world *w)
{
	for (;;) {
		struct kvpd_event ev;

		pthread_mutex_lock(&w->lock);
		if (w->taken == w->posted) {
			pthread_mutex_unlock(&w->lock);
			return;
		}
		ev = w->event[w->taken++ % DP_EVENTS];
		pthread_mutex_unlock(&w->lock);
		for (uint32_t i = 0; i < DP_CLIENTS; i++)
			if (w->client[i] && w->client[i]->tenant == ev.tenant)
				deliver(w->client[i], &ev);
		if (ev.fd >= 0)
			close(ev.fd);
	}
}

/* ---- clients -------------------------------------------------------------------------------- */

static void map_first(void *ctx, const struct kvp_msg_extent *extent, int fd)
{
	struct dp_client *c = ctx;
	struct kvp_msg_extent again;
	int r = 0;

	if (fd < 0)
		r = kvpd_extent_get(c->world->ledger, c->at.session, extent->extent, &again, &fd);
	/* It may have gone since it was listed. */
	assert_true(r == 0 || r == -ENOENT);
	if (r < 0)
		return;
	map_extent(c, extent, fd, 0);
	close(fd);
}

struct dp_client *dp_attach(struct dp_world *w, uint32_t tenant)
{
	struct kvpd_peer peer = { .pid = getpid(), .uid = geteuid(), .name = "test" };
	struct dp_client *c = calloc(1, sizeof(*c));
	void *page;
	uint32_t i = 0, from = 0;

	assert_non_null(c);
	dp_pump(w);
	c->world = w;
	c->tenant = tenant;
	c->ack_arenas = c->ack_retires = true;
	assert_int_equal(kvpd_session_attach(w->ledger, tenant, &peer, &c->at), 0);
	assert_int_equal(
		kvp_seg_check(c->at.catalog_fd, c->at.catalog_bytes, KVP_SEALS_CATALOG), 0);
	assert_int_equal(kvp_seg_check(c->at.page_fd, c->at.page_bytes, KVP_SEALS_PAGE), 0);
	assert_int_equal(kvp_seg_map(c->at.catalog_fd, c->at.catalog_bytes, 0, &c->catalog), 0);
	assert_int_equal(kvp_seg_map(c->at.page_fd, c->at.page_bytes, KVP_MAP_WRITE, &page), 0);
	c->page = page;
	assert_int_equal(kvp_catalog_attach(c->catalog, c->at.catalog_bytes, &c->view), 0);
	while (w->client[i])
		i++;
	assert_true(i < DP_CLIENTS);
	w->client[i] = c;
	do
		assert_int_equal(
			kvpd_session_extents(w->ledger, c->at.session, &from, map_first, c), 0);
	while (from);
	return c;
}

struct dp_client *dp_detach(struct dp_client *c)
{
	struct dp_world *w = c->world;

	for (uint32_t i = 0; i < DP_CLIENTS; i++)
		if (w->client[i] == c)
			w->client[i] = NULL;
	for (uint32_t i = 0; i < KVP_MAX_EXTENTS; i++)
		unmap_extent(c, i);
	if (w->ledger) /* else it ended with the daemon */
		kvpd_session_detach(w->ledger, c->at.session);
	kvp_seg_unmap(c->page, c->at.page_bytes);
	kvp_seg_unmap(c->catalog, c->at.catalog_bytes);
	close(c->at.catalog_fd);
	close(c->at.page_fd);
	close(c->at.wake_fd);
	free(c);
	return NULL;
}

void dp_canon(struct kvp_space_canon *canon, const char *model, uint32_t layers)
{
	memset(canon, 0, sizeof(*canon));
	canon->version = 1;
	canon->dtype = KVP_DTYPE_F16;
	canon->layout = KVP_LAYOUT_LCND;
	canon->block_tokens = 16;
	canon->n_layers = layers;
	snprintf(canon->model, sizeof(canon->model), "%s", model);
	for (uint32_t i = 0; i < layers; i++)
		canon->layers[i] = (struct kvp_shm_layer){
			.index = (uint16_t)i, .kv_heads = 1, .k_dim = 4, .v_dim = 4
		};
}

int dp_open(struct dp_client *c, const struct kvp_space_canon *canon, char *reason, size_t bytes,
	struct kvp_msg_space *ret_space)
{
	int r;

	do
		r = kvpd_space_open(
			c->world->ledger, c->at.session, canon, reason, bytes, ret_space);
	while (r == -EINPROGRESS);
	return r;
}

static uint32_t open_space(struct dp_client *c, const struct kvp_space_canon *canon)
{
	struct kvp_msg_space space;
	char reason[64] = "";
	int r = dp_open(c, canon, reason, sizeof(reason), &space);

	if (r < 0)
		fail_msg("space: %s (%d)", reason, r);
	return space.space;
}

uint32_t dp_space(struct dp_client *c, const char *model, uint32_t layers)
{
	struct kvp_space_canon canon;

	dp_canon(&canon, model, layers);
	return open_space(c, &canon);
}

uint32_t dp_large_space(struct dp_client *c, const char *model, uint32_t block_bytes)
{
	struct kvp_space_canon canon;

	dp_canon(&canon, model, 1);
	canon.layers[0].kv_heads = (uint16_t)(block_bytes / 256);
	return open_space(c, &canon);
}

/* ---- rings ---------------------------------------------------------------------------------- */

uint32_t dp_push(struct dp_client *c, struct kvp_sqe *sqe)
{
	uint64_t one = 1, until = now_ms() + DP_WAIT_MS;

	sqe->serial = ++c->serial;
	while (kvp_sq_push(c->page, &c->sq_tail, sqe) < 0) {
		assert_true(now_ms() < until);
		usleep(50);
	}
	if (kvp_sq_must_wake(c->page))
		assert_int_equal(write(c->at.wake_fd, &one, sizeof(one)), sizeof(one));
	return sqe->serial;
}

int dp_next(struct dp_client *c, uint32_t timeout_ms, struct kvp_cqe *ret)
{
	uint64_t until = now_ms() + timeout_ms;

	for (;;) {
		int r = kvp_cq_pop(c->page, &c->cq_head, ret);

		assert_int_not_equal(r, -EPROTO);
		if (r == 0)
			return 0;
		dp_pump(c->world);
		if (now_ms() >= until)
			return -ETIMEDOUT;
		usleep(20);
	}
}

static void next_of(struct dp_client *c, uint32_t serial, struct kvp_cqe *ret)
{
	do
		assert_int_equal(dp_next(c, DP_WAIT_MS, ret), 0);
	while (ret->serial != serial);
}

int dp_reserve_at(struct dp_client *c, uint32_t space, uint32_t medium, uint32_t n,
	uint32_t timeout_ms, struct dp_grant *out)
{
	uint64_t until = now_ms() + timeout_ms;
	uint32_t got = 0;

	for (;;) {
		struct kvp_sqe sqe = {
			.op = KVP_OP_RESERVE,
			.grant = medium,
			.space = (uint16_t)space,
			.count = n,
		};
		uint32_t serial = dp_push(c, &sqe);
		struct kvp_cqe cqe;

		do {
			next_of(c, serial, &cqe);
			if (cqe.status < 0)
				break;
			assert_true(got < n);
			assert_non_null(c->extent[cqe.extent].addr);
			assert_true(cqe.offset + cqe.bytes <= c->extent[cqe.extent].bytes);
			out[got++] = (struct dp_grant){
				.index = cqe.grant,
				.generation = cqe.grant_generation,
				.extent = cqe.extent,
				.bytes = cqe.bytes,
				.offset = cqe.offset,
				.addr = c->extent[cqe.extent].addr + cqe.offset,
			};
		} while (cqe.more);
		if (got)
			return (int)got;
		if (cqe.status != -EAGAIN || now_ms() >= until)
			return cqe.status;
		assert_true(cqe.retry_ms > 0);
		usleep(cqe.retry_ms * 1000);
	}
}

int dp_reserve(
	struct dp_client *c, uint32_t space, uint32_t n, uint32_t timeout_ms, struct dp_grant *out)
{
	return dp_reserve_at(c, space, 0, n, timeout_ms, out);
}

int dp_commit(struct dp_client *c, uint32_t space, const struct dp_grant *g, struct dp_ref parent,
	const kvp_token *tokens, uint32_t n, uint32_t flags, struct dp_block *ret)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_COMMIT,
		.grant = g->index,
		.grant_generation = g->generation,
		.space = (uint16_t)space,
		.tokens = (uint16_t)n,
		.flags = flags,
		.parent_kind = parent.kind,
		.parent_id = parent.id,
		.parent_birth = parent.birth,
	};
	struct kvp_cqe cqe;

	if (n <= KVP_BLOCK_TOKENS_MAX)
		memcpy(c->page->staging[g->index], tokens, n * sizeof(*tokens));
	next_of(c, dp_push(c, &sqe), &cqe);
	if (cqe.status == 0)
		*ret = (struct dp_block){ cqe.block, cqe.birth, cqe.flags, cqe.serial };
	return cqe.status;
}

void dp_release(struct dp_client *c, const struct dp_grant *g)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_RELEASE, .grant = g->index, .grant_generation = g->generation
	};

	dp_push(c, &sqe);
}

void dp_flush(struct dp_client *c)
{
	struct kvp_sqe sqe = { .op = KVP_OP_FLUSH };
	struct kvp_cqe cqe;

	next_of(c, dp_push(c, &sqe), &cqe);
	assert_int_equal(cqe.status, 0);
}

/* ---- blocks --------------------------------------------------------------------------------- */

static uint64_t pattern(const kvp_token *tokens, uint32_t n)
{
	struct kvp_key key = kvp_chain_key((struct kvp_key){ 1, 2 }, tokens, n);

	return key.lo;
}

static uint64_t word_at(uint64_t seed, uint64_t i)
{
	return (seed + i) * UINT64_C(0x9e3779b97f4a7c15);
}

void dp_fill(const struct dp_grant *g, const kvp_token *tokens, uint32_t n)
{
	uint64_t seed = pattern(tokens, n);

	for (uint64_t i = 0; i < g->bytes / 8; i++)
		((uint64_t *)(void *)g->addr)[i] = word_at(seed, i);
}

int dp_put_at(struct dp_client *c, uint32_t space, uint32_t medium, struct dp_ref parent,
	const kvp_token *tokens, uint32_t n, struct dp_block *ret)
{
	struct dp_grant g;
	int r = dp_reserve_at(c, space, medium, 1, DP_WAIT_MS, &g);

	if (r < 0)
		return r;
	dp_fill(&g, tokens, n);
	return dp_commit(c, space, &g, parent, tokens, n, KVP_SQE_RELEASE, ret);
}

int dp_put(struct dp_client *c, uint32_t space, struct dp_ref parent, const kvp_token *tokens,
	uint32_t n, struct dp_block *ret)
{
	return dp_put_at(c, space, 0, parent, tokens, n, ret);
}

/* Whose bytes are these? dp_fill() made the word of a seed, of which only its own block has this one. */
static uint64_t seed_of(uint64_t word, uint64_t i)
{
	return word * UINT64_C(0xf1de83e19937733d) - i;
}

/* All that tells one cause of wrong bytes from another. */
static void tell_wrong(const struct dp_client *c, const struct kvp_hit *hit, uint64_t seed,
	const uint64_t *p, uint64_t first)
{
	const uint32_t id = kvp_where_extent(hit->where);
	const struct kvp_shm_extent *x = &c->view.extents[id];
	const struct kvp_block *b = &c->view.blocks[hit->id];
	uint64_t n = kvp_where_bytes(hit->where) / 8, wrong = 0, where, offset;

	kvp_payload_read(b, kvp_load_acquire(&b->word), hit->tier, &where, &offset);
	print_error("round %u, block %u, tier %u, checksum %#llx\n", c->world->round, hit->id,
		hit->tier, (unsigned long long)kvp_load_acquire(&b->payload[hit->tier].checksum));
	print_error("found: word %#llx, where %#llx at %#llx\n", (unsigned long long)hit->word,
		(unsigned long long)hit->where, (unsigned long long)hit->offset);
	print_error("now:   word %#llx, where %#llx at %#llx\n",
		(unsigned long long)kvp_load_acquire(&b->word), (unsigned long long)where,
		(unsigned long long)offset);
	print_error(
		"extent %u: kind %u, state %u, owner %u, device %u, generation %u; mapped here: "
		"%u\n",
		id, kvp_load_acquire(&x->kind), kvp_load_acquire(&x->state),
		kvp_load_acquire(&x->owner), kvp_load_acquire(&x->device),
		kvp_load_acquire(&x->generation), c->extent[id].generation);
	if (!p)
		return;
	for (uint64_t i = first; i < n; i++)
		wrong += p[i] != word_at(seed, i);
	print_error(
		"%llu of %llu words are wrong; %llu: %#llx, of seed %#llx; last: of seed %#llx; "
		"right: %#llx\n",
		(unsigned long long)wrong, (unsigned long long)n, (unsigned long long)first,
		(unsigned long long)p[first], (unsigned long long)seed_of(p[first], first),
		(unsigned long long)seed_of(p[n - 1], n - 1), (unsigned long long)seed);
}

bool dp_payload_right(
	struct dp_client *c, const struct kvp_hit *hit, const kvp_token *tokens, uint32_t n)
{
	const struct dp_mapped *m = &c->extent[kvp_where_extent(hit->where)];
	uint64_t bytes = kvp_where_bytes(hit->where), seed = pattern(tokens, n);
	const uint64_t *p;

	dp_pump(c->world);
	if (!m->addr || hit->offset + bytes > m->bytes) {
		tell_wrong(c, hit, seed, NULL, 0);
		return false;
	}
	p = (const uint64_t *)(const void *)(m->addr + hit->offset);
	for (uint64_t i = 0; i < bytes / 8; i++)
		if (p[i] != word_at(seed, i)) {
			tell_wrong(c, hit, seed, p, i);
			return false;
		}
	return true;
}

bool dp_lease(
	struct dp_client *c, const struct kvp_hit *hits, uint32_t n, struct kvp_lease *ret_lease)
{
	const struct kvp_hit *tip = &hits[n - 1];
	int r = kvp_lease_take(c->page, 0, &c->view.blocks[tip->id], tip->id, tip->word, ret_lease);

	assert_int_not_equal(r, -ENOBUFS);
	if (r < 0)
		return false;
	if (kvp_revalidate(&c->view, hits, n) == n)
		return true;
	kvp_lease_drop(ret_lease);
	return false;
}

uint32_t dp_read(struct dp_client *c, uint32_t space, const kvp_token *tokens, uint32_t n,
	uint32_t tiers, struct kvp_hit *hits, uint32_t max)
{
	struct dp_world *w = c->world;
	uint64_t until = now_ms() + DP_WAIT_MS;
	struct kvp_found f;
	struct kvp_lease lease;

	for (;;) {
		dp_pump(w);
		kvp_find(&c->view, space, tokens, n, KVP_FIND_NO_TAIL, tiers, hits, max, &f);
		if (w->between)
			w->between(w->between_ctx);
		if (!f.n_hits)
			return 0;
		if (dp_lease(c, hits, f.n_hits, &lease))
			break;
		/* Something of it has moved or gone since. */
		assert_true(now_ms() < until);
	}
	for (uint32_t i = 0; i < f.n_hits; i++)
		if (!dp_payload_right(c, &hits[i], tokens + (size_t)i * 16, hits[i].tokens))
			fail_msg("block %u of %u, under a lease", i, f.n_hits);
	kvp_lease_drop(&lease);
	return f.n_hits;
}

uint32_t dp_find(struct dp_client *c, uint32_t space, const kvp_token *tokens, uint32_t n,
	struct kvp_hit *hits, uint32_t max)
{
	struct kvp_found found;

	kvp_find(&c->view, space, tokens, n, KVP_FIND_NO_TAIL, KVP_TIERS_DRAM, hits, max, &found);
	return found.n_hits;
}

/* ---- administration ------------------------------------------------------------------------- */

int dp_figures(
	struct dp_world *w, const char *only, uint32_t what, struct kvpd_figures *ret_figures)
{
	struct kvpd_figures_walk *walk;
	int r;

	assert_int_equal(kvpd_figures_begin(only, what, &walk), 0);
	do
		r = kvpd_figures_step(w->ledger, walk);
	while (r == -EINPROGRESS);
	kvpd_figures_end(walk, ret_figures);
	if (r < 0)
		kvpd_figures_fini(ret_figures);
	return r;
}

static json_t *figures_json(const struct kvpd_figures *f, const char *verb)
{
	int64_t n = kvpd_figures_rows(f, verb);
	struct kvpd_rates rates = { 0 };
	json_t *list;

	if (n < 0)
		return kvpd_figures_json(f, &rates, verb, 0);
	list = json_array();
	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, kvpd_figures_json(f, &rates, verb, i));
	return json_pack("{s:o}", verb, list);
}

/* As control/admin.c does it. */
static int figures(struct dp_world *w, const char *verb, uint32_t what, const json_t *request,
	json_t **ret_answer)
{
	const char *tenant = json_string_value(json_object_get(request, "tenant"));
	struct kvpd_figures f;
	int r = dp_figures(w, tenant, what, &f);

	if (r == 0) {
		*ret_answer = figures_json(&f, verb);
		kvpd_figures_fini(&f);
	}
	return r;
}

static int plane(struct dp_world *w, json_t *q, json_t **ret_answer)
{
	struct kvpd_request *request;
	int r = kvpd_admin_begin(q, &request);
	json_t *list = json_array();
	const char *name;
	uint32_t rows;

	assert_int_equal(r, 0);
	do
		r = kvpd_admin_step(w->ledger, request);
	while (r == -EINPROGRESS);
	name = kvpd_admin_list(request, &rows);
	for (uint32_t i = 0; name && i < rows; i++)
		json_array_append_new(list, kvpd_admin_row(request, i));
	*ret_answer = kvpd_admin_end(request);
	if (name)
		json_object_set(*ret_answer, name, list);
	json_decref(list);
	return r;
}

int dp_admin(struct dp_world *w, const char *request, json_t **ret)
{
	json_t *q = json_loads(request, 0, NULL), *answer = NULL;
	const char *verb = json_string_value(json_object_get(q, "verb"));
	uint32_t what;
	int r;

	assert_non_null(verb);
	r = kvpd_figures_verb(verb, &what) ? figures(w, verb, what, q, &answer)
					   : plane(w, q, &answer);
	json_decref(q);
	assert_non_null(answer);
	if (ret)
		*ret = answer;
	else
		json_decref(answer);
	return r;
}

/* One step of a check; fails with its text. Returns where to go on, or -1. */
static int64_t check_step(struct dp_world *w, const char *request)
{
	json_t *answer, *next;
	int r = dp_admin(w, request, &answer);
	int64_t from;

	if (r < 0) {
		char *text = json_dumps(answer, JSON_INDENT(1));

		print_error("%s\n", text);
		free(text);
	}
	assert_int_equal(r, 0);
	next = json_object_get(answer, "next");
	from = next ? (int64_t)json_integer_value(next) : -1;
	json_decref(answer);
	return from;
}

void dp_check(struct dp_world *w)
{
	char request[64];
	int64_t from = 0;

	check_step(w, "{\"verb\": \"check\"}");
	do {
		snprintf(request, sizeof(request), "{\"verb\": \"check\", \"from\": %lld}",
			(long long)from);
		from = check_step(w, request);
	} while (from >= 0);
}

uint64_t dp_figure(struct dp_world *w, const char *name)
{
	json_t *answer, *v;
	uint64_t n;

	assert_int_equal(dp_admin(w, "{\"verb\": \"tenants\", \"tenant\": \"one\"}", &answer), 0);
	v = json_object_get(json_array_get(json_object_get(answer, "tenants"), 0), name);
	assert_true(json_is_integer(v));
	n = (uint64_t)json_integer_value(v);
	json_decref(answer);
	return n;
}

void dp_await_most(struct dp_world *w, const char *name, uint64_t most)
{
	uint64_t until = now_ms() + DP_WAIT_MS;

	while (dp_figure(w, name) > most) {
		assert_true(now_ms() < until);
		dp_pump(w);
		usleep(1000);
	}
}
