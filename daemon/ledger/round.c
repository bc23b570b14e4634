/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger thread: turns, calls of the control thread, finished jobs, sleeping. */
#include "daemon/ledger/round.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/marks.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/worker.h"
#include "daemon/log.h"
#include "daemon/privilege.h"
#include "daemon/slice.h"
#include "daemon/turns.h"

/* How long a session may be silent before its client has to wake the ledger again. */
#define SPIN_NS (20 * UINT64_C(1000))
/* While somebody wants a turn, wake-ups are asked for so often. */
#define POLL_NS (20 * UINT64_C(1000))
#define EVENTS  256
/* Calls of epoll_wait() in a row: a crowd that wakes the ledger hides nobody behind it for long. */
#define POLLS     8
#define ATTEND_NS (KVPD_SLICE_NS / 2) /* finished jobs and devices' work before a turn */
/*
 * Asked of the kernel: longer than the control thread's, which wakes beside a ledger that is busy, and shorter than what
 * threads have that ask for none (1.4 ms with two processors, 2.8 with more than seven): one of those that has just begun
 * is taken off for a shorter slice alone.
 */
#define TURN_NS (200 * UINT64_C(1000))
/* It works for so long, then sleeps for so long, until nobody wanted its processor for so long. */
#define WORK_NS    (500 * UINT64_C(1000))
#define REST_NS    (150 * UINT64_C(1000))
#define REST_CUTS  4u      /* in one sleep, for sessions that wake it */
#define URGENCY_NS KVPD_MS /* how often it looks whether it may go ahead of all others */

struct kvpd_call {
	int (*fn)(struct kvpd_ledger *ledger, void *arg);
	void *arg;
	int result;
	bool done;
};

/* Something was put where the ledger thread looks when it sees `attention`. */
void kvpd_ledger_kick(struct kvpd_ledger *l)
{
	uint64_t one = 1;
	ssize_t r;

	atomic_store(&l->attention, true);
	do
		r = write(l->kick_fd, &one, sizeof(one));
	while (r < 0 && errno == EINTR);
}

bool kvpd_ledger_is_wanted(const struct kvpd_ledger *l)
{
	return atomic_load_explicit(&l->attention, memory_order_relaxed);
}

/* ---- who pays ------------------------------------------------------------------------------- */

void kvpd_ledger_charge(struct kvpd_ledger *l, struct kvpd_tenant *t)
{
	l->payer = t;
}

/* The time since `began` is charged to the tenant that what was done is about, if there is one. */
static void pay(struct kvpd_ledger *l, enum kvpd_portion kind, uint64_t began)
{
	struct kvpd_tenant *t = l->payer;
	uint64_t spent = kvpd_now_ns() - began;

	kvpd_portion_note(&l->portions, kind, spent);
	l->payer = NULL;
	if (!t)
		return;
	t->busy_ns += spent;
	kvpd_turns_charge(&l->row, &t->turn, spent);
}

/* ---- finished jobs -------------------------------------------------------------------------- */

void kvpd_job_finished(struct kvpd_ledger *l, struct kvpd_job *job)
{
	pthread_mutex_lock(&l->lock);
	job->next = NULL;
	*l->finished_tail = job;
	l->finished_tail = &job->next;
	pthread_mutex_unlock(&l->lock);
	kvpd_ledger_kick(l);
}

static struct kvpd_job *take_job(struct kvpd_ledger *l)
{
	struct kvpd_job *job;

	pthread_mutex_lock(&l->lock);
	job = l->finished;
	if (job) {
		l->finished = job->next;
		if (!l->finished)
			l->finished_tail = &l->finished;
	}
	pthread_mutex_unlock(&l->lock);
	return job;
}

/* Until then, but at least one. *ret_more: there may be more. */
static uint32_t finish_jobs(struct kvpd_ledger *l, uint64_t until_ns, bool *ret_more)
{
	struct kvpd_job *job = NULL;
	uint64_t began = kvpd_now_ns();
	uint32_t n = 0;

	while ((!n || began < until_ns) && (job = take_job(l))) {

		if (l->tenant[job->tenant])
			l->tenant[job->tenant]->changes++;
		job->done(l, job);
		pay(l, KVPD_PORTION_JOB, began);
		n++;
		began = kvpd_now_ns();
	}
	*ret_more = job != NULL;
	return n;
}

uint32_t kvpd_ledger_finish_jobs(struct kvpd_ledger *l)
{
	bool more;

	return finish_jobs(l, UINT64_MAX, &more);
}

bool kvpd_ledger_drain(struct kvpd_ledger *l, struct kvpd_device *device)
{
	uint64_t began = kvpd_now_ns();
	bool drained = kvpd_device_drain(device, 1);

	if (drained)
		pay(l, KVPD_PORTION_JOB, began);
	return drained;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static bool take_call(struct kvpd_ledger *l)
{
	struct kvpd_call *call;
	uint64_t began;

	pthread_mutex_lock(&l->lock);
	call = l->call;
	pthread_mutex_unlock(&l->lock);
	if (!call)
		return false;
	began = kvpd_now_ns();
	call->result = call->fn(l, call->arg);
	if (l->payer)
		l->payer->changes++;
	pay(l, KVPD_PORTION_CALL, began);
	pthread_mutex_lock(&l->lock);
	l->call = NULL;
	call->done = true;
	pthread_cond_signal(&l->cond);
	pthread_mutex_unlock(&l->lock);
	return true;
}

/* Calls and finished jobs; false when it is time to stop. */
static bool attend(struct kvpd_ledger *l, uint32_t *work)
{
	const uint64_t until = kvpd_now_ns() + ATTEND_NS;
	bool stop, jobs, works;

	if (!kvpd_ledger_is_wanted(l))
		return true;
	atomic_store(&l->attention, false);
	*work += take_call(l);
	*work += finish_jobs(l, until, &jobs);
	works = kvpd_media_drain(l, until, work);
	/* What is left comes after somebody's turn. */
	if (jobs || works)
		atomic_store(&l->attention, true);
	pthread_mutex_lock(&l->lock);
	stop = l->stop;
	pthread_mutex_unlock(&l->lock);
	return !stop;
}

/* ---- turns ---------------------------------------------------------------------------------- */

void kvpd_ledger_join(struct kvpd_tenant *t, struct kvpd_turn *turn)
{
	kvpd_turns_join(&t->row, turn);
	kvpd_turns_join(&t->ledger->row, &t->turn);
}

void kvpd_ledger_leave(struct kvpd_tenant *t, struct kvpd_turn *turn)
{
	kvpd_turns_leave(&t->row, turn);
	if (!kvpd_turns_next(&t->row))
		kvpd_turns_leave(&t->ledger->row, &t->turn);
}

/*
 * Sessions that were served a moment ago are looked at without a wake-up. Those that stay silent go
 * to sleep, the oldest first, so that no more are here than could be served within SPIN_NS.
 */
static void look_at_spinning(struct kvpd_ledger *l, uint64_t now)
{
	struct kvpd_list *it, *tmp;

	kvpd_each(it, tmp, &l->spinning) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_spinning);

		if (kvpd_session_wants(s))
			kvpd_session_activate(s);
		else if (now - s->last_ns > SPIN_NS)
			kvpd_session_sleep(s);
	}
}

/* Those whose commits wait for a device, which wakes nobody. */
static bool look_at_marks(struct kvpd_ledger *l, uint64_t now)
{
	uint64_t due = kvpd_marks_due(l, now);

	if (!due || now - l->marks_looked_ns < due)
		return false;
	l->marks_looked_ns = now;
	return kvpd_marks_look(l, now);
}

/* After a session's turn. */
static void settle_session(struct kvpd_session *s)
{
	if (s->expelled || kvpd_session_wants(s))
		return;
	kvpd_ledger_leave(s->tenant, &s->turn);
	if (s->stalled)
		kvpd_session_sleep(s);
	else
		kvpd_session_spin(s);
}

static uint32_t serve_tenant(struct kvpd_tenant *t, uint64_t now)
{
	const uint64_t until = now + KVPD_SLICE_NS;
	struct kvpd_turn *turn = kvpd_turns_next(&t->row);
	struct kvpd_ledger *l = t->ledger;
	struct kvpd_session *s = NULL;
	bool more = false;
	uint64_t spent;
	uint32_t n = 1;

	if (turn == &t->chores) {
		more = kvpd_chores_do(t, now, until);
	} else {
		s = kvpd_container(turn, struct kvpd_session, turn);
		n = kvpd_ring_serve(s, now, until);
	}
	l->now_ns = kvpd_now_ns();
	spent = l->now_ns - now;
	if (s)
		kvpd_portion_note(&l->portions, KVPD_PORTION_TURN, spent);
	t->busy_ns += spent;
	t->changes++;
	kvpd_turns_charge(&t->row, turn, spent);
	kvpd_turns_charge(&l->row, &t->turn, spent);
	if (s)
		settle_session(s);
	else if (!more)
		kvpd_ledger_leave(t, turn);
	return n;
}

/* What time alone makes due; says how soon to look again if nothing else happens. */
static int look_at_tenants(struct kvpd_ledger *l, uint64_t now)
{
	int timeout = kvpd_sessions_tell(l, now), media = kvpd_media_look(l);

	if (media >= 0 && (timeout < 0 || media < timeout))
		timeout = media;

	l->looked_ns = now;
	kvpd_portion_tick(&l->portions, now);
	for (uint32_t i = 1; i <= l->last_tenant; i++) {
		int ms = l->tenant[i] && !kvpd_tenant_end(l->tenant[i])
				 ? kvpd_chores_look(l->tenant[i], now)
				 : -1;

		if (ms >= 0 && (timeout < 0 || ms < timeout))
			timeout = ms;
	}
	return timeout;
}

bool kvpd_ledger_round(struct kvpd_ledger *l, uint32_t *ret_work, int *ret_timeout_ms)
{
	struct kvpd_turn *turn;
	uint32_t work = 0;
	uint64_t now;

	if (!attend(l, &work))
		return false;
	l->now_ns = now = kvpd_now_ns();
	look_at_spinning(l, now);
	look_at_marks(l, now);
	if (now - l->looked_ns >= KVPD_CHORES_NS)
		(void)look_at_tenants(l, now);
	turn = kvpd_turns_next(&l->row);
	if (turn)
		work += serve_tenant(kvpd_container(turn, struct kvpd_tenant, turn), now);
	kvpd_portion_round(&l->portions);
	*ret_timeout_ms = 0;
	if (!kvpd_turns_next(&l->row) && kvpd_list_empty(&l->spinning))
		*ret_timeout_ms = look_at_tenants(l, now);
	*ret_work = work;
	return true;
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Returns whether sessions are among those that woke it. */
static bool take_events(struct kvpd_ledger *l, const struct epoll_event *ev, int n)
{
	bool sessions = false;
	uint64_t n_kicks;

	for (int i = 0; i < n; i++) {
		uint32_t place = ev[i].data.u32;

		if (place == KVPD_MAX_SESSIONS) {
			(void)!read(l->kick_fd, &n_kicks, sizeof(n_kicks));
		} else if (l->session[place]) {
			kvpd_session_activate(l->session[place]);
			sessions = true;
		}
	}
	return sessions;
}

/* Until something comes, or the time is over: as epoll_wait(), and what a device brings is looked for meanwhile. */
static int wait_events(struct kvpd_ledger *l, struct epoll_event *ev, int timeout_ms)
{
	const uint64_t began = kvpd_now_ns();
	uint64_t now = began, due;
	int n, passed_ms = 0;

	while (passed_ms != timeout_ms && (due = kvpd_marks_due(l, now))) {
		const struct timespec pause = { .tv_nsec = (long)due };

		n = epoll_pwait2(l->epoll_fd, ev, EVENTS, &pause, NULL);
		if (n < 0) /* or before Linux 5.11: its client wakes it */
			break;
		now = kvpd_now_ns();
		if (n || look_at_marks(l, now))
			return n;
		passed_ms = (int)((now - began) / KVPD_MS);
		if (timeout_ms >= 0 && passed_ms > timeout_ms)
			passed_ms = timeout_ms;
	}
	return epoll_wait(
		l->epoll_fd, ev, EVENTS, timeout_ms < 0 ? timeout_ms : timeout_ms - passed_ms);
}

static void poll_events(struct kvpd_ledger *l, int timeout_ms)
{
	struct epoll_event ev[EVENTS];
	int n = EVENTS;

	for (uint32_t k = 0; k < POLLS && n == EVENTS; k++) {
		n = wait_events(l, ev, k ? 0 : timeout_ms);
		(void)take_events(l, ev, n);
	}
	l->polled_ns = l->now_ns;
}

/* Sessions that are looked at without a wake-up ask for one. True: some have something already. */
static bool hush_spinning(struct kvpd_ledger *l)
{
	struct kvpd_list *it, *tmp;
	bool wanted = false;

	kvpd_each(it, tmp, &l->spinning) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_spinning);

		kvpd_session_sleep(s);
		wanted = wanted || s->turn.at;
	}
	return wanted;
}

/* False: it does not, or not before those that have something are served. */
static bool rest_begins(struct kvpd_ledger *l, uint64_t now)
{
	if (now - l->rested_ns < WORK_NS)
		return false;
	if (!l->urgency.urgent && !kvpd_crowded(&l->crowd, now)) {
		l->rested_ns = now;
		return false;
	}
	l->rest_ns = REST_NS;
	l->rest_cuts = hush_spinning(l);
	return !l->rest_cuts;
}

/*
 * A thread that never sleeps is to the kernel one more program that computes: where there are more of
 * these than processors it is taken off at a tick for as long as each of the others runs, and
 * whoever was woken on its processor waits for that tick as well. So a ledger that has work without
 * end, and whose processor others want, sleeps for a moment now and then of its own accord. Then it
 * is owed time when it wakes, and gets it at once. What it loses is a fifth of its time, while it has
 * none to lose for anybody but those that keep it busy: the first sessions that had nothing to do and
 * wake it are served with a turn each before it rests on. It sleeps no less for that, and no crowd that
 * wakes it all the time has it work through its rests.
 */
static void rest(struct kvpd_ledger *l)
{
	struct epoll_event ev[EVENTS];
	uint64_t began, now;
	bool woken = false;

	if (!l->rest_ns && !rest_begins(l, l->now_ns))
		return;
	for (began = kvpd_now_ns(); l->rest_ns && !woken; began = now) {
		struct timespec left = { .tv_nsec = (long)l->rest_ns };
		bool whole = l->rest_cuts >= REST_CUTS;
		int n = whole ? -1 : epoll_pwait2(l->epoll_fd, ev, EVENTS, &left, NULL);

		if (n < 0) /* or before Linux 5.11 */
			clock_nanosleep(CLOCK_MONOTONIC, 0, &left, NULL);
		else
			woken = take_events(l, ev, n);
		now = kvpd_now_ns();
		l->rest_ns -= now - began < l->rest_ns ? now - began : l->rest_ns;
	}
	l->rest_cuts += woken;
	if (!l->rest_ns)
		l->rested_ns = began;
}

/* Where the ledger has no right to it, it is as if it had not wanted it. */
static void become_urgent(struct kvpd_ledger *l)
{
	int r = kvpd_realtime_ask();

	if (r == 0)
		return;
	l->urgency.urgent = false;
	kvpd_notice(
		"the ledger stays in the ordinary class, against `realtime`: %s; under systemd it "
		"takes RestrictRealtime=no and LimitRTPRIO=1, in a control group a real-time "
		"budget",
		strerror(-r));
	l->realtime = KVPD_NEVER;
}

static struct kvpd_urgency_facts facts_of_urgency(const struct kvpd_ledger *l)
{
	return (struct kvpd_urgency_facts){ kvpd_now_ns(), kvpd_thread_ns(),
		kvpd_waited_ns(l->waits_fd) };
}

static void begin_urgency(struct kvpd_ledger *l)
{
	struct kvpd_urgency_facts facts;

	if (l->realtime == KVPD_NEVER)
		return;
	l->waits_fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	facts = facts_of_urgency(l);
	kvpd_urgency_begin(&l->urgency, l->realtime == KVPD_REQUIRE, l->urgency.percent, &facts);
	if (l->urgency.urgent)
		become_urgent(l);
}

/*
 * Programs that have nothing to do with this daemon lose a processor to a ledger that goes ahead of them, and nobody
 * who keeps the ledger busy may take it from them for long.
 */
static void look_at_urgency(struct kvpd_ledger *l)
{
	struct kvpd_urgency_facts facts = facts_of_urgency(l);
	bool was = l->urgency.urgent;

	if (kvpd_urgency_look(&l->urgency, &facts) == was)
		return;
	if (!was)
		become_urgent(l);
	else if (kvpd_realtime_leave() < 0)
		l->urgency.urgent = true;
}

void *kvpd_ledger_main(void *arg)
{
	struct kvpd_ledger *l = arg;
	uint32_t quiet = 0, work;
	int timeout;

	/*
	 * A ledger that is busy for half of the time beside others that want its processor has had more than its part, and
	 * is passed over when it wakes, whatever slice it asks for: of ten times the weight its part is larger.
	 */
	kvpd_slice_ask(TURN_NS, KVPD_NICER);
	begin_urgency(l);
	/* A rest is as long as it is meant to be. */
	(void)prctl(PR_SET_TIMERSLACK, 1UL);
	kvpd_stock_run(l, true);
	while (kvpd_ledger_round(l, &work, &timeout)) {
		kvp_store_relaxed(&l->rounds, kvp_load_relaxed(&l->rounds) + 1);
		if (l->realtime != KVPD_NEVER && l->now_ns - l->urgency.seen.now_ns >= URGENCY_NS)
			look_at_urgency(l);
		if (kvpd_turns_next(&l->row) || kvpd_ledger_is_wanted(l)) {
			quiet = 0;
			if (l->now_ns - l->polled_ns >= POLL_NS)
				poll_events(l, 0);
			rest(l);
		} else if (!kvpd_list_empty(&l->spinning) && !l->urgency.urgent) {
			/* Wake-ups of other sessions come by epoll; look there now and then. */
			if (work || ++quiet % 16 == 0)
				poll_events(l, 0);
			kvp_cpu_relax();
		} else if (!kvpd_list_empty(&l->spinning)) {
			/* It looks for work at nobody else's expense: they wake it instead. */
			(void)hush_spinning(l);
		} else {
			quiet = 0;
			poll_events(l, timeout);
			l->rest_ns = 0;
			l->rested_ns = kvpd_now_ns();
		}
	}
	kvpd_stock_run(l, false);
	return NULL;
}

/* ---- from other threads --------------------------------------------------------------------- */

int kvpd_ledger_ask(struct kvpd_ledger *l, int (*fn)(struct kvpd_ledger *, void *), void *arg)
{
	struct kvpd_call call = { .fn = fn, .arg = arg };

	if (!l->running) {
		uint64_t began = kvpd_now_ns();

		call.result = fn(l, arg);
		pay(l, KVPD_PORTION_CALL, began);
		return call.result;
	}
	pthread_mutex_lock(&l->lock);
	l->call = &call;
	pthread_mutex_unlock(&l->lock);
	kvpd_ledger_kick(l);
	pthread_mutex_lock(&l->lock);
	while (!call.done)
		pthread_cond_wait(&l->cond, &l->lock);
	pthread_mutex_unlock(&l->lock);
	return call.result;
}

void kvpd_ledger_halt(struct kvpd_ledger *l)
{
	pthread_mutex_lock(&l->lock);
	l->stop = true;
	pthread_mutex_unlock(&l->lock);
	kvpd_ledger_kick(l);
}
