/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the codes of one vector lie in bytes; see docs/formats.md, "Rows". dim is a multiple of 8.
 *   1 bit:  bit j of byte i is code 8 i + j.
 *   2 bits: byte i holds codes i, i + d/4, i + d/2, i + 3d/4 from the low bits up.
 *   3 bits: the low two bits of all codes as a 2-bit row, then the high bits as a 1-bit row.
 *   4 bits: byte i holds code i (low nibble) and code i + d/2.
 *   8 bits: byte i is code i.
 */
#ifndef KVP_KERNELS_ROWCODE_H
#define KVP_KERNELS_ROWCODE_H

#include <stdint.h>
#include <string.h>

static inline uint32_t kvp_row_bytes(uint32_t bits, uint32_t dim)
{
	return dim * bits / 8;
}

static inline void kvp_row_pack1(uint32_t dim, uint32_t shift, const uint8_t *code, uint8_t *row)
{
	for (uint32_t i = 0; i < dim / 8; i++) {
		uint8_t byte = 0;

		for (uint32_t j = 0; j < 8; j++)
			byte |= (uint8_t)((code[8 * i + j] >> shift & 1u) << j);
		row[i] = byte;
	}
}

static inline void kvp_row_pack2(uint32_t dim, const uint8_t *code, uint8_t *row)
{
	uint32_t q = dim / 4;

	for (uint32_t i = 0; i < q; i++)
		row[i] = (uint8_t)((code[i] & 3u) | (code[i + q] & 3u) << 2 |
				   (code[i + 2 * q] & 3u) << 4 | (code[i + 3 * q] & 3u) << 6);
}

static inline void kvp_row_pack(uint32_t bits, uint32_t dim, const uint8_t *code, uint8_t *row)
{
	switch (bits) {
	case 1:
		kvp_row_pack1(dim, 0, code, row);
		break;
	case 2:
		kvp_row_pack2(dim, code, row);
		break;
	case 3:
		kvp_row_pack2(dim, code, row);
		kvp_row_pack1(dim, 2, code, row + dim / 4);
		break;
	case 4:
		for (uint32_t i = 0; i < dim / 2; i++)
			row[i] = (uint8_t)(code[i] | code[i + dim / 2] << 4);
		break;
	default:
		memcpy(row, code, dim);
		break;
	}
}

static inline void kvp_row_unpack(uint32_t bits, uint32_t dim, const uint8_t *row, uint8_t *code)
{
	uint32_t q = dim / 4;

	switch (bits) {
	case 1:
		for (uint32_t i = 0; i < dim; i++)
			code[i] = row[i / 8] >> i % 8 & 1u;
		break;
	case 2:
	case 3:
		for (uint32_t i = 0; i < dim; i++)
			code[i] = row[i % q] >> 2 * (i / q) & 3u;
		for (uint32_t i = 0; bits == 3 && i < dim; i++)
			code[i] |= (uint8_t)((row[q + i / 8] >> i % 8 & 1u) << 2);
		break;
	case 4:
		for (uint32_t i = 0; i < dim; i++)
			code[i] = row[i % (dim / 2)] >> (i < dim / 2 ? 0 : 4) & 15u;
		break;
	default:
		memcpy(code, row, dim);
		break;
	}
}

#endif
