/* SPDX-License-Identifier: Apache-2.0 */
/* The control thread's loop. */
#ifndef KVPD_LOOP_H
#define KVPD_LOOP_H

struct kvpd_control;

/* One turn of the loop; waits at most wait_ms if nothing happens (-1: until something is due). */
int kvpd_control_turn(struct kvpd_control *c, int wait_ms);
/* Frees what ended since the last time: between turns, when no event can name it any more. */
void kvpd_control_bury(struct kvpd_control *c);

#endif
