/* SPDX-License-Identifier: Apache-2.0 */
/* Attention that clients report: which blocks a budget spares for it, and what reports cannot do. */
#include "tests/daemon/ledger/coded.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "daemon/ledger/importance.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_width.h"

#define CHAIN KVP_ATTENTION_BLOCKS
#define HEAVY (KVP_ATTENTION_MEAN + 3 * KVP_ATTENTION_OCTAVE) /* eight times the mean */
#define LIGHT (KVP_ATTENTION_MEAN - 2 * KVP_ATTENTION_OCTAVE) /* a quarter of it */
#define TIMES 40u /* reports until the average is near what they say */

struct scene {
	struct dp_world w;
	struct dp_client *c;
	struct kvp_space_canon canon;
	uint32_t space;
};

static void begin_with(
	struct scene *s, const char *floor, uint32_t native_first, uint32_t native_last)
{
	s->c = coded_world(&s->w, 0);
	s->canon = coded_model("m", floor);
	s->canon.native_first = native_first;
	s->canon.native_last = native_last;
	s->space = coded_open(s->c, &s->canon);
}

static void begin(struct scene *s)
{
	begin_with(s, "2bit", 0, 0);
}

static void end(struct scene *s)
{
	assert_int_equal(dp_figure(&s->w, "evictions_total"), 0);
	dp_check(&s->w);
	dp_stop(&s->w);
}

/* One sequence of CHAIN blocks. */
static void put_chain(struct scene *s, uint32_t seed, struct dp_block *b)
{
	struct dp_ref parent = dp_root();

	for (uint32_t i = 0; i < CHAIN; i++) {
		assert_int_equal(coded_put(s->c, s->space, parent, seed + i, T, &b[i]), 0);
		parent = dp_ref(&b[i]);
	}
}

/* What a client says of a chain, the same of all its blocks. */
static struct kvp_sqe report_of(const struct scene *s, const struct dp_block *b, uint32_t code)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_ATTENTION,
		.space = (uint16_t)s->space,
		.count = CHAIN,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = b[CHAIN - 1].id,
		.parent_birth = b[CHAIN - 1].birth,
	};

	memset(kvp_sqe_attention(&sqe), (int)code, CHAIN);
	return sqe;
}

static void report(struct scene *s, const struct dp_block *b, uint32_t code, uint32_t times)
{
	struct kvp_sqe sqe = report_of(s, b, code);

	for (uint32_t i = 0; i < times; i++)
		dp_push(s->c, &sqe);
}

static uint32_t natives(const struct scene *s, const struct dp_block *b, uint32_t n)
{
	uint32_t native = 0;

	for (uint32_t i = 0; i < n; i++)
		native += coded_width(s->c, &b[i]) == KVP_WIDTH_NATIVE;
	return native;
}

/* With eight bits or more: a budget takes the step to eight of all blocks before it takes any further. */
static uint32_t precise(const struct scene *s, const struct dp_block *b, uint32_t n)
{
	uint32_t some = 0;

	for (uint32_t i = 0; i < n; i++)
		some += coded_width(s->c, &b[i]) <= KVP_WIDTH_8;
	return some;
}

#define CHAINS 10u

/*
 * Chains of one age after the other, with a budget that takes most of them; of the oldest it is said that they
 * matter, of the others that they do not.
 */
static void make_old_and_young_with(
	struct scene *s, struct dp_block b[CHAINS][CHAIN], bool reports, uint32_t blips)
{
	coded_rule(&s->w, "m", "\"precision\":\"budget\",\"budget\":1.0");
	for (uint32_t i = 0; i < CHAINS; i++)
		put_chain(s, 1000 * i, b[i]);
	for (uint32_t i = 0; reports && i < CHAINS; i++)
		report(s, b[i], i < 2 ? HEAVY : LIGHT, TIMES);
	for (uint32_t i = 0; i < CHAINS; i++)
		report(s, b[i], i < 2 ? LIGHT : HEAVY, blips);
	dp_flush(s->c);
	coded_rule(&s->w, "m", "\"budget\":0.4");
	coded_await_within(&s->w, s->space, .4);
	coded_await_rest(&s->w);
}

static void make_old_and_young(struct scene *s, struct dp_block b[CHAINS][CHAIN], bool reports)
{
	make_old_and_young_with(s, b, reports, 0);
}

/* B-014, B-054 and the task of a budget: what is attended to keeps its bits, however old it is. */
static void heavy_blocks_keep_their_bits(void **state)
{
	struct dp_block b[CHAINS][CHAIN];
	uint32_t light = 0;
	struct scene s;

	(void)state;
	begin(&s);
	make_old_and_young(&s, b, true);
	assert_int_equal(precise(&s, b[0], CHAIN) + precise(&s, b[1], CHAIN), 2 * CHAIN);
	for (uint32_t i = 2; i < CHAINS; i++)
		light += precise(&s, b[i], CHAIN);
	assert_true(light < (CHAINS - 2) * CHAIN / 2);
	assert_true(coded_figures(&s.w, s.space).by_attention);
	assert_int_equal(coded_figures(&s.w, s.space).attention_reported, CHAINS * CHAIN * TIMES);
	assert_int_equal(dp_figure(&s.w, "attention_reported_total"), CHAINS * CHAIN * TIMES);
	end(&s);
}

/* B-031: a report that says the contrary once changes nothing, many of them all. */
static void a_blip_changes_nothing(void **state)
{
	(void)state;
	for (uint32_t blips = 1; blips <= TIMES; blips += TIMES - 1) {
		struct dp_block b[CHAINS][CHAIN];
		uint32_t old;
		struct scene s;

		begin(&s);
		make_old_and_young_with(&s, b, true, blips);
		old = precise(&s, b[0], CHAIN) + precise(&s, b[1], CHAIN);
		assert_int_equal(old, blips == 1 ? 2 * CHAIN : 0);
		end(&s);
	}
}

struct asked {
	uint32_t tenant, block;
	double importance;
};

static int ask_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct asked *a = arg;

	a->importance = kvpd_importance_of(l->tenant[a->tenant], a->block);
	return 0;
}

/* B-011: after k reports of the same an average that began at 1 is gamma^k + (1 - gamma^k) of what they say. */
static void reports_are_averaged(void **state)
{
	static const uint32_t codes[] = { HEAVY, LIGHT };
	struct dp_block b[CHAIN];
	struct scene s;

	(void)state;
	begin(&s);
	for (uint32_t i = 0; i < 2; i++) {
		const double said = i ? .25 : 8;
		uint32_t k = 0;

		put_chain(&s, 1000 * i, b);
		for (uint32_t more = 1; more <= 16; more *= 2) {
			struct asked a = { .tenant = s.w.tenant, .block = b[i].id };
			double left;

			report(&s, b, codes[i], more);
			dp_flush(s.c);
			k += more;
			left = pow(.9, k);
			assert_int_equal(kvpd_ledger_ask(s.w.ledger, ask_on_ledger, &a), 0);
			/* Kept in 4,095 steps to an octave. */
			assert_true(fabs(a.importance / (left + (1 - left) * said) - 1) < .001);
		}
	}
	end(&s);
}

struct copied {
	uint32_t width;
	uint8_t bytes[BLOCK];
};

/* The payloads of a chain as they are. */
static void copy_chain(struct scene *s, uint32_t seed, struct copied *out)
{
	struct kvp_hit hit[CHAIN];
	kvp_token tokens[CHAIN * T];
	struct kvp_lease lease;

	for (uint32_t i = 0; i < CHAIN; i++)
		coded_tokens(seed + i, tokens + i * T);
	dp_pump(&s->w);
	assert_int_equal(dp_find(s->c, s->space, tokens, CHAIN * T, hit, CHAIN), CHAIN);
	assert_true(dp_lease(s->c, hit, CHAIN, &lease));
	dp_pump(&s->w);
	for (uint32_t i = 0; i < CHAIN; i++) {
		out[i].width = kvp_where_codec(hit[i].where);
		memcpy(out[i].bytes,
			s->c->extent[kvp_where_extent(hit[i].where)].addr + hit[i].offset,
			kvp_where_bytes(hit[i].where));
	}
	kvp_lease_drop(&lease);
}

/* B-035: a second cut codes some blocks further down, none up, and leaves each byte of all others alone. */
static void only_what_changes_is_coded_again(void **state)
{
	static struct copied before[CHAINS][CHAIN], after[CHAINS][CHAIN];
	struct dp_block b[CHAINS][CHAIN];
	uint32_t same = 0, further = 0;
	struct scene s;

	(void)state;
	begin(&s);
	make_old_and_young(&s, b, true);
	for (uint32_t i = 0; i < CHAINS; i++)
		copy_chain(&s, 1000 * i, before[i]);
	coded_rule(&s.w, "m", "\"budget\":0.3");
	coded_await_within(&s.w, s.space, .3);
	coded_await_rest(&s.w);
	for (uint32_t i = 0; i < CHAINS; i++) {
		copy_chain(&s, 1000 * i, after[i]);
		for (uint32_t k = 0; k < CHAIN; k++) {
			struct copied *was = &before[i][k], *is = &after[i][k];

			assert_true(is->width >= was->width);
			further += is->width > was->width;
			if (is->width > was->width)
				continue;
			assert_memory_equal(is->bytes, was->bytes,
				kvp_where_bytes(kvp_load_relaxed(&s.c->view.blocks[b[i][k].id]
									  .payload[KVP_TIER_DRAM]
									  .where)));
			same++;
		}
	}
	print_message("%u blocks went further down, %u stayed\n", further, same);
	assert_true(further > CHAIN && same > CHAIN);
	end(&s);
}

/* The same without a report: age alone decides, as it did before there were any. */
static void without_reports_the_oldest_go_first(void **state)
{
	struct dp_block b[CHAINS][CHAIN];
	struct scene s;

	(void)state;
	begin(&s);
	make_old_and_young(&s, b, false);
	assert_int_equal(precise(&s, b[0], CHAIN) + precise(&s, b[1], CHAIN), 0);
	assert_true(precise(&s, b[CHAINS - 1], CHAIN) > 0);
	assert_false(coded_figures(&s.w, s.space).by_attention);
	end(&s);
}

static uint32_t coded_of(const struct scene *s, struct dp_block b[CHAINS][CHAIN], uint32_t first)
{
	uint32_t coded = 0;

	for (uint32_t i = first; i < CHAINS; i += 2)
		coded += CHAIN - natives(s, b[i], CHAIN);
	return coded;
}

/*
 * Chains of one age, of which every other one matters, and then as many blocks as there is no room for, until all
 * might be coded that do not matter.
 */
static void press(struct scene *s, struct dp_block b[CHAINS][CHAIN], bool reports)
{
	uint32_t put = 0;

	for (uint32_t i = 0; i < CHAINS; i++)
		put_chain(s, 1000 * i, b[i]);
	for (uint32_t i = 0; reports && i < CHAINS; i++)
		report(s, b[i], i % 2 ? HEAVY : LIGHT, TIMES);
	dp_flush(s->c);
	for (; dp_figure(&s->w, "coded_total") < CHAINS * CHAIN / 2; put += 20) {
		assert_true(put < 2000);
		coded_put_many(s->c, s->space, 100000 + put, 20);
	}
	coded_await_rest(&s->w);
}

/* Under pressure too: of what is equally cold the less important is coded first; then nothing changes any more. */
static void pressure_takes_what_matters_least(void **state)
{
	struct dp_block b[CHAINS][CHAIN];
	uint32_t heavy, light;
	uint64_t coded;
	struct scene s;

	(void)state;
	begin(&s);
	press(&s, b, true);
	light = coded_of(&s, b, 0);
	heavy = coded_of(&s, b, 1);
	print_message("coded: %u of what matters, %u of what does not\n", heavy, light);
	assert_true(light > CHAINS * CHAIN / 4);
	/* A few lie in an extent that is emptied. */
	assert_true(heavy < CHAIN / 2);
	coded = dp_figure(&s.w, "coded_total");
	for (uint32_t i = 0; i < 1000; i++)
		report(&s, b[i % CHAINS], i % 2 ? LIGHT : HEAVY, 1);
	dp_flush(s.c);
	coded_await_rest(&s.w);
	assert_int_equal(dp_figure(&s.w, "coded_total"), coded);
	end(&s);
}

/* Where nobody reports nothing is kept for it, and whose turn it is does not depend on it. */
static void pressure_without_reports_costs_nothing(void **state)
{
	struct dp_block b[CHAINS][CHAIN];
	uint64_t metadata;
	struct scene s;

	(void)state;
	begin(&s);
	metadata = dp_figure(&s.w, "metadata_bytes");
	press(&s, b, false);
	assert_true(coded_of(&s, b, 1) > CHAIN);
	assert_int_equal(dp_figure(&s.w, "metadata_bytes"), metadata);
	assert_false(coded_figures(&s.w, s.space).by_attention);
	end(&s);
}

/* B-021, B-022: both ends stay native, as the floor says, and be it said that they do not matter at all. */
static void the_ends_are_the_owners(void **state)
{
	struct dp_block b[CHAINS][CHAIN];
	struct scene s;

	(void)state;
	begin_with(&s, "2bit", 2 * T, 3 * T);
	coded_rule(&s.w, "m", "\"precision\":\"budget\",\"budget\":1.0");
	for (uint32_t i = 0; i < CHAINS; i++) {
		put_chain(&s, 1000 * i, b[i]);
		report(&s, b[i], 1, TIMES);
	}
	coded_rule(&s.w, "m", "\"budget\":0.3");
	coded_await_rest(&s.w);
	for (uint32_t i = 0; i < CHAINS; i++) {
		assert_int_equal(natives(&s, b[i], CHAIN), 5);
		assert_int_equal(natives(&s, b[i], 2), 2);
		assert_int_equal(natives(&s, b[i] + CHAIN - 3, 3), 3);
	}
	end(&s);
}

/* Constant attention, reported ten thousand times, has nothing coded; nor has attention that changes. */
static void a_budget_that_holds_is_left_alone(void **state)
{
	struct dp_block b[CHAINS][CHAIN];
	struct scene s;
	uint64_t coded;

	(void)state;
	begin(&s);
	make_old_and_young(&s, b, true);
	coded = dp_figure(&s.w, "coded_total");
	for (uint32_t i = 0; i < 10000; i++)
		report(&s, b[i % CHAINS], i % CHAINS < 2 ? HEAVY : LIGHT, 1);
	dp_flush(s.c);
	coded_await_rest(&s.w);
	assert_int_equal(dp_figure(&s.w, "coded_total"), coded);
	for (uint32_t i = 0; i < CHAINS; i++)
		report(&s, b[i], i < 2 ? LIGHT : HEAVY, TIMES);
	dp_flush(s.c);
	coded_await_rest(&s.w);
	assert_int_equal(dp_figure(&s.w, "coded_total"), coded);
	end(&s);
}

/*
 * B-028: a budget that is cut while light blocks are read: these stay as they are, bit for bit, while all
 * others go as far as they may, and follow when the reader is gone.
 */
static void a_cut_under_a_lease(void **state)
{
	struct dp_block b[CHAINS][CHAIN];
	struct kvp_hit hit[CHAIN];
	struct kvp_lease lease;
	kvp_token tokens[CHAIN * T];
	struct scene s;

	(void)state;
	begin(&s);
	coded_rule(&s.w, "m", "\"precision\":\"budget\",\"budget\":1.0");
	for (uint32_t i = 0; i < CHAINS; i++) {
		put_chain(&s, 1000 * i, b[i]);
		report(&s, b[i], i < 2 ? HEAVY : LIGHT, TIMES);
	}
	dp_flush(s.c);
	dp_pump(&s.w);
	for (uint32_t i = 0; i < CHAIN; i++)
		coded_tokens(5000 + i, tokens + i * T);
	assert_int_equal(dp_find(s.c, s.space, tokens, CHAIN * T, hit, CHAIN), CHAIN);
	assert_true(dp_lease(s.c, hit, CHAIN, &lease));
	coded_rule(&s.w, "m", "\"budget\":0.4");
	coded_await_within(&s.w, s.space, .4);
	coded_await_rest(&s.w);
	assert_int_equal(precise(&s, b[0], CHAIN) + precise(&s, b[1], CHAIN), 2 * CHAIN);
	assert_int_equal(natives(&s, b[5], CHAIN), CHAIN);
	coded_rule(&s.w, "m", "\"budget\":0.18");
	coded_await_rest(&s.w);
	assert_false(coded_within(&s.w, s.space, .18));
	assert_int_equal(natives(&s, b[5], CHAIN), CHAIN);
	/* Where they were found, too, though some may have been moved to make room. */
	for (uint32_t i = 0; i < CHAIN; i++)
		coded_right(s.c, &s.canon, &hit[i], 5000 + i);
	kvp_lease_drop(&lease);
	coded_await_within(&s.w, s.space, .18);
	assert_true(natives(&s, b[5], CHAIN) < CHAIN);
	end(&s);
}

/* What no library sends, and what only counts where there is a budget. */
static void hostile_reports_are_dropped(void **state)
{
	struct kvp_space_canon exact = coded_model("exact", NULL), other = coded_model("o", "2bit");
	struct dp_block b[CHAIN];
	struct dp_client *stranger;
	struct scene s;
	uint32_t a, o;
	uint64_t metadata;

	(void)state;
	begin(&s);
	stranger = dp_attach(&s.w, s.w.tenant);
	a = coded_open(s.c, &exact);
	o = coded_open(s.c, &other);
	put_chain(&s, 0, b);
	metadata = dp_figure(&s.w, "metadata_bytes");
	for (uint32_t i = 0; i < 1100; i++) {
		struct kvp_sqe sqe = report_of(&s, b, HEAVY);
		struct dp_client *c = s.c;

		switch (i % 11) {
		case 0:
			sqe.space = i % 2 ? UINT16_MAX : KVP_MAX_SPACES;
			break;
		case 1:
			sqe.space = (uint16_t)a;
			break;
		case 2:
			sqe.space = (uint16_t)o;
			break;
		case 3:
			sqe.parent_id = i % 2 ? UINT32_MAX : s.c->view.max_blocks;
			break;
		case 4:
			sqe.parent_birth += 1 + i;
			break;
		case 5:
			sqe.count = i % 2 ? UINT32_MAX : CHAIN + 1;
			break;
		case 6:
			sqe.count = 0;
			break;
		case 7:
			sqe.parent_kind = i % 2 ? KVP_PARENT_SERIAL : KVP_PARENT_ROOT;
			break;
		case 8:
			sqe.parent_id = b[CHAIN - 1].id + 1; /* free, whatever birth it has */
			sqe.parent_birth = 0;
			break;
		case 9:
			memset(kvp_sqe_attention(&sqe), KVP_ATTENTION_NONE, CHAIN);
			break;
		default:
			c = stranger; /* has not opened it */
		}
		dp_push(c, &sqe);
	}
	dp_flush(s.c);
	dp_flush(stranger);
	assert_int_equal(dp_figure(&s.w, "attention_reported_total"), 0);
	assert_false(coded_figures(&s.w, s.space).by_attention);
	/* A run that is longer than what is above its last block ends with the chain. */
	report(&s, b, HEAVY, 1);
	b[CHAIN - 1] = b[2];
	report(&s, b, HEAVY, 1);
	dp_flush(s.c);
	assert_int_equal(dp_figure(&s.w, "attention_reported_total"), CHAIN + 3);
	assert_true(dp_figure(&s.w, "metadata_bytes") > metadata);
	end(&s);
}

/* A client that lies about everything it can: the budget, the floor and the other space are as they were. */
static void lies_stay_at_home(void **state)
{
	struct kvp_space_canon other = coded_model("other", "2bit");
	struct dp_block b[CHAINS][CHAIN], theirs[CHAIN];
	struct scene s, o;

	(void)state;
	begin_with(&s, "4bit", 0, 0);
	o = s;
	o.c = dp_attach(&s.w, s.w.tenant);
	o.space = coded_open(o.c, &other);
	coded_rule(&s.w, "m", "\"precision\":\"budget\",\"budget\":0.4");
	coded_rule(&s.w, "other", "\"precision\":\"budget\",\"budget\":1.0");
	put_chain(&o, 50000, theirs);
	for (uint32_t i = 0; i < CHAINS; i++) {
		put_chain(&s, 1000 * i, b[i]);
		/* Now all are the most important there are, now none is anything. */
		for (uint32_t k = 0; k < 100; k++)
			report(&s, b[k % (i + 1)], (k + i) % 2 ? 1 : UINT8_MAX, 3);
	}
	dp_flush(s.c);
	coded_await_within(&s.w, s.space, .4);
	coded_await_rest(&s.w);
	/* A sixteenth below, and a job's worth more where a round was under way when the last blocks came. */
	assert_false(coded_within(&s.w, s.space, .4 * 12 / 16));
	assert_int_equal(natives(&o, theirs, CHAIN), CHAIN);
	for (uint32_t i = 0; i < CHAINS; i++)
		for (uint32_t k = 0; k < CHAIN; k++) {
			assert_true(coded_there(s.c, &b[i][k]));
			assert_true(coded_width(s.c, &b[i][k]) <= KVP_WIDTH_4);
		}
	end(&s);
}

/* What was said of a block is not said of the next one that has its descriptor. */
static void another_block_begins_anew(void **state)
{
	struct dp_block heavy[CHAIN], b[3][CHAIN], next[CHAIN];
	uint32_t same = 0;
	uint64_t there;
	struct scene s;

	(void)state;
	begin(&s);
	coded_rule(&s.w, "m", "\"precision\":\"budget\",\"budget\":1.0");
	for (uint32_t i = 0; i < 3; i++)
		put_chain(&s, 1000 * i, b[i]);
	put_chain(&s, 30000, heavy);
	report(&s, heavy, UINT8_MAX, TIMES);
	for (uint32_t i = 0; i < 3; i++)
		report(&s, b[i], HEAVY, TIMES);
	there = dp_figure(&s.w, "blocks");
	for (uint32_t i = CHAIN; i-- > 0;)
		dp_push(s.c, &(struct kvp_sqe){ .op = KVP_OP_DELETE,
				     .parent_kind = KVP_PARENT_BLOCK,
				     .parent_id = heavy[i].id,
				     .parent_birth = heavy[i].birth });
	dp_flush(s.c);
	/* One that was being moved or coded is there until that is over. */
	dp_await_most(&s.w, "blocks", there - CHAIN);
	put_chain(&s, 40000, next);
	for (uint32_t i = 0; i < CHAIN; i++)
		for (uint32_t k = 0; k < CHAIN; k++)
			same += next[i].id == heavy[k].id;
	assert_true(same > CHAIN / 2);
	coded_rule(&s.w, "m", "\"budget\":0.9");
	coded_await_within(&s.w, s.space, .9);
	coded_await_rest(&s.w);
	/* That takes 20 blocks or a few more: were it the heavy one still, none of them would be of it. */
	assert_true(natives(&s, next, CHAIN) < CHAIN / 2);
	end(&s);
}

/* Memory for it is the tenant's, comes out of what it has, and stays whatever the rule. */
static void the_tenant_pays(void **state)
{
	struct kvp_space_canon exact = coded_model("exact", NULL);
	struct dp_block b[CHAIN];
	uint64_t metadata, share, charged;
	struct scene s;
	uint32_t a;

	(void)state;
	begin(&s);
	a = coded_open(s.c, &exact);
	coded_rule(&s.w, "m", "\"precision\":\"budget\",\"budget\":1.0");
	metadata = dp_figure(&s.w, "metadata_bytes");
	share = dp_figure(&s.w, "share_bytes");
	/* Full of blocks of the other space, which go for it. */
	coded_put_many(s.c, a, 100000, 1000);
	put_chain(&s, 0, b);
	assert_true(dp_figure(&s.w, "evictions_total") > 0);
	charged = dp_figure(&s.w, "charged_bytes");
	assert_true(charged > share - (UINT64_C(2) << 20));
	assert_true(coded_there(s.c, &b[CHAIN - 1]));
	for (uint32_t ms = 0; !dp_figure(&s.w, "attention_reported_total"); ms++) {
		assert_true(ms < DP_WAIT_MS);
		report(&s, b, HEAVY, 1);
		dp_flush(s.c);
		dp_pump(&s.w);
		dp_check(&s.w);
	}
	/* Two bytes for each descriptor. */
	assert_int_equal(
		dp_figure(&s.w, "metadata_bytes") - metadata, 2 * (uint64_t)s.c->view.max_blocks);
	assert_true(dp_figure(&s.w, "charged_bytes") <= share);
	coded_rule(&s.w, "m", "\"precision\":\"pressure\"");
	assert_int_equal(
		dp_figure(&s.w, "metadata_bytes") - metadata, 2 * (uint64_t)s.c->view.max_blocks);
	assert_true(dp_figure(&s.w, "attention_reported_total") > 0);
	dp_check(&s.w);
	dp_stop(&s.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(heavy_blocks_keep_their_bits),
		cmocka_unit_test(a_blip_changes_nothing),
		cmocka_unit_test(reports_are_averaged),
		cmocka_unit_test(only_what_changes_is_coded_again),
		cmocka_unit_test(without_reports_the_oldest_go_first),
		cmocka_unit_test(pressure_takes_what_matters_least),
		cmocka_unit_test(pressure_without_reports_costs_nothing),
		cmocka_unit_test(the_ends_are_the_owners),
		cmocka_unit_test(a_budget_that_holds_is_left_alone),
		cmocka_unit_test(a_cut_under_a_lease),
		cmocka_unit_test(hostile_reports_are_dropped),
		cmocka_unit_test(lies_stay_at_home),
		cmocka_unit_test(another_block_begins_anew),
		cmocka_unit_test(the_tenant_pays),
	};

	return coded_run("importance", tests, sizeof(tests) / sizeof(tests[0]));
}
