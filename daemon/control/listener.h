/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sockets at which connections come in. A tenant's own socket that lists no uids has mode 0600:
 * root may connect, and the users to whom root opens the file.
 */
#ifndef KVPD_LISTENER_H
#define KVPD_LISTENER_H

#include <sys/queue.h>
#include <sys/types.h>

#include "daemon/control/payer.h"
#include "daemon/control/source.h"

struct kvpd_listener {
	struct kvpd_source source;
	struct kvpd_payer payer; /* a door has a turn of its own, among the doors */
	struct kvpd_control *control;
	int fd;
	char *name;   /* of the file; NULL: passed by systemd */
	char *tenant; /* whose socket it is; NULL: the main one */
	TAILQ_ENTRY(kvpd_listener) link;
};

/* Socket of a tenant (NULL: the main one). -EEXIST etc. as kvpd_listen(). */
int kvpd_listener_add(struct kvpd_control *c, const char *tenant, const char *name, mode_t mode);
/* Closes it and removes its file; freed by kvpd_control_bury(). */
void kvpd_listener_remove(struct kvpd_listener *listener);
void kvpd_listener_free(struct kvpd_listener *listener);
/* All sockets of the configuration, at the start. */
int kvpd_listen_all(struct kvpd_control *c);

#endif
