/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl check: what is wrong with a tenant's lists, counts, indexes and contents. */
#ifndef KVPD_CHECK_H
#define KVPD_CHECK_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct kvpd_tenant;

/* Appends a text for everything that is wrong, at most `max`; returns how many things are. */
uint64_t kvpd_check_tenant(struct kvpd_tenant *t, json_t *problems, size_t max);
/*
 * Likewise for contents against checksums, from *block on until about `bytes` were read or all
 * blocks were seen; *block is where to go on (layout.max_blocks: nowhere).
 */
uint64_t kvpd_check_payloads(struct kvpd_tenant *t, uint32_t *block, uint64_t bytes,
	json_t *problems, size_t max, uint64_t *ret_bytes);

#endif
