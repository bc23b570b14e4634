/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace through a real daemon, by N client processes. Every payload is derived from its block's
 * key, written once by the client that misses it and verified by each client that hits it, so that
 * one wrong byte, one mixed-up block or one block given away too early is counted as corrupt.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "kernels/kvp_codec.h"
#include "libclient/kvpool_admin.h"
#include "tools/common/kvt_daemon.h"
#include "tools/kvreplay/content.h"
#include "tools/kvreplay/kvreplay.h"
#include "tools/kvreplay/trace.h"

#define MAX_CLIENTS        256u
#define RESERVE_TIMEOUT_MS 20000u
#define ADMIN_TIMEOUT_MS   20000u
#define SEGMENTS           8u  /* of a device */
#define SYSTEM_CHAINS      16u /* that have a block in common which is taken for a system prompt's */

struct options {
	const char *trace;
	const char *policy;
	const char *socket; /* of a running daemon; NULL: a private one */
	enum trace_format format;
	uint32_t block_tokens;
	uint32_t capacity;
	uint32_t clients;
	uint32_t dim;
	uint32_t limit;
	bool device;
	uint32_t vram_blocks; /* that the device holds */
	const char *floor;    /* NULL: the space is exact; else of */
	uint32_t floor_k, floor_v;
	bool advisor;
	bool labels; /* blocks are put with what they are taken for */
	bool ranks;  /* every 50 ms, and names so many blocks for each use */
	uint32_t prefetch;
	uint32_t pace_ms; /* a client rests so long after each request */
	bool json;
};

/* One client's results, in shared memory. */
struct tally {
	_Atomic uint64_t requests;
	uint64_t whole, part; /* requests that found an earlier prompt to its end, or only a part */
	uint64_t blocks, hit_blocks, whole_blocks; /* whole_blocks: hits of the whole ones */
	uint64_t tokens, hit_tokens, tail_tokens;
	uint64_t verified, corrupt;
	uint64_t coded; /* of those that were verified */
	uint64_t vram_hit_blocks, warmed, unwarmed;
	uint64_t stored, duplicates, refused, unleased, failed;
};

struct shared {
	_Atomic uint32_t next_request;
	_Atomic uint32_t next_session;
	struct tally tally[MAX_CLIENTS];
};

struct run {
	const struct options *o;
	const struct trace *trace;
	struct shared *shared;
	uint32_t *ends; /* by block of the trace: the first request whose full blocks end with it */
	uint32_t *
		chains; /* likewise, with labels: how many chains of full blocks that end differently have it */
	char socket[160];
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint64_t room_bytes; /* with a floor: of the private daemon's share, what is not metadata */
};

struct client {
	const struct run *run;
	struct tally *tally;
	struct kvp_client *kvp;
	struct kvp_space *space;
	struct content *content;
	uint32_t *tokens;
	struct kvp_digest *keys;
	uint32_t max_blocks;
};

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* The prompt of a request: token ids from block ids, or the bytes of its text. */
static uint32_t prompt(struct client *c, const struct trace_request *r)
{
	const struct trace *t = c->run->trace;
	uint32_t n = 0;

	if (t->format == TRACE_AGENT) {
		for (; n < r->tokens; n++)
			c->tokens[n] = (uint8_t)t->text[r->text + n];
		return n;
	}
	for (uint32_t b = 0; b < r->blocks; b++) {
		const struct trace_block *block = &t->block[t->ref[r->first + b]];

		for (uint32_t i = 0; i < block->tokens; i++)
			c->tokens[n++] = (uint32_t)(mix(block->content * 512 + i) & 0xfffff);
	}
	return n;
}

static void verify(struct client *c, const struct kvp_prefix *m, const struct kvp_prefix_info *info)
{
	for (uint32_t i = 0; i < info->n_blocks; i++) {
		struct kvp_payload_info p = { .size = sizeof(p) };
		int r = kvp_payload(m, i, &p);

		c->tally->verified++;
		c->tally->coded += r == 0 && p.codec;
		if (r < 0 || !p.addr ||
			!(p.codec ? content_is_coded(c->content, c->keys[i], m, i)
				  : content_is(c->content, c->keys[i], p.addr, p.bytes)))
			c->tally->corrupt++;
	}
}

/* Leading blocks of the prefix that lie on the device, each looked at byte by byte. */
static uint32_t verify_there(
	struct client *c, const struct kvp_prefix *m, const struct kvp_prefix_info *info)
{
	uint32_t i = 0;

	for (; i < info->n_blocks; i++) {
		struct kvp_payload_info p = { .size = sizeof(p) };

		if (kvp_device_payload(m, i, 0, &p) < 0)
			break;
		c->tally->verified++;
		if (!content_is(c->content, c->keys[i], p.addr, p.bytes))
			c->tally->corrupt++;
	}
	return i;
}

/*
 * After the request all its blocks are used on the device, as an engine does that reads there: those
 * that were cached, and those that it has just stored.
 */
static void to_device(struct client *c, uint32_t n)
{
	struct kvp_match_opts opts = { .size = sizeof(opts), .flags = KVP_MATCH_NO_TOUCH };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_ticket ticket;
	struct kvp_prefix *m;
	uint32_t before, after;

	if (kvp_match(c->space, c->tokens, n, &opts, &m) < 0)
		return;
	if (kvp_match_info(m, &info) == 0 && info.flags & KVP_MATCHED_LEASED) {
		before = verify_there(c, m, &info);
		if (kvp_warm(m, NULL, &ticket) == 0)
			(void)kvp_ticket_wait(c->kvp, ticket, RESERVE_TIMEOUT_MS, NULL);
		after = verify_there(c, m, &info);
		c->tally->warmed += after > before ? after - before : 0;
		c->tally->unwarmed += info.n_blocks - after;
	}
	kvp_release(m);
}

/* How block b of a request is put: with what it is taken for, if that is wanted. */
static uint32_t label_of(const struct client *c, const struct trace_request *req, uint32_t b)
{
	const struct run *run = c->run;

	if (!run->chains || b >= req->blocks)
		return 0;
	return run->chains[run->trace->ref[req->first + b]] >= SYSTEM_CHAINS ? KVP_IS_SYSTEM
									     : KVP_IS_USER;
}

static int store(struct client *c, const struct trace_request *req, struct kvp_prefix *m,
	uint32_t from, uint32_t blocks, uint32_t n)
{
	const uint32_t bt = c->run->block_tokens;
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_grant *last = NULL;
	int r = 0;

	if (from && from < blocks)
		r = kvp_match_ref(m, from, &parent);
	for (uint32_t b = from; b < blocks && r >= 0; b++) {
		uint32_t count = n - b * bt < bt ? n - b * bt : bt;
		struct kvp_grant *g;

		r = kvp_reserve(c->space, RESERVE_TIMEOUT_MS, NULL, &g);
		if (r < 0)
			break;
		content_write(c->content, c->keys[b], kvp_grant_addr(g));
		r = kvp_commit(
			g, parent, c->tokens + (size_t)b * bt, count, NULL, label_of(c, req, b));
		if (r < 0) {
			kvp_grant_release(g);
			break;
		}
		c->tally->stored++;
		if (b + 1 < blocks)
			r = kvp_grant_ref(g, &parent);
		kvp_grant_release(last);
		last = g;
	}
	if (last && kvp_grant_wait(last, RESERVE_TIMEOUT_MS) == KVP_COMMITTED_DUPLICATE)
		c->tally->duplicates++;
	kvp_grant_release(last);
	return r;
}

/* For each block the first request whose prompt ends with it; UINT32_MAX: none. */
static uint32_t *find_ends(const struct trace *t, uint32_t block_tokens)
{
	uint32_t *ends = malloc(t->n_blocks * sizeof(*ends));

	if (!ends)
		return NULL;
	memset(ends, 0xff, t->n_blocks * sizeof(*ends));
	for (uint32_t i = t->n_requests; i-- > 0;) {
		uint32_t full = t->request[i].tokens / block_tokens;

		if (full && full <= t->request[i].blocks)
			ends[t->ref[t->request[i].first + full - 1]] = i;
	}
	return ends;
}

/*
 * Traces do not say what tokens are. But a system prompt is what many conversations begin with, which then go their
 * own ways: so the chains are counted that a block has below it. A block that is not full ends none, since the
 * conversation may go on in the block that it becomes.
 */
static uint32_t *count_chains(const struct trace *t, uint32_t block_tokens)
{
	uint32_t *chains = calloc(t->n_blocks, sizeof(*chains));

	/* Parents come before their children. */
	for (uint32_t b = t->n_blocks; chains && b-- > 0;) {
		const struct trace_block *block = &t->block[b];

		if (block->tokens < block_tokens)
			continue;
		chains[b] += !chains[b];
		if (block->parent != TRACE_BLOCK_NONE)
			chains[block->parent] += chains[b];
	}
	return chains;
}

/* What a request has found: a prompt that came earlier in the trace, to its end, or a part. */
static void count_hit(struct client *c, const struct trace_request *req, uint32_t hit)
{
	const struct trace *t = c->run->trace;
	uint32_t full = req->tokens / c->run->block_tokens;

	if (!hit)
		return;
	/* More than all full blocks: the same prompt, with what it has in part. */
	if (hit > full || c->run->ends[t->ref[req->first + hit - 1]] < req - t->request) {
		c->tally->whole++;
		c->tally->whole_blocks += hit;
	} else {
		c->tally->part++;
	}
}

static void rest(uint32_t ms)
{
	const struct timespec pause = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&pause, NULL);
}

static void one_request(struct client *c, const struct trace_request *req)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t n = prompt(c, req), blocks;
	struct kvp_prefix *m;
	int r;

	r = kvp_chunk_keys(c->space, c->tokens, n, c->keys, c->max_blocks);
	if (r < 0) {
		c->tally->failed++;
		return;
	}
	blocks = (uint32_t)r;
	r = kvp_match(c->space, c->tokens, n, NULL, &m);
	if (r < 0 || kvp_match_info(m, &info) < 0) {
		c->tally->failed++;
		return;
	}
	c->tally->blocks += blocks;
	c->tally->tokens += n;
	c->tally->hit_blocks += info.n_blocks;
	count_hit(c, req, (uint32_t)info.n_blocks);
	c->tally->hit_tokens += info.n_tokens;
	c->tally->tail_tokens += info.tail_tokens;
	if (info.n_blocks && !(info.flags & KVP_MATCHED_LEASED))
		c->tally->unleased++;
	else
		verify(c, m, &info);
	if (c->run->o->device)
		c->tally->vram_hit_blocks += verify_there(c, m, &info);
	r = store(c, req, m, info.n_blocks, blocks, n);
	if (r == -EAGAIN || r == -ETIMEDOUT)
		c->tally->refused++;
	else if (r < 0)
		c->tally->failed++;
	kvp_release(m);
	kvp_flush(c->kvp, RESERVE_TIMEOUT_MS);
	if (c->run->o->device)
		to_device(c, n);
	if (c->run->o->pace_ms)
		rest(c->run->o->pace_ms);
	atomic_fetch_add(&c->tally->requests, 1);
}

/* why: gets the reason if no daemon was joined. */
static int open_space(struct client *c, char *why, size_t bytes)
{
	struct kvp_open_opts open_opts = { .size = sizeof(open_opts),
		.socket = c->run->socket,
		.name = "kvreplay",
		.default_timeout_ms = 30000,
		.error = why,
		.error_bytes = bytes };
	struct kvp_layer layer = {
		.kv_heads = 1, .k_dim = c->run->o->dim, .v_dim = c->run->o->dim
	};
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = "kvreplay",
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = c->run->block_tokens,
		.n_layers = 1,
		.layers = &layer,
		.floor_k = c->run->o->floor_k,
		.floor_v = c->run->o->floor_v };
	int r = kvp_open(&open_opts, &c->kvp);

	return r < 0 ? r : kvp_space_open(c->kvp, &desc, KVP_DEFAULT_TIMEOUT, &c->space);
}

/* Requests in the trace's order, taken by whichever client is free. */
static void replay_requests(struct client *c)
{
	const struct trace *t = c->run->trace;
	uint32_t i;

	while ((i = atomic_fetch_add(&c->run->shared->next_request, 1)) < t->n_requests)
		one_request(c, &t->request[i]);
}

/* Whole conversations, each by one client in its own order. */
static void replay_sessions(struct client *c)
{
	const struct trace *t = c->run->trace;
	uint32_t s;

	while ((s = atomic_fetch_add(&c->run->shared->next_session, 1)) < t->n_sessions)
		for (uint32_t i = 0; i < t->n_requests; i++)
			if (t->request[i].session == s)
				one_request(c, &t->request[i]);
}

static int client_main(const struct run *run, uint32_t number)
{
	struct client c = { .run = run, .tally = &run->shared->tally[number] };
	uint64_t most = (uint64_t)run->trace->longest * run->block_tokens;
	char why[KVP_ERROR_TEXT];
	int r;

	for (uint32_t i = 0; i < run->trace->n_requests; i++)
		if (run->trace->request[i].tokens > most)
			most = run->trace->request[i].tokens;
	c.max_blocks = (uint32_t)(most / run->block_tokens + 1);
	c.tokens = malloc((most + 1) * sizeof(*c.tokens));
	c.keys = malloc(c.max_blocks * sizeof(*c.keys));
	if (!c.tokens || !c.keys ||
		content_new(run->block_tokens, run->o->dim, run->o->floor, &c.content) < 0) {
		fprintf(stderr, "kvreplay: no memory for a prompt of %" PRIu64 " tokens\n", most);
		return 1;
	}
	r = open_space(&c, why, sizeof(why));
	if (r < 0) {
		fprintf(stderr, "kvreplay: cannot attach to %s: %s\n", run->socket,
			why[0] ? why : strerror(-r));
		return 1;
	}
	if (run->trace->format == TRACE_AGENT)
		replay_sessions(&c);
	else
		replay_requests(&c);
	kvp_space_close(c.space);
	kvp_close(c.kvp);
	content_free(c.content);
	free(c.tokens);
	free(c.keys);
	return 0;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Forks the clients, shows progress, waits. Returns how many of them failed. */
static unsigned run_clients(const struct run *run)
{
	uint32_t n = run->o->clients, left = n;
	pid_t parent = getpid();
	unsigned bad = 0;

	for (uint32_t i = 0; i < n; i++) {
		pid_t pid = fork();

		if (!pid) {
			kvt_end_with(parent, SIGTERM);
			_exit(client_main(run, i));
		}
		if (pid < 0) {
			perror("kvreplay: fork");
			bad++;
			left--;
		}
	}
	while (left) {
		struct timespec pause = { 0, 50000000 };
		uint64_t done = 0;
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);

		for (uint32_t i = 0; i < n; i++)
			done += atomic_load(&run->shared->tally[i].requests);
		progress("replay", done, run->trace->n_requests);
		if (pid > 0) {
			left--;
			bad += !WIFEXITED(status) || WEXITSTATUS(status);
		} else {
			nanosleep(&pause, NULL);
		}
	}
	return bad;
}

/* The tenant's counts in the end. Needs a client, since the trace's own have gone. */
static struct kvp_counters tenant_counts(const struct run *run)
{
	struct kvp_open_opts opts = { .size = sizeof(opts), .socket = run->socket };
	struct kvp_counters stats = { .size = sizeof(stats) };
	struct kvp_client *c;

	if (kvp_open(&opts, &c) < 0)
		return stats;
	kvp_stats(c, &stats);
	kvp_close(c);
	return stats;
}

/* Blocks that came to devices by the advisor's word, and of these used there. False: the daemon does not say. */
static bool ask_advised(const struct run *run, uint64_t *ret_came, uint64_t *ret_used)
{
	struct kvp_open_opts opts = { .size = sizeof(opts), .socket = run->socket };
	struct kvp_admin *admin = NULL;
	char *text = NULL;
	json_t *status = NULL, *a;
	bool said;

	if (kvp_admin_open(&opts, &admin) == 0 &&
		kvp_admin_request(admin, "{\"verb\":\"status\"}", ADMIN_TIMEOUT_MS, 0, &text) == 0)
		status = json_loads(text, 0, NULL);
	a = json_object_get(status, "advisor");
	said = json_is_object(a);
	*ret_came = (uint64_t)json_integer_value(json_object_get(a, "prefetched_total"));
	*ret_used = (uint64_t)json_integer_value(json_object_get(a, "prefetched_used_total"));
	json_decref(status);
	free(text);
	kvp_admin_close(admin);
	return said;
}

/* What the daemon says of the device that the run uses. */
struct on_device {
	bool known; /* it says */
	uint64_t spilled, dropped;
};

/* The counters are the daemon's own: of a daemon that was there before, what it had counted is taken off. */
static struct on_device ask_device(const struct run *run)
{
	struct kvp_open_opts opts = { .size = sizeof(opts), .socket = run->socket };
	struct kvp_admin *admin = NULL;
	struct on_device got = { 0 };
	char *text = NULL;
	json_t *answer = NULL, *d;

	if (kvp_admin_open(&opts, &admin) == 0 &&
		kvp_admin_request(admin, "{\"verb\":\"devices\"}", ADMIN_TIMEOUT_MS, 0, &text) == 0)
		answer = json_loads(text, 0, NULL);
	d = json_array_get(json_object_get(answer, "devices"), 0);
	got.known = json_is_object(d);
	got.spilled = (uint64_t)json_integer_value(json_object_get(d, "behind_total"));
	got.dropped = (uint64_t)json_integer_value(json_object_get(d, "dropped_total"));
	json_decref(answer);
	free(text);
	kvp_admin_close(admin);
	return got;
}

static uint64_t since(uint64_t now, uint64_t then)
{
	return now > then ? now - then : 0;
}

static double ratio(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : 0;
}

static uint32_t system_blocks(const struct run *run)
{
	uint32_t n = 0;

	for (uint32_t b = 0; b < run->trace->n_blocks; b++)
		n += run->chains[b] >= SYSTEM_CHAINS;
	return n;
}

static void report(const struct run *run, const struct tally *t, const struct kvp_counters *tenant,
	const struct on_device *device, double took)
{
	const struct options *o = run->o;
	uint64_t came = 0, used = 0;
	bool advised = o->prefetch && ask_advised(run, &came, &used);

	if (o->json) {
		printf("{\"policy\":\"%s\",\"capacity\":%u,\"clients\":%u,\"block_tokens\":%u,"
		       "\"requests\":%" PRIu64 ",\"whole_prompts\":%" PRIu64
		       ",\"part_prompts\":%" PRIu64 ",\"blocks\":%" PRIu64
		       ",\"hit_blocks\":%" PRIu64 ",\"whole_hit_blocks\":%" PRIu64
		       ",\"hit_ratio\":%.4f,\"token_hit_ratio\":%.4f,\"token_tail_ratio\":%.4f,"
		       "\"verified\":%" PRIu64 ",\"corrupt\":%" PRIu64 ",\"stored\":%" PRIu64
		       ",\"duplicates\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"failed\":%" PRIu64
		       ",\"unleased\":%" PRIu64 ",\"evictions\":%" PRIu64 ",\"seconds\":%.2f",
			o->policy, o->capacity, o->clients, run->block_tokens,
			atomic_load(&t->requests), t->whole, t->part, t->blocks, t->hit_blocks,
			t->whole_blocks, ratio(t->hit_blocks, t->blocks),
			ratio(t->hit_tokens, t->tokens), ratio(t->tail_tokens, t->tokens),
			t->verified, t->corrupt, t->stored, t->duplicates, t->refused, t->failed,
			t->unleased, tenant->evictions, took);
		if (o->device)
			printf(",\"vram_blocks\":%u,\"vram_hit_ratio\":%.4f,\"warmed\":%" PRIu64
			       ",\"unwarmed\":%" PRIu64,
				o->vram_blocks, ratio(t->vram_hit_blocks, t->blocks), t->warmed,
				t->unwarmed);
		if (device->known)
			printf(",\"spilled\":%" PRIu64 ",\"dropped\":%" PRIu64, device->spilled,
				device->dropped);
		if (o->floor)
			printf(",\"floor\":\"%s\",\"block_bytes\":%" PRIu64
			       ",\"room_bytes\":%" PRIu64 ",\"coded_verified\":%" PRIu64
			       ",\"held_blocks\":%" PRIu64 ",\"held_bytes\":%" PRIu64,
				o->floor, run->block_bytes, run->room_bytes, t->coded,
				tenant->blocks, tenant->payload_bytes);
		if (run->chains)
			printf(",\"system_blocks\":%u", system_blocks(run));
		if (advised)
			printf(",\"prefetched\":%" PRIu64 ",\"prefetched_used\":%" PRIu64, came,
				used);
		puts("}");
		return;
	}
	printf("%" PRIu64
	       " requests by %u clients in %.1f s, policy %s, room for %u blocks of %u tokens\n",
		atomic_load(&t->requests), o->clients, took, o->policy, o->capacity,
		run->block_tokens);
	printf("  found an earlier prompt to its end %.4f of the requests, a part of one %.4f\n",
		ratio(t->whole, atomic_load(&t->requests)),
		ratio(t->part, atomic_load(&t->requests)));
	printf("  hit ratio of blocks   %.4f  (%" PRIu64 " of %" PRIu64 ")\n",
		ratio(t->hit_blocks, t->blocks), t->hit_blocks, t->blocks);
	printf("  hit ratio of tokens   %.4f  (+ %.4f in blocks that match in part)\n",
		ratio(t->hit_tokens, t->tokens), ratio(t->tail_tokens, t->tokens));
	if (o->device)
		printf("  hit ratio on device   %.4f  (room for %u blocks; %" PRIu64
		       " copied there, %" PRIu64 " had no room)\n",
			ratio(t->vram_hit_blocks, t->blocks), o->vram_blocks, t->warmed,
			t->unwarmed);
	if (device->known)
		printf("  from the device       %" PRIu64 " copied to DRAM, %" PRIu64
		       " dropped for room\n",
			device->spilled, device->dropped);
	if (run->chains)
		printf("  put as system prompts %u of the %u blocks there are\n",
			system_blocks(run), run->trace->n_blocks);
	if (advised)
		printf("  prefetched            %" PRIu64 ", and used %" PRIu64 "\n", came, used);
	printf("  hits verified         %" PRIu64 ", corrupt %" PRIu64 "\n", t->verified,
		t->corrupt);
	if (o->floor)
		printf("  of them coded         %" PRIu64 "  (%s); in the end %" PRIu64
		       " blocks in %" PRIu64 " bytes of %" PRIu64 "\n",
			t->coded, o->floor, tenant->blocks, tenant->payload_bytes, run->room_bytes);
	printf("  stored %" PRIu64 ", evicted %" PRIu64 ", refused %" PRIu64 ", failed %" PRIu64
	       "\n",
		t->stored, tenant->evictions, t->refused, t->failed);
}

static int replay(struct run *run)
{
	struct tally sum = { 0 };
	struct kvp_counters tenant;
	struct on_device before = { 0 }, device = { 0 };
	double began, took;
	unsigned bad;

	if (run->o->device)
		before = ask_device(run);
	began = seconds();
	bad = run_clients(run);
	took = seconds() - began;

	for (uint32_t i = 0; i < run->o->clients; i++) {
		const struct tally *t = &run->shared->tally[i];

		atomic_fetch_add(&sum.requests, atomic_load(&t->requests));
		sum.whole += t->whole;
		sum.part += t->part;
		sum.whole_blocks += t->whole_blocks;
		sum.blocks += t->blocks;
		sum.hit_blocks += t->hit_blocks;
		sum.tokens += t->tokens;
		sum.hit_tokens += t->hit_tokens;
		sum.tail_tokens += t->tail_tokens;
		sum.verified += t->verified;
		sum.vram_hit_blocks += t->vram_hit_blocks;
		sum.warmed += t->warmed;
		sum.unwarmed += t->unwarmed;
		sum.corrupt += t->corrupt;
		sum.coded += t->coded;
		sum.stored += t->stored;
		sum.duplicates += t->duplicates;
		sum.refused += t->refused;
		sum.unleased += t->unleased;
		sum.failed += t->failed;
	}
	if (before.known)
		device = ask_device(run);
	device.spilled = since(device.spilled, before.spilled);
	device.dropped = since(device.dropped, before.dropped);
	tenant = tenant_counts(run);
	report(run, &sum, &tenant, &device, took);
	if (bad)
		fprintf(stderr, "kvreplay: %u clients ended early\n", bad);
	return bad || sum.corrupt || sum.failed ? 1 : 0;
}

/* Bytes of the tenant's metadata in this daemon. */
static int ask_metadata(const char *socket, uint64_t *ret_bytes)
{
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = socket, .default_timeout_ms = 30000
	};
	struct kvp_client *c = NULL; /* without one there is no tenant */
	struct kvp_admin *admin = NULL;
	json_t *answer = NULL, *bytes;
	char *text = NULL;
	int r = kvp_open(&opts, &c);

	if (r == 0)
		r = kvp_admin_open(&opts, &admin);
	if (r == 0)
		r = kvp_admin_request(admin, "{\"verb\":\"tenants\"}", 30000, 0, &text);
	if (r >= 0)
		answer = json_loads(text, 0, NULL);
	bytes = json_object_get(
		json_array_get(json_object_get(answer, "tenants"), 0), "metadata_bytes");
	if (r >= 0)
		r = json_is_integer(bytes) ? 0 : -EBADMSG;
	if (r == 0)
		*ret_bytes = (uint64_t)json_integer_value(bytes);
	json_decref(answer);
	free(text);
	kvp_admin_close(admin);
	kvp_close(c);
	return r;
}

/*
 * A floor: room for the bytes of so many native blocks, whatever they are coded to, and nothing more. The daemon
 * says what its metadata takes; with a share of so much and those bytes it is started again.
 */
static int limit_bytes(struct run *run, struct kvt_daemon_opts *opts)
{
	struct kvt_daemon d = { 0 };
	uint64_t metadata = 0;
	char error[1500];
	int r = kvt_daemon_start(opts, &d, error, sizeof(error));

	if (r < 0) {
		fprintf(stderr, "kvreplay: %s\n", error);
		return r;
	}
	r = ask_metadata(d.socket, &metadata);
	kvt_daemon_stop(&d);
	if (r < 0) {
		fprintf(stderr, "kvreplay: cannot ask the daemon for its metadata: %s\n",
			strerror(-r));
		return r;
	}
	run->room_bytes = run->o->capacity * run->block_bytes;
	opts->share = metadata + run->room_bytes;
	return 0;
}

/* Blocks that fit the bytes of so many native ones, if all are at the floor. */
static uint32_t most_blocks(const struct run *run)
{
	uint32_t codec[2] = { run->o->floor_k, run->o->floor_v };
	uint64_t coded = 0, n;

	for (uint32_t kind = 0; kind < 2; kind++) {
		struct kvp_plane p = { run->block_tokens, 1, run->o->dim, KVP_DTYPE_F16, kind };
		size_t bytes = 0;

		/* As a floor it has this mean. */
		if (codec[kind] == KVP_CODEC_SMART)
			codec[kind] = KVP_CODEC_SMART25;
		if (kvp_plane_bytes(codec[kind], &p, &bytes) == 0)
			coded += (bytes + 63) / 64 * 64;
	}
	n = coded && coded < run->block_bytes ? run->o->capacity * run->block_bytes / coded
					      : run->o->capacity;
	return n < UINT32_C(1) << 28 ? (uint32_t)n : UINT32_C(1) << 28;
}

static int with_daemon(struct run *run)
{
	const struct options *o = run->o;
	/* Room for the blocks, their slots' padding, grants ahead and the catalog. */
	uint64_t slots = (uint64_t)o->capacity + o->clients * 160u + 1024;
	uint32_t blocks = o->floor ? most_blocks(run) : o->capacity;
	struct kvt_daemon_opts opts = {
		.share = slots * (run->block_bytes + 64 + run->block_tokens * 4 + 512) * 3 / 2 +
			 (UINT64_C(256) << 20),
		.max_blocks = blocks,
		.recipe_tokens = (uint64_t)blocks * run->block_tokens,
		.policy = o->policy,
		.max_sessions = o->clients + 8,
	};
	struct kvt_daemon d = { 0 };
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	char error[1500], more[160], ranks[80] = "";
	int r;

	if (o->socket) {
		snprintf(run->socket, sizeof(run->socket), "%s", o->socket);
		return replay(run);
	}
	if (o->ranks)
		snprintf(ranks, sizeof(ranks), "advisor_period_ms: 50\nadvisor_prefetch: %u\n",
			o->prefetch);
	snprintf(more, sizeof(more), "admin_group: \"%u\"\n%s%s", (unsigned)getegid(),
		o->advisor ? "advisor: true\n" : "", ranks);
	opts.more = more;
	if (o->device) {
		/* Segments that are not larger than they have to be: no slot too many. */
		opts.device_segment = (run->block_bytes + page - 1) / page * page;
		opts.device_segment *= (o->vram_blocks + SEGMENTS - 1) / SEGMENTS;
		opts.device_bytes = opts.device_segment * SEGMENTS;
	}
	if (o->floor) {
		opts.share += (uint64_t)blocks * (run->block_tokens * 4 + 1024);
		if (limit_bytes(run, &opts) < 0)
			return 1;
	}
	if (kvt_daemon_start(&opts, &d, error, sizeof(error)) < 0) {
		fprintf(stderr, "kvreplay: %s\n", error);
		return 1;
	}
	snprintf(run->socket, sizeof(run->socket), "%s", d.socket);
	r = replay(run);
	kvt_daemon_stop(&d);
	return r;
}

static void usage(FILE *f)
{
	fputs("usage: kvreplay run --trace FILE|FOLDER --format mooncake|agent [OPTION]...\n\n"
	      "Replays a trace through a real kvpoold with client processes that verify every "
	      "hit.\n\n"
	      "  --trace PATH        the trace\n"
	      "  --format NAME       mooncake (512-token blocks) or agent (prompt text, byte "
	      "tokens)\n"
	      "  --capacity N        blocks that the pool holds (default 10000)\n"
	      "  --policy NAME       eviction policy of the daemon (default lru)\n"
	      "  --advisor           with the daemon's advisor, which is off otherwise\n"
	      "  --labels            clients say what blocks are: a system prompt's, if 16 chains "
	      "that\n"
	      "                      end differently have it, or a user's\n"
	      "  --prefetch N        with the advisor, which ranks every 50 ms and names N blocks\n"
	      "                      for each use that are fetched to the device; 0..64\n"
	      "  --pace MS           each client rests so long after a request (default 0)\n"
	      "  --device host       with a device of host memory, on which each request reads\n"
	      "  --vram-blocks N     blocks that it holds (default 1000)\n"
	      "  --clients N         client processes (default 1, at most 256)\n"
	      "  --block-tokens N    agent: tokens per block, 16..512 (default 64)\n"
	      "  --dim N             channels of the one key and value head: bytes of a payload "
	      "are\n"
	      "                      4 * N * block tokens (default 4, at most 1024)\n"
	      "  --floor CODEC       blocks may be coded down to it (tq4, tq4/tq2, ...; needs "
	      "--dim 8 or\n"
	      "                      more): payloads are numbers, there is room for the bytes of "
	      "--capacity\n"
	      "                      native blocks, and coded hits are compared with the codec's "
	      "own result\n"
	      "  --requests N        only the first N requests\n"
	      "  --socket PATH       use the daemon there instead of a private one\n"
	      "  --json              one JSON object on stdout\n"
	      "  --help\n\n"
	      "Exit status: 0 all verified; 1 corrupt hits, failed clients or no daemon; 2 "
	      "usage.\n",
		f);
}

static int number(const char *what, const char *text, uint32_t min, uint32_t max, uint32_t *ret)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (errno || end == text || *end || text[0] == '-' || v < min || v > max) {
		fprintf(stderr, "kvreplay: %s must be a number from %u to %u, not '%s'\n", what,
			min, max, text);
		return -1;
	}
	*ret = (uint32_t)v;
	return 0;
}

static int parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "trace", required_argument, NULL, 't' },
		{ "format", required_argument, NULL, 'f' },
		{ "capacity", required_argument, NULL, 'c' },
		{ "policy", required_argument, NULL, 'p' },
		{ "clients", required_argument, NULL, 'n' },
		{ "block-tokens", required_argument, NULL, 'b' },
		{ "dim", required_argument, NULL, 'd' },
		{ "floor", required_argument, NULL, 'F' },
		{ "requests", required_argument, NULL, 'r' },
		{ "socket", required_argument, NULL, 's' },
		{ "device", required_argument, NULL, 'D' },
		{ "vram-blocks", required_argument, NULL, 'v' },
		{ "advisor", no_argument, NULL, 'a' },
		{ "labels", no_argument, NULL, 'l' },
		{ "prefetch", required_argument, NULL, 'P' },
		{ "pace", required_argument, NULL, 'w' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	bool have_format = false;
	int c, r = 0;

	optind = 1;
	while (r == 0 && (c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		switch (c) {
		case 't':
			o->trace = optarg;
			break;
		case 'p':
			o->policy = optarg;
			break;
		case 's':
			o->socket = optarg;
			break;
		case 'a':
			o->advisor = true;
			break;
		case 'l':
			o->labels = true;
			break;
		case 'D':
			o->device = !strcmp(optarg, "host");
			if (!o->device)
				fprintf(stderr, "kvreplay: no device '%s'; there is host\n",
					optarg);
			r = o->device ? 0 : -1;
			break;
		case 'v':
			r = number("--vram-blocks", optarg, 1, 1u << 24, &o->vram_blocks);
			break;
		case 'w':
			r = number("--pace", optarg, 0, 60000, &o->pace_ms);
			break;
		case 'P':
			r = number("--prefetch", optarg, 0, 64, &o->prefetch);
			o->advisor = o->ranks = true;
			break;
		case 'j':
			o->json = true;
			break;
		case 'c':
			r = number("--capacity", optarg, 1, 1u << 28, &o->capacity);
			break;
		case 'n':
			r = number("--clients", optarg, 1, MAX_CLIENTS, &o->clients);
			break;
		case 'b':
			r = number("--block-tokens", optarg, 16, 512, &o->block_tokens);
			break;
		case 'd':
			r = number("--dim", optarg, 1, 1024, &o->dim);
			break;
		case 'r':
			r = number("--requests", optarg, 1, UINT32_MAX, &o->limit);
			break;
		case 'F':
			o->floor = optarg;
			r = kvp_codec_parse_pair(optarg, &o->floor_k, &o->floor_v);
			if (r < 0)
				fprintf(stderr, "kvreplay: no codec is called %s\n", optarg);
			break;
		case 'f':
			have_format = true;
			r = trace_format_parse(optarg, &o->format);
			if (r < 0)
				fprintf(stderr,
					"kvreplay: no format '%s'; there are mooncake and agent\n",
					optarg);
			break;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			r = -1;
		}
	}
	if (r < 0)
		return r;
	if (!o->trace || !have_format || optind != argc || o->format == TRACE_ORACLE) {
		fprintf(stderr, "kvreplay: run needs --trace and --format mooncake or agent\n");
		usage(stderr);
		return -1;
	}
	if (o->floor && (o->device || o->dim < 8)) {
		fprintf(stderr,
			"kvreplay: --floor goes with --dim of 8 or more, and with no --device\n");
		return -1;
	}
	return 0;
}

int cmd_run(int argc, char **argv)
{
	struct options o = {
		.policy = "lru", .capacity = 10000, .vram_blocks = 1000, .clients = 1, .dim = 4
	};
	struct trace_options topts = { 0 };
	struct run run = { .o = &o };
	struct trace trace;
	char error[256];
	int r;

	if (parse(argc, argv, &o) < 0)
		return 2;
	topts.block_tokens = o.block_tokens;
	topts.count = o.limit;
	topts.keep_text = true;
	if (trace_load(o.trace, o.format, &topts, &trace, error, sizeof(error)) < 0) {
		fprintf(stderr, "kvreplay: %s\n", error);
		return 1;
	}
	run.trace = &trace;
	run.block_tokens = trace.block_tokens;
	run.block_bytes = (uint64_t)trace.block_tokens * o.dim * 2 * 2;
	run.ends = find_ends(&trace, trace.block_tokens);
	run.chains = o.labels ? count_chains(&trace, trace.block_tokens) : NULL;
	if (!run.ends || (o.labels && !run.chains)) {
		fprintf(stderr, "kvreplay: no memory\n");
		free(run.chains);
		free(run.ends);
		trace_done(&trace);
		return 1;
	}
	run.shared = mmap(NULL, sizeof(*run.shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (run.shared == MAP_FAILED) {
		perror("kvreplay: mmap");
		free(run.chains);
		free(run.ends);
		trace_done(&trace);
		return 1;
	}
	r = with_daemon(&run);
	munmap(run.shared, sizeof(*run.shared));
	free(run.chains);
	free(run.ends);
	trace_done(&trace);
	return r;
}
