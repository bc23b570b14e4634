/* SPDX-License-Identifier: Apache-2.0 */
/* examples/llama/blob.c: blobs made here by hand, byte for byte as llama.cpp 0.3.36 writes them. */
#include "examples/llama/blob.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define LAYERS 3u
#define MAX    8192

struct blob {
	uint8_t bytes[MAX];
	size_t n;
};

static void u32(struct blob *b, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		b->bytes[b->n++] = (uint8_t)(v >> 8 * i);
}

/* A row's bytes say where they belong. */
static void rows(struct blob *b, uint32_t type, uint32_t row, const uint32_t *positions, uint32_t n,
	uint8_t what)
{
	u32(b, type);
	u32(b, row);
	u32(b, 0);
	for (uint32_t i = 0; i < n; i++, b->n += row)
		memset(b->bytes + b->n, (int)(what * 16 + positions[i]), row);
}

/* 34 bytes of a row of keys and 18 of one of values, as q8_0 and q4_0 have for 32 numbers. */
static void make(struct blob *b, const uint32_t *positions, uint32_t n, int values)
{
	b->n = 0;
	u32(b, 0x67677371);
	u32(b, 0);
	u32(b, 1);
	u32(b, n);
	for (uint32_t i = 0; i < n; i++) {
		u32(b, positions[i]);
		u32(b, 1);
		u32(b, 0);
	}
	u32(b, 0);
	u32(b, LAYERS);
	for (uint8_t l = 0; l < LAYERS; l++)
		rows(b, 8, 34, positions, n, l);
	for (uint8_t l = 0; values && l < LAYERS; l++)
		rows(b, 2, 18, positions, n, (uint8_t)(8 + l));
}

static const uint32_t straight[] = { 0, 1, 2, 3, 4, 5, 6, 7 };

static void test_learns_and_writes(void **state)
{
	static struct blob probe, whole;
	static uint8_t made[MAX];
	struct llb_shape s;

	(void)state;
	for (int values = 0; values < 2; values++) {
		make(&probe, straight, 3, values);
		assert_int_equal(llb_learn(&s, probe.bytes, probe.n, 3), 0);
		assert_int_equal(s.n_layers, LAYERS);
		assert_int_equal(s.token_bytes, LAYERS * (values ? 52 : 34));
		make(&whole, straight, 8, values);
		assert_int_equal(llb_bytes(&s, 8), whole.n);
		memset(made, 0xee, sizeof(made));
		llb_write_frame(&s, made, 8);
		for (uint32_t l = 0; l < LAYERS; l++) {
			memcpy(made + llb_keys_at(&s, 8, l), whole.bytes + llb_keys_at(&s, 8, l),
				34 * 8);
			assert_int_equal(whole.bytes[llb_keys_at(&s, 8, l)], l * 16);
			if (!values)
				continue;
			memcpy(made + llb_values_at(&s, 8, l),
				whole.bytes + llb_values_at(&s, 8, l), 18 * 8);
			assert_int_equal(whole.bytes[llb_values_at(&s, 8, l)], (8 + l) * 16);
		}
		assert_memory_equal(made, whole.bytes, whole.n);
		assert_int_equal(made[whole.n], 0xee);
	}
}

static void test_cells_in_any_order(void **state)
{
	static const uint32_t mixed[] = { 5, 0, 3, 1, 4, 2 }, twice[] = { 0, 1, 2, 1 },
			      hole[] = { 0, 1, 3, 4 };
	static struct blob b;
	struct llb_shape s;
	uint32_t cell_of[6];

	(void)state;
	make(&b, straight, 3, 1);
	assert_int_equal(llb_learn(&s, b.bytes, b.n, 3), 0);
	make(&b, mixed, 6, 1);
	assert_int_equal(llb_read_frame(&s, b.bytes, b.n, cell_of, 6), 6);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(mixed[cell_of[i]], i);
	assert_int_equal(llb_read_frame(&s, b.bytes, b.n, cell_of, 4), 6);
	make(&b, twice, 4, 1);
	assert_int_equal(llb_read_frame(&s, b.bytes, b.n, cell_of, 3), -ENOENT);
	make(&b, hole, 4, 1);
	assert_int_equal(llb_read_frame(&s, b.bytes, b.n, cell_of, 3), -ENOENT);
	assert_int_equal(llb_read_frame(&s, b.bytes, b.n, cell_of, 2), 4);
	/* A template has to be in order. */
	make(&b, mixed + 1, 1, 1);
	assert_int_equal(llb_learn(&s, b.bytes, b.n, 1), 0);
	make(&b, mixed, 6, 1);
	assert_int_equal(llb_learn(&s, b.bytes, b.n, 6), -EPROTO);
}

/* Whatever is not a row, a change of it is noticed; sizes are never believed beyond the blob. */
static void test_another_format(void **state)
{
	static struct blob good, bad;
	struct llb_shape s, other;
	uint32_t cell_of[3];
	size_t frame;

	(void)state;
	make(&good, straight, 3, 1);
	assert_int_equal(llb_learn(&s, good.bytes, good.n, 3), 0);
	for (size_t n = 0; n < good.n; n++) {
		uint8_t *exact = malloc(n + 1); /* so that a sanitizer sees what is read beyond */

		assert_non_null(exact);
		memcpy(exact, good.bytes, n);
		exact = realloc(exact, n ? n : 1);
		/* Cut off after its keys it is one of a model without values. */
		if (n != llb_values_at(&s, 3, 0) - 12)
			assert_int_equal(llb_learn(&other, exact, n, 3), -EPROTO);
		assert_int_equal(llb_read_frame(&s, exact, n, cell_of, 3), -EPROTO);
		free(exact);
	}
	assert_int_equal(llb_learn(&other, good.bytes, good.n, 2), -EPROTO);
	frame = llb_keys_at(&s, 3, 0);
	for (size_t i = 0; i < frame; i++) {
		bad = good;
		bad.bytes[i] ^= 0x41;
		if ((i >= 4 && i < 8) || (i >= 16 && i < 16 + 36 && (i - 16) % 12 >= 8))
			continue; /* numbers of the sequence */
		assert_int_not_equal(llb_read_frame(&s, bad.bytes, bad.n, cell_of, 3), 3);
	}
	bad = good;
	bad.bytes[llb_values_at(&s, 3, 1) - 8] ^= 1; /* bytes of a row */
	assert_int_equal(llb_read_frame(&s, bad.bytes, bad.n, cell_of, 3), -EPROTO);
	assert_int_equal(llb_learn(&other, bad.bytes, bad.n, 3), -EPROTO);
	memset(bad.bytes + llb_keys_at(&s, 3, 0) - 8, 0xff, 8);
	assert_int_equal(llb_learn(&other, bad.bytes, bad.n, 3), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_learns_and_writes),
		cmocka_unit_test(test_cells_in_any_order),
		cmocka_unit_test(test_another_format),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
