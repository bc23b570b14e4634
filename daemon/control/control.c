/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane's life: its descriptors, its signals, the configuration's tenants. */
#include "daemon/control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/control/conn.h"
#include "daemon/control/flight.h"
#include "daemon/control/guest.h"
#include "daemon/control/listener.h"
#include "daemon/control/loop.h"
#include "daemon/control/peer.h"
#include "daemon/control/posted.h"
#include "daemon/control/pressure.h"
#include "daemon/control/reload.h"
#include "daemon/control/state.h"
#include "daemon/control/tenants.h"
#include "daemon/log.h"
#include "shm/kvp_msg.h"

void kvpd_find_admin_group(struct kvpd_control *c)
{
	const char *name = c->config->admin_group;
	const struct group *g;
	char *end;
	unsigned long n;

	c->has_admin_gid = false;
	if (!*name)
		return;
	n = strtoul(name, &end, 10);
	g = getgrnam(name);
	if (!g && (*end || *name < '0' || *name > '9' || n >= UINT32_MAX)) {
		kvpd_warning("there is no group '%s' (admin_group): only root administers", name);
		return;
	}
	c->admin_gid = g ? g->gr_gid : (gid_t)n;
	c->has_admin_gid = true;
}

/* ---- signals ------------------------------------------------------------------------------- */

static void signal_ready(struct kvpd_source *source, uint32_t events)
{
	struct kvpd_control *c =
		(struct kvpd_control *)((char *)source - offsetof(struct kvpd_control, sig_source));
	struct signalfd_siginfo info;

	(void)events;
	while (read(c->sigfd, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGHUP) {
			kvpd_reload(c);
		} else {
			kvpd_notice("stopping: %s", strsignal((int)info.ssi_signo));
			c->stop = true;
		}
	}
}

static int open_signals(struct kvpd_control *c)
{
	sigset_t set;

	/* A client that closed its end must not end the daemon, nor who opens a leased file. */
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR || signal(SIGIO, SIG_IGN) == SIG_ERR)
		return -errno;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	c->sigfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (c->sigfd < 0)
		return -errno;
	c->sig_source.ready = signal_ready;
	return kvpd_watch(c, c->sigfd, EPOLLIN, &c->sig_source);
}

/* ---- life ---------------------------------------------------------------------------------- */

static int open_loop(struct kvpd_control *c)
{
	struct rlimit files;
	uint64_t watchdog_us;
	int r;

	c->epfd = epoll_create1(EPOLL_CLOEXEC);
	c->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (c->epfd < 0 || c->spare_fd < 0)
		return -errno;
	r = kvpd_posted_open(c);
	if (r == 0)
		r = open_signals(c);
	if (r < 0)
		return r;
	kvpd_pressure_open(c);
	c->packet = malloc(sizeof(*c->packet));
	if (!c->packet)
		return -ENOMEM;
	kvpd_flight_limit(c, getrlimit(RLIMIT_NOFILE, &files) == 0 ? files.rlim_cur : 1024);
	r = kvpd_notify_open(&c->manager, getenv("NOTIFY_SOCKET"));
	if (r < 0)
		kvpd_warning("the service manager is told nothing: %s", strerror(-r));
	if (sd_watchdog_enabled(0, &watchdog_us) > 0)
		c->watchdog_ns = watchdog_us * 1000 / 3;
	return 0;
}

int kvpd_control_new(struct kvpd_config *config, const struct kvpd_account *account, uint64_t epoch,
	struct kvpd_control **ret_control)
{
	struct kvpd_control *c = calloc(1, sizeof(*c));
	int r;

	if (!c) {
		kvpd_config_free(config);
		return -ENOMEM;
	}
	*c = (struct kvpd_control){
		.epfd = -1,
		.sigfd = -1,
		.evfd = -1,
		.manager = { .fd = -1 },
		.pressure = { .machine.fd = -1, .group.fd = -1 },
		.spare_fd = -1,
		.config = config,
		.first_config = config,
		.account = *account,
		.overflow_uid = kvpd_overflow_uid(),
		.held_due_ns = UINT64_MAX,
		.epoch = epoch,
	};
	TAILQ_INIT(&c->listeners);
	TAILQ_INIT(&c->conns);
	TAILQ_INIT(&c->dead_conns);
	TAILQ_INIT(&c->pending);
	TAILQ_INIT(&c->stuck);
	TAILQ_INIT(&c->held);
	TAILQ_INIT(&c->lingering);
	TAILQ_INIT(&c->guests);
	TAILQ_INIT(&c->lost);
	TAILQ_INIT(&c->dead_guests);
	TAILQ_INIT(&c->dead_listeners);
	TAILQ_INIT(&c->tenants);
	STAILQ_INIT(&c->posted);
	pthread_mutex_init(&c->lock, NULL);
	kvpd_find_admin_group(c);
	r = kvpd_payers_init(&c->payers, KVPD_MAX_TENANTS + 1);
	kvpd_rates_init(&c->rates, &c->payers.row);
	if (r == 0)
		r = open_loop(c);
	if (r < 0)
		kvpd_err("cannot set up the control thread: %s", strerror(-r));
	else
		r = kvpd_listen_all(c);
	if (r < 0) {
		kvpd_control_stop(c);
		kvpd_control_free(c);
		return r;
	}
	*ret_control = c;
	return 0;
}

int kvpd_control_bind(struct kvpd_control *c, struct kvpd_ledger *ledger)
{
	c->ledger = ledger;
	for (unsigned i = 0; i < c->config->n_tenants; i++) {
		const struct kvpd_tenant_config *t = &c->config->tenants[i];
		struct kvpd_tenant_entry *d;
		int r = kvpd_entry_open(c, t->name, &t->limits, true, &d);

		if (r < 0) {
			kvpd_err("cannot make tenant '%s': %s", t->name,
				r == -ENOSPC ? "the shares of all tenants exceed `memory`"
					     : strerror(-r));
			return r;
		}
	}
	return 0;
}

void kvpd_control_stop(struct kvpd_control *c)
{
	struct kvpd_conn *conn;
	struct kvpd_guest *g;
	struct kvpd_listener *l;

	while ((l = TAILQ_FIRST(&c->listeners)))
		kvpd_listener_remove(l);
	while ((conn = TAILQ_FIRST(&c->conns)))
		kvpd_conn_close(conn);
	kvpd_flight_drop(c);
	/* The ledger is about to go whole: its sessions need not be detached one by one. */
	while ((g = TAILQ_FIRST(&c->guests)))
		kvpd_guest_end_here(g);
	kvpd_control_bury(c);
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

struct kvpd_control *kvpd_control_free(struct kvpd_control *c)
{
	struct kvpd_tenant_entry *d;

	if (!c)
		return NULL;
	while ((d = TAILQ_FIRST(&c->tenants))) {
		kvpd_posted_end(d);
		TAILQ_REMOVE(&c->tenants, d, link);
		free(d);
	}
	kvpd_posted_drop(c);
	close_fd(c->epfd);
	close_fd(c->sigfd);
	close_fd(c->evfd);
	kvpd_pressure_close(c);
	kvpd_rates_fini(&c->rates);
	close_fd(c->spare_fd);
	kvpd_notify_close(&c->manager);
	free(c->packet);
	kvpd_payers_fini(&c->payers);
	kvpd_turns_fini(&c->doors);
	pthread_mutex_destroy(&c->lock);
	if (c->first_config != c->config)
		kvpd_config_free(c->first_config);
	kvpd_config_free(c->config);
	free(c);
	return NULL;
}
