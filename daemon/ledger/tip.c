/* SPDX-License-Identifier: Apache-2.0 */
/* Tips of chains that are being written; see tip.h. */
#include "daemon/ledger/tip.h"

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"

#define SILENT_NS  (10000 * KVPD_MS) /* after that a session's chain is one like all others */
#define PORTION    64u               /* tips given up in one go */
#define WRITING_NS (100 * KVPD_MS)   /* twice as long as a RESERVE waits */

/* How many sessions have a block as their tip is counted in its flags, above the flags proper. */
_Static_assert(KVPD_MAX_SESSIONS < UINT32_MAX / KVPD_BLOCK_TIP, "every session may have the same");

bool kvpd_tip_any(const struct kvpd_tenant *t, uint32_t block)
{
	return t->block[block].flags >= KVPD_BLOCK_TIP;
}

static bool is_tip(const struct kvpd_session *s, uint32_t block)
{
	return s->has_tip && s->tip == block &&
	       s->tip_birth == kvp_word_birth(kvpd_block_word(s->tenant, block));
}

bool kvpd_tip_now(const struct kvpd_session *s, uint32_t block, uint64_t now)
{
	return s && is_tip(s, block) && now < s->tip_ns + WRITING_NS;
}

void kvpd_tip_clear(struct kvpd_session *s)
{
	struct kvpd_tenant *t = s->tenant;

	if (!s->has_tip)
		return;
	/* A block that went meanwhile has lost its flags; its descriptor may be another block's. */
	if (is_tip(s, s->tip) && kvpd_tip_any(t, s->tip))
		t->block[s->tip].flags -= KVPD_BLOCK_TIP;
	s->has_tip = false;
	kvpd_list_remove(&s->in_tips);
	t->n_tips--;
}

void kvpd_tip_set(struct kvpd_session *s, uint32_t block, uint64_t now)
{
	struct kvpd_tenant *t = s->tenant;

	kvpd_tip_clear(s);
	t->block[block].flags += KVPD_BLOCK_TIP;
	s->has_tip = true;
	s->tip = block;
	s->tip_birth = kvp_word_birth(kvpd_block_word(t, block));
	s->tip_ns = now;
	kvpd_list_append(&t->tips, &s->in_tips);
	t->n_tips++;
}

/* The session's tip goes, and others of its chain with it: the first one that stays. */
static void move_up(struct kvpd_session *s)
{
	struct kvpd_tenant *t = s->tenant;
	uint32_t up = s->tip;

	while (up != KVP_BLOCK_NONE && !kvpd_block_lives(t, up))
		up = kvp_load_relaxed(&t->view.blocks[up].parent);
	if (up == KVP_BLOCK_NONE) {
		kvpd_tip_clear(s);
		return;
	}
	t->block[s->tip].flags -= KVPD_BLOCK_TIP;
	t->block[up].flags += KVPD_BLOCK_TIP;
	s->tip = up;
	s->tip_birth = kvp_word_birth(kvpd_block_word(t, up));
}

void kvpd_tip_up(struct kvpd_tenant *t)
{
	struct kvpd_list *i = t->tips.next, *next;

	for (; i != &t->tips; i = next) {
		struct kvpd_session *s = kvpd_container(i, struct kvpd_session, in_tips);

		next = i->next;
		if (is_tip(s, s->tip) && kvpd_tip_any(t, s->tip) && kvpd_block_holds(t, s->tip) &&
			!kvpd_block_lives(t, s->tip))
			move_up(s);
	}
}

bool kvpd_tip_step(struct kvpd_tenant *t, uint64_t now)
{
	for (uint32_t i = 0; !kvpd_list_empty(&t->tips); i++) {
		struct kvpd_session *s = kvpd_container(t->tips.next, struct kvpd_session, in_tips);

		if (now - s->tip_ns <= SILENT_NS)
			break;
		if (i == PORTION)
			return true;
		kvpd_tip_clear(s);
	}
	return false;
}
