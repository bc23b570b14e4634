/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvllama: serves a GGUF model to programs of this machine. It owns the context, so that every prompt
 * begins with what any process of the tenant has computed, and what is computed here is there for others.
 *
 *	kvllama --model FILE.gguf [--kvpool SOCKET|off] [--listen PATH] [OPTION]...
 *
 * Without --listen a request is a line of standard input; with it, of a connection to that Unix socket.
 * Requests are served one after another. Each is numbers apart by blanks: how many tokens to generate,
 * then the token ids of the prompt. The answer is one line:
 *
 *	ok REUSED STORED MICROSECONDS DIGEST ID...      of the prompt; to the first token; of all logits
 *	error TEXT
 *
 * Built where meson finds llama.cpp (llama.pc), or by hand:
 *
 *	cc *.c $(pkg-config --cflags --libs kvpool llama libxxhash)
 */
#include "pool.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define CONNECTIONS 16
#define LINE_BYTES  (1u << 20)

struct options {
	const char *model, *kvpool, *listen, *name, *type_k, *type_v;
	uint32_t threads, ctx, block_tokens, timeout_ms;
};

struct server {
	struct llama_model *model;
	struct llama_context *ctx;
	struct kvl_pool *pool; /* NULL: none */
	llama_token *ids;      /* n_ctx of them */
	uint32_t n_ctx, n_batch, n_vocab;
};

struct connection {
	int in, out; /* -1: free */
	size_t have;
	char *line; /* LINE_BYTES */
};

/* ---- one request ------------------------------------------------------------------------------ */

static uint64_t microseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Decodes ids[from..to) after what the sequence has. */
static int decode(struct server *s, uint32_t from, uint32_t to)
{
	while (from < to) {
		uint32_t n = to - from < s->n_batch ? to - from : s->n_batch;

		if (llama_decode(s->ctx, llama_batch_get_one(s->ids + from, (int32_t)n)) != 0)
			return -EIO;
		from += n;
	}
	return 0;
}

static llama_token likeliest(const struct server *s, const float *logits)
{
	llama_token best = 0;

	for (uint32_t i = 1; i < s->n_vocab; i++)
		if (logits[i] > logits[best])
			best = (llama_token)i;
	return best;
}

/* Numbers of the line into ids, and how many tokens are wanted. Returns how many there are. */
static int64_t parse(const struct server *s, const char *line, uint32_t *ret_steps)
{
	char *end;
	long v = strtol(line, &end, 10);
	uint32_t n = 0;

	if (end == line || v < 1 || v > (long)s->n_ctx)
		return -EINVAL;
	*ret_steps = (uint32_t)v;
	for (;;) {
		line = end + strspn(end, " \t\r");
		if (!*line)
			return n ? (int64_t)n : -EINVAL;
		v = strtol(line, &end, 10);
		if (end == line || v < 0 || v >= (long)s->n_vocab)
			return -EINVAL;
		if (n + *ret_steps >= s->n_ctx)
			return -E2BIG;
		s->ids[n++] = (llama_token)v;
	}
}

/* The prompt ids[0..n), and so many more tokens after it. Returns the prompt's tokens that were reused. */
static int64_t complete(struct server *s, uint32_t n, uint32_t steps, int64_t *ret_stored,
	uint64_t *ret_us, uint64_t *ret_digest)
{
	uint64_t begin = microseconds();
	int64_t reused = 0;

	*ret_digest = 0;
	*ret_stored = 0;
	llama_memory_clear(llama_get_memory(s->ctx), false);
	if (s->pool)
		reused = kvl_restore(s->pool, 0, s->ids, n);
	if (reused < 0)
		return reused;
	if (decode(s, (uint32_t)reused, n) < 0)
		return -EIO;
	for (uint32_t i = 0; i < steps; i++) {
		const float *logits = llama_get_logits_ith(s->ctx, -1);

		if (!logits)
			return -EIO;
		*ret_digest =
			XXH3_64bits_withSeed(logits, s->n_vocab * sizeof(*logits), *ret_digest);
		s->ids[n + i] = likeliest(s, logits);
		if (i == 0)
			*ret_us = microseconds() - begin;
		/* The last one is not decoded: nobody asks what follows it. */
		if (i + 1 < steps && decode(s, n + i, n + i + 1) < 0)
			return -EIO;
	}
	if (s->pool)
		*ret_stored = kvl_store(s->pool, 0, s->ids, n + steps - 1);
	return *ret_stored < 0 ? *ret_stored : reused;
}

static void answer(struct server *s, const char *line, FILE *out)
{
	uint64_t us = 0, digest = 0;
	int64_t stored, reused;
	uint32_t steps = 0;
	int64_t n = parse(s, line, &steps);

	reused = n < 0 ? n : complete(s, (uint32_t)n, steps, &stored, &us, &digest);
	if (reused < 0) {
		fprintf(out, "error %s\n", strerror((int)-reused));
		return;
	}
	fprintf(out, "ok %lld %lld %llu %016llx", (long long)reused, (long long)stored,
		(unsigned long long)us, (unsigned long long)digest);
	for (uint32_t i = 0; i < steps; i++)
		fprintf(out, " %d", s->ids[n + i]);
	fputc('\n', out);
}

/* ---- connections ------------------------------------------------------------------------------ */

static int listen_at(const char *path)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd;

	if (strlen(path) >= sizeof(at.sun_path))
		return -ENAMETOOLONG;
	strcpy(at.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	unlink(path); /* a former process's */
	if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 8) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	return fd;
}

static void hang_up(struct connection *c)
{
	if (c->in > STDERR_FILENO)
		close(c->in);
	free(c->line);
	*c = (struct connection){ .in = -1 };
}

static int begin(struct connection *c, int in, int out)
{
	char *line = malloc(LINE_BYTES);

	if (!line)
		return -ENOMEM;
	*c = (struct connection){ .in = in, .out = out, .line = line };
	return 0;
}

static int write_all(int fd, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t w = write(fd, p, n);

		if (w < 0 && errno != EINTR)
			return -errno;
		p += w > 0 ? w : 0;
		n -= w > 0 ? (size_t)w : 0;
	}
	return 0;
}

static int reply(struct server *s, const char *line, int fd)
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	int r;

	if (!out)
		return -ENOMEM;
	answer(s, line, out);
	r = fclose(out) ? -ENOMEM : write_all(fd, text, bytes);
	free(text);
	return r;
}

/* What can be read, and the answers to lines that are whole. 0: the connection goes on. */
static int take(struct server *s, struct connection *c)
{
	ssize_t got = read(c->in, c->line + c->have, LINE_BYTES - c->have);
	char *line = c->line, *end;

	if (got <= 0)
		return got < 0 && errno == EINTR ? 0 : -ENOTCONN;
	c->have += (size_t)got;
	while ((end = memchr(line, '\n', c->have - (size_t)(line - c->line)))) {
		*end = '\0';
		if (reply(s, line, c->out) < 0)
			return -EPIPE;
		line = end + 1;
	}
	c->have -= (size_t)(line - c->line);
	memmove(c->line, line, c->have);
	return c->have == LINE_BYTES ? -E2BIG : 0;
}

/* Until standard input ends; a listening server is ended by a signal. */
static int serve(struct server *s, const char *path)
{
	struct connection all[CONNECTIONS];
	struct pollfd poll_for[CONNECTIONS + 1];
	int at = path ? listen_at(path) : -1, r;

	for (int i = 0; i < CONNECTIONS; i++)
		all[i].in = -1;
	if (path && at < 0)
		return at;
	r = path ? 0 : begin(&all[0], STDIN_FILENO, STDOUT_FILENO);
	while (r == 0 && (path || all[0].in >= 0)) {
		int free_one = -1;

		for (int i = 0; i < CONNECTIONS; i++) {
			poll_for[i] = (struct pollfd){ .fd = all[i].in, .events = POLLIN };
			if (all[i].in < 0)
				free_one = i;
		}
		/* Who comes when all are taken waits in the socket's queue. */
		poll_for[CONNECTIONS] =
			(struct pollfd){ .fd = free_one < 0 ? -1 : at, .events = POLLIN };
		if (poll(poll_for, CONNECTIONS + 1, -1) < 0) {
			r = errno == EINTR ? 0 : -errno;
			continue;
		}
		for (int i = 0; i < CONNECTIONS; i++)
			if (all[i].in >= 0 && poll_for[i].revents && take(s, &all[i]) < 0)
				hang_up(&all[i]);
		if (poll_for[CONNECTIONS].revents) {
			int fd = accept4(at, NULL, NULL, SOCK_CLOEXEC);

			if (fd >= 0 && begin(&all[free_one], fd, fd) < 0)
				close(fd);
		}
	}
	for (int i = 0; i < CONNECTIONS; i++)
		if (all[i].in >= 0)
			hang_up(&all[i]);
	return r;
}

/* ---- beginning and end ------------------------------------------------------------------------ */

static void quiet(enum ggml_log_level level, const char *text, void *unused)
{
	(void)unused;
	if (level == GGML_LOG_LEVEL_ERROR)
		fputs(text, stderr);
}

static enum ggml_type type_by_name(const char *name)
{
	for (int t = 0; t < GGML_TYPE_COUNT; t++)
		if (ggml_type_name((enum ggml_type)t) &&
			!strcmp(name, ggml_type_name((enum ggml_type)t)))
			return (enum ggml_type)t;
	return GGML_TYPE_COUNT;
}

static int start(struct server *s, const struct options *o)
{
	struct llama_model_params mp = llama_model_default_params();
	struct llama_context_params cp = llama_context_default_params();
	struct kvl_opts pool = { .socket = o->kvpool,
		.model_file = o->model,
		.name = o->name,
		.block_tokens = o->block_tokens,
		.timeout_ms = o->timeout_ms };
	char why[KVL_WHY] = "";
	int r;

	cp.type_k = type_by_name(o->type_k);
	cp.type_v = type_by_name(o->type_v);
	if (cp.type_k == GGML_TYPE_COUNT || cp.type_v == GGML_TYPE_COUNT) {
		fprintf(stderr, "kvllama: no such type: %s, %s\n", o->type_k, o->type_v);
		return -EINVAL;
	}
	mp.n_gpu_layers = 0;
	s->model = llama_model_load_from_file(o->model, mp);
	cp.n_ctx = o->ctx;
	cp.n_batch = o->ctx ? o->ctx : cp.n_batch;
	cp.n_threads = cp.n_threads_batch = (int32_t)o->threads;
	/* Values as rows of tokens, and one stream of cells: what a state can be taken apart by. */
	cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
	cp.kv_unified = true;
	s->ctx = s->model ? llama_init_from_model(s->model, cp) : NULL;
	if (!s->ctx) {
		fprintf(stderr, "kvllama: %s does not load\n", o->model);
		return -EIO;
	}
	s->n_ctx = llama_n_ctx(s->ctx);
	s->n_batch = llama_n_batch(s->ctx);
	s->n_vocab = (uint32_t)llama_vocab_n_tokens(llama_model_get_vocab(s->model));
	s->ids = calloc(s->n_ctx, sizeof(*s->ids));
	if (!s->ids)
		return -ENOMEM;
	if (o->kvpool && !strcmp(o->kvpool, "off"))
		return 0;
	r = kvl_open(s->ctx, &cp, &pool, why, &s->pool);
	if (r < 0) /* the model is served all the same */
		fprintf(stderr, "kvllama: nothing is shared: %s\n", why[0] ? why : strerror(-r));
	return 0;
}

static void stop(struct server *s)
{
	if (s->pool)
		kvl_flush(s->pool, 1000);
	kvl_close(s->pool);
	free(s->ids);
	if (s->ctx)
		llama_free(s->ctx);
	if (s->model)
		llama_model_free(s->model);
}

static int usage(FILE *out)
{
	fprintf(out, "usage: kvllama --model FILE.gguf [--kvpool SOCKET|off] [--listen PATH] "
		     "[--name NAME]\n"
		     "               [--threads N] [--ctx N] [--type-k TYPE] [--type-v TYPE]\n"
		     "               [--block-tokens N] [--timeout-ms N]\n");
	return out == stdout ? 0 : 2;
}

static int number(const char *text, uint32_t *ret)
{
	char *end;
	unsigned long v = strtoul(text, &end, 10);

	if (end == text || *end || v > INT32_MAX)
		return -EINVAL;
	*ret = (uint32_t)v;
	return 0;
}

static int options(int argc, char **argv, struct options *o)
{
	static const struct option known[] = { { "model", 1, NULL, 'm' },
		{ "kvpool", 1, NULL, 'p' }, { "listen", 1, NULL, 'l' }, { "name", 1, NULL, 'n' },
		{ "threads", 1, NULL, 't' }, { "ctx", 1, NULL, 'c' }, { "type-k", 1, NULL, 'k' },
		{ "type-v", 1, NULL, 'v' }, { "block-tokens", 1, NULL, 'b' },
		{ "timeout-ms", 1, NULL, 'w' }, { "help", 0, NULL, 'h' }, { 0 } };
	int c, r = 0;

	while (r == 0 && (c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (c) {
		case 'm':
			o->model = optarg;
			break;
		case 'p':
			o->kvpool = optarg;
			break;
		case 'l':
			o->listen = optarg;
			break;
		case 'n':
			o->name = optarg;
			break;
		case 'k':
			o->type_k = optarg;
			break;
		case 'v':
			o->type_v = optarg;
			break;
		case 't':
			r = number(optarg, &o->threads);
			break;
		case 'c':
			r = number(optarg, &o->ctx);
			break;
		case 'b':
			r = number(optarg, &o->block_tokens);
			break;
		case 'w':
			r = number(optarg, &o->timeout_ms);
			break;
		case 'h':
			exit(usage(stdout));
		default:
			r = -EINVAL;
		}
	}
	return r < 0 || optind != argc || !o->model || !o->threads ? -EINVAL : 0;
}

int main(int argc, char **argv)
{
	struct options o = { .type_k = "f16", .type_v = "f16", .threads = 1, .ctx = 2048 };
	struct server s = { 0 };
	int r;

	if (options(argc, argv, &o) < 0)
		return usage(stderr);
	signal(SIGPIPE, SIG_IGN);
	llama_log_set(quiet, NULL);
	llama_backend_init();
	r = start(&s, &o);
	if (r == 0)
		r = serve(&s, o.listen);
	if (r < 0)
		fprintf(stderr, "kvllama: %s\n", strerror(-r));
	stop(&s);
	llama_backend_free();
	return r < 0;
}
