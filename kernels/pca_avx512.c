/* SPDX-License-Identifier: Apache-2.0 */
/* The transforms of `pca` with 16 floats to a register: the bytes of pca.c. */
#define LANES  16u
#define TOKENS 8u
#include "kernels/pca.h"
#include "kernels/pca_rows.h"

void kvp_pca_slots_avx512(struct dsp *dsp)
{
	dsp->pca_project = project;
	dsp->pca_build = build;
}
