/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-memory ABI: what lies in a catalog and in a session page, byte for byte.
 *
 * Both are memfds made by kvpoold and received as file descriptors (kvp_proto.h). A catalog is
 * written by the daemon's ledger thread alone and mapped read-only by the clients of one tenant. A
 * session page is shared with exactly one client, which may write all of it: the daemon treats
 * every word it reads from there as hostile (load once, bound, use the local).
 *
 * Rules: no pointers, bitfields, enums, bool or long; sizes and offsets asserted; one writer per
 * cache line; words that change after publication are KVP_ATOMIC and touched only through
 * kvp_atomic.h. All numbers are in the machine's byte order; a segment never leaves the machine.
 *
 * Versioning: `incompat` has a bit for every feature that a reader must know to read correctly, and
 * a reader refuses bits it does not know; `compat` bits may be ignored. The ABI version itself is
 * negotiated when a client connects.
 *
 * This header also compiles as C++ and under nvcc, for layout only: KVP_ATOMIC(T) is a plain T
 * there.
 */
#ifndef KVP_ABI_H
#define KVP_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "shm/kvp_types.h"

#ifdef __cplusplus
#define KVP_ATOMIC(T)           T
#define KVP_ALIGNED(n)          alignas(n)
#define KVP_ABI_ASSERT(c, what) static_assert(c, what)
#else
#define KVP_ATOMIC(T)           _Atomic(T)
#define KVP_ALIGNED(n)          _Alignas(n)
#define KVP_ABI_ASSERT(c, what) _Static_assert(c, what)
#endif

#define KVP_ABI_VERSION 6u

#define KVP_MAGIC_CATALOG UINT64_C(0x474c4154434b504b) /* "KPKCTALG" */
#define KVP_MAGIC_SESSION UINT64_C(0x4e4f49535345504b) /* "KPESSION" */

#define KVP_INCOMPAT_KNOWN 0u

#define KVP_COMPAT_EARLY 1u /* the catalog's daemon knows KVP_SQE_EARLY */

#define KVP_CACHE_LINE 64u

/* First 64 bytes of every segment that has a structure. Immutable once the descriptor is sent. */
struct kvp_seg_header {
	uint64_t magic;
	uint32_t abi_version;
	uint32_t incompat;
	uint32_t compat;
	uint32_t header_bytes; /* sizeof the structure this header begins */
	uint64_t size;         /* bytes of the segment */
	uint64_t epoch;        /* of the daemon that made it; changes with every start */
	uint64_t reserved[3];
};
KVP_ABI_ASSERT(sizeof(struct kvp_seg_header) == 64, "shm ABI");

/* ---- catalog ------------------------------------------------------------------------------- */

#define KVP_MAX_SPACES      64u   /* of one tenant */
#define KVP_MAX_EXTENTS     4096u /* of one tenant; payloads name an extent in 16 bits */
#define KVP_MAX_CLAIMS      1024u /* of one tenant; a power of two */
#define KVP_CLAIM_PROBES    8u    /* a claim lies within so many entries of its home */
#define KVP_FUTEX_WORDS     64u   /* waiters hash onto these; a power of two */
#define KVP_MAX_BLOCKS      (1u << 28)
#define KVP_RECIPE_CELL     16u /* tokens in one cell of the recipe store */
#define KVP_TAIL_PREFIX     8u  /* tokens that name a family of siblings in the tail index */
#define KVP_TAIL_CANDIDATES 8u  /* siblings of one family that the tail index holds: the newest */
#define KVP_BUCKET_ENTRIES  7u
#define KVP_MAX_PROBES      64u /* buckets that a lookup visits at most */

/*
 * The word of a block: birth 32 | move 24 | state 8.
 *
 * `birth` changes when the descriptor is recycled for another block, `move` when a payload of the
 * block changes place or goes away. Everything else in the descriptor is constant while birth is. A
 * lease compares the whole word.
 *
 * The payload rule: while the whole word is constant, payload fields that are set do not change. A
 * payload may *appear* in a tier that had none: its `where` goes from 0 to its value, once, after
 * its offset; its checksum goes from 0 to its value once, at that time or later. So blocks that are
 * leased and read all the time get further payloads without a reader's noticing; kvp_catalog.h says
 * why that is safe. A payload goes away only with a change of the word.
 */
#define KVP_BLOCK_FREE     0u
#define KVP_BLOCK_LIVE     1u /* published, has a payload, may be leased */
#define KVP_BLOCK_EVICTING 2u /* the ledger is about to take it or a payload of it: no new lease */
#define KVP_BLOCK_RECIPE   3u /* published, recipe only: known, but has to be recomputed */
#define KVP_BLOCK_MOVED    4u /* as LIVE; where it lies in DRAM, payload[KVP_TIER_MOVED] says */

/*
 * While a block changes its place in DRAM, for as long as the ledger takes for some stores, this one of its
 * payload descriptors has the new place. A reader that does not know of it finds a block that is not LIVE.
 */
#define KVP_TIER_MOVED KVP_TIER_STORE

static inline uint64_t kvp_word(uint32_t birth, uint32_t move, uint32_t state)
{
	return (uint64_t)birth << 32 | (uint64_t)(move & 0xffffffu) << 8 | state;
}
static inline uint32_t kvp_word_birth(uint64_t w)
{
	return (uint32_t)(w >> 32);
}
static inline uint32_t kvp_word_move(uint64_t w)
{
	return (uint32_t)(w >> 8) & 0xffffffu;
}
static inline uint32_t kvp_word_state(uint64_t w)
{
	return (uint32_t)w & 0xffu;
}
/* May it be leased and read? */
static inline int kvp_word_lives(uint64_t w)
{
	return kvp_word_state(w) == KVP_BLOCK_LIVE || kvp_word_state(w) == KVP_BLOCK_MOVED;
}
/* Has it a payload? */
static inline int kvp_word_holds(uint64_t w)
{
	return kvp_word_lives(w) || kvp_word_state(w) == KVP_BLOCK_EVICTING;
}

/*
 * One payload of a block: extent 16 | width 16 | bytes 32, all zero if the block has none in that
 * tier; offset in the extent; XXH3-64 of the bytes, 0 while it has not been computed (a digest that
 * comes out as 0 is stored as 1).
 */
struct kvp_payload_desc {
	KVP_ATOMIC(uint64_t) where;
	KVP_ATOMIC(uint64_t) offset;
	KVP_ATOMIC(uint64_t) checksum;
};
KVP_ABI_ASSERT(sizeof(struct kvp_payload_desc) == 24, "shm ABI");

static inline uint64_t kvp_where(uint32_t extent, uint32_t codec, uint32_t bytes)
{
	return (uint64_t)(extent & 0xffffu) << 48 | (uint64_t)(codec & 0xffffu) << 32 | bytes;
}
static inline uint32_t kvp_where_extent(uint64_t w)
{
	return (uint32_t)(w >> 48);
}
static inline uint32_t kvp_where_codec(uint64_t w)
{
	return (uint32_t)(w >> 32) & 0xffffu;
}
static inline uint32_t kvp_where_bytes(uint64_t w)
{
	return (uint32_t)w;
}

/* Block descriptor. The first line holds all that a match reads. */
struct kvp_block {
	KVP_ATOMIC(uint64_t) word;
	KVP_ATOMIC(uint64_t) key_lo;
	KVP_ATOMIC(uint64_t) key_hi;
	KVP_ATOMIC(uint32_t) parent; /* kvp_block_id, or KVP_BLOCK_NONE for the first of a chain */
	KVP_ATOMIC(uint32_t) shape;  /* space 16 | salted 1 | token count 15 */
	KVP_ATOMIC(uint32_t) recipe; /* first cell in the recipe store */
	KVP_ATOMIC(uint32_t) depth;  /* blocks above it */
	struct kvp_payload_desc payload[KVP_TIER_PAYLOADS];
	KVP_ATOMIC(uint32_t) hits;      /* matches that ended at or passed through it, as touched */
	KVP_ATOMIC(uint32_t) touched_s; /* monotonic seconds of the last touch */
	KVP_ATOMIC(uint32_t) serial; /* order of commit, wraps; the tail index keeps the newest */
	KVP_ATOMIC(uint32_t) flags;  /* KVP_BLOCK_F_* */
};
KVP_ABI_ASSERT(sizeof(struct kvp_block) == 128, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_block, payload) == 40, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_block, hits) == 112, "shm ABI");

#define KVP_BLOCK_F_PINNED 1u /* by the administrator: never evicted */

static inline uint32_t kvp_shape(uint32_t space, uint32_t tokens)
{
	return space << 16 | (tokens & 0xffffu);
}
static inline uint32_t kvp_shape_space(uint32_t s)
{
	return s >> 16;
}
static inline uint32_t kvp_shape_tokens(uint32_t s)
{
	return s & 0x7fffu;
}

/*
 * The first block of a chain may have a salt, which keeps it and all that follows it apart from chains of
 * the same tokens under another salt, or under none. It stands in the recipe after the token ids, at an
 * even one, and takes part in the key and in the proof: a block is not one of another salt, whatever its
 * key. All zeros are no salt.
 */
#define KVP_SHAPE_SALTED 0x8000u
#define KVP_SALT_TOKENS  8u /* 32 bytes, as so many words of the recipe */

/* Words that the recipe of a block of this shape has. */
static inline uint32_t kvp_shape_words(uint32_t s)
{
	uint32_t n = kvp_shape_tokens(s);

	return s & KVP_SHAPE_SALTED ? (n + 1) / 2 * 2 + KVP_SALT_TOKENS : n;
}

/*
 * One cache line of the index or of the tail index: open addressing, bucket by bucket.
 * entry = tag 32 (high half of the hash) | block id + 1, 0 = empty. `overflow` counts the entries
 * whose home is this bucket or an earlier one and that had to go further: a lookup goes on while it
 * is not 0. Entries never move and each is one word, so there is nothing to tear and no sequence
 * word is needed; what an entry names is proven on the descriptor.
 */
struct kvp_bucket {
	KVP_ATOMIC(uint32_t) overflow;
	uint32_t reserved;
	KVP_ATOMIC(uint64_t) entry[KVP_BUCKET_ENTRIES];
};
KVP_ABI_ASSERT(sizeof(struct kvp_bucket) == 64, "shm ABI");

/* One layer of a space. */
struct kvp_shm_layer {
	uint16_t index;      /* the model's layer number */
	uint16_t kv_heads;   /* held here */
	uint16_t first_head; /* of the model, where a tensor-parallel shard begins */
	uint16_t k_dim;      /* channels of one key head */
	uint16_t v_dim; /* channels of one value head; 0 where keys and values are one latent */
	uint16_t exact; /* 1: stays native, whatever the space's floor; 0 in a space without one */
};
KVP_ABI_ASSERT(sizeof(struct kvp_shm_layer) == 12, "shm ABI");

#define KVP_SPACE_NAME 128u

/*
 * What a client says of its model, in the canonical form that is digested and compared whole:
 * two clients share a space if and only if these bytes are equal. Unused bytes are zero.
 */
struct kvp_space_canon {
	uint32_t version; /* 1 */
	uint32_t dtype;
	uint32_t layout;
	uint32_t block_tokens;
	uint32_t n_layers;
	uint32_t rope_pairing; /* KVP_ROPE_* of kvpool.h */
	uint32_t rope_dim;     /* rotary channels */
	uint32_t rope_scaling; /* KVP_ROPE_SCALING_* */
	uint64_t rope_theta_bits;
	uint64_t rope_param_bits[4]; /* doubles: factor and the like, 0 where unused */
	uint8_t weights_digest[32];
	char model[KVP_SPACE_NAME];   /* zero-padded UTF-8 */
	char adapter[KVP_SPACE_NAME]; /* LoRA or the like; empty for none */
	char tokenizer[KVP_SPACE_NAME];
	struct kvp_shm_layer layers[KVP_MAX_LAYERS];
	/* Of KVP_LAYOUT_OPAQUE, which has neither dtype nor layers nor RoPE; else 0. */
	uint64_t opaque_bytes; /* of a block */
	/*
	 * Not 0: blocks are named by keys of so many bytes. The words of its key are a block's token
	 * ids, block_tokens of them, and every block is the first of a chain.
	 */
	uint32_t key_bytes;
	uint32_t reserved;
	char opaque_layout[KVP_SPACE_NAME]; /* what the engine calls it; not empty */
	/*
	 * The floor: the lowest codecs (kernels/kvp_codec.h) that the owner accepts for keys and for
	 * values; both 0: none but native, and the three below are 0 then, too.
	 */
	uint32_t floor_k, floor_v;
	uint32_t native_first; /* tokens at the beginning of a sequence that stay native, */
	uint32_t native_last;  /* and at its end; multiples of nothing, whole blocks are meant */
};
KVP_ABI_ASSERT(sizeof(struct kvp_space_canon) == 3720, "shm ABI");

#define KVP_SPACE_FREE 0u
#define KVP_SPACE_LIVE 1u

/* Immutable while its state stays LIVE. A client opens it by message and keeps it open by that. */
struct kvp_shm_space {
	KVP_ATOMIC(uint32_t) state;
	uint32_t generation;
	uint64_t root_lo; /* key above the first block of a chain; mixes in the tenant's salt */
	uint64_t root_hi;
	uint64_t block_bytes; /* native payload of one block, partial blocks included */
	uint8_t fingerprint[32];
	struct kvp_space_canon canon;
	uint8_t reserved[4096 - 64 - 3720];
};
KVP_ABI_ASSERT(sizeof(struct kvp_shm_space) == 4096, "shm ABI");

#define KVP_EXTENT_FREE    0u
#define KVP_EXTENT_LIVE    1u
#define KVP_EXTENT_RETIRED 2u /* holds nothing; clients unmap it and say so */

#define KVP_EXTENT_VAULT 1u /* written by the daemon alone */
#define KVP_EXTENT_ARENA 2u /* written by one client */

/*
 * `first_slot`: of a tier whose payloads are named by one number (tier VRAM), the number of the
 * extent's first slot among all slots of its size on its device: a client that maps each extent
 * first_slot * slot_bytes behind one address has all of them in one table. 0 in DRAM.
 */
struct kvp_shm_extent {
	KVP_ATOMIC(uint32_t) state;
	KVP_ATOMIC(uint32_t) generation; /* changes when the id is used again */
	KVP_ATOMIC(uint32_t) kind;
	KVP_ATOMIC(uint32_t) owner; /* session id of an arena's client, else 0 */
	KVP_ATOMIC(uint64_t) bytes;
	KVP_ATOMIC(uint64_t) slot_bytes;
	KVP_ATOMIC(uint32_t) slots;
	KVP_ATOMIC(uint32_t) used;
	KVP_ATOMIC(uint32_t) tier;   /* KVP_TIER_DRAM or KVP_TIER_VRAM */
	KVP_ATOMIC(uint32_t) device; /* VRAM: index in the table of devices; else 0 */
	KVP_ATOMIC(uint32_t) first_slot;
	uint8_t reserved[12];
};
KVP_ABI_ASSERT(sizeof(struct kvp_shm_extent) == 64, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_shm_extent, tier) == 40, "shm ABI");

#define KVP_MAX_DEVICES 16u

#define KVP_DEVICE_FREE     0u /* there is none of this number */
#define KVP_DEVICE_UP       1u
#define KVP_DEVICE_DOWN     2u /* nothing is copied to it or from it until it is up again */
#define KVP_DEVICE_DETACHED 3u /* by an administrator: nothing lies there */

/* A device as the tenant's clients see it. All but the words is constant while it is not FREE. */
struct kvp_shm_device {
	KVP_ALIGNED(64) KVP_ATOMIC(uint32_t) state;
	uint32_t generation; /* counts up when the number is given to another device */
	uint8_t uuid[16];
	uint64_t pool_bytes;       /* all that kvpool may take there, for all tenants */
	uint32_t segment_log2;     /* an extent is one segment of this size, or of a larger slot */
	uint32_t granularity_log2; /* sizes of segments are multiples of this */
	/* Copied for this tenant, since the catalog was made. */
	KVP_ATOMIC(uint64_t) to_device_bytes;
	KVP_ATOMIC(uint64_t) from_device_bytes;
	uint32_t
		import; /* KVP_IMPORT_*: what descriptors of its memory are; 0: an older daemon, which does not say */
	uint32_t reserved;
};
KVP_ABI_ASSERT(sizeof(struct kvp_shm_device) == 64, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_shm_device, pool_bytes) == 24, "shm ABI");

/*
 * A claim says that a session is computing the block with this key. It moves on with each block
 * that the claimant commits (kvp_sqe.next), so it always names the front of the claimed chain.
 * home = key.lo mod KVP_MAX_CLAIMS, found within KVP_CLAIM_PROBES entries.
 */
struct kvp_shm_claim {
	KVP_ATOMIC(uint64_t) key_lo;
	KVP_ATOMIC(uint64_t) key_hi;
	KVP_ATOMIC(uint32_t) session; /* 0 = empty */
	uint32_t reserved;
	KVP_ATOMIC(uint64_t) deadline_ns; /* CLOCK_MONOTONIC */
};
KVP_ABI_ASSERT(sizeof(struct kvp_shm_claim) == 32, "shm ABI");

/* Waiters for key K sleep on word K.lo mod KVP_FUTEX_WORDS; the ledger counts it up and wakes. */
struct kvp_futex_line {
	KVP_ALIGNED(64) KVP_ATOMIC(uint32_t) word;
};

/* Written by the ledger alone. Lookups are counted by clients, in their session pages. */
struct kvp_catalog_stats {
	KVP_ATOMIC(uint64_t) blocks;  /* published with a payload */
	KVP_ATOMIC(uint64_t) recipes; /* published, recipe only */
	KVP_ATOMIC(uint64_t) payload_bytes;
	KVP_ATOMIC(uint64_t) commits;    /* blocks published */
	KVP_ATOMIC(uint64_t) duplicates; /* commits that named a block already there */
	KVP_ATOMIC(uint64_t) refused;    /* commits refused */
	KVP_ATOMIC(uint64_t) evictions;  /* payloads taken for room */
	KVP_ATOMIC(uint64_t) forgotten;  /* recipes dropped */
	KVP_ATOMIC(uint64_t) moves;      /* payloads moved */
	KVP_ATOMIC(uint64_t) claims;
	KVP_ATOMIC(uint64_t) waits; /* claims answered with PENDING */
	KVP_ATOMIC(uint64_t) deleted;
	uint64_t reserved[4];
};
KVP_ABI_ASSERT(sizeof(struct kvp_catalog_stats) == 128, "shm ABI");

struct kvp_catalog {
	struct kvp_seg_header h;
	/* Immutable: offsets are from the start of the segment, counts in elements. */
	uint32_t max_blocks;
	uint32_t recipe_cells;
	uint32_t index_buckets;
	uint32_t tail_buckets; /* 0: the tenant runs without a tail index */
	uint64_t off_spaces;   /* struct kvp_shm_space [KVP_MAX_SPACES] */
	uint64_t off_extents;  /* struct kvp_shm_extent [KVP_MAX_EXTENTS] */
	uint64_t off_claims;   /* struct kvp_shm_claim [KVP_MAX_CLAIMS] */
	uint64_t off_blocks;   /* struct kvp_block [max_blocks] */
	uint64_t off_index;    /* struct kvp_bucket [index_buckets] */
	uint64_t off_tail;     /* struct kvp_bucket [tail_buckets] */
	uint64_t off_recipes;  /* kvp_token [recipe_cells * KVP_RECIPE_CELL] */
	uint32_t tenant;
	uint32_t reserved0;
	uint64_t off_devices; /* struct kvp_shm_device [KVP_MAX_DEVICES] */
	uint8_t reserved1[40];
	struct kvp_catalog_stats stats;
	struct kvp_futex_line futex[KVP_FUTEX_WORDS];
};
KVP_ABI_ASSERT(offsetof(struct kvp_catalog, max_blocks) == 64, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_catalog, stats) == 192, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_catalog, futex) == 320, "shm ABI");
KVP_ABI_ASSERT(sizeof(struct kvp_catalog) == 320 + 64 * KVP_FUTEX_WORDS, "shm ABI");

/* ---- session page -------------------------------------------------------------------------- */

#define KVP_SHARDS       32u /* threads of a client spread over these */
#define KVP_SHARD_LEASES 32u /* lease slots in one shard */
#define KVP_LEASE_LINE   8u  /* of them in a cache line */
#define KVP_LEASES       (KVP_SHARDS * KVP_SHARD_LEASES)
#define KVP_TOUCHES      256u /* entries of a shard's touch log; a power of two */
#define KVP_SQ_ENTRIES   256u /* powers of two */
#define KVP_CQ_ENTRIES   1024u
#define KVP_MAX_GRANTS   128u /* of one session */
#define KVP_SERIALS      512u /* commits whose outcome the ledger remembers per session */
#define KVP_TIMELINES    32u  /* of one client */

/*
 * A lease slot: 0 = empty, else low 32 bits of (birth) << 32 | block id + 1. The ledger goes by the
 * block id alone.
 */
static inline uint64_t kvp_slot_value(kvp_block_id id, uint64_t word)
{
	return (uint64_t)kvp_word_birth(word) << 32 | (uint64_t)(id + 1u);
}
static inline kvp_block_id kvp_slot_block(uint64_t v)
{
	return (kvp_block_id)((uint32_t)v - 1u);
}

/*
 * A moment on one of the client's timelines: it has come once done[timeline] has reached the value.
 * 0: none. One on a timeline that there is not never comes.
 */
#define KVP_UNTIL_VALUE_MAX ((UINT64_C(1) << 56) - 1)

static inline uint64_t kvp_until(uint32_t timeline, uint64_t value)
{
	return (uint64_t)(timeline + 1u) << 56 | (value & KVP_UNTIL_VALUE_MAX);
}
static inline uint32_t kvp_until_timeline(uint64_t u)
{
	return (uint32_t)(u >> 56) - 1u;
}
static inline uint64_t kvp_until_value(uint64_t u)
{
	return u & KVP_UNTIL_VALUE_MAX;
}

/* How far a timeline has come; never goes back. A cache line of its own: a device may write it. */
struct kvp_timeline_word {
	KVP_ALIGNED(64) KVP_ATOMIC(uint64_t) value;
};
KVP_ABI_ASSERT(sizeof(struct kvp_timeline_word) == 64, "shm ABI");

/* Tokens of lookups in one space. */
struct kvp_shm_use {
	KVP_ATOMIC(uint64_t) asked;
	KVP_ATOMIC(uint64_t) matched;
};
KVP_ABI_ASSERT(sizeof(struct kvp_shm_use) == 16, "shm ABI");

/* Written by the client, cache lines of its own per shard; read by the ledger. */
struct kvp_shard {
	/* Counters; several threads may share a shard, hence atomic adds. lookups = the sum. */
	KVP_ALIGNED(64) KVP_ATOMIC(uint64_t) hits;
	KVP_ATOMIC(uint64_t) partial;
	KVP_ATOMIC(uint64_t) misses;
	KVP_ATOMIC(uint64_t) unleased;   /* matches answered without a lease: no free slot */
	KVP_ATOMIC(uint32_t) touch_lock; /* among the client's own threads */
	KVP_ATOMIC(uint32_t) touch_tail; /* entries written */
	KVP_ATOMIC(uint64_t) touch_lost; /* log full; recency only */
	uint64_t reserved[2];
	KVP_ALIGNED(64) KVP_ATOMIC(uint32_t) touch_head; /* written by the ledger */
	/* tip of a match: block id + 1 in the low half; blocks asked for (saturated) 16 above */
	KVP_ALIGNED(64) KVP_ATOMIC(uint64_t) touch[KVP_TOUCHES];
	/* By the number of the space; never goes back while the session lives. */
	struct kvp_shm_use use[KVP_MAX_SPACES];
};
KVP_ABI_ASSERT(offsetof(struct kvp_shard, touch_head) == 64, "shm ABI");
KVP_ABI_ASSERT(sizeof(struct kvp_shard) == 128 + 8 * KVP_TOUCHES + 16 * KVP_MAX_SPACES, "shm ABI");

/* What a client asks of the ledger. */
#define KVP_OP_NOP       0u
#define KVP_OP_RESERVE   1u /* up to `count` slots for `space`; a completion for each, at least one */
#define KVP_OP_COMMIT    2u /* publish grant `grant`, when the moment `until` has come */
#define KVP_OP_RELEASE   3u /* give grant `grant` back; no completion */
#define KVP_OP_CLAIM     4u /* claim the chain whose first missing block has key `next` */
#define KVP_OP_UNCLAIM   5u /* drop the claim on key `next`; no completion */
#define KVP_OP_FLUSH     6u /* completes when all before it has */
#define KVP_OP_DELETE    7u /* forget block (parent_kind BLOCK) once nothing protects it */
#define KVP_OP_WARM      8u /* have a run of blocks copied to a device */
#define KVP_OP_WANT      9u /* have what is missing of a chain brought to DRAM: loaded or computed */
#define KVP_OP_SERVE     10u /* offer to compute it, and wait for the next demand */
#define KVP_OP_QUALITY   11u /* a score of what was read of `space`; no completion */
#define KVP_OP_ATTENTION 12u /* what a run of blocks was attended to; no completion */
#define KVP_OP_TOKENS    13u /* what some tokens of a block were attended to; no completion */
#define KVP_OP_MAX_      14u

/*
 * RESERVE. grant: 0: slots in DRAM; n + 1: on the device of number n, in an extent of kind ARENA and tier
 * VRAM that this client writes and that was sent to it like an arena in DRAM. What it commits there lies on
 * that device only, until the daemon copies it. All slots of one RESERVE lie in one medium. Besides the
 * statuses that it has in DRAM:
 *	-EAGAIN      also: the session has one RESERVE already that waits, in whichever medium
 *	-ENODEV      there is no device of this number, it is down, or the tenant has no share of it
 *	-EOPNOTSUPP  the daemon has no devices at all; one that is older than this gives slots in DRAM
 * A slot on a device that was granted once is granted to nobody but this session, also when that is over.
 */
/*
 * WARM. parent_kind BLOCK, parent_id, parent_birth: the last block of the run, the tip of a match whose
 * lease the client keeps until the answer. count: how many blocks the run has, it and those above it, at
 * most KVP_WARM_BLOCKS; 0: as many as there are, up to that. grant: the number of the device. flags:
 * KVP_SQE_PREFETCH and KVP_SQE_EARLY, or 0. All other members are 0.
 *
 * It is refused at once, with one completion without KVP_CQE_PARKED; else there are two, PARKED at once
 * and LATE when it is over. In LATE `more` says how many blocks of the run have a payload on the device,
 * counted from its top without a gap, whatever the status:
 *	0          all of them
 *	-EAGAIN    the session has KVP_WARM_TICKETS of them under way, or the device's worker died: again
 *	           after retry_ms, or at will
 *	-ENOSPC    the tenant has no more room there: what lies there is leased, or its share is too small
 *	-ENODEV    there is no device of this number, it is down, or the tenant has no share of it
 *	-ENOENT    the block is gone, or one above it: it was not leased
 *	-EBADMSG   a block is not what its checksum says, and was not copied
 *	-EBUSY     a block lies on another device: it has one payload on a device, not one on each
 *	-EACCES    the session has not opened the block's space
 *	-EINVAL    count is too large, there is another flag, or parent_kind is not BLOCK
 *	-ENOMEM, -EIO
 *	-EOPNOTSUPP  the daemon has no devices at all, or is older than this
 * What the answer counts stays on the device as long as a lease from before the answer protects it; what
 * is not leased goes when there is no room for others. A block appears on the device (see the payload rule)
 * as soon as it is copied, not only with the answer. A session that ends takes its tickets with it.
 *
 * With KVP_SQE_EARLY the run has at most KVP_WARM_EARLY_BLOCKS, and between PARKED and LATE there is a completion
 * with KVP_CQE_PLACE for each block, in the order of the run from its top, as soon as it is known where on the
 * device the block comes to lie, or lies already: extent, offset, bytes; grant_generation: the codec, as of
 * kvp_where_codec(); block, birth; more: how many of the run are above it; grant: the device. That is the block's
 * place from then on as far as LATE counts it; of a block that it does not count nothing is to be read there, and
 * what was read was not the block. A ticket that fails has places for some of the run, those of blocks
 * that it counts among them. No completions come while the ring has no room, nor further copies for that
 * ticket. A daemon whose catalog does not say KVP_COMPAT_EARLY answers -EINVAL.
 */
#define KVP_WARM_BLOCKS       4096u
#define KVP_WARM_TICKETS      8u  /* of one session, under way */
#define KVP_WARM_EARLY_BLOCKS 64u /* so that the ring has room for those of all tickets */
KVP_ABI_ASSERT(KVP_WARM_TICKETS *KVP_WARM_EARLY_BLOCKS <= KVP_CQ_ENTRIES / 2, "shm ABI");

/*
 * WANT. parent_kind BLOCK, parent_id, parent_birth: the last block of a chain, which may be a RECIPE. count:
 * within how many milliseconds it is of use, 0: KVP_WANT_MS. flags: KVP_SQE_PREFETCH or 0. All other members
 * are 0. Answered like WARM: once if it is refused, else with PARKED and then with LATE. In LATE `more` says
 * how many blocks of the chain, from its first one on, lay in DRAM then, and status:
 *	0          all of them
 *	-ENODEV    nobody offers to compute for this space now
 *	-ETIME     it would take longer than `count` says, or, with `more` short of all, it has taken longer
 *	           than the one that computed had said
 *	-EAGAIN    the session has KVP_WANTS of them, or the tenant too many or no memory for it yet; or who
 *	           computed gave up
 *	-EDQUOT    the tenant's share has no room for so many missing blocks: want the first ones, then more
 *	-ENOENT    the block is gone
 *	-E2BIG     more than KVP_WANT_BLOCKS are missing
 *	-EOPNOTSUPP  blocks of a salt or of keys: nobody but its owner knows what they are made of
 *	-EACCES, -EINVAL, -ENOMEM, as of WARM
 */
#define KVP_WANT_BLOCKS 4096u
#define KVP_WANT_MS     60000u
#define KVP_WANT_MS_MAX 3600000u
#define KVP_WANTS       8u /* of one session */
/*
 * SERVE: the session offers to compute missing blocks of `space`, and asks for the next demand. What it
 * says of n tokens at positions [s, e) is that they take until + n * next_lo + n * (s + e) / 2 * next_hi:
 * until: nanoseconds before the first token, next_lo: picoseconds of a token, next_hi: femtoseconds of a
 * token and a position before it. count: tokens a second that it may be asked for, 0: no limit. parent_id:
 * the longest chain in tokens that it computes. flags: KVP_SQE_IDLE or 0; KVP_SQE_WITHDRAW: the offer ends,
 * and is answered once; a demand that was not over is given back.
 *
 * Else it is refused with one completion, or answered with PARKED and, when there is a demand, LATE: status
 * 0; block, birth: the last block of the range; more: its blocks, that one and those above it; offset: the
 * nanoseconds that it may take by what was said; until_ns: the moment at which it is over, met or not, which is
 * earlier than that where it is of no use any more. It is met when all blocks of the range are there, whoever
 * committed them. The next SERVE of the space says that the session is through with it, met or not. An offer
 * stands from the first SERVE to the end of the session, or until it is withdrawn or lost. A SERVE takes the
 * place of one that waits, which is not answered any more.
 *	-ETIME     the offer is lost, for retry_ms: a demand was not met in the time that it should have
 *	           taken, or several were given back
 *	-EAGAIN    the session or the tenant has too many offers
 *	-EOPNOTSUPP  a space of keys; or the daemon is older than this
 *	-EACCES, -EINVAL, -ENOMEM
 */
#define KVP_OFFERS          8u                         /* of one session */
#define KVP_TOKEN_PS_MAX    UINT64_C(10000000000000)   /* 10 s */
#define KVP_POSITION_FS_MAX UINT64_C(1000000000000000) /* 1 s */
#define KVP_LAUNCH_NS_MAX   UINT64_C(60000000000)      /* 60 s */

/*
 * QUALITY. count: how good the client's output is, in millionths: KVP_QUALITY_WHOLE is nothing lost. It is
 * dropped without a word where it is more, where the session has not opened the space, where that is exact,
 * and where the tenant wants no scores. A daemon that is older than this answers -EOPNOTSUPP.
 */
#define KVP_QUALITY_WHOLE 1000000u

/*
 * ATTENTION. parent_kind BLOCK, parent_id, parent_birth: the last block of a run in `space`. count: how many
 * blocks the run has, it and those above it, 1 to KVP_ATTENTION_BLOCKS. The last 24 bytes, next_lo, next_hi and
 * until, are a byte for each, the last block's first: what attention it got as a multiple of the mean over all
 * blocks of the sequence that the client reports, as a logarithm. All other members are 0.
 * It is dropped without a word where the session has not opened the space, where the block is gone or another
 * space's, and where the space is exact. A daemon that is older than this answers -EOPNOTSUPP.
 */
#define KVP_ATTENTION_BLOCKS 24u
#define KVP_ATTENTION_NONE   0u   /* nothing is said of the block */
#define KVP_ATTENTION_MEAN   128u /* as much as the mean; KVP_ATTENTION_OCTAVE more: twice as much */
#define KVP_ATTENTION_OCTAVE 16u  /* hence from 2^-8 to 2^8 times it, to 2 percent */

/*
 * TOKENS. parent_kind BLOCK, parent_id, parent_birth: a whole block of `space`. count: how many of its tokens are
 * spoken of, 1 to KVP_ATTENTION_TOKENS, the first of them being number `tokens` of the block. The last 24 bytes are a
 * byte for each, the first token's first, as in ATTENTION, but as a multiple of the mean over the block's tokens.
 * It is dropped where ATTENTION is, and where tokens of one block do not have bits of their own by the space's floor.
 */
#define KVP_ATTENTION_TOKENS 24u

/* How a submission names a parent (or, for DELETE, WARM, WANT, ATTENTION and TOKENS, the block itself). */
#define KVP_PARENT_ROOT   0u /* first block of a chain */
#define KVP_PARENT_BLOCK  1u /* parent_id, parent_birth: proven by a match or a completion */
#define KVP_PARENT_SERIAL 2u /* what the commit with serial parent_id became */

#define KVP_SQE_RELEASE 1u /* COMMIT: give the grant back in the same step */
/* COMMIT in a space of keys: to be evicted before the block whose key is `next`, if that is there */
#define KVP_SQE_BEFORE 4u
#define KVP_SQE_SALTED 2u /* COMMIT, parent ROOT: under the salt in the page's row of its grant */
#define KVP_SQE_PREFETCH \
	8u /* WARM, WANT: nobody waits for it; it goes after all that somebody waits for */
#define KVP_SQE_IDLE     16u /* SERVE: the offer is none while no SERVE waits */
#define KVP_SQE_WITHDRAW 32u
#define KVP_SQE_EARLY    64u /* WARM: says where blocks come to lie before they do */
/*
 * COMMIT: what the block's tokens are, one of KVP_LABEL_* and one; 0: the client does not say. More is -EINVAL;
 * daemons that do not know it do not look there.
 */
#define KVP_SQE_LABEL_SHIFT 8u
#define KVP_SQE_LABEL       (7u << KVP_SQE_LABEL_SHIFT)

/*
 * 64 bytes, one cache line. The token ids of a COMMIT lie in the page's staging row of its grant.
 */
struct kvp_sqe {
	KVP_ALIGNED(64) uint32_t op;
	uint32_t serial; /* chosen by the client, counting up; echoed */
	uint32_t grant;  /* WARM: the device; RESERVE: that + 1, or 0 */
	uint32_t grant_generation;
	uint16_t space;
	uint16_t tokens; /* COMMIT: tokens of the block; TOKENS: the first; RESERVE: unused */
	uint32_t
		count; /* RESERVE: slots; CLAIM, WANT: milliseconds; WARM, ATTENTION: blocks; TOKENS; SERVE: tokens/s */
	uint32_t flags;
	uint32_t parent_kind;
	uint32_t parent_id;
	uint32_t parent_birth;
	uint64_t next_lo; /* CLAIM, UNCLAIM: the key. COMMIT: where the claim moves, 0 = nowhere */
	uint64_t next_hi;
	uint64_t until; /* COMMIT: kvp_until(), 0 = at once. SERVE: these three are what it takes */
};
KVP_ABI_ASSERT(sizeof(struct kvp_sqe) == 64, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_sqe, next_lo) + KVP_ATTENTION_BLOCKS == sizeof(struct kvp_sqe),
	"shm ABI");

/* ATTENTION, TOKENS: where their bytes begin. */
static inline uint8_t *kvp_sqe_attention(struct kvp_sqe *sqe)
{
	return (uint8_t *)sqe + offsetof(struct kvp_sqe, next_lo);
}

/* status: 0 or negative errno. */
struct kvp_cqe {
	KVP_ALIGNED(64) uint32_t op;
	uint32_t serial;
	int32_t status;
	uint32_t flags; /* KVP_CQE_* */
	uint32_t grant; /* RESERVE */
	uint32_t grant_generation;
	uint32_t extent; /* RESERVE, PLACE: where the slot is; COMMIT: unused */
	uint32_t bytes;
	uint64_t offset;
	uint32_t block; /* COMMIT: the block that stands for the key now */
	uint32_t birth;
	uint32_t retry_ms; /* with -EAGAIN: when to ask again */
	uint32_t more; /* RESERVE: further completions that follow for this serial; else blocks */
	/* SERVE: by CLOCK_MONOTONIC; 0: a daemon that does not say it, and else. */
	uint64_t until_ns;
};
KVP_ABI_ASSERT(sizeof(struct kvp_cqe) == 64, "shm ABI");

#define KVP_CQE_DUPLICATE 1u /* COMMIT: `block` was there already, made by somebody else */
#define KVP_CQE_PENDING   2u /* CLAIM: somebody else is computing it */
#define KVP_CQE_PRESENT   4u /* CLAIM: it has been committed meanwhile; match again */
/*
 * COMMIT, FLUSH: no answer yet, it waits for a moment; the answer comes with LATE. Also a COMMIT whose
 * parent waits so, and a FLUSH that comes after one that does. WARM, WANT: it is under way; SERVE: no
 * demand yet. No FLUSH waits for these.
 */
#define KVP_CQE_PARKED 8u
#define KVP_CQE_LATE   16u
#define KVP_CQE_PLACE  32u /* WARM: one of its blocks comes to lie there */

struct kvp_session_page {
	struct kvp_seg_header h;
	/* Immutable. */
	uint32_t session;
	uint32_t tenant;
	uint32_t reserved0[14];
	/* Written by the ledger. */
	KVP_ALIGNED(64) KVP_ATOMIC(uint32_t) need_wake; /* 1: write the eventfd after submitting */
	KVP_ATOMIC(uint32_t) sq_head;
	KVP_ALIGNED(64) KVP_ATOMIC(uint32_t) cq_tail; /* also a futex word */
	/* Written by the client. */
	KVP_ALIGNED(64) KVP_ATOMIC(uint32_t) sq_tail;
	KVP_ATOMIC(uint32_t) cq_head;
	KVP_ATOMIC(uint32_t) cq_waiters; /* not 0: wake cq_tail after completing */
	/*
	 * Not 0: the client has no extent mapped and reads nothing any more. For a session whose
	 * connection broke, which a BYE can no longer end; followed by a write to the eventfd.
	 */
	KVP_ATOMIC(uint32_t) left;
	/*
	 * A bit for each shard whose touch log was ever written to; the ledger looks at no other.
	 * A client that keeps a bit back loses its recency and nothing else.
	 */
	KVP_ATOMIC(uint32_t) touched;
	uint32_t reserved1;
	/*
	 * A bit for each line of lease slots that was ever used; the ledger looks at no other
	 * (kvp_lease.h). A client that keeps a bit back has no leases there.
	 */
	KVP_ATOMIC(uint64_t) lease_lines[KVP_LEASES / KVP_LEASE_LINE / 64];
	/* Likewise for lines of `until`. One who keeps a bit back holds leases for longer. */
	KVP_ATOMIC(uint64_t) until_lines[KVP_LEASES / KVP_LEASE_LINE / 64];
	KVP_ALIGNED(64) struct kvp_sqe sq[KVP_SQ_ENTRIES];
	struct kvp_cqe cq[KVP_CQ_ENTRIES];
	/*
	 * Written by the ledger: for each timeline the next value that a commit waits for, or 0. A
	 * client that brings the timeline there writes the eventfd. One that does not is not told
	 * of its commits.
	 */
	KVP_ALIGNED(64) KVP_ATOMIC(uint64_t) awaits[KVP_TIMELINES];
	/*
	 * Lease slots, written by the client: cache lines of its own for each shard, and all lines
	 * in a row, since the ledger reads those that are used to prove that a block is not leased.
	 */
	KVP_ALIGNED(64) KVP_ATOMIC(uint64_t) lease[KVP_SHARDS][KVP_SHARD_LEASES];
	/*
	 * For each slot the moment at which its lease is over, or 0: not before the slot is empty.
	 * Lines of their own: the ledger looks here for filled slots only.
	 */
	KVP_ATOMIC(uint64_t) until[KVP_SHARDS][KVP_SHARD_LEASES];
	struct kvp_shard shard[KVP_SHARDS];
	/* Token ids for COMMIT, one row per grant. */
	KVP_ALIGNED(64) kvp_token staging[KVP_MAX_GRANTS][KVP_BLOCK_TOKENS_MAX];
	/* Timelines, written by the client or its device: a page of their own, to be registered. */
	KVP_ALIGNED(4096) struct kvp_timeline_word done[KVP_TIMELINES];
	/* Salts for COMMIT, one row per grant. */
	KVP_ALIGNED(4096) kvp_token salt[KVP_MAX_GRANTS][KVP_SALT_TOKENS];
};
KVP_ABI_ASSERT(offsetof(struct kvp_session_page, need_wake) == 128, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_session_page, cq_tail) == 192, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_session_page, sq_tail) == 256, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_session_page, sq) == 320, "shm ABI");
KVP_ABI_ASSERT(
	offsetof(struct kvp_session_page, awaits) == 320 + 64 * (KVP_SQ_ENTRIES + KVP_CQ_ENTRIES),
	"shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_session_page, lease) ==
		       offsetof(struct kvp_session_page, awaits) + 8 * KVP_TIMELINES,
	"shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_session_page, lease_lines) == 280, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_session_page, until_lines) == 296, "shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_session_page, until) ==
		       offsetof(struct kvp_session_page, lease) + 8 * KVP_LEASES,
	"shm ABI");
KVP_ABI_ASSERT(offsetof(struct kvp_session_page, done) % 4096 == 0, "shm ABI");
KVP_ABI_ASSERT(
	offsetof(struct kvp_session_page, salt) == offsetof(struct kvp_session_page, done) + 4096,
	"shm ABI");
KVP_ABI_ASSERT(sizeof(((struct kvp_session_page *)0)->lease) == 8 * KVP_LEASES, "shm ABI");

#endif
