/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of what lies on a GPU. The daemon launches no kernel there, so it is read, in pieces and by a stream of its
 * own, into one of two pinned buffers while the other is summed. That takes a share of what the copy engine towards
 * DRAM has: whoever asks for sums asks for few at a time.
 */
#include <errno.h>

#include "daemon/device/cuda.h"
#include "shm/kvp_catalog.h"

#define EVENT_FLAGS (CU_EVENT_BLOCKING | CU_EVENT_NO_TIMING)

int kvpd_cuda_sum_start(struct kvpd_driver *d)
{
	d->summer.summing = kvp_summing_new();
	return d->summer.summing ? 0 : -ENOMEM;
}

void kvpd_cuda_sum_stop(struct kvpd_driver *d)
{
	struct cuda_summer *s = &d->summer;

	for (uint32_t i = 0; i < CUDA_SUMS; i++) {
		if (s->event[i])
			(void)d->cu.cuEventDestroy_v2(s->event[i]);
		if (s->buf[i])
			(void)d->cu.cuMemFreeHost(s->buf[i]);
	}
	if (s->stream)
		(void)d->cu.cuStreamDestroy_v2(s->stream);
	s->summing = kvp_summing_free(s->summing);
}

/* What could not be had is asked for again with the next sum. */
static int ready(struct kvpd_driver *d)
{
	struct cuda_summer *s = &d->summer;
	int r = 0;

	if (!s->current)
		r = kvpd_cuda_check(d, d->cu.cuCtxSetCurrent(d->ctx));
	s->current = r == 0;
	if (r == 0 && !s->stream)
		r = kvpd_cuda_check(d, d->cu.cuStreamCreate(&s->stream, CU_STREAM_ASYNC));
	for (uint32_t i = 0; r == 0 && i < CUDA_SUMS; i++) {
		if (!s->event[i])
			r = kvpd_cuda_check(d, d->cu.cuEventCreate(&s->event[i], EVENT_FLAGS));
		if (r == 0 && !s->buf[i])
			r = kvpd_cuda_check(d, d->cu.cuMemHostAlloc(&s->buf[i], CUDA_SUM_BYTES, 0));
	}
	return r;
}

static int read_piece(struct kvpd_driver *d, uint32_t i, uint64_t from, uint64_t bytes)
{
	struct cuda_summer *s = &d->summer;
	int r = kvpd_cuda_check(d, d->cu.cuMemcpyDtoHAsync_v2(s->buf[i], from, bytes, s->stream));

	return r == 0 ? kvpd_cuda_check(d, d->cu.cuEventRecord(s->event[i], s->stream)) : r;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

int kvpd_cuda_seg_sum(
	struct kvpd_driver *d, uint32_t id, uint64_t off, uint64_t bytes, uint64_t *ret_sum)
{
	const uint64_t from = d->seg[id].addr + off;
	struct cuda_summer *s = &d->summer;
	int r;

	if (!d->seg[id].addr)
		return -EOPNOTSUPP;
	r = ready(d);
	if (r < 0)
		return r;
	kvp_summing_begin(s->summing);
	r = read_piece(d, 0, from, least(bytes, CUDA_SUM_BYTES));
	for (uint64_t at = 0, i = 0; r == 0 && at < bytes; at += CUDA_SUM_BYTES, i ^= 1) {
		const uint64_t next = at + CUDA_SUM_BYTES;

		if (next < bytes)
			r = read_piece(d, (uint32_t)i ^ 1, from + next,
				least(bytes - next, CUDA_SUM_BYTES));
		if (r == 0)
			r = kvpd_cuda_check(d, d->cu.cuEventSynchronize(s->event[i]));
		if (r == 0)
			kvp_summing_add(s->summing, s->buf[i], least(bytes - at, CUDA_SUM_BYTES));
	}
	if (r < 0) {
		/* Nothing comes into the buffers any more when the next sum is asked for. */
		kvpd_cuda_settle(d, s->stream);
		return r;
	}
	*ret_sum = kvp_summing_end(s->summing);
	return 0;
}
