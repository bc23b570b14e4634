/* SPDX-License-Identifier: Apache-2.0 */
/* Calibration files: checked and taken apart, and written; docs/formats.md, "Calibrations". */
#include "kernels/kvp_calib.h"
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"
#include "kernels/pca.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Inside this file: who links with the installed kernels needs no library for it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#define MEAN_MAX   0x1p16f
#define MATRIX_MAX 0x1p20f
#define ALIGN      64u

/* The file's first bytes. Little-endian. */
struct file_hdr {
	uint32_t magic;
	uint16_t version;
	uint16_t reserved0;
	uint64_t bytes;
	uint64_t checksum; /* XXH3 of all that follows it */
	uint32_t layers, entries;
	uint32_t heads, dim, joint;
	float round;
	struct kvp_rope_desc rope;
	uint64_t reserved1;
	char model[KVP_CALIB_NAME_MAX];
	uint8_t reserved2[16];
};
#define CHECKED_FROM offsetof(struct file_hdr, layers)
/* What all entries depend on; digests begin with it. */
#define SHARED_FROM offsetof(struct file_hdr, heads)
#define SHARED_TO   offsetof(struct file_hdr, model)
static_assert(sizeof(struct file_hdr) == 192, "calibration header: size");
static_assert(CHECKED_FROM == 24 && offsetof(struct file_hdr, round) == 44 &&
		      offsetof(struct file_hdr, rope) == 48 && SHARED_TO == 112,
	"calibration header");
static_assert(sizeof(struct kvp_rope_desc) == 56, "a declaration of RoPE");

struct file_entry {
	uint32_t layer, kind;
	uint64_t offset, bytes;
	uint64_t digest;
};
static_assert(sizeof(struct file_entry) == 32, "calibration directory");

/* Before an entry's units, and before a unit's numbers. */
struct entry_hdr {
	uint32_t layer, kind;
};
struct unit_hdr {
	uint32_t rank, tables;
};
static_assert(sizeof(struct kvp_calib_table) == 528, "a table");

struct kvp_calib_set {
	struct kvp_calib_info info;
	struct kvp_rope rope[2]; /* of keys, of values */
	struct pca_low low[PCA_SHIFTS];
	size_t n;
	struct kvp_pca *pca;     /* [n] */
	struct kvp_calib *calib; /* [n] */
};

/* ---- sizes ---- */

static uint32_t width_of(const struct kvp_calib_info *info)
{
	return info->joint * info->dim;
}

static uint32_t padded(uint32_t n)
{
	return (n + PCA_ALIGN - 1) / PCA_ALIGN * PCA_ALIGN;
}

static uint64_t unit_bytes(uint32_t width, uint32_t rank, uint32_t tables)
{
	return sizeof(struct unit_hdr) + sizeof(float) * (width + 2 * (uint64_t)width * rank) +
	       tables * sizeof(struct kvp_calib_table);
}

/* ---- checks ---- */

static int valid_name(const char *name)
{
	size_t n = strnlen(name, KVP_CALIB_NAME_MAX);

	if (!n || n == KVP_CALIB_NAME_MAX)
		return 0;
	for (size_t i = 0; i < KVP_CALIB_NAME_MAX; i++)
		if (i < n ? name[i] < ' ' || name[i] > '~' : name[i])
			return 0;
	return 1;
}

static int valid_info(const struct kvp_calib_info *info, struct kvp_rope *ret_rope)
{
	if (!valid_name(info->model) || !info->layers || info->layers > KVP_CALIB_LAYERS_MAX ||
		!info->heads || info->heads > KVP_PLANE_HEADS_MAX || info->dim % 8 ||
		info->dim < KVP_PLANE_DIM_MIN || info->dim > KVP_CALIB_WIDTH_MAX || !info->joint ||
		info->joint > info->heads || info->heads % info->joint ||
		width_of(info) > KVP_CALIB_WIDTH_MAX)
		return 0;
	if (!(info->round > 0.0f && info->round <= 0.5f))
		return 0;
	return !info->rope.reserved && kvp_rope_init(&info->rope, ret_rope) == 0 &&
	       ret_rope->dim <= info->dim;
}

static int valid_table(const struct kvp_calib_table *t)
{
	uint32_t sum = 0;

	for (uint32_t s = 0; s < KVP_CALIB_SYMBOLS; s++)
		sum += t->freq[s];
	if (sum != KVP_CALIB_TOTAL || !t->freq[KVP_CALIB_ESCAPE] || !t->freq[KVP_CALIB_ZERO])
		return 0;
	for (int i = 0; i < 2; i++)
		if (!(t->offset[i] >= -0.5f && t->offset[i] <= 0.5f))
			return 0;
	return t->count && t->count <= KVP_CALIB_WIDTH_MAX && t->shift <= KVP_CALIB_SHIFT_MAX;
}

/*
 * Copies rows of n floats that lie anywhere to columns of `group`, one group after another: what was at
 * [r][i] is at [i / group][r][i % group]. -EBADMSG if one is beyond max, or a NaN.
 */
static int take_floats(
	const uint8_t *in, uint32_t rows, uint32_t n, uint32_t group, float max, float *to)
{
	int bad = 0;

	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t i = 0; i < n; i++, in += sizeof(float)) {
			float *f = to + ((size_t)(i / group) * rows + r) * group + i % group;

			memcpy(f, in, sizeof *f);
			bad |= !(*f >= -max && *f <= max);
		}
	}
	return bad ? -EBADMSG : 0;
}

/* ---- one transform ---- */

static void done_unit(struct pca_unit *u)
{
	free(u->offset[0]);
	free(u->offset[1]);
	free(u->shift);
	free(u->least);
	free(u->most);
	free(u->mean);
	free(u->scale);
	free(u->forward);
	free(u->inverse);
	free(u->table);
}

static void *zeros_new(size_t bytes)
{
	void *p = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);

	if (p)
		memset(p, 0, bytes);
	return p;
}

static float *floats_new(size_t n)
{
	return zeros_new(n * sizeof(float));
}

static int16_t *axes_new(size_t n)
{
	return zeros_new(n * sizeof(int16_t));
}

/* What symbol s stands for where a quotient is one symbol; not of the escape. */
static int16_t value_of(const struct pca_table *t, uint32_t s)
{
	const int32_t q = (int32_t)s - (int32_t)KVP_CALIB_ZERO, m = q < 0 ? -q : q;
	const int32_t v = m ? m * (1 << PCA_VALUE_BITS) - t->offset[m > 1] : 0;

	return (int16_t)(q < 0 ? -v : v);
}

static int take_table(const uint8_t *in, uint32_t first, struct pca_table *ret)
{
	struct kvp_calib_table t;

	memcpy(&t, in, sizeof t);
	if (!valid_table(&t))
		return -EBADMSG;
	ret->first = first;
	ret->count = t.count;
	ret->shift = t.shift;
	for (int i = 0; i < 2; i++)
		ret->offset[i] = (int32_t)rintf(t.offset[i] * (1 << PCA_VALUE_BITS));
	for (uint32_t s = 0; s < KVP_CALIB_SYMBOLS; s++)
		ret->value[s] = s == KVP_CALIB_ESCAPE ? 0 : value_of(ret, s);
	kvp_rans_coder(t.freq, &ret->coder);
	return kvp_rans_table(t.freq, &ret->slots);
}

/* What a table says, for each of its components. */
static void spread_table(const struct pca_table *t, struct pca_unit *u)
{
	const int32_t zero = KVP_CALIB_ZERO, end = KVP_CALIB_SYMBOLS - KVP_CALIB_ZERO;
	int32_t least = 1, most = 0; /* none */

	if (t->coder.word[zero] & 0xffffu) {
		for (least = 0; least > 1 - zero && t->coder.word[zero + least - 1] & 0xffffu;)
			least--;
		while (most < end - 1 && t->coder.word[zero + most + 1] & 0xffffu)
			most++;
	}
	for (uint32_t c = t->first; c < t->first + t->count; c++) {
		u->offset[0][c] = t->offset[0];
		u->offset[1][c] = t->offset[1];
		u->shift[c] = (int32_t)t->shift;
		u->least[c] = least;
		u->most[c] = most;
	}
	u->shifts |= t->shift != 0;
}

static int components_new(struct pca_unit *u)
{
	u->offset[0] = calloc(u->rank_stride, sizeof *u->offset[0]);
	u->offset[1] = calloc(u->rank_stride, sizeof *u->offset[1]);
	u->shift = calloc(u->rank_stride, sizeof *u->shift);
	u->least = calloc(u->rank_stride, sizeof *u->least);
	u->most = calloc(u->rank_stride, sizeof *u->most);
	return u->offset[0] && u->offset[1] && u->shift && u->least && u->most ? 0 : -ENOMEM;
}

/*
 * The way back, rows of components anywhere, in integers: each channel's largest is 2^PCA_AXIS_BITS, so that a
 * channel that differs in size from the others loses nothing by them. -EBADMSG, -ENOMEM.
 */
static int take_inverse(const struct kvp_pca *pca, const uint8_t *in, struct pca_unit *u)
{
	const double top = 1 << PCA_AXIS_BITS;
	float *x = floats_new((size_t)u->rank * pca->width_stride);
	int r = x ? take_floats(in, u->rank, pca->width, PCA_ALIGN, MATRIX_MAX, x) : -ENOMEM;

	for (uint32_t i = 0; i < pca->width && !r; i++) {
		const size_t at = (size_t)(i / PCA_ALIGN) * u->rank * PCA_ALIGN + i % PCA_ALIGN;
		float most = 0.0f;

		for (size_t c = 0; c < u->rank; c++)
			most = fmaxf(most, fabsf(x[at + c * PCA_ALIGN]));
		u->scale[i] = most * (0x1p0f / (1 << (PCA_AXIS_BITS + PCA_VALUE_BITS)));
		for (size_t c = 0; c < u->rank && most > 0.0f; c++)
			u->inverse[at + c * PCA_ALIGN] =
				(int16_t)rint((double)x[at + c * PCA_ALIGN] * top / (double)most);
	}
	free(x);
	return r;
}

/* Takes a unit from the front of [*in, end). -EBADMSG, -ENOMEM. */
static int take_unit(
	const struct kvp_pca *pca, const uint8_t **in, const uint8_t *end, struct pca_unit *u)
{
	const uint32_t width = pca->width;
	struct unit_hdr hdr;
	const uint8_t *at;
	uint32_t first = 0;
	int r;

	if ((size_t)(end - *in) < sizeof hdr)
		return -EBADMSG;
	memcpy(&hdr, *in, sizeof hdr);
	if (!hdr.rank || hdr.rank > width || !hdr.tables || hdr.tables > KVP_CALIB_TABLES_MAX ||
		unit_bytes(width, hdr.rank, hdr.tables) > (uint64_t)(end - *in))
		return -EBADMSG;
	u->rank = hdr.rank;
	u->rank_stride = padded(hdr.rank);
	u->tables = hdr.tables;
	u->mean = floats_new(pca->width_stride);
	u->forward = floats_new((size_t)width * u->rank_stride);
	u->inverse = axes_new((size_t)u->rank * pca->width_stride);
	u->scale = floats_new(pca->width_stride);
	u->table = calloc(u->tables, sizeof *u->table);
	if (!u->mean || !u->scale || !u->forward || !u->inverse || !u->table ||
		components_new(u) < 0)
		return -ENOMEM;
	at = *in + sizeof hdr;
	r = take_floats(at, 1, width, PCA_ALIGN, MEAN_MAX, u->mean);
	at += sizeof(float) * width;
	if (!r)
		r = take_floats(at, width, u->rank, PCA_GROUP, MATRIX_MAX, u->forward);
	at += sizeof(float) * width * u->rank;
	if (!r)
		r = take_inverse(pca, at, u);
	at += sizeof(float) * width * u->rank;
	for (uint32_t i = 0; i < u->tables && !r; i++) {
		r = take_table(at, first, &u->table[i]);
		if (!r && u->table[i].count > u->rank - first)
			r = -EBADMSG;
		if (!r)
			spread_table(&u->table[i], u);
		first += u->table[i].count;
		at += sizeof(struct kvp_calib_table);
	}
	*in = at;
	return r ? r : first == u->rank ? 0 : -EBADMSG;
}

/* ---- one entry ---- */

static uint64_t digest_of(const struct file_hdr *hdr, const uint8_t *entry, uint64_t bytes)
{
	uint64_t seed = XXH3_64bits((const uint8_t *)hdr + SHARED_FROM, SHARED_TO - SHARED_FROM);
	uint64_t digest = XXH3_64bits_withSeed(entry, bytes, seed);

	return digest ? digest : 1;
}

static int take_entry(struct kvp_calib_set *set, size_t i, const struct file_entry *e,
	const uint8_t *in, uint64_t digest)
{
	const uint8_t *end = in + e->bytes;
	struct kvp_pca *pca = &set->pca[i];
	struct entry_hdr hdr;
	int r = 0;

	if (e->bytes < sizeof hdr)
		return -EBADMSG;
	memcpy(&hdr, in, sizeof hdr);
	if (hdr.layer != e->layer || hdr.kind != e->kind || digest != e->digest)
		return -EBADMSG;
	in += sizeof hdr;
	*pca = (struct kvp_pca){
		.layer = e->layer,
		.kind = e->kind,
		.heads = set->info.heads,
		.dim = set->info.dim,
		.joint = set->info.joint,
		.width = width_of(&set->info),
		.width_stride = padded(width_of(&set->info)),
		.units = set->info.heads / set->info.joint,
		.round = set->info.round,
		.rope = &set->rope[e->kind],
		.low = set->low,
	};
	pca->unit = calloc(pca->units, sizeof *pca->unit);
	if (!pca->unit)
		return -ENOMEM;
	for (uint32_t u = 0; u < pca->units && !r; u++)
		r = take_unit(pca, &in, end, &pca->unit[u]);
	set->calib[i] = (struct kvp_calib){ .dim = pca->dim, .digest = digest, .pca = pca };
	return r ? r : in == end ? 0 : -EBADMSG;
}

/* ---- files ---- */

static void fill_low(struct pca_low *low)
{
	for (uint32_t s = 0; s < PCA_SHIFTS; s++) {
		uint16_t freq[RANS_SYMBOLS] = { 0 };

		for (uint32_t i = 0; i < 1u << s; i++)
			freq[i] = (uint16_t)(RANS_TOTAL >> s);
		kvp_rans_coder(freq, &low[s].coder);
		kvp_rans_table(freq, &low[s].slots);
	}
}

static int take_header(const uint8_t *in, size_t size, struct file_hdr *ret,
	struct kvp_calib_info *info, struct kvp_rope *rope)
{
	static const uint8_t zero[sizeof ret->reserved2];

	if (size < sizeof *ret)
		return -EBADMSG;
	memcpy(ret, in, sizeof *ret);
	if (ret->magic != KVP_CALIB_MAGIC)
		return -EBADMSG;
	if (ret->version != KVP_CALIB_VERSION)
		return -EPROTONOSUPPORT;
	*info = (struct kvp_calib_info){ .layers = ret->layers,
		.heads = ret->heads,
		.dim = ret->dim,
		.joint = ret->joint,
		.round = ret->round,
		.rope = ret->rope };
	memcpy(info->model, ret->model, sizeof info->model);
	if (ret->bytes != size || size > KVP_CALIB_BYTES_MAX || ret->reserved0 || ret->reserved1 ||
		memcmp(ret->reserved2, zero, sizeof zero) != 0 || !valid_info(info, rope) ||
		!ret->entries || ret->entries > 2 * ret->layers ||
		size - sizeof *ret < ret->entries * sizeof(struct file_entry))
		return -EBADMSG;
	return XXH3_64bits(in + CHECKED_FROM, size - CHECKED_FROM) == ret->checksum ? 0 : -EBADMSG;
}

/* Entries follow the directory and one another, ascending, and the last ends the file. */
static int take_entries(
	struct kvp_calib_set *set, const struct file_hdr *hdr, const uint8_t *in, size_t size)
{
	uint64_t at = sizeof *hdr + hdr->entries * sizeof(struct file_entry), last = 0;

	for (uint32_t i = 0; i < hdr->entries; i++) {
		struct file_entry e;
		uint64_t order;
		int r;

		memcpy(&e, in + sizeof *hdr + i * sizeof e, sizeof e);
		order = 2 * (uint64_t)e.layer + e.kind + 1;
		if (e.layer >= hdr->layers || e.kind > KVP_PLANE_V || order <= last ||
			e.offset != at || e.bytes > size - at)
			return -EBADMSG;
		last = order;
		set->n = i + 1;
		r = take_entry(set, i, &e, in + at, digest_of(hdr, in + at, e.bytes));
		if (r < 0)
			return r;
		at += e.bytes;
	}
	return at == size ? 0 : -EBADMSG;
}

int kvp_calib_set_new(const void *data, size_t size, struct kvp_calib_set **ret_set)
{
	struct kvp_calib_set *set = calloc(1, sizeof *set);
	struct file_hdr hdr;
	int r;

	if (!set)
		return -ENOMEM;
	r = take_header(data, size, &hdr, &set->info, &set->rope[KVP_PLANE_K]);
	if (!r) {
		set->rope[KVP_PLANE_V] = (struct kvp_rope){ .gain = 1.0 };
		fill_low(set->low);
		set->pca = calloc(hdr.entries, sizeof *set->pca);
		set->calib = calloc(hdr.entries, sizeof *set->calib);
		r = set->pca && set->calib ? take_entries(set, &hdr, data, size) : -ENOMEM;
	}
	if (r < 0) {
		kvp_calib_set_free(set);
		return r;
	}
	*ret_set = set;
	return 0;
}

struct kvp_calib_set *kvp_calib_set_free(struct kvp_calib_set *set)
{
	if (!set)
		return NULL;
	for (size_t i = 0; i < set->n; i++) {
		for (uint32_t u = 0; set->pca[i].unit && u < set->pca[i].units; u++)
			done_unit(&set->pca[i].unit[u]);
		free(set->pca[i].unit);
	}
	free(set->pca);
	free(set->calib);
	free(set);
	return NULL;
}

const struct kvp_calib_info *kvp_calib_set_info(const struct kvp_calib_set *set)
{
	return &set->info;
}

const struct kvp_calib *kvp_calib_set_find(
	const struct kvp_calib_set *set, uint32_t layer, uint32_t kind)
{
	for (size_t i = 0; i < set->n; i++)
		if (set->pca[i].layer == layer && set->pca[i].kind == kind)
			return &set->calib[i];
	return NULL;
}

/* ---- writing ---- */

int kvp_calib_bytes(const struct kvp_calib_info *info, const struct kvp_calib_entry *entries,
	size_t n, size_t *ret_bytes)
{
	uint64_t bytes = sizeof(struct file_hdr) + n * sizeof(struct file_entry);
	struct kvp_rope rope;

	if (!valid_info(info, &rope) || !n || n > 2 * (size_t)info->layers)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		bytes += sizeof(struct entry_hdr);
		for (uint32_t u = 0; u < info->heads / info->joint; u++) {
			const struct kvp_calib_unit *unit = &entries[i].unit[u];

			if (unit->rank > width_of(info) || unit->tables > KVP_CALIB_TABLES_MAX)
				return -EINVAL;
			bytes += unit_bytes(width_of(info), unit->rank, unit->tables);
		}
	}
	if (bytes > KVP_CALIB_BYTES_MAX)
		return -EINVAL;
	*ret_bytes = bytes;
	return 0;
}

static uint8_t *put(uint8_t *to, const void *data, size_t bytes)
{
	memcpy(to, data, bytes);
	return to + bytes;
}

static uint8_t *put_entry(
	const struct kvp_calib_info *info, const struct kvp_calib_entry *e, uint8_t *to)
{
	const struct entry_hdr hdr = { e->layer, e->kind };
	const uint32_t width = width_of(info);

	to = put(to, &hdr, sizeof hdr);
	for (uint32_t i = 0; i < info->heads / info->joint; i++) {
		const struct kvp_calib_unit *u = &e->unit[i];
		const struct unit_hdr unit = { u->rank, u->tables };

		to = put(to, &unit, sizeof unit);
		to = put(to, u->mean, sizeof(float) * width);
		to = put(to, u->forward, sizeof(float) * width * u->rank);
		to = put(to, u->inverse, sizeof(float) * width * u->rank);
		to = put(to, u->table, sizeof *u->table * u->tables);
	}
	return to;
}

int kvp_calib_write(const struct kvp_calib_info *info, const struct kvp_calib_entry *entries,
	size_t n, void *out, size_t out_size)
{
	struct file_hdr hdr = { .magic = KVP_CALIB_MAGIC, .version = KVP_CALIB_VERSION };
	uint8_t *base = out, *at;
	struct kvp_calib_set *set;
	size_t bytes;
	int r = kvp_calib_bytes(info, entries, n, &bytes);

	if (r < 0)
		return r;
	if (out_size < bytes)
		return -ENOSPC;
	hdr.bytes = bytes;
	hdr.layers = info->layers;
	hdr.heads = info->heads;
	hdr.dim = info->dim;
	hdr.joint = info->joint;
	hdr.entries = (uint32_t)n;
	hdr.round = info->round;
	hdr.rope = info->rope;
	memcpy(hdr.model, info->model, sizeof hdr.model);
	at = base + sizeof hdr + n * sizeof(struct file_entry);
	for (size_t i = 0; i < n; i++) {
		struct file_entry e = { .layer = entries[i].layer,
			.kind = entries[i].kind,
			.offset = (uint64_t)(at - base) };
		uint8_t *end = put_entry(info, &entries[i], at);

		e.bytes = (uint64_t)(end - at);
		e.digest = digest_of(&hdr, at, e.bytes);
		memcpy(base + sizeof hdr + i * sizeof e, &e, sizeof e);
		at = end;
	}
	memcpy(base, &hdr, sizeof hdr);
	hdr.checksum = XXH3_64bits(base + CHECKED_FROM, bytes - CHECKED_FROM);
	memcpy(base, &hdr, sizeof hdr);
	r = kvp_calib_set_new(base, bytes, &set);
	if (r < 0)
		return r == -ENOMEM ? r : -EINVAL;
	kvp_calib_set_free(set);
	return 0;
}

int kvp_calib_frequencies(const uint32_t *count, uint16_t *ret_freq)
{
	uint32_t with[KVP_CALIB_SYMBOLS];
	uint64_t total = 0;

	memcpy(with, count, sizeof with);
	with[KVP_CALIB_ESCAPE] += !with[KVP_CALIB_ESCAPE];
	with[KVP_CALIB_ZERO] += !with[KVP_CALIB_ZERO];
	for (uint32_t s = 0; s < KVP_CALIB_SYMBOLS; s++)
		total += with[s];
	if (total > UINT64_C(1) << 31)
		return -EINVAL;
	kvp_rans_normalise(with, ret_freq);
	return 0;
}
