/* SPDX-License-Identifier: Apache-2.0 */
/* The one power of two that a plane's magnitudes share; docs/formats.md, "Exponent". */
#include "kernels/codec_impl.h"

/* What max_of_most() leaves out; see docs/formats.md, "Exponent". */
#define OUTLIER_ROWS 16u
#define OUTLIER_LOG2 16u

/* One power of two for the plane, 0 unless its largest magnitude is below 2^-4 or from 2^10 up. */
static int32_t exponent_for(uint32_t max)
{
	int32_t e = (int32_t)(max >> 23) - 127;

	if (!max || (e >= -4 && e <= 9))
		return 0;
	return e - 2 < KVP_EXPONENT_MIN ? KVP_EXPONENT_MIN : e - 2;
}

/*
 * The largest magnitude but for outliers: at most one row of OUTLIER_ROWS, and of a few rows one,
 * whose magnitudes are 2^OUTLIER_LOG2 times those of the next and more. Such an element is no key
 * and no value; to let it have a share in the exponent would turn all others into zeros.
 */
static uint32_t max_of_most(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, struct kvp_raw_const src, uint32_t max)
{
	uint32_t rows[256] = { 0 }; /* by the exponent field of their largest magnitude */
	uint32_t n, few, e = max >> 23, louder = 0;

	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t t = 0; t < lay->coded; t++) {
			struct rows_in in = kvp_rows_in(p, src, h, t, 1, 0);

			rows[k->dsp.amax(&in) >> 23]++;
		}
	}
	n = p->heads * lay->coded - rows[0]; /* those that are zero, or nearly, do not count */
	few = n < 2 * OUTLIER_ROWS ? n > 1 : n / OUTLIER_ROWS;
	while (e && louder + rows[e] <= few)
		louder += rows[e--];
	if (e + OUTLIER_LOG2 >= max >> 23)
		return max;
	for (e += OUTLIER_LOG2; e && !rows[e]; e--)
		;
	return e << 23;
}

int32_t kvp_plane_exponent(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, struct kvp_raw_const src)
{
	uint32_t max = 0;

	for (uint32_t h = 0; h < p->heads; h++) {
		struct rows_in in = kvp_rows_in(p, src, h, 0, lay->coded, 0);
		uint32_t m = k->dsp.amax(&in);

		max = m > max ? m : max;
	}
	if (exponent_for(max) > 0)
		max = max_of_most(k, p, lay, src, max);
	return exponent_for(max);
}

int kvp_exponent_looks_usual(
	const struct kvp_kernels *k, const struct kvp_plane *p, struct kvp_raw_const src)
{
	struct rows_in first = kvp_rows_in(p, src, 0, 0, 1, 0);

	return exponent_for(k->dsp.amax(&first)) == 0;
}
