/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ledger counts, as plain numbers: whatever shows figures to people or to a monitor is made
 * from this, by the control thread.
 */
#ifndef KVPD_FIGURES_H
#define KVPD_FIGURES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "policy/kvp_graph.h"
#include "shm/kvp_abi.h"
#include "shm/kvp_proto.h"

struct kvpd_ledger;

#define KVPD_TENANT_NAME     64u
#define KVPD_POLICY_TEXT     160u
#define KVPD_DEVICE_ROW_NAME 16u
#define KVPD_FLOOR_TEXT      80u

/* Lookups as clients count them in their pages: figures of theirs, believed for display only. */
struct kvpd_lookups {
	uint64_t hits, partial, misses;
	uint64_t tokens_asked, tokens_matched;
};

/* The advisor of a tenant; all zero where it is off. See daemon/ledger/advice.h. */
struct kvpd_advisor_figures {
	bool on;
	bool made;           /* there is a ranking: the next three are of it */
	uint64_t age_ns;     /* since it was begun */
	uint64_t cycle_ns;   /* it took so long to make, */
	uint64_t cpu_ns;     /* and so much of a processor */
	uint64_t longest_ns; /* by the clock, of all of them */
	uint64_t rankings;   /* made so far */
	uint64_t nodes, edges;
	uint64_t labelled[KVP_LABELS]; /* of the nodes, by what clients said of their tokens */
	uint64_t dropped;              /* events, for want of room in the queue */
	uint64_t consulted,
		stale;      /* choices of victims; of these without a ranking that is young */
	uint64_t spared;    /* blocks that were not evicted because of it */
	uint64_t suggested; /* for devices, and of these */
	uint64_t fetched, fetched_used; /* copied there, and used there since */
	uint64_t bytes;                 /* of graph, rankings and queue; part of metadata_bytes */
};

/* What a tenant has of a device; counts since the tenant began. */
struct kvpd_part_figures {
	uint64_t share_bytes, charged_bytes;
	uint64_t blocks, payload_bytes;
	uint64_t put, behind; /* payloads that clients wrote there, and of these copied to DRAM */
	uint64_t warmed;      /* that were copied there */
	uint64_t dropped, damaged;  /* that went for room, and were refused */
	uint64_t reloads;           /* that came back soon after they had gone for room */
	uint64_t ahead, ahead_used; /* that came ahead of need, and of these used since */
	uint64_t verified, unverified, verifying; /* payloads that check asked about */
};

#define KVPD_FIGURES_CLASSES 5u /* of copies, the first first: see daemon/device/device.h */

/* A device; counts since the daemon began. */
struct kvpd_device_row {
	char name[KVPD_DEVICE_ROW_NAME];
	char driver[KVPD_DEVICE_ROW_NAME];
	const char *state; /* a word that lives for ever */
	pid_t pid;         /* of the worker; 0: there is none */
	char error[96];    /* why the last one ended that did so by itself, or "" */
	uint64_t error_age_ns;
	int numa_node,
		bound_node; /* as its driver has it, and to which vaults are bound for it; -1 */
	uint8_t uuid[16];
	uint64_t bytes, segment_bytes, promised_bytes;
	uint64_t free_bytes, total_bytes; /* as the driver has them; 0: not known */
	uint64_t context_bytes;           /* that the worker has beside segments; UINT64_MAX */
	uint64_t owed_bytes;              /* that should be free and that it does not have */
	uint32_t segments;
	uint64_t restarts, damaged, losses, pieces;
	uint64_t copied_bytes[2], bytes_per_second[2]; /* to the device, and from there */
	struct {
		uint64_t queued, oldest_ns, done, failed;
	} queue[KVPD_FIGURES_CLASSES];
};

#define KVPD_FIGURES_WIDTHS 5u /* of payloads, native first: see payload/kvp_payload.h */

/* Payloads in DRAM of one width, of a tenant or a space; of a tenant also steps to it, and what they freed, since the tenant began. */
struct kvpd_width_figures {
	uint64_t blocks, bytes;
	uint64_t steps, freed;
};

/* Recomputation, see daemon/ledger/remat.h; counts since the tenant began. */
struct kvpd_remat_figures {
	uint32_t offers;       /* that stand now */
	uint64_t charged;      /* bytes, for wants and their plans */
	uint64_t wants, unmet; /* chains asked for, and of these not brought in time, or refused */
	uint64_t demands;      /* ranges that providers were asked for, and of these */
	uint64_t met, returned, late;
	uint64_t tokens, ns; /* of those that were met */
};

/* Scores of what is coded with fewer bits, of a space or of all of a tenant's; see daemon/ledger/quality.h. */
struct kvpd_quality_figures {
	uint32_t spaces,
		raised; /* that are not exact; of them those coded with more than their floor */
	double floor_bits,
		coding_bits; /* of one space: the fewest allowed, and those of next blocks */
	uint32_t samples;    /* in the windows */
	double mean;         /* of the newest of them, the lowest of all; below 0: none */
	double worst; /* head of the last block that was checked, as a multiple of the limit; likewise */
	uint64_t checked, reported, changes;
};

static inline void kvpd_quality_add(
	struct kvpd_quality_figures *sum, const struct kvpd_quality_figures *f)
{
	sum->spaces += f->spaces;
	sum->raised += f->raised;
	sum->samples += f->samples;
	if (f->mean >= 0 && (sum->mean < 0 || f->mean < sum->mean))
		sum->mean = f->mean;
	if (f->worst > sum->worst)
		sum->worst = f->worst;
	sum->checked += f->checked;
	sum->reported += f->reported;
	sum->changes += f->changes;
}

/* Bytes, and counts since the tenant began where no limit stands beside them; see docs/admin.md. */
struct kvpd_tenant_figures {
	uint32_t id;
	uint64_t born_ns; /* another one: another tenant of that id, with counts of its own */
	char name[KVPD_TENANT_NAME];
	char policy[KVPD_POLICY_TEXT];
	bool abandoned;
	uint32_t sessions;
	uint64_t share_bytes;
	uint64_t charged_bytes;
	uint64_t metadata_bytes;
	uint64_t metadata_bytes_per_block;
	uint64_t lease_scan_ns;
	uint64_t arena_bytes;
	uint64_t payload_bytes;
	uint64_t blocks, max_blocks;
	uint64_t recipes, max_recipes;
	uint32_t quality_target; /* percent; 0: none */
	uint32_t min_materialized;
	uint32_t open_claims;
	struct kvpd_lookups lookups; /* of clients that are there and that were */
	uint64_t tokens_put;
	uint64_t commits, duplicates, refused;
	uint64_t evictions, reloads, forgotten, moves;
	uint64_t evicted_bytes; /* in DRAM, that evictions freed */
	uint64_t yielded;       /* blocks that went although min_materialized protects them */
	uint64_t claims, waits, deleted;
	struct kvpd_width_figures width[KVPD_FIGURES_WIDTHS];
	uint64_t uncoded;   /* coded for nothing */
	uint64_t coding_ns; /* of processors */
	struct kvpd_quality_figures quality;
	uint64_t attention_reported; /* blocks that reports were about, of all spaces */
	uint64_t tokens_reported;    /* tokens, likewise */
	uint64_t tokens_coded[4];    /* that were given 2, 3, 4 and 8 bits of their own */
	struct kvpd_part_figures part[KVP_MAX_DEVICES]; /* as many as there are devices */
	struct kvpd_advisor_figures advisor;
	struct kvpd_remat_figures remat;
};

/*
 * Of the memory that is held for payloads the part that holds none: slots that are free, in whichever size, what lies
 * between them, and extents that drain. 0 where nothing is held. In DRAM:
 */
static inline double kvpd_fragmentation(const struct kvpd_tenant_figures *f)
{
	const uint64_t held = f->charged_bytes - f->metadata_bytes;
	uint64_t used = 0;

	for (uint32_t i = 0; i < KVPD_FIGURES_WIDTHS; i++)
		used += f->width[i].bytes;
	return used < held ? 1 - (double)used / (double)held : 0;
}

/* And on a device. */
static inline double kvpd_part_fragmentation(const struct kvpd_part_figures *f)
{
	return f->payload_bytes < f->charged_bytes
		       ? 1 - (double)f->payload_bytes / (double)f->charged_bytes
		       : 0;
}

struct kvpd_space_figures {
	uint32_t tenant; /* index in `tenant` of the figures */
	uint32_t space;
	uint32_t generation; /* another one: another space of that number, with counts of its own */
	char model[KVP_SPACE_NAME + 1];
	char adapter[KVP_SPACE_NAME + 1];
	uint8_t fingerprint[32];
	uint32_t block_tokens;
	uint32_t layers;
	uint32_t kv_heads, head_dim; /* of the first one, its keys */
	uint64_t block_bytes;
	uint32_t opens;
	uint64_t blocks; /* with a payload */
	uint64_t payload_bytes;
	struct kvpd_width_figures width[KVPD_FIGURES_WIDTHS];
	char floor[KVPD_FLOOR_TEXT]; /* codecs of keys and of values, or "" */
	char calibration[64];        /* name of the file that these need, or "" */
	uint64_t tokens_put;
	uint64_t tokens_asked, tokens_matched;
	double computing_seconds; /* a token, as its engines' claims say; 0: none do */
	uint64_t evictions;
	const char *quality_start; /* where the bits that it began with are from, and */
	const char *precision;     /* its rule: words that live for ever */
	uint32_t budget;           /* millionths */
	uint32_t hot_tokens, stale_tokens;
	bool by_attention;           /* what is coded first goes by what clients report, too */
	uint64_t attention_reported; /* blocks that reports were about */
	uint64_t dram_bytes, native_bytes; /* of payloads in DRAM, and if all were native */
	struct kvpd_quality_figures quality;
};

struct kvpd_client_figures {
	uint32_t tenant; /* index in `tenant` of the figures */
	uint32_t session;
	char name[KVP_CLIENT_NAME];
	pid_t pid;
	uid_t uid;
	gid_t gid;
	uint64_t attached_ns; /* since then */
	uint32_t leases, grants, claims;
	uint32_t parked; /* commits that wait, see daemon/ledger/parked.h */
	uint64_t arena_bytes;
	struct kvpd_lookups lookups;
	bool expelled;
};

/* What the ledger's work is cut into; see daemon/ledger/round.h. */
enum kvpd_portion {
	KVPD_PORTION_TURN,  /* entries of one session */
	KVPD_PORTION_CHORE, /* one step of a tenant's chores */
	KVPD_PORTION_CALL,  /* of the control thread */
	KVPD_PORTION_JOB,   /* what follows from a finished job */
	KVPD_PORTION_ROUND, /* all of these in one go, before anybody else's turn */
	KVPD_PORTION_KINDS
};

/* By the clock: also while another thread had the processor. */
struct kvpd_portion_figures {
	uint64_t count;
	uint64_t longest_ns; /* since the start */
	uint64_t recent_ns;  /* the longest of the last minute, or of the last two */
};

struct kvpd_figures {
	uint64_t epoch;
	uint64_t taken_ns; /* when, on the monotonic clock */
	uint64_t uptime_ns;
	uint32_t sessions, max_sessions;
	uint64_t memory_bytes;
	uint64_t promised_bytes;
	uint64_t stock_bytes; /* made ahead of arenas, of what is not promised */
	bool hugetlb;         /* pools are made of 2 MiB pages that were set aside */
	char policy[KVPD_POLICY_TEXT];
	uint64_t rounds;   /* of the ledger's loop */
	uint64_t slice_ns; /* what a portion should end within */
	struct kvpd_portion_figures portion[KVPD_PORTION_KINDS];
	/* Ascending by id; spaces and clients in the order of their tenants. */
	struct kvpd_tenant_figures *tenant;
	struct kvpd_space_figures *space;
	struct kvpd_client_figures *client;
	uint32_t n_tenants, n_spaces, n_clients;
	struct kvpd_device_row device[KVP_MAX_DEVICES];
	uint32_t n_devices;
};

/* Tenants always. Looking at clients reads the slots of their leases. */
#define KVPD_FIGURES_SPACES  (1u << 0)
#define KVPD_FIGURES_CLIENTS (1u << 1)
#define KVPD_FIGURES_BRIEF   (1u << 2) /* lookups are those of the last look at the sessions */

/*
 * Control thread. Figures of all tenants, or of the one that is called `only` (NULL: all), which is
 * copied. They are read in steps of a slice, and both threads serve others between them, so what is
 * said of two tenants, or of a tenant and its clients, may be some milliseconds apart. -ENOMEM.
 */
struct kvpd_figures_walk;
int kvpd_figures_begin(const char *only, uint32_t what, struct kvpd_figures_walk **ret_walk);
/* A step. -EINPROGRESS: there is more to read; 0: that was all. -ENOENT: there is no such tenant. */
int kvpd_figures_step(struct kvpd_ledger *ledger, struct kvpd_figures_walk *walk);
/*
 * Frees the walk, whatever came of it. *ret_figures: what was read, all of it if the last step
 * returned 0; freed by kvpd_figures_fini().
 */
void kvpd_figures_end(struct kvpd_figures_walk *walk, struct kvpd_figures *ret_figures);

/* Frees what the figures hold; they may be all zero. Any thread. */
static inline void kvpd_figures_fini(struct kvpd_figures *f)
{
	free(f->tenant);
	free(f->space);
	free(f->client);
	*f = (struct kvpd_figures){ 0 };
}

#endif
