/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/e2e/raw.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"
#include "tests/e2e/e2e.h"

int raw_dial(const char *socket_path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", socket_path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

uint64_t raw_in(uint32_t ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + ms * UINT64_C(1000000);
}

/* The next packet of a type; answers arenas on the way. */
int raw_await(struct raw *s, uint16_t type)
{
	for (;;) {
		int r = kvp_msg_poll(s->sock, POLLIN, raw_in(E2E_LONG_MS));

		if (r < 0)
			return r;
		r = kvp_msg_recv(s->sock, KVP_MSG_TO_CLIENT, s->packet);
		if (r == -EAGAIN)
			continue;
		if (r < 0)
			return r;
		if (s->packet->h.type == KVP_MSG_EXTENT) {
			const struct kvp_msg_extent *e = (void *)s->packet->body;
			struct kvp_msg_id id = { e->extent, e->generation };

			if (e->flags & KVP_EXTENT_WRITABLE)
				kvp_msg_send(
					s->sock, KVP_MSG_ARENA_ACK, 0, &id, sizeof(id), NULL, 0);
		}
		if (s->packet->h.type == type || s->packet->h.type == KVP_MSG_ERROR)
			return s->packet->h.type == type ? 0 : -EPROTO;
		kvp_msg_done(s->packet);
	}
}

static void open_raw_space(struct raw *s)
{
	struct kvp_space_canon *canon = calloc(1, sizeof(*canon));

	canon->version = 1;
	canon->dtype = KVP_DTYPE_F16;
	canon->layout = KVP_LAYOUT_LCND;
	canon->block_tokens = E2E_BT;
	canon->n_layers = 1;
	strcpy(canon->model, "hostile");
	canon->layers[0].kv_heads = 1;
	canon->layers[0].k_dim = 16;
	canon->layers[0].v_dim = 16;
	assert_int_equal(
		kvp_msg_send(s->sock, KVP_MSG_SPACE_OPEN, 7, canon, sizeof(*canon), NULL, 0), 0);
	free(canon);
	assert_int_equal(raw_await(s, KVP_MSG_SPACE), 0);
	s->space = ((struct kvp_msg_space *)s->packet->body)->space;
	kvp_msg_done(s->packet);
}

void raw_attach(struct raw *s, const char *socket_path)
{
	struct kvp_msg_hello hello = { .abi_min = KVP_ABI_VERSION,
		.abi_max = KVP_ABI_VERSION,
		.role = KVP_HELLO_CLIENT,
		.imports = KVP_IMPORT_MEMFD,
		.name = "hostile" };
	struct kvp_msg_welcome w;
	void *base;

	memset(s, 0, sizeof(*s));
	s->packet = malloc(sizeof(*s->packet));
	s->sock = raw_dial(socket_path);
	assert_true(s->sock >= 0);
	assert_int_equal(
		kvp_msg_send(s->sock, KVP_MSG_HELLO, 1, &hello, sizeof(hello), NULL, 0), 0);
	assert_int_equal(raw_await(s, KVP_MSG_WELCOME), 0);
	memcpy(&w, s->packet->body, sizeof(w));
	assert_int_equal(kvp_seg_map(s->packet->fds[0], w.catalog_bytes, 0, &base), 0);
	assert_int_equal(kvp_catalog_attach(base, w.catalog_bytes, &s->view), 0);
	assert_int_equal(kvp_seg_map(s->packet->fds[1], w.page_bytes, KVP_MAP_WRITE, &base), 0);
	s->page = base;
	s->wake_fd = kvp_msg_take_fd(s->packet, 2);
	kvp_msg_done(s->packet);
	assert_int_equal(raw_await(s, KVP_MSG_ATTACHED), 0);
	kvp_msg_done(s->packet);
	open_raw_space(s);
}

int raw_arena(
	struct raw *s, unsigned seals, bool late, uint32_t timeout_ms, int *ret_fd, void **ret_addr)
{
	struct kvp_sqe sqe = { .op = KVP_OP_RESERVE, .space = (uint16_t)s->space, .count = 1 };
	uint64_t deadline = raw_in(timeout_ms);
	struct kvp_msg_extent e;
	struct kvp_msg_id id;

	assert_int_equal(kvp_sq_push(s->page, &s->sq_tail, &sqe), 0);
	raw_bell(s);
	/* Other extents come and go meanwhile. */
	for (;;) {
		if (kvp_msg_poll(s->sock, POLLIN, deadline) < 0)
			return -ETIMEDOUT;
		assert_int_equal(kvp_msg_recv(s->sock, KVP_MSG_TO_CLIENT, s->packet), 0);
		memcpy(&e, s->packet->body, sizeof(e));
		if (s->packet->h.type == KVP_MSG_EXTENT && e.flags & KVP_EXTENT_WRITABLE)
			break;
		kvp_msg_done(s->packet);
	}
	id = (struct kvp_msg_id){ e.extent, e.generation };
	*ret_fd = kvp_msg_take_fd(s->packet, 0);
	kvp_msg_done(s->packet);
	assert_int_equal(kvp_seg_map(*ret_fd, e.bytes, KVP_MAP_WRITE, ret_addr), 0);
	s->arena_bytes = e.bytes;
	if (seals && !late)
		assert_int_equal(kvp_seg_seal(*ret_fd, seals), 0);
	kvp_msg_send(s->sock, KVP_MSG_ARENA_ACK, 0, &id, sizeof(id), NULL, 0);
	if (!late)
		return 0;
	/* The first slot says that it has been taken. */
	for (struct kvp_cqe cqe; kvp_cq_pop(s->page, &s->cq_head, &cqe) < 0;)
		e2e_sleep_us(100);
	assert_int_equal(kvp_seg_seal(*ret_fd, seals), 0);
	return 0;
}

void raw_detach(struct raw *s)
{
	close(s->sock);
	close(s->wake_fd);
	munmap(s->page, sizeof(*s->page));
	free(s->packet);
}

void raw_bell(struct raw *s)
{
	uint64_t one = 1;

	if (write(s->wake_fd, &one, sizeof(one)) < 0)
		abort();
}
