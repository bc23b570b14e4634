/* SPDX-License-Identifier: Apache-2.0 */
/* The advisor's thread: it listens to all tenants often, and ranks each once in a period. */
#include "daemon/ledger/advisor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/ledger/advice.h"
#include "daemon/log.h"
#include "shm/kvp_atomic.h"

#define ADVISOR_NICE 10
/* So that the queues, which hold some thousands of events at least, do not run over. */
#define NAP_NS (20 * KVPD_MS)

int kvpd_advisor_init(struct kvpd_advisor *v, const struct kvpd_advisor_config *config)
{
	pthread_condattr_t monotonic;

	v->config = *config;
	pthread_mutex_init(&v->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&v->cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
	if (!config->on)
		return 0;
	v->chain = calloc(KVPD_ADVICE_CHAIN, sizeof(*v->chain));
	return v->chain ? 0 : -ENOMEM;
}

void kvpd_advisor_join(struct kvpd_advisor *v, struct kvpd_advice *advice)
{
	struct kvpd_advice *first = kvp_load_relaxed(&v->joined);

	/* The exchange has release in it: pairs with the one in take_joined(). */
	do
		*kvpd_advice_next(advice) = first;
	while (!kvp_cas_seq(&v->joined, &first, advice));
}

static void take_joined(struct kvpd_advisor *v)
{
	struct kvpd_advice *a = kvp_xchg_seq(&v->joined, NULL), *next;

	for (; a; a = next) {
		next = *kvpd_advice_next(a);
		*kvpd_advice_next(a) = v->all;
		v->all = a;
	}
}

void kvpd_advisor_turn(struct kvpd_advisor *v)
{
	const uint64_t period = v->config.period_ms * KVPD_MS;
	struct kvpd_advice **at = &v->all, *a;

	take_joined(v);
	while ((a = *at)) {
		if (kvpd_advice_was_left(a)) {
			*at = *kvpd_advice_next(a);
			kvpd_advice_free(a);
			continue;
		}
		kvpd_advice_listen(a, v->chain, kvpd_now_ns());
		kvpd_advice_rank(a, kvpd_now_ns(), period);
		at = kvpd_advice_next(a);
	}
}

static void *advisor_main(void *arg)
{
	struct kvpd_advisor *v = arg;

	errno = 0;
	if (nice(ADVISOR_NICE) == -1 && errno)
		kvpd_info("the advisor stays at the daemon's priority: %s", strerror(errno));
	pthread_mutex_lock(&v->lock);
	while (!v->stop) {
		uint64_t due;
		struct timespec until;

		pthread_mutex_unlock(&v->lock);
		kvpd_advisor_turn(v);
		due = kvpd_now_ns() + NAP_NS;
		until = (struct timespec){ (time_t)(due / 1000000000u), (long)(due % 1000000000u) };
		pthread_mutex_lock(&v->lock);
		if (!v->stop)
			pthread_cond_timedwait(&v->cond, &v->lock, &until);
	}
	pthread_mutex_unlock(&v->lock);
	return NULL;
}

int kvpd_advisor_start(struct kvpd_advisor *v)
{
	int r;

	if (!v->config.on)
		return 0;
	r = -pthread_create(&v->thread, NULL, advisor_main, v);
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
	pthread_mutex_lock(&v->lock);
	v->stop = true;
	pthread_cond_signal(&v->cond);
	pthread_mutex_unlock(&v->lock);
	pthread_join(v->thread, NULL);
	v->running = false;
}

void kvpd_advisor_fini(struct kvpd_advisor *v)
{
	struct kvpd_advice *a;

	take_joined(v);
	while ((a = v->all)) {
		v->all = *kvpd_advice_next(a);
		kvpd_advice_free(a);
	}
	free(v->chain);
	pthread_mutex_destroy(&v->lock);
	pthread_cond_destroy(&v->cond);
}
