/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An entropy coder for bytes: range variants of asymmetric numeral systems (rANS, arXiv 1311.2540), 32
 * of them side by side, with static frequencies. docs/formats.md, "Entropy coding", has every bit of
 * a stream. Private to kernels/ and its tests.
 *
 * Symbol i of a stream is coded by lane i mod 32. A lane's state x lies in [2^16, 2^32) and takes in or
 * gives off 16 bits at a time. Coding goes from the last symbol to the first and writes downwards, so
 * that decoding goes forwards. Whatever a stream says, a reader stays inside it, always gives as many
 * symbols as it is asked for, and tells at the end whether they were what an encoder wrote.
 */
#ifndef KVP_KERNELS_RANS_H
#define KVP_KERNELS_RANS_H

#include <stddef.h>
#include <stdint.h>

#define RANS_LANES       32u
#define RANS_BITS        12u
#define RANS_TOTAL       (1u << RANS_BITS) /* the sum of all frequencies */
#define RANS_LOW         (1u << 16)        /* the least state, in which a lane begins */
#define RANS_STATE_BYTES (4u * RANS_LANES) /* what a stream begins with */
#define RANS_GROUP_BYTES (2u * RANS_LANES) /* the most that a symbol a lane takes */
#define RANS_SYMBOLS     256u

/*
 * Frequencies of counts, which are not all 0 and at most 2^31 in all: the nearest multiple of 1 / 4096,
 * but 1 at least for what occurs, and what is then too many or too few taken from or given to the
 * largest, one by one.
 */
void kvp_rans_normalise(const uint32_t *count, uint16_t *ret_freq);

/* What an encoder looks up. Symbols of frequency 0 must not be coded: nobody could decode them. */
struct rans_coder {
	uint32_t word[RANS_SYMBOLS];    /* frequency | sum of those before << 16 */
	uint64_t inverse[RANS_SYMBOLS]; /* floor(x * inverse / 2^44) = floor(x / frequency) */
};
void kvp_rans_coder(const uint16_t *freq, struct rans_coder *ret_coder);

/* What a decoder looks up by the low bits of a state: symbol | (freq - 1) << 8 | offset << 20. */
struct rans_table {
	uint32_t slot[RANS_TOTAL];
	uint32_t common, start,
		freq; /* the most frequent symbol, the first of equals, and its slots */
};
/* A table whose common symbol is at least so frequent has groups of nothing else often enough to ask first. */
#define RANS_COMMON (RANS_TOTAL - RANS_TOTAL / 40)
/* -EBADMSG: frequencies do not add up to RANS_TOTAL. */
int kvp_rans_table(const uint16_t *freq, struct rans_table *ret_table);

struct rans_writer {
	uint32_t x[RANS_LANES];
	uint8_t *at;    /* what has been written begins here */
	uint8_t *floor; /* nothing is written below */
};
/* Memory of [floor, top) for one stream. */
struct rans_writer kvp_rans_writer(uint8_t *floor, uint8_t *top);
/*
 * Codes n symbols that precede those coded before; n is a multiple of RANS_LANES but in the first call.
 * -ENOSPC: there may be no room, and the writer is of no use any more.
 */
typedef int kvp_rans_encode_fn(
	const struct rans_coder *c, const uint8_t *sym, size_t n, struct rans_writer *w);
/* Puts the states before the rest: the stream is [w->at, top) then. -ENOSPC. */
int kvp_rans_finish(struct rans_writer *w);

struct rans_reader {
	uint32_t x[RANS_LANES];
	const uint8_t *at, *end;
	uint32_t over; /* more was read than there was, as zeros */
};
/* -EBADMSG: too short for a stream, or of an odd number of bytes. */
int kvp_rans_reader(const uint8_t *in, size_t bytes, struct rans_reader *ret_reader);
/* The next n symbols; n is a multiple of RANS_LANES but in the last call. */
typedef void kvp_rans_decode_fn(
	const struct rans_table *t, struct rans_reader *r, uint8_t *sym, size_t n);
/* After all symbols. -EBADMSG: no encoder wrote that. */
int kvp_rans_end(const struct rans_reader *r);

/*
 * Near a stream's end: up to RANS_GROUP_BYTES of what is left, copied to rest and followed by zeros,
 * and n bytes of that taken. What is taken beyond the end is remembered.
 */
const uint8_t *kvp_rans_rest(const struct rans_reader *r, uint8_t *rest);
void kvp_rans_skip(struct rans_reader *r, size_t n);

kvp_rans_encode_fn kvp_rans_encode_c;
kvp_rans_decode_fn kvp_rans_decode_c;

#endif
