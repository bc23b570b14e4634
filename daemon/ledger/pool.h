/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool threads: one makes, binds and populates the memory of extents, the other drops it, so that
 * nobody waits for memory behind pages that the kernel is slow to give up.
 */
#ifndef KVPD_POOL_H
#define KVPD_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_extent;
struct kvpd_ledger;

/* At the start: memory, huge pages, memlock. Logs what is wrong. */
int kvpd_pool_check(struct kvpd_ledger *l);
/* Any thread. A segment that belongs to the owner, mapped writable, bound to the configured node. */
int kvpd_pool_segment(const struct kvpd_ledger *l, int node, const char *name, uint64_t bytes,
	bool populated, int *ret_fd, void **ret_addr);

/* Memory of an arena that nobody waits for yet; begun with fd -1. */
struct kvpd_pool_ahead {
	int fd;
	void *addr;
	uint64_t bytes, touched; /* of these */
};
/*
 * A pool thread, or any where there is none. Makes it, populated and mapped read-only, 2 MiB at a time. -EAGAIN: somebody
 * waits for the thread; another call goes on. After other errors nothing is left of it.
 */
int kvpd_pool_ahead(struct kvpd_ledger *l, int node, struct kvpd_pool_ahead *a);
/* Any thread. Drops what there is of it. */
void kvpd_pool_ahead_drop(struct kvpd_pool_ahead *a);
/* Any thread. Bytes that a segment of this size really takes. */
uint64_t kvpd_pool_round(const struct kvpd_ledger *l, uint64_t bytes);
/* Have a pool thread make or drop the memory; kvpd_extent_made() or _dropped() follows. */
int kvpd_pool_make(struct kvpd_extent *x);
int kvpd_pool_drop(struct kvpd_extent *x);
/* In place: nobody else may have it mapped. */
void kvpd_pool_drop_now(struct kvpd_extent *x);

#endif
