/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pca: keys without their RoPE, and values, in the axes of a calibration, rounded to its step and
 * entropy-coded with its tables. A plane that would not shrink is stored as it is.
 */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"
#include "kernels/pca.h"
#include "kernels/rope.h"

#include <assert.h>
#include <errno.h>

/* What follows the payload's header: where the plane is, and which form it has. */
struct pca_hdr {
	uint32_t position; /* of the first token; 0 for values */
	uint32_t form;
};
#define FORM_STORED 0u
#define FORM_CODED  1u

#define BODY (KVP_PLANE_HDR_BYTES + (uint32_t)sizeof(struct pca_hdr))

/* The sizes of a unit's parts: escapes, then the stream. */
struct unit_size {
	uint32_t escapes; /* 16 bits each */
	uint32_t bytes;
};

static uint32_t stored_bytes(const struct kvp_plane *p)
{
	return BODY + p->heads * p->tokens * p->dim * dtype_bytes(p->dtype);
}

static int layout_pca(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	if (id != KVP_CODEC_PCA || p->dim > KVP_CALIB_WIDTH_MAX)
		return -EINVAL;
	*ret = (struct kvp_layout){
		.row_bytes = p->dim,
		.coded = p->tokens,
		.codes = KVP_PLANE_HDR_BYTES,
		.bytes = stored_bytes(p),
	};
	return 0;
}

static int fits_pca(uint32_t id, const struct kvp_calib *calib, const struct kvp_plane *p)
{
	const struct kvp_pca *pca = calib->pca;

	(void)id;
	return pca && pca->heads == p->heads && pca->dim == p->dim && pca->kind == p->kind;
}

/* ---- encoding ---- */

/* One unit that is being coded: escapes grow from `escape` up, the stream from its top down. */
struct unit_out {
	const struct pca_unit *unit;
	uint8_t *escape;
	struct rans_writer w;
	struct pca_tile tile;
};

/* Tokens [first, first + n) of a unit's heads, before RoPE, to rows of channels; the rest is 0. */
static void load_rows(const struct kvp_kernels *k, const struct kvp_pca *pca,
	const struct kvp_plane *p, struct kvp_raw_const src, uint32_t unit, uint32_t position,
	uint32_t first, uint32_t n, float *x)
{
	struct rope_turn turn;

	memset(x, 0, sizeof *x * PCA_ROWS * pca->width_stride);
	for (uint32_t t = 0; t < n; t++) {
		float *row = x + (size_t)t * pca->width_stride;

		k->dsp.rope_turn(pca->rope, position + first + t, 1, &turn);
		for (uint32_t h = 0; h < pca->joint; h++)
			k->dsp.rope_row(&turn, p->dim,
				kvp_rows_in(p, src, unit * pca->joint + h, first + t, 1, 0).data,
				p->dtype, (uint8_t *)(row + h * p->dim), KVP_DTYPE_F32);
	}
}

/* -ENOSPC: there is no room, or the quotient has more bits than an escape. */
static int put_escape(struct unit_out *o, int32_t high)
{
	const int16_t v = (int16_t)high;

	if (high != v || o->w.at - o->escape < (ptrdiff_t)sizeof v)
		return -ENOSPC;
	memcpy(o->escape, &v, sizeof v);
	o->escape += sizeof v;
	o->w.floor = o->escape;
	return 0;
}

/* Components [c, end) of one table, of which some may have to be escapes. */
static int put_components(struct unit_out *o, const struct pca_table *table, uint32_t c,
	uint32_t end, uint32_t at, uint32_t n, const int32_t *q)
{
	const uint32_t stride = o->unit->rank_stride, shift = table->shift;

	for (; c < end; c++) {
		uint8_t *sym = o->tile.sym + c * PCA_TILE + at,
			*low = o->tile.low + c * PCA_TILE + at;

		for (uint32_t t = 0; t < PCA_ROWS; t++) {
			const int32_t v = t < n ? q[t * stride + c] : 0;
			const int32_t high = v >> shift;
			const uint32_t s = (uint32_t)(high + (int32_t)KVP_CALIB_ZERO);

			low[t] = (uint8_t)(v & ((1 << shift) - 1));
			sym[t] = (uint8_t)s;
			if (s - 1 < KVP_CALIB_SYMBOLS - 1 && table->coder.word[s] & 0xffffu)
				continue;
			sym[t] = KVP_CALIB_ESCAPE;
			if (put_escape(o, high) < 0)
				return -ENOSPC;
		}
	}
	return 0;
}

/* Quotients of n of PCA_ROWS tokens to symbols; tokens that are none have components of 0. */
static int put_symbols(
	const struct kvp_kernels *k, struct unit_out *o, uint32_t at, uint32_t n, const int32_t *q)
{
	uint8_t odd[PCA_BLOCKS];

	k->dsp.pca_symbols(o->unit, q, n, at, &o->tile, odd);
	for (uint32_t i = 0; i < o->unit->tables; i++) {
		const struct pca_table *table = &o->unit->table[i];
		const uint32_t end = table->first + table->count;

		for (uint32_t c = table->first, next; c < end; c = next) {
			next = (c / PCA_BLOCK + 1) * PCA_BLOCK;
			next = next < end ? next : end;
			if (odd[c / PCA_BLOCK] && put_components(o, table, c, next, at, n, q) < 0)
				return -ENOSPC;
		}
	}
	return 0;
}

/* What a decoder reads last is coded first. */
static int code_tile(const struct kvp_kernels *k, const struct kvp_pca *pca, struct unit_out *o)
{
	int r = 0;

	for (uint32_t i = o->unit->tables; i-- > 0 && !r;) {
		const struct pca_table *t = &o->unit->table[i];
		const size_t first = t->first * PCA_TILE, n = t->count * PCA_TILE;

		if (t->shift)
			r = k->dsp.rans_encode(
				&pca->low[t->shift].coder, o->tile.low + first, n, &o->w);
		if (!r)
			r = k->dsp.rans_encode(&t->coder, o->tile.sym + first, n, &o->w);
	}
	return r;
}

/* One unit into [floor, top), escapes first. -ENOSPC. */
static int encode_unit(const struct kvp_kernels *k, const struct kvp_pca *pca,
	const struct kvp_plane *p, struct kvp_raw_const src, uint32_t unit, uint32_t position,
	uint8_t *floor, uint8_t *top, struct unit_size *ret_size)
{
	struct unit_out o = { .unit = &pca->unit[unit], .escape = floor };
	float x[PCA_ROWS * KVP_CALIB_WIDTH_MAX], z[PCA_ROWS * KVP_CALIB_WIDTH_MAX];
	int32_t q[PCA_ROWS * KVP_CALIB_WIDTH_MAX];
	uint32_t tile = (p->tokens + PCA_TILE - 1) / PCA_TILE;
	int r = 0;

	o.w = kvp_rans_writer(floor, top);
	while (tile-- > 0 && !r) {
		for (uint32_t at = 0; at < PCA_TILE && !r; at += PCA_ROWS) {
			const uint32_t first = tile * PCA_TILE + at;
			const uint32_t left = first < p->tokens ? p->tokens - first : 0;
			const uint32_t n = left < PCA_ROWS ? left : PCA_ROWS;

			if (n) {
				load_rows(k, pca, p, src, unit, position, first, n, x);
				k->dsp.pca_project(pca, o.unit, x, q, z);
			}
			r = put_symbols(k, &o, at, n, q);
		}
		if (!r)
			r = code_tile(k, pca, &o);
	}
	if (!r)
		r = kvp_rans_finish(&o.w);
	if (r < 0)
		return r;
	ret_size->escapes = (uint32_t)(o.escape - floor) / 2;
	ret_size->bytes = (uint32_t)(top - o.w.at);
	memmove(o.escape, o.w.at, ret_size->bytes);
	return 0;
}

static int encode_coded(const struct kvp_kernels *k, const struct kvp_pca *pca,
	const struct kvp_plane *p, const struct kvp_layout *lay, struct kvp_raw_const src,
	uint32_t position, uint8_t *out, uint32_t *ret_bytes)
{
	struct unit_size size;
	uint32_t at = BODY + pca->units * (uint32_t)sizeof size;

	if (at >= lay->bytes)
		return -ENOSPC;
	for (uint32_t u = 0; u < pca->units; u++) {
		int r = encode_unit(k, pca, p, src, u, position, out + at, out + lay->bytes, &size);

		if (r < 0)
			return r;
		memcpy(out + BODY + u * sizeof size, &size, sizeof size);
		at += 2 * size.escapes + size.bytes;
	}
	*ret_bytes = at;
	return at < lay->bytes ? 0 : -ENOSPC;
}

static int encode_pca(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_pca *pca = o->calib->pca;
	const size_t row = (size_t)p->dim * dtype_bytes(p->dtype);
	struct pca_hdr hdr = { p->kind == KVP_PLANE_K ? o->position : 0, FORM_CODED };
	uint8_t *to = out + BODY;
	uint32_t bytes;

	if (encode_coded(k, pca, p, lay, src, hdr.position, out, &bytes) < 0) {
		hdr.form = FORM_STORED;
		bytes = lay->bytes;
		for (uint32_t h = 0; h < p->heads; h++)
			for (uint32_t t = 0; t < p->tokens; t++, to += row)
				memcpy(to, kvp_rows_in(p, src, h, t, 1, 0).data, row);
	}
	memcpy(out + KVP_PLANE_HDR_BYTES, &hdr, sizeof hdr);
	memcpy(out + offsetof(struct kvp_plane_hdr, bytes), &bytes, sizeof bytes);
	return 0;
}

/* ---- decoding ---- */

/* A payload's parts: copies that were checked. */
struct parts {
	struct pca_hdr hdr;
	struct unit_size size[KVP_PLANE_HEADS_MAX];
};

static int take_header(
	const struct kvp_plane *p, const uint8_t *in, uint32_t bytes, struct pca_hdr *ret)
{
	if (bytes < BODY || bytes > stored_bytes(p))
		return -EBADMSG;
	memcpy(ret, in + KVP_PLANE_HDR_BYTES, sizeof *ret);
	if (ret->form > FORM_CODED || (bytes == stored_bytes(p)) != (ret->form == FORM_STORED))
		return -EBADMSG;
	if (p->kind == KVP_PLANE_K ? ret->position > KVP_ROPE_POSITIONS_MAX - p->tokens
				   : ret->position != 0)
		return -EBADMSG;
	return 0;
}

/* bytes: what the payload's header says, all of which may be read. */
static int take_parts(const struct kvp_pca *pca, const struct kvp_plane *p, const uint8_t *in,
	uint32_t bytes, struct parts *ret)
{
	uint64_t at = BODY + pca->units * sizeof *ret->size;
	int r = take_header(p, in, bytes, &ret->hdr);

	if (r < 0 || ret->hdr.form == FORM_STORED)
		return r;
	if (at > bytes)
		return -EBADMSG;
	memcpy(ret->size, in + BODY, pca->units * sizeof *ret->size);
	for (uint32_t u = 0; u < pca->units; u++) {
		if (ret->size[u].bytes < RANS_STATE_BYTES || ret->size[u].bytes % 2)
			return -EBADMSG;
		at += 2 * (uint64_t)ret->size[u].escapes + ret->size[u].bytes;
	}
	return at == bytes ? 0 : -EBADMSG;
}

/* The sizes of units are judged when there is a calibration to say how many there are. */
static int check_pca(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, size_t in_size)
{
	struct pca_hdr own;

	(void)lay;
	return hdr->bytes > in_size ? -EBADMSG : take_header(p, in, hdr->bytes, &own);
}

/* Where rows of heads go: of tokens from `first` on, `n` of them. */
struct target {
	uint8_t *data; /* of the first head, and token `first` */
	ptrdiff_t head_stride, token_stride;
	uint32_t dtype;
	uint32_t head, heads; /* of the unit's */
	uint32_t first, n;
};

/* One unit that is being read. */
struct unit_in {
	const struct pca_unit *unit;
	struct rans_reader reader;
	const uint8_t *escapes;
	uint32_t left; /* escapes of this tile and those that follow */
	struct pca_tile tile;
	struct pca_list list[PCA_ROWS];
};

/* n: a multiple of 8. */
static uint32_t count_escapes(const uint8_t *sym, uint32_t n)
{
	const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
	uint32_t count = 0;

	static_assert(KVP_CALIB_ESCAPE == 0, "bytes of 0 are counted");
	for (uint32_t i = 0; i < n; i += 8) {
		uint64_t x;

		memcpy(&x, sym + i, sizeof x);
		x = ~(((x & low) + low) | x | low); /* the top bit of bytes that are 0 */
		if (x)
			count += (uint32_t)__builtin_popcountll(x);
	}
	return count;
}

/* -EBADMSG: more escapes than there are. */
static int read_tile(const struct kvp_kernels *k, const struct kvp_pca *pca, struct unit_in *in)
{
	uint32_t escapes;

	for (uint32_t i = 0; i < in->unit->tables; i++) {
		const struct pca_table *t = &in->unit->table[i];
		const size_t first = t->first * PCA_TILE, n = t->count * PCA_TILE;

		k->dsp.rans_decode(&t->slots, &in->reader, in->tile.sym + first, n);
		if (t->shift)
			k->dsp.rans_decode(
				&pca->low[t->shift].slots, &in->reader, in->tile.low + first, n);
	}
	escapes = count_escapes(in->tile.sym, in->unit->rank * PCA_TILE);
	if (escapes > in->left)
		return -EBADMSG;
	in->left -= escapes;
	return 0;
}

/* Rows of a tile that are wanted. */
static void write_rows(const struct kvp_kernels *k, const struct kvp_pca *pca, uint32_t position,
	uint32_t first, uint32_t n, const float *y, const struct target *to)
{
	struct rope_turn turn;

	for (uint32_t t = 0; t < n; t++) {
		const float *row = y + (size_t)t * pca->width_stride + to->head * pca->dim;
		const uint32_t token = first + t - to->first;

		if (first + t < to->first || token >= to->n)
			continue;
		k->dsp.rope_turn(pca->rope, position + first + t, 0, &turn);
		for (uint32_t h = 0; h < to->heads; h++)
			k->dsp.rope_row(&turn, pca->dim, (const uint8_t *)(row + h * pca->dim),
				KVP_DTYPE_F32,
				to->data + (ptrdiff_t)h * to->head_stride +
					(ptrdiff_t)token * to->token_stride,
				to->dtype);
	}
}

static int decode_unit(const struct kvp_kernels *k, const struct kvp_pca *pca,
	const struct kvp_plane *p, const struct parts *parts, const uint8_t *payload, uint32_t unit,
	const struct target *to)
{
	float y[PCA_ROWS * KVP_CALIB_WIDTH_MAX];
	const struct unit_size *size = &parts->size[unit];
	const uint32_t end = to->first + to->n;
	size_t at = BODY + pca->units * sizeof *size;
	struct unit_in in;
	int r;

	for (uint32_t u = 0; u < unit; u++)
		at += 2 * (size_t)parts->size[u].escapes + parts->size[u].bytes;
	in.unit = &pca->unit[unit];
	in.escapes = payload + at;
	in.left = size->escapes;
	r = kvp_rans_reader(payload + at + 2 * (size_t)size->escapes, size->bytes, &in.reader);
	for (uint32_t tile = 0; tile < end && !r; tile += PCA_TILE) {
		const uint32_t stop = tile + PCA_TILE < end ? tile + PCA_TILE : end;
		const uint8_t *escape;

		r = read_tile(k, pca, &in);
		escape = in.escapes + 2 * (size_t)in.left;
		for (uint32_t t = tile; t < stop && !r; t += PCA_ROWS) {
			const uint32_t n = stop - t < PCA_ROWS ? stop - t : PCA_ROWS;

			k->dsp.pca_lists(in.unit, &in.tile, t - tile, &escape, in.list);
			if (t + n <= to->first)
				continue;
			k->dsp.pca_build(pca, in.unit, in.list, n, y);
			write_rows(k, pca, parts->hdr.position, t, n, y, to);
		}
	}
	if (r || end < p->tokens)
		return r;
	return in.left ? -EBADMSG : kvp_rans_end(&in.reader);
}

static const uint8_t *stored_row(
	const struct kvp_plane *p, const uint8_t *in, uint32_t head, uint32_t token)
{
	return in + BODY + ((size_t)head * p->tokens + token) * p->dim * dtype_bytes(p->dtype);
}

static int decode_pca(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	const struct kvp_pca *pca = calib->pca;
	struct parts parts;
	int r = take_parts(pca, p, in, hdr->bytes, &parts), bad = 0;

	(void)lay;
	if (r < 0)
		return r;
	if (parts.hdr.form == FORM_STORED) {
		for (uint32_t h = 0; h < p->heads; h++)
			for (uint32_t t = 0; t < p->tokens; t++)
				memcpy(kvp_rows_out(p, dst, h, t, 1, 0).data,
					stored_row(p, in, h, t),
					(size_t)p->dim * dtype_bytes(p->dtype));
		return 0;
	}
	for (uint32_t u = 0; u < pca->units; u++) {
		const struct target to = {
			.data = kvp_rows_out(p, dst, u * pca->joint, 0, 1, 0).data,
			.head_stride = dst.head_stride,
			.token_stride = dst.token_stride,
			.dtype = p->dtype,
			.heads = pca->joint,
			.n = p->tokens,
		};

		r = decode_unit(k, pca, p, &parts, in, u, &to);
		bad = bad ? bad : r;
	}
	return bad;
}

/* For attention, which takes floats. */
static int rows_pca(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	const struct kvp_pca *pca = calib->pca;
	const struct target to = { out->data, 0, out->stride, KVP_DTYPE_F32, head % pca->joint, 1,
		first, out->n };
	struct parts parts;
	uint32_t bytes;
	int r;

	(void)codec;
	/* The header may have changed since it was checked: what it says now is checked again. */
	memcpy(&bytes, in + offsetof(struct kvp_plane_hdr, bytes), sizeof bytes);
	r = bytes > lay->bytes ? -EBADMSG : take_parts(pca, p, in, bytes, &parts);
	if (r < 0)
		return r;
	if (parts.hdr.form == FORM_CODED)
		return decode_unit(k, pca, p, &parts, in, head / pca->joint, &to);
	for (uint32_t t = 0; t < out->n; t++) {
		float *row = (float *)(void *)(out->data + (ptrdiff_t)t * out->stride);

		for (uint32_t i = 0; i < p->dim; i++)
			row[i] = load_element(stored_row(p, in, head, first + t), p->dtype, i);
	}
	return 0;
}

const struct kvp_codec kvp_codec_pca = {
	.family = KVP_FAMILY_PCA,
	.name = "pca",
	.facts = KVP_FACT_VARIES | KVP_FACT_UNSCALED | KVP_FACT_CALIBRATED,
	.layout = layout_pca,
	.fits = fits_pca,
	.check = check_pca,
	.encode = encode_pca,
	.decode = decode_pca,
	.rows = rows_pca,
};
