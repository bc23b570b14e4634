/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding and attending over hostile payloads: nothing outside them is read, nothing outside the
 * destination is written, everything decoded is finite. The first bytes choose the geometry; half
 * of the inputs get a valid header, or they would never come past it.
 */
#include "kernels/kvp_attend.h"
#include "kernels/kvp_codec.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct choice {
	uint16_t codec;
	uint8_t tokens, heads, dim8, kind, isa, fix;
};

static const unsigned int masks[] = { 0, KVP_CPU_AVX2, KVP_CPU_ALL };

static void fix_header(uint32_t codec, const struct kvp_plane *p, size_t bytes, uint8_t *payload)
{
	struct kvp_plane_hdr hdr;

	memcpy(&hdr, payload, sizeof hdr);
	hdr.magic = KVP_PLANE_MAGIC;
	hdr.version = KVP_PLANE_VERSION;
	hdr.reserved0 = 0;
	hdr.codec = codec;
	hdr.bytes = (uint32_t)bytes;
	hdr.tokens = (uint16_t)p->tokens;
	hdr.heads = (uint16_t)p->heads;
	hdr.dim = (uint16_t)p->dim;
	hdr.dtype = (uint8_t)p->dtype;
	hdr.kind = (uint8_t)p->kind;
	hdr.exponent %= 120;
	hdr.reserved1 = 0;
	hdr.calib = 0;
	memset(hdr.reserved2, 0, sizeof hdr.reserved2);
	if (KVP_CODEC_FAMILY(codec) != KVP_FAMILY_TQ &&
		KVP_CODEC_FAMILY(codec) != KVP_FAMILY_HADAMARD)
		hdr.seed = 0;
	memcpy(payload, &hdr, sizeof hdr);
}

static void attend(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const uint8_t *payload, size_t bytes)
{
	struct kvp_attend_plane plane = {
		.codec = codec, .dtype = p->dtype, .data = payload, .bytes = bytes
	};
	struct kvp_attend_part part = { .tokens = p->tokens, .k = plane, .v = plane };
	struct kvp_attend a = { .size = sizeof a,
		.queries = 1,
		.q_heads = p->heads,
		.kv_heads = p->heads,
		.k_dim = p->dim,
		.v_dim = p->dim,
		.scale = 0.1f,
		.parts = &part,
		.n_parts = 1,
		.n_splits = 1 };
	struct kvp_attend_result res = { 0 };
	size_t n = (size_t)p->heads * p->dim;
	float *q = calloc(2 * n, sizeof *q);

	/* The plane is one kind only; the other is native, over memory that is certainly there. */
	struct kvp_attend_plane native = { .codec = KVP_CODEC_NATIVE,
		.dtype = KVP_DTYPE_F32,
		.data = q,
		.head_stride = 0,
		.token_stride = 0 };

	if (p->kind == KVP_PLANE_K)
		part.v = native;
	else
		part.k = native;
	a.q = q;
	res.out = q + n;
	if (kvp_attend_workspace(&a, &a.workspace_size) == 0) {
		a.workspace = aligned_alloc(64, (a.workspace_size + 63) & ~(size_t)63);
		if (a.workspace)
			kvp_attend(k, &a, &res);
		free(a.workspace);
	}
	free(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvp_kernels *k;
	struct kvp_plane p = { 0 };
	struct choice c;
	uint8_t *payload;
	float *out;
	size_t n, bytes;
	int r;

	if (size < sizeof c)
		return 0;
	memcpy(&c, data, sizeof c);
	data += sizeof c;
	size -= sizeof c;
	p.tokens = c.tokens;
	p.heads = c.heads % 4;
	p.dim = 8u * (c.dim8 % 33);
	p.dtype = KVP_DTYPE_F32;
	p.kind = c.kind & 1;
	n = (size_t)p.tokens * p.heads * p.dim;
	if (kvp_plane_bytes(c.codec, &p, &bytes) < 0 || c.codec == KVP_CODEC_NATIVE)
		return 0;
	/* Exactly as large as it may be, so that the sanitizer sees a byte too far. */
	payload = aligned_alloc(16, (bytes + 15) & ~(size_t)15);
	out = malloc(n * sizeof *out);
	if (!payload || !out || kvp_kernels_new(masks[c.isa % 3], &k) < 0)
		abort();
	for (size_t i = 0; i < bytes; i++)
		payload[i] = size ? data[i % size] : 0;
	if (c.fix & 1)
		fix_header(c.codec, &p, bytes, payload);
	r = kvp_plane_decode(k, c.codec, &p, NULL, payload, bytes,
		(struct kvp_raw){ out, (ptrdiff_t)(4 * p.tokens * p.dim), (ptrdiff_t)(4 * p.dim) });
	for (size_t i = 0; !r && i < n && p.kind == KVP_PLANE_V; i++)
		if (!isfinite(out[i]))
			abort();
	if (!r)
		attend(k, c.codec, &p, payload, bytes);
	kvp_kernels_free(k);
	free(payload);
	free(out);
	return 0;
}
