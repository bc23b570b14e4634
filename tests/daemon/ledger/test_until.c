/* SPDX-License-Identifier: Apache-2.0 */
/* What is over, or is to happen, at a moment on a timeline of a client: leases, and commits. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/ledger/ledger.h"
#include "tests/daemon/ledger/dp_world.h"

#define T 16u

static void make_tokens(kvp_token *out, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = seed * 1000 + i;
}

static void put_chain(struct dp_client *c, uint32_t space, const kvp_token *tokens, uint32_t n)
{
	struct dp_ref parent = dp_root();
	struct dp_block block;

	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(dp_put(c, space, parent, tokens + i * T, T, &block), 0);
		parent = dp_ref(&block);
	}
}

static void advance(struct dp_client *c, uint32_t timeline, uint64_t value)
{
	kvp_store_release(&c->page->done[timeline].value, value);
}

/* Leases the last of n hits until that moment. */
static void lease_until(struct dp_client *c, const struct kvp_hit *hit, uint32_t n,
	uint32_t timeline, uint64_t value)
{
	const struct kvp_hit *tip = &hit[n - 1];
	struct kvp_lease lease;

	assert_int_equal(
		kvp_lease_take(c->page, 0, &c->view.blocks[tip->id], tip->id, tip->word, &lease),
		0);
	kvp_lease_drop_at(c->page, &lease, kvp_until(timeline, value));
}

/* More other blocks than there is room for. */
static void churn(struct dp_client *c, uint32_t space, uint32_t seed)
{
	kvp_token tokens[T];

	for (uint32_t i = 0; i < 20; i++) {
		make_tokens(tokens, T, seed + i);
		put_chain(c, space, tokens, 1);
	}
}

static void leased_until_a_moment(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token chain[4 * T];
	struct kvp_hit hit[4];
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 6;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	make_tokens(chain, 4 * T, 1);
	put_chain(c, space, chain, 4);
	assert_int_equal(dp_find(c, space, chain, 4 * T, hit, 4), 4);
	lease_until(c, hit, 4, 2, 7);
	churn(c, space, 100);
	assert_int_equal(kvp_revalidate(&c->view, hit, 4), 4);
	advance(c, 2, 6);
	advance(c, 3, 7);
	churn(c, space, 200);
	assert_int_equal(kvp_revalidate(&c->view, hit, 4), 4);
	advance(c, 2, 7);
	churn(c, space, 300);
	assert_int_equal(dp_find(c, space, chain, 4 * T, hit, 4), 0);
	dp_check(&w);
	dp_stop(&w);
}

/*
 * A block that has to move is read at its old place until the moment: its slot stays in limbo, so
 * that its extent is not empty and nobody is told to unmap it.
 */
static void limbo_until_a_moment(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token chain[3 * T];
	struct kvp_hit hit[3];
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 64);
	assert_int_equal(dp_space(b, "m", 64), space);
	make_tokens(chain, 3 * T, 1);
	put_chain(a, space, chain, 3);
	dp_pump(&w);
	assert_int_equal(dp_find(b, space, chain, 3 * T, hit, 3), 3);
	lease_until(b, hit, 3, 31, 1);
	dp_detach(a);
	for (int i = 0; i < 6000 && dp_figure(&w, "moves_total") < 3; i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&w, "moves_total"), 3);
	/* Longer than limbo is looked at, once a second. */
	for (int i = 0; i < 150; i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_true(dp_figure(&w, "arena_bytes") > 0);
	for (uint32_t i = 0; i < 3; i++) {
		assert_non_null(b->extent[kvp_where_extent(hit[i].where)].addr);
		assert_true(dp_payload_right(b, &hit[i], chain + i * T, T));
	}
	dp_check(&w);
	advance(b, 31, 1);
	for (int i = 0; i < 6000 && dp_figure(&w, "arena_bytes"); i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&w, "arena_bytes"), 0);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- commits -------------------------------------------------------------------------------- */

/* As a client does it that keeps to the rules. */
static void bring(struct dp_client *c, uint32_t timeline, uint64_t value)
{
	uint64_t one = 1, awaited;

	kvp_store_seq(&c->page->done[timeline].value, value);
	awaited = kvp_load_seq(&c->page->awaits[timeline]);
	if (awaited && awaited <= value)
		assert_int_equal(write(c->at.wake_fd, &one, sizeof(one)), sizeof(one));
}

/* Pushes a commit of a block full of zeros; returns its serial. */
static uint32_t commit_at(struct dp_client *c, uint32_t space, const struct dp_grant *g,
	struct dp_ref parent, const kvp_token *tokens, uint32_t flags, uint64_t until)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_COMMIT,
		.grant = g->index,
		.grant_generation = g->generation,
		.space = (uint16_t)space,
		.tokens = T,
		.flags = flags,
		.parent_kind = parent.kind,
		.parent_id = parent.id,
		.parent_birth = parent.birth,
		.until = until,
	};

	memset(g->addr, 0, g->bytes);
	memcpy(c->page->staging[g->index], tokens, T * sizeof(*tokens));
	return dp_push(c, &sqe);
}

static struct dp_ref serial(uint32_t number)
{
	return (struct dp_ref){ KVP_PARENT_SERIAL, number, 0 };
}

/* The next completion is this one. */
static void answered(struct dp_client *c, uint32_t op, uint32_t number, int status, uint32_t flags)
{
	struct kvp_cqe cqe;

	assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.op, op);
	assert_int_equal(cqe.serial, number);
	assert_int_equal(cqe.status, status);
	assert_int_equal(cqe.flags, flags);
}

/* All that was pushed before has been served, and has been answered already. */
static void nothing_comes(struct dp_client *c)
{
	struct kvp_sqe nop = { .op = KVP_OP_NOP };

	answered(c, KVP_OP_NOP, dp_push(c, &nop), 0, 0);
}

static uint32_t flush(struct dp_client *c)
{
	struct kvp_sqe sqe = { .op = KVP_OP_FLUSH };

	return dp_push(c, &sqe);
}

struct parked_world {
	struct dp_world w;
	struct dp_client *c;
	uint32_t space;
	struct dp_grant g[KVP_MAX_GRANTS];
	kvp_token chain[8 * T];
	struct kvp_hit hit[8];
};

static void begin(struct parked_world *p, uint32_t grants)
{
	struct kvpd_limits limits;

	dp_defaults(&p->w, &limits);
	limits.arena = limits.share / 2;
	dp_start(&p->w, &limits);
	p->c = dp_attach(&p->w, p->w.tenant);
	p->space = dp_space(p->c, "m", 4);
	for (uint32_t n = 0; n < grants;) {
		int r = dp_reserve(p->c, p->space, grants - n, DP_WAIT_MS, p->g + n);

		assert_true(r > 0);
		n += (uint32_t)r;
	}
	make_tokens(p->chain, 8 * T, 1);
}

static uint32_t found(struct parked_world *p)
{
	return dp_find(p->c, p->space, p->chain, 8 * T, p->hit, 8);
}

static void end(struct parked_world *p)
{
	dp_check(&p->w);
	dp_stop(&p->w);
}

/* As administrators are told. */
static uint32_t commits_that_wait(struct parked_world *p)
{
	struct kvpd_figures f;
	uint32_t n;

	assert_int_equal(dp_figures(&p->w, NULL, KVPD_FIGURES_CLIENTS, &f), 0);
	assert_int_equal(f.n_clients, 1);
	n = f.client[0].parked;
	kvpd_figures_fini(&f);
	return n;
}

static void a_commit_waits(void **state)
{
	struct parked_world p;
	uint32_t first, last;

	(void)state;
	begin(&p, 3);
	first = commit_at(p.c, p.space, &p.g[0], dp_root(), p.chain, 0, kvp_until(4, 10));
	answered(p.c, KVP_OP_COMMIT, first, 0, KVP_CQE_PARKED);
	last = flush(p.c);
	answered(p.c, KVP_OP_FLUSH, last, 0, KVP_CQE_PARKED);
	assert_int_equal(kvp_load_seq(&p.c->page->awaits[4]), 10);
	assert_int_equal(commits_that_wait(&p), 1);
	bring(p.c, 4, 9);
	bring(p.c, 5, 10);
	nothing_comes(p.c);
	assert_int_equal(found(&p), 0);
	dp_check(&p.w);
	bring(p.c, 4, 11);
	answered(p.c, KVP_OP_COMMIT, first, 0, KVP_CQE_LATE);
	answered(p.c, KVP_OP_FLUSH, last, 0, KVP_CQE_LATE);
	nothing_comes(p.c); /* the ledger is through with those that waited */
	assert_int_equal(kvp_load_seq(&p.c->page->awaits[4]), 0);
	assert_int_equal(commits_that_wait(&p), 0);
	assert_int_equal(found(&p), 1);
	/* A moment that has come is now, also for what follows; and one on no timeline is refused. */
	first = commit_at(p.c, p.space, &p.g[1], serial(first), p.chain + T, 0, kvp_until(4, 11));
	answered(p.c, KVP_OP_COMMIT, first, 0, 0);
	answered(p.c, KVP_OP_FLUSH, flush(p.c), 0, 0);
	first = commit_at(p.c, p.space, &p.g[2], serial(first), p.chain + 2 * T, 0,
		kvp_until(KVP_TIMELINES, 0));
	answered(p.c, KVP_OP_COMMIT, first, -EINVAL, 0);
	assert_int_equal(found(&p), 2);
	end(&p);
}

/* A chain is published in order, whatever the order of its moments; others do not wait for it. */
static void chains_stay_in_order(void **state)
{
	struct parked_world p;
	kvp_token other[T];
	uint32_t s[5];

	(void)state;
	begin(&p, 5);
	s[0] = commit_at(p.c, p.space, &p.g[0], dp_root(), p.chain, 0, kvp_until(0, 5));
	s[1] = commit_at(p.c, p.space, &p.g[1], serial(s[0]), p.chain + T, 0, kvp_until(1, 3));
	s[2] = commit_at(p.c, p.space, &p.g[2], serial(s[1]), p.chain + 2 * T, 0, 0);
	s[3] = commit_at(p.c, p.space, &p.g[3], serial(s[2]), p.chain + 3 * T, 0, kvp_until(1, 9));
	for (uint32_t i = 0; i < 4; i++)
		answered(p.c, KVP_OP_COMMIT, s[i], 0, KVP_CQE_PARKED);
	make_tokens(other, T, 77);
	s[4] = commit_at(p.c, p.space, &p.g[4], dp_root(), other, 0, 0);
	answered(p.c, KVP_OP_COMMIT, s[4], 0, 0);
	bring(p.c, 1, 3);
	nothing_comes(p.c);
	assert_int_equal(found(&p), 0);
	bring(p.c, 0, 5);
	for (uint32_t i = 0; i < 3; i++)
		answered(p.c, KVP_OP_COMMIT, s[i], 0, KVP_CQE_LATE);
	assert_int_equal(found(&p), 3);
	nothing_comes(p.c);
	bring(p.c, 1, 9);
	answered(p.c, KVP_OP_COMMIT, s[3], 0, KVP_CQE_LATE);
	assert_int_equal(found(&p), 4);
	end(&p);
}

/* What cannot be is refused when its moment comes, and so is what follows it. */
static void refused_late(void **state)
{
	struct parked_world p;
	struct kvp_msg_id id = { 0 };
	char name[16];
	uint32_t s[3];

	(void)state;
	begin(&p, 4);
	s[0] = commit_at(p.c, p.space, &p.g[0], (struct dp_ref){ KVP_PARENT_BLOCK, 5, 77 }, p.chain,
		0, kvp_until(0, 1));
	s[1] = commit_at(p.c, p.space, &p.g[1], serial(s[0]), p.chain + T, KVP_SQE_RELEASE, 0);
	answered(p.c, KVP_OP_COMMIT, s[0], 0, KVP_CQE_PARKED);
	answered(p.c, KVP_OP_COMMIT, s[1], 0, KVP_CQE_PARKED);
	s[2] = commit_at(p.c, p.space, &p.g[0], dp_root(), p.chain, 0, kvp_until(0, 1));
	answered(p.c, KVP_OP_COMMIT, s[2], -EALREADY, 0);
	/* Not even one that gives the grant back takes it from the commit that waits. */
	s[2] = commit_at(p.c, p.space, &p.g[1], dp_root(), p.chain, KVP_SQE_RELEASE, 0);
	answered(p.c, KVP_OP_COMMIT, s[2], -EALREADY, 0);
	dp_check(&p.w);
	bring(p.c, 0, 1);
	answered(p.c, KVP_OP_COMMIT, s[0], -ECANCELED, KVP_CQE_LATE);
	answered(p.c, KVP_OP_COMMIT, s[1], -ECANCELED, KVP_CQE_LATE);
	/* Refused it is the client's to write again, unless it was to go. */
	s[0] = commit_at(p.c, p.space, &p.g[0], dp_root(), p.chain, 0, kvp_until(0, 2));
	answered(p.c, KVP_OP_COMMIT, s[0], 0, KVP_CQE_PARKED);
	s[1] = commit_at(p.c, p.space, &p.g[1], dp_root(), p.chain, 0, 0);
	answered(p.c, KVP_OP_COMMIT, s[1], -EINVAL, 0);
	id.id = p.space;
	id.generation = p.c->view.spaces[p.space].generation;
	assert_int_equal(kvpd_space_close(p.w.ledger, p.c->at.session, &id), 0);
	/* Not in another space either that has the number by then. */
	for (uint32_t i = 1; i < KVP_MAX_SPACES; i++) {
		snprintf(name, sizeof(name), "other %u", i);
		assert_int_not_equal(dp_space(p.c, name, 4), p.space);
	}
	assert_int_equal(dp_space(p.c, "last", 4), p.space);
	bring(p.c, 0, 2);
	answered(p.c, KVP_OP_COMMIT, s[0], -EINVAL, KVP_CQE_LATE);
	end(&p);
}

/* A grant that is released while its commit waits goes back when that is published. */
static void released_while_it_waits(void **state)
{
	struct parked_world p;
	struct kvp_cqe cqe;
	uint32_t s;

	(void)state;
	begin(&p, 1);
	s = commit_at(p.c, p.space, &p.g[0], dp_root(), p.chain, 0, kvp_until(31, 1));
	answered(p.c, KVP_OP_COMMIT, s, 0, KVP_CQE_PARKED);
	dp_release(p.c, &p.g[0]);
	nothing_comes(p.c);
	dp_check(&p.w);
	bring(p.c, 31, 1);
	answered(p.c, KVP_OP_COMMIT, s, 0, KVP_CQE_LATE);
	assert_int_equal(found(&p), 1);
	s = commit_at(p.c, p.space, &p.g[0], dp_root(), p.chain, 0, 0);
	assert_int_equal(dp_next(p.c, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.status, -EINVAL);
	assert_int_equal(cqe.serial, s);
	end(&p);
}

/*
 * All the grants that there are wait, on all timelines, and more flushes than may. What comes of it
 * comes when the client makes room for it.
 */
static void as_many_as_can_wait(void **state)
{
	struct parked_world p;
	kvp_token tokens[T];
	struct kvp_cqe cqe;
	struct kvp_sqe nop = { .op = KVP_OP_NOP };
	uint32_t first = 0, late = 0, nops = 0, flushed = 0;

	(void)state;
	begin(&p, KVP_MAX_GRANTS);
	for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++) {
		make_tokens(tokens, T, 500 + i);
		first = commit_at(p.c, p.space, &p.g[i], dp_root(), tokens, 0,
			kvp_until(i % KVP_TIMELINES, 1 + i / KVP_TIMELINES));
		answered(p.c, KVP_OP_COMMIT, first, 0, KVP_CQE_PARKED);
	}
	first -= KVP_MAX_GRANTS - 1;
	for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++)
		answered(p.c, KVP_OP_FLUSH, flush(p.c), 0, KVP_CQE_PARKED);
	answered(p.c, KVP_OP_FLUSH, flush(p.c), -EAGAIN, 0);
	for (uint32_t i = KVP_TIMELINES; i-- > 0;) {
		bring(p.c, i, 2);
		for (uint32_t k = 0; k < 2; k++)
			answered(
				p.c, KVP_OP_COMMIT, first + i + k * KVP_TIMELINES, 0, KVP_CQE_LATE);
	}
	/* The ring is full of answers that nobody takes. */
	for (uint32_t i = 0; i < KVP_CQ_ENTRIES; i++)
		dp_push(p.c, &nop);
	while (kvp_cq_room(p.c->page, kvp_load_seq(&p.c->page->cq_tail)) > 1)
		usleep(1000);
	for (uint32_t i = 0; i < KVP_TIMELINES; i++)
		bring(p.c, i, 4);
	dp_check(&p.w);
	while (late + nops + flushed < KVP_MAX_GRANTS / 2 + KVP_CQ_ENTRIES + KVP_MAX_GRANTS) {
		assert_int_equal(dp_next(p.c, DP_WAIT_MS, &cqe), 0);
		assert_int_equal(cqe.status, 0);
		nops += cqe.op == KVP_OP_NOP;
		late += cqe.op == KVP_OP_COMMIT && cqe.flags == KVP_CQE_LATE;
		flushed += cqe.op == KVP_OP_FLUSH && cqe.flags == KVP_CQE_LATE;
		/* Flushes after all that was there when they came. */
		assert_true(!flushed || late == KVP_MAX_GRANTS / 2);
	}
	assert_int_equal(late, KVP_MAX_GRANTS / 2);
	assert_int_equal(flushed, KVP_MAX_GRANTS);
	end(&p);
}

/* A claim that is given up does not come back with a commit that waits. */
static void claims_of_what_waits(void **state)
{
	struct kvp_sqe claim = { .op = KVP_OP_CLAIM, .next_lo = 11, .next_hi = 1, .count = 60000 };
	struct kvp_sqe unclaim = { .op = KVP_OP_UNCLAIM, .next_lo = 11, .next_hi = 1 };
	struct parked_world p;
	struct dp_client *b;
	struct kvp_sqe sqe;
	struct kvp_key key;

	(void)state;
	begin(&p, 1);
	b = dp_attach(&p.w, p.w.tenant);
	key = kvp_chain_key((struct kvp_key){ p.c->view.spaces[p.space].root_lo,
				    p.c->view.spaces[p.space].root_hi },
		p.chain, T);
	sqe = (struct kvp_sqe){
		.op = KVP_OP_CLAIM, .next_lo = key.lo, .next_hi = key.hi, .count = 60000
	};
	answered(p.c, KVP_OP_CLAIM, dp_push(p.c, &sqe), 0, 0);
	sqe = (struct kvp_sqe){ .op = KVP_OP_COMMIT,
		.grant = p.g[0].index,
		.grant_generation = p.g[0].generation,
		.space = (uint16_t)p.space,
		.tokens = T,
		.next_lo = 11,
		.next_hi = 1,
		.until = kvp_until(0, 1) };
	memcpy(p.c->page->staging[p.g[0].index], p.chain, T * sizeof(p.chain[0]));
	answered(p.c, KVP_OP_COMMIT, dp_push(p.c, &sqe), 0, KVP_CQE_PARKED);
	dp_push(p.c, &unclaim);
	nothing_comes(p.c);
	bring(p.c, 0, 1);
	answered(p.c, KVP_OP_COMMIT, sqe.serial, 0, KVP_CQE_LATE);
	answered(b, KVP_OP_CLAIM, dp_push(b, &claim), 0, 0);
	end(&p);
}

/* A client that dies takes with it what waits; one whose moment never comes costs nobody a turn. */
static void what_waits_costs_nothing(void **state)
{
	struct parked_world p;
	kvp_token tokens[T];
	struct dp_ref parent = dp_root();
	struct dp_client *b;
	uint64_t rounds;
	uint32_t last;

	(void)state;
	begin(&p, KVP_MAX_GRANTS);
	b = dp_attach(&p.w, p.w.tenant);
	for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++) {
		/* The own moment of every other one comes, but not that of its parent. */
		uint64_t until = i % 2 ? kvp_until(1, 1) : kvp_until(0, 1 + i);

		make_tokens(tokens, T, 500 + i);
		last = commit_at(
			p.c, p.space, &p.g[i], i % 2 ? parent : dp_root(), tokens, 0, until);
		answered(p.c, KVP_OP_COMMIT, last, 0, KVP_CQE_PARKED);
		parent = serial(last);
	}
	bring(p.c, 1, 1);
	answered(p.c, KVP_OP_FLUSH, flush(p.c), 0, KVP_CQE_PARKED);
	usleep(200000);
	rounds = kvp_load_relaxed(&p.w.ledger->rounds);
	usleep(500000);
	assert_in_range(kvp_load_relaxed(&p.w.ledger->rounds) - rounds, 0, 100);
	dp_detach(p.c);
	p.c = b;
	assert_int_equal(dp_space(b, "m", 4), p.space);
	assert_int_equal(dp_figure(&p.w, "blocks"), 0);
	for (int i = 0; i < 6000 && dp_figure(&p.w, "arena_bytes"); i++) {
		dp_pump(&p.w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&p.w, "arena_bytes"), 0);
	put_chain(b, p.space, p.chain, 8);
	assert_int_equal(found(&p), 8);
	end(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(leased_until_a_moment),
		cmocka_unit_test(limbo_until_a_moment),
		cmocka_unit_test(a_commit_waits),
		cmocka_unit_test(chains_stay_in_order),
		cmocka_unit_test(refused_late),
		cmocka_unit_test(released_while_it_waits),
		cmocka_unit_test(as_many_as_can_wait),
		cmocka_unit_test(claims_of_what_waits),
		cmocka_unit_test(what_waits_costs_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
