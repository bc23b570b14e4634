/* SPDX-License-Identifier: Apache-2.0 */
/* As Intel's manual has it, volume 2: LDTILECFG, TILELOADD, TDPBSSD, TDPBF16PS. */
#include "tests/kernels/tiles.h"
#include "kernels/attend_tile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tile_config config;
static uint8_t tile_of[T_COUNT][16][64];

static void need(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "tiles: %s\n", what);
	abort();
}

static uint32_t rows_of(int tile)
{
	need(config.palette == 1, "used without a configuration");
	need(config.rows[tile] && config.row_bytes[tile], "one that is not configured");
	return config.rows[tile];
}

/* In fours of bytes. */
static uint32_t columns_of(int tile)
{
	return rows_of(tile) ? config.row_bytes[tile] / 4u : 0;
}

void tiles_config(const void *from)
{
	memcpy(&config, from, sizeof config);
	need(config.palette == 1, "no such palette");
	for (int i = 0; i < T_COUNT; i++)
		need(config.rows[i] <= 16 && config.row_bytes[i] <= 64 &&
				config.row_bytes[i] % 4 == 0,
			"shapes that there are not");
	memset(tile_of, 0, sizeof tile_of);
}

void tiles_release(void)
{
	memset(&config, 0, sizeof config);
}

void tiles_load(int tile, const void *from, ptrdiff_t stride)
{
	const uint8_t *at = from;

	tiles_zero(tile);
	for (uint32_t i = 0; i < rows_of(tile); i++, at += stride)
		memcpy(tile_of[tile][i], at, config.row_bytes[tile]);
}

void tiles_store(int tile, void *to, ptrdiff_t stride)
{
	uint8_t *at = to;

	for (uint32_t i = 0; i < rows_of(tile); i++, at += stride)
		memcpy(at, tile_of[tile][i], config.row_bytes[tile]);
}

void tiles_zero(int tile)
{
	need(rows_of(tile) > 0, "one of no rows");
	memset(tile_of[tile], 0, sizeof tile_of[tile]);
}

static void need_shapes(int sum, int rows, int columns)
{
	need(sum != rows && sum != columns && rows != columns, "one that is two of three");
	need(rows_of(sum) == rows_of(rows) && columns_of(sum) == columns_of(columns) &&
			columns_of(rows) == rows_of(columns),
		"shapes that do not fit");
}

void tiles_dot_bytes(int sum, int rows, int columns)
{
	need_shapes(sum, rows, columns);
	for (uint32_t i = 0; i < rows_of(sum); i++) {
		for (uint32_t j = 0; j < columns_of(sum); j++) {
			int32_t x;

			memcpy(&x, &tile_of[sum][i][4 * j], 4);
			for (uint32_t k = 0; k < 4 * columns_of(rows); k++)
				x += (int8_t)tile_of[rows][i][k] *
				     (int8_t)tile_of[columns][k / 4][4 * j + k % 4];
			memcpy(&tile_of[sum][i][4 * j], &x, 4);
		}
	}
}

/* Denormal numbers are 0, as what comes in and as what goes out. */
static float flushed(float x)
{
	return fpclassify(x) == FP_SUBNORMAL ? copysignf(0.0f, x) : x;
}

static float bf16_at(const uint8_t *p)
{
	uint16_t h;
	uint32_t u;
	float x;

	memcpy(&h, p, 2);
	u = (uint32_t)h << 16;
	memcpy(&x, &u, 4);
	return flushed(x);
}

/* The first of all pairs and the second, summed apart from one another. */
void tiles_dot_bf16(int sum, int rows, int columns)
{
	need_shapes(sum, rows, columns);
	for (uint32_t i = 0; i < rows_of(sum); i++) {
		for (uint32_t j = 0; j < columns_of(sum); j++) {
			float x, part[2] = { 0.0f, 0.0f };

			memcpy(&x, &tile_of[sum][i][4 * j], 4);
			for (uint32_t k = 0; k < 2 * columns_of(rows); k++)
				part[k % 2] = flushed(fmaf(bf16_at(&tile_of[rows][i][2 * k]),
					bf16_at(&tile_of[columns][k / 2][4 * j + 2 * (k % 2)]),
					part[k % 2]));
			x = flushed(flushed(x) + flushed(part[0] + part[1]));
			memcpy(&tile_of[sum][i][4 * j], &x, 4);
		}
	}
}
