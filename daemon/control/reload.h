/* SPDX-License-Identifier: Apache-2.0 */
/* Loading the configuration again while running. */
#ifndef KVPD_RELOAD_H
#define KVPD_RELOAD_H

struct kvpd_control;

/* All of the new configuration is applied, or nothing, which is logged with the reason. */
void kvpd_reload(struct kvpd_control *c);

#endif
