/* SPDX-License-Identifier: Apache-2.0 */
/* The advisor's thread: it serves whoever asks, and listens to all tenants often if it is to rank their blocks. */
#include "daemon/ledger/advisor.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/clock.h"
#include "daemon/ledger/advice.h"
#include "daemon/slice.h"
#include "shm/kvp_atomic.h"

/* So that the queues, which hold some thousands of events at least, do not run over. */
#define NAP_NS (20 * KVPD_MS)

int kvpd_advisor_init(struct kvpd_advisor *v, const struct kvpd_advisor_config *config)
{
	v->config = *config;
	sem_init(&v->woken, 0, 0);
	if (!config->on)
		return 0;
	v->chain = calloc(KVPD_ADVICE_CHAIN, sizeof(*v->chain));
	return v->chain ? 0 : -ENOMEM;
}

void kvpd_advisor_join(struct kvpd_advisor *v, struct kvpd_advised *advised)
{
	struct kvpd_advised *first = kvp_load_relaxed(&v->joined);

	/* The exchange has release in it: pairs with the one in take_joined(). */
	do
		advised->next = first;
	while (!kvp_cas_seq(&v->joined, &first, advised));
}

void kvpd_advisor_leave(struct kvpd_advisor *v, struct kvpd_advised *advised)
{
	/* release: pairs with acquire in turn(): the last use came before */
	kvp_store_release(&advised->left, true);
	kvpd_advisor_wake(v);
}

void kvpd_advisor_wake(struct kvpd_advisor *v)
{
	sem_post(&v->woken);
}

static void take_joined(struct kvpd_advisor *v)
{
	struct kvpd_advised *a = kvp_xchg_seq(&v->joined, NULL), *next;

	for (; a; a = next) {
		next = a->next;
		a->next = v->all;
		v->all = a;
	}
}

void kvpd_advisor_turn(struct kvpd_advisor *v)
{
	struct kvpd_advised **at = &v->all, *a;

	take_joined(v);
	while ((a = *at)) {
		if (kvp_load_acquire(&a->left)) {
			*at = a->next;
			a->free(a);
			continue;
		}
		a->turn(a, v);
		at = &a->next;
	}
}

/* Until somebody wakes it; with tenants to listen to no longer than a nap. */
static void wait(struct kvpd_advisor *v)
{
	uint64_t due = kvpd_now_ns() + NAP_NS;
	struct timespec until = { (time_t)(due / 1000000000u), (long)(due % 1000000000u) };

	if (v->config.on)
		(void)sem_clockwait(&v->woken, CLOCK_MONOTONIC, &until);
	else
		(void)sem_wait(&v->woken);
	/* One turn answers all that was asked before it. */
	while (sem_trywait(&v->woken) == 0)
		;
}

static void *advisor_main(void *arg)
{
	struct kvpd_advisor *v = arg;

	kvpd_step_aside();
	while (!kvp_load_acquire(&v->stop)) {
		kvpd_advisor_turn(v);
		wait(v);
	}
	return NULL;
}

int kvpd_advisor_start(struct kvpd_advisor *v)
{
	int r = -pthread_create(&v->thread, NULL, advisor_main, v);

	if (r < 0)
		return r;
	v->running = true;
	pthread_setname_np(v->thread, "kvpool-advisor");
	return 0;
}

void kvpd_advisor_stop(struct kvpd_advisor *v)
{
	if (!v->running)
		return;
	kvp_store_release(&v->stop, true);
	kvpd_advisor_wake(v);
	pthread_join(v->thread, NULL);
	v->running = false;
}

void kvpd_advisor_fini(struct kvpd_advisor *v)
{
	struct kvpd_advised *a;

	take_joined(v);
	while ((a = v->all)) {
		v->all = a->next;
		a->free(a);
	}
	free(v->chain);
	sem_destroy(&v->woken);
}
