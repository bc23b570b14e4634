/* SPDX-License-Identifier: Apache-2.0 */
/* Keys coded by what queries look at: less error there in the bytes of kivi, read by kivi's readers. */
#include "kernels/dsp.h"
#include "kernels/kvp_squat.h"
#include "kernels/numeric.h"
#include "tests/kernels/guard.h"
#include "tests/kernels/inputs.h"
#include "tests/kernels/ladder.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct kvp_kernels *isa[LADDER];
static size_t sets;

static uint32_t codec_of(const char *name)
{
	uint32_t codec;

	assert_int_equal(kvp_codec_parse(name, &codec), 0);
	return codec;
}

static float *room(size_t n)
{
	float *p = calloc(n ? n : 1, sizeof *p);

	assert_non_null(p);
	return p;
}

/* n tokens' queries that lie in `deep` directions, the same ones for the same seed, but for a little. */
static float *queries_new(const struct kvp_squat_opts *o, size_t n, uint32_t deep, uint64_t seed)
{
	const size_t row = (size_t)o->heads * o->group * o->dim;
	float *axis = room((size_t)o->heads * deep * o->dim), *q = room(n * row);
	const uint64_t after = inputs_random();

	inputs_reseed(seed);
	for (size_t i = 0; i < (size_t)o->heads * deep * o->dim; i++)
		axis[i] = (float)inputs_normal();
	inputs_reseed(after);
	for (size_t i = 0; i < n * o->heads * o->group; i++) {
		const float *a = axis + i / o->group % o->heads * deep * o->dim;

		for (uint32_t c = 0; c < o->dim; c++)
			q[i * o->dim + c] = 0.1f * (float)inputs_normal();
		for (uint32_t j = 0; j < deep; j++) {
			const float z = (float)inputs_normal() / (float)(1 + j);

			for (uint32_t c = 0; c < o->dim; c++)
				q[i * o->dim + c] += z * a[j * o->dim + c];
		}
	}
	free(axis);
	return q;
}

struct trip {
	uint32_t codec;
	struct kvp_plane p;
	struct guard src, dst, out;
	ptrdiff_t row, head;
	size_t bytes, element;
};

static struct trip trip_new(
	const char *name, uint32_t tokens, uint32_t heads, uint32_t dim, uint32_t dtype)
{
	struct trip t = { .codec = codec_of(name),
		.p = { tokens, heads, dim, dtype, KVP_PLANE_K },
		.element = dtype == KVP_DTYPE_F32 ? 4 : 2 };
	const size_t raw = t.element * tokens * heads * dim;

	t.row = (ptrdiff_t)(t.element * dim);
	t.head = t.row * (ptrdiff_t)tokens;
	t.src = guard_new(raw, t.element);
	t.dst = guard_new(raw, t.element);
	assert_int_equal(kvp_plane_bytes(t.codec, &t.p, &t.bytes), 0);
	t.out = guard_new(t.bytes, 16);
	return t;
}

static void trip_free(struct trip *t)
{
	guard_free(&t->src);
	guard_free(&t->dst);
	guard_free(&t->out);
}

static int trip_encode(struct trip *t, size_t set, const struct kvp_squat *squat)
{
	const struct kvp_encode_opts o = { .size = sizeof o, .queries = squat };
	int r = kvp_plane_encode(isa[set], t->codec, &t->p, &o,
		(struct kvp_raw_const){ t->src.data, t->head, t->row }, t->out.data, t->bytes);

	assert_true(guard_intact(&t->out) && guard_intact(&t->src));
	return r;
}

static void trip_decode(struct trip *t, size_t set)
{
	assert_int_equal(kvp_plane_decode(isa[set], t->codec, &t->p, NULL, t->out.data, t->bytes,
				 (struct kvp_raw){ t->dst.data, t->head, t->row }),
		0);
	assert_true(guard_intact(&t->dst));
}

/* Squares of what n queries see of a plane's errors, and of the errors themselves; of fp32. */
static double seen(const struct trip *t, const float *q, size_t n, uint32_t group, double *ret_all)
{
	const float *x = (const float *)(const void *)t->src.data;
	const float *y = (const float *)(const void *)t->dst.data;
	const uint32_t dim = t->p.dim;
	double sum = 0.0;

	*ret_all = 0.0;
	for (size_t row = 0; row < (size_t)t->p.heads * t->p.tokens; row++) {
		const size_t head = row / t->p.tokens;

		for (uint32_t c = 0; c < dim; c++)
			*ret_all += pow((double)y[row * dim + c] - (double)x[row * dim + c], 2);
		for (size_t i = 0; i < n * group; i++) {
			const float *one =
				q + ((i / group * t->p.heads + head) * group + i % group) * dim;
			double along = 0.0;

			for (uint32_t c = 0; c < dim; c++)
				along += (double)one[c] *
					 ((double)y[row * dim + c] - (double)x[row * dim + c]);
			sum += along * along;
		}
	}
	return sum;
}

/*
 * Row A-020: queries that the subspace has not seen meet less error than with kivi, in as many bytes; by how much
 * depends on where loud channels are, if there are some (every other case). Errors elsewhere may grow, a little.
 */
static void along_queries(void **state)
{
	static const struct {
		const char *name, *kivi;
		uint32_t dim, block;
		double most;
	} want[] = { { "squat2", "kivi2", 128, 0, .75 }, { "squat4", "kivi4", 128, 0, 1.0 },
		{ "squat3-g16", "kivi3-g16", 80, 0, .6 },
		{ "squat2-g64", "kivi2-g64", 256, 0, 1.0 }, { "squat2", "kivi2", 64, 0, .75 },
		{ "squat2", "kivi2", 128, 8, 1.0 }, { "squat2", "kivi2", 128, 8, .45 } };

	(void)state;
	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		const struct kvp_squat_opts o = { .size = sizeof o,
			.heads = 2,
			.group = 4,
			.dim = want[i].dim,
			.block = want[i].block };
		float *q = queries_new(&o, 200, 8, i), *others = queries_new(&o, 20, 8, i);
		struct trip t = trip_new(want[i].name, 64, 2, want[i].dim, KVP_DTYPE_F32);
		double squat_all, kivi_all, squat_seen, kivi_seen;
		struct kvp_squat *s;

		inputs_fill(t.src.data, t.src.size / 4, KVP_DTYPE_F32,
			i & 1 ? INPUT_OUTLIERS : INPUT_NORMAL);
		assert_int_equal(kvp_squat_of_queries(&o, q, 200, &s), 0);
		assert_int_equal(trip_encode(&t, 0, s), 0);
		trip_decode(&t, 0);
		squat_seen = seen(&t, others, 20, 4, &squat_all);
		t.codec = codec_of(want[i].kivi);
		assert_int_equal(trip_encode(&t, 0, NULL), 0);
		trip_decode(&t, 0);
		kivi_seen = seen(&t, others, 20, 4, &kivi_all);
		printf("%s of %u, blocks of %u: %.2f of kivi's error along queries, %.2f of all\n",
			want[i].name, want[i].dim, kvp_squat_options(s)->block,
			squat_seen / kivi_seen, squat_all / kivi_all);
		assert_true(squat_seen < want[i].most * kivi_seen);
		assert_true(squat_all < 1.6 * kivi_all);
		kvp_squat_free(s);
		trip_free(&t);
		free(q);
		free(others);
	}
}

static void relabel(struct trip *t, uint32_t codec)
{
	struct kvp_plane_hdr hdr;

	memcpy(&hdr, t->out.data, sizeof hdr);
	hdr.codec = t->codec = codec;
	memcpy(t->out.data, &hdr, sizeof hdr);
}

/*
 * Rows: as many bytes as kivi's, and the same elements if they are called kivi's. Where queries look
 * nowhere they are kivi's bytes, and so are values'.
 */
static void read_as_kivi(void **state)
{
	static const char *const names[][2] = { { "squat2", "kivi2" },
		{ "squat3-g16", "kivi3-g16" }, { "squat4-g64", "kivi4-g64" } };

	(void)state;
	for (uint32_t i = 0; i < 12; i++) {
		struct trip t = trip_new(
			names[i % 3][0], 70, 2, i / 3 % 2 ? 128 : 72, KVP_DTYPE_F32 + i % 3);
		const uint32_t squat = t.codec, kivi = codec_of(names[i % 3][1]);
		const struct kvp_squat_opts o = {
			.size = sizeof o, .heads = 2, .group = 1, .dim = t.p.dim, .rank = 6
		};
		float *nowhere = room((size_t)12 * t.p.dim), *q = queries_new(&o, 50, 6, i);
		struct guard first = guard_new(t.dst.size, 4), payload = guard_new(t.bytes, 16);
		struct kvp_squat *s, *none;
		size_t bytes;

		inputs_fill(t.src.data, t.src.size / t.element, t.p.dtype, INPUT_NORMAL);
		assert_int_equal(kvp_squat_of_queries(&o, q, 50, &s), 0);
		assert_int_equal(kvp_squat_of_axes(&o, nowhere, &none), 0);
		assert_int_equal(kvp_plane_bytes(kivi, &t.p, &bytes), 0);
		assert_int_equal(bytes, t.bytes);
		assert_int_equal(trip_encode(&t, 0, s), 0);
		memcpy(payload.data, t.out.data, t.bytes);
		trip_decode(&t, 0);
		memcpy(first.data, t.dst.data, t.dst.size);
		relabel(&t, kivi);
		trip_decode(&t, 0);
		assert_memory_equal(t.dst.data, first.data, t.dst.size);
		assert_int_equal(trip_encode(&t, 0, NULL), 0); /* kivi itself */
		relabel(&t, squat);
		assert_memory_not_equal(t.out.data, payload.data, t.bytes);
		memcpy(payload.data, t.out.data, t.bytes);
		assert_int_equal(trip_encode(&t, 0, none), 0);
		assert_memory_equal(t.out.data, payload.data, t.bytes);
		t.p.kind = KVP_PLANE_V;
		t.codec = kivi;
		assert_int_equal(kvp_plane_bytes(kivi, &t.p, &bytes), 0);
		t.bytes = bytes;
		guard_free(&t.out);
		t.out = guard_new(bytes, 16);
		assert_int_equal(trip_encode(&t, 0, NULL), 0);
		relabel(&t, squat);
		guard_free(&payload);
		payload = guard_new(bytes, 16);
		memcpy(payload.data, t.out.data, bytes);
		assert_int_equal(trip_encode(&t, 0, NULL), 0);
		assert_memory_equal(t.out.data, payload.data, bytes);
		kvp_squat_free(s);
		kvp_squat_free(none);
		guard_free(&first);
		guard_free(&payload);
		trip_free(&t);
		free(nowhere);
		free(q);
	}
}

/* Row A-021: rank 20, lambda a thousandth, blocks of 64 where none are named; and what is refused. */
static void options(void **state)
{
	static const struct kvp_squat_opts good = { .size = sizeof good, .heads = 1, .dim = 128 };
	static const struct {
		size_t at;
		uint32_t value;
	} wrong[] = { { offsetof(struct kvp_squat_opts, size), 1 },
		{ offsetof(struct kvp_squat_opts, heads), 0 },
		{ offsetof(struct kvp_squat_opts, heads), 257 },
		{ offsetof(struct kvp_squat_opts, group), 65 },
		{ offsetof(struct kvp_squat_opts, dim), 0 },
		{ offsetof(struct kvp_squat_opts, dim), 20 },
		{ offsetof(struct kvp_squat_opts, dim), 1032 },
		{ offsetof(struct kvp_squat_opts, rank), 129 },
		{ offsetof(struct kvp_squat_opts, block), 12 },
		{ offsetof(struct kvp_squat_opts, block), 72 },
		{ offsetof(struct kvp_squat_opts, reserved), 1 } };
	static const double lambdas[] = { -1e-3, 1.1, (double)NAN, (double)INFINITY };
	static float axes[1032 * 256];
	struct kvp_squat *s = NULL;

	(void)state;
	assert_int_equal(kvp_squat_of_axes(&good, axes, &s), 0);
	assert_int_equal(kvp_squat_options(s)->rank, 20);
	assert_int_equal(kvp_squat_options(s)->block, 64);
	assert_int_equal(kvp_squat_options(s)->group, 1);
	assert_true(kvp_squat_options(s)->lambda == 1e-3);
	assert_non_null(kvp_squat_axes(s, 0));
	assert_null(kvp_squat_axes(s, 1));
	s = kvp_squat_free(s);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct kvp_squat_opts o = good;

		memcpy((char *)&o + wrong[i].at, &wrong[i].value, sizeof wrong[i].value);
		assert_int_equal(kvp_squat_of_axes(&o, axes, &s), -EINVAL);
		assert_int_equal(kvp_squat_of_queries(&o, axes, 1, &s), -EINVAL);
		assert_null(s);
	}
	for (size_t i = 0; i < sizeof lambdas / sizeof *lambdas; i++) {
		struct kvp_squat_opts o = good;

		o.lambda = lambdas[i];
		assert_int_equal(kvp_squat_of_axes(&o, axes, &s), -EINVAL);
	}
	/* Small ones have as many axes as channels; numbers that are none. */
	struct kvp_squat_opts small = good;

	small.dim = 16;
	assert_int_equal(kvp_squat_of_axes(&small, axes, &s), 0);
	assert_int_equal(kvp_squat_options(s)->rank, 16);
	assert_int_equal(kvp_squat_options(s)->block, 8);
	s = kvp_squat_free(s);
	small.rank = 17;
	assert_int_equal(kvp_squat_of_axes(&small, axes, &s), -EINVAL);
	assert_int_equal(kvp_squat_of_queries(&good, axes, 0, &s), -EINVAL);
	for (uint32_t i = 0; i < 3; i++) {
		axes[100] = i ? i == 1 ? INFINITY : 2e12f : NAN;
		assert_int_equal(kvp_squat_of_axes(&good, axes, &s), -EINVAL);
		assert_int_equal(kvp_squat_of_queries(&good, axes, 1, &s), -EINVAL);
	}
	axes[100] = 0.0f;
	assert_null(s);
	assert_null(kvp_squat_free(NULL));
}

/* Row A-022: what is found in queries is their energy: all of it with as many axes, its largest part with fewer. */
static void axes_of_queries(void **state)
{
	static const struct {
		uint32_t dim, rank, deep;
		size_t n;
	} cases[] = { { 16, 16, 4, 60 }, { 128, 128, 30, 40 }, { 128, 20, 20, 300 },
		{ 64, 5, 5, 300 }, { 64, 30, 4, 3 } };

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const uint32_t dim = cases[i].dim, rank = cases[i].rank;
		const struct kvp_squat_opts o = {
			.size = sizeof o, .heads = 2, .group = 2, .dim = dim, .rank = rank
		};
		float *q = queries_new(&o, cases[i].n, cases[i].deep, 22);
		struct kvp_squat *s;
		double all = 0.0, kept = 0.0, apart = 0.0, last = INFINITY;
		const float *a;

		assert_int_equal(kvp_squat_of_queries(&o, q, cases[i].n, &s), 0);
		a = kvp_squat_axes(s, 1);
		for (uint32_t x = 0; x < dim; x++) {
			for (uint32_t y = 0; y < dim; y++) {
				double energy = 0.0, found = 0.0;

				for (size_t t = 0; t < 2 * cases[i].n; t++) {
					const float *one = q + (t / 2 * 4 + 2 + t % 2) * dim;

					energy += (double)one[x] * (double)one[y];
				}
				for (uint32_t j = 0; j < rank; j++)
					found += (double)a[j * dim + x] * (double)a[j * dim + y];
				apart += (energy - found) * (energy - found);
				all += x == y ? energy : 0.0;
				kept += x == y ? found : 0.0;
			}
		}
		/* Of fewer tokens than axes there are no more axes than queries. */
		if (rank == dim || 2 * cases[i].n < rank)
			assert_true(sqrt(apart) < 1e-5 * all);
		else
			assert_true(kept > 0.93 * all && kept < all);
		for (uint32_t j = 0; j < rank; j++) {
			double length = 0.0, other = 0.0;

			for (uint32_t c = 0; c < dim; c++) {
				length += pow((double)a[j * dim + c], 2);
				other += j ? (double)a[j * dim + c] * (double)a[c] : 0.0;
			}
			assert_true(length <= last * 1.0001 && fabs(other) < 1e-4 * all);
			last = length;
		}
		kvp_squat_free(s);
		free(q);
	}
}

/* Keys without queries, or with another layer's, are not coded at all. */
static void queries_are_needed(void **state)
{
	struct trip t = trip_new("squat2", 32, 2, 64, KVP_DTYPE_F16);
	struct kvp_squat_opts o = { .size = sizeof o, .heads = 2, .dim = 64 };
	float *axes = room((size_t)3 * 20 * 72);
	struct kvp_squat *s;

	(void)state;
	inputs_fill(t.src.data, t.src.size / 2, KVP_DTYPE_F16, INPUT_NORMAL);
	assert_int_equal(trip_encode(&t, 0, NULL), -ENOENT);
	for (uint32_t i = 0; i < 3; i++) {
		o.heads = i ? 2 : 3;
		o.dim = i == 1 ? 72 : 64;
		assert_int_equal(kvp_squat_of_axes(&o, axes, &s), 0);
		assert_int_equal(trip_encode(&t, 0, s), i == 2 ? 0 : -ENOENT);
		kvp_squat_free(s);
	}
	free(axes);
	trip_free(&t);
}

/* Whatever keys and axes are: all sets write one payload, and what it says is finite. */
static void any_input(void **state)
{
	static const char *const names[] = { "squat2-g16", "squat3", "squat4-g16" };
	static const uint32_t dims[] = { 8, 40, 128, 264 }, ranks[] = { 1, 5, 8, 33 };

	(void)state;
	for (uint32_t i = 0; i < 12 * INPUT_MAX_; i++) {
		struct trip t = trip_new(
			names[i % 3], 33, 1 + i % 3, dims[i % 4], KVP_DTYPE_F32 + i / 3 % 3);
		const struct kvp_squat_opts o = { .size = sizeof o,
			.heads = t.p.heads,
			.dim = t.p.dim,
			.rank = ranks[i % 4] < t.p.dim ? ranks[i % 4] : t.p.dim,
			.block = i & 4 ? 24 : 0 };
		const size_t n = (size_t)o.heads * o.rank * o.dim;
		struct guard first = guard_new(t.bytes, 16);
		float *axes = room(n);
		struct kvp_squat *s;

		for (size_t j = 0; j < n; j++)
			axes[j] = ldexpf((float)inputs_normal(), (int)(i % 5) * 6 - 6);
		assert_int_equal(kvp_squat_of_axes(&o, axes, &s), 0);
		inputs_fill(
			t.src.data, t.src.size / t.element, t.p.dtype, (enum input_kind)(i / 12));
		for (size_t set = 0; set < sets; set++) {
			assert_int_equal(trip_encode(&t, set, s), 0);
			if (!set)
				memcpy(first.data, t.out.data, t.bytes);
			assert_memory_equal(t.out.data, first.data, t.bytes);
			trip_decode(&t, set);
			for (size_t j = 0; j < t.src.size / t.element; j++)
				if (j / t.p.dim % 33 < 32)
					assert_true(isfinite(
						load_element(t.dst.data, t.p.dtype, (uint32_t)j)));
		}
		kvp_squat_free(s);
		guard_free(&first);
		free(axes);
		trip_free(&t);
	}
}

static int setup(void **state)
{
	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	for (; sets < LADDER && ladder_reaches(sets); sets++)
		if (kvp_kernels_new(ladder[sets].mask, &isa[sets]) < 0)
			return -1;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (size_t s = 0; s < sets; s++)
		isa[s] = kvp_kernels_free(isa[s]);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(along_queries),
		cmocka_unit_test(read_as_kivi),
		cmocka_unit_test(options),
		cmocka_unit_test(axes_of_queries),
		cmocka_unit_test(queries_are_needed),
		cmocka_unit_test(any_input),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
