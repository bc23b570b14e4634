/* SPDX-License-Identifier: Apache-2.0 */
/* Where the planes of a payload lie, and which codecs a width means. */
#include "payload/kvp_payload.h"

#include <errno.h>
#include <string.h>

#define ALIGN 64u

_Static_assert(KVP_PAYLOAD_WIDTHS == 5u, "a row of the table below for each width");
_Static_assert(KVP_PLANE_K == 0 && KVP_PLANE_V == 1, "indices of kvp_block_layout.plane");

#define TQ_NC(bits) KVP_CODEC_TQ(bits, KVP_TQ_NC, 0u, 0u, 0u)

/* What the presets of kvp_codec_parse_pair() are. */
static const uint32_t recommended[KVP_PAYLOAD_WIDTHS][2] = {
	{ KVP_CODEC_NATIVE, KVP_CODEC_NATIVE },
	{ KVP_CODEC_INT8, KVP_CODEC_INT8 },
	{ TQ_NC(4u), TQ_NC(4u) },
	{ TQ_NC(4u), TQ_NC(2u) },
	{ TQ_NC(2u), TQ_NC(2u) },
};

/* Under a floor of the family smart: tokens share these among themselves. */
static const uint32_t recommended_smart[KVP_PAYLOAD_WIDTHS] = { KVP_CODEC_NATIVE, KVP_CODEC_INT8,
	KVP_CODEC_SMART4, KVP_CODEC_SMART3, KVP_CODEC_SMART25 };

/* ---- planes ---------------------------------------------------------------------------------- */

static struct kvp_plane plane_of(const struct kvp_space_canon *c, uint32_t layer, uint32_t kind)
{
	const struct kvp_shm_layer *l = &c->layers[layer];

	return (struct kvp_plane){
		.tokens = c->block_tokens,
		.heads = l->kv_heads,
		.dim = kind == KVP_PLANE_K ? l->k_dim : l->v_dim,
		.dtype = c->dtype,
		.kind = kind,
	};
}

static uint64_t row_bytes(const struct kvp_space_canon *c, uint32_t layer, uint32_t kind)
{
	return (uint64_t)kvp_dtype_bytes(c->dtype) * plane_of(c, layer, kind).dim;
}

/* Of one token, all heads. */
static uint64_t token_bytes(const struct kvp_space_canon *c, uint32_t layer, uint32_t kind)
{
	return row_bytes(c, layer, kind) * c->layers[layer].kv_heads;
}

static int judge_shape(const struct kvp_space_canon *c)
{
	if (!kvp_dtype_bytes(c->dtype) || c->block_tokens < KVP_BLOCK_TOKENS_MIN ||
		c->block_tokens > KVP_BLOCK_TOKENS_MAX || !c->n_layers ||
		c->n_layers > KVP_MAX_LAYERS || c->layout > KVP_LAYOUT_LCND)
		return -EINVAL;
	for (uint32_t i = 0; i < c->n_layers; i++)
		if (!c->layers[i].kv_heads || !c->layers[i].k_dim)
			return -EINVAL;
	return 0;
}

/* The formulas of kvpool.h, with e * D as the bytes of a token. */
static void place_native(const struct kvp_space_canon *c, struct kvp_block_layout *l)
{
	uint64_t all_keys = 0, all = 0, keys = 0, values = 0, t = c->block_tokens;

	for (uint32_t i = 0; i < c->n_layers; i++) {
		all_keys += token_bytes(c, i, KVP_PLANE_K);
		all += token_bytes(c, i, KVP_PLANE_K) + token_bytes(c, i, KVP_PLANE_V);
	}
	for (uint32_t i = 0; i < c->n_layers; i++) {
		uint64_t k = token_bytes(c, i, KVP_PLANE_K), v = token_bytes(c, i, KVP_PLANE_V);
		struct kvp_block_plane *p = l->plane[i];

		if (c->layout == KVP_LAYOUT_NCLD) {
			p[0].offset = keys;
			p[1].offset = all_keys + values;
			p[0].token_stride = p[1].token_stride = all;
		} else {
			p[0].offset = t * (keys + values);
			p[1].offset = p[0].offset + t * k;
			p[0].token_stride = k;
			p[1].token_stride = v;
		}
		for (uint32_t kind = 0; kind < 2; kind++) {
			p[kind].head_stride = row_bytes(c, i, kind);
			p[kind].bytes = t * token_bytes(c, i, kind);
		}
		keys += k;
		values += v;
	}
	l->native = 1;
	l->bytes = t * all;
}

static int place_coded(const struct kvp_space_canon *c, const uint32_t codec[2], uint32_t layer,
	struct kvp_block_layout *l)
{
	for (uint32_t kind = 0; kind < 2; kind++) {
		struct kvp_block_plane *p = &l->plane[layer][kind];
		struct kvp_plane plane = plane_of(c, layer, kind);
		size_t bytes;

		if (!plane.dim)
			continue;
		p->codec = c->layers[layer].exact ? KVP_CODEC_NATIVE : codec[kind];
		if (p->codec == KVP_CODEC_NATIVE) {
			p->token_stride = row_bytes(c, layer, kind);
			p->head_stride = p->token_stride * plane.tokens;
			bytes = p->head_stride * plane.heads;
		} else if (kvp_plane_bytes(p->codec, &plane, &bytes) < 0) {
			return -EINVAL;
		}
		p->offset = (l->bytes + ALIGN - 1) / ALIGN * ALIGN;
		p->bytes = bytes;
		l->bytes = p->offset + bytes;
	}
	return 0;
}

int kvp_block_layout(const struct kvp_space_canon *c, uint32_t codec_k, uint32_t codec_v,
	struct kvp_block_layout *ret_layout)
{
	const uint32_t codec[2] = { codec_k, codec_v };
	struct kvp_block_layout *l = ret_layout;
	int r = c->layout == KVP_LAYOUT_OPAQUE ? -EOPNOTSUPP : judge_shape(c);

	if (r < 0)
		return r;
	*l = (struct kvp_block_layout){
		.n_layers = c->n_layers, .tokens = c->block_tokens, .dtype = c->dtype
	};
	for (uint32_t i = 0; i < c->n_layers; i++)
		for (uint32_t kind = 0; kind < 2; kind++) {
			l->plane[i][kind].dim = plane_of(c, i, kind).dim;
			l->plane[i][kind].heads = l->plane[i][kind].dim ? c->layers[i].kv_heads : 0;
		}
	if (codec_k == KVP_CODEC_NATIVE && codec_v == KVP_CODEC_NATIVE)
		place_native(c, l);
	else
		for (uint32_t i = 0; i < c->n_layers; i++)
			if (place_coded(c, codec, i, l) < 0)
				return -EINVAL;
	return l->bytes > UINT32_MAX ? -E2BIG : 0;
}

/* ---- floors ---------------------------------------------------------------------------------- */

/* Of a size that the geometry says, refuses no plane, and is decoded without anything else but a calibration of kvquant. */
static int may_be_floor(uint32_t codec)
{
	switch (KVP_CODEC_FAMILY(codec)) {
	case KVP_FAMILY_NATIVE:
	case KVP_FAMILY_FP8:
	case KVP_FAMILY_INT8:
	case KVP_FAMILY_KIVI:
	case KVP_FAMILY_ASYM:
	case KVP_FAMILY_HADAMARD:
	case KVP_FAMILY_SYM:
	case KVP_FAMILY_KVQUANT:
		return 1;
	case KVP_FAMILY_TQ:
		return (KVP_CODEC_VARIANT(codec) >> 4 & 3u) != KVP_ROT_HAAR;
	case KVP_FAMILY_SPECTRAL:
		return (KVP_CODEC_VARIANT(codec) & KVP_SPECTRAL_ANY) != 0;
	case KVP_FAMILY_SMART:
		return (KVP_CODEC_VARIANT(codec) & KVP_SMART_MEANS) != 0;
	default:
		return 0;
	}
}

/* Bytes of the space's keys or values in a codec; 0: it does not take them. */
static uint64_t half_bytes(const struct kvp_space_canon *c, uint32_t codec, uint32_t kind)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < c->n_layers; i++) {
		struct kvp_plane plane = plane_of(c, i, kind);
		size_t bytes;

		if (!plane.dim || c->layers[i].exact)
			continue;
		if (codec == KVP_CODEC_NATIVE)
			bytes = (size_t)(token_bytes(c, i, kind) * c->block_tokens);
		else if (kvp_plane_bytes(codec, &plane, &bytes) < 0)
			return 0;
		sum += bytes;
	}
	return sum;
}

static int has_values(const struct kvp_space_canon *c)
{
	return half_bytes(c, KVP_CODEC_NATIVE, KVP_PLANE_V) != 0;
}

uint32_t kvp_payload_floor(uint32_t codec)
{
	return codec == KVP_CODEC_SMART ? KVP_CODEC_SMART25 : codec;
}

static uint32_t floor_of(const struct kvp_space_canon *c, uint32_t kind)
{
	return kvp_payload_floor(kind == KVP_PLANE_K ? c->floor_k : c->floor_v);
}

static int judge_half(const struct kvp_space_canon *c, uint32_t kind)
{
	uint32_t codec = floor_of(c, kind);
	uint64_t bytes;

	if (codec == KVP_CODEC_NATIVE)
		return 0;
	if (!may_be_floor(codec))
		return -EINVAL;
	bytes = half_bytes(c, codec, kind);
	return bytes && bytes < half_bytes(c, KVP_CODEC_NATIVE, kind) ? 0 : -EINVAL;
}

/* Bytes of a block in these codecs, as its layout has them. */
static uint64_t block_bytes(const struct kvp_space_canon *c, const uint32_t codec[2])
{
	int native = codec[0] == KVP_CODEC_NATIVE && codec[1] == KVP_CODEC_NATIVE;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < c->n_layers; i++)
		for (uint32_t kind = 0; kind < 2; kind++) {
			struct kvp_plane plane = plane_of(c, i, kind);
			size_t bytes = token_bytes(c, i, kind) * c->block_tokens;

			if (!plane.dim)
				continue;
			if (!c->layers[i].exact && codec[kind] != KVP_CODEC_NATIVE &&
				kvp_plane_bytes(codec[kind], &plane, &bytes) < 0)
				return UINT64_MAX;
			sum = (native ? sum : (sum + ALIGN - 1) / ALIGN * ALIGN) + bytes;
		}
	return sum;
}

static uint32_t codec_of(const struct kvp_space_canon *c, uint32_t width, uint32_t kind)
{
	uint32_t floor = floor_of(c, kind);
	uint32_t codec = KVP_CODEC_FAMILY(floor) == KVP_FAMILY_SMART ? recommended_smart[width]
								     : recommended[width][kind];

	if (!width || !floor)
		return KVP_CODEC_NATIVE;
	/* It may need fewer bytes than any that is recommended. */
	if (width == KVP_PAYLOAD_WIDTHS - 1)
		return floor;
	return half_bytes(c, codec, kind) > half_bytes(c, floor, kind) ? codec : floor;
}

/*
 * What all widths mean. One that would take as many bytes as the one before it, or more, is the one before it: small
 * planes have more padding than codes.
 */
static void find_codecs(const struct kvp_space_canon *c, uint32_t ret_codec[KVP_PAYLOAD_WIDTHS][2])
{
	uint64_t last = 0;

	for (uint32_t w = 0; w < KVP_PAYLOAD_WIDTHS; w++) {
		uint32_t *codec = ret_codec[w];
		uint64_t bytes;

		codec[0] = codec_of(c, w, KVP_PLANE_K);
		codec[1] = codec_of(c, w, KVP_PLANE_V);
		bytes = block_bytes(c, codec);
		if (w > 1 && bytes >= last)
			memcpy(codec, ret_codec[w - 1], sizeof(ret_codec[w]));
		else
			last = bytes;
	}
}

int kvp_payload_judge(const struct kvp_space_canon *c)
{
	uint32_t codec[KVP_PAYLOAD_WIDTHS][2];

	if (!c->floor_k && !c->floor_v)
		return 0;
	if (c->layout == KVP_LAYOUT_OPAQUE || judge_shape(c) < 0 ||
		(c->floor_v && !has_values(c)) ||
		c->native_last > (uint64_t)KVP_PAYLOAD_NATIVE_LAST * c->block_tokens)
		return -EINVAL;
	if (judge_half(c, KVP_PLANE_K) < 0 || judge_half(c, KVP_PLANE_V) < 0)
		return -EINVAL;
	find_codecs(c, codec);
	return block_bytes(c, codec[1]) < block_bytes(c, codec[0]) ? 0 : -EINVAL;
}

int kvp_payload_codecs(
	const struct kvp_space_canon *c, uint32_t width, uint32_t *ret_k, uint32_t *ret_v)
{
	uint32_t codec[KVP_PAYLOAD_WIDTHS][2];

	if (width >= KVP_PAYLOAD_WIDTHS)
		return -EINVAL;
	find_codecs(c, codec);
	*ret_k = codec[width][0];
	*ret_v = codec[width][1];
	return 0;
}

uint32_t kvp_payload_lowest(const struct kvp_space_canon *c)
{
	uint32_t codec[KVP_PAYLOAD_WIDTHS][2], width = KVP_PAYLOAD_WIDTHS - 1;

	find_codecs(c, codec);
	while (width && !memcmp(codec[width], codec[width - 1], sizeof(codec[width])))
		width--;
	return width;
}

int kvp_payload_width_of(
	const struct kvp_space_canon *c, uint32_t codec_k, uint32_t codec_v, uint32_t *ret_width)
{
	uint32_t codec[KVP_PAYLOAD_WIDTHS][2], width = kvp_payload_lowest(c);
	const uint32_t wanted[2] = { kvp_payload_floor(codec_k), kvp_payload_floor(codec_v) };

	find_codecs(c, codec);
	for (uint32_t kind = 0; kind < 2; kind++) {
		uint64_t native = half_bytes(c, KVP_CODEC_NATIVE, kind);
		uint64_t least = half_bytes(c, wanted[kind], kind);

		if (!may_be_floor(wanted[kind]) || (native && !least))
			return -EINVAL;
		if (least < half_bytes(c, codec[width][kind], kind))
			return -ERANGE;
	}
	for (uint32_t kind = 0; kind < 2; kind++)
		while (width &&
			half_bytes(c, codec[width][kind], kind) < half_bytes(c, wanted[kind], kind))
			width--;
	*ret_width = width;
	return 0;
}

int kvp_payload_layout(
	const struct kvp_space_canon *c, uint32_t width, struct kvp_block_layout *ret_layout)
{
	uint32_t k, v;
	int r = kvp_payload_codecs(c, width, &k, &v);

	return r < 0 ? r : kvp_block_layout(c, k, v, ret_layout);
}
