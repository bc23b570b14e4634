/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench fairness: what a well-behaved client gets of the daemon while another tenant loads or
 * attacks it. Each mode has a daemon of its own, and times of the same client without the load come
 * from just before.
 */
#include "tools/kvbench/bench_fairness.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/kvpool_admin.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/bench_fairness_client.h"
#include "tools/kvbench/kvbench.h"

#define MEMORY     (UINT64_C(1) << 30) /* the daemon's defaults */
#define SHARE      (MEMORY / 4)
#define FULL_SIZE  250u /* --sessions for which the table of modes is written */
#define READY_MS   60000u
#define BEGIN_MS   3000u
#define CLIENT_UID 61002u
#define LOAD_UID   61001u
#define PROCESSES  2u
#define MAX_MODES  32u

/* What is promised: so many times the idle p99, and one slice of a tenant's budget. */
#define GOAL_TIMES     3.0
#define GOAL_SLICE_US  2000.0
#define GOAL_ANSWER_MS 50.0

struct times {
	double p50, p99, max; /* microseconds */
	uint32_t n, failed, undone;
	int error;
};

struct row {
	const struct fair_mode *mode;
	uint32_t sessions;
	uint64_t ops;
	struct times put, attach, answer;
	struct times idle_put, idle_attach, idle_answer; /* just before */
	/* That the thread that puts, and the daemon's threads, waited for a processor. */
	double client_cpu_ms, daemon_cpu_ms;
	bool within;
};

/* The same without a load: medians over the modes, which a moment of noise does not move. */
struct idle {
	double put_p50, put_p99, put_max;          /* microseconds */
	double attach_p50, attach_p99, attach_max; /* the maxima are maxima */
	double answer_max;
};

/* All that one run needs; the tracks are large. */
struct run {
	uint64_t seconds, sessions;
	bool root;      /* clients get uids of their own; else tenants have sockets of their own */
	char group[64]; /* without root: the group that may ask for the status */
	struct kvt_daemon daemon;
	char client_socket[128], load_socket[128];
	struct fair_client *client;   /* shared with its process */
	struct fair_control *control; /* shared with the load's */
	struct fair_track *answer;
	struct kvp_admin *admin;
	pid_t client_pid, load_pid[PROCESSES];
};

static void nap_ms(long ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/* ---- the daemon ----------------------------------------------------------------------------- */

/* YAML of the tenants: each with a uid of its own, or without root with a socket. */
static void write_tenants(
	const struct run *run, const struct fair_mode *mode, char *out, size_t len)
{
	int n;

	if (run->root)
		n = snprintf(out, len,
			"tenants:\n  - name: client\n    uids: [%u]\n"
			"  - name: load\n    uids: [%u]\n",
			CLIENT_UID, LOAD_UID);
	else
		n = snprintf(out, len,
			"admin_group: \"%s\"\n"
			"tenants:\n  - name: client\n    socket: client.sock\n"
			"  - name: load\n    socket: load.sock\n",
			run->group);
	if (mode->share)
		snprintf(out + n, len - (size_t)n, "    share: %llu\n",
			(unsigned long long)mode->share);
}

static int start_daemon(struct run *run, const struct fair_mode *mode)
{
	struct kvt_daemon_opts opts = {
		.share = SHARE,
		.memory = MEMORY,
		.files = mode->files,
	};
	char tenants[512], error[1500];
	int r;

	write_tenants(run, mode, tenants, sizeof(tenants));
	opts.more = tenants;
	r = kvt_daemon_start(&opts, &run->daemon, error, sizeof(error));
	if (r < 0) {
		fprintf(stderr, "kvbench: %s\n", error);
		return r;
	}
	snprintf(run->client_socket, sizeof(run->client_socket), "%s%s",
		run->root ? run->daemon.socket : run->daemon.dir, run->root ? "" : "/client.sock");
	snprintf(run->load_socket, sizeof(run->load_socket), "%s%s",
		run->root ? run->daemon.socket : run->daemon.dir, run->root ? "" : "/load.sock");
	return 0;
}

/* A daemon that is still busy with what the load left is not waited for: nothing of it is kept. */
static void stop_daemon(struct run *run, bool answers)
{
	run->admin = kvp_admin_close(run->admin);
	if (run->daemon.pid && !answers)
		kill(run->daemon.pid, SIGKILL);
	kvt_daemon_stop(&run->daemon);
}

static int ask_status(void *ctx)
{
	struct run *run = ctx;
	const struct kvp_open_opts opts = {
		.size = sizeof(opts),
		.socket = run->daemon.socket,
		.default_timeout_ms = FAIR_TIMEOUT_MS,
	};
	char *text = NULL;
	int r = 0;

	if (!run->admin)
		r = kvp_admin_open(&opts, &run->admin);
	if (r == 0)
		r = kvp_admin_request(
			run->admin, "{\"verb\":\"status\"}", FAIR_TIMEOUT_MS, 0, &text);
	if (r < 0)
		run->admin = kvp_admin_close(run->admin);
	free(text);
	return r;
}

/* ---- processes ------------------------------------------------------------------------------ */

static int become(const struct run *run, uid_t uid)
{
	if (run->root && (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0))
		return -errno;
	return 0;
}

static int start_client(struct run *run)
{
	pid_t parent = getpid(), pid;

	memset(run->client, 0, sizeof(*run->client));
	pid = fork();
	if (pid < 0)
		return -errno;
	if (!pid) {
		int r = become(run, CLIENT_UID);

		kvt_end_with(parent, SIGKILL);
		if (r == 0)
			r = fair_client_run(run->client, run->client_socket);
		atomic_store(&run->client->error, r);
		_exit(r < 0);
	}
	run->client_pid = pid;
	return 0;
}

static int start_load(struct run *run, const struct fair_mode *mode, uint32_t sessions)
{
	uint32_t processes = sessions && sessions < mode->processes ? sessions : mode->processes;
	pid_t parent = getpid();

	memset(run->control, 0, sizeof(*run->control));
	for (uint32_t i = 0; i < processes; i++) {
		struct fair_load load = {
			.socket = run->load_socket,
			.process = i,
			.sessions = sessions / processes + (i < sessions % processes),
			.control = run->control,
		};
		pid_t pid = fork();

		if (pid < 0)
			return -errno;
		if (!pid) {
			int r = become(run, LOAD_UID);

			kvt_end_with(parent, SIGKILL);
			if (r == 0)
				r = mode->run(&load);
			atomic_store(&run->control->error, r < 0 ? r : -EIO);
			_exit(1);
		}
		run->load_pid[i] = pid;
	}
	for (uint32_t waited = 0; atomic_load(&run->control->ready) < processes; waited += 5) {
		if (atomic_load(&run->control->error))
			return atomic_load(&run->control->error);
		if (waited > READY_MS)
			return -ETIMEDOUT;
		nap_ms(5);
	}
	return 0;
}

static void end_process(pid_t *pid)
{
	if (*pid > 0) {
		kill(*pid, SIGKILL);
		waitpid(*pid, NULL, 0);
	}
	*pid = 0;
}

static void end_load(struct run *run)
{
	for (uint32_t i = 0; i < PROCESSES; i++)
		if (run->load_pid[i] > 0)
			kill(run->load_pid[i], SIGKILL);
	for (uint32_t i = 0; i < PROCESSES; i++)
		end_process(&run->load_pid[i]);
}

/* ---- one mode ------------------------------------------------------------------------------- */

static int measure_phase(struct run *run, uint32_t phase, uint64_t ns)
{
	struct fair_client *c = run->client;
	const uint64_t until = bench_now() + ns;

	run->answer->n = run->answer->failed = run->answer->undone = 0;
	atomic_store(&c->until_ns[phase], until);
	fair_pace(run->answer, until, FAIR_ANSWER_NS, ask_status, NULL, run);
	/* A put is two requests, each with its timeout. */
	while (!atomic_load(&c->done[phase])) {
		if (atomic_load(&c->error) < 0)
			return atomic_load(&c->error);
		if (bench_now() > until + 3 * FAIR_TIMEOUT_MS * UINT64_C(1000000))
			return -ETIMEDOUT;
		nap_ms(1);
	}
	return 0;
}

static struct times times_of(struct fair_track *t)
{
	struct times x = {
		.n = t->n,
		.failed = t->failed,
		.undone = t->undone,
		.error = t->error,
	};

	x.p50 = bench_percentile(t->us, t->n, .5);
	x.p99 = bench_percentile(t->us, t->n, .99);
	x.max = bench_percentile(t->us, t->n, 1);
	return x;
}

static int measure(struct run *run, struct row *row)
{
	const uint64_t ns = run->seconds * 1000000000u;
	int r = start_client(run);

	for (uint32_t waited = 0; r == 0 && !atomic_load(&run->client->attached); waited++) {
		r = atomic_load(&run->client->error);
		if (waited > READY_MS)
			r = -ETIMEDOUT;
		nap_ms(1);
	}
	if (r < 0) {
		fprintf(stderr, "kvbench: the client could not begin: %s\n", strerror(-r));
		return r;
	}
	r = measure_phase(run, FAIR_IDLE, ns / 2);
	if (r < 0)
		return r;
	row->idle_put = times_of(&run->client->put[FAIR_IDLE]);
	row->idle_attach = times_of(&run->client->attach[FAIR_IDLE]);
	row->idle_answer = times_of(run->answer);
	r = start_load(run, row->mode, row->sessions);
	if (r < 0) {
		fprintf(stderr, "kvbench: %s could not begin: %s\n", row->mode->name, strerror(-r));
		return r;
	}
	atomic_store(&run->control->go, 1);
	/* It begins when it gets the processor. */
	for (uint32_t waited = 0; !atomic_load(&run->control->ops) && waited < BEGIN_MS; waited++)
		nap_ms(1);
	row->daemon_cpu_ms = -fair_process_wait_ms(run->daemon.pid);
	r = measure_phase(run, FAIR_LOADED, ns);
	row->client_cpu_ms = (double)run->client->cpu_wait_ns[FAIR_LOADED] / 1e6;
	row->daemon_cpu_ms += fair_process_wait_ms(run->daemon.pid);
	row->ops = atomic_load(&run->control->ops);
	row->put = times_of(&run->client->put[FAIR_LOADED]);
	row->attach = times_of(&run->client->attach[FAIR_LOADED]);
	row->answer = times_of(run->answer);
	if (r < 0)
		fprintf(stderr, "kvbench: %s: the client came to no end: %s\n", row->mode->name,
			strerror(-r));
	return r;
}

static int run_mode(struct run *run, struct row *row)
{
	bool answers;
	int r = start_daemon(run, row->mode);

	if (r < 0)
		return r;
	r = measure(run, row);
	answers = r == 0 && row->answer.max < FAIR_TIMEOUT_MS * 1e3 / 8;
	end_load(run);
	end_process(&run->client_pid);
	stop_daemon(run, answers);
	return r;
}

/* ---- figures -------------------------------------------------------------------------------- */

static double median_of(const struct row *rows, uint32_t n, size_t figure)
{
	double v[MAX_MODES];

	for (uint32_t i = 0; i < n; i++)
		memcpy(&v[i], (const char *)&rows[i] + figure, sizeof(v[i]));
	return bench_median(v, n);
}

static double max_of(const struct row *rows, uint32_t n, size_t figure)
{
	double max = 0, v;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&v, (const char *)&rows[i] + figure, sizeof(v));
		max = v > max ? v : max;
	}
	return max;
}

static struct idle idle_of(const struct row *rows, uint32_t n)
{
	return (struct idle){
		.put_p50 = median_of(rows, n, offsetof(struct row, idle_put.p50)),
		.put_p99 = median_of(rows, n, offsetof(struct row, idle_put.p99)),
		.put_max = max_of(rows, n, offsetof(struct row, idle_put.max)),
		.attach_p50 = median_of(rows, n, offsetof(struct row, idle_attach.p50)),
		.attach_p99 = median_of(rows, n, offsetof(struct row, idle_attach.p99)),
		.attach_max = max_of(rows, n, offsetof(struct row, idle_attach.max)),
		.answer_max = max_of(rows, n, offsetof(struct row, idle_answer.max)),
	};
}

static double goal_us(double idle_p99)
{
	return GOAL_TIMES * idle_p99 + GOAL_SLICE_US;
}

static uint32_t failed_of(const struct row *row)
{
	return row->put.failed + row->attach.failed + row->answer.failed;
}

/* Judges every row, and returns whether all are within; the control is no load of the daemon. */
static bool judge(struct row *rows, uint32_t n, const struct idle *idle)
{
	bool all = true;

	for (uint32_t i = 0; i < n; i++) {
		struct row *r = &rows[i];

		r->within = !failed_of(r) && r->put.p99 <= goal_us(idle->put_p99) &&
			    r->attach.p99 <= goal_us(idle->attach_p99) &&
			    r->answer.max / 1e3 <= GOAL_ANSWER_MS;
		all = all && (r->within || r->mode->control);
	}
	return all;
}

static void print_json(const struct row *rows, uint32_t n, const struct idle *idle, bool within)
{
	printf("{\"idle\":{\"put_p50_us\":%.1f,\"put_p99_us\":%.1f,\"put_max_us\":%.1f,"
	       "\"attach_p50_us\":%.1f,\"attach_p99_us\":%.1f,\"attach_max_us\":%.1f,"
	       "\"answer_max_ms\":%.2f},"
	       "\"goal\":{\"put_p99_us\":%.1f,\"attach_p99_us\":%.1f,\"answer_max_ms\":%.1f},"
	       "\"modes\":[",
		idle->put_p50, idle->put_p99, idle->put_max, idle->attach_p50, idle->attach_p99,
		idle->attach_max, idle->answer_max / 1e3, goal_us(idle->put_p99),
		goal_us(idle->attach_p99), GOAL_ANSWER_MS);
	for (uint32_t i = 0; i < n; i++) {
		const struct row *r = &rows[i];

		printf("%s{\"mode\":\"%s\",\"sessions\":%u,\"threads\":%u,\"put_p50_us\":%.1f,"
		       "\"put_p99_us\":%.1f,"
		       "\"put_max_us\":%.1f,\"attach_p50_us\":%.1f,\"attach_p99_us\":%.1f,"
		       "\"attach_max_us\":%.1f,\"answer_p99_ms\":%.2f,\"answer_max_ms\":%.2f,"
		       "\"puts\":%u,\"attaches\":%u,\"failed\":%u,\"load_ops\":%llu,\"client_cpu_"
		       "wait_ms\":%.1f,\"daemon_cpu_wait_ms\":%.1f,\"within\":%s}",
			i ? "," : "", r->mode->name, r->mode->threads ? 1 : r->sessions,
			r->mode->threads ? r->sessions : 0, r->put.p50, r->put.p99, r->put.max,
			r->attach.p50, r->attach.p99, r->attach.max, r->answer.p99 / 1e3,
			r->answer.max / 1e3, r->put.n, r->attach.n, failed_of(r),
			(unsigned long long)r->ops, r->client_cpu_ms, r->daemon_cpu_ms,
			r->within ? "true" : "false");
	}
	printf("],\"within\":%s}\n", within ? "true" : "false");
}

static void print_table(const struct row *rows, uint32_t n, const struct idle *idle)
{
	printf("                        put, us                       attach, us    answer, ms   "
	       "cpu wait, ms\n"
	       "mode      sessions       p50       p99       max       p50       p99        max "
	       "client daemon\n");
	printf("%-9s %8s %9.0f %9.0f %9.0f %9.0f %9.0f %10.1f\n", "idle", "", idle->put_p50,
		idle->put_p99, idle->put_max, idle->attach_p50, idle->attach_p99,
		idle->answer_max / 1e3);
	printf("%-9s %8s %9s %9.0f %9s %9s %9.0f %10.1f\n", "goal", "", "", goal_us(idle->put_p99),
		"", "", goal_us(idle->attach_p99), GOAL_ANSWER_MS);
	for (uint32_t i = 0; i < n; i++) {
		const struct row *r = &rows[i];

		printf("%-9s %8u %9.0f %9.0f %9.0f %9.0f %9.0f %10.1f %6.0f %6.0f  %s",
			r->mode->name, r->sessions, r->put.p50, r->put.p99, r->put.max,
			r->attach.p50, r->attach.p99, r->answer.max / 1e3, r->client_cpu_ms,
			r->daemon_cpu_ms, r->within ? "within" : "MISSED");
		if (failed_of(r))
			printf(", %u requests failed (%s)", failed_of(r),
				strerror(-(r->put.error      ? r->put.error
					   : r->attach.error ? r->attach.error
							     : r->answer.error)));
		putchar('\n');
	}
}

/* ---- the command ---------------------------------------------------------------------------- */

/* Is `name` among the comma-separated `list`? NULL holds all. */
static bool chosen(const char *list, const char *name)
{
	size_t len = strlen(name);

	if (!list)
		return true;
	for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
		if (strcspn(p, ",") == len && !strncmp(p, name, len))
			return true;
	return false;
}

static bool list_is_right(const char *list)
{
	for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',') {
		int len = (int)strcspn(p, ",");
		bool known = false;

		for (uint32_t i = 0; i < fair_n_modes; i++)
			known = known || ((int)strlen(fair_modes[i].name) == len &&
						 !strncmp(p, fair_modes[i].name, (size_t)len));
		if (known)
			continue;
		fprintf(stderr, "kvbench fairness: no mode '%.*s'; there are:\n", len, p);
		for (uint32_t i = 0; i < fair_n_modes; i++)
			fprintf(stderr, "  %-9s %s\n", fair_modes[i].name, fair_modes[i].help);
		return false;
	}
	return true;
}

static uint32_t scaled(const struct fair_mode *mode, uint64_t sessions)
{
	uint64_t n = mode->sessions * sessions / FULL_SIZE;

	return mode->fixed ? mode->sessions : n ? (uint32_t)n : 1;
}

/* The load's processes hold a few descriptors for each session. */
static void raise_files(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
}

static void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int prepare(struct run *run)
{
	raise_files();
	run->root = geteuid() == 0;
	if (!run->root) {
		const struct group *group = getgrgid(getegid());

		if (!group || strlen(group->gr_name) >= sizeof(run->group)) {
			fprintf(stderr,
				"kvbench: its daemon answers root, or members of a group that has "
				"a "
				"name: group %u has none\n",
				(unsigned)getegid());
			return -ENOENT;
		}
		memccpy(run->group, group->gr_name, 0, sizeof(run->group));
	}
	run->client = shared(sizeof(*run->client));
	run->control = shared(sizeof(*run->control));
	run->answer = calloc(1, sizeof(*run->answer));
	if (run->client && run->control && run->answer)
		return 0;
	fprintf(stderr, "kvbench: no memory\n");
	return -ENOMEM;
}

static void tidy(struct run *run)
{
	if (run->client)
		munmap(run->client, sizeof(*run->client));
	if (run->control)
		munmap(run->control, sizeof(*run->control));
	free(run->answer);
}

/* What could not be measured is left out, and makes the result an error. */
static int measure_all(struct run *run, const char *list, struct row *rows, uint32_t *ret_n)
{
	bool terminal = isatty(STDERR_FILENO);
	uint32_t n = 0;
	int result = 0;

	for (uint32_t i = 0; i < fair_n_modes && n < MAX_MODES; i++) {
		struct row row = {
			.mode = &fair_modes[i],
			.sessions = scaled(&fair_modes[i], run->sessions),
		};
		int r;

		if (!chosen(list, fair_modes[i].name))
			continue;
		if (terminal)
			fprintf(stderr, "\r\033[K%s: %s", fair_modes[i].name, fair_modes[i].help);
		r = run_mode(run, &row);
		if (r == 0)
			rows[n++] = row;
		else
			result = r;
	}
	if (terminal)
		fprintf(stderr, "\r\033[K");
	*ret_n = n;
	return result;
}

int kvbench_fairness(int argc, char **argv)
{
	struct run run = { .seconds = 3, .sessions = FULL_SIZE };
	const char *list = NULL;
	bool json = false, check = false, within;
	const struct bench_option options[] = {
		{ .name = "mode",
			.help = "some of the modes (default all)",
			.text = &list,
			.takes = "NAME[,NAME...]" },
		{ .name = "seconds",
			.help = "of each mode under load (default 3); half as long idle",
			.value = &run.seconds,
			.min = 1,
			.max = FAIR_MAX_SECONDS },
		{ .name = "sessions",
			.help = "of the large loads (default 250)",
			.value = &run.sessions,
			.min = 2,
			.max = 250 },
		{ .name = "check", .help = "exit with 3 if the goal is missed", .flag = &check },
		{ .name = "json", .help = "one JSON object on stdout", .flag = &json },
	};
	struct row rows[MAX_MODES];
	struct idle idle;
	uint32_t n = 0;
	int r = bench_parse(argc, argv,
		"A well-behaved client's puts and attaches beside what another tenant does.",
		options, sizeof(options) / sizeof(options[0]));

	if (r <= 0)
		return r ? 2 : 0;
	if (!list_is_right(list))
		return 2;
	r = prepare(&run);
	if (r == 0)
		r = measure_all(&run, list, rows, &n);
	tidy(&run);
	if (!n)
		return 1;
	idle = idle_of(rows, n);
	within = judge(rows, n, &idle);
	if (json)
		print_json(rows, n, &idle, within);
	else
		print_table(rows, n, &idle);
	return r < 0 ? 1 : check && !within ? 3 : 0;
}
