/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libclient/kvpool.h"
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
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *f)
{
	fputs("usage: kvreplay COMMAND [OPTION]...\n\n", f);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
	fputs("\nkvreplay COMMAND --help tells a command's options.\n", f);
}

/* `name` is what getopt's messages begin with. */
static int run(size_t command, char *name, int argc, char **argv)
{
	argv[0] = name;
	int r = commands[command].run(argc, argv);

	/* a full disk must not pass for a result */
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "kvreplay: cannot write the result: %s\n", strerror(errno));
		return r ? r : 1;
	}
	return r;
}

int main(int argc, char **argv)
{
	char name[32];

	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		usage(stdout);
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "--version")) {
		printf("kvreplay %s\n", kvp_version());
		return 0;
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
