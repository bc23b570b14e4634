/* SPDX-License-Identifier: Apache-2.0 */
/* Starting and ending the worker process. */
#include "daemon/device/child.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/device/protocol.h"
#include "shm/kvp_seg.h"

#define KILL_MS 5000u /* a process with much memory pinned takes its time to end */

extern char **environ;

static bool same_name(const char *a, const char *b)
{
	size_t n = strcspn(a, "=");

	return n == strcspn(b, "=") && memcmp(a, b, n) == 0;
}

/* The array is the caller's, its strings are not. NULL: no memory. */
static char **environment(const char *const set[])
{
	size_t n = 0, m = 0;
	char **env;

	while (environ[n])
		n++;
	while (set[m])
		m++;
	env = calloc(n + m + 1, sizeof(*env));
	if (!env)
		return NULL;
	memcpy(env, set, m * sizeof(*env));
	for (size_t i = 0, end = m; i < n; i++) {
		bool mine = false;

		for (size_t k = 0; k < m && !mine; k++)
			mine = same_name(environ[i], set[k]);
		if (!mine)
			env[end++] = environ[i];
	}
	return env;
}

static int spawn(const char *path, char *const argv[], char *const env[], int sock, pid_t *ret_pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int r;

	if (posix_spawn_file_actions_init(&actions))
		return -ENOMEM;
	if (posix_spawnattr_init(&attr)) {
		posix_spawn_file_actions_destroy(&actions);
		return -ENOMEM;
	}
	sigemptyset(&none);
	sigfillset(&all);
	r = posix_spawn_file_actions_adddup2(&actions, sock, KVPD_WORKER_SOCKET);
	if (!r)
		r = posix_spawnattr_setsigmask(&attr, &none);
	if (!r)
		r = posix_spawnattr_setsigdefault(&attr, &all);
	if (!r)
		r = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	if (!r)
		r = posix_spawn(ret_pid, path, &actions, &attr, argv, env);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return -r;
}

/* Until the process is reaped, at most so long. False: it is there still. */
static bool reaped(pid_t pid, uint32_t ms)
{
	const uint64_t until = kvpd_now_ns() + ms * KVPD_MS;
	const struct timespec step = { .tv_nsec = 5 * 1000000 };

	for (;;) {
		pid_t r = waitpid(pid, NULL, WNOHANG);

		if (r == pid || (r < 0 && errno != EINTR))
			return true;
		if (kvpd_now_ns() >= until)
			return false;
		nanosleep(&step, NULL);
	}
}

int kvpd_child_start(
	const char *path, char *const argv[], const char *const set[], struct kvpd_child *child)
{
	char **env;
	int pair[2], r;
	pid_t pid;

	if (child->left && !reaped(child->left, 0))
		return -EBUSY;
	child->left = 0;
	env = environment(set);
	if (!env)
		return -ENOMEM;
	r = kvpd_p_pair(pair);
	if (r < 0) {
		free(env);
		return r;
	}
	r = spawn(path, argv, env, pair[1], &pid);
	free(env);
	close(pair[1]);
	if (r < 0) {
		close(pair[0]);
		return r;
	}
	*child = (struct kvpd_child){ .pid = pid, .sock = pair[0] };
	return 0;
}

void kvpd_child_end(struct kvpd_child *child, uint32_t grace_ms)
{
	if (!child->pid)
		return;
	close(child->sock);
	child->sock = -1;
	if (!grace_ms || !reaped(child->pid, grace_ms)) {
		kill(child->pid, SIGKILL);
		if (!reaped(child->pid, KILL_MS))
			child->left = child->pid;
	}
	child->pid = 0;
}
