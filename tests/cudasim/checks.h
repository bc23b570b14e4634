/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every CUDA kernel against reference C, on random cases. The device is behind a small table, so
 * that the same checks run on the model (test_codec.c, test_attend.c) and on a GPU (tests/gpu).
 *
 * A check draws one case from *rng, runs it and returns 0, or -1 with the case and the difference
 * in device->error. The same state of rng gives the same case.
 */
#ifndef CUDASIM_CHECKS_H
#define CUDASIM_CHECKS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/kvp_cuda_kernels.h"

struct device {
	/* Device memory, aligned to 256 bytes, holding `init`; 0 if there is none. Kernels are to
	 * write it only if `writable`. Freed by reset(). */
	uint64_t (*alloc)(struct device *d, const void *init, size_t bytes, int writable);
	int (*read)(struct device *d, uint64_t from, void *to, size_t bytes);
	/* Shapes and runs a kernel, waits for it. 0, or -1 with the reason in error. */
	int (*launch)(struct device *d, const struct kvp_cuda_kernel *k, const void *params);
	void (*reset)(struct device *d);
	const struct kvp_kernels *ref; /* reference C, and only that */
	char error[512];
};

/* splitmix64 */
struct rng {
	uint64_t state;
	uint32_t turn; /* number of the case: what has to be covered takes turns */
};
uint64_t rng_u64(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n); /* n > 0 */
float rng_normal(struct rng *r);

/* kvp_cuda_codec_init(), with the calibration on the device if there has to be one. */
int device_codec_init(struct device *d, uint32_t codec, const struct kvp_plane *p, uint64_t seed,
	struct kvp_cuda_codec *ret);

/* Whole pages: encode, compare every byte of page and guard, decode, compare. */
int check_pages(struct device *d, struct rng *r);
/* Tokens scattered over pages: store, compare, gather, compare. */
int check_slots(struct device *d, struct rng *r);
/* Payloads of random bytes under a right header decode to what reference C makes of them. */
int check_hostile(struct device *d, struct rng *r);
/* Strided copies. */
int check_copy(struct device *d, struct rng *r);
int check_runs(struct device *d, struct rng *r);
/* Attention over one or two tiers, and the merge, against softmax in double precision. */
int check_attend(struct device *d, struct rng *r);

#endif
