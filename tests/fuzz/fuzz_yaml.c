/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of kvpoold: refused in words, or within every bound. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "shm/kvp_abi.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int good)
{
	if (!good)
		abort();
}

static void check_limits(const struct kvpd_limits *l, const struct kvpd_config *c)
{
	must(l->share >= 1 << 20 && l->share <= c->memory && l->arena <= l->share);
	must((uint64_t)l->max_blocks + l->recipe_blocks <= KVP_MAX_BLOCKS);
	must(l->max_sessions >= 1 && l->max_sessions <= KVPD_MAX_SESSIONS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvpd_config *c = NULL;
	uint64_t shares = 0;
	char error[512] = "";
	int r;

	r = kvpd_config_parse(
		"f", (const char *)data, size, UINT64_C(1) << 30, error, sizeof(error), &c);
	if (r < 0) {
		must(!c && !strncmp(error, "f:", 2));
		return 0;
	}
	must(c->runtime_dir[0] == '/' && !strchr(c->socket, '/') && c->socket[0]);
	must(c->memory >= 16 << 20 && !(c->extent % 4096) && c->extent);
	must(c->numa_node >= -1 && c->max_sessions >= 1 && c->n_tenants <= KVPD_MAX_TENANTS);
	check_limits(&c->defaults, c);
	for (unsigned i = 0; i < c->n_tenants; i++) {
		must(c->tenants[i].n_uids || c->tenants[i].socket);
		check_limits(&c->tenants[i].limits, c);
		shares += c->tenants[i].limits.share;
	}
	must(shares <= c->memory);
	kvpd_config_free(c);
	return 0;
}
