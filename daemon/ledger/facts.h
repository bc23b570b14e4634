/* SPDX-License-Identifier: Apache-2.0 */
/* What an administrator is told of a block: read on the ledger thread, written out on any. */
#ifndef KVPD_FACTS_H
#define KVPD_FACTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_types.h"

struct kvpd_tenant;

struct kvpd_facts {
	struct kvp_key key;
	uint64_t where; /* 0: no payload */
	uint64_t offset, checksum;
	struct {
		uint64_t where; /* 0: no payload on a device */
		uint64_t offset, checksum;
		uint32_t device;
	} on;
	uint32_t tenant, block;
	uint32_t state, shape;
	uint32_t depth, parent, children;
	uint32_t hits, touched_s, serial;
	bool pinned;
};

/* "live" and so on; NULL beyond the last. */
const char *kvpd_state_name(uint32_t state);
void kvpd_facts_read(const struct kvpd_tenant *t, uint32_t block, struct kvpd_facts *ret);
json_t *kvpd_facts_json(const struct kvpd_facts *f, const char *tenant);

#endif
