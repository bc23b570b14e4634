/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence's blocks in the memory of a GPU, attended over there. Cached blocks are leased and read where
 * they lie on the daemon's device, having been copied there if need be; computed ones are written into slots
 * on it and published from there, so that another process reads the very same memory. A block for which there
 * is no room lies in memory of this process's own, in the same form.
 *
 * Blocks have a space of their own, whose layout is that of the kernels: they are shared with engines that
 * attend in this way alone.
 */
#ifndef KVR_KV_CUDA_H
#define KVR_KV_CUDA_H

#include "tools/kvrun/kvr_error.h"
#include "tools/kvrun/kvr_kv.h"
#include "tools/kvrun/kvr_kv_pool.h"
#include "tools/kvrun/kvr_model.h"

struct kvr_cuda_opts {
	uint32_t ordinal;   /* of the GPU, as the driver numbers what this process sees */
	int off;            /* memory of this process alone */
	const char *socket; /* as kvr_pool_opts has them */
	int store;
	int reuse_tail;
};

/*
 * Without a daemon, or with one that has no memory on this GPU, this succeeds all the same. -ENODEV: no
 * driver, no such GPU; -ENOTSUP: built without the kernels; -EINVAL; -ENOMEM; -EIO: with a message.
 */
int kvr_kv_cuda_new(const struct kvr_model *model, const struct kvr_geom *geom,
	const struct kvr_cuda_opts *opts, struct kvr_error *err, struct kvr_kv **ret_kv);

/*
 * `kv` must come from kvr_kv_cuda_new(), as for all below. As kvr_kv_pool_report(): blocks_read are those
 * that are attended over where they lie, all of them on the device.
 */
void kvr_kv_cuda_report(struct kvr_kv *kv, struct kvr_pool_report *ret_report);
/* The first failure of the device in words, "": there was none. */
const char *kvr_kv_cuda_why(struct kvr_kv *kv);

#endif
