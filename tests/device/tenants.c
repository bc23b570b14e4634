/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two tenants' engines on one simulated GPU, whose memory kvpoold shares among them: none holds a descriptor of
 * the other's device memory or finds its blocks, what one overloads is its own share, and memory that is new to
 * a tenant is all zero, though another one's was there before. By descriptors, and by legacy handles. Needs root,
 * to become two uids.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/e2e.h"
#include "tests/libclient/gpu_live.h"

#define MIB        (UINT64_C(1) << 20)
#define ALICE      20001u
#define BOB        20002u
#define SHARE      (12 * MIB) /* of the device, each */
#define SEGMENT    (2 * MIB)
#define MAX_INODES 512u
#define PROMPTS    10u /* of 1.5 MiB: more than a share */

struct inodes {
	uint32_t n;
	ino_t ino[MAX_INODES];
};

/* A tenant's engine in a process of its own: it does what it is told by a letter, and answers with a number. */
struct resident {
	pid_t pid;
	int to, from;
};

static struct kvt_daemon daemon_;
static char folder[64];
static struct gpu gpu;

/* ---- engines -------------------------------------------------------------------------------- */

struct tenant {
	struct engine *e;
	struct kvp_cuda *cuda;
	struct kvp_prefix *m;
	uint32_t uid;
};

/* The same tokens, but bytes of the tenant's own. */
static void fill_own(struct tenant *t, uint32_t seed)
{
	fill(t->e, seed);
	for (uint32_t i = 0; i < N * TOKEN_BYTES; i++)
		t->e->kv[i] ^= (uint8_t)(t->uid * 29);
}

static void begin(struct tenant *t, uint32_t uid)
{
	if (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
		e2e_die("setresuid", errno);
	gpu_begin(&gpu, NULL);
	*t = (struct tenant){ .uid = uid };
	t->e = engine_new("tenants", KVP_LAYOUT_NCLD, 1);
	t->cuda = gpu_live_open(t->e);
	fill_own(t, 1);
}

static int done(struct tenant *t)
{
	kvp_release(t->m);
	kvp_cuda_close(t->cuda);
	engine_free(t->e);
	return gpu_end(&gpu);
}

/* Has the prompt copied there until all of it is; why not, if it cannot be. Its blocks are leased. */
static int warm_all(struct tenant *t, struct kvp_prefix *m, uint64_t *addrs)
{
	for (uint32_t i = 0; i < 3000; i++) {
		struct kvp_ticket ticket;
		int why = 0;

		EQUAL(kvp_cuda_warm(m, t->cuda, NULL, &ticket), 0);
		CHECK(kvp_ticket_wait(t->e->client, ticket, WAIT_MS, &why) >= 0);
		if (!why && kvp_cuda_addrs(m, t->cuda, 0, BLOCKS, 0, addrs) == BLOCKS)
			return 0;
		if (why && why != -EAGAIN && why != -ENODEV)
			return why;
		usleep(10000);
	}
	return -ETIMEDOUT;
}

/* Blocks on the device that hold this tenant's bytes. */
static uint32_t own_blocks(struct tenant *t, const uint64_t *addrs)
{
	uint8_t back[BLOCK_BYTES];
	uint32_t n = 0;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		gpu_read(&gpu, back, addrs[i], BLOCK_BYTES);
		n += memcmp(back, t->e->kv + (size_t)i * BLOCK_BYTES, BLOCK_BYTES) == 0;
	}
	return n;
}

/* What this tenant finds of the tokens before it has stored any of them. */
static uint32_t look_for_foreign(struct tenant *t)
{
	struct kvp_prefix_info info;
	uint64_t addrs[BLOCKS];
	uint32_t n = 0;

	for (uint32_t i = 0; i < 20; i++) {
		struct kvp_prefix *m = find(t->e, N, i % 2 ? KVP_MATCH_DEVICE : 0, &info);
		int there = kvp_cuda_addrs(m, t->cuda, 0, BLOCKS, 0, addrs);

		n += info.n_blocks + (info.tail_tokens != 0) + (uint32_t)(there > 0 ? there : 0);
		kvp_release(m);
		usleep(5000);
	}
	return n;
}

/* Copied there from DRAM, and computed there: memory that the worker writes, and that the client does. */
static uint32_t settle(struct tenant *t)
{
	struct kvp_prefix_info info;
	uint64_t addrs[BLOCKS], mine = gpu_alloc(&gpu, 2 * BLOCK_BYTES);

	store(t->e, N, 0);
	t->m = find_soon(t->e, N, N, &info);
	EQUAL(warm_all(t, t->m, addrs), 0);
	EQUAL(own_blocks(t, addrs), BLOCKS);
	fill_own(t, 2);
	gpu_write(&gpu, mine, t->e->kv, 2 * BLOCK_BYTES);
	gpu_live_compute(&gpu, t->e, t->cuda, mine, 2);
	fill_own(t, 1);
	return 0;
}

/* Its first prompt is on the device still, leased by nobody. Returns how many blocks are not, or are wrong. */
static uint32_t miss_own(struct tenant *t)
{
	struct kvp_prefix_info info;
	uint64_t addrs[BLOCKS];
	struct kvp_prefix *m;
	uint32_t n = BLOCKS;

	kvp_release(t->m);
	t->m = NULL;
	/* A block is not there for this client while the library maps where it lies now. */
	for (uint32_t i = 0; i < 20 && n; i++) {
		m = find(t->e, N, KVP_MATCH_DEVICE, &info);
		if (kvp_cuda_addrs(m, t->cuda, 0, BLOCKS, 0, addrs) == BLOCKS)
			n -= own_blocks(t, addrs);
		kvp_release(m);
		if (n)
			usleep(5000);
	}
	return n;
}

/* Takes all of the device that it gets, and holds it. Returns how often it was told that there is no more. */
static uint32_t overload(struct tenant *t)
{
	struct kvp_prefix *held[PROMPTS] = { NULL };
	struct kvp_prefix_info info;
	uint64_t addrs[BLOCKS];
	uint32_t refused = 0;

	for (uint32_t i = 0; i < PROMPTS; i++) {
		fill_own(t, 100 + i);
		store(t->e, N, 0);
		held[i] = find_soon(t->e, N, N, &info);
		refused += warm_all(t, held[i], addrs) == -ENOSPC;
	}
	for (uint32_t i = 0; i < PROMPTS; i++)
		kvp_release(held[i]);
	return refused;
}

/* Slots of memory that is new to this tenant: bytes that are not zero. The number of slots goes to *ret_n. */
static uint32_t read_fresh(struct tenant *t, uint32_t *ret_n)
{
	static struct kvp_grant *g[KVP_CLIENT_GRANTS];
	static uint8_t back[BLOCK_BYTES];
	uint32_t n = 0, bad = 0;

	g[n++] = gpu_live_reserve(t->e, t->cuda);
	while (n < KVP_CLIENT_GRANTS &&
		kvp_cuda_reserve(t->e->space, t->cuda, 500, NULL, &g[n]) == 0)
		n++;
	for (uint32_t i = 0; i < n; i++) {
		gpu_read(&gpu, back, kvp_grant_device_addr(g[i]), BLOCK_BYTES);
		for (uint32_t k = 0; k < BLOCK_BYTES; k++)
			bad += back[k] != 0;
	}
	for (uint32_t i = 0; i < n; i++)
		kvp_grant_release(g[i]);
	*ret_n = n;
	return bad;
}

static void obey(uint32_t uid, int from, int to)
{
	struct tenant t;
	uint32_t answer = 0, fresh = 0;
	char what;

	begin(&t, uid);
	while (read(from, &what, 1) == 1) {
		switch (what) {
		case 'l':
			answer = look_for_foreign(&t);
			break;
		case 's':
			answer = settle(&t);
			break;
		case 'm':
			answer = miss_own(&t);
			break;
		case 'o':
			answer = overload(&t);
			break;
		case 'f':
			answer = read_fresh(&t, &fresh);
			break;
		case 'n':
			answer = fresh;
			break;
		default:
			_exit(9);
		}
		if (write(to, &answer, sizeof(answer)) != sizeof(answer))
			break;
	}
	_exit(done(&t));
}

/* ---- the test's own process ------------------------------------------------------------------ */

/* Those that ended would be waited for in vain: other processes must not keep these pipes open. */
static struct resident engine_of(uint32_t uid, const struct resident *other)
{
	int to[2], from[2];
	struct resident r;

	if (pipe(to) < 0 || pipe(from) < 0)
		e2e_die("pipe", errno);
	r.pid = e2e_fork();
	if (!r.pid) {
		close(to[1]);
		close(from[0]);
		if (other) {
			close(other->to);
			close(other->from);
		}
		obey(uid, to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	r.to = to[1];
	r.from = from[0];
	return r;
}

static void tell(const struct resident *r, char what)
{
	EQUAL(write(r->to, &what, 1), 1);
}

static uint32_t hear(const struct resident *r)
{
	uint32_t answer;

	EQUAL(read(r->from, &answer, sizeof(answer)), sizeof(answer));
	return answer;
}

static uint32_t ask(const struct resident *r, char what)
{
	tell(r, what);
	return hear(r);
}

static void dismiss(const struct resident *r)
{
	close(r->to);
	close(r->from);
	EQUAL(e2e_reap(r->pid), 0);
}

static bool has(const struct inodes *s, ino_t ino)
{
	uint32_t i = 0;

	while (i < s->n && s->ino[i] != ino)
		i++;
	return i < s->n;
}

static void add(struct inodes *s, ino_t ino)
{
	if (has(s, ino))
		return;
	CHECK(s->n < MAX_INODES);
	s->ino[s->n++] = ino;
}

/* Device memory, or a handle of it, that the process has open or mapped: the simulated device's segments are files. */
static void device_memory(pid_t pid, struct inodes *out)
{
	char path[64], line[1024], segment[80];
	struct dirent *entry;
	DIR *d;
	FILE *f;

	snprintf(segment, sizeof(segment), "%s/seg.", folder);
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	CHECK(d);
	while ((entry = readdir(d))) {
		char link[400], target[256];
		struct stat st;
		ssize_t len;

		snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
		len = readlink(link, target, sizeof(target) - 1);
		if (len <= 0)
			continue;
		target[len] = 0;
		if ((!strncmp(target, segment, strlen(segment)) ||
			    strstr(target, "kvpool-handle")) &&
			stat(link, &st) == 0)
			add(out, st.st_ino);
	}
	closedir(d);
	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "re");
	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		unsigned long inode;

		if (strstr(line, segment) && sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1)
			add(out, inode);
	}
	fclose(f);
}

/* What the daemon and its worker have open: the device memory that it lends. */
static struct inodes lent(void)
{
	struct inodes s = { 0 };
	pid_t worker = e2e_worker(daemon_.pid);

	CHECK(worker);
	device_memory(daemon_.pid, &s);
	device_memory(worker, &s);
	return s;
}

static struct inodes lent_to(const struct resident *r)
{
	struct inodes all = lent(), theirs = { 0 }, both = { 0 };

	device_memory(r->pid, &theirs);
	for (uint32_t i = 0; i < theirs.n; i++)
		if (has(&all, theirs.ino[i]))
			add(&both, theirs.ino[i]);
	return both;
}

static uint32_t common(const struct inodes *a, const struct inodes *b)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < a->n; i++)
		n += has(b, a->ino[i]);
	return n;
}

static uint64_t figure(const char *tenant, const char *name)
{
	json_t *answer = e2e_ask(daemon_.socket, "{\"verb\":\"devices\"}", NULL);
	json_t *row = json_array_get(json_object_get(answer, "devices"), 0);
	json_t *list = json_object_get(row, "tenants"), *one;
	uint64_t v = UINT64_MAX;
	size_t i;

	json_array_foreach(list, i, one)
		if (!strcmp(json_string_value(json_object_get(one, "tenant")), tenant))
			v = (uint64_t)json_integer_value(json_object_get(one, name));
	json_decref(answer);
	CHECK(v != UINT64_MAX);
	return v;
}

/* All that the tenant has goes; its memory is given back to the device. */
static void drop_all(const char *tenant)
{
	char request[80];
	uint32_t i = 0;

	snprintf(request, sizeof(request), "{\"verb\":\"drain\",\"tenant\":\"%s\"}", tenant);
	for (; i < 1000 && figure(tenant, "charged_bytes"); i++) {
		json_decref(e2e_ask(daemon_.socket, request, NULL));
		e2e_sleep_us(20000);
	}
	EQUAL(figure(tenant, "charged_bytes"), 0);
}

static void start(const char *transport)
{
	char more[1200];
	struct kvt_daemon_opts opts = {
		.share = 96 * MIB, .memory = 256 * MIB, .max_blocks = 4000, .more = more
	};

	snprintf(more, sizeof(more),
		"extent: 4MiB\n"
		"devices:\n"
		"  - {name: gpu, driver: cuda, index: 0, transport: %s, bytes: 24MiB, segment: "
		"2MiB,"
		" worker: \"%s\"}\n"
		"tenants:\n"
		"  - {name: alice, uids: [20001], share: 96MiB, devices: [{name: gpu, share: "
		"12MiB}]}\n"
		"  - {name: bob, uids: [20002], share: 96MiB, devices: [{name: gpu, share: "
		"12MiB}]}\n",
		transport, getenv("KVPOOL_DEVICE"));
	e2e_start(&daemon_, &opts);
	EQUAL(setenv("KVPOOL_SOCKET", daemon_.socket, 1), 0);
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) > 0;
}

/* Bob looks at what is his for as long as alice takes all that she gets. */
static void one_overloads(const struct resident *alice, const struct resident *bob)
{
	uint64_t dropped = figure("bob", "dropped_total"), blocks = figure("bob", "blocks");
	uint32_t looks = 0, refused;

	tell(alice, 'o');
	do {
		EQUAL(ask(bob, 'm'), 0);
		CHECK(figure("alice", "charged_bytes") <= SHARE);
		looks++;
	} while (!readable(alice->from));
	refused = hear(alice);
	CHECK(refused > 0);
	EQUAL(ask(bob, 'm'), 0);
	EQUAL(figure("bob", "dropped_total"), dropped);
	EQUAL(figure("bob", "blocks"), blocks);
	printf("the first was refused %u of %u prompts, the second found all of its own %u times\n",
		refused, PROMPTS, looks + 1);
}

static void by(const char *transport, struct cudadrv *sim)
{
	struct inodes of_alice, of_bob, before, after;
	struct resident alice, bob;
	uint32_t foreign_fds, foreign_blocks, nonzero, slots;

	start(transport);
	alice = engine_of(ALICE, NULL);
	EQUAL(ask(&alice, 's'), 0);
	bob = engine_of(BOB, &alice);
	foreign_blocks = ask(&bob, 'l');
	EQUAL(ask(&bob, 's'), 0);
	of_alice = lent_to(&alice);
	of_bob = lent_to(&bob);
	/* What the worker wrote, and what the client did. */
	CHECK(of_alice.n >= 2 && of_bob.n >= 2);
	foreign_fds = common(&of_alice, &of_bob);
	one_overloads(&alice, &bob);
	of_alice = lent_to(&alice);
	of_bob = lent_to(&bob);
	foreign_fds += common(&of_alice, &of_bob);
	dismiss(&alice);
	dismiss(&bob);
	drop_all("alice");
	before = lent();
	EQUAL(common(&before, &of_alice), 0);
	bob = engine_of(BOB, NULL);
	nonzero = ask(&bob, 'f');
	slots = ask(&bob, 'n');
	after = lent_to(&bob);
	CHECK(after.n > common(&after, &before));
	CHECK(slots * BLOCK_BYTES >= SEGMENT);
	dismiss(&bob);
	EQUAL(e2e_clean(daemon_.socket, 0), 0);
	kvt_daemon_stop(&daemon_);
	EQUAL(cudadrv_reports(sim, CUDADRV_REPORTS_N), 0);
	printf("%s: foreign fds %u, foreign blocks %u, fresh segments %s (%u slots)\n", transport,
		foreign_fds, foreign_blocks, nonzero ? "not zero" : "zero", slots);
	fflush(stdout);
	CHECK(!foreign_fds && !foreign_blocks && !nonzero);
}

int main(void)
{
	struct cudadrv_config config;
	struct cudadrv *sim;
	char command[128];

	if (geteuid() != 0) {
		printf("skipped: needs root to act as two users\n");
		return 77;
	}
	if (!getenv("KVPOOL_DEVICE"))
		e2e_die("KVPOOL_DEVICE names the worker", EINVAL);
	snprintf(folder, sizeof(folder), "/dev/shm/kvpool-gpu-XXXXXX");
	CHECK(mkdtemp(folder));
	cudadrv_defaults(&config);
	EQUAL(cudadrv_new(folder, &config, &sim), 0);
	EQUAL(setenv("KVP_SIM_GPU", folder, 1), 0);
	by("vmm", sim);
	by("ipc", sim);
	cudadrv_close(sim);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	EQUAL(system(command), 0);
	printf("foreign fds 0, foreign blocks 0, fresh segments zero\n");
	return 0;
}
