/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/guard.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POISON 0xa5

struct guard guard_new(size_t size, size_t align)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t inner = (size + align + page - 1) / page * page;
	struct guard g = { .size = size, .map_size = inner + 2 * page };

	g.map = mmap(NULL, g.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (g.map == MAP_FAILED || mprotect(g.map, page, PROT_NONE) < 0 ||
		mprotect(g.map + page + inner, page, PROT_NONE) < 0)
		abort();
	memset(g.map + page, POISON, inner);
	g.data = g.map + page + (inner - size) / align * align;
	return g;
}

void guard_free(struct guard *g)
{
	munmap(g->map, g->map_size);
}

int guard_intact(const struct guard *g)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const uint8_t *end = g->map + g->map_size - page;

	for (const uint8_t *p = g->map + page; p < g->data; p++)
		if (*p != POISON)
			return 0;
	for (const uint8_t *p = g->data + g->size; p < end; p++)
		if (*p != POISON)
			return 0;
	return 1;
}
