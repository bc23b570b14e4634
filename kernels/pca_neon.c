/* SPDX-License-Identifier: Apache-2.0 */
/* The transforms of `pca` with twice the rows of pca.c at a time, for a file of 32 registers: its bytes. */
#define LANES  4u
#define TOKENS 4u
#define VECS   4u
#include "kernels/pca.h"
#include "kernels/pca_rows.h"

void kvp_pca_slots_neon(struct dsp *dsp)
{
	dsp->pca_project = project;
	dsp->pca_build = build;
}
