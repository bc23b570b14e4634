/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ledger tells the advisor's thread of one tenant, and what it is told: events one way, in a
 * queue; a ranking of blocks the other way, by a pointer. Neither waits for the other, there is no
 * lock, and nothing here is allocated after kvpd_advice_new().
 *
 * The queue has one producer, the ledger, and one consumer, the advisor. The ledger writes an event
 * and then stores `tail` with release; the advisor loads `tail` with acquire before it reads the
 * event. The other way round `head` says what was read, so that a slot is written again only after
 * that. An event for which there is no room is dropped and counted. What the graph then does not
 * know is only worth less: a block that it has not heard of has no score, and the policy alone
 * decides; one that is gone is forgotten when its id comes again.
 *
 * There are two rankings for the whole life of a tenant, and one word, `offer`, between the threads.
 * One ranking is the ledger's, `held`; the other one is the advisor's or in the word. The advisor
 *
 *	takes the word's ranking out (exchange by 0), whether the ledger has looked at it or not,
 *	makes it anew, and puts it back with the bit `fresh` (store);
 *
 * the ledger, if it sees the bit, exchanges that ranking for its own (compare and exchange), which
 * goes back by the same word, without the bit, and is what the advisor takes out next. So a ranking
 * has one owner at any moment, and freeing the old one is handing it back. If the advisor was
 * quicker the comparison fails, and the ledger goes on with what it has; if it has even put the same
 * ranking back, made anew, the comparison succeeds rightly. Orders: the advisor's store is release
 * and the ledger's exchange acquire, so that what was ranked is seen whole; the ledger's exchange is
 * release and the advisor's acquire, so that all reads of the old ranking come before it is written.
 */
#ifndef KVPD_ADVICE_H
#define KVPD_ADVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/kvp_graph.h"

struct kvpd_advice;
struct kvpd_advisor;
struct kvpd_advisor_figures;

#define KVPD_ADVICE_MAX_AGE_NS UINT64_C(2000000000) /* an older ranking is not used */

/* ids: of blocks, are below that; blocks: that have a payload at a time. */
struct kvpd_advice_size {
	uint32_t ids;
	uint32_t blocks;
	uint32_t
		batch; /* blocks that a ranking names as the first to go, and as many may it spare */
	uint32_t
		ahead; /* that it names for one use to be fetched to a device; 0: it is not asked */
};

/* Memory for a tenant of that size: graph, rankings and queue; exact. Any thread. */
uint64_t kvpd_advice_bytes(const struct kvpd_advice_size *size);
/* Any thread. -ENOMEM. */
int kvpd_advice_new(const struct kvpd_advice_size *size, struct kvpd_advice **ret_advice);
/* From now on the advisor's thread has it, until kvpd_advice_leave(), and frees it then. Any thread. */
void kvpd_advice_join(struct kvpd_advisor *v, struct kvpd_advice *a);
/* Any thread: the ledger uses it no more. NULL is harmless. */
void kvpd_advice_leave(struct kvpd_advice *a);
/* One that never joined, or when neither thread uses it any more; NULL is harmless. Returns NULL. */
struct kvpd_advice *kvpd_advice_free(struct kvpd_advice *a);

/* ---- the ledger's side; `a` may be NULL: nobody is advised ------------------------------------ */

/* A block has a payload now. parent: as the policy has it, or KVP_BLOCK_NONE. label: KVP_LABEL_*, as its client said. */
void kvpd_advice_put(struct kvpd_advice *a, kvp_block_id block, kvp_block_id parent,
	uint32_t first_token, uint32_t tokens, uint32_t session, uint32_t label);
/* It came to a device, or none has it any more (cold). Told where devices are filled by advice. */
void kvpd_advice_place(struct kvpd_advice *a, kvp_block_id block, bool cold);
/* It has none any more. */
void kvpd_advice_gone(struct kvpd_advice *a, kvp_block_id block);
/* A session has used the chain that ends with this block. */
void kvpd_advice_used(struct kvpd_advice *a, kvp_block_id tip, uint32_t session);
/* A session had this block leased in a look: those of one session and look were leased together. */
void kvpd_advice_leased(struct kvpd_advice *a, kvp_block_id block, uint32_t session, uint32_t look);
/*
 * Before victims are chosen: takes the newest ranking, and keeps it until the next call. NULL: there
 * is none that is young enough.
 */
const struct kvp_ranking *kvpd_advice_consult(struct kvpd_advice *a, uint64_t now);
/*
 * Should this block, which the policy would evict, stay? The ranking that was taken says so of blocks
 * that it scores highly, each of which is counted, and of no more than `batch` of them in all. It
 * says nothing of what came since it was made, and what it says of an id that was used again since
 * is of the block before. `a` may be NULL: no.
 */
bool kvpd_advice_spares(struct kvpd_advice *a, kvp_block_id block);

/*
 * What is fetched to devices ahead of need (ahead.h), by the newest ranking, if it is young. A block has a payload on
 * one device at most, so one graph says of all devices what is cold; for which of them something is fetched is a
 * matter of where its neighbours lie.
 */

/* Is it asked for that? */
bool kvpd_advice_fetches(const struct kvpd_advice *a);
#define KVPD_ADVICE_AHEAD 64u /* blocks that are named at once, at most */
/* Cold blocks near these, the nearest first, KVPD_ADVICE_AHEAD at most; how many. */
uint32_t kvpd_advice_suggest(struct kvpd_advice *a, const kvp_block_id *active, uint32_t n,
	uint64_t now, kvp_block_id *ret_blocks);
/* At most n of those on devices, the first to go first; how many. */
uint32_t kvpd_advice_lowest(
	struct kvpd_advice *a, uint64_t now, uint32_t n, kvp_block_id *ret_blocks);
/* Does the ranking that was taken know both, and score `low` less? */
bool kvpd_advice_below(const struct kvpd_advice *a, kvp_block_id low, kvp_block_id block);
/* The block has come to a device, by advice or not. */
void kvpd_advice_came(struct kvpd_advice *a, kvp_block_id block, bool advised);
/* One that came ahead of need is used for the first time. */
void kvpd_advice_paid(struct kvpd_advice *a, kvp_block_id block);
void kvpd_advice_read(
	const struct kvpd_advice *a, uint64_t now, struct kvpd_advisor_figures *ret_figures);

/* ---- the advisor's side ----------------------------------------------------------------------- */

/* Blocks of a chain of which use is entered: the rest of a longer one, up to its root, is not. */
#define KVPD_ADVICE_CHAIN 4096u

/*
 * Enters what has been told so far, or as much of it as makes KVPD_ADVICE_WORK steps along chains:
 * no tenant keeps the advisor from the others for longer than some tens of milliseconds. `chain`:
 * KVPD_ADVICE_CHAIN ids to work with. Returns how many events it entered.
 */
#define KVPD_ADVICE_WORK (UINT32_C(1) << 18)
uint32_t kvpd_advice_listen(struct kvpd_advice *a, kvp_block_id *chain, uint64_t now);
/* Makes a ranking and offers it; period_ns: not sooner after the last one, and only if something was
 * told since. Returns whether it did. */
int kvpd_advice_rank(struct kvpd_advice *a, uint64_t now, uint64_t period_ns);

#endif
