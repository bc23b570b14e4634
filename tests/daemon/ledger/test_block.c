/* SPDX-License-Identifier: Apache-2.0 */
/* A block's payloads: where they lie, what takes them, what check sees, and what keeps them. */
#include "daemon/ledger/block.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/clock.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/tenant.h"
#include "tests/daemon/ledger/dp_world.h"

#define T   16u
#define MIB (UINT64_C(1) << 20)

/* On the ledger thread cmocka cannot end the test: the line that does not hold is returned. */
#define HOLDS(condition)                 \
	do {                             \
		if (!(condition))        \
			return __LINE__; \
	} while (0)

struct subject {
	struct dp_world w;
	struct dp_client *c;
	struct kvpd_tenant *t;
	struct dp_block block;
	struct kvpd_place place;
};

static struct kvpd_device_entry device = {
	.name = (char *)(uintptr_t) "none",
	.driver = (char *)(uintptr_t) "host",
	.worker = (char *)(uintptr_t) "/nowhere",
	.bytes = 4 * MIB,
	.segment = MIB,
};

/* One committed block, whose grant has been given back. */
static void begin(struct subject *s)
{
	struct kvpd_limits limits;
	kvp_token tokens[T];
	uint32_t space;

	dp_defaults(&s->w, &limits);
	limits.recipe_blocks = 8;
	/* A device; its worker is never asked for anything. */
	s->w.config.devices = &device;
	s->w.config.n_devices = 1;
	limits.device_share[0] = device.bytes;
	dp_start(&s->w, &limits);
	s->c = dp_attach(&s->w, s->w.tenant);
	s->t = s->w.ledger->tenant[s->w.tenant];
	space = dp_space(s->c, "m", 4);
	for (uint32_t i = 0; i < T; i++)
		tokens[i] = i;
	assert_int_equal(dp_put(s->c, space, dp_root(), tokens, T, &s->block), 0);
	dp_flush(s->c);
}

static uint64_t payload_bytes(const struct kvpd_tenant *t)
{
	return kvp_load_relaxed(&t->view.cat->stats.payload_bytes);
}

/* A LIVE extent of the device without memory: what go_live() does, and nobody is told. */
static struct kvpd_extent *other_tier(struct kvpd_tenant *t, uint64_t slot_bytes)
{
	struct kvpd_class *c = kvpd_class_get(t, KVPD_DRAM + 1, slot_bytes);
	struct kvpd_extent *x = kvpd_extent_new(t, c, KVP_EXTENT_VAULT, MIB);

	x->state = KVPD_EXTENT_LIVE;
	c->vault_slots += x->slots;
	c->vault_free += x->slots;
	return x;
}

static int two_tiers_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;
	struct kvpd_tenant *t = s->t;
	uint32_t id = s->block.id, slot, bytes = (uint32_t)payload_bytes(t);
	struct kvpd_place dram, vram, found;
	struct kvpd_extent *x;

	(void)l;
	HOLDS(kvpd_block_tier(t, id) == KVP_TIER_DRAM);
	HOLDS(kvpd_block_place(t, id, KVP_TIER_DRAM, &dram));
	HOLDS(dram.tier == KVP_TIER_DRAM);
	HOLDS(dram.extent->slot[dram.slot].block == id);
	HOLDS(!kvpd_block_place(t, id, KVP_TIER_VRAM, &found));
	HOLDS(!kvpd_block_place(t, id, KVP_TIER_STORE, &found));

	/* the same size of slot is another class in another tier */
	x = other_tier(t, dram.extent->cls->slot_bytes);
	HOLDS(x->cls != dram.extent->cls);
	HOLDS(kvpd_slot_take(x, KVPD_SLOT_TARGET, &slot));
	HOLDS(kvpd_slot_take(x, KVPD_SLOT_TARGET, &slot));
	vram = kvpd_place_at(x, slot);
	HOLDS(vram.tier == KVP_TIER_VRAM);
	kvpd_block_lay(t, id, vram, KVP_CODEC_NATIVE, bytes, 0);
	x->slot[slot].block = id;
	kvpd_slot_clear(vram, KVPD_SLOT_TARGET);
	kvpd_part_enter(t, KVPD_DRAM + 1, id, kvpd_now_ns());

	HOLDS(kvpd_block_tier(t, id) == KVP_TIER_DRAM);
	HOLDS(kvpd_block_place(t, id, KVP_TIER_VRAM, &found));
	HOLDS(found.extent == x);
	HOLDS(found.slot == slot);
	HOLDS(kvpd_block_place(t, id, KVP_TIER_DRAM, &found));
	HOLDS(found.extent == dram.extent);

	/* what goes, goes from both */
	HOLDS(kvpd_block_drop(t, id, false, kvpd_now_ns()) == 0);
	HOLDS(kvpd_block_state(t, id) == KVP_BLOCK_RECIPE);
	HOLDS(kvpd_block_tier(t, id) == KVP_TIER_RECIPE);
	HOLDS(dram.extent->slot[dram.slot].block == KVP_BLOCK_NONE);
	HOLDS(x->slot[slot].block == KVP_BLOCK_NONE);
	HOLDS(x->used == 1);
	HOLDS(payload_bytes(t) == 0);
	x->cls->vault_slots = x->cls->vault_free = 0;
	kvpd_extent_free(x);
	return 0;
}

/* ---- the last slots that there is state for --------------------------------------------------- */

static int last_slots_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;
	struct kvpd_part *p = &s->t->part[0];
	struct kvpd_class *c = kvpd_class_get(s->t, KVPD_DRAM + 1, 12 << 10);
	uint32_t most = p->max_slots;
	uint64_t grain = l->medium[0].grain;
	struct kvpd_extent *x;

	/* As of a GPU. */
	l->medium[0].grain = MIB;
	p->max_slots = p->slots + 2;
	x = kvpd_extent_new(s->t, c, KVP_EXTENT_VAULT, 2 * MIB);
	HOLDS(x && x->slots == 2);
	/* Its worker refuses any other. */
	HOLDS(x->bytes == MIB);
	HOLDS(p->charged == MIB && p->slots == p->max_slots);
	HOLDS(!kvpd_extent_new(s->t, c, KVP_EXTENT_VAULT, 2 * MIB));
	kvpd_extent_free(x);
	HOLDS(!p->charged);
	/* Clients write into half of the places at most. */
	p->max_slots = p->slots + 3;
	x = kvpd_extent_new(s->t, c, KVP_EXTENT_ARENA, 2 * MIB);
	HOLDS(x && x->slots == (p->max_slots + 1) / 2);
	kvpd_extent_free(x);
	p->max_slots = most;
	l->medium[0].grain = grain;
	return 0;
}

static void an_extent_of_the_last_slots_is_whole_pieces(void **state)
{
	struct subject s;

	(void)state;
	begin(&s);
	assert_int_equal(kvpd_ledger_ask(s.w.ledger, last_slots_on_ledger, &s), 0);
	dp_check(&s.w);
	dp_stop(&s.w);
}

static void a_block_may_lie_in_two_tiers(void **state)
{
	struct subject s;

	(void)state;
	begin(&s);
	assert_int_equal(kvpd_ledger_ask(s.w.ledger, two_tiers_on_ledger, &s), 0);
	dp_check(&s.w);
	dp_stop(&s.w);
}

/* ---- slots that a dead worker may write in -------------------------------------------------- */

static int lose_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;
	struct kvpd_class *c;
	struct kvpd_place other;

	(void)l;
	HOLDS(kvpd_block_place(s->t, s->block.id, KVP_TIER_DRAM, &s->place));
	c = s->place.extent->cls;
	if (!kvpd_vault_take(s->t, c, NULL, kvpd_now_ns(), &s->place))
		return -EAGAIN;
	/* One was in time, the other one was not. */
	HOLDS(kvpd_vault_take(s->t, c, NULL, kvpd_now_ns(), &other));
	kvpd_slot_missed(other, false);
	kvpd_slot_missed(s->place, true);
	HOLDS(!other.extent->slot[other.slot].flags);
	HOLDS(s->place.extent->slot[s->place.slot].flags == KVPD_SLOT_LOST);
	HOLDS(s->place.extent->lost == 1);
	/* What lies there is what would be missed. */
	HOLDS(kvpd_precision_worth(s->t, s->place.extent) == s->place.extent->used - 1);
	return 0;
}

/* All that are free are taken, and the lost one is not among them. */
static int take_all_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;
	struct kvpd_extent *x = s->place.extent;
	uint32_t slot, n = 0;

	(void)l;
	while (kvpd_slot_take(x, KVPD_SLOT_TARGET, &slot)) {
		HOLDS(slot != s->place.slot);
		HOLDS(++n < x->slots);
	}
	for (uint32_t i = 0; i < x->slots; i++)
		if (x->slot[i].flags & KVPD_SLOT_TARGET)
			kvpd_slot_clear(kvpd_place_at(x, i), KVPD_SLOT_TARGET);
	return 0;
}

static int goes_on_ledger(struct kvpd_ledger *l, void *arg)
{
	const struct subject *s = arg;

	(void)l;
	for (uint32_t i = 0; i < s->t->n_extents; i++)
		if (s->t->extent[i] && s->t->extent[i]->lost &&
			s->t->extent[i]->state == KVPD_EXTENT_LIVE)
			return -EAGAIN;
	return 0;
}

static void a_lost_slot_is_nobodys_until_its_extent_is_gone(void **state)
{
	struct subject s;
	int r;

	(void)state;
	begin(&s);
	while ((r = kvpd_ledger_ask(s.w.ledger, lose_on_ledger, &s)) == -EAGAIN)
		usleep(1000);
	assert_int_equal(r, 0);
	dp_check(&s.w);
	assert_int_equal(kvpd_ledger_ask(s.w.ledger, take_all_on_ledger, &s), 0);
	/* It keeps no extent: nothing else lies there, and so that goes once its client has unmapped it. */
	while ((r = kvpd_ledger_ask(s.w.ledger, goes_on_ledger, &s)) == -EAGAIN)
		usleep(10000);
	assert_int_equal(r, 0);
	dp_check(&s.w);
	dp_stop(&s.w);
}

/* A quarter of an extent is lost while something stays there for long. */
static int wear_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;
	struct kvpd_class *c;
	struct kvpd_extent *x;
	uint32_t slot;

	(void)l;
	HOLDS(kvpd_block_place(s->t, s->block.id, KVP_TIER_DRAM, &s->place));
	c = s->place.extent->cls;
	if (!kvpd_vault_take(s->t, c, NULL, kvpd_now_ns(), &s->place))
		return -EAGAIN;
	x = s->place.extent;
	while (!x->draining) {
		HOLDS(kvpd_slot_take(x, KVPD_SLOT_TARGET, &slot));
		kvpd_slot_missed(kvpd_place_at(x, slot), true);
	}
	HOLDS(x->lost == (x->slots + 3) / 4);
	return 0;
}

static int is_kept_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct kvpd_extent *x = ((struct subject *)arg)->place.extent;

	(void)l;
	if (x->draining)
		return -EAGAIN;
	HOLDS(x->kept_ns);
	x->kept_ns = kvpd_now_ns(); /* it is over */
	return 0;
}

static int drains_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;

	(void)l;
	if (!s->place.extent->draining)
		return -EAGAIN;
	kvpd_slot_clear(s->place, KVPD_SLOT_TARGET);
	return 0;
}

static void ask_until(struct subject *s, int (*ask)(struct kvpd_ledger *, void *))
{
	int r = -EAGAIN;

	for (int i = 0; i < 1000 && (r = kvpd_ledger_ask(s->w.ledger, ask, s)) == -EAGAIN; i++)
		usleep(10000);
	assert_int_equal(r, 0);
}

static void a_worn_extent_is_emptied_again(void **state)
{
	struct subject s;

	(void)state;
	begin(&s);
	ask_until(&s, wear_on_ledger);
	ask_until(&s, is_kept_on_ledger);
	ask_until(&s, drains_on_ledger);
	ask_until(&s, goes_on_ledger);
	dp_check(&s.w);
	dp_stop(&s.w);
}

static int no_payload_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;

	(void)l;
	HOLDS(kvpd_block_place(s->t, s->block.id, KVP_TIER_DRAM, &s->place));
	kvp_block_set_payload(&s->t->view, s->block.id, KVP_TIER_DRAM, 0, 0, 0);
	return 0;
}

static int payload_again_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;

	(void)l;
	kvp_block_set_payload(&s->t->view, s->block.id, KVP_TIER_DRAM,
		kvp_where(s->place.extent->id, KVP_CODEC_NATIVE, (uint32_t)payload_bytes(s->t)),
		kvpd_place_offset(s->place), 0);
	return 0;
}

static void check_misses_a_payload(void **state)
{
	json_t *answer;
	struct subject s;

	(void)state;
	begin(&s);
	assert_int_equal(kvpd_ledger_ask(s.w.ledger, no_payload_on_ledger, &s), 0);
	assert_int_equal(dp_admin(&s.w, "{\"verb\":\"check\"}", &answer), -EBADMSG);
	assert_non_null(
		strstr(json_string_value(json_array_get(json_object_get(answer, "problems"), 0)),
			"is live and has no payload"));
	json_decref(answer);
	assert_int_equal(kvpd_ledger_ask(s.w.ledger, payload_again_on_ledger, &s), 0);
	dp_check(&s.w);
	dp_stop(&s.w);
}

static int flip_moving_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;

	(void)l;
	s->t->block[s->block.id].flags ^= KVPD_BLOCK_MOVING;
	return 0;
}

/* The reasons that `evict KEY` names, joined by commas. */
static void assert_kept_by(struct subject *s, const char *want)
{
	char key[33], request[80], got[80] = "";
	const json_t *reason;
	json_t *answer;
	size_t i;
	int r;

	assert_int_equal(dp_admin(&s->w, "{\"verb\":\"blocks\"}", &answer), 0);
	snprintf(key, sizeof(key), "%s",
		json_string_value(json_object_get(
			json_array_get(json_object_get(answer, "blocks"), 0), "key")));
	json_decref(answer);
	snprintf(request, sizeof(request), "{\"verb\":\"evict\",\"key\":\"%s\"}", key);
	r = dp_admin(&s->w, request, &answer);
	json_array_foreach(json_object_get(answer, "kept_by"), i, reason) {
		if (i)
			strcat(got, ",");
		strcat(got, json_string_value(reason));
	}
	assert_int_equal(r, *want ? -EBUSY : 0);
	assert_string_equal(got, want);
	json_decref(answer);
}

static void an_administrator_is_told_what_keeps_a_block(void **state)
{
	struct kvp_lease lease = { NULL };
	struct subject s;
	uint64_t word;

	(void)state;
	begin(&s);
	word = kvp_load_relaxed(&s.c->view.blocks[s.block.id].word);
	assert_int_equal(kvpd_ledger_ask(s.w.ledger, flip_moving_on_ledger, &s), 0);
	assert_kept_by(&s, "being moved");
	assert_int_equal(kvp_lease_take(s.c->page, 0, &s.c->view.blocks[s.block.id], s.block.id,
				 word, &lease),
		0);
	assert_kept_by(&s, "leased,being moved");
	assert_int_equal(kvpd_ledger_ask(s.w.ledger, flip_moving_on_ledger, &s), 0);
	assert_kept_by(&s, "leased");
	kvp_lease_drop(&lease);
	assert_kept_by(&s, "");
	dp_check(&s.w);
	dp_stop(&s.w);
}

/*
 * A prompt that fills its tenant does not keep the next one out: the first block of that follows
 * nothing that the session has written, and takes the place of the last. Only what goes on with the
 * chain spares it.
 */
static void a_new_prompt_takes_the_place_of_the_last(void **state)
{
	enum { MOST = 40 };
	struct dp_block block = { 0 }, next;
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token tokens[T] = { 0 };
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = MOST;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t i = 0; i < MOST; i++) {
		tokens[0] = i;
		assert_int_equal(
			dp_put(c, space, i ? dp_ref(&block) : dp_root(), tokens, T, &block), 0);
	}
	tokens[0] = MOST;
	assert_int_equal(dp_put(c, space, dp_ref(&block), tokens, T, &next), -ENOSPC);
	tokens[1] = 1;
	assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &next), 0);
	assert_int_equal(
		kvp_word_state(kvp_load_relaxed(&c->view.blocks[next.id].word)), KVP_BLOCK_LIVE);
	dp_check(&w);
	dp_stop(&w);
}

#define RECIPES 5u

struct recipes {
	struct subject s;
	struct dp_block block[RECIPES];
	uint32_t neighbour[2]; /* of one of them, while it is a recipe */
};

static int drop_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct recipes *r = arg;

	(void)l;
	for (uint32_t i = 0; i < RECIPES; i++)
		HOLDS(kvpd_block_drop(r->s.t, r->block[i].id, false, kvpd_now_ns()) == 0);
	r->neighbour[0] = r->s.t->block[r->block[2].id].prev;
	r->neighbour[1] = r->s.t->block[r->block[2].id].next;
	HOLDS(r->neighbour[0] == r->block[1].id);
	HOLDS(r->neighbour[1] == r->block[3].id);
	return 0;
}

/* Looks at all leases, and sees none of a block without a payload. */
static int look_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct recipes *r = arg;

	(void)l;
	for (uint32_t which = 0; which < KVPD_LOOK_KINDS; which++) {
		for (uint32_t i = 0; i < 3; i++)
			while (!kvpd_lease_look(r->s.t, which, true))
				;
		for (uint32_t i = 0; i < RECIPES; i++)
			HOLDS(!kvpd_leased(r->s.t, which, r->block[i].id));
	}
	return 0;
}

static int unleased_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct recipes *r = arg;

	(void)l;
	for (uint32_t which = 0; which < KVPD_LOOK_KINDS; which++) {
		struct kvpd_look *look = &r->s.t->look[which], is = *look;

		for (uint32_t i = 0; i < 2; i++) {
			look->number = r->neighbour[i];
			HOLDS(!kvpd_leased(r->s.t, which, r->block[2].id));
		}
		*look = is;
	}
	return 0;
}

/* A client's slots may name what they want: that of a recipe changes nothing that is kept of it. */
static void leases_of_recipes_are_none(void **state)
{
	struct recipes r;
	kvp_token tokens[T];
	uint32_t space;

	(void)state;
	begin(&r.s);
	space = dp_space(r.s.c, "m", 4);
	for (uint32_t i = 0; i < RECIPES; i++) {
		for (uint32_t k = 0; k < T; k++)
			tokens[k] = 100 * (i + 1) + k;
		assert_int_equal(dp_put(r.s.c, space, dp_root(), tokens, T, &r.block[i]), 0);
	}
	dp_flush(r.s.c);
	assert_int_equal(kvpd_ledger_ask(r.s.w.ledger, drop_on_ledger, &r), 0);
	for (uint32_t i = 0; i < RECIPES; i++) {
		uint32_t id = r.block[i].id;
		uint64_t word = kvp_load_relaxed(&r.s.c->view.blocks[id].word);

		kvp_store_relaxed(&r.s.c->page->lease[0][i], kvp_slot_value(id, word));
	}
	kvp_store_release(&r.s.c->page->lease_lines[0], UINT64_MAX);
	assert_int_equal(kvpd_ledger_ask(r.s.w.ledger, look_on_ledger, &r), 0);
	dp_check(&r.s.w);
	/* one comes back, and carries nothing of its time as a recipe */
	for (uint32_t i = 0; i < RECIPES; i++)
		kvp_store_relaxed(&r.s.c->page->lease[0][i], 0);
	for (uint32_t k = 0; k < T; k++)
		tokens[k] = 300 + k;
	assert_int_equal(dp_put(r.s.c, space, dp_root(), tokens, T, &r.block[2]), 0);
	assert_int_equal(kvpd_ledger_ask(r.s.w.ledger, unleased_on_ledger, &r), 0);
	dp_check(&r.s.w);
	dp_stop(&r.s.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_may_lie_in_two_tiers),
		cmocka_unit_test(an_extent_of_the_last_slots_is_whole_pieces),
		cmocka_unit_test(a_lost_slot_is_nobodys_until_its_extent_is_gone),
		cmocka_unit_test(a_worn_extent_is_emptied_again),
		cmocka_unit_test(check_misses_a_payload),
		cmocka_unit_test(an_administrator_is_told_what_keeps_a_block),
		cmocka_unit_test(a_new_prompt_takes_the_place_of_the_last),
		cmocka_unit_test(leases_of_recipes_are_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
