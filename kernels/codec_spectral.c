/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spectral: the F pairs of a key that have most energy, their numbers, and their elements as codes of 4, 8
 * or 16 bits under one scale; all others are 0. A plane whose pairs do not hold enough is refused.
 */
#include "kernels/codec_impl.h"
#include "kernels/kvp_spectral.h"
#include "kernels/numeric.h"
#include "kernels/rope.h"

#include <errno.h>

#define PAIRS_MAX 256u /* a pair's number is a byte */
#define INPUT_MAX 65504.0f

static const uint8_t kept_of[8] = { 8, 10, 12, 14, 16, 24, 32, 0 };
#define KEPT_MAX 32u

static uint32_t kept(uint32_t id)
{
	return kept_of[KVP_CODEC_VARIANT(id) & KVP_SPECTRAL_PAIRS];
}

static uint32_t bits_of(uint32_t id)
{
	return 4u << ((KVP_CODEC_VARIANT(id) & KVP_SPECTRAL_BITS) >> 3);
}

/* A code is 2 * half at most, and half stands for 0. */
static float half_of(uint32_t bits)
{
	return ((float)(1u << bits) - 1.0f) * 0.5f;
}

/* Where the two elements of pair i are. */
static void place_of(uint32_t id, uint32_t dim, uint32_t i, uint32_t *ret_a, uint32_t *ret_b)
{
	const int apart = KVP_CODEC_VARIANT(id) & KVP_SPECTRAL_INTERLEAVED;

	*ret_a = apart ? 2 * i : i;
	*ret_b = apart ? 2 * i + 1 : i + dim / 2;
}

static int layout_spectral(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	const uint32_t v = KVP_CODEC_VARIANT(id), rows = p->heads * p->tokens;
	struct kvp_layout lay;

	if (v & 0x80u || !kept(id) || bits_of(id) > 16 || p->kind != KVP_PLANE_K ||
		kept(id) > p->dim / 2 || p->dim / 2 > PAIRS_MAX)
		return -EINVAL;
	lay = kvp_layout_new(p, bits_of(id));
	lay.row_bytes = 2 * kept(id) * bits_of(id) / 8;
	lay.codes = kvp_layout_section(&lay, rows * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, 2 * rows);
	lay.extra = kvp_layout_section(&lay, rows * kept(id));
	*ret = lay;
	return 0;
}

/* ---- choice ---- */

static void load_key(const struct kvp_plane *p, struct kvp_raw_const src, uint32_t head,
	uint32_t token, float *x)
{
	const uint8_t *row = kvp_rows_in(p, src, head, token, 1, 0).data;

	for (uint32_t i = 0; i < p->dim; i++) {
		const float f = load_element(row, p->dtype, i);

		x[i] = f != f ? 0.0f : clampf(f, INPUT_MAX);
	}
}

/*
 * The n strongest pairs of a key, strongest first, of equals the first: ranks are the bits of the energy,
 * which is no less than 0, above what the pair's number lacks to the last one.
 */
static void strongest(
	uint32_t id, const float *x, uint32_t dim, uint32_t n, uint64_t *ret_rank, float *energy)
{
	uint32_t have = 0;

	for (uint32_t i = 0; i < dim / 2; i++) {
		uint32_t a, b, at;
		uint64_t rank;

		place_of(id, dim, i, &a, &b);
		energy[i] = x[a] * x[a] + x[b] * x[b];
		rank = (uint64_t)f32_bits(energy[i]) << 8 | (PAIRS_MAX - 1 - i);
		if (have == n && rank < ret_rank[n - 1])
			continue;
		have += have < n;
		for (at = have - 1; at && ret_rank[at - 1] < rank; at--)
			ret_rank[at] = ret_rank[at - 1];
		ret_rank[at] = rank;
	}
}

static uint32_t pair_of(uint64_t rank)
{
	return PAIRS_MAX - 1 - (uint32_t)(rank & 0xffu);
}

/* Energy of all pairs, and of the strongest 1, 2, .. n: of a plane. */
struct spectrum {
	double all, strongest[KEPT_MAX];
};

static void measure(uint32_t id, const struct kvp_plane *p, struct kvp_raw_const src, uint32_t n,
	struct spectrum *ret)
{
	float x[KVP_PLANE_DIM_MAX], energy[PAIRS_MAX];
	uint64_t rank[KEPT_MAX];

	*ret = (struct spectrum){ 0 };
	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t t = 0; t < p->tokens; t++) {
			double sum = 0.0;

			load_key(p, src, h, t, x);
			strongest(id, x, p->dim, n, rank, energy);
			for (uint32_t i = 0; i < p->dim / 2; i++)
				ret->all += (double)energy[i];
			for (uint32_t i = 0; i < n; i++) {
				sum += (double)energy[pair_of(rank[i])];
				ret->strongest[i] += sum;
			}
		}
	}
}

static double share(const struct spectrum *s, uint32_t n)
{
	return s->all > 0.0 ? s->strongest[n - 1] / s->all : 1.0;
}

static int check_keys(uint32_t codec, const struct kvp_plane *p, struct kvp_raw_const src)
{
	struct kvp_layout lay;
	uintptr_t lo, hi;

	if (KVP_CODEC_FAMILY(codec) != KVP_FAMILY_SPECTRAL || kvp_plane_layout(codec, p, &lay) < 0)
		return -EINVAL;
	return kvp_raw_span(p, src, &lo, &hi);
}

int kvp_spectral_energy(
	uint32_t codec, const struct kvp_plane *p, struct kvp_raw_const src, double *ret_share)
{
	struct spectrum s;
	int r = check_keys(codec, p, src);

	if (r < 0)
		return r;
	measure(codec, p, src, kept(codec), &s);
	*ret_share = share(&s, kept(codec));
	return 0;
}

int kvp_spectral_choose(uint32_t codec, const struct kvp_plane *p, struct kvp_raw_const src,
	double least, uint32_t *ret_codec)
{
	const uint32_t other = codec & ~KVP_SPECTRAL_PAIRS;
	const uint32_t most = p->dim / 2 < KEPT_MAX ? p->dim / 2 : KEPT_MAX;
	struct spectrum s;
	int r = check_keys(codec, p, src);

	if (r < 0)
		return r;
	measure(codec, p, src, most, &s);
	for (uint32_t i = 0; kept_of[i] && kept_of[i] <= most; i++) {
		if (share(&s, kept_of[i]) < least)
			continue;
		*ret_codec = other | i;
		return 0;
	}
	return -ERANGE;
}

/* ---- coding ---- */

static void put_code(uint32_t bits, uint32_t code, uint32_t i, uint8_t *row)
{
	if (bits == 4)
		row[i / 2] = (uint8_t)(i & 1 ? row[i / 2] | code << 4 : code);
	else if (bits == 8)
		row[i] = (uint8_t)code;
	else
		memcpy(row + 2 * i, &(uint16_t){ (uint16_t)code }, 2);
}

static uint32_t get_code(uint32_t bits, const uint8_t *row, uint32_t i)
{
	if (bits == 4)
		return row[i / 2] >> 4 * (i & 1) & 15u;
	return bits == 8 ? row[i] : load_u16(row + 2 * i);
}

/* n pairs in ascending order, of which each is two codes. */
static void encode_key(uint32_t id, const float *x, uint32_t dim, const uint8_t *pair,
	uint8_t *codes, uint8_t *scale)
{
	const uint32_t n = kept(id), bits = bits_of(id);
	const float half = half_of(bits);
	float v[2 * KEPT_MAX], max = 0.0f, inverse;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t a, b;

		place_of(id, dim, pair[i], &a, &b);
		v[2 * i] = x[a];
		v[2 * i + 1] = x[b];
	}
	for (uint32_t i = 0; i < 2 * n; i++)
		max = v[i] > max ? v[i] : -v[i] > max ? -v[i] : max;
	store_scalar(scale, max);
	max = f16_to_f32(load_u16(scale));
	inverse = max > 0.0f ? 1.0f / max : 0.0f;
	for (uint32_t i = 0; i < 2 * n; i++) {
		const int32_t code = rne((clampf(v[i] * inverse, 1.0f) + 1.0f) * half);

		put_code(bits, (uint32_t)code, i, codes);
	}
}

static int encode_spectral(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const uint32_t id = kvp_header(out)->codec, n = kept(id);
	float x[KVP_PLANE_DIM_MAX], energy[PAIRS_MAX];
	uint64_t rank[KEPT_MAX];
	double share_kept;

	(void)k;
	(void)o;
	if (!(KVP_CODEC_VARIANT(id) & KVP_SPECTRAL_ANY) &&
		(kvp_spectral_energy(id, p, src, &share_kept) < 0 ||
			share_kept < KVP_SPECTRAL_ENERGY_MIN))
		return -ERANGE;
	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t t = 0; t < p->tokens; t++) {
			const size_t row = (size_t)h * p->tokens + t;
			uint8_t *pair = out + lay->extra + row * n, chosen[PAIRS_MAX] = { 0 };

			load_key(p, src, h, t, x);
			strongest(id, x, p->dim, n, rank, energy);
			for (uint32_t i = 0; i < n; i++)
				chosen[pair_of(rank[i])] = 1;
			for (uint32_t i = 0, at = 0; i < p->dim / 2; i++)
				if (chosen[i])
					pair[at++] = (uint8_t)i;
			encode_key(id, x, p->dim, pair, out + lay->codes + row * lay->row_bytes,
				out + lay->scale + 2 * row);
		}
	}
	return 0;
}

/* What is kept of one key, from a payload that may be anything: pairs that there are, finite elements. */
struct kept_key {
	uint32_t n;
	uint8_t pair[KEPT_MAX];
	float a[KEPT_MAX], b[KEPT_MAX];
};

static void take_key(uint32_t id, const struct kvp_plane *p, const struct kvp_layout *lay,
	const uint8_t *in, size_t row, struct kept_key *ret)
{
	const uint32_t bits = bits_of(id), n = kept(id);
	const uint8_t *codes = in + lay->codes + row * lay->row_bytes;
	const float half = half_of(bits);
	const float step = load_scalar(in + lay->scale + 2 * row, 1.0f) / half;

	ret->n = 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint8_t pair = in[lay->extra + row * n + i];

		if (pair >= p->dim / 2)
			continue;
		ret->pair[ret->n] = pair;
		ret->a[ret->n] = ((float)get_code(bits, codes, 2 * i) - half) * step;
		ret->b[ret->n++] = ((float)get_code(bits, codes, 2 * i + 1) - half) * step;
	}
}

static int rows_spectral(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	float x[KVP_PLANE_DIM_MAX];
	struct kept_key key;

	(void)k;
	(void)calib;
	for (uint32_t t = 0; t < out->n; t++) {
		take_key(codec, p, lay, in, (size_t)head * p->tokens + first + t, &key);
		memset(x, 0, p->dim * sizeof *x);
		for (uint32_t i = 0; i < key.n; i++) {
			uint32_t a, b;

			place_of(codec, p->dim, key.pair[i], &a, &b);
			x[a] = key.a[i];
			x[b] = key.b[i];
		}
		kvp_row_store(out, t, x);
	}
	return 0;
}

/* ---- scores ---- */

static int check_rope(uint32_t codec, const struct kvp_plane *p, const struct kvp_rope *rope,
	uint32_t first, uint32_t position)
{
	const uint32_t pairing = KVP_CODEC_VARIANT(codec) & KVP_SPECTRAL_INTERLEAVED
					 ? KVP_ROPE_INTERLEAVED
					 : KVP_ROPE_HALF_SPLIT;

	if (rope->pairing != pairing || rope->dim != p->dim || position >= KVP_ROPE_POSITIONS_MAX ||
		first > KVP_ROPE_POSITIONS_MAX - p->tokens)
		return -EINVAL;
	return 0;
}

/* What a query's pair makes of a key's: of both before RoPE, of which c and s are the turn between them. */
static float pair_score(const float *q, uint32_t a, uint32_t b, const struct kept_key *key,
	uint32_t i, float c, float s)
{
	const float same = q[a] * key->a[i] + q[b] * key->b[i];
	const float cross = q[b] * key->a[i] - q[a] * key->b[i];

	return same * c - cross * s;
}

int kvp_spectral_scores(uint32_t codec, const struct kvp_plane *p, const void *in, size_t in_size,
	uint32_t head, const struct kvp_rope *rope, uint32_t first, uint32_t position,
	const float *q, float scale, float *ret)
{
	const double gain = rope ? rope->gain * rope->gain : 1.0;
	struct kvp_layout lay;
	struct kept_key key;
	int r;

	if (KVP_CODEC_FAMILY(codec) != KVP_FAMILY_SPECTRAL || head >= p->heads)
		return -EINVAL;
	r = kvp_plane_check(codec, p, NULL, in, in_size);
	if (!r)
		r = kvp_plane_layout(codec, p, &lay);
	if (!r && rope)
		r = check_rope(codec, p, rope, first, position);
	for (uint32_t t = 0; t < p->tokens && !r; t++) {
		float sum = 0.0f;

		take_key(codec, p, &lay, in, (size_t)head * p->tokens + t, &key);
		for (uint32_t i = 0; i < key.n; i++) {
			float c = 1.0f, s = 0.0f;
			uint32_t a, b;

			if (rope)
				rope_angles(&rope->freq[key.pair[i]], 1,
					(double)position - (double)(first + t), gain, &c, &s);
			place_of(codec, p->dim, key.pair[i], &a, &b);
			sum += pair_score(q, a, b, &key, i, c, s);
		}
		ret[t] = sum * scale;
	}
	return r;
}

static const struct kvp_name_option pairs[] = { { "-f8", 0 }, { "-f10", 1 }, { "-f12", 2 },
	{ "-f14", 3 }, { "-f16", 4 }, { "-f24", 5 }, { "-f32", 6 }, { NULL, 0 } };
static const struct kvp_name_option widths[] = { { "-i8", 1u << 3 }, { "-i16", 2u << 3 },
	{ NULL, 0 } };
static const struct kvp_name_option pairing[] = { { "-interleaved", KVP_SPECTRAL_INTERLEAVED },
	{ NULL, 0 } };
static const struct kvp_name_option gate[] = { { "-any", KVP_SPECTRAL_ANY }, { NULL, 0 } };

const struct kvp_codec kvp_codec_spectral = {
	.family = KVP_FAMILY_SPECTRAL,
	.name = "spectral",
	.names = { .fallback = 2, .options = { pairs, widths, pairing, gate } },
	.facts = KVP_FACT_UNSCALED,
	.layout = layout_spectral,
	.encode = encode_spectral,
	.decode = kvp_decode_rows,
	.rows = rows_spectral,
};
