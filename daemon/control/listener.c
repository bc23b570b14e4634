/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets: the main one, and those of tenants. */
#include "daemon/control/listener.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/control/accept.h"
#include "daemon/control/listen.h"
#include "daemon/control/state.h"

static void listener_ready(struct kvpd_source *source, uint32_t events)
{
	(void)events;
	kvpd_accept((struct kvpd_listener *)source);
}

void kvpd_listener_free(struct kvpd_listener *l)
{
	free(l->name);
	free(l->tenant);
	free(l);
}

int kvpd_listener_add(struct kvpd_control *c, const char *tenant, const char *name, mode_t mode)
{
	struct kvpd_listener *l = calloc(1, sizeof(*l));
	int r = kvpd_turns_reserve(&c->doors, c->n_listeners + 1);

	if (!l || r < 0) {
		free(l);
		return -ENOMEM;
	}
	*l = (struct kvpd_listener){
		.source = { .ready = listener_ready, .payer = &l->payer },
		.control = c,
		.fd = -1,
	};
	kvpd_payer_init(&l->payer, &c->doors);
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
		kvpd_listener_free(l);
		return r;
	}
	TAILQ_INSERT_TAIL(&c->listeners, l, link);
	c->n_listeners++;
	return 0;
}

void kvpd_listener_remove(struct kvpd_listener *l)
{
	struct kvpd_control *c = l->control;

	kvpd_unwatch(c, l->fd);
	close(l->fd);
	if (l->name)
		kvpd_unlisten(c->config->runtime_dir, l->name);
	kvpd_source_end(&l->source);
	c->n_listeners--;
	TAILQ_REMOVE(&c->listeners, l, link);
	TAILQ_INSERT_TAIL(&c->dead_listeners, l, link);
}

int kvpd_listen_all(struct kvpd_control *c)
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
