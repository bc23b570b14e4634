/* SPDX-License-Identifier: Apache-2.0 */
/* An engine beside a real daemon with memory on the GPU: what the tests of that share. Ends the program if it fails. */
#ifndef TESTS_LIBCLIENT_GPU_LIVE_H
#define TESTS_LIBCLIENT_GPU_LIVE_H

#include "libclient/kvpool_cuda.h"
#include "tests/libclient/gpu.h"
#include "tests/libclient/live.h"

#define BLOCK_BYTES (T * TOKEN_BYTES)

/* A daemon that has just been started does not know its devices yet: this waits until it does. */
struct kvp_cuda *gpu_live_open(struct engine *e);
/* A slot there; a first extent is made, mapped and acknowledged meanwhile. */
struct kvp_grant *gpu_live_reserve(struct engine *e, struct kvp_cuda *cuda);
/*
 * The engine's first blocks, computed from memory of its own at `from` on the device into slots there, and
 * published when its stream has come there.
 */
void gpu_live_compute(
	struct gpu *g, struct engine *e, struct kvp_cuda *cuda, uint64_t from, uint32_t blocks);

#endif
