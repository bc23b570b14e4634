/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to token ids and back. Two kinds:
 *  - bytes: a token is a byte, BOS and EOS follow at 256 and 257. Needs no file.
 *  - merges: a vocabulary with scores in the llama2.c layout (int32 longest token; then per token
 *    float32 score, int32 length, bytes; little-endian). Ids 0..2 are unknown, BOS, EOS, ids
 *    3..258 the raw bytes. Encoding starts from a space and the text's UTF-8 characters (bytes
 *    where a character is not in the vocabulary) and merges the best-scoring neighbours until none
 *    are left; the leftmost wins among equals.
 * Read-only after opening; any number of threads may use one.
 */
#ifndef KVR_TOKENIZER_H
#define KVR_TOKENIZER_H

#include "tools/kvrun/kvr_config.h"
#include "tools/kvrun/kvr_error.h"

#include <stddef.h>
#include <stdint.h>

struct kvr_tokenizer;

/*
 * The tokenizer for a model of `vocab` tokens. `path` NULL asks for the byte tokenizer, which fits
 * a vocabulary of 256..264 tokens. -EINVAL with a message when file and vocabulary do not fit or
 * the file is damaged; errnos of reading; -ENOMEM.
 */
int kvr_tokenizer_open(const char *path, uint32_t vocab, struct kvr_error *err,
	struct kvr_tokenizer **ret_tokenizer);

/* Accepts NULL; returns NULL. */
struct kvr_tokenizer *kvr_tokenizer_free(struct kvr_tokenizer *tokenizer);

/*
 * Encodes `bytes` bytes of `text` behind one BOS. free() the result. Time grows as n log n.
 * -EFBIG when the text is longer than KVR_TEXT_MAX, -ENOMEM.
 */
#define KVR_TEXT_MAX (16u << 20)
int kvr_encode(const struct kvr_tokenizer *tokenizer, uint32_t bos, const char *text, size_t bytes,
	uint32_t **ret_tokens, size_t *ret_count);

/*
 * The bytes of one token, empty for BOS, EOS and ids beyond the vocabulary. `prev` is the token
 * before it: a leading space right after BOS is the encoder's own and left out. The pointer lives
 * as long as the tokenizer.
 */
const char *kvr_decode(
	const struct kvr_tokenizer *tokenizer, uint32_t prev, uint32_t token, size_t *ret_bytes);

#endif
