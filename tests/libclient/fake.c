/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/libclient/fake.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "libclient/kvpool.h"
#include "shm/kvp_lease.h"
#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"

#define MUST(x)                                                                 \
	do {                                                                    \
		if ((x) < 0) {                                                  \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
			abort();                                                \
		}                                                               \
	} while (0)

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

static uint64_t pages(uint64_t bytes)
{
	return (bytes + 4095) / 4096 * 4096;
}

/* ---- segments -------------------------------------------------------------------------------- */

static void make_catalog(struct fake *f)
{
	struct kvp_catalog_layout l;
	void *base;

	MUST(kvp_catalog_plan(FAKE_BLOCKS, FAKE_BLOCKS * 64, 1, &l));
	MUST(kvp_seg_create("fake-catalog", l.bytes, 0, &f->catalog_fd));
	MUST(kvp_seg_map(f->catalog_fd, l.bytes, KVP_MAP_WRITE, &base));
	kvp_catalog_init(base, &l, f->epoch, 1, &f->v);
	f->catalog_bytes = l.bytes;
	MUST(kvp_seg_seal(f->catalog_fd, KVP_SEALS_CATALOG));
}

static void make_page(struct fake *f, struct fake_session *s, int *ret_fd)
{
	uint64_t bytes = pages(sizeof(*s->page));
	void *base;

	MUST(kvp_seg_create("fake-page", bytes, 0, ret_fd));
	MUST(kvp_seg_map(*ret_fd, bytes, KVP_MAP_WRITE, &base));
	s->page = base;
	s->page->h.magic = KVP_MAGIC_SESSION;
	s->page->h.epoch = f->epoch + (f->lie == FAKE_LIE_EPOCH);
	s->page->session = s->id;
	MUST(kvp_seg_seal(*ret_fd, KVP_SEALS_PAGE));
}

static void send_extent(
	struct fake *f, struct fake_session *to, struct fake_session *of, uint32_t tag)
{
	struct kvp_shm_extent *x = &f->v.extents[of->extent];
	struct kvp_msg_extent m = {
		.extent = of->extent,
		.generation = kvp_load_relaxed(&x->generation),
		.kind = KVP_EXTENT_ARENA,
		.flags = to == of ? KVP_EXTENT_WRITABLE : 0,
		.bytes = of->arena_bytes,
	};
	int fd = of->arena_fd;

	if (to != of)
		MUST(kvp_seg_reopen_ro(of->arena_fd, &fd));
	(void)kvp_msg_send(to->sock, KVP_MSG_EXTENT, tag, &m, sizeof(m), &fd, 1);
	if (to != of)
		close(fd);
}

static void send_device(struct fake *f, struct fake_session *to, uint32_t tag)
{
	struct kvp_shm_extent *x = &f->v.extents[f->device_extent];
	struct kvp_msg_extent m = {
		.extent = f->device_extent,
		.generation = kvp_load_relaxed(&x->generation),
		.kind = KVP_EXTENT_VAULT,
		.bytes = f->device_bytes,
		.tier = KVP_TIER_VRAM,
		.first_slot = f->device_first,
		.import = f->device_import,
		.slot_bytes = f->device_slot,
	};
	int fd;

	if (f->device)
		MUST(kvp_seg_reopen_ro(f->device_fd, &fd));
	else
		MUST((fd = dup(f->device_fd)) < 0 ? -errno : 0);
	(void)kvp_msg_send(to->sock, KVP_MSG_EXTENT, tag, &m, sizeof(m), &fd, 1);
	close(fd);
}

static void make_arena(struct fake *f, struct fake_session *s, uint64_t block_bytes)
{
	struct kvp_shm_extent *x;
	void *base;

	s->extent = f->last_extent++;
	s->arena_bytes = pages(block_bytes * FAKE_SLOTS);
	x = &f->v.extents[s->extent];
	kvp_store_relaxed(&x->generation, kvp_load_relaxed(&x->generation) + 1);
	kvp_store_release(&x->state, KVP_EXTENT_LIVE);
	MUST(kvp_seg_create("fake-arena", s->arena_bytes, 0, &s->arena_fd));
	MUST(kvp_seg_map(s->arena_fd, s->arena_bytes, 0, &base));
	s->arena = base;
	send_extent(f, s, s, 0);
}

/* ---- rings ----------------------------------------------------------------------------------- */

static void complete(struct fake_session *s, const struct kvp_cqe *cqe)
{
	kvp_cq_push(s->page, &s->cq_tail, cqe);
	if (kvp_cq_must_wake(s->page))
		syscall(SYS_futex, &s->page->cq_tail, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void do_reserve(struct fake *f, struct fake_session *s, const struct kvp_sqe *e)
{
	uint64_t bytes = f->v.spaces[e->space].block_bytes;
	uint32_t found[FAKE_SLOTS], n = 0;
	struct kvp_cqe cqe = { .op = e->op, .serial = e->serial };

	for (uint32_t i = 0; s->acked && i < f->room && n < e->count; i++)
		if (!s->slot[i].granted && !s->slot[i].holds_block)
			found[n++] = i;
	if (!n) {
		cqe.status = -EAGAIN;
		cqe.retry_ms = 3;
		complete(s, &cqe);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (i && f->pause_us)
			usleep(f->pause_us);
		cqe.grant = found[i];
		cqe.grant_generation = ++s->slot[found[i]].generation;
		cqe.extent = s->extent;
		cqe.bytes = (uint32_t)bytes;
		cqe.offset = found[i] * bytes;
		cqe.more = n - 1 - i;
		s->slot[found[i]].granted = true;
		complete(s, &cqe);
	}
}

static int parent_of(
	struct fake *f, struct fake_session *s, const struct kvp_sqe *e, kvp_block_id *ret)
{
	kvp_block_id id = e->parent_id;

	if (e->parent_kind == KVP_PARENT_ROOT) {
		*ret = KVP_BLOCK_NONE;
		return 0;
	}
	if (e->parent_kind == KVP_PARENT_SERIAL) {
		id = s->outcome[id % KVP_SERIALS].block;
		if (s->outcome[e->parent_id % KVP_SERIALS].serial != e->parent_id)
			id = KVP_BLOCK_NONE;
	}
	if (id >= f->n_blocks ||
		kvp_word_state(kvp_load_relaxed(&f->v.blocks[id].word)) != KVP_BLOCK_LIVE)
		return -ECANCELED;
	*ret = id;
	return 0;
}

static struct kvp_key key_of(struct fake *f, uint32_t space, kvp_block_id id)
{
	if (id == KVP_BLOCK_NONE)
		return (struct kvp_key){ f->v.spaces[space].root_lo, f->v.spaces[space].root_hi };
	return (struct kvp_key){ kvp_load_relaxed(&f->v.blocks[id].key_lo),
		kvp_load_relaxed(&f->v.blocks[id].key_hi) };
}

static struct kvp_shm_claim *claim_on(struct fake *f, struct kvp_key key)
{
	return &f->v.claims[key.lo % KVP_MAX_CLAIMS];
}

static void claim_end(struct fake *f, struct kvp_key key)
{
	KVP_ATOMIC(uint32_t) *word = &f->v.cat->futex[key.lo % KVP_FUTEX_WORDS].word;

	kvp_store_release(&claim_on(f, key)->session, 0);
	kvp_store_seq(word, kvp_load_relaxed(word) + 1);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void claim_set(struct fake *f, struct kvp_key key, uint32_t session, uint32_t ttl_ms)
{
	struct kvp_shm_claim *c = claim_on(f, key);

	kvp_store_relaxed(&c->key_lo, key.lo);
	kvp_store_relaxed(&c->key_hi, key.hi);
	kvp_store_relaxed(&c->deadline_ns, now_ns() + (ttl_ms ? ttl_ms : 2000) * UINT64_C(1000000));
	kvp_store_release(&c->session, session);
}

static bool find_block(struct fake *f, const struct kvp_block_init *b, struct kvp_hit *ret_hit)
{
	kvp_block_id cand[8];
	uint32_t n = kvp_index_candidates(f->v.index, f->v.index_buckets, b->key.lo, cand, 8);

	for (uint32_t i = 0; i < n; i++)
		if (kvp_block_is(&f->v, cand[i], b->space, b->parent, b->tokens, b->n_tokens,
			    KVP_TIERS_DRAM, ret_hit))
			return true;
	return false;
}

static kvp_block_id add_block(
	struct fake *f, struct fake_session *s, struct kvp_block_init *b, uint32_t slot)
{
	uint64_t bytes = f->v.spaces[b->space].block_bytes;
	kvp_block_id id = f->n_blocks++;

	b->depth = b->parent == KVP_BLOCK_NONE
			   ? 0
			   : kvp_load_relaxed(&f->v.blocks[b->parent].depth) + 1;
	b->recipe = f->n_cells;
	f->n_cells += kvp_recipe_cells(b->n_tokens);
	b->serial = ++f->serial;
	kvp_block_fill(&f->v, id, b);
	kvp_block_set_payload(&f->v, id, KVP_TIER_DRAM,
		kvp_where(s->extent, KVP_CODEC_NATIVE, (uint32_t)bytes), slot * bytes,
		kvp_payload_checksum(s->arena + slot * bytes, bytes));
	MUST(kvp_block_publish(&f->v, id, b->parent_key));
	f->parent_key[id] = b->parent_key;
	s->slot[slot].holds_block = true;
	return id;
}

static void do_commit(struct fake *f, struct fake_session *s, const struct kvp_sqe *e)
{
	struct kvp_cqe cqe = { .op = e->op, .serial = e->serial };
	struct kvp_block_init b = {
		.space = e->space,
		.n_tokens = e->tokens,
		.tokens = s->page->staging[e->grant],
	};
	struct kvp_hit hit;

	/* What waits for a moment is not published any more. */
	if (e->until && !kvp_until_come(s->page, e->until)) {
		cqe.flags = KVP_CQE_PARKED;
		complete(s, &cqe);
		return;
	}
	s->outcome[e->serial % KVP_SERIALS].serial = e->serial;
	s->outcome[e->serial % KVP_SERIALS].block = KVP_BLOCK_NONE;
	cqe.status = parent_of(f, s, e, &b.parent);
	if (!s->slot[e->grant].granted || s->slot[e->grant].generation != e->grant_generation)
		cqe.status = -EINVAL;
	if (f->full)
		cqe.status = -ENOSPC;
	if (!cqe.status) {
		b.parent_key = key_of(f, e->space, b.parent);
		b.key = kvp_chain_key(b.parent_key, b.tokens, b.n_tokens);
		if (find_block(f, &b, &hit)) {
			cqe.block = hit.id;
			cqe.flags = KVP_CQE_DUPLICATE;
		} else {
			cqe.block = add_block(f, s, &b, e->grant);
		}
		cqe.birth = kvp_word_birth(kvp_load_relaxed(&f->v.blocks[cqe.block].word));
		s->outcome[e->serial % KVP_SERIALS].block = cqe.block;
		if (e->next_lo || e->next_hi)
			claim_set(f, (struct kvp_key){ e->next_lo, e->next_hi }, s->id, 0);
		claim_end(f, b.key);
	}
	if (e->flags & KVP_SQE_RELEASE)
		s->slot[e->grant].granted = false;
	complete(s, &cqe);
}

static bool has_children(struct fake *f, kvp_block_id id)
{
	for (uint32_t i = 0; i < f->n_blocks; i++) {
		struct kvp_block *b = &f->v.blocks[i];

		if (kvp_word_state(kvp_load_relaxed(&b->word)) == KVP_BLOCK_LIVE &&
			kvp_load_relaxed(&b->parent) == id)
			return true;
	}
	return false;
}

static bool evict(struct fake *f, kvp_block_id id)
{
	uint64_t word = has_children(f, id) ? 0 : kvp_block_mark(&f->v, id);
	kvp_block_id named[KVP_LEASES];

	if (!word)
		return false;
	kvp_lease_fence();
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
		uint32_t n =
			f->s[i].page ? kvp_lease_scan(f->s[i].page, named, NULL, KVP_LEASES) : 0;

		while (n--) {
			if (named[n] == id) {
				kvp_block_unmark(&f->v, id, word);
				return false;
			}
		}
	}
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
		struct kvp_payload_desc *d = &f->v.blocks[id].payload[KVP_TIER_DRAM];
		uint64_t bytes = kvp_where_bytes(kvp_load_relaxed(&d->where));

		if (f->s[i].page && f->s[i].extent == kvp_where_extent(kvp_load_relaxed(&d->where)))
			f->s[i].slot[kvp_load_relaxed(&d->offset) / bytes].holds_block = false;
	}
	kvp_block_retire(&f->v, id, f->parent_key[id]);
	return true;
}

static void do_claim(struct fake *f, struct fake_session *s, const struct kvp_sqe *e)
{
	struct kvp_key key = { e->next_lo, e->next_hi };
	struct kvp_cqe cqe = { .op = e->op, .serial = e->serial };
	uint32_t who = kvp_claim_find(&f->v, key, now_ns());
	kvp_block_id id;

	if (kvp_index_candidates(f->v.index, f->v.index_buckets, key.lo, &id, 1))
		cqe.flags = KVP_CQE_PRESENT;
	else if (who && who != s->id)
		cqe.flags = KVP_CQE_PENDING;
	else
		claim_set(f, key, s->id, e->count);
	complete(s, &cqe);
}

/* Bytes of a block, wherever its arena is. */
static const uint8_t *bytes_of(struct fake *f, kvp_block_id id, uint32_t *ret_bytes)
{
	struct kvp_payload_desc *d = &f->v.blocks[id].payload[KVP_TIER_DRAM];
	uint64_t where = kvp_load_relaxed(&d->where);

	*ret_bytes = kvp_where_bytes(where);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		if (f->s[i].arena && f->s[i].extent == kvp_where_extent(where))
			return f->s[i].arena + kvp_load_relaxed(&d->offset);
	abort();
}

static uint64_t slot_of(struct fake *f, kvp_block_id id)
{
	if (!f->placed[id])
		f->placed[id] = ++f->device_used;
	return f->placed[id] - 1;
}

static void to_device(struct fake *f, kvp_block_id id)
{
	uint32_t bytes;
	const uint8_t *from = bytes_of(f, id, &bytes);
	uint64_t offset;

	if (kvp_load_relaxed(&f->v.blocks[id].payload[KVP_TIER_VRAM].where))
		return;
	offset = slot_of(f, id) * f->device_slot;
	f->placed[id] = 0;
	MUST(offset + bytes <= f->device_bytes ? 0 : -1);
	if (f->device)
		memcpy(f->device + offset, from, bytes);
	else
		f->device_copy(f->device_ctx, offset, from, bytes);
	kvp_block_set_payload(&f->v, id, KVP_TIER_VRAM,
		kvp_where(f->device_extent, KVP_CODEC_NATIVE, bytes), offset, 0);
}

/* Its blocks, from the last one up. */
static uint32_t run_of(const struct fake *f, const struct kvp_sqe *e, kvp_block_id run[64])
{
	kvp_block_id id = e->parent_id;
	uint32_t n = 0;

	for (; n < e->count && id != KVP_BLOCK_NONE; id = kvp_load_relaxed(&f->v.blocks[id].parent))
		run[n++] = id;
	MUST(n == e->count ? 0 : -1);
	return n;
}

static void tell_places(struct fake *f, struct fake_session *s, const struct kvp_sqe *e)
{
	struct kvp_cqe cqe = { .op = e->op, .serial = e->serial, .flags = KVP_CQE_PLACE };
	kvp_block_id run[64];
	uint32_t n = run_of(f, e, run);

	for (cqe.more = 0; cqe.more < n; cqe.more++) {
		kvp_block_id id = run[n - 1 - cqe.more];
		const struct kvp_payload_desc *d = &f->v.blocks[id].payload[KVP_TIER_VRAM];

		(void)bytes_of(f, id, &cqe.bytes);
		cqe.extent = f->device_extent;
		cqe.offset = kvp_load_relaxed(&d->where) ? kvp_load_relaxed(&d->offset)
							 : slot_of(f, id) * f->device_slot;
		cqe.block = id;
		cqe.birth = kvp_word_birth(kvp_load_relaxed(&f->v.blocks[id].word));
		complete(s, &cqe);
	}
}

static void end_warm(struct fake *f, struct fake_session *s, const struct kvp_sqe *e, uint32_t late)
{
	struct kvp_cqe cqe = {
		.op = e->op, .serial = e->serial, .flags = late, .status = f->warm_status
	};
	kvp_block_id run[64];
	uint32_t n = run_of(f, e, run);

	for (cqe.more = 0; cqe.more < n && cqe.more < f->warm_at_most; cqe.more++)
		to_device(f, run[n - 1 - cqe.more]);
	complete(s, &cqe);
}

static void do_warm(struct fake *f, struct fake_session *s, const struct kvp_sqe *e)
{
	struct kvp_cqe cqe = {
		.op = e->op, .serial = e->serial, .status = -ENODEV, .flags = KVP_CQE_PARKED
	};
	uint32_t i = 0;

	f->warm_flags = e->flags;
	if (f->device_fd < 0 || e->grant || e->parent_kind != KVP_PARENT_BLOCK) {
		cqe.flags = 0;
		complete(s, &cqe);
		return;
	}
	cqe.status = 0;
	complete(s, &cqe);
	if (e->flags & KVP_SQE_EARLY && !f->warm_untold)
		tell_places(f, s, e);
	if (!f->warm_held) {
		end_warm(f, s, e, KVP_CQE_LATE);
		return;
	}
	while (f->warm[i].s)
		i++;
	f->warm[i].s = s;
	f->warm[i].e = *e;
}

static void serve_ring(struct fake *f, struct fake_session *s)
{
	struct kvp_cqe cqe = { 0 };
	struct kvp_sqe e;

	while (kvp_sq_pop(s->page, &s->sq_head, &e) == 0) {
		cqe.op = e.op;
		cqe.serial = e.serial;
		switch (e.op) {
		case KVP_OP_RESERVE:
			do_reserve(f, s, &e);
			break;
		case KVP_OP_COMMIT:
			do_commit(f, s, &e);
			break;
		case KVP_OP_RELEASE:
			if (s->slot[e.grant].generation == e.grant_generation)
				s->slot[e.grant].granted = false;
			break;
		case KVP_OP_CLAIM:
			do_claim(f, s, &e);
			break;
		case KVP_OP_UNCLAIM:
			if (kvp_claim_find(&f->v, (struct kvp_key){ e.next_lo, e.next_hi },
				    now_ns()) == s->id)
				claim_end(f, (struct kvp_key){ e.next_lo, e.next_hi });
			break;
		case KVP_OP_WARM:
			do_warm(f, s, &e);
			break;
		case KVP_OP_DELETE:
			evict(f, e.parent_id);
			complete(s, &cqe);
			break;
		default:
			complete(s, &cqe);
		}
	}
}

/* ---- sockets --------------------------------------------------------------------------------- */

static void welcome(struct fake *f, struct fake_session *s)
{
	struct kvp_msg_welcome w = {
		.abi = KVP_ABI_VERSION,
		.tenant = 1,
		.epoch = f->epoch,
		.catalog_bytes = f->catalog_bytes + (f->lie == FAKE_LIE_SIZE ? 4096 : 0),
		.page_bytes = pages(sizeof(struct kvp_session_page)),
	};
	int fds[3], ro = -1, unsealed = -1;

	if (f->deaf)
		return;
	if (f->refuse) {
		struct kvp_msg_error e = { .error = f->refuse, .text = "not today" };

		(void)kvp_msg_send(s->sock, KVP_MSG_ERROR, 0, &e, sizeof(e), NULL, 0);
		return;
	}
	if (f->lie == FAKE_LIE_GARBAGE) {
		(void)!write(s->sock, "garbage", 7);
		return;
	}
	s->id = w.session = ++f->last_session;
	s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	make_page(f, s, &fds[1]);
	MUST(kvp_seg_reopen_ro(f->catalog_fd, &ro));
	fds[0] = ro;
	if (f->lie == FAKE_LIE_SEALS) {
		MUST(kvp_seg_create("fake-unsealed", f->catalog_bytes, 0, &unsealed));
		fds[0] = unsealed;
	}
	fds[2] = s->wake;
	(void)kvp_msg_send(
		s->sock, KVP_MSG_WELCOME, 0, &w, sizeof(w), fds, f->lie == FAKE_LIE_FDS ? 0 : 3);
	close(fds[1]);
	close(ro);
	if (unsealed >= 0)
		close(unsealed);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		if (&f->s[i] != s && f->s[i].acked && !f->hold_extents)
			send_extent(f, s, &f->s[i], 0);
	if (f->device_fd >= 0 && !f->hold_extents)
		send_device(f, s, 0);
	(void)kvp_msg_send(s->sock, KVP_MSG_ATTACHED, 0, NULL, 0, NULL, 0);
}

static void open_space(struct fake *f, struct fake_session *s, const struct kvp_packet *p)
{
	const struct kvp_msg_space_open *o = (const void *)p->body;
	struct kvp_msg_space answer = { 0 };
	struct kvp_shm_space *space = f->v.spaces;
	uint64_t per_token = 0;

	if (f->silent_opens) {
		f->silent_opens--;
		return;
	}
	if (f->busy_opens) {
		struct kvp_msg_error e = { .error = -EBUSY, .text = "busy" };

		f->busy_opens--;
		(void)kvp_msg_send(s->sock, KVP_MSG_ERROR, p->h.tag, &e, sizeof(e), NULL, 0);
		return;
	}
	while (kvp_load_relaxed(&space->state) == KVP_SPACE_LIVE &&
		memcmp(&space->canon, &o->canon, sizeof(o->canon)) != 0)
		space++;
	answer.space = (uint32_t)(space - f->v.spaces);
	if (kvp_load_relaxed(&space->state) != KVP_SPACE_LIVE) {
		for (uint32_t i = 0; i < o->canon.n_layers; i++)
			per_token += (uint64_t)o->canon.layers[i].kv_heads *
				     (o->canon.layers[i].k_dim + o->canon.layers[i].v_dim);
		space->canon = o->canon;
		space->generation = 1;
		space->root_lo = 1000 + answer.space;
		space->root_hi = f->epoch;
		space->block_bytes = per_token * o->canon.block_tokens *
				     (o->canon.dtype == KVP_DTYPE_F32         ? 4
					     : o->canon.dtype == KVP_DTYPE_F8 ? 1
									      : 2);
		memset(space->fingerprint, 0x40 + (int)answer.space, sizeof(space->fingerprint));
		kvp_store_release(&space->state, KVP_SPACE_LIVE);
	}
	answer.generation = space->generation;
	f->opens[answer.space]++;
	if (!s->arena)
		make_arena(f, s, space->block_bytes);
	(void)kvp_msg_send(s->sock, KVP_MSG_SPACE, p->h.tag, &answer, sizeof(answer), NULL, 0);
}

static void get_extent(struct fake *f, struct fake_session *s, const struct kvp_packet *p)
{
	const struct kvp_msg_id *id = (const void *)p->body;
	struct kvp_msg_error e = { .error = -ENOENT, .text = "no such extent" };

	f->extent_gets++;
	if (f->device_fd >= 0 && id->id == f->device_extent) {
		send_device(f, s, p->h.tag);
		return;
	}
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
		if (f->s[i].acked && f->s[i].extent == id->id) {
			send_extent(f, s, &f->s[i], p->h.tag);
			return;
		}
	}
	(void)kvp_msg_send(s->sock, KVP_MSG_ERROR, p->h.tag, &e, sizeof(e), NULL, 0);
}

static void arena_acked(struct fake *f, struct fake_session *s, const struct kvp_msg_id *id)
{
	if (f->offered && id->id == f->offered - 1) {
		s->offer_acks++;
		return;
	}
	MUST(kvp_seg_seal(s->arena_fd, F_SEAL_FUTURE_WRITE));
	s->acked = true;
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		if (f->s[i].sock >= 0 && &f->s[i] != s && f->s[i].page && !f->hold_extents)
			send_extent(f, &f->s[i], s, 0);
}

static void hang_up(struct fake_session *s)
{
	close(s->sock);
	s->sock = -1;
}

/* What a session had stays readable to the others, as with the real daemon. */
static void session_gone(struct fake_session *s)
{
	hang_up(s);
	for (uint32_t i = 0; s->page && i < KVP_LEASES; i++)
		kvp_store_relaxed(&s->page->lease[i / KVP_SHARD_LEASES][i % KVP_SHARD_LEASES], 0);
	for (uint32_t i = 0; i < FAKE_SLOTS; i++)
		s->slot[i].granted = false;
}

static void serve_socket(struct fake *f, struct fake_session *s)
{
	struct kvp_packet *p = &f->packet;
	int r;

	while (s->sock >= 0 && (r = kvp_msg_recv(s->sock, KVP_MSG_TO_DAEMON, p)) != -EAGAIN) {
		if (r < 0) {
			session_gone(s);
			return;
		}
		switch (p->h.type) {
		case KVP_MSG_HELLO:
			welcome(f, s);
			break;
		case KVP_MSG_SPACE_OPEN:
			open_space(f, s, p);
			break;
		case KVP_MSG_SPACE_CLOSE:
			f->opens[((struct kvp_msg_id *)(void *)p->body)->id]--;
			break;
		case KVP_MSG_ARENA_ACK:
			arena_acked(f, s, (const void *)p->body);
			break;
		case KVP_MSG_RETIRE_ACK:
			s->retire_acks++;
			break;
		case KVP_MSG_EXTENT_GET:
			get_extent(f, s, p);
			break;
		case KVP_MSG_BYE:
			session_gone(s);
			break;
		default:
			abort();
		}
		kvp_msg_done(p);
	}
}

static void accept_one(struct fake *f)
{
	int sock = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (sock < 0)
		return;
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
		if (f->s[i].sock < 0 && !f->s[i].page) {
			f->s[i].sock = sock;
			return;
		}
	}
	close(sock);
}

static void *run(void *arg)
{
	struct fake *f = arg;

	for (;;) {
		struct pollfd p[FAKE_SESSIONS + 1];

		pthread_mutex_lock(&f->lock);
		if (f->stop) {
			pthread_mutex_unlock(&f->lock);
			return NULL;
		}
		p[0] = (struct pollfd){ .fd = f->listener, .events = POLLIN };
		for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
			struct fake_session *s = &f->s[i];

			p[i + 1] = (struct pollfd){ .fd = s->sock, .events = POLLIN };
			if (s->sock < 0)
				continue;
			serve_socket(f, s);
			if (s->sock >= 0 && s->page && !f->mute)
				serve_ring(f, s);
		}
		accept_one(f);
		pthread_mutex_unlock(&f->lock);
		/* Rings are polled: this one need not be economical. */
		poll(p, FAKE_SESSIONS + 1, 1);
	}
}

/* ---- for tests ------------------------------------------------------------------------------- */

struct fake *fake_start(const char *path)
{
	return fake_start_busy(path, 0);
}

struct fake *fake_start_busy(const char *path, uint32_t busy_opens)
{
	static uint64_t epochs;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct fake *f = calloc(1, sizeof(*f));

	if (!f)
		abort();
	f->epoch = ++epochs * 1000 + 1;
	f->room = FAKE_SLOTS;
	f->busy_opens = busy_opens;
	f->device_fd = -1;
	f->warm_at_most = UINT32_MAX;
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		f->s[i].sock = f->s[i].wake = f->s[i].arena_fd = -1;
	if (path)
		snprintf(f->path, sizeof(f->path), "%s", path);
	else
		snprintf(f->path, sizeof(f->path), P_tmpdir "/kvp-fake-%d-%u", (int)getpid(),
			(unsigned)epochs);
	make_catalog(f);
	strcpy(a.sun_path, f->path);
	unlink(f->path);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	MUST(f->listener);
	MUST(bind(f->listener, (struct sockaddr *)&a, sizeof(a)));
	MUST(listen(f->listener, 64));
	pthread_mutex_init(&f->lock, NULL);
	MUST(-pthread_create(&f->thread, NULL, run, f));
	return f;
}

struct fake *fake_stop(struct fake *f)
{
	if (!f)
		return NULL;
	pthread_mutex_lock(&f->lock);
	f->stop = true;
	pthread_mutex_unlock(&f->lock);
	pthread_join(f->thread, NULL);
	close(f->listener);
	unlink(f->path);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++) {
		struct fake_session *s = &f->s[i];

		if (s->sock >= 0)
			close(s->sock);
		if (s->wake >= 0)
			close(s->wake);
		if (s->arena_fd >= 0)
			close(s->arena_fd);
		kvp_seg_unmap(s->arena, s->arena_bytes);
		kvp_seg_unmap(s->page, pages(sizeof(*s->page)));
	}
	if (f->device_fd >= 0) {
		if (f->device)
			kvp_seg_unmap(f->device, f->device_bytes);
		close(f->device_fd);
	}
	kvp_seg_unmap(f->v.cat, f->catalog_bytes);
	close(f->catalog_fd);
	pthread_mutex_destroy(&f->lock);
	free(f);
	return NULL;
}

/* lock. Its one extent, whose memory is there. */
static void device_up(struct fake *f, const uint8_t uuid[16])
{
	struct kvp_shm_device *d = &f->v.devices[0];
	struct kvp_shm_extent *x;

	f->device_extent = f->last_extent++;
	x = &f->v.extents[f->device_extent];
	kvp_store_relaxed(&x->generation, 1);
	kvp_store_relaxed(&x->tier, KVP_TIER_VRAM);
	kvp_store_relaxed(&x->first_slot, f->device_first);
	kvp_store_release(&x->state, KVP_EXTENT_LIVE);
	memcpy(d->uuid, uuid, sizeof(d->uuid));
	d->pool_bytes = f->device_bytes;
	kvp_store_release(&d->state, KVP_DEVICE_UP);
}

void fake_device(struct fake *f, uint64_t slot_bytes)
{
	uint8_t uuid[16];
	void *base;

	memset(uuid, 7, sizeof(uuid));
	pthread_mutex_lock(&f->lock);
	f->device_slot = slot_bytes;
	f->device_bytes = pages(slot_bytes * FAKE_SLOTS);
	MUST(kvp_seg_create("fake-device", f->device_bytes, 0, &f->device_fd));
	MUST(kvp_seg_map(f->device_fd, f->device_bytes, KVP_MAP_WRITE, &base));
	MUST(kvp_seg_seal(f->device_fd, KVP_SEALS_VAULT));
	f->device = base;
	device_up(f, uuid);
	pthread_mutex_unlock(&f->lock);
}

void fake_device_of(struct fake *f, const uint8_t uuid[16], int fd, uint64_t bytes,
	uint64_t slot_bytes, uint32_t first,
	void (*copy)(void *ctx, uint64_t offset, const void *from, uint64_t bytes), void *ctx)
{
	pthread_mutex_lock(&f->lock);
	f->device_slot = slot_bytes;
	f->device_bytes = bytes;
	f->device_first = first;
	f->device_import = KVP_IMPORT_CUDA_FD;
	f->device_copy = copy;
	f->device_ctx = ctx;
	f->device_fd = fd;
	device_up(f, uuid);
	pthread_mutex_unlock(&f->lock);
}

/* lock */
static void retire(struct fake *f, uint32_t extent)
{
	struct kvp_msg_id id = {
		.id = extent,
		.generation = kvp_load_relaxed(&f->v.extents[extent].generation),
	};

	kvp_store_release(&f->v.extents[extent].state, KVP_EXTENT_RETIRED);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		if (f->s[i].sock >= 0 && f->s[i].page)
			(void)kvp_msg_send(
				f->s[i].sock, KVP_MSG_RETIRE, 0, &id, sizeof(id), NULL, 0);
}

void fake_offer_device(struct fake *f)
{
	struct kvp_msg_extent m = {
		.kind = KVP_EXTENT_ARENA,
		.flags = KVP_EXTENT_WRITABLE,
		.bytes = f->device_bytes,
		.tier = KVP_TIER_VRAM,
		.import = f->device_import,
		.slot_bytes = f->device_slot,
	};
	int fd;

	pthread_mutex_lock(&f->lock);
	m.extent = f->last_extent++;
	m.generation = 1;
	f->offered = m.extent + 1;
	m.first_slot = f->device_first + (uint32_t)(f->device_bytes / f->device_slot);
	MUST((fd = dup(f->device_fd)) < 0 ? -errno : 0);
	(void)kvp_msg_send(f->s[0].sock, KVP_MSG_EXTENT, 0, &m, sizeof(m), &fd, 1);
	close(fd);
	pthread_mutex_unlock(&f->lock);
}

void fake_retire_device(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	retire(f, f->device_extent);
	pthread_mutex_unlock(&f->lock);
}

void fake_warm_tell(struct fake *f, uint32_t i)
{
	pthread_mutex_lock(&f->lock);
	memset(f->placed, 0, sizeof(f->placed));
	tell_places(f, f->warm[i].s, &f->warm[i].e);
	pthread_mutex_unlock(&f->lock);
}

void fake_warm_go(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < 64; i++) {
		if (f->warm[i].s && f->warm[i].s->page)
			end_warm(f, f->warm[i].s, &f->warm[i].e, KVP_CQE_LATE);
		f->warm[i].s = NULL;
	}
	f->warm_held = false;
	pthread_mutex_unlock(&f->lock);
}

void fake_retire(struct fake *f, struct fake_session *owner)
{
	pthread_mutex_lock(&f->lock);
	retire(f, owner->extent);
	pthread_mutex_unlock(&f->lock);
}

bool fake_evict(struct fake *f, kvp_block_id id)
{
	bool gone;

	pthread_mutex_lock(&f->lock);
	gone = evict(f, id);
	pthread_mutex_unlock(&f->lock);
	return gone;
}

uint32_t fake_blocks(struct fake *f)
{
	uint32_t n;

	pthread_mutex_lock(&f->lock);
	n = f->n_blocks;
	pthread_mutex_unlock(&f->lock);
	return n;
}

uint32_t fake_leases(struct fake *f)
{
	kvp_block_id named[KVP_LEASES];
	uint32_t n = 0;

	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		if (f->s[i].page)
			n += kvp_lease_scan(f->s[i].page, named, NULL, KVP_LEASES);
	pthread_mutex_unlock(&f->lock);
	return n;
}

uint32_t fake_granted(struct fake *f)
{
	uint32_t n = 0;

	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < FAKE_SESSIONS; i++)
		for (uint32_t j = 0; j < FAKE_SLOTS; j++)
			n += f->s[i].slot[j].granted;
	pthread_mutex_unlock(&f->lock);
	return n;
}

bool fake_await_attached(struct kvp_client *c, uint32_t want)
{
	struct kvp_counters s = { .size = sizeof(s) };

	for (uint32_t i = 0; i < 12000; i++) {
		if (kvp_stats(c, &s) < 0)
			return false;
		if (s.attached == want)
			return true;
		usleep(5000);
	}
	return false;
}
