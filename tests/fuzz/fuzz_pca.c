/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pca: what one instruction set encodes all decode alike, never longer than its bound; hostile payloads are
 * refused by all or none, touch nothing that is not theirs, and give finite numbers.
 */
#include "kernels/kvp_calib.h"
#include "tests/kernels/calib_make.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct choice {
	uint8_t tokens, calib, kind, what, patches;
	uint8_t position[3];
};

#define WHAT_PATCH 1u /* encode, change the payload where the input says, decode */
#define WHAT_BYTES 2u /* the input is a payload behind a header that fits */

static struct kvp_kernels *isa[3];
static const unsigned int masks[3] = { 0, KVP_CPU_AVX2, KVP_CPU_ALL };

/* Escapes, low symbols, several transforms, ranks below the width, more than one block of channels. */
static const struct calib_make makes[] = {
	{ 1, 2, 16, 2, 32, 4, 0, 9, 0.3f, KVP_ROPE_HALF_SPLIT },
	{ 1, 3, 24, 1, 20, 3, 2, 3, 0.05f, KVP_ROPE_INTERLEAVED },
	{ 1, 1, 8, 1, 1, 1, 7, 1, 0.5f, KVP_ROPE_NONE },
	{ 1, 3, 24, 3, 70, 64, 1, 127, 0.01f, KVP_ROPE_HALF_SPLIT },
};
#define MAKES (sizeof makes / sizeof *makes)
static struct kvp_calib_set *sets[MAKES];

static void start(void)
{
	if (isa[0])
		return;
	for (int i = 0; i < 3; i++)
		if (kvp_kernels_new(masks[i], &isa[i]) < 0)
			abort();
	inputs_reseed(1);
	for (size_t i = 0; i < MAKES; i++) {
		size_t bytes;
		void *file = calib_make(&makes[i], &bytes);

		if (kvp_calib_set_new(file, bytes, &sets[i]) < 0)
			abort();
		free(file);
	}
}

static void *copy_of(const void *data, size_t n)
{
	void *p;

	/* Exactly as large as it may be, so that the sanitizer sees a byte too far. */
	if (posix_memalign(&p, 16, n ? n : 1))
		abort();
	if (n && data)
		memcpy(p, data, n);
	return p;
}

static struct kvp_raw dense(const struct kvp_plane *p, void *data)
{
	const ptrdiff_t row = 4 * (ptrdiff_t)p->dim;

	return (struct kvp_raw){ data, row * (ptrdiff_t)p->tokens, row };
}

/* All instruction sets say the same of a payload, and leave the same, which is finite. */
static int decode_alike(const struct kvp_plane *p, const struct kvp_calib *calib,
	const void *payload, size_t bytes, int finite)
{
	const size_t n = (size_t)p->tokens * p->heads * p->dim;
	uint8_t *exact = copy_of(payload, bytes);
	float *want = copy_of(NULL, 4 * n), *got = copy_of(NULL, 4 * n);
	int r;

	memset(want, 0, 4 * n);
	r = kvp_plane_decode(isa[0], KVP_CODEC_PCA, p, calib, exact, bytes, dense(p, want));
	for (int s = 1; s < 3; s++) {
		memset(got, 0, 4 * n);
		if (kvp_plane_decode(
			    isa[s], KVP_CODEC_PCA, p, calib, exact, bytes, dense(p, got)) != r ||
			memcmp(got, want, 4 * n) != 0)
			abort();
	}
	for (size_t i = 0; i < n && finite; i++)
		if (!isfinite(want[i]))
			abort();
	free(exact);
	free(want);
	free(got);
	return r;
}

static void fix_header(
	const struct kvp_plane *p, const struct kvp_calib *calib, size_t bytes, uint8_t *payload)
{
	const struct kvp_plane_hdr hdr = { .magic = KVP_PLANE_MAGIC,
		.version = KVP_PLANE_VERSION,
		.codec = KVP_CODEC_PCA,
		.bytes = (uint32_t)bytes,
		.tokens = (uint16_t)p->tokens,
		.heads = (uint16_t)p->heads,
		.dim = (uint16_t)p->dim,
		.dtype = (uint8_t)p->dtype,
		.kind = (uint8_t)p->kind,
		.calib = calib->digest };

	memcpy(payload, &hdr, sizeof hdr);
}

/*
 * Elements from the input, over and over; n instruction sets, the fastest first, write the same
 * payload.
 */
static size_t encode_alike(const struct kvp_plane *p, const struct kvp_encode_opts *o, int n,
	const uint8_t *data, size_t size, uint8_t *out, size_t bound)
{
	const size_t raw = 4 * (size_t)p->tokens * p->heads * p->dim;
	uint8_t *x = copy_of(NULL, raw), *other = copy_of(NULL, bound);
	const struct kvp_raw d = dense(p, x);
	const struct kvp_raw_const src = { d.data, d.head_stride, d.token_stride };
	struct kvp_plane_hdr hdr, again;

	for (size_t i = 0; i < raw; i++)
		x[i] = size ? data[i % size] : 0;
	if (kvp_plane_encode(isa[2], KVP_CODEC_PCA, p, o, src, out, bound))
		abort();
	memcpy(&hdr, out, sizeof hdr);
	if (hdr.bytes > bound)
		abort();
	for (int s = 1; s < n; s++) {
		if (kvp_plane_encode(isa[2 - s], KVP_CODEC_PCA, p, o, src, other, bound))
			abort();
		memcpy(&again, other, sizeof again);
		if (again.bytes != hdr.bytes || memcmp(other, out, hdr.bytes) != 0)
			abort();
	}
	free(x);
	free(other);
	return hdr.bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvp_encode_opts o = { .size = sizeof o };
	struct kvp_plane p = { .dtype = KVP_DTYPE_F32 };
	const struct calib_make *m;
	size_t bound, bytes;
	struct choice c;
	uint8_t *out;

	if (size < sizeof c)
		return 0;
	start();
	memcpy(&c, data, sizeof c);
	data += sizeof c;
	size -= sizeof c;
	m = &makes[c.calib % MAKES];
	p.tokens = 1 + c.tokens % 40;
	p.heads = m->heads;
	p.dim = m->dim;
	p.kind = c.kind & 1;
	o.calib = kvp_calib_set_find(sets[c.calib % MAKES], 0, p.kind);
	memcpy(&o.position, c.position, sizeof c.position);
	if (kvp_plane_bytes(KVP_CODEC_PCA, &p, &bound) < 0)
		abort();
	out = copy_of(NULL, bound);
	if (c.what % 3 == WHAT_BYTES) {
		bytes = size < bound - KVP_PLANE_HDR_BYTES ? size : bound - KVP_PLANE_HDR_BYTES - 1;
		memcpy(out + KVP_PLANE_HDR_BYTES, data, bytes);
		bytes += KVP_PLANE_HDR_BYTES;
		fix_header(&p, o.calib, bytes, out);
		decode_alike(&p, o.calib, out, bytes, 1);
	} else {
		/* What is patched afterwards need not be made slowly: others see that it is right. */
		bytes = encode_alike(
			&p, &o, c.what % 3 == WHAT_PATCH ? 1 : 3, data, size, out, bound);
		if (c.what % 3 != WHAT_PATCH &&
			decode_alike(&p, o.calib, out, bytes, bytes < bound))
			abort();
		/* Patches of three bytes, where and what, counted from the payload's end. */
		for (size_t i = 0; c.what % 3 == WHAT_PATCH && i < c.patches && 3 * i + 2 < size;
			i++)
			out[bytes - 1 - (data[3 * i] | (size_t)data[3 * i + 1] << 8) % bytes] ^=
				data[3 * i + 2];
		if (c.what % 3 == WHAT_PATCH)
			decode_alike(&p, o.calib, out, bytes, bytes < bound);
	}
	free(out);
	return 0;
}
