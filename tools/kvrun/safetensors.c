/* SPDX-License-Identifier: Apache-2.0 */
/* Parses and checks a safetensors header, which may be hostile. */
#include "tools/kvrun/kvr_safetensors.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	uint32_t bytes;
} st_dtypes[] = {
	[KVR_ST_F64] = { "F64", 8 },
	[KVR_ST_F32] = { "F32", 4 },
	[KVR_ST_F16] = { "F16", 2 },
	[KVR_ST_BF16] = { "BF16", 2 },
	[KVR_ST_F8_E4M3] = { "F8_E4M3", 1 },
	[KVR_ST_F8_E5M2] = { "F8_E5M2", 1 },
	[KVR_ST_I64] = { "I64", 8 },
	[KVR_ST_I32] = { "I32", 4 },
	[KVR_ST_I16] = { "I16", 2 },
	[KVR_ST_I8] = { "I8", 1 },
	[KVR_ST_U64] = { "U64", 8 },
	[KVR_ST_U32] = { "U32", 4 },
	[KVR_ST_U16] = { "U16", 2 },
	[KVR_ST_U8] = { "U8", 1 },
	[KVR_ST_BOOL] = { "BOOL", 1 },
};
static_assert(sizeof(st_dtypes) / sizeof(st_dtypes[0]) == KVR_ST_DTYPE_MAX_, "name every dtype");

const char *kvr_st_dtype_name(enum kvr_st_dtype dtype)
{
	return st_dtypes[dtype].name;
}

int kvr_st_header_length(
	const uint8_t prefix[8], uint64_t file_bytes, struct kvr_error *err, size_t *ret_bytes)
{
	uint64_t n = 0;

	for (int i = 7; i >= 0; i--)
		n = n << 8 | prefix[i];
	if (n < 2)
		return kvr_fail(err, -EINVAL, "header length %llu is too small for JSON",
			(unsigned long long)n);
	if (n > KVR_ST_MAX_HEADER)
		return kvr_fail(err, -EINVAL,
			"header length %llu is beyond the limit of %u bytes: this is not a "
			"safetensors file, or it is damaged",
			(unsigned long long)n, KVR_ST_MAX_HEADER);
	if (file_bytes < 8 || n > file_bytes - 8)
		return kvr_fail(err, -EINVAL,
			"header length %llu does not fit the file of %llu bytes: it is truncated, "
			"download it again",
			(unsigned long long)n, (unsigned long long)file_bytes);
	*ret_bytes = (size_t)n;
	return 0;
}

static int parse_dtype(const json_t *entry, enum kvr_st_dtype *ret_dtype)
{
	const char *name = json_string_value(json_object_get(entry, "dtype"));

	for (size_t i = 0; name && i < KVR_ST_DTYPE_MAX_; i++) {
		if (strcmp(name, st_dtypes[i].name) == 0) {
			*ret_dtype = (enum kvr_st_dtype)i;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_u64(const json_t *value, uint64_t *ret_number)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return -EINVAL;
	*ret_number = (uint64_t)json_integer_value(value);
	return 0;
}

static int parse_shape(const json_t *entry, struct kvr_st_tensor *t)
{
	const json_t *shape = json_object_get(entry, "shape");

	if (!json_is_array(shape) || json_array_size(shape) > KVR_ST_MAX_DIMS)
		return -EINVAL;
	t->n_dims = (uint32_t)json_array_size(shape);
	for (uint32_t i = 0; i < t->n_dims; i++)
		if (parse_u64(json_array_get(shape, i), &t->dims[i]) < 0)
			return -EINVAL;
	return 0;
}

static int tensor_bytes(const struct kvr_st_tensor *t, uint64_t *ret_bytes)
{
	uint64_t n = st_dtypes[t->dtype].bytes;

	for (uint32_t i = 0; i < t->n_dims; i++)
		if (__builtin_mul_overflow(n, t->dims[i], &n))
			return -EOVERFLOW;
	*ret_bytes = n;
	return 0;
}

static int parse_tensor(const char *name, const json_t *entry, uint64_t data_bytes,
	struct kvr_error *err, struct kvr_st_tensor *t)
{
	const json_t *range = json_object_get(entry, "data_offsets");
	uint64_t bytes;

	if (!json_is_object(entry))
		return kvr_fail(err, -EINVAL, "entry \"%s\" is not an object", name);
	if (parse_dtype(entry, &t->dtype) < 0)
		return kvr_fail(err, -EINVAL, "tensor \"%s\": no or unknown dtype", name);
	if (parse_shape(entry, t) < 0)
		return kvr_fail(err, -EINVAL,
			"tensor \"%s\": the shape must be an array of at most %u non-negative "
			"integers",
			name, KVR_ST_MAX_DIMS);
	if (!json_is_array(range) || json_array_size(range) != 2 ||
		parse_u64(json_array_get(range, 0), &t->begin) < 0 ||
		parse_u64(json_array_get(range, 1), &t->end) < 0 || t->begin > t->end)
		return kvr_fail(err, -EINVAL,
			"tensor \"%s\": data_offsets must be [begin, end] with begin <= end", name);
	if (t->end > data_bytes)
		return kvr_fail(err, -EINVAL,
			"tensor \"%s\" ends at byte %llu of %llu: the file is truncated, download "
			"it again",
			name, (unsigned long long)t->end, (unsigned long long)data_bytes);
	if (tensor_bytes(t, &bytes) < 0 || bytes != t->end - t->begin)
		return kvr_fail(err, -EINVAL,
			"tensor \"%s\": shape and dtype do not give the %llu bytes of its "
			"data_offsets",
			name, (unsigned long long)(t->end - t->begin));
	return 0;
}

static int by_range(const void *a, const void *b)
{
	const struct kvr_st_tensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->end < y->end ? -1 : x->end > y->end;
}

static int check_ranges(const struct kvr_st *st, uint64_t data_bytes, struct kvr_error *err)
{
	uint64_t at = 0;

	for (size_t i = 0; i < st->n_tensors; i++) {
		const struct kvr_st_tensor *t = &st->tensors[i];

		if (t->begin != at)
			return kvr_fail(err, -EINVAL,
				"tensor \"%s\" begins at byte %llu where %llu was expected: "
				"tensors %s",
				t->name, (unsigned long long)t->begin, (unsigned long long)at,
				t->begin < at ? "overlap" : "leave a hole");
		at = t->end;
	}
	if (at != data_bytes)
		return kvr_fail(err, -EINVAL, "%llu bytes follow the last tensor",
			(unsigned long long)(data_bytes - at));
	return 0;
}

static int parse_entries(
	json_t *root, uint64_t data_bytes, struct kvr_error *err, struct kvr_st *st)
{
	const char *name;
	json_t *entry;
	int r;

	if (json_object_size(root) > KVR_ST_MAX_TENSORS)
		return kvr_fail(err, -EINVAL, "more than %u tensors", KVR_ST_MAX_TENSORS);
	st->tensors = calloc(json_object_size(root) + 1, sizeof(*st->tensors));
	if (!st->tensors)
		return -ENOMEM;
	json_object_foreach(root, name, entry) {
		struct kvr_st_tensor *t = &st->tensors[st->n_tensors];

		if (strcmp(name, "__metadata__") == 0)
			continue;
		if (strlen(name) > KVR_ST_MAX_NAME)
			return kvr_fail(err, -EINVAL, "a tensor name is longer than %u bytes",
				KVR_ST_MAX_NAME);
		r = parse_tensor(name, entry, data_bytes, err, t);
		if (r < 0)
			return r;
		t->name = strdup(name);
		if (!t->name)
			return -ENOMEM;
		st->n_tensors++;
	}
	qsort(st->tensors, st->n_tensors, sizeof(*st->tensors), by_range);
	return check_ranges(st, data_bytes, err);
}

int kvr_st_parse(const void *json, size_t bytes, uint64_t file_bytes, struct kvr_error *err,
	struct kvr_st *ret_st)
{
	struct kvr_st st = { .data_offset = 8 + (uint64_t)bytes };
	json_error_t jerr;
	json_t *root;
	int r;

	if (bytes > KVR_ST_MAX_HEADER || file_bytes < st.data_offset)
		return kvr_fail(err, -EINVAL, "the header does not fit the file");
	root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &jerr);
	if (!root)
		return kvr_fail(err, -EINVAL, "the header is not valid JSON: %s (line %d)",
			jerr.text, jerr.line);
	if (json_is_object(root))
		r = parse_entries(root, file_bytes - st.data_offset, err, &st);
	else
		r = kvr_fail(err, -EINVAL, "the header is not a JSON object");
	json_decref(root);
	if (r < 0) {
		kvr_st_done(&st);
		return r;
	}
	*ret_st = st;
	return 0;
}

void kvr_st_done(struct kvr_st *st)
{
	for (size_t i = 0; i < st->n_tensors; i++)
		free(st->tensors[i].name);
	free(st->tensors);
	*st = (struct kvr_st){ 0 };
}

struct kvr_st_tensor *kvr_st_find(const struct kvr_st *st, const char *name)
{
	for (size_t i = 0; i < st->n_tensors; i++)
		if (strcmp(st->tensors[i].name, name) == 0)
			return &st->tensors[i];
	return NULL;
}
