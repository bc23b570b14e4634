/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the account that the daemon runs under, and becoming it for good. */
#include "daemon/privilege.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/slice.h"

/* Descriptors: sessions hold three each, and what is queued for clients that are slow to read. */
#define WANT_FILES 262144u

static const struct passwd *look_up(const char *user, uid_t *ret_uid)
{
	char *end;
	unsigned long n = strtoul(user, &end, 10);

	if (*user >= '0' && *user <= '9' && !*end && n < UINT32_MAX) {
		*ret_uid = (uid_t)n;
		return getpwuid(*ret_uid);
	}
	*ret_uid = (uid_t)-1;
	return getpwnam(user);
}

int kvpd_account_find(const char *user, struct kvpd_account *ret_account)
{
	struct kvpd_account a = { .uid = geteuid(), .gid = getegid() };
	const struct passwd *pw;
	uid_t uid;

	if (!*user) {
		*ret_account = a;
		return 0;
	}
	pw = look_up(user, &uid);
	if (!pw && uid == (uid_t)-1) {
		kvpd_err("user '%s' does not exist: create it (systemd-sysusers kvpool.conf, or "
			 "useradd --system %s), or set `user` to one that exists",
			user, user);
		return -ENOENT;
	}
	a.uid = pw ? pw->pw_uid : uid;
	a.gid = pw ? pw->pw_gid : (gid_t)uid;
	if (pw)
		snprintf(a.name, sizeof(a.name), "%s", pw->pw_name);
	a.change = a.uid != geteuid();
	if (a.change && geteuid() != 0) {
		kvpd_err("cannot become user '%s' from uid %u: start kvpoold as root, or set "
			 "`user: \"\"` to stay what it is",
			user, (unsigned)geteuid());
		return -EPERM;
	}
	*ret_account = a;
	return 0;
}

static void raise_limit(int which, const char *name, rlim_t want, const char *effect)
{
	struct rlimit have, new = { want, want };

	if (getrlimit(which, &have) < 0 || have.rlim_cur >= want)
		return;
	if (have.rlim_max > want)
		new.rlim_max = have.rlim_max;
	if (setrlimit(which, &new) == 0)
		return;
	new = (struct rlimit){ have.rlim_max, have.rlim_max };
	if (setrlimit(which, &new) == 0 && have.rlim_max < want)
		kvpd_notice(
			"%s stays at %llu: %s", name, (unsigned long long)have.rlim_max, effect);
}

/*
 * The kernel enlarges a process's table of descriptors when a number does not fit, and where the
 * process has several threads the one that needs the number then waits for a grace period of RCU:
 * moments on a machine at rest, seconds where every processor is wanted. The ledger and the control
 * thread have no time for that. While there is one thread it costs nothing, and the table never
 * shrinks.
 */
static void size_table(void)
{
	struct rlimit have;
	int fd;

	if (getrlimit(RLIMIT_NOFILE, &have) < 0)
		return;
	if (have.rlim_cur > WANT_FILES)
		have.rlim_cur = WANT_FILES;
	fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, (int)have.rlim_cur - 1);
	if (fd < 0)
		kvpd_info("no room for %llu descriptors beforehand: %s",
			(unsigned long long)have.rlim_cur, strerror(errno));
	else
		close(fd);
}

/* RLIMIT_NICE is 20 less the niceness that may be reached, 1 to 40. */
static void allow_nicer(void)
{
	int want = 20 - (getpriority(PRIO_PROCESS, 0) - KVPD_NICER);
	struct rlimit have, new;

	want = want > 40 ? 40 : want;
	if (getrlimit(RLIMIT_NICE, &have) < 0 || have.rlim_cur >= (rlim_t)want)
		return;
	new = (struct rlimit){ (rlim_t)want,
		have.rlim_max > (rlim_t)want ? have.rlim_max : (rlim_t)want };
	/* Whoever needs it says so if it fails. */
	(void)setrlimit(RLIMIT_NICE, &new);
}

void kvpd_raise_limits(bool realtime)
{
	raise_limit(RLIMIT_NOFILE, "the limit of open files", WANT_FILES,
		"enough for a few thousand extents and sessions; raise LimitNOFILE for more");
	raise_limit(RLIMIT_MEMLOCK, "the limit of locked memory", RLIM_INFINITY,
		"what exceeds it is not locked; raise LimitMEMLOCK, or start with "
		"CAP_SYS_RESOURCE");
	allow_nicer();
	if (realtime)
		raise_limit(RLIMIT_RTPRIO, "the limit of real-time priority", KVPD_REALTIME,
			"the ledger stays in the ordinary class; raise LimitRTPRIO");
	size_table();
}

/* The bounding set could give them back through a set-uid program. */
static int shrink_bounding_set(void)
{
	for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			return -errno;
	return 0;
}

static int clear_capabilities(void)
{
	struct __user_cap_header_struct h = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { 0 };

	/* Kernels before 4.3 have no ambient set. */
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
		return -errno;
	return syscall(SYS_capset, &h, none) < 0 ? -errno : 0;
}

static int become(const struct kvpd_account *a)
{
	int r = *a->name ? initgroups(a->name, a->gid) : setgroups(1, &a->gid);

	if (r < 0 || setresgid(a->gid, a->gid, a->gid) < 0 || setresuid(a->uid, a->uid, a->uid) < 0)
		return -errno;
	/* It must not be possible to go back. */
	return a->uid != 0 && setresuid(0, 0, 0) == 0 ? -EPERM : 0;
}

int kvpd_drop_privileges(const struct kvpd_account *account)
{
	const char *step = "the bounding set";
	int r = 0;

	if (account->change) {
		/* Without CAP_SETPCAP, as in some containers, there is less to give up too. */
		r = shrink_bounding_set();
		if (r == -EPERM)
			r = 0;
		if (r == 0) {
			step = "user and groups";
			r = become(account);
		}
		if (r == 0) {
			step = "capabilities";
			r = clear_capabilities();
		}
	}
	if (r == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
		step = "no_new_privs";
		r = -errno;
	}
	if (r == 0 && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) {
		step = "dumpable";
		r = -errno;
	}
	if (r < 0)
		kvpd_err("could not give up privileges (%s): %s", step, strerror(-r));
	return r;
}
