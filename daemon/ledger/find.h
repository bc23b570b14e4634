/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block by its key, or by the first digits of it: these are looked for among all blocks, a portion
 * at a time, the whole key in the index.
 */
#ifndef KVPD_FIND_H
#define KVPD_FIND_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_types.h"

struct kvpd_request;
struct kvpd_tenant;

#define KVPD_KEY_TEXT 33u

struct kvpd_find {
	bool begun;
	bool whole; /* all digits of the key are known */
	struct kvp_key want, mask;
	struct kvp_key key; /* the last that begins so */
	uint32_t found;     /* how many do */
};

void kvpd_key_text(struct kvp_key key, char out[KVPD_KEY_TEXT]);
/*
 * In a step: the block that `key` of the request names. 0; -EINPROGRESS: it was not yet found;
 * else the error, which has been said.
 */
int kvpd_find_block(struct kvpd_request *q, struct kvpd_tenant **ret_tenant, uint32_t *ret_id);

#endif
