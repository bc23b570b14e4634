/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work that budget.py counts instructions of: kvp_find() over a catalog whose chains lie in
 * order, or (argument "scattered") anywhere. Prints how many blocks were matched.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/shm/toy_ledger.h"

#define BT     64u
#define CHAIN  32u
#define CHAINS 200u
#define ROUNDS 2000u

static void shuffle_ids(struct toy *t, uint64_t *rng)
{
	for (uint32_t i = t->n_free - 1; i; i--) {
		uint32_t k = (uint32_t)(toy_random(rng) % (i + 1));
		kvp_block_id id = t->free_ids[i];

		t->free_ids[i] = t->free_ids[k];
		t->free_ids[k] = id;
	}
}

int main(int argc, char **argv)
{
	const uint32_t n = CHAIN * BT;
	kvp_token *tokens = malloc(sizeof(*tokens) * CHAINS * n);
	struct kvp_hit hits[CHAIN];
	struct kvp_found found;
	uint64_t rng = 1, matched = 0;
	struct toy t;

	if (!tokens)
		return 1;
	toy_init(&t, CHAINS * CHAIN, BT, true);
	if (argc > 1 && !strcmp(argv[1], "scattered"))
		shuffle_ids(&t, &rng);
	for (uint32_t i = 0; i < CHAINS * n; i++)
		tokens[i] = (kvp_token)toy_random(&rng) & 0x1ffff;
	for (uint32_t c = 0; c < CHAINS; c++) {
		kvp_block_id parent = KVP_BLOCK_NONE;

		for (uint32_t b = 0; b < CHAIN; b++)
			if (toy_insert(&t, parent, tokens + c * n + b * BT, BT,
				    (struct kvp_key){ 0, 0 }, 0, &parent) < 0)
				return 1;
	}
	for (uint32_t i = 0; i < ROUNDS; i++) {
		kvp_find(&t.v, 0, tokens + toy_random(&rng) % CHAINS * n, n, 0, KVP_TIERS_DRAM,
			hits, CHAIN, &found);
		matched += found.n_hits;
	}
	printf("%llu\n", (unsigned long long)matched);
	toy_fini(&t);
	free(tokens);
	return matched == (uint64_t)ROUNDS * CHAIN ? 0 : 1;
}
