/* SPDX-License-Identifier: Apache-2.0 */
/* Codec names: parsed and spelt by the grammar that is in each codec's row. */
#include "kernels/codec.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const struct kvp_name_option kvp_names_groups[] = { { "-g16", 4u << 4 }, { "-g32", 5u << 4 },
	{ "-g64", 6u << 4 }, { "-g128", 7u << 4 }, { NULL, 0 } };
const struct kvp_name_option kvp_names_any_groups[] = { { "-g8", 3u << 4 }, { "-g16", 4u << 4 },
	{ "-g32", 5u << 4 }, { "-g64", 6u << 4 }, { "-g128", 7u << 4 }, { NULL, 0 } };
const struct kvp_name_option kvp_names_wide[] = { { "-wide", KVP_CODEC_WIDE }, { NULL, 0 } };

static int valid(uint32_t codec)
{
	/* A geometry that every codec can hold. */
	const struct kvp_plane p = { 512, 1, 64, KVP_DTYPE_F16, KVP_PLANE_K };
	struct kvp_layout lay;

	return kvp_plane_layout(codec, &p, &lay) == 0;
}

static int parse(const struct kvp_codec *c, const char *name, uint32_t *ret_codec)
{
	const struct kvp_names *g = &c->names;
	uint32_t variant = 0;

	if (strncmp(name, c->name, strlen(c->name)) != 0)
		return -ENOENT;
	name += strlen(c->name);
	if (g->bits_min) {
		uint32_t bits = (uint32_t)(*name - '0');

		if (*name < '0' || bits < g->bits_min || bits > g->bits_max)
			return -ENOENT;
		variant = bits - (uint32_t)g->bits_bias;
		name++;
	}
	for (int i = 0; i < 4 && g->options[i]; i++) {
		uint32_t add = i ? 0 : g->fallback;

		for (const struct kvp_name_option *o = g->options[i]; o->text; o++) {
			size_t n = strlen(o->text);

			if (strncmp(name, o->text, n) == 0 && (name[n] == '-' || !name[n])) {
				add = o->value;
				name += n;
				break;
			}
		}
		variant |= add;
	}
	if (*name || !valid(KVP_CODEC(c->family, variant)))
		return -ENOENT;
	*ret_codec = KVP_CODEC(c->family, variant);
	return 0;
}

int kvp_codec_parse(const char *name, uint32_t *ret_codec)
{
	for (uint32_t f = 0; f < KVP_FAMILY_MAX_; f++)
		if (kvp_codec_row(f) && parse(kvp_codec_row(f), name, ret_codec) == 0)
			return 0;
	return -ENOENT;
}

static void append(char *name, const char *text)
{
	size_t n = strlen(name);

	snprintf(name + n, KVP_CODEC_NAME_MAX - n, "%s", text);
}

static void spell(const struct kvp_codec *c, uint32_t variant, char *name)
{
	const struct kvp_names *g = &c->names;

	snprintf(name, KVP_CODEC_NAME_MAX, "%s", c->name);
	if (g->bits_min) {
		uint32_t bits = (variant & g->bits_mask) + (uint32_t)g->bits_bias;
		char digit[2] = { (char)('0' + bits), '\0' };

		append(name, digit);
		variant &= ~g->bits_mask;
	}
	for (int i = 0; i < 4 && g->options[i]; i++) {
		uint32_t mask = i ? 0 : g->fallback;

		for (const struct kvp_name_option *o = g->options[i]; o->text; o++)
			mask |= o->value;
		if (!i && (variant & mask) == g->fallback)
			continue;
		for (const struct kvp_name_option *o = g->options[i]; o->text; o++)
			if ((variant & mask) == o->value)
				append(name, o->text);
	}
}

int kvp_codec_name(uint32_t codec, char *ret_name)
{
	if (!valid(codec))
		return -ENOENT;
	spell(kvp_codec_row(KVP_CODEC_FAMILY(codec)), KVP_CODEC_VARIANT(codec), ret_name);
	return 0;
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
