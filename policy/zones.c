/* SPDX-License-Identifier: Apache-2.0 */
/* Where the zones of a sequence end, and which archive codec it gets. */
#include "policy/kvp_zones.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SQUAT_RANK_MAX 128u

void kvp_zone_config_init(struct kvp_zone_config *config, uint32_t layers)
{
	*config = (struct kvp_zone_config){
		.rule = { .hot_tokens = KVP_ZONE_HOT_DEFAULT,
			.stale_tokens = KVP_ZONE_STALE_DEFAULT,
			.group_tokens = KVP_ZONE_GROUP_DEFAULT,
			.archive = { KVP_ARCHIVE_ADAPTIVE, 0 } },
		.layers = layers,
	};
}

static int archive_valid(struct kvp_archive a)
{
	switch (a.codec) {
	case KVP_ARCHIVE_ADAPTIVE:
	case KVP_ARCHIVE_KIVI2:
		return a.param == 0;
	case KVP_ARCHIVE_SQUAT:
		return a.param >= 1 && a.param <= SQUAT_RANK_MAX;
	case KVP_ARCHIVE_KVQUANT:
		return a.param >= kvp_width_bits(KVP_WIDTH_2) &&
		       a.param <= kvp_width_bits(KVP_WIDTH_4);
	}
	return 0;
}

uint32_t kvp_archive_width(struct kvp_archive archive)
{
	switch (archive.codec) {
	case KVP_ARCHIVE_KIVI2:
	case KVP_ARCHIVE_SQUAT:
		return KVP_WIDTH_2;
	case KVP_ARCHIVE_KVQUANT:
		return kvp_width_of_bits(archive.param);
	}
	return KVP_WIDTH_NATIVE;
}

static int rule_valid(const struct kvp_zone_rule *r)
{
	return r->group_tokens >= 1 && r->group_tokens <= KVP_BLOCK_TOKENS_MAX &&
	       r->hot_tokens <= r->stale_tokens && r->stale_tokens <= KVP_ZONE_TOKENS_MAX &&
	       archive_valid(r->archive);
}

int kvp_zone_config_check(const struct kvp_zone_config *config)
{
	uint32_t i;

	if (!config->layers || config->layers > KVP_MAX_LAYERS || !rule_valid(&config->rule))
		return -EINVAL;
	for (i = 0; i < config->n_overrides; i++) {
		const struct kvp_zone_override *o = &config->overrides[i];

		if (o->layer >= config->layers || !rule_valid(&o->rule))
			return -EINVAL;
		if (i && o->layer <= config->overrides[i - 1].layer)
			return -EINVAL;
	}
	return 0;
}

const struct kvp_zone_rule *kvp_zone_rule_of(const struct kvp_zone_config *config, uint32_t layer)
{
	uint32_t lo = 0, hi = config->n_overrides;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (config->overrides[mid].layer < layer)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo < config->n_overrides && config->overrides[lo].layer == layer)
		return &config->overrides[lo].rule;
	return &config->rule;
}

/* End of the whole groups that are older than `age`. */
static uint32_t groups_older(uint32_t tokens, uint32_t age, uint32_t group)
{
	return tokens > age ? (tokens - age) / group * group : 0;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

int kvp_zones_advance(const struct kvp_zone_rule *rule, struct kvp_zones *zones, uint32_t tokens,
	struct kvp_graduation *ret, uint32_t *ret_n)
{
	uint32_t archive, warm, split, n = 0;

	if (tokens < zones->tokens || tokens > KVP_ZONE_TOKENS_MAX || !rule_valid(rule))
		return -EINVAL;
	archive = groups_older(tokens, rule->stale_tokens, rule->group_tokens);
	warm = groups_older(tokens, rule->hot_tokens, rule->group_tokens);
	archive = max_u32(archive, zones->archive_end);
	warm = max_u32(max_u32(warm, zones->warm_end), archive);

	/* What was warm already can reach the archive only from its 4-bit form. */
	split = archive < zones->warm_end ? archive : zones->warm_end;
	if (zones->archive_end < split)
		ret[n++] = (struct kvp_graduation){ zones->archive_end, split, KVP_ZONE_WARM,
			KVP_ZONE_ARCHIVE };
	if (zones->warm_end < archive)
		ret[n++] = (struct kvp_graduation){ zones->warm_end, archive, KVP_ZONE_HOT,
			KVP_ZONE_ARCHIVE };
	split = max_u32(archive, zones->warm_end);
	if (split < warm)
		ret[n++] = (struct kvp_graduation){ split, warm, KVP_ZONE_HOT, KVP_ZONE_WARM };

	*zones = (struct kvp_zones){ archive, warm, tokens };
	*ret_n = n;
	return 0;
}

uint32_t kvp_zone_of(const struct kvp_zones *zones, uint32_t position)
{
	if (position < zones->archive_end)
		return KVP_ZONE_ARCHIVE;
	return position < zones->warm_end ? KVP_ZONE_WARM : KVP_ZONE_HOT;
}

static struct kvp_archive archive_by_length(uint32_t tokens)
{
	if (tokens < KVP_ARCHIVE_SEQ_SQUAT)
		return (struct kvp_archive){ KVP_ARCHIVE_KIVI2, 0 };
	if (tokens < KVP_ARCHIVE_SEQ_KVQUANT)
		return (struct kvp_archive){ KVP_ARCHIVE_SQUAT, KVP_ARCHIVE_SQUAT_RANK };
	return (struct kvp_archive){ KVP_ARCHIVE_KVQUANT, KVP_ARCHIVE_KVQUANT_BITS };
}

void kvp_archive_select(struct kvp_archive configured, uint32_t tokens, uint32_t have,
	struct kvp_archive *ret_archive, int *ret_fallback)
{
	struct kvp_archive a = configured;
	int fallback = 0;

	if (a.codec == KVP_ARCHIVE_ADAPTIVE)
		a = archive_by_length(tokens);
	if (a.codec == KVP_ARCHIVE_KVQUANT && !(have & KVP_HAVE_CALIBRATION)) {
		a = (struct kvp_archive){ KVP_ARCHIVE_SQUAT, KVP_ARCHIVE_SQUAT_RANK };
		fallback = 1;
	}
	if (a.codec == KVP_ARCHIVE_SQUAT && !(have & KVP_HAVE_QUERIES)) {
		a = (struct kvp_archive){ KVP_ARCHIVE_KIVI2, 0 };
		fallback = 1;
	}
	*ret_archive = a;
	*ret_fallback = fallback;
}

int kvp_archive_parse(const char *text, struct kvp_archive *ret)
{
	static const struct {
		const char *name;
		struct kvp_archive archive;
	} names[] = {
		{ "adaptive", { KVP_ARCHIVE_ADAPTIVE, 0 } },
		{ "kivi2", { KVP_ARCHIVE_KIVI2, 0 } },
		{ "squat", { KVP_ARCHIVE_SQUAT, KVP_ARCHIVE_SQUAT_RANK } },
		{ "kvquant", { KVP_ARCHIVE_KVQUANT, KVP_ARCHIVE_KVQUANT_BITS } },
	};
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct kvp_archive a = names[i].archive;
		size_t len = strlen(names[i].name);
		const char *p = text + len;

		if (strncmp(text, names[i].name, len) != 0)
			continue;
		if (*p == ':' && a.param) {
			unsigned long v;
			char *end;

			if (p[1] < '0' || p[1] > '9')
				return -EINVAL;
			v = strtoul(p + 1, &end, 10);
			a.param = v <= SQUAT_RANK_MAX ? (uint32_t)v : 0;
			p = end;
		}
		if (*p || !archive_valid(a))
			return -EINVAL;
		*ret = a;
		return 0;
	}
	return -EINVAL;
}
