/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine whose floor needs a calibration, beside a real kvpoold: for test_calibrated.py.
 *	make FILE MODEL SEED HEADS	writes a calibration of kvquant
 *	read FILE MODEL [CODEC]		stores more than there is room for; all that is there is what the codec makes of it with FILE;
 *					then says that it is good
 *	refused MODEL THETA		opening is -ENOENT
 *	stays FILE MODEL		says "ready"; when another daemon came, and a line: as long as that has another calibration all
 *					is a miss, and what is opened anew is not
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kvp_nuq.h"
#include "libclient/kvpool.h"
#include "tests/kernels/inputs.h"
#include "tests/kernels/nuq_make.h"

#define T         64u
#define L         2u
#define HEADS     2u
#define DIM       64u
#define ROW       (DIM * 2u)
#define PLANE     (HEADS * T * ROW)
#define BLOCK     (L * 2u * PLANE) /* LCND: [layer][K,V][token][head * dim] */
#define CHAIN     4u
#define SEQUENCES 72u
#define WAIT_MS   20000u
#define REPORTS \
	20u /* of good quality: as many as the daemon waits for before it writes down what it has learnt */

/* Of keys and values. */
static uint32_t codec[2] = { KVP_CODEC_KVQUANT(3u), KVP_CODEC_KVQUANT(3u) };
/* Squares of what keys have lost, and of all of them. */
static double lost, all;

static struct kvp_kernels *kernels;
static struct kvp_nuq_set *set;

#define CHECK(x)                                                                        \
	do {                                                                            \
		if (!(x)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

static int open_space(struct kvp_client *c, const char *model, double theta, struct kvp_space **ret)
{
	static const struct kvp_layer layers[L] = { { 0, HEADS, 0, DIM, DIM },
		{ 1, HEADS, 0, DIM, DIM } };
	const struct kvp_space_desc d = { .size = sizeof(d),
		.model = model,
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = T,
		.n_layers = L,
		.layers = layers,
		.rope_pairing = KVP_ROPE_HALF_SPLIT,
		.rope_dim = DIM,
		.rope_theta = theta,
		.floor_k = codec[0],
		.floor_v = codec[1] };

	return kvp_space_open(c, &d, WAIT_MS, ret);
}

/* ---- what is stored and read ----------------------------------------------------------------- */

static void tokens_of(uint32_t seed, uint32_t *tokens)
{
	for (uint32_t i = 0; i < CHAIN * T; i++)
		tokens[i] = seed * 100000 + i;
}

/* Halves between 1/2 and 2 of both signs. */
static void native_of(uint32_t seed, uint32_t block, uint8_t *out)
{
	uint64_t x = (seed * CHAIN + block) * UINT64_C(0x9e3779b97f4a7c15) + 1;

	for (uint32_t i = 0; i < BLOCK / 2; i++) {
		uint16_t half;

		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		half = (uint16_t)(0x3800 + (x >> 40 & 0x7ff) + (x >> 60 & 1) * 0x8000);
		memcpy(out + 2 * i, &half, 2);
	}
}

static void store(struct kvp_space *s, uint32_t seed)
{
	uint32_t tokens[CHAIN * T];
	struct kvp_ref parent = kvp_ref_root();

	tokens_of(seed, tokens);
	for (uint32_t n = 0; n < CHAIN; n++) {
		struct kvp_grant *g;

		CHECK(kvp_reserve(s, WAIT_MS, NULL, &g) == 0);
		native_of(seed, n, kvp_grant_addr(g));
		CHECK(kvp_commit_run(&g, 1, parent, tokens + n * T, T, NULL, KVP_COMMIT_RELEASE,
			      &parent) == 1);
	}
}

/* What the codec makes of one plane, put back where it was. */
static void through_codec(uint8_t *plane, uint32_t layer, uint32_t kind, uint32_t position)
{
	const struct kvp_plane p = { T, HEADS, DIM, KVP_DTYPE_F16, kind };
	const struct kvp_encode_opts o = { .size = sizeof(o),
		.calib = kvp_nuq_set_find(set, layer, nuq_form_of(codec[kind], kind)),
		.position = position };
	const struct kvp_raw raw = { plane, ROW, HEADS * ROW };
	static _Alignas(64) uint8_t coded[2 * PLANE];
	size_t bytes;

	CHECK(o.calib && kvp_plane_bytes(codec[kind], &p, &bytes) == 0 && bytes < PLANE);
	CHECK(kvp_plane_encode(kernels, codec[kind], &p, &o,
		      (struct kvp_raw_const){ plane, ROW, HEADS * ROW }, coded, bytes) == 0);
	CHECK(kvp_plane_decode(kernels, codec[kind], &p, o.calib, coded, bytes, raw) == 0);
}

/* A half of those above. */
static double number_of(const uint8_t *at)
{
	uint16_t half;

	memcpy(&half, at, 2);
	return ldexp(1024 + (half & 1023), (half >> 10 & 31) - 25) * (half >> 15 ? -1 : 1);
}

/* Keys of a layer against those that were stored. */
static void add_lost(const uint8_t *keys, uint32_t seed, uint32_t block, uint32_t layer)
{
	static uint8_t native[BLOCK];

	native_of(seed, block, native);
	for (uint32_t i = 0; i < PLANE; i += 2) {
		double x = number_of(native + 2 * layer * PLANE + i), d = x - number_of(keys + i);

		lost += d * d;
		all += x * x;
	}
}

/* Block i of what was found: bit for bit what it has to be. True: it was coded. */
static int check_block(struct kvp_prefix *m, uint32_t seed, uint32_t i)
{
	static _Alignas(64) uint8_t want[BLOCK], got[BLOCK];
	struct kvp_payload_layer_info where = { .size = sizeof(where) };
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_view_plane planes[L];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };

	CHECK(kvp_payload(m, i, &p) == 0);
	native_of(seed, i, want);
	CHECK(p.codec_k == (p.codec ? codec[0] : 0) && p.codec_v == (p.codec ? codec[1] : 0));
	CHECK(kvp_payload_planes(m, i, 0, &where) == (p.codec ? -EOPNOTSUPP : 0));
	for (uint32_t l = 0; l < L; l++) {
		for (uint32_t kind = 0; p.codec && kind < 2; kind++)
			through_codec(want + (2 * l + kind) * PLANE, l, kind, i * T);
		planes[l] = (struct kvp_view_plane){ .k = got + 2 * l * PLANE,
			.v = got + (2 * l + 1) * PLANE,
			.k_token_stride = HEADS * ROW,
			.v_token_stride = HEADS * ROW,
			.k_head_stride = ROW,
			.v_head_stride = ROW };
	}
	CHECK(kvp_get(m, i * T, T, &v, KVP_GET_VERIFY) == (int)T);
	CHECK(memcmp(got, want, BLOCK) == 0);
	for (uint32_t l = 0; p.codec && l < L; l++)
		add_lost(got + 2 * l * PLANE, seed, i, l);
	return p.codec != 0;
}

static uint32_t check_sequence(struct kvp_space *s, uint32_t seed, uint32_t *ret_coded)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t tokens[CHAIN * T];
	struct kvp_prefix *m;

	tokens_of(seed, tokens);
	CHECK(kvp_match(s, tokens, CHAIN * T, NULL, &m) == 0);
	CHECK(kvp_match_info(m, &info) == 0);
	for (uint32_t i = 0; i < info.n_blocks; i++)
		*ret_coded += (uint32_t)check_block(m, seed, i);
	CHECK(kvp_release(m) == 0);
	return info.n_blocks;
}

static void read_all(struct kvp_space *s)
{
	uint32_t blocks = 0, coded = 0;

	for (uint32_t i = 0; i < SEQUENCES; i++)
		blocks += check_sequence(s, i, &coded);
	printf("%u blocks, of them %u coded; %.4f of their keys' squares are lost\n", blocks, coded,
		lost / all);
	CHECK(coded > CHAIN);
	CHECK(lost < .1 * all);
}

static void fill(struct kvp_client *c, struct kvp_space *s)
{
	for (uint32_t i = 0; i < SEQUENCES; i++)
		store(s, i);
	CHECK(kvp_flush(c, WAIT_MS) == 0);
}

/* ---- what it is asked for -------------------------------------------------------------------- */

static int make(const char *path, const char *model, const char *seed, const char *heads)
{
	struct nuq_make m = { L, (uint32_t)atoi(heads), DIM, KVP_ROPE_HALF_SPLIT, 0 };
	FILE *f = fopen(path, "wb");
	size_t bytes;
	void *data;

	inputs_reseed((uint64_t)atoi(seed));
	data = nuq_make_of(&m, model, &bytes);
	CHECK(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
	free(data);
	return 0;
}

static void load(const char *path)
{
	static uint8_t data[1 << 20];
	FILE *f = fopen(path, "rb");
	size_t bytes;

	CHECK(f);
	bytes = fread(data, 1, sizeof(data), f);
	fclose(f);
	CHECK(kvp_nuq_set_new(data, bytes, &set) == 0);
}

static int refused(struct kvp_client *c, const char *model, const char *theta)
{
	struct kvp_space *s;
	int r = open_space(c, model, atof(theta), &s);

	if (r != -ENOENT)
		fprintf(stderr, "%s: %d\n", model, r);
	return r != -ENOENT;
}

/* The line comes when another daemon is there. */
static void stay(struct kvp_client *c, const char *model)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t tokens[CHAIN * T];
	struct kvp_space *s, *anew;
	struct kvp_prefix *m;
	struct kvp_grant *g;
	char line[16];
	int r;

	CHECK(open_space(c, model, 1e4, &s) == 0);
	store(s, 0);
	CHECK(kvp_flush(c, WAIT_MS) == 0);
	puts("ready");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
	/* The library has come to it by itself, and tried to open what was open. */
	while ((r = open_space(c, model, 1e4, &anew)) == -ESHUTDOWN)
		usleep(1000);
	CHECK(r == 0);
	tokens_of(0, tokens);
	CHECK(kvp_reserve(s, 100, NULL, &g) < 0);
	CHECK(kvp_match(s, tokens, CHAIN * T, NULL, &m) == 0);
	CHECK(kvp_match_info(m, &info) == 0 && info.n_blocks == 0);
	CHECK(kvp_release(m) == 0);
	fill(c, anew);
	read_all(anew);
	kvp_space_close(anew);
	kvp_space_close(s);
}

int main(int argc, char **argv)
{
	struct kvp_client *c;
	struct kvp_space *s;
	int r = 0;

	if (argc == 6 && !strcmp(argv[1], "make"))
		return make(argv[2], argv[3], argv[4], argv[5]);
	CHECK(argc == 4 || (argc == 5 && kvp_codec_parse_pair(argv[4], &codec[0], &codec[1]) == 0));
	CHECK(kvp_kernels_new(KVP_CPU_ALL, &kernels) == 0);
	CHECK(kvp_open(NULL, &c) == 0);
	if (!strcmp(argv[1], "refused")) {
		r = refused(c, argv[2], argv[3]);
	} else {
		load(argv[2]);
		if (!strcmp(argv[1], "stays")) {
			stay(c, argv[3]);
		} else {
			CHECK(open_space(c, argv[3], 1e4, &s) == 0);
			fill(c, s);
			read_all(s);
			for (uint32_t i = 0; i < REPORTS; i++)
				CHECK(kvp_report_quality(s, 1) == 0);
			CHECK(kvp_flush(c, WAIT_MS) == 0);
			kvp_space_close(s);
		}
	}
	kvp_close(c);
	kvp_nuq_set_free(set);
	kvp_kernels_free(kernels);
	return r;
}
