/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that goes through the caches first reads the line that it will overwrite, and drives out
 * what engines have there. From some pages on, streaming stores do neither.
 */
#include "daemon/device/stream.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

#define LEAST UINT64_C(16384) /* below, the call costs more than the lines */
#define AHEAD 512             /* bytes asked for before they are read */

void kvpd_stream_copy(void *dst, const void *src, uint64_t bytes)
{
	uint64_t lines = bytes / 64 * 64, i;

	if (bytes < LEAST) {
		memcpy(dst, src, bytes);
		return;
	}
	for (i = 0; i < lines; i += 64) {
		const __m128i *from = (const __m128i *)(const void *)((const char *)src + i);
		__m128i *to = (__m128i *)(void *)((char *)dst + i);
		__m128i a, b, c, d;

		_mm_prefetch((const char *)from + AHEAD, _MM_HINT_NTA);
		a = _mm_load_si128(from);
		b = _mm_load_si128(from + 1);
		c = _mm_load_si128(from + 2);
		d = _mm_load_si128(from + 3);
		_mm_stream_si128(to, a);
		_mm_stream_si128(to + 1, b);
		_mm_stream_si128(to + 2, c);
		_mm_stream_si128(to + 3, d);
	}
	/* Streaming stores are ordered by nothing else. */
	_mm_sfence();
	memcpy((char *)dst + lines, (const char *)src + lines, bytes - lines);
}
#else
void kvpd_stream_copy(void *dst, const void *src, uint64_t bytes)
{
	memcpy(dst, src, bytes);
}
#endif
