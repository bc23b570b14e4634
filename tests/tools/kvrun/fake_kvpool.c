/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/tools/kvrun/fake_kvpool.h"
#include "tests/tools/kvrun/common.h"
#include "kernels/kvp_codec.h"
#include "libclient/kvpool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct fake_kvpool fake;

struct block {
	struct block *next;
	struct block *parent; /* NULL: the root */
	uint32_t *tokens;
	uint32_t n;
	void *payload;
	uint8_t *coded; /* [layer][K, V], see code(); NULL: not yet */
};

struct kvp_client {
	int dummy;
};

struct kvp_space {
	struct kvp_space_desc desc;
	struct kvp_layer layer; /* each of them */
	uint32_t row_bytes;
	uint64_t block_bytes;
};

struct kvp_prefix {
	struct kvp_space *space;
	struct block *chain[64];
	struct block *tail;
	struct kvp_prefix_info info;
};

struct kvp_grant {
	struct kvp_space *space;
	struct block *block; /* once committed */
	void *addr;
};

static struct block *blocks; /* newest first */
static uint64_t block_bytes;

void fake_reset(void)
{
	while (blocks) {
		struct block *b = blocks;

		blocks = b->next;
		munmap(b->payload, block_bytes);
		free(b->coded);
		free(b->tokens);
		free(b);
	}
	fake = (struct fake_kvpool){ .die_after = -1 };
}

static void tick(void)
{
	if (fake.die_after == 0)
		fake.gone = 1;
	else if (fake.die_after > 0)
		fake.die_after--;
}

int kvp_open(const struct kvp_open_opts *opts, struct kvp_client **ret_client)
{
	if (fake.gone && !(opts->flags & KVP_OPEN_LAZY))
		return -ENOENT;
	*ret_client = calloc(1, sizeof(**ret_client));
	return 0;
}

struct kvp_client *kvp_close(struct kvp_client *client)
{
	free(client);
	return NULL;
}

int kvp_last_error(struct kvp_client *client, char *buf, size_t bytes)
{
	assert_non_null(client);
	snprintf(buf, bytes, "%s", fake.gone ? "nobody listens" : "");
	return 0;
}

int kvp_space_open(struct kvp_client *client, const struct kvp_space_desc *desc,
	uint32_t timeout_ms, struct kvp_space **ret_space)
{
	struct kvp_space *s;

	(void)timeout_ms;
	assert_non_null(client);
	if (fake.gone)
		return -ESHUTDOWN;
	assert_int_equal(desc->layout, KVP_LAYOUT_LCND);
	s = calloc(1, sizeof(*s));
	assert_non_null(s);
	s->desc = *desc;
	s->layer = desc->layers[0];
	s->row_bytes = desc->layers[0].kv_heads * desc->layers[0].k_dim *
		       (desc->dtype == KVP_DTYPE_F32 ? 4 : 2);
	s->block_bytes = 2ull * desc->n_layers * desc->block_tokens * s->row_bytes;
	block_bytes = s->block_bytes;
	snprintf(fake.adapter, sizeof(fake.adapter), "%s", desc->adapter ? desc->adapter : "");
	fake.spaces++;
	*ret_space = s;
	return 0;
}

struct kvp_space *kvp_space_close(struct kvp_space *space)
{
	if (space)
		fake.spaces--;
	free(space);
	return NULL;
}

int kvp_space_info(struct kvp_space *space, struct kvp_space_props *ret_info)
{
	ret_info->block_bytes = space->block_bytes;
	ret_info->block_tokens = space->desc.block_tokens;
	ret_info->attached = !fake.gone;
	return 0;
}

static struct block *child(struct block *parent, const uint32_t *tokens, uint32_t n)
{
	for (struct block *b = blocks; b; b = b->next)
		if (b->parent == parent && b->n == n &&
			memcmp(b->tokens, tokens, n * sizeof(*tokens)) == 0)
			return b;
	return NULL;
}

/* The child that agrees longest with what is left. */
static uint32_t find_tail(
	struct block *parent, const uint32_t *tokens, size_t n, struct block **ret_block)
{
	uint32_t best = 0;

	for (struct block *b = blocks; b; b = b->next) {
		uint32_t same = 0;

		while (b->parent == parent && same < b->n && same < n &&
			b->tokens[same] == tokens[same])
			same++;
		if (same > best) {
			best = same;
			*ret_block = b;
		}
	}
	return best;
}

int kvp_match(struct kvp_space *space, const uint32_t *tokens, size_t n,
	const struct kvp_match_opts *opts, struct kvp_prefix **ret_match)
{
	uint32_t size = space->desc.block_tokens, flags = opts->flags;
	struct kvp_prefix *m = calloc(1, sizeof(*m));
	struct block *at = NULL, *b;
	uint32_t i = 0, hidden = fake.hidden;
	int unmapped = fake.unmapped > 0;

	assert_non_null(m);
	m->space = space;
	m->info.size = sizeof(m->info);
	fake.unmapped -= (uint32_t)unmapped;
	while (!fake.gone && !unmapped && (i + 1) * size <= n &&
		(b = child(at, tokens + i * size, size))) {
		m->chain[i++] = at = b;
	}
	if (hidden && i > 0) { /* the last ones of the chain are not there yet */
		i -= hidden < i ? hidden : i;
		at = i ? m->chain[i - 1] : NULL;
	}
	m->info.n_blocks = i;
	m->info.n_tokens = i * size;
	if (!fake.gone && !unmapped && !hidden && !(flags & KVP_MATCH_NO_TAIL))
		m->info.tail_tokens = find_tail(at, tokens + i * size, n - i * size, &m->tail);
	if (m->info.tail_tokens && m->tail->n == n - i * size &&
		m->info.tail_tokens == m->tail->n) { /* a partial block that is all that was left */
		m->chain[m->info.n_blocks++] = m->tail;
		m->info.n_tokens += m->info.tail_tokens;
		m->info.tail_tokens = 0;
	}
	if (!fake.gone && !fake.no_lease)
		m->info.flags |= KVP_MATCHED_LEASED;
	if (!fake.gone && !unmapped && (flags & KVP_MATCH_CLAIM) && m->info.n_tokens < n) {
		m->info.flags |= hidden ? KVP_MATCHED_PENDING : KVP_MATCHED_CLAIMED;
		fake.claims += !hidden;
	}
	fake.matches++;
	*ret_match = m;
	return 0;
}

int kvp_match_info(const struct kvp_prefix *match, struct kvp_prefix_info *ret_info)
{
	*ret_info = match->info;
	return 0;
}

int kvp_wait(struct kvp_prefix *match, uint32_t timeout_ms)
{
	assert_true(match->info.flags & KVP_MATCHED_PENDING);
	assert_true(timeout_ms > 0 && timeout_ms != KVP_DEFAULT_TIMEOUT);
	fake.waits++;
	if (fake.wait_result == 0 && fake.hidden)
		fake.hidden--;
	return fake.wait_result;
}

int kvp_payload(const struct kvp_prefix *match, uint32_t i, struct kvp_payload_info *ret)
{
	if (i >= match->info.n_blocks)
		return -ENOENT;
	if (!(match->info.flags & KVP_MATCHED_LEASED))
		return -ENOLCK;
	ret->addr = match->chain[i]->payload;
	ret->bytes = fake.other_codec ? match->space->block_bytes / 4 : match->space->block_bytes;
	ret->codec = fake.other_codec ? 9 : fake.coded ? 1 : 0;
	ret->tokens = match->chain[i]->n;
	return 0;
}

static struct kvp_plane plane_of(const struct kvp_space *s, uint32_t value)
{
	const struct kvp_layer *l = &s->layer;

	return (struct kvp_plane){ s->desc.block_tokens, l->kv_heads, l->k_dim, s->desc.dtype,
		value ? KVP_PLANE_V : KVP_PLANE_K };
}

/* Bytes from plane to plane. */
static size_t coded_bytes(const struct kvp_space *s)
{
	struct kvp_plane p = plane_of(s, 0);
	size_t bytes;

	assert_int_equal(kvp_plane_bytes(KVP_CODEC_FP8_E4M3, &p, &bytes), 0);
	return (bytes + 63) & ~(size_t)63;
}

static const uint8_t *code(const struct kvp_space *s, struct block *b)
{
	size_t bytes = coded_bytes(s), plane_bytes = (size_t)s->desc.block_tokens * s->row_bytes;
	struct kvp_kernels *k;

	if (b->coded)
		return b->coded;
	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	b->coded = aligned_alloc(64, 2 * s->desc.n_layers * bytes);
	assert_non_null(b->coded);
	for (uint32_t i = 0; i < 2 * s->desc.n_layers; i++) {
		struct kvp_plane p = plane_of(s, i % 2);
		struct kvp_raw_const src = { (const uint8_t *)b->payload + i * plane_bytes,
			s->row_bytes / p.heads, s->row_bytes };

		assert_int_equal(kvp_plane_encode(k, KVP_CODEC_FP8_E4M3, &p, NULL, src,
					 b->coded + i * bytes, bytes),
			0);
	}
	kvp_kernels_free(k);
	return b->coded;
}

/* What a coded block decodes to, as it lies in a native one. */
static void decode(const struct kvp_space *s, struct block *b, uint8_t *to)
{
	size_t bytes = coded_bytes(s), plane_bytes = (size_t)s->desc.block_tokens * s->row_bytes;
	struct kvp_kernels *k;

	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &k), 0);
	for (uint32_t i = 0; i < 2 * s->desc.n_layers; i++) {
		struct kvp_plane p = plane_of(s, i % 2);
		struct kvp_raw dst = { to + i * plane_bytes, s->row_bytes / p.heads, s->row_bytes };

		assert_int_equal(kvp_plane_decode(k, KVP_CODEC_FP8_E4M3, &p, NULL,
					 code(s, b) + i * bytes, bytes, dst),
			0);
	}
	kvp_kernels_free(k);
}

static struct kvp_payload_half half_of(
	const struct kvp_space *s, struct block *b, uint32_t layer, uint32_t value)
{
	struct kvp_plane p = plane_of(s, value);
	uint8_t *at;
	size_t bytes;

	(void)code(s, b);
	at = b->coded + (2 * layer + value) * coded_bytes(s);
	assert_int_equal(kvp_plane_bytes(KVP_CODEC_FP8_E4M3, &p, &bytes), 0);
	if (fake.damaged)
		memset(at + 4 * (fake.damaged == 2), 0x5a, 2);
	return (struct kvp_payload_half){ .addr = at, .bytes = bytes, .codec = KVP_CODEC_FP8_E4M3 };
}

int kvp_payload_planes(const struct kvp_prefix *match, uint32_t i, uint32_t layer,
	struct kvp_payload_layer_info *ret)
{
	const struct kvp_space *s = match->space;

	assert_true(fake.coded && i < match->info.n_blocks && layer < s->desc.n_layers);
	if (fake.no_planes == 1)
		return -EOPNOTSUPP;
	ret->tokens = s->desc.block_tokens;
	ret->k = half_of(s, match->chain[i], layer, 0);
	ret->v = half_of(s, match->chain[i], layer, 1);
	if (fake.no_planes == 2)
		ret->v = (struct kvp_payload_half){ .addr = match->chain[i]->payload,
			.bytes = (size_t)s->desc.block_tokens * s->row_bytes,
			.head_stride = s->row_bytes / s->layer.kv_heads,
			.token_stride = s->row_bytes };
	return 0;
}

int kvp_device_info(struct kvp_client *client, uint32_t device, struct kvp_device_props *ret)
{
	(void)client;
	if (fake.gone || device > 1)
		return -ENOENT;
	ret->state = fake.device && device == 1 ? KVP_DEVICE_IS_UP : KVP_DEVICE_IS_UP + 1;
	return 0;
}

int kvp_warm(struct kvp_prefix *match, const struct kvp_warm_opts *opts, struct kvp_ticket *ret)
{
	assert_int_equal(opts->device, 1);
	assert_true(opts->n > 0 && opts->first + opts->n <= match->info.n_blocks);
	fake.warms++;
	fake.asked = opts->n;
	*ret = (struct kvp_ticket){ { 1, fake.warms } };
	return fake.warm_result;
}

/* Nothing is known of any sequence. */
int kvp_want(struct kvp_space *space, const struct kvp_ids *tokens,
	const struct kvp_want_opts *opts, struct kvp_ticket *ret)
{
	(void)space;
	(void)tokens;
	(void)ret;
	assert_int_equal(opts->within_ms, 7);
	assert_int_equal(fake.matches, 0);
	fake.wants++;
	return fake.want_result;
}

int kvp_report_token_attention(
	const struct kvp_prefix *match, const float *attention, uint32_t n, uint32_t from)
{
	float sum = 0;

	assert_true(n > 0 && n <= match->info.n_tokens && from < n);
	assert_true(n % match->space->desc.block_tokens == 0);
	assert_true(from % match->space->desc.block_tokens == 0);
	for (uint32_t i = 0; i < n; i++) {
		assert_true(attention[i] >= 0);
		sum += attention[i];
	}
	if (!fake.reports++)
		fake.least = fake.most = sum;
	fake.least = sum < fake.least ? sum : fake.least;
	fake.most = sum > fake.most ? sum : fake.most;
	return fake.report_result ? fake.report_result : (int)n;
}

int kvp_ticket_wait(
	struct kvp_client *client, struct kvp_ticket ticket, uint32_t timeout_ms, int *ret_why)
{
	(void)client;
	(void)ret_why;
	assert_int_equal(ticket.opaque[1], fake.warms);
	assert_true(timeout_ms > 0 && timeout_ms != KVP_DEFAULT_TIMEOUT);
	return (int)fake.on_device;
}

int kvp_device_payload(
	const struct kvp_prefix *match, uint32_t i, uint32_t device, struct kvp_payload_info *ret)
{
	assert_int_equal(device, 1);
	return !fake.warms || i >= fake.on_device ? -ENOENT : kvp_payload(match, i, ret);
}

int kvp_release(struct kvp_prefix *match)
{
	if (!match)
		return 0;
	fake.matches--;
	if (match->info.flags & KVP_MATCHED_CLAIMED)
		fake.claims--;
	free(match);
	return 0;
}

int kvp_view_dense(struct kvp_space *space, uint32_t layout, void *base, size_t tokens,
	struct kvp_view_plane *planes, uint64_t *ret_bytes)
{
	assert_int_equal(layout, KVP_VIEW_LCND);
	for (uint32_t l = 0; l < space->desc.n_layers; l++) {
		planes[l].k = (char *)base + (size_t)l * 2 * tokens * space->row_bytes;
		planes[l].v = (char *)planes[l].k + tokens * space->row_bytes;
	}
	*ret_bytes = 2ull * space->desc.n_layers * tokens * space->row_bytes;
	return 0;
}

int64_t kvp_get(const struct kvp_prefix *match, uint32_t from, uint32_t n,
	const struct kvp_view *dst, uint32_t flags)
{
	const struct kvp_space *s = match->space;
	uint32_t size = s->desc.block_tokens, i = from / size;
	struct block *b = i < match->info.n_blocks ? match->chain[i] : match->tail;
	uint8_t *decoded = fake.coded && b->n == size ? malloc(s->block_bytes) : NULL;
	const uint8_t *payload = decoded ? decoded : b->payload;
	uint32_t have = i < match->info.n_blocks ? b->n : match->info.tail_tokens;

	assert_int_equal(flags, 0);
	assert_int_equal(from % size, 0);
	if (fake.get_fails || fake.gone) {
		free(decoded);
		return -ESTALE;
	}
	if (decoded)
		decode(s, b, decoded);
	n = n < have ? n : have;
	for (uint32_t l = 0; l < s->desc.n_layers; l++) {
		const uint8_t *k = payload + (size_t)l * 2 * size * s->row_bytes;

		memcpy(dst->planes[l].k, k, (size_t)n * s->row_bytes);
		memcpy(dst->planes[l].v, k + (size_t)size * s->row_bytes, (size_t)n * s->row_bytes);
	}
	free(decoded);
	return n;
}

int kvp_reserve(struct kvp_space *space, uint32_t timeout_ms, uint32_t *ret_retry_ms,
	struct kvp_grant **ret_grant)
{
	struct kvp_grant *g;

	(void)ret_retry_ms;
	assert_true(timeout_ms != KVP_DEFAULT_TIMEOUT);
	tick();
	if (fake.gone)
		return -ESHUTDOWN;
	if (fake.no_room)
		return -EAGAIN;
	g = calloc(1, sizeof(*g));
	assert_non_null(g);
	g->space = space;
	g->addr = malloc(space->block_bytes);
	assert_non_null(g->addr);
	memset(g->addr, 0xff, space->block_bytes);
	fake.grants++;
	*ret_grant = g;
	return 0;
}

void *kvp_grant_addr(const struct kvp_grant *grant)
{
	return grant->addr;
}

struct kvp_ref kvp_ref_root(void)
{
	return (struct kvp_ref){ { 0, 0 } };
}

int kvp_match_ref(const struct kvp_prefix *match, uint32_t n_blocks, struct kvp_ref *ret)
{
	if (n_blocks > match->info.n_blocks)
		return -EINVAL;
	if (n_blocks && match->chain[n_blocks - 1]->n < match->space->desc.block_tokens)
		return -EINVAL;
	ret->opaque[0] = n_blocks ? (uint64_t)(uintptr_t)match->chain[n_blocks - 1] : 0;
	return 0;
}

int kvp_grant_ref(const struct kvp_grant *grant, struct kvp_ref *ret)
{
	if (!grant->block || grant->block->n < grant->space->desc.block_tokens)
		return -EINVAL;
	ret->opaque[0] = (uint64_t)(uintptr_t)grant->block;
	return 0;
}

int kvp_commit(struct kvp_grant *grant, struct kvp_ref parent, const uint32_t *tokens, uint32_t n,
	struct kvp_prefix *claim, uint32_t flags)
{
	struct block *p = (struct block *)(uintptr_t)parent.opaque[0], *b = child(p, tokens, n);

	assert_int_equal(flags, 0);
	assert_true(n >= 1 && n <= grant->space->desc.block_tokens);
	assert_true(!claim || (claim->info.flags & KVP_MATCHED_CLAIMED));
	if (grant->block)
		return -EALREADY;
	tick();
	if (fake.gone)
		return -ESHUTDOWN;
	if (!b) {
		b = calloc(1, sizeof(*b));
		assert_non_null(b);
		b->tokens = malloc(n * sizeof(*tokens));
		assert_non_null(b->tokens);
		memcpy(b->tokens, tokens, n * sizeof(*tokens));
		b->n = n;
		b->parent = p;
		b->payload = mmap(NULL, grant->space->block_bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert_ptr_not_equal(b->payload, MAP_FAILED);
		memcpy(b->payload, grant->addr, grant->space->block_bytes);
		assert_int_equal(mprotect(b->payload, grant->space->block_bytes, PROT_READ), 0);
		b->next = blocks;
		blocks = b;
	}
	grant->block = b;
	fake.commits++;
	fake.partial_commits += n < grant->space->desc.block_tokens;
	return 0;
}

int kvp_grant_release(struct kvp_grant *grant)
{
	if (!grant)
		return 0;
	fake.grants--;
	free(grant->addr);
	free(grant);
	return 0;
}

int kvp_flush(struct kvp_client *client, uint32_t timeout_ms)
{
	assert_non_null(client);
	assert_true(timeout_ms != KVP_DEFAULT_TIMEOUT);
	return fake.gone ? -ESHUTDOWN : 0;
}
