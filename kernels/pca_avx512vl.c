/* SPDX-License-Identifier: Apache-2.0 */
/* The forward transform of `pca` with 8 floats to each of 32 registers: the bytes of pca.c. */
#define LANES  8u
#define TOKENS 4u
#define VECS   4u
#include "kernels/pca.h"
#include "kernels/pca_rows.h"

void kvp_pca_slots_avx512vl(struct dsp *dsp)
{
	dsp->pca_project = project;
}
