/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence's blocks in kvpool: cached ones are leased and read where they lie, computed ones are
 * written into reserved slots and published from there. A block for which the daemon gives no slot
 * (it is gone, it is full, it is late) lies in private memory instead; the sequence never
 * notices. Slots that were mapped stay valid when the daemon dies, so what is in them goes on
 * being used. A daemon that comes later is joined by the next sequence.
 */
#ifndef KVR_KV_POOL_H
#define KVR_KV_POOL_H

#include "tools/kvrun/kvr_kv.h"
#include "tools/kvrun/kvr_model.h"

struct kvr_pool_opts {
	const char *socket; /* NULL: the library's default */
	int store;          /* publish what was computed */
	int reuse_tail;     /* take over partial blocks and parts of blocks too */
	/*
	 * How blocks are read, if not as they are: the name of a codec. It is the space's adapter,
	 * so that blocks are shared only with engines that read them so. NULL: natively.
	 */
	const char *variant;
	/* KVR_NO_DEVICE, or where cached blocks are read: they are copied there first. */
	uint32_t device;
	/*
	 * Not 0: what is known of a prompt by its token ids is wanted first, to be computed by another engine
	 * (kvp_want()), if that takes no longer.
	 */
	uint32_t want_ms;
	/*
	 * The floor of the space for keys and for values (struct kvp_space_desc), both 0: none. Blocks that the
	 * daemon has coded are attended where they lie, in their codec: no memory holds what they decode to, but
	 * of a layer of one block at a time while several queries attend to it.
	 */
	uint32_t floor[2];
	/*
	 * Not 0, with a floor: of every so many tokens that are generated one after another, what it attends to of the
	 * blocks that its prompt was found to have cached is reported (kvp_report_attention()).
	 */
	uint32_t report_every;
};

#define KVR_NO_DEVICE    UINT32_MAX
#define KVR_FIRST_DEVICE (UINT32_MAX - 1) /* the first one that works */

/* How the last sequence fared, for reports. */
struct kvr_pool_report {
	int attached;           /* the daemon answered at the sequence's start */
	uint32_t blocks_read;   /* cached blocks read in place, */
	uint32_t blocks_device; /* of these on the device */
	uint32_t blocks_coded;  /* cached blocks that were coded, */
	uint32_t
		blocks_decoded; /* of these decoded into private memory: planes that cannot be attended in place */
	uint32_t blocks_slots; /* blocks computed into slots */
	uint32_t blocks_private;
	uint32_t published; /* commits that were accepted */
	uint32_t wanted;    /* blocks that were known of the prompt, and wanted */
	uint32_t attention; /* reports of what was attended to */
	uint64_t
		coding_errors; /* planes that could not be read, since the store was made: then all is computed */
	int no_device; /* one was asked for, and there is none that works: all is read in DRAM */
	int want_why;  /* why they are not all cached: as of kvp_ticket_wait() */
	char why[256]; /* not attached: the reason, else ""; KVP_ERROR_TEXT of kvpool.h */
};

/* Without a daemon this succeeds all the same. -EINVAL (geometry), -ENOMEM. */
int kvr_kv_pool_new(const struct kvr_model *model, const struct kvr_geom *geom,
	const struct kvr_pool_opts *opts, struct kvr_kv **ret_kv);

/* The space that its blocks are in, as long as there is a daemon; NULL: none so far. */
struct kvp_space *kvr_kv_pool_space(struct kvr_kv *kv);
/* Likewise the client that has opened it, for tickets. */
struct kvp_client *kvr_kv_pool_client(struct kvr_kv *kv);

/* `kv` must come from kvr_kv_pool_new. Waits until its published blocks are visible (bounded). */
void kvr_kv_pool_report(struct kvr_kv *kv, struct kvr_pool_report *ret_report);

#endif
