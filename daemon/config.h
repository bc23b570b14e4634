/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the administrator told kvpoold. Loaded from YAML (JSON is a subset) by config.c, every value
 * bounded; immutable once loaded and shared read-only between threads. kvpoold.yaml(5) describes
 * the keys, which have the names of the members here.
 */
#ifndef KVPD_CONFIG_H
#define KVPD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shm/kvp_abi.h"

#define KVPD_MAX_TENANTS  256u
#define KVPD_NODE_ANY     (-1) /* of memory: wherever */
#define KVPD_NODE_AUTO    (-2) /* of vaults: that of a device of the tenant's */
#define KVPD_NODES        1024
#define KVPD_MAX_SESSIONS 4096u
#define KVPD_MAX_UIDS     1024u      /* of one tenant */
#define KVPD_CONFIG_BYTES (1u << 20) /* a larger file is refused unread */

#define KVPD_DEFAULT_CONFIG "/etc/kvpool/kvpoold.yaml"
#define KVPD_LOCK_FILE      "kvpoold.lock" /* in runtime_dir */

enum kvpd_tristate { KVPD_AUTO, KVPD_NEVER, KVPD_REQUIRE };

/* When blocks of a space with a floor are coded; daemon/ledger/budget.h. */
#define KVPD_RULE_PRESSURE 0u /* where there is no room */
#define KVPD_RULE_BUDGET   1u /* so that they take so much of what they would take natively */
#define KVPD_RULE_ZONES    2u /* by age */

#define KVPD_BUDGET_LEAST 10000u /* millionths, */
#define KVPD_BUDGET_MOST  1000000u
#define KVPD_ZONE_MOST    (1u << 20) /* tokens */

struct kvpd_rule {
	uint32_t policy;                   /* KVPD_RULE_* */
	uint32_t budget;                   /* millionths of the native bytes */
	uint32_t hot_tokens, stale_tokens; /* the newest that stay native; the age of the archive */
	bool bounded;    /* by an operator: blocks have no fewer bits than in this */
	uint32_t lowest; /* width of payload/kvp_payload.h */
};

extern const char *const kvpd_rule_words[]; /* by policy; NULL ends them */
#define KVPD_RULE_DEFAULT                                      \
	{                                                      \
		KVPD_RULE_PRESSURE, 400000u, 64, 512, false, 0 \
	}

/* Limits of one tenant; the config's `defaults` give what a tenant does not say. */
struct kvpd_limits {
	uint64_t share;         /* bytes of DRAM guaranteed to it: extents, arenas and catalog */
	uint32_t max_blocks;    /* published blocks with a payload; 0: as many as the share holds at
				   64 KiB a block */
	uint32_t recipe_blocks; /* further blocks of which only the recipe is kept */
	uint64_t recipe_tokens; /* tokens that all recipes hold together; 0: 64 per block */
	uint64_t arena;         /* bytes that one session may hold as arena extents; 0: share / 4 */
	uint32_t max_sessions;
	uint32_t least_bits;     /* that an element of a coded block may have, whatever its space
				accepts; 16: no block is coded; 0: 2 */
	uint32_t quality_target; /* percent, see ledger/quality.h; 0: nobody looks at quality */
	uint32_t
		min_materialized; /* first tokens that a running sequence keeps, see ledger/evict.h */
	bool tail_index;
	struct kvpd_rule rule; /* of its spaces, unless an administrator gives them another */
	/*
	 * Bytes of each device, by its place in the list of devices, that are guaranteed to it;
	 * KVPD_SHARE_DEFAULT: an equal part, see kvpd_config_device_share(). 0 where there is none.
	 */
	uint64_t device_share[KVP_MAX_DEVICES];
};

#define KVPD_SHARE_DEFAULT UINT64_MAX
#define KVPD_DEVICE_NAME_BYTES \
	12u /* of a device's name with its end: a thread's has room for no more */

/* How memory of a GPU is handed to other processes. */
#define KVPD_TRANSPORT_AUTO 0u /* by descriptors if the device can, else by handles */
#define KVPD_TRANSPORT_VMM  1u /* by descriptors, which keep the memory alive */
#define KVPD_TRANSPORT_IPC  2u /* by handles, which end with the worker */

/* Memory of a device, which blocks are copied to; daemon/device/device.h. */
struct kvpd_device_entry {
	char *name;
	char *driver;        /* "cuda", "host", "fault" */
	char *unit;          /* of "cuda": its UUID or its number; NULL: the first */
	uint32_t transport;  /* of "cuda": KVPD_TRANSPORT_* */
	bool no_copies;      /* of "cuda": clients do all copying */
	bool mps;            /* of "cuda": the worker joins MPS */
	char *faults;        /* of "fault"; NULL: none */
	char *worker;        /* path of kvpool-device; NULL: where it was installed */
	uint64_t bytes;      /* that kvpool may take there */
	uint64_t segment;    /* size of one extent there; grows to hold one slot of a large block */
	uint64_t copy_rate;  /* bytes a second each way; 0: no limit */
	uint32_t timeout_ms; /* a worker that takes longer to answer hangs */
};

/* The thread that ranks blocks; see daemon/ledger/advisor.h. */
struct kvpd_advisor_config {
	bool on;
	uint32_t period_ms; /* between two rankings of a tenant */
	uint32_t batch;     /* blocks that a ranking names as the first to go */
	uint32_t prefetch;  /* that it names for one use, to be fetched to a device; 0: none */
};

struct kvpd_tenant_config {
	char *name;
	uid_t *uids;
	unsigned n_uids;
	char *socket; /* file name below runtime_dir, or NULL: by uid on the main socket */
	struct kvpd_limits limits;
};

struct kvpd_yamlpos;

struct kvpd_config {
	char *path;               /* of the file it came from; NULL: built-in defaults */
	struct kvpd_yamlpos *pos; /* where in it each key stands, for messages; NULL: no file */
	char *runtime_dir;
	char *calibrations; /* folder of those of kvquant, see ledger/calibs.h; NULL: there are none */
	char *state_dir;    /* where files lie that outlive the daemon; NULL: there are none */
	bool runtime_dir_given; /* on the command line: the file cannot change it */
	char *socket;           /* file name of the main socket */
	char *user;             /* name or number to run as; "" = do not change */
	char *admin_group;
	uint64_t memory;   /* all DRAM that kvpoold may use for its segments */
	bool memory_given; /* by the file; else it was left to the machine */
	uint64_t extent; /* size of one extent, at least; grows to hold one slot of a large block */
	uint32_t populate_threads; /* first touch; 0: one per core, at most 8 */
	enum kvpd_tristate hugepages;
	enum kvpd_tristate mlock;
	int numa_node; /* or KVPD_NODE_* */
	char *policy;  /* name in policy/'s table */
	struct kvpd_advisor_config advisor;
	enum kvpd_tristate realtime; /* the ledger thread's class, see daemon/slice.h */
	uint32_t realtime_percent;   /* of a processor, see daemon/urgency.h */
	uint32_t claim_ttl_ms;
	uint32_t max_sessions;         /* of all tenants */
	uint32_t handshake_ms;         /* a connection that has not attached by then is closed */
	enum kvpd_tristate peer_pidfd; /* SO_PEERPIDFD; NEVER: pidfd_open and a nonce (tests) */
	unsigned log_level;            /* enum kvpd_level */
	bool unlisted_uids;    /* a uid in no tenant gets one of its own with the default limits */
	bool trust_daemon_uid; /* clients of kvpoold's own uid are let in */
	bool trust_overflow_uid;
	struct kvpd_limits defaults;
	struct kvpd_tenant_config *tenants;
	unsigned n_tenants;
	struct kvpd_device_entry *devices;
	unsigned n_devices; /* at most KVP_MAX_DEVICES */
};

/*
 * Reads `data` (`name` stands for it in messages). Relative and symbolic values are resolved:
 * limits that a tenant does not set are those of `defaults`, user names are uids. Limits that are 0
 * stay 0 (but `share`): the ledger works out what they mean. `memory`: what that is if the text
 * does not say (kvpd_memory_default()). Nothing of this machine but its users decides what is
 * right; kvpd_fit() asks the rest.
 *
 * -EINVAL: ret_error says "file:line: what is wrong and what would be right". -ENOMEM.
 */
int kvpd_config_parse(const char *name, const char *data, size_t bytes, uint64_t memory,
	char *ret_error, size_t error_bytes, struct kvpd_config **ret_config);
/* The file at path; NULL: built-in defaults. Also errors of open(2) and read(2), in words too. */
int kvpd_config_load(const char *path, uint64_t memory, char *ret_error, size_t error_bytes,
	struct kvpd_config **ret_config);
/* As if the file said so; errors as of kvpd_config_parse(). */
int kvpd_config_set_runtime_dir(
	struct kvpd_config *config, const char *dir, char *ret_error, size_t error_bytes);
struct kvpd_config *kvpd_config_free(struct kvpd_config *config);

/* The tenant that lists this uid on the main socket; NULL if none does. */
const struct kvpd_tenant_config *kvpd_config_by_uid(const struct kvpd_config *config, uid_t uid);
const struct kvpd_tenant_config *kvpd_config_by_name(
	const struct kvpd_config *config, const char *name);
/* Memory of the device comes in multiples of this. */
uint64_t kvpd_config_grain(const struct kvpd_device_entry *device);
/*
 * What these limits mean of a device: what they say or, where they do not, the part that would be each
 * tenant's if those that are listed shared it equally; all of it if none is.
 */
uint64_t kvpd_config_device_share(
	const struct kvpd_config *config, const struct kvpd_limits *limits, unsigned device);
bool kvpd_tenant_lists(const struct kvpd_tenant_config *tenant, uid_t uid);

#endif
