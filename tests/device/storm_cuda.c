/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storm of engines on a simulated GPU. They compute into slots of the daemon's device memory, copy into it and out
 * of it on their streams, read blocks there where they lie, by kernels that run on while the process is killed, and
 * release and publish with the stream. Some leave a forked child behind that keeps all their files and mappings. The
 * device's workers are killed as well. An engine is a program of its own, `storm --sim-client`, since the child of a
 * process with a GPU cannot use one.
 *
 * What is counted where: hazards are reports of the simulated driver, but for reads of what never came and is thrown
 * away (excusable()), and bytes in DRAM that changed under a lease;
 * wrong blocks are its kernels' and the processor's comparisons with what the tokens say; errors are calls that failed
 * with what no contract allows, misuse that the driver reported and engines that ended by themselves; hangs are calls
 * that took an engine 30 s.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/kvpool_cuda.h"
#include "tests/cudadrv/child.h"
#include "tests/device/storm.h"

#define HEADS       4u
#define DIM         128u
#define BLOCK_BYTES (T * 2u * 2u * HEADS * DIM * 2u) /* K and V, layers, heads, fp16 */
#define WORDS       (BLOCK_BYTES / 8)
#define VRAM        (256 * MIB)
#define CONTEXT     (4 * MIB)
#define CHILDREN    32u /* forked ones that are known at a time */
#define ALIVE       3u  /* of them that go on living */
#define LEFT        2u  /* by one engine */
#define HANG_NS     UINT64_C(30000000000)
#define FEW         16u
#define OFTEN_MS    100u
#define TEXT        80u

/* A client's call under way, for who looks whether it comes back. */
struct beat {
	_Atomic(uint64_t) ns; /* since when */
	_Atomic(uint32_t)
		early; /* blocks that its stream reads before it is known whether they come */
	_Atomic(uint32_t) excused; /* of excusable() before that */
	char what[TEXT];
};

struct shared {
	_Atomic(uint64_t) hazards, wrong, errors; /* that are not the driver's reports */
	_Atomic(uint64_t) computed, put, stored;  /* blocks: on the device, copied there, in DRAM */
	_Atomic(uint64_t) there, here, got; /* read: on the device, in DRAM, copied from both */
	_Atomic(uint64_t) early, came;      /* enqueued before they were there; that came */
	_Atomic(uint64_t) excused;          /* reports of reads of those that did not come */
	_Atomic(uint64_t) forked;
	struct beat beat[CLIENTS];
	_Atomic(int32_t) child[CHILDREN];
};

static struct shared *shared;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- an engine ------------------------------------------------------------------------------- */

struct engine {
	struct e2e e;
	struct kvp_cuda *cuda;
	struct kvp_timeline *line, *copies; /* what is marked; what is copied to slots */
	struct CUstream_st *stream;
	struct kvp_view_plane planes[2];
	uint64_t own; /* memory of its own for BLOCKS blocks */
	uint64_t bad; /* the word in which kernels count */
	uint64_t rng;
	uint32_t left; /* children */
	struct beat *beat;
};

static void at(struct engine *me, const char *what)
{
	if (!me->beat)
		return;
	snprintf(me->beat->what, sizeof(me->beat->what), "%s", what);
	atomic_store(&me->beat->ns, now_ns());
}

/* Counts what no contract allows, besides the errors in `allowed`, which ends with 0. */
static int64_t heard(struct engine *me, int64_t r, const char *what, const int *allowed)
{
	at(me, "between calls");
	while (r < 0 && *allowed && *allowed != (int)r)
		allowed++;
	if (r < 0 && !*allowed) {
		fprintf(stderr, "process %d: %s: %s\n", (int)getpid(), what, strerror((int)-r));
		atomic_fetch_add(&shared->errors, 1);
	}
	return r;
}

#define HEAR(me, call, ...) (at(me, #call), heard(me, call, #call, (const int[]){ __VA_ARGS__, 0 }))

static uint32_t below(struct engine *me, uint32_t n)
{
	return (uint32_t)(e2e_random(&me->rng) % n);
}

static bool one_in(struct engine *me, uint32_t n)
{
	return below(me, n) == 0;
}

/* The pattern's key of the block that ends after so many. */
static uint64_t key_of(const uint32_t *tokens, uint32_t blocks)
{
	return storm_digest(tokens, blocks * T);
}

static void derive(uint64_t key, uint64_t *payload)
{
	for (uint32_t i = 0; i < WORDS; i++)
		payload[i] = cudadrv_pattern(key, i);
}

static bool derived(uint64_t key, const uint64_t *payload)
{
	uint64_t diff = 0;

	for (uint32_t i = 0; i < WORDS; i++)
		diff |= payload[i] ^ cudadrv_pattern(key, i);
	return !diff;
}

static void check_there(struct engine *me, uint64_t addr, uint64_t key)
{
	if (one_in(me, 16))
		must(launch(me->stream, "slow_check", addr, BLOCK_BYTES, key, me->bad,
			below(me, 20000000)));
	else
		must(launch(me->stream, "check", addr, BLOCK_BYTES, key, me->bad, 0));
}

static void check_here(const uint32_t *tokens, const void *const *payloads, int64_t n,
	_Atomic(uint64_t) *count, const char *what)
{
	for (int64_t i = 0; i < n; i++)
		if (!derived(key_of(tokens, (uint32_t)i + 1), payloads[i])) {
			fprintf(stderr, "process %d: %s: block %d in DRAM\n", (int)getpid(), what,
				(int)i);
			atomic_fetch_add(count, 1);
		}
}

static void sync_stream(struct engine *me)
{
	at(me, "cuStreamSynchronize()");
	must(cu.cuStreamSynchronize(me->stream));
	at(me, "between calls");
}

static bool open_device(struct engine *me)
{
	struct kvp_cuda_opts o = { .size = sizeof(o), .stage_bytes = 2 * MIB };
	struct kvp_cuda_props p = { .size = sizeof(p), .device = KVP_CUDA_NO_DEVICE };

	if (HEAR(me, kvp_cuda_open(me->e.client, &o, &me->cuda), 0) < 0)
		return false;
	/* It is known when its worker has come up, which may have been killed just now. */
	at(me, "until kvp_cuda_info() knows the device");
	while (kvp_cuda_info(me->cuda, &p) == 0 && p.device == KVP_CUDA_NO_DEVICE)
		e2e_sleep_us(2000);
	return true;
}

static bool open_space(struct engine *me)
{
	struct kvp_layer layers[2] = {
		{ .index = 0, .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM },
		{ .index = 1, .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM }
	};
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = "storm",
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_NCLD,
		.block_tokens = T,
		.n_layers = 2,
		.layers = layers };
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .name = "storm", .default_timeout_ms = WAIT_MS
	};

	return HEAR(me, kvp_open(&opts, &me->e.client), 0) >= 0 &&
	       HEAR(me, kvp_space_open(me->e.client, &desc, WAIT_MS, &me->e.space), 0) >= 0;
}

static bool begin(struct engine *me)
{
	if (!open_space(me) || !open_device(me) ||
		HEAR(me, kvp_timeline_new(me->e.client, &me->line), 0) < 0 ||
		HEAR(me, kvp_timeline_new(me->e.client, &me->copies), 0) < 0)
		return false;
	me->stream = stream_new();
	must(cu.cuMemAlloc_v2(&me->own, BLOCKS * BLOCK_BYTES));
	must(cu.cuMemAlloc_v2(&me->bad, 8));
	must(launch(me->stream, "poke", me->bad, 0, 0, 0, 0));
	return true;
}

/* Where the engine's own memory has blocks one after the other. */
static struct kvp_view own_view(struct engine *me, uint32_t blocks)
{
	uint64_t bytes;

	(void)HEAR(me,
		kvp_view_dense(me->e.space, KVP_VIEW_NCLD, (void *)(uintptr_t)me->own,
			(size_t)blocks * T, me->planes, &bytes),
		0);
	return (struct kvp_view){ .size = sizeof(struct kvp_view), .planes = me->planes };
}

/* NULL: not even an empty one. */
static struct kvp_prefix *find(struct engine *me, const uint32_t *tokens, uint32_t blocks,
	uint32_t flags, struct kvp_prefix_info *ret_info)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = flags };
	struct kvp_prefix *m = NULL;

	*ret_info = (struct kvp_prefix_info){ .size = sizeof(*ret_info) };
	if (HEAR(me, kvp_match(me->e.space, tokens, blocks * T, &o, &m), 0) < 0)
		return NULL;
	(void)HEAR(me, kvp_match_info(m, ret_info), 0);
	if (ret_info->n_blocks && !(ret_info->flags & KVP_MATCHED_LEASED)) {
		/* Too many leases that wait for the stream. */
		kvp_release(m);
		sync_stream(me);
		return NULL;
	}
	return m;
}

/* At the end of what the stream has been given so far. */
static void release_with_stream(struct engine *me, struct kvp_prefix *m)
{
	uint64_t value;

	if (HEAR(me, kvp_cuda_mark(me->cuda, me->line, me->stream, &value), 0) == 0 &&
		HEAR(me, kvp_release_after(m, me->line, value), 0) == 0)
		return;
	sync_stream(me);
	kvp_release(m);
}

/* ---- what an engine does --------------------------------------------------------------------- */

/* A slot there is written by the stream; published as `tokens` after *parent, unless those are NULL. */
static bool compute_one(
	struct engine *me, struct kvp_ref *parent, const uint32_t *tokens, uint64_t key, bool last)
{
	struct kvp_grant *g;
	uint64_t to, value;
	bool well = false;

	if (HEAR(me, kvp_cuda_reserve(me->e.space, me->cuda, OFTEN_MS, NULL, &g), -EAGAIN, -ENODEV,
		    -ETIMEDOUT) < 0)
		return false;
	to = kvp_grant_device_addr(g);
	if (one_in(me, 8))
		must(launch(me->stream, "spin", to, below(me, 10000000), 0, 0, 0));
	must(launch(me->stream, "fill", to, BLOCK_BYTES, key, 0, 0));
	if (HEAR(me, kvp_cuda_mark(me->cuda, me->line, me->stream, &value), 0) < 0) {
		sync_stream(me);
		kvp_grant_release(g);
		return false;
	}
	if (tokens) {
		well = HEAR(me, kvp_commit_after(g, *parent, tokens, T, NULL, 0, me->line, value),
			       -EAGAIN) == 0;
		atomic_fetch_add(&shared->computed, well);
		well = well && (last || HEAR(me, kvp_grant_ref(g, parent), 0) == 0);
	}
	(void)HEAR(me, kvp_grant_release_after(g, me->line, value), 0);
	return well;
}

/* What is missing of the prompt's first blocks, or into a slot that is not published. */
static void compute(struct engine *me, const uint32_t *tokens, uint32_t blocks)
{
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find(me, tokens, blocks, KVP_MATCH_DEVICE, &info);
	struct kvp_ref parent = kvp_ref_root();
	bool well = m;

	if (well && info.n_blocks && info.n_blocks < blocks)
		well = HEAR(me, kvp_match_ref(m, info.n_blocks, &parent), 0) == 0;
	for (uint32_t i = info.n_blocks; i < blocks && well; i++)
		well = compute_one(me, &parent, one_in(me, 32) ? NULL : tokens + (size_t)i * T,
			key_of(tokens, i + 1), i + 1 == blocks);
	kvp_release(m);
}

/* The same in memory of its own, from where it is copied into slots in DRAM. */
static void put(struct engine *me, const uint32_t *tokens, uint32_t blocks)
{
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = OFTEN_MS };
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find(me, tokens, blocks, 0, &info);
	uint32_t first = info.n_blocks;
	struct kvp_view v;
	uint64_t value;
	int64_t n;

	if (m && first < blocks) {
		v = own_view(me, blocks - first);
		for (uint32_t i = first; i < blocks; i++)
			must(launch(me->stream, "fill",
				me->own + (uint64_t)(i - first) * BLOCK_BYTES, BLOCK_BYTES,
				key_of(tokens, i + 1), 0, 0));
		n = HEAR(me,
			kvp_cuda_put(me->e.space, me->cuda, tokens, blocks * T, first * T, &v, &o,
				me->stream, me->copies, &value, NULL),
			-EAGAIN, -ENOENT, -ETIMEDOUT);
		atomic_fetch_add(&shared->put, n > 0 ? (uint64_t)n / T : 0);
	}
	kvp_release(m);
}

/* By the processor. */
static void store(struct engine *me, const uint32_t *tokens, uint32_t blocks)
{
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find(me, tokens, blocks, 0, &info);
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_grant *last = NULL, *g;
	bool well = m;

	if (well && info.n_blocks && info.n_blocks < blocks)
		well = HEAR(me, kvp_match_ref(m, info.n_blocks, &parent), 0) == 0;
	for (uint32_t i = info.n_blocks; i < blocks && well; i++) {
		if (HEAR(me, kvp_reserve(me->e.space, OFTEN_MS, NULL, &g), -EAGAIN, -ETIMEDOUT) < 0)
			break;
		derive(key_of(tokens, i + 1), kvp_grant_addr(g));
		well = HEAR(me, kvp_commit(g, parent, tokens + (size_t)i * T, T, NULL, 0),
			       -EAGAIN) == 0;
		atomic_fetch_add(&shared->stored, well);
		well = well && (i + 1 == blocks || HEAR(me, kvp_grant_ref(g, &parent), 0) == 0);
		kvp_grant_release(last);
		last = g;
	}
	kvp_grant_release(last);
	kvp_release(m);
}

/* What a ticket may say besides that all is there. */
static bool may_be(struct engine *me, int why)
{
	static const int allowed[] = { -EAGAIN, -ENOSPC, -ENODEV, 0 };

	return heard(me, why, "why a ticket has less than all", allowed) == 0;
}

static void warm(struct engine *me, struct kvp_prefix *m, uint32_t blocks)
{
	struct kvp_warm_opts o = { .size = sizeof(o) };
	struct kvp_ticket ticket;
	int why = 0;

	o.first = one_in(me, 4) ? below(me, blocks) : 0;
	o.n = one_in(me, 2) ? 0 : 1 + below(me, blocks);
	o.flags = one_in(me, 4) ? KVP_WARM_PREFETCH : 0;
	if (HEAR(me, kvp_cuda_warm(m, me->cuda, &o, &ticket), -EAGAIN, -ENODEV) < 0 ||
		one_in(me, 4))
		return;
	if (HEAR(me, kvp_ticket_wait(me->e.client, ticket, 1 + below(me, 100), &why), -ETIMEDOUT) >=
		0)
		(void)may_be(me, why);
}

/* Reads blocks where they lie, on the device and in DRAM. */
static void visit(struct engine *me, const uint32_t *tokens, uint32_t blocks)
{
	struct kvp_prefix_info info;
	struct kvp_prefix *m =
		find(me, tokens, blocks, one_in(me, 2) ? KVP_MATCH_DEVICE : 0, &info);
	uint64_t addrs[BLOCKS] = { 0 };
	const void *here[BLOCKS];
	int64_t n;

	if (m && info.n_blocks) {
		if (!one_in(me, 4))
			warm(me, m, info.n_blocks);
		(void)HEAR(me, kvp_cuda_addrs(m, me->cuda, 0, info.n_blocks, 0, addrs), -ENODEV);
		for (uint32_t i = 0; i < info.n_blocks; i++) {
			if (addrs[i])
				check_there(me, addrs[i], key_of(tokens, i + 1));
			atomic_fetch_add(&shared->there, addrs[i] != 0);
		}
		n = HEAR(me, kvp_payloads(m, 0, info.n_blocks, here), 0);
		check_here(tokens, here, n, &shared->wrong, "wrong");
		atomic_fetch_add(&shared->here, n > 0 ? (uint64_t)n : 0);
		if (one_in(me, 2))
			e2e_sleep_us(below(me, 8000));
		check_here(tokens, here, n, &shared->hazards, "hazard");
		release_with_stream(me, m);
	} else {
		kvp_release(m);
	}
}

/*
 * A stream that waits for a ticket goes on when the ticket fails, and reads places whose writer was killed, whose results
 * nobody believes (kvp_ticket_placed()). The driver reports that, as it should. So many such reports are there of a
 * process; none is made by anything else while its stream has nothing but that.
 */
static uint32_t excusable(pid_t pid)
{
	char path[128], line[512], head[32];
	uint32_t n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/reports", getenv("KVP_SIM_GPU"));
	snprintf(head, sizeof(head), "hazard %d ", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		n += !strncmp(line, head, strlen(head)) && strstr(line, " copy reads ") &&
		     strstr(line, "(kvpool-device, killed) writes ");
	if (f)
		fclose(f);
	return n;
}

static void excuse(struct beat *b, pid_t pid, uint32_t blocks)
{
	const uint32_t n = blocks ? excusable(pid) - b->excused : 0;

	atomic_fetch_add(&shared->excused, n < blocks ? n : blocks);
	atomic_store(&b->early, 0);
}

/* The stream is given the blocks to read that have a place in the ticket. Returns of how many. */
static int64_t read_early(struct engine *me, struct kvp_prefix *m, struct kvp_ticket ticket)
{
	int64_t n = HEAR(me, kvp_ticket_placed(me->e.client, ticket, WAIT_MS), 0), i;
	uint64_t addrs[BLOCKS] = { 0 };

	n = n < 0 ? 0 : n;
	(void)HEAR(me, kvp_cuda_addrs(m, me->cuda, 0, (uint32_t)n, KVP_DEVICE_PENDING, addrs),
		-ENODEV);
	if (HEAR(me, kvp_cuda_stream_wait(me->cuda, me->stream, ticket), -EAGAIN) < 0)
		return 0;
	for (i = 0; i < n && addrs[i]; i++)
		must(cu.cuMemcpyDtoDAsync_v2(
			me->own + (uint64_t)i * BLOCK_BYTES, addrs[i], BLOCK_BYTES, me->stream));
	return i;
}

/* Blocks that have not come are read by what is enqueued before they do. */
static void visit_early(struct engine *me, const uint32_t *tokens, uint32_t blocks)
{
	struct kvp_warm_opts o = { .size = sizeof(o), .flags = KVP_WARM_EARLY };
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find(me, tokens, blocks, 0, &info);
	struct kvp_ticket ticket;
	int64_t n, came;
	int why = 0;

	sync_stream(me);
	if (!m || !info.n_blocks ||
		HEAR(me, kvp_cuda_warm(m, me->cuda, &o, &ticket), -EAGAIN, -ENODEV) < 0) {
		kvp_release(m);
		return;
	}
	atomic_store(&me->beat->excused, excusable(getpid()));
	atomic_store(&me->beat->early, info.n_blocks);
	n = read_early(me, m, ticket);
	came = HEAR(me, kvp_ticket_wait(me->e.client, ticket, WAIT_MS, &why), 0);
	(void)may_be(me, why);
	came = came < 0 ? 0 : came < n ? came : n;
	sync_stream(me);
	excuse(me->beat, getpid(), (uint32_t)(n - came));
	for (uint32_t i = 0; i < came; i++)
		must(launch(me->stream, "check", me->own + (uint64_t)i * BLOCK_BYTES, BLOCK_BYTES,
			key_of(tokens, i + 1), me->bad, 0));
	atomic_fetch_add(&shared->early, (uint64_t)n);
	atomic_fetch_add(&shared->came, (uint64_t)came);
	release_with_stream(me, m);
}

/* Blocks are copied to memory of its own, from wherever they lie. */
static void get(struct engine *me, const uint32_t *tokens, uint32_t blocks)
{
	struct kvp_prefix_info info;
	struct kvp_prefix *m =
		find(me, tokens, blocks, one_in(me, 2) ? KVP_MATCH_DEVICE : 0, &info);
	struct kvp_view v;
	int64_t n;

	if (!m || !info.n_blocks) {
		kvp_release(m);
		return;
	}
	v = own_view(me, info.n_blocks);
	n = HEAR(me, kvp_cuda_get(m, me->cuda, 0, info.n_blocks * T, &v, me->stream), -EAGAIN);
	for (uint32_t i = 0; (int64_t)(i + 1) * T <= n; i++) {
		must(launch(me->stream, "check", me->own + (uint64_t)i * BLOCK_BYTES, BLOCK_BYTES,
			key_of(tokens, i + 1), me->bad, 0));
		atomic_fetch_add(&shared->got, 1);
	}
	release_with_stream(me, m);
}

/* Leaves a child that does nothing but to keep the files and mappings, until the storm ends it or has ended. */
static void leave_child(struct engine *me, int life)
{
	pid_t pid;
	char c;

	if (me->left == LEFT)
		return;
	me->left++;
	pid = fork();
	if (pid < 0)
		e2e_die("fork()", errno);
	if (pid)
		return;
	for (uint32_t i = 0; i < CHILDREN; i++) {
		int32_t nobody = 0;

		if (atomic_compare_exchange_strong(&shared->child[i], &nobody, getpid())) {
			atomic_fetch_add(&shared->forked, 1);
			(void)!read(life, &c, 1);
			break;
		}
	}
	_exit(0);
}

static void act(struct engine *me)
{
	const uint32_t blocks = one_in(me, 4) ? 1 + below(me, BLOCKS) : BLOCKS;
	uint32_t tokens[BLOCKS * T];
	struct kvp_ids ids = { .ids = tokens, .n = blocks * T, .type = KVP_IDS_U32 };

	/* Half of all is about a few prompts, so that what one reads others delete. */
	storm_prompt(below(me, one_in(me, 2) ? FEW : PROMPTS), tokens);
	switch (below(me, 20)) {
	case 0:
		(void)HEAR(me, kvp_delete(me->e.space, tokens, blocks * T, OFTEN_MS), -EAGAIN,
			-ETIMEDOUT);
		break;
	case 1:
		(void)HEAR(me, kvp_prefetch(me->e.space, &ids, NULL), -EAGAIN, -ENODEV);
		break;
	case 2:
	case 3:
	case 4:
		compute(me, tokens, blocks);
		break;
	case 5:
	case 6:
		put(me, tokens, blocks);
		break;
	case 7:
		store(me, tokens, blocks);
		break;
	case 8:
	case 9:
	case 10:
		visit_early(me, tokens, blocks);
		break;
	case 11:
	case 12:
		get(me, tokens, blocks);
		break;
	default:
		visit(me, tokens, blocks);
	}
	if (!one_in(me, 4))
		sync_stream(me);
}

/* For ever. */
static int engine(int argc, char **argv)
{
	const int life = (int)storm_option(argc, argv, "--life", 0);
	struct engine me = { .rng = storm_option(argc, argv, "--seed", 1) };

	kvt_end_with((pid_t)storm_option(argc, argv, "--parent", 0), SIGKILL);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED,
		(int)storm_option(argc, argv, "--shared", 0), 0);
	if (shared == MAP_FAILED)
		e2e_die("what the storm shares", errno);
	me.beat = &shared->beat[storm_option(argc, argv, "--sim-client", 0) % CLIENTS];
	at(&me, "the driver");
	child_open();
	if (!begin(&me))
		return 1;
	for (;;) {
		act(&me);
		if (one_in(&me, 64))
			leave_child(&me, life);
	}
}

/* ---- one who holds what it has --------------------------------------------------------------- */

struct keeper {
	struct engine me;
	struct kvp_prefix *m[KEPT];
	uint64_t addrs[KEPT][BLOCKS];
	const void *here[KEPT][BLOCKS];
	uint32_t tokens[KEPT][BLOCKS * T];
};

/* Has all of it there and in DRAM? Else it holds nothing. */
static bool hold(struct keeper *k, uint32_t i)
{
	struct engine *me = &k->me;
	struct kvp_prefix_info info;
	struct kvp_ticket ticket;
	int why;

	k->m[i] = find(me, k->tokens[i], BLOCKS, 0, &info);
	if (k->m[i] && info.n_blocks == BLOCKS &&
		HEAR(me, kvp_cuda_warm(k->m[i], me->cuda, NULL, &ticket), -EAGAIN, -ENODEV) == 0 &&
		HEAR(me, kvp_ticket_wait(me->e.client, ticket, WAIT_MS, &why), 0) == (int)BLOCKS &&
		kvp_cuda_addrs(k->m[i], me->cuda, 0, BLOCKS, 0, k->addrs[i]) == (int)BLOCKS &&
		kvp_payloads(k->m[i], 0, BLOCKS, k->here[i]) == (int)BLOCKS)
		return true;
	kvp_release(k->m[i]);
	return false;
}

/* Of two ways to get blocks there, each for half of the prompts. */
static void keep(struct keeper *k)
{
	child_open();
	if (!begin(&k->me))
		e2e_die("the first client", EIO);
	for (uint32_t i = 0; i < KEPT; i++) {
		uint32_t tries = 0;

		storm_prompt(PROMPTS + i, k->tokens[i]);
		do {
			if (tries++ == 3000)
				e2e_die("the first blocks", ENODATA);
			if (i % 2)
				compute(&k->me, k->tokens[i], BLOCKS);
			else
				store(&k->me, k->tokens[i], BLOCKS);
			sync_stream(&k->me);
			(void)HEAR(&k->me, kvp_flush(k->me.e.client, WAIT_MS), 0);
			e2e_sleep_us(tries > 1 ? 10000 : 0);
		} while (!hold(k, i));
	}
}

/* At the addresses of the first time: what others do moves nothing of it. */
static void kept(struct keeper *k)
{
	struct engine *me = &k->me;

	for (uint32_t i = 0; i < KEPT; i++) {
		for (uint32_t b = 0; b < BLOCKS; b++)
			must(launch(me->stream, "check", k->addrs[i][b], BLOCK_BYTES,
				key_of(k->tokens[i], b + 1), me->bad, 0));
		check_here(
			k->tokens[i], k->here[i], BLOCKS, &shared->hazards, "held from the first");
	}
	sync_stream(me);
}

/* Blocks that were held all the time and are not there any more; lets go of all. */
static void lost(struct keeper *k, uint32_t *ret_dram, uint32_t *ret_vram)
{
	struct engine *me = &k->me;

	*ret_dram = *ret_vram = 0;
	for (uint32_t i = 0; i < KEPT; i++) {
		uint64_t addrs[BLOCKS] = { 0 };
		const void *here[BLOCKS];
		struct kvp_prefix_info info;
		struct kvp_prefix *m = find(me, k->tokens[i], BLOCKS, 0, &info);
		int n = m ? kvp_payloads(m, 0, BLOCKS, here) : 0;

		n = n > 0 ? n : 0;
		if (m)
			(void)kvp_cuda_addrs(m, me->cuda, 0, BLOCKS, 0, addrs);
		check_here(k->tokens[i], here, n, &shared->wrong,
			"held from the first, matched again");
		*ret_dram += BLOCKS - (uint32_t)n;
		for (uint32_t b = 0; b < BLOCKS; b++)
			*ret_vram += !addrs[b] || addrs[b] != k->addrs[i][b];
		kvp_release(m);
		kvp_release(k->m[i]);
	}
}

static void end_keeper(struct keeper *k)
{
	struct engine *me = &k->me;

	kvp_timeline_free(me->line);
	kvp_timeline_free(me->copies);
	me->cuda = kvp_cuda_close(me->cuda);
	must(cu.cuMemFree_v2(me->own));
	must(cu.cuMemFree_v2(me->bad));
	must(cu.cuStreamDestroy_v2(me->stream));
	must(cu.cuDevicePrimaryCtxRelease_v2(cu.device));
	e2e_detach(&me->e);
}

/* ---- killing --------------------------------------------------------------------------------- */

struct storm {
	struct kvt_daemon daemon;
	struct cudadrv *sim;
	struct keeper keeper;
	char folder[64];
	pid_t pid[CLIENTS];
	pid_t ended[4 * CHILDREN]; /* forked children that were killed, and are not reaped */
	uint32_t n_ended;
	int shared, life[2];
	uint32_t hangs, wrong; /* wrong: how often `check` found something */
	uint64_t looked_ns, paused_ns;
	uint64_t rng;
};

static void start_client(struct storm *s, uint32_t number)
{
	char texts[5][24];
	const char *argv[] = { "storm", "--sim-client", texts[0], "--seed", texts[1], "--parent",
		texts[2], "--shared", texts[3], "--life", texts[4], NULL };
	extern char **environ;
	int r;

	atomic_store(&shared->beat[number].ns, now_ns());
	atomic_store(&shared->beat[number].early, 0);
	snprintf(texts[0], sizeof(texts[0]), "%u", number);
	snprintf(texts[1], sizeof(texts[1]), "%llu", (unsigned long long)(e2e_random(&s->rng) | 1));
	snprintf(texts[2], sizeof(texts[2]), "%d", (int)getpid());
	snprintf(texts[3], sizeof(texts[3]), "%d", s->shared);
	snprintf(texts[4], sizeof(texts[4]), "%d", s->life[0]);
	r = posix_spawn(
		&s->pid[number], "/proc/self/exe", NULL, NULL, (char *const *)argv, environ);
	if (r)
		e2e_die("a client", r);
}

static void end_client(struct storm *s, uint32_t number)
{
	int status;

	kill(s->pid[number], SIGKILL);
	status = e2e_reap(s->pid[number]);
	if (status != 128 + SIGKILL) {
		fprintf(stderr, "process %d ended by itself, status %d\n", (int)s->pid[number],
			status);
		atomic_fetch_add(&shared->errors, 1);
	}
	excuse(&shared->beat[number], s->pid[number], shared->beat[number].early);
	s->pid[number] = 0;
}

/* Kills forked children until so many are alive; the storm inherits those whose engine is dead. */
static void end_children(struct storm *s, uint32_t alive)
{
	uint32_t n = 0, kept_ended = 0;

	for (uint32_t i = 0; i < CHILDREN; i++)
		n += atomic_load(&shared->child[i]) != 0;
	for (uint32_t i = below(&s->keeper.me, CHILDREN), k = 0; n > alive && k < CHILDREN; k++) {
		_Atomic(int32_t) *child = &shared->child[(i + k) % CHILDREN];
		pid_t pid = atomic_load(child);

		if (!pid || s->n_ended == sizeof(s->ended) / sizeof(s->ended[0]))
			continue;
		kill(pid, SIGKILL);
		atomic_store(child, 0);
		s->ended[s->n_ended++] = pid;
		n--;
	}
	for (uint32_t i = 0; i < s->n_ended; i++)
		if (waitpid(s->ended[i], NULL, WNOHANG) != s->ended[i])
			s->ended[kept_ended++] = s->ended[i];
	s->n_ended = kept_ended;
}

/* There is no engine any more. */
static void end_all_children(struct storm *s)
{
	close(s->life[1]);
	for (uint32_t tries = 0; tries < 1000; tries++) {
		uint32_t n = 0;

		end_children(s, 0);
		for (uint32_t i = 0; i < CHILDREN; i++)
			n += atomic_load(&shared->child[i]) != 0;
		if (!n && !s->n_ended)
			return;
		e2e_sleep_us(10000);
	}
	e2e_die("children that were left do not end", ETIMEDOUT);
}

/* Nobody is killed for being slow: a client that hangs counts once, and another takes its place. */
static void look_for_hangs(struct storm *s)
{
	const uint64_t now = now_ns();

	/* Time in which this process was stopped, too, is nobody's. */
	if (now - s->looked_ns > 2000000000u)
		s->paused_ns = now;
	s->looked_ns = now;
	for (uint32_t i = 0; i < CLIENTS; i++) {
		uint64_t since = atomic_load(&shared->beat[i].ns);

		since = since > s->paused_ns ? since : s->paused_ns;
		if (now < since + HANG_NS)
			continue;
		fprintf(stderr, "process %d has been in one call for 30 s: %.*s\n", (int)s->pid[i],
			(int)TEXT - 1, shared->beat[i].what);
		s->hangs++;
		end_client(s, i);
		start_client(s, i);
	}
}

static void check(struct storm *s, uint32_t clients)
{
	s->wrong += e2e_clean(s->daemon.socket, clients) < 0;
}

static void run(struct storm *s, uint32_t kills, uint32_t worker_kills)
{
	uint32_t done = 0, workers = 0;

	for (uint32_t i = 0; i < CLIENTS; i++)
		start_client(s, i);
	s->looked_ns = now_ns();
	while (done < kills || workers < worker_kills) {
		e2e_sleep_us(1000 + (long)(e2e_random(&s->rng) % 300000));
		look_for_hangs(s);
		if (done < kills) {
			uint32_t i = (uint32_t)(e2e_random(&s->rng) % CLIENTS);

			end_client(s, i);
			start_client(s, i);
			done++;
		}
		if (workers < worker_kills && (done >= kills || e2e_random(&s->rng) % 4 == 0)) {
			pid_t worker = e2e_worker(s->daemon.pid);

			if (worker) {
				kill(worker, SIGKILL);
				workers++;
			}
		}
		end_children(s, ALIVE);
		kept(&s->keeper);
		s->looked_ns = now_ns();
	}
	for (uint32_t i = 0; i < CLIENTS; i++)
		end_client(s, i);
	printf("%u engines killed, %u workers\n", done + CLIENTS, workers);
}

/* ---- what is left ---------------------------------------------------------------------------- */

static uint64_t number_of(const json_t *row, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(row, name));
}

/* What the simulated device has less than the daemon's books and its worker's context leave; what nobody should have. */
static uint64_t owed_now(struct storm *s, bool contexts)
{
	int status;
	json_t *answer = e2e_ask(s->daemon.socket, "{\"verb\":\"devices\"}", &status);
	const json_t *row = json_array_get(
		json_is_array(answer) ? answer : json_object_get(answer, "devices"), 0);
	const uint64_t held = number_of(row, "segment_bytes") + (contexts ? CONTEXT : 0);
	uint64_t free = 0, owed = number_of(row, "owed_bytes");

	if (status < 0 || !row || cudadrv_free_bytes(s->sim, 0, &free) < 0)
		e2e_die("figures of the device", EIO);
	if (VRAM - free > held && VRAM - free - held > owed)
		owed = VRAM - free - held;
	json_decref(answer);
	return owed;
}

/* In bytes, after what the driver and the daemon may take to see that somebody has died. */
static uint64_t owed(struct storm *s)
{
	uint64_t n = 0;

	for (uint32_t tries = 0; tries < 1000; tries++) {
		n = owed_now(s, e2e_worker(s->daemon.pid) != 0);
		if (!n)
			break;
		e2e_sleep_us(10000);
	}
	return n;
}

/* Slots that a client still has, and memory that one still maps, after the device was emptied. */
static uint64_t slots_left(struct storm *s)
{
	static const char drain[] = "{\"verb\":\"device-drain\",\"device\":\"d0\"}";
	uint64_t n = 1;
	int status;

	for (uint32_t tries = 0; n && tries < 1000; tries++) {
		json_t *answer = e2e_ask(s->daemon.socket,
			tries ? "{\"verb\":\"device-left\",\"device\":\"d0\"}" : drain, &status);

		n = number_of(answer, "blocks") + number_of(answer, "granted_slots") +
		    number_of(answer, "mapped_extents") + number_of(answer, "extents");
		n = status < 0 ? 1 : n;
		if (n && tries == 999)
			json_dumpf(answer, stderr, JSON_INDENT(2));
		json_decref(answer);
		e2e_sleep_us(n ? 10000 : 0);
	}
	return n;
}

static uint64_t reported(struct storm *s, enum cudadrv_report kind)
{
	return cudadrv_reports(s->sim, kind);
}

/* Other misuse of the driver than what has a column of its own. */
static uint64_t misuse(struct storm *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < CUDADRV_REPORTS_N; i++)
		if (i != CUDADRV_HAZARD && i != CUDADRV_WRONG_DATA) {
			uint64_t k = reported(s, (enum cudadrv_report)i);

			if (k)
				fprintf(stderr, "reported %s: %llu\n",
					cudadrv_report_name((enum cudadrv_report)i),
					(unsigned long long)k);
			n += k;
		}
	return n;
}

static void told(void)
{
#define TOLD(x) ((unsigned long long)shared->x)
	printf("%llu blocks computed on the device, %llu copied from there to DRAM, %llu stored; "
	       "%llu read on the device, %llu in DRAM, %llu copied; %llu enqueued early, of which "
	       "%llu came (reports of reads of the others: %llu); %llu children left\n",
		TOLD(computed), TOLD(put), TOLD(stored), TOLD(there), TOLD(here), TOLD(got),
		TOLD(early), TOLD(came), TOLD(excused), TOLD(forked));
#undef TOLD
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void set_up(struct storm *s)
{
	const struct cudadrv_config c = { .vram_bytes = VRAM,
		.context_bytes = CONTEXT,
		.copy_rate = UINT64_C(1) << 30,
		.latency_ns = 20000,
		.seed = s->rng };
	static char more[1024];
	struct kvt_daemon_opts opts = { .share = 48u << 20, .max_blocks = 600, .more = more };

	if (!getenv("KVPOOL_DEVICE") || !getenv("KVPOOL_LIBCUDA"))
		e2e_die("KVPOOL_DEVICE names the worker, KVPOOL_LIBCUDA the simulated driver",
			EINVAL);
	snprintf(s->folder, sizeof(s->folder), "%s/kvpool-storm-XXXXXX",
		access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(s->folder) || cudadrv_new(s->folder, &c, &s->sim) < 0 ||
		setenv("KVP_SIM_GPU", s->folder, 1) < 0 || setenv("KVP_SIM_QUIET", "1", 1) < 0)
		e2e_die("a simulated machine", errno);
	snprintf(more, sizeof(more),
		"devices:\n  - {name: d0, driver: cuda, index: 0, bytes: 16MiB, segment: 2MiB, "
		"worker: \"%s\"}\n",
		getenv("KVPOOL_DEVICE"));
	e2e_start(&s->daemon, &opts);
	setenv("KVPOOL_SOCKET", s->daemon.socket, 1);
	/* Engines inherit it; the end of the pipe that none has tells their children that the storm is over. */
	s->shared = memfd_create("storm", 0);
	if (s->shared < 0 || ftruncate(s->shared, sizeof(*shared)) < 0 || pipe(s->life) < 0 ||
		fcntl(s->life[1], F_SETFD, FD_CLOEXEC) < 0)
		e2e_die("what engines share", errno);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, s->shared, 0);
	if (shared == MAP_FAILED || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		e2e_die("what engines share", errno);
}

/* The driver's reports, also those of workers, whose messages nobody sees. */
static void show_reports(struct storm *s)
{
	char path[128], line[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/reports", s->folder);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		fputs(line, stderr);
	if (f)
		fclose(f);
}

static void tear_down(struct storm *s)
{
	char command[128];

	kvt_daemon_stop(&s->daemon);
	cudadrv_close(s->sim);
	snprintf(command, sizeof(command), "rm -rf '%s'", s->folder);
	if (system(command)) /* NOLINT: the path is the test's own */
		fprintf(stderr, "%s is left\n", s->folder);
}

int storm_cuda(int argc, char **argv)
{
	const uint32_t kills = (uint32_t)storm_option(argc, argv, "--kills", 40);
	const uint32_t worker_kills = (uint32_t)storm_option(argc, argv, "--worker-kills", 8);
	const uint64_t seed = storm_option(argc, argv, "--seed", 1);
	static struct storm s;
	uint32_t dram, vram;
	uint64_t hazards, wrong, left, vram_owed, errors;

	if (!strcmp(argv[1], "--sim-client"))
		return engine(argc, argv);
	s.rng = s.keeper.me.rng = seed ? seed : 1;
	set_up(&s);
	keep(&s.keeper);
	run(&s, kills, worker_kills);
	end_all_children(&s);
	kept(&s.keeper);
	lost(&s.keeper, &dram, &vram);
	check(&s, 1);
	end_keeper(&s.keeper);
	check(&s, 0);
	left = storm_left(s.daemon.socket);
	vram_owed = owed(&s);
	left += slots_left(&s);
	check(&s, 0);
	vram_owed += owed(&s);
	hazards = shared->hazards + reported(&s, CUDADRV_HAZARD) - shared->excused;
	wrong = shared->wrong + reported(&s, CUDADRV_WRONG_DATA);
	errors = shared->errors + misuse(&s);
	told();
	printf("hazards %llu  wrong blocks %llu  slots returned twice %u  leases left %llu  vram "
	       "owed %.1f MiB after children ended  dram blocks lost %u  vram blocks lost %u  "
	       "errors %llu  hangs %u\n",
		(unsigned long long)hazards, (unsigned long long)wrong, s.wrong,
		(unsigned long long)left, (double)vram_owed / MIB, dram, vram,
		(unsigned long long)errors, s.hangs);
	if (hazards || wrong || errors)
		show_reports(&s);
	tear_down(&s);
	return hazards || wrong || s.wrong || left || vram_owed || dram || vram || errors ||
	       s.hangs || !shared->there || !shared->computed || !shared->put || !shared->got ||
	       !shared->came;
}
