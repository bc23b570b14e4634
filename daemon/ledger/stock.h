/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of arenas that is made before anybody asks for it. To clear 8 MiB and to enter their pages takes the kernel longer
 * than a client takes to fill them, so one that stores a request's blocks would wait for memory more than it copies.
 * It is made of what `memory` allows and is promised to no tenant; nobody is charged for it before it is the memory of an
 * extent, nobody has it open or mapped before, and it goes when it is promised or the machine is short of memory.
 */
#ifndef KVPD_STOCK_H
#define KVPD_STOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ledger/list.h"

struct kvpd_extent;
struct kvpd_ledger;

#define KVPD_STOCK_SEGMENT (UINT64_C(8) << 20)

struct kvpd_stock {
	struct kvpd_list there; /* segments */
	uint64_t bytes;         /* of these, and of the one that is made */
	bool on;                /* there are threads that work for it */
	bool making;
	uint64_t refused_ns; /* none is made before */
};

void kvpd_stock_init(struct kvpd_ledger *l);
/* The ledger's thread runs from now on, or no longer. */
void kvpd_stock_run(struct kvpd_ledger *l, bool on);
/* Is there a segment? */
bool kvpd_stock_has(const struct kvpd_ledger *l);
/* The arena, of a segment's size, gets the memory of one, if there is one: nothing has to be made. */
bool kvpd_stock_take(struct kvpd_extent *x);
/* More or less is promised than before, or memory is short, or not any more: makes a segment, or drops all. */
void kvpd_stock_look(struct kvpd_ledger *l);
/* At the end, when no thread works for it any more. */
void kvpd_stock_free_all(struct kvpd_ledger *l);

#endif
