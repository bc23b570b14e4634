/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include "kernels/numeric.h"
#include "tests/cudasim/checks.h"
#include "tests/cudasim/planes.h"

#define PAGES_MAX 3u

static int fail(struct device *d, const struct subject *s, const char *what, size_t at)
{
	char reason[256];

	snprintf(reason, sizeof(reason), "%.255s", d->error);
	snprintf(d->error, sizeof(d->error),
		"%s at byte %zu: codec 0x%x kind %u dtype %u heads %u tokens %u dim %u "
		"pattern %u exponent %d%s%s",
		what, at, s->codec, s->plane.kind, s->plane.dtype, s->plane.heads, s->plane.tokens,
		s->plane.dim, s->pattern, s->exponent, reason[0] ? ": " : "", reason);
	return -1;
}

/* A buffer on both sides; the host's copy is what the device's must become. */
struct twin {
	uint8_t *host;
	size_t bytes;
	uint64_t device;
};

static int twin_new(struct device *d, struct rng *r, size_t bytes, struct twin *ret)
{
	ret->bytes = bytes;
	ret->host = aligned_alloc(256, (bytes + 255) / 256 * 256);
	if (!ret->host)
		return -1;
	for (size_t i = 0; i < bytes; i++)
		ret->host[i] = (uint8_t)rng_u64(r);
	ret->device = d->alloc(d, ret->host, bytes, 1);
	return ret->device ? 0 : -1;
}

/* Offset of the first byte that differs, `bytes` if none does, SIZE_MAX if it cannot be read. */
static size_t twin_compare(struct device *d, const struct twin *t)
{
	uint8_t *got = malloc(t->bytes);
	size_t i = 0;

	if (!got || d->read(d, t->device, got, t->bytes) < 0) {
		free(got);
		return SIZE_MAX;
	}
	while (i < t->bytes && got[i] == t->host[i])
		i++;
	free(got);
	return i;
}

static uint64_t table_of(
	struct device *d, uint64_t base, size_t stride, const uint32_t *order, uint32_t n)
{
	uint64_t table[64];

	for (uint32_t i = 0; i < n; i++)
		table[i] = base + stride * order[i];
	return d->alloc(d, table, n * sizeof(table[0]), 0);
}

static void shuffle(struct rng *r, uint32_t *a, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		a[i] = i;
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = rng_below(r, i), t = a[i - 1];

		a[i - 1] = a[j];
		a[j] = t;
	}
}

int device_codec_init(struct device *d, uint32_t codec, const struct kvp_plane *p, uint64_t seed,
	struct kvp_cuda_codec *ret)
{
	const struct kvp_calib *calib = subject_calib(codec, p->dim);
	struct kvp_cuda_calib c = { .dim = p->dim };

	if (!calib)
		return kvp_cuda_codec_init(codec, p, seed, NULL, ret);
	c.digest = calib->digest;
	c.haar = d->alloc(d, calib->haar, (size_t)p->dim * p->dim * sizeof(float), 0);
	return kvp_cuda_codec_init(codec, p, seed, &c, ret);
}

/* What whole-page and scattered checks share. */
struct pages {
	struct subject s;
	struct kvp_cuda_rows p;
	struct twin page; /* all pages, each of `stride` bytes */
	size_t stride;
	size_t offset; /* of the plane in a page */
	uint32_t n;
	uint32_t order[PAGES_MAX];
};

static int pages_new(struct device *d, struct rng *r, struct pages *g)
{
	memset(g, 0, sizeof(*g));
	subject_draw(r, &g->s);
	if (device_codec_init(d, g->s.codec, &g->s.plane, g->s.seed, &g->p.codec) < 0)
		return fail(d, &g->s, "codec_init", 0);
	g->n = 1 + rng_below(r, PAGES_MAX);
	g->offset = 64 * (size_t)rng_below(r, 4);
	g->stride = (g->offset + g->p.codec.bytes + 64 + 63) / 64 * 64;
	shuffle(r, g->order, g->n);
	if (twin_new(d, r, g->n * g->stride, &g->page) < 0)
		return fail(d, &g->s, "allocation", 0);
	g->p.pages = table_of(d, g->page.device, g->stride, g->order, g->n);
	g->p.page_offset = g->offset;
	g->p.exponent = g->s.exponent;
	g->p.force_exponent = g->s.force;
	g->p.count = g->n;
	return 0;
}

static uint8_t *page_host(const struct pages *g, uint32_t i)
{
	return g->page.host + g->order[i] * g->stride + g->offset;
}

static int ref_encode(struct device *d, const struct subject *s, struct kvp_raw_const raw,
	uint8_t *out, size_t bytes)
{
	struct kvp_encode_opts o = {
		.size = sizeof(o),
		.seed = s->seed,
		.calib = subject_calib(s->codec, s->plane.dim),
		.exponent = s->exponent,
		.force_exponent = s->force,
	};

	return kvp_plane_encode(d->ref, s->codec, &s->plane, &o, raw, out, bytes);
}

static int launch_encode(struct device *d, const struct subject *s, const struct kvp_cuda_rows *p,
	const struct kvp_cuda_rows *begin)
{
	const struct kvp_cuda_kernel *k;

	if (s->codec != KVP_CODEC_NATIVE) {
		if (kvp_cuda_kernel_find("kvp_cu_plane_begin", &k) < 0 ||
			d->launch(d, k, begin) < 0)
			return -1;
	}
	if (kvp_cuda_encode_kernel(&p->codec, &k) < 0)
		return -1;
	return d->launch(d, k, p);
}

static int launch_decode(struct device *d, const struct kvp_cuda_rows *p)
{
	const struct kvp_cuda_kernel *k;

	return kvp_cuda_decode_kernel(&p->codec, &k) < 0 ? -1 : d->launch(d, k, p);
}

/* Raw rows of all pages, one page after another. */
static int raw_pages(struct device *d, struct rng *r, struct pages *g, struct twin *raw,
	struct placing *place, int is_input)
{
	placing_draw(r, &g->s.plane, place);
	if (twin_new(d, r, g->n * place->bytes, raw) < 0)
		return -1;
	if (is_input) {
		for (uint32_t i = 0; i < g->n; i++)
			plane_fill(r, &g->s, raw->host + i * place->bytes, place);
		raw->device = d->alloc(d, raw->host, raw->bytes, 0);
	}
	g->p.raw_head_stride = place->head_stride;
	g->p.raw_token_stride = place->token_stride;
	g->p.raw = raw->device + place->first;
	g->p.raw_page_stride = (int64_t)place->bytes;
	g->p.raws = 0;
	if (rng_below(r, 2)) {
		const uint32_t in_order[PAGES_MAX] = { 0, 1, 2 };

		g->p.raws = table_of(d, g->p.raw, place->bytes, in_order, g->n);
		g->p.raw = 0;
	}
	return raw->device ? 0 : -1;
}

static int decode_pages(struct device *d, struct rng *r, struct pages *g)
{
	struct placing place;
	struct twin out;
	size_t at;

	if (raw_pages(d, r, g, &out, &place, 0) < 0)
		return fail(d, &g->s, "allocation", 0);
	for (uint32_t i = 0; i < g->n; i++) {
		struct kvp_raw dst = { out.host + i * place.bytes + place.first, place.head_stride,
			place.token_stride };

		if (kvp_plane_decode(d->ref, g->s.codec, &g->s.plane,
			    subject_calib(g->s.codec, g->s.plane.dim), page_host(g, i),
			    g->p.codec.bytes, dst) < 0)
			return fail(d, &g->s, "reference decode", i);
	}
	if (launch_decode(d, &g->p) < 0)
		return fail(d, &g->s, "decode", 0);
	at = twin_compare(d, &out);
	free(out.host);
	return at == out.bytes ? 0 : fail(d, &g->s, "decode differs", at);
}

static int encode_pages(struct device *d, struct rng *r, struct pages *g)
{
	struct placing place;
	struct twin in;
	size_t at;

	if (raw_pages(d, r, g, &in, &place, 1) < 0)
		return fail(d, &g->s, "allocation", 0);
	for (uint32_t i = 0; i < g->n; i++) {
		struct kvp_raw_const src = { in.host + i * place.bytes + place.first,
			place.head_stride, place.token_stride };

		if (ref_encode(d, &g->s, src, page_host(g, i), g->p.codec.bytes) < 0)
			return fail(d, &g->s, "reference encode", i);
	}
	free(in.host);
	if (launch_encode(d, &g->s, &g->p, &g->p) < 0)
		return fail(d, &g->s, "encode", 0);
	at = twin_compare(d, &g->page);
	return at == g->page.bytes ? 0 : fail(d, &g->s, "encode differs", at % g->stride);
}

int check_pages(struct device *d, struct rng *r)
{
	struct pages g;
	int rc = pages_new(d, r, &g);

	if (rc == 0)
		rc = encode_pages(d, r, &g);
	if (rc == 0)
		rc = decode_pages(d, r, &g);
	free(g.page.host);
	d->reset(d);
	return rc;
}

int check_hostile(struct device *d, struct rng *r)
{
	struct pages g;
	int rc = pages_new(d, r, &g);
	uint64_t fresh;

	if (rc == 0)
		rc = encode_pages(d, r, &g);
	if (rc == 0) {
		uint32_t head = g.s.codec == KVP_CODEC_NATIVE ? 0 : KVP_PLANE_HDR_BYTES;

		for (uint32_t i = 0; i < g.n; i++)
			for (uint32_t b = head; b < g.p.codec.bytes; b++)
				page_host(&g, i)[b] = (uint8_t)rng_u64(r);
		fresh = d->alloc(d, g.page.host, g.page.bytes, 0);
		g.p.pages = table_of(d, fresh, g.stride, g.order, g.n);
		rc = decode_pages(d, r, &g);
	}
	free(g.page.host);
	d->reset(d);
	return rc;
}

/* ---- scattered tokens ---- */

struct scatter {
	int32_t slot[PAGES_MAX * 64 + 16];
	uint32_t count;
	struct placing rows; /* of `count` tokens */
};

/* All slots in random order, with skipped rows between. */
static void scatter_draw(struct rng *r, const struct pages *g, struct scatter *sc)
{
	uint32_t total = g->n * g->s.plane.tokens, order[PAGES_MAX * 64];
	struct kvp_plane rows = g->s.plane;

	shuffle(r, order, total);
	sc->count = 0;
	for (uint32_t i = 0; i < total; i++) {
		if (rng_below(r, 8) == 0 && sc->count < total + 16 - (total - i))
			sc->slot[sc->count++] = -1 - (int32_t)rng_below(r, 5);
		sc->slot[sc->count++] = (int32_t)order[i];
	}
	rows.tokens = sc->count;
	placing_draw(r, &rows, &sc->rows);
}

/* Copies the rows of page i between the scattered rows and a dense plane. */
static void gather(const struct pages *g, const struct scatter *sc, uint32_t page, uint8_t *rows,
	uint8_t *dense, int to_dense)
{
	size_t row = (size_t)g->s.plane.dim * dtype_bytes(g->s.plane.dtype);

	for (uint32_t i = 0; i < sc->count; i++) {
		uint32_t t = (uint32_t)sc->slot[i] % g->s.plane.tokens;

		if (sc->slot[i] < 0 || (uint32_t)sc->slot[i] / g->s.plane.tokens != page)
			continue;
		for (uint32_t h = 0; h < g->s.plane.heads; h++) {
			uint8_t *a = rows + sc->rows.first + (int64_t)i * sc->rows.token_stride +
				     (int64_t)h * sc->rows.head_stride;
			uint8_t *b = dense + ((size_t)h * g->s.plane.tokens + t) * row;

			memcpy(to_dense ? b : a, to_dense ? a : b, row);
		}
	}
}

static int store_slots(struct device *d, struct rng *r, struct pages *g, const struct scatter *sc)
{
	struct kvp_plane rows_plane = g->s.plane;
	struct subject rows_subject = g->s;
	size_t row = (size_t)g->s.plane.dim * dtype_bytes(g->s.plane.dtype), at;
	size_t dense_bytes = row * g->s.plane.heads * g->s.plane.tokens;
	uint8_t *rows = calloc(1, sc->rows.bytes), *dense = malloc(dense_bytes);
	struct kvp_cuda_rows begin;
	int rc = -1;

	if (!rows || !dense)
		goto out;
	rows_plane.tokens = sc->count;
	rows_subject.plane = rows_plane;
	plane_fill(r, &rows_subject, rows, &sc->rows);
	for (uint32_t i = 0; i < g->n; i++) {
		struct kvp_raw_const src = { dense, (ptrdiff_t)(row * g->s.plane.tokens),
			(ptrdiff_t)row };

		gather(g, sc, i, rows, dense, 1);
		if (ref_encode(d, &g->s, src, page_host(g, i), g->p.codec.bytes) < 0)
			goto out;
	}
	begin = g->p;
	g->p.raw = d->alloc(d, rows, sc->rows.bytes, 0) + sc->rows.first;
	g->p.slots = d->alloc(d, sc->slot, sc->count * sizeof(sc->slot[0]), 0);
	g->p.count = sc->count;
	if (launch_encode(d, &g->s, &g->p, &begin) < 0)
		goto out;
	at = twin_compare(d, &g->page);
	rc = at == g->page.bytes ? 0 : fail(d, &g->s, "store differs", at % g->stride);
	free(rows);
	free(dense);
	return rc;
out:
	free(rows);
	free(dense);
	return fail(d, &g->s, "store", 0);
}

static int load_slots(struct device *d, struct rng *r, struct pages *g, const struct scatter *sc)
{
	size_t row = (size_t)g->s.plane.dim * dtype_bytes(g->s.plane.dtype), at;
	uint8_t *dense = malloc(row * g->s.plane.heads * g->s.plane.tokens);
	struct twin rows;

	if (!dense || twin_new(d, r, sc->rows.bytes, &rows) < 0) {
		free(dense);
		return fail(d, &g->s, "allocation", 0);
	}
	for (uint32_t i = 0; i < g->n; i++) {
		struct kvp_raw dst = { dense, (ptrdiff_t)(row * g->s.plane.tokens),
			(ptrdiff_t)row };

		if (kvp_plane_decode(d->ref, g->s.codec, &g->s.plane,
			    subject_calib(g->s.codec, g->s.plane.dim), page_host(g, i),
			    g->p.codec.bytes, dst) < 0)
			return fail(d, &g->s, "reference decode", i);
		gather(g, sc, i, rows.host, dense, 0);
	}
	free(dense);
	g->p.raw = rows.device + sc->rows.first;
	if (launch_decode(d, &g->p) < 0)
		return fail(d, &g->s, "load", 0);
	at = twin_compare(d, &rows);
	free(rows.host);
	return at == rows.bytes ? 0 : fail(d, &g->s, "load differs", at);
}

int check_slots(struct device *d, struct rng *r)
{
	struct scatter sc;
	struct pages g;
	int rc;

	/* per-channel keys need a whole group at once; long pages would only repeat */
	do {
		d->reset(d);
		rc = pages_new(d, r, &g);
		if (rc < 0)
			return rc;
		if (KVP_CODEC_FAMILY(g.s.codec) == KVP_FAMILY_KIVI && g.s.plane.kind == KVP_PLANE_K)
			rc = 1;
		if (g.s.plane.tokens > 64)
			rc = 1;
		if (rc)
			free(g.page.host);
	} while (rc);
	g.s.force = 1;
	g.p.force_exponent = 1;
	scatter_draw(r, &g, &sc);
	g.p.raw_token_stride = sc.rows.token_stride;
	g.p.raw_head_stride = sc.rows.head_stride;
	rc = store_slots(d, r, &g, &sc);
	if (rc == 0)
		rc = load_slots(d, r, &g, &sc);
	free(g.page.host);
	d->reset(d);
	return rc;
}

/* ---- copies ---- */

/* Runs of odd lengths, shuffled, out of one piece of memory into another. */
int check_runs(struct device *d, struct rng *r)
{
	const uint32_t count = 1 + rng_below(r, KVP_CUDA_RUNS);
	struct kvp_cuda_runs p = { .count = count };
	uint32_t from[KVP_CUDA_RUNS], to[KVP_CUDA_RUNS], order[KVP_CUDA_RUNS];
	const struct kvp_cuda_kernel *k;
	size_t src_bytes = 0, dst_bytes = 0, at;
	struct twin src, dst;

	for (uint32_t i = 0; i < count; i++) {
		p.bytes[i] = 16 * (1 + rng_below(r, rng_below(r, 16) ? 9 : 3000));
		p.most = p.bytes[i] > p.most ? p.bytes[i] : p.most;
		from[i] = (uint32_t)src_bytes;
		src_bytes += p.bytes[i] + 16 * rng_below(r, 3);
	}
	shuffle(r, order, count);
	for (uint32_t i = 0; i < count; i++) {
		to[order[i]] = (uint32_t)dst_bytes;
		dst_bytes += p.bytes[order[i]] + 16 * rng_below(r, 3);
	}
	if (twin_new(d, r, src_bytes, &src) < 0 || twin_new(d, r, dst_bytes, &dst) < 0)
		return -1;
	for (uint32_t i = 0; i < count; i++) {
		p.from[i] = src.device + from[i];
		p.to[i] = dst.device + to[i];
		memcpy(dst.host + to[i], src.host + from[i], p.bytes[i]);
	}
	if (kvp_cuda_kernel_find("kvp_cu_runs", &k) < 0 || d->launch(d, k, &p) < 0)
		return -1;
	at = twin_compare(d, &dst);
	free(src.host);
	free(dst.host);
	d->reset(d);
	if (at == dst.bytes)
		return 0;
	snprintf(d->error, sizeof(d->error), "runs differ at byte %zu: %u of them", at, count);
	return -1;
}

int check_copy(struct device *d, struct rng *r)
{
	struct kvp_cuda_copy p = { .run_bytes = 16 * (1 + rng_below(r, 9)) };
	const struct kvp_cuda_kernel *k;
	const uint32_t one = 0;
	int64_t src_bytes = p.run_bytes, dst_bytes = p.run_bytes;
	struct twin src, dst;
	uint32_t order[3];
	size_t at;

	p.count = 1;
	shuffle(r, order, 3);
	for (int i = 2; i >= 0; i--) {
		p.n[i] = 1 + rng_below(r, 6);
		p.src_stride[i] = src_bytes + 16 * rng_below(r, 3);
		src_bytes = p.src_stride[i] * p.n[i];
	}
	for (int i = 0; i < 3; i++) {
		p.dst_stride[order[i]] = dst_bytes + 16 * rng_below(r, 3);
		dst_bytes = p.dst_stride[order[i]] * p.n[order[i]];
	}
	p.src_offset = 16 * rng_below(r, 3);
	p.dst_offset = 16 * rng_below(r, 3);
	if (twin_new(d, r, (size_t)(src_bytes + p.src_offset), &src) < 0 ||
		twin_new(d, r, (size_t)(dst_bytes + p.dst_offset) + 64, &dst) < 0)
		return -1;
	p.src = table_of(d, src.device, 0, &one, 1);
	p.dst = table_of(d, dst.device, 0, &one, 1);
	for (uint32_t a = 0; a < p.n[0]; a++)
		for (uint32_t b = 0; b < p.n[1]; b++)
			for (uint32_t c = 0; c < p.n[2]; c++)
				memcpy(dst.host + p.dst_offset + a * p.dst_stride[0] +
						b * p.dst_stride[1] + c * p.dst_stride[2],
					src.host + p.src_offset + a * p.src_stride[0] +
						b * p.src_stride[1] + c * p.src_stride[2],
					p.run_bytes);
	if (kvp_cuda_kernel_find("kvp_cu_copy", &k) < 0 || d->launch(d, k, &p) < 0)
		return -1;
	at = twin_compare(d, &dst);
	free(src.host);
	free(dst.host);
	d->reset(d);
	if (at == dst.bytes)
		return 0;
	snprintf(d->error, sizeof(d->error), "copy differs at byte %zu: %u x %u x %u runs of %u",
		at, p.n[0], p.n[1], p.n[2], p.run_bytes);
	return -1;
}
