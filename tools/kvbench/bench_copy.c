/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvbench/bench_copy.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define LEAST_REGION (UINT64_C(1) << 30)

static uint8_t *touched(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	/* Pages as the pool's own memory has them: 4 KiB where shared memory gets no larger ones.
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
