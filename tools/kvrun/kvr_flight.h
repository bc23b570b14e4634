/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single flight: engines that are asked for the same prompt at the same time compute it once. One of them has
 * the claim on what is missing, the others take its blocks as they come. For stores that call libkvpool.
 */
#ifndef KVR_FLIGHT_H
#define KVR_FLIGHT_H

#include "libclient/kvpool.h"

#include <stdint.h>

struct kvr_flight_opts {
	struct kvp_space *space;
	uint32_t flags;  /* of kvp_match(), beside KVP_MATCH_CLAIM */
	uint32_t device; /* of KVP_MATCH_DEVICE */
	int claim; /* what is missing will be published: claim it, or wait for who has the claim */
	int attached; /* to the daemon, now: without it nothing arrives */
};

/*
 * The longest prefix of the tokens that is cached, `*ret_match`, after waiting for whoever computes more of
 * it. `*ret_claim`: the right to compute what is missing, given up by kvp_release(), or NULL. `ret_info->size`
 * must be set. Errors as kvp_match(), and nothing is returned then.
 */
int kvr_flight_match(const struct kvr_flight_opts *opts, const uint32_t *tokens, uint32_t n,
	struct kvp_prefix **ret_match, struct kvp_prefix **ret_claim,
	struct kvp_prefix_info *ret_info);

#endif
