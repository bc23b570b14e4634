/* SPDX-License-Identifier: Apache-2.0 */
/* Calibrations that a space's floor needs: whether one is right, and which plane takes which entry. */
#include "payload/kvp_payload.h"

#include <string.h>

static int is_calibrated(uint32_t codec)
{
	return KVP_CODEC_FAMILY(codec) == KVP_FAMILY_KVQUANT;
}

int kvp_payload_calibrated(const struct kvp_space_canon *c)
{
	return is_calibrated(c->floor_k) || is_calibrated(c->floor_v);
}

uint64_t kvp_payload_positions(const struct kvp_space_canon *c)
{
	return kvp_payload_calibrated(c) ? KVP_ROPE_POSITIONS_MAX : UINT64_MAX;
}

static uint32_t form_of(uint32_t codec, uint32_t kind)
{
	if (kind == KVP_PLANE_V)
		return KVP_NUQ_V;
	return KVP_CODEC_VARIANT(codec) & KVP_KVQUANT_POST ? KVP_NUQ_K_POST : KVP_NUQ_K;
}

/* Numbers that a description has as bits. */
static int same_number(uint64_t bits, double number)
{
	double own;

	memcpy(&own, &bits, sizeof(own));
	return own == number;
}

static int same_rope(const struct kvp_space_canon *c, const struct kvp_rope_desc *r)
{
	if (c->rope_pairing != r->pairing || c->rope_pairing == KVP_ROPE_NONE)
		return c->rope_pairing == r->pairing;
	for (uint32_t i = 0; i < 4; i++)
		if (!same_number(c->rope_param_bits[i], r->params[i]))
			return 0;
	return c->rope_dim == r->dim && c->rope_scaling == r->scaling &&
	       same_number(c->rope_theta_bits, r->theta);
}

/* Of one plane that the floor has in such a codec. */
static const char *plane_wrong(
	const struct kvp_shm_layer *l, uint32_t codec, uint32_t kind, const struct kvp_nuq_set *set)
{
	const struct kvp_nuq_info *info = kvp_nuq_set_info(set);
	uint32_t dim = kind == KVP_PLANE_K ? l->k_dim : l->v_dim;

	if (!dim || l->exact)
		return NULL;
	if (l->first_head || l->kv_heads != info->heads || dim != info->dim)
		return "it is for other heads or dims";
	if (!kvp_nuq_set_find(set, l->index, form_of(codec, kind)))
		return "it has no entry for a layer";
	return NULL;
}

const char *kvp_payload_calib_wrong(const struct kvp_space_canon *c, const struct kvp_nuq_set *set)
{
	const struct kvp_nuq_info *info = kvp_nuq_set_info(set);
	const uint32_t floor[2] = { c->floor_k, c->floor_v };
	const char *wrong = NULL;

	if (c->n_layers > KVP_MAX_LAYERS)
		return "no model has so many layers";
	/* A calibration has room for the beginning of a long name. */
	if (strncmp(c->model, info->model, KVP_NUQ_NAME_MAX - 1) != 0)
		return "it is of another model";
	if (is_calibrated(c->floor_k) && form_of(c->floor_k, KVP_PLANE_K) == KVP_NUQ_K &&
		!same_rope(c, &info->rope))
		return "it is for another RoPE";
	for (uint32_t kind = 0; kind < 2; kind++)
		for (uint32_t i = 0; !wrong && is_calibrated(floor[kind]) && i < c->n_layers; i++)
			wrong = plane_wrong(&c->layers[i], floor[kind], kind, set);
	return wrong;
}

void kvp_payload_calib_give(
	const struct kvp_space_canon *c, const struct kvp_nuq_set *set, struct kvp_block_layout *l)
{
	for (uint32_t i = 0; i < l->n_layers; i++)
		for (uint32_t kind = 0; kind < 2; kind++) {
			struct kvp_block_plane *p = &l->plane[i][kind];

			if (p->heads && is_calibrated(p->codec))
				p->calib = kvp_nuq_set_find(
					set, c->layers[i].index, form_of(p->codec, kind));
		}
}
