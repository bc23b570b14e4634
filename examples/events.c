/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event loop that serves requests and waits for kvpool beside them: a prompt that somebody else
 * computes, and blocks that are on their way to the others, by one descriptor in one poll().
 *
 *	cc events.c $(pkg-config --cflags --libs kvpool) && ./a.out
 */
#include <errno.h>
#include <kvpool.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DIM     16
#define T       16
#define TOKENS  (4 * T)
#define WAIT_MS 5000

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/* As the loop does it; its other descriptors stand beside this one. */
static int sleep_until_something(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t times;
	int n = poll(&p, 1, WAIT_MS);

	if (n <= 0)
		return n < 0 ? -errno : -ETIMEDOUT;
	/* First read, then look: what happens in between is announced again. */
	(void)!read(fd, &times, sizeof(times));
	return 0;
}

/* Stands for another engine of the machine, which has claimed the prompt and computes it. */
static int others_store(struct kvp_space *space, const uint32_t *tokens)
{
	static float kv[TOKENS * 2 * DIM];
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint64_t bytes;

	kvp_view_dense(space, KVP_VIEW_NCLD, kv, TOKENS, &plane, &bytes);
	return (int)kvp_put(space, tokens, TOKENS, 0, &view, NULL, NULL);
}

static int serve(struct kvp_client *client, struct kvp_space *space, struct kvp_client *others,
	struct kvp_space *theirs)
{
	struct kvp_match_opts claim = { .size = sizeof(claim), .flags = KVP_MATCH_CLAIM };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *claimed, *pending;
	uint32_t tokens[TOKENS];
	uint64_t mark;
	int fd = kvp_event_fd(client, KVP_EVENT_CLAIMS);
	int commits = kvp_event_fd(others, KVP_EVENT_COMMITS), r;

	if (fd < 0 || commits < 0)
		return fd < 0 ? fd : commits;
	for (uint32_t t = 0; t < TOKENS; t++)
		tokens[t] = (uint32_t)getpid() * 1000 + t;
	if ((r = kvp_match(theirs, tokens, TOKENS, &claim, &claimed)) < 0)
		return r;
	if ((r = kvp_match(space, tokens, TOKENS, &claim, &pending)) < 0)
		return r;
	kvp_match_info(pending, &info);
	printf("%s\n", info.flags & KVP_MATCHED_PENDING ? "somebody computes it" : "nobody does");
	if ((r = others_store(theirs, tokens)) < 0 || (r = kvp_flush_mark(others, &mark)) < 0)
		return r;
	if (info.flags & KVP_MATCHED_PENDING)
		while ((r = kvp_wait(pending, 0)) == -ETIMEDOUT)
			if ((r = sleep_until_something(fd)) < 0)
				return r;
	printf("the next block is %s\n", r == 0 ? "there" : "ours to compute");
	while ((r = kvp_flush_done(others, mark)) == 0)
		if ((r = sleep_until_something(commits)) < 0)
			break;
	if (r < 0)
		return r;
	kvp_release(pending);
	kvp_release(claimed);
	kvp_match(space, tokens, TOKENS, NULL, &pending);
	kvp_match_info(pending, &info);
	printf("%u of %d tokens are cached\n", info.n_tokens, TOKENS);
	return kvp_release(pending);
}

static int open_space(struct kvp_client **ret_client, struct kvp_space **ret_space)
{
	struct kvp_layer layer = { .kv_heads = 1, .k_dim = DIM, .v_dim = DIM };
	struct kvp_space_desc model = {
		.size = sizeof(model),
		.model = "events",
		.dtype = KVP_DTYPE_F32,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer,
	};
	int r = kvp_open(NULL, ret_client);

	if (r < 0)
		return r;
	r = kvp_space_open(*ret_client, &model, KVP_DEFAULT_TIMEOUT, ret_space);
	if (r < 0)
		kvp_close(*ret_client);
	return r;
}

int main(void)
{
	struct kvp_client *client, *others;
	struct kvp_space *space, *theirs;
	int r = open_space(&client, &space);

	if (r < 0)
		return fail("kvpool", r);
	r = open_space(&others, &theirs);
	if (r == 0) {
		r = serve(client, space, others, theirs);
		kvp_close(others);
	}
	kvp_close(client);
	return r < 0 ? fail("serve", r) : 0;
}
