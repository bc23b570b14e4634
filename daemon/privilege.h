/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From root to the user that kvpoold runs as. Called by main() while there is one thread. Errors
 * are logged here, with what to do.
 */
#ifndef KVPD_PRIVILEGE_H
#define KVPD_PRIVILEGE_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/config.h"

struct kvpd_account {
	uid_t uid;
	gid_t gid;
	bool change;   /* not the user that runs now */
	char name[64]; /* for initgroups(); "" if the uid has no name */
};

/*
 * The account of `user`. "" is the user that runs now. A number without an account gets the group
 * of the same number. -ENOENT: no such user; -EPERM: it is another one and this process may not
 * become it.
 */
int kvpd_account_find(const char *user, struct kvpd_account *ret_account);

/*
 * Descriptors for every session, and room for them in the process's table; memory to lock. A limit
 * that cannot be raised is only a notice. A thread may become KVPD_NICER levels less nice than the
 * process is now, if root says so (slice.h); `realtime`: or of the class that goes ahead of all niceness.
 */
#define KVPD_NICER 10
void kvpd_raise_limits(bool realtime);

/*
 * Becomes the account, for good: groups, uid, no capabilities, no way to new ones by exec, no core
 * files and no ptrace by others of the same uid (their memory would show prompts).
 */
int kvpd_drop_privileges(const struct kvpd_account *account);

#endif
