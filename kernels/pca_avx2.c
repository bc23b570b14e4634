/* SPDX-License-Identifier: Apache-2.0 */
/* The transforms of `pca` with 8 floats to a register: the bytes of pca.c. */
#define LANES  8u
#define TOKENS 4u
#define VECS   2u
#include "kernels/pca.h"
#include "kernels/pca_rows.h"
#include "kernels/x86_avx2.h"

#define PART 32u /* channels of both tokens, for which there are registers */

INLINE __m256i words(const int16_t *p)
{
	return _mm256_load_si256((const __m256i *)(const void *)p);
}

/* The next two values of a token. */
INLINE __m256i two_of(const int16_t *value)
{
	int32_t v;

	memcpy(&v, value, sizeof v);
	return _mm256_set1_epi32(v);
}

/*
 * Sums of 16 channels, in the order in which words of two rows are interleaved, to channels, or without a
 * scale as they are.
 */
INLINE void store_sums(__m256i low, __m256i high, const float *mean, const float *scale, float *y)
{
	const __m256i sum[2] = { _mm256_permute2x128_si256(low, high, 0x20),
		_mm256_permute2x128_si256(low, high, 0x31) };

	for (uint32_t i = 0; i < 2; i++)
		if (!scale)
			_mm256_storeu_si256((__m256i *)(void *)(y + 8 * i), sum[i]);
		else
			_mm256_storeu_ps(
				y + 8 * i, _mm256_add_ps(_mm256_loadu_ps(mean + 8 * i),
						   _mm256_mul_ps(_mm256_loadu_ps(scale + 8 * i),
							   _mm256_cvtepi32_ps(sum[i]))));
}

/* Two rows, interleaved, serve two tokens. */
static __attribute__((noinline)) void build_pair(const struct pca_pair *pair, const int16_t *axes,
	const float *mean, const float *scale, uint32_t stride, float *y)
{
	__m256i sum[2][PART / 8];

	UNROLL for (uint32_t i = 0; i < PART / 8; i++) sum[0][i] = sum[1][i] =
		_mm256_setzero_si256();
	for (uint32_t k = 0; k < pair->n; k += 2) {
		const int16_t *a = axes + pair->at[k] * PCA_ALIGN,
			      *b = axes + pair->at[k + 1] * PCA_ALIGN;
		const __m256i v[2] = { two_of(pair->value[0] + k), two_of(pair->value[1] + k) };

		UNROLL for (uint32_t i = 0; i < PART / 16; i++)
		{
			const __m256i x = words(a + 16 * i), z = words(b + 16 * i);
			const __m256i low = _mm256_unpacklo_epi16(x, z),
				      high = _mm256_unpackhi_epi16(x, z);

			UNROLL for (uint32_t t = 0; t < 2; t++)
			{
				sum[t][2 * i] = _mm256_add_epi32(
					sum[t][2 * i], _mm256_madd_epi16(low, v[t]));
				sum[t][2 * i + 1] = _mm256_add_epi32(
					sum[t][2 * i + 1], _mm256_madd_epi16(high, v[t]));
			}
		}
	}
	UNROLL for (uint32_t i = 0; i < PART / 16; i++) UNROLL for (uint32_t t = 0; t < 2; t++)
		store_sums(sum[t][2 * i], sum[t][2 * i + 1], mean + 16 * i,
			scale ? scale + 16 * i : NULL, y + t * stride + 16 * i);
}

static void build(const struct kvp_pca *pca, const struct pca_unit *u, const struct pca_pair *pair,
	uint32_t n, float *y)
{
	const uint32_t stride = pca->width_stride;

	for (uint32_t i = 0; i < stride; i += PART)
		for (uint32_t t = 0; t < n; t += 2)
			if (!(pair[t / 2].wide & ~PCA_SUMS))
				build_pair(&pair[t / 2],
					u->inverse + (size_t)(i / PCA_ALIGN * u->rank * PCA_ALIGN) +
						i % PCA_ALIGN,
					u->mean + i, pair[t / 2].wide ? NULL : u->scale + i, stride,
					y + (size_t)t * stride + i);
}

void kvp_pca_slots_avx2(struct dsp *dsp)
{
	dsp->pca_project = project;
	dsp->pca_build = build;
}
