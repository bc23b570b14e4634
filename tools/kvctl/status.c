/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl status, once or again and again like top(1). */
#include "tools/kvctl/kvctl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WATCH_ROWS 20 /* of a table in the view, where standard output has no end */
#define VIEW_LINES 12 /* of the view that are not rows */

const struct kvctl_column kvctl_tenant_columns[] = {
	{ "name", "TENANT", KVCTL_TEXT, 0 },
	{ "sessions", "SESSIONS", KVCTL_COUNT, 4 },
	{ "blocks", "BLOCKS", KVCTL_COUNT, 0 },
	{ "max_blocks", "OF", KVCTL_COUNT, 6 },
	{ "recipes", "RECIPES", KVCTL_COUNT, 8 },
	{ "payload_bytes", "PAYLOAD", KVCTL_BYTES, 7 },
	{ "charged_bytes", "CHARGED", KVCTL_BYTES, 0 },
	{ "share_bytes", "SHARE", KVCTL_BYTES, 0 },
	{ "lookups", "LOOKUPS", KVCTL_COUNT, 3 },
	{ "hit_ratio", "HIT%", KVCTL_PERCENT, 0 },
	{ "hit_ratio_now", "NOW%", KVCTL_PERCENT, 1 },
	{ "commits", "COMMITS", KVCTL_COUNT, 5 },
	{ "evictions", "EVICTIONS", KVCTL_COUNT, 2 },
	{ 0 },
};

const struct kvctl_column kvctl_client_columns[] = {
	{ "session", "SESSION", KVCTL_COUNT, 0 },
	{ "tenant", "TENANT", KVCTL_TEXT, 0 },
	{ "name", "NAME", KVCTL_TEXT, 0 },
	{ "pid", "PID", KVCTL_COUNT, 0 },
	{ "uid", "UID", KVCTL_COUNT, 4 },
	{ "attached_ms", "ATTACHED", KVCTL_MS, 7 },
	{ "leases", "LEASES", KVCTL_COUNT, 1 },
	{ "grants", "GRANTS", KVCTL_COUNT, 1 },
	{ "claims", "CLAIMS", KVCTL_COUNT, 5 },
	{ "arena_bytes", "ARENA", KVCTL_BYTES, 3 },
	{ "lookups", "LOOKUPS", KVCTL_COUNT, 2 },
	{ "hits", "HITS", KVCTL_COUNT, 6 },
	{ "partial", "PARTIAL", KVCTL_COUNT, 6 },
	{ "misses", "MISSES", KVCTL_COUNT, 6 },
	{ 0 },
};

/* ---- hit rates ----------------------------------------------------------------------------- */

struct asked {
	double tokens, cached;
};

static struct asked asked_of(const json_t *row)
{
	return (struct asked){ kvctl_number(row, "tokens_asked"),
		kvctl_number(row, "tokens_matched") };
}

/* Since then; counters of a tenant that was made anew begin again. */
static struct asked since(struct asked now, struct asked then)
{
	if (now.tokens < then.tokens || now.cached < then.cached)
		return now;
	return (struct asked){ now.tokens - then.tokens, now.cached - then.cached };
}

static void set_ratio(json_t *row, const char *key, struct asked a)
{
	if (a.tokens > 0)
		json_object_set_new(row, key, json_real(a.cached / a.tokens));
}

void kvctl_add_hit_ratio(json_t *rows)
{
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) {
		set_ratio(row, "hit_ratio", asked_of(row));
	}
}

/* The figures of the view before this one. */
struct last {
	json_t *tenants;
	double when; /* seconds; 0: there was none */
};

static const json_t *tenant_before(const struct last *last, const json_t *tenant)
{
	json_t *t;
	size_t i;

	json_array_foreach(last->tenants, i, t) {
		if (json_equal(json_object_get(t, "id"), json_object_get(tenant, "id")))
			return t;
	}
	return NULL;
}

struct rates {
	double lookups, commits, tokens_put, evictions;
	struct asked asked;
};

static double grown(const json_t *now, const json_t *before, const char *key)
{
	double d = kvctl_number(now, key) - kvctl_number(before, key);

	return d < 0 ? kvctl_number(now, key) : d;
}

/* Since the view before, over all tenants; each of them gets its own hit_ratio_now. */
static struct rates rates_since(const struct last *last, json_t *tenants)
{
	struct rates sum = { 0 };
	json_t *t;
	size_t i;

	json_array_foreach(tenants, i, t) {
		const json_t *before = tenant_before(last, t);
		struct asked a = since(asked_of(t), asked_of(before));

		set_ratio(t, "hit_ratio_now", a);
		sum.asked.tokens += a.tokens;
		sum.asked.cached += a.cached;
		sum.lookups += grown(t, before, "lookups");
		sum.commits += grown(t, before, "commits");
		sum.tokens_put += grown(t, before, "tokens_put");
		sum.evictions += grown(t, before, "evictions");
	}
	return sum;
}

static void print_rates(const struct last *last, json_t *tenants, double now)
{
	double s = now - last->when;
	struct rates r;

	if (last->when <= 0)
		return;
	r = rates_since(last, tenants);
	printf("rates     %.0f lookups, %.0f commits of %.0f tokens, %.0f evictions a second; ",
		r.lookups / s, r.commits / s, r.tokens_put / s, r.evictions / s);
	if (r.asked.tokens > 0)
		printf("%.1f %% of %.0f tokens asked for were cached\n",
			100 * r.asked.cached / r.asked.tokens, r.asked.tokens);
	else
		puts("no token was asked for");
}

/* ---- printing ------------------------------------------------------------------------------ */

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
	       "protocol errors %.0f\n",
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
	int r = kvctl_ask(ctl, kvctl_request(verb, NULL), &answer);

	if (r < 0)
		exit(kvctl_refused(ctl, verb, r, answer));
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
	kvctl_add_hit_ratio(json_object_get(tenants, "tenants"));
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

/* As many rows as fit below the figures: tenants get the half of them, and those that clients leave. */
static void print_tables(const json_t *tenants, const json_t *clients)
{
	size_t n_tenants = json_array_size(tenants), n_clients = json_array_size(clients);
	int lines = kvctl_terminal_lines();
	size_t rows = lines > VIEW_LINES + 4 ? (size_t)(lines - VIEW_LINES)
		      : lines > 0            ? 4
					     : 2 * WATCH_ROWS;
	size_t for_clients = smaller(n_clients, rows / 2);
	size_t for_tenants = smaller(n_tenants, rows - for_clients);

	print_busiest(tenants, for_tenants, kvctl_tenant_columns, "no tenants");
	putchar('\n');
	print_busiest(clients, rows - for_tenants, kvctl_client_columns, "no clients");
}

static double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void paint(struct kvctl *ctl, struct last *last)
{
	json_t *status = ask_for(ctl, "status"), *tenants = ask_for(ctl, "tenants");
	json_t *clients = ask_for(ctl, "clients"), *list = json_object_get(tenants, "tenants");
	double now = seconds_now();

	/* Home, and clear: only on a terminal. */
	if (isatty(STDOUT_FILENO))
		fputs("\033[H\033[2J", stdout);
	print_daemon(status);
	kvctl_add_hit_ratio(list);
	print_rates(last, list, now);
	putchar('\n');
	print_tables(list, json_object_get(clients, "clients"));
	json_decref(last->tenants);
	*last = (struct last){ json_incref(list), now };
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
	struct last last = { 0 };

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
			paint(ctl, &last);
		fflush(stdout);
	}
	json_decref(last.tenants);
	return KVCTL_OK;
}
