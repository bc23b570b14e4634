// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/kvp_cuda_prims.h"
#include "tests/cudasim/hazards.h"

KVP_DEV const uint32_t *in_word(const struct hazard_params &p, uint32_t i)
{
	return reinterpret_cast<const uint32_t *>(p.in) + i;
}
KVP_DEV uint32_t *out_word(const struct hazard_params &p, uint32_t i)
{
	return reinterpret_cast<uint32_t *>(p.out) + i;
}

KVP_KERNEL(hz_reverse, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	kvp_sts_u32(4 * t, kvp_ldg_u32(in_word(p, t)));
	if (p.fix)
		kvp_sync();
	kvp_stg_u32(out_word(p, t), kvp_lds_u32(4 * (63 - t)));
}

KVP_KERNEL(hz_reverse_warp, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid(), partner = p.fix ? t ^ 31 : 63 - t;

	kvp_sts_u32(4 * t, kvp_ldg_u32(in_word(p, t)));
	kvp_syncwarp();
	kvp_stg_u32(out_word(p, t), kvp_lds_u32(4 * partner));
}

KVP_KERNEL(hz_overwrite, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid(), v;

	kvp_sts_u32(4 * t, t);
	kvp_sync();
	v = kvp_lds_u32(4 * ((t + 1) % 64));
	if (p.fix)
		kvp_sync();
	kvp_sts_u32(4 * t, v);
	kvp_sync();
	kvp_stg_u32(out_word(p, t), kvp_lds_u32(4 * t));
}

KVP_KERNEL(hz_same_word, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	if (p.fix)
		kvp_sts_u8(t, t);
	else
		kvp_sts_u32(4 * (t / 2), t);
}

KVP_KERNEL(hz_uninit, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	if (t < 63 || p.fix)
		kvp_sts_u32(4 * t, t);
	kvp_sync();
	kvp_stg_u32(out_word(p, t), kvp_lds_u32(4 * (63 - t)));
}

KVP_KERNEL(hz_async_early, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	if (t < 16) {
		kvp_cp_async16(16 * t, in_word(p, 4 * t), 16);
		kvp_cp_async_commit();
		if (p.fix)
			kvp_cp_async_wait(0);
		kvp_stg_v4(out_word(p, 4 * t), kvp_lds_v4(16 * t));
		kvp_cp_async_wait(0);
	}
}

KVP_KERNEL(hz_async_others, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	if (t < 16)
		kvp_cp_async16(16 * t, in_word(p, 4 * t), 16);
	kvp_cp_async_commit();
	kvp_cp_async_wait(0);
	if (p.fix)
		kvp_sync();
	kvp_stg_u32(out_word(p, t), kvp_lds_u32(4 * t));
}

KVP_KERNEL(hz_async_groups, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	if (t < 8) {
		kvp_cp_async16(32 * t, in_word(p, 8 * t), 16);
		kvp_cp_async_commit();
		kvp_cp_async16(32 * t + 16, in_word(p, 8 * t + 4), 16);
		kvp_cp_async_commit();
		kvp_cp_async_wait(1);
		kvp_stg_v4(out_word(p, 8 * t), kvp_lds_v4(32 * t + (p.fix ? 0 : 16)));
		kvp_cp_async_wait(0);
		kvp_stg_v4(out_word(p, 8 * t + 4), kvp_lds_v4(32 * t + 16));
	}
}

KVP_KERNEL(hz_async_left, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	kvp_cp_async16(16 * t, in_word(p, 4 * (t % 16)), t % 17);
	kvp_cp_async_commit();
	if (t != 5 || p.fix)
		kvp_cp_async_wait(0);
}

KVP_KERNEL(hz_align_shared, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	kvp_sts_u32(4 * t, t);
	kvp_sync();
	if (t == 0)
		kvp_stg_v4(out_word(p, 0), kvp_lds_v4(p.fix ? 16 : 8));
}

KVP_KERNEL(hz_align_global, hazard_params, 64, 1)
{
	if (kvp_tid() == 0)
		kvp_stg_v4(out_word(p, 0), kvp_ldg_v4(in_word(p, p.fix ? 4 : 1)));
}

KVP_KERNEL(hz_align_async, hazard_params, 64, 1)
{
	if (kvp_tid() == 0)
		kvp_cp_async16(0, in_word(p, p.fix ? 4 : 2), 8);
	kvp_cp_async_commit();
	kvp_cp_async_wait(0);
}

KVP_KERNEL(hz_bounds_shared, hazard_params, 64, 1)
{
	kvp_sts_u8(p.fix ? 4032 + kvp_tid() : 4033 + kvp_tid(), 1);
}

KVP_KERNEL(hz_bounds_global, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	kvp_stg_u32(out_word(p, t), kvp_ldg_u32(in_word(p, p.fix ? t : t + 1)));
}

KVP_KERNEL(hz_read_only, hazard_params, 64, 1)
{
	kvp_stg_u32(reinterpret_cast<uint32_t *>(p.fix ? p.out : p.in) + kvp_tid(), 1);
}

KVP_KERNEL(hz_global_race, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid() / 2 + 32 * kvp_block_x();

	if (kvp_tid() % 2 == 0)
		kvp_stg_u32(out_word(p, p.fix ? t : t % 63), t);
}

KVP_KERNEL(hz_small, hazard_params, 32, 1)
{
	kvp_stg_u32(out_word(p, kvp_tid()), 1);
}

KVP_KERNEL(hz_barrier_some, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid();

	if (t < 32 || p.fix)
		kvp_sync();
	kvp_stg_u32(out_word(p, t), t);
}

KVP_KERNEL(hz_shuffle_some, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid(), v = t;

	if (t != 7 || p.fix)
		v = kvp_shfl_xor_u32(v, 1);
	kvp_stg_u32(out_word(p, t), v);
}

/* Which thread of a pair came first cannot be seen by a right kernel. This one is right as far as
 * the hardware goes and looks through global memory of its own thread only. */
KVP_KERNEL(hz_order, hazard_params, 64, 1)
{
	uint32_t t = kvp_tid(), v = t;

	for (uint32_t i = 1; i < 32; i *= 2)
		v += kvp_shfl_xor_u32(v, i);
	kvp_sts_u32(4 * t, v);
	kvp_sync();
	kvp_stg_u32(out_word(p, t), v + kvp_lds_u32(4 * (t ^ 32)));
}

/* in: a[16][16] then b[16][8], both fp16, row-major; out: c[16][8] fp32. One warp. */
KVP_KERNEL(hz_mma, hazard_params, 32, 1)
{
	uint32_t lane = kvp_tid(), g = lane / 4, q = lane % 4, a[4], b[2];
	const uint16_t *h = reinterpret_cast<const uint16_t *>(p.in);
	float *out = reinterpret_cast<float *>(p.out);
	float c[4] = { 0, 0, 0, 0 };

	for (uint32_t i = 0; i < 4; i++)
		a[i] = kvp_ldg_u32(h + 16 * (g + 8 * (i & 1)) + 2 * q + 8 * (i >> 1));
	for (uint32_t i = 0; i < 2; i++) {
		const uint16_t *at = h + 256 + 8 * (2 * q + 8 * i) + g;

		b[i] = kvp_ldg_u16(at) | kvp_ldg_u16(at + 8) << 16;
	}
	kvp_mma_f16(c, a, b);
	for (uint32_t i = 0; i < 4; i++)
		kvp_stg_f32(out + 8 * (g + 8 * (i >> 1)) + 2 * q + (i & 1), c[i]);
}
