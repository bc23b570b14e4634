/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix tiles (AMX) in C, for kernels/attend_tile.h: what their instructions do, on any machine. What the
 * processor would refuse - no configuration, shapes that do not fit one another - ends the program. One
 * thread's.
 */
#ifndef KVP_TESTS_KERNELS_TILES_H
#define KVP_TESTS_KERNELS_TILES_H

#include <stddef.h>

#define KVP_TILES_IN_C

void tiles_config(const void *config);
void tiles_release(void);
void tiles_load(int tile, const void *from, ptrdiff_t stride);
void tiles_store(int tile, void *to, ptrdiff_t stride);
void tiles_zero(int tile);
void tiles_dot_bytes(int sum, int rows, int columns); /* tdpbssd */
void tiles_dot_bf16(int sum, int rows, int columns);  /* tdpbf16ps */

#define TILE_CONFIG(config)               tiles_config(&(config))
#define TILE_RELEASE()                    tiles_release()
#define TILE_LOAD(tile, from, stride)     tiles_load(tile, from, stride)
#define TILE_STORE(tile, to, stride)      tiles_store(tile, to, stride)
#define TILE_ZERO(tile)                   tiles_zero(tile)
#define TILE_DOT(sum, rows, columns)      tiles_dot_bytes(sum, rows, columns)
#define TILE_DOT_BF16(sum, rows, columns) tiles_dot_bf16(sum, rows, columns)

#endif
