/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a policy learns from its counts is worked out by the advisor's thread (policy/kvp_evict.h); the
 * ledger copies the counts, and later takes the table that came of them. Nobody waits: as long as the
 * thread does not answer, the policy goes by the table that it has.
 *
 * One word says whose the lesson is, and changes hands by it alone: the ledger's, until it asks (store
 * with release, acquired by the thread), and the thread's, until it answers (store with release,
 * acquired by the ledger).
 */
#ifndef KVPD_LESSON_H
#define KVPD_LESSON_H

#include <stdbool.h>
#include <stdint.h>

struct kvp_evict;
struct kvpd_advised;
struct kvpd_advisor;
struct kvpd_lesson;

/*
 * For an instance, from now on, with the advisor's thread; NULL if its policy learns nothing, or not
 * apart. Its bytes are added to *bytes. Any thread, before the instance is used. -ENOMEM.
 */
int kvpd_lesson_new(struct kvpd_advisor *v, struct kvp_evict *e, uint64_t *bytes,
	struct kvpd_lesson **ret_lesson);
/* Any thread: the ledger uses it no more, and the instance may go. NULL is harmless. */
void kvpd_lesson_leave(struct kvpd_lesson *l);

/* The ledger: before victims are chosen; some microseconds at most. NULL is harmless. */
void kvpd_lesson_on(struct kvpd_lesson *l, struct kvp_evict *e);
/* The ledger: is the thread asked, and not through? */
bool kvpd_lesson_asked(const struct kvpd_lesson *l);
/* The ledger: how many were taken. */
uint64_t kvpd_lessons_taken(const struct kvpd_lesson *l);

#endif
