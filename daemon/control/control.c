/* SPDX-License-Identifier: Apache-2.0 */
/* The loop: what wakes the control thread, and its deadlines. */
#include "daemon/control/control_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "daemon/control/listen.h"

#define TURN_EVENTS 64

int kvpd_watch(struct kvpd_control *c, int fd, uint32_t events, struct kvpd_source *source)
{
	struct epoll_event e = { .events = events, .data.ptr = source };

	return epoll_ctl(c->epfd, EPOLL_CTL_ADD, fd, &e) < 0 ? -errno : 0;
}

struct kvpd_domain *kvpd_domain_by_name(struct kvpd_control *c, const char *name)
{
	struct kvpd_domain *d;

	TAILQ_FOREACH(d, &c->domains, link)
		if (!strcmp(d->name, name))
			return d;
	return NULL;
}

struct kvpd_session *kvpd_session_by_id(struct kvpd_control *c, uint32_t id)
{
	struct kvpd_session *s;

	TAILQ_FOREACH(s, &c->sessions, link)
		if (s->id == id)
			return s;
	return NULL;
}

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

/* ---- listeners ----------------------------------------------------------------------------- */

static void listener_ready(struct kvpd_source *source, uint32_t events)
{
	(void)events;
	kvpd_conn_accept((struct kvpd_listener *)source);
}

static void listener_free(struct kvpd_listener *l)
{
	free(l->name);
	free(l->tenant);
	free(l);
}

int kvpd_listener_add(struct kvpd_control *c, const char *tenant, const char *name, mode_t mode)
{
	struct kvpd_listener *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	*l = (struct kvpd_listener){ .source.ready = listener_ready, .control = c, .fd = -1 };
	r = kvpd_listen_passed(tenant ? tenant : "kvpool", &l->fd);
	if (r == -ENOENT) {
		l->name = strdup(name);
		r = l->name ? kvpd_listen(c->config->runtime_dir, name, mode, c->account.uid,
				      c->account.gid, &l->fd)
			    : -ENOMEM;
	}
	if (r == 0 && tenant && !(l->tenant = strdup(tenant)))
		r = -ENOMEM;
	if (r == 0)
		r = kvpd_watch(c, l->fd, EPOLLIN, &l->source);
	if (r < 0) {
		if (l->fd >= 0)
			close(l->fd);
		listener_free(l);
		return r;
	}
	TAILQ_INSERT_TAIL(&c->listeners, l, link);
	return 0;
}

void kvpd_listener_remove(struct kvpd_listener *l)
{
	struct kvpd_control *c = l->control;

	close(l->fd);
	if (l->name)
		kvpd_unlisten(c->config->runtime_dir, l->name);
	l->source.dead = true;
	TAILQ_REMOVE(&c->listeners, l, link);
	TAILQ_INSERT_TAIL(&c->dead_listeners, l, link);
}

/* The socket of a tenant that lists no uids is root's, and whoever root lets in. */
static int listen_all(struct kvpd_control *c)
{
	const struct kvpd_config *config = c->config;
	int r = kvpd_listener_add(c, NULL, config->socket, 0666);

	for (unsigned i = 0; r == 0 && i < config->n_tenants; i++) {
		const struct kvpd_tenant_config *t = &config->tenants[i];

		if (t->socket)
			r = kvpd_listener_add(c, t->name, t->socket, t->n_uids ? 0666 : 0600);
	}
	kvpd_listen_passed_rest();
	return r;
}

/* ---- events of the ledger ------------------------------------------------------------------ */

void kvpd_control_post(void *ctx, const struct kvpd_event *event)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(10, 1);
	struct kvpd_control *c = ctx;
	struct kvpd_posted *p = malloc(sizeof(*p));
	const uint64_t one = 1;

	if (!p) {
		kvpd_log_limited(
			&limit, KVPD_LOG_ERR, NULL, "out of memory: a message to clients is lost");
		if (event->fd >= 0)
			close(event->fd);
		return;
	}
	p->event = *event;
	pthread_mutex_lock(&c->lock);
	STAILQ_INSERT_TAIL(&c->posted, p, link);
	pthread_mutex_unlock(&c->lock);
	/* Fails only when the counter is at its end: then it is readable anyway. */
	if (write(c->evfd, &one, sizeof(one)) < 0)
		return;
}

static struct kvpd_posted *take_posted(struct kvpd_control *c)
{
	struct kvpd_posted *p;

	pthread_mutex_lock(&c->lock);
	p = STAILQ_FIRST(&c->posted);
	if (p)
		STAILQ_REMOVE_HEAD(&c->posted, link);
	pthread_mutex_unlock(&c->lock);
	return p;
}

void kvpd_forget_events(struct kvpd_control *c, uint32_t tenant)
{
	struct kvpd_posted *p, *next;

	pthread_mutex_lock(&c->lock);
	for (p = STAILQ_FIRST(&c->posted); p; p = next) {
		next = STAILQ_NEXT(p, link);
		if (p->event.tenant != tenant)
			continue;
		STAILQ_REMOVE(&c->posted, p, kvpd_posted, link);
		if (p->event.fd >= 0)
			close(p->event.fd);
		free(p);
	}
	pthread_mutex_unlock(&c->lock);
}

static void events_ready(struct kvpd_source *source, uint32_t events)
{
	struct kvpd_control *c =
		(struct kvpd_control *)((char *)source - offsetof(struct kvpd_control, ev_source));
	struct kvpd_posted *p;
	uint64_t n;

	(void)events;
	if (read(c->evfd, &n, sizeof(n)) < 0 && errno != EAGAIN)
		return;
	while ((p = take_posted(c))) {
		kvpd_session_event(c, &p->event);
		free(p);
	}
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

	/* A client that closed its end must not end the daemon. */
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
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

/* ---- memory pressure ----------------------------------------------------------------------- */

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
static void watch_pressure(struct kvpd_control *c)
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

/* ---- making and freeing -------------------------------------------------------------------- */

static int open_loop(struct kvpd_control *c)
{
	struct rlimit files;
	uint64_t watchdog_us;
	int r;

	c->epfd = epoll_create1(EPOLL_CLOEXEC);
	c->evfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (c->epfd < 0 || c->evfd < 0 || c->spare_fd < 0)
		return -errno;
	c->ev_source.ready = events_ready;
	r = kvpd_watch(c, c->evfd, EPOLLIN, &c->ev_source);
	if (r == 0)
		r = open_signals(c);
	if (r < 0)
		return r;
	watch_pressure(c);
	c->packet = malloc(sizeof(*c->packet));
	if (!c->packet)
		return -ENOMEM;
	c->queued_fds_max = 256;
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 4 > c->queued_fds_max)
		c->queued_fds_max =
			files.rlim_cur / 4 < 65536 ? (uint32_t)(files.rlim_cur / 4) : 65536;
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
		.psi_fd = -1,
		.spare_fd = -1,
		.config = config,
		.first_config = config,
		.account = *account,
		.overflow_uid = kvpd_overflow_uid(),
		.epoch = epoch,
		.start_ns = kvpd_now_ns(),
	};
	TAILQ_INIT(&c->listeners);
	TAILQ_INIT(&c->conns);
	TAILQ_INIT(&c->dead_conns);
	TAILQ_INIT(&c->sessions);
	TAILQ_INIT(&c->dead_sessions);
	TAILQ_INIT(&c->dead_listeners);
	TAILQ_INIT(&c->domains);
	STAILQ_INIT(&c->posted);
	pthread_mutex_init(&c->lock, NULL);
	kvpd_find_admin_group(c);
	r = open_loop(c);
	if (r < 0)
		kvpd_err("cannot set up the control thread: %s", strerror(-r));
	else
		r = listen_all(c);
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
		struct kvpd_domain *d;
		int r = kvpd_domain_open(c, t->name, &t->limits, true, &d);

		if (r < 0) {
			kvpd_err("cannot make tenant '%s': %s", t->name,
				r == -ENOSPC ? "the shares of all tenants exceed `memory`"
					     : strerror(-r));
			return r;
		}
	}
	return 0;
}

static void bury(struct kvpd_control *c)
{
	struct kvpd_conn *conn;
	struct kvpd_session *s;
	struct kvpd_listener *l;

	while ((conn = TAILQ_FIRST(&c->dead_conns))) {
		TAILQ_REMOVE(&c->dead_conns, conn, link);
		kvpd_conn_free(conn);
	}
	while ((s = TAILQ_FIRST(&c->dead_sessions))) {
		TAILQ_REMOVE(&c->dead_sessions, s, link);
		free(s);
	}
	while ((l = TAILQ_FIRST(&c->dead_listeners))) {
		TAILQ_REMOVE(&c->dead_listeners, l, link);
		listener_free(l);
	}
}

void kvpd_control_stop(struct kvpd_control *c)
{
	struct kvpd_conn *conn;
	struct kvpd_session *s;
	struct kvpd_listener *l;

	while ((l = TAILQ_FIRST(&c->listeners)))
		kvpd_listener_remove(l);
	while ((conn = TAILQ_FIRST(&c->conns)))
		kvpd_conn_close(conn);
	/* The ledger is about to go whole: its sessions need not be detached one by one. */
	while ((s = TAILQ_FIRST(&c->sessions))) {
		close(s->pidfd);
		TAILQ_REMOVE(&c->sessions, s, link);
		TAILQ_INSERT_TAIL(&c->dead_sessions, s, link);
	}
	bury(c);
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

struct kvpd_control *kvpd_control_free(struct kvpd_control *c)
{
	struct kvpd_domain *d;
	struct kvpd_posted *p;

	if (!c)
		return NULL;
	while ((d = TAILQ_FIRST(&c->domains))) {
		TAILQ_REMOVE(&c->domains, d, link);
		free(d);
	}
	while ((p = take_posted(c))) {
		close_fd(p->event.fd);
		free(p);
	}
	close_fd(c->epfd);
	close_fd(c->sigfd);
	close_fd(c->evfd);
	close_fd(c->psi_fd);
	close_fd(c->spare_fd);
	free(c->packet);
	pthread_mutex_destroy(&c->lock);
	if (c->first_config != c->config)
		kvpd_config_free(c->first_config);
	kvpd_config_free(c->config);
	free(c);
	return NULL;
}

/* ---- the loop ------------------------------------------------------------------------------ */

/* At most once a second: sending waits if systemd is slow to read. */
static uint64_t tell_systemd(struct kvpd_control *c, uint64_t now)
{
	if (!c->status_changed)
		return UINT64_MAX;
	if (now >= c->next_status_ns) {
		c->status_changed = false;
		c->next_status_ns = now + 1000000000u;
		sd_notifyf(0, "STATUS=%u sessions, %u connections", c->n_sessions, c->n_conns);
		return UINT64_MAX;
	}
	return c->next_status_ns;
}

/* A round trip through the ledger: a ping says that both threads are alive. */
static uint64_t watchdog(struct kvpd_control *c, uint64_t now)
{
	struct kvp_msg_extent extent;
	int fd;

	if (!c->watchdog_ns)
		return UINT64_MAX;
	if (now >= c->next_watchdog_ns) {
		if (kvpd_extent_get(c->ledger, 0, 0, &extent, &fd) == 0)
			close(fd);
		sd_notify(0, "WATCHDOG=1");
		c->next_watchdog_ns = now + c->watchdog_ns;
	}
	return c->next_watchdog_ns;
}

static int until(uint64_t due, uint64_t now)
{
	uint64_t ms;

	if (due == UINT64_MAX)
		return -1;
	ms = due > now ? (due - now + 999999u) / 1000000u : 0;
	return ms < 3600000 ? (int)ms : 3600000;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

int kvpd_control_turn(struct kvpd_control *c, int wait_ms)
{
	struct epoll_event events[TURN_EVENTS];
	uint64_t now = kvpd_now_ns();
	uint64_t due = kvpd_conn_expire(c, now);
	int n, most;

	due = sooner(due, watchdog(c, now));
	due = sooner(due, tell_systemd(c, now));
	bury(c);
	most = until(due, now);
	if (wait_ms >= 0 && (most < 0 || most > wait_ms))
		most = wait_ms;
	n = epoll_wait(c->epfd, events, TURN_EVENTS, most);
	if (n < 0 && errno != EINTR) {
		n = -errno;
		kvpd_err("the control thread cannot wait: %s", strerror(-n));
		return n;
	}
	for (int i = 0; i < n && !c->stop; i++) {
		struct kvpd_source *s = events[i].data.ptr;

		if (!s->dead)
			s->ready(s, events[i].events);
	}
	bury(c);
	return 0;
}

int kvpd_control_run(struct kvpd_control *c)
{
	int r = 0;

	while (r == 0 && !c->stop)
		r = kvpd_control_turn(c, -1);
	return r;
}
