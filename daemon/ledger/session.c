/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client's page as the ledger serves it. Every word that is read from the page is hostile:
 * loaded once, bounded, and only the private copy is used.
 */
#include "daemon/ledger/ledger.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

/* How long a RESERVE waits for slots before it is answered with -EAGAIN. */
#define RESERVE_WAIT_NS (50 * KVPD_MS)
#define RETRY_MS        10u
/* Completions that must fit before an entry is taken from the ring. */
#define ROOM_FOR_ONE 2u

/* ---- completions ---------------------------------------------------------------------------- */

static void complete(struct kvpd_session *s, const struct kvp_cqe *cqe)
{
	kvp_cq_push(s->page, &s->cq_tail, cqe);
}

static void wake_client(struct kvpd_session *s)
{
	if (kvp_cq_must_wake(s->page))
		syscall(SYS_futex, &s->page->cq_tail, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void answer(struct kvpd_session *s, const struct kvp_sqe *sqe, int status, uint32_t flags)
{
	struct kvp_cqe cqe = {
		.op = sqe->op,
		.serial = sqe->serial,
		.status = status,
		.flags = flags,
		.block = KVP_BLOCK_NONE,
		.retry_ms = status == -EAGAIN || status == -ENOSPC ? RETRY_MS : 0,
	};

	complete(s, &cqe);
}

static void set_stalled(struct kvpd_session *s, bool stalled)
{
	if (s->stalled == stalled)
		return;
	s->stalled = stalled;
	if (stalled)
		s->tenant->n_stalled++;
	else
		s->tenant->n_stalled--;
}

/* ---- grants --------------------------------------------------------------------------------- */

static struct kvpd_grant *grant_of(struct kvpd_session *s, uint32_t i, uint32_t generation)
{
	if (i >= KVP_MAX_GRANTS || s->grant[i].state == KVPD_GRANT_FREE ||
		s->grant[i].generation != generation)
		return NULL;
	return &s->grant[i];
}

static void grant_release(struct kvpd_session *s, struct kvpd_grant *g)
{
	struct kvpd_tenant *t = s->tenant;
	uint32_t block = g->place.extent->slot[g->place.slot].block;

	if (block != KVP_BLOCK_NONE)
		t->block[block].flags &= ~KVPD_BLOCK_HELD;
	kvpd_slot_clear(g->place, KVPD_SLOT_GRANTED);
	g->state = KVPD_GRANT_FREE;
	g->generation++;
	g->next = s->grant_free;
	s->grant_free = (uint32_t)(g - s->grant);
	s->n_grants--;
}

static void grant_one(struct kvpd_session *s, struct kvpd_place place, uint32_t serial,
	uint32_t bytes, uint32_t more)
{
	uint32_t i = s->grant_free;
	struct kvpd_grant *g = &s->grant[i];
	struct kvp_cqe cqe = {
		.op = KVP_OP_RESERVE,
		.serial = serial,
		.grant = i,
		.grant_generation = g->generation,
		.extent = place.extent->id,
		.bytes = bytes,
		.offset = kvpd_place_offset(place),
		.block = KVP_BLOCK_NONE,
		.more = more,
	};

	s->grant_free = g->next;
	g->state = KVPD_GRANT_WRITING;
	g->place = place;
	s->n_grants++;
	complete(s, &cqe);
}

/* Free slots of the session's arenas in a class, and how many slots those have in all. */
static uint64_t free_slots(
	const struct kvpd_session *s, const struct kvpd_class *c, uint64_t *ret_slots)
{
	uint64_t n = 0, slots = 0;

	for (struct kvpd_list *it = s->arenas.next; it != &s->arenas; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);

		if (x->cls != c || x->draining || x->state != KVPD_EXTENT_LIVE)
			continue;
		slots += x->slots;
		n += x->slots - x->used;
	}
	*ret_slots = slots;
	return n;
}

static bool take_slot(struct kvpd_session *s, const struct kvpd_class *c, struct kvpd_place *ret)
{
	for (struct kvpd_list *it = s->arenas.next; it != &s->arenas; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);
		uint32_t slot;

		if (x->cls == c && kvpd_slot_take(x, KVPD_SLOT_GRANTED, &slot)) {
			*ret = (struct kvpd_place){ .extent = x, .slot = slot };
			return true;
		}
	}
	return false;
}

/* Grants up to `count` slots, as many as there are; returns how many. */
static uint32_t grant_some(struct kvpd_session *s, uint32_t space, uint32_t count, uint32_t serial)
{
	const struct kvpd_tenant *t = s->tenant;
	struct kvpd_class *c = t->space[space].cls;
	uint32_t bytes = (uint32_t)t->view.spaces[space].block_bytes;
	uint32_t room = kvp_cq_room(s->page, s->cq_tail), limit = KVP_MAX_GRANTS - s->n_grants;
	uint64_t slots, n = free_slots(s, c, &slots);
	struct kvpd_place place;

	if (n > count)
		n = count;
	if (n > limit)
		n = limit;
	if (n > room)
		n = room;
	for (uint64_t i = n; i > 0; i--) {
		bool taken = take_slot(s, c, &place);

		assert(taken);
		(void)taken;
		grant_one(s, place, serial, bytes, (uint32_t)(i - 1));
	}
	return (uint32_t)n;
}

/*
 * Has more slots made ready before they are asked for: a larger arena as long as the session may
 * have one, and then by moving its blocks to the vault. Who waits already gets both.
 */
static void supply(struct kvpd_session *s, struct kvpd_class *c, bool waits, uint64_t now)
{
	uint64_t slots, n = free_slots(s, c, &slots);

	if (n > slots / 2)
		return;
	kvpd_arena_grow(s, c, now);
	if (s->making && !waits)
		return;
	for (struct kvpd_list *it = s->arenas.next; it != &s->arenas; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);

		if (x->cls == c && x->state == KVPD_EXTENT_LIVE && !x->draining)
			kvpd_move_out(x, KVPD_MOVE_BLOCKS, waits || n < slots / 8, now);
	}
}

static void want(struct kvpd_session *s)
{
	if (kvpd_list_empty(&s->in_wanting))
		kvpd_list_append(&s->tenant->wanting, &s->in_wanting);
}

static void op_reserve(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	uint32_t count = sqe->count < 1                ? 1
			 : sqe->count > KVP_MAX_GRANTS ? KVP_MAX_GRANTS
						       : sqe->count;
	struct kvpd_class *c;
	int status = 0;

	if (sqe->space >= KVP_MAX_SPACES || !s->opens[sqe->space])
		status = -EINVAL;
	else if (s->n_grants == KVP_MAX_GRANTS)
		status = -EDQUOT;
	else if (s->reserve.waiting)
		status = -EAGAIN;
	if (status) {
		answer(s, sqe, status, 0);
		return;
	}
	c = s->tenant->space[sqe->space].cls;
	if (!grant_some(s, sqe->space, count, sqe->serial)) {
		s->reserve = (struct kvpd_reserve){
			.waiting = true,
			.serial = sqe->serial,
			.space = sqe->space,
			.count = count,
			.until_ns = now + RESERVE_WAIT_NS,
		};
		want(s);
	}
	supply(s, c, s->reserve.waiting, now);
}

void kvpd_session_reserve_step(struct kvpd_session *s, uint64_t now)
{
	struct kvpd_reserve *r = &s->reserve;
	struct kvp_sqe sqe = { .op = KVP_OP_RESERVE, .serial = r->serial };
	struct kvpd_class *c = s->tenant->space[r->space].cls;
	bool done = true;

	if (s->expelled || !kvp_cq_room(s->page, s->cq_tail))
		done = now >= r->until_ns; /* nobody is there to read the answer */
	else if (!s->opens[r->space])
		answer(s, &sqe, -EINVAL, 0);
	else if (!grant_some(s, r->space, r->count, r->serial)) {
		supply(s, c, true, now);
		done = now >= r->until_ns;
		if (done)
			answer(s, &sqe, -EAGAIN, 0);
	}
	if (!done)
		return;
	r->waiting = false;
	kvpd_list_remove(&s->in_wanting);
	wake_client(s);
}

static void op_release(struct kvpd_session *s, const struct kvp_sqe *sqe)
{
	struct kvpd_grant *g = grant_of(s, sqe->grant, sqe->grant_generation);

	if (g)
		grant_release(s, g);
}

/* ---- commit --------------------------------------------------------------------------------- */

/* The parent that a submission names: a block id, or KVP_BLOCK_NONE for the root. */
static int resolve(const struct kvpd_session *s, const struct kvp_sqe *sqe, uint32_t *ret_parent)
{
	const struct kvpd_tenant *t = s->tenant;
	uint32_t id = sqe->parent_id, birth = sqe->parent_birth, shape;
	uint64_t word;

	if (sqe->parent_kind == KVP_PARENT_ROOT) {
		*ret_parent = KVP_BLOCK_NONE;
		return 0;
	}
	if (sqe->parent_kind == KVP_PARENT_SERIAL) {
		const struct kvpd_outcome *o = &s->outcome[id % KVP_SERIALS];

		if (!o->known || o->serial != id || o->block == KVP_BLOCK_NONE)
			return -ECANCELED;
		id = o->block;
		birth = o->birth;
	} else if (sqe->parent_kind != KVP_PARENT_BLOCK) {
		return -EINVAL;
	}
	if (id >= t->layout.max_blocks)
		return -EINVAL;
	word = kvpd_block_word(t, id);
	if (kvp_word_birth(word) != birth || kvp_word_state(word) != KVP_BLOCK_LIVE)
		return -ECANCELED;
	shape = kvp_load_relaxed(&t->view.blocks[id].shape);
	if (kvp_shape_space(shape) != sqe->space ||
		kvp_shape_tokens(shape) != t->view.spaces[sqe->space].canon.block_tokens)
		return -EINVAL;
	*ret_parent = id;
	return 0;
}

static void copy_tokens(struct kvpd_session *s, uint32_t grant, uint32_t n)
{
	/* The client may write there meanwhile: each token is read once, whatever it then is. */
	const volatile kvp_token *row = s->page->staging[grant];

	for (uint32_t i = 0; i < n; i++)
		s->tokens[i] = row[i];
}

/* 0 or KVP_CQE_DUPLICATE, or why not. */
static int commit(struct kvpd_session *s, const struct kvp_sqe *sqe, struct kvpd_grant *g,
	uint64_t now, uint32_t *ret_block)
{
	struct kvpd_tenant *t = s->tenant;
	const struct kvp_shm_space *space;
	struct kvpd_new_block b = { .space = sqe->space, .n_tokens = sqe->tokens };
	struct kvp_key root, next = { sqe->next_lo, sqe->next_hi };
	uint32_t found = KVP_BLOCK_NONE;
	int r;

	if (g->state != KVPD_GRANT_WRITING)
		return -EALREADY;
	if (sqe->space >= KVP_MAX_SPACES || !s->opens[sqe->space] ||
		g->place.extent->cls != t->space[sqe->space].cls)
		return -EINVAL;
	space = &t->view.spaces[sqe->space];
	if (!b.n_tokens || b.n_tokens > space->canon.block_tokens)
		return -EINVAL;
	r = resolve(s, sqe, &b.parent);
	if (r < 0)
		return r;
	copy_tokens(s, sqe->grant, b.n_tokens);
	root = (struct kvp_key){ space->root_lo, space->root_hi };
	b.tokens = s->tokens;
	b.key = kvp_chain_key(b.parent == KVP_BLOCK_NONE ? root : kvpd_block_key(t, b.parent),
		b.tokens, b.n_tokens);
	b.place = g->place;
	r = kvpd_block_lookup(t, &b, &found);
	if (r < 0)
		return r;
	if (r && kvpd_block_state(t, found) != KVP_BLOCK_RECIPE) {
		kvp_evict_access(t->evict, found, now);
		kvp_bump(&t->view.cat->stats.duplicates, 1);
		*ret_block = found;
		r = KVP_CQE_DUPLICATE;
	} else {
		r = kvpd_block_add(t, &b, found, now, ret_block);
	}
	if (r >= 0) {
		g->state = KVPD_GRANT_COMMITTED;
		kvpd_claim_committed(s, b.key, next, now);
	}
	return r;
}

static void op_commit(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	struct kvpd_grant *g = grant_of(s, sqe->grant, sqe->grant_generation);
	struct kvpd_outcome *o = &s->outcome[sqe->serial % KVP_SERIALS];
	uint32_t block = KVP_BLOCK_NONE;
	struct kvp_cqe cqe = { .op = KVP_OP_COMMIT, .serial = sqe->serial };
	int r = g ? commit(s, sqe, g, now, &block) : -EINVAL;

	*o = (struct kvpd_outcome){ .serial = sqe->serial, .known = 1, .block = block };
	if (block != KVP_BLOCK_NONE)
		o->birth = kvp_word_birth(kvpd_block_word(s->tenant, block));
	if (r < 0)
		kvp_bump(&s->tenant->view.cat->stats.refused, 1);
	cqe.status = r < 0 ? r : 0;
	cqe.flags = r > 0 ? (uint32_t)r : 0;
	cqe.block = block;
	cqe.birth = o->birth;
	cqe.retry_ms = r == -ENOSPC ? RETRY_MS : 0;
	complete(s, &cqe);
	if (g && (sqe->flags & KVP_SQE_RELEASE))
		grant_release(s, g);
}

/* ---- the other operations ------------------------------------------------------------------- */

static bool key_is_live(const struct kvpd_tenant *t, struct kvp_key key)
{
	kvp_block_id id[KVP_TAIL_CANDIDATES];
	uint32_t n = kvp_index_candidates(
		t->view.index, t->view.index_buckets, key.lo, id, KVP_TAIL_CANDIDATES);

	for (uint32_t i = 0; i < n; i++)
		if (kvp_key_equal(kvpd_block_key(t, id[i]), key) &&
			kvpd_block_state(t, id[i]) == KVP_BLOCK_LIVE)
			return true;
	return false;
}

static void op_claim(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	struct kvp_key key = { sqe->next_lo, sqe->next_hi };
	uint32_t flags = 0;
	int r = 0;

	if (!key.lo && !key.hi)
		r = -EINVAL;
	else if (key_is_live(s->tenant, key))
		flags = KVP_CQE_PRESENT;
	else
		r = kvpd_claim_set(s, key, sqe->ttl_ms, now);
	if (r == -EBUSY) {
		r = 0;
		flags = KVP_CQE_PENDING;
		kvp_bump(&s->tenant->view.cat->stats.waits, 1);
	}
	answer(s, sqe, r, flags);
}

static int delete_block(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	struct kvpd_tenant *t = s->tenant;
	uint32_t id = sqe->parent_id, space;
	uint64_t word;
	int r;

	if (sqe->parent_kind != KVP_PARENT_BLOCK || id >= t->layout.max_blocks)
		return -EINVAL;
	word = kvpd_block_word(t, id);
	if (kvp_word_birth(word) != sqe->parent_birth || kvp_word_state(word) == KVP_BLOCK_FREE)
		return -ENOENT;
	space = kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape));
	if (!s->opens[space])
		return -EACCES;
	r = kvpd_block_drop(t, id, true, now);
	if (r == 0)
		kvp_bump(&t->view.cat->stats.deleted, 1);
	/* Below it something may wait to be deleted too. */
	if (r == -EBUSY || (r == -ENOTEMPTY && t->n_doomed))
		r = kvpd_doom(t, id, now);
	return r;
}

static void serve_one(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	switch (sqe->op) {
	case KVP_OP_RESERVE:
		op_reserve(s, sqe, now);
		break;
	case KVP_OP_COMMIT:
		op_commit(s, sqe, now);
		break;
	case KVP_OP_RELEASE:
		op_release(s, sqe);
		break;
	case KVP_OP_CLAIM:
		op_claim(s, sqe, now);
		break;
	case KVP_OP_UNCLAIM:
		kvpd_claim_end(s->tenant, (struct kvp_key){ sqe->next_lo, sqe->next_hi }, s->id);
		break;
	case KVP_OP_DELETE:
		answer(s, sqe, delete_block(s, sqe, now), 0);
		break;
	case KVP_OP_NOP:
	case KVP_OP_FLUSH:
		/* Entries are served in order, so all before it is done. */
		answer(s, sqe, 0, 0);
		break;
	default:
		answer(s, sqe, -EOPNOTSUPP, 0);
		break;
	}
}

uint32_t kvpd_session_serve(struct kvpd_session *s, uint64_t now)
{
	uint32_t completed = s->cq_tail, n = 0;
	struct kvp_sqe sqe;
	int r = 0;

	set_stalled(s, false);
	/* Acquire: pairs with the release in unmap_all(); all its reads are over. */
	if (kvp_load_acquire(&s->page->left)) {
		kvpd_session_expel(s, -EPIPE, "its client let go of it after its connection broke");
		return 0;
	}
	while (n < KVPD_ROUND_ENTRIES) {
		if (kvp_cq_room(s->page, s->cq_tail) < ROOM_FOR_ONE) {
			set_stalled(s, true);
			break;
		}
		r = kvp_sq_pop(s->page, &s->sq_head, &sqe);
		if (r < 0)
			break;
		if (!n++)
			kvpd_session_drain_touches(s, now);
		serve_one(s, &sqe, now);
	}
	if (s->cq_tail != completed)
		wake_client(s);
	if (r == -EPROTO)
		kvpd_session_expel(
			s, -EPROTO, "its submission ring claims more entries than it holds");
	return n;
}

/* ---- recency -------------------------------------------------------------------------------- */

/* Returns how many blocks that took. */
static uint32_t touched(struct kvpd_tenant *t, uint64_t entry, uint64_t now)
{
	uint32_t tip = kvp_slot_block(entry), asked = (uint32_t)(entry >> 32) & 0xffff;
	struct kvp_evict_request req = { .tip = KVP_BLOCK_NONE, .blocks = asked };

	if (tip < t->layout.max_blocks && kvpd_block_state(t, tip) == KVP_BLOCK_LIVE) {
		const struct kvp_block *b = &t->view.blocks[tip];
		uint32_t space = kvp_shape_space(kvp_load_relaxed(&b->shape));

		req.tip = tip;
		req.matched = kvp_load_relaxed(&b->depth) + 1;
		if (req.matched > KVPD_TOUCH_DEPTH)
			return 1;
		if (req.blocks < req.matched)
			req.blocks = req.matched;
		req.tokens = req.blocks * t->view.spaces[space].canon.block_tokens;
	} else if (tip != KVP_BLOCK_NONE) {
		return 1; /* gone meanwhile, or nonsense */
	}
	kvp_evict_request(t->evict, &req, now);
	if (req.tip == KVP_BLOCK_NONE)
		return 1;
	kvp_evict_access_chain(t->evict, tip, now);
	while (tip != KVP_BLOCK_NONE) {
		struct kvp_block *b = &t->view.blocks[tip];

		kvp_bump(&b->hits, 1);
		kvp_store_relaxed(&b->touched_s, (uint32_t)(now / (1000 * KVPD_MS)));
		tip = kvp_load_relaxed(&b->parent);
	}
	return req.matched;
}

void kvpd_session_drain_touches(struct kvpd_session *s, uint64_t now)
{
	uint32_t spent = s->touch_debt;
	uint64_t entry;

	/*
	 * A log full of the tips of long chains is seconds of work, which all tenants would wait
	 * for. What is left stays in the log; what the log then has no room for is lost.
	 */
	for (uint32_t i = 0; i < KVP_SHARDS && spent < KVPD_TOUCH_BLOCKS; i++) {
		uint32_t shard = s->touch_shard;

		while (spent < KVPD_TOUCH_BLOCKS &&
			kvp_touch_drain(s->page, shard, &s->touch_head[shard], &entry, 1))
			spent += touched(s->tenant, entry, now);
		s->touch_shard = (shard + 1) % KVP_SHARDS;
	}
	s->touch_debt = spent > KVPD_TOUCH_BLOCKS ? spent - KVPD_TOUCH_BLOCKS : 0;
}

/* ---- life ----------------------------------------------------------------------------------- */

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
	*ret_fd = kvp_take_fd(&fd);
	return 0;
}

static struct kvpd_session *session_new(struct kvpd_tenant *t, const struct kvpd_peer *peer)
{
	struct kvpd_session *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->tenant = t;
	s->peer = *peer;
	s->peer.name[KVP_CLIENT_NAME - 1] = 0;
	s->wake_fd = -1;
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

struct attach_call {
	uint32_t tenant;
	const struct kvpd_peer *peer;
	struct kvpd_attach out;
};

static int attach_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct attach_call *c = arg;
	struct kvpd_tenant *t = c->tenant <= KVPD_MAX_TENANTS ? l->tenant[c->tenant] : NULL;
	kvp_autoclose int page_fd = -1, catalog_fd = -1, wake_fd = -1;
	/*
	 * Edge-triggered and never read: the client shares the open file, so it could make a read
	 * here block for ever. Each of its writes is an edge.
	 */
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
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
	r = make_page(s, &page_fd);
	if (r < 0)
		goto error;
	r = -ENOMEM;
	s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	catalog_fd = fcntl(t->catalog_fd, F_DUPFD_CLOEXEC, 0);
	wake_fd = s->wake_fd < 0 ? -1 : fcntl(s->wake_fd, F_DUPFD_CLOEXEC, 0);
	ev.data.u32 = place + 1;
	if (s->wake_fd < 0 || catalog_fd < 0 || wake_fd < 0 ||
		epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &ev) < 0) {
		r = -errno;
		goto error;
	}
	l->session[place] = s;
	l->n_sessions++;
	t->n_sessions++;
	kvpd_list_append(&t->sessions, &s->in_tenant);
	c->out = (struct kvpd_attach){
		.session = s->id,
		.catalog_fd = kvp_take_fd(&catalog_fd),
		.page_fd = kvp_take_fd(&page_fd),
		.wake_fd = kvp_take_fd(&wake_fd),
		.catalog_bytes = t->layout.bytes,
		.page_bytes = page_bytes(),
	};
	return 0;
error:
	session_free(s);
	return r;
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

static void count_lookups(struct kvpd_session *s)
{
	struct kvpd_lookups n = { 0 };

	kvpd_session_lookups(s, &n);
	s->tenant->ended.hits += n.hits;
	s->tenant->ended.partial += n.partial;
	s->tenant->ended.misses += n.misses;
	s->tenant->ended.tokens_asked += n.tokens_asked;
	s->tenant->ended.tokens_matched += n.tokens_matched;
}

void kvpd_session_lookups(const struct kvpd_session *s, struct kvpd_lookups *sum)
{
	for (uint32_t i = 0; i < KVP_SHARDS; i++) {
		const struct kvp_shard *sh = &s->page->shard[i];

		sum->hits += kvp_load_relaxed(&sh->hits);
		sum->partial += kvp_load_relaxed(&sh->partial);
		sum->misses += kvp_load_relaxed(&sh->misses);
		sum->tokens_asked += kvp_load_relaxed(&sh->tokens_asked);
		sum->tokens_matched += kvp_load_relaxed(&sh->tokens_matched);
	}
}

void kvpd_session_finish(struct kvpd_session *s)
{
	struct kvpd_tenant *t = s->tenant;
	struct kvpd_ledger *l = t->ledger;

	kvpd_session_drain_touches(s, kvpd_now_ns());
	count_lookups(s);
	set_stalled(s, false);
	kvpd_claim_end_session(s);
	for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++)
		if (s->grant[i].state != KVPD_GRANT_FREE)
			grant_release(s, &s->grant[i]);
	while (!kvpd_list_empty(&s->arenas))
		kvpd_extent_orphan(kvpd_container(s->arenas.next, struct kvpd_extent, link));
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		kvpd_space_leave(s, i, s->opens[i]);
	kvpd_list_remove(&s->in_active);
	kvpd_list_remove(&s->in_wanting);
	kvpd_list_remove(&s->in_tenant);
	/* The client's duplicate keeps the eventfd alive, so closing it alone does not take it out.
	 */
	epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, s->wake_fd, NULL);
	l->session[s->place] = NULL;
	l->n_sessions--;
	t->n_sessions--;
	t->dirty = true;
	for (uint32_t i = 0; i < t->n_extents; i++)
		if (t->extent[i] && t->extent[i]->unacked)
			kvpd_extent_unmapped(t->extent[i], s->place);
	session_free(s);
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
