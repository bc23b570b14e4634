/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pressure: the machine is short of memory, so the caches give some back. */
#ifndef KVPD_PRESSURE_H
#define KVPD_PRESSURE_H

struct kvpd_control;

/* Begins to watch. On kernels without pressure information there is no relief. */
void kvpd_pressure_watch(struct kvpd_control *c);

#endif
