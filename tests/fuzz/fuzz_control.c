/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control protocol: the control plane, with a data plane that caches nothing, in this process.
 * An input is what one client sends, packet by packet:
 *	mode 8, type 8, length 16, body
 * mode bit 0: the body is the whole packet, header and all; bits 1-2: descriptors attached; bit 3:
 *a count of descriptors that is not true; bit 4: a length that is not true. Whatever comes, no
 *descriptor and no session may stay behind.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/control/conn.h"
#include "daemon/control/control.h"
#include "daemon/control/flight.h"
#include "daemon/control/guest.h"
#include "daemon/control/loop.h"
#include "daemon/control/state.h"
#include "daemon/log.h"
#include "shm/kvp_msg.h"

#define MAX_PACKETS 32

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct kvpd_control *control;
static struct kvpd_ledger *ledger;
static struct sockaddr_un address = { .sun_family = AF_UNIX };
static char dir[] = "/tmp/kvpool-fuzz-XXXXXX";

static void must(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static void clean_up(void)
{
	char path[128];

	kvpd_control_stop(control);
	kvpd_ledger_free(ledger);
	kvpd_control_free(control);
	snprintf(path, sizeof(path), "%s/kvpool.sock", dir);
	unlink(path);
	rmdir(dir);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct kvpd_ledger_params params = { .epoch = 1, .post = kvpd_control_post };
	struct kvpd_account account;
	struct kvpd_config *config;
	char text[256], error[512];

	(void)argc, (void)argv;
	must(mkdtemp(dir) != NULL, "mkdtemp");
	snprintf(text, sizeof(text),
		"{runtime_dir: %s, user: \"\", trust_daemon_uid: true, trust_overflow_uid: true}",
		dir);
	must(kvpd_config_parse("fuzz", text, strlen(text), UINT64_C(1) << 30, error, sizeof(error),
		     &config) == 0,
		error);
	must(kvpd_account_find("", &account) == 0, "account");
	kvpd_log_init(KVPD_LOG_ERR);
	must(kvpd_control_new(config, &account, 1, &control) == 0, "control");
	params.config = config;
	params.ctx = control;
	must(kvpd_ledger_new(&params, &ledger) == 0, "ledger");
	must(kvpd_control_bind(control, ledger) == 0, "bind");
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/kvpool.sock", dir);
	atexit(clean_up);
	return 0;
}

static int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void turns(void)
{
	for (int i = 0; i < 4; i++)
		kvpd_control_turn(control, 0);
}

static void send_one(int sock, uint8_t mode, uint8_t type, const uint8_t *body, uint16_t len)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * 3)];
	} c = { 0 };
	const unsigned fds = mode >> 1 & 3;
	struct kvp_msg h = {
		.magic = KVP_MSG_MAGIC,
		.type = type,
		.n_fds = (uint16_t)(fds + (mode >> 3 & 1)),
		.len = len + (mode >> 4 & 1u),
		.tag = 3,
	};
	struct iovec iov[2] = { { &h, mode & 1 ? 0 : sizeof(h) }, { (void *)body, len } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };

	if (fds) {
		m.msg_control = c.buf;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * fds);
		c.align.cmsg_level = SOL_SOCKET;
		c.align.cmsg_type = SCM_RIGHTS;
		c.align.cmsg_len = CMSG_LEN(sizeof(int) * fds);
		for (unsigned i = 0; i < fds; i++)
			memcpy(CMSG_DATA(&c.align) + i * sizeof(int), &sock, sizeof(int));
	}
	(void)sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* What came back is closed with the message: the descriptors are ours. */
static void read_all(int sock)
{
	static struct kvp_packet packet;

	while (kvp_msg_recv(sock, KVP_MSG_TO_CLIENT, &packet) == 0)
		kvp_msg_done(&packet);
}

/*
 * An administrator's end that was sent through itself stays open until the daemon has read it, and
 * it reads nothing more while it writes an answer, which is long here, or waits for a drain to end.
 */
static void end_what_is_asked(void)
{
	struct kvpd_conn *conn, *next;

	for (conn = TAILQ_FIRST(&control->conns); conn; conn = next) {
		next = TAILQ_NEXT(conn, link);
		if (conn->asked)
			kvpd_conn_close(conn);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int before = count_fds();
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct kvpd_guest *g;

	must(sock >= 0 && connect(sock, (struct sockaddr *)&address, sizeof(address)) == 0,
		"connect");
	turns();
	for (int i = 0; i < MAX_PACKETS && size >= 4; i++) {
		uint16_t len = (uint16_t)(data[2] | data[3] << 8);

		if (len > size - 4)
			len = (uint16_t)(size - 4);
		send_one(sock, data[0], data[1], data + 4, len);
		data += 4 + len;
		size -= 4u + len;
		turns();
		read_all(sock);
	}
	close(sock);
	turns();
	/* This process does not die: its sessions are ended as if it had. */
	while ((g = TAILQ_FIRST(&control->guests)))
		kvpd_guest_end(g, "the input is over");
	turns();
	end_what_is_asked();
	turns();
	/* Descriptors in flight when it hung up: looked at once a second, or now. */
	kvpd_flight_drop(control);
	turns();
	must(TAILQ_EMPTY(&control->conns) && !control->n_conns && !control->n_pending &&
			!control->n_admins && TAILQ_EMPTY(&control->lost),
		"a connection stayed behind");
	must(!control->payers.n && !kvpd_turns_next(&control->payers.row), "a payer stayed behind");
	must(count_fds() == before, "a descriptor stayed behind");
	return 0;
}
