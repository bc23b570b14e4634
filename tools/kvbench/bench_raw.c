/* SPDX-License-Identifier: Apache-2.0 */
/* A client without the library; see bench_raw.h. */
#include "tools/kvbench/bench_raw.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shm/kvp_lease.h"
#include "shm/kvp_seg.h"
#include "tools/kvbench/bench.h"

#define WAIT_NS UINT64_C(10000000000)
#define NAP_NS  20000

static int dial(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int r, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
		return fd;
	r = -errno;
	close(fd);
	return r;
}

/* What every packet asks for, whatever else it is. */
static void acknowledge(struct raw_session *s, const struct kvp_packet *packet)
{
	const struct kvp_msg_extent *e = (const void *)packet->body;
	const struct kvp_msg_id *retired = (const void *)packet->body;

	if (packet->h.type == KVP_MSG_EXTENT && e->flags & KVP_EXTENT_WRITABLE) {
		s->extent = (struct kvp_msg_id){ e->extent, e->generation };
		(void)kvp_msg_send(
			s->sock, KVP_MSG_ARENA_ACK, 0, &s->extent, sizeof(s->extent), NULL, 0);
	} else if (packet->h.type == KVP_MSG_RETIRE) {
		(void)kvp_msg_send(
			s->sock, KVP_MSG_RETIRE_ACK, 0, retired, sizeof(*retired), NULL, 0);
	}
}

/* The next packet of a type, which the caller ends with kvp_msg_done(). */
static int await(struct raw_session *s, struct kvp_packet *packet, uint16_t type)
{
	const uint64_t until = bench_now() + WAIT_NS;

	for (;;) {
		int r = kvp_msg_poll(s->sock, POLLIN, until);

		if (r == 0)
			r = kvp_msg_recv(s->sock, KVP_MSG_TO_CLIENT, packet);
		if (r == -EAGAIN)
			continue;
		if (r < 0)
			return r;
		acknowledge(s, packet);
		if (packet->h.type == type)
			return 0;
		if (packet->h.type == KVP_MSG_ERROR)
			r = ((const struct kvp_msg_error *)packet->body)->error;
		kvp_msg_done(packet);
		if (r < 0)
			return r;
	}
}

static int take_segments(struct raw_session *s, struct kvp_packet *packet)
{
	const struct kvp_msg_welcome *w = (const void *)packet->body;
	void *base;
	int r;

	s->catalog_bytes = w->catalog_bytes;
	s->page_bytes = w->page_bytes;
	r = kvp_seg_map(packet->fds[0], w->catalog_bytes, 0, &base);
	if (r < 0)
		return r;
	r = kvp_catalog_attach(base, w->catalog_bytes, &s->view);
	if (r < 0) {
		kvp_seg_unmap(base, w->catalog_bytes);
		return r;
	}
	r = kvp_seg_map(packet->fds[1], w->page_bytes, KVP_MAP_WRITE, &base);
	if (r < 0)
		return r;
	s->page = base;
	s->wake_fd = kvp_msg_take_fd(packet, 2);
	return 0;
}

int raw_attach(const char *socket, struct kvp_packet *packet, struct raw_session *ret_session)
{
	const struct kvp_msg_hello hello = {
		.abi_min = KVP_ABI_VERSION,
		.abi_max = KVP_ABI_VERSION,
		.role = KVP_HELLO_CLIENT,
		.name = "kvbench-raw",
	};
	struct raw_session s = { .wake_fd = -1 };
	int r;

	s.sock = r = dial(socket);
	if (r < 0)
		return r;
	r = kvp_msg_send(s.sock, KVP_MSG_HELLO, 1, &hello, sizeof(hello), NULL, 0);
	if (r == 0)
		r = await(&s, packet, KVP_MSG_WELCOME);
	if (r == 0) {
		r = take_segments(&s, packet);
		kvp_msg_done(packet);
	}
	if (r == 0)
		r = await(&s, packet, KVP_MSG_ATTACHED);
	if (r < 0) {
		raw_detach(&s, false);
		return r;
	}
	kvp_msg_done(packet);
	*ret_session = s;
	return 0;
}

int raw_space(struct raw_session *s, struct kvp_packet *packet, const char *model, uint32_t tokens,
	uint32_t dim)
{
	struct kvp_space_canon canon = {
		.version = 1,
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = tokens,
		.n_layers = 1,
		.layers = { { .kv_heads = 1, .k_dim = (uint16_t)dim, .v_dim = (uint16_t)dim } },
	};
	int r;

	snprintf(canon.model, sizeof(canon.model), "%s", model);
	r = kvp_msg_send(s->sock, KVP_MSG_SPACE_OPEN, 2, &canon, sizeof(canon), NULL, 0);
	if (r == 0)
		r = await(s, packet, KVP_MSG_SPACE);
	if (r < 0)
		return r;
	s->space = ((const struct kvp_msg_space *)packet->body)->space;
	s->block_tokens = tokens;
	kvp_msg_done(packet);
	return 0;
}

void raw_detach(struct raw_session *s, bool bye)
{
	if (bye)
		(void)kvp_msg_send(s->sock, KVP_MSG_BYE, 0, NULL, 0, NULL, 0);
	close(s->sock);
	if (s->wake_fd >= 0)
		close(s->wake_fd);
	kvp_seg_unmap(s->page, s->page_bytes);
	kvp_seg_unmap(s->view.cat, s->catalog_bytes);
}

int raw_listen(struct raw_session *s, struct kvp_packet *packet)
{
	int r;

	while ((r = kvp_msg_recv(s->sock, KVP_MSG_TO_CLIENT, packet)) == 0) {
		acknowledge(s, packet);
		kvp_msg_done(packet);
	}
	return r == -EAGAIN ? 0 : r;
}

int raw_submit(struct raw_session *s, struct kvp_sqe *sqe)
{
	const uint64_t one = 1;
	int r;

	sqe->serial = s->serial + 1;
	r = kvp_sq_push(s->page, &s->sq_tail, sqe);
	if (r == 0)
		s->serial++;
	/* Also when it is full: an entry may lie there that the ledger was not woken for. */
	if (kvp_sq_must_wake(s->page) && write(s->wake_fd, &one, sizeof(one)) < 0)
		return -errno;
	return r;
}

static void note(struct raw_session *s, const struct kvp_cqe *cqe)
{
	if (cqe->op == KVP_OP_RESERVE) {
		s->reserving = cqe->status == 0 && cqe->more;
		if (cqe->status == 0 && s->n_grants < KVP_MAX_GRANTS)
			s->grant[s->n_grants++] =
				(struct raw_grant){ cqe->grant, cqe->grant_generation };
	} else if (cqe->op == KVP_OP_COMMIT && cqe->status == 0) {
		s->last = (struct raw_block){ cqe->block, cqe->birth };
	}
}

uint32_t raw_drain(struct raw_session *s)
{
	struct kvp_cqe cqe;
	uint32_t n = 0;

	for (; kvp_cq_pop(s->page, &s->cq_head, &cqe) == 0; n++)
		note(s, &cqe);
	return n;
}

static int await_completion(struct raw_session *s, struct kvp_packet *packet, uint32_t op,
	uint32_t serial, struct kvp_cqe *ret_cqe)
{
	const struct timespec nap = { .tv_nsec = NAP_NS };
	const uint64_t until = bench_now() + WAIT_NS;

	for (;;) {
		int r;

		while (kvp_cq_pop(s->page, &s->cq_head, ret_cqe) == 0) {
			note(s, ret_cqe);
			if (ret_cqe->op == op && ret_cqe->serial == serial && !ret_cqe->more)
				return ret_cqe->status;
		}
		r = raw_listen(s, packet);
		if (r < 0)
			return r;
		if (bench_now() > until)
			return -ETIMEDOUT;
		nanosleep(&nap, NULL);
	}
}

int raw_ask(struct raw_session *s, struct kvp_packet *packet, struct kvp_sqe *sqe,
	struct kvp_cqe *ret_cqe)
{
	int r = raw_submit(s, sqe);

	return r < 0 ? r : await_completion(s, packet, sqe->op, sqe->serial, ret_cqe);
}

int raw_commit(struct raw_session *s, uint32_t parent_kind, struct raw_block parent)
{
	struct raw_grant g = s->grant[s->n_grants - 1];
	kvp_token *row = s->page->staging[g.id % KVP_MAX_GRANTS];
	struct kvp_sqe sqe = {
		.op = KVP_OP_COMMIT,
		.flags = KVP_SQE_RELEASE,
		.space = (uint16_t)s->space,
		.tokens = (uint16_t)s->block_tokens,
		.grant = g.id,
		.grant_generation = g.generation,
		.parent_kind = parent_kind,
		.parent_id = parent.id,
		.parent_birth = parent.birth,
	};
	int r;

	s->number++;
	row[0] = s->page->session;
	row[1] = (kvp_token)s->number;
	row[2] = (kvp_token)(s->number >> 32);
	memset(row + 3, 0, (s->block_tokens - 3) * sizeof(*row));
	r = raw_submit(s, &sqe);
	if (r == 0)
		s->n_grants--;
	return r;
}

/* Until there is a grant: the daemon says -EAGAIN as long as the arena is on its way. */
static int reserve(struct raw_session *s, struct kvp_packet *packet)
{
	const uint64_t until = bench_now() + WAIT_NS;
	struct kvp_sqe sqe = {
		.op = KVP_OP_RESERVE,
		.space = (uint16_t)s->space,
		.count = 1,
	};
	struct kvp_cqe cqe;
	int r = 0;

	while (!s->n_grants && (r == 0 || r == -EAGAIN) && bench_now() < until)
		r = raw_ask(s, packet, &sqe, &cqe);
	return s->n_grants ? 0 : r;
}

int raw_put(struct raw_session *s, struct kvp_packet *packet, const struct raw_block *parent,
	struct raw_block *ret_block)
{
	const struct raw_block none = { 0 };
	struct kvp_cqe cqe;
	int r = reserve(s, packet);

	if (r == 0)
		r = raw_commit(
			s, parent ? KVP_PARENT_BLOCK : KVP_PARENT_ROOT, parent ? *parent : none);
	if (r == 0)
		r = await_completion(s, packet, KVP_OP_COMMIT, s->serial, &cqe);
	if (r == 0)
		*ret_block = s->last;
	return r;
}

int raw_delete(struct raw_session *s, struct raw_block block)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_DELETE,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = block.id,
		.parent_birth = block.birth,
	};

	return raw_submit(s, &sqe);
}

void raw_lease_all(struct raw_session *s, struct raw_block block)
{
	const uint64_t value = kvp_slot_value(block.id, kvp_word(block.birth, 0, 0));

	for (uint32_t i = 0; i < KVP_SHARDS; i++)
		for (uint32_t k = 0; k < KVP_SHARD_LEASES; k++)
			kvp_store_seq(&s->page->lease[i][k], value);
	for (uint32_t i = 0; i < KVP_LEASES / KVP_LEASE_LINE / 64; i++)
		kvp_store_seq(&s->page->lease_lines[i], UINT64_MAX);
}
