/* SPDX-License-Identifier: Apache-2.0 */
/* The public entry points: everything a caller can get wrong is refused here. */
#include "kernels/kvp_lost.h"
#include "kernels/codec_impl.h"
#include "kernels/kvp_rope.h"
#include "kernels/kvp_squat.h"
#include "kernels/numeric.h"

#include <errno.h>

#define PAYLOAD_ALIGN 16u

int kvp_plane_layout(uint32_t codec, const struct kvp_plane *p, struct kvp_layout *ret_layout)
{
	const struct kvp_codec *c = kvp_codec_row(KVP_CODEC_FAMILY(codec));

	if (!c || !p->tokens || p->tokens > KVP_PLANE_TOKENS_MAX || !p->heads ||
		p->heads > KVP_PLANE_HEADS_MAX || p->dim < KVP_PLANE_DIM_MIN ||
		p->dim > KVP_PLANE_DIM_MAX || p->kind > KVP_PLANE_V || !dtype_bytes(p->dtype))
		return -EINVAL;
	if (!(kvp_codec_facts(codec) & KVP_FACT_BARE) && (p->dim % 8 || p->dtype == KVP_DTYPE_F8))
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

int kvp_raw_span(
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

/* One of the two strides steps over the other's extent. */
int kvp_rows_disjoint(const struct kvp_plane *p, struct kvp_raw_const raw)
{
	uintptr_t row = (uintptr_t)p->dim * dtype_bytes(p->dtype);
	uintptr_t head = distance(raw.head_stride), token = distance(raw.token_stride);

	if ((p->heads > 1 && head < row) || (p->tokens > 1 && token < row))
		return 0;
	return p->heads == 1 || p->tokens == 1 || head >= token * (p->tokens - 1) + row ||
	       token >= head * (p->heads - 1) + row;
}

static int check_calib(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib)
{
	if (kvp_codec_facts(codec) & KVP_FACT_CALIBRATED)
		return calib && calib->digest &&
				       kvp_codec_row(KVP_CODEC_FAMILY(codec))->fits(codec, calib, p)
			       ? 0
			       : -ENOENT;
	if (!(kvp_codec_facts(codec) & KVP_FACT_MATRIX))
		return 0;
	return calib && calib->haar && calib->dim == p->dim && calib->digest ? 0 : -ENOENT;
}

static int check_queries(uint32_t codec, const struct kvp_plane *p, const struct kvp_squat *queries)
{
	if (!(kvp_codec_facts(codec) & KVP_FACT_QUERIES) || p->kind != KVP_PLANE_K)
		return 0;
	return queries && kvp_squat_options(queries)->heads == p->heads &&
			       kvp_squat_options(queries)->dim == p->dim
		       ? 0
		       : -ENOENT;
}

static int check_encode(uint32_t codec, const struct kvp_plane *p,
	const struct kvp_encode_opts *opts, struct kvp_raw_const src, const void *out,
	size_t out_size, struct kvp_layout *ret_lay)
{
	const struct kvp_codec *c = kvp_codec_row(KVP_CODEC_FAMILY(codec));
	struct kvp_layout lay;
	uintptr_t lo, hi;
	int r;

	r = kvp_plane_layout(codec, p, &lay);
	if (r < 0)
		return r;
	if (opts->size != sizeof *opts || !out || (uintptr_t)out % PAYLOAD_ALIGN)
		return -EINVAL;
	if (opts->force_exponent &&
		(opts->exponent < KVP_EXPONENT_MIN || opts->exponent > KVP_EXPONENT_MAX ||
			((kvp_codec_facts(codec) & KVP_FACT_UNSCALED) && opts->exponent)))
		return -EINVAL;
	r = kvp_raw_span(p, src, &lo, &hi);
	if (r < 0)
		return r;
	if (c->bytes) {
		r = c->bytes(codec, p, opts->widths, &lay.bytes);
		if (r < 0)
			return r;
	}
	if ((kvp_codec_facts(codec) & KVP_FACT_CALIBRATED) &&
		opts->position > KVP_ROPE_POSITIONS_MAX - p->tokens)
		return -EINVAL;
	if (out_size < lay.bytes)
		return -ENOSPC;
	if (overlaps(lo, hi, out, lay.bytes))
		return -EINVAL;
	r = check_calib(codec, p, opts->calib);
	if (!r)
		r = check_queries(codec, p, opts->queries);
	if (r < 0)
		return r;
	*ret_lay = lay;
	return 0;
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
	const uint32_t facts = kvp_codec_facts(codec);

	if (facts & KVP_FACT_SEED)
		hdr.seed = o->seed ? o->seed : KVP_SEED_DEFAULT;
	if (facts & (KVP_FACT_MATRIX | KVP_FACT_CALIBRATED))
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
	uint32_t facts;
	int known, r;

	r = check_encode(codec, p, o, src, out, out_size, &lay);
	if (r < 0)
		return r;
	c = &k->codec[KVP_CODEC_FAMILY(codec)];
	facts = kvp_codec_facts(codec);
	if (facts & KVP_FACT_BARE)
		return c->encode(k, p, &lay, o, src, out);
	/*
	 * The exponent needs a pass of its own, which finds the plane in the cache after encoding:
	 * its usual value is tried first and proved then.
	 */
	known = o->force_exponent || (facts & KVP_FACT_UNSCALED);
	if (o->force_exponent)
		exponent = o->exponent;
	if (!known && !kvp_exponent_looks_usual(k, p, src)) {
		exponent = kvp_plane_exponent(k, p, &lay, src);
		known = 1;
	}
	begin(codec, p, &lay, o, exponent, out);
	r = c->encode(k, p, &lay, o, src, out);
	if (r < 0 || known)
		return r;
	exponent = kvp_plane_exponent(k, p, &lay, src);
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

	if (!(kvp_codec_facts(codec) & KVP_FACT_PUBLISHED) || !out ||
		(uintptr_t)out % PAYLOAD_ALIGN)
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
	const uint32_t facts = kvp_codec_facts(codec);

	if (hdr->magic != KVP_PLANE_MAGIC)
		return -EBADMSG;
	if (hdr->version != KVP_PLANE_VERSION)
		return -EPROTONOSUPPORT;
	/* A size that follows from what is in the payload is the row's check()'s. */
	if (hdr->codec != codec || (!(facts & KVP_FACT_VARIES) && hdr->bytes != lay->bytes) ||
		hdr->tokens != p->tokens || hdr->heads != p->heads || hdr->dim != p->dim ||
		hdr->dtype != p->dtype || hdr->kind != p->kind || hdr->reserved0 ||
		hdr->reserved1 || memcmp(hdr->reserved2, zero, sizeof zero) != 0)
		return -EBADMSG;
	if (hdr->exponent < KVP_EXPONENT_MIN || hdr->exponent > KVP_EXPONENT_MAX ||
		((facts & KVP_FACT_UNSCALED) && hdr->exponent))
		return -EBADMSG;
	if (facts & KVP_FACT_SEED ? !hdr->seed : hdr->seed != 0)
		return -EBADMSG;
	if (!(facts & (KVP_FACT_MATRIX | KVP_FACT_CALIBRATED)))
		return hdr->calib ? -EBADMSG : 0;
	return hdr->calib == calib->digest ? 0 : -ENOENT;
}

int kvp_plane_header(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib,
	const void *in, size_t in_size, struct kvp_layout *lay, struct kvp_plane_hdr *ret_hdr)
{
	const struct kvp_codec *c = kvp_codec_row(KVP_CODEC_FAMILY(codec));
	const uint32_t facts = kvp_codec_facts(codec);
	struct kvp_plane_hdr hdr = { .codec = codec };
	int r;

	if (!in || (uintptr_t)in % PAYLOAD_ALIGN)
		return -EINVAL;
	if (in_size < (facts & KVP_FACT_VARIES ? KVP_PLANE_HDR_BYTES : lay->bytes))
		return -EBADMSG;
	r = check_calib(codec, p, calib);
	if (r < 0)
		return r;
	if (!(facts & KVP_FACT_BARE)) {
		memcpy(&hdr, in, sizeof hdr);
		r = check_header(codec, p, lay, calib, &hdr);
		if (!r && c->check)
			r = c->check(p, lay, &hdr, in, in_size);
		if (r < 0)
			return r;
		lay->bytes = hdr.bytes;
	}
	*ret_hdr = hdr;
	return 0;
}

static int check_payload(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib,
	const void *in, size_t in_size, struct kvp_layout *ret_lay, struct kvp_plane_hdr *ret_hdr)
{
	int r = kvp_plane_layout(codec, p, ret_lay);

	return r < 0 ? r : kvp_plane_header(codec, p, calib, in, in_size, ret_lay, ret_hdr);
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
	r = kvp_raw_span(&j->plane, raw, &lo, &hi);
	if (r < 0)
		return r;
	if (overlaps(lo, hi, j->in, ret_lay->bytes) || !kvp_rows_disjoint(&j->plane, raw))
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

/* What the row's prepare() made for the plane decoded last. */
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
	const struct kvp_codec *c = &k->codec[KVP_CODEC_FAMILY(j->codec)];

	if (!c->prepare)
		return c->decode(k, &j->plane, lay, j->calib, hdr, j->in, j->dst);
	if (pre->codec != j->codec || pre->dim != j->plane.dim || pre->seed != hdr->seed ||
		pre->calib != j->calib) {
		int r = c->prepare(j->codec, j->plane.dim, hdr->seed, j->calib, &pre->tq);

		pre->codec = r < 0 ? 0 : j->codec;
		if (r < 0)
			return r;
		pre->dim = j->plane.dim;
		pre->seed = hdr->seed;
		pre->calib = j->calib;
	}
	c->decode_prepared(k, &pre->tq, &j->plane, lay, hdr->exponent, j->in, j->dst);
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

void kvp_head_lost(const struct kvp_kernels *k, const struct kvp_plane *p, uint32_t head,
	struct kvp_raw_const src, struct kvp_raw_const decoded, double *ret_lost, double *ret_all)
{
	const struct rows_in rows = {
		.data = (const uint8_t *)src.data + (ptrdiff_t)head * src.head_stride,
		.stride = src.token_stride,
		.n = p->tokens,
		.dim = p->dim,
		.dtype = p->dtype,
		.scale = 1,
	};

	k->dsp.lost(&rows, (const uint8_t *)decoded.data + (ptrdiff_t)head * decoded.head_stride,
		decoded.token_stride, ret_lost, ret_all);
}
