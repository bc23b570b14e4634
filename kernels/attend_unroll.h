/* SPDX-License-Identifier: Apache-2.0 */
/* For attention on x86: loops whose arrays are to be registers. Sanitized, they would compile for
 * minutes. */
#ifndef KVP_KERNELS_ATTEND_UNROLL_H
#define KVP_KERNELS_ATTEND_UNROLL_H

#ifndef KVP_SPECIALIZE
#define KVP_SPECIALIZE 1
#endif
#if KVP_SPECIALIZE
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL
#endif

#endif
