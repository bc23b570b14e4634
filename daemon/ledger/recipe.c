/* SPDX-License-Identifier: Apache-2.0 */
/* RECIPE blocks: their list, their count, and forgetting them. */
#include "daemon/ledger/recipe.h"

#include <errno.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/tenant.h"

#define TRIM 256u /* forgotten at one go; more than one eviction makes */

void kvpd_recipe_list(struct kvpd_tenant *t, uint32_t block, bool old)
{
	struct kvpd_block *b = &t->block[block];

	b->prev = old ? KVP_BLOCK_NONE : t->recipe_young;
	b->next = old ? t->recipe_old : KVP_BLOCK_NONE;
	if (b->prev != KVP_BLOCK_NONE)
		t->block[b->prev].next = block;
	else
		t->recipe_old = block;
	if (b->next != KVP_BLOCK_NONE)
		t->block[b->next].prev = block;
	else
		t->recipe_young = block;
}

void kvpd_recipe_unlist(struct kvpd_tenant *t, uint32_t block)
{
	struct kvpd_block *b = &t->block[block];

	if (b->prev != KVP_BLOCK_NONE)
		t->block[b->prev].next = b->next;
	else
		t->recipe_old = b->next;
	if (b->next != KVP_BLOCK_NONE)
		t->block[b->next].prev = b->prev;
	else
		t->recipe_young = b->prev;
}

void kvpd_recipe_count(struct kvpd_tenant *t, int more)
{
	t->n_recipes += (uint32_t)more;
	kvp_store_relaxed(&t->view.cat->stats.recipes, t->n_recipes);
}

int kvpd_recipe_forget(struct kvpd_tenant *t, uint32_t id)
{
	if (t->block[id].children)
		return -ENOTEMPTY;
	kvpd_recipe_unlist(t, id);
	kvpd_recipe_count(t, -1);
	kvpd_block_release(t, id);
	return 0;
}

bool kvpd_recipe_forget_oldest(struct kvpd_tenant *t)
{
	uint32_t id = t->recipe_old;

	while (id != KVP_BLOCK_NONE && (t->block[id].flags & KVPD_BLOCK_KEEP))
		id = t->block[id].next;
	if (id == KVP_BLOCK_NONE)
		return false;
	kvp_bump(&t->view.cat->stats.forgotten, 1);
	return kvpd_recipe_forget(t, id) == 0;
}

void kvpd_recipe_trim(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; t->n_recipes > t->limits.recipe_blocks; i++) {
		if (i == TRIM) {
			kvpd_due(t, KVPD_DUE_ROOM);
			break;
		}
		if (!kvpd_recipe_forget_oldest(t))
			break;
	}
}
