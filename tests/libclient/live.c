/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/libclient/live.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pid_t stopped;

/* What happens at once on an idle machine is waited for a minute: tests run where others compute as well. */
#define SOON    12000u
#define SOON_US 5000

_Noreturn void give_up(void)
{
	if (stopped)
		kill(stopped, SIGCONT);
	_exit(1);
}

const struct kvp_layer layers[2] = {
	{ .index = 0, .kv_heads = 4, .k_dim = 32, .v_dim = 32 },
	{ .index = 1, .kv_heads = 4, .k_dim = 32, .v_dim = 32 },
};

struct kvp_space_desc model(const char *name, uint32_t layout)
{
	struct kvp_space_desc d = {
		.size = sizeof(d),
		.model = name,
		.dtype = KVP_DTYPE_BF16,
		.layout = layout,
		.n_layers = 2,
		.layers = layers,
		.rope_pairing = KVP_ROPE_HALF_SPLIT,
		.rope_dim = 32,
		.rope_theta = 10000,
	};

	return d;
}

void fill(struct engine *e, uint32_t seed)
{
	for (uint32_t t = 0; t < N + T; t++) {
		e->tokens[t] = seed * 7919 + t * 3;
		for (uint32_t i = 0; i < TOKEN_BYTES; i++)
			e->kv[(size_t)t * TOKEN_BYTES + i] =
				(uint8_t)(e->tokens[t] * 2654435761u >> 24 ^ i * 37);
	}
}

struct engine *engine_new(const char *name, uint32_t layout, uint32_t seed)
{
	struct engine *e = calloc(1, sizeof(*e));
	struct kvp_space_desc d = model(name, layout);
	uint64_t bytes;

	CHECK(e && (e->kv = malloc((size_t)(N + T) * TOKEN_BYTES)));
	EQUAL(kvp_open(NULL, &e->client), 0);
	EQUAL(kvp_space_open(e->client, &d, KVP_DEFAULT_TIMEOUT, &e->space), 0);
	fill(e, seed);
	EQUAL(kvp_view_dense(e->space, KVP_VIEW_NCLD, e->kv, N + T, e->planes, &bytes), 0);
	EQUAL(bytes, (N + T) * TOKEN_BYTES);
	e->view = (struct kvp_view){ .size = sizeof(e->view), .planes = e->planes };
	return e;
}

void engine_free(struct engine *e)
{
	kvp_space_close(e->space);
	kvp_close(e->client);
	free(e->kv);
	free(e);
}

void store(struct engine *e, uint32_t n, uint32_t flags)
{
	struct kvp_put_opts o = { .size = sizeof(o), .flags = flags, .timeout_ms = WAIT_MS };

	EQUAL(kvp_put(e->space, e->tokens, n, 0, &e->view, &o, NULL),
		flags & KVP_PUT_PARTIAL ? n : n / T * T);
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
}

struct kvp_prefix *find(
	struct engine *e, uint32_t n, uint32_t flags, struct kvp_prefix_info *ret_info)
{
	struct kvp_match_opts o = {
		.size = sizeof(o), .flags = flags, .timeout_ms = KVP_DEFAULT_TIMEOUT
	};
	struct kvp_prefix *m;

	ret_info->size = sizeof(*ret_info);
	EQUAL(kvp_match(e->space, e->tokens, n, &o, &m), 0);
	EQUAL(kvp_match_info(m, ret_info), 0);
	return m;
}

struct kvp_prefix *find_soon(
	struct engine *e, uint32_t n, uint32_t want_tokens, struct kvp_prefix_info *ret_info)
{
	for (uint32_t i = 0; i < SOON; i++) {
		struct kvp_prefix *m = find(e, n, 0, ret_info);

		if (ret_info->n_tokens + ret_info->tail_tokens >= want_tokens)
			return m;
		kvp_release(m);
		usleep(SOON_US);
	}
	EQUAL(ret_info->n_tokens + ret_info->tail_tokens, want_tokens);
	return NULL;
}

uint32_t found_soon(struct engine *e, uint32_t n, uint32_t flags, uint32_t want_tokens)
{
	struct kvp_prefix_info info;

	for (uint32_t i = 0; i < SOON; i++) {
		kvp_release(find(e, n, flags, &info));
		if (info.n_tokens + info.tail_tokens == want_tokens)
			break;
		usleep(SOON_US);
	}
	return info.n_tokens + info.tail_tokens;
}

void same_bytes(struct engine *e, struct kvp_prefix *m, uint32_t n)
{
	uint8_t *back = malloc((size_t)n * TOKEN_BYTES);
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	uint64_t bytes;

	CHECK(back);
	EQUAL(kvp_view_dense(e->space, KVP_VIEW_NCLD, back, n, planes, &bytes), 0);
	EQUAL(kvp_get(m, 0, n, &v, KVP_GET_VERIFY), n);
	CHECK(memcmp(back, e->kv, (size_t)n * TOKEN_BYTES) == 0);
	free(back);
}

int live_main(const struct live_test *tests, size_t n)
{
	if (!getenv("KVPOOL_SOCKET")) {
		printf("skipped: KVPOOL_SOCKET names no daemon\n");
		return 77;
	}
	for (size_t i = 0; i < n; i++) {
		printf("%s\n", tests[i].name);
		fflush(stdout);
		tests[i].run();
	}
	return 0;
}
