/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of cold bytes by memcpy() and by streaming stores, which other copies are compared with. */
#include "tools/kvbench/bench_copy.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LEAST_REGION (UINT64_C(1) << 30)

static uint8_t *touched(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	/*
	 * Pages as the pool's own memory has them: 4 KiB where shared memory gets no larger ones.
	 */
	(void)madvise(p, bytes, MADV_NOHUGEPAGE);
	memset(p, 1, bytes);
	return p;
}

int bench_copy_init(struct bench_copy *c, uint64_t block, uint32_t blocks)
{
	memset(c, 0, sizeof(*c));
	c->block = block;
	c->region = block * blocks > LEAST_REGION ? block * blocks : LEAST_REGION / block * block;
	c->state = 88172645463325252u;
	c->from = touched(c->region);
	c->to = touched(c->region);
	if (c->from && c->to)
		return 0;
	bench_copy_done(c);
	return -ENOMEM;
}

void bench_copy_done(struct bench_copy *c)
{
	if (c->from)
		munmap(c->from, c->region);
	if (c->to)
		munmap(c->to, c->region);
	c->from = c->to = NULL;
}

static uint8_t *somewhere(struct bench_copy *c, uint8_t *region)
{
	return region + bench_random(&c->state) % (c->region / c->block) * c->block;
}

uint8_t *bench_copy_source(struct bench_copy *c)
{
	return somewhere(c, c->from);
}

uint8_t *bench_copy_sink(struct bench_copy *c)
{
	return somewhere(c, c->to);
}

double bench_copy_gbps(struct bench_copy *c, uint32_t blocks)
{
	uint64_t began = bench_now();

	for (uint32_t i = 0; i < blocks; i++)
		memcpy(bench_copy_sink(c), bench_copy_source(c), c->block);
	return (double)blocks * (double)c->block / (double)(bench_now() - began);
}

#ifdef __SSE2__
const bool bench_can_stream = true;

/* Both at 16-byte boundaries, which pages and blocks are. */
void bench_stream(void *to, const void *from, uint64_t bytes)
{
	const __m128i *src = from;
	__m128i *dst = to;

	for (uint64_t n = bytes / 64; n; n--, src += 4, dst += 4) {
		__m128i a = _mm_load_si128(src), b = _mm_load_si128(src + 1);
		__m128i c = _mm_load_si128(src + 2), d = _mm_load_si128(src + 3);

		_mm_prefetch((const char *)src + 1024, _MM_HINT_NTA);
		_mm_stream_si128(dst, a);
		_mm_stream_si128(dst + 1, b);
		_mm_stream_si128(dst + 2, c);
		_mm_stream_si128(dst + 3, d);
	}
	memcpy(dst, src, bytes % 64);
	_mm_sfence();
}
#else
const bool bench_can_stream = false;

void bench_stream(void *to, const void *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}
#endif

double bench_stream_gbps(struct bench_copy *c, uint32_t blocks)
{
	uint64_t began = bench_now();

	for (uint32_t i = 0; i < blocks; i++)
		bench_stream(bench_copy_sink(c), bench_copy_source(c), c->block);
	return (double)blocks * (double)c->block / (double)(bench_now() - began);
}
