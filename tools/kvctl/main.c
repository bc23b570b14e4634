/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl: administration of a kvpoold. The table of commands and options, and dispatch. */
#include "tools/kvctl/kvctl.h"

#include <getopt.h>
#include <locale.h>
#include <string.h>

#include "libclient/kvpool_admin.h"
#include "tools/common/kvt_output.h"

#define TIMEOUT_DEFAULT_MS 30000u
#define BLOCKS_MAX         100000             /* of one answer */
#define MEMORY_MAX         1125899906842624.0 /* of a share */
#define COUNT_MAX          1048576            /* more blocks than a tenant may have */

#define TENANT                                                                                     \
	{                                                                                          \
		"tenant", "NAME", "this tenant only (kvctl tenants lists them)", KVCTL_TAKES_TEXT, \
			0, 0, 0                                                                    \
	}

static const struct kvctl_option of_status[] = {
	{ "watch", "SECONDS", "again every second, or as said, with the busiest clients",
		KVCTL_TAKES_SECONDS, 0.1, 3600, 1 },
	{ "count", "N", "with --watch: end after N times", KVCTL_TAKES_NUMBER, 1, 1e9, 0 },
	{ 0 },
};

static const struct kvctl_option of_tenant[] = { TENANT, { 0 } };

static const struct kvctl_option of_blocks[] = {
	TENANT,
	{ "space", "NUMBER", "this model only (kvctl spaces lists them)", KVCTL_TAKES_NUMBER, 0,
		4294967295.0, 0 },
	{ "state", "live|recipe|evicting", "in this state only; recipe: token ids without payload",
		KVCTL_TAKES_WORD, 0, 0, 0 },
	{ "pinned", NULL, "pinned ones only", KVCTL_TAKES_NOTHING, 0, 0, 0 },
	{ "sort", "serial|hits|touched|depth|tokens",
		"largest first; serial: the newest (the default)", KVCTL_TAKES_WORD, 0, 0, 0 },
	{ "limit", "N", "the first N (100)", KVCTL_TAKES_NUMBER, 0, BLOCKS_MAX, 0 },
	{ 0 },
};

static const struct kvctl_option of_evict[] = {
	TENANT,
	{ "count", "N", "so many, in the policy's order", KVCTL_TAKES_NUMBER, 1, COUNT_MAX, 0 },
	{ "all", NULL, "as many as there are", KVCTL_TAKES_NOTHING, 0, 0, 0 },
	{ 0 },
};

static const struct kvctl_option of_check[] = {
	TENANT,
	{ "payloads", NULL, "compare contents with their checksums too", KVCTL_TAKES_NOTHING, 0, 0,
		0 },
	{ 0 },
};

static const struct kvctl_option of_what_if[] = {
	TENANT,
	{ "memory", "BYTES", "with this share, 8G say; without: a quarter to four times the share",
		KVCTL_TAKES_BYTES, 1, MEMORY_MAX, 0 },
	{ "floor", "CODEC", "with blocks coded so, tq4 say; without: as their spaces' floors allow",
		KVCTL_TAKES_TEXT, 0, 0, 0 },
	{ 0 },
};

static const struct kvctl_option none[] = { { 0 } };

#define A_KEY "KEY is 32 hexadecimal digits, or the first 8 or more if no other block begins so."

static const struct kvctl_command commands[] = {
	{ "status", NULL, "the daemon, its memory, and its tenants with their hit rates", NULL,
		of_status, kvctl_status },
	{ "clients", NULL, "who is attached, what they hold, and what they found", NULL, of_tenant,
		kvctl_list },
	{ "spaces", NULL, "models that blocks are cached for, and what each holds", NULL, of_tenant,
		kvctl_list },
	{ "space", "set NAME KEY=VALUE...",
		"says when blocks of a model that accepts it are coded with fewer bits",
		"NAME is that of the model, or the first 8 digits or more of its fingerprint. "
		"KEY=VALUE:\n"
		"precision=pressure     where there is no room (the default)\n"
		"precision=budget       so that they take budget= of what they would natively; "
		"the\n"
		"                       least important go first\n"
		"precision=zones        by age in tokens: native below hot_tokens=, 4 bits below\n"
		"                       stale_tokens=, beyond as few as the model accepts\n"
		"floor=CODEC            none of these further down than to that: exact, int8, tq4, "
		"tq4/tq2;\n"
		"                       not below what its engine accepts\n"
		"It holds until the model is dropped or the daemon ends; kvpoold.yaml(5) has the "
		"same keys\n"
		"but for floor=, for which least_bits stands there.",
		of_tenant, kvctl_space },
	{ "device", "list|drain|detach|attach [NAME]",
		"memory besides DRAM that blocks are copied to: lists it, empties and detaches it",
		"list has all devices. drain lets nothing new come to the device NAME, and waits "
		"until it\n"
		"is empty: what is leased there goes when its lease ends. detach drains it, ends "
		"its worker\n"
		"and closes all that is open of it, so that it can be reset. attach brings it "
		"back. Exit\n"
		"status 1 if that is not so within --timeout; it goes on nevertheless.",
		of_tenant, kvctl_device },
	{ "tenants", NULL, "sharing domains, what they use of their shares, and their counters",
		NULL, of_tenant, kvctl_list },
	{ "blocks", NULL, "cached blocks", NULL, of_blocks, kvctl_list },
	{ "inspect", "KEY", "all about one block: where it is, its token ids, the blocks above it",
		A_KEY, of_tenant, kvctl_one_block },
	{ "pin", "KEY", "never evict this block, nor those above it", A_KEY, of_tenant,
		kvctl_one_block },
	{ "unpin", "KEY", "evict it like others again", A_KEY, of_tenant, kvctl_one_block },
	{ "evict", "[KEY]", "drop payloads that are not in use; says what kept the others",
		"Give a key, --count or --all. What is leased, granted, pinned, being moved or "
		"has\n"
		"children stays.\n" A_KEY,
		of_evict, kvctl_evict },
	{ "drain", NULL, "drop all that is not in use, token ids too, and give memory back", NULL,
		of_tenant, kvctl_drain },
	{ "check", NULL, "verify every invariant while the daemon serves",
		"Exit status 1 if anything contradicts anything.", of_check, kvctl_check },
	{ "what-if", NULL, "what tenants would hit, and hold, with another share or floor",
		"From what was asked for so far, for a cache that evicts what was not used for "
		"longest\n"
		"(docs/policies.md). SHARE is a tenant's share, metadata included; HIT% is of "
		"blocks.",
		of_what_if, kvctl_what_if },
	{ "thresholds", "list|export|import [FILE]",
		"what was learnt of the bits that models bear, which outlives the daemon",
		"list has a row for each model, context length and layer that scores came of. "
		"export\n"
		"writes those of --tenant to FILE, import adds those of FILE to what --tenant has: "
		"all\n"
		"of them, or none if anything is wrong with one. kvpoold.yaml(5): state_dir.",
		of_tenant, kvctl_thresholds },
	{ "metrics", NULL, "figures for a monitoring system, as Prometheus reads them",
		"Names are kvpool_ and those of docs/figures.md. The text collector of a node's "
		"exporter\n"
		"takes it from a file; with --json the same as JSON.",
		of_tenant, kvctl_metrics },
	{ "doctor", NULL, "is this machine set up well? Works without a daemon",
		"Exit status 1 if there is a problem; notes are none.", none, kvctl_doctor },
	{ "version", NULL, "of kvctl and of the daemon", NULL, none, kvctl_version },
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *to)
{
	fputs("usage: kvctl [OPTION]... COMMAND [OPTION]...\n\n", to);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].summary);
	fputs("\nkvctl COMMAND --help tells a command's options. With every command:\n\n", to);
	kvctl_print_options(to, kvctl_common_options);
	fputs("  --version                of kvctl alone\n\n"
	      "Exit status: 0 done; 1 refused, or check or doctor found something; 2 wrong use;\n"
	      "3 no daemon to ask.\n",
		to);
}

/* Known before anything can be wrong: errors are JSON too, wherever --json stands. */
static bool asks_for_json(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--json"))
			return true;
	return false;
}

static const struct kvctl_command *command_called(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!strcmp(name, commands[i].name))
			return &commands[i];
	return NULL;
}

/* kvctl help, kvctl help COMMAND: as kvctl [COMMAND] --help. */
static int run_help(struct kvctl *ctl, int argc, char **argv)
{
	const struct kvctl_command *of = argc > 1 ? command_called(argv[1]) : NULL;

	if (argc > 1 && !of)
		return kvctl_fail(ctl, "help", KVCTL_USAGE,
			"there is no command '%s'; kvctl --help lists those there are", argv[1]);
	if (of)
		kvctl_help(stdout, of);
	else
		usage(stdout);
	return KVCTL_OK;
}

static int run(struct kvctl *ctl, int argc, char **argv)
{
	const struct kvctl_command *command = command_called(argv[0]);
	json_t *given;
	int status;

	if (!strcmp(argv[0], "help"))
		return run_help(ctl, argc, argv);
	if (!command)
		return kvctl_fail(ctl, NULL, KVCTL_USAGE,
			"there is no command '%s'; kvctl --help lists those there are", argv[0]);
	status = kvctl_read(ctl, command, argc, argv, &given);
	if (given)
		status = command->run(ctl, command, given);
	json_decref(given);
	return status;
}

/* Reads the options before the command. -1: go on; else an exit status. */
static int read_own_options(struct kvctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "socket", required_argument, NULL, 0 },
		{ "timeout", required_argument, NULL, 1 },
		{ "json", no_argument, NULL, 2 },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 4 },
		{ 0 },
	};
	int c, r = 0;

	opterr = 0;
	/* '+': options after the command are read with the command's. */
	while (r == 0 && (c = getopt_long(argc, argv, "+:h", longs, NULL)) != -1) {
		if (c < 2) {
			r = kvctl_set_common(ctl, NULL, &kvctl_common_options[c], optarg);
		} else if (c == 'h') {
			usage(stdout);
			return KVCTL_OK;
		} else if (c == 4) {
			printf("kvctl %s\n", kvp_version());
			return KVCTL_OK;
		} else if (c == ':') {
			r = kvctl_fail(
				ctl, NULL, KVCTL_USAGE, "%s needs a value", argv[optind - 1]);
		} else if (c == '?') {
			r = kvctl_fail(ctl, NULL, KVCTL_USAGE,
				"there is no option %s before a command; kvctl --help lists them",
				argv[optind - 1]);
		}
	}
	if (r == 0 && optind == argc)
		r = kvctl_fail(ctl, NULL, KVCTL_USAGE,
			"which command? kvctl --help lists those there are");
	return r ? r : -1;
}

int main(int argc, char **argv)
{
	struct kvctl ctl = { .timeout_ms = TIMEOUT_DEFAULT_MS, .json = asks_for_json(argc, argv) };
	int status;

	setlocale(LC_CTYPE, ""); /* names are as wide as the terminal shows them */
	status = read_own_options(&ctl, argc, argv);
	if (status < 0)
		status = run(&ctl, argc - optind, argv + optind);
	kvp_admin_close(ctl.admin);
	return kvt_written("kvctl", status, KVCTL_BAD);
}
