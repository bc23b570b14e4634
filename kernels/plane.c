/* SPDX-License-Identifier: Apache-2.0 */
/* The public entry points: everything a caller can get wrong is refused here. */
#include "kernels/dsp.h"
#include "kernels/groups.h"
#include "kernels/numeric.h"

#include <errno.h>
#include <stdlib.h>
#ifdef KVP_HAVE_X86
#include <cpuid.h>
#endif

#define EXPONENT_MIN  (-120)
#define EXPONENT_MAX  125
#define PAYLOAD_ALIGN 16u

unsigned int kvp_cpu_detect(void)
{
	unsigned int cpu = 0;

#ifdef KVP_HAVE_X86
	unsigned int a, b, c, d;

	__builtin_cpu_init();
	/* No compiler's builtin knows F16C by name everywhere. */
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		__get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C))
		cpu |= KVP_CPU_AVX2;
	if (cpu && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
		__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("bmi2"))
		cpu |= KVP_CPU_AVX512;
	if ((cpu & KVP_CPU_AVX512) && __builtin_cpu_supports("avx512vbmi"))
		cpu |= KVP_CPU_VBMI;
#endif
	return cpu;
}

int kvp_kernels_new(unsigned int cpu_mask, struct kvp_kernels **ret_kernels)
{
	struct kvp_kernels *k = calloc(1, sizeof *k);

	if (!k)
		return -ENOMEM;
	k->cpu = kvp_cpu_detect() & cpu_mask;
	if (!(k->cpu & KVP_CPU_AVX2))
		k->cpu = 0;
	if (!(k->cpu & KVP_CPU_AVX512))
		k->cpu &= KVP_CPU_AVX2;
	for (uint32_t f = 0; f < KVP_FAMILY_MAX_; f++)
		if (kvp_codec_row(f))
			k->codec[f] = *kvp_codec_row(f);
	kvp_dsp_init_c(&k->dsp);
	kvp_attend_init_c(k);
#ifdef KVP_HAVE_X86
	if (k->cpu & KVP_CPU_AVX2) {
		kvp_dsp_init_avx2(&k->dsp);
		kvp_attend_init_avx2(k);
	}
	if (k->cpu & KVP_CPU_AVX512) {
		kvp_dsp_init_avx512(&k->dsp);
		kvp_attend_init_avx512(k);
	}
	if (k->cpu & KVP_CPU_VBMI)
		kvp_attend_init_vbmi(k);
#endif
	*ret_kernels = k;
	return 0;
}

struct kvp_kernels *kvp_kernels_free(struct kvp_kernels *k)
{
	free(k);
	return NULL;
}

const struct kvp_codec *kvp_kernels_codec(const struct kvp_kernels *k, uint32_t family)
{
	return family < KVP_FAMILY_MAX_ && k->codec[family].layout ? &k->codec[family] : NULL;
}

int kvp_plane_layout(uint32_t codec, const struct kvp_plane *p, struct kvp_layout *ret_layout)
{
	const struct kvp_codec *c = kvp_codec_row(KVP_CODEC_FAMILY(codec));

	if (!c || !p->tokens || p->tokens > KVP_PLANE_TOKENS_MAX || !p->heads ||
		p->heads > KVP_PLANE_HEADS_MAX || p->dim < KVP_PLANE_DIM_MIN ||
		p->dim > KVP_PLANE_DIM_MAX || p->kind > KVP_PLANE_V || !dtype_bytes(p->dtype))
		return -EINVAL;
	if (c->family != KVP_FAMILY_NATIVE && (p->dim % 8 || p->dtype == KVP_DTYPE_F8))
		return -EINVAL;
	return c->layout(codec, p, ret_layout);
}

int kvp_plane_bytes(uint32_t codec, const struct kvp_plane *p, size_t *ret_bytes)
{
	struct kvp_layout lay;
	int r = kvp_plane_layout(codec, p, &lay);

	if (r < 0)
		return r;
	*ret_bytes = lay.bytes;
	return 0;
}

/* The memory that a raw plane spans, as integers; -EINVAL if that is not even an address range. */
static int raw_span(
	const struct kvp_plane *p, struct kvp_raw_const raw, uintptr_t *ret_lo, uintptr_t *ret_hi)
{
	intptr_t size = (intptr_t)dtype_bytes(p->dtype);
	intptr_t head, token, lo, hi;

	if (!raw.data || (uintptr_t)raw.data % (uintptr_t)size || raw.head_stride % size ||
		raw.token_stride % size)
		return -EINVAL;
	if (__builtin_mul_overflow((intptr_t)raw.head_stride, (intptr_t)p->heads - 1, &head) ||
		__builtin_mul_overflow((intptr_t)raw.token_stride, (intptr_t)p->tokens - 1, &token))
		return -EINVAL;
	if (__builtin_add_overflow(head < 0 ? head : 0, token < 0 ? token : 0, &lo) ||
		__builtin_add_overflow(head > 0 ? head : 0, token > 0 ? token : 0, &hi) ||
		__builtin_add_overflow(hi, (intptr_t)p->dim * size, &hi))
		return -EINVAL;
	if ((uintptr_t)raw.data < 0 - (uintptr_t)lo ||
		(uintptr_t)raw.data > UINTPTR_MAX - (uintptr_t)hi)
		return -EINVAL;
	*ret_lo = (uintptr_t)raw.data + (uintptr_t)lo;
	*ret_hi = (uintptr_t)raw.data + (uintptr_t)hi;
	return 0;
}

static int overlaps(uintptr_t lo, uintptr_t hi, const void *data, size_t size)
{
	return lo < (uintptr_t)data + size && (uintptr_t)data < hi;
}

/* Of any stride, also the smallest, which has no positive counterpart. */
static uintptr_t distance(ptrdiff_t stride)
{
	return stride < 0 ? 0 - (uintptr_t)stride : (uintptr_t)stride;
}

/* Rows that are written must be disjoint: one of the two strides steps over the other's extent. */
static int rows_disjoint(const struct kvp_plane *p, struct kvp_raw_const raw)
{
	uintptr_t row = (uintptr_t)p->dim * dtype_bytes(p->dtype);
	uintptr_t head = distance(raw.head_stride), token = distance(raw.token_stride);

	if ((p->heads > 1 && head < row) || (p->tokens > 1 && token < row))
		return 0;
	return p->heads == 1 || p->tokens == 1 || head >= token * (p->tokens - 1) + row ||
	       token >= head * (p->heads - 1) + row;
}

static int needs_matrix(uint32_t codec)
{
	return KVP_CODEC_FAMILY(codec) == KVP_FAMILY_PUB_AITHER ||
	       (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_TQ &&
		       (KVP_CODEC_VARIANT(codec) >> 4 & 3u) == KVP_ROT_HAAR);
}

/* Published layouts know no exponent. */
static int is_published(uint32_t codec)
{
	return KVP_CODEC_FAMILY(codec) >= KVP_FAMILY_PUB_KIVI &&
	       KVP_CODEC_FAMILY(codec) <= KVP_FAMILY_PUB_VLLM;
}

static int needs_seed(uint32_t codec)
{
	switch (KVP_CODEC_FAMILY(codec)) {
	case KVP_FAMILY_TQ:
		return !needs_matrix(codec);
	case KVP_FAMILY_HADAMARD:
	case KVP_FAMILY_TQPROD:
	case KVP_FAMILY_HYBRID:
		return 1;
	case KVP_FAMILY_SMART:
		return (KVP_CODEC_VARIANT(codec) & 3u) == KVP_SMART_TQ;
	default:
		return 0;
	}
}

static int check_calib(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib)
{
	if (!needs_matrix(codec))
		return 0;
	return calib && calib->haar && calib->dim == p->dim && calib->digest ? 0 : -ENOENT;
}

static int check_encode(uint32_t codec, const struct kvp_plane *p,
	const struct kvp_encode_opts *opts, struct kvp_raw_const src, const void *out,
	size_t out_size, struct kvp_layout *ret_lay)
{
	struct kvp_layout lay;
	uintptr_t lo, hi;
	int r;

	r = kvp_plane_layout(codec, p, &lay);
	if (r < 0)
		return r;
	if (opts->size != sizeof *opts || opts->queries || !out || (uintptr_t)out % PAYLOAD_ALIGN)
		return -EINVAL;
	if (opts->force_exponent &&
		(opts->exponent < EXPONENT_MIN || opts->exponent > EXPONENT_MAX ||
			(is_published(codec) && opts->exponent)))
		return -EINVAL;
	r = raw_span(p, src, &lo, &hi);
	if (r < 0)
		return r;
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART) {
		size_t bytes;

		r = opts->widths ? kvp_smart_bytes(codec, p, opts->widths, &bytes) : -EINVAL;
		if (r < 0)
			return r;
		lay.bytes = (uint32_t)bytes;
	}
	if (out_size < lay.bytes)
		return -ENOSPC;
	if (overlaps(lo, hi, out, lay.bytes))
		return -EINVAL;
	r = check_calib(codec, p, opts->calib);
	if (r < 0)
		return r;
	*ret_lay = lay;
	return 0;
}

/* What max_of_most() leaves out; see docs/formats.md, "Exponent". */
#define OUTLIER_ROWS 16u
#define OUTLIER_LOG2 16u

/* One power of two for the plane, 0 unless its largest magnitude is below 2^-4 or from 2^10 up. */
static int32_t exponent_for(uint32_t max)
{
	int32_t e = (int32_t)(max >> 23) - 127;

	if (!max || (e >= -4 && e <= 9))
		return 0;
	return e - 2 < EXPONENT_MIN ? EXPONENT_MIN : e - 2;
}

/*
 * The largest magnitude but for outliers: at most one row of OUTLIER_ROWS, and of a few rows one,
 * whose magnitudes are 2^OUTLIER_LOG2 times those of the next and more. Such an element is no key
 * and no value; to let it have a share in the exponent would turn all others into zeros.
 */
static uint32_t max_of_most(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, struct kvp_raw_const src, uint32_t max)
{
	uint32_t rows[256] = { 0 }; /* by the exponent field of their largest magnitude */
	uint32_t n, few, e = max >> 23, louder = 0;

	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t t = 0; t < lay->coded; t++) {
			struct rows_in in = kvp_rows_in(p, src, h, t, 1, 0);

			rows[k->dsp.amax(&in) >> 23]++;
		}
	}
	n = p->heads * lay->coded - rows[0]; /* those that are zero, or nearly, do not count */
	few = n < 2 * OUTLIER_ROWS ? n > 1 : n / OUTLIER_ROWS;
	while (e && louder + rows[e] <= few)
		louder += rows[e--];
	if (e + OUTLIER_LOG2 >= max >> 23)
		return max;
	for (e += OUTLIER_LOG2; e && !rows[e]; e--)
		;
	return e << 23;
}

static int32_t plane_exponent(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, struct kvp_raw_const src)
{
	uint32_t max = 0;

	for (uint32_t h = 0; h < p->heads; h++) {
		struct rows_in in = kvp_rows_in(p, src, h, 0, lay->coded, 0);
		uint32_t m = k->dsp.amax(&in);

		max = m > max ? m : max;
	}
	if (exponent_for(max) > 0)
		max = max_of_most(k, p, lay, src, max);
	return exponent_for(max);
}

/* Whether the first row alone would have the exponent 0, as then the plane mostly has. */
static int looks_usual(
	const struct kvp_kernels *k, const struct kvp_plane *p, struct kvp_raw_const src)
{
	struct rows_in first = kvp_rows_in(p, src, 0, 0, 1, 0);

	return exponent_for(k->dsp.amax(&first)) == 0;
}

/* Gaps between sections hold zeros, so that equal planes have equal payloads. */
static void clear_gaps(const struct kvp_layout *lay, uint8_t *out)
{
	const uint32_t start[] = { lay->codes, lay->scale, lay->minimum, lay->native, lay->extra };

	for (size_t i = 0; i < sizeof start / sizeof *start; i++)
		if (start[i])
			memset(out + start[i] - (KVP_SECTION_ALIGN - 1), 0, KVP_SECTION_ALIGN - 1);
}

/* What precedes the first section. */
static void begin(uint32_t codec, const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_encode_opts *o, int32_t exponent, void *out)
{
	struct kvp_plane_hdr hdr = { .magic = KVP_PLANE_MAGIC,
		.version = KVP_PLANE_VERSION,
		.codec = codec,
		.bytes = lay->bytes,
		.tokens = (uint16_t)p->tokens,
		.heads = (uint16_t)p->heads,
		.dim = (uint16_t)p->dim,
		.dtype = (uint8_t)p->dtype,
		.kind = (uint8_t)p->kind,
		.exponent = exponent };

	if (needs_seed(codec))
		hdr.seed = o->seed ? o->seed : KVP_SEED_DEFAULT;
	if (needs_matrix(codec))
		hdr.calib = o->calib->digest;
	clear_gaps(lay, out);
	memcpy(out, &hdr, sizeof hdr);
}

int kvp_plane_encode(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_encode_opts *opts, struct kvp_raw_const src, void *out, size_t out_size)
{
	const struct kvp_encode_opts none = { .size = sizeof none };
	const struct kvp_encode_opts *o = opts ? opts : &none;
	const struct kvp_codec *c;
	struct kvp_layout lay;
	int32_t exponent = 0;
	int known, r;

	r = check_encode(codec, p, o, src, out, out_size, &lay);
	if (r < 0)
		return r;
	c = &k->codec[KVP_CODEC_FAMILY(codec)];
	if (codec == KVP_CODEC_NATIVE)
		return c->encode(k, p, &lay, o, src, out);
	/*
	 * The exponent needs a pass of its own, which finds the plane in the cache after encoding:
	 * its usual value is tried first and proved then.
	 */
	known = o->force_exponent || is_published(codec);
	if (o->force_exponent)
		exponent = o->exponent;
	if (!known && !looks_usual(k, p, src)) {
		exponent = plane_exponent(k, p, &lay, src);
		known = 1;
	}
	begin(codec, p, &lay, o, exponent, out);
	r = c->encode(k, p, &lay, o, src, out);
	if (r < 0 || known)
		return r;
	exponent = plane_exponent(k, p, &lay, src);
	if (!exponent)
		return 0;
	begin(codec, p, &lay, o, exponent, out);
	return c->encode(k, p, &lay, o, src, out);
}

int kvp_published_begin(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib,
	void *out, size_t out_size, struct kvp_layout *ret_layout)
{
	const struct kvp_encode_opts o = { .size = sizeof o, .calib = calib };
	struct kvp_layout lay;
	int r;

	if (!is_published(codec) || !out || (uintptr_t)out % PAYLOAD_ALIGN)
		return -EINVAL;
	r = kvp_plane_layout(codec, p, &lay);
	if (r < 0)
		return r;
	if (out_size < lay.bytes)
		return -ENOSPC;
	r = check_calib(codec, p, calib);
	if (r < 0)
		return r;
	begin(codec, p, &lay, &o, 0, out);
	*ret_layout = lay;
	return 0;
}

static int check_header(uint32_t codec, const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_calib *calib, const struct kvp_plane_hdr *hdr)
{
	static const uint8_t zero[sizeof hdr->reserved2];

	if (hdr->magic != KVP_PLANE_MAGIC)
		return -EBADMSG;
	if (hdr->version != KVP_PLANE_VERSION)
		return -EPROTONOSUPPORT;
	/* smart's size follows from its widths, which kvp_check_smart() looks at. */
	if (hdr->codec != codec ||
		(KVP_CODEC_FAMILY(codec) != KVP_FAMILY_SMART && hdr->bytes != lay->bytes) ||
		hdr->tokens != p->tokens || hdr->heads != p->heads || hdr->dim != p->dim ||
		hdr->dtype != p->dtype || hdr->kind != p->kind || hdr->reserved0 ||
		hdr->reserved1 || memcmp(hdr->reserved2, zero, sizeof zero) != 0)
		return -EBADMSG;
	if (hdr->exponent < EXPONENT_MIN || hdr->exponent > EXPONENT_MAX ||
		(is_published(codec) && hdr->exponent))
		return -EBADMSG;
	if (needs_seed(codec) ? !hdr->seed : hdr->seed != 0)
		return -EBADMSG;
	if (!needs_matrix(codec))
		return hdr->calib ? -EBADMSG : 0;
	return hdr->calib == calib->digest ? 0 : -ENOENT;
}

/* The header is read once: whoever writes the payload may go on writing. */
static int check_payload(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib,
	const void *in, size_t in_size, struct kvp_layout *ret_lay, struct kvp_plane_hdr *ret_hdr)
{
	struct kvp_plane_hdr hdr = { .codec = KVP_CODEC_NATIVE };
	struct kvp_layout lay;
	int r;

	r = kvp_plane_layout(codec, p, &lay);
	if (r < 0)
		return r;
	if (!in || (uintptr_t)in % PAYLOAD_ALIGN)
		return -EINVAL;
	if (in_size <
		(KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART ? KVP_PLANE_HDR_BYTES : lay.bytes))
		return -EBADMSG;
	r = check_calib(codec, p, calib);
	if (r < 0)
		return r;
	if (codec != KVP_CODEC_NATIVE) {
		memcpy(&hdr, in, sizeof hdr);
		r = check_header(codec, p, &lay, calib, &hdr);
		if (!r && KVP_CODEC_FAMILY(codec) == KVP_FAMILY_HYBRID)
			r = kvp_check_hybrid(p, &lay, &hdr, in);
		if (!r && KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART)
			r = kvp_check_smart(p, &lay, &hdr, in, in_size);
		if (r < 0)
			return r;
		lay.bytes = hdr.bytes;
	}
	*ret_lay = lay;
	*ret_hdr = hdr;
	return 0;
}

int kvp_plane_check(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib,
	const void *in, size_t in_size)
{
	struct kvp_plane_hdr hdr;
	struct kvp_layout lay;

	return check_payload(codec, p, calib, in, in_size, &lay, &hdr);
}

static int check_decode(
	const struct kvp_decode_job *j, struct kvp_layout *ret_lay, struct kvp_plane_hdr *ret_hdr)
{
	struct kvp_raw_const raw = { j->dst.data, j->dst.head_stride, j->dst.token_stride };
	uintptr_t lo, hi;
	int r;

	r = check_payload(j->codec, &j->plane, j->calib, j->in, j->in_size, ret_lay, ret_hdr);
	if (r < 0)
		return r;
	r = raw_span(&j->plane, raw, &lo, &hi);
	if (r < 0)
		return r;
	if (overlaps(lo, hi, j->in, ret_lay->bytes) || !rows_disjoint(&j->plane, raw))
		return -EINVAL;
	return 0;
}

int kvp_plane_decode(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_calib *calib, const void *in, size_t in_size, struct kvp_raw dst)
{
	const struct kvp_decode_job job = { codec, *p, calib, in, in_size, dst };
	struct kvp_plane_hdr hdr;
	struct kvp_layout lay;
	int r = check_decode(&job, &lay, &hdr);

	return r < 0 ? r
		     : k->codec[KVP_CODEC_FAMILY(codec)].decode(k, p, &lay, calib, &hdr, in, dst);
}

/* Rotation and codebook of the tq plane decoded last. */
struct prepared {
	uint32_t codec; /* 0: none yet */
	uint32_t dim;
	uint64_t seed;
	const struct kvp_calib *calib;
	struct tq tq;
};

static int decode_prepared(const struct kvp_kernels *k, const struct kvp_decode_job *j,
	const struct kvp_layout *lay, const struct kvp_plane_hdr *hdr, struct prepared *pre)
{
	if (KVP_CODEC_FAMILY(j->codec) != KVP_FAMILY_TQ)
		return k->codec[KVP_CODEC_FAMILY(j->codec)].decode(
			k, &j->plane, lay, j->calib, hdr, j->in, j->dst);
	if (pre->codec != j->codec || pre->dim != j->plane.dim || pre->seed != hdr->seed ||
		pre->calib != j->calib) {
		int r = kvp_tq_init(
			&pre->tq, KVP_CODEC_VARIANT(j->codec), j->plane.dim, hdr->seed, j->calib);

		pre->codec = r < 0 ? 0 : j->codec;
		if (r < 0)
			return r;
		pre->dim = j->plane.dim;
		pre->seed = hdr->seed;
		pre->calib = j->calib;
	}
	kvp_tq_decode_plane(k, &pre->tq, &j->plane, lay, hdr->exponent, j->in, j->dst);
	return 0;
}

int kvp_planes_decode(
	const struct kvp_kernels *k, const struct kvp_decode_job *jobs, size_t n, size_t *ret_done)
{
	struct kvp_plane_hdr hdr;
	struct kvp_layout lay;
	struct prepared pre;
	int r = 0;

	*ret_done = 0;
	pre.codec = 0;
	for (size_t i = 0; i < n && !r; i++)
		r = check_decode(&jobs[i], &lay, &hdr);
	for (size_t i = 0; i < n && !r; i++) {
		/* Again: what was decoded meanwhile may lie over this payload. */
		r = check_decode(&jobs[i], &lay, &hdr);
		if (!r)
			r = decode_prepared(k, &jobs[i], &lay, &hdr, &pre);
		*ret_done += !r;
	}
	return r;
}
