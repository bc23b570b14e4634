/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token ids as callers have them. Those of 32 bits are used where they lie; those of 64 bits are
 * narrowed a few blocks at a time.
 */
#include "libclient/match.h"

int tokens_take(const struct kvp_ids *ids, struct tokens *ret_tokens)
{
	const kvp_token *plain = NULL;
	const int64_t *wide = NULL;
	uint64_t high = 0; /* all bits that a token id does not have */

	if ((ids->n && !ids->ids) || ids->n > MAX_TOKENS || ids->type > KVP_IDS_I64)
		return -EINVAL;
	if (ids->type == KVP_IDS_I64) {
		wide = ids->ids;
		for (size_t i = 0; i < ids->n; i++)
			high |= (uint64_t)wide[i] >> 32;
	} else {
		plain = ids->ids;
		for (size_t i = 0; ids->type == KVP_IDS_I32 && i < ids->n; i++)
			high |= plain[i] >> 31;
	}
	if (high)
		return -EINVAL;
	ret_tokens->n = (uint32_t)ids->n;
	ret_tokens->plain = plain;
	ret_tokens->wide = wide;
	return 0;
}

const kvp_token *tokens_narrow(
	const struct tokens *tokens, uint32_t at, uint32_t n, kvp_token *room)
{
	for (uint32_t i = 0; i < n; i++)
		room[i] = (kvp_token)tokens->wide[at + i];
	return room;
}
