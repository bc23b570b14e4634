/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl status, once or again and again like top(1). */
#include "tools/kvctl/kvctl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WATCH_ROWS 20 /* of a table in the view, where standard output has no end */
#define VIEW_LINES 20 /* of the view that are not rows */

const struct kvctl_column kvctl_tenant_columns[] = {
	{ "name", "TENANT", KVCTL_TEXT, 0 },
	{ "sessions", "SESSIONS", KVCTL_COUNT, 4 },
	{ "blocks", "BLOCKS", KVCTL_COUNT, 0 },
	{ "max_blocks", "OF", KVCTL_COUNT, 6 },
	{ "recipes", "RECIPES", KVCTL_COUNT, 8 },
	{ "payload_bytes", "PAYLOAD", KVCTL_BYTES, 7 },
	{ "charged_bytes", "CHARGED", KVCTL_BYTES, 0 },
	{ "share_bytes", "SHARE", KVCTL_BYTES, 0 },
	{ "fragmentation_ratio", "UNUSED%", KVCTL_PERCENT, 6 },
	{ "lookups_total", "LOOKUPS", KVCTL_COUNT, 3 },
	{ "hit_ratio", "HIT%", KVCTL_PERCENT, 0 },
	{ "hit_ratio_now", "NOW%", KVCTL_PERCENT, 1 },
	{ "commits_total", "COMMITS", KVCTL_COUNT, 5 },
	{ "evictions_total", "EVICTIONS", KVCTL_COUNT, 2 },
	{ "asked_rate", "ASKED/S", KVCTL_RATE, 9 },
	{ "put_rate", "PUT/S", KVCTL_RATE, 9 },
	{ "evictions_rate", "EVICTED/S", KVCTL_RATE, 9 },
	{ "bytes_rate", "CHARGED/S", KVCTL_BYTES, 9 },
	{ 0 },
};

const struct kvctl_column kvctl_client_columns[] = {
	{ "session", "SESSION", KVCTL_COUNT, 0 },
	{ "tenant", "TENANT", KVCTL_TEXT, 0 },
	{ "name", "NAME", KVCTL_TEXT, 0 },
	{ "pid", "PID", KVCTL_COUNT, 0 },
	{ "uid", "UID", KVCTL_COUNT, 4 },
	{ "attached_seconds", "ATTACHED", KVCTL_SECONDS, 7 },
	{ "leases", "LEASES", KVCTL_COUNT, 1 },
	{ "grants", "GRANTS", KVCTL_COUNT, 1 },
	{ "claims", "CLAIMS", KVCTL_COUNT, 5 },
	{ "parked", "PARKED", KVCTL_COUNT, 5 },
	{ "arena_bytes", "ARENA", KVCTL_BYTES, 3 },
	{ "lookups_total", "LOOKUPS", KVCTL_COUNT, 2 },
	{ "hit_ratio", "HIT%", KVCTL_PERCENT, 2 },
	{ "hits_total", "HITS", KVCTL_COUNT, 6 },
	{ "partial_total", "PARTIAL", KVCTL_COUNT, 6 },
	{ "misses_total", "MISSES", KVCTL_COUNT, 6 },
	{ 0 },
};

/* ---- rates --------------------------------------------------------------------------------- */

/* Members that tables show, from the `rates` of the daemon's answer. */
static const struct {
	const char *name, *shown;
} rate_columns[] = {
	{ "hit_ratio", "hit_ratio_now" },
	{ "asked_tokens_per_second", "asked_rate" },
	{ "put_tokens_per_second", "put_rate" },
	{ "evictions_per_second", "evictions_rate" },
	{ "charged_bytes_per_second", "bytes_rate" },
	{ "payload_bytes_per_second", "bytes_rate" },
};

void kvctl_add_ratios(json_t *rows)
{
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) {
		double asked = kvctl_number(row, "asked_tokens_total");
		double matched = kvctl_number(row, "matched_tokens_total");
		const json_t *rates = json_object_get(row, "rates");

		if (asked > 0)
			json_object_set_new(row, "hit_ratio", json_real(matched / asked));
		for (size_t k = 0; k < sizeof(rate_columns) / sizeof(rate_columns[0]); k++) {
			json_t *v = json_object_get(rates, rate_columns[k].name);

			if (json_is_number(v))
				json_object_set(row, rate_columns[k].shown, v);
		}
	}
}

static void print_rates(const json_t *status)
{
	const json_t *rates = json_object_get(status, "rates");
	double bytes = kvctl_number(rates, "charged_bytes_per_second");
	const json_t *ratio = json_object_get(rates, "hit_ratio");
	char a[32], b[32], c[32];

	if (!json_is_object(rates)) {
		puts("rates     not known in the daemon's first seconds");
		return;
	}
	printf("rates     %s lookups of %.0f tokens, %s commits of %.0f tokens, %s evictions a "
	       "second\n          ",
		kvctl_rate(kvctl_number(rates, "lookups_per_second"), a),
		kvctl_number(rates, "asked_tokens_per_second"),
		kvctl_rate(kvctl_number(rates, "commits_per_second"), b),
		kvctl_number(rates, "put_tokens_per_second"),
		kvctl_rate(kvctl_number(rates, "evictions_per_second"), c));
	if (json_is_number(ratio))
		printf("%.1f %% of the tokens asked for were cached; ",
			100 * json_number_value(ratio));
	printf("memory %s%s a second\n", bytes > 0 ? "+" : "", kvctl_bytes(bytes, a));
}

static void print_advisor(const json_t *status)
{
	const json_t *a = json_object_get(status, "advisor"),
		     *age = json_object_get(a, "age_seconds");
	char age_text[64] = "no ranking yet", bytes[32];

	if (!json_is_object(a))
		return;
	if (json_is_number(age))
		snprintf(age_text, sizeof(age_text), "ranking %.1f s old, made in %.1f ms",
			json_number_value(age), 1e3 * kvctl_number(a, "cycle_seconds"));
	printf("advisor   %s; %.0f blocks and %.0f edges in %s; dropped events %.0f\n"
	       "          spared %.0f blocks; without a young ranking %.0f of %.0f choices\n",
		age_text, kvctl_number(a, "nodes"), kvctl_number(a, "edges"),
		kvctl_bytes(kvctl_number(a, "memory_bytes"), bytes),
		kvctl_number(a, "dropped_total"), kvctl_number(a, "spared_total"),
		kvctl_number(a, "stale_total"), kvctl_number(a, "consulted_total"));
	if (kvctl_number(a, "suggested_total") > 0)
		printf("          named %.0f blocks for devices; fetched %.0f, and of these used "
		       "%.0f\n",
			kvctl_number(a, "suggested_total"), kvctl_number(a, "prefetched_total"),
			kvctl_number(a, "prefetched_used_total"));
}

/* Only where something may be coded. */
static void print_quality(const json_t *status)
{
	const json_t *mean = json_object_get(status, "quality_ratio");
	char text[96] = "no scores yet";

	if (kvctl_number(status, "quality_spaces") < 1)
		return;
	if (json_is_number(mean))
		snprintf(text, sizeof(text), "%.3f at the lowest, windows of %.0f scores",
			json_number_value(mean), kvctl_number(status, "quality_samples"));
	printf("quality   %s; checked %.0f, reported %.0f\n"
	       "          of %.0f spaces that accept less than native, %.0f keep more bits than "
	       "they have to; changes %.0f\n",
		text, kvctl_number(status, "quality_checked_total"),
		kvctl_number(status, "quality_reported_total"),
		kvctl_number(status, "quality_spaces"),
		kvctl_number(status, "quality_raised_spaces"),
		kvctl_number(status, "quality_changes_total"));
}

/* What lies in DRAM by precision, and what the steps that make room have done. Only where something may be coded, or was. */
static void print_ladder(const json_t *s)
{
	static const char *const names[] = { "native", "8_bits", "4_bits", "3_bits", "2_bits" };
	static const char *const shown[] = { "native", "8 bits", "4 bits", "3 bits", "2 bits" };
	const char *before = "precision ";
	char name[64], bytes[32];

	if (kvctl_number(s, "quality_spaces") < 1 && kvctl_number(s, "coded_total") < 1)
		return;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		double n;

		snprintf(name, sizeof(name), "blocks_%s", names[i]);
		n = kvctl_number(s, name);
		if (i && n < 1)
			continue;
		snprintf(name, sizeof(name), "bytes_%s", names[i]);
		printf("%s%s %.0f blocks in %s", before, shown[i], n,
			kvctl_bytes(kvctl_number(s, name), bytes));
		before = "; ";
	}
	before = "\n          coded to ";
	for (size_t i = 1; i < sizeof(names) / sizeof(names[0]); i++) {
		double n;

		snprintf(name, sizeof(name), "coded_%s_total", names[i]);
		n = kvctl_number(s, name);
		if (n < 1)
			continue;
		snprintf(name, sizeof(name), "freed_%s_bytes_total", names[i]);
		printf("%s%s %.0f, freed %s", before, shown[i], n,
			kvctl_bytes(kvctl_number(s, name), bytes));
		before = "; to ";
	}
	printf("\n          coding took %.3g s of processors, in vain %.0f blocks\n"
	       "          evicted %.0f, freed %s; forgotten %.0f\n",
		kvctl_number(s, "coding_cpu_seconds"), kvctl_number(s, "uncoded_total"),
		kvctl_number(s, "evictions_total"),
		kvctl_bytes(kvctl_number(s, "evicted_bytes_total"), bytes),
		kvctl_number(s, "forgotten_total"));
}

/* Only where something was reported. */
static void print_attention(const json_t *status)
{
	double n = kvctl_number(status, "attention_reported_total");

	if (n > 0)
		printf("attention reported of %.0f blocks: which are coded first goes by it\n", n);
}

/* ---- printing ------------------------------------------------------------------------------ */

static void print_remat(const json_t *s)
{
	const json_t *r = json_object_get(s, "remat");

	printf("remat     offers %.0f; wanted %.0f, not met %.0f; asked %.0f, met %.0f, given back "
	       "%.0f, late %.0f\n",
		kvctl_number(r, "offers"), kvctl_number(r, "wants_total"),
		kvctl_number(r, "unmet_total"), kvctl_number(r, "asked_total"),
		kvctl_number(r, "met_total"), kvctl_number(r, "returned_total"),
		kvctl_number(r, "late_total"));
}

static void print_daemon(const json_t *s)
{
	const json_t *d = json_object_get(s, "daemon"), *heap = json_object_get(d, "heap");
	char a[32], b[32], c[32];

	printf("kvpoold %s, process %.0f, uid %.0f, up %s\n", kvctl_text(d, "version"),
		kvctl_number(d, "pid"), kvctl_number(d, "uid"),
		kvctl_duration(kvctl_number(s, "uptime_seconds"), a));
	printf("memory    %s; promised to tenants %s; in use %s (%s)\n",
		kvctl_bytes(kvctl_number(s, "memory_bytes"), a),
		kvctl_bytes(kvctl_number(s, "promised_bytes"), b),
		kvctl_bytes(kvctl_number(s, "charged_bytes"), c), kvctl_text(s, "pages"));
	printf("blocks    %.0f; recipes only %.0f; evictions %.0f, soon back %.0f (policy %s)\n",
		kvctl_number(s, "blocks"), kvctl_number(s, "recipes"),
		kvctl_number(s, "evictions_total"), kvctl_number(s, "reloads_total"),
		kvctl_text(s, "policy"));
	printf("sessions  %.0f of %.0f; connections %.0f, not attached %.0f; refused %.0f, "
	       "protocol errors %.0f\n",
		kvctl_number(s, "sessions"), kvctl_number(s, "max_sessions"),
		kvctl_number(d, "connections"), kvctl_number(d, "pending"),
		kvctl_number(d, "refused_total"), kvctl_number(d, "protocol_errors_total"));
	printf("heap      %s of %s resident (%s)\n",
		kvctl_bytes(kvctl_number(heap, "allocated_bytes"), a),
		kvctl_bytes(kvctl_number(heap, "resident_bytes"), b),
		kvctl_text(heap, "allocator"));
	print_ladder(s);
	print_quality(s);
	print_attention(s);
	print_remat(s);
	print_advisor(s);
	print_rates(s);
}

static json_t *ask_for(struct kvctl *ctl, const char *verb)
{
	json_t *answer = NULL;
	int r = kvctl_ask(ctl, kvctl_request(verb, NULL), &answer);

	if (r < 0)
		exit(kvctl_refused(ctl, verb, r, answer));
	return answer;
}

/* "spare: 3 urgent, the oldest 2 s; 1 behind, the oldest 10 ms", of what waits there now. */
static bool print_waiting(const json_t *device)
{
	const char *class, *comma = ": ";
	json_t *queue;
	bool any = false;
	char name[64], age[32];

	json_object_foreach(json_object_get(device, "queues"), class, queue) {
		double queued = kvctl_number(queue, "queued");

		if (queued <= 0)
			continue;
		if (!any) {
			kvctl_printable(kvctl_text(device, "name"), 32, name, sizeof(name));
			fputs(name, stdout);
		}
		printf("%s%.0f %s, the oldest %s", comma, queued, class,
			kvctl_duration(kvctl_number(queue, "oldest_seconds"), age));
		comma = "; ";
		any = true;
	}
	if (any)
		putchar('\n');
	return any;
}

/*
 * A daemon that knows nothing of devices refuses to tell of them: it has none. Takes the answer. How many lines
 * were printed, at most.
 */
static size_t print_devices(json_t *answer)
{
	json_t *list = json_object_get(answer, "devices"), *device;
	size_t lines = 0, i;

	if (json_array_size(list)) {
		kvctl_add_queues(list);
		putchar('\n');
		kvctl_print_table(stdout, list, kvctl_device_columns, "no devices");
		/* With the title, what has no room, and a blank line. */
		lines = json_array_size(list) + 3;
		json_array_foreach(list, i, device)
			lines += print_waiting(device);
	}
	json_decref(answer);
	return lines;
}

static json_t *ask_devices(struct kvctl *ctl)
{
	json_t *answer = NULL;

	(void)kvctl_ask(ctl, kvctl_request("devices", NULL), &answer);
	return answer;
}

static void show_once(struct kvctl *ctl)
{
	json_t *status = ask_for(ctl, "status"), *tenants;

	if (ctl->json) {
		kvctl_print_json(status);
		json_decref(status);
		return;
	}
	tenants = ask_for(ctl, "tenants");
	kvctl_add_ratios(json_object_get(tenants, "tenants"));
	print_daemon(status);
	putchar('\n');
	kvctl_print_table(
		stdout, json_object_get(tenants, "tenants"), kvctl_tenant_columns, "no tenants");
	print_devices(ask_devices(ctl));
	json_decref(tenants);
	json_decref(status);
}

static int busiest_first(const void *a, const void *b)
{
	double x = kvctl_number(*(json_t *const *)a, "lookups_total");
	double y = kvctl_number(*(json_t *const *)b, "lookups_total");

	return x < y ? 1 : x > y ? -1 : 0;
}

/* The busiest ones of a list, and how many there are besides. */
static void print_busiest(
	const json_t *list, size_t most, const struct kvctl_column *columns, const char *none)
{
	size_t n = json_array_size(list);
	json_t **all = calloc(n + 1, sizeof(json_t *)), *top = json_array();

	for (size_t i = 0; all && i < n; i++)
		all[i] = json_array_get(list, i);
	if (all)
		qsort(all, n, sizeof(*all), busiest_first);
	for (size_t i = 0; all && i < n && i < most; i++)
		json_array_append(top, all[i]);
	kvctl_print_table(stdout, top, columns, none);
	if (n > most)
		printf("%zu of %zu, the busiest\n", most, n);
	json_decref(top);
	free(all);
}

static size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

/*
 * As many rows as fit below the figures and `taken` lines of devices: tenants get the half of them, and those that
 * clients leave.
 */
static void print_tables(const json_t *tenants, const json_t *clients, size_t taken)
{
	size_t n_tenants = json_array_size(tenants), n_clients = json_array_size(clients);
	int lines = kvctl_terminal_lines(), used = VIEW_LINES + (int)taken;
	size_t rows = lines > used + 4 ? (size_t)(lines - used) : lines > 0 ? 4 : 2 * WATCH_ROWS;
	size_t for_clients = smaller(n_clients, rows / 2);
	size_t for_tenants = smaller(n_tenants, rows - for_clients);

	print_busiest(tenants, for_tenants, kvctl_tenant_columns, "no tenants");
	putchar('\n');
	print_busiest(clients, rows - for_tenants, kvctl_client_columns, "no clients");
}

static void paint(struct kvctl *ctl)
{
	json_t *status = ask_for(ctl, "status"), *tenants = ask_for(ctl, "tenants");
	json_t *clients = ask_for(ctl, "clients"), *devices = ask_devices(ctl);
	size_t taken;

	/* Home, and clear: only on a terminal. */
	if (isatty(STDOUT_FILENO))
		fputs("\033[H\033[2J", stdout);
	print_daemon(status);
	kvctl_add_ratios(json_object_get(tenants, "tenants"));
	kvctl_add_ratios(json_object_get(clients, "clients"));
	taken = print_devices(devices);
	putchar('\n');
	print_tables(
		json_object_get(tenants, "tenants"), json_object_get(clients, "clients"), taken);
	json_decref(clients);
	json_decref(tenants);
	json_decref(status);
}

static void nap(double seconds)
{
	struct timespec t = { .tv_sec = (time_t)seconds };

	t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
	nanosleep(&t, NULL);
}

int kvctl_status(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	double every = kvctl_number(given, "watch"), count = kvctl_number(given, "count");

	if (count > 0 && every <= 0)
		return kvctl_fail(ctl, command->name, KVCTL_USAGE, "--count goes with --watch");
	if (every <= 0) {
		show_once(ctl);
		return KVCTL_OK;
	}
	for (double i = 0; count <= 0 || i < count; i++) {
		if (i > 0)
			nap(every);
		if (ctl->json)
			show_once(ctl);
		else
			paint(ctl);
		fflush(stdout);
	}
	return KVCTL_OK;
}
