/* SPDX-License-Identifier: Apache-2.0 */
/* Planes of parts as rows for the kernels of attention: what headers say, rotations, and runs. */
#include "kernels/attend_plane.h"
#include "kernels/numeric.h"

#include <errno.h>
#include <math.h>

/* What follows from the codec and the plane's shape: mostly as of the plane that was seen before. */
static int view_begin(
	const struct kvp_attend_plane *ap, const struct kvp_plane *p, struct plane_view *v)
{
	const struct kvp_plane *was = &v->p;
	int r;

	if (v->known && v->codec == ap->codec && was->tokens == p->tokens &&
		was->heads == p->heads && was->dim == p->dim && was->dtype == p->dtype &&
		was->kind == p->kind)
		return 0;
	v->known = 0;
	v->codec = ap->codec;
	v->p = *p;
	v->in = kvp_codec_in_place(ap->codec, p->kind);
	r = kvp_plane_layout(ap->codec, p, &v->whole);
	if (!r && v->in.form == KVP_FORM_BOOK)
		r = kvp_codebook(
			v->in.bits, v->in.book == KVP_BOOK_SPHERE ? p->dim : 0, v->cent, v->bound);
	v->known = !r;
	return r;
}

int kvp_attend_view(const struct kvp_attention *a, const struct kvp_attend_part *part,
	uint32_t kind, struct plane_view *v)
{
	const struct kvp_attend_plane *ap = kind == KVP_PLANE_K ? &part->k : &part->v;
	const struct kvp_plane p = { part->tokens, a->kv_heads,
		kind == KVP_PLANE_K ? a->k_dim : a->v_dim, ap->dtype, kind };
	int r = view_begin(ap, &p, v);

	if (r < 0)
		return r;
	v->domain = 0;
	v->lay = v->whole;
	if (v->in.form == KVP_FORM_NATIVE) {
		uint32_t size = dtype_bytes(ap->dtype);

		if (ap->dtype == KVP_DTYPE_F8 || !ap->data || !size || (uintptr_t)ap->data % size ||
			ap->head_stride % (ptrdiff_t)size || ap->token_stride % (ptrdiff_t)size)
			return -EINVAL;
		return 0;
	}
	r = kvp_plane_header(ap->codec, &v->p, ap->calib, ap->data, ap->bytes, &v->lay, &v->hdr);
	if (r < 0)
		return r;
	/* Of some codecs the layout knows only a bound; the header was checked against ap->bytes. */
	v->lay.bytes = v->whole.bytes;
	if (v->lay.bytes > ap->bytes)
		v->lay.bytes = (uint32_t)ap->bytes;
	return 0;
}

static int domain_find(const struct domains *d, const struct plane_view *v)
{
	uint64_t name = v->in.rotation == KVP_ROT_HAAR ? v->hdr.calib : v->hdr.seed;

	if (v->in.rotation == KVP_ROT_NONE)
		return 0;
	for (uint32_t i = 0; i < d->n; i++)
		if (d->kind[i] == v->in.rotation && d->name[i] == name)
			return (int)i + 1;
	return -ENOENT;
}

int kvp_attend_domain_add(struct domains *d, struct plane_view *v, const struct kvp_calib *calib)
{
	int r = domain_find(d, v);

	if (r < 0) {
		if (d->n == KVP_ATTEND_ROTATIONS_MAX)
			return -E2BIG;
		r = kvp_rotation_init(&d->rot[d->n], v->in.rotation, v->p.dim, v->hdr.seed, calib);
		if (r < 0)
			return r;
		d->kind[d->n] = v->in.rotation;
		d->name[d->n] = v->in.rotation == KVP_ROT_HAAR ? v->hdr.calib : v->hdr.seed;
		r = (int)++d->n;
	}
	v->domain = (uint32_t)r;
	if (v->in.form == KVP_FORM_BOOK && v->in.bits == 4)
		d->books |= 1u << v->domain;
	if (v->in.form >= KVP_FORM_INT8 && v->in.form < KVP_FORMS && !v->in.per_channel)
		d->codes |= 1u << v->domain;
	return 0;
}

struct kvp_rows kvp_attend_rows(const struct plane_view *v, const struct kvp_attend_plane *ap,
	uint32_t head, uint32_t first, uint32_t n)
{
	const uint8_t *data = ap->data;
	size_t row = (size_t)head * v->lay.coded + first;
	struct kvp_rows r = { .form = v->in.form, .dim = v->p.dim, .n = n, .factor = 1.0f };

	if (r.form == KVP_FORMS)
		return r;
	if (r.form == KVP_FORM_NATIVE || first >= v->lay.coded) {
		uint32_t size = dtype_bytes(ap->dtype);
		ptrdiff_t head_stride = ap->head_stride;

		r.form = KVP_FORM_NATIVE;
		r.format = ap->dtype;
		r.stride = ap->token_stride;
		if (v->in.form != KVP_FORM_NATIVE) {
			data += v->lay.native;
			first -= v->lay.coded;
			r.stride = (ptrdiff_t)(v->p.dim * size);
			head_stride = r.stride * (ptrdiff_t)(v->p.tokens - v->lay.coded);
		}
		r.codes = data + (ptrdiff_t)head * head_stride + (ptrdiff_t)first * r.stride;
		return r;
	}
	r.format = v->in.format;
	r.bits = v->in.bits;
	r.per_channel = v->in.per_channel;
	r.stride = v->lay.row_bytes;
	r.codes = data + v->lay.codes + row * v->lay.row_bytes;
	r.factor = pow2f(v->hdr.exponent);
	r.group = v->lay.group;
	r.groups = v->lay.groups;
	r.cent = v->cent;
	if (r.form == KVP_FORM_BOOK) {
		r.scale = data + v->lay.scale + row * (r.format ? 4 : 2);
		return r;
	}
	if (v->in.unit)
		r.factor *= 1.0f / sqrtf((float)v->p.dim);
	if (r.per_channel)
		row = ((size_t)head * v->lay.groups + first / v->lay.group) * v->p.dim;
	else
		row *= v->lay.groups;
	r.scale = data + v->lay.scale + row * 2;
	if (v->lay.minimum)
		r.minimum = data + v->lay.minimum + row * 2;
	return r;
}

int kvp_attend_rows_ready(const struct kvp_kernels *k, const struct plane_view *v,
	const struct kvp_attend_plane *ap, uint32_t head, uint32_t first, float *scratch,
	struct kvp_rows *rows)
{
	struct rows_out out;

	if (rows->form != KVP_FORMS)
		return 0; /* a native plane, among others, which has no header */
	out = (struct rows_out){ (uint8_t *)scratch, (ptrdiff_t)(v->p.dim * sizeof *scratch),
		rows->n, v->p.dim, KVP_DTYPE_F32, pow2f(v->hdr.exponent) };
	rows->form = KVP_FORM_NATIVE;
	rows->format = KVP_DTYPE_F32;
	rows->stride = out.stride;
	rows->codes = out.data;
	return kvp_rows_decode(
		k, ap->codec, &v->p, &v->lay, ap->calib, ap->data, head, first, &out);
}

int kvp_attend_part_view(const struct kvp_attention *a, const struct domains *k,
	const struct domains *v, uint32_t i, uint64_t at, struct part_view *ret)
{
	int r;

	ret->part = &a->parts[i];
	ret->at = at;
	r = kvp_attend_view(a, ret->part, KVP_PLANE_K, &ret->k);
	if (!r)
		r = kvp_attend_view(a, ret->part, KVP_PLANE_V, &ret->v);
	if (r < 0)
		return r;
	r = domain_find(k, &ret->k);
	if (r < 0)
		return -EBADMSG;
	ret->k.domain = (uint32_t)r;
	r = domain_find(v, &ret->v);
	if (r < 0)
		return -EBADMSG;
	ret->v.domain = (uint32_t)r;
	return 0;
}

static void chunk_rows(struct chunk *c)
{
	const struct part_view *pv = c->pv;
	uint32_t tokens = pv->part->tokens, end = (c->t / ATTEND_CHUNK + 1) * ATTEND_CHUNK;

	end = c->t < pv->k.lay.coded && end > pv->k.lay.coded ? pv->k.lay.coded : end;
	end = c->t < pv->v.lay.coded && end > pv->v.lay.coded ? pv->v.lay.coded : end;
	c->n = (end < tokens ? end : tokens) - c->t;
	c->k = kvp_attend_rows(&pv->k, &pv->part->k, c->head, c->t, c->n);
	c->v = kvp_attend_rows(&pv->v, &pv->part->v, c->head, c->t, c->n);
}

struct chunk kvp_attend_chunk_first(const struct part_view *pv)
{
	struct chunk c = { .pv = pv };

	if (pv)
		chunk_rows(&c);
	return c;
}

struct chunk kvp_attend_chunk_next(
	const struct kvp_attention *a, const struct chunk *c, const struct part_view *after)
{
	struct chunk next = { .pv = c->pv, .head = c->head, .t = c->t + c->n };

	if (next.t == c->pv->part->tokens) {
		next.t = 0;
		if (++next.head == a->kv_heads)
			return kvp_attend_chunk_first(after);
	}
	chunk_rows(&next);
	return next;
}
