/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Media: what extents lie in. Medium 0 is DRAM, medium 1 + n the device of number n in the
 * configuration. An extent's class says in which medium it lies, and the operations of that make its
 * memory, drop it, and show it to clients.
 *
 * A device's extents are one segment each. Vault segments are written by copies out of DRAM alone
 * (warm.h). Arenas are written by one client, which was granted slots there; what it commits lies on the
 * device only until it has been copied (behind.h).
 *
 * DRAM decides what is cached: a block that is evicted goes in all media. A payload on a device may go
 * alone (room.h); where it is the block's only one the block becomes a RECIPE.
 */
#ifndef KVPD_MEDIUM_H
#define KVPD_MEDIUM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"
#include "daemon/device/device.h"
#include "daemon/ledger/doubt.h"

struct kvp_evict;
struct kvpd_again;
struct kvpd_config;
struct kvpd_extent;
struct kvpd_ledger;
struct kvpd_lesson;
struct kvpd_tenant;

#define KVPD_DRAM  0u
#define KVPD_MEDIA (1u + KVP_MAX_DEVICES)

struct kvpd_medium_ops {
	int (*make)(struct kvpd_extent *x); /* then kvpd_extent_made() */
	int (*drop)(struct kvpd_extent *x); /* then kvpd_extent_dropped() */
	/* Any thread, at the tenant's end: in place. What a device has was dropped before. */
	void (*drop_now)(struct kvpd_extent *x);
};
const struct kvpd_medium_ops *kvpd_medium_ops(const struct kvpd_extent *x);

/* A device, as all tenants have it. */
struct kvpd_medium {
	struct kvpd_ledger *ledger;
	uint32_t number; /* of the device; the medium's is one more */
	char name[KVPD_DEVICE_NAME_BYTES];
	char *driver, *faults, *worker, *unit;
	uint32_t transport;
	bool no_copies, mps;
	uint64_t bytes, segment, copy_rate;
	uint32_t timeout_ms;
	int said_node;     /* as the device says, when it was last looked at; -1 */
	int node;          /* to which vaults are bound for it: numa_node: auto; -1: none */
	uint32_t losses;   /* of the device, that were seen to, */
	uint32_t doubts;   /* and of its doubts */
	uint64_t grain;    /* of which segments are multiples */
	uint64_t share;    /* of a tenant that is not told otherwise */
	uint64_t promised; /* the shares of all tenants */
	bool draining;     /* an administrator empties it: nothing new comes there */
	struct kvpd_device *device; /* NULL before the start and after the end */
	uint32_t shown;             /* KVP_DEVICE_*, as the catalogs have it */
};

/* What a tenant has of a device. */
struct kvpd_part {
	uint64_t share;            /* guaranteed; 0: nothing */
	uint64_t charged;          /* bytes of its extents there */
	uint32_t slots, max_slots; /* of these extents; the policy has places for no more blocks */
	uint32_t owners;           /* sessions that have arenas there */
	struct kvp_evict *evict;
	struct kvpd_lesson *lesson; /* of that; NULL: it learns nothing */
	struct kvpd_again *again;   /* what went from there of late */
	uint64_t blocks;            /* with a payload there, */
	uint64_t payload_bytes;     /* theirs */
	uint64_t put;               /* payloads that clients wrote there, */
	uint64_t behind;            /* of these, that were copied to DRAM; */
	uint64_t warmed;            /* that were copied there, */
	uint64_t dropped;           /* that went for others' sake, */
	uint64_t reloads;           /* of these back soon (again.h), */
	uint64_t damaged; /* and that did not come, because they are not what their checksum says */
	uint64_t ahead, ahead_used;    /* payloads that came ahead of need; of these used since */
	uint64_t verified, unverified; /* payloads that check asked about; see verify.h */
	uint32_t verifying;
	struct kvpd_doubt doubt;
	bool dropping; /* a job that takes payloads is under way */
	uint32_t
		look; /* leases are looked at for room until this look is over; 0: none is wanted */
	uint64_t drained_ns; /* when an extent was last emptied for others */
};

/*
 * With numa_node: auto, the node to which vaults of the tenant that are made now are bound: that of the first
 * device that it has a share of and that says one on which the daemon may allocate; -1: to none.
 */
int kvpd_parts_node(const struct kvpd_tenant *t);

/* A DRAM extent as a device knows it; see kvpd_host_want(). */
struct kvpd_hosting;

/* ---- the ledger's --------------------------------------------------------------------------- */

/* Of the configuration, copied. -ENOMEM. */
int kvpd_media_new(struct kvpd_ledger *l, const struct kvpd_config *config);
/* After privileges are gone: starts the devices' threads. */
int kvpd_media_start(struct kvpd_ledger *l);
/* Stops the devices: done() of all their work is called before it returns. */
void kvpd_media_stop(struct kvpd_ledger *l);
void kvpd_media_free(struct kvpd_ledger *l);
/* What devices are through with, until then, but a piece of each, paid by its tenant; false: no more. */
bool kvpd_media_drain(struct kvpd_ledger *l, uint64_t until_ns, uint32_t *work);
/* Shows devices that came up or went down in the catalogs. In how many milliseconds to look again; -1. */
int kvpd_media_look(struct kvpd_ledger *l);

/* May something come to lie there? 0; -ENODEV: there is no such device, it is down, or is being emptied. */
int kvpd_medium_open(const struct kvpd_ledger *l, uint32_t medium);
/* Does the device pin DRAM that it copies from and to? */
bool kvpd_medium_pins(const struct kvpd_medium *m);
/* What an administrator reads of a device in this state (KVPD_DEVICE_*); lives for ever. */
const char *kvpd_medium_word(const struct kvpd_medium *m, uint32_t state);

/* ---- a tenant's ----------------------------------------------------------------------------- */

/* Before it is entered: its parts, with room for its blocks. Its policies' bytes are added to *bytes. */
int kvpd_parts_new(struct kvpd_tenant *t, const uint64_t share[KVP_MAX_DEVICES], uint64_t *bytes);
/* It has been entered: the devices that are up appear in its catalog. */
void kvpd_parts_show(struct kvpd_tenant *t);
/* At its end, none of its work being under way: devices let go of its memory. */
void kvpd_parts_leave(struct kvpd_tenant *t);
/* Any thread, after that. */
void kvpd_parts_free(struct kvpd_tenant *t);
/* The policies learn for how many blocks there is room: the least block of all spaces has so many bytes. */
void kvpd_parts_capacity(struct kvpd_tenant *t, uint64_t least);
/* Can clients of the tenant have something done there? -EOPNOTSUPP: no devices; -ENODEV. */
int kvpd_medium_serves(const struct kvpd_tenant *t, uint32_t medium);
/* A slot for blocks of this size on a device measures so much. */
uint64_t kvpd_device_slot(uint64_t block_bytes);

/*
 * A block came to lie on the device, or goes from there (-EBUSY: not before those below it, which lie
 * there too), `for_room`: while it stays in DRAM, for others' sake; kvpd_part_touch(): it was used.
 */
void kvpd_part_enter(struct kvpd_tenant *t, uint32_t medium, uint32_t block, uint64_t now);
int kvpd_part_leave(
	struct kvpd_tenant *t, uint32_t medium, uint32_t block, bool for_room, uint64_t now);
void kvpd_part_touch(struct kvpd_tenant *t, uint32_t block, uint64_t now);
/* It is about to come there: to be called once, before room is made for it. */
void kvpd_part_expect(struct kvpd_tenant *t, uint32_t medium, uint32_t block, uint64_t now);
/*
 * It lies there, and came back soon so often that others are to go first; _spares(): this time, since the policy has
 * named it.
 */
bool kvpd_part_keeps(const struct kvpd_tenant *t, uint32_t medium, uint32_t block);
bool kvpd_part_spares(const struct kvpd_tenant *t, uint32_t medium, uint32_t block);

/*
 * Has a device know a DRAM extent, for copies; `writable`: for copies that go there, too. 1: it does; 0: it will, and kvpd_warm_again() follows;
 * negative: it could not (-ENODEV: it is down, ...).
 */
int kvpd_host_want(struct kvpd_extent *x, uint32_t medium, bool writable);
/*
 * Has devices that pin DRAM know a vault from its beginning: pinning takes a while, and the first copies would
 * go through other memory meanwhile. No error: it is asked for again when a copy needs it.
 */
void kvpd_hosts_want(struct kvpd_extent *x);
/* The device's number of the extent. */
uint32_t kvpd_host_id(const struct kvpd_extent *x, uint32_t medium);
/*
 * No copy names the extent any more: devices forget it. True: that takes a while, and
 * kvpd_extent_let_go() is called when it is done.
 */
bool kvpd_hosts_drop(struct kvpd_extent *x);
/* Has the device forget the DRAM extent, which no copy names. True: it has not yet. */
bool kvpd_host_leave(struct kvpd_extent *x, uint32_t medium);
/* Was what lies in a device's extent lost with a worker? */
bool kvpd_segment_lost(const struct kvpd_extent *x);
/* Has a device's extent memory there, that was not asked to be dropped? */
bool kvpd_segment_there(const struct kvpd_extent *x);
/* What the descriptor of a device's extent is: KVP_IMPORT_*. */
uint32_t kvpd_segment_import(const struct kvpd_extent *x);
/* The device's number of a device's extent. */
uint32_t kvpd_segment_id(const struct kvpd_extent *x);

#endif
