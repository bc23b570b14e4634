/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl what-if: what tenants would hit with other shares. */
#include "tools/kvctl/kvctl.h"

#include <errno.h>
#include <string.h>

#define STEP_MS 10 /* between two looks whether the curves are there */

static const struct kvctl_column columns[] = {
	{ "tenant", "TENANT", KVCTL_TEXT, 0 },
	{ "memory_bytes", "SHARE", KVCTL_BYTES, 0 },
	{ "is_share", "NOW", KVCTL_FLAG, 2 },
	{ "blocks", "BLOCKS", KVCTL_COUNT, 1 },
	{ "tokens", "TOKENS", KVCTL_COUNT, 0 },
	{ "hit_ratio", "HIT%", KVCTL_PERCENT, 0 },
	{ "bytes_per_block", "BLOCK", KVCTL_BYTES, 4 },
	{ "requests_total", "REQUESTS", KVCTL_COUNT, 3 },
	{ "lost_total", "LOST", KVCTL_COUNT, 5 },
	{ 0 },
};

/* The daemon works the curves out behind all else; the answer to the first request says what to wait for. */
static int ask(struct kvctl *ctl, const json_t *given, json_t **ret_answer)
{
	json_t *number, *request;
	uint32_t waited = 0;
	int r = kvctl_ask(ctl, kvctl_request("what-if", given), ret_answer);

	number = json_incref(json_object_get(*ret_answer, "asked"));
	while (r == 0) {
		json_decref(*ret_answer);
		request = kvctl_request("what-if", given);
		json_object_set(request, "asked", number);
		r = kvctl_ask(ctl, request, ret_answer);
		if (r < 0 || kvctl_number(*ret_answer, "waiting") == 0)
			break;
		if (waited >= ctl->timeout_ms)
			r = -ETIMEDOUT;
		kvctl_nap_ms(STEP_MS);
		waited += STEP_MS;
	}
	json_decref(number);
	return r;
}

/* What is to be known of the rows besides, once for each tenant. */
static void print_notes(const json_t *rows)
{
	const char *last = "";
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) {
		char name[256];
		double lost = kvctl_number(row, "lost_total");

		kvctl_printable(kvctl_text(row, "tenant"), (int)sizeof(name), name, sizeof(name));
		if (json_is_true(json_object_get(row, "beyond")))
			printf("%s: the curve ends before %.0f blocks; it hits as much as said, or "
			       "more\n",
				name, kvctl_number(row, "blocks"));
		if (!strcmp(last, kvctl_text(row, "tenant")))
			continue;
		last = kvctl_text(row, "tenant");
		if (kvctl_number(row, "spaces") == 0)
			printf("%s: no engine has opened a space yet, so the size of a block is "
			       "not known\n",
				name);
		else if (json_is_null(json_object_get(row, "hit_ratio")))
			printf("%s: no requests yet; ask again when its engines have looked "
			       "prompts up\n",
				name);
		if (lost > .05 * (kvctl_number(row, "references_total") + lost))
			printf("%s: the curve has missed %.0f events, since the machine was busy\n",
				name, lost);
	}
}

/* Spaces that the floor cannot be of. */
static void print_exact(const json_t *rows)
{
	double exact = 0;
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
		exact = kvctl_number(row, "exact_spaces") > exact
				? kvctl_number(row, "exact_spaces")
				: exact;
	if (exact > 0)
		printf("of %.0f spaces the blocks cannot be coded so, and count as they are\n",
			exact);
}

int kvctl_what_if(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	json_t *answer = NULL, *rows;
	int r = ask(ctl, given, &answer);

	rows = json_object_get(answer, command->name);
	if (r == -ETIMEDOUT)
		r = kvctl_fail(ctl, command->name, KVCTL_BAD,
			"the curves were not ready in time: the daemon's advisor gets no "
			"processor; ask "
			"again, or give it longer with --timeout");
	else if (ctl->json)
		kvctl_print_json(answer);
	else if (r < 0)
		kvctl_refused(ctl, command->name, r, answer);
	else {
		kvctl_print_table(stdout, rows, columns,
			"no tenants yet; one begins when its first engine attaches");
		print_notes(rows);
		if (json_object_get(given, "floor"))
			print_exact(rows);
	}
	json_decref(answer);
	return r ? KVCTL_BAD : KVCTL_OK;
}
