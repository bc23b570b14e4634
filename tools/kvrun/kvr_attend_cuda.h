/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on a GPU over pages that lie anywhere in its memory, by the kernels of kernels/cuda; private to
 * the store that has the pages.
 *
 * A page is one block: [layer][K, V], each a plane [kv_head][token][channel] at a multiple of 64 bytes, as
 * those kernels read it.
 */
#ifndef KVR_ATTEND_CUDA_H
#define KVR_ATTEND_CUDA_H

#include "tools/kvrun/kvr_config.h"
#include "tools/kvrun/kvr_gpu.h"
#include "tools/kvrun/kvr_kv.h"

struct kvr_attend_cuda {
	struct kvr_gpu *gpu;
	struct kvr_geom geom;
	uint32_t heads, kv_heads, head_dim;
	uint32_t pages;                 /* of the longest sequence */
	struct kvp_cuda_codec codec[2]; /* of K, of V */
	const struct kvp_cuda_kernel *store, *attend, *merge;
	uint64_t plane_bytes;
	uint64_t *table_host; /* [pages], pinned: as it is, or will be, on the device */
	uint64_t table;
	/* what goes up and comes down for a run of queries, pinned; and their like on the device */
	void *up_host, *out_host;
	uint64_t up, out;
	uint64_t partial;
};

/*
 * Chooses the kernels and allocates, for runs of up to a block of queries. -EINVAL: the kernels do not take
 * such heads, with a message in `err`; -ENOMEM and the like: gpu->why has it. Done accepts a failed one.
 */
int kvr_attend_cuda_init(struct kvr_attend_cuda *a, struct kvr_gpu *gpu,
	const struct kvr_config *config, const struct kvr_geom *geom, struct kvr_error *err);
void kvr_attend_cuda_done(struct kvr_attend_cuda *a);

uint64_t kvr_attend_cuda_page_bytes(const struct kvr_attend_cuda *a);

/* From now on page `index` of the sequence lies at `at`, which is aligned to 64 bytes. */
int kvr_attend_cuda_page(struct kvr_attend_cuda *a, uint32_t index, uint64_t at);

/*
 * Puts K and V [n][kv_heads * head_dim] of positions first..first + n, which are in one page, into that
 * page's `layer`, rounded to the stored type; then causal attention of q [n][heads * head_dim] over all
 * pages up to there, into `out`, which may be q. Waits for it.
 */
int kvr_attend_cuda_run(struct kvr_attend_cuda *a, uint32_t layer, uint32_t first, uint32_t n,
	const float *q, const float *k, const float *v, float *out);

#endif
