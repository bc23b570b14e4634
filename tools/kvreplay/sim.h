/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One trace through one policy at one capacity, and a store below it if asked for, in this process.
 * Any thread; the trace is only read.
 */
#ifndef KVREPLAY_SIM_H
#define KVREPLAY_SIM_H

#include <stdint.h>

#include "tools/kvreplay/trace.h"

/*
 * How a request goes through the cache; it hits with its leading cached blocks.
 * FREE: its blocks are touched or inserted deepest first and evicted one by one, whatever their
 * chains (as the published tables do; a policy that needs chains runs as LEAF all the same).
 * LEAF: as the daemon does: the matched chain is touched, the missing blocks come root first, and
 * no block goes before its children.
 */
enum sim_order { SIM_FREE, SIM_LEAF };

struct sim_job {
	const struct trace *trace;
	const char *policy; /* of policy/, or "min" */
	uint64_t capacity;  /* blocks; oracleGeneral: bytes; 0: no memory (not with "min") */
	enum sim_order order;
	uint64_t seed;
	uint64_t store;  /* capacity of the second tier, in the same unit; 0: none */
	uint32_t ingest; /* KVP_INGEST_*: what goes there */
};

struct sim_result {
	uint64_t refs;
	uint64_t hits;       /* in memory */
	uint64_t store_hits; /* in the store alone; such blocks come back into memory */
	uint64_t store_writes;
	uint64_t store_evictions;
	uint64_t evictions;
	uint64_t refused; /* not admitted */
	uint64_t reloads; /* came back within `capacity` references of their eviction */
	double ns_per_access;
	double state_bytes_per_block; /* policy state by capacity, for the record */
};

/*
 * "min" is Belady's: evicts what is used last again; on chains it also bypasses, that is, evicts
 * after the request, its own blocks too. It has no store. -ENOENT: no such policy. -ENOMEM,
 * -EINVAL.
 */
int sim_run(const struct sim_job *job, struct sim_result *ret_result);

#endif
