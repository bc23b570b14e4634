/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between blocks and the caller's device memory, enqueued on the caller's streams. A block is read on
 * the device if it lies there, else where it lies in registered DRAM, else through the library's memory.
 * What is written goes straight to slots on the device, and through the library's memory to those in DRAM.
 */
#include "libclient/cuda.h"
#include "kernels/cuda/kvp_cuda_kernels.h"
#include "libclient/match.h"
#include "libclient/ring.h"

#include <string.h>

#define QUEUE KVP_CUDA_RUNS /* what a launch takes */

#define TO_DEVICE   0u
#define FROM_DEVICE 1u
#define ON_DEVICE   2u

/* Copies of one call that have not been given to the driver yet. */
struct queue {
	struct kvp_cuda *cuda;
	struct CUstream_st *stream;
	uint32_t kind, n;
	int error;
	int locked; /* stage_lock is held, for room of the call's */
	int pushed; /* cuda_enter()'s */
	int places; /* slots on the device are written: somebody is told when it is done */
	uint64_t direct, staged, placed;
	uint64_t to[QUEUE], from[QUEUE];
	size_t bytes[QUEUE];
};

/* ---- to the driver --------------------------------------------------------------------------- */

static int copy_one(struct queue *q, uint32_t i)
{
	struct kvp_cu *cu = &q->cuda->cu;

	switch (q->kind) {
	case TO_DEVICE:
		return cu->cuMemcpyHtoDAsync_v2(
			q->to[i], (const void *)(uintptr_t)q->from[i], q->bytes[i], q->stream);
	case FROM_DEVICE:
		return cu->cuMemcpyDtoHAsync_v2(
			(void *)(uintptr_t)q->to[i], q->from[i], q->bytes[i], q->stream);
	default:
		return cu->cuMemcpyDtoDAsync_v2(q->to[i], q->from[i], q->bytes[i], q->stream);
	}
}

/* All in one launch, if they are pieces of 16 bytes. */
static int copy_kernel(struct queue *q)
{
	struct kvp_cuda_runs p = { .count = q->n };
	union {
		const void *in;
		void *arg;
	} args[1] = { { .in = &p } };
	const struct kvp_cuda_kernel *k;
	struct kvp_cuda_shape s;
	int r;

	/* One piece is as fast by the driver, and leaves the multiprocessors alone. */
	if (q->kind != ON_DEVICE || !q->cuda->runs || q->n == 1)
		return CU_ERR_UNSUPPORTED;
	for (uint32_t i = 0; i < q->n; i++) {
		if (q->bytes[i] > UINT32_MAX)
			return CU_ERR_UNSUPPORTED;
		p.to[i] = q->to[i];
		p.from[i] = q->from[i];
		p.bytes[i] = (uint32_t)q->bytes[i];
		p.most = p.bytes[i] > p.most ? p.bytes[i] : p.most;
	}
	if (kvp_cuda_kernel_find("kvp_cu_runs", &k) < 0 || k->shape(&p, &s) < 0)
		return CU_ERR_UNSUPPORTED;
	r = q->cuda->cu.cuLaunchKernel(q->cuda->runs, s.grid[0], s.grid[1], s.grid[2], s.threads, 1,
		1, s.smem_bytes, q->stream, &args[0].arg, NULL);
	/* A stream of another context may copy, but not launch what was loaded into this one. */
	return r == CU_ERR_BAD_CONTEXT || r == CU_ERR_BAD_HANDLE ? CU_ERR_UNSUPPORTED : r;
}

/* All in one call, where the driver has one. It takes no default stream, whose handles are small numbers. */
static int copy_batch(struct queue *q)
{
	struct cu_copy_attr attr = { .order = CU_ORDER_STREAM };
	struct kvp_cu *cu = &q->cuda->cu;
	size_t at = 0, fail;

	if (q->n < 2 || (uintptr_t)q->stream <= 2)
		return CU_ERR_UNSUPPORTED;
	if (cu->cuMemcpyBatchAsync_v2)
		return cu->cuMemcpyBatchAsync_v2(
			q->to, q->from, q->bytes, q->n, &attr, &at, 1, q->stream);
	if (cu->cuMemcpyBatchAsync)
		return cu->cuMemcpyBatchAsync(
			q->to, q->from, q->bytes, q->n, &attr, &at, 1, &fail, q->stream);
	return CU_ERR_UNSUPPORTED;
}

static void flush(struct queue *q)
{
	int error = q->n && !q->error ? copy_kernel(q) : CU_OK;

	if (error == CU_ERR_UNSUPPORTED)
		error = copy_batch(q);
	if (error == CU_ERR_UNSUPPORTED)
		error = CU_OK;
	else if (q->n && !q->error)
		q->n = 0;
	for (uint32_t i = 0; i < q->n && !q->error && error == CU_OK; i++)
		error = copy_one(q, i);
	if (!q->error)
		q->error = cuda_error(q->cuda, error);
	q->n = 0;
}

static void enqueue(struct queue *q, uint32_t kind, uint64_t to, uint64_t from, uint64_t bytes)
{
	if (q->n == QUEUE || (q->n && q->kind != kind))
		flush(q);
	q->kind = kind;
	q->to[q->n] = to;
	q->from[q->n] = from;
	q->bytes[q->n++] = bytes;
}

static int begin(struct queue *q, struct kvp_cuda *cuda, struct CUstream_st *stream)
{
	int r;

	q->cuda = cuda;
	q->stream = stream;
	q->kind = q->n = 0;
	q->error = q->locked = q->places = 0;
	q->direct = q->staged = q->placed = 0;
	r = cuda_enter(cuda, &q->pushed);
	if (r < 0)
		return r;
	r = cuda_capturing(cuda, stream);
	if (r < 0)
		cuda_leave(cuda, q->pushed);
	return r;
}

/* A place for the call's one batch. */
static int batch(struct queue *q)
{
	if (q->locked)
		return 0;
	pthread_mutex_lock(&q->cuda->stage_lock);
	q->locked = 1;
	return stage_batch_free(q->cuda, 0) ? 0 : -EAGAIN;
}

/* Room for bytes that go through the library's memory, as part of the batch. */
static int room(struct queue *q, uint64_t bytes, uint32_t landings, uint8_t **ret_at)
{
	int r = batch(q);

	if (r < 0)
		return r;
	if (landings && !stage_batch_free(q->cuda, landings))
		return -EAGAIN;
	r = stage_take(q->cuda, bytes, ret_at);
	q->staged += r == 0 ? bytes : 0;
	return r;
}

/* What was enqueued has been, also where not all of it could be. */
static int end(
	struct queue *q, struct attachment *att, struct kvp_timeline *line, uint64_t *ret_value)
{
	int r = 0;

	flush(q);
	if (q->locked) {
		/* Slots that are given back now must not be written later. */
		if (q->error)
			q->cuda->landing_head = q->cuda->landing_begun;
		if (q->places) /* where it fails, that is never reached */
			*ret_value = kvp_load_relaxed(&line->marked) + 1;
		if (q->places || q->cuda->stage_head != q->cuda->stage_begun)
			r = stage_end(q->cuda, q->stream, att, q->error && !q->places ? NULL : line,
				ret_value);
		pthread_mutex_unlock(&q->cuda->stage_lock);
	}
	cuda_leave(q->cuda, q->pushed);
	kvp_add_relaxed(&q->cuda->direct_bytes, q->direct);
	kvp_add_relaxed(&q->cuda->staged_bytes, q->staged);
	kvp_add_relaxed(&q->cuda->placed_bytes, q->placed);
	sleeper_stir(&q->cuda->work);
	return q->error ? q->error : r;
}

/* ---- from blocks to the device --------------------------------------------------------------- */

/* Where a block is read from. */
struct source {
	uint32_t kind;
	uint64_t at;    /* of its payload */
	uint64_t bytes; /* of it */
	uintptr_t
		pieces; /* TO_DEVICE: where registrations begin; 0: it has to go through our memory */
};

static int find_source(
	struct kvp_cuda *cuda, const struct kvp_prefix *m, uint32_t i, struct source *ret_source)
{
	const struct kvp_hit *h = &m->hits[i];
	struct lane *l = lane_of(cuda, m->att);
	const uint8_t *host;
	struct kvp_hit there;

	*ret_source = (struct source){ .kind = ON_DEVICE };
	if (l && kvp_load_relaxed(&l->device) != KVP_CUDA_NO_DEVICE && !(m->flags & PREFIX_KEYS) &&
		map_of(m, l, i, &there, &ret_source->at) &&
		(uint32_t)there.where == (uint32_t)h->where &&
		kvp_where_codec(there.where) == kvp_where_codec(h->where)) {
		ret_source->bytes = kvp_where_bytes(there.where);
		return 0;
	}
	host = hit_addr(m->att, h);
	if (!host)
		return -ENOENT;
	ret_source->kind = TO_DEVICE;
	ret_source->at = (uintptr_t)host;
	ret_source->bytes = kvp_where_bytes(h->where);
	if (!l || !host_registered(l, kvp_where_extent(h->where), host, ret_source->bytes,
			  &ret_source->pieces))
		ret_source->pieces = 0;
	return 0;
}

/* Straight from where it lies; no copy goes from one registration to the next. */
static void enqueue_direct(
	struct queue *q, const struct source *s, uint64_t to, uint64_t from, uint64_t bytes)
{
	q->direct += bytes;
	while (s->pieces && bytes) {
		uint64_t left = CUDA_PIECE - (from - s->pieces) % CUDA_PIECE;
		uint64_t n = bytes < left ? bytes : left;

		enqueue(q, s->kind, to, from, n);
		to += n;
		from += n;
		bytes -= n;
	}
	if (bytes)
		enqueue(q, s->kind, to, from, bytes);
}

/* A view's runs on their way to the device. */
struct feed {
	struct queue *q;
	const struct source *s;
	uint8_t *stage; /* where the next run goes, if it goes through our memory */
	uint64_t total;
};

static void run_direct(void *ctx, void *dst, const void *src, uint64_t n)
{
	struct feed *f = ctx;

	enqueue_direct(f->q, f->s, (uintptr_t)dst, (uintptr_t)src, n);
}

static void run_count(void *ctx, void *dst, const void *src, uint64_t n)
{
	struct feed *f = ctx;

	(void)dst;
	(void)src;
	f->total += n;
}

static void run_staged(void *ctx, void *dst, const void *src, uint64_t n)
{
	struct feed *f = ctx;

	memcpy(f->stage, src, n);
	enqueue(f->q, TO_DEVICE, (uintptr_t)dst, (uintptr_t)f->stage, n);
	f->stage += n;
}

/* Tokens [at, at + n) of block i. */
static int get_block(struct queue *q, const struct kvp_prefix *m, uint32_t i, uint32_t at,
	uint32_t n, const struct kvp_view *v, uint64_t user)
{
	const struct geometry *geo = &m->space->geo;
	struct source s;
	struct feed f = { .q = q, .s = &s };
	int r = find_source(q->cuda, m, i, &s);

	if (r < 0)
		return r;
	if (kvp_where_codec(m->hits[i].where) != KVP_CODEC_NATIVE || s.bytes < geo->block_bytes)
		return -EOPNOTSUPP;
	if (s.kind == ON_DEVICE || s.pieces) {
		view_runs(geo, s.at, at, n, v, user, VIEW_READ,
			&(struct view_sink){ run_direct, &f });
		return q->error;
	}
	view_runs(geo, s.at, at, n, v, user, VIEW_READ, &(struct view_sink){ run_count, &f });
	r = room(q, f.total, 0, &f.stage);
	if (r == 0)
		view_runs(geo, s.at, at, n, v, user, VIEW_READ,
			&(struct view_sink){ run_staged, &f });
	return r < 0 ? r : q->error;
}

/* Tokens that are asked for and matched; negative: why the prefix cannot be read. */
static int64_t may_get(const struct kvp_prefix *m, struct kvp_cuda *cuda, uint32_t from, uint32_t n,
	const struct kvp_view *dst, struct kvp_view *ret_view)
{
	int r = cuda_usable(cuda);
	uint32_t have;

	if (r < 0)
		return r;
	if (!m || !prefix_live(m) || m->client != cuda->client)
		return -EINVAL;
	r = view_check(&m->space->geo, dst, VIEW_READ, ret_view);
	if (r < 0)
		return r;
	if (!view_has_rows(&m->space->geo, ret_view))
		return -EOPNOTSUPP;
	have = m->n_tokens + m->tail_tokens;
	if (from >= have || !n)
		return 0;
	if (!(m->flags & KVP_MATCHED_LEASED))
		return -ENOLCK;
	n = n < have - from ? n : have - from;
	r = view_reaches(ret_view, n);
	return r < 0 ? (int64_t)r : (int64_t)n;
}

int64_t kvp_cuda_get(const struct kvp_prefix *m, struct kvp_cuda *cuda, uint32_t from, uint32_t n,
	const struct kvp_view *dst, struct CUstream_st *stream)
{
	struct kvp_view v;
	int64_t asked = may_get(m, cuda, from, n, dst, &v);
	uint32_t t, done = 0;
	struct queue q;
	int r, failed;

	if (asked <= 0)
		return asked;
	r = begin(&q, cuda, stream);
	if (r < 0)
		return r;
	t = m->space->geo.block_tokens;
	while (r == 0 && done < asked) {
		uint32_t at = (from + done) % t, step = t - at;

		if (step > asked - done)
			step = (uint32_t)(asked - done);
		r = get_block(&q, m, (from + done) / t, at, step, &v, done);
		done += r == 0 ? step : 0;
	}
	failed = end(&q, NULL, NULL, NULL);
	if (failed < 0)
		return failed;
	if (r < 0 && !(r == -EAGAIN && done))
		return r;
	return (int64_t)done;
}

static int pieces_of_prefix(
	const struct kvp_prefix *m, const struct kvp_cuda_piece *pieces, uint32_t n)
{
	uint32_t have = m->n_blocks + (m->tail_tokens ? 1 : 0);

	for (uint32_t i = 0; i < n; i++) {
		uint64_t bytes;

		if (pieces[i].block >= have)
			return -ENOENT;
		bytes = kvp_where_bytes(m->hits[pieces[i].block].where);
		if (!pieces[i].bytes || pieces[i].reserved || pieces[i].bytes > bytes ||
			pieces[i].offset > bytes - pieces[i].bytes)
			return -EINVAL;
	}
	return 0;
}

static int load_piece(struct queue *q, const struct kvp_prefix *m, const struct kvp_cuda_piece *p)
{
	struct source s;
	uint8_t *stage;
	int r = find_source(q->cuda, m, p->block, &s);

	if (r < 0)
		return r;
	if (s.kind == ON_DEVICE || s.pieces) {
		enqueue_direct(q, &s, p->device_addr, s.at + p->offset, p->bytes);
		return q->error;
	}
	r = room(q, p->bytes, 0, &stage);
	if (r < 0)
		return r;
	memcpy(stage, (const uint8_t *)(uintptr_t)s.at + p->offset, p->bytes);
	enqueue(q, TO_DEVICE, p->device_addr, (uintptr_t)stage, p->bytes);
	return q->error;
}

int kvp_cuda_load(const struct kvp_prefix *m, struct kvp_cuda *cuda,
	const struct kvp_cuda_piece *pieces, uint32_t n, struct CUstream_st *stream)
{
	struct queue q;
	uint32_t done = 0;
	int r = cuda_usable(cuda), failed;

	if (r < 0)
		return r;
	if (!m || !prefix_live(m) || m->client != cuda->client || (n && !pieces) || n > INT32_MAX)
		return -EINVAL;
	if (!n)
		return 0;
	if (!(m->flags & KVP_MATCHED_LEASED))
		return -ENOLCK;
	r = pieces_of_prefix(m, pieces, n);
	if (r == 0)
		r = begin(&q, cuda, stream);
	if (r < 0)
		return r;
	while (r == 0 && done < n) {
		r = load_piece(&q, m, &pieces[done]);
		done += r == 0;
	}
	failed = end(&q, NULL, NULL, NULL);
	if (failed < 0)
		return failed;
	if (r < 0 && !(r == -EAGAIN && done))
		return r;
	return (int)done;
}

/* ---- from the device to slots ---------------------------------------------------------------- */

static int pieces_of_grants(struct kvp_cuda *cuda, struct kvp_grant *const *grants,
	uint32_t n_grants, const struct kvp_cuda_piece *pieces, uint32_t n)
{
	struct kvp_client *c;
	int r = run_client(grants, n_grants, &c);

	if (r < 0 || c != cuda->client)
		return r < 0 ? r : -EINVAL;
	pthread_mutex_lock(&c->ring_lock);
	for (uint32_t i = 0; r == 0 && i < n_grants; i++)
		r = grants[i]->state == GRANT_HELD &&
				    (grants[i]->addr || cuda_slot_at(cuda, grants[i]))
			    ? 0
			    : -EINVAL;
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		const struct kvp_cuda_piece *p = &pieces[i];
		uint64_t bytes;

		if (p->block >= n_grants || p->reserved || !p->bytes) {
			r = -EINVAL;
			break;
		}
		bytes = grants[p->block]->space->geo.block_bytes;
		if (p->bytes > bytes || p->offset > bytes - p->bytes)
			r = -EINVAL;
	}
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

/* Not where the grant says: another of the client's may have reserved it, and be closed by now. */
static int store_piece_there(
	struct queue *q, const struct kvp_grant *g, const struct kvp_cuda_piece *p)
{
	struct kvp_client *c = q->cuda->client;
	int r = batch(q);
	uint64_t at;

	if (r < 0)
		return r;
	pthread_mutex_lock(&c->ring_lock);
	at = cuda_slot_at(q->cuda, g);
	pthread_mutex_unlock(&c->ring_lock);
	if (!at)
		return -EINVAL;
	q->places = 1;
	q->placed += p->bytes;
	enqueue(q, ON_DEVICE, at + p->offset, p->device_addr, p->bytes);
	return q->error;
}

static int store_piece(struct queue *q, const struct kvp_grant *g, const struct kvp_cuda_piece *p)
{
	uint8_t *stage;
	int r;

	if (!g->addr)
		return store_piece_there(q, g, p);
	r = room(q, p->bytes, 1, &stage);
	if (r < 0)
		return r;
	enqueue(q, FROM_DEVICE, (uintptr_t)stage, p->device_addr, p->bytes);
	if (!q->error)
		stage_land(q->cuda, (uint8_t *)g->addr + p->offset, stage, p->bytes);
	return q->error;
}

int kvp_cuda_store(struct kvp_cuda *cuda, struct kvp_grant *const *grants, uint32_t n_grants,
	const struct kvp_cuda_piece *pieces, uint32_t n, struct CUstream_st *stream,
	struct kvp_timeline *timeline, uint64_t *ret_value)
{
	struct queue q;
	uint32_t done = 0;
	int r = cuda_usable(cuda), failed;

	if (r < 0)
		return r;
	if (!n || !pieces || n > INT32_MAX || !ret_value)
		return -EINVAL;
	r = pieces_of_grants(cuda, grants, n_grants, pieces, n);
	if (r == 0)
		r = timeline_claim(timeline, cuda, LINE_SLOTS);
	if (r == 0)
		r = begin(&q, cuda, stream);
	if (r < 0)
		return r;
	while (r == 0 && done < n) {
		r = store_piece(&q, grants[pieces[done].block], &pieces[done]);
		done += r == 0;
	}
	failed = end(&q, grants[0]->att, timeline, ret_value);
	if (failed < 0)
		return failed;
	return done ? (int)done : r;
}

static void run_to_stage(void *ctx, void *dst, const void *src, uint64_t n)
{
	struct feed *f = ctx;

	enqueue(f->q, FROM_DEVICE, (uintptr_t)dst, (uintptr_t)src, n);
}

int cuda_block_to_slot(struct kvp_cuda *cuda, const struct kvp_grant *g, uint32_t n,
	const struct kvp_view *view, uint64_t user, struct CUstream_st *stream,
	struct kvp_timeline *line, uint64_t *ret_value)
{
	const struct geometry *geo = &g->space->geo;
	struct queue q;
	struct feed f = { .q = &q };
	uint8_t *stage;
	int r = begin(&q, cuda, stream), failed;

	if (r < 0)
		return r;
	r = room(&q, geo->block_bytes, 1, &stage);
	if (r == 0) {
		view_runs(geo, (uintptr_t)stage, 0, n, view, user, VIEW_WRITE,
			&(struct view_sink){ run_to_stage, &f });
		flush(&q);
		if (!q.error)
			stage_land(cuda, g->addr, stage, geo->block_bytes);
	}
	failed = end(&q, g->att, line, ret_value);
	return failed < 0 ? failed : r;
}

static void run_to_slot(void *ctx, void *dst, const void *src, uint64_t n)
{
	struct feed *f = ctx;

	f->q->placed += n;
	enqueue(f->q, ON_DEVICE, (uintptr_t)dst, (uintptr_t)src, n);
}

int cuda_blocks_to_slots(struct kvp_cuda *cuda, const struct geometry *geo,
	const struct cuda_slot *slots, uint32_t n_slots, const struct kvp_view *view,
	struct CUstream_st *stream, struct kvp_timeline *line, uint64_t *ret_value)
{
	struct queue q;
	struct feed f = { .q = &q };
	int r = begin(&q, cuda, stream), failed;

	*ret_value = 0;
	if (r < 0)
		return r;
	r = batch(&q);
	q.places = r == 0;
	for (uint32_t i = 0; r == 0 && i < n_slots; i++)
		view_runs(geo, slots[i].at, 0, slots[i].n, view, slots[i].user, VIEW_WRITE,
			&(struct view_sink){ run_to_slot, &f });
	failed = end(&q, NULL, line, ret_value);
	return failed < 0 ? failed : r;
}
