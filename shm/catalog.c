/* SPDX-License-Identifier: Apache-2.0 */
/* A catalog as a segment: its plan and header, the check of a received one; keys, claims looked up. */
#include "shm/kvp_catalog.h"

#include <errno.h>
#include <string.h>

/* A block's tokens and its parent's key are 272 bytes: worth the widest vectors there are. */
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#define CATALOG_ALIGN (UINT64_C(2) << 20)

/* Entries per bucket that planning counts on; a bucket has KVP_BUCKET_ENTRIES. */
#define PLANNED_LOAD 4u

struct kvp_key kvp_chain_key(struct kvp_key parent, const kvp_token *tokens, uint32_t n)
{
	struct {
		uint64_t lo, hi;
		kvp_token tokens[KVP_BLOCK_TOKENS_MAX];
	} in; /* not initialized whole: that costs more than the digest */
	struct kvp_key key;
	XXH128_hash_t h;

	in.lo = parent.lo;
	in.hi = parent.hi;
	if (n > KVP_BLOCK_TOKENS_MAX)
		n = KVP_BLOCK_TOKENS_MAX;
	memcpy(in.tokens, tokens, n * sizeof(*tokens));
	h = XXH3_128bits(&in, 16 + n * sizeof(*tokens));
	key.lo = h.low64;
	key.hi = h.high64;
	if (!key.lo && !key.hi)
		key.lo = 1;
	return key;
}

uint64_t kvp_tail_hash(struct kvp_key parent, const kvp_token tokens[KVP_TAIL_PREFIX])
{
	struct {
		uint64_t lo, hi;
		kvp_token tokens[KVP_TAIL_PREFIX];
	} in = { .lo = parent.lo, .hi = parent.hi };

	memcpy(in.tokens, tokens, sizeof(in.tokens));
	return XXH3_64bits(&in, sizeof(in));
}

uint64_t kvp_payload_checksum(const void *bytes, size_t n)
{
	uint64_t h = XXH3_64bits(bytes, n);

	return h ? h : 1;
}

static XXH3_state_t *state_of(struct kvp_summing *s)
{
	return (XXH3_state_t *)s;
}

struct kvp_summing *kvp_summing_new(void)
{
	return (struct kvp_summing *)XXH3_createState();
}

struct kvp_summing *kvp_summing_free(struct kvp_summing *s)
{
	XXH3_freeState(state_of(s));
	return NULL;
}

void kvp_summing_begin(struct kvp_summing *s)
{
	XXH3_64bits_reset(state_of(s));
}

void kvp_summing_add(struct kvp_summing *s, const void *bytes, size_t n)
{
	XXH3_64bits_update(state_of(s), bytes, n);
}

uint64_t kvp_summing_end(const struct kvp_summing *s)
{
	uint64_t h = XXH3_64bits_digest((const XXH3_state_t *)s);

	return h ? h : 1;
}

static uint64_t place(uint64_t *at, uint64_t count, uint64_t size, uint64_t align)
{
	uint64_t off = (*at + align - 1) / align * align;

	*at = off + count * size;
	return off;
}

/*
 * The one description of where things lie, for planning and for checking what was received. Counts
 * are bounded by the callers such that nothing overflows 64 bits.
 */
static void lay_out(struct kvp_catalog_layout *l)
{
	uint64_t at = sizeof(struct kvp_catalog);

	l->off_spaces = place(&at, KVP_MAX_SPACES, sizeof(struct kvp_shm_space), 4096);
	l->off_extents = place(&at, KVP_MAX_EXTENTS, sizeof(struct kvp_shm_extent), 4096);
	l->off_devices = place(&at, KVP_MAX_DEVICES, sizeof(struct kvp_shm_device), 4096);
	l->off_claims = place(&at, KVP_MAX_CLAIMS, sizeof(struct kvp_shm_claim), 4096);
	l->off_blocks = place(&at, l->max_blocks, sizeof(struct kvp_block), 4096);
	l->off_index = place(&at, l->index_buckets, sizeof(struct kvp_bucket), 4096);
	l->off_tail = place(&at, l->tail_buckets, sizeof(struct kvp_bucket), 4096);
	l->off_recipes = place(&at, l->recipe_cells, KVP_RECIPE_CELL * sizeof(kvp_token), 4096);
	place(&at, 0, 1, CATALOG_ALIGN);
	l->bytes = (at + CATALOG_ALIGN - 1) / CATALOG_ALIGN * CATALOG_ALIGN;
}

int kvp_catalog_plan(uint64_t max_blocks, uint64_t recipe_tokens, int with_tail,
	struct kvp_catalog_layout *ret_layout)
{
	struct kvp_catalog_layout l = { 0 };
	uint64_t cells = (recipe_tokens + KVP_RECIPE_CELL - 1) / KVP_RECIPE_CELL;

	if (!max_blocks || max_blocks > KVP_MAX_BLOCKS)
		return -EINVAL;
	/* Every block has at least one cell. */
	if (cells < max_blocks)
		cells = max_blocks;
	if (cells > UINT32_MAX)
		return -EINVAL;
	l.max_blocks = (uint32_t)max_blocks;
	l.recipe_cells = (uint32_t)cells;
	l.index_buckets = (uint32_t)(max_blocks / PLANNED_LOAD + 8);
	l.tail_buckets = with_tail ? l.index_buckets : 0;
	lay_out(&l);
	*ret_layout = l;
	return 0;
}

static void make_view(struct kvp_catalog *cat, const struct kvp_catalog_layout *l, uint64_t epoch,
	struct kvp_catalog_view *v)
{
	uint8_t *base = (uint8_t *)cat;

	memset(v, 0, sizeof(*v));
	v->cat = cat;
	v->spaces = (void *)(base + l->off_spaces);
	v->extents = (void *)(base + l->off_extents);
	v->devices = (void *)(base + l->off_devices);
	v->claims = (void *)(base + l->off_claims);
	v->blocks = (void *)(base + l->off_blocks);
	v->index = (void *)(base + l->off_index);
	v->tail = (void *)(base + l->off_tail);
	v->recipes = (void *)(base + l->off_recipes);
	v->max_blocks = l->max_blocks;
	v->recipe_cells = l->recipe_cells;
	v->index_buckets = l->index_buckets;
	v->tail_buckets = l->tail_buckets;
	v->epoch = epoch;
}

void kvp_catalog_init(void *base, const struct kvp_catalog_layout *l, uint64_t epoch,
	uint32_t tenant, struct kvp_catalog_view *ret_view)
{
	struct kvp_catalog *cat = base;

	cat->h.magic = KVP_MAGIC_CATALOG;
	cat->h.abi_version = KVP_ABI_VERSION;
	cat->h.compat = KVP_COMPAT_EARLY;
	cat->h.header_bytes = sizeof(*cat);
	cat->h.size = l->bytes;
	cat->h.epoch = epoch;
	cat->max_blocks = l->max_blocks;
	cat->recipe_cells = l->recipe_cells;
	cat->index_buckets = l->index_buckets;
	cat->tail_buckets = l->tail_buckets;
	cat->off_spaces = l->off_spaces;
	cat->off_extents = l->off_extents;
	cat->off_devices = l->off_devices;
	cat->off_claims = l->off_claims;
	cat->off_blocks = l->off_blocks;
	cat->off_index = l->off_index;
	cat->off_tail = l->off_tail;
	cat->off_recipes = l->off_recipes;
	cat->tenant = tenant;
	make_view(cat, l, epoch, ret_view);
}

int kvp_catalog_attach(void *base, uint64_t bytes, struct kvp_catalog_view *ret_view)
{
	struct kvp_catalog *cat = base;
	struct kvp_catalog_layout l = { 0 };

	if (bytes < sizeof(*cat) || cat->h.magic != KVP_MAGIC_CATALOG || cat->h.size != bytes)
		return -EPROTO;
	if (cat->h.abi_version != KVP_ABI_VERSION || (cat->h.incompat & ~KVP_INCOMPAT_KNOWN))
		return -EPROTONOSUPPORT;
	l.max_blocks = cat->max_blocks;
	l.recipe_cells = cat->recipe_cells;
	l.index_buckets = cat->index_buckets;
	l.tail_buckets = cat->tail_buckets;
	if (!l.max_blocks || l.max_blocks > KVP_MAX_BLOCKS || !l.index_buckets)
		return -EPROTO;
	lay_out(&l);
	if (l.bytes != bytes || cat->h.header_bytes != sizeof(*cat) ||
		cat->off_spaces != l.off_spaces || cat->off_extents != l.off_extents ||
		cat->off_devices != l.off_devices || cat->off_claims != l.off_claims ||
		cat->off_blocks != l.off_blocks || cat->off_index != l.off_index ||
		cat->off_tail != l.off_tail || cat->off_recipes != l.off_recipes)
		return -EPROTO;
	make_view(cat, &l, cat->h.epoch, ret_view);
	return 0;
}

uint32_t kvp_claim_find(const struct kvp_catalog_view *v, struct kvp_key key, uint64_t now_ns)
{
	uint32_t home = (uint32_t)key.lo & (KVP_MAX_CLAIMS - 1);

	for (uint32_t i = 0; i < KVP_CLAIM_PROBES; i++) {
		struct kvp_shm_claim *c = &v->claims[(home + i) & (KVP_MAX_CLAIMS - 1)];
		/* Acquire: pairs with the ledger's release store that enters or clears a claim. */
		uint32_t session = kvp_load_acquire(&c->session);

		if (session && kvp_load_acquire(&c->key_lo) == key.lo &&
			kvp_load_acquire(&c->key_hi) == key.hi)
			return kvp_load_relaxed(&c->deadline_ns) > now_ns ? session : 0;
	}
	return 0;
}
