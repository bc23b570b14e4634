/* SPDX-License-Identifier: Apache-2.0 */
/* The packets of a connection that is not attached yet. Each may close the connection. */
#ifndef KVPD_ATTACH_H
#define KVPD_ATTACH_H

struct kvp_packet;
struct kvpd_conn;

void kvpd_attach_hello(struct kvpd_conn *conn, const struct kvp_packet *packet);
void kvpd_attach_proof(struct kvpd_conn *conn, const struct kvp_packet *packet);
/* Goes on with showing a client that has attached the extents of its tenant. */
void kvpd_attach_on(struct kvpd_conn *conn);

#endif
