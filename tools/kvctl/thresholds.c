/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl thresholds: what quality windows have learnt, shown, and carried to files and back. */
#include "tools/kvctl/kvctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/kvt_file.h"

#define STEP_MS   10 /* between two looks whether the answer is there */
#define PART      32u /* rows of a request; the names in them may take 6 letters for each of theirs */
#define FILE_MOST ((size_t)64 << 20)
#define FORMAT    1

static const struct kvctl_column columns[] = {
	{ "tenant", "TENANT", KVCTL_TEXT, 1 },
	{ "model", "MODEL", KVCTL_TEXT, 0 },
	{ "layer", "LAYER", KVCTL_TEXT, 0 },
	{ "context_tokens", "CONTEXT", KVCTL_COUNT, 0 },
	{ "bits", "BITS", KVCTL_COUNT, 0 },
	{ "quality_ratio", "QUALITY%", KVCTL_PERCENT, 0 },
	{ "scores", "SCORES", KVCTL_COUNT, 2 },
	{ "origin", "ORIGIN", KVCTL_TEXT, 0 },
	{ "layers", "LAYERS", KVCTL_COUNT, 4 },
	{ "kv_heads", "HEADS", KVCTL_COUNT, 4 },
	{ "head_dim", "DIM", KVCTL_COUNT, 4 },
	{ "id", "ID", KVCTL_KEY, 3 },
	{ 0 },
};

/* ---- asking ---------------------------------------------------------------------------------- */

static json_t *request_of(const char *verb, const json_t *given, json_t *number)
{
	json_t *request = kvctl_request(verb, NULL);

	if (json_object_get(given, "tenant"))
		json_object_set(request, "tenant", json_object_get(given, "tenant"));
	if (number)
		json_object_set(request, "asked", number);
	return request;
}

/* The answer to the question that *ret_answer, which is taken, has the number of. */
static int await(struct kvctl *ctl, const char *verb, const json_t *given, json_t **ret_answer)
{
	json_t *number = json_incref(json_object_get(*ret_answer, "asked"));
	uint32_t waited = 0;
	int r = 0;

	for (;;) {
		json_decref(*ret_answer);
		r = kvctl_ask(ctl, request_of(verb, given, number), ret_answer);
		if (r < 0 || kvctl_number(*ret_answer, "waiting") == 0)
			break;
		if (waited >= ctl->timeout_ms) {
			r = -ETIMEDOUT;
			break;
		}
		kvctl_nap_ms(STEP_MS);
		waited += STEP_MS;
	}
	json_decref(number);
	return r;
}

static int ask_list(struct kvctl *ctl, const json_t *given, json_t **ret_answer)
{
	int r = kvctl_ask(ctl, request_of("thresholds", given, NULL), ret_answer);

	return r < 0 ? r : await(ctl, "thresholds", given, ret_answer);
}

static int failed(struct kvctl *ctl, int error, const json_t *answer)
{
	if (error == -ETIMEDOUT)
		return kvctl_fail(ctl, "thresholds", KVCTL_BAD,
			"the daemon's disk did not answer in time; give it longer with --timeout");
	return kvctl_refused(ctl, "thresholds", error, answer);
}

/* ---- list, export ---------------------------------------------------------------------------- */

static int list(struct kvctl *ctl, const json_t *given)
{
	json_t *answer = NULL, *row;
	int r = ask_list(ctl, given, &answer);
	size_t i;

	if (r < 0) {
		r = failed(ctl, r, answer);
	} else if (ctl->json) {
		kvctl_print_json(answer);
	} else {
		json_array_foreach(json_object_get(answer, "thresholds"), i, row) {
			char layer[24] = "all";

			if (json_is_integer(json_object_get(row, "layer")))
				snprintf(layer, sizeof(layer), "%.0f", kvctl_number(row, "layer"));
			json_object_set_new(row, "layer", json_string(layer));
		}
		kvctl_print_table(stdout, json_object_get(answer, "thresholds"), columns,
			"nothing was learnt yet: no space that accepts fewer bits has had 20 "
			"scores");
	}
	json_decref(answer);
	return r;
}

static int export_to(struct kvctl *ctl, const json_t *given, const char *path)
{
	json_t *answer = NULL, *document;
	size_t n;
	char *text = NULL;
	int r = ask_list(ctl, given, &answer);

	if (r < 0) {
		r = failed(ctl, r, answer);
		json_decref(answer);
		return r;
	}
	n = json_array_size(json_object_get(answer, "thresholds"));
	document = json_pack("{s:i, s:O, s:O}", "kvpool_thresholds", FORMAT, "tenant",
		json_object_get(given, "tenant"), "thresholds",
		json_object_get(answer, "thresholds"));
	text = document ? json_dumps(document, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
	r = text ? kvt_file_replace(path, text, strlen(text)) : -ENOMEM;
	free(text);
	json_decref(document);
	json_decref(answer);
	if (r < 0)
		return kvctl_fail(ctl, "thresholds", KVCTL_BAD, "%s: %s", path, strerror(-r));
	if (ctl->json) {
		document = json_pack("{s:I}", "exported", (json_int_t)n);
		kvctl_print_json(document);
		json_decref(document);
	} else {
		printf("%zu rows exported\n", n);
	}
	return KVCTL_OK;
}

/* ---- import ---------------------------------------------------------------------------------- */

/* NULL, and *ret_status: why not has been said. */
static json_t *load(struct kvctl *ctl, const char *path, int *ret_status)
{
	json_t *document = NULL;
	void *text = NULL;
	json_error_t at;
	size_t n = 0;
	int r = kvt_file_read(path, FILE_MOST, &text, &n);

	*ret_status = KVCTL_OK;
	if (r < 0) {
		*ret_status =
			kvctl_fail(ctl, "thresholds", KVCTL_BAD, "%s: %s", path, strerror(-r));
		return NULL;
	}
	document = json_loadb(text, n, JSON_REJECT_DUPLICATES, &at);
	free(text);
	if (!document || kvctl_number(document, "kvpool_thresholds") != FORMAT ||
		!json_is_array(json_object_get(document, "thresholds"))) {
		*ret_status = kvctl_fail(ctl, "thresholds", KVCTL_BAD,
			"%s is no file that \"kvctl thresholds export\" of this release writes%s%s",
			path, document ? "" : ": ", document ? "" : at.text);
		json_decref(document);
		return NULL;
	}
	return document;
}

/* Part after part; the daemon keeps nothing of it before the last one has come and all of it is good. */
static int send_rows(
	struct kvctl *ctl, const json_t *given, const json_t *rows, json_t **ret_answer)
{
	size_t n = json_array_size(rows), at = 0;
	json_t *number = NULL;
	int r = 0;

	*ret_answer = NULL;
	do {
		json_t *request = request_of("thresholds-import", given, number),
		       *part = json_array();

		for (size_t i = 0; i < PART && at < n; i++)
			json_array_append(part, json_array_get(rows, at++));
		json_object_set_new(request, "rows", part);
		if (at == n)
			json_object_set_new(request, "last", json_true());
		json_decref(*ret_answer);
		r = kvctl_ask(ctl, request, ret_answer);
		json_decref(number);
		number = json_incref(json_object_get(*ret_answer, "asked"));
	} while (r == 0 && at < n);
	json_decref(number);
	return r < 0 ? r : await(ctl, "thresholds-import", given, ret_answer);
}

static int import_from(struct kvctl *ctl, const json_t *given, const char *path)
{
	json_t *document, *answer = NULL;
	int r = 0;

	document = load(ctl, path, &r);
	if (!document)
		return r;
	r = send_rows(ctl, given, json_object_get(document, "thresholds"), &answer);
	if (r < 0)
		r = failed(ctl, r, answer);
	else if (ctl->json)
		kvctl_print_json(answer);
	else
		printf("%.0f rows imported; spaces that are opened from now on begin with them\n",
			kvctl_number(answer, "imported"));
	json_decref(answer);
	json_decref(document);
	return r;
}

int kvctl_thresholds(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	const char *action = kvctl_text(given, "action"), *path = kvctl_text(given, "file");
	bool lists = !strcmp(action, "list");

	if (lists && *path)
		return kvctl_fail(
			ctl, command->name, KVCTL_USAGE, "list takes no file: '%s'", path);
	if (lists)
		return list(ctl, given);
	if (!*path)
		return kvctl_fail(ctl, command->name, KVCTL_USAGE, "%s needs a file: %s FILE",
			action, action);
	if (!json_object_get(given, "tenant"))
		return kvctl_fail(ctl, command->name, KVCTL_USAGE,
			"whose? Give --tenant NAME (kvctl thresholds list shows them)");
	return !strcmp(action, "export") ? export_to(ctl, given, path)
					 : import_from(ctl, given, path);
}
