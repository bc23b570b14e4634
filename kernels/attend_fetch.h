/* SPDX-License-Identifier: Apache-2.0 */
/* Having rows fetched ahead while others are worked on, for attention. */
#ifndef KVP_KERNELS_ATTEND_FETCH_H
#define KVP_KERNELS_ATTEND_FETCH_H

#include "kernels/attend_rows.h"

#define FETCH_INLINE static inline __attribute__((always_inline))

#define TILE 4u /* tokens, and in AVX-512 queries, handled together */

/*
 * Fetching ahead, beside the work on TILE rows from t on. The rows that are read next go to the
 * second cache, which has room for them beside what is in use, and from two places in turn: more is
 * under way than of one page after the other. From there they go to the first cache shortly before
 * they are used. In FETCH_PARTS parts, because a burst of requests holds up loads behind it.
 */
#define FETCH_PARTS 8u
#define FETCH_ROW   256u  /* bytes of a row that are fetched in parts, the rest at once */
#define FETCH_NEAR  4096u /* bytes ahead */

struct fetch {
	const uint8_t *far, *other; /* two rows each of what is read next */
	ptrdiff_t far_stride;
	uint32_t far_bytes; /* of a row; 0: nothing more */
	uint32_t near_bytes;
	const uint8_t *near; /* four rows */
	ptrdiff_t near_stride;
};

/* Without what is beyond FETCH_ROW. */
FETCH_INLINE struct fetch fetch_begin(const struct kvp_rows *r, uint32_t t)
{
	uint32_t half = r->next_n / 2;
	struct fetch f = { .far_stride = r->next_stride };

	if (t / 2 < half) {
		f.far = r->next + (ptrdiff_t)(t / 2) * r->next_stride;
		f.other = f.far + (ptrdiff_t)half * r->next_stride;
		f.far_bytes = r->next_bytes;
	}
	return f;
}

FETCH_INLINE struct fetch fetch_far(const struct kvp_rows *r, uint32_t t)
{
	struct fetch f = fetch_begin(r, t);

	for (uint32_t b = FETCH_ROW; b < f.far_bytes; b += 64) {
		__builtin_prefetch(f.far + b, 0, 2);
		__builtin_prefetch(f.far + f.far_stride + b, 0, 2);
		__builtin_prefetch(f.other + b, 0, 2);
		__builtin_prefetch(f.other + f.far_stride + b, 0, 2);
	}
	return f;
}

/* Near ones too; bytes: of a row of r. */
FETCH_INLINE struct fetch fetch_both(const struct kvp_rows *r, uint32_t t, uint32_t bytes)
{
	struct fetch f = fetch_far(r, t);
	uint32_t at = t + FETCH_NEAR / bytes;

	if (at < r->n) {
		f.near = r->codes + (ptrdiff_t)at * r->stride;
		f.near_stride = r->stride;
		f.near_bytes = bytes;
	} else if (at - r->n < r->next_n) {
		f.near = r->next + (ptrdiff_t)(at - r->n) * r->next_stride;
		f.near_stride = r->next_stride;
		f.near_bytes = r->next_bytes;
	}
	return f;
}

FETCH_INLINE void fetch_part(const struct fetch *f, uint32_t part)
{
	const uint32_t far = part % 4 * 64, near = part % 2 * 64;

	if (far < f->far_bytes) {
		ptrdiff_t at = (ptrdiff_t)(part / 4) * f->far_stride + far;

		__builtin_prefetch(f->far + at, 0, 2);
		__builtin_prefetch(f->other + at, 0, 2);
	}
	if (near < f->near_bytes) {
		const uint8_t *row = f->near + (ptrdiff_t)(part / 2) * f->near_stride + near;

		__builtin_prefetch(row);
		__builtin_prefetch(row + 128);
	}
}

/*
 * Parts [at, at + n) of all, of which TILE rows have FETCH_PARTS: for work that passes over its
 * rows again and again.
 */
FETCH_INLINE void fetch_some(const struct kvp_rows *r, uint32_t at, uint32_t n)
{
	for (uint32_t end = at + n; at < end; at = (at | (FETCH_PARTS - 1)) + 1) {
		uint32_t t = at / FETCH_PARTS * TILE, first = at % FETCH_PARTS;
		struct fetch f = first ? fetch_begin(r, t) : fetch_far(r, t);

		for (uint32_t i = first; i < FETCH_PARTS && i < first + n; i++)
			fetch_part(&f, i);
	}
}

/* At once: what is far, or both. Called for every TILE rows. */
FETCH_INLINE void fetch_next(const struct kvp_rows *r, uint32_t t)
{
	struct fetch f = fetch_far(r, t);

	for (uint32_t part = 0; part < FETCH_PARTS; part++)
		fetch_part(&f, part);
}

FETCH_INLINE void fetch_all(const struct kvp_rows *r, uint32_t t, uint32_t bytes)
{
	struct fetch f = fetch_both(r, t, bytes);

	for (uint32_t part = 0; part < FETCH_PARTS; part++)
		fetch_part(&f, part);
}

#endif
