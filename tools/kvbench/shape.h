/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shape of a model's KV cache: from its config.json as Hugging Face has it, or by the name of a
 * well-known model. Only what the cache's size depends on.
 */
#ifndef KVBENCH_SHAPE_H
#define KVBENCH_SHAPE_H

#include <stddef.h>
#include <stdint.h>

struct shape {
	char name[128];
	uint32_t layers; /* that keep keys and values */
	uint32_t heads;  /* of keys and values, not of queries */
	uint32_t k_dim;  /* channels of a head */
	uint32_t v_dim;  /* 0: one latent for both (MLA) */
	uint32_t dtype;  /* KVP_DTYPE_*, of the model's own */
};

/*
 * what: the path of a config.json, or of the folder that it is in, or a name of shape_name(). 0;
 * -ENOENT: neither a file nor a name, -EINVAL: not understood; *ret_error says what (a buffer of the
 * caller's).
 */
int shape_find(const char *what, char *ret_error, size_t error_bytes, struct shape *ret_shape);
/* The names there are; NULL: no more. */
const char *shape_name(size_t i);

#endif
