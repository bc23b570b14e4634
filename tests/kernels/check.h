/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of check_kernels share. Private to them. */
#ifndef KVP_TESTS_KERNELS_CHECK_H
#define KVP_TESTS_KERNELS_CHECK_H

#include "kernels/dsp.h"
#include "tests/kernels/ladder.h"

/* Of every set of the ladder; NULL: not on this machine. */
extern struct kvp_kernels *check_isa[LADDER];

/* Counts it; a failure is printed, with the seed. input: what was special about it, or "". */
void check_verdict(int ok, const char *what, const char *codec, const struct kvp_plane *p,
	const char *set, const char *input);

/* Bytes of reference C, which are to be the same on machines of every kind. */
void check_digest(const void *data, size_t n);

/* check_slots.c: what no codec of check.c is made of, or does not alone. */
void check_slots(void);

#endif
