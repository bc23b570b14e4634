/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs that are about one block and change no payload: inspect, pin, unpin. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/answer.h"
#include "daemon/ledger/admin.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/facts.h"
#include "daemon/ledger/find.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/tenant.h"

struct inspection {
	enum { FINDING, LOOKING, CLIMBING } phase;
	struct kvpd_facts facts;
	char tenant[KVPD_TENANT_NAME];
	uint64_t number; /* of the tenant */
	uint32_t
		birth; /* of the block: as long as that is so it is the same, and so is its chain */
	uint32_t look;
	bool leased;
	unsigned kept;
	kvp_token token[KVP_BLOCK_TOKENS_MAX];
	int n_tokens;
	kvp_token salt[KVP_SALT_TOKENS]; /* of the first block of its chain */
	bool salted;
	struct kvp_key *ancestor; /* [facts.depth] */
	uint32_t n_ancestors;
	uint32_t up;    /* the one that comes next */
	uint32_t first; /* the last one so far; at the end the first of the chain */
};

static int prepare(struct kvpd_request *q)
{
	struct inspection *n = q->own;

	if (!n)
		q->own = n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	if (n->phase != FINDING && n->facts.depth && !n->ancestor)
		n->ancestor = calloc(n->facts.depth, sizeof(*n->ancestor));
	return n->phase != FINDING && n->facts.depth && !n->ancestor ? -ENOMEM : 0;
}

static int found(struct inspection *n, struct kvpd_tenant *t, uint32_t id)
{
	uint64_t word = kvpd_block_word(t, id);

	kvpd_facts_read(t, id, &n->facts);
	snprintf(n->tenant, sizeof(n->tenant), "%s", t->name);
	n->number = t->number;
	n->birth = kvp_word_birth(word);
	n->kept = kvpd_block_kept(t, id);
	n->n_tokens = kvp_recipe_read(&t->view, id, word, n->token, KVP_BLOCK_TOKENS_MAX);
	n->up = n->facts.parent;
	n->first = id;
	n->look = kvpd_lease_look_from_now(t, KVPD_LOOK_CHAINS);
	n->phase = LOOKING;
	return -EINPROGRESS;
}

/* False: the portion is over. */
static bool climb(struct kvpd_request *q, const struct kvpd_tenant *t, struct inspection *n)
{
	for (uint32_t i = 1; n->up != KVP_BLOCK_NONE && n->n_ancestors < n->facts.depth; i++) {
		if (i % KVPD_ADMIN_STRIDE == 0 && kvpd_request_over(q))
			return false;
		n->ancestor[n->n_ancestors++] = kvpd_block_key(t, n->up);
		n->first = n->up;
		n->up = kvp_load_relaxed(&t->view.blocks[n->up].parent);
	}
	return true;
}

static int inspect_step(struct kvpd_request *q)
{
	struct inspection *n = q->own;
	struct kvpd_tenant *t;
	uint32_t id;
	int r;

	if (n->phase == FINDING) {
		r = kvpd_find_block(q, &t, &id);
		return r < 0 ? r : found(n, t, id);
	}
	t = q->l->tenant[n->facts.tenant];
	id = n->facts.block;
	if (!t || t->number != n->number || kvp_word_birth(kvpd_block_word(t, id)) != n->birth)
		return kvpd_request_fail(q, -ENOENT, "the block went while it was looked at");
	if (n->phase == LOOKING) {
		if (!kvpd_lease_look_reached(t, KVPD_LOOK_CHAINS, n->look))
			return -EINPROGRESS;
		n->leased = kvpd_leased(t, KVPD_LOOK_CHAINS, id);
		n->phase = CLIMBING;
	}
	if (!climb(q, t, n))
		return -EINPROGRESS;
	n->salted = kvp_recipe_salt(&t->view, n->first, kvpd_block_word(t, n->first), n->salt) > 0;
	return 0;
}

/* As the caller had it: bytes in the machine's order. */
static json_t *salt_json(const struct inspection *n)
{
	const uint8_t *bytes = (const uint8_t *)n->salt;
	char text[2 * sizeof(n->salt) + 1];

	if (!n->salted)
		return json_null();
	for (uint32_t i = 0; i < sizeof(n->salt); i++)
		snprintf(text + (size_t)2 * i, 3, "%02x", bytes[i]);
	return json_string(text);
}

static json_t *inspection_json(const struct inspection *n)
{
	json_t *o = kvpd_facts_json(&n->facts, n->tenant), *list = json_array();

	kvpd_put_bool(o, "leased", n->leased);
	kvpd_put_bool(o, "granted", n->kept & KVPD_KEPT_GRANTED);
	kvpd_put_bool(o, "moving", n->kept & KVPD_KEPT_MOVING);
	for (int i = 0; i < n->n_tokens; i++)
		json_array_append_new(list, json_integer((json_int_t)n->token[i]));
	json_object_set_new(o, "token_ids", list);
	json_object_set_new(o, "salt", salt_json(n));
	list = json_array();
	for (uint32_t i = 0; i < n->n_ancestors; i++) {
		char key[KVPD_KEY_TEXT];

		kvpd_key_text(n->ancestor[i], key);
		json_array_append_new(list, json_string(key));
	}
	json_object_set_new(o, "ancestors", list);
	return o;
}

static int finish(struct kvpd_request *q, int result)
{
	struct inspection *n = q->own;

	if (result == 0)
		json_object_set_new(q->answer, "block", inspection_json(n));
	if (n)
		free(n->ancestor);
	free(n);
	return result;
}

const struct kvpd_verb kvpd_verb_inspect = {
	.name = "inspect",
	.prepare = prepare,
	.step = inspect_step,
	.finish = finish,
};

/* ---- pins ----------------------------------------------------------------------------------- */

static int set_pin(struct kvpd_request *q, bool pin)
{
	struct kvpd_facts facts;
	struct kvpd_tenant *t;
	struct kvp_block *b;
	uint32_t id, flags;
	int r = kvpd_find_block(q, &t, &id);

	if (r < 0)
		return r;
	if (pin && kvpd_block_state(t, id) != KVP_BLOCK_LIVE)
		return kvpd_request_fail(q, -ENOENT, "the block has no payload that could be kept");
	b = &t->view.blocks[id];
	flags = kvp_load_relaxed(&b->flags) & ~KVP_BLOCK_F_PINNED;
	kvp_store_relaxed(&b->flags, pin ? flags | KVP_BLOCK_F_PINNED : flags);
	kvpd_facts_read(t, id, &facts);
	json_object_set_new(q->answer, "block", kvpd_facts_json(&facts, t->name));
	return 0;
}

static int pin_step(struct kvpd_request *q)
{
	return set_pin(q, true);
}

static int unpin_step(struct kvpd_request *q)
{
	return set_pin(q, false);
}

const struct kvpd_verb kvpd_verb_pin = { .name = "pin", .step = pin_step };
const struct kvpd_verb kvpd_verb_unpin = { .name = "unpin", .step = unpin_step };
