/* SPDX-License-Identifier: Apache-2.0 */
/* The verb space-set: an administrator gives a space a rule of its own, see budget.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/config_value.h"
#include "daemon/ledger/admin.h"
#include "daemon/ledger/budget.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/space.h"
#include "daemon/ledger/tenant.h"

#define DIGITS_MIN 8u /* of a fingerprint, where that names a space */

struct setting {
	uint32_t found; /* spaces of this name, */
	uint64_t number;
	uint32_t tenant, space, generation; /* and the last of them */
};

static int prepare(struct kvpd_request *q)
{
	if (!q->own)
		q->own = calloc(1, sizeof(struct setting));
	return q->own ? 0 : -ENOMEM;
}

static void fingerprint_text(const struct kvp_shm_space *s, char out[65])
{
	for (uint32_t i = 0; i < sizeof(s->fingerprint); i++)
		snprintf(out + (size_t)2 * i, 3, "%02x", s->fingerprint[i]);
}

/* Is it called so: by its model's name, or by the beginning of its fingerprint? */
static bool is_called(const struct kvp_shm_space *s, const char *name)
{
	char digits[65];

	if (!strncmp(s->canon.model, name, sizeof(s->canon.model)))
		return true;
	fingerprint_text(s, digits);
	return strlen(name) >= DIGITS_MIN && !strncasecmp(digits, name, strlen(name));
}

/* False: the portion is over. */
static bool find(struct kvpd_request *q, const char *name)
{
	struct setting *n = q->own;
	struct kvpd_tenant *t;

	for (; (t = kvpd_request_tenant(q)); q->tenant++) {
		if (kvpd_request_over(q))
			return false;
		for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
			const struct kvp_shm_space *s = &t->view.spaces[i];

			if (kvp_load_relaxed(&s->state) != KVP_SPACE_LIVE || !is_called(s, name))
				continue;
			n->found++;
			n->tenant = t->id;
			n->number = t->number;
			n->space = i;
			n->generation = s->generation;
		}
	}
	return true;
}

/* A member of the request as the configuration would have it: text, or a number. NULL: not given. */
static const char *given(const struct kvpd_request *q, const char *name, char buf[64])
{
	const json_t *v = json_object_get(q->json, name);

	if (json_is_string(v))
		return json_string_value(v);
	if (!json_is_number(v))
		return v ? "" : NULL;
	snprintf(buf, 64, "%.9g", json_number_value(v));
	return buf;
}

#define NAMES (2 * KVP_CODEC_NAME_MAX)

/* "tq4/tq2": the codecs of keys and values that a width means. */
static const char *name_width(const struct kvp_space_canon *canon, uint32_t width, char ret[NAMES])
{
	char name_k[KVP_CODEC_NAME_MAX] = "", name_v[KVP_CODEC_NAME_MAX] = "";
	uint32_t k, v;

	if (kvp_payload_codecs(canon, width, &k, &v) == 0) {
		(void)kvp_codec_name(k, name_k);
		(void)kvp_codec_name(v, name_v);
	}
	snprintf(ret, NAMES, "%s/%s", name_k, name_v);
	return ret;
}

/* A floor above the owner's. */
static int read_floor(
	struct kvpd_request *q, const struct kvp_space_canon *canon, struct kvpd_rule *rule)
{
	char buf[64], own[NAMES];
	const char *floor = given(q, "floor", buf);
	uint32_t k = KVP_CODEC_NATIVE, v = KVP_CODEC_NATIVE;
	int r = 0;

	if (!floor)
		return 0;
	if (strcmp(floor, "exact") != 0)
		r = kvp_codec_parse_pair(floor, &k, &v);
	if (r < 0)
		return kvpd_request_fail(q, -EINVAL,
			"there is no codec '%.40s'; exact, int8, tq4, 4bit or tq4/tq2 are some, "
			"docs/formats.md has all",
			floor);
	r = kvp_payload_width_of(canon, k, v, &rule->lowest);
	if (r == -ERANGE)
		return kvpd_request_fail(q, -EOPNOTSUPP,
			"%.40s is less than its engine accepts, which is %s", floor,
			name_width(canon, kvp_payload_lowest(canon), own));
	if (r < 0)
		return kvpd_request_fail(q, r, "its blocks cannot be coded in %.40s", floor);
	rule->bounded = true;
	return 0;
}

/* What the request says, by the bounds of the configuration; what it does not say stays. */
static int read_rule(struct kvpd_request *q, struct kvpd_rule *rule)
{
	char error[256] = "", buf[64];
	struct kvpd_complaint to = {
		.name = "space-set", .error = error, .error_bytes = sizeof(error)
	};
	unsigned policy = rule->policy;
	int r = kvpd_value_word(
		&to, "precision", given(q, "precision", buf), kvpd_rule_words, &policy);

	if (r == 0)
		r = kvpd_value_share(&to, "budget", given(q, "budget", buf), KVPD_BUDGET_LEAST,
			KVPD_BUDGET_MOST, &rule->budget);
	if (r == 0)
		r = kvpd_value_u32(&to, "hot_tokens", given(q, "hot_tokens", buf), 1,
			KVPD_ZONE_MOST, &rule->hot_tokens);
	if (r == 0)
		r = kvpd_value_u32(&to, "stale_tokens", given(q, "stale_tokens", buf), 1,
			KVPD_ZONE_MOST, &rule->stale_tokens);
	if (r < 0)
		return kvpd_request_fail(q, r, "%s", error);
	rule->policy = policy;
	if (rule->hot_tokens > rule->stale_tokens)
		return kvpd_request_fail(q, -EINVAL,
			"hot_tokens (%u) is more than stale_tokens (%u)", rule->hot_tokens,
			rule->stale_tokens);
	return 0;
}

static void answer(struct kvpd_request *q, const struct kvpd_tenant *t, uint32_t space)
{
	const struct kvpd_rule *r = &t->space[space].rule;
	uint32_t lowest = kvpd_width_floor(t, space);
	json_t *o = json_object();
	char digits[65], floor[NAMES];

	fingerprint_text(&t->view.spaces[space], digits);
	kvpd_put_text(o, "tenant", t->name);
	kvpd_put_int(o, "space", space);
	kvpd_put_text(o, "fingerprint", digits);
	kvpd_put_text(o, "precision", kvpd_rule_words[r->policy]);
	kvpd_put_text(o, "floor", name_width(&t->view.spaces[space].canon, lowest, floor));
	json_object_set_new(o, "budget", json_real(r->budget / 1e6));
	json_object_set_new(
		o, "budget_least", json_real(kvpd_budget_least(t, space, lowest) / 1e6));
	kvpd_put_int(o, "hot_tokens", r->hot_tokens);
	kvpd_put_int(o, "stale_tokens", r->stale_tokens);
	json_object_set_new(q->answer, "space", o);
}

static int step(struct kvpd_request *q)
{
	const char *name = kvpd_request_text(q, "space");
	struct setting *n = q->own;
	struct kvpd_tenant *t;
	struct kvpd_rule rule;
	uint32_t least, lowest;
	int r;

	if (!name || !*name)
		return kvpd_request_fail(q, -EINVAL,
			"which space? Name its model, or the first 8 digits or more of its "
			"fingerprint");
	if (!find(q, name))
		return -EINPROGRESS;
	if (n->found != 1)
		return n->found
			       ? kvpd_request_fail(q, -EINVAL,
					 "%u spaces are called %s; give digits of the fingerprint, "
					 "or a tenant",
					 n->found, name)
			       : kvpd_request_fail(q, -ENOENT, "no space is called %s", name);
	t = q->l->tenant[n->tenant];
	if (!t || t->number != n->number || t->view.spaces[n->space].generation != n->generation)
		return kvpd_request_fail(q, -ENOENT, "the space went while it was looked for");
	rule = t->space[n->space].rule;
	r = read_rule(q, &rule);
	if (r == 0)
		r = read_floor(q, &t->view.spaces[n->space].canon, &rule);
	if (r < 0)
		return r;
	lowest = kvpd_width_floor_by(t, n->space, &rule);
	if (rule.policy != KVPD_RULE_PRESSURE && !lowest)
		return kvpd_request_fail(q, -EOPNOTSUPP,
			"its blocks stay native: its engine says no floor, or the tenant's "
			"least_bits are 16, or floor is exact, with which precision=pressure goes");
	least = kvpd_budget_least(t, n->space, lowest);
	if (rule.policy == KVPD_RULE_BUDGET && rule.budget < least)
		return kvpd_request_fail(q, -ENOSPC,
			"a budget of %.4g is not possible: what the space's floor and the tenant's "
			"least_bits allow takes %.4g",
			rule.budget / 1e6, least / 1e6);
	kvpd_budget_rule(t, n->space, &rule);
	t->space[n->space].ruled = true;
	kvpd_space_capacity(t);
	answer(q, t, n->space);
	return 0;
}

static int finish(struct kvpd_request *q, int result)
{
	free(q->own);
	return result;
}

const struct kvpd_verb kvpd_verb_space_set = {
	.name = "space-set",
	.prepare = prepare,
	.step = step,
	.finish = finish,
};
