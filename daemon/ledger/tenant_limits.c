/* SPDX-License-Identifier: Apache-2.0 */
/* What limits mean, and whether a share is enough for them; see tenant_limits.h. */
#include "daemon/ledger/tenant_limits.h"

#include <errno.h>

#include "daemon/device/device.h"
#include "daemon/ledger/advice.h"
#include "daemon/ledger/again.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/curve.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/medium.h"
#include "policy/kvp_evict.h"

#define BLOCK_GUESS  (UINT64_C(64) << 10) /* bytes of a block, where max_blocks is not given */
#define TOKENS_GUESS 64u                  /* tokens of a recipe, likewise */
#define TRIED_IDS    (1u << 16)           /* more of a policy's state follows in proportion */
#define PART_LEAST   4096u                /* blocks on a device, if there can be so many at all */
#define TRIES        64u

struct kvpd_limits kvpd_limits_settle(const struct kvpd_limits *given)
{
	struct kvpd_limits l = *given;
	uint64_t blocks = l.max_blocks ? l.max_blocks : l.share / BLOCK_GUESS;

	if (blocks < 1)
		blocks = 1;
	if (blocks > KVP_EVICT_MAX_IDS / 2)
		blocks = KVP_EVICT_MAX_IDS / 2;
	l.max_blocks = (uint32_t)blocks;
	if (l.recipe_blocks > KVP_EVICT_MAX_IDS / 2)
		l.recipe_blocks = KVP_EVICT_MAX_IDS / 2;
	if (!l.recipe_tokens)
		l.recipe_tokens = (uint64_t)TOKENS_GUESS * (blocks + l.recipe_blocks);
	if (!l.least_bits)
		l.least_bits = 2;
	if (!l.arena)
		l.arena = l.share / 4;
	if (!l.max_sessions || l.max_sessions > KVPD_MAX_SESSIONS)
		l.max_sessions = KVPD_MAX_SESSIONS;
	return l;
}

int kvpd_limits_plan(const struct kvpd_limits *limits, struct kvp_catalog_layout *ret_layout)
{
	return kvp_catalog_plan((uint64_t)limits->max_blocks + limits->recipe_blocks,
		limits->recipe_tokens, limits->tail_index, ret_layout);
}

/*
 * As many as it holds if they are as small as those that max_blocks supposes in DRAM, or as BLOCK_GUESS
 * if those are larger: the state of blocks on a device follows from the device's size, not from the
 * catalog's.
 */
uint32_t kvpd_limits_part_blocks(const struct kvpd_limits *limits, uint64_t device_share)
{
	uint64_t supposed = limits->share / limits->max_blocks, blocks;

	if (supposed > BLOCK_GUESS)
		supposed = BLOCK_GUESS;
	blocks = device_share / kvpd_device_slot(supposed ? supposed : 1);
	if (blocks < PART_LEAST)
		blocks = PART_LEAST;
	return blocks < limits->max_blocks ? (uint32_t)blocks : limits->max_blocks;
}

struct kvpd_advice_size kvpd_limits_advice(const struct kvpd_limits *limits,
	const struct kvp_catalog_layout *layout, const struct kvpd_advisor_config *advisor)
{
	return (struct kvpd_advice_size){
		.ids = layout->max_blocks,
		.blocks = limits->max_blocks,
		.batch = advisor->batch,
		.ahead = advisor->prefetch,
	};
}

uint64_t kvpd_meta_bytes(const struct kvp_catalog_layout *layout, uint64_t other_bytes)
{
	return layout->bytes + other_bytes +
	       layout->max_blocks * (uint64_t)sizeof(struct kvpd_block) +
	       (layout->max_blocks + (uint64_t)layout->recipe_cells) / 8 +
	       KVPD_DOOMED * (uint64_t)sizeof(struct kvpd_doomed);
}

/*
 * What an instance of the policy takes, for so many blocks at a time and as many ids or more: one is
 * made, of a large one a part.
 */
static int policy_bytes(
	const char *policy, uint32_t items, uint32_t blocks, bool mapped, uint64_t *ret_bytes)
{
	uint32_t some = blocks < TRIED_IDS ? blocks : TRIED_IDS;
	struct kvp_evict_params params = {
		.size = sizeof(params),
		.items = items < some ? items : some,
		.max_ids = mapped ? some + 1 : some,
		.max_blocks = mapped ? some : 0,
	};
	struct kvp_evict_lesson *lesson = NULL;
	struct kvp_evict_memory memory;
	struct kvp_evict *e;
	int r = kvp_evict_new(policy, &params, &e);

	if (r < 0)
		return r;
	kvp_evict_memory(e, &memory);
	if (kvp_evict_lesson_new(e, &lesson) == 0)
		*ret_bytes += kvp_evict_lesson_memory(lesson);
	kvp_evict_lesson_free(lesson);
	kvp_evict_free(e);
	*ret_bytes += memory.total + (memory.total / some + 1) * (blocks - some);
	return 0;
}

/* What a tenant of these limits takes before the first block. */
static int meta_of(
	const struct kvpd_config *config, const struct kvpd_limits *given, uint64_t *ret_bytes)
{
	struct kvpd_limits limits = kvpd_limits_settle(given);
	struct kvp_catalog_layout layout;
	struct kvpd_advice_size advice;
	uint64_t own = 0;
	int r = kvpd_limits_plan(&limits, &layout);

	if (r == 0)
		r = policy_bytes(config->policy, limits.max_blocks, layout.max_blocks, false, &own);
	/* Another instance for each device that it has a part of. */
	for (uint32_t i = 0; r == 0 && i < config->n_devices; i++) {
		uint64_t share = kvpd_config_device_share(config, &limits, i);
		uint32_t blocks = kvpd_limits_part_blocks(&limits, share);

		if (share)
			r = policy_bytes(
				config->policy, blocks, blocks, blocks < layout.max_blocks, &own);
		if (share)
			own += kvpd_again_bytes(blocks);
	}
	if (r < 0)
		return r;
	advice = kvpd_limits_advice(&limits, &layout, &config->advisor);
	if (config->advisor.on)
		own += kvpd_advice_bytes(&advice);
	own += kvpd_curve_bytes(limits.max_blocks);
	*ret_bytes = kvpd_meta_bytes(&layout, own);
	return 0;
}

/* A share that may be proposed: 64 KiB are little of the smallest, a MiB of the larger ones. */
static uint64_t round_up(uint64_t bytes)
{
	uint64_t unit = UINT64_C(1) << (bytes >> 26 ? 20 : 16);

	return (bytes + unit - 1) / unit * unit;
}

bool kvpd_faults_check(const char *faults)
{
	return kvpd_device_faults_valid(faults);
}

int kvpd_limits_check(
	const struct kvpd_config *config, const struct kvpd_limits *limits, uint64_t *ret_least)
{
	struct kvpd_limits l = *limits;
	uint64_t meta = 0;
	int r;

	/*
	 * A larger share may have more blocks and so a larger catalog, but that grows much more
	 * slowly: from below this comes to the least that is enough.
	 */
	for (unsigned i = 0; i < TRIES; i++) {
		r = meta_of(config, &l, &meta);
		if (r < 0)
			return r;
		if (l.share >= meta + KVPD_LEAST_DATA)
			break;
		l.share = round_up(meta + KVPD_LEAST_DATA);
	}
	if (l.share == limits->share)
		return 0;
	*ret_least = l.share;
	return -ENOSPC;
}
