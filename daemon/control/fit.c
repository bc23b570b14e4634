/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a configuration fits this machine; see fit.h. */
#include "daemon/control/fit.h"

#include <errno.h>
#include <grp.h>
#include <numa.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/config_value.h"
#include "daemon/dataplane.h"
#include "shm/kvp_seg.h"

#define MIB       (UINT64_C(1) << 20)
#define HUGE_PAGE (2 * MIB)

/* A number needs no account. */
static bool is_number(const char *text)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	return *text >= '0' && *text <= '9' && !*end && n < UINT32_MAX;
}

static int fit_accounts(const struct kvpd_config *config, struct kvpd_complaint *to)
{
	const char *user = config->user, *group = config->admin_group;

	if (*user && !is_number(user) && !getpwnam(user))
		return kvpd_wrong(to, "user",
			"there is no user '%.80s': create it (systemd-sysusers kvpool.conf, or "
			"useradd --system %.80s), or name one that exists",
			user, user);
	if (*group && !is_number(group) && !getgrnam(group))
		return kvpd_wrong(to, "admin_group",
			"there is no group '%.80s': create it, or name one that exists", group);
	return 0;
}

static int fit_node(const struct kvpd_config *config, struct kvpd_complaint *to)
{
	int node = config->numa_node;

	if (node == KVPD_NODE_AUTO && !config->n_devices)
		return kvpd_wrong(to, "numa_node",
			"auto is the node of a device, and there are no `devices`; write any or a "
			"number");
	if (node < 0)
		return 0;
	if (numa_available() < 0)
		return kvpd_wrong(to, "numa_node", "this machine has no NUMA nodes; write any");
	if (node > numa_max_node() || !numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)node))
		return kvpd_wrong(to, "numa_node",
			"node %d does not exist here or has no memory; see numactl -H", node);
	return 0;
}

/* Pages that were set aside are no part of the memory that the machine or a group limits. */
static bool of_huge_pages(const struct kvpd_config *config)
{
	struct kvp_seg_hugeinfo huge;

	return config->hugepages != KVPD_NEVER && kvp_seg_hugeinfo(&huge) == 0 &&
	       huge.hugetlb_total * HUGE_PAGE >= config->memory;
}

static int fit_memory(
	const struct kvpd_config *config, const struct kvpd_memory *m, struct kvpd_complaint *to)
{
	const struct kvpd_group *g = kvpd_memory_lowest(m);
	uint64_t most = kvpd_memory_most(m) / MIB;
	char asked[KVPD_HUMAN_BYTES], has[KVPD_HUMAN_BYTES];

	if (of_huge_pages(config))
		return 0;
	if (config->hugepages == KVPD_REQUIRE)
		return kvpd_wrong(to, "hugepages",
			"require, but fewer pages of 2 MiB are set aside than `memory` needs; "
			"write %llu to /proc/sys/vm/nr_hugepages or lower `memory`",
			(unsigned long long)((config->memory + HUGE_PAGE - 1) / HUGE_PAGE));
	if (config->memory <= kvpd_memory_most(m))
		return 0;
	return kvpd_wrong(to, "memory",
		"%s is more than there is: %s%s has %s; at most %lluMiB can be had here, as the "
		"daemon and others need some too: lower `memory`%s",
		kvpd_human(config->memory, asked), g ? "the control group " : "the machine",
		g ? g->path : "", kvpd_human((g ? g->limit : m->total) / MIB * MIB, has),
		(unsigned long long)most, g ? ", or raise the group's limit" : "");
}

/* A worker that is named, and rules of things that go wrong, for what they are. */
static int fit_worker(const struct kvpd_device_entry *d, unsigned index, struct kvpd_complaint *to)
{
	struct stat st;
	char path[64];

	if (d->worker &&
		(stat(d->worker, &st) < 0 || !S_ISREG(st.st_mode) || !(st.st_mode & 0111))) {
		snprintf(path, sizeof(path), "devices.%u.worker", index);
		return kvpd_wrong(to, path,
			"there is no program '%.80s': name where kvpool-device is, or leave this "
			"out if it is installed",
			d->worker);
	}
	if (!strcmp(d->driver, "fault") && !kvpd_faults_check(d->faults)) {
		snprintf(path, sizeof(path), "devices.%u.faults", index);
		return kvpd_wrong(to, path,
			"'%.80s' is no list of OPERATION=WHAT[:NUMBER][@N[+]][#LIFE], parted by "
			"commas",
			d->faults);
	}
	return 0;
}

/* Devices of host memory have no more of it than `memory` may be. */
static int fit_devices(
	const struct kvpd_config *config, const struct kvpd_memory *m, struct kvpd_complaint *to)
{
	char path[64], asked[KVPD_HUMAN_BYTES];
	int r = 0;

	for (unsigned i = 0; r == 0 && i < config->n_devices; i++) {
		const struct kvpd_device_entry *d = &config->devices[i];

		r = fit_worker(d, i, to);
		if (r < 0 || !strcmp(d->driver, "cuda") || d->bytes <= kvpd_memory_most(m))
			continue;
		snprintf(path, sizeof(path), "devices.%u.bytes", i);
		r = kvpd_wrong(to, path,
			"%s of host memory is more than there is: at most %lluMiB can be had here, "
			"as the daemon and others need some too",
			kvpd_human(d->bytes, asked),
			(unsigned long long)(kvpd_memory_most(m) / MIB));
	}
	return r;
}

int kvpd_fit_machine(const struct kvpd_config *config, const struct kvpd_memory *memory,
	char *error, size_t error_bytes)
{
	struct kvpd_complaint to = kvpd_config_complaint(config, error, error_bytes);
	int r = fit_accounts(config, &to);

	if (r == 0)
		r = fit_node(config, &to);
	if (r == 0)
		r = fit_memory(config, memory, &to);
	return r < 0 ? r : fit_devices(config, memory, &to);
}

/* `where`: the tenant, or `defaults`. */
static int fit_share(const struct kvpd_config *config, const char *where,
	const struct kvpd_limits *limits, struct kvpd_complaint *to)
{
	char path[64], has[KVPD_HUMAN_BYTES], needs[KVPD_HUMAN_BYTES];
	uint64_t least = 0;
	int r = kvpd_limits_check(config, limits, &least);

	if (r == -EINVAL)
		return kvpd_wrong(to, where,
			"no catalog can be made for max_blocks %u, recipe_blocks %u and "
			"recipe_tokens %llu",
			limits->max_blocks, limits->recipe_blocks,
			(unsigned long long)limits->recipe_tokens);
	if (r != -ENOSPC)
		return r;
	snprintf(path, sizeof(path), "%s.share", where);
	return kvpd_wrong(to, path,
		"%s%s is too little for the catalog that the limits ask for, and some blocks; with "
		"these limits at least %s is needed%s",
		kvpd_human(limits->share, has),
		limits == &config->defaults && limits->share == config->memory / 4
			? " (a quarter of `memory`)"
			: "",
		kvpd_human(least, needs),
		limits->max_blocks || limits->recipe_blocks
			? ", or lower max_blocks or recipe_blocks"
			: "");
}

int kvpd_fit_shares(const struct kvpd_config *config, char *error, size_t error_bytes)
{
	struct kvpd_complaint to = kvpd_config_complaint(config, error, error_bytes);
	char where[32];
	int r = 0;

	if (config->unlisted_uids)
		r = fit_share(config, "defaults", &config->defaults, &to);
	for (unsigned i = 0; r == 0 && i < config->n_tenants; i++) {
		snprintf(where, sizeof(where), "tenants.%u", i);
		r = fit_share(config, where, &config->tenants[i].limits, &to);
	}
	if (r < 0 && r != -EINVAL)
		snprintf(error, error_bytes, "%s: %s", to.name, strerror(-r));
	return r;
}
