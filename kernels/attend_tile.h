/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix tiles (AMX): which there are, and their instructions. Of a test that has these in C, and defines
 * KVP_TILES_IN_C, they are its own. Private to the files of attention by tiles.
 */
#ifndef KVP_KERNELS_ATTEND_TILE_H
#define KVP_KERNELS_ATTEND_TILE_H

#include <stddef.h>
#include <stdint.h>

/* Tiles, by numbers as the assembler wants them: sums of scores, keys, queries; sums of values, weights, values. */
#define T_SCORE   0
#define T_KEYS    1
#define T_QUERY   2
#define T_QUERY2  3
#define T_SUM     4
#define T_WEIGHT  5
#define T_VALUES  6
#define T_VALUES2 7
#define T_COUNT   8

struct tile_config {
	uint8_t palette, start, reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
};

/*
 * attend_amx.c. Between begin and end, this thread's tiles for so many queries of a KV head: who multiplies says
 * before what a query takes of a row, and what it was last is what costs nothing, since rows of bytes and
 * native ones may take turns.
 */
#define BYTES_OF_QUERY 4u /* four signed bytes */
#define BYTES_OF_PAIRS 8u /* two numbers in bf16, high, and two, low */
void kvp_tiles_begin(uint32_t rows);
void kvp_tiles_for(uint32_t rows, uint32_t query_bytes);
void kvp_tiles_end(void);

#ifndef KVP_TILES_IN_C
/*
 * Not the compilers' intrinsics: gcc 12 does not know of those what memory they read, and leaves out
 * what is written there.
 */
#define AS_TEXT(x) #x
#define TILE_LOAD(tile, from, stride)                                                           \
	__asm__ volatile(                                                                       \
		"tileloadd (%0,%1,1), %%tmm" AS_TEXT(tile)::"r"(from), "r"((ptrdiff_t)(stride)) \
		: "memory")
#define TILE_STORE(tile, to, stride)                                                               \
	__asm__ volatile(                                                                          \
		"tilestored %%tmm" AS_TEXT(tile) ", (%0,%1,1)" ::"r"(to), "r"((ptrdiff_t)(stride)) \
		: "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %tmm" AS_TEXT(tile))
/* sum += rows * columns */
#define TILE_DOT(sum, rows, columns) \
	__asm__ volatile(            \
		"tdpbssd %tmm" AS_TEXT(columns) ", %tmm" AS_TEXT(rows) ", %tmm" AS_TEXT(sum))
/* The same of floats in bf16, two for a sum of fp32 each. */
#define TILE_DOT_BF16(sum, rows, columns) \
	__asm__ volatile(                 \
		"tdpbf16ps %tmm" AS_TEXT(columns) ", %tmm" AS_TEXT(rows) ", %tmm" AS_TEXT(sum))
#define TILE_CONFIG(config) __asm__ volatile("ldtilecfg %0" ::"m"(config))
#define TILE_RELEASE()      __asm__ volatile("tilerelease")
#endif

#endif
