/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl check --payloads: contents against their checksums; those on devices are asked about, and what comes
 * of that is among the devices' figures. A large block is read in pieces, between
 * which it may move or go: then what was read of it says nothing, and it is left out.
 */
#include <errno.h>

#include "daemon/ledger/admin.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/check.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/verify.h"
#include "shm/kvp_catalog.h"

#define ANSWER_BYTES (2u << 20) /* about so many for one request */
#define PIECE        (128u << 10)

/* The first tier from `tier` on in which the block has a payload with a checksum. */
static uint32_t next_tier(const struct kvpd_tenant *t, uint32_t block, uint32_t tier)
{
	struct kvpd_place place;

	while (tier < KVP_TIER_PAYLOADS &&
		(!kvpd_block_place(t, block, tier, &place) ||
			place.extent->cls->medium != KVPD_DRAM ||
			!kvp_load_relaxed(&kvpd_block_payload(t, block, tier)->checksum)))
		tier++;
	return tier;
}

/* A piece of the block, in the tier that `part` says. False: there is no more of it. */
static bool read_on(struct kvpd_check *c, uint32_t block)
{
	const struct kvpd_tenant *t = c->t;
	const struct kvp_payload_desc *d;
	struct kvpd_place place;
	uint64_t bytes, piece;

	if (!c->reading) {
		c->part = next_tier(t, block, c->part);
		if (c->part == KVP_TIER_PAYLOADS)
			return false;
		c->reading = true;
		c->word = kvpd_block_word(t, block);
		c->read = 0;
		kvp_summing_begin(c->summing);
	}
	if (kvpd_block_word(t, block) != c->word || !kvpd_block_place(t, block, c->part, &place)) {
		c->reading = false;
		return false;
	}
	d = kvpd_block_payload(t, block, c->part);
	bytes = kvp_where_bytes(kvp_load_relaxed(&d->where));
	piece = bytes - c->read < PIECE ? bytes - c->read : PIECE;
	kvp_summing_add(c->summing, (const uint8_t *)kvpd_place_addr(place) + c->read, piece);
	c->read += piece;
	c->bytes += piece;
	if (c->read < bytes)
		return true;
	if (kvp_summing_end(c->summing) != kvp_load_relaxed(&d->checksum))
		kvpd_check_wrong(c, "block %u: its payload does not match its checksum", block);
	c->reading = false;
	c->part++;
	return true;
}

static void next_block(struct kvpd_check *c)
{
	c->part = 0;
	c->reading = c->asked = false;
}

/* False: the answer ends before this block, as no more payloads on devices can be verified just now. */
static bool ask_device(struct kvpd_check *c, uint32_t block)
{
	int64_t r = c->asked ? 0 : kvpd_verify(c->t, block);

	c->asked = true;
	c->busy = r == -EAGAIN;
	c->bytes += r > 0 ? (uint64_t)r : 0;
	return !c->busy;
}

int kvpd_check_contents(struct kvpd_check *c)
{
	struct kvpd_request *q = c->q;

	for (; (c->t = kvpd_request_tenant(q)); q->tenant++, q->at = 0) {
		c->reading = c->reading && c->t->number == c->number;
		c->number = c->t->number;
		for (; q->at < c->t->layout.max_blocks; q->at++, next_block(c)) {
			/* A block is answered for as a whole. */
			if (!c->reading && !c->part && c->bytes >= ANSWER_BYTES)
				return 0;
			if (!c->reading && q->at % KVPD_ADMIN_STRIDE == 0 && kvpd_request_over(q))
				return -EINPROGRESS;
			if (kvpd_check_state(c, q->at) != KVP_BLOCK_LIVE)
				continue;
			if (!ask_device(c, q->at))
				return 0;
			while (read_on(c, q->at))
				if (kvpd_request_over(q))
					return -EINPROGRESS;
		}
	}
	return 0;
}
