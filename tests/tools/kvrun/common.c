/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/tools/kvrun/common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint64_t test_seed(void)
{
	const char *s = getenv("KVP_TEST_SEED");
	uint64_t seed = s ? strtoull(s, NULL, 0) : UINT64_C(0x6b7672756e);

	print_message("seed 0x%llx (KVP_TEST_SEED)\n", (unsigned long long)seed);
	return seed ? seed : 1;
}

uint64_t test_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(0x2545f4914f6cdd1d);
}

float test_normal(uint64_t *state)
{
	double sum = -6;

	for (int i = 0; i < 12; i++)
		sum += (double)(test_random(state) >> 11) * 0x1p-53;
	return (float)sum;
}

const char *test_bytes4m(void)
{
	return KVP_SOURCE_ROOT "/share/models/bytes-4m";
}

const char *test_data(const char *name)
{
	static char path[4096];
	const char *root = getenv("KVPOOL_DATA");

	snprintf(
		path, sizeof(path), "%s/%s", root ? root : KVP_SOURCE_ROOT "/../shared/data", name);
	if (access(path, R_OK) == 0)
		return path;
	print_message("skipped: %s is not there (KVPOOL_DATA)\n", path);
	return NULL;
}

static float *random_matrix(float **at, size_t count, float scale, float mean, uint64_t *state)
{
	float *p = *at;

	for (size_t i = 0; i < count; i++)
		p[i] = mean + scale * test_normal(state);
	*at += count;
	return p;
}

struct kvr_model *test_model_new(const struct kvr_config *c, uint64_t *state)
{
	struct kvr_model *m = calloc(1, sizeof(*m));
	size_t h = c->hidden, q = (size_t)c->heads * c->head_dim, f = c->ffn;
	size_t kv = (size_t)c->kv_heads * c->head_dim;
	float s = 1 / sqrtf((float)h), *at;

	assert_non_null(m);
	m->config = *c;
	m->name = strdup("random");
	m->layer = calloc(c->layers, sizeof(*m->layer));
	m->arena = malloc(
		sizeof(float) *
		(2 * c->vocab * h + h + c->layers * (2 * h + 2 * q * h + 2 * kv * h + 3 * f * h)));
	assert_non_null(m->layer);
	assert_non_null(m->arena);
	at = m->arena;
	m->embedding = random_matrix(&at, c->vocab * h, 1, 0, state);
	m->norm_final = random_matrix(&at, h, .1f, 1, state);
	m->classifier = c->tied ? m->embedding : random_matrix(&at, c->vocab * h, 3 * s, 0, state);
	for (uint32_t i = 0; i < c->layers; i++) {
		struct kvr_layer *l = &m->layer[i];

		l->norm_attn = random_matrix(&at, h, .1f, 1, state);
		l->wq = random_matrix(&at, q * h, 2 * s, 0, state);
		l->wk = random_matrix(&at, kv * h, 2 * s, 0, state);
		l->wv = random_matrix(&at, kv * h, s, 0, state);
		l->wo = random_matrix(&at, h * q, s, 0, state);
		l->norm_ffn = random_matrix(&at, h, .1f, 1, state);
		l->w_gate = random_matrix(&at, f * h, s, 0, state);
		l->w_up = random_matrix(&at, f * h, s, 0, state);
		l->w_down = random_matrix(&at, h * f, s, 0, state);
	}
	return m;
}

/* One sealed block; `tokens` is the whole chain up to its end. */
struct kept {
	uint32_t *tokens;
	uint32_t n;
	void *bytes; /* a mapping without PROT_WRITE */
	size_t mapped;
};

struct test_memory {
	struct kept *kept;
	size_t n;
};

struct test_memory *test_memory_new(void)
{
	struct test_memory *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	return m;
}

void test_memory_free(struct test_memory *m)
{
	for (size_t i = 0; i < m->n; i++) {
		munmap(m->kept[i].bytes, m->kept[i].mapped);
		free(m->kept[i].tokens);
	}
	free(m->kept);
	free(m);
}

size_t test_memory_blocks(const struct test_memory *m)
{
	return m->n;
}

struct store {
	struct kvr_kv kv;
	struct test_memory *memory;
	uint32_t *chain;
	uint32_t n_chain;
	void *block[256];
	int own[256];
	uint32_t n_blocks;
};

static struct kept *lookup(struct test_memory *m, const uint32_t *tokens, uint32_t n)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->kept[i].n == n &&
			memcmp(m->kept[i].tokens, tokens, n * sizeof(*tokens)) == 0)
			return &m->kept[i];
	return NULL;
}

static void clear(struct store *s)
{
	for (uint32_t i = 0; i < s->n_blocks; i++)
		if (s->own[i])
			free(s->block[i]);
	s->n_blocks = 0;
	s->n_chain = 0;
}

static int store_start(
	struct kvr_kv *kv, const uint32_t *tokens, uint32_t n, uint32_t limit, uint32_t *ret_reused)
{
	struct store *s = (struct store *)kv;
	uint32_t size = kv->geom.block_tokens, at = 0;
	struct kept *k;

	(void)n;
	clear(s);
	while (at + size <= limit && (k = lookup(s->memory, tokens, at + size)) != NULL) {
		s->block[s->n_blocks] = k->bytes;
		s->own[s->n_blocks++] = 0;
		at += size;
	}
	s->chain = realloc(s->chain, (at + 1) * sizeof(*tokens));
	assert_non_null(s->chain);
	memcpy(s->chain, tokens, at * sizeof(*tokens));
	s->n_chain = at;
	*ret_reused = at;
	return 0;
}

static int store_grow(struct kvr_kv *kv, uint32_t index)
{
	struct store *s = (struct store *)kv;

	assert_int_equal(index, s->n_blocks);
	assert_true(index < 256);
	s->block[index] = kvr_block_alloc(&kv->geom);
	assert_non_null(s->block[index]);
	memset(s->block[index], 0xff, kvr_block_bytes(&kv->geom)); /* NaN until written */
	s->own[index] = 1;
	s->n_blocks++;
	return 0;
}

static void *store_block(struct kvr_kv *kv, uint32_t index)
{
	struct store *s = (struct store *)kv;

	assert_true(index < s->n_blocks);
	return s->block[index];
}

static void store_seal(struct kvr_kv *kv, uint32_t index, const uint32_t *tokens, uint32_t n)
{
	struct store *s = (struct store *)kv;
	size_t bytes = kvr_block_bytes(&kv->geom);
	struct kept k = { .n = s->n_chain + n, .mapped = bytes };

	assert_int_equal(s->n_chain, index * kv->geom.block_tokens);
	s->chain = realloc(s->chain, k.n * sizeof(*tokens));
	assert_non_null(s->chain);
	memcpy(s->chain + s->n_chain, tokens, n * sizeof(*tokens));
	if (n < kv->geom.block_tokens)
		return;
	s->n_chain = k.n;
	if (lookup(s->memory, s->chain, k.n)) {
		/* whoever computes a block gets the same bytes */
		assert_memory_equal(
			lookup(s->memory, s->chain, k.n)->bytes, s->block[index], bytes);
		return;
	}
	k.tokens = malloc(k.n * sizeof(*tokens));
	k.bytes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_non_null(k.tokens);
	assert_ptr_not_equal(k.bytes, MAP_FAILED);
	memcpy(k.tokens, s->chain, k.n * sizeof(*tokens));
	memcpy(k.bytes, s->block[index], bytes);
	assert_int_equal(mprotect(k.bytes, bytes, PROT_READ), 0);
	s->memory->kept = realloc(s->memory->kept, (s->memory->n + 1) * sizeof(k));
	assert_non_null(s->memory->kept);
	s->memory->kept[s->memory->n++] = k;
}

static void store_end(struct kvr_kv *kv)
{
	clear((struct store *)kv);
}

static void store_free(struct kvr_kv *kv)
{
	struct store *s = (struct store *)kv;

	clear(s);
	free(s->chain);
	free(s);
}

static const struct kvr_kv_ops store_ops = {
	.start = store_start,
	.grow = store_grow,
	.block = store_block,
	.seal = store_seal,
	.end = store_end,
	.free = store_free,
};

struct kvr_kv *test_store_new(const struct kvr_geom *geom, struct test_memory *memory)
{
	struct store *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->kv = (struct kvr_kv){ .ops = &store_ops, .geom = *geom };
	s->memory = memory;
	return &s->kv;
}
