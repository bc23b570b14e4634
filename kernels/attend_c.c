/* SPDX-License-Identifier: Apache-2.0 */
/* Reference C of attention over rows: decodes one row at a time into the codes' domain. */
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <math.h>

static void row_affine(const struct kvp_rows *r, uint32_t t, float *x)
{
	uint8_t code[KVP_PLANE_DIM_MAX];
	const uint8_t *scale = r->scale, *min = r->minimum;
	size_t at = r->per_channel ? (size_t)(t / r->group) * r->dim : (size_t)t * r->groups;

	kvp_row_unpack(r->bits, r->dim, r->codes + (ptrdiff_t)t * r->stride, code);
	for (uint32_t i = 0; i < r->dim; i++) {
		size_t j = 2 * (at + (r->per_channel ? i : i / r->group));

		x[i] = ((float)code[i] * load_scalar(scale + j, 1.0f) +
			       load_scalar(min + j, 1.0f)) *
		       r->factor;
	}
}

/* Row t as floats, in the domain of the codes. */
static void row_load(const struct kvp_rows *r, uint32_t t, float *x)
{
	const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;
	uint8_t code[KVP_PLANE_DIM_MAX];
	float s;

	switch (r->form) {
	case KVP_FORM_NATIVE:
		for (uint32_t i = 0; i < r->dim; i++)
			x[i] = load_element(row, r->format, i);
		break;
	case KVP_FORM_FP8:
	case KVP_FORM_INT8:
		s = load_scalar(r->scale + 2 * (size_t)t, r->factor);
		for (uint32_t i = 0; i < r->dim; i++)
			x[i] = s * (r->format == KVP_CODEC_FP8_E4M3 ? e4m3_to_f32(row[i])
					   : r->format == KVP_CODEC_FP8_E5M2
						   ? e5m2_to_f32(row[i])
						   : (float)(int8_t)row[i]);
		break;
	case KVP_FORM_BOOK:
		s = r->format ? load_scalar_wide(r->scale + 4 * (size_t)t, r->factor)
			      : load_scalar(r->scale + 2 * (size_t)t, r->factor);
		kvp_row_unpack(r->bits, r->dim, row, code);
		for (uint32_t i = 0; i < r->dim; i++)
			x[i] = s * r->cent[code[i]];
		break;
	default:
		row_affine(r, t, x);
		break;
	}
}

void kvp_score_c(const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < r->n; t++) {
		row_load(r, t, x);
		for (uint32_t i = 0; i < q->n; i++) {
			const float *qi = q->f + (size_t)i * r->dim;
			float sum = 0.0f;

			for (uint32_t c = 0; c < r->dim; c++)
				sum += qi[c] * x[c];
			s[i * s_stride + t] = sum;
		}
	}
}

void kvp_accumulate_c(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t i = 0; i < w->nq; i++)
		for (uint32_t c = 0; c < r->dim; c++)
			acc[(size_t)i * r->dim + c] *= w->fade[i];
	for (uint32_t t = 0; t < r->n; t++) {
		row_load(r, t, x);
		for (uint32_t i = 0; i < w->nq; i++) {
			float wt = w->w[i * w->stride + t];

			for (uint32_t c = 0; c < r->dim; c++)
				acc[(size_t)i * r->dim + c] += wt * x[c];
		}
	}
}

/* e^x for x <= 0, 0 for -infinity; relative error below 2e-7. */
static float exp_nonpositive(float x)
{
	float n, f, p;

	if (!(x > -87.0f))
		return x != x ? x : 0.0f;
	n = (float)rne(x * 0x1.715476p0f);
	f = x - n * 0x1.62e4p-1f;
	f -= n * 0x1.7f7d1cp-20f;
	p = 0x1.6c16c2p-10f;
	p = p * f + 0x1.111112p-7f;
	p = p * f + 0x1.555556p-5f;
	p = p * f + 0x1.555556p-3f;
	p = p * f + 0.5f;
	p = p * f + 1.0f;
	p = p * f + 1.0f;
	return p * pow2f((int)n);
}

float kvp_softmax_c(const struct softmax *job, float *s, struct running *run)
{
	float max = run->max, shift, sum = 0.0f, fade;

	for (uint32_t t = 0; t < job->n; t++) {
		int seen = t >= job->lo && t < job->hi;

		s[t] = seen ? s[t] * job->scale + (job->mask ? job->mask[t] : 0.0f) : -INFINITY;
		/* A masked token stays masked whatever its key holds. */
		if (seen && job->mask && job->mask[t] == -INFINITY)
			s[t] = -INFINITY;
		max = s[t] > max || s[t] != s[t] ? s[t] : max;
	}
	shift = max == -INFINITY ? 0.0f : max;
	for (uint32_t t = 0; t < job->n; t++) {
		s[t] = exp_nonpositive(s[t] - shift);
		sum += s[t];
	}
	fade = exp_nonpositive(run->max - shift);
	run->sum = run->sum * fade + sum;
	run->max = max;
	return fade;
}

void kvp_attend_init_c(struct kvp_kernels *k)
{
	for (uint32_t f = 0; f < KVP_FORMS; f++) {
		k->attend[f].score = kvp_score_c;
		k->attend[f].accumulate = kvp_accumulate_c;
	}
	k->dsp.softmax = kvp_softmax_c;
}
