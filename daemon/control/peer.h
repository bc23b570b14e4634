/* SPDX-License-Identifier: Apache-2.0 */
/* The process at the other end of a connection, as the kernel says. Any thread; negative errno. */
#ifndef KVPD_PEER_H
#define KVPD_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kvpd_identity {
	pid_t pid; /* in the daemon's pid namespace; 0: not visible in it */
	uid_t uid;
	gid_t gid;
};

/* Of the process that connected. */
int kvpd_peer_identity(int sock, struct kvpd_identity *ret_identity);

/*
 * Its pidfd, straight from the socket (Linux 6.5): cannot be another process. -EOPNOTSUPP on older
 * kernels; -ESRCH: the process is gone already.
 */
int kvpd_peer_pidfd(int sock, int *ret_pidfd);

/*
 * By number. The number may belong to another process by now: the caller has the peer send its
 * credentials afterwards, and then asks kvpd_pidfd_alive(): a process that is alive after they came
 * from its number is the one that sent them.
 */
int kvpd_peer_pidfd_by_number(pid_t pid, int *ret_pidfd);
bool kvpd_pidfd_alive(int pidfd);

/* Is this peer in the group, by its primary or a supplementary one? Negative errno if unknown. */
int kvpd_peer_in_group(int sock, const struct kvpd_identity *identity, gid_t group);

/* The uid that stands for all which a user namespace does not map. */
uid_t kvpd_overflow_uid(void);

#endif
