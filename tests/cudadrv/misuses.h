/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Misuses of CUDA's driver, each with a corrected twin. They run in children (child.h) and say what the simulated
 * driver answers: test_driver.c has it answer so and report them, tests/gpu/answers.c puts the same to a real one.
 */
#ifndef TESTS_CUDADRV_MISUSES_H
#define TESTS_CUDADRV_MISUSES_H

#include "tests/cudadrv/cudadrv.h"

struct misuse {
	enum cudadrv_report kind; /* what it is reported as */
	const char *name;
	void (*wrong)(void);
	void (*right)(void);
};
extern const struct misuse misuses[];
extern const uint32_t n_misuses;

/* What is asked of a driver otherwise, in silence. */
struct question {
	const char *name;
	void (*ask)(void);
};
extern const struct question questions[];
extern const uint32_t n_questions;

#endif
