/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending and receiving one packet of the control protocol (kvp_proto.h), for both sides.
 *
 * Nothing here blocks but kvp_msg_poll(). Any thread; one packet is one system call, so that
 * several threads may send on one socket, but a packet buffer belongs to one thread.
 */
#ifndef KVP_MSG_H
#define KVP_MSG_H

#include <stdbool.h>
#include <sys/socket.h>

#include "shm/kvp_proto.h"

/* The receiving side: each accepts only what the other one may send. */
#define KVP_MSG_TO_DAEMON 0u
#define KVP_MSG_TO_CLIENT 1u

#define KVP_MSG_BODY_MAX (KVP_MSG_MAX - sizeof(struct kvp_msg))

/* A received packet. Large (64 KiB): allocate one per thread and use it again. */
struct kvp_packet {
	struct kvp_msg h;
	KVP_ALIGNED(16) uint8_t body[KVP_MSG_BODY_MAX]; /* h.len bytes are valid */
	int fds[KVP_MSG_MAX_FDS]; /* h.n_fds of them are the caller's; the others are -1 */
	bool has_cred;            /* SCM_CREDENTIALS came with it (SO_PASSCRED is set) */
	struct ucred cred;
};

/*
 * Receives one packet and checks it whole: magic, type allowed in this direction, length, count of
 * descriptors, body size of the type; strings in the fixed bodies are terminated.
 *
 * 0; -EAGAIN: none there; -EPIPE: the other side has closed; -EPROTO: malformed, all descriptors
 * that came with it are closed; another negative errno of recvmsg(2). *ret_packet is valid only
 * after 0.
 */
int kvp_msg_recv(int sock, uint32_t direction, struct kvp_packet *ret_packet);

/*
 * Closes the descriptors of a packet that nobody has taken (taken ones are set to -1 by
 * kvp_msg_take_fd()). Every received packet ends here.
 */
void kvp_msg_done(struct kvp_packet *packet);
int kvp_msg_take_fd(struct kvp_packet *packet, unsigned i);

/*
 * Sends one packet, whole or not at all; the descriptors stay the caller's. -EAGAIN: no room in the
 * socket (poll for it); -EPIPE, -ECONNRESET: nobody reads; -EMSGSIZE: body or n_fds beyond the
 * protocol's limits.
 */
int kvp_msg_send(int sock, uint16_t type, uint32_t tag, const void *body, size_t len,
	const int *fds, unsigned n_fds);

/* The answer to PROVE: the nonce, with this process's SCM_CREDENTIALS. Errors as above. */
int kvp_msg_send_proof(int sock, uint32_t tag, const struct kvp_msg_nonce *nonce);

/*
 * Waits until the socket has `events` (POLLIN, POLLOUT) or has hung up, at most until deadline_ns
 * on CLOCK_MONOTONIC (UINT64_MAX: for ever). 0; -ETIMEDOUT.
 */
int kvp_msg_poll(int sock, short events, uint64_t deadline_ns);

#endif
