/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that a real kvpoold has coded under pressure, read by libkvpool: every byte is what the codecs
 * themselves make of what was stored, whatever the view; attention goes over them in place; writers that
 * are killed meanwhile change none of that.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/kvp_attend.h"
#include "libclient/kvpool_admin.h"
#include "tests/libclient/live.h"

#define L         2u
#define HEADS     2u
#define DIM       64u
#define ROW       (DIM * 2u)        /* bytes: fp16 */
#define PLANE     (HEADS * T * ROW) /* of a block */
#define BLOCK     (L * 2u * PLANE)  /* LCND: [layer][K,V][token][head * dim] */
#define CHAIN     8u                /* blocks of a sequence */
#define SEQUENCES 96u

static struct kvp_kernels *kernels;
static struct kvp_client *client;

/* The layer that stays native in spaces that are opened now; L: none. And the tokens at the end that do. */
static uint32_t excepted = L, tail;
/* Blocks that are stored of a sequence now. */
static uint32_t stored = CHAIN;

static struct kvp_space *open_model(
	struct kvp_client *c, const char *model, uint32_t codec_k, uint32_t codec_v)
{
	static const struct kvp_layer all[L] = { { 0, HEADS, 0, DIM, DIM },
		{ 1, HEADS, 0, DIM, DIM } };
	struct kvp_space_desc d = { .size = sizeof(d),
		.model = model,
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = T,
		.n_layers = L,
		.layers = all,
		.floor_k = codec_k,
		.floor_v = codec_v,
		.native_last = tail,
		.exact_layers = &excepted,
		.n_exact_layers = excepted < L };
	struct kvp_space *s;

	EQUAL(kvp_space_open(c, &d, WAIT_MS, &s), 0);
	return s;
}

static struct kvp_space *open_space(struct kvp_client *c, uint32_t codec_k, uint32_t codec_v)
{
	return open_model(c, "coded", codec_k, codec_v);
}

/* ---- what is stored ------------------------------------------------------------------------- */

static void tokens_of(uint32_t seed, uint32_t *tokens)
{
	for (uint32_t i = 0; i < CHAIN * T; i++)
		tokens[i] = seed * 100000 + i;
}

/* Halves between 1/2 and 2 of both signs. */
static void native_of(uint32_t seed, uint32_t block, uint16_t *out)
{
	uint64_t x = (seed * CHAIN + block) * UINT64_C(0x9e3779b97f4a7c15) + 1;

	for (uint32_t i = 0; i < BLOCK / 2; i++) {
		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		out[i] = (uint16_t)(0x3800 + (x >> 40 & 0x7ff) + (x >> 60 & 1) * 0x8000);
	}
}

static void planes_of(void *block, struct kvp_view_plane *planes)
{
	for (uint32_t l = 0; l < L; l++)
		planes[l] = (struct kvp_view_plane){
			.k = (uint8_t *)block + 2 * l * PLANE,
			.v = (uint8_t *)block + (2 * l + 1) * PLANE,
			.k_token_stride = HEADS * ROW,
			.v_token_stride = HEADS * ROW,
			.k_head_stride = ROW,
			.v_head_stride = ROW,
		};
}

/* Stores a sequence block by block, in DRAM or on a device; returns how many there were room for. */
static uint32_t store_in(struct kvp_space *s, uint32_t seed, int device)
{
	static uint16_t block[BLOCK / 2];
	uint32_t tokens[CHAIN * T], n = 0;
	struct kvp_ref parent = kvp_ref_root();

	tokens_of(seed, tokens);
	for (; n < stored; n++) {
		struct kvp_grant *g;
		int r = device < 0 ? kvp_reserve(s, WAIT_MS, NULL, &g)
				   : kvp_reserve_on(s, (uint32_t)device, WAIT_MS, NULL, &g);

		if (r < 0)
			return n;
		native_of(seed, n, block);
		memcpy(kvp_grant_addr(g), block, BLOCK);
		if (kvp_commit_run(&g, 1, parent, tokens + n * T, T, NULL, KVP_COMMIT_RELEASE,
			    &parent) != 1) {
			kvp_grant_release(g);
			return n;
		}
	}
	return n;
}

static uint32_t store_sequence(struct kvp_space *s, uint32_t seed)
{
	return store_in(s, seed, -1);
}

/* ---- what is read ---------------------------------------------------------------------------- */

/* What the codec makes of one plane of a native block, put back where it was. */
static void through_codec(uint8_t *plane, uint32_t codec, uint32_t kind)
{
	const struct kvp_plane p = { T, HEADS, DIM, KVP_DTYPE_F16, kind };
	const struct kvp_raw raw = { plane, ROW, HEADS * ROW };
	static _Alignas(64) uint8_t coded[2 * PLANE];
	size_t bytes;

	if (codec == 0)
		return;
	EQUAL(kvp_plane_bytes(codec, &p, &bytes), 0);
	CHECK(bytes < PLANE);
	EQUAL(kvp_plane_encode(kernels, codec, &p, NULL,
		      (struct kvp_raw_const){ raw.data, raw.head_stride, raw.token_stride }, coded,
		      bytes),
		0);
	EQUAL(kvp_plane_decode(kernels, codec, &p, NULL, coded, bytes, raw), 0);
}

/* The block as whoever decodes its payload has to see it. */
static void expected(const struct kvp_payload_info *p, uint32_t seed, uint32_t block, uint8_t *out)
{
	native_of(seed, block, (uint16_t *)(void *)out);
	for (uint32_t l = 0; l < L; l++) {
		if (l == excepted)
			continue;
		through_codec(out + 2 * l * PLANE, p->codec_k, KVP_PLANE_K);
		through_codec(out + (2 * l + 1) * PLANE, p->codec_v, KVP_PLANE_V);
	}
}

static struct kvp_prefix *find_sequence(
	struct kvp_space *s, uint32_t seed, uint32_t n, struct kvp_prefix_info *ret_info)
{
	struct kvp_prefix *m;
	uint32_t tokens[CHAIN * T];

	tokens_of(seed, tokens);
	ret_info->size = sizeof(*ret_info);
	EQUAL(kvp_match(s, tokens, n, NULL, &m), 0);
	EQUAL(kvp_match_info(m, ret_info), 0);
	return m;
}

/* The first n blocks of a sequence, of which nothing has been evicted: what lies in a new extent is a miss until that is mapped. */
static struct kvp_prefix *find_blocks(
	struct kvp_space *s, uint32_t seed, uint32_t n, struct kvp_prefix_info *ret_info)
{
	for (uint32_t i = 0;; i++) {
		struct kvp_prefix *m = find_sequence(s, seed, n * T, ret_info);

		if (ret_info->n_blocks == n)
			return m;
		EQUAL(kvp_release(m), 0);
		CHECK(i < 2000);
		usleep(5000);
	}
}

static struct kvp_prefix *find_stored(
	struct kvp_space *s, uint32_t seed, struct kvp_prefix_info *ret_info)
{
	return find_blocks(s, seed, CHAIN, ret_info);
}

struct tally {
	uint32_t native, coded, mixed; /* blocks; sequences of both */
};

static void check_block(struct kvp_prefix *m, uint32_t seed, uint32_t i, struct tally *t)
{
	static _Alignas(64) uint8_t want[BLOCK], got[BLOCK];
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_view_plane planes[L];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };

	EQUAL(kvp_payload(m, i, &p), 0);
	expected(&p, seed, i, want);
	planes_of(got, planes);
	EQUAL(kvp_get(m, i * T, T, &v, KVP_GET_VERIFY), T);
	EQUAL(memcmp(got, want, BLOCK), 0);
	t->native += p.codec == 0;
	t->coded += p.codec != 0;
}

/* All that is there of a sequence. */
static void check_sequence(struct kvp_space *s, uint32_t seed, struct tally *t)
{
	struct tally before = *t;
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find_sequence(s, seed, CHAIN * T, &info);

	for (uint32_t i = 0; i < info.n_blocks; i++)
		check_block(m, seed, i, t);
	t->mixed += t->native > before.native && t->coded > before.coded;
	EQUAL(kvp_release(m), 0);
}

static struct kvp_space *crowded(void)
{
	struct kvp_space *s = open_space(client, KVP_CODEC_TQ4, KVP_CODEC_TQ4);

	for (uint32_t i = 0; i < SEQUENCES; i++)
		EQUAL(store_sequence(s, i), CHAIN);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	return s;
}

static void test_every_byte(void)
{
	struct kvp_space *s = crowded();
	struct tally t = { 0 };

	for (uint32_t i = 0; i < SEQUENCES; i++)
		check_sequence(s, i, &t);
	printf("  %u blocks native, %u coded, %u sequences of both\n", t.native, t.coded, t.mixed);
	/* 32 MiB hold fewer than 448 blocks of 64 KiB: the tenant's catalog takes more than 4 of them. */
	CHECK(t.coded > 0);
	CHECK(t.native + t.coded > 448);
	{
		struct kvp_counters c = { .size = sizeof(c) };

		EQUAL(kvp_stats(client, &c), 0);
		EQUAL(c.decoded_blocks, t.coded);
		EQUAL(c.decode_failures, 0);
	}
	kvp_space_close(s);
}

/* A piece that begins and ends inside blocks, into pages, one head of one layer, keys alone. */
static void test_pieces(void)
{
	struct kvp_space *s = crowded();
	static _Alignas(64) uint8_t want[CHAIN][BLOCK];
	static uint8_t pool[8 * 16 * ROW];
	const uint32_t table[8] = { 5, 2, 7, 0, 3, 1, 6, 4 }, layer = 1;
	struct kvp_view_plane plane = {
		.k = pool, .k_page_stride = 16 * ROW, .k_token_stride = ROW, .k_head_stride = ROW
	};
	struct kvp_view v = { .size = sizeof(v),
		.n_layers = 1,
		.layers = &layer,
		.first_head = 1,
		.n_heads = 1,
		.planes = &plane,
		.page_tokens = 16,
		.pool_pages = 8,
		.pages = { table, 8, KVP_IDS_U32 },
		.first_slot = 3 };
	uint32_t looked = 0;

	for (uint32_t seed = 0; seed < SEQUENCES; seed++) {
		struct kvp_payload_info p = { .size = sizeof(p) };
		struct kvp_prefix_info info;
		struct kvp_prefix *m = find_sequence(s, seed, CHAIN * T, &info);

		for (uint32_t i = 0; i < info.n_blocks; i++) {
			EQUAL(kvp_payload(m, i, &p), 0);
			expected(&p, seed, i, want[i]);
		}
		if (info.n_blocks >= 3) {
			EQUAL(kvp_get(m, T - 20, 100, &v, 0), 100);
			for (uint32_t k = 0; k < 100; k++) {
				uint32_t t = T - 20 + k, slot = 3 + k;

				EQUAL(memcmp(pool + table[slot / 16] * 16 * ROW + slot % 16 * ROW,
					      want[t / T] + 2 * PLANE + t % T * HEADS * ROW + ROW,
					      ROW),
					0);
			}
			looked++;
		}
		EQUAL(kvp_release(m), 0);
	}
	CHECK(looked > 0);
	kvp_space_close(s);
}

static struct kvp_attend_plane attend_half(const struct kvp_payload_half *h)
{
	return (struct kvp_attend_plane){ .codec = h->codec,
		.dtype = KVP_DTYPE_F16,
		.data = h->addr,
		.bytes = h->bytes,
		.head_stride = (ptrdiff_t)h->head_stride,
		.token_stride = (ptrdiff_t)h->token_stride };
}

static void attend(const struct kvp_attend_part *parts, uint32_t n, const float *q, float *out)
{
	struct kvp_attention a = { .size = sizeof(a),
		.queries = 1,
		.q_heads = HEADS,
		.kv_heads = HEADS,
		.k_dim = DIM,
		.v_dim = DIM,
		.scale = .125f,
		.q = q,
		.parts = parts,
		.n_parts = n,
		.n_splits = 1 };
	struct kvp_attend_result r = { .out = out };
	void *room;
	size_t bytes;

	EQUAL(kvp_attend_workspace(&a, &bytes), 0);
	EQUAL(posix_memalign(&room, 64, bytes), 0);
	a.workspace = room;
	a.workspace_size = bytes;
	EQUAL(kvp_attend(kernels, &a, &r), 0);
	free(room);
}

/* One call over native and coded blocks in place gives what it gives over what they decode to. */
static void test_attention_in_place(void)
{
	struct kvp_space *s = crowded();
	static _Alignas(64) uint8_t want[CHAIN][BLOCK];
	float q[HEADS * DIM], here[HEADS * DIM], there[HEADS * DIM];
	uint32_t coded = 0;

	for (uint32_t i = 0; i < HEADS * DIM; i++)
		q[i] = (float)((i * 37) % 19) / 19 - .5f;
	for (uint32_t seed = 0; seed < SEQUENCES; seed++) {
		struct kvp_attend_part in[CHAIN], decoded[CHAIN];
		struct kvp_payload_info p = { .size = sizeof(p) };
		struct kvp_payload_layer_info l = { .size = sizeof(l) };
		struct kvp_prefix_info info;
		struct kvp_prefix *m = find_sequence(s, seed, CHAIN * T, &info);

		for (uint32_t i = 0; i < info.n_blocks; i++) {
			EQUAL(kvp_payload(m, i, &p), 0);
			expected(&p, seed, i, want[i]);
			EQUAL(kvp_payload_planes(m, i, 1, &l), 0);
			EQUAL(l.k.codec, p.codec_k);
			in[i] = (struct kvp_attend_part){
				.tokens = T, .k = attend_half(&l.k), .v = attend_half(&l.v)
			};
			l.k = (struct kvp_payload_half){ want[i] + 2 * PLANE, PLANE, 0, HEADS * ROW,
				ROW };
			l.v = (struct kvp_payload_half){ want[i] + 3 * PLANE, PLANE, 0, HEADS * ROW,
				ROW };
			decoded[i] = (struct kvp_attend_part){
				.tokens = T, .k = attend_half(&l.k), .v = attend_half(&l.v)
			};
			coded += p.codec != 0;
		}
		EQUAL(kvp_payload_planes(m, 0, L, &l), info.n_blocks ? -EINVAL : -ENOENT);
		if (info.n_blocks) {
			attend(in, info.n_blocks, q, here);
			attend(decoded, info.n_blocks, q, there);
			for (uint32_t i = 0; i < HEADS * DIM; i++)
				CHECK(fabsf(here[i] - there[i]) < 4e-3f);
		}
		EQUAL(kvp_release(m), 0);
	}
	CHECK(coded > 0);
	kvp_space_close(s);
}

static void set_rule(const char *model, const char *members);
static void await_coded(const char *model, uint32_t n);

/* One block, written layer by layer: of each its keys, then its values. */
static struct kvp_ref append_by_layer(
	struct kvp_space *s, uint32_t seed, uint32_t i, struct kvp_ref parent)
{
	static uint16_t native[BLOCK / 2];
	uint32_t tokens[CHAIN * T];
	struct kvp_grant *g;

	tokens_of(seed, tokens);
	native_of(seed, i, native);
	EQUAL(kvp_reserve(s, WAIT_MS, NULL, &g), 0);
	for (uint32_t half = 0; half < 2 * L; half++)
		memcpy((uint8_t *)kvp_grant_addr(g) + half * PLANE,
			(uint8_t *)native + half * PLANE, PLANE);
	EQUAL(kvp_commit_run(&g, 1, parent, tokens + i * T, T, NULL, KVP_COMMIT_RELEASE, &parent),
		1);
	return parent;
}

/* Attends to one layer of the first n blocks where they lie, and to what they have to be: the same. */
static void attend_by_layer(struct kvp_prefix *m, uint32_t seed, uint32_t n, uint32_t layer)
{
	static _Alignas(64) uint8_t want[CHAIN][BLOCK];
	struct kvp_attend_part in[CHAIN], native[CHAIN];
	float q[HEADS * DIM], here[HEADS * DIM], there[HEADS * DIM];

	for (uint32_t i = 0; i < HEADS * DIM; i++)
		q[i] = (float)((i * 37 + layer) % 19) / 19 - .5f;
	for (uint32_t i = 0; i < n; i++) {
		struct kvp_payload_info p = { .size = sizeof(p) };
		struct kvp_payload_layer_info l = { .size = sizeof(l) };

		EQUAL(kvp_payload(m, i, &p), 0);
		expected(&p, seed, i, want[i]);
		EQUAL(kvp_payload_planes(m, i, layer, &l), 0);
		in[i] = (struct kvp_attend_part){
			.tokens = T, .k = attend_half(&l.k), .v = attend_half(&l.v)
		};
		l.k = (struct kvp_payload_half){ want[i] + 2 * layer * PLANE, PLANE, 0, HEADS * ROW,
			ROW };
		l.v = (struct kvp_payload_half){ want[i] + (2 * layer + 1) * PLANE, PLANE, 0,
			HEADS * ROW, ROW };
		native[i] = (struct kvp_attend_part){
			.tokens = T, .k = attend_half(&l.k), .v = attend_half(&l.v)
		};
	}
	attend(in, n, q, here);
	attend(native, n, q, there);
	for (uint32_t i = 0; i < HEADS * DIM; i++)
		CHECK(fabsf(here[i] - there[i]) < 4e-3f);
}

/* Every layer of the first n blocks by itself, in the memory that the daemon hands out. */
static void attend_all_layers(struct kvp_client *c, struct kvp_space *s, uint32_t seed, uint32_t n)
{
	struct kvp_counters before = { .size = sizeof(before) }, after = before;
	struct kvp_prefix_info info;
	struct kvp_prefix *m;

	EQUAL(kvp_stats(c, &before), 0);
	m = find_blocks(s, seed, n, &info);
	for (uint32_t layer = 0; layer < L; layer++)
		attend_by_layer(m, seed, n, layer);
	EQUAL(kvp_release(m), 0);
	EQUAL(kvp_stats(c, &after), 0);
	EQUAL(after.decoded_blocks, before.decoded_blocks);
}

/*
 * by a daemon's protocol: one client appends layer by layer, block by block, and another one attends to each layer of
 * what is there so far, where it lies: while all is native, and when it is coded. Nothing is decoded for that.
 */
static void test_by_layer(void)
{
	struct kvp_space *s = open_model(client, "layers", KVP_CODEC_TQ4, KVP_CODEC_TQ4), *other;
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_client *reader;

	EQUAL(kvp_open(NULL, &reader), 0);
	other = open_model(reader, "layers", KVP_CODEC_TQ4, KVP_CODEC_TQ4);
	for (uint32_t i = 0; i < CHAIN; i++) {
		parent = append_by_layer(s, 7, i, parent);
		EQUAL(kvp_flush(client, WAIT_MS), 0);
		attend_all_layers(reader, other, 7, i + 1);
	}
	set_rule("layers", "\"precision\":\"budget\",\"budget\":0.3");
	await_coded("layers", CHAIN);
	attend_all_layers(reader, other, 7, CHAIN);
	set_rule("layers", "\"precision\":\"pressure\"");
	kvp_space_close(other);
	(void)kvp_close(reader);
	kvp_space_close(s);
}

/* A match that ends inside a coded block goes on from what it decodes to. */
static void test_fork(void)
{
	struct kvp_space *s = crowded();
	static _Alignas(64) uint8_t want[BLOCK];
	uint32_t forked = 0;

	for (uint32_t seed = 0; seed < SEQUENCES; seed++) {
		struct kvp_payload_info p = { .size = sizeof(p) };
		struct kvp_prefix_info info;
		struct kvp_prefix *m = find_sequence(s, seed, 2 * T - 24, &info);
		struct kvp_grant *g;
		const uint8_t *got;

		if (info.n_blocks == 1 && info.tail_tokens && kvp_payload(m, 1, &p) == 0 &&
			p.codec) {
			EQUAL(info.tail_tokens, T - 24);
			EQUAL(kvp_reserve(s, WAIT_MS, NULL, &g), 0);
			EQUAL(kvp_fork(m, g), T - 24);
			expected(&p, seed, 1, want);
			got = kvp_grant_addr(g);
			for (uint32_t i = 0; i < 2 * L; i++)
				EQUAL(memcmp(got + i * PLANE, want + i * PLANE,
					      (T - 24) * HEADS * ROW),
					0);
			EQUAL(kvp_grant_release(g), 0);
			forked++;
		}
		EQUAL(kvp_release(m), 0);
	}
	CHECK(forked > 0);
	kvp_space_close(s);
}

/* An exact reader beside lossy ones: the same model, and nothing in common. */
static void test_exact_beside(void)
{
	struct kvp_space *lossy = crowded(), *exact = open_space(client, 0, 0);
	struct kvp_prefix_info info;
	struct tally t = { 0 };
	struct kvp_prefix *m;
	uint64_t bytes;

	m = find_sequence(exact, SEQUENCES - 1, CHAIN * T, &info);
	EQUAL(info.n_tokens, 0);
	EQUAL(kvp_release(m), 0);
	for (uint32_t i = 0; i < 8; i++)
		EQUAL(store_sequence(exact, i), CHAIN);
	for (uint32_t i = 0; i < 40; i++)
		EQUAL(store_sequence(lossy, 1000 + i), CHAIN);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	for (uint32_t i = 0; i < 8; i++)
		check_sequence(exact, i, &t);
	EQUAL(t.coded, 0);
	EQUAL(kvp_space_block_bytes(exact, 2, &bytes), -EOPNOTSUPP);
	EQUAL(kvp_space_block_bytes(lossy, 2, &bytes), 0);
	CHECK(bytes < BLOCK / 3);
	kvp_space_close(lossy);
	kvp_space_close(exact);
}

/* Where the planes of both layers lie: of the excepted one as they were stored, of the other one coded. */
static void check_layers(struct kvp_prefix *m, uint32_t seed, uint32_t i)
{
	static uint16_t native[BLOCK / 2];
	struct kvp_payload_layer_info l = { .size = sizeof(l) };

	native_of(seed, i, native);
	EQUAL(kvp_payload_planes(m, i, excepted, &l), 0);
	EQUAL(l.k.codec, KVP_CODEC_NATIVE);
	EQUAL(l.v.codec, KVP_CODEC_NATIVE);
	for (uint32_t t = 0; t < T; t++)
		for (uint32_t h = 0; h < HEADS; h++) {
			size_t at = 2 * excepted * PLANE + (t * HEADS + h) * ROW;

			EQUAL(memcmp((const uint8_t *)l.k.addr + t * l.k.token_stride +
					      h * l.k.head_stride,
				      (const uint8_t *)native + at, ROW),
				0);
			EQUAL(memcmp((const uint8_t *)l.v.addr + t * l.v.token_stride +
					      h * l.v.head_stride,
				      (const uint8_t *)native + at + PLANE, ROW),
				0);
		}
	EQUAL(kvp_payload_planes(m, i, L - 1 - excepted, &l), 0);
	EQUAL(l.k.codec, KVP_CODEC_TQ4);
	EQUAL(l.v.codec, KVP_CODEC_TQ4);
}

/* A layer that the space's owner excepts stays native in blocks that are coded, and is part of the space's name. */
static void test_excepted_layers(void)
{
	struct kvp_space *all, *s;
	struct kvp_prefix_info info;
	struct kvp_prefix *m;
	uint64_t bytes[2];

	for (uint32_t layer = 0; layer < L; layer++) {
		struct tally t = { 0 };
		uint32_t looked = 0;

		excepted = layer;
		s = crowded();
		for (uint32_t i = 0; i < SEQUENCES; i++) {
			struct kvp_payload_info p = { .size = sizeof(p) };

			check_sequence(s, i, &t);
			m = find_sequence(s, i, CHAIN * T, &info);
			for (uint32_t k = 0; k < info.n_blocks; k++) {
				EQUAL(kvp_payload(m, k, &p), 0);
				if (p.codec) {
					check_layers(m, i, k);
					looked++;
				}
			}
			EQUAL(kvp_release(m), 0);
		}
		printf("  %u blocks native, %u coded but for layer %u\n", t.native, t.coded, layer);
		CHECK(looked > 0);
		EQUAL(kvp_space_block_bytes(s, 2, &bytes[0]), 0);
		excepted = L;
		all = open_space(client, KVP_CODEC_TQ4, KVP_CODEC_TQ4);
		EQUAL(kvp_space_block_bytes(all, 2, &bytes[1]), 0);
		/* Half of a block is not coded. */
		CHECK(bytes[0] > BLOCK / 2 && bytes[1] < BLOCK / 3);
		kvp_space_close(all);
		kvp_space_close(s);
	}
}

/* ---- kills ----------------------------------------------------------------------------------- */

static pid_t writer(uint32_t seed)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct kvp_client *c;
		struct kvp_space *s;

		if (kvp_open(NULL, &c) < 0)
			_exit(1);
		s = open_space(c, KVP_CODEC_TQ4, KVP_CODEC_TQ4);
		for (uint32_t i = 0;; i++)
			(void)store_sequence(s, 5000 + (seed * 16 + i % 16) % 64);
	}
	return pid;
}

static void clean(void)
{
	struct kvp_admin *admin;
	char *text;

	EQUAL(kvp_admin_open(NULL, &admin), 0);
	EQUAL(kvp_admin_request(admin, "{\"verb\":\"check\",\"payloads\":true}", WAIT_MS, 0, &text),
		0);
	free(text);
	kvp_admin_close(admin);
}

static void test_kills(void)
{
	struct kvp_space *s = crowded();
	struct tally t = { 0 };

	for (uint32_t round = 0; round < 24; round++) {
		pid_t pid[2] = { writer(2 * round), writer(2 * round + 1) };

		usleep(30000 + round * 7919 % 50000);
		for (uint32_t i = 0; i < 16; i++)
			check_sequence(s, i % 2 ? i : 5000 + (round * 16 + i) % 64, &t);
		for (uint32_t i = 0; i < 2; i++) {
			CHECK(pid[i] > 0);
			EQUAL(kill(pid[i], SIGKILL), 0);
			EQUAL(waitpid(pid[i], NULL, 0), pid[i]);
		}
	}
	printf("  %u blocks native, %u coded were right\n", t.native, t.coded);
	CHECK(t.native + t.coded > 0);
	clean();
	kvp_space_close(s);
}

/* ---- quality -------------------------------------------------------------------------------- */

/* Of the space of the model that is called so; null is -1. */
static double figure_of(const char *model, const char *name)
{
	struct kvp_admin *admin;
	const char *at;
	char *text, key[64], of[64];
	double x;

	/* What was reported before has been dealt with. */
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	EQUAL(kvp_admin_open(NULL, &admin), 0);
	EQUAL(kvp_admin_request(admin, "{\"verb\":\"spaces\"}", WAIT_MS, 0, &text), 0);
	snprintf(key, sizeof(key), "\"%s\":", name);
	/* Members are in the order of their names; a row begins with the adapter's. */
	snprintf(of, sizeof(of), "\"model\":\"%s\"", model);
	at = strstr(text, of);
	while (at && at > text && strncmp(at, "{\"adapter\"", 10) != 0)
		at--;
	at = at ? strstr(at, key) : NULL;
	CHECK(at);
	x = strncmp(at + strlen(key), "null", 4) ? strtod(at + strlen(key), NULL) : -1;
	free(text);
	kvp_admin_close(admin);
	return x;
}

static double space_figure(const char *name)
{
	return figure_of("quality", name);
}

static void report(struct kvp_space *s, double score, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		int r;

		while ((r = kvp_report_quality(s, score)) == -EAGAIN)
			EQUAL(kvp_flush(client, WAIT_MS), 0);
		EQUAL(r, 0);
	}
}

/*
 * scores of a client raise and lower the bits of next blocks; A-050: within 100 of them; A-049: the
 * same score changes nothing, however often.
 */
static void test_quality(void)
{
	static const double wrong[] = { -1e-9, 1 + 1e-9, NAN, INFINITY, -INFINITY, 1e300 };
	struct kvp_space *s = open_model(client, "quality", KVP_CODEC_TQ4, KVP_CODEC_TQ4);
	struct kvp_space *exact = open_space(client, KVP_CODEC_NATIVE, KVP_CODEC_NATIVE);

	EQUAL(kvp_report_quality(exact, 1), -EOPNOTSUPP);
	kvp_space_close(exact);
	EQUAL(kvp_report_quality(NULL, 1), -EINVAL);
	for (uint32_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		EQUAL(kvp_report_quality(s, wrong[i]), -EINVAL);
	EQUAL(space_figure("quality_reported_total"), 0);
	EQUAL(space_figure("floor_bits"), 4);
	EQUAL(space_figure("coding_bits"), 4);
	CHECK(space_figure("quality_ratio") < 0);

	report(s, .95, 10000);
	EQUAL(space_figure("quality_reported_total"), 10000);
	EQUAL(space_figure("quality_samples"), 1000);
	EQUAL(space_figure("quality_changes_total"), 0);
	CHECK(fabs(space_figure("quality_ratio") - .95) < 1e-6);

	report(s, .2, 100);
	EQUAL(space_figure("coding_bits"), 16);
	EQUAL(space_figure("quality_changes_total"), 2); /* by 8 */
	/* Nothing is coded now, so nothing is checked: when room is wanted for long it is tried again. */
	for (uint32_t i = 0; space_figure("coding_bits") == 16; i++) {
		CHECK(i < 20 * SEQUENCES);
		EQUAL(space_figure("quality_checked_total"), 0);
		(void)store_sequence(s, i);
	}
	EQUAL(space_figure("coding_bits"), 8);
	EQUAL(space_figure("quality_changes_total"), 3);

	report(s, 1, 100);
	EQUAL(space_figure("coding_bits"), 4);
	report(s, 1, 10000);
	EQUAL(space_figure("coding_bits"), 4); /* the owner's floor */
	EQUAL(space_figure("quality_changes_total"), 4);
	for (uint32_t i = 30 * SEQUENCES; i < 31 * SEQUENCES; i++)
		(void)store_sequence(s, i);
	CHECK(space_figure("quality_checked_total") > 0);
	kvp_space_close(s);
}

/* ---- budgets --------------------------------------------------------------------------------- */

static void set_rule(const char *model, const char *members)
{
	struct kvp_admin *admin;
	char request[256], *text;

	snprintf(request, sizeof(request), "{\"verb\":\"space-set\",\"space\":\"%s\",%s}", model,
		members);
	EQUAL(kvp_admin_open(NULL, &admin), 0);
	EQUAL(kvp_admin_request(admin, request, WAIT_MS, 0, &text), 0);
	free(text);
	kvp_admin_close(admin);
}

#define CUT 12u /* sequences; there is room for that many, natively */

static void await_coded(const char *model, uint32_t n)
{
	for (uint32_t i = 0; figure_of(model, "blocks_4_bits") < n; i++) {
		CHECK(i < 2000);
		usleep(5000);
	}
}

/*
 * B-028: a budget that is cut while a sequence is read: all others go as far as they may, what the reader holds stays,
 * bit for bit, and follows when it has let go. Then 10,000 matches change nothing.
 */
static void test_cut_while_read(void)
{
	struct kvp_space *s = open_model(client, "cut", KVP_CODEC_TQ4, KVP_CODEC_TQ4);
	struct tally held = { 0 }, all = { 0 };
	struct kvp_prefix_info info;
	struct kvp_prefix *m;
	double coded;

	for (uint32_t i = 0; i < CUT; i++)
		EQUAL(store_sequence(s, i), CHAIN);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	set_rule("cut", "\"precision\":\"budget\",\"budget\":1.0");
	m = find_stored(s, CUT / 2, &info);
	set_rule("cut", "\"budget\":0.3");
	await_coded("cut", (CUT - 1) * CHAIN);
	for (uint32_t i = 0; i < CHAIN; i++)
		check_block(m, CUT / 2, i, &held);
	EQUAL(held.native, CHAIN);
	EQUAL(kvp_release(m), 0);
	await_coded("cut", (CUT - 1) * CHAIN + 1);
	for (uint32_t i = 0; i < CUT; i++) {
		EQUAL(kvp_release(find_stored(s, i, &info)), 0);
		check_sequence(s, i, &all);
	}
	EQUAL(all.native + all.coded, CUT * CHAIN);
	for (uint32_t i = 0; figure_of("cut", "dram_bytes") > .3 * figure_of("cut", "native_bytes");
		i++) {
		CHECK(i < 2000);
		usleep(5000);
	}
	for (uint32_t i = 0; i < CUT; i++)
		EQUAL(kvp_release(find_stored(s, i, &info)), 0);
	coded = figure_of("cut", "blocks_4_bits");
	for (uint32_t i = 0; i < 10000; i++) {
		m = find_sequence(s, i % CUT, CHAIN * T, &info);
		EQUAL(info.n_blocks, CHAIN);
		EQUAL(kvp_release(m), 0);
	}
	EQUAL(figure_of("cut", "blocks_4_bits"), coded);
	set_rule("cut", "\"precision\":\"pressure\"");
	kvp_space_close(s);
}

/* ---- native tails ---------------------------------------------------------------------------- */

/* The first n blocks of a sequence: the last ones are native, as many as its tail needs, and all others coded. */
static void check_tail(struct kvp_space *s, uint32_t seed, uint32_t n)
{
	uint32_t native = (tail + T - 1) / T;
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find_blocks(s, seed, n, &info);

	for (uint32_t i = 0; i < n; i++) {
		struct tally t = { 0 };

		check_block(m, seed, i, &t);
		EQUAL(t.native, i + native >= n);
	}
	EQUAL(kvp_release(m), 0);
}

/*
 * a tail of 0, 32 or 128 tokens stays native, whatever the budget, in whole blocks: while a sequence grows what falls out
 * of it is coded, and nothing else of it is.
 */
static void test_native_tail(void)
{
	static const uint32_t tails[] = { 0, 32, 128 };
	char model[] = "tail0";

	for (uint32_t i = 0; i < 3; i++, model[4]++) {
		struct kvp_space *s;
		uint32_t before = 0;

		tail = tails[i];
		s = open_model(client, model, KVP_CODEC_TQ4, KVP_CODEC_TQ4);
		set_rule(model, "\"precision\":\"budget\",\"budget\":0.3");
		for (stored = CHAIN / 2; stored <= CHAIN; stored++) {
			EQUAL(store_sequence(s, 0), stored);
			EQUAL(kvp_flush(client, WAIT_MS), 0);
			before = stored - (tail + T - 1) / T;
			await_coded(model, before);
			check_tail(s, 0, stored);
		}
		EQUAL(figure_of(model, "blocks_4_bits"), before);
		stored = CHAIN;
		tail = 0;
		set_rule(model, "\"precision\":\"pressure\"");
		kvp_space_close(s);
	}
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Widths of the even blocks of a sequence, and of the odd ones, added up. */
static void widths(struct kvp_space *s, uint32_t seed, uint32_t *ret_even, uint32_t *ret_odd)
{
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find_stored(s, seed, &info);

	for (uint32_t i = 0; i < CHAIN; i++) {
		EQUAL(kvp_payload(m, i, &p), 0);
		*(i % 2 ? ret_odd : ret_even) += p.codec;
	}
	EQUAL(kvp_release(m), 0);
}

/* What no report may be, and where none is taken. */
static void test_wrong_attention(struct kvp_space *s)
{
	static const float wrong[] = { -1e-9f, NAN, INFINITY, -INFINITY };
	float attention[CHAIN] = { 1, 1, 1, 1, 1, 1, 1, 1 };
	struct kvp_space *exact = open_space(client, KVP_CODEC_NATIVE, KVP_CODEC_NATIVE);
	struct kvp_prefix_info info;
	struct kvp_prefix *m;

	EQUAL(store_sequence(exact, 0), CHAIN);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	m = find_sequence(exact, 0, CHAIN * T, &info);
	EQUAL(kvp_report_attention(m, attention, CHAIN, 0), -EOPNOTSUPP);
	EQUAL(kvp_release(m), 0);
	kvp_space_close(exact);

	m = find_sequence(s, 0, CHAIN * T, &info);
	EQUAL(kvp_report_attention(NULL, attention, CHAIN, 0), -EINVAL);
	EQUAL(kvp_report_attention(m, NULL, CHAIN, 0), -EINVAL);
	EQUAL(kvp_report_attention(m, attention, 0, 0), -EINVAL);
	EQUAL(kvp_report_attention(m, attention, CHAIN + 1, 0), -EINVAL);
	EQUAL(kvp_report_attention(m, attention, CHAIN, CHAIN), -EINVAL);
	for (uint32_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		attention[CHAIN - 1] = wrong[i];
		EQUAL(kvp_report_attention(m, attention, CHAIN, 0), -EINVAL);
	}
	memset(attention, 0, sizeof(attention));
	EQUAL(kvp_report_attention(m, attention, CHAIN, 0), -EINVAL);
	EQUAL(kvp_release(m), 0);
	EQUAL(figure_of("attention", "attention_reported_total"), 0);
}

#define ATTENDED 12u /* sequences; there is room for that many, natively */
#define REPORTS  40u

/* Of n sequences, each in a unit of its own, that the odd blocks get all but all attention; returns how often it waited. */
static uint32_t attend_to_odd(struct kvp_space *s, uint32_t n)
{
	float attention[CHAIN];
	uint32_t pauses = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct kvp_prefix_info info;
		struct kvp_prefix *m = find_stored(s, i, &info);

		for (uint32_t k = 0; k < CHAIN; k++)
			attention[k] = powf(10, (float)(i % 12) - 6) * (k % 2 ? 40 : k ? 1 : 0);
		for (uint32_t k = 0; k < REPORTS; k++) {
			int r;

			/* Never waits: with half of the ring full it says so. */
			while ((r = kvp_report_attention(m, attention, CHAIN, 0)) == -EAGAIN) {
				pauses++;
				EQUAL(kvp_flush(client, WAIT_MS), 0);
			}
			EQUAL(r, (int)CHAIN);
		}
		EQUAL(kvp_flush(client, WAIT_MS), 0);
		EQUAL(kvp_report_attention(m, attention, CHAIN, CHAIN - 1), (int)CHAIN);
		EQUAL(kvp_release(m), 0);
	}
	return pauses;
}

/* B-054: what an engine reports decides which blocks a budget takes; the unit of a report is its own. */
static void test_attention(void)
{
	struct kvp_space *s = open_model(client, "attention", KVP_CODEC_TQ4, KVP_CODEC_TQ4);
	uint32_t even = 0, odd = 0, pauses;

	for (uint32_t i = 0; i < ATTENDED; i++)
		EQUAL(store_sequence(s, i), CHAIN);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	set_rule("attention", "\"precision\":\"budget\",\"budget\":1.0");
	test_wrong_attention(s);
	pauses = attend_to_odd(s, ATTENDED);
	EQUAL(figure_of("attention", "attention_reported_total"), ATTENDED * (CHAIN * REPORTS + 1));
	set_rule("attention", "\"budget\":0.45");
	for (uint32_t i = 0;
		figure_of("attention", "dram_bytes") > .45 * figure_of("attention", "native_bytes");
		i++) {
		CHECK(i < 2000);
		usleep(5000);
	}
	for (uint32_t i = 0; i < ATTENDED; i++)
		widths(s, i, &even, &odd);
	printf("widths %u and %u; the ring had no room %u times\n", even, odd, pauses);
	/* All odd ones have eight bits or more, most of the others four. */
	CHECK(odd <= ATTENDED * CHAIN / 2);
	CHECK(even > ATTENDED * CHAIN / 2);
	set_rule("attention", "\"precision\":\"pressure\"");
	kvp_space_close(s);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Of n sequences, that of each block one token gets nearly all the attention. */
static void attend_to_tokens(struct kvp_space *s, uint32_t n)
{
	float attention[CHAIN * T];

	for (uint32_t i = 0; i < n * REPORTS; i++) {
		struct kvp_prefix_info info;
		struct kvp_prefix *m = find_stored(s, i % n, &info);
		int r;

		for (uint32_t t = 0; t < CHAIN * T; t++)
			attention[t] = t % T == t / T + 2 ? 1.f : .01f;
		while ((r = kvp_report_token_attention(m, attention, CHAIN * T, 0)) == -EAGAIN)
			EQUAL(kvp_flush(client, WAIT_MS), 0);
		/* Where there is room for some, it goes on behind these. */
		CHECK(r > 0 && r % T == 0);
		for (int from = r; from<(int)(CHAIN * T); from = r> 0 ? r : from) {
			r = kvp_report_token_attention(m, attention, CHAIN * T, (uint32_t)from);
			CHECK(r == -EAGAIN || r > from);
			if (r == -EAGAIN)
				EQUAL(kvp_flush(client, WAIT_MS), 0);
		}
		EQUAL(kvp_release(m), 0);
	}
	EQUAL(kvp_flush(client, WAIT_MS), 0);
}

static void test_wrong_token_attention(struct kvp_space *s)
{
	float attention[CHAIN * T] = { 1 };
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find_sequence(s, 0, CHAIN * T, &info);

	EQUAL(kvp_report_token_attention(NULL, attention, CHAIN * T, 0), -EINVAL);
	EQUAL(kvp_report_token_attention(m, NULL, CHAIN * T, 0), -EINVAL);
	EQUAL(kvp_report_token_attention(m, attention, 0, 0), -EINVAL);
	EQUAL(kvp_report_token_attention(m, attention, T + 1, 0), -EINVAL);
	EQUAL(kvp_report_token_attention(m, attention, CHAIN * T, 1), -EINVAL);
	EQUAL(kvp_report_token_attention(m, attention, CHAIN * T, CHAIN * T), -EINVAL);
	EQUAL(kvp_report_token_attention(m, attention, (CHAIN + 1) * T, 0), -EINVAL);
	attention[CHAIN * T - 1] = NAN;
	EQUAL(kvp_report_token_attention(m, attention, CHAIN * T, 0), -EINVAL);
	EQUAL(kvp_release(m), 0);
}

/* One layer of a coded block: the bits of its tokens, what it decodes to, and the parts to attend to it. */
static void take_layer(struct kvp_prefix *m, uint32_t i, uint8_t bits[T], uint8_t raw[2][PLANE],
	struct kvp_attend_part *in, struct kvp_attend_part *decoded)
{
	struct kvp_payload_layer_info l = { .size = sizeof(l) };

	EQUAL(kvp_payload_planes(m, i, 1, &l), 0);
	for (uint32_t kind = 0; kind < 2; kind++) {
		const struct kvp_plane p = { T, HEADS, DIM, KVP_DTYPE_F16, kind };
		const struct kvp_payload_half *h = kind ? &l.v : &l.k;
		struct kvp_layout lay;

		EQUAL(kvp_plane_layout(h->codec, &p, &lay), 0);
		EQUAL(h->bytes, lay.bytes);
		memcpy(bits, (const uint8_t *)h->addr + lay.extra, T);
		EQUAL(kvp_plane_decode(kernels, h->codec, &p, NULL, h->addr, h->bytes,
			      (struct kvp_raw){ raw[kind], ROW, HEADS * ROW }),
			0);
	}
	*in = (struct kvp_attend_part){
		.tokens = T, .k = attend_half(&l.k), .v = attend_half(&l.v)
	};
	l.k = (struct kvp_payload_half){ raw[0], PLANE, 0, HEADS * ROW, ROW };
	l.v = (struct kvp_payload_half){ raw[1], PLANE, 0, HEADS * ROW, ROW };
	*decoded = (struct kvp_attend_part){
		.tokens = T, .k = attend_half(&l.k), .v = attend_half(&l.v)
	};
}

/* All that is there of one sequence: who got the attention has the bits, and both ways to read it say the same. */
static void check_tokens(struct kvp_space *s, uint32_t seed, uint32_t *coded)
{
	static _Alignas(64) uint8_t raw[CHAIN][2][PLANE], got[BLOCK];
	struct kvp_attend_part in[CHAIN], decoded[CHAIN];
	float q[HEADS * DIM], here[HEADS * DIM], there[HEADS * DIM];
	struct kvp_view_plane planes[L];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find_stored(s, seed, &info);
	uint32_t n = 0;

	planes_of(got, planes);
	for (uint32_t i = 0; i < HEADS * DIM; i++)
		q[i] = (float)((i * 37) % 19) / 19 - .5f;
	for (uint32_t i = 0; i < CHAIN; i++) {
		struct kvp_payload_info p = { .size = sizeof(p) };
		uint8_t bits[T];
		uint32_t sum = 0;

		EQUAL(kvp_payload(m, i, &p), 0);
		if (p.codec_k != KVP_CODEC_SMART25)
			continue;
		take_layer(m, i, bits, raw[n], &in[n], &decoded[n]);
		EQUAL(bits[i + 2], 8);
		for (uint32_t t = 0; t < T; t++) {
			CHECK(t == i + 2 || bits[t] <= 3);
			sum += bits[t];
		}
		CHECK(sum <= T * 5 / 2);
		EQUAL(kvp_get(m, i * T, T, &v, KVP_GET_VERIFY), T);
		EQUAL(memcmp(planes[1].k, raw[n][0], PLANE), 0);
		EQUAL(memcmp(planes[1].v, raw[n][1], PLANE), 0);
		n++;
	}
	if (n) {
		attend(in, n, q, here);
		attend(decoded, n, q, there);
		for (uint32_t i = 0; i < HEADS * DIM; i++)
			CHECK(fabsf(here[i] - there[i]) < 4e-3f);
	}
	*coded += n;
	EQUAL(kvp_release(m), 0);
}

/*
 * B-001, B-002: under a budget blocks of a daemon have tokens of several bits, by what an engine reports; kvp_get() and
 * kvp_attend() read them, and in a space of whole blocks the report says of each what its tokens got together.
 */
static void test_token_attention(void)
{
	struct kvp_space *s = open_model(client, "tokens", KVP_CODEC_SMART, KVP_CODEC_SMART);
	struct kvp_space *whole = open_model(client, "whole", KVP_CODEC_TQ4, KVP_CODEC_TQ4);
	uint32_t coded = 0;

	for (uint32_t i = 0; i < 4; i++)
		EQUAL(store_sequence(s, i), CHAIN);
	EQUAL(store_sequence(whole, 0), CHAIN);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	test_wrong_token_attention(s);
	set_rule("tokens", "\"precision\":\"budget\",\"budget\":1.0");
	attend_to_tokens(s, 4);
	EQUAL(figure_of("tokens", "attention_reported_total"), 4 * CHAIN * REPORTS);
	attend_to_tokens(whole, 1);
	EQUAL(figure_of("whole", "attention_reported_total"), CHAIN * REPORTS);
	set_rule("tokens", "\"budget\":0.215");
	for (uint32_t i = 0;
		figure_of("tokens", "dram_bytes") > .215 * figure_of("tokens", "native_bytes");
		i++) {
		CHECK(i < 2000);
		usleep(5000);
	}
	for (uint32_t i = 0; i < 4; i++)
		check_tokens(s, i, &coded);
	CHECK(coded > 2 * CHAIN);
	set_rule("tokens", "\"precision\":\"pressure\"");
	kvp_space_close(s);
	kvp_space_close(whole);
}

#define PRESSED 24u /* sequences that are equally cold */

/*
 * And it decides which blocks are coded first where there is no room: of sequences that were stored and matched alike
 * those to which nobody attends. Where extents are emptied for coded blocks the others go as well.
 */
static void test_attention_under_pressure(void)
{
	struct kvp_space *s = open_model(client, "pressed", KVP_CODEC_TQ4, KVP_CODEC_TQ4);
	uint32_t even = 0, odd = 0;

	for (uint32_t i = 0; i < PRESSED; i++)
		EQUAL(store_sequence(s, i), CHAIN);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	(void)attend_to_odd(s, PRESSED);
	for (uint32_t i = 0; figure_of("pressed", "blocks_4_bits") < PRESSED * CHAIN / 3; i++) {
		CHECK(i < 200);
		EQUAL(store_sequence(s, 1000 + i), CHAIN);
	}
	for (uint32_t i = 0; i < PRESSED; i++)
		widths(s, i, &even, &odd);
	printf("coded: %u of the odd, %u of the even\n", odd / 2, even / 2);
	CHECK(even > 2 * odd);
	kvp_space_close(s);
}

static void with_client(void (*run)(void))
{
	EQUAL(kvp_open(NULL, &client), 0);
	run();
	clean();
	client = kvp_close(client);
}

/* ---- beside a device ------------------------------------------------------------------------- */

static void ask(const char *request, double *ret, const char *name)
{
	struct kvp_admin *admin;
	char *text, key[64];
	const char *at;

	snprintf(key, sizeof(key), "\"%s\":", name ? name : "");
	EQUAL(kvp_admin_open(NULL, &admin), 0);
	EQUAL(kvp_admin_request(admin, request, WAIT_MS, 0, &text), 0);
	at = name ? strstr(text, key) : NULL;
	CHECK(!name || at);
	if (at)
		*ret = strtod(at + strlen(key), NULL);
	free(text);
	kvp_admin_close(admin);
}

static double device_figure(const char *name)
{
	double x = 0;

	ask("{\"verb\":\"devices\"}", &x, name);
	return x;
}

static double tenant_figure(const char *name)
{
	double x = 0;

	ask("{\"verb\":\"tenants\"}", &x, name);
	return x;
}

static uint64_t decoded(void)
{
	struct kvp_counters c = { .size = sizeof(c) };

	EQUAL(kvp_stats(client, &c), 0);
	EQUAL(c.decode_failures, 0);
	return c.decoded_blocks;
}

/* The sequence, leased and read on the device or in DRAM, whole. */
static struct kvp_prefix *find_all(struct kvp_space *s, uint32_t seed, uint32_t flags)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = flags };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t tokens[CHAIN * T];
	struct kvp_prefix *m;

	tokens_of(seed, tokens);
	/* A new extent is a miss until it is mapped. */
	for (uint32_t i = 0;; i++) {
		EQUAL(kvp_match(s, tokens, CHAIN * T, &o, &m), 0);
		EQUAL(kvp_match_info(m, &info), 0);
		if (info.n_blocks == CHAIN && info.flags & KVP_MATCHED_LEASED)
			return m;
		EQUAL(kvp_release(m), 0);
		CHECK(i < 2000);
		usleep(5000);
	}
}

static void warm_sequence(struct kvp_space *s, uint32_t seed)
{
	struct kvp_prefix *m = find_all(s, seed, 0);
	struct kvp_ticket ticket;
	int why;

	EQUAL(kvp_warm(m, NULL, &ticket), 0);
	EQUAL(kvp_ticket_wait(client, ticket, WAIT_MS, &why), CHAIN);
	EQUAL(why, 0);
	EQUAL(kvp_release(m), 0);
}

/* Both payloads of block i. */
static void payloads_of(struct kvp_prefix *m, uint32_t i, struct kvp_payload_info *there,
	struct kvp_payload_info *here)
{
	int r = -EAGAIN;

	there->size = here->size = sizeof(*here);
	for (uint32_t tries = 0; r == -EAGAIN && tries < 2000; tries++) {
		r = kvp_device_payload(m, i, 0, there);
		if (r == -EAGAIN)
			usleep(5000);
	}
	EQUAL(r, 0);
	EQUAL(there->tier, KVP_TIER_VRAM);
	EQUAL(kvp_payload(m, i, here), 0);
	EQUAL(here->tier, KVP_TIER_DRAM);
}

/* On the device, once its memory is mapped here: blocks in what is not are found in DRAM. */
static struct kvp_prefix *find_there(struct kvp_space *s, uint32_t seed, struct kvp_prefix *m)
{
	struct kvp_payload_info there, here;

	for (uint32_t i = 0; i < CHAIN; i++)
		payloads_of(m, i, &there, &here);
	return find_all(s, seed, KVP_MATCH_DEVICE);
}

/*
 * D-042: what was put or warmed before is native on the device, and each block of it lies in DRAM coded. Both are
 * read as what they are.
 */
static void native_there_coded_here(struct kvp_space *s, uint32_t seed)
{
	static uint16_t native[BLOCK / 2];
	struct kvp_prefix *m = find_all(s, seed, 0), *on = find_there(s, seed, m);
	struct kvp_payload_info there, here;
	struct tally t = { 0 };

	for (uint32_t i = 0; i < CHAIN; i++) {
		payloads_of(m, i, &there, &here);
		native_of(seed, i, native);
		EQUAL(there.codec + there.codec_k + there.codec_v, 0);
		EQUAL(there.bytes, BLOCK);
		EQUAL(memcmp(there.addr, native, BLOCK), 0);
		EQUAL(here.codec_k, KVP_CODEC_TQ4);
		CHECK(here.bytes < BLOCK / 3);
		check_block(m, seed, i, &t);
		check_block(on, seed, i, &t);
	}
	EQUAL(t.native, CHAIN);
	EQUAL(t.coded, CHAIN);
	EQUAL(kvp_release(on), 0);
	EQUAL(kvp_release(m), 0);
}

/* D-026, D-044, D-046: what came back is byte for byte what lies in DRAM, in the same codec, and decodes to the same. */
static void coded_there_as_here(struct kvp_space *s, uint32_t seed)
{
	struct kvp_prefix *m = find_all(s, seed, 0), *on = find_there(s, seed, m);
	struct kvp_payload_layer_info layer = { .size = sizeof(layer) };
	struct kvp_payload_info there, here;
	struct tally t = { 0 };

	for (uint32_t i = 0; i < CHAIN; i++) {
		payloads_of(m, i, &there, &here);
		CHECK(there.addr != here.addr);
		EQUAL(there.codec, here.codec);
		EQUAL(there.codec_k, KVP_CODEC_TQ4);
		EQUAL(there.codec_v, KVP_CODEC_TQ4);
		EQUAL(there.bytes, here.bytes);
		EQUAL(memcmp(there.addr, here.addr, here.bytes), 0);
		/* Attention reads it there, in place. */
		EQUAL(kvp_payload_planes(on, i, L - 1, &layer), 0);
		EQUAL(layer.v.codec, KVP_CODEC_TQ4);
		CHECK((const uint8_t *)layer.v.addr > (const uint8_t *)there.addr);
		CHECK((const uint8_t *)layer.v.addr + layer.v.bytes <=
			(const uint8_t *)there.addr + there.bytes);
		check_block(m, seed, i, &t);
		check_block(on, seed, i, &t);
	}
	EQUAL(t.coded, 2 * CHAIN);
	EQUAL(kvp_release(on), 0);
	EQUAL(kvp_release(m), 0);
}

/*
 * D-042, D-044, D-046, D-052: hot blocks native on a device, and of each a coded copy in DRAM; when they have gone from
 * the device they are brought back from these: nothing is computed, decoded or coded for it.
 */
static void test_beside_a_device(void)
{
	struct kvp_space *s = open_model(client, "there", KVP_CODEC_TQ4, KVP_CODEC_TQ4);
	double commits, coded, bytes;
	uint64_t before;

	/* One is put on the device, the other in DRAM and warmed. */
	EQUAL(store_in(s, 1, 0), CHAIN);
	EQUAL(store_sequence(s, 2), CHAIN);
	EQUAL(kvp_flush(client, WAIT_MS), 0);
	warm_sequence(s, 2);
	set_rule("there", "\"precision\":\"budget\",\"budget\":0.3");
	await_coded("there", 2 * CHAIN);
	native_there_coded_here(s, 1);
	native_there_coded_here(s, 2);

	commits = tenant_figure("commits_total");
	coded = tenant_figure("coded_total");
	ask("{\"verb\":\"device-drain\",\"device\":\"dev\"}", NULL, NULL);
	for (uint32_t i = 0; device_figure("blocks") > 0; i++) {
		CHECK(i < 4000);
		usleep(5000);
	}
	ask("{\"verb\":\"device-attach\",\"device\":\"dev\"}", NULL, NULL);
	EQUAL(figure_of("there", "blocks"), 2 * CHAIN);
	before = decoded();
	bytes = device_figure("to_device_bytes_total");
	warm_sequence(s, 1);
	warm_sequence(s, 2);
	EQUAL(decoded(), before);
	/* As many bytes as they have in DRAM. */
	EQUAL(device_figure("to_device_bytes_total") - bytes, figure_of("there", "dram_bytes"));
	EQUAL(tenant_figure("commits_total"), commits);
	EQUAL(tenant_figure("coded_total"), coded);
	EQUAL(tenant_figure("recipes"), 0);
	coded_there_as_here(s, 1);
	coded_there_as_here(s, 2);
	set_rule("there", "\"precision\":\"pressure\"");
	kvp_space_close(s);
}

#define TEST(name)                        \
	static void run_##name(void)      \
	{                                 \
		with_client(test_##name); \
	}
TEST(every_byte)
TEST(pieces)
TEST(attention_in_place)
TEST(fork)
TEST(exact_beside)
TEST(excepted_layers)
TEST(kills)
TEST(quality)
TEST(by_layer)
TEST(native_tail)
TEST(cut_while_read)
TEST(attention)
TEST(token_attention)
TEST(attention_under_pressure)
TEST(beside_a_device)

static const struct live_test *find_test(const struct live_test *tests, size_t n, const char *name)
{
	while (n && strcmp(tests->name, name) != 0)
		tests++, n--;
	CHECK(n);
	return tests;
}

/* "device": what there is to test beside one; the name of a test: that one. */
int main(int argc, char **argv)
{
	static const struct live_test beside = { "beside a device", run_beside_a_device };
	static const struct live_test tests[] = {
		{ "cut while read", run_cut_while_read },       /* while there is room */
		{ "attention", run_attention },                 /* likewise */
		{ "attention of tokens", run_token_attention }, /* likewise */
		{ "by layer", run_by_layer },                   /* likewise */
		{ "native tail", run_native_tail },             /* likewise */
		{ "attention under pressure", run_attention_under_pressure },
		{ "every byte", run_every_byte },
		{ "pieces", run_pieces },
		{ "attention in place", run_attention_in_place },
		{ "fork", run_fork },
		{ "exact beside", run_exact_beside },
		{ "excepted layers", run_excepted_layers },
		{ "kills", run_kills },
		{ "quality", run_quality },
	};
	int status;

	if (kvp_kernels_new(KVP_CPU_ALL, &kernels) < 0)
		return 1;
	if (argc > 1 && !strcmp(argv[1], "device"))
		status = live_main(&beside, 1);
	else if (argc > 1)
		status = live_main(find_test(tests, sizeof(tests) / sizeof(tests[0]), argv[1]), 1);
	else
		status = live_main(tests, sizeof(tests) / sizeof(tests[0]));
	kvp_kernels_free(kernels);
	return status;
}
