/* SPDX-License-Identifier: Apache-2.0 */
/* One layer on the GPU: new keys and values into their page, split attention over all pages, the merge. */
#include "tools/kvrun/kvr_attend_cuda.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/*
 * One query has little to do in each page, so that its pages are dealt to many blocks of threads; a run of
 * queries fills the device by itself.
 */
#define SPLITS_MAX 32u

static uint64_t align64(uint64_t bytes)
{
	return (bytes + 63) & ~UINT64_C(63);
}

/* Where things are among the bytes that go up for a run of n queries. */
struct up {
	uint64_t k, v, q, slots, length, bytes;
};

static struct up up_of(const struct kvr_attend_cuda *a, uint32_t n)
{
	uint64_t row = kvr_row_bytes(&a->geom);
	struct up u = { .k = 0 };

	u.v = align64(n * row);
	u.q = u.v + align64(n * row);
	u.slots = u.q + align64((uint64_t)n * a->heads * a->head_dim * sizeof(float));
	u.length = u.slots + align64(n * sizeof(int32_t));
	u.bytes = u.length + sizeof(uint32_t);
	return u;
}

static uint64_t plane_offset(const struct kvr_attend_cuda *a, uint32_t layer, uint32_t value)
{
	return (2 * (uint64_t)layer + value) * a->plane_bytes;
}

uint64_t kvr_attend_cuda_page_bytes(const struct kvr_attend_cuda *a)
{
	return plane_offset(a, a->geom.layers, 0);
}

static int choose_kernels(struct kvr_attend_cuda *a)
{
	int r = 0;

	for (uint32_t value = 0; r == 0 && value < 2; value++) {
		const struct kvp_plane plane = {
			.tokens = a->geom.block_tokens,
			.heads = a->kv_heads,
			.dim = a->head_dim,
			.dtype = a->geom.dtype,
			.kind = value ? KVP_PLANE_V : KVP_PLANE_K,
		};

		r = kvp_cuda_codec_init(KVP_CODEC_NATIVE, &plane, 0, NULL, &a->codec[value]);
	}
	if (r == 0)
		r = kvp_cuda_encode_kernel(&a->codec[0], &a->store);
	if (r == 0)
		r = kvp_cuda_attend_kernel(&a->codec[0], &a->codec[1], &a->attend);
	if (r == 0)
		r = kvp_cuda_kernel_find("kvp_cu_merge", &a->merge);
	return r;
}

static int allocate(struct kvr_attend_cuda *a)
{
	uint32_t most = a->geom.block_tokens > SPLITS_MAX ? a->geom.block_tokens : SPLITS_MAX;
	uint64_t out = (uint64_t)a->geom.block_tokens * a->heads * a->head_dim * sizeof(float);
	uint64_t partial = (uint64_t)most * a->heads * (a->head_dim + 2) * sizeof(float);
	uint64_t up = up_of(a, a->geom.block_tokens).bytes, table = a->pages * sizeof(uint64_t);
	void *table_host;
	int r = kvr_gpu_host_alloc(a->gpu, table, &table_host);

	if (r < 0)
		return r;
	a->table_host = table_host;
	r = kvr_gpu_host_alloc(a->gpu, up, &a->up_host);
	if (r == 0)
		r = kvr_gpu_host_alloc(a->gpu, out, &a->out_host);
	if (r == 0)
		r = kvr_gpu_alloc(a->gpu, table, &a->table);
	if (r == 0)
		r = kvr_gpu_alloc(a->gpu, up, &a->up);
	if (r == 0)
		r = kvr_gpu_alloc(a->gpu, out, &a->out);
	return r < 0 ? r : kvr_gpu_alloc(a->gpu, partial, &a->partial);
}

int kvr_attend_cuda_init(struct kvr_attend_cuda *a, struct kvr_gpu *gpu,
	const struct kvr_config *config, const struct kvr_geom *geom, struct kvr_error *err)
{
	int r;

	*a = (struct kvr_attend_cuda){
		.gpu = gpu,
		.geom = *geom,
		.heads = config->heads,
		.kv_heads = config->kv_heads,
		.head_dim = config->head_dim,
		.pages = (config->context + geom->block_tokens - 1) / geom->block_tokens,
		.plane_bytes = align64(geom->block_tokens * kvr_row_bytes(geom)),
	};
	r = choose_kernels(a);
	if (r < 0)
		return kvr_fail(err, -EINVAL,
			"the CUDA kernels take up to 256 KV heads of 8 to 1024 channels; the model "
			"has %u of %u",
			a->kv_heads, a->head_dim);
	r = allocate(a);
	return r < 0 ? kvr_fail(err, r, "%s", gpu->why.text) : 0;
}

void kvr_attend_cuda_done(struct kvr_attend_cuda *a)
{
	if (!a->gpu)
		return;
	kvr_gpu_host_free(a->gpu, a->table_host);
	kvr_gpu_host_free(a->gpu, a->up_host);
	kvr_gpu_host_free(a->gpu, a->out_host);
	kvr_gpu_free(a->gpu, a->table);
	kvr_gpu_free(a->gpu, a->up);
	kvr_gpu_free(a->gpu, a->out);
	kvr_gpu_free(a->gpu, a->partial);
	*a = (struct kvr_attend_cuda){ .gpu = NULL };
}

int kvr_attend_cuda_page(struct kvr_attend_cuda *a, uint32_t index, uint64_t at)
{
	a->table_host[index] = at;
	return kvr_gpu_upload(
		a->gpu, a->table + index * sizeof(at), &a->table_host[index], sizeof(at));
}

static int send(struct kvr_attend_cuda *a, const struct up *u, uint32_t first, uint32_t n,
	const float *q, const float *k, const float *v)
{
	const struct kvr_geom *g = &a->geom;
	uint32_t length = first + n;
	uint8_t *p = a->up_host;

	kvr_narrow(g->dtype, k, (size_t)n * g->kv_dim, p + u->k);
	kvr_narrow(g->dtype, v, (size_t)n * g->kv_dim, p + u->v);
	memcpy(p + u->q, q, (size_t)n * a->heads * a->head_dim * sizeof(float));
	for (uint32_t i = 0; i < n; i++) {
		int32_t slot = (int32_t)(first % g->block_tokens + i);

		memcpy(p + u->slots + i * sizeof(slot), &slot, sizeof(slot));
	}
	memcpy(p + u->length, &length, sizeof(length));
	return kvr_gpu_upload(a->gpu, a->up, p, u->bytes);
}

/* Rows of K or V that went up, into the page that they belong to. */
static int store(struct kvr_attend_cuda *a, const struct up *u, uint32_t layer, uint32_t value,
	uint32_t first, uint32_t n)
{
	int64_t row = (int64_t)kvr_row_bytes(&a->geom);
	const struct kvp_cuda_rows rows = {
		.raw = a->up + (value ? u->v : u->k),
		.raw_head_stride = row / a->kv_heads,
		.raw_token_stride = row,
		.pages = a->table + first / a->geom.block_tokens * sizeof(uint64_t),
		.page_offset = plane_offset(a, layer, value),
		.slots = a->up + u->slots,
		.count = n,
		.codec = a->codec[value],
	};

	return kvr_gpu_launch(a->gpu, a->store, &rows);
}

static int attend(
	struct kvr_attend_cuda *a, const struct up *u, uint32_t layer, uint32_t splits, uint32_t n)
{
	int64_t head = (int64_t)(a->head_dim * sizeof(float));
	const struct kvp_cuda_attend p = {
		.q = a->up + u->q,
		.q_query_stride = head * a->heads,
		.q_head_stride = head,
		.tables = a->table,
		.lengths = a->up + u->length,
		.k_offset = plane_offset(a, layer, 0),
		.v_offset = plane_offset(a, layer, 1),
		.partial = a->partial,
		.table_stride = a->pages,
		.seqs = 1,
		.q_dtype = KVP_DTYPE_F32,
		.queries = n,
		.group = a->heads / a->kv_heads,
		.splits = splits,
		.split_total = splits,
		.causal = 1,
		.scale = (float)(1 / sqrt(a->head_dim)),
		.k = a->codec[0],
		.v = a->codec[1],
	};

	return kvr_gpu_launch(a->gpu, a->attend, &p);
}

static int merge(struct kvr_attend_cuda *a, uint32_t splits, uint32_t n)
{
	int64_t head = (int64_t)(a->head_dim * sizeof(float));
	const struct kvp_cuda_merge p = {
		.partial = a->partial,
		.out = a->out,
		.out_query_stride = head * a->heads,
		.out_head_stride = head,
		.seqs = 1,
		.heads = a->kv_heads,
		.group = a->heads / a->kv_heads,
		.queries = n,
		.dim = a->head_dim,
		.split_total = splits,
		.out_dtype = KVP_DTYPE_F32,
		.domains = 1,
		.domain = { { .split_end = splits } },
	};

	return kvr_gpu_launch(a->gpu, a->merge, &p);
}

int kvr_attend_cuda_run(struct kvr_attend_cuda *a, uint32_t layer, uint32_t first, uint32_t n,
	const float *q, const float *k, const float *v, float *out)
{
	uint32_t pages = (first + n - 1) / a->geom.block_tokens + 1;
	uint32_t splits = n > 1 ? 1 : pages < SPLITS_MAX ? pages : SPLITS_MAX;
	size_t bytes = (size_t)n * a->heads * a->head_dim * sizeof(float);
	struct up u = up_of(a, n);
	int r = send(a, &u, first, n, q, k, v);

	for (uint32_t value = 0; r == 0 && value < 2; value++)
		r = store(a, &u, layer, value, first, n);
	if (r == 0)
		r = attend(a, &u, layer, splits, n);
	if (r == 0)
		r = merge(a, splits, n);
	if (r == 0)
		r = kvr_gpu_download(a->gpu, a->out_host, a->out, bytes);
	if (r == 0)
		r = kvr_gpu_wait(a->gpu);
	if (r == 0)
		memcpy(out, a->out_host, bytes);
	return r;
}
