/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion between layouts: strided copies of runs of 16-byte pieces, and runs one by one. */
#include "kernels/cuda/row.h"

/* Grid: x over the pieces of one box, y over boxes. */
KVP_KERNEL(kvp_cu_copy, kvp_cuda_copy, 256, 1)
{
	uint32_t run = p.run_bytes / 16, i;
	uint64_t pieces = (uint64_t)p.n[0] * p.n[1] * p.n[2] * run;
	uint64_t src = kvp_ldg_u64(at_const(p.src, (int64_t)kvp_block_y() * 8));
	uint64_t dst = kvp_ldg_u64(at_const(p.dst, (int64_t)kvp_block_y() * 8));

	for (uint64_t at_piece = (uint64_t)kvp_block_x() * kvp_threads() + kvp_tid();
		at_piece < pieces; at_piece += (uint64_t)kvp_grid_x() * kvp_threads()) {
		uint64_t rest = at_piece / run;
		int64_t from = p.src_offset + (int64_t)(at_piece % run) * 16;
		int64_t to = p.dst_offset + (int64_t)(at_piece % run) * 16;

		for (i = 3; i-- > 0;) {
			from += (int64_t)(rest % p.n[i]) * p.src_stride[i];
			to += (int64_t)(rest % p.n[i]) * p.dst_stride[i];
			rest /= p.n[i];
		}
		kvp_stg_v4(at(dst, to), kvp_ldg_v4(at_const(src, from)));
	}
}

#define AHEAD 4 /* loads of a thread that are under way together */

/* Grid: x over the pieces of the longest run, y over runs. */
KVP_KERNEL(kvp_cu_runs, kvp_cuda_runs, 256, 1)
{
	uint64_t src = p.from[kvp_block_y()], dst = p.to[kvp_block_y()];
	uint32_t pieces = p.bytes[kvp_block_y()] / 16, step = kvp_grid_x() * kvp_threads();

	for (uint64_t i = (uint64_t)kvp_block_x() * kvp_threads() + kvp_tid(); i < pieces;
		i += (uint64_t)AHEAD * step) {
		struct kvp_v4 v[AHEAD];

		KVP_UNROLL
		for (int k = 0; k < AHEAD; k++)
			if (i + (uint64_t)k * step < pieces)
				v[k] = kvp_ldg_v4(
					at_const(src, (int64_t)(i + (uint64_t)k * step) * 16));
		KVP_UNROLL
		for (int k = 0; k < AHEAD; k++)
			if (i + (uint64_t)k * step < pieces)
				kvp_stg_v4(at(dst, (int64_t)(i + (uint64_t)k * step) * 16), v[k]);
	}
}
