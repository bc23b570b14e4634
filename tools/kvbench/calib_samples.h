/* SPDX-License-Identifier: Apache-2.0 */
/* What a calibration is made of: keys before RoPE and values of each layer, and what an error in them costs. */
#ifndef KVBENCH_CALIB_SAMPLES_H
#define KVBENCH_CALIB_SAMPLES_H

#include "kernels/kvp_calib.h"

#include <stddef.h>

struct samples {
	struct kvp_calib_info info; /* but for joint and round */
	size_t tokens;
	float **x;       /* [2 * layers], K and V of each layer: [tokens][heads * dim] */
	double **metric; /* [2 * layers]: [heads][dim][dim] */
};

/*
 * Of a model that kvrun runs, over windows of up to 1,024 bytes spread over the texts. Of a .safetensors
 * file: `layers.N.k` and `layers.N.v` [tokens][heads][dim], at positions from 0 on; `layers.N.q`
 * [tokens][query heads][dim] and `layers.N.o` [hidden][query heads * dim], both or neither. Without these an
 * error costs the same in every direction, and as much in keys as in values of their size. Messages on
 * stderr; negative errno. kvbench_samples_done() in any case.
 */
int kvbench_samples_of_model(const char *path, const char *const *texts, size_t n_texts,
	size_t tokens, struct samples *ret);
int kvbench_samples_of_dump(
	const char *path, const struct kvp_rope_desc *rope, size_t tokens, struct samples *ret);
void kvbench_samples_done(struct samples *s);

#endif
