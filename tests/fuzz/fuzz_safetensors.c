/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is a whole safetensors file, except that its size is claimed: the first 4 bytes say how
 * many more bytes of tensor data there are than the input holds, so that headers over large data
 * can be reached. What is accepted must keep the promises of kvr_safetensors.h.
 */
#include "tools/kvrun/kvr_safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvr_error err;
	uint64_t file_bytes, at = 0;
	struct kvr_st st;
	uint32_t extra;
	size_t bytes;

	if (size < 12)
		return 0;
	memcpy(&extra, data, 4);
	data += 4;
	size -= 4;
	file_bytes = size + (uint64_t)extra;
	if (kvr_st_header_length(data, file_bytes, &err, &bytes) < 0 || bytes > size - 8)
		return 0;
	if (kvr_st_parse(data + 8, bytes, file_bytes, &err, &st) < 0)
		return 0;
	for (size_t i = 0; i < st.n_tensors; i++) {
		const struct kvr_st_tensor *t = &st.tensors[i];

		if (t->begin != at || t->end < t->begin || t->n_dims > KVR_ST_MAX_DIMS ||
			!kvr_st_find(&st, t->name) || !kvr_st_dtype_name(t->dtype))
			abort();
		at = t->end;
	}
	if (st.data_offset + at != file_bytes)
		abort();
	kvr_st_done(&st);
	return 0;
}
