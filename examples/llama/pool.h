/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama.cpp's KV cache of a sequence out of kvpool, and into it.
 *
 * A prompt goes through three calls: kvl_restore() fills the sequence with the longest beginning that
 * any process of the tenant has computed, the caller decodes what is left, kvl_store() hands what is
 * new to everybody. A pool is used by the thread that uses the context.
 *
 * Without a daemon, or when it stops, hangs or comes back, nothing is restored and nothing stored; no
 * call fails for it, nor waits longer than the timeout.
 */
#ifndef KVL_POOL_H
#define KVL_POOL_H

#include <kvpool.h>
#include <llama.h>

struct kvl_pool;

struct kvl_opts {
	const char *socket;     /* NULL: $KVPOOL_SOCKET, else the system's daemon */
	const char *model_file; /* its size and time of change are part of what names the weights */
	const char *name;       /* of the model; NULL: the last part of model_file */
	const char *adapter;    /* names what was attached to the context; NULL: nothing */
	uint32_t block_tokens;  /* 0: 32; what does not fill one is decoded again */
	uint32_t timeout_ms; /* that a store waits for room, and a hanging daemon costs; 0: 200 */
};

/* Bytes that hold every reason of kvl_open(). */
#define KVL_WHY 160u

/*
 * params: what the context was made with. The context must be empty: three tokens are decoded in
 * sequence 0, to see what this llama.cpp writes, and taken away again. -EOPNOTSUPP: the context's
 * state cannot be shared, and `why` says what to change; -EPROTO: this llama.cpp writes another
 * format; other errors are those of kvp_open() and kvp_space_open(), of which a missing daemon is none.
 */
int kvl_open(struct llama_context *ctx, const struct llama_context_params *params,
	const struct kvl_opts *opts, char why[KVL_WHY], struct kvl_pool **ret_pool);

/* Ends what it has begun to store. Before llama_free(). Returns NULL; NULL is harmless. */
struct kvl_pool *kvl_close(struct kvl_pool *pool);

/*
 * Replaces the sequence by the longest cached prefix of tokens[0..n - 1): the last token is left to
 * be decoded. Returns how many tokens the sequence has then, a multiple of block_tokens; 0: nothing,
 * and the sequence is empty. -EINVAL: a token is below 0; -ENOMEM.
 */
int64_t kvl_restore(struct kvl_pool *pool, llama_seq_id seq, const llama_token *tokens, uint32_t n);

/*
 * Stores whole blocks of the sequence, whose positions 0 to n - 1 are these tokens as they were
 * decoded: not shifted, nor copied together. Returns how many leading tokens are cached or handed over;
 * 0 also if there was no room, or no daemon. -EINVAL: a token is below 0, or the sequence lacks a
 * position; -EPROTO; -ENOMEM.
 */
int64_t kvl_store(struct kvl_pool *pool, llama_seq_id seq, const llama_token *tokens, uint32_t n);

/* Returns when all that was stored is visible to others, or refused; see kvp_flush(). */
int kvl_flush(struct kvl_pool *pool, uint32_t timeout_ms);

#endif
