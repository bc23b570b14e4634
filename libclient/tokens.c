/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token ids as callers have them. Those of 32 bits are used where they lie; those of 64 bits are
 * narrowed a few blocks at a time.
 */
#include "libclient/match.h"

int tokens_take(const struct kvp_ids *ids, struct tokens *ret_tokens)
{
	struct tokens tokens = { .n = (uint32_t)ids->n };
	uint64_t high = 0; /* all bits that a token id does not have */

	if ((ids->n && !ids->ids) || ids->n > MAX_TOKENS || ids->type > KVP_IDS_I64)
		return -EINVAL;
	if (ids->type == KVP_IDS_I64) {
		tokens.wide = ids->ids;
		for (size_t i = 0; i < ids->n; i++)
			high |= (uint64_t)tokens.wide[i] >> 32;
	} else {
		tokens.plain = ids->ids;
		for (size_t i = 0; ids->type == KVP_IDS_I32 && i < ids->n; i++)
			high |= tokens.plain[i] >> 31;
	}
	if (high)
		return -EINVAL;
	*ret_tokens = tokens;
	return 0;
}

const kvp_token *tokens_narrow(
	const struct tokens *tokens, uint32_t at, uint32_t n, kvp_token *room)
{
	for (uint32_t i = 0; i < n; i++)
		room[i] = (kvp_token)tokens->wide[at + i];
	return room;
}
