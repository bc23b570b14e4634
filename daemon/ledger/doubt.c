/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of what lies on a device that is doubted. */
#include "daemon/ledger/doubt.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/verify.h"
#include "daemon/ledger/warm.h"

#define PORTION 1024u /* slots and extents looked at in one portion */

struct sample {
	struct kvpd_device_copy c;
	struct kvpd_tenant *tenant;
	uint32_t block, medium, number;
};

static struct kvpd_device *device_of(const struct kvpd_tenant *t, uint32_t medium)
{
	return t->ledger->medium[medium - 1].device;
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* A worker that died says nothing of the payload: the next one's segments are doubted anew. */
static bool says_nothing(int status)
{
	return status == -EAGAIN || status == -ENODEV || status == -ESHUTDOWN;
}

static void summed(struct kvpd_device_work *w)
{
	struct sample *s =
		kvpd_container(kvpd_container(w, struct kvpd_device_copy, work), struct sample, c);
	struct kvpd_tenant *t = s->tenant;
	struct kvpd_part *part = &t->part[s->medium - 1];

	kvpd_ledger_charge(t->ledger, t);
	t->changes++;
	t->n_jobs--;
	t->block[s->block].flags &= ~KVPD_BLOCK_MOVING;
	part->doubt.pending--;
	part->verified += w->status == 0 || w->status == -EBADMSG;
	part->unverified += w->status < 0 && w->status != -EBADMSG;
	if (w->status == -EBADMSG) {
		part->damaged++;
		kvpd_verify_tell(t, s->block, s->medium);
	}
	if (s->number == part->doubt.number && says_nothing(w->status))
		part->doubt.number = 0;
	else if (s->number == part->doubt.number && w->status < 0)
		part->doubt.bad = true;
	kvpd_due(t, KVPD_DUE_DOUBT);
	kvpd_warm_again(t);
	free(s);
}

/* False: it cannot be asked about. */
static bool begin_sum(struct kvpd_tenant *t, uint32_t medium, struct kvpd_place p, uint32_t block)
{
	const struct kvp_payload_desc *d = kvpd_block_payload(t, block, KVP_TIER_VRAM);
	struct kvpd_doubt *o = &t->part[medium - 1].doubt;
	struct sample *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return false;
	s->tenant = t;
	s->block = block;
	s->medium = medium;
	s->number = o->number;
	s->c = (struct kvpd_device_copy){
		.work.done = summed,
		.way = KVPD_TO_HOST,
		.kind = KVPD_COPY_URGENT,
		.flags = KVPD_COPY_CHECK | KVPD_COPY_ONLY,
		.tenant = t->id,
		.seg = kvpd_segment_id(p.extent),
		.seg_off = kvpd_place_offset(p),
		.bytes = kvp_where_bytes(kvp_load_relaxed(&d->where)),
		.checksum = kvp_load_relaxed(&d->checksum),
	};
	r = kvpd_device_copy(device_of(t, medium), &s->c);
	if (r < 0) {
		free(s);
		return false;
	}
	t->block[block].flags |= KVPD_BLOCK_MOVING;
	t->n_jobs++;
	o->asked++;
	o->pending++;
	return true;
}

/* ---- one extent ----------------------------------------------------------------------------- */

/* A block whose payload here can be compared now. */
static bool is_sample(const struct kvpd_tenant *t, struct kvpd_place p, uint32_t block)
{
	struct kvpd_place there;

	return !(t->block[block].flags & KVPD_BLOCK_MOVING) &&
	       kvpd_block_place(t, block, KVP_TIER_VRAM, &there) && there.extent == p.extent &&
	       there.slot == p.slot &&
	       kvp_load_relaxed(&kvpd_block_payload(t, block, KVP_TIER_VRAM)->checksum);
}

/* Looks for samples among *work slots. True: all of them were looked at. */
static bool sample(struct kvpd_tenant *t, uint32_t medium, struct kvpd_extent *x, uint32_t *work)
{
	struct kvpd_doubt *o = &t->part[medium - 1].doubt;

	for (; *work && o->slot < x->slots; (*work)--, o->slot++) {
		const uint32_t block = x->slot[o->slot].block;
		const struct kvpd_place p = kvpd_place_at(x, o->slot);

		if (block == KVP_BLOCK_NONE)
			continue;
		o->blocks++;
		if (o->slot < o->next || o->asked >= KVPD_DOUBT_SAMPLE || !is_sample(t, p, block))
			continue;
		if (begin_sum(t, medium, p, block))
			o->next = o->slot + (x->slots + KVPD_DOUBT_SAMPLE - 1) / KVPD_DOUBT_SAMPLE;
	}
	return o->slot == x->slots;
}

static void begin_extent(struct kvpd_doubt *o, uint32_t extent, const struct kvpd_extent *x)
{
	o->extent = extent;
	o->generation = x ? x->generation : 0;
	o->slot = o->next = o->asked = o->blocks = 0;
	o->bad = false;
}

/* Is it in doubt? What has no memory there yet, or none any more, is not. */
static bool is_doubted(const struct kvpd_tenant *t, uint32_t medium, const struct kvpd_extent *x)
{
	return x && x->cls->medium == medium && kvpd_segment_there(x) &&
	       kvpd_device_seg_doubted(device_of(t, medium), kvpd_segment_id(x));
}

/*
 * 1: the next one; 0: no more now. What cannot be compared with anything is not believed, unless nothing lies
 * there: then what comes to lie there is all that anybody reads.
 */
static int look_at(struct kvpd_tenant *t, uint32_t medium, struct kvpd_extent *x, uint32_t *work)
{
	struct kvpd_doubt *o = &t->part[medium - 1].doubt;

	if (o->generation != x->generation)
		begin_extent(o, x->id, x);
	if (!sample(t, medium, x, work) || o->pending)
		return 0;
	kvpd_device_judge(device_of(t, medium), kvpd_segment_id(x), o->number,
		!o->bad && (o->asked || !o->blocks));
	return 1;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static bool look_on(struct kvpd_tenant *t, uint32_t medium, uint32_t *work)
{
	struct kvpd_doubt *o = &t->part[medium - 1].doubt;

	while (o->number && *work && o->extent < t->n_extents) {
		struct kvpd_extent *x = t->extent[o->extent];

		--*work;
		if (is_doubted(t, medium, x) && look_at(t, medium, x, work) == 0)
			return !o->pending;
		begin_extent(o, o->extent + 1, NULL);
	}
	if (o->extent >= t->n_extents)
		o->number = 0;
	return o->number != 0;
}

void kvpd_doubt_begin(struct kvpd_tenant *t, uint32_t medium, uint32_t number)
{
	struct kvpd_doubt *o = &t->part[medium - 1].doubt;

	o->number = number;
	begin_extent(o, 0, NULL);
	kvpd_due(t, KVPD_DUE_DOUBT);
}

bool kvpd_doubt_step(struct kvpd_tenant *t, uint64_t now)
{
	uint32_t work = PORTION;
	bool more = false;

	(void)now;
	for (uint32_t i = 1; i <= t->ledger->n_media; i++)
		if (t->part[i - 1].doubt.number && device_of(t, i))
			more = look_on(t, i, &work) || more;
	return more;
}
