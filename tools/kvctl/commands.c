/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of kvctl that are a question and its answer. */
#include "tools/kvctl/kvctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/kvpool_admin.h"

/* ---- lists --------------------------------------------------------------------------------- */

static const struct kvctl_column space_columns[] = {
	{ "tenant", "TENANT", KVCTL_TEXT, 0 },
	{ "space", "SPACE", KVCTL_COUNT, 0 },
	{ "model", "MODEL", KVCTL_TEXT, 0 },
	{ "adapter", "ADAPTER", KVCTL_TEXT, 6 },
	{ "blocks", "BLOCKS", KVCTL_COUNT, 0 },
	{ "payload_bytes", "PAYLOAD", KVCTL_BYTES, 0 },
	{ "coded_blocks", "CODED", KVCTL_COUNT, 4 },
	{ "floor", "FLOOR", KVCTL_TEXT, 5 },
	{ "put_tokens_total", "PUT", KVCTL_COUNT, 3 },
	{ "asked_tokens_total", "ASKED", KVCTL_COUNT, 3 },
	{ "hit_ratio", "HIT%", KVCTL_PERCENT, 1 },
	{ "hit_ratio_now", "NOW%", KVCTL_PERCENT, 1 },
	{ "evictions_total", "EVICTIONS", KVCTL_COUNT, 3 },
	{ "coding_bits", "BITS", KVCTL_COUNT, 5 },
	{ "quality_ratio", "QUALITY%", KVCTL_PERCENT, 5 },
	{ "asked_rate", "ASKED/S", KVCTL_RATE, 9 },
	{ "put_rate", "PUT/S", KVCTL_RATE, 9 },
	{ "evictions_rate", "EVICTED/S", KVCTL_RATE, 9 },
	{ "bytes_rate", "PAYLOAD/S", KVCTL_BYTES, 9 },
	{ "precision", "PRECISION", KVCTL_TEXT, 4 },
	{ "dram_bytes", "DRAM", KVCTL_BYTES, 5 },
	{ "blocks_native", "NATIVE", KVCTL_COUNT, 9 },
	{ "blocks_8_bits", "8BIT", KVCTL_COUNT, 9 },
	{ "blocks_4_bits", "4BIT", KVCTL_COUNT, 9 },
	{ "blocks_3_bits", "3BIT", KVCTL_COUNT, 9 },
	{ "blocks_2_bits", "2BIT", KVCTL_COUNT, 9 },
	{ "opens", "OPEN", KVCTL_COUNT, 2 },
	{ "layers", "LAYERS", KVCTL_COUNT, 7 },
	{ "block_tokens", "TOKENS", KVCTL_COUNT, 5 },
	{ "block_bytes", "BLOCK", KVCTL_BYTES, 4 },
	{ "fingerprint", "FINGERPRINT", KVCTL_KEY, 8 },
	{ 0 },
};

static const struct kvctl_column block_columns[] = {
	{ "key", "KEY", KVCTL_KEY, 0 },
	{ "tenant", "TENANT", KVCTL_TEXT, 0 },
	{ "space", "SPACE", KVCTL_COUNT, 2 },
	{ "state", "STATE", KVCTL_TEXT, 0 },
	{ "depth", "DEPTH", KVCTL_COUNT, 3 },
	{ "tokens", "TOKENS", KVCTL_COUNT, 4 },
	{ "bytes", "BYTES", KVCTL_BYTES, 1 },
	{ "hits", "HITS", KVCTL_COUNT, 1 },
	{ "children", "CHILDREN", KVCTL_COUNT, 5 },
	{ "pinned", "PINNED", KVCTL_FLAG, 1 },
	{ 0 },
};

static const struct kvctl_column *columns_of(const char *list)
{
	return !strcmp(list, "blocks")    ? block_columns
	       : !strcmp(list, "spaces")  ? space_columns
	       : !strcmp(list, "clients") ? kvctl_client_columns
					  : kvctl_tenant_columns;
}

/* The list is called as the command is. */
int kvctl_list(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	json_t *answer = NULL, *list;
	double total;
	int r = kvctl_ask(ctl, kvctl_request(command->name, given), &answer);

	list = json_object_get(answer, command->name);
	total = kvctl_number(answer, "total");
	if (ctl->json) {
		kvctl_print_json(answer);
	} else if (r < 0) {
		kvctl_refused(ctl, command->name, r, answer);
	} else {
		kvctl_add_ratios(list);
		kvctl_print_table(stdout, list, columns_of(command->name), "none");
		if (total > (double)json_array_size(list))
			printf("%zu of %.0f; --limit N lists more\n", json_array_size(list), total);
	}
	json_decref(answer);
	return r < 0 ? KVCTL_BAD : KVCTL_OK;
}

/* ---- one block, and requests that change something ----------------------------------------- */

/* "2 leased, 1 pinned": counts by name, those that are not 0. */
static void print_counts(const char *name, const json_t *counts)
{
	const char *what, *comma = "";
	json_t *n;

	printf("%-14s ", name);
	json_object_foreach((json_t *)counts, what, n) {
		if (json_number_value(n) == 0)
			continue;
		printf("%s%.0f %s", comma, json_number_value(n), what);
		comma = ", ";
	}
	puts(*comma ? "" : "none");
}

/* Where a payload lies: "device 0, extent 3, offset 4096, ..." */
static void print_place(const char *name, const json_t *place)
{
	const char *what, *comma = "";
	json_t *v;

	printf("%-14s ", name);
	json_object_foreach((json_t *)place, what, v) {
		char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);

		printf("%s%s %s", comma, what,
			json_is_string(v) ? json_string_value(v)
			: text            ? text
					  : "");
		free(text);
		comma = ", ";
	}
	puts("");
}

/* Prints a member per line, for a person to read. */
static void print_object(const json_t *object)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)object, key, value) {
		char shown[512];

		if (json_is_string(value)) {
			kvctl_printable(
				json_string_value(value), (int)sizeof(shown), shown, sizeof(shown));
			printf("%-14s %s\n", key, shown);
		} else if (json_object_get(value, "extent")) {
			print_place(key, value);
		} else if (json_is_object(value)) {
			print_counts(key, value);
		} else {
			char *text = json_dumps(value,
				JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(12));

			printf("%-14s %s\n", key, text ? text : "");
			free(text);
		}
	}
}

/* Sends the request and prints the answer, or a member of it. */
static int request_and_print(
	struct kvctl *ctl, const char *command, json_t *request, const char *member)
{
	json_t *answer = NULL, *shown;
	int r = kvctl_ask(ctl, request, &answer);

	shown = member ? json_object_get(answer, member) : answer;
	if (ctl->json)
		kvctl_print_json(answer);
	else if (r < 0)
		kvctl_refused(ctl, command, r, answer);
	else
		print_object(shown ? shown : answer);
	json_decref(answer);
	return r < 0 ? KVCTL_BAD : KVCTL_OK;
}

int kvctl_one_block(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	return request_and_print(ctl, command->name, kvctl_request(command->name, given), "block");
}

int kvctl_evict(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	int ways = !!json_object_get(given, "key") + !!json_object_get(given, "count") +
		   !!json_object_get(given, "all");

	if (ways != 1)
		return kvctl_fail(ctl, command->name, KVCTL_USAGE,
			"give %sa key, --count N or --all", ways ? "only one of: " : "");
	return request_and_print(ctl, command->name, kvctl_request(command->name, given), NULL);
}

int kvctl_drain(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	return request_and_print(ctl, command->name, kvctl_request(command->name, given), NULL);
}

/* ---- a space's rule ------------------------------------------------------------------------- */

int kvctl_space(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	return request_and_print(ctl, command->name, kvctl_request("space-set", given), "space");
}

/* ---- check --------------------------------------------------------------------------------- */

/* Adds the findings of a further answer. */
static void add_findings(json_t *sum, const json_t *answer)
{
	double found = kvctl_number(sum, "problems_found") + kvctl_number(answer, "problems_found");

	json_array_extend(json_object_get(sum, "problems"), json_object_get(answer, "problems"));
	json_object_set_new(sum, "problems_found", json_integer((json_int_t)found));
	json_object_set_new(sum, "clean", json_boolean(!found));
}

/* A figure of all tenants' parts of all devices. */
static double of_devices(const json_t *answer, const char *name)
{
	json_t *device, *part;
	double sum = 0;
	size_t i, k;

	json_array_foreach(json_object_get(answer, "devices"), i, device)
		json_array_foreach(json_object_get(device, "tenants"), k, part)
			sum += kvctl_number(part, name);
	return sum;
}

/* NULL: a daemon that knows nothing of devices. */
static json_t *ask_devices(struct kvctl *ctl, const json_t *given)
{
	json_t *answer = NULL;

	if (kvctl_ask(ctl, kvctl_request("devices", given), &answer) == 0)
		return answer;
	json_decref(answer);
	return NULL;
}

/* Payloads on devices that do not match their checksums are a problem, too. */
static void add_damaged(json_t *sum)
{
	double n = kvctl_number(sum, "device_damaged");
	char text[160];

	if (n <= 0)
		return;
	snprintf(text, sizeof(text),
		"%.0f payloads on devices do not match their checksums; the daemon's log names "
		"them",
		n);
	json_array_append_new(json_object_get(sum, "problems"), json_string(text));
	n += kvctl_number(sum, "problems_found");
	json_object_set_new(sum, "problems_found", json_integer((json_int_t)n));
	json_object_set_new(sum, "clean", json_false());
}

/* What the workers of devices found since `before`, when they are through. True: damage. */
static bool await_devices(struct kvctl *ctl, const json_t *given, const json_t *before, json_t *sum)
{
	static const struct {
		const char *figure, *member;
	} what[] = { { "verified_total", "device_verified" },
		{ "unverified_total", "device_unverified" },
		{ "damaged_total", "device_damaged" } };
	json_t *after = before ? ask_devices(ctl, given) : NULL;

	while (after && of_devices(after, "verifying") > 0) {
		kvctl_nap_ms(20);
		json_decref(after);
		after = ask_devices(ctl, given);
	}
	for (size_t i = 0; after && i < sizeof(what) / sizeof(what[0]); i++) {
		double n = of_devices(after, what[i].figure) - of_devices(before, what[i].figure);

		json_object_set_new(sum, what[i].member, json_integer((json_int_t)n));
	}
	json_decref(after);
	add_damaged(sum);
	return kvctl_number(sum, "device_damaged") > 0;
}

/*
 * Contents, slice by slice: the daemon serves others in between. 0, -EBADMSG if it found
 * something; else the request was refused, and sum has its "error".
 */
static int check_payloads(struct kvctl *ctl, const json_t *given, json_t *sum)
{
	double whole = kvctl_number(sum, "bytes"), done = 0;
	bool tty = isatty(STDERR_FILENO) && !ctl->json, found = false;
	json_t *next = json_integer(0), *before = ask_devices(ctl, given), *answer;
	char a[32], b[32];
	int r;

	do {
		json_t *request = kvctl_request("check", given);

		json_object_set_new(request, "from", next);
		r = kvctl_ask(ctl, request, &answer);
		next = json_incref(json_object_get(answer, "next"));
		if (json_object_get(answer, "problems")) {
			found = found || r < 0;
			r = 0;
			add_findings(sum, answer);
		} else {
			json_object_set(sum, "error", json_object_get(answer, "error"));
		}
		done += kvctl_number(answer, "bytes");
		if (json_is_true(json_object_get(answer, "busy")))
			kvctl_nap_ms(2);
		if (tty)
			fprintf(stderr, "\r%s of %s", kvctl_bytes(done, a), kvctl_bytes(whole, b));
		json_decref(answer);
	} while (r == 0 && next);
	json_decref(next);
	if (r == 0 && await_devices(ctl, given, before, sum))
		found = true;
	json_decref(before);
	if (tty)
		fputs("\r\033[K", stderr);
	json_object_set_new(sum, "verified_bytes", json_integer((json_int_t)done));
	return r < 0 ? r : found ? -EBADMSG : 0;
}

static void print_findings(const json_t *answer)
{
	json_t *problem;
	size_t i;

	json_array_foreach(json_object_get(answer, "problems"), i, problem)
		printf("%s\n", json_string_value(problem));
	printf("%.0f problems in %.0f blocks\n", kvctl_number(answer, "problems_found"),
		kvctl_number(answer, "blocks"));
}

int kvctl_check(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	bool payloads = json_object_get(given, "payloads") != NULL;
	json_t *narrowed = json_copy((json_t *)given), *answer = NULL;
	int r;

	json_object_del(narrowed, "payloads");
	r = kvctl_ask(ctl, kvctl_request("check", narrowed), &answer);
	if (payloads && json_object_get(answer, "problems")) {
		int found = check_payloads(ctl, narrowed, answer);

		r = r < 0 && found == 0 ? r : found;
	}
	if (ctl->json)
		kvctl_print_json(answer);
	else if (json_object_get(answer, "error"))
		kvctl_refused(ctl, command->name, r, answer);
	else if (r < 0)
		print_findings(answer);
	else
		printf("clean: %.0f blocks\n", kvctl_number(answer, "blocks"));
	if (!ctl->json && kvctl_number(answer, "unsettled") > 0)
		printf("sums were not compared in %.0f tenants, which changed meanwhile; try again "
		       "when they are less busy\n",
			kvctl_number(answer, "unsettled"));
	json_decref(answer);
	json_decref(narrowed);
	return r < 0 ? KVCTL_BAD : KVCTL_OK;
}

/* ---- version ------------------------------------------------------------------------------- */

int kvctl_version(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	json_t *answer = NULL;
	int r = kvctl_try(ctl, kvctl_request(command->name, given), &answer);

	if (ctl->json) {
		json_t *o = json_pack("{s:s, s:o}", "kvctl", kvp_version(), "kvpoold",
			r == 0 ? json_incref(answer) : json_null());

		kvctl_print_json(o);
		json_decref(o);
	} else {
		printf("kvctl %s\n", kvp_version());
		if (r == 0)
			printf("kvpoold %s (ABI %.0f)\n", kvctl_text(answer, "version"),
				kvctl_number(answer, "abi"));
		else
			printf("kvpoold: none that answers\n");
	}
	json_decref(answer);
	return KVCTL_OK;
}
