/* SPDX-License-Identifier: Apache-2.0 */
/* Calibrations of kvquant: files checked and taken apart, and written; docs/formats.md. */
#include "kernels/nuq.h"
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* Inside this file: who links with the installed kernels needs no library for it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

/* The file's first bytes. Little-endian. */
struct file_hdr {
	uint32_t magic;
	uint16_t version;
	uint16_t reserved0;
	uint64_t bytes;
	uint64_t checksum; /* XXH3 of all that follows it */
	uint32_t layers, entries;
	uint32_t heads, dim;
	uint64_t reserved1;
	struct kvp_rope_desc rope;
	uint64_t reserved2;
	char model[KVP_NUQ_NAME_MAX];
	uint8_t reserved3[16];
};
#define CHECKED_FROM offsetof(struct file_hdr, layers)
/* What all entries depend on; digests begin with it. */
#define SHARED_FROM offsetof(struct file_hdr, heads)
#define SHARED_TO   offsetof(struct file_hdr, model)
static_assert(sizeof(struct file_hdr) == 192, "calibration of kvquant: header");
static_assert(CHECKED_FROM == 24 && SHARED_FROM == 32 && offsetof(struct file_hdr, rope) == 48 &&
		      SHARED_TO == 112,
	"calibration of kvquant: fields");

/* Then entries, which for keys end with the channels' bounds, low ones first. */
struct entry_hdr {
	uint32_t layer, form;
	float signpost[KVP_NUQ_SIGNPOSTS];
};
static_assert(sizeof(struct entry_hdr) == 120, "calibration of kvquant: entry");

struct kvp_nuq_set {
	struct kvp_nuq_info info;
	struct kvp_rope rope, none;
	size_t n;
	struct kvp_nuq *nuq;     /* [n] */
	struct kvp_calib *calib; /* [n] */
};

static uint32_t width_of(const struct kvp_nuq_info *info)
{
	return info->heads * info->dim;
}

static size_t entry_bytes(const struct kvp_nuq_info *info, uint32_t form)
{
	return sizeof(struct entry_hdr) +
	       (form == KVP_NUQ_V ? 0 : 2 * sizeof(float) * width_of(info));
}

/* ---- checks ---- */

static int valid_name(const char *name)
{
	size_t n = strnlen(name, KVP_NUQ_NAME_MAX);

	if (!n || n == KVP_NUQ_NAME_MAX)
		return 0;
	for (size_t i = 0; i < KVP_NUQ_NAME_MAX; i++)
		if (i < n ? name[i] < ' ' || name[i] > '~' : name[i])
			return 0;
	return 1;
}

static int valid_info(const struct kvp_nuq_info *info, struct kvp_rope *ret_rope)
{
	if (!valid_name(info->model) || !info->layers || info->layers > KVP_NUQ_LAYERS_MAX ||
		!info->heads || info->heads > KVP_PLANE_HEADS_MAX || info->dim % 8 ||
		info->dim < KVP_PLANE_DIM_MIN || info->dim > KVP_PLANE_DIM_MAX ||
		width_of(info) > KVP_NUQ_WIDTH_MAX || info->reserved)
		return 0;
	return !info->rope.reserved && kvp_rope_init(&info->rope, ret_rope) == 0 &&
	       ret_rope->dim <= info->dim;
}

/* n of them that ascend, or stand still, between -1 and 1. */
static int valid_signposts(const float *post, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!(post[i] >= (i ? post[i - 1] : -1.0f) && post[i] <= 1.0f))
			return 0;
	return 1;
}

/* ---- one entry ---- */

static uint64_t digest_of(const struct file_hdr *hdr, const uint8_t *entry, size_t bytes)
{
	uint64_t seed = XXH3_64bits((const uint8_t *)hdr + SHARED_FROM, SHARED_TO - SHARED_FROM);
	uint64_t digest = XXH3_64bits_withSeed(entry, bytes, seed);

	return digest ? digest : 1;
}

static int take_channels(const uint8_t *in, uint32_t width, struct kvp_nuq *nuq)
{
	nuq->middle = calloc(width, sizeof(float));
	nuq->range = calloc(width, sizeof(float));
	nuq->inverse = calloc(width, sizeof(float));
	if (!nuq->middle || !nuq->range || !nuq->inverse)
		return -ENOMEM;
	for (uint32_t i = 0; i < width; i++) {
		float low, high, half;

		memcpy(&low, in + i * sizeof low, sizeof low);
		memcpy(&high, in + (width + i) * sizeof high, sizeof high);
		if (!(low >= -NUQ_INPUT_MAX && low <= high && high <= NUQ_INPUT_MAX))
			return -EBADMSG;
		half = (high - low) * 0.5f;
		nuq->middle[i] = (high + low) * 0.5f;
		nuq->range[i] = half > NUQ_RANGE_MIN ? half : NUQ_RANGE_MIN;
		nuq->inverse[i] = 1.0f / nuq->range[i];
	}
	return 0;
}

/* Takes an entry from the front of [in, end), of a form and layer behind *order. */
static int take_entry(struct kvp_nuq_set *set, const struct file_hdr *file, size_t i,
	const uint8_t *in, const uint8_t *end, uint64_t *order, size_t *ret_bytes)
{
	struct kvp_nuq *nuq = &set->nuq[i];
	struct entry_hdr hdr;
	uint32_t at = 0;
	uint64_t own;
	int r = 0;

	if ((size_t)(end - in) < sizeof hdr)
		return -EBADMSG;
	memcpy(&hdr, in, sizeof hdr);
	own = KVP_NUQ_FORMS * (uint64_t)hdr.layer + hdr.form + 1;
	if (hdr.layer >= file->layers || hdr.form >= KVP_NUQ_FORMS || own <= *order ||
		entry_bytes(&set->info, hdr.form) > (size_t)(end - in))
		return -EBADMSG;
	*order = own;
	*ret_bytes = entry_bytes(&set->info, hdr.form);
	*nuq = (struct kvp_nuq){ .layer = hdr.layer,
		.form = hdr.form,
		.heads = set->info.heads,
		.dim = set->info.dim,
		.rope = hdr.form == KVP_NUQ_K ? &set->rope : &set->none };
	for (uint32_t bits = NUQ_BITS_MIN; bits <= NUQ_BITS_MAX; at += 1u << bits, bits++) {
		if (!valid_signposts(hdr.signpost + at, 1u << bits))
			return -EBADMSG;
		kvp_nuq_book_init(bits, hdr.signpost + at, &nuq->book[bits - NUQ_BITS_MIN]);
	}
	if (hdr.form != KVP_NUQ_V)
		r = take_channels(in + sizeof hdr, width_of(&set->info), nuq);
	set->calib[i] = (struct kvp_calib){
		.dim = nuq->dim, .digest = digest_of(file, in, *ret_bytes), .nuq = nuq
	};
	return r;
}

/* ---- files ---- */

static int take_header(
	const uint8_t *in, size_t size, struct file_hdr *ret, struct kvp_nuq_set *set)
{
	static const uint8_t zero[sizeof ret->reserved3];

	if (size < sizeof *ret)
		return -EBADMSG;
	memcpy(ret, in, sizeof *ret);
	if (ret->magic != KVP_NUQ_MAGIC)
		return -EBADMSG;
	if (ret->version != KVP_NUQ_VERSION)
		return -EPROTONOSUPPORT;
	set->info = (struct kvp_nuq_info){
		.layers = ret->layers, .heads = ret->heads, .dim = ret->dim, .rope = ret->rope
	};
	memcpy(set->info.model, ret->model, sizeof set->info.model);
	if (ret->bytes != size || ret->reserved0 || ret->reserved1 || ret->reserved2 ||
		memcmp(ret->reserved3, zero, sizeof zero) != 0 ||
		!valid_info(&set->info, &set->rope) || !ret->entries ||
		ret->entries > KVP_NUQ_FORMS * ret->layers ||
		(size - sizeof *ret) / sizeof(struct entry_hdr) < ret->entries)
		return -EBADMSG;
	return XXH3_64bits(in + CHECKED_FROM, size - CHECKED_FROM) == ret->checksum ? 0 : -EBADMSG;
}

static int take_entries(
	struct kvp_nuq_set *set, const struct file_hdr *hdr, const uint8_t *in, size_t size)
{
	size_t at = sizeof *hdr, bytes = 0;
	uint64_t order = 0;

	for (uint32_t i = 0; i < hdr->entries; i++, at += bytes) {
		int r;

		set->n = i + 1;
		r = take_entry(set, hdr, i, in + at, in + size, &order, &bytes);
		if (r < 0)
			return r;
	}
	return at == size ? 0 : -EBADMSG;
}

int kvp_nuq_set_new(const void *data, size_t size, struct kvp_nuq_set **ret_set)
{
	struct kvp_nuq_set *set = calloc(1, sizeof *set);
	struct file_hdr hdr;
	int r;

	if (!set)
		return -ENOMEM;
	set->none.gain = 1.0;
	r = take_header(data, size, &hdr, set);
	if (!r) {
		set->nuq = calloc(hdr.entries, sizeof *set->nuq);
		set->calib = calloc(hdr.entries, sizeof *set->calib);
		r = set->nuq && set->calib ? take_entries(set, &hdr, data, size) : -ENOMEM;
	}
	if (r < 0) {
		kvp_nuq_set_free(set);
		return r;
	}
	*ret_set = set;
	return 0;
}

struct kvp_nuq_set *kvp_nuq_set_free(struct kvp_nuq_set *set)
{
	if (!set)
		return NULL;
	for (size_t i = 0; i < set->n; i++) {
		free(set->nuq[i].middle);
		free(set->nuq[i].range);
		free(set->nuq[i].inverse);
	}
	free(set->nuq);
	free(set->calib);
	free(set);
	return NULL;
}

const struct kvp_nuq_info *kvp_nuq_set_info(const struct kvp_nuq_set *set)
{
	return &set->info;
}

const struct kvp_calib *kvp_nuq_set_find(
	const struct kvp_nuq_set *set, uint32_t layer, uint32_t form)
{
	for (size_t i = 0; i < set->n; i++)
		if (set->nuq[i].layer == layer && set->nuq[i].form == form)
			return &set->calib[i];
	return NULL;
}

/* ---- writing ---- */

int kvp_nuq_bytes(const struct kvp_nuq_info *info, const struct kvp_nuq_entry *entries, size_t n,
	size_t *ret_bytes)
{
	size_t bytes = sizeof(struct file_hdr);
	struct kvp_rope rope;

	if (!valid_info(info, &rope) || !n || n > KVP_NUQ_FORMS * (size_t)info->layers)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		const struct kvp_nuq_entry *e = &entries[i];

		if (e->form >= KVP_NUQ_FORMS || (e->form != KVP_NUQ_V && (!e->low || !e->high)))
			return -EINVAL;
		bytes += entry_bytes(info, e->form);
	}
	*ret_bytes = bytes;
	return 0;
}

static uint8_t *put(uint8_t *to, const void *data, size_t bytes)
{
	memcpy(to, data, bytes);
	return to + bytes;
}

int kvp_nuq_write(const struct kvp_nuq_info *info, const struct kvp_nuq_entry *entries, size_t n,
	void *out, size_t out_size)
{
	struct file_hdr hdr = { .magic = KVP_NUQ_MAGIC, .version = KVP_NUQ_VERSION };
	uint8_t *base = out, *at = base + sizeof hdr;
	struct kvp_nuq_set *set;
	size_t bytes;
	int r = kvp_nuq_bytes(info, entries, n, &bytes);

	if (r < 0)
		return r;
	if (out_size < bytes)
		return -ENOSPC;
	hdr.bytes = bytes;
	hdr.layers = info->layers;
	hdr.heads = info->heads;
	hdr.dim = info->dim;
	hdr.entries = (uint32_t)n;
	hdr.rope = info->rope;
	memcpy(hdr.model, info->model, sizeof hdr.model);
	for (size_t i = 0; i < n; i++) {
		struct entry_hdr e = { .layer = entries[i].layer, .form = entries[i].form };

		memcpy(e.signpost, entries[i].signpost, sizeof e.signpost);
		at = put(at, &e, sizeof e);
		if (e.form == KVP_NUQ_V)
			continue;
		at = put(at, entries[i].low, sizeof(float) * width_of(info));
		at = put(at, entries[i].high, sizeof(float) * width_of(info));
	}
	memcpy(base, &hdr, sizeof hdr);
	hdr.checksum = XXH3_64bits(base + CHECKED_FROM, bytes - CHECKED_FROM);
	memcpy(base, &hdr, sizeof hdr);
	r = kvp_nuq_set_new(base, bytes, &set);
	if (r < 0)
		return r == -ENOMEM ? r : -EINVAL;
	kvp_nuq_set_free(set);
	return 0;
}
