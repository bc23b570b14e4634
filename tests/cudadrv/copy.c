/* SPDX-License-Identifier: Apache-2.0 */
/* Copies, sets, stream values: from a call to an operation of a stream. */
#include <stdlib.h>
#include <string.h>

#include "tests/cudadrv/sim.h"

enum { BLOCKING = 1, ASYNC = 2 };

/* What a call names as the device's must be mapped now; what it may do there is seen when it runs. */
static int check_device(uint64_t at, size_t bytes, const char *call)
{
	if (sim_is_mapped(at, bytes))
		return CU_OK;
	return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_UNMAPPED,
		"%s: nothing is mapped in all of %zu bytes at 0x%llx", call, bytes,
		(unsigned long long)at);
}

static int wait_if(struct CUstream_st *s, bool blocking, int r)
{
	return r == CU_OK && blocking ? sim_wait(s, s->last) : r;
}

static int check_sides(const struct sim_copy *c, const char *call)
{
	int r = c->to_host ? CU_OK : check_device(c->to, c->bytes, call);

	return r == CU_OK && !c->from_host ? check_device(c->from, c->bytes, call) : r;
}

/*
 * Memory that nobody registered goes through the driver's own buffers: the call comes back when the
 * caller may touch it again, and nothing is asynchronous about it.
 */
static bool is_pageable(const struct sim_copy *c)
{
	return (c->to_host && !sim_host_at(c->to, c->bytes)) ||
	       (c->from_host && !sim_host_at(c->from, c->bytes));
}

static int copy_one(const struct sim_copy *c, struct CUstream_st *stream, int how, const char *call)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);
	bool pageable = is_pageable(c);
	struct sim_op *op;

	if (s)
		r = check_sides(c, call);
	if (r != CU_OK || c->bytes == 0)
		return r;
	if (how == ASYNC && pageable)
		sim_says(CUDADRV_UNREGISTERED, "%s with memory that is not registered", call);
	op = sim_op_new(SIM_COPY, 1);
	if (!op)
		return CU_ERR_NO_MEMORY;
	op->copy[0] = *c;
	r = sim_enqueue(s, op);
	return wait_if(s, (how == BLOCKING || pageable) && !s->capture, r);
}

static int copy_in(uint64_t to, const void *from, size_t bytes, struct CUstream_st *s, int how,
	const char *call)
{
	struct sim_copy c = {
		.to = to, .from = (uintptr_t)from, .bytes = bytes, .from_host = true
	};

	return copy_one(&c, s, how, call);
}

static int copy_out(
	void *to, uint64_t from, size_t bytes, struct CUstream_st *s, int how, const char *call)
{
	struct sim_copy c = { .to = (uintptr_t)to, .from = from, .bytes = bytes, .to_host = true };

	return copy_one(&c, s, how, call);
}

/* The host does not wait for copies within the device, also without "Async". */
static int copy_within(
	uint64_t to, uint64_t from, size_t bytes, struct CUstream_st *s, const char *call)
{
	struct sim_copy c = { .to = to, .from = from, .bytes = bytes };

	return copy_one(&c, s, ASYNC, call);
}

SIM_EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
	SIM_CALL(cuMemcpyHtoD_v2, SIM_INIT | SIM_CTX | SIM_UNSAFE,
		copy_in(to, from, bytes, NULL, BLOCKING, "cuMemcpyHtoD"));
}

SIM_EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
	SIM_CALL(cuMemcpyDtoH_v2, SIM_INIT | SIM_CTX | SIM_UNSAFE,
		copy_out(to, from, bytes, NULL, BLOCKING, "cuMemcpyDtoH"));
}

SIM_EXPORT int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes)
{
	SIM_CALL(cuMemcpyDtoD_v2, SIM_INIT | SIM_CTX | SIM_UNSAFE,
		copy_within(to, from, bytes, NULL, "cuMemcpyDtoD"));
}

SIM_EXPORT int cuMemcpyHtoDAsync_v2(
	uint64_t to, const void *from, size_t bytes, struct CUstream_st *stream)
{
	SIM_CALL(cuMemcpyHtoDAsync_v2, SIM_INIT | SIM_CTX,
		copy_in(to, from, bytes, stream, ASYNC, "cuMemcpyHtoDAsync"));
}

SIM_EXPORT int cuMemcpyDtoHAsync_v2(
	void *to, uint64_t from, size_t bytes, struct CUstream_st *stream)
{
	SIM_CALL(cuMemcpyDtoHAsync_v2, SIM_INIT | SIM_CTX,
		copy_out(to, from, bytes, stream, ASYNC, "cuMemcpyDtoHAsync"));
}

SIM_EXPORT int cuMemcpyDtoDAsync_v2(
	uint64_t to, uint64_t from, size_t bytes, struct CUstream_st *stream)
{
	SIM_CALL(cuMemcpyDtoDAsync_v2, SIM_INIT | SIM_CTX,
		copy_within(to, from, bytes, stream, "cuMemcpyDtoDAsync"));
}

static int set(uint64_t to, unsigned char value, size_t bytes, struct CUstream_st *stream)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);
	struct sim_op *op;

	if (s)
		r = check_device(to, bytes, "cuMemsetD8");
	if (r != CU_OK || bytes == 0)
		return r;
	op = sim_op_new(SIM_SET, 1);
	if (!op)
		return CU_ERR_NO_MEMORY;
	op->copy[0] = (struct sim_copy){ .to = to, .bytes = bytes };
	op->value = value;
	return sim_enqueue(s, op);
}

SIM_EXPORT int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t bytes)
{
	SIM_CALL(cuMemsetD8_v2, SIM_INIT | SIM_CTX | SIM_UNSAFE, set(to, value, bytes, NULL));
}

SIM_EXPORT int cuMemsetD8Async(
	uint64_t to, unsigned char value, size_t bytes, struct CUstream_st *stream)
{
	SIM_CALL(cuMemsetD8Async, SIM_INIT | SIM_CTX, set(to, value, bytes, stream));
}

/* ---- batches ---- */

struct batch {
	uint64_t *to, *from;
	size_t *bytes;
	size_t n;
	struct cu_copy_attr *attr;
	size_t *attr_at, n_attr;
};

/* Addresses of host memory are not marked: what the device does not see is the host's. */
static struct sim_copy piece(const struct batch *b, size_t i)
{
	return (struct sim_copy){ .to = b->to[i],
		.from = b->from[i],
		.bytes = b->bytes[i],
		.to_host = !sim_map_at(b->to[i]) && !sim_host_device_at(b->to[i], b->bytes[i]),
		.from_host =
			!sim_map_at(b->from[i]) && !sim_host_device_at(b->from[i], b->bytes[i]) };
}

struct span {
	uint64_t begin, end;
	bool write;
};

static int by_begin(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Is there a byte that one piece writes and another reads or writes? */
static bool overlaps(const struct batch *b)
{
	struct span *s = calloc(b->n * 2, sizeof(*s));
	uint64_t end = 0, written = 0;
	bool found = false;

	for (size_t i = 0; s && i < b->n; i++) {
		s[2 * i] = (struct span){ b->from[i], b->from[i] + b->bytes[i], false };
		s[2 * i + 1] = (struct span){ b->to[i], b->to[i] + b->bytes[i], true };
	}
	if (s)
		qsort(s, b->n * 2, sizeof(*s), by_begin);
	for (size_t i = 0; s && i < b->n * 2; i++) {
		found = found || s[i].begin < written || (s[i].write && s[i].begin < end);
		end = s[i].end > end ? s[i].end : end;
		if (s[i].write && s[i].end > written)
			written = s[i].end;
	}
	free(s);
	return found;
}

static int order_of(const struct batch *b, size_t i)
{
	size_t a = 0;

	while (a + 1 < b->n_attr && b->attr_at[a + 1] <= i)
		a++;
	return b->attr[a].order;
}

static int check_attributes(const struct batch *b)
{
	if (b->n_attr == 0 || b->n_attr > b->n || b->attr_at[0] != 0)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
			"a batch of %zu copies with %zu attributes", b->n, b->n_attr);
	for (size_t i = 1; i < b->n_attr; i++)
		if (b->attr_at[i] <= b->attr_at[i - 1] || b->attr_at[i] >= b->n)
			return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
				"attribute %zu of a batch begins at copy %zu", i, b->attr_at[i]);
	for (size_t i = 0; i < b->n_attr; i++)
		if (b->attr[i].order < CU_ORDER_STREAM || b->attr[i].order > CU_ORDER_ANY)
			return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE,
				"order %d of a batch's source", b->attr[i].order);
	return CU_OK;
}

static int check_piece(const struct batch *b, size_t i, bool *ret_pageable)
{
	struct sim_copy c = piece(b, i);
	int r;

	if (c.bytes == 0)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "an empty piece");
	if (c.to_host && c.from_host)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_UNMAPPED,
			"piece %zu of a batch: nothing of the device at 0x%llx or 0x%llx", i,
			(unsigned long long)c.to, (unsigned long long)c.from);
	r = check_sides(&c, "cuMemcpyBatchAsync");
	if (r != CU_OK)
		return r;
	if (!c.from_host && sim_map_at(c.from) && order_of(b, i) == CU_ORDER_ANY)
		sim_says(CUDADRV_BATCH_ORDER_ANY,
			"a source on the device that may be read before the stream gets there");
	*ret_pageable = *ret_pageable || is_pageable(&c);
	return CU_OK;
}

static int check_batch(const struct batch *b, struct CUstream_st *s, size_t *fail)
{
	bool pageable = false;
	int r;

	if (b->n == 0)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BAD_VALUE, "an empty batch");
	if (s->capture) {
		sim_capture_spoiled_by(s);
		return sim_refuse(CU_ERR_CAPTURING, CUDADRV_BATCH_CAPTURED,
			"cuMemcpyBatchAsync in a capture");
	}
	r = check_attributes(b);
	for (size_t i = 0; r == CU_OK && i < b->n; i++) {
		r = check_piece(b, i, &pageable);
		if (r != CU_OK && fail)
			*fail = i;
	}
	if (r == CU_OK && overlaps(b))
		r = sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BATCH_OVERLAP,
			"pieces of a batch overlap; they have no order");
	if (r == CU_OK && pageable)
		sim_says(CUDADRV_UNREGISTERED, "a batch with memory that is not registered");
	return r;
}

/* Sources of order "any" too are read when the stream gets there: CUDA may do that, or earlier. */
static int enqueue_batch(const struct batch *b, struct CUstream_st *s)
{
	struct sim_op *op = sim_op_new(SIM_COPY, b->n);

	if (!op)
		return CU_ERR_NO_MEMORY;
	for (size_t i = 0; i < b->n; i++)
		op->copy[i] = piece(b, i);
	return sim_enqueue(s, op);
}

static int batch(const struct batch *b, size_t *fail, struct CUstream_st *stream)
{
	int r = CU_OK;
	struct CUstream_st *s;

	if (fail)
		*fail = SIZE_MAX;
	if ((uintptr_t)stream <= 1)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_BATCH_NULL_STREAM,
			"cuMemcpyBatchAsync on the default stream");
	s = sim_stream(stream, &r);
	if (s)
		r = check_batch(b, s, fail);
	return r == CU_OK ? enqueue_batch(b, s) : r;
}

static bool has_batch(uint32_t version)
{
	return sim.shared.s->config.driver_version >= version;
}

SIM_EXPORT int cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *bytes, size_t n,
	struct cu_copy_attr *attr, size_t *attr_at, size_t n_attr, size_t *fail,
	struct CUstream_st *stream)
{
	const struct batch b = { to, from, bytes, n, attr, attr_at, n_attr };

	SIM_CALL(cuMemcpyBatchAsync, SIM_INIT | SIM_CTX,
		has_batch(12080) ? batch(&b, fail, stream) : CU_ERR_UNSUPPORTED);
}

SIM_EXPORT int cuMemcpyBatchAsync_v2(uint64_t *to, uint64_t *from, size_t *bytes, size_t n,
	struct cu_copy_attr *attr, size_t *attr_at, size_t n_attr, struct CUstream_st *stream)
{
	const struct batch b = { to, from, bytes, n, attr, attr_at, n_attr };

	SIM_CALL(cuMemcpyBatchAsync_v2, SIM_INIT | SIM_CTX,
		has_batch(13000) ? batch(&b, NULL, stream) : CU_ERR_UNSUPPORTED);
}

/* ---- stream values ---- */

static int value_op(enum sim_op_kind kind, struct CUstream_st *stream, uint64_t at, uint64_t value,
	unsigned int flags)
{
	int r = CU_OK;
	struct CUstream_st *s = sim_stream(stream, &r);
	struct sim_op *op;

	if (!s)
		return r;
	if (sim.shared.s->config.no_mem_ops)
		return CU_ERR_UNSUPPORTED;
	if (at % 8)
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_MISALIGNED,
			"a stream value at 0x%llx", (unsigned long long)at);
	if (!sim_is_mapped(at, 8))
		return sim_refuse(CU_ERR_INVALID_VALUE, CUDADRV_WAIT_UNREGISTERED,
			"a stream value at 0x%llx, which the device does not see",
			(unsigned long long)at);
	op = sim_op_new(kind, 0);
	if (!op)
		return CU_ERR_NO_MEMORY;
	op->at = at;
	op->value = value;
	op->flags = flags;
	return sim_enqueue(s, op);
}

SIM_EXPORT int cuStreamWaitValue64_v2(
	struct CUstream_st *stream, uint64_t at, uint64_t value, unsigned int flags)
{
	SIM_CALL(cuStreamWaitValue64_v2, SIM_INIT | SIM_CTX,
		value_op(SIM_WAIT, stream, at, value, flags));
}

SIM_EXPORT int cuStreamWriteValue64_v2(
	struct CUstream_st *stream, uint64_t at, uint64_t value, unsigned int flags)
{
	SIM_CALL(cuStreamWriteValue64_v2, SIM_INIT | SIM_CTX,
		value_op(SIM_WRITE, stream, at, value, flags));
}
