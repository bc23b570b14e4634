/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding and attending over hostile payloads: nothing outside them is read, nothing outside the
 * destination is written, everything decoded is finite. The first bytes choose the geometry; half
 * of the inputs get a valid header, or they would never come past it.
 */
#include "kernels/kvp_attend.h"
#include "kernels/kvp_codec.h"
#include "kernels/nuq.h"

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

static const unsigned int masks[] = { 0, KVP_CPU_AVX2, KVP_CPU_AVX2 | KVP_CPU_AVX512, KVP_CPU_ALL,
	KVP_CPU_ALL | KVP_CPU_BYTES };
#define MASKS (sizeof masks / sizeof *masks)

/* Where the input's id is none: every family, and every shape of payload in it. */
static const char *const names[] = { "fp8", "fp8-e5m2", "int8", "kivi2", "kivi3", "kivi4-g64",
	"asym2", "asym3-g16", "asym4-g32", "tq2", "tq3", "tq4", "tq4-nc-h3-sphere", "tq3-wide",
	"tq4-haar", "hadamard2", "hadamard4", "tqprod2", "tqprod3", "tqprod4", "hybrid",
	"hybrid-25", "hybrid-prod", "hybrid-25-prod", "hybrid-calibrated",
	"hybrid-25-prod-calibrated", "smart", "smart-asym", "smart-sym", "smart-keys3", "smart-4",
	"smart-25", "smart-sym-g8-wide", "smart-asym-g16", "smart-asym-g8-wide", "asym2-g8",
	"asym4-g16-wide", "sym2-wide", "sym3-g8", "sym4-g16-wide", "sym8-g8", "pub-kivi2",
	"pub-kivi4-g64", "pub-aither2", "pub-aither3", "pub-aither4", "pub-vllm3", "pub-vllm4",
	"pub-vllm8", "kvquant2", "kvquant3-uniform", "kvquant4-post", "kvquant3", "kvquant2-dense",
	"spectral", "spectral-f8-i8-interleaved", "spectral-f16-i16", "squat2", "squat3-g16",
	"squat4-g64" };

#define DIM_MAX  256u
#define WORK_MAX (1u << 20)

#define HEADS_MAX 4u

/* Any ranges and signposts that a file may have. */
static const struct kvp_nuq *nuq_of(uint32_t codec, const struct kvp_plane *p)
{
	static float middle[HEADS_MAX * DIM_MAX], range[HEADS_MAX * DIM_MAX];
	static struct kvp_rope rope, none = { .gain = 1.0 };
	static struct kvp_nuq nuq = { .middle = middle, .range = range, .inverse = range };
	const struct kvp_rope_desc desc = {
		.pairing = KVP_ROPE_HALF_SPLIT, .dim = p->dim, .theta = 10000.0
	};

	for (uint32_t i = 0; i < HEADS_MAX * DIM_MAX; i++) {
		middle[i] = (float)(i % 7) - 3.0f;
		range[i] = i % 11 ? NUQ_INPUT_MAX : NUQ_RANGE_MIN;
	}
	if (p->dim && kvp_rope_init(&desc, &rope) < 0)
		abort();
	for (uint32_t bits = NUQ_BITS_MIN; bits <= NUQ_BITS_MAX; bits++)
		kvp_nuq_book_even(bits, &nuq.book[bits - NUQ_BITS_MIN]);
	nuq.heads = p->heads;
	nuq.dim = p->dim;
	nuq.form = p->kind == KVP_PLANE_V                        ? KVP_NUQ_V
		   : KVP_CODEC_VARIANT(codec) & KVP_KVQUANT_POST ? KVP_NUQ_K_POST
								 : KVP_NUQ_K;
	nuq.rope = nuq.form == KVP_NUQ_K ? &rope : &none;
	return &nuq;
}

/* Any finite matrix will do. */
static const struct kvp_calib *calib_of(uint32_t codec, const struct kvp_plane *p)
{
	static float matrix[DIM_MAX * DIM_MAX];
	static struct kvp_calib calib = { .haar = matrix, .digest = 1 };

	if (matrix[0] == 0.0f)
		for (uint32_t i = 0; i < DIM_MAX * DIM_MAX; i++)
			matrix[i] = (float)(i * 2654435761u % 1000 + 1) / 1000.0f - 0.5f;
	calib.dim = p->dim;
	calib.nuq = nuq_of(codec, p);
	return &calib;
}

static int needs_matrix(uint32_t codec)
{
	return KVP_CODEC_FAMILY(codec) == KVP_FAMILY_PUB_AITHER ||
	       (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_TQ &&
		       (KVP_CODEC_VARIANT(codec) >> 4 & 3u) == KVP_ROT_HAAR);
}

static int needs_seed(uint32_t codec)
{
	uint32_t family = KVP_CODEC_FAMILY(codec), variant = KVP_CODEC_VARIANT(codec);

	return (family == KVP_FAMILY_TQ && !needs_matrix(codec)) || family == KVP_FAMILY_HADAMARD ||
	       family == KVP_FAMILY_TQPROD || family == KVP_FAMILY_HYBRID ||
	       (family == KVP_FAMILY_SMART && (variant & 3u) == KVP_SMART_TQ);
}

/* Makes widths and channel maps what they must be. Returns the payload's bytes. */
static size_t fix_sections(
	uint32_t codec, const struct kvp_plane *p, size_t bytes, uint8_t *payload)
{
	uint32_t variant = KVP_CODEC_VARIANT(codec);
	struct kvp_layout lay;

	if (kvp_plane_layout(codec, p, &lay) < 0)
		abort();
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART) {
		uint32_t budget = kvp_smart_budget(codec, p->tokens);
		uint32_t spare = budget ? budget - 2 * p->tokens : UINT32_MAX;
		uint8_t *width = payload + lay.extra;

		for (uint32_t t = 0; t < p->tokens; t++) {
			width[t] = "\3\4\10\2"[width[t] % (variant & KVP_SMART_KEYS3 ? 3 : 4)];
			if (width[t] - 2u > spare)
				width[t] = 2;
			spare -= width[t] - 2u;
		}
		if (kvp_smart_bytes(codec, p, width, &bytes) < 0)
			abort();
	}
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_HYBRID && variant & KVP_HYBRID_CALIBRATED) {
		size_t maps = (size_t)p->heads * (p->dim / 8);
		uint32_t ones = variant & KVP_HYBRID_25 ? 0x11 : 0x55;

		memset(payload + bytes - maps, (int)ones, maps);
	}
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_KVQUANT) {
		uint32_t own[2];

		memcpy(own, payload + KVP_PLANE_HDR_BYTES, sizeof own);
		own[0] = p->kind == KVP_PLANE_K ? own[0] % (1u << 26) : 0;
		own[1] = p->kind == KVP_PLANE_K && !(variant & KVP_KVQUANT_POST);
		memcpy(payload + KVP_PLANE_HDR_BYTES, own, sizeof own);
	}
	return bytes;
}

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
	hdr.exponent = KVP_CODEC_FAMILY(codec) < KVP_FAMILY_PUB_KIVI ||
				       KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SYM ||
				       KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SQUAT
			       ? hdr.exponent % 120
			       : 0;
	hdr.reserved1 = 0;
	hdr.seed = needs_seed(codec) ? hdr.seed | 1 : 0;
	hdr.calib = needs_matrix(codec) || KVP_CODEC_FAMILY(codec) == KVP_FAMILY_KVQUANT;
	memset(hdr.reserved2, 0, sizeof hdr.reserved2);
	memcpy(payload, &hdr, sizeof hdr);
}

static void attend(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	uint32_t queries, const uint8_t *payload, size_t bytes)
{
	struct kvp_attend_plane plane = { .codec = codec,
		.dtype = p->dtype,
		.data = payload,
		.bytes = bytes,
		.calib = calib_of(codec, p) };
	struct kvp_attend_part part = { .tokens = p->tokens, .k = plane, .v = plane };
	struct kvp_attention a = { .size = sizeof a,
		.queries = queries,
		.q_heads = p->heads,
		.kv_heads = p->heads,
		.k_dim = p->dim,
		.v_dim = p->dim,
		.scale = 0.1f,
		.parts = &part,
		.n_parts = 1,
		.n_splits = 1 };
	struct kvp_attend_result res = { 0 };
	size_t n = (size_t)queries * p->heads * p->dim;
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
	static struct kvp_kernels *tables[MASKS];
	struct kvp_kernels **k;
	struct kvp_plane p = { 0 };
	uint8_t *payload, *exact;
	uint32_t codec;
	struct choice c;
	float *out;
	size_t n, bytes;
	int r;

	if (size < sizeof c)
		return 0;
	memcpy(&c, data, sizeof c);
	data += sizeof c;
	size -= sizeof c;
	codec = c.codec;
	p.tokens = c.tokens;
	p.heads = c.heads % HEADS_MAX;
	p.dim = 8u * (c.dim8 % (DIM_MAX / 8 + 1));
	p.dtype = KVP_DTYPE_F32;
	p.kind = c.kind & 1;
	/* dense rotations take dim times as long: hundreds of runs a second, not tens */
	while (p.tokens > 64 && p.tokens * p.heads * p.dim * p.dim > WORK_MAX)
		p.tokens -= 64;
	n = (size_t)p.tokens * p.heads * p.dim;
	if (kvp_plane_bytes(codec, &p, &bytes) < 0 &&
		(kvp_codec_parse(names[codec % (sizeof names / sizeof *names)], &codec) < 0 ||
			kvp_plane_bytes(codec, &p, &bytes) < 0))
		return 0;
	if (codec == KVP_CODEC_NATIVE)
		return 0;
	k = &tables[c.isa % MASKS];
	if (!*k && kvp_kernels_new(masks[c.isa % MASKS], k) < 0)
		abort();
	payload = malloc(bytes);
	out = malloc(n * sizeof *out);
	if (!payload || !out)
		abort();
	for (size_t i = 0; i < bytes; i++)
		payload[i] = size ? data[i % size] : 0;
	if (c.fix & 1) {
		bytes = fix_sections(codec, &p, bytes, payload);
		fix_header(codec, &p, bytes, payload);
	}
	/* Exactly as large as it may be, so that the sanitizer sees a byte too far. */
	if (posix_memalign((void **)&exact, 16, bytes))
		abort();
	memcpy(exact, payload, bytes);
	r = kvp_plane_decode(*k, codec, &p, calib_of(codec, &p), exact, bytes,
		(struct kvp_raw){ out, (ptrdiff_t)(4 * p.tokens * p.dim), (ptrdiff_t)(4 * p.dim) });
	for (size_t i = 0; !r && i < n; i++) {
		/* What kivi and squat keep native may be anything. */
		uint32_t family = KVP_CODEC_FAMILY(codec);
		uint32_t native =
			(family == KVP_FAMILY_KIVI || family == KVP_FAMILY_SQUAT) && !p.kind;

		if (!native && !isfinite(out[i]))
			abort();
	}
	if (!r)
		attend(*k, codec, &p, 1 + c.isa / MASKS % 2, exact, bytes);
	/* A header that was made to fit must come through. */
	if (c.fix & 1 && r)
		abort();
	free(payload);
	free(exact);
	free(out);
	return 0;
}
