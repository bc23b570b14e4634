/* SPDX-License-Identifier: Apache-2.0 */
/* kvbench estimate: arithmetic only. What a model's cache takes in a codec, and what a budget
 * holds. */
#include "kernels/kvp_codec.h"
#include "tools/kvbench/kvbench.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CODECS_MAX 32

struct model {
	uint32_t layers, heads, dim, block; /* block: tokens per plane */
	uint32_t dtype;
	uint64_t budget; /* bytes; 0: none named */
	uint64_t tokens; /* of one sequence; 0: none named */
	const char *codec[CODECS_MAX];
	int n_codecs;
	int json;
};

/* A positive number with an optional k, m or g (powers of 1024). */
static int number(const char *s, uint64_t max, uint64_t *ret)
{
	char *end;
	uint64_t n, unit = 1;

	errno = 0;
	n = strtoull(s, &end, 10);
	if (*end == 'k' || *end == 'm' || *end == 'g')
		unit = *end == 'k' ? 1u << 10 : *end == 'm' ? 1u << 20 : 1u << 30;
	end += unit > 1;
	if (errno || *s < '0' || *s > '9' || *end || !n || n > max / unit)
		return -EINVAL;
	*ret = n * unit;
	return 0;
}

static int dtype_of(const char *s, uint32_t *ret)
{
	static const char *const names[] = { "f32", "f16", "bf16", "f8" };

	for (uint32_t i = 0; i < 4; i++) {
		if (strcmp(s, names[i]) == 0) {
			*ret = KVP_DTYPE_F32 + i;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse(int argc, char **argv, struct model *m)
{
	struct {
		const char *name;
		uint64_t max, value;
	} opt[] = { { "--layers", 4096, m->layers }, { "--heads", KVP_PLANE_HEADS_MAX, m->heads },
		{ "--dim", KVP_PLANE_DIM_MAX, m->dim },
		{ "--block", KVP_PLANE_TOKENS_MAX, m->block }, { "--budget", UINT64_C(1) << 60, 0 },
		{ "--tokens", UINT64_C(1) << 40, 0 } };

	for (int i = 1; i < argc; i++) {
		size_t o = 0;

		if (strcmp(argv[i], "--json") == 0) {
			m->json = 1;
			continue;
		}
		if (i + 1 == argc)
			return -EINVAL;
		while (o < sizeof opt / sizeof *opt && strcmp(argv[i], opt[o].name) != 0)
			o++;
		i++;
		if (o < sizeof opt / sizeof *opt) {
			if (number(argv[i], opt[o].max, &opt[o].value) < 0)
				return -EINVAL;
		} else if (strcmp(argv[i - 1], "--dtype") == 0) {
			if (dtype_of(argv[i], &m->dtype) < 0)
				return -EINVAL;
		} else if (strcmp(argv[i - 1], "--codec") == 0 && m->n_codecs < CODECS_MAX) {
			m->codec[m->n_codecs++] = argv[i];
		} else {
			return -EINVAL;
		}
	}
	m->layers = (uint32_t)opt[0].value;
	m->heads = (uint32_t)opt[1].value;
	m->dim = (uint32_t)opt[2].value;
	m->block = (uint32_t)opt[3].value;
	m->budget = opt[4].value;
	m->tokens = opt[5].value;
	return 0;
}

/* Bytes of K and V of one layer's block, without headers, and with them. */
static int page_bytes(
	const struct model *m, const char *name, uint64_t *ret_bare, uint64_t *ret_all)
{
	uint32_t codec[2];
	uint64_t all = 0, bare = 0;

	if (kvp_codec_parse_pair(name, &codec[0], &codec[1]) < 0)
		return -ENOENT;
	for (uint32_t kind = 0; kind < 2; kind++) {
		struct kvp_plane p = { m->block, m->heads, m->dim, m->dtype, kind };
		size_t bytes;

		if (kvp_plane_bytes(codec[kind], &p, &bytes) < 0)
			return -EINVAL;
		all += bytes;
		bare += bytes - (codec[kind] ? KVP_PLANE_HDR_BYTES : 0);
	}
	*ret_bare = bare;
	*ret_all = all;
	return 0;
}

static int report(const struct model *m, const char *name, int first)
{
	uint64_t bare = 0, all = 0, blocks, held = 0;
	double per_token;
	int r = page_bytes(m, name, &bare, &all);

	if (r < 0) {
		fprintf(stderr, "kvbench estimate: %s: %s\n", name,
			r == -ENOENT ? "no such codec" : "cannot hold such blocks");
		return r;
	}
	per_token = (double)bare * m->layers / m->block;
	/* Whole tokens; where a block is no whole number of bytes per token, the last is cut off.
	 */
	if (m->budget)
		held = (uint64_t)((double)m->budget / per_token);
	blocks = (m->tokens + m->block - 1) / m->block;
	if (m->json)
		printf("%s\n{\"codec\":\"%s\",\"bytes_per_token\":%.3f,\"page_bytes\":%llu,"
		       "\"stored_page_bytes\":%llu,\"tokens_in_budget\":%llu,"
		       "\"sequences_in_budget\":%.2f,\"sequence_bytes\":%llu}",
			first ? "" : ",", name, per_token, (unsigned long long)bare,
			(unsigned long long)all, (unsigned long long)held,
			m->tokens ? (double)held / (double)m->tokens : 0.0,
			(unsigned long long)(blocks * all * m->layers));
	else
		printf("%-24s %12.1f %10llu %10llu %14llu %10.2f %16llu\n", name, per_token,
			(unsigned long long)bare, (unsigned long long)all, (unsigned long long)held,
			m->tokens ? (double)held / (double)m->tokens : 0.0,
			(unsigned long long)(blocks * all * m->layers));
	return 0;
}

int kvbench_estimate(int argc, char **argv)
{
	static const char *const usual[] = { "native", "fp8", "4bit", "3bit", "2bit" };
	static const char usage[] =
		"kvbench estimate [--layers N] [--heads N] [--dim N] [--block TOKENS] "
		"[--dtype f32|f16|bf16|f8] [--codec NAME]... [--budget BYTES[k|m|g]] [--tokens N] "
		"[--json]\n"
		"  --budget  memory for keys and values: how many tokens it holds\n"
		"  --tokens  of one sequence: what it takes as stored, headers included";
	struct model m = {
		.layers = 32, .heads = 8, .dim = 128, .block = 64, .dtype = KVP_DTYPE_F16
	};
	int r = 0;

	if (argc > 1 && strcmp(argv[1], "--help") == 0) {
		printf("usage: %s\n", usage);
		return 0;
	}
	if (parse(argc, argv, &m) < 0) {
		fprintf(stderr, "usage: %s\n", usage);
		return 2;
	}
	if (!m.n_codecs) {
		m.n_codecs = sizeof usual / sizeof *usual;
		memcpy(m.codec, usual, sizeof usual);
	}
	if (m.json)
		printf("[");
	else
		printf("%-24s %12s %10s %10s %14s %10s %16s\n", "codec", "bytes/token", "page",
			"stored", "tokens", "sequences", "bytes/sequence");
	for (int i = 0; i < m.n_codecs && !r; i++)
		r = report(&m, m.codec[i], i == 0);
	if (m.json)
		printf("\n]\n");
	return r < 0 ? 1 : 0;
}
