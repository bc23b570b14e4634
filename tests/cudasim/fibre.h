/* SPDX-License-Identifier: Apache-2.0 */
/* Fibres: a few hundred stacks on one thread, switched by hand. */
#ifndef CUDASIM_FIBRE_H
#define CUDASIM_FIBRE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fibre;

/* A stopped fibre that will run entry(arg) on its own stack; entry must not return. NULL if memory
 * is short. */
struct fibre *fibre_new(void);
void fibre_start(struct fibre *f, void (*entry)(void *arg), void *arg);
/* From the scheduler's stack into f, until f calls fibre_leave. */
void fibre_enter(struct fibre *f);
/* From f back to the scheduler. `last`: f will not be entered again before the next start. */
void fibre_leave(struct fibre *f, int last);
void fibre_free(struct fibre *f);

#ifdef __cplusplus
}
#endif
#endif
