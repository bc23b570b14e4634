/* SPDX-License-Identifier: Apache-2.0 */
/* Reading coded payloads. */
#include "libclient/coded.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/kvp_proto.h"
#include "shm/kvp_seg.h"

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
	c->calib = NULL;
	c->calib_data = NULL;
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

static int take_calibration(
	struct space_codecs *c, const struct kvp_space_canon *canon, void *data, size_t bytes)
{
	int r = kvp_nuq_set_new(data, bytes, &c->calib);

	if (r == 0 && kvp_payload_calib_wrong(canon, c->calib)) {
		c->calib = kvp_nuq_set_free(c->calib);
		r = -EPROTO;
	}
	if (r < 0)
		return r == -ENOMEM ? r : -EPROTO;
	c->calib_data = data;
	c->calib_bytes = bytes;
	for (uint32_t w = 0; w <= c->lowest; w++)
		kvp_payload_calib_give(canon, c->calib, &c->width[w]);
	return 0;
}

int coded_calibrate(struct space_codecs *c, const struct kvp_space_canon *canon, int fd)
{
	size_t bytes;
	void *data;
	int r;

	if (!kvp_payload_calibrated(canon))
		return 0;
	r = fd < 0 ? -EPROTO : kvp_seg_sealed_read(fd, KVP_CALIBRATION_BYTES, &data, &bytes);
	if (r < 0)
		return r == -ENOMEM ? r : -EPROTO;
	if (!c->calib) {
		r = take_calibration(c, canon, data, bytes);
		if (r == 0)
			return 0;
	} else if (bytes != c->calib_bytes || memcmp(data, c->calib_data, bytes) != 0) {
		r = -ESTALE;
	}
	free(data);
	return r;
}

struct space_codecs *coded_free(struct space_codecs *c)
{
	if (c) {
		kvp_kernels_free(c->kernels);
		kvp_nuq_set_free(c->calib);
		free(c->calib_data);
	}
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
