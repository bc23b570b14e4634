/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench estimate: arithmetic only. What a model's cache takes in a codec, and what a budget
 * holds.
 */
#include "kernels/kvp_codec.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/kvbench.h"
#include "tools/kvbench/shape.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CODECS_MAX 32

static const char *const dtypes[] = { "f32", "f16", "bf16", "f8" }; /* from KVP_DTYPE_F32 on */

struct estimate {
	struct shape model;
	uint64_t block;  /* tokens per plane */
	uint64_t budget; /* bytes */
	uint64_t tokens; /* of one sequence; 0: none named */
	const char *codec[CODECS_MAX];
	size_t n_codecs;
	bool json;
};

/* A positive number with an optional k, m, g or t, or KiB, MiB, GiB or TiB (powers of 1024). */
static int size(const char *option, const char *s, uint64_t max, uint64_t *ret)
{
	static const char units[] = "kmgt", letters[] = "KMGT";
	unsigned shift = 0;
	uint64_t n;
	char *end;

	if (!s)
		return 0;
	errno = 0;
	n = strtoull(s, &end, 10);
	for (unsigned i = 0; i < 4; i++)
		if (*end == units[i] || (*end == letters[i] && (!end[1] || !strcmp(end + 1, "iB"))))
			shift = 10 * (i + 1);
	if (shift)
		end += strlen(end) == 3 ? 3 : 1;
	if (errno || *s < '0' || *s > '9' || *end || !n || n > max >> shift) {
		fprintf(stderr,
			"kvbench estimate: --%s takes a number with or without k, m, g or t, up to "
			"%llu, not '%s'\n",
			option, (unsigned long long)max, s);
		return -EINVAL;
	}
	*ret = n << shift;
	return 0;
}

static int dtype_of(const char *s, uint32_t *ret)
{
	for (uint32_t i = 0; s && i < 4; i++) {
		if (strcmp(s, dtypes[i]) == 0) {
			*ret = KVP_DTYPE_F32 + i;
			return 0;
		}
	}
	if (s)
		fprintf(stderr, "kvbench estimate: --dtype takes f32, f16, bf16 or f8, not '%s'\n",
			s);
	return s ? -EINVAL : 0;
}

/* 1: go on; 0: --help was printed; -1: wrong. */
static int parse(int argc, char **argv, struct estimate *e)
{
	const char *model = NULL, *dtype = NULL, *budget = NULL, *tokens = NULL;
	uint64_t layers = 0, heads = 0, dim = 0;
	const struct bench_option options[] = {
		{ .name = "model",
			.help = "a config.json, its folder, or a name; --model help lists the "
				"names",
			.text = &model,
			.takes = "PATH|NAME" },
		{ .name = "layers",
			.help = "instead of the model's (32)",
			.value = &layers,
			.min = 1,
			.max = 4096 },
		{ .name = "heads",
			.help = "of keys and values (8)",
			.value = &heads,
			.min = 1,
			.max = KVP_PLANE_HEADS_MAX },
		{ .name = "dim",
			.help = "channels of a head (128)",
			.value = &dim,
			.min = 1,
			.max = KVP_PLANE_DIM_MAX },
		{ .name = "dtype",
			.help = "of native keys and values (the model's, or f16)",
			.text = &dtype,
			.takes = "f32|f16|bf16|f8" },
		{ .name = "block",
			.help = "tokens of a block (64)",
			.value = &e->block,
			.min = 1,
			.max = KVP_PLANE_TOKENS_MAX },
		{ .name = "codec",
			.help = "a codec or preset (docs/formats.md); may be given several times",
			.text = e->codec,
			.takes = "NAME",
			.max = CODECS_MAX,
			.times = &e->n_codecs },
		{ .name = "budget",
			.help = "memory for keys and values: how many tokens it holds (1g)",
			.text = &budget,
			.takes = "BYTES[k|m|g|t]" },
		{ .name = "tokens",
			.help = "of one sequence: what it takes as stored, headers included",
			.text = &tokens,
			.takes = "N[k|m]" },
		{ .name = "json", .help = "one JSON array on stdout", .flag = &e->json },
	};
	char error[1024];
	int r = bench_parse(argc, argv,
		"No measurement: what a model's keys and values take in codecs, and what a memory\n"
		"budget holds: kvpoold's `memory`, or a tenant's `share`, less about 550 bytes a "
		"block\n"
		"of token ids and indexes. Without --model, an 8B model's shape.",
		options, sizeof options / sizeof *options);

	if (r <= 0)
		return r;
	if (model && shape_find(model, error, sizeof error, &e->model) < 0) {
		fprintf(stderr, "kvbench estimate: %s\n", error);
		return -1;
	}
	e->model.layers = layers ? (uint32_t)layers : e->model.layers;
	e->model.heads = heads ? (uint32_t)heads : e->model.heads;
	if (dim) {
		e->model.v_dim = e->model.v_dim ? (uint32_t)dim : 0;
		e->model.k_dim = (uint32_t)dim;
	}
	if (dtype_of(dtype, &e->model.dtype) < 0 ||
		size("budget", budget, UINT64_C(1) << 60, &e->budget) < 0 ||
		size("tokens", tokens, UINT64_C(1) << 40, &e->tokens) < 0)
		return -1;
	return 1;
}

/* Bytes of K and V of one layer's block, without headers, and with them. */
static int page_bytes(
	const struct estimate *e, const char *name, uint64_t *ret_bare, uint64_t *ret_all)
{
	uint32_t codec[2];
	uint64_t all = 0, bare = 0;

	if (kvp_codec_parse_pair(name, &codec[0], &codec[1]) < 0)
		return -ENOENT;
	for (uint32_t kind = 0; kind < 2; kind++) {
		struct kvp_plane p = { (uint32_t)e->block, e->model.heads,
			kind ? e->model.v_dim : e->model.k_dim, e->model.dtype, kind };
		size_t bytes;

		if (!p.dim)
			continue;
		if (kvp_plane_bytes(codec[kind], &p, &bytes) < 0)
			return -EINVAL;
		all += bytes;
		bare += bytes - (codec[kind] ? KVP_PLANE_HDR_BYTES : 0);
	}
	*ret_bare = bare;
	*ret_all = all;
	return 0;
}

/* One codec's row; it is printed at once unless `rows` takes it. */
static int report(const struct estimate *e, const char *name, json_t *rows)
{
	uint64_t bare = 0, all = 0, held, sequence;
	double per_token, sequences;
	int r = page_bytes(e, name, &bare, &all);

	if (r < 0) {
		fprintf(stderr, "kvbench estimate: %s: %s\n", name,
			r == -ENOENT ? "no such codec" : "cannot hold such blocks");
		return r;
	}
	per_token = (double)bare * e->model.layers / (double)e->block;
	/* Whole tokens; where a block is no whole number of bytes per token, the last is cut off. */
	held = (uint64_t)((double)e->budget / per_token);
	sequences = e->tokens ? (double)held / (double)e->tokens : 0.0;
	sequence = (e->tokens + e->block - 1) / e->block * all * e->model.layers;
	if (e->json)
		json_array_append_new(
			rows, json_pack("{s:s, s:f, s:I, s:I, s:I, s:f, s:I}", "codec", name,
				      "bytes_per_token", per_token, "page_bytes", (json_int_t)bare,
				      "stored_page_bytes", (json_int_t)all, "tokens_in_budget",
				      (json_int_t)held, "sequences_in_budget", sequences,
				      "sequence_bytes", (json_int_t)sequence));
	else
		printf("%-24s %12.1f %10llu %10llu %14llu", name, per_token,
			(unsigned long long)bare, (unsigned long long)all,
			(unsigned long long)held);
	if (!e->json && e->tokens)
		printf(" %10.2f %16llu", sequences, (unsigned long long)sequence);
	if (!e->json)
		putchar('\n');
	return 0;
}

static void print_head(const struct estimate *e)
{
	const struct shape *m = &e->model;

	printf("%s%s%u layers, %u heads of %u channels%s, %s; blocks of %llu tokens; ", m->name,
		*m->name ? ": " : "", m->layers, m->heads, m->k_dim,
		m->v_dim ? "" : " (one latent for keys and values)",
		dtypes[m->dtype - KVP_DTYPE_F32], (unsigned long long)e->block);
	printf("budget %.1f GiB\n%-24s %12s %10s %10s %14s",
		(double)e->budget / (double)(UINT64_C(1) << 30), "codec", "bytes/token", "page",
		"stored", "tokens");
	/* What one sequence takes is known if --tokens says how long it is. */
	if (e->tokens)
		printf(" %10s %16s", "sequences", "bytes/sequence");
	putchar('\n');
}

static int list_models(void)
{
	struct shape s;
	char error[64];

	printf("%-16s %6s %5s %5s\n", "model", "layers", "heads", "dim");
	for (size_t i = 0; shape_name(i); i++)
		if (shape_find(shape_name(i), error, sizeof error, &s) == 0)
			printf("%-16s %6u %5u %5u%s\n", s.name, s.layers, s.heads, s.k_dim,
				s.v_dim ? "" : " latent");
	return 0;
}

int kvbench_estimate(int argc, char **argv)
{
	static const char *const usual[] = { "native", "fp8", "4bit", "3bit", "2bit" };
	struct estimate e = {
		.model = { "", 32, 8, 128, 128, KVP_DTYPE_F16 },
		.block = 64,
		.budget = UINT64_C(1) << 30,
	};
	json_t *rows;
	int r;

	if (argc == 3 && !strcmp(argv[1], "--model") && !strcmp(argv[2], "help"))
		return list_models();
	r = parse(argc, argv, &e);
	if (r <= 0)
		return r ? 2 : 0;
	if (!e.n_codecs) {
		e.n_codecs = sizeof usual / sizeof *usual;
		memcpy(e.codec, usual, sizeof usual);
	}
	if (!e.json)
		print_head(&e);
	rows = json_array();
	r = 0;
	for (size_t i = 0; i < e.n_codecs && !r; i++)
		r = report(&e, e.codec[i], rows);
	if (!r && e.json) {
		json_dumpf(rows, stdout, JSON_INDENT(1));
		putchar('\n');
	}
	json_decref(rows);
	return r < 0 ? 1 : 0;
}
