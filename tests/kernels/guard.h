/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers whose neighbours are unmapped pages: one byte too far is a fault. */
#ifndef KVP_TESTS_KERNELS_GUARD_H
#define KVP_TESTS_KERNELS_GUARD_H

#include <stddef.h>
#include <stdint.h>

struct guard {
	uint8_t *data; /* ends at an unmapped page, as closely as align permits; poisoned */
	size_t size;
	uint8_t *map;
	size_t map_size;
};

/* Aborts if there is no memory. */
struct guard guard_new(size_t size, size_t align);
void guard_free(struct guard *g);
/* Whether the bytes before and behind data still hold the poison. */
int guard_intact(const struct guard *g);

#endif
