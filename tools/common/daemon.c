/* SPDX-License-Identifier: Apache-2.0 */
/* Starts, watches and ends a private kvpoold, also when a signal ends the tool itself. */
#include "tools/common/kvt_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_TMPDIR       60u /* a socket's path has to fit 108 bytes */
#define START_TIMEOUT_MS 60000
#define STOP_TIMEOUT_MS  20000
#define STEP_MS          10

static void sleep_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/* What the variable names, or BUILD/below where this program is BUILD/tools/TOOL/TOOL, or `otherwise`. */
static void find(
	char *out, size_t len, const char *variable, const char *below, const char *otherwise)
{
	const char *env = getenv(variable);
	char self[512];
	ssize_t n;

	if (env && *env) {
		snprintf(out, len, "%s", env);
		return;
	}
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	self[n > 0 ? n : 0] = 0;
	for (int up = 0; up < 3 && strrchr(self, '/'); up++)
		*strrchr(self, '/') = 0;
	snprintf(out, len, "%s/%s", self, below);
	if (access(out, X_OK) < 0)
		snprintf(out, len, "%s", otherwise);
}

static void find_program(char *out, size_t len)
{
	find(out, len, "KVPOOLD", "daemon/kvpoold", "kvpoold");
}

void kvt_find_worker(char *out, size_t len)
{
	find(out, len, "KVPOOL_DEVICE", "daemon/device/kvpool-device", "");
}

static void write_device(FILE *f, const struct kvt_daemon_opts *o)
{
	char worker[600];

	kvt_find_worker(worker, sizeof(worker));
	fprintf(f,
		"devices:\n  - name: host\n    driver: host\n    bytes: %llu\n    segment: %llu\n",
		(unsigned long long)o->device_bytes, (unsigned long long)o->device_segment);
	if (*worker)
		fprintf(f, "    worker: %s\n", worker);
}

static int write_config(const struct kvt_daemon *d, const struct kvt_daemon_opts *o)
{
	char path[192];
	FILE *f;

	snprintf(path, sizeof(path), "%s/kvpoold.yaml", d->dir);
	f = fopen(path, "we");
	if (!f)
		return -errno;
	fprintf(f, "memory: %llu\nuser: \"\"\ntrust_daemon_uid: true\nmlock: never\n",
		(unsigned long long)(o->memory ? o->memory : o->share + (UINT64_C(64) << 20)));
	if (o->policy)
		fprintf(f, "policy: %s\n", o->policy);
	if (o->max_sessions)
		fprintf(f, "max_sessions: %u\n", o->max_sessions);
	if (o->device_bytes)
		write_device(f, o);
	fprintf(f, "defaults:\n  share: %llu\n", (unsigned long long)o->share);
	if (o->max_blocks)
		fprintf(f, "  max_blocks: %u\n", o->max_blocks);
	if (o->recipe_tokens)
		fprintf(f, "  recipe_tokens: %llu\n", (unsigned long long)o->recipe_tokens);
	if (o->arena)
		fprintf(f, "  arena: %llu\n", (unsigned long long)o->arena);
	if (o->max_sessions)
		fprintf(f, "  max_sessions: %u\n", o->max_sessions);
	if (o->more)
		fputs(o->more, f);
	return fclose(f) ? -errno : 0;
}

/* What exec gives to root is what the bounding set still has. Without CAP_SETPCAP root has less. */
static void limit_files(uint32_t files)
{
	const struct rlimit limit = { files, files };

	(void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
	(void)prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0);
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

static void run_daemon(const struct kvt_daemon *d, pid_t parent)
{
	char program[600], config[192], log[192];
	int fd;

	kvt_end_with(parent, SIGTERM);
	if (d->files)
		limit_files(d->files);
	find_program(program, sizeof(program));
	snprintf(config, sizeof(config), "%s/kvpoold.yaml", d->dir);
	snprintf(log, sizeof(log), "%s/log", d->dir);
	fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0) {
		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
	}
	execlp(program, "kvpoold", "--foreground", "--config", config, "--runtime-dir", d->dir,
		(char *)NULL);
	fprintf(stderr, "cannot run %s: %s; set KVPOOLD to its path\n", program, strerror(errno));
	_exit(127);
}

static int accepts(const char *socket_path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r;

	if (fd < 0)
		return 0;
	memccpy(addr.sun_path, socket_path, 0, sizeof(addr.sun_path) - 1);
	r = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
	close(fd);
	return r == 0;
}

static void explain(const struct kvt_daemon *d, const char *what, char *error, size_t len)
{
	char path[192], tail[1024] = "";
	FILE *f;

	snprintf(path, sizeof(path), "%s/log", d->dir);
	f = fopen(path, "re");
	if (f) {
		size_t n;

		if (fseek(f, -(long)sizeof(tail) + 1, SEEK_END) < 0)
			rewind(f);
		n = fread(tail, 1, sizeof(tail) - 1, f);
		tail[n] = 0;
		fclose(f);
	}
	snprintf(error, len, "%s\n%s", what, tail);
}

/* May be called by a signal handler, as what follows may. */
static void remove_dir(const char *dir)
{
	/* Also what kvbench has there: sockets of tenants, and what it compares with. */
	static const char *const names[] = { "kvpoold.yaml", "log", "kvpool.sock", "kvpoold.lock",
		"client.sock", "load.sock", "redis.sock", "memcached.sock" };
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	for (size_t i = 0; fd >= 0 && i < sizeof(names) / sizeof(names[0]); i++)
		unlinkat(fd, names[i], 0);
	if (fd >= 0)
		close(fd);
	rmdir(dir);
}

static void end_process(struct kvt_daemon *d)
{
	kill(d->pid, SIGTERM);
	for (int waited = 0; waited < STOP_TIMEOUT_MS; waited += STEP_MS) {
		if (waitpid(d->pid, NULL, WNOHANG) == d->pid) {
			d->pid = 0;
			return;
		}
		sleep_ms(STEP_MS);
	}
	kill(d->pid, SIGKILL);
	waitpid(d->pid, NULL, 0);
	d->pid = 0;
}

/* ---- when the tool itself is ended ---- */

static struct kvt_daemon *volatile running;
static pid_t owner; /* who started it: children of the tool get its handlers too */

static void on_end(int sig)
{
	struct kvt_daemon *d = running;

	if (d && getpid() == owner) {
		running = NULL;
		if (d->pid)
			end_process(d);
		remove_dir(d->dir);
	}
	raise(sig); /* now as if there were no handler */
}

/* Signals that the tool ignores, or handles itself, are left alone. */
static void watch_signals(struct kvt_daemon *d)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction old, new = { .sa_handler = on_end, .sa_flags = (int)SA_RESETHAND };

	owner = getpid();
	running = d;
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		if (sigaction(ends[i], NULL, &old) == 0 && !(old.sa_flags & SA_SIGINFO) &&
			old.sa_handler == SIG_DFL)
			sigaction(ends[i], &new, NULL);
}

void kvt_end_with(pid_t parent, int sig)
{
	prctl(PR_SET_PDEATHSIG, sig);
	if (getppid() != parent)
		_exit(1); /* it went before we asked */
}

int kvt_daemon_restart(struct kvt_daemon *d, char *error, size_t error_len)
{
	pid_t parent = getpid();
	int r, status;

	d->pid = fork();
	if (d->pid < 0) {
		r = -errno;
		d->pid = 0;
		snprintf(error, error_len, "cannot fork: %s", strerror(-r));
		return r;
	}
	if (!d->pid)
		run_daemon(d, parent);
	for (int waited = 0; waited < START_TIMEOUT_MS; waited += STEP_MS) {
		if (accepts(d->socket))
			return 0;
		if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
			d->pid = 0;
			explain(d, "kvpoold ended while starting; its log:", error, error_len);
			return -ECHILD;
		}
		sleep_ms(STEP_MS);
	}
	explain(d, "kvpoold did not accept clients in time; its log:", error, error_len);
	end_process(d);
	return -ETIMEDOUT;
}

int kvt_daemon_start(const struct kvt_daemon_opts *opts, struct kvt_daemon *ret_daemon, char *error,
	size_t error_len)
{
	const char *tmp = getenv("TMPDIR");
	struct kvt_daemon d = { .files = opts->files };
	int r;

	if (!tmp || !*tmp || strlen(tmp) > MAX_TMPDIR)
		tmp = P_tmpdir;
	snprintf(d.dir, sizeof(d.dir), "%s/kvpool-XXXXXX", tmp);
	if (!mkdtemp(d.dir)) {
		r = -errno;
		snprintf(error, error_len, "cannot make %s: %s", d.dir, strerror(-r));
		return r;
	}
	snprintf(d.socket, sizeof(d.socket), "%s/kvpool.sock", d.dir);
	r = chmod(d.dir, 0755) < 0 ? -errno : write_config(&d, opts);
	if (r < 0) {
		snprintf(error, error_len, "cannot write below %s: %s", d.dir, strerror(-r));
		remove_dir(d.dir);
		return r;
	}
	*ret_daemon = d;
	watch_signals(ret_daemon);
	r = kvt_daemon_restart(ret_daemon, error, error_len);
	if (r < 0) {
		running = NULL;
		remove_dir(d.dir);
	}
	return r;
}

void kvt_daemon_stop(struct kvt_daemon *d)
{
	if (!d->dir[0])
		return;
	if (d->pid)
		end_process(d);
	if (running == d)
		running = NULL;
	remove_dir(d->dir);
	d->dir[0] = 0;
}
