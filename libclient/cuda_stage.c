/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned memory of the library's own, through which bytes go that the device cannot reach where they lie.
 * One ring: a call takes room at its head, enqueues, and ends its batch with an event; room comes back at
 * the tail, in order, when a stream has come to that event. Bytes for slots are copied on by the thread.
 */
#include "libclient/cuda.h"

#include <string.h>

#define ALIGN 256u

int stage_open(struct kvp_cuda *cuda, uint64_t bytes)
{
	void *at = NULL;
	int r = cuda_error(cuda, cuda->cu.cuMemHostAlloc(&at, bytes, CU_REG_PORTABLE));

	if (r < 0)
		return r;
	cuda->stage = at;
	cuda->stage_bytes = bytes;
	for (uint32_t i = 0; r == 0 && i < CUDA_BATCHES; i++)
		r = cuda_error(
			cuda, cuda->cu.cuEventCreate(&cuda->batches[i].event, CU_EVENT_NO_TIMING));
	return r;
}

static void batch_over(struct kvp_cuda *cuda, struct batch *b)
{
	struct kvp_client *c = cuda->client;

	if (!b->att)
		return;
	pthread_mutex_lock(&c->ring_lock);
	b->att->refs--;
	pthread_mutex_unlock(&c->ring_lock);
	b->att = NULL;
}

void stage_close(struct kvp_cuda *cuda)
{
	while (cuda->batch_tail != cuda->batch_head)
		batch_over(cuda, &cuda->batches[cuda->batch_tail++ % CUDA_BATCHES]);
	for (uint32_t i = 0; i < CUDA_BATCHES; i++)
		if (cuda->batches[i].event)
			(void)cuda->cu.cuEventDestroy_v2(cuda->batches[i].event);
	if (cuda->stage)
		(void)cuda->cu.cuMemFreeHost(cuda->stage);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* stage_lock. Has a stream come to the end of the oldest batch? */
static int oldest_done(struct kvp_cuda *cuda)
{
	int error;

	if (cuda->batch_tail == cuda->batch_head || kvp_load_relaxed(&cuda->lost))
		return 0;
	error = cuda->cu.cuEventQuery(cuda->batches[cuda->batch_tail % CUDA_BATCHES].event);
	if (error != CU_OK && error != CU_NOT_READY)
		(void)cuda_error(cuda, error);
	return error == CU_OK;
}

/* Is somebody told of its end? The thread alone takes such a one from the ring. */
static int is_followed(const struct batch *b)
{
	return b->landings || b->line;
}

/* stage_lock. What has gone to the device needs no copying on: its room is free. */
static void reclaim(struct kvp_cuda *cuda)
{
	while (cuda->batch_tail != cuda->batch_head) {
		struct batch *b = &cuda->batches[cuda->batch_tail % CUDA_BATCHES];

		if (is_followed(b) || !oldest_done(cuda))
			return;
		cuda->stage_tail = b->end;
		cuda->batch_tail++;
	}
}

/* stage_lock. Nothing has room: there is no end to go round. Marks that have none begin there as well. */
static void rewind_ring(struct kvp_cuda *cuda)
{
	for (uint64_t i = cuda->batch_tail; i != cuda->batch_head; i++)
		cuda->batches[i % CUDA_BATCHES].end = 0;
	cuda->stage_head = cuda->stage_begun = cuda->stage_tail = 0;
}

int stage_take(struct kvp_cuda *cuda, uint64_t bytes, uint8_t **ret_at)
{
	uint64_t at, skip;

	if (!bytes)
		bytes = 1;
	bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	if (bytes > cuda->stage_bytes)
		return -E2BIG;
	at = cuda->stage_head % cuda->stage_bytes;
	skip = bytes > cuda->stage_bytes - at ? cuda->stage_bytes - at : 0;
	if (cuda->stage_head + skip + bytes - cuda->stage_tail > cuda->stage_bytes) {
		reclaim(cuda);
		if (cuda->stage_head == cuda->stage_tail) {
			rewind_ring(cuda);
			skip = 0;
		}
	}
	if (cuda->stage_head + skip + bytes - cuda->stage_tail > cuda->stage_bytes)
		return -EAGAIN;
	cuda->stage_head += skip;
	*ret_at = cuda->stage + cuda->stage_head % cuda->stage_bytes;
	cuda->stage_head += bytes;
	return 0;
}

/* ---- batches --------------------------------------------------------------------------------- */

int stage_batch_free(struct kvp_cuda *cuda, uint32_t landings)
{
	for (uint32_t i = 0; i < 2; i++) {
		if (cuda->batch_head - cuda->batch_tail < CUDA_BATCHES &&
			cuda->landing_head - cuda->landing_tail + landings <= CUDA_LANDINGS)
			return 1;
		reclaim(cuda);
	}
	return 0;
}

void stage_land(struct kvp_cuda *cuda, void *dst, const void *src, uint64_t bytes)
{
	cuda->landings[cuda->landing_head++ % CUDA_LANDINGS] = (struct landing){ dst, src, bytes };
}

int stage_end(struct kvp_cuda *cuda, struct CUstream_st *stream, struct attachment *att,
	struct kvp_timeline *line, uint64_t *ret_value)
{
	struct batch *b = &cuda->batches[cuda->batch_head % CUDA_BATCHES];
	struct kvp_client *c = cuda->client;
	int r = cuda_error(cuda, cuda->cu.cuEventRecord(b->event, stream));

	if (r < 0) {
		/* Nobody will ever know when its room is free. */
		kvp_store_relaxed(&cuda->lost, 1);
		return r;
	}
	b->end = cuda->stage_head;
	b->landings = (uint32_t)(cuda->landing_head - cuda->landing_begun);
	b->att = att;
	b->line = line;
	cuda->landing_begun = cuda->landing_head;
	cuda->stage_begun = cuda->stage_head;
	if (att) {
		pthread_mutex_lock(&c->ring_lock);
		att->refs++;
		pthread_mutex_unlock(&c->ring_lock);
	}
	if (line) {
		*ret_value = kvp_load_relaxed(&line->marked) + 1;
		kvp_store_relaxed(&line->marked, *ret_value);
		b->value = line->base + *ret_value;
	}
	cuda->followed += is_followed(b) ? 1 : 0;
	cuda->batch_head++;
	return 0;
}

/* The oldest batch has come to its end, and its bytes for slots with it. */
static void land(struct kvp_cuda *cuda, struct batch *b)
{
	struct kvp_client *c = cuda->client;

	for (uint32_t i = 0; i < b->landings; i++) {
		const struct landing *l = &cuda->landings[(cuda->landing_tail + i) % CUDA_LANDINGS];

		memcpy(l->dst, l->src, l->bytes);
	}
	pthread_mutex_lock(&c->ring_lock);
	if (b->line && b->line->cuda == cuda) {
		timeline_reach(b->line, b->value);
		timeline_settle(b->line);
	}
	pthread_mutex_unlock(&c->ring_lock);
	batch_over(cuda, b);
}

int stage_serve(struct kvp_cuda *cuda)
{
	for (;;) {
		struct batch *b = NULL;
		int done, left;

		pthread_mutex_lock(&cuda->stage_lock);
		reclaim(cuda);
		left = cuda->followed != 0;
		if (cuda->batch_tail != cuda->batch_head)
			b = &cuda->batches[cuda->batch_tail % CUDA_BATCHES];
		done = b && is_followed(b) && oldest_done(cuda);
		pthread_mutex_unlock(&cuda->stage_lock);
		if (!done)
			return left && !kvp_load_relaxed(&cuda->lost);
		land(cuda, b);
		pthread_mutex_lock(&cuda->stage_lock);
		cuda->stage_tail = b->end;
		cuda->landing_tail += b->landings;
		b->landings = 0;
		b->line = NULL;
		cuda->followed--;
		cuda->batch_tail++;
		pthread_mutex_unlock(&cuda->stage_lock);
	}
}
