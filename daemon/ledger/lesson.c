/* SPDX-License-Identifier: Apache-2.0 */
/* Lessons on their way between the ledger and the advisor's thread; lesson.h says whose they are. */
#include "daemon/ledger/lesson.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/ledger/advisor.h"
#include "daemon/ledger/list.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_atomic.h"

enum { OURS, ASKED, ANSWERED }; /* the thread's while it is ASKED */

struct kvpd_lesson {
	struct kvpd_advised advised;
	struct kvpd_advisor *advisor;
	struct kvp_evict_lesson *lesson;
	_Atomic(uint32_t) state;
	uint64_t taken;
};

static struct kvpd_lesson *lesson_of(struct kvpd_advised *a)
{
	return kvpd_container(a, struct kvpd_lesson, advised);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void learn(struct kvpd_advised *a, struct kvpd_advisor *v)
{
	struct kvpd_lesson *l = lesson_of(a);

	(void)v;
	if (kvp_load_acquire(&l->state) != ASKED)
		return;
	kvp_evict_lesson_learn(l->lesson);
	kvp_store_release(&l->state, ANSWERED);
}

static void lesson_free(struct kvpd_advised *a)
{
	struct kvpd_lesson *l = lesson_of(a);

	kvp_evict_lesson_free(l->lesson);
	free(l);
}

/* ---- the ledger ------------------------------------------------------------------------------ */

int kvpd_lesson_new(struct kvpd_advisor *v, struct kvp_evict *e, uint64_t *bytes,
	struct kvpd_lesson **ret_lesson)
{
	struct kvpd_lesson *l = calloc(1, sizeof(*l));
	int r = l ? kvp_evict_lesson_new(e, &l->lesson) : -ENOMEM;

	if (r < 0) {
		free(l);
		return r == -EOPNOTSUPP ? 0 : r;
	}
	l->advisor = v;
	l->advised = (struct kvpd_advised){ .turn = learn, .free = lesson_free };
	*bytes += kvp_evict_lesson_memory(l->lesson);
	kvpd_advisor_join(v, &l->advised);
	*ret_lesson = l;
	return 0;
}

void kvpd_lesson_leave(struct kvpd_lesson *l)
{
	if (l)
		kvpd_advisor_leave(l->advisor, &l->advised);
}

void kvpd_lesson_on(struct kvpd_lesson *l, struct kvp_evict *e)
{
	uint32_t state = l ? kvp_load_acquire(&l->state) : ASKED;

	if (state == ASKED)
		return;
	if (state == ANSWERED) {
		kvp_evict_lesson_use(e, l->lesson);
		kvp_store_relaxed(&l->state, OURS);
		l->taken++;
	}
	if (!kvp_evict_lesson_ask(e, l->lesson))
		return;
	kvp_store_release(&l->state, ASKED);
	kvpd_advisor_wake(l->advisor);
}

bool kvpd_lesson_asked(const struct kvpd_lesson *l)
{
	return l && kvp_load_acquire(&l->state) == ASKED;
}

uint64_t kvpd_lessons_taken(const struct kvpd_lesson *l)
{
	return l ? l->taken : 0;
}
