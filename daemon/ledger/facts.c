/* SPDX-License-Identifier: Apache-2.0 */
/* A block's facts, and their JSON. */
#include "daemon/ledger/facts.h"

#include "daemon/answer.h"
#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/find.h"
#include "daemon/ledger/tenant.h"

static const char *const state_names[] = { "free", "live", "evicting", "recipe" };

const char *kvpd_state_name(uint32_t state)
{
	return state < sizeof(state_names) / sizeof(state_names[0]) ? state_names[state] : NULL;
}

void kvpd_facts_read(const struct kvpd_tenant *t, uint32_t id, struct kvpd_facts *ret)
{
	const struct kvp_block *b = &t->view.blocks[id];

	*ret = (struct kvpd_facts){
		.key = kvpd_block_key(t, id),
		.tenant = t->id,
		.block = id,
		.state = kvpd_block_state(t, id),
		.shape = kvp_load_relaxed(&b->shape),
		.depth = kvp_load_relaxed(&b->depth),
		.parent = kvp_load_relaxed(&b->parent),
		.children = t->block[id].children,
		.hits = kvp_load_relaxed(&b->hits),
		.touched_s = kvp_load_relaxed(&b->touched_s),
		.serial = kvp_load_relaxed(&b->serial),
		.pinned = kvp_load_relaxed(&b->flags) & KVP_BLOCK_F_PINNED,
	};
	if (kvpd_block_in_dram(t, id)) {
		const struct kvp_payload_desc *d = kvpd_block_payload(t, id, KVP_TIER_DRAM);

		ret->where = kvp_load_relaxed(&d->where);
		ret->offset = kvp_load_relaxed(&d->offset);
		ret->checksum = kvp_load_relaxed(&d->checksum);
	}
	ret->on.where = kvp_load_relaxed(&kvpd_block_payload(t, id, KVP_TIER_VRAM)->where);
	if (ret->on.where) {
		const struct kvp_payload_desc *d = kvpd_block_payload(t, id, KVP_TIER_VRAM);

		ret->on.offset = kvp_load_relaxed(&d->offset);
		ret->on.checksum = kvp_load_relaxed(&d->checksum);
		ret->on.device = t->extent[kvp_where_extent(ret->on.where)]->cls->medium - 1;
	}
}

static void put_place(json_t *o, uint64_t where, uint64_t offset, uint64_t checksum)
{
	kvpd_put_int(o, "extent", kvp_where_extent(where));
	kvpd_put_int(o, "offset", offset);
	kvpd_put_int(o, "codec", kvp_where_codec(where));
	kvpd_put_word(o, "checksum", checksum);
}

/* Since it was used; null: it was not. */
static json_t *idle_json(uint32_t touched_s)
{
	const json_int_t now_s = (json_int_t)(kvpd_now_ns() / (1000 * KVPD_MS));

	if (!touched_s)
		return json_null();
	return json_integer(now_s > touched_s ? now_s - touched_s : 0);
}

json_t *kvpd_facts_json(const struct kvpd_facts *f, const char *tenant)
{
	json_t *o = json_object();
	char key[KVPD_KEY_TEXT];

	kvpd_key_text(f->key, key);
	kvpd_put_text(o, "key", key);
	kvpd_put_text(o, "tenant", tenant);
	kvpd_put_int(o, "block", f->block);
	kvpd_put_text(o, "state", kvpd_state_name(f->state & 3));
	kvpd_put_int(o, "space", kvp_shape_space(f->shape));
	kvpd_put_int(o, "tokens", kvp_shape_tokens(f->shape));
	kvpd_put_int(o, "depth", f->depth);
	json_object_set_new(o, "parent",
		f->parent == KVP_BLOCK_NONE ? json_null() : json_integer((json_int_t)f->parent));
	kvpd_put_int(o, "children", f->children);
	kvpd_put_int(o, "hits", f->hits);
	kvpd_put_int(o, "touched_s", f->touched_s);
	json_object_set_new(o, "idle_seconds", idle_json(f->touched_s));
	kvpd_put_int(o, "serial", f->serial);
	kvpd_put_bool(o, "pinned", f->pinned);
	kvpd_put_int(o, "bytes", kvp_where_bytes(f->where ? f->where : f->on.where));
	if (f->where)
		put_place(o, f->where, f->offset, f->checksum);
	if (f->on.where) {
		json_t *on = json_object();

		kvpd_put_int(on, "device", f->on.device);
		put_place(on, f->on.where, f->on.offset, f->on.checksum);
		json_object_set_new(o, "on_device", on);
	}
	return o;
}
