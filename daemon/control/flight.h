/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors in flight: sent to a client that has perhaps not received them yet.
 *
 * The kernel counts them against the daemon's user, in all its sockets together, and refuses to
 * send any more (ETOOMANYREFS) when they exceed RLIMIT_NOFILE. They stay in flight while the
 * client keeps its socket and does not read, also after the daemon has closed its own end. A few
 * clients that never read could so keep everybody from attaching. Hence each uid has a bound at
 * each socket that it comes by, and a connection that is closed with descriptors in flight lingers
 * until they have been received: only through its socket can the daemon ask whether they have.
 */
#ifndef KVPD_FLIGHT_H
#define KVPD_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_conn;
struct kvpd_control;

/* Bounds for this RLIMIT_NOFILE. */
void kvpd_flight_limit(struct kvpd_control *c, uint64_t files);
/* May it attach: is there room for a session's descriptors? */
bool kvpd_flight_may_attach(const struct kvpd_conn *conn);
/*
 * May the client be shown one more extent? It can do without: half of the bound is left for what
 * clients cannot do without, a session's descriptors and its arena, and for those that have
 * received all that they were sent.
 */
bool kvpd_flight_may_show(struct kvpd_conn *conn);
void kvpd_flight_sent(struct kvpd_conn *conn, unsigned n_fds);
/* Has the client received everything? The answer is what is still in flight. */
uint32_t kvpd_flight_look(struct kvpd_conn *conn);
/* The connection is over, its descriptors are not: keeps its socket for a while. */
void kvpd_flight_linger(struct kvpd_conn *conn);
/* Ends what lingers no longer. Returns when to call again; UINT64_MAX: nothing lingers. */
uint64_t kvpd_flight_expire(struct kvpd_control *c, uint64_t now);
/* Ends all that linger. */
void kvpd_flight_drop(struct kvpd_control *c);

#endif
