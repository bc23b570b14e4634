/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless: any elements come back bit for bit, and whatever happens to a payload, every instruction set
 * reads it alike and stays inside it. The first bytes choose the geometry and what to do.
 */
#include "kernels/kvp_codec.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct choice {
	uint8_t tokens, heads, dim8, dtype, what, patches;
};

#define ELEMENTS_MAX 6000u
#define WHAT_PATCH   1u /* encode, change the payload where the input says, decode */
#define WHAT_BYTES   2u /* the input is a payload behind a header that fits */

static struct kvp_kernels *isa[3];
static const unsigned int masks[3] = { 0, KVP_CPU_AVX2, KVP_CPU_ALL };

static void *copy_of(const void *data, size_t n)
{
	void *p;

	/* Exactly as large as it may be, so that the sanitizer sees a byte too far. */
	if (posix_memalign(&p, 16, n ? n : 1))
		abort();
	memcpy(p, data, n);
	return p;
}

static int decode(
	int set, const struct kvp_plane *p, const void *payload, size_t bytes, uint8_t *out)
{
	ptrdiff_t row = 2 * (ptrdiff_t)p->dim;

	return kvp_plane_decode(isa[set], KVP_CODEC_LOSSLESS, p, NULL, payload, bytes,
		(struct kvp_raw){ out, row * (ptrdiff_t)p->tokens, row });
}

/* All instruction sets say the same of a payload, and leave the same. */
static void decode_alike(const struct kvp_plane *p, const void *payload, size_t bytes, size_t raw)
{
	uint8_t *exact = copy_of(payload, bytes), *want = calloc(1, raw), *got = calloc(1, raw);
	int r, checked;

	if (!want || !got)
		abort();
	r = decode(0, p, exact, bytes, want);
	checked = kvp_plane_check(KVP_CODEC_LOSSLESS, p, NULL, exact, bytes);
	if (checked && r != checked)
		abort();
	for (int set = 1; set < 3; set++) {
		memset(got, 0, raw);
		if (decode(set, p, exact, bytes, got) != r || memcmp(got, want, raw) != 0)
			abort();
	}
	free(exact);
	free(want);
	free(got);
}

static void fix_header(const struct kvp_plane *p, size_t bytes, uint8_t *payload)
{
	const struct kvp_plane_hdr hdr = { .magic = KVP_PLANE_MAGIC,
		.version = KVP_PLANE_VERSION,
		.codec = KVP_CODEC_LOSSLESS,
		.bytes = (uint32_t)bytes,
		.tokens = (uint16_t)p->tokens,
		.heads = (uint16_t)p->heads,
		.dim = (uint16_t)p->dim,
		.dtype = (uint8_t)p->dtype,
		.kind = (uint8_t)p->kind };

	memcpy(payload, &hdr, sizeof hdr);
}

/* Elements from the input, over and over, encoded by one set. */
static size_t encode(int set, const struct kvp_plane *p, const uint8_t *data, size_t size,
	uint8_t *raw, size_t raw_bytes, uint8_t *out, size_t bound)
{
	ptrdiff_t row = 2 * (ptrdiff_t)p->dim;
	struct kvp_plane_hdr hdr;

	for (size_t i = 0; i < raw_bytes; i++)
		raw[i] = size ? data[i % size] : 0;
	if (kvp_plane_encode(isa[set], KVP_CODEC_LOSSLESS, p, NULL,
		    (struct kvp_raw_const){ raw, row * (ptrdiff_t)p->tokens, row }, out, bound))
		abort();
	memcpy(&hdr, out, sizeof hdr);
	if (hdr.bytes > bound)
		abort();
	return hdr.bytes;
}

static void round_trip(const struct kvp_plane *p, const uint8_t *raw, size_t raw_bytes,
	const uint8_t *payload, size_t bytes)
{
	uint8_t *exact = copy_of(payload, bytes), *back = calloc(1, raw_bytes);

	for (int set = 0; set < 3; set++)
		if (!back || decode(set, p, exact, bytes, back) ||
			memcmp(back, raw, raw_bytes) != 0)
			abort();
	free(exact);
	free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvp_plane p = { .kind = KVP_PLANE_K };
	uint8_t *raw, *out, *other;
	size_t bound, bytes, raw_bytes;
	struct choice c;

	if (size < sizeof c)
		return 0;
	for (int i = 0; i < 3; i++)
		if (!isa[i] && kvp_kernels_new(masks[i], &isa[i]) < 0)
			abort();
	memcpy(&c, data, sizeof c);
	data += sizeof c;
	size -= sizeof c;
	p.tokens = c.tokens;
	p.heads = c.heads % 4;
	p.dim = 8u * (c.dim8 % 20u);
	p.dtype = c.dtype & 1 ? KVP_DTYPE_BF16 : KVP_DTYPE_F16;
	/* Hundreds of runs a second, not tens. */
	while (p.tokens * p.heads * p.dim > ELEMENTS_MAX)
		p.tokens /= 2;
	if (kvp_plane_bytes(KVP_CODEC_LOSSLESS, &p, &bound) < 0)
		return 0;
	raw_bytes = bound - KVP_PLANE_HDR_BYTES;
	raw = malloc(raw_bytes);
	if (!raw || posix_memalign((void **)&out, 16, bound) ||
		posix_memalign((void **)&other, 16, bound))
		abort();
	if (c.what % 3 == WHAT_BYTES) {
		bytes = KVP_PLANE_HDR_BYTES + (size < raw_bytes ? size : raw_bytes);
		memcpy(out + KVP_PLANE_HDR_BYTES, data, bytes - KVP_PLANE_HDR_BYTES);
		fix_header(&p, bytes, out);
		decode_alike(&p, out, bytes, raw_bytes);
	} else {
		bytes = encode(0, &p, data, size, raw, raw_bytes, out, bound);
		for (int set = 1; set < 3; set++)
			if (encode(set, &p, data, size, raw, raw_bytes, other, bound) != bytes ||
				memcmp(other, out, bytes) != 0)
				abort();
		round_trip(&p, raw, raw_bytes, out, bytes);
		/* Patches of three bytes, where and what, counted from the payload's end. */
		for (size_t i = 0; c.what % 3 == WHAT_PATCH && i < c.patches && 3 * i + 2 < size;
			i++)
			out[bytes - 1 - (data[3 * i] | (size_t)data[3 * i + 1] << 8) % bytes] ^=
				data[3 * i + 2];
		decode_alike(&p, out, bytes, raw_bytes);
	}
	free(raw);
	free(out);
	free(other);
	return 0;
}
