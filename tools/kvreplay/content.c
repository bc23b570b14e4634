/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads that follow from keys, natively and as a codec makes them. */
#include "tools/kvreplay/content.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kvp_codec.h"

#define NUMBERS 1021u /* sums of four bytes */
#define MIDDLE  510

struct content {
	uint32_t tokens, dim;
	bool numbers;
	uint16_t half[NUMBERS]; /* the fp16 of (sum - MIDDLE) / 128: a deviation of 1.15 */
	struct kvp_kernels *kernels;
	uint64_t bytes;  /* of a native payload */
	uint8_t *native; /* scratch, of so many each: as written, */
	uint8_t *coded;  /* a plane of it as coded, and a header's room more, */
	uint8_t *back;   /* what that decodes to, */
	uint8_t *got;    /* and what the library reads */
};

#define HEADER KVP_PLANE_HDR_BYTES

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint64_t word(struct kvp_digest key, uint64_t i)
{
	return mix(key.lo + i * UINT64_C(0x9e3779b97f4a7c15)) ^ key.hi;
}

/* fp16 of n / 128, exactly: at most 10 bits. */
static uint16_t half_of(int n)
{
	uint32_t m = (uint32_t)(n < 0 ? -n : n), top;

	if (!n)
		return 0;
	top = 31 - (uint32_t)__builtin_clz(m);
	return (uint16_t)((n < 0 ? 0x8000u : 0) | (top - 7 + 15) << 10 | (m << (10 - top) & 0x3ff));
}

static uint16_t number(const struct content *c, uint32_t bits)
{
	return c->half[(bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24)];
}

int content_new(uint32_t block_tokens, uint32_t dim, bool numbers, struct content **ret_content)
{
	struct content *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->tokens = block_tokens;
	c->dim = dim;
	c->numbers = numbers;
	c->bytes = UINT64_C(4) * dim * block_tokens;
	for (uint32_t i = 0; i < NUMBERS; i++)
		c->half[i] = half_of((int)i - MIDDLE);
	if (numbers) {
		size_t room = ((c->bytes + HEADER) + 63) / 64 * 64;

		c->native = aligned_alloc(64, room);
		c->coded = aligned_alloc(64, room);
		c->back = aligned_alloc(64, room);
		c->got = aligned_alloc(64, room);
		if (!c->native || !c->coded || !c->back || !c->got ||
			kvp_kernels_new(KVP_CPU_ALL, &c->kernels) < 0) {
			content_free(c);
			return -ENOMEM;
		}
	}
	*ret_content = c;
	return 0;
}

struct content *content_free(struct content *c)
{
	if (!c)
		return NULL;
	kvp_kernels_free(c->kernels);
	free(c->native);
	free(c->coded);
	free(c->back);
	free(c->got);
	free(c);
	return NULL;
}

void content_write(const struct content *c, struct kvp_digest key, void *out)
{
	uint64_t *words = out;
	uint16_t *halves = out;

	if (c->numbers) {
		for (uint64_t i = 0; i < c->bytes / 4; i++) {
			uint64_t w = word(key, i);

			halves[2 * i] = number(c, (uint32_t)w);
			halves[2 * i + 1] = number(c, (uint32_t)(w >> 32));
		}
	} else {
		for (uint64_t i = 0; i < c->bytes / 8; i++)
			words[i] = word(key, i);
	}
}

bool content_is(struct content *c, struct kvp_digest key, const void *have, uint64_t bytes)
{
	const uint64_t *words = have;
	uint64_t diff = 0;

	if (bytes != c->bytes)
		return false;
	if (c->numbers) {
		content_write(c, key, c->native);
		return !memcmp(c->native, have, bytes);
	}
	for (uint64_t i = 0; i < bytes / 8; i++)
		diff |= words[i] ^ word(key, i);
	return !diff;
}

/* One plane of a coded block, whose elements begin so far into the native payload. */
static bool plane_is(
	struct content *c, const struct kvp_payload_half *half, uint32_t kind, uint64_t at)
{
	const struct kvp_plane p = { c->tokens, 1, c->dim, KVP_DTYPE_F16, kind };
	const uint8_t *src = c->native + at;
	ptrdiff_t row = (ptrdiff_t)c->dim * 2, plane = row * (ptrdiff_t)c->tokens;
	size_t bytes;

	if (!half->addr)
		return false;
	if (half->codec == KVP_CODEC_NATIVE) {
		memcpy(c->back + at, src, (size_t)plane);
		return half->token_stride == (size_t)row && !memcmp(half->addr, src, (size_t)plane);
	}
	if (kvp_plane_bytes(half->codec, &p, &bytes) < 0 || bytes > c->bytes ||
		half->bytes != bytes)
		return false;
	memset(c->coded, 0, bytes); /* a codec whose tokens share bits may leave room behind them */
	return kvp_plane_encode(c->kernels, half->codec, &p, NULL,
		       (struct kvp_raw_const){ src, plane, row }, c->coded, bytes) == 0 &&
	       !memcmp(c->coded, half->addr, bytes) &&
	       kvp_plane_decode(c->kernels, half->codec, &p, NULL, c->coded, bytes,
		       (struct kvp_raw){ c->back + at, plane, row }) == 0;
}

bool content_is_coded(
	struct content *c, struct kvp_digest key, const struct kvp_prefix *m, uint32_t i)
{
	struct kvp_payload_layer_info planes = { .size = sizeof(planes) };
	size_t row = (size_t)c->dim * 2;
	struct kvp_view_plane to = {
		.k = c->got,
		.v = c->got + c->bytes / 2,
		.k_token_stride = row,
		.v_token_stride = row,
		.k_head_stride = row,
		.v_head_stride = row,
	};
	const struct kvp_view view = { .size = sizeof(view), .planes = &to };

	if (!c->numbers)
		return false;
	content_write(c, key, c->native);
	return kvp_payload_planes(m, i, 0, &planes) == 0 &&
	       plane_is(c, &planes.k, KVP_PLANE_K, 0) &&
	       plane_is(c, &planes.v, KVP_PLANE_V, c->bytes / 2) &&
	       kvp_get(m, i * c->tokens, c->tokens, &view, 0) == (int64_t)c->tokens &&
	       !memcmp(c->got, c->back, c->bytes);
}
