/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A calibration from samples. Errors are weighted by a metric; in the metric's own axes and then in
 * those of the samples' covariance one step for all components is the best there is, and the least
 * step that a number of bits affords is found by bisection.
 */
#include "tools/kvbench/calib_fit.h"
#include "tools/kvrun/kvr_blas.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A metric's axis below this of its largest is taken for as much: its inverse must be a number. */
#define METRIC_FLOOR 1e-4
/* Components share a table while their deviation is this much of the first's. */
#define ALIKE      0.7
#define TABLES     16u
#define DEVIATION  24.0 /* of symbols; what is wider has low bits by themselves */
#define BISECTIONS 18

/* One transform with the components of all samples, for a step of 1. */
struct axes {
	uint32_t width;
	size_t tokens;
	float *mean;
	double *forward;   /* [width][width], rows are components */
	double *inverse;   /* likewise */
	float *z;          /* [tokens][width] */
	double *deviation; /* [width] */
};

/* What a step makes of it. */
struct fitted {
	uint32_t rank, tables;
	struct kvp_calib_table table[KVP_CALIB_TABLES_MAX];
	double bits; /* of all samples */
};

static void *zeroed(size_t n, size_t size)
{
	return calloc(n ? n : 1, size);
}

/* ---- axes ---- */

/* root and 1 / root of a metric [dim][dim]. -ENOMEM. */
static int roots(uint32_t dim, const double *metric, double *root, double *inverse)
{
	const size_t n = (size_t)dim * dim;
	double *a = zeroed(n, sizeof *a), *vectors = zeroed(n, sizeof *vectors);
	double *values = zeroed(dim, sizeof *values);
	int r = a && vectors && values ? 0 : -ENOMEM;

	if (!r) {
		memcpy(a, metric, n * sizeof *a);
		kvbench_eigen(dim, a, values, vectors);
		memset(root, 0, n * sizeof *root);
		memset(inverse, 0, n * sizeof *inverse);
		for (uint32_t k = 0; k < dim; k++) {
			const double *v = vectors + (size_t)k * dim;
			const double s = sqrt(fmax(values[k], METRIC_FLOOR * values[0]));

			for (uint32_t i = 0; i < dim; i++) {
				for (uint32_t j = 0; j < dim; j++) {
					root[(size_t)i * dim + j] += s * v[i] * v[j];
					inverse[(size_t)i * dim + j] += v[i] * v[j] / s;
				}
			}
		}
	}
	free(a);
	free(vectors);
	free(values);
	return r;
}

/* Rows of u, block after block of dim channels, times the blocks. */
static void times_blocks(
	uint32_t width, uint32_t dim, const double *u, const double *blocks, double *out)
{
	for (uint32_t k = 0; k < width; k++) {
		for (uint32_t i = 0; i < width; i++) {
			const double *row = u + (size_t)k * width + i / dim * dim;
			const double *block = blocks + (size_t)(i / dim) * dim * dim;
			double sum = 0.0;

			for (uint32_t j = 0; j < dim; j++)
				sum += row[j] * block[(size_t)j * dim + i % dim];
			out[(size_t)k * width + i] = sum;
		}
	}
}

/* Covariance [width][width] of the weighted samples: B C B for the blocks B of roots. */
static void weighted_covariance(uint32_t width, uint32_t dim, size_t tokens, const float *x,
	const double *root, float *gram, double *half, double *out)
{
	cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)width, (int)width, (int)tokens,
		1.0f / (float)tokens, x, (int)width, x, (int)width, 0, gram, (int)width);
	for (size_t i = 0; i < (size_t)width * width; i++)
		out[i] = (double)gram[i];
	times_blocks(width, dim, out, root, half);
	for (uint32_t i = 0; i < width; i++) /* it is symmetric, but for rounding: so is B C */
		for (uint32_t j = 0; j < width; j++)
			out[(size_t)j * width + i] = half[(size_t)i * width + j];
	times_blocks(width, dim, out, root, half);
	for (uint32_t i = 0; i < width; i++)
		for (uint32_t j = 0; j < width; j++)
			out[(size_t)i * width + j] =
				(half[(size_t)i * width + j] + half[(size_t)j * width + i]) / 2.0;
}

static void axes_done(struct axes *a)
{
	free(a->mean);
	free(a->forward);
	free(a->inverse);
	free(a->z);
	free(a->deviation);
}

/* The samples of one unit's heads without their means, dense. */
static void take_samples(const struct fit_job *job, const struct fit_plane *p, uint32_t unit,
	struct axes *a, float *x)
{
	const size_t row = (size_t)job->info.heads * job->info.dim;

	for (uint32_t c = 0; c < a->width; c++) {
		double sum = 0.0;

		for (size_t t = 0; t < a->tokens; t++)
			sum += (double)p->x[t * row + unit * a->width + c];
		a->mean[c] = (float)(sum / (double)a->tokens);
	}
	for (size_t t = 0; t < a->tokens; t++)
		for (uint32_t c = 0; c < a->width; c++)
			x[t * a->width + c] = p->x[t * row + unit * a->width + c] - a->mean[c];
}

static void project_all(struct axes *a, const float *x, float *forward)
{
	for (size_t i = 0; i < (size_t)a->width * a->width; i++)
		forward[i] = (float)a->forward[i];
	kvr_mul_wt(x, (uint32_t)a->tokens, forward, a->width, a->width, a->width, a->z);
	for (uint32_t c = 0; c < a->width; c++) {
		double sum = 0.0;

		for (size_t t = 0; t < a->tokens; t++)
			sum += (double)a->z[t * a->width + c] * (double)a->z[t * a->width + c];
		a->deviation[c] = sqrt(sum / (double)a->tokens);
	}
}

static int axes_new(
	const struct fit_job *job, const struct fit_plane *p, uint32_t unit, struct axes *a)
{
	const uint32_t dim = job->info.dim, width = job->info.joint * dim;
	const size_t n = (size_t)width * width, block = (size_t)dim * dim;
	double *root = zeroed(job->info.joint * block, sizeof *root);
	double *inverse = zeroed(job->info.joint * block, sizeof *inverse);
	double *c = zeroed(n, sizeof *c), *work = zeroed(n, sizeof *work);
	double *vectors = zeroed(n, sizeof *vectors), *values = zeroed(width, sizeof *values);
	float *x = zeroed(p->tokens * width, sizeof *x), *gram = zeroed(n, sizeof *gram);
	int r;

	*a = (struct axes){ .width = width,
		.tokens = p->tokens,
		.mean = zeroed(width, sizeof *a->mean),
		.forward = zeroed(n, sizeof *a->forward),
		.inverse = zeroed(n, sizeof *a->inverse),
		.z = zeroed(p->tokens * width, sizeof *a->z),
		.deviation = zeroed(width, sizeof *a->deviation) };
	r = root && inverse && c && work && vectors && values && x && gram && a->mean &&
			    a->forward && a->inverse && a->z && a->deviation
		    ? 0
		    : -ENOMEM;
	for (uint32_t h = 0; h < job->info.joint && !r; h++)
		r = roots(dim, p->metric + (unit * job->info.joint + h) * block, root + h * block,
			inverse + h * block);
	if (!r) {
		take_samples(job, p, unit, a, x);
		weighted_covariance(width, dim, p->tokens, x, root, gram, work, c);
		kvbench_eigen(width, c, values, vectors);
		times_blocks(width, dim, vectors, root, a->forward);
		times_blocks(width, dim, vectors, inverse, a->inverse);
		project_all(a, x, gram);
	}
	free(root);
	free(inverse);
	free(c);
	free(work);
	free(vectors);
	free(values);
	free(x);
	free(gram);
	return r;
}

/* ---- tables of a step ---- */

static int32_t quotient(const struct axes *a, size_t t, uint32_t c, double step, float round)
{
	const double z = (double)a->z[t * a->width + c] / step, m = fabs(z) + (double)round;
	const int32_t q = m < 0x1p22 ? (int32_t)m : 1 << 22;

	return z < 0.0 ? -q : q;
}

/* What samples between these symbols and the ends might have been, had there been more of them. */
static void smooth(uint32_t *count)
{
	uint32_t lo = KVP_CALIB_ZERO, hi = KVP_CALIB_ZERO;

	for (uint32_t s = 1; s < KVP_CALIB_SYMBOLS; s++) {
		lo = count[s] && s < lo ? s : lo;
		hi = count[s] && s > hi ? s : hi;
	}
	lo = lo > 2 ? lo - 2 : 1;
	hi = hi < KVP_CALIB_SYMBOLS - 3 ? hi + 2 : KVP_CALIB_SYMBOLS - 1;
	for (uint32_t s = lo; s <= hi; s++)
		count[s] += !count[s];
}

/* A table for components [first, first + count), and the bits that their symbols take. */
static int fit_table(const struct axes *a, uint32_t first, uint32_t count, double step, float round,
	struct kvp_calib_table *t, double *bits)
{
	uint32_t counts[KVP_CALIB_SYMBOLS] = { 0 };
	double sum[2] = { 0 }, n[2] = { 0 }, total = 0.0;

	*t = (struct kvp_calib_table){ .count = count };
	while (t->shift < KVP_CALIB_SHIFT_MAX &&
		a->deviation[first] / step > DEVIATION * (1 << t->shift))
		t->shift++;
	for (size_t i = 0; i < a->tokens; i++) {
		for (uint32_t c = first; c < first + count; c++) {
			const int32_t q = quotient(a, i, c, step, round), m = q < 0 ? -q : q;
			const int32_t s = (q >> t->shift) + (int32_t)KVP_CALIB_ZERO;

			counts[s < 1 || s >= (int32_t)KVP_CALIB_SYMBOLS ? KVP_CALIB_ESCAPE
									: (uint32_t)s]++;
			if (!m)
				continue;
			sum[m > 1] += m - fabs((double)a->z[i * a->width + c]) / step;
			n[m > 1] += 1.0;
		}
	}
	for (int i = 0; i < 2; i++)
		t->offset[i] = n[i] > 8.0 ? (float)fmin(fmax(sum[i] / n[i], -0.5), 0.5) : 0.0f;
	total = 16.0 * counts[KVP_CALIB_ESCAPE] + (double)t->shift * (double)a->tokens * count;
	smooth(counts);
	if (kvp_calib_frequencies(counts, t->freq) < 0)
		return -EINVAL;
	for (uint32_t s = 0; s < KVP_CALIB_SYMBOLS; s++)
		if (counts[s])
			total -= counts[s] * log2((double)t->freq[s] / KVP_CALIB_TOTAL);
	*bits += total;
	return 0;
}

static int fit_axes(const struct axes *a, double step, float round, struct fitted *ret)
{
	double alike = ALIKE;
	uint32_t tables;
	int r = 0;

	ret->rank = a->width; /* what samples have nothing of, another text may have */
	ret->tables = 0;
	ret->bits = 0.0;
	for (;; alike *= 0.97) {
		uint32_t first = 0;

		tables = 1;
		for (uint32_t c = 1; c < ret->rank; c++) {
			if (a->deviation[c] >= alike * a->deviation[first])
				continue;
			first = c;
			tables++;
		}
		if (tables <= TABLES)
			break;
	}
	for (uint32_t first = 0, c; first < ret->rank && !r; first = c) {
		for (c = first + 1; c < ret->rank && a->deviation[c] >= alike * a->deviation[first];
			c++)
			;
		r = fit_table(
			a, first, c - first, step, round, &ret->table[ret->tables++], &ret->bits);
	}
	return r;
}

/* ---- the step ---- */

/* All units at one step; bits an element of keys and values. */
static int fit_all(const struct fit_job *job, const struct axes *a, double step, struct fitted *f,
	double *ret_bits, double *ret_all)
{
	const uint32_t units = job->info.heads / job->info.joint;
	double bits[2] = { 0 }, elements[2] = { 0 };
	int r = 0;

	for (size_t i = 0; i < job->n * units && !r; i++) {
		const uint32_t kind = job->plane[i / units].kind;

		r = fit_axes(&a[i], step, job->info.round, &f[i]);
		bits[kind] += f[i].bits;
		elements[kind] += (double)a[i].tokens * a[i].width;
	}
	for (int i = 0; i < 2; i++)
		ret_bits[i] = elements[i] > 0.0 ? bits[i] / elements[i] : 0.0;
	*ret_all = (bits[0] + bits[1]) / (elements[0] + elements[1]);
	return r;
}

static int find_step(
	const struct fit_job *job, const struct axes *a, struct fitted *f, struct fit_result *ret)
{
	const uint32_t units = job->info.heads / job->info.joint;
	double most = 0.0, lo, hi, all = 0.0;
	int r = 0;

	for (size_t i = 0; i < job->n * units; i++)
		most = fmax(most, a[i].deviation[0]);
	if (!(most > 0.0) || !isfinite(most))
		return -EINVAL;
	lo = log(most) - 20.0;
	hi = log(most) + 2.0;
	/* From the coarse side: many bits are slow to count. The last one is a step that fits. */
	for (int i = 0; i <= BISECTIONS && !r; i++) {
		const double middle = i < 3            ? hi - (hi - lo) / 4.0
				      : i < BISECTIONS ? (lo + hi) / 2.0
						       : hi;

		ret->step = exp(middle);
		r = fit_all(job, a, ret->step, f, ret->bits, &all);
		if (all > job->bits)
			lo = middle;
		else
			hi = middle;
	}
	return r;
}

/* ---- the file ---- */

/* Matrices as files have them: the step inside, only components that are coded. -ENOMEM. */
static int unit_of(
	const struct axes *a, const struct fitted *f, double step, struct kvp_calib_unit *ret)
{
	float *forward = zeroed((size_t)a->width * f->rank, sizeof *forward);
	float *inverse = zeroed((size_t)a->width * f->rank, sizeof *inverse);

	*ret = (struct kvp_calib_unit){ f->rank, f->tables, a->mean, forward, inverse, f->table };
	if (!forward || !inverse)
		return -ENOMEM;
	for (uint32_t c = 0; c < f->rank; c++) {
		for (uint32_t i = 0; i < a->width; i++) {
			forward[(size_t)i * f->rank + c] =
				(float)(a->forward[(size_t)c * a->width + i] / step);
			inverse[(size_t)c * a->width + i] =
				(float)(a->inverse[(size_t)c * a->width + i] * step);
		}
	}
	return 0;
}

static int write_file(const struct fit_job *job, const struct axes *a, const struct fitted *f,
	struct fit_result *ret)
{
	const uint32_t units = job->info.heads / job->info.joint;
	struct kvp_calib_entry *entry = zeroed(job->n, sizeof *entry);
	struct kvp_calib_unit *unit = zeroed(job->n * units, sizeof *unit);
	int r = entry && unit ? 0 : -ENOMEM;

	ret->rank_min = UINT32_MAX;
	for (size_t i = 0; i < job->n * units && !r; i++) {
		entry[i / units] = (struct kvp_calib_entry){ job->plane[i / units].layer,
			job->plane[i / units].kind, unit + i / units * units };
		r = unit_of(&a[i], &f[i], ret->step, &unit[i]);
		ret->rank_min = f[i].rank < ret->rank_min ? f[i].rank : ret->rank_min;
		ret->rank_max = f[i].rank > ret->rank_max ? f[i].rank : ret->rank_max;
		ret->tables_max = f[i].tables > ret->tables_max ? f[i].tables : ret->tables_max;
	}
	if (!r)
		r = kvp_calib_bytes(&job->info, entry, job->n, &ret->bytes);
	if (!r) {
		ret->file = malloc(ret->bytes);
		r = ret->file ? kvp_calib_write(&job->info, entry, job->n, ret->file, ret->bytes)
			      : -ENOMEM;
	}
	for (size_t i = 0; unit && i < job->n * units; i++) {
		free((void *)(uintptr_t)unit[i].forward);
		free((void *)(uintptr_t)unit[i].inverse);
	}
	free(entry);
	free(unit);
	return r;
}

int kvbench_fit(const struct fit_job *job, struct fit_result *ret)
{
	const uint32_t units = job->info.heads / job->info.joint;
	struct axes *a = zeroed(job->n * units, sizeof *a);
	struct fitted *f = zeroed(job->n * units, sizeof *f);
	struct fit_result result = { 0 };
	int r = a && f ? 0 : -ENOMEM;

	for (size_t i = 0; i < job->n && !r; i++)
		if (job->plane[i].tokens < 2 * (size_t)job->info.joint * job->info.dim)
			r = -EINVAL;
	for (size_t i = 0; i < job->n * units && !r; i++)
		r = axes_new(job, &job->plane[i / units], (uint32_t)(i % units), &a[i]);
	if (!r)
		r = find_step(job, a, f, &result);
	if (!r)
		r = write_file(job, a, f, &result);
	for (size_t i = 0; a && i < job->n * units; i++)
		axes_done(&a[i]);
	free(a);
	free(f);
	if (r < 0)
		free(result.file);
	else
		*ret = result;
	return r;
}
