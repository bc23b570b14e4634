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

/*
 * Options, `error` among them, and errors as kvp_open(); -EPERM: the daemon does not answer this
 * user. opts may be NULL; flags must be 0, and `name` is not used.
 */
KVP_EXPORT int kvp_admin_open(const struct kvp_open_opts *opts, struct kvp_admin **ret_admin);
/* Returns NULL. NULL is harmless. */
KVP_EXPORT struct kvp_admin *kvp_admin_close(struct kvp_admin *admin);

/*
 * Sends one request and collects the answer, a zero-terminated JSON text that the caller frees with
 * free(). The return value is the request's own status; with a negative one *ret_answer may still
 * be set (an object with "error"), else NULL. At most max_bytes of answer are taken (-EMSGSIZE); 0:
 * no limit. One thread at a time. -EINVAL: a request of no or too many bytes; -ESHUTDOWN.
 * -ETIMEDOUT: no answer, or not all of it, in time. The daemon carries the request out all the same
 * (an eviction too); the next call passes over what is left of its answer.
 */
KVP_EXPORT int kvp_admin_request(struct kvp_admin *admin, const char *request, uint32_t timeout_ms,
	size_t max_bytes, char **ret_answer);

#ifdef __cplusplus
}
#endif
#endif
