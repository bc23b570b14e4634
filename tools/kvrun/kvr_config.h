/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine must know of a Llama-family model before it reads a weight. A configuration that
 * came out of kvr_config_parse or kvr_config_check is inside the bounds below, so that no product
 * of its fields that the engine forms can overflow 64 bits.
 */
#ifndef KVR_CONFIG_H
#define KVR_CONFIG_H

#include "tools/kvrun/kvr_error.h"
#include "tools/kvrun/kvr_half.h"

#include <stddef.h>
#include <stdint.h>

#define KVR_MAX_LAYERS   256u
#define KVR_MAX_HIDDEN   65536u
#define KVR_MAX_FFN      262144u
#define KVR_MAX_HEADS    1024u
#define KVR_MAX_HEAD_DIM 1024u
#define KVR_MAX_VOCAB    1048576u
#define KVR_MAX_CONTEXT  1048576u
#define KVR_MAX_EOS      8u

#define KVR_CONFIG_MAX_BYTES (1u << 20) /* of a config.json */

/* Which two channels of a head RoPE turns together. */
enum kvr_rope_pairs {
	KVR_ROPE_HALF_SPLIT, /* i and i + head_dim/2 (Hugging Face) */
	KVR_ROPE_NEIGHBOURS, /* 2i and 2i + 1 (llama2.c) */
};

struct kvr_config {
	uint32_t layers;
	uint32_t hidden;
	uint32_t ffn;
	uint32_t heads; /* of queries; a multiple of kv_heads */
	uint32_t kv_heads;
	uint32_t head_dim; /* even; heads * head_dim need not be hidden */
	uint32_t vocab;
	uint32_t context; /* most tokens of prompt and continuation together */
	float norm_eps;
	double rope_theta;
	enum kvr_rope_pairs rope_pairs;
	int tied; /* the classifier is the embedding */
	uint32_t bos;
	uint32_t eos[KVR_MAX_EOS]; /* generation ends at any of these */
	uint32_t n_eos;
	enum kvr_dtype
		dtype; /* of the weights as published; also the default for keys and values */
};

/*
 * Reads a config.json of the Hugging Face layout. A member that would change the arithmetic and is
 * not supported (another architecture or activation, RoPE scaling, biases, quantised weights) is
 * refused by name, never ignored. -EINVAL, -ENOTSUP, both with a message.
 */
int kvr_config_parse(
	const char *json, size_t bytes, struct kvr_error *err, struct kvr_config *ret_config);

/* Checks the bounds and relations stated above. -EINVAL with a message. */
int kvr_config_check(const struct kvr_config *config, struct kvr_error *err);

#endif
