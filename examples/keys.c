/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache that names its blocks by hashes of its own, as LMCache, SGLang's HiCache or vLLM's tiers do:
 * which of these are there, read in place; the others stored. Run it twice: the second run finds what
 * the first one left.
 *
 *	cc keys.c $(pkg-config --cflags --libs kvpool) && ./a.out
 */
#include <errno.h>
#include <inttypes.h>
#include <kvpool.h>
#include <stdio.h>
#include <string.h>

#define KEYS  40
#define KEY   32   /* bytes: a SHA-256, say */
#define BLOCK 8192 /* bytes */

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/* Stands for the engine's hash of what a block holds. */
static void name(unsigned block, uint8_t *key)
{
	memset(key, (int)block + 1, KEY);
}

static int run(struct kvp_space *space)
{
	static uint8_t keys[KEYS * KEY], blocks[KEYS][BLOCK];
	struct kvp_payload_info p = { .size = sizeof(p) };
	const void *src[KEYS];
	struct kvp_prefix *found;
	uint32_t retry_ms = 0;
	uint64_t there;
	int64_t stored;
	int n;

	for (unsigned i = 0; i < KEYS; i++) {
		name(i, keys + i * KEY);
		memset(blocks[i], (int)i, BLOCK);
		src[i] = blocks[i];
	}
	n = kvp_match_keys(space, keys, KEYS, 0, &there, &found);
	if (n < 0)
		return fail("kvp_match_keys", n);
	printf("%d of %d blocks were there: %010" PRIx64 "\n", n, KEYS, there);
	for (unsigned i = 0; i < KEYS; i++) {
		if (!(there >> i & 1))
			continue;
		/* Leased: the bytes stay where they are until the release. */
		if (kvp_payload(found, i, &p) < 0 || memcmp(p.addr, blocks[i], BLOCK) != 0)
			return fail("block", -EBADMSG);
	}
	kvp_release(found);
	stored = kvp_put_keys(space, keys, KEYS, src, 1000, &retry_ms);
	if (stored < 0)
		return fail("kvp_put_keys", (long)stored);
	if (stored < KEYS)
		printf("room for %d only; more in %u ms\n", (int)stored, retry_ms);
	return 0;
}

int main(void)
{
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = "example",
		.layout = KVP_LAYOUT_OPAQUE,
		.layout_name = "example pages, version 1",
		.block_bytes = BLOCK,
		.key_bytes = KEY,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	int r = kvp_open(NULL, &client);

	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &desc, KVP_DEFAULT_TIMEOUT, &space);
	if (r < 0) {
		kvp_close(client);
		return fail("kvp_space_open", r);
	}
	r = run(space);
	kvp_space_close(space);
	kvp_close(client);
	return r;
}
