/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the kernel about the process at the other end of a socket. */
#include "daemon/control/peer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

int kvpd_peer_identity(int sock, struct kvpd_identity *ret_identity)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	*ret_identity = (struct kvpd_identity){ cred.pid, cred.uid, cred.gid };
	return 0;
}

int kvpd_peer_pidfd(int sock, int *ret_pidfd)
{
	socklen_t len = sizeof(int);
	int fd = -1;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) < 0) {
		if (errno == ENOPROTOOPT)
			return -EOPNOTSUPP;
		/* What kernels say of a process that is gone has changed over time. */
		return errno == EINVAL || errno == ENODATA ? -ESRCH : -errno;
	}
	*ret_pidfd = fd;
	return 0;
}

int kvpd_peer_pidfd_by_number(pid_t pid, int *ret_pidfd)
{
	int fd;

	if (pid <= 0)
		return -ESRCH;
	fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return -errno;
	*ret_pidfd = fd;
	return 0;
}

bool kvpd_pidfd_alive(int pidfd)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };

	return poll(&p, 1, 0) == 0;
}

int kvpd_peer_in_group(int sock, const struct kvpd_identity *identity, gid_t group)
{
	socklen_t len = 0;
	gid_t *groups;
	int r = 0;

	if (identity->gid == group)
		return 1;
	/* The first call tells the size. */
	if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, NULL, &len) < 0 && errno != ERANGE)
		return -errno;
	if (!len)
		return 0;
	groups = malloc(len);
	if (!groups)
		return -ENOMEM;
	if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0)
		r = -errno;
	for (size_t i = 0; r == 0 && i < len / sizeof(gid_t); i++)
		r = groups[i] == group;
	free(groups);
	return r;
}

uid_t kvpd_overflow_uid(void)
{
	FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");
	unsigned uid = 65534;

	if (f) {
		if (fscanf(f, "%u", &uid) != 1)
			uid = 65534;
		fclose(f);
	}
	return (uid_t)uid;
}
