/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads on devices against their checksums. */
#include "daemon/ledger/verify.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/find.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/room.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/segment.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/warm.h"
#include "daemon/log.h"

struct verification {
	struct kvpd_device_copy c;
	struct kvpd_tenant *tenant;
	uint32_t block;
	uint32_t medium;
};

void kvpd_verify_tell(const struct kvpd_tenant *t, uint32_t block, uint32_t medium)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(60, 20);
	char key[KVPD_KEY_TEXT];

	kvpd_key_text(kvpd_block_key(t, block), key);
	kvpd_log_limited(&limit, KVPD_LOG_ERR, NULL,
		"tenant %s: block %s is damaged on the device %s: it goes from there", t->name, key,
		t->ledger->medium[medium - 1].name);
}

static void verified(struct kvpd_device_work *w)
{
	struct verification *v = kvpd_container(
		kvpd_container(w, struct kvpd_device_copy, work), struct verification, c);
	struct kvpd_tenant *t = v->tenant;
	struct kvpd_part *part = &t->part[v->medium - 1];

	kvpd_ledger_charge(t->ledger, t);
	t->changes++;
	t->n_jobs--;
	part->verifying--;
	t->block[v->block].flags &= ~KVPD_BLOCK_MOVING;
	part->verified += w->status == 0 || w->status == -EBADMSG;
	part->unverified += w->status < 0 && w->status != -EBADMSG;
	if (w->status == -EBADMSG) {
		part->damaged++;
		kvpd_verify_tell(t, v->block, v->medium);
		kvpd_room_damaged(t, v->block);
	}
	kvpd_warm_again(t);
	free(v);
}

static int begin(struct kvpd_tenant *t, uint32_t block, struct kvpd_place p, uint64_t bytes)
{
	const struct kvp_payload_desc *d = kvpd_block_payload(t, block, KVP_TIER_VRAM);
	struct verification *v = calloc(1, sizeof(*v));
	const uint32_t medium = p.extent->cls->medium;
	int r;

	if (!v)
		return -ENOMEM;
	v->tenant = t;
	v->block = block;
	v->medium = medium;
	v->c = (struct kvpd_device_copy){
		.work.done = verified,
		.way = KVPD_TO_HOST,
		.kind = KVPD_COPY_AHEAD,
		.flags = KVPD_COPY_CHECK | KVPD_COPY_ONLY,
		.tenant = t->id,
		.seg = kvpd_segment_id(p.extent),
		.seg_off = kvpd_place_offset(p),
		.bytes = bytes,
		.checksum = kvp_load_relaxed(&d->checksum),
	};
	r = kvpd_device_copy(t->ledger->medium[medium - 1].device, &v->c);
	if (r < 0) {
		free(v);
		return r;
	}
	t->block[block].flags |= KVPD_BLOCK_MOVING;
	t->n_jobs++;
	t->part[medium - 1].verifying++;
	return 0;
}

int64_t kvpd_verify(struct kvpd_tenant *t, uint32_t block)
{
	const struct kvp_payload_desc *d = kvpd_block_payload(t, block, KVP_TIER_VRAM);
	struct kvpd_place p;
	struct kvpd_part *part;
	uint64_t bytes;
	int r;

	if (t->block[block].flags & KVPD_BLOCK_MOVING ||
		!kvpd_block_place(t, block, KVP_TIER_VRAM, &p) || !kvp_load_relaxed(&d->checksum) ||
		p.extent->state != KVPD_EXTENT_LIVE)
		return 0;
	part = &t->part[p.extent->cls->medium - 1];
	if (part->verifying >= KVPD_VERIFYING)
		return -EAGAIN;
	bytes = kvp_where_bytes(kvp_load_relaxed(&d->where));
	r = begin(t, block, p, bytes);
	part->unverified += r < 0;
	return r < 0 ? r : (int64_t)bytes;
}
