/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/e2e/e2e.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

_Noreturn void e2e_die(const char *what, int error)
{
	fprintf(stderr, "%s: %s\n", what, strerror(error < 0 ? -error : error));
	exit(99);
}

void e2e_start(struct kvt_daemon *d, const struct kvt_daemon_opts *opts)
{
	char error[2000];
	int r = kvt_daemon_start(opts, d, error, sizeof(error));

	if (r < 0)
		e2e_die(error, r);
}

int e2e_attach(struct e2e *e, const char *socket)
{
	struct kvp_open_opts opts = { .size = sizeof(opts),
		.socket = socket,
		.name = "e2e",
		.default_timeout_ms = E2E_WAIT_MS };
	struct kvp_layer layers[2] = { { .index = 0, .kv_heads = 2, .k_dim = 4, .v_dim = 4 },
		{ .index = 1, .kv_heads = 2, .k_dim = 4, .v_dim = 4 } };
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = "e2e",
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = E2E_BT,
		.n_layers = 2,
		.layers = layers };
	int r;

	memset(e, 0, sizeof(*e));
	r = kvp_open(&opts, &e->client);
	if (r < 0)
		return r;
	r = kvp_space_open(e->client, &desc, E2E_WAIT_MS, &e->space);
	if (r < 0)
		e->client = kvp_close(e->client);
	return r;
}

void e2e_detach(struct e2e *e)
{
	e->space = kvp_space_close(e->space);
	e->client = kvp_close(e->client);
}

void e2e_prompt(uint32_t p, uint32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = i < 2 * E2E_BT ? (p & 1) * 7919 + i : p * 7919 + i * 31;
}

static uint64_t digest(const uint32_t *tokens, uint32_t n)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (uint32_t i = 0; i < n; i++)
		h = (h ^ tokens[i]) * UINT64_C(0x100000001b3);
	return h;
}

void e2e_derive(const uint32_t *tokens, uint32_t n, void *payload)
{
	uint64_t h = digest(tokens, n), *out = payload;

	for (uint32_t i = 0; i < E2E_BLOCK_BYTES / 8; i++)
		out[i] = h + i * UINT64_C(0x9e3779b97f4a7c15);
}

bool e2e_derived(const uint32_t *tokens, uint32_t n, const void *payload)
{
	uint64_t h = digest(tokens, n), diff = 0;
	const uint64_t *have = payload;

	for (uint32_t i = 0; i < E2E_BLOCK_BYTES / 8; i++)
		diff |= have[i] ^ (h + i * UINT64_C(0x9e3779b97f4a7c15));
	return !diff;
}

int e2e_store(struct e2e *e, const uint32_t *tokens, uint32_t n, uint32_t timeout_ms, bool claim)
{
	struct kvp_match_opts mopts = { .size = sizeof(mopts),
		.timeout_ms = timeout_ms,
		.flags = claim ? KVP_MATCH_CLAIM : 0 };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_grant *last = NULL;
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_prefix *m;
	int r = kvp_match(e->space, tokens, n, &mopts, &m), stored = 0;

	if (r < 0)
		return r;
	kvp_match_info(m, &info);
	if (info.n_blocks && info.n_tokens < n)
		r = kvp_match_ref(m, info.n_blocks, &parent);
	for (uint32_t at = info.n_tokens; at < n && r >= 0; at += E2E_BT) {
		uint32_t len = n - at < E2E_BT ? n - at : E2E_BT;
		struct kvp_grant *g;

		r = kvp_reserve(e->space, timeout_ms, NULL, &g);
		if (r < 0)
			break;
		e2e_derive(tokens, at + len, kvp_grant_addr(g));
		r = kvp_commit(g, parent, tokens + at, len,
			info.flags & KVP_MATCHED_CLAIMED ? m : NULL, 0);
		if (r < 0) {
			kvp_grant_release(g);
			break;
		}
		stored++;
		if (at + len < n)
			r = kvp_grant_ref(g, &parent);
		kvp_grant_release(last);
		last = g;
	}
	kvp_grant_release(last);
	kvp_release(m);
	return r < 0 ? r : stored;
}

int e2e_fetch(struct e2e *e, const uint32_t *tokens, uint32_t n)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *m;
	int r = kvp_match(e->space, tokens, n, NULL, &m);
	uint32_t end = 0;

	if (r < 0)
		return r;
	kvp_match_info(m, &info);
	for (uint32_t i = 0; i < info.n_blocks; i++) {
		struct kvp_payload_info p = { .size = sizeof(p) };

		r = kvp_payload(m, i, &p);
		if (r < 0)
			break;
		end += p.tokens;
		if (end > n || !e2e_derived(tokens, end, p.addr)) {
			r = -EBADMSG;
			break;
		}
	}
	kvp_release(m);
	return r < 0 ? r : (int)info.n_tokens;
}

int e2e_fetch_all(struct e2e *e, const uint32_t *tokens, uint32_t n)
{
	int r = 0;

	for (uint32_t ms = 0; ms < E2E_LONG_MS; ms += 5) {
		r = e2e_fetch(e, tokens, n);
		if (r < 0 || r >= (int)n)
			return r;
		e2e_sleep_us(5000);
	}
	return r;
}

json_t *e2e_ask(const char *socket, const char *request, int *ret_status)
{
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = socket, .default_timeout_ms = E2E_WAIT_MS
	};
	struct kvp_admin *admin;
	char *text = NULL;
	json_t *answer;
	int r = kvp_admin_open(&opts, &admin);

	if (r < 0)
		e2e_die("cannot open an admin connection", r);
	r = kvp_admin_request(admin, request, E2E_WAIT_MS, 0, &text);
	kvp_admin_close(admin);
	if (!text)
		e2e_die(request, r);
	answer = json_loads(text, 0, NULL);
	if (!answer) {
		fprintf(stderr, "not JSON: %s\n", text);
		exit(99);
	}
	free(text);
	if (ret_status)
		*ret_status = r;
	return answer;
}

static uint32_t attached_clients(const char *socket)
{
	json_t *answer = e2e_ask(socket, "{\"verb\":\"clients\"}", NULL);
	json_t *list = json_is_array(answer) ? answer : json_object_get(answer, "clients");
	uint32_t n = (uint32_t)json_array_size(list);

	json_decref(answer);
	return n;
}

/* The answer that found something, or the last one. */
static json_t *check_all(const char *socket, int *ret_status)
{
	json_t *answer = e2e_ask(socket, "{\"verb\":\"check\"}", ret_status);
	json_t *next = json_integer(0);
	char request[64];

	while (*ret_status == 0 && next) {
		snprintf(request, sizeof(request), "{\"verb\":\"check\",\"from\":%lld}",
			(long long)json_integer_value(next));
		json_decref(next);
		json_decref(answer);
		answer = e2e_ask(socket, request, ret_status);
		next = json_incref(json_object_get(answer, "next"));
	}
	json_decref(next);
	return answer;
}

int e2e_clean(const char *socket, uint32_t expected_clients)
{
	uint32_t clients = 0;
	json_t *answer;
	int status = 0;

	for (uint32_t ms = 0; ms < E2E_LONG_MS; ms += 10) {
		clients = attached_clients(socket);
		if (clients == expected_clients)
			break;
		e2e_sleep_us(10000);
	}
	answer = check_all(socket, &status);
	if (status < 0 || clients != expected_clients) {
		fprintf(stderr, "not clean: %u clients (expected %u), check says %d\n", clients,
			expected_clients, status);
		json_dumpf(answer, stderr, JSON_INDENT(2));
		fputc('\n', stderr);
		status = -1;
	}
	json_decref(answer);
	return status < 0 ? -1 : 0;
}

pid_t e2e_fork(void)
{
	const pid_t test = getpid();
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		e2e_die("fork", errno);
	if (pid)
		return pid;
	/* An assertion that fails in the child ends it: it would go on with the next test. */
	setenv("CMOCKA_TEST_ABORT", "1", 1);
	/* A test that failed, or took too long and was killed, leaves nobody behind who computes for ever. */
	kvt_end_with(test, SIGKILL);
	return 0;
}

int e2e_reap(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		e2e_die("waitpid", errno);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void e2e_sleep_us(long us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };

	nanosleep(&t, NULL);
}

uint64_t e2e_seed(void)
{
	const char *env = getenv("KVP_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;

	printf("seed: KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
	return seed ? seed : 1;
}

uint64_t e2e_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

pid_t e2e_worker(pid_t daemon)
{
	DIR *dir = opendir("/proc");
	struct dirent *d;
	pid_t found = 0;

	while (dir && !found && (d = readdir(dir))) {
		char path[300], name[32] = "";
		int pid = 0, parent = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%s/stat", d->d_name);
		f = d->d_name[0] >= '1' && d->d_name[0] <= '9' ? fopen(path, "r") : NULL;
		if (!f)
			continue;
		if (fscanf(f, "%d (%31[^)]) %*c %d", &pid, name, &parent) == 3 &&
			parent == daemon && !strcmp(name, "kvpool-device"))
			found = pid;
		fclose(f);
	}
	if (dir)
		closedir(dir);
	return found;
}
