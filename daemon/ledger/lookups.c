/* SPDX-License-Identifier: Apache-2.0 */
/* What clients count in their pages, as far as it can be true. */
#include "daemon/ledger/lookups.h"

#include "daemon/clock.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "shm/kvp_lease.h"

/* Faster than any client is: a lookup each nanosecond, in which sixteen tokens are asked for. */
#define TOKENS_PER_LOOKUP 16u

static uint64_t lookups_most(const struct kvpd_session *s)
{
	return kvpd_now_ns() - s->attached_ns;
}

/* What a client says in its page, if it is more than before and no more than can be. */
static void believe(uint64_t *counted, uint64_t said, uint64_t most)
{
	if (said > most)
		said = most;
	if (said > *counted)
		*counted = said;
}

static void add(uint64_t *sum, uint64_t n)
{
	*sum = n > INT64_MAX - *sum ? INT64_MAX : *sum + n;
}

/* ---- tokens, by space ------------------------------------------------------------------------ */

/* Sums may wrap: a client that writes nonsense has a nonsense of its own counted. */
static void read_use(const struct kvp_session_page *page, uint32_t space, uint64_t *ret_asked,
	uint64_t *ret_matched)
{
	uint64_t asked = 0, matched = 0;

	for (uint32_t i = 0; i < KVP_SHARDS; i++) {
		const struct kvp_shard *sh = &page->shard[i];

		if (!kvp_shard_lookups(sh))
			continue;
		asked += kvp_load_relaxed(&sh->use[space].asked);
		matched += kvp_load_relaxed(&sh->use[space].matched);
	}
	*ret_asked = asked;
	*ret_matched = matched;
}

void kvpd_use_begin(struct kvpd_session *s, uint32_t space)
{
	struct kvpd_use *u = &s->use[space];

	*u = (struct kvpd_use){ 0 };
	read_use(s->page, space, &u->from_asked, &u->from_matched);
}

/* How much more than `from` the page says now. */
static uint64_t since(uint64_t said, uint64_t from)
{
	return said > from ? said - from : 0;
}

void kvpd_use_take(struct kvpd_session *s, uint32_t space)
{
	uint64_t room = lookups_most(s) * TOKENS_PER_LOOKUP - s->lookups.tokens_asked;
	struct kvpd_space *sp = &s->tenant->space[space];
	struct kvpd_use *u = &s->use[space], old = *u;
	uint64_t asked, matched;

	read_use(s->page, space, &asked, &matched);
	/* All its spaces together have not asked for more than one could. */
	believe(&u->asked, since(asked, u->from_asked), u->asked + room);
	believe(&u->matched, since(matched, u->from_matched), u->asked);
	add(&sp->tokens_asked, u->asked - old.asked);
	add(&sp->tokens_matched, u->matched - old.matched);
	add(&s->lookups.tokens_asked, u->asked - old.asked);
	add(&s->lookups.tokens_matched, u->matched - old.matched);
	add(&s->tenant->lookups.tokens_asked, u->asked - old.asked);
	add(&s->tenant->lookups.tokens_matched, u->matched - old.matched);
}

/* ---- lookups --------------------------------------------------------------------------------- */

void kvpd_session_lookups(struct kvpd_session *s)
{
	struct kvpd_lookups said = { 0 }, old = s->lookups, *counted = &s->lookups;
	struct kvpd_lookups *sum = &s->tenant->lookups;
	uint64_t most = lookups_most(s);

	for (uint32_t i = 0; i < KVP_SHARDS; i++) {
		const struct kvp_shard *sh = &s->page->shard[i];

		said.hits += kvp_load_relaxed(&sh->hits);
		said.partial += kvp_load_relaxed(&sh->partial);
		said.misses += kvp_load_relaxed(&sh->misses);
	}
	believe(&counted->hits, said.hits, most);
	believe(&counted->partial, said.partial, most);
	believe(&counted->misses, said.misses, most);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (s->opens[i])
			kvpd_use_take(s, i);
	add(&sum->hits, counted->hits - old.hits);
	add(&sum->partial, counted->partial - old.partial);
	add(&sum->misses, counted->misses - old.misses);
}
