/* SPDX-License-Identifier: Apache-2.0 */
/* calib_file SEED LAYERS HEADS DIM JOINT RANK TABLES SHIFT REACH STEP PAIRING: a calibration of random axes. */
#include "tests/kernels/calib_make.h"
#include "tests/kernels/inputs.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	struct calib_make m = { 0 };
	uint32_t *const field[] = { &m.layers, &m.heads, &m.dim, &m.joint, &m.rank, &m.tables,
		&m.shift, &m.reach };
	size_t bytes;
	void *file;

	if (argc != 12)
		return 2;
	inputs_reseed((uint64_t)atoi(argv[1]));
	for (int i = 0; i < 8; i++)
		*field[i] = (uint32_t)atoi(argv[2 + i]);
	m.step = strtof(argv[10], NULL);
	m.pairing = (uint32_t)atoi(argv[11]);
	file = calib_make(&m, &bytes);
	fwrite(file, 1, bytes, stdout);
	free(file);
	return 0;
}
