/* SPDX-License-Identifier: Apache-2.0 */
/* Demands, one after the other; what is said of their length is measured first. */
#include "tools/kvrun/kvr_serve.h"
#include "tools/kvrun/kvr_kv_pool.h"

#include "libclient/kvpool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SHORT_BLOCKS 4u /* of the two prompts that are timed */
#define LONG_BLOCKS  16u
#define MARGIN       4.0 /* times what they took is what is said: others want the processor as well */
#define LAUNCH       .25 /* seconds; finding and reserving blocks is in it */
#define LEAST_TOKEN  1e-6
#define WAIT_MS      200u /* until signals are looked at again */
#define PAUSE_NS     100000000

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
	(void)number;
	stopped = 1;
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void rest(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
}

/* Seconds of a prompt of n tokens in private memory. */
static int time_prompt(struct kvr_seq *seq, uint32_t n, double *ret_seconds)
{
	uint32_t *tokens = calloc(n, sizeof(*tokens));
	struct kvr_prefill prefill;
	const float *logits;
	double began = now();
	int r = tokens ? kvr_seq_prompt(seq, tokens, n, &prefill, &logits) : -ENOMEM;

	*ret_seconds = now() - began;
	kvr_seq_end(seq);
	free(tokens);
	return r;
}

/* Seconds of n tokens from the first on are n * token + n * n / 2 * position: two lengths say both. */
static int measure(
	const struct kvr_model *model, const struct kvr_geom *geom, struct kvp_serve_opts *offer)
{
	uint32_t few = SHORT_BLOCKS * geom->block_tokens, many = LONG_BLOCKS * geom->block_tokens;
	double of_few = 0, of_many = 0, token, position;
	struct kvr_seq *seq = NULL;
	struct kvr_kv *kv;
	int r;

	if (many > model->config.context) {
		many = model->config.context;
		few = many / 4 + 1;
	}
	r = kvr_kv_heap_new(geom, &kv);
	if (r < 0)
		return r;
	r = kvr_seq_new(model, kv, NULL, &seq);
	if (r == 0)
		r = time_prompt(seq, few, &of_few); /* the first one pays for pages and caches */
	if (r == 0)
		r = time_prompt(seq, few, &of_few);
	if (r == 0)
		r = time_prompt(seq, many, &of_many);
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	if (r < 0)
		return r;
	position = (of_many / many - of_few / few) / ((many - few) / 2.);
	position = position > 0 ? position : 0;
	token = of_many / many - many / 2. * position;
	offer->token_seconds = MARGIN * (token > LEAST_TOKEN ? token : LEAST_TOKEN);
	offer->position_seconds = MARGIN * position;
	return 0;
}

static int say(const struct serve_opts *o, const struct kvp_demand *d,
	const struct kvr_prefill *prefill, double seconds)
{
	if (!o->json) {
		fprintf(stderr,
			"computed tokens %u to %u for others, %u of them anew, in %.1f ms\n",
			d->first, d->n_tokens, prefill->computed, 1e3 * seconds);
		return 0;
	}
	return printf("{\"first\":%u,\"tokens\":%u,\"computed\":%u,\"ms\":%.3f}\n", d->first,
		       d->n_tokens, prefill->computed, 1e3 * seconds) > 0 &&
			       fflush(stdout) == 0
		       ? 0
		       : -EIO;
}

/* As any prompt: what is cached of it is read, the rest computed and published. */
static int compute(struct kvr_seq *seq, const uint32_t *tokens, const struct kvp_demand *d,
	const struct serve_opts *opts)
{
	struct kvr_prefill prefill;
	const float *logits;
	double began = now();
	int r = kvr_seq_prompt(seq, tokens, d->n_tokens, &prefill, &logits);

	kvr_seq_end(seq);
	/* A token that the model does not have: somebody else's mistake, and not to be computed. */
	if (r == -EINVAL)
		return 0;
	return r < 0 ? r : say(opts, d, &prefill, now() - began);
}

/* What a call of the library has said: 0: go on. */
static int after(int r, uint32_t retry_ms)
{
	if (r == -ETIMEDOUT || r == 0)
		return 0;
	if (r == -ETIME)
		fprintf(stderr,
			"kvrun: the last demand took longer than was said: no more for %u ms\n",
			retry_ms);
	else if (r != -EAGAIN && r != -ESHUTDOWN)
		return r;
	for (uint32_t ms = 0; !stopped && ms < (r == -ETIME ? retry_ms : 1); ms += 100)
		rest();
	return 0;
}

int serve_others(const struct kvr_model *model, struct kvr_kv *pool, struct kvr_seq *seq,
	const struct serve_opts *opts)
{
	struct kvp_serve_opts offer = {
		.size = sizeof(offer),
		.flags = opts->idle ? KVP_SERVE_IDLE : 0,
		.launch_seconds = LAUNCH,
		.max_tokens = model->config.context,
		.tokens_per_second = opts->rate,
	};
	struct sigaction action = { .sa_handler = on_signal };
	uint32_t *tokens = calloc(model->config.context, sizeof(*tokens));
	int r = tokens ? measure(model, &pool->geom, &offer) : -ENOMEM;

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	while (r == 0 && !stopped) {
		struct kvp_demand demand = { .size = sizeof(demand) };
		struct kvp_space *space = kvr_kv_pool_space(pool);
		uint32_t retry_ms = 0;

		if (!space) {
			rest();
			continue;
		}
		r = kvp_serve_remat(space, &offer, WAIT_MS, tokens, &retry_ms, &demand);
		r = r == 0 ? compute(seq, tokens, &demand, opts) : after(r, retry_ms);
	}
	if (r == 0 && kvr_kv_pool_space(pool))
		kvp_serve_end(kvr_kv_pool_space(pool));
	free(tokens);
	return r;
}
