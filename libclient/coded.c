/* SPDX-License-Identifier: Apache-2.0 */
/* Reading coded payloads. */
#include "libclient/coded.h"

#include <errno.h>
#include <stdlib.h>

#define SCRATCH_ALIGN 64u

int coded_new(const struct kvp_space_canon *canon, struct space_codecs **ret_codecs)
{
	struct space_codecs *c;
	int r = 0;

	*ret_codecs = NULL;
	if (!kvp_payload_lowest(canon))
		return 0;
	c = malloc(sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->kernels = NULL;
	c->lowest = kvp_payload_lowest(canon);
	for (uint32_t w = 0; r == 0 && w <= c->lowest; w++) {
		r = kvp_payload_layout(canon, w, &c->width[w]);
		if (r == 0)
			r = kvp_payload_codecs(canon, w, &c->codec[w][0], &c->codec[w][1]);
	}
	if (r == 0)
		r = kvp_kernels_new(KVP_CPU_ALL, &c->kernels);
	if (r < 0) {
		coded_free(c);
		return r;
	}
	c->scratch = kvp_payload_scratch(&c->width[0]);
	*ret_codecs = c;
	return 0;
}

struct space_codecs *coded_free(struct space_codecs *c)
{
	if (c)
		kvp_kernels_free(c->kernels);
	free(c);
	return NULL;
}

static int take_scratch(const struct space_codecs *c, void **scratch)
{
	if (!*scratch)
		*scratch = aligned_alloc(SCRATCH_ALIGN,
			(c->scratch + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN);
	return *scratch ? 0 : -ENOMEM;
}

int coded_to_view(const struct space_codecs *c, const struct geometry *geo, uint32_t width,
	const void *payload, uint64_t bytes, uint32_t at, uint32_t n, const struct kvp_view *view,
	uint64_t user, void **scratch)
{
	const struct kvp_block_layout *l = coded_layout(c, width);
	int r;

	if (!l)
		return -EOPNOTSUPP;
	r = take_scratch(c, scratch);
	for (uint32_t i = 0; r == 0 && i < view->n_layers; i++) {
		struct kvp_payload_layer layer;

		if (!view->planes[i].k && !view->planes[i].v)
			continue;
		r = kvp_payload_decode(
			c->kernels, l, view_layer(view, i), payload, bytes, *scratch, &layer);
		if (r == 0)
			view_from_layer(geo, layer.k, layer.v, at, n, view, i, user);
	}
	return r;
}
