/* SPDX-License-Identifier: Apache-2.0 */
/* Attention that clients report of tokens: which of a block's bits these get under a floor of smart, and who pays. */
#include "tests/daemon/ledger/coded.h"

#include <errno.h>
#include <string.h>

#include "daemon/ledger/tokens.h"
#include "policy/kvp_width.h"

#define CHAIN 24u
#define TIMES 40u /* reports until the average is near what they say */
#define HEAVY (KVP_ATTENTION_MEAN + 3 * KVP_ATTENTION_OCTAVE)
#define LIGHT (KVP_ATTENTION_MEAN - 4 * KVP_ATTENTION_OCTAVE)

struct scene {
	struct dp_world w;
	struct dp_client *c;
	struct kvp_space_canon canon;
	uint32_t space;
	struct kvp_kernels *kernels;
	struct dp_block b[CHAIN];
};

static void begin_with(struct scene *s, const char *floor, uint32_t quality_target)
{
	struct dp_ref parent = dp_root();
	struct kvpd_limits limits;

	assert_int_equal(kvp_kernels_new(KVP_CPU_ALL, &s->kernels), 0);
	dp_defaults(&s->w, &limits);
	limits.share = SHARE;
	limits.max_blocks = 4096;
	limits.recipe_tokens = 4096 * T;
	limits.quality_target = quality_target;
	dp_start(&s->w, &limits);
	s->c = dp_attach(&s->w, s->w.tenant);
	s->canon = coded_model("m", floor);
	s->space = coded_open(s->c, &s->canon);
	for (uint32_t i = 0; i < CHAIN; i++) {
		assert_int_equal(coded_put(s->c, s->space, parent, i, T, &s->b[i]), 0);
		parent = dp_ref(&s->b[i]);
	}
}

static void begin(struct scene *s, const char *floor)
{
	begin_with(s, floor, 0);
}

static void end(struct scene *s)
{
	kvp_kernels_free(s->kernels);
	dp_check(&s->w);
	dp_stop(&s->w);
}

static struct kvp_sqe report_of(const struct scene *s, uint32_t block, uint32_t heavy)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_TOKENS,
		.space = (uint16_t)s->space,
		.count = T,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = s->b[block].id,
		.parent_birth = s->b[block].birth,
	};

	memset(kvp_sqe_attention(&sqe), LIGHT, T);
	kvp_sqe_attention(&sqe)[heavy] = HEAVY;
	return sqe;
}

/* Of each block one token gets nearly all, the one after that of the block above it. */
static void report(struct scene *s, uint32_t shift, uint32_t times)
{
	for (uint32_t i = 0; i < CHAIN * times; i++) {
		struct kvp_sqe sqe = report_of(s, i % CHAIN, (i % CHAIN + shift) % T);

		dp_push(s->c, &sqe);
	}
	dp_flush(s->c);
}

/* All but the newest blocks go to this width, by their age. */
static void zones(struct scene *s, const char *stale, const char *figure)
{
	char rule[128];

	snprintf(rule, sizeof(rule),
		"\"precision\":\"zones\",\"hot_tokens\":32,\"stale_tokens\":%s", stale);
	coded_rule(&s->w, "m", rule);
	for (uint32_t ms = 0; dp_figure(&s->w, figure) < CHAIN / 2; ms++) {
		assert_true(ms < DP_WAIT_MS);
		dp_pump(&s->w);
	}
	coded_await_rest(&s->w);
}

struct taken {
	uint32_t width;
	uint8_t bits[2][T];
	_Alignas(64) uint8_t bytes[BLOCK];
	_Alignas(64) uint8_t decoded[2][BLOCK]; /* by layers */
};

/* The payloads of the chain as they are, what bits their tokens have, and what they decode to. */
static void take(struct scene *s, struct taken *out)
{
	static struct kvp_block_layout l;
	kvp_token tokens[CHAIN * T];
	struct kvp_hit hit[CHAIN];
	struct kvp_lease lease;

	for (uint32_t i = 0; i < CHAIN; i++)
		coded_tokens(i, tokens + i * T);
	dp_pump(&s->w);
	assert_int_equal(dp_find(s->c, s->space, tokens, CHAIN * T, hit, CHAIN), CHAIN);
	assert_true(dp_lease(s->c, hit, CHAIN, &lease));
	dp_pump(&s->w);
	for (uint32_t i = 0; i < CHAIN; i++) {
		struct kvp_payload_layer layer;

		out[i].width = kvp_where_codec(hit[i].where);
		memcpy(out[i].bytes,
			s->c->extent[kvp_where_extent(hit[i].where)].addr + hit[i].offset,
			kvp_where_bytes(hit[i].where));
		memset(out[i].bits, 0, sizeof(out[i].bits));
		assert_int_equal(kvp_payload_layout(&s->canon, out[i].width, &l), 0);
		if (!kvp_payload_token_budget(&l, 0) && !kvp_payload_token_budget(&l, 1))
			continue;
		assert_int_equal(kvp_where_bytes(hit[i].where), l.bytes);
		for (uint32_t kind = 0; kind < 2; kind++)
			if (kvp_payload_token_budget(&l, kind))
				assert_int_equal(kvp_payload_token_bits(
							 &l, out[i].bytes, kind, out[i].bits[kind]),
					0);
		for (uint32_t n = 0; n < 2; n++)
			assert_int_equal(kvp_payload_decode(s->kernels, &l, n, out[i].bytes,
						 l.bytes, out[i].decoded[n], &layer),
				0);
	}
	kvp_lease_drop(&lease);
}

static uint32_t sum(const uint8_t *bits)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t < T; t++)
		n += bits[t];
	return n;
}

/* B-001: what is attended to has more bits than the rest of its block, which has as many in all as any other. */
static void tokens_share_the_bits_of_their_block(void **state)
{
	static struct taken got[CHAIN];
	uint32_t coded = 0;
	struct scene s;

	(void)state;
	begin(&s, "smart");
	report(&s, 0, TIMES);
	assert_int_equal(dp_figure(&s.w, "token_attention_reported_total"), CHAIN * TIMES * T);
	zones(&s, "64", "blocks_2_bits");
	take(&s, got);
	for (uint32_t i = 0; i < CHAIN; i++) {
		uint32_t heavy = i % T;

		/* Between both boundaries they have a mean of 4, beyond the second one of 2.5 bits. */
		if (got[i].width < KVP_WIDTH_4)
			continue;
		coded++;
		assert_memory_equal(got[i].bits[0], got[i].bits[1], T);
		assert_int_equal(got[i].bits[0][heavy], 8);
		assert_true(sum(got[i].bits[0]) <= (got[i].width == KVP_WIDTH_4 ? 4 : 2.5) * T);
		assert_true(sum(got[i].bits[0]) > (got[i].width == KVP_WIDTH_4 ? 3.5 : 2.25) * T);
		for (uint32_t t = 0; t < T; t++)
			assert_true(t == heavy || got[i].bits[0][t] <= 4);
	}
	assert_true(coded > CHAIN / 2);
	assert_int_equal(dp_figure(&s.w, "tokens_coded_8_bits_total"), coded);
	assert_int_equal(dp_figure(&s.w, "tokens_coded_2_bits_total") +
				 dp_figure(&s.w, "tokens_coded_3_bits_total") +
				 dp_figure(&s.w, "tokens_coded_4_bits_total") + coded,
		coded * T);
	end(&s);
}

/* B-049: of what nobody has reported the tokens have the same, or all but. */
static void without_reports_the_mean_is_spread_evenly(void **state)
{
	static struct taken got[CHAIN];
	uint32_t coded = 0;
	struct scene s;

	(void)state;
	begin(&s, "smart");
	zones(&s, "64", "blocks_2_bits");
	take(&s, got);
	for (uint32_t i = 0; i < CHAIN; i++)
		for (uint32_t t = 0; got[i].width >= KVP_WIDTH_4 && t < T; t++) {
			assert_int_equal(got[i].bits[0][t], got[i].width == KVP_WIDTH_4 ? 4
							    : t < T / 2                 ? 3
											: 2);
			coded++;
		}
	assert_true(coded > CHAIN / 2 * T);
	assert_int_equal(dp_figure(&s.w, "token_attention_reported_total"), 0);
	end(&s);
}

/* The rows of one token, of all heads, in what was decoded. */
static bool same_rows(const struct taken *a, const struct taken *b, uint32_t t)
{
	const size_t row = 64 * 2, head = T * row, plane = 2 * head;

	for (uint32_t n = 0; n < 2; n++)
		for (uint32_t k = 0; k < 4; k++) {
			size_t at = k / 2 * plane + k % 2 * head + t * row;

			if (memcmp(a->decoded[n] + at, b->decoded[n] + at, row) != 0)
				return false;
		}
	return true;
}

/*
 * B-035: when attention has changed and blocks go further down, tokens that keep their bits keep what they decode to,
 * and none gets any back.
 */
static void only_changed_tokens_are_coded_again(void **state)
{
	static struct taken before[CHAIN], after[CHAIN];
	uint32_t further = 0, same = 0;
	struct scene s;

	(void)state;
	begin(&s, "smart");
	report(&s, 0, TIMES);
	zones(&s, "100000", "blocks_4_bits");
	take(&s, before);
	report(&s, 1, 2 * TIMES);
	zones(&s, "64", "blocks_2_bits");
	take(&s, after);
	for (uint32_t i = 0; i < CHAIN; i++) {
		if (before[i].width != KVP_WIDTH_4 || after[i].width != KVP_WIDTH_2)
			continue;
		further++;
		for (uint32_t t = 0; t < T; t++) {
			assert_true(after[i].bits[0][t] <= before[i].bits[0][t]);
			assert_int_equal(same_rows(&before[i], &after[i], t),
				after[i].bits[0][t] == before[i].bits[0][t]);
			same += after[i].bits[0][t] == before[i].bits[0][t];
		}
		/* Who matters now has what it had; the one that did goes. */
		assert_int_equal(after[i].bits[0][(i + 1) % T], before[i].bits[0][(i + 1) % T]);
		assert_int_equal(before[i].bits[0][i % T], 8);
		assert_true(after[i].bits[0][i % T] < 8);
	}
	print_message(
		"%u blocks went further down, %u of their tokens kept their bits\n", further, same);
	assert_true(further > CHAIN / 3 && same >= further);
	end(&s);
}

/* Where only keys or only values have bits of their own, or neither, and where the mean is another. */
static void other_floors(void **state)
{
	static const struct {
		const char *floor;
		uint32_t width, mean[2];
		double bits; /* the mean of both */
	} floors[] = { { "smart/tq2-nc", KVP_WIDTH_2, { 40, 0 }, 2.5 },
		{ "tq2-nc/smart-3", KVP_WIDTH_2, { 0, 48 }, 3 },
		{ "smart-3/smart-25", KVP_WIDTH_2, { 48, 40 }, 2.75 } };
	static struct taken got[CHAIN];

	(void)state;
	for (uint32_t f = 0; f < sizeof(floors) / sizeof(*floors); f++) {
		uint32_t coded = 0;
		struct scene s;

		begin(&s, floors[f].floor);
		assert_true(coded_figures(&s.w, s.space).quality.floor_bits == floors[f].bits);
		report(&s, 0, TIMES);
		zones(&s, "64", "blocks_2_bits");
		take(&s, got);
		for (uint32_t i = 0; i < CHAIN; i++) {
			if (got[i].width != floors[f].width)
				continue;
			coded++;
			for (uint32_t kind = 0; kind < 2; kind++) {
				assert_true(sum(got[i].bits[kind]) <= floors[f].mean[kind]);
				assert_int_equal(
					got[i].bits[kind][i % T], floors[f].mean[kind] ? 8 : 0);
			}
		}
		assert_true(coded > CHAIN / 3);
		end(&s);
	}
}

/* B-008, B-009: the least budget is the lowest mean with all that its payload has besides; a lower one changes nothing. */
static void the_least_budget(void **state)
{
	static struct kvp_block_layout l;
	double least;
	char rule[96];
	json_t *answer;
	struct scene s;

	(void)state;
	begin(&s, "smart");
	assert_int_equal(kvp_payload_layout(&s.canon, kvp_payload_lowest(&s.canon), &l), 0);
	least = (double)l.bytes / BLOCK;
	snprintf(rule, sizeof(rule), "\"precision\":\"budget\",\"budget\":%.6f", least - 1e-5);
	assert_int_equal(coded_set(&s.w, "m", rule, &answer), -ENOSPC);
	json_decref(answer);
	coded_await_rest(&s.w);
	assert_int_equal(dp_figure(&s.w, "coded_total"), 0);
	snprintf(rule, sizeof(rule), "\"precision\":\"budget\",\"budget\":%.6f", least + 1e-5);
	coded_rule(&s.w, "m", rule);
	coded_await_within(&s.w, s.space, least + 1e-5);
	assert_int_equal(dp_figure(&s.w, "blocks_2_bits"), CHAIN);
	end(&s);
}

/* What is coded so is as good as its floor says: no width is raised for it. */
static void quality_is_judged_by_bits(void **state)
{
	struct scene s;
	struct kvpd_quality_figures q;
	uint32_t put = 0;

	(void)state;
	begin_with(&s, "smart", 75);
	report(&s, 0, TIMES);
	zones(&s, "64", "blocks_2_bits");
	coded_rule(&s.w, "m", "\"precision\":\"pressure\"");
	for (; dp_figure(&s.w, "quality_checked_total") < 5; put += 20) {
		assert_true(put < 4000);
		coded_put_many(s.c, s.space, 1000 + put, 20);
	}
	q = coded_figures(&s.w, s.space).quality;
	print_message("mean %.3f, worst head %.2f of what it may lose\n", (double)q.mean, q.worst);
	assert_true(q.mean == 1);
	/* Twice what they lose of normal numbers is what heads may. */
	assert_true(q.worst > .25 && q.worst < .75);
	assert_int_equal(q.changes, 0);
	assert_int_equal(q.raised, 0);
	/* The bits are the mean that tokens share, not the width's, which is 2. */
	assert_true(q.floor_bits == 2.5 && q.coding_bits == 2.5);
	end(&s);
}

/* Reports that name what they may not, of more tokens than there are, or of spaces without such a floor. */
static void hostile_reports_are_dropped(void **state)
{
	struct kvp_space_canon other = coded_model("other", "2bit"), exact = coded_model("e", NULL);
	struct dp_client *stranger;
	struct dp_block b;
	uint64_t metadata;
	uint32_t o, e;
	struct scene s;

	(void)state;
	begin(&s, "smart");
	stranger = dp_attach(&s.w, s.w.tenant);
	o = coded_open(s.c, &other);
	e = coded_open(s.c, &exact);
	assert_int_equal(coded_put(s.c, o, dp_root(), 5000, T, &b), 0);
	metadata = dp_figure(&s.w, "metadata_bytes");
	for (uint32_t i = 0; i < 1300; i++) {
		struct kvp_sqe sqe = report_of(&s, i % CHAIN, 3);
		struct dp_client *c = s.c;

		switch (i % 13) {
		case 0:
			sqe.space = i % 2 ? UINT16_MAX : KVP_MAX_SPACES;
			break;
		case 1:
			sqe.space = (uint16_t)(i % 2 ? o : e);
			break;
		case 2:
			sqe.parent_id = i % 2 ? UINT32_MAX : s.c->view.max_blocks;
			break;
		case 3:
			sqe.parent_birth += 1 + i;
			break;
		case 4:
			sqe.count = i % 2 ? UINT32_MAX : KVP_ATTENTION_TOKENS + 1;
			break;
		case 5:
			sqe.count = T + 1;
			break;
		case 6:
			sqe.tokens = 1; /* so that the last one is beyond the block */
			break;
		case 7:
			sqe.tokens = UINT16_MAX;
			sqe.count = i % 2 ? 1 : UINT32_MAX - 3;
			break;
		case 8:
			sqe.tokens = T;
			sqe.count = 0;
			break;
		case 9:
			sqe.parent_kind = i % 2 ? KVP_PARENT_SERIAL : KVP_PARENT_ROOT;
			break;
		case 10: /* a space with a floor whose tokens have no bits of their own */
			sqe.space = (uint16_t)o;
			sqe.parent_id = b.id;
			sqe.parent_birth = b.birth;
			break;
		case 11:
			sqe.parent_id = s.b[CHAIN - 1].id + 100; /* free, whatever birth it has */
			sqe.parent_birth = 0;
			break;
		default:
			c = stranger; /* has not opened it */
		}
		dp_push(c, &sqe);
	}
	dp_flush(s.c);
	dp_flush(stranger);
	assert_int_equal(dp_figure(&s.w, "token_attention_reported_total"), 0);
	assert_int_equal(dp_figure(&s.w, "metadata_bytes"), metadata);
	end(&s);
}

/* The tenant pays 128 bytes for each descriptor, once; and a descriptor's next block begins anew. */
static void the_tenant_pays(void **state)
{
	static struct taken got[CHAIN];
	struct dp_ref parent = dp_root();
	uint32_t coded = 0;
	uint64_t metadata;
	struct scene s;

	(void)state;
	begin(&s, "smart");
	metadata = dp_figure(&s.w, "metadata_bytes");
	report(&s, 0, TIMES);
	assert_int_equal(dp_figure(&s.w, "metadata_bytes") - metadata,
		(uint64_t)s.c->view.max_blocks * sizeof(struct kvpd_token_levels));
	for (uint32_t i = CHAIN; i-- > 0;)
		dp_push(s.c, &(struct kvp_sqe){ .op = KVP_OP_DELETE,
				     .parent_kind = KVP_PARENT_BLOCK,
				     .parent_id = s.b[i].id,
				     .parent_birth = s.b[i].birth });
	dp_flush(s.c);
	for (uint32_t i = 0; i < CHAIN; i++) {
		assert_int_equal(coded_put(s.c, s.space, parent, i, T, &s.b[i]), 0);
		parent = dp_ref(&s.b[i]);
	}
	zones(&s, "64", "blocks_2_bits");
	take(&s, got);
	for (uint32_t i = 0; i < CHAIN; i++)
		for (uint32_t t = 0; got[i].width == KVP_WIDTH_2 && t < T; t++) {
			assert_int_equal(got[i].bits[0][t], t < T / 2 ? 3 : 2);
			coded++;
		}
	assert_true(coded > 0);
	end(&s);
}

/* When the last space with a floor goes its memory goes, and what was charged for it; the next one has it made anew. */
static void what_was_reported_goes_with_the_space(void **state)
{
	struct kvp_space_canon other = coded_model("other", NULL),
			       next = coded_model("next", "smart");
	char why[KVP_MSG_TEXT] = "";
	struct kvp_msg_space space;
	struct kvp_msg_id id;
	uint64_t metadata, levels;
	struct kvp_sqe sqe;
	struct scene s;

	(void)state;
	begin(&s, "smart");
	levels = (uint64_t)s.c->view.max_blocks * sizeof(struct kvpd_token_levels);
	metadata = dp_figure(&s.w, "metadata_bytes");
	report(&s, 0, 1);
	assert_int_equal(dp_figure(&s.w, "metadata_bytes"), metadata + levels);
	for (uint32_t i = 1; i < KVP_MAX_SPACES; i++) {
		snprintf(other.model, sizeof(other.model), "other %u", i);
		(void)coded_open(s.c, &other);
	}
	assert_int_equal(dp_open(s.c, &s.canon, why, sizeof(why), &space), 0);
	id = (struct kvp_msg_id){ space.space, space.generation };
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(kvpd_space_close(s.w.ledger, s.c->at.session, &id), 0);
	assert_int_equal(dp_open(s.c, &next, why, sizeof(why), &space), 0);
	assert_int_equal(space.space, s.space);
	for (uint32_t ms = 0; dp_figure(&s.w, "metadata_bytes") != metadata; ms++) {
		assert_true(ms < DP_WAIT_MS);
		dp_pump(&s.w);
	}
	assert_int_equal(coded_put(s.c, s.space, dp_root(), 0, T, &s.b[0]), 0);
	sqe = report_of(&s, 0, 3);
	dp_push(s.c, &sqe);
	dp_flush(s.c);
	assert_int_equal(dp_figure(&s.w, "metadata_bytes"), metadata + levels);
	assert_int_equal(dp_figure(&s.w, "token_attention_reported_total"), (CHAIN + 1) * T);
	end(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokens_share_the_bits_of_their_block),
		cmocka_unit_test(without_reports_the_mean_is_spread_evenly),
		cmocka_unit_test(only_changed_tokens_are_coded_again),
		cmocka_unit_test(other_floors),
		cmocka_unit_test(the_least_budget),
		cmocka_unit_test(quality_is_judged_by_bits),
		cmocka_unit_test(hostile_reports_are_dropped),
		cmocka_unit_test(the_tenant_pays),
		cmocka_unit_test(what_was_reported_goes_with_the_space),
	};

	return coded_run("tokens", tests, sizeof(tests) / sizeof(tests[0]));
}
