/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences over kvpool whatever the daemon does: the bits are those of private memory. */
#include "tests/tools/kvrun/common.h"
#include "tests/tools/kvrun/fake_kvpool.h"
#include "tools/kvrun/kvr_kv_coded.h"
#include "tools/kvrun/kvr_kv_pool.h"
#include "tools/kvrun/kvr_sample.h"
#include "tools/kvrun/kvr_seq.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 16, PROMPT = 5 * BLOCK + 3, STEPS = 2 * BLOCK, VOCAB = 50 };

static const struct kvr_config config = {
	.layers = 2,
	.hidden = 24,
	.ffn = 40,
	.heads = 4,
	.kv_heads = 2,
	.head_dim = 8,
	.vocab = VOCAB,
	.context = 256,
	.norm_eps = 1e-5f,
	.rope_theta = 10000,
};

static struct kvr_model *model;
static uint32_t prompt[PROMPT];
static float plain[(STEPS + 1) * VOCAB]; /* logits of a run in private memory */

/* Runs the prompt and STEPS greedy tokens. */
static struct kvr_prefill run(struct kvr_kv *kv, uint32_t n, float *rows)
{
	struct kvr_prefill prefill;
	const float *logits;
	struct kvr_seq *seq;

	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	assert_int_equal(kvr_seq_prompt(seq, prompt, n, &prefill, &logits), 0);
	memcpy(rows, logits, VOCAB * sizeof(float));
	for (int i = 1; i <= STEPS; i++) {
		assert_int_equal(kvr_seq_next(seq, kvr_argmax(logits, VOCAB), &logits), 0);
		memcpy(rows + i * VOCAB, logits, VOCAB * sizeof(float));
	}
	kvr_seq_end(seq);
	assert_int_equal(fake.matches + fake.claims + fake.grants, 0);
	assert_int_equal(kvr_seq_next(seq, 0, &logits), -EINVAL);
	kvr_seq_free(seq);
	return prefill;
}

static uint32_t device = KVR_NO_DEVICE; /* that engines read on */
static uint32_t report_every;           /* of which tokens they report what these attend to */
static uint32_t want_ms;                /* for which they have others compute */
static uint32_t floor_codec;            /* down to which their blocks may be coded */

static struct kvr_kv *pool(int store, int reuse_tail)
{
	struct kvr_geom geom = kvr_model_geom(model, BLOCK, KVR_F16);
	struct kvr_pool_opts opts = { "/nowhere", store, reuse_tail, NULL, device, want_ms,
		{ floor_codec, floor_codec }, report_every };
	struct kvr_kv *kv;

	assert_int_equal(kvr_kv_pool_new(model, &geom, &opts, &kv), 0);
	return kv;
}

/* One process's life: the logits must be the plain ones, and nothing may be left behind. */
static struct kvr_prefill engine(int store, struct kvr_pool_report *ret_report)
{
	float rows[(STEPS + 1) * VOCAB];
	struct kvr_kv *kv = pool(store, 0);
	struct kvr_prefill prefill = run(kv, PROMPT, rows);

	kvr_kv_pool_report(kv, ret_report);
	kvr_kv_free(kv);
	assert_memory_equal(rows, plain, sizeof(plain));
	assert_int_equal(fake.matches, 0);
	assert_int_equal(fake.claims, 0);
	assert_int_equal(fake.grants, 0);
	assert_int_equal(fake.spaces, 0);
	return prefill;
}

static int prepare(void **unused)
{
	struct kvr_geom geom;
	uint64_t state = test_seed();
	struct kvr_kv *kv;

	(void)unused;
	model = test_model_new(&config, &state);
	for (uint32_t i = 0; i < PROMPT; i++)
		prompt[i] = (uint32_t)(test_random(&state) >> 32) % VOCAB;
	geom = kvr_model_geom(model, BLOCK, KVR_F16);
	assert_int_equal(kvr_kv_heap_new(&geom, &kv), 0);
	run(kv, PROMPT, plain);
	kvr_kv_free(kv);
	return 0;
}

static int finish(void **unused)
{
	(void)unused;
	fake_reset();
	model = kvr_model_free(model);
	return 0;
}

static int fresh(void **unused)
{
	(void)unused;
	fake_reset();
	device = KVR_NO_DEVICE;
	floor_codec = 0;
	return 0;
}

static void second_engine_reads_the_first_ones_blocks(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	assert_int_equal(engine(1, &r).reused, 0);
	assert_true(r.attached);
	assert_int_equal(r.blocks_slots, (PROMPT + STEPS) / BLOCK + 1);
	assert_int_equal(r.published, r.blocks_slots);
	assert_int_equal(r.blocks_read + r.blocks_private, 0);
	assert_int_equal(fake.partial_commits, 1);
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
	assert_int_equal(r.blocks_read, PROMPT / BLOCK);
	assert_int_equal(r.blocks_private, 0);
}

static void last_block_is_computed_even_if_cached(void **unused)
{
	float cold[(STEPS + 1) * VOCAB], warm[(STEPS + 1) * VOCAB];
	struct kvr_pool_report r;
	struct kvr_kv *kv;

	(void)unused;
	for (int i = 0; i < 2; i++) {
		kv = pool(1, 0);
		assert_int_equal(run(kv, 2 * BLOCK, i ? warm : cold).reused, i ? BLOCK : 0);
		kvr_kv_pool_report(kv, &r);
		kvr_kv_free(kv);
	}
	assert_int_equal(r.blocks_read, 1);
	assert_int_equal(r.blocks_private, 1);
	assert_int_equal(
		r.published, STEPS / BLOCK); /* the chain goes on behind the cached block */
	assert_memory_equal(cold, warm, sizeof(cold));
}

static void without_a_daemon(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	fake.gone = 1;
	assert_int_equal(engine(1, &r).reused, 0);
	assert_false(r.attached);
	assert_string_equal(r.why, "nobody listens");
	assert_int_equal(r.blocks_private, (PROMPT + STEPS) / BLOCK + 1);
}

static void daemon_dies_at_any_call(void **unused)
{
	struct kvr_pool_report r;
	int calls = 1 + 2 * ((PROMPT + STEPS) / BLOCK + 1); /* the first one at start-up */

	(void)unused;
	for (int i = 0; i <= calls; i++) {
		fake_reset();
		fake.die_after = i;
		engine(1, &r);
		assert_int_equal(r.published, i ? (i - 1) / 2 : 0);
		/* what it published before is the next daemon's to lose; here it is still there */
		fake.gone = 0;
		fake.die_after = -1;
		engine(1, &r);
	}
}

static void daemon_comes_back(void **unused)
{
	float rows[(STEPS + 1) * VOCAB];
	struct kvr_pool_report r;
	struct kvr_kv *kv;

	(void)unused;
	fake.gone = 1;
	kv = pool(1, 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(run(kv, PROMPT, rows).reused, i < 2 ? 0 : PROMPT / BLOCK * BLOCK);
		kvr_kv_pool_report(kv, &r);
		assert_int_equal(r.attached, i > 0);
		assert_memory_equal(rows, plain, sizeof(plain));
		fake.gone = 0;
	}
	kvr_kv_free(kv);
	assert_int_equal(fake.matches + fake.claims + fake.grants + fake.spaces, 0);
}

static void no_room(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	fake.no_room = 1;
	assert_int_equal(engine(1, &r).reused, 0);
	assert_int_equal(r.published, 0);
	fake.no_room = 0;
	engine(1, &r);
	fake.no_room = 1;
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
}

static void unreadable_in_place(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	engine(1, &r);
	for (int i = 0; i < 2; i++) {
		fake.no_lease = i == 0;
		fake.other_codec = i == 1;
		assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
		assert_int_equal(r.blocks_read, 0);
		assert_int_equal(r.blocks_private, PROMPT / BLOCK);
	}
	fake.get_fails = 1;
	assert_int_equal(engine(1, &r).reused, 0);
}

static void nothing_is_stored_on_request(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	engine(0, &r);
	assert_int_equal(fake.commits, 0);
	engine(1, &r);
	assert_int_equal(engine(0, &r).reused, PROMPT / BLOCK * BLOCK);
	assert_int_equal(r.published, 0);
}

static void waits_for_somebody_else(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	engine(1, &r);
	fake.hidden = 3;
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
	assert_int_equal(fake.waits, 3);
	/* the claimant is gone, or slow: what is there is used, the rest computed */
	for (int i = 0; i < 2; i++) {
		fake.waits = 0;
		fake.hidden = 3;
		fake.wait_result = i ? -ETIMEDOUT : -EAGAIN;
		assert_int_equal(engine(1, &r).reused, (PROMPT / BLOCK - 3) * BLOCK);
		assert_true(fake.waits >= 1 && fake.waits <= 2);
	}
}

static void waits_for_memory_to_be_mapped(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	engine(1, &r);
	fake.unmapped = 3;
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
	assert_int_equal(fake.unmapped, 0);
	fake.unmapped = 1000; /* but not for ever */
	assert_int_equal(engine(1, &r).reused, 0);
	assert_true(fake.unmapped > 900);
}

static void tails_are_reused_on_request(void **unused)
{
	float rows[(STEPS + 1) * VOCAB];
	uint32_t kept = prompt[PROMPT - 2];
	struct kvr_pool_report r;
	struct kvr_kv *kv;

	(void)unused;
	engine(1, &r);
	/* the whole prompt is there, its rest at the beginning of a longer block */
	kv = pool(1, 1);
	assert_int_equal(run(kv, PROMPT, rows).reused, PROMPT - 1);
	kvr_kv_free(kv);
	for (uint32_t i = 0; i < VOCAB; i++) /* the last row of the prompt: same but for rounding */
		assert_true(fabsf(rows[i] - plain[i]) < 5e-2f);
	/* it ends inside the rest, and inside an earlier block */
	prompt[PROMPT - 2] = (kept + 1) % VOCAB;
	kv = pool(1, 1);
	assert_int_equal(run(kv, PROMPT, rows).reused, PROMPT - 2);
	kvr_kv_free(kv);
	prompt[PROMPT - 2] = kept;
	kept = prompt[2 * BLOCK + 5];
	prompt[2 * BLOCK + 5] = (kept + 1) % VOCAB;
	kv = pool(1, 1);
	assert_int_equal(run(kv, PROMPT, rows).reused, 2 * BLOCK + 5);
	kvr_kv_free(kv);
	prompt[2 * BLOCK + 5] = kept;
	assert_int_equal(fake.matches + fake.claims + fake.grants + fake.spaces, 0);
	/* blocks published by those engines are still good for exact ones */
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
}

static struct kvr_kv *coded_pool(const char *codec, int reuse_tail)
{
	struct kvr_geom geom = kvr_model_geom(model, BLOCK, KVR_F16);
	struct kvr_pool_opts pool_opts = { "/nowhere", 1, reuse_tail, codec, KVR_NO_DEVICE, 0,
		{ 0 }, 0 };
	struct kvr_coded_opts opts = { .mode = KVR_SHADOW };
	struct kvr_kv *native, *kv;

	assert_int_equal(kvp_codec_parse_pair(codec, &opts.codec[0], &opts.codec[1]), 0);
	assert_int_equal(kvr_kv_pool_new(model, &geom, &pool_opts, &native), 0);
	assert_int_equal(kvr_kv_coded_new(&config, &geom, &opts, native, NULL, &kv), 0);
	return kv;
}

/* One engine that attends over the pool's blocks in a codec. */
static struct kvr_prefill coded_engine(const char *codec, float *rows)
{
	struct kvr_kv *kv = coded_pool(codec, 0);
	struct kvr_coded_report report;
	struct kvr_prefill prefill = run(kv, PROMPT, rows);

	kvr_kv_coded_report(kv, &report);
	assert_int_equal(report.errors, 0);
	assert_int_equal(report.blocks, (PROMPT + STEPS) / BLOCK);
	kvr_kv_free(kv);
	assert_int_equal(fake.matches + fake.claims + fake.grants + fake.spaces, 0);
	return prefill;
}

/* Warm equals cold there, too; but blocks of one codec are not those of another. */
static void engines_of_one_codec_share(void **unused)
{
	static float cold[sizeof(plain) / sizeof(float)], warm[sizeof(plain) / sizeof(float)];
	static float by_tq4[sizeof(plain) / sizeof(float)];
	struct kvr_pool_report r;

	(void)unused;
	engine(1, &r);
	assert_string_equal(fake.adapter, "");
	fake_reset();
	assert_int_equal(coded_engine("fp8", cold).reused, 0);
	assert_string_equal(fake.adapter, "fp8");
	assert_int_equal(coded_engine("fp8", warm).reused, PROMPT / BLOCK * BLOCK);
	assert_memory_equal(cold, warm, sizeof(cold));
	assert_memory_not_equal(cold, plain, sizeof(cold));
	fake_reset();
	coded_engine("tq4", by_tq4);
	assert_string_equal(fake.adapter, "tq4");
	assert_memory_not_equal(by_tq4, cold, sizeof(cold));
}

/* A block of which only the beginning was taken over goes on being written: it stays native. */
static void reused_tails_are_native(void **unused)
{
	static float cold[sizeof(plain) / sizeof(float)], warm[sizeof(plain) / sizeof(float)];
	struct kvp_attend_plane plane[2];
	struct kvr_coded_report report;
	uint32_t reused;
	struct kvr_kv *kv;

	(void)unused;
	coded_engine("fp8", cold);
	kv = coded_pool("fp8", 1);
	assert_int_equal(kv->ops->start(kv, prompt, PROMPT, PROMPT - 1, &reused), 0);
	assert_int_equal(reused, PROMPT - 1);
	assert_true(kv->ops->planes(kv, PROMPT / BLOCK - 1, 0, plane));
	assert_false(kv->ops->planes(kv, PROMPT / BLOCK, 0, plane));
	kvr_kv_coded_report(kv, &report);
	assert_int_equal(report.blocks, PROMPT / BLOCK);
	assert_int_equal(run(kv, PROMPT, warm).reused, PROMPT - 1);
	for (uint32_t i = 0; i < VOCAB; i++) /* the same but for rounding */
		assert_true(fabsf(warm[i] - cold[i]) < 5e-2f);
	kvr_kv_free(kv);
}

typedef float rows_of[sizeof(plain) / sizeof(float)];

/* The same prompt by an engine with a floor, whose blocks are coded meanwhile. */
static uint32_t floored(rows_of rows, struct kvr_pool_report *ret_report)
{
	struct kvr_kv *kv = pool(1, 0);
	struct kvr_prefill prefill = run(kv, PROMPT, rows);

	kvr_kv_pool_report(kv, ret_report);
	kvr_kv_free(kv);
	assert_int_equal(fake.matches + fake.claims + fake.grants + fake.spaces, 0);
	return prefill.reused;
}

/* After the prompt, and then the first token: what many queries attended to, and what one did. */
static float farthest(rows_of a, rows_of b)
{
	float most = 0;

	for (uint32_t i = 0; i < 2 * VOCAB; i++)
		most = fmaxf(most, fabsf(a[i] - b[i]));
	return most;
}

/* The first layer of the first block, from now on. */
static void damage(struct kvr_kv *kv)
{
	struct kvp_attend_plane plane[2];

	assert_true(kv->ops->planes(kv, 0, 0, plane));
	memset((void *)(uintptr_t)plane[0].data, 0x5a, 4);
}

/*
 * D-056: blocks that the daemon has coded are attended where they lie, and give what they decode to gives; such
 * memory as is had for that is of planes that cannot be attended so.
 */
static void d056_coded_blocks_are_attended_in_place(void **unused)
{
	static rows_of here, decoded, strided;
	struct kvr_pool_report r;

	(void)unused;
	floor_codec = KVP_CODEC_FP8_E4M3;
	assert_int_equal(floored(here, &r), 0);
	assert_memory_equal(here, plain, sizeof(plain));
	assert_int_equal(r.blocks_coded, 0);
	fake.coded = 1;
	assert_int_equal(floored(here, &r), PROMPT / BLOCK * BLOCK);
	assert_int_equal(r.blocks_coded, PROMPT / BLOCK);
	assert_int_equal(r.blocks_decoded + r.blocks_private + r.blocks_read + r.coding_errors, 0);
	fake.no_planes = 1;
	assert_int_equal(floored(decoded, &r), PROMPT / BLOCK * BLOCK);
	assert_int_equal(r.blocks_coded, PROMPT / BLOCK);
	assert_int_equal(r.blocks_decoded, PROMPT / BLOCK);
	assert_int_equal(r.blocks_private, PROMPT / BLOCK);
	fake.no_planes = 2;
	assert_int_equal(floored(strided, &r), PROMPT / BLOCK * BLOCK);
	assert_int_equal(r.blocks_decoded, PROMPT / BLOCK);
	assert_memory_equal(strided, decoded, sizeof(decoded));
	/* Of the prompt's end many queries attended: to the very bits. */
	assert_memory_equal(here, decoded, VOCAB * sizeof(float));
	assert_true(farthest(here, decoded) < 4e-3f);
	assert_memory_not_equal(here + VOCAB, decoded + VOCAB, VOCAB * sizeof(float));
	assert_true(farthest(here, plain) > 10 * farthest(here, decoded));
}

/* What cannot be read is a miss: the whole prompt is computed. So it is where that shows later. */
static void unreadable_codes_are_a_miss(void **unused)
{
	static rows_of rows, got;
	struct kvr_pool_report r;
	struct kvr_prefill prefill;
	const float *logits;
	struct kvr_seq *seq;
	struct kvr_kv *kv;

	(void)unused;
	floor_codec = KVP_CODEC_FP8_E4M3;
	for (int how = 1; how <= 2; how++) {
		fake_reset();
		assert_int_equal(floored(rows, &r), 0);
		fake.coded = 1;
		fake.damaged = how;
		assert_int_equal(floored(rows, &r), 0);
		assert_true(r.coding_errors > 0);
		assert_memory_equal(rows, plain, sizeof(plain));
	}

	fake_reset();
	assert_int_equal(floored(rows, &r), 0);
	fake.coded = 1;
	kv = pool(1, 0);
	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	assert_int_equal(kvr_seq_prompt(seq, prompt, PROMPT, &prefill, &logits), 0);
	assert_int_equal(prefill.reused, PROMPT / BLOCK * BLOCK);
	for (int i = 1; i <= STEPS; i++) {
		if (i == 3)
			damage(kv);
		assert_int_equal(
			kvr_seq_next(seq, kvr_argmax(plain + (i - 1) * VOCAB, VOCAB), &logits), 0);
		memcpy(got + i * VOCAB, logits, VOCAB * sizeof(float));
	}
	kvr_kv_pool_report(kv, &r);
	assert_true(r.coding_errors > 0);
	assert_int_equal(r.blocks_coded, 0);
	assert_memory_not_equal(got + 2 * VOCAB, plain + 2 * VOCAB, VOCAB * sizeof(float));
	/* The prompt was run in other pieces than the first time, so its last bits may differ. */
	for (uint32_t i = 3 * VOCAB; i < (STEPS + 1) * VOCAB; i++)
		assert_true(fabsf(got[i] - plain[i]) < 1e-4f);
	kvr_seq_end(seq);
	kvr_seq_free(seq);
	kvr_kv_free(kv);
}

/* Where a block is read changes nothing, and one that does not come there is read in DRAM. */
/* Before it is looked up; and what comes of it changes nothing but what is found. */
static void what_was_evicted_is_wanted_first(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	engine(1, &r);
	assert_int_equal(fake.wants + r.wanted, 0);
	want_ms = 7;
	engine(1, &r);
	assert_int_equal(fake.wants, 1);
	assert_int_equal(r.wanted + (uint32_t)r.want_why, 0);
	fake.want_result = -EAGAIN;
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
	assert_int_equal(r.want_why, -EAGAIN);
	assert_int_equal(fake.wants, 2);
	want_ms = 0;
}

/* Of tokens that are generated over cached blocks; and whatever the daemon says, the bits are the same. */
static void what_is_attended_to_is_reported(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	report_every = 1;
	engine(1, &r);
	assert_int_equal(fake.reports + r.attention, 0); /* none of them was cached */
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
	assert_int_equal(fake.reports, STEPS);
	assert_int_equal(r.attention, STEPS);
	/* A share of the weights of each layer, and not all: there are newer blocks. */
	assert_true(fake.least > .1f && fake.most < .999f * (float)config.layers);
	fake.report_result = -EAGAIN;
	engine(1, &r);
	assert_int_equal(r.attention, 0);
	fake.report_result = 2 * BLOCK; /* there was room for so many tokens */
	engine(1, &r);
	assert_int_equal(r.attention, STEPS);
	report_every = 5;
	fake.reports = 0;
	engine(1, &r);
	assert_true(fake.reports >= STEPS / 5 && fake.reports <= STEPS / 5 + 1);
	report_every = 0;
}

static void cached_blocks_are_read_on_a_device(void **unused)
{
	struct kvr_pool_report r;

	(void)unused;
	engine(1, &r);
	assert_int_equal(fake.warms, 0);
	fake.on_device = 2;
	device = KVR_FIRST_DEVICE;
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
	assert_int_equal(fake.warms + r.blocks_device, 0); /* none works */
	assert_true(r.no_device);
	fake.device = 1;
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
	assert_int_equal(fake.warms, 1);
	assert_int_equal(fake.asked, PROMPT / BLOCK);
	assert_int_equal(r.blocks_read, PROMPT / BLOCK);
	assert_int_equal(r.blocks_device, 2);
	device = 1;
	engine(1, &r);
	assert_int_equal(r.blocks_device, 2);
	assert_false(r.no_device);
	device = 0; /* is down */
	engine(1, &r);
	assert_int_equal(r.blocks_device, 0);
	assert_true(r.no_device);
	device = 1;
	fake.on_device = 0;
	fake.warm_result = -EAGAIN;
	assert_int_equal(engine(1, &r).reused, PROMPT / BLOCK * BLOCK);
	assert_int_equal(r.blocks_device, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(second_engine_reads_the_first_ones_blocks, fresh),
		cmocka_unit_test_setup(last_block_is_computed_even_if_cached, fresh),
		cmocka_unit_test_setup(without_a_daemon, fresh),
		cmocka_unit_test_setup(daemon_dies_at_any_call, fresh),
		cmocka_unit_test_setup(daemon_comes_back, fresh),
		cmocka_unit_test_setup(no_room, fresh),
		cmocka_unit_test_setup(unreadable_in_place, fresh),
		cmocka_unit_test_setup(nothing_is_stored_on_request, fresh),
		cmocka_unit_test_setup(waits_for_somebody_else, fresh),
		cmocka_unit_test_setup(waits_for_memory_to_be_mapped, fresh),
		cmocka_unit_test_setup(tails_are_reused_on_request, fresh),
		cmocka_unit_test_setup(what_was_evicted_is_wanted_first, fresh),
		cmocka_unit_test_setup(what_is_attended_to_is_reported, fresh),
		cmocka_unit_test_setup(cached_blocks_are_read_on_a_device, fresh),
		cmocka_unit_test_setup(engines_of_one_codec_share, fresh),
		cmocka_unit_test_setup(reused_tails_are_native, fresh),
		cmocka_unit_test_setup(d056_coded_blocks_are_attended_in_place, fresh),
		cmocka_unit_test_setup(unreadable_codes_are_a_miss, fresh),
	};

	return cmocka_run_group_tests(tests, prepare, finish);
}
