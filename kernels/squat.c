/* SPDX-License-Identifier: Apache-2.0 */
/* Subspaces of queries for the codec squat, and its rows in reference C. */
#include "kernels/squat.h"
#include "kernels/numeric.h"
#include "kernels/squat_rows.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define GROUP_MAX  64u
#define SPARE      8u  /* axes beside those that are asked for, which make these exact sooner */
#define ITERATIONS 12u /* of the power method */
#define SWEEPS     30u /* of Jacobi's, at most */

void kvp_squat_bend_c(const struct squat_part *p, const float *sum, float *x)
{
	bend(p, sum, x);
}

void kvp_squat_see_c(const struct squat_part *p, const float *x, const float *coded, float *sum)
{
	see(p, x, coded, sum);
}

void kvp_squat_load_c(const struct rows_in *in, uint32_t t, float *x)
{
	load(in, t, x);
}

void kvp_squat_place_c(
	uint32_t bits, const struct squat_part *p, uint32_t at, const uint8_t *own, uint8_t *row)
{
	place(bits, p, at, own, row);
}

/* ---- the object ---- */

static int fill_options(const struct kvp_squat_opts *opts, struct kvp_squat_opts *ret)
{
	struct kvp_squat_opts o = *opts;

	if (o.size != sizeof o || o.reserved || o.dim < KVP_PLANE_DIM_MIN ||
		o.dim > KVP_PLANE_DIM_MAX || o.dim % 8)
		return -EINVAL;
	o.group = o.group ? o.group : 1;
	if (!o.rank)
		o.rank = o.dim < KVP_SQUAT_RANK ? o.dim : KVP_SQUAT_RANK;
	if (!o.block)
		o.block = o.dim > KVP_SQUAT_BLOCK ? KVP_SQUAT_BLOCK : (o.dim / 2 + 7) / 8 * 8;
	o.lambda = o.lambda == 0.0 ? KVP_SQUAT_LAMBDA : o.lambda;
	if (!o.heads || o.heads > KVP_PLANE_HEADS_MAX || o.group > GROUP_MAX ||
		o.rank > KVP_SQUAT_RANK_MAX || o.rank > o.dim || o.block > KVP_SQUAT_BLOCK ||
		o.block % 8 || !(o.lambda > 0.0 && o.lambda <= 1.0))
		return -EINVAL;
	*ret = o;
	return 0;
}

/* Axes are still to be filled in. */
static struct kvp_squat *squat_new(const struct kvp_squat_opts *o)
{
	struct kvp_squat *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->o = *o;
	s->lanes = (o->rank + SQUAT_LANES - 1) / SQUAT_LANES * SQUAT_LANES;
	s->axes = calloc((size_t)o->heads * o->rank * o->dim, sizeof *s->axes);
	s->bend = calloc((size_t)o->heads * o->rank * o->dim, sizeof *s->bend);
	s->seen = calloc((size_t)o->heads * o->dim * s->lanes, sizeof *s->seen);
	return s->axes && s->bend && s->seen ? s : kvp_squat_free(s);
}

struct kvp_squat *kvp_squat_free(struct kvp_squat *s)
{
	if (s) {
		free(s->axes);
		free(s->bend);
		free(s->seen);
	}
	free(s);
	return NULL;
}

const struct kvp_squat_opts *kvp_squat_options(const struct kvp_squat *s)
{
	return &s->o;
}

const float *kvp_squat_axes(const struct kvp_squat *s, uint32_t head)
{
	return head < s->o.heads ? s->axes + (size_t)head * s->o.rank * s->o.dim : NULL;
}

static int in_bounds(const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!(fabs((double)x[i]) <= KVP_SQUAT_NUMBER_MAX))
			return 0;
	return 1;
}

/* ---- what channels owe ---- */

/* m, [n][n], becomes L with m = L L^T. -EINVAL: it is not positive, by what doubles can tell. */
static int factor(uint32_t n, double *m)
{
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j <= i; j++) {
			double sum = m[i * n + j];

			for (uint32_t k = 0; k < j; k++)
				sum -= m[i * n + k] * m[j * n + k];
			if (i == j && !(sum > 0.0))
				return -EINVAL;
			m[i * n + j] = i == j ? sqrt(sum) : sum / m[j * n + j];
		}
	}
	return 0;
}

/* x of L L^T x = x. */
static void solve(uint32_t n, const double *l, double *x)
{
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < i; j++)
			x[i] -= l[i * n + j] * x[j];
		x[i] /= l[i * n + i];
	}
	for (uint32_t i = n; i-- > 0;) {
		for (uint32_t j = i + 1; j < n; j++)
			x[i] -= l[j * n + i] * x[j];
		x[i] /= l[i * n + i];
	}
}

/*
 * Of one head. The sum over axes of what was lost so far, s, costs least if the channels from this block on
 * are less by lambda Q^T (I + lambda Q Q^T)^-1 s, Q being what axes have of those channels.
 */
static int bend_head(struct kvp_squat *s, uint32_t head, double *metric, double *l)
{
	const uint32_t n = s->o.rank, dim = s->o.dim;
	const float *axes = kvp_squat_axes(s, head);
	float *bends = s->bend + (size_t)head * n * dim;
	double x[KVP_SQUAT_RANK_MAX];

	for (uint32_t i = 0; i < n * n; i++)
		metric[i] = i % (n + 1) ? 0.0 : 1.0;
	for (uint32_t at = (dim - 1) / s->o.block * s->o.block; at; at -= s->o.block) {
		const uint32_t end = at + s->o.block < dim ? at + s->o.block : dim;

		for (uint32_t i = 0; i < n; i++)
			for (uint32_t j = 0; j < n; j++)
				for (uint32_t c = at; c < end; c++)
					metric[i * n + j] += s->o.lambda *
							     (double)axes[i * dim + c] *
							     (double)axes[j * dim + c];
		memcpy(l, metric, sizeof *l * n * n);
		if (factor(n, l) < 0)
			return -EINVAL;
		for (uint32_t c = at; c < end; c++) {
			for (uint32_t j = 0; j < n; j++)
				x[j] = (double)axes[j * dim + c];
			solve(n, l, x);
			for (uint32_t j = 0; j < n; j++)
				bends[j * dim + c] = (float)(s->o.lambda * x[j]);
		}
	}
	return in_bounds(bends, (size_t)n * dim) ? 0 : -EINVAL;
}

/* All that follows from the axes. */
static int finish(struct kvp_squat *s, struct kvp_squat **ret)
{
	const uint32_t n = s->o.rank, dim = s->o.dim;
	double *work = malloc(2 * sizeof *work * n * n);
	int r = work ? 0 : -ENOMEM;

	for (uint32_t h = 0; h < s->o.heads && !r; h++) {
		const float *axes = kvp_squat_axes(s, h);
		float *seen = s->seen + (size_t)h * dim * s->lanes;

		for (uint32_t j = 0; j < n; j++)
			for (uint32_t c = 0; c < dim; c++)
				seen[c * s->lanes + j] = axes[j * dim + c];
		r = bend_head(s, h, work, work + (size_t)n * n);
	}
	free(work);
	if (r < 0)
		kvp_squat_free(s);
	else
		*ret = s;
	return r;
}

int kvp_squat_of_axes(
	const struct kvp_squat_opts *opts, const float *axes, struct kvp_squat **ret_squat)
{
	struct kvp_squat_opts o;
	struct kvp_squat *s;
	size_t n;
	int r = fill_options(opts, &o);

	if (r < 0)
		return r;
	n = (size_t)o.heads * o.rank * o.dim;
	if (!in_bounds(axes, n))
		return -EINVAL;
	s = squat_new(&o);
	if (!s)
		return -ENOMEM;
	memcpy(s->axes, axes, n * sizeof *axes);
	return finish(s, ret_squat);
}

/* ---- axes of queries ---- */

/* Of one head: the energy of its queries, and room for `n` axes of it while they are found. */
struct search {
	uint32_t n, dim;
	double *energy; /* [dim][dim] */
	double *axis;   /* [n][dim] */
	double *next;   /* [n][dim] */
	double *small;  /* [n][n]: energy between axes */
	double *turn;   /* [n][n] */
};

static double dot(uint32_t n, const double *a, const double *b)
{
	double sum = 0.0;

	for (uint32_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

static void add_queries(struct search *s, const float *q, size_t n, size_t stride, uint32_t group)
{
	memset(s->energy, 0, sizeof *s->energy * s->dim * s->dim);
	for (size_t t = 0; t < n; t++) {
		for (uint32_t g = 0; g < group; g++) {
			const float *x = q + t * stride + (size_t)g * s->dim;

			for (uint32_t i = 0; i < s->dim; i++)
				for (uint32_t j = 0; j <= i; j++)
					s->energy[i * s->dim + j] += (double)x[i] * (double)x[j];
		}
	}
	for (uint32_t i = 0; i < s->dim; i++)
		for (uint32_t j = i + 1; j < s->dim; j++)
			s->energy[i * s->dim + j] = s->energy[j * s->dim + i];
}

/* Makes rows of axis unit vectors at right angles, twice over for the digits; 0 those that follow from others. */
static void straighten(struct search *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		double *a = s->axis + (size_t)i * s->dim;
		const double before = sqrt(dot(s->dim, a, a));
		double after;

		for (uint32_t k = 0; k < 2 * i; k++) {
			const double *b = s->axis + (size_t)(k % i) * s->dim;
			const double part = dot(s->dim, a, b);

			for (uint32_t c = 0; c < s->dim; c++)
				a[c] -= part * b[c];
		}
		after = sqrt(dot(s->dim, a, a));
		for (uint32_t c = 0; c < s->dim; c++)
			a[c] = after > 1e-10 * before ? a[c] / after : 0.0;
	}
}

static void multiply(struct search *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		double *to = s->next + (size_t)i * s->dim;

		memset(to, 0, sizeof *to * s->dim);
		for (uint32_t j = 0; j < s->dim; j++) {
			const double a = s->axis[i * s->dim + j];
			const double *row = s->energy + (size_t)j * s->dim;

			for (uint32_t c = 0; c < s->dim; c++)
				to[c] += a * row[c];
		}
	}
}

/* Turns rows p and q of small and turn, and small's columns, so that small[p][q] is 0. */
static void turn_pair(struct search *s, uint32_t p, uint32_t q)
{
	const uint32_t n = s->n;
	double *a = s->small;
	const double tau = (a[q * n + q] - a[p * n + p]) / (2.0 * a[p * n + q]);
	const double t = (tau < 0.0 ? -1.0 : 1.0) / (fabs(tau) + sqrt(1.0 + tau * tau));
	const double cosine = 1.0 / sqrt(1.0 + t * t), sine = t * cosine;

	for (uint32_t k = 0; k < n; k++) {
		const double x = a[k * n + p], y = a[k * n + q];

		a[k * n + p] = cosine * x - sine * y;
		a[k * n + q] = sine * x + cosine * y;
	}
	for (uint32_t k = 0; k < n; k++) {
		const double x = a[p * n + k], y = a[q * n + k];
		const double u = s->turn[p * n + k], v = s->turn[q * n + k];

		a[p * n + k] = cosine * x - sine * y;
		a[q * n + k] = sine * x + cosine * y;
		s->turn[p * n + k] = cosine * u - sine * v;
		s->turn[q * n + k] = sine * u + cosine * v;
	}
}

/* Jacobi's method: small becomes diagonal, rows of turn say which sums of axes that takes. */
static void diagonalise(struct search *s)
{
	const uint32_t n = s->n;
	int again = 1;

	for (uint32_t i = 0; i < n * n; i++)
		s->turn[i] = i % (n + 1) ? 0.0 : 1.0;
	for (uint32_t sweep = 0; sweep < SWEEPS && again; sweep++) {
		again = 0;
		for (uint32_t p = 0; p + 1 < n; p++) {
			for (uint32_t q = p + 1; q < n; q++) {
				const double least =
					1e-15 *
					sqrt(fabs(s->small[p * n + p] * s->small[q * n + q]));

				if (!(fabs(s->small[p * n + q]) > least))
					continue;
				turn_pair(s, p, q);
				again = 1;
			}
		}
	}
}

/* The power method, which starts anywhere, and then the same numbers every time. */
static void find_axes(struct search *s)
{
	uint64_t z = KVP_SEED_DEFAULT;

	for (size_t i = 0; i < (size_t)s->n * s->dim; i++) {
		z = z * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		s->axis[i] = (double)(z >> 33) * 0x1p-30 - 1.0;
	}
	for (uint32_t i = 0; i < ITERATIONS; i++) {
		double *swap = s->axis;

		straighten(s);
		multiply(s);
		s->axis = s->next;
		s->next = swap;
	}
	straighten(s);
	multiply(s);
	for (uint32_t i = 0; i < s->n; i++)
		for (uint32_t j = 0; j < s->n; j++)
			s->small[i * s->n + j] = dot(
				s->dim, s->axis + (size_t)i * s->dim, s->next + (size_t)j * s->dim);
	diagonalise(s);
}

/* The strongest `rank` of what was found, strongest first. */
static void take_axes(const struct search *s, uint32_t rank, float *ret)
{
	uint8_t taken[KVP_SQUAT_RANK_MAX + SPARE] = { 0 };

	for (uint32_t i = 0; i < rank; i++) {
		uint32_t best = s->n;
		double length;

		for (uint32_t j = 0; j < s->n; j++)
			if (!taken[j] && (best == s->n || s->small[j * (s->n + 1)] >
								  s->small[best * (s->n + 1)]))
				best = j;
		taken[best] = 1;
		length = sqrt(fmax(s->small[best * (s->n + 1)], 0.0));
		for (uint32_t c = 0; c < s->dim; c++) {
			double sum = 0.0;

			for (uint32_t j = 0; j < s->n; j++)
				sum += s->turn[best * s->n + j] * s->axis[j * s->dim + c];
			ret[i * s->dim + c] = (float)(length * sum);
		}
	}
}

static int search_heads(struct kvp_squat *squat, const float *q, size_t n)
{
	const struct kvp_squat_opts *o = &squat->o;
	const size_t dim = o->dim, stride = dim * o->group * o->heads;
	struct search s = { .n = o->rank + SPARE < o->dim ? o->rank + SPARE : o->dim,
		.dim = o->dim };
	double *work = malloc(sizeof *work * (dim * dim + 2 * s.n * dim + 2 * (size_t)s.n * s.n));

	if (!work)
		return -ENOMEM;
	s.energy = work;
	s.axis = s.energy + dim * dim;
	s.next = s.axis + s.n * dim;
	s.small = s.next + s.n * dim;
	s.turn = s.small + (size_t)s.n * s.n;
	for (uint32_t h = 0; h < o->heads; h++) {
		add_queries(&s, q + h * dim * o->group, n, stride, o->group);
		find_axes(&s);
		take_axes(&s, o->rank, squat->axes + h * dim * o->rank);
	}
	free(work);
	return 0;
}

int kvp_squat_of_queries(
	const struct kvp_squat_opts *opts, const float *q, size_t n, struct kvp_squat **ret_squat)
{
	struct kvp_squat_opts o;
	struct kvp_squat *s;
	int r = fill_options(opts, &o);

	if (r < 0)
		return r;
	if (!n || !in_bounds(q, n * o.heads * o.group * o.dim))
		return -EINVAL;
	s = squat_new(&o);
	if (!s)
		return -ENOMEM;
	r = search_heads(s, q, n);
	if (!r && !in_bounds(s->axes, (size_t)o.heads * o.rank * o.dim))
		r = -EINVAL;
	if (r < 0) {
		kvp_squat_free(s);
		return r;
	}
	return finish(s, ret_squat);
}
