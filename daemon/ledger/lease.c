/* SPDX-License-Identifier: Apache-2.0 */
/* Looks and proofs. */
#include "daemon/ledger/lease.h"

#include "daemon/clock.h"
#include "daemon/ledger/advice.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "shm/kvp_lease.h"

#define LOOK_PORTION 4096u /* lines of slots read and blocks marked, a cache miss each, but */
#define LOOK_NS      (KVPD_SLICE_NS / 2) /* no more than take so long */
#define LOOK_STRIDE  64u                 /* of them between two looks at the clock */
#define LOOK_PART    8u  /* looks take so large a part of the time at most: an eighth */
#define TOGETHER     16u /* leases of one session of which the advisor hears */

/* ---- looks ---------------------------------------------------------------------------------- */

static void look_begin(struct kvpd_tenant *t, struct kvpd_look *l)
{
	l->under_way = true;
	l->spent_ns = 0;
	l->next = t->sessions.next;
	l->slot = 0;
	l->walk = KVP_BLOCK_NONE;
	/* After 2^32 looks an old mark may be taken for a new one, and spares its block once. */
	if (++l->number < 2)
		l->number = 2;
}

/*
 * Marks the block that the walk has come to, and goes to its parent if chains are looked at. What
 * stands there may have changed since the last portion: then something else is marked.
 */
static void walk_up(struct kvpd_tenant *t, struct kvpd_look *l, uint32_t which)
{
	uint32_t b = l->walk;

	l->walk = KVP_BLOCK_NONE;
	if (b >= t->layout.max_blocks || !kvpd_block_holds(t, b) ||
		t->block[b].look[which] == l->number)
		return;
	t->block[b].look[which] = l->number;
	if (which == KVPD_LOOK_CHAINS)
		l->walk = kvp_load_relaxed(&t->view.blocks[b].parent);
}

/* What a session has leased at a time is used together; a few of them say enough. */
static void advise(struct kvpd_tenant *t, struct kvpd_look *l, const struct kvpd_session *s)
{
	if (l->walk >= t->layout.max_blocks || l->told == TOGETHER)
		return;
	l->told++;
	kvpd_advice_leased(t->advice, l->walk, s->id, l->number);
}

/* False: there is more to look at. */
static bool look_on(struct kvpd_tenant *t, struct kvpd_look *l, uint32_t which, uint64_t until)
{
	uint32_t clock = LOOK_STRIDE;

	for (uint32_t work = 0; work < LOOK_PORTION && l->next != &t->sessions; work++) {
		struct kvpd_session *s = kvpd_container(l->next, struct kvpd_session, in_tenant);

		if (l->walk != KVP_BLOCK_NONE) {
			walk_up(t, l, which);
		} else if (l->slot < KVP_LEASES) {
			if (!l->slot)
				l->told = 0;
			l->walk = kvp_slot_block(kvp_lease_next(s->page, &l->slot, &work));
			l->slot++;
			if (which == KVPD_LOOK_TIPS)
				advise(t, l, s);
		} else {
			l->slot = 0;
			l->next = l->next->next;
		}
		if (work < clock)
			continue;
		clock = work + LOOK_STRIDE;
		if (kvpd_now_ns() >= until)
			break;
	}
	return l->next == &t->sessions;
}

bool kvpd_lease_look(struct kvpd_tenant *t, uint32_t which, bool now)
{
	struct kvpd_look *l = &t->look[which];
	uint64_t began = kvpd_now_ns(), end;

	if (!l->under_way) {
		if (!now && began < l->due_ns)
			return false;
		look_begin(t, l);
	}
	l->under_way = !look_on(t, l, which, began + LOOK_NS);
	end = kvpd_now_ns();
	l->spent_ns += end - began;
	l->due_ns = end + (LOOK_PART - 1) * l->spent_ns;
	return !l->under_way;
}

uint32_t kvpd_lease_look_from_now(const struct kvpd_tenant *t, uint32_t which)
{
	return t->look[which].number + 1;
}

static bool reached(const struct kvpd_look *l, uint32_t number)
{
	int32_t past = (int32_t)(l->number - number);

	return past > 0 || (past == 0 && !l->under_way);
}

bool kvpd_lease_look_reached(struct kvpd_tenant *t, uint32_t which, uint32_t number)
{
	/* One that is under way began before. */
	if (!reached(&t->look[which], number))
		(void)kvpd_lease_look(t, which, true);
	return reached(&t->look[which], number);
}

bool kvpd_leased(const struct kvpd_tenant *t, uint32_t which, uint32_t block)
{
	const struct kvpd_look *l = &t->look[which];
	uint32_t found = t->block[block].look[which];

	if (!kvpd_block_holds(t, block))
		return false;
	/* What this look has not come to yet is as the one before had it. */
	return found == l->number || (l->under_way && found == l->number - 1);
}

void kvpd_lease_forget(struct kvpd_session *s)
{
	for (uint32_t i = 0; i < KVPD_LOOK_KINDS; i++) {
		struct kvpd_look *l = &s->tenant->look[i];

		if (!l->under_way || l->next != &s->in_tenant)
			continue;
		l->next = s->in_tenant.next;
		l->slot = 0;
	}
}

/* ---- proofs --------------------------------------------------------------------------------- */

#define FILTER_WORDS 64u

/*
 * A bit for each block that is asked about, by the low bits of its number: most slots that name
 * other blocks go no further. The block's flag says the rest, once: however many slots name it, and
 * however many name what looks like it, none costs more than a look at the flag.
 */
struct filter {
	uint64_t bits[FILTER_WORDS];
};

static uint64_t *filter_word(struct filter *f, kvp_block_id id)
{
	return &f->bits[id / 64 % FILTER_WORDS];
}

static bool asked_about(const struct kvpd_tenant *t, struct filter *f, kvp_block_id id)
{
	return (*filter_word(f, id) >> id % 64 & 1) && id < t->layout.max_blocks &&
	       (t->block[id].flags & KVPD_BLOCK_ASKED);
}

static void found_leased(struct kvpd_tenant *t, kvp_block_id id)
{
	t->block[id].flags &= ~KVPD_BLOCK_ASKED;
	t->block[id].look[KVPD_LOOK_TIPS] = t->look[KVPD_LOOK_TIPS].number;
}

uint64_t kvpd_lease_prove(struct kvpd_tenant *t, const kvp_block_id *block, uint32_t n)
{
	const uint64_t began = kvpd_now_ns();
	struct filter filter = { { 0 } };
	uint64_t leased = 0, v;
	uint32_t lines = 0;

	for (uint32_t i = 0; i < n; i++) {
		*filter_word(&filter, block[i]) |= UINT64_C(1) << block[i] % 64;
		t->block[block[i]].flags |= KVPD_BLOCK_ASKED;
	}
	kvp_lease_fence();
	for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);

		for (uint32_t i = 0; (v = kvp_lease_next(s->page, &i, &lines)); i++)
			if (asked_about(t, &filter, kvp_slot_block(v)))
				found_leased(t, kvp_slot_block(v));
	}
	for (uint32_t i = 0; i < n; i++) {
		if (!(t->block[block[i]].flags & KVPD_BLOCK_ASKED))
			leased |= UINT64_C(1) << i;
		t->block[block[i]].flags &= ~KVPD_BLOCK_ASKED;
	}
	t->proofs++;
	t->proof_ns = kvpd_now_ns() - began;
	return leased;
}
