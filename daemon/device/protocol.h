/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kvpoold and a worker (kvpool-device) say to each other: packets of fixed structs over one
 * SOCK_SEQPACKET pair, both sides of one build. Neither believes the other: a packet is checked whole
 * before anybody reads it, and whoever gets one that is malformed, or not in place, ends the worker.
 *
 * The worker says HELLO first, or WHY it cannot. Of the control questions (SEG_*, HOST_*, USAGE) one is open at a time,
 * and ANSWER carries its tag. Of copies at most KVPD_DRIVER_FLIGHT batches each way are open, each ended
 * by DONE; of sums at most KVPD_SUMS, each ended by SUMMED. The end of the connection ends the worker.
 */
#ifndef KVPD_PROTOCOL_H
#define KVPD_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/device/device.h"
#include "daemon/device/driver.h"

#define KVPD_PACKET_MAGIC  UINT32_C(0x4456504b) /* "KPVD" */
#define KVPD_WORKER_SOCKET 3                    /* the worker's descriptor of it */
#define KVPD_SUMS          16u

/* The receiving side. */
#define KVPD_TO_WORKER 0u
#define KVPD_TO_DAEMON 1u

#define KVPD_P_HELLO     1u  /* to the daemon: p_hello */
#define KVPD_P_SEG_MAKE  2u  /* to the worker: p_memory; the ANSWER has the descriptor */
#define KVPD_P_SEG_TAKE  3u  /* p_memory, with the segment's descriptor */
#define KVPD_P_SEG_DROP  4u  /* p_memory, bytes 0 */
#define KVPD_P_HOST_ADD  5u  /* p_memory, with the extent's descriptor */
#define KVPD_P_HOST_DROP 6u  /* p_memory, bytes 0 */
#define KVPD_P_USAGE     7u  /* nothing */
#define KVPD_P_COPY      8u  /* p_copy */
#define KVPD_P_SUM       9u  /* p_sum */
#define KVPD_P_ANSWER    10u /* to the daemon: p_answer */
#define KVPD_P_DONE      11u /* p_done */
#define KVPD_P_SUMMED    12u /* p_summed */
#define KVPD_P_WHY       13u /* p_why: it ends */
#define KVPD_P_MAX_      14u

struct kvpd_p_hello {
	uint64_t bytes, granularity;
	uint32_t flags; /* KVPD_DRIVER_* */
	int32_t numa_node;
	uint8_t uuid[16];
	uint64_t batch; /* KVPD_DRIVER_LEAST .. KVPD_DRIVER_MOST */
};

struct kvpd_p_memory {
	uint32_t id;
	uint32_t flags; /* HOST_ADD: KVPD_MEMORY_*; else 0 */
	uint64_t bytes;
};

struct kvpd_p_answer {
	int32_t status; /* 0 or negative errno */
	uint32_t reserved;
	uint64_t free, total, context; /* USAGE */
};

struct kvpd_p_copy {
	uint64_t batch;
	uint32_t way;
	uint32_t n; /* 1 .. KVPD_DRIVER_BATCH; so many follow */
	struct kvpd_copy copy[KVPD_DRIVER_BATCH];
};

struct kvpd_p_done {
	uint64_t batch;
	int32_t status;
	uint32_t reserved;
	uint64_t ns;
	uint64_t sum; /* of kvpd_done */
};

struct kvpd_p_sum {
	uint64_t seq;
	uint32_t host; /* 1: of an extent; 0: of a segment */
	uint32_t id;
	uint64_t off, bytes;
};

struct kvpd_p_summed {
	uint64_t seq;
	uint64_t sum;
	int32_t status; /* 0 or negative errno: it is not known */
	uint32_t reserved;
};

struct kvpd_p_why {
	uint32_t damage; /* KVPD_DAMAGE_* */
	uint32_t reserved;
	char text[KVPD_DRIVER_WHY]; /* ends with a zero; may be empty */
};

struct kvpd_p_head {
	uint32_t magic;
	uint16_t type;
	uint16_t n_fds; /* 0 or 1 */
	uint32_t len;   /* of the body */
	uint32_t tag;
};

struct kvpd_p {
	struct kvpd_p_head h;
	union {
		struct kvpd_p_hello hello;
		struct kvpd_p_memory memory;
		struct kvpd_p_answer answer;
		struct kvpd_p_copy copy;
		struct kvpd_p_why why;
		struct kvpd_p_done done;
		struct kvpd_p_sum sum;
		struct kvpd_p_summed summed;
		uint8_t bytes[sizeof(struct kvpd_p_copy)];
	} u;
	int fd; /* received: the caller's until kvpd_p_done_with(); -1: none */
};

/*
 * Is a packet of `bytes` bytes, header included, with `fds` descriptors one that this side may get?
 * All that can be judged without knowing what was said before. Reads no further than `bytes`.
 */
int kvpd_p_check(const struct kvpd_p *p, size_t bytes, unsigned fds, uint32_t side);

/*
 * 0; -EAGAIN: nothing there; -EPIPE: the other side is gone; -EPROTO: malformed, its descriptors are
 * closed; another errno of recvmsg(2). Does not wait.
 */
int kvpd_p_recv(int sock, uint32_t side, struct kvpd_p *ret_packet);
void kvpd_p_done_with(struct kvpd_p *p); /* closes the descriptor that nobody took */

/* fd -1: none; it stays the caller's. Does not wait: -EAGAIN: no room; -EPIPE, -ECONNRESET. */
/*
 * The daemon's end and the worker's. Either has room for all that may be under way to it, so that one that is full is
 * one that nobody reads: the kernel's own bound is for fewer batches.
 */
int kvpd_p_pair(int ret_pair[2]);
int kvpd_p_send(int sock, uint32_t type, uint32_t tag, const void *body, size_t len, int fd);
/* The same, but waits for room. */
int kvpd_p_send_wait(int sock, uint32_t type, uint32_t tag, const void *body, size_t len, int fd);

/* Bytes of a COPY with n pieces. */
static inline size_t kvpd_p_copy_len(uint32_t n)
{
	return offsetof(struct kvpd_p_copy, copy) + n * sizeof(struct kvpd_copy);
}

#endif
