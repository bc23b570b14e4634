/* SPDX-License-Identifier: Apache-2.0 */
/* Lloyd-Max quantisers of one coordinate of a random unit vector, by Newton's method. */
#include "kernels/kvp_lloyd.h"

#include <errno.h>
#include <math.h>

#define LEVELS_MAX (1u << (KVP_LLOYD_BITS_MAX - 1))
#define PANELS     400u

/* A density that is symmetric around 0, on [0, end]. */
struct density {
	uint32_t dim; /* 0: Gaussian */
	double root;  /* sqrt(dim) */
	double norm;  /* integral of the unnormalised density over the whole line */
	double end;
};

/*
 * Integral of (1-x^2)^((dim-3)/2) over [a, b] in units of x; with x = sin t the integrand
 * becomes cos^(dim-2) t, which is smooth at the ends as well, so Simpson's rule converges fast.
 */
static double sphere_mass(uint32_t dim, double a, double b)
{
	double lo = asin(fmin(a, 1.0));
	double h = (asin(fmin(b, 1.0)) - lo) / PANELS;
	double sum = 0.0;

	for (uint32_t i = 0; i <= PANELS; i++) {
		double w = i == 0 || i == PANELS ? 1.0 : i & 1 ? 4.0 : 2.0;

		sum += w * pow(fabs(cos(lo + h * i)), dim - 2.0);
	}
	return sum * h / 3.0;
}

static void density_init(struct density *d, uint32_t dim)
{
	d->dim = dim;
	d->root = sqrt(dim);
	d->end = dim ? d->root : INFINITY;
	d->norm = dim ? 2.0 * sphere_mass(dim, 0.0, 1.0) * d->root : sqrt(2.0 * M_PI);
}

static double density_at(const struct density *d, double z)
{
	double x;

	if (isinf(z))
		return 0.0;
	if (!d->dim)
		return exp(-0.5 * z * z) / d->norm;
	x = z / d->root;
	return x >= 1.0 ? 0.0 : pow(1.0 - x * x, (d->dim - 3.0) / 2.0) / d->norm;
}

static double density_mass(const struct density *d, double a, double b)
{
	if (!d->dim)
		return 0.5 * (erfc(a * M_SQRT1_2) - (isinf(b) ? 0.0 : erfc(b * M_SQRT1_2)));
	return sphere_mass(d->dim, a / d->root, b / d->root) * d->root / d->norm;
}

/* Integral of z f(z) from a to b: both densities have a closed form for its primitive. */
static double density_moment(const struct density *d, double a, double b)
{
	double x, y, e;

	if (!d->dim)
		return density_at(d, a) - density_at(d, b);
	x = a / d->root;
	y = fmin(b / d->root, 1.0);
	e = (d->dim - 1.0) / 2.0;
	return d->dim / d->norm * (pow(1.0 - x * x, e) - pow(1.0 - y * y, e)) / (d->dim - 1.0);
}

struct step {
	double residual[LEVELS_MAX];
	double lower[LEVELS_MAX];
	double diag[LEVELS_MAX];
	double upper[LEVELS_MAX];
};

/* Residuals centroid(cell i) - c[i] and their tridiagonal Jacobian. */
static double linearize(const struct density *d, uint32_t n, const double *c, struct step *s)
{
	double worst = 0.0;
	double a = 0.0;

	for (uint32_t i = 0; i < n; i++) {
		double b = i + 1 < n ? 0.5 * (c[i] + c[i + 1]) : d->end;
		double mass = density_mass(d, a, b);
		double mean = density_moment(d, a, b) / mass;
		double da = i ? density_at(d, a) * (mean - a) / mass : 0.0;
		double db = i + 1 < n ? density_at(d, b) * (b - mean) / mass : 0.0;

		s->residual[i] = mean - c[i];
		s->lower[i] = 0.5 * da;
		s->upper[i] = 0.5 * db;
		s->diag[i] = 0.5 * da + 0.5 * db - 1.0;
		worst = fmax(worst, fabs(s->residual[i]));
		a = b;
	}
	return worst;
}

/* c -= J^-1 residual, by elimination without pivoting (J is diagonally dominant). */
static void newton(uint32_t n, struct step *s, double *c)
{
	for (uint32_t i = 1; i < n; i++) {
		double m = s->lower[i] / s->diag[i - 1];

		s->diag[i] -= m * s->upper[i - 1];
		s->residual[i] -= m * s->residual[i - 1];
	}
	for (uint32_t i = n; i-- > 0;) {
		if (i + 1 < n)
			s->residual[i] -= s->upper[i] * s->residual[i + 1];
		s->residual[i] /= s->diag[i];
		c[i] -= s->residual[i];
	}
}

int kvp_lloyd_max(uint32_t bits, uint32_t dim, double *ret_centroids, double *ret_mse)
{
	uint32_t n = bits ? 1u << (bits - 1) : 0;
	struct density d;
	struct step s;
	double c[LEVELS_MAX];
	double worst, a, mse;

	if (bits < 1 || bits > KVP_LLOYD_BITS_MAX || (dim != 0 && (dim < 4 || dim > 1024)))
		return -EINVAL;
	density_init(&d, dim);
	for (uint32_t i = 0; i < n; i++)
		c[i] = fmin(3.0, 0.9 * d.end) * (i + 0.5) / n;
	/* Plain iterations bring c near enough for Newton's quadratic convergence. */
	for (int i = 0; i < 60; i++) {
		linearize(&d, n, c, &s);
		for (uint32_t j = 0; j < n; j++)
			c[j] += s.residual[j];
	}
	for (int i = 0; i < 40; i++) {
		worst = linearize(&d, n, c, &s);
		if (worst < 1e-13)
			break;
		newton(n, &s, c);
	}
	if (!(linearize(&d, n, c, &s) < 1e-10))
		return -EDOM;
	/* E z^2 = 1 and every centroid is its cell's mean: mse = 1 - sum of mass times c^2. */
	a = 0.0;
	mse = 1.0;
	for (uint32_t i = 0; i < n; i++) {
		double b = i + 1 < n ? 0.5 * (c[i] + c[i + 1]) : d.end;

		mse -= 2.0 * density_mass(&d, a, b) * c[i] * c[i];
		a = b;
	}
	for (uint32_t i = 0; i < n; i++)
		ret_centroids[i] = c[i];
	*ret_mse = mse;
	return 0;
}
