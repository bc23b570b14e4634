/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded workloads in the Mooncake format, for users who have no trace at hand. */
#ifndef KVREPLAY_GENERATE_H
#define KVREPLAY_GENERATE_H

#include <stdint.h>
#include <stdio.h>

/*
 * The share of requests that find, in an infinite cache, all full blocks of an earlier prompt
 * ("exact") + the share that find a part of them ("partial"); the others begin with a new block.
 * chat: turns of conversations, .95 + .03. rag: questions about documents, .60 + .30. batch: one
 * template with changing ends, 1.00 after the first. mixed: chat, rag and batch, .50 + .30.
 */
struct generate_options {
	const char *kind;
	uint32_t requests; /* 1 .. 2^26 */
	double rate;       /* requests per second, > 0; Poisson arrivals */
	uint64_t seed;
};

/* -EINVAL: unknown kind or a number out of range. -ENOMEM, -EIO. */
int generate(const struct generate_options *o, FILE *out);

#endif
