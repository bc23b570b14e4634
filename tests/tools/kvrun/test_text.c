/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers and the sampler. */
#include "tests/tools/kvrun/common.h"
#include "tools/kvrun/kvr_sample.h"
#include "tools/kvrun/kvr_tokenizer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct piece {
	const char *text;
	float score;
};

/* "ab" wins over "bc"; "abc" needs "ab"; the last two have equal scores. */
static const struct piece pieces[] = {
	{ " ", -9 },
	{ "a", -9 },
	{ "b", -9 },
	{ "c", -9 },
	{ "\xc3\xa4", -9 },
	{ "ab", -1 },
	{ "bc", -2 },
	{ "abc", -3 },
	{ " a", -4 },
	{ "cc", -5 },
	{ "aa", -5 },
};
#define N_PIECES (sizeof(pieces) / sizeof(pieces[0]))
#define VOCAB    (259 + (uint32_t)N_PIECES)

static char *put32(char *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		*p++ = (char)(v >> 8 * i);
	return p;
}

static size_t build(char *out)
{
	char *p = put32(out, 6), name[16];

	for (uint32_t i = 0; i < VOCAB; i++) {
		float score = i < 259 ? 0 : pieces[i - 259].score;
		const char *text = name;
		uint32_t bits;

		if (i < 3)
			snprintf(name, sizeof(name), "<s%u>", i);
		else if (i < 259)
			snprintf(name, sizeof(name), "<0x%02X>", i - 3);
		else
			text = pieces[i - 259].text;
		memcpy(&bits, &score, sizeof(bits));
		p = put32(put32(p, bits), (uint32_t)strlen(text));
		memcpy(p, text, strlen(text));
		p += strlen(text);
	}
	return (size_t)(p - out);
}

static int open_bytes(const char *data, size_t bytes, uint32_t vocab, struct kvr_tokenizer **ret)
{
	char path[] = "/tmp/kvrun-tok-XXXXXX";
	struct kvr_error err = { "" };
	int fd = mkstemp(path), r;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
	close(fd);
	r = kvr_tokenizer_open(path, vocab, &err, ret);
	assert_int_equal(r < 0, err.text[0] != '\0');
	unlink(path);
	return r;
}

static void check_encoding(
	const struct kvr_tokenizer *t, const char *text, const char *const *want, size_t n_want)
{
	uint32_t *tokens;
	size_t n, bytes;

	assert_int_equal(kvr_encode(t, 1, text, strlen(text), &tokens, &n), 0);
	assert_int_equal(n, n_want + 1);
	assert_int_equal(tokens[0], 1);
	for (size_t i = 0; i < n_want; i++) {
		const char *piece = kvr_decode(t, 0, tokens[i + 1], &bytes);

		assert_int_equal(bytes, strlen(want[i]));
		assert_memory_equal(piece, want[i], bytes);
	}
	free(tokens);
}

static void merges_best_score_first(void **unused)
{
	static char data[8192];
	struct kvr_tokenizer *t;
	size_t bytes = build(data);
	uint32_t *tokens;
	const char *piece;
	size_t n;

	(void)unused;
	assert_int_equal(open_bytes(data, bytes, VOCAB, &t), 0);
	check_encoding(t, "abc", (const char *const[]){ " ", "abc" }, 2);
	check_encoding(t, "bcab", (const char *const[]){ " ", "bc", "ab" }, 3);
	check_encoding(t, "ac", (const char *const[]){ " a", "c" }, 2);
	/* equal scores: the leftmost pair first */
	check_encoding(t, "caaa", (const char *const[]){ " ", "c", "aa", "a" }, 4);
	check_encoding(t, "cccaa", (const char *const[]){ " ", "cc", "c", "aa" }, 4);
	/* in the vocabulary as a character; and not: its bytes */
	check_encoding(t, "\xc3\xa4", (const char *const[]){ " ", "\xc3\xa4" }, 2);
	check_encoding(t, "\xc3\xb6", (const char *const[]){ " ", "\xc3", "\xb6" }, 3);
	check_encoding(t, "\xc3", (const char *const[]){ " ", "\xc3" }, 2);
	check_encoding(t, "<0x0A>", (const char *const[]){ " ", "<", "0", "x", "0", "A", ">" }, 7);
	check_encoding(t, "", NULL, 0);
	/* the encoder's own space is not shown */
	assert_int_equal(kvr_encode(t, 1, "ab", 2, &tokens, &n), 0);
	piece = kvr_decode(t, 1, tokens[1], &n);
	assert_int_equal(n, 0);
	assert_non_null(piece);
	kvr_decode(t, 1, 2, &n);
	assert_int_equal(n, 0);
	kvr_decode(t, 1, VOCAB, &n);
	assert_int_equal(n, 0);
	free(tokens);
	kvr_tokenizer_free(t);
}

/* What heap and list do, done the slow way: look at all pairs, merge the best, start again. */
static size_t merge_slowly(const char *text, size_t length, char out[][64])
{
	size_t n = 0;

	strcpy(out[n++], " ");
	for (size_t i = 0; i < length; i++)
		snprintf(out[n++], 64, "%c", text[i]);
	for (;;) {
		size_t best = n;
		float score = -1e10f;
		char joined[128];

		for (size_t i = 0; i + 1 < n; i++) {
			snprintf(joined, sizeof(joined), "%s%s", out[i], out[i + 1]);
			for (size_t k = 0; k < N_PIECES; k++)
				if (strcmp(joined, pieces[k].text) == 0 &&
					pieces[k].score > score) {
					best = i;
					score = pieces[k].score;
				}
		}
		if (best == n)
			return n;
		snprintf(joined, sizeof(joined), "%s%s", out[best], out[best + 1]);
		snprintf(out[best], sizeof(out[best]), "%.63s", joined);
		memmove(out + best + 1, out + best + 2, (n - best - 2) * 64);
		n--;
	}
}

static void merges_like_the_plain_algorithm(void **unused)
{
	static char data[8192], slow[256][64];
	uint64_t state = test_seed();
	struct kvr_tokenizer *t;

	(void)unused;
	assert_int_equal(open_bytes(data, build(data), VOCAB, &t), 0);
	for (int round = 0; round < 2000; round++) {
		size_t length = (test_random(&state) >> 32) % 40 + 1, n;
		const char *want[256];
		char text[64];

		for (size_t i = 0; i < length; i++)
			text[i] = " abc"[test_random(&state) >> 62];
		text[length] = '\0';
		n = merge_slowly(text, length, slow);
		for (size_t i = 0; i < n; i++)
			want[i] = slow[i];
		check_encoding(t, text, want, n);
	}
	kvr_tokenizer_free(t);
}

static void damaged_tokenizers_are_refused(void **unused)
{
	static char data[8192];
	size_t bytes = build(data);
	struct kvr_tokenizer *t = NULL;
	char was[4];

	(void)unused;
	for (size_t cut = 1; cut < bytes; cut += 97)
		assert_int_equal(open_bytes(data, bytes - cut, VOCAB, &t), -EINVAL);
	assert_int_equal(open_bytes(data, bytes + 1, VOCAB, &t), -EINVAL);
	assert_int_equal(open_bytes(data, bytes, VOCAB + 1, &t), -EINVAL);
	assert_int_equal(open_bytes(data, bytes, 258, &t), -EINVAL);
	memcpy(was, data + 8, 4); /* the first token's length */
	memcpy(data + 8, "\xff\xff\xff\xff", 4);
	assert_int_equal(open_bytes(data, bytes, VOCAB, &t), -EINVAL);
	memcpy(data + 8, was, 4);
	memcpy(data + 4, "\x00\x00\xc0\x7f", 4); /* its score: NaN */
	assert_int_equal(open_bytes(data, bytes, VOCAB, &t), -EINVAL);
	assert_int_equal(kvr_tokenizer_open("/nonexistent", VOCAB, NULL, &t), -ENOENT);
	assert_int_equal(kvr_tokenizer_open(NULL, 32000, NULL, &t), -EINVAL);
	assert_null(t);
}

static void bytes_are_tokens(void **unused)
{
	static const char text[] = "a\0\xff";
	struct kvr_tokenizer *t;
	uint32_t *tokens;
	size_t n;

	(void)unused;
	assert_int_equal(kvr_tokenizer_open(NULL, 258, NULL, &t), 0);
	assert_int_equal(kvr_encode(t, 256, text, 3, &tokens, &n), 0);
	assert_int_equal(n, 4);
	assert_int_equal(tokens[0], 256);
	assert_int_equal(tokens[2], 0);
	assert_int_equal(tokens[3], 255);
	assert_memory_equal(kvr_decode(t, 256, 255, &n), "\xff", 1);
	assert_int_equal(n, 1);
	kvr_decode(t, 255, 256, &n);
	assert_int_equal(n, 0);
	assert_int_equal(kvr_encode(t, 256, text, KVR_TEXT_MAX + 1u, &tokens, &n), -EFBIG);
	free(tokens);
	kvr_tokenizer_free(t);
}

/* ---- sample.c -------------------------------------------------------------------------------- */

static void greedy_takes_the_first_largest(void **unused)
{
	const float logits[] = { -1, 3, 2, 3 };
	struct kvr_sampler s;

	(void)unused;
	assert_int_equal(kvr_sampler_init(&s, 4, 0, 1, 7), 0);
	for (int i = 0; i < 10; i++)
		assert_int_equal(kvr_sample(&s, logits), 1);
	kvr_sampler_done(&s);
}

static void same_seed_same_tokens(void **unused)
{
	uint64_t state = test_seed(), seed = test_random(&state);
	uint32_t differ = 0;
	struct kvr_sampler a, b, c;
	float logits[300];

	(void)unused;
	assert_int_equal(kvr_sampler_init(&a, 300, 1, .95f, seed), 0);
	assert_int_equal(kvr_sampler_init(&b, 300, 1, .95f, seed), 0);
	assert_int_equal(kvr_sampler_init(&c, 300, 1, .95f, seed + 1), 0);
	for (int i = 0; i < 1000; i++) {
		uint32_t token;

		for (int k = 0; k < 300; k++)
			logits[k] = test_normal(&state);
		token = kvr_sample(&a, logits);
		assert_int_equal(token, kvr_sample(&b, logits));
		differ += token != kvr_sample(&c, logits);
	}
	assert_true(differ > 500);
	kvr_sampler_done(&a);
	kvr_sampler_done(&b);
	kvr_sampler_done(&c);
}

/* Frequencies against the definition, five standard deviations wide. */
static void draws_from_the_nucleus(void **unused)
{
	/* .4, .3, .2, .1: top_p .65 leaves the first two */
	const float logits[] = { logf(.1f), logf(.4f), logf(.2f), logf(.3f) };
	static const struct {
		float top_p;
		double p[4];
	} cases[] = {
		{ 1, { .1, .4, .2, .3 } },
		{ .65f, { 0, .4 / .7, 0, .3 / .7 } },
		{ .75f, { 0, .4 / .9, .2 / .9, .3 / .9 } },
		{ .1f, { 0, 1, 0, 0 } },
	};
	const int n = 100000;
	struct kvr_sampler s;

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int seen[4] = { 0 };

		assert_int_equal(kvr_sampler_init(&s, 4, 1, cases[i].top_p, 0), 0);
		for (int k = 0; k < n; k++)
			seen[kvr_sample(&s, logits)]++;
		for (int k = 0; k < 4; k++) {
			double p = cases[i].p[k], sigma = sqrt(n * p * (1 - p));

			assert_true(fabs(seen[k] - n * p) <= 5 * sigma + 1e-6);
		}
		kvr_sampler_done(&s);
	}
}

static void parameters_are_checked(void **unused)
{
	struct kvr_sampler s;

	(void)unused;
	assert_int_equal(kvr_sampler_init(&s, 4, -1, 1, 0), -EINVAL);
	assert_int_equal(kvr_sampler_init(&s, 4, NAN, 1, 0), -EINVAL);
	assert_int_equal(kvr_sampler_init(&s, 4, INFINITY, 1, 0), -EINVAL);
	assert_int_equal(kvr_sampler_init(&s, 4, 1, 0, 0), -EINVAL);
	assert_int_equal(kvr_sampler_init(&s, 4, 1, 1.1f, 0), -EINVAL);
	assert_int_equal(kvr_sampler_init(&s, 4, 1, NAN, 0), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(merges_best_score_first),
		cmocka_unit_test(merges_like_the_plain_algorithm),
		cmocka_unit_test(damaged_tokenizers_are_refused),
		cmocka_unit_test(bytes_are_tokens),
		cmocka_unit_test(greedy_takes_the_first_largest),
		cmocka_unit_test(same_seed_same_tokens),
		cmocka_unit_test(draws_from_the_nucleus),
		cmocka_unit_test(parameters_are_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
