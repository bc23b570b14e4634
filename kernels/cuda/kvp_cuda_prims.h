/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything a kernel of this folder may ask of the hardware.
 *
 * The .cu files of this folder are written in the common subset of C and C++ and touch threads,
 * memory and special instructions only through this header. Compiled by nvcc the functions below
 * are single instructions. Compiled by a plain C++ compiler they are declarations that a model of
 * the machine (tests/cudasim) defines, so that the very same kernels run, and are checked, on a
 * CPU.
 *
 * Conventions:
 *  - a thread block is one-dimensional; its size is a multiple of 32;
 *  - shared memory is one array of bytes per block, addressed by byte offset;
 *  - every load and store is aligned to its own size (16 for v4), as the hardware demands;
 *  - warp collectives (shfl, ballot, syncwarp, transpose, mma) are reached by all 32 lanes;
 *  - all arithmetic that decides stored bytes is plain C (+ - * on float) or one of the _rn
 *    functions: with -fmad=false and no -ftz both compute the same IEEE results as the CPU does.
 *    kvp_fma, kvp_max, kvp_exp2 and kvp_log2 are for attention only, where 1e-3 is the promise.
 */
#ifndef KVP_CUDA_PRIMS_H
#define KVP_CUDA_PRIMS_H

#include <stddef.h>
#include <stdint.h>

/* Four and two words that travel together. */
struct kvp_v4 {
	uint32_t w[4];
};
struct kvp_v2 {
	uint32_t w[2];
};

#if defined(__CUDACC__)

#define KVP_DEV          static __device__ __forceinline__
#define KVP_UNROLL       _Pragma("unroll")
#define KVP_PRAGMA(x)    _Pragma(#x)
#define KVP_UNROLL_BY(n) KVP_PRAGMA(unroll n)

/* A kernel with one parameter struct, visible in its body as `p`, launched with `threads` threads
 * per block; `blocks` is how many of them should fit one multiprocessor. */
#define KVP_KERNEL(name, type, threads, blocks)                       \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
		name(const __grid_constant__ struct type p)

extern __shared__ __align__(16) unsigned char kvp_smem[];

/* Where the thread is. */
KVP_DEV uint32_t kvp_tid(void)
{
	return threadIdx.x;
}
KVP_DEV uint32_t kvp_threads(void)
{
	return blockDim.x;
}
KVP_DEV uint32_t kvp_block_x(void)
{
	return blockIdx.x;
}
KVP_DEV uint32_t kvp_block_y(void)
{
	return blockIdx.y;
}
KVP_DEV uint32_t kvp_block_z(void)
{
	return blockIdx.z;
}
KVP_DEV uint32_t kvp_grid_x(void)
{
	return gridDim.x;
}

/* Block barrier and warp barrier; both order shared memory. */
KVP_DEV void kvp_sync(void)
{
	__syncthreads();
}
KVP_DEV void kvp_syncwarp(void)
{
	__syncwarp();
}

/* The value of lane (own lane ^ mask), of lane `lane`. They order no memory. */
KVP_DEV float kvp_shfl_xor_f32(float v, uint32_t mask)
{
	return __shfl_xor_sync(0xffffffffu, v, (int)mask);
}
KVP_DEV uint32_t kvp_shfl_xor_u32(uint32_t v, uint32_t mask)
{
	return __shfl_xor_sync(0xffffffffu, v, (int)mask);
}
KVP_DEV uint32_t kvp_shfl_u32(uint32_t v, uint32_t lane)
{
	return __shfl_sync(0xffffffffu, v, (int)lane);
}

/* Bit i: lane i's predicate is not 0. */
KVP_DEV uint32_t kvp_ballot(int predicate)
{
	return __ballot_sync(0xffffffffu, predicate);
}

/* Shared memory, by byte offset. */
KVP_DEV uint32_t kvp_lds_u8(uint32_t at)
{
	return kvp_smem[at];
}
KVP_DEV uint32_t kvp_lds_u16(uint32_t at)
{
	return *(const uint16_t *)(kvp_smem + at);
}
KVP_DEV uint32_t kvp_lds_u32(uint32_t at)
{
	return *(const uint32_t *)(kvp_smem + at);
}
KVP_DEV float kvp_lds_f32(uint32_t at)
{
	return *(const float *)(kvp_smem + at);
}
KVP_DEV struct kvp_v2 kvp_lds_v2(uint32_t at)
{
	uint2 x = *(const uint2 *)(kvp_smem + at);
	struct kvp_v2 r = { { x.x, x.y } };

	return r;
}
KVP_DEV struct kvp_v4 kvp_lds_v4(uint32_t at)
{
	uint4 x = *(const uint4 *)(kvp_smem + at);
	struct kvp_v4 r = { { x.x, x.y, x.z, x.w } };

	return r;
}
KVP_DEV void kvp_sts_u8(uint32_t at, uint32_t v)
{
	kvp_smem[at] = (unsigned char)v;
}
KVP_DEV void kvp_sts_u16(uint32_t at, uint32_t v)
{
	*(uint16_t *)(kvp_smem + at) = (uint16_t)v;
}
KVP_DEV void kvp_sts_u32(uint32_t at, uint32_t v)
{
	*(uint32_t *)(kvp_smem + at) = v;
}
KVP_DEV void kvp_sts_f32(uint32_t at, float v)
{
	*(float *)(kvp_smem + at) = v;
}

/* Global memory. */
KVP_DEV uint32_t kvp_ldg_u8(const void *p)
{
	return *(const uint8_t *)p;
}
KVP_DEV uint32_t kvp_ldg_u16(const void *p)
{
	return *(const uint16_t *)p;
}
KVP_DEV uint32_t kvp_ldg_u32(const void *p)
{
	return *(const uint32_t *)p;
}
KVP_DEV uint64_t kvp_ldg_u64(const void *p)
{
	return *(const uint64_t *)p;
}
KVP_DEV float kvp_ldg_f32(const void *p)
{
	return *(const float *)p;
}
KVP_DEV struct kvp_v4 kvp_ldg_v4(const void *p)
{
	uint4 x = *(const uint4 *)p;
	struct kvp_v4 r = { { x.x, x.y, x.z, x.w } };

	return r;
}
KVP_DEV void kvp_stg_u8(void *p, uint32_t v)
{
	*(uint8_t *)p = (uint8_t)v;
}
KVP_DEV void kvp_stg_u16(void *p, uint32_t v)
{
	*(uint16_t *)p = (uint16_t)v;
}
KVP_DEV void kvp_stg_u32(void *p, uint32_t v)
{
	*(uint32_t *)p = v;
}
KVP_DEV void kvp_stg_f32(void *p, float v)
{
	*(float *)p = v;
}
KVP_DEV void kvp_stg_v4(void *p, struct kvp_v4 v)
{
	*(uint4 *)p = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
}

/*
 * Asynchronous copy of 16 bytes from global to shared memory, both 16-byte aligned; only the first
 * `bytes` (0..16) are read, the rest arrive as zeros. The destination is undefined until this
 * thread has waited, and other threads may read it only after a barrier that follows the wait.
 */
KVP_DEV void kvp_cp_async16(uint32_t at, const void *from, uint32_t bytes)
{
	uint32_t to = (uint32_t)__cvta_generic_to_shared(kvp_smem + at);

	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :
		     : "r"(to), "l"(from), "r"(bytes)
		     : "memory");
}
/* Closes the group of the copies issued since the last commit. */
KVP_DEV void kvp_cp_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Returns when at most n (a literal) of this thread's groups are still under way. */
#define kvp_cp_async_wait(n) asm volatile("cp.async.wait_group " #n ";" ::: "memory")

/* Arithmetic: correctly rounded, whatever the compiler's flags. */
KVP_DEV float kvp_div_rn(float a, float b)
{
	return __fdiv_rn(a, b);
}
KVP_DEV float kvp_sqrt_rn(float a)
{
	return __fsqrt_rn(a);
}
/* Round to nearest even to an integer value, as rintf does. */
KVP_DEV float kvp_rint(float a)
{
	return rintf(a);
}
KVP_DEV float kvp_fma(float a, float b, float c)
{
	return __fmaf_rn(a, b, c);
}
/* The larger one; of a number and a NaN the number. */
KVP_DEV float kvp_max(float a, float b)
{
	return fmaxf(a, b);
}
/* 2^a and log2(a), about 22 good bits. */
KVP_DEV float kvp_exp2(float a)
{
	float r;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
	return r;
}
KVP_DEV float kvp_log2(float a)
{
	float r;

	asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
	return r;
}

KVP_DEV uint32_t kvp_f32_bits(float a)
{
	return __float_as_uint(a);
}
KVP_DEV float kvp_bits_f32(uint32_t a)
{
	return __uint_as_float(a);
}

/* fp16 <-> fp32, round to nearest even, subnormals kept. A NaN stays a NaN; its payload may not. */
KVP_DEV uint32_t kvp_f32_to_f16_rn(float a)
{
	uint16_t h;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(a));
	return h;
}
KVP_DEV float kvp_f16_to_f32(uint32_t a)
{
	float r;

	asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((uint16_t)a));
	return r;
}
/* Two fp16 (bf16) in one word, `lo` in the low half. */
KVP_DEV uint32_t kvp_pack_f16(float lo, float hi)
{
	uint32_t r;

	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}
KVP_DEV uint32_t kvp_pack_bf16(float lo, float hi)
{
	uint32_t r;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}
/* Pairs of fp16 in one word: a*b and a*b+c, each rounded once. */
KVP_DEV uint32_t kvp_h2_mul(uint32_t a, uint32_t b)
{
	uint32_t r;

	asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
	return r;
}
KVP_DEV uint32_t kvp_h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t r;

	asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
	return r;
}
/* Byte i of the result is byte (sel >> 4i & 7) of b:a; a holds bytes 0..3. */
KVP_DEV uint32_t kvp_prmt(uint32_t a, uint32_t b, uint32_t sel)
{
	return __byte_perm(a, b, sel);
}

/*
 * A matrix of 8 x 8 numbers of 16 bits, transposed. Lane 4 r + c has columns 2 c (low half) and
 * 2 c + 1 of row r, before and after.
 */
KVP_DEV uint32_t kvp_transpose(uint32_t a)
{
	uint32_t r;

	asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(a));
	return r;
}

/*
 * c[16x8] += a[16x16] * b[16x8], fp32 sums of fp16 (bf16) products, spread over the warp. With
 * g = lane / 4 and q = lane % 4:
 *   a[0], a[1], a[2], a[3]: rows g, g+8, g, g+8; columns 2q, 2q+1 (and +8 in a[2], a[3])
 *   b[0], b[1]:             column g; rows 2q, 2q+1 (and +8 in b[1])
 *   c[0], c[1] / c[2], c[3]: row g / g+8; columns 2q, 2q+1
 */
KVP_DEV void kvp_mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
	    "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
KVP_DEV void kvp_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	    "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else /* a plain C++ compiler: the model defines these, with the contracts above */

#define KVP_DEV static inline
#define KVP_UNROLL
#define KVP_UNROLL_BY(n)

#define KVP_KERNEL(name, type, threads, blocks)                         \
	static void name##_body(const struct type &p);                  \
	extern "C" void name(const void *params);                       \
	extern "C" void name(const void *params)                        \
	{                                                               \
		kvp_launched(threads);                                  \
		name##_body(*static_cast<const struct type *>(params)); \
	}                                                               \
	static void name##_body(const struct type &p)

extern "C" {
/* A kernel was compiled for at most so many threads per block. */
void kvp_launched(uint32_t threads_max);

uint32_t kvp_tid(void);
uint32_t kvp_threads(void);
uint32_t kvp_block_x(void);
uint32_t kvp_block_y(void);
uint32_t kvp_block_z(void);
uint32_t kvp_grid_x(void);

void kvp_sync(void);
void kvp_syncwarp(void);
float kvp_shfl_xor_f32(float v, uint32_t mask);
uint32_t kvp_shfl_xor_u32(uint32_t v, uint32_t mask);
uint32_t kvp_shfl_u32(uint32_t v, uint32_t lane);
uint32_t kvp_ballot(int predicate);

uint32_t kvp_lds_u8(uint32_t at);
uint32_t kvp_lds_u16(uint32_t at);
uint32_t kvp_lds_u32(uint32_t at);
float kvp_lds_f32(uint32_t at);
struct kvp_v2 kvp_lds_v2(uint32_t at);
struct kvp_v4 kvp_lds_v4(uint32_t at);
void kvp_sts_u8(uint32_t at, uint32_t v);
void kvp_sts_u16(uint32_t at, uint32_t v);
void kvp_sts_u32(uint32_t at, uint32_t v);
void kvp_sts_f32(uint32_t at, float v);

uint32_t kvp_ldg_u8(const void *p);
uint32_t kvp_ldg_u16(const void *p);
uint32_t kvp_ldg_u32(const void *p);
uint64_t kvp_ldg_u64(const void *p);
float kvp_ldg_f32(const void *p);
struct kvp_v4 kvp_ldg_v4(const void *p);
void kvp_stg_u8(void *p, uint32_t v);
void kvp_stg_u16(void *p, uint32_t v);
void kvp_stg_u32(void *p, uint32_t v);
void kvp_stg_f32(void *p, float v);
void kvp_stg_v4(void *p, struct kvp_v4 v);

void kvp_cp_async16(uint32_t at, const void *from, uint32_t bytes);
void kvp_cp_async_commit(void);
void kvp_cp_async_wait(uint32_t n);

float kvp_div_rn(float a, float b);
float kvp_sqrt_rn(float a);
float kvp_rint(float a);
float kvp_fma(float a, float b, float c);
float kvp_max(float a, float b);
float kvp_exp2(float a);
float kvp_log2(float a);
uint32_t kvp_f32_bits(float a);
float kvp_bits_f32(uint32_t a);
uint32_t kvp_f32_to_f16_rn(float a);
float kvp_f16_to_f32(uint32_t a);
uint32_t kvp_pack_f16(float lo, float hi);
uint32_t kvp_pack_bf16(float lo, float hi);
uint32_t kvp_h2_mul(uint32_t a, uint32_t b);
uint32_t kvp_h2_fma(uint32_t a, uint32_t b, uint32_t c);
uint32_t kvp_prmt(uint32_t a, uint32_t b, uint32_t sel);

uint32_t kvp_transpose(uint32_t a);
void kvp_mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2]);
void kvp_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]);
}

#endif
#endif
