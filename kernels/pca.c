/* SPDX-License-Identifier: Apache-2.0 */
/* The transforms of `pca` in reference C, by vectors that every machine has, or that compilers split. */
#define LANES  4u
#define TOKENS 4u
#include "kernels/pca.h"
#include "kernels/pca_rows.h"

void kvp_pca_project_c(
	const struct kvp_pca *pca, const struct pca_unit *u, float *x, int32_t *q, float *z)
{
	project(pca, u, x, q, z);
}

void kvp_pca_build_c(const struct kvp_pca *pca, const struct pca_unit *u,
	const struct pca_list *list, uint32_t n, float *y)
{
	build(pca, u, list, n, y);
}
