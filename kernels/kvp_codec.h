/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs for keys and values: the folder's public contract.
 *
 * The unit is one plane: K or V of one layer, [kv_head][token][channel]. A plane is encoded into
 * one payload, whose every byte docs/formats.md fixes: the same input gives the same payload in
 * reference C, AVX2, AVX-512 and CUDA, and the same payload decodes to the same bytes.
 *
 * Nothing here but kvp_kernels_new() allocates; nothing locks, logs or keeps state between calls;
 * every function may be called by any thread, also while others use the same table, input or
 * calibration. Pointers are borrowed for the call. Errors are negative errno values; on failure no
 * output has been written, except where a function says otherwise.
 *
 * Units: tokens and channels are counts; sizes, offsets and strides are bytes; "bits" are those of
 * one code. docs/formats.md has the formula of every codec, and what was taken from where.
 *
 * Floating point: the library relies on round-to-nearest-even and on subnormals being honoured.
 * A caller that set FTZ, DAZ or another rounding mode gets other bytes.
 */
#ifndef KVP_CODEC_H
#define KVP_CODEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of raw planes. The numbers equal those of the shared-memory ABI. */
#define KVP_DTYPE_F32  1u
#define KVP_DTYPE_F16  2u
#define KVP_DTYPE_BF16 3u
#define KVP_DTYPE_F8   4u /* opaque bytes: only the native codec takes them */

#define KVP_PLANE_K 0u
#define KVP_PLANE_V 1u

/* Limits of a plane; anything beyond is -EINVAL. */
#define KVP_PLANE_TOKENS_MAX 512u
#define KVP_PLANE_HEADS_MAX  256u
#define KVP_PLANE_DIM_MIN    8u
#define KVP_PLANE_DIM_MAX    1024u

/*
 * Codec ids: family << 8 | variant. An id fixes every parameter that changes bytes, except the
 * rotation's seed, which the plane's header carries. Ids are wire format and never reused.
 */
#define KVP_FAMILY_NATIVE     0u  /* the elements themselves, no header */
#define KVP_FAMILY_FP8        1u  /* variant: KVP_FP8_* */
#define KVP_FAMILY_INT8       2u  /* variant: 0 */
#define KVP_FAMILY_KIVI       3u  /* variant: bits | log2(group) << 4 */
#define KVP_FAMILY_ASYM       4u  /* variant: see KVP_CODEC_ASYM */
#define KVP_FAMILY_TQ         5u  /* variant: see KVP_CODEC_TQ */
#define KVP_FAMILY_HADAMARD   6u  /* variant: bits */
#define KVP_FAMILY_TQPROD     7u  /* variant: bits + 8 */
#define KVP_FAMILY_HYBRID     8u  /* variant: KVP_HYBRID_* */
#define KVP_FAMILY_SMART      9u  /* variant: KVP_SMART_* */
#define KVP_FAMILY_PUB_KIVI   10u /* variant: bits | log2(group) << 4 */
#define KVP_FAMILY_PUB_AITHER 11u /* variant: bits */
#define KVP_FAMILY_PUB_VLLM   12u /* variant: bits */
#define KVP_FAMILY_SYM        13u /* variant: see KVP_CODEC_SYM */
#define KVP_FAMILY_LOSSLESS   14u /* variant: 0 */
#define KVP_FAMILY_PCA        15u /* variant: 0 */
#define KVP_FAMILY_KVQUANT    16u /* variant: bits | KVP_KVQUANT_* */
#define KVP_FAMILY_SPECTRAL   17u /* variant: KVP_SPECTRAL_* */
#define KVP_FAMILY_SQUAT      18u /* variant: bits | log2(group) << 4 */
#define KVP_FAMILY_MAX_       19u

#define KVP_CODEC(family, variant) ((family) << 8 | (variant))
#define KVP_CODEC_FAMILY(id)       ((id) >> 8)
#define KVP_CODEC_VARIANT(id)      ((id)&0xffu)

#define KVP_CODEC_NATIVE 0u

#define KVP_FP8_E4M3 0u
#define KVP_FP8_E5M2 1u

/*
 * A byte an element and one fp16 scale per vector (a token of a head): the vector's largest
 * magnitude is 127, or 448. fp8 as OCP has it (OFP8, rounded to nearest even, saturating).
 */
#define KVP_CODEC_FP8_E4M3 KVP_CODEC(KVP_FAMILY_FP8, KVP_FP8_E4M3)
#define KVP_CODEC_FP8_E5M2 KVP_CODEC(KVP_FAMILY_FP8, KVP_FP8_E5M2)
#define KVP_CODEC_INT8     KVP_CODEC(KVP_FAMILY_INT8, 0u)

/*
 * KIVI (arXiv 2402.02750): minimum and scale, in fp16, per group of 2^log2_group elements: K of one
 * channel over tokens, V of one token over channels. bits 2, 3 or 4; log2_group 4..7. Keys that fill
 * no group stay native at the payload's end; kvp_layout.coded says how many are coded.
 */
#define KVP_CODEC_KIVI(bits, log2_group) KVP_CODEC(KVP_FAMILY_KIVI, (bits) | (log2_group) << 4)
/*
 * The per-token half of KIVI for K and V alike: minimum and scale per group of channels.
 * log2_group 3..7, or 0 = one group per vector. Or-ed with KVP_CODEC_WIDE scales and minima are
 * fp32 instead of fp16. Wide ones and groups of 8 are attended by decoding.
 */
#define KVP_CODEC_ASYM(bits, log2_group) KVP_CODEC(KVP_FAMILY_ASYM, (bits) | (log2_group) << 4)
/* SmartKV's quantiser: no minimum. bits 2, 3, 4 or 8; else as asym. C only, by decoding. */
#define KVP_CODEC_SYM(bits, log2_group) KVP_CODEC(KVP_FAMILY_SYM, (bits) | (log2_group) << 4)
#define KVP_CODEC_WIDE                  0x80u
/* A rotation (H1, below), then one minimum and scale per vector, in fp16. bits 2 or 4. */
#define KVP_CODEC_HADAMARD(bits) KVP_CODEC(KVP_FAMILY_HADAMARD, (bits))

/*
 * TurboQuant (arXiv 2504.19874), MSE variant.
 * scalar: what is stored beside the codes. PLAIN is the norm; NC corrects it so that the decoded
 *   vector has the norm of the original (as vLLM does); UNBIASED is norm / <y, c>, which makes
 *   inner products unbiased at the same size, as searching and scoring want, and is what a bare
 *   name means. What attention makes of keys is nearer to the native result with NC, which the
 *   presets of kvp_codec_parse_pair() take.
 * rotation: H1 and H3 are 1 and 3 rounds of sign flips and a Hadamard matrix; HAAR is a dense
 *   orthogonal matrix, handed in by the caller (struct kvp_calib).
 * codebook: Lloyd-Max centroids of N(0,1), or of one coordinate of a vector on the sphere.
 * wide: the scalar is fp32 instead of fp16 (for parity with other implementations).
 */
#define KVP_TQ_UNBIASED 0u
#define KVP_TQ_PLAIN    1u
#define KVP_TQ_NC       2u
#define KVP_ROT_H1      0u
#define KVP_ROT_H3      1u
#define KVP_ROT_HAAR    2u
#define KVP_BOOK_GAUSS  0u
#define KVP_BOOK_SPHERE 1u
#define KVP_CODEC_TQ(bits, scalar, rotation, book, wide) \
	KVP_CODEC(KVP_FAMILY_TQ,                         \
		((bits)-1u) | (scalar) << 2 | (rotation) << 4 | (book) << 6 | (wide) << 7)
#define KVP_CODEC_TQ2 KVP_CODEC_TQ(2u, 0u, 0u, 0u, 0u)
#define KVP_CODEC_TQ3 KVP_CODEC_TQ(3u, 0u, 0u, 0u, 0u)
#define KVP_CODEC_TQ4 KVP_CODEC_TQ(4u, 0u, 0u, 0u, 0u)

/*
 * For parity: tq in bits - 1 and the signs of a random projection of the residual (QJL, arXiv
 * 2406.03482), whose length is a second scalar. Unbiased, but worse than tq at equal size. bits 2,
 * 3, 4.
 */
#define KVP_CODEC_TQPROD(bits) KVP_CODEC(KVP_FAMILY_TQPROD, (bits) + 8u)

/*
 * Two groups of channels in tq of different bits: half in 4 and half in 3 bits (TQ35), or a quarter
 * in 3 and the rest in 2 (KVP_HYBRID_25). PROD: as published, with one bit of each spent on the
 * residual's signs, its scale corrected. CALIBRATED: the first group is each head's channels of
 * largest energy in this plane, not simply the first channels. dim: a multiple of 32.
 */
#define KVP_HYBRID_25         1u
#define KVP_HYBRID_CALIBRATED 4u
#define KVP_HYBRID_PROD       8u
#define KVP_CODEC_TQ35        KVP_CODEC(KVP_FAMILY_HYBRID, 0u)
#define KVP_CODEC_TQ25        KVP_CODEC(KVP_FAMILY_HYBRID, KVP_HYBRID_25)

/*
 * Tokens of 2, 3, 4 or 8 bits inside one plane, by kvp_encode_opts.widths. 8 bits are int8; the
 * others symmetric as SmartKV has them, or min/max, or tq (recommended). KEYS3 refuses 2-bit keys.
 * Scales (symmetric and min/max): one per vector, or G8 and G16 one per so many channels; fp16, or
 * fp32 if WIDE. With a MEAN, tq only and without KEYS3, the widths of a plane's tokens are that many bits on the
 * average at most: kvp_plane_bytes() is then room for whichever these are, and a plane that is encoded without
 * widths has the mean spread evenly, the lower width last where there are two.
 */
#define KVP_SMART_SYM     0u
#define KVP_SMART_ASYM    1u
#define KVP_SMART_TQ      2u
#define KVP_SMART_KEYS3   4u
#define KVP_SMART_G8      (1u << 3)
#define KVP_SMART_G16     (2u << 3)
#define KVP_SMART_WIDE    (1u << 5)
#define KVP_SMART_MEAN4   (1u << 6)
#define KVP_SMART_MEAN3   (2u << 6)
#define KVP_SMART_MEAN25  (3u << 6) /* two and a half */
#define KVP_SMART_MEANS   (3u << 6)
#define KVP_CODEC_SMART   KVP_CODEC(KVP_FAMILY_SMART, KVP_SMART_TQ)
#define KVP_CODEC_SMART4  KVP_CODEC(KVP_FAMILY_SMART, KVP_SMART_TQ | KVP_SMART_MEAN4)
#define KVP_CODEC_SMART3  KVP_CODEC(KVP_FAMILY_SMART, KVP_SMART_TQ | KVP_SMART_MEAN3)
#define KVP_CODEC_SMART25 KVP_CODEC(KVP_FAMILY_SMART, KVP_SMART_TQ | KVP_SMART_MEAN25)

/*
 * Layouts that others published, for exchange with what their engines keep; C only, attended by
 * decoding. Each section of the payload is one of their tensors, byte for byte, so a caller copies
 * tensors in behind kvp_published_begin(), or out. Scalars there have no shared exponent:
 * magnitudes beyond 65504 saturate, and forcing an exponent other than 0 is -EINVAL.
 * - KIVI: bits 2 or 4, log2(group) 5..7; tokens (K) or dim (V) a multiple of the group.
 * - aither: bits 2, 3 or 4; dim a power of two; needs struct kvp_calib with the engine's matrix.
 * - vLLM's TurboQuant, one half of each slot: keys of 3 or 4 bits (dim a power of two) or 8 (e4m3
 *   without scale), values of 3 or 4.
 */
#define KVP_CODEC_PUB_KIVI(bits, log2_group) \
	KVP_CODEC(KVP_FAMILY_PUB_KIVI, (bits) | (log2_group) << 4)
#define KVP_CODEC_PUB_AITHER(bits) KVP_CODEC(KVP_FAMILY_PUB_AITHER, (bits))
#define KVP_CODEC_PUB_VLLM(bits)   KVP_CODEC(KVP_FAMILY_PUB_VLLM, (bits))

/*
 * fp16 and bf16 bit for bit: exponents entropy-coded, the rest stored. What a payload takes follows
 * from the elements and is in its header; kvp_plane_bytes() is the most that it can be, which is the
 * elements and a header. Attended by decoding. No other dtype: -EINVAL.
 */
#define KVP_CODEC_LOSSLESS KVP_CODEC(KVP_FAMILY_LOSSLESS, 0u)

/*
 * For archives, .4 to 4 bits an element: keys without their RoPE, and values, in the axes of a
 * calibration (kvp_calib.h), rounded to its step and entropy-coded with its tables. Needs that
 * calibration's entry of the plane's layer and kind, to encode and to decode. What a payload takes
 * follows from the elements and is in its header; a plane that would not shrink, or has components
 * that the calibration cannot say, is stored bit for bit, so kvp_plane_bytes() is the elements and a
 * header. Attended by decoding. fp32, fp16, bf16; dim up to 512.
 */
#define KVP_CODEC_PCA KVP_CODEC(KVP_FAMILY_PCA, 0u)

/*
 * KVQuant (arXiv 2401.18079): non-uniform codes of 2, 3 or 4 bits, whose meaning a calibration
 * (kvp_nuq.h) says, and the one in a hundred of a token's channels, of all heads together, that lie
 * furthest outside the usual range, in fp16 beside their number. Keys are coded before their RoPE by
 * the calibrated range of each channel, values by that of the rest of their token. UNIFORM: signposts
 * at even distances instead; POST: keys as they stand, by a calibration of such keys; DENSE: no
 * outliers beside the codes. Needs the calibration's entry of the plane's layer and form, to encode and
 * to decode. heads * dim up to 16384; magnitudes beyond 65504 saturate. Attended by decoding.
 */
#define KVP_KVQUANT_BITS        7u
#define KVP_KVQUANT_UNIFORM     8u
#define KVP_KVQUANT_POST        16u
#define KVP_KVQUANT_DENSE       32u
#define KVP_CODEC_KVQUANT(bits) KVP_CODEC(KVP_FAMILY_KVQUANT, (bits))

/*
 * Of each key the 12 RoPE pairs that have most energy, or as many as a name says (8, 10, 14, 16, 24, 32),
 * as codes of 4 bits, or of 8 or 16, under one fp16 scale; all else is 0. Opt-in: it is good for keys whose
 * energy is in few pairs, and encoding refuses a plane, -ERANGE, whose kept pairs do not hold 85 % of it,
 * but for ANY (kvp_spectral.h has the measure, and scores by what is kept; arXiv 2604.04921 is another
 * TriAttention than the one this codec comes from). Pairs are (i, i + dim/2), or (2i, 2i + 1) if
 * INTERLEAVED. Keys only, with RoPE or without; dim up to 512; magnitudes beyond 65504 saturate. C only,
 * attended by decoding.
 */
#define KVP_SPECTRAL_PAIRS       7u        /* 0..6: 8, 10, 12, 14, 16, 24, 32 */
#define KVP_SPECTRAL_BITS        (3u << 3) /* 0..2: 4, 8, 16 */
#define KVP_SPECTRAL_INTERLEAVED 32u
#define KVP_SPECTRAL_ANY         64u
#define KVP_CODEC_SPECTRAL       KVP_CODEC(KVP_FAMILY_SPECTRAL, 2u)

/*
 * SQuat (arXiv 2503.24358): payloads of kivi, to the byte but for the id, and decoded and attended as those
 * are. Only encoding differs: keys' errors are kept out of the directions that queries look in, which the
 * caller brings (struct kvp_encode_opts.queries, kvp_squat.h) and no reader needs. Values are kivi's. bits 2,
 * 3 or 4; log2_group 4..7.
 */
#define KVP_CODEC_SQUAT(bits, log2_group) KVP_CODEC(KVP_FAMILY_SQUAT, (bits) | (log2_group) << 4)

/* Seed of the rotation's signs where the caller names none. */
#define KVP_SEED_DEFAULT UINT64_C(0x6b76706f6f6c3031)

/* The geometry of a plane. dim is in elements; a vector's elements are always contiguous. */
struct kvp_plane {
	uint32_t tokens; /* 1..512 */
	uint32_t heads;  /* KV heads, 1..256 */
	/* Channels per head, 8..1024; a multiple of 8 but for the native codec; for codecs that
	 * rotate, a power of two times 1, 12, 20, 28 or 36 (any with a matrix). */
	uint32_t dim;
	uint32_t dtype; /* KVP_DTYPE_* of the raw elements */
	uint32_t kind;  /* KVP_PLANE_K or KVP_PLANE_V */
};

/*
 * Where the raw elements of a plane lie: element c of token t of head h is at
 * data + h * head_stride + t * token_stride + c * sizeof(element); strides in bytes, of any sign,
 * multiples of the element size. The caller owns the memory. Rows must not overlap when written.
 */
struct kvp_raw {
	void *data;
	ptrdiff_t head_stride;
	ptrdiff_t token_stride;
};

struct kvp_raw_const {
	const void *data;
	ptrdiff_t head_stride;
	ptrdiff_t token_stride;
};

/*
 * The first 64 bytes of every payload except native ones. Little-endian. Offsets are asserted in
 * codec.c and repeated in docs/formats.md.
 */
#define KVP_PLANE_MAGIC     UINT32_C(0x5050564b) /* "KVPP" */
#define KVP_PLANE_VERSION   1u
#define KVP_PLANE_HDR_BYTES 64u
#define KVP_SECTION_ALIGN   64u /* every section of a payload starts at such a multiple */
struct kvp_plane_hdr {
	uint32_t magic;
	uint16_t version;
	uint16_t reserved0;
	uint32_t codec; /* id */
	uint32_t bytes; /* of the whole payload, this header included */
	uint16_t tokens;
	uint16_t heads;
	uint16_t dim;
	uint8_t dtype;
	uint8_t kind;
	int32_t exponent; /* all values below were scaled by 2^-exponent; -120..125 */
	uint32_t reserved1;
	uint64_t seed;  /* of the rotation; 0 where the codec has none */
	uint64_t calib; /* digest of the calibration object; 0 = none */
	uint8_t reserved2[16];
};

/* Where the parts of a payload lie, in bytes from its start. 0 = the codec has no such part. */
struct kvp_layout {
	uint32_t row_bytes; /* of one vector's codes */
	uint32_t groups;    /* scalars per vector (per token), or groups of tokens (kivi K) */
	uint32_t group;     /* elements per group */
	uint32_t coded;     /* tokens that are coded; the rest, tokens - coded, is native */
	uint32_t codes;     /* [head][coded token][row_bytes] */
	uint32_t scale;     /* [head][token][groups]; kivi's keys [head][groups][dim]; published
			       layouts as docs/formats.md has them */
	uint32_t minimum;
	uint32_t native; /* [head][tokens - coded][dim] elements */
	uint32_t extra;  /* second scalars, permutations: by codec */
	uint32_t bytes;  /* of the payload */
};

struct kvp_pca;
struct kvp_nuq;
struct kvp_squat;

/*
 * An object that belongs to a space rather than to a plane: the dense rotation of KVP_ROT_HAAR, or
 * what the codecs pca and kvquant know of a layer's keys or values. Read-only while any call uses it.
 */
struct kvp_calib {
	uint32_t dim; /* of the rotation: it is dim x dim */
	uint32_t reserved;
	const float *haar;         /* row-major, see kvp_haar_init() */
	uint64_t digest;           /* goes into the header, must match at decode; not 0 */
	const struct kvp_pca *pca; /* of kvp_calib_set_find(); NULL where it is another */
	const struct kvp_nuq *nuq; /* of kvp_nuq_set_find(); likewise */
};

/* What a caller may say about one encode. Zero-initialise, then set size. */
struct kvp_encode_opts {
	size_t size;   /* sizeof(struct kvp_encode_opts) */
	uint64_t seed; /* 0 = KVP_SEED_DEFAULT */
	const struct kvp_calib
		*calib; /* needed by KVP_ROT_HAAR, aither, pca, kvquant; else ignored */
	const uint8_t *
		widths; /* smart: bits of each token, 2, 3, 4 or 8 (NULL: evenly, where the codec has
				* a mean); else ignored */
	int32_t exponent; /* -120..125, if force_exponent: for planes written in parts;
					  what is beyond 1024 * 2^exponent saturates */
	uint32_t force_exponent;
	const struct kvp_squat *queries; /* needed by squat's keys; else ignored */
	uint32_t
		position; /* pca, kvquant: of the plane's first token, below KVP_ROPE_POSITIONS_MAX less
				its tokens; else ignored */
	uint32_t reserved;
};

/* CPU features. The mask lets tests walk the ladder; bits that the machine lacks are ignored. */
#define KVP_CPU_AVX2   1u                  /* AVX2, FMA, F16C */
#define KVP_CPU_AVX512 2u                  /* F, BW, VL, DQ, VNNI; only with AVX2 */
#define KVP_CPU_VBMI   4u                  /* AVX-512 VBMI; only with KVP_CPU_AVX512 */
#define KVP_CPU_NEON   32u                 /* of 64-bit ARM; with none of the others */
#define KVP_CPU_ALL    (7u | KVP_CPU_NEON) /* the above */
/*
 * Matrix tiles (AMX int8), only with KVP_CPU_VBMI: for attention over tq in 4 bits. Not among "all", because
 * a process has to ask its kernel for them (arch_prctl), for good: kvp_kernels_new() does so when the
 * mask has this bit, and goes on without where the answer is no.
 */
#define KVP_CPU_TILES 8u
/*
 * The same attention by vectors of bytes, equal to the bit from two queries of a KV head on: for who has
 * KVP_CPU_VBMI and no tiles, or is not granted them. Other codes with one scale a row (tq in 2 and 3 bits,
 * int8, asym, hadamard) go likewise, which tiles leave to vectors of words. Not among "all" because it is less exact than what is
 * there without.
 */
#define KVP_CPU_BYTES 16u
/*
 * Matrix tiles (AMX bf16), only with KVP_CPU_VBMI: for attention over native rows in fp16 and bf16. Asked for
 * as KVP_CPU_TILES are, and not among "all" for that reason and because queries and weights are 16 bits of
 * a float's 24 there.
 */
#define KVP_CPU_TILES_BF16 64u

/* What this processor has: some of KVP_CPU_*, and 0 on machines that are neither x86 nor 64-bit ARM. */
unsigned int kvp_cpu_detect(void);

struct kvp_kernels;

/*
 * A table of functions for one mask of KVP_CPU_*: reference C, overridden by each instruction set
 * of the mask that the processor has, upwards. Whatever the mask, payloads and what they decode to
 * are the same. Read-only once made; any number of threads and tables; the caller's until
 * kvp_kernels_free(), which accepts NULL and returns NULL. -ENOMEM.
 */
int kvp_kernels_new(unsigned int cpu_mask, struct kvp_kernels **ret_kernels);
struct kvp_kernels *kvp_kernels_free(struct kvp_kernels *k);

/*
 * Where the parts of a payload lie, and its size in bytes: for smart, lossless and pca the
 * most that it can be (kvp_smart_bytes(); kvp_plane_hdr.bytes of the payload). -EINVAL: unknown codec,
 * or a geometry that the codec cannot hold (a dim or dtype that it does not take, kivi K with fewer
 * tokens than a group).
 */
int kvp_plane_layout(uint32_t codec, const struct kvp_plane *p, struct kvp_layout *ret_layout);
int kvp_plane_bytes(uint32_t codec, const struct kvp_plane *p, size_t *ret_bytes);

/*
 * Encodes a plane. out must be aligned to 16 bytes, hold the payload's bytes, and not overlap src.
 * opts may be NULL, but for smart without a mean, pca, kvquant, squat's keys and codecs with a matrix. Padding between sections is written
 * as zeros. The same elements give the same bytes, on every machine. lossless and pca may write all
 * bytes of kvp_plane_bytes(), of which those that the payload's header counts are meant.
 * NaN is encoded as 0 and infinities as the largest magnitude that the plane's exponent or the
 * group's range allows: no other token decodes otherwise because of them. A finite element 2^16
 * times louder than nearly all rows saturates, too, and costs its vector and its group their
 * precision, not the plane (docs/formats.md, "Outlier rows"). native and lossless keep the bits.
 * -EINVAL: codec or plane as for kvp_plane_layout(), options, alignment, strides, overlap;
 * -ENOSPC: out_size; -ENOENT: no calibration of this dim, or for pca and kvquant of these heads and this
 * kind, or for squat's keys no queries of these heads and this dim; -ERANGE: spectral would keep too little,
 * and what out holds then means nothing.
 */
int kvp_plane_encode(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_encode_opts *opts, struct kvp_raw_const src, void *out, size_t out_size);

/*
 * Decodes a payload, native ones included aligned to 16 bytes, into dst, which must not overlap it.
 * The payload may be hostile, and written to by others meanwhile: it is validated against codec and
 * p first, its header read once, and whatever its codes and scalars are, nothing outside it is
 * read, nothing outside dst's rows written, and every element written is finite (native, lossless, what
 * pca stores and what kivi keeps native have the bits of what was encoded). -EINVAL: bad arguments; -EPROTONOSUPPORT:
 * another version; -EBADMSG: not a payload of this codec and geometry; -ENOENT: the calibration object
 * is missing or another. Of lossless and pca only tables and sizes can be judged beforehand: -EBADMSG may also
 * mean that no encoder wrote these codes, and then dst's rows hold anything.
 */
int kvp_plane_decode(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_calib *calib, const void *in, size_t in_size, struct kvp_raw dst);

/* One kvp_plane_decode(). */
struct kvp_decode_job {
	uint32_t codec;
	struct kvp_plane plane;
	const struct kvp_calib *calib;
	const void *in;
	size_t in_size;
	struct kvp_raw dst;
};

/*
 * Many at once, for instance a layer's blocks, in order. All jobs are checked first: if one is
 * refused nothing has been written and *ret_done, the number of planes decoded, is 0. (It is more
 * only if a destination lies over another job's payload, which the caller should not ask for, or the
 * codes of a lossless or pca payload are wrong.)
 * Consecutive planes of one tq codec, dim and seed share their rotation: short ones are faster than
 * one by one. Errors are those of the first job that has one.
 */
int kvp_planes_decode(
	const struct kvp_kernels *k, const struct kvp_decode_job *jobs, size_t n, size_t *ret_done);

/*
 * smart: kvp_plane_bytes() is an upper bound; these are the bytes for given widths (p->tokens of
 * them), which are also those in the payload's header. -EINVAL: another codec, or widths that are
 * none.
 */
int kvp_smart_bytes(
	uint32_t codec, const struct kvp_plane *p, const uint8_t *widths, size_t *ret_bytes);

/* Bits that the widths of so many tokens may add up to; 0: the codec is not smart, or has no mean. */
uint32_t kvp_smart_budget(uint32_t codec, uint32_t tokens);

/*
 * smart: the payload with other widths. Tokens whose width stays keep their bytes, others are coded
 * again from what they decode to; therefore widths can only fall. widths: p->tokens of them. in and
 * out, both aligned to 16 bytes, must not overlap. -EINVAL: another codec, widths that rise or are
 * none, alignment, overlap; -ENOSPC: out_size; and what kvp_plane_check() returns.
 */
int kvp_smart_requantize(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const void *in, size_t in_size, const uint8_t *widths, void *out, size_t out_size);
/* The same from one codec to another that differs in its mean. -EINVAL also where they differ in more. */
int kvp_smart_recode(const struct kvp_kernels *k, uint32_t from, uint32_t to,
	const struct kvp_plane *p, const void *in, size_t in_size, const uint8_t *widths, void *out,
	size_t out_size);

/*
 * Writes header and gaps of a payload in a published layout, whose sections the caller then fills
 * with the engine's tensors: codes, scale, minimum of ret_layout. Errors as kvp_plane_encode();
 * -EINVAL also for codecs that are not published ones.
 */
int kvp_published_begin(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib,
	void *out, size_t out_size, struct kvp_layout *ret_layout);

/* Only the checks of kvp_plane_decode(), but for those of a destination. Same errors. */
int kvp_plane_check(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib,
	const void *in, size_t in_size);

/*
 * Names: "native", "fp8", "tq4", "tq4-plain", "tq3-h3-sphere", "kivi2-g64", ... The grammar is in
 * docs/formats.md. kvp_codec_name() writes the canonical name, NUL-terminated, at most
 * KVP_CODEC_NAME_MAX bytes with it; what it writes, kvp_codec_parse() reads. -ENOENT: no such codec.
 */
#define KVP_CODEC_NAME_MAX 40u
int kvp_codec_parse(const char *name, uint32_t *ret_codec);
int kvp_codec_name(uint32_t codec, char *ret_name);

/*
 * Codecs of keys and of values: "K/V", one name for both, or a preset. "4bit", "3bit" and "2bit"
 * are our defaults for a size: no other pair of ours that needs no more bytes has a smaller KL
 * divergence (docs/quality.md). "tq35" and "tq25" are the hybrids. "k8v4", "4bit_nc", "k3v4_nc",
 * "3bit_nc" are vLLM's (leaving the first and last layers native is the caller's part of those).
 * -ENOENT: no such preset, or one of the names is no codec's.
 */
int kvp_codec_parse_pair(const char *name, uint32_t *ret_k, uint32_t *ret_v);

#ifdef __cplusplus
}
#endif
#endif
