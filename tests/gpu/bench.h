/* SPDX-License-Identifier: Apache-2.0 */
/* Speed, and graphs, on a GPU. Both print rows of the report and return 0, or -1 after a line that
 * says what failed. */
#ifndef TESTS_GPU_BENCH_H
#define TESTS_GPU_BENCH_H

#include "tests/gpu/gpu_device.h"

/* A decode step (encode and store new keys and values, rotate, attend, merge, mass) of several
 * codecs, captured once and replayed on changing data: every output equals, bit by bit, what direct
 * launches give. */
int graph_replays(struct gpu *g, struct rng *r);

/* D-066: attention of a thousand shapes, captured and replayed, bit by bit what direct launches give. */
int graph_shapes(struct gpu *g, struct rng *r);

/* Encode and decode in GB/s of raw fp16 beside a device-to-device copy of the same bytes. */
int bench_codecs(struct gpu *g, struct rng *r);

/* Attention in tokens of context per second beside native fp16. */
int bench_attention(struct gpu *g, struct rng *r);

/* One launch of native attention after the other for so long, and how its time spreads: to be run beside
 * what else uses the device. */
int bench_decode(struct gpu *g, struct rng *r, double seconds);

/* Plain copies of pinned memory both ways for so long: what the link itself takes from others. */
int bench_copies(struct gpu *g, double seconds);

#endif
