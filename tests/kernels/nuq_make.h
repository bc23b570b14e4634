/* SPDX-License-Identifier: Apache-2.0 */
/* Calibrations of kvquant of no model: ranges and signposts at random, for what tests want to see. */
#ifndef KVP_TESTS_KERNELS_NUQ_MAKE_H
#define KVP_TESTS_KERNELS_NUQ_MAKE_H

#include "kernels/kvp_nuq.h"

struct nuq_make {
	uint32_t layers, heads, dim, pairing;
	uint32_t still; /* every so-manyth channel never varied; 0: none */
};

/* A file with all forms of every layer, which the caller frees; aborts if there is no memory. */
void *nuq_make(const struct nuq_make *m, size_t *ret_bytes);
void *nuq_make_of(const struct nuq_make *m, const char *model, size_t *ret_bytes);

/* What a plane of such a codec needs, of a set that is made once for each geometry and kept. */
const struct kvp_calib *nuq_calib_for(uint32_t codec, const struct kvp_plane *p);

/* The entry's form that a codec asks for. */
uint32_t nuq_form_of(uint32_t codec, uint32_t kind);

#endif
