/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pressure: the kernel says that tasks wait for memory, and the ledger gives some back. */
#include "daemon/control/pressure.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/control/state.h"
#include "daemon/log.h"

static void pressure_ready(struct kvpd_source *source, uint32_t events)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(60, 1);
	struct kvpd_control *c =
		(struct kvpd_control *)((char *)source - offsetof(struct kvpd_control, psi_source));
	uint64_t evicted = 0;

	if (!(events & EPOLLPRI)) {
		/* The kernel took the trigger back. */
		(void)epoll_ctl(c->epfd, EPOLL_CTL_DEL, c->psi_fd, NULL);
		return;
	}
	if (kvpd_relieve(c->ledger, &evicted) == 0)
		kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
			"the machine is short of memory: %" PRIu64
			" blocks evicted, nothing grows for a while; lower `memory`",
			evicted);
}

/* Tasks waited for memory 10 % of two seconds. Kernels without pressure information: no relief. */
void kvpd_pressure_watch(struct kvpd_control *c)
{
	static const char trigger[] = "some 200000 2000000";

	c->psi_source.ready = pressure_ready;
	c->psi_fd = open("/proc/pressure/memory", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (c->psi_fd < 0)
		return;
	if (write(c->psi_fd, trigger, sizeof(trigger)) < 0 ||
		kvpd_watch(c, c->psi_fd, EPOLLPRI, &c->psi_source) < 0) {
		close(c->psi_fd);
		c->psi_fd = -1;
	}
}
