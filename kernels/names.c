/* SPDX-License-Identifier: Apache-2.0 */
/* Codec names: the grammar of each family's variants, parsed and spelt. */
#include "kernels/kvp_codec.h"
#include "kernels/dsp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A name's optional parts, in the order in which they must come. */
struct option {
	const char *text;
	uint32_t value; /* or-ed into the variant */
};

static const struct option tq_scalar[] = { { "-plain", KVP_TQ_PLAIN << 2 },
	{ "-nc", KVP_TQ_NC << 2 }, { NULL, 0 } };
static const struct option tq_rotation[] = { { "-h3", KVP_ROT_H3 << 4 },
	{ "-haar", KVP_ROT_HAAR << 4 }, { NULL, 0 } };
static const struct option tq_book[] = { { "-sphere", KVP_BOOK_SPHERE << 6 }, { NULL, 0 } };
static const struct option tq_wide[] = { { "-wide", 1u << 7 }, { NULL, 0 } };
static const struct option groups[] = { { "-g16", 4u << 4 }, { "-g32", 5u << 4 },
	{ "-g64", 6u << 4 }, { "-g128", 7u << 4 }, { NULL, 0 } };
static const struct option any_groups[] = { { "-g8", 3u << 4 }, { "-g16", 4u << 4 },
	{ "-g32", 5u << 4 }, { "-g64", 6u << 4 }, { "-g128", 7u << 4 }, { NULL, 0 } };
static const struct option wide[] = { { "-wide", KVP_CODEC_WIDE }, { NULL, 0 } };
static const struct option fp8_format[] = { { "-e5m2", KVP_FP8_E5M2 }, { NULL, 0 } };

static const struct option hybrid_size[] = { { "-25", KVP_HYBRID_25 }, { NULL, 0 } };
static const struct option hybrid_prod[] = { { "-prod", KVP_HYBRID_PROD }, { NULL, 0 } };
static const struct option hybrid_calib[] = { { "-calibrated", KVP_HYBRID_CALIBRATED },
	{ NULL, 0 } };
static const struct option smart_method[] = { { "-asym", KVP_SMART_ASYM },
	{ "-sym", KVP_SMART_SYM }, { NULL, 0 } };
static const struct option smart_groups[] = { { "-g8", KVP_SMART_G8 }, { "-g16", KVP_SMART_G16 },
	{ NULL, 0 } };
static const struct option smart_wide[] = { { "-wide", KVP_SMART_WIDE }, { NULL, 0 } };
static const struct option smart_keys[] = { { "-keys3", KVP_SMART_KEYS3 }, { NULL, 0 } };

/* One family's names: stem, digit (if bits), options. */
struct grammar {
	const char *stem;
	uint32_t family;
	uint32_t bits_min; /* 0: the name has no digit */
	uint32_t bits_max;
	int32_t bits_bias; /* subtracted from the digit before it goes into the variant */
	uint32_t fallback; /* or-ed in if no option of the first list is given */
	const struct option *options[4];
};

static const struct grammar grammars[] = {
	{ "native", KVP_FAMILY_NATIVE, 0, 0, 0, 0, { NULL } },
	{ "fp8", KVP_FAMILY_FP8, 0, 0, 0, 0, { fp8_format } },
	{ "int8", KVP_FAMILY_INT8, 0, 0, 0, 0, { NULL } },
	{ "kivi", KVP_FAMILY_KIVI, 2, 4, 0, 5u << 4, { groups } },
	{ "asym", KVP_FAMILY_ASYM, 2, 4, 0, 0, { any_groups, wide } },
	{ "sym", KVP_FAMILY_SYM, 2, 8, 0, 0, { any_groups, wide } },
	{ "tq", KVP_FAMILY_TQ, 2, 4, 1, 0, { tq_scalar, tq_rotation, tq_book, tq_wide } },
	{ "hadamard", KVP_FAMILY_HADAMARD, 2, 4, 0, 0, { NULL } },
	{ "tqprod", KVP_FAMILY_TQPROD, 2, 4, -8, 0, { NULL } },
	{ "hybrid", KVP_FAMILY_HYBRID, 0, 0, 0, 0, { hybrid_size, hybrid_prod, hybrid_calib } },
	{ "smart", KVP_FAMILY_SMART, 0, 0, 0, KVP_SMART_TQ,
		{ smart_method, smart_groups, smart_wide, smart_keys } },
	{ "pub-kivi", KVP_FAMILY_PUB_KIVI, 2, 4, 0, 5u << 4, { groups } },
	{ "pub-aither", KVP_FAMILY_PUB_AITHER, 2, 4, 0, 0, { NULL } },
	{ "pub-vllm", KVP_FAMILY_PUB_VLLM, 3, 8, 0, 0, { NULL } },
};

static int valid(uint32_t codec)
{
	/* A geometry that every codec can hold. */
	const struct kvp_plane p = { 512, 1, 64, KVP_DTYPE_F16, KVP_PLANE_K };
	struct kvp_layout lay;

	return kvp_plane_layout(codec, &p, &lay) == 0;
}

static int parse(const struct grammar *g, const char *name, uint32_t *ret_codec)
{
	uint32_t variant = 0;

	if (strncmp(name, g->stem, strlen(g->stem)) != 0)
		return -ENOENT;
	name += strlen(g->stem);
	if (g->bits_min) {
		uint32_t bits = (uint32_t)(*name - '0');

		if (*name < '0' || bits < g->bits_min || bits > g->bits_max)
			return -ENOENT;
		variant = bits - (uint32_t)g->bits_bias;
		name++;
	}
	for (int i = 0; i < 4 && g->options[i]; i++) {
		uint32_t add = i ? 0 : g->fallback;

		for (const struct option *o = g->options[i]; o->text; o++) {
			size_t n = strlen(o->text);

			if (strncmp(name, o->text, n) == 0 && (name[n] == '-' || !name[n])) {
				add = o->value;
				name += n;
				break;
			}
		}
		variant |= add;
	}
	if (*name || !valid(KVP_CODEC(g->family, variant)))
		return -ENOENT;
	*ret_codec = KVP_CODEC(g->family, variant);
	return 0;
}

int kvp_codec_parse(const char *name, uint32_t *ret_codec)
{
	for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++)
		if (parse(&grammars[i], name, ret_codec) == 0)
			return 0;
	return -ENOENT;
}

static void append(char *name, const char *text)
{
	size_t n = strlen(name);

	snprintf(name + n, KVP_CODEC_NAME_MAX - n, "%s", text);
}

static void spell(const struct grammar *g, uint32_t variant, char *name)
{
	snprintf(name, KVP_CODEC_NAME_MAX, "%s", g->stem);
	if (g->bits_min) {
		/* tq keeps two bits for it, the others four. */
		uint32_t field = g->bits_bias == 1 ? 3u : 15u;
		uint32_t bits = (variant & field) + (uint32_t)g->bits_bias;
		char digit[2] = { (char)('0' + bits), '\0' };

		append(name, digit);
		variant &= ~field;
	}
	for (int i = 0; i < 4 && g->options[i]; i++) {
		uint32_t mask = i ? 0 : g->fallback;

		for (const struct option *o = g->options[i]; o->text; o++)
			mask |= o->value;
		if (!i && (variant & mask) == g->fallback)
			continue;
		for (const struct option *o = g->options[i]; o->text; o++)
			if ((variant & mask) == o->value)
				append(name, o->text);
	}
}

int kvp_codec_name(uint32_t codec, char *ret_name)
{
	if (!valid(codec))
		return -ENOENT;
	for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
		if (grammars[i].family == KVP_CODEC_FAMILY(codec)) {
			spell(&grammars[i], KVP_CODEC_VARIANT(codec), ret_name);
			return 0;
		}
	}
	return -ENOENT;
}

#define TQ_NC(bits) KVP_CODEC_TQ(bits, KVP_TQ_NC, 0u, 0u, 0u)

/* Keys and values in different codecs: ours for a size, vLLM's presets, "K/V", one for both. */
int kvp_codec_parse_pair(const char *name, uint32_t *ret_k, uint32_t *ret_v)
{
	static const struct {
		const char *name;
		uint32_t k, v;
	} presets[] = {
		{ "4bit", TQ_NC(4u), TQ_NC(4u) },
		{ "3bit", TQ_NC(4u), TQ_NC(2u) },
		{ "2bit", TQ_NC(2u), TQ_NC(2u) },
		{ "tq35", KVP_CODEC_TQ35, KVP_CODEC_TQ35 },
		{ "tq25", KVP_CODEC_TQ25, KVP_CODEC_TQ25 },
		{ "k8v4", KVP_CODEC_FP8_E4M3, KVP_CODEC_ASYM(4u, 0u) },
		{ "4bit_nc", TQ_NC(4u), KVP_CODEC_ASYM(4u, 0u) },
		{ "k3v4_nc", TQ_NC(3u), KVP_CODEC_ASYM(4u, 0u) },
		{ "3bit_nc", TQ_NC(3u), KVP_CODEC_ASYM(3u, 0u) },
	};
	const char *slash = strchr(name, '/');
	char first[KVP_CODEC_NAME_MAX];
	uint32_t k, v;

	for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
		if (strcmp(name, presets[i].name) == 0) {
			*ret_k = presets[i].k;
			*ret_v = presets[i].v;
			return 0;
		}
	}
	if (slash && (size_t)(slash - name) >= sizeof first)
		return -ENOENT;
	snprintf(first, sizeof first, "%.*s", slash ? (int)(slash - name) : (int)sizeof first - 1,
		name);
	if (kvp_codec_parse(first, &k) < 0 || kvp_codec_parse(slash ? slash + 1 : first, &v) < 0)
		return -ENOENT;
	*ret_k = k;
	*ret_v = v;
	return 0;
}
