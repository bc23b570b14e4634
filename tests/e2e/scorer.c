/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that opens a model whose blocks may have 2 bits, reports the same score so often, prints a
 * line, and waits until its standard input ends: SOCKET MODEL SCORE TIMES.
 */
#include <errno.h>
#include <kernels/kvp_codec.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/kvpool.h"

#define WAIT_MS 60000u

static void must(int r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(-r));
	exit(1);
}

int main(int argc, char **argv)
{
	const struct kvp_layer layer = { .kv_heads = 2, .k_dim = 64, .v_dim = 64 };
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.dtype = KVP_DTYPE_F16,
		.n_layers = 1,
		.layers = &layer,
		.floor_k = KVP_CODEC_TQ2,
		.floor_v = KVP_CODEC_TQ2,
	};
	struct kvp_open_opts opts = { .size = sizeof(opts), .default_timeout_ms = WAIT_MS };
	struct kvp_client *client;
	struct kvp_space *space;

	if (argc != 5)
		return 2;
	opts.socket = argv[1];
	desc.model = argv[2];
	must(kvp_open(&opts, &client), "open");
	must(kvp_space_open(client, &desc, WAIT_MS, &space), "space");
	for (int i = 0; i < atoi(argv[4]); i++) {
		int r;

		while ((r = kvp_report_quality(space, atof(argv[3]))) == -EAGAIN)
			usleep(1000);
		must(r, "report");
	}
	must(kvp_flush(client, WAIT_MS), "flush");
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	kvp_space_close(space);
	kvp_close(client);
	return 0;
}
