/* SPDX-License-Identifier: Apache-2.0 */
/* What the processor can do, and the table of kernels for it. */
#include "kernels/dsp.h"

#include <errno.h>
#include <stdlib.h>
#ifdef KVP_HAVE_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEAF7_TILE     (1u << 24) /* edx: tiles; and what they multiply */
#define LEAF7_INT8     (1u << 25)
#define LEAF7_BF16     (1u << 22)
#define OSXSAVE        (1u << 27)
#define XCR0_TILES     (3u << 17)
#define ASK_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_DATA      18

/* Whether processor and kernel know tiles of such numbers; not whether this process may use them. */
static int tiles_there(unsigned int kind)
{
	unsigned int a, b, c, d, low, high;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE) ||
		!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & LEAF7_TILE) || !(d & kind))
		return 0;
	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (low & XCR0_TILES) == XCR0_TILES;
}

/* Zen 4 takes registers of 16 floats in two steps, and products and sums of them in nearly three. */
static int splits_registers(void)
{
	return __builtin_cpu_is("amdfam19h");
}

static int tiles_granted(void)
{
	return syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
}
#endif

unsigned int kvp_cpu_detect(void)
{
	unsigned int cpu = 0;

#ifdef KVP_HAVE_X86
	unsigned int a, b, c, d;

	__builtin_cpu_init();
	/* No compiler's builtin knows F16C by name everywhere. */
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		__get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C))
		cpu |= KVP_CPU_AVX2;
	if (cpu && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
		__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("bmi2"))
		cpu |= KVP_CPU_AVX512;
	if ((cpu & KVP_CPU_AVX512) && __builtin_cpu_supports("avx512vbmi"))
		cpu |= KVP_CPU_VBMI;
	if (cpu & KVP_CPU_VBMI)
		cpu |= KVP_CPU_BYTES;
	if ((cpu & KVP_CPU_VBMI) && tiles_there(LEAF7_INT8))
		cpu |= KVP_CPU_TILES;
	if ((cpu & KVP_CPU_VBMI) && tiles_there(LEAF7_BF16))
		cpu |= KVP_CPU_TILES_BF16;
#endif
#ifdef KVP_HAVE_NEON
	cpu |= KVP_CPU_NEON; /* every 64-bit ARM has it */
#endif
	return cpu;
}

int kvp_kernels_new(unsigned int cpu_mask, struct kvp_kernels **ret_kernels)
{
	struct kvp_kernels *k = calloc(1, sizeof *k);

	if (!k)
		return -ENOMEM;
	k->cpu = kvp_cpu_detect() & cpu_mask;
	if (!(k->cpu & KVP_CPU_AVX2))
		k->cpu &= KVP_CPU_NEON;
	if (!(k->cpu & KVP_CPU_AVX512))
		k->cpu &= KVP_CPU_NEON | KVP_CPU_AVX2;
	if (!(k->cpu & KVP_CPU_VBMI))
		k->cpu &= ~(KVP_CPU_BYTES | KVP_CPU_TILES | KVP_CPU_TILES_BF16);
	for (uint32_t f = 0; f < KVP_FAMILY_MAX_; f++)
		if (kvp_codec_row(f))
			k->codec[f] = *kvp_codec_row(f);
	kvp_dsp_init_c(&k->dsp);
	kvp_attend_init_c(k);
#ifdef KVP_HAVE_X86
	if (k->cpu & KVP_CPU_AVX2) {
		kvp_dsp_init_avx2(&k->dsp);
		kvp_rans_slots_avx2(&k->dsp);
		kvp_rope_slots_avx2(&k->dsp);
		kvp_pca_slots_avx2(&k->dsp);
		kvp_nuq_slots_avx2(&k->dsp);
		kvp_squat_slots_avx2(&k->dsp);
		kvp_lost_slots_avx2(&k->dsp);
		kvp_attend_init_avx2(k);
	}
	if (k->cpu & KVP_CPU_AVX512) {
		kvp_dsp_init_avx512(&k->dsp);
		kvp_rans_slots_avx512(&k->dsp);
		kvp_rope_slots_avx512(&k->dsp);
		kvp_pca_slots_avx512(&k->dsp);
		if (splits_registers())
			kvp_pca_slots_avx512vl(&k->dsp);
		kvp_nuq_slots_avx512(&k->dsp);
		kvp_squat_slots_avx512(&k->dsp);
		kvp_lost_slots_avx512(&k->dsp);
		kvp_attend_init_avx512(k);
	}
	if (k->cpu & KVP_CPU_VBMI)
		kvp_attend_init_vbmi(k);
	if (k->cpu & KVP_CPU_BYTES) {
		kvp_attend_init_bytes(k);
		kvp_attend_init_any(k);
	}
	if ((k->cpu & (KVP_CPU_TILES | KVP_CPU_TILES_BF16)) && tiles_granted()) {
		if (k->cpu & KVP_CPU_TILES)
			kvp_attend_init_tiles(k);
		if (k->cpu & KVP_CPU_TILES_BF16)
			kvp_attend_init_pairs(k);
	}
#endif
#ifdef KVP_HAVE_NEON
	if (k->cpu & KVP_CPU_NEON) {
		kvp_dsp_init_neon(&k->dsp);
		kvp_split_slots_neon(&k->dsp);
		kvp_rope_slots_neon(&k->dsp);
		kvp_pca_slots_neon(&k->dsp);
		kvp_nuq_slots_neon(&k->dsp);
		kvp_squat_slots_neon(&k->dsp);
		kvp_lost_slots_neon(&k->dsp);
		kvp_attend_init_neon(k);
	}
#endif
	*ret_kernels = k;
	return 0;
}

struct kvp_kernels *kvp_kernels_free(struct kvp_kernels *k)
{
	free(k);
	return NULL;
}
