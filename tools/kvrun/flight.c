/* SPDX-License-Identifier: Apache-2.0 */
/* Matching, and following whoever has the claim. */
#include "tools/kvrun/kvr_flight.h"

#include <errno.h>
#include <time.h>

/*
 * How long a sequence stands still for others before it computes on its own: a claimant that is alive
 * commits its next block far sooner.
 */
#define WAIT_CLAIMANT_MS 5000u
#define WAIT_ANSWER_MS   250u
#define ARRIVAL_PAUSE_NS 500000
#define ARRIVAL_PAUSES   40

static int match(const struct kvr_flight_opts *o, const uint32_t *tokens, uint32_t n,
	uint32_t flags, struct kvp_prefix **ret_match, struct kvp_prefix_info *ret_info)
{
	struct kvp_match_opts opts = { .size = sizeof(opts),
		.flags = o->flags | flags,
		.device = o->device,
		.timeout_ms = WAIT_ANSWER_MS };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *m;
	int r = kvp_match(o->space, tokens, n, &opts, &m);

	if (r < 0)
		return r;
	r = kvp_match_info(m, &info);
	if (r < 0) {
		kvp_release(m);
		return r;
	}
	*ret_match = m;
	*ret_info = info;
	return 0;
}

/*
 * Blocks are missing, yet the claim is neither ours nor somebody else's: the next block is there by
 * now, in memory that the library is about to map. That takes it about a millisecond.
 */
static int arriving(const struct kvr_flight_opts *o, uint32_t n, const struct kvp_prefix_info *info)
{
	return o->claim && o->attached && info->n_tokens < n &&
	       !(info->flags & (KVP_MATCHED_CLAIMED | KVP_MATCHED_PENDING));
}

/* A round that found no more than the one before costs patience, so this ends. */
static int follow(const struct kvr_flight_opts *o, const uint32_t *tokens, uint32_t n,
	struct kvp_prefix **ret_match, struct kvp_prefix_info *ret_info)
{
	static const struct timespec pause = { .tv_nsec = ARRIVAL_PAUSE_NS };
	uint32_t flags = o->claim ? KVP_MATCH_CLAIM : 0, before;
	int r = match(o, tokens, n, flags, ret_match, ret_info);
	int pauses = ARRIVAL_PAUSES, waits = 2;

	while (r == 0) {
		if ((ret_info->flags & KVP_MATCHED_PENDING) && waits > 0) {
			int e = kvp_wait(*ret_match, WAIT_CLAIMANT_MS);

			if (e < 0 && e != -EAGAIN)
				break;
			waits--;
		} else if (arriving(o, n, ret_info) && pauses > 0) {
			nanosleep(&pause, NULL);
			pauses--;
		} else {
			break;
		}
		before = ret_info->n_blocks;
		kvp_release(*ret_match);
		*ret_match = NULL;
		r = match(o, tokens, n, flags, ret_match, ret_info);
		if (r == 0 && ret_info->n_blocks > before)
			waits = 2;
	}
	return r;
}

int kvr_flight_match(const struct kvr_flight_opts *opts, const uint32_t *tokens, uint32_t n,
	struct kvp_prefix **ret_match, struct kvp_prefix **ret_claim,
	struct kvp_prefix_info *ret_info)
{
	struct kvp_prefix *found = NULL, *claim = NULL;
	int r = follow(opts, tokens, n, &found, ret_info);

	/* The claim is given up earlier than the blocks that were found: it needs a handle of its own. */
	if (r == 0 && (ret_info->flags & KVP_MATCHED_CLAIMED)) {
		claim = found;
		found = NULL;
		r = match(opts, tokens, n, KVP_MATCH_NO_TOUCH, &found, ret_info);
	}
	if (r < 0) {
		kvp_release(claim);
		return r;
	}
	*ret_match = found;
	*ret_claim = claim;
	return 0;
}
