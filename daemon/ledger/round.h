/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ledger thread does: rounds over the active sessions, calls of the control thread,
 * finished jobs, what is due in tenants; and sleeping when there is nothing of that.
 */
#ifndef KVPD_ROUND_H
#define KVPD_ROUND_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_job;
struct kvpd_ledger;

/* Control thread: runs fn on the ledger thread and waits; before that runs and after, in place. */
int kvpd_ledger_ask(struct kvpd_ledger *l, int (*fn)(struct kvpd_ledger *l, void *arg), void *arg);
/*
 * One round. False: time to stop. *ret_timeout_ms: how long may pass before the next one if nothing
 * comes; -1: for ever. Tests that start no thread call it themselves.
 */
bool kvpd_ledger_round(struct kvpd_ledger *l, uint32_t *ret_work, int *ret_timeout_ms);
/* The thread itself: rounds until kvpd_ledger_halt(). */
void *kvpd_ledger_main(void *ledger);
/* Any thread: has the ledger thread return after its round. */
void kvpd_ledger_halt(struct kvpd_ledger *l);
/* Any thread: a job has run, or never will; its done() follows on the ledger thread. */
void kvpd_job_finished(struct kvpd_ledger *l, struct kvpd_job *job);
/* Calls done() of the jobs that are finished, in the order in which they were; returns how many. */
uint32_t kvpd_ledger_finish_jobs(struct kvpd_ledger *l);

#endif
