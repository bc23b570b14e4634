/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Administration of kvpoold: one call. Requests and answers are JSON documents; docs/admin.md lists
 * them. Only root and members of the configured admin group are answered (-EPERM).
 *
 * Requests are objects with a "verb": status, clients, spaces, tenants, blocks, inspect, pin,
 * unpin, evict, drain, check, version.
 */
#ifndef KVPOOL_ADMIN_H
#define KVPOOL_ADMIN_H

#include "kvpool.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvp_admin;

/* socket: NULL as in kvp_open(). Errors as kvp_open(). */
KVP_EXPORT int kvp_admin_open(
	const char *socket, uint32_t timeout_ms, struct kvp_admin **ret_admin);
KVP_EXPORT struct kvp_admin *kvp_admin_close(struct kvp_admin *admin);

/*
 * Sends one request and collects the answer, a zero-terminated JSON text that the caller frees with
 * free(). The return value is the request's own status; with a negative one *ret_answer may still
 * be set (an object with "error"), else NULL. At most max_bytes of answer are taken (-EMSGSIZE); 0:
 * no limit. One thread at a time.
 */
KVP_EXPORT int kvp_admin_request(struct kvp_admin *admin, const char *request, uint32_t timeout_ms,
	size_t max_bytes, char **ret_answer);

#ifdef __cplusplus
}
#endif
#endif
