// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cuda/kvp_cuda_prims.h"
#include "tests/cudasim/cudasim.h"
#include "tests/cudasim/fibre.h"

#define MAX_THREADS 1024u
#define MAX_WARPS   (MAX_THREADS / 32u)
#define MAX_SMEM    (227u << 10) /* the largest opt-in size of any device we compile for */
#define MAX_REGIONS 1024u
#define MAX_COPIES  256u /* cp.async under way per thread; more is a bug in a kernel */
#define NOBODY      0xffffffffu

enum wait_kind { RUNNABLE, DONE, AT_SYNC, AT_SYNCWARP, AT_SHFL_XOR, AT_SHFL, AT_BALLOT, AT_MMA };

/* What is known about one byte of shared memory. Epochs only grow, so nothing is ever cleared. */
struct shadow {
	uint32_t init;        /* block serial of the last write */
	uint32_t write_epoch; /* block epoch, and the writer's warp epoch, of the last write */
	uint32_t write_warp_epoch;
	uint32_t writer;
	uint32_t read_epoch; /* block epoch of the reads below */
	uint32_t read_warps; /* bit per warp that read in that epoch */
	uint32_t lanes;      /* lanes that read, of lanes_warp in its epoch lanes_epoch */
	uint32_t lanes_warp;
	uint32_t lanes_epoch;
	uint32_t pending; /* thread whose cp.async will write here, NOBODY if none */
};

struct copy {
	uint32_t at;
	uint32_t bytes;
	const void *from;
	uint32_t group;
};

struct thread {
	struct fibre *fibre;
	enum wait_kind waits;
	struct copy copies[MAX_COPIES];
	uint32_t n_copies;
	uint32_t group; /* number of the open cp.async group */
	uint32_t syncs; /* block barriers met */
	/* operands of a collective, and its result */
	uint32_t value;
	uint32_t arg;
	float *c;
	const uint32_t *a;
	const uint32_t *b;
	int bf16;
};

struct region {
	const unsigned char *p; /* where kernels see it */
	unsigned char *at;      /* where it lies */
	size_t bytes;
	int writable;
	uint32_t *toucher; /* per byte: 1 + the thread that wrote it in this launch */
};

static struct region regions[MAX_REGIONS];
static uint32_t n_regions;
static void (*on_touch)(const void *p, uint32_t size);
static uint32_t skip_barrier = CUDASIM_WHOLE;

static struct {
	void (*fn)(const void *params);
	const void *params;
	struct kvp_cuda_shape shape;
	struct cudasim_report *report;
	uint64_t rng;
	uint32_t block[3];
	uint32_t serial;        /* of the block, over all launches */
	uint32_t launch_thread; /* global number of the block's thread 0, plus 1 */
	uint32_t epoch;         /* counts barriers over all launches */
	uint32_t warp_epoch[MAX_WARPS];
	uint32_t current;
	uint32_t runnable[MAX_THREADS];
	uint32_t n_runnable;
	uint32_t at_sync;
	uint32_t at_warp[MAX_WARPS];
	uint32_t done;
} sim;

static struct thread threads[MAX_THREADS];
static struct shadow shadows[MAX_SMEM];
alignas(16) static unsigned char smem[MAX_SMEM];

static uint64_t rng_next(void)
{
	/* splitmix64 */
	uint64_t z = (sim.rng += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

__attribute__((format(printf, 2, 3))) static void hazard(int kind, const char *fmt, ...)
{
	struct cudasim_report *r = sim.report;
	va_list ap;
	int n;

	r->count[kind]++;
	if (r->total++ != 0)
		return;
	n = snprintf(r->first, sizeof(r->first), "block %u,%u,%u thread %u: ", sim.block[0],
		sim.block[1], sim.block[2], sim.current);
	va_start(ap, fmt);
	vsnprintf(r->first + n, sizeof(r->first) - (size_t)n, fmt, ap);
	va_end(ap);
}

/* ---- threads, barriers, collectives ---- */

static void make_runnable(uint32_t t)
{
	threads[t].waits = RUNNABLE;
	sim.runnable[sim.n_runnable++] = t;
}

/* Now and then lets somebody else go first where nothing demands it. */
static void maybe_yield(void)
{
	uint32_t t = sim.current;

	if ((rng_next() & 3) != 0)
		return;
	make_runnable(t);
	fibre_leave(threads[t].fibre, 0);
}

static void wait_for_others(enum wait_kind kind)
{
	threads[sim.current].waits = kind;
	fibre_leave(threads[sim.current].fibre, 0);
}

static float half_to_float(uint32_t h)
{
	uint32_t sign = (h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu, u;
	float f;

	if (e == 0) {
		f = ldexpf((float)m, -24);
		return sign ? -f : f;
	}
	u = sign | (e == 31 ? 0x7f800000u | m << 13 : (e + 112u) << 23 | m << 13);
	memcpy(&f, &u, 4);
	return f;
}

static float bf16_to_float(uint32_t h)
{
	uint32_t u = h << 16;
	float f;

	memcpy(&f, &u, 4);
	return f;
}

static uint32_t double_to_half(double d)
{
	uint32_t sign = signbit(d) ? 0x8000u : 0u;
	double a = fabs(d), scaled;
	int e;

	if (a != a)
		return 0x7fffu;
	if (a >= 65520.0)
		return sign | 0x7c00u;
	if (a < 0x1p-14) {
		/* nearbyint rounds to even; 1024 carries into the first normal number by itself */
		return sign | (uint32_t)nearbyint(a * 0x1p24);
	}
	frexp(a, &e);
	scaled = nearbyint(ldexp(a, 11 - e));
	/* a rounded-up 2048 carries into the exponent by itself */
	return sign | (((uint32_t)(e + 14) << 10) + ((uint32_t)scaled - 1024u));
}

/* The fragments of mma.m16n8k16 as kvp_cuda_prims.h lays them out. */
static void run_mma(uint32_t warp)
{
	static float a[16][16], b[16][8];
	struct thread *w = &threads[warp * 32];
	float (*get)(uint32_t) = w[0].bf16 ? bf16_to_float : half_to_float;

	for (uint32_t lane = 0; lane < 32; lane++) {
		uint32_t g = lane / 4, q = lane % 4;

		for (uint32_t i = 0; i < 4; i++) {
			uint32_t row = g + 8 * (i & 1), col = 2 * q + 8 * (i >> 1);

			a[row][col] = get(w[lane].a[i] & 0xffffu);
			a[row][col + 1] = get(w[lane].a[i] >> 16);
		}
		for (uint32_t i = 0; i < 2; i++) {
			b[2 * q + 8 * i][g] = get(w[lane].b[i] & 0xffffu);
			b[2 * q + 8 * i + 1][g] = get(w[lane].b[i] >> 16);
		}
	}
	for (uint32_t lane = 0; lane < 32; lane++) {
		for (uint32_t i = 0; i < 4; i++) {
			uint32_t row = lane / 4 + 8 * (i >> 1), col = 2 * (lane % 4) + (i & 1);
			float sum = 0;

			for (uint32_t k = 0; k < 16; k++)
				sum += a[row][k] * b[k][col];
			w[lane].c[i] += sum;
		}
	}
}

/* Called by the last lane that arrives. */
static void run_collective(uint32_t warp, enum wait_kind kind)
{
	struct thread *w = &threads[warp * 32];
	uint32_t in[32], votes = 0;

	if (kind == AT_SYNCWARP) {
		sim.warp_epoch[warp]++;
		return;
	}
	if (kind == AT_MMA) {
		run_mma(warp);
		return;
	}
	for (uint32_t lane = 0; lane < 32; lane++)
		in[lane] = w[lane].value;
	if (kind == AT_BALLOT) {
		for (uint32_t lane = 0; lane < 32; lane++)
			votes |= in[lane] << lane;
		for (uint32_t lane = 0; lane < 32; lane++)
			w[lane].value = votes;
		return;
	}
	for (uint32_t lane = 0; lane < 32; lane++)
		w[lane].value = in[(kind == AT_SHFL ? w[lane].arg : lane ^ w[lane].arg) & 31u];
}

static void collective(enum wait_kind kind)
{
	uint32_t t = sim.current, warp = t / 32;

	for (uint32_t i = warp * 32; i < warp * 32 + 32; i++) {
		enum wait_kind other = threads[i].waits;

		if (other != RUNNABLE && other != kind && i != t) {
			hazard(CUDASIM_DIVERGE,
				"warp collective %d while thread %u is at %d or gone", (int)kind, i,
				(int)other);
			break;
		}
	}
	if (++sim.at_warp[warp] < 32) {
		wait_for_others(kind);
		return;
	}
	sim.at_warp[warp] = 0;
	run_collective(warp, kind);
	for (uint32_t i = warp * 32; i < warp * 32 + 32; i++)
		if (i != t)
			make_runnable(i);
	maybe_yield();
}

static void body(void *arg)
{
	uint32_t t = (uint32_t)(uintptr_t)arg;
	struct thread *th = &threads[t];

	sim.fn(sim.params);
	if (th->n_copies != 0)
		hazard(CUDASIM_PENDING, "ends with %u copies under way", th->n_copies);
	th->waits = DONE;
	sim.done++;
	fibre_leave(th->fibre, 1);
}

static void run_block(void)
{
	uint32_t n = sim.shape.threads;

	sim.serial++;
	sim.epoch++;
	sim.at_sync = 0;
	sim.done = 0;
	sim.n_runnable = 0;
	memset(sim.at_warp, 0, sizeof(sim.at_warp));
	memset(smem, 0xa5, sim.shape.smem_bytes);
	for (uint32_t i = 0; i < sim.shape.smem_bytes; i++)
		shadows[i].pending = NOBODY;
	for (uint32_t t = 0; t < n; t++) {
		threads[t].n_copies = 0;
		threads[t].group = 0;
		threads[t].syncs = 0;
		fibre_start(threads[t].fibre, body, reinterpret_cast<void *>(uintptr_t{ t }));
		make_runnable(t);
	}
	while (sim.n_runnable > 0) {
		uint32_t i = (uint32_t)(rng_next() % sim.n_runnable);
		uint32_t t = sim.runnable[i];

		sim.runnable[i] = sim.runnable[--sim.n_runnable];
		sim.current = t;
		fibre_enter(threads[t].fibre);
	}
	if (sim.done < n)
		hazard(CUDASIM_DIVERGE, "%u of %u threads wait for ever", n - sim.done, n);
}

static size_t toucher_bytes(const struct region *r)
{
	return (r->bytes + 1) * sizeof(uint32_t);
}

extern "C" int cudasim_launch(void (*fn)(const void *params), const void *params,
	const struct kvp_cuda_shape *shape, uint64_t seed, struct cudasim_report *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (shape->threads == 0 || shape->threads % 32 != 0 || shape->threads > MAX_THREADS ||
		shape->smem_bytes > MAX_SMEM || shape->grid[0] == 0 || shape->grid[1] == 0 ||
		shape->grid[2] == 0 || shape->grid[0] > 0x7fffffffu || shape->grid[1] > 65535 ||
		shape->grid[2] > 65535)
		return -EINVAL;
	for (uint32_t t = 0; t < shape->threads; t++) {
		if (threads[t].fibre == NULL)
			threads[t].fibre = fibre_new();
		if (threads[t].fibre == NULL)
			return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_regions; i++)
		if (regions[i].toucher)
			madvise(regions[i].toucher, toucher_bytes(&regions[i]), MADV_DONTNEED);
	sim.fn = fn;
	sim.params = params;
	sim.shape = *shape;
	sim.report = ret;
	sim.rng = seed;
	sim.launch_thread = 1;
	for (uint32_t z = 0; z < shape->grid[2]; z++) {
		for (uint32_t y = 0; y < shape->grid[1]; y++) {
			for (uint32_t x = 0; x < shape->grid[0]; x++) {
				sim.block[0] = x;
				sim.block[1] = y;
				sim.block[2] = z;
				run_block();
				sim.launch_thread += shape->threads;
			}
		}
	}
	return 0;
}

extern "C" void kvp_launched(uint32_t threads_max)
{
	if (sim.shape.threads > threads_max)
		hazard(CUDASIM_LAUNCH, "%u threads in a kernel for %u", sim.shape.threads,
			threads_max);
}

extern "C" uint32_t kvp_tid(void)
{
	return sim.current;
}
extern "C" uint32_t kvp_threads(void)
{
	return sim.shape.threads;
}
extern "C" uint32_t kvp_block_x(void)
{
	return sim.block[0];
}
extern "C" uint32_t kvp_block_y(void)
{
	return sim.block[1];
}
extern "C" uint32_t kvp_block_z(void)
{
	return sim.block[2];
}
extern "C" uint32_t kvp_grid_x(void)
{
	return sim.shape.grid[0];
}

extern "C" void cudasim_skip_barrier(uint32_t n)
{
	skip_barrier = n;
}

extern "C" void kvp_sync(void)
{
	uint32_t t = sim.current;

	if (threads[t].syncs++ == skip_barrier)
		return;
	if (sim.done > 0)
		hazard(CUDASIM_DIVERGE, "barrier after %u threads have ended", sim.done);
	if (++sim.at_sync < sim.shape.threads) {
		wait_for_others(AT_SYNC);
		return;
	}
	sim.at_sync = 0;
	sim.epoch++;
	for (uint32_t i = 0; i < sim.shape.threads; i++)
		if (i != t)
			make_runnable(i);
	maybe_yield();
}
extern "C" void kvp_syncwarp(void)
{
	collective(AT_SYNCWARP);
}
static uint32_t shuffle(enum wait_kind kind, uint32_t v, uint32_t arg)
{
	uint32_t t = sim.current;

	threads[t].value = v;
	threads[t].arg = arg;
	collective(kind);
	return threads[t].value;
}
extern "C" uint32_t kvp_shfl_xor_u32(uint32_t v, uint32_t mask)
{
	return shuffle(AT_SHFL_XOR, v, mask);
}
extern "C" float kvp_shfl_xor_f32(float v, uint32_t mask)
{
	return kvp_bits_f32(shuffle(AT_SHFL_XOR, kvp_f32_bits(v), mask));
}
extern "C" uint32_t kvp_shfl_u32(uint32_t v, uint32_t lane)
{
	return shuffle(AT_SHFL, v, lane);
}
extern "C" uint32_t kvp_ballot(int predicate)
{
	return shuffle(AT_BALLOT, predicate != 0, 0);
}
/* Row g of the result is column g of what the lanes 4 r + g / 2 hold. */
extern "C" uint32_t kvp_transpose(uint32_t a)
{
	uint32_t lane = sim.current % 32, g = lane / 4, q = lane % 4, half = g % 2 * 16;
	uint32_t even = kvp_shfl_u32(a, 4 * (2 * q) + g / 2);
	uint32_t odd = kvp_shfl_u32(a, 4 * (2 * q + 1) + g / 2);

	return (even >> half & 0xffffu) | (odd >> half & 0xffffu) << 16;
}
static void mma(float *c, const uint32_t *a, const uint32_t *b, int bf16)
{
	struct thread *th = &threads[sim.current];

	th->c = c;
	th->a = a;
	th->b = b;
	th->bf16 = bf16;
	collective(AT_MMA);
}
extern "C" void kvp_mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	mma(c, a, b, 0);
}
extern "C" void kvp_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	mma(c, a, b, 1);
}

/* ---- shared memory ---- */

static int in_shared(uint32_t at, uint32_t size)
{
	if (at % size != 0)
		hazard(CUDASIM_ALIGN, "shared offset %u for %u bytes", at, size);
	if (at > sim.shape.smem_bytes || size > sim.shape.smem_bytes - at) {
		hazard(CUDASIM_BOUNDS, "shared offset %u of %u", at, sim.shape.smem_bytes);
		return 0;
	}
	return at % size == 0;
}

static void shared_race(const char *what, uint32_t at, uint32_t other)
{
	hazard(CUDASIM_RACE, "%s at shared offset %u, without a barrier to thread %u", what, at,
		other);
}

/* Was `other`'s write ordered before us: by a block barrier, or by one of our own warp's? */
static int write_is_ordered(const struct shadow *s, uint32_t t)
{
	if (s->writer == t || s->write_epoch != sim.epoch)
		return 1;
	return s->writer / 32 == t / 32 && s->write_warp_epoch != sim.warp_epoch[t / 32];
}

static void note_read(uint32_t at, uint32_t size)
{
	uint32_t t = sim.current, warp = t / 32, lane_bit = 1u << (t % 32);

	for (uint32_t i = at; i < at + size; i++) {
		struct shadow *s = &shadows[i];

		if (s->pending != NOBODY) {
			hazard(CUDASIM_PENDING, "reads shared offset %u before thread %u waited", i,
				s->pending);
			return;
		}
		if (s->init != sim.serial) {
			hazard(CUDASIM_UNINIT, "reads shared offset %u, never written", i);
			return;
		}
		if (!write_is_ordered(s, t)) {
			shared_race("read", i, s->writer);
			return;
		}
		if (s->read_epoch != sim.epoch) {
			s->read_epoch = sim.epoch;
			s->read_warps = 0;
			s->lanes = 0;
		}
		s->read_warps |= 1u << warp;
		if (s->lanes_warp != warp || s->lanes_epoch != sim.warp_epoch[warp])
			s->lanes = 0;
		s->lanes_warp = warp;
		s->lanes_epoch = sim.warp_epoch[warp];
		s->lanes |= lane_bit;
	}
}

static void note_write(uint32_t at, uint32_t size)
{
	uint32_t t = sim.current, warp = t / 32, lane_bit = 1u << (t % 32);

	for (uint32_t i = at; i < at + size; i++) {
		struct shadow *s = &shadows[i];

		if (s->pending != NOBODY && s->pending != t)
			hazard(CUDASIM_PENDING, "writes shared offset %u under thread %u's copy", i,
				s->pending);
		if (s->init == sim.serial && !write_is_ordered(s, t))
			shared_race("write after write", i, s->writer);
		if (s->init == sim.serial && s->read_epoch == sim.epoch) {
			uint32_t others = s->read_warps & ~(1u << warp);

			if (others != 0)
				shared_race("write after read", i,
					(uint32_t)__builtin_ctz(others) * 32);
			else if (s->lanes_warp == warp && s->lanes_epoch == sim.warp_epoch[warp] &&
				 (s->lanes & ~lane_bit) != 0)
				shared_race("write after read", i,
					warp * 32 + (uint32_t)__builtin_ctz(s->lanes & ~lane_bit));
		}
		s->init = sim.serial;
		s->write_epoch = sim.epoch;
		s->write_warp_epoch = sim.warp_epoch[warp];
		s->writer = t;
	}
}

static void shared_read(uint32_t at, void *to, uint32_t size)
{
	memset(to, 0xa5, size);
	if (!in_shared(at, size))
		return;
	note_read(at, size);
	memcpy(to, smem + at, size);
}

static void shared_write(uint32_t at, const void *from, uint32_t size)
{
	if (!in_shared(at, size))
		return;
	for (uint32_t i = at; i < at + size; i++)
		if (shadows[i].pending == sim.current)
			hazard(CUDASIM_PENDING, "writes shared offset %u under its own copy", i);
	note_write(at, size);
	memcpy(smem + at, from, size);
}

extern "C" uint32_t kvp_lds_u8(uint32_t at)
{
	uint8_t v;

	shared_read(at, &v, 1);
	return v;
}
extern "C" uint32_t kvp_lds_u16(uint32_t at)
{
	uint16_t v;

	shared_read(at, &v, 2);
	return v;
}
extern "C" uint32_t kvp_lds_u32(uint32_t at)
{
	uint32_t v;

	shared_read(at, &v, 4);
	return v;
}
extern "C" float kvp_lds_f32(uint32_t at)
{
	return kvp_bits_f32(kvp_lds_u32(at));
}
extern "C" struct kvp_v2 kvp_lds_v2(uint32_t at)
{
	struct kvp_v2 v;

	shared_read(at, &v, 8);
	return v;
}
extern "C" struct kvp_v4 kvp_lds_v4(uint32_t at)
{
	struct kvp_v4 v;

	shared_read(at, &v, 16);
	return v;
}
extern "C" void kvp_sts_u8(uint32_t at, uint32_t v)
{
	uint8_t b = (uint8_t)v;

	shared_write(at, &b, 1);
}
extern "C" void kvp_sts_u16(uint32_t at, uint32_t v)
{
	uint16_t h = (uint16_t)v;

	shared_write(at, &h, 2);
}
extern "C" void kvp_sts_u32(uint32_t at, uint32_t v)
{
	shared_write(at, &v, 4);
}
extern "C" void kvp_sts_f32(uint32_t at, float v)
{
	kvp_sts_u32(at, kvp_f32_bits(v));
}

/* ---- global memory ---- */

extern "C" void cudasim_map_at(const void *p, void *at, size_t bytes, int writable)
{
	struct region *r = &regions[n_regions];
	void *t;

	if (n_regions == MAX_REGIONS)
		abort();
	n_regions++;
	r->p = static_cast<const unsigned char *>(p);
	r->at = static_cast<unsigned char *>(at);
	r->bytes = bytes;
	r->writable = writable;
	r->toucher = NULL;
	if (writable) {
		/* pages that nobody touches cost nothing, and are zero again once given back */
		t = mmap(NULL, toucher_bytes(r), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (t == MAP_FAILED)
			abort();
		r->toucher = static_cast<uint32_t *>(t);
	}
}

extern "C" void cudasim_map(const void *p, size_t bytes, int writable)
{
	cudasim_map_at(p, const_cast<void *>(p), bytes, writable);
}

extern "C" void cudasim_on_touch(void (*touch)(const void *p, uint32_t size))
{
	on_touch = touch;
}

extern "C" void cudasim_unmap_all(void)
{
	for (uint32_t i = 0; i < n_regions; i++)
		if (regions[i].toucher)
			munmap(regions[i].toucher, toucher_bytes(&regions[i]));
	n_regions = 0;
}

/* The region that holds [p, p + size), NULL after a report if none does. */
static struct region *in_global(const void *p, uint32_t size, uint32_t align)
{
	static uint32_t last;
	uintptr_t a = reinterpret_cast<uintptr_t>(p);

	if (a % align != 0) {
		hazard(CUDASIM_ALIGN, "global address %p for %u bytes", p, align);
		return NULL;
	}
	for (uint32_t n = 0; n < n_regions; n++) {
		uint32_t i = (last + n) % n_regions;
		struct region *r = &regions[i];
		uintptr_t base = reinterpret_cast<uintptr_t>(r->p);

		if (a >= base && a - base <= r->bytes && size <= r->bytes - (a - base)) {
			last = i;
			if (on_touch)
				on_touch(p, size);
			return r;
		}
	}
	hazard(CUDASIM_BOUNDS, "global address %p, %u bytes", p, size);
	return NULL;
}

static void global_read(const void *p, void *to, uint32_t size, uint32_t align)
{
	struct region *r = in_global(p, size, align);
	uint32_t me = sim.launch_thread + sim.current;

	memset(to, 0xa5, size);
	if (r == NULL)
		return;
	if (r->toucher) {
		const uint32_t *w = r->toucher + (static_cast<const unsigned char *>(p) - r->p);

		for (uint32_t i = 0; i < size; i++) {
			if (w[i] != 0 && w[i] != me) {
				hazard(CUDASIM_RACE, "reads %p that another thread wrote", p);
				break;
			}
		}
	}
	memcpy(to, r->at + (static_cast<const unsigned char *>(p) - r->p), size);
}

static void global_write(void *p, const void *from, uint32_t size)
{
	struct region *r = in_global(p, size, size);
	uint32_t me = sim.launch_thread + sim.current, *w;

	if (r == NULL)
		return;
	if (!r->writable) {
		hazard(CUDASIM_BOUNDS, "writes %p in a read-only region", p);
		return;
	}
	w = r->toucher + (static_cast<unsigned char *>(p) - r->p);
	for (uint32_t i = 0; i < size; i++) {
		if (w[i] != 0 && w[i] != me) {
			hazard(CUDASIM_RACE, "writes %p that another thread wrote", p);
			break;
		}
	}
	for (uint32_t i = 0; i < size; i++)
		w[i] = me;
	memcpy(r->at + (static_cast<unsigned char *>(p) - r->p), from, size);
}

extern "C" uint32_t kvp_ldg_u8(const void *p)
{
	uint8_t v;

	global_read(p, &v, 1, 1);
	return v;
}
extern "C" uint32_t kvp_ldg_u16(const void *p)
{
	uint16_t v;

	global_read(p, &v, 2, 2);
	return v;
}
extern "C" uint32_t kvp_ldg_u32(const void *p)
{
	uint32_t v;

	global_read(p, &v, 4, 4);
	return v;
}
extern "C" uint64_t kvp_ldg_u64(const void *p)
{
	uint64_t v;

	global_read(p, &v, 8, 8);
	return v;
}
extern "C" float kvp_ldg_f32(const void *p)
{
	return kvp_bits_f32(kvp_ldg_u32(p));
}
extern "C" struct kvp_v4 kvp_ldg_v4(const void *p)
{
	struct kvp_v4 v;

	global_read(p, &v, 16, 16);
	return v;
}
extern "C" void kvp_stg_u8(void *p, uint32_t v)
{
	uint8_t b = (uint8_t)v;

	global_write(p, &b, 1);
}
extern "C" void kvp_stg_u16(void *p, uint32_t v)
{
	uint16_t h = (uint16_t)v;

	global_write(p, &h, 2);
}
extern "C" void kvp_stg_u32(void *p, uint32_t v)
{
	global_write(p, &v, 4);
}
extern "C" void kvp_stg_f32(void *p, float v)
{
	kvp_stg_u32(p, kvp_f32_bits(v));
}
extern "C" void kvp_stg_v4(void *p, struct kvp_v4 v)
{
	global_write(p, &v, 16);
}

/* ---- asynchronous copies ---- */

extern "C" void kvp_cp_async16(uint32_t at, const void *from, uint32_t bytes)
{
	struct thread *th = &threads[sim.current];
	struct copy *c = &th->copies[th->n_copies];

	if (!in_shared(at, 16))
		return;
	if (bytes > 16) {
		hazard(CUDASIM_BOUNDS, "cp.async of %u bytes", bytes);
		return;
	}
	if (th->n_copies == MAX_COPIES) {
		hazard(CUDASIM_PENDING, "more than %u copies under way", MAX_COPIES);
		return;
	}
	for (uint32_t i = 0; i < 16; i++)
		if (shadows[at + i].pending == sim.current)
			hazard(CUDASIM_PENDING, "copies twice to shared offset %u", at + i);
	note_write(at, 16);
	memset(smem + at, 0xdb, 16);
	for (uint32_t i = 0; i < 16; i++)
		shadows[at + i].pending = sim.current;
	c->at = at;
	c->from = from;
	c->bytes = bytes;
	c->group = th->group;
	th->n_copies++;
}

extern "C" void kvp_cp_async_commit(void)
{
	threads[sim.current].group++;
}

/* The bytes are fetched only here: whoever changed the source meanwhile is seen. */
extern "C" void kvp_cp_async_wait(uint32_t n)
{
	struct thread *th = &threads[sim.current];
	uint32_t left = 0;

	for (uint32_t i = 0; i < th->n_copies; i++) {
		struct copy *c = &th->copies[i];
		unsigned char data[16] = { 0 };

		if (c->group + n >= th->group) {
			th->copies[left++] = *c;
			continue;
		}
		if (c->bytes > 0) {
			/* the whole 16 must be aligned, only `bytes` of them be there */
			global_read(c->from, data, c->bytes, 16);
		}
		memcpy(smem + c->at, data, 16);
		for (uint32_t k = c->at; k < c->at + 16; k++)
			shadows[k].pending = NOBODY;
		note_write(c->at, 16);
	}
	th->n_copies = left;
}

/* ---- arithmetic ---- */

extern "C" float kvp_div_rn(float a, float b)
{
	return a / b;
}
extern "C" float kvp_sqrt_rn(float a)
{
	return sqrtf(a);
}
extern "C" float kvp_rint(float a)
{
	return rintf(a);
}
extern "C" float kvp_fma(float a, float b, float c)
{
	return fmaf(a, b, c);
}
extern "C" float kvp_max(float a, float b)
{
	return fmaxf(a, b);
}
extern "C" float kvp_exp2(float a)
{
	return exp2f(a);
}
extern "C" float kvp_log2(float a)
{
	return log2f(a);
}
extern "C" uint32_t kvp_f32_bits(float a)
{
	uint32_t u;

	memcpy(&u, &a, 4);
	return u;
}
extern "C" float kvp_bits_f32(uint32_t a)
{
	float f;

	memcpy(&f, &a, 4);
	return f;
}
extern "C" uint32_t kvp_f32_to_f16_rn(float a)
{
	return double_to_half((double)a);
}
extern "C" float kvp_f16_to_f32(uint32_t a)
{
	return half_to_float(a & 0xffffu);
}
extern "C" uint32_t kvp_pack_f16(float lo, float hi)
{
	return double_to_half((double)lo) | double_to_half((double)hi) << 16;
}
static uint32_t float_to_bf16(float a)
{
	uint32_t u = kvp_f32_bits(a);

	if (a != a)
		return 0x7fffu;
	return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
extern "C" uint32_t kvp_pack_bf16(float lo, float hi)
{
	return float_to_bf16(lo) | float_to_bf16(hi) << 16;
}
extern "C" uint32_t kvp_h2_mul(uint32_t a, uint32_t b)
{
	return kvp_h2_fma(a, b, 0x80008000u);
}
extern "C" uint32_t kvp_h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t r = 0;

	for (uint32_t s = 0; s < 32; s += 16) {
		double x = (double)half_to_float(a >> s & 0xffffu);
		double y = (double)half_to_float(b >> s & 0xffffu);

		r |= double_to_half(x * y + (double)half_to_float(c >> s & 0xffffu)) << s;
	}
	return r;
}
extern "C" uint32_t kvp_prmt(uint32_t a, uint32_t b, uint32_t sel)
{
	uint64_t both = (uint64_t)b << 32 | a;
	uint32_t r = 0;

	for (uint32_t i = 0; i < 4; i++)
		r |= (uint32_t)(both >> (8 * (sel >> (4 * i) & 7u)) & 0xffu) << (8 * i);
	return r;
}
