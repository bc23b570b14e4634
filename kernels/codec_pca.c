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
#include <stdlib.h>

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

	memset(x, 0, sizeof *x * PCA_BATCH * pca->width_stride);
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

/* Tokens [first, first + n) of a tile's to its symbols, and those that are none. */
static int encode_batch(const struct kvp_kernels *k, const struct kvp_pca *pca,
	const struct kvp_plane *p, struct kvp_raw_const src, uint32_t unit, uint32_t position,
	uint32_t first, uint32_t n, struct unit_out *o)
{
	float x[PCA_BATCH * KVP_CALIB_WIDTH_MAX];
	int32_t q[PCA_BATCH * KVP_CALIB_WIDTH_MAX];
	int r = 0;

	if (n) {
		load_rows(k, pca, p, src, unit, position, first, n, x);
		k->dsp.pca_project(pca, o->unit, x, q);
	}
	for (uint32_t t = 0; t < PCA_BATCH && !r; t += PCA_ROWS) {
		const uint32_t left = t < n ? n - t : 0;

		r = put_symbols(k, o, first % PCA_TILE + t, left < PCA_ROWS ? left : PCA_ROWS,
			q + t * o->unit->rank_stride);
	}
	return r;
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
	uint32_t tile = (p->tokens + PCA_TILE - 1) / PCA_TILE;
	int r = 0;

	o.w = kvp_rans_writer(floor, top);
	while (tile-- > 0 && !r) {
		for (uint32_t at = 0; at < PCA_TILE && !r; at += PCA_BATCH) {
			const uint32_t first = tile * PCA_TILE + at;
			const uint32_t left = first < p->tokens ? p->tokens - first : 0;

			r = encode_batch(k, pca, p, src, unit, position, first,
				left < PCA_BATCH ? left : PCA_BATCH, &o);
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
	uint32_t left;                              /* escapes of this tile and those that follow */
	const uint8_t *escape[PCA_TILE / PCA_ROWS]; /* of each PCA_ROWS tokens of this tile */
	struct pca_tile tile;
	struct pca_pair pair[PCA_BATCH / 2];
};

typedef uint8_t row_bytes __attribute__((vector_size(16)));

/* Escapes of each PCA_ROWS tokens of a tile. */
static void count_escapes(
	const uint8_t *sym, uint32_t rank, uint32_t ret_count[PCA_TILE / PCA_ROWS])
{
	memset(ret_count, 0, sizeof *ret_count * (PCA_TILE / PCA_ROWS));
	for (uint32_t c = 0, end; c < rank; c = end) {
		row_bytes sum[PCA_TILE / sizeof(row_bytes)] = { 0 },
					 x[PCA_TILE / sizeof(row_bytes)];
		uint8_t count[PCA_TILE];

		end = rank - c < UINT8_MAX ? rank : c + UINT8_MAX;
		for (uint32_t j = c; j < end; j++) {
			memcpy(x, sym + j * PCA_TILE, sizeof x);
			for (uint32_t i = 0; i < PCA_TILE / sizeof(row_bytes); i++)
				sum[i] -= (row_bytes)(x[i] == KVP_CALIB_ESCAPE);
		}
		memcpy(count, sum, sizeof count);
		for (uint32_t i = 0; i < PCA_TILE; i++)
			ret_count[i / PCA_ROWS] += count[i];
	}
}

/* -EBADMSG: more escapes than there are. */
static int read_tile(const struct kvp_kernels *k, const struct kvp_pca *pca, struct unit_in *in)
{
	uint32_t count[PCA_TILE / PCA_ROWS];

	for (uint32_t i = 0; i < in->unit->tables; i++) {
		const struct pca_table *t = &in->unit->table[i];
		const size_t first = t->first * PCA_TILE, n = t->count * PCA_TILE;

		k->dsp.rans_decode(&t->slots, &in->reader, in->tile.sym + first, n);
		if (t->shift)
			k->dsp.rans_decode(
				&pca->low[t->shift].slots, &in->reader, in->tile.low + first, n);
	}
	count_escapes(in->tile.sym, in->unit->rank, count);
	for (uint32_t i = PCA_TILE / PCA_ROWS; i-- > 0;) {
		if (count[i] > in->left)
			return -EBADMSG;
		in->left -= count[i];
		in->escape[i] = in->escapes + 2 * (size_t)in->left;
	}
	return 0;
}

/* As many components of a pair, from k on, as fit sums of 32 bits: two at least. */
static uint32_t piece_of(const struct pca_pair *pair, uint32_t k)
{
	int32_t size[2] = { 0 };
	uint32_t end = k;

	for (; end < pair->n; end++) {
		size[0] += abs(pair->value[0][end]);
		size[1] += abs(pair->value[1][end]);
		if (size[0] > PCA_SUM_MAX || size[1] > PCA_SUM_MAX)
			break;
	}
	return end == pair->n ? end - k : (end - k) / 2 * 2;
}

typedef int32_t four_ints __attribute__((vector_size(16)));
typedef double four_doubles __attribute__((vector_size(32)));

/* A pair whose sums may have more than 32 bits: those of pieces of it, added up exactly. */
static void build_pieces(const struct kvp_kernels *k, const struct kvp_pca *pca,
	const struct pca_unit *u, const struct pca_pair *pair, float *y)
{
	const uint32_t stride = pca->width_stride;
	four_doubles sum[2 * KVP_CALIB_WIDTH_MAX / 4] = { 0 };
	float rows[2 * KVP_CALIB_WIDTH_MAX];
	struct pca_pair piece;

	for (uint32_t at = 0, n; at < pair->n; at += n) {
		n = piece_of(pair, at);
		piece.n = n;
		piece.wide = PCA_SUMS;
		memcpy(piece.at, pair->at + at, n * sizeof *piece.at);
		for (uint32_t t = 0; t < 2; t++)
			memcpy(piece.value[t], pair->value[t] + at, n * sizeof **piece.value);
		k->dsp.pca_build(pca, u, &piece, 2, rows);
		for (uint32_t i = 0; i < 2 * stride; i += 4) {
			four_ints part;

			memcpy(&part, rows + i, sizeof part);
			sum[i / 4] += __builtin_convertvector(part, four_doubles);
		}
	}
	for (uint32_t i = 0; i < 2 * stride; i++)
		y[i] = u->mean[i % stride] + u->scale[i % stride] * (float)sum[i / 4][i % 4];
}

/* Token t of a batch that begins at the tile's token `at`, of a pair that is wide. */
static void build_wide(const struct kvp_kernels *k, const struct kvp_pca *pca,
	const struct unit_in *in, uint32_t at, uint32_t t, float *y)
{
	const struct pca_pair *pair = &in->pair[t / 2];
	const uint32_t rows = (at + t) / PCA_ROWS;

	y += (size_t)t * pca->width_stride;
	if (pair->wide & PCA_WIDE_VALUE)
		kvp_pca_build_wide(pca, in->unit, &in->tile, rows * PCA_ROWS, t % PCA_ROWS,
			in->escape[rows], y);
	else if (t % 2 == 0)
		build_pieces(k, pca, in->unit, pair, y);
}

/* n tokens of a tile, from its token `at` on, as rows before RoPE. */
static void build_batch(const struct kvp_kernels *k, const struct kvp_pca *pca, struct unit_in *in,
	uint32_t at, uint32_t n, float *y)
{
	for (uint32_t t = 0; t < n; t += PCA_ROWS)
		k->dsp.pca_lists(in->unit, &in->tile, at + t, in->escape[(at + t) / PCA_ROWS],
			&in->pair[t / 2]);
	k->dsp.pca_build(pca, in->unit, in->pair, n, y);
	for (uint32_t t = 0; t < n; t++)
		if (in->pair[t / 2].wide)
			build_wide(k, pca, in, at, t, y);
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
	float y[PCA_BATCH * KVP_CALIB_WIDTH_MAX];
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

		r = read_tile(k, pca, &in);
		for (uint32_t t = tile; t < stop && !r; t += PCA_BATCH) {
			const uint32_t n = stop - t < PCA_BATCH ? stop - t : PCA_BATCH;

			if (t + n <= to->first)
				continue;
			build_batch(k, pca, &in, t - tile, n, y);
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
