/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of copies: pure code, one owner, no clock of its own. Each way has five classes, and a
 * class the tenants that have copies in it.
 *
 * A batch is of one class: the first that has copies, or one that was passed over by KVPD_QUEUE_PASSED.
 * In a class the tenant that has had the fewest bytes is next, and of a tenant the copy that came first;
 * but a copy with a deadline goes by it, before all others of the class, while its tenant is at most
 * KVPD_QUEUE_AHEAD bytes ahead of the one that has had the fewest. A tenant that comes back has no credit
 * from when it had no copies. Who is next is asked for each piece, so that a large copy delays nobody by
 * more than a batch.
 */
#ifndef KVPD_QUEUE_H
#define KVPD_QUEUE_H

#include "daemon/config.h"
#include "daemon/device/device.h"
#include "daemon/device/driver.h"

#define KVPD_QUEUE_BATCH \
	(UINT64_C(2) << 20) /* bytes of a batch until a driver has said otherwise */
#define KVPD_QUEUE_PIECE  (UINT64_C(64) << 10) /* no piece of a larger copy is smaller */
#define KVPD_QUEUE_AHEAD  (UINT64_C(64) << 20)
#define KVPD_QUEUE_PASSED (UINT64_C(1) << 30)

TAILQ_HEAD(kvpd_copies, kvpd_device_copy);

struct kvpd_queue_class {
	struct kvpd_copies age; /* not wholly cut, in the order in which they came */
	uint64_t n;
	uint64_t passed; /* bytes of classes before it since its last batch, while it had copies */
	uint64_t floor;  /* what the tenant had that had the fewest, at the last piece */
	uint32_t n_active;
	uint16_t active[KVPD_MAX_TENANTS]; /* tenants that have copies, in no order */
	struct {
		struct kvpd_device_copy *heap; /* by deadline, then age */
		uint64_t served;
	} tenant[KVPD_MAX_TENANTS + 1];
};

struct kvpd_copy_queue {
	uint64_t rate;  /* bytes a second each way; 0: no limit */
	uint64_t batch; /* bytes of a batch, about; the owner may change it */
	uint64_t seq;
	struct {
		uint64_t ready_ns; /* no batch before, by the rate */
		struct kvpd_queue_class kind[KVPD_COPY_KINDS];
	} way[KVPD_WAYS];
};

struct kvpd_queue_piece {
	struct kvpd_device_copy *copy;
	uint64_t off, bytes; /* in it */
};

void kvpd_queue_init(struct kvpd_copy_queue *q, uint64_t rate);
/* The copy has been checked. */
void kvpd_queue_add(struct kvpd_copy_queue *q, struct kvpd_device_copy *copy, uint64_t now);
/*
 * The next batch of a way: how many pieces were put into `out` (KVPD_DRIVER_BATCH of them fit), whose
 * copies are cut on by that; 0: there are no copies, or it is too early. *ret_kind: their class.
 */
uint32_t kvpd_queue_next(struct kvpd_copy_queue *q, uint32_t way, uint64_t now,
	struct kvpd_queue_piece *out, uint32_t *ret_kind);
/*
 * What the driver is to copy for a batch of n pieces, as many at most: pieces that follow each other at both ends are
 * one. Blocks that lie side by side are few large copies then, whatever their number.
 */
uint32_t kvpd_queue_join(
	const struct kvpd_queue_piece *pieces, uint32_t n, struct kvpd_copy *ret_copies);
/* Takes a copy out that is not wholly cut; harmless if it is. */
void kvpd_queue_remove(struct kvpd_copy_queue *q, struct kvpd_device_copy *copy);
/* When the next batch of a way may begin; 0: at once, UINT64_MAX: there are no copies. */
uint64_t kvpd_queue_ready(const struct kvpd_copy_queue *q, uint32_t way);

#endif
