/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both storms share, the one on a device of host memory (storm.c) and the one of engines on a simulated GPU
 * (storm_cuda.c): prompts, options, and what may not be left of anybody.
 */
#ifndef TESTS_DEVICE_STORM_H
#define TESTS_DEVICE_STORM_H

#include "tests/e2e/e2e.h"

#define T        16u
#define BLOCKS   10u
#define SHARED   6u /* blocks that the prompts of a family share */
#define FAMILIES 5u
#define PROMPTS  400u
#define CLIENTS  4u
#define KEPT     4u /* prompts that one client holds all the time */
#define WAIT_MS  20000u

void storm_prompt(uint32_t p, uint32_t *tokens);
uint64_t storm_digest(const uint32_t *tokens, uint32_t n);

uint64_t storm_option(int argc, char **argv, const char *name, uint64_t otherwise);

/* Blocks that something keeps although there is no client any more, and no copy should take so long. */
uint32_t storm_left(const char *socket);

/* The storm on the simulated driver, and one of its clients; the exit status. */
int storm_cuda(int argc, char **argv);

#endif
