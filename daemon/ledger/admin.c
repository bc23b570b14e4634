/* SPDX-License-Identifier: Apache-2.0 */
/* Administration of the data plane: JSON in, JSON out, on the ledger thread. See docs/admin.md. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/check.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/recipe.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_lease.h"

#define BLOCKS_DEFAULT 100
#define BLOCKS_MAX     100000
#define PROBLEMS_MAX   100
#define CHECK_BYTES    (2u << 20) /* some hundred microseconds */

struct admin {
	struct kvpd_ledger *l;
	const json_t *request;
	json_t *answer;
	/* evict and drain, a portion at a call */
	uint32_t at; /* tenant */
	uint64_t gone, forgotten, left;
	uint64_t most_gone, most_forgotten; /* with all that this tenant had at first */
	bool begun;                         /* this tenant */
	uint32_t vain;                      /* portions without a victim in a row */
};

/* ---- small helpers -------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static int fail(
	struct admin *a, int error, const char *format, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	kvpd_put_text(a->answer, "error", text);
	return error;
}

static const char *text_of(const struct admin *a, const char *name)
{
	return json_string_value(json_object_get(a->request, name));
}

static bool flag_of(const struct admin *a, const char *name)
{
	return json_is_true(json_object_get(a->request, name));
}

static uint64_t int_of(const struct admin *a, const char *name, uint64_t otherwise)
{
	const json_t *v = json_object_get(a->request, name);

	return json_is_integer(v) && json_integer_value(v) >= 0 ? (uint64_t)json_integer_value(v)
								: otherwise;
}

static struct kvpd_tenant *tenant_at(const struct admin *a, uint32_t i)
{
	const char *only = text_of(a, "tenant");
	struct kvpd_tenant *t = a->l->tenant[i];

	return t && only && strcmp(only, t->name) ? NULL : t;
}

#define each_tenant(a, i, t)                             \
	for (uint32_t i = 1; i <= KVPD_MAX_TENANTS; i++) \
		if (((t) = tenant_at(a, i)))

/* ---- blocks --------------------------------------------------------------------------------- */

static const char *const state_names[] = { "free", "live", "evicting", "recipe" };

static void key_text(struct kvp_key key, char out[33])
{
	sprintf(out, "%016" PRIx64 "%016" PRIx64, key.hi, key.lo);
}

static json_t *block_json(const struct kvpd_tenant *t, uint32_t id)
{
	const struct kvp_block *b = &t->view.blocks[id];
	uint32_t tier = kvpd_block_tier(t, id);
	uint32_t parent = kvp_load_relaxed(&b->parent);
	json_t *o = json_object();
	char key[33];

	key_text(kvpd_block_key(t, id), key);
	kvpd_put_text(o, "key", key);
	kvpd_put_text(o, "tenant", t->name);
	kvpd_put_int(o, "block", id);
	kvpd_put_text(o, "state", state_names[kvpd_block_state(t, id) & 3]);
	kvpd_put_int(o, "space", kvp_shape_space(kvp_load_relaxed(&b->shape)));
	kvpd_put_int(o, "tokens", kvp_shape_tokens(kvp_load_relaxed(&b->shape)));
	kvpd_put_int(o, "depth", kvp_load_relaxed(&b->depth));
	json_object_set_new(o, "parent",
		parent == KVP_BLOCK_NONE ? json_null() : json_integer((json_int_t)parent));
	kvpd_put_int(o, "children", t->block[id].children);
	kvpd_put_int(o, "hits", kvp_load_relaxed(&b->hits));
	kvpd_put_int(o, "touched_s", kvp_load_relaxed(&b->touched_s));
	kvpd_put_int(o, "serial", kvp_load_relaxed(&b->serial));
	kvpd_put_bool(o, "pinned", kvp_load_relaxed(&b->flags) & KVP_BLOCK_F_PINNED);
	if (tier == KVP_TIER_RECIPE) {
		kvpd_put_int(o, "bytes", 0);
	} else {
		const struct kvp_payload_desc *d = kvpd_block_payload(t, id, tier);
		uint64_t where = kvp_load_relaxed(&d->where);

		kvpd_put_int(o, "bytes", kvp_where_bytes(where));
		kvpd_put_int(o, "extent", kvp_where_extent(where));
		kvpd_put_int(o, "offset", kvp_load_relaxed(&d->offset));
		kvpd_put_int(o, "codec", kvp_where_codec(where));
		kvpd_put_word(o, "checksum", kvp_load_relaxed(&d->checksum));
	}
	return o;
}

struct row {
	const struct kvpd_tenant *tenant;
	uint64_t by;
	uint32_t id;
};

static uint64_t sort_value(const struct kvpd_tenant *t, uint32_t id, const char *by)
{
	const struct kvp_block *b = &t->view.blocks[id];

	if (!strcmp(by, "hits"))
		return kvp_load_relaxed(&b->hits);
	if (!strcmp(by, "touched"))
		return kvp_load_relaxed(&b->touched_s);
	if (!strcmp(by, "depth"))
		return kvp_load_relaxed(&b->depth);
	if (!strcmp(by, "tokens"))
		return kvp_shape_tokens(kvp_load_relaxed(&b->shape));
	if (!strcmp(by, "serial"))
		return kvp_load_relaxed(&b->serial);
	return UINT64_MAX;
}

static int largest_first(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	if (x->by != y->by)
		return x->by < y->by ? 1 : -1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static bool wanted(const struct admin *a, const struct kvpd_tenant *t, uint32_t id)
{
	const struct kvp_block *b = &t->view.blocks[id];
	const char *state = text_of(a, "state");
	uint32_t is = kvpd_block_state(t, id) & 3;

	if (is == KVP_BLOCK_FREE || (state && strcmp(state, state_names[is])))
		return false;
	if (flag_of(a, "pinned") && !(kvp_load_relaxed(&b->flags) & KVP_BLOCK_F_PINNED))
		return false;
	return int_of(a, "space", UINT64_MAX) == UINT64_MAX ||
	       int_of(a, "space", 0) == kvp_shape_space(kvp_load_relaxed(&b->shape));
}

static int verb_blocks(struct admin *a)
{
	const char *by = text_of(a, "sort") ? text_of(a, "sort") : "serial";
	uint64_t limit = int_of(a, "limit", BLOCKS_DEFAULT), n = 0, room = 0;
	struct row *row = NULL;
	struct kvpd_tenant *t;
	json_t *list;

	if (limit > BLOCKS_MAX)
		limit = BLOCKS_MAX;
	each_tenant(a, i, t) room += (uint64_t)t->n_blocks + t->n_recipes;
	row = calloc(room + 1, sizeof(*row));
	if (!row)
		return fail(a, -ENOMEM, "no memory for a list of %" PRIu64 " blocks", room);
	each_tenant(a, i, t) for (uint32_t id = 0; id < t->layout.max_blocks && n < room;
				  id++) if (wanted(a, t, id)) row[n++] =
		(struct row){ t, sort_value(t, id, by), id };
	if (n && row[0].by == UINT64_MAX) {
		free(row);
		return fail(a, -EINVAL,
			"cannot sort by '%s'; one of serial, hits, touched, depth, tokens", by);
	}
	qsort(row, n, sizeof(*row), largest_first);
	list = json_array();
	for (uint64_t i = 0; i < n && i < limit; i++)
		json_array_append_new(list, block_json(row[i].tenant, row[i].id));
	free(row);
	kvpd_put_int(a->answer, "total", n);
	json_object_set_new(a->answer, "blocks", list);
	return 0;
}

/* The block that `key` names: 32 hexadecimal digits, or the first 8 or more of them. */
static int find_block(struct admin *a, struct kvpd_tenant **ret_tenant, uint32_t *ret_id)
{
	const char *want = text_of(a, "key");
	struct kvpd_tenant *t;
	uint32_t found = 0;
	char key[33];

	if (!want || strlen(want) < 8 || strlen(want) > 32)
		return fail(a, -EINVAL, "key: 8 to 32 hexadecimal digits are wanted");
	each_tenant(a, i, t) for (uint32_t id = 0; id < t->layout.max_blocks; id++)
	{
		if (kvpd_block_state(t, id) == KVP_BLOCK_FREE)
			continue;
		key_text(kvpd_block_key(t, id), key);
		if (strncmp(key, want, strlen(want)))
			continue;
		found++;
		*ret_tenant = t;
		*ret_id = id;
	}
	if (found > 1)
		return fail(
			a, -EINVAL, "key %s: %u blocks begin so; give more digits", want, found);
	return found ? 0 : fail(a, -ENOENT, "no block has the key %s", want);
}

static int verb_inspect(struct admin *a)
{
	kvp_token tokens[KVP_BLOCK_TOKENS_MAX];
	struct kvpd_tenant *t;
	uint32_t id;
	json_t *o, *list, *chain;
	int r = find_block(a, &t, &id), n;

	if (r < 0)
		return r;
	o = block_json(t, id);
	while (!kvpd_lease_look(t, KVPD_LOOK_CHAINS, true))
		;
	kvpd_put_bool(o, "leased", kvpd_leased(t, KVPD_LOOK_CHAINS, id));
	kvpd_put_bool(o, "granted", kvpd_block_kept(t, id) & KVPD_KEPT_GRANTED);
	kvpd_put_bool(o, "moving", kvpd_block_kept(t, id) & KVPD_KEPT_MOVING);
	list = json_array();
	n = kvp_recipe_read(&t->view, id, kvpd_block_word(t, id), tokens, KVP_BLOCK_TOKENS_MAX);
	for (int i = 0; i < n; i++)
		json_array_append_new(list, json_integer((json_int_t)tokens[i]));
	json_object_set_new(o, "token_ids", list);
	chain = json_array();
	for (uint32_t up = kvp_load_relaxed(&t->view.blocks[id].parent); up != KVP_BLOCK_NONE;
		up = kvp_load_relaxed(&t->view.blocks[up].parent)) {
		char key[33];

		key_text(kvpd_block_key(t, up), key);
		json_array_append_new(chain, json_string(key));
	}
	json_object_set_new(o, "ancestors", chain);
	json_object_set_new(a->answer, "block", o);
	return 0;
}

static int set_pin(struct admin *a, bool pin)
{
	struct kvpd_tenant *t;
	struct kvp_block *b;
	uint32_t id, flags;
	int r = find_block(a, &t, &id);

	if (r < 0)
		return r;
	if (pin && kvpd_block_state(t, id) != KVP_BLOCK_LIVE)
		return fail(a, -ENOENT, "the block has no payload that could be kept");
	b = &t->view.blocks[id];
	flags = kvp_load_relaxed(&b->flags) & ~KVP_BLOCK_F_PINNED;
	kvp_store_relaxed(&b->flags, pin ? flags | KVP_BLOCK_F_PINNED : flags);
	json_object_set_new(a->answer, "block", block_json(t, id));
	return 0;
}

static int verb_pin(struct admin *a)
{
	return set_pin(a, true);
}

static int verb_unpin(struct admin *a)
{
	return set_pin(a, false);
}

/* ---- making room ---------------------------------------------------------------------------- */

/* "leased and pinned", in words and as a list: what an administrator can do something about. */
static int fail_kept(struct admin *a, struct kvpd_tenant *t, uint32_t id)
{
	const unsigned why = kvpd_block_kept(t, id);
	char text[64] = "";
	json_t *list = json_array();

	/* The last look may be old. */
	while (!kvpd_lease_look(t, KVPD_LOOK_TIPS, true))
		;
	const struct {
		const char *name;
		bool is;
	} reasons[] = {
		{ "leased", kvpd_leased(t, KVPD_LOOK_TIPS, id) },
		{ "granted", why & KVPD_KEPT_GRANTED },
		{ "pinned", why & KVPD_KEPT_PINNED },
		{ "being moved", why & KVPD_KEPT_MOVING },
	};
	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
		size_t used = strlen(text);

		if (!reasons[i].is)
			continue;
		snprintf(text + used, sizeof(text) - used, "%s%s", used ? " and " : "",
			reasons[i].name);
		json_array_append_new(list, json_string(reasons[i].name));
	}
	json_object_set_new(a->answer, "kept_by", list);
	return fail(a, -EBUSY, "the block is %s", *text ? text : "in use for a moment; try again");
}

static int evict_key(struct admin *a)
{
	struct kvpd_tenant *t;
	uint32_t id;
	int r = find_block(a, &t, &id);

	if (r < 0)
		return r;
	r = kvpd_block_drop(t, id, false, kvpd_now_ns());
	if (r == -EBUSY)
		return fail_kept(a, t, id);
	if (r == -ENOTEMPTY)
		return fail(a, r, "the block has children; evict those first");
	kvpd_put_int(a->answer, "evicted", r == 0);
	return r;
}

#define ADMIN_VAIN 16u /* where more than so many portions are protected, that is all */

/*
 * What is put meanwhile is not counted: clients that go on putting would keep the control thread
 * here for as long as they please.
 */
static void begin_tenant(struct admin *a, const struct kvpd_tenant *t)
{
	if (a->begun)
		return;
	a->begun = true;
	a->most_gone = a->gone + t->n_blocks;
	a->most_forgotten = a->forgotten + t->n_blocks + t->n_recipes;
}

/* A portion. False: there is more to evict in this tenant. */
static bool evict_on(struct admin *a, struct kvpd_tenant *t, uint64_t want)
{
	uint64_t left;
	int n = 0;

	begin_tenant(a, t);
	left = (want < a->most_gone ? want : a->most_gone) - a->gone;
	if (left)
		n = kvpd_evict_some(
			t, left < KVPD_EVICT_MAX ? (uint32_t)left : KVPD_EVICT_MAX, kvpd_now_ns());
	a->gone += n > 0 ? (uint64_t)n : 0;
	a->vain = n == -EAGAIN ? a->vain + 1 : 0;
	if (n && a->vain < ADMIN_VAIN)
		return false;
	a->vain = 0;
	kvpd_due(t, KVPD_DUE_EXTENTS);
	return true;
}

static int verb_evict(struct admin *a)
{
	uint64_t want = flag_of(a, "all") ? UINT64_MAX : int_of(a, "count", 0);

	if (text_of(a, "key"))
		return evict_key(a);
	if (!want)
		return fail(a, -EINVAL, "evict: give a key, a count, or all");
	for (; a->at <= KVPD_MAX_TENANTS; a->at++, a->begun = false) {
		struct kvpd_tenant *t = a->at ? tenant_at(a, a->at) : NULL;

		if (t && !evict_on(a, t, want))
			return -EINPROGRESS;
	}
	kvpd_put_int(a->answer, "evicted", a->gone);
	return 0;
}

/* A portion. False: there are more recipes to forget. */
static bool forget_on(struct admin *a, struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < KVPD_EVICT_MAX; i++, a->forgotten++)
		if (a->forgotten >= a->most_forgotten || !kvpd_recipe_forget_oldest(t))
			return true;
	return false;
}

/* All that is not in use goes, recipes too, so that the extents give their memory back. */
static int verb_drain(struct admin *a)
{
	for (; a->at <= KVPD_MAX_TENANTS; a->at++, a->begun = false) {
		struct kvpd_tenant *t = a->at ? tenant_at(a, a->at) : NULL;

		if (!t)
			continue;
		if (!evict_on(a, t, UINT64_MAX) || !forget_on(a, t))
			return -EINPROGRESS;
		a->left += t->n_blocks;
	}
	kvpd_put_int(a->answer, "evicted", a->gone);
	kvpd_put_int(a->answer, "forgotten", a->forgotten);
	kvpd_put_int(a->answer, "in_use", a->left);
	return 0;
}

struct check_sum {
	json_t *problems;
	uint64_t wrong;
};

static int check_answer(struct admin *a, const struct check_sum *sum)
{
	kvpd_put_bool(a->answer, "clean", !sum->wrong);
	kvpd_put_int(a->answer, "problems_found", sum->wrong);
	json_object_set_new(a->answer, "problems", sum->problems);
	return sum->wrong ? -EBADMSG : 0;
}

/* One slice of contents, from tenant `from` >> 32, block `from` & 2^32-1 on. */
static int check_slice(struct admin *a, uint64_t from)
{
	struct check_sum sum = { .problems = json_array() };
	uint32_t first = (uint32_t)(from >> 32), block = (uint32_t)from;
	uint64_t read = 0;
	struct kvpd_tenant *t;

	each_tenant(a, i, t)
	{
		uint64_t bytes;

		if (i < first)
			continue;
		if (i > first)
			block = 0;
		sum.wrong += kvpd_check_payloads(
			t, &block, CHECK_BYTES - read, sum.problems, PROBLEMS_MAX, &bytes);
		read += bytes;
		if (block < t->layout.max_blocks) {
			kvpd_put_int(a->answer, "next", (uint64_t)i << 32 | block);
			break;
		}
	}
	kvpd_put_int(a->answer, "bytes", read);
	return check_answer(a, &sum);
}

static int verb_check(struct admin *a)
{
	struct check_sum sum = { 0 };
	uint64_t blocks = 0, bytes = 0;
	struct kvpd_tenant *t;

	if (json_object_get(a->request, "from"))
		return check_slice(a, int_of(a, "from", 0));
	sum.problems = json_array();
	each_tenant(a, i, t)
	{
		sum.wrong += kvpd_check_tenant(t, sum.problems, PROBLEMS_MAX);
		blocks += t->n_blocks;
		bytes += kvp_load_relaxed(&t->view.cat->stats.payload_bytes);
	}
	kvpd_put_int(a->answer, "blocks", blocks);
	kvpd_put_int(a->answer, "bytes", bytes);
	return check_answer(a, &sum);
}

/* ---- dispatch ------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int (*run)(struct admin *a);
} verbs[] = {
	{ "blocks", verb_blocks },
	{ "inspect", verb_inspect },
	{ "pin", verb_pin },
	{ "unpin", verb_unpin },
	{ "evict", verb_evict },
	{ "drain", verb_drain },
	{ "check", verb_check },
};

static int admin_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct admin *a = arg;
	const char *verb = text_of(a, "verb"), *tenant = text_of(a, "tenant");

	a->l = l;
	if (tenant && !kvpd_tenant_find(l, tenant))
		return fail(a, -ENOENT, "there is no tenant '%s'", tenant);
	for (size_t i = 0; verb && i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(verb, verbs[i].name))
			return verbs[i].run(a);
	return fail(a, -EOPNOTSUPP, "unknown verb '%s'", verb ? verb : "");
}

int kvpd_admin(struct kvpd_ledger *ledger, const json_t *request, json_t **ret_answer)
{
	struct admin a = { .request = request, .answer = json_object() };
	int r;

	if (!a.answer)
		return -ENOMEM;
	/* What takes long is done in portions, between which the ledger serves others. */
	do
		r = kvpd_ledger_ask(ledger, admin_on_ledger, &a);
	while (r == -EINPROGRESS);
	*ret_answer = a.answer;
	return r;
}
