/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine with a GPU for tests of kvpool_cuda.h, and the engine's side of it: a context, a stream, memory
 * of its own. The machine is simulated unless the environment has KVP_TEST_GPU=real: then it is this one, and
 * the driver reports no misuse. Everything here ends the program if it fails.
 */
#ifndef TESTS_LIBCLIENT_GPU_H
#define TESTS_LIBCLIENT_GPU_H

#include <stdbool.h>

#include "gpu/kvp_cu.h"
#include "tests/cudadrv/cudadrv.h"

struct gpu {
	struct cudadrv *sim; /* NULL: a real one */
	struct kvp_cu cu;
	struct CUstream_st *stream;
	uint64_t *gate, gate_there; /* gpu_hold()'s */
	char folder[64];
};

/*
 * The machine that the environment names, which is somebody else's, or one of its own, whose folder goes with
 * gpu_end(); and a context there.
 */
void gpu_begin(struct gpu *g, const struct cudadrv_config *config);
/* No misuse was reported. Returns the exit status. */
int gpu_end(struct gpu *g);

uint64_t gpu_alloc(struct gpu *g, uint64_t bytes);
void gpu_write(struct gpu *g, uint64_t to, const void *from, uint64_t bytes);
/* After all that the stream has. */
void gpu_read(struct gpu *g, void *to, uint64_t from, uint64_t bytes);
void gpu_sync(struct gpu *g);
/* What is enqueued to the stream from now on, and copies from the device, wait for gpu_go(). */
void gpu_hold(struct gpu *g);
void gpu_go(struct gpu *g);

bool gpu_is_real(void);
/* All calls of the simulated driver so far, of those that a call on the hot path must not make. */
uint64_t gpu_slow_calls(struct gpu *g);

#endif
