/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of kvquant in reference C, and its tables of codes. */
#include "kernels/nuq_rows.h"

void kvp_nuq_encode_c(uint32_t bits, const struct nuq_book *book, const struct nuq_row *at,
	const float *x, uint32_t dim, uint8_t *row)
{
	encode(bits, book, at, x, dim, row);
}

void kvp_nuq_decode_c(uint32_t bits, const struct nuq_book *book, const struct nuq_row *at,
	const uint8_t *row, uint32_t dim, float *x)
{
	decode(bits, book, at, row, dim, x);
}

void kvp_nuq_book_init(uint32_t bits, const float *post, struct nuq_book *ret_book)
{
	const uint32_t n = 1u << bits;

	*ret_book = (struct nuq_book){ .post = { 0 } };
	for (uint32_t i = 0; i < n; i++)
		ret_book->post[i] = post[i];
	for (uint32_t i = 0; i + 1 < n; i++)
		ret_book->bound[i] = (post[i] + post[i + 1]) * 0.5f;
}

void kvp_nuq_book_even(uint32_t bits, struct nuq_book *ret_book)
{
	const int32_t last = (1 << bits) - 1;
	float post[NUQ_CODES];

	for (int32_t i = 0; i <= last; i++)
		post[i] = (float)(2 * i - last) / (float)last;
	kvp_nuq_book_init(bits, post, ret_book);
}
