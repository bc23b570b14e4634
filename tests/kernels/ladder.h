/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instruction sets that there are kernels for, of the processors that this is compiled for: from
 * reference C upwards, each with all those below it. A test walks those that the machine has and names
 * those that it has not.
 */
#ifndef KVP_TESTS_KERNELS_LADDER_H
#define KVP_TESTS_KERNELS_LADDER_H

#include "kernels/kvp_codec.h"

static const struct ladder {
	const char *name;
	unsigned int mask;
} ladder[] = {
	{ "c", 0 },
#ifdef __aarch64__
	{ "neon", KVP_CPU_NEON },
#else
	{ "avx2", KVP_CPU_AVX2 },
	{ "avx512", KVP_CPU_AVX2 | KVP_CPU_AVX512 },
	{ "vbmi", KVP_CPU_AVX2 | KVP_CPU_AVX512 | KVP_CPU_VBMI },
#endif
};
#define LADDER (sizeof ladder / sizeof *ladder)

static inline int ladder_reaches(size_t step)
{
	return (ladder[step].mask & ~kvp_cpu_detect()) == 0;
}

#endif
