/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE: frequencies from what a space declares, and planes turned and turned back. */
#include "kernels/rope.h"
#include "kernels/codec_impl.h"

#include <errno.h>
#include <math.h>

#define TWO_PI 0x1.921fb54442d18p+2

/* ---- frequencies ---- */

/* Natural logarithm of x > 0, of exactly rounded operations. */
static double log_of(double x)
{
	return x < 1.0 ? kvp_log_portable(x) : -kvp_log_portable(1.0 / x);
}

/* e^-x for 0 <= x < 700: x = k ln 2 + r, and a series in r. */
static double exp_minus(double x)
{
	const double k = rint(x * 0x1.71547652b82fep+0);
	const double r = (k * 0x1.62e42fefp-1 - x) + k * 0x1.473de6af278edp-34;
	double sum = 1.0;

	for (int i = 17; i > 0; i--)
		sum = 1.0 + r * sum / i;
	return ldexp(sum, -(int)k);
}

/* theta^(-2 i / dim) */
static void plain(double theta, uint32_t dim, double *freq)
{
	const double l = log_of(theta);

	for (uint32_t i = 0; i < dim / 2; i++)
		freq[i] = exp_minus(2.0 * i / dim * l);
}

static void llama3(const double *params, uint32_t n, double *freq)
{
	const double factor = params[0], low = params[1], high = params[2], context = params[3];

	for (uint32_t i = 0; i < n; i++) {
		const double turns = context * freq[i] / TWO_PI;
		const double smooth = (turns - low) / (high - low);

		if (turns < low)
			freq[i] /= factor;
		else if (turns <= high)
			freq[i] = (1.0 - smooth) * (freq[i] / factor) + smooth * freq[i];
	}
}

/* At which pair, not rounded, the context holds so many turns. */
static double pair_of_turns(double turns, double context, double theta, uint32_t dim)
{
	return dim * log_of(context / (turns * TWO_PI)) / (2.0 * log_of(theta));
}

static void yarn(const double *params, double theta, uint32_t dim, double *freq)
{
	const double factor = params[0], context = params[3];
	const double slow = params[1] > 0.0 ? params[1] : 1.0;
	const double fast = params[2] > 0.0 ? params[2] : 32.0;
	double from = floor(pair_of_turns(fast, context, theta, dim));
	double to = ceil(pair_of_turns(slow, context, theta, dim));

	from = from > 0.0 ? from : 0.0;
	to = to < dim - 1.0 ? to : dim - 1.0;
	if (from >= to)
		to = from + 0.001;
	for (uint32_t i = 0; i < dim / 2; i++) {
		double ramp = (i - from) / (to - from);

		ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
		freq[i] = freq[i] / factor * ramp + freq[i] * (1.0 - ramp);
	}
}

static int within(double x, double least, double most)
{
	return x >= least && x <= most; /* a NaN is not */
}

static int valid_scaling(const struct kvp_rope_desc *d)
{
	const double *params = d->params;
	const double slow = params[1] != 0.0 ? params[1] : 1.0;
	const double fast = params[2] != 0.0 ? params[2] : 32.0;

	if (d->scaling == KVP_ROPE_SCALING_NONE)
		return 1;
	if (d->scaling > KVP_ROPE_SCALING_LLAMA3 || !within(params[0], 1.0, 0x1p20))
		return 0;
	if (d->scaling == KVP_ROPE_SCALING_NTK)
		return d->dim > 2;
	if (d->scaling == KVP_ROPE_SCALING_LINEAR)
		return 1;
	if (!within(params[3], 1.0, 0x1p31))
		return 0;
	if (d->scaling == KVP_ROPE_SCALING_YARN)
		return within(slow, 0x1p-20, 0x1p20) && within(fast, 0x1p-20, 0x1p20) &&
		       fast > slow;
	return within(params[1], 0x1p-20, 0x1p20) && within(params[2], 0x1p-20, 0x1p20) &&
	       params[2] > params[1];
}

int kvp_rope_init(const struct kvp_rope_desc *desc, struct kvp_rope *ret_rope)
{
	const double *params = desc->params;
	double theta = desc->theta;

	if (desc->pairing == KVP_ROPE_NONE) {
		*ret_rope = (struct kvp_rope){ .gain = 1.0 };
		return 0;
	}
	if (desc->pairing > KVP_ROPE_INTERLEAVED || desc->dim < 2 || desc->dim % 2 ||
		desc->dim > KVP_PLANE_DIM_MAX || !within(theta, 0x1.0000000000001p0, 0x1p40) ||
		!valid_scaling(desc))
		return -EINVAL;
	*ret_rope = (struct kvp_rope){ .pairing = desc->pairing, .dim = desc->dim, .gain = 1.0 };
	if (desc->scaling == KVP_ROPE_SCALING_NTK) /* factor^(dim / (dim - 2)) */
		theta /= exp_minus(desc->dim / (desc->dim - 2.0) * log_of(params[0]));
	plain(theta, desc->dim, ret_rope->freq);
	switch (desc->scaling) {
	case KVP_ROPE_SCALING_LINEAR:
		for (uint32_t i = 0; i < desc->dim / 2; i++)
			ret_rope->freq[i] /= params[0];
		break;
	case KVP_ROPE_SCALING_LLAMA3:
		llama3(params, desc->dim / 2, ret_rope->freq);
		break;
	case KVP_ROPE_SCALING_YARN:
		yarn(params, theta, desc->dim, ret_rope->freq);
		ret_rope->gain = 0.1 * log_of(params[0]) + 1.0;
		break;
	default:
		break;
	}
	return 0;
}

/* ---- planes ---- */

void kvp_rope_turn_c(
	const struct kvp_rope *rope, uint32_t position, uint32_t undo, struct rope_turn *ret_turn)
{
	rope_turn_make(rope, position, undo, ret_turn);
}

void kvp_rope_row_c(const struct rope_turn *turn, uint32_t dim, const uint8_t *in,
	uint32_t in_dtype, uint8_t *out, uint32_t out_dtype)
{
	float x[KVP_PLANE_DIM_MAX], y[KVP_PLANE_DIM_MAX];

	rope_load_from(in, in_dtype, 0, dim, x);
	rope_turn_row(turn, x, y);
	rope_store_from(out, out_dtype, 0, turn->dim, y);
	rope_store_from(out, out_dtype, turn->dim, dim, x);
}

/* src and dst are one plane, or have nothing in common. */
static int check_overlap(const struct kvp_plane *p, struct kvp_raw_const src, uint32_t dst_dtype,
	const struct kvp_plane *to, struct kvp_raw dst)
{
	const struct kvp_raw_const out = { dst.data, dst.head_stride, dst.token_stride };
	uintptr_t lo[2], hi[2];

	if (kvp_raw_span(p, src, &lo[0], &hi[0]) < 0 || kvp_raw_span(to, out, &lo[1], &hi[1]) < 0 ||
		!kvp_rows_disjoint(to, out))
		return -EINVAL;
	if (src.data == dst.data && p->dtype == dst_dtype && src.head_stride == dst.head_stride &&
		src.token_stride == dst.token_stride)
		return 0;
	return lo[0] < hi[1] && lo[1] < hi[0] ? -EINVAL : 0;
}

static int turn_plane(const struct kvp_kernels *k, const struct kvp_rope *rope, uint32_t undo,
	const struct kvp_plane *p, uint32_t first, struct kvp_raw_const src, uint32_t dst_dtype,
	struct kvp_raw dst)
{
	struct kvp_plane to = *p;
	struct kvp_layout lay;
	struct rope_turn turn;

	to.dtype = dst_dtype;
	if (kvp_plane_layout(KVP_CODEC_NATIVE, p, &lay) < 0 ||
		kvp_plane_layout(KVP_CODEC_NATIVE, &to, &lay) < 0 || p->dtype == KVP_DTYPE_F8 ||
		dst_dtype == KVP_DTYPE_F8 || p->kind != KVP_PLANE_K || rope->dim > p->dim ||
		first >= KVP_ROPE_POSITIONS_MAX || p->tokens > KVP_ROPE_POSITIONS_MAX - first)
		return -EINVAL;
	if (check_overlap(p, src, dst_dtype, &to, dst) < 0)
		return -EINVAL;
	for (uint32_t t = 0; t < p->tokens; t++) {
		k->dsp.rope_turn(rope, first + t, undo, &turn);
		for (uint32_t h = 0; h < p->heads; h++)
			k->dsp.rope_row(&turn, p->dim, kvp_rows_in(p, src, h, t, 1, 0).data,
				p->dtype, kvp_rows_out(&to, dst, h, t, 1, 0).data, dst_dtype);
	}
	return 0;
}

int kvp_rope_apply(const struct kvp_kernels *k, const struct kvp_rope *rope,
	const struct kvp_plane *p, uint32_t first, struct kvp_raw_const src, uint32_t dst_dtype,
	struct kvp_raw dst)
{
	return turn_plane(k, rope, 0, p, first, src, dst_dtype, dst);
}

int kvp_rope_undo(const struct kvp_kernels *k, const struct kvp_rope *rope,
	const struct kvp_plane *p, uint32_t first, struct kvp_raw_const src, uint32_t dst_dtype,
	struct kvp_raw dst)
{
	return turn_plane(k, rope, 1, p, first, src, dst_dtype, dst);
}
