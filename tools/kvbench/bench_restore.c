/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench restore: how long until a cached prefix can be read in DRAM, by where its blocks are: native on a device
 * alone (loaded), coded in DRAM (decoded), nowhere (computed again by another process); and what the daemon does
 * with one that it could load or have computed. Real keys and values: a model, which is also who computes. What the
 * daemon brought back is compared with what was computed, byte by byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/kvpool_admin.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/kvbench.h"
#include "tools/kvrun/kvr_kv_pool.h"
#include "tools/kvrun/kvr_model.h"
#include "tools/kvrun/kvr_seq.h"
#include "tools/kvrun/kvr_serve.h"

#define T         64u
#define SIZES     4u
#define MOST      8192u
#define WAIT_MS   600000u
#define WITHIN_MS 3600000u
#define PAUSE_NS  2000000
#define LATE      3u
#define MIB       (UINT64_C(1) << 20)
#define COPY_MIB \
	256u /* a second: a link that is slower than memory, and quicker than this model's computing */

static const uint32_t sizes[SIZES] = { 512, 2048, 4096, MOST };

struct result {
	uint32_t tokens;
	double load_ms, decode_ms, recompute_ms, chosen_ms;
	const char *chosen;
};

struct world {
	struct kvt_daemon daemon;
	struct kvr_model *model;
	struct kvr_geom geom;
	struct kvr_kv *native, *coded; /* the second one with a floor */
	struct kvp_admin *admin;
	pid_t provider; /* 0: none */
	int go;         /* closed: it begins */
	uint32_t n;     /* tokens of the prefix */
	uint32_t tokens[MOST];
	uint8_t *blocks; /* n / T of them */
	size_t block_bytes;
};

static double since_ms(uint64_t began)
{
	return (double)(bench_now() - began) / 1e6;
}

static void rest(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
}

/* ---- the daemon and who computes for it ------------------------------------------------------- */

static struct kvr_pool_opts pool_opts(const struct world *w, uint32_t floor)
{
	return (struct kvr_pool_opts){ .socket = w->daemon.socket,
		.store = 1,
		.device = KVR_NO_DEVICE,
		.floor = { floor, floor } };
}

/* In a process of its own, from the moment on at which the pipe is closed. */
static void provide(const struct world *w, int go)
{
	const struct serve_opts serve = { 0 };
	struct kvr_pool_opts opts = pool_opts(w, 0);
	struct kvr_kv *pool = NULL;
	struct kvr_seq *seq = NULL;
	char byte;
	int r;

	while (read(go, &byte, 1) < 0 && errno == EINTR)
		;
	r = kvr_kv_pool_new(w->model, &w->geom, &opts, &pool);
	if (r == 0)
		r = kvr_seq_new(w->model, pool, NULL, &seq);
	if (r == 0)
		r = serve_others(w->model, pool, seq, &serve);
	kvr_seq_free(seq);
	kvr_kv_free(pool);
	_exit(r < 0);
}

static int start_provider(struct world *w)
{
	pid_t parent = getpid();
	int go[2];

	if (pipe2(go, O_CLOEXEC) < 0)
		return -errno;
	fflush(NULL);
	w->provider = fork();
	if (w->provider == 0) {
		int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

		kvt_end_with(parent, SIGTERM);
		close(go[1]);
		dup2(null, STDERR_FILENO); /* it says a line for each demand */
		provide(w, go[0]);
	}
	close(go[0]);
	w->go = go[1];
	if (w->provider < 0) {
		w->provider = 0;
		return -errno;
	}
	return 0;
}

static int start(struct world *w, uint64_t copy_mib)
{
	uint64_t bytes = w->n / T * w->block_bytes, segment = 16 * MIB;
	struct kvp_open_opts admin = { .size = sizeof(admin), .socket = w->daemon.socket };
	struct kvr_pool_opts native, coded;
	char more[1024], error[1500], worker[600];
	struct kvt_daemon_opts opts = {
		.share = 6 * bytes + 256 * MIB, .max_blocks = 4096, .more = more
	};
	int r;

	kvt_find_worker(worker, sizeof(worker));
	snprintf(more, sizeof(more),
		"  recipe_blocks: 4096\n  precision: budget\n  budget: 0.1\n"
		"devices:\n  - name: host\n    driver: host\n    bytes: %llu\n    segment: %llu\n"
		"    copy_rate: %lluMiB\n%s%s\n",
		(unsigned long long)((4 * bytes / segment + 4) * segment),
		(unsigned long long)segment, (unsigned long long)copy_mib,
		*worker ? "    worker: " : "", worker);
	r = kvt_daemon_start(&opts, &w->daemon, error, sizeof(error));
	if (r < 0) {
		fprintf(stderr, "kvbench: %s\n", error);
		return r;
	}
	r = start_provider(w);
	native = pool_opts(w, 0);
	coded = pool_opts(w, KVP_CODEC_TQ4);
	if (r == 0)
		r = kvr_kv_pool_new(w->model, &w->geom, &native, &w->native);
	if (r == 0)
		r = kvr_kv_pool_new(w->model, &w->geom, &coded, &w->coded);
	if (r == 0)
		r = kvp_admin_open(&admin, &w->admin);
	if (r == 0 && (!kvr_kv_pool_space(w->native) || !kvr_kv_pool_space(w->coded)))
		r = -ESHUTDOWN;
	return r;
}

static void stop(struct world *w)
{
	kvp_admin_close(w->admin);
	kvr_kv_free(w->coded);
	kvr_kv_free(w->native);
	if (w->provider) {
		kill(w->provider, SIGKILL);
		waitpid(w->provider, NULL, 0);
		close(w->go);
	}
	kvt_daemon_stop(&w->daemon);
	w->admin = NULL;
	w->native = w->coded = NULL;
	w->provider = 0;
}

/* A member of what the daemon answers, or of an object in it; -1: none. */
static int64_t ask(struct world *w, const char *request, const char *object, const char *member)
{
	char *text = NULL;
	json_t *answer, *at;
	int64_t value = -1;

	if (kvp_admin_request(w->admin, request, WAIT_MS, 0, &text) < 0) {
		free(text);
		return -1;
	}
	answer = json_loads(text, 0, NULL);
	at = json_object_get(object ? json_object_get(answer, object) : answer, member);
	if (json_is_integer(at))
		value = json_integer_value(at);
	json_decref(answer);
	free(text);
	return value;
}

static int64_t remat(struct world *w, const char *member)
{
	return ask(w, "{\"verb\":\"status\"}", "remat", member);
}

/* Nothing is cached afterwards, but known by its token ids. */
static int forget(struct world *w)
{
	for (uint64_t began = bench_now(); since_ms(began) < WAIT_MS; rest()) {
		if (ask(w, "{\"verb\":\"evict\",\"all\":true}", NULL, "evicted") < 0)
			return -EIO;
		if (ask(w, "{\"verb\":\"status\"}", NULL, "blocks") == 0)
			return 0;
	}
	return -ETIMEDOUT;
}

/* ---- blocks ----------------------------------------------------------------------------------- */

/* The prefix as it is in w->blocks, into slots in DRAM or on the device. */
static int store(struct world *w, struct kvr_kv *kv, bool device)
{
	struct kvp_space *space = kvr_kv_pool_space(kv);
	struct kvp_grant *grant, *last = NULL;
	struct kvp_ref parent = kvp_ref_root();
	int r = space ? 0 : -ESHUTDOWN;

	for (uint32_t i = 0; r == 0 && i < w->n / T; i++) {
		r = device ? kvp_reserve_on(space, 0, WAIT_MS, NULL, &grant)
			   : kvp_reserve(space, WAIT_MS, NULL, &grant);
		if (r < 0)
			break;
		memcpy(kvp_grant_addr(grant), w->blocks + i * w->block_bytes, w->block_bytes);
		r = last ? kvp_grant_ref(last, &parent) : 0;
		if (r == 0)
			r = kvp_commit(grant, parent, w->tokens + (size_t)i * T, T, NULL, 0);
		kvp_grant_release(last);
		last = grant;
	}
	if (r == 0)
		r = kvp_grant_wait(last, WAIT_MS);
	kvp_grant_release(last);
	return r < 0 ? r : 0;
}

static int leased(struct world *w, struct kvr_kv *kv, struct kvp_prefix **ret_match)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_space *space = kvr_kv_pool_space(kv);
	int r = space ? kvp_match(space, w->tokens, w->n, NULL, ret_match) : -ESHUTDOWN;

	if (r < 0)
		return r;
	r = kvp_match_info(*ret_match, &info);
	if (r == 0 && info.n_tokens == w->n)
		return 0;
	kvp_release(*ret_match);
	return r < 0 ? r : -ENOENT;
}

/* Block after block into `out`, as they are stored. */
static int fetch(struct world *w, struct kvp_prefix *m, uint8_t *out)
{
	struct kvp_view_plane planes[KVR_MAX_LAYERS];
	struct kvp_view view = { .size = sizeof(view), .planes = planes };
	struct kvp_space *space = kvr_kv_pool_space(w->native);
	uint64_t bytes;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < w->n / T; i++) {
		r = kvp_view_dense(
			space, KVP_VIEW_LCND, out + i * w->block_bytes, T, planes, &bytes);
		if (r == 0 && kvp_get(m, i * T, T, &view, 0) != (int64_t)T)
			r = -ESTALE;
	}
	return r;
}

/* The library maps what the daemon has just made: a match may be a moment ahead of that. */
static int read_all(struct world *w, struct kvr_kv *kv, uint8_t *out, double *ret_ms)
{
	uint64_t until = bench_now() + UINT64_C(1000000) * WAIT_MS, began;
	struct kvp_prefix *m;
	int r;

	do {
		began = bench_now();
		r = leased(w, kv, &m);
		if (r == 0) {
			r = fetch(w, m, out);
			kvp_release(m);
		}
	} while ((r == -ENOENT || r == -ESTALE) && bench_now() < until);
	*ret_ms = since_ms(began);
	return r;
}

/* ---- the ways ---------------------------------------------------------------------------------- */

/* Until all of it is in DRAM; -ENODEV: somebody would have to compute, and nobody offers. */
static int want(struct world *w, double *ret_ms)
{
	struct kvp_want_opts opts = {
		.size = sizeof(opts), .within_ms = WITHIN_MS, .timeout_ms = WAIT_MS
	};
	const struct kvp_ids ids = { .ids = w->tokens, .n = w->n, .type = KVP_IDS_U32 };
	struct kvp_client *client = kvr_kv_pool_client(w->native);
	uint64_t began = bench_now();
	struct kvp_ticket ticket;
	int why = 0, r;

	if (!client)
		return -ESHUTDOWN;
	r = kvp_want(kvr_kv_pool_space(w->native), &ids, &opts, &ticket);
	if (r >= 0 && (uint32_t)r != w->n / T)
		r = -ENOENT;
	if (r >= 0)
		r = kvp_ticket_wait(client, ticket, WAIT_MS, &why);
	*ret_ms = since_ms(began);
	return r < 0 ? r : why;
}

/* Twice: the first time the daemon learns how quick the device is. */
static int load(struct world *w, double *ret_ms)
{
	int r = 0;

	for (int round = 0; r == 0 && round < 2; round++) {
		r = store(w, w->native, true);
		if (r == 0)
			r = want(w, ret_ms);
		if (r == 0)
			r = forget(w);
	}
	return r;
}

static int await_offer(struct world *w)
{
	for (uint64_t began = bench_now(); remat(w, "offers") != 1; rest())
		if (since_ms(began) > WAIT_MS)
			return -ETIMEDOUT;
	return 0;
}

/*
 * Twice: the first time it learns how quick who computes is, as a part of what that says. Where the machine had
 * something else to do, it is late, is not asked for a while, and asked again.
 */
static int recompute(struct world *w, double *ret_ms)
{
	uint32_t late = 0;
	double unused;
	int r;

	close(w->go);
	w->go = -1;
	r = await_offer(w);
	for (int round = 0; r == 0 && round < 2; round++) {
		while ((r = want(w, ret_ms)) == -ETIME && late++ < LATE)
			if (await_offer(w) < 0)
				return -ETIMEDOUT;
		if (r == 0 && round == 1)
			r = read_all(w, w->native, w->blocks, &unused);
		if (r == 0)
			r = forget(w);
	}
	return r;
}

static int choose_once(struct world *w, struct result *ret)
{
	uint8_t *there = malloc(w->n / T * w->block_bytes);
	int64_t before = remat(w, "met_tokens_total"), computed;
	int r = there ? store(w, w->native, true) : -ENOMEM;
	double unused;

	if (r == 0)
		r = want(w, &ret->chosen_ms);
	if (r == 0)
		r = read_all(w, w->native, there, &unused);
	if (r == 0 && memcmp(there, w->blocks, w->n / T * w->block_bytes) != 0)
		r = -EBADMSG;
	free(there);
	computed = remat(w, "met_tokens_total") - before;
	ret->chosen = computed == 0 ? "load" : computed == w->n ? "recompute" : "both";
	return r;
}

/* Twice, as what it is compared with: the first time the daemon takes memory for what is loaded. */
static int choose(struct world *w, struct result *ret)
{
	double unused;
	int r = store(w, w->native, true);

	if (r == 0)
		r = want(w, &unused);
	if (r == 0)
		r = forget(w);
	return r == 0 ? choose_once(w, ret) : r;
}

static int all_coded(struct world *w)
{
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix *m;
	int r = leased(w, w->coded, &m);

	if (r < 0)
		return r;
	for (uint32_t i = 0; r == 0 && i < w->n / T; i++) {
		r = kvp_payload(m, i, &p);
		if (r == 0 && !p.codec)
			r = -EAGAIN;
	}
	kvp_release(m);
	return r;
}

static int decode(struct world *w, double *ret_ms)
{
	uint64_t until = bench_now() + UINT64_C(1000000) * WAIT_MS;
	uint8_t *out = malloc(w->n / T * w->block_bytes);
	int r = out ? store(w, w->coded, false) : -ENOMEM;

	if (r == 0) {
		memset(out, 1, w->n / T * w->block_bytes); /* pages are not what is measured */
		while ((r = all_coded(w)) != 0 && bench_now() < until)
			rest();
	}
	if (r == 0)
		r = read_all(w, w->coded, out, ret_ms);
	free(out);
	return r;
}

static int measure(struct world *w, uint32_t n, uint64_t copy_mib, struct result *ret)
{
	const char *step = "starting the daemon";
	uint64_t random = n;
	int r;

	*ret = (struct result){ .tokens = n };
	w->n = n;
	for (uint32_t i = 0; i < n; i++)
		w->tokens[i] = (uint32_t)(bench_random(&random) % 256);
	w->blocks = calloc(n / T, w->block_bytes);
	r = w->blocks ? start(w, copy_mib) : -ENOMEM;
	if (r == 0) {
		step = "loading";
		r = load(w, &ret->load_ms);
	}
	if (r == 0) {
		step = "computing";
		r = recompute(w, &ret->recompute_ms);
	}
	if (r == 0) {
		step = "what the daemon chose";
		r = choose(w, ret);
	}
	if (r == 0) {
		step = "decoding";
		r = decode(w, &ret->decode_ms);
	}
	if (r < 0)
		fprintf(stderr, "kvbench: %u tokens were not restored: %s: %s\n", n, step,
			strerror(-r));
	stop(w);
	free(w->blocks);
	return r;
}

/* ---- the command ------------------------------------------------------------------------------- */

static void report_json(const struct result *results, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list,
			json_pack("{s:i, s:f, s:f, s:f, s:s, s:f}", "tokens",
				(int)results[i].tokens, "load_ms", results[i].load_ms, "decode_ms",
				results[i].decode_ms, "recompute_ms", results[i].recompute_ms,
				"chosen", results[i].chosen, "chosen_ms", results[i].chosen_ms));
	bench_print_json(list);
	json_decref(list);
}

static void report(const struct result *results, uint32_t n, uint64_t copy_mib)
{
	printf("%8s %10s %10s %12s %12s %-10s\n", "tokens", "load ms", "decode ms", "recompute ms",
		"chosen ms", "chosen");
	for (uint32_t i = 0; i < n; i++)
		printf("%8u %10.1f %10.1f %12.1f %12.1f %-10s\n", results[i].tokens,
			results[i].load_ms, results[i].decode_ms, results[i].recompute_ms,
			results[i].chosen_ms, results[i].chosen);
	printf("Load: native on a device that copies %llu MiB a second; decode: 4 bits in DRAM "
	       "(tq4), into private\nmemory; recompute: by another process. Chosen: what the "
	       "daemon did with blocks on the device, while\nthat process offered.\n",
		(unsigned long long)copy_mib);
}

static int open_model(const char *path, struct world *w)
{
	struct kvr_error err;
	int r = kvr_model_open(path, &err, &w->model);

	if (r < 0) {
		fprintf(stderr, "kvbench: %s\n", err.text);
		return r;
	}
	/* Positions beyond what it was trained for: what it says there is of no use, and takes as long. */
	if (w->model->config.context < MOST + T)
		w->model->config.context = MOST + T;
	w->geom = kvr_model_geom(w->model, T, w->model->config.dtype);
	w->block_bytes = kvr_block_bytes(&w->geom);
	return 0;
}

int kvbench_restore(int argc, char **argv)
{
	static struct world w;
	const char *model = NULL;
	uint64_t tokens = 0, copy_mib = COPY_MIB;
	bool json = false;
	const struct bench_option options[] = {
		{ .name = "model",
			.help = "of the Llama family; share/models/bytes-4m, say",
			.text = &model,
			.takes = "PATH" },
		{ .name = "tokens",
			.help = "of the prefix, whole blocks of 64 (default: 512, 2048, 4096, "
				"8192)",
			.value = &tokens,
			.min = T,
			.max = MOST },
		{ .name = "copy-mib",
			.help = "MiB that the device copies in a second (default 256)",
			.value = &copy_mib,
			.min = 1,
			.max = 1 << 20 },
		{ .name = "json", .help = "one JSON document on stdout", .flag = &json },
	};
	struct result results[SIZES];
	uint32_t n = SIZES;
	int r = bench_parse(argc, argv,
		"How long until a cached prefix can be read: loaded from a device, decoded, or "
		"computed again by\n"
		"another process; and what the daemon chooses.",
		options, 4);

	if (r <= 0)
		return r ? 2 : 0;
	if (!model || tokens % T) {
		fprintf(stderr, model ? "kvbench restore: --tokens: a multiple of 64\n"
				      : "kvbench restore: --model is missing\n");
		return 2;
	}
	if (open_model(model, &w) < 0)
		return 1;
	if (tokens)
		n = 1;
	for (uint32_t i = 0; r > 0 && i < n; i++)
		if (measure(&w, tokens ? (uint32_t)tokens : sizes[i], copy_mib, &results[i]) < 0)
			r = -1;
	kvr_model_free(w.model);
	if (r < 0)
		return 1;
	if (json)
		report_json(results, n);
	else
		report(results, n, copy_mib);
	return 0;
}
