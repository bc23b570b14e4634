/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control protocol: SOCK_SEQPACKET packets between a client and kvpoold, for all that is not on
 * a hot path (attach, spaces, descriptors of segments, administration).
 *
 * A packet is a struct kvp_msg followed by `len` bytes of body, at most KVP_MSG_MAX in all, with
 * `n_fds` descriptors attached by SCM_RIGHTS. Both sides check: magic, exact length, exact count of
 * descriptors, body size of the type. A packet that fails any check ends the connection with
 * KVP_MSG_ERROR (-EPROTO); received descriptors are closed. `tag` is chosen by the asker and
 * echoed in the answer; packets that answer nothing carry tag 0.
 *
 *	client			daemon
 *	HELLO			WELCOME {catalog RO, session page RW, wake eventfd} or ERROR
 *				EXTENT for every live extent, then ATTACHED
 *	SPACE_OPEN		SPACE, with the calibration {RO} if the floor needs one, or ERROR
 *	SPACE_CLOSE		(none)
 *	ARENA_ACK		(answers an EXTENT of kind ARENA that the client owns)
 *	RETIRE_ACK		(answers RETIRE)
 *	EXTENT_GET		EXTENT or ERROR
 *	PROOF			(answers PROVE, which may come before WELCOME)
 *	BYE			(none) the client gives up its session: its last packet
 *	ADMIN			ADMIN_PART ... ADMIN_PART(last), or ERROR; admin connections only
 *
 * An arena's EXTENT goes to its owner first, writable; only when ARENA_ACK says that the owner has
 * mapped it does the daemon add F_SEAL_FUTURE_WRITE, tell the tenant's other sessions (EXTENT,
 * read-only) and grant slots in it.
 *
 * A calibration is a memfd with the file's bytes and no others, at most KVP_CALIBRATION_BYTES, sealed against every
 * change, which the client checks as it would check the file.
 *
 * A session lasts until its process is dead or it said BYE. A connection that merely ends does not
 * end it: the process may have lost its descriptor and still be reading under its leases. So it
 * lasts as long as the process has the session page open or mapped: who has not may not read.
 */
#ifndef KVP_PROTO_H
#define KVP_PROTO_H

#include "shm/kvp_abi.h"

#define KVP_MSG_MAGIC     0x4d50564bu /* "KVPM" */
#define KVP_MSG_MAX       65536u
#define KVP_MSG_MAX_FDS   3u
#define KVP_MSG_TEXT      224u
#define KVP_CLIENT_NAME   64u
#define KVP_ADMIN_REQUEST 16384u /* bytes of JSON in one request */

#define KVP_CALIBRATION_BYTES (16u << 20)

#define KVP_MSG_HELLO       1u
#define KVP_MSG_WELCOME     2u
#define KVP_MSG_ERROR       3u
#define KVP_MSG_ATTACHED    4u
#define KVP_MSG_SPACE_OPEN  5u
#define KVP_MSG_SPACE       6u
#define KVP_MSG_SPACE_CLOSE 7u
#define KVP_MSG_EXTENT      8u
#define KVP_MSG_EXTENT_GET  9u
#define KVP_MSG_ARENA_ACK   10u
#define KVP_MSG_RETIRE      11u
#define KVP_MSG_RETIRE_ACK  12u
#define KVP_MSG_ADMIN       13u
#define KVP_MSG_ADMIN_PART  14u
#define KVP_MSG_PROVE       15u /* daemon asks for SCM_CREDENTIALS with a nonce (no SO_PEERPIDFD) */
#define KVP_MSG_PROOF       16u
#define KVP_MSG_BYE         17u /* client gives its session up */
#define KVP_MSG_MAX_        18u

struct kvp_msg {
	uint32_t magic;
	uint16_t type;
	uint16_t n_fds;
	uint32_t len; /* bytes after this header */
	uint32_t tag;
};
KVP_ABI_ASSERT(sizeof(struct kvp_msg) == 16, "control protocol");

#define KVP_HELLO_CLIENT 0u /* attach: answered with WELCOME */
#define KVP_HELLO_ADMIN  1u /* administration: answered with an empty WELCOME, no descriptors */

/* Memory that a client can map besides DRAM; who names none is sent no extents of it. */
#define KVP_IMPORT_CUDA_FD  1u /* device memory behind a CUDA descriptor */
#define KVP_IMPORT_CUDA_IPC 2u /* behind a legacy CUDA handle, the first bytes of a memfd */
#define KVP_IMPORT_MEMFD    4u /* of a device whose memory is host memory */

struct kvp_msg_hello {
	uint32_t abi_min;
	uint32_t abi_max;
	uint32_t role;
	uint32_t imports;           /* KVP_IMPORT_* */
	char name[KVP_CLIENT_NAME]; /* shown by kvctl; zero-terminated */
};
KVP_ABI_ASSERT(sizeof(struct kvp_msg_hello) == 80, "control protocol");

/* Descriptors, in this order: catalog, session page, wake eventfd. */
struct kvp_msg_welcome {
	uint32_t abi;
	uint32_t session;
	uint32_t tenant;
	uint32_t reserved;
	uint64_t epoch;
	uint64_t catalog_bytes;
	uint64_t page_bytes;
};
KVP_ABI_ASSERT(sizeof(struct kvp_msg_welcome) == 40, "control protocol");

struct kvp_msg_error {
	int32_t error; /* negative errno */
	uint32_t reserved;
	char text[KVP_MSG_TEXT]; /* what happened and what to do, zero-terminated */
};
KVP_ABI_ASSERT(sizeof(struct kvp_msg_error) == 232, "control protocol");

struct kvp_msg_space_open {
	struct kvp_space_canon canon;
};

struct kvp_msg_space {
	uint32_t space; /* index in the catalog's table */
	uint32_t generation;
};
KVP_ABI_ASSERT(sizeof(struct kvp_msg_space) == 8, "control protocol");

#define KVP_EXTENT_WRITABLE 1u /* the receiver owns this arena */

/* Carries one descriptor. */
struct kvp_msg_extent {
	uint32_t extent;
	uint32_t generation;
	uint32_t kind;
	uint32_t flags;
	uint64_t bytes;
	uint32_t tier; /* this and the next three as in struct kvp_shm_extent */
	uint32_t device;
	uint32_t first_slot;
	uint32_t import; /* KVP_IMPORT_*: what its descriptor is; 0: a memfd */
	uint64_t slot_bytes;
};
KVP_ABI_ASSERT(sizeof(struct kvp_msg_extent) == 48, "control protocol");

/* Body of EXTENT_GET, ARENA_ACK, RETIRE, RETIRE_ACK and SPACE_CLOSE (id = space). */
struct kvp_msg_id {
	uint32_t id;
	uint32_t generation;
};
KVP_ABI_ASSERT(sizeof(struct kvp_msg_id) == 8, "control protocol");

/* Body of PROVE, and of PROOF, which is sent with SCM_CREDENTIALS. */
struct kvp_msg_nonce {
	uint64_t nonce;
};

/* ADMIN: body is JSON text, not terminated. ADMIN_PART: this, then a piece of the JSON answer. */
struct kvp_msg_admin_part {
	uint32_t last;  /* 1: the document is complete */
	int32_t status; /* of the whole request, in the last part: 0 or negative errno */
};
KVP_ABI_ASSERT(sizeof(struct kvp_msg_admin_part) == 8, "control protocol");

#endif
