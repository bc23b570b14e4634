/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that outlives the call that starts it: a stream, here a thread that stands for one of a
 * device, reads cached blocks and writes a new one long after the engine has gone on to the next
 * request. The engine releases each prefix and commits each block "after" the number of the work that
 * reads and writes them, and waits for nothing.
 */
#include <errno.h>
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
		float *new_block; /* NULL: there was no room */
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

/* One piece of work: reads blocks, writes one, and says that it is over. */
static void run_one(struct stream *s, unsigned i)
{
	for (unsigned k = 0; s->work[i].new_block && k < T * 2 * DIM; k++)
		s->work[i].new_block[k] = 2;
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

/* The block that request i adds to the prompt. */
static void answer(unsigned i, uint32_t *tokens)
{
	for (uint32_t t = 0; t < T; t++)
		tokens[t] = 1000 * (i + 1) + t;
}

/* A slot for the answer, committed before it is written. */
static int extend(struct stream *s, struct kvp_space *space, struct kvp_prefix *match, unsigned i)
{
	uint32_t tokens[T];
	struct kvp_grant *grant;
	struct kvp_ref parent;
	int r = kvp_match_ref(match, (uint32_t)s->work[i].n, &parent);

	if (r == 0)
		r = kvp_reserve(space, 0, NULL, &grant);
	if (r < 0)
		return r == -EAGAIN ? 0 : r;
	answer(i, tokens);
	s->work[i].new_block = kvp_grant_addr(grant);
	return kvp_commit_after(
		grant, parent, tokens, T, NULL, KVP_COMMIT_RELEASE, s->timeline, i + 1);
}

/* Finds the prompt, gives its blocks and a new one to the stream, and is done with them. */
static int request(struct stream *s, struct kvp_space *space, const uint32_t *tokens)
{
	unsigned i = s->enqueued;
	struct kvp_prefix *match;
	int r = kvp_match(space, tokens, BLOCKS * T, NULL, &match);

	if (r < 0)
		return r;
	r = kvp_payloads(match, 0, BLOCKS, s->work[i].blocks);
	s->work[i].n = r > 0 ? r : 0; /* else the engine would compute: nothing to read */
	r = extend(s, space, match, i);
	if (r == 0)
		r = kvp_release_after(match, s->timeline, i + 1);
	else
		kvp_release(match);
	pthread_mutex_lock(&s->lock);
	s->enqueued++;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* How many of the new blocks are found, all of them written; -1: one is not. */
static int found(struct kvp_space *space, uint32_t *tokens)
{
	int n = 0;

	for (unsigned i = 0; i < REQUESTS; i++) {
		struct kvp_payload_info payload = { .size = sizeof(payload) };
		struct kvp_prefix *match;

		answer(i, tokens + BLOCKS * T);
		if (kvp_match(space, tokens, (BLOCKS + 1) * T, NULL, &match) < 0)
			return -1;
		if (kvp_payload(match, BLOCKS, &payload) == 0) {
			const float *kv = payload.addr;

			n += kv[0] == 2 && kv[T * 2 * DIM - 1] == 2 ? 1 : -REQUESTS;
		}
		kvp_release(match);
	}
	return n < 0 ? -1 : n;
}

static int serve(struct kvp_client *client, struct kvp_space *space)
{
	static struct stream s = { .lock = PTHREAD_MUTEX_INITIALIZER,
		.more = PTHREAD_COND_INITIALIZER };
	uint32_t tokens[(BLOCKS + 1) * T];
	unsigned blocks = 0;
	pthread_t thread;
	int r, written, wrong;

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
	if (r == 0)
		pthread_join(thread, NULL);
	kvp_timeline_free(s.timeline);
	if (r == 0)
		r = kvp_flush(client, KVP_DEFAULT_TIMEOUT);
	if (r < 0)
		return fail("request", r);
	written = found(space, tokens);
	for (unsigned i = 0; i < REQUESTS; i++)
		blocks += (unsigned)s.work[i].n;
	wrong = s.sum != (double)blocks * T * 2 * DIM || written < 0;
	printf("%u requests read %u blocks in place and wrote %d, %s\n", REQUESTS, blocks, written,
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
