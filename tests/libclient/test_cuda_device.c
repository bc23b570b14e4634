/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's memory on a simulated GPU, mapped and read there, and streams that wait for it: against a small
 * daemon in a thread of this process, which is given a segment of the device.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libclient/kvpool_cuda.h"
#include "tests/libclient/fake.h"
#include "tests/libclient/gpu.h"

#define T           16u
#define BLOCKS      8u
#define TOKENS      (BLOCKS * T)
#define TOKEN_BYTES (2u * 2 * 16)
#define BLOCK_BYTES (T * TOKEN_BYTES)
#define SLOT_BYTES  4096u
#define SEGMENT     (UINT64_C(2) << 20)
#define WAIT_MS     5000u

static const struct kvp_layer one_layer = { .kv_heads = 1, .k_dim = 16, .v_dim = 16 };

static const struct kvp_space_desc model = {
	.size = sizeof(model),
	.model = "cuda-device",
	.dtype = KVP_DTYPE_F16,
	.layout = KVP_LAYOUT_LCND,
	.block_tokens = T,
	.n_layers = 1,
	.layers = &one_layer,
};

static struct gpu gpu;

struct fixture {
	struct fake *fake;
	struct kvp_client *client;
	struct kvp_space *space;
	struct kvp_cuda *cuda;
	uint64_t memory, at; /* the daemon's segment, and where the daemon has mapped it */
	uint32_t tokens[TOKENS];
	uint8_t kv[TOKENS * TOKEN_BYTES];
};

static void copy_there(void *ctx, uint64_t offset, const void *from, uint64_t bytes)
{
	struct fixture *f = ctx;

	assert_int_equal(gpu.cu.cuCtxSetCurrent(gpu.cu.ctx), CU_OK);
	assert_int_equal(gpu.cu.cuMemcpyHtoD_v2(f->at + offset, from, bytes), CU_OK);
}

/* A segment as a worker makes one. Returns its descriptor. */
static int segment_make(struct fixture *f)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED,
		.handle_types = CU_HANDLE_FD,
		.location = { CU_LOC_DEVICE, gpu.cu.device } };
	struct cu_access access = { { CU_LOC_DEVICE, gpu.cu.device }, CU_PROT_RW };
	int fd = -1;

	assert_int_equal(gpu.cu.cuMemCreate(&f->memory, SEGMENT, &prop, 0), CU_OK);
	assert_int_equal(gpu.cu.cuMemAddressReserve(&f->at, SEGMENT, 0, 0, 0), CU_OK);
	assert_int_equal(gpu.cu.cuMemMap(f->at, SEGMENT, 0, f->memory, 0), CU_OK);
	assert_int_equal(gpu.cu.cuMemSetAccess(f->at, SEGMENT, &access, 1), CU_OK);
	assert_int_equal(
		gpu.cu.cuMemExportToShareableHandle(&fd, f->memory, CU_HANDLE_FD, 0), CU_OK);
	return fd;
}

static void cuda_open(struct fixture *f, uint32_t timeout_ms)
{
	struct kvp_cuda_opts o = {
		.size = sizeof(o), .stage_bytes = 1 << 20, .timeout_ms = timeout_ms
	};

	assert_int_equal(kvp_cuda_open(f->client, &o, &f->cuda), 0);
}

static int prepare(void **state, uint32_t first, int hold_extents)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct kvp_open_opts o = { .size = sizeof(o), .default_timeout_ms = WAIT_MS };
	struct kvp_put_opts po = { .size = sizeof(po), .timeout_ms = WAIT_MS };
	struct kvp_view_plane plane;
	struct kvp_view v = { .size = sizeof(v), .planes = &plane };
	uint8_t uuid[16];
	uint64_t bytes;

	f->fake = fake_start(NULL);
	assert_int_equal(cudadrv_uuid(gpu.sim, 0, uuid), 0);
	fake_device_of(f->fake, uuid, segment_make(f), SEGMENT, SLOT_BYTES, first, copy_there, f);
	SET(f->fake, hold_extents, hold_extents);
	o.socket = f->fake->path;
	assert_int_equal(kvp_open(&o, &f->client), 0);
	assert_int_equal(kvp_space_open(f->client, &model, KVP_DEFAULT_TIMEOUT, &f->space), 0);
	for (uint32_t i = 0; i < TOKENS; i++)
		f->tokens[i] = 7 + i * 5;
	for (size_t i = 0; i < sizeof(f->kv); i++)
		f->kv[i] = (uint8_t)(i * 37 % 251);
	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_NCLD, f->kv, TOKENS, &plane, &bytes), 0);
	assert_int_equal(kvp_put(f->space, f->tokens, TOKENS, 0, &v, &po, NULL), TOKENS);
	assert_int_equal(kvp_flush(f->client, WAIT_MS), 0);
	*state = f;
	return 0;
}

static int setup(void **state)
{
	return prepare(state, 512, 0);
}

static int setup_asked(void **state)
{
	return prepare(state, 0, 1);
}

/* Slots whose place in a window would not be that of a whole page of the driver's. */
static int setup_odd(void **state)
{
	return prepare(state, 100, 0);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	kvp_cuda_close(f->cuda);
	kvp_space_close(f->space);
	kvp_close(f->client);
	fake_stop(f->fake);
	assert_int_equal(gpu.cu.cuMemUnmap(f->at, SEGMENT), CU_OK);
	assert_int_equal(gpu.cu.cuMemAddressFree(f->at, SEGMENT), CU_OK);
	assert_int_equal(gpu.cu.cuMemRelease(f->memory), CU_OK);
	assert_int_equal(cudadrv_reports(gpu.sim, CUDADRV_REPORTS_N), 0);
	free(f);
	return 0;
}

static struct kvp_prefix *match(struct fixture *f)
{
	struct kvp_prefix *m;

	assert_int_equal(kvp_match(f->space, f->tokens, TOKENS, NULL, &m), 0);
	return m;
}

static struct kvp_cuda_props props(struct fixture *f)
{
	struct kvp_cuda_props p = { .size = sizeof(p) };

	assert_int_equal(kvp_cuda_info(f->cuda, &p), 0);
	return p;
}

static void warm_all(struct fixture *f, struct kvp_prefix *m)
{
	struct kvp_ticket ticket;
	int why = 1;

	assert_int_equal(kvp_cuda_warm(m, f->cuda, NULL, &ticket), 0);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, &why), BLOCKS);
	assert_int_equal(why, 0);
	assert_int_equal(kvp_cuda_stream_wait(f->cuda, gpu.stream, ticket), 0); /* it has ended */
}

/* Block i as DRAM has it, read by the device at this address. */
static void same_bytes(struct kvp_prefix *m, uint32_t i, uint64_t addr)
{
	uint64_t mine = gpu_alloc(&gpu, BLOCK_BYTES);
	uint8_t back[BLOCK_BYTES];
	const void *here;

	assert_int_equal(kvp_payloads(m, i, 1, &here), 1);
	assert_int_equal(gpu.cu.cuMemcpyDtoDAsync_v2(mine, addr, BLOCK_BYTES, gpu.stream), CU_OK);
	gpu_read(&gpu, back, mine, BLOCK_BYTES);
	assert_memory_equal(back, here, BLOCK_BYTES);
	assert_int_equal(gpu.cu.cuMemFree_v2(mine), CU_OK);
}

static void read_in_place(void **state)
{
	struct fixture *f = *state;
	struct kvp_cuda_range range = { .size = sizeof(range) };
	struct cu_location here = { CU_LOC_DEVICE, gpu.cu.device };
	struct kvp_payload_info payload = { .size = sizeof(payload) };
	struct kvp_prefix *m = match(f);
	unsigned long long access = 0;
	uint64_t addrs[BLOCKS + 2];
	int32_t slots[BLOCKS + 2];

	cuda_open(f, 0);
	assert_int_equal(props(f).device, 0);
	assert_int_equal(props(f).mapped_bytes, SEGMENT);
	assert_int_equal(props(f).reads_guarded, 1);
	assert_int_equal(kvp_cuda_slots(m, f->cuda, 0, BLOCKS, 0, slots), 0);
	assert_int_equal(slots[0], -1);
	warm_all(f, m);
	assert_int_equal(kvp_cuda_slots(m, f->cuda, 0, BLOCKS + 2, 0, slots), BLOCKS);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS + 2, 0, addrs), BLOCKS);
	assert_int_equal(kvp_cuda_window(f->cuda, f->space, &range), 0);
	assert_int_equal(range.slot_bytes, SLOT_BYTES);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		assert_true(slots[i] >= 512 && (uint64_t)slots[i] < range.slots);
		assert_int_equal(addrs[i], range.base + (uint64_t)slots[i] * SLOT_BYTES);
		same_bytes(m, i, addrs[i]);
	}
	assert_int_equal(slots[BLOCKS], -1);
	assert_int_equal(addrs[BLOCKS + 1], 0);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 3, 2, 0, addrs), 2);
	assert_int_equal(addrs[0], range.base + (uint64_t)slots[3] * SLOT_BYTES);
	/* A kernel that writes there by mistake is stopped. */
	assert_int_equal(gpu.cu.cuMemGetAccess(&access, &here, addrs[0]), CU_OK);
	assert_int_equal(access, CU_PROT_READ);
	assert_int_equal(kvp_device_payload(m, 0, 0, &payload), -EOPNOTSUPP);
	kvp_release(m);
}

/*
 * What a prefix has on a device only is read in DRAM by the host: wherever it is moved there under the lease, and
 * while the ledger looks whether there is one.
 */
static void host_reads_dram(void **state)
{
	struct fixture *f = *state;
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_DEVICE };
	struct kvp_payload_info p = { .size = sizeof(p) };
	uint8_t got[TOKENS * TOKEN_BYTES];
	struct kvp_prefix *first = match(f), *m;
	const struct kvp_catalog_view *v = &f->fake->v;
	struct kvp_view_plane plane;
	struct kvp_view dst = { .size = sizeof(dst), .planes = &plane };
	uint64_t word[BLOCKS], bytes;

	cuda_open(f, 0);
	warm_all(f, first);
	kvp_release(first);
	assert_int_equal(kvp_match(f->space, f->tokens, TOKENS, &o, &m), 0);
	assert_int_equal(kvp_payload(m, 0, &p), 0);
	assert_int_equal(p.tier, KVP_TIER_VRAM);
	assert_null(p.addr);
	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_NCLD, got, TOKENS, &plane, &bytes), 0);
	for (uint32_t moved = 0; moved < 2; moved++) {
		memset(got, 0, sizeof(got));
		assert_int_equal(kvp_get(m, 0, TOKENS, &dst, KVP_GET_VERIFY), TOKENS);
		assert_memory_equal(got, f->kv, sizeof(got));
		pthread_mutex_lock(&f->fake->lock);
		for (uint32_t i = 0; i < BLOCKS; i++)
			word[i] = kvp_block_mark(v, i);
		pthread_mutex_unlock(&f->fake->lock);
		memset(got, 0, sizeof(got));
		assert_int_equal(kvp_get(m, 0, TOKENS, &dst, KVP_GET_VERIFY), TOKENS);
		assert_memory_equal(got, f->kv, sizeof(got));
		pthread_mutex_lock(&f->fake->lock);
		for (uint32_t i = 0; i < BLOCKS; i++) {
			const struct kvp_payload_desc *d = &v->blocks[i].payload[KVP_TIER_DRAM];

			kvp_block_unmark(v, i, word[i]);
			kvp_block_move(v, i, kvp_load_relaxed(&d->where),
				kvp_load_relaxed(&d->offset), kvp_load_relaxed(&d->checksum));
		}
		pthread_mutex_unlock(&f->fake->lock);
	}
	kvp_release(m);
}

/* Coded bytes are nothing for kernels that take native ones. */
static void coded_is_not_there(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f);
	uint64_t addrs[BLOCKS];
	int32_t slots[BLOCKS];

	cuda_open(f, 0);
	warm_all(f, m);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, addrs), BLOCKS);
	pthread_mutex_lock(&f->fake->lock);
	for (uint32_t i = 0; i < f->fake->n_blocks; i++) {
		struct kvp_payload_desc *there = &f->fake->v.blocks[i].payload[KVP_TIER_VRAM];
		uint64_t where = kvp_load_relaxed(&there->where);

		if (where)
			kvp_store_relaxed(&there->where,
				kvp_where(kvp_where_extent(where), 2, BLOCK_BYTES / 4));
	}
	pthread_mutex_unlock(&f->fake->lock);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, addrs), 0);
	assert_int_equal(kvp_cuda_slots(m, f->cuda, 0, BLOCKS, 0, slots), 0);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(addrs[i], 0);
		assert_int_equal(slots[i], -1);
	}
	kvp_release(m);
}

/* What is mapped is not what stands under the extent's number by now. */
static void another_generation(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f);
	_Atomic(uint32_t) *generation;
	uint64_t addrs[BLOCKS];
	int32_t slots[BLOCKS];

	cuda_open(f, 0);
	warm_all(f, m);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, addrs), BLOCKS);
	pthread_mutex_lock(&f->fake->lock);
	for (uint32_t i = 0; i < KVP_MAX_EXTENTS; i++) {
		generation = &f->fake->v.extents[i].generation;
		if (kvp_load_relaxed(&f->fake->v.extents[i].tier) == KVP_TIER_VRAM)
			kvp_store_release(generation, kvp_load_relaxed(generation) + 1);
	}
	pthread_mutex_unlock(&f->fake->lock);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, addrs), 0);
	assert_int_equal(addrs[0], 0);
	assert_int_equal(kvp_cuda_slots(m, f->cuda, 0, BLOCKS, 0, slots), 0);
	assert_int_equal(slots[0], -1);
	kvp_release(m);
}

/* What lies on the device is copied there, and not across the bus. */
static void get_on_device(void **state)
{
	struct fixture *f = *state;
	uint64_t at = gpu_alloc(&gpu, TOKENS * TOKEN_BYTES), bytes;
	struct kvp_prefix *m = match(f);
	struct kvp_view_plane plane;
	struct kvp_view v = { .size = sizeof(v), .planes = &plane };
	uint8_t back[TOKENS * TOKEN_BYTES];
	int64_t before;

	cuda_open(f, 0);
	warm_all(f, m);
	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_NCLD, (void *)(uintptr_t)at, TOKENS,
				 &plane, &bytes),
		0);
	before = cudadrv_calls(gpu.sim, "cuMemcpyHtoDAsync_v2");
	assert_int_equal(kvp_cuda_get(m, f->cuda, 0, TOKENS, &v, gpu.stream), TOKENS);
	gpu_read(&gpu, back, at, sizeof(back));
	assert_memory_equal(back, f->kv, sizeof(back));
	assert_int_equal(cudadrv_calls(gpu.sim, "cuMemcpyHtoDAsync_v2"), before);
	assert_int_equal(props(f).direct_bytes, sizeof(back));
	assert_int_equal(props(f).staged_bytes, 0);
	assert_int_equal(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_release(m);
}

/* The daemon did not send it, or before anybody could map it. */
static void asked_for(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f);
	uint64_t addrs[BLOCKS];

	cuda_open(f, 0);
	assert_int_equal(props(f).mapped_bytes, SEGMENT);
	assert_true(f->fake->extent_gets > 0);
	warm_all(f, m);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, addrs), BLOCKS);
	same_bytes(m, 5, addrs[5]);
	kvp_release(m);
}

static void outside_the_window(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f);
	uint64_t addrs[BLOCKS];
	int32_t slots[BLOCKS];

	cuda_open(f, 0);
	warm_all(f, m);
	assert_int_equal(kvp_cuda_slots(m, f->cuda, 0, BLOCKS, 0, slots), 0);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, addrs), BLOCKS);
	same_bytes(m, 7, addrs[7]);
	kvp_release(m);
}

static void soon_mapped(struct fixture *f, uint64_t bytes)
{
	for (uint32_t i = 0; i < 12000 && props(f).mapped_bytes != bytes; i++)
		usleep(5000);
	assert_int_equal(props(f).mapped_bytes, bytes);
}

static uint32_t retire_acks(struct fixture *f)
{
	uint32_t acks;

	pthread_mutex_lock(&f->fake->lock);
	acks = f->fake->s[0].retire_acks;
	pthread_mutex_unlock(&f->fake->lock);
	return acks;
}

static uint32_t offer_acks(struct fixture *f)
{
	uint32_t acks;

	pthread_mutex_lock(&f->fake->lock);
	acks = f->fake->s[0].offer_acks;
	pthread_mutex_unlock(&f->fake->lock);
	return acks;
}

/* The daemon hears that its memory can be written when it is mapped, and not before; once, whoever maps it. */
static void mapped_then_told(void **state)
{
	const struct cudadrv_fault hangs = { .function = "cuMemMap", .action = CUDADRV_HANG };
	struct fixture *f = *state;
	struct kvp_cuda_opts o = { .size = sizeof(o), .stage_bytes = 1 << 20 };
	struct kvp_cuda *other;
	uint32_t fault, early;

	cuda_open(f, 0);
	assert_int_equal(kvp_cuda_open(f->client, &o, &other), 0);
	assert_int_equal(props(f).mapped_bytes, SEGMENT);
	assert_int_equal(cudadrv_set(gpu.sim, &hangs, &fault), 0);
	fake_offer_device(f->fake);
	for (uint32_t i = 0; i < 12000 && !cudadrv_hit(gpu.sim, fault); i++)
		usleep(5000);
	usleep(20000);
	early = offer_acks(f);
	assert_int_equal(cudadrv_clear(gpu.sim), 0);
	assert_int_equal(early, 0);
	soon_mapped(f, 2 * SEGMENT);
	for (uint32_t i = 0; i < 12000 && !offer_acks(f); i++)
		usleep(5000);
	usleep(20000);
	assert_int_equal(offer_acks(f), 1);
	kvp_cuda_close(other);
}

/* The daemon hears that it is given back when it is unmapped, and not before. */
static void given_back(void **state)
{
	const struct cudadrv_fault hangs = { .function = "cuMemUnmap", .action = CUDADRV_HANG };
	struct fixture *f = *state;
	uint32_t acks = 0, fault, early;

	cuda_open(f, 0);
	assert_int_equal(props(f).mapped_bytes, SEGMENT);
	assert_int_equal(cudadrv_set(gpu.sim, &hangs, &fault), 0);
	fake_retire_device(f->fake);
	for (uint32_t i = 0; i < 12000 && !cudadrv_hit(gpu.sim, fault); i++)
		usleep(5000);
	usleep(20000);
	early = retire_acks(f);
	assert_int_equal(cudadrv_clear(gpu.sim), 0);
	assert_int_equal(early, 0);
	for (uint32_t i = 0; i < 12000 && !acks; i++) {
		usleep(5000);
		acks = retire_acks(f);
	}
	assert_int_equal(acks, 1);
	assert_int_equal(props(f).mapped_bytes, 0);
}

/* A prefix of a daemon that has gone can be read until it is released. */
static void daemon_goes(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f);
	uint64_t addrs[BLOCKS];

	cuda_open(f, 0);
	warm_all(f, m);
	fake_stop(f->fake);
	usleep(200000);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, addrs), BLOCKS);
	same_bytes(m, 2, addrs[2]);
	assert_int_equal(props(f).mapped_bytes, SEGMENT);
	kvp_release(m);
	soon_mapped(f, 0);
	f->fake = fake_start(NULL);
}

/* What a step still reads of a daemon that has gone is let go of when it is over, also where another one is there by then. */
static void daemon_goes_another_comes(void **state)
{
	struct fixture *f = *state;
	struct kvp_counters s = { .size = sizeof(s) };
	struct kvp_prefix *m = match(f);
	struct kvp_timeline *line;
	uint64_t value;
	char path[64];

	cuda_open(f, 0);
	warm_all(f, m);
	assert_int_equal(kvp_timeline_new(f->client, &line), 0);
	strcpy(path, f->fake->path);
	fake_stop(f->fake);
	f->fake = fake_start(path);
	for (uint32_t i = 0; i < 12000 && (kvp_stats(f->client, &s) < 0 || !s.reattached); i++)
		usleep(5000);
	assert_int_equal(s.reattached, 1);
	usleep(200000); /* the thread comes to know it */
	assert_int_equal(props(f).mapped_bytes, SEGMENT);
	assert_int_equal(kvp_cuda_mark(f->cuda, line, gpu.stream, &value), 0);
	assert_int_equal(kvp_release_after(m, line, value), 0);
	gpu_sync(&gpu);
	soon_mapped(f, 0);
}

/* It writes on the device as before, also before the new daemon's memory is mapped there. */
static void daemon_comes_again(void **state)
{
	const struct cudadrv_fault hangs = { .function = "cuMemUnmap", .action = CUDADRV_HANG };
	struct fixture *f = *state;
	struct kvp_counters s = { .size = sizeof(s) };
	const uint64_t memory = f->memory, at = f->at;
	struct kvp_grant *g;
	uint32_t fault;
	uint8_t uuid[16];
	char path[64];
	int r;

	cuda_open(f, 0);
	strcpy(path, f->fake->path);
	assert_int_equal(cudadrv_uuid(gpu.sim, 0, uuid), 0);
	assert_int_equal(cudadrv_set(gpu.sim, &hangs, &fault), 0);
	fake_stop(f->fake);
	for (uint32_t i = 0; i < 12000 && !cudadrv_hit(gpu.sim, fault); i++)
		usleep(5000);
	f->fake = fake_start(path);
	fake_device_of(f->fake, uuid, segment_make(f), SEGMENT, SLOT_BYTES, 512, copy_there, f);
	f->fake->v.devices[0].import = KVP_IMPORT_CUDA_FD;
	SET(f->fake, room, 0);
	for (uint32_t i = 0; i < 12000 && (kvp_stats(f->client, &s) < 0 || !s.reattached); i++)
		usleep(5000);
	r = kvp_reserve_on(f->space, 0, 0, NULL, &g);
	assert_int_equal(cudadrv_clear(gpu.sim), 0);
	assert_int_equal(s.reattached, 1);
	assert_int_equal(r, -EAGAIN);
	soon_mapped(f, SEGMENT);
	assert_int_equal(gpu.cu.cuMemUnmap(at, SEGMENT), CU_OK);
	assert_int_equal(gpu.cu.cuMemAddressFree(at, SEGMENT), CU_OK);
	assert_int_equal(gpu.cu.cuMemRelease(memory), CU_OK);
}

/* A stream behind a wait: has it come there? */
static int behind(struct fixture *f, struct kvp_timeline *line, uint64_t value, uint32_t ms)
{
	(void)f;
	for (uint32_t i = 0; i < ms; i++) {
		if (kvp_timeline_reached(line, value) == 1)
			return 1;
		usleep(1000);
	}
	return 0;
}

static void wait_on_stream(struct fixture *f, struct kvp_prefix *m, struct kvp_timeline *line,
	struct kvp_ticket *ret_ticket, uint64_t *ret_value)
{
	assert_int_equal(kvp_cuda_warm(m, f->cuda, NULL, ret_ticket), 0);
	assert_int_equal(kvp_cuda_stream_wait(f->cuda, gpu.stream, *ret_ticket), 0);
	assert_int_equal(kvp_cuda_mark(f->cuda, line, gpu.stream, ret_value), 0);
	assert_int_equal(behind(f, line, *ret_value, 20), 0);
}

static void stream_waits(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f);
	struct kvp_timeline *line;
	struct kvp_ticket ticket;
	uint64_t addrs[BLOCKS], value;
	int why = 1;

	cuda_open(f, 0);
	assert_int_equal(kvp_timeline_new(f->client, &line), 0);
	for (uint32_t i = 0; i < 3; i++) {
		SET(f->fake, warm_held, true);
		wait_on_stream(f, m, line, &ticket, &value);
		fake_warm_go(f->fake);
		assert_int_equal(behind(f, line, value, WAIT_MS), 1);
		assert_int_equal(kvp_ticket_wait(f->client, ticket, 0, &why), BLOCKS);
		assert_int_equal(why, 0);
	}
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, addrs), BLOCKS);
	same_bytes(m, 0, addrs[0]);
	kvp_release(m);
	gpu_sync(&gpu);
}

/* A step is enqueued with addresses at which nothing lies yet, and reads what has come. */
static void enqueued_early(void **state)
{
	struct fixture *f = *state;
	struct kvp_warm_opts o = { .size = sizeof(o), .flags = KVP_WARM_EARLY };
	uint64_t addrs[BLOCKS], then[BLOCKS], value, mine = gpu_alloc(&gpu, TOKENS * TOKEN_BYTES);
	struct kvp_cuda_range range = { .size = sizeof(range) };
	uint8_t back[TOKENS * TOKEN_BYTES];
	struct kvp_prefix *m = match(f);
	int32_t slots[BLOCKS + 1];
	struct kvp_timeline *line;
	struct kvp_ticket ticket;
	int why = 1;

	cuda_open(f, 0);
	assert_int_equal(kvp_timeline_new(f->client, &line), 0);
	SET(f->fake, warm_held, true);
	assert_int_equal(kvp_cuda_warm(m, f->cuda, &o, &ticket), 0);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, WAIT_MS), BLOCKS);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, addrs), 0);
	assert_int_equal(kvp_cuda_slots(m, f->cuda, 0, BLOCKS, 0, slots), 0);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 2, addrs), -EINVAL);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, KVP_DEVICE_PENDING, addrs), BLOCKS);
	assert_int_equal(
		kvp_cuda_slots(m, f->cuda, 0, BLOCKS + 1, KVP_DEVICE_PENDING, slots), BLOCKS);
	assert_int_equal(slots[BLOCKS], -1);
	assert_int_equal(kvp_cuda_window(f->cuda, f->space, &range), 0);
	assert_int_equal(kvp_cuda_stream_wait(f->cuda, gpu.stream, ticket), 0);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(addrs[i], range.base + (uint64_t)slots[i] * range.slot_bytes);
		assert_int_equal(gpu.cu.cuMemcpyDtoDAsync_v2(mine + (uint64_t)i * BLOCK_BYTES,
					 addrs[i], BLOCK_BYTES, gpu.stream),
			CU_OK);
	}
	assert_int_equal(kvp_cuda_mark(f->cuda, line, gpu.stream, &value), 0);
	assert_int_equal(behind(f, line, value, 20), 0);
	fake_warm_go(f->fake);
	assert_int_equal(behind(f, line, value, WAIT_MS), 1);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, 0, &why), BLOCKS);
	assert_int_equal(why, 0);
	gpu_read(&gpu, back, mine, sizeof(back));
	for (uint32_t i = 0; i < BLOCKS; i++) {
		const void *here;

		assert_int_equal(kvp_payloads(m, i, 1, &here), 1);
		assert_memory_equal(back + (size_t)i * BLOCK_BYTES, here, BLOCK_BYTES);
	}
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, 0, then), BLOCKS);
	assert_memory_equal(then, addrs, sizeof(addrs));
	kvp_release(m);
	assert_int_equal(gpu.cu.cuMemFree_v2(mine), CU_OK);
}

/* The ticket fails, and its memory is given back, while what was enqueued may still read there. */
static void early_stays_mapped(void **state)
{
	struct fixture *f = *state;
	struct kvp_warm_opts o = { .size = sizeof(o), .flags = KVP_WARM_EARLY };
	struct kvp_prefix *m = match(f);
	uint64_t addrs[BLOCKS], value;
	struct kvp_timeline *line;
	struct kvp_ticket ticket;
	uint32_t acks = 0;
	void *mine;

	cuda_open(f, 0);
	assert_int_equal(kvp_timeline_new(f->client, &line), 0);
	SET(f->fake, warm_held, true);
	SET(f->fake, warm_status, -EIO);
	SET(f->fake, warm_at_most, 0);
	assert_int_equal(kvp_cuda_warm(m, f->cuda, &o, &ticket), 0);
	assert_int_equal(kvp_ticket_placed(f->client, ticket, WAIT_MS), BLOCKS);
	assert_int_equal(kvp_cuda_addrs(m, f->cuda, 0, BLOCKS, KVP_DEVICE_PENDING, addrs), BLOCKS);
	assert_int_equal(gpu.cu.cuMemHostAlloc(&mine, BLOCK_BYTES, 0), CU_OK);
	gpu_hold(&gpu);
	assert_int_equal(
		gpu.cu.cuMemcpyDtoHAsync_v2(mine, addrs[3], BLOCK_BYTES, gpu.stream), CU_OK);
	assert_int_equal(kvp_cuda_mark(f->cuda, line, gpu.stream, &value), 0);
	assert_int_equal(kvp_release_after(m, line, value), 0);
	fake_warm_go(f->fake);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, WAIT_MS, NULL), 0);
	fake_retire_device(f->fake);
	usleep(100000);
	/* Its thread comes by, for whatever reason. */
	(void)kvp_host_register(f->cuda, 0, 100);
	usleep(20000);
	assert_int_equal(retire_acks(f), 0);
	gpu_go(&gpu);
	for (uint32_t i = 0; i < 12000 && !acks; i++) {
		usleep(5000);
		acks = retire_acks(f);
	}
	assert_int_equal(acks, 1);
	gpu_sync(&gpu);
	assert_int_equal(gpu.cu.cuMemFreeHost(mine), CU_OK);
}

/* The ticket never ends: the time is over, the daemon goes, or it is closed. */
static void stream_goes_on(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f);
	struct kvp_timeline *line;
	struct kvp_ticket ticket;
	uint64_t value;

	assert_int_equal(kvp_timeline_new(f->client, &line), 0);
	SET(f->fake, warm_held, true);
	cuda_open(f, 100);
	wait_on_stream(f, m, line, &ticket, &value);
	assert_int_equal(behind(f, line, value, WAIT_MS), 1);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, 0, NULL), -ETIMEDOUT);
	gpu_sync(&gpu);
	f->cuda = kvp_cuda_close(f->cuda);
	kvp_timeline_free(line);

	assert_int_equal(kvp_timeline_new(f->client, &line), 0);
	cuda_open(f, 0);
	wait_on_stream(f, m, line, &ticket, &value);
	fake_stop(f->fake);
	assert_int_equal(behind(f, line, value, WAIT_MS), 1);
	assert_int_equal(kvp_ticket_wait(f->client, ticket, 0, NULL), -ESHUTDOWN);
	assert_int_equal(kvp_cuda_stream_wait(f->cuda, gpu.stream, ticket), -ESHUTDOWN);
	gpu_sync(&gpu);
	kvp_release(m);
	f->fake = fake_start(NULL);
}

/*
 * The driver may wait for all of the device's streams while it maps or unmaps memory, also for one that waits
 * for a ticket.
 */
static void stream_goes_on_while_unmapping(void **state)
{
	const struct cudadrv_fault hangs = { .function = "cuMemUnmap", .action = CUDADRV_HANG };
	struct fixture *f = *state;
	struct kvp_prefix *m = match(f);
	struct kvp_timeline *line;
	struct kvp_ticket ticket;
	uint64_t value;
	uint32_t fault;
	int there;

	cuda_open(f, 100);
	assert_int_equal(kvp_timeline_new(f->client, &line), 0);
	SET(f->fake, warm_held, true);
	assert_int_equal(cudadrv_set(gpu.sim, &hangs, &fault), 0);
	fake_retire_device(f->fake);
	for (uint32_t i = 0; i < 12000 && !cudadrv_hit(gpu.sim, fault); i++)
		usleep(5000);
	assert_true(cudadrv_hit(gpu.sim, fault) > 0);
	assert_int_equal(kvp_cuda_warm(m, f->cuda, NULL, &ticket), 0);
	assert_int_equal(kvp_cuda_stream_wait(f->cuda, gpu.stream, ticket), 0);
	assert_int_equal(kvp_cuda_mark(f->cuda, line, gpu.stream, &value), 0);
	there = behind(f, line, value, WAIT_MS);
	assert_int_equal(cudadrv_clear(gpu.sim), 0);
	assert_int_equal(there, 1);
	gpu_sync(&gpu);
	kvp_release(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(read_in_place, setup, teardown),
		cmocka_unit_test_setup_teardown(host_reads_dram, setup, teardown),
		cmocka_unit_test_setup_teardown(coded_is_not_there, setup, teardown),
		cmocka_unit_test_setup_teardown(another_generation, setup, teardown),
		cmocka_unit_test_setup_teardown(get_on_device, setup, teardown),
		cmocka_unit_test_setup_teardown(asked_for, setup_asked, teardown),
		cmocka_unit_test_setup_teardown(outside_the_window, setup_odd, teardown),
		cmocka_unit_test_setup_teardown(mapped_then_told, setup, teardown),
		cmocka_unit_test_setup_teardown(given_back, setup, teardown),
		cmocka_unit_test_setup_teardown(daemon_goes, setup, teardown),
		cmocka_unit_test_setup_teardown(daemon_goes_another_comes, setup, teardown),
		cmocka_unit_test_setup_teardown(daemon_comes_again, setup, teardown),
		cmocka_unit_test_setup_teardown(stream_waits, setup, teardown),
		cmocka_unit_test_setup_teardown(enqueued_early, setup, teardown),
		cmocka_unit_test_setup_teardown(early_stays_mapped, setup, teardown),
		cmocka_unit_test_setup_teardown(stream_goes_on, setup, teardown),
		cmocka_unit_test_setup_teardown(stream_goes_on_while_unmapping, setup, teardown),
	};
	int r;

	gpu_begin(&gpu, NULL);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	return gpu_end(&gpu) || r;
}
