/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that outlives the call that starts it: a stream, here a thread that stands for one of a
 * device, reads cached blocks long after the engine has gone on to the next request. The engine
 * releases each prefix "after" the number of the work that reads it, and waits for nothing.
 */
#include <kvpool.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define DIM      16
#define T        16
#define BLOCKS   4
#define REQUESTS 64

/* Work in the order in which it was enqueued; the i-th has number i + 1. */
struct stream {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct {
		const void *blocks[BLOCKS];
		int n;
	} work[REQUESTS];
	unsigned enqueued;
	struct kvp_timeline *timeline;
	double sum;
};

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/* One piece of work: reads blocks, and says that it is over. */
static void run_one(struct stream *s, unsigned i)
{
	for (int b = 0; b < s->work[i].n; b++) {
		const float *kv = s->work[i].blocks[b];

		for (unsigned k = 0; k < T * 2 * DIM; k++)
			s->sum += kv[k];
	}
	kvp_timeline_advance(s->timeline, i + 1);
}

static void *stream_main(void *arg)
{
	struct stream *s = arg;

	for (unsigned i = 0; i < REQUESTS; i++) {
		pthread_mutex_lock(&s->lock);
		while (i == s->enqueued)
			pthread_cond_wait(&s->more, &s->lock);
		pthread_mutex_unlock(&s->lock);
		run_one(s, i);
	}
	return NULL;
}

static int put(struct kvp_client *client, struct kvp_space *space, const uint32_t *tokens)
{
	static float kv[BLOCKS * T * 2 * DIM];
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint64_t bytes;
	int64_t n;

	for (unsigned i = 0; i < BLOCKS * T * 2 * DIM; i++)
		kv[i] = 1;
	kvp_view_dense(space, KVP_VIEW_NCLD, kv, BLOCKS * T, &plane, &bytes);
	n = kvp_put(space, tokens, BLOCKS * T, 0, &view, NULL, NULL);
	return n < 0 ? (int)n : kvp_flush(client, KVP_DEFAULT_TIMEOUT);
}

/* Finds the prompt, gives its blocks to the stream, and is done with it. */
static int request(struct stream *s, struct kvp_space *space, const uint32_t *tokens)
{
	unsigned i = s->enqueued;
	struct kvp_prefix *match;
	int r = kvp_match(space, tokens, BLOCKS * T, NULL, &match);

	if (r < 0)
		return r;
	r = kvp_payloads(match, 0, BLOCKS, s->work[i].blocks);
	s->work[i].n = r > 0 ? r : 0; /* else the engine would compute: nothing to read */
	r = kvp_release_after(match, s->timeline, i + 1);
	pthread_mutex_lock(&s->lock);
	s->enqueued++;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
	return r;
}

static int serve(struct kvp_client *client, struct kvp_space *space)
{
	static struct stream s = { .lock = PTHREAD_MUTEX_INITIALIZER,
		.more = PTHREAD_COND_INITIALIZER };
	uint32_t tokens[BLOCKS * T];
	unsigned blocks = 0;
	pthread_t thread;
	int r, wrong;

	for (uint32_t t = 0; t < BLOCKS * T; t++)
		tokens[t] = 5 * t;
	r = put(client, space, tokens);
	if (r == 0)
		r = kvp_timeline_new(client, &s.timeline);
	if (r < 0)
		return fail("put", r);
	r = pthread_create(&thread, NULL, stream_main, &s);
	if (r)
		return fail("pthread_create", -r);
	for (unsigned i = 0; i < REQUESTS && r == 0; i++)
		r = request(&s, space, tokens);
	pthread_join(thread, NULL);
	kvp_timeline_free(s.timeline);
	if (r < 0)
		return fail("request", r);
	for (unsigned i = 0; i < REQUESTS; i++)
		blocks += (unsigned)s.work[i].n;
	wrong = s.sum != (double)blocks * T * 2 * DIM;
	printf("%u requests read %u blocks in place, %s\n", REQUESTS, blocks,
		wrong ? "some of them wrong" : "all right");
	return wrong;
}

int main(void)
{
	struct kvp_layer layer = { .kv_heads = 1, .k_dim = DIM, .v_dim = DIM };
	struct kvp_space_desc model = {
		.size = sizeof(model),
		.model = "stream",
		.dtype = KVP_DTYPE_F32,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	int r = kvp_open(NULL, &client);

	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &model, KVP_DEFAULT_TIMEOUT, &space);
	if (r < 0) {
		kvp_close(client);
		return fail("kvp_space_open", r);
	}
	r = serve(client, space);
	kvp_space_close(space);
	kvp_close(client);
	return r;
}
