/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotations of vectors by random signs and Hadamard matrices, Paley orders included, in plain C.
 */
#include "kernels/dsp.h"
#include "kernels/kvp_haar.h"
#include "kernels/numeric.h"

#include <errno.h>
#include <math.h>
#include <string.h>

int kvp_hadamard_order(uint32_t dim)
{
	uint32_t m = dim;

	while (m && m % 2 == 0)
		m /= 2;
	switch (m) {
	case 1:
		return 1;
	case 3:
	case 5:
	case 7:
	case 9:
		return dim % (4 * m) ? -EINVAL : (int)(4 * m);
	default:
		return -EINVAL;
	}
}

/* chi[a]: Legendre symbol of a modulo the prime q. */
static void legendre(int q, int8_t *chi)
{
	memset(chi, -1, (size_t)q);
	chi[0] = 0;
	for (int i = 1; i < q; i++)
		chi[i * i % q] = 1;
}

/* Entry of the bordered Paley matrix of order q + 1; corner and diagonal as given. */
static int paley_entry(int i, int j, int q, const int8_t *chi, int border, int diagonal)
{
	if (i == j)
		return diagonal;
	if (!i)
		return 1;
	return j ? chi[(j - i + q) % q] : border;
}

/* Orders 12 and 20 by Paley's first construction (q = 11, 19), 28 and 36 by his second. */
static void paley_init(struct rotation *rot)
{
	int m = (int)rot->order, q = m <= 20 ? m - 1 : m / 2 - 1;
	int8_t chi[19];

	legendre(q, chi);
	for (int i = 0; i < m; i++) {
		uint64_t row = 0;

		for (int j = 0; j < m; j++) {
			int h;

			if (m <= 20) {
				h = paley_entry(i, j, q, chi, -1, 1);
			} else {
				h = paley_entry(i / 2, j / 2, q, chi, 1, 0);
				if (i / 2 == j / 2)
					h = i % 2 || j % 2 ? -1 : 1;
				else if (i % 2 && j % 2)
					h = -h;
			}
			if (h < 0)
				row |= UINT64_C(1) << j;
			rot->paley_sign[0][j * m + i] = rot->paley_sign[1][i * m + j] = (float)h;
		}
		rot->paley[i] = row;
	}
}

/* Output n (from 0) of SplitMix64 started at seed. */
static uint64_t splitmix(uint64_t seed, uint64_t n)
{
	uint64_t z = seed + (n + 1) * UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

int kvp_rotation_init(struct rotation *ret_rot, uint32_t kind, uint32_t dim, uint64_t seed,
	const struct kvp_calib *calib)
{
	struct rotation *rot = ret_rot;
	int order;

	if (kind == KVP_ROT_HAAR) {
		if (!calib || !calib->haar || calib->dim != dim || !calib->digest)
			return -ENOENT;
		rot->kind = kind;
		rot->dim = dim;
		rot->order = 0;
		rot->rounds = 0;
		rot->haar = calib->haar;
		rot->rescale = sqrtf((float)dim);
		return 0;
	}
	order = kvp_hadamard_order(dim);
	if (order < 0)
		return order;
	rot->kind = kind;
	rot->dim = dim;
	rot->order = (uint32_t)order;
	rot->rounds = kind == KVP_ROT_H3 ? 3 : 1;
	rot->haar = NULL;
	rot->rescale = 1.0f / (float)dim;
	for (uint32_t r = 0; r < rot->rounds; r++) {
		uint64_t word = 0;

		for (uint32_t i = 0; i < dim; i++) {
			if (i % 64 == 0)
				word = splitmix(seed, r * 16 + i / 64);
			rot->sign[r][i] = (uint32_t)(word >> i % 64 & 1u) << 31;
		}
	}
	if (order > 1)
		paley_init(rot);
	return 0;
}

static void flip(const struct rotation *rot, uint32_t round, float *x)
{
	for (uint32_t i = 0; i < rot->dim; i++)
		x[i] = f32_from_bits(f32_bits(x[i]) ^ rot->sign[round][i]);
}

void kvp_rotate_paley(const struct rotation *rot, int transpose, float *x)
{
	const float *sign = rot->paley_sign[!!transpose];
	uint32_t p = rot->dim / rot->order;
	float out[36];

	/* Every sum runs over ascending j; products with +-1 are exact. */
	for (uint32_t b = 0; b < p; b++) {
		for (uint32_t i = 0; i < rot->order; i++)
			out[i] = sign[i] * x[b];
		for (uint32_t j = 1; j < rot->order; j++)
			for (uint32_t i = 0; i < rot->order; i++)
				out[i] += sign[j * rot->order + i] * x[j * p + b];
		for (uint32_t i = 0; i < rot->order; i++)
			x[i * p + b] = out[i];
	}
}

static void hadamard(const struct rotation *rot, int transpose, float *x)
{
	uint32_t p = rot->dim / rot->order;

	for (uint32_t h = 1; h < p; h *= 2) {
		for (uint32_t i = 0; i < rot->dim; i += 2 * h) {
			for (uint32_t j = i; j < i + h; j++) {
				float a = x[j], b = x[j + h];

				x[j] = a + b;
				x[j + h] = a - b;
			}
		}
	}
	if (rot->order > 1)
		kvp_rotate_paley(rot, transpose, x);
}

static void rescale(const struct rotation *rot, float *x)
{
	for (uint32_t i = 0; i < rot->dim; i++)
		x[i] *= rot->rescale;
}

/* y = M x or M^T x: every sum runs over ascending j, beginning with +0. */
static void dense(const struct rotation *rot, int transpose, float *x)
{
	uint32_t d = rot->dim;
	float y[KVP_PLANE_DIM_MAX];

	for (uint32_t i = 0; i < d; i++)
		y[i] = 0.0f;
	for (uint32_t j = 0; j < d; j++) {
		for (uint32_t i = 0; i < d; i++) {
			size_t at = transpose ? (size_t)j * d + i : (size_t)i * d + j;

			y[i] += rot->haar[at] * x[j];
		}
	}
	memcpy(x, y, d * sizeof *x);
	rescale(rot, x);
}

void kvp_rotate_fwd(const struct rotation *rot, float *x)
{
	if (rot->kind == KVP_ROT_HAAR) {
		dense(rot, 0, x);
		return;
	}
	for (uint32_t r = 0; r < rot->rounds; r++) {
		flip(rot, r, x);
		hadamard(rot, 0, x);
		if (r == 1)
			rescale(rot, x);
	}
}

void kvp_rotate_inv(const struct rotation *rot, float *x)
{
	if (rot->kind == KVP_ROT_HAAR) {
		dense(rot, 1, x);
		return;
	}
	for (uint32_t r = rot->rounds; r-- > 0;) {
		hadamard(rot, 1, x);
		flip(rot, r, x);
		if (r == 1)
			rescale(rot, x);
	}
}

void kvp_rotate_c(const struct rotation *rot, int inverse, float *x)
{
	if (inverse)
		kvp_rotate_inv(rot, x);
	else
		kvp_rotate_fwd(rot, x);
}

/*
 * Natural logarithm of 0 < x <= 1 from nothing but exactly rounded operations, so that every machine
 * makes the same matrix: x = m 2^e, log m = 2 artanh((m - 1) / (m + 1)).
 */
double kvp_log_portable(double x)
{
	double e = 0.0, t, t2, sum = 0.0;

	while (x < 0.70710678118654752) {
		x *= 2.0;
		e -= 1.0;
	}
	t = (x - 1.0) / (x + 1.0);
	t2 = t * t;
	for (int i = 31; i > 0; i -= 2)
		sum = sum * t2 + 1.0 / i;
	return 2.0 * t * sum + e * 0.69314718055994531;
}

/* Marsaglia's polar method over SplitMix64; one of each pair is thrown away. */
static double gauss(uint64_t seed, uint64_t *n)
{
	double u, v, s;

	do {
		u = (double)(splitmix(seed, (*n)++) >> 11) * 0x1p-52 - 1.0;
		v = (double)(splitmix(seed, (*n)++) >> 11) * 0x1p-52 - 1.0;
		s = u * u + v * v;
	} while (s >= 1.0 || s == 0.0);
	return u * sqrt(-2.0 * kvp_log_portable(s) / s);
}

/* Gram-Schmidt on the rows, every row twice: QR with a positive diagonal, hence Haar. */
static void orthonormalize(uint32_t dim, double *m)
{
	for (uint32_t i = 0; i < dim; i++) {
		double *row = m + (size_t)i * dim;
		double norm = 0.0;

		for (uint32_t pass = 0; pass < 2; pass++) {
			for (uint32_t j = 0; j < i; j++) {
				const double *base = m + (size_t)j * dim;
				double dot = 0.0;

				for (uint32_t c = 0; c < dim; c++)
					dot += row[c] * base[c];
				for (uint32_t c = 0; c < dim; c++)
					row[c] -= dot * base[c];
			}
		}
		for (uint32_t c = 0; c < dim; c++)
			norm += row[c] * row[c];
		norm = sqrt(norm);
		for (uint32_t c = 0; c < dim; c++)
			row[c] /= norm;
	}
}

int kvp_haar_init(
	uint32_t dim, uint64_t seed, double *work, float *ret_matrix, struct kvp_calib *ret_calib)
{
	size_t n = (size_t)dim * dim;
	uint64_t digest = UINT64_C(0xcbf29ce484222325);
	uint64_t draws = 0;

	if (dim < KVP_PLANE_DIM_MIN || dim > KVP_PLANE_DIM_MAX || dim % 8)
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		work[i] = gauss(seed, &draws);
	orthonormalize(dim, work);
	for (size_t i = 0; i < n; i++) {
		uint32_t u;

		ret_matrix[i] = (float)work[i];
		u = f32_bits(ret_matrix[i]);
		for (int b = 0; b < 32; b += 8)
			digest = (digest ^ (u >> b & 0xffu)) * UINT64_C(0x100000001b3);
	}
	*ret_calib = (struct kvp_calib){
		.dim = dim,
		.haar = ret_matrix,
		.digest = digest ? digest : 1,
	};
	return 0;
}
