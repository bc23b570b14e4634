/* SPDX-License-Identifier: Apache-2.0 */
/* Bits, errors and bytes by width. */
#include "policy/kvp_width.h"

static const uint8_t bits_of[KVP_WIDTHS] = { 16, 8, 4, 3, 2 };

const double kvp_width_distortion[KVP_WIDTHS] = { 0, 4e-5, .00932, .03397, .116 };

uint32_t kvp_width_bits(uint32_t width)
{
	return width < KVP_WIDTHS ? bits_of[width] : 0;
}

uint32_t kvp_width_of_bits(uint32_t bits)
{
	uint32_t width = 0;

	while (width < KVP_WIDTHS && bits_of[width] != bits)
		width++;
	return width;
}

static uint64_t code_bytes(const struct kvp_width_plane *p, uint32_t width)
{
	return p->heads * (((uint64_t)p->head_dim * kvp_width_bits(width) + 7) / 8);
}

static uint64_t scale_bytes(const struct kvp_width_plane *p)
{
	uint32_t group = p->scale_group ? p->scale_group : p->head_dim;

	return (uint64_t)p->heads * ((p->head_dim + group - 1) / group) * (p->scale_bits / 8);
}

uint64_t kvp_width_token_bits(const struct kvp_width_plane *plane, uint32_t width)
{
	return 8 * (code_bytes(plane, width) + scale_bytes(plane));
}

/* A section of so many bytes behind what takes `end`; an empty one takes none. */
static uint64_t add_section(uint64_t end, uint64_t bytes)
{
	if (!bytes)
		return end;
	return (end + KVP_WIDTH_ALIGN - 1) / KVP_WIDTH_ALIGN * KVP_WIDTH_ALIGN + bytes;
}

uint64_t kvp_width_plane_bytes(
	const struct kvp_width_plane *plane, const uint32_t tokens[KVP_WIDTHS])
{
	uint64_t all = 0, end = KVP_WIDTH_HEADER_BYTES;

	for (uint32_t w = KVP_WIDTH_8; w < KVP_WIDTHS; w++)
		all += tokens[w];
	end = add_section(end, all);
	for (uint32_t w = KVP_WIDTHS; w-- > KVP_WIDTH_8;) {
		end = add_section(end, tokens[w] * code_bytes(plane, w));
		end = add_section(end, tokens[w] * scale_bytes(plane));
	}
	return end;
}

/* The longest gap behind any number of things of so many bytes. */
static uint64_t gap(uint64_t bytes)
{
	uint64_t divisor = KVP_WIDTH_ALIGN;

	while (bytes % divisor)
		divisor /= 2;
	return KVP_WIDTH_ALIGN - divisor;
}

uint64_t kvp_width_plane_overhead(const struct kvp_width_plane *plane, uint32_t tokens)
{
	uint64_t bytes = add_section(add_section(KVP_WIDTH_HEADER_BYTES, tokens), 1) - 1;

	if (!tokens)
		return KVP_WIDTH_HEADER_BYTES;
	for (uint32_t w = KVP_WIDTH_8; w < KVP_WIDTHS; w++)
		bytes += gap(code_bytes(plane, w)) + gap(scale_bytes(plane));
	/* There is none behind the last section, which holds scales. */
	return bytes - gap(scale_bytes(plane));
}
