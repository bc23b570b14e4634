/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The case itself: a machine, a daemon, an engine that meets the fault and one that comes afterwards. What the first
 * is told may be any of a few errors; a call that does not come back, a wrong byte, DRAM that is not served, or a
 * stream that stays where it is end the test.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/kvp_cuda_kernels.h"
#include "tests/device/entry_points.h"
#include "tests/libclient/gpu_live.h"

#define MIB       (UINT64_C(1) << 20)
#define HANG_S    60u   /* until an engine that has not come to its end is taken for stuck */
#define SHORT_MS  1500u /* calls of an engine that meets the fault */
#define TRIES     100u
#define TRY_MS    8000u /* of calls each of which takes its time, and is to be asked again */
#define NAP_US    20000
#define ALL_BYTES ((uint64_t)N * TOKEN_BYTES)

static struct kvt_daemon daemon_;
static struct cudadrv *sim;
static char folder[64];
static bool up; /* the machine and the daemon of the library's cases */
static uint32_t used_needs;
static char what_[128] = "";

bool entry_has_kernel(void)
{
	return kvp_cuda_layout_image() != NULL;
}

const char *entry_errno(int error)
{
	static const struct {
		int error;
		const char *name;
	} names[] = { { -EAGAIN, "-EAGAIN" }, { -EIO, "-EIO" }, { -ENODEV, "-ENODEV" },
		{ -ENOMEM, "-ENOMEM" }, { -ENOSPC, "-ENOSPC" }, { -ETIMEDOUT, "-ETIMEDOUT" },
		{ -EOPNOTSUPP, "-EOPNOTSUPP" }, { -ENOENT, "a miss" } };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].error == error)
			return names[i].name;
	return NULL;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

_Noreturn static void wrong(const char *what)
{
	fprintf(stderr, "%s: %s\n", what_, what);
	_exit(1);
}

/* ---- the engine ------------------------------------------------------------------------------ */

static struct {
	struct gpu gpu;
	struct engine *e;
	struct kvp_cuda *cuda;
	struct kvp_timeline *line;
	uint64_t mine; /* memory of its own on the device */
	bool strict;   /* nothing goes wrong */
	bool stuck_ok; /* its process has lost the device */
	int heard;
} me;

static uint32_t tries(void)
{
	return me.strict ? 1500 : TRIES;
}

/* May what has been tried since then be tried once more? */
static bool worth_it(uint32_t i, uint64_t from)
{
	return i < tries() && (me.strict || now_ms() < from + TRY_MS);
}

static uint32_t wait_ms(void)
{
	return me.strict ? WAIT_MS : SHORT_MS;
}

/* Notes an error of the library; false: it was one. */
static bool good(int64_t r, const char *call)
{
	char text[120];

	if (r >= 0)
		return true;
	if (!entry_errno((int)r) || me.strict) {
		snprintf(text, sizeof(text), "%s says %d%s", call, (int)r,
			me.strict ? ", though nothing fails any more" : "");
		wrong(text);
	}
	if (!me.heard)
		me.heard = (int)r;
	return false;
}
#define GOOD(call) good(call, #call)

/* Has the stream come to its end? False: it has met an error. One that stays where it is ends the test. */
static bool synced(void)
{
	const uint64_t until = now_ms() + E2E_WAIT_MS;
	int error;

	while ((error = me.gpu.cu.cuStreamQuery(me.gpu.stream)) == CU_NOT_READY) {
		if (now_ms() > until)
			wrong("a stream stays where it is");
		usleep(200);
	}
	if (error != CU_OK && me.strict)
		wrong("a stream ended with an error, though nothing fails any more");
	me.stuck_ok |= error != CU_OK;
	return error == CU_OK;
}

static void opened(const struct entry_case *k)
{
	struct kvp_cuda_opts o = { .size = sizeof(o),
		.stage_bytes = 4 * MIB,
		.context = me.gpu.cu.ctx,
		.timeout_ms = 300 };
	struct kvp_cuda_props p = { .size = sizeof(p), .device = KVP_CUDA_NO_DEVICE };

	if (!me.strict && k->needs & NEEDS_NO_CURRENT)
		EQUAL(me.gpu.cu.cuCtxSetCurrent(NULL), CU_OK);
	for (uint32_t i = 0; i < 3 && !me.cuda; i++)
		(void)GOOD(kvp_cuda_open(me.e->client, &o, &me.cuda));
	if (!me.strict && k->needs & NEEDS_NO_CURRENT)
		(void)me.gpu.cu.cuCtxSetCurrent(me.gpu.cu.ctx);
	/* A daemon that has just been started does not know the device yet. */
	for (uint32_t i = 0; me.cuda && i < tries() && p.device == KVP_CUDA_NO_DEVICE; i++) {
		EQUAL(kvp_cuda_info(me.cuda, &p), 0);
		if (p.device == KVP_CUDA_NO_DEVICE)
			usleep(NAP_US);
	}
	if (p.device == KVP_CUDA_NO_DEVICE)
		(void)good(-ENODEV, "kvp_cuda_info()");
}

/* Bytes of its own memory on the device, if they can be read. */
static void compare(uint64_t n, const uint8_t *want)
{
	static uint8_t back[N * TOKEN_BYTES];

	if (!synced() || me.gpu.cu.cuMemcpyDtoH_v2(back, me.mine, n) != CU_OK)
		return;
	if (memcmp(back, want, n) != 0)
		wrong("what was copied to the device is something else");
}

/* The prompt as it can be had: copied into the engine's own memory, all of it and one piece. */
static void get(struct kvp_prefix *m)
{
	struct kvp_cuda_piece piece = { .block = 1, .bytes = 4096, .device_addr = me.mine };
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	int64_t n = -EAGAIN;
	uint64_t bytes;

	EQUAL(kvp_view_dense(
		      me.e->space, KVP_VIEW_NCLD, (void *)(uintptr_t)me.mine, N, planes, &bytes),
		0);
	for (uint32_t i = 0; n == -EAGAIN && i < 10; i++) {
		n = kvp_cuda_get(m, me.cuda, 0, N, &v, me.gpu.stream);
		if (n == -EAGAIN)
			(void)synced();
	}
	if (good(n, "kvp_cuda_get()"))
		compare((uint64_t)n * TOKEN_BYTES, me.e->kv);
	if (GOOD(kvp_cuda_load(m, me.cuda, &piece, 1, me.gpu.stream)))
		compare(4096, me.e->kv + BLOCK_BYTES);
}

/* Copied to the daemon's device, while a stream waits for that; read there; and let go of when a stream says so. */
static void there(const struct entry_case *k)
{
	uint64_t addrs[BLOCKS], value;
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find_soon(me.e, N, N, &info);
	const uint64_t from = now_ms();
	int why = -ENOENT;

	/* What the client before left has come to a vault, and that is pinned. */
	if (k->needs & NEEDS_PINNED && !me.strict)
		usleep(500000);
	kvp_release(m);
	m = find_soon(me.e, N, N, &info);
	same_bytes(me.e, m, N);
	for (uint32_t i = 0; why && worth_it(i, from); i++) {
		struct kvp_ticket ticket;
		int r;

		cudadrv_stall(me.gpu.sim, 0, 0, 1);
		r = kvp_cuda_warm(m, me.cuda, NULL, &ticket);
		if (r == 0 && !me.stuck_ok)
			r = kvp_cuda_stream_wait(me.cuda, me.gpu.stream, ticket);
		cudadrv_stall(me.gpu.sim, 0, 0, 0);
		if (r < 0 && me.strict && r == -ENODEV)
			why = r; /* the next worker is coming */
		else if (good(r, "kvp_cuda_warm(), kvp_cuda_stream_wait()")) {
			r = kvp_ticket_wait(me.e->client, ticket, WAIT_MS, &why);
			if (r < 0)
				wrong("a ticket does not end");
		}
		if (!me.strict && why)
			(void)good(why, "a ticket");
		if (!synced())
			break;
		if (!why && kvp_cuda_addrs(m, me.cuda, 0, BLOCKS, 0, addrs) != BLOCKS)
			why = -ENOENT;
		if (why)
			usleep(NAP_US);
	}
	if (why)
		(void)good(why, "what was asked to be on the device");
	get(m);
	if (GOOD(kvp_cuda_mark(me.cuda, me.line, me.gpu.stream, &value))) {
		EQUAL(kvp_release_after(m, me.line, value), 0);
		for (uint32_t i = 0; synced() && !kvp_timeline_reached(me.line, value); i++) {
			if (i == 2000)
				wrong("what a stream has written is not seen");
			usleep(1000);
		}
	} else {
		kvp_release(m);
	}
}

/* What lies in DRAM, in a vault that is registered. */
static void from_dram(void)
{
	struct kvp_prefix_info info;
	struct kvp_prefix *m = NULL;
	const void *addrs[BLOCKS];

	for (uint32_t i = 0; i < (me.strict ? 50u : 2u); i++) {
		int r = kvp_host_register(me.cuda, 0, wait_ms());

		if (r != -ETIMEDOUT)
			(void)good(r, "kvp_host_register()");
		m = find_soon(me.e, N, N, &info);
		same_bytes(me.e, m, N);
		if (kvp_host_payloads(m, me.cuda, 0, BLOCKS, addrs) == BLOCKS)
			break;
		kvp_release(m);
		m = NULL;
		usleep(NAP_US);
	}
	if (!m)
		m = find_soon(me.e, N, N, &info);
	get(m);
	kvp_release(m);
}

/* From its own memory to slots of DRAM, a block at a time and a piece at a time. */
static void put(void)
{
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = wait_ms() };
	struct kvp_cuda_piece piece = { .bytes = BLOCK_BYTES, .device_addr = me.mine };
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	struct kvp_timeline *line;
	struct kvp_prefix_info info;
	struct kvp_grant *g;
	struct kvp_prefix *m;
	uint64_t bytes, value;
	int64_t n;
	bool all;

	if (me.gpu.cu.cuMemcpyHtoD_v2(me.mine, me.e->kv, ALL_BYTES) != CU_OK)
		return;
	EQUAL(kvp_timeline_new(me.e->client, &line), 0);
	EQUAL(kvp_view_dense(
		      me.e->space, KVP_VIEW_NCLD, (void *)(uintptr_t)me.mine, N, planes, &bytes),
		0);
	n = kvp_cuda_put(me.e->space, me.cuda, me.e->tokens, N, 0, &v, &o, me.gpu.stream, line,
		&value, NULL);
	all = good(n, "kvp_cuda_put()") && n == N;
	(void)synced();
	all = good(kvp_flush(me.e->client, wait_ms()), "kvp_flush()") && all;
	/* What is found is what was put; nothing is published of which a part did not come. */
	m = all ? find_soon(me.e, N, N, &info) : find(me.e, N, 0, &info);
	same_bytes(me.e, m, info.n_blocks * T);
	kvp_release(m);
	if (!me.stuck_ok && GOOD(kvp_reserve(me.e->space, wait_ms(), NULL, &g))) {
		/* Nobody is told of it: slots of DRAM are written, and given back. */
		if (!GOOD(kvp_cuda_store(me.cuda, &g, 1, &piece, 1, me.gpu.stream, line, &value)) ||
			kvp_grant_release_after(g, line, value) < 0)
			kvp_grant_release(g);
	}
	(void)synced();
	kvp_timeline_free(line);
}

/* Into a slot on the device; the daemon copies it to DRAM by itself. */
static void compute(void)
{
	struct kvp_grant *g = NULL;
	struct kvp_prefix_info info;
	struct kvp_payload_info p = { .size = sizeof(p) };
	const uint64_t from = now_ms();
	uint64_t value;
	int r = -EAGAIN;

	for (uint32_t i = 0; (r == -EAGAIN || (me.strict && r == -ENODEV)) && worth_it(i, from);
		i++) {
		r = kvp_cuda_reserve(me.e->space, me.cuda, wait_ms(), NULL, &g);
		if (me.stuck_ok)
			break;
		if (r < 0)
			usleep(NAP_US);
	}
	if (!good(r, "kvp_cuda_reserve()"))
		return;
	if (me.gpu.cu.cuMemcpyHtoD_v2(kvp_grant_device_addr(g), me.e->kv, BLOCK_BYTES) != CU_OK ||
		!GOOD(kvp_cuda_mark(me.cuda, me.line, me.gpu.stream, &value))) {
		kvp_grant_release(g);
		return;
	}
	EQUAL(kvp_commit_after(
		      g, kvp_ref_root(), me.e->tokens, T, NULL, KVP_COMMIT_RELEASE, me.line, value),
		0);
	if (!synced() || !good(kvp_flush(me.e->client, wait_ms()), "kvp_flush()"))
		return;
	for (uint32_t i = 0; i < tries(); i++) {
		struct kvp_prefix *m = find(me.e, T, 0, &info);
		bool in_dram = info.n_blocks && kvp_payload(m, 0, &p) == 0 && p.addr;

		if (in_dram)
			same_bytes(me.e, m, T);
		kvp_release(m);
		if (in_dram)
			return;
		usleep(NAP_US);
	}
	(void)good(-ENOENT, "what was computed on the device");
}

static void engine(const struct entry_case *k, bool strict, int to)
{
	const uint32_t seed = 10 + 10 * k->number + (strict ? 5 : 0);
	struct kvp_put_opts last = { .size = sizeof(last), .timeout_ms = wait_ms() };
	struct engine *before;
	int32_t heard;

	alarm(HANG_S);
	gpu_begin(&me.gpu, NULL);
	me.strict = strict;
	me.mine = gpu_alloc(&me.gpu, ALL_BYTES);
	before = engine_new("entry-points", KVP_LAYOUT_NCLD, seed);
	store(before, N, 0);
	fill(before, seed + 1);
	store(before, N, 0);
	engine_free(before);
	me.e = engine_new("entry-points", KVP_LAYOUT_NCLD, seed);
	EQUAL(kvp_timeline_new(me.e->client, &me.line), 0);
	if (!strict && !k->worker) {
		if (k->with.function)
			EQUAL(cudadrv_set(me.gpu.sim, &k->with, NULL), 0);
		EQUAL(cudadrv_set(me.gpu.sim, &k->fault, NULL), 0);
	}
	opened(k);
	if (me.cuda) {
		there(k);
		fill(me.e, seed + 1);
		from_dram();
		fill(me.e, seed + 2);
		put();
		fill(me.e, seed + 3);
		compute();
	}
	/*
	 * DRAM is served whatever has become of the device. Not waited for is what was put before: a copy whose end the driver
	 * never tells is not published before the device is closed.
	 */
	fill(me.e, seed + 4);
	EQUAL(kvp_put(me.e->space, me.e->tokens, N, 0, &me.e->view, &last, NULL), N);
	kvp_release(find_soon(me.e, N, N, &(struct kvp_prefix_info){ 0 }));
	kvp_timeline_free(me.line);
	kvp_cuda_close(me.cuda);
	engine_free(me.e);
	heard = me.heard;
	_exit(write(to, &heard, sizeof(heard)) != sizeof(heard));
}

/* ---- the case -------------------------------------------------------------------------------- */

static int run_engine(const struct entry_case *k, bool strict)
{
	int ends[2], status;
	int32_t heard = 0;
	pid_t pid;

	if (pipe(ends) < 0)
		e2e_die("pipe", errno);
	pid = e2e_fork();
	if (!pid)
		engine(k, strict, ends[1]);
	close(ends[1]);
	status = e2e_reap(pid);
	if (status == 128 + SIGALRM)
		wrong("the engine hangs");
	if (status != 0 || read(ends[0], &heard, sizeof(heard)) != sizeof(heard)) {
		fprintf(stderr, "%s: the engine ended with %d\n", what_, status);
		exit(1);
	}
	close(ends[0]);
	return heard;
}

static void begin(const struct entry_case *k)
{
	char more[800];
	struct cudadrv_config c;
	struct kvt_daemon_opts opts = {
		.share = 64 * MIB, .memory = 96 * MIB, .max_blocks = 4000, .more = more
	};

	snprintf(folder, sizeof(folder), "/dev/shm/kvpool-gpu-XXXXXX");
	CHECK(mkdtemp(folder));
	cudadrv_defaults(&c);
	if (k->needs & NEEDS_OLD) {
		c.driver_version = 12080;
		CHECK(getenv("LIBCUDA_OLD"));
		EQUAL(setenv("KVPOOL_LIBCUDA", getenv("LIBCUDA_OLD"), 1), 0);
	}
	EQUAL(cudadrv_new(folder, &c, &sim), 0);
	EQUAL(setenv("KVP_SIM_GPU", folder, 1), 0);
	EQUAL(setenv("KVP_SIM_QUIET", "1", 1), 0);
	if (k->worker) {
		if (k->with.function)
			EQUAL(cudadrv_set(sim, &k->with, NULL), 0);
		EQUAL(cudadrv_set(sim, &k->fault, NULL), 0);
	}
	snprintf(more, sizeof(more),
		"extent: 4MiB\n"
		"devices:\n"
		"  - {name: gpu, driver: cuda, index: 0, transport: %s, bytes: 32MiB, segment: "
		"4MiB,"
		" timeout_ms: %u, worker: \"%s\"}\n",
		k->needs & NEEDS_IPC ? "ipc" : "vmm",
		k->worker && k->error == ENTRY_NOT_READY ? 1000 : 4000, getenv("KVPOOL_DEVICE"));
	e2e_start(&daemon_, &opts);
	EQUAL(setenv("KVPOOL_SOCKET", daemon_.socket, 1), 0);
	used_needs = k->needs & (NEEDS_IPC | NEEDS_OLD);
	up = true;
}

/* What a device would not forgive. An engine that met an error may end with handles that it could not give back. */
static void look_at_reports(void)
{
	static const enum cudadrv_report kinds[] = { CUDADRV_UNMAPPED, CUDADRV_OUT_OF_RANGE,
		CUDADRV_NO_ACCESS, CUDADRV_READ_ONLY, CUDADRV_RUNNING, CUDADRV_UNREGISTERED,
		CUDADRV_HAZARD, CUDADRV_WRONG_DATA };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (cudadrv_reports(sim, kinds[i])) {
			fprintf(stderr, "%s: reported %s\n", what_, cudadrv_report_name(kinds[i]));
			exit(1);
		}
}

void entry_over(void)
{
	char command[128];

	if (!up)
		return;
	if (e2e_clean(daemon_.socket, 0) < 0)
		wrong("something is left in the daemon");
	kvt_daemon_stop(&daemon_);
	look_at_reports();
	sim = cudadrv_close(sim);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	EQUAL(system(command), 0);
	up = false;
	if (used_needs & NEEDS_OLD)
		EQUAL(setenv("KVPOOL_LIBCUDA", getenv("LIBCUDA"), 1), 0);
}

/* The faults are those of one case: what comes afterwards meets none. */
static uint32_t hits(const struct entry_case *k)
{
	return cudadrv_hit(sim, k->with.function ? 1 : 0);
}

/* What the worker does when all that is cached goes, and when it is replaced. */
static void provoke_worker(const struct entry_case *k)
{
	if (k->needs & NEEDS_RESTART) {
		pid_t worker = e2e_worker(daemon_.pid);

		if (worker)
			kill(worker, SIGKILL);
		/* The next one takes over what is there, before that goes. */
		for (uint32_t i = 0; i < 100 && !hits(k); i++)
			usleep(100000);
	}
	for (uint32_t i = 0; i < 100 && k->needs & NEEDS_PATIENCE && !hits(k); i++)
		usleep(100000);
	for (uint32_t i = 0; i < 5 && k->needs & NEEDS_PINNED && !hits(k); i++) {
		json_decref(e2e_ask(daemon_.socket, "{\"verb\": \"drain\"}", NULL));
		(void)run_engine(k, false);
	}
	for (uint32_t i = 0; i < 60 && !(k->needs & NEEDS_NEVER) && !hits(k); i++) {
		json_decref(e2e_ask(daemon_.socket, "{\"verb\": \"drain\"}", NULL));
		usleep(50000);
	}
}

struct entry_end entry_run(const struct entry_case *k)
{
	static const char *const errors[] = { "no memory", "not ready", "sticky" };
	const uint64_t from = now_ms();
	struct entry_end end = { 0 };
	int r;

	snprintf(what_, sizeof(what_), "%s %s %s", k->worker ? "worker" : "client", k->name,
		errors[k->error]);
	if (up && (k->worker || used_needs != (k->needs & (NEEDS_IPC | NEEDS_OLD))))
		entry_over();
	if (!up)
		begin(k);
	end.heard = run_engine(k, false);
	if (k->worker)
		provoke_worker(k);
	end.struck = (hits(k) != 0) != ((k->needs & NEEDS_NEVER) != 0);
	cudadrv_clear(sim);
	if (kill(daemon_.pid, 0) < 0)
		wrong("the daemon is dead");
	json_decref(e2e_ask(daemon_.socket, "{\"verb\": \"status\"}", &r));
	if (r < 0)
		wrong("the daemon does not answer");
	(void)run_engine(k, true);
	if (k->worker)
		entry_over();
	end.tenths = (uint32_t)((now_ms() - from) / 100);
	return end;
}
