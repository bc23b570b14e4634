/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a thread should go ahead of all others on the machine (kvpd_realtime_ask()), and for how long it may.
 *
 * It should for two seconds after it has waited for a processor twelve times within a tenth of a second, for a third of
 * a millisecond at least. (An idle processor that has to be woken makes a thread wait as well, but rarely for so long.)
 * Where processors are idle it is hardly ever anything but an ordinary thread.
 *
 * What clients make it do costs programs a processor that have nothing to do with it. So it may use a part of one in
 * the long run, and a bit that it has saved up beside that. (With the niceness that it has as an ordinary one it may use
 * as much beside others, but not whenever it likes.) When that is used up it is an ordinary thread until it has saved
 * half of it again: one that is kept busy for longer than its part saves nothing. What it uses as an ordinary thread
 * counts as well, else it would be urgent again and again.
 *
 * Pure: times are the caller's, in nanoseconds.
 */
#ifndef KVPD_URGENCY_H
#define KVPD_URGENCY_H

#include <stdbool.h>
#include <stdint.h>

#define KVPD_URGENT_NS UINT64_C(50000000) /* at most that is saved */
#define KVPD_AGAIN_NS  (KVPD_URGENT_NS / 2)

#define KVPD_LATE_NS  UINT64_C(300000)     /* a wait that counts: */
#define KVPD_LATES    12u                  /* of so many of them */
#define KVPD_APART_NS UINT64_C(100000000)  /* the last comes sooner than that after the first, */
#define KVPD_HOLD_NS  UINT64_C(2000000000) /* and then they are believed for so long */

/* What the caller knows of its thread. */
struct kvpd_urgency_facts {
	uint64_t now_ns;
	uint64_t used_ns;   /* of a processor, since the thread began */
	uint64_t waited_ns; /* for one, likewise */
};

struct kvpd_urgency {
	uint32_t percent; /* of one processor, in the long run */
	bool always;      /* it should, whether it waits or not */
	bool urgent;
	struct kvpd_urgency_facts seen; /* at the last look */
	uint64_t saved_ns;              /* it may be urgent for so long */
	uint64_t late_ns;               /* when it waited first of n_late times */
	uint32_t n_late;
	uint64_t until_ns; /* it has waited often enough to be urgent until then */
};

/* With all that can be saved. */
void kvpd_urgency_begin(struct kvpd_urgency *u, bool always, uint32_t percent,
	const struct kvpd_urgency_facts *facts);
/* Often while it is busy, and after each long sleep: is it urgent now? */
bool kvpd_urgency_look(struct kvpd_urgency *u, const struct kvpd_urgency_facts *facts);

#endif
