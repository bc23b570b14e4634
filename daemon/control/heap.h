/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's heap, in bytes. Any thread. */
#ifndef KVPD_HEAP_H
#define KVPD_HEAP_H

#include <stdint.h>

struct kvpd_heap {
	const char *allocator; /* "jemalloc", or "libc" where that is left out */
	uint64_t allocated;    /* held by the program */
	uint64_t resident;     /* in physical pages, the allocator's own included */
	uint64_t mapped;       /* taken from the kernel */
};

void kvpd_heap_read(struct kvpd_heap *ret_heap);

#endif
