/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl status, once or again and again like top(1). */
#include "tools/kvctl/kvctl.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WATCH_DEFAULT 1.0
#define WATCH_CLIENTS 20 /* lines in the view */

const struct kvctl_column kvctl_tenant_columns[] = {
	{ "name", "TENANT", KVCTL_TEXT },
	{ "sessions", "SESSIONS", KVCTL_COUNT },
	{ "blocks", "BLOCKS", KVCTL_COUNT },
	{ "max_blocks", "OF", KVCTL_COUNT },
	{ "recipes", "RECIPES", KVCTL_COUNT },
	{ "payload_bytes", "PAYLOAD", KVCTL_BYTES },
	{ "charged_bytes", "CHARGED", KVCTL_BYTES },
	{ "share_bytes", "SHARE", KVCTL_BYTES },
	{ "lookups", "LOOKUPS", KVCTL_COUNT },
	{ "hit_pct", "HIT%", KVCTL_TEXT },
	{ "commits", "COMMITS", KVCTL_COUNT },
	{ "evictions", "EVICTIONS", KVCTL_COUNT },
	{ 0 },
};

const struct kvctl_column kvctl_client_columns[] = {
	{ "session", "SESSION", KVCTL_COUNT },
	{ "tenant", "TENANT", KVCTL_TEXT },
	{ "name", "NAME", KVCTL_TEXT },
	{ "pid", "PID", KVCTL_COUNT },
	{ "uid", "UID", KVCTL_COUNT },
	{ "attached_ms", "ATTACHED", KVCTL_MS },
	{ "leases", "LEASES", KVCTL_COUNT },
	{ "grants", "GRANTS", KVCTL_COUNT },
	{ "claims", "CLAIMS", KVCTL_COUNT },
	{ "arena_bytes", "ARENA", KVCTL_BYTES },
	{ "lookups", "LOOKUPS", KVCTL_COUNT },
	{ "hits", "HITS", KVCTL_COUNT },
	{ "partial", "PARTIAL", KVCTL_COUNT },
	{ "misses", "MISSES", KVCTL_COUNT },
	{ 0 },
};

/* Of the lookups, how many found something; "" before the first. */
static void add_hit_rate(json_t *tenants)
{
	size_t i;
	json_t *t;

	json_array_foreach(tenants, i, t) {
		double n = kvctl_number(t, "lookups");
		char text[16] = "";

		if (n > 0)
			snprintf(text, sizeof(text), "%.1f",
				100 * (kvctl_number(t, "hits") + kvctl_number(t, "partial")) / n);
		json_object_set_new(t, "hit_pct", json_string(text));
	}
}

static void print_daemon(const json_t *s)
{
	const json_t *d = json_object_get(s, "daemon"), *heap = json_object_get(d, "heap");
	char a[32], b[32], c[32];

	printf("kvpoold %s, process %.0f, uid %.0f, up %s\n", kvctl_text(d, "version"),
		kvctl_number(d, "pid"), kvctl_number(d, "uid"),
		kvctl_duration(kvctl_number(d, "uptime_s"), a));
	printf("memory    %s; promised to tenants %s; in use %s (%s)\n",
		kvctl_bytes(kvctl_number(s, "memory_bytes"), a),
		kvctl_bytes(kvctl_number(s, "promised_bytes"), b),
		kvctl_bytes(kvctl_number(s, "charged_bytes"), c), kvctl_text(s, "pages"));
	printf("blocks    %.0f; recipes only %.0f; evictions %.0f (policy %s)\n",
		kvctl_number(s, "blocks"), kvctl_number(s, "recipes"), kvctl_number(s, "evictions"),
		kvctl_text(s, "policy"));
	printf("sessions  %.0f of %.0f; connections %.0f, not attached %.0f; refused %.0f, "
	       "protocol "
	       "errors %.0f\n",
		kvctl_number(s, "sessions"), kvctl_number(s, "max_sessions"),
		kvctl_number(d, "connections"), kvctl_number(d, "pending"),
		kvctl_number(d, "refused"), kvctl_number(d, "protocol_errors"));
	printf("heap      %s of %s resident (%s)\n",
		kvctl_bytes(kvctl_number(heap, "allocated"), a),
		kvctl_bytes(kvctl_number(heap, "resident"), b), kvctl_text(heap, "allocator"));
}

static json_t *ask_for(struct kvctl *ctl, const char *verb)
{
	json_t *answer = NULL;
	int r = kvctl_ask(ctl, json_pack("{s:s}", "verb", verb), &answer);

	if (r < 0) {
		kvctl_refused(verb, r, answer);
		exit(KVCTL_BAD);
	}
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
	add_hit_rate(json_object_get(tenants, "tenants"));
	print_daemon(status);
	putchar('\n');
	kvctl_print_table(
		stdout, json_object_get(tenants, "tenants"), kvctl_tenant_columns, "no tenants");
	json_decref(tenants);
	json_decref(status);
}

static int busiest_first(const void *a, const void *b)
{
	double x = kvctl_number(*(json_t *const *)a, "lookups");
	double y = kvctl_number(*(json_t *const *)b, "lookups");

	return x < y ? 1 : x > y ? -1 : 0;
}

/* A new array of at most `most`; the items are shared. */
static json_t *busiest(const json_t *clients, size_t most)
{
	size_t n = json_array_size(clients);
	json_t **all = calloc(n + 1, sizeof(json_t *)), *top = json_array();

	for (size_t i = 0; all && i < n; i++)
		all[i] = json_array_get(clients, i);
	if (all)
		qsort(all, n, sizeof(*all), busiest_first);
	for (size_t i = 0; all && i < n && i < most; i++)
		json_array_append(top, all[i]);
	free(all);
	return top;
}

struct rates {
	double lookups, commits, evictions, when;
};

static void print_rates(const json_t *tenants, struct rates *last)
{
	struct rates now = { 0 };
	struct timespec t;
	size_t i;
	const json_t *row;

	clock_gettime(CLOCK_MONOTONIC, &t);
	now.when = (double)t.tv_sec + (double)t.tv_nsec / 1e9;
	json_array_foreach(tenants, i, row) {
		now.lookups += kvctl_number(row, "lookups");
		now.commits += kvctl_number(row, "commits");
		now.evictions += kvctl_number(row, "evictions");
	}
	if (last->when > 0) {
		double s = now.when - last->when;

		printf("rates     %.0f lookups, %.0f commits, %.0f evictions a second\n",
			(now.lookups - last->lookups) / s, (now.commits - last->commits) / s,
			(now.evictions - last->evictions) / s);
	}
	*last = now;
}

static void paint(struct kvctl *ctl, struct rates *last)
{
	json_t *status = ask_for(ctl, "status"), *tenants = ask_for(ctl, "tenants");
	json_t *clients = ask_for(ctl, "clients"), *top;

	/* Home, and clear: only on a terminal. */
	if (isatty(STDOUT_FILENO))
		fputs("\033[H\033[2J", stdout);
	add_hit_rate(json_object_get(tenants, "tenants"));
	print_daemon(status);
	print_rates(json_object_get(tenants, "tenants"), last);
	putchar('\n');
	kvctl_print_table(
		stdout, json_object_get(tenants, "tenants"), kvctl_tenant_columns, "no tenants");
	putchar('\n');
	top = busiest(json_object_get(clients, "clients"), WATCH_CLIENTS);
	kvctl_print_table(stdout, top, kvctl_client_columns, "no clients");
	fflush(stdout);
	json_decref(top);
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

int kvctl_status(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "watch", optional_argument, NULL, 'w' },
		{ "count", required_argument, NULL, 'n' },
		{ 0 },
	};
	double every = 0;
	long count = 0;
	struct rates last = { 0 };
	char *end;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 'w':
			every = optarg ? strtod(optarg, &end) : WATCH_DEFAULT;
			if (optarg && (*end || every < 0.1 || every > 3600)) {
				fprintf(stderr, "kvctl: --watch: 0.1 to 3600 seconds\n");
				return KVCTL_USAGE;
			}
			break;
		case 'n':
			count = strtol(optarg, &end, 10);
			if (*end || count < 1) {
				fprintf(stderr, "kvctl: --count: a number from 1\n");
				return KVCTL_USAGE;
			}
			break;
		default:
			return KVCTL_USAGE;
		}
	}
	if (every <= 0) {
		show_once(ctl);
		return KVCTL_OK;
	}
	for (long i = 0; !count || i < count; i++) {
		if (i)
			nap(every);
		if (ctl->json)
			show_once(ctl);
		else
			paint(ctl, &last);
		fflush(stdout);
	}
	return KVCTL_OK;
}
