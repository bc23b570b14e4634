/* SPDX-License-Identifier: Apache-2.0 */
/* Radix sort of indices by a float key, shared by the planners: linear, stable, no allocation. */
#ifndef KVP_POLICY_SORT_H
#define KVP_POLICY_SORT_H

#include <stdint.h>

/*
 * Sorts the indices in order[n] by key[order[i]], all keys finite and >= 0, smallest first, or
 * largest first if `falling`; equal keys keep their order. Returns the array that holds the result:
 * scratch[n] (three passes); `order` is overwritten.
 */
uint32_t *sort_by_float(
	const float *key, uint32_t *order, uint32_t *scratch, uint32_t n, int falling);

#endif
