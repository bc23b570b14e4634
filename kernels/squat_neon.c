/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of squat in the registers of one instruction set: the bits of squat.c. */
#include "kernels/squat_rows.h"

void kvp_squat_slots_neon(struct dsp *dsp)
{
	dsp->squat_load = load;
	dsp->squat_bend = bend;
	dsp->squat_see = see;
	dsp->squat_place = place;
}
