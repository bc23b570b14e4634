/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of kvquant in the registers of one instruction set: the bytes of nuq_c.c. */
#include "kernels/nuq_rows.h"

void kvp_nuq_slots_neon(struct dsp *dsp)
{
	dsp->nuq_encode = encode;
	dsp->nuq_decode = decode;
}
