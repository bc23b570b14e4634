/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless: fp16 and bf16 bit for bit, in less room. Of each element the byte with the exponent is
 * entropy-coded, the other one stored; a plane that would not become smaller is stored as it is.
 */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"
#include "kernels/split.h"

#include <errno.h>

#define BITMAP_BYTES (RANS_SYMBOLS / 8)
#define CHUNK        4096u /* symbols at a time; a multiple of what 4 tokens of any dim have */

void kvp_split_c(uint32_t rotate, const uint8_t *words, uint32_t n, uint8_t *high, uint8_t *low)
{
	split_words(rotate, words, n, high, low);
}

void kvp_join_c(
	uint32_t rotate, const uint8_t *high, const uint8_t *low, uint32_t n, uint8_t *words)
{
	join_words(rotate, high, low, n, words);
}

/* bf16: the sign goes to the low end, so that the high byte is the exponent. */
static uint32_t rotate_of(uint32_t dtype)
{
	return dtype == KVP_DTYPE_BF16;
}

/* Tokens whose symbols are a chunk: full groups of the coder, but at a head's end. */
static uint32_t chunk_tokens(uint32_t dim)
{
	return CHUNK / dim & ~3u;
}

static uint32_t count_of(const struct kvp_plane *p)
{
	return p->heads * p->tokens * p->dim;
}

static uint32_t stored_bytes(const struct kvp_plane *p)
{
	return KVP_PLANE_HDR_BYTES + 2 * count_of(p);
}

static int layout_lossless(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	if (id != KVP_CODEC_LOSSLESS || dtype_bytes(p->dtype) != 2)
		return -EINVAL;
	*ret = (struct kvp_layout){
		.row_bytes = p->dim,
		.coded = p->tokens,
		.codes = KVP_PLANE_HDR_BYTES,
		.bytes = stored_bytes(p),
	};
	return 0;
}

/* ---- encoding ---- */

static void store_rows(const struct kvp_plane *p, struct kvp_raw_const src, uint8_t *to)
{
	size_t row = 2 * (size_t)p->dim;

	for (uint32_t h = 0; h < p->heads; h++)
		for (uint32_t t = 0; t < p->tokens; t++, to += row)
			memcpy(to, kvp_rows_in(p, src, h, t, 1, 0).data, row);
}

/* Symbols of n tokens from `first` on; the bytes that are stored to low, row after row. */
static void split_rows(const struct kvp_kernels *k, const struct kvp_plane *p,
	struct kvp_raw_const src, uint32_t head, uint32_t first, uint32_t n, uint8_t *sym,
	uint8_t *low)
{
	struct rows_in in = kvp_rows_in(p, src, head, first, n, 0);

	for (uint32_t t = 0; t < n; t++)
		k->dsp.split(rotate_of(p->dtype), in.data + (ptrdiff_t)t * in.stride, p->dim,
			sym + t * p->dim, low + t * p->dim);
}

/* Four rows of counters: equal symbols in succession would wait for one another. */
static void count_symbols(const uint8_t *sym, uint32_t n, uint32_t (*count)[RANS_SYMBOLS])
{
	for (uint32_t i = 0; i < n; i += 4)
		for (uint32_t j = 0; j < 4; j++)
			count[j][sym[i + j]]++;
}

static void split_plane(const struct kvp_kernels *k, const struct kvp_plane *p,
	struct kvp_raw_const src, uint8_t *low, uint32_t *ret_count)
{
	uint32_t count[4][RANS_SYMBOLS] = { { 0 } }, step = chunk_tokens(p->dim);
	uint8_t sym[CHUNK];

	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t t = 0; t < p->tokens; t += step) {
			uint32_t n = p->tokens - t < step ? p->tokens - t : step;

			split_rows(k, p, src, h, t, n, sym, low);
			count_symbols(sym, n * p->dim, count);
			low += n * p->dim;
		}
	}
	for (uint32_t s = 0; s < RANS_SYMBOLS; s++)
		ret_count[s] = count[0][s] + count[1][s] + count[2][s] + count[3][s];
}

/* One head's stream into [floor, top). -ENOSPC. */
static int encode_head(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct rans_coder *c, struct kvp_raw_const src, uint32_t head, uint8_t *floor,
	uint8_t *top, uint32_t *ret_bytes)
{
	struct rans_writer w = kvp_rans_writer(floor, top);
	uint32_t step = chunk_tokens(p->dim), t = (p->tokens + step - 1) / step * step;
	uint8_t sym[CHUNK], low[CHUNK];
	int r = 0;

	for (; t && !r; t -= step) {
		uint32_t first = t - step, n = t > p->tokens ? p->tokens - first : step;

		split_rows(k, p, src, head, first, n, sym, low);
		r = k->dsp.rans_encode(c, sym, n * p->dim, &w);
	}
	if (!r)
		r = kvp_rans_finish(&w);
	if (r < 0)
		return r;
	*ret_bytes = (uint32_t)(top - w.at);
	memmove(floor, w.at, *ret_bytes);
	return 0;
}

static uint32_t put_frequencies(const uint16_t *freq, uint8_t *to)
{
	uint8_t *at = to + BITMAP_BYTES;

	memset(to, 0, BITMAP_BYTES);
	for (uint32_t s = 0; s < RANS_SYMBOLS; s++) {
		if (!freq[s])
			continue;
		to[s / 8] |= (uint8_t)(1u << s % 8);
		memcpy(at, &freq[s], sizeof freq[s]);
		at += sizeof freq[s];
	}
	return (uint32_t)(at - to);
}

/* The coded form. -ENOSPC: it would not be smaller than the stored one, which is lay->bytes. */
static int encode_coded(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, struct kvp_raw_const src, uint8_t *out, uint32_t *ret_bytes)
{
	uint32_t n = count_of(p), at = lay->codes + n, count[RANS_SYMBOLS];
	uint8_t *sizes = out + at;
	struct rans_coder coder;
	uint16_t freq[RANS_SYMBOLS];
	int r = 0;

	if (n < 4 * p->heads + BITMAP_BYTES + sizeof freq)
		return -ENOSPC;
	split_plane(k, p, src, out + lay->codes, count);
	kvp_rans_normalise(count, freq);
	kvp_rans_coder(freq, &coder);
	at += 4 * p->heads;
	at += put_frequencies(freq, out + at);
	for (uint32_t h = 0; h < p->heads && !r; h++) {
		uint32_t bytes = 0;

		r = encode_head(k, p, &coder, src, h, out + at, out + lay->bytes, &bytes);
		memcpy(sizes + 4 * (size_t)h, &bytes, sizeof bytes);
		at += bytes;
	}
	if (!r && at >= lay->bytes)
		r = -ENOSPC;
	*ret_bytes = at;
	return r;
}

static int encode_lossless(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	uint32_t bytes;

	(void)o;
	if (encode_coded(k, p, lay, src, out, &bytes) < 0) {
		store_rows(p, src, out + lay->codes);
		return 0;
	}
	memcpy(out + offsetof(struct kvp_plane_hdr, bytes), &bytes, sizeof bytes);
	return 0;
}

/* ---- decoding ---- */

/* A payload's parts, of which everything but the streams' words is a copy that was checked. */
struct parts {
	uint32_t stored; /* rows as they are, and no streams */
	uint32_t first;  /* offset of the first head's stream */
	uint32_t size[KVP_PLANE_HEADS_MAX];
	uint16_t freq[RANS_SYMBOLS];
};

static int take_frequencies(const uint8_t *in, uint32_t room, uint16_t *freq, uint32_t *ret_bytes)
{
	uint8_t bitmap[BITMAP_BYTES];
	uint32_t at = BITMAP_BYTES, sum = 0;

	if (room < at)
		return -EBADMSG;
	memcpy(bitmap, in, sizeof bitmap);
	for (uint32_t s = 0; s < RANS_SYMBOLS; s++) {
		freq[s] = 0;
		if (!(bitmap[s / 8] >> s % 8 & 1u))
			continue;
		if (room - at < sizeof freq[s])
			return -EBADMSG;
		freq[s] = load_u16(in + at);
		if (!freq[s])
			return -EBADMSG;
		sum += freq[s];
		at += sizeof freq[s];
	}
	*ret_bytes = at;
	return sum == RANS_TOTAL ? 0 : -EBADMSG;
}

/* bytes: what the payload's header says, all of which may be read. */
static int take_parts(
	const struct kvp_plane *p, const uint8_t *in, uint32_t bytes, struct parts *ret)
{
	uint32_t at = KVP_PLANE_HDR_BYTES + count_of(p), table = 0;
	int r;

	ret->stored = bytes == stored_bytes(p);
	if (ret->stored)
		return 0;
	if (bytes > stored_bytes(p) || bytes < at + 4 * p->heads)
		return -EBADMSG;
	memcpy(ret->size, in + at, 4 * (size_t)p->heads);
	at += 4 * p->heads;
	r = take_frequencies(in + at, bytes - at, ret->freq, &table);
	if (r < 0)
		return r;
	at += table;
	ret->first = at;
	for (uint32_t h = 0; h < p->heads; h++) {
		if (ret->size[h] < RANS_STATE_BYTES || ret->size[h] % 2 ||
			ret->size[h] > bytes - at)
			return -EBADMSG;
		at += ret->size[h];
	}
	return at == bytes ? 0 : -EBADMSG;
}

static int check_lossless(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, size_t in_size)
{
	struct parts parts;

	(void)lay;
	return hdr->bytes > in_size ? -EBADMSG : take_parts(p, in, hdr->bytes, &parts);
}

/* What one head's rows are made of. */
struct head_in {
	const uint8_t *low;
	struct rans_reader reader;
};

static int open_head(const struct kvp_plane *p, const struct parts *parts, const uint8_t *in,
	uint32_t head, struct head_in *ret)
{
	uint32_t at = parts->first;

	for (uint32_t h = 0; h < head; h++)
		at += parts->size[h];
	ret->low = in + KVP_PLANE_HDR_BYTES + (size_t)head * p->tokens * p->dim;
	return kvp_rans_reader(in + at, parts->size[head], &ret->reader);
}

/* Rows [first, first + n) of a head to dst; those before are decoded for nothing. */
static int decode_head(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct rans_table *table, struct head_in *from, uint32_t first, uint32_t n,
	uint8_t *dst, ptrdiff_t stride)
{
	uint32_t step = chunk_tokens(p->dim), end = first + n;
	uint8_t sym[CHUNK];

	for (uint32_t t = 0; t < end; t += step) {
		uint32_t m = p->tokens - t < step ? p->tokens - t : step;

		k->dsp.rans_decode(table, &from->reader, sym, m * p->dim);
		for (uint32_t i = t < first ? first - t : 0; i < m && t + i < end; i++)
			k->dsp.join(rotate_of(p->dtype), sym + i * p->dim,
				from->low + (size_t)(t + i) * p->dim, p->dim,
				dst + (ptrdiff_t)(t + i - first) * stride);
	}
	return end < p->tokens ? 0 : kvp_rans_end(&from->reader);
}

static const uint8_t *stored_row(
	const struct kvp_plane *p, const uint8_t *in, uint32_t head, uint32_t token)
{
	return in + KVP_PLANE_HDR_BYTES + 2 * ((size_t)head * p->tokens + token) * p->dim;
}

static int decode_lossless(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	struct rans_table table;
	struct head_in head;
	struct parts parts;
	int r = take_parts(p, in, hdr->bytes, &parts), bad = 0;

	(void)lay;
	(void)calib;
	if (!r && !parts.stored)
		r = kvp_rans_table(parts.freq, &table);
	for (uint32_t h = 0; h < p->heads && !r; h++) {
		struct rows_out out = kvp_rows_out(p, dst, h, 0, p->tokens, 0);

		if (!parts.stored) {
			r = open_head(p, &parts, in, h, &head);
			if (!r)
				bad |= decode_head(
					k, p, &table, &head, 0, p->tokens, out.data, out.stride);
			continue;
		}
		for (uint32_t t = 0; t < p->tokens; t++)
			memcpy(out.data + (ptrdiff_t)t * out.stride, stored_row(p, in, h, t),
				2 * (size_t)p->dim);
	}
	return r ? r : bad;
}

/* Elements in the second half of a row become floats of the whole row. */
static void widen_row(uint32_t dtype, uint32_t dim, uint8_t *row)
{
	for (uint32_t i = 0; i < dim; i++) {
		float f = load_element(row + 2 * (size_t)dim, dtype, i);

		memcpy(row + 4 * (size_t)i, &f, sizeof f);
	}
}

/* For attention, which takes floats. */
static int rows_lossless(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	struct rans_table table;
	struct head_in from;
	struct parts parts;
	uint8_t *half = out->data + 2 * (size_t)p->dim;
	uint32_t bytes;
	int r;

	(void)codec;
	(void)calib;
	/* The header may have changed since it was checked: what it says now is checked again. */
	memcpy(&bytes, in + offsetof(struct kvp_plane_hdr, bytes), sizeof bytes);
	r = bytes > lay->bytes ? -EBADMSG : take_parts(p, in, bytes, &parts);
	if (!r && parts.stored) {
		for (uint32_t t = 0; t < out->n; t++)
			memcpy(half + (ptrdiff_t)t * out->stride,
				stored_row(p, in, head, first + t), 2 * (size_t)p->dim);
	} else {
		if (!r)
			r = kvp_rans_table(parts.freq, &table);
		if (!r)
			r = open_head(p, &parts, in, head, &from);
		if (!r)
			r = decode_head(k, p, &table, &from, first, out->n, half, out->stride);
	}
	for (uint32_t t = 0; t < out->n && !r; t++)
		widen_row(p->dtype, p->dim, out->data + (ptrdiff_t)t * out->stride);
	return r;
}

const struct kvp_codec kvp_codec_lossless = {
	.family = KVP_FAMILY_LOSSLESS,
	.name = "lossless",
	.facts = KVP_FACT_VARIES | KVP_FACT_UNSCALED,
	.layout = layout_lossless,
	.check = check_lossless,
	.encode = encode_lossless,
	.decode = decode_lossless,
	.rows = rows_lossless,
};
