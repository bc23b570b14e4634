/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that lets its blocks be coded with 4 bits when memory is short, and says how good its output
 * is: while it is not good enough, kvpoold codes the next blocks with more bits. `kvctl spaces` shows that.
 *
 *	cc quality.c $(pkg-config --cflags --libs kvpool kvpool-kernels) && ./a.out
 */
#include <errno.h>
#include <kernels/kvp_codec.h>
#include <kvpool.h>
#include <stdio.h>
#include <string.h>

#define HEADS 2
#define DIM   64
#define STEPS 40

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/*
 * Stands for an engine that now and then chooses a token over native blocks too: 1 if it is the token
 * that it chose over those that there are.
 */
static double agrees(int step)
{
	return step % 20 ? 1 : 0;
}

int main(void)
{
	struct kvp_layer layer = { .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM };
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = "quality-example",
		.dtype = KVP_DTYPE_F16,
		.n_layers = 1,
		.layers = &layer,
		.floor_k = KVP_CODEC_TQ4,
		.floor_v = KVP_CODEC_TQ4,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	int r, reported = 0;

	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &desc, KVP_DEFAULT_TIMEOUT, &space);
	if (r < 0) {
		fail("kvp_space_open", r);
		kvp_close(client);
		return 1;
	}
	for (int step = 0; step < STEPS; step++) {
		/* A score that is lost (-EAGAIN) is none the engine has to care for. */
		r = kvp_report_quality(space, agrees(step));
		reported += r == 0;
	}
	printf("%d of %d scores reported\n", reported, STEPS);
	kvp_space_close(space);
	kvp_close(client);
	return reported ? 0 : fail("kvp_report_quality", r);
}
