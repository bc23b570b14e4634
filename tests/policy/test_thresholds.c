/* SPDX-License-Identifier: Apache-2.0 */
/* Quality window, adaptation, and the table of what was learnt. */
#include "tests/policy/plan_test.h"

#include "policy/kvp_thresholds.h"

static const struct kvp_threshold start = { 64, 512, KVP_WIDTH_2 };

static struct kvp_adapt controller(double target, uint32_t period)
{
	struct kvp_adapt_opts o = { .size = sizeof(o), .target = target, .period = period };
	struct kvp_adapt a;

	assert_int_equal(kvp_adapt_init(&a, &o, &start), 0);
	return a;
}

/* the 1,001st sample drops the oldest. */
static void test_window(void **state)
{
	static struct kvp_quality q;
	double mean;
	uint32_t i;

	(void)state;
	assert_int_equal(kvp_quality_mean(&q, 10, &mean), -ENODATA);
	for (i = 0; i < KVP_QUALITY_WINDOW; i++)
		assert_int_equal(kvp_quality_add(&q, i == 0 ? 1000.f : 0.f), 0);
	assert_int_equal(kvp_quality_mean(&q, KVP_QUALITY_WINDOW, &mean), 0);
	assert_true(mean == 1);
	assert_int_equal(kvp_quality_add(&q, 0), 0);
	assert_int_equal(q.count, KVP_QUALITY_WINDOW);
	assert_int_equal(kvp_quality_mean(&q, KVP_QUALITY_WINDOW, &mean), 0);
	assert_true(mean == 0);
	assert_int_equal(kvp_quality_add(&q, NAN), -EINVAL);
	assert_int_equal(kvp_quality_add(&q, INFINITY), -EINVAL);
	assert_int_equal(q.next, 1);
}

/* the mean of the last 100, or of as many as there are. */
static void test_recent_mean(void **state)
{
	static struct kvp_quality q;
	double mean = -1;
	uint32_t i;

	(void)state;
	for (i = 1; i <= 10; i++)
		kvp_quality_add(&q, (float)i);
	assert_int_equal(kvp_quality_mean(&q, KVP_QUALITY_RECENT, &mean), 0);
	assert_true(mean == 5.5);
	for (; i <= 300; i++)
		kvp_quality_add(&q, (float)i);
	assert_int_equal(kvp_quality_mean(&q, KVP_QUALITY_RECENT, &mean), 0);
	assert_true(mean == 250.5);
}

/* Runs until the next change, and says after how many samples it came. */
static uint32_t until_change(struct kvp_adapt *a, float score, uint32_t limit)
{
	uint32_t n;

	for (n = 1; n <= limit; n++)
		if (kvp_adapt_sample(a, score) == 1)
			return n;
	return 0;
}

/* degraded scores widen the native zone by exact integers and raise the bits. */
static void test_degraded_series(void **state)
{
	static const uint32_t hot[] = { 76, 91, 109, 130, 156, 187, 224, 268, 321, 385, 462, 512 };
	struct kvp_adapt a = controller(.9, 4);
	uint32_t i;

	(void)state;
	for (i = 0; i < sizeof(hot) / sizeof(hot[0]); i++) {
		assert_int_equal(until_change(&a, .8f, 100), 4);
		assert_int_equal(a.now.hot_tokens, hot[i]);
		assert_int_equal(a.now.archive_width, i == 0 ? KVP_WIDTH_3 : KVP_WIDTH_4);
	}
	assert_int_equal(until_change(&a, .8f, 1000), 0); /* at its bounds: nothing to do */
}

/* good scores go the other way, to 32 tokens and 2 bits; a score in between does nothing. */
static void test_good_series(void **state)
{
	static const uint32_t hot[] = { 57, 51, 45, 40, 36, 32 };
	struct kvp_adapt_opts o = { .size = sizeof(o), .target = .5, .period = 4 };
	struct kvp_threshold from = { 64, 512, KVP_WIDTH_4 };
	struct kvp_adapt a;
	uint32_t i;

	(void)state;
	assert_int_equal(kvp_adapt_init(&a, &o, &from), 0);
	assert_int_equal(until_change(&a, .52f, 1000), 0);
	for (i = 0; i < sizeof(hot) / sizeof(hot[0]); i++) {
		assert_true(until_change(&a, .9f, 200) > 0);
		assert_int_equal(a.now.hot_tokens, hot[i]);
		assert_int_equal(a.now.archive_width, i == 0 ? KVP_WIDTH_3 : KVP_WIDTH_2);
	}
	assert_int_equal(until_change(&a, .9f, 1000), 0);
}

/* A score on either side of the band, and what was never relaxed is not held back. */
static void test_band(void **state)
{
	struct kvp_adapt_opts o = { .size = sizeof(o), .target = 5, .period = 4 };
	struct kvp_threshold from = { KVP_THRESHOLD_HOT_MIN, 512, KVP_WIDTH_2 };
	struct kvp_adapt a;

	(void)state;
	assert_int_equal(kvp_adapt_init(&a, &o, &from), 0);
	assert_int_equal(until_change(&a, 5, 1000), 0);    /* the target itself is not degraded, */
	assert_int_equal(until_change(&a, 5.5f, 1000), 0); /* 1.1 times the target not yet good */
	assert_int_equal(kvp_adapt_init(&a, &o, &from), 0);
	assert_int_equal(until_change(&a, 4, 100), 4);
	assert_int_equal(a.now.hot_tokens, 38);
	assert_int_equal(until_change(&a, 6, 100), 4);
	assert_int_equal(a.now.hot_tokens, 34);
	assert_int_equal(until_change(&a, 4, 100), 4); /* too much: for 1,000 samples not again */
	assert_int_equal(until_change(&a, 6, 900), 0);
	assert_int_equal(kvp_adapt_retarget(&a, 0), -EINVAL);
	assert_int_equal(kvp_adapt_retarget(&a, INFINITY), -EINVAL);
	assert_int_equal(kvp_adapt_retarget(&a, 5), 0); /* but a new target is a new try */
	assert_int_equal(until_change(&a, 6, 100), 4);
}

/* Bits alone, between bounds of the owner's; what is never archived is tried again; a constant score changes nothing. */
static void test_bits_alone(void **state)
{
	struct kvp_adapt_opts o = {
		.size = sizeof(o), .target = .9, .period = 20, .most_bits = 16, .least_bits = 3
	};
	struct kvp_threshold from = { 32, 32, KVP_WIDTH_3 };
	struct kvp_adapt a;
	uint32_t width;

	(void)state;
	assert_int_equal(kvp_adapt_init(&a, &o, &from), 0);
	assert_int_equal(until_change(&a, 1, 10000), 0);    /* the owner's floor */
	assert_int_equal(until_change(&a, .95f, 10000), 0); /* in between */
	assert_int_equal(kvp_adapt_retry(&a), 0);
	/* The first decision still averages what was good. */
	for (width = KVP_WIDTH_4; width != KVP_WIDTH_NATIVE; width--) {
		assert_in_range(until_change(&a, .2f, 100), 1, 100);
		assert_int_equal(a.now.archive_width, width);
	}
	assert_int_equal(until_change(&a, .2f, 100), 20);
	assert_int_equal(a.now.archive_width, KVP_WIDTH_NATIVE);
	assert_int_equal(until_change(&a, .2f, 10000), 0);
	assert_int_equal(kvp_adapt_retry(&a), 1);
	assert_int_equal(a.now.archive_width, KVP_WIDTH_8);
	assert_int_equal(until_change(&a, .2f, 100), 20); /* too early: taken back, */
	assert_int_equal(a.now.archive_width, KVP_WIDTH_NATIVE);
	assert_int_equal(until_change(&a, 1, 900), 0); /* and good scores wait their time */
	assert_in_range(until_change(&a, 1, 200), 1, 200);
	assert_int_equal(a.now.archive_width, KVP_WIDTH_8);
	assert_int_equal(a.now.hot_tokens, 32);

	o.least_bits = 5;
	assert_int_equal(kvp_adapt_init(&a, &o, &from), -EINVAL);
	o.least_bits = 4; /* the start lies below */
	assert_int_equal(kvp_adapt_init(&a, &o, &from), -EINVAL);
}

/* How good a synthetic model's output is at a setting. */
static float plant(const struct kvp_threshold *t, double base, double per_bit, double per_hot)
{
	return (float)(base + per_bit * kvp_width_bits(t->archive_width) +
		       per_hot * log2(t->hot_tokens / 32.0));
}

/*
 * in a closed loop it settles within 100 samples of its first, and whether the band
 * between "degraded" and "good" contains a setting or not, it does not alternate.
 */
static void test_convergence_without_oscillation(void **state)
{
	uint32_t round, worst = 0;

	(void)state;
	seed_from_env(3);
	for (round = 0; round < 20000; round++) {
		double target = .5 + .4 * uniform(), base = target * (.5 + .7 * uniform());
		double per_bit = .15 * uniform(), per_hot = .05 * uniform();
		struct kvp_adapt a = controller(target, 0);
		uint32_t i, last_change = 0, reversals = 0;
		int32_t direction = 0;

		a.now.archive_width = KVP_WIDTH_4 + below(3);
		for (i = 1; i <= 900; i++) {
			if (kvp_adapt_sample(&a, plant(&a.now, base, per_bit, per_hot)) != 1)
				continue;
			last_change = i;
			reversals += direction && direction != a.last;
			direction = a.last;
		}
		if (last_change > worst)
			worst = last_change;
		assert_true(reversals <= 2);
		assert_true(last_change < 100);
	}
	print_message("settled after at most %u samples\n", worst);
}

static void test_bad_options(void **state)
{
	struct kvp_adapt_opts o = { .size = sizeof(o), .target = .9, .period = 4 };
	struct kvp_threshold t = start;
	struct kvp_adapt a;

	(void)state;
	o.target = 0;
	assert_int_equal(kvp_adapt_init(&a, &o, &t), -EINVAL);
	o.target = NAN;
	assert_int_equal(kvp_adapt_init(&a, &o, &t), -EINVAL);
	o.target = .9;
	o.period = KVP_QUALITY_RECENT + 1;
	assert_int_equal(kvp_adapt_init(&a, &o, &t), -EINVAL);
	o.period = 4;
	o.size--;
	assert_int_equal(kvp_adapt_init(&a, &o, &t), -EINVAL);
	o.size++;
	t.hot_tokens = 31;
	assert_int_equal(kvp_adapt_init(&a, &o, &t), -EINVAL);
	t = start;
	t.archive_width = KVP_WIDTH_8;
	assert_int_equal(kvp_adapt_init(&a, &o, &t), -EINVAL);
	assert_int_equal(kvp_adapt_init(&a, &o, &start), 0);
	assert_int_equal(kvp_adapt_retarget(&a, -1), -EINVAL);
	assert_int_equal(kvp_adapt_retarget(&a, .5), 0);
	assert_int_equal(kvp_adapt_sample(&a, NAN), -EINVAL);
}

static struct kvp_threshold_record record(const char *model, uint32_t layer, uint32_t context)
{
	struct kvp_threshold_record r = {
		.layer = layer,
		.context_tokens = context,
		.shape = { 32, 8, 128 },
		.threshold = { 100 + layer, 600, KVP_WIDTH_3 },
		.quality = .9f,
	};

	snprintf(r.model, sizeof(r.model), "%s", model);
	return r;
}

/* the nearest context length of the same model and layer; none is a typed answer. */
static void test_nearest(void **state)
{
	struct kvp_threshold_store *s = kvp_threshold_store_new(100);
	struct kvp_threshold_record r, got = { .layer = 99 };
	uint32_t context;

	(void)state;
	for (context = 1000; context <= 10000; context += 1000) {
		r = record("llama", 3, context);
		assert_int_equal(kvp_threshold_store_put(s, &r), 0);
		r = record("llama", 4, context + 1);
		assert_int_equal(kvp_threshold_store_put(s, &r), 0);
	}
	assert_int_equal(kvp_threshold_nearest(s, "llama", 3, 4400, &got), 0);
	assert_int_equal(got.context_tokens, 4000);
	assert_int_equal(kvp_threshold_nearest(s, "llama", 3, 900000, &got), 0);
	assert_int_equal(got.context_tokens, 10000);
	assert_int_equal(kvp_threshold_nearest(s, "llama", 3, 4500, &got), 0);
	assert_int_equal(got.context_tokens, 5000); /* as near: the newer */
	got.layer = 99;
	assert_int_equal(kvp_threshold_nearest(s, "llama", 5, 4400, &got), -ENOENT);
	assert_int_equal(kvp_threshold_nearest(s, "qwen", 3, 4400, &got), -ENOENT);
	assert_int_equal(got.layer, 99);

	/* same key replaces */
	r = record("llama", 3, 4000);
	r.threshold.hot_tokens = 333;
	assert_int_equal(kvp_threshold_store_put(s, &r), 0);
	assert_int_equal(kvp_threshold_store_count(s), 20);
	assert_int_equal(kvp_threshold_nearest(s, "llama", 3, 4000, &got), 0);
	assert_int_equal(got.threshold.hot_tokens, 333);
	assert_null(kvp_threshold_store_free(s));
	assert_null(kvp_threshold_store_free(NULL));
}

static void test_store_is_bounded(void **state)
{
	struct kvp_threshold_store *s = kvp_threshold_store_new(4);
	struct kvp_threshold_record r, got;
	uint32_t i;

	(void)state;
	for (i = 0; i < 10; i++) {
		r = record("m", i, 100);
		assert_int_equal(kvp_threshold_store_put(s, &r), 0);
	}
	assert_int_equal(kvp_threshold_store_count(s), 4);
	assert_int_equal(kvp_threshold_nearest(s, "m", 5, 100, &got), -ENOENT);
	assert_int_equal(kvp_threshold_nearest(s, "m", 6, 100, &got), 0);
	r.quality = NAN;
	assert_int_equal(kvp_threshold_store_put(s, &r), -EINVAL);
	r = record("", 1, 1);
	assert_int_equal(kvp_threshold_store_put(s, &r), -EINVAL);
	r = record("m", 32, 1);
	assert_int_equal(kvp_threshold_store_put(s, &r), -EINVAL);
	kvp_threshold_store_free(s);
	assert_null(kvp_threshold_store_new(0));
	assert_null(kvp_threshold_store_new(1000001));
}

/* a new model starts from the most similar known one, else from defaults, and says which. */
static void test_bootstrap(void **state)
{
	struct kvp_threshold_store *s = kvp_threshold_store_new(10);
	struct kvp_model_shape big = { 80, 8, 128 }, small = { 24, 2, 64 };
	struct kvp_threshold_record r, got;

	(void)state;
	assert_int_equal(kvp_threshold_bootstrap(s, "new", &big, 7, 4096, &got), 0);
	assert_int_equal(got.origin, KVP_ORIGIN_DEFAULT);
	assert_int_equal(got.threshold.hot_tokens, 64);
	assert_int_equal(got.threshold.stale_tokens, 512);
	r = record("like-big", 3, 4096);
	r.threshold.hot_tokens = 222;
	kvp_threshold_store_put(s, &r);
	r = record("like-small", 3, 4096);
	r.shape = (struct kvp_model_shape){ 28, 2, 64 };
	r.threshold.hot_tokens = 111;
	kvp_threshold_store_put(s, &r);
	assert_int_equal(kvp_threshold_bootstrap(s, "new", &big, 7, 4096, &got), 0);
	assert_int_equal(got.origin, KVP_ORIGIN_INHERITED);
	assert_int_equal(got.threshold.hot_tokens, 222);
	assert_string_equal(got.model, "new");
	assert_int_equal(got.layer, 7);
	assert_int_equal(kvp_threshold_store_put(s, &got), 0);
	assert_int_equal(kvp_threshold_bootstrap(s, "new2", &small, 3, 4096, &got), 0);
	assert_int_equal(got.threshold.hot_tokens, 111);
	assert_int_equal(kvp_threshold_bootstrap(s, "", &small, 3, 4096, &got), -EINVAL);
	assert_int_equal(kvp_threshold_bootstrap(s, "x", &small, 24, 4096, &got), -EINVAL);
	kvp_threshold_store_free(s);
}

/* The checksum of what a test has changed. */
static void reseal(unsigned char *buf, size_t size)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);
	size_t i;

	for (i = 0; i < size - 8; i++)
		h = (h ^ buf[i]) * UINT64_C(0x100000001b3);
	for (i = 0; i < 8; i++)
		buf[size - 8 + i] = (unsigned char)(h >> (8 * i));
}

/* the format survives a restart; whatever is damaged is refused, nothing is lost. */
static void test_pack(void **state)
{
	struct kvp_threshold_store *s = kvp_threshold_store_new(50), *t;
	struct kvp_threshold_record r, a, b;
	/* reserved; layer, context, shape, hot, stale, bits, origin, quality, age (its upper half)
	 */
	static const size_t wrong[] = { 12, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 124 };
	unsigned char *buf, *other;
	size_t size, i;
	char key[64];

	(void)state;
	for (i = 0; i < 32; i++) {
		r = record(i % 2 ? "llama" : "qwen", (uint32_t)i, (uint32_t)i * 100);
		r.shape = (struct kvp_model_shape){ 32 + (uint32_t)i, 1 + (uint32_t)i, 64 };
		r.origin = (uint32_t)i % 3;
		assert_int_equal(kvp_threshold_store_put(s, &r), 0);
	}
	size = kvp_threshold_store_packed_size(s);
	buf = malloc(size + 1);
	assert_int_equal(kvp_threshold_store_pack(s, buf, size - 1), -ENOSPC);
	assert_int_equal(kvp_threshold_store_pack(s, buf, size), 0);
	t = kvp_threshold_store_new(32);
	assert_int_equal(kvp_threshold_store_unpack(t, buf, size), 0);
	assert_int_equal(kvp_threshold_store_count(t), 32);
	for (i = 0; i < 32; i++) {
		const char *model = i % 2 ? "llama" : "qwen";

		assert_int_equal(kvp_threshold_nearest(s, model, (uint32_t)i, 5, &a), 0);
		assert_int_equal(kvp_threshold_nearest(t, model, (uint32_t)i, 5, &b), 0);
		assert_memory_equal(&a.threshold, &b.threshold, sizeof(a.threshold));
		assert_memory_equal(&a.shape, &b.shape, sizeof(a.shape));
		assert_string_equal(a.model, b.model);
		assert_int_equal(b.layer, i);
		assert_int_equal(b.context_tokens, i * 100);
		assert_int_equal(b.shape.kv_heads, 1 + i);
		assert_int_equal(b.origin, i % 3);
		assert_true(a.quality == b.quality);
	}
	/* the same bytes whatever was in the buffer */
	other = malloc(size);
	memset(other, 0xff, size);
	assert_int_equal(kvp_threshold_store_pack(t, other, size), 0);
	assert_memory_equal(buf, other, size);
	/* what was stored first goes first, after a restart too */
	r = record("new", 1, 1);
	assert_int_equal(kvp_threshold_store_put(t, &r), 0);
	assert_int_equal(kvp_threshold_nearest(t, "qwen", 0, 0, &b), -ENOENT);
	assert_int_equal(kvp_threshold_nearest(t, "llama", 1, 0, &b), 0);
	/* a right checksum over what may not be: the reserved word, any field, an age that nothing
	 * could be younger than */
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		memcpy(other, buf, size);
		memset(other + wrong[i], 0xff, 4);
		reseal(other, size);
		assert_int_equal(kvp_threshold_store_unpack(t, other, size), -EBADMSG);
	}
	memcpy(other, buf, size);
	memset(other + 16, 0, 64); /* no name */
	reseal(other, size);
	assert_int_equal(kvp_threshold_store_unpack(t, other, size), -EBADMSG);
	memset(other + 16, 'x', 64); /* a name without end */
	reseal(other, size);
	assert_int_equal(kvp_threshold_store_unpack(t, other, size), -EBADMSG);
	assert_int_equal(kvp_threshold_nearest(t, "new", 1, 1, &b), 0); /* as before */
	free(other);
	for (i = 0; i < size; i++) {
		buf[i] ^= 0x40;
		assert_int_equal(kvp_threshold_store_unpack(t, buf, size), -EBADMSG);
		buf[i] ^= 0x40;
	}
	for (i = 0; i < size; i++)
		assert_int_equal(kvp_threshold_store_unpack(t, buf, i), -EBADMSG);
	assert_int_equal(kvp_threshold_store_unpack(t, buf, size + 1), -EBADMSG);
	assert_int_equal(kvp_threshold_store_count(t), 32);
	kvp_threshold_store_free(t);
	t = kvp_threshold_store_new(31);
	assert_int_equal(kvp_threshold_store_unpack(t, buf, size), -ENOSPC);
	kvp_threshold_store_free(t);
	free(buf);
	kvp_threshold_store_free(s);

	assert_int_equal(kvp_threshold_key("llama-3", 17, key, sizeof(key)), 0);
	assert_string_equal(key, "kv_threshold:llama-3:17");
	assert_int_equal(kvp_threshold_key("llama-3", 17, key, strlen(key)), -ENOSPC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_recent_mean),
		cmocka_unit_test(test_degraded_series),
		cmocka_unit_test(test_good_series),
		cmocka_unit_test(test_band),
		cmocka_unit_test(test_bits_alone),
		cmocka_unit_test(test_convergence_without_oscillation),
		cmocka_unit_test(test_bad_options),
		cmocka_unit_test(test_nearest),
		cmocka_unit_test(test_store_is_bounded),
		cmocka_unit_test(test_bootstrap),
		cmocka_unit_test(test_pack),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
