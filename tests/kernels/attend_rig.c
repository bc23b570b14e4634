/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/attend_rig.h"
#include "tests/kernels/guard.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

void *rig_alloc(size_t size)
{
	void *p = aligned_alloc(64, (size + 63) & ~(size_t)63);

	assert_non_null(p);
	return p;
}

void rig_add_plane(
	struct rig *g, uint32_t i, const char *name, uint32_t kind, uint32_t tokens, uint32_t dtype)
{
	struct kvp_plane p = { tokens, g->a.kv_heads, kind ? g->a.v_dim : g->a.k_dim, dtype, kind };
	struct kvp_attend_plane *ap = kind ? &g->part[i].v : &g->part[i].k;
	struct kvp_plane wide = p;
	size_t esize = dtype == KVP_DTYPE_F32 ? 4 : 2, n = (size_t)tokens * p.heads * p.dim, bytes;
	ptrdiff_t row = (ptrdiff_t)(p.dim * esize);
	uint8_t *raw = rig_alloc(n * esize), *payload;
	float *decoded = rig_alloc(n * 4);
	const float *own = kind ? g->own_v : g->own_k;
	uint32_t codec;

	assert_int_equal(kvp_codec_parse(name, &codec), 0);
	assert_int_equal(kvp_plane_bytes(codec, &p, &bytes), 0);
	payload = rig_alloc(bytes);
	inputs_fill(raw, n, dtype, INPUT_NORMAL);
	for (size_t j = 0; dtype == KVP_DTYPE_F32 && j < n; j++)
		((float *)(void *)raw)[j] = own ? own[j] : ((float *)(void *)raw)[j] * g->loud;
	assert_int_equal(kvp_plane_encode(g->encoder, codec, &p, NULL,
				 (struct kvp_raw_const){ raw, row * tokens, row }, payload, bytes),
		0);
	if (dtype == KVP_DTYPE_F32) {
		assert_int_equal(kvp_plane_decode(g->encoder, codec, &wide, NULL, payload, bytes,
					 (struct kvp_raw){ decoded, row * tokens, row }),
			0);
	} else { /* fp16 or bf16: exact in fp32 */
		assert_int_equal(kvp_plane_decode(g->encoder, codec, &p, NULL, payload, bytes,
					 (struct kvp_raw){ raw, row * tokens, row }),
			0);
		for (size_t j = 0; j < n; j++) {
			uint16_t h;
			uint32_t u;

			memcpy(&h, raw + 2 * j, 2);
			if (dtype == KVP_DTYPE_BF16) {
				u = (uint32_t)h << 16;
				memcpy(&decoded[j], &u, 4);
			} else {
				decoded[j] =
					ldexpf((float)(h & 1023) + (h & 0x7c00 ? 1024.0f : 0.0f),
						(h >> 10 & 31) ? (h >> 10 & 31) - 25 : -24) *
					(h & 0x8000 ? -1.0f : 1.0f);
			}
		}
	}
	free(raw);
	*ap = (struct kvp_attend_plane){ .codec = codec,
		.dtype = dtype,
		.data = payload,
		.bytes = bytes,
		.head_stride = row * tokens,
		.token_stride = row };
	g->data[2 * i + kind] = payload;
	if (kind)
		g->v[i] = decoded;
	else
		g->k[i] = decoded;
}

void rig_add_of(struct rig *g, const char *kc, const char *vc, uint32_t tokens, uint32_t dtype)
{
	uint32_t i = g->a.n_parts++;

	g->part[i] = (struct kvp_attend_part){ .tokens = tokens };
	rig_add_plane(g, i, kc, KVP_PLANE_K, tokens, dtype);
	rig_add_plane(g, i, vc, KVP_PLANE_V, tokens, dtype);
	g->total += tokens;
}

void rig_add(struct rig *g, const char *kc, const char *vc, uint32_t tokens)
{
	rig_add_of(g, kc, vc, tokens, KVP_DTYPE_F32);
}

struct rig *rig_new(const struct kvp_kernels *k, uint32_t queries, uint32_t q_heads,
	uint32_t kv_heads, uint32_t dim)
{
	struct rig *g = calloc(1, sizeof *g);

	assert_non_null(g);
	g->encoder = k;
	g->n = (size_t)queries * q_heads * dim;
	g->loud = 1.0f;
	g->a = (struct kvp_attention){ .size = sizeof g->a,
		.queries = queries,
		.q_heads = q_heads,
		.kv_heads = kv_heads,
		.k_dim = dim,
		.v_dim = dim,
		.scale = 1.0f / sqrtf((float)dim),
		.parts = g->part,
		.n_splits = 1 };
	g->q = rig_alloc(g->n * 4);
	g->out = rig_alloc(g->n * 4);
	g->ref = rig_alloc(g->n * 4);
	g->lse = rig_alloc(g->n * 4);
	g->ref_lse = rig_alloc(g->n * 4);
	inputs_fill(g->q, g->n, KVP_DTYPE_F32, INPUT_NORMAL);
	g->a.q = g->q;
	return g;
}

void rig_free(struct rig *g)
{
	for (uint32_t i = 0; i < g->a.n_parts; i++) {
		free(g->k[i]);
		free(g->v[i]);
		free(g->data[2 * i]);
		free(g->data[2 * i + 1]);
	}
	free(g->q);
	free(g->out);
	free(g->lse);
	free(g->ref);
	free(g->ref_lse);
	free(g->mask);
	free(g);
}

static int seen(const struct rig *g, uint32_t query, uint64_t token)
{
	uint64_t pos = g->a.position + query;

	if (g->a.causal && token > pos)
		return 0;
	return !g->a.window || token + g->a.window > pos;
}

static void reference_row(struct rig *g, uint32_t query, uint32_t head)
{
	uint32_t kv = head / (g->a.q_heads / g->a.kv_heads), d = g->a.k_dim, dv = g->a.v_dim;
	size_t row = (size_t)query * g->a.q_heads + head;
	const float *q = g->q + row * d;
	double *s = calloc(g->total + 1, sizeof *s), *o = calloc(dv, sizeof *o);
	double max = -INFINITY, sum = 0.0;
	uint32_t at = 0;

	for (uint32_t i = 0; i < g->a.n_parts; i++) {
		for (uint32_t t = 0; t < g->part[i].tokens; t++, at++) {
			const float *x = g->k[i] + ((size_t)kv * g->part[i].tokens + t) * d;

			for (uint32_t c = 0; c < d; c++)
				s[at] += (double)q[c] * (double)x[c];
			s[at] = s[at] * (double)g->a.scale +
				(g->mask ? (double)g->mask[query * g->a.mask_stride + at] : 0.0);
			if (!seen(g, query, at))
				s[at] = -INFINITY;
			max = fmax(max, s[at]);
		}
	}
	at = 0;
	for (uint32_t i = 0; i < g->a.n_parts; i++) {
		for (uint32_t t = 0; t < g->part[i].tokens; t++, at++) {
			const float *x = g->v[i] + ((size_t)kv * g->part[i].tokens + t) * dv;
			double w = s[at] == -INFINITY ? 0.0 : exp(s[at] - max);

			sum += w;
			for (uint32_t c = 0; c < dv; c++)
				o[c] += w * (double)x[c];
		}
	}
	for (uint32_t c = 0; c < dv; c++)
		g->ref[row * dv + c] = sum > 0.0 ? (float)(o[c] / sum) : 0.0f;
	g->ref_lse[row] = sum > 0.0 ? (float)(max + log(sum)) : -INFINITY;
	free(s);
	free(o);
}

void rig_reference(struct rig *g)
{
	for (uint32_t i = 0; i < g->a.queries; i++)
		for (uint32_t h = 0; h < g->a.q_heads; h++)
			reference_row(g, i, h);
}

void rig_run(struct rig *g, const struct kvp_kernels *k, struct kvp_attend_result *res)
{
	size_t bytes;

	assert_int_equal(kvp_attend_workspace(&g->a, &bytes), 0);
	g->a.workspace = rig_alloc(bytes);
	g->a.workspace_size = bytes;
	memset(g->a.workspace, 0xff, bytes);
	res->out = g->out;
	res->lse = g->lse;
	memset(g->out, 0xff, g->n * 4);
	assert_int_equal(kvp_attend(k, &g->a, res), 0);
	free(g->a.workspace);
	g->a.workspace = NULL;
}

void rig_compare_row(const struct rig *g, size_t row, const struct tolerance *most, const char *set,
	const char *what)
{
	uint32_t d = g->a.v_dim;
	double apart = 0.0, length = 0.0;

	for (uint32_t c = 0; c < d; c++) {
		double x = (double)g->ref[row * d + c], y = (double)g->out[row * d + c];

		if (!(fabs(x - y) <= most->element))
			fail_msg("%s %s: %g instead of %g", what, set, y, x);
		apart += (x - y) * (x - y);
		length += x * x;
	}
	if (!(sqrt(apart) <= most->length * sqrt(length)))
		fail_msg("%s %s: %g of the length apart", what, set, sqrt(apart / length));
	if (g->ref_lse[row] == -INFINITY)
		assert_true(g->lse[row] == -INFINITY);
	else if (!(fabs((double)(g->lse[row] - g->ref_lse[row])) <= most->lse))
		fail_msg("%s %s: log-sum-exp %g instead of %g", what, set, (double)g->lse[row],
			(double)g->ref_lse[row]);
}

/* A part in memory that ends with it; native rows lie anywhere. */
static void part_in_guards(struct rig *g, uint32_t i, struct guard *ret)
{
	struct kvp_attend_plane *plane[] = { &g->part[i].k, &g->part[i].v };

	for (size_t j = 0; j < 2; j++) {
		ret[j] = guard_new(plane[j]->bytes, plane[j]->codec == KVP_CODEC_NATIVE ? 2 : 16);
		memcpy(ret[j].data, plane[j]->data, plane[j]->bytes);
		plane[j]->data = ret[j].data;
	}
}

void rig_compare(struct rig *g, const struct kvp_kernels *k, const struct tolerance *most,
	const char *set, const char *what)
{
	struct guard part[2 * PARTS_MAX], out = guard_new(g->n * sizeof *g->out, 4);
	const size_t masses = (size_t)g->a.kv_heads * g->total;
	float *mass = rig_alloc(masses * sizeof *mass), *own = g->out;
	struct kvp_attend_result res = { .mass = mass, .mass_stride = g->total };
	const void *was[2 * PARTS_MAX];
	double sum = 0.0;

	for (uint32_t i = 0; i < g->a.n_parts; i++) {
		was[2 * i] = g->part[i].k.data;
		was[2 * i + 1] = g->part[i].v.data;
		part_in_guards(g, i, part + 2 * i);
	}
	g->out = (float *)(void *)out.data;
	rig_reference(g);
	rig_run(g, k, &res);
	assert_true(guard_intact(&out));
	for (size_t row = 0; row < g->n / g->a.v_dim; row++)
		rig_compare_row(g, row, most, set, what);
	for (size_t i = 0; i < masses; i++)
		sum += (double)mass[i];
	assert_true(fabs(sum / (g->a.queries * g->a.q_heads) - 1.0) < 1e-2);
	for (uint32_t i = 0; i < g->a.n_parts; i++) {
		g->part[i].k.data = was[2 * i];
		g->part[i].v.data = was[2 * i + 1];
		guard_free(&part[2 * i]);
		guard_free(&part[2 * i + 1]);
	}
	memcpy(own, g->out, g->n * sizeof *own);
	guard_free(&out);
	free(mass);
	g->out = own;
}

void rig_mask(struct rig *g)
{
	g->a.mask_stride = g->total;
	g->mask = rig_alloc(g->a.queries * (size_t)g->total * sizeof *g->mask);
	for (uint32_t t = 0; t < g->a.queries * g->total; t++)
		g->mask[t] = inputs_random() % 3 ? 0.25f * (float)(t % 5) : -INFINITY;
	g->a.mask = g->mask;
}
