/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime directory, its lock, and listening sockets: made here or passed by systemd. */
#include "daemon/control/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/log.h"
#include "shm/kvp_seg.h"

#define BACKLOG 512

/* ---- the directory ------------------------------------------------------------------------- */

static int open_dir(const char *path, uid_t uid, gid_t gid, int *ret_fd)
{
	struct stat st;
	int r;

	if (mkdir(path, 0755) == 0) {
		/* The umask is narrower, and the directory is new: nobody's permissions change. */
		if (chmod(path, 0755) < 0 || (geteuid() == 0 && chown(path, uid, gid) < 0))
			return -errno;
	} else if (errno != EEXIST) {
		r = -errno;
		kvpd_err("cannot make the runtime directory %s: %s; make it, owned by the user "
			 "that kvpoold runs as, or choose another with `runtime_dir`",
			path, strerror(-r));
		return r;
	}
	kvp_autoclose int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0) {
		r = -errno;
		kvpd_err("cannot use the runtime directory %s: %s", path, strerror(-r));
		return r;
	}
	if ((st.st_uid != 0 && st.st_uid != uid && st.st_uid != geteuid()) ||
		(st.st_mode & (S_IWGRP | S_IWOTH))) {
		kvpd_err("others can write in the runtime directory %s: give it to uid %u and take "
			 "away the write permission of group and others",
			path, (unsigned)uid);
		return -EPERM;
	}
	*ret_fd = kvp_take_fd(&fd);
	return 0;
}

static void say_who_holds(const char *dir, int lock)
{
	char pid[24] = "";
	ssize_t n = pread(lock, pid, sizeof(pid) - 1, 0);

	if (n > 0)
		pid[strcspn(pid, "\n")] = 0;
	kvpd_err(
		"a kvpoold is running with the runtime directory %s already (process %s): stop it, "
		"or choose another directory with --runtime-dir",
		dir, *pid ? pid : "unknown");
}

int kvpd_runtime_dir(const char *path, uid_t uid, gid_t gid, int *ret_lock)
{
	kvp_autoclose int dir = -1;
	char pid[24];
	int r, n;

	r = open_dir(path, uid, gid, &dir);
	if (r < 0)
		return r;
	kvp_autoclose int fd = openat(
		dir, KVPD_LOCK_FILE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0644);
	if (fd < 0) {
		r = -errno;
		kvpd_err("cannot write in the runtime directory %s: %s; give it to the user that "
			 "kvpoold runs as",
			path, strerror(-r));
		return r;
	}
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		say_who_holds(path, fd);
		return -EADDRINUSE;
	}
	n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
	if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, (size_t)n, 0) != n) {
		r = errno ? -errno : -EIO;
		kvpd_err("cannot write %s/%s: %s", path, KVPD_LOCK_FILE, strerror(-r));
		return r;
	}
	*ret_lock = kvp_take_fd(&fd);
	return 0;
}

/* ---- sockets ------------------------------------------------------------------------------- */

static int address(const char *dir, const char *name, struct sockaddr_un *ret_address)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	if ((size_t)snprintf(a.sun_path, sizeof(a.sun_path), "%s/%s", dir, name) >=
		sizeof(a.sun_path))
		return -ENAMETOOLONG;
	*ret_address = a;
	return 0;
}

/* Only what is left over from a daemon that was killed may be removed. */
static int clear_path(const struct sockaddr_un *a)
{
	struct stat st;
	int r;

	if (lstat(a->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode)) {
		kvpd_err("%s exists and is no socket: remove it, or give the socket another name",
			a->sun_path);
		return -EEXIST;
	}
	kvp_autoclose int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe < 0)
		return -errno;
	if (connect(probe, (const struct sockaddr *)a, sizeof(*a)) == 0 || errno == EAGAIN ||
		errno == EPROTOTYPE) {
		kvpd_err("another program listens on %s: stop it, or give the socket another name",
			a->sun_path);
		return -EADDRINUSE;
	}
	if (unlink(a->sun_path) == 0 || errno == ENOENT)
		return 0;
	r = -errno;
	kvpd_err("cannot remove the stale socket %s: %s", a->sun_path, strerror(-r));
	return r;
}

int kvpd_listen(const char *dir, const char *name, mode_t mode, uid_t uid, gid_t gid, int *ret_fd)
{
	struct sockaddr_un a;
	int r;

	r = address(dir, name, &a);
	if (r == 0)
		r = clear_path(&a);
	if (r < 0)
		return r;
	kvp_autoclose int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* Permissions before anybody can connect: between bind() and listen() nobody can. */
	if (fd < 0 || bind(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 ||
		chmod(a.sun_path, mode) < 0 ||
		(geteuid() == 0 && chown(a.sun_path, uid, gid) < 0) || listen(fd, BACKLOG) < 0) {
		r = -errno;
		kvpd_err("cannot listen on %s: %s", a.sun_path, strerror(-r));
		return r;
	}
	*ret_fd = kvp_take_fd(&fd);
	return 0;
}

void kvpd_unlisten(const char *dir, const char *name)
{
	struct sockaddr_un a;

	if (address(dir, name, &a) == 0)
		(void)unlink(a.sun_path);
}

/* ---- socket activation --------------------------------------------------------------------- */

static struct {
	bool asked;
	int n;
	char **names;
	bool *taken;
} passed;

static int read_passed(void)
{
	int n;

	if (passed.asked)
		return passed.n;
	passed.asked = true;
	n = sd_listen_fds_with_names(1, &passed.names);
	if (n > 0) {
		passed.taken = calloc((size_t)n, sizeof(*passed.taken));
		if (!passed.taken)
			return -ENOMEM;
	}
	passed.n = n < 0 ? 0 : n;
	return passed.n;
}

int kvpd_listen_passed(const char *name, int *ret_fd)
{
	int n = read_passed();

	for (int i = 0; i < n; i++) {
		int fd = SD_LISTEN_FDS_START + i;

		if (passed.taken[i] || strcmp(passed.names[i], name))
			continue;
		if (sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, NULL, 0) <= 0) {
			kvpd_err("the socket '%s' that systemd passed is no listening Unix socket "
				 "of type SOCK_SEQPACKET (ListenSequentialPacket=)",
				name);
			return -EPROTOTYPE;
		}
		if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
			return -errno;
		passed.taken[i] = true;
		*ret_fd = fd;
		return 0;
	}
	return n < 0 ? n : -ENOENT;
}

void kvpd_listen_passed_rest(void)
{
	int n = read_passed();

	for (int i = 0; i < n; i++) {
		if (!passed.taken[i]) {
			kvpd_warning("systemd passed a socket '%s', which is neither 'kvpool' nor "
				     "the name of a tenant: closed",
				passed.names[i]);
			close(SD_LISTEN_FDS_START + i);
		}
		free(passed.names[i]);
	}
	free(passed.names);
	free(passed.taken);
	passed.n = 0;
	passed.names = NULL;
	passed.taken = NULL;
}
