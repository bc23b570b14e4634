/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl device: what there is, and devices that are emptied, let go of, and brought back. */
#include "tools/kvctl/kvctl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STEP_MS 100 /* between two looks at what is left */

const struct kvctl_column kvctl_device_columns[] = {
	{ "device", "DEVICE", KVCTL_COUNT, 3 },
	{ "name", "NAME", KVCTL_TEXT, 0 },
	{ "driver", "DRIVER", KVCTL_TEXT, 6 },
	{ "state", "STATE", KVCTL_TEXT, 0 },
	{ "blocks", "BLOCKS", KVCTL_COUNT, 0 },
	{ "charged_bytes", "CHARGED", KVCTL_BYTES, 0 },
	{ "promised_bytes", "PROMISED", KVCTL_BYTES, 2 },
	{ "memory_bytes", "MEMORY", KVCTL_BYTES, 0 },
	{ "owed_bytes", "OWED", KVCTL_BYTES, 5 },
	{ "context_bytes", "CONTEXT", KVCTL_BYTES, 6 },
	{ "warmed_total", "WARMED", KVCTL_COUNT, 1 },
	{ "behind_total", "SPILLED", KVCTL_COUNT, 2 },
	{ "dropped_total", "DROPPED", KVCTL_COUNT, 1 },
	{ "reloads_total", "BACK", KVCTL_COUNT, 4 },
	{ "prefetched_total", "AHEAD", KVCTL_COUNT, 5 },
	{ "prefetched_used_total", "USED", KVCTL_COUNT, 5 },
	{ "damaged_total", "DAMAGED", KVCTL_COUNT, 4 },
	{ "restarts_total", "RESTARTS", KVCTL_COUNT, 4 },
	{ "to_device_bytes_per_second", "TO/S", KVCTL_BYTES, 2 },
	{ "from_device_bytes_per_second", "FROM/S", KVCTL_BYTES, 2 },
	{ "queued", "QUEUED", KVCTL_COUNT, 3 },
	{ "oldest_seconds", "OLDEST", KVCTL_SECONDS, 3 },
	{ "pid", "PID", KVCTL_COUNT, 7 },
	{ "segments", "SEGMENTS", KVCTL_COUNT, 8 },
	{ "numa_node", "NODE", KVCTL_COUNT, 8 },
	{ 0 },
};

static const struct kvctl_column part_columns[] = {
	{ "name", "NAME", KVCTL_TEXT, 0 },
	{ "tenant", "TENANT", KVCTL_TEXT, 0 },
	{ "blocks", "BLOCKS", KVCTL_COUNT, 0 },
	{ "put_total", "PUT", KVCTL_COUNT, 3 },
	{ "charged_bytes", "CHARGED", KVCTL_BYTES, 0 },
	{ "share_bytes", "SHARE", KVCTL_BYTES, 0 },
	{ "fragmentation_ratio", "UNUSED%", KVCTL_PERCENT, 4 },
	{ "warmed_total", "WARMED", KVCTL_COUNT, 1 },
	{ "behind_total", "SPILLED", KVCTL_COUNT, 2 },
	{ "dropped_total", "DROPPED", KVCTL_COUNT, 1 },
	{ "reloads_total", "BACK", KVCTL_COUNT, 3 },
	{ "prefetched_total", "AHEAD", KVCTL_COUNT, 3 },
	{ "prefetched_used_total", "USED", KVCTL_COUNT, 3 },
	{ "damaged_total", "DAMAGED", KVCTL_COUNT, 2 },
	{ 0 },
};

static const struct kvctl_column queue_columns[] = {
	{ "name", "NAME", KVCTL_TEXT, 0 },
	{ "class", "COPIES", KVCTL_TEXT, 0 },
	{ "queued", "QUEUED", KVCTL_COUNT, 0 },
	{ "oldest_seconds", "OLDEST", KVCTL_SECONDS, 0 },
	{ "done_total", "DONE", KVCTL_COUNT, 1 },
	{ "failed_total", "FAILED", KVCTL_COUNT, 1 },
	{ 0 },
};

/* ---- list ---------------------------------------------------------------------------------- */

void kvctl_add_queues(json_t *devices)
{
	json_t *device, *queue;
	const char *class;
	size_t i;

	json_array_foreach(devices, i, device) {
		double queued = 0, oldest = 0;

		json_object_foreach(json_object_get(device, "queues"), class, queue) {
			double age = kvctl_number(queue, "oldest_seconds");

			queued += kvctl_number(queue, "queued");
			oldest = age > oldest ? age : oldest;
		}
		json_object_set_new(device, "queued", json_integer((json_int_t)queued));
		if (queued > 0)
			json_object_set_new(device, "oldest_seconds", json_real(oldest));
	}
}

/* A copy of the row with the device's name, at the end of the rows. */
static void add_row(json_t *rows, const json_t *device, const json_t *row, const char *class)
{
	json_t *copy = json_copy((json_t *)row);

	json_object_set(copy, "name", json_object_get(device, "name"));
	if (class)
		json_object_set_new(copy, "class", json_string(class));
	json_array_append_new(rows, copy);
}

/* Tenants that have something of a device, classes that copied something, workers that ended. */
static void print_details(const json_t *devices)
{
	json_t *parts = json_array(), *queues = json_array(), *device, *row;
	const char *class;
	char ago[32], shown[256];
	size_t i, k;

	json_array_foreach(devices, i, device) {
		json_array_foreach(json_object_get(device, "tenants"), k, row) {
			if (kvctl_number(row, "share_bytes") > 0)
				add_row(parts, device, row, NULL);
		}
		json_object_foreach(json_object_get(device, "queues"), class, row) {
			if (kvctl_number(row, "queued") + kvctl_number(row, "done_total") +
					kvctl_number(row, "failed_total") >
				0)
				add_row(queues, device, row, class);
		}
	}
	if (json_array_size(parts)) {
		putchar('\n');
		kvctl_print_table(stdout, parts, part_columns, "");
	}
	if (json_array_size(queues)) {
		putchar('\n');
		kvctl_print_table(stdout, queues, queue_columns, "");
	}
	json_array_foreach(devices, i, device) {
		if (!*kvctl_text(device, "error"))
			continue;
		kvctl_printable(
			kvctl_text(device, "error"), (int)sizeof(shown), shown, sizeof(shown));
		printf("\n%s: a worker ended %s ago: %s\n", kvctl_text(device, "name"),
			kvctl_duration(kvctl_number(device, "error_seconds"), ago), shown);
	}
	json_decref(parts);
	json_decref(queues);
}

static int list(struct kvctl *ctl, const json_t *given)
{
	json_t *answer = NULL, *devices;
	int r;

	r = kvctl_ask(ctl, kvctl_request("devices", given), &answer);
	devices = json_object_get(answer, "devices");
	if (ctl->json) {
		kvctl_print_json(answer);
	} else if (r < 0) {
		kvctl_refused(ctl, "device list", r, answer);
	} else {
		kvctl_add_queues(devices);
		kvctl_print_table(stdout, devices, kvctl_device_columns, "none");
		print_details(devices);
	}
	json_decref(answer);
	return r < 0 ? KVCTL_BAD : KVCTL_OK;
}

/* ---- drain, detach, attach ------------------------------------------------------------------ */

struct waiting {
	struct kvctl *ctl;
	const json_t *given;
	struct timespec until;
	bool shown; /* progress, on a terminal */
	json_t *answer;
};

static bool late(const struct waiting *w)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec > w->until.tv_sec ||
	       (now.tv_sec == w->until.tv_sec && now.tv_nsec >= w->until.tv_nsec);
}

/* Asks; the answer takes the place of the last one. Negative errno. */
static int ask(struct waiting *w, const char *verb, bool kept)
{
	json_t *request = kvctl_request(verb, w->given);

	if (kept)
		json_object_set_new(request, "kept", json_true());
	json_decref(w->answer);
	w->answer = NULL;
	return kvctl_ask(w->ctl, request, &w->answer);
}

static bool in_state(const struct waiting *w, const char *state)
{
	return !strcmp(kvctl_text(w->answer, "state"), state);
}

static void show(struct waiting *w)
{
	char bytes[32];

	if (w->ctl->json || !isatty(STDERR_FILENO))
		return;
	fprintf(stderr, "\r\033[K%s: %s, %.0f blocks, %s", kvctl_text(w->answer, "device"),
		kvctl_text(w->answer, "state"), kvctl_number(w->answer, "blocks"),
		kvctl_bytes(kvctl_number(w->answer, "charged_bytes"), bytes));
	w->shown = true;
}

static bool is_empty(const struct waiting *w)
{
	return json_is_true(json_object_get(w->answer, "empty"));
}

/* Begun by `verb`; until the device is empty, or it is too late. */
static int wait_empty(struct waiting *w, const char *verb)
{
	int r = ask(w, verb, false);

	while (r == 0 && !is_empty(w) && !late(w)) {
		show(w);
		kvctl_nap_ms(STEP_MS);
		r = ask(w, "device-left", false);
	}
	/* What stays, and why. */
	return r == 0 && !is_empty(w) ? ask(w, "device-left", true) : r;
}

static int wait_detached(struct waiting *w)
{
	int r = wait_empty(w, "device-drain");

	while (r == 0 && is_empty(w) && !in_state(w, "detached") && !late(w)) {
		r = ask(w, "device-detach", false);
		show(w);
		if (r == 0 && !in_state(w, "detached"))
			kvctl_nap_ms(STEP_MS);
	}
	return r;
}

static int wait_attached(struct waiting *w)
{
	int r = ask(w, "device-attach", false);

	while (r == 0 && !in_state(w, "up") && !in_state(w, "down") && !late(w)) {
		show(w);
		kvctl_nap_ms(STEP_MS);
		r = ask(w, "device-left", false);
	}
	return r;
}

/* "2 leased, 1 pinned" */
static void print_kept(const json_t *answer)
{
	const char *what, *comma = ": ";
	json_t *n;

	json_object_foreach(json_object_get(answer, "kept"), what, n) {
		if (json_number_value(n) <= 0)
			continue;
		printf("%s%.0f %s", comma, json_number_value(n), what);
		comma = ", ";
	}
}

static void print_outcome(const struct waiting *w, bool done)
{
	double mapped = kvctl_number(w->answer, "mapped_extents");
	double granted = kvctl_number(w->answer, "granted_slots");
	const char *name = kvctl_text(w->answer, "device");

	if (is_empty(w) || done) {
		printf("%s is %s\n", name,
			done && in_state(w, "draining") ? "empty" : kvctl_text(w->answer, "state"));
		return;
	}
	printf("%s is not empty yet: %.0f blocks stay", name, kvctl_number(w->answer, "blocks"));
	print_kept(w->answer);
	if (granted > 0)
		printf("; clients hold %.0f slots to write", granted);
	if (mapped > 0)
		printf("; clients have yet to unmap %.0f extents", mapped);
	printf("\nit goes on; nothing new comes there until kvctl device attach %s\n", name);
}

int kvctl_device(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	struct waiting w = { .ctl = ctl };
	const char *action = kvctl_text(given, "action");
	bool done;
	int r;

	if (!strcmp(action, "list") && json_object_get(given, "device"))
		return kvctl_fail(ctl, command->name, KVCTL_USAGE, "list takes no name");
	if (!strcmp(action, "list"))
		return list(ctl, given);
	if (!json_object_get(given, "device"))
		return kvctl_fail(ctl, command->name, KVCTL_USAGE,
			"which device? kvctl device list has their names");
	clock_gettime(CLOCK_MONOTONIC, &w.until);
	w.until.tv_sec += ctl->timeout_ms / 1000;
	w.given = given;
	if (!strcmp(action, "drain")) {
		r = wait_empty(&w, "device-drain");
		/* Of one that is down nobody can say what becomes of it: it was not emptied by this. */
		done = r == 0 && is_empty(&w) && !in_state(&w, "down");
	} else if (!strcmp(action, "detach")) {
		r = wait_detached(&w);
		done = r == 0 && in_state(&w, "detached");
	} else {
		r = wait_attached(&w);
		done = r == 0 && in_state(&w, "up");
	}
	if (w.shown)
		fputs("\r\033[K", stderr);
	if (ctl->json)
		kvctl_print_json(w.answer);
	else if (r < 0)
		kvctl_refused(ctl, command->name, r, w.answer);
	else
		print_outcome(&w, done);
	json_decref(w.answer);
	return done ? KVCTL_OK : KVCTL_BAD;
}
