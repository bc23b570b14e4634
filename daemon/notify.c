/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams to the service manager that wait for nobody. */
#include "daemon/notify.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "daemon/clock.h"

#define AGAIN_NS (100 * KVPD_MS)

int kvpd_notify_open(struct kvpd_notify *n, const char *name)
{
	size_t bytes = name ? strlen(name) : 0;

	*n = (struct kvpd_notify){ .fd = -1, .to.sun_family = AF_UNIX };
	if (!bytes)
		return 0;
	if ((name[0] != '/' && name[0] != '@') || bytes >= sizeof(n->to.sun_path))
		return -EAFNOSUPPORT;
	memcpy(n->to.sun_path, name, bytes);
	n->to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
	if (name[0] == '@')
		n->to.sun_path[0] = 0;
	else
		n->to_bytes++;
	/* Kept open: the watchdog is answered also while descriptors are short. */
	n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return n->fd < 0 ? -errno : 0;
}

/* Without the line of the same variable, if there is one. */
static void forget(struct kvpd_notify *n, const char *line)
{
	size_t key = strcspn(line, "=") + 1;

	for (char *at = n->unsent; *at;) {
		char *next = at + strcspn(at, "\n") + 1;

		if (!strncmp(at, line, key)) {
			memmove(at, next, strlen(next) + 1);
			return;
		}
		at = next;
	}
}

static void keep(struct kvpd_notify *n, const char *line, size_t bytes)
{
	size_t used;

	forget(n, line);
	used = strlen(n->unsent);
	if (used + bytes + 2 > sizeof(n->unsent))
		return;
	memcpy(n->unsent + used, line, bytes);
	memcpy(n->unsent + used + bytes, "\n", 2);
}

static void send_unsent(struct kvpd_notify *n, uint64_t now)
{
	ssize_t r = sendto(n->fd, n->unsent, strlen(n->unsent), MSG_NOSIGNAL | MSG_DONTWAIT,
		(const struct sockaddr *)&n->to, n->to_bytes);

	/* A manager that is gone will not hear it later; one that is slow, or a short kernel, may. */
	if (r < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM))
		n->again_ns = now + AGAIN_NS;
	else
		n->unsent[0] = 0;
}

void kvpd_notify(struct kvpd_notify *n, uint64_t now, const char *lines)
{
	if (n->fd < 0)
		return;
	while (*lines) {
		size_t bytes = strcspn(lines, "\n");

		keep(n, lines, bytes);
		lines += bytes + (lines[bytes] == '\n');
	}
	send_unsent(n, now);
}

uint64_t kvpd_notify_again(struct kvpd_notify *n, uint64_t now)
{
	if (!n->unsent[0])
		return UINT64_MAX;
	if (now >= n->again_ns)
		send_unsent(n, now);
	return n->unsent[0] ? n->again_ns : UINT64_MAX;
}

void kvpd_notify_close(struct kvpd_notify *n)
{
	if (n->fd >= 0)
		close(n->fd);
	n->fd = -1;
}
