/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine on a GPU with a KV cache of its own: a prompt's cached blocks are copied into that on its stream,
 * and what it has computed is stored from there. The lease ends when the stream has come there, not before,
 * and nobody waits for it.
 *
 * The context is the driver's own here; an engine that uses the CUDA runtime has one already, and gives its
 * cudaStream_t. Link with the driver, or with nothing if the engine has it loaded.
 */
#include <dlfcn.h>
#include <errno.h>
#include <kvpool_cuda.h>
#include <stdio.h>
#include <string.h>

#define DIM    16
#define T      16
#define BLOCKS 4
#define BYTES  (BLOCKS * T * 2 * DIM * sizeof(float))

/* As cuda.h declares them; an engine includes that. */
struct driver {
	int (*init)(unsigned int flags);
	int (*retain)(struct CUctx_st **ctx, int device);
	int (*set)(struct CUctx_st *ctx);
	int (*alloc)(uint64_t *ptr, size_t bytes);
	int (*stream)(struct CUstream_st **stream, unsigned int flags);
	int (*sync)(struct CUstream_st *stream);
	int (*to)(uint64_t to, const void *from, size_t bytes);
	int (*from)(void *to, uint64_t from, size_t bytes);
};

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

static int driver_open(struct driver *d, struct CUstream_st **stream, uint64_t *kv)
{
	static const char *const names[] = { "cuInit", "cuDevicePrimaryCtxRetain",
		"cuCtxSetCurrent", "cuMemAlloc_v2", "cuStreamCreate", "cuStreamSynchronize",
		"cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2" };
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	struct CUctx_st *ctx;
	void *at[8];

	for (unsigned i = 0; i < 8; i++) {
		at[i] = library ? dlsym(library, names[i]) : NULL;
		if (!at[i])
			return -ENODEV;
	}
	memcpy(d, at, sizeof(at));
	if (d->init(0) || d->retain(&ctx, 0) || d->set(ctx) || d->alloc(kv, BYTES) ||
		d->stream(stream, 1))
		return -ENODEV;
	return 0;
}

/* The engine's cache: one dense tensor here; a paged one is a view as well. */
static struct kvp_view view_of(struct kvp_space *space, uint64_t kv, struct kvp_view_plane *plane)
{
	uint64_t bytes;

	kvp_view_dense(space, KVP_VIEW_LCND, (void *)(uintptr_t)kv, BLOCKS * T, plane, &bytes);
	return (struct kvp_view){ .size = sizeof(struct kvp_view), .planes = plane };
}

/* Stores the prompt's blocks from the engine's cache. */
static int64_t save(struct kvp_client *client, struct kvp_space *space, struct kvp_cuda *cuda,
	const uint32_t *tokens, uint64_t kv, struct CUstream_st *stream)
{
	struct kvp_view_plane plane;
	struct kvp_view view = view_of(space, kv, &plane);
	/* Straight to the daemon's memory on this GPU; to DRAM if it has none there. */
	struct kvp_put_opts opts = { .size = sizeof(opts), .flags = KVP_PUT_ON_DEVICE };
	struct kvp_timeline *stored;
	uint64_t value;
	int64_t n;

	n = kvp_timeline_new(client, &stored);
	if (n < 0)
		return n;
	n = kvp_cuda_put(
		space, cuda, tokens, BLOCKS * T, 0, &view, &opts, stream, stored, &value, NULL);
	/* Blocks appear by themselves; only this program, which reads them at once, waits. */
	if (n > 0)
		kvp_flush(client, KVP_DEFAULT_TIMEOUT);
	kvp_timeline_free(stored);
	return n;
}

/* Copies what is cached into the engine's cache. Returns tokens. */
static int64_t load(struct kvp_client *client, struct kvp_space *space, struct kvp_cuda *cuda,
	const uint32_t *tokens, uint64_t kv, struct CUstream_st *stream)
{
	struct kvp_view_plane plane;
	struct kvp_view view = view_of(space, kv, &plane);
	struct kvp_match_opts opts = { .size = sizeof(opts) };
	struct kvp_cuda_props props = { .size = sizeof(props) };
	struct kvp_timeline *reads;
	struct kvp_prefix *prefix;
	uint64_t value;
	int64_t n;
	int r;

	r = kvp_timeline_new(client, &reads);
	if (r < 0)
		return r;
	kvp_cuda_info(cuda, &props);
	if (props.device != KVP_CUDA_NO_DEVICE) { /* else the daemon has no memory there */
		opts.flags = KVP_MATCH_DEVICE;
		opts.device = props.device;
	}
	r = kvp_match(space, tokens, BLOCKS * T, &opts, &prefix);
	if (r < 0)
		return r;
	n = kvp_cuda_get(prefix, cuda, 0, BLOCKS * T, &view, stream);
	/* ... the kernels that attend over it are enqueued here ... */
	r = kvp_cuda_mark(cuda, reads, stream, &value);
	if (r < 0)
		kvp_release(prefix);
	else
		kvp_release_after(prefix, reads, value);
	return n;
}

int main(void)
{
	const struct kvp_layer layer = { .kv_heads = 1, .k_dim = DIM, .v_dim = DIM };
	const struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = "example-gpu",
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer,
	};
	static float kv[BYTES / sizeof(float)], back[BYTES / sizeof(float)];
	struct kvp_cuda_opts opts = { .size = sizeof(opts), .stage_bytes = 1 << 20 };
	struct CUstream_st *stream;
	uint32_t tokens[BLOCKS * T];
	struct kvp_client *client;
	struct kvp_space *space;
	struct kvp_cuda *cuda;
	struct driver d;
	uint64_t cache;
	int64_t n;
	int r;

	for (unsigned i = 0; i < BLOCKS * T; i++)
		tokens[i] = 1000 + i;
	for (unsigned i = 0; i < BYTES / sizeof(float); i++)
		kv[i] = (float)i;
	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("no daemon", r);
	if (driver_open(&d, &stream, &cache) < 0) {
		puts("no GPU here");
		kvp_close(client);
		return 0;
	}
	r = kvp_space_open(client, &desc, KVP_DEFAULT_TIMEOUT, &space);
	if (r < 0)
		return fail("space", r);
	r = kvp_cuda_open(client, &opts, &cuda);
	if (r < 0)
		return fail("cuda", r);
	d.to(cache, kv, BYTES);
	n = save(client, space, cuda, tokens, cache, stream);
	if (n < 0)
		return fail("put", n);
	printf("%d tokens stored from the device\n", (int)n);
	d.to(cache, back, BYTES); /* zeros: the engine has forgotten them */
	n = load(client, space, cuda, tokens, cache, stream);
	if (n < 0)
		return fail("get", n);
	d.sync(stream);
	d.from(back, cache, BYTES);
	printf("%d tokens read on the device\n", (int)n);
	kvp_cuda_close(cuda);
	kvp_space_close(space);
	kvp_close(client);
	return n == BLOCKS * T && memcmp(kv, back, BYTES) == 0 ? 0 : 1;
}
