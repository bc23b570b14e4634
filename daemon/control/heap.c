/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the heap: jemalloc's where the daemon is linked with it, else the C library's. */
#include "daemon/control/heap.h"

#ifdef KVPD_JEMALLOC
#include <jemalloc/jemalloc.h>

static uint64_t read_figure(const char *name)
{
	size_t value = 0, size = sizeof(value);

	return mallctl(name, &value, &size, NULL, 0) == 0 ? value : 0;
}

void kvpd_heap_read(struct kvpd_heap *ret_heap)
{
	uint64_t epoch = 1;
	size_t size = sizeof(epoch);

	/* The figures are those of the last time this was written. */
	(void)mallctl("epoch", &epoch, &size, &epoch, size);
	*ret_heap = (struct kvpd_heap){
		.allocator = "jemalloc",
		.allocated = read_figure("stats.allocated"),
		.resident = read_figure("stats.resident"),
		.mapped = read_figure("stats.mapped"),
	};
}
#else
#include <malloc.h>

void kvpd_heap_read(struct kvpd_heap *ret_heap)
{
	struct mallinfo2 m = mallinfo2();

	*ret_heap = (struct kvpd_heap){
		.allocator = "libc",
		.allocated = m.uordblks + m.hblkhd,
		.resident = m.arena + m.hblkhd,
		.mapped = m.arena + m.hblkhd,
	};
}
#endif
