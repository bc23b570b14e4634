/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ledger thread does: turns of tenants and, within one, of its sessions and chores; calls
 * of the control thread and finished jobs between them; and sleeping when there is nothing of that.
 *
 * Turns go by time (daemon/turns.h): the tenant that has had the least of the thread is next, and
 * in it the session that has had the least. A turn ends after KVPD_SLICE_NS, or earlier when the
 * control thread calls; what it takes beyond that, because an entry or a portion of a chore is not
 * interrupted, its tenant pays with later turns. Calls and jobs are paid by the tenant they are
 * about. So a tenant that asks for little waits for one turn of somebody else's, whatever the
 * others ask for.
 */
#ifndef KVPD_ROUND_H
#define KVPD_ROUND_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_device;
struct kvpd_job;
struct kvpd_ledger;
struct kvpd_tenant;
struct kvpd_turn;

#define KVPD_SLICE_NS UINT64_C(50000)

/* Control thread: runs fn on the ledger thread and waits; before that runs and after, in place. */
int kvpd_ledger_ask(struct kvpd_ledger *l, int (*fn)(struct kvpd_ledger *l, void *arg), void *arg);
/* In a call or in done() of a job: it is about this tenant, which pays for it. */
void kvpd_ledger_charge(struct kvpd_ledger *l, struct kvpd_tenant *t);
/* Is somebody waiting for the turn to end? Asked after each entry and portion. */
bool kvpd_ledger_is_wanted(const struct kvpd_ledger *l);
/* A session or the chores of a tenant want a turn, or none any more; harmless if that is so. */
void kvpd_ledger_join(struct kvpd_tenant *t, struct kvpd_turn *turn);
void kvpd_ledger_leave(struct kvpd_tenant *t, struct kvpd_turn *turn);
/*
 * Calls, finished jobs, and one turn. False: time to stop. *ret_work: how much was done;
 * *ret_timeout_ms: how long may pass before the next one if nothing comes; -1: for ever. Tests that
 * start no thread call it themselves.
 */
bool kvpd_ledger_round(struct kvpd_ledger *l, uint32_t *ret_work, int *ret_timeout_ms);
/* The thread itself: rounds until kvpd_ledger_halt(). */
void *kvpd_ledger_main(void *ledger);
/* Any thread: has the ledger thread return after its round. */
void kvpd_ledger_halt(struct kvpd_ledger *l);
/* Any thread: a device is through with something. */
void kvpd_ledger_kick(struct kvpd_ledger *l);
/* What the device is through with, one piece, paid by the tenant that it charges; false: nothing. */
bool kvpd_ledger_drain(struct kvpd_ledger *l, struct kvpd_device *device);
/* Any thread: a job has run, or never will; its done() follows on the ledger thread. */
void kvpd_job_finished(struct kvpd_ledger *l, struct kvpd_job *job);
/* Calls done() of all finished jobs; returns how many. */
uint32_t kvpd_ledger_finish_jobs(struct kvpd_ledger *l);

#endif
