/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sequence of 1,000,000 tokens beside a real kvpoold that has no room for it natively: it loses precision
 * and no block, is found whole, and reads as what its codecs make of what was stored.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kvp_codec.h"
#include "tests/libclient/live.h"

#define TOKENS 1000000u
#define SIZE   T /* tokens of a block */
#define WHOLE  (TOKENS / SIZE)
#define DIM    32u
#define ROW    (DIM * 2u) /* bytes: fp16 */
#define PLANE  (SIZE * ROW)
#define PAGES  7u /* of KV, which the sequence repeats */
#define PIECE  (512 * SIZE)

static struct kvp_kernels *kernels;
static uint32_t tokens[TOKENS];
static _Alignas(64) uint16_t pages[PAGES][2][PLANE / 2]; /* [page][K,V][token][dim] */

static struct kvp_space *open_space(struct kvp_client *c)
{
	static const struct kvp_layer layer = { 0, 1, 0, DIM, DIM };
	struct kvp_space_desc d = { .size = sizeof(d),
		.model = "million",
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = SIZE,
		.n_layers = 1,
		.layers = &layer,
		.floor_k = KVP_CODEC_TQ4,
		.floor_v = KVP_CODEC_TQ4 };
	struct kvp_space *s;

	EQUAL(kvp_space_open(c, &d, WAIT_MS, &s), 0);
	return s;
}

/* Halves between 1/2 and 2 of both signs. */
static void fill_all(void)
{
	uint64_t x = 1;
	uint16_t *v = pages[0][0];

	for (uint32_t i = 0; i < sizeof(pages) / 2; i++) {
		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		v[i] = (uint16_t)(0x3800 + (x >> 40 & 0x7ff) + (x >> 60 & 1) * 0x8000);
	}
	for (uint32_t i = 0; i < TOKENS; i++)
		tokens[i] = i * UINT32_C(2654435761) >> 12;
}

/* Tokens from `from`, a multiple of SIZE, on: block i is page i % PAGES. */
static int64_t put_piece(struct kvp_space *s, uint32_t from, uint32_t n)
{
	const struct kvp_put_opts opts = {
		.size = sizeof(opts), .flags = KVP_PUT_PARTIAL, .timeout_ms = WAIT_MS
	};
	struct kvp_view_plane plane = { .k = pages[0][0],
		.v = pages[0][1],
		.k_page_stride = sizeof(pages[0]),
		.v_page_stride = sizeof(pages[0]),
		.k_token_stride = ROW,
		.v_token_stride = ROW,
		.k_head_stride = ROW,
		.v_head_stride = ROW };
	uint32_t table[PIECE / SIZE], retry_ms = 0;
	struct kvp_view v = { .size = sizeof(v),
		.planes = &plane,
		.page_tokens = SIZE,
		.pool_pages = PAGES,
		.pages = { table, PIECE / SIZE, KVP_IDS_U32 } };
	int64_t r;

	for (uint32_t i = 0; i < PIECE / SIZE; i++)
		table[i] = (from / SIZE + i) % PAGES;
	r = kvp_put(s, tokens, from + n, from, &v, &opts, &retry_ms);
	if (r < (int64_t)n)
		usleep(1000 * (retry_ms ? retry_ms : 1));
	return r == -EAGAIN ? 0 : r;
}

static void put_all(struct kvp_space *s)
{
	uint32_t at = 0;

	for (uint32_t tries = 0; at < TOKENS; tries++) {
		uint32_t n = TOKENS - at < PIECE ? TOKENS - at : PIECE;
		int64_t r = put_piece(s, at, n);

		CHECK(r >= 0 && r <= n && tries < TOKENS / SIZE);
		at += (uint32_t)r;
	}
}

/* What the codec makes of a plane. */
static void through_codec(const void *native, uint32_t codec, uint32_t kind, void *out)
{
	const struct kvp_plane p = { SIZE, 1, DIM, KVP_DTYPE_F16, kind };
	static _Alignas(64) uint8_t coded[2 * PLANE];
	size_t bytes;

	memcpy(out, native, PLANE);
	if (codec == 0)
		return;
	EQUAL(kvp_plane_bytes(codec, &p, &bytes), 0);
	EQUAL(kvp_plane_encode(kernels, codec, &p, NULL, (struct kvp_raw_const){ native, ROW, ROW },
		      coded, bytes),
		0);
	EQUAL(kvp_plane_decode(
		      kernels, codec, &p, NULL, coded, bytes, (struct kvp_raw){ out, ROW, ROW }),
		0);
}

static void check_block(struct kvp_prefix *m, uint32_t i, const struct kvp_payload_info *p)
{
	static _Alignas(64) uint8_t want[2][PLANE], got[2][PLANE];
	struct kvp_view_plane plane = { .k = got[0],
		.v = got[1],
		.k_token_stride = ROW,
		.v_token_stride = ROW,
		.k_head_stride = ROW,
		.v_head_stride = ROW };
	struct kvp_view v = { .size = sizeof(v), .planes = &plane };

	through_codec(pages[i % PAGES][0], p->codec_k, KVP_PLANE_K, want[0]);
	through_codec(pages[i % PAGES][1], p->codec_v, KVP_PLANE_V, want[1]);
	EQUAL(kvp_get(m, i * SIZE, SIZE, &v, KVP_GET_VERIFY), SIZE);
	EQUAL(memcmp(got, want, sizeof(want)), 0);
}

static void test_million(void)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_counters c = { .size = sizeof(c) };
	struct kvp_client *client;
	struct kvp_space *s;
	struct kvp_prefix *m = NULL;
	uint32_t coded = 0;

	fill_all();
	EQUAL(kvp_open(NULL, &client), 0);
	s = open_space(client);
	put_all(s);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	/* A block that is being coded is a miss for a moment. */
	for (uint32_t tries = 0; info.n_tokens + info.tail_tokens < TOKENS; tries++) {
		CHECK(tries < 2000);
		kvp_release(m);
		usleep(1000);
		EQUAL(kvp_match(s, tokens, TOKENS, NULL, &m), 0);
		EQUAL(kvp_match_info(m, &info), 0);
	}
	EQUAL(info.n_blocks, WHOLE);
	EQUAL(info.tail_tokens, TOKENS % SIZE);
	for (uint32_t i = 0; i < WHOLE; i++) {
		EQUAL(kvp_payload(m, i, &p), 0);
		coded += p.codec != 0;
		if (i % 487 == 0)
			check_block(m, i, &p);
	}
	EQUAL(kvp_stats(client, &c), 0);
	printf("  %u of %u blocks are coded\n", coded, WHOLE);
	/* 80 MiB hold fewer than 10,240 blocks of 8 KiB. */
	CHECK(coded > WHOLE - 10240);
	EQUAL(c.decode_failures, 0);
	EQUAL(kvp_release(m), 0);
	kvp_space_close(s);
	kvp_close(client);
}

int main(void)
{
	static const struct live_test tests[] = { { "1,000,000 tokens", test_million } };
	int status;

	if (kvp_kernels_new(KVP_CPU_ALL, &kernels) < 0)
		return 1;
	status = live_main(tests, 1);
	kvp_kernels_free(kernels);
	return status;
}
