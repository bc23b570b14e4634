/* SPDX-License-Identifier: Apache-2.0 */
/* The size classes of a tenant. */
#include "daemon/ledger/class.h"

#include <string.h>

#include "daemon/ledger/extent.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/tenant.h"

uint64_t kvpd_slot_bytes(uint64_t block_bytes)
{
	return (block_bytes + 63) / 64 * 64;
}

static bool class_used(const struct kvpd_tenant *t, const struct kvpd_class *c)
{
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (t->space[i].cls == c)
			return true;
	return c->extents != 0;
}

struct kvpd_class *kvpd_class_get(struct kvpd_tenant *t, uint32_t medium, uint64_t slot_bytes)
{
	struct kvpd_class *c = NULL;

	for (uint32_t i = 0; i < t->n_classes; i++)
		if (t->cls[i].medium == medium && t->cls[i].slot_bytes == slot_bytes)
			return &t->cls[i];
	if (t->n_classes < KVPD_CLASSES)
		c = &t->cls[t->n_classes++];
	for (uint32_t i = 0; !c && i < KVPD_CLASSES; i++)
		if (!class_used(t, &t->cls[i]))
			c = &t->cls[i];
	if (c) {
		memset(c, 0, sizeof(*c));
		c->medium = medium;
		c->tier = medium == KVPD_DRAM ? KVP_TIER_DRAM : KVP_TIER_VRAM;
		c->slot_bytes = slot_bytes;
		kvpd_list_init(&c->vaults);
	}
	return c;
}

struct kvpd_class *kvpd_class_of(struct kvpd_tenant *t, uint32_t space, uint32_t medium)
{
	if (medium == KVPD_DRAM)
		return t->space[space].cls;
	return kvpd_class_get(t, medium, kvpd_device_slot(t->view.spaces[space].block_bytes));
}
