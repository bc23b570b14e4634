/* SPDX-License-Identifier: Apache-2.0 */
/* The transforms of `pca` with 8 floats to a register: the bytes of pca.c. */
#define LANES  8u
#define TOKENS 4u
#define VECS   2u
#include "kernels/pca.h"
#include "kernels/pca_rows.h"

void kvp_pca_slots_avx2(struct dsp *dsp)
{
	dsp->pca_project = project;
	dsp->pca_build = build;
}
