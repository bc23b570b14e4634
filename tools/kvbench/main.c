/* SPDX-License-Identifier: Apache-2.0 */
/* kvbench: figures of kvpool on this machine. The table of commands, and dispatch. */
#include <stdio.h>
#include <string.h>

#include "libclient/kvpool.h"
#include "tools/common/kvt_output.h"
#include "tools/kvbench/kvbench.h"

static const struct {
	const char *name;
	const char *help;
	int (*run)(int argc, char **argv);
} commands[] = {
	{ "attention", "attention over compressed planes, against decoding first",
		kvbench_attention },
	{ "background", "one client, idle and beside what the daemon does in the background",
		kvbench_background },
	{ "calibrate", "what the codec pca must know of a model, as a file", kvbench_calibrate },
	{ "codecs", "bytes, error and speed of every codec", kvbench_codecs },
	{ "device", "copies to and from a device, against memcpy", kvbench_device },
	{ "estimate", "what a cache takes in a codec, and what a budget holds", kvbench_estimate },
	{ "fairness", "a well-behaved client beside other tenants' loads and attacks",
		kvbench_fairness },
	{ "hotpath", "match, lease and release, proven to make no system call", kvbench_hotpath },
	{ "lossless", "the codec that keeps every bit, beside zstd", kvbench_lossless },
	{ "policy", "cost of eviction decisions, and memory for them", kvbench_policy },
	{ "precision", "blocks coded anew by the daemon, and a client beside it",
		kvbench_precision },
	{ "put", "storing blocks, against memcpy", kvbench_put },
	{ "quality", "a real model with its KV held in a codec", kvbench_quality },
	{ "restore", "a cached prefix loaded, decoded or computed again, and the daemon's choice",
		kvbench_restore },
	{ "scale", "1 to 1,000 attached clients", kvbench_scale },
	{ "suite", "perplexity, accuracy, memory, latency and throughput, one after the other",
		kvbench_suite },
	{ "versus", "the same blocks from Redis and memcached", kvbench_versus },
	{ "warm", "how long until a block can be read on a device", kvbench_warm },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *f)
{
	fputs("usage: kvbench COMMAND [OPTION]...\n\n", f);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
	fputs("\nFigures are printed and not judged; --json prints one JSON document on stdout.\n"
	      "kvbench COMMAND --help tells a command's options.\n",
		f);
}

static int written(int status)
{
	return kvt_written("kvbench", status, 1);
}

int main(int argc, char **argv)
{
	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		usage(stdout);
		return written(0);
	}
	if (argc > 1 && !strcmp(argv[1], "--version")) {
		printf("kvbench %s\n", kvp_version());
		return written(0);
	}
	for (size_t i = 0; argc > 1 && i < N_COMMANDS; i++)
		if (!strcmp(argv[1], commands[i].name))
			return written(commands[i].run(argc - 1, argv + 1));
	if (argc > 1)
		fprintf(stderr, "kvbench: no command '%s'\n", argv[1]);
	usage(stderr);
	return 2;
}
