/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvpool: an inference engine's view of the machine's shared KV cache.
 *
 * An engine opens a client (its attachment to kvpoold), then a space (its model). For each prompt
 * it calls kvp_match(), which finds the longest cached prefix and leases it, reads the cached
 * blocks in place through kvp_payload(), computes what is missing into slots it got from
 * kvp_reserve(), and publishes each with kvp_commit(). Matching, leasing, reading and releasing are
 * shared-memory reads: no system call, no message, no copy.
 *
 * Conventions
 * - Functions return 0 or a positive count, or a negative errno. Outputs come last and are
 *   untouched on failure. Nothing here logs, exits or raises signals.
 * - Option and result structs begin with `size`, which the caller sets to sizeof the struct; fields
 *   beyond the caller's size are taken as 0, and are not written. What 0 means stands beside each.
 * - Calls and types have no name in common, so that C++ and parsers of headers need no `struct`.
 * - Any thread may call anything, except that one prefix or grant is used by one thread at a time.
 *   Threads of one client do not contend on match, payload and release.
 * - timeout_ms is the longest that a call waits for others: for room, for a block that somebody
 *   else computes, for an answer. 0 is: do not wait. KVP_DEFAULT_TIMEOUT is what the client was
 *   opened with. A question to the daemon that is answered at once (a few microseconds) is no wait
 *   in this sense: its answer is given KVP_ANSWER_MS even with 0.
 * - A daemon that is stopped or hangs costs one timeout, not one per call (kvp_space_open(), which
 *   asks over the socket, one of its own): when a call's time is up and the daemon has answered
 *   nothing for KVP_ANSWER_MS, it is taken for stuck. While it is, no call waits for it: matches
 *   are served, nothing is claimed, and -EAGAIN, or -ETIMEDOUT where that is all there is to say,
 *   comes at once. The first call after it has answered finds it well again.
 * - Without a daemon every call is a miss or -ESHUTDOWN, never a hang. Mappings and leases that
 *   exist stay valid; the library re-attaches in the background, and handles made before carry
 *   the old epoch: prefixes stay readable, grants can no longer be committed (-ESHUTDOWN).
 * - In a forked child every call on the parent's client returns -ECHILD (kvp_close returns).
 * - A miss is always a legal answer, and so is -EAGAIN from kvp_reserve: an engine that gets them
 *   computes privately and loses nothing but time.
 *
 * Limits of one client: KVP_CLIENT_LEASES prefixes are leased at a time; a further match comes
 * without a lease and can be copied only. KVP_CLIENT_GRANTS slots are reserved at a time, and all its
 * slots lie in memory of a quarter of the tenant's share (the `arena` of kvpoold.yaml(5)), and of half
 * the share together with the tenant's other clients: kvp_reserve() says -EAGAIN until blocks that it
 * has released have been moved from there. It holds KVP_CLIENT_CLAIMS claims; beyond them nothing is
 * claimed. It has KVP_CLIENT_TIMELINES timelines. A tenant has 64 spaces, and as many clients as
 * `max_sessions` says (-EUSERS).
 *
 * Token ids are uint32_t. A block is the KV of block_tokens consecutive tokens for all layers of
 * the space; the last block of a prompt may be partial (fewer tokens; no block follows it).
 */
#ifndef KVPOOL_H
#define KVPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_API_VERSION_MAJOR 0
#define KVP_API_VERSION_MINOR 1

#if defined(__GNUC__)
#define KVP_EXPORT __attribute__((visibility("default")))
#else
#define KVP_EXPORT
#endif

#define KVP_DEFAULT_SOCKET "/run/kvpool/kvpool.sock"

/* As timeout_ms: the client's own, kvp_open_opts.default_timeout_ms. */
#define KVP_DEFAULT_TIMEOUT UINT32_C(0xffffffff)
/* What that is where the options do not say. */
#define KVP_DEFAULT_TIMEOUT_MS UINT32_C(5000)
/* What the daemon's answer is waited for even where timeout_ms is less. */
#define KVP_ANSWER_MS UINT32_C(100)

/* Bytes that hold every reason the library gives, its end included. */
#define KVP_ERROR_TEXT 256u

/* Of one client at a time; see Limits above. */
#define KVP_CLIENT_LEASES    1024u
#define KVP_CLIENT_GRANTS    128u
#define KVP_CLIENT_CLAIMS    64u
#define KVP_CLIENT_TIMELINES 32u

struct kvp_client;   /* an attachment to the daemon: kvp_open() to kvp_close() */
struct kvp_space;    /* a model: kvp_space_open() to kvp_space_close() */
struct kvp_prefix;   /* what a match found, leased: kvp_match() to kvp_release() */
struct kvp_grant;    /* a slot to write a block into: kvp_reserve() to kvp_grant_release() */
struct kvp_timeline; /* how far a stream is: kvp_timeline_new() to kvp_timeline_free() */

/* Version of the library, "major.minor.patch". */
KVP_EXPORT const char *kvp_version(void);

/* ---- attach ---------------------------------------------------------------------------------- */

/*
 * Succeed without a daemon, and attach in the background when there is one; spaces too can then be
 * opened without one.
 */
#define KVP_OPEN_LAZY 1u

struct kvp_open_opts {
	size_t size;
	const char *socket; /* NULL: $KVPOOL_SOCKET, else KVP_DEFAULT_SOCKET */
	const char *name;   /* shown to operators; NULL: the program's name */
	/* Bounds kvp_open() itself, and is what KVP_DEFAULT_TIMEOUT stands for in all calls on the
	 * client. 0: KVP_DEFAULT_TIMEOUT_MS. */
	uint32_t default_timeout_ms;
	uint32_t flags;
	/*
	 * The caller's buffer, NULL or error_bytes long (KVP_ERROR_TEXT are enough). When the call
	 * returns it says why no daemon was joined, in the daemon's own words where it has answered,
	 * or is "". It is here, and not a call, because there is no client to ask after a failure,
	 * and a reason per thread would be lost by runtimes that move work between threads.
	 */
	char *error;
	size_t error_bytes;
};

/*
 * Attaches to the daemon. opts may be NULL. -ENOENT, -ECONNREFUSED: no daemon there; -EACCES: this
 * uid is in no tenant; -EUSERS: too many clients; -EBUSY: too many attach at once, for longer than
 * the timeout; -EPROTONOSUPPORT: daemon and library share no ABI version; -EPROTO: what listens
 * there is no kvpoold; -ENAMETOOLONG: the socket's path is longer than a path of a socket can be;
 * -ETIMEDOUT; -EINVAL; -ENOMEM.
 */
KVP_EXPORT int kvp_open(const struct kvp_open_opts *opts, struct kvp_client **ret_client);

/*
 * Detaches and frees everything that belongs to the client: spaces, prefixes and grants made with
 * it are invalid afterwards, and no other thread may be using it. NULL is harmless. Returns NULL:
 * `c = kvp_close(c)` may be repeated.
 */
KVP_EXPORT struct kvp_client *kvp_close(struct kvp_client *client);

/*
 * Why the client is not attached, as kvp_open_opts.error: the reason of the last attempt that the
 * library made in the background, "" since one has succeeded. Fills the caller's buffer.
 */
KVP_EXPORT int kvp_last_error(struct kvp_client *client, char *buf, size_t bytes);

/* ---- spaces ---------------------------------------------------------------------------------- */

#define KVP_DTYPE_F32  1u
#define KVP_DTYPE_F16  2u
#define KVP_DTYPE_BF16 3u
#define KVP_DTYPE_F8   4u

/*
 * How a block's elements lie in its payload: at which byte the key and the value of token t begin
 * in the l-th layer of the space.
 *
 *   e          bytes of an element
 *   T          block_tokens, also for a partial block
 *   Dk_i, Dv_i kv_heads * k_dim and kv_heads * v_dim of the i-th layer; Dk and Dv are sums of them
 *              over all layers, Dk_before and Dv_before over the layers before l
 *
 *   NCLD  [token][K,V][layer][D]
 *     K: e * (t * (Dk + Dv) + Dk_before)
 *     V: e * (t * (Dk + Dv) + Dk + Dv_before)
 *   LCND  [layer][K,V][token][D]
 *     K: e * (T * (Dk_before + Dv_before) + t * Dk_l)
 *     V: e * (T * (Dk_before + Dv_before + Dk_l) + t * Dv_l)
 *
 * From there head h is h * k_dim (for a value h * v_dim) elements further on.
 */
#define KVP_LAYOUT_NCLD 0u
#define KVP_LAYOUT_LCND 1u
/*
 * What lies where in a block is the engine's own affair: a packing of its own, quantised with scales,
 * pages in its order. Blocks are reserved, committed, matched, leased, read and evicted as all others;
 * calls that would have to know the layout (views, kvp_get(), kvp_put(), kvp_fork()) are -EOPNOTSUPP.
 */
#define KVP_LAYOUT_OPAQUE 2u

#define KVP_ROPE_NONE        0u
#define KVP_ROPE_HALF_SPLIT  1u /* pairs (i, i + d/2): Llama in the Hugging Face layout, Qwen */
#define KVP_ROPE_INTERLEAVED 2u /* pairs (2i, 2i + 1): llama2.c, GPT-J */

#define KVP_ROPE_SCALING_NONE   0u
#define KVP_ROPE_SCALING_LINEAR 1u
#define KVP_ROPE_SCALING_NTK    2u
#define KVP_ROPE_SCALING_YARN   3u
#define KVP_ROPE_SCALING_LLAMA3 4u

struct kvp_layer {
	uint32_t index; /* the model's number of this layer: ascending, a pipeline shard has some */
	uint32_t kv_heads;   /* held here */
	uint32_t first_head; /* of the model: where a tensor-parallel shard begins */
	uint32_t k_dim;      /* channels of a key head */
	uint32_t v_dim;      /* of a value head; 0 for one latent (MLA) */
};

/*
 * All that must be equal for two blocks to be exchangeable. Strings are UTF-8, shorter than 128
 * bytes; NULL means empty.
 */
struct kvp_space_desc {
	size_t size;
	const char *model;
	const char *adapter;   /* LoRA or the like, name and version */
	const char *tokenizer; /* name or digest */
	uint8_t weights_digest[32];
	uint32_t dtype;
	uint32_t layout;
	uint32_t block_tokens; /* 16..512; 0: 64 */
	uint32_t n_layers;     /* 1..256 */
	const struct kvp_layer *layers;
	uint32_t rope_pairing;
	uint32_t rope_dim;
	uint32_t rope_scaling;
	double rope_theta;
	double rope_params[4]; /* of the scaling: factor, low, high, original context; kvp_rope.h */
	/* Not part of the identity: */
	uint32_t min_cache_tokens; /* kvp_put() of a shorter sequence stores nothing */
	/*
	 * KVP_LAYOUT_OPAQUE, 0 or NULL in all others: the layout's name, which is not empty and has to
	 * say what dtype, layers and RoPE would, all of which are 0 then; and the bytes of a block, less
	 * than 4 GiB. Only spaces in which both are equal share blocks.
	 */
	const char *layout_name;
	uint64_t block_bytes;
	/*
	 * With KVP_LAYOUT_OPAQUE, 16 to 64 and a multiple of 4: blocks are named by keys of so many
	 * bytes, see "blocks by key" below. block_tokens is 0 then. 0: by token ids.
	 */
	uint32_t key_bytes;
	/*
	 * Part of the identity: what blocks of this space may lose when memory is short. floor_k, floor_v:
	 * the lowest codecs (kvp_codec.h; kvp_codec_parse_pair() reads their names) that are accepted for
	 * keys and for values, 0: native; both 0, the default: the space is exact, and its blocks are only
	 * ever the bytes that were committed. Else blocks that are not in use may be coded with fewer bits,
	 * down to the floor, before any is evicted; see kvp_payload_info.codec. Blocks that an
	 * engine computes over such ones have lost as much, so spaces with different floors share no blocks,
	 * and an exact reader never meets a block that was coded, or computed over one.
	 * A floor is a codec of fixed size (fp8, int8, kivi, asym, tq without haar,
	 * hadamard, sym, spectral with -any, smart with a mean, kvquant) that takes the planes of all layers; of a layer with
	 * v_dim 0 floor_v is 0. `smart` itself is smart-25: on the way down a block has 8 bits, then means of 4, 3
	 * and 2.5 bits that its tokens share by the attention they get (kvp_report_token_attention()).
	 * kvquant needs a calibration of `model`, with these layers, heads, dims and RoPE, which the daemon's
	 * configuration has (`calibrations`) and hands out; without one kvp_space_open() is -ENOENT.
	 */
	uint32_t floor_k, floor_v;
	/*
	 * Blocks with one of the first native_first tokens of a sequence stay native, and so do those
	 * after which there were never native_last tokens cached, at most 15 blocks of them. Only whole blocks
	 * are ever coded. 0 without a floor.
	 */
	uint32_t native_first, native_last;
	/* kvp_layer.index of layers that stay native; NULL and 0 without a floor. */
	const uint32_t *exact_layers;
	uint32_t n_exact_layers;
};

/*
 * Opens a space, making it if the tenant does not have it. -EINVAL: a field is out of range
 * (-E2BIG: a block would not fit a payload's 32-bit size or an extent); -ENOSPC: the tenant has its
 * 64 spaces and all are in use; -ENOENT: the floor needs a calibration that the daemon does not have; -EBUSY: it
 * cannot hand one out before this user's clients have received what it sent them: try again;
 * -ESHUTDOWN, also from a client of KVP_OPEN_LAZY where the floor needs one and there is no daemon. A daemon that comes
 * later with another calibration is one without this space: until it is opened anew, everything misses.
 * -ETIMEDOUT: no answer in time, or at once where an earlier request is without one and nothing has
 * come from the daemon since. The space is not open then: if the daemon opens it later, the library
 * closes it again, and the call may simply be repeated.
 */
KVP_EXPORT int kvp_space_open(struct kvp_client *client, const struct kvp_space_desc *desc,
	uint32_t timeout_ms, struct kvp_space **ret_space);

/*
 * The same space under a salt of 32 bytes: what decides about a request's KV besides its tokens and the
 * space, or who may share it (a LoRA adapter, a tenant's or user's cache salt, digests of images), hashed
 * by the caller. Sequences of the new handle have blocks in common with those of handles with an equal
 * salt of the same space, and with no others: the salt is part of the keys, and is compared whole where a
 * hit is proven. All zeros are no salt; such a handle names the very blocks of `space`.
 *
 * Every call that takes a space takes the handle, and all mean its sequences: kvp_match(), kvp_put(),
 * kvp_delete(), and kvp_ref_root() for grants that were reserved with it. A prefix handed over is taken
 * over with a handle of an equal salt. It counts as no space of its own, in limits and in statistics;
 * nothing is asked of the daemon. Some 16 KiB are allocated and copied: a microsecond or two.
 * -EINVAL: `space` has a salt itself, or is one of keys, whose keys say all that there is to say;
 * -ENOMEM; -ECHILD.
 */
KVP_EXPORT int kvp_space_salted(
	struct kvp_space *space, const uint8_t salt[32], struct kvp_space **ret_space);

/*
 * Matches and grants of the space must have been released, and of the handles that kvp_space_salted()
 * made of it, which go with it. Returns NULL; NULL is harmless.
 */
KVP_EXPORT struct kvp_space *kvp_space_close(struct kvp_space *space);

#define KVP_FEATURE_ZERO_COPY        1u /* kvp_payload() and kvp_reserve() give pointers */
#define KVP_FEATURE_NON_BLOCKING_PUT 2u /* kvp_put() has taken its copy when it returns */

struct kvp_space_props {
	size_t size;
	uint32_t block_tokens;
	uint32_t chunk_tokens; /* best size to prefill in: a multiple of block_tokens */
	uint64_t block_bytes;  /* of a native payload; a partial block has the same */
	uint64_t token_bytes;  /* block_bytes / block_tokens */
	uint32_t features;
	uint32_t homogeneous; /* all layers have equal heads and dims */
	uint32_t n_layers;
	uint32_t attached; /* 0: no daemon at the moment */
	uint8_t fingerprint[32];
};

KVP_EXPORT int kvp_space_info(struct kvp_space *space, struct kvp_space_props *ret_props);

/*
 * Says how good the engine's output is over blocks of a space with a floor: a share, 0 to 1, 1 being that of
 * native blocks; for instance the share of tokens that a check with native ones would have chosen too. Once
 * a request or a step. Where the mean of such scores and of the daemon's own is below the tenant's
 * `quality_target` (kvpoold.yaml(5)), next blocks are coded with more bits, where it is well above with
 * fewer, never with fewer than the floor. Waits for nothing and is answered by nobody. -EINVAL: not a
 * number of that range; -EOPNOTSUPP: the space is exact; -EAGAIN: the daemon has many questions before
 * it, and this score is lost; -ESHUTDOWN: there is no daemon; -ECHILD.
 */
KVP_EXPORT int kvp_report_quality(struct kvp_space *space, double score);

/* Bytes of one block's payload, by kvp_payload_info.codec; -EOPNOTSUPP: the space has none such. */
KVP_EXPORT int kvp_space_block_bytes(struct kvp_space *space, uint32_t codec, uint64_t *ret_bytes);

struct kvp_digest {
	uint64_t lo, hi;
};

/*
 * The chained keys of tokens[0..n): one for each whole block, and one for the rest if there is one.
 * Returns how many there are; writes at most max. Keys differ between tenants and daemon starts.
 */
KVP_EXPORT int kvp_chunk_keys(struct kvp_space *space, const uint32_t *tokens, size_t n,
	struct kvp_digest *out, size_t max);

/* ---- numbers of the caller's ------------------------------------------------------------------ */

/*
 * Numbers in the caller's memory, as the caller has them: of pages, of tokens. A number below 0, or
 * one that is too large for what it names, is -EINVAL of the call.
 */
#define KVP_IDS_U32 0u
#define KVP_IDS_I32 1u
#define KVP_IDS_I64 2u

struct kvp_ids {
	const void *ids; /* n of them; the array is read during the call, and not kept */
	size_t n;
	uint32_t type; /* KVP_IDS_* */
};

/* ---- match ----------------------------------------------------------------------------------- */

#define KVP_MATCH_CLAIM    1u  /* claim what is missing (asks the daemon): single flight */
#define KVP_MATCH_NO_TOUCH 2u  /* do not count as a use, nor in the statistics */
#define KVP_MATCH_EXACT    4u  /* all of tokens or nothing */
#define KVP_MATCH_NO_TAIL  8u  /* do not look for a match that ends inside a block */
#define KVP_MATCH_DEVICE   32u /* also what lies on `device` alone; it is read there first */

struct kvp_match_opts {
	size_t size;
	uint32_t flags;
	uint32_t timeout_ms; /* for the claim; matching itself never waits */
	uint32_t
		claim_ttl_ms; /* how long the claim lasts at most; 0: as the daemon's operator says */
	/*
	 * An earlier prefix of the same space, to go on from: the tokens of the call are those that
	 * follow its whole blocks (not its tail, nor a partial block at its end), and only they are
	 * looked at. The new prefix contains those blocks: its n_blocks, n_tokens and block numbers
	 * count from the beginning of the sequence, and it has a lease of its own. The earlier one is
	 * used during the call, not changed, and released by whoever made it, before or after the
	 * new one. If it has no lease and a block of it was moved or evicted, or if it is a former
	 * daemon's, the new one is shorter or empty: match from the beginning then. Not together with
	 * KVP_MATCH_CLAIM (-EINVAL). NULL: none. In statistics only the new tokens count.
	 */
	const struct kvp_prefix *after;
	/*
	 * KVP_MATCH_DEVICE: a number below KVP_CLIENT_DEVICES. Each block that lies there is read there:
	 * kvp_payload() says in its `tier` where; others are read in DRAM as ever. Without the flag a
	 * block that was committed on a device ends the prefix until it is in DRAM as well.
	 */
	uint32_t device;
};

#define KVP_MATCHED_LEASED  1u /* payloads stay where they are until kvp_release() */
#define KVP_MATCHED_CLAIMED 2u /* the caller is the one to compute what is missing */
#define KVP_MATCHED_PENDING 4u /* somebody else is computing the next block: kvp_wait() */

struct kvp_prefix_info {
	size_t size;
	uint32_t flags;    /* KVP_MATCHED_* */
	uint32_t n_blocks; /* whole ones, and a partial one that equals all that was left */
	uint32_t n_tokens; /* in those */
	/* Leading tokens of one more block, number n_blocks, that agree: the tail. 0: none. */
	uint32_t tail_tokens;
};

/*
 * Longest cached prefix of tokens[0..n), leased. n may be 0. Always succeeds with a prefix, also
 * without a daemon (an empty one: a miss), unless -EINVAL, -ENOMEM or -ECHILD. No system call
 * without CLAIM, except the first calls of a client, which may allocate. A prefix without
 * KVP_MATCHED_LEASED (the client holds KVP_CLIENT_LEASES others: release them when their blocks have
 * been read) may only be read by kvp_get(), which checks afterwards.
 * A claim that the daemon has not answered in time is none: the caller computes for itself.
 */
KVP_EXPORT int kvp_match(struct kvp_space *space, const uint32_t *tokens, size_t n,
	const struct kvp_match_opts *opts, struct kvp_prefix **ret_prefix);

/*
 * The same with token ids as the caller has them, int32 and int64 included: 64-bit ones are narrowed
 * a few blocks at a time, the array is not copied. -EINVAL: also if an id is below 0 or has more than
 * 32 bits, wherever in the array.
 */
KVP_EXPORT int kvp_match_ids(struct kvp_space *space, const struct kvp_ids *tokens,
	const struct kvp_match_opts *opts, struct kvp_prefix **ret_prefix);

#define KVP_GROUP_MAX 64u /* spaces of a tenant, and so of a group */

/*
 * A match over the shards of a tensor- or pipeline-parallel group, a space of this client for each rank
 * (kvp_layer.first_head and .index say which part it holds): ret_prefixes[i] is the longest prefix in
 * spaces[i] that all others have too. All have the same n_blocks, n_tokens and tail_tokens; each is a
 * prefix of its own, with a lease, which is handed to its rank (kvp_match_export()), read and released
 * like any other. A sequence is thus visible to the group as soon as every rank has committed its blocks,
 * whatever the order.
 *
 * One call answers for all ranks: ask once for each request, where it is scheduled. Ranks that ask for
 * themselves get the same if nothing is committed or evicted in between. Counts as a use of what all have,
 * and in the statistics of each space. With one space it is kvp_match_ids().
 *
 * flags: KVP_MATCH_NO_TOUCH, KVP_MATCH_EXACT (all ranks have all tokens, or nothing), KVP_MATCH_NO_TAIL.
 * To have a missing prefix computed once, claim it in one of the spaces, by kvp_match(). -EINVAL: also
 * `after`, other flags, spaces of several clients, of unlike block_tokens, of keys, or one twice; -ENOMEM;
 * -ECHILD. On failure nothing is held.
 */
KVP_EXPORT int kvp_match_group(struct kvp_space *const *spaces, uint32_t n_spaces,
	const struct kvp_ids *tokens, const struct kvp_match_opts *opts,
	struct kvp_prefix **ret_prefixes);

/* -EINVAL: released, or ret_info has no size. */
KVP_EXPORT int kvp_match_info(const struct kvp_prefix *prefix, struct kvp_prefix_info *ret_info);

/*
 * After KVP_MATCHED_PENDING: sleeps until the block after the prefix is committed (0: match again),
 * or until its claimant is gone or late (-EAGAIN: match again with CLAIM). The prefix stays as it
 * is. -ETIMEDOUT; -ESHUTDOWN: the daemon is gone; -EINVAL: released, or nothing was PENDING;
 * -ENOMEM; -ECHILD.
 */
KVP_EXPORT int kvp_wait(struct kvp_prefix *prefix, uint32_t timeout_ms);

#define KVP_TIER_DRAM  0u
#define KVP_TIER_VRAM  1u
#define KVP_TIER_STORE 2u

struct kvp_payload_info {
	size_t size;
	const void *addr; /* in this process; NULL if it lies on a device */
	uint64_t device_addr;
	uint64_t bytes;
	/*
	 * 0: native; in a space with a floor also 1 to 4: coded with about 8, 4, 3 or 2 bits, the number
	 * that kvp_space_block_bytes() knows the size of. kvp_payload_planes() says where what is.
	 */
	uint32_t codec;
	uint32_t tier;
	uint32_t tokens; /* valid in it; for the tail, the block's own count */
	/* What that means for keys and for values: ids of kvp_codec.h, 0: native. */
	uint32_t codec_k, codec_v;
};

/*
 * Payload of block i < n_blocks, or of the tail (i == n_blocks, if tail_tokens). Valid until
 * kvp_release(). -ENOENT: no such block; -ENOLCK: the prefix is not leased, use kvp_get();
 * -EINVAL: released.
 */
KVP_EXPORT int kvp_payload(
	const struct kvp_prefix *prefix, uint32_t i, struct kvp_payload_info *ret_payload);

/*
 * Addresses of blocks [first, first + n) of the prefix, the tail being block n_blocks, in one call:
 * ret_addrs[i] is where block first + i begins in this process, block_bytes long, valid until
 * kvp_release(). Returns how many were written: fewer than n where the prefix ends before, or before a
 * block whose bytes are not native ones in memory (kvp_payload() says more of it); 0: `first` is
 * beyond the prefix. -ENOLCK: the prefix is not leased, use kvp_get(); -EINVAL: released; -ECHILD.
 */
KVP_EXPORT int kvp_payloads(
	const struct kvp_prefix *prefix, uint32_t first, uint32_t n, const void **ret_addrs);

/* The keys or the values of one layer in a payload. */
struct kvp_payload_half {
	const void *addr;                 /* NULL: the layer has none */
	uint64_t bytes;                   /* of the plane; native ones need not lie in a row */
	uint32_t codec;                   /* of kvp_codec.h; 0: native, head h of token t lies at */
	size_t token_stride, head_stride; /* addr + t * token_stride + h * head_stride */
};

struct kvp_payload_layer_info {
	size_t size;
	uint32_t tokens; /* as in kvp_payload_info; coded planes hold block_tokens of them */
	struct kvp_payload_half k, v;
};

/*
 * Where the keys and values of one layer (its position in the space's list) lie in the payload of block i,
 * and in which codec: what kvp_attend() needs for a part of a context, so that native, 4-bit and 2-bit
 * blocks of one prefix are attended to in place and in one call (kernels/kvp_attend.h). Errors as kvp_payload(), and -EINVAL: no such layer; -EOPNOTSUPP: an opaque layout,
 * a payload in memory that this process does not address, of a GPU, or one in a codec that needs a calibration, which
 * kvp_get() decodes.
 */
KVP_EXPORT int kvp_payload_planes(const struct kvp_prefix *prefix, uint32_t i, uint32_t layer,
	struct kvp_payload_layer_info *ret_planes);

/* Counts as one more use (long decodes keep their prefix warm with it). No system call. */
KVP_EXPORT int kvp_touch(struct kvp_prefix *prefix);

/*
 * Says what attention the engine's queries paid to the blocks of a prefix in a space with a floor: attention[i]
 * to block i < n, n at most n_blocks, in any unit: a good one is the mean over layers and heads of the softmax
 * weights that the block's tokens got, from kvp_attend()'s `mass` for instance, since the last report. Once in
 * some decode steps. Blocks that are attended to more keep their bits for longer, where room is short and under a
 * budget (`precision`, kvpoold.yaml(5)): of each a smoothed average is kept, as a multiple of the mean of the report,
 * from 1/256 to 256, which counts for less the longer the block has not been matched. It says nothing of other
 * spaces and tenants, and takes nobody below the floor. Elsewhere it is dropped.
 *
 * Waits for nothing and is answered by nobody. Of a long sequence one call says no more than leaves half of the
 * client's ring to other calls: it begins with block `from` < n, and returns with which one the next call goes on,
 * n: all was said. The mean is that of all n in each of them. -EAGAIN: there was no room for any; go on in a later
 * step, or leave it. -EINVAL: released, n or `from` out of range, one of the n is below 0 or not finite, or all are 0;
 * -EOPNOTSUPP: the space is exact, or one of keys; -ESHUTDOWN: there is no daemon; -ECHILD.
 */
KVP_EXPORT int kvp_report_attention(
	const struct kvp_prefix *prefix, const float *attention, uint32_t n, uint32_t from);

/*
 * The same token by token: attention[i] to token i < n, n and `from` being multiples of block_tokens, n those of
 * n_blocks blocks at most. Says of each block what its tokens got together, and in a space whose floor is `smart` also
 * what each of them got beside the others: where the block is coded, those that are attended to get more of its bits,
 * from 2 to 8 (of blocks of more than 64 tokens every two, three, ... of them are told apart). Returns with which token the
 * next call goes on, n: all was said. Errors as above.
 */
KVP_EXPORT int kvp_report_token_attention(
	const struct kvp_prefix *prefix, const float *attention, uint32_t n, uint32_t from);

/*
 * Ends the lease, and the claim if the prefix holds one that no commit has used up. -EALREADY: it
 * was released before (detected as long as the handle was not given out again). NULL is harmless.
 */
KVP_EXPORT int kvp_release(struct kvp_prefix *prefix);

/*
 * Names a match for other processes of the tenant: a scheduler's match becomes one of each worker that
 * reads the blocks. A value: copy it into any message. It is worth nothing to other tenants.
 */
struct kvp_handover {
	uint64_t opaque[5];
};

/*
 * -ENOENT: the prefix is empty; -ENOLCK: it is not leased; -EINVAL: it was released, or is one of keys.
 * Hold the prefix until all who take it over have said so: then there is no moment at which the blocks
 * could be evicted or moved.
 */
KVP_EXPORT int kvp_match_export(const struct kvp_prefix *prefix, struct kvp_handover *ret_handover);

/*
 * The same prefix with a lease of this client, in a space that was opened with the same description.
 * Nothing is asked of the daemon, no token is hashed and nothing is counted.
 * -ESTALE: what was handed over is not there any more (its holder has released it, the daemon is
 * another one), or not of this space: match for yourself. -EAGAIN: some of it lies in memory that the
 * library has still to map: again in a moment. -ENOLCK: this client holds KVP_CLIENT_LEASES others;
 * -ESHUTDOWN; -EINVAL; -ENOMEM; -ECHILD.
 */
KVP_EXPORT int kvp_match_import(struct kvp_space *space, const struct kvp_handover *handover,
	struct kvp_prefix **ret_prefix);

/* ---- copies in and out ----------------------------------------------------------------------- */

/*
 * Where the caller's elements lie: one plane per layer of the view. Strides are bytes. Address of
 * channel c of head h of token t (counted from the first token of the call), and of values likewise:
 *   k + t * k_token_stride + h * k_head_stride + c * channel
 * and in a paged view, with s = first_slot + t, whose table says that s lies in page
 * P = pages[s / page_tokens]:
 *   k + P * k_page_stride + s % page_tokens * k_token_stride + h * k_head_stride + c * channel
 * where `channel` is k_channel_stride, or the size of an element if that is 0. Channels that do not
 * lie side by side are copied one by one, which is several times as slow.
 */
struct kvp_view_plane {
	void *k; /* NULL: skip the keys of this layer */
	void *v;
	size_t k_token_stride, k_head_stride;
	size_t v_token_stride, v_head_stride;
	size_t k_page_stride, v_page_stride;
	size_t k_channel_stride, v_channel_stride;
};

/*
 * A view is paged if page_tokens is not 0: the tokens of the call then lie in pages that `pages` names
 * in the sequence's order, as a block table does, or, with page_tokens 1, as indices into a pool of
 * tokens do. All planes have pool_pages pages; more pages than the call needs may be named. Examples,
 * e being an element and D the heads' channels together:
 *
 *   [2][pages][page_tokens][heads][dim]   a tensor for a layer: v = k + pool_pages * page_tokens * D * e,
 *                                         page_stride page_tokens * D * e, token_stride D * e,
 *                                         head_stride dim * e
 *   [pages][2][heads][page_tokens][dim]   v = k + page_tokens * D * e, page_stride 2 * page_tokens * D * e,
 *                                         token_stride dim * e, head_stride page_tokens * dim * e
 *   [tokens][heads][dim] and indices      page_tokens 1, page_stride D * e
 *   values as [heads][dim][tokens]        page_tokens 1, v_page_stride e, v_channel_stride tokens * e,
 *                                         v_head_stride dim * tokens * e
 *
 * Every number that the call needs is looked at before the first byte is copied: -EINVAL if one is not
 * below pool_pages, or if there are too few of them.
 */
struct kvp_view {
	size_t size;
	uint32_t n_layers;      /* planes; 0: all of the space */
	uint32_t first_head;    /* subset of the heads held by the space, same for all layers */
	uint32_t n_heads;       /* 0: all from first_head */
	const uint32_t *layers; /* positions in the space's list, ascending; NULL: 0, 1, 2 ... */
	const struct kvp_view_plane *planes;
	/* Of a paged view, all 0 otherwise: */
	uint32_t page_tokens;
	uint32_t pool_pages;
	struct kvp_ids pages;
	uint32_t first_slot; /* in the table's order, where the first token of the call lies */
};

#define KVP_VIEW_NCLD  0u /* [tokens][K,V][layers][heads * dim] */
#define KVP_VIEW_LCND  1u /* [layers][K,V][tokens][heads * dim] */
#define KVP_VIEW_LBHSD 2u /* two tensors, K then V, each [layers][1][heads][tokens][dim] */

/*
 * Fills planes[n_layers of the space] for a dense buffer of `tokens` tokens in one of the usual
 * layouts, and sets *ret_bytes to what the buffer must hold. base may be NULL to ask for the size.
 */
KVP_EXPORT int kvp_view_dense(struct kvp_space *space, uint32_t layout, void *base, size_t tokens,
	struct kvp_view_plane *planes, uint64_t *ret_bytes);

#define KVP_GET_VERIFY 1u /* check the checksums that the daemon has computed; -EBADMSG */

/*
 * Copies matched tokens [from, from + n) into the caller's view, the tail's agreeing tokens
 * included. Returns the number of tokens copied: less than n if the prefix ends before. Never a
 * hole. Coded blocks (spaces with a floor) are decoded, a layer at a time. -ESTALE: the prefix was not
 * leased and something moved meanwhile; match again. -EBADMSG: a coded block is damaged: take it for a miss;
 * -ENOMEM: no memory to decode with.
 */
KVP_EXPORT int64_t kvp_get(const struct kvp_prefix *prefix, uint32_t from, uint32_t n,
	const struct kvp_view *dst, uint32_t flags);

#define KVP_PUT_PARTIAL 1u /* store the rest after the last whole block too, as a partial block */

/*
 * What the tokens of the blocks are, if the caller knows: one of these in the flags of puts and commits. The daemon's
 * advisor, where it is on, never names a system prompt as what should go; to all else a block is a block. Who stores
 * a block that is there already does not change what it was said to be.
 */
#define KVP_IS_SYSTEM    (1u << 8)
#define KVP_IS_USER      (2u << 8) /* what it is taken for if nobody says */
#define KVP_IS_ASSISTANT (3u << 8) /* an earlier answer, in a prompt */
#define KVP_IS_TOOL      (4u << 8) /* what a tool returned */
#define KVP_IS_GENERATED (5u << 8) /* being decoded */
#define KVP_IS_MASK      (7u << 8)

struct kvp_put_opts {
	size_t size;
	uint32_t flags;
	uint32_t timeout_ms; /* for room */
	/*
	 * An earlier prefix, as kvp_match_opts.after: tokens[0..n) follow its whole blocks, and `from`
	 * and what is returned count from there; keys of what was before are not computed again.
	 * -ENOENT: it has no lease, and its last block was moved or evicted; -ESHUTDOWN: it is a
	 * former daemon's.
	 */
	const struct kvp_prefix *after;
};

/*
 * Stores blocks of the sequence tokens[0..n) from token `from` (a multiple of block_tokens) on; src
 * holds the KV of tokens from.. of all layers and heads. Whole blocks only, the rest is ignored
 * unless PARTIAL. opts may be NULL.
 *
 * Returns tokens, counted from `from`: those whose bytes were handed to the daemon, or were there
 * already. The caller may reuse its buffer. None of them had been refused, or evicted again, as far
 * as the daemon had answered by then: a put whose own blocks make each other go stops, and counts
 * what is left. The last few are on their way; kvp_put_outcome() says what has become of them.
 * Fewer than asked for: there was no room for more (*ret_retry_ms, if not NULL, says when to try
 * again); 0: the sequence is shorter than min_cache_tokens.
 *
 * -ENOENT: the block before `from` is not cached; -EAGAIN: no room now, or the daemon is about to move, code
 * or evict a block before `from`, and nothing is stored (*ret_retry_ms as above); -ETIMEDOUT: the daemon took none of it in time; -EINVAL; -ESHUTDOWN: no
 * daemon, or it went meanwhile, and all that was stored with it.
 */
KVP_EXPORT int64_t kvp_put(struct kvp_space *space, const uint32_t *tokens, size_t n, size_t from,
	const struct kvp_view *src, const struct kvp_put_opts *opts, uint32_t *ret_retry_ms);

/* The same with token ids as the caller has them; see kvp_match_ids(). */
KVP_EXPORT int64_t kvp_put_ids(struct kvp_space *space, const struct kvp_ids *tokens, size_t from,
	const struct kvp_view *src, const struct kvp_put_opts *opts, uint32_t *ret_retry_ms);

/*
 * Waits until the daemon has answered all that this client stored before, as kvp_flush() does, and
 * returns how many of tokens[from..n) are cached then, without a gap from `from` on; also on devices alone,
 * where matches without KVP_MATCH_DEVICE do not look. It looks; it
 * keeps nothing in place, so that other clients may evict the next moment what it counted.
 *
 * *ret_why, if not NULL, says what the first missing block lacks: 0: nothing is missing, or it is
 * not among the last 512 blocks that this client stored (fewer by those that wait for a timeline);
 * -EINPROGRESS: another thread of this client is storing that very block; -ENOSPC: it was refused for want of room;
 * -ECANCELED: the block before it was gone when its turn came; -ESTALE: it was stored, and has been
 * evicted or deleted since; -EEXIST: key collision; -ESHUTDOWN: it was stored at a daemon that has
 * gone, all it had with it; the count is of what its successor has.
 * Returns -ESHUTDOWN without a daemon; -ETIMEDOUT; -EINVAL.
 */
KVP_EXPORT int64_t kvp_put_outcome(struct kvp_space *space, const uint32_t *tokens, size_t n,
	size_t from, uint32_t timeout_ms, int *ret_why);

/* ---- writing in place ------------------------------------------------------------------------ */

/*
 * A slot to write one block into: local as long as slots that were granted ahead last. The slot is
 * the caller's until kvp_grant_release(); its bytes are undefined. -EAGAIN: no room, or the client
 * has all the slots that it may have at a time (retry hint as above); -ETIMEDOUT; -ESHUTDOWN.
 */
KVP_EXPORT int kvp_reserve(struct kvp_space *space, uint32_t timeout_ms, uint32_t *ret_retry_ms,
	struct kvp_grant **ret_grant);

/*
 * Slots for n blocks, 1 <= n <= KVP_CLIENT_GRANTS, as kvp_reserve() gives them one by one; waits at
 * most timeout_ms for all of them together. Returns how many there are, in ret_grants[0..) and the
 * caller's from then on. Fewer than n: no more could be had in time; *ret_retry_ms, if not NULL and
 * want of room was why, says when to try again. A negative errno, those of kvp_reserve(): none.
 */
KVP_EXPORT int kvp_reserve_run(struct kvp_space *space, uint32_t n, uint32_t timeout_ms,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grants);

/*
 * As kvp_reserve(), of a slot on a device: what is committed from it lies on that device, for matches with
 * KVP_MATCH_DEVICE at once, and for all others when the daemon has copied it to DRAM, which follows by itself
 * as far as there is room. Until then it goes with the device's room. Few slots are granted ahead, and the
 * client's slots there lie in memory of a part of half the tenant's share of the device. Also -ENODEV: no such
 * device, it is down or being emptied, or this tenant has no share of it; -EOPNOTSUPP: this daemon has no
 * devices that can be written to, or it is a GPU on which this client has no kvp_cuda (kvpool_cuda.h); -EINVAL: `device` is
 * KVP_CLIENT_DEVICES or more.
 */
KVP_EXPORT int kvp_reserve_on(struct kvp_space *space, uint32_t device, uint32_t timeout_ms,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grant);

/* NULL: it lies on a device whose memory this process does not address. */
KVP_EXPORT void *kvp_grant_addr(const struct kvp_grant *grant);

/* Names the block that another one follows. A value; copy freely. */
struct kvp_ref {
	uint64_t opaque[2];
};

/* The beginning of a sequence: of a commit, under the salt of the space that its grant is of. */
KVP_EXPORT struct kvp_ref kvp_ref_root(void);
/*
 * The block at which the first n_blocks of the prefix end; n_blocks = 0: the root. -EINVAL if more
 * than matched or if that block is partial. The prefix must be held until the commit returned.
 */
KVP_EXPORT int kvp_match_ref(
	const struct kvp_prefix *prefix, uint32_t n_blocks, struct kvp_ref *ret_ref);
/* A grant that was committed; valid until it is released. -EINVAL if not committed or partial. */
KVP_EXPORT int kvp_grant_ref(const struct kvp_grant *grant, struct kvp_ref *ret_ref);

/* Give the grant back too: the handle is gone when kvp_commit() returns 0. */
#define KVP_COMMIT_RELEASE 1u

/*
 * Publishes a written slot as the block tokens[0..n) after `parent`; n < block_tokens makes it
 * partial. Returns at once; the ledger checks and publishes in order. `claim`: the prefix whose
 * claimed chain this block belongs to (moves the claim on), or NULL. The slot stays readable by the
 * caller until kvp_grant_release(), also when the block turned out to be there already.
 * -EINVAL; -EALREADY: committed before; -EAGAIN: the ring stayed full; -ESHUTDOWN.
 */
KVP_EXPORT int kvp_commit(struct kvp_grant *grant, struct kvp_ref parent, const uint32_t *tokens,
	uint32_t n, struct kvp_prefix *claim, uint32_t flags);

/*
 * Publishes n_grants written slots of one space as consecutive blocks after `parent`: grants[i] has
 * tokens [i * block_tokens, (i + 1) * block_tokens) of tokens[0..n), the last grant what is left,
 * which may make it partial; n_grants is exactly what n takes. Otherwise as kvp_commit() for each in
 * turn, but in one call: no block has to be named for the next one to follow it.
 *
 * Returns how many were handed over, in order. grants[0..returned) are committed (with
 * KVP_COMMIT_RELEASE: gone); the others are as they were and still the caller's, who may commit them
 * after *ret_last or release them. A negative errno: none was. Fewer than n_grants: the ring stayed
 * full for the client's own timeout, which bounds the whole call, or the daemon went; the blocks that
 * were handed over to a daemon that went are lost, and what is asked of them or of it next says so.
 *
 * *ret_last, if not NULL, then names the last whole block that was handed over; untouched if there is
 * none. Unlike kvp_grant_ref() it outlives the grant: it is good while the block is among the last 512
 * that this client committed.
 *
 * All arguments are looked at first, and nothing is committed if one is wrong. -EINVAL: also if a
 * grant is there twice, was released, or is another space's; -EALREADY: one was committed before;
 * -EAGAIN, -ESHUTDOWN, -ECHILD.
 */
KVP_EXPORT int kvp_commit_run(struct kvp_grant *const *grants, uint32_t n_grants,
	struct kvp_ref parent, const uint32_t *tokens, size_t n, struct kvp_prefix *claim,
	uint32_t flags, struct kvp_ref *ret_last);

#define KVP_COMMITTED_DUPLICATE 1 /* somebody had published the same block: theirs is used */

/*
 * Outcome of a commit: 0 or KVP_COMMITTED_DUPLICATE when visible; -ETIMEDOUT while not known;
 * otherwise why it was refused: -EEXIST (key collision), -ECANCELED (its parent was refused or is
 * gone), -ENOSPC. -EINVAL: the grant is not committed, or was released; -ESHUTDOWN: the daemon went
 * before it answered; -ECHILD.
 */
KVP_EXPORT int kvp_grant_wait(struct kvp_grant *grant, uint32_t timeout_ms);

/* Gives the slot back. What was committed stays cached. NULL is harmless. */
KVP_EXPORT int kvp_grant_release(struct kvp_grant *grant);

/*
 * Copy-on-write: copies the first tail_tokens tokens of the prefix's tail into a grant, so that the
 * caller can go on writing after them. The cached block is untouched. Returns the tokens copied, 0
 * if the prefix has no tail. A tail that is coded is decoded. -ESTALE, -EBADMSG, -ENOMEM: as kvp_get();
 * -EINVAL: the grant is committed, or released.
 */
KVP_EXPORT int kvp_fork(const struct kvp_prefix *prefix, struct kvp_grant *grant);

/* ---- blocks by key --------------------------------------------------------------------------- */

/*
 * Caches that name their blocks by a hash of their own (LMCache, SGLang's HiCache, vLLM's tiers) open a
 * space with kvp_space_desc.key_bytes. Each block is named by one key and stands by itself: none is
 * the parent of another, each is leased and evicted alone. The key is compared whole, and it is all
 * that is compared: two contents for which the caller computes one key are one block, whichever was
 * stored first. Such a space never shares a block with one of token ids.
 *
 * Keys of a call lie one after another, key_bytes each, and need not be aligned. Counters count a key
 * as key_bytes / 4 tokens. Calls that take tokens take the words of one key, and nothing else.
 */
#define KVP_KEYS_MAX 65536u /* in one call */

#define KVP_MATCH_LEADING 16u /* of kvp_match_keys(): stop at the first key that is missing */

/*
 * Looks up n keys and leases each block that is there. Returns how many; bit i % 64 of
 * ret_found[i / 64] says that the block of key i is among them. ret_found is (n + 63) / 64 words or NULL.
 * flags: KVP_MATCH_NO_TOUCH, KVP_MATCH_LEADING.
 *
 * *ret_prefix: payload i (kvp_payload(), kvp_payloads()) is that of key i, -ENOENT if it is missing;
 * kvp_payloads() ends before a missing one. It is released as every prefix is, and has no tokens.
 * Each block takes one of the KVP_CLIENT_LEASES; what finds none left counts as missing. ret_prefix
 * NULL: nothing is leased, and the answer says what was there at the time of the call.
 * A use counts for the first keys last: where keys name the blocks of a prefix in order, its end is
 * evicted before its beginning. -EINVAL: also if the space is not one of keys; -ENOMEM; -ECHILD.
 */
KVP_EXPORT int kvp_match_keys(struct kvp_space *space, const void *keys, size_t n, uint32_t flags,
	uint64_t *ret_found, struct kvp_prefix **ret_prefix);

/*
 * Publishes n written slots of the space (kvp_reserve(), kvp_reserve_run()), grants[i] as the block of
 * key i. Returns how many were handed over, in order; otherwise as kvp_commit_run(). A block that is
 * there already stays as it is (KVP_COMMITTED_DUPLICATE).
 */
KVP_EXPORT int kvp_commit_keys(
	struct kvp_grant *const *grants, uint32_t n, const void *keys, uint32_t flags);

/*
 * The same with a parent for each block: parents[i] is a key, key_bytes long, or NULL; parents may be
 * NULL. As long as the block is cached, that of its parent is neither evicted nor deleted: of blocks
 * that are of use only after others the last ones go first. The parent is looked for when the block is
 * published, and may be one of the same call before it; one that is not there is none, then and later. It
 * is no part of what the block is: it is found, leased and read by its own key alone.
 */
KVP_EXPORT int kvp_commit_keys_under(struct kvp_grant *const *grants, uint32_t n, const void *keys,
	const void *const *parents, uint32_t flags);

/*
 * Copies block_bytes from src[i] into the block of key i, for each i that is not there already. Waits
 * at most timeout_ms for room, for all of them together. Returns how many leading keys were handed to
 * the daemon or were there; fewer than n, or a negative errno of kvp_reserve() if there is none: no
 * more room in time, *ret_retry_ms as there. The caller may reuse its buffers.
 */
KVP_EXPORT int64_t kvp_put_keys(struct kvp_space *space, const void *keys, size_t n,
	const void *const *src, uint32_t timeout_ms, uint32_t *ret_retry_ms);

/* ---- what outlives a call -------------------------------------------------------------------- */

/*
 * A timeline says how far work has come that the caller has enqueued, on a stream of a device or for
 * another thread. The caller numbers what it enqueues, from 1 on, and tells the library which number
 * is over. A release "after" a number is then made at once, when the work has only been enqueued: the
 * handle is gone and the call waits for nothing, but the bytes stay where they are until the number
 * is reached. That costs nothing for each block, however many leases end with one number. A commit
 * "after" a number is what the work writes.
 *
 * A timeline belongs to the client and outlives the daemon: what was released "after" at a daemon that
 * has gone stays mapped until the number is reached. If the process dies all of it ends with it.
 * Values are at most KVP_TIMELINE_MAX. -ECHILD in a forked child, as everywhere.
 */
#define KVP_TIMELINE_MAX ((UINT64_C(1) << 48) - 1)

/* One that has reached 0. -ENOSPC: the client has KVP_CLIENT_TIMELINES; -EINVAL. */
KVP_EXPORT int kvp_timeline_new(struct kvp_client *client, struct kvp_timeline **ret_timeline);
/*
 * What was to happen at a number that it has not reached happens now: the work must be over. No other
 * thread may be using it. Returns NULL; NULL is harmless. kvp_close() frees those that are left.
 */
KVP_EXPORT struct kvp_timeline *kvp_timeline_free(struct kvp_timeline *timeline);

/*
 * All work up to `value` is over: nobody reads any more what was released after it, or less. Numbers
 * may be left out, none is taken back: -EINVAL if it is less than what has been reached, or too large.
 * Any thread. A system call only if the daemon sleeps and is waited for.
 */
KVP_EXPORT int kvp_timeline_advance(struct kvp_timeline *timeline, uint64_t value);
/* 1: it has reached the value, 0: not yet. No system call. */
KVP_EXPORT int kvp_timeline_reached(struct kvp_timeline *timeline, uint64_t value);

/*
 * As kvp_release(), but addresses from kvp_payload() and kvp_payloads() stay good until the timeline
 * reaches `value`, and the prefix counts among the KVP_CLIENT_LEASES until then. No system call but
 * for a claim. -EINVAL: not a timeline of this client, or the value is too large; the prefix is then
 * still held. -EALREADY as kvp_release(). NULL is harmless.
 */
KVP_EXPORT int kvp_release_after(
	struct kvp_prefix *prefix, struct kvp_timeline *timeline, uint64_t value);
/*
 * As kvp_commit(), but the block is published when the timeline reaches `value`: what writes the slot
 * has only been enqueued. Nobody sees the block before; parents, claims and outcomes are looked at
 * then. With KVP_COMMIT_RELEASE the slot goes back then too. Commits that wait for different numbers
 * do not wait for each other, but one whose parent waits is published after it, whatever its own
 * number is, and kvp_commit() after such a parent waits likewise: a chain may be committed as its work
 * is enqueued. kvp_grant_wait(), kvp_flush() and kvp_put_outcome() wait for all of that, or until
 * their time is over. A commit is dropped if its space is not open when its moment comes, or the process
 * dies before.
 * Errors as kvp_commit(); -EINVAL: also as kvp_release_after().
 */
KVP_EXPORT int kvp_commit_after(struct kvp_grant *grant, struct kvp_ref parent,
	const uint32_t *tokens, uint32_t n, struct kvp_prefix *claim, uint32_t flags,
	struct kvp_timeline *timeline, uint64_t value);
/*
 * As kvp_grant_release(), but the slot's bytes stay the caller's to read, and to write if it was not
 * committed, until the timeline reaches `value`; it counts among the KVP_CLIENT_GRANTS until then.
 */
KVP_EXPORT int kvp_grant_release_after(
	struct kvp_grant *grant, struct kvp_timeline *timeline, uint64_t value);

/* ---- waiting beside other things ------------------------------------------------------------- */

/* What a descriptor announces, besides that the daemon went or another one was joined. */
#define KVP_EVENT_COMMITS 1u /* the outcome of a commit of this client is known */
#define KVP_EVENT_CLAIMS  2u /* kvp_wait() may say something else than -ETIMEDOUT */
#define KVP_EVENT_WARMS   4u /* a ticket of this client has ended, or all its blocks are placed */
#define KVP_EVENT_DEMANDS 8u /* kvp_serve_remat() may say something else than -ETIMEDOUT */

/*
 * A descriptor for poll(2), epoll(7) and event loops: it becomes readable when one of `events` has
 * happened, and stays so until somebody reads its 8 bytes (eventfd(2), non-blocking). It says that
 * something has changed, and not what. So first read it, then ask the handles that are waited for, with
 * a timeout of 0, and go to sleep when all of them have said that they are not ready:
 *
 *   kvp_grant_wait()  -ETIMEDOUT: no outcome yet
 *   kvp_flush_done()  0: not all yet
 *   kvp_ticket_wait() -ETIMEDOUT: not ended; likewise kvp_ticket_placed()
 *   kvp_wait()        -ETIMEDOUT: not yet; from then on the prefix is watched, until it is released
 *   kvp_serve_remat() -ETIMEDOUT: no demand
 *
 * Nothing is missed between the question and the sleep. It may become readable for nothing. A daemon
 * that hangs announces nothing, as nothing is ready: sleep with a time limit.
 *
 * The descriptor is the client's: every call returns the same one, and adds what it announces. Any
 * number may poll it, but whoever reads it reads for all. kvp_close() closes it; take it out of event
 * loops before. A forked child has it too and must neither read it nor poll it, but close it.
 *
 * The first call starts a thread, which sleeps in the kernel until there is something to announce, and
 * has the daemon wake it for every answer if any but CLAIMS is announced: a microsecond or two of both. Before
 * Linux 5.16, or where a filter forbids futex_waitv(2), it looks every millisecond instead. A client
 * that never calls this has none of that. -EINVAL; -EMFILE, -ENFILE, -ENOMEM, -EAGAIN: no descriptor, or
 * no thread; -ECHILD.
 */
KVP_EXPORT int kvp_event_fd(struct kvp_client *client, uint32_t events);

/*
 * kvp_flush() for those who must not wait: marks what this client has committed so far, nothing is
 * asked of the daemon. -ESHUTDOWN: no daemon; -EINVAL; -ECHILD.
 */
KVP_EXPORT int kvp_flush_mark(struct kvp_client *client, uint64_t *ret_mark);
/*
 * 1: all that was committed before the mark is visible or refused; 0: not yet. -ESHUTDOWN: the daemon of
 * the mark has gone; -EINVAL; -ECHILD. Waits for nothing.
 */
KVP_EXPORT int kvp_flush_done(struct kvp_client *client, uint64_t mark);

/* ---- devices --------------------------------------------------------------------------------- */

/*
 * The daemon may have devices: memory besides DRAM, divided among the tenants as DRAM is, into which blocks
 * are copied that somebody is to read there. What an engine does with one: match, kvp_warm() the prefix,
 * go on with something else, kvp_ticket_wait(), read the blocks with kvp_device_payloads(), release.
 *
 * A block that was copied there is in DRAM as well, and a prefix is what it was: nothing of it moves. What
 * has been copied stays on the device for as long as the prefix is held, and after that until there is no
 * room for others; then the device's copy goes, the block in DRAM stays. A block can also be written on a
 * device in the first place, kvp_reserve_on(), and is found there with KVP_MATCH_DEVICE. Whether a block lies there now is
 * read in shared memory, without a system call; one that does not may appear at any time, at the wish of
 * any client of the tenant.
 */
#define KVP_CLIENT_DEVICES      16u   /* numbers of devices are below */
#define KVP_CLIENT_WARM_BLOCKS  4096u /* of one ticket */
#define KVP_CLIENT_WARMS        8u    /* tickets under way, of one client */
#define KVP_CLIENT_EARLY_BLOCKS 64u   /* of one ticket with KVP_WARM_EARLY */

#define KVP_DEVICE_IS_UP 1u

struct kvp_device_props {
	size_t size;
	uint32_t
		state; /* KVP_DEVICE_IS_UP, or another: nothing is copied now; what lies there can be read */
	uint8_t uuid[16];
	uint64_t bytes; /* all that the daemon may take there, for all tenants */
	/* Copied for this tenant, since the daemon's start. */
	uint64_t to_device_bytes;
	uint64_t from_device_bytes;
};

/* -ENOENT: there is none of this number; -ESHUTDOWN: no daemon; -EINVAL; -ECHILD. No system call. */
KVP_EXPORT int kvp_device_info(
	struct kvp_client *client, uint32_t device, struct kvp_device_props *ret_props);

#define KVP_WARM_PREFETCH 1u /* nobody waits for it: after all that somebody waits for */
/*
 * It is told where blocks come to lie before they do, see kvp_ticket_placed(). A daemon that is older than this
 * copies as without it: then places are known when the ticket has ended.
 */
#define KVP_WARM_EARLY 2u

struct kvp_warm_opts {
	size_t size;
	uint32_t device;
	uint32_t flags;
	uint32_t first; /* block of the prefix, the tail being block n_blocks */
	/*
	 * Blocks; 0: all from `first`. No more than KVP_CLIENT_WARM_BLOCKS are taken, with KVP_WARM_EARLY
	 * KVP_CLIENT_EARLY_BLOCKS: for a longer prefix ask for what comes after these with another ticket.
	 */
	uint32_t n;
	uint32_t timeout_ms; /* for the question to be put */
};

/* Names copies that are under way. A value: copy freely; good for the client that got it. */
struct kvp_ticket {
	uint64_t opaque[2];
};

/*
 * Asks for blocks of a leased prefix to be copied to a device. Returns when the question is put; what
 * becomes of it is asked of the ticket. Hold the prefix until then: blocks that are not held are skipped.
 * opts may be NULL: all of it, to device 0.
 * -EAGAIN: too many tickets that have not ended, or the daemon does not answer; -ENOENT: `first` is beyond
 * the prefix; -ENOLCK: it has no lease; -EOPNOTSUPP: it is one of keys; -ENOMEM; -ESHUTDOWN; -EINVAL; -ECHILD.
 */
KVP_EXPORT int kvp_warm(
	struct kvp_prefix *prefix, const struct kvp_warm_opts *opts, struct kvp_ticket *ret_ticket);

/*
 * Waits for the end of the copies. Returns how many of the ticket's blocks lie on the device, counted from
 * its first one without a gap; what lay there before counts too. *ret_why, if not NULL, says why they are
 * not all: 0: they are; -EAGAIN: KVP_CLIENT_WARMS others are under way, or the device's worker died: ask
 * again; -ENOSPC: no room on the device in the tenant's share besides what is held; -ENODEV: no such device,
 * it is down or being emptied, or this tenant has no share of it; -ENOENT: the prefix was not held; -EBADMSG: a block is
 * damaged, and was not copied; -EBUSY: one lies on another device; -EOPNOTSUPP: this daemon has no devices;
 * -EACCES, -ENOMEM, -EIO.
 * A negative errno: nothing is known. -ETIMEDOUT: they go on; with timeout_ms 0 the call only looks.
 * -EINVAL: no such ticket, or it ended before 48 later ones; -ESHUTDOWN: the daemon went; -ECHILD.
 */
KVP_EXPORT int kvp_ticket_wait(
	struct kvp_client *client, struct kvp_ticket ticket, uint32_t timeout_ms, int *ret_why);

/*
 * Waits until the places of all blocks of a ticket with KVP_WARM_EARLY are known, which is long before they are
 * copied, or the ticket has ended. Returns how many of its blocks have one, counted from its first one without a gap.
 * kvp_device_payloads() and kvp_cuda_addrs() with KVP_DEVICE_PENDING say where they are, so that work can be enqueued
 * that reads them once they have come (kvp_cuda_stream_wait()). What is read there before the ticket has ended is not
 * the block, and if kvp_ticket_wait() then counts fewer blocks, what was read of the others never was: results
 * of it are to be thrown away. Such places stay mapped, and are nobody's but this tenant's, until the prefix
 * by which the address was asked for is released, or the moment of kvp_release_after(). Ask for addresses when this has
 * counted their blocks, and believe results by this ticket: before, a block's place may be that of another ticket of the
 * client, and only that one's end says whether the block came there. Of a ticket without the flag: as
 * kvp_ticket_wait(), whose errors this has. -ETIMEDOUT: some are not known yet; with timeout_ms 0 the call only looks.
 */
KVP_EXPORT int kvp_ticket_placed(
	struct kvp_client *client, struct kvp_ticket ticket, uint32_t timeout_ms);

/*
 * Has what is cached of a sequence copied to a device, for a request that is likely to come: a match that
 * counts as no use, and a kvp_warm() with KVP_WARM_PREFETCH of it, which the library holds until it is
 * over. Returns how many blocks were asked for; 0: none is cached. Errors of kvp_match_ids() and kvp_warm();
 * -EINVAL: also KVP_WARM_EARLY, since there is no ticket.
 */
KVP_EXPORT int kvp_prefetch(
	struct kvp_space *space, const struct kvp_ids *tokens, const struct kvp_warm_opts *opts);

/*
 * As kvp_payload(), of the copy on a device: `addr` where its memory is host memory and mapped here.
 * -ENOENT: no such block, or it does not lie there now; -EAGAIN: it does, in memory that the library is
 * mapping: again in a moment; -EOPNOTSUPP: it does, in memory of a GPU, which kvpool_cuda.h is for. Valid
 * until kvp_release(), or the moment of kvp_release_after().
 */
KVP_EXPORT int kvp_device_payload(const struct kvp_prefix *prefix, uint32_t i, uint32_t device,
	struct kvp_payload_info *ret_payload);

/* kvp_device_payloads(), kvp_cuda_slots(), kvp_cuda_addrs(): also those that a ticket of this client is filling */
#define KVP_DEVICE_PENDING 1u

/*
 * As kvp_payloads(), of copies on a device: ends before the first block that cannot be read there. flags: 0, or
 * KVP_DEVICE_PENDING: ends before the first that neither lies there nor has a place in a ticket that has not ended, see
 * kvp_ticket_placed(), or whose memory is not mapped here yet: again in a moment. Whether a block that it gives lies
 * there already, is not said.
 */
KVP_EXPORT int kvp_device_payloads(const struct kvp_prefix *prefix, uint32_t device, uint32_t first,
	uint32_t n, uint32_t flags, const void **ret_addrs);

/* ---- recomputation --------------------------------------------------------------------------- */

/*
 * What was evicted is known for a while by its token ids (`recipe_blocks` of kvpoold.yaml(5)), and an engine may
 * offer to compute it again when somebody wants it. Both sides: examples/remat.c.
 */
#define KVP_CLIENT_WANTS    8u    /* tickets of kvp_want() under way, of one client */
#define KVP_CLIENT_OFFERS   8u    /* spaces that one client offers to compute in */
#define KVP_WANT_BLOCKS_MAX 4096u /* missing, of one want */

#define KVP_WANT_AHEAD 1u /* nobody waits for it: after all that somebody waits for */

struct kvp_want_opts {
	size_t size;
	uint32_t flags;
	/*
	 * It is of no use later than this: what the caller would take to compute it, say. If nobody is likely to
	 * be so quick, the ticket ends at once. 0: a minute; at most an hour.
	 */
	uint32_t within_ms;
	uint32_t timeout_ms; /* for the question to be put */
};

/*
 * Wants what the daemon knows of a sequence to be cached: its longest chain of blocks that are cached or whose
 * token ids are kept. What lies on a device alone is loaded, what is known by its token ids is computed by an
 * engine that offers to, whichever is quicker, by what has been measured. Returns how many blocks that chain
 * has: 0: nothing is known of the sequence, and there is no ticket. opts may be NULL.
 *
 * kvp_ticket_wait() returns how many blocks from the beginning were cached when the ticket ended; match then.
 * *ret_why: 0: all of them; -ENODEV: nobody offers to compute in this space; -ETIME: it would take longer than
 * within_ms, or has taken longer than who computed it had said; -EAGAIN: KVP_CLIENT_WANTS are under way, too
 * many of the tenant's or no memory for it yet, or who computed it has gone and there is no other; -EDQUOT: what
 * the tenant's share has for wants, a 64th, is too little for so many missing blocks: want a shorter beginning, then the
 * rest, or have it given a larger share; -ENOENT: the token ids are not known
 * any more; -E2BIG: more than KVP_WANT_BLOCKS_MAX blocks are missing; -EOPNOTSUPP: this daemon does not know
 * of it; -EACCES, -ENOMEM. Nothing is kept in place by it.
 * Do not hold a claim on the chain: who computes it would wait for that.
 * -EAGAIN: as of kvp_warm(); -EOPNOTSUPP: a space of keys, or one with a salt, whose meaning only its engine
 * knows; -ESHUTDOWN; -EINVAL; -ENOMEM; -ECHILD.
 */
KVP_EXPORT int kvp_want(struct kvp_space *space, const struct kvp_ids *tokens,
	const struct kvp_want_opts *opts, struct kvp_ticket *ret_ticket);

/*
 * The offer stands during the calls only, for engines that compute for others when they have nothing else to do.
 * Without it, it stands from the first call on, and demands are counted on that come while one is computed.
 */
#define KVP_SERVE_IDLE 1u

struct kvp_serve_opts {
	size_t size;
	uint32_t flags;
	/*
	 * What the engine takes for n tokens at positions s to e of a sequence whose earlier tokens are cached: at
	 * most launch + n * token + n * (s + e) / 2 * position seconds, commits included. Who is not through
	 * by then loses the offer for 10 s, the next time for 20 s, and so on, and nobody waits any longer. Who says
	 * too much is not asked before it is measured: what demands took is what later ones are expected to.
	 */
	double launch_seconds;      /* at most 60 */
	double token_seconds;       /* 1 ps to 10 s */
	double position_seconds;    /* of a token and a position before it; at most 1 */
	uint32_t max_tokens;        /* the longest sequence that it computes; room in `tokens` */
	uint32_t tokens_per_second; /* that it may be asked for, on average; 0: any */
};

struct kvp_demand {
	size_t size;
	uint32_t n_tokens; /* of the sequence, in `tokens` */
	uint32_t first;    /* of them: cached up to there, to be computed from there on */
	uint32_t within_ms;
};

/*
 * Offers to compute missing blocks of the space, without a salt, and waits for a demand: tokens[0..n_tokens)
 * and what is to be computed of them. Computing is what an engine does with any prompt of these tokens: match
 * it, compute the rest, commit. The last block may be a partial one. The next call says that it is through.
 *
 * A demand that was over before anybody looked, met by others or of no use any more, is passed over.
 *
 * -ETIMEDOUT: no demand so far; without KVP_SERVE_IDLE the offer stands and may be asked at any time from then
 * on, so call again soon, or kvp_serve_end(). -ETIME: the offer is lost, and may be made again after
 * *ret_retry_ms (may be NULL): a demand took longer than was said, or three in a row came back undone.
 * -EAGAIN: the client offers in KVP_CLIENT_OFFERS spaces, or the tenant's clients in too many; -EOPNOTSUPP: a
 * space of keys or with a salt, or this daemon does not know of it; -ESHUTDOWN: no daemon now; -EINVAL; -ECHILD.
 * One thread at a time for each space.
 */
KVP_EXPORT int kvp_serve_remat(struct kvp_space *space, const struct kvp_serve_opts *opts,
	uint32_t timeout_ms, uint32_t *tokens, uint32_t *ret_retry_ms,
	struct kvp_demand *ret_demand);
/* The offer ends; a demand that was not met is given to others. Without a daemon there is none. */
KVP_EXPORT int kvp_serve_end(struct kvp_space *space);

/* ---- the rest -------------------------------------------------------------------------------- */

/* Returns when all that this client committed before is visible or refused. -ETIMEDOUT, -ESHUTDOWN. */
KVP_EXPORT int kvp_flush(struct kvp_client *client, uint32_t timeout_ms);

/*
 * Forgets the blocks of tokens[0..n) that no other cached sequence needs, deepest first; blocks
 * that are leased or pinned go when they are not. Returns how many blocks it asked for.
 */
KVP_EXPORT int kvp_delete(
	struct kvp_space *space, const uint32_t *tokens, size_t n, uint32_t timeout_ms);

struct kvp_counters {
	size_t size;
	uint64_t lookups; /* always hits + partial_hits + misses */
	uint64_t hits;    /* all tokens matched */
	uint64_t partial_hits;
	uint64_t misses; /* none */
	uint64_t tokens_asked;
	uint64_t tokens_matched;
	uint64_t unleased; /* matches answered without a lease */
	/* of the tenant: */
	uint64_t blocks;
	uint64_t payload_bytes;
	uint64_t evictions;
	uint64_t epoch; /* 0: not attached */
	uint32_t attached;
	uint32_t reattached; /* times a new daemon was joined */
	uint64_t
		timeouts; /* calls that the daemon left without an answer until their time was up */
	uint32_t stuck;   /* 1: the last of them found it silent, and it has not answered since */
	uint64_t decoded_blocks;  /* coded blocks that kvp_get() and kvp_fork() have decoded */
	uint64_t decode_failures; /* and those that they could not, see kvp_get() */
};

/* This client's counters since kvp_open(), and the tenant's. No system call. */
KVP_EXPORT int kvp_stats(struct kvp_client *client, struct kvp_counters *ret_counters);

#ifdef __cplusplus
}
#endif
#endif
