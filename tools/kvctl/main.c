/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl: administration of a kvpoold. Options, commands, and what they print. */
#include "tools/kvctl/kvctl.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/kvpool_admin.h"
#include "tools/common/kvt_output.h"

#define TIMEOUT_DEFAULT_MS 30000u

struct command {
	const char *name;
	int (*run)(struct kvctl *ctl, int argc, char **argv);
	const char *help;
};

static int usage_error(const char *command, const char *what)
{
	fprintf(stderr, "kvctl: %s: %s; see kvctl(1)\n", command, what);
	return KVCTL_USAGE;
}

/* ---- options that several commands have ---------------------------------------------------- */

enum {
	OPT_TENANT = 1,
	OPT_SPACE = 2,
	OPT_STATE = 4,
	OPT_PINNED = 8,
	OPT_SORT = 16,
	OPT_LIMIT = 32,
	OPT_COUNT = 64,
	OPT_ALL = 128,
	OPT_PAYLOADS = 256
};

static int set_number(json_t *request, const char *key, const char *text)
{
	char *end;
	unsigned long long n = strtoull(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || n > INT64_MAX)
		return -EINVAL;
	return json_object_set_new(request, key, json_integer((json_int_t)n));
}

static int set_option(json_t *request, int option, const char *value)
{
	switch (option) {
	case OPT_TENANT:
		return json_object_set_new(request, "tenant", json_string(value));
	case OPT_SPACE:
		return set_number(request, "space", value);
	case OPT_STATE:
		if (strcmp(value, "live") && strcmp(value, "recipe") && strcmp(value, "evicting"))
			return -EINVAL;
		return json_object_set_new(request, "state", json_string(value));
	case OPT_PINNED:
		return json_object_set_new(request, "pinned", json_true());
	case OPT_SORT:
		if (strcmp(value, "serial") && strcmp(value, "hits") && strcmp(value, "touched") &&
			strcmp(value, "depth") && strcmp(value, "tokens"))
			return -EINVAL;
		return json_object_set_new(request, "sort", json_string(value));
	case OPT_LIMIT:
		return set_number(request, "limit", value);
	case OPT_COUNT:
		return set_number(request, "count", value);
	case OPT_ALL:
		return json_object_set_new(request, "all", json_true());
	case OPT_PAYLOADS:
		return json_object_set_new(request, "payloads", json_true());
	}
	return -EINVAL;
}

/*
 * Reads the options in `allowed` into the request; at most one argument may follow, `ret_key`
 * (NULL: none). 0 or an exit status.
 */
static int read_options(int argc, char **argv, int allowed, json_t *request, const char **ret_key)
{
	static const struct option longs[] = {
		{ "tenant", required_argument, NULL, OPT_TENANT },
		{ "space", required_argument, NULL, OPT_SPACE },
		{ "state", required_argument, NULL, OPT_STATE },
		{ "pinned", no_argument, NULL, OPT_PINNED },
		{ "sort", required_argument, NULL, OPT_SORT },
		{ "limit", required_argument, NULL, OPT_LIMIT },
		{ "count", required_argument, NULL, OPT_COUNT },
		{ "all", no_argument, NULL, OPT_ALL },
		{ "payloads", no_argument, NULL, OPT_PAYLOADS },
		{ 0 },
	};
	int c, at;

	while ((c = getopt_long(argc, argv, "", longs, &at)) != -1) {
		if (c == '?')
			return KVCTL_USAGE;
		if (!(c & allowed)) {
			fprintf(stderr, "kvctl: %s has no option --%s\n", argv[0], longs[at].name);
			return KVCTL_USAGE;
		}
		if (set_option(request, c, optarg) < 0) {
			fprintf(stderr, "kvctl: --%s: '%s' is not possible\n", longs[at].name,
				optarg);
			return KVCTL_USAGE;
		}
	}
	if (ret_key && optind < argc)
		*ret_key = argv[optind++];
	if (optind < argc)
		return usage_error(argv[0], "too many arguments");
	return 0;
}

/* A request with this verb and the options that the command line has. NULL: *ret_status. */
static json_t *request_of(int argc, char **argv, int allowed, const char **ret_key, int *ret_status)
{
	json_t *request = json_pack("{s:s}", "verb", argv[0]);

	*ret_status = read_options(argc, argv, allowed, request, ret_key);
	if (*ret_status) {
		json_decref(request);
		return NULL;
	}
	return request;
}

/* ---- lists --------------------------------------------------------------------------------- */

static const struct kvctl_column space_columns[] = {
	{ "tenant", "TENANT", KVCTL_TEXT },
	{ "space", "SPACE", KVCTL_COUNT },
	{ "model", "MODEL", KVCTL_TEXT },
	{ "adapter", "ADAPTER", KVCTL_TEXT },
	{ "layers", "LAYERS", KVCTL_COUNT },
	{ "block_tokens", "TOKENS", KVCTL_COUNT },
	{ "block_bytes", "BLOCK", KVCTL_BYTES },
	{ "opens", "OPEN", KVCTL_COUNT },
	{ "fingerprint", "FINGERPRINT", KVCTL_KEY },
	{ 0 },
};

static const struct kvctl_column block_columns[] = {
	{ "key", "KEY", KVCTL_KEY },
	{ "tenant", "TENANT", KVCTL_TEXT },
	{ "space", "SPACE", KVCTL_COUNT },
	{ "state", "STATE", KVCTL_TEXT },
	{ "depth", "DEPTH", KVCTL_COUNT },
	{ "tokens", "TOKENS", KVCTL_COUNT },
	{ "bytes", "BYTES", KVCTL_BYTES },
	{ "hits", "HITS", KVCTL_COUNT },
	{ "children", "CHILDREN", KVCTL_COUNT },
	{ "pinned", "PINNED", KVCTL_FLAG },
	{ 0 },
};

static int print_list(struct kvctl *ctl, int argc, char **argv, int allowed, const char *list,
	const struct kvctl_column *columns)
{
	json_t *answer = NULL, *request;
	int r, status;

	request = request_of(argc, argv, allowed, NULL, &status);
	if (!request)
		return status;
	r = kvctl_ask(ctl, request, &answer);
	if (ctl->json)
		kvctl_print_json(answer);
	else if (r < 0)
		kvctl_refused(argv[0], r, answer);
	else
		kvctl_print_table(stdout, json_object_get(answer, list), columns, "none");
	json_decref(answer);
	return r < 0 ? KVCTL_BAD : KVCTL_OK;
}

static int clients(struct kvctl *ctl, int argc, char **argv)
{
	return print_list(ctl, argc, argv, OPT_TENANT, "clients", kvctl_client_columns);
}

static int spaces(struct kvctl *ctl, int argc, char **argv)
{
	return print_list(ctl, argc, argv, OPT_TENANT, "spaces", space_columns);
}

static int tenants(struct kvctl *ctl, int argc, char **argv)
{
	return print_list(ctl, argc, argv, OPT_TENANT, "tenants", kvctl_tenant_columns);
}

static int blocks(struct kvctl *ctl, int argc, char **argv)
{
	return print_list(ctl, argc, argv,
		OPT_TENANT | OPT_SPACE | OPT_STATE | OPT_PINNED | OPT_SORT | OPT_LIMIT, "blocks",
		block_columns);
}

/* ---- one block, and requests that change something ----------------------------------------- */

/* Prints a member per line: what a person reads of an object. */
static void print_object(const json_t *object)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)object, key, value) {
		char *text = json_is_string(value) ? strdup(json_string_value(value))
						   : json_dumps(value, JSON_ENCODE_ANY);

		printf("%-14s %s\n", key, text ? text : "");
		free(text);
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
		kvctl_refused(command, r, answer);
	else
		print_object(shown ? shown : answer);
	json_decref(answer);
	return r < 0 ? KVCTL_BAD : KVCTL_OK;
}

static int with_key(struct kvctl *ctl, int argc, char **argv)
{
	const char *key = NULL;
	int status;
	json_t *request = request_of(argc, argv, OPT_TENANT, &key, &status);

	if (!request)
		return status;
	if (!key) {
		json_decref(request);
		return usage_error(argv[0], "which block? Give its key, or the first 8 digits or "
					    "more of it");
	}
	json_object_set_new(request, "key", json_string(key));
	return request_and_print(ctl, argv[0], request, "block");
}

static int evict(struct kvctl *ctl, int argc, char **argv)
{
	const char *key = NULL;
	int status;
	json_t *request = request_of(argc, argv, OPT_TENANT | OPT_COUNT | OPT_ALL, &key, &status);

	if (!request)
		return status;
	if (!!key + !!json_object_get(request, "count") + !!json_object_get(request, "all") != 1) {
		json_decref(request);
		return usage_error(argv[0], "give a key, --count N or --all");
	}
	if (key)
		json_object_set_new(request, "key", json_string(key));
	return request_and_print(ctl, argv[0], request, NULL);
}

static int drain(struct kvctl *ctl, int argc, char **argv)
{
	int status;
	json_t *request = request_of(argc, argv, OPT_TENANT, NULL, &status);

	return request ? request_and_print(ctl, argv[0], request, NULL) : status;
}

/* Adds what a further answer found. */
static void add_findings(json_t *sum, const json_t *answer)
{
	double found = kvctl_number(sum, "problems_found") + kvctl_number(answer, "problems_found");

	json_array_extend(json_object_get(sum, "problems"), json_object_get(answer, "problems"));
	json_object_set_new(sum, "problems_found", json_integer((json_int_t)found));
	json_object_set_new(sum, "clean", json_boolean(!found));
}

/* Contents, slice by slice: the daemon serves others in between. */
static int check_payloads(struct kvctl *ctl, const char *tenant, json_t *sum)
{
	double total = kvctl_number(sum, "bytes"), done = 0;
	bool tty = isatty(STDERR_FILENO), found = false;
	json_t *next = json_integer(0), *answer;
	char a[32], b[32];
	int r;

	do {
		r = kvctl_ask(ctl,
			json_pack("{s:s, s:o, s:s*}", "verb", "check", "from", next, "tenant",
				tenant),
			&answer);
		next = json_incref(json_object_get(answer, "next"));
		if (json_object_get(answer, "problems")) {
			found = found || r < 0;
			r = 0;
			add_findings(sum, answer);
		} else {
			kvctl_refused("check", r, answer);
		}
		done += kvctl_number(answer, "bytes");
		if (tty)
			fprintf(stderr, "\r%s of %s", kvctl_bytes(done, a), kvctl_bytes(total, b));
		json_decref(answer);
	} while (r == 0 && next);
	json_decref(next);
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

static int check(struct kvctl *ctl, int argc, char **argv)
{
	json_t *answer = NULL, *request;
	bool payloads, answered;
	int r, status;
	char *tenant;

	request = request_of(argc, argv, OPT_TENANT | OPT_PAYLOADS, NULL, &status);
	if (!request)
		return status;
	payloads = json_is_true(json_object_get(request, "payloads"));
	json_object_del(request, "payloads");
	tenant = strdup(kvctl_text(request, "tenant"));
	r = kvctl_ask(ctl, request, &answer);
	answered = json_object_get(answer, "problems") != NULL;
	if (answered && payloads) {
		int found = check_payloads(ctl, *tenant ? tenant : NULL, answer);

		answered = found == 0 || found == -EBADMSG;
		r = r < 0 ? r : found;
	} else if (!answered) {
		kvctl_refused(argv[0], r, answer);
	}
	free(tenant);
	if (ctl->json)
		kvctl_print_json(answer);
	else if (answered && r < 0)
		print_findings(answer);
	else if (answered)
		printf("clean: %.0f blocks\n", kvctl_number(answer, "blocks"));
	json_decref(answer);
	return r < 0 ? KVCTL_BAD : KVCTL_OK;
}

static int version(struct kvctl *ctl, int argc, char **argv)
{
	json_t *answer = NULL;
	int r, status;
	json_t *request = request_of(argc, argv, 0, NULL, &status);

	if (!request)
		return status;
	r = kvctl_try(ctl, request, &answer);
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

/* ---- main ---------------------------------------------------------------------------------- */

static const struct command commands[] = {
	{ "status", kvctl_status, "the daemon and its tenants; --watch[=SECONDS] repeats" },
	{ "clients", clients, "who is attached" },
	{ "spaces", spaces, "models that blocks are cached for" },
	{ "tenants", tenants, "sharing domains, their shares and hit rates" },
	{ "blocks", blocks, "cached blocks; --tenant --space --state --pinned --sort --limit" },
	{ "inspect", with_key, "KEY: all about one block" },
	{ "pin", with_key, "KEY: never evict this block" },
	{ "unpin", with_key, "KEY: evict it like others again" },
	{ "evict", evict, "KEY | --count N | --all: drop what is not in use" },
	{ "drain", drain, "drop all that is not in use, recipes too, and give memory back" },
	{ "check", check, "verify every invariant; --payloads: contents too" },
	{ "doctor", kvctl_doctor, "is this machine set up well? Works without a daemon" },
	{ "version", version, "of kvctl and of the daemon" },
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *to)
{
	fputs("usage: kvctl [--socket PATH] [--timeout SECONDS] [--json] COMMAND [OPTIONS]\n\n",
		to);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].help);
	fputs("\nExit status: 0 done; 1 refused, or check or doctor found something; 2 wrong use;\n"
	      "3 no daemon to ask.\n",
		to);
}

/* Takes --json out of the command's own arguments: it may stand there too. */
static int take_json(int argc, char **argv, struct kvctl *ctl)
{
	int n = 0;

	for (int i = 0; i < argc; i++) {
		if (!strcmp(argv[i], "--json"))
			ctl->json = true;
		else
			argv[n++] = argv[i];
	}
	argv[n] = NULL;
	return n;
}

static int run(struct kvctl *ctl, int argc, char **argv)
{
	argc = take_json(argc, argv, ctl);
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!strcmp(argv[0], commands[i].name)) {
			/* 0 makes getopt start anew, with the command's own options. */
			optind = 0;
			return commands[i].run(ctl, argc, argv);
		}
	fprintf(stderr, "kvctl: there is no command '%s'\n\n", argv[0]);
	usage(stderr);
	return KVCTL_USAGE;
}

static int written(int status)
{
	return kvt_written("kvctl", status, KVCTL_BAD);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "timeout", required_argument, NULL, 't' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'v' },
		{ 0 },
	};
	struct kvctl ctl = { .timeout_ms = TIMEOUT_DEFAULT_MS };
	double seconds;
	char *end;
	int c, status;

	/* '+': options after the command are the command's. */
	while ((c = getopt_long(argc, argv, "+", longs, NULL)) != -1) {
		switch (c) {
		case 's':
			ctl.socket = optarg;
			break;
		case 't':
			seconds = strtod(optarg, &end);
			if (*end || seconds < 0.001 || seconds > 86400) {
				fprintf(stderr, "kvctl: --timeout: 0.001 to 86400 seconds\n");
				return KVCTL_USAGE;
			}
			ctl.timeout_ms = (uint32_t)(seconds * 1000);
			break;
		case 'j':
			ctl.json = true;
			break;
		case 'h':
			usage(stdout);
			return written(KVCTL_OK);
		case 'v':
			printf("kvctl %s\n", kvp_version());
			return written(KVCTL_OK);
		default:
			usage(stderr);
			return KVCTL_USAGE;
		}
	}
	if (optind == argc) {
		usage(stderr);
		return KVCTL_USAGE;
	}
	status = run(&ctl, argc - optind, argv + optind);
	kvp_admin_close(ctl.admin);
	return written(status);
}
