/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds (dp_world.h) whose spaces may have a floor: blocks of 16 tokens and 16 KiB, contents that follow
 * from a seed, and the question whether a payload is what some way down the widths makes of these.
 */
#ifndef KVP_TEST_CODED_H
#define KVP_TEST_CODED_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "payload/kvp_payload.h"
#include "tests/daemon/ledger/dp_world.h"

#define MIB   (UINT64_C(1) << 20)
#define T     16u
#define SHARE (12 * MIB)
#define BLOCK 16384u /* bytes of a native one */

/* Two layers of two heads, 64 channels. floor: a pair of codecs, or NULL. */
struct kvp_space_canon coded_model(const char *name, const char *floor);
uint32_t coded_open(struct dp_client *c, const struct kvp_space_canon *canon);
/* A client of a tenant with this least_bits, SHARE and room for 4,096 blocks. */
struct dp_client *coded_world(struct dp_world *w, uint32_t least_bits);

void coded_tokens(uint32_t seed, kvp_token *out);
void coded_native(uint32_t seed, uint8_t *out);
int coded_put(struct dp_client *c, uint32_t space, struct dp_ref parent, uint32_t seed, uint32_t n,
	struct dp_block *ret);
/* Blocks that are first of their chains. */
void coded_put_many(struct dp_client *c, uint32_t space, uint32_t first, uint32_t n);
/* Fails the test if the payload of the hit is not what its codecs make of the seed's. */
void coded_right(struct dp_client *c, const struct kvp_space_canon *canon, const struct kvp_hit *h,
	uint32_t seed);

struct seen {
	uint32_t found, width[KVP_PAYLOAD_WIDTHS];
};

/* Looks all of these up, each the first of a chain, and compares every byte. */
struct seen coded_look(struct dp_client *c, uint32_t space, const struct kvp_space_canon *canon,
	uint32_t first, uint32_t n);

uint32_t coded_width(struct dp_client *c, const struct dp_block *b);
bool coded_there(struct dp_client *c, const struct dp_block *b);

/* space-set of the space that is called so, with further members; its status. */
int coded_set(struct dp_world *w, const char *name, const char *members, json_t **ret);
/* The same; fails the test if that fails. */
void coded_rule(struct dp_world *w, const char *name, const char *members);
struct kvpd_space_figures coded_figures(struct dp_world *w, uint32_t space);
bool coded_within(struct dp_world *w, uint32_t space, double budget);
void coded_await_within(struct dp_world *w, uint32_t space, double budget);
/* For a while, in which rounds have come to an end unless the machine is very busy: then it proves less. */
void coded_await_rest(struct dp_world *w);

/* cmocka_run_group_tests(), with kernels. */
int coded_run(const char *name, const struct CMUnitTest *tests, size_t n);

#endif
