/* SPDX-License-Identifier: Apache-2.0 */
/* kvreplay: traces through a real daemon or through policies alone. Commands, and dispatch. */
#include <stdio.h>
#include <string.h>

#include "libclient/kvpool.h"
#include "tools/common/kvt_output.h"
#include "tools/kvreplay/kvreplay.h"

static const struct {
	const char *name;
	const char *help;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "run", "a trace through a real daemon, by client processes that verify every hit",
		cmd_run },
	{ "simulate", "a trace through eviction policies, in this process", cmd_simulate },
	{ "generate", "a workload in the Mooncake format", cmd_generate },
	{ "graph", "what the advisor's graph is worth on a trace", cmd_graph },
	{ "thresholds", "a log of quality scores through the controllers, and their file",
		cmd_thresholds },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *f)
{
	fputs("usage: kvreplay COMMAND [OPTION]...\n\n", f);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
	fputs("\nkvreplay COMMAND --help tells a command's options.\n", f);
}

static int written(int status)
{
	return kvt_written("kvreplay", status, 1);
}

/* `name` is what getopt's messages begin with. */
static int run(size_t command, char *name, int argc, char **argv)
{
	argv[0] = name;
	return written(commands[command].run(argc, argv));
}

int main(int argc, char **argv)
{
	char name[32];

	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		usage(stdout);
		return written(0);
	}
	if (argc > 1 && !strcmp(argv[1], "--version")) {
		printf("kvreplay %s\n", kvp_version());
		return written(0);
	}
	for (size_t i = 0; argc > 1 && i < N_COMMANDS; i++)
		if (!strcmp(argv[1], commands[i].name)) {
			snprintf(name, sizeof(name), "kvreplay %s", argv[1]);
			return run(i, name, argc - 1, argv + 1);
		}
	if (argc > 1)
		fprintf(stderr, "kvreplay: no command '%s'\n", argv[1]);
	usage(stderr);
	return 2;
}
