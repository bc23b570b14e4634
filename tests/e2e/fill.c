/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that stores prompts of a given size and says how much of them is really there: for tests
 * of limits and of memory. One command a line on standard input, one line of answer each:
 *
 *	put PROMPT BLOCKS	stores the prompt of that number: "THERE STORED"
 *	find PROMPT BLOCKS	"THERE"
 *
 * THERE: blocks of the prompt, from its beginning, that a match finds with the bytes that belong to
 * the prompt. STORED: what kvp_put() returned, in blocks, or a negative errno. A block takes
 * LAYERS * 16 KiB. Arguments: MODEL LAYERS.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/kvpool.h"

#define BLOCK_TOKENS 16u
#define DIM          128u
#define ROW_BYTES    (DIM * sizeof(float))
#define WAIT_MS      60000u

static void must(int64_t r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror((int)-r));
	exit(1);
}

/* Prompts share nothing. */
static uint32_t *prompt(uint32_t p, uint32_t n)
{
	uint32_t *tokens = calloc(n + 1, sizeof(*tokens));

	if (!tokens)
		must(-ENOMEM, "tokens");
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (p + 1) * 1000003u + i;
	return tokens;
}

static int mark(uint32_t p)
{
	return (int)(p % 255 + 1);
}

/* Keys and values of all layers are the same bytes. */
static int64_t put(struct kvp_space *space, uint32_t layers, uint32_t p, uint32_t blocks)
{
	const struct kvp_put_opts opts = { .size = sizeof(opts), .timeout_ms = WAIT_MS };
	struct kvp_view_plane *planes = calloc(layers, sizeof(*planes));
	const struct kvp_view view = { .size = sizeof(view), .planes = planes };
	uint32_t n = blocks * BLOCK_TOKENS, *tokens = prompt(p, n);
	float *rows = malloc((size_t)n * ROW_BYTES + 1);
	int64_t r;

	if (!planes || !rows)
		must(-ENOMEM, "planes");
	memset(rows, mark(p), (size_t)n * ROW_BYTES);
	for (uint32_t i = 0; i < layers; i++)
		planes[i] = (struct kvp_view_plane){
			.k = rows,
			.v = rows,
			.k_token_stride = ROW_BYTES,
			.k_head_stride = ROW_BYTES,
			.v_token_stride = ROW_BYTES,
			.v_head_stride = ROW_BYTES,
		};
	r = kvp_put(space, tokens, n, 0, &view, &opts, NULL);
	free(rows);
	free(planes);
	free(tokens);
	return r < 0 ? r : r / BLOCK_TOKENS;
}

static uint32_t find_once(struct kvp_space *space, uint32_t p, uint32_t blocks)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t n = blocks * BLOCK_TOKENS, *tokens = prompt(p, n);
	struct kvp_prefix *match;

	must(kvp_match(space, tokens, n, NULL, &match), "match");
	must(kvp_match_info(match, &info), "match info");
	for (uint32_t i = 0; i < info.n_blocks; i++) {
		struct kvp_payload_info payload = { .size = sizeof(payload) };
		const unsigned char *at;

		must(kvp_payload(match, i, &payload), "payload");
		at = payload.addr;
		if (at[0] != mark(p) || at[payload.bytes / 2] != mark(p) ||
			at[payload.bytes - 1] != mark(p)) {
			fprintf(stderr, "prompt %u: block %u holds other bytes\n", p, i);
			exit(1);
		}
	}
	kvp_release(match);
	free(tokens);
	return info.n_blocks;
}

/* A block in an extent that is not mapped here yet is a miss for a moment: then it is looked for again. */
static uint32_t find(struct kvp_space *space, uint32_t p, uint32_t blocks)
{
	const struct timespec pause = { .tv_nsec = 5000000 };
	uint32_t best = 0;

	for (uint32_t i = 0; i < 200 && best < blocks; i++) {
		uint32_t n = find_once(space, p, blocks);

		best = n > best ? n : best;
		if (best < blocks)
			nanosleep(&pause, NULL);
	}
	return best;
}

int main(int argc, char **argv)
{
	const struct kvp_open_opts open_opts = { .size = sizeof(open_opts), .name = "fill" };
	uint32_t n_layers = argc > 2 ? (uint32_t)atoi(argv[2]) : 1, p, blocks;
	struct kvp_layer *layers = calloc(n_layers, sizeof(*layers));
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = argc > 1 ? argv[1] : "fill",
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = BLOCK_TOKENS,
		.n_layers = n_layers,
		.layers = layers,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	char word[8];

	if (!layers)
		must(-ENOMEM, "layers");
	for (uint32_t i = 0; i < n_layers; i++)
		layers[i] =
			(struct kvp_layer){ .index = i, .kv_heads = 1, .k_dim = DIM, .v_dim = DIM };
	must(kvp_open(&open_opts, &client), "open");
	must(kvp_space_open(client, &desc, WAIT_MS, &space), "space");
	puts("ready");
	fflush(stdout);
	while (scanf("%7s %" SCNu32 " %" SCNu32, word, &p, &blocks) == 3) {
		int64_t stored = 0;
		bool puts_it = !strcmp(word, "put");

		if (puts_it) {
			stored = put(space, n_layers, p, blocks);
			must(kvp_flush(client, WAIT_MS), "flush");
		}
		printf("%" PRIu32, find(space, p, blocks));
		if (puts_it)
			printf(" %" PRId64, stored);
		putchar('\n');
		fflush(stdout);
	}
	kvp_space_close(space);
	kvp_close(client);
	free(layers);
	return 0;
}
