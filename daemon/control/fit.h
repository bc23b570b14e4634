/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a configuration that is well-formed fit this machine? What --check-config and the start ask alike, so
 * that neither accepts what the other refuses. A reload asks for the shares alone: what else is asked here is of
 * keys that only a restart changes, and the machine may have changed since the start. What depends on the process that
 * asks (its privileges and limits, free huge pages, sockets in use) is left to the start.
 */
#ifndef KVPD_FIT_H
#define KVPD_FIT_H

#include <stddef.h>

#include "daemon/config.h"
#include "daemon/memory.h"

/*
 * The user, the group of administrators, the NUMA node, as much memory as is asked for, devices' workers, rules and
 * host memory. -EINVAL:
 * `error` says "file:line: key: what is wrong and what would be right".
 */
int kvpd_fit_machine(const struct kvpd_config *config, const struct kvpd_memory *memory,
	char *error, size_t error_bytes);

/*
 * Every tenant's share, and the one that uids without a tenant get: is it enough for the catalog
 * that its limits ask for? -EINVAL: `error` names the least that is. -ENOMEM.
 */
int kvpd_fit_shares(const struct kvpd_config *config, char *error, size_t error_bytes);

#endif
