/* SPDX-License-Identifier: Apache-2.0 */
/* A device with its worker and areas to copy between, and what such copies are measured against. */
#ifndef KVBENCH_BENCH_DEVICE_H
#define KVBENCH_BENCH_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/device/device.h"

struct bench_gpu;

struct bench_device {
	struct kvpd_device *device;
	int event;
	uint32_t over; /* pieces of work done */
	int failed;
	uint64_t region; /* bytes of each area */
	/* [KVPD_TO_DEVICE]: what goes to the device, and where it goes; [KVPD_TO_HOST]: the other way. */
	uint32_t seg[2], host[2];
	char *seg_addr[2], *host_addr[2]; /* no seg_addr on a GPU */
	struct kvpd_device_copy *copies;
	struct bench_gpu *gpu; /* NULL: another driver than cuda */
	double map_us;         /* what importing and mapping a segment took there */
};

/*
 * One block on demand, on an idle device and on one that copies in bulk both ways, and how much those
 * copies move. Prints; 0 or negative errno.
 */
int bench_device_demand(struct bench_device *w, const uint64_t *block, int n, bool json);
/* Copies both ways in bulk, and nothing else, for as long. Prints what they moved. */
int bench_device_load(struct bench_device *w, uint64_t seconds, bool json);

/* ---- a GPU's own figures, of this process ---- */

/* Pinned memory and device memory of `bytes` each way. -ENODEV, -ENOMEM: said on stderr. */
int bench_gpu_open(uint64_t bytes, struct bench_gpu **ret_gpu);
struct bench_gpu *bench_gpu_free(struct bench_gpu *gpu); /* NULL is harmless; returns NULL */
/* Plain asynchronous copies of all of it, one each way. GB/s; negative: failed. */
double bench_gpu_gbps(struct bench_gpu *gpu, uint32_t ways);
/* Takes a segment by its descriptor, which stays the caller's, for bench_gpu_same(); the time it took. */
int bench_gpu_map(struct bench_gpu *gpu, uint32_t i, int fd, uint64_t bytes, double *ret_us);
/* Is what lies in the segment this? -EIO: no. */
int bench_gpu_same(struct bench_gpu *gpu, uint32_t i, const void *bytes, uint64_t n);
/* Registers `bytes` of shared memory, mapped for reading alone, as the library does. GB/s; negative: refused. */
double bench_gpu_pin_gbps(struct bench_gpu *gpu, uint64_t bytes);

#endif
