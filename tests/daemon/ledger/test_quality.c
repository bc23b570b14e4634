/* SPDX-License-Identifier: Apache-2.0 */
/* Quality of coded blocks: what is checked, what is reported, and the precision that follows from it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "payload/kvp_payload.h"
#include "tests/daemon/ledger/dp_world.h"

#define MIB   (UINT64_C(1) << 20)
#define T     32u
#define BLOCK 16384u /* bytes of a native one */
#define PUTS  20000u /* in which whatever is waited for has to happen */

/* One layer of two heads, 64 channels of fp16. */
static struct kvp_space_canon model(const char *name, const char *floor)
{
	struct kvp_space_canon c;

	dp_canon(&c, name, 1);
	c.block_tokens = T;
	c.layers[0].kv_heads = 2;
	c.layers[0].k_dim = c.layers[0].v_dim = 64;
	assert_int_equal(kvp_codec_parse_pair(floor, &c.floor_k, &c.floor_v), 0);
	return c;
}

struct scene {
	struct dp_world w;
	struct dp_client *c;
	struct kvp_space_canon canon;
	uint32_t space;
	uint32_t next; /* block */
};

static void begin(struct scene *s, const char *floor, uint32_t target)
{
	struct kvpd_limits limits;
	struct kvp_msg_space space;
	char why[KVP_MSG_TEXT] = "";

	dp_defaults(&s->w, &limits);
	limits.share = 8 * MIB;
	limits.max_blocks = 4096;
	limits.recipe_tokens = 4096 * T;
	limits.quality_target = target;
	dp_start(&s->w, &limits);
	s->c = dp_attach(&s->w, s->w.tenant);
	s->canon = model("m", floor);
	s->next = 0;
	if (dp_open(s->c, &s->canon, why, sizeof(why), &space) < 0)
		fail_msg("%s", why);
	s->space = space.space;
}

static void end(struct scene *s)
{
	dp_check(&s->w);
	dp_stop(&s->w);
}

/* Of the one space there is; -1: null. */
static double figure(struct scene *s, const char *name)
{
	json_t *answer, *v;
	double x;

	assert_int_equal(dp_admin(&s->w, "{\"verb\": \"spaces\"}", &answer), 0);
	v = json_object_get(json_array_get(json_object_get(answer, "spaces"), 0), name);
	assert_non_null(v);
	x = json_is_null(v) ? -1 : json_number_value(v);
	json_decref(answer);
	return x;
}

/* ---- contents -------------------------------------------------------------------------------- */

static uint64_t state = 1;

static uint32_t random32(void)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 32);
}

/* Halves between 1/2 and 2, of both signs: any codec likes them as much as normal ones. */
static uint16_t usual(uint32_t token, uint32_t channel)
{
	uint32_t x = random32();

	(void)token;
	(void)channel;
	return (uint16_t)(0x3800 + (x & 0x7ff) + (x >> 31) * 0x8000);
}

/*
 * What 2 bits between the least and the largest of a group cannot say: one of 32 is 1, one -1 and all
 * others nearly 0, along the tokens as well as along the channels.
 */
static uint16_t unsuited(uint32_t token, uint32_t channel)
{
	if (token % 32 == channel % 32)
		return 0x3c00;
	return token % 32 == (channel + 7) % 32 ? 0xbc00 : (uint16_t)(random32() & 0x0fff);
}

static void fill(const struct kvp_space_canon *canon, uint16_t (*element)(uint32_t, uint32_t),
	uint8_t *block)
{
	static struct kvp_block_layout l;

	assert_int_equal(kvp_payload_layout(canon, 0, &l), 0);
	assert_int_equal(l.bytes, BLOCK);
	for (uint32_t i = 0; i < 2 * l.n_layers; i++) {
		const struct kvp_block_plane *p = &l.plane[i / 2][i % 2];

		for (uint32_t h = 0; h < p->heads; h++)
			for (uint32_t t = 0; t < T; t++)
				for (uint32_t c = 0; c < p->dim; c++) {
					uint16_t half = element(t, c);

					memcpy(block + p->offset + h * p->head_stride +
							t * p->token_stride + 2 * c,
						&half, 2);
				}
	}
}

static struct dp_block put(struct scene *s, uint16_t (*element)(uint32_t, uint32_t))
{
	struct dp_block b;
	kvp_token tokens[T];
	struct dp_grant g;

	assert_int_equal(dp_reserve(s->c, s->space, 1, DP_WAIT_MS, &g), 1);
	for (uint32_t i = 0; i < T; i++)
		tokens[i] = s->next * 1000 + i;
	s->next++;
	fill(&s->canon, element, g.addr);
	assert_int_equal(
		dp_commit(s->c, s->space, &g, dp_root(), tokens, T, KVP_SQE_RELEASE, &b), 0);
	return b;
}

static void put_many(struct scene *s, uint16_t (*element)(uint32_t, uint32_t), uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		(void)put(s, element);
}

/* Puts until next blocks are coded with so many bits. */
static void put_until(struct scene *s, uint16_t (*element)(uint32_t, uint32_t), uint32_t bits)
{
	for (uint32_t n = 0; figure(s, "coding_bits") != bits; n++) {
		assert_true(n < PUTS / 50);
		put_many(s, element, 50);
	}
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* quality degrades, next blocks have more bits; it recovers, they have fewer. */
static void bad_quality_raises_good_lowers(void **unused)
{
	struct scene s;
	uint64_t coded;

	(void)unused;
	begin(&s, "kivi2", 90);
	assert_int_equal(figure(&s, "floor_bits"), 2);
	put_many(&s, usual, 900);
	assert_true(figure(&s, "quality_checked_total") >= 20);
	assert_true(figure(&s, "quality_ratio") == 1);
	assert_true(figure(&s, "quality_error_ratio") < 1);
	assert_int_equal(figure(&s, "coding_bits"), 2); /* the owner's floor, and no lower */
	assert_int_equal(figure(&s, "quality_changes_total"), 0);

	/* Keys have 4 bits one step up, values two. */
	put_until(&s, unsuited, 3);
	put_until(&s, unsuited, 4);
	assert_int_equal(dp_figure(&s.w, "quality_raised_spaces"), 1);
	assert_int_equal(figure(&s, "quality_changes_total"), 2);

	put_until(&s, usual, 2);
	assert_true(dp_figure(&s.w, "coded_4_bits_total") > 0);
	coded = dp_figure(&s.w, "coded_2_bits_total");
	put_many(&s, usual, 300);
	assert_true(dp_figure(&s.w, "coded_2_bits_total") > coded);
	assert_int_equal(dp_figure(&s.w, "quality_raised_spaces"), 0);
	end(&s);
}

/* What stays bad with fewer bits is tried with them once, and then left alone for long. */
static void precision_does_not_swing(void **unused)
{
	struct scene s;

	(void)unused;
	begin(&s, "kivi2", 90);
	while (figure(&s, "quality_changes_total") < 4) {
		assert_true(s.next < PUTS);
		put_many(&s, unsuited, 50);
	}
	assert_int_equal(figure(&s, "coding_bits"), 4); /* by 3, 4, 3 */
	put_many(&s, unsuited, 700);
	assert_int_equal(figure(&s, "coding_bits"), 4);
	assert_int_equal(figure(&s, "quality_changes_total"), 4);
	end(&s);
}

/* Without a target nobody looks, and the floor is what it was. */
static void without_a_target_nobody_looks(void **unused)
{
	struct scene s;

	(void)unused;
	begin(&s, "kivi2", 0);
	put_many(&s, unsuited, 900);
	assert_true(dp_figure(&s.w, "coded_2_bits_total") > 320);
	assert_int_equal(figure(&s, "quality_checked_total"), 0);
	assert_int_equal(figure(&s, "quality_samples"), 0);
	assert_true(figure(&s, "quality_ratio") < 0);
	assert_int_equal(figure(&s, "coding_bits"), 2);
	end(&s);
}

/* Blocks that are not finite, or zero, are no reason to code others with more bits. */
static uint16_t odd(uint32_t token, uint32_t channel)
{
	return channel % 4 ? 0 : token % 2 ? 0x7e00 : 0xfc00;
}

static void what_is_not_finite_counts_for_nothing(void **unused)
{
	struct scene s;

	(void)unused;
	begin(&s, "kivi2", 90);
	put_many(&s, odd, 900);
	assert_true(figure(&s, "quality_checked_total") >= 20);
	assert_true(figure(&s, "quality_ratio") == 1);
	assert_int_equal(figure(&s, "coding_bits"), 2);
	end(&s);
}

/* As if the engine had measured it so often. */
static void report(struct scene *s, double score, uint32_t times)
{
	for (uint32_t i = 0; i < times; i++) {
		struct kvp_sqe sqe = { .op = KVP_OP_QUALITY,
			.space = (uint16_t)s->space,
			.count = (uint32_t)(score * KVP_QUALITY_WHOLE) };

		dp_push(s->c, &sqe);
	}
	dp_flush(s->c);
}

/* Quality that is constant has bits settle where it wants them, and 10,000 scores more change nothing. */
static void constant_quality_changes_nothing(void **unused)
{
	static const struct {
		double score;
		uint32_t bits; /* that next blocks have in the end, from 4 on */
	} at[] = { { .95, 4 }, { .92, 4 }, { 1, 2 } };
	struct scene s;

	(void)unused;
	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		double settled;

		begin(&s, "kivi2", 90);
		report(&s, 0, 40);
		assert_int_equal(figure(&s, "coding_bits"), 4);
		report(&s, at[i].score, 200);
		assert_int_equal(figure(&s, "coding_bits"), at[i].bits);
		settled = figure(&s, "quality_changes_total");
		report(&s, at[i].score, 10000);
		assert_int_equal(figure(&s, "quality_reported_total"), 10240);
		assert_int_equal(figure(&s, "coding_bits"), at[i].bits);
		assert_true(figure(&s, "quality_changes_total") == settled);
		end(&s);
	}
}

/* What no library sends: scores beyond the whole, for spaces that are not open, exact, or none. */
static void hostile_scores_are_dropped(void **unused)
{
	struct kvp_space_canon exact;
	struct kvp_msg_space other;
	char why[KVP_MSG_TEXT] = "";
	struct dp_client *stranger;
	struct scene s;

	(void)unused;
	begin(&s, "kivi2", 90);
	stranger = dp_attach(&s.w, s.w.tenant);
	exact = s.canon;
	exact.floor_k = exact.floor_v = 0;
	assert_int_equal(dp_open(s.c, &exact, why, sizeof(why), &other), 0);
	for (uint32_t i = 0; i < 400; i++) {
		struct kvp_sqe sqe = { .op = KVP_OP_QUALITY, .space = (uint16_t)s.space };
		struct dp_client *c = s.c;

		if (i % 4 == 0)
			sqe.count = i % 8 ? KVP_QUALITY_WHOLE + 1 : UINT32_MAX;
		else if (i % 4 == 1)
			sqe.space = i % 8 == 1 ? UINT16_MAX : KVP_MAX_SPACES;
		else if (i % 4 == 2)
			sqe.space = (uint16_t)other.space;
		else
			c = stranger; /* has not opened it */
		dp_push(c, &sqe);
	}
	dp_flush(s.c);
	dp_flush(stranger);
	assert_int_equal(dp_figure(&s.w, "quality_reported_total"), 0);
	assert_int_equal(dp_figure(&s.w, "quality_samples"), 0);
	end(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_quality_raises_good_lowers),
		cmocka_unit_test(precision_does_not_swing),
		cmocka_unit_test(without_a_target_nobody_looks),
		cmocka_unit_test(what_is_not_finite_counts_for_nothing),
		cmocka_unit_test(constant_quality_changes_nothing),
		cmocka_unit_test(hostile_scores_are_dropped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
