/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl doctor: looks at the machine, and at the daemon if there is one, and says what will not
 * work, what will be slow, and what to do. Changes nothing.
 */
#include "tools/kvctl/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "libclient/kvpool_admin.h"
#include "shm/kvp_seg.h"

static const char *const finding_names[] = { "good", "note", "problem" };

void kvctl_say(struct doctor *d, enum finding f, const char *topic, const char *format, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	d->problems += f == PROBLEM;
	json_array_append_new(d->findings, json_pack("{s:s, s:s, s:s}", "topic", topic, "finding",
						   finding_names[f], "text", text));
}

bool kvctl_read_line(const char *path, char *line, size_t bytes)
{
	FILE *f = fopen(path, "re");
	bool got = f && fgets(line, (int)bytes, f);

	if (f)
		fclose(f);
	if (got)
		line[strcspn(line, "\n")] = 0;
	return got;
}

/* The number behind "Name:" in a file like /proc/meminfo. */
static bool read_field(const char *path, const char *name, uint64_t *ret_value)
{
	FILE *f = fopen(path, "re");
	size_t n = strlen(name);
	bool got = false;
	char line[256];

	while (f && !got && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, n) && line[n] == ':')
			got = sscanf(line + n + 1, "%" SCNu64, ret_value) == 1;
	if (f)
		fclose(f);
	return got;
}

/* ---- the machine --------------------------------------------------------------------------- */

static void kernel(struct doctor *d)
{
	unsigned major = 0, minor = 0;
	struct utsname u;

	if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &major, &minor) != 2) {
		kvctl_say(d, NOTE, "kernel", "its version is unknown");
		return;
	}
	if (major < 5 || (major == 5 && minor < 4))
		kvctl_say(d, PROBLEM, "kernel",
			"Linux %s: kvpoold needs 5.4 or newer (sealed memfds, pidfds)", u.release);
	else if (major < 6 || (major == 6 && minor < 5))
		kvctl_say(d, GOOD, "kernel",
			"Linux %s; pidfds of clients come by a longer way than from 6.5 on",
			u.release);
	else
		kvctl_say(d, GOOD, "kernel", "Linux %s", u.release);
}

/* Tries the seals that protect a tenant's memory from its readers. */
static void seals(struct doctor *d)
{
	const uint64_t bytes = 4096;
	kvp_autoclose int fd = -1;
	void *p;
	int r;

	r = kvp_seg_create("kvctl-doctor", bytes, 0, &fd);
	if (r == 0)
		r = kvp_seg_seal(fd, KVP_SEALS_CATALOG & ~(unsigned)KVP_SEALS_FIXED);
	if (r < 0) {
		kvctl_say(d, PROBLEM, "seals", "memfds cannot be sealed here: %s", strerror(-r));
		return;
	}
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED) {
		munmap(p, bytes);
		kvctl_say(d, PROBLEM, "seals",
			"a memfd sealed against writing was mapped writable: this kernel does not "
			"protect shared memory");
		return;
	}
	kvctl_say(d, GOOD, "seals", "memfds sealed against writing cannot be mapped writable");
}

static void huge_pages(struct doctor *d)
{
	struct kvp_seg_hugeinfo info;
	int r = kvp_seg_hugeinfo(&info);

	if (r < 0) {
		kvctl_say(d, NOTE, "huge pages", "unknown: %s", strerror(-r));
		return;
	}
	if (info.hugetlb_total)
		kvctl_say(d, GOOD, "huge pages",
			"%" PRIu64 " of %" PRIu64 " pages of 2 MiB are free (hugetlb)",
			info.hugetlb_free, info.hugetlb_total);
	else
		kvctl_say(d, NOTE, "huge pages",
			"no hugetlb pages: matching large caches is slower; sysctl "
			"vm.nr_hugepages=N sets aside N times 2 MiB, as many as `memory` needs");
	if (!strcmp(info.shmem_thp, "never") || !strcmp(info.shmem_thp, "none") ||
		!strcmp(info.shmem_thp, "deny"))
		kvctl_say(d, info.hugetlb_free ? GOOD : NOTE, "THP for shmem",
			"is '%s'; echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled "
			"gives pools huge pages without setting any aside",
			info.shmem_thp);
	else
		kvctl_say(d, GOOD, "THP for shmem", "is '%s'", info.shmem_thp);
}

static void numa(struct doctor *d)
{
	char nodes[64];

	if (!kvctl_read_line("/sys/devices/system/node/online", nodes, sizeof(nodes)))
		kvctl_say(d, GOOD, "NUMA", "this kernel has no NUMA");
	else if (!strcmp(nodes, "0"))
		kvctl_say(d, GOOD, "NUMA", "one node");
	else
		kvctl_say(d, NOTE, "NUMA",
			"nodes %s: `numa_node` should be the one that the GPU (or the engines) "
			"hang on",
			nodes);
}

static void memory(struct doctor *d)
{
	uint64_t available_kib = 0;
	double wanted = kvctl_number(d->status, "memory_bytes");
	double charged = kvctl_number(d->status, "charged_bytes");
	char a[32], b[32];

	if (!read_field("/proc/meminfo", "MemAvailable", &available_kib)) {
		kvctl_say(d, NOTE, "memory", "how much is available is unknown");
		return;
	}
	kvctl_bytes((double)available_kib * 1024, a);
	if (wanted - charged > (double)available_kib * 1024)
		kvctl_say(d, PROBLEM, "memory",
			"%s is available, but kvpoold may still take %s: lower `memory`", a,
			kvctl_bytes(wanted - charged, b));
	else
		kvctl_say(d, GOOD, "memory", "%s is available", a);
}

/* As the daemon sees it: whoever asks may be in another control group, or may not look. */
static void cgroup(struct doctor *d)
{
	const json_t *memory = json_object_get(json_object_get(d->status, "daemon"), "memory");
	const json_t *group = json_object_get(memory, "group");
	double wanted = kvctl_number(d->status, "memory_bytes");
	bool huge = !strncmp(kvctl_text(d->status, "pages"), "hugetlb", 7);
	char limit[32], most[32], left[32];

	if (!d->pid)
		return;
	if (!group) {
		kvctl_say(d, GOOD, "cgroup", "no control group limits the daemon's memory");
		return;
	}
	kvctl_bytes(kvctl_number(group, "limit_bytes"), limit);
	kvctl_bytes(kvctl_number(group, "left_bytes"), left);
	if (!huge && wanted > kvctl_number(memory, "most_bytes"))
		kvctl_say(d, PROBLEM, "cgroup",
			"%s allows %s, too little for `memory`, which may be %s at most: lower it, "
			"or "
			"raise the limit (MemoryMax=), else the kernel may kill the daemon",
			kvctl_text(group, "path"), limit,
			kvctl_bytes(kvctl_number(memory, "most_bytes"), most));
	else
		kvctl_say(d, GOOD, "cgroup",
			"%s allows %s, of which %s are left: enough for `memory`",
			kvctl_text(group, "path"), limit, left);
	if (!huge && kvctl_number(memory, "missing_bytes") > 0)
		kvctl_say(d, PROBLEM, "cgroup",
			"%s are missing now: tenants give memory back; see who else takes it",
			kvctl_bytes(kvctl_number(memory, "missing_bytes"), most));
}

/* The soft limit of a process; false if it cannot be read. UINT64_MAX: unlimited. */
static bool limit_of(pid_t pid, const char *name, uint64_t *ret_limit)
{
	char path[64], line[256], word[32];
	bool got = false;
	FILE *f;

	if (pid)
		snprintf(path, sizeof(path), "/proc/%d/limits", (int)pid);
	else
		snprintf(path, sizeof(path), "/proc/self/limits");
	f = fopen(path, "re");
	while (f && !got && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)) &&
			sscanf(line + strlen(name), "%31s", word) == 1) {
			*ret_limit =
				strcmp(word, "unlimited") ? strtoull(word, NULL, 10) : UINT64_MAX;
			got = true;
		}
	if (f)
		fclose(f);
	return got;
}

static void limits(struct doctor *d)
{
	double wanted = kvctl_number(d->status, "memory_bytes");
	const char *whose = d->pid ? "the daemon" : "a process started here";
	uint64_t n;
	char a[32];

	if (!limit_of(d->pid, "Max locked memory", &n))
		kvctl_say(d, NOTE, "memlock", "the daemon's limits cannot be read by this user");
	else if (n == UINT64_MAX)
		kvctl_say(d, GOOD, "memlock", "%s may lock as much memory as there is", whose);
	else if (d->pid && (double)n >= wanted)
		kvctl_say(d, GOOD, "memlock", "the daemon may lock %s", kvctl_bytes((double)n, a));
	else
		kvctl_say(d, NOTE, "memlock",
			"%s may lock %s: pools can be swapped out, and `mlock: require` fails; set "
			"LimitMEMLOCK=infinity in its unit",
			whose, kvctl_bytes((double)n, a));
	if (limit_of(d->pid, "Max open files", &n))
		kvctl_say(d, d->pid && n < 4096 ? PROBLEM : GOOD, "open files",
			n == UINT64_MAX ? "%s has no limit" : "%s may have %" PRIu64 " open files",
			whose, n);
}

/* ---- the daemon ---------------------------------------------------------------------------- */

static void find_daemon(struct doctor *d, struct kvctl *ctl)
{
	const struct passwd *pw = getpwnam("kvpool");
	const json_t *daemon;
	json_t *answer = NULL;
	int r = kvctl_try(ctl, json_pack("{s:s}", "verb", "status"), &answer);

	if (r < 0) {
		json_decref(answer);
		if (pw) {
			d->uid = pw->pw_uid;
			d->uid_known = true;
		}
		kvctl_say(d, NOTE, "daemon",
			"none answers this user: what follows is about the machine alone");
		return;
	}
	d->status = answer;
	answer = NULL;
	if (kvctl_try(ctl, json_pack("{s:s}", "verb", "devices"), &answer) == 0)
		d->devices = json_incref(json_object_get(answer, "devices"));
	json_decref(answer);
	daemon = json_object_get(d->status, "daemon");
	d->pid = (pid_t)kvctl_number(daemon, "pid");
	d->uid = (uid_t)kvctl_number(daemon, "uid");
	d->uid_known = true;
	if (strcmp(kvctl_text(daemon, "version"), kvp_version()))
		kvctl_say(d, PROBLEM, "daemon",
			"is release %s, this kvctl %s: install the same of both",
			kvctl_text(daemon, "version"), kvp_version());
	else
		kvctl_say(d, GOOD, "daemon", "kvpoold %s, process %d", kvp_version(), (int)d->pid);
}

/*
 * Is it a worker that the daemon has started for a device? Its parent says so, which no process chooses, and its
 * program: by the name of the file, or, where this user may not see that, by the process's.
 */
static bool is_worker(const struct doctor *d, pid_t pid)
{
	static const char program[] = "kvpool-device";
	char path[64], name[300];
	uint64_t parent = 0;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	if (!d->pid || !read_field(path, "PPid", &parent) || parent != (uint64_t)d->pid)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
	n = readlink(path, name, sizeof(name) - 1);
	if (n > 0) {
		const char *last;

		name[n] = 0;
		last = strrchr(name, '/');
		/* " (deleted)" may follow: a newer one has been installed. */
		return last && !strncmp(last + 1, program, strlen(program));
	}
	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	return kvctl_read_line(path, name, sizeof(name)) && !strcmp(name, program);
}

/*
 * A process with the daemon's uid can open its memfds through /proc, writable: seals keep out
 * writers of the catalog, but not of the extents that the daemon writes itself.
 */
static void same_uid(struct doctor *d)
{
	char names[256] = "", path[300], comm[64];
	unsigned n = 0;
	struct dirent *e;
	DIR *proc;

	if (!d->uid_known) {
		kvctl_say(d, NOTE, "same uid",
			"there is no user 'kvpool': let systemd-sysusers make it, so that no other "
			"program runs as the daemon's user");
		return;
	}
	proc = opendir("/proc");
	while (proc && (e = readdir(proc))) {
		struct stat st;
		pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
		size_t used = strlen(names);

		snprintf(path, sizeof(path), "/proc/%s/task", e->d_name);
		/* A directory that everybody may read shows its uid, also of processes that are not dumpable. */
		if (pid <= 0 || pid == d->pid || pid == getpid() || stat(path, &st) < 0 ||
			st.st_uid != d->uid || is_worker(d, pid))
			continue;
		n++;
		snprintf(path, sizeof(path), "/proc/%s/comm", e->d_name);
		if (kvctl_read_line(path, comm, sizeof(comm)) &&
			used + strlen(comm) + 32 < sizeof(names))
			snprintf(names + used, sizeof(names) - used, "%s%s (%d)", used ? ", " : "",
				comm, (int)pid);
	}
	if (proc)
		closedir(proc);
	if (!n)
		kvctl_say(d, GOOD, "same uid", "no other process runs as uid %u, the daemon's",
			(unsigned)d->uid);
	else
		kvctl_say(d, d->pid ? PROBLEM : NOTE, "same uid",
			"%u process(es) run as uid %u, the daemon's, and could write all cached "
			"memory: %s. Give kvpoold a user of its own",
			n, (unsigned)d->uid, names);
}

static void refusals(struct doctor *d)
{
	const json_t *daemon = json_object_get(d->status, "daemon");
	double refused = kvctl_number(daemon, "refused_total");
	double broken = kvctl_number(daemon, "protocol_errors_total");

	if (!d->pid)
		return;
	if (refused > 0 || broken > 0)
		kvctl_say(d, NOTE, "clients",
			"%.0f connections were refused and %.0f broke the protocol since the "
			"start; "
			"the daemon's log says why",
			refused, broken);
	else
		kvctl_say(d, GOOD, "clients", "none was refused since the start");
}

/* What one client may have to wait for another, or for an administrator's request. */
#define LEDGER_FAR_MS 20.0

static void ledger(struct doctor *d)
{
	const json_t *ledger = json_object_get(d->status, "ledger"), *k;
	const char *name, *which = "none";
	double worst = -1, ms;

	if (!d->pid || !ledger)
		return;
	json_object_foreach((json_t *)json_object_get(ledger, "portions"), name, k) {
		double seconds = kvctl_number(k, "recent_seconds");

		if (seconds <= worst || !strcmp(name, "round"))
			continue;
		worst = seconds;
		which = name;
	}
	ms = kvctl_number(json_object_get(json_object_get(ledger, "portions"), "round"),
		     "recent_seconds") *
	     1000;
	if (ms < LEDGER_FAR_MS)
		kvctl_say(d, GOOD, "ledger",
			"no client waited for more than %.1f ms of others' work", ms);
	else
		kvctl_say(d, NOTE, "ledger",
			"clients waited for up to %.0f ms of others' work in the last minute or "
			"two, of "
			"which one %s took %.0f ms instead of %.2f: all processors were taken by "
			"other programs, or it is a defect",
			ms, which, worst * 1000, kvctl_number(ledger, "slice_seconds") * 1000);
}

/* -------------------------------------------------------------------------------------------- */

static void print(struct kvctl *ctl, const struct doctor *d)
{
	const json_t *f;
	json_t *o;
	size_t i;

	if (ctl->json) {
		o = json_pack("{s:b, s:i, s:O}", "healthy", !d->problems, "problems",
			(int)d->problems, "findings", d->findings);
		kvctl_print_json(o);
		json_decref(o);
		return;
	}
	json_array_foreach(d->findings, i, f)
		printf("%-8s %-14s %s\n", kvctl_text(f, "finding"), kvctl_text(f, "topic"),
			kvctl_text(f, "text"));
}

int kvctl_doctor(struct kvctl *ctl, const struct kvctl_command *command, const json_t *given)
{
	struct doctor d = { 0 };

	(void)command;
	(void)given;
	d.findings = json_array();
	find_daemon(&d, ctl);
	kernel(&d);
	seals(&d);
	huge_pages(&d);
	memory(&d);
	cgroup(&d);
	limits(&d);
	numa(&d);
	same_uid(&d);
	refusals(&d);
	ledger(&d);
	kvctl_doctor_gpus(&d);
	print(ctl, &d);
	json_decref(d.findings);
	json_decref(d.status);
	json_decref(d.devices);
	return d.problems ? KVCTL_BAD : KVCTL_OK;
}
