/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions whose commits wait for a device, and looks at their words. */
#include "daemon/ledger/marks.h"

#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/parked.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"

#define LOOKS 8u /* sessions in one look */
/* Looks are as far apart as a part of the time that has passed: what is short is seen soon, and what is long costs few. */
#define PART   128u
#define MIN_NS UINT64_C(5000)
#define MAX_NS UINT64_C(20000)

void kvpd_marks_await(struct kvpd_session *s)
{
	struct kvpd_ledger *l = s->tenant->ledger;

	s->marks_ns = l->marks_ns = kvpd_now_ns();
	kvpd_list_remove(&s->in_marks);
	kvpd_list_append(&l->marks, &s->in_marks);
}

void kvpd_marks_forget(struct kvpd_session *s)
{
	kvpd_list_remove(&s->in_marks);
}

uint64_t kvpd_marks_due(const struct kvpd_ledger *l, uint64_t now)
{
	uint64_t pause = (now - l->marks_ns) / PART;

	if (kvpd_list_empty(&l->marks))
		return 0;
	return pause < MIN_NS ? MIN_NS : pause > MAX_NS ? MAX_NS : pause;
}

bool kvpd_marks_look(struct kvpd_ledger *l, uint64_t now)
{
	struct kvpd_list seen;
	bool come = false;

	kvpd_list_init(&seen);
	for (uint32_t i = 0; i < LOOKS && !kvpd_list_empty(&l->marks); i++) {
		struct kvpd_session *s =
			kvpd_container(l->marks.next, struct kvpd_session, in_marks);

		kvpd_list_remove(&s->in_marks);
		if (!kvpd_parked_awaits(s) || now - s->marks_ns > KVPD_MARKS_NS)
			continue;
		kvpd_list_append(&seen, &s->in_marks);
		if (kvpd_session_wants(s)) {
			kvpd_session_activate(s);
			come = true;
		}
	}
	kvpd_list_take_all(&l->marks, &seen);
	return come;
}
