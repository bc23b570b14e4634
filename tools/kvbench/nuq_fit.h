/* SPDX-License-Identifier: Apache-2.0 */
/* Calibrations of kvquant from samples: each channel's usual range, and codes by weighted k-means. */
#ifndef KVBENCH_NUQ_FIT_H
#define KVBENCH_NUQ_FIT_H

#include "tools/kvbench/calib_samples.h"

struct nuq_result {
	void *file; /* the caller's, to be freed */
	size_t bytes;
	double outside; /* share of keys' elements outside their channel's range */
};

/*
 * All forms of every layer. A channel's range leaves out one sample in 200 on either side, signposts are
 * those of least error, weighted as the samples' metric and the range of the element have it. Keys as they
 * stand are those of positions 0 to 1,023, over and over. -EINVAL: fewer than 200 tokens, or numbers that no
 * file may have; -ENOMEM.
 */
int kvbench_nuq_fit(const struct samples *s, struct nuq_result *ret);

#endif
