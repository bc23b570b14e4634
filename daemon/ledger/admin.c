/* SPDX-License-Identifier: Apache-2.0 */
/* Administration of the data plane: JSON in, JSON out. See docs/admin.md. */
#include "daemon/ledger/admin.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/clock.h"
#include "daemon/dataplane.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"

static const struct kvpd_verb *const verbs[] = {
	&kvpd_verb_blocks,
	&kvpd_verb_inspect,
	&kvpd_verb_pin,
	&kvpd_verb_unpin,
	&kvpd_verb_evict,
	&kvpd_verb_drain,
	&kvpd_verb_check,
};

/* ---- what verbs use ------------------------------------------------------------------------- */

int kvpd_request_fail(struct kvpd_request *q, int error, const char *format, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	kvpd_put_text(q->answer, "error", text);
	return error;
}

const char *kvpd_request_text(const struct kvpd_request *q, const char *name)
{
	return json_string_value(json_object_get(q->json, name));
}

bool kvpd_request_flag(const struct kvpd_request *q, const char *name)
{
	return json_is_true(json_object_get(q->json, name));
}

uint64_t kvpd_request_int(const struct kvpd_request *q, const char *name, uint64_t otherwise)
{
	const json_t *v = json_object_get(q->json, name);

	return json_is_integer(v) && json_integer_value(v) >= 0 ? (uint64_t)json_integer_value(v)
								: otherwise;
}

struct kvpd_tenant *kvpd_request_tenant(struct kvpd_request *q)
{
	for (; q->tenant <= KVPD_MAX_TENANTS; q->tenant++, q->at = 0) {
		struct kvpd_tenant *t = q->l->tenant[q->tenant];

		if (t && (!q->only || !strcmp(q->only, t->name)))
			return t;
	}
	return NULL;
}

bool kvpd_request_over(const struct kvpd_request *q)
{
	return kvpd_now_ns() >= q->until_ns;
}

/* ---- portions ------------------------------------------------------------------------------- */

struct portion {
	struct kvpd_request *request;
	const struct kvpd_verb *verb;
};

static int step_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct portion *p = arg;
	struct kvpd_request *q = p->request;

	q->l = l;
	q->until_ns = kvpd_now_ns() + KVPD_SLICE_NS;
	if (!q->begun && q->only && !kvpd_tenant_find(l, q->only))
		return kvpd_request_fail(q, -ENOENT, "there is no tenant '%s'", q->only);
	q->begun = true;
	return p->verb->step(q);
}

static int run(struct kvpd_ledger *ledger, struct kvpd_request *q, const struct kvpd_verb *verb)
{
	struct portion portion = { .request = q, .verb = verb };
	int r;

	do {
		r = verb->prepare ? verb->prepare(q) : 0;
		if (r == 0)
			r = kvpd_ledger_ask(ledger, step_on_ledger, &portion);
	} while (r == -EINPROGRESS);
	return verb->finish ? verb->finish(q, r) : r;
}

int kvpd_admin(struct kvpd_ledger *ledger, const json_t *request, json_t **ret_answer)
{
	struct kvpd_request q = { .json = request, .answer = json_object(), .tenant = 1 };
	const char *name = kvpd_request_text(&q, "verb");
	const struct kvpd_verb *verb = NULL;
	int r;

	if (!q.answer)
		return -ENOMEM;
	q.only = kvpd_request_text(&q, "tenant");
	for (size_t i = 0; name && i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(name, verbs[i]->name))
			verb = verbs[i];
	if (verb)
		r = run(ledger, &q, verb);
	else
		r = kvpd_request_fail(&q, -EOPNOTSUPP, "unknown verb '%s'", name ? name : "");
	*ret_answer = q.answer;
	return r;
}
