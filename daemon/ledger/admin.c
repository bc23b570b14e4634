/* SPDX-License-Identifier: Apache-2.0 */
/* Administration of the data plane: JSON in, JSON out. See docs/admin.md. */
#include "daemon/ledger/admin.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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
	&kvpd_verb_space_set,
	&kvpd_verb_device_drain,
	&kvpd_verb_device_detach,
	&kvpd_verb_device_attach,
	&kvpd_verb_device_left,
	&kvpd_verb_what_if,
	&kvpd_verb_thresholds,
	&kvpd_verb_thresholds_import,
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

		if (!t || (q->only && strcmp(q->only, t->name)) ||
			(q->seen == q->tenant && q->number != t->number))
			continue;
		q->seen = q->tenant;
		q->number = t->number;
		return t;
	}
	return NULL;
}

bool kvpd_request_over(const struct kvpd_request *q)
{
	return kvpd_now_ns() >= q->until_ns;
}

/* ---- portions ------------------------------------------------------------------------------- */

static int step_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct kvpd_request *q = arg;

	q->l = l;
	q->until_ns = kvpd_now_ns() + KVPD_SLICE_NS;
	if (!q->begun && q->only && !q->verb->absent && !kvpd_tenant_find(l, q->only))
		return kvpd_request_fail(q, -ENOENT, "there is no tenant '%s'", q->only);
	q->begun = true;
	return q->verb->step(q);
}

static int finish(struct kvpd_request *q, int result)
{
	const struct kvpd_verb *verb = q->verb;

	q->verb = NULL;
	return verb->finish ? verb->finish(q, result) : result;
}

int kvpd_admin_begin(json_t *request, struct kvpd_request **ret_request)
{
	struct kvpd_request *q = calloc(1, sizeof(*q));
	json_t *answer = json_object();
	const char *name;

	if (!q || !answer) {
		free(q);
		json_decref(answer);
		return -ENOMEM;
	}
	*q = (struct kvpd_request){ .json = json_incref(request), .answer = answer, .tenant = 1 };
	q->only = kvpd_request_text(q, "tenant");
	name = kvpd_request_text(q, "verb");
	for (size_t i = 0; name && i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(name, verbs[i]->name))
			q->verb = verbs[i];
	*ret_request = q;
	return 0;
}

int kvpd_admin_step(struct kvpd_ledger *ledger, struct kvpd_request *q)
{
	const char *name = kvpd_request_text(q, "verb");
	int r = 0;

	if (!q->verb)
		return kvpd_request_fail(q, -EOPNOTSUPP, "unknown verb '%s'", name ? name : "");
	if (!q->walked) {
		r = q->verb->prepare ? q->verb->prepare(q) : 0;
		if (r == 0)
			r = kvpd_ledger_ask(ledger, step_on_ledger, q);
		q->walked = r == 0;
	}
	if (q->walked && q->verb->arrange)
		r = q->verb->arrange(q);
	return r == -EINPROGRESS ? r : finish(q, r);
}

const char *kvpd_admin_list(const struct kvpd_request *q, uint32_t *ret_rows)
{
	*ret_rows = q->rows.n;
	return q->rows.name;
}

json_t *kvpd_admin_row(const struct kvpd_request *q, uint32_t row)
{
	return q->rows.row(q->rows.found, row);
}

json_t *kvpd_admin_end(struct kvpd_request *q)
{
	json_t *answer = q->answer;

	if (q->verb)
		(void)finish(q, -ECANCELED);
	free(q->rows.found);
	json_decref(q->json);
	free(q);
	return answer;
}
