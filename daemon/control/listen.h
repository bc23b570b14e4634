/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime directory: its lock, and the sockets in it. Control thread only. Errors are logged
 * here, with what to do.
 */
#ifndef KVPD_LISTEN_H
#define KVPD_LISTEN_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/config.h"

/*
 * Makes the directory if it is missing (0755, of this owner) and takes the lock in it: one kvpoold
 * per directory. The lock is the returned descriptor's. -EADDRINUSE: there is one already; -EPERM:
 * others could write there.
 */
int kvpd_runtime_dir(const char *path, uid_t uid, gid_t gid, int *ret_lock);

/*
 * A listening SOCK_SEQPACKET at dir/name. A socket that nobody listens on is replaced; one that
 * somebody does is not (-EADDRINUSE). mode: of the file, e.g. 0666. When root, it is given to uid.
 */
int kvpd_listen(const char *dir, const char *name, mode_t mode, uid_t uid, gid_t gid, int *ret_fd);

/*
 * A listening socket that systemd passed under this name (FileDescriptorName=), or -ENOENT.
 * kvpd_listen_passed_rest() closes those that nobody has taken, with a warning.
 */
int kvpd_listen_passed(const char *name, int *ret_fd);
void kvpd_listen_passed_rest(void);

/* Removes dir/name. The file is only gone if the directory is the daemon's. */
void kvpd_unlisten(const char *dir, const char *name);

#endif
