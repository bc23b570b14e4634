/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a safetensors file: an 8-byte little-endian length, that many bytes of JSON, then
 * the tensors' bytes. The file is taken to be hostile. Accepted is only a header in which
 *  - the length is at most KVR_ST_MAX_HEADER and fits the file, the JSON is one object without
 *    duplicate names and holds at most KVR_ST_MAX_TENSORS tensors,
 *  - every dtype is known, every shape has at most KVR_ST_MAX_DIMS dimensions whose product with
 *    the element size does not overflow and equals the tensor's byte range,
 *  - the byte ranges, put in order, neither overlap nor leave holes and end with the file.
 * The last point catches a truncated file before a single weight is read.
 */
#ifndef KVR_SAFETENSORS_H
#define KVR_SAFETENSORS_H

#include "tools/kvrun/kvr_error.h"

#include <stddef.h>
#include <stdint.h>

#define KVR_ST_MAX_HEADER  (16u << 20)
#define KVR_ST_MAX_TENSORS 65536u
#define KVR_ST_MAX_DIMS    8u
#define KVR_ST_MAX_NAME    255u

/* Element types that the format defines and we can size; only three of them hold weights for us. */
enum kvr_st_dtype {
	KVR_ST_F64,
	KVR_ST_F32,
	KVR_ST_F16,
	KVR_ST_BF16,
	KVR_ST_F8_E4M3,
	KVR_ST_F8_E5M2,
	KVR_ST_I64,
	KVR_ST_I32,
	KVR_ST_I16,
	KVR_ST_I8,
	KVR_ST_U64,
	KVR_ST_U32,
	KVR_ST_U16,
	KVR_ST_U8,
	KVR_ST_BOOL,
	KVR_ST_DTYPE_MAX_,
};

struct kvr_st_tensor {
	char *name;
	enum kvr_st_dtype dtype;
	uint32_t n_dims;
	uint64_t dims[KVR_ST_MAX_DIMS];
	uint64_t begin; /* byte range relative to the end of the header */
	uint64_t end;
	float *dst; /* the caller's: where the widened weights go; NULL after parsing */
};

struct kvr_st {
	struct kvr_st_tensor *tensors; /* in order of `begin` */
	size_t n_tensors;
	uint64_t data_offset; /* of the first tensor byte in the file */
};

/* The 8-byte length in front of the header, checked against the size of the whole file. */
int kvr_st_header_length(
	const uint8_t prefix[8], uint64_t file_bytes, struct kvr_error *err, size_t *ret_bytes);

/*
 * Parses and checks the JSON header at `json` (`bytes` long, as kvr_st_header_length said) of a
 * file of `file_bytes` bytes. -EINVAL with a message, or -ENOMEM. `ret_st` is to be freed with
 * kvr_st_done.
 */
int kvr_st_parse(const void *json, size_t bytes, uint64_t file_bytes, struct kvr_error *err,
	struct kvr_st *ret_st);

void kvr_st_done(struct kvr_st *st);

/* The tensor of that name or NULL. Linear: models have a few hundred. */
struct kvr_st_tensor *kvr_st_find(const struct kvr_st *st, const char *name);

const char *kvr_st_dtype_name(enum kvr_st_dtype dtype);

#endif
