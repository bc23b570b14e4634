/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvpool_client SOCKET: what tests/peers/run measures of kvpool, in C. A line of standard input is an operation
 * and the number of the first of its 30 keys; the answer is how many blocks it was done for, and nanoseconds.
 */
#include "libclient/kvpool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCKS 30u
#define BYTES  (512u << 10)
#define KEY    32u
#define TRIES  1000u

static uint8_t keys[BLOCKS * KEY + 1], data[BYTES];

static int there(struct kvp_space *space)
{
	uint64_t found;

	return kvp_match_keys(space, keys, BLOCKS, KVP_MATCH_NO_TOUCH, &found, NULL);
}

/* The blocks where they lie, copied one after another if there is somewhere to. */
static int read_blocks(struct kvp_space *space, uint8_t *into)
{
	const void *at[BLOCKS];
	struct kvp_prefix *prefix;
	int n = kvp_match_keys(space, keys, BLOCKS, 0, NULL, &prefix);

	/* What lies in memory that is new is missing until it is mapped here. */
	for (unsigned i = 0; i < TRIES && n >= 0 && n < (int)BLOCKS; i++) {
		kvp_release(prefix);
		n = kvp_match_keys(space, keys, BLOCKS, 0, NULL, &prefix);
	}
	if (n < 0)
		return n;
	n = kvp_payloads(prefix, 0, BLOCKS, at);
	for (int i = 0; into && i < n; i++)
		memcpy(into + (size_t)i * BYTES, at[i], BYTES);
	kvp_release(prefix);
	return n;
}

static int64_t store(struct kvp_client *client, struct kvp_space *space)
{
	const void *src[BLOCKS];
	int64_t n;
	int r;

	for (unsigned i = 0; i < BLOCKS; i++)
		src[i] = data;
	n = kvp_put_keys(space, keys, BLOCKS, src, 30000, NULL);
	r = kvp_flush(client, 30000);
	return r < 0 ? r : n;
}

static int serve(struct kvp_client *client, struct kvp_space *space, uint8_t *into)
{
	struct timespec a, b;
	unsigned first;
	char op[16];
	int64_t n;

	while (scanf("%15s %u", op, &first) == 2) {
		for (unsigned i = 0; i < BLOCKS; i++)
			snprintf((char *)keys + (size_t)i * KEY, KEY + 1, "%032u", first + i);
		clock_gettime(CLOCK_MONOTONIC, &a);
		if (!strcmp(op, "lookup"))
			n = there(space);
		else if (!strcmp(op, "store"))
			n = store(client, space);
		else
			n = read_blocks(space, strcmp(op, "copy") ? NULL : into);
		clock_gettime(CLOCK_MONOTONIC, &b);
		for (unsigned i = 0; !strcmp(op, "copy") && i < BLOCKS; i++)
			if (memcmp(into + (size_t)i * BYTES, data, BYTES) != 0)
				n = -1;
		printf("%" PRId64 " %lld\n", n,
			(b.tv_sec - a.tv_sec) * 1000000000LL + (b.tv_nsec - a.tv_nsec));
		fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct kvp_open_opts opts = { .size = sizeof(opts), .socket = argv[1], .name = "peers" };
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = "peers in C",
		.layout = KVP_LAYOUT_OPAQUE,
		.layout_name = "bytes",
		.block_bytes = BYTES,
		.key_bytes = KEY };
	uint8_t *into = malloc((size_t)BLOCKS * BYTES);
	struct kvp_client *client;
	struct kvp_space *space;
	int r;

	if (argc != 2 || !into)
		return 2;
	for (unsigned i = 0; i < BYTES; i++)
		data[i] = (uint8_t)(i * 7 + i / 251);
	memset(into, 1, (size_t)BLOCKS * BYTES);
	r = kvp_open(&opts, &client);
	if (r == 0) {
		r = kvp_space_open(client, &desc, 30000, &space);
		if (r == 0) {
			r = serve(client, space, into);
			kvp_space_close(space);
		}
		kvp_close(client);
	}
	if (r < 0)
		fprintf(stderr, "kvpool_client: %s\n", strerror(-r));
	free(into);
	return r < 0;
}
