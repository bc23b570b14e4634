/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of administrators. */
#ifndef KVPD_ADMIN_H
#define KVPD_ADMIN_H

#include <stdbool.h>

struct kvp_packet;
struct kvpd_conn;

#define KVPD_ADMIN_MAX 64u /* administrators' connections */

bool kvpd_admin_allowed(struct kvpd_conn *conn);
/* Serves a request, or begins to, and begins to send the answer. */
void kvpd_admin_packet(struct kvpd_conn *conn, const struct kvp_packet *packet);
/* Goes on with a request. When it has been served, the answer is sent. */
void kvpd_admin_step_on(struct kvpd_conn *conn);
/* Nobody wants it any more, or it has been served. */
void kvpd_admin_drop(struct kvpd_conn *conn);
/* Sends more of the answer as long as there is room. */
void kvpd_admin_continue(struct kvpd_conn *conn);

#endif
