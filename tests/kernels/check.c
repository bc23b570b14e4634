/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function of every instruction set against reference C, in the manner of checkasm: seeded
 * inputs biased to the ugly, odd sizes, guard pages around every buffer, poisoned outputs. Encoded
 * and decoded bytes must be equal; attention must agree within 1e-3 of the result's length,
 * and its log-sum-exp within 1e-4 (B-040); no byte beside a buffer is touched. `--bench` prints
 * cycles and GB/s instead; `--few` takes a sixth of the planes, which a sanitizer makes ten times slower,
 * `--small` of those the small ones, for an emulator. `--digests` prints what reference C made of a seed, which
 * is the same on all machines.
 *
 *   check [--bench] [--few] [--small] [--digests] [--seed N] [--filter TEXT]
 */
#include "kernels/dsp.h"
#include "kernels/kvp_attend.h"
#include "kernels/kvp_haar.h"
#include "kernels/kvp_rope.h"
#include "kernels/kvp_squat.h"
#include "tests/kernels/check.h"
#include "tests/kernels/guard.h"
#include "tests/kernels/inputs.h"
#include "tests/kernels/nuq_make.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct kvp_kernels *check_isa[LADDER];
/* Whether a set codes with functions of its own: else it is the set before, by the same pointers. */
static int codes_itself[LADDER];
static const char *filter = "";
static int few;
static int small;
static int digests;
static int rounds = 9; /* planes of each codec and dim, a multiple of 3: each dtype */
static unsigned long failed, passed;
static uint64_t digest;

static const char *const codecs[] = { "native", "fp8", "fp8-e5m2", "int8", "kivi2", "kivi3",
	"kivi4", "kivi2-g16", "kivi4-g64", "kivi2-g128", "asym2", "asym3", "asym4", "asym4-g32",
	"asym3-g16", "tq2", "tq3", "tq4", "tq2-plain", "tq3-nc", "tq4-nc-h3-sphere",
	"tq4-plain-wide", "tq3-haar", "tq4-haar-wide", "tq2-h3", "hadamard2", "hadamard4",
	"tqprod3", "hybrid", "hybrid-25", "hybrid-prod", "hybrid-25-prod-calibrated", "smart",
	"smart-4", "smart-3", "smart-25", "smart-asym", "smart-sym", "smart-sym-g8",
	"smart-sym-g16-wide", "smart-asym-g8-wide", "smart-asym-g16", "asym4-g8", "asym3-g8-wide",
	"asym2-wide", "sym2-g16-wide", "sym3-g8", "sym4", "sym8-g8-wide", "sym8", "pub-kivi2",
	"pub-kivi4-g64", "pub-aither2", "pub-aither3", "pub-aither4", "pub-vllm3", "pub-vllm4",
	"pub-vllm8", "lossless", "kvquant2", "kvquant3", "kvquant4", "kvquant3-uniform",
	"kvquant2-post", "kvquant4-dense", "spectral-any", "spectral-f8-i8-interleaved-any",
	"squat2", "squat3-g16", "squat4-g64" };

static const uint32_t dims[] = { 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 104, 112, 128, 144, 160,
	192, 224, 256, 288, 512, 576, 1024 };
static const uint32_t token_counts[] = { 1, 2, 3, 15, 16, 17, 33, 64, 100, 131 };
#define COUNTS (sizeof token_counts / sizeof *token_counts)

/* With --small. */
#define SMALL_DIM    144
#define SMALL_COUNTS 7

/* Any, as long as they are within what the codec allows in all. */
static void random_widths(uint32_t codec, uint32_t tokens, uint8_t *widths)
{
	uint32_t budget = kvp_smart_budget(codec, tokens);
	uint32_t spare = budget ? budget - 2 * tokens : UINT32_MAX;

	for (uint32_t t = 0; t < tokens; t++) {
		widths[t] = "\2\3\4\10"[inputs_random() % 4];
		if (widths[t] - 2u > spare)
			widths[t] = 2;
		spare -= widths[t] - 2u;
	}
}

static struct kvp_calib calib_for(uint32_t dim)
{
	static struct kvp_calib cache[KVP_PLANE_DIM_MAX / 8 + 1];
	struct kvp_calib *c = &cache[dim / 8];

	if (!c->dim) {
		double *work = malloc(sizeof *work * dim * dim);
		float *matrix = malloc(sizeof *matrix * dim * dim);

		if (!work || !matrix || kvp_haar_init(dim, 42, work, matrix, c) < 0)
			abort();
		free(work);
	}
	return *c;
}

static int needs_matrix(const char *name)
{
	return strstr(name, "haar") || strstr(name, "aither");
}

/* Axes at random, for so many heads of such a dim. */
static const struct kvp_squat *squat_for(const struct kvp_plane *p)
{
	static struct kvp_squat *cache[9][KVP_PLANE_DIM_MAX / 8 + 1];
	struct kvp_squat **s = &cache[p->heads][p->dim / 8];
	const struct kvp_squat_opts o = { .size = sizeof o,
		.heads = p->heads,
		.dim = p->dim,
		.rank = p->dim < 21 ? p->dim : 21 };
	const size_t n = (size_t)o.heads * o.rank * o.dim;
	float *axes;

	if (*s)
		return *s;
	axes = malloc(n * sizeof *axes);
	if (!axes)
		abort();
	for (size_t i = 0; i < n; i++)
		axes[i] = 10.0f * (float)inputs_normal();
	if (kvp_squat_of_axes(&o, axes, s) < 0)
		abort();
	free(axes);
	return *s;
}

static int needs_queries(uint32_t codec)
{
	return KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SQUAT;
}

void check_verdict(int ok, const char *what, const char *codec, const struct kvp_plane *p,
	const char *set, const char *input)
{
	if (ok) {
		passed++;
		return;
	}
	failed++;
	printf("FAIL %s %s %s: tokens %u heads %u dim %u dtype %u kind %u input %s seed %llu\n",
		what, codec, set, p->tokens, p->heads, p->dim, p->dtype, p->kind, input,
		(unsigned long long)inputs_seed);
}

void check_digest(const void *data, size_t n)
{
	const uint8_t *p = data;

	for (size_t i = 0; i < n; i++)
		digest = (digest ^ p[i]) * UINT64_C(0x100000001b3);
}

/* Of all since the last one. */
static void print_digest(const char *what)
{
	if (digests)
		printf("digest %s %016llx\n", what, (unsigned long long)digest);
	digest = 0;
}

/* What the payload takes, which may be less than kvp_plane_bytes(). */
static size_t payload_bytes(const uint8_t *payload)
{
	struct kvp_plane_hdr hdr;

	memcpy(&hdr, payload, sizeof hdr);
	return hdr.bytes;
}

/* One plane of one geometry: encode with every set, decode with every set, compare with C. */
static void check_plane(
	const char *name, uint32_t codec, const struct kvp_plane *p, enum input_kind kind)
{
	size_t esize = p->dtype == KVP_DTYPE_F32 ? 4 : 2;
	ptrdiff_t row = (ptrdiff_t)(p->dim * esize);
	int interleaved = (int)(inputs_random() & 1); /* [token][head] or [head][token] */
	/* Rows lie apart by some elements, or by none. */
	ptrdiff_t apart = row + (ptrdiff_t)((inputs_random() & 1) * (inputs_random() % 9) * esize);
	ptrdiff_t ts = interleaved ? apart * p->heads : apart;
	ptrdiff_t hs = interleaved ? apart : apart * p->tokens;
	size_t raw_bytes = (size_t)apart * p->heads * p->tokens;
	struct guard src = guard_new(raw_bytes, esize), dst[LADDER], out[LADDER];
	uint8_t widths[KVP_PLANE_TOKENS_MAX];
	struct kvp_calib calib = { 0 };
	struct kvp_encode_opts o = { .size = sizeof o, .calib = &calib, .widths = widths };
	struct kvp_raw_const in = { src.data, hs, ts };
	size_t bytes, used, head = codec ? KVP_PLANE_HDR_BYTES : 0;
	int want = 0;

	random_widths(codec, p->tokens, widths);
	if (kvp_plane_bytes(codec, p, &bytes) < 0 ||
		(KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART &&
			kvp_smart_bytes(codec, p, widths, &bytes) < 0)) {
		guard_free(&src);
		return;
	}
	if (needs_matrix(name))
		calib = calib_for(p->dim);
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_KVQUANT)
		calib = *nuq_calib_for(codec, p);
	if (needs_queries(codec))
		o.queries = squat_for(p);
	inputs_fill(src.data, raw_bytes / esize, p->dtype, kind);
	used = bytes;
	for (size_t i = 0; i < LADDER; i++) {
		int r;

		if (!codes_itself[i])
			continue;
		out[i] = guard_new(bytes, 16);
		dst[i] = guard_new(raw_bytes, esize);
		r = kvp_plane_encode(check_isa[i], codec, p, &o, in, out[i].data, bytes);
		if (!i && codec)
			used = payload_bytes(out[0].data);
		check_verdict(r == 0 && guard_intact(&out[i]) && guard_intact(&src) &&
				      memcmp(out[i].data, out[0].data, used) == 0,
			"encode", name, p, ladder[i].name, inputs_name(kind));
		/* Decode what C encoded, so that one fault is reported once. */
		check_verdict(kvp_plane_decode(check_isa[i], codec, p, &calib, out[0].data, bytes,
				      (struct kvp_raw){ dst[i].data, hs, ts }) == 0 &&
				      guard_intact(&dst[i]) &&
				      memcmp(dst[i].data, dst[0].data, raw_bytes) == 0,
			"decode", name, p, ladder[i].name, inputs_name(kind));
	}
	check_digest(out[0].data, used);
	check_digest(dst[0].data, raw_bytes);
	/* Hostile codes and scalars behind a valid header. */
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART)
		head += p->tokens; /* widths that are none are refused: fuzz_plane does that */
	if (strstr(name, "calibrated"))
		head = bytes; /* and so are maps that are none */
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_LOSSLESS)
		head = used - used / 8; /* of the last head's stream; it may be found out */
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_KVQUANT)
		head += KVP_SECTION_ALIGN; /* a position that is none is refused */
	inputs_noise(out[0].data + head, used - head);
	for (size_t i = 0; i < LADDER; i++) {
		int r;

		if (!codes_itself[i])
			continue;
		r = kvp_plane_decode(check_isa[i], codec, p, &calib, out[0].data, bytes,
			(struct kvp_raw){ dst[i].data, hs, ts });
		if (!i && KVP_CODEC_FAMILY(codec) == KVP_FAMILY_LOSSLESS)
			want = r;
		check_verdict(r == want && guard_intact(&dst[i]) &&
				      memcmp(dst[i].data, dst[0].data, raw_bytes) == 0,
			"decode of noise", name, p, ladder[i].name, inputs_name(kind));
	}
	check_digest(dst[0].data, raw_bytes);
	for (size_t i = 0; i < LADDER; i++) {
		if (!codes_itself[i])
			continue;
		guard_free(&out[i]);
		guard_free(&dst[i]);
	}
	guard_free(&src);
}

static void check_codec(const char *name)
{
	uint32_t codec;

	if (kvp_codec_parse(name, &codec) < 0) {
		printf("FAIL unknown codec %s\n", name);
		failed++;
		return;
	}
	for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
		/* The dense rotation costs dim^2 a row: large ones only where they are cheap. */
		if (needs_matrix(name) && dims[d] > 192)
			continue;
		if (few && (d + codec + inputs_seed) % 2)
			continue;
		if (small && dims[d] > SMALL_DIM)
			continue;
		for (int i = 0; i < rounds; i++) {
			struct kvp_plane p = {
				.tokens = token_counts[inputs_random() %
						       (small ? SMALL_COUNTS : COUNTS)],
				.heads = 1 + (uint32_t)(inputs_random() % 3),
				.dim = dims[d],
				.dtype = KVP_DTYPE_F32 + (uint32_t)i % 3,
				.kind = (uint32_t)(inputs_random() & 1),
			};

			check_plane(name, codec, &p,
				i < rounds / 3 ? INPUT_NORMAL
					       : (enum input_kind)(inputs_random() % INPUT_MAX_));
		}
	}
}

/* ---- attention ---- */

struct context {
	struct kvp_attend_part part[4];
	struct guard data[8];
	uint32_t n;
};

static struct guard encode_random(
	const char *name, uint32_t codec, struct kvp_plane *p, const struct kvp_calib *calib)
{
	size_t esize = p->dtype == KVP_DTYPE_F32 ? 4 : 2;
	ptrdiff_t row = (ptrdiff_t)(p->dim * esize);
	struct guard raw = guard_new((size_t)row * p->heads * p->tokens, esize), out;
	uint8_t widths[KVP_PLANE_TOKENS_MAX];
	struct kvp_encode_opts o = { .size = sizeof o, .calib = calib, .widths = widths };
	size_t bytes;

	random_widths(codec, p->tokens, widths);
	if (needs_queries(codec))
		o.queries = squat_for(p);
	inputs_fill(raw.data, raw.size / esize, p->dtype, INPUT_NORMAL);
	if (codec == KVP_CODEC_NATIVE)
		return raw;
	if (kvp_plane_bytes(codec, p, &bytes) < 0)
		abort();
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART &&
		kvp_smart_bytes(codec, p, widths, &bytes) < 0)
		abort();
	out = guard_new(bytes, 16);
	if (kvp_plane_encode(check_isa[0], codec, p, &o,
		    (struct kvp_raw_const){ raw.data, row * p->tokens, row }, out.data,
		    bytes) < 0) {
		printf("FAIL cannot encode %s\n", name);
		abort();
	}
	guard_free(&raw);
	return out;
}

static void plane_random(struct kvp_attend_plane *ap, struct guard *data, const char *name,
	uint32_t tokens, uint32_t heads, uint32_t dim, uint32_t kind, const struct kvp_calib *calib)
{
	struct kvp_plane p = { tokens, heads, dim, KVP_DTYPE_F32 + (uint32_t)(inputs_random() % 3),
		kind };
	uint32_t codec;
	size_t bytes;

	if (kvp_codec_parse(name, &codec) < 0)
		abort();
	/* Not every codec holds any number of tokens, or keys and values alike. */
	if (kvp_plane_bytes(codec, &p, &bytes) < 0)
		codec = KVP_CODEC_NATIVE;
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_KVQUANT)
		calib = nuq_calib_for(codec, &p);
	*data = encode_random(name, codec, &p, calib);
	*ap = (struct kvp_attend_plane){ .codec = codec,
		.dtype = p.dtype,
		.data = data->data,
		.bytes = data->size,
		.calib = calib };
	if (codec == KVP_CODEC_NATIVE) {
		ap->token_stride = (ptrdiff_t)(dim * (p.dtype == KVP_DTYPE_F32 ? 4 : 2));
		ap->head_stride = ap->token_stride * (ptrdiff_t)tokens;
	}
}

/* Whether a set attends over these rows with functions of its own. */
static int attends_itself(size_t set, uint32_t k_codec, uint32_t v_codec)
{
	const uint32_t form[] = { kvp_codec_in_place(k_codec, KVP_PLANE_K).form,
		kvp_codec_in_place(v_codec, KVP_PLANE_V).form, KVP_FORM_NATIVE };

	if (!check_isa[set] || !set || !check_isa[set - 1] || codes_itself[set])
		return check_isa[set] != NULL;
	for (int i = 0; i < 3; i++)
		if (form[i] < KVP_FORMS && memcmp(&check_isa[set]->attend[form[i]],
						   &check_isa[set - 1]->attend[form[i]],
						   sizeof check_isa[set]->attend[0]) != 0)
			return 1;
	return 0;
}

/* Additive for most tokens; some are not seen. */
static struct guard mask_random(size_t n)
{
	struct guard g = guard_new(4 * n, 4);
	float *mask = (float *)(void *)g.data;

	for (size_t i = 0; i < n; i++)
		mask[i] = inputs_random() % 4 ? (float)inputs_normal() : -INFINITY;
	return g;
}

static void check_attend(const char *kname, const char *vname, uint32_t dim)
{
	static const uint32_t groups[] = { 1, 2, 3, 4, 5, 8 };
	uint32_t heads = 1 + (uint32_t)(inputs_random() % 2);
	uint32_t group = groups[inputs_random() % 6];
	uint32_t queries = 1 + (uint32_t)(inputs_random() % 3);
	uint32_t q_heads = heads * group;
	struct kvp_calib calib = { 0 };
	struct kvp_attend_part part[3];
	struct guard data[6], q, ws, mask = { 0 };
	struct kvp_attention a = { .size = sizeof a,
		.queries = queries,
		.q_heads = q_heads,
		.kv_heads = heads,
		.k_dim = dim,
		.v_dim = dim,
		.scale = 1.0f / sqrtf((float)dim),
		.parts = part,
		.n_parts = 3,
		.n_splits = 1 + (uint32_t)(inputs_random() % 3),
		.causal = (uint32_t)(inputs_random() & 1) };
	uint32_t total = 0;
	size_t n = (size_t)queries * q_heads * dim, bytes;
	float *ref = calloc(n, 4), *out = calloc(n, 4), *lse = calloc(n, 4),
	      *lse_ref = calloc(n, 4);
	struct kvp_plane p = { 1, heads, dim, KVP_DTYPE_F16, 0 };

	if (needs_matrix(kname) || needs_matrix(vname))
		calib = calib_for(dim);
	for (int i = 0; i < 3; i++) {
		uint32_t tokens = i == 1 ? 160 : 128 + (uint32_t)(inputs_random() % 72);

		plane_random(&part[i].k, &data[2 * i], i == 2 ? "native" : kname, tokens, heads,
			dim, KVP_PLANE_K, &calib);
		plane_random(&part[i].v, &data[2 * i + 1], i == 2 ? "native" : vname, tokens, heads,
			dim, KVP_PLANE_V, &calib);
		part[i].tokens = tokens;
		total += tokens;
	}
	a.position = total - queries;
	a.window = inputs_random() & 1 ? 100 + (uint32_t)(inputs_random() % 300) : 0;
	if (inputs_random() & 1) {
		mask = mask_random((size_t)queries * total);
		a.mask = (const float *)(const void *)mask.data;
		a.mask_stride = total;
	}
	q = guard_new(n * 4, 4);
	inputs_fill(q.data, n, KVP_DTYPE_F32, INPUT_NORMAL);
	a.q = (const float *)q.data;
	if (kvp_attend_workspace(&a, &bytes) < 0)
		abort();
	ws = guard_new(bytes, 64);
	a.workspace = ws.data;
	a.workspace_size = bytes;
	p.tokens = total < 512 ? total : 512;
	for (size_t i = 0; i < LADDER; i++) {
		struct kvp_attend_result res = { .out = i ? out : ref, .lse = i ? lse : lse_ref };
		double apart = 0.0, length = 0.0, worst = 0.0;
		int r;

		if (!attends_itself(i, part[0].k.codec, part[0].v.codec))
			continue;
		r = kvp_attend(check_isa[i], &a, &res);
		for (size_t j = 0; j < n; j++) {
			double e = (double)ref[j] - (double)res.out[j];

			apart += e * e;
			length += (double)ref[j] * (double)ref[j];
		}
		apart = sqrt(apart / length);
		for (size_t j = 0; j < (size_t)queries * q_heads; j++)
			worst = fmax(worst, fabs((double)lse_ref[j] - (double)res.lse[j]));
		if (r || !(apart <= 1e-3) || !(worst <= 1e-4))
			printf("  r %d apart %g log-sum-exp %g\n", r, apart, worst);
		check_verdict(!r && apart <= 1e-3 && worst <= 1e-4 && guard_intact(&ws), "attend",
			kname, &p, ladder[i].name, vname);
	}
	for (int i = 0; i < 6; i++)
		guard_free(&data[i]);
	if (mask.data)
		guard_free(&mask);
	guard_free(&q);
	guard_free(&ws);
	free(ref);
	free(out);
	free(lse);
	free(lse_ref);
}

static void check_attention(void)
{
	static const uint32_t attend_dims[] = { 8, 24, 64, 80, 128, 192, 576 };

	for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
		for (size_t d = 0; d < sizeof attend_dims / sizeof *attend_dims; d++) {
			if (!strstr(codecs[i], filter))
				continue;
			struct kvp_plane p = { 160, 1, attend_dims[d], KVP_DTYPE_F16, 0 };
			uint32_t codec;
			size_t bytes;

			if (needs_matrix(codecs[i]) && attend_dims[d] > 192)
				continue;
			/* One dim of each codec. */
			if (small && (d != (i + inputs_seed) % 5))
				continue;
			if (kvp_codec_parse(codecs[i], &codec) < 0 ||
				kvp_plane_bytes(codec, &p, &bytes) < 0)
				continue;
			check_attend(codecs[i], codecs[i], attend_dims[d]);
			check_attend(codecs[i], "native", attend_dims[d]);
			check_attend("native", codecs[i], attend_dims[d]);
		}
	}
}

/* ---- benchmark ---- */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best of several rounds over one plane that stays in the cache: a kernel's own speed. */
static void bench_codec(const char *name, size_t set)
{
	struct kvp_plane p = { 64, 8, 128, KVP_DTYPE_F16, KVP_PLANE_K };
	size_t raw = 64 * 8 * 128 * 2, bytes;
	struct guard src = guard_new(raw, 64), dst = guard_new(raw, 64), out;
	struct kvp_calib calib = { 0 };
	uint8_t widths[64];
	struct kvp_encode_opts o = { .size = sizeof o, .calib = &calib, .widths = widths };
	double enc = 1e9, dec = 1e9;
	uint32_t codec;

	if (kvp_codec_parse(name, &codec) < 0 || kvp_plane_bytes(codec, &p, &bytes) < 0)
		return;
	if (needs_matrix(name))
		calib = calib_for(128);
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_KVQUANT)
		calib = *nuq_calib_for(codec, &p);
	if (needs_queries(codec))
		o.queries = squat_for(&p);
	memset(widths, 4, sizeof widths);
	if (kvp_smart_budget(codec, p.tokens))
		o.widths = NULL;
	out = guard_new(bytes, 64);
	inputs_fill(src.data, raw / 2, p.dtype, INPUT_NORMAL);
	for (int i = 0; i < 200; i++) {
		double t0 = now(), t1, t2;

		kvp_plane_encode(check_isa[set], codec, &p, &o,
			(struct kvp_raw_const){ src.data, 64 * 256, 256 }, out.data, bytes);
		t1 = now();
		kvp_plane_decode(check_isa[set], codec, &p, &calib, out.data, bytes,
			(struct kvp_raw){ dst.data, 64 * 256, 256 });
		t2 = now();
		enc = fmin(enc, t1 - t0);
		dec = fmin(dec, t2 - t1);
		if (enc > 0.01 && i > 2)
			break;
	}
	printf("%-20s %-7s encode %7.2f GB/s  decode %7.2f GB/s\n", name, ladder[set].name,
		1e-9 * (double)raw / enc, 1e-9 * (double)raw / dec);
	guard_free(&src);
	guard_free(&dst);
	guard_free(&out);
}

/* Off keys of 8 heads and 64 tokens, to floats, and on again. */
static void bench_rope(size_t set)
{
	const struct kvp_rope_desc d = {
		.pairing = KVP_ROPE_HALF_SPLIT, .dim = 128, .theta = 10000.0
	};
	struct kvp_plane p = { 64, 8, 128, KVP_DTYPE_BF16, KVP_PLANE_K }, f = p;
	const size_t n = 64 * 8 * 128;
	struct guard raw = guard_new(2 * n, 64), wide = guard_new(4 * n, 64);
	const struct kvp_raw keys = { raw.data, 64 * 256, 256 };
	const struct kvp_raw floats = { wide.data, 64 * 512, 512 };
	double undo = 1e9, apply = 1e9;
	struct kvp_rope rope;

	f.dtype = KVP_DTYPE_F32;
	if (kvp_rope_init(&d, &rope) < 0)
		abort();
	inputs_fill(raw.data, n, p.dtype, INPUT_NORMAL);
	for (int i = 0; i < 50; i++) {
		double t0 = now(), t1;

		kvp_rope_undo(check_isa[set], &rope, &p, 1000,
			(struct kvp_raw_const){ keys.data, keys.head_stride, keys.token_stride },
			KVP_DTYPE_F32, floats);
		t1 = now();
		kvp_rope_apply(check_isa[set], &rope, &f, 1000,
			(struct kvp_raw_const){
				floats.data, floats.head_stride, floats.token_stride },
			KVP_DTYPE_BF16, keys);
		undo = fmin(undo, t1 - t0);
		apply = fmin(apply, now() - t1);
	}
	printf("%-20s %-7s undo   %7.2f GB/s  apply  %7.2f GB/s\n", "rope", ladder[set].name,
		1e-9 * (double)(2 * n) / undo, 1e-9 * (double)(2 * n) / apply);
	guard_free(&raw);
	guard_free(&wide);
}

int main(int argc, char **argv)
{
	int bench = 0;

	inputs_init();
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--bench") == 0) {
			bench = 1;
		} else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
			inputs_reseed(strtoull(argv[++i], NULL, 0));
		} else if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc) {
			filter = argv[++i];
		} else if (strcmp(argv[i], "--few") == 0) {
			few = 1;
			rounds = 3;
		} else if (strcmp(argv[i], "--small") == 0) {
			few = small = 1;
			rounds = 3;
		} else if (strcmp(argv[i], "--digests") == 0) {
			digests = 1;
		} else {
			fprintf(stderr, "usage: check [--bench] [--few] [--small] [--digests] "
					"[--seed N] [--filter TEXT]\n");
			return 2;
		}
	}
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	for (size_t i = 0; i < LADDER; i++) {
		if (ladder_reaches(i)) {
			if (kvp_kernels_new(ladder[i].mask, &check_isa[i]) < 0)
				return 1;
		} else {
			printf("%s: not on this machine, skipped\n", ladder[i].name);
		}
	}
	for (size_t i = 0; i < LADDER; i++)
		codes_itself[i] =
			check_isa[i] && (!i || !check_isa[i - 1] ||
						memcmp(&check_isa[i]->dsp, &check_isa[i - 1]->dsp,
							sizeof check_isa[i]->dsp) != 0);
	for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
		if (!strstr(codecs[i], filter))
			continue;
		if (!bench) {
			check_codec(codecs[i]);
			print_digest(codecs[i]);
		}
		for (size_t s = 0; bench && s < LADDER; s++)
			if (check_isa[s])
				bench_codec(codecs[i], s);
	}
	for (size_t s = 0; bench && strstr("rope", filter) && s < LADDER; s++)
		if (check_isa[s])
			bench_rope(s);
	if (!bench) {
		check_attention();
		if (strstr("slots", filter))
			check_slots();
		print_digest("slots");
	}
	for (size_t i = 0; i < LADDER; i++)
		kvp_kernels_free(check_isa[i]);
	if (!bench)
		printf("%lu passed, %lu failed\n", passed, failed);
	return failed ? 1 : 0;
}
