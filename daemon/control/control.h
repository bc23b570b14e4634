/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread: sockets, the life of sessions, signals, administration, systemd. Everything
 * here belongs to that one thread, which is main(); only kvpd_control_post() may be called by
 * others.
 *
 * A session ends when its process is dead (its pidfd says so), when the client says BYE, when the
 * ledger expels it, when it breaks the control protocol, or when it has lost its connection and
 * nobody has its page any more. A connection that only ends leaves the
 * session as it is: a process that lost its descriptor may still be reading under its leases.
 */
#ifndef KVPD_CONTROL_H
#define KVPD_CONTROL_H

#include "daemon/config.h"
#include "daemon/dataplane.h"
#include "daemon/privilege.h"

struct kvpd_control;

/*
 * Takes the config (also on failure), binds the sockets and blocks SIGTERM, SIGINT and SIGHUP for
 * itself. Nobody is served yet. Errors have been logged.
 */
int kvpd_control_new(struct kvpd_config *config, const struct kvpd_account *account, uint64_t epoch,
	struct kvpd_control **ret_control);

/* For kvpd_ledger_params: post and its ctx. Any thread; never waits. -ENOMEM: it is not taken. */
int kvpd_control_post(void *ctx, const struct kvpd_event *event);

/* Opens the tenants that the configuration names. Before run. Errors have been logged. */
int kvpd_control_bind(struct kvpd_control *control, struct kvpd_ledger *ledger);

/* Serves until SIGTERM or SIGINT. 0, or why it cannot go on. */
int kvpd_control_run(struct kvpd_control *control);

/*
 * Closes all sockets and removes their files. The ledger is freed by the caller, afterwards, and
 * kvpd_control_free() after that: the ledger uses the config until its end.
 */
void kvpd_control_stop(struct kvpd_control *control);
struct kvpd_control *kvpd_control_free(struct kvpd_control *control);

#endif
