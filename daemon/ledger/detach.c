/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs that empty a device, let go of it and bring it back. A request begins that and says what is
 * left; the emptying itself is what all draining extents go through, and goes on when nobody asks. So each
 * of them may be asked again and again: whoever wants to wait asks device-left.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/ledger/admin.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/tenant.h"

/* What keeps a payload there; one block may have several reasons. */
enum { LEASED, GRANTED, PINNED, MOVING, REASONS };
static const char *const reason_names[REASONS] = { "leased", "granted", "pinned", "being moved" };

enum phase { BEGIN, EXTENTS, HOSTS, COUNTING };

struct detaching {
	enum phase phase;
	struct kvpd_medium *m;
	uint32_t medium;
	bool drain; /* extents are told to drain, not only counted */
	uint64_t blocks, bytes;
	uint32_t extents; /* there, */
	uint64_t slots;   /* of them in use: a block lies there, or a client is about to write it */
	uint32_t mapped;  /* of these empty, but mapped by clients still */
	uint32_t known;   /* DRAM extents that the device knows */
	const char *state;
	uint64_t looked_at; /* number of the tenant whose leases are looked at, */
	uint32_t look;      /* in this look */
	bool counted;
	uint64_t kept[REASONS];
};

static int prepare(struct kvpd_request *q)
{
	if (!q->own)
		q->own = calloc(1, sizeof(struct detaching));
	return q->own ? 0 : -ENOMEM;
}

static int find(struct kvpd_request *q, struct detaching *d)
{
	const char *name = kvpd_request_text(q, "device");

	if (q->only)
		return kvpd_request_fail(q, -EINVAL, "a device is emptied for all tenants");
	for (uint32_t i = 0; name && i < q->l->n_media; i++)
		if (!strcmp(q->l->medium[i].name, name)) {
			d->m = &q->l->medium[i];
			d->medium = i + 1;
		}
	if (!d->m || !d->m->device)
		return kvpd_request_fail(
			q, -ENOENT, "there is no device '%.64s'", name ? name : "");
	d->phase = EXTENTS;
	return 0;
}

static void next_phase(struct kvpd_request *q, struct detaching *d, enum phase phase)
{
	d->phase = phase;
	q->tenant = 1;
	q->at = 0;
}

/* ---- portions: each returns false if there is more of it ------------------------------------ */

static void look_at_extent(struct detaching *d, struct kvpd_extent *x)
{
	if (x->cls->medium != d->medium)
		return;
	d->extents++;
	d->mapped += x->n_unacked > 0;
	d->slots += x->used - x->lost;
	if (d->drain)
		kvpd_extent_drain(x);
}

static bool walk_extents(struct kvpd_request *q, struct detaching *d)
{
	struct kvpd_tenant *t;

	for (; (t = kvpd_request_tenant(q)); q->tenant++, q->at = 0) {
		for (; q->at < t->n_extents; q->at++) {
			struct kvpd_extent *x = t->extent[q->at];

			if (q->at % KVPD_ADMIN_STRIDE == 0 && kvpd_request_over(q))
				return false;
			if (x && d->phase == EXTENTS)
				look_at_extent(d, x);
			else if (x && x->cls->medium == KVPD_DRAM)
				d->known += kvpd_host_leave(x, d->medium);
		}
		if (d->phase == EXTENTS) {
			d->blocks += t->part[d->medium - 1].blocks;
			d->bytes += t->part[d->medium - 1].charged;
		}
	}
	return true;
}

static void count_block(struct detaching *d, const struct kvpd_tenant *t, uint32_t id)
{
	struct kvpd_place p;
	unsigned why;

	if (!kvpd_block_lives(t, id) || !kvpd_block_place(t, id, KVP_TIER_VRAM, &p) ||
		p.extent->cls->medium != d->medium)
		return;
	why = kvpd_block_kept(t, id);
	d->kept[LEASED] += kvpd_leased(t, KVPD_LOOK_CHAINS, id);
	d->kept[GRANTED] += !!(why & KVPD_KEPT_GRANTED);
	d->kept[PINNED] += !!(why & KVPD_KEPT_PINNED);
	d->kept[MOVING] += !!(why & KVPD_KEPT_MOVING);
}

/* By what keeps them, as of a look at the leases that begins now. */
static bool count_on(struct kvpd_request *q, struct detaching *d)
{
	struct kvpd_tenant *t;

	for (; (t = kvpd_request_tenant(q)); q->tenant++, q->at = 0) {
		if (!t->part[d->medium - 1].blocks)
			continue;
		if (d->looked_at != t->number)
			d->look = kvpd_lease_look_from_now(t, KVPD_LOOK_CHAINS);
		d->looked_at = t->number;
		if (!kvpd_lease_look_reached(t, KVPD_LOOK_CHAINS, d->look))
			return false;
		for (; q->at < t->layout.max_blocks; q->at++) {
			if (q->at % KVPD_ADMIN_STRIDE == 0 && kvpd_request_over(q))
				return false;
			count_block(d, t, q->at);
		}
	}
	d->counted = true;
	return true;
}

/* 0: what is there has been looked at; -EINPROGRESS. */
static int survey(struct kvpd_request *q, struct detaching *d)
{
	if (d->phase == EXTENTS) {
		if (!walk_extents(q, d))
			return -EINPROGRESS;
		d->state = kvpd_medium_word(d->m, kvpd_device_state(d->m->device));
		next_phase(q, d, !d->extents ? HOSTS : COUNTING);
	}
	if (d->phase == COUNTING && kvpd_request_flag(q, "kept") && !d->counted && !count_on(q, d))
		return -EINPROGRESS;
	return 0;
}

/* ---- verbs ---------------------------------------------------------------------------------- */

static int left_step(struct kvpd_request *q)
{
	struct detaching *d = q->own;
	int r = d->phase == BEGIN ? find(q, d) : 0;

	return r < 0 ? r : survey(q, d);
}

static int drain_step(struct kvpd_request *q)
{
	struct detaching *d = q->own;
	int r = d->phase == BEGIN ? find(q, d) : 0;

	if (r < 0)
		return r;
	d->drain = d->m->draining = true;
	return survey(q, d);
}

static int detach_step(struct kvpd_request *q)
{
	struct detaching *d = q->own;
	int r = drain_step(q);

	if (r < 0 || d->phase != HOSTS)
		return r;
	if (!walk_extents(q, d))
		return -EINPROGRESS;
	if (!d->known)
		(void)kvpd_device_detach(d->m->device); /* -EBUSY: the next request does it */
	d->state = kvpd_medium_word(d->m, kvpd_device_state(d->m->device));
	return 0;
}

static int attach_step(struct kvpd_request *q)
{
	struct detaching *d = q->own;
	int r = d->phase == BEGIN ? find(q, d) : 0;

	if (r < 0)
		return r;
	d->m->draining = false;
	kvpd_device_attach(d->m->device);
	return survey(q, d);
}

static int finish(struct kvpd_request *q, int result)
{
	struct detaching *d = q->own;

	if (result == 0 && d) {
		kvpd_put_text(q->answer, "device", d->m->name);
		kvpd_put_text(q->answer, "state", d->state);
		kvpd_put_int(q->answer, "blocks", d->blocks);
		kvpd_put_int(q->answer, "charged_bytes", d->bytes);
		kvpd_put_int(q->answer, "extents", d->extents);
		kvpd_put_int(q->answer, "granted_slots",
			d->slots > d->blocks ? d->slots - d->blocks : 0);
		kvpd_put_int(q->answer, "mapped_extents", d->mapped);
		json_object_set_new(q->answer, "empty", json_boolean(!d->extents));
	}
	if (result == 0 && d && d->counted) {
		json_t *kept = json_object();

		for (uint32_t i = 0; i < REASONS; i++)
			kvpd_put_int(kept, reason_names[i], d->kept[i]);
		json_object_set_new(q->answer, "kept", kept);
	}
	free(d);
	return result;
}

#define VERB(variable, called, does)        \
	const struct kvpd_verb variable = { \
		.name = called,             \
		.prepare = prepare,         \
		.step = does,               \
		.finish = finish,           \
	}

VERB(kvpd_verb_device_drain, "device-drain", drain_step);
VERB(kvpd_verb_device_detach, "device-detach", detach_step);
VERB(kvpd_verb_device_attach, "device-attach", attach_step);
VERB(kvpd_verb_device_left, "device-left", left_step);
