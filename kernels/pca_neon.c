/* SPDX-License-Identifier: Apache-2.0 */
/* The transforms of `pca` with twice the rows of pca.c at a time, for a file of 32 registers: its bytes. */
#define LANES  4u
#define TOKENS 4u
#define VECS   4u
#include "kernels/pca.h"
#include "kernels/pca_rows.h"

#include <arm_neon.h>

#define PART 32u /* channels of both tokens, for which there are registers */

/* Sums of four channels to channels, or without a scale as they are. */
static inline void store_sums(int32x4_t sum, const float *mean, const float *scale, float *y)
{
	vst1q_f32(y,
		scale ? vaddq_f32(vld1q_f32(mean), vmulq_f32(vld1q_f32(scale), vcvtq_f32_s32(sum)))
		      : vreinterpretq_f32_s32(sum));
}

static __attribute__((noinline)) void build_pair(const struct pca_pair *pair, const int16_t *axes,
	const float *mean, const float *scale, uint32_t stride, float *y)
{
	int32x4_t sum[2][PART / 4];

	UNROLL for (uint32_t i = 0; i < PART / 4; i++) sum[0][i] = sum[1][i] = vdupq_n_s32(0);
	for (uint32_t k = 0; k < pair->n; k++) {
		const int16_t *axis = axes + pair->at[k] * PCA_ALIGN;

		UNROLL for (uint32_t i = 0; i < PART / 8; i++)
		{
			const int16x8_t x = vld1q_s16(axis + 8 * i);

			UNROLL for (uint32_t t = 0; t < 2; t++)
			{
				const int16_t v = pair->value[t][k];

				sum[t][2 * i] = vmlal_n_s16(sum[t][2 * i], vget_low_s16(x), v);
				sum[t][2 * i + 1] =
					vmlal_n_s16(sum[t][2 * i + 1], vget_high_s16(x), v);
			}
		}
	}
	UNROLL for (uint32_t i = 0; i < PART / 4; i++) UNROLL for (uint32_t t = 0; t < 2; t++)
		store_sums(sum[t][i], mean + 4 * i, scale ? scale + 4 * i : NULL,
			y + t * stride + 4 * i);
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

void kvp_pca_slots_neon(struct dsp *dsp)
{
	dsp->pca_project = project;
	dsp->pca_build = build;
}
