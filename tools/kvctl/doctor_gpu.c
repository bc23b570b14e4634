/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl doctor on GPUs: the driver, how each device stands, and who holds its memory. What neither the
 * driver's files nor NVML say is "unknown"; nothing here makes a context.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/kvp_nvml.h"
#include "tools/kvctl/doctor.h"

#define TOPIC     "GPU"
#define HOLDERS   64u
#define NVML_NONE (-1) /* no such function */

/* ---- the driver ----------------------------------------------------------------------------- */

static void driver(struct doctor *d, const struct kvp_nvml *n)
{
	char version[NVML_NAME_BYTES] = "", line[256];
	int cuda = 0;

	if (n->library && n->nvmlSystemGetDriverVersion &&
		n->nvmlSystemGetDriverVersion(version, sizeof(version)) == NVML_OK) {
		if (!n->nvmlSystemGetCudaDriverVersion_v2 ||
			n->nvmlSystemGetCudaDriverVersion_v2(&cuda) != NVML_OK)
			cuda = 0;
		if (cuda)
			kvctl_say(d, GOOD, TOPIC, "driver %s, CUDA %d.%d", version, cuda / 1000,
				cuda % 1000 / 10);
		else
			kvctl_say(d, GOOD, TOPIC, "driver %s, CUDA unknown", version);
	} else if (kvctl_read_line("/proc/driver/nvidia/version", line, sizeof(line)))
		kvctl_say(d, GOOD, TOPIC, "%s", line);
	else
		kvctl_say(d, NOTE, TOPIC, "driver version unknown");
	if (!n->library)
		kvctl_say(d, NOTE, TOPIC,
			"libnvidia-ml.so.1 is not there or does not reach the driver: compute "
			"mode, "
			"persistence, MIG and who holds memory are unknown");
}

static void confidential(struct doctor *d, const struct kvp_nvml *n)
{
	struct nvml_confidential c = { 0 };

	if (!n->library)
		return;
	if (!n->nvmlSystemGetConfComputeState || n->nvmlSystemGetConfComputeState(&c) != NVML_OK)
		kvctl_say(d, GOOD, TOPIC, "confidential computing unknown");
	else if (c.on)
		kvctl_say(d, PROBLEM, TOPIC,
			"confidential computing is on: neither pinned DRAM nor shared device "
			"memory "
			"works under it");
	else
		kvctl_say(d, GOOD, TOPIC, "confidential computing is off");
}

static void nodes(struct doctor *d)
{
	static const char *const needed[] = { "/dev/nvidiactl", "/dev/nvidia-uvm" };

	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		if (access(needed[i], F_OK) < 0)
			kvctl_say(d, PROBLEM, TOPIC,
				"there is no %s: run nvidia-modprobe -u -c=0, or start "
				"nvidia-persistenced",
				needed[i]);
}

/* True: there is a server. */
static bool mps(struct doctor *d)
{
	const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char path[512];

	snprintf(path, sizeof(path), "%s/control", folder ? folder : "/tmp/nvidia-mps");
	if (access(path, F_OK) < 0) {
		kvctl_say(d, GOOD, TOPIC, "MPS does not run at %s", path);
		return false;
	}
	kvctl_say(d, NOTE, TOPIC, "MPS runs (%s): workers stay out of it, but with `mps: join`",
		path);
	return true;
}

/* ---- who has the driver's files open --------------------------------------------------------- */

/* 1: a device's memory may be this process's; 0: no; negative: it may not be looked into. */
static int has_device(int proc, const char *pid)
{
	char path[300], to[64];
	struct dirent *e;
	int fd, found = 0;
	DIR *fds;

	snprintf(path, sizeof(path), "%s/fd", pid);
	fd = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == EACCES || errno == EPERM ? -1 : 0;
	fds = fdopendir(fd);
	if (!fds) {
		close(fd);
		return 0;
	}
	while (!found && (e = readdir(fds))) {
		ssize_t n = readlinkat(fd, e->d_name, to, sizeof(to) - 1);

		to[n < 0 ? 0 : n] = 0;
		/* /dev/nvidiactl alone holds no memory. */
		found = !strncmp(to, "/dev/nvidia", 11) && strncmp(to, "/dev/nvidiactl", 14) != 0;
	}
	closedir(fds);
	return found;
}

/*
 * A child that was forked by a process with a context keeps its memory, and the driver may name neither: whoever has a
 * device's file open is said.
 */
static void openers(struct doctor *d)
{
	char text[400] = "", path[300], name[64];
	unsigned hidden = 0;
	struct dirent *e;
	DIR *proc = opendir("/proc");

	while (proc && (e = readdir(proc))) {
		const size_t at = strlen(text);
		int has = isdigit((unsigned char)e->d_name[0]) ? has_device(dirfd(proc), e->d_name)
							       : 0;

		hidden += has < 0;
		if (has <= 0)
			continue;
		snprintf(path, sizeof(path), "/proc/%s/comm", e->d_name);
		snprintf(text + at, sizeof(text) - at, "%s%s %s", at ? ", " : "",
			kvctl_read_line(path, name, sizeof(name)) ? name : "unknown", e->d_name);
	}
	if (proc)
		closedir(proc);
	if (hidden)
		kvctl_say(d, GOOD, TOPIC,
			"device files are open in %s (%u processes cannot be looked into)",
			*text ? text : "no process", hidden);
	else
		kvctl_say(
			d, GOOD, TOPIC, "device files are open in %s", *text ? text : "no process");
}

/* ---- a device ------------------------------------------------------------------------------- */

static const char *process_name(unsigned int pid, char *name, size_t bytes)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	return kvctl_read_line(path, name, bytes) ? name : "unknown";
}

static void append(char *text, size_t bytes, const char *format, unsigned int pid, const char *name,
	double mib)
{
	size_t at = strlen(text);

	snprintf(text + at, bytes - at, format, at ? ", " : "", name, pid, mib);
}

/* "python 4711 (1024 MiB), ..." */
static void holders(
	struct doctor *d, const struct kvp_nvml *n, struct nvmlDevice_st *device, const char *which)
{
	struct nvml_process p[HOLDERS];
	struct nvml_memory m;
	unsigned int count = HOLDERS;
	char text[400] = "", name[64];
	int r;

	if (!n->nvmlDeviceGetMemoryInfo || n->nvmlDeviceGetMemoryInfo(device, &m) != NVML_OK) {
		kvctl_say(d, NOTE, TOPIC, "%s: who holds memory is unknown", which);
		return;
	}
	r = n->nvmlDeviceGetComputeRunningProcesses_v3
		    ? n->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, p)
		    : NVML_NONE;
	for (unsigned int i = 0; r == NVML_OK && i < count; i++)
		append(text, sizeof(text),
			p[i].used == NVML_NO_FIGURE ? "%s%s %u (unknown)" : "%s%s %u (%.0f MiB)",
			p[i].pid, process_name(p[i].pid, name, sizeof(name)),
			(double)p[i].used / (1 << 20));
	kvctl_say(d, GOOD, TOPIC, "%s: %.0f of %.0f MiB free; memory is held by %s", which,
		(double)m.free / (1 << 20), (double)m.total / (1 << 20),
		r == NVML_TOO_SMALL ? "more than 64 processes"
		: r != NVML_OK      ? "unknown processes"
		: *text             ? text
				    : "no process that computes");
}

static void modes(struct doctor *d, const struct kvp_nvml *n, struct nvmlDevice_st *device,
	const char *which, bool served)
{
	unsigned int mode, on, now, later;

	if (!n->nvmlDeviceGetComputeMode || n->nvmlDeviceGetComputeMode(device, &mode) != NVML_OK)
		kvctl_say(d, NOTE, TOPIC, "%s: compute mode unknown", which);
	else if (mode == NVML_EXCLUSIVE && served)
		kvctl_say(d, NOTE, TOPIC,
			"%s: compute mode exclusive process: a worker and engines can both use it "
			"as "
			"clients of MPS alone (`mps: join`); else run nvidia-smi -c DEFAULT",
			which);
	else if (mode == NVML_EXCLUSIVE || mode == NVML_PROHIBITED)
		kvctl_say(d, PROBLEM, TOPIC,
			"%s: compute mode %s: a worker and engines cannot both use it; run "
			"nvidia-smi -c DEFAULT",
			which, mode == NVML_PROHIBITED ? "prohibited" : "exclusive process");
	else
		kvctl_say(d, GOOD, TOPIC, "%s: compute mode default", which);
	if (!n->nvmlDeviceGetPersistenceMode ||
		n->nvmlDeviceGetPersistenceMode(device, &on) != NVML_OK)
		kvctl_say(d, NOTE, TOPIC, "%s: persistence unknown", which);
	else
		kvctl_say(d, on ? GOOD : NOTE, TOPIC, "%s: persistence %s", which,
			on ? "on"
			   : "off: the device is set up anew whenever its last user goes; start "
			     "nvidia-persistenced");
	if (!n->nvmlDeviceGetMigMode || n->nvmlDeviceGetMigMode(device, &now, &later) != NVML_OK)
		kvctl_say(d, GOOD, TOPIC, "%s: MIG unknown, as on devices without it", which);
	else
		kvctl_say(d, now ? NOTE : GOOD, TOPIC, "%s: MIG %s", which,
			now ? "on: each instance is a device of its own, by its MIG- UUID" : "off");
}

static void device(struct doctor *d, const struct kvp_nvml *n, unsigned int index, bool served)
{
	char uuid[NVML_NAME_BYTES] = "unknown", name[NVML_NAME_BYTES] = "unknown", which[224];
	struct nvmlDevice_st *dev;

	if (!n->nvmlDeviceGetHandleByIndex_v2 ||
		n->nvmlDeviceGetHandleByIndex_v2(index, &dev) != NVML_OK) {
		kvctl_say(d, NOTE, TOPIC, "%u: unknown: NVML does not open it", index);
		return;
	}
	if (n->nvmlDeviceGetName)
		(void)n->nvmlDeviceGetName(dev, name, sizeof(name));
	if (n->nvmlDeviceGetUUID)
		(void)n->nvmlDeviceGetUUID(dev, uuid, sizeof(uuid));
	snprintf(which, sizeof(which), "%u (%s, %s)", index, name, uuid);
	modes(d, n, dev, which, served);
	holders(d, n, dev, which);
}

/* ---- the daemon's --------------------------------------------------------------------------- */

static void configured(struct doctor *d, bool *ret_any)
{
	const json_t *row;
	size_t i;

	*ret_any = false;
	json_array_foreach(d->devices, i, row) {
		const double owed = kvctl_number(row, "owed_bytes");
		const char *name = kvctl_text(row, "name"), *state = kvctl_text(row, "state");

		*ret_any = *ret_any || !strcmp(kvctl_text(row, "driver"), "cuda");
		if (!strcmp(state, "down"))
			kvctl_say(d, PROBLEM, "devices", "%s is down: %s", name,
				kvctl_text(row, "error"));
		else if (owed > 0)
			kvctl_say(d, PROBLEM, "devices",
				"%s: %.0f MiB that should be free are held by others or by "
				"processes that are dead but not gone; end them, or lower `bytes`",
				name, owed / (1 << 20));
		else
			kvctl_say(d, GOOD, "devices", "%s is %s", name, state);
	}
}

void kvctl_doctor_gpus(struct doctor *d)
{
	struct kvp_nvml n = { 0 };
	unsigned int count = 0;
	bool any, served;

	configured(d, &any);
	(void)kvp_nvml_open(&n);
	if (!n.library && access("/dev/nvidiactl", F_OK) < 0) {
		kvctl_say(d, any ? PROBLEM : GOOD, TOPIC, "no NVIDIA device; %s",
			any ? "devices of the driver cuda cannot come up"
			    : "kvpoold does not need one");
		return;
	}
	driver(d, &n);
	if (any)
		nodes(d);
	served = mps(d);
	confidential(d, &n);
	openers(d);
	if (n.library && n.nvmlDeviceGetCount_v2 && n.nvmlDeviceGetCount_v2(&count) == NVML_OK)
		for (unsigned int i = 0; i < count; i++)
			device(d, &n, i, served);
	kvp_nvml_close(&n);
}
