/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibrations from samples: what is to be known of a layer's keys or values, and the axes, step and
 * tables that follow. Not for hostile samples; sizes are the caller's to check.
 */
#ifndef KVBENCH_CALIB_FIT_H
#define KVBENCH_CALIB_FIT_H

#include "kernels/kvp_calib.h"

#include <stddef.h>
#include <stdint.h>

/* K or V of one layer. */
struct fit_plane {
	uint32_t layer, kind;
	size_t tokens;
	const float *x; /* [tokens][heads * dim]; keys before RoPE */
	/*
	 * What an error costs, for each head: e^T metric e, [heads][dim][dim], symmetric. The same unit
	 * for all planes of a job, since they get one step.
	 */
	const double *metric;
};

struct fit_job {
	struct kvp_calib_info info;
	const struct fit_plane *plane; /* in the order of a file */
	size_t n;
	double bits; /* an element that payloads should take, on average */
};

struct fit_result {
	void *file; /* the caller's, to be freed */
	size_t bytes;
	double bits[2]; /* an element, of keys and values, over the samples */
	double step;
	uint32_t rank_min, rank_max, tables_max;
};

/* -EINVAL: too few samples (twice a transform's width), or numbers that no file may have; -ENOMEM. */
int kvbench_fit(const struct fit_job *job, struct fit_result *ret);

/* Eigenvalues, descending, and rows of eigenvectors of a symmetric a [n][n], which is destroyed. */
void kvbench_eigen(uint32_t n, double *a, double *values, double *vectors);

#endif
