/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench versus: a block of 512 KiB from kvpool, from Redis and from memcached, all on this
 * machine in one run. Peers are Debian's servers on private Unix sockets. Two comparisons, of
 * different work: a pointer instead of a copy (kvpool gives a pointer that stays valid, a peer can
 * only give a copy), and copy against copy.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/kvbench/bench.h"
#include "tools/kvbench/bench_copy.h"
#include "tools/kvbench/kvbench.h"

#define BLOCK_TOKENS 64u
#define ROUNDS       5u
#define GETS         200u
#define ACQUIRES     200000u

struct peer {
	const char *name;
	pid_t pid;
	int fd;
	char socket[108];
	/* Text of a request for key k, and the word that begins the answer's header line. */
	int (*set_header)(char *buf, size_t len, uint32_t key, size_t bytes);
	int (*get_request)(char *buf, size_t len, uint32_t key);
	/* Bytes of the value, from the header line of an answer to get; 0: not there. */
	size_t (*value_bytes)(const char *line);
	const char *stored; /* whole answer to set */
	const char *after;  /* what follows a value */
	void (*exec)(const struct peer *p, const char *memory_mb);
	double get_ns[ROUNDS];
};

/*
 * Both protocols are a header line, then the bytes. They are spoken here directly, into the
 * caller's buffer, because the usual client libraries copy once or twice more: the peers shall not
 * look slower than they are.
 */
static int write_all(int fd, const void *data, size_t n)
{
	const char *at = data;

	while (n) {
		ssize_t w = write(fd, at, n);

		if (w <= 0)
			return -1;
		at += w;
		n -= (size_t)w;
	}
	return 0;
}

static int read_all(int fd, void *data, size_t n)
{
	char *at = data;

	while (n) {
		ssize_t r = read(fd, at, n);

		if (r <= 0)
			return -1;
		at += r;
		n -= (size_t)r;
	}
	return 0;
}

static int peer_set(struct peer *p, uint32_t key, const void *value, size_t bytes)
{
	char head[128], answer[64] = "";
	int n = p->set_header(head, sizeof(head), key, bytes);

	if (write_all(p->fd, head, (size_t)n) < 0 || write_all(p->fd, value, bytes) < 0 ||
		write_all(p->fd, "\r\n", 2) < 0 || read_all(p->fd, answer, strlen(p->stored)) < 0)
		return -1;
	return strcmp(answer, p->stored) ? -1 : 0;
}

/* The value goes into buf, which has room for `bytes` of it. */
static int peer_get(struct peer *p, uint32_t key, uint8_t *buf, size_t bytes)
{
	char request[64], head[65536], after[16], *end;
	int n = p->get_request(request, sizeof(request), key);
	size_t got, body, rest = strlen(p->after);
	ssize_t r;

	if (write_all(p->fd, request, (size_t)n) < 0)
		return -1;
	/* One read brings the header line and the first piece of the value. */
	r = read(p->fd, head, sizeof(head) - 1);
	if (r <= 0)
		return -1;
	head[r] = 0;
	end = memchr(head, '\n', (size_t)r);
	if (!end || p->value_bytes(head) != bytes)
		return -1;
	body = (size_t)(end + 1 - head);
	got = (size_t)r - body;
	if (got > bytes)
		return -1;
	memcpy(buf, head + body, got);
	if (read_all(p->fd, buf + got, bytes - got) < 0 || read_all(p->fd, after, rest) < 0)
		return -1;
	return memcmp(after, p->after, rest) ? -1 : 0;
}

static int redis_set_header(char *buf, size_t len, uint32_t key, size_t bytes)
{
	return snprintf(buf, len, "*3\r\n$3\r\nSET\r\n$8\r\n%08u\r\n$%zu\r\n", key, bytes);
}

static int redis_get_request(char *buf, size_t len, uint32_t key)
{
	return snprintf(buf, len, "*2\r\n$3\r\nGET\r\n$8\r\n%08u\r\n", key);
}

static size_t redis_value_bytes(const char *line)
{
	return line[0] == '$' && line[1] != '-' ? strtoul(line + 1, NULL, 10) : 0;
}

static void redis_exec(const struct peer *p, const char *memory_mb)
{
	char limit[32];

	snprintf(limit, sizeof(limit), "%smb", memory_mb);
	execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", p->socket, "--save",
		"", "--appendonly", "no", "--maxmemory", limit, "--dir", "/", (char *)NULL);
}

static int memcached_set_header(char *buf, size_t len, uint32_t key, size_t bytes)
{
	return snprintf(buf, len, "set %08u 0 0 %zu\r\n", key, bytes);
}

static int memcached_get_request(char *buf, size_t len, uint32_t key)
{
	return snprintf(buf, len, "get %08u\r\n", key);
}

static size_t memcached_value_bytes(const char *line)
{
	size_t bytes = 0;

	return sscanf(line, "VALUE %*s %*u %zu", &bytes) == 1 ? bytes : 0;
}

static void memcached_exec(const struct peer *p, const char *memory_mb)
{
	/* -u counts for root only; the folder of the socket is root's own then. */
	execlp("memcached", "memcached", "-s", p->socket, "-m", memory_mb, "-I", "8m", "-u", "root",
		"-t", "1", (char *)NULL);
}

static int peer_connect(struct peer *p)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	memcpy(addr.sun_path, p->socket, sizeof(addr.sun_path));
	p->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (p->fd >= 0 && connect(p->fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
		return 0;
	if (p->fd >= 0)
		close(p->fd);
	p->fd = -1;
	return -1;
}

/* ---- running them ---------------------------------------------------------------------------- */

static int start(struct peer *p, const char *dir, uint64_t megabytes)
{
	struct timespec pause = { 0, 20000000 };
	pid_t parent = getpid();
	char memory[24];
	int status;

	snprintf(p->socket, sizeof(p->socket), "%s/%s.sock", dir, p->name);
	snprintf(memory, sizeof(memory), "%llu", (unsigned long long)megabytes);
	p->pid = fork();
	if (p->pid < 0)
		return -1;
	if (!p->pid) {
		int null = open("/dev/null", O_RDWR);

		kvt_end_with(parent, SIGTERM);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		p->exec(p, memory);
		_exit(127);
	}
	for (int i = 0; i < 500; i++) {
		if (peer_connect(p) == 0)
			return 0;
		if (waitpid(p->pid, &status, WNOHANG) == p->pid) {
			p->pid = 0;
			break;
		}
		nanosleep(&pause, NULL);
	}
	fprintf(stderr, "kvbench: %s does not start; is Debian's package of it installed?\n",
		p->name);
	return -1;
}

static void stop(struct peer *p)
{
	if (p->fd >= 0)
		close(p->fd);
	if (p->pid > 0) {
		kill(p->pid, SIGTERM);
		waitpid(p->pid, NULL, 0);
	}
	unlink(p->socket);
}

static int fill_peer(struct peer *p, const uint8_t *value, uint32_t blocks, size_t bytes)
{
	for (uint32_t i = 0; i < blocks; i++)
		if (peer_set(p, i, value, bytes) < 0) {
			fprintf(stderr, "kvbench: %s refused block %u\n", p->name, i);
			return -1;
		}
	return 0;
}

static double get_ns(struct peer *p, struct bench_copy *c, uint32_t blocks, uint64_t *rng)
{
	uint64_t began = bench_now();

	for (uint32_t i = 0; i < GETS; i++)
		if (peer_get(p, (uint32_t)(bench_random(rng) % blocks), bench_copy_sink(c),
			    c->block) < 0)
			return -1;
	return (double)(bench_now() - began) / GETS;
}

/* ---- kvpool ---------------------------------------------------------------------------------- */

/* Ratios above 1: kvpool is faster. */
struct ours {
	double acquire_ns[ROUNDS], copy_ns[ROUNDS];
	double copy_memcpy[ROUNDS], copy_stream[ROUNDS];
	double put_memcpy[ROUNDS], put_stream[ROUNDS];
};

static int match_block(struct bench_pool *p, const uint32_t *tokens, struct kvp_prefix **ret,
	struct kvp_payload_info *payload)
{
	if (kvp_match(p->space, tokens, BLOCK_TOKENS, NULL, ret) < 0)
		return -1;
	if (kvp_payload(*ret, 0, payload) < 0) {
		kvp_release(*ret);
		return -1;
	}
	return 0;
}

/* Prompts are made beforehand: an engine has its tokens at hand, and a peer's key costs nothing. */
static double acquire_ns(
	struct bench_pool *p, const uint32_t *prompts, uint32_t blocks, uint64_t *rng)
{
	uint64_t sum = 0, began = bench_now();

	for (uint32_t i = 0; i < ACQUIRES; i++) {
		struct kvp_payload_info payload = { .size = sizeof(payload) };
		struct kvp_prefix *m;

		if (match_block(p, prompts + bench_random(rng) % blocks * BLOCK_TOKENS, &m,
			    &payload) < 0)
			return -1;
		sum += (uintptr_t)payload.addr;
		kvp_release(m);
	}
	return sum ? (double)(bench_now() - began) / ACQUIRES : -1;
}

static double copy_ns(struct bench_pool *p, struct bench_copy *c, const uint32_t *prompts,
	uint32_t blocks, uint64_t *rng)
{
	uint64_t began = bench_now();

	for (uint32_t i = 0; i < GETS; i++) {
		const uint32_t *tokens = prompts + bench_random(rng) % blocks * BLOCK_TOKENS;
		struct kvp_view_plane planes[64];
		struct kvp_view view = { .size = sizeof(view), .planes = planes };
		struct kvp_prefix *m;
		uint64_t bytes;
		int64_t n;

		if (kvp_view_dense(p->space, KVP_VIEW_LCND, bench_copy_sink(c), BLOCK_TOKENS,
			    planes, &bytes) < 0 ||
			kvp_match(p->space, tokens, BLOCK_TOKENS, NULL, &m) < 0)
			return -1;
		n = kvp_get(m, 0, BLOCK_TOKENS, &view, 0);
		kvp_release(m);
		if (n != BLOCK_TOKENS)
			return -1;
	}
	return (double)(bench_now() - began) / GETS;
}

static void through_caches(void *to, const void *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}

/* The same bytes from the same cold memory: addresses looked up beforehand. */
static double plain_ns(struct bench_pool *p, struct bench_copy *c, const uint32_t *prompts,
	uint32_t blocks, uint64_t *rng, void (*copy)(void *to, const void *from, uint64_t bytes))
{
	const void *from[GETS];
	uint64_t began;

	for (uint32_t i = 0; i < GETS; i++) {
		struct kvp_payload_info payload = { .size = sizeof(payload) };
		struct kvp_prefix *m;

		if (match_block(p, prompts + bench_random(rng) % blocks * BLOCK_TOKENS, &m,
			    &payload) < 0)
			return -1;
		from[i] = payload.addr;
		kvp_release(m);
	}
	/* Nothing is evicted meanwhile: the pool has room for all and this is its only client. */
	began = bench_now();
	for (uint32_t i = 0; i < GETS; i++)
		copy(bench_copy_sink(c), from[i], c->block);
	return (double)(bench_now() - began) / GETS;
}

static int measure(struct bench_pool *p, struct bench_copy *c, struct peer *peers, size_t n_peers,
	const uint32_t *prompts, uint32_t blocks, struct ours *o)
{
	uint64_t rng = 0x2545f4914f6cdd1d;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		double put, copied, streamed;

		o->acquire_ns[i] = acquire_ns(p, prompts, blocks, &rng);
		for (size_t k = 0; k < n_peers; k++) {
			peers[k].get_ns[i] = get_ns(&peers[k], c, blocks, &rng);
			if (peers[k].get_ns[i] < 0)
				return -1;
		}
		o->copy_ns[i] = copy_ns(p, c, prompts, blocks, &rng);
		copied = plain_ns(p, c, prompts, blocks, &rng, through_caches);
		streamed = plain_ns(p, c, prompts, blocks, &rng, bench_stream);
		put = bench_put_gbps(p, c, blocks + i * GETS, GETS);
		if (o->acquire_ns[i] < 0 || o->copy_ns[i] < 0 || copied < 0 || streamed < 0 ||
			put < 0)
			return -1;
		o->copy_memcpy[i] = copied / o->copy_ns[i];
		o->copy_stream[i] = streamed / o->copy_ns[i];
		o->put_memcpy[i] = put / bench_copy_gbps(c, GETS);
		o->put_stream[i] = put / bench_stream_gbps(c, GETS);
	}
	return 0;
}

/* a[i] / b[i], times unit. */
static struct bench_spread ratio(const double *a, const double *b, double unit)
{
	double r[ROUNDS];

	for (uint32_t i = 0; i < ROUNDS; i++)
		r[i] = a[i] / b[i] * unit;
	return bench_spread(r, ROUNDS);
}

static const double ones[ROUNDS] = { 1, 1, 1, 1, 1 };

static void report_json(const struct peer *peers, size_t n, const struct ours *o, uint64_t bytes)
{
	json_t *object = json_pack(
		"{s:I, s:b}", "block_bytes", (json_int_t)bytes, "streaming", (int)bench_can_stream);
	json_t *list = json_array();

	bench_add(object, "acquire_ns", ratio(o->acquire_ns, ones, 1));
	bench_add(object, "copy_us", ratio(o->copy_ns, ones, 1e-3));
	for (size_t i = 0; i < n; i++) {
		json_t *peer = json_pack("{s:s}", "name", peers[i].name);

		bench_add(peer, "get_us", ratio(peers[i].get_ns, ones, 1e-3));
		bench_add(peer, "acquire_ratio", ratio(peers[i].get_ns, o->acquire_ns, 1));
		bench_add(peer, "copy_ratio", ratio(peers[i].get_ns, o->copy_ns, 1));
		json_array_append_new(list, peer);
	}
	json_object_set_new(object, "peers", list);
	bench_add(object, "memcpy_ratio", ratio(o->copy_memcpy, ones, 1));
	bench_add(object, "stream_ratio", ratio(o->copy_stream, ones, 1));
	bench_add(object, "put_memcpy_ratio", ratio(o->put_memcpy, ones, 1));
	bench_add(object, "put_stream_ratio", ratio(o->put_stream, ones, 1));
	bench_print_json(object);
	json_decref(object);
}

static void report(const struct peer *peers, size_t n, const struct ours *o, uint64_t bytes)
{
	char a[64], b[64], c[64];

	printf("%llu KiB blocks; medians of %u rounds (least to most)\n",
		(unsigned long long)bytes >> 10, ROUNDS);
	printf("  pointer to a leased block  %s ns\n",
		bench_show(ratio(o->acquire_ns, ones, 1), 0, a));
	printf("  private copy               %s us: %s of memcpy(), %s of a streaming copy\n",
		bench_show(ratio(o->copy_ns, ones, 1e-3), 1, a),
		bench_show(ratio(o->copy_memcpy, ones, 1), 2, b),
		bench_show(ratio(o->copy_stream, ones, 1), 2, c));
	printf("  put                        %s of memcpy(), %s of a streaming copy\n",
		bench_show(ratio(o->put_memcpy, ones, 1), 2, a),
		bench_show(ratio(o->put_stream, ones, 1), 2, b));
	for (size_t i = 0; i < n; i++) {
		printf("  %-10s GET             %s us\n", peers[i].name,
			bench_show(ratio(peers[i].get_ns, ones, 1e-3), 1, a));
		printf("    times the pointer        %s (a pointer instead of a copy)\n",
			bench_show(ratio(peers[i].get_ns, o->acquire_ns, 1), 0, a));
		printf("    times the private copy   %s\n",
			bench_show(ratio(peers[i].get_ns, o->copy_ns, 1), 2, a));
	}
	puts("memcpy() is the C library's, through the caches; a streaming copy goes around them, "
	     "as\n"
	     "kvpool's own copies of large blocks do.");
}

int kvbench_versus(int argc, char **argv)
{
	uint64_t kib = 512, blocks = 1024;
	bool json = false;
	const struct bench_option options[] = {
		{ .name = "block-kib",
			.help = "KiB of a block (default 512)",
			.value = &kib,
			.min = 16,
			.max = 4096 },
		{ .name = "blocks",
			.help = "blocks in each store (default 1024)",
			.value = &blocks,
			.min = 64,
			.max = 8192 },
		{ .name = "json", .help = "one JSON object on stdout", .flag = &json },
	};
	struct peer peers[] = {
		{ .name = "redis",
			.fd = -1,
			.set_header = redis_set_header,
			.get_request = redis_get_request,
			.value_bytes = redis_value_bytes,
			.stored = "+OK\r\n",
			.after = "\r\n",
			.exec = redis_exec },
		{ .name = "memcached",
			.fd = -1,
			.set_header = memcached_set_header,
			.get_request = memcached_get_request,
			.value_bytes = memcached_value_bytes,
			.stored = "STORED\r\n",
			.after = "\r\nEND\r\n",
			.exec = memcached_exec },
	};
	uint64_t megabytes = 0;
	struct bench_pool p = { 0 };
	struct bench_copy c;
	struct ours ours;
	uint32_t *prompts;
	int r = bench_parse(
		argc, argv, "The same blocks from kvpool, Redis and memcached.", options, 3);

	if (r <= 0)
		return r ? 2 : 0;
	megabytes = blocks * kib / 1024 * 5 / 4 + 256;
	prompts = malloc(blocks * BLOCK_TOKENS * sizeof(*prompts));
	if (!prompts || bench_copy_init(&c, kib << 10, (uint32_t)blocks) < 0) {
		fprintf(stderr, "kvbench: no memory\n");
		free(prompts);
		return 1;
	}
	for (uint32_t i = 0; i < blocks; i++)
		bench_chain_tokens(i, prompts + (size_t)i * BLOCK_TOKENS, BLOCK_TOKENS);
	r = bench_pool_start(&p, (uint32_t)blocks + ROUNDS * GETS + 64, BLOCK_TOKENS, kib << 10, 4);
	for (size_t i = 0; i < 2 && r == 0; i++) {
		r = start(&peers[i], p.daemon.dir, megabytes);
		if (r == 0)
			r = fill_peer(&peers[i], c.from, (uint32_t)blocks, c.block);
	}
	if (r == 0)
		r = bench_pool_fill(&p, 0, (uint32_t)blocks, 1);
	if (r == 0)
		r = measure(&p, &c, peers, 2, prompts, (uint32_t)blocks, &ours);
	if (r == 0 && json)
		report_json(peers, 2, &ours, kib << 10);
	else if (r == 0)
		report(peers, 2, &ours, kib << 10);
	else
		fprintf(stderr, "kvbench: versus could not be measured\n");
	for (size_t i = 0; i < 2; i++)
		stop(&peers[i]);
	bench_pool_stop(&p);
	bench_copy_done(&c);
	free(prompts);
	return r == 0 ? 0 : 1;
}
